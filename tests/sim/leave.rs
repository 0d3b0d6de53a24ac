//! One process of a node takes over from another: every datagram comes to the old one first.

use sbe::flow::{ListenerId, Transport};
use sbe::shard::Update;

use crate::basics::{begun, contact, invite};
use crate::msg::{Msg, Request, reply};
use crate::rig::{CORE, Out, Rig, lines};

const I1: &str = "198.51.100.11:5060";

/// Both processes, with the same clock.
struct Both {
    old: Rig,
    new: Rig,
}

impl Both {
    fn new() -> Self {
        Self { old: Rig::new(), new: Rig::successor() }
    }

    fn leave(&mut self) {
        assert!(self.old.update(Update::Leave(true)).is_empty());
    }

    /// A datagram: what each of them sends then.
    fn udp(&mut self, from: &str, bytes: &[u8]) -> (Vec<String>, Vec<String>) {
        let (old, new) = self.udp_whole(from, bytes);
        (lines(&old), lines(&new))
    }

    fn udp_whole(&mut self, from: &str, bytes: &[u8]) -> (Vec<Out>, Vec<Out>) {
        let old = self.old.udp(from, bytes);
        let mut new = Vec::new();
        for passed in std::mem::take(&mut self.old.passed) {
            assert_eq!((passed.remote.to_string().as_str(), &passed.bytes[..]), (from, bytes));
            let core = from.starts_with("10.");
            assert_eq!(passed.listener, ListenerId(u16::from(!core)));
            assert_eq!(passed.local.to_string(), if core { "10.0.0.1:5060" } else { "192.0.2.10:5060" });
            new.extend(self.new.udp(from, &passed.bytes));
        }
        (old, new)
    }

    fn pass(&mut self, millis: u64) -> Vec<String> {
        let mut sent = self.old.pass(millis);
        sent.extend(self.new.pass(millis));
        sent.iter().map(|(_, out)| out.line()).collect()
    }
}

fn strings(lines: &[&str]) -> Vec<String> {
    lines.iter().map(|l| (*l).to_owned()).collect()
}

/// A request within the dialog that `ok` has made.
fn within(ok: &Msg, method: &str, branch: &str, cseq: u32) -> Vec<u8> {
    let mut request = Request::new(method, "sip:bob@198.51.100.11:5060", CORE, branch, "call-1");
    request.routes = ok.values("record-route").into_iter().rev().collect();
    request.to = ok.get("to").unwrap().to_string();
    request.cseq = cseq;
    request.bytes()
}

#[test]
fn a_call_begun_before_goes_on_there_and_its_dialog_goes_on_in_the_successor() {
    let mut both = Both::new();
    let sent = begun(&mut both.old);
    both.leave();
    // Repeated, it is still the same transaction; so are the answers to it.
    assert_eq!(both.udp(CORE, &invite().bytes()), (strings(&["100 10.0.1.1:5060"]), vec![]));
    let ringing = reply(&sent.msg, 180, "t1", &[], b"");
    assert_eq!(both.udp(I1, &ringing), (strings(&["180 10.0.1.1:5060"]), vec![]));
    let (old, new) = both.udp_whole(I1, &reply(&sent.msg, 200, "t1", &contact(), b""));
    assert_eq!((lines(&old), new.len()), (strings(&["200 10.0.1.1:5060"]), 0));
    let ok = old[0].msg.clone();
    // What follows are transactions of their own.
    let to_peer = |method: &str| strings(&[&format!("{method} {I1}")]);
    assert_eq!(both.udp(CORE, &within(&ok, "ACK", "u2", 1)), (vec![], to_peer("ACK")));
    let bye = within(&ok, "BYE", "u3", 2);
    let (old, new) = both.udp_whole(CORE, &bye);
    assert_eq!((old.len(), lines(&new)), (0, to_peer("BYE")));
    let done = reply(&new[0].msg, 200, "t1", &[], b"");
    assert_eq!(both.udp(I1, &done), (vec![], strings(&["200 10.0.1.1:5060"])));
    assert_eq!(both.udp(CORE, &bye), (vec![], strings(&["200 10.0.1.1:5060"])), "a repeated BYE");
    // A 200 that was lost comes again, and is the old one's.
    let again = both.udp(I1, &reply(&sent.msg, 200, "t1", &contact(), b""));
    assert_eq!(again, (strings(&["200 10.0.1.1:5060"]), vec![]));
    // After 64*T1 nothing is left, and it may go.
    assert!(both.pass(32_001).is_empty());
    assert_eq!((both.old.shard.contexts(), both.old.shard.open()), (0, 0));
}

#[test]
fn a_call_begun_after_is_the_successors_alone() {
    let mut both = Both::new();
    both.leave();
    let (old, new) = both.udp_whole(CORE, &invite().bytes());
    assert_eq!(old.len(), 0);
    assert_eq!(lines(&new), ["100 10.0.1.1:5060", "INVITE 198.51.100.11:5060"]);
    let ok = reply(&new[1].msg, 200, "t1", &contact(), b"");
    assert_eq!(both.udp(I1, &ok), (vec![], strings(&["200 10.0.1.1:5060"])));
    assert_eq!((both.old.shard.contexts(), both.new.shard.contexts()), (0, 1));
}

#[test]
fn a_cancel_and_the_ack_for_a_failure_stay_with_the_invite() {
    for begun_before in [true, false] {
        let mut both = Both::new();
        if !begun_before {
            both.leave();
        }
        let (mut old, mut new) = both.udp_whole(CORE, &invite().bytes());
        both.leave();
        let sent = if begun_before { old.remove(1) } else { new.remove(1) };
        let whose = |lines: &[&str]| match begun_before {
            true => (strings(lines), vec![]),
            false => (vec![], strings(lines)),
        };
        let ringing = reply(&sent.msg, 180, "t1", &[], b"");
        assert_eq!(both.udp(I1, &ringing), whose(&["180 10.0.1.1:5060"]));
        let mut cancel = invite();
        cancel.method = "CANCEL".into();
        cancel.extra.clear();
        cancel.body.clear();
        let sent_on = ["200 10.0.1.1:5060", "CANCEL 198.51.100.11:5060"];
        assert_eq!(both.udp(CORE, &cancel.bytes()), whose(&sent_on));
        let ended = reply(&sent.msg, 487, "t1", &[], b"");
        assert_eq!(both.udp(I1, &ended), whose(&["ACK 198.51.100.11:5060", "487 10.0.1.1:5060"]));
        let mut ack = invite();
        ack.method = "ACK".into();
        ack.to.push_str(";tag=t1");
        ack.extra.clear();
        ack.body.clear();
        assert_eq!(both.udp(CORE, &ack.bytes()), whose(&[]));
        // The 487 is not sent again: the ACK has met its transaction.
        let later = both.pass(4_000);
        assert!(!later.contains(&"487 10.0.1.1:5060".to_owned()), "{later:?}");
    }
}

#[test]
fn failover_goes_on_in_the_process_that_began_it() {
    let mut both = Both::new();
    let sent = begun(&mut both.old);
    both.leave();
    let (old, new) = both.udp_whole(I1, &reply(&sent.msg, 503, "t1", &[], b""));
    assert_eq!(
        (lines(&old), new.len()),
        (strings(&["ACK 198.51.100.11:5060", "INVITE 198.51.100.12:5060"]), 0)
    );
    let ok = reply(&old[1].msg, 200, "t2", &contact(), b"");
    assert_eq!(both.udp("198.51.100.12:5060", &ok), (strings(&["200 10.0.1.1:5060"]), vec![]));
}

#[test]
fn connections_are_not_shared_so_what_they_bring_is_served_until_they_end() {
    let mut both = Both::new();
    both.leave();
    let mut options = Request::new("OPTIONS", "sip:example.com", "198.51.100.200:4000", "o1", "opt-1");
    options.vias = vec!["SIP/2.0/TCP 198.51.100.200:4000;branch=z9hG4bKo1".into()];
    let outs = both.old.tcp("198.51.100.200:4000", 1, &options.bytes());
    assert_eq!(
        outs.iter().map(|o| (o.msg.status(), o.transport)).collect::<Vec<_>>(),
        [(200, Transport::Tcp)]
    );
    assert!(both.old.passed.is_empty());
}

#[test]
fn if_nobody_takes_over_after_all_new_calls_are_served_again() {
    let mut both = Both::new();
    both.leave();
    assert!(both.old.update(Update::Leave(false)).is_empty());
    begun(&mut both.old);
    assert!(both.old.passed.is_empty());
}

#[test]
fn what_cannot_be_read_is_dropped_here_and_nothing_is_passed_on_before() {
    let mut both = Both::new();
    begun(&mut both.old);
    assert!(both.old.passed.is_empty());
    both.leave();
    assert_eq!(both.udp(CORE, b"\r\n\r\n"), (vec![], vec![]));
    assert_eq!(both.udp(CORE, b"INVITE"), (vec![], vec![]));
    // A stranger is one to the successor too.
    let stranger = Request::new("INVITE", "sip:bob@peer-a.example.net", "192.0.2.250:5060", "x", "x");
    assert_eq!(both.udp("192.0.2.250:5060", &stranger.bytes()), (vec![], vec![]));
    assert_eq!(
        (both.old.shard.stats().dropped.get("stranger"), both.new.shard.stats().dropped["stranger"]),
        (None, 1)
    );
}
