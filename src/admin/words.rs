//! The decision record in sentences: why a request was refused, why a server was chosen, why it was left for the next.
//!
//! The API gives them beside the fixed words, so that the command line and the dashboard say the same.

use crate::config::AltoRule;
use crate::location::{Cost, Instance, PickReason, Ranking, Standing, Tier, Use};
use crate::peering::Party;
use crate::proxy::Policy;
use crate::proxy::decision::{AttemptRecord, Record, Rule};

/// How the sender was identified (rule 1).
pub fn identified(policy: &Policy, record: &Record) -> String {
    if let Some(identity) = record.identity.as_ref().filter(|i| !i.names.is_empty()) {
        let names = identity.names.join(", ");
        return match record.from {
            Party::Stranger => format!("its certificate names {names}, which is neither the core nor a peer"),
            _ => format!("its certificate names {names}"),
        };
    }
    let addr = record.remote.ip();
    match (record.from, policy.sources.prefix(addr)) {
        (Party::Stranger, None) => format!("{addr} lies in nobody's sources"),
        (Party::Federation, _) => format!("{addr} lies in nobody's sources, and federation is open"),
        (Party::Stranger, Some(_)) => format!("{addr} was nobody's when the request came"),
        (_, Some(net)) => format!("{addr} lies in {net} of its sources"),
        (_, None) => format!("{addr} lay in its sources when the request came"),
    }
}

/// Why its targets are what they are.
pub fn rule(rule: Rule) -> &'static str {
    match rule {
        Rule::Refused => "it was refused before a target was chosen",
        Rule::PeerDomain => "its domain is the peer's",
        Rule::CoreNextHops => "its domain is our own, so it goes to the core's next hops",
        Rule::Number => "its number has the longest prefix in [[route]]",
        Rule::RouteSet => "it follows the route set of its dialog",
        Rule::Federation => "federation is open, and its domain is nobody's that is configured",
        Rule::Local => "it was addressed to this element itself",
    }
}

/// What a fixed word of a refusal or an own answer means; `None` where it says enough.
pub fn refusal(reason: &str) -> Option<&'static str> {
    Some(match reason {
        "stranger" => {
            "the sender is neither the core nor a peer: see [core] and [[peer]] sources and tls_names"
        }
        "no_transit" => "a peer asked for a domain that is not ours: peers reach our own domains only",
        "unknown_domain" => {
            "the domain of the Request-URI is neither ours nor a peer's: name it in a [[peer]]'s domains, or in [node] domains"
        }
        "no_route" => "no [[route]] prefix fits the number",
        "route_not_allowed" => {
            "the next hop of the dialog's route set lies in nobody's domains, sources or next hops"
        }
        "scheme" => "only sip:, sips: and, with a [[route]], tel: URIs are served",
        "maddr" => "the maddr parameter names an address of nobody that is admitted",
        "bad_uri" => "the Request-URI cannot be read",
        "bad_route" => "a Route header field cannot be read",
        "no_core" => "no [core] next_hops are configured",
        "sips_core" => "a sips: request needs TLS to the core, and its next hops offer none",
        "sips_indirect" => {
            "a sips: request cannot go through a transit whose certificate names somebody else"
        }
        "proxy_require" => "Proxy-Require asks for an extension that is not supported",
        "max_forwards" => "Max-Forwards had come down to 0",
        "loop" => "the request came back unchanged",
        "own_listener" => "every address found is one of our own listeners",
        "max_calls" => "the peer has as many calls as max_calls allows",
        "max_calls_per_instance" | "max_rate_per_instance" => {
            "every server of the peer that could be tried is at its limit"
        }
        "max_rate" => "the peer makes more calls per second than max_rate allows",
        "peer_full" => "the peer that the call was for has as many calls as its limits allow",
        "draining" => "the element is draining: it takes no new requests",
        "overload" => "the element was overloaded, and kept its capacity for calls already admitted",
        "table_full" => "limits.transactions was reached",
        "timeout" => "no server gave a final response in time",
        "cancelled" => "the caller hung up first (CANCEL)",
        "unavailable" => "all servers were used up, and the best answer among them was a 503",
        "too_large" => "the request is larger than any way to its target takes",
        "not_located" => "nothing could be located",
        "no_such_name" => "the domain does not exist in the DNS",
        "no_address" => "the domain, or every server of it, has no usable address in the DNS",
        "not_offered" => "the domain's SRV records say that it offers no SIP service (target \".\")",
        "no_transport" => "the domain offers no transport that a listener of ours can send by",
        "dns_failure" => "the name servers could not say (SERVFAIL, REFUSED or nonsense)",
        "timed_out" => "the name servers did not answer in time",
        _ => return None,
    })
}

/// What made attempts fail, in a few words.
pub fn failure(outcome: &str) -> Option<&'static str> {
    Some(match outcome {
        "timeout" => "said nothing in time",
        "icmp" => "could not be reached (ICMP error)",
        "connect_refused" => "refused or reset the connection",
        "connect_timeout" => "accepted no connection in time",
        "tls" => "failed in the TLS handshake",
        "closed" => "closed the connection before an answer",
        "queue_full" => "read too slowly",
        "too_large" => "takes no datagram of this size",
        "local" => "could not be sent to (error of this machine)",
        "status_503" => "answered 503 (Service Unavailable)",
        _ => return None,
    })
}

/// What took an instance down.
pub fn fallen(reason: &str) -> Option<&'static str> {
    Some(match reason {
        "silence" => "it did not answer",
        "retry_after" => "it asked to be left alone (503 with Retry-After)",
        "probe_failed" => "it did not answer probes",
        "icmp" => "its host or port could not be reached (ICMP error)",
        "connect_refused" => "it refused the connection",
        "connect_timeout" => "it accepted no connection in time",
        "tls" => "the TLS handshake with it failed",
        "closed" => "it closed the connection before it answered",
        _ => return None,
    })
}

/// Why an attempt went where it went.
pub fn chosen(record: &Record, at: usize) -> String {
    let Some(attempt) = record.attempts.get(at) else { return String::new() };
    let before = at.checked_sub(1).and_then(|b| record.attempts.get(b));
    if before.is_some_and(|b| b.outcome == "stale_connection") {
        return "the same server once more, on a new connection".to_owned();
    }
    let (leg, number, _) = attempt.place;
    let located = record.legs.get(usize::from(leg)).and_then(|l| l.located.as_ref());
    let tier = located.and_then(|l| l.tiers.get(usize::from(number)));
    let priority = tier.map_or(0, |t| t.priority);
    let servers = tier.map_or(0, |t| t.servers.len());
    let turn = match before {
        None => "",
        Some(b) if b.place.0 != leg => "nothing was left of the party before: ",
        Some(b) if b.place.1 < number => {
            let before = located.and_then(|l| l.tiers.get(usize::from(b.place.1)));
            match before.zip(tier) {
                Some((b, t)) if b.priority == t.priority => "nothing was left of the better costs: ",
                Some((b, t)) if b.priority > t.priority => "nothing was left of the better costs: ",
                _ => "nothing was left of the priority before: ",
            }
        }
        Some(_) => "next in order: ",
    };
    let why = match attempt.reason {
        PickReason::OnlyServer => format!("the only server of priority {priority}"),
        PickReason::OnlyInClass => format!("the only server of priority {priority}{}", in_class(tier)),
        PickReason::Drawn if before.is_some_and(|b| same_tier(b, attempt)) => {
            format!("by weight among the other servers of priority {priority}{}", in_class(tier))
        }
        PickReason::Drawn => {
            format!("by weight among the {servers} servers of priority {priority}{}", in_class(tier))
        }
        PickReason::NextAddress => "a further address of the same server".to_owned(),
        PickReason::Trial => "its hold-down is over, and this request is the one that tries it".to_owned(),
        PickReason::Overruled => {
            "probes say that it is down, but of so many that they are not believed".to_owned()
        }
        PickReason::LastResort => "it is known to be down, but nothing else is left".to_owned(),
    };
    let passed = record.legs.get(usize::from(leg)).map_or(0, |l| {
        let tried = |i| record.attempts.iter().take(at).any(|a| a.instance == i);
        let down = |s: &Standing| matches!(s, Standing::Down { .. } | Standing::ProbedDown);
        // Those further down the list were not yet due.
        let ahead = |i: &Instance| {
            let tiers = l.located.iter().flat_map(|l| l.tiers.iter().take(usize::from(number) + 1));
            tiers.flat_map(|t| &t.servers).any(|s| (0..s.addrs.len()).any(|a| s.instance(a) == Some(*i)))
        };
        let passed =
            l.standings.iter().filter(|(i, s)| down(s) && *i != attempt.instance && !tried(*i) && ahead(i));
        passed.count()
    });
    let passed = match (passed, before) {
        (0, _) | (_, Some(_)) => String::new(),
        (1, None) => "; one that is down was passed over".to_owned(),
        (n, None) => format!("; {n} that are down were passed over"),
    };
    let cost = match cost(record, attempt) {
        Some(cost) => {
            let age = attempt.started.saturating_duration_since(cost.fetched).as_secs();
            format!("; its cost is {} ({}, {age} s old)", cost.value, cost.origin.label())
        }
        None => String::new(),
    };
    let shadow = located.and_then(|l| l.shadow.as_ref()).filter(|_| before.is_none());
    let shadow = match shadow.and_then(|s| s.tiers.first()) {
        Some(tier) => {
            let first = |s: &crate::location::Server| s.instance(0).map(|i| i.to_string());
            let mut names: Vec<String> = tier.servers.iter().filter_map(first).take(SHOWN).collect();
            if tier.servers.len() > SHOWN {
                names.push(format!("{} more", tier.servers.len() - SHOWN));
            }
            format!("; costs are only shown: used, they would have begun with {}", names.join(" or "))
        }
        None => String::new(),
    };
    format!("{turn}{why}{passed}{cost}{shadow}")
}

/// Servers named of those that costs would have begun with.
const SHOWN: usize = 3;

/// The cost of the address that an attempt went to, used or not.
pub fn cost<'a>(record: &'a Record, attempt: &AttemptRecord) -> Option<&'a Cost> {
    let (leg, tier, server) = attempt.place;
    let located = record.legs.get(usize::from(leg))?.located.as_ref()?;
    let server = located.tiers.get(usize::from(tier))?.servers.get(usize::from(server))?;
    let at = server.addrs.iter().position(|a| *a == attempt.instance.addr.ip())?;
    server.cost(at)
}

/// ` in cost class 0 of 3`, where there are several.
fn in_class(tier: Option<&Tier>) -> String {
    match tier.and_then(|t| t.ranking) {
        Some(r) if r.used == Use::Applied && r.rule == AltoRule::Weights => {
            " (weights scaled by cost)".to_owned()
        }
        Some(r) if r.used == Use::Applied && r.classes > 1 => {
            let agreed = if r.overrides_priority { ", priority overridden by agreement" } else { "" };
            format!(" in cost class {} of {} (0 is the best{agreed})", r.class, r.classes)
        }
        _ => String::new(),
    }
}

/// What costs did to a tier; `class`: that of the server in question.
pub fn ranking(ranking: &Ranking, class: u16) -> String {
    let rule = ranking.rule.label();
    let mut text = match ranking.used {
        Use::NotCovered => "too few targets have a cost: not used".to_owned(),
        Use::Shown => {
            format!("shown only: rule \"{rule}\" would put it into class {class} of {}", ranking.classes)
        }
        Use::Applied if ranking.rule == AltoRule::Weights => "weights scaled by cost".to_owned(),
        Use::Applied if ranking.classes < 2 => format!("rule \"{rule}\": all equal"),
        Use::Applied => format!("rule \"{rule}\": class {class} of {}, 0 is the best", ranking.classes),
    };
    if ranking.overrides_priority {
        text += "; priority overridden by agreement";
    }
    if ranking.held {
        text += "; the latest costs say otherwise, but not for long enough yet";
    }
    text
}

fn same_tier(a: &AttemptRecord, b: &AttemptRecord) -> bool {
    (a.place.0, a.place.1) == (b.place.0, b.place.1)
}

/// What became of an attempt.
pub fn outcome(record: &Record, at: usize) -> String {
    let Some(attempt) = record.attempts.get(at) else { return String::new() };
    let further = record.attempts.len() > at + 1;
    let then = if further { ": the next one was tried" } else { "" };
    match attempt.outcome {
        "pending" if record.cancelled => "given up: the caller hung up first (CANCEL)".to_owned(),
        "pending" => "under way".to_owned(),
        "ok" => format!("answered with {}", attempt.status),
        "timeout" if attempt.first_response.is_some() => {
            format!("said nothing final until the time for the whole was over{then}")
        }
        "timeout" if further => format!("said nothing at all within try_timeout{then}"),
        "timeout" => "said nothing at all within 64*T1".to_owned(),
        "icmp" => format!("could not be reached (ICMP error){then}"),
        "connect_refused" => format!("refused or reset the connection{then}"),
        "connect_timeout" => format!("accepted no connection within connect_timeout{then}"),
        "tls" => format!("failed in the TLS handshake, or showed a certificate that does not name it{then}"),
        "closed" => format!("closed the connection before it answered{then}"),
        "stale_connection" => "the open connection to it turned out to be dead".to_owned(),
        "queue_full" => format!("reads too slowly: its connection's queue is full{then}"),
        "too_large" => format!("takes no datagram of this size{then}"),
        "local" => format!("could not be sent to (error of this machine){then}"),
        "no_answer_to_cancel" => "did not even answer the CANCEL".to_owned(),
        "cancelled" => "ended by the caller's CANCEL (487)".to_owned(),
        _ if attempt.status != 0 && further => format!("answered with {}{then}", attempt.status),
        _ if attempt.status != 0 => format!("answered with {}", attempt.status),
        other => other.replace('_', " "),
    }
}
