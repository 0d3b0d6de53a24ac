//! Where costs may go before priorities: what was agreed with each peer (`alto_scope`), else `[alto] scope`.

use ahash::AHashMap;

use crate::config::{AltoScope, Config};
use crate::flow::{Host, PeerId};

use super::domains::{Domains, Owner};

/// By what is located: a peer's domain, or its next hop.
#[derive(Clone, Debug, PartialEq)]
pub struct Scopes {
    /// Of those that are no peer's.
    default: AltoScope,
    domains: Domains,
    peers: Vec<AltoScope>,
    next_hops: AHashMap<Host, AltoScope>,
}

impl Scopes {
    /// The same for all.
    pub fn all(scope: AltoScope) -> Self {
        Self {
            default: scope,
            domains: Domains::default(),
            peers: Vec::new(),
            next_hops: AHashMap::default(),
        }
    }

    /// From a whole configuration.
    pub fn new(config: &Config) -> Self {
        let default = config.alto.as_ref().map_or(AltoScope::WithinPriority, |alto| alto.scope);
        let mut scopes = Self::all(default);
        if config.peers.iter().all(|p| p.alto_scope.is_none_or(|s| s == default)) {
            return scopes;
        }
        for (id, peer) in (0..).map(PeerId).zip(&config.peers) {
            let scope = peer.alto_scope.unwrap_or(default);
            scopes.peers.push(scope);
            for pattern in &peer.domains {
                scopes.domains.add_peer(pattern, id);
            }
            if let Some(hop) = &peer.next_hop {
                let known = scopes.next_hops.entry(hop.host.clone()).or_insert(scope);
                *known = both(*known, scope);
            }
        }
        scopes
    }

    /// How far costs reach where this host is located. What serves several peers keeps its priorities unless all of
    /// them have agreed.
    pub fn of(&self, host: &Host) -> AltoScope {
        let owner = match self.domains.owner_of(host, 0) {
            Owner::Peer(PeerId(id)) => self.peers.get(usize::from(id)).copied(),
            Owner::Own | Owner::Nobody => None,
        };
        match (owner, self.next_hops.get(host).copied()) {
            (Some(one), Some(other)) => both(one, other),
            (one, other) => one.or(other).unwrap_or(self.default),
        }
    }
}

fn both(one: AltoScope, other: AltoScope) -> AltoScope {
    if one == other { one } else { AltoScope::WithinPriority }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use AltoScope::{AcrossPriorities as Across, WithinPriority as Within};

    fn scopes(global: &str, peers: &str) -> Scopes {
        let text = format!(
            "[node]\nname = \"sbe.test\"\ndomains = [\"sbe.test\"]\n\n[[listen]]\ntransport = \"udp\"\n\
             bind = \"192.0.2.10:5060\"\n\n[alto]\ndirectory = \"http://127.0.0.1/\"\n{global}\n{peers}"
        );
        Scopes::new(&Config::from_toml_str(&text).unwrap_or_else(|e| panic!("{e:#?}")))
    }

    fn host(name: &str) -> Host {
        name.parse().map_or_else(|_| Host::Name(name.into()), Host::Addr)
    }

    const PEERS: &str = "[[peer]]\nname = \"a\"\ndomains = [\"a.test\", \"*.a.test\", \"192.0.2.7\"]\nalto_scope = \"across-priorities\"\n\
        [[peer]]\nname = \"b\"\ndomains = [\"b.test\"]\n\
        [[peer]]\nname = \"c\"\ndomains = [\"c.test\"]\nnext_hop = \"sip:hop.test\"\nalto_scope = \"across-priorities\"\n\
        [[peer]]\nname = \"d\"\ndomains = [\"d.test\"]\nnext_hop = \"sip:both.test\"\nalto_scope = \"across-priorities\"\n\
        [[peer]]\nname = \"e\"\ndomains = [\"e.test\"]\nnext_hop = \"sip:both.test\"\n";

    #[test]
    fn what_was_agreed_with_one_peer_goes_for_what_is_located_for_it_alone() {
        let found = scopes("", PEERS);
        for (name, scope) in [
            ("a.test", Across),
            ("x.a.test", Across),
            ("192.0.2.7", Across),
            ("b.test", Within),
            ("hop.test", Across),
            // Two peers behind one name, of which one has not agreed.
            ("both.test", Within),
            ("elsewhere.test", Within),
        ] {
            assert_eq!(found.of(&host(name)), scope, "{name}");
        }
    }

    #[test]
    fn a_peer_can_keep_its_priorities_where_the_rest_has_agreed() {
        let none = PEERS.replace("alto_scope = \"across-priorities\"", "alto_scope = \"within-priority\"");
        let found = scopes("scope = \"across-priorities\"", &none);
        assert_eq!(found.of(&host("a.test")), Within);
        assert_eq!(found.of(&host("b.test")), Across);
        assert_eq!(found.of(&host("both.test")), Within);
        assert_eq!(found.of(&host("elsewhere.test")), Across);
        let found = scopes("scope = \"across-priorities\"", "");
        assert_eq!(found.of(&host("a.test")), Across);
    }
}
