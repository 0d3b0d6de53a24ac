//! RFC 3263: what a location comes to when the DNS fails, runs late or says too much, and several
//! next hops taken together.

#![allow(clippy::unwrap_used)]

use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use proptest::prelude::*;
use sbe::config::SrvSelection;
use sbe::flow::Transport;
use sbe::location::*;

mod zone;
use zone::*;

// --- failures (rule 16) -------------------------------------------------------------------------

#[test]
fn a_failed_srv_lookup_is_not_a_missing_record() {
    let zone = Zone::new("d A 127.0.0.23");
    for (answer, outcome) in [(Answer::ServFail, Outcome::DnsFailure), (Answer::Timeout, Outcome::TimedOut)] {
        let found = zone.clone().fail("_sip._udp.d", answer.clone()).locate("sip:d");
        assert_eq!((found.located.outcome, found.located.outcome.status()), (outcome, 500));
        assert!(!found.asked().contains(&"d A"), "no guess: {:?}", found.asked());
        let found = zone.clone().fail("d NAPTR", answer).locate("sip:d");
        assert_eq!(found.located.outcome, outcome);
        assert!(!found.asked().contains(&"d A"));
    }
}

#[test]
fn one_failing_branch_does_not_harm_the_others() {
    let zone = Zone::new(
        "d NAPTR 1 1 s SIPS+D2T \"\" _sips._tcp.d\nd NAPTR 2 1 s SIP+D2U \"\" _sip._udp.d\n\
         _sip._udp.d SRV 1 1 5060 a\n_sip._udp.d SRV 1 1 5060 b\na A 192.0.2.1\nb A 192.0.2.2",
    )
    .fail("_sips._tcp.d", Answer::ServFail)
    .fail("b A", Answer::Timeout);
    let found = zone.locate("sip:d");
    assert_eq!(found.tiers(), ["udp:192.0.2.1:5060"]);
    assert_eq!(found.reasons(), [LeftOutReason::LookupFailed, LeftOutReason::LookupFailed]);
    let found = Zone::new("_sip._udp.d SRV 1 1 5060 a\na A 192.0.2.1")
        .fail("d NAPTR", Answer::ServFail)
        .locate("sip:d");
    assert_eq!(found.tiers(), ["udp:192.0.2.1:5060"], "NAPTR failing");
}

#[test]
fn a_dead_dns_is_a_failure_however_it_is_asked() {
    for (uri, what) in [("sip:d", "d"), ("sip:d:5060", "d"), ("sip:d;transport=tcp", "_sip._tcp.d")] {
        for (answer, outcome) in
            [(Answer::ServFail, Outcome::DnsFailure), (Answer::Timeout, Outcome::TimedOut)]
        {
            let found = Zone::new("").fail(what, answer).locate(uri);
            assert_eq!(found.located.outcome, outcome, "{uri}");
        }
    }
    let found = Zone::new("_sip._udp.d SRV 1 1 5060 a").fail("a", Answer::ServFail).locate("sip:d");
    assert_eq!(found.located.outcome, Outcome::DnsFailure);
}

#[test]
fn when_time_is_up_what_is_known_is_used() {
    let zone =
        Zone::new("_sip._udp.d SRV 1 1 5060 a\n_sip._udp.d SRV 2 1 5060 b\na A 192.0.2.1\nb A 192.0.2.2");
    let mut r = Resolution::new(key("sip:d"), &v4_only());
    for _ in 0..3 {
        for q in r.next_questions().iter().filter(|q| !q.name.starts_with("b.")) {
            let (answer, meta) = zone.lookup(q);
            r.answer(q, answer, meta);
        }
    }
    assert!(!r.finished());
    r.time_out();
    assert!(r.finished() && r.next_questions().is_empty());
    let found = Found { located: r.into_located(zone.now), rounds: Vec::new() };
    assert_eq!(found.tiers(), ["udp:192.0.2.1:5060"]);
    assert_eq!(found.reasons(), [LeftOutReason::LookupFailed]);
    assert_eq!(found.located.steps.last().unwrap().outcome, StepOutcome::OutOfTime);

    let mut r = Resolution::new(key("sip:d"), &v4_only());
    r.next_questions();
    r.time_out();
    let located = r.into_located(zone.now);
    assert_eq!((located.outcome, located.outcome.status()), (Outcome::TimedOut, 500));
}

// --- lifetimes, records, bounds -----------------------------------------------------------------

#[test]
fn a_result_lives_as_long_as_the_shortest_answer_it_stands_on() {
    let zone = Zone::new("d NAPTR 1 1 s SIP+D2U \"\" _sip._udp.d\n_sip._udp.d SRV 1 1 5060 a\na A 192.0.2.1");
    for (what, secs) in [("d NAPTR", 7), ("_sip._udp.d SRV", 5), ("a A", 2), ("a AAAA", 3)] {
        let zone = zone.clone().ttl(what, secs);
        let found = zone.locate("sip:d");
        assert_eq!(found.located.expires, zone.now + Duration::from_secs(secs), "{what}");
        let step = found.located.steps.iter().find(|s| s.ttl == Some(Duration::from_secs(secs))).unwrap();
        assert!(step.question.to_string().starts_with(what.split(' ').next().unwrap()));
    }
}

#[test]
fn each_step_is_on_record() {
    let found =
        Zone::new("d NAPTR 1 2 s SIP+D2U \"\" _sip._udp.d\n_sip._udp.d SRV 1 5 5060 a\na A 192.0.2.1")
            .locate("sip:d");
    let lines: Vec<String> = found
        .located
        .steps
        .iter()
        .map(|s| format!("{} {} {}", s.question, s.outcome.label(), s.records.join(", ")))
        .collect();
    assert_eq!(
        lines,
        [
            "d.example.test. NAPTR found 1 2 \"s\" \"SIP+D2U\" \"\" _sip._udp.d.example.test.",
            "_sip._udp.d.example.test. SRV found 1 5 5060 a.example.test.",
            "a.example.test. AAAA nodata ",
            "a.example.test. A found 192.0.2.1",
        ]
    );
}

#[test]
fn only_what_was_asked_can_be_answered_and_only_once() {
    let zone = Zone::new("d A 192.0.2.1");
    let mut r = Resolution::new(key("sip:d:5060"), &v4_only());
    let stray = Question::new("evil.example.test".into(), RecordKind::A);
    let (answer, meta) = zone.lookup(&stray);
    r.answer(&stray, answer, meta);
    let q = Question::new("d.example.test".into(), RecordKind::A);
    let (answer, meta) = zone.lookup(&q);
    r.answer(&q, answer.clone(), meta);
    assert!(!r.finished(), "the question has not been given out yet");
    assert_eq!(r.next_questions().as_slice(), std::slice::from_ref(&q));
    r.answer(&q, answer, meta);
    r.answer(&q, Answer::NxDomain, meta);
    assert!(r.finished() && r.next_questions().is_empty());
    assert_eq!(r.into_located(zone.now).outcome, Outcome::Found);
}

#[test]
fn answers_of_the_wrong_type_are_no_records() {
    let wrong =
        Answer::Records(Arc::new(RrSet { records: Records::Addr(vec!["192.0.2.1".parse().unwrap()]) }));
    let zone = Zone::new("").fail("d NAPTR", wrong.clone()).fail("_sip._udp.d", wrong);
    let found = zone.locate("sip:d");
    assert!(found.located.tiers.is_empty());
    assert_ne!(found.located.outcome, Outcome::Found);
}

#[test]
fn huge_answers_are_cut_at_documented_bounds() {
    let mut text = String::new();
    for i in 0..MAX_NAPTR + 10 {
        text += &format!("d NAPTR 1 {i} s SIP+D2U \"\" _u{i}.d\n");
    }
    for i in 0..MAX_SRV + 20 {
        text += &format!("_u0.d SRV {} 1 5060 t{}\n", 30_000 - i, i % 1500);
    }
    for i in 0..150 {
        text += &format!("t1043 A 192.0.2.{}\nt1042 A 198.51.100.{}\n", i + 1, i + 1);
    }
    let found = Zone::new(&text).locate_with("sip:d", &v4_only());
    let srv = found.asked().iter().filter(|q| q.ends_with("SRV")).count();
    assert_eq!(srv, MAX_NAPTR);
    assert!(found.asked().iter().filter(|q| q.ends_with(" A")).count() <= MAX_TARGETS);
    // The lowest priorities are the ones that are kept.
    assert_eq!(found.located.tiers[0].servers[0].addrs.len(), MAX_ADDRESSES);
    assert_eq!(found.located.tiers[0].servers[0].target.as_ref(), "t1043.example.test");
    assert!(found.located.left_out.len() <= MAX_LEFT_OUT);
    assert!(found.reasons().contains(&LeftOutReason::OverLimit));
}

#[test]
fn the_number_of_candidates_is_bounded() {
    let mut text = String::new();
    for t in 0..100 {
        text += &format!("_sip._udp.d SRV {t} 1 5060 t{t}\n");
        for i in 0..MAX_ADDRESSES {
            text += &format!("t{t} A 10.{t}.0.{}\n", i + 1);
        }
    }
    let found = Zone::new(&text).locate_with("sip:d", &v4_only());
    assert_eq!(found.located.instance_count(), MAX_CANDIDATES);
}

// --- several next hops (rule 5) -----------------------------------------------------------------

#[test]
fn next_hops_form_one_tier_of_equal_shares() {
    let zone = Zone::new(
        "_sip._udp.c SRV 1 3 5060 a\n_sip._udp.c SRV 1 1 5060 b\n_sip._udp.c SRV 2 1 5060 z\n\
         a A 192.0.2.1\nb A 192.0.2.2\nz A 192.0.2.3",
    );
    let one = Arc::new(zone.locate("sip:c").located);
    let two = Arc::new(zone.locate("sip:10.0.0.5:5070;transport=tcp").located);
    let merged = Located::merge(&[Arc::clone(&one), Arc::clone(&two)]).unwrap();
    assert_eq!(merged.tiers.len(), 2);
    let shares: Vec<f64> = (0..3).map(|i| merged.tiers[0].share(i)).collect();
    for (share, want) in shares.iter().zip([0.375, 0.125, 0.5]) {
        assert!((share - want).abs() < 1e-6, "{shares:?}");
    }
    assert_eq!(merged.tiers[0].transport(), None);
    assert_eq!(merged.hop_of(&merged.tiers[0].servers[0]), &host("c"));
    assert_eq!(merged.hop_of(&merged.tiers[0].servers[2]), &host("10.0.0.5"));
    assert_eq!(merged.expires, one.expires);
    assert_eq!(merged.steps.len(), one.steps.len());
    for mode in [SrvSelection::Exact, SrvSelection::Rfc2782] {
        let merged = Arc::new(merged.clone());
        let mut health = health();
        let tcp = (0..4000)
            .filter(|seed| {
                let mut s = Selection::new(Arc::clone(&merged), seed * 0x9e37_79b9, mode);
                let first = s.next(zone.now, &mut health, &|_| None).unwrap();
                first.instance.transport == Transport::Tcp
            })
            .count();
        assert!((1850..2150).contains(&tcp), "{mode:?}: {tcp} of 4000");
    }
}

#[test]
fn merging_keeps_what_was_found_beside_what_was_not() {
    let zone = Zone::new("a A 192.0.2.1");
    let none = Arc::new(Zone::new("").locate("sip:none").located);
    let dead = Arc::new(Zone::new("").fail("dead", Answer::ServFail).locate("sip:dead:5060").located);
    let good = Arc::new(zone.locate("sip:a:5060").located);
    let all = Located::merge(&[Arc::clone(&none), Arc::clone(&dead), good]).unwrap();
    assert_eq!((all.outcome, all.instance_count()), (Outcome::Found, 1));
    assert_eq!(all.hop_of(&all.tiers[0].servers[0]), &host("a"));
    assert_eq!(Located::merge(&[none, dead]).unwrap().outcome, Outcome::DnsFailure);
    assert!(Located::merge(&[]).is_none());
}

#[test]
fn instances_are_listed_once_in_order() {
    let located = Zone::new(
        "_sip._udp.d SRV 1 1 5060 a\n_sip._udp.d SRV 2 1 5060 b\n_sip._udp.d SRV 2 1 5061 b\n\
         a A 192.0.2.1\nb A 192.0.2.1\nb A 192.0.2.2",
    )
    .locate("sip:d")
    .located;
    let all: Vec<String> = located.instances().map(|i| i.to_string()).collect();
    assert_eq!(all, ["udp:192.0.2.1:5060", "udp:192.0.2.2:5060", "udp:192.0.2.1:5061", "udp:192.0.2.2:5061"]);
    assert_eq!(located.instance_count(), 4);
}

// --- whatever the DNS says ----------------------------------------------------------------------

fn any_answer(kind: RecordKind, bits: u64) -> Answer {
    let pick = |n: u64, salt: u64| (bits ^ salt).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32 & (n - 1);
    let name = |salt| ["d", "a", "b.", "", ".", "A.b", "_sip._udp.d", "x..y"][pick(8, salt) as usize];
    let small = |salt| u16::try_from(pick(4, salt)).unwrap();
    let records = match kind {
        RecordKind::Naptr => Records::Naptr(
            (0..pick(8, 1))
                .map(|i| NaptrRecord {
                    order: small(i + 10),
                    preference: small(i + 20),
                    flags: ["s", "S", "u", ""][pick(4, i + 30) as usize].into(),
                    service: ["SIP+D2U", "sip+d2t", "SIPS+D2T", "E2U+sip"][pick(4, i + 40) as usize].into(),
                    regexp: ["", "", "", "!x!y!"][pick(4, i + 50) as usize].into(),
                    replacement: name(i + 60).into(),
                })
                .collect(),
        ),
        RecordKind::Srv => Records::Srv(
            (0..pick(8, 2))
                .map(|i| SrvRecord {
                    priority: small(i + 70),
                    weight: small(i + 80),
                    port: small(i + 90),
                    target: name(i + 100).into(),
                })
                .collect(),
        ),
        RecordKind::A => {
            Records::Addr((0..pick(4, 3)).map(|i| [10, 0, 0, pick(8, i) as u8].into()).collect())
        }
        RecordKind::Aaaa => Records::Addr(
            (0..pick(4, 3)).map(|i| [0u16, 0, 0, 0, 0, 0, 0, pick(8, i) as u16].into()).collect(),
        ),
    };
    match pick(8, 4) {
        0 => Answer::NoData,
        1 => Answer::NxDomain,
        2 => Answer::ServFail,
        3 => Answer::Timeout,
        _ => Answer::Records(Arc::new(RrSet { records })),
    }
}

proptest! {
    #[test]
    fn every_location_ends_asks_nothing_twice_and_never_the_root(
        seed: u64, uri in prop::sample::select(vec!["sip:d", "sips:d", "sip:d:5070", "sip:d;transport=tcp", "sip:10.0.0.1"]),
        stop in 0..40usize,
    ) {
        let now = Instant::now();
        let mut r = Resolution::new(key(uri), &everything());
        let mut seen = HashSet::new();
        let mut open: Vec<Question> = Vec::new();
        let mut step = 0u64;
        loop {
            open.extend(r.next_questions());
            if open.is_empty() {
                break;
            }
            step += 1;
            prop_assert!(step < 300);
            // In any order.
            let q = open.swap_remove((seed.rotate_left(step as u32) % open.len() as u64) as usize);
            prop_assert!(seen.insert(q.clone()), "{} twice", q);
            prop_assert!(!q.name.is_empty() && !q.name.ends_with('.') && !q.name.contains(".."), "{}", q);
            let bits = seed ^ q.name.bytes().fold(q.kind as u64, |h, b| h.wrapping_mul(31).wrapping_add(b.into()));
            let meta = AnswerMeta { expires: now + Duration::from_secs(9), cached: false, stale: false };
            prop_assert!(!r.finished());
            r.answer(&q, any_answer(q.kind, bits), meta);
            if step as usize == stop {
                r.time_out();
                prop_assert!(r.next_questions().is_empty());
                break;
            }
        }
        prop_assert!(r.finished());
        let located = r.into_located(now);
        prop_assert_eq!(located.outcome == Outcome::Found, !located.tiers.is_empty());
        prop_assert_eq!(located.steps.len(), located.steps.iter().map(|s| &s.question).collect::<HashSet<_>>().len());
        for s in located.tiers.iter().flat_map(|t| &t.servers) {
            prop_assert!(!s.addrs.is_empty() && s.port != 0);
            prop_assert!(s.addrs.iter().all(|a| !a.is_unspecified() && !a.is_multicast()));
            prop_assert!(!uri.starts_with("sips") || s.transport == Transport::Tls);
        }
    }
}
