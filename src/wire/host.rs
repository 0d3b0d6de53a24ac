//! Hosts of URIs and Vias (RFC 3261 §25.1 `host`).

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::ops::Range;

use super::octets::{BLOCK, Block};
use super::scan::{Cursor, is_host, number};
use crate::flow::Host;

/// A host as the message spells it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HostRef<'a> {
    /// A domain name in any case, perhaps with a final dot.
    Name(&'a [u8]),
    /// An IPv4 address or an IPv6 reference.
    Addr(IpAddr),
}

impl<'a> HostRef<'a> {
    /// A whole host: name, IPv4 address, or IPv6 in brackets. `None` if it is none of these.
    pub fn parse(s: &'a [u8]) -> Option<Self> {
        let mut cursor = Cursor::new(s, 0..s.len());
        let host = HostRef::read(&mut cursor)?;
        cursor.at_end().then_some(host)
    }

    /// The host at the cursor. Names are not looked at closely: see [`HostRef::is_sound`].
    pub(crate) fn read(cursor: &mut Cursor<'a>) -> Option<Self> {
        if cursor.peek() == Some(b'[') {
            let end = memchr::memchr(b']', cursor.rest())?;
            let addr = ipv6(cursor.rest().get(1..end)?)?;
            cursor.pos += end + 1;
            return Some(HostRef::Addr(IpAddr::V6(addr)));
        }
        if cursor.peek().is_some_and(|b| b.is_ascii_digit())
            && let Some((addr, len)) = leading_ipv4(cursor.rest())
        {
            cursor.pos += len;
            return Some(HostRef::Addr(IpAddr::V4(addr)));
        }
        let name = cursor.take_while(is_host);
        if name.is_empty() || name.len() > 255 {
            return None;
        }
        Some(HostRef::Name(name))
    }

    /// True for addresses, and for names of non-empty labels whose last one is not a number
    /// (RFC 3261 §25.1 `toplabel`): what looks like an address but is none must not reach the DNS.
    pub fn is_sound(&self) -> bool {
        let HostRef::Name(name) = self else {
            return true;
        };
        let name = name.strip_suffix(b".").unwrap_or(name);
        // Over all labels: none is empty, and the last one holds something other than digits.
        let (mut previous, mut only_digits) = (b'.', true);
        for &b in name {
            match b {
                b'.' if previous == b'.' => return false,
                b'.' => only_digits = true,
                _ => only_digits &= b.is_ascii_digit(),
            }
            previous = b;
        }
        previous != b'.' && !only_digits
    }

    /// The owned form: lower case, no final dot; IPv4-mapped IPv6 stays IPv6.
    pub fn to_host(&self) -> Host {
        match self {
            HostRef::Addr(addr) => Host::Addr(*addr),
            HostRef::Name(name) => {
                let name = name.strip_suffix(b".").unwrap_or(name);
                match std::str::from_utf8(name) {
                    Ok(lower) if !name.iter().any(u8::is_ascii_uppercase) => Host::Name(lower.into()),
                    _ => Host::Name(String::from_utf8_lossy(name).to_ascii_lowercase().into()),
                }
            }
        }
    }

    /// Whether this is `host`, without allocation: names without case and final dot.
    pub fn eq_host(&self, host: &Host) -> bool {
        match (self, host) {
            (HostRef::Addr(a), Host::Addr(b)) => a == b,
            (HostRef::Name(a), Host::Name(b)) => {
                a.strip_suffix(b".").unwrap_or(a).eq_ignore_ascii_case(b.as_bytes())
            }
            _ => false,
        }
    }

    /// The address, if it is one.
    pub fn addr(&self) -> Option<IpAddr> {
        match self {
            HostRef::Addr(a) => Some(*a),
            HostRef::Name(_) => None,
        }
    }
}

/// The IPv4 address at the start of `bytes[range]`, where it is written within a block, and where it ends; not
/// where something follows that makes it part of a name. `None`: look closer, with [`host_at`].
#[inline(always)]
pub(crate) fn ipv4_at(bytes: &[u8], range: Range<usize>) -> Option<(IpAddr, usize)> {
    let (addr, len) = ipv4_in_block(bytes.get(range.start..)?.first_chunk()?)?;
    let end = range.start + usize::from(len);
    (end <= range.end).then_some((IpAddr::V4(addr), end))
}

/// The host at the start of `bytes[range]`, and where it ends.
#[inline(never)]
pub(crate) fn host_at(bytes: &[u8], range: Range<usize>) -> Option<(HostRef<'_>, usize)> {
    let mut cursor = Cursor::new(bytes, range);
    Some((HostRef::read(&mut cursor)?, cursor.pos))
}

fn ipv4(s: &[u8]) -> Option<Ipv4Addr> {
    leading_ipv4(s).filter(|(_, len)| *len == s.len()).map(|(addr, _)| addr)
}

/// The address that `s` begins with, and its length; not where something follows that makes it
/// part of a name.
#[inline]
fn leading_ipv4(s: &[u8]) -> Option<(Ipv4Addr, usize)> {
    let block = s.first_chunk().and_then(ipv4_in_block).map(|(addr, len)| (addr, usize::from(len)));
    block.or_else(|| ipv4_by_octets(s))
}

/// The same for an address that ends within a block, usual as that is. `None`: look closer.
#[inline]
fn ipv4_in_block(block: &[u8; BLOCK]) -> Option<(Ipv4Addr, u8)> {
    let octets = Block::new(block);
    let dots = octets.is(b'.').bits();
    let len = (octets.between(b'0', b'9').bits() | dots).trailing_ones() as usize;
    if block.get(len).is_none_or(|&b| is_host(b)) {
        return None;
    }
    // Each of the four numbers ends at a dot, the last one where the digits end.
    let (mut ends, mut from, mut addr) = (dots & ((1 << len) - 1) | 1 << len, 0, 0);
    for _ in 0..4 {
        let end = ends.trailing_zeros() as usize;
        ends &= ends.wrapping_sub(1);
        let digit = |at: usize| block.get(at).map(|b| u32::from(b & 15));
        let value = match end.checked_sub(from)? {
            1 => digit(from)?,
            2 => digit(from).filter(|d| *d > 0)? * 10 + digit(from + 1)?,
            3 => digit(from).filter(|d| *d > 0)? * 100 + digit(from + 1)? * 10 + digit(from + 2)?,
            _ => return None,
        };
        if value > 255 {
            return None;
        }
        addr = addr << 8 | value;
        from = end + 1;
    }
    if ends != 0 {
        return None;
    }
    Some((Ipv4Addr::from(addr), u8::try_from(len).ok()?))
}

fn ipv4_by_octets(s: &[u8]) -> Option<(Ipv4Addr, usize)> {
    let (mut octets, mut at) = (0u32, 0);
    for part in 0..4 {
        let (mut value, from) = (0u32, at);
        while let Some(digit @ b'0'..=b'9') = s.get(at) {
            value = value * 10 + u32::from(digit - b'0');
            at += 1;
            if at - from > 3 {
                return None;
            }
        }
        // No leading zeros: some would read them as octal.
        let padded = at - from > 1 && s.get(from) == Some(&b'0');
        if at == from || value > 255 || padded {
            return None;
        }
        octets = octets << 8 | value;
        match s.get(at) {
            Some(b'.') if part < 3 => at += 1,
            Some(&b) if part == 3 && is_host(b) => return None,
            _ if part == 3 => {}
            _ => return None,
        }
    }
    Some((Ipv4Addr::from(octets), at))
}

/// An IPv6 address without brackets. Three colons before an IPv4 part count as two: the grammar of
/// RFC 3261 once demanded them (RFC 5118 §4.10).
fn ipv6(s: &[u8]) -> Option<Ipv6Addr> {
    let text = std::str::from_utf8(s).ok()?;
    if let Ok(addr) = text.parse() {
        return Some(addr);
    }
    let (head, tail) = text.split_once(":::")?;
    let mut fixed = [0u8; 48];
    let len = head.len() + 2 + tail.len();
    let (h, rest) = fixed.get_mut(..len)?.split_at_mut(head.len());
    h.copy_from_slice(head.as_bytes());
    let (colons, t) = rest.split_at_mut(2);
    colons.copy_from_slice(b"::");
    t.copy_from_slice(tail.as_bytes());
    std::str::from_utf8(fixed.get(..len)?).ok()?.parse().ok()
}

/// An address as `received` carries it: IPv6 with or without brackets (RFC 5118 §4.5).
pub(crate) fn bare_addr(s: &[u8]) -> Option<IpAddr> {
    let inner = s.strip_prefix(b"[").and_then(|s| s.strip_suffix(b"]"));
    match inner {
        Some(v6) => ipv6(v6).map(IpAddr::V6),
        None => ipv4(s).map(IpAddr::V4).or_else(|| ipv6(s).map(IpAddr::V6)),
    }
}

/// A port, 0 included.
pub(crate) fn port(digits: &[u8]) -> Option<u16> {
    number(digits, u64::from(u16::MAX)).and_then(|n| u16::try_from(n).ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_in_a_block_is_the_one_that_its_octets_spell() {
        let parts = ["", "0", "7", "00", "07", "10", "99", "100", "255", "256", "1000", "1a"];
        let ends = [";", ":5060", ".", ".5", "a", "-", " ", ""];
        let mut read = 0;
        for (n, end) in (0..parts.len().pow(4)).flat_map(|n| ends.iter().map(move |end| (n, end))) {
            let part =
                |at: u32| parts.get(n / parts.len().pow(at) % parts.len()).copied().unwrap_or_default();
            let text =
                format!("{}.{}.{}.{}{end}{}", part(0), part(1), part(2), part(3), ";rport;branch=z9hG");
            let block = text.as_bytes().first_chunk().and_then(ipv4_in_block);
            let block = block.map(|(addr, len)| (addr, usize::from(len)));
            let octets = ipv4_by_octets(text.as_bytes());
            assert_eq!(block, octets, "{text}");
            read += usize::from(block.is_some());
        }
        assert_eq!(read, 4 * 6_usize.pow(4));
    }
}
