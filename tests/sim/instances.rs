//! Limits of single instances: what one may not get goes to the next.

use crate::msg::{Request, reply};
use crate::rig::{CORE, Out, Rig, lines};

const DOMAINS: &str = "domains = [\"p1.example\"]";

fn rig(limits: &str) -> Rig {
    Rig::replacing(DOMAINS, &format!("{DOMAINS}\n{limits}"), "")
}

/// A call of this number; what comes of it besides the 100.
fn call(rig: &mut Rig, n: usize) -> Out {
    let id = format!("call-{n}");
    let outs = rig.udp(CORE, &Request::new("INVITE", "sip:bob@p1.example", CORE, &id, &id).bytes());
    outs.last().unwrap().clone()
}

/// The last part of an instance's address.
fn which(out: &Out) -> String {
    out.line().replace("INVITE 198.51.100.", "").replace(":5060", "")
}

/// Answers a call with a 200 and gives its BYE.
fn answered(rig: &mut Rig, sent: &Out) -> Request {
    let from = sent.to.to_string();
    let contact = vec![format!("Contact: <sip:bob@{from}>")];
    let outs = rig.udp(&from, &reply(&sent.msg, 200, "t", &contact, b""));
    let ok = outs[0].msg.clone();
    let mut bye =
        Request::new("BYE", &format!("sip:bob@{from}"), CORE, &format!("b{}", ok.call_id()), ok.call_id());
    bye.routes = ok.values("record-route").into_iter().rev().collect();
    [bye.from, bye.to] = ["from", "to"].map(|end| ok.get(end).unwrap().to_string());
    bye.cseq = 2;
    bye
}

fn hang_up(rig: &mut Rig, bye: &Request) {
    let outs = rig.udp(CORE, &bye.bytes());
    rig.udp(&outs[0].to.to_string(), &reply(&outs[0].msg, 200, "", &[], b""));
}

#[test]
fn calls_beyond_what_one_instance_may_have_go_to_the_next_until_all_are_full() {
    let mut rig = rig("max_calls_per_instance = 2");
    let calls: Vec<Out> = (0..6).map(|n| call(&mut rig, n)).collect();
    let at: Vec<String> = calls.iter().map(which).collect();
    assert_eq!(at, ["11", "11", "12", "12", "13", "13"]);
    assert_eq!(call(&mut rig, 6).line(), "480 10.0.1.1:5060");
    let record = rig.shard.records(b"call-6");
    assert_eq!(record[0].reason, "max_calls_per_instance");
    // A place is free again after a failure, and after a BYE.
    let busy = reply(&calls[2].msg, 486, "t", &[], b"");
    rig.udp("198.51.100.12:5060", &busy);
    assert_eq!(which(&call(&mut rig, 7)), "12");
    let bye = answered(&mut rig, &calls[0]);
    assert_eq!(call(&mut rig, 8).line(), "480 10.0.1.1:5060", "a call that is answered goes on");
    hang_up(&mut rig, &bye);
    assert_eq!(which(&call(&mut rig, 9)), "11");
}

#[test]
fn a_call_that_moves_on_frees_the_instance_it_leaves_and_counts_at_the_one_it_comes_to() {
    let mut rig = rig("max_calls_per_instance = 1");
    let first = call(&mut rig, 0);
    let outs = rig.udp("198.51.100.11:5060", &reply(&first.msg, 503, "t", &[], b""));
    assert_eq!(lines(&outs), ["ACK 198.51.100.11:5060", "INVITE 198.51.100.12:5060"]);
    assert_eq!(which(&call(&mut rig, 1)), "11", "it is free");
    assert_eq!(which(&call(&mut rig, 2)), "13", "the first two have a call each");
}

#[test]
fn new_calls_beyond_the_rate_of_one_instance_go_to_the_next() {
    let mut rig = rig("max_rate_per_instance = 3");
    let at: Vec<String> = (0..9).map(|n| which(&call(&mut rig, n))).collect();
    // One second's worth and one may come at once.
    assert_eq!(at, ["11", "11", "11", "11", "12", "12", "12", "12", "13"]);
}

#[test]
fn what_belongs_to_a_call_and_what_is_none_is_not_limited() {
    let mut rig = rig("max_calls_per_instance = 1\nmax_rate_per_instance = 1");
    let sent = call(&mut rig, 0);
    let bye = answered(&mut rig, &sent);
    let mut again = bye.clone();
    again.method = "INVITE".into();
    for n in 0..3 {
        again.vias = vec![format!("SIP/2.0/UDP {CORE};rport;branch=z9hG4bKre{n}")];
        again.cseq = 3 + n;
        let outs = rig.udp(CORE, &again.bytes());
        assert_eq!(outs.last().unwrap().line(), "INVITE 198.51.100.11:5060");
        let id = format!("m{n}");
        let outs = rig.udp(CORE, &Request::new("MESSAGE", "sip:bob@p1.example", CORE, &id, &id).bytes());
        assert_eq!(lines(&outs), ["MESSAGE 198.51.100.11:5060"]);
    }
}
