//! A reload removes a peer that has calls: these go on to their end, and nothing else.

use std::sync::Arc;

use sbe::peering::Ledger;
use sbe::proxy::Policy;
use sbe::shard::Update;

use crate::basics::{begun, contact, invite};
use crate::msg::{Msg, Request, bracketed, reply};
use crate::rig::{CORE, PEER, Rig, lines};

const I1: &str = "198.51.100.11:5060";

/// A call to the peer, up to its 200.
fn established(rig: &mut Rig) -> Msg {
    let sent = begun(rig);
    let outs = rig.udp(I1, &reply(&sent.msg, 200, "t1", &contact(), b""));
    outs[0].msg.clone()
}

/// The policy in force without that peer.
fn without_peer(rig: &Rig) -> Policy {
    let mut config = (*rig.policy.config).clone();
    config.peers.retain(|p| p.name != "p1");
    let ledger: &Arc<Ledger> = &rig.ledger;
    let policy = Policy::new(Arc::new(config), Arc::clone(ledger), [7; 16], Some(&rig.policy));
    let has_calls = |peer| ledger.calls(peer) > 0;
    policy.with_departed(&rig.policy, rig.now, has_calls)
}

fn put(rig: &mut Rig, policy: Policy) {
    rig.policy = Arc::new(policy);
    let update = Update::Policy(Arc::clone(&rig.policy));
    assert!(rig.update(update).is_empty());
}

/// A request of the peer within the call.
fn from_peer(ok: &Msg, method: &str, branch: &str) -> Request {
    let mut request = Request::new(method, "sip:alice@10.0.1.1:5060", I1, branch, "call-1");
    request.routes = ok.values("record-route");
    request.from = ok.get("to").unwrap().to_string();
    request.to = ok.get("from").unwrap().to_string();
    request.cseq = 7;
    request
}

#[test]
fn calls_of_a_removed_peer_end_from_either_side() {
    for by_peer in [true, false] {
        let mut rig = Rig::new();
        let ok = established(&mut rig);
        let policy = without_peer(&rig);
        put(&mut rig, policy);
        if by_peer {
            let outs = rig.udp(I1, &from_peer(&ok, "BYE", "b1").bytes());
            assert_eq!(lines(&outs), ["BYE 10.0.1.1:5060"]);
            let outs = rig.udp(CORE, &reply(&outs[0].msg, 200, "t1", &[], b""));
            assert_eq!(lines(&outs), ["200 198.51.100.11:5060"]);
        } else {
            let mut bye = Request::new("BYE", "sip:bob@198.51.100.11:5060", CORE, "b1", "call-1");
            bye.routes = ok.values("record-route").into_iter().rev().collect();
            [bye.from, bye.to] = ["from", "to"].map(|end| ok.get(end).unwrap().to_string());
            let outs = rig.udp(CORE, &bye.bytes());
            assert_eq!(lines(&outs), ["BYE 198.51.100.11:5060"]);
            let outs = rig.udp(I1, &reply(&outs[0].msg, 200, "t1", &[], b""));
            assert_eq!(lines(&outs), ["200 10.0.1.1:5060"]);
        }
        assert_eq!(rig.shard.calls(), 0);
        // Its last call has ended: from now on it is a stranger.
        let ledger = Arc::clone(&rig.ledger);
        let policy = rig.policy.without_departed(rig.now, |peer| ledger.calls(peer) > 0).expect("to forget");
        put(&mut rig, policy);
        assert!(rig.udp(I1, &from_peer(&ok, "BYE", "b2").bytes()).is_empty());
        assert_eq!(rig.shard.stats().dropped["stranger"], 1);
        rig.expect_empty();
    }
}

#[test]
fn a_removed_peer_begins_nothing_new_and_cannot_pretend_to_be_in_a_dialog() {
    let mut rig = Rig::new();
    let ok = established(&mut rig);
    let policy = without_peer(&rig);
    put(&mut rig, policy);
    let refused = ["403 198.51.100.11:5060"];
    let new = Request::new("INVITE", "sip:alice@example.com", I1, "n1", "call-2");
    assert_eq!(lines(&rig.udp(I1, &new.bytes())), ["100 198.51.100.11:5060", "403 198.51.100.11:5060"][1..]);
    let options = Request::new("OPTIONS", "sip:example.com", I1, "n2", "call-3");
    assert_eq!(lines(&rig.udp(I1, &options.bytes())), refused);
    // The Routes of its call under another Call-ID, and without what proves them.
    let mut other = from_peer(&ok, "BYE", "n3");
    other.call_id = "call-4".into();
    assert_eq!(lines(&rig.udp(I1, &other.bytes())), refused);
    let mut bare = from_peer(&ok, "BYE", "n4");
    bare.routes = ok
        .values("record-route")
        .iter()
        .filter_map(|r| bracketed(r))
        .map(|uri| {
            let (plain, _) = uri.split_once(";sbe=").expect("a token");
            format!("<{plain}>")
        })
        .collect();
    assert_eq!(lines(&rig.udp(I1, &bare.bytes())), refused);
    // Nor can anybody call it.
    let mut call = invite();
    call.call_id = "call-5".into();
    call.vias = vec![format!("SIP/2.0/UDP {CORE};rport;branch=z9hG4bKn5")];
    assert_eq!(lines(&rig.udp(CORE, &call.bytes())), ["403 10.0.1.1:5060"]);
    // Others of the same prefix are no better off.
    let from = Request::new("OPTIONS", "sip:example.com", PEER, "n6", "call-6");
    assert_eq!(lines(&rig.udp(PEER, &from.bytes())), ["403 198.51.100.200:5060"]);
}

#[test]
fn a_token_is_worth_nothing_once_a_reload_has_changed_the_secret_though_its_call_is_known() {
    let mut rig = Rig::new();
    let ok = established(&mut rig);
    // An address that belongs to nobody: the token alone lets the request through.
    let within = |method: &str, branch: &str| {
        let mut request = Request::new(method, "sip:bob@192.0.2.99:5060", CORE, branch, "call-1");
        request.routes = ok.values("record-route").into_iter().rev().collect();
        [request.from, request.to] = ["from", "to"].map(|end| ok.get(end).unwrap().to_string());
        request.bytes()
    };
    assert_eq!(lines(&rig.udp(CORE, &within("INFO", "b1"))), ["INFO 192.0.2.99:5060"]);
    let (config, ledger) = (Arc::clone(&rig.policy.config), Arc::clone(&rig.ledger));
    let policy = Policy::new(config, ledger, [8; 16], Some(&rig.policy));
    put(&mut rig, policy);
    assert_eq!(lines(&rig.udp(CORE, &within("INFO", "b2"))), ["403 10.0.1.1:5060"]);
    assert_eq!(rig.shard.calls(), 1, "the call is known still");
}
