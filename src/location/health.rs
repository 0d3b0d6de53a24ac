//! Passive and active health of instances (rule 9): the table of those of which something is remembered.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use super::candidate::{Instance, Located};
use super::standing::{Change, Entry, HealthPolicy, Observation, Standing};

/// Most instances remembered. Beyond, after a sweep, bad news of further ones is not kept.
pub const MAX_INSTANCES: usize = 100_000;

/// What we remember of instances. Good ones leave no entry.
#[derive(Debug)]
pub struct Health {
    policy: HealthPolicy,
    entries: HashMap<Instance, Entry, ahash::RandomState>,
    /// When a full table was last swept: not with every request.
    swept: Option<Instant>,
    /// Nothing is on its way back to a full share from then on.
    ramping_until: Option<Instant>,
}

impl Health {
    /// Nothing known.
    pub fn new(policy: HealthPolicy) -> Self {
        Self { policy, entries: HashMap::default(), swept: None, ramping_until: None }
    }

    /// Takes over a changed policy; what is remembered stays.
    pub fn set_policy(&mut self, policy: HealthPolicy) {
        self.policy = policy;
    }

    /// How an instance stands.
    pub fn standing(&self, now: Instant, instance: &Instance) -> Standing {
        if self.entries.is_empty() {
            return Standing::Up;
        }
        self.entries.get(instance).map_or(Standing::Up, |entry| entry.standing(now))
    }

    /// Whether any instance may be on its way back to a full share.
    pub fn is_ramping(&self, now: Instant) -> bool {
        self.ramping_until.is_some_and(|until| now < until)
    }

    /// The part of its weight that an instance gets now: below 1.0 for a while after it has come back.
    pub fn ramp(&self, now: Instant, instance: &Instance) -> f64 {
        self.entries.get(instance).map_or(1.0, |entry| entry.ramp(now, &self.policy))
    }

    /// Whether probes have taken out so much of a result, without a failed request, that they are not to be believed.
    pub fn are_probes_overruled(&self, located: &Located) -> bool {
        if self.policy.max_probed_down >= 1.0 {
            return false;
        }
        let disputed =
            located.instances().filter(|i| self.entries.get(i).is_some_and(Entry::is_disputed)).count();
        disputed as f64 > self.policy.max_probed_down * located.instance_count() as f64
    }

    /// Whether probes alone have taken it out.
    pub fn is_disputed(&self, instance: &Instance) -> bool {
        self.entries.get(instance).is_some_and(Entry::is_disputed)
    }

    /// Claims the one trial of a half-open instance. False if it is not half-open or another request
    /// has it. To be made known to other shards as [`Observation::TrialBegun`].
    pub fn claim_trial(&mut self, now: Instant, instance: &Instance) -> bool {
        if self.standing(now, instance) != Standing::Trial {
            return false;
        }
        let policy = self.policy;
        if let Some(entry) = self.entries.get_mut(instance) {
            entry.claim(now, &policy);
        }
        true
    }

    /// Learns something; tells if the instance went up or down by it.
    pub fn observe(&mut self, now: Instant, instance: Instance, seen: Observation) -> Option<Change> {
        if !self.entries.contains_key(&instance) && !self.admit(now, seen) {
            return None;
        }
        let policy = self.policy;
        let entry = self.entries.entry(instance).or_insert_with(|| Entry::new(now));
        let was_down = entry.is_down();
        let reason = entry.observe(now, seen, &policy);
        let down = entry.is_down();
        if down && !was_down {
            entry.went_down = (now, reason);
        }
        if entry.is_clean() {
            self.entries.remove(&instance);
        }
        if was_down && !down {
            let until = now + policy.slow_start;
            self.ramping_until = Some(self.ramping_until.map_or(until, |u| u.max(until)));
        }
        (down != was_down).then_some(Change { up: !down, reason })
    }

    /// True if an answer from it would be no news: it need not be told to anybody.
    pub fn is_clean(&self, instance: &Instance) -> bool {
        self.entries.is_empty() || self.entries.get(instance).is_none_or(Entry::needs_no_good_news)
    }

    /// Every instance of which something is remembered, in a fixed order, with its standing.
    pub fn iter_sorted(&self, now: Instant) -> Vec<(Instance, Standing)> {
        let mut all: Vec<_> = self.entries.keys().map(|i| (*i, self.standing(now, i))).collect();
        all.sort_unstable_by_key(|(i, _)| *i);
        all
    }

    /// Of every instance that is not simply up: since when, and the word for what took it down.
    pub fn fallen(&self) -> impl Iterator<Item = (Instance, Instant, &'static str)> + '_ {
        let down = self.entries.iter().filter(|(_, e)| e.is_down());
        down.map(|(instance, e)| (*instance, e.went_down.0, e.went_down.1))
    }

    /// The instances that get less than their share because they have just come back, and the part of it they get.
    pub fn ramps(&self, now: Instant) -> impl Iterator<Item = (Instance, f64)> + '_ {
        let up = self.entries.iter().filter(|(_, e)| !e.is_down());
        up.map(move |(instance, e)| (*instance, e.ramp(now, &self.policy))).filter(|(_, part)| *part < 1.0)
    }

    /// Forgets what no longer matters: a hold-down that ran out at least `hold_down_max` (and a
    /// second) ago and was never tried, lone silences of that age, what has been well for long enough after it came
    /// back, and what probes have left alone for a day.
    pub fn sweep(&mut self, now: Instant) {
        self.swept = Some(now);
        let policy = self.policy;
        self.entries.retain(|_, e| !e.is_forgotten(now, &policy));
    }

    /// Number of instances of which something is remembered.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// True if nothing is remembered.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Whether news of an unknown instance is worth an entry, and there is room for one.
    fn admit(&mut self, now: Instant, seen: Observation) -> bool {
        let bad = seen.is_bad();
        if bad && self.entries.len() >= MAX_INSTANCES {
            // A sweep costs as much as the table is long.
            let due = self.swept.is_none_or(|at| now.saturating_duration_since(at) >= Duration::from_secs(1));
            if due {
                self.sweep(now);
            }
        }
        bad && self.entries.len() < MAX_INSTANCES
    }
}
