//! RFC 3263 §4: which questions are asked, in which order, and what comes of the answers.

#![allow(clippy::unwrap_used)]

use sbe::config::Families;
use sbe::flow::{Host, Transport};
use sbe::location::*;

mod zone;
use zone::*;

// --- preconditions: when no DNS, or not all of it, is due -------------------------------------

#[test]
fn a_numeric_host_needs_no_question() {
    let zone = Zone::new("");
    for (uri, want) in [
        ("sip:127.0.0.21", "udp:127.0.0.21:5060"),
        ("sip:[::1]:5090", "udp:[::1]:5090"),
        ("sip:dest;maddr=127.0.0.21", "udp:127.0.0.21:5060"),
        ("sip:dest;maddr=[::1];transport=tcp", "tcp:[::1]:5060"),
        ("sip:192.0.2.1;transport=TLS", "tls:192.0.2.1:5061"),
        ("sips:192.0.2.1", "tls:192.0.2.1:5061"),
        ("sips:192.0.2.1:5071;transport=tcp", "tls:192.0.2.1:5071"),
        ("sip:[::ffff:192.0.2.1]", "udp:192.0.2.1:5060"),
    ] {
        let found = zone.locate(uri);
        assert_eq!(found.asked(), Vec::<&str>::new(), "{uri}");
        assert_eq!(found.tiers(), [want], "{uri}");
        assert_eq!(found.located.outcome, Outcome::Found);
        assert_eq!(Located::literal(&key(uri), &everything(), zone.now).unwrap().instance_count(), 1);
    }
    assert!(Located::literal(&key("sip:dest"), &everything(), zone.now).is_none());
}

#[test]
fn a_port_leaves_address_lookups_only() {
    let zone =
        Zone::new("b1 A 127.0.0.21\n_sip._udp.b1 SRV 1 1 1 b1\n b1 NAPTR 1 1 s SIP+D2T \"\" _sip._tcp.b1");
    let found = zone.locate("sip:b1:5070");
    assert_eq!(found.rounds, [["b1 AAAA", "b1 A"]]);
    assert_eq!(found.tiers(), ["udp:127.0.0.21:5070"]);
    assert_eq!(zone.locate("sip:b1:5070;transport=tcp").tiers(), ["tcp:127.0.0.21:5070"]);
    assert_eq!(zone.locate("sips:b1:5070").tiers(), ["tls:127.0.0.21:5070"]);
}

#[test]
fn a_transport_leaves_its_srv_and_no_naptr() {
    let zone = Zone::new("b1 A 127.0.0.21\n_sip._tcp.b1 SRV 10 0 5085 b1\n_sips._tcp.b1 SRV 10 0 5086 b1");
    let found = zone.locate("sip:b1;transport=tcp");
    assert_eq!(found.rounds, [vec!["_sip._tcp.b1 SRV"], vec!["b1 AAAA", "b1 A"]]);
    assert_eq!(found.tiers(), ["tcp:127.0.0.21:5085"]);
    for uri in ["sip:b1;transport=tls", "sips:b1;transport=tcp", "sips:b1;transport=tls"] {
        let found = zone.locate(uri);
        assert_eq!(found.asked()[0], "_sips._tcp.b1 SRV", "{uri}");
        assert_eq!(found.tiers(), ["tls:127.0.0.21:5086"], "{uri}");
    }
    // None there: the host's own addresses, at the transport's default port.
    let bare = Zone::new("b1 A 127.0.0.21");
    assert_eq!(bare.locate("sip:b1;transport=tcp").tiers(), ["tcp:127.0.0.21:5060"]);
    assert_eq!(bare.locate("sip:b1;transport=tls").tiers(), ["tls:127.0.0.21:5061"]);
}

#[test]
fn a_uri_that_no_transport_of_ours_can_serve_is_refused_before_any_lookup() {
    assert_eq!(target("sip:b1;transport=sctp"), Err(TargetError::UnsupportedTransport));
    assert_eq!(target("sips:b1;transport=udp"), Err(TargetError::SipsOverUdp));
    let no_tls = Enabled::new(&ALL, [true, true, false], [false; 3], Families::Both);
    for uri in ["sips:b1", "sips:192.0.2.1", "sips:b1:5061", "sip:b1;transport=tls", "sip:[2001:db8::1]"] {
        let found = Zone::new("").locate_with(uri, &no_tls);
        assert_eq!(found.asked(), Vec::<&str>::new(), "{uri}");
        assert_eq!(
            (found.located.outcome, found.located.outcome.status()),
            (Outcome::NoTransport, 480),
            "{uri}"
        );
        assert!(found.located.tiers.is_empty());
    }
}

// --- NAPTR ------------------------------------------------------------------------------------

const B36: &str = r#"
dest NAPTR 10 5 "u" "E2U+sip" "!^.*$!sip:x@evil.example.test!" .
dest NAPTR 10 6 "s" "SIP+D2S" "" _sip._sctp.dest
dest NAPTR 10 7 "s" "SIP+D2U" "!.*!x!" .
dest NAPTR 10 10 "s" "SIP+D2T" "" _sip._tcp.dest
dest NAPTR 10 20 "s" "SIP+D2U" "" _sip._udp.dest
_sip._udp.dest SRV 10 0 5060 b1
b1 A 127.0.0.21
dest A 127.0.0.23
evil A 127.0.0.22"#;

#[test]
fn a_naptr_record_that_leads_nowhere_is_passed_over_and_foreign_ones_are_ignored() {
    let found = Zone::new(B36).locate("sip:dest");
    assert_eq!(
        found.rounds,
        [vec!["dest NAPTR"], vec!["_sip._tcp.dest SRV", "_sip._udp.dest SRV"], vec!["b1 AAAA", "b1 A"]]
    );
    assert_eq!(found.tiers(), ["udp:127.0.0.21:5060"]);
    assert_eq!(found.located.tiers[0].naptr, Some((10, 20)));
    assert_eq!(
        found.reasons(),
        [
            LeftOutReason::ForeignService,
            LeftOutReason::TransportNotEnabled,
            LeftOutReason::HasRegexp,
            LeftOutReason::NoSuchService
        ]
    );
}

#[test]
fn every_usable_naptr_record_gives_candidates_in_order() {
    let zone = Zone::new(&format!("{B36}\n_sip._tcp.dest SRV 10 0 5060 b1"));
    assert_eq!(zone.locate("sip:dest").tiers(), ["tcp:127.0.0.21:5060", "udp:127.0.0.21:5060"]);
}

#[test]
fn without_a_usable_naptr_record_srv_is_asked_for_each_of_our_transports_in_our_order() {
    let foreign = B36.lines().nth(1).unwrap();
    let rest: Vec<&str> = B36.lines().skip(6).collect();
    let found = Zone::new(&format!("{foreign}\n{}", rest.join("\n"))).locate("sip:dest");
    assert_eq!(found.rounds[1], ["_sips._tcp.dest SRV", "_sip._tcp.dest SRV", "_sip._udp.dest SRV"]);
    assert_eq!(found.tiers(), ["udp:127.0.0.21:5060"]);
    assert!(!found.asked().iter().any(|q| q.contains("evil")));
    // Our list decides what is asked and in which order.
    let ours = Enabled::new(&[Transport::Udp, Transport::Tcp], [true; 3], [false; 3], Families::Both);
    let zone = Zone::new(
        "_sip._udp.d SRV 1 1 1 a\n_sip._tcp.d SRV 1 1 2 a\n_sips._tcp.d SRV 1 1 3 a\na A 192.0.2.1",
    );
    let found = zone.locate_with("sip:d", &ours);
    assert_eq!(found.rounds[1], ["_sip._udp.d SRV", "_sip._tcp.d SRV"]);
    assert_eq!(found.tiers(), ["udp:192.0.2.1:1", "tcp:192.0.2.1:2"]);
}

#[test]
fn order_stands_before_preference_and_our_own_order_decides_only_between_equals() {
    let srv = "_u.d SRV 1 1 1 a\n_t.d SRV 1 1 2 a\n_s.d SRV 1 1 3 a\na A 192.0.2.1\n";
    let order = |naptr: &str| -> Vec<String> {
        let found = Zone::new(&format!("{srv}{naptr}")).locate("sip:d");
        found.tiers().iter().map(|t| t.split(':').next().unwrap().to_owned()).collect()
    };
    let u = |o: u16, p: u16| format!("d NAPTR {o} {p} s SIP+D2U \"\" _u.d\n");
    let t = |o: u16, p: u16| format!("d NAPTR {o} {p} S sip+d2t \"\" _t.d\n");
    let s = |o: u16, p: u16| format!("d NAPTR {o} {p} s Sips+D2T \"\" _s.d\n");
    assert_eq!(order(&(u(20, 1) + &t(10, 90) + &s(10, 50))), ["tls", "tcp", "udp"]);
    assert_eq!(order(&(u(10, 1) + &t(10, 2) + &s(11, 0))), ["udp", "tcp", "tls"]);
    assert_eq!(order(&(u(10, 1) + &t(10, 1) + &s(10, 1))), ["tls", "tcp", "udp"]);
    assert_eq!(order(&(u(10, 1) + &u(10, 1) + &u(30, 1))), ["udp"], "duplicates");
}

#[test]
fn naptr_records_that_are_not_terminal_or_not_for_our_transports_are_left_out() {
    let zone = Zone::new(
        "d NAPTR 1 1 a SIP+D2U \"\" a\nd NAPTR 1 2 \"\" SIP+D2U \"\" e.d\nd NAPTR 1 3 s SIP+D2T \"\" .\n\
         d NAPTR 1 4 s SIP+D2W \"\" w.d\nd NAPTR 1 5 s x-eduroam:radius.tls \"\" r.d\n\
         d NAPTR 2 5 s SIP+D2U \"\" _u.d\n_u.d SRV 1 1 5070 a\na A 192.0.2.1",
    );
    let found = zone.locate("sip:d");
    assert_eq!(found.tiers(), ["udp:192.0.2.1:5070"]);
    assert_eq!(
        found.reasons(),
        [
            LeftOutReason::NotTerminal,
            LeftOutReason::NotTerminal,
            LeftOutReason::BadName,
            LeftOutReason::TransportNotEnabled,
            LeftOutReason::ForeignService
        ]
    );
    let no_udp = Enabled::new(&[Transport::Tcp], [false, true, false], [false; 3], Families::Both);
    let found = zone.locate_with("sip:d", &no_udp);
    assert_eq!(found.rounds[1], ["_sip._tcp.d SRV"]);
    assert!(found.reasons().contains(&LeftOutReason::TransportNotEnabled));
}

#[test]
fn sips_uses_nothing_but_tls() {
    let zone = Zone::new(
        "d NAPTR 1 1 s SIP+D2U \"\" _sip._udp.d\nd NAPTR 2 1 s SIPS+D2T \"\" _sips._tcp.d\n\
         _sip._udp.d SRV 1 1 5060 a\n_sips._tcp.d SRV 1 1 5061 a\na A 192.0.2.1",
    );
    let found = zone.locate("sips:d");
    assert_eq!(found.tiers(), ["tls:192.0.2.1:5061"]);
    assert_eq!(found.reasons(), [LeftOutReason::NotSecure]);
    let bare = Zone::new("d A 192.0.2.1\n_sip._udp.d SRV 1 1 5060 d");
    let found = bare.locate("sips:d");
    assert_eq!(found.rounds, [vec!["d NAPTR"], vec!["_sips._tcp.d SRV"], vec!["d AAAA", "d A"]]);
    assert_eq!(found.tiers(), ["tls:192.0.2.1:5061"]);
}

#[test]
fn naptr_records_without_any_srv_records_still_tell_the_transport() {
    // Typing errors in the replacements, ordinary SRV names in place.
    let zone = Zone::new("d NAPTR 1 1 s SIP+D2T \"\" _sip._tpc.d\n_sip._tcp.d SRV 1 1 5085 a\na A 192.0.2.1");
    let found = zone.locate("sip:d");
    assert_eq!(found.tiers(), ["tcp:192.0.2.1:5085"]);
    assert!(!found.asked().iter().any(|q| q.contains("_udp")), "{:?}", found.asked());
    // No SRV at all: the host, by that transport.
    let zone = Zone::new("d NAPTR 1 1 s SIP+D2T \"\" _sip._tcp.d\nd A 192.0.2.1");
    let found = zone.locate("sip:d");
    assert_eq!(found.rounds, [vec!["d NAPTR"], vec!["_sip._tcp.d SRV"], vec!["d AAAA", "d A"]]);
    assert_eq!(found.tiers(), ["tcp:192.0.2.1:5060"]);
}

#[test]
fn a_denied_name_is_still_asked_for_srv() {
    let found = Zone::new("_sip._udp.d SRV 1 1 5070 a\na A 192.0.2.1").locate("sip:d");
    assert_eq!(found.located.steps[0].outcome, StepOutcome::NxDomain);
    assert_eq!(found.tiers(), ["udp:192.0.2.1:5070"]);
}

// --- SRV --------------------------------------------------------------------------------------

#[test]
fn priorities_become_tiers_lowest_first() {
    let found = Zone::new(
        "_sip._udp.d SRV 20 0 5060 c\n_sip._udp.d SRV 10 5 5061 a\n_sip._udp.d SRV 10 7 5062 b\n\
         a A 192.0.2.1\nb A 192.0.2.2\nc A 192.0.2.3",
    )
    .locate("sip:d");
    assert_eq!(found.tiers(), ["udp:192.0.2.1:5061 udp:192.0.2.2:5062", "udp:192.0.2.3:5060"]);
    let tiers = &found.located.tiers;
    assert_eq!((tiers[0].priority, tiers[1].priority), (10, 20));
    assert_eq!(tiers[0].transport(), Some(Transport::Udp));
    assert!((tiers[0].share(0) - 5.0 / 12.0).abs() < 1e-9 && (tiers[1].share(0) - 1.0).abs() < 1e-9);
}

#[test]
fn target_dot_means_not_offered_and_no_fallback() {
    let one =
        Zone::new("_sip._udp.z SRV 0 0 0 .\n_sip._tcp.z SRV 10 0 5060 b\nz A 127.0.0.23\nb A 127.0.0.21");
    let found = one.locate("sip:z");
    assert_eq!(found.tiers(), ["tcp:127.0.0.21:5060"]);
    assert_eq!(found.reasons(), [LeftOutReason::NotOffered]);

    let two = Zone::new(
        "_sip._udp.z SRV 0 0 0 .\n_sip._tcp.z SRV 0 0 0 .\n_sips._tcp.z SRV 0 0 0 .\nz A 127.0.0.23",
    );
    let found = two.locate("sip:z");
    assert!(found.located.tiers.is_empty());
    assert_eq!((found.located.outcome, found.located.outcome.status()), (Outcome::NotOffered, 480));
    assert!(!found.asked().iter().any(|q| q.ends_with(" A") || q.ends_with(" AAAA")), "{:?}", found.asked());

    // Said for one transport, silent about the others: still no guess.
    let found = Zone::new("_sip._udp.z SRV 0 0 0 .\nz A 127.0.0.23").locate("sip:z");
    assert_eq!(found.located.outcome, Outcome::NotOffered);

    let three = Zone::new("_sip._udp.z SRV 0 0 0 .\n_sip._udp.z SRV 10 0 5060 b\nb A 127.0.0.21");
    let found = three.locate("sip:z");
    assert_eq!(found.tiers(), ["udp:127.0.0.21:5060"]);
    assert!(found.asked().iter().all(|q| !q.starts_with('.')), "{:?}", found.asked());
}

#[test]
fn the_same_target_twice_and_a_target_without_address() {
    let found = Zone::new(
        "_sip._udp.dest SRV 5 0 5060 gone\n_sip._udp.dest SRV 10 0 5060 b\n_sip._udp.dest SRV 20 0 5070 b\n\
         _sip._udp.dest SRV 20 0 5070 b\n_sip._udp.dest SRV 30 0 5060 b\n_sip._udp.dest SRV 40 0 0 b\nb A 127.0.0.21",
    )
    .locate("sip:dest");
    assert_eq!(found.tiers(), ["udp:127.0.0.21:5060", "udp:127.0.0.21:5070"]);
    assert_eq!(
        found.reasons(),
        [LeftOutReason::NoAddress, LeftOutReason::Duplicate, LeftOutReason::Duplicate, LeftOutReason::NoPort]
    );
    assert_eq!(found.asked().iter().filter(|q| **q == "b A").count(), 1, "each question once");
}

#[test]
fn srv_records_of_which_no_target_has_an_address_are_no_reason_to_guess() {
    let found = Zone::new("_sip._udp.d SRV 1 1 5060 gone\nd A 127.0.0.23").locate("sip:d");
    assert_eq!((found.located.outcome, found.located.outcome.status()), (Outcome::NoAddress, 480));
    assert!(!found.asked().contains(&"d A"));
}

// --- address fallback -------------------------------------------------------------------------

#[test]
fn without_srv_records_the_host_itself_is_used_by_udp() {
    let zone = Zone::new("d A 192.0.2.1\nd AAAA 2001:db8::1");
    let found = zone.locate("sip:d");
    assert_eq!(
        found.rounds,
        [
            vec!["d NAPTR"],
            vec!["_sips._tcp.d SRV", "_sip._tcp.d SRV", "_sip._udp.d SRV"],
            vec!["d AAAA", "d A"]
        ]
    );
    assert_eq!(found.tiers(), ["udp:[2001:db8::1]:5060 udp:192.0.2.1:5060"]);
    let no_udp = Enabled::new(&[Transport::Tcp], [false, true, false], [false; 3], Families::Both);
    assert_eq!(zone.locate_with("sip:d", &no_udp).tiers(), ["tcp:192.0.2.1:5060"]);
}

#[test]
fn a_name_that_does_not_exist_and_one_without_addresses_are_480() {
    let found = Zone::new("").locate("sip:none");
    assert_eq!((found.located.outcome, found.located.outcome.status()), (Outcome::NoSuchName, 480));
    let found = Zone::new("_sip._x.d SRV 1 1 1 a\nd NAPTR 1 1 u x \"\" .").locate("sip:d");
    assert_eq!((found.located.outcome, found.located.outcome.status()), (Outcome::NoAddress, 480));
}

#[test]
fn names_that_cannot_be_asked_for_do_not_exist() {
    for bad in ["a..b", ".", "x y", &"l".repeat(64), &"abc.".repeat(80)] {
        let mut k = key("sip:d");
        k.host = Host::Name(bad.into());
        let (located, rounds) = Zone::new("").rounds(k, &everything());
        assert!(rounds.is_empty(), "{bad}");
        assert_eq!(located.outcome, Outcome::NoSuchName, "{bad}");
    }
}

// --- two families (RFC 7984, RFC 6724) ----------------------------------------------------------

#[test]
fn both_families_are_asked_side_by_side_and_ipv6_is_tried_first() {
    let zone = Zone::new("_sip._udp.d SRV 1 1 5060 a\na A 192.0.2.1\na A 192.0.2.2\na AAAA 2001:db8::1");
    let found = zone.locate("sip:d");
    assert_eq!(found.rounds[2], ["a AAAA", "a A"]);
    assert_eq!(found.tiers(), ["udp:[2001:db8::1]:5060 udp:192.0.2.1:5060 udp:192.0.2.2:5060"]);
    let only = |f| Enabled::new(&ALL, [true; 3], [true; 3], f);
    assert_eq!(
        zone.locate_with("sip:d", &only(Families::Ipv4)).tiers(),
        ["udp:192.0.2.1:5060 udp:192.0.2.2:5060"]
    );
    assert_eq!(zone.locate_with("sip:d", &only(Families::Ipv6)).tiers(), ["udp:[2001:db8::1]:5060"]);
    let found = zone.locate_with("sip:d", &v4_only());
    assert!(!found.asked().contains(&"a AAAA"), "no listener of that family");
}

#[test]
fn one_family_is_enough_when_the_other_fails_or_is_absent() {
    let zone = Zone::new("_sip._udp.d SRV 1 1 5060 a\na A 192.0.2.1");
    assert_eq!(zone.locate("sip:d").tiers(), ["udp:192.0.2.1:5060"]);
    for answer in [Answer::ServFail, Answer::Timeout, Answer::NxDomain] {
        let found = zone.clone().fail("a AAAA", answer).locate("sip:d");
        assert_eq!(
            (found.tiers(), found.located.outcome),
            (vec!["udp:192.0.2.1:5060".to_owned()], Outcome::Found)
        );
    }
}

#[test]
fn a_family_that_lags_behind_need_not_be_waited_for() {
    let zone = Zone::new("a A 192.0.2.1");
    let mut r = Resolution::new(key("sip:a:5060"), &everything());
    let questions = r.next_questions();
    assert!(r.lagging().is_empty(), "nothing has been answered");
    let a = questions.iter().find(|q| q.kind == RecordKind::A).unwrap();
    let (answer, meta) = zone.lookup(a);
    r.answer(a, answer, meta);
    assert!(!r.finished());
    let late = r.lagging();
    assert_eq!(late.len(), 1);
    assert_eq!(late[0].kind, RecordKind::Aaaa);
    r.give_up(&late[0]);
    assert!(r.finished());
    let (answer, meta) = zone.lookup(&late[0]);
    r.answer(&late[0], answer, meta); // too late, and ignored
    let located = r.into_located(zone.now);
    assert_eq!(located.instance_count(), 1);
    assert_eq!(located.steps[0].outcome, StepOutcome::NotWaitedFor);
    assert_eq!(located.expires, zone.now + UNANSWERED_HOLD, "asked again soon");
}

#[test]
fn addresses_that_mean_this_host_or_many_are_left_out() {
    let found = Zone::new(
        "a A 0.0.0.0\na A 224.0.1.75\na A 255.255.255.255\na A 192.0.2.1\na A 192.0.2.1\na AAAA ::\n\
         a AAAA ::ffff:192.0.2.9\na AAAA ff02::1",
    )
    .locate("sip:a:5060");
    assert_eq!(found.tiers(), ["udp:192.0.2.9:5060 udp:192.0.2.1:5060"]);
    assert_eq!(found.reasons(), [LeftOutReason::UnusableAddress; 5]);
}

#[test]
fn without_a_common_family_nothing_is_asked() {
    let zone = Zone::new("a A 192.0.2.1");
    let enabled = Enabled::new(&ALL, [true; 3], [false; 3], Families::Ipv6);
    let found = zone.locate_with("sip:a:5060", &enabled);
    assert!(found.rounds.is_empty());
    assert_eq!(found.located.outcome, Outcome::NoTransport);
    // `addresses` is about lookups: an address that is written out is used.
    assert_eq!(zone.locate_with("sip:192.0.2.1", &enabled).tiers(), ["udp:192.0.2.1:5060"]);
}
