//! From a decision to an attempt at a server, and from a failed attempt to the next (RFC 3263 §4.3).

use std::mem;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use smallvec::smallvec;

use crate::config::Sticky;
use crate::flow::{ConnId, Hop, Host, PeerId, SendFailure, Transport};
use crate::location::{
    Candidate, Instance, LeftOutReason, Located, Observation, PickReason, Selection, Standing,
};
use crate::peering::Party;
use crate::proxy::decision::{AttemptRecord, Rule};
use crate::proxy::{
    Attempt, Best, Cancel, Client, Context, Forward, Kind, Live, Pass, Reject, Stage, dialog_names,
    dialog_peer, expectation, forward, realm_of,
};
use crate::transaction::{Action, Branch, ClientInvite, ClientNonInvite, Delivery, Timer};
use crate::wire::{Framing, Index, Message, build};

use super::{Core, Event, Handle, Output, Send, SendToken, Shard, Ticket, TimerKey, Who};

/// Requests larger than this go over a stream where the target offers one (RFC 3261 §18.1.1).
const UDP_LIMIT: usize = 1300;
/// What the forwarded request is longer by, at most about: Via, Record-Route.
const GROWTH: usize = 300;
/// Most attempts that a branch token can number.
const MAX_ATTEMPTS: usize = 200;

impl Shard {
    pub(super) fn on_located(&mut self, now: Instant, ticket: Ticket, result: Arc<Located>) {
        let (slot, generation, index) = SendToken(ticket.0).parts();
        let Some((handle, mut context)) = self.slots.take_short(slot, generation) else { return };
        if index == SendToken::SERVER {
            self.core.way_located(now, handle, &mut context, result);
        } else {
            self.core.located(now, handle, &mut context, usize::from(index), result);
        }
        self.settle(handle, context);
    }

    pub(super) fn on_sent(&mut self, token: SendToken, conn: ConnId, reused: bool) {
        let (slot, generation, who) = token.parts();
        let Some((handle, mut context)) = self.slots.take_short(slot, generation) else { return };
        if let Some(attempt) = context.attempts.get_mut(usize::from(who)) {
            attempt.conn = Some(conn);
            attempt.reused = reused;
        }
        self.settle(handle, context);
    }

    pub(super) fn on_send_failed(&mut self, now: Instant, token: SendToken, failure: SendFailure) {
        let (slot, generation, who) = token.parts();
        let Some((handle, mut context)) = self.slots.take_short(slot, generation) else { return };
        if let Some(way) = SendToken::SERVER.checked_sub(who).filter(|way| *way < 8) {
            self.core.response_failed(now, handle, &mut context, way, failure);
        } else {
            self.core.send_failed(now, handle, &mut context, usize::from(who), failure);
        }
        self.settle(handle, context);
    }

    /// An ICMP error: it belongs to the attempt or the server transaction whose branch stands in the datagram
    /// it quotes, and to nobody if that is none of ours (RFC 3261 §18.4).
    pub(super) fn on_undeliverable(&mut self, now: Instant, to: SocketAddr, payload: &[u8]) {
        if payload.starts_with(b"SIP/2.0") {
            return self.response_undeliverable(now, to, payload);
        }
        let Some((handle, mut context, at)) = self.attempt_of_request(payload) else {
            return self.core.stats.drop("icmp");
        };
        if context.attempts.get(at).is_some_and(|a| a.hop.remote == to) {
            self.core.send_failed(now, handle, &mut context, at, SendFailure::Icmp);
        }
        self.settle(handle, context);
    }

    pub(super) fn on_connection_closed(&mut self, now: Instant, conn: ConnId) {
        let handles: Vec<Handle> = self.slots.handles().collect();
        for handle in handles {
            let Some(mut context) = self.slots.take(handle) else { continue };
            for i in 0..context.attempts.len() {
                let Some(attempt) = context.attempts.get_mut(i) else { continue };
                if attempt.conn != Some(conn) {
                    continue;
                }
                attempt.conn = None;
                // After a ringing indication the answer may still come: the server opens a connection
                // of its own to our sent-by (RFC 3261 §18.2.2), and timer C guards the wait.
                if !attempt.ringing
                    && !matches!(attempt.client, Client::Gone)
                    && attempt.stage != Stage::Ended
                {
                    let failure = SendFailure::Closed { reused: attempt.reused };
                    self.core.send_failed(now, handle, &mut context, i, failure);
                }
            }
            self.settle(handle, context);
        }
    }

    /// The attempt that sent this datagram, by the branch of its topmost Via.
    fn attempt_of_request(&mut self, payload: &[u8]) -> Option<(Handle, Box<Context>, usize)> {
        let branch = first_branch(payload)?;
        let parts = Branch::parse(branch)?;
        if parts.shard != self.core.id {
            return None;
        }
        let handle = Handle { slot: parts.slot, generation: parts.generation };
        let context = self.slots.take(handle)?;
        match context.attempts.iter().position(|a| a.is_branch(&parts)) {
            Some(at) => Some((handle, context, at)),
            None => {
                self.slots.put(handle, context);
                None
            }
        }
    }
}

/// The branch of the first Via of a request that may be cut off anywhere; `None` for a response.
fn first_branch(payload: &[u8]) -> Option<&[u8]> {
    if payload.starts_with(b"SIP/2.0") {
        return None;
    }
    // We write our Via right behind the request line, the branch as its last parameter.
    let at = memchr::memmem::find(payload, b";branch=")? + 8;
    let rest = payload.get(at..)?;
    let end = memchr::memchr2(b'\r', b';', rest).unwrap_or(rest.len());
    rest.get(..end)
}

impl Core {
    /// Asks for the servers of the current leg.
    pub(super) fn locate(&mut self, now: Instant, handle: Handle, context: &mut Context) {
        let Some(live) = context.live.as_mut() else { return };
        let Some(leg) = live.plan.legs.get(live.leg) else { return };
        let keys = leg.keys.clone();
        live.located = smallvec![None; keys.len()];
        live.selection = None;
        if let Some(record) = live.record.as_mut().and_then(|r| r.legs.get_mut(live.leg)) {
            record.asked = Some(now);
        }
        let mut answers = Vec::new();
        for (i, key) in keys.iter().enumerate() {
            match Located::literal(key, self.policy.enabled(key.realm), now) {
                Some(found) => answers.push((i, Arc::new(found))),
                None => {
                    let index = u8::try_from(i).unwrap_or(u8::MAX);
                    let ticket = Ticket(self.token(handle, index).0);
                    self.outputs.push_back(Output::Locate { ticket, key: Arc::clone(key) });
                }
            }
        }
        for (i, found) in answers {
            self.located(now, handle, context, i, found);
        }
    }

    fn located(
        &mut self,
        now: Instant,
        handle: Handle,
        context: &mut Context,
        index: usize,
        result: Arc<Located>,
    ) {
        if context.answered {
            return;
        }
        let policy = Arc::clone(&self.policy);
        let Some(live) = context.live.as_mut() else { return };
        if live.selection.is_some() {
            return;
        }
        match live.located.get_mut(index) {
            Some(place @ None) => *place = Some(result),
            _ => return,
        }
        let answers: Option<Vec<Arc<Located>>> = live.located.iter().cloned().collect();
        let Some(answers) = answers else { return };
        let merged = match answers.as_slice() {
            [only] => Arc::clone(only),
            several => match Located::merge(several) {
                Some(merged) => Arc::new(merged),
                None => return,
            },
        };
        if let Some(record) = live.record.as_mut().and_then(|r| r.legs.get_mut(live.leg)) {
            record.located = Some(Arc::clone(&merged));
            record.answered = Some(now);
        }
        if live.plan.rule != Rule::RouteSet
            && let Some(leg) = live.plan.legs.get(live.leg)
        {
            self.stats.locate(now, leg.party.peer(), &merged);
        }
        if policy.config.dns.sticky == Sticky::Ttl {
            live.seed = self.call_hash.hash_one((&merged.key.host, merged.key.port));
        }
        let has_stream = merged.tiers.iter().flat_map(|t| &t.servers).any(|s| s.transport != Transport::Udp);
        let large = live.request.len() + GROWTH > UDP_LIMIT;
        live.pass = if large && has_stream { Pass::Streams } else { Pass::Any };
        live.selection = Some(Selection::new(merged, live.seed, policy.config.dns.srv_selection));
        // The last server of the party before was silent when this was asked for; it may have spoken since.
        let kept = context
            .attempts
            .iter()
            .any(|a| a.stage == Stage::Live && a.answered && !matches!(a.client, Client::Gone));
        if !kept {
            self.next(now, handle, context);
        }
    }

    /// The next candidate of this leg without using it up.
    fn peek(&mut self, now: Instant, live: &mut Live) -> Option<Candidate> {
        if live.peeked.is_some() || live.tries >= self.policy.config.sip.max_tries {
            return live.peeked;
        }
        let policy = Arc::clone(&self.policy);
        loop {
            let pass = live.pass;
            let selection = live.selection.as_mut()?;
            live.peeked = selection.next(now, &mut self.health, None, &|instance: &Instance| {
                if policy.domains.is_own_socket(instance.addr) {
                    return Some(LeftOutReason::OwnListener);
                }
                let datagram = instance.transport == Transport::Udp;
                let passed_over = match pass {
                    Pass::Any => false,
                    Pass::Streams => datagram,
                    Pass::Datagrams => !datagram,
                };
                passed_over.then_some(LeftOutReason::TransportNotEnabled)
            });
            if live.peeked.is_some() || pass != Pass::Streams {
                return live.peeked;
            }
            live.pass = Pass::Datagrams;
            let located = Arc::clone(selection.located());
            *selection = Selection::new(located, live.seed, policy.config.dns.srv_selection);
        }
    }

    /// Tries the next candidate, or the next leg, or ends the call.
    pub(super) fn next(&mut self, now: Instant, handle: Handle, context: &mut Context) {
        loop {
            let Some(live) = context.live.as_mut() else { return };
            if live.selection.is_none() && live.located.iter().any(Option::is_none) {
                // The next party is being located; it goes on from there.
                return;
            }
            let candidate = if context.cancelled { None } else { self.peek(now, live) };
            if let Some(candidate) = candidate {
                live.peeked = None;
                live.tries += 1;
                if candidate.standing == Standing::Trial {
                    let event = Event::Health(candidate.instance, Observation::TrialBegun);
                    self.outputs.push_back(Output::Event(event));
                }
                self.abandon_silent(now, context);
                if self.attempt(now, handle, context, candidate) {
                    return;
                }
                continue;
            }
            if !context.cancelled && self.next_leg(now, handle, context) {
                return;
            }
            // Abandoned attempts count as 408 at once: nobody waits for them (rule 10).
            return self.conclude(now, handle, context);
        }
    }

    /// Turns to the next party of the plan. False if there is none.
    fn next_leg(&mut self, now: Instant, handle: Handle, context: &mut Context) -> bool {
        loop {
            let Some(live) = context.live.as_mut() else { return false };
            let before = live.plan.legs.get(live.leg).and_then(|l| l.party.peer());
            let Some(leg) = live.plan.legs.get(live.leg + 1) else { return false };
            if live.tries >= self.policy.config.sip.max_tries {
                return false;
            }
            let peer = leg.party.peer();
            live.leg += 1;
            if let Some(key) = context.call
                && context.kind == Kind::Invite
            {
                if let Some(peer) = peer
                    && self.charge_peer(now, peer).is_err()
                {
                    continue;
                }
                self.calls.move_to(key, before, peer, &self.policy.ledger);
            }
            self.locate(now, handle, context);
            return true;
        }
    }

    /// Makes one attempt. False if this candidate cannot be used after all.
    fn attempt(&mut self, now: Instant, handle: Handle, context: &mut Context, candidate: Candidate) -> bool {
        let Some(hop) = self.hop(context, &candidate) else { return false };
        self.send_attempt(now, handle, context, hop, Some(candidate))
    }

    /// The hop for a candidate: which listener it leaves from (rules 6 and 8), whom TLS must prove.
    fn hop(&self, context: &Context, candidate: &Candidate) -> Option<Hop> {
        let live = context.live.as_ref()?;
        let leg = live.plan.legs.get(live.leg)?;
        let Instance { transport, addr } = candidate.instance;
        let named = live
            .plan
            .listener
            .and_then(|id| self.policy.listener(id))
            .filter(|l| l.transport == transport && l.bind.is_ipv4() == addr.is_ipv4());
        let listener = named.or_else(|| self.policy.egress(realm_of(leg.party), transport, addr.ip()))?;
        let tls = (transport == Transport::Tls).then(|| {
            let host = live.selection.as_ref().and_then(|s| {
                let located = s.located();
                let tier = located.tiers.get(usize::from(candidate.tier))?;
                Some(located.hop_of(tier.servers.get(usize::from(candidate.server))?).clone())
            });
            let host = host.unwrap_or(Host::Addr(addr.ip()));
            expectation(&self.policy, leg.party, &host, leg.tls_name.as_deref())
        });
        Some(Hop { transport, listener: listener.id, remote: addr, conn: None, fresh: false, tls })
    }

    /// Builds the request for a hop with a new branch, and starts a client transaction for it.
    fn send_attempt(
        &mut self,
        now: Instant,
        handle: Handle,
        context: &mut Context,
        hop: Hop,
        candidate: Option<Candidate>,
    ) -> bool {
        if context.attempts.len() >= MAX_ATTEMPTS {
            return false;
        }
        let policy = Arc::clone(&self.policy);
        let random = self.random();
        let Some(live) = context.live.as_mut() else { return false };
        let Some(leg) = live.plan.legs.get(live.leg) else { return false };
        let to = leg.party;
        let (Some(out), Some(inn)) = (policy.listener(hop.listener), policy.listener(context.reply.listener))
        else {
            return false;
        };
        let Ok(index) = Index::parse(&live.request, &policy.limits, Framing::Datagram) else { return false };
        let msg = Message::new(&live.request, &index);
        let branch = Branch::mint(self.id, handle.slot, handle.generation, random, live.loop_hash);
        let strip = match context.party {
            Party::Core => policy.config.core.strip_headers.as_slice(),
            Party::Peer(p) => policy.peer(p).map_or(&[][..], |p| p.config.strip_headers.as_slice()),
            _ => &[],
        };
        let identity = context.reply.identity.as_deref();
        let names = dialog_names(&policy, context.party, identity, leg, hop.tls.as_ref());
        let bytes: Bytes = forward(
            &msg,
            &Forward {
                out,
                inn,
                source: live.source,
                routing: &live.plan.routing,
                uri: leg.uri.as_deref(),
                branch: &branch,
                secret: &policy.dialog_secret,
                peer_tag: dialog_peer(&policy, context.party, to),
                names,
                strip,
            },
        )
        .into();
        let timers = policy.timers_to(to);
        let reliable = hop.transport.is_reliable();
        let client = match context.kind {
            Kind::Invite => Client::Invite(ClientInvite::start(bytes, reliable, &timers, &mut self.fx)),
            Kind::NonInvite => {
                let left = timers.timeout().saturating_sub(now.saturating_duration_since(context.started));
                Client::NonInvite(ClientNonInvite::start(bytes, reliable, &timers, left, &mut self.fx))
            }
            Kind::Ack | Kind::Cancel | Kind::Probe => {
                // An ACK is sent and forgotten.
                self.outputs.push_back(Output::Send(Send { hop, bytes, token: None, request: false }));
                context.live = None;
                return true;
            }
        };
        let live_loop_hash = live.loop_hash;
        let number = context.attempts.len();
        let retried = candidate.is_none();
        let record = live.record.as_mut().map_or(0, |record| {
            let instance = Instance { transport: hop.transport, addr: hop.remote };
            record.attempts.push(AttemptRecord {
                instance,
                place: candidate
                    .map_or((0, 0, 0), |c| (u8::try_from(live.leg).unwrap_or(u8::MAX), c.tier, c.server)),
                standing: candidate.map_or(Standing::Up, |c| c.standing),
                reason: candidate.map_or(PickReason::OnlyServer, |c| c.reason),
                branch: random,
                started: now,
                first_response: None,
                ended: None,
                outcome: "pending",
                status: 0,
            });
            u8::try_from(record.attempts.len() - 1).unwrap_or(u8::MAX)
        });
        if number == 0 && context.kind == Kind::Invite {
            self.stats.setup.add(now.saturating_duration_since(context.started));
        }
        context.attempts.push(Attempt {
            client,
            hop,
            branch: random,
            loop_hash: live_loop_hash,
            stage: Stage::Live,
            answered: false,
            ringing: false,
            cancel: Cancel::No,
            conn: None,
            reused: false,
            retried,
            record,
            to,
        });
        self.apply_attempt(now, handle, context, number, None);
        let who = Who::Attempt(u8::try_from(number).unwrap_or(u8::MAX));
        let key = TimerKey { handle, who, timer: Timer::Try };
        self.timers.arm(now, policy.try_timeout_to(to), key);
        if context.kind == Kind::Invite {
            self.push_timer_c(now, handle, context);
        }
        true
    }

    /// Timer C runs from the INVITE, and anew from each provisional above 100 (§16.6 step 11, §16.7 step 2).
    pub(super) fn push_timer_c(&mut self, now: Instant, handle: Handle, context: &mut Context) {
        let after = self.policy.config.sip.timer_c;
        let Some(live) = context.live.as_mut() else { return };
        let first = live.timer_c.is_none();
        live.timer_c = Some(now + after);
        if first {
            self.arm_context(now, handle, Timer::C, after);
        }
    }

    /// Carries out what an attempt's client transaction wants done. `response`: the one just received.
    pub(super) fn apply_attempt(
        &mut self,
        now: Instant,
        handle: Handle,
        context: &mut Context,
        at: usize,
        response: Option<&Message<'_>>,
    ) -> Option<Delivery> {
        let who = u8::try_from(at).unwrap_or(u8::MAX);
        let token = self.token(handle, who);
        let mut delivery = None;
        for action in mem::take(&mut self.fx.actions) {
            let Some(attempt) = context.attempts.get_mut(at) else { break };
            match action {
                Action::Send(bytes) => {
                    let hop = Hop { conn: attempt.conn, ..attempt.hop.clone() };
                    self.outputs.push_back(Output::Send(Send {
                        hop,
                        bytes,
                        token: Some(token),
                        request: true,
                    }));
                }
                Action::Arm(timer, after) => {
                    self.timers.arm(now, after, TimerKey { handle, who: Who::Attempt(who), timer });
                }
                Action::Deliver(what) => delivery = Some(what),
                Action::Done => attempt.client = Client::Gone,
                Action::MakeAck => {
                    let Some(response) = response else { continue };
                    self.acknowledge(attempt, response);
                }
                Action::MakeTrying => {}
            }
        }
        delivery
    }

    /// The ACK for a non-2xx final: to the same instance, by the same branch (§17.1.1.3).
    fn acknowledge(&mut self, attempt: &mut Attempt, response: &Message<'_>) {
        let Client::Invite(machine) = &mut attempt.client else { return };
        let Some(request) = machine.request().cloned() else { return };
        let Ok(index) = Index::parse(&request, &self.policy.limits, Framing::Datagram) else { return };
        let ack: Bytes = build::ack(Message::new(&request, &index), *response).into();
        let hop = Hop { conn: attempt.conn, ..attempt.hop.clone() };
        self.outputs.push_back(Output::Send(Send { hop, bytes: ack.clone(), token: None, request: false }));
        machine.store_ack(ack);
    }

    /// An attempt could not be sent, or its connection has ended.
    pub(super) fn send_failed(
        &mut self,
        now: Instant,
        handle: Handle,
        context: &mut Context,
        at: usize,
        failure: SendFailure,
    ) {
        let Some(attempt) = context.attempts.get_mut(at) else { return };
        if attempt.ringing && attempt.stage != Stage::Ended && context.kind == Kind::Invite {
            // It is our CANCEL that got lost. The call has rung there and goes nowhere else; whether an answer
            // comes, timer C or the wait for the end of the CANCEL will show.
            let (instance, to) = (attempt.instance(), attempt.to);
            return self.observe(now, to.peer(), instance, Observation::Unreachable(failure));
        }
        match &mut attempt.client {
            Client::Invite(m) => m.on_transport_error(&mut self.fx),
            Client::NonInvite(m) => m.on_transport_error(&mut self.fx),
            Client::Gone => return,
        }
        let delivery = self.apply_attempt(now, handle, context, at, None);
        if delivery != Some(Delivery::TransportError) {
            return;
        }
        let Some(attempt) = context.attempts.get_mut(at) else { return };
        if attempt.stage == Stage::Ended {
            return;
        }
        let was_live = attempt.stage == Stage::Live;
        let stale =
            matches!(failure, SendFailure::Closed { reused: true }) && !attempt.answered && !attempt.retried;
        let (instance, hop, to) = (attempt.instance(), attempt.hop.clone(), attempt.to);
        attempt.stage = Stage::Ended;
        if context.probe.is_some() {
            return self.probe_ended(now, context, instance, false);
        }
        if was_live && stale && !context.cancelled {
            // A pooled connection found dead is no failure of the instance: once more, on a new one (rule 10).
            self.attempt_ended(now, context, at, "stale_connection", 0);
            let hop = Hop { fresh: true, conn: None, ..hop };
            if self.send_attempt(now, handle, context, hop, None) {
                return;
            }
        }
        self.attempt_ended(now, context, at, failure.label(), 0);
        self.observe(now, to.peer(), instance, Observation::Unreachable(failure));
        if !was_live {
            return;
        }
        if let Some(live) = context.live.as_mut() {
            live.failure = Some(failure);
            // RFC 3261 §16.9: as if a 503 had come.
            keep_best(live, context.kind, 503, None);
        }
        self.failed_over(context, to.peer(), instance, failure.label());
        self.next(now, handle, context);
    }

    /// No response at all within `try_timeout`.
    pub(super) fn on_try_timeout(&mut self, now: Instant, handle: Handle, context: &mut Context, at: usize) {
        let Some(attempt) = context.attempts.get(at) else { return };
        if attempt.stage != Stage::Live || attempt.answered || matches!(attempt.client, Client::Gone) {
            return;
        }
        let (instance, to) = (attempt.instance(), attempt.to);
        let invite = context.kind == Kind::Invite;
        self.observe(now, to.peer(), instance, Observation::Silence { invite });
        if context.cancelled {
            return;
        }
        let Some(live) = context.live.as_mut() else { return };
        if self.peek(now, live).is_some() {
            return self.next(now, handle, context);
        }
        // It is the last of its party, and keeps the call until another one has a server to try; where
        // none has, it gets its full 64*T1.
        self.next_leg(now, handle, context);
    }

    /// The next candidate takes over from one that has said nothing.
    fn abandon_silent(&mut self, now: Instant, context: &mut Context) {
        for at in 0..context.attempts.len() {
            let Some(attempt) = context.attempts.get_mut(at) else { continue };
            if attempt.stage != Stage::Live || matches!(attempt.client, Client::Gone) {
                continue;
            }
            attempt.stage = Stage::Abandoned;
            match &mut attempt.client {
                Client::Invite(m) => m.abandon(),
                Client::NonInvite(m) => m.abandon(),
                Client::Gone => {}
            }
            let (instance, to) = (attempt.instance(), attempt.to);
            self.attempt_ended(now, context, at, "timeout", 0);
            self.failed_over(context, to.peer(), instance, "timeout");
            if let Some(live) = context.live.as_mut() {
                keep_best(live, context.kind, 408, None);
            }
        }
    }

    /// Timer B or F: nothing came in 64*T1.
    pub(super) fn on_attempt_timeout(
        &mut self,
        now: Instant,
        handle: Handle,
        context: &mut Context,
        at: usize,
    ) {
        let Some(attempt) = context.attempts.get_mut(at) else { return };
        let (instance, stage, answered, to) =
            (attempt.instance(), attempt.stage, attempt.answered, attempt.to);
        attempt.stage = Stage::Ended;
        if context.probe.is_some() {
            return self.probe_ended(now, context, instance, false);
        }
        if stage != Stage::Live {
            return;
        }
        self.attempt_ended(now, context, at, "timeout", 0);
        if !answered {
            let invite = context.kind == Kind::Invite;
            self.observe(now, to.peer(), instance, Observation::Silence { invite });
        }
        if let Some(live) = context.live.as_mut() {
            keep_best(live, context.kind, 408, None);
        }
        if answered || context.kind == Kind::NonInvite {
            // A non-INVITE has no time left: all attempts share one 64*T1.
            return self.conclude(now, handle, context);
        }
        self.failed_over(context, to.peer(), instance, "timeout");
        self.next(now, handle, context);
    }

    /// Nothing more can be tried: the best of what came goes up (§16.7 step 6).
    pub(super) fn conclude(&mut self, now: Instant, handle: Handle, context: &mut Context) {
        if context.answered {
            return;
        }
        let still =
            context.attempts.iter().any(|a| a.stage == Stage::Live && !matches!(a.client, Client::Gone));
        if still {
            return;
        }
        if context.kind == Kind::Ack {
            self.stats.drop("ack_not_routed");
            return self.give_up(now, handle, context);
        }
        let Some(live) = context.live.as_mut() else { return };
        let reject = match live.best.take() {
            Some(Best { status, bytes: Some(bytes) }) if status != 503 => {
                return self.finish(now, handle, context, status, bytes);
            }
            // RFC 4320 §4.2: no 408 for a non-INVITE; the client has timed out by then.
            Some(Best { status: 408, .. }) if context.kind == Kind::NonInvite => {
                return self.give_up(now, handle, context);
            }
            Some(Best { status: 408, .. }) if context.cancelled => {
                Reject::new(487, "Request Terminated", "cancelled")
            }
            Some(Best { status: 408, .. }) => Reject::new(408, "Request Timeout", "timeout"),
            // §16.7 step 6: a 503 says nothing about us, so the upstream side gets a 500.
            Some(Best { status, .. }) => {
                let text = match live.failure {
                    Some(failure) => format!("SIP;cause={status};text=\"{}\"", failure.label()),
                    None => format!("SIP;cause={status};text=\"All servers unavailable\""),
                };
                Reject::new(500, "Server Internal Error", "unavailable").with("Reason", text)
            }
            None if context.cancelled => Reject::new(487, "Request Terminated", "cancelled"),
            None => nowhere(live),
        };
        self.reject_kept(now, handle, context, &reject);
    }

    /// Sends our CANCEL for an attempt, if it may be sent already (§9.1).
    pub(super) fn cancel_attempt(&mut self, now: Instant, handle: Handle, context: &mut Context, at: usize) {
        let policy = Arc::clone(&self.policy);
        let Some(attempt) = context.attempts.get_mut(at) else { return };
        if !matches!(attempt.cancel, Cancel::Pending) {
            return;
        }
        let Client::Invite(machine) = &attempt.client else { return };
        if !machine.may_cancel() {
            return;
        }
        let Some(request) = machine.request().cloned() else { return };
        let Ok(index) = Index::parse(&request, &policy.limits, Framing::Datagram) else { return };
        let bytes: Bytes = build::cancel(Message::new(&request, &index), &[]).into();
        let timers = policy.timers_to(attempt.to);
        let reliable = attempt.hop.transport.is_reliable();
        let machine = ClientNonInvite::start(bytes, reliable, &timers, timers.timeout(), &mut self.fx);
        attempt.cancel = Cancel::Sent(Box::new(machine));
        self.apply_cancel(now, handle, context, at);
        let who = Who::Attempt(u8::try_from(at).unwrap_or(u8::MAX));
        self.timers.arm(now, timers.timeout(), TimerKey { handle, who, timer: Timer::Cancelled });
    }

    /// Carries out what the client transaction of our CANCEL wants done.
    pub(super) fn apply_cancel(&mut self, now: Instant, handle: Handle, context: &mut Context, at: usize) {
        let who = u8::try_from(at).unwrap_or(u8::MAX);
        for action in mem::take(&mut self.fx.actions) {
            let Some(attempt) = context.attempts.get_mut(at) else { break };
            match action {
                Action::Send(bytes) => {
                    // Pinned to the INVITE's instance, by its connection while that lives.
                    let hop = Hop { conn: attempt.conn, ..attempt.hop.clone() };
                    self.outputs.push_back(Output::Send(Send { hop, bytes, token: None, request: false }));
                }
                Action::Arm(timer, after) => {
                    self.timers.arm(now, after, TimerKey { handle, who: Who::Cancel(who), timer });
                }
                Action::Done => attempt.cancel = Cancel::Done,
                Action::Deliver(_) | Action::MakeAck | Action::MakeTrying => {}
            }
        }
    }

    /// Writes an attempt's end into the record and the counters.
    pub(super) fn attempt_ended(
        &mut self,
        now: Instant,
        context: &mut Context,
        at: usize,
        outcome: &'static str,
        status: u16,
    ) {
        let Some(attempt) = context.attempts.get(at) else { return };
        *self.stats.attempts.entry((attempt.to.peer(), outcome)).or_default() += 1;
        let number = usize::from(attempt.record);
        if let Some(record) = context.live.as_mut().and_then(|l| l.record.as_mut())
            && let Some(entry) = record.attempts.get_mut(number)
        {
            entry.outcome = outcome;
            entry.status = status;
            entry.ended = Some(now);
        }
    }

    pub(super) fn failed_over(
        &mut self,
        context: &Context,
        peer: Option<PeerId>,
        instance: Instance,
        reason: &'static str,
    ) {
        *self.stats.failovers.entry((peer, reason)).or_default() += 1;
        let call_id = context
            .live
            .as_ref()
            .and_then(|l| l.record.as_ref())
            .map_or_else(Bytes::new, |r| r.call_id.clone());
        self.outputs.push_back(Output::Event(Event::FailedOver { call_id, peer, instance, reason }));
    }
}

/// Keeps the better of two finals: 6xx before all, then the lowest class, then the first (§16.7 step 6).
/// The 408 of a request other than INVITE never goes up (RFC 4320 §4.2), so anything is better.
pub(super) fn keep_best(live: &mut Live, kind: Kind, status: u16, bytes: Option<Bytes>) {
    let rank = |status: u16| match status {
        600.. => 0,
        408 if kind == Kind::NonInvite => u16::MAX,
        _ => status / 100,
    };
    if live.best.as_ref().is_none_or(|b| rank(status) < rank(b.status)) {
        live.best = Some(Best { status, bytes });
    }
}

/// The answer when there was no candidate at all (rules 6, 15, 16).
fn nowhere(live: &Live) -> Reject {
    let Some(selection) = &live.selection else {
        return Reject::new(480, "Temporarily Unavailable", "not_located");
    };
    if selection.left_out() == Some(LeftOutReason::OwnListener) {
        return Reject::new(482, "Loop Detected", "own_listener");
    }
    let outcome = selection.located().outcome;
    let (status, phrase) = match outcome.status() {
        500 => (500, "Server Internal Error"),
        _ => (480, "Temporarily Unavailable"),
    };
    Reject::new(status, phrase, outcome.label()).with("Warning", format!("399 sbe \"{}\"", outcome.text()))
}
