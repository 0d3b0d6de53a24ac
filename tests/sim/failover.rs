//! Straight lines of RFC 3263 §4.3: from one instance to the next, and when not.

use std::time::Duration;

use sbe::flow::{ConnId, SendFailure, Transport};
use sbe::location::{Instance, Observation, Standing};
use sbe::shard::{Event, Input};

use crate::basics::{begun, contact, invite};
use crate::msg::{Request, reply};
use crate::rig::{CORE, Rig, lines, timed};

const I1: &str = "198.51.100.11:5060";
const I2: &str = "198.51.100.12:5060";
const I3: &str = "198.51.100.13:5060";

fn standing(rig: &Rig, addr: &str) -> Standing {
    rig.shard.standing(rig.now, &Instance { transport: Transport::Udp, addr: addr.parse().unwrap() })
}

#[test]
fn a_503_is_acknowledged_and_the_next_instance_gets_the_call_on_a_new_branch() {
    let mut rig = Rig::new();
    let first = begun(&mut rig);
    let outs = rig.udp(I1, &reply(&first.msg, 503, "t1", &[], b""));
    assert_eq!(lines(&outs), ["ACK 198.51.100.11:5060", "INVITE 198.51.100.12:5060"]);
    assert_eq!(outs[0].msg.branch(0), first.msg.branch(0));
    assert_ne!(outs[1].msg.branch(0), first.msg.branch(0));
    assert_eq!(standing(&rig, I1), Standing::Up, "nothing is remembered without Retry-After");
    let up = rig.udp(I2, &reply(&outs[1].msg, 200, "t2", &contact(), b""));
    assert_eq!(lines(&up), ["200 10.0.1.1:5060"]);
    rig.expect_empty();
}

#[test]
fn the_log_names_the_call_that_moves_on_when_no_records_are_kept() {
    let mut rig = Rig::with("\n[limits]\nrecords = 0\n");
    let first = begun(&mut rig);
    rig.udp(I1, &reply(&first.msg, 503, "t1", &[], b""));
    let named: Vec<_> = rig
        .events
        .iter()
        .filter_map(|event| match event {
            Event::FailedOver { call_id, .. } => Some(call_id.clone()),
            _ => None,
        })
        .collect();
    assert_eq!(named, ["call-1"]);
}

#[test]
fn a_retry_after_is_honoured_by_the_next_calls() {
    let mut rig = Rig::new();
    let first = begun(&mut rig);
    rig.udp(I1, &reply(&first.msg, 503, "t1", &["Retry-After: 30".to_string()], b""));
    let mut second = invite();
    second.vias = vec!["SIP/2.0/UDP 10.0.1.1:5060;rport;branch=z9hG4bKw1".into()];
    second.call_id = "call-2".into();
    assert_eq!(rig.udp(CORE, &second.bytes())[1].line(), "INVITE 198.51.100.12:5060");
    rig.pass(31_000);
    let mut third = second;
    third.vias = vec!["SIP/2.0/UDP 10.0.1.1:5060;rport;branch=z9hG4bKw2".into()];
    third.call_id = "call-3".into();
    assert_eq!(rig.udp(CORE, &third.bytes())[1].line(), "INVITE 198.51.100.11:5060");
}

#[test]
fn all_servers_unavailable_becomes_a_500_upstream() {
    let mut rig = Rig::new();
    let mut sent = begun(&mut rig);
    for at in [I1, I2] {
        let outs = rig.udp(at, &reply(&sent.msg, 503, "t", &[], b""));
        assert_eq!(outs.len(), 2);
        sent = outs[1].clone();
    }
    let outs = rig.udp(I3, &reply(&sent.msg, 503, "t", &[], b""));
    assert_eq!(lines(&outs), ["ACK 198.51.100.13:5060", "500 10.0.1.1:5060"]);
    rig.expect_empty();
}

#[test]
fn a_silent_instance_is_left_after_try_timeout_and_no_longer_sent_to() {
    let mut rig = Rig::new();
    begun(&mut rig);
    let outs = rig.pass(6_000);
    assert_eq!(
        timed(&outs),
        [
            "500 INVITE 198.51.100.11:5060",
            "1500 INVITE 198.51.100.11:5060",
            "3000 INVITE 198.51.100.12:5060",
            "3500 INVITE 198.51.100.12:5060",
            "4500 INVITE 198.51.100.12:5060",
            "6000 INVITE 198.51.100.13:5060",
        ]
    );
    assert!(matches!(standing(&rig, I1), Standing::Trial), "two seconds of hold-down are over");
    assert!(matches!(standing(&rig, I2), Standing::Down { .. }));
    let rest = rig.pass(60_000);
    let last = rest.last().unwrap();
    assert!(rest.iter().any(|(at, o)| *at == 32_000 && o.msg.status() == 408), "{:?}", timed(&rest));
    assert!(*at_of(last) > 32_000, "the 408 is repeated");
    rig.expect_empty();
}

fn at_of(entry: &(u64, crate::rig::Out)) -> &u64 {
    &entry.0
}

#[test]
fn a_late_2xx_of_an_abandoned_attempt_goes_up_and_the_other_one_is_cancelled() {
    let mut rig = Rig::new();
    let first = begun(&mut rig);
    let second = rig.pass(3_000).pop().unwrap().1;
    rig.udp(I2, &reply(&second.msg, 180, "t2", &[], b""));
    let outs = rig.udp(I1, &reply(&first.msg, 200, "t1", &contact(), b""));
    assert_eq!(lines(&outs), ["CANCEL 198.51.100.12:5060", "200 10.0.1.1:5060"]);
    let outs = rig.udp(I2, &reply(&second.msg, 487, "t2", &[], b""));
    assert_eq!(lines(&outs), ["ACK 198.51.100.12:5060"], "no second final");
    assert_eq!(standing(&rig, I1), Standing::Up, "a late answer clears it");
    rig.expect_empty();
}

#[test]
fn a_late_2xx_after_the_final_still_goes_up() {
    let mut rig = Rig::new();
    let first = begun(&mut rig);
    let second = rig.pass(3_000).pop().unwrap().1;
    let busy = rig.udp(I2, &reply(&second.msg, 486, "t2", &[], b""));
    assert_eq!(lines(&busy), ["ACK 198.51.100.12:5060", "486 10.0.1.1:5060"]);
    let outs = rig.udp(I1, &reply(&first.msg, 200, "t1", &contact(), b""));
    assert_eq!(lines(&outs), ["200 10.0.1.1:5060"]);
    rig.expect_empty();
}

#[test]
fn a_late_provisional_of_an_abandoned_attempt_is_cancelled_whoever_cancels_else() {
    for cancelled in [false, true] {
        let mut rig = Rig::new();
        let first = begun(&mut rig);
        rig.pass(3_000);
        if cancelled {
            let mut cancel = invite();
            cancel.method = "CANCEL".into();
            assert_eq!(lines(&rig.udp(CORE, &cancel.bytes())), ["200 10.0.1.1:5060"]);
        }
        let outs = rig.udp(I1, &reply(&first.msg, 180, "t1", &[], b""));
        assert_eq!(lines(&outs), ["CANCEL 198.51.100.11:5060"], "cancelled: {cancelled}");
        rig.expect_empty();
    }
}

#[test]
fn an_icmp_error_moves_the_call_at_once_and_is_matched_by_the_branch_it_quotes() {
    let mut rig = Rig::new();
    let first = begun(&mut rig);
    let quoted = &first.msg.raw[..300];
    let other = rig.input(Input::Undeliverable { to: I2.parse().unwrap(), payload: quoted });
    assert!(other.is_empty(), "it went to another place");
    let outs = rig.input(Input::Undeliverable { to: I1.parse().unwrap(), payload: quoted });
    assert_eq!(lines(&outs), ["INVITE 198.51.100.12:5060"]);
    assert!(matches!(standing(&rig, I1), Standing::Down { .. }));
    rig.expect_empty();
}

#[test]
fn after_ringing_neither_a_503_nor_an_icmp_error_moves_the_call() {
    let mut rig = Rig::new();
    let first = begun(&mut rig);
    rig.udp(I1, &reply(&first.msg, 180, "t1", &[], b""));
    let outs = rig.udp(I1, &reply(&first.msg, 503, "t1", &[], b""));
    assert_eq!(lines(&outs), ["ACK 198.51.100.11:5060", "500 10.0.1.1:5060"]);

    let mut rig = Rig::with("[sip]\ntimer_c = \"200s\"\n");
    let first = begun(&mut rig);
    rig.udp(I1, &reply(&first.msg, 180, "t1", &[], b""));
    let cancel = rig.pass(200_000).pop().unwrap().1;
    assert_eq!(cancel.line(), "CANCEL 198.51.100.11:5060");
    let outs = rig.input(Input::Undeliverable { to: I1.parse().unwrap(), payload: &cancel.msg.raw });
    assert!(outs.iter().all(|o| o.msg.method() != "INVITE" || o.msg.status() > 0), "{:?}", lines(&outs));
    rig.expect_empty();
}

#[test]
fn a_failed_connect_and_a_lost_connection_move_the_call_but_not_once_it_rings() {
    let mut rig = Rig::new();
    let request = Request::new("INVITE", "sip:x@p2.example", CORE, "s1", "call-1");
    let outs = rig.udp(CORE, &request.bytes());
    assert_eq!(lines(&outs), ["100 10.0.1.1:5060", "INVITE 203.0.113.1:5060"]);
    assert_eq!(outs[1].transport, Transport::Tcp);
    rig.input(Input::Sent { token: outs[1].token.unwrap(), conn: ConnId(7), reused: false });
    let outs = rig.input(Input::ConnectionClosed { conn: ConnId(7) });
    assert_eq!(lines(&outs), ["INVITE 203.0.113.2:5060"]);
    let second = outs[0].clone();
    rig.input(Input::Sent { token: second.token.unwrap(), conn: ConnId(8), reused: false });
    let outs = rig.tcp("203.0.113.2:5060", 8, &reply(&second.msg, 180, "t", &[], b""));
    assert_eq!(lines(&outs), ["180 10.0.1.1:5060"]);
    assert!(rig.input(Input::ConnectionClosed { conn: ConnId(8) }).is_empty());
    let outs = rig.tcp("203.0.113.2:5060", 9, &reply(&second.msg, 200, "t", &contact(), b""));
    assert_eq!(lines(&outs), ["200 10.0.1.1:5060"], "the answer came by another connection");
    rig.expect_empty();
}

#[test]
fn a_pooled_connection_found_dead_is_tried_once_more_on_a_new_one() {
    let mut rig = Rig::new();
    let request = Request::new("INVITE", "sip:x@p2.example", CORE, "s1", "call-1");
    let outs = rig.udp(CORE, &request.bytes());
    let first = outs[1].clone();
    let outs = rig.fail(first.token, SendFailure::Closed { reused: true });
    assert_eq!(lines(&outs), ["INVITE 203.0.113.1:5060"]);
    assert_ne!(outs[0].msg.branch(0), first.msg.branch(0));
    let outs = rig.fail(outs[0].token, SendFailure::Closed { reused: true });
    assert_eq!(lines(&outs), ["INVITE 203.0.113.2:5060"]);
    rig.expect_empty();
}

#[test]
fn a_non_invite_shares_one_deadline_and_gets_no_408() {
    let mut rig = Rig::new();
    let request = Request::new("MESSAGE", "sip:bob@p1.example", CORE, "s1", "call-1");
    let outs = rig.udp(CORE, &request.bytes());
    assert_eq!(lines(&outs), ["MESSAGE 198.51.100.11:5060"]);
    let outs = rig.pass(100_000);
    let tried: Vec<_> =
        outs.iter().filter(|(_, o)| o.msg.is_request()).map(|(_, o)| o.to.to_string()).collect();
    for at in [I1, I2, I3] {
        assert!(tried.iter().any(|t| t == at), "{at}");
    }
    let answers: Vec<_> =
        outs.iter().filter(|(_, o)| !o.msg.is_request()).map(|(at, o)| (*at, o.msg.status())).collect();
    assert_eq!(answers, [(3_500, 100)], "RFC 4320: a late 100, and no final");
    assert!(outs.iter().all(|(at, _)| *at <= 32_000));
    rig.expect_empty();
}

#[test]
fn what_another_shard_saw_is_avoided_here_too() {
    let mut rig = Rig::new();
    let seen = Observation::Silence { invite: true };
    let instance = Instance { transport: Transport::Udp, addr: I1.parse().unwrap() };
    rig.update(sbe::shard::Update::Health(instance, seen));
    let outs = rig.udp(CORE, &invite().bytes());
    assert_eq!(outs[1].line(), "INVITE 198.51.100.12:5060");
    rig.now += Duration::from_secs(3);
    let mut second = invite();
    second.vias = vec!["SIP/2.0/UDP 10.0.1.1:5060;rport;branch=z9hG4bKw1".into()];
    second.call_id = "call-2".into();
    assert_eq!(
        rig.udp(CORE, &second.bytes())[1].line(),
        "INVITE 198.51.100.11:5060",
        "half-open: one tries it"
    );
    second.vias = vec!["SIP/2.0/UDP 10.0.1.1:5060;rport;branch=z9hG4bKw2".into()];
    second.call_id = "call-3".into();
    assert_eq!(rig.udp(CORE, &second.bytes())[1].line(), "INVITE 198.51.100.12:5060", "and only one");
}

#[test]
fn the_last_server_of_a_party_keeps_the_call_while_the_next_party_has_none() {
    let mut rig = Rig::with("[sip]\ntry_timeout = \"1s\"\n");
    for n in 1..=3 {
        rig.zone.drop_addr(&format!("i{n}.p1.example"));
    }
    let request = Request::new("INVITE", "sip:+44123@example.com", CORE, "s1", "call-1");
    let first = rig.udp(CORE, &request.bytes())[1].clone();
    assert_eq!(first.line(), "INVITE 203.0.113.1:5060");
    let outs = rig.pass(20_000);
    assert_eq!(timed(&outs), ["1000 INVITE 203.0.113.2:5060"]);
    let outs = rig.tcp("203.0.113.2:5060", 8, &reply(&outs[0].1.msg, 200, "t", &contact(), b""));
    assert_eq!(lines(&outs), ["200 10.0.1.1:5060"]);
    rig.expect_empty();
}

#[test]
fn a_server_that_speaks_while_the_next_party_is_located_keeps_the_call() {
    let mut rig = Rig::with("[sip]\ntry_timeout = \"1s\"\n");
    rig.zone.drop_addr("t2.p2.example");
    let request = Request::new("INVITE", "sip:+44123@example.com", CORE, "s1", "call-1");
    let first = rig.udp(CORE, &request.bytes())[1].clone();
    rig.hold = true;
    assert_eq!(timed(&rig.pass(1_500)), [""; 0]);
    let outs = rig.tcp("203.0.113.1:5060", 8, &reply(&first.msg, 180, "t", &[], b""));
    assert_eq!(lines(&outs), ["180 10.0.1.1:5060"]);
    assert!(rig.release().is_empty());
    let outs = rig.tcp("203.0.113.1:5060", 8, &reply(&first.msg, 200, "t", &contact(), b""));
    assert_eq!(lines(&outs), ["200 10.0.1.1:5060"]);
    rig.expect_empty();
}

#[test]
fn a_request_that_nobody_answered_is_absorbed_until_its_sender_has_given_up() {
    let mut rig = Rig::with("[[peer]]\nname = \"quick\"\ndomains = [\"203.0.112.1\"]\nt1 = \"100ms\"\n");
    let request = Request::new("MESSAGE", "sip:bob@203.0.112.1", CORE, "s1", "call-1");
    rig.udp(CORE, &request.bytes());
    rig.pass(10_000);
    assert_eq!(rig.shard.open(), 0, "6.4 s of the peer's are over");
    let outs = rig.udp(CORE, &request.bytes());
    assert!(outs.iter().all(|o| !o.msg.is_request()), "{:?}", lines(&outs));
    rig.expect_empty();
}

#[test]
fn a_real_answer_to_a_non_invite_is_better_than_the_silence_of_another() {
    let mut rig = Rig::new();
    let request = Request::new("MESSAGE", "sip:bob@p1.example", CORE, "s1", "call-1");
    rig.udp(CORE, &request.bytes());
    let sent = |outs: Vec<(u64, crate::rig::Out)>, to: &str| {
        outs.into_iter().map(|(_, o)| o).find(|o| o.line() == format!("MESSAGE {to}")).unwrap()
    };
    let second = sent(rig.pass(3_000), I2);
    let third = rig.udp(I2, &reply(&second.msg, 503, "t", &[], b""));
    assert_eq!(lines(&third), ["MESSAGE 198.51.100.13:5060"]);
    let outs = rig.udp(I3, &reply(&third[0].msg, 503, "t", &[], b""));
    assert_eq!(lines(&outs), ["500 10.0.1.1:5060"]);
    rig.expect_empty();
}

#[test]
fn after_an_answer_a_silent_instance_is_not_asked_again() {
    let mut rig = Rig::new();
    let first = begun(&mut rig);
    rig.pass(3_000);
    let outs = rig.udp(I1, &reply(&first.msg, 200, "t1", &contact(), b""));
    assert_eq!(lines(&outs), ["200 10.0.1.1:5060"]);
    assert_eq!(timed(&rig.pass(40_000)), [""; 0]);
    rig.expect_empty();
}

#[test]
fn once_timer_c_has_run_out_no_further_instance_is_tried() {
    let config = "[sip]\ntimer_c = \"200s\"\n";
    for failure in ["icmp", "503"] {
        let mut rig = Rig::with(config);
        let first = begun(&mut rig);
        rig.udp(I1, &reply(&first.msg, 100, "", &[], b""));
        let cancel = rig.pass(200_000).pop().unwrap().1;
        assert_eq!(cancel.line(), "CANCEL 198.51.100.11:5060");
        let outs = match failure {
            "icmp" => rig.input(Input::Undeliverable { to: I1.parse().unwrap(), payload: &cancel.msg.raw }),
            _ => rig.udp(I1, &reply(&first.msg, 503, "t1", &[], b"")),
        };
        assert!(outs.iter().all(|o| !o.line().starts_with("INVITE")), "{failure}: {:?}", lines(&outs));
        rig.expect_empty();
    }
}

#[test]
fn a_late_2xx_goes_up_although_the_connection_of_its_ringing_attempt_has_gone() {
    let mut rig = Rig::with("[sip]\ntry_timeout = \"1s\"\n");
    let request = Request::new("INVITE", "sip:x@p2.example", CORE, "s1", "call-1");
    let first = rig.udp(CORE, &request.bytes())[1].clone();
    rig.input(Input::Sent { token: first.token.unwrap(), conn: ConnId(7), reused: false });
    assert_eq!(timed(&rig.pass(1_000)), ["1000 INVITE 203.0.113.2:5060"]);
    let outs = rig.tcp("203.0.113.1:5060", 7, &reply(&first.msg, 180, "t", &[], b""));
    assert_eq!(lines(&outs), ["CANCEL 203.0.113.1:5060"]);
    rig.input(Input::ConnectionClosed { conn: ConnId(7) });
    let outs = rig.tcp("203.0.113.1:5060", 9, &reply(&first.msg, 200, "t", &contact(), b""));
    assert_eq!(lines(&outs), ["200 10.0.1.1:5060"]);
    rig.expect_empty();
}

#[test]
fn a_late_answer_to_a_non_invite_ends_the_search_if_it_is_good_and_is_kept_if_not() {
    for (status, now) in [(200, true), (404, false)] {
        let mut rig = Rig::new();
        let request = Request::new("MESSAGE", "sip:bob@p1.example", CORE, "s1", "call-1");
        let first = rig.udp(CORE, &request.bytes())[0].clone();
        rig.pass(3_000);
        let outs = rig.udp(I1, &reply(&first.msg, status, "t", &[], b""));
        assert_eq!(outs.len(), usize::from(now), "{status}: {:?}", lines(&outs));
        let later = rig.pass(60_000);
        let finals: Vec<_> = later
            .iter()
            .filter(|(_, o)| o.msg.status() >= 200)
            .map(|(at, o)| (*at, o.msg.status()))
            .collect();
        assert_eq!(finals, if now { vec![] } else { vec![(29_000, 404)] });
        rig.expect_empty();
    }
}

#[test]
fn a_second_try_on_a_new_connection_stays_with_its_own_party() {
    let mut rig = Rig::with("[sip]\ntry_timeout = \"1s\"\n");
    rig.zone.drop_addr("t2.p2.example");
    let request = Request::new("INVITE", "sip:+44123@example.com", CORE, "s1", "call-1");
    let first = rig.udp(CORE, &request.bytes())[1].clone();
    rig.input(Input::Sent { token: first.token.unwrap(), conn: ConnId(7), reused: true });
    rig.hold = true;
    assert_eq!(timed(&rig.pass(1_200)), [""; 0], "the next party is being located");
    let again = rig.input(Input::ConnectionClosed { conn: ConnId(7) });
    assert_eq!(lines(&again), ["INVITE 203.0.113.1:5060"]);
    assert_eq!(again[0].msg.uri(), "sip:+44123@p2.example");
    assert!(rig.release().is_empty(), "it has its own time");
    let outs = rig.pass(1_500);
    assert_eq!(timed(&outs).first().map(String::as_str), Some("1000 INVITE 198.51.100.11:5060"));
    rig.expect_empty();
}

#[test]
fn what_is_too_large_for_every_way_is_answered_513() {
    let mut rig = Rig::new();
    let mut sent = begun(&mut rig);
    let outs = loop {
        let outs = rig.fail(sent.token, SendFailure::TooLarge);
        match outs.iter().find(|o| o.line().starts_with("INVITE")) {
            Some(next) => sent = next.clone(),
            None => break outs,
        }
    };
    assert_eq!(lines(&outs), ["513 10.0.1.1:5060"]);
    assert_eq!(standing(&rig, I1), Standing::Up, "its size says nothing of the server");
}
