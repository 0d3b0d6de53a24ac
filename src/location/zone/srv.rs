//! SRV records: RFC 2782.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use super::super::question::{SrvRecord, normal_name};
use super::Findings;
use super::facts::{Facts, SrvName, literal};
use crate::flow::Transport;

pub(super) fn judge(facts: &Facts, out: &mut Findings) {
    for name in facts.srv_names() {
        let records = facts.srv(&name.name);
        if records.is_empty() {
            continue;
        }
        offered(&name, records, facts, out);
        for record in records.iter().filter(|r| !r.is_not_offered()) {
            one(facts, &name, record, out);
        }
        duplicates(&name.name, records, out);
        weights(&name.name, records, out);
        redundancy(facts, &name.name, records, out);
    }
    identity(facts, out);
}

fn about(name: &str, record: &SrvRecord) -> String {
    format!("{name}. SRV {}", record.describe())
}

/// Target ".": not offered here.
fn offered(name: &SrvName, records: &[SrvRecord], facts: &Facts, out: &mut Findings) {
    let Some(refusal) = records.iter().find(|r| r.is_not_offered()) else { return };
    if records.len() > 1 {
        out.error(
            "srv_not_offered_mixed",
            about(&name.name, refusal),
            "the target \".\" stands beside other targets",
            "\".\" says that the service is not offered at all, so it stands alone; what clients make of both \
             differs (RFC 2782, Target)",
            "take it away, or all the others",
        );
    } else if name.services.iter().any(|s| facts.usable(s.transport).any(|(_, n)| n == name.name)) {
        out.error(
            "srv_not_offered_named",
            about(&name.name, refusal),
            "a NAPTR record leads here, and the target \".\" says that the service is not offered",
            "the one invites calls and the other refuses them (RFC 2782, Target; RFC 3263 section 4.1)",
            "take the NAPTR record away, or publish the servers",
        );
    } else {
        out.info(
            "srv_not_offered",
            about(&name.name, refusal),
            "the service is said not to be offered",
            "clients do not try it then (RFC 2782, Target)",
            "nothing, if that is meant",
        );
    }
}

fn one(facts: &Facts, name: &SrvName, record: &SrvRecord, out: &mut Findings) {
    let about = about(&name.name, record);
    if record.port == 0 {
        let port = name.services.first().map_or(5060, |s| s.port);
        out.error(
            "srv_port",
            &*about,
            "the port is 0",
            "nobody can be called at port 0, so the record has no effect (RFC 2782, Port)",
            format!("write the port that the server listens on, usually {port}"),
        );
    }
    for service in &name.services {
        let other = if service.transport == Transport::Tls { 5060 } else { 5061 };
        if record.port == other {
            out.warning(
                "srv_port_unusual",
                &*about,
                format!("port {other} for {}", service.service),
                "5060 is the port of UDP and TCP, 5061 that of TLS: a client that speaks the wrong one gets nothing \
                 (RFC 3261 section 19.1.2)",
                format!("write {}, unless the server does listen there for this transport", service.port),
            );
        }
    }
    if let Some(addr) = literal(&record.target) {
        out.error(
            "srv_literal",
            &*about,
            format!("the target is the address {addr}, and not a name"),
            "a target is a domain name with address records; this one would be looked up as a name and not exist \
             (RFC 2782, Target)",
            format!("give the server a name with the address {addr}, and write that"),
        );
        return;
    }
    let Some(target) = normal_name(&record.target) else {
        out.error(
            "srv_target_name",
            &*about,
            "the target is no name that could be asked for",
            "a target is a domain name with address records (RFC 2782, Target)",
            "write the name of the server",
        );
        return;
    };
    if let Some(leads) = facts.alias(&target) {
        out.error(
            "srv_target_alias",
            &*about,
            format!("the target {target}. is an alias (CNAME) of {leads}."),
            "a target must not be an alias; there are clients that do not follow one (RFC 2782, Target)",
            format!("write {leads}. itself, or give {target}. addresses of its own"),
        );
    }
    if facts.addresses(&target).is_empty() && facts.addresses_known(&target) {
        out.error(
            "srv_target_address",
            &*about,
            format!("the target {target}. has no address"),
            "there must be address records for a target; without them the server cannot be called (RFC 2782, Target)",
            format!("publish A and AAAA records for {target}., or take this record away"),
        );
    }
}

fn duplicates(name: &str, records: &[SrvRecord], out: &mut Findings) {
    for (at, record) in records.iter().enumerate().filter(|(_, r)| !r.is_not_offered()) {
        let twin = records
            .iter()
            .take(at)
            .find(|r| r.port == record.port && r.target.eq_ignore_ascii_case(&record.target));
        if let Some(twin) = twin {
            out.warning(
                "srv_duplicate",
                about(name, record),
                format!("the same target and port stand in {}", twin.describe()),
                "a server that failed is tried once more as if it were another, and its share is not what one record \
                 says (RFC 2782, Weight)",
                "keep one record for each target and port",
            );
        }
    }
}

fn weights(name: &str, records: &[SrvRecord], out: &mut Findings) {
    let mut by_priority: BTreeMap<u16, Vec<&SrvRecord>> = BTreeMap::new();
    for record in records.iter().filter(|r| !r.is_not_offered()) {
        by_priority.entry(record.priority).or_default().push(record);
    }
    for (priority, of) in by_priority {
        let zero: Vec<&&SrvRecord> = of.iter().filter(|r| r.weight == 0).collect();
        if !zero.is_empty() && zero.len() < of.len() {
            let targets: Vec<String> = zero.iter().map(|r| format!("{}.", r.target)).collect();
            out.warning(
                "srv_zero_weight",
                format!("{name}. SRV, priority {priority}"),
                format!("weight 0 beside others that have one: {}", targets.join(", ")),
                "beside other weights, 0 means a very small chance to be chosen, and how small differs from client to \
                 client (RFC 2782, Weight)",
                "give it the weight of its share, or a higher priority number if it is to be a reserve",
            );
        } else if zero.len() > 1 {
            out.info(
                "srv_all_zero",
                format!("{name}. SRV, priority {priority}"),
                format!("{} targets, and all weights are 0", of.len()),
                "0 is meant for a target without alternative; clients differ in how they share calls among several \
                 of weight 0 (RFC 2782, Weight)",
                "give them equal weights, for example 10",
            );
        }
    }
}

fn redundancy(facts: &Facts, name: &Arc<str>, records: &[SrvRecord], out: &mut Findings) {
    let mut targets: Vec<(Arc<str>, u16)> = records
        .iter()
        .filter(|r| !r.is_not_offered() && r.port != 0)
        .filter_map(|r| Some((normal_name(&r.target)?, r.port)))
        .filter(|(target, _)| !facts.addresses(target).is_empty())
        .collect();
    targets.sort();
    targets.dedup();
    let mut addrs: Vec<IpAddr> = targets.iter().flat_map(|(target, _)| facts.addresses(target)).collect();
    addrs.sort();
    addrs.dedup();
    let four = addrs.iter().filter(|a| a.is_ipv4()).count();
    // An address of each family may well be the same machine.
    if addrs.is_empty() || four > 1 || addrs.len() - four > 1 {
        return;
    }
    let ports = targets.iter().map(|(_, port)| port).min() != targets.iter().map(|(_, port)| port).max();
    if targets.len() == 1 {
        out.warning(
            "single_instance",
            format!("{name}. SRV"),
            "there is only one server",
            "when it fails, calls have nowhere else to go (RFC 3263 section 4.3, RFC 2782 on several targets)",
            "publish a second server: the same priority to share calls, a higher number as a reserve",
        );
    } else {
        let also = if ports { ", at several ports" } else { "" };
        out.warning(
            "one_address",
            format!("{name}. SRV"),
            format!("all {} targets are at one address{also}: {}", targets.len(), shown(&addrs)),
            "when that machine or its network fails, all of them do (RFC 3263 section 4.3)",
            "put the servers on different machines and addresses, best in different networks",
        );
    }
}

pub(super) fn shown(addrs: &[IpAddr]) -> String {
    addrs.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

/// What a certificate must name, where TLS servers have other names than the domain.
fn identity(facts: &Facts, out: &mut Findings) {
    let domain = facts.domain();
    for name in facts.srv_names().iter().filter(|n| n.services.iter().any(|s| s.transport == Transport::Tls))
    {
        let mut other: Vec<String> = facts
            .srv(&name.name)
            .iter()
            .filter(|r| !r.is_not_offered() && !r.target.eq_ignore_ascii_case(domain))
            .map(|r| format!("{}.", r.target))
            .collect();
        other.sort();
        other.dedup();
        if !other.is_empty() {
            out.info(
                "tls_identity",
                format!("{}. SRV", name.name),
                format!("the certificates of {} must name {domain}", other.join(", ")),
                "a client compares the certificate with the domain that it called, and not with the target of an SRV \
                 record, which anybody could have forged; a wildcard does not count (RFC 5922 section 7.1, 7.2)",
                format!(
                    "put sip:{domain} (URI) or {domain} (DNS) into the subjectAltName of each server's certificate"
                ),
            );
        }
    }
}
