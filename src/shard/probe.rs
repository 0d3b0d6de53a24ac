//! OPTIONS probes of our own (RFC 3261 §11): one client transaction, no server side.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use smallvec::{SmallVec, smallvec};

use crate::flow::{Hop, Host, PeerId};
use crate::location::{Instance, Observation};
use crate::peering::Party;
use crate::proxy::{Attempt, Cancel, Client, Context, Kind, ReplyPath, Server, Stage};
use crate::transaction::{Branch, ClientNonInvite};
use crate::wire::{Method, build};

use super::owner::owner_of;
use super::{Core, Shard};

impl Shard {
    /// Sends one probe; what comes of it is an observation of the instance.
    pub(super) fn start_probe(
        &mut self,
        now: Instant,
        peer: PeerId,
        hop: Hop,
        uri: &Arc<str>,
        timeout: Duration,
    ) {
        let policy = Arc::clone(&self.core.policy);
        let Some(out) = policy.listener(hop.listener) else { return };
        let Some(handle) = self.slots.reserve(usize::MAX) else { return };
        let random = self.core.random();
        let branch = Branch::mint(self.core.id, handle.slot, handle.generation, random, 0);
        let call_id = self.own_call_id(&policy.config.node.name);
        let tag = format!("{:016x}", self.core.random());
        // The row begins with its name, which the builder writes itself.
        let prefix = out.via_prefix.strip_prefix(b"Via: ").unwrap_or(&out.via_prefix);
        let via = [prefix, branch.as_bytes()].concat();
        let from = policy.config.node.name.to_string();
        let request: Bytes =
            build::options_probe(uri.as_bytes(), &via, &from, call_id.as_bytes(), tag.as_bytes(), 1).into();
        let timers = policy.timers_to(Party::Peer(peer));
        let reliable = hop.transport.is_reliable();
        let client = ClientNonInvite::start(request, reliable, timers, timeout, &mut self.core.fx);
        let nowhere = SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0);
        let reply = ReplyPath {
            transport: hop.transport,
            listener: hop.listener,
            to: nowhere,
            conn: None,
            fallback: nowhere,
            identity: None,
            detour: None,
        };
        let attempt = Attempt {
            client: Client::NonInvite(client),
            hop,
            branch: random,
            loop_hash: 0,
            stage: Stage::Live,
            answered: false,
            ringing: false,
            cancel: Cancel::No,
            conn: None,
            reused: false,
            retried: false,
            overdue: false,
            later: None,
            leg: 0,
            record: 0,
            to: Party::Peer(peer),
        };
        let attempts: SmallVec<[Attempt; 1]> = smallvec![attempt];
        let mut context = Box::new(Context {
            kind: Kind::Probe,
            method: Method::Options,
            key: None,
            server: Server::Gone,
            reply,
            party: Party::Core,
            started: now,
            via_hash: 0,
            call: None,
            cancelled: false,
            answered: true,
            attempts,
            live: None,
            probe: Some(peer),
            last: None,
            way: 0,
            ways_tried: 0,
            sent_by: None,
            servers: None,
            held_until: None,
        });
        self.core.apply_attempt(now, handle, &mut context, 0, None);
        self.settle(handle, context);
    }
}

impl Shard {
    /// A Call-ID of ours that this shard owns, so that the answer comes back here.
    fn own_call_id(&mut self, host: &Host) -> String {
        loop {
            let id = format!("{:016x}@{host}", self.core.random());
            if owner_of(id.as_bytes(), self.core.owner, self.shards) == usize::from(self.core.id) {
                return id;
            }
        }
    }
}

impl Core {
    /// Whether a final response to a probe counts as a good answer.
    pub(super) fn is_alive(&self, context: &Context, status: u16) -> bool {
        let probe = context.probe.and_then(|p| self.policy.peer(p)).and_then(|p| p.config.probe.as_ref());
        probe.is_some_and(|p| p.alive.counts(status))
    }

    pub(super) fn probe_ended(
        &mut self,
        now: Instant,
        context: &mut Context,
        instance: Instance,
        good: bool,
    ) {
        let Some(peer) = context.probe else { return };
        let policy = Arc::clone(&self.policy);
        let Some(probe) = policy.peer(peer).and_then(|p| p.config.probe.as_ref()) else { return };
        let seen = if good {
            Observation::ProbeGood { up_after: probe.up_after }
        } else {
            Observation::ProbeBad { down_after: probe.down_after }
        };
        self.observe(now, Some(peer), instance, seen);
    }
}
