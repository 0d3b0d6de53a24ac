//! Addresses: can they be called, and over both families (RFC 2782, RFC 7984, RFC 6890).

use std::net::IpAddr;
use std::sync::Arc;

use super::Findings;
use super::facts::Facts;

pub(super) fn judge(facts: &Facts, out: &mut Findings) {
    let targets = facts.targets();
    let hosts: Vec<Arc<str>> = if targets.is_empty() { vec![facts.domain_name().clone()] } else { targets };
    for host in &hosts {
        for addr in facts.addresses(host) {
            reach(host, addr, out);
        }
    }
    let known = hosts.iter().all(|h| facts.addresses_known(h));
    let all: Vec<IpAddr> = hosts.iter().flat_map(|h| facts.addresses(h)).collect();
    let four = all.iter().any(IpAddr::is_ipv4);
    if all.is_empty() || !known || (four && all.iter().any(IpAddr::is_ipv6)) {
        return;
    }
    let about = format!("{}.", facts.domain());
    if four {
        out.info(
            "only_ipv4",
            about,
            "no server has an IPv6 address",
            "a client that has only IPv6 cannot call; servers take calls over both (RFC 7984 section 3, RFC 6157)",
            "publish AAAA records for the servers",
        );
    } else {
        out.warning(
            "only_ipv6",
            about,
            "no server has an IPv4 address",
            "most clients that have only IPv4 cannot call; servers take calls over both (RFC 7984 section 3, RFC 6157)",
            "publish A records for the servers",
        );
    }
}

fn reach(host: &str, addr: IpAddr, out: &mut Findings) {
    let kind = if addr.is_ipv4() { "A" } else { "AAAA" };
    let about = format!("{host}. {kind} {addr}");
    let broadcast = matches!(addr, IpAddr::V4(a) if a.is_broadcast());
    if addr.is_unspecified() || addr.is_multicast() || broadcast {
        out.error(
            "address_unusable",
            about,
            "nobody can be called at this address",
            "it means no host, or many (RFC 6890, RFC 5771)",
            "publish the address of the server",
        );
        return;
    }
    let (scope, why) = match addr {
        addr if addr.is_loopback() => {
            ("of the loopback interface", "each client would call itself (RFC 6890)")
        }
        IpAddr::V4(a) if a.is_link_local() => {
            ("link-local", "it cannot be reached from another network (RFC 3927)")
        }
        IpAddr::V4(a) if a.is_private() => {
            ("private", "it cannot be reached from the Internet; between peers only by agreement (RFC 1918)")
        }
        IpAddr::V6(a) if a.is_unicast_link_local() => {
            ("link-local", "it cannot be reached from another network (RFC 4291 section 2.5.6)")
        }
        IpAddr::V6(a) if a.is_unique_local() => (
            "unique-local",
            "it cannot be reached from the Internet; between peers only by agreement (RFC 4193)",
        ),
        _ => return,
    };
    out.warning(
        "address_scope",
        about,
        format!("this address is {scope}"),
        why,
        "publish an address that peers can reach, unless this zone is for a private network",
    );
}
