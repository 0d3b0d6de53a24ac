#![allow(clippy::unwrap_used)]
//! The command line as it is typed.

use clap::{CommandFactory, Parser};
use serde_json::json;

use super::*;

fn parsed(line: &str) -> Result<Command, clap::Error> {
    Cli::try_parse_from(line.split(' ')).map(|c| c.command)
}

#[test]
fn the_definition_is_sound_and_every_command_is_explained() {
    let mut command = Cli::command();
    command.clone().debug_assert();
    assert!(command.render_long_help().to_string().contains("Exit status: 0 done"));
    for sub in command.get_subcommands_mut() {
        assert!(sub.get_about().is_some_and(|a| a.to_string().len() > 10), "{}", sub.get_name());
    }
}

#[test]
fn every_documented_command_is_understood() {
    for line in [
        "sbe run",
        "sbe run --config a.toml",
        "sbe check",
        "sbe check --config a.toml",
        "sbe resolve sip:example.com",
        "sbe resolve tel:+44123 --config a.toml --server 127.0.0.1:53 --json",
        "sbe resolve sip:example.com --zone a.zone",
        "sbe resolve sip:example.com --what-if down=192.0.2.1,tls:[2001:db8::1]:5061",
        "sbe zone check example.com",
        "sbe zone check example.com --server 192.0.2.1 --server [2001:db8::1]:53 --json",
        "sbe zone check example.com --zone a.zone",
        "sbe status",
        "sbe status --admin http://127.0.0.1:9061 --json",
        "sbe peers",
        "sbe explain abc@host",
        "sbe explain -abc@host --json",
        "sbe calls",
        "sbe calls --user +4420 --peer sp2 --outcome failover --since 15m --limit 5 --json",
        "sbe drain",
        "sbe undrain",
        "sbe flush",
        "sbe flush example.com",
        "sbe reload",
        "sbe completions zsh",
        "sbe man target/man",
    ] {
        assert!(parsed(line).is_ok(), "{line}: {}", parsed(line).err().unwrap());
    }
    for line in [
        "sbe zone",
        "sbe zone check",
        "sbe zone example.com",
        "sbe resolve sip:a --zone a.zone --server 127.0.0.1",
        "sbe",
        "sbe running",
        "sbe resolve",
        "sbe explain",
        "sbe run a.toml",
        "sbe status --verbose",
    ] {
        assert!(parsed(line).is_err(), "{line}");
    }
}

#[test]
fn the_version_is_that_of_the_package() {
    let text = parsed("sbe --version").unwrap_err().to_string();
    assert_eq!(text.trim(), format!("sbe {}", env!("CARGO_PKG_VERSION")));
}

#[test]
fn a_name_server_is_an_address_with_or_without_a_port() {
    for (text, addr) in [
        ("127.0.0.1", "127.0.0.1:53"),
        ("127.0.0.1:5353", "127.0.0.1:5353"),
        ("::1", "[::1]:53"),
        ("[::1]", "[::1]:53"),
        ("[::1]:5353", "[::1]:5353"),
    ] {
        assert_eq!(name_server(text), Ok(addr.parse().unwrap()), "{text}");
    }
    assert!(name_server("dns.example").is_err());
}

#[test]
fn the_admin_interface_is_on_loopback_where_nothing_else_is_said() {
    let Ok(Command::Status(admin)) = parsed("sbe status") else { panic!("no status") };
    assert_eq!((admin.admin.as_str(), admin.json), ("http://127.0.0.1:9060", false));
}

#[test]
fn a_faulty_configuration_ends_with_2_and_each_error_has_its_place() {
    let dir = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("config");
    let errors = check::load(Some(&dir.join("bad/unknown-keys.toml"))).unwrap_err();
    assert!(errors.len() > 3, "{errors:?}");
    for error in &errors {
        let text = error.to_string();
        let place = text.split_once("bad/unknown-keys.toml:").unwrap().1;
        let mut parts = place.split(':');
        assert!(
            parts.next().unwrap().parse::<usize>().is_ok() && parts.next().unwrap().parse::<usize>().is_ok(),
            "{text}"
        );
    }
    assert_eq!(check::check(Some(&dir.join("bad/unknown-keys.toml"))), WRONG);
    assert_eq!(check::check(Some(&dir.join("no such file.toml"))), WRONG);
    assert_eq!(check::check(Some(&dir.join("udp-lab.toml"))), 0);
}

#[test]
fn certificates_that_do_not_fit_the_node_end_with_2() {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
    // The example's certificates lie in certs/, where tests run.
    assert_eq!(check::check(Some(&root.join("config/direct-peering.toml"))), 0);
    let text = std::fs::read_to_string(root.join("config/direct-peering.toml")).unwrap();
    for (what, instead) in [
        ("certs/sbe.key", "certs/core.key"),
        ("certs/sbe.pem", "README.md"),
        ("advertise = \"sbe1.example.com\"", "advertise = \"other.example.com\""),
    ] {
        assert!(text.contains(what), "{what}");
        let file = std::env::temp_dir().join(format!("sbe-cli-{}-check.toml", std::process::id()));
        std::fs::write(&file, text.replace(what, instead)).unwrap();
        let status = check::check(Some(&file));
        std::fs::remove_file(&file).unwrap();
        assert_eq!(status, WRONG, "{what} -> {instead}");
    }
}

#[test]
fn nobody_listening_is_told_apart_from_a_wrong_url() {
    // A port that was ours a moment ago and is closed now.
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let admin = |url: String| Admin { admin: url, token_file: None, json: false };
    assert_eq!(ask::status(&admin(format!("http://127.0.0.1:{port}"))), UNREACHABLE);
    assert_eq!(ask::status(&admin("ftp://127.0.0.1".to_owned())), WRONG);
}

#[test]
fn what_stood_in_a_message_is_shown_without_control_octets() {
    assert_eq!(show::plain(&json!("a\u{1b}[2J\nb")), "a?[2J?b");
    assert_eq!(show::plain(&json!(null)), "-");
    let text = explain::explanation(&json!({ "requests": [{
        "method": "INVITE", "uri": "sip:a@b\u{7}", "call_id": "x", "from": "core", "transport": "udp",
        "caller": "<sip:c@d>;tag=1", "identified_by": "127.0.0.1 lies in 127.0.0.0/8 of its sources",
        "remote": "127.0.0.1:5060", "rule": "peer_domain", "rule_text": "its domain is the peer's", "to": ["sp"],
        "cancelled": false, "status": 500, "reason": "unavailable", "reason_text": "all servers were used up",
        "ended_ms": 12.5,
        "legs": [{ "party": "sp", "asked_ms": 0.1, "answered_ms": 0.2, "target": "sip:b", "outcome": "found",
            "text": "Found", "steps": [
            { "name": "b", "type": "NAPTR", "outcome": "nodata", "ttl": 60, "cached": true, "stale": false, "records": [] }
        ], "candidates": [
            { "priority": 10, "weight": 5, "share": 1.0, "instance": "udp:127.0.0.2:5060", "target": "s.b",
              "health": "down", "down_for": 1.5, "tried": null, "note": "passed over: it was down" }
        ], "left_out": [{ "what": "b. SRV", "reason": "no_port" }] }],
        "attempts": [{ "instance": "udp:127.0.0.2:5060", "target": "s.b", "why": "the only server of priority 10",
            "what": "said nothing at all in its time", "branch": "00", "started_ms": 0.2, "ended_ms": 10,
            "took_ms": 9.8, "first_response_ms": null }],
    }]}));
    for part in [
        "INVITE sip:a@b?",
        "sent by  core, 127.0.0.1:5060 over udp: 127.0.0.1 lies in 127.0.0.0/8 of its sources",
        "goes to  sp: its domain is the peer's",
        "result   500 after 12.5 ms: all servers were used up",
        "b. NAPTR: nodata, from the cache, 60 s left to live",
        "priority 10, weight 5 (100 %), down for 1.5 s more: udp:127.0.0.2:5060 s.b - passed over: it was down",
        "left out: b. SRV (no_port)",
        "try 1: udp:127.0.0.2:5060 (s.b)",
        "chosen: the only server of priority 10",
        "try 1, 9.8 ms after it began, said nothing at all in its time",
        "time spent: looking up sp 0.1 ms, try 1 9.8 ms",
    ] {
        assert!(text.contains(part), "{part} in\n{text}");
    }
}

#[test]
fn there_is_a_manual_page_for_every_command() {
    let dir = std::env::temp_dir().join(format!("sbe-man-{}", std::process::id()));
    assert_eq!(pages::man(&dir), 0);
    for sub in Cli::command().get_subcommands() {
        let page = std::fs::read_to_string(dir.join(format!("sbe-{}.1", sub.get_name()))).unwrap();
        assert!(page.contains(".TH"), "{}", sub.get_name());
    }
    assert!(std::fs::read_to_string(dir.join("sbe.1")).unwrap().contains("Exit status"));
    std::fs::remove_dir_all(&dir).unwrap();
}
