use std::net::IpAddr;

use super::super::{AddrFault, HostRef, Method, Name, Scheme, UriFault, UriRef};
use super::*;
use crate::flow::{Host, Transport};

#[test]
fn every_name_is_found_by_its_long_and_its_compact_form_in_any_case() {
    let mut known = 0;
    for number in 0..Name::COUNT {
        // All variants, without a list that could go stale.
        let Some(name) = ALL.iter().copied().find(|n| *n as usize == number) else {
            continue;
        };
        known += 1;
        assert_eq!(Name::of(name.as_str().as_bytes()), name);
        assert_eq!(Name::of(name.as_str().to_ascii_uppercase().as_bytes()), name);
    }
    assert_eq!(known, Name::COUNT);
    for (compact, name) in [
        ("v", Name::Via),
        ("f", Name::From),
        ("t", Name::To),
        ("i", Name::CallId),
        ("m", Name::Contact),
        ("l", Name::ContentLength),
        ("c", Name::ContentType),
        ("k", Name::Supported),
        ("X", Name::SessionExpires),
    ] {
        assert_eq!(Name::of(compact.as_bytes()), name);
    }
    for other in ["", "vi", "Vias", "s", "ttt", "Tu", "Froms", "Callxid", "max-forward5"] {
        assert_eq!(Name::of(other.as_bytes()), Name::Other);
    }
}

const ALL: [Name; Name::COUNT] = [
    Name::Via,
    Name::From,
    Name::To,
    Name::CallId,
    Name::CSeq,
    Name::MaxForwards,
    Name::Route,
    Name::RecordRoute,
    Name::Contact,
    Name::ContentLength,
    Name::ContentType,
    Name::ProxyRequire,
    Name::Require,
    Name::Supported,
    Name::Unsupported,
    Name::RetryAfter,
    Name::SessionExpires,
    Name::Expires,
    Name::Reason,
    Name::Warning,
    Name::Timestamp,
    Name::Date,
    Name::Path,
    Name::MinSe,
    Name::Other,
];

#[test]
fn methods_are_told_apart_by_case() {
    for method in Method::ALL.into_iter().filter(|m| *m != Method::Other) {
        assert_eq!(Method::of(method.label().as_bytes()), method);
        assert_eq!(Method::of(method.label().to_ascii_lowercase().as_bytes()), Method::Other);
    }
    assert_eq!(Method::of(b"RE%47IST%45R"), Method::Other);
}

#[test]
fn a_field_is_found_by_any_spelling() {
    let text = with(
        "Content-Length",
        "X-Internal-Trust : yes\r\nx-INTERNAL-trust\t: no\r\ns: short\r\nSubject: long\r\nContent-Length",
    );
    view(text, |m| {
        let values = |name: &[u8]| m.named(name).map(|f| f.value.to_vec()).collect::<Vec<_>>();
        assert_eq!(values(b"x-internal-trust"), [b"yes".to_vec(), b"no".to_vec()]);
        assert_eq!(values(b"subject"), [b"short".to_vec(), b"long".to_vec()]);
        assert_eq!(values(b"s"), values(b"subject"));
        assert_eq!(values(b"i"), [b"1@a.example.test".to_vec()]);
        assert_eq!(values(b"call-id"), values(b"i"));
        assert!(values(b"x-other").is_empty());
    });
}

#[test]
fn rows_cover_the_header_without_gaps() {
    view(OPTIONS, |m| {
        let mut at = m.start_line_range().end;
        for (n, field) in m.fields().enumerate() {
            assert_eq!((field.row.start, field.at), (at, n));
            assert!(field.value_range.end <= field.row.end - 2);
            at = field.row.end;
        }
        assert_eq!(at, m.headers_end());
        assert_eq!(m.body_range(), at + 2..OPTIONS.len());
    });
}

#[test]
fn folded_rows_are_read_whole() {
    let text = "OPTIONS sip:bob@dest.example.test:5060 SIP/2.0\r\n\
        Via: SIP/2.0/UDP 127.0.0.11:5060\r\n ;branch=z9hG4bK-b01\r\n\
        Max-Forwards:\r\n\t70\r\n\
        From: \"Ali\r\n ce\" <sip:alice@a.example.test>\r\n ;tag=f-b01\r\n\
        To: <sip:bob@dest.example.test>\r\nCall-ID: b01@a.example.test\r\n\
        CSeq: 1\r\n  OPTIONS\r\nSubject: one\r\n two\r\nContent-Length: 0\r\n\r\n";
    view(text, |m| {
        assert_eq!(m.top_via().unwrap().branch(), Some(&b"z9hG4bK-b01"[..]));
        assert_eq!(m.max_forwards(), Some(70));
        assert_eq!(m.from_tag(), Some(&b"f-b01"[..]));
        assert_eq!(m.from().unwrap().display, b"\"Ali\r\n ce\"");
        assert_eq!(m.cseq(), Some((1, &b"OPTIONS"[..])));
        assert_eq!(m.named(b"subject").next().unwrap().value, b"one\r\n two");
    });
}

#[test]
fn quoted_strings_hide_commas_semicolons_and_brackets() {
    let text = with(
        "Max-Forwards",
        "Route: \"P, edge; lr\" <sip:127.0.0.10;lr>, \"x>y\" <sip:127.0.0.21;lr>\r\n\
         Contact: \"a;b,c\" <sip:alice@127.0.0.11>;+sip.instance=\"<urn:uuid:0;x,y>\"\r\nMax-Forwards",
    )
    .replacen("From: <", "From: \"Roe, \\\"J\\\" <x>;tag=zz\" <", 1);
    view(text, |m| {
        let routes: Vec<_> = m.routes().map(|r| r.unwrap()).collect();
        assert_eq!(routes.len(), 2);
        assert_eq!(routes[0].addr.display, b"\"P, edge; lr\"");
        assert_eq!(routes[1].addr.uri, b"sip:127.0.0.21;lr");
        assert!(routes.iter().all(|r| r.uri.is_loose() && !r.sole));
        assert_eq!((routes[1].ordinal, routes[1].row_at), (1, 1));
        assert_eq!(m.from_tag(), Some(&b"f-1"[..]));
        let contacts: Vec<_> = m.contacts().map(|c| c.unwrap()).collect();
        assert_eq!(contacts.len(), 1);
        assert_eq!(contacts[0].param(b"+sip.instance"), Some(Some(&b"\"<urn:uuid:0;x,y>\""[..])));
    });
}

#[test]
fn routes_are_numbered_over_rows_and_commas_inside_brackets_do_not_split() {
    let text =
        with("Max-", "Route: <sip:a,b@h1.test;lr> , <sip:h2.test>\r\nRoute:\r\n <sip:h3.test;lr>\r\nMax-");
    view(text, |m| {
        let routes: Vec<_> = m.routes().map(|r| r.unwrap()).collect();
        let seen: Vec<_> = routes.iter().map(|r| (r.ordinal, r.sole, r.uri.is_loose())).collect();
        assert_eq!(seen, [(0, false, true), (1, false, false), (2, true, true)]);
        assert_eq!(routes[0].uri.user, Some(&b"a,b"[..]));
        assert_eq!(routes[2].row_at, routes[0].row_at + 1);
    });
}

#[test]
fn a_route_that_cannot_be_read_is_an_error_in_its_place() {
    let text = with("Max-", "Route: <sip:h1.test;lr>, sip:h2.test;lr, <sip:>, <sip:h4.test\r\nMax-");
    view(text, |m| {
        let routes: Vec<_> = m.routes().map(|r| r.map(|_| ())).collect();
        let uri = AddrFault::Uri(UriFault::Host);
        assert_eq!(routes, [Ok(()), Err(AddrFault::NoBrackets), Err(uri), Err(AddrFault::Unterminated)]);
    });
}

#[test]
fn vias_are_read_through_any_white_space() {
    let text = with(
        "Max-",
        "v:  SIP  / 2.0  / TCP     spindle.example.com  :  5070 ;\r\n  branch  =   z9hG4bK9ikj8  ,\r\n \
         SIP  /    2.0   / UDP  [2001:db8::9] : 5061  ; branch=\r\n z9hG4bK30239\r\nMax-",
    );
    view(text, |m| {
        let vias: Vec<_> = m.vias().collect();
        assert_eq!(vias.len(), 3);
        assert!(vias[0].is_sole() && !vias[1].is_sole() && !vias[2].is_sole());
        assert_eq!((vias[1].transport(), vias[1].port()), (&b"TCP"[..], Some(5070)));
        assert_eq!(vias[1].host(), HostRef::Name(b"spindle.example.com"));
        assert_eq!(vias[1].branch(), Some(&b"z9hG4bK9ikj8"[..]));
        assert_eq!(vias[2].host(), HostRef::Addr("2001:db8::9".parse().unwrap()));
        assert_eq!((vias[2].port(), vias[2].branch()), (Some(5061), Some(&b"z9hG4bK30239"[..])));
        assert_eq!(vias[0].sent_by(), b"127.0.0.11:5060");
        let range = vias[1].range().clone();
        assert!(m.bytes[range.clone()].starts_with(b"SIP  /") && m.bytes[range].ends_with(b"z9hG4bK9ikj8"));
    });
}

#[test]
fn received_and_rport_are_read_in_all_their_forms() {
    let via = |params: &str| with(";branch=z9hG4bK-1", params);
    let addr: IpAddr = "2001:db8::9".parse().unwrap();
    for params in [";received=[2001:db8::9];branch=x", ";received=2001:db8::9;branch=x"] {
        view(via(params), |m| {
            let top = m.top_via().unwrap();
            assert_eq!((top.received(), top.branch()), (Some(addr), Some(&b"x"[..])));
            assert_eq!(top.rport(), None);
        });
    }
    view(via(";rport;maddr=192.0.2.1"), |m| {
        let top = m.top_via().unwrap();
        assert_eq!((top.rport(), top.branch()), (Some(None), None));
        assert_eq!(top.maddr().unwrap().addr(), "192.0.2.1".parse().ok());
    });
    view(via(";RPORT=4000;Received=192.0.2.7"), |m| {
        let top = m.top_via().unwrap();
        assert_eq!(top.rport(), Some(Some(4000)));
        assert_eq!(top.received(), "192.0.2.7".parse().ok());
    });
}

#[test]
fn the_bare_magic_cookie_is_a_branch() {
    view(with("z9hG4bK-1", "z9hG4bK"), |m| assert_eq!(m.top_via().unwrap().branch(), Some(&b"z9hG4bK"[..])));
}

#[test]
fn a_user_part_holds_all_that_stands_before_the_one_at_sign() {
    for (uri, user, password) in [
        (
            "sip:+1-212-555-0101,2;phone-context=example.test;isub=12/3?x@dest.example.test:5060",
            "+1-212-555-0101,2;phone-context=example.test;isub=12/3?x",
            None,
        ),
        ("sip:a.b%40c%2Fd:pw@dest.example.test:5060", "a.b%40c%2Fd", Some("pw")),
        ("sip:%61lice@dest.example.test:5060", "%61lice", None),
        ("sip:user;par=u%40example.net@dest.example.test:5060", "user;par=u%40example.net", None),
        ("sips:sips%3Auser%40example.com:@dest.example.test:5060", "sips%3Auser%40example.com", Some("")),
    ] {
        let parsed = UriRef::parse(uri.as_bytes()).unwrap();
        assert_eq!(parsed.user, Some(user.as_bytes()), "{uri}");
        assert_eq!(parsed.password, password.map(str::as_bytes));
        assert_eq!(parsed.host, HostRef::Name(b"dest.example.test"));
        assert_eq!(parsed.port, Some(5060));
        assert_eq!(&uri.as_bytes()[parsed.host_port_range.clone()], b"dest.example.test:5060");
        assert!(parsed.params.is_empty() && parsed.headers.is_none());
    }
}

#[test]
fn uri_parameters_and_headers_are_found() {
    let uri = UriRef::parse(b"sip:h.test;transport=TCP;lr;maddr=[2001:db8::1];x=%00?Subject=a&b=c").unwrap();
    assert_eq!(uri.user, None);
    assert_eq!(uri.transport(), Some(Ok(Transport::Tcp)));
    assert_eq!(uri.param(b"lr"), Some(None));
    assert!(uri.is_loose());
    assert_eq!(uri.param(b"X"), Some(Some(&b"%00"[..])));
    assert_eq!(uri.param(b"ttl"), None);
    assert_eq!(uri.maddr().unwrap().unwrap().addr(), "2001:db8::1".parse().ok());
    assert_eq!(uri.headers, Some(&b"Subject=a&b=c"[..]));
    let uri = UriRef::parse(b"sip:h.test;transport=sctp;maddr=").unwrap();
    assert_eq!(uri.transport(), Some(Err(&b"sctp"[..])));
    assert!(uri.maddr().unwrap().is_err());
}

#[test]
fn tel_uris_keep_number_and_parameters_and_other_schemes_stay_opaque() {
    let tel = UriRef::parse(b"tel:7042;phone-context=example.com").unwrap();
    assert_eq!((tel.scheme, tel.user), (Scheme::Tel, Some(&b"7042"[..])));
    assert_eq!(tel.param(b"phone-context"), Some(Some(&b"example.com"[..])));
    let soap = UriRef::parse(b"soap.beep://192.0.2.103:3002").unwrap();
    assert_eq!(soap.scheme, Scheme::Other(b"soap.beep"));
    assert_eq!((soap.user, soap.port, soap.params), (None, None, &b""[..]));
    assert_eq!(UriRef::parse(b"no scheme").unwrap_err(), UriFault::Scheme);
}

#[test]
fn hosts_compare_without_case_and_final_dot() {
    let host = HostRef::parse(b"Example.COM.").unwrap();
    assert_eq!(host.to_host(), Host::Name("example.com".into()));
    assert!(host.eq_host(&Host::Name("example.com".into())));
    assert!(!host.eq_host(&Host::Name("example.net".into())));
    assert!(!host.eq_host(&Host::Addr("192.0.2.1".parse().unwrap())));
    let v6 = HostRef::parse(b"[2001:DB8:0::1]").unwrap();
    assert!(v6.eq_host(&Host::Addr("2001:db8::1".parse().unwrap())));
    assert_eq!(v6.to_host().to_string(), "[2001:db8::1]");
    for bad in ["", "[::1", "::1", "a b", "a:1", "[::1]x", "[fe80::1%25eth0]", "[::ffff:1.2.3.4.5]", "[:::]x"]
    {
        assert_eq!(HostRef::parse(bad.as_bytes()), None, "{bad:?}");
    }
    // The grammar of RFC 3261 once asked for three colons (RFC 5118 §4.10).
    assert_eq!(HostRef::parse(b"[2001:db8:::192.0.2.1]"), HostRef::parse(b"[2001:db8::192.0.2.1]"));
}

#[test]
fn token_lists_are_read_over_all_rows() {
    let text = with("Max-", "Proxy-Require: foo , , bar\r\nproxy-require: \"a,b\"\r\nMax-");
    view(text, |m| {
        let tags: Vec<_> = m.tokens(Name::ProxyRequire).collect();
        assert_eq!(tags, [&b"foo"[..], b"bar", b"\"a,b\""]);
    });
}

#[test]
fn leading_seconds_are_read_and_too_many_count_as_the_most() {
    let text = with(
        "Max-",
        "Retry-After: 120 (maintenance);duration=3600\r\nx: 1800;refresher=uac\r\n\
        Expires: 949302838503028349304023988\r\nMin-SE: soon\r\nMax-",
    );
    view(text, |m| {
        assert_eq!(m.seconds(Name::RetryAfter), Some(120));
        assert_eq!(m.seconds(Name::SessionExpires), Some(1800));
        assert_eq!(m.seconds(Name::Expires), Some(u32::MAX));
        assert_eq!(m.seconds(Name::MinSe), None);
        assert_eq!(m.seconds(Name::Timestamp), None);
    });
}

#[test]
fn a_response_has_the_method_of_its_cseq() {
    view(RESPONSE, |m| {
        assert!(!m.is_request());
        assert_eq!((m.status(), m.reason_phrase(), m.method()), (200, &b"OK"[..], Method::Options));
        assert_eq!((m.to_tag(), m.via_count(), m.uri()), (Some(&b"t-1"[..]), 2, &b""[..]));
    });
}
