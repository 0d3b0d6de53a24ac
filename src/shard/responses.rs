//! Responses as they come in: matched by our branch, or dropped (RFC 3261 §16.7, RFC 6026 §7.3).

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;

use crate::location::Observation;
use crate::proxy::{Cancel, Client, Context, Kind, Stage, Verdict, upstream, verdict};
use crate::transaction::{Branch, Delivery};
use crate::wire::{Message, Method, Name, ViaRef};

use super::calls::expiry;
use super::candidates::keep_best;
use super::{Core, Handle, Shard};

impl Shard {
    pub(super) fn on_response(&mut self, now: Instant, msg: &Message<'_>) {
        if let Some(fault) = msg.index.fault() {
            return self.core.stats.drop(fault.label);
        }
        let Some(via) = msg.top_via() else { return self.core.stats.drop("no_via") };
        let Some(parts) = via.branch().and_then(Branch::parse) else {
            return self.core.stats.drop("stray_response");
        };
        if parts.shard != self.core.id {
            return self.core.stats.drop("stray_response");
        }
        let handle = Handle { slot: parts.slot, generation: parts.generation };
        let Some(mut context) = self.slots.take(handle) else {
            return self.core.stats.drop("stray_response");
        };
        let at = context.attempts.iter().position(|a| a.is_branch(&parts));
        let ours = at.and_then(|at| context.attempts.get(at)).is_some_and(|attempt| {
            // §18.1.2: the sent-by must be the one we wrote.
            self.core
                .policy
                .listener(attempt.hop.listener)
                .is_some_and(|l| via.port() == l.sent_by_port && via.host().eq_host(&l.sent_by_host))
        });
        match at {
            Some(at) if ours => self.core.response(now, handle, &mut context, at, msg, &via),
            _ => self.core.stats.drop("stray_response"),
        }
        self.settle(handle, context);
    }
}

impl Core {
    #[allow(clippy::too_many_arguments)]
    fn response(
        &mut self,
        now: Instant,
        handle: Handle,
        context: &mut Context,
        at: usize,
        msg: &Message<'_>,
        via: &ViaRef<'_>,
    ) {
        let method = msg.method();
        let status = msg.status();
        if let Some(attempt) = context.attempts.get(at) {
            let side = attempt.to.side() as usize;
            let class = usize::from(status / 100).saturating_sub(1);
            if let Some(n) = self.stats.responses.get_mut(side).and_then(|s| s.get_mut(class)) {
                *n += 1;
            }
        }
        if method == Method::Cancel && context.kind == Kind::Invite {
            return self.cancel_response(now, handle, context, at, status);
        }
        let same_method = method == context.method;
        // Once our Via is off, the sender's own must be on top, as it wrote it (§16.7 step 3).
        let back = context.probe.is_some()
            || msg.second_via().is_some_and(|v| self.via_hash(&v) == context.via_hash);
        if !same_method || !back {
            return self.stats.drop("stray_response");
        }
        let Some(attempt) = context.attempts.get_mut(at) else { return };
        let first = !attempt.answered;
        attempt.answered = true;
        match &mut attempt.client {
            Client::Invite(m) => m.on_response(status, &mut self.fx),
            Client::NonInvite(m) => m.on_response(status, &mut self.fx),
            Client::Gone => return self.stats.drop("late_response"),
        }
        let (instance, to, number) = (attempt.instance(), attempt.to, usize::from(attempt.record));
        let delivery = self.apply_attempt(now, handle, context, at, Some(msg));
        if (first || status > 100)
            && let Some(record) = context.live.as_mut().and_then(|l| l.record.as_mut())
            && let Some(entry) = record.attempts.get_mut(number)
        {
            entry.first_response.get_or_insert(now);
            if status > 100 {
                entry.rang.get_or_insert(now);
            }
        }
        if delivery != Some(Delivery::Response) {
            return;
        }
        let seen = match status {
            503 => retry_after(msg).map_or(Observation::Unavailable, Observation::RetryAfter),
            _ => Observation::Answered,
        };
        if context.probe.is_some() {
            if status >= 200 {
                let good = self.is_alive(context, status);
                self.probe_ended(now, context, instance, good);
            }
            return;
        }
        self.observe(now, to.peer(), instance, seen);
        if status < 200 {
            self.provisional(now, handle, context, at, msg, via);
        } else {
            self.final_response(now, handle, context, at, msg, via);
        }
    }

    #[allow(clippy::too_many_arguments)]
    fn provisional(
        &mut self,
        now: Instant,
        handle: Handle,
        context: &mut Context,
        at: usize,
        msg: &Message<'_>,
        via: &ViaRef<'_>,
    ) {
        let policy = Arc::clone(&self.policy);
        let status = msg.status();
        let Some(attempt) = context.attempts.get_mut(at) else { return };
        let to = attempt.to;
        attempt.ringing |= status > 100;
        if attempt.stage == Stage::Abandoned {
            // The next candidate has the call: this one is to stop (rule 10). A CANCEL from upstream may have
            // asked for that already.
            if context.kind == Kind::Invite && matches!(attempt.cancel, Cancel::No) {
                attempt.cancel = Cancel::Pending;
            }
            return self.cancel_attempt(now, handle, context, at);
        }
        self.cancel_attempt(now, handle, context, at);
        if status == 100 {
            return;
        }
        if context.kind == Kind::Invite {
            self.push_timer_c(now, handle, context);
        }
        if context.answered {
            return;
        }
        if let Some(bytes) = upstream(msg, via, policy.stripped(to, context.party, msg)) {
            self.respond(now, handle, context, status, Bytes::from(bytes));
        }
    }

    #[allow(clippy::too_many_arguments)]
    fn final_response(
        &mut self,
        now: Instant,
        handle: Handle,
        context: &mut Context,
        at: usize,
        msg: &Message<'_>,
        via: &ViaRef<'_>,
    ) {
        let policy = Arc::clone(&self.policy);
        let status = msg.status();
        let Some(attempt) = context.attempts.get_mut(at) else { return };
        let (was, ringing, to, instance) = (attempt.stage, attempt.ringing, attempt.to, attempt.instance());
        attempt.stage = Stage::Ended;
        // By timer C, or for the one upstream.
        let stopped = context.cancelled || matches!(attempt.cancel, Cancel::Sent(_) | Cancel::Done);
        if matches!(attempt.cancel, Cancel::Pending) {
            attempt.cancel = Cancel::Done;
        }
        let ok = status < 300;
        if ok && context.kind == Kind::Invite {
            // Every 2xx goes up at once, also one of an attempt given up (§16.7 step 5).
            if was != Stage::Ended {
                self.attempt_ended(now, context, at, "ok", status);
            }
            self.cancel_others(now, handle, context, at);
            let token = context.live.as_ref().and_then(|live| live.token);
            if let Some(bytes) = upstream(msg, via, policy.stripped(to, context.party, msg)) {
                self.finish(now, handle, context, status, bytes.into());
            }
            // After the answer itself, which gives the call its full age.
            if let Some(key) = context.call {
                self.calls.confirm(key, self.tag_hash(msg.to_tag()), token);
            }
            if let Some(key) = context.call
                && let Some(seconds) = msg.seconds(Name::SessionExpires)
            {
                let expires = expiry(now, self.policy.config.calls_max_age, Some(seconds));
                self.calls.refresh(key, expires);
            }
            return;
        }
        if was == Stage::Ended {
            return;
        }
        self.attempt_ended(now, context, at, outcome(status), status);
        if context.answered {
            return;
        }
        if was == Stage::Abandoned {
            // Of an INVITE it counted as a 408 already (rule 10). For another request, a real answer is better
            // than none, and a good one ends the search.
            let Some(bytes) = upstream(msg, via, policy.stripped(to, context.party, msg)).map(Bytes::from)
            else {
                return;
            };
            if context.kind == Kind::NonInvite && ok {
                self.finish(now, handle, context, status, bytes);
            } else if context.kind == Kind::NonInvite
                && let Some(live) = context.live.as_mut()
            {
                keep_best(live, context.kind, status, Some(bytes));
            }
            return;
        }
        let Some(bytes) = upstream(msg, via, policy.stripped(to, context.party, msg)).map(Bytes::from) else {
            return;
        };
        match verdict(status, self.policy.fails_over(to, status), ringing, stopped) {
            Verdict::Failover => {
                if let Some(live) = context.live.as_mut() {
                    keep_best(live, context.kind, status, Some(bytes));
                }
                self.failed_over(context, to.peer(), instance, outcome(status));
                self.next(now, handle, context);
            }
            Verdict::Final if status == 503 => {
                if let Some(live) = context.live.as_mut() {
                    keep_best(live, context.kind, status, Some(bytes));
                }
                self.conclude(now, handle, context);
            }
            Verdict::Final => self.finish(now, handle, context, status, bytes),
        }
    }

    /// After a 2xx nobody else is to ring (§16.7 step 10).
    fn cancel_others(&mut self, now: Instant, handle: Handle, context: &mut Context, at: usize) {
        for i in 0..context.attempts.len() {
            if i == at {
                continue;
            }
            let Some(attempt) = context.attempts.get_mut(i) else { continue };
            if let Client::Invite(m) = &mut attempt.client {
                // One that has not answered yet is not asked again.
                m.abandon();
            }
            if attempt.stage != Stage::Ended && matches!(attempt.cancel, Cancel::No) {
                attempt.cancel = Cancel::Pending;
                self.cancel_attempt(now, handle, context, i);
            }
        }
    }

    fn cancel_response(
        &mut self,
        now: Instant,
        handle: Handle,
        context: &mut Context,
        at: usize,
        status: u16,
    ) {
        let Some(attempt) = context.attempts.get_mut(at) else { return };
        let Cancel::Sent(machine) = &mut attempt.cancel else {
            return self.stats.drop("stray_response");
        };
        machine.on_response(status, &mut self.fx);
        self.apply_cancel(now, handle, context, at);
    }
}

/// The delta-seconds of Retry-After (RFC 3261 §20.33).
fn retry_after(msg: &Message<'_>) -> Option<Duration> {
    msg.seconds(Name::RetryAfter).map(|s| Duration::from_secs(u64::from(s)))
}

/// A fixed word for a final status.
const fn outcome(status: u16) -> &'static str {
    match status {
        200..300 => "ok",
        300..400 => "redirected",
        408 => "status_408",
        480 => "status_480",
        486 => "busy",
        487 => "cancelled",
        503 => "status_503",
        400..500 => "client_error",
        500..600 => "server_error",
        _ => "declined",
    }
}
