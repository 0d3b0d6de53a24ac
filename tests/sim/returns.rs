//! The way back: a response whose connection or address has died reaches its sender by another way.

use sbe::flow::SendFailure;
use sbe::shard::Input;

use crate::msg::{Request, reply};
use crate::rig::{CORE, Out, Rig, lines};

const CLOSED: SendFailure = SendFailure::Closed { reused: true };
const REFUSED: SendFailure = SendFailure::ConnectRefused;
/// Where the peer's connection comes from.
const FROM: &str = "203.0.113.7:40000";
const HOP: &str = "10.0.0.5:5060";

fn request(method: &str, via: &str) -> Request {
    let mut r = Request::new(method, "sip:bob@example.com", "203.0.113.7:5060", "u1", "call-1");
    r.vias = vec![format!("{via};branch=z9hG4bKu1")];
    r
}

/// A request of the second peer over TCP, up to the moment when the core has it.
fn begun(rig: &mut Rig, method: &str, sent_by: &str) -> Out {
    let outs = rig.tcp(FROM, 5, &request(method, &format!("SIP/2.0/TCP {sent_by}")).bytes());
    outs.into_iter().find(|o| o.msg.is_request()).expect("it goes to the core")
}

/// The core's answer, as it is sent towards the peer.
fn answered(rig: &mut Rig, sent: &Out, status: u16) -> Out {
    let outs = rig.udp(HOP, &reply(&sent.msg, status, "t1", &[], b""));
    outs.into_iter().find(|o| o.msg.status() == status).expect("it goes up")
}

fn undeliverable(rig: &Rig) -> u64 {
    rig.shard.stats().dropped.get("response_undeliverable").copied().unwrap_or(0)
}

#[test]
fn a_response_goes_by_the_connection_then_to_the_address_then_to_the_servers_of_the_sent_by_domain() {
    for (method, status) in [("INVITE", 200), ("INVITE", 486), ("BYE", 200), ("OPTIONS", 404)] {
        let mut rig = Rig::new();
        let sent = begun(&mut rig, method, "p2.example");
        let first = answered(&mut rig, &sent, status);
        assert_eq!((first.line(), first.conn.map(|c| c.0)), (format!("{status} {FROM}"), Some(5)));
        let mut token = first.token;
        for (failure, next) in [
            (CLOSED, "203.0.113.7:5060"),
            (REFUSED, "203.0.113.1:5060"),
            (SendFailure::ConnectTimeout, "203.0.113.2:5060"),
        ] {
            let outs = rig.fail(token, failure);
            assert_eq!(lines(&outs), [format!("{status} {next}")], "{method} after {failure:?}");
            assert_eq!(outs[0].msg.raw, first.msg.raw);
            assert_eq!((outs[0].conn, outs[0].listener), (None, 2));
            token = outs[0].token;
        }
        assert_eq!(undeliverable(&rig), 0);
        assert!(rig.fail(token, REFUSED).is_empty(), "no way is left");
        assert_eq!(undeliverable(&rig), 1);
        rig.expect_empty();
    }
}

#[test]
fn a_way_that_is_taken_serves_all_further_responses() {
    let mut rig = Rig::new();
    let sent = begun(&mut rig, "INVITE", "p2.example");
    let ringing = answered(&mut rig, &sent, 180);
    let outs = rig.fail(ringing.token, CLOSED);
    let outs = rig.fail(outs[0].token, REFUSED);
    assert_eq!(lines(&outs), ["180 203.0.113.1:5060"]);
    let ok = answered(&mut rig, &sent, 200);
    assert_eq!(ok.to.to_string(), "203.0.113.1:5060");
    // It is repeated until its ACK comes, and goes the same way.
    let outs = rig.udp(HOP, &reply(&sent.msg, 200, "t1", &[], b""));
    assert_eq!(lines(&outs), ["200 203.0.113.1:5060"]);
    rig.expect_empty();
}

#[test]
fn failures_of_a_way_that_has_been_left_mean_nothing() {
    let mut rig = Rig::new();
    let sent = begun(&mut rig, "INVITE", "p2.example");
    let ringing = answered(&mut rig, &sent, 180);
    let ok = answered(&mut rig, &sent, 200);
    // Both were waiting for the same connection when it ended.
    assert_eq!(lines(&rig.fail(ringing.token, CLOSED)), ["200 203.0.113.7:5060"], "the last is what counts");
    assert!(rig.fail(ok.token, CLOSED).is_empty());
    assert_eq!(undeliverable(&rig), 0);
    rig.expect_empty();
}

#[test]
fn a_pooled_connection_found_dead_is_followed_by_a_new_one_to_the_same_place() {
    let mut rig = Rig::new();
    let sent = begun(&mut rig, "BYE", "p2.example");
    let ok = answered(&mut rig, &sent, 200);
    let outs = rig.fail(ok.token, CLOSED);
    let outs = rig.fail(outs[0].token, CLOSED);
    assert_eq!(lines(&outs), ["200 203.0.113.7:5060"]);
    let outs = rig.fail(outs[0].token, CLOSED);
    assert_eq!(lines(&outs), ["200 203.0.113.1:5060"], "once only");
    rig.expect_empty();
}

#[test]
fn no_more_than_five_ways_are_tried_for_one_request() {
    let mut rig = Rig::new();
    for n in 10..40 {
        rig.zone.srv("_sip._tcp.p2.example", n, 10, 5060, &format!("x{n}.p2.example"));
        rig.zone.addr(&format!("x{n}.p2.example"), &format!("203.0.113.{n}"));
    }
    let sent = begun(&mut rig, "INVITE", "p2.example");
    let mut token = answered(&mut rig, &sent, 200).token;
    let mut tried = 0;
    loop {
        let outs = rig.fail(token, REFUSED);
        let Some(next) = outs.first() else { break };
        token = next.token;
        tried += 1;
    }
    assert_eq!(tried, 5);
    // Not by further answers either.
    let outs = rig.udp(HOP, &reply(&sent.msg, 200, "t1", &[], b""));
    assert!(rig.fail(outs[0].token, REFUSED).is_empty());
    rig.expect_empty();
}

#[test]
fn a_sent_by_that_is_somebody_elses_is_not_followed() {
    for (sent_by, found, followed) in [
        // Not this peer's name, and not its address.
        ("victim.example", "198.18.0.1", false),
        // That of another peer, at the address of that one.
        ("i1.p1.example", "", false),
        ("p1.example", "", false),
        // A name that nobody has claimed, with an address of this peer.
        ("node7.carrier.example", "203.0.113.77", true),
        // Its own name, wherever that leads.
        ("p2.example", "", true),
        // Ourselves.
        ("sbe1.example.com", "192.0.2.10", false),
        ("node7.carrier.example", "192.0.2.10", false),
        // Numbers are no domain.
        ("203.0.113.99", "", false),
    ] {
        let mut rig = Rig::new();
        if !found.is_empty() {
            rig.zone.addr(sent_by, found);
        }
        let sent = begun(&mut rig, "BYE", sent_by);
        let ok = answered(&mut rig, &sent, 200);
        let outs = rig.fail(ok.token, CLOSED);
        assert_eq!(
            lines(&outs),
            ["200 203.0.113.7:5060"],
            "{sent_by}: the address that it came from is its own"
        );
        let outs = rig.fail(outs[0].token, REFUSED);
        assert_eq!(!outs.is_empty(), followed, "{sent_by}");
        assert_eq!(undeliverable(&rig), u64::from(!followed), "{sent_by}");
        rig.expect_empty();
    }
}

#[test]
fn a_port_in_sent_by_asks_for_addresses_alone() {
    let mut rig = Rig::new();
    rig.zone.addr("p2.example", "203.0.113.50");
    let sent = begun(&mut rig, "BYE", "p2.example:5070");
    let ok = answered(&mut rig, &sent, 200);
    let outs = rig.fail(ok.token, CLOSED);
    assert_eq!(lines(&outs), ["200 203.0.113.7:5070"]);
    assert_eq!(lines(&rig.fail(outs[0].token, REFUSED)), ["200 203.0.113.50:5070"]);
    rig.expect_empty();
}

#[test]
fn answers_that_come_while_the_servers_are_asked_for_go_there_too_and_the_last_one_counts() {
    let mut rig = Rig::new();
    let sent = begun(&mut rig, "INVITE", "p2.example");
    let ringing = answered(&mut rig, &sent, 180);
    let outs = rig.fail(ringing.token, CLOSED);
    rig.hold = true;
    assert!(rig.fail(outs[0].token, REFUSED).is_empty());
    let ok = answered(&mut rig, &sent, 200);
    assert!(rig.fail(ok.token, REFUSED).is_empty());
    assert_eq!(lines(&rig.release()), ["200 203.0.113.1:5060"]);
    assert_eq!(undeliverable(&rig), 0);
    rig.expect_empty();
}

#[test]
fn a_name_without_servers_loses_the_response_and_says_so() {
    let mut rig = Rig::with(
        "[[peer]]\nname = \"p3\"\ndomains = [\"nowhere.example\"]\nsources = [\"198.18.5.0/24\"]\n",
    );
    let mut r = request("BYE", "SIP/2.0/TCP nowhere.example");
    r.from = "<sip:a@nowhere.example>;tag=1".into();
    let outs = rig.tcp("198.18.5.1:40000", 5, &r.bytes());
    let ok = answered(&mut rig, &outs[0], 200);
    let outs = rig.fail(ok.token, CLOSED);
    assert!(rig.fail(outs[0].token, REFUSED).is_empty());
    assert_eq!(undeliverable(&rig), 1);
    rig.expect_empty();
}

#[test]
fn over_udp_an_icmp_error_sends_the_response_to_the_servers_of_the_sent_by_domain() {
    for quoted in [usize::MAX, 200] {
        let mut rig = Rig::new();
        let via = "SIP/2.0/UDP p1.example";
        let mut r = request("INVITE", via);
        r.vias = vec![format!("{via};branch=z9hG4bKu1")];
        let outs = rig.udp("198.51.100.200:5060", &r.bytes());
        let sent = outs.into_iter().find(|o| o.msg.is_request()).unwrap();
        let busy = answered(&mut rig, &sent, 486);
        assert_eq!(busy.line(), "486 198.51.100.200:5060");
        let payload = &busy.msg.raw[..busy.msg.raw.len().min(quoted)];
        let gone = |to: &str| Input::Undeliverable { to: to.parse().unwrap(), payload };
        assert!(rig.input(gone("198.51.100.201:5060")).is_empty(), "not where it went");
        assert_eq!(lines(&rig.input(gone("198.51.100.200:5060"))), ["486 198.51.100.11:5060"]);
        assert!(rig.input(gone("198.51.100.200:5060")).is_empty(), "it is on another way by now");
        assert_eq!(lines(&rig.input(gone("198.51.100.11:5060"))), ["486 198.51.100.12:5060"]);
        // It is repeated there until the ACK comes.
        let again = rig.pass(600);
        assert!(again.iter().all(|(_, o)| o.line() == "486 198.51.100.12:5060") && !again.is_empty());
        // And the sender may come back.
        let again = rig.udp("198.51.100.200:5060", &r.bytes());
        assert_eq!(lines(&again), ["486 198.51.100.200:5060"]);
        rig.expect_empty();
    }
}

#[test]
fn an_icmp_error_for_a_response_that_is_none_of_ours_is_dropped() {
    let mut rig = Rig::new();
    for payload in [
        &b"SIP/2.0 200 OK\r\nVia: SIP/2.0/UDP p1.example;branch=z9hG4bKother\r\n\r\n"[..],
        b"SIP/2.0 200 OK\r\nVia: rubbish\r\n",
        b"SIP/2.0",
    ] {
        let to = "198.51.100.200:5060".parse().unwrap();
        assert!(rig.input(Input::Undeliverable { to, payload }).is_empty());
    }
    assert_eq!(rig.shard.stats().dropped.get("icmp"), Some(&3));
}

#[test]
fn the_core_has_a_way_back_too() {
    let mut rig = Rig::with("[[listen]]\ntransport = \"tcp\"\nbind = \"10.0.0.1:5060\"\nrealm = \"core\"\n");
    rig.zone.srv("_sip._udp.switch.core.example", 1, 1, 5060, "s1.core.example");
    rig.zone.addr("s1.core.example", "10.0.7.7");
    let mut r = Request::new("INVITE", "sip:bob@p1.example", CORE, "u1", "call-1");
    r.vias = vec!["SIP/2.0/UDP switch.core.example;rport;branch=z9hG4bKu1".into()];
    let outs = rig.udp(CORE, &r.bytes());
    let sent = outs.into_iter().find(|o| o.msg.is_request()).unwrap();
    let busy = rig.udp("198.51.100.11:5060", &reply(&sent.msg, 486, "t1", &[], b""));
    let busy = busy.into_iter().find(|o| o.msg.status() == 486).unwrap();
    let gone = Input::Undeliverable { to: CORE.parse().unwrap(), payload: &busy.msg.raw };
    assert_eq!(lines(&rig.input(gone)), ["486 10.0.7.7:5060"], "its address is one of the core's");
    rig.expect_empty();
}
