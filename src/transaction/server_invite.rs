//! The INVITE server transaction: RFC 3261 §17.2.1, Figure 7, with RFC 6026 §7.1.

use bytes::Bytes;

use super::timers::Micros;
use super::{Class, Delivery, Effects, State, Timer, TimerConfig};

/// One INVITE received. Whether and when a 100 is sent is for the core to say.
#[derive(Debug)]
pub struct ServerInvite(Inner);

#[derive(Debug)]
enum Inner {
    Proceeding {
        /// The last provisional response sent.
        last: Option<Bytes>,
    },
    /// A 2xx went out. It is the far end that repeats it, so nothing is kept.
    Accepted,
    /// A 300-699 went out and waits for its ACK.
    Completed {
        response: Bytes,
        /// What timer G was last set to.
        interval: Micros,
        t2: Micros,
        t4: Micros,
        reliable: bool,
    },
    /// The ACK came; later copies are absorbed.
    Confirmed,
    Terminated,
}

impl Default for ServerInvite {
    fn default() -> Self {
        Self::new()
    }
}

impl ServerInvite {
    /// For an INVITE that matched no transaction.
    pub fn new() -> Self {
        Self(Inner::Proceeding { last: None })
    }

    /// The core answers; `response` is sent at once. False, and nothing is done, if a response of
    /// this kind can no longer be sent: anything but a 2xx after a final response.
    ///
    /// A 2xx after a 300-699 (from a branch that was given up) is sent and changes nothing: it is
    /// not repeated by this transaction, which still awaits the ACK for its own final response
    /// (RFC 3261 §16.7 step 5: every 2xx goes upstream).
    #[must_use]
    pub fn respond(
        &mut self,
        status: u16,
        response: Bytes,
        reliable: bool,
        cfg: &TimerConfig,
        fx: &mut Effects,
    ) -> bool {
        match (&mut self.0, Class::of(status)) {
            (Inner::Proceeding { last }, Class::Provisional) => {
                *last = Some(response.clone());
                fx.send(response);
            }
            (Inner::Proceeding { .. }, Class::Success) => {
                self.0 = Inner::Accepted;
                fx.send(response);
                fx.arm(Timer::L, Micros::from(cfg.timeout()));
            }
            (Inner::Proceeding { .. }, Class::Failure) => {
                let t2 = Micros::from(cfg.t2);
                let interval = Micros::from(cfg.t1).min(t2);
                fx.send(response.clone());
                if !reliable {
                    fx.arm(Timer::G, interval);
                }
                fx.arm(Timer::H, Micros::from(cfg.timeout()));
                self.0 = Inner::Completed { response, interval, t2, t4: Micros::from(cfg.t4), reliable };
            }
            (Inner::Accepted | Inner::Completed { .. } | Inner::Confirmed, Class::Success) => {
                fx.send(response);
            }
            (
                Inner::Accepted | Inner::Completed { .. } | Inner::Confirmed,
                Class::Provisional | Class::Failure,
            )
            | (Inner::Terminated, _) => return false,
        }
        true
    }

    /// The same INVITE came again: the last response is sent again, if this transaction repeats it.
    pub fn on_retransmission(&mut self, fx: &mut Effects) {
        match &self.0 {
            Inner::Proceeding { last: Some(response) } | Inner::Completed { response, .. } => {
                fx.send(response.clone());
            }
            Inner::Proceeding { last: None } | Inner::Accepted | Inner::Confirmed | Inner::Terminated => {}
        }
    }

    /// An ACK matched this transaction. That for a 300-699 ends here; that for a 2xx (which matches
    /// only if its sender used the branch again) is delivered.
    pub fn on_ack(&mut self, fx: &mut Effects) {
        match &self.0 {
            Inner::Completed { reliable: true, .. } => self.end(fx),
            Inner::Completed { reliable: false, t4, .. } => {
                fx.arm(Timer::I, *t4);
                self.0 = Inner::Confirmed;
            }
            Inner::Accepted => fx.deliver(Delivery::Ack),
            Inner::Proceeding { .. } | Inner::Confirmed | Inner::Terminated => {}
        }
    }

    /// A timer fired: G, H, I or L. Others, and those of an earlier state, are ignored.
    pub fn on_timer(&mut self, timer: Timer, fx: &mut Effects) {
        match (&mut self.0, timer) {
            (Inner::Completed { response, interval, t2, reliable: false, .. }, Timer::G) => {
                *interval = interval.doubled().min(*t2);
                fx.send(response.clone());
                fx.arm(Timer::G, *interval);
            }
            (Inner::Completed { .. }, Timer::H) => {
                fx.deliver(Delivery::Timeout);
                self.end(fx);
            }
            (Inner::Confirmed, Timer::I) | (Inner::Accepted, Timer::L) => self.end(fx),
            _ => {}
        }
    }

    /// A response could not be sent. The core is told; the state stays, so that repeated requests
    /// are still recognised, and the timers end it (RFC 6026 §7.1).
    pub fn on_transport_error(&mut self, fx: &mut Effects) {
        match self.0 {
            Inner::Proceeding { .. } | Inner::Accepted | Inner::Completed { .. } => {
                fx.deliver(Delivery::TransportError);
            }
            Inner::Confirmed | Inner::Terminated => {}
        }
    }

    fn end(&mut self, fx: &mut Effects) {
        self.0 = Inner::Terminated;
        fx.done();
    }

    /// Where it stands.
    pub fn state(&self) -> State {
        match self.0 {
            Inner::Proceeding { .. } => State::Proceeding,
            Inner::Accepted => State::Accepted,
            Inner::Completed { .. } => State::Completed,
            Inner::Confirmed => State::Confirmed,
            Inner::Terminated => State::Terminated,
        }
    }

    /// True once a final response has been given.
    pub fn has_final(&self) -> bool {
        !matches!(self.0, Inner::Proceeding { .. })
    }

    /// True once [`super::Action::Done`] was pushed.
    pub fn is_terminated(&self) -> bool {
        matches!(self.0, Inner::Terminated)
    }
}
