//! What works, but hardly as intended.

use super::{BARE, CORE, warnings};

const PEER: &str = "[[peer]]\nname = \"a\"\ndomains = [\"a.test\"]\nsources = [\"192.0.2.0/28\"]\n";

/// The warnings of a text after the bare one, which has five lines, and a core, which has three.
fn found(more: &str) -> String {
    warnings(&format!("{BARE}{CORE}{more}"))
}

#[test]
fn a_sensible_configuration_has_none() {
    assert_eq!(warnings(BARE), "");
    assert_eq!(found(PEER), "");
}

#[test]
fn a_listener_on_an_unusual_port_without_a_name_of_its_own() {
    let listen = |bind: &str, more: &str| {
        format!("[node]\nname = \"a.test\"\n[[listen]]\ntransport = \"udp\"\nbind = \"{bind}\"\n{more}")
    };
    let text = warnings(&listen("192.0.2.1:5070", ""));
    assert!(
        text.starts_with("t:5:8: warning: udp on port 5070 instead of 5060: Via will say name:port, "),
        "{text}"
    );
    assert_eq!(warnings(&listen("192.0.2.1:5070", "advertise = \"a.test:5070\"\n")), "");
    assert_eq!(warnings(&listen("0.0.0.0:5060", "advertise = \"a.test\"\n")), "");
    assert!(warnings(&listen("127.0.0.1:0", "")).contains("port 0 is another port at every start"));
}

#[test]
fn timers_that_cut_calls_or_never_apply() {
    assert!(found("[sip]\ntimer_c = \"3m\"\n").starts_with("t:10:11: warning: timer_c = 3m cuts calls"));
    assert_eq!(found("[sip]\ntimer_c = \"181s\"\n"), "");
    assert!(
        found("[sip]\ntry_timeout = \"33s\"\n")
            .contains("try_timeout = 33s is longer than 64*T1 = 32s, 32s will be used")
    );
    assert_eq!(found("[sip]\ntry_timeout = \"32s\"\n"), "");
    assert!(found("[sip]\ntry_timeout = \"300ms\"\n").contains("shorter than T1"));
    assert_eq!(found("[sip]\nt1 = \"10ms\"\n"), "", "a default that is too long is cut without a word");
    let peer = format!("{PEER}t1 = \"100ms\"\ntry_timeout = \"7s\"\n");
    assert!(found(&peer).contains("longer than 64*T1 = 6400ms"), "the peer's own T1 counts");
}

#[test]
fn failover_codes_that_take_something_from_the_caller() {
    let text = found("[sip]\nfailover_codes = [401, 407, 487, 503, 603]\n");
    let columns: Vec<&str> = text.lines().map(|l| l.split(": ").next().unwrap()).collect();
    assert_eq!(columns, ["t:10:19", "t:10:24", "t:10:29", "t:10:39"], "{text}");
}

#[test]
fn small_messages_only() {
    assert!(found("[sip]\nmax_message = \"8KiB\"\n").contains("max_message = 8192 refuses datagrams"));
    assert!(found("[sip]\nmax_header = \"1MiB\"\n").contains("max_header is above max_message"));
}

#[test]
fn sources_that_admit_everyone_or_tie() {
    let peer = |name: &str, sources: &str| {
        format!("[[peer]]\nname = \"{name}\"\ndomains = [\"{name}.test\"]\nsources = [\"{sources}\"]\n")
    };
    assert!(
        found(&peer("a", "0.0.0.0/0"))
            .starts_with("t:12:12: warning: \"0.0.0.0/0\" admits every IPv4 address")
    );
    assert!(found(&peer("a", "::/0")).contains("admits every IPv6 address"));
    let tie = found(&(peer("a", "192.0.2.0/24") + &peer("b", "192.0.2.0/24")));
    assert!(
        tie.starts_with(
            "t:16:12: warning: tie: \"192.0.2.0/24\" is in the sources of peer \"a\" too, which comes first"
        ),
        "{tie}"
    );
    let core = found(&peer("a", "10.0.0.0/8"));
    assert!(core.contains("tie: \"10.0.0.0/8\" is in the sources of the core too, which wins"), "{core}");
    assert_eq!(
        found(&(peer("a", "192.0.2.0/24") + &peer("b", "192.0.2.0/25"))),
        "",
        "the longer prefix decides"
    );
    assert!(
        found(&peer("a", "192.0.2.1/24"))
            .contains("bits are set beyond the prefix, it is read as \"192.0.2.0/24\"")
    );
}

#[test]
fn a_peer_that_nothing_comes_from() {
    let text = found("[[peer]]\nname = \"a\"\ndomains = [\"a.test\"]\n");
    assert!(text.starts_with("t:9:1: warning: nobody is taken for peer \"a\""), "{text}");
}

#[test]
fn a_next_hop_that_nothing_goes_to() {
    let text = found("[[peer]]\nname = \"a\"\nsources = [\"192.0.2.0/28\"]\nnext_hop = \"sip:t.test\"\n");
    assert!(text.starts_with("t:12:12: warning: peer \"a\" has a next_hop but no domains"), "{text}");
}

#[test]
fn next_hops_that_no_listener_can_reach() {
    for (hop, says) in [
        ("sips:t.test", "needs tls, and no tls listener serves the peering side"),
        ("sip:t.test;transport=tls", "needs tls, and no tls listener"),
        ("sip:t.test;transport=tcp", "needs tcp, and no tcp listener"),
        ("sip:[2001:db8::7]", "needs IPv6, and no listener that fits has an IPv6 address"),
        ("sip:192.0.2.10", "is a listener of this element"),
    ] {
        let text = found(&format!("{PEER}next_hop = \"{hop}\"\n"));
        assert!(text.contains(says) && text.starts_with("t:13:12: warning: "), "{hop}: {text}");
    }
    assert_eq!(found(&format!("{PEER}next_hop = \"sip:t.test\"\n")), "", "the DNS may say UDP");
    let core = warnings(&format!(
        "{BARE}[core]\nsources = [\"10.0.0.0/8\"]\nnext_hops = [\"sip:10.0.0.5\", \"sip:c.test;transport=tcp\"]\n"
    ));
    assert!(core.contains("t:8:30: warning: ") && core.contains("serves the core side"), "{core}");
}

#[test]
fn tls_that_is_never_used() {
    let tls = "[tls]\ncertificate = \"c\"\nkey = \"k\"\n";
    assert!(found(tls).contains("[tls] without a tls listener"));
    assert!(found(&format!("{PEER}tls_names = [\"x.test\"]\n")).contains("tls_names without a tls listener"));
    assert!(
        found(&format!("{PEER}certificate = \"c\"\nkey = \"k\"\n")).contains("no tls listener serves peers")
    );
    let listen = "[[listen]]\ntransport = \"tls\"\nbind = \"192.0.2.10:5061\"\n";
    assert_eq!(
        found(&format!("{tls}{listen}{PEER}tls_names = [\"x.test\"]\ncertificate = \"c\"\nkey = \"k\"\n")),
        ""
    );
}

#[test]
fn certificates_that_name_two() {
    let listen = "[tls]\ncertificate = \"c\"\nkey = \"k\"\n[[listen]]\ntransport = \"tls\"\nbind = \"192.0.2.10:5061\"\n";
    let peer = |name: &str| {
        format!("[[peer]]\nname = \"{name}\"\ndomains = [\"{name}.test\"]\ntls_names = [\"x.test\"]\n")
    };
    let text = found(&format!("{listen}{}{}", peer("a"), peer("b")));
    assert!(text.contains("tie: a certificate for \"x.test\" is that of peer \"a\" too"), "{text}");
}

#[test]
fn own_domains_that_a_peer_claims() {
    let text = warnings(&format!(
        "{BARE}{CORE}[[peer]]\nname = \"a\"\ndomains = [\"sbe1.example.com\"]\nsources = [\"192.0.2.0/28\"]\n"
    ));
    assert!(
        text.starts_with("t:11:12: warning: \"sbe1.example.com\" is a domain of our own, which goes before"),
        "{text}"
    );
}

#[test]
fn a_core_that_no_call_can_come_from_or_go_to() {
    let text = warnings(&format!("{BARE}{PEER}"));
    assert!(
        text.contains("[core] has no next_hops") && text.contains("[core] has neither sources nor tls_names"),
        "{text}"
    );
}

#[test]
fn transports_without_a_listener_count_only_if_written() {
    let text = found("[dns]\ntransports = [\"udp\", \"tls\"]\n");
    assert!(text.starts_with("t:10:22: warning: tls in transports, but there is no tls listener"), "{text}");
    assert_eq!(found("[dns]\naddresses = \"both\"\n"), "");
}

#[test]
fn an_admin_interface_that_strangers_reach() {
    assert!(
        found("[admin]\nbind = \"0.0.0.0:9060\"\n")
            .starts_with("t:10:8: warning: without token_file nobody but this machine")
    );
    assert_eq!(found("[admin]\nbind = \"[::1]:9060\"\n"), "");
}

#[test]
fn an_alto_directory_without_tls() {
    assert!(found("[alto]\ndirectory = \"http://alto.test/d\"\n").contains("write https://"));
    assert_eq!(found("[alto]\ndirectory = \"http://127.0.0.1:8080/d\"\n"), "");
}

#[test]
fn an_agreement_on_costs_that_cannot_count() {
    let peers = |more: &str| {
        let head = "sources = [\"192.0.2.0/28\"]\nnext_hop = \"sip:192.0.2.3\"";
        format!(
            "[[peer]]\nname = \"a\"\ndomains = [\"a.test\"]\n{head}\nalto_scope = \"across-priorities\"\n{more}"
        )
    };
    let alto = "[alto]\ndirectory = \"https://alto.test/d\"\n";
    let text = found(&peers(""));
    assert!(text.contains("warning: alto_scope, but there is no [alto]"), "{text}");
    assert_eq!(found(&(peers("") + alto)), "");
    let second = "[[peer]]\nname = \"b\"\ndomains = [\"b.test\"]\nsources = [\"192.0.2.16/28\"]\nnext_hop = \"sip:192.0.2.3\"\n";
    let text = found(&(peers(second) + alto));
    assert!(
        text.contains("\"192.0.2.3\" is the next hop of peer \"a\" too, with another alto_scope"),
        "{text}"
    );
    assert_eq!(found(&(peers(&format!("{second}alto_scope = \"across-priorities\"\n")) + alto)), "");
}

#[test]
fn two_ways_to_say_who_we_are() {
    let ways = "token_file = \"Cargo.toml\"\ndigest_user = \"u\"\ndigest_password_file = \"Cargo.toml\"\n";
    let text = found(&format!("[alto]\ndirectory = \"https://alto.test/d\"\n{ways}"));
    assert!(
        text.contains("token_file and digest_user are two ways to say who we are, token_file is used"),
        "{text}"
    );
}

#[test]
fn a_wildcard_is_not_probed() {
    let peer = |more: &str| {
        found(&format!(
            "[[peer]]\nname = \"a\"\nsources = [\"192.0.2.0/28\"]\nprobe = {{ interval = \"30s\" }}\n{more}\n"
        ))
    };
    let text = peer("domains = [\"*.a.test\"]");
    assert!(text.starts_with("t:12:1: warning: peer \"a\" has nothing but wildcards"), "{text}");
    let text = peer("domains = [\"b.test\", \"*.a.test\"]");
    assert!(text.starts_with("t:13:22: warning: what \"*.a.test\" leads to is not probed"), "{text}");
    assert_eq!(peer("domains = [\"b.test\"]"), "");
    assert_eq!(peer("domains = [\"*.a.test\"]\nnext_hop = \"sip:192.0.2.3\""), "");
}

#[test]
fn an_idle_timeout_shorter_than_ringing_is_told() {
    let text = found("[sip]\nidle_timeout = \"30s\"\n");
    assert!(text.contains(":10:1") && text.contains("idle_timeout = 30s"), "{text}");
    assert_eq!(found("[sip]\nidle_timeout = \"185s\"\n"), "");
}
