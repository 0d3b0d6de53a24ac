//! The ACK for a 2xx: forwarded without a transaction (RFC 3261 §16.11 in spirit, §13.2.2.4).

use std::sync::Arc;
use std::time::Instant;

use crate::flow::Origin;
use crate::location::{Instance, Observation, Selection, Standing};
use crate::peering::Party;
use crate::proxy::decision::Rule;
use crate::proxy::{Decision, Forward, Kind, Plan, ReplyPath, decide, forward, takes_back, validate};
use crate::transaction::Branch;
use crate::wire::{Index, Message, ViaRef};

use super::{Core, Event, Output, Send, Shard};

/// Place of a branch that no response can belong to.
const NOWHERE: u32 = u32::MAX;

impl Shard {
    /// The ACK for a 2xx: routed like a request, without a transaction; whatever forbids that drops it.
    #[allow(clippy::too_many_arguments)]
    pub(super) fn forward_ack(
        &mut self,
        now: Instant,
        origin: &Origin,
        msg: &Message<'_>,
        via: &ViaRef<'_>,
        party: Party,
        reply: ReplyPath,
        index: &Arc<Index>,
    ) {
        // The ACK to an error of ours whose transaction is gone already ends here.
        if msg.to_tag().is_some_and(|t| t.starts_with(b"sbe-") && t.len() == 12) {
            return self.core.stats.drop("late_ack");
        }
        let loop_hash = self.core.loop_hash(msg);
        if validate(msg, loop_hash, |v| self.core.is_our_via(v)).is_err() {
            return self.core.stats.drop("bad_ack");
        }
        let token = self.core.dialog(msg).and_then(|(_, token)| token);
        let plan = match decide(&self.core.policy, party, msg, token.as_ref()) {
            Decision::Forward(plan) => plan,
            Decision::Answer | Decision::Refuse(_) => return self.core.stats.drop("ack_not_routed"),
        };
        if self.core.ack_at_once(now, origin, msg, party, loop_hash, &plan) {
            return;
        }
        let cap = self.core.cap(self.shards);
        let Some(handle) = self.slots.reserve(cap) else { return self.core.stats.drop("table_full") };
        let mut context =
            self.core.context(now, origin, msg, via, party, None, reply, Kind::Ack, loop_hash, plan, index);
        self.core.locate(now, handle, &mut context);
        self.settle(handle, context);
    }
}

impl Core {
    /// Sends an ACK to the address that its route set names, as most do, without keeping anything of it. False,
    /// with nothing done: there is something to be asked or weighed first.
    fn ack_at_once(
        &mut self,
        now: Instant,
        origin: &Origin,
        msg: &Message<'_>,
        party: Party,
        loop_hash: u32,
        plan: &Plan,
    ) -> bool {
        let policy = Arc::clone(&self.policy);
        let ([leg], Rule::RouteSet) = (plan.legs.as_slice(), plan.rule) else { return false };
        let [key] = leg.keys.as_slice() else { return false };
        if super::candidates::is_large(msg.bytes.len()) {
            return false;
        }
        let Some(located) = self.literals.get(key, policy.enabled(key.realm), &self.call_hash, now) else {
            return false;
        };
        let seed = self.seed(msg.call_id());
        let mut selection = Selection::new(located, seed, policy.config.dns.srv_selection);
        let own = |instance: &Instance| super::candidates::own_listener(&policy, instance);
        let Some(candidate) = selection.next(now, &mut self.health, &own) else { return false };
        let Some(hop) = self.hop_for(plan, leg, selection.located(), &candidate) else { return false };
        let (Some(out), Some(inn)) = (policy.listener(hop.listener), policy.listener(origin.listener)) else {
            return false;
        };
        if candidate.standing == Standing::Trial {
            let event = Event::Health(candidate.instance, Observation::TrialBegun);
            self.outputs.push_back(Output::Event(event));
        }
        let branch = Branch::mint(self.id, NOWHERE, 0, self.random(), loop_hash);
        let bytes = forward(
            msg,
            &Forward {
                out,
                inn,
                source: origin.remote,
                routing: &plan.routing,
                uri: leg.uri.as_deref(),
                branch: &branch,
                // An ACK makes no dialog.
                token: b"",
                alias: hop.tls.as_deref().is_some_and(|tls| takes_back(&policy, leg.party, tls)),
                strip: policy.stripped(party, leg.party, msg),
            },
        );
        self.outputs.push_back(Output::Send(Send { hop, bytes: bytes.into(), token: None, request: false }));
        true
    }
}
