//! Timers that have run out.

use std::time::Instant;

use crate::proxy::{Cancel, Client, Context, Kind, Server, Stage};
use crate::transaction::{Action, Delivery, Timer};

use super::candidates::keep_best;
use super::{Core, Handle, Shard, TimerKey, Who};

impl Shard {
    pub(super) fn on_timer(&mut self, now: Instant, key: TimerKey) {
        let TimerKey { handle, who, timer } = key;
        if who == Who::Sweep {
            return self.core.sweep(now);
        }
        let Some(mut context) = self.slots.take(handle) else { return };
        match who {
            Who::Server => self.core.server_timer(now, handle, &mut context, timer),
            Who::Attempt(at) => self.core.attempt_timer(now, handle, &mut context, usize::from(at), timer),
            Who::Cancel(at) => self.core.cancel_timer(now, handle, &mut context, usize::from(at), timer),
            // Nobody answered, and nobody will repeat the request any more.
            Who::Context if timer == Timer::F => context.server = Server::Gone,
            Who::Context => self.core.timer_c(now, handle, &mut context),
            Who::Return => self.core.held_long_enough(now, &mut context),
            Who::Sweep => {}
        }
        self.settle(handle, context);
    }
}

impl Core {
    fn count_resent(&mut self) {
        if self.fx.actions.iter().any(|a| matches!(a, Action::Send(_))) {
            self.stats.retransmissions_out += 1;
        }
    }

    fn server_timer(&mut self, now: Instant, handle: Handle, context: &mut Context, timer: Timer) {
        match &mut context.server {
            Server::Invite(m) => m.on_timer(timer, &mut self.fx),
            Server::NonInvite(m) => m.on_timer(timer, &mut self.fx),
            Server::Gone => return,
        }
        if self.fx.is_empty() {
            return;
        }
        self.count_resent();
        if self.apply_server(now, handle, context) == Some(Delivery::Timeout) {
            self.stats.drop("no_ack");
        }
    }

    fn attempt_timer(
        &mut self,
        now: Instant,
        handle: Handle,
        context: &mut Context,
        at: usize,
        timer: Timer,
    ) {
        match timer {
            Timer::Try => return self.on_try_timeout(now, handle, context, at),
            Timer::Cancelled => return self.cancelled_timeout(now, handle, context, at),
            Timer::A | Timer::E => self.arm_later(now, handle, context, at),
            _ => {}
        }
        let Some(attempt) = context.attempts.get_mut(at) else { return };
        match &mut attempt.client {
            Client::Invite(m) => m.on_timer(timer, &mut self.fx),
            Client::NonInvite(m) => m.on_timer(timer, &mut self.fx),
            Client::Gone => return,
        }
        // Most are pointless by the time that they fire.
        if self.fx.is_empty() {
            return;
        }
        self.count_resent();
        if self.apply_attempt(now, handle, context, at, None) == Some(Delivery::Timeout) {
            self.on_attempt_timeout(now, handle, context, at);
        }
    }

    fn cancel_timer(&mut self, now: Instant, handle: Handle, context: &mut Context, at: usize, timer: Timer) {
        let Some(attempt) = context.attempts.get_mut(at) else { return };
        let Cancel::Sent(machine) = &mut attempt.cancel else { return };
        machine.on_timer(timer, &mut self.fx);
        self.count_resent();
        self.apply_cancel(now, handle, context, at);
    }

    /// 64*T1 after our CANCEL the INVITE counts as ended, whatever the other side does (§9.1).
    fn cancelled_timeout(&mut self, now: Instant, handle: Handle, context: &mut Context, at: usize) {
        let Some(attempt) = context.attempts.get_mut(at) else { return };
        let was = attempt.stage;
        let Client::Invite(machine) = &mut attempt.client else { return };
        machine.expire(&mut self.fx);
        if self.apply_attempt(now, handle, context, at, None) != Some(Delivery::Timeout) {
            return;
        }
        if let Some(attempt) = context.attempts.get_mut(at) {
            attempt.stage = Stage::Ended;
        }
        if was != Stage::Live {
            return;
        }
        self.attempt_ended(now, context, at, "no_answer_to_cancel", 0);
        if let Some(live) = context.live.as_mut() {
            keep_best(live, context.kind, 408, None);
        }
        self.conclude(now, handle, context);
    }

    /// Timer C (§16.8): a ringing branch is cancelled, a silent one counts as a 408.
    fn timer_c(&mut self, now: Instant, handle: Handle, context: &mut Context) {
        if context.answered || context.kind != Kind::Invite {
            return;
        }
        let Some(live) = context.live.as_mut() else { return };
        let Some(deadline) = live.timer_c else { return };
        if now < deadline {
            // A provisional has moved it since it was armed.
            return self.arm_context(now, handle, Timer::C, deadline.saturating_duration_since(now));
        }
        // A provisional that comes nevertheless arms it anew.
        (live.timer_c, live.timer_c_armed) = (None, false);
        for at in 0..context.attempts.len() {
            let Some(attempt) = context.attempts.get_mut(at) else { continue };
            if attempt.stage != Stage::Live {
                continue;
            }
            if matches!(attempt.cancel, Cancel::No) {
                attempt.cancel = Cancel::Pending;
            }
            self.cancel_attempt(now, handle, context, at);
            let Some(attempt) = context.attempts.get_mut(at) else { continue };
            if matches!(attempt.cancel, Cancel::Sent(_) | Cancel::Done) {
                continue;
            }
            attempt.stage = Stage::Abandoned;
            if let Client::Invite(m) = &mut attempt.client {
                m.abandon();
            }
            self.attempt_ended(now, context, at, "timeout", 0);
            if let Some(live) = context.live.as_mut() {
                keep_best(live, context.kind, 408, None);
            }
        }
        // While a cancelled branch may still answer, it is waited for, 64*T1 at most.
        self.conclude(now, handle, context);
    }
}
