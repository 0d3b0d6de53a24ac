//! Requests as they come in: who sent them, which transaction they belong to, what becomes of new ones.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use smallvec::SmallVec;

use crate::flow::Origin;
use crate::peering::{Party, Refusal};
use crate::proxy::decision::Rule;
use crate::proxy::{
    Cancel, Client, Context, Decision, Kind, KnownToken, Live, Pass, Plan, Reject, ReplyPath, Routing,
    Server, Stage, decide, validate,
};
use crate::transaction::key::is_rfc3261_branch;
use crate::transaction::{Delivery, ServerInvite, ServerKey, ServerKeyParts, ServerNonInvite};
use crate::wire::{HostRef, Index, Message, Method, Name, ViaRef};

use super::calls::expiry;
use super::record;
use super::{Core, Event, Handle, Output, Shard};

impl Shard {
    pub(super) fn on_request(
        &mut self,
        now: Instant,
        origin: &Origin,
        msg: &Message<'_>,
        index: &Arc<Index>,
    ) {
        let core = &mut self.core;
        let party = core.policy.party(origin);
        let method = msg.method();
        if let Some(n) =
            core.stats.requests.get_mut(party.side() as usize).and_then(|s| s.get_mut(method as usize))
        {
            *n += 1;
        }
        let Some(via) = msg.top_via() else { return core.unanswerable(origin, party, msg) };
        let reply = reply_path(origin, &via);
        if party == Party::Stranger {
            return core.stranger(origin, &reply, msg);
        }
        let key = core.server_key(msg, &via);
        if method == Method::Ack {
            return self.on_ack(now, origin, msg, &via, party, key, reply, index);
        }
        if let Some(handle) = self.by_key.get(&key).copied() {
            return self.on_retransmission(now, handle, reply);
        }
        if core.governor.is_shedding() && core.shed(now, origin, msg, party, key, &reply) {
            return;
        }
        match method {
            Method::Cancel => self.on_cancel(now, origin, msg, &via, party, key, reply, index),
            _ => self.on_new_request(now, origin, msg, &via, party, key, reply, index),
        }
    }

    fn on_retransmission(&mut self, now: Instant, handle: Handle, reply: ReplyPath) {
        let Some(mut context) = self.slots.take(handle) else { return };
        self.core.stats.retransmissions_in += 1;
        // It may have come over a new connection: the answer goes where the sender is now (RFC 3261 §17.2.4).
        context.reply = reply;
        context.way = (context.way + 1) & 7;
        match &mut context.server {
            Server::Invite(m) => m.on_retransmission(&mut self.core.fx),
            Server::NonInvite(m) => m.on_retransmission(&mut self.core.fx),
            Server::Gone => {
                if let Some(last) = context.last.clone() {
                    self.core.send_upstream(now, handle, &mut context, last);
                }
            }
        }
        self.core.apply_server(now, handle, &mut context);
        self.settle(handle, context);
    }

    #[allow(clippy::too_many_arguments)]
    fn on_ack(
        &mut self,
        now: Instant,
        origin: &Origin,
        msg: &Message<'_>,
        via: &ViaRef<'_>,
        party: Party,
        key: ServerKey,
        reply: ReplyPath,
        index: &Arc<Index>,
    ) {
        if msg.index.fault().is_some() {
            return self.core.stats.drop("bad_ack");
        }
        if let Some(handle) = self.by_key.get(&key).copied()
            && let Some(mut context) = self.slots.take(handle)
        {
            if let Server::Invite(m) = &mut context.server {
                m.on_ack(&mut self.core.fx);
            }
            let delivery = self.core.apply_server(now, handle, &mut context);
            self.settle(handle, context);
            // An ACK with the INVITE's own branch after a 2xx is wrong (§17.1.1.3) but seen: it goes on like any.
            if delivery != Some(Delivery::Ack) {
                return;
            }
        }
        self.forward_ack(now, origin, msg, via, party, reply, index);
    }

    /// RFC 3261 §9.2 and §16.10.
    #[allow(clippy::too_many_arguments)]
    fn on_cancel(
        &mut self,
        now: Instant,
        origin: &Origin,
        msg: &Message<'_>,
        via: &ViaRef<'_>,
        party: Party,
        key: ServerKey,
        reply: ReplyPath,
        index: &Arc<Index>,
    ) {
        let cap = self.core.cap(self.shards);
        let Some(handle) = self.slots.reserve(cap) else {
            self.core.stats.table_full += 1;
            return self.core.respond_stateless(&reply, origin.remote, msg, &full());
        };
        let invite = ServerKey::of_cancelled_invite(&self.core.keys, &key_parts(msg, via));
        let target = self.by_key.get(&invite).copied();
        let plan = empty_plan();
        let mut context =
            self.core.context(now, origin, msg, via, party, Some(key), reply, Kind::Cancel, 0, plan, index);
        self.by_key.insert(key, handle);
        self.core.open += 1;
        let fault = msg.index.fault().map(|f| Reject::new(f.status, f.reason, f.label));
        let answer = match (&fault, target) {
            (Some(fault), _) => fault.clone(),
            (None, Some(_)) => Reject::new(200, "OK", "cancel"),
            (None, None) => Reject::new(481, "Call/Transaction Does Not Exist", "cancel_unmatched"),
        };
        self.core.reject(now, handle, &mut context, msg, &answer);
        self.settle(handle, context);
        if let (None, Some(target)) = (fault, target)
            && let Some(mut context) = self.slots.take(target)
        {
            self.core.cancel(now, target, &mut context);
            self.settle(target, context);
        }
    }

    #[allow(clippy::too_many_arguments)]
    fn on_new_request(
        &mut self,
        now: Instant,
        origin: &Origin,
        msg: &Message<'_>,
        via: &ViaRef<'_>,
        party: Party,
        key: ServerKey,
        reply: ReplyPath,
        index: &Arc<Index>,
    ) {
        if let Some(fault) = msg.index.fault() {
            // No state for what cannot be read: the same octets get the same answer, and a mended
            // request with the same branch is a new one.
            let reject = Reject::new(fault.status, fault.reason, fault.label);
            self.core.rejected(origin, msg, &reject);
            return self.core.respond_stateless(&reply, origin.remote, msg, &reject);
        }
        let cap = self.core.cap(self.shards);
        let Some(handle) = self.slots.reserve(cap) else {
            self.core.stats.table_full += 1;
            return self.core.respond_stateless(&reply, origin.remote, msg, &full());
        };
        let kind = if msg.method() == Method::Invite { Kind::Invite } else { Kind::NonInvite };
        let loop_hash = self.core.loop_hash(msg);
        let checked = validate(msg, loop_hash, |v| self.core.is_our_via(v));
        let (dialog, token) = self.core.dialog(msg).unzip();
        let decision = match checked {
            Ok(()) => decide(&self.core.policy, party, msg, token.flatten().as_ref()),
            Err(reject) => Decision::Refuse(reject),
        };
        let draining = self.core.draining && msg.to_tag().is_none();
        let (plan, outcome) = match decision {
            Decision::Refuse(reject) => (empty_plan(), Some(reject)),
            _ if draining => (empty_plan(), Some(self.core.busy("draining"))),
            Decision::Answer => (empty_plan(), Some(Reject::new(200, "OK", "options"))),
            Decision::Forward(plan) => (plan, None),
        };
        let mut context =
            self.core.context(now, origin, msg, via, party, Some(key), reply, kind, loop_hash, plan, index);
        self.by_key.insert(key, handle);
        self.core.open += 1;
        match outcome {
            Some(reject) => self.core.reject(now, handle, &mut context, msg, &reject),
            None => self.core.admit(now, handle, &mut context, msg, dialog),
        }
        self.settle(handle, context);
    }
}

impl Core {
    /// Nobody we know: silence on UDP, 403 on streams (rule 1).
    fn stranger(&mut self, origin: &Origin, reply: &ReplyPath, msg: &Message<'_>) {
        self.stats.drop("stranger");
        if origin.transport.is_reliable() && msg.method() != Method::Ack {
            self.respond_stateless(reply, origin.remote, msg, &Reject::new(403, "Forbidden", "stranger"));
        }
    }

    /// Tells of a request refused before it got a transaction.
    fn rejected(&mut self, origin: &Origin, msg: &Message<'_>, reject: &Reject) {
        self.outputs.push_back(Output::Event(Event::Rejected {
            call_id: Bytes::copy_from_slice(msg.call_id()),
            remote: origin.remote,
            transport: origin.transport,
            listener: origin.listener,
            status: reject.status,
            reason: reject.label,
        }));
    }

    /// No Via that could be read: what can be told of the fault goes back to where it came from.
    fn unanswerable(&mut self, origin: &Origin, party: Party, msg: &Message<'_>) {
        let fault = msg.index.fault();
        if let Some(fault) = fault
            && party != Party::Stranger
            && msg.method() != Method::Ack
            && msg.header(Name::Via).is_some()
        {
            let reply = ReplyPath {
                transport: origin.transport,
                listener: origin.listener,
                to: origin.remote,
                conn: origin.conn,
                fallback: origin.remote,
                identity: None,
                detour: None,
            };
            let reject = Reject::new(fault.status, fault.reason, fault.label);
            return self.respond_stateless(&reply, origin.remote, msg, &reject);
        }
        self.stats.drop("no_via");
    }

    /// 503 with a Retry-After spread at random, so that not all come back at once.
    pub(super) fn busy(&mut self, label: &'static str) -> Reject {
        let seconds = 2 + self.random() % 9;
        Reject::new(503, "Service Unavailable", label).with("Retry-After", seconds.to_string())
    }

    pub(super) fn cap(&self, shards: usize) -> usize {
        self.policy.config.limits.transactions.div_ceil(shards)
    }

    /// Which server transaction a request belongs to.
    fn server_key(&self, msg: &Message<'_>, via: &ViaRef<'_>) -> ServerKey {
        match via.branch().filter(|b| is_rfc3261_branch(b)) {
            Some(branch) => {
                let (host, port) = (sent_by_host(via), via.port().unwrap_or(0));
                ServerKey::of_branch(&self.keys, branch, host, port, msg.method_bytes())
            }
            None => ServerKey::of(&self.keys, &key_parts(msg, via)),
        }
    }

    /// What decides the routing of a request (RFC 3261 §16.6 step 8).
    pub(super) fn loop_hash(&self, msg: &Message<'_>) -> u32 {
        let cseq = msg.cseq().map_or(0, |(n, _)| n).to_be_bytes();
        let mut hash = self.loops.begin();
        hash.part(msg.uri());
        hash.part(msg.call_id());
        hash.part(msg.from_tag().unwrap_or_default());
        hash.part(msg.to_tag().unwrap_or_default());
        hash.part(&cseq);
        for name in [Name::Route, Name::ProxyRequire] {
            for field in msg.headers(name) {
                hash.part(field.value);
            }
        }
        hash.finish()
    }

    /// True if a Via was written by this element.
    pub(super) fn is_our_via(&self, via: &ViaRef<'_>) -> bool {
        self.policy
            .listeners
            .iter()
            .any(|l| via.port() == l.sent_by_port && via.host().eq_host(&l.sent_by_host))
    }

    #[allow(clippy::too_many_arguments)]
    pub(super) fn context(
        &mut self,
        now: Instant,
        origin: &Origin,
        msg: &Message<'_>,
        via: &ViaRef<'_>,
        party: Party,
        key: Option<ServerKey>,
        reply: ReplyPath,
        kind: Kind,
        loop_hash: u32,
        plan: Plan,
        index: &Arc<Index>,
    ) -> Box<Context> {
        let request = Bytes::copy_from_slice(msg.bytes);
        let config = &self.policy.config;
        let kept = config.limits.records > 0 || config.records.is_some();
        let record = (kept && matches!(kind, Kind::Invite | Kind::NonInvite) && plan.rule != Rule::RouteSet)
            .then(|| {
                let mut record = self.ring.begin(now);
                record::begin(&mut record, now, origin, msg, party, &plan);
                record
            });
        let server = match kind {
            Kind::Invite => Server::Invite(ServerInvite::new()),
            Kind::NonInvite if !plan.legs.is_empty() => Server::NonInvite(ServerNonInvite::new()),
            Kind::NonInvite | Kind::Cancel => Server::NonInvite(ServerNonInvite::new()),
            Kind::Ack | Kind::Probe => Server::Gone,
        };
        let seed = self.seed(msg.call_id());
        Box::new(Context {
            kind,
            method: msg.method(),
            key,
            server,
            reply,
            party,
            started: now,
            via_hash: self.via_hash(via),
            call: None,
            cancelled: false,
            answered: false,
            attempts: SmallVec::new(),
            live: Some(Box::new(Live {
                request,
                index: Arc::clone(index),
                source: origin.remote,
                plan,
                leg: 0,
                located: SmallVec::new(),
                selection: None,
                pass: Pass::Any,
                peeked: None,
                full: None,
                tries: 0,
                timer_c: None,
                timer_c_armed: false,
                trying: None,
                token: None,
                best: None,
                failure: None,
                loop_hash,
                seed,
                record,
            })),
            probe: None,
            last: None,
            way: 0,
            ways_tried: 0,
            sent_by: None,
            servers: None,
            held_until: None,
        })
    }

    /// What must be on top of a response once our Via is off: branch and sent-by as the sender wrote them.
    pub(super) fn via_hash(&self, via: &ViaRef<'_>) -> u64 {
        let port = via.port().unwrap_or(0);
        self.call_hash.hash_one((via.branch().unwrap_or_default(), sent_by_host(via), port))
    }

    /// Limits (rule 11), the 100, and on to the location.
    /// `dialog`: the call that the request belongs to.
    fn admit(
        &mut self,
        now: Instant,
        handle: Handle,
        context: &mut Context,
        msg: &Message<'_>,
        dialog: Option<u64>,
    ) {
        let new_call = context.kind == Kind::Invite && msg.to_tag().is_none();
        if new_call && let Err(reject) = self.charge(now, context, msg) {
            return self.reject(now, handle, context, msg, &reject);
        }
        if let Some(dialog) = dialog.filter(|_| !new_call) {
            self.within_call(now, context, msg, dialog);
        }
        match context.kind {
            Kind::Invite => self.trying(now, handle, context, msg),
            _ => {
                context.server = Server::NonInvite(ServerNonInvite::start(&self.policy.timers, &mut self.fx));
                self.apply_server(now, handle, context);
            }
        }
        self.locate(now, handle, context);
        self.arm_trying(now, handle, context);
    }

    /// Charges a new call to both sides' peers.
    fn charge(&mut self, now: Instant, context: &mut Context, msg: &Message<'_>) -> Result<(), Reject> {
        let key = self.dialog_key(msg.call_id(), msg.from_tag());
        let mut charged: SmallVec<[crate::flow::PeerId; 2]> = SmallVec::new();
        if let Some(peer) = context.party.peer() {
            self.charge_peer(now, peer).map_err(|refusal| self.busy(refusal.label()))?;
            charged.push(peer);
        }
        if let Some(live) = context.live.as_mut() {
            let mut full = None;
            loop {
                let Some(leg) = live.plan.legs.get(live.leg) else {
                    for peer in charged {
                        self.policy.ledger.release(peer);
                    }
                    let label = full.map_or("no_leg", Refusal::label);
                    return Err(Reject::new(480, "Temporarily Unavailable", label));
                };
                let Some(peer) = leg.party.peer() else { break };
                match self.charge_peer(now, peer) {
                    Ok(()) => {
                        charged.push(peer);
                        break;
                    }
                    Err(refusal) => {
                        full = Some(refusal);
                        live.leg += 1;
                    }
                }
            }
        }
        let expires = expiry(now, self.policy.config.calls_max_age, None);
        self.calls.begin(key, &charged, expires, &self.policy.ledger);
        self.keep_sweeping(now);
        context.call = Some(key);
        Ok(())
    }

    pub(super) fn charge_peer(&self, now: Instant, peer: crate::flow::PeerId) -> Result<(), Refusal> {
        let Some(entry) = self.policy.peer(peer) else { return Ok(()) };
        self.policy.ledger.charge(now, peer, entry.config.max_calls, entry.config.max_rate)
    }

    /// BYE ends the count with its final; a refreshed session lives on (RFC 4028).
    fn within_call(&mut self, now: Instant, context: &mut Context, msg: &Message<'_>, key: u64) {
        if context.method == Method::Bye {
            context.call = Some(key);
        } else if matches!(context.method, Method::Invite | Method::Update)
            && let Some(seconds) = msg.seconds(Name::SessionExpires)
        {
            let expires = expiry(now, self.policy.config.calls_max_age, Some(seconds));
            self.calls.refresh(key, expires);
        }
    }

    /// The call that a request with a To tag belongs to, and the token in our Record-Route of it.
    pub(super) fn dialog(&self, msg: &Message<'_>) -> Option<(u64, Option<KnownToken>)> {
        // From the caller or from the callee; both tags must fit, so that nobody ends the count of a call
        // that goes on.
        let (from, to) = (msg.from_tag(), Some(msg.to_tag()?));
        [(from, to), (to, from)].into_iter().find_map(|(caller, callee)| {
            let key = self.dialog_key(msg.call_id(), caller);
            self.calls.dialog(key, || self.tag_hash(callee)).map(|token| (key, token))
        })
    }

    /// A CANCEL for this context (§16.10).
    fn cancel(&mut self, now: Instant, handle: Handle, context: &mut Context) {
        if context.answered || context.cancelled || context.kind != Kind::Invite {
            return;
        }
        context.cancelled = true;
        if let Some(record) = context.live.as_mut().and_then(|l| l.record.as_mut()) {
            record.cancelled = true;
        }
        let waiting =
            context.attempts.iter().any(|a| a.stage == Stage::Live && !matches!(a.client, Client::Gone));
        if !waiting {
            // Nothing has been sent, or nothing that could still answer: the call ends here.
            let reject = Reject::new(487, "Request Terminated", "cancelled");
            return self.reject_kept(now, handle, context, &reject);
        }
        for i in 0..context.attempts.len() {
            if let Some(attempt) = context.attempts.get_mut(i)
                && attempt.stage != Stage::Ended
                && matches!(attempt.cancel, Cancel::No)
            {
                attempt.cancel = Cancel::Pending;
                self.cancel_attempt(now, handle, context, i);
            }
        }
    }

    /// The seed of the weighted draw (rule 13).
    pub(super) fn seed(&mut self, call_id: &[u8]) -> u64 {
        use crate::config::Sticky;
        match self.policy.config.dns.sticky {
            Sticky::Call => self.call_key(call_id),
            // Set once the target is known; see `attempts`.
            Sticky::Ttl => 0,
            Sticky::None => self.random(),
        }
    }
}

/// Where the response goes: RFC 3261 §18.2.2, RFC 3581 §4. A `maddr` is not followed: it would let a
/// sender have responses sent to others.
fn reply_path(origin: &Origin, via: &ViaRef<'_>) -> ReplyPath {
    let port = via.port().unwrap_or(origin.transport.default_port());
    let fallback = SocketAddr::new(origin.remote.ip(), port);
    let to = if origin.transport.is_reliable() || via.rport().is_some() { origin.remote } else { fallback };
    ReplyPath {
        transport: origin.transport,
        listener: origin.listener,
        to,
        conn: origin.conn,
        fallback,
        detour: None,
        identity: origin.identity.clone(),
    }
}

/// The host of a sent-by as octets: a name, or for an address what stands there.
pub(super) fn sent_by_host<'a>(via: &ViaRef<'a>) -> &'a [u8] {
    match via.host() {
        HostRef::Name(name) => name,
        HostRef::Addr(_) => via.sent_by(),
    }
}

pub(super) fn key_parts<'a>(msg: &Message<'a>, via: &ViaRef<'a>) -> ServerKeyParts<'a> {
    let branch = via.branch();
    let (sent_by_host, sent_by_port) = (sent_by_host(via), via.port().unwrap_or(0));
    let method = msg.method_bytes();
    ServerKeyParts {
        branch,
        sent_by_host,
        sent_by_port,
        method,
        request_uri: msg.uri(),
        to_tag: msg.to_tag(),
        from_tag: msg.from_tag(),
        call_id: msg.call_id(),
        cseq: msg.cseq().map_or(0, |(n, _)| n),
        top_via: via.value(),
    }
}

fn full() -> Reject {
    Reject::new(503, "Service Unavailable", "table_full").with("Retry-After", "5")
}

fn empty_plan() -> Plan {
    Plan { routing: Routing::default(), legs: SmallVec::new(), listener: None, rule: Rule::Refused }
}
