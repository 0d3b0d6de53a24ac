//! The response context of RFC 3261 §16.2: one server transaction and the attempts made for it.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use smallvec::SmallVec;

use crate::flow::{ConnId, Hop, Host, ListenerId, PeerId, SendFailure};
use crate::location::{Candidate, Instance, LocateKey, Located, Selection};
use crate::peering::{Party, Refusal};
use crate::transaction::{
    BranchParts, ClientInvite, ClientNonInvite, ServerInvite, ServerKey, ServerNonInvite, Timer,
};
use crate::wire::{Index, Message, Method};

use super::decision::Record;
use super::dialog::KnownToken;
use super::reply::ReplyPath;

/// What a context serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// An INVITE.
    Invite,
    /// Any other request but ACK and CANCEL.
    NonInvite,
    /// A CANCEL: answered here, hop by hop (§16.10).
    Cancel,
    /// An ACK for a 2xx: forwarded, no transaction (§16.11 in spirit, §13.2.2.4).
    Ack,
    /// An OPTIONS of our own.
    Probe,
}

/// The server side of a context.
#[derive(Debug)]
pub enum Server {
    /// Figure 7.
    Invite(ServerInvite),
    /// Figure 8.
    NonInvite(ServerNonInvite),
    /// None: an ACK or a probe; or it has ended.
    Gone,
}

/// The client side of an attempt.
#[derive(Debug)]
pub enum Client {
    /// Figure 5.
    Invite(ClientInvite),
    /// Figure 6.
    NonInvite(ClientNonInvite),
    /// It has ended.
    Gone,
}

/// How an attempt stands towards the call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// It may still decide the call.
    Live,
    /// The next candidate has been tried instead; late answers are still handled (rule 10).
    Abandoned,
    /// It has had its final response or failure.
    Ended,
}

/// A CANCEL of ours for an attempt (§9.1).
#[derive(Debug)]
pub enum Cancel {
    /// Not asked for.
    No,
    /// To be sent with the first provisional.
    Pending,
    /// Sent; its own client transaction.
    Sent(Box<ClientNonInvite>),
    /// Sent and answered, or given up.
    Done,
}

/// One attempt: a new branch, a full client transaction (RFC 3263 §4.3).
#[derive(Debug)]
pub struct Attempt {
    /// The client transaction.
    pub client: Client,
    /// Where it went.
    pub hop: Hop,
    /// Random part of its branch.
    pub branch: u64,
    /// Loop hash in its branch.
    pub loop_hash: u32,
    /// Its standing.
    pub stage: Stage,
    /// A response of any kind has come.
    pub answered: bool,
    /// A provisional above 100 has come: no failover any more.
    pub ringing: bool,
    /// Our CANCEL for it.
    pub cancel: Cancel,
    /// The connection that it was given to.
    pub conn: Option<ConnId>,
    /// That connection had been open before.
    pub reused: bool,
    /// It is the second try on a new connection after a pooled one was found dead (rule 10).
    pub retried: bool,
    /// It has said nothing for `try_timeout`.
    pub overdue: bool,
    /// Timers that are armed only if it has not answered when the request is first repeated: most
    /// have by then.
    pub later: Option<Later>,
    /// The leg of the plan that it is made for.
    pub leg: u8,
    /// Its number in the decision record.
    pub record: u8,
    /// Whose instance it is.
    pub to: Party,
}

/// Timers put off; see [`Attempt::later`]. Their times stay what they are.
#[derive(Clone, Copy, Debug)]
pub struct Later {
    /// When the request was sent.
    pub began: Instant,
    /// B or F, and how long after that.
    pub end: (Timer, Duration),
    /// How long after that the next candidate is tried.
    pub next: Option<Duration>,
}

impl Attempt {
    /// True if this is the branch that was written for it, to the last octet.
    pub fn is_branch(&self, parts: &BranchParts) -> bool {
        self.branch == parts.random && self.loop_hash == parts.loop_hash
    }

    /// The instance.
    pub fn instance(&self) -> Instance {
        Instance { transport: self.hop.transport, addr: self.hop.remote }
    }
}

/// What the topmost Routes ask for (§16.4, §16.6 steps 2 and 6).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Routing {
    /// Own Route values on top, removed when forwarding.
    pub own_routes: u32,
    /// The last Route value is taken off and becomes the Request-URI (a strict router sent this).
    pub last_is_uri: bool,
    /// The next hop is a strict router: its URI becomes the Request-URI, the old one the last Route.
    pub next_is_strict: bool,
    /// Route values there are.
    pub routes: u32,
    /// Replacement of the Request-URI for all legs; `None`: as it is.
    pub uri: Option<Box<[u8]>>,
}

/// One party to be reached, and how.
#[derive(Clone, Debug)]
pub struct Leg {
    /// Whom.
    pub party: Party,
    /// What to locate; several are one tier of equal weights (rule 5).
    pub keys: SmallVec<[LocateKey; 1]>,
    /// The Request-URI for this leg alone (a `[[route]]` names the peer's domain).
    pub uri: Option<Box<[u8]>>,
    /// In a dialog over TLS: who its two sides proved to be when it was set up.
    pub names: Option<Box<LegNames>>,
}

/// See [`Leg::names`].
#[derive(Clone, Debug)]
pub struct LegNames {
    /// The servers of this leg.
    pub servers: Option<Box<str>>,
    /// The sender.
    pub sender: Option<Box<str>>,
}

impl Leg {
    /// Whom its TLS servers proved to be when the dialog was set up.
    pub fn tls_name(&self) -> Option<&str> {
        self.names.as_ref()?.servers.as_deref()
    }

    /// In a dialog: whom the sender proved to be when it was set up.
    pub fn sender_name(&self) -> Option<&str> {
        self.names.as_ref()?.sender.as_deref()
    }
}

/// The decision that came of a request (rules 3, 5, 8).
#[derive(Clone, Debug)]
pub struct Plan {
    /// What to do with Routes and Request-URI.
    pub routing: Routing,
    /// Parties, best first; never empty.
    pub legs: SmallVec<[Leg; 1]>,
    /// The listener that the last own Route named (rule 8).
    pub listener: Option<ListenerId>,
    /// Peer tag for the dialog token.
    pub rule: super::decision::Rule,
}

/// The best final response so far (§16.7 step 6).
#[derive(Debug)]
pub struct Best {
    /// Its status.
    pub status: u16,
    /// Its octets for upstream; `None`: made here (a 408).
    pub bytes: Option<Bytes>,
}

/// A request too large for UDP goes over a stream where the target offers one, and by UDP after all
/// if none of those can be reached (RFC 3261 §18.1.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pass {
    /// It is small: any transport.
    Any,
    /// It is large: streams first.
    Streams,
    /// It is large, and no stream would do.
    Datagrams,
}

/// What is needed until the final response has gone up; dropped then.
#[derive(Debug)]
pub struct Live {
    /// The request as it came.
    pub request: Bytes,
    /// Its index.
    pub index: Arc<Index>,
    /// Source address and port, for received and rport.
    pub source: SocketAddr,
    /// The decision.
    pub plan: Plan,
    /// Which leg is under way.
    pub leg: usize,
    /// Answers to the location of this leg, as they come.
    pub located: SmallVec<[Option<Arc<Located>>; 1]>,
    /// The order of candidates of this leg; `None`: not located yet.
    pub selection: Option<Selection>,
    /// Which transports this pass over the candidates may use.
    pub pass: Pass,
    /// The next candidate, looked at but not used yet.
    pub peeked: Option<Candidate>,
    /// An instance was passed over for a limit of its own.
    pub full: Option<Refusal>,
    /// Tries so far.
    pub tries: u32,
    /// Timer C: when it runs out; moved by provisionals.
    pub timer_c: Option<Instant>,
    /// It has been armed, for then or earlier.
    pub timer_c_armed: bool,
    /// For a request other than INVITE: how long after its receipt a 100 is due, while that timer is not armed.
    pub trying: Option<Duration>,
    /// The token in our Record-Route, for the call that comes of it.
    pub token: Option<KnownToken>,
    /// Best final so far.
    pub best: Option<Best>,
    /// How the last attempt failed on the way, for the words of a 500.
    pub failure: Option<SendFailure>,
    /// Hash of the topmost routing data (RFC 5393).
    pub loop_hash: u32,
    /// Seed of the weighted draw (rule 13).
    pub seed: u64,
    /// The record being written.
    pub record: Option<Box<Record>>,
}

impl Live {
    /// True while the servers of the current leg are being located.
    pub fn is_locating(&self) -> bool {
        self.selection.is_none() && self.located.iter().any(Option::is_none)
    }

    /// The request as it came, with its index.
    pub fn message(&self) -> Message<'_> {
        Message::new(&self.request, &self.index)
    }
}

/// A response context.
#[derive(Debug)]
pub struct Context {
    /// What it serves.
    pub kind: Kind,
    /// Method, for counters.
    pub method: Method,
    /// Key in the table of server transactions.
    pub key: Option<ServerKey>,
    /// The server transaction.
    pub server: Server,
    /// Where responses go.
    pub reply: ReplyPath,
    /// Who sent the request.
    pub party: Party,
    /// When it came.
    pub started: Instant,
    /// Hash of the topmost Via as it came: what must be left on top of a response after ours is off.
    pub via_hash: u64,
    /// The call it counts for.
    pub call: Option<u64>,
    /// A CANCEL has come.
    pub cancelled: bool,
    /// A final response has gone up.
    pub answered: bool,
    /// Attempts, in order.
    pub attempts: SmallVec<[Attempt; 1]>,
    /// What goes with the final response.
    pub live: Option<Box<Live>>,
    /// For a probe: whose.
    pub probe: Option<PeerId>,
    /// Streams: the last response, for a moment, in case that its way fails.
    pub last: Option<Bytes>,
    /// Number of the way that responses go now, as their tokens carry it.
    pub way: u8,
    /// Ways tried besides the first.
    pub ways_tried: u8,
    /// Sent-by of the request, once its servers have been asked for.
    pub sent_by: Option<(Host, Option<u16>)>,
    /// Those of its servers that are still to be tried, the next one last.
    pub servers: Option<SmallVec<[Hop; 1]>>,
    /// Kept until then, whatever its transactions do: a way may turn out to have failed.
    pub held_until: Option<Instant>,
}

impl Context {
    /// True while the upstream side waits for a final response.
    pub fn owes_final(&self) -> bool {
        !self.answered && !matches!(self.server, Server::Gone)
    }

    /// True once nothing of it is needed any more.
    pub fn is_over(&self) -> bool {
        let waiting = self.live.is_some() && matches!(self.kind, Kind::Ack | Kind::Probe);
        matches!(self.server, Server::Gone)
            && !waiting
            && self.held_until.is_none()
            && self
                .attempts
                .iter()
                .all(|a| matches!(a.client, Client::Gone) && !matches!(a.cancel, Cancel::Sent(_)))
    }
}
