//! `sbe demo` from the outside: the promise of the README.

#![allow(clippy::unwrap_used)]

use std::process::{Command, Output};

fn demo(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_sbe")).arg("demo").args(args).output().unwrap()
}

/// The text behind a row's title in the summary.
fn row<'a>(summary: &'a str, title: &str) -> &'a str {
    let found = summary.lines().find_map(|line| line.strip_prefix("  ")?.strip_prefix(title));
    found.unwrap_or_else(|| panic!("no row {title} in {summary}")).trim()
}

/// The first number in a text.
fn number(text: &str) -> u64 {
    let digits: String =
        text.chars().skip_while(|c| !c.is_ascii_digit()).take_while(char::is_ascii_digit).collect();
    digits.parse().unwrap_or_else(|_| panic!("no number in {text:?}"))
}

#[test]
fn no_call_is_lost_when_an_instance_dies_with_invites_on_their_way_to_it() {
    let output = demo(&["--calls", "60"]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{text}\n{}", String::from_utf8_lossy(&output.stderr));
    assert!(text.contains("http://127.0.0.1:"), "the address of the dashboard: {text}");
    assert!(text.contains("killed: sockets closed, with INVITEs on their way to it"), "{text}");
    let (_, summary) = text.split_once("Summary").unwrap();
    assert_eq!(number(row(summary, "calls")), 60, "{summary}");
    assert_eq!(row(summary, "answered"), "60", "{summary}");
    assert_eq!(row(summary, "failed"), "0", "{summary}");
    assert!(number(row(summary, "failovers")) > 0, "{summary}");
    let both = row(summary, "both ends");
    assert_eq!(both, "60 INVITEs answered by the instances, 60 answers at the caller", "{summary}");
    assert!(summary.contains("60 of 60 calls succeeded"), "{summary}");
    assert!(!text.contains('\x1b'), "no colours but on a terminal");
}

#[test]
fn calls_leave_an_instance_that_has_become_dear_for_its_equal_not_for_a_cheaper_one_of_lower_priority() {
    let output = demo(&["--calls", "200"]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{text}\n{}", String::from_utf8_lossy(&output.stderr));
    assert!(text.contains("~ ALTO: alpha costs 40 now, known to the border element after"), "{text}");
    let (_, summary) = text.split_once("Summary").unwrap();
    assert!(number(row(summary, "ALTO")) > 5, "{summary}");
    let since = summary.lines().find_map(|l| l.split_once("since alpha costs 40: ")).unwrap().1;
    let at = |name: &str| number(since.split_once(name).unwrap().1);
    // Calls that were on their way when the cost changed may be among them, such as had failed over too.
    assert!(at("beta") > at("alpha") + at("gamma"), "gamma is cheapest, but of the second priority: {since}");
}

#[test]
fn each_transport_alone_does_as_well() {
    for transport in ["udp", "tcp", "tls"] {
        let output = demo(&["--calls", "20", "--rate", "40", "--transport", transport]);
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(output.status.success(), "{transport}: {text}");
        assert!(text.contains("20 of 20 calls succeeded"), "{transport}: {text}");
    }
}

#[test]
fn a_wrong_option_is_refused_before_anything_starts() {
    for wrong in [&["--calls", "0"][..], &["--rate", "0"], &["--transport", "sctp"]] {
        let output = demo(wrong);
        assert_eq!(output.status.code(), Some(2), "{wrong:?}");
        assert!(output.stdout.is_empty(), "{wrong:?}");
    }
}
