//! Whose a domain is (rule 3): our own, a peer's, or nobody's. Exact beats wildcard, own beats peer.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use ahash::{AHashMap, AHashSet};
use smallvec::SmallVec;

use crate::config::DomainPattern;
use crate::flow::{Host, PeerId};
use crate::wire::HostRef;

/// Whose a domain is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owner {
    /// Ours: requests for it go to the core.
    Own,
    /// A peer's.
    Peer(PeerId),
    /// Neither.
    Nobody,
}

/// The domains of this element and of its peers.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Domains {
    own_names: AHashSet<Box<str>>,
    own_sockets: AHashSet<(u128, u16)>,
    peer_names: AHashMap<Arc<str>, PeerId>,
    peer_below: AHashMap<Box<str>, PeerId>,
    peer_addrs: AHashMap<IpAddr, PeerId>,
}

impl Domains {
    /// Adds a name or, with a port, an address of our own.
    pub fn add_own(&mut self, host: &Host, port: u16) {
        match host {
            Host::Name(n) => {
                self.own_names.insert(n.as_ref().into());
            }
            Host::Addr(a) => {
                self.own_sockets.insert(socket_key(*a, port));
            }
        }
    }

    /// Adds a pattern of a peer; the first peer to claim one keeps it.
    pub fn add_peer(&mut self, pattern: &DomainPattern, peer: PeerId) {
        match pattern {
            DomainPattern::Exact(Host::Name(n)) => {
                self.peer_names.entry(Arc::clone(n)).or_insert(peer);
            }
            DomainPattern::Exact(Host::Addr(a)) => {
                self.peer_addrs.entry(a.to_canonical()).or_insert(peer);
            }
            DomainPattern::Below(n) => {
                self.peer_below.entry(n.as_str().into()).or_insert(peer);
            }
        }
    }

    /// Whose `host` is; `port` is the one it is reached at (only addresses of our own ask for it).
    pub fn owner(&self, host: &HostRef<'_>, port: u16) -> Owner {
        match host {
            HostRef::Addr(a) => self.owner_of_addr(*a, port),
            HostRef::Name(n) => with_lower(n, |name| self.owner_of_name(name).0).unwrap_or(Owner::Nobody),
        }
    }

    /// As [`Self::owner`]; with the host itself, where it is known by this very name.
    pub fn owner_and_host(&self, host: &HostRef<'_>, port: u16) -> (Owner, Option<Host>) {
        match host {
            HostRef::Addr(a) => (self.owner_of_addr(*a, port), None),
            HostRef::Name(n) => with_lower(n, |name| {
                let (owner, known) = self.owner_of_name(name);
                (owner, known.map(|known| Host::Name(Arc::clone(known))))
            })
            .unwrap_or((Owner::Nobody, None)),
        }
    }

    /// As [`Self::owner`], for an owned host.
    pub fn owner_of(&self, host: &Host, port: u16) -> Owner {
        match host {
            Host::Addr(a) => self.owner_of_addr(*a, port),
            Host::Name(n) => self.owner_of_name(n).0,
        }
    }

    /// True if the host is a name of ours, or this address and port one of our sockets.
    pub fn is_own(&self, host: &HostRef<'_>, port: u16) -> bool {
        match host {
            HostRef::Addr(a) => self.own_sockets.contains(&socket_key(*a, port)),
            HostRef::Name(n) => with_lower(n, |name| self.own_names.contains(name)).unwrap_or(false),
        }
    }

    /// True if this address and port are one of our sockets.
    pub fn is_own_socket(&self, addr: SocketAddr) -> bool {
        self.own_sockets.contains(&socket_key(addr.ip(), addr.port()))
    }

    fn owner_of_addr(&self, addr: IpAddr, port: u16) -> Owner {
        let addr = addr.to_canonical();
        if self.own_sockets.contains(&socket_key(addr, port)) {
            return Owner::Own;
        }
        self.peer_addrs.get(&addr).map_or(Owner::Nobody, |p| Owner::Peer(*p))
    }

    fn owner_of_name(&self, name: &str) -> (Owner, Option<&Arc<str>>) {
        if self.own_names.contains(name) {
            return (Owner::Own, None);
        }
        if let Some((known, p)) = self.peer_names.get_key_value(name) {
            return (Owner::Peer(*p), Some(known));
        }
        if !self.peer_below.is_empty() {
            let mut rest = name;
            while let Some((_, parent)) = rest.split_once('.') {
                if let Some(p) = self.peer_below.get(parent) {
                    return (Owner::Peer(*p), None);
                }
                rest = parent;
            }
        }
        (Owner::Nobody, None)
    }
}

/// Address and port as numbers; an IPv4 address is the IPv6 address mapped to it.
fn socket_key(addr: IpAddr, port: u16) -> (u128, u16) {
    let bits = match addr {
        IpAddr::V4(a) => 0xffff_0000_0000 | u128::from(a.to_bits()),
        IpAddr::V6(a) => a.to_bits(),
    };
    (bits, port)
}

/// Calls `f` with the name in lower case and without a final dot; `None` if it is no name at all.
fn with_lower<T>(name: &[u8], f: impl FnOnce(&str) -> T) -> Option<T> {
    let name = name.strip_suffix(b".").unwrap_or(name);
    let mut lower: SmallVec<[u8; 128]> = SmallVec::from_slice(name);
    lower.make_ascii_lowercase();
    std::str::from_utf8(&lower).ok().map(f)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn name(n: &str) -> Host {
        Host::Name(n.into())
    }

    fn world() -> Domains {
        let mut d = Domains::default();
        d.add_own(&name("edge.example.com"), 5060);
        d.add_own(&Host::Addr("192.0.2.1".parse().unwrap()), 5060);
        d.add_peer(&DomainPattern::Below("example.com".into()), PeerId(1));
        d.add_peer(&DomainPattern::Exact(name("x.example.com")), PeerId(2));
        d.add_peer(&DomainPattern::Below("deep.example.com".into()), PeerId(3));
        d.add_peer(&DomainPattern::Exact(Host::Addr("2001:db8::7".parse().unwrap())), PeerId(4));
        d
    }

    #[test]
    fn exact_beats_wildcard_and_own_beats_peer() {
        let d = world();
        for (host, want) in [
            ("EDGE.example.com.", Owner::Own),
            ("x.example.com", Owner::Peer(PeerId(2))),
            ("y.example.com", Owner::Peer(PeerId(1))),
            ("a.b.example.com", Owner::Peer(PeerId(1))),
            ("a.deep.example.com", Owner::Peer(PeerId(3))),
            ("example.com", Owner::Nobody),
            ("notexample.com", Owner::Nobody),
        ] {
            assert_eq!(d.owner(&HostRef::Name(host.as_bytes()), 5060), want, "{host}");
        }
    }

    #[test]
    fn an_own_address_counts_only_with_its_port() {
        let d = world();
        let own = HostRef::Addr("192.0.2.1".parse().unwrap());
        assert_eq!(d.owner(&own, 5060), Owner::Own);
        assert_eq!(d.owner(&own, 5070), Owner::Nobody);
        assert_eq!(d.owner(&HostRef::Addr("2001:db8::7".parse().unwrap()), 9), Owner::Peer(PeerId(4)));
    }
}
