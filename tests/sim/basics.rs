//! Straight lines: one call, one behaviour.

use sbe::shard::Update;

use crate::msg::{Msg, Request, bracketed, reply};
use crate::rig::{CORE, Out, PEER, Rig, lines, timed};

const I1: &str = "198.51.100.11:5060";

pub fn invite() -> Request {
    let mut r = Request::new("INVITE", "sip:bob@p1.example", CORE, "u1", "call-1");
    r.body = b"v=0\r\ns=-\r\n".to_vec();
    r.extra.push("Content-Type: application/sdp".into());
    r
}

/// A call up to the forwarded INVITE.
pub fn begun(rig: &mut Rig) -> Out {
    let outs = rig.udp(CORE, &invite().bytes());
    assert_eq!(lines(&outs), ["100 10.0.1.1:5060", "INVITE 198.51.100.11:5060"]);
    outs[1].clone()
}

pub fn contact() -> Vec<String> {
    vec!["Contact: <sip:bob@198.51.100.11:5060>".into()]
}

/// A call up to its 200.
fn established(rig: &mut Rig) -> (Out, Msg) {
    let sent = begun(rig);
    let outs = rig.udp(I1, &reply(&sent.msg, 200, "t1", &contact(), b""));
    assert_eq!(lines(&outs), ["200 10.0.1.1:5060"]);
    (sent, outs[0].msg.clone())
}

#[test]
fn an_invite_gets_100_at_once_and_goes_on_with_via_record_route_and_one_hop_less() {
    let mut rig = Rig::new();
    let sent = begun(&mut rig).msg;
    assert_eq!(sent.uri(), "sip:bob@p1.example");
    let vias = sent.vias();
    assert_eq!(vias.len(), 2);
    assert!(vias[0].starts_with("SIP/2.0/UDP sbe1.example.com;rport;branch=z9hG4bK"), "{}", vias[0]);
    assert!(vias[1].contains("received=10.0.1.1") && vias[1].contains("rport=5060"), "{}", vias[1]);
    assert_eq!(sent.get("max-forwards"), Some("69"));
    let routes: Vec<String> = sent.values("record-route").iter().filter_map(|v| bracketed(v)).collect();
    assert_eq!(routes.len(), 2, "two listeners, two values");
    assert!(routes[0].starts_with("sip:192.0.2.10:5060;transport=udp;lr"), "{}", routes[0]);
    assert!(routes[1].starts_with("sip:10.0.0.1:5060;transport=udp;lr"), "{}", routes[1]);
    assert_eq!(sent.body, b"v=0\r\ns=-\r\n");
    rig.expect_empty();
}

#[test]
fn a_call_is_set_up_acknowledged_by_its_route_set_and_ended_from_either_side() {
    for from_peer in [false, true] {
        let mut rig = Rig::new();
        let sent = begun(&mut rig);
        let outs = rig.udp(I1, &reply(&sent.msg, 180, "t1", &[], b""));
        assert_eq!(lines(&outs), ["180 10.0.1.1:5060"]);
        assert_eq!(outs[0].msg.vias().len(), 1);
        let outs = rig.udp(I1, &reply(&sent.msg, 200, "t1", &contact(), b"sdp"));
        assert_eq!(lines(&outs), ["200 10.0.1.1:5060"]);
        assert_eq!(outs[0].msg.body, b"sdp");
        let ok = outs[0].msg.clone();
        let route: Vec<String> = ok.values("record-route").into_iter().rev().collect();
        assert_eq!(rig.shard.calls(), 1);

        let mut ack = Request::new("ACK", "sip:bob@198.51.100.11:5060", CORE, "u2", "call-1");
        ack.routes.clone_from(&route);
        ack.to = ok.get("to").unwrap().to_string();
        let outs = rig.udp(CORE, &ack.bytes());
        assert_eq!(lines(&outs), ["ACK 198.51.100.11:5060"]);
        assert_eq!(outs[0].msg.uri(), "sip:bob@198.51.100.11:5060");
        assert!(outs[0].msg.values("route").is_empty());
        assert_eq!(outs[0].listener, 1);

        let (sender, target, at) = match from_peer {
            false => (CORE, "sip:bob@198.51.100.11:5060", "198.51.100.11:5060"),
            true => (I1, "sip:alice@10.0.1.1:5060", "10.0.1.1:5060"),
        };
        let mut bye = Request::new("BYE", target, sender, "u3", "call-1");
        bye.routes = if from_peer { ok.values("record-route") } else { route };
        let ends = ["from", "to"].map(|end| ok.get(end).unwrap().to_string());
        [bye.from, bye.to] = ends;
        if from_peer {
            std::mem::swap(&mut bye.from, &mut bye.to);
        }
        bye.cseq = 2;
        let outs = rig.udp(sender, &bye.bytes());
        assert_eq!(lines(&outs), [format!("BYE {at}")], "no 100 for a BYE");
        let answer = reply(&outs[0].msg, 200, "", &[], b"");
        let outs = rig.udp(at, &answer);
        assert_eq!(lines(&outs), [format!("200 {sender}")]);
        assert_eq!(rig.shard.calls(), 0);
        rig.expect_empty();
    }
}

#[test]
fn a_retransmitted_invite_gets_the_last_provisional_again_and_is_not_forwarded_twice() {
    let mut rig = Rig::new();
    let sent = begun(&mut rig);
    assert_eq!(lines(&rig.udp(CORE, &invite().bytes())), ["100 10.0.1.1:5060"]);
    rig.udp(I1, &reply(&sent.msg, 183, "t1", &[], b"x"));
    let again = rig.udp(CORE, &invite().bytes());
    assert_eq!(lines(&again), ["183 10.0.1.1:5060"]);
    assert_eq!(again[0].msg.body, b"x");
}

#[test]
fn an_unanswered_invite_is_repeated_to_the_same_instance_by_timer_a() {
    let mut rig = Rig::with("[sip]\ntry_timeout = \"32s\"\n");
    let sent = begun(&mut rig);
    let outs = rig.pass(4_000);
    assert_eq!(
        timed(&outs),
        ["500 INVITE 198.51.100.11:5060", "1500 INVITE 198.51.100.11:5060", "3500 INVITE 198.51.100.11:5060"]
    );
    assert!(outs.iter().all(|(_, o)| o.msg.raw == sent.msg.raw));
}

#[test]
fn a_failure_is_acknowledged_by_us_and_goes_upstream_until_its_ack_comes() {
    let mut rig = Rig::new();
    let sent = begun(&mut rig);
    let busy = reply(&sent.msg, 486, "t1", &["X-Why: because".to_string()], b"");
    let outs = rig.udp(I1, &busy);
    assert_eq!(lines(&outs), ["ACK 198.51.100.11:5060", "486 10.0.1.1:5060"]);
    let ack = &outs[0].msg;
    assert_eq!((ack.branch(0), ack.vias().len(), ack.to_tag()), (sent.msg.branch(0), 1, Some("t1".into())));
    assert_eq!(outs[1].msg.get("x-why"), Some("because"));
    assert_eq!(lines(&rig.udp(I1, &busy)), ["ACK 198.51.100.11:5060"], "a repeated final gets its ACK again");
    let again = rig.pass(1_600);
    assert_eq!(timed(&again), ["500 486 10.0.1.1:5060", "1500 486 10.0.1.1:5060"]);
    let mut ack = Request::new("ACK", "sip:bob@p1.example", CORE, "u1", "call-1");
    ack.to = outs[1].msg.get("to").unwrap().to_string();
    assert!(rig.udp(CORE, &ack.bytes()).is_empty());
    assert!(rig.pass(60_000).is_empty());
    assert_eq!(rig.shard.calls(), 0);
    rig.expect_empty();
}

#[test]
fn a_cancel_is_answered_at_once_and_follows_its_invite_to_the_same_instance() {
    let mut rig = Rig::new();
    let sent = begun(&mut rig);
    rig.udp(I1, &reply(&sent.msg, 180, "t1", &[], b""));
    let mut cancel = invite();
    cancel.method = "CANCEL".into();
    cancel.body.clear();
    let outs = rig.udp(CORE, &cancel.bytes());
    assert_eq!(lines(&outs), ["200 10.0.1.1:5060", "CANCEL 198.51.100.11:5060"]);
    let ours = outs[1].msg.clone();
    assert_eq!((ours.branch(0), ours.uri(), ours.cseq()), (sent.msg.branch(0), sent.msg.uri(), 1));
    assert!(rig.udp(I1, &reply(&ours, 200, "t1", &[], b"")).is_empty());
    let outs = rig.udp(I1, &reply(&sent.msg, 487, "t1", &[], b""));
    assert_eq!(lines(&outs), ["ACK 198.51.100.11:5060", "487 10.0.1.1:5060"]);
    rig.expect_empty();
}

#[test]
fn a_cancel_waits_for_the_first_provisional() {
    let mut rig = Rig::new();
    let sent = begun(&mut rig);
    let mut cancel = invite();
    cancel.method = "CANCEL".into();
    assert_eq!(lines(&rig.udp(CORE, &cancel.bytes())), ["200 10.0.1.1:5060"]);
    let outs = rig.udp(I1, &reply(&sent.msg, 100, "", &[], b""));
    assert_eq!(lines(&outs), ["CANCEL 198.51.100.11:5060"]);
}

#[test]
fn a_cancel_without_an_invite_gets_481() {
    let mut rig = Rig::new();
    let mut cancel = invite();
    cancel.method = "CANCEL".into();
    assert_eq!(lines(&rig.udp(CORE, &cancel.bytes())), ["481 10.0.1.1:5060"]);
    rig.expect_empty();
}

#[test]
fn a_cancel_while_the_servers_are_being_located_ends_the_call_there() {
    let mut rig = Rig::new();
    rig.hold = true;
    assert_eq!(lines(&rig.udp(CORE, &invite().bytes())), ["100 10.0.1.1:5060"]);
    let mut cancel = invite();
    cancel.method = "CANCEL".into();
    assert_eq!(lines(&rig.udp(CORE, &cancel.bytes())), ["200 10.0.1.1:5060", "487 10.0.1.1:5060"]);
    assert!(rig.release().is_empty());
    rig.expect_empty();
}

#[test]
fn options_to_the_element_is_answered_here_and_refused_while_draining() {
    let mut rig = Rig::new();
    let options = Request::new("OPTIONS", "sip:sbe1.example.com", PEER, "o1", "call-9");
    assert_eq!(lines(&rig.udp(PEER, &options.bytes())), ["200 198.51.100.200:5060"]);
    rig.update(Update::Drain(true));
    let options = Request::new("OPTIONS", "sip:sbe1.example.com", PEER, "o2", "call-9");
    let outs = rig.udp(PEER, &options.bytes());
    assert_eq!(lines(&outs), ["503 198.51.100.200:5060"]);
    assert!(outs[0].msg.get("retry-after").is_some());
    rig.expect_empty();
}

/// What comes back for a request of the core or of a peer.
fn refusal(from: &str, request: &Request) -> String {
    let mut rig = Rig::new();
    let outs = rig.udp(from, &request.bytes());
    assert_eq!(outs.len(), 1, "{:?}", lines(&outs));
    rig.expect_empty();
    outs[0].msg.start.clone()
}

#[test]
fn what_cannot_go_on_is_refused_with_the_right_status() {
    let from = |at: &str, uri: &str| Request::new("INVITE", uri, at, "u1", "call-1");
    let core = |uri: &str| from(CORE, uri);
    assert!(refusal(CORE, &core("sip:x@elsewhere.example")).contains(" 403 "));
    assert!(refusal(PEER, &from(PEER, "sip:x@p2.example")).contains(" 403 "), "no transit");
    assert!(refusal(CORE, &core("sip:+1555@example.com")).contains(" 404 "), "no route for the number");
    assert!(refusal(CORE, &core("urn:service:sos")).contains(" 416 "));
    let mut required = core("sip:bob@p1.example");
    required.extra.push("Proxy-Require: foo, bar".into());
    let mut rig = Rig::new();
    let outs = rig.udp(CORE, &required.bytes());
    assert_eq!((outs[0].msg.status(), outs[0].msg.get("unsupported")), (420, Some("foo, bar")));
    let mut far = core("sip:bob@p1.example");
    far.max_forwards = Some(0);
    assert!(refusal(CORE, &far).contains(" 483 "));
    let mut bad = core("sip:bob@p1.example");
    bad.call_id = String::new();
    assert!(refusal(CORE, &bad).contains(" 400 "));
}

#[test]
fn a_request_that_comes_back_as_it_went_has_looped_and_one_with_another_uri_spirals() {
    let mut rig = Rig::new();
    let sent = begun(&mut rig).msg;
    let mut back = invite();
    back.vias = [vec!["SIP/2.0/UDP 10.0.1.9;branch=z9hG4bKx".to_string()], sent.vias()].concat();
    let outs = rig.udp("10.0.1.9:5060", &back.bytes());
    assert_eq!(lines(&outs), ["482 10.0.1.9:5060"]);
    back.uri = "sip:carol@p1.example".into();
    back.vias[0] = "SIP/2.0/UDP 10.0.1.9;branch=z9hG4bKy".to_string();
    let outs = rig.udp("10.0.1.9:5060", &back.bytes());
    assert_eq!(lines(&outs), ["100 10.0.1.9:5060", "INVITE 198.51.100.11:5060"]);
}

#[test]
fn a_stranger_gets_silence_on_udp_and_403_on_a_stream() {
    let mut rig = Rig::new();
    let request = Request::new("INVITE", "sip:bob@example.com", "192.0.2.99:5060", "s1", "call-1");
    assert!(rig.udp("192.0.2.99:5060", &request.bytes()).is_empty());
    let outs = rig.tcp("192.0.2.99:5060", 1, &request.bytes());
    assert_eq!(outs[0].msg.status(), 403);
    assert_eq!(rig.shard.stats().dropped.get("stranger"), Some(&2));
    rig.expect_empty();
}

#[test]
fn a_peers_call_for_our_domain_goes_to_the_core() {
    let mut rig = Rig::new();
    let request = Request::new("INVITE", "sip:bob@example.com", PEER, "s1", "call-1");
    let outs = rig.udp(PEER, &request.bytes());
    assert_eq!(lines(&outs), ["100 198.51.100.200:5060", "INVITE 10.0.0.5:5060"]);
    assert_eq!((outs[1].listener, outs[1].msg.uri()), (0, "sip:bob@example.com"));
}

#[test]
fn a_call_by_number_goes_to_the_peers_of_its_route_in_turn() {
    let mut rig = Rig::new();
    let request = Request::new("INVITE", "sip:+44123@example.com", CORE, "s1", "call-1");
    let outs = rig.udp(CORE, &request.bytes());
    assert_eq!(lines(&outs), ["100 10.0.1.1:5060", "INVITE 203.0.113.1:5060"]);
    assert_eq!(outs[1].msg.uri(), "sip:+44123@p2.example");
    let outs = rig.fail(outs[1].token, sbe::flow::SendFailure::ConnectRefused);
    assert_eq!(lines(&outs), ["INVITE 203.0.113.2:5060"]);
    let outs = rig.fail(outs[0].token, sbe::flow::SendFailure::ConnectTimeout);
    assert_eq!(lines(&outs), ["INVITE 198.51.100.11:5060"], "the next peer of the route");
    assert_eq!(outs[0].msg.uri(), "sip:+44123@p1.example");
    rig.expect_empty();
}

#[test]
fn stray_responses_are_dropped() {
    let mut rig = Rig::new();
    let (sent, _) = established(&mut rig);
    let ok = reply(&sent.msg, 200, "t1", &contact(), b"");
    let text = String::from_utf8(ok.clone()).unwrap();
    let branch = sent.msg.branch(0);
    let mut wrong = branch.clone().into_bytes();
    let last = wrong.len() - 12;
    wrong[last] = if wrong[last] == b'0' { b'1' } else { b'0' };
    let forged = [
        text.replace(&branch, "z9hG4bKsomebodyelse"),
        text.replace(&branch, std::str::from_utf8(&wrong).unwrap()),
        text.replace("sbe1.example.com", "sbe2.example.com"),
        text.replace("CSeq: 1 INVITE", "CSeq: 1 BYE"),
        text.replace("z9hG4bKu1", "z9hG4bKu7"),
    ];
    for (n, bytes) in forged.iter().enumerate() {
        assert!(rig.udp(I1, bytes.as_bytes()).is_empty(), "{n}: {bytes}");
    }
    assert_eq!(lines(&rig.udp(I1, &ok)), ["200 10.0.1.1:5060"], "a repeated 2xx goes up");
    rig.pass(60_000);
    assert!(rig.udp(I1, &ok).is_empty(), "RFC 6026: not once the transaction is over");
}

#[test]
fn a_ringing_call_lives_as_long_as_provisionals_come_and_is_cancelled_by_timer_c() {
    let mut rig = Rig::with("[sip]\ntimer_c = \"200s\"\n");
    let sent = begun(&mut rig);
    for _ in 0..4 {
        rig.udp(I1, &reply(&sent.msg, 183, "t1", &[], b""));
        assert_eq!(timed(&rig.pass(150_000)), [""; 0]);
    }
    let outs = rig.pass(60_000);
    assert_eq!(
        outs.first().map(|(at, o)| (*at, o.line())),
        Some((50_000, "CANCEL 198.51.100.11:5060".to_string()))
    );
    let outs = rig.udp(I1, &reply(&sent.msg, 487, "t1", &[], b""));
    assert_eq!(lines(&outs), ["ACK 198.51.100.11:5060", "487 10.0.1.1:5060"]);
    rig.expect_empty();
}

#[test]
fn a_session_expires_of_the_answer_bounds_the_count_of_the_call() {
    let mut rig = Rig::new();
    let sent = begun(&mut rig);
    let extra = [contact(), vec!["Session-Expires: 90;refresher=uas".to_string()]].concat();
    rig.udp(I1, &reply(&sent.msg, 200, "t1", &extra, b""));
    rig.pass(85_000);
    assert_eq!(rig.shard.calls(), 1);
    rig.pass(11_000);
    assert_eq!(rig.shard.calls(), 0);
}

#[test]
fn a_maddr_of_ours_is_taken_off_with_port_and_transport_and_anybody_elses_stays() {
    let mut rig = Rig::new();
    let uri = "sip:bob@p1.example:5060;maddr=10.0.0.1;x=1;transport=udp";
    let outs = rig.udp(CORE, &Request::new("OPTIONS", uri, CORE, "m1", "call-m1").bytes());
    assert_eq!(lines(&outs), ["OPTIONS 198.51.100.11:5060"]);
    assert_eq!(outs[0].msg.uri(), "sip:bob@p1.example;x=1");
    let uri = "sip:bob@p1.example;maddr=198.51.100.77";
    let outs = rig.udp(CORE, &Request::new("OPTIONS", uri, CORE, "m2", "call-m2").bytes());
    assert_eq!(lines(&outs), ["OPTIONS 198.51.100.77:5060"]);
    assert_eq!(outs[0].msg.uri(), uri);
    let uri = "sip:bob@p1.example;maddr=192.0.2.200";
    let outs = rig.udp(CORE, &Request::new("OPTIONS", uri, CORE, "m3", "call-m3").bytes());
    assert_eq!(lines(&outs), ["403 10.0.1.1:5060"], "an address of nobody admitted");
}

#[test]
fn a_route_of_ours_alone_makes_us_the_outbound_proxy_of_a_new_request() {
    let mut rig = Rig::new();
    let own = "Route: <sip:10.0.0.1;lr>";
    for (uri, want) in [
        ("sip:bob@p1.example", "OPTIONS 198.51.100.11:5060"),
        ("sip:+44-20-(79)46@example.com", "OPTIONS 203.0.113.1:5060"),
        ("tel:+44.20.7946", "OPTIONS 203.0.113.1:5060"),
        ("sip:%2B44%320@example.com", "OPTIONS 203.0.113.1:5060"),
        ("sip:example.com", "200 10.0.1.1:5060"),
        ("sip:bob@unknown.example", "403 10.0.1.1:5060"),
    ] {
        let mut request = Request::new("OPTIONS", uri, CORE, &format!("r-{}-{}", want.len(), uri.len()), uri);
        request.extra.push(own.into());
        let outs = rig.udp(CORE, &request.bytes());
        assert_eq!(lines(&outs), [want], "{uri}");
    }
}

#[test]
fn the_token_of_a_dialog_opens_no_new_call_and_no_way_to_another_peer() {
    let mut rig = Rig::new();
    let call = Request::new("INVITE", "sip:bob@example.com", PEER, "t1", "call-t");
    let outs = rig.udp(PEER, &call.bytes());
    let invite = outs.iter().find(|o| o.msg.method() == "INVITE" && o.msg.status() == 0).unwrap().msg.clone();
    let routes: Vec<String> = invite.values("record-route").iter().rev().map(|v| v.to_string()).collect();
    for (uri, tag, want) in [
        ("sip:x@p2.example", "", "403"),
        ("sip:x@p2.example", ";tag=1", "403"),
        ("sip:x@203.0.113.9", ";tag=1", "403"),
        ("sip:x@10.0.0.77", ";tag=1", "INVITE 10.0.0.77:5060"),
    ] {
        let mut request = Request::new("INVITE", uri, PEER, &format!("t-{uri}{}", tag.len()), "call-t");
        request.routes = routes.clone();
        request.to = format!("<{uri}>{tag}");
        let outs = rig.udp(PEER, &request.bytes());
        assert!(lines(&outs).iter().any(|l| l.starts_with(want)), "{uri}{tag}: {:?}", lines(&outs));
    }
}

#[test]
fn strip_headers_reaches_answers_too() {
    let domains = "domains = [\"p1.example\"]";
    let mut rig = Rig::replacing(domains, &format!("{domains}\nstrip_headers = [\"X-Trust\"]"), "");
    let sent = begun(&mut rig);
    for (status, tag) in [(180, "t"), (200, "t")] {
        let rows = ["x-TRUST : yes".to_string(), "X-Other: 1".to_string()];
        let outs = rig.udp(I1, &reply(&sent.msg, status, tag, &rows, b""));
        assert_eq!(outs[0].msg.status(), status);
        assert_eq!((outs[0].msg.get("x-trust"), outs[0].msg.get("x-other")), (None, Some("1")));
    }
}

#[test]
fn calls_are_counted_by_caller_and_only_their_own_bye_ends_the_count() {
    let domains = "domains = [\"p1.example\"]";
    let mut rig = Rig::replacing(domains, &format!("{domains}\nmax_calls = 2"), "");
    let mut answers = Vec::new();
    for n in 1..=3 {
        let mut request = Request::new("INVITE", "sip:bob@p1.example", CORE, &format!("c{n}"), "call-1");
        request.from = format!("<sip:alice@example.com>;tag=caller{n}");
        let outs = rig.udp(CORE, &request.bytes());
        if n == 3 {
            assert_eq!(lines(&outs), ["480 10.0.1.1:5060"], "one Call-ID, but the third call of a full peer");
            break;
        }
        let sent = outs.iter().find(|o| o.line().starts_with("INVITE")).unwrap().clone();
        let outs = rig.udp(I1, &reply(&sent.msg, 200, &format!("callee{n}"), &contact(), b""));
        answers.push(outs[0].msg.clone());
    }
    assert_eq!(rig.shard.calls(), 2);
    for (callee, status, left) in [("nobody", 481, 2), ("callee1", 200, 1)] {
        let branch = format!("b-{callee}");
        let mut bye = Request::new("BYE", "sip:bob@198.51.100.11:5060", CORE, &branch, "call-1");
        bye.routes = answers[0].values("record-route").iter().rev().map(|r| r.to_string()).collect();
        bye.from = "<sip:alice@example.com>;tag=caller1".into();
        bye.to = format!("<sip:bob@p1.example>;tag={callee}");
        let outs = rig.udp(CORE, &bye.bytes());
        let sent = outs.iter().find(|o| o.line().starts_with("BYE")).unwrap().clone();
        rig.udp(I1, &reply(&sent.msg, status, callee, &[], b""));
        assert_eq!(rig.shard.calls(), left, "after a BYE to {callee}");
    }
}

#[test]
fn the_record_of_a_large_request_keeps_only_its_words() {
    let mut rig = Rig::new();
    let uri = format!("sip:{}@p1.example", "u".repeat(4000));
    let mut request = Request::new("OPTIONS", &uri, CORE, "large", "call-large");
    request.extra.push(format!("X-Pad: {}", "p".repeat(8000)));
    let outs = rig.udp(CORE, &request.bytes());
    assert_eq!(outs[0].msg.uri(), uri, "what is forwarded is whole");
    let records = rig.shard.records(b"call-large");
    assert_eq!(records.len(), 1);
    assert_eq!(records[0].uri(), &uri.as_bytes()[..512]);
    assert_eq!(records[0].call_id(), b"call-large");
}
