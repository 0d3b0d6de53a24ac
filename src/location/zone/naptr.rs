//! NAPTR records: RFC 3263 §4.1, RFC 3403 §4.

use std::sync::Arc;

use super::super::candidate::LeftOutReason;
use super::super::naptr::transport_of;
use super::super::question::{NaptrRecord, RecordKind, normal_name};
use super::facts::Facts;
use super::{Findings, SERVICES, Service};
use crate::flow::Transport;

pub(super) fn judge(facts: &Facts, out: &mut Findings) {
    let domain = facts.domain();
    let records = facts.naptr();
    let sip: Vec<&NaptrRecord> = records.iter().filter(|r| transport_of(&r.service).is_ok()).collect();
    for record in records {
        let about = format!("{domain}. NAPTR {}", record.describe());
        match transport_of(&record.service) {
            Ok(transport) => one(facts, record, transport, &about, out),
            Err(reason) => foreign(record, reason, &about, out),
        }
    }
    duplicates(domain, records, out);
    if sip.is_empty() {
        none(facts, out);
    } else {
        missing(facts, &sip, out);
        order(domain, &sip, out);
    }
}

fn of(transport: Transport) -> Option<Service> {
    SERVICES.into_iter().find(|s| s.transport == transport)
}

/// A record of a SIP service that we know.
fn one(facts: &Facts, record: &NaptrRecord, transport: Transport, about: &str, out: &mut Findings) {
    let Some(service) = of(transport) else { return };
    if !record.flags.eq_ignore_ascii_case("s") {
        out.error(
            "naptr_flag",
            about,
            format!("the flag is {:?}", record.flags),
            "records of SIP services have the flag \"s\": the replacement leads to SRV records; with another the \
             record is passed over (RFC 3263 section 4.1, RFC 3404 section 4.3)",
            format!("write \"s\", and the name of the SRV records: {}.{}.", service.prefix, facts.domain()),
        );
    }
    if !record.regexp.is_empty() {
        out.error(
            "naptr_regexp",
            about,
            format!("the regular expression is not empty: {}", record.regexp.escape_default()),
            "these records carry a replacement and never a regular expression; both together are an error \
             (RFC 3263 section 4.1, RFC 3403 section 4.1)",
            "write \"\" for the regular expression",
        );
    }
    let Some(name) = normal_name(&record.replacement) else {
        out.error(
            "naptr_replacement",
            about,
            "the replacement is no name that could have SRV records",
            "the replacement is where the SRV records are asked for (RFC 3263 section 4.1)",
            format!("write {}.{}.", service.prefix, facts.domain()),
        );
        return;
    };
    let usable = record.flags.eq_ignore_ascii_case("s") && record.regexp.is_empty();
    if usable && facts.is_known(&name, RecordKind::Srv) && facts.srv(&name).is_empty() {
        out.error(
            "naptr_without_srv",
            about,
            format!("{name}. has no SRV records"),
            "a client that chooses this service finds no server by it: at best it goes on to another service or to \
             the domain's own addresses (RFC 3263 section 4.1, section 4.2)",
            format!("publish SRV records at {name}., or take the NAPTR record away"),
        );
    }
    // Any name will do, but one that says another transport is a slip.
    let says = SERVICES.iter().find(|s| name.starts_with(s.prefix));
    if let Some(says) = says.filter(|s| s.transport != transport) {
        out.warning(
            "naptr_other_transport",
            about,
            format!("the service {} leads to {}, the name for {}", service.service, says.prefix, says.service),
            "the service says the transport, whatever the name of the SRV records: these servers are called by \
             the transport of the service (RFC 3263 section 4.1)",
            format!("let it lead to {}.{}.", service.prefix, facts.domain()),
        );
    }
}

/// A record of something else, or of a misspelt service.
fn foreign(record: &NaptrRecord, reason: LeftOutReason, about: &str, out: &mut Findings) {
    let service = record.service.to_ascii_uppercase();
    if reason == LeftOutReason::TransportNotEnabled {
        out.info(
            "naptr_other_sip",
            about,
            format!("{service} is SCTP or WebSocket (RFC 4168, RFC 7118)"),
            "peers of this kind take UDP, TCP and TLS; others pass the record over (RFC 3263 section 4.1)",
            "nothing, if you offer it",
        );
    } else if let Some(meant) = misspelt(&service) {
        out.error(
            "naptr_service",
            about,
            format!("there is no service {:?}", record.service),
            "a record whose service is not known is passed over, so this one has no effect (RFC 3263 section 4.1)",
            format!("write {meant}, if that is meant; the services are SIPS+D2T, SIP+D2T and SIP+D2U"),
        );
    } else {
        out.info(
            "naptr_foreign",
            about,
            format!("the service {:?} belongs to another application", record.service),
            "SIP passes it over (RFC 3263 section 4.1)",
            "nothing",
        );
    }
}

/// The service that was probably meant.
fn misspelt(service: &str) -> Option<&'static str> {
    if service.starts_with("E2U") {
        return None;
    }
    let nearest = SERVICES.iter().map(|s| (distance(service, s.service), s.service)).min()?;
    let by_word = service.contains("SIP").then(|| {
        let has = |word| service.contains(word);
        match (has("SIPS") || has("TLS"), has("UDP") || has("D2U")) {
            (true, _) => "SIPS+D2T",
            (false, true) => "SIP+D2U",
            (false, false) => "SIP+D2T",
        }
    });
    if nearest.0 <= 1 { Some(nearest.1) } else { by_word.or((nearest.0 <= 2).then_some(nearest.1)) }
}

/// The number of octets to be changed, put in or taken out. Bounded: beyond 32 octets nothing is near.
fn distance(a: &str, b: &str) -> usize {
    if a.len() > 32 {
        return a.len();
    }
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.bytes().enumerate() {
        let mut before = i;
        let mut left = i + 1;
        let mut next = vec![left];
        for (y, above) in b.bytes().zip(row.iter().skip(1)) {
            left = (before + usize::from(x != y)).min(left + 1).min(above + 1);
            before = *above;
            next.push(left);
        }
        row = next;
    }
    row.last().copied().unwrap_or(0)
}

fn duplicates(domain: &str, records: &[NaptrRecord], out: &mut Findings) {
    let same = |a: &NaptrRecord, b: &NaptrRecord| {
        a.service.eq_ignore_ascii_case(&b.service)
            && a.replacement.eq_ignore_ascii_case(&b.replacement)
            && a.regexp == b.regexp
    };
    for (at, record) in records.iter().enumerate() {
        if records.iter().take(at).any(|earlier| same(earlier, record)) {
            out.warning(
                "naptr_duplicate",
                format!("{domain}. NAPTR {}", record.describe()),
                "the same service and replacement stand in another record too",
                "only the first by order and preference has an effect (RFC 3403 section 4.1)",
                "take one of them away",
            );
        }
    }
}

fn none(facts: &Facts, out: &mut Findings) {
    let domain = facts.domain_name();
    if !facts.is_known(domain, RecordKind::Naptr) {
        return;
    }
    let srv = facts.srv_names().iter().any(|n| !facts.srv(&n.name).is_empty());
    let addresses = !facts.addresses(domain).is_empty();
    if !srv && !addresses {
        // Said already: there is nothing at all.
        return;
    }
    let (what, why) = if srv {
        (
            "there are SRV records, but no NAPTR records for SIP",
            "without NAPTR each client chooses the transport by itself: RFC 3263 clients never ask for TLS for a \
             sip: URI then, and ask three names instead of one (RFC 3263 section 4.1)",
        )
    } else {
        (
            "there are neither NAPTR records for SIP nor SRV records, only addresses",
            "clients send by UDP to the default port of these addresses, without priorities, weights or failover \
             (RFC 3263 section 4.1, section 4.2)",
        )
    };
    out.warning(
        "no_naptr",
        format!("{domain}. NAPTR"),
        what,
        why,
        "publish NAPTR records as suggested below",
    );
}

fn missing(facts: &Facts, sip: &[&NaptrRecord], out: &mut Findings) {
    for service in SERVICES {
        if sip.iter().any(|r| transport_of(&r.service) == Ok(service.transport)) {
            continue;
        }
        let about = format!("{}. NAPTR", facts.domain());
        let name: Option<Arc<str>> = facts.below(service.prefix);
        if let Some(name) = name.filter(|name| !facts.srv(name).is_empty()) {
            out.warning(
                "srv_without_naptr",
                format!("{name}. SRV"),
                format!("there are SRV records, but no NAPTR record for {}", service.service),
                "where there are NAPTR records, clients use the services that these name and no others \
                 (RFC 3263 section 4.1)",
                format!("publish a NAPTR record \"s\" \"{}\" \"\" {name}.", service.service),
            );
        } else {
            out.warning(
                "service_missing",
                about,
                format!("{} is not offered", service.service),
                "a peer may have only this transport: all implementations have UDP, TCP and TLS (RFC 3261 section \
                 18), and a zone names at least the three services",
                format!("offer {} as suggested below", service.service),
            );
        }
    }
}

fn order(domain: &str, sip: &[&NaptrRecord], out: &mut Findings) {
    let best = |transport| {
        let of = sip.iter().filter(|r| transport_of(&r.service) == Ok(transport));
        of.map(|r| (r.order, r.preference)).min()
    };
    let Some(tls) = best(Transport::Tls) else { return };
    for (transport, name) in [(Transport::Udp, "UDP"), (Transport::Tcp, "TCP")] {
        let Some(other) = best(transport) else { continue };
        if other < tls {
            out.warning(
                "naptr_order",
                format!("{domain}. NAPTR"),
                format!(
                    "{name} (order {}, preference {}) comes before TLS (order {}, preference {})",
                    other.0, other.1, tls.0, tls.1
                ),
                "clients take the lowest order that they can use, so calls go unencrypted though TLS is offered \
                 (RFC 3263 section 4.1, RFC 3403 section 4.1)",
                "give SIPS+D2T the lowest order, then SIP+D2T, then SIP+D2U",
            );
        } else if other == tls {
            out.info(
                "naptr_equal_order",
                format!("{domain}. NAPTR"),
                format!("{name} and TLS have the same order and preference"),
                "each client decides for itself between them (RFC 3403 section 4.1)",
                "give SIPS+D2T a lower order, if TLS is to be used where both sides have it",
            );
        }
    }
}
