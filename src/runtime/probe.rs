//! When which instance gets an OPTIONS probe: each resolved address on its own, at the peer's interval.
//!
//! The shard sends the probe and judges the answer; here stand only the addresses and the clock. A
//! wildcard domain names nobody, so it is not probed.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use tokio::sync::{Notify, mpsc};

use crate::config::{DomainPattern, Probe, Realm};
use crate::flow::{Hop, Host, PeerId, Transport};
use crate::location::{Instance, LocateKey, Located, Observation, Outcome, Server};
use crate::peering::Party;
use crate::proxy::policy::locate_key;
use crate::proxy::{PeerEntry, Policy, expectation};
use crate::shard::Update;

use super::node::Node;

/// Most instances probed.
pub const MAX_PROBED: usize = 4096;
/// Most names looked up for probing.
const MAX_NAMES: usize = 4096;
/// Locations under way at a time.
const MAX_LOCATING: usize = 64;
/// A location is asked for again no sooner than this.
const LEAST_TTL: Duration = Duration::from_secs(1);
/// And no later.
const MOST_TTL: Duration = Duration::from_secs(3600);
/// The first probes are spread over this time, or over the interval if that is shorter.
const SPREAD: Duration = Duration::from_secs(2);
/// The longest sleep; a change of policy ends it at once.
const NAP: Duration = Duration::from_secs(60);

/// One name (or address) to look up for a peer.
struct Place {
    peer: PeerId,
    key: LocateKey,
    /// When to look it up; `None`: under way.
    next: Option<Instant>,
    /// What it led to last.
    instances: Vec<Instance>,
}

/// One instance to probe.
struct Target {
    hop: Hop,
    uri: Arc<str>,
    next: Instant,
}

/// What is probed, and when next.
struct Schedule {
    places: Vec<Place>,
    targets: BTreeMap<(PeerId, Instance), Target>,
    rng: StdRng,
    /// The shard whose turn it is.
    turn: usize,
}

/// Probes until the node is gone. `changed` tells of a new policy.
pub(super) async fn run(node: Weak<Node>, changed: Arc<Notify>, seed: [u8; 32]) {
    let mut schedule = Schedule::new(seed);
    let (found, mut finds) = mpsc::channel::<Arc<Located>>(MAX_LOCATING);
    let mut policy: Option<Arc<Policy>> = None;
    let mut locating = 0;
    let mut located: Option<Arc<Located>> = None;
    loop {
        // Held only while there is something to do, so that the prober does not keep the node alive.
        let Some(node) = node.upgrade() else { return };
        let now = Instant::now();
        let current = node.policy();
        if policy.as_ref().is_none_or(|p| !Arc::ptr_eq(p, &current)) {
            let gone = schedule.take_over(&current, now);
            policy = Some(Arc::clone(&current));
            publish(&node, &schedule, gone);
        }
        if let Some(located) = located.take() {
            let gone = schedule.located(&current, now, &located);
            publish(&node, &schedule, gone);
        }
        while locating < MAX_LOCATING
            && let Some(key) = schedule.due_location(now)
        {
            locating += 1;
            let (resolver, found) = (node.resolver().clone(), found.clone());
            tokio::spawn(async move {
                // Whoever would have heard it has gone if this fails.
                let _ = found.send(resolver.locate(key).await).await;
            });
        }
        for (shard, update) in schedule.due_probes(&current, now) {
            node.update(Some(shard % node.shards().max(1)), update);
        }
        let nap = schedule.nap(now, locating < MAX_LOCATING);
        drop(node);
        tokio::select! {
            find = finds.recv() => {
                locating -= 1;
                located = find;
            }
            () = tokio::time::sleep(nap) => {}
            () = changed.notified() => {}
        }
    }
}

/// Makes known what is probed; what no longer is must not stay down for ever, as nobody would bring it back.
fn publish(node: &Node, schedule: &Schedule, gone: Vec<Instance>) {
    for instance in gone {
        node.update(None, Update::Health(instance, Observation::ProbeGood { up_after: 1 }));
    }
    node.set_probed(schedule.targets.keys().copied().collect());
}

impl Schedule {
    fn new(seed: [u8; 32]) -> Self {
        Self { places: Vec::new(), targets: BTreeMap::new(), rng: StdRng::from_seed(seed), turn: 0 }
    }

    /// Takes over a policy; what both old and new one name goes on as it was. Returns what is no longer probed.
    fn take_over(&mut self, policy: &Policy, now: Instant) -> Vec<Instance> {
        let mut before: Vec<Place> = std::mem::take(&mut self.places);
        let probed = policy.peers.iter().flatten().filter(|p| p.config.probe.is_some());
        for (peer, key) in probed.flat_map(|p| keys(p).into_iter().map(|key| (p.id, key))).take(MAX_NAMES) {
            let known = before.iter().position(|b| b.peer == peer && b.key == key);
            let mut place = known.map(|at| before.swap_remove(at)).unwrap_or(Place {
                peer,
                key,
                next: Some(now),
                instances: Vec::new(),
            });
            // Listeners and names for TLS may have changed.
            place.next = place.next.map(|_| now);
            self.places.push(place);
        }
        self.forget()
    }

    /// Takes in what was found for a key. Returns what is no longer probed.
    fn located(&mut self, policy: &Policy, now: Instant, located: &Located) -> Vec<Instance> {
        let life = located.expires.saturating_duration_since(now).clamp(LEAST_TTL, MOST_TTL);
        let spread = life.mul_f64(self.rng.random_range(0.0..0.1));
        // Without news from the DNS the addresses known last are probed on.
        let failed = matches!(located.outcome, Outcome::DnsFailure | Outcome::TimedOut);
        let found: Vec<(Instance, Server)> = servers(located);
        let mut fresh = Vec::new();
        for place in self.places.iter_mut().filter(|p| p.key == located.key) {
            place.next = Some(now + life + spread);
            if failed {
                continue;
            }
            place.instances.clear();
            let Some(peer) = policy.peer(place.peer) else { continue };
            for (instance, server) in &found {
                if policy.domains.is_own_socket(instance.addr) {
                    continue;
                }
                let Some(hop) = hop(policy, peer, *instance, located.hop_of(server)) else {
                    continue;
                };
                place.instances.push(*instance);
                fresh.push((place.peer, *instance, hop));
            }
        }
        for (peer, instance, hop) in fresh {
            self.probe_from_now_on(policy, now, peer, instance, hop);
        }
        self.forget()
    }

    fn probe_from_now_on(
        &mut self,
        policy: &Policy,
        now: Instant,
        peer: PeerId,
        instance: Instance,
        hop: Hop,
    ) {
        if let Some(target) = self.targets.get_mut(&(peer, instance)) {
            target.hop = hop;
            return;
        }
        let Some(probe) = policy.peer(peer).and_then(|p| p.config.probe.as_ref()) else { return };
        if self.targets.len() >= MAX_PROBED {
            return;
        }
        let within = probe.interval.min(SPREAD);
        let next = now + within.mul_f64(self.rng.random_range(0.0..1.0));
        self.targets.insert((peer, instance), Target { hop, uri: uri(instance), next });
    }

    /// Drops the targets that no place leads to, and names them.
    fn forget(&mut self) -> Vec<Instance> {
        let named: BTreeSet<(PeerId, Instance)> =
            self.places.iter().flat_map(|p| p.instances.iter().map(|i| (p.peer, *i))).collect();
        let mut gone = BTreeSet::new();
        self.targets.retain(|target, _| {
            let stays = named.contains(target);
            if !stays {
                gone.insert(target.1);
            }
            stays
        });
        gone.into_iter().filter(|i| !self.targets.keys().any(|(_, other)| other == i)).collect()
    }

    /// The next key that is to be located, if one is due; each comes once until its answer.
    fn due_location(&mut self, now: Instant) -> Option<LocateKey> {
        let place = self.places.iter().find(|p| p.next.is_some_and(|t| t <= now))?;
        let key = place.key.clone();
        for place in self.places.iter_mut().filter(|p| p.key == key) {
            place.next = None;
        }
        Some(key)
    }

    /// The probes that are due, each with a number that spreads them over the shards.
    fn due_probes(&mut self, policy: &Policy, now: Instant) -> Vec<(usize, Update)> {
        let mut due = Vec::new();
        for ((peer, _), target) in &mut self.targets {
            if target.next > now {
                continue;
            }
            let Some(probe) = policy.peer(*peer).and_then(|p| p.config.probe.as_ref()) else { continue };
            target.next = now + jittered(probe, &mut self.rng);
            self.turn = self.turn.wrapping_add(1);
            let update = Update::Probe {
                peer: *peer,
                hop: target.hop.clone(),
                uri: Arc::clone(&target.uri),
                timeout: probe.timeout,
            };
            due.push((self.turn, update));
        }
        due
    }

    /// How long nothing is due. `may_locate`: due locations could be begun.
    fn nap(&self, now: Instant, may_locate: bool) -> Duration {
        let places = self.places.iter().filter(|_| may_locate).filter_map(|p| p.next);
        let next = self.targets.values().map(|t| t.next).chain(places).min();
        // The timer's grain is a millisecond.
        next.map_or(NAP, |t| t.saturating_duration_since(now)).clamp(Duration::from_millis(1), NAP)
    }
}

/// The interval, give or take a tenth, so that probes of many nodes do not come in step.
fn jittered(probe: &Probe, rng: &mut StdRng) -> Duration {
    probe.interval.mul_f64(rng.random_range(0.9..=1.1))
}

/// What to look up for a peer: its next hop, else its exact domains.
fn keys(peer: &PeerEntry) -> Vec<LocateKey> {
    if let Some(hop) = &peer.config.next_hop {
        return vec![locate_key(hop, Realm::Peering)];
    }
    let exact = peer.config.domains.iter().filter_map(|domain| match domain {
        DomainPattern::Exact(host) => Some(host.clone()),
        DomainPattern::Below(_) => None,
    });
    exact
        .map(|host| LocateKey { host, port: None, transport: None, sips: false, realm: Realm::Peering })
        .collect()
}

/// The different instances of a result, each with the server that it belongs to.
fn servers(located: &Located) -> Vec<(Instance, Server)> {
    let mut seen = BTreeSet::new();
    let mut all = Vec::new();
    for server in located.tiers.iter().flat_map(|t| &t.servers) {
        for at in 0..server.addrs.len() {
            if let Some(instance) = server.instance(at)
                && seen.insert(instance)
            {
                all.push((instance, server.clone()));
            }
        }
    }
    all
}

/// How a probe gets there: like a request for this peer, rules 5 and 6.
fn hop(policy: &Policy, peer: &PeerEntry, instance: Instance, host: &Host) -> Option<Hop> {
    let Instance { transport, addr } = instance;
    let listener = policy.egress(Realm::Peering, transport, addr.ip())?;
    let tls = (transport == Transport::Tls).then(|| expectation(policy, Party::Peer(peer.id), host, None));
    Some(Hop {
        transport,
        listener: listener.id,
        remote: addr,
        conn: None,
        fresh: false,
        tls: tls.map(Arc::new),
    })
}

/// The Request-URI of a probe: the address itself.
fn uri(instance: Instance) -> Arc<str> {
    match instance.transport {
        Transport::Udp => format!("sip:{}", instance.addr).into(),
        transport => format!("sip:{};transport={transport}", instance.addr).into(),
    }
}

#[cfg(test)]
mod tests;
