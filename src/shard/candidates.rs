//! Where a request may go: the parties of its plan located one after the other, their servers in the
//! order of RFC 3263 §4.3, and the end when there are no more.

use std::cell::Cell;
use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use smallvec::{SmallVec, smallvec};

use crate::config::Sticky;
use crate::flow::{SendFailure, Transport};
use crate::location::{Candidate, Instance, LeftOutReason, Located, Observation, Selection, Standing};
use crate::peering::{Party, Refusal};
use crate::proxy::decision::{MAX_STANDINGS, Rule};
use crate::proxy::{Best, Client, Context, Kind, Live, Pass, Policy, Reject, Stage};

use super::{Core, Event, Handle, Output, SendToken, Shard, Ticket};

/// Requests larger than this go over a stream where the target offers one (RFC 3261 §18.1.1).
const UDP_LIMIT: usize = 1300;
/// What the forwarded request is longer by, at most about: Via, Record-Route.
const GROWTH: usize = 300;

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
}

impl Core {
    /// Asks for the servers of the current leg.
    pub(super) fn locate(&mut self, now: Instant, handle: Handle, context: &mut Context) {
        let Some(live) = context.live.as_mut() else { return };
        let Some(leg) = live.plan.legs.get(live.leg) else { return };
        live.located = smallvec![None; leg.keys.len()];
        live.selection = None;
        if let Some(record) = live.record.as_mut().and_then(|r| r.legs.get_mut(live.leg)) {
            record.asked = Some(now);
        }
        let mut answers: SmallVec<[(usize, Arc<Located>); 1]> = SmallVec::new();
        for (i, key) in leg.keys.iter().enumerate() {
            let enabled = self.policy.enabled(key.realm);
            match self.literals.get(key, enabled, &self.call_hash, now) {
                Some(found) => answers.push((i, found)),
                None => {
                    let index = u8::try_from(i).unwrap_or(u8::MAX);
                    let ticket = Ticket(self.token(handle, index).0);
                    self.outputs.push_back(Output::Locate { ticket, key: key.clone() });
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
        let merged = if let [Some(only)] = live.located.as_slice() {
            Arc::clone(only)
        } else {
            let answers: Option<SmallVec<[Arc<Located>; 4]>> = live.located.iter().cloned().collect();
            match answers.and_then(|several| Located::merge(&several)) {
                Some(merged) => Arc::new(merged),
                None => return,
            }
        };
        if let Some(record) = live.record.as_mut().and_then(|r| r.legs.get_mut(live.leg)) {
            record.located = Some(Arc::clone(&merged));
            record.answered = Some(now);
            if !self.health.is_empty() {
                let standing = |i: Instance| (i, self.health.standing(now, &i));
                let all = merged.instances().take(MAX_STANDINGS).map(standing);
                record.standings = all.filter(|(_, s)| *s != Standing::Up).collect();
            }
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
        let large = is_large(live.request.len());
        live.pass = if large && has_stream { Pass::Streams } else { Pass::Any };
        live.selection = Some(Selection::new(merged, live.seed, policy.config.dns.srv_selection));
        // The last server of the party before was silent when this was asked for. It may have spoken since, or
        // been asked once more on a new connection.
        let kept = context.attempts.iter().any(|a| {
            let patient = a.answered || !a.overdue;
            a.stage == Stage::Live && patient && !matches!(a.client, Client::Gone)
        });
        if !kept {
            self.next(now, handle, context);
        }
    }

    /// The next candidate of this leg without using it up. `counted`: it is for a call that limits count.
    pub(super) fn peek(&mut self, now: Instant, live: &mut Live, counted: bool) -> Option<Candidate> {
        if live.peeked.is_some() || live.tries >= self.policy.config.sip.max_tries {
            return live.peeked;
        }
        let policy = Arc::clone(&self.policy);
        let to = live.plan.legs.get(live.leg).map(|leg| leg.party).filter(|_| counted);
        let limits = to.map(|to| (to, policy.instance_limits(to))).filter(|(_, limits)| limits.any());
        let full: Cell<Option<Refusal>> = Cell::new(live.full);
        loop {
            let pass = live.pass;
            let selection = live.selection.as_mut()?;
            live.peeked = selection.next(now, &mut self.health, &|instance: &Instance| {
                if let Some(reason) = own_listener(&policy, instance) {
                    return Some(reason);
                }
                let datagram = instance.transport == Transport::Udp;
                let passed_over = match pass {
                    Pass::Any => false,
                    Pass::Streams => datagram,
                    Pass::Datagrams => !datagram,
                };
                if passed_over {
                    return Some(LeftOutReason::TransportNotEnabled);
                }
                let (to, limits) = limits?;
                let key = self.call_hash.hash_one((to, instance));
                full.set(Some(policy.ledger.is_full(now, key, limits)?));
                Some(LeftOutReason::AtLimit)
            });
            live.full = full.get();
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
            if live.is_locating() {
                // The next party is being located; it goes on from there.
                return;
            }
            // A request other than INVITE has one 64*T1 for all attempts: one begun after that could only
            // be carried out without an answer.
            let to = live.plan.legs.get(live.leg).map_or(context.party, |l| l.party);
            let deadline = context.started + self.policy.timers_to(to).timeout();
            let over = context.cancelled || (context.kind == Kind::NonInvite && now >= deadline);
            let counted = context.call.filter(|_| context.kind == Kind::Invite);
            let candidate = if over { None } else { self.peek(now, live, counted.is_some()) };
            if let Some(candidate) = candidate {
                live.peeked = None;
                if let Some(call) = counted
                    && let Err(refusal) = self.sit(now, call, to, &candidate, !context.attempts.is_empty())
                {
                    live.full = Some(refusal);
                    continue;
                }
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
            if !over && self.next_leg(now, handle, context) {
                return;
            }
            // Abandoned attempts count as 408 at once: nobody waits for them (rule 10).
            return self.conclude(now, handle, context);
        }
    }

    /// Counts a call at the instance that it goes to, and no longer at the one before.
    fn sit(
        &mut self,
        now: Instant,
        call: u64,
        to: Party,
        candidate: &Candidate,
        again: bool,
    ) -> Result<(), Refusal> {
        let limits = self.policy.instance_limits(to);
        let ledger = Arc::clone(&self.policy.ledger);
        if !limits.any() {
            if again {
                self.calls.seat(call, None, &ledger);
            }
            return Ok(());
        }
        let key = self.call_hash.hash_one((to, &candidate.instance));
        let seat = match ledger.sit(now, key, limits) {
            // The trial of an instance must be held once it has been claimed; another shard was a moment quicker.
            Err(_) if candidate.standing == Standing::Trial => None,
            seat => seat?,
        };
        self.calls.seat(call, seat, &ledger);
        Ok(())
    }

    /// Turns to the next party of the plan. False if there is none.
    pub(super) fn next_leg(&mut self, now: Instant, handle: Handle, context: &mut Context) -> bool {
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
            // The request is larger than any way to its target takes.
            Some(_) if live.failure == Some(SendFailure::TooLarge) => {
                Reject::new(513, "Message Too Large", "too_large")
            }
            // §16.7 step 6: a 503 says nothing about us, so the upstream side gets a 500.
            Some(Best { status, .. }) => {
                let text = match live.failure {
                    Some(failure) => format!("SIP;cause={status};text=\"{}\"", failure.label()),
                    None => format!("SIP;cause={status};text=\"All servers unavailable\""),
                };
                Reject::new(500, "Server Internal Error", "unavailable").with("Reason", text)
            }
            None if context.cancelled => Reject::new(487, "Request Terminated", "cancelled"),
            None => match live.full {
                Some(refusal) => Reject::new(480, "Temporarily Unavailable", refusal.label()),
                None => nowhere(live),
            },
        };
        self.reject_kept(now, handle, context, &reject);
    }
}

/// Whether a request of this length, forwarded, is too large for UDP.
pub(super) const fn is_large(request: usize) -> bool {
    request + GROWTH > UDP_LIMIT
}

/// Sending to ourselves would be a loop.
pub(super) fn own_listener(policy: &Policy, instance: &Instance) -> Option<LeftOutReason> {
    policy.domains.is_own_socket(instance.addr).then_some(LeftOutReason::OwnListener)
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
