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
/// Longest rest: what it adds to the way of a message at most. Half of it is what it adds to the median.
const LONGEST: Duration = Duration::from_micros(80);
/// Rests shorter than this are not worth the system call.
const SHORTEST: Duration = Duration::from_micros(20);
/// A thread gets up later than it has asked for, on a virtual machine by some tens of microseconds. That much is
/// allowed for, within this.
const OVERSLEPT: Duration = Duration::from_micros(60);
/// After a rest that took so long there is none for as long as that.
const LATE: Duration = Duration::from_millis(2);
const LATE_FOR: Duration = Duration::from_millis(500);
/// Rests are judged by so many of them.
const JUDGED: u32 = 32;
/// So many datagrams, in tenths, must have been found after a rest on average: a rest costs a wake-up, and saves one
/// for each but the first.
const WORTH: usize = 15;
/// When they were not: so long there is none.
const IDLE_FOR: Duration = Duration::from_millis(200);

/// Decides when a worker rests, and for how long: the busier it is, the shorter. Evenly spaced datagrams are too far
/// apart for it up to some 20,000 a second; those that come in bursts are not.
#[derive(Debug, Default)]
pub(super) struct Pace {
    /// When the window began, and when it is over.
    window: Option<(Instant, Instant)>,
    count: usize,
    /// How long a rest is under the present load; `None`: too little is going on.
    rest: Option<Duration>,
    rested: Option<Instant>,
    /// Rests have taken too long, or brought too little: none before then.
    not_before: Option<Instant>,
    /// By how much a rest is longer than was asked for, on average.
    overslept: Duration,
    /// The last turn ended with a rest.
    judging: bool,
    /// Rests since they were judged, and what was found after them.
    rests: u32,
    found: usize,
}

impl Pace {
    /// A turn has emptied a socket after `n` datagrams: how long to ask for rest before looking again, if at all.
    pub(super) fn rest_after(&mut self, now: Instant, n: usize) -> Option<Duration> {
        self.count = self.count.saturating_add(n);
        self.judge(now, n);
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
        let barred = self.not_before.is_some_and(|t| now < t);
        (!lately && !barred).then(|| rest.saturating_sub(self.overslept).max(Duration::from_micros(1)))
    }

    /// A rest for which `asked` was asked, and that was begun then, has ended. Where others want the core too, whoever
    /// lets go of it gets it back late, and all that came in meanwhile has waited.
    pub(super) fn rested(&mut self, asked: Duration, begun: Instant, now: Instant) {
        let took = now.saturating_duration_since(begun);
        self.rested = Some(now);
        self.judging = true;
        // Where a whole rest is overslept, the shortest that can be had is still better than none.
        self.overslept = (self.overslept * 7 + took.saturating_sub(asked).min(OVERSLEPT)) / 8;
        if took > LATE {
            self.not_before = Some(now + LATE_FOR);
        }
    }

    /// What the turn after a rest found, over many of them, tells whether they are worth it.
    fn judge(&mut self, now: Instant, n: usize) {
        if !std::mem::take(&mut self.judging) {
            return;
        }
        self.rests += 1;
        self.found += n;
        if self.rests == JUDGED {
            if self.found * 10 < WORTH * JUDGED as usize {
                self.not_before = Some(now + IDLE_FOR);
            }
            (self.rests, self.found) = (0, 0);
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

    /// A pace after a steady load of so many datagrams a millisecond.
    fn steady(each: usize) -> (Pace, Instant) {
        let mut pace = Pace::default();
        let mut now = Instant::now();
        for _ in 0..40 {
            now += MS;
            pace.rest_after(now, each);
        }
        (pace, now)
    }

    #[test]
    fn a_steady_load_makes_for_rests_and_a_full_turn_does_not() {
        let (mut pace, mut now) = steady(5);
        assert_eq!(pace.rest_after(now, 5), Some(LONGEST), "five a millisecond");
        assert_eq!(pace.rest_after(now, 30), None, "a full turn");
        assert_eq!(pace.rest_after(now, 0), None, "an empty one");
        pace.rested(LONGEST, now, now + LONGEST);
        now += LONGEST;
        assert_eq!(pace.rest_after(now, 5), None, "another socket's rest a moment ago");
        // One that took long shows that others want the core: none for a while.
        pace.rested(LONGEST, now, now + 5 * MS);
        let mut rest_in = |until: Duration| {
            let end = now + until;
            let mut rests = false;
            while now < end {
                now += MS;
                rests |= pace.rest_after(now, 5).is_some();
            }
            rests
        };
        assert!(!rest_in(LATE_FOR));
        assert!(rest_in(20 * MS));
    }

    #[test]
    fn the_busier_a_worker_is_the_shorter_it_rests() {
        let rest = |each: usize| {
            let (mut pace, now) = steady(each);
            pace.rest_after(now, 1)
        };
        let (few, more, many) = (rest(8), rest(160), rest(320));
        assert_eq!(few, Some(LONGEST));
        assert!(few > more && more > many && many.is_some(), "{few:?} {more:?} {many:?}");
        assert_eq!(rest(800), None, "there is no need to");
    }

    #[test]
    fn a_rest_is_as_long_as_wanted_though_the_thread_oversleeps() {
        let late = Duration::from_micros(23);
        let (mut pace, mut now) = steady(5);
        let mut asked = Duration::ZERO;
        for _ in 0..100 {
            asked = pace.rest_after(now, 5).expect("a steady load");
            pace.rested(asked, now, now + asked + late);
            now += MS;
        }
        let rest = asked + late;
        assert!(rest.abs_diff(LONGEST) < Duration::from_micros(2), "{rest:?}");
        // However late it gets up, it asks for something.
        for _ in 0..100 {
            asked = pace.rest_after(now, 5).expect("a steady load");
            pace.rested(asked, now, now + MS);
            now += 2 * MS;
        }
        assert!(!asked.is_zero() && asked <= LONGEST - OVERSLEPT + Duration::from_micros(1), "{asked:?}");
    }

    #[test]
    fn rests_that_find_little_are_given_up_for_a_while() {
        // So many rests of a hundred milliseconds' opportunities, if each finds so many.
        let rests = |found: usize| {
            let (mut pace, mut now) = steady(5);
            let mut rests = 0;
            for _ in 0..100 {
                now += MS;
                if let Some(rest) = pace.rest_after(now, 5) {
                    rests += 1;
                    pace.rested(rest, now, now + rest);
                    pace.rest_after(now + rest, found);
                }
            }
            // Later they are tried again.
            now += IDLE_FOR;
            for _ in 0..40 {
                now += MS;
                pace.rest_after(now, 5);
            }
            assert!(pace.rest_after(now, 5).is_some());
            rests
        };
        assert_eq!(rests(1), JUDGED);
        assert_eq!(rests(2), 100);
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
        let (mut pace, now) = steady(5);
        assert_eq!(pace.rest_after(now + 1000 * MS, 5), None);
    }
}
