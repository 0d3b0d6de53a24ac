//! What was refused lately, so that its retransmissions cost next to nothing.

use std::time::{Duration, Instant};

use crate::transaction::ServerKey;

/// Places; a power of two. At 10,000 refusals a second, most are remembered for some seconds.
const PLACES: usize = 1 << 16;
/// Unit of time kept with each entry.
const TICK_MILLIS: u128 = 64;

/// A bounded memory of transactions: a place each, found by hash; a newer one takes an older one's
/// place. Forgetting one too early costs a second refusal, no more. Half a mebibyte while in use.
#[derive(Debug, Default)]
pub struct Silence {
    /// 48 bits of the transaction's key, 16 of time; 0: free.
    places: Vec<u64>,
    epoch: Option<Instant>,
    last: Option<Instant>,
}

impl Silence {
    /// Something is remembered, or was lately.
    pub fn is_empty(&self) -> bool {
        self.places.is_empty()
    }

    /// Remembers a transaction.
    pub fn insert(&mut self, now: Instant, key: ServerKey) {
        if self.places.is_empty() {
            self.places = vec![0; PLACES];
            self.epoch = Some(now);
        }
        self.last = Some(now);
        let (at, mark) = place(key);
        let entry = mark | self.tick(now);
        if let Some(slot) = self.places.get_mut(at) {
            *slot = entry;
        }
    }

    /// It was remembered less than `keep` ago.
    pub fn contains(&self, now: Instant, key: ServerKey, keep: Duration) -> bool {
        let (at, mark) = place(key);
        self.places.get(at).is_some_and(|slot| {
            let age = (self.tick(now) as u16).wrapping_sub(*slot as u16);
            *slot & !0xffff == mark && u128::from(age) * TICK_MILLIS <= keep.as_millis()
        })
    }

    /// Gives the memory back once nothing has been refused for `keep`. True if nothing is held.
    pub fn sweep(&mut self, now: Instant, keep: Duration) -> bool {
        if self.last.is_none_or(|t| now.saturating_duration_since(t) > keep) {
            *self = Self::default();
        }
        self.places.is_empty()
    }

    /// Time since the first entry, modulo 16 bits.
    fn tick(&self, now: Instant) -> u64 {
        let since = self.epoch.map_or(Duration::ZERO, |e| now.saturating_duration_since(e));
        ((since.as_millis() / TICK_MILLIS) & 0xffff) as u64
    }
}

/// Where a transaction's place is, and what stands for it there; never 0.
fn place(key: ServerKey) -> (usize, u64) {
    let hash = key.short();
    let mark = (hash & !0xffff) | 0x1_0000;
    ((hash.rotate_left(16) as usize ^ hash as usize) & (PLACES - 1), mark)
}
