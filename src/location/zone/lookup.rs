//! Lookups that failed, servers that differ, and a domain that is not there at all.

use super::super::question::{RecordKind, Records};
use super::facts::{Fact, Facts, Seen};
use super::{Findings, SERVICES};

pub(super) fn judge(facts: &Facts, out: &mut Findings) {
    for (question, said) in facts.answers() {
        let failed: Vec<(usize, &str)> = said
            .iter()
            .filter_map(|(server, fact)| match fact.seen {
                Seen::Failed(why) => Some((*server, why)),
                _ => None,
            })
            .collect();
        for (server, why) in &failed {
            let what = format!("{} does not answer: {why}", facts.server(*server));
            let code = if *why == "aliases" { "alias_loop" } else { "lookup_failed" };
            let why = "a client that is not answered cannot tell whether there are records, and refuses the call or \
                       waits (RFC 2308 section 7, RFC 3263 section 4.1)";
            let remedy = if code == "alias_loop" {
                "let the CNAME records end at a name with records"
            } else {
                "see why this name server does not answer: delegation, zone not loaded, filter, DNSSEC"
            };
            // Others answer: the call may still be made.
            if failed.len() < said.len() {
                out.warning(code, question.to_string(), what, why, remedy);
            } else {
                out.error(code, question.to_string(), what, why, remedy);
            }
        }
        if said.values().any(|f| f.seen == Seen::OutOfReach) {
            out.info(
                "not_in_file",
                question.to_string(),
                "this name is outside of the zone file, so nothing is known of it here",
                "the records of other zones are theirs to publish (RFC 1034 section 4.2)",
                "check it against a name server: --server",
            );
        }
        let spoken: Vec<(&usize, &Fact)> =
            said.iter().filter(|(_, f)| !matches!(f.seen, Seen::Failed(_) | Seen::OutOfReach)).collect();
        if let Some((first, rest)) = spoken.split_first()
            && let Some(other) = rest.iter().find(|(_, f)| shape(f) != shape(first.1))
        {
            out.warning(
                "servers_differ",
                question.to_string(),
                format!(
                    "{} says {}, {} says {}",
                    facts.server(*first.0),
                    shown(first.1),
                    facts.server(*other.0),
                    shown(other.1)
                ),
                "calls go by whichever server is asked (RFC 1034 section 4.3.5: copies of a zone are to be kept the same)",
                "compare the serial numbers of the SOA records; after a change wait for the transfer, or mend it",
            );
        }
    }
    existence(facts, out);
}

/// The records without their order.
fn shape(fact: &Fact) -> Vec<String> {
    match &fact.seen {
        Seen::Records { set, .. } => {
            let mut lines = match &set.records {
                Records::Naptr(v) => v.iter().map(|r| r.describe().to_ascii_lowercase()).collect::<Vec<_>>(),
                Records::Srv(v) => v.iter().map(|r| r.describe()).collect(),
                Records::Addr(v) => v.iter().map(ToString::to_string).collect(),
            };
            lines.sort();
            lines.dedup();
            lines
        }
        // The difference between the two tells a client nothing here.
        _ => Vec::new(),
    }
}

fn shown(fact: &Fact) -> String {
    let mut lines = shape(fact);
    if lines.is_empty() {
        return "nothing".to_owned();
    }
    let rest = lines.len().saturating_sub(3);
    lines.truncate(3);
    let more = if rest > 0 { format!(" and {rest} more") } else { String::new() };
    format!("{}{more}", lines.join(", "))
}

fn existence(facts: &Facts, out: &mut Findings) {
    let domain = facts.domain_name();
    let names = facts.srv_names();
    let known = facts.is_known(domain, RecordKind::Naptr)
        && facts.addresses_known(domain)
        && names.iter().all(|n| facts.is_known(&n.name, RecordKind::Srv));
    let found = !facts.naptr().is_empty()
        || !facts.addresses(domain).is_empty()
        || names.iter().any(|n| !facts.srv(&n.name).is_empty());
    if !known || found {
        return;
    }
    let gone = [RecordKind::Naptr, RecordKind::A, RecordKind::Aaaa]
        .into_iter()
        .all(|kind| facts.fact(domain, kind).is_some_and(|f| f.seen == Seen::NxDomain));
    let (code, what) = if gone {
        ("no_such_domain", "the domain does not exist")
    } else {
        ("no_service", "the domain has neither NAPTR nor SRV records nor addresses")
    };
    let services: Vec<&str> = SERVICES.iter().map(|s| s.service).collect();
    out.error(
        code,
        format!("{domain}."),
        what,
        "no server can be located for it, every call to it is refused (RFC 3263 section 4)",
        format!(
            "publish NAPTR records for {}, SRV records and addresses as suggested below",
            services.join(", ")
        ),
    );
}
