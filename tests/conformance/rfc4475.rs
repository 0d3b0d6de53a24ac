//! RFC 4475: session initiation protocol torture test messages.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod torture;

use sbe::wire::{Edit, Framing, HostRef, Index, Limits, Message, Method, Name, Scheme, UriRef};
use torture::Case;

/// Calls `check` with a message that must parse without fault.
fn view(name: &str, check: impl FnOnce(Message<'_>)) {
    let case = torture::case("rfc4475", name);
    let index = case.index().unwrap();
    assert_eq!(index.fault(), None, "{name}");
    check(Message::new(&case.bytes, &index));
}

fn label(name: &str) -> &'static str {
    torture::case("rfc4475", name).index().unwrap().fault().unwrap().label
}

#[test]
fn each_torture_message_gets_an_outcome_that_its_index_allows() {
    torture::check_all("rfc4475");
}

#[test]
fn each_fault_is_found_for_its_own_reason() {
    for (name, fault) in [
        ("badinv01", "bad_via"),
        ("clerr", "short_body"),
        ("ncl", "bad_content_length"),
        ("scalar02", "bad_cseq"),
        ("scalarlg", "bad_cseq"),
        ("quotbal", "bad_to"),
        ("ltgtruri", "bad_request_uri"),
        ("lwsruri", "bad_request_uri"),
        ("lwsstart", "start_line"),
        ("trws", "start_line"),
        ("escruri", "request_uri_headers"),
        ("baddn", "no_blank_line"),
        ("baddn-closed", "bad_to"),
        ("badvers", "version"),
        ("mismatch01", "cseq_method"),
        ("mismatch02", "cseq_method"),
        ("bigcode", "status_code"),
        ("insuf", "missing_to"),
        ("multi01", "repeated_to"),
        ("mcl01", "conflicting_content_length"),
    ] {
        assert_eq!(label(name), fault, "{name}");
    }
}

#[test]
fn wsinv_is_read_through_all_its_white_space() {
    view("wsinv", |m| {
        assert_eq!((m.max_forwards(), m.cseq()), (Some(68), Some((9, &b"INVITE"[..]))));
        assert_eq!(m.to_tag(), Some(&b"1918181833n"[..]));
        assert_eq!(m.from_tag(), Some(&b"98asjd8"[..]));
        assert_eq!(m.from().unwrap().display, b"\"J Rosenberg \\\\\\\"\"");
        let branches: Vec<_> = m.vias().map(|v| v.branch().unwrap()).collect();
        assert_eq!(branches, [&b"390skdjuw"[..], b"z9hG4bK9ikj8", b"z9hG4bK30239"]);
        let route = m.routes().next().unwrap().unwrap();
        assert_eq!(route.uri.host, HostRef::Name(b"services.example.com"));
        assert!(route.uri.is_loose() && route.sole);
        assert_eq!((m.content_length(), m.body().len()), (Some(150), 150));
        let contact = m.contacts().next().unwrap().unwrap();
        assert_eq!(contact.param(b"newparam"), Some(Some(&b"newvalue"[..])));
        assert_eq!(contact.param(b"q"), Some(Some(&b"0.33"[..])));
    });
}

#[test]
fn intmeth_keeps_its_method_its_user_and_its_quoted_controls() {
    view("intmeth", |m| {
        assert_eq!(m.method(), Method::Other);
        assert_eq!(m.method_bytes(), b"!interesting-Method0123456789_*+`.%indeed'~");
        let uri = UriRef::parse(m.uri()).unwrap();
        assert_eq!(uri.user, Some(&b"1_unusual.URI~(to-be!sure)&isn't+it$/crazy?,/;;*"[..]));
        assert_eq!(uri.password, Some(&b"&it+has=1,weird!*pas$wo~d_too.(doesn't-it)"[..]));
        assert_eq!(m.from_tag(), Some(&b"_token~1'+`*%!-."[..]));
        assert!(m.to().unwrap().display.contains(&0));
    });
}

#[test]
fn escapes_are_never_decoded() {
    view("esc01", |m| {
        let uri = UriRef::parse(m.uri()).unwrap();
        assert_eq!(uri.user, Some(&b"sips%3Auser%40example.com"[..]));
        assert_eq!(uri.host, HostRef::Name(b"example.net"));
    });
    view("esc02", |m| {
        assert_eq!(m.method(), Method::Other);
        // `C%6Fntact` is another field.
        assert_eq!(m.contacts().count(), 2);
    });
    view("escnull", |m| {
        let users: Vec<_> =
            m.contacts().map(|c| UriRef::parse(c.unwrap().uri).unwrap().user.unwrap()).collect();
        assert_eq!(users, [&b"%00"[..], b"%00%00"]);
    });
    view("semiuri", |m| {
        let uri = UriRef::parse(m.uri()).unwrap();
        assert_eq!(uri.user, Some(&b"user;par=u%40example.net"[..]));
        assert!(uri.params.is_empty());
    });
}

#[test]
fn longreq_has_all_its_vias() {
    view("longreq", |m| {
        assert_eq!((m.via_count(), m.vias().count()), (34, 34));
        assert_eq!(m.vias().last().unwrap().received(), "192.0.2.5".parse().ok());
        assert_eq!(m.cseq(), Some((3_882_340, &b"INVITE"[..])));
    });
}

#[test]
fn unknown_transports_are_read_like_known_ones() {
    view("transports", |m| {
        let transports: Vec<_> = m.vias().map(|v| v.transport()).collect();
        assert_eq!(transports, [&b"UDP"[..], b"SCTP", b"TLS", b"UNKNOWN", b"TCP"]);
    });
}

#[test]
fn unknown_schemes_parse_and_stay_opaque() {
    for (name, scheme) in [("unkscm", &b"nobodyKnowsThisScheme"[..]), ("novelsc", b"soap.beep")] {
        view(name, |m| assert_eq!(UriRef::parse(m.uri()).unwrap().scheme, Scheme::Other(scheme)));
    }
}

#[test]
fn bodies_are_kept_octet_for_octet_and_surplus_is_left_out() {
    view("mpart01", |m| {
        assert_eq!(m.body().len(), m.content_length().unwrap());
        assert_eq!(m.range().end, m.bytes.len());
        assert!(!m.routes().next().unwrap().unwrap().uri.is_loose());
    });
    view("dblreq", |m| {
        assert_eq!((m.method(), m.body()), (Method::Register, &b""[..]));
        assert!(m.range().end < m.bytes.len());
        let out = Edit::new(m).finish();
        assert_eq!(out, m.bytes[..m.range().end]);
    });
    view("inv2543", |m| {
        assert_eq!((m.content_length(), m.max_forwards(), m.from_tag()), (None, None, None));
        assert!(m.top_via().unwrap().branch().is_none());
        assert!(m.body().starts_with(b"v=0") && m.body().ends_with(b"AVP 0\r\n"));
    });
}

#[test]
fn reason_phrases_are_kept_octet_for_octet() {
    view("unreason", |m| {
        assert!(m.reason_phrase().starts_with("= 2**3 * 5**2 но".as_bytes()));
    });
    view("noreason", |m| assert_eq!((m.status(), m.reason_phrase()), (100, &b""[..])));
}

#[test]
fn proxy_require_is_listed() {
    view("bext01", |m| {
        let tags: Vec<_> = m.tokens(Name::ProxyRequire).collect();
        assert_eq!(tags, [&b"noProxiesSupportThis"[..], b"norDoAnyProxiesSupportThis"]);
    });
}

#[test]
fn every_message_that_parses_leaves_an_edit_as_it_came() {
    for case in torture::cases("rfc4475") {
        let Case { bytes, file, .. } = &case;
        let Ok(index) = case.index() else { continue };
        let m = Message::new(bytes, &index);
        assert_eq!(Edit::new(m).finish(), bytes[m.range()], "{file}");
    }
}

#[test]
fn over_a_stream_the_length_of_each_message_must_be_known() {
    for (name, status) in [("ncl", 400), ("mcl01", 400), ("inv2543", 400), ("wsinv", 0)] {
        let case = torture::case("rfc4475", name);
        let index = Index::parse(&case.bytes, &Limits::default(), Framing::Stream).unwrap();
        assert_eq!(index.fault().map_or(0, |f| f.status), status, "{name}");
    }
}
