//! The last few minutes: how calls fared, by peer, instance and cause. Fed with every finished record; knows no clock.
//!
//! Times are whole seconds of the caller's choosing, which must not go back. Everything is bounded: what finds no
//! place of its own still counts in the totals.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::time::{Duration, Instant};

use crate::flow::PeerId;
use crate::location::Instance;
use crate::peering::Party;
use crate::proxy::decision::{AttemptRecord, Record};
use crate::shard::Stats;
use crate::wire::Method;

/// Length of the window, seconds.
pub const SECONDS: u64 = 300;
/// Counts are kept by steps of this length, seconds: the window moves on by it.
const STEP: u64 = 10;
/// Peers, and instances, counted one by one.
const MOST: usize = 1024;
/// Bounds of the delays grow by a tenth, from a tenth of a millisecond to beyond half a minute.
const DELAYS: usize = 134;
/// The first bound, seconds.
const LEAST: f64 = 0.0001;
/// See above.
const GROWTH: f64 = 1.1;

/// Delays, counted so that a percentile is right within a tenth.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Delays(Vec<u32>);

impl Delays {
    /// The place of a delay.
    fn place(delay: Duration) -> usize {
        let times = delay.as_secs_f64() / LEAST;
        let at = if times <= 1.0 { 0 } else { times.log(GROWTH).ceil() as usize };
        at.min(DELAYS - 1)
    }

    fn add(&mut self, place: usize) {
        if self.0.is_empty() {
            self.0.resize(DELAYS, 0);
        }
        if let Some(n) = self.0.get_mut(place) {
            *n = n.saturating_add(1);
        }
    }

    fn merge(&mut self, other: &Self) {
        if self.0.is_empty() {
            self.0.clone_from(&other.0);
            return;
        }
        for (a, b) in self.0.iter_mut().zip(&other.0) {
            *a = a.saturating_add(*b);
        }
    }

    /// The delay, in milliseconds, that a share (0 to 1) of all does not exceed; `None` without any.
    pub fn percentile(&self, share: f64) -> Option<f64> {
        let all: u64 = self.0.iter().map(|n| u64::from(*n)).sum();
        if all == 0 {
            return None;
        }
        let wanted = (share * all as f64).ceil().max(1.0);
        let mut sum = 0.0;
        for (at, n) in self.0.iter().enumerate() {
            sum += f64::from(*n);
            if sum >= wanted {
                return Some(LEAST * 1000.0 * GROWTH.powf(at as f64));
            }
        }
        None
    }
}

/// INVITEs that have come to their end.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// All of them.
    pub calls: u64,
    /// Answered with 2xx.
    pub answered: u64,
    /// Answered, or ended by the called user: 200, 480, 486, 600, 603 (RFC 6076 §4.7).
    pub effective: u64,
    /// Redirected or challenged, 3xx, 401, 402, 407: not counted against anybody (RFC 6076 §4.6).
    pub set_aside: u64,
    /// Given up by the caller.
    pub cancelled: u64,
    /// Refused by this element before anybody was tried.
    pub refused: u64,
    /// Tried at more than one instance.
    pub failed_over: u64,
    /// From the INVITE to the first response other than 100: post-dial delay (RFC 6076 §4.3).
    pub delay: Delays,
}

/// How an INVITE fared: what of its record is counted, in each [`Tally`] that it belongs to.
#[derive(Clone, Copy, Debug)]
struct Fate {
    answered: bool,
    effective: bool,
    set_aside: bool,
    cancelled: bool,
    refused: bool,
    failed_over: bool,
    /// Place among the [`Delays`].
    delay: Option<usize>,
}

impl Fate {
    fn of(record: &Record) -> Self {
        let answered = matches!(record.status, 200..300);
        // The one that was passed on is the last attempt's; an earlier attempt's failure is none to the caller.
        let heard = record.attempts.iter().rev().find_map(|a| a.rang);
        Self {
            answered,
            effective: answered || matches!(record.status, 480 | 486 | 600 | 603),
            set_aside: matches!(record.status, 300..=399 | 401 | 402 | 407),
            cancelled: record.cancelled,
            refused: record.attempts.is_empty() && record.status >= 300,
            failed_over: record.attempts.len() > 1,
            delay: heard.map(|heard| Delays::place(heard.saturating_duration_since(record.started))),
        }
    }
}

impl Tally {
    fn add(&mut self, fate: &Fate) {
        self.calls += 1;
        self.answered += u64::from(fate.answered);
        self.effective += u64::from(fate.effective);
        self.set_aside += u64::from(fate.set_aside);
        self.cancelled += u64::from(fate.cancelled);
        self.refused += u64::from(fate.refused);
        self.failed_over += u64::from(fate.failed_over);
        if let Some(place) = fate.delay {
            self.delay.add(place);
        }
    }

    fn merge(&mut self, other: &Self) {
        self.calls += other.calls;
        self.answered += other.answered;
        self.effective += other.effective;
        self.set_aside += other.set_aside;
        self.cancelled += other.cancelled;
        self.refused += other.refused;
        self.failed_over += other.failed_over;
        self.delay.merge(&other.delay);
    }

    /// Answered among all that counts: answer-seizure ratio, 0 to 1.
    pub fn answer_ratio(&self) -> Option<f64> {
        ratio(self.answered, self.calls.saturating_sub(self.set_aside))
    }

    /// Session establishment effectiveness ratio, 0 to 1: what is missing is the networks' fault.
    pub fn effectiveness(&self) -> Option<f64> {
        ratio(self.effective, self.calls.saturating_sub(self.set_aside))
    }
}

/// `None` of nothing.
pub fn ratio(part: u64, all: u64) -> Option<f64> {
    (all > 0).then(|| part as f64 / all as f64)
}

/// Both directions of a party.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Directions {
    /// Calls that were for it.
    pub to: Tally,
    /// Calls that it made.
    pub from: Tally,
}

/// Attempts at an instance, of any method.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Attempts {
    /// All that have ended.
    pub all: u64,
    /// With a 2xx.
    pub ok: u64,
    /// Left for the next candidate, or without any answer.
    pub failed: u64,
}

/// Why calls failed: the word of this element's own answer (empty: the far end's) and the status.
pub type Cause = (&'static str, u16);

/// Counts of a stretch of time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// All calls.
    pub all: Tally,
    /// By party; `None`: the core.
    pub parties: HashMap<Option<PeerId>, Directions, ahash::RandomState>,
    /// By party and instance.
    pub instances: HashMap<(Option<PeerId>, Instance), Attempts, ahash::RandomState>,
    /// Failed calls by cause; as many as there are statuses and words.
    pub causes: BTreeMap<Cause, u64>,
    /// Attempts that failed, by outcome: what made calls move on.
    pub outcomes: BTreeMap<&'static str, u64>,
}

impl Counts {
    fn add(&mut self, record: &Record) {
        for (at, attempt) in record.attempts.iter().enumerate() {
            let leg = record.legs.get(usize::from(attempt.place.0));
            let further = record.attempts.len() > at + 1;
            self.attempt(leg.and_then(|l| l.party.peer()), attempt, further);
        }
        if !record.method().eq_ignore_ascii_case(b"INVITE") {
            return;
        }
        let fate = Fate::of(record);
        self.all.add(&fate);
        if record.status >= 300 && !record.cancelled {
            *self.causes.entry((record.reason, record.status)).or_default() += 1;
        }
        // The party that had the last word, else the one it was for.
        let last = record.attempts.last().and_then(|a| record.legs.get(usize::from(a.place.0)));
        if let Some(leg) = last.or_else(|| record.legs.first())
            && let Some(party) = place(&mut self.parties, known(leg.party))
        {
            party.to.add(&fate);
        }
        if record.from != Party::Stranger
            && let Some(party) = place(&mut self.parties, known(record.from))
        {
            party.from.add(&fate);
        }
    }

    fn attempt(&mut self, peer: Option<PeerId>, attempt: &AttemptRecord, further: bool) {
        // A dead connection is no failed attempt: the same instance is tried again.
        if attempt.outcome == "stale_connection" {
            return;
        }
        let ok = (200..300).contains(&attempt.status);
        let failed = further || (!ok && attempt.status == 0 && attempt.outcome != "pending");
        if failed {
            *self.outcomes.entry(attempt.outcome).or_default() += 1;
        }
        if let Some(counts) = place(&mut self.instances, (peer, attempt.instance)) {
            counts.all += 1;
            counts.ok += u64::from(ok);
            counts.failed += u64::from(failed);
        }
    }

    fn merge(&mut self, other: &Self) {
        self.all.merge(&other.all);
        for (party, both) in &other.parties {
            if let Some(mine) = place(&mut self.parties, *party) {
                mine.to.merge(&both.to);
                mine.from.merge(&both.from);
            }
        }
        for (instance, attempts) in &other.instances {
            if let Some(mine) = place(&mut self.instances, *instance) {
                mine.all += attempts.all;
                mine.ok += attempts.ok;
                mine.failed += attempts.failed;
            }
        }
        for (cause, n) in &other.causes {
            *self.causes.entry(*cause).or_default() += n;
        }
        for (outcome, n) in &other.outcomes {
            *self.outcomes.entry(outcome).or_default() += n;
        }
    }
}

/// Those who are no configured peer count with the core's row, as in the metrics.
fn known(party: Party) -> Option<PeerId> {
    party.peer()
}

/// The place of a key, as far as there is room.
fn place<K: std::hash::Hash + Eq, V: Default>(
    map: &mut HashMap<K, V, ahash::RandomState>,
    key: K,
) -> Option<&mut V> {
    if map.len() >= MOST && !map.contains_key(&key) {
        return None;
    }
    Some(map.entry(key).or_default())
}

/// What happened within one second.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Second {
    /// Calls up at its end.
    pub calls: u64,
    /// INVITEs received, those inside dialogs included.
    pub invites: u64,
    /// Attempts ended.
    pub attempts: u64,
    /// Of these, left for the next candidate.
    pub failovers: u64,
    /// Requests refused by this element, those under overload included.
    pub refused: u64,
}

/// The last [`SECONDS`].
#[derive(Clone, Debug, Default)]
pub struct Window {
    /// Steps by number, oldest first.
    steps: VecDeque<(u64, Counts)>,
    seconds: VecDeque<Second>,
    /// The counters when they were looked at last, and when that was.
    before: Option<(Instant, [u64; 4])>,
}

impl Window {
    /// A record has been finished at a second.
    pub fn record(&mut self, second: u64, record: &Record) {
        self.step(second).add(record);
    }

    fn step(&mut self, second: u64) -> &mut Counts {
        let number = second / STEP;
        if self.steps.back().is_none_or(|(last, _)| *last < number) {
            self.steps.push_back((number, Counts::default()));
        }
        while self.steps.front().is_some_and(|(first, _)| first + SECONDS / STEP <= number) {
            self.steps.pop_front();
        }
        // Just pushed, if there was none.
        let last = self.steps.len() - 1;
        &mut self.steps[last].1
    }

    /// What the counters show at a moment, about a second after the last look.
    pub fn look(&mut self, now: Instant, calls: usize, stats: &Stats) {
        let shed: u64 = stats.shed.values().sum();
        let invite = Method::ALL.iter().position(|m| *m == Method::Invite);
        let invites = stats.requests.iter().filter_map(|side| invite.and_then(|i| side.get(i))).sum();
        let sums = [
            invites,
            stats.attempts.iter().map(|(_, n)| n).sum(),
            stats.failovers.values().sum(),
            stats.rejected.values().sum::<u64>() + shed,
        ];
        if let Some((at, before)) = self.before {
            let span = now.saturating_duration_since(at).as_secs_f64().max(0.001);
            let mut since = before.iter().zip(&sums).map(|(b, n)| {
                // Per second, also where the look came late.
                (n.saturating_sub(*b) as f64 / span).round() as u64
            });
            let mut next = || since.next().unwrap_or_default();
            let second = Second {
                calls: calls as u64,
                invites: next(),
                attempts: next(),
                failovers: next(),
                refused: next(),
            };
            if self.seconds.len() as u64 >= SECONDS {
                self.seconds.pop_front();
            }
            self.seconds.push_back(second);
        }
        self.before = Some((now, sums));
    }

    /// The seconds, oldest first.
    pub fn seconds(&self) -> impl DoubleEndedIterator<Item = &Second> {
        self.seconds.iter()
    }

    /// Everything up to a second.
    pub fn sum(&self, second: u64) -> Counts {
        let mut sum = Counts::default();
        let number = second / STEP;
        for (_, counts) in self.steps.iter().filter(|(at, _)| at + SECONDS / STEP > number) {
            sum.merge(counts);
        }
        sum
    }
}
