//! The non-INVITE server transaction: RFC 3261 §17.2.2, Figure 8, with RFC 4320 §4.1.

use bytes::Bytes;

use super::timers::Micros;
use super::{Action, Class, Delivery, Effects, State, Timer, TimerConfig};

/// One request received that is neither INVITE nor ACK.
#[derive(Debug)]
pub struct ServerNonInvite(Inner);

#[derive(Debug)]
enum Inner {
    Trying,
    Proceeding {
        /// The last provisional response sent.
        last: Bytes,
    },
    Completed {
        response: Bytes,
    },
    Terminated,
}

impl Default for ServerNonInvite {
    fn default() -> Self {
        Self::new()
    }
}

impl ServerNonInvite {
    /// For a request that is answered here and now (CANCEL, a rejected request).
    pub fn new() -> Self {
        Self(Inner::Trying)
    }

    /// For a request that is forwarded: arms [`Timer::Trying`], when the 100 falls due.
    pub fn start(cfg: &TimerConfig, fx: &mut Effects) -> Self {
        fx.arm(Timer::Trying, Micros::from(cfg.late_trying()));
        Self::new()
    }

    /// The core answers; `response` is sent at once. False, and nothing is done, after a final
    /// response.
    #[must_use]
    pub fn respond(
        &mut self,
        status: u16,
        response: Bytes,
        reliable: bool,
        cfg: &TimerConfig,
        fx: &mut Effects,
    ) -> bool {
        match (&self.0, Class::of(status)) {
            (Inner::Trying | Inner::Proceeding { .. }, Class::Provisional) => {
                fx.send(response.clone());
                self.0 = Inner::Proceeding { last: response };
            }
            (Inner::Trying | Inner::Proceeding { .. }, Class::Success | Class::Failure) => {
                if reliable {
                    // Timer J is zero: nothing repeats a request over a stream.
                    fx.send(response);
                    self.end(fx);
                } else {
                    fx.send(response.clone());
                    fx.arm(Timer::J, Micros::from(cfg.timeout()));
                    self.0 = Inner::Completed { response };
                }
            }
            (Inner::Completed { .. } | Inner::Terminated, _) => return false,
        }
        true
    }

    /// The same request came again: the last response is sent again, if there is one.
    pub fn on_retransmission(&mut self, fx: &mut Effects) {
        match &self.0 {
            Inner::Proceeding { last: response } | Inner::Completed { response } => {
                fx.send(response.clone());
            }
            Inner::Trying | Inner::Terminated => {}
        }
    }

    /// A timer fired: Trying or J. Others, and those of an earlier state, are ignored.
    pub fn on_timer(&mut self, timer: Timer, fx: &mut Effects) {
        match (&self.0, timer) {
            (Inner::Trying, Timer::Trying) => fx.actions.push_back(Action::MakeTrying),
            (Inner::Completed { .. }, Timer::J) => self.end(fx),
            _ => {}
        }
    }

    /// A response could not be sent. The core is told; the state stays, so that a repeated request
    /// is not taken for a new one and forwarded again (RFC 6026 §7.1, for every server transaction;
    /// Figure 8 would end here).
    pub fn on_transport_error(&mut self, fx: &mut Effects) {
        match self.0 {
            Inner::Proceeding { .. } | Inner::Completed { .. } => {
                fx.deliver(Delivery::TransportError);
            }
            Inner::Trying | Inner::Terminated => {}
        }
    }

    /// Ends a transaction that will never be answered: its 64*T1 are over, and a 408 then helps
    /// nobody (RFC 4320 §4.2). No effect after a final response.
    pub fn expire(&mut self, fx: &mut Effects) {
        match self.0 {
            Inner::Trying | Inner::Proceeding { .. } => self.end(fx),
            Inner::Completed { .. } | Inner::Terminated => {}
        }
    }

    fn end(&mut self, fx: &mut Effects) {
        self.0 = Inner::Terminated;
        fx.done();
    }

    /// Where it stands.
    pub fn state(&self) -> State {
        match self.0 {
            Inner::Trying => State::Trying,
            Inner::Proceeding { .. } => State::Proceeding,
            Inner::Completed { .. } => State::Completed,
            Inner::Terminated => State::Terminated,
        }
    }

    /// True once a final response has been given, or none will be.
    pub fn has_final(&self) -> bool {
        matches!(self.0, Inner::Completed { .. } | Inner::Terminated)
    }

    /// True once [`super::Action::Done`] was pushed.
    pub fn is_terminated(&self) -> bool {
        matches!(self.0, Inner::Terminated)
    }
}
