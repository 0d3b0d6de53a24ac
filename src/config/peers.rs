//! `[[peer]]` and `[[route]]`.

use std::collections::HashMap;

use ipnet::IpNet;

use super::check::{MS, PeerSpots, Spots, T1_RANGE, YEAR, failover_codes, split, try_timeout};
use super::doubts;
use super::error::{At, Fault, Report, nearest};
use super::listeners::path;
use super::raw::{self, Section};
use super::units::show_duration;
use super::{Alive, NumberRule, Peer, Probe, RouteRule, Sip, names};
use crate::config::DomainPattern;
use crate::flow::Host;

/// All peers, in file order; a flawed one stays, so that what refers to it finds it.
pub(super) fn peers(report: &mut Report<'_>, root: &Section<'_>, sip: &Sip, spots: &mut Spots) -> Vec<Peer> {
    let mut peers: Vec<Peer> = Vec::new();
    let mut by_name: HashMap<String, ()> = HashMap::new();
    for section in root.tables(report, "peer", &raw::PEER) {
        let before = report.errors();
        let name = section.required(report, "name", "\"…\", a short word for it", names::peer_name);
        if let Some(At { value, at }) = &name
            && by_name.insert(value.clone(), ()).is_some()
        {
            report.error(*at, format!("two peers are named \"{value}\""), "give each peer a name of its own");
        }
        let mut spot = PeerSpots { head: section.at, ..PeerSpots::default() };
        let mut peer = peer(report, &section, sip, &mut spot);
        peer.name = match name {
            Some(name) => name.value,
            // An impossible name is still the one that routes use.
            None if section.is_string("name") => {
                section.string(report, "name").map_or_else(String::new, |s| s.value.to_owned())
            }
            None => String::new(),
        };
        spot.sound = report.errors() == before;
        peers.push(peer);
        spots.peers.push(spot);
    }
    peers
}

fn peer(report: &mut Report<'_>, section: &Section<'_>, sip: &Sip, spot: &mut PeerSpots) -> Peer {
    let (domains, places) = split(section.list(report, "domains", names::domain_pattern).unwrap_or_default());
    spot.domains = places;
    let next_hop = section.parsed(report, "next_hop", names::next_hop);
    spot.next_hop = section.place("next_hop");
    spot.probe = section.place_of_key("probe");
    spot.alto_scope = section.place_of_key("alto_scope");
    let (prefixes, source_names) = sources(report, section);
    let (sources, places) = split(prefixes);
    spot.sources = places;
    let tls_names = section.list(report, "tls_names", names::tls_name).map(|list| {
        let (values, places) = split(list);
        spot.tls_names = places;
        values
    });
    let t1 = section.duration(report, "t1", T1_RANGE);
    let strip_headers = section.list(report, "strip_headers", names::strippable_header).unwrap_or_default();
    let peer = Peer {
        name: String::new(),
        domains,
        next_hop: next_hop.map(|n| n.value),
        sources,
        source_names: split(source_names).0,
        tls_names,
        certificate: certificate(report, section, spot),
        strip_headers: split(strip_headers).0,
        trust: section.boolean(report, "trust").unwrap_or(true),
        max_calls: section.number(report, "max_calls", 1..=u64::from(u32::MAX)),
        max_rate: section.number(report, "max_rate", 1..=u64::from(u32::MAX)),
        max_calls_per_instance: section.number(report, "max_calls_per_instance", 1..=u64::from(u32::MAX)),
        max_rate_per_instance: section.number(report, "max_rate_per_instance", 1..=u64::from(u32::MAX)),
        try_timeout: try_timeout(report, section, t1.unwrap_or(sip.t1)),
        failover_codes: failover_codes(report, section),
        numbers_in: numbers(report, section, "numbers_in", &raw::NUMBERS_IN),
        numbers_out: numbers(report, section, "numbers_out", &raw::NUMBERS_OUT),
        probe: probe(report, section),
        alto_scope: super::alto::scope(report, section, "alto_scope"),
        t1,
    };
    doubts::instance_limits(report, section, &peer);
    doubts::peer_timers(report, section, &peer, sip.try_timeout, sip.t1);
    peer
}

fn certificate(
    report: &mut Report<'_>,
    section: &Section<'_>,
    spot: &mut PeerSpots,
) -> Option<(std::path::PathBuf, std::path::PathBuf)> {
    spot.certificate = section.place("certificate");
    for (one, other) in [("certificate", "key"), ("key", "certificate")] {
        if section.has(one) && !section.has(other) {
            report.error(
                section.place_of_key(one),
                format!("{one} without {other}"),
                format!("add {other}, or leave out both"),
            );
        }
    }
    let certificate = section.parsed(report, "certificate", path);
    let key = section.parsed(report, "key", path);
    for file in certificate.iter().chain(&key) {
        report.reads(file);
    }
    Some((certificate?.value, key?.value))
}

/// Most rules of a peer and direction.
const MOST_RULES: usize = 100;

/// `numbers_in` and `numbers_out`: one rule or several, the first that fits counts.
fn numbers(
    report: &mut Report<'_>,
    section: &Section<'_>,
    key: &'static str,
    kind: &'static raw::Kind,
) -> Vec<NumberRule> {
    let mut rules: Vec<NumberRule> = Vec::new();
    for section in section.one_or_more(report, key, kind) {
        let before = report.errors();
        let mut part =
            |name| section.parsed(report, name, number_start).map_or_else(String::new, |p| p.value);
        let rule = NumberRule { strip: part("strip"), prefix: part("prefix") };
        if report.errors() > before {
            continue;
        }
        if rule.strip.is_empty() && rule.prefix.is_empty() {
            let remedy = "write what the number begins with and what takes its place: { strip = \"00\", prefix = \"+\" }";
            report.error(section.at, format!("a rule of {key} that changes nothing"), remedy);
        } else if let Some(first) = rules.iter().find(|r| rule.strip.starts_with(&r.strip)) {
            let what =
                format!("\"{}\" is never looked for, \"{}\" before it fits first", rule.strip, first.strip);
            report.warn(section.at, what, "put the longer one first");
        }
        rules.push(rule);
    }
    if rules.len() > MOST_RULES {
        let remedy = format!("write at most {MOST_RULES}");
        report.error(section.place(key), format!("{key} has {} rules", rules.len()), remedy);
    }
    rules
}

/// What a telephone number can begin with.
fn number_start(text: &str) -> Result<String, Fault> {
    if text.strip_prefix('+').unwrap_or(text).bytes().all(|b| b.is_ascii_digit()) {
        Ok(text.to_owned())
    } else {
        Err(Fault::new(
            format!("no number begins with \"{text}\""),
            "write digits, with or without a + before them, such as \"+49\" or \"00\"",
        ))
    }
}

fn probe(report: &mut Report<'_>, section: &Section<'_>) -> Option<Probe> {
    let section = section.table(report, "probe", &raw::PROBE);
    if !section.is_present() {
        return None;
    }
    let d = Probe::default();
    section.word(report, "method", &[("OPTIONS", ())], ());
    let interval = section.duration(report, "interval", MS..=YEAR).unwrap_or(d.interval);
    let timeout = section.duration(report, "timeout", MS..=YEAR).unwrap_or(d.timeout);
    if timeout > interval {
        let what = format!(
            "a probe's timeout = {} is longer than its interval = {}",
            show_duration(timeout),
            show_duration(interval)
        );
        let key = if section.has("timeout") { "timeout" } else { "interval" };
        report.error(section.place(key), what, "let a probe end before the next begins");
    }
    Some(Probe {
        interval,
        timeout,
        down_after: section.number(report, "down_after", 1..=1000).unwrap_or(d.down_after),
        up_after: section.number(report, "up_after", 1..=1000).unwrap_or(d.up_after),
        alive: alive(report, &section),
    })
}

/// `probe.alive`: codes and classes, such as `["2xx", "404"]`.
fn alive(report: &mut Report<'_>, section: &Section<'_>) -> Alive {
    let listed = section.list(report, "alive", |text| {
        let class =
            text.strip_suffix("xx").and_then(|c| c.parse::<u16>().ok()).filter(|c| (2..=6).contains(c));
        let code = text.parse::<u16>().ok().filter(|c| (200..700).contains(c));
        match (class, code) {
            (Some(class), _) => Ok((class * 100, class * 100 + 99)),
            (_, Some(code)) => Ok((code, code)),
            _ => Err(Fault::new(
                format!("\"{text}\" is neither a final status code nor a class of them"),
                "write for example [\"2xx\", \"404\", \"405\"]",
            )),
        }
    });
    match listed {
        None => Alive::Usual,
        Some(_) if section.is_empty_list("alive") => {
            let what = "with an empty alive, every probe fails";
            report.error(section.place("alive"), what, "name codes or classes, or remove alive: all but 503");
            Alive::Usual
        }
        Some(listed) => Alive::Only(listed.into_iter().map(|l| l.value).collect()),
    }
}

/// `sources`: prefixes and names, each once.
pub(super) fn sources(report: &mut Report<'_>, section: &Section<'_>) -> (Vec<At<IpNet>>, Vec<At<Host>>) {
    let mut list: Vec<At<IpNet>> = Vec::new();
    let mut hosts: Vec<At<Host>> = Vec::new();
    for At { value, at } in section.list(report, "sources", names::source).unwrap_or_default() {
        let (net, loose) = match value {
            names::Source::Prefix(net, loose) => (net, loose),
            names::Source::Name(host) if hosts.iter().any(|seen| seen.value == host) => {
                report.warn(at, format!("\"dns:{host}\" is listed twice"), "once is enough");
                continue;
            }
            names::Source::Name(host) => {
                hosts.push(At { value: host, at });
                continue;
            }
        };
        if loose {
            report.warn(at, "bits are set beyond the prefix", format!("it is read as \"{net}\""));
        }
        if net.prefix_len() == 0 {
            let family = if net.addr().is_ipv4() { "IPv4" } else { "IPv6" };
            report.warn(
                at,
                format!("\"{net}\" admits every {family} address"),
                "list the prefixes that the other side sends from",
            );
        }
        let wide = if net.addr().is_ipv4() { 8 } else { 16 };
        if net.prefix_len() > 0 && net.prefix_len() < wide {
            report.warn(
                at,
                format!("\"{net}\" admits a large part of all addresses"),
                "list the prefixes that the other side sends from",
            );
        }
        if list.iter().any(|seen| seen.value == net) {
            report.warn(at, format!("\"{net}\" is listed twice"), "once is enough");
        } else {
            list.push(At { value: net, at });
        }
    }
    (list, hosts)
}

/// `[[route]]`, with peers as indices.
pub(super) fn routes(
    report: &mut Report<'_>,
    root: &Section<'_>,
    peers: &[Peer],
    spots: &[PeerSpots],
) -> Vec<RouteRule> {
    let mut rules: Vec<RouteRule> = Vec::new();
    for section in root.tables(report, "route", &raw::ROUTE) {
        let prefix = section.required(report, "prefix", "\"+44\", or \"\" for the default route", |text| {
            if text.bytes().all(|b| b.is_ascii_graphic() && !matches!(b, b'@' | b':' | b'"' | b'<' | b'>')) {
                Ok(text.to_owned())
            } else {
                Err(super::error::Fault::new(
                    format!("no user part begins with \"{text}\""),
                    "write digits, after a + for a global number, such as \"+44\"",
                ))
            }
        });
        let mut indices: Vec<usize> = Vec::new();
        if !section.has("peers") {
            report.error(section.at, "[[route]] has no peers", "add peers = [\"…\"], in order of preference");
        }
        let named = section.list(report, "peers", |text| Ok(text.to_owned()));
        if named.as_ref().is_some_and(Vec::is_empty) && section.is_empty_list("peers") {
            report.error(section.place("peers"), "a route to no peer", "name at least one peer");
        }
        for At { value, at } in named.unwrap_or_default() {
            match peers.iter().position(|p| p.name == value) {
                Some(index) if indices.contains(&index) => {
                    report.error(
                        at,
                        format!("\"{value}\" is listed twice in one route"),
                        "name each peer once",
                    );
                }
                Some(index) => {
                    if let Some(peer) = peers
                        .get(index)
                        .filter(|p| !reachable(p) && spots.get(index).is_some_and(|s| s.sound))
                    {
                        let what = format!("a route to \"{}\", which has no exact domain", peer.name);
                        report.error(at, what, "give it one; it becomes the host of what is sent there");
                    }
                    indices.push(index);
                }
                None => {
                    let known = peers.iter().map(|p| p.name.as_str());
                    let remedy = match nearest(&value, known.clone()) {
                        Some(meant) => format!("did you mean \"{meant}\"?"),
                        None if peers.is_empty() => "add a [[peer]] with that name".to_owned(),
                        None => "name a [[peer]] of this file".to_owned(),
                    };
                    report.error(at, format!("there is no peer \"{value}\""), remedy);
                }
            }
        }
        let Some(prefix) = prefix else { continue };
        if rules.iter().any(|r| r.prefix == prefix.value) {
            let what = format!("a second route for prefix \"{}\"", prefix.value);
            report.error(prefix.at, what, "put all its peers into one route, in order of preference");
        }
        rules.push(RouteRule { prefix: prefix.value, peers: indices });
    }
    rules
}

/// Rule 5: a route replaces the URI's host by the peer's first exact domain.
fn reachable(peer: &Peer) -> bool {
    peer.domains.iter().any(|d| matches!(d, DomainPattern::Exact(_)))
}
