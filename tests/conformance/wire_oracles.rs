//! The wire layer against two other parsers, each where its model fits.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod torture;

use bytes::Bytes;
use rsip::Header;
use rsip::message::HasHeaders as _;
use rsip::prelude::HeadersExt as _;
use rsip::prelude::{ToTypedHeader as _, UntypedHeader as _};
use sbe::wire::{Framing, HostRef, Index, Limits, Message, Name, UriRef};
use sipx_sip::{Address, Via};

/// A value with its folding as one blank, as the other parser reports it.
fn unfolded(value: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    let mut rest = value;
    while let Some(at) = rest.windows(2).position(|w| w == b"\r\n") {
        out.extend_from_slice(&rest[..at]);
        out.push(b' ');
        rest = &rest[at + 2..];
        let blanks = rest.iter().take_while(|b| matches!(b, b' ' | b'\t')).count();
        rest = &rest[blanks..];
    }
    out.extend_from_slice(rest);
    out
}

fn same_host(ours: &HostRef<'_>, theirs: &sipx_sip::Host) -> bool {
    match (ours, theirs) {
        (HostRef::Addr(a), sipx_sip::Host::Ip(b)) => a == b,
        (HostRef::Name(a), sipx_sip::Host::Name(b)) => a.eq_ignore_ascii_case(b.as_bytes()),
        _ => false,
    }
}

/// Everything both parsers can say about a message.
fn compare(name: &str, bytes: &[u8], m: Message<'_>) {
    let theirs = sipx_sip::parse_datagram(Bytes::copy_from_slice(bytes), &sipx_sip::Limits::datagram())
        .unwrap_or_else(|e| panic!("{name}: {e}"));
    assert_eq!(m.is_request(), theirs.as_request().is_some(), "{name}");
    if let Some(request) = theirs.as_request() {
        assert_eq!(m.method_bytes(), request.method.as_bytes(), "{name}");
        let uri = UriRef::parse(m.uri()).unwrap();
        assert_eq!(uri.user, request.uri.user(), "{name}");
        assert_eq!(uri.password, request.uri.password(), "{name}");
        assert_eq!(uri.port, request.uri.port(), "{name}");
        if let Some(host) = request.uri.host() {
            assert!(same_host(&uri.host, host), "{name}");
        }
    }
    if let Some(response) = theirs.as_response() {
        assert_eq!(m.status(), response.status.code(), "{name}");
        assert_eq!(m.reason_phrase(), &response.reason[..], "{name}");
    }
    assert_eq!(m.body(), &theirs.body()[..], "{name}");
    assert_eq!(m.fields().count(), theirs.headers().len(), "{name}");
    let mut vias = m.vias();
    for (ours, theirs) in m.fields().zip(theirs.headers().iter()) {
        assert_eq!(unfolded(ours.value), theirs.value().into_owned(), "{name}");
        match ours.name {
            Name::Via => {
                for theirs in Via::parse_list(&theirs.value()).unwrap() {
                    let ours = vias.next().unwrap();
                    assert_eq!(ours.transport(), theirs.transport, "{name}");
                    assert!(same_host(&ours.host(), &theirs.host), "{name}");
                    assert_eq!((ours.port(), ours.branch()), (theirs.port, theirs.branch()), "{name}");
                }
            }
            Name::From | Name::To => {
                let tag = if ours.name == Name::From { m.from_tag() } else { m.to_tag() };
                let theirs = Address::parse(&theirs.value(), "address").unwrap();
                assert_eq!(tag, theirs.tag(), "{name}");
            }
            Name::Route => {
                let theirs = Address::parse_list(&theirs.value(), "Route").unwrap();
                assert_eq!(m.routes().count(), theirs.len(), "{name}");
            }
            _ => {}
        }
    }
    assert!(vias.next().is_none(), "{name}");
}

#[test]
fn sipx_reads_the_torture_messages_that_are_forwarded_as_we_do() {
    let mut compared = 0;
    for rfc in ["rfc4475", "rfc5118"] {
        for case in torture::cases(rfc) {
            let forwarded =
                ["forward", "forward-first-only", "forward-response"].contains(&case.proxy.as_str());
            // The third colon is our own leniency.
            if !forwarded || case.file == "ipv6-bug-abnf-3-colons.dat" {
                continue;
            }
            let index = case.index().unwrap();
            compare(&case.file, &case.bytes, Message::new(&case.bytes, &index));
            compared += 1;
        }
    }
    assert!(compared > 25, "{compared}");
}

#[test]
fn rsip_reads_plain_messages_as_we_do() {
    for n in 0..40_u32 {
        let (method, port) = ([("INVITE", ""), ("BYE", ":5070"), ("OPTIONS", ":65535")])[n as usize % 3];
        let body = "v=0\r\n".repeat(n as usize % 4);
        let text = format!(
            "{method} sip:user{n}@host{n}.example.com{port};transport=udp SIP/2.0\r\n\
             Via: SIP/2.0/UDP 192.0.2.{n}:5060;branch=z9hG4bK{n};rport\r\n\
             Max-Forwards: {n}\r\nFrom: \"A{n}\" <sip:a{n}@a.example.com>;tag=f{n}\r\n\
             To: <sip:b@b.example.com>{}\r\nCall-ID: call-{n}@192.0.2.1\r\nCSeq: {n} {method}\r\n\
             Contact: <sip:a{n}@192.0.2.1:5060>\r\nX-Extra: some value {n}\r\nContent-Length: {}\r\n\r\n{body}",
            if n % 2 == 0 { String::new() } else { format!(";tag=t{n}") },
            body.len(),
        );
        let index = Index::parse(text.as_bytes(), &Limits::default(), Framing::Stream).unwrap();
        assert_eq!(index.fault(), None);
        let m = Message::new(text.as_bytes(), &index);
        let theirs = rsip::Request::try_from(text.as_bytes()).unwrap();

        assert_eq!(m.method().label(), theirs.method.to_string());
        let uri = UriRef::parse(m.uri()).unwrap();
        assert_eq!(uri.user.unwrap(), theirs.uri.auth.as_ref().unwrap().user.as_bytes());
        assert_eq!(uri.port, theirs.uri.host_with_port.port.map(|p| *p.value()));
        assert_eq!(m.call_id(), theirs.call_id_header().unwrap().value().as_bytes());
        assert_eq!(m.cseq().unwrap().0, theirs.cseq_header().unwrap().typed().unwrap().seq);
        let from = theirs.from_header().unwrap().typed().unwrap();
        assert_eq!(m.from_tag().unwrap(), from.tag().unwrap().value().as_bytes());
        assert_eq!(m.from().unwrap().uri, from.uri.to_string().as_bytes());
        let to = theirs.to_header().unwrap().typed().unwrap();
        assert_eq!(m.to_tag().map(<[u8]>::to_vec), to.tag().map(|t| t.value().as_bytes().to_vec()));
        let via = theirs.via_header().unwrap().typed().unwrap();
        assert_eq!(m.top_via().unwrap().branch().unwrap(), via.branch().unwrap().value().as_bytes());
        assert_eq!(m.max_forwards().unwrap().to_string(), theirs.max_forwards_header().unwrap().value());
        assert_eq!(m.fields().count(), theirs.headers().iter().count());
        for (ours, theirs) in m.fields().zip(theirs.headers().iter()) {
            if let Header::Other(name, value) = theirs {
                assert_eq!((ours.raw_name, ours.value), (name.as_bytes(), value.as_bytes()));
            }
        }
        assert_eq!(m.body(), &theirs.body()[..]);
    }
}
