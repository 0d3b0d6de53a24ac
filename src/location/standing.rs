//! What is known of one instance, by its requests and by probes, as one state machine (rule 9).
//!
//! | state | event | becomes |
//! |---|---|---|
//! | up | silence to an INVITE; to a third other request in a row; ICMP error; failed connect | down for `hold_down` |
//! | up | 503 with Retry-After | down for that long |
//! | up, within 5 `hold_down` of having come back | a failure | down: a relapse, see below |
//! | down | the time is over | half-open |
//! | down, half-open | a failure of a request begun before | as it was, or down for the same time again |
//! | half-open | a request claims the one trial | on trial: to all others it is down |
//! | on trial | an answer other than 503 | up, with a growing share |
//! | on trial | silence of any request, or another failure | down, for twice as long |
//! | on trial | 503 without Retry-After, or the request was cancelled | half-open |
//! | down, half-open | a late answer, or a good probe | up, with a growing share |
//! | any | `down_after` bad probes in a row | probed down; what requests saw is kept beside it |
//! | probed down | `up_after` good probes in a row | up, with a growing share |
//! | probed down | more than `max_probed_down` of a name's instances are, without a failed request | used as if up |
//!
//! A growing share: from a tenth of its weight to the whole within `slow_start`, evenly.
//!
//! Relapses: the first one changes nothing. From the second in a row on, `hold_down` begins twice as long with each,
//! up to `hold_down_max`, and it takes one good trial more, up to five in a row, an uneven part of `hold_down` apart,
//! until the instance is up; a late answer does not count then, a good probe counts as a trial if the hold-down is over.
//! So what flaps gets single requests. Five `hold_down` without a failure, and relapses are forgotten. From its last
//! failure on, an instance has its full share back within `hold_down_max`, five times 1.25 `hold_down`, and `slow_start`,
//! given requests that try it.

use std::time::{Duration, Instant};

use crate::config;
use crate::flow::SendFailure;

/// Silences in a row to requests other than INVITE that count as a failure.
const SILENCES: u8 = 3;

/// A failure within so many hold-downs of having come back is a relapse.
const RELAPSE: u32 = 5;

/// Most good trials in a row asked for.
const MOST_PROOFS: u8 = 5;

/// The share that an instance comes back with.
const FIRST_SHARE: f64 = 0.1;

/// Instances without a probe or any other news for this long are no longer probed by anybody.
const PROBES_FORGOTTEN: Duration = Duration::from_secs(24 * 3600);

/// What a failure costs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct HealthPolicy {
    /// First avoidance; doubles with each failed trial.
    pub hold_down: Duration,
    /// Its cap.
    pub hold_down_max: Duration,
    /// Cap of a Retry-After.
    pub retry_after_max: Duration,
    /// A trial without a verdict blocks the next one at most this long.
    pub trial_timeout: Duration,
    /// What comes back has its full share after this; zero: at once.
    pub slow_start: Duration,
    /// Part of a name's instances that probes alone may take out, 0.0 to 1.0; beyond, they lose their vote.
    pub max_probed_down: f64,
}

impl HealthPolicy {
    /// From `[health]`; a trial gets at least the time that silence takes to be noticed.
    pub fn new(health: &config::Health, try_timeout: Duration) -> Self {
        Self {
            hold_down: health.hold_down,
            hold_down_max: health.hold_down_max.max(health.hold_down),
            retry_after_max: health.retry_after_max,
            trial_timeout: health.hold_down.max(try_timeout),
            slow_start: health.slow_start,
            max_probed_down: health.max_probed_down,
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
    /// A probe without an answer, or with one that does not count as alive.
    ProbeBad {
        /// Bad ones in a row until it is down.
        down_after: u32,
    },
    /// Another shard has begun a trial.
    TrialBegun,
    /// A trial ended without a verdict (its request was cancelled).
    TrialAbandoned,
}

impl Observation {
    /// Whether this of an instance that is well is worth being remembered.
    pub(super) fn is_bad(self) -> bool {
        match self {
            Observation::Silence { .. } | Observation::ProbeBad { .. } => true,
            Observation::Unreachable(failure) => counts(failure),
            Observation::RetryAfter(after) => !after.is_zero(),
            _ => false,
        }
    }
}

/// An instance went up or down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Change {
    /// Up now, else down.
    pub up: bool,
    /// A fixed word.
    pub reason: &'static str,
}

/// The state of one instance.
#[derive(Clone, Debug)]
pub(super) struct Entry {
    /// Silences in a row, other than INVITE.
    silences: u8,
    /// Failures since it was last up: the exponent of the hold-down.
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
    /// When it last came back.
    back: Option<Instant>,
    /// Relapses in a row.
    relapses: u8,
    /// Good trials in a row.
    proofs: u8,
    /// Last news.
    touched: Instant,
    /// When it went down last, and the word for why; of no meaning while it is up.
    pub went_down: (Instant, &'static str),
}

impl Entry {
    pub fn new(now: Instant) -> Self {
        Self {
            silences: 0,
            failures: 0,
            until: None,
            trial: None,
            bad: 0,
            good: 0,
            probed_down: false,
            back: None,
            relapses: 0,
            proofs: 0,
            touched: now,
            went_down: (now, ""),
        }
    }

    /// By requests or by probes.
    pub fn is_down(&self) -> bool {
        self.probed_down || self.until.is_some()
    }

    /// Taken out by probes, with nothing else against it.
    pub fn is_disputed(&self) -> bool {
        self.probed_down && self.until.is_none()
    }

    /// Nothing is worth being remembered.
    pub fn is_clean(&self) -> bool {
        self.needs_no_good_news() && self.bad == 0 && !self.probed_down && self.back.is_none()
    }

    /// A good answer to a request would change nothing.
    pub fn needs_no_good_news(&self) -> bool {
        self.until.is_none() && self.silences == 0
    }

    pub fn standing(&self, now: Instant) -> Standing {
        if self.probed_down {
            return Standing::ProbedDown;
        }
        match (self.until, self.trial) {
            (None, _) => Standing::Up,
            (Some(until), _) if now < until => Standing::Down { until },
            (Some(_), Some(trial)) if now < trial => Standing::Down { until: trial },
            (Some(_), _) => Standing::Trial,
        }
    }

    /// The part of its weight that counts.
    pub fn ramp(&self, now: Instant, policy: &HealthPolicy) -> f64 {
        match self.back {
            Some(back) if !policy.slow_start.is_zero() => {
                let past = now.saturating_duration_since(back).as_secs_f64();
                let part = past / policy.slow_start.as_secs_f64();
                (FIRST_SHARE + (1.0 - FIRST_SHARE) * part).min(1.0)
            }
            _ => 1.0,
        }
    }

    /// A request begins the trial.
    pub fn claim(&mut self, now: Instant, policy: &HealthPolicy) {
        self.trial = Some(now + policy.trial_timeout);
        self.touched = now;
    }

    /// Whether nothing of it matters any more.
    pub fn is_forgotten(&self, now: Instant, policy: &HealthPolicy) -> bool {
        let since = now.saturating_duration_since(self.until.unwrap_or(self.touched).max(self.touched));
        let keep = if self.probed_down || self.bad > 0 {
            PROBES_FORGOTTEN
        } else {
            policy.hold_down_max.max(Duration::from_secs(1))
        };
        let settled = self.back.is_none_or(|b| {
            let past = now.saturating_duration_since(b);
            past >= policy.slow_start && past >= relapse_window(policy)
        });
        settled
            && (since >= keep
                || (self.back.is_some() && !self.is_down() && self.silences == 0 && self.bad == 0))
    }

    /// Learns something; gives the fixed word for it.
    pub fn observe(&mut self, now: Instant, seen: Observation, policy: &HealthPolicy) -> &'static str {
        self.touched = now;
        match seen {
            Observation::Silence { invite } => {
                self.silences = self.silences.saturating_add(1);
                // On trial, any silence is the verdict.
                if invite || self.silences >= SILENCES || self.trial.is_some() {
                    self.fail(now, policy);
                }
                "silence"
            }
            Observation::Unreachable(failure) => {
                if counts(failure) {
                    self.fail(now, policy);
                } else {
                    self.trial = None;
                }
                failure.label()
            }
            Observation::RetryAfter(after) => {
                self.silences = 0;
                self.trial = None;
                let after = after.min(policy.retry_after_max);
                if !after.is_zero() {
                    let until = now + after;
                    self.until = Some(self.until.map_or(until, |u| u.max(until)));
                }
                "retry_after"
            }
            Observation::Unavailable => {
                self.silences = 0;
                self.trial = None;
                "unavailable"
            }
            Observation::Answered => {
                let proof = self.trial.is_some();
                self.good_news(now, proof, policy);
                "answered"
            }
            Observation::ProbeGood { up_after } => {
                let proof = self.until.is_some_and(|until| until <= now);
                self.good_news(now, proof, policy);
                self.bad = 0;
                self.good = self.good.saturating_add(1);
                if self.good >= up_after.max(1) {
                    self.good = 0;
                    if std::mem::take(&mut self.probed_down) {
                        self.back = Some(now);
                    }
                }
                "probe_answered"
            }
            Observation::ProbeBad { down_after } => {
                self.good = 0;
                self.bad = self.bad.saturating_add(1);
                self.probed_down |= self.bad >= down_after.max(1);
                "probe_failed"
            }
            Observation::TrialBegun => {
                if self.until.is_some() {
                    self.trial = Some(now + policy.trial_timeout);
                }
                "trial"
            }
            Observation::TrialAbandoned => {
                self.trial = None;
                "trial"
            }
        }
    }

    /// It is there. `proof`: this was a trial, or as good as one.
    fn good_news(&mut self, now: Instant, proof: bool, policy: &HealthPolicy) {
        self.silences = 0;
        if self.until.is_none() {
            return;
        }
        let wanted = self.relapses.clamp(1, MOST_PROOFS);
        if wanted > 1 {
            if !proof {
                return;
            }
            self.trial = None;
            self.proofs = self.proofs.saturating_add(1);
            if self.proofs < wanted {
                self.until = Some(now + policy.hold_down.mul_f64(uneven(self.relapses, self.proofs)));
                return;
            }
        }
        self.failures = 0;
        self.proofs = 0;
        self.until = None;
        self.trial = None;
        self.back = Some(now);
    }

    /// A failure: avoided for the hold-down, which doubles when a trial fails. Requests that were under
    /// way when the instance failed may fail too, before or after its hold-down has run out: that is
    /// the same failure and does not double it.
    fn fail(&mut self, now: Instant, policy: &HealthPolicy) {
        self.silences = 0;
        self.proofs = 0;
        if self.until.is_none() {
            let soon = |b: Instant| now.saturating_duration_since(b) < relapse_window(policy);
            let relapse = self.back.take().is_some_and(soon);
            self.relapses = if relapse { self.relapses.saturating_add(1) } else { 0 };
        }
        let tried = self.trial.take().is_some();
        if self.failures == 0 || tried {
            self.failures = self.failures.saturating_add(1);
        } else if self.until.is_some_and(|until| now < until) {
            return;
        }
        let doublings = self.failures.saturating_sub(1) + u32::from(self.relapses.saturating_sub(1));
        let factor = 1u32.checked_shl(doublings).unwrap_or(u32::MAX);
        let hold = policy.hold_down.saturating_mul(factor).min(policy.hold_down_max);
        let until = now + hold;
        self.until = Some(self.until.map_or(until, |u| u.max(until)));
    }
}

fn relapse_window(policy: &HealthPolicy) -> Duration {
    policy.hold_down.saturating_mul(RELAPSE)
}

/// Parts of a hold-down from 0.25 to 1.25 that fall into step with nothing: the multiples of the golden ratio.
fn uneven(relapses: u8, proofs: u8) -> f64 {
    let nth = f64::from(relapses) * f64::from(MOST_PROOFS) + f64::from(proofs);
    0.25 + (nth * 0.618_033_988_749_895).fract()
}

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
