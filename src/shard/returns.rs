//! Responses that could not be sent go other ways, until one takes them (RFC 3261 §18.2.2, RFC 3263 §5).
//!
//! What may be tried, and for whom, stands in [`crate::proxy::reply`]. At most [`MOST`] ways are tried for one
//! request, whatever its answers, and none twice in a row, so nobody can make this element go in circles.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use smallvec::SmallVec;

use crate::flow::{Hop, SendFailure, Transport};
use crate::location::{Health, Instance, LeftOutReason, Located, Selection};
use crate::peering::Party;
use crate::proxy::reply::{SentBy, reply_expectation};
use crate::proxy::{Context, Server};
use crate::transaction::{ServerKey, ServerKeyParts, Timer};
use crate::wire::{Method, ViaRef};

use super::requests::sent_by_host;
use super::{Core, Handle, Output, SendToken, Shard, Ticket, TimerKey, Who, health_policy};

/// Ways tried for one request besides the first.
pub(super) const MOST: u8 = 5;

impl Shard {
    /// An ICMP error for a datagram that was a response of ours: it belongs to the server transaction whose
    /// request had this topmost Via.
    pub(super) fn response_undeliverable(&mut self, now: Instant, to: SocketAddr, payload: &[u8]) {
        let Some((handle, mut context)) = self.context_of_response(payload) else {
            return self.core.stats.drop("icmp");
        };
        let hop = context.reply.hop();
        if hop.transport == Transport::Udp && hop.remote == to {
            self.core.go_on(now, handle, &mut context, payload);
        }
        self.settle(handle, context);
    }

    fn context_of_response(&mut self, payload: &[u8]) -> Option<(Handle, Box<Context>)> {
        let via = top_via(payload)?;
        let parts = |method: &'static str| ServerKeyParts {
            branch: via.branch(),
            sent_by_host: sent_by_host(&via),
            sent_by_port: via.port().unwrap_or(0),
            method: method.as_bytes(),
            request_uri: b"",
            to_tag: None,
            from_tag: None,
            call_id: b"",
            cseq: 0,
            top_via: b"",
        };
        // The error may quote too little to tell the method; the branch is one of a transaction anyway.
        let handle = Method::ALL
            .iter()
            .find_map(|m| self.by_key.get(&ServerKey::of(&self.core.keys, &parts(m.label()))))
            .copied()?;
        Some((handle, self.slots.take(handle)?))
    }
}

impl Core {
    /// A response could not be sent by way number `way`.
    pub(super) fn response_failed(
        &mut self,
        now: Instant,
        handle: Handle,
        context: &mut Context,
        way: u8,
        failure: SendFailure,
    ) {
        if way != context.way {
            // It has gone another way since; that one has not failed.
            return;
        }
        let Some(last) = context.last.clone() else { return self.response_lost(now, handle, context) };
        if context.reply.detour.is_none() && context.ways_tried < MOST {
            // A new connection to where the request came from.
            let Some(via) = top_via(&last) else { return self.response_lost(now, handle, context) };
            let sent_by = SentBy::of(&via);
            let tls = self.reply_tls(context, &sent_by);
            let hop = context.reply.hop_to(context.reply.fallback, None, tls);
            return self.go_by(now, handle, context, hop);
        }
        if let Some(hop) = context.reply.detour.as_deref()
            && matches!(failure, SendFailure::Closed { reused: true })
            && !hop.fresh
            && context.ways_tried < MOST
        {
            // A pooled connection that was dead says nothing about the server.
            let hop = Hop { fresh: true, ..hop.clone() };
            return self.go_by(now, handle, context, hop);
        }
        self.go_on(now, handle, context, &last);
    }

    /// The servers of the sent-by domain: asks for them, or goes on to the next.
    fn go_on(&mut self, now: Instant, handle: Handle, context: &mut Context, response: &[u8]) {
        if context.ways_tried >= MOST {
            return self.response_lost(now, handle, context);
        }
        if let Some(servers) = &mut context.servers {
            return match servers.pop() {
                Some(hop) => self.go_by(now, handle, context, hop),
                None => self.response_lost(now, handle, context),
            };
        }
        if context.sent_by.is_some() {
            // They are being asked for; what has been said last will go there.
            return;
        }
        let via = top_via(response);
        let key = via.as_ref().and_then(|via| self.way_home(context, &SentBy::of(via)));
        let Some(key) = key else { return self.response_lost(now, handle, context) };
        context.sent_by = via.map(|via| (via.host().to_host(), via.port()));
        // Answers that come meanwhile wait for the servers: the way they would go is known to be dead.
        context.way = next_number(context.way);
        let hold = self.policy.config.dns.timeout;
        self.hold(now, handle, context, hold);
        let ticket = Ticket(self.token(handle, SendToken::SERVER).0);
        self.outputs.push_back(Output::Locate { ticket, key });
    }

    fn way_home(&self, context: &Context, sent_by: &SentBy<'_>) -> Option<crate::location::LocateKey> {
        let admitted = match context.party {
            Party::Core | Party::Peer(_) => true,
            // Not known by anything but a certificate, so only what that holds.
            Party::Federation => context.reply.identity.is_some(),
            Party::Stranger => false,
        };
        admitted.then(|| sent_by.locate_key(context.reply.transport, context.party)).flatten()
    }

    fn reply_tls(&self, context: &Context, sent_by: &SentBy<'_>) -> Option<Arc<crate::flow::TlsExpectation>> {
        (context.reply.transport == Transport::Tls)
            .then(|| {
                let identity = context.reply.identity.as_deref();
                reply_expectation(&self.policy, context.party, identity, sent_by)
            })
            .flatten()
            .map(Arc::new)
    }

    /// The servers of a sent-by domain have been found, or there are none.
    pub(super) fn way_located(
        &mut self,
        now: Instant,
        handle: Handle,
        context: &mut Context,
        located: Arc<Located>,
    ) {
        if context.servers.is_some() {
            return;
        }
        let servers = self.servers_of(now, context, located);
        context.servers = Some(servers);
        self.go_on(now, handle, context, &[]);
    }

    /// Hops to the servers that the sender may have named, the best one last.
    fn servers_of(&mut self, now: Instant, context: &Context, located: Arc<Located>) -> SmallVec<[Hop; 1]> {
        let Some((host, port)) = &context.sent_by else { return SmallVec::new() };
        let text = host.to_string();
        let sent_by = SentBy { host: crate::wire::HostRef::Name(text.as_bytes()), port: *port };
        let policy = Arc::clone(&self.policy);
        let reply = &context.reply;
        let theirs = sent_by.belongs_to(&policy, context.party, reply.identity.as_deref());
        let tls = self.reply_tls(context, &sent_by);
        let dead = [reply.to, reply.fallback];
        let avoid = |instance: &Instance| {
            let ip = instance.addr.ip();
            let admitted = theirs || policy.sources.find(ip) == Some(context.party);
            let udp = reply.transport == Transport::Udp;
            let tried = if udp { instance.addr == reply.to } else { dead.contains(&instance.addr) };
            let skip = tried || !admitted || policy.domains.is_own_socket(instance.addr);
            skip.then_some(LeftOutReason::OwnListener)
        };
        let seed = self.random();
        // What requests have learnt of these servers says little about responses: all are tried in their order.
        let mut health = Health::new(health_policy(&policy));
        let mut selection = Selection::new(located, seed, policy.config.dns.srv_selection);
        let mut hops = SmallVec::new();
        while hops.len() < usize::from(MOST)
            && let Some(candidate) = selection.next(now, &mut health, &avoid)
        {
            let addr = candidate.instance.addr;
            let family = |id| policy.listener(id).is_some_and(|l| l.bind.is_ipv4() == addr.is_ipv4());
            let realm = crate::proxy::realm_of(context.party);
            let listener = if family(reply.listener) {
                Some(reply.listener)
            } else {
                policy.egress(realm, reply.transport, addr.ip()).map(|l| l.id)
            };
            if let Some(listener) = listener {
                hops.push(Hop { listener, ..reply.hop_to(addr, None, tls.clone()) });
            }
        }
        hops.reverse();
        hops
    }

    /// Takes another way, with the last response first.
    fn go_by(&mut self, now: Instant, handle: Handle, context: &mut Context, hop: Hop) {
        context.ways_tried += 1;
        context.way = next_number(context.way);
        context.reply.detour = Some(Box::new(hop));
        let hold = self.policy.config.sip.connect_timeout;
        self.hold(now, handle, context, hold);
        if let Some(bytes) = context.last.clone() {
            return self.send_upstream(now, handle, context, bytes);
        }
        // Over UDP the transaction has it; a 2xx to an INVITE it has not, but that will be repeated by its sender.
        match &mut context.server {
            Server::Invite(m) => m.on_retransmission(&mut self.fx),
            Server::NonInvite(m) => m.on_retransmission(&mut self.fx),
            Server::Gone => return,
        }
        self.apply_server(now, handle, context);
    }

    /// No way is left.
    fn response_lost(&mut self, now: Instant, handle: Handle, context: &mut Context) {
        self.stats.drop("response_undeliverable");
        context.last = None;
        match &mut context.server {
            Server::Invite(m) => m.on_transport_error(&mut self.fx),
            Server::NonInvite(m) => m.on_transport_error(&mut self.fx),
            Server::Gone => return,
        }
        self.apply_server(now, handle, context);
    }

    /// Keeps a context with its last response for a while longer: that a way has failed is told only later, and
    /// nothing tells that one has not.
    pub(super) fn hold(&mut self, now: Instant, handle: Handle, context: &mut Context, expected: Duration) {
        let after = expected + self.policy.timers.t1;
        context.held_until = Some(now + after);
        self.timers.arm(now, after, TimerKey { handle, who: Who::Return, timer: Timer::J });
    }

    /// The time of [`Self::hold`] is over, unless it was set anew.
    pub(super) fn held_long_enough(&mut self, now: Instant, context: &mut Context) {
        if context.held_until.is_some_and(|until| until <= now) {
            context.held_until = None;
            context.last = None;
        }
    }
}

/// Ways are told apart by a number of three bits: more than that many failures are never on their way back.
fn next_number(way: u8) -> u8 {
    (way + 1) & 7
}

/// The topmost Via of a message that may be cut off anywhere; `None` where it is folded or broken.
pub(crate) fn top_via(message: &[u8]) -> Option<ViaRef<'_>> {
    let mut start = memchr::memchr(b'\n', message)? + 1;
    loop {
        let rest = message.get(start..)?;
        let end = memchr::memchr(b'\n', rest)?;
        let line = rest.get(..end)?;
        let colon = memchr::memchr(b':', line)?;
        let name = line.get(..colon)?.trim_ascii_end();
        if name.eq_ignore_ascii_case(b"via") || name.eq_ignore_ascii_case(b"v") {
            let value = line.get(colon + 1..)?;
            let value = value.split(|b| *b == b',').next()?;
            let indent = value.len() - value.trim_ascii_start().len();
            let from = start + colon + 1 + indent;
            let range = from..from + value.trim_ascii().len();
            return ViaRef::parse(message, range, start..start + end + 1, true);
        }
        start += end + 1;
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn the_topmost_via_is_found_in_what_an_error_quotes() {
        let text = b"SIP/2.0 200 OK\r\nServer: x\r\nVia: SIP/2.0/UDP a.test:5070;branch=z9hG4bKx , SIP/2.0/UDP b\r\nCall";
        let via = top_via(text).unwrap();
        assert_eq!((via.branch(), via.port()), (Some(&b"z9hG4bKx"[..]), Some(5070)));
        let short = b"SIP/2.0 180 Ringing\r\nv:SIP/2.0/TCP [2001:db8::1];branch=z9hG4bKy\r\n";
        assert_eq!(top_via(short).unwrap().branch(), Some(&b"z9hG4bKy"[..]));
        for len in 0..short.len() {
            assert!(top_via(&short[..len]).is_none(), "{len}");
        }
        assert!(top_via(b"SIP/2.0 200 OK\r\nVia: garbage\r\n").is_none());
    }

    #[test]
    fn ways_have_numbers_that_fit_beside_those_of_attempts() {
        let mut way = 0;
        for _ in 0..100 {
            way = next_number(way);
            assert!(way < 8);
        }
    }
}
