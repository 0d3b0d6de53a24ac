//! The configuration as the proxy core reads it: one immutable value, swapped whole at reload.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use ahash::AHashMap;
use ipnet::IpNet;

use crate::config::{Config, DomainPattern, Listen, NextHop, Peer, Realm};
use crate::flow::{Host, ListenerId, Origin, PeerId, TlsIdentity, Transport};
use crate::location::{Enabled, LocateKey};
use crate::peering::{Domains, InstanceLimits, Ledger, Owner, Party, Published, Sources};
use crate::transaction::TimerConfig;
use crate::wire::{HostRef, Limits, Message};

use super::departed::Departed;
use super::numbers::digits_of;
use super::trust::Strips;

/// One listener, with what it writes into messages ready made.
#[derive(Clone, Debug)]
pub struct Listener {
    /// Its number.
    pub id: ListenerId,
    /// Its transport.
    pub transport: Transport,
    /// Its socket.
    pub bind: SocketAddr,
    /// Whom it serves.
    pub realm: Realm,
    /// `Via: SIP/2.0/UDP host[:port];rport;branch=` (without `rport` on streams).
    pub via_prefix: Vec<u8>,
    /// Via sent-by host.
    pub sent_by_host: Host,
    /// Via sent-by port, where one is written.
    pub sent_by_port: Option<u16>,
    /// `host[:port];transport=T;lr` of our Record-Route, what follows `<sip:`.
    pub route_uri: String,
    /// Host of the Record-Route, to know it again (in lower case).
    pub route_host: Host,
    /// Port of the Record-Route, the default where none is written.
    pub route_port: u16,
}

impl Listener {
    /// True if what goes to `to` in a realm by a transport may leave here (rules 2 and 6).
    pub fn fits(&self, realm: Realm, transport: Transport, to: IpAddr) -> bool {
        self.transport == transport
            && serves(self.realm, realm)
            && self.bind.is_ipv4() == to.to_canonical().is_ipv4()
    }
}

/// One peer, with what is derived from its configuration.
#[derive(Clone, Debug)]
pub struct PeerEntry {
    /// As configured.
    pub config: Peer,
    /// Its number.
    pub id: PeerId,
    /// Timers of client transactions to it.
    pub timers: TimerConfig,
    /// Effective `try_timeout`: min(value, 64*T1).
    pub try_timeout: Duration,
    /// Codes that fail over.
    pub failover_codes: Vec<u16>,
    /// Identities accepted from its TLS servers besides the name asked for; `None`: that name alone.
    pub tls_names: Option<Arc<[String]>>,
    /// Names of its certificates: those, else the exact ones of its domains.
    pub names: Arc<[String]>,
    /// First exact domain, for the Request-URI that a `[[route]]` makes (rule 5).
    pub first_domain: Option<Host>,
    /// Hash of its name as our dialog tokens carry it.
    pub tag: u32,
    /// What is removed from what it sends.
    strips: Strips,
}

/// Everything that decisions are made by.
#[derive(Clone, Debug)]
pub struct Policy {
    /// The checked configuration.
    pub config: Arc<Config>,
    /// Listeners, by [`ListenerId`].
    pub listeners: Vec<Listener>,
    /// Peers, by [`PeerId`]; a number whose peer is gone is `None`.
    pub peers: Vec<Option<PeerEntry>>,
    /// Whose a domain is.
    pub domains: Domains,
    /// Whose an address is.
    pub sources: Sources,
    /// Whose a certificate's name is.
    pub tls_names: AHashMap<String, Party>,
    /// Names of the core's certificates.
    core_names: Arc<[String]>,
    /// Timers of server transactions, and of client transactions to the core.
    pub timers: TimerConfig,
    /// Limits of the wire layer.
    pub limits: Limits,
    /// Calls and rates of the peers.
    pub ledger: Arc<Ledger>,
    /// Key of our dialog tokens (rule 8).
    pub dialog_secret: [u8; 16],
    /// Peers that were removed and may still end their calls.
    pub(super) departed: Departed,
    /// Peers by the hash of their name, as dialog tokens carry it; the first one to have it.
    by_tag: AHashMap<u32, PeerId>,
    /// What can be sent by towards the core, towards peers, and towards both.
    enabled: [Enabled; 3],
    /// What the names in `sources` have led to.
    published: Published,
    /// What is removed from what the core sends, and from what strangers send.
    strips: [Strips; 2],
    /// `[[route]]` prefixes, longest first, with peers in order.
    routes: Vec<(String, Vec<PeerId>)>,
}

/// Hash of a peer's name, stable over restarts (FNV-1a).
pub fn peer_tag(name: &str) -> u32 {
    name.bytes().fold(0x811c_9dc5, |h, b| (h ^ u32::from(b)).wrapping_mul(0x0100_0193))
}

impl Policy {
    /// Builds the policy of a configuration. `before`: the one in force, whose peer numbers and ledger go on.
    pub fn new(
        config: Arc<Config>,
        ledger: Arc<Ledger>,
        dialog_secret: [u8; 16],
        before: Option<&Policy>,
    ) -> Self {
        let timers = TimerConfig { t1: config.sip.t1, t2: config.sip.t2, t4: config.sip.t4 };
        let listeners: Vec<Listener> =
            config.listen.iter().zip(0u16..).map(|(l, i)| listener(&config, l, ListenerId(i))).collect();
        let ids = peer_ids(&config, before);
        // As long as before at least: the numbers of peers that are gone are not given away again.
        let mut peers: Vec<Option<PeerEntry>> = Vec::new();
        peers.resize_with(before.map_or(0, |b| b.peers.len()), || None);
        for (peer, id) in config.peers.iter().zip(&ids) {
            let at = usize::from(id.0);
            if peers.len() <= at {
                peers.resize_with(at + 1, || None);
            }
            if let Some(slot) = peers.get_mut(at) {
                *slot = Some(entry(&config, peer, *id));
            }
        }
        let mut by_tag = AHashMap::new();
        for peer in peers.iter().flatten() {
            by_tag.entry(peer.tag).or_insert(peer.id);
        }
        // What is known stays over a reload, so that nobody is refused until the DNS has answered again.
        let published = before.map_or_else(Published::default, |b| b.published.clone());
        let mut policy = Self {
            departed: Departed::default(),
            by_tag,
            domains: domains(&config, &listeners, &ids),
            sources: sources(&config, &ids, &published),
            published,
            tls_names: tls_names(&config, &ids),
            core_names: config.core.tls_names.clone().into(),
            routes: routes(&config, &ids),
            strips: [
                Strips::new(&config.core.strip_headers, true),
                Strips::new(&[], config.federation_trust),
            ],
            enabled: [Realm::Core, Realm::Peering, Realm::Both].map(|r| enabled(&config, &listeners, r)),
            limits: Limits {
                max_message: config.sip.max_message,
                max_headers: config.sip.max_headers,
                max_header: config.sip.max_header,
            },
            timers,
            listeners,
            peers,
            ledger,
            dialog_secret,
            config,
        };
        policy.routes.sort_by_key(|(prefix, _)| std::cmp::Reverse(prefix.len()));
        policy
    }

    /// The same policy with other addresses behind the names in `sources`.
    pub fn with_published(&self, published: Published) -> Self {
        let ids = peer_ids(&self.config, Some(self));
        Self { sources: sources(&self.config, &ids, &published), published, ..self.clone() }
    }

    /// What the names in `sources` have led to.
    pub const fn published(&self) -> &Published {
        &self.published
    }

    /// A peer by number; also one that was removed and still ends its calls.
    pub fn peer(&self, id: PeerId) -> Option<&PeerEntry> {
        self.peers.get(usize::from(id.0)).and_then(Option::as_ref).or_else(|| self.departed.peer(id))
    }

    /// A peer by the hash of its name ([`peer_tag`]).
    pub fn peer_of_tag(&self, tag: u32) -> Option<PeerId> {
        self.by_tag.get(&tag).copied().or_else(|| self.departed.by_tag(tag))
    }

    /// A peer's name for logs and labels.
    pub fn peer_name(&self, id: Option<PeerId>) -> &str {
        id.and_then(|p| self.peer(p)).map_or("core", |p| p.config.name.as_str())
    }

    /// A listener by number.
    pub fn listener(&self, id: ListenerId) -> Option<&Listener> {
        self.listeners.get(usize::from(id.0))
    }

    /// The first listener in file order that fits realm, transport and family (rule 6).
    pub fn egress(&self, realm: Realm, transport: Transport, to: IpAddr) -> Option<&Listener> {
        self.listeners.iter().find(|l| l.fits(realm, transport, to))
    }

    /// What can be sent by in a realm (rule 6).
    pub const fn enabled(&self, realm: Realm) -> &Enabled {
        let [core, peering, both] = &self.enabled;
        match realm {
            Realm::Core => core,
            Realm::Peering => peering,
            Realm::Both => both,
        }
    }

    /// Who sent this (rules 1 and 2).
    pub fn party(&self, origin: &Origin) -> Party {
        let found = match &origin.identity {
            Some(identity) => identity.names.iter().find_map(|n| self.tls_names.get(n.as_str()).copied()),
            None => self.sources.find(origin.remote.ip()),
        };
        let found = found.or_else(|| self.departed.find(origin));
        let realm = self.listener(origin.listener).map_or(Realm::Both, |l| l.realm);
        match found {
            Some(Party::Core) if realm != Realm::Peering => Party::Core,
            Some(party @ Party::Peer(_)) if realm != Realm::Core => party,
            None if self.config.federation_open && realm != Realm::Core => Party::Federation,
            _ => Party::Stranger,
        }
    }

    /// Names of certificates that are accepted from the servers of a party besides the one asked for.
    pub fn accepted_names(&self, party: Party) -> &[String] {
        match party {
            Party::Core => &self.core_names,
            Party::Peer(p) => self.peer(p).and_then(|p| p.tls_names.as_deref()).unwrap_or_default(),
            Party::Federation | Party::Stranger => &[],
        }
    }

    /// All names that a party is known by over TLS.
    pub fn names(&self, party: Party) -> Arc<[String]> {
        match party {
            Party::Core => Arc::clone(&self.core_names),
            Party::Peer(p) => self.peer(p).map_or_else(Arc::default, |p| Arc::clone(&p.names)),
            Party::Federation | Party::Stranger => Arc::default(),
        }
    }

    /// The name in a certificate that made its holder this party.
    pub fn name_of<'a>(&self, party: Party, identity: &'a TlsIdentity) -> Option<&'a str> {
        let is = |name: &&String| match party {
            Party::Federation => true,
            _ => self.tls_names.get(name.as_str()) == Some(&party),
        };
        identity.names.iter().find(is).map(String::as_str)
    }

    /// Peers for a number, best first, and the prefix that chose them; `None`: no rule fits (rule 3).
    /// In a telephone number visual separators do not count (RFC 3966 §3).
    pub fn route_by_number(&self, user: &[u8]) -> Option<(&str, &[PeerId])> {
        let number = digits_of(user);
        let user = number.as_deref().unwrap_or(user);
        self.routes
            .iter()
            .find(|(prefix, _)| user.starts_with(prefix.as_bytes()))
            .map(|(prefix, peers)| (prefix.as_str(), peers.as_slice()))
    }

    /// True if there is any `[[route]]`.
    pub fn has_routes(&self) -> bool {
        !self.routes.is_empty()
    }

    /// True if this host and port lie in the domains, sources or next hops of the side other than `from` (rule 8);
    /// and which peer's it is.
    pub fn reachable_from(&self, from: Party, host: &HostRef<'_>, port: u16) -> Option<Party> {
        let next_hop = |hop: &NextHop| host.eq_host(&hop.host);
        match from {
            Party::Core => {
                if let Owner::Peer(p) = self.domains.owner(host, port) {
                    return Some(Party::Peer(p));
                }
                if let HostRef::Addr(a) = host
                    && let Some(Party::Peer(p)) = self.sources.find(*a)
                {
                    return Some(Party::Peer(p));
                }
                let known =
                    self.peers.iter().flatten().find(|p| p.config.next_hop.as_ref().is_some_and(next_hop));
                match known {
                    Some(p) => Some(Party::Peer(p.id)),
                    None if self.config.federation_open => Some(Party::Federation),
                    None => None,
                }
            }
            Party::Peer(_) | Party::Federation => {
                let core = match host {
                    HostRef::Addr(a) => self.sources.find(*a) == Some(Party::Core),
                    HostRef::Name(_) => false,
                };
                let own = self.domains.is_own(host, port);
                (core || own || self.config.core.next_hops.iter().any(next_hop)).then_some(Party::Core)
            }
            Party::Stranger => None,
        }
    }

    /// Header fields (lower case) removed from a request or response of one party on its way to another.
    pub fn stripped(&self, from: Party, to: Party, msg: &Message<'_>) -> &[String] {
        let [core, strangers] = &self.strips;
        let strips = match from {
            Party::Core => core,
            Party::Peer(p) => match self.peer(p) {
                Some(peer) => &peer.strips,
                None => return &[],
            },
            Party::Federation | Party::Stranger => strangers,
        };
        strips.from(msg, self.trusts(to))
    }

    /// Whether a party is in the trust domain (RFC 3325 §2.3). The core always is.
    fn trusts(&self, party: Party) -> bool {
        match party {
            Party::Core => true,
            Party::Peer(p) => self.peer(p).is_none_or(|p| p.config.trust),
            Party::Federation | Party::Stranger => self.config.federation_trust,
        }
    }

    /// Limits of each instance of a party.
    pub fn instance_limits(&self, of: Party) -> InstanceLimits {
        of.peer().and_then(|p| self.peer(p)).map_or_else(InstanceLimits::default, |p| InstanceLimits {
            calls: p.config.max_calls_per_instance,
            rate: p.config.max_rate_per_instance,
        })
    }

    /// Timers of client transactions towards a party.
    pub fn timers_to(&self, to: Party) -> &TimerConfig {
        to.peer().and_then(|p| self.peer(p)).map_or(&self.timers, |p| &p.timers)
    }

    /// Silence of one instance of this party before the next is tried.
    pub fn try_timeout_to(&self, to: Party) -> Duration {
        to.peer()
            .and_then(|p| self.peer(p))
            .map_or_else(|| self.config.sip.try_timeout.min(self.timers.timeout()), |p| p.try_timeout)
    }

    /// Whether this final response of this party sends the request to the next candidate.
    pub fn fails_over(&self, to: Party, status: u16) -> bool {
        to.peer()
            .and_then(|p| self.peer(p))
            .map_or(&self.config.sip.failover_codes, |p| &p.failover_codes)
            .contains(&status)
    }
}

/// True if a listener of realm `listener` serves `realm`.
pub fn serves(listener: Realm, realm: Realm) -> bool {
    listener == Realm::Both || realm == Realm::Both || listener == realm
}

/// What to locate for a next hop.
pub fn locate_key(hop: &NextHop, realm: Realm) -> LocateKey {
    let transport = match (hop.sips, hop.transport) {
        (true, _) => None,
        (false, t) => t,
    };
    LocateKey { host: hop.host.clone(), port: hop.port, transport, sips: hop.sips, realm }
}

fn enabled(config: &Config, listeners: &[Listener], realm: Realm) -> Enabled {
    let has = |v4: bool| {
        Transport::ALL.map(|t| {
            listeners.iter().any(|l| l.transport == t && serves(l.realm, realm) && l.bind.is_ipv4() == v4)
        })
    };
    Enabled::new(&config.dns.transports, has(true), has(false), config.dns.addresses)
}

fn listener(config: &Config, l: &Listen, id: ListenerId) -> Listener {
    let default = l.transport.default_port();
    let (sent_by_host, sent_by_port) = match &l.advertise {
        Some((host, port)) => (host.clone(), *port),
        None => (config.node.name.clone(), (l.bind.port() != default).then(|| l.bind.port())),
    };
    let (route_host, written) = match &l.advertise {
        Some((host, port)) => (host.clone(), *port),
        None if l.transport == Transport::Tls => (config.node.name.clone(), Some(l.bind.port())),
        None => (Host::Addr(l.bind.ip()), Some(l.bind.port())),
    };
    let with_port = |host: &Host, port: Option<u16>| match port {
        Some(p) => format!("{host}:{p}"),
        None => host.to_string(),
    };
    let rport = if l.transport == Transport::Udp { ";rport" } else { "" };
    let sent_by = with_port(&sent_by_host, sent_by_port);
    Listener {
        id,
        transport: l.transport,
        bind: l.bind,
        realm: l.realm,
        via_prefix: format!("Via: SIP/2.0/{} {sent_by}{rport};branch=", l.transport.via_token()).into_bytes(),
        route_uri: format!("{};transport={};lr", with_port(&route_host, written), l.transport),
        route_port: written.unwrap_or(default),
        route_host,
        sent_by_host,
        sent_by_port,
    }
}

/// Numbers for the peers: those known keep theirs, new ones get numbers that nobody ever had, so that
/// what is counted by number stays with its peer.
fn peer_ids(config: &Config, before: Option<&Policy>) -> Vec<PeerId> {
    let mut known: AHashMap<&str, PeerId> = AHashMap::new();
    let gone = before.iter().flat_map(|b| b.departed.all());
    for peer in before.iter().flat_map(|b| b.peers.iter().flatten()).chain(gone) {
        known.insert(peer.config.name.as_str(), peer.id);
    }
    let mut next = before.map_or(0, |b| u16::try_from(b.peers.len()).unwrap_or(u16::MAX));
    config
        .peers
        .iter()
        .map(|p| {
            *known.entry(p.name.as_str()).or_insert_with(|| {
                let id = PeerId(next);
                next = next.saturating_add(1);
                id
            })
        })
        .collect()
}

fn entry(config: &Config, peer: &Peer, id: PeerId) -> PeerEntry {
    let timers = TimerConfig { t1: peer.t1.unwrap_or(config.sip.t1), t2: config.sip.t2, t4: config.sip.t4 };
    PeerEntry {
        id,
        try_timeout: peer.try_timeout.unwrap_or(config.sip.try_timeout).min(timers.timeout()),
        timers,
        failover_codes: peer.failover_codes.clone().unwrap_or_else(|| config.sip.failover_codes.clone()),
        tls_names: peer.tls_names.clone().map(Arc::from),
        names: names_of(peer).into(),
        first_domain: peer.domains.iter().find_map(|d| match d {
            DomainPattern::Exact(h) => Some(h.clone()),
            DomainPattern::Below(_) => None,
        }),
        tag: peer_tag(&peer.name),
        strips: Strips::new(&peer.strip_headers, peer.trust),
        config: peer.clone(),
    }
}

fn domains(config: &Config, listeners: &[Listener], ids: &[PeerId]) -> Domains {
    let mut d = Domains::default();
    for l in listeners {
        d.add_own(&Host::Addr(l.bind.ip()), l.bind.port());
        d.add_own(&l.route_host, l.route_port);
        d.add_own(&l.sent_by_host, l.sent_by_port.unwrap_or(l.transport.default_port()));
        d.add_own(&config.node.name, l.bind.port());
        for own in &config.node.domains {
            d.add_own(own, l.bind.port());
        }
    }
    for (peer, id) in config.peers.iter().zip(ids) {
        for pattern in &peer.domains {
            d.add_peer(pattern, *id);
        }
    }
    d
}

fn sources(config: &Config, ids: &[PeerId], published: &Published) -> Sources {
    let mut s = Sources::default();
    for net in &config.core.sources {
        s.add(*net, Party::Core);
    }
    for (peer, id) in config.peers.iter().zip(ids) {
        for net in &peer.sources {
            s.add(*net, Party::Peer(*id));
        }
    }
    for (peer, id) in config.peers.iter().zip(ids) {
        let found = peer.source_names.iter().filter_map(|name| published.get(*id, name));
        for addr in found.flat_map(|found| found.addrs.iter()) {
            s.add_published(*addr, Party::Peer(*id));
        }
    }
    s
}

/// All that a peer may send from.
pub(super) fn sources_of(peer: &PeerEntry, policy: &Policy) -> Vec<IpNet> {
    let found = peer.config.source_names.iter().filter_map(|name| policy.published.get(peer.id, name));
    let published = found.flat_map(|found| found.addrs.iter().map(|addr| IpNet::from(addr.to_canonical())));
    peer.config.sources.iter().copied().chain(published).collect()
}

fn tls_names(config: &Config, ids: &[PeerId]) -> AHashMap<String, Party> {
    let mut names = AHashMap::new();
    for name in &config.core.tls_names {
        names.entry(name.to_ascii_lowercase()).or_insert(Party::Core);
    }
    for (peer, id) in config.peers.iter().zip(ids) {
        for name in names_of(peer) {
            names.entry(name.to_ascii_lowercase()).or_insert(Party::Peer(*id));
        }
    }
    names
}

/// Rule 1: `tls_names`, else the exact names among the domains.
fn names_of(peer: &Peer) -> Vec<String> {
    let exact = peer.domains.iter().filter_map(|d| match d {
        DomainPattern::Exact(Host::Name(n)) => Some(n.to_string()),
        _ => None,
    });
    peer.tls_names.clone().unwrap_or_else(|| exact.collect())
}

fn routes(config: &Config, ids: &[PeerId]) -> Vec<(String, Vec<PeerId>)> {
    config
        .routes
        .iter()
        .map(|r| (r.prefix.clone(), r.peers.iter().filter_map(|i| ids.get(*i).copied()).collect()))
        .collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::time::Instant;

    fn policy(names: &[&str], before: Option<&Policy>) -> Policy {
        let mut text = String::from(
            "[node]\nname = \"sbe.example\"\n[[listen]]\ntransport = \"udp\"\nbind = \"192.0.2.1:5060\"\n",
        );
        for name in names {
            text += &format!("[[peer]]\nname = \"{name}\"\ndomains = [\"{name}.example\"]\n");
        }
        let config = Arc::new(Config::from_toml_str(&text).unwrap());
        Policy::new(config, Arc::new(Ledger::new(Instant::now())), [1; 16], before)
    }

    fn number(policy: &Policy, name: &str) -> u16 {
        policy.peers.iter().flatten().find(|p| p.config.name == name).unwrap().id.0
    }

    #[test]
    fn a_number_stays_with_its_peer_over_reloads_and_is_never_given_to_another() {
        let first = policy(&["a", "b"], None);
        let second = policy(&["b"], Some(&first));
        let third = policy(&["c", "b", "a"], Some(&second));
        assert_eq!((number(&first, "a"), number(&first, "b")), (0, 1));
        assert_eq!(number(&second, "b"), 1);
        assert_eq!((number(&third, "b"), number(&third, "c"), number(&third, "a")), (1, 2, 3));
    }
}
