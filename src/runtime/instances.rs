//! What the node knows of the instances of its peers: how each stands, over all shards.

use std::collections::BTreeMap;
use std::time::Instant;

use crate::flow::PeerId;
use crate::location::{Instance, Standing};

use super::costs::Down;
use super::node::{Listed, Node};

/// Most instances listed.
const MAX_LISTED: usize = 4096;

impl Node {
    /// Instances of which something is remembered, with the worst standing of all shards.
    pub fn health(&self, now: Instant) -> BTreeMap<Instance, Standing> {
        let mut worst: BTreeMap<Instance, Standing> = BTreeMap::new();
        for (instance, standing) in self.each(|shard| shard.health(now)).into_iter().flatten() {
            let known = worst.entry(instance).or_insert(standing);
            if badness(&standing) > badness(known) {
                *known = standing;
            }
        }
        worst
    }

    /// The instances that are down.
    pub(super) fn down(&self, now: Instant) -> Down {
        let down = |s: &Standing| matches!(s, Standing::Down { .. } | Standing::ProbedDown);
        self.health(now).into_iter().filter(|(_, s)| down(s)).map(|(i, _)| i).collect()
    }

    /// The instances that were located for calls within the last hour, or are probed; by peer, then instance.
    pub fn instances(&self, now: Instant) -> Vec<Listed> {
        let health = self.health(now);
        let mut all: BTreeMap<(Option<PeerId>, Instance), bool> = BTreeMap::new();
        for (peer, instance) in self.probed.load().iter() {
            all.insert((Some(*peer), *instance), true);
        }
        for (peer, located) in self.stats().locations(now) {
            for instance in located.instances() {
                if all.len() >= MAX_LISTED {
                    break;
                }
                all.entry((peer, instance)).or_insert(false);
            }
        }
        all.into_iter()
            .map(|((peer, instance), probed)| Listed {
                peer,
                instance,
                standing: health.get(&instance).copied().unwrap_or(Standing::Up),
                probed,
            })
            .collect()
    }
}

/// Order of standings, worse ones higher.
fn badness(standing: &Standing) -> (u8, Option<Instant>) {
    match standing {
        Standing::Up => (0, None),
        Standing::Trial => (1, None),
        Standing::Down { until } => (2, Some(*until)),
        Standing::ProbedDown => (3, None),
    }
}
