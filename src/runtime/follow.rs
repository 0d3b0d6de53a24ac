//! Keeps `sources = ["dns:…"]` in step with the DNS: locates each name like a call would, again when that has run
//! out, and puts what has changed into the policy. Off the path of every request.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use tokio::sync::{Notify, mpsc};

use crate::config::Realm;
use crate::flow::{Host, PeerId};
use crate::location::{LocateKey, Located, Outcome, StepOutcome};
use crate::peering::published::{Published, PublishedName};
use crate::proxy::Policy;

use super::node::Node;

/// Most names followed; the ones beyond let nobody in.
pub const MAX_NAMES: usize = 4096;
/// Most addresses taken from one name.
pub const MAX_ADDRESSES: usize = 256;
/// Locations under way at a time.
const MAX_LOCATING: usize = 16;
/// A name is located again no sooner than this.
const LEAST_TTL: Duration = Duration::from_secs(1);
/// And no later.
const MOST_TTL: Duration = Duration::from_secs(3600);
/// No later than this where the DNS could not say everything.
const RETRY: Duration = Duration::from_secs(30);
/// The longest sleep; a change of policy ends it at once.
const NAP: Duration = Duration::from_secs(60);

/// Between looks whether peers that a reload has removed still have calls.
const GLANCE: Duration = Duration::from_secs(5);

/// Forgets peers that a reload has removed once their calls have ended, until the node is gone.
pub(super) async fn forget_departed(node: Weak<Node>) {
    loop {
        tokio::time::sleep(GLANCE).await;
        let Some(node) = node.upgrade() else { return };
        // It may wait for a reload.
        if tokio::task::spawn_blocking(move || node.forget_departed()).await.is_err() {
            tracing::error!("removed peers cannot be forgotten");
        }
    }
}

/// One name of one peer.
struct Name {
    peer: PeerId,
    key: LocateKey,
    /// When to locate it; `None`: under way.
    next: Option<Instant>,
    /// What is known serves until then without news from the DNS.
    good_until: Option<Instant>,
    /// What it led to; `None`: never asked.
    found: Option<PublishedName>,
}

/// All names that are followed.
#[derive(Default)]
struct Follower {
    names: Vec<Name>,
}

/// Follows the names until the node is gone. `changed` tells of a new policy.
pub(super) async fn run(node: Weak<Node>, changed: Arc<Notify>) {
    let mut follower = Follower::default();
    let (found, mut finds) = mpsc::channel::<Arc<Located>>(MAX_LOCATING);
    let mut config = None;
    let mut locating = 0;
    let mut located: Option<Arc<Located>> = None;
    loop {
        let Some(node) = node.upgrade() else { return };
        let now = Instant::now();
        let policy = node.policy();
        // What is published makes another policy, but no other configuration.
        if config.as_ref().is_none_or(|known| !Arc::ptr_eq(known, &policy.config)) {
            config = Some(Arc::clone(&policy.config));
            follower.take_over(&policy, now);
        }
        if let Some(located) = located.take() {
            follower.located(now, &located, policy.config.dns.stale_ttl);
        }
        let published = follower.published();
        if published != *policy.published() {
            tell(&policy, &published);
            let node = Arc::clone(&node);
            // It waits for a reload that is under way, which reads files.
            let _ = tokio::task::spawn_blocking(move || node.set_published(published)).await;
        }
        while locating < MAX_LOCATING
            && let Some(key) = follower.due(now)
        {
            locating += 1;
            let (resolver, found) = (node.resolver().clone(), found.clone());
            tokio::spawn(async move {
                // Whoever would have heard it has gone if this fails.
                let _ = found.send(resolver.locate(key).await).await;
            });
        }
        let nap = follower.nap(now, locating < MAX_LOCATING);
        drop((policy, node));
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

/// Tells of what has changed.
fn tell(policy: &Policy, published: &Published) {
    for (peer, name, found) in published.iter() {
        let before = policy.published().get(peer, name);
        if before.is_some_and(|b| b.addrs == found.addrs) || before.is_none() && found.addrs.is_empty() {
            continue;
        }
        let peer = policy.peer_name(Some(peer));
        let addrs = found.addrs.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ");
        tracing::info!(peer, %name, addresses = addrs, "the addresses that the peer may send from have changed");
    }
}

impl Follower {
    /// Takes over a configuration; what both old and new one name goes on as it was, and is located anew.
    fn take_over(&mut self, policy: &Policy, now: Instant) {
        let mut before = std::mem::take(&mut self.names);
        let named =
            policy.peers.iter().flatten().flat_map(|p| p.config.source_names.iter().map(|n| (p.id, n)));
        for (peer, host) in named.take(MAX_NAMES) {
            let key = LocateKey {
                host: host.clone(),
                port: None,
                transport: None,
                sips: false,
                realm: Realm::Peering,
            };
            let known = before.iter().position(|b| b.peer == peer && b.key == key);
            let mut name = known.map(|at| before.swap_remove(at)).unwrap_or(Name {
                peer,
                key,
                next: Some(now),
                good_until: None,
                found: None,
            });
            name.next = name.next.map(|_| now);
            self.names.push(name);
        }
    }

    /// Takes in what was found for a key.
    fn located(&mut self, now: Instant, located: &Located, stale_ttl: Duration) {
        let life = located.expires.saturating_duration_since(now).clamp(LEAST_TTL, MOST_TTL);
        let failed = matches!(located.outcome, Outcome::DnsFailure | Outcome::TimedOut);
        let whole = !failed
            && located.steps.iter().all(|s| {
                let said =
                    matches!(s.outcome, StepOutcome::Found | StepOutcome::NoData | StepOutcome::NxDomain);
                said && !s.stale
            });
        for name in self.names.iter_mut().filter(|n| n.key == located.key) {
            let mut addrs: BTreeSet<IpAddr> = addresses(located);
            if whole {
                name.next = Some(now + life);
                name.good_until = Some(now + life + stale_ttl);
            } else {
                name.next = Some(now + life.min(RETRY));
                if name.good_until.is_some_and(|until| now < until) {
                    addrs.extend(name.found.iter().flat_map(|f| f.addrs.iter().copied()));
                }
            }
            let left_out = addrs.len().saturating_sub(MAX_ADDRESSES);
            let addrs = addrs.into_iter().take(MAX_ADDRESSES).collect();
            name.found = Some(PublishedName { addrs, stale: !whole, left_out });
        }
    }

    /// The next key that is to be located, if one is due; each comes once until its answer.
    fn due(&mut self, now: Instant) -> Option<LocateKey> {
        let key = self.names.iter().find(|n| n.next.is_some_and(|t| t <= now))?.key.clone();
        for name in self.names.iter_mut().filter(|n| n.key == key) {
            name.next = None;
        }
        Some(key)
    }

    /// What is known of all names.
    fn published(&self) -> Published {
        let mut all = Published::default();
        for name in &self.names {
            if let Some(found) = &name.found {
                all.set(name.peer, Host::clone(&name.key.host), found.clone());
            }
        }
        all
    }

    /// How long nothing is due. `may_locate`: due locations could be begun.
    fn nap(&self, now: Instant, may_locate: bool) -> Duration {
        let next = self.names.iter().filter(|_| may_locate).filter_map(|n| n.next).min();
        next.map_or(NAP, |t| t.saturating_duration_since(now)).clamp(Duration::from_millis(1), NAP)
    }
}

/// The addresses of all servers, whatever their rank. What nobody can send from is left out.
fn addresses(located: &Located) -> BTreeSet<IpAddr> {
    let servers = located.tiers.iter().flat_map(|t| &t.servers);
    let addrs = servers.flat_map(|s| s.addrs.iter().map(IpAddr::to_canonical));
    addrs.filter(|a| !a.is_unspecified() && !a.is_multicast()).collect()
}

#[cfg(test)]
mod tests;
