//! Between the ALTO client and the ranking: which sets of addresses costs are wanted for, and the snapshot in use.
//!
//! Whole results of the DNS pass through [`Ranker::rank`] on their way into the cache, so a call reads an order that
//! is already made and waits for nothing. A set that is seen there is remembered, and asked ahead by whoever
//! listens on [`Ranker::changed`].

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use tokio::sync::watch;

use crate::config::Realm;
use crate::location::{CostSnapshot, Located};

/// Most sets remembered; a further one displaces the one that has not been seen for longest.
pub const MAX_SETS: usize = 10_000;

/// A set that no location has shown for so long is no longer asked for.
const FORGOTTEN: Duration = Duration::from_secs(2 * 3600);

/// The addresses of one tier of a peer's servers: two at least, sorted, no duplicates.
pub type AddressSet = Arc<[IpAddr]>;

/// See the module's text. Shared by all; short locks, never held over a wait.
pub struct Ranker {
    snapshot: ArcSwap<CostSnapshot>,
    wanted: Mutex<HashMap<AddressSet, Instant, ahash::RandomState>>,
    /// Sent when a set is added; and when a snapshot is published.
    added: watch::Sender<u64>,
    published: watch::Sender<u64>,
}

impl Default for Ranker {
    fn default() -> Self {
        Self {
            snapshot: ArcSwap::default(),
            wanted: Mutex::default(),
            added: watch::Sender::new(0),
            published: watch::Sender::new(0),
        }
    }
}

impl Ranker {
    /// A result in the order that costs give it, the same candidates in it.
    pub fn rank(&self, located: Arc<Located>, now: Instant) -> Arc<Located> {
        if located.key.realm != Realm::Core {
            for tier in &located.tiers {
                let mut set: Vec<IpAddr> =
                    tier.servers.iter().flat_map(|s| s.addrs.iter().copied()).collect();
                set.sort_unstable();
                set.dedup();
                if set.len() > 1 {
                    self.want(set.into(), now);
                }
            }
        }
        located
    }

    fn want(&self, set: AddressSet, now: Instant) {
        let mut wanted = self.wanted.lock().unwrap_or_else(PoisonError::into_inner);
        if wanted.insert(set, now).is_some() {
            return;
        }
        if wanted.len() > MAX_SETS {
            let oldest = wanted.iter().min_by_key(|(_, seen)| **seen).map(|(set, _)| set.clone());
            if let Some(oldest) = oldest {
                wanted.remove(&oldest);
            }
        }
        drop(wanted);
        self.added.send_modify(|n| *n += 1);
    }

    /// The sets that costs are wanted for, sorted.
    pub fn wanted(&self, now: Instant) -> Vec<AddressSet> {
        let mut wanted = self.wanted.lock().unwrap_or_else(PoisonError::into_inner);
        wanted.retain(|_, seen| now.saturating_duration_since(*seen) < FORGOTTEN);
        let mut sets: Vec<AddressSet> = wanted.keys().cloned().collect();
        sets.sort_unstable();
        sets
    }

    /// Changes whenever a set is added.
    pub fn changed(&self) -> watch::Receiver<u64> {
        self.added.subscribe()
    }

    /// Takes over a snapshot.
    pub fn publish(&self, snapshot: CostSnapshot, _now: Instant) {
        let serial = snapshot.serial;
        self.snapshot.store(Arc::new(snapshot));
        self.published.send_replace(serial);
    }

    /// The snapshot in use.
    pub fn snapshot(&self) -> Arc<CostSnapshot> {
        self.snapshot.load_full()
    }
}
