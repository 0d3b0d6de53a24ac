//! Typed addresses (RFC 7285 §10.4): `ipv4:192.0.2.1`, `ipv6:2001:db8::1`.

use std::net::IpAddr;

/// How an address is written in a query: RFC 5952, no brackets, no zone.
pub fn typed(addr: IpAddr) -> String {
    match addr.to_canonical() {
        IpAddr::V4(a) => format!("ipv4:{a}"),
        IpAddr::V6(a) => format!("ipv6:{a}"),
    }
}

/// Reads one. Servers may spell an address differently than we asked for it, so it is compared as an address and
/// never as text. `None`: another type, or no address of this type.
pub fn parse(text: &str) -> Option<IpAddr> {
    let (kind, addr) = text.split_once(':')?;
    match kind {
        "ipv4" => addr.parse().ok().map(IpAddr::V4),
        "ipv6" => addr.parse().ok().map(|a| IpAddr::V6(a).to_canonical()),
        _ => None,
    }
}
