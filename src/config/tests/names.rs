//! Hosts, domains, prefixes and next hops.

use super::super::names::{dns_server, domain_pattern, host, host_port, next_hop, prefix, strippable_header};
use super::super::*;

fn name(text: &str) -> Host {
    Host::Name(text.into())
}

fn addr(text: &str) -> Host {
    Host::Addr(text.parse().unwrap())
}

#[test]
fn names_lose_case_and_final_dot() {
    assert_eq!(host("Example.COM.").unwrap(), name("example.com"));
    assert_eq!(host("localhost").unwrap(), name("localhost"));
    assert_eq!(host("sbc_1.internal").unwrap(), name("sbc_1.internal"));
    assert_eq!(host("xn--bcher-kva.example").unwrap(), name("xn--bcher-kva.example"));
}

#[test]
fn addresses_are_told_from_names() {
    assert_eq!(host("192.0.2.7").unwrap(), addr("192.0.2.7"));
    assert_eq!(host("[2001:DB8::7]").unwrap(), addr("2001:db8::7"));
    for bad in ["192.0.2.300", "10.1", "1", "2001:db8::7", "[2001:db8::7", "[192.0.2.7]", "[]"] {
        assert!(host(bad).is_err(), "{bad}");
    }
}

#[test]
fn what_is_no_name_is_refused() {
    let long = "a.".repeat(127) + "abc";
    let label = "a".repeat(64);
    for bad in [
        "",
        ".",
        "a..b",
        "-a.test",
        "a-.test",
        "a b",
        "a/b",
        "bücher.example",
        "*.a.test",
        "sip:a.test",
        "a.test:5060",
        &long,
        &label,
    ] {
        assert!(host(bad).is_err(), "{bad}");
    }
}

#[test]
fn a_port_is_only_what_follows_the_host() {
    assert_eq!(host_port("a.test").unwrap(), (name("a.test"), None));
    assert_eq!(host_port("a.test:5070").unwrap(), (name("a.test"), Some(5070)));
    assert_eq!(host_port("[2001:db8::7]").unwrap(), (addr("2001:db8::7"), None));
    assert_eq!(host_port("[2001:db8::7]:5070").unwrap(), (addr("2001:db8::7"), Some(5070)));
    for bad in [
        "2001:db8::7",
        "a.test:",
        "a.test:0",
        "a.test:65536",
        "a.test:+5",
        "[2001:db8::7]5070",
        ":5060",
        "a:b:c",
    ] {
        assert!(host_port(bad).is_err(), "{bad}");
    }
}

#[test]
fn patterns_are_exact_or_all_below() {
    assert_eq!(domain_pattern("*.Example.com").unwrap(), DomainPattern::Below("example.com".to_owned()));
    assert_eq!(domain_pattern("example.com").unwrap(), DomainPattern::Exact(name("example.com")));
    for bad in ["*", "*.", "**.a.test", "a.*.test", "*a.test", "*.*.test", "*.192.0.2.7", "*.[2001:db8::7]"] {
        assert!(domain_pattern(bad).is_err(), "{bad}");
    }
}

#[test]
fn a_prefix_may_be_an_address() {
    assert_eq!(prefix("192.0.2.7").unwrap(), ("192.0.2.7/32".parse().unwrap(), false));
    assert_eq!(prefix("::1").unwrap(), ("::1/128".parse().unwrap(), false));
    assert_eq!(prefix("10.1.0.0/8").unwrap(), ("10.0.0.0/8".parse().unwrap(), true));
    for bad in ["", "10/8", "10.0.0.0/", "10.0.0.0/33", "[::1]", "a.test", "::/129", "10.0.0.0/-1"] {
        assert!(prefix(bad).is_err(), "{bad}");
    }
}

#[test]
fn dns_servers_are_addresses_with_an_optional_port() {
    assert_eq!(dns_server("[::1]").unwrap(), "[::1]:53".parse().unwrap());
    for bad in ["ns.test", "192.0.2.1:0", "192.0.2.1:", "", "[192.0.2.1"] {
        assert!(dns_server(bad).is_err(), "{bad}");
    }
}

#[test]
fn next_hops_are_uris_of_a_host() {
    let hop = next_hop("SIPS:[2001:db8::7]:5071;transport=tcp").unwrap();
    assert!(hop.sips);
    assert_eq!((hop.host, hop.port, hop.transport), (addr("2001:db8::7"), Some(5071), Some(Transport::Tcp)));
    let hop = next_hop("sip:a.test").unwrap();
    assert_eq!((hop.host, hop.port, hop.transport, hop.sips), (name("a.test"), None, None, false));
    for bad in [
        "a.test",
        "sip:",
        "sip:;transport=udp",
        "sip:a.test;",
        "sip:a.test;transport",
        "sip:a.test;transport=udp;transport=tcp",
        "sip:a.test?Subject=x",
        "<sip:a.test>",
        "sip://a.test",
        "sip:224.0.0.1",
        "sip:[::]",
    ] {
        assert!(next_hop(bad).is_err(), "{bad}");
    }
}

#[test]
fn only_what_a_message_can_do_without_may_be_stripped() {
    assert_eq!(strippable_header("P-Asserted-Identity").unwrap(), "p-asserted-identity");
    assert_eq!(strippable_header("Y").unwrap(), "identity");
    for bad in ["", "X Y", "X:", "Via", "v", "CALL-ID", "i", "m", "l", "Record-Route", "CSeq"] {
        assert!(strippable_header(bad).is_err(), "{bad}");
    }
}
