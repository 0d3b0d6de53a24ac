//! The check of a zone: each fault in a zone file that is good otherwise, and the suggested records.

#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use sbe::location::zone::{Report, Severity, check};
use sbe::runtime::dns::{Asked, ZoneFile, survey};

const GOOD: &str = r#"$ORIGIN a.test.
$TTL 1h
@ SOA ns hostmaster 1 1h 15m 1w 600
@ 1d NAPTR 10 10 "s" "SIPS+D2T" "" _sips._tcp
@ 1d NAPTR 20 10 "s" "SIP+D2T" "" _sip._tcp
@ 1d NAPTR 30 10 "s" "SIP+D2U" "" _sip._udp
_sips._tcp SRV 10 10 5061 s1
_sips._tcp SRV 10 20 5061 s2
_sip._tcp SRV 10 10 5060 s1
_sip._tcp SRV 10 20 5060 s2
_sip._udp SRV 10 10 5060 s1
_sip._udp SRV 10 20 5060 s2
s1 A 198.51.100.1
s1 AAAA 2001:db8::1
s2 A 198.51.100.2
s2 AAAA 2001:db8::2
"#;

fn report(zone: &str) -> Report {
    let file = Arc::new(ZoneFile::parse(zone, "a.zone", Some("a.test")).unwrap());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    check(&runtime.block_on(survey("a.test", &[Asked::File(file)])).unwrap())
}

/// Codes with severity, those of a good zone left out.
fn codes(report: &Report) -> Vec<(Severity, &'static str)> {
    let mut codes: Vec<_> =
        report.findings.iter().filter(|f| f.code != "tls_identity").map(|f| (f.severity, f.code)).collect();
    codes.dedup();
    codes
}

/// The good zone without the lines that hold one text, with others instead.
fn changed(without: &[&str], with: &str) -> String {
    let kept: Vec<&str> = GOOD.lines().filter(|line| !without.iter().any(|w| line.contains(w))).collect();
    format!("{}\n{with}\n", kept.join("\n"))
}

use Severity::{Error, Info, Warning};

#[test]
fn a_good_zone_has_no_fault_and_is_what_is_suggested() {
    let report = report(GOOD);
    assert_eq!(codes(&report), [], "{report:#?}");
    let records: Vec<String> = report.fragment.lines().skip(2).map(|l| l.replace(" IN ", " ")).collect();
    let same: Vec<&str> = GOOD.lines().skip(3).collect();
    for line in &same {
        assert!(records.iter().any(|r| r == line), "{line} in\n{}", report.fragment);
    }
    assert_eq!(records.len(), same.len());
}

#[test]
fn each_fault_is_found_and_nothing_else() {
    type Case = (&'static str, &'static [&'static str], &'static str, &'static [(Severity, &'static str)]);
    let cases: &[Case] = &[
        ("no NAPTR", &["NAPTR"], "", &[(Warning, "no_naptr")]),
        (
            "addresses only",
            &["NAPTR", "SRV"],
            "@ A 198.51.100.1\n@ AAAA 2001:db8::1",
            &[(Warning, "no_naptr")],
        ),
        ("nothing", &["NAPTR", "SRV"], "", &[(Error, "no_service")]),
        ("flag", &["D2U"], "@ 1d NAPTR 30 10 u SIP+D2U \"\" _sip._udp", &[(Error, "naptr_flag")]),
        ("regexp", &["D2U"], "@ 1d NAPTR 30 10 s SIP+D2U \"!^.*$!x!\" _sip._udp", &[(Error, "naptr_regexp")]),
        ("root", &["D2U"], "@ 1d NAPTR 30 10 s SIP+D2U \"\" .", &[(Error, "naptr_replacement")]),
        ("no SRV", &["D2U"], "@ 1d NAPTR 30 10 s SIP+D2U \"\" _sip._upd", &[(Error, "naptr_without_srv")]),
        (
            "typo",
            &["D2U"],
            "@ 1d NAPTR 30 10 s SIP-D2U \"\" _sip._udp",
            &[(Error, "naptr_service"), (Warning, "srv_without_naptr")],
        ),
        (
            "service of no transport",
            &[],
            "@ 1d NAPTR 40 10 s SIPS+D2U \"\" _sips._udp",
            &[(Error, "naptr_service")],
        ),
        (
            "foreign service",
            &[],
            "@ 1d NAPTR 40 10 u E2U+sip \"!^.*$!sip:x@a.test!\" .",
            &[(Info, "naptr_foreign")],
        ),
        ("SCTP", &[], "@ 1d NAPTR 40 10 s SIP+D2S \"\" _sip._sctp", &[(Info, "naptr_other_sip")]),
        ("SRV without NAPTR", &["D2U"], "", &[(Warning, "srv_without_naptr")]),
        ("missing service", &["D2T\" \"\" _sips", "_sips._tcp SRV"], "", &[(Warning, "service_missing")]),
        ("order", &["D2U"], "@ 1d NAPTR 5 10 s SIP+D2U \"\" _sip._udp", &[(Warning, "naptr_order")]),
        (
            "equal order",
            &["D2U"],
            "@ 1d NAPTR 10 10 s SIP+D2U \"\" _sip._udp",
            &[(Info, "naptr_equal_order")],
        ),
        ("NAPTR twice", &[], "@ 1d NAPTR 40 10 S sip+d2u \"\" _SIP._udp", &[(Warning, "naptr_duplicate")]),
        (
            "service of another name",
            &["D2U"],
            "@ 1d NAPTR 30 10 s SIP+D2U \"\" _sip._tcp",
            &[(Warning, "naptr_other_transport")],
        ),
        (
            "alias",
            &["_sip._udp SRV 10 20"],
            "_sip._udp SRV 10 20 5060 other\nother CNAME s2",
            &[(Error, "srv_target_alias")],
        ),
        (
            "literal",
            &["_sip._udp SRV 10 20"],
            "_sip._udp SRV 10 20 5060 198.51.100.2.",
            &[(Error, "srv_literal"), (Warning, "single_instance")],
        ),
        ("no address", &[], "_sip._udp SRV 20 20 5060 s3\n", &[(Error, "srv_target_address")]),
        ("outside", &[], "_sip._udp SRV 20 20 5060 s3.b.test.\n", &[(Info, "not_in_file")]),
        ("not offered, mixed", &[], "_sip._udp SRV 0 0 0 .", &[(Error, "srv_not_offered_mixed")]),
        (
            "not offered, named",
            &["_sip._udp SRV"],
            "_sip._udp SRV 0 0 0 .",
            &[(Error, "srv_not_offered_named")],
        ),
        (
            "not offered",
            &["_sip._udp SRV", "D2U"],
            "_sip._udp SRV 0 0 0 .",
            &[(Warning, "srv_without_naptr"), (Info, "srv_not_offered")],
        ),
        (
            "port 0",
            &["_sip._udp SRV 10 20"],
            "_sip._udp SRV 10 20 0 s2",
            &[(Error, "srv_port"), (Warning, "single_instance")],
        ),
        (
            "port of TLS",
            &["_sip._udp SRV 10 20"],
            "_sip._udp SRV 10 20 5061 s2",
            &[(Warning, "srv_port_unusual")],
        ),
        ("duplicate", &[], "_sip._udp SRV 20 5 5060 s2", &[(Warning, "srv_duplicate")]),
        (
            "zero weight",
            &["_sip._udp SRV 10 20"],
            "_sip._udp SRV 10 0 5060 s2",
            &[(Warning, "srv_zero_weight")],
        ),
        ("reserve", &["_sip._udp SRV 10 20"], "_sip._udp SRV 20 0 5060 s2", &[]),
        (
            "all zero",
            &["_sip._udp SRV"],
            "_sip._udp SRV 10 0 5060 s1\n_sip._udp SRV 10 0 5060 s2",
            &[(Info, "srv_all_zero")],
        ),
        ("one instance", &["_sip._udp SRV 10 20"], "", &[(Warning, "single_instance")]),
        (
            "one address",
            &["s2 A", "s2 AAAA"],
            "s2 A 198.51.100.1\ns2 AAAA 2001:db8::1",
            &[(Warning, "one_address")],
        ),
        ("no IPv6", &["AAAA"], "", &[(Info, "only_ipv4")]),
        ("no IPv4", &["s1 A ", "s2 A "], "", &[(Warning, "only_ipv6")]),
        ("multicast", &[], "s1 A 224.0.0.1", &[(Error, "address_unusable")]),
        ("private", &[], "s1 A 10.0.0.1", &[(Warning, "address_scope")]),
        ("loopback", &[], "s1 AAAA ::1", &[(Warning, "address_scope")]),
        (
            "short SRV",
            &["_udp SRV"],
            "_sip._udp 10m SRV 1 1 5060 s1\n_sip._udp 10m SRV 1 1 5060 s2",
            &[(Info, "ttl_short"), (Info, "ttl_differ")],
        ),
        (
            "very short SRV",
            &["_udp SRV"],
            "_sip._udp 30 SRV 1 1 5060 s1\n_sip._udp 30 SRV 1 1 5060 s2",
            &[(Warning, "ttl_short"), (Info, "ttl_differ")],
        ),
        (
            "long SRV",
            &["_udp SRV"],
            "_sip._udp 2d SRV 1 1 5060 s1\n_sip._udp 2d SRV 1 1 5060 s2",
            &[(Warning, "ttl_long"), (Info, "ttl_differ")],
        ),
        (
            "uneven",
            &["_udp SRV"],
            "_sip._udp 1h SRV 1 1 5060 s1\n_sip._udp 2h SRV 1 1 5060 s2",
            &[(Warning, "ttl_uneven")],
        ),
        ("zero", &["s1 A "], "s1 0 A 198.51.100.1", &[(Warning, "ttl_zero")]),
        ("long address", &["s1 A "], "s1 4d A 198.51.100.1", &[(Info, "ttl_long")]),
        (
            "circle",
            &[],
            "_sip._udp SRV 20 1 5060 x\nx CNAME y\ny CNAME x",
            &[(Error, "alias_loop"), (Error, "srv_target_alias")],
        ),
    ];
    for (name, without, with, want) in cases {
        let report = report(&changed(without, with));
        assert_eq!(codes(&report), *want, "{name}: {report:#?}");
        for f in &report.findings {
            assert!(f.why.contains("RFC ") && !f.remedy.is_empty() && !f.about.is_empty(), "{name}: {f:?}");
        }
    }
}

#[test]
fn naptr_ttls_are_judged_by_a_day() {
    for (ttl, want) in [
        ("1d", None),
        ("8h", None),
        ("3d", None),
        ("1h", Some((Info, "ttl_short"))),
        ("30m", Some((Warning, "ttl_short"))),
        ("4d", Some((Info, "ttl_long"))),
        ("8d", Some((Warning, "ttl_long"))),
    ] {
        let report = report(&GOOD.replace("@ 1d NAPTR", &format!("@ {ttl} NAPTR")));
        assert_eq!(codes(&report), Vec::from_iter(want), "{ttl}");
    }
}

#[test]
fn what_is_suggested_has_no_error_itself_and_keeps_the_servers() {
    let cases = [
        changed(&["NAPTR", "SRV", "s1", "s2"], "@ TXT x"),
        changed(&["NAPTR"], ""),
        changed(&["D2U", "_udp"], ""),
        changed(&["D2U"], "@ 1d NAPTR 30 10 s SIP+D2U \"\" _sip._tcp"),
        changed(
            &["D2U", "D2T\" \"\" _sip."],
            "@ 1d NAPTR 30 10 s SIP+D2U \"\" x\n@ 1d NAPTR 20 10 s SIP+D2T \"\" x\nx SRV 1 1 5060 s1\nx SRV 1 1 5060 s2",
        ),
        changed(
            &["_sip._udp SRV 10 20"],
            "_sip._udp SRV 10 0 0 198.51.100.2.\n_sip._udp SRV 10 5 5060 other\nother CNAME s2",
        ),
        changed(&["_sips._tcp SRV"], "_sips._tcp SRV 0 0 0 .\n_sips._tcp SRV 1 0 5061 gone"),
        changed(&[], "@ 1d NAPTR 10 10 u SIP+D2X \"!a!b!\" ."),
        changed(
            &["SRV"],
            "_sip._udp SRV 1 1 5070 s1.b.test.\n$ORIGIN b.test.\n@ SOA ns h 1 1 1 1 1\ns1 A 198.51.100.1",
        ),
        changed(
            &["D2U"],
            "@ 1d NAPTR 30 10 s SIP+D2U \"\" _sip._udp.b.test.\n$ORIGIN b.test.\n@ SOA ns h 1 1 1 1 1\n_sip._udp SRV 1 1 5060 s\ns A 198.51.100.1",
        ),
    ];
    for zone in cases {
        let first = report(&zone);
        // Where the other zone is needed, it is that of the case.
        let other = zone
            .split_once("$ORIGIN b.test.")
            .map(|(_, b)| format!("$ORIGIN b.test.{b}"))
            .unwrap_or_default();
        let again = report(&format!("{}$ORIGIN a.test.\n@ SOA ns h 1 1 1 1 600\n{other}", first.fragment));
        assert_eq!(again.count(Error), 0, "{zone}\n{}\n{again:#?}", first.fragment);
        let plain: Vec<_> = codes(&again)
            .into_iter()
            .filter(|(_, code)| !["single_instance", "only_ipv4"].contains(code))
            .collect();
        assert_eq!(plain, [], "{zone}\n{}", first.fragment);
    }
    let kept = report(&changed(&["NAPTR"], "_sip._udp SRV 30 7 5070 s3\ns3 A 198.51.100.3")).fragment;
    for line in [
        "_sip._udp IN SRV 30 7 5070 s3",
        "s3 IN A 198.51.100.3",
        "; TODO: s3 IN AAAA, if the server can have one",
    ] {
        assert!(kept.contains(line), "{line} in\n{kept}");
    }
}
