#![allow(clippy::unwrap_used)]
//! What no zone file can show: failures, servers that differ, caches, aliases of a kind.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use super::super::question::{NaptrRecord, Question, RecordKind, Records, RrSet, SrvRecord};
use super::*;

fn records(records: Records, ttl: u64) -> Fact {
    let seen =
        Seen::Records { set: Arc::new(RrSet { records }), ttl: Duration::from_secs(ttl), uneven: false };
    Fact { seen, aliases: Vec::new(), authoritative: true }
}

fn said(seen: Seen) -> Fact {
    Fact { seen, aliases: Vec::new(), authoritative: true }
}

fn naptr(order: u16, service: &str, replacement: &str) -> NaptrRecord {
    NaptrRecord {
        order,
        preference: 10,
        flags: "s".into(),
        service: service.into(),
        regexp: "".into(),
        replacement: replacement.into(),
    }
}

fn srv(weight: u16, port: u16, target: &str) -> SrvRecord {
    SrvRecord { priority: 1, weight, port, target: target.into() }
}

/// What a zone without any fault says; `change` may say otherwise for a server (by index) and question.
fn world(servers: usize, change: &dyn Fn(usize, &str, Fact) -> Fact) -> Facts {
    let mut facts = Facts::new("A.test.", (0..servers).map(|n| format!("ns{n}")).collect()).unwrap();
    loop {
        let questions = facts.questions();
        if questions.is_empty() {
            return facts;
        }
        for q in questions {
            for server in 0..servers {
                facts.put(q.clone(), server, change(server, &q.to_string(), good(&q)));
            }
        }
    }
}

fn good(q: &Question) -> Fact {
    let two =
        |port| records(Records::Srv(vec![srv(10, port, "s1.a.test"), srv(10, port, "s2.a.test")]), 3600);
    let addr = |text: &str| records(Records::Addr(vec![text.parse::<IpAddr>().unwrap()]), 3600);
    match (&*q.name, q.kind) {
        ("a.test", RecordKind::Naptr) => records(
            Records::Naptr(vec![
                naptr(10, "SIPS+D2T", "_sips._tcp.a.test"),
                naptr(20, "SIP+D2T", "_sip._tcp.a.test"),
                naptr(30, "sip+d2u", "_sip._udp.a.test"),
            ]),
            86400,
        ),
        ("_sips._tcp.a.test", RecordKind::Srv) => two(5061),
        (_, RecordKind::Srv) => two(5060),
        ("s1.a.test", RecordKind::A) => addr("198.51.100.1"),
        ("s1.a.test", RecordKind::Aaaa) => addr("2001:db8::1"),
        ("s2.a.test", RecordKind::A) => addr("198.51.100.2"),
        ("s2.a.test", RecordKind::Aaaa) => addr("2001:db8::2"),
        _ => said(Seen::NoData),
    }
}

fn codes(facts: &Facts) -> Vec<(&'static str, &'static str)> {
    check(facts).findings.iter().map(|f| (f.severity.label(), f.code)).collect()
}

#[test]
fn a_good_zone_is_left_alone_but_for_what_certificates_must_name() {
    let facts = world(2, &|_, _, fact| fact);
    let report = check(&facts);
    assert_eq!(codes(&facts), [("info", "tls_identity")], "{report:#?}");
    assert_eq!(report.findings[0].what, "the certificates of s1.a.test., s2.a.test. must name a.test");
}

#[test]
fn only_what_depends_on_the_answers_is_asked() {
    let mut facts = Facts::new("a.test", vec!["ns".into()]).unwrap();
    let asked = |facts: &Facts| facts.questions().iter().map(ToString::to_string).collect::<Vec<_>>();
    assert_eq!(
        asked(&facts),
        [
            "_sip._tcp.a.test. SRV",
            "_sip._udp.a.test. SRV",
            "_sips._tcp.a.test. SRV",
            "a.test. NAPTR",
            "a.test. A",
            "a.test. AAAA"
        ]
    );
    for q in facts.questions() {
        let fact = if q.kind == RecordKind::Naptr {
            records(Records::Naptr(vec![naptr(1, "SIP+D2U", "_sip._udp.Other.test")]), 86400)
        } else {
            said(Seen::NoData)
        };
        facts.put(q, 0, fact);
    }
    assert_eq!(asked(&facts), ["_sip._udp.other.test. SRV"]);
}

#[test]
fn what_cannot_be_a_domain_is_none() {
    for text in [
        "",
        ".",
        "192.0.2.1",
        "2001:db8::1",
        "a b",
        "sip:a.test",
        "a@b.test",
        "a..test",
        "a;b",
        "\u{e4}.test",
    ] {
        assert!(Facts::new(text, Vec::new()).is_none(), "{text}");
    }
}

#[test]
fn a_server_that_fails_is_an_error_only_where_no_other_answers() {
    let one = world(2, &|server, q, fact| {
        if server == 0 && q == "a.test. NAPTR" { said(Seen::Failed("servfail")) } else { fact }
    });
    assert_eq!(codes(&one), [("warning", "lookup_failed"), ("info", "tls_identity")]);
    let both =
        world(2, &|_, q, fact| if q == "a.test. NAPTR" { said(Seen::Failed("timeout")) } else { fact });
    let report = check(&both);
    let failed: Vec<&str> =
        report.findings.iter().filter(|f| f.severity == Severity::Error).map(|f| f.code).collect();
    assert_eq!(failed, ["lookup_failed", "lookup_failed"]);
    assert!(
        report.findings.iter().all(|f| f.code != "no_naptr"),
        "nobody said that there is none: {report:#?}"
    );
    let nothing = world(1, &|_, _, _| said(Seen::Failed("timeout")));
    assert!(
        check(&nothing).findings.iter().all(|f| f.code == "lookup_failed"),
        "nothing is concluded from silence"
    );
}

#[test]
fn a_circle_of_aliases_is_called_that() {
    let facts =
        world(1, &|_, q, fact| if q == "s1.a.test. A" { said(Seen::Failed("aliases")) } else { fact });
    assert!(codes(&facts).contains(&("error", "alias_loop")));
}

#[test]
fn servers_that_differ_are_told_with_what_each_says() {
    let facts = world(2, &|server, q, fact| match (server, q) {
        (1, "s1.a.test. A") => records(Records::Addr(vec!["198.51.100.9".parse().unwrap()]), 3600),
        _ => fact,
    });
    let report = check(&facts);
    let found = report.findings.iter().find(|f| f.code == "servers_differ").unwrap();
    assert_eq!((found.about.as_str(), found.severity), ("s1.a.test. A", Severity::Warning));
    assert_eq!(found.what, "ns0 says 198.51.100.1, ns1 says 198.51.100.9");
    // Another order is no difference.
    let turned = world(2, &|server, q, fact| match (server, q) {
        (1, "_sips._tcp.a.test. SRV") => {
            records(Records::Srv(vec![srv(10, 5061, "s2.a.test"), srv(10, 5061, "s1.a.test")]), 1800)
        }
        _ => fact,
    });
    assert_eq!(codes(&turned), [("info", "tls_identity")]);
}

#[test]
fn a_ttl_out_of_a_cache_is_judged_only_if_too_long() {
    let cached = |ttl: u64| {
        world(1, &move |_, _, fact| match fact.seen {
            Seen::Records { set, uneven, .. } => Fact {
                seen: Seen::Records { set, ttl: Duration::from_secs(ttl), uneven },
                authoritative: false,
                ..fact
            },
            _ => fact,
        })
    };
    assert_eq!(codes(&cached(5)), [("info", "tls_identity"), ("info", "ttl_from_cache")]);
    let long = codes(&cached(30 * 86400));
    assert_eq!(long.iter().filter(|c| **c == ("warning", "ttl_long")).count(), 4, "{long:?}");
}

#[test]
fn sets_of_several_ttls_are_remarked() {
    let facts = world(1, &|_, q, fact| match (q, fact.seen) {
        ("_sip._udp.a.test. SRV", Seen::Records { set, ttl, .. }) => {
            said(Seen::Records { set, ttl, uneven: true })
        }
        (_, seen) => said(seen),
    });
    assert!(codes(&facts).contains(&("warning", "ttl_uneven")));
}

#[test]
fn the_number_of_findings_and_of_questions_is_bounded() {
    let many: Vec<SrvRecord> = (0..5000).map(|n| srv(1, 0, &format!("x{n}.a.test"))).collect();
    let facts = world(1, &|_, q, fact| match q {
        "_sip._udp.a.test. SRV" => records(Records::Srv(many.clone()), 3600),
        _ => fact,
    });
    assert!(facts.targets().len() <= MAX_SURVEYED);
    assert_eq!(check(&facts).findings.len(), MAX_FINDINGS);
}
