//! Faults that an operator makes, and what is said about each: place, what is wrong, what would be right.

use super::{BARE, CORE, parse, warnings};

/// What a text after a bare one and a core makes `check` say, errors and warnings, without the file's name.
fn said(more: &str) -> Vec<String> {
    let lines = |text: String| text.lines().map(|l| l.strip_prefix("t:").unwrap_or(l).to_owned()).collect();
    match parse(&format!("{BARE}{CORE}{more}"), "t") {
        Ok((_, warnings)) => lines(warnings.iter().map(|w| format!("{w}\n")).collect()),
        Err(errors) => lines(errors.iter().map(|e| format!("{e}\n")).collect()),
    }
}

const PEER: &str = "[[peer]]\nname = \"a\"\ndomains = [\"a.test\"]\nsources = [\"192.0.2.0/28\"]\n";
const TLS: &str = "[[listen]]\ntransport = \"tls\"\nbind = \"192.0.2.10:5061\"\n";

/// Each fault, where it is said to be (line and column; what is added begins in line 9), and words of what is said.
#[test]
fn every_fault_is_told_with_its_place_and_a_remedy() {
    let peer = |more: &str| format!("{PEER}{more}\n");
    let sources = |s: &str| format!("[[peer]]\nname = \"a\"\ndomains = [\"a.test\"]\nsources = [\"{s}\"]\n");
    let listen = |transport: &str, bind: &str, more: &str| {
        format!("[[listen]]\ntransport = \"{transport}\"\nbind = \"{bind}\"\n{more}\n")
    };
    let table: Vec<(&str, String, &str, &str, &str)> = vec![
        ("a tls listener without a certificate", TLS.to_owned(), "9:1", "without [tls]", "add [tls]"),
        (
            "a peer by TLS without a tls listener",
            peer("next_hop = \"sips:t.test\""),
            "13:12",
            "needs tls",
            "add a [[listen]]",
        ),
        (
            "a peer of a family without a listener",
            "[[peer]]\nname = \"a\"\ndomains = [\"[2001:db8::7]\"]\nsources = [\"192.0.2.0/28\"]\n"
                .to_owned(),
            "11:12",
            "no listener for peers has an IPv6 address",
            "add a [[listen]] with an IPv6",
        ),
        (
            "a peer at our own address",
            "[[peer]]\nname = \"a\"\ndomains = [\"192.0.2.10\"]\nsources = [\"192.0.2.0/28\"]\n".to_owned(),
            "11:12",
            "is an address of this element",
            "name the peer's own",
        ),
        ("sources that two have", sources("10.0.0.0/8"), "12:12", "tie", "give each its own prefixes"),
        (
            "sources of everybody",
            sources("0.0.0.0/0"),
            "12:12",
            "admits every IPv4 address",
            "list the prefixes",
        ),
        (
            "sources of half the world",
            sources("128.0.0.0/1"),
            "12:12",
            "a large part of all addresses",
            "list the prefixes",
        ),
        (
            "wide IPv6 sources",
            sources("2000::/3"),
            "12:12",
            "a large part of all addresses",
            "list the prefixes",
        ),
        (
            "T1 above try_timeout",
            "[sip]\ntry_timeout = \"400ms\"\n".to_owned(),
            "10:15",
            "shorter than T1",
            "several T1",
        ),
        (
            "a peer's T1 above the try_timeout of all",
            format!("[sip]\nt1 = \"100ms\"\ntry_timeout = \"300ms\"\n{PEER}t1 = \"500ms\"\n"),
            "16:6",
            "t1 = 500ms is longer than try_timeout = 300ms",
            "add a try_timeout",
        ),
        (
            "timer C below three minutes",
            "[sip]\ntimer_c = \"120s\"\n".to_owned(),
            "10:11",
            "cuts calls",
            "3m",
        ),
        (
            "a wildcard without advertise",
            listen("udp", "0.0.0.0:5070", ""),
            "11:8",
            "takes every address",
            "add advertise",
        ),
        (
            "a private address without advertise",
            peer("") + &listen("udp", "192.168.1.5:5060", "realm = \"peering\""),
            "16:8",
            "192.168.1.5 is a private address, not to be reached from 192.0.2.0",
            "add advertise",
        ),
        (
            "loopback for others",
            listen("udp", "127.0.0.1:5060", "realm = \"core\""),
            "11:8",
            "this machine alone reaches 127.0.0.1, and 10.0.0.0 is to be served",
            "bind it to an address",
        ),
        (
            "a probe slower than its interval",
            peer("probe = { interval = \"1s\", timeout = \"2s\" }"),
            "13:38",
            "longer than its interval",
            "end before the next",
        ),
        (
            "a probe quicker than T1",
            peer("probe = { timeout = \"100ms\" }"),
            "13:1",
            "timeout = 100ms is shorter than T1 = 500ms",
            "several T1",
        ),
        ("a limit of nothing", peer("max_calls = 0"), "13:13", "max_calls", "from 1 to"),
        (
            "a limit that never applies",
            peer("max_calls = 10\nmax_calls_per_instance = 20"),
            "14:26",
            "never applies",
            "write less",
        ),
        (
            "a rate that never applies",
            peer("max_rate = 10\nmax_rate_per_instance = 20"),
            "14:25",
            "never applies",
            "write less",
        ),
        (
            "two listeners on one port",
            listen("udp", "192.0.2.10:5060", ""),
            "11:8",
            "collides with udp",
            "an address and port of its own",
        ),
        (
            "the admin interface on a listener's port",
            listen("tcp", "192.0.2.10:5060", "")
                + "[admin]\nbind = \"192.0.2.10:5060\"\ntoken_file = \"t\"\n",
            "14:8",
            "collides with tcp",
            "a port of its own",
        ),
        (
            "a next hop that is a listener",
            peer("next_hop = \"sip:192.0.2.10\""),
            "13:12",
            "is a listener of this element",
            "circle",
        ),
        (
            "a next hop by our own name",
            peer("next_hop = \"sip:sbe1.example.com\""),
            "13:12",
            "is this element",
            "circle",
        ),
        (
            "a peer's domain that is ours",
            "[[peer]]\nname = \"a\"\ndomains = [\"sbe1.example.com\"]\nsources = [\"192.0.2.0/28\"]\n"
                .to_owned(),
            "11:12",
            "a domain of our own, which goes before",
            "no request for it will reach this peer",
        ),
        (
            "a domain of two peers",
            format!("{PEER}[[peer]]\nname = \"b\"\ndomains = [\"a.test\"]\nsources = [\"192.0.2.16/28\"]\n"),
            "15:12",
            "belongs to peer \"a\" already",
            "one peer",
        ),
        ("only one try", "[sip]\nmax_tries = 1\n".to_owned(), "10:13", "no request goes on", "at least 2"),
        (
            "no failover by answers",
            "[sip]\nfailover_codes = []\n".to_owned(),
            "10:18",
            "503 neither",
            "write [503]",
        ),
        (
            "calls forgotten while they ring",
            "[calls]\nmax_age = \"1m\"\n".to_owned(),
            "10:11",
            "may still ring",
            "write hours",
        ),
        (
            "a DNS that outlasts callers",
            "[dns]\ntimeout = \"40s\"\n".to_owned(),
            "10:11",
            "outlasts a caller's patience",
            "a few seconds",
        ),
        (
            "HEP to ourselves",
            "[hep]\nserver = \"192.0.2.10:5060\"\n".to_owned(),
            "10:10",
            "is a listener of this element",
            "capture server",
        ),
        (
            "a route to nobody",
            "[[route]]\nprefix = \"+44\"\npeers = [\"b\"]\n".to_owned(),
            "11:10",
            "there is no peer \"b\"",
            "add a [[peer]]",
        ),
        ("an unknown key", "[sip]\ntimer_d = \"3s\"\n".to_owned(), "10:1", "timer_d", "did you mean"),
    ];
    let mut wrong = Vec::new();
    for (fault, text, place, what, remedy) in table {
        let found = said(&text);
        let good = found.iter().any(|line| {
            line.starts_with(&format!("{place}: "))
                && line.split_once(what).is_some_and(|(_, rest)| rest.contains(remedy))
        });
        if !good {
            wrong.push(format!("{fault}: {place} … {what} … {remedy}, but {found:#?}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn what_only_looks_like_a_fault_is_left_alone() {
    for text in [
        // Behind NAT, and says so.
        format!("{PEER}[[listen]]\ntransport = \"udp\"\nbind = \"192.168.1.5:5060\"\nadvertise = \"203.0.113.5\"\n"),
        // A private network between the two.
        "[[peer]]\nname = \"a\"\ndomains = [\"a.test\"]\nsources = [\"172.16.0.0/24\"]\n[[listen]]\ntransport = \"udp\"\nbind = \"172.16.1.5:5060\"\nrealm = \"peering\"\n".to_owned(),
        format!("{PEER}t1 = \"100ms\"\nmax_calls = 10\nmax_calls_per_instance = 5\n"),
        format!("{PEER}probe = {{ interval = \"10s\", timeout = \"2s\" }}\n"),
        "[admin]\nbind = \"127.0.0.1:5060\"\n".to_owned(),
        "[hep]\nserver = \"192.0.2.11:5060\"\n".to_owned(),
    ] {
        assert_eq!(warnings(&format!("{BARE}{CORE}{text}")), "", "{text}");
    }
}

#[test]
fn a_directory_for_records_that_is_not_there_is_told_when_a_file_is_checked() {
    let dir = std::env::temp_dir().join(format!("sbe-doubts-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    let file = dir.join("sbe.toml");
    let check = |output: &str| {
        std::fs::write(&file, format!("{BARE}{CORE}[records]\noutput = \"file:{output}\"\n")).unwrap();
        let (_, warnings) = super::super::load(&file).unwrap();
        warnings.iter().map(|w| format!("{w}\n")).collect::<String>()
    };
    let text = check("/nowhere/calls.jsonl");
    assert!(
        text.contains(":10:10: warning: /nowhere/calls.jsonl cannot be written (its directory: No such file"),
        "{text}"
    );
    assert!(check(&dir.display().to_string()).contains("it is a directory"));
    assert_eq!(check(&dir.join("calls.jsonl").display().to_string()), "");
    std::fs::remove_dir_all(&dir).unwrap();
}
