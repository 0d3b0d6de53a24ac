//! What somebody who watches a node reads every second: cheap, and a shard at a time.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use crate::flow::PeerId;
use crate::location::Instance;
use crate::peering::{InstanceLimits, Party, Used};
use crate::proxy::decision::Record;
use crate::shard::Stats;
use crate::shard::overload::State;

use super::node::Node;

/// Records looked at under one lock of a shard.
const PAGE: usize = 128;

/// Since when instances have been down, and the word for why.
pub type Fallen = BTreeMap<Instance, (Instant, &'static str)>;

/// How far the finished records have been read, by shard.
#[derive(Clone, Debug, Default)]
pub struct Places(Vec<u64>);

/// The few numbers that change from second to second.
#[derive(Clone, Debug, Default)]
pub struct Glance {
    /// The counters, without what was located.
    pub stats: Stats,
    /// Calls counted.
    pub calls: usize,
    /// Server transactions without a final response.
    pub open: usize,
    /// Places taken of `limits.transactions`.
    pub contexts: usize,
}

impl Node {
    /// How the overload governor stands: of all shards, the one that admits least.
    pub fn overload(&self, now: Instant) -> State {
        let all = self.each(|shard| shard.overload(now)).into_iter();
        let calm = State { shedding: false, admit: 1.0, delay: Duration::ZERO };
        all.fold(calm, |worst, one| State {
            shedding: worst.shedding || one.shedding,
            admit: worst.admit.min(one.admit),
            delay: worst.delay.max(one.delay),
        })
    }

    /// The numbers of this moment.
    pub fn glance(&self) -> Glance {
        let mut sum = Glance::default();
        for one in self.each(|s| Glance {
            stats: s.stats().numbers(),
            calls: s.calls(),
            open: s.open(),
            contexts: s.contexts(),
        }) {
            sum.stats.merge(&one.stats);
            sum.calls += one.calls;
            sum.open += one.open;
            sum.contexts += one.contexts;
        }
        sum
    }

    /// Shows the records that were finished since `places`, and moves those on. A shard's are shown in pages, so
    /// that calls get in between. Records that were dropped before anybody looked are not shown.
    pub fn fresh_records(&self, places: &mut Places, see: &mut dyn FnMut(&Record)) {
        places.0.resize(self.shards(), 0);
        for (shard, place) in places.0.iter_mut().enumerate() {
            // What is finished meanwhile comes the next time: no more pages than a shard keeps records.
            for _ in 0..self.policy().config.limits.records.div_ceil(PAGE).max(1) {
                let next = self.with_shard(shard, |s| s.records_after(*place, PAGE, see)).unwrap_or(*place);
                if next == *place {
                    break;
                }
                *place = next;
            }
        }
    }

    /// Instances that have come back, and the part of their weight that they get so far; of all shards, the least.
    pub fn ramps(&self, now: Instant) -> BTreeMap<Instance, f64> {
        let mut all: BTreeMap<Instance, f64> = BTreeMap::new();
        for (instance, part) in self.each(|shard| shard.ramps(now)).into_iter().flatten() {
            let known = all.entry(instance).or_insert(part);
            *known = known.min(part);
        }
        all
    }

    /// Since when instances have been down, and the word for why; of all shards, the one that knew it first.
    pub fn fallen(&self) -> Fallen {
        let mut all = Fallen::new();
        for (instance, since, reason) in self.each(|shard| shard.fallen()).into_iter().flatten() {
            let known = all.entry(instance).or_insert((since, reason));
            if since < known.0 {
                *known = (since, reason);
            }
        }
        all
    }

    /// What counts against the limits of a peer's instance; `None`: it has none.
    pub fn used_of(&self, now: Instant, peer: PeerId, instance: &Instance) -> Option<(Used, InstanceLimits)> {
        let party = Party::Peer(peer);
        let limits = self.policy().instance_limits(party);
        let key = limits.any().then(|| self.with_shard(0, |shard| shard.seat_key(party, instance)))??;
        Some((self.ledger().used_of(now, key, limits), limits))
    }
}
