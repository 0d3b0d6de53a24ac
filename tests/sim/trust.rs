//! The edge of the trust domain: who may assert an identity, and who gets to see one.

use crate::basics::{begun, invite};
use crate::msg::{Request, reply};
use crate::rig::{CORE, Out, PEER, Rig, lines};

const I1: &str = "198.51.100.11:5060";
const DOMAINS: &str = "domains = [\"p1.example\"]";

fn rig(trust: &str) -> Rig {
    Rig::replacing(DOMAINS, &format!("{DOMAINS}\n{trust}"), "")
}

fn rows(privacy: &str) -> Vec<String> {
    let mut rows: Vec<String> = [
        "P-Asserted-Identity: \"A\" <sip:alice@example.com>, <tel:+4930123>",
        "p-asserted-IDENTITY : <tel:+4930124>",
        "P-Preferred-Identity: <sip:al@example.com>",
        "s: hello",
        "User-Agent: phone/1",
        "X-Other: 1",
    ]
    .map(String::from)
    .into();
    if !privacy.is_empty() {
        rows.push(format!("Privacy: {privacy}"));
    }
    rows
}

/// Which of asserted identity, preferred identity, subject, user agent and another field a message still has.
fn left(out: &Out) -> [bool; 5] {
    ["p-asserted-identity", "p-preferred-identity", "subject", "user-agent", "x-other"]
        .map(|name| out.msg.get(name).is_some())
}

const ALL: [bool; 5] = [true; 5];
const ASSERTED_GONE: [bool; 5] = [false, false, true, true, true];
const USER_GONE: [bool; 5] = [false, false, false, false, true];

fn from_peer(rig: &mut Rig, privacy: &str) -> Out {
    let mut request = Request::new("INVITE", "sip:alice@example.com", PEER, "in", "call-in");
    request.extra = rows(privacy);
    let outs = rig.udp(PEER, &request.bytes());
    assert_eq!(lines(&outs)[1], "INVITE 10.0.0.5:5060");
    outs[1].clone()
}

fn from_core(rig: &mut Rig, privacy: &str) -> Out {
    let mut request = invite();
    request.extra.extend(rows(privacy));
    let outs = rig.udp(CORE, &request.bytes());
    assert_eq!(lines(&outs)[1], "INVITE 198.51.100.11:5060");
    outs[1].clone()
}

#[test]
fn what_an_untrusted_peer_asserts_is_removed_from_its_requests_and_its_answers() {
    for (trust, want) in [("", ALL), ("trust = true", ALL), ("trust = false", ASSERTED_GONE)] {
        for privacy in ["", "id", "user"] {
            assert_eq!(left(&from_peer(&mut rig(trust), privacy)), want, "{trust} {privacy}");
            let mut rig = rig(trust);
            let sent = begun(&mut rig);
            for status in [180, 200] {
                let outs = rig.udp(I1, &reply(&sent.msg, status, "t", &rows(privacy), b""));
                assert_eq!(left(&outs[0]), want, "{status} {trust} {privacy}");
            }
        }
    }
}

#[test]
fn towards_an_untrusted_peer_privacy_is_honoured_in_requests_and_answers() {
    for (privacy, want) in [
        ("", ALL),
        ("none", ALL),
        ("session", ALL),
        ("id", ASSERTED_GONE),
        ("critical; ID", ASSERTED_GONE),
        ("header", ASSERTED_GONE),
        ("user;id", USER_GONE),
    ] {
        for trust in ["", "trust = true", "trust = false"] {
            let want = if trust.ends_with("false") { want } else { ALL };
            let out = from_core(&mut rig(trust), privacy);
            assert_eq!(left(&out), want, "{trust} {privacy}");
            assert_eq!(out.msg.get("privacy"), Some(privacy).filter(|p| !p.is_empty()), "it goes on");

            let mut rig = rig(trust);
            let sent = from_peer(&mut rig, "");
            for status in [180, 200] {
                let answer = reply(&sent.msg, status, "t", &rows(privacy), b"");
                let outs = rig.udp("10.0.0.5:5060", &answer);
                assert_eq!(left(&outs[0]), want, "{status} {trust} {privacy}");
            }
        }
    }
}

#[test]
fn strangers_are_trusted_or_not_by_a_word_of_their_own() {
    for (trust, want) in [("", ALL), ("trust = false\n", ASSERTED_GONE)] {
        let mut rig = Rig::with(&format!("[federation]\nopen = true\n{trust}"));
        let mut request = Request::new("INVITE", "sip:alice@example.com", "192.0.2.99:5060", "f", "call-f");
        request.extra = rows("");
        let outs = rig.udp("192.0.2.99:5060", &request.bytes());
        assert_eq!(lines(&outs)[1], "INVITE 10.0.0.5:5060");
        assert_eq!(left(&outs[1]), want, "{trust}");
    }
}
