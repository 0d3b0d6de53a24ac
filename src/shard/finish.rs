//! Answers to the upstream side: carrying out what server transactions want, answers made here, the end of a context.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;

use crate::proxy::decision::Rule;
use crate::proxy::{Context, Kind, Live, Reject, Server};
use crate::transaction::{Action, Delivery, Timer, TimerConfig};
use crate::wire::build::ResponseOptions;
use crate::wire::{Message, Method, build};

use super::calls::expiry;
use super::{CallEnd, CallEvent, Core, Event, Handle, Output, Send, SendToken, TimerKey, Who};

impl Core {
    /// Carries out what the server transaction wants done.
    pub(super) fn apply_server(
        &mut self,
        now: Instant,
        handle: Handle,
        context: &mut Context,
    ) -> Option<Delivery> {
        let mut delivery = None;
        while let Some(action) = self.fx.take() {
            match action {
                Action::Send(bytes) => self.send_upstream(now, handle, context, bytes),
                // See `arm_trying`.
                Action::Arm(Timer::Trying, after) => {
                    if let Some(live) = context.live.as_mut() {
                        live.trying = Some(after);
                    }
                }
                Action::Arm(timer, after) => {
                    self.timers.arm(now, after, TimerKey { handle, who: Who::Server, timer });
                }
                Action::Deliver(what) => delivery = Some(what),
                Action::MakeTrying => self.late_trying(now, handle, context),
                Action::Done => context.server = Server::Gone,
                Action::MakeAck => {}
            }
        }
        delivery
    }

    pub(super) fn send_upstream(
        &mut self,
        now: Instant,
        handle: Handle,
        context: &mut Context,
        bytes: Bytes,
    ) {
        let reliable = context.reply.transport.is_reliable();
        let token = reliable.then(|| self.token(handle, SendToken::SERVER - context.way));
        if reliable {
            context.last = Some(bytes.clone());
            if context.answered && context.held_until.is_none() {
                self.hold(now, handle, context, Duration::ZERO);
            }
        }
        self.outputs.push_back(Output::Send(Send { hop: context.reply.hop(), bytes, token, request: false }));
    }

    /// Gives a response to the server transaction. False if it takes none any more.
    pub(super) fn respond(
        &mut self,
        now: Instant,
        handle: Handle,
        context: &mut Context,
        status: u16,
        bytes: Bytes,
    ) -> bool {
        let reliable = context.reply.transport.is_reliable();
        let timers = self.server_timers();
        if matches!(context.server, Server::Gone) {
            // The server transaction is over, but a client transaction of it still lives: a 2xx to
            // an INVITE goes up all the same (RFC 3261 §16.7 step 5).
            let late = context.kind == Kind::Invite && (200..300).contains(&status);
            if late {
                self.send_upstream(now, handle, context, bytes);
            }
            return late;
        }
        let sent = match &mut context.server {
            Server::Invite(m) => m.respond(status, bytes, reliable, &timers, &mut self.fx),
            Server::NonInvite(m) => m.respond(status, bytes, reliable, &timers, &mut self.fx),
            Server::Gone => false,
        };
        if sent {
            let class = usize::from(status / 100).saturating_sub(1);
            if let Some(n) =
                self.stats.answers.get_mut(context.party.side() as usize).and_then(|s| s.get_mut(class))
            {
                *n += 1;
            }
            self.apply_server(now, handle, context);
        }
        sent
    }

    fn server_timers(&self) -> TimerConfig {
        self.policy.timers
    }

    /// The 100 for an INVITE, at once (§16.2 with §17.2.1).
    pub(super) fn trying(&mut self, now: Instant, handle: Handle, context: &mut Context, msg: &Message<'_>) {
        let Some(live) = &context.live else { return };
        let options = ResponseOptions { stamp: Some(live.source), ..ResponseOptions::default() };
        let bytes = build::response(*msg, 100, "Trying", options);
        self.respond(now, handle, context, 100, bytes.into());
    }

    /// The late 100 of RFC 4320 §4.1.
    fn late_trying(&mut self, now: Instant, handle: Handle, context: &mut Context) {
        let Some(live) = &context.live else { return };
        let (request, index) = (live.request.clone(), Arc::clone(&live.index));
        self.trying(now, handle, context, &Message::new(&request, &index));
    }

    /// Answers a request here, finally.
    pub(super) fn reject(
        &mut self,
        now: Instant,
        handle: Handle,
        context: &mut Context,
        msg: &Message<'_>,
        reject: &Reject,
    ) {
        let source = context.live.as_ref().map_or(context.reply.to, |l| l.source);
        let tag = self.tag();
        let rows: Vec<(&str, &[u8])> = reject.rows.iter().map(|(n, v)| (*n, v.as_slice())).collect();
        let options = ResponseOptions {
            stamp: Some(source),
            to_tag: Some(&tag),
            extra_rows: &rows,
            ..ResponseOptions::default()
        };
        let bytes = build::response(*msg, reject.status, reject.phrase, options);
        *self.stats.rejected.entry(reject.label).or_default() += 1;
        if let Some(record) = context.live.as_mut().and_then(|l| l.record.as_mut()) {
            record.reason = reject.label;
            if record.rule == Rule::Refused && reject.status < 300 {
                record.rule = Rule::Local;
            }
        }
        if reject.status >= 400 && context.kind != Kind::Cancel {
            self.outputs.push_back(Output::Event(Event::Rejected {
                call_id: Bytes::copy_from_slice(msg.call_id()),
                remote: source,
                transport: context.reply.transport,
                listener: context.reply.listener,
                status: reject.status,
                reason: reject.label,
            }));
        }
        self.finish(now, handle, context, reject.status, bytes.into());
    }

    /// As [`Self::reject`], from the request that the context keeps.
    pub(super) fn reject_kept(
        &mut self,
        now: Instant,
        handle: Handle,
        context: &mut Context,
        reject: &Reject,
    ) {
        let Some(live) = context.live.as_ref() else { return };
        let (request, index) = (live.request.clone(), Arc::clone(&live.index));
        self.reject(now, handle, context, &Message::new(&request, &index), reject);
    }

    /// Sends the final response upstream and lets go of what was needed to find it.
    pub(super) fn finish(
        &mut self,
        now: Instant,
        handle: Handle,
        context: &mut Context,
        status: u16,
        bytes: Bytes,
    ) {
        let ok = (200..300).contains(&status);
        let first = !context.answered;
        let late_2xx = ok && context.kind == Kind::Invite;
        if !first && !late_2xx {
            return;
        }
        if first {
            self.close(now, context, status);
        }
        self.respond(now, handle, context, status, bytes);
        if first && context.kind == Kind::Invite && ok {
            self.stats.answer_delay.add(now.saturating_duration_since(context.started));
        }
    }

    /// Ends a context without a final response: a non-INVITE that nobody answered (RFC 4320 §4.2), an ACK.
    ///
    /// The server transaction stays until nothing can come any more: the sender may repeat the request for
    /// 64*T1, and the network keep it for T4; it would begin anew.
    pub(super) fn give_up(&mut self, now: Instant, handle: Handle, context: &mut Context) {
        if !context.answered {
            self.close(now, context, 0);
        }
        let end = context.started + self.policy.timers.timeout() + self.policy.timers.t4;
        let left = end.saturating_duration_since(now);
        if left.is_zero() || context.kind != Kind::NonInvite {
            context.server = Server::Gone;
        } else {
            self.arm_context(now, handle, Timer::F, left);
        }
    }

    fn close(&mut self, now: Instant, context: &mut Context, status: u16) {
        if context.owes_final() {
            self.open = self.open.saturating_sub(1);
        }
        context.answered = true;
        let ok = (200..300).contains(&status);
        if let Some(live) = context.live.take() {
            let Live { index, record, .. } = *live;
            self.unused = Some(index).filter(|index| Arc::strong_count(index) == 1);
            if let Some(mut record) = record {
                record.status = status;
                record.ended = Some(now);
                record.cancelled = context.cancelled;
                if context.kind == Kind::Invite && self.policy.config.records.is_some() {
                    let (call, record) = (context.call.filter(|_| ok), record.clone());
                    self.outputs.push_back(Output::Event(Event::Call(CallEvent::Final { call, record })));
                }
                self.ring.push(record);
            }
        }
        if let Some(key) = context.call {
            match context.method {
                Method::Invite => {
                    let expires = expiry(now, self.policy.config.calls_max_age, None);
                    self.calls.answered(key, ok, expires, &self.policy.ledger);
                }
                Method::Bye => {
                    self.calls.end(key, &self.policy.ledger);
                    if self.policy.config.records.is_some() {
                        let end = CallEvent::Ended { call: key, at: now, how: CallEnd::Bye };
                        self.outputs.push_back(Output::Event(Event::Call(end)));
                    }
                }
                _ => {}
            }
        }
    }

    /// A To tag for an answer made here.
    fn tag(&mut self) -> [u8; 12] {
        const HEX: &[u8; 16] = b"0123456789abcdef";
        let mut bits = self.random();
        let mut tag = *b"sbe-00000000";
        for place in tag.iter_mut().skip(4) {
            *place = HEX.get((bits & 15) as usize).copied().unwrap_or(b'0');
            bits >>= 4;
        }
        tag
    }

    /// Sends a response without a transaction: to strangers on streams, and where the table is full.
    pub(super) fn respond_stateless(
        &mut self,
        reply: &crate::proxy::ReplyPath,
        source: std::net::SocketAddr,
        msg: &Message<'_>,
        reject: &Reject,
    ) {
        let tag = self.tag();
        let rows: Vec<(&str, &[u8])> = reject.rows.iter().map(|(n, v)| (*n, v.as_slice())).collect();
        let options = ResponseOptions {
            stamp: Some(source),
            to_tag: Some(&tag),
            extra_rows: &rows,
            ..ResponseOptions::default()
        };
        let bytes = build::response(*msg, reject.status, reject.phrase, options).into();
        *self.stats.rejected.entry(reject.label).or_default() += 1;
        self.outputs.push_back(Output::Send(Send { hop: reply.hop(), bytes, token: None, request: false }));
    }

    /// Which timer of the context's own, for the lanes.
    pub(super) fn arm_context(
        &mut self,
        now: Instant,
        handle: Handle,
        timer: Timer,
        after: std::time::Duration,
    ) {
        self.timers.arm(now, after, TimerKey { handle, who: Who::Context, timer });
    }
}
