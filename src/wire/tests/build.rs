use super::super::build::{self, ResponseOptions};
use super::super::{Method, Name};
use super::*;

fn respond(text: impl AsRef<[u8]>, status: u16, opts: ResponseOptions<'_>) -> String {
    let bytes = text.as_ref();
    let index = parse(bytes).unwrap();
    let out = build::response(Message::new(bytes, &index), status, "Because", opts);
    String::from_utf8(out).unwrap()
}

#[test]
fn a_response_copies_what_it_must_and_tags_the_to() {
    let text =
        with("Max-", "v: SIP/2.0/TCP up.test;branch=z9hG4bK-0\r\nRecord-Route: <sip:rr.test;lr>\r\nMax-");
    let opts = ResponseOptions {
        to_tag: Some(b"mine"),
        stamp: Some("192.0.2.1:4000".parse().unwrap()),
        extra_rows: &[("Retry-After", b"5"), ("Warning", b"399 p \"a\x1b\r\nb\"")],
        copy_record_route: false,
    };
    assert_eq!(
        respond(&text, 503, opts),
        "SIP/2.0 503 Because\r\n\
         Via: SIP/2.0/UDP 127.0.0.11:5060;branch=z9hG4bK-1;received=192.0.2.1\r\n\
         v: SIP/2.0/TCP up.test;branch=z9hG4bK-0\r\n\
         From: <sip:alice@a.example.test>;tag=f-1\r\n\
         To: <sip:bob@dest.example.test>;tag=mine\r\n\
         Call-ID: 1@a.example.test\r\n\
         CSeq: 1 OPTIONS\r\n\
         Retry-After: 5\r\n\
         Warning: 399 p \"a   b\"\r\n\
         Content-Length: 0\r\n\r\n"
    );
    let opts = ResponseOptions { copy_record_route: true, ..opts };
    assert!(respond(&text, 200, opts).contains("bK-0\r\nRecord-Route: <sip:rr.test;lr>\r\nFrom"));
}

#[test]
fn a_100_copies_the_timestamp_and_leaves_the_to_alone() {
    let text = with("Max-", "Timestamp: 54\r\nMax-");
    let opts = ResponseOptions { to_tag: Some(b"mine"), ..Default::default() };
    let out = respond(&text, 100, opts);
    assert!(out.contains("Timestamp: 54\r\n") && !out.contains("mine"));
    let out = respond(&text, 200, opts);
    assert!(!out.contains("Timestamp") && out.contains(";tag=mine"));
}

#[test]
fn a_tag_that_is_there_stays_alone() {
    let text = with("dest.example.test>\r\n", "dest.example.test>;tag=theirs\r\n");
    let opts = ResponseOptions { to_tag: Some(b"mine"), ..Default::default() };
    assert!(respond(text, 200, opts).contains(">;tag=theirs\r\n"));
}

#[test]
fn a_response_to_a_broken_request_sends_no_control_octets_and_no_doubles() {
    let opts =
        ResponseOptions { to_tag: Some(b"mine"), stamp: "192.0.2.1:4".parse().ok(), ..Default::default() };
    let text =
        with("z9hG4bK-1", "z9hG4bK\nRoute: <sip:evil.test>\x1b").replace("Call-ID", "Call-ID: 2\r\nCall-ID");
    let out = respond(&text, 400, opts);
    assert!(out.contains(";branch=z9hG4bK?Route: <sip:evil.test>?"));
    assert_eq!(out.matches("Call-ID").count(), 1);
    assert!(!out.replace("\r\n", "").contains(char::is_control));

    let bare = "INVITE sip:user@example.com SIP/2.0\r\nCSeq: 193942 INVITE\r\n\
        Via: SIP/2.0/UDP 192.0.2.95;branch=z9hG4bKkdj.insuf\r\n\r\n";
    assert_eq!(
        respond(bare, 400, opts),
        "SIP/2.0 400 Because\r\nVia: SIP/2.0/UDP 192.0.2.95;branch=z9hG4bKkdj.insuf;received=192.0.2.1\r\n\
         CSeq: 193942 INVITE\r\nContent-Length: 0\r\n\r\n"
    );
    let quote = with("To: <", "To: \"x <");
    assert!(respond(quote, 400, opts).contains("To: \"x <sip:bob@dest.example.test>\r\n"));
    assert!(respond(&OPTIONS[..60], 400, opts).starts_with("SIP/2.0 400 Because\r\n"));
}

const INVITE: &str = "INVITE sip:bob@b.test SIP/2.0\r\n\
    Via: SIP/2.0/UDP p.test;branch=z9hG4bK-p, SIP/2.0/UDP a.test;branch=z9hG4bK-a\r\n\
    Route: <sip:r1.test;lr>,\r\n <sip:r2.test;lr>\r\nroute: <sip:r3.test>\r\n\
    Record-Route: <sip:p.test;lr>\r\nMax-Forwards: 69\r\nf: <sip:a@a.test>;tag=1\r\nt: <sip:bob@b.test>\r\n\
    i: c1\r\nCSeq: 7 INVITE\r\nContact: <sip:a@a.test>\r\nContent-Length: 0\r\n\r\n";

#[test]
fn an_ack_takes_its_to_from_the_response_and_all_else_from_the_invite() {
    let response = "SIP/2.0 486 Busy\r\nVia: SIP/2.0/UDP p.test;branch=z9hG4bK-p\r\nFrom: <sip:x@x.test>;tag=9\r\n\
        To: <sip:bob@b.test>\r\n ;tag=t7\r\nCall-ID: other\r\nCSeq: 9 INVITE\r\nContent-Length: 0\r\n\r\n";
    let (ii, ri) = (parse(INVITE.as_bytes()).unwrap(), parse(response.as_bytes()).unwrap());
    let ack = build::ack(Message::new(INVITE.as_bytes(), &ii), Message::new(response.as_bytes(), &ri));
    assert_eq!(
        String::from_utf8(ack.clone()).unwrap(),
        "ACK sip:bob@b.test SIP/2.0\r\nVia: SIP/2.0/UDP p.test;branch=z9hG4bK-p\r\n\
         Route: <sip:r1.test;lr>,\r\n <sip:r2.test;lr>\r\nroute: <sip:r3.test>\r\n\
         f: <sip:a@a.test>;tag=1\r\ni: c1\r\nCSeq: 7 ACK\r\nTo: <sip:bob@b.test>\r\n ;tag=t7\r\n\
         Max-Forwards: 70\r\nContent-Length: 0\r\n\r\n"
    );
    view(&ack, |m| {
        assert_eq!((m.method(), m.via_count(), m.to_tag()), (Method::Ack, 1, Some(&b"t7"[..])));
        assert_eq!(m.routes().count(), 3);
    });
}

#[test]
fn a_cancel_has_the_branch_and_the_route_of_its_invite() {
    let index = parse(INVITE.as_bytes()).unwrap();
    let invite = Message::new(INVITE.as_bytes(), &index);
    let cancel = build::cancel(invite, &[("Reason", b"SIP;cause=200")]);
    assert_eq!(
        String::from_utf8(cancel.clone()).unwrap(),
        "CANCEL sip:bob@b.test SIP/2.0\r\nVia: SIP/2.0/UDP p.test;branch=z9hG4bK-p\r\n\
         Route: <sip:r1.test;lr>,\r\n <sip:r2.test;lr>\r\nroute: <sip:r3.test>\r\n\
         f: <sip:a@a.test>;tag=1\r\ni: c1\r\nCSeq: 7 CANCEL\r\nt: <sip:bob@b.test>\r\n\
         Max-Forwards: 70\r\nReason: SIP;cause=200\r\nContent-Length: 0\r\n\r\n"
    );
    view(cancel, |m| assert_eq!(m.cseq(), Some((7, &b"CANCEL"[..]))));
}

#[test]
fn a_probe_is_a_sound_request() {
    let via = b"SIP/2.0/UDP p.test;branch=z9hG4bK-x;rport";
    let probe = build::options_probe(b"sip:192.0.2.7:5070", via, "p.test", b"id1", b"tg", 3);
    view(probe, |m| {
        assert_eq!((m.method(), m.uri()), (Method::Options, &b"sip:192.0.2.7:5070"[..]));
        assert_eq!((m.from_tag(), m.to_tag(), m.call_id()), (Some(&b"tg"[..]), None, &b"id1"[..]));
        assert_eq!(m.cseq(), Some((3, &b"OPTIONS"[..])));
        assert_eq!(m.to().unwrap().uri, m.uri());
        assert_eq!(m.header(Name::From).unwrap().value, b"<sip:p.test>;tag=tg");
        assert_eq!(m.top_via().unwrap().rport(), Some(None));
    });
}
