//! Limits per peer (rule 11): calls at a time, new calls per second.
//!
//! One ledger serves all shards of a node, so it counts in atomics; it reads no clock of its own.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::flow::PeerId;

/// Which limit was met.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// `max_calls`.
    Calls,
    /// `max_rate`.
    Rate,
}

impl Refusal {
    /// A fixed word for metrics and records.
    pub const fn label(self) -> &'static str {
        match self {
            Refusal::Calls => "max_calls",
            Refusal::Rate => "max_rate",
        }
    }
}

/// Counters of one peer.
#[derive(Debug, Default)]
struct Account {
    calls: AtomicU32,
    /// Theoretical arrival time (GCRA, ITU-T I.371) in nanoseconds since the ledger's epoch.
    arrival: AtomicU64,
}

/// The calls of each peer, and its tokens.
#[derive(Debug)]
pub struct Ledger {
    epoch: Instant,
    accounts: Box<[Account]>,
}

impl Ledger {
    /// Most peers a node can have.
    pub const PEERS: usize = 16_384;

    /// An empty ledger; `now` becomes the zero of its time.
    pub fn new(now: Instant) -> Self {
        Self { epoch: now, accounts: (0..Self::PEERS).map(|_| Account::default()).collect() }
    }

    fn account(&self, peer: PeerId) -> Option<&Account> {
        self.accounts.get(usize::from(peer.0))
    }

    /// Charges one call to a peer, or says which limit forbids it. A peer without a limit is counted all the same.
    pub fn charge(
        &self,
        now: Instant,
        peer: PeerId,
        max_calls: Option<u32>,
        max_rate: Option<u32>,
    ) -> Result<(), Refusal> {
        let Some(account) = self.account(peer) else { return Ok(()) };
        let limit = max_calls.unwrap_or(u32::MAX);
        account
            .calls
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| (n < limit).then(|| n.saturating_add(1)))
            .map_err(|_| Refusal::Calls)?;
        if let Some(rate) = max_rate
            && !account.take_token(now.saturating_duration_since(self.epoch), rate)
        {
            self.release(peer);
            return Err(Refusal::Rate);
        }
        Ok(())
    }

    /// Gives one call back.
    pub fn release(&self, peer: PeerId) {
        if let Some(account) = self.account(peer) {
            // A count below zero would admit too many; it cannot be reached while charges and releases pair up.
            let _ = account.calls.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| n.checked_sub(1));
        }
    }

    /// Calls of a peer now.
    pub fn calls(&self, peer: PeerId) -> u32 {
        self.account(peer).map_or(0, |a| a.calls.load(Ordering::Relaxed))
    }
}

impl Account {
    /// One second's worth plus one may come at once; after that, one per 1/rate.
    fn take_token(&self, now: Duration, rate: u32) -> bool {
        if rate == 0 {
            return false;
        }
        let now = u64::try_from(now.as_nanos()).unwrap_or(u64::MAX / 2);
        let interval = 1_000_000_000 / u64::from(rate);
        // `rate + 1` conforming arrivals at one instant: the last finds the arrival time `rate` intervals ahead.
        let burst = interval.saturating_mul(u64::from(rate));
        self.arrival
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |arrival| {
                let arrival = arrival.max(now);
                (arrival - now <= burst).then(|| arrival + interval)
            })
            .is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PEER: PeerId = PeerId(3);

    #[test]
    fn calls_are_counted_up_to_the_limit_and_given_back() {
        let t = Instant::now();
        let l = Ledger::new(t);
        assert_eq!(l.charge(t, PEER, Some(2), None), Ok(()));
        assert_eq!(l.charge(t, PEER, Some(2), None), Ok(()));
        assert_eq!(l.charge(t, PEER, Some(2), None), Err(Refusal::Calls));
        assert_eq!(l.calls(PEER), 2);
        l.release(PEER);
        assert_eq!(l.charge(t, PEER, Some(2), None), Ok(()));
        for _ in 0..5 {
            l.release(PEER);
        }
        assert_eq!(l.calls(PEER), 0);
    }

    #[test]
    fn a_burst_of_one_second_plus_one_passes_then_the_rate_holds() {
        let t = Instant::now();
        let l = Ledger::new(t);
        let took = |at: Duration, n: usize| {
            (0..n).filter(|_| l.charge(t + at, PEER, None, Some(100)).is_ok()).count()
        };
        assert_eq!(took(Duration::ZERO, 500), 101);
        assert_eq!(took(Duration::from_millis(100), 500), 10);
        assert_eq!(took(Duration::from_secs(60), 500), 101);
    }

    #[test]
    fn a_refused_rate_holds_no_call() {
        let t = Instant::now();
        let l = Ledger::new(t);
        while l.charge(t, PEER, Some(1000), Some(5)).is_ok() {}
        assert_eq!(l.calls(PEER), 6);
    }
}
