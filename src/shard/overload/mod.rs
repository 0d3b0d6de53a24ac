//! The overload governor: how much new work a shard takes on, judged by its own delay alone.
//!
//! What is measured is how long messages have waited until somebody looked at them. A queue that
//! empties now and then is a burst and is left alone, as CoDel does (RFC 8289 §3); one that stands above
//! `target_delay` for a whole `interval` is overload. From then on a proportional-integral controller
//! (as PIE's, RFC 8033 §4.2) sets what share of new calls is refused, so that the queue stays at
//! the target: short, and never empty, for then no capacity is lost. A refused call costs about a seventh of a
//! carried one, so the controller needs no notion of the machine's capacity, nor of what else runs
//! on it.
//!
//! The decision falls when a message leaves the queue, so it takes effect at once, however long
//! the queue is. No clock, no randomness: shares are dealt out evenly, by carrying remainders over.

mod fair;
mod silence;
#[cfg(test)]
mod tests;

use std::time::{Duration, Instant};

pub use silence::Silence;

use crate::config::Overload;
use crate::peering::Party;

use fair::Fair;

/// The controller looks this often.
const STEP: Duration = Duration::from_millis(20);
/// A step that took longer counts as this long: the element was stopped, or had nothing to do.
const LONGEST_STEP: Duration = Duration::from_millis(100);
/// After so long without a message nothing known of the queue holds.
const FORGET: Duration = Duration::from_secs(1);
/// Gains at light overload, per second of delay (and per second): the closed loop then has a time
/// constant of a quarter of a second without overshoot.
const PROPORTIONAL: f64 = 5.0;
const INTEGRAL: f64 = 10.0;
/// With the queue below half the target, the pressure halves in about this time times ln 2.
const RELIEF: f64 = 0.5;
/// Below this pressure, and with a short queue, the overload is over.
const OVER: f64 = 0.01;
/// What a request is to the governor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// An INVITE outside dialogs.
    Call,
    /// OPTIONS: how others find out whether we are there. Refused only when nine tenths of the calls are.
    Probe,
    /// Any other request outside dialogs: refused only when more than half of the calls are.
    Other,
}

/// What becomes of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It is served.
    Admit,
    /// 503. Saying nothing would cost more: a caller repeats an INVITE six times.
    Refuse,
}

/// A change worth telling.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// Shedding begins.
    Begins,
    /// Shedding has ended.
    Ends,
}

/// How it stands, for metrics.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct State {
    /// New calls are being refused.
    pub shedding: bool,
    /// Share of new calls admitted, 0 to 1.
    pub admit: f64,
    /// How long messages wait.
    pub delay: Duration,
}

/// What arrived in the current step.
#[derive(Clone, Copy, Debug, Default)]
struct Window {
    /// When it ends.
    until: Option<Instant>,
    /// Seconds, summed over messages.
    waited: f64,
    messages: f64,
}

/// The governor of one shard. See the module's documentation.
#[derive(Debug)]
pub struct Governor {
    rules: Overload,
    window: Window,
    /// Mean wait of the last step, and of the one before, in seconds.
    delay: [f64; 2],
    looked: Option<Instant>,
    above: Option<Instant>,
    shedding: bool,
    /// The share of new calls refused.
    pressure: f64,
    fair: Fair,
}

impl Governor {
    /// One that has seen nothing yet.
    pub fn new(rules: Overload) -> Self {
        Self {
            rules,
            window: Window::default(),
            delay: [0.0; 2],
            looked: None,
            above: None,
            shedding: false,
            pressure: 0.0,
            fair: Fair::default(),
        }
    }

    /// Other rules. With the governor switched off, shedding ends at once.
    pub fn set_rules(&mut self, rules: Overload) {
        self.rules = rules;
        if !rules.enabled {
            self.calm();
        }
    }

    /// New calls may be refused: only then need [`Governor::offer`] be asked.
    pub const fn is_shedding(&self) -> bool {
        self.shedding
    }

    /// How it stands. A queue that nobody has looked at for a while is taken to be empty.
    pub fn state(&self, now: Instant) -> State {
        let fresh = self.looked.is_some_and(|t| now.saturating_duration_since(t) < FORGET);
        let [delay, _] = self.delay;
        State {
            shedding: self.shedding && fresh,
            admit: if fresh && self.shedding { 1.0 - self.pressure } else { 1.0 },
            delay: if fresh { Duration::from_secs_f64(delay) } else { Duration::ZERO },
        }
    }

    /// `messages` messages are about to be handled, the oldest of which has waited for `waited`.
    pub fn observe(&mut self, now: Instant, waited: Duration, messages: u32) -> Option<Change> {
        if !self.rules.enabled {
            return None;
        }
        let weight = f64::from(messages.max(1));
        let until = *self.window.until.get_or_insert_with(|| now + STEP);
        self.window.waited += waited.as_secs_f64() * weight;
        self.window.messages += weight;
        if now < until {
            return None;
        }
        let delay = self.window.waited / self.window.messages;
        self.window = Window { until: Some(now + STEP), ..Window::default() };
        self.step(now, delay)
    }

    fn step(&mut self, now: Instant, delay: f64) -> Option<Change> {
        let target = self.rules.target_delay.as_secs_f64();
        let elapsed = self.looked.map(|t| now.saturating_duration_since(t));
        self.looked = Some(now);
        let [last, before] = self.delay;
        self.delay = [delay, last];
        if elapsed.is_none_or(|t| t >= FORGET) {
            self.above = (delay > target).then_some(now);
            return self.calm();
        }
        if delay <= target {
            self.above = None;
        }
        if !self.shedding {
            if delay <= target {
                return None;
            }
            let since = *self.above.get_or_insert(now);
            if now.saturating_duration_since(since) < self.rules.interval {
                return None;
            }
            // How fast the wait grows says how much too much arrives: all of it beyond what can be
            // served makes the queue longer. It shrinks: a burst, which passes without our help.
            let growth = (delay - before) / (2.0 * STEP.as_secs_f64());
            if growth <= 0.0 && delay < target * 10.0 {
                return None;
            }
            self.shedding = true;
            self.pressure = growth.clamp(0.0, 0.9);
            self.deal(1.0);
            return Some(Change::Begins);
        }
        let time = elapsed.unwrap_or(STEP).min(LONGEST_STEP).as_secs_f64();
        // The more is refused, the more arrives and the more a change of the share does.
        let caution = (1.1 - self.pressure).clamp(0.1, 1.0);
        let push = PROPORTIONAL * (delay - last) + INTEGRAL * (delay - target) * time;
        self.pressure += push * caution;
        if delay < target / 2.0 && last < target / 2.0 {
            self.pressure *= (-time / RELIEF).exp();
        }
        self.pressure = self.pressure.clamp(0.0, 1.0);
        if self.pressure < OVER && delay < target {
            return self.calm();
        }
        self.deal(time / STEP.as_secs_f64());
        None
    }

    fn deal(&mut self, steps: f64) {
        self.fair.deal((1.0 - self.pressure).clamp(0.0, 1.0), steps);
    }

    fn calm(&mut self) -> Option<Change> {
        self.pressure = 0.0;
        self.fair.clear();
        std::mem::take(&mut self.shedding).then_some(Change::Ends)
    }

    /// A new request that nothing exempts: what becomes of it.
    pub fn offer(&mut self, party: Party, class: Class) -> Verdict {
        if !self.shedding {
            return Verdict::Admit;
        }
        let ease = match class {
            Class::Call => 1.0,
            Class::Other => 2.0,
            Class::Probe => 10.0,
        };
        if self.fair.take(party, ease) { Verdict::Admit } else { Verdict::Refuse }
    }

    /// A new request that is served whatever the load. It counts as its sender's.
    pub fn exempt(&mut self, party: Party) {
        if self.shedding {
            self.fair.charge(party);
        }
    }
}
