//! Properties of the wire layer over any octets.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod torture;

use bytes::BytesMut;
use proptest::prelude::*;
use sbe::wire::build::{self, ResponseOptions};
use sbe::wire::{
    Edit, Event, Framing, Index, Limits, Message, Name, StreamFramer, UriRef, ensure_content_length,
    remove_top_via, remove_value, retain_values, set_max_forwards, stamp_via, strip_headers,
};

/// Octets that a failure prints as text.
#[derive(Clone)]
struct Octets(Vec<u8>);

impl std::fmt::Debug for Octets {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "b\"{}\"", self.0.escape_ascii())
    }
}

/// Uses everything a message offers; checks what must hold for any octets.
fn exercise(bytes: &[u8], framing: Framing) {
    let Ok(index) = Index::parse(bytes, &Limits::default(), framing) else {
        return;
    };
    let m = Message::new(bytes, &index);
    assert_eq!(Edit::new(m).finish(), bytes[m.range()]);
    let mut at = m.start_line_range().end;
    for field in m.fields() {
        assert_eq!(field.row.start, at);
        at = field.row.end;
    }
    assert!(at <= m.headers_end() && m.headers_end() <= m.body_range().start);
    for uri in [m.uri()].into_iter().chain(m.contacts().flatten().map(|a| a.uri)) {
        if let Ok(uri) = UriRef::parse(uri) {
            let _ = (uri.transport(), uri.maddr(), uri.is_loose(), uri.host.to_host());
        }
    }
    let _ = (m.from(), m.to(), m.cseq(), m.tokens(Name::Require).count(), m.seconds(Name::RetryAfter));
    let routes: Vec<_> = m.routes().chain(m.record_routes()).collect();
    let source = "[2001:db8::1]:40000".parse().unwrap();
    let opts = ResponseOptions {
        to_tag: Some(b"t"),
        stamp: Some(source),
        copy_record_route: true,
        ..Default::default()
    };
    if m.is_request() {
        let response = build::response(m, 400, "Bad Request", opts);
        let ri =
            Index::parse(&response, &Limits { max_message: 1 << 20, ..Limits::default() }, Framing::Stream)
                .unwrap();
        let r = Message::new(&response, &ri);
        assert_eq!((r.status(), r.range().end), (400, response.len()));
        assert_ne!(ri.fault().map(|f| f.label), Some("control_octets"));
        if index.fault().is_none() {
            // The second Via is checked in responses only.
            assert!(matches!(ri.fault().map(|f| f.label), None | Some("bad_via")));
            let via = r.top_via().unwrap();
            // Not needed where the sent-by is the source (RFC 3261 §18.2.1).
            let honest = via.received().is_none() && via.host().addr() == Some(source.ip());
            assert!(honest || via.received() == Some(source.ip()), "{via:?}");
            assert_eq!(r.via_count(), m.via_count());
            let ack = build::ack(m, r);
            let ai = Index::parse(&ack, &Limits::default(), Framing::Stream).unwrap();
            assert_eq!(ai.fault(), None);
            assert_eq!(Message::new(&ack, &ai).via_count(), 1);
        }
    }
    let mut edit = Edit::new(m);
    if let Some(via) = m.top_via() {
        stamp_via(&mut edit, &via, source, true, true);
        edit.insert(via.row().start, b"Via: SIP/2.0/UDP p.test;branch=z9hG4bK-p\r\n");
    }
    set_max_forwards(&mut edit, 9);
    ensure_content_length(&mut edit);
    retain_values(&mut edit, Name::Route, |n| n % 2 == 1);
    strip_headers(&mut edit, &["subject", "x-none"]);
    let out = edit.finish();
    if index.fault().is_none() && m.is_request() {
        let oi = Index::parse(&out, &Limits::default(), Framing::Stream).unwrap();
        let o = Message::new(&out, &oi);
        assert_eq!(oi.fault(), None, "{:?}", String::from_utf8_lossy(&out));
        assert_eq!((o.via_count(), o.max_forwards(), o.body()), (m.via_count() + 1, Some(9), m.body()));
        // Taking our Via off again gives the sender's Vias, stamped.
        let mut edit = Edit::new(o);
        remove_top_via(&mut edit, &o.top_via().unwrap());
        let back = edit.finish();
        let bi = Index::parse(&back, &Limits::default(), Framing::Stream).unwrap();
        let b = Message::new(&back, &bi);
        assert_eq!(b.via_count(), m.via_count());
        let top = b.top_via().unwrap();
        assert_eq!((top.received(), top.rport()), (Some(source.ip()), Some(Some(40_000))));
    }
    for route in routes.into_iter().flatten() {
        let mut edit = Edit::new(m);
        remove_value(&mut edit, &route);
        assert!(edit.finish().len() < bytes.len());
    }
}

/// A torture message with some octets changed, removed or doubled.
fn mutated() -> impl Strategy<Value = Octets> {
    let all: Vec<Vec<u8>> =
        ["rfc4475", "rfc5118"].iter().flat_map(|r| torture::cases(r)).map(|c| c.bytes).collect();
    let octet = prop_oneof![any::<u8>(), proptest::sample::select(b"\r\n\t \",;:<>@[]=/\\?0S\0".to_vec()),];
    let change = (any::<proptest::sample::Index>(), octet, 0..4u8, 1..30usize);
    (proptest::sample::select(all), prop::collection::vec(change, 0..6)).prop_map(|(mut bytes, changes)| {
        for (at, octet, kind, len) in changes {
            let at = at.index(bytes.len().max(1)).min(bytes.len().saturating_sub(1));
            let end = (at + len).min(bytes.len());
            match kind {
                0 if !bytes.is_empty() => bytes[at] = octet,
                1 => bytes.insert(at, octet),
                2 => drop(bytes.drain(at..end)),
                _ => {
                    let again = bytes[at..end].to_vec();
                    bytes.splice(at..at, again);
                }
            }
        }
        Octets(bytes)
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2_000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn random_octets_harm_nothing(bytes in prop::collection::vec(any::<u8>(), 0..600)) {
        exercise(&bytes, Framing::Datagram);
    }

    #[test]
    fn damaged_messages_harm_nothing(bytes in mutated()) {
        exercise(&bytes.0, Framing::Datagram);
        exercise(&bytes.0, Framing::Stream);
    }

    #[test]
    fn uris_from_their_alphabet_harm_nothing(text in "(sips?|tel|x)?:?[a-c:;?@%=\\[\\].0-9-]{0,24}") {
        if let Ok(uri) = UriRef::parse(text.as_bytes()) {
            prop_assert!(uri.host_port_range.end <= text.len());
            let _ = (uri.transport(), uri.maddr());
            if uri.is_sip() {
                prop_assert!(uri.host.is_sound());
                prop_assert!(text.ends_with(std::str::from_utf8(uri.headers.unwrap_or_default()).unwrap()));
            }
        }
    }

    #[test]
    fn a_stream_gives_the_same_messages_in_any_pieces(
        first in mutated(), second in mutated(), sizes in prop::collection::vec(1..200usize, 1..40),
    ) {
        let stream = [first.0, second.0].concat();
        let whole = events(&stream, &[stream.len().max(1)]);
        prop_assert_eq!(events(&stream, &sizes), whole);
    }
}

/// What a framer finds when the stream comes in pieces of these sizes, over and over.
fn events(stream: &[u8], sizes: &[usize]) -> Vec<Event> {
    let mut framer = StreamFramer::new(Limits::default());
    let mut buffer = BytesMut::new();
    let mut found = Vec::new();
    let mut rest = stream;
    for &size in sizes.iter().cycle() {
        if rest.is_empty() {
            break;
        }
        let (piece, more) = rest.split_at(size.min(rest.len()));
        rest = more;
        buffer.extend_from_slice(piece);
        while let Some(event) = framer.poll(&mut buffer) {
            let over = matches!(event, Event::Broken(_) | Event::Message { last: true, .. });
            found.push(event);
            if over {
                return found;
            }
        }
    }
    found
}

#[test]
fn a_sent_by_that_is_the_source_needs_no_received() {
    let bytes = b"BYE sip:user@host.example.net SIP/2.0\r\nVia: SIP/2.0/UDP [2001:db8:::1]:6050;branch=z9hG4bKas3-111\r\n\
        Call-ID: 997077@lau_4100\r\nMax-Forwards: 70\r\nCSeq: 89187 BYE\r\nTo: sip:user@example.net;tag=9817--94\r\n\
        From: sip:user@example.com;tag=81x2\r\nContent-Length: 0\r\n\r\n";
    exercise(bytes, Framing::Datagram);
    let other = String::from_utf8_lossy(bytes).replace("2001:db8:::1", "2001:db8::2");
    exercise(other.as_bytes(), Framing::Stream);
}
