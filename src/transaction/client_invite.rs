//! The INVITE client transaction: RFC 3261 §17.1.1, Figure 5, with RFC 6026 §7.2.

use std::mem;

use bytes::Bytes;

use super::timers::Micros;
use super::{Class, Delivery, Effects, State, Timer, TimerConfig};

/// One INVITE sent to one instance, until nothing more can come back for it.
#[derive(Debug)]
pub struct ClientInvite(Inner);

#[derive(Debug)]
enum Inner {
    Calling {
        request: Bytes,
        /// What timer A was last set to.
        interval: Micros,
        /// 64*T1.
        timeout: Micros,
        reliable: bool,
        /// False once abandoned: timer A then sends nothing.
        repeating: bool,
    },
    Proceeding {
        request: Bytes,
        timeout: Micros,
        reliable: bool,
    },
    /// A 2xx came: nothing will be sent any more, so nothing is kept.
    Accepted {
        saw_provisional: bool,
    },
    /// A 300-699 came, and the ACK is not built yet.
    Unacknowledged {
        request: Bytes,
        saw_provisional: bool,
    },
    /// A 300-699 came and was acknowledged.
    Completed {
        ack: Bytes,
        saw_provisional: bool,
    },
    /// Over; the request is there only while the last ACK is still to be built from it.
    Terminated {
        request: Bytes,
        saw_provisional: bool,
    },
}

impl Inner {
    fn over(saw_provisional: bool) -> Self {
        Inner::Terminated { request: Bytes::new(), saw_provisional }
    }
}

impl ClientInvite {
    /// Sends the request and arms timer B; over an unreliable transport timer A as well.
    pub fn start(request: Bytes, reliable: bool, cfg: &TimerConfig, fx: &mut Effects) -> Self {
        let interval = Micros::from(cfg.t1);
        let timeout = Micros::from(cfg.timeout());
        fx.send(request.clone());
        if !reliable {
            fx.arm(Timer::A, interval);
        }
        fx.arm(Timer::B, timeout);
        Self(Inner::Calling { request, interval, timeout, reliable, repeating: !reliable })
    }

    /// A response matched this transaction.
    ///
    /// Every 2xx is delivered, repeated ones too, and also one that follows a 300-699 (a forking
    /// proxy beyond may send both: RFC 3261 §16.7 step 5); the latter changes no state. A repeated
    /// 300-699 gets the stored ACK again. What else comes late is absorbed.
    pub fn on_response(&mut self, status: u16, fx: &mut Effects) {
        let class = Class::of(status);
        match &mut self.0 {
            Inner::Calling { request, timeout, reliable, .. } => {
                let (request, timeout, reliable) = (mem::take(request), *timeout, *reliable);
                match class {
                    Class::Provisional => {
                        self.0 = Inner::Proceeding { request, timeout, reliable };
                        fx.deliver(Delivery::Response);
                    }
                    Class::Success => self.accept(timeout, false, fx),
                    Class::Failure => self.complete(request, timeout, reliable, false, fx),
                }
            }
            Inner::Proceeding { request, timeout, reliable } => match class {
                Class::Provisional => fx.deliver(Delivery::Response),
                Class::Success => {
                    let timeout = *timeout;
                    self.accept(timeout, true, fx);
                }
                Class::Failure => {
                    let (request, timeout, reliable) = (mem::take(request), *timeout, *reliable);
                    self.complete(request, timeout, reliable, true, fx);
                }
            },
            Inner::Accepted { .. } => match class {
                Class::Success => fx.deliver(Delivery::Response),
                Class::Provisional | Class::Failure => {}
            },
            Inner::Unacknowledged { .. } => match class {
                Class::Success => fx.deliver(Delivery::Response),
                Class::Failure => fx.actions.push_back(super::Action::MakeAck),
                Class::Provisional => {}
            },
            Inner::Completed { ack, .. } => match class {
                Class::Success => fx.deliver(Delivery::Response),
                Class::Failure => fx.send(ack.clone()),
                Class::Provisional => {}
            },
            Inner::Terminated { .. } => {}
        }
    }

    fn accept(&mut self, timeout: Micros, saw_provisional: bool, fx: &mut Effects) {
        self.0 = Inner::Accepted { saw_provisional };
        fx.deliver(Delivery::Response);
        fx.arm(Timer::M, timeout);
    }

    fn complete(
        &mut self,
        request: Bytes,
        timeout: Micros,
        reliable: bool,
        saw_provisional: bool,
        fx: &mut Effects,
    ) {
        fx.actions.push_back(super::Action::MakeAck);
        fx.deliver(Delivery::Response);
        if reliable {
            // Timer D is zero; the request stays until the ACK has been built from it.
            self.0 = Inner::Terminated { request, saw_provisional };
            fx.done();
        } else {
            self.0 = Inner::Unacknowledged { request, saw_provisional };
            fx.arm(Timer::D, timeout);
        }
    }

    /// Takes the ACK built for [`super::Action::MakeAck`], to be sent again for each repeated
    /// final response. The request is dropped.
    pub fn store_ack(&mut self, ack: Bytes) {
        match &mut self.0 {
            Inner::Unacknowledged { saw_provisional, .. } => {
                self.0 = Inner::Completed { ack, saw_provisional: *saw_provisional };
            }
            Inner::Terminated { saw_provisional, .. } => self.0 = Inner::over(*saw_provisional),
            Inner::Calling { .. }
            | Inner::Proceeding { .. }
            | Inner::Accepted { .. }
            | Inner::Completed { .. } => {}
        }
    }

    /// Gives up sending, not listening: the request is not repeated, but until timer B a late
    /// response is handled as any other. No effect once a response has come.
    pub fn abandon(&mut self) {
        if let Inner::Calling { repeating, .. } = &mut self.0 {
            *repeating = false;
        }
    }

    /// Ends a transaction that has no final response, whatever its timers say: the core's own
    /// limits (timer C, 64*T1 after a CANCEL) have run out. Delivers [`Delivery::Timeout`].
    /// No effect after a final response.
    pub fn expire(&mut self, fx: &mut Effects) {
        match &self.0 {
            Inner::Calling { .. } => self.fail(Delivery::Timeout, false, fx),
            Inner::Proceeding { .. } => self.fail(Delivery::Timeout, true, fx),
            Inner::Accepted { .. }
            | Inner::Unacknowledged { .. }
            | Inner::Completed { .. }
            | Inner::Terminated { .. } => {}
        }
    }

    /// A timer fired: A, B, D or M. Others, and those of an earlier state, are ignored.
    pub fn on_timer(&mut self, timer: Timer, fx: &mut Effects) {
        match (&mut self.0, timer) {
            (Inner::Calling { request, interval, repeating: true, .. }, Timer::A) => {
                *interval = interval.doubled();
                fx.send(request.clone());
                fx.arm(Timer::A, *interval);
            }
            (Inner::Calling { .. }, Timer::B) => self.fail(Delivery::Timeout, false, fx),
            (
                Inner::Unacknowledged { saw_provisional, .. } | Inner::Completed { saw_provisional, .. },
                Timer::D,
            )
            | (Inner::Accepted { saw_provisional }, Timer::M) => {
                self.0 = Inner::over(*saw_provisional);
                fx.done();
            }
            _ => {}
        }
    }

    /// The request or the ACK could not be sent, or the connection that the answer was to come by
    /// is gone (RFC 3261 §17.1.4). Nothing is sent in Accepted, so nothing happens there.
    pub fn on_transport_error(&mut self, fx: &mut Effects) {
        match &self.0 {
            Inner::Calling { .. } => self.fail(Delivery::TransportError, false, fx),
            Inner::Proceeding { .. } => self.fail(Delivery::TransportError, true, fx),
            Inner::Unacknowledged { saw_provisional, .. } | Inner::Completed { saw_provisional, .. } => {
                let saw_provisional = *saw_provisional;
                self.fail(Delivery::TransportError, saw_provisional, fx);
            }
            Inner::Accepted { .. } | Inner::Terminated { .. } => {}
        }
    }

    fn fail(&mut self, why: Delivery, saw_provisional: bool, fx: &mut Effects) {
        self.0 = Inner::over(saw_provisional);
        fx.deliver(why);
        fx.done();
    }

    /// The request as sent, while it is still held: until a 2xx, or until the ACK is stored.
    /// CANCEL (RFC 3261 §9.1) and ACK (§17.1.1.3) are built from it.
    pub fn request(&self) -> Option<&Bytes> {
        match &self.0 {
            Inner::Calling { request, .. }
            | Inner::Proceeding { request, .. }
            | Inner::Unacknowledged { request, .. }
            | Inner::Terminated { request, .. } => Some(request).filter(|r| !r.is_empty()),
            Inner::Accepted { .. } | Inner::Completed { .. } => None,
        }
    }

    /// Where it stands.
    pub fn state(&self) -> State {
        match &self.0 {
            Inner::Calling { .. } => State::Calling,
            Inner::Proceeding { .. } => State::Proceeding,
            Inner::Accepted { .. } => State::Accepted,
            Inner::Unacknowledged { .. } | Inner::Completed { .. } => State::Completed,
            Inner::Terminated { .. } => State::Terminated,
        }
    }

    /// True once [`super::Action::Done`] was pushed.
    pub fn is_terminated(&self) -> bool {
        matches!(self.0, Inner::Terminated { .. })
    }

    /// True while a CANCEL may be sent: a provisional response has come and no final one
    /// (RFC 3261 §9.1).
    pub fn may_cancel(&self) -> bool {
        matches!(self.0, Inner::Proceeding { .. })
    }

    /// True if a provisional response has ever come.
    pub fn saw_provisional(&self) -> bool {
        match &self.0 {
            Inner::Calling { .. } => false,
            Inner::Proceeding { .. } => true,
            Inner::Accepted { saw_provisional }
            | Inner::Unacknowledged { saw_provisional, .. }
            | Inner::Completed { saw_provisional, .. }
            | Inner::Terminated { saw_provisional, .. } => *saw_provisional,
        }
    }
}
