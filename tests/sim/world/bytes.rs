//! What a proxy need not touch leaves as it came, octet by octet.

use crate::msg::{Msg, Row};

/// Rows that a proxy has no business with.
fn others(msg: &Msg, skip: &[&str]) -> Vec<Vec<u8>> {
    msg.rows.iter().filter(|r| !skip.contains(&r.name.as_str())).map(|r| r.raw.clone()).collect()
}

fn rows<'a>(msg: &'a Msg, name: &str) -> Vec<&'a Row> {
    msg.rows.iter().filter(|r| r.name == name).collect()
}

fn text(rows: &[Vec<u8>]) -> String {
    rows.iter().map(|r| String::from_utf8_lossy(r).into_owned()).collect()
}

/// A Via value without what its receiver writes into it.
fn plain_via(value: &str) -> String {
    let written = |p: &&str| !(p.starts_with("received=") || p.starts_with("rport"));
    value.split(';').map(str::trim).filter(written).collect::<Vec<_>>().join(";").replace(' ', "")
}

/// A request as it came and as it was sent on.
pub fn check_request(came: &Msg, sent: &Msg, uri_is_ours: bool, strips: bool) {
    let mut skip = vec!["via", "record-route", "route", "max-forwards"];
    if strips {
        skip.push("x-secret");
        assert!(sent.get("x-secret").is_none(), "X-Secret was to be stripped");
    }
    let (a, b) = (others(came, &skip), others(sent, &skip));
    assert!(a == b, "rows changed:\n{}\n---\n{}", text(&a), text(&b));
    assert!(came.body == sent.body, "the body changed");
    if !uri_is_ours {
        assert_eq!(came.start, sent.start, "the Request-URI changed");
    }
    // Below our own Via, the sender's with the stamp, then the rest to the octet.
    let (a, b) = (rows(came, "via"), rows(sent, "via"));
    assert_eq!(a.len() + 1, b.len(), "one Via row more");
    assert_eq!(plain_via(&came.vias()[0]), plain_via(&sent.vias()[1]), "the sender's Via");
    assert!(a.iter().skip(1).zip(b.iter().skip(2)).all(|(a, b)| a.raw == b.raw), "lower Vias changed");
    // Record-Route: ours on top, the rest as it was; Route: ours away, the rest as it was.
    let (a, b) = (came.values("record-route"), sent.values("record-route"));
    assert!(b.ends_with(&a), "Record-Route of others: {a:?} {b:?}");
    let added = b.len() - a.len();
    match sent.method() {
        "INVITE" => assert!((1..=2).contains(&added), "Record-Route: {b:?}"),
        _ => assert_eq!(added, 0, "no Record-Route in {}", sent.method()),
    }
    assert!(came.values("route").ends_with(&sent.values("route")), "Route");
    let hops = came.get("max-forwards").map_or(70, |n| n.parse::<u32>().unwrap() - 1);
    assert_eq!(sent.get("max-forwards"), Some(hops.to_string().as_str()));
}

/// What a response must look like once our Via is off, and the secrets of the first peer with it.
pub fn upstream(came: &Msg, strips: bool) -> Vec<u8> {
    let mut out = came.start.clone().into_bytes();
    out.extend_from_slice(b"\r\n");
    let top = came.rows.iter().position(|r| r.name == "via");
    for (n, row) in came.rows.iter().enumerate() {
        let secret = strips && row.name == "x-secret";
        if Some(n) != top && !secret {
            out.extend_from_slice(&row.raw);
        }
    }
    out.extend_from_slice(b"\r\n");
    out.extend_from_slice(&came.body);
    out
}

/// Our CANCEL, or our ACK for a failure, against the INVITE as sent (RFC 3261 §9.1, §17.1.1.3).
pub fn check_companion(invite: &Msg, ours: &Msg) {
    assert_eq!(ours.uri(), invite.uri(), "Request-URI of {}", ours.method());
    assert_eq!(ours.vias(), invite.vias()[..1], "Via of {}", ours.method());
    assert_eq!(ours.values("route"), invite.values("route"), "Route of {}", ours.method());
    assert_eq!(ours.get("from"), invite.get("from"), "From of {}", ours.method());
    assert_eq!((ours.call_id(), ours.cseq()), (invite.call_id(), invite.cseq()));
    if ours.method() == "CANCEL" {
        assert_eq!(ours.get("to"), invite.get("to"), "To of CANCEL");
    }
}
