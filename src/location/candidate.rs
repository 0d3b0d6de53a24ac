//! The result of a location: an immutable list of tiers of servers, with the reasons for it.
//!
//! It is shared by all requests that use it and never changed by any of them: where a request has
//! got to is kept in its own [`super::Selection`], what we know of instances in [`super::Health`].

use std::collections::HashMap;
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use smallvec::SmallVec;

use super::draw::{self, Shares};
use super::enabled::Enabled;
use super::question::DnsStep;
use super::ranking::Ranking;
use super::resolve::{MAX_ADDRESSES, Resolution};
use super::snapshot::Cost;
use super::target::LocateKey;
use crate::flow::{Host, Transport};

/// What a location without DNS stands on does not change; it is believed this long.
pub(super) const FOREVER: Duration = Duration::from_secs(24 * 3600);

/// One address to send to by one transport: what health is kept of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Instance {
    /// Transport.
    pub transport: Transport,
    /// Address and port.
    pub addr: SocketAddr,
}

impl fmt::Display for Instance {
    /// As in metric labels: `udp:192.0.2.7:5060`, `tcp:[2001:db8::7]:5060`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.transport, self.addr)
    }
}

/// What was found for a [`LocateKey`], or why nothing was.
#[derive(Clone, Debug)]
pub struct Located {
    /// What was located.
    pub key: LocateKey,
    /// Where it leads, best tier first; empty unless `outcome` is [`Outcome::Found`].
    pub tiers: Vec<Tier>,
    /// What was found but cannot be used.
    pub left_out: Vec<LeftOut>,
    /// The DNS steps, in the order asked.
    pub steps: Vec<DnsStep>,
    /// In a word.
    pub outcome: Outcome,
    /// Valid until then: the smallest TTL of all that it stands on.
    pub expires: Instant,
    /// When it was made, where its maker says so: the lifetimes in `steps` are those of that moment.
    pub made: Option<Instant>,
    /// Set by whoever keeps results: a different number for a different result.
    pub serial: u64,
    /// The hosts that the servers were found for, by [`Server::hop`]; one, unless several next hops
    /// were merged. It is these that a TLS server must prove to be (RFC 5922 §7.3, rule 5).
    pub hops: Vec<Host>,
    /// With costs that are shown and not used: what they would have made of this, if that is another order.
    pub shadow: Option<Arc<Located>>,
    /// Number of different instances.
    instances: u32,
}

/// Servers of equal rank: one NAPTR order and preference, transport, SRV priority, and class of cost.
#[derive(Clone, Debug)]
pub struct Tier {
    /// Order and preference of the NAPTR record it came from.
    pub naptr: Option<(u16, u16)>,
    /// SRV priority; 0 where there was no SRV record.
    pub priority: u16,
    /// The servers, at least one.
    pub servers: Vec<Server>,
    /// What costs made of it; `None` where none are known.
    pub ranking: Option<Ranking>,
    /// How the load is shared out among them.
    pub(super) shares: Shares,
}

/// One host and port, with its addresses.
#[derive(Clone, Debug)]
pub struct Server {
    /// Transport.
    pub transport: Transport,
    /// Host name (the SRV target or the domain itself), or the address as text.
    pub target: Arc<str>,
    /// Port.
    pub port: u16,
    /// SRV weight as received; 0 where there was no SRV record.
    pub weight: u16,
    /// Addresses in the order of trying, at least one, no duplicates.
    pub addrs: SmallVec<[IpAddr; 2]>,
    /// Index into [`Located::hops`].
    pub hop: u16,
    /// The class of its cost among all that its tier was made of, 0 the best.
    pub class: u16,
    /// What is known of the costs of its addresses, in the same order; empty: nothing.
    pub costs: Box<[Option<Cost>]>,
    /// A stable number for transport, target and port: the same in every result that lists it.
    pub(super) id: u64,
    /// The number of each address's instance; equal numbers are equal instances.
    pub(super) instances: SmallVec<[u32; 2]>,
}

impl Server {
    /// A server; `addrs` should not be empty, and counts up to [`super::MAX_ADDRESSES`].
    pub fn new(
        transport: Transport,
        target: Arc<str>,
        port: u16,
        weight: u16,
        mut addrs: SmallVec<[IpAddr; 2]>,
    ) -> Self {
        addrs.truncate(MAX_ADDRESSES);
        let id = draw::identity(&[target.as_bytes(), &port.to_be_bytes(), &[transport as u8]]);
        Self {
            transport,
            target,
            port,
            weight,
            addrs,
            hop: 0,
            class: 0,
            costs: Box::default(),
            id,
            instances: SmallVec::new(),
        }
    }

    /// The cost of one of its addresses, used or not.
    pub fn cost(&self, address: usize) -> Option<&Cost> {
        self.costs.get(address)?.as_ref()
    }

    /// The instance of one of its addresses.
    pub fn instance(&self, address: usize) -> Option<Instance> {
        let addr = SocketAddr::new(*self.addrs.get(address)?, self.port);
        Some(Instance { transport: self.transport, addr })
    }
}

impl Tier {
    /// A tier whose load is shared by the servers' weights.
    pub fn new(naptr: Option<(u16, u16)>, priority: u16, servers: Vec<Server>) -> Self {
        let shares = Shares::of_weights(servers.iter().map(|s| s.weight));
        Self { naptr, priority, servers, ranking: None, shares }
    }

    /// The transport, if all servers have the same.
    pub fn transport(&self) -> Option<Transport> {
        let first = self.servers.first()?.transport;
        self.servers.iter().all(|s| s.transport == first).then_some(first)
    }

    /// The part of the load that a server is to get while all of this tier are up, 0.0 to 1.0.
    pub fn share(&self, server: usize) -> f64 {
        self.shares.fraction(server)
    }
}

impl Located {
    /// A result of these tiers; tiers without servers and servers without addresses are dropped.
    pub fn from_tiers(key: LocateKey, tiers: Vec<Tier>, outcome: Outcome, expires: Instant) -> Self {
        let hops = vec![key.host.clone()];
        Self {
            key,
            tiers,
            left_out: Vec::new(),
            steps: Vec::new(),
            outcome,
            expires,
            made: None,
            serial: 0,
            hops,
            shadow: None,
            instances: 0,
        }
        .sealed()
    }

    /// A result for a numeric host, which needs no DNS (RFC 3263 §4.2); `None` for a name.
    pub fn literal(key: &LocateKey, enabled: &Enabled, now: Instant) -> Option<Self> {
        matches!(key.host, Host::Addr(_)).then(|| Resolution::new(key.clone(), enabled).into_located(now))
    }

    /// Several next hops as one tier of equal shares (rule 5): the first tiers of all form the
    /// first, the second tiers the second, and so on; within a next hop its own weights hold.
    /// `None` without any.
    pub fn merge(parts: &[Arc<Located>]) -> Option<Self> {
        let first = parts.first()?;
        if parts.len() == 1 {
            return Some(Located::clone(first));
        }
        let mut merged = Self {
            key: first.key.clone(),
            tiers: Vec::new(),
            left_out: Vec::new(),
            steps: Vec::new(),
            outcome: first.outcome,
            expires: first.expires,
            made: first.made,
            serial: 0,
            hops: Vec::new(),
            shadow: None,
            instances: 0,
        };
        for part in parts {
            merged.left_out.extend(part.left_out.iter().cloned());
            merged.steps.extend(part.steps.iter().cloned());
            merged.expires = merged.expires.min(part.expires);
            merged.serial = draw::mix(merged.serial, part.serial);
            // A failure says "ask again", which is worth more to the caller than "no such name".
            merged.outcome = merged.outcome.better_of(part.outcome);
        }
        let depth = parts.iter().map(|p| p.tiers.len()).max().unwrap_or(0);
        let bases: Vec<usize> = parts
            .iter()
            .map(|p| {
                let base = merged.hops.len();
                merged.hops.extend(p.hops.iter().cloned());
                base
            })
            .collect();
        for rank in 0..depth {
            let members: Vec<(&Tier, &Located, usize)> = parts
                .iter()
                .zip(&bases)
                .filter_map(|(p, base)| p.tiers.get(rank).map(|t| (t, p.as_ref(), *base)))
                .collect();
            let mut servers = Vec::new();
            for (tier, part, base) in &members {
                for server in &tier.servers {
                    let mut server = server.clone();
                    let host =
                        part.hops.get(usize::from(server.hop)).map(ToString::to_string).unwrap_or_default();
                    server.id = draw::mix(server.id, draw::identity(&[host.as_bytes()]));
                    server.hop = u16::try_from(base + usize::from(server.hop)).unwrap_or(u16::MAX);
                    servers.push(server);
                }
            }
            let shares = Shares::joined(members.iter().map(|(t, _, _)| &t.shares));
            let (naptr, priority) = members.first().map_or((None, 0), |(t, _, _)| (t.naptr, t.priority));
            merged.tiers.push(Tier { naptr, priority, servers, ranking: None, shares });
        }
        Some(merged.sealed())
    }

    /// The different instances, in the order of tiers, servers and addresses.
    pub fn instances(&self) -> impl Iterator<Item = Instance> + '_ {
        let mut next = 0;
        self.tiers
            .iter()
            .flat_map(|t| &t.servers)
            .flat_map(|s| s.instances.iter().enumerate().map(move |(i, n)| (s, i, *n)))
            .filter_map(move |(s, i, n)| {
                // Numbers are given in this order: a number seen before is lower than the next new one.
                (n == next).then(|| next += 1)?;
                s.instance(i)
            })
    }

    /// How many different instances there are.
    pub fn instance_count(&self) -> usize {
        self.instances as usize
    }

    /// The host that a server was found for: what its certificate must name.
    pub fn hop_of(&self, server: &Server) -> &Host {
        self.hops.get(usize::from(server.hop)).unwrap_or(&self.key.host)
    }

    /// Numbers the instances, so that a selection can tell at once which it has tried.
    pub(super) fn sealed(mut self) -> Self {
        for tier in &mut self.tiers {
            if tier.servers.iter().any(|s| s.addrs.is_empty()) {
                tier.servers.retain(|s| !s.addrs.is_empty());
                tier.shares = Shares::of_weights(tier.servers.iter().map(|s| s.weight));
            }
        }
        self.tiers.retain(|t| !t.servers.is_empty());
        let mut numbers: HashMap<Instance, u32, ahash::RandomState> = HashMap::default();
        for server in self.tiers.iter_mut().flat_map(|t| &mut t.servers) {
            server.instances.clear();
            for addr in &server.addrs {
                let instance =
                    Instance { transport: server.transport, addr: SocketAddr::new(*addr, server.port) };
                let fresh = u32::try_from(numbers.len()).unwrap_or(u32::MAX);
                server.instances.push(*numbers.entry(instance).or_insert(fresh));
            }
        }
        self.instances = u32::try_from(numbers.len()).unwrap_or(u32::MAX);
        self
    }
}

/// How a location ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// There are candidates.
    Found,
    /// The name does not exist.
    NoSuchName,
    /// The name, or every SRV target, has no usable address.
    NoAddress,
    /// Every SRV record says "not offered here" (target ".", RFC 2782).
    NotOffered,
    /// No transport of ours will do: SIPS without TLS (rule 15), or no listener of that transport
    /// and family in the realm (rule 6).
    NoTransport,
    /// The DNS could not say.
    DnsFailure,
    /// The DNS did not say in time.
    TimedOut,
}

impl Outcome {
    /// The SIP status for a request that cannot go anywhere (rules 15 and 16). For
    /// [`Outcome::Found`]: that of a request for which every candidate was left out.
    pub const fn status(self) -> u16 {
        match self {
            Outcome::Found
            | Outcome::NoSuchName
            | Outcome::NoAddress
            | Outcome::NotOffered
            | Outcome::NoTransport => 480,
            Outcome::DnsFailure | Outcome::TimedOut => 500,
        }
    }

    /// For a Reason or Warning text.
    pub const fn text(self) -> &'static str {
        match self {
            Outcome::Found => "No usable server for the destination",
            Outcome::NoSuchName => "Destination domain does not exist in the DNS",
            Outcome::NoAddress => "Destination has no usable address in the DNS",
            Outcome::NotOffered => "Destination domain offers no SIP service",
            Outcome::NoTransport => "No common transport with the destination",
            Outcome::DnsFailure => "DNS failure",
            Outcome::TimedOut => "DNS timeout",
        }
    }

    /// A fixed word for records and metrics.
    pub const fn label(self) -> &'static str {
        match self {
            Outcome::Found => "found",
            Outcome::NoSuchName => "no_such_name",
            Outcome::NoAddress => "no_address",
            Outcome::NotOffered => "not_offered",
            Outcome::NoTransport => "no_transport",
            Outcome::DnsFailure => "dns_failure",
            Outcome::TimedOut => "timed_out",
        }
    }

    /// The one that says more about a group of next hops: found, then failures, then `self`.
    fn better_of(self, other: Self) -> Self {
        let weight = |o| match o {
            Outcome::Found => 2,
            Outcome::DnsFailure | Outcome::TimedOut => 1,
            _ => 0,
        };
        if weight(other) > weight(self) { other } else { self }
    }
}

/// Something found and not used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeftOut {
    /// What, for people: a record, a name or an address.
    pub what: String,
    /// Why.
    pub reason: LeftOutReason,
}

/// Why something is left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LeftOutReason {
    /// A NAPTR record of another application, or a service we do not know.
    ForeignService,
    /// A SIP service over a transport that we do not have, or do not have in this realm.
    TransportNotEnabled,
    /// A SIP NAPTR record without TLS, for a SIPS URI.
    NotSecure,
    /// A NAPTR record whose flag is not "s" (RFC 3263 §4.1).
    NotTerminal,
    /// A NAPTR record with a regular expression: these carry a replacement only (RFC 3263 §4.1).
    HasRegexp,
    /// A name that is none.
    BadName,
    /// A NAPTR record whose SRV records do not exist.
    NoSuchService,
    /// Target ".": not offered here (RFC 2782).
    NotOffered,
    /// Port 0.
    NoPort,
    /// No address.
    NoAddress,
    /// An address that nobody can be called at: unspecified, multicast, broadcast.
    UnusableAddress,
    /// No listener of that address family.
    FamilyNotEnabled,
    /// Listed before.
    Duplicate,
    /// The lookup failed.
    LookupFailed,
    /// More than our bounds allow.
    OverLimit,
    /// One of our own listeners (rule 6).
    OwnListener,
    /// It has as many calls, or new calls per second, as one instance of its peer may get.
    AtLimit,
}

impl LeftOutReason {
    /// A fixed word for records.
    pub const fn label(self) -> &'static str {
        match self {
            LeftOutReason::ForeignService => "foreign_service",
            LeftOutReason::TransportNotEnabled => "transport_not_enabled",
            LeftOutReason::NotSecure => "not_secure",
            LeftOutReason::NotTerminal => "not_terminal",
            LeftOutReason::HasRegexp => "has_regexp",
            LeftOutReason::BadName => "bad_name",
            LeftOutReason::NoSuchService => "no_such_service",
            LeftOutReason::NotOffered => "not_offered",
            LeftOutReason::NoPort => "no_port",
            LeftOutReason::NoAddress => "no_address",
            LeftOutReason::UnusableAddress => "unusable_address",
            LeftOutReason::FamilyNotEnabled => "family_not_enabled",
            LeftOutReason::Duplicate => "duplicate",
            LeftOutReason::LookupFailed => "lookup_failed",
            LeftOutReason::OverLimit => "over_limit",
            LeftOutReason::OwnListener => "own_listener",
            LeftOutReason::AtLimit => "at_limit",
        }
    }
}
