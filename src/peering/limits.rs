//! Limits per peer (rule 11) and per instance of a peer: calls at a time, new calls per second.
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
    /// `max_calls_per_instance`.
    InstanceCalls,
    /// `max_rate_per_instance`.
    InstanceRate,
}

impl Refusal {
    /// A fixed word for metrics and records.
    pub const fn label(self) -> &'static str {
        match self {
            Refusal::Calls => "max_calls",
            Refusal::Rate => "max_rate",
            Refusal::InstanceCalls => "max_calls_per_instance",
            Refusal::InstanceRate => "max_rate_per_instance",
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

/// An instance with limits, known by a hash of it and its peer; 0: free.
#[derive(Debug, Default)]
struct Place {
    key: AtomicU64,
    account: Account,
}

/// A call that is counted at an instance; to be given back to the ledger it is from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seat(usize);

/// `max_calls_per_instance` and `max_rate_per_instance` of a peer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct InstanceLimits {
    /// Most calls at a time.
    pub calls: Option<u32>,
    /// Most new calls per second.
    pub rate: Option<u32>,
}

impl InstanceLimits {
    /// True if there is a limit at all.
    pub const fn any(&self) -> bool {
        self.calls.is_some() || self.rate.is_some()
    }
}

/// The calls of each peer, and its tokens.
#[derive(Debug)]
pub struct Ledger {
    epoch: Instant,
    accounts: Box<[Account]>,
    places: Box<[Place]>,
}

impl Ledger {
    /// Most peers a node can have.
    pub const PEERS: usize = 16_384;

    /// Most instances with limits of their own. One that finds no place among those that have calls is not limited.
    pub const INSTANCES: usize = 4096;
    /// Places looked at for an instance.
    const LOOKED_AT: usize = 32;

    /// An empty ledger; `now` becomes the zero of its time.
    pub fn new(now: Instant) -> Self {
        Self {
            epoch: now,
            accounts: (0..Self::PEERS).map(|_| Account::default()).collect(),
            places: (0..Self::INSTANCES).map(|_| Place::default()).collect(),
        }
    }

    /// The places where an instance may be.
    fn places_of(&self, key: u64) -> impl Iterator<Item = (usize, &Place)> {
        let first = usize::try_from(key % Self::INSTANCES as u64).unwrap_or_default();
        let at = (0..Self::LOOKED_AT).map(move |step| (first + step) % Self::INSTANCES);
        at.filter_map(|at| Some((at, self.places.get(at)?)))
    }

    /// The place of an instance, a new one if it has none. One whose calls are over is given to another.
    fn place_for(&self, key: u64, now: Duration) -> Option<(usize, &Place)> {
        let known = self.places_of(key).find(|(_, place)| place.key.load(Ordering::Relaxed) == key);
        known.or_else(|| {
            self.places_of(key).find(|(_, place)| {
                let before = place.key.load(Ordering::Relaxed);
                let idle = before == 0 || place.account.is_idle(now);
                idle && place.key.compare_exchange(before, key, Ordering::Relaxed, Ordering::Relaxed).is_ok()
            })
        })
    }

    /// Which limit of an instance is met; it counts nothing. `key`: a hash of peer and instance, the same for all.
    pub fn is_full(&self, now: Instant, key: u64, limits: InstanceLimits) -> Option<Refusal> {
        let now = now.saturating_duration_since(self.epoch);
        let (_, place) = self.places_of(key).find(|(_, place)| place.key.load(Ordering::Relaxed) == key)?;
        let calls = place.account.calls.load(Ordering::Relaxed);
        if limits.calls.is_some_and(|most| calls >= most) {
            return Some(Refusal::InstanceCalls);
        }
        limits.rate.is_some_and(|rate| !place.account.has_token(now, rate)).then_some(Refusal::InstanceRate)
    }

    /// Charges one call to an instance, or says which of its limits forbids it. `None`: it has found no place.
    ///
    /// # Errors
    /// The limit that is met.
    pub fn sit(&self, now: Instant, key: u64, limits: InstanceLimits) -> Result<Option<Seat>, Refusal> {
        let now = now.saturating_duration_since(self.epoch);
        let Some((at, place)) = self.place_for(key, now) else { return Ok(None) };
        let most = limits.calls.unwrap_or(u32::MAX);
        let calls = &place.account.calls;
        calls
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| (n < most).then(|| n.saturating_add(1)))
            .map_err(|_| Refusal::InstanceCalls)?;
        if limits.rate.is_some_and(|rate| !place.account.take_token(now, rate)) {
            self.leave(Seat(at));
            return Err(Refusal::InstanceRate);
        }
        Ok(Some(Seat(at)))
    }

    /// Gives back a call of an instance.
    pub fn leave(&self, seat: Seat) {
        if let Some(place) = self.places.get(seat.0) {
            let calls = &place.account.calls;
            let _ = calls.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| n.checked_sub(1));
        }
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

/// What counts against limits at a moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Used {
    /// Calls.
    pub calls: u32,
    /// New calls that count against the rate: 0 after a quiet second, above the limit when the next would be refused.
    /// 0 without a limit.
    pub rate: u32,
}

impl Ledger {
    /// What counts against the limits of a peer.
    pub fn used(&self, now: Instant, peer: PeerId, max_rate: Option<u32>) -> Used {
        let now = now.saturating_duration_since(self.epoch);
        self.account(peer).map_or_else(Used::default, |a| a.used(now, max_rate))
    }

    /// What counts against the limits of an instance; nothing where it has had no call that was limited.
    pub fn used_of(&self, now: Instant, key: u64, limits: InstanceLimits) -> Used {
        let now = now.saturating_duration_since(self.epoch);
        let place = self.places_of(key).find(|(_, place)| place.key.load(Ordering::Relaxed) == key);
        place.map_or_else(Used::default, |(_, place)| place.account.used(now, limits.rate))
    }
}

impl Account {
    fn used(&self, now: Duration, rate: Option<u32>) -> Used {
        let now = u64::try_from(now.as_nanos()).unwrap_or(u64::MAX / 2);
        let ahead = self.arrival.load(Ordering::Relaxed).saturating_sub(now);
        let rate = rate.filter(|rate| *rate > 0).map_or(0, |rate| {
            let interval = 1_000_000_000 / u64::from(rate);
            u32::try_from(ahead.div_ceil(interval.max(1))).unwrap_or(u32::MAX)
        });
        Used { calls: self.calls.load(Ordering::Relaxed), rate }
    }

    /// True without calls and with all its tokens.
    fn is_idle(&self, now: Duration) -> bool {
        let now = u64::try_from(now.as_nanos()).unwrap_or(u64::MAX / 2);
        self.calls.load(Ordering::Relaxed) == 0 && self.arrival.load(Ordering::Relaxed) <= now
    }

    /// Whether [`Self::take_token`] would find one.
    fn has_token(&self, now: Duration, rate: u32) -> bool {
        let now = u64::try_from(now.as_nanos()).unwrap_or(u64::MAX / 2);
        let interval = 1_000_000_000 / u64::from(rate.max(1));
        let ahead = self.arrival.load(Ordering::Relaxed).saturating_sub(now);
        rate > 0 && ahead <= interval.saturating_mul(u64::from(rate))
    }

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
    fn an_instance_has_limits_of_its_own_and_its_place_goes_to_another_when_its_calls_are_over() {
        let t = Instant::now();
        let l = Ledger::new(t);
        let two = InstanceLimits { calls: Some(2), rate: None };
        let seats: Vec<_> = (0..2).map(|_| l.sit(t, 7, two)).collect();
        assert!(seats.iter().all(|s| matches!(s, Ok(Some(_)))), "{seats:?}");
        assert_eq!(l.sit(t, 7, two), Err(Refusal::InstanceCalls));
        assert_eq!(l.is_full(t, 7, two), Some(Refusal::InstanceCalls));
        assert_eq!(l.is_full(t, 8, two), None);
        if let Some(Ok(Some(seat))) = seats.first() {
            l.leave(*seat);
        }
        assert_eq!(l.is_full(t, 7, two), None);
        // As many more as there are places near it: each finds one while it has no call.
        for key in 1..1000_u64 {
            let key = 7 + key * Ledger::INSTANCES as u64;
            let seat = l.sit(t, key, two);
            assert!(matches!(seat, Ok(Some(_))), "{key}: {seat:?}");
            if let Ok(Some(seat)) = seat {
                l.leave(seat);
            }
        }
        assert_eq!(l.sit(t, 7, two).map(|s| s.is_some()), Ok(true));
        assert_eq!(
            l.is_full(t, 7, two),
            Some(Refusal::InstanceCalls),
            "one of its calls was there all the time"
        );
    }

    #[test]
    fn where_all_places_are_taken_an_instance_is_not_limited() {
        let t = Instant::now();
        let l = Ledger::new(t);
        let one = InstanceLimits { calls: Some(1), rate: Some(1) };
        for key in 1..=Ledger::LOOKED_AT as u64 {
            assert_eq!(l.sit(t, key * Ledger::INSTANCES as u64, one).map(|s| s.is_some()), Ok(true));
        }
        assert_eq!(l.sit(t, 1000 * Ledger::INSTANCES as u64, one), Ok(None));
    }

    #[test]
    fn the_rate_of_an_instance_is_looked_at_as_it_is_taken() {
        let t = Instant::now();
        let l = Ledger::new(t);
        let limits = InstanceLimits { calls: None, rate: Some(5) };
        for n in 0..10 {
            let full = l.is_full(t, 3, limits);
            let seat = l.sit(t, 3, limits);
            assert_eq!(full, seat.err(), "{n}");
            assert_eq!(full.is_some(), n > 5, "{n}");
        }
        assert_eq!(l.is_full(t + Duration::from_secs(1), 3, limits), None);
    }

    #[test]
    fn what_counts_against_a_limit_is_told() {
        let t = Instant::now();
        let l = Ledger::new(t);
        for _ in 0..3 {
            assert_eq!(l.charge(t, PEER, None, Some(10)), Ok(()));
        }
        assert_eq!(l.used(t, PEER, Some(10)), Used { calls: 3, rate: 3 });
        assert_eq!(l.used(t + Duration::from_millis(150), PEER, Some(10)), Used { calls: 3, rate: 2 });
        assert_eq!(l.used(t + Duration::from_secs(2), PEER, Some(10)), Used { calls: 3, rate: 0 });
        assert_eq!(l.used(t, PEER, None), Used { calls: 3, rate: 0 });
        let limits = InstanceLimits { calls: Some(5), rate: Some(5) };
        assert_eq!(l.used_of(t, 7, limits), Used::default(), "nothing is known of it");
        assert!(l.sit(t, 7, limits).is_ok());
        assert_eq!(l.used_of(t, 7, limits), Used { calls: 1, rate: 1 });
    }

    #[test]
    fn a_refused_rate_holds_no_call() {
        let t = Instant::now();
        let l = Ledger::new(t);
        while l.charge(t, PEER, Some(1000), Some(5)).is_ok() {}
        assert_eq!(l.calls(PEER), 6);
    }
}
