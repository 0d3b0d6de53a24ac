//! A shard whose messages wait too long: what it refuses, what it never refuses, and what is left of it.

use std::time::Duration;

use sbe::shard::{Event, Input};

use crate::basics::invite;
use crate::msg::{Request, reply};
use crate::rig::{CORE, Out, Rig, lines};

const I1: &str = "198.51.100.11:5060";

/// Tells the shard for half a second that messages wait ever longer.
fn overload(rig: &mut Rig) {
    for n in 0..50 {
        rig.pass(10);
        rig.input(Input::Waited { delay: Duration::from_millis(25 + 4 * n), messages: 32 });
    }
    assert!(rig.shard.overload(rig.now).shedding);
}

/// Keeps the queue long.
fn still(rig: &mut Rig) {
    rig.pass(20);
    rig.input(Input::Waited { delay: Duration::from_millis(300), messages: 32 });
}

fn numbered(n: usize) -> Request {
    let mut r = invite();
    r.vias = vec![format!("SIP/2.0/UDP {CORE};rport;branch=z9hG4bKn{n}")];
    r.call_id = format!("n{n}");
    r
}

/// Offers new calls until one is refused.
fn refused(rig: &mut Rig) -> (Request, Out) {
    for n in 0..100 {
        let request = numbered(n);
        let outs = rig.udp(CORE, &request.bytes());
        if outs[0].msg.status() == 503 {
            assert_eq!(outs.len(), 1);
            return (request, outs[0].clone());
        }
    }
    panic!("nothing was refused");
}

#[test]
fn a_refused_call_gets_503_with_retry_after_and_leaves_nothing() {
    let mut rig = Rig::new();
    overload(&mut rig);
    let before = rig.shard.contexts();
    let (request, answer) = refused(&mut rig);
    let contexts = rig.shard.contexts();
    let seconds: u64 = answer.msg.get("retry-after").and_then(|v| v.parse().ok()).expect("a Retry-After");
    assert!((1..=10).contains(&seconds), "{seconds}");
    assert!(answer.msg.get("to").is_some_and(|to| to.contains(";tag=sbe-")));
    assert!(contexts - before <= 99, "no transaction for it");
    assert!(rig.shard.records(request.call_id.as_bytes()).is_empty(), "no record");
    assert_eq!(rig.shard.stats().shed.values().sum::<u64>(), 1);
    assert!(rig.events.iter().any(|e| matches!(e, Event::Overload { begins: true, .. })));
    assert!(!rig.events.iter().any(|e| matches!(e, Event::Rejected { .. } | Event::Health(..))));
    // Its retransmissions are met with silence, and so is its ACK.
    assert!(rig.udp(CORE, &request.bytes()).is_empty());
    let mut ack = request.clone();
    ack.method = "ACK".into();
    ack.to = answer.msg.get("to").unwrap().to_owned();
    assert!(rig.udp(CORE, &ack.bytes()).is_empty());
    let dropped = &rig.shard.stats().dropped;
    assert_eq!((dropped.get("shed_again"), dropped.get("shed_ack")), (Some(&1), Some(&1)));
    assert_eq!(rig.shard.contexts(), contexts);
}

#[test]
fn after_the_silence_a_refused_call_is_judged_anew() {
    let mut rig = Rig::new();
    overload(&mut rig);
    let (request, _) = refused(&mut rig);
    for _ in 0..220 {
        still(&mut rig);
    }
    assert_eq!(lines(&rig.udp(CORE, &request.bytes())), ["503 10.0.1.1:5060"]);
}

#[test]
fn calls_under_way_are_served_whatever_the_load() {
    let mut rig = Rig::new();
    let sent = crate::basics::begun(&mut rig);
    assert_eq!(rig.udp(CORE, &numbered(500).bytes()).len(), 2);
    overload(&mut rig);
    for _ in 0..50 {
        still(&mut rig);
    }
    assert!(rig.shard.overload(rig.now).admit < 0.01, "all new calls are refused");
    let outs = rig.udp(I1, &reply(&sent.msg, 200, "t1", &crate::basics::contact(), b""));
    assert_eq!(lines(&outs), ["200 10.0.1.1:5060"]);
    let routes: Vec<String> = outs[0].msg.values("record-route").into_iter().rev().collect();
    // A retransmission of what was admitted, and a CANCEL.
    assert_eq!(lines(&rig.udp(CORE, &numbered(500).bytes())), ["100 10.0.1.1:5060"]);
    let mut cancel = numbered(500);
    cancel.method = "CANCEL".into();
    let outs = rig.udp(CORE, &cancel.bytes());
    assert_eq!(lines(&outs)[0], "200 10.0.1.1:5060");
    for (method, uri) in [("ACK", "sip:bob@198.51.100.11:5060"), ("BYE", "sip:bob@198.51.100.11:5060")] {
        let mut r = Request::new(method, uri, CORE, &format!("d{method}"), "call-1");
        r.to.push_str(";tag=t1");
        r.routes = routes.clone();
        let outs = rig.udp(CORE, &r.bytes());
        assert_eq!(lines(&outs), [format!("{method} 198.51.100.11:5060")]);
    }
}

#[test]
fn emergency_calls_are_served_whatever_the_load() {
    let mut rig = Rig::new();
    overload(&mut rig);
    for _ in 0..50 {
        still(&mut rig);
    }
    assert_eq!(rig.udp(CORE, &numbered(1).bytes())[0].msg.status(), 503);
    for (n, row) in [(2, "Priority: emergency"), (3, "Resource-Priority: ets.0")] {
        let mut r = numbered(n);
        r.extra.push(row.into());
        assert_eq!(rig.udp(CORE, &r.bytes())[0].msg.status(), 100, "{row}");
    }
    let mut r = numbered(4);
    r.uri = "sip:sos@p1.example".into();
    assert_eq!(rig.udp(CORE, &r.bytes())[0].msg.status(), 100);
}

#[test]
fn when_the_queue_is_short_again_everything_is_admitted_and_the_memory_given_back() {
    let mut rig = Rig::new();
    overload(&mut rig);
    refused(&mut rig);
    for _ in 0..250 {
        rig.pass(10);
        rig.input(Input::Waited { delay: Duration::from_millis(1), messages: 32 });
    }
    let state = rig.shard.overload(rig.now);
    assert!(!state.shedding && state.admit >= 1.0);
    assert!(rig.events.iter().any(|e| matches!(e, Event::Overload { begins: false, .. })));
    let outs = rig.udp(CORE, &numbered(700).bytes());
    assert_eq!(lines(&outs)[0], "100 10.0.1.1:5060");
    rig.pass(200_000);
}
