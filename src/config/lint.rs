//! What no section shows by itself: claims that collide, sides that nobody serves, peers that cannot work.

use std::collections::HashMap;

use ipnet::IpNet;

use super::check::{PeerSpots, Spots};
use super::error::Report;
use super::names::as_name;
use super::{AltoScope, ClientCertificates, Config, DomainPattern, NextHop, Peer, Realm};
use crate::flow::{Host, Transport};

pub(super) fn lint(report: &mut Report<'_>, config: &Config, spots: &Spots) {
    domains(report, config, spots);
    sources(report, config, spots);
    tls_names(report, config, spots);
    for (peer, spot) in config.peers.iter().zip(&spots.peers) {
        if spot.sound {
            usefulness(report, config, peer, spot, spots.listeners_sound);
        }
    }
    agreements(report, config, spots);
    // With a listener missing from the picture, what follows would be guesses.
    if spots.listeners_sound && !config.listen.is_empty() {
        realms(report, config, spots);
        transports(report, config, spots);
        next_hops(report, config, spots);
    }
    ends(report, config, spots);
}

/// Whether a listener serves this side.
fn serves(config: &Config, side: Realm) -> impl Iterator<Item = &super::Listen> {
    config.listen.iter().filter(move |l| l.realm == side || l.realm == Realm::Both)
}

/// Rule 3: no domain belongs to two peers; what is our own never reaches a peer.
fn domains(report: &mut Report<'_>, config: &Config, spots: &Spots) {
    let mut own: HashMap<&Host, usize> = HashMap::new();
    for (domain, at) in config.node.domains.iter().zip(&spots.node_domains) {
        if own.insert(domain, *at).is_some() {
            report.warn(*at, format!("\"{domain}\" is listed twice"), "once is enough");
        }
    }
    let mut claimed: HashMap<&DomainPattern, (usize, &str)> = HashMap::new();
    for (index, (peer, spot)) in config.peers.iter().zip(&spots.peers).enumerate() {
        for (pattern, at) in peer.domains.iter().zip(&spot.domains) {
            match claimed.insert(pattern, (index, &peer.name)) {
                Some((other, _)) if other == index => {
                    report.warn(*at, format!("\"{}\" is listed twice", show(pattern)), "once is enough");
                }
                Some((_, other)) => {
                    let what = format!("\"{}\" belongs to peer \"{other}\" already", show(pattern));
                    report.error(*at, what, "let each domain belong to one peer");
                }
                None => {}
            }
            if let DomainPattern::Exact(host) = pattern
                && (own.contains_key(host) || *host == config.node.name)
            {
                let what = format!("\"{host}\" is a domain of our own, which goes before");
                report.warn(
                    *at,
                    what,
                    "leave it out of one of the two, no request for it will reach this peer",
                );
            }
        }
    }
}

fn show(pattern: &DomainPattern) -> String {
    match pattern {
        DomainPattern::Exact(host) => host.to_string(),
        DomainPattern::Below(name) => format!("*.{name}"),
    }
}

/// Rule 1: the longest prefix wins, so only identical ones are in doubt.
fn sources(report: &mut Report<'_>, config: &Config, spots: &Spots) {
    let mut core: Vec<IpNet> = config.core.sources.clone();
    core.sort_unstable();
    let mut claimed: HashMap<IpNet, &str> = HashMap::new();
    for (peer, spot) in config.peers.iter().zip(&spots.peers) {
        for (net, at) in peer.sources.iter().zip(&spot.sources) {
            if core.binary_search(net).is_ok() {
                let what = format!("tie: \"{net}\" is in the sources of the core too, which wins");
                report.warn(
                    *at,
                    what,
                    "give each its own prefixes, or nobody will be taken for this peer by this one",
                );
            } else if let Some(other) = claimed.get(net) {
                let what =
                    format!("tie: \"{net}\" is in the sources of peer \"{other}\" too, which comes first");
                report.warn(*at, what, "give each its own prefixes, or tell them apart by TLS names");
            } else {
                claimed.insert(*net, &peer.name);
            }
        }
    }
}

/// The names by which a peer is told over TLS (rule 1), each with its place.
fn names_of<'c>(peer: &'c Peer, spot: &'c PeerSpots) -> Vec<(&'c str, usize)> {
    match &peer.tls_names {
        Some(names) => names.iter().map(String::as_str).zip(spot.tls_names.iter().copied()).collect(),
        None => {
            exact_names(peer).zip(spot.domains.iter().copied()).filter_map(|(n, at)| Some((n?, at))).collect()
        }
    }
}

/// The exact names among a peer's domains, in step with them.
fn exact_names(peer: &Peer) -> impl Iterator<Item = Option<&str>> {
    peer.domains.iter().map(|d| match d {
        DomainPattern::Exact(host) => as_name(host).map(|n| &**n),
        DomainPattern::Below(_) => None,
    })
}

fn tls_names(report: &mut Report<'_>, config: &Config, spots: &Spots) {
    let mut claimed: HashMap<&str, String> = HashMap::new();
    for name in &config.core.tls_names {
        claimed.insert(name, "the core".to_owned());
    }
    for (peer, spot) in config.peers.iter().zip(&spots.peers) {
        for (name, at) in names_of(peer, spot) {
            let label = format!("peer \"{}\"", peer.name);
            match claimed.get(name) {
                // Two claims of one domain are an error already.
                Some(_) if peer.tls_names.is_none() && config.core.tls_names.iter().all(|n| n != name) => {}
                Some(other) if *other != label => {
                    let what = format!(
                        "tie: a certificate for \"{name}\" is that of {other} too, which comes first"
                    );
                    report.warn(at, what, "name certificates that only one of them has");
                }
                _ => {
                    claimed.insert(name, label);
                }
            }
        }
    }
    let listens = |side| serves(config, side).any(|l| l.transport == Transport::Tls);
    let asks = config.tls.as_ref().is_some_and(|t| t.client_certificates != ClientCertificates::None);
    let sides = [(Realm::Core, &spots.core.tls_names)];
    let peers = spots.peers.iter().map(|p| (Realm::Peering, &p.tls_names));
    for (side, places) in sides.into_iter().chain(peers) {
        let Some(at) = places.first() else { continue };
        if spots.listeners_sound && !listens(side) {
            report.warn(
                *at,
                "tls_names without a tls listener on this side",
                "add a [[listen]] with transport = \"tls\"",
            );
        } else if config.tls.is_some() && !asks && side == Realm::Core {
            let remedy = "write client_certificates = \"request\" or \"require\"";
            report.warn(*at, "tls_names, but [tls] asks nobody for a certificate", remedy);
        }
    }
}

/// A peer must be good for something, and a call takes both directions: answers come back by themselves, a BYE doesn't.
fn usefulness(
    report: &mut Report<'_>,
    config: &Config,
    peer: &Peer,
    spot: &PeerSpots,
    listeners_known: bool,
) {
    let named = peer.tls_names.as_ref().is_some_and(|n| !n.is_empty());
    let by_address = !peer.sources.is_empty() || !peer.source_names.is_empty();
    if peer.domains.is_empty() && !by_address && peer.next_hop.is_none() && !named {
        let remedy = "add domains to reach it, sources or tls_names to let it send, or remove it";
        report.error(spot.head, format!("peer \"{}\" is good for nothing", peer.name), remedy);
        return;
    }
    if peer.next_hop.is_some() && peer.domains.is_empty() {
        let what = format!("peer \"{}\" has a next_hop but no domains, so nothing goes there", peer.name);
        report.warn(spot.next_hop, what, "add domains, or remove next_hop");
    }
    let below = |d: &DomainPattern| matches!(d, DomainPattern::Below(_));
    if peer.probe.is_some() && peer.next_hop.is_none() && !peer.domains.is_empty() {
        if peer.domains.iter().all(below) {
            let what =
                format!("peer \"{}\" has nothing but wildcards, so nothing of it is probed", peer.name);
            report.warn(spot.probe, what, "add a domain whose servers are to be probed, or remove probe");
        } else if let Some((wildcard, at)) = peer.domains.iter().zip(&spot.domains).find(|(d, _)| below(d)) {
            let what =
                format!("what \"{}\" leads to is not probed, a wildcard names no server", show(wildcard));
            report.warn(*at, what, "list the domains whose servers are to be probed");
        }
    }
    if !listeners_known {
        return;
    }
    let certificates = config.tls.as_ref().map_or(ClientCertificates::None, |t| t.client_certificates);
    let tls = serves(config, Realm::Peering).any(|l| l.transport == Transport::Tls);
    let plain = serves(config, Realm::Peering).any(|l| l.transport != Transport::Tls);
    let by_source = by_address && (plain || certificates != ClientCertificates::Require);
    let by_name = tls
        && certificates != ClientCertificates::None
        && (named || peer.tls_names.is_none() && exact_names(peer).flatten().next().is_some());
    if !by_source && !by_name {
        let what =
            format!("nobody is taken for peer \"{}\", so its requests are refused, BYE too", peer.name);
        report.warn(spot.head, what, "add sources, or tls_names where there is a tls listener");
    }
    if peer.certificate.is_some() && !tls {
        let what = "a certificate for this peer, but no tls listener serves peers";
        report.warn(spot.certificate, what, "add a [[listen]] with transport = \"tls\"");
    }
}

/// Rule 2: each side that is spoken of needs a listener.
fn realms(report: &mut Report<'_>, config: &Config, spots: &Spots) {
    if serves(config, Realm::Peering).next().is_none() {
        let first =
            spots.peers.first().map(|p| p.head).or(config.federation_open.then_some(spots.federation));
        if let Some(at) = first {
            let remedy = "add a [[listen]] with realm = \"peering\", or leave realm out of one";
            report.error(at, "peers, but no listener serves them", remedy);
        }
    }
    let core = &config.core;
    let used = !core.next_hops.is_empty() || !core.sources.is_empty() || !core.tls_names.is_empty();
    if used && serves(config, Realm::Core).next().is_none() {
        let remedy = "add a [[listen]] with realm = \"core\", or leave realm out of one";
        report.error(spots.core.head, "a core, but no listener serves it", remedy);
    }
}

/// Rule 6: a transport without a listener is not enabled.
fn transports(report: &mut Report<'_>, config: &Config, spots: &Spots) {
    for (transport, at) in config.dns.transports.iter().zip(&spots.dns_transports) {
        if !config.listen.iter().any(|l| l.transport == *transport) {
            let what =
                format!("{transport} in transports, but there is no {transport} listener to send from");
            report.warn(*at, what, format!("add a [[listen]] with transport = \"{transport}\""));
        }
    }
}

fn next_hops(report: &mut Report<'_>, config: &Config, spots: &Spots) {
    let peers = config
        .peers
        .iter()
        .zip(&spots.peers)
        .filter_map(|(p, s)| Some((Realm::Peering, p.next_hop.as_ref()?, s.next_hop)));
    let core =
        config.core.next_hops.iter().zip(&spots.core.next_hops).map(|(hop, at)| (Realm::Core, hop, *at));
    for (side, hop, at) in core.chain(peers) {
        next_hop(report, config, side, hop, at);
    }
}

fn next_hop(report: &mut Report<'_>, config: &Config, side: Realm, hop: &NextHop, at: usize) {
    let side_name = if side == Realm::Core { "core" } else { "peering" };
    if serves(config, side).next().is_none() {
        return;
    }
    // RFC 3263 §4.1: an address or a port without a transport means UDP; a bare name leaves it to the DNS.
    let numeric = matches!(hop.host, Host::Addr(_)) || hop.port.is_some();
    let transport = match hop.transport {
        Some(Transport::Tcp) if hop.sips => Some(Transport::Tls),
        Some(transport) => Some(transport),
        None if hop.sips => Some(Transport::Tls),
        None => numeric.then_some(Transport::Udp),
    };
    let fits = |l: &&super::Listen| transport.is_none_or(|t| l.transport == t);
    if serves(config, side).find(fits).is_none() {
        let transport = transport.map_or("", Transport::param);
        let what = format!(
            "\"{}\" needs {transport}, and no {transport} listener serves the {side_name} side",
            hop.uri
        );
        let remedy = format!("add a [[listen]] with transport = \"{transport}\", or write another transport");
        report.warn(at, what, remedy);
        return;
    }
    let Host::Addr(addr) = hop.host else { return };
    if !serves(config, side).filter(fits).any(|l| l.bind.is_ipv4() == addr.is_ipv4()) {
        let family = if addr.is_ipv4() { "IPv4" } else { "IPv6" };
        let what =
            format!("\"{}\" needs {family}, and no listener that fits has an {family} address", hop.uri);
        report.warn(at, what, format!("add a [[listen]] with an {family} address"));
    }
    let own = config.listen.iter().any(|l| {
        let port = hop.port.unwrap_or(transport.map_or(5060, Transport::default_port));
        Some(l.transport) == transport && l.bind.ip() == addr && l.bind.port() == port
    });
    if own {
        let what = format!("\"{}\" is a listener of this element", hop.uri);
        report.warn(at, what, "name another host, what goes round in a circle is refused");
    }
}

/// What was agreed on costs counts only where there are costs, and where one name serves one peer.
fn agreements(report: &mut Report<'_>, config: &Config, spots: &Spots) {
    let default = config.alto.as_ref().map(|alto| alto.scope);
    let mut hops: HashMap<&Host, (AltoScope, &str)> = HashMap::new();
    for (peer, spot) in config.peers.iter().zip(&spots.peers) {
        let Some(default) = default else {
            if peer.alto_scope.is_some() {
                let what = "alto_scope, but there is no [alto]";
                report.warn(spot.alto_scope, what, "add [alto], or leave it out");
            }
            continue;
        };
        let Some(hop) = &peer.next_hop else { continue };
        let scope = peer.alto_scope.unwrap_or(default);
        let (other, name) = *hops.entry(&hop.host).or_insert((scope, &peer.name));
        if other != scope {
            let what = format!(
                "\"{}\" is the next hop of peer \"{name}\" too, with another alto_scope: priorities stand",
                hop.host
            );
            report.warn(spot.next_hop, what, "write the same alto_scope for both");
        }
    }
}

/// A call has two ends.
fn ends(report: &mut Report<'_>, config: &Config, spots: &Spots) {
    if config.peers.is_empty() && !config.federation_open {
        return;
    }
    let core = &config.core;
    if core.next_hops.is_empty() {
        let what = "[core] has no next_hops, so calls of peers to our own domains end here";
        report.warn(spots.core.head, what, "add next_hops = [\"sip:10.0.0.5:5060\"]");
    }
    if core.sources.is_empty() && core.tls_names.is_empty() {
        let what = "[core] has neither sources nor tls_names, so the core's requests are refused, BYE too";
        report.warn(spots.core.head, what, "add sources = [\"10.0.0.0/8\"]");
    }
}
