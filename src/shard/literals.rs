//! Located results of addresses: requests inside a dialog name one, mostly the same few.

use std::sync::Arc;
use std::time::Instant;

use ahash::RandomState;

use crate::location::{Enabled, LocateKey, Located};

/// Results kept.
const PLACES: usize = 512;

/// Each result has one place that it may stand in; whoever comes later takes it.
#[derive(Debug, Default)]
pub struct Literals {
    places: Vec<Option<Arc<Located>>>,
}

impl Literals {
    /// The result for a key whose host is an address; `None` for a name.
    pub fn get(
        &mut self,
        key: &LocateKey,
        enabled: &Enabled,
        hash: &RandomState,
        now: Instant,
    ) -> Option<Arc<Located>> {
        if !matches!(key.host, crate::flow::Host::Addr(_)) {
            return None;
        }
        if self.places.is_empty() {
            self.places.resize(PLACES, None);
        }
        let at = usize::try_from(hash.hash_one(key) % PLACES as u64).unwrap_or(0);
        let place = self.places.get_mut(at)?;
        if let Some(found) = place
            && found.key == *key
            && now < found.expires
        {
            return Some(Arc::clone(found));
        }
        let found = Arc::new(Located::literal(key, enabled, now)?);
        *place = Some(Arc::clone(&found));
        Some(found)
    }

    /// Forgets all: what can be sent by has changed.
    pub fn clear(&mut self) {
        self.places.clear();
    }
}
