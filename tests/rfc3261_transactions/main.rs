//! The four state machines against RFC 3261 figures 5 to 8, RFC 6026 and RFC 4320: one row for each
//! arrow, everything else ignored, and the exact schedules in virtual time.

#![allow(clippy::unwrap_used)]

mod client_invite;
mod client_non_invite;
mod server_invite;
mod server_non_invite;

use std::time::Duration;

use bytes::Bytes;
use sbe::transaction::Action::{Arm, Deliver, Done, MakeAck, MakeTrying, Send};
use sbe::transaction::Delivery::{Ack, Response, Timeout, TransportError};
use sbe::transaction::{
    Action, ClientInvite, ClientNonInvite, Effects, ServerInvite, ServerNonInvite, State, Timer, TimerConfig,
};

const REQUEST: Bytes = Bytes::from_static(b"request");
const ACK: Bytes = Bytes::from_static(b"ack");
const LAST: Bytes = Bytes::from_static(b"response");
const NEXT: Bytes = Bytes::from_static(b"another response");

const UDP: bool = false;
const TCP: bool = true;

const CFG: TimerConfig =
    TimerConfig { t1: Duration::from_millis(500), t2: Duration::from_secs(4), t4: Duration::from_secs(5) };
const T1: Duration = CFG.t1;
const T2: Duration = CFG.t2;
const T4: Duration = CFG.t4;
const SPAN: Duration = Duration::from_secs(32);

const TIMERS: [Timer; 16] = [
    Timer::A,
    Timer::B,
    Timer::C,
    Timer::D,
    Timer::E,
    Timer::F,
    Timer::G,
    Timer::H,
    Timer::I,
    Timer::J,
    Timer::K,
    Timer::L,
    Timer::M,
    Timer::Trying,
    Timer::Try,
    Timer::Cancelled,
];

fn cfg(t1_ms: u64) -> TimerConfig {
    TimerConfig { t1: Duration::from_millis(t1_ms), ..CFG }
}

fn drain(fx: &mut Effects) -> Vec<Action> {
    fx.actions.drain(..).collect()
}

/// An arrow of a figure: in the state made by `from`, `event` does `then` and leads `to`.
struct Row<M> {
    arrow: &'static str,
    from: fn() -> M,
    event: fn(&mut M, &mut Effects),
    then: Vec<Action>,
    to: State,
}

fn check<M>(rows: Vec<Row<M>>, state: fn(&M) -> State) {
    for Row { arrow, from, event, then, to } in rows {
        let mut machine = from();
        let mut fx = Effects::new();
        event(&mut machine, &mut fx);
        assert_eq!(drain(&mut fx), then, "{arrow}");
        assert_eq!(state(&machine), to, "{arrow}");
    }
}

/// A state, and the timers that mean something in it.
type Live<M> = (fn() -> M, &'static [Timer]);

/// In each of these states, only the timers named do anything at all.
fn check_timers<M>(states: Vec<Live<M>>, fire: fn(&mut M, Timer, &mut Effects), state: fn(&M) -> State) {
    for (from, live) in states {
        for timer in TIMERS {
            let mut machine = from();
            let before = state(&machine);
            let mut fx = Effects::new();
            fire(&mut machine, timer, &mut fx);
            let idle = fx.actions.is_empty() && state(&machine) == before;
            assert_eq!(idle, !live.contains(&timer), "{timer:?} in {before:?}");
        }
    }
}

/// Fires what a machine arms, in virtual time, and notes when it sends, reports and ends.
struct Run<M> {
    machine: M,
    fire: fn(&mut M, Timer, &mut Effects),
    now: Duration,
    armed: Vec<(Duration, Timer)>,
    fx: Effects,
    log: Vec<(Duration, Action)>,
}

impl<M> Run<M> {
    fn new(machine: M, fx: Effects, fire: fn(&mut M, Timer, &mut Effects)) -> Self {
        let mut run = Run { machine, fire, now: Duration::ZERO, armed: Vec::new(), fx, log: Vec::new() };
        run.settle();
        run
    }

    fn settle(&mut self) {
        for action in self.fx.actions.drain(..) {
            match action {
                Arm(timer, after) => self.armed.push((self.now + after, timer)),
                other => self.log.push((self.now, other)),
            }
        }
    }

    fn at(&mut self, when: Duration, event: impl FnOnce(&mut M, &mut Effects)) {
        self.until(when);
        event(&mut self.machine, &mut self.fx);
        self.settle();
    }

    fn until(&mut self, end: Duration) {
        loop {
            self.armed.sort_by_key(|&(when, _)| when);
            let Some(&(when, timer)) = self.armed.first().filter(|(when, _)| *when <= end) else {
                break;
            };
            self.armed.remove(0);
            self.now = when;
            (self.fire)(&mut self.machine, timer, &mut self.fx);
            self.settle();
        }
        self.now = end;
    }

    fn finish(mut self) -> Vec<(Duration, Action)> {
        self.until(Duration::from_secs(3600));
        assert!(self.armed.is_empty(), "no timer may be left");
        self.log
    }
}

/// When something was sent, in multiples of `unit`.
fn sends(log: &[(Duration, Action)], unit: Duration) -> Vec<f64> {
    let sent = log.iter().filter(|(_, action)| matches!(action, Send(_)));
    sent.map(|(when, _)| when.as_secs_f64() / unit.as_secs_f64()).collect()
}

fn assert_near(got: &[f64], expected: &[f64]) {
    assert_eq!(got.len(), expected.len(), "{got:?} is not {expected:?}");
    for (g, e) in got.iter().zip(expected) {
        assert!((g - e).abs() < 1e-6, "{got:?} is not {expected:?}");
    }
}

/// When it ended, and what was reported then.
fn end(log: &[(Duration, Action)]) -> (Duration, Option<Action>) {
    let (when, last) = log.last().unwrap();
    assert_eq!(*last, Done);
    let report = log.iter().rev().nth(1).filter(|(t, a)| t == when && matches!(a, Deliver(_)));
    (*when, report.map(|(_, a)| a.clone()))
}
