//! Passive and active health of instances (rule 9): up, down for a while, half-open; or taken out by probes.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use super::candidate::Instance;
use crate::config;
use crate::flow::SendFailure;

/// Most instances remembered. Beyond, after a sweep, bad news of further ones is not kept.
pub const MAX_INSTANCES: usize = 100_000;

/// Silences in a row to requests other than INVITE that count as a failure.
const SILENCES: u8 = 3;

/// What a failure costs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HealthPolicy {
    /// First avoidance; doubles with each failed trial.
    pub hold_down: Duration,
    /// Its cap.
    pub hold_down_max: Duration,
    /// Cap of a Retry-After.
    pub retry_after_max: Duration,
    /// A trial without a verdict blocks the next one at most this long.
    pub trial_timeout: Duration,
}

impl HealthPolicy {
    /// From `[health]`; a trial gets at least the time that silence takes to be noticed.
    pub fn new(health: &config::Health, try_timeout: Duration) -> Self {
        Self {
            hold_down: health.hold_down,
            hold_down_max: health.hold_down_max.max(health.hold_down),
            retry_after_max: health.retry_after_max,
            trial_timeout: health.hold_down.max(try_timeout),
        }
    }
}

/// How an instance stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Standing {
    /// Nothing against it.
    Up,
    /// Half-open: its hold-down has run out, and one request may try it. Of a candidate: this
    /// request is the one.
    Trial,
    /// Avoided until then; or on trial by another request, until that one's time is over.
    Down {
        /// The end of it.
        until: Instant,
    },
    /// Taken out by probes; no request tries it before they bring it back.
    ProbedDown,
}

impl Standing {
    /// A fixed word for records.
    pub const fn label(self) -> &'static str {
        match self {
            Standing::Up => "up",
            Standing::Trial => "trial",
            Standing::Down { .. } => "down",
            Standing::ProbedDown => "probed_down",
        }
    }
}

/// What was seen of an instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Observation {
    /// No response at all to a request (never to an ACK, which has none).
    Silence {
        /// It was an INVITE.
        invite: bool,
    },
    /// A request could not be sent.
    Unreachable(SendFailure),
    /// A 503 with Retry-After.
    RetryAfter(Duration),
    /// A 503 without: nothing is remembered (RFC 3261 §21.5.4), but it is no silence either.
    Unavailable,
    /// Any other response, a late one too.
    Answered,
    /// A good answer to a probe.
    ProbeGood {
        /// Good ones in a row until it is up again.
        up_after: u32,
    },
    /// A probe without an answer, or answered with 503.
    ProbeBad {
        /// Bad ones in a row until it is down.
        down_after: u32,
    },
    /// Another shard has begun a trial.
    TrialBegun,
    /// A trial ended without a verdict (its request was cancelled).
    TrialAbandoned,
}

/// An instance went up or down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Change {
    /// Up now, else down.
    pub up: bool,
    /// A fixed word.
    pub reason: &'static str,
}

#[derive(Clone, Debug)]
struct Entry {
    /// Silences in a row, other than INVITE.
    silences: u8,
    /// Failures since it was last clear: the exponent of the hold-down.
    failures: u32,
    /// Avoided until then; past: half-open.
    until: Option<Instant>,
    /// When the trial under way stops blocking others.
    trial: Option<Instant>,
    /// Bad probes in a row.
    bad: u32,
    /// Good probes in a row, while taken out.
    good: u32,
    /// Taken out by probes.
    probed_down: bool,
    /// Last news.
    touched: Instant,
}

impl Entry {
    fn new(now: Instant) -> Self {
        Self {
            silences: 0,
            failures: 0,
            until: None,
            trial: None,
            bad: 0,
            good: 0,
            probed_down: false,
            touched: now,
        }
    }

    fn is_down(&self) -> bool {
        self.probed_down || self.until.is_some()
    }

    fn is_clean(&self) -> bool {
        !self.is_down() && self.silences == 0 && self.bad == 0
    }

    fn clear(&mut self) {
        self.silences = 0;
        self.failures = 0;
        self.until = None;
        self.trial = None;
    }
}

/// What we remember of instances. Good ones leave no entry.
#[derive(Debug)]
pub struct Health {
    policy: HealthPolicy,
    entries: HashMap<Instance, Entry, ahash::RandomState>,
    /// When a full table was last swept: not with every request.
    swept: Option<Instant>,
}

impl Health {
    /// Nothing known.
    pub fn new(policy: HealthPolicy) -> Self {
        Self { policy, entries: HashMap::default(), swept: None }
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
        let Some(entry) = self.entries.get(instance) else {
            return Standing::Up;
        };
        if entry.probed_down {
            return Standing::ProbedDown;
        }
        match (entry.until, entry.trial) {
            (None, _) => Standing::Up,
            (Some(until), _) if now < until => Standing::Down { until },
            (Some(_), Some(trial)) if now < trial => Standing::Down { until: trial },
            (Some(_), _) => Standing::Trial,
        }
    }

    /// Claims the one trial of a half-open instance. False if it is not half-open or another request
    /// has it. To be made known to other shards as [`Observation::TrialBegun`].
    pub fn claim_trial(&mut self, now: Instant, instance: &Instance) -> bool {
        if self.standing(now, instance) != Standing::Trial {
            return false;
        }
        let trial = now + self.policy.trial_timeout;
        if let Some(entry) = self.entries.get_mut(instance) {
            entry.trial = Some(trial);
            entry.touched = now;
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
        entry.touched = now;
        let reason = match seen {
            Observation::Silence { invite } => {
                entry.silences = entry.silences.saturating_add(1);
                // On trial, any silence is the verdict.
                if invite || entry.silences >= SILENCES || entry.trial.is_some() {
                    fail(entry, now, &policy);
                }
                "silence"
            }
            Observation::Unreachable(failure) => {
                if counts(failure) {
                    fail(entry, now, &policy);
                } else {
                    entry.trial = None;
                }
                failure.label()
            }
            Observation::RetryAfter(after) => {
                entry.silences = 0;
                entry.trial = None;
                let after = after.min(policy.retry_after_max);
                if !after.is_zero() {
                    let until = now + after;
                    entry.until = Some(entry.until.map_or(until, |u| u.max(until)));
                }
                "retry_after"
            }
            Observation::Unavailable => {
                entry.silences = 0;
                entry.trial = None;
                "unavailable"
            }
            Observation::Answered => {
                entry.clear();
                "answered"
            }
            Observation::ProbeGood { up_after } => {
                entry.clear();
                entry.bad = 0;
                entry.good = entry.good.saturating_add(1);
                if entry.good >= up_after.max(1) {
                    entry.probed_down = false;
                    entry.good = 0;
                }
                "probe_answered"
            }
            Observation::ProbeBad { down_after } => {
                entry.good = 0;
                entry.bad = entry.bad.saturating_add(1);
                entry.probed_down |= entry.bad >= down_after.max(1);
                "probe_failed"
            }
            Observation::TrialBegun => {
                if entry.until.is_some() {
                    entry.trial = Some(now + policy.trial_timeout);
                }
                "trial"
            }
            Observation::TrialAbandoned => {
                entry.trial = None;
                "trial"
            }
        };
        let down = entry.is_down();
        if entry.is_clean() {
            self.entries.remove(&instance);
        }
        (down != was_down).then_some(Change { up: !down, reason })
    }

    /// True if nothing is remembered of it: good news of it need not be told to anybody.
    pub fn is_clean(&self, instance: &Instance) -> bool {
        self.entries.is_empty() || !self.entries.contains_key(instance)
    }

    /// Every instance of which something is remembered, in a fixed order, with its standing.
    pub fn iter_sorted(&self, now: Instant) -> Vec<(Instance, Standing)> {
        let mut all: Vec<_> = self.entries.keys().map(|i| (*i, self.standing(now, i))).collect();
        all.sort_unstable_by_key(|(i, _)| *i);
        all
    }

    /// Forgets what no longer matters: a hold-down that ran out at least `hold_down_max` (and a
    /// second) ago and was never tried, lone silences of that age, and what probes have left alone for a day.
    pub fn sweep(&mut self, now: Instant) {
        let keep = self.policy.hold_down_max.max(Duration::from_secs(1));
        self.swept = Some(now);
        self.entries.retain(|_, e| {
            let since = now.saturating_duration_since(e.until.unwrap_or(e.touched).max(e.touched));
            since < if e.probed_down || e.bad > 0 { PROBES_FORGOTTEN } else { keep }
        });
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
        let bad = match seen {
            Observation::Silence { .. } | Observation::ProbeBad { .. } => true,
            Observation::Unreachable(failure) => counts(failure),
            Observation::RetryAfter(after) => !after.is_zero(),
            _ => false,
        };
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

/// Instances without a probe or any other news for this long are no longer probed by anybody.
const PROBES_FORGOTTEN: Duration = Duration::from_secs(24 * 3600);

/// Whether a failure to send says something about the other end.
const fn counts(failure: SendFailure) -> bool {
    match failure {
        SendFailure::Icmp
        | SendFailure::ConnectRefused
        | SendFailure::ConnectTimeout
        | SendFailure::Tls
        | SendFailure::Closed { reused: false } => true,
        // A reused connection found dead is no failed attempt (rule 10); the rest is our own side.
        SendFailure::Closed { reused: true }
        | SendFailure::QueueFull
        | SendFailure::TooLarge
        | SendFailure::Local => false,
    }
}

/// A failure: avoided for the hold-down, which doubles when a trial fails. Requests that were under
/// way when the instance failed may fail too, before or after its hold-down has run out: that is
/// the same failure and does not double it.
fn fail(entry: &mut Entry, now: Instant, policy: &HealthPolicy) {
    entry.silences = 0;
    let tried = entry.trial.take().is_some();
    if entry.failures == 0 || tried {
        entry.failures = entry.failures.saturating_add(1);
    } else if entry.until.is_some_and(|until| now < until) {
        return;
    }
    let factor = 1u32.checked_shl(entry.failures.saturating_sub(1)).unwrap_or(u32::MAX);
    let hold = policy.hold_down.saturating_mul(factor).min(policy.hold_down_max);
    let until = now + hold;
    entry.until = Some(entry.until.map_or(until, |u| u.max(until)));
}
