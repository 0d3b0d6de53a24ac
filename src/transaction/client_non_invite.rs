//! The non-INVITE client transaction: RFC 3261 §17.1.2, Figure 6.

use std::mem;
use std::time::Duration;

use bytes::Bytes;

use super::timers::Micros;
use super::{Class, Delivery, Effects, State, Timer, TimerConfig};

/// One request other than INVITE and ACK, sent to one instance.
#[derive(Debug)]
pub struct ClientNonInvite(Inner);

#[derive(Debug)]
enum Inner {
    Trying {
        pending: Pending,
    },
    Proceeding {
        pending: Pending,
    },
    /// The final response came: repeated ones are absorbed.
    Completed,
    Terminated,
}

/// What is needed while the final response has not come.
#[derive(Debug)]
struct Pending {
    request: Bytes,
    /// What timer E was last set to.
    interval: Micros,
    t2: Micros,
    t4: Micros,
    reliable: bool,
    /// False once abandoned: timer E then sends nothing.
    repeating: bool,
}

impl ClientNonInvite {
    /// Sends the request and arms timer F; over an unreliable transport timer E as well.
    ///
    /// `deadline_left` is what remains of the 64*T1 that all attempts for one request share (a
    /// further attempt must not outlive the transaction upstream, RFC 4320).
    pub fn start(
        request: Bytes,
        reliable: bool,
        cfg: &TimerConfig,
        deadline_left: Duration,
        fx: &mut Effects,
    ) -> Self {
        let t2 = Micros::from(cfg.t2);
        let interval = Micros::from(cfg.t1).min(t2);
        fx.send(request.clone());
        if !reliable {
            fx.arm(Timer::E, interval);
        }
        fx.arm(Timer::F, Micros::from(deadline_left));
        Self(Inner::Trying {
            pending: Pending {
                request,
                interval,
                t2,
                t4: Micros::from(cfg.t4),
                reliable,
                repeating: !reliable,
            },
        })
    }

    /// A response matched this transaction. The first final response ends the wait; what comes
    /// after it is absorbed.
    pub fn on_response(&mut self, status: u16, fx: &mut Effects) {
        match (&mut self.0, Class::of(status)) {
            (Inner::Trying { pending }, Class::Provisional) => {
                let pending = mem::replace(pending, Pending::taken());
                self.0 = Inner::Proceeding { pending };
                fx.deliver(Delivery::Response);
            }
            (Inner::Proceeding { .. }, Class::Provisional) => fx.deliver(Delivery::Response),
            (Inner::Trying { pending } | Inner::Proceeding { pending }, Class::Success | Class::Failure) => {
                fx.deliver(Delivery::Response);
                if pending.reliable {
                    self.0 = Inner::Terminated;
                    fx.done();
                } else {
                    fx.arm(Timer::K, pending.t4);
                    self.0 = Inner::Completed;
                }
            }
            (Inner::Completed | Inner::Terminated, _) => {}
        }
    }

    /// Gives up sending, not listening: the request is not repeated, but until timer F a late
    /// response is handled as any other.
    pub fn abandon(&mut self) {
        if let Inner::Trying { pending } | Inner::Proceeding { pending } = &mut self.0 {
            pending.repeating = false;
        }
    }

    /// Ends a transaction that has no final response, whatever its timers say. Delivers
    /// [`Delivery::Timeout`]. No effect after a final response.
    pub fn expire(&mut self, fx: &mut Effects) {
        self.fail(Delivery::Timeout, fx);
    }

    /// A timer fired: E, F or K. Others, and those of an earlier state, are ignored.
    pub fn on_timer(&mut self, timer: Timer, fx: &mut Effects) {
        match (&mut self.0, timer) {
            (Inner::Trying { pending }, Timer::E) if pending.repeating => {
                pending.interval = pending.interval.doubled().min(pending.t2);
                pending.repeat(fx);
            }
            (Inner::Proceeding { pending }, Timer::E) if pending.repeating => {
                pending.interval = pending.t2;
                pending.repeat(fx);
            }
            (Inner::Trying { .. } | Inner::Proceeding { .. }, Timer::F) => {
                self.fail(Delivery::Timeout, fx);
            }
            (Inner::Completed, Timer::K) => {
                self.0 = Inner::Terminated;
                fx.done();
            }
            _ => {}
        }
    }

    /// The request could not be sent, or the connection that the answer was to come by is gone
    /// (RFC 3261 §17.1.4).
    pub fn on_transport_error(&mut self, fx: &mut Effects) {
        self.fail(Delivery::TransportError, fx);
    }

    fn fail(&mut self, why: Delivery, fx: &mut Effects) {
        match self.0 {
            Inner::Trying { .. } | Inner::Proceeding { .. } => {
                self.0 = Inner::Terminated;
                fx.deliver(why);
                fx.done();
            }
            Inner::Completed | Inner::Terminated => {}
        }
    }

    /// The request as sent, until the final response.
    pub fn request(&self) -> Option<&Bytes> {
        match &self.0 {
            Inner::Trying { pending } | Inner::Proceeding { pending } => Some(&pending.request),
            Inner::Completed | Inner::Terminated => None,
        }
    }

    /// Where it stands.
    pub fn state(&self) -> State {
        match self.0 {
            Inner::Trying { .. } => State::Trying,
            Inner::Proceeding { .. } => State::Proceeding,
            Inner::Completed => State::Completed,
            Inner::Terminated => State::Terminated,
        }
    }

    /// True once [`super::Action::Done`] was pushed.
    pub fn is_terminated(&self) -> bool {
        matches!(self.0, Inner::Terminated)
    }
}

impl Pending {
    /// What is left behind for the moment that a value moves from one state to the next.
    fn taken() -> Self {
        Self {
            request: Bytes::new(),
            interval: Micros::ZERO,
            t2: Micros::ZERO,
            t4: Micros::ZERO,
            reliable: true,
            repeating: false,
        }
    }

    fn repeat(&self, fx: &mut Effects) {
        fx.send(self.request.clone());
        fx.arm(Timer::E, self.interval);
    }
}
