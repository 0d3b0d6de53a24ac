//! What checked values come out of what text.

use std::path::PathBuf;
use std::time::Duration;

use proptest::prelude::*;

use super::super::*;
use super::{BARE, CORE, config, errors};

#[test]
fn a_bare_configuration_has_the_defaults() {
    let c = config("");
    assert_eq!(c.node, Node { name: Host::Name("sbe1.example.com".into()), domains: vec![] });
    assert_eq!(c.listen.len(), 1);
    assert_eq!(c.listen[0].realm, Realm::Both);
    assert_eq!(c.listen[0].advertise, None);
    assert_eq!(c.sip, Sip::default());
    assert_eq!(c.health, Health::default());
    assert_eq!(c.calls_max_age, Duration::from_secs(12 * 3600));
    assert_eq!(c.dns, Dns::default());
    assert_eq!(c.core, Core::default());
    assert_eq!(c.runtime, Runtime::default());
    assert_eq!(c.log, Log::default());
    assert_eq!(c.limits, Limits::default());
    assert_eq!(c.admin, Some("127.0.0.1:9060".parse().unwrap()));
    assert!(c.tls.is_none() && c.alto.is_none() && c.peers.is_empty() && c.routes.is_empty());
    assert!(!c.federation_open);
}

#[test]
fn the_defaults_are_those_of_the_manual() {
    let (sip, health, dns) = (Sip::default(), Health::default(), Dns::default());
    let ms = Duration::from_millis;
    assert_eq!((sip.t1, sip.t2, sip.t4), (ms(500), ms(4000), ms(5000)));
    assert_eq!((sip.timer_c, sip.idle_timeout), (ms(185_000), ms(600_000)));
    assert_eq!((sip.message_timeout, sip.try_timeout, sip.connect_timeout), (ms(10_000), ms(3000), ms(1000)));
    assert_eq!((sip.failover_codes.as_slice(), sip.max_tries, sip.max_message), (&[503][..], 10, 65_536));
    assert_eq!(
        (health.hold_down, health.hold_down_max, health.retry_after_max),
        (ms(2000), ms(60_000), ms(3_600_000))
    );
    assert_eq!((health.slow_start, health.max_probed_down), (ms(10_000), 1.0));
    assert_eq!((dns.min_ttl, dns.max_ttl, dns.negative_ttl), (ms(0), ms(86_400_000), ms(60_000)));
    assert_eq!((dns.timeout, dns.stale_ttl), (ms(5000), ms(3_600_000)));
    assert_eq!(
        (dns.sticky, dns.srv_selection, dns.addresses),
        (Sticky::Call, SrvSelection::Exact, Families::Both)
    );
    assert_eq!(dns.transports, [Transport::Tls, Transport::Tcp, Transport::Udp]);
    assert_eq!(Runtime::default(), Runtime { workers: 0, drain_timeout: ms(30_000), udp_segmentation: true });
}

/// The `[[peer]]` with this behind its `probe`.
fn probing(alive: &str) -> Result<Alive, String> {
    let text = format!(
        "[node]\nname = \"n.test\"\n[[listen]]\ntransport = \"udp\"\nbind = \"127.0.0.1:5060\"\n\
         [core]\nsources = [\"10.0.0.1\"]\n[[peer]]\nname = \"a\"\ndomains = [\"a.test\"]\nprobe = {{ {alive} }}\n"
    );
    match crate::config::parse(&text, "t") {
        Ok((c, _)) => Ok(c.peers[0].probe.as_ref().unwrap().alive.clone()),
        Err(errors) => Err(errors[0].to_string()),
    }
}

#[test]
fn which_answers_to_a_probe_are_good_can_be_listed() {
    let usual = probing("interval = \"30s\"").unwrap();
    let listed = probing("alive = [\"2xx\", \"404\", \"405\"]").unwrap();
    for (status, by_default, as_listed) in [
        (200, true, true),
        (202, true, true),
        (404, true, true),
        (405, true, true),
        (403, true, false),
        (503, false, false),
        (500, true, false),
        (603, true, false),
    ] {
        assert_eq!((usual.counts(status), listed.counts(status)), (by_default, as_listed), "{status}");
    }
    assert!(probing("alive = [\"503\"]").unwrap().counts(503), "as it is written");
    for wrong in ["\"1xx\"", "\"99\"", "\"700\"", "\"ok\"", "\"xx\"", "\"20x\""] {
        let error = probing(&format!("alive = [{wrong}]")).unwrap_err();
        assert!(error.contains("is neither a final status code nor a class of them"), "{error}");
    }
    assert!(probing("alive = []").unwrap_err().contains("every probe fails"));
}

#[test]
fn written_values_replace_the_defaults() {
    let c = config(
        "[sip]\nt1 = \"100ms\"\nfailover_codes = [503, 500, 503]\nmax_message = 131072\ndialog_secret_file = \"s\"\n\
         [health]\nretry_after_max = \"0s\"\n[calls]\nmax_age = \"1d\"\n\
         [dns]\nservers = [\"127.0.0.53\", \"[2001:db8::53]\", \"2001:db8::54\", \"192.0.2.1:5353\"]\ntransports = [\"udp\"]\n\
         sticky = \"ttl\"\naddresses = \"ipv6\"\nsrv_selection = \"rfc2782\"\n\
         [runtime]\nworkers = 2\n[log]\nformat = \"json\"\nlevel = \"info,sbe::proxy=debug\"\n[admin]\nbind = \"\"\n\
         [limits]\nrecords = 0\nwrite_queue = \"64KiB\"\n",
    );
    assert_eq!(c.sip.t1, Duration::from_millis(100));
    assert_eq!(c.sip.failover_codes, [500, 503], "sorted, each once");
    assert_eq!(c.sip.max_message, 131_072);
    assert_eq!(c.sip.dialog_secret_file, Some(PathBuf::from("s")));
    assert_eq!(c.health.retry_after_max, Duration::ZERO);
    assert_eq!(c.calls_max_age, Duration::from_secs(86_400));
    let servers: Vec<String> = c.dns.servers.iter().map(ToString::to_string).collect();
    assert_eq!(servers, ["127.0.0.53:53", "[2001:db8::53]:53", "[2001:db8::54]:53", "192.0.2.1:5353"]);
    assert_eq!(c.dns.transports, [Transport::Udp]);
    assert_eq!((c.dns.sticky, c.dns.addresses), (Sticky::Ttl, Families::Ipv6));
    assert_eq!(c.dns.srv_selection, SrvSelection::Rfc2782);
    assert_eq!(c.runtime.workers, 2);
    assert_eq!(c.log, Log { json: true, level: "info,sbe::proxy=debug".to_owned() });
    assert_eq!(c.admin, None, "an empty bind turns the interface off");
    assert_eq!((c.limits.records, c.limits.write_queue), (0, 65_536));
}

#[test]
fn an_empty_failover_list_leaves_only_silence_and_send_failures() {
    assert!(config("[sip]\nfailover_codes = []\n").sip.failover_codes.is_empty());
}

#[test]
fn t1_is_10_to_500_ms_for_the_node_and_for_each_peer() {
    for good in ["10ms", "500ms"] {
        config(&format!(
            "{CORE}[sip]\nt1 = \"{good}\"\n[[peer]]\nname = \"p\"\ndomains = [\"p.test\"]\nt1 = \"{good}\"\n"
        ));
    }
    for bad in ["9ms", "501ms", "1s", "0s"] {
        let found = errors(&format!(
            "[sip]\nt1 = \"{bad}\"\n[[peer]]\nname = \"p\"\ndomains = [\"p.test\"]\nt1 = \"{bad}\"\n"
        ));
        let remedy = format!("t1 = \"{bad}\" is out of range, write a duration from 10ms to 500ms\n");
        assert_eq!(found, format!("t:7:6: {remedy}t:11:6: {remedy}"));
    }
}

#[test]
fn the_rules_of_a_peer_for_numbers_are_one_table_or_several() {
    let c = config(&format!(
        "{CORE}[[peer]]\nname = \"sp2\"\ndomains = [\"example2.com\"]\nsources = [\"192.0.2.1\"]\ntrust = false\n\
         numbers_out = {{ strip = \"+\", prefix = \"00\" }}\n\
         [[peer.numbers_in]]\nstrip = \"00\"\nprefix = \"+\"\n[[peer.numbers_in]]\nprefix = \"+49\"\n\
         [[peer]]\nname = \"sp3\"\ndomains = [\"example3.com\"]\nsources = [\"192.0.2.3\"]\n"
    ));
    let (p, other) = (&c.peers[0], &c.peers[1]);
    let rule = |strip: &str, prefix: &str| NumberRule { strip: strip.into(), prefix: prefix.into() };
    assert_eq!(p.numbers_out, [rule("+", "00")]);
    assert_eq!(p.numbers_in, [rule("00", "+"), rule("", "+49")]);
    assert!(other.numbers_in.is_empty() && other.numbers_out.is_empty());
    assert_eq!((p.trust, other.trust, c.federation_trust), (false, true, true));
}

#[test]
fn sources_hold_prefixes_and_names_apart() {
    let c = config(&format!(
        "{CORE}[[peer]]\nname = \"sp2\"\ndomains = [\"example2.com\"]\n\
         sources = [\"dns:Example2.COM.\", \"192.0.2.1\", \"dns:out.example2.com\", \"dns:example2.com\"]\n"
    ));
    let p = &c.peers[0];
    assert_eq!(p.sources, ["192.0.2.1/32".parse().unwrap()]);
    let names = ["example2.com", "out.example2.com"].map(|name| Host::Name(name.into()));
    assert_eq!(p.source_names, names);
}

#[test]
fn a_peer_keeps_everything_that_was_written_for_it() {
    let c = config(&format!(
        "{CORE}[[peer]]\nname = \"sp2\"\ndomains = [\"Example2.COM.\", \"*.example2.com\", \"192.0.2.7\", \"[2001:db8::7]\"]\n\
         next_hop = \"sip:Transit.example.net:5070;lr;transport=UDP\"\nsources = [\"198.51.100.0/24\", \"2001:db8::1\"]\n\
         tls_names = [\"SBE.example2.com\"]\ncertificate = \"c\"\nkey = \"k\"\nstrip_headers = [\"X-Trust\", \"s\"]\nmax_calls = 7\n\
         max_rate = 9\nt1 = \"100ms\"\ntry_timeout = \"2s\"\nfailover_codes = [500]\n\
         probe = {{ method = \"OPTIONS\", interval = \"10s\", down_after = 5 }}\n"
    ));
    let p = &c.peers[0];
    assert_eq!(
        p.domains,
        [
            DomainPattern::Exact(Host::Name("example2.com".into())),
            DomainPattern::Below("example2.com".to_owned()),
            DomainPattern::Exact(Host::Addr("192.0.2.7".parse().unwrap())),
            DomainPattern::Exact(Host::Addr("2001:db8::7".parse().unwrap())),
        ]
    );
    let hop = p.next_hop.as_ref().unwrap();
    assert_eq!(hop.uri, "sip:Transit.example.net:5070;lr;transport=UDP");
    assert_eq!((hop.sips, hop.port, hop.transport), (false, Some(5070), Some(Transport::Udp)));
    assert_eq!(hop.host, Host::Name("transit.example.net".into()));
    assert_eq!(p.sources, ["198.51.100.0/24".parse().unwrap(), "2001:db8::1/128".parse().unwrap()]);
    assert_eq!(p.tls_names.as_deref(), Some(&["sbe.example2.com".to_owned()][..]));
    assert_eq!(p.certificate, Some((PathBuf::from("c"), PathBuf::from("k"))));
    assert_eq!(p.strip_headers, ["x-trust", "subject"], "compact forms in full");
    assert_eq!((p.max_calls, p.max_rate), (Some(7), Some(9)));
    assert_eq!((p.t1, p.try_timeout), (Some(Duration::from_millis(100)), Some(Duration::from_secs(2))));
    assert_eq!(p.failover_codes.as_deref(), Some(&[500][..]));
    let probe = p.probe.as_ref().unwrap();
    assert_eq!((probe.interval, probe.timeout), (Duration::from_secs(10), Duration::from_secs(2)));
    assert_eq!((probe.down_after, probe.up_after), (5, 2));
}

#[test]
fn left_out_and_empty_tls_names_differ() {
    let peer = |more: &str| {
        config(&format!("{CORE}[[peer]]\nname = \"p\"\ndomains = [\"p.test\"]\n{more}")).peers.remove(0)
    };
    assert_eq!(peer("").tls_names, None);
    assert_eq!(peer("tls_names = []\n").tls_names, Some(vec![]));
}

#[test]
fn routes_hold_indices_of_peers_in_order_of_preference() {
    let peer = |n: &str| format!("[[peer]]\nname = \"{n}\"\ndomains = [\"{n}.test\"]\n");
    let c = config(&format!(
        "{CORE}{}{}[[route]]\nprefix = \"+44\"\npeers = [\"b\", \"a\"]\n[[route]]\nprefix = \"\"\npeers = [\"a\"]\n",
        peer("a"),
        peer("b")
    ));
    assert_eq!(
        c.routes,
        [
            RouteRule { prefix: "+44".to_owned(), peers: vec![1, 0] },
            RouteRule { prefix: String::new(), peers: vec![0] }
        ]
    );
}

#[test]
fn tls_trusts_the_system_unless_files_are_listed() {
    let tls = |more: &str| config(&format!("[tls]\ncertificate = \"c\"\nkey = \"k\"\n{more}")).tls.unwrap();
    for text in ["", "trust = \"system\"\n"] {
        assert!(tls(text).system_trust && tls(text).trust.is_empty());
    }
    let files = tls("trust = [\"a\", \"b\"]\nclient_certificates = \"none\"\n");
    assert!(!files.system_trust);
    assert_eq!(files.trust, [PathBuf::from("a"), PathBuf::from("b")]);
    assert_eq!(files.client_certificates, ClientCertificates::None);
    assert!(files.crl.is_empty());
    assert_eq!(tls("crl = [\"r\"]\n").crl, [PathBuf::from("r")]);
    assert_eq!(tls("").client_certificates, ClientCertificates::Require);
}

#[test]
fn alto_has_defaults_for_all_but_the_directory_and_keeps_the_table() {
    let alto = config(
        "[alto]\ndirectory = \"http://127.0.0.1:8181/d\"\nsource = \"192.0.2.10\"\nmode = \"ordinal\"\n",
    )
    .alto
    .unwrap();
    assert_eq!(alto.mode, AltoMode::Ordinal);
    assert_eq!((alto.rule, alto.scope), (AltoRule::Classes, AltoScope::WithinPriority));
    assert_eq!((alto.metric.as_str(), alto.refresh), ("routingcost", None));
    assert_eq!((alto.persist, alto.hold_down), (2, Duration::from_secs(60)));
    assert_eq!(alto.source, Some("192.0.2.10".parse().unwrap()));
    assert_eq!(alto.table.len(), 3);
    let alto = config(
        "[alto]\ndirectory = \"file:///c\"\n[[alto.override]]\nprefix = \"192.0.2.0/24\"\ncost = 2.5\n",
    )
    .alto
    .unwrap();
    assert_eq!(alto.overrides, [("192.0.2.0/24".parse().unwrap(), 2.5)]);
}

#[test]
fn sources_lose_bits_beyond_their_prefix_and_repetitions() {
    let c = config("[core]\nnext_hops = [\"sip:10.0.0.5\"]\nsources = [\"10.1.2.3/8\", \"10.0.0.0/8\"]\n");
    assert_eq!(c.core.sources, ["10.0.0.0/8".parse().unwrap()]);
}

#[test]
fn a_flawed_listener_does_not_make_the_file_lack_one() {
    let text = "[node]\nname = \"a.test\"\n[[listen]]\ntransport = \"udp\"\nbind = \"x\"\n[core]\nsources = [\"10.0.0.0/8\"]\n";
    let found: Vec<String> = parse(text, "t").unwrap_err().iter().map(ToString::to_string).collect();
    assert_eq!(found.len(), 1, "{found:?}");
}

proptest! {
    #[test]
    fn no_damage_to_a_file_makes_the_check_panic(at in 0usize..20_000, cut in 0usize..40, put in "[a-z0-9\\[\\]\"=.,*:{}\n# é-]{0,6}") {
        let text = include_str!("../../../config/direct-peering.toml");
        let floor = |i: usize| (0..=i.min(text.len())).rev().find(|i| text.is_char_boundary(*i)).unwrap();
        let (from, to) = (floor(at % text.len()), floor(at % text.len() + cut));
        let damaged = format!("{}{put}{}", &text[..from], &text[to..]);
        if let Err(errors) = parse(&damaged, "t") {
            let lines = damaged.lines().count() + 1;
            prop_assert!(!errors.is_empty());
            for e in errors {
                prop_assert!(e.line >= 1 && e.line <= lines && e.column >= 1, "{e}");
                prop_assert!(!e.to_string().contains('\n') && !e.remedy.is_empty() && !e.what.is_empty());
            }
        }
    }

    #[test]
    fn no_text_makes_the_check_panic(text in "\\PC{0,200}") {
        let _ = parse(&text, "t").map_err(|e| assert!(!e.is_empty()));
        let _ = parse(&format!("{BARE}{text}"), "t").map_err(|e| assert!(!e.is_empty()));
    }
}
