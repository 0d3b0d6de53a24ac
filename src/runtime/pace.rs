//! How to save wake-ups under load: few workers where few are enough, and short rests in which
//! datagrams collect.
//!
//! A wake-up costs as much as several datagrams. Two workers that each wake for every other
//! datagram do the work of one at nearly twice the price, so datagrams are spread over as many
//! workers as the load needs, beginning with one. And a worker that has emptied its socket under
//! a steady load does better to rest for a moment than to be woken for the next datagram alone.
//! When little is going on, neither delays anything.

use std::cell::Cell;
use std::time::{Duration, Instant};

/// How often the load is looked at.
const SAMPLE: Duration = Duration::from_millis(50);
/// A worker busier than this (percent of its time on a core) gets help.
const BUSY: u128 = 60;
/// Help is sent away if the others would then be less busy than this.
const EASY: u128 = 40;
/// So many turns per sample that leave datagrams over mean the same as being busy.
const BEHIND: u32 = 3;

/// Decides over how many workers datagrams are spread; kept by worker 0, which is always one of
/// them. All that take part get equal shares, so its own load stands for theirs.
#[derive(Debug)]
pub(super) struct Spread {
    active: usize,
    workers: usize,
    since: Instant,
    /// When it is time to look again.
    due: Instant,
    /// Time on a core at `since`.
    cpu: Duration,
    /// Turns since then, and those of them that ended with datagrams left over.
    turns: u32,
    behind: u32,
}

impl Spread {
    pub(super) fn new(workers: usize, now: Instant, cpu: Duration) -> Self {
        Self { active: 1, workers, since: now, due: now + SAMPLE, cpu, turns: 0, behind: 0 }
    }

    /// A turn ended, perhaps with datagrams left over (not `emptied`). On a core that is shared with
    /// others this shows before the thread's own time does.
    pub(super) fn turn_ended(&mut self, emptied: bool) {
        self.turns = self.turns.saturating_add(1);
        self.behind = self.behind.saturating_add(u32::from(!emptied));
    }

    /// Whether it is time for [`Spread::sample`].
    pub(super) fn is_due(&self, now: Instant) -> bool {
        now >= self.due
    }

    /// Takes the thread's time on a core so far; returns the new number of workers if it changes.
    /// Never more than there are `cores` for: the process may be bound to fewer than the machine has.
    pub(super) fn sample(&mut self, now: Instant, cpu: Duration, cores: usize) -> Option<usize> {
        let wall = now.saturating_duration_since(self.since).as_micros().max(1);
        let load = cpu.saturating_sub(self.cpu).as_micros() * 100 / wall;
        (self.since, self.due, self.cpu) = (now, now + SAMPLE, cpu);
        // Turns may be so long that few fit into a sample.
        let behind = self.behind >= BEHIND || (self.behind > 0 && self.behind == self.turns);
        (self.turns, self.behind) = (0, 0);
        let fewer = self.active.saturating_sub(1);
        let active = if self.active > cores.max(1) {
            cores.max(1)
        } else if (load > BUSY || behind) && self.active < self.workers.min(cores) {
            self.active + 1
        } else if fewer > 0 && !behind && load * self.active as u128 / (fewer as u128) < EASY {
            fewer
        } else {
            return None;
        };
        self.active = active;
        Some(active)
    }
}

/// How often it is asked how many cores there are: it takes a few system calls.
const CORES_ASKED: Duration = Duration::from_secs(1);

/// On how many cores this thread may run now: affinity and quotas of control groups count, and both may change while
/// the process runs.
#[derive(Debug, Default)]
pub(super) struct Cores(Cell<Option<(Instant, usize)>>);

impl Cores {
    /// At least one.
    pub(super) fn get_or_look(&self, now: Instant) -> usize {
        match self.0.get() {
            Some((asked, cores)) if now.saturating_duration_since(asked) < CORES_ASKED => cores,
            _ => {
                let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
                self.0.set(Some((now, cores)));
                cores
            }
        }
    }
}

/// Arrivals are counted over this long.
const WINDOW: Duration = Duration::from_millis(16);
/// So many arrivals in a window (2,000 per second) are a steady load.
const STEADY: usize = 32;
/// A turn that found so many has had its batch; a rest would only add delay.
const PLENTY: usize = 24;
/// So many datagrams are to collect in a rest, about: what one wake-up for all of them saves falls off
/// beyond, while the delay grows.
const GATHERED: u32 = 8;
/// Longest rest: what it adds to the way of a message at most.
const LONGEST: Duration = Duration::from_millis(1);
/// Rests shorter than this are not worth the system call.
const SHORTEST: Duration = Duration::from_micros(50);
/// After a rest that took twice as long as the longest there is none for this long.
const LATE: Duration = Duration::from_millis(500);

/// Decides when a worker rests, and for how long: the busier it is, the shorter. At half of what a core can
/// carry, a rest is a tenth or two of a millisecond.
#[derive(Debug, Default)]
pub(super) struct Pace {
    /// When the window began, and when it is over.
    window: Option<(Instant, Instant)>,
    count: usize,
    /// How long a rest is under the present load; `None`: too little is going on.
    rest: Option<Duration>,
    rested: Option<Instant>,
    /// Rests have taken too long: none before then.
    not_before: Option<Instant>,
}

impl Pace {
    /// A turn has emptied a socket after `n` datagrams: how long to rest before looking again, if at all.
    pub(super) fn rest_after(&mut self, now: Instant, n: usize) -> Option<Duration> {
        self.count = self.count.saturating_add(n);
        match self.window {
            Some((_, end)) if now < end => {}
            Some((began, _)) => {
                let time = now.saturating_duration_since(began);
                // A window that was quiet for long says nothing of now.
                let steady = self.count >= STEADY && time < WINDOW * 2;
                let arrivals = u32::try_from(self.count).unwrap_or(u32::MAX).max(1);
                self.rest = steady
                    .then(|| (time * GATHERED / arrivals).min(LONGEST))
                    .filter(|rest| *rest >= SHORTEST);
                (self.window, self.count) = (Some((now, now + WINDOW)), 0);
            }
            None => self.window = Some((now, now + WINDOW)),
        }
        let rest = self.rest.filter(|_| n > 0 && n < PLENTY)?;
        // With several sockets one rest serves them all.
        let lately = self.rested.is_some_and(|t| now.saturating_duration_since(t) < rest / 2);
        let late = self.not_before.is_some_and(|t| now < t);
        (!lately && !late).then_some(rest)
    }

    /// A rest that was begun then has ended. Where others want the core too, whoever lets go of it gets it back late,
    /// and all that came in meanwhile has waited.
    pub(super) fn rested(&mut self, begun: Instant, now: Instant) {
        self.rested = Some(now);
        if now.saturating_duration_since(begun) > 2 * LONGEST {
            self.not_before = Some(now + LATE);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn workers_join_under_load_and_leave_when_the_rest_can_carry_it() {
        let mut now = Instant::now();
        let mut cpu = Duration::ZERO;
        let mut spread = Spread::new(3, now, cpu);
        let mut step = |percent: u32| {
            assert!(!spread.is_due(now));
            now += SAMPLE;
            cpu += SAMPLE * percent / 100;
            assert!(spread.is_due(now));
            spread.sample(now, cpu, 8)
        };
        assert_eq!(step(50), None);
        assert_eq!(step(90), Some(2));
        assert_eq!(step(45), None, "one alone would be at 90 %");
        assert_eq!(step(70), Some(3));
        assert_eq!(step(99), None, "there are no more");
        assert_eq!(step(20), Some(2), "two would be at 30 %");
        assert_eq!(step(25), None, "one alone would be at 50 %");
        assert_eq!(step(5), Some(1));
        assert_eq!(step(0), None, "one always stays");
    }

    #[test]
    fn a_worker_that_falls_behind_gets_help_however_little_time_it_has() {
        let now = Instant::now();
        let mut spread = Spread::new(2, now, Duration::ZERO);
        for n in 0..2 * BEHIND {
            spread.turn_ended(n % 2 == 0);
        }
        assert_eq!(spread.sample(now + SAMPLE, SAMPLE / 10, 2), Some(2));
        assert_eq!(spread.sample(now + 2 * SAMPLE, SAMPLE / 5, 2), Some(1), "over again");
        spread.turn_ended(false);
        assert_eq!(spread.sample(now + 3 * SAMPLE, SAMPLE / 5, 2), Some(2), "one long turn, and more to do");
        spread.turn_ended(false);
        spread.turn_ended(true);
        assert_eq!(spread.sample(now + 4 * SAMPLE, SAMPLE / 5, 2), Some(1), "one of several");
    }

    #[test]
    fn there_are_no_more_workers_than_cores_to_run_them() {
        let now = Instant::now();
        let mut spread = Spread::new(4, now, Duration::ZERO);
        assert_eq!(spread.sample(now + SAMPLE, SAMPLE, 1), None, "busy, on the only core");
        assert_eq!(spread.sample(now + 2 * SAMPLE, 2 * SAMPLE, 4), Some(2));
        assert_eq!(spread.sample(now + 3 * SAMPLE, 3 * SAMPLE, 4), Some(3));
        assert_eq!(spread.sample(now + 4 * SAMPLE, 4 * SAMPLE, 1), Some(1), "bound to one since");
        assert_eq!(spread.sample(now + 5 * SAMPLE, 5 * SAMPLE, 0), None, "unknown: one");
    }

    #[test]
    fn a_steady_load_makes_for_rests_and_a_full_turn_does_not() {
        let mut pace = Pace::default();
        let mut now = Instant::now();
        let mut rests = 0;
        for _ in 0..40 {
            now += MS;
            rests += u32::from(pace.rest_after(now, 5).is_some());
        }
        assert!(rests > 0);
        assert_eq!(pace.rest_after(now, 5), Some(LONGEST), "five a millisecond");
        assert_eq!(pace.rest_after(now, 30), None, "a full turn");
        assert_eq!(pace.rest_after(now, 0), None, "an empty one");
        pace.rested(now, now);
        assert_eq!(pace.rest_after(now, 5), None, "another socket's rest a moment ago");
        // One that took long shows that others want the core: none for a while.
        pace.rested(now, now + 5 * MS);
        let mut rest_in = |until: Duration| {
            let end = now + until;
            let mut rests = false;
            while now < end {
                now += MS;
                rests |= pace.rest_after(now, 5).is_some();
            }
            rests
        };
        assert!(!rest_in(LATE));
        assert!(rest_in(20 * MS));
    }

    #[test]
    fn the_busier_a_worker_is_the_shorter_it_rests() {
        let rest = |each: usize| {
            let mut pace = Pace::default();
            let mut now = Instant::now();
            for _ in 0..40 {
                now += MS;
                pace.rest_after(now, each);
            }
            pace.rest_after(now, 1)
        };
        let (few, more, many) = (rest(8), rest(32), rest(64));
        assert!(few > more && more > many, "{few:?} {more:?} {many:?}");
        // Half of what a core can carry: some 60 datagrams a millisecond.
        assert!(many.is_some_and(|rest| rest < MS / 5), "{many:?}");
        assert_eq!(rest(400), None, "there is no need to");
    }

    #[test]
    fn what_comes_now_and_then_is_handled_at_once() {
        let mut pace = Pace::default();
        let mut now = Instant::now();
        for _ in 0..100 {
            now += 5 * MS;
            assert_eq!(pace.rest_after(now, 2), None);
        }
        // A long pause after a steady load ends it.
        for _ in 0..40 {
            now += MS;
            pace.rest_after(now, 5);
        }
        now += 1000 * MS;
        assert_eq!(pace.rest_after(now, 5), None);
    }
}
