//! What is valid and still hardly meant: addresses that others cannot reach, circles, limits that never apply.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use super::check::Spots;
use super::error::Report;
use super::raw::Section;
use super::units::show_duration;
use super::{Config, DomainPattern, Listen, NextHop, Peer, Realm};
use crate::flow::{Host, Transport};

pub(super) fn doubts(report: &mut Report<'_>, config: &Config, spots: &Spots) {
    if spots.listeners_sound {
        addresses(report, config, spots);
        literals(report, config, spots);
        circles(report, config, spots);
        admin(report, config, spots);
    }
    if let Some(hep) = &config.hep
        && config.listen.iter().any(|l| l.transport == Transport::Udp && is_at(l, hep.server))
    {
        let what = format!("server = \"{}\" is a listener of this element", hep.server);
        report.warn(spots.hep, what, "name the capture server, copies of copies would never end");
    }
    if let Some(at) = spots.max_age.filter(|_| config.calls_max_age < config.sip.timer_c) {
        let what = format!(
            "max_age = {} ends the count of a call that may still ring: timer_c = {}",
            show_duration(config.calls_max_age),
            show_duration(config.sip.timer_c)
        );
        report.warn(at, what, "write hours, longer than calls last");
    }
    let whole = config.sip.t1 * 64;
    if let Some(at) = spots.dns_timeout.filter(|_| config.dns.timeout >= whole) {
        let what = format!(
            "timeout = {} for the DNS outlasts a caller's patience of 64*T1 = {}",
            show_duration(config.dns.timeout),
            show_duration(whole)
        );
        report.warn(at, what, "write a few seconds");
    }
}

/// A listener takes what is sent to this address.
fn is_at(listener: &Listen, to: SocketAddr) -> bool {
    let same = listener.bind.ip() == to.ip();
    listener.bind.port() == to.port()
        && to.port() != 0
        && (same || listener.bind.ip().is_unspecified() && to.ip().is_loopback())
}

/// What an address is good for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Reach {
    /// This machine.
    Host,
    /// A network of one's own (RFC 1918, 6598, 4193), or a link.
    Private,
    /// Everywhere.
    World,
}

fn reach(ip: IpAddr) -> Reach {
    match ip.to_canonical() {
        ip if ip.is_loopback() => Reach::Host,
        IpAddr::V4(v4) => {
            let [a, b, ..] = v4.octets();
            let shared = a == 100 && (64..128).contains(&b);
            if v4.is_private() || v4.is_link_local() || shared { Reach::Private } else { Reach::World }
        }
        IpAddr::V6(v6) if v6.is_unique_local() || v6.is_unicast_link_local() => Reach::Private,
        IpAddr::V6(_) => Reach::World,
    }
}

/// A listener's address goes into Via, Record-Route and Contact-like places: others must reach it there.
fn addresses(report: &mut Report<'_>, config: &Config, spots: &Spots) {
    if config.listen.iter().all(|l| l.bind.ip().is_loopback()) {
        // A trial on one machine.
        return;
    }
    for (listener, at) in config.listen.iter().zip(&spots.binds) {
        // What is written as advertise is what others are told.
        let told = match &listener.advertise {
            Some((Host::Addr(ip), _)) => *ip,
            Some((Host::Name(_), _)) => continue,
            None => listener.bind.ip(),
        };
        let near = reach(told);
        let mut others: Vec<IpAddr> = Vec::new();
        if listener.realm != Realm::Core {
            others.extend(config.peers.iter().flat_map(known_addresses));
        }
        if listener.realm != Realm::Peering {
            let core = &config.core;
            others.extend(core.sources.iter().map(|net| net.addr()));
            others.extend(core.next_hops.iter().filter_map(literal));
        }
        let far = others.into_iter().filter(|ip| ip.is_ipv4() == told.is_ipv4()).find(|ip| reach(*ip) > near);
        let Some(far) = far else { continue };
        let (kind, remedy) = match near {
            Reach::Host => ("this machine alone reaches", "bind it to an address that the others reach"),
            _ => (
                "a private address, not to be reached from",
                "add advertise = \"…\" with the public name or address, behind which this one is",
            ),
        };
        let what = match near {
            Reach::Host => format!("{kind} {told}, and {far} is to be served"),
            _ => format!("{told} is {kind} {far}"),
        };
        report.warn(*at, what, remedy);
    }
}

fn literal(hop: &NextHop) -> Option<IpAddr> {
    match hop.host {
        Host::Addr(ip) => Some(ip),
        Host::Name(_) => None,
    }
}

/// The addresses that are written for a peer.
fn known_addresses(peer: &Peer) -> impl Iterator<Item = IpAddr> {
    let domains = peer.domains.iter().filter_map(|d| match d {
        DomainPattern::Exact(Host::Addr(ip)) => Some(*ip),
        _ => None,
    });
    // A source of everything says nothing about where it is.
    let sources = peer.sources.iter().filter(|net| net.prefix_len() > 0).map(|net| net.addr());
    domains.chain(sources).chain(peer.next_hop.as_ref().and_then(literal))
}

/// Rule 6: a peer that is reached at an address needs a listener of its family.
fn literals(report: &mut Report<'_>, config: &Config, spots: &Spots) {
    let serves = |v4: bool| config.listen.iter().any(|l| l.realm != Realm::Core && l.bind.is_ipv4() == v4);
    if !config.listen.iter().any(|l| l.realm != Realm::Core) {
        return;
    }
    for (peer, spot) in config.peers.iter().zip(&spots.peers) {
        if peer.next_hop.is_some() {
            continue;
        }
        for (domain, at) in peer.domains.iter().zip(&spot.domains) {
            let DomainPattern::Exact(Host::Addr(ip)) = domain else { continue };
            if config.listen.iter().any(|l| l.bind.ip() == *ip) {
                report.warn(*at, format!("\"{ip}\" is an address of this element"), "name the peer's own");
            } else if !serves(ip.is_ipv4()) {
                let family = if ip.is_ipv4() { "IPv4" } else { "IPv6" };
                let what =
                    format!("\"{ip}\" cannot be reached: no listener for peers has an {family} address");
                report.warn(*at, what, format!("add a [[listen]] with an {family} address"));
            }
        }
    }
}

/// A next hop by a name of our own leads back here.
fn circles(report: &mut Report<'_>, config: &Config, spots: &Spots) {
    let advertised = config.listen.iter().filter_map(|l| l.advertise.as_ref().map(|(host, _)| host));
    let own: Vec<&Host> = std::iter::once(&config.node.name).chain(advertised).collect();
    let core = config.core.next_hops.iter().zip(spots.core.next_hops.iter().copied());
    let peers =
        config.peers.iter().zip(&spots.peers).filter_map(|(p, s)| Some((p.next_hop.as_ref()?, s.next_hop)));
    for (hop, at) in core.chain(peers) {
        let named = own.contains(&&hop.host) && matches!(hop.host, Host::Name(_));
        let ours = hop.port.is_none_or(|port| config.listen.iter().any(|l| l.bind.port() == port));
        if named && ours {
            let what = format!("\"{}\" is this element", hop.uri);
            report.warn(at, what, "name another host, what goes round in a circle is refused");
        }
    }
}

/// The admin interface is a TCP listener too.
fn admin(report: &mut Report<'_>, config: &Config, spots: &Spots) {
    let Some(admin) = config.admin else { return };
    let taken = config.listen.iter().find(|l| {
        let (a, b) = (l.bind.ip(), admin.ip());
        let same = a == b || a.is_ipv4() == b.is_ipv4() && (a.is_unspecified() || b.is_unspecified());
        l.transport.is_reliable() && same && l.bind.port() == admin.port() && admin.port() != 0
    });
    if let Some(listener) = taken {
        let what = format!(
            "the admin interface on {admin} collides with {} on {}",
            listener.transport, listener.bind
        );
        report.error(
            spots.admin,
            what,
            "give it a port of its own, such as bind = \"127.0.0.1:9060\" in [admin]",
        );
    }
}

/// A limit for each instance beyond that of the peer is none.
pub(super) fn instance_limits(report: &mut Report<'_>, section: &Section<'_>, peer: &Peer) {
    for (key, each, all) in [
        ("max_calls_per_instance", peer.max_calls_per_instance, peer.max_calls),
        ("max_rate_per_instance", peer.max_rate_per_instance, peer.max_rate),
    ] {
        if let (Some(each), Some(all)) = (each, all)
            && each > all
        {
            let whole = key.trim_end_matches("_per_instance");
            let what = format!("{key} = {each} is above {whole} = {all} and never applies");
            report.warn(section.place(key), what, format!("write less than {whole}, or leave it out"));
        }
    }
}

/// A peer's own T1, with what the file has for all peers besides it.
pub(super) fn peer_timers(
    report: &mut Report<'_>,
    section: &Section<'_>,
    peer: &Peer,
    sip_try: Duration,
    sip_t1: Duration,
) {
    let t1 = peer.t1.unwrap_or(sip_t1);
    if peer.t1.is_some() && peer.try_timeout.is_none() && t1 > sip_try {
        let what = format!(
            "t1 = {} is longer than try_timeout = {} of [sip]",
            show_duration(t1),
            show_duration(sip_try)
        );
        let remedy =
            "add a try_timeout of several T1 to this peer: one lost datagram will look like a dead instance";
        report.warn(section.place("t1"), what, remedy);
    }
    if let Some(probe) = &peer.probe
        && probe.timeout < t1
    {
        let what = format!(
            "a probe's timeout = {} is shorter than T1 = {}",
            show_duration(probe.timeout),
            show_duration(t1)
        );
        let remedy = "write several T1: a probe that is lost once would count as a failure";
        report.warn(section.place_of_key("probe"), what, remedy);
    }
}
