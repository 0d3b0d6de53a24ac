//! What goes wrong with an attempt, and what follows from it (RFC 3261 §16.9, §18.4, RFC 3263 §4.3).

use std::net::SocketAddr;
use std::time::Instant;

use bytes::Bytes;

use crate::flow::{ConnId, Hop, PeerId, SendFailure};
use crate::location::{Instance, Observation};
use crate::proxy::{Cancel, Client, Context, Kind, Stage};
use crate::transaction::{Branch, Delivery};
use crate::wire::Message;

use super::candidates::keep_best;
use super::{Core, Event, Handle, Output, SendToken, Shard};

impl Shard {
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
        let cancelled = !matches!(attempt.cancel, Cancel::No | Cancel::Pending);
        if (attempt.ringing || cancelled) && attempt.stage != Stage::Ended && context.kind == Kind::Invite {
            // It is our CANCEL that got lost. A call that has rung, or whose timer C has run out, goes
            // nowhere else; whether an answer comes, timer C or the wait for the end of the CANCEL will show.
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
        let leg = usize::from(attempt.leg);
        attempt.stage = Stage::Ended;
        if context.probe.is_some() {
            return self.probe_ended(now, context, instance, false);
        }
        if was_live && stale && !context.cancelled {
            // A pooled connection found dead is no failure of the instance: once more, on a new one (rule 10).
            self.attempt_ended(now, context, at, "stale_connection", 0);
            let hop = Hop { fresh: true, conn: None, ..hop };
            if self.send_attempt(now, handle, context, leg, hop, None) {
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
        let Some(attempt) = context.attempts.get_mut(at) else { return };
        if attempt.stage != Stage::Live || attempt.answered || matches!(attempt.client, Client::Gone) {
            return;
        }
        attempt.overdue = true;
        let (instance, to) = (attempt.instance(), attempt.to);
        let invite = context.kind == Kind::Invite;
        self.observe(now, to.peer(), instance, Observation::Silence { invite });
        if context.cancelled {
            return;
        }
        let Some(live) = context.live.as_mut() else { return };
        if live.is_locating() {
            return;
        }
        let counted = invite && context.call.is_some();
        if self.peek(now, live, counted).is_some() {
            return self.next(now, handle, context);
        }
        // It is the last of its party, and keeps the call until another one has a server to try; where
        // none has, it gets its full 64*T1.
        self.next_leg(now, handle, context);
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
        self.stats.attempts.add(attempt.to.peer(), outcome, 1);
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
        // What has its answer goes nowhere else.
        let Some(live) = context.live.as_ref() else { return };
        *self.stats.failovers.entry((peer, reason)).or_default() += 1;
        let call_id = Bytes::copy_from_slice(Message::new(&live.request, &live.index).call_id());
        self.outputs.push_back(Output::Event(Event::FailedOver { call_id, peer, instance, reason }));
    }
}
