//! Numbers written anew on the way to a peer and from it.

use crate::basics::contact;
use crate::msg::{Request, reply};
use crate::rig::{CORE, Out, PEER, Rig, lines};

const I1: &str = "198.51.100.11:5060";
const DOMAINS: &str = "domains = [\"p1.example\"]";

fn rig() -> Rig {
    let rules = "numbers_out = { strip = \"+\", prefix = \"00\" }\n\
                 numbers_in = [{ strip = \"00\", prefix = \"+\" }, { strip = \"0\", prefix = \"+49\" }]";
    Rig::replacing(DOMAINS, &format!("{DOMAINS}\n{rules}"), "[[route]]\nprefix = \"+49\"\npeers = [\"p1\"]\n")
}

fn asked(rig: &mut Rig, from: &str, uri: &str, id: &str) -> Vec<Out> {
    rig.udp(from, &Request::new("INVITE", uri, from, id, id).bytes())
}

#[test]
fn a_number_goes_to_a_peer_as_that_peer_writes_it() {
    for (uri, want) in [
        ("sip:+4930123@p1.example", "sip:004930123@p1.example"),
        ("sip:%2B49-30-123;isub=2@p1.example;user=phone", "sip:004930123;isub=2@p1.example;user=phone"),
        ("sip:112@p1.example", "sip:112@p1.example"),
        ("sip:+49bob@p1.example", "sip:+49bob@p1.example"),
        // By number: the host is the peer's then, and the prefix of the route the core's way of writing.
        ("sip:+4930123@example.com", "sip:004930123@p1.example"),
        ("tel:+49-30-123", "sip:004930123@p1.example;user=phone"),
    ] {
        let mut rig = rig();
        let outs = asked(&mut rig, CORE, uri, "n1");
        assert_eq!(outs[1].msg.uri(), want, "{uri}");
        let records = rig.shard.records(b"n1");
        let record = records.first().unwrap();
        assert_eq!(record.uri(), uri.as_bytes(), "what was received");
        let sent = record.legs[0].uri.as_deref().unwrap_or(uri.as_bytes());
        assert_eq!(sent, outs[1].msg.uri().as_bytes(), "what was sent");
    }
}

#[test]
fn a_number_comes_from_a_peer_as_the_core_writes_it() {
    for (uri, want) in [
        ("sip:004420@example.com", "sip:+4420@example.com"),
        ("sip:030123@example.com;user=phone", "sip:+4930123@example.com;user=phone"),
        ("sip:+4420@example.com", "sip:+4420@example.com"),
        ("sip:alice@example.com", "sip:alice@example.com"),
    ] {
        let mut rig = rig();
        let outs = asked(&mut rig, PEER, uri, "n2");
        assert_eq!(lines(&outs)[1], "INVITE 10.0.0.5:5060");
        assert_eq!(outs[1].msg.uri(), want);
        assert_eq!(outs[1].msg.get("to"), Some(format!("<{uri}>").as_str()), "To is the caller's");
    }
    // Another peer has other ways.
    let outs = asked(&mut rig(), "203.0.113.9:5060", "sip:004420@example.com", "n3");
    assert_eq!(outs[1].msg.uri(), "sip:004420@example.com");
}

#[test]
fn every_instance_and_the_cancel_get_the_number_alike() {
    let mut rig = rig();
    let first = asked(&mut rig, CORE, "sip:+4930@p1.example", "n4")[1].clone();
    let outs = rig.udp(I1, &reply(&first.msg, 503, "t", &[], b""));
    assert_eq!(lines(&outs), ["ACK 198.51.100.11:5060", "INVITE 198.51.100.12:5060"]);
    assert!(outs.iter().all(|o| o.msg.uri() == "sip:004930@p1.example"), "{outs:?}");
    let second = outs[1].clone();
    rig.udp("198.51.100.12:5060", &reply(&second.msg, 180, "t", &[], b""));
    let cancel = Request::new("CANCEL", "sip:+4930@p1.example", CORE, "n4", "n4");
    let outs = rig.udp(CORE, &cancel.bytes());
    assert_eq!(lines(&outs), ["200 10.0.1.1:5060", "CANCEL 198.51.100.12:5060"]);
    assert_eq!(outs[1].msg.uri(), "sip:004930@p1.example");
}

#[test]
fn inside_a_dialog_a_number_stays_as_the_contact_wrote_it() {
    let mut rig = rig();
    let sent = asked(&mut rig, CORE, "sip:+4930@p1.example", "n5")[1].clone();
    let outs = rig.udp(I1, &reply(&sent.msg, 200, "t1", &contact(), b""));
    let ok = outs[0].msg.clone();
    for (method, from, uri) in [
        ("ACK", CORE, "sip:+4930@198.51.100.11:5060"),
        ("BYE", CORE, "sip:+4930@198.51.100.11:5060"),
        ("BYE", I1, "sip:0049@10.0.1.1:5060"),
    ] {
        let mut request = Request::new(method, uri, from, &format!("{method}{from}"), "n5");
        request.routes = ok.values("record-route");
        [request.from, request.to] = ["from", "to"].map(|end| ok.get(end).unwrap().to_string());
        if from == CORE {
            request.routes.reverse();
        } else {
            std::mem::swap(&mut request.from, &mut request.to);
        }
        let outs = rig.udp(from, &request.bytes());
        assert_eq!(outs[0].msg.uri(), uri, "{method} of {from}");
    }
}

#[test]
fn a_request_that_a_peer_and_the_core_send_around_is_found_to_loop() {
    let mut rig = rig();
    let uri = "sip:+4930@p1.example";
    let out = asked(&mut rig, CORE, uri, "n6")[1].clone();
    assert_eq!(out.msg.uri(), "sip:004930@p1.example");
    // The peer takes it for a call to us, and our core for one to the peer again: the first lap's number is back.
    let back = |out: &Out, uri: &str, via: &str| {
        let text = String::from_utf8(out.msg.raw.clone()).unwrap();
        let (_, rest) = text.split_once("\r\n").unwrap();
        format!("INVITE {uri} SIP/2.0\r\nVia: SIP/2.0/UDP {via};branch=z9hG4bK-{via}\r\n{rest}").into_bytes()
    };
    let outs = rig.udp(PEER, &back(&out, "sip:004930@example.com", "198.51.100.200"));
    assert_eq!(
        (lines(&outs)[1].as_str(), outs[1].msg.uri()),
        ("INVITE 10.0.0.5:5060", "sip:+4930@example.com")
    );
    let outs = rig.udp(CORE, &back(&outs[1], uri, "10.0.1.1"));
    assert_eq!(lines(&outs), ["482 10.0.1.1:5060"]);
}
