//! Longest-prefix match of a sender's address to the core or a peer (rule 1).

use std::net::IpAddr;

use ahash::AHashMap;
use ipnet::IpNet;

use super::Party;

/// Up to so many IPv4 prefixes are looked through one by one.
const FEW: usize = 8;

/// Source prefixes of everybody admitted.
///
/// One hash table per family and a list of the prefix lengths in use, longest first: a look-up
/// costs one probe per distinct length, however many peers there are.
#[derive(Clone, Debug, Default)]
pub struct Sources {
    table: AHashMap<(u128, u16), Party>,
    v4: Vec<u8>,
    v6: Vec<u8>,
    /// All IPv4 prefixes while there are few, longest first; one more once there are not.
    few: Vec<Block>,
}

/// An IPv4 prefix.
#[derive(Clone, Copy, Debug)]
struct Block {
    bits: u32,
    mask: u32,
    party: Party,
}

impl Sources {
    /// Adds a prefix. The first to claim a prefix keeps it, so the core is to be added first
    /// (a tie goes to the core).
    pub fn add(&mut self, net: IpNet, party: Party) {
        let net = net.trunc();
        let lengths = if net.addr().is_ipv4() { &mut self.v4 } else { &mut self.v6 };
        if let Err(at) = lengths.binary_search_by(|have| net.prefix_len().cmp(have)) {
            lengths.insert(at, net.prefix_len());
        }
        let known = self.table.len();
        self.table.entry(key(net.addr(), net.prefix_len())).or_insert(party);
        if let IpNet::V4(net) = net
            && self.table.len() > known
            && self.few.len() <= FEW
        {
            let mask = net.netmask().to_bits();
            let at = self.few.partition_point(|block| block.mask >= mask);
            self.few.insert(at, Block { bits: net.addr().to_bits(), mask, party });
        }
    }

    /// Adds an address that a party publishes. What belongs to another already, by whatever prefix, stays that
    /// other's: nobody shall get the place of the core or of a peer by naming its addresses in a zone. False: it does.
    pub fn add_published(&mut self, addr: IpAddr, party: Party) -> bool {
        match self.find(addr) {
            Some(owner) => owner == party,
            None => {
                self.add(IpNet::from(addr.to_canonical()), party);
                true
            }
        }
    }

    /// The prefix that makes an address somebody's.
    pub fn prefix(&self, addr: IpAddr) -> Option<IpNet> {
        let addr = addr.to_canonical();
        let lengths = if addr.is_ipv4() { &self.v4 } else { &self.v6 };
        let length = lengths.iter().copied().find(|length| self.table.contains_key(&key(addr, *length)))?;
        Some(IpNet::new(addr, length).ok()?.trunc())
    }

    /// Whose address this is. IPv4-mapped IPv6 addresses count as IPv4.
    pub fn find(&self, addr: IpAddr) -> Option<Party> {
        let addr = addr.to_canonical();
        if let IpAddr::V4(addr) = addr
            && self.few.len() <= FEW
        {
            let bits = addr.to_bits();
            return self.few.iter().find(|block| bits & block.mask == block.bits).map(|block| block.party);
        }
        let lengths = if addr.is_ipv4() { &self.v4 } else { &self.v6 };
        lengths.iter().find_map(|&length| self.table.get(&key(addr, length)).copied())
    }
}

/// The network that an address lies in, as numbers; IPv4 and IPv6 ones are told apart by the length.
fn key(addr: IpAddr, length: u8) -> (u128, u16) {
    let cut = |bits: u128, of: u8| bits.checked_shr(u32::from(of - length.min(of))).unwrap_or(0);
    match addr {
        IpAddr::V4(a) => (cut(u128::from(a.to_bits()), 32), u16::from(length)),
        IpAddr::V6(a) => (cut(a.to_bits(), 128), u16::from(length) | 0x100),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::flow::PeerId;

    fn table() -> Sources {
        let mut s = Sources::default();
        s.add("10.0.0.0/8".parse().unwrap(), Party::Core);
        s.add("10.1.0.0/16".parse().unwrap(), Party::Peer(PeerId(1)));
        s.add("10.1.2.3/32".parse().unwrap(), Party::Core);
        s.add("10.1.2.3/32".parse().unwrap(), Party::Peer(PeerId(2)));
        s.add("2001:db8::/32".parse().unwrap(), Party::Peer(PeerId(3)));
        s
    }

    #[test]
    fn the_longest_prefix_wins_and_a_tie_goes_to_the_first() {
        let s = table();
        for (addr, want) in [
            ("10.9.9.9", Some(Party::Core)),
            ("10.1.9.9", Some(Party::Peer(PeerId(1)))),
            ("10.1.2.3", Some(Party::Core)),
            ("11.0.0.1", None),
            ("2001:db8::1", Some(Party::Peer(PeerId(3)))),
            ("2001:db9::1", None),
            ("::ffff:10.1.9.9", Some(Party::Peer(PeerId(1)))),
        ] {
            assert_eq!(s.find(addr.parse().unwrap()), want, "{addr}");
            assert_eq!(s.prefix(addr.parse().unwrap()).is_some(), want.is_some(), "{addr}");
        }
        let prefix = s.prefix("::ffff:10.1.9.9".parse().unwrap());
        assert_eq!(prefix.map(|p| p.to_string()).as_deref(), Some("10.1.0.0/16"));
    }

    #[test]
    fn what_is_published_takes_nothing_from_anybody() {
        let mut s = table();
        let addr = |text: &str| -> IpAddr { text.parse().unwrap() };
        let peer = Party::Peer(PeerId(4));
        for (text, added) in [("10.9.9.9", false), ("2001:db8::1", false), ("::ffff:192.0.2.1", true)] {
            assert_eq!(s.add_published(addr(text), peer), added, "{text}");
        }
        assert!(s.add_published(addr("192.0.2.1"), peer), "its own");
        assert!(
            !s.add_published(addr("192.0.2.1"), Party::Peer(PeerId(5))),
            "the first to publish it keeps it"
        );
        assert_eq!(s.find(addr("192.0.2.1")), Some(peer));
        assert_eq!(s.find(addr("10.9.9.9")), Some(Party::Core));
    }

    #[test]
    fn few_prefixes_and_many_are_searched_to_the_same_end() {
        let nets = |more: u8| {
            let mut s = table();
            s.add("0.0.0.0/0".parse().unwrap(), Party::Peer(PeerId(8)));
            for n in 0..more {
                s.add(format!("10.1.{n}.0/24").parse().unwrap(), Party::Peer(PeerId(20 + u16::from(n))));
            }
            s
        };
        for more in [0, 3, 4, 5, 6, 20] {
            let s = nets(more);
            assert_eq!(s.few.len() <= FEW, more <= 4, "{more}");
            for (text, last) in
                [("10.1.2.3", 0), ("10.1.3.3", 3), ("10.1.200.3", 200), ("10.2.0.1", 0), ("9.0.0.1", 0)]
            {
                let addr: IpAddr = text.parse().unwrap();
                let want = s.prefix(addr).map(|net| s.table[&key(net.addr(), net.prefix_len())]);
                assert_eq!(s.find(addr), want, "{text} {more}");
                if last > 0 && last < more {
                    assert_eq!(want, Some(Party::Peer(PeerId(20 + u16::from(last)))), "{text} {more}");
                }
            }
            assert_eq!(s.find("10.1.2.3".parse().unwrap()), Some(Party::Core));
        }
    }

    #[test]
    fn a_default_route_admits_the_rest() {
        let mut s = table();
        s.add("0.0.0.0/0".parse().unwrap(), Party::Peer(PeerId(9)));
        assert_eq!(s.find("192.0.2.1".parse().unwrap()), Some(Party::Peer(PeerId(9))));
        assert_eq!(s.find("::1".parse().unwrap()), None);
    }
}
