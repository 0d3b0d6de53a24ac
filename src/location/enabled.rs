//! What we can send by: transports and families that have a listener in the realm (rule 6).

use std::net::IpAddr;

use smallvec::SmallVec;

use crate::config::Families;
use crate::flow::Transport;

/// What can be sent from one realm, and our order of preference.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Enabled {
    preference: SmallVec<[Transport; 3]>,
    v4: [bool; 3],
    v6: [bool; 3],
    families: Families,
}

impl Enabled {
    /// `preference` is `dns.transports`; `v4` and `v6` say, by the number of the transport
    /// ([`Transport::ALL`]), whether a listener of that family serves the realm; `families` is
    /// `dns.addresses`.
    pub fn new(preference: &[Transport], v4: [bool; 3], v6: [bool; 3], families: Families) -> Self {
        let mut unique = SmallVec::new();
        for t in preference {
            if !unique.contains(t) {
                unique.push(*t);
            }
        }
        Self { preference: unique, v4, v6, families }
    }

    /// True if a message can leave by `transport` at all.
    pub fn has(&self, transport: Transport) -> bool {
        self.v4(transport) || self.v6(transport)
    }

    /// True if a message can leave by `transport` to `addr` (an IPv4-mapped address counts as IPv4).
    pub fn can_reach(&self, transport: Transport, addr: IpAddr) -> bool {
        match addr.to_canonical() {
            IpAddr::V4(_) => self.v4(transport),
            IpAddr::V6(_) => self.v6(transport),
        }
    }

    /// The transports that discovery may choose among, best first: those of `dns.transports` that
    /// have a listener. A transport that is left out there is used only where a URI names it or
    /// RFC 3263 leaves no choice.
    pub fn discoverable(&self) -> impl Iterator<Item = Transport> + '_ {
        self.preference.iter().copied().filter(|t| self.has(*t))
    }

    /// Place of a transport in our preference; lower is better.
    pub fn rank(&self, transport: Transport) -> usize {
        self.preference.iter().position(|t| *t == transport).unwrap_or(self.preference.len())
    }

    /// Whether A records are worth asking for.
    pub fn asks_a(&self, transport: Transport) -> bool {
        self.families != Families::Ipv6 && self.v4(transport)
    }

    /// Whether AAAA records are worth asking for.
    pub fn asks_aaaa(&self, transport: Transport) -> bool {
        self.families != Families::Ipv4 && self.v6(transport)
    }

    fn v4(&self, transport: Transport) -> bool {
        self.v4.get(transport as usize).copied().unwrap_or(false)
    }

    fn v6(&self, transport: Transport) -> bool {
        self.v6.get(transport as usize).copied().unwrap_or(false)
    }
}
