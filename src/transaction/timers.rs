//! Timers: their names, their values (RFC 3261 §17 Table 4), and the lanes they wait in.

use std::cell::Cell;
use std::cmp::{Ordering, Reverse};
use std::collections::{BinaryHeap, VecDeque};
use std::time::{Duration, Instant};

/// T1, T2 and T4 for a transaction (RFC 3261 §17.1.1.1, §17.1.2.2); the rest follows from them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TimerConfig {
    /// Estimate of the round-trip time.
    pub t1: Duration,
    /// Longest interval between repeated non-INVITE requests and INVITE responses.
    pub t2: Duration,
    /// How long a message stays in the network.
    pub t4: Duration,
}

impl Default for TimerConfig {
    /// The values of RFC 3261.
    fn default() -> Self {
        Self { t1: Duration::from_millis(500), t2: Duration::from_secs(4), t4: Duration::from_secs(5) }
    }
}

impl TimerConfig {
    /// 64*T1: timers B, D, F, H, J, L and M.
    pub fn timeout(&self) -> Duration {
        self.t1.saturating_mul(64)
    }

    /// When a non-INVITE request without an answer gets its 100: once its sender's timer E has
    /// reached T2 (RFC 4320 §4.1). 3.5 s with the values of RFC 3261.
    pub fn late_trying(&self) -> Duration {
        let mut interval = self.t1;
        let mut passed = Duration::ZERO;
        while interval < self.t2 && !interval.is_zero() {
            passed = passed.saturating_add(interval);
            interval = interval.saturating_mul(2);
        }
        passed
    }
}

/// A timer of a transaction, or of the core for one of its transactions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum Timer {
    /// Client INVITE: repeat the request; T1, then doubled each time.
    A,
    /// Client INVITE: no response at all; 64*T1.
    B,
    /// The core's limit for a ringing branch (RFC 3261 §16.6 step 11).
    C,
    /// Client INVITE: wait for repeated 300-699; 64*T1 over an unreliable transport.
    D,
    /// Client non-INVITE: repeat the request; T1, doubled up to T2.
    E,
    /// Client non-INVITE: no final response; 64*T1 from the receipt of the request.
    F,
    /// Server INVITE: repeat the 300-699; T1, doubled up to T2.
    G,
    /// Server INVITE: no ACK; 64*T1.
    H,
    /// Server INVITE: absorb repeated ACKs; T4 over an unreliable transport.
    I,
    /// Server non-INVITE: answer repeated requests; 64*T1 over an unreliable transport.
    J,
    /// Client non-INVITE: absorb repeated responses; T4 over an unreliable transport.
    K,
    /// Server INVITE after a 2xx: absorb repeated requests; 64*T1 (RFC 6026).
    L,
    /// Client INVITE after a 2xx: pass on further 2xx; 64*T1 (RFC 6026).
    M,
    /// Server non-INVITE: the 100 falls due ([`TimerConfig::late_trying`]).
    Trying,
    /// The core's `try_timeout`: no response at all from this instance, the next one is tried.
    Try,
    /// The core gives up a branch that did not answer its CANCEL; 64*T1 (RFC 3261 §9.1).
    Cancelled,
}

/// A duration in microseconds; holds up to 71 minutes, enough for 64*T1, in half the room.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Micros(u32);

impl Micros {
    pub(super) const ZERO: Micros = Micros(0);

    pub(super) fn duration(self) -> Duration {
        Duration::from_micros(u64::from(self.0))
    }

    pub(super) fn doubled(self) -> Self {
        Self(self.0.saturating_mul(2))
    }
}

impl From<Duration> for Micros {
    fn from(d: Duration) -> Self {
        Self(u32::try_from(d.as_micros()).unwrap_or(u32::MAX))
    }
}

/// Most lanes there can be; durations beyond that wait in a heap.
const MAX_LANES: usize = 48;
/// How many durations without a lane are remembered, to see which of them come again.
const CANDIDATES: usize = 16;
/// Queues are not shrunk below this.
const KEPT_CAPACITY: usize = 64;
/// What any longer duration becomes: a year, in nanoseconds.
const FAR: u64 = 365 * 24 * 3600 * 1_000_000_000;
/// In place of a duration or a deadline where there is none.
const NONE: u64 = u64::MAX;
/// How far before the first `now` the count of nanoseconds begins.
const MARGIN: Duration = Duration::from_secs(60);

/// Armed timers, in one FIFO lane per duration.
///
/// Timers of one duration fire in the order in which they were armed, so that a queue is enough
/// and no heap is needed; and SIP knows few durations. One that is seen for the first time waits in a
/// heap and gets a lane when it comes again: what remains of a deadline, different each time,
/// takes nobody's lane away. An empty lane gives way to a new duration.
///
/// Nothing can be cancelled: the owner sees from the key that a timer has become pointless.
/// `now` may go back a little from call to call; a timer is then late by that much, never early.
#[derive(Debug)]
pub struct Lanes<K: Copy> {
    /// Deadlines are nanoseconds since then; half the room of an [`Instant`].
    origin: Option<Instant>,
    /// The last `now`, and its nanoseconds: several timers are armed at one time.
    last: Option<(Instant, u64)>,
    /// Nanoseconds, one for each of `queues`; apart from them, like `fronts`, so that a search
    /// reads a few cache lines in a row.
    durations: Vec<u64>,
    /// The first deadline of each of `queues`.
    fronts: Vec<u64>,
    queues: Vec<VecDeque<(u64, K)>>,
    odd: BinaryHeap<Reverse<Odd<K>>>,
    candidates: [u64; CANDIDATES],
    next_candidate: usize,
    sequence: u64,
    /// The smallest of `fronts` and of the heap's, [`NONE`] if nothing is armed.
    earliest: u64,
    /// The same as an [`Instant`], as it was asked for last: it is asked for more often than it changes.
    known: Cell<(u64, Option<Instant>)>,
    /// Where it waits: a lane, or the heap.
    place: Option<usize>,
    len: usize,
}

/// A timer in the heap; equal deadlines keep the order of arming.
#[derive(Clone, Copy, Debug)]
struct Odd<K> {
    deadline: u64,
    sequence: u64,
    key: K,
}

impl<K> PartialEq for Odd<K> {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl<K> Eq for Odd<K> {}

impl<K> PartialOrd for Odd<K> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<K> Ord for Odd<K> {
    fn cmp(&self, other: &Self) -> Ordering {
        (self.deadline, self.sequence).cmp(&(other.deadline, other.sequence))
    }
}

impl<K: Copy> Default for Lanes<K> {
    fn default() -> Self {
        Self::new()
    }
}

impl<K: Copy> Lanes<K> {
    /// With no timer armed.
    pub fn new() -> Self {
        Self {
            origin: None,
            last: None,
            durations: Vec::new(),
            fronts: Vec::new(),
            queues: Vec::new(),
            odd: BinaryHeap::new(),
            candidates: [NONE; CANDIDATES],
            next_candidate: 0,
            sequence: 0,
            earliest: NONE,
            known: Cell::new((NONE, None)),
            place: None,
            len: 0,
        }
    }

    /// Has `key` come out of [`Self::pop_expired`] once `after` has passed (at most a year).
    pub fn arm(&mut self, now: Instant, after: Duration, key: K) {
        let now = self.count(now);
        let after = nanos(after).min(FAR);
        let deadline = now.saturating_add(after).min(NONE - 1);
        self.len += 1;
        let lane = self.lane_for(after);
        match lane.and_then(|lane| Some((lane, self.queues.get_mut(lane)?))) {
            Some((lane, queue)) => {
                if let Some(&(last, _)) = queue.back() {
                    // The lane's front is not later, so the earliest of all stays what it is.
                    queue.push_back((last.max(deadline), key));
                    return;
                }
                queue.push_back((deadline, key));
                if let Some(front) = self.fronts.get_mut(lane) {
                    *front = deadline;
                }
                self.note(deadline, Some(lane));
            }
            None => {
                self.sequence += 1;
                self.odd.push(Reverse(Odd { deadline, sequence: self.sequence, key }));
                self.note(deadline, None);
            }
        }
    }

    /// When [`Self::pop_expired`] will next have something; `None` if nothing is armed.
    pub fn poll_timeout(&self) -> Option<Instant> {
        if self.is_empty() {
            return None;
        }
        let (count, known) = self.known.get();
        if count == self.earliest {
            return known;
        }
        let earliest = self.origin?.checked_add(Duration::from_nanos(self.earliest));
        self.known.set((self.earliest, earliest));
        earliest
    }

    /// Takes the timer with the earliest deadline, if that is not after `now`. Called until `None`,
    /// it gives all that have fired in the order of their deadlines.
    pub fn pop_expired(&mut self, now: Instant) -> Option<K> {
        if self.is_empty() || self.earliest > self.count(now) {
            return None;
        }
        let key = match self.place {
            Some(lane) => {
                let queue = self.queues.get_mut(lane)?;
                let (_, key) = queue.pop_front()?;
                *self.fronts.get_mut(lane)? = queue.front().map_or(NONE, |&(next, _)| next);
                if let Some(capacity) = shrunk(queue.len(), queue.capacity()) {
                    queue.shrink_to(capacity);
                }
                key
            }
            None => {
                let Reverse(odd) = self.odd.pop()?;
                if let Some(capacity) = shrunk(self.odd.len(), self.odd.capacity()) {
                    self.odd.shrink_to(capacity);
                }
                odd.key
            }
        };
        self.len -= 1;
        self.find_earliest();
        Some(key)
    }

    /// Nanoseconds from the origin to `now`, 0 for what lies before it.
    fn count(&mut self, now: Instant) -> u64 {
        if let Some((last, count)) = self.last
            && last == now
        {
            return count;
        }
        let origin = *self.origin.get_or_insert_with(|| now.checked_sub(MARGIN).unwrap_or(now));
        let count = nanos(now.saturating_duration_since(origin));
        self.last = Some((now, count));
        count
    }

    /// How many timers are armed, pointless ones included.
    pub fn len(&self) -> usize {
        self.len
    }

    /// True if none is.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// How many timers could be armed without asking for more memory; for tests and gauges.
    pub fn capacity(&self) -> usize {
        self.queues.iter().map(VecDeque::capacity).sum::<usize>() + self.odd.capacity()
    }

    /// The lane of this duration; opens one for a duration that was seen not long ago.
    fn lane_for(&mut self, after: u64) -> Option<usize> {
        if let Some(lane) = self.durations.iter().position(|&d| d == after) {
            return Some(lane);
        }
        if !self.candidates.contains(&after) {
            if let Some(candidate) = self.candidates.get_mut(self.next_candidate) {
                *candidate = after;
            }
            self.next_candidate = (self.next_candidate + 1) % CANDIDATES;
            return None;
        }
        if self.queues.len() < MAX_LANES {
            self.durations.push(after);
            self.fronts.push(NONE);
            self.queues.push(VecDeque::new());
            return Some(self.queues.len() - 1);
        }
        let lane = self.fronts.iter().position(|&front| front == NONE)?;
        *self.durations.get_mut(lane)? = after;
        Some(lane)
    }

    fn note(&mut self, deadline: u64, place: Option<usize>) {
        if deadline < self.earliest {
            self.earliest = deadline;
            self.place = place;
        }
    }

    fn find_earliest(&mut self) {
        self.earliest = self.odd.peek().map_or(NONE, |Reverse(odd)| odd.deadline);
        self.place = None;
        for (lane, &front) in self.fronts.iter().enumerate() {
            if front < self.earliest {
                self.earliest = front;
                self.place = Some(lane);
            }
        }
    }
}

fn nanos(d: Duration) -> u64 {
    d.as_secs().saturating_mul(1_000_000_000).saturating_add(u64::from(d.subsec_nanos()))
}

/// The capacity to shrink to after a burst: when seven eighths are unused.
fn shrunk(len: usize, capacity: usize) -> Option<usize> {
    (capacity > KEPT_CAPACITY && len < capacity / 8).then(|| (len * 2).max(KEPT_CAPACITY))
}
