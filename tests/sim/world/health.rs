//! What rule 9 makes of what the shards have seen, counted a second time, and the orders that follow.
//!
//! A lower bound each: an instance that counts as down here must not be tried while another is up, one
//! that counts as up must not be passed over. Between the two lies what depends on trials.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use sbe::flow::SendFailure;
use sbe::location::{Instance, Located, Observation};

#[derive(Clone, Copy, Debug, Default)]
struct Mark {
    /// Something has been held against it since it was last clear.
    bad: bool,
    /// When it was last cleared.
    cleared: Option<Instant>,
    /// Not to be tried before, at the least.
    down_until: Option<Instant>,
    /// Probes have a say: nothing is sure.
    probed: bool,
    /// When something held against it was last cleared.
    back: Option<Instant>,
    /// Failures in a row soon after that. From the second on one answer may not be enough, so that it is never
    /// sure to be up again.
    relapses: u32,
}

impl Mark {
    fn spoil(&mut self, now: Instant, hold_down: Duration) {
        if !self.bad && self.relapses < 2 {
            let soon = self.back.is_some_and(|t| now < t + 5 * hold_down);
            self.relapses = if soon { self.relapses + 1 } else { 0 };
        }
        self.bad = true;
    }
}

#[derive(Debug)]
pub struct HealthModel {
    marks: BTreeMap<Instance, Mark>,
    hold_down: Duration,
    retry_after_max: Duration,
}

impl HealthModel {
    pub fn new(hold_down: Duration, retry_after_max: Duration) -> Self {
        Self { marks: BTreeMap::new(), hold_down, retry_after_max }
    }

    /// What a shard says it has seen.
    pub fn observe(&mut self, now: Instant, instance: Instance, seen: Observation) {
        let (hold_down, longest) = (self.hold_down, self.retry_after_max);
        let mark = self.marks.entry(instance).or_default();
        match seen {
            Observation::Silence { invite: true }
            | Observation::Unreachable(
                SendFailure::Icmp
                | SendFailure::ConnectRefused
                | SendFailure::ConnectTimeout
                | SendFailure::Closed { reused: false },
            ) => {
                // A further failure may be the same one seen late, or that of a trial: no more is sure.
                if !mark.bad {
                    mark.down_until = Some(now + hold_down);
                }
                mark.spoil(now, hold_down);
            }
            Observation::Silence { invite: false } => mark.spoil(now, hold_down),
            Observation::Unreachable(_) => {}
            Observation::RetryAfter(after) => {
                mark.spoil(now, hold_down);
                let until = now + after.min(longest);
                mark.down_until = Some(mark.down_until.map_or(until, |t| t.max(until)));
            }
            Observation::Answered => {
                let back = if mark.bad { Some(now) } else { mark.back };
                let (probed, relapses) = (mark.probed, mark.relapses);
                *mark = Mark { cleared: Some(now), probed, back, relapses, ..Mark::default() }
            }
            Observation::ProbeGood { .. } | Observation::ProbeBad { .. } => {
                mark.probed = true;
                if matches!(seen, Observation::ProbeGood { .. }) {
                    mark.down_until = None;
                }
            }
            // Plain 503s are not remembered, trials have no verdict yet.
            Observation::Unavailable | Observation::TrialBegun | Observation::TrialAbandoned => {}
        }
    }

    /// Nothing has been held against it since `since`.
    fn surely_up(&self, instance: &Instance, since: Instant) -> bool {
        self.marks
            .get(instance)
            .is_none_or(|m| !m.bad && !m.probed && m.relapses < 2 && m.cleared.is_none_or(|t| t <= since))
    }

    fn surely_down(&self, instance: &Instance, now: Instant) -> bool {
        self.marks.get(instance).and_then(|m| m.down_until).is_some_and(|t| now < t)
    }

    /// An attempt at `to`, after those at `tried`, for a request that came at `since`.
    pub fn judge(&self, now: Instant, since: Instant, located: &Located, to: &Instance, tried: &[Instance]) {
        let rank = |i: &Instance| {
            located
                .tiers
                .iter()
                .position(|t| t.servers.iter().any(|s| (0..s.addrs.len()).any(|a| s.instance(a) == Some(*i))))
        };
        let mine = rank(to);
        assert!(mine.is_some(), "{to} is not among what was located");
        for other in located.instances().filter(|i| i != to && !tried.contains(i)) {
            if !self.surely_up(&other, since) {
                continue;
            }
            assert!(!self.surely_down(to, now), "{to} is down and was tried while {other} is up");
            assert!(rank(&other) >= mine, "{other} of a better tier is up and was passed over for {to}");
        }
    }
}
