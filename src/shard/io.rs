//! What goes into a shard and what comes out of it. Nothing else does.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;

use crate::flow::{ConnId, Hop, ListenerId, Origin, PeerId, SendFailure, Transport};
use crate::location::{Instance, LocateKey, Located, Observation};
use crate::proxy::Policy;
use crate::proxy::decision::Record;
use crate::wire::{Index, Limits, Unusable};

/// Names a transaction of a shard to the shell, so that a failure to send finds its way back.
/// Carries a generation: a token of something long gone is ignored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SendToken(pub u64);

/// Names a request for a location; echoed with the answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Ticket(pub u64);

/// Something that happened outside.
#[derive(Debug)]
pub enum Input<'a> {
    /// One whole message: a datagram, or what the framing of a stream cut out.
    Message {
        /// Where it came from.
        origin: &'a Origin,
        /// Its octets.
        bytes: &'a [u8],
    },
    /// The same, read already; see [`super::Reader`].
    Read {
        /// Where it came from.
        origin: &'a Origin,
        /// Its octets.
        bytes: &'a [u8],
        /// What they are.
        ahead: ReadAhead<'a>,
    },
    /// Messages of one socket are about to come: how long they had to wait.
    Waited {
        /// The wait of the oldest of them.
        delay: Duration,
        /// How many there are.
        messages: u32,
    },
    /// The answer to [`Output::Locate`].
    Located {
        /// Which question.
        ticket: Ticket,
        /// The answer; failures are answers too.
        result: Arc<Located>,
    },
    /// A stream message was given to this connection (perhaps still being made).
    Sent {
        /// As in [`Send::token`].
        token: SendToken,
        /// The connection.
        conn: ConnId,
        /// It had been open before: should it turn out dead, the instance is not to blame (rule 10).
        reused: bool,
    },
    /// A message with a token could not be sent.
    SendFailed {
        /// As in [`Send::token`].
        token: SendToken,
        /// Why.
        failure: SendFailure,
    },
    /// An ICMP error for a datagram of ours, from a socket's error queue.
    Undeliverable {
        /// Where the datagram was going.
        to: SocketAddr,
        /// The start of the datagram, as much as the error quotes.
        payload: &'a [u8],
    },
    /// A connection that had carried requests of ours has ended.
    ConnectionClosed {
        /// Which one.
        conn: ConnId,
    },
    /// News from the node.
    Update(Update),
}

/// A message as read before its shard was locked.
#[derive(Debug)]
pub struct ReadAhead<'a> {
    pub(super) index: Arc<Index>,
    pub(super) read: Result<(), Unusable>,
    /// What it was measured by.
    pub(super) limits: &'a Limits,
}

/// News that every shard gets.
#[derive(Clone, Debug)]
pub enum Update {
    /// A configuration, at start and at reload. Calls under way go on.
    Policy(Arc<Policy>),
    /// Another shard, or the prober, has seen this of an instance.
    Health(Instance, Observation),
    /// Begin or end draining (rule 12).
    Drain(bool),
    /// Another process takes over: what comes by datagrams and belongs to nothing here is for it
    /// ([`Output::Pass`]). Or it does not, after all.
    Leave(bool),
    /// Send an OPTIONS probe to this instance (given to one shard only).
    Probe {
        /// Whose instance.
        peer: PeerId,
        /// Where to.
        hop: Hop,
        /// Request-URI, e.g. `sip:192.0.2.7:5060`.
        uri: Arc<str>,
        /// Silence that counts as a failure.
        timeout: Duration,
    },
}

/// Something to be done.
#[derive(Debug)]
pub enum Output {
    /// Send octets.
    Send(Send),
    /// Find the servers for a target; the answer comes as [`Input::Located`], at once when it is cached.
    Locate {
        /// Echoed with the answer.
        ticket: Ticket,
        /// What to locate.
        key: LocateKey,
    },
    /// A datagram for the process that takes over.
    Pass(Box<Passed>),
    /// Something to tell.
    Event(Event),
}

/// A datagram that belongs to nothing here, as it was received.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Passed {
    /// By which listener it came.
    pub listener: ListenerId,
    /// Who sent it.
    pub remote: SocketAddr,
    /// The address that it was sent to.
    pub local: SocketAddr,
    /// Its octets.
    pub bytes: Bytes,
}

/// One message to send.
#[derive(Debug)]
pub struct Send {
    /// Where to.
    pub hop: Hop,
    /// The octets.
    pub bytes: Bytes,
    /// Whom to tell about failure (and, for streams, of the connection used); `None`: nobody.
    pub token: Option<SendToken>,
    /// True for requests: the connection's end before an answer is of interest.
    pub request: bool,
}

/// What call records are made of; told only if the configuration has `[records]`.
#[derive(Clone, Debug)]
pub enum CallEvent {
    /// An INVITE outside a dialog has its final response, or will never have one.
    Final {
        /// With a 2xx the number of the call, which its end will have too.
        call: Option<u64>,
        /// All about it.
        record: Box<Record>,
    },
    /// An answered call is over.
    Ended {
        /// Its number.
        call: u64,
        /// When.
        at: Instant,
        /// How.
        how: CallEnd,
    },
}

/// How an answered call ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallEnd {
    /// A BYE had its final response.
    Bye,
    /// Nobody ended it until `calls.max_age` or its Session-Expires had passed.
    Aged,
}

impl CallEnd {
    /// A fixed word for the records.
    pub const fn label(self) -> &'static str {
        match self {
            CallEnd::Bye => "bye",
            CallEnd::Aged => "aged",
        }
    }
}

/// What the world may want to know beyond the counters of [`super::Stats`].
#[derive(Clone, Debug)]
pub enum Event {
    /// To be given to all other shards as [`Update::Health`].
    Health(Instance, Observation),
    /// For the call records.
    Call(CallEvent),
    /// An instance changed its standing: for the log.
    InstanceChanged {
        /// Whose.
        peer: Option<PeerId>,
        /// Which.
        instance: Instance,
        /// Up or down now.
        up: bool,
        /// Why.
        reason: &'static str,
    },
    /// An attempt failed and the next candidate is tried: for the log.
    FailedOver {
        /// The call.
        call_id: Bytes,
        /// Whose instance failed.
        peer: Option<PeerId>,
        /// Which.
        instance: Instance,
        /// Why.
        reason: &'static str,
    },
    /// New calls begin to be refused because the element cannot keep up, or that is over.
    Overload {
        /// It begins.
        begins: bool,
        /// How long messages wait.
        delay: Duration,
    },
    /// A request was refused: for the log, rate-limited by the shell.
    Rejected {
        /// The call; empty when it could not be read.
        call_id: Bytes,
        /// From where.
        remote: SocketAddr,
        /// By which transport and listener.
        transport: Transport,
        /// Which listener.
        listener: ListenerId,
        /// Status sent; 0: dropped without an answer.
        status: u16,
        /// Why.
        reason: &'static str,
    },
}
