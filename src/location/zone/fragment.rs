//! The suggested records, in the format of zone files, with the existing servers where there are any.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::net::IpAddr;
use std::sync::Arc;

use super::super::question::{RecordKind, SrvRecord, normal_name};
use super::facts::{Facts, literal};
use super::{SERVICES, Service};

/// A server as it is to be published.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Target {
    priority: u16,
    weight: u16,
    port: u16,
    host: Arc<str>,
}

/// Hosts and their addresses; those without one need a placeholder.
type Hosts = BTreeMap<Arc<str>, Vec<IpAddr>>;

/// Writes one line. Writing to a string cannot fail.
macro_rules! line {
    ($out:expr, $($arg:tt)*) => { let _ = writeln!($out, $($arg)*); };
}

pub(super) fn suggest(facts: &Facts) -> String {
    let domain = facts.domain();
    let known = facts.is_known(facts.domain_name(), RecordKind::Naptr)
        || facts.srv_names().iter().any(|n| facts.is_known(&n.name, RecordKind::Srv));
    if !known {
        // Made-up servers would take the place of those that there may be.
        return format!("; nothing is known of {domain}., so nothing is suggested\n");
    }
    let mut hosts = Hosts::new();
    let found: Vec<(Service, Vec<Target>)> =
        SERVICES.into_iter().map(|s| (s, existing(facts, s, &mut hosts))).collect();
    let model = found.iter().map(|(_, t)| t).find(|t| !t.is_empty()).cloned();
    let mut out = String::new();
    line!(out, "$ORIGIN {domain}.");
    line!(out, "$TTL 1h");
    for (number, (service, _)) in found.iter().enumerate() {
        let (replacement, foreign) = srv_name(facts, *service);
        let name = if foreign { format!("{replacement}.") } else { relative(&replacement, domain) };
        let order = (number + 1) * 10;
        line!(out, "@ 1d IN NAPTR {order} 10 \"s\" \"{}\" \"\" {name}", service.service);
    }
    let mut done: Vec<Arc<str>> = Vec::new();
    for (service, targets) in &found {
        let (name, foreign) = srv_name(facts, *service);
        if done.contains(&name) {
            continue;
        }
        done.push(name.clone());
        let name = relative(&name, domain);
        if foreign {
            line!(out, "; {name} belongs to another zone");
            continue;
        }
        let targets = if targets.is_empty() {
            line!(out, "; TODO: these servers must listen for {}", service.service);
            instead(*service, model.as_ref(), domain, &mut hosts)
        } else {
            targets.clone()
        };
        for t in &targets {
            let host = relative(&t.host, domain);
            line!(out, "{name} IN SRV {} {} {} {host}", t.priority, t.weight, t.port);
        }
        if targets.len() == 1 {
            line!(out, "; TODO: a second server, so that calls have somewhere to go when the first fails");
        }
    }
    addresses(&hosts, domain, &mut out);
    out
}

/// Where the SRV records of a service are, and whether that is another zone's business.
fn srv_name(facts: &Facts, service: Service) -> (Arc<str>, bool) {
    let convention = facts.below(service.prefix);
    // A name that says another transport is a slip.
    let slip = |name: &str| SERVICES.iter().any(|s| *s != service && name.starts_with(s.prefix));
    let mut names = facts.usable(service.transport).map(|(_, name)| name);
    let named = names.find(|n| !slip(n) && !facts.srv(n).is_empty());
    let name = named.or(convention).unwrap_or_else(|| Arc::from(service.prefix));
    let inside = is_below(&name, facts.domain());
    (name, !inside)
}

fn is_below(name: &str, domain: &str) -> bool {
    name.strip_suffix(domain).is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
}

/// As it stands in a file with `$ORIGIN domain.`.
fn relative(name: &str, domain: &str) -> String {
    match name.strip_suffix(domain) {
        Some("") => "@".to_owned(),
        Some(rest) if rest.ends_with('.') => rest.trim_end_matches('.').to_owned(),
        _ => format!("{name}."),
    }
}

/// The servers that a service has, put right: no aliases, no addresses as names, each once, no weight of zero beside
/// others.
fn existing(facts: &Facts, service: Service, hosts: &mut Hosts) -> Vec<Target> {
    let (name, _) = srv_name(facts, service);
    let mut targets: Vec<Target> = Vec::new();
    let mut records: Vec<&SrvRecord> = facts.srv(&name).iter().filter(|r| !r.is_not_offered()).collect();
    records.sort_by_key(|r| (r.priority, std::cmp::Reverse(r.weight)));
    for record in records {
        let Some((host, addrs)) = host_of(facts, record, targets.len(), hosts) else { continue };
        let port = if record.port == 0 { service.port } else { record.port };
        if targets.iter().any(|t| t.host == host && t.port == port) {
            continue;
        }
        hosts.entry(host.clone()).or_insert(addrs);
        targets.push(Target { priority: record.priority, weight: record.weight, port, host });
    }
    let priorities: Vec<u16> = targets.iter().map(|t| t.priority).collect();
    for priority in priorities {
        let several = targets.iter().filter(|t| t.priority == priority).count() > 1;
        let any = targets.iter().any(|t| t.priority == priority && t.weight > 0);
        for t in targets.iter_mut().filter(|t| several && t.priority == priority && t.weight == 0) {
            t.weight = if any { 1 } else { 10 };
        }
    }
    targets
}

/// The host behind a record; `None` if it has no address that is known.
fn host_of(
    facts: &Facts,
    record: &SrvRecord,
    number: usize,
    hosts: &Hosts,
) -> Option<(Arc<str>, Vec<IpAddr>)> {
    if let Some(addr) = literal(&record.target) {
        let known = hosts.iter().find(|(_, addrs)| **addrs == [addr]).map(|(host, _)| host.clone());
        return Some((known.unwrap_or_else(|| placeholder(facts.domain(), number)), vec![addr]));
    }
    // Anything else would need escapes, and is no host name anyway (RFC 1123 section 2.1).
    let plain = |name: &Arc<str>| name.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_.".contains(&b));
    let target = normal_name(&record.target).filter(plain)?;
    let addrs = facts.addresses(&target);
    if addrs.is_empty() && facts.addresses_known(&target) {
        return None;
    }
    Some((facts.alias(&target).filter(|a| plain(a)).cloned().unwrap_or(target), addrs))
}

fn placeholder(domain: &str, number: usize) -> Arc<str> {
    format!("sbe{}.{domain}", number + 1).into()
}

/// Servers for a service that has none: those of another, else made up.
fn instead(service: Service, model: Option<&Vec<Target>>, domain: &str, hosts: &mut Hosts) -> Vec<Target> {
    if let Some(model) = model {
        let mut targets: Vec<Target> = Vec::new();
        for t in model.iter().map(|t| Target { port: service.port, ..t.clone() }) {
            if !targets.iter().any(|known| known.host == t.host) {
                targets.push(t);
            }
        }
        return targets;
    }
    (0..2)
        .map(|number| {
            let host = placeholder(domain, number);
            hosts.entry(host.clone()).or_default();
            Target { priority: 10, weight: 10, port: service.port, host }
        })
        .collect()
}

fn addresses(hosts: &Hosts, domain: &str, out: &mut String) {
    let mut made_up = 0;
    for (host, addrs) in hosts {
        let name = relative(host, domain);
        if !is_below(host, domain) {
            line!(out, "; the addresses of {name} belong to another zone");
            continue;
        }
        if addrs.is_empty() {
            made_up += 1;
            line!(out, "{name} IN A 192.0.2.{made_up} ; TODO: the server's own");
            line!(out, "{name} IN AAAA 2001:db8::{made_up} ; TODO: the server's own");
            continue;
        }
        for addr in addrs {
            let kind = if addr.is_ipv4() { "A" } else { "AAAA" };
            line!(out, "{name} IN {kind} {addr}");
        }
        for (kind, has) in
            [("A", addrs.iter().any(IpAddr::is_ipv4)), ("AAAA", addrs.iter().any(IpAddr::is_ipv6))]
        {
            if !has {
                line!(out, "; TODO: {name} IN {kind}, if the server can have one");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_made_relative_to_the_domain_itself_only() {
        assert_eq!(relative("a.test", "a.test"), "@");
        assert_eq!(relative("b.a.test", "a.test"), "b");
        assert_eq!(relative("ba.test", "a.test"), "ba.test.");
        assert!(
            is_below("b.a.test", "a.test") && is_below("a.test", "a.test") && !is_below("ba.test", "a.test")
        );
    }
}
