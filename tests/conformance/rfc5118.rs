//! RFC 5118: torture test messages for IPv6.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod torture;

use std::net::IpAddr;

use sbe::wire::{Message, UriRef};

fn view(name: &str, check: impl FnOnce(Message<'_>)) {
    let case = torture::case("rfc5118", name);
    let index = case.index().unwrap();
    assert_eq!(index.fault(), None, "{name}");
    check(Message::new(&case.bytes, &index));
}

fn addr(text: &str) -> Option<IpAddr> {
    Some(text.parse().unwrap())
}

#[test]
fn each_torture_message_gets_an_outcome_that_its_index_allows() {
    torture::check_all("rfc5118");
}

#[test]
fn an_address_without_brackets_is_a_bad_request_uri() {
    let fault = torture::case("rfc5118", "ipv6-bad").index().unwrap().fault().unwrap();
    assert_eq!((fault.status, fault.label), (400, "bad_request_uri"));
}

#[test]
fn the_port_stands_after_the_bracket() {
    view("port-ambiguous", |m| {
        let uri = UriRef::parse(m.uri()).unwrap();
        assert_eq!((uri.host.addr(), uri.port), (addr("2001:db8::10:5070"), None));
    });
    view("port-unambiguous", |m| {
        let uri = UriRef::parse(m.uri()).unwrap();
        assert_eq!((uri.host.addr(), uri.port), (addr("2001:db8::10"), Some(5070)));
    });
}

#[test]
fn received_is_read_with_and_without_brackets() {
    for name in ["via-received-param-with-delim", "via-received-param-no-delim"] {
        view(name, |m| {
            let via = m.top_via().unwrap();
            assert_eq!(via.host().addr(), addr("2001:db8::9:1"));
            assert_eq!(via.received(), addr("2001:db8::9:255"));
            assert!(via.branch().unwrap().starts_with(b"z9hG4bKas3"), "{name}");
        });
    }
}

#[test]
fn vias_of_both_families_stand_side_by_side() {
    view("mult-ip-in-header", |m| {
        let hosts: Vec<_> = m.vias().map(|v| (v.host().addr(), v.port(), v.received())).collect();
        assert_eq!(
            hosts,
            [
                (addr("2001:db8::9:1"), Some(6050), None),
                (addr("192.0.2.1"), None, None),
                (addr("2001:db8::9:255"), None, addr("192.0.2.200")),
            ]
        );
    });
}

#[test]
fn mapped_addresses_and_three_colons_are_addresses() {
    view("ipv4-mapped-ipv6", |m| {
        assert!(m.vias().all(|v| v.host().addr().is_some_and(|a| a.is_ipv6())));
        assert_eq!(m.body().len(), 236);
    });
    for name in ["ipv6-bug-abnf-3-colons", "ipv6-correct-abnf-2-colons"] {
        view(name, |m| {
            assert_eq!(UriRef::parse(m.uri()).unwrap().host.addr(), addr("2001:db8::192.0.2.1"));
        });
    }
}
