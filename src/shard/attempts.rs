//! One attempt at one server: its hop, the request it is sent, its client transaction and its CANCEL.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;

use crate::flow::{ConnId, Hop, Host, Transport};
use crate::location::{Candidate, Instance, Located, PickReason, Standing};
use crate::proxy::decision::AttemptRecord;
use crate::proxy::{
    Attempt, Cancel, Client, Context, Forward, Kind, KnownToken, Later, Leg, Plan, Stage, dialog_names,
    dialog_peer, dialog_token, expectation, forward, realm_of, takes_back,
};
use crate::transaction::{Action, Branch, ClientInvite, ClientNonInvite, Delivery, State, Timer};
use crate::wire::{Framing, Index, Message, build};

use super::{Core, Handle, Output, Send, SendToken, Shard, TimerKey, Who};

/// Most attempts that a branch token can number.
const MAX_ATTEMPTS: usize = 200;

impl Shard {
    pub(super) fn on_sent(&mut self, token: SendToken, conn: ConnId, reused: bool) {
        let (slot, generation, who) = token.parts();
        let Some((handle, mut context)) = self.slots.take_short(slot, generation) else { return };
        if let Some(attempt) = context.attempts.get_mut(usize::from(who)) {
            attempt.conn = Some(conn);
            attempt.reused = reused;
        }
        self.settle(handle, context);
    }
}

impl Core {
    /// Makes one attempt. False if this candidate cannot be used after all.
    pub(super) fn attempt(
        &mut self,
        now: Instant,
        handle: Handle,
        context: &mut Context,
        candidate: Candidate,
    ) -> bool {
        let Some(hop) = self.hop(context, &candidate) else { return false };
        let Some(leg) = context.live.as_ref().map(|l| l.leg) else { return false };
        self.send_attempt(now, handle, context, leg, hop, Some(candidate))
    }

    /// The hop for a candidate of the leg under way.
    fn hop(&self, context: &Context, candidate: &Candidate) -> Option<Hop> {
        let live = context.live.as_ref()?;
        let leg = live.plan.legs.get(live.leg)?;
        self.hop_for(&live.plan, leg, live.selection.as_ref()?.located(), candidate)
    }

    /// The hop for a candidate: which listener it leaves from (rules 6 and 8), whom TLS must prove.
    pub(super) fn hop_for(
        &self,
        plan: &Plan,
        leg: &Leg,
        located: &Located,
        candidate: &Candidate,
    ) -> Option<Hop> {
        let Instance { transport, addr } = candidate.instance;
        let realm = realm_of(leg.party);
        // A Route may name a listener of the other side: that of an agent which has us as its outbound proxy does.
        let named = plan
            .listener
            .and_then(|id| self.policy.listener(id))
            .filter(|l| l.fits(realm, transport, addr.ip()));
        let listener = named.or_else(|| self.policy.egress(realm, transport, addr.ip()))?;
        let tls = (transport == Transport::Tls).then(|| {
            let tier = located.tiers.get(usize::from(candidate.tier));
            let server = tier.and_then(|t| t.servers.get(usize::from(candidate.server)));
            let host = server.map(|s| located.hop_of(s).clone()).unwrap_or(Host::Addr(addr.ip()));
            Arc::new(expectation(&self.policy, leg.party, &host, leg.tls_name()))
        });
        Some(Hop { transport, listener: listener.id, remote: addr, conn: None, fresh: false, tls })
    }

    /// Builds the request for a hop with a new branch, and starts a client transaction for it. `leg`: that of
    /// the candidate, or of the attempt that is made once more (`candidate` is `None`); the next one may be under
    /// way already.
    #[allow(clippy::too_many_arguments)]
    pub(super) fn send_attempt(
        &mut self,
        now: Instant,
        handle: Handle,
        context: &mut Context,
        leg: usize,
        hop: Hop,
        candidate: Option<Candidate>,
    ) -> bool {
        if context.attempts.len() >= MAX_ATTEMPTS {
            return false;
        }
        let policy = Arc::clone(&self.policy);
        let random = self.random();
        let Some(live) = context.live.as_mut() else { return false };
        let place = u8::try_from(leg).unwrap_or(u8::MAX);
        let Some(leg) = live.plan.legs.get(leg) else { return false };
        let to = leg.party;
        let (Some(out), Some(inn)) = (policy.listener(hop.listener), policy.listener(context.reply.listener))
        else {
            return false;
        };
        let msg = live.message();
        let branch = Branch::mint(self.id, handle.slot, handle.generation, random, live.loop_hash);
        let strip = policy.stripped(context.party, to, &msg);
        let identity = context.reply.identity.as_deref();
        let names = dialog_names(&policy, context.party, identity, leg, hop.tls.as_deref());
        let peer_tag = dialog_peer(&policy, context.party, to);
        let token = dialog_token(&policy, &msg, peer_tag, names);
        let bytes: Bytes = forward(
            &msg,
            &Forward {
                out,
                inn,
                source: live.source,
                routing: &live.plan.routing,
                uri: leg.uri.as_deref(),
                branch: &branch,
                token: &token,
                alias: hop.tls.as_deref().is_some_and(|tls| takes_back(&policy, to, tls)),
                strip,
            },
        )
        .into();
        let timers = policy.timers_to(to);
        let reliable = hop.transport.is_reliable();
        let client = match context.kind {
            Kind::Invite => Client::Invite(ClientInvite::start(bytes, reliable, timers, &mut self.fx)),
            Kind::NonInvite => {
                let left = timers.timeout().saturating_sub(now.saturating_duration_since(context.started));
                Client::NonInvite(ClientNonInvite::start(bytes, reliable, timers, left, &mut self.fx))
            }
            Kind::Ack | Kind::Cancel | Kind::Probe => {
                // An ACK is sent and forgotten.
                self.outputs.push_back(Output::Send(Send { hop, bytes, token: None, request: false }));
                context.live = None;
                return true;
            }
        };
        live.token = KnownToken::new(&token, peer_tag);
        let live_loop_hash = live.loop_hash;
        let number = context.attempts.len();
        let retried = candidate.is_none();
        let record = live.record.as_mut().map_or(0, |record| {
            let instance = Instance { transport: hop.transport, addr: hop.remote };
            record.attempts.push(AttemptRecord {
                instance,
                place: candidate.map_or((place, 0, 0), |c| (place, c.tier, c.server)),
                standing: candidate.map_or(Standing::Up, |c| c.standing),
                reason: candidate.map_or(PickReason::OnlyServer, |c| c.reason),
                branch: random,
                started: now,
                first_response: None,
                rang: None,
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
            overdue: false,
            later: None,
            leg: place,
            record,
            to,
        });
        self.apply_attempt(now, handle, context, number, None);
        let after = policy.try_timeout_to(to);
        match context.attempts.last_mut().and_then(|a| a.later.as_mut()) {
            Some(later) if after > timers.t1 => later.next = Some(after),
            _ => self.arm_attempt(now, handle, number, Timer::Try, after),
        }
        if context.kind == Kind::Invite {
            self.push_timer_c(now, handle, context);
        }
        true
    }

    fn arm_attempt(&mut self, now: Instant, handle: Handle, at: usize, timer: Timer, after: Duration) {
        let who = Who::Attempt(u8::try_from(at).unwrap_or(u8::MAX));
        self.timers.arm(now, after, TimerKey { handle, who, timer });
    }

    /// The request is repeated for the first time, or would be: the timers that were put off until now are
    /// armed, if they still have a purpose.
    pub(super) fn arm_later(&mut self, now: Instant, handle: Handle, context: &mut Context, at: usize) {
        let Some(attempt) = context.attempts.get_mut(at) else { return };
        let Some(Later { began, end: (timer, after), next }) = attempt.later.take() else { return };
        let first = self.policy.timers_to(attempt.to).t1;
        let waits = match &attempt.client {
            Client::Invite(m) => m.state() == State::Calling,
            Client::NonInvite(m) => matches!(m.state(), State::Trying | State::Proceeding),
            Client::Gone => false,
        };
        self.arm_contexts(now, handle, context, first);
        let Some(attempt) = context.attempts.get(at).filter(|_| waits) else { return };
        let passed = now.saturating_duration_since(began);
        if let Some(next) = next.filter(|_| !attempt.answered) {
            self.arm_attempt(now, handle, at, Timer::Try, next.saturating_sub(passed));
        }
        self.arm_attempt(now, handle, at, timer, after.saturating_sub(passed));
    }

    /// Timer C runs from the INVITE, and anew from each provisional above 100 (§16.6 step 11, §16.7 step 2).
    ///
    /// It is a second at least, so that timer A comes first, where there is one: it is armed then.
    pub(super) fn push_timer_c(&mut self, now: Instant, handle: Handle, context: &mut Context) {
        let after = self.policy.config.sip.timer_c;
        let Some(live) = context.live.as_mut() else { return };
        live.timer_c = Some(now + after);
        if !live.timer_c_armed && context.attempts.iter().all(|a| a.later.is_none()) {
            live.timer_c_armed = true;
            self.arm_context(now, handle, Timer::C, after);
        }
    }

    /// Arms the timer of the late 100, unless a timer E comes first: it is armed then.
    pub(super) fn arm_trying(&mut self, now: Instant, handle: Handle, context: &mut Context) {
        let Some(live) = context.live.as_mut() else { return };
        let Some(after) = live.trying else { return };
        let comes_first = |a: &Attempt| a.later.is_some() && self.policy.timers_to(a.to).t1 < after;
        if context.attempts.iter().any(comes_first) {
            return;
        }
        live.trying = None;
        let left = (context.started + after).saturating_duration_since(now);
        self.timers.arm(now, left, TimerKey { handle, who: Who::Server, timer: Timer::Trying });
    }

    /// Arms what waited for an attempt's first repetition. `first`: how long after the attempt that is.
    fn arm_contexts(&mut self, now: Instant, handle: Handle, context: &mut Context, first: Duration) {
        self.arm_trying(now, handle, context);
        let Some(live) = context.live.as_mut() else { return };
        if live.timer_c.is_some() && !live.timer_c_armed {
            live.timer_c_armed = true;
            // Not later than the deadline, which may have moved; of one length for all, so that it has a lane.
            self.arm_context(now, handle, Timer::C, self.policy.config.sip.timer_c.saturating_sub(first));
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
        let mut delivery = None;
        while let Some(action) = self.fx.take() {
            let Some(attempt) = context.attempts.get_mut(at) else {
                self.fx.actions.clear();
                break;
            };
            match action {
                Action::Send(bytes) => {
                    let hop = Hop { conn: attempt.conn, ..attempt.hop.clone() };
                    self.outputs.push_back(Output::Send(Send {
                        hop,
                        bytes,
                        token: Some(self.token(handle, who)),
                        request: true,
                    }));
                }
                // Over an unreliable transport, A or E comes first.
                Action::Arm(timer @ (Timer::B | Timer::F), after)
                    if !attempt.hop.transport.is_reliable()
                        && after > self.policy.timers_to(attempt.to).t1 =>
                {
                    attempt.later = Some(Later { began: now, end: (timer, after), next: None });
                }
                Action::Arm(timer, after) => self.arm_attempt(now, handle, at, timer, after),
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
        let machine = ClientNonInvite::start(bytes, reliable, timers, timers.timeout(), &mut self.fx);
        attempt.cancel = Cancel::Sent(Box::new(machine));
        self.apply_cancel(now, handle, context, at);
        let who = Who::Attempt(u8::try_from(at).unwrap_or(u8::MAX));
        self.timers.arm(now, timers.timeout(), TimerKey { handle, who, timer: Timer::Cancelled });
    }

    /// Carries out what the client transaction of our CANCEL wants done.
    pub(super) fn apply_cancel(&mut self, now: Instant, handle: Handle, context: &mut Context, at: usize) {
        let who = u8::try_from(at).unwrap_or(u8::MAX);
        while let Some(action) = self.fx.take() {
            let Some(attempt) = context.attempts.get_mut(at) else {
                self.fx.actions.clear();
                break;
            };
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
}
