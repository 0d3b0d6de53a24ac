//! The transaction layer (RFC 3261 §17, RFC 6026, RFC 4320): four state machines, their timers, and
//! the keys by which messages find them.
//!
//! Everything here is pure. A machine is told what happened (a response came, a timer fired) and
//! pushes what follows onto an [`Effects`]; the shard, which owns the tables, the clock and the
//! sockets' queues, drains it. One file per figure of RFC 3261:
//!
//! | machine | figure | changed by |
//! |---|---|---|
//! | [`ClientInvite`] | 5 | RFC 6026 (Accepted, timer M) |
//! | [`ClientNonInvite`] | 6 | one deadline shared by all attempts |
//! | [`ServerInvite`] | 7 | RFC 6026 (Accepted, timer L) |
//! | [`ServerNonInvite`] | 8 | RFC 4320 (the late 100) |
//!
//! Timers are never cancelled: a timer that does not fit the state is ignored by the machine, one
//! that outlived its transaction is recognised by the shard (generation).

pub mod key;
pub mod timers;

mod client_invite;
mod client_non_invite;
mod server_invite;
mod server_non_invite;

use std::collections::VecDeque;
use std::time::Duration;

use bytes::Bytes;

pub use client_invite::ClientInvite;
pub use client_non_invite::ClientNonInvite;
pub use key::{Branch, BranchParts, KeySecrets, ServerKey, ServerKeyParts, loop_hash};
pub use server_invite::ServerInvite;
pub use server_non_invite::ServerNonInvite;
pub use timers::{Lanes, Timer, TimerConfig};

/// Something the shard must do for a machine, in the order pushed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Send these octets where this transaction sends (client: its hop; server: back to the origin).
    Send(Bytes),
    /// Call `on_timer` with this timer after this long.
    Arm(Timer, Duration),
    /// Build the ACK for the response just received from [`ClientInvite::request`] (RFC 3261
    /// §17.1.1.3), send it, and give it to [`ClientInvite::store_ack`].
    MakeAck,
    /// Build a 100 for this request and give it to [`ServerNonInvite::respond`] (RFC 4320 §4.1).
    MakeTrying,
    /// Tell the proxy core (the "transaction user").
    Deliver(Delivery),
    /// The transaction has ended; forget it once the actions are done. Always the last action.
    Done,
}

/// What a machine tells the proxy core.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Delivery {
    /// Client: the response just received is for the core.
    Response,
    /// Client: no final response in time. [`ServerInvite`]: the ACK never came.
    Timeout,
    /// The transport could not send for this transaction.
    TransportError,
    /// [`ServerInvite`]: the ACK just received belongs to a 2xx; it goes on by its route set.
    Ack,
}

/// What a machine wants done. One is kept by the shard and used again and again.
#[derive(Clone, Debug, Default)]
pub struct Effects {
    /// In the order they are to be done. No step of any machine pushes more than four.
    pub actions: VecDeque<Action>,
}

impl Effects {
    /// With nothing in it.
    pub fn new() -> Self {
        Self::default()
    }

    /// The next thing to be done. One at a time, so that what follows from it may be pushed meanwhile.
    pub fn take(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    /// True if there is nothing to be done.
    pub fn is_empty(&self) -> bool {
        self.actions.is_empty()
    }

    fn send(&mut self, bytes: Bytes) {
        self.actions.push_back(Action::Send(bytes));
    }

    fn arm(&mut self, timer: Timer, after: timers::Micros) {
        self.actions.push_back(Action::Arm(timer, after.duration()));
    }

    fn deliver(&mut self, what: Delivery) {
        self.actions.push_back(Action::Deliver(what));
    }

    fn done(&mut self) {
        self.actions.push_back(Action::Done);
    }
}

/// Where a transaction stands. Not every machine has every state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum State {
    /// Client INVITE: sent, nothing heard.
    Calling,
    /// Non-INVITE: no response so far.
    Trying,
    /// A provisional response has come or gone (a server INVITE begins here).
    Proceeding,
    /// INVITE: a 2xx has come or gone (RFC 6026).
    Accepted,
    /// A final response has come or gone (INVITE: 300 to 699).
    Completed,
    /// Server INVITE: the ACK has come.
    Confirmed,
    /// Over.
    Terminated,
}

/// The classes of responses that the machines tell apart.
#[derive(Clone, Copy)]
enum Class {
    Provisional,
    Success,
    Failure,
}

impl Class {
    /// The wire layer admits 100 to 699 only; anything above 299 is a final non-2xx here.
    fn of(status: u16) -> Self {
        match status {
            0..=199 => Class::Provisional,
            200..=299 => Class::Success,
            300.. => Class::Failure,
        }
    }
}

#[cfg(test)]
mod tests;
