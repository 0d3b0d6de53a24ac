//! Peers that a reload has removed while they had calls: what they may still do.
//!
//! A request from a removed peer would be a stranger's, and the BYE of a call that still goes on would be lost. So
//! for a while their addresses and certificates are still known, for requests within dialogs that carry our
//! token and for nothing else. An address that is somebody else's now is that one's.

use std::time::{Duration, Instant};

use ahash::AHashMap;
use ipnet::IpNet;

use crate::flow::{Origin, PeerId};
use crate::peering::{Party, Sources};

use super::policy::{PeerEntry, Policy, sources_of};

/// Most removed peers remembered; of more, the ones that were removed first are forgotten.
const MOST: usize = 256;

/// A peer that was removed.
#[derive(Clone, Debug)]
struct Gone {
    peer: PeerEntry,
    /// All that it might send from.
    nets: Vec<IpNet>,
    since: Instant,
}

/// Peers that were removed.
#[derive(Clone, Debug, Default)]
pub(super) struct Departed {
    /// The one removed first comes first.
    peers: Vec<Gone>,
    sources: Sources,
    tls_names: AHashMap<String, Party>,
}

impl Departed {
    fn of(peers: Vec<Gone>) -> Self {
        let mut departed = Self::default();
        for gone in &peers {
            let party = Party::Peer(gone.peer.id);
            for net in &gone.nets {
                departed.sources.add(*net, party);
            }
            for name in gone.peer.names.iter() {
                departed.tls_names.entry(name.to_ascii_lowercase()).or_insert(party);
            }
        }
        departed.peers = peers;
        departed
    }

    pub(super) fn peer(&self, id: PeerId) -> Option<&PeerEntry> {
        self.all().find(|peer| peer.id == id)
    }

    pub(super) fn by_tag(&self, tag: u32) -> Option<PeerId> {
        self.all().find(|peer| peer.tag == tag).map(|peer| peer.id)
    }

    pub(super) fn all(&self) -> impl Iterator<Item = &PeerEntry> {
        self.peers.iter().map(|gone| &gone.peer)
    }

    pub(super) fn find(&self, origin: &Origin) -> Option<Party> {
        if self.peers.is_empty() {
            return None;
        }
        match &origin.identity {
            Some(identity) => identity.names.iter().find_map(|n| self.tls_names.get(n.as_str()).copied()),
            None => self.sources.find(origin.remote.ip()),
        }
    }
}

impl Policy {
    /// Takes over from a policy: peers that are here no more and have calls, by `has_calls`, may end them.
    pub fn with_departed(
        mut self,
        before: &Policy,
        now: Instant,
        has_calls: impl Fn(PeerId) -> bool,
    ) -> Self {
        let new = before.peers.iter().flatten().map(|peer| Gone {
            peer: peer.clone(),
            nets: sources_of(peer, before),
            since: now,
        });
        let mut peers: Vec<Gone> = before.departed.peers.iter().cloned().chain(new).collect();
        peers.retain(|Gone { peer, .. }| {
            self.peers.get(usize::from(peer.id.0)).is_none_or(Option::is_none) && has_calls(peer.id)
        });
        peers.drain(..peers.len().saturating_sub(MOST));
        self.departed = Departed::of(peers);
        self
    }

    /// The same policy without those removed peers that have no calls any more, or were removed longer ago than calls
    /// may last. `None`: there are none such.
    pub fn without_departed(&self, now: Instant, has_calls: impl Fn(PeerId) -> bool) -> Option<Self> {
        let most: Duration = self.config.calls_max_age;
        let stays =
            |gone: &&Gone| has_calls(gone.peer.id) && now.saturating_duration_since(gone.since) < most;
        let peers: Vec<_> = self.departed.peers.iter().filter(stays).cloned().collect();
        (peers.len() < self.departed.peers.len()).then(|| {
            let mut policy = self.clone();
            policy.departed = Departed::of(peers);
            policy
        })
    }

    /// True for a peer that was removed.
    pub fn is_departed(&self, party: Party) -> bool {
        party.peer().is_some_and(|id| self.departed.peer(id).is_some())
    }

    /// Names of the removed peers that may still end their calls.
    pub fn departed_names(&self) -> impl Iterator<Item = &str> {
        self.departed.all().map(|peer| peer.config.name.as_str())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::sync::Arc;

    use super::*;
    use crate::config::Config;
    use crate::flow::{ListenerId, Transport};
    use crate::peering::Ledger;

    fn policy(peers: &[(&str, &str)], before: Option<&Policy>) -> Policy {
        let mut text = String::from(
            "[node]\nname = \"sbe.example\"\n[[listen]]\ntransport = \"udp\"\nbind = \"192.0.2.1:5060\"\n[calls]\nmax_age = \"1h\"\n",
        );
        for (name, sources) in peers {
            text += &format!(
                "[[peer]]\nname = \"{name}\"\ndomains = [\"{name}.example\"]\nsources = [\"{sources}\"]\n"
            );
        }
        let config = Arc::new(Config::from_toml_str(&text).unwrap());
        Policy::new(config, Arc::new(Ledger::new(Instant::now())), [1; 16], before)
    }

    fn from(address: &str) -> Origin {
        Origin {
            transport: Transport::Udp,
            listener: ListenerId(0),
            remote: address.parse().unwrap(),
            local: "192.0.2.1:5060".parse().unwrap(),
            conn: None,
            identity: None,
        }
    }

    #[test]
    fn a_removed_peer_is_known_while_it_has_calls_and_for_no_longer_than_calls_may_last() {
        let now = Instant::now();
        let first = policy(&[("a", "198.51.100.0/24"), ("b", "203.0.113.0/24")], None);
        let a = first.party(&from("198.51.100.7:5060"));
        let second = policy(&[("b", "203.0.113.0/24")], Some(&first)).with_departed(&first, now, |_| true);
        assert_eq!(second.party(&from("198.51.100.7:5060")), a);
        assert!(second.is_departed(a) && !second.is_departed(second.party(&from("203.0.113.7:5060"))));
        assert_eq!(second.departed_names().collect::<Vec<_>>(), ["a"]);
        assert!(
            second.without_departed(now + Duration::from_secs(3599), |_| true).is_none(),
            "nothing to change"
        );
        for (later, has_calls) in [(3600, true), (1, false)] {
            let third = second.without_departed(now + Duration::from_secs(later), |_| has_calls).unwrap();
            assert_eq!(third.party(&from("198.51.100.7:5060")), Party::Stranger);
        }
        let without_calls =
            policy(&[("b", "203.0.113.0/24")], Some(&first)).with_departed(&first, now, |_| false);
        assert_eq!(without_calls.party(&from("198.51.100.7:5060")), Party::Stranger);
    }

    #[test]
    fn one_that_comes_back_is_the_same_peer_and_an_address_that_is_anothers_now_is_that_ones() {
        let now = Instant::now();
        let first = policy(&[("a", "198.51.100.0/24")], None);
        let a = first.party(&from("198.51.100.7:5060"));
        let second = policy(&[("c", "198.51.100.7/32")], Some(&first)).with_departed(&first, now, |_| true);
        assert_ne!(second.party(&from("198.51.100.7:5060")), a);
        assert_eq!(second.party(&from("198.51.100.8:5060")), a);
        let third = policy(&[("a", "198.51.100.0/24")], Some(&second)).with_departed(&second, now, |_| true);
        assert_eq!(third.party(&from("198.51.100.8:5060")), a);
        assert!(!third.is_departed(a));
    }
}
