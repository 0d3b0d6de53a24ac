#![allow(clippy::unwrap_used)]

mod doubts;
mod files;
mod names;
mod values;
mod warnings;

use super::{Config, Warning, parse};

/// The least that an element runs with.
const BARE: &str =
    "[node]\nname = \"sbe1.example.com\"\n[[listen]]\ntransport = \"udp\"\nbind = \"192.0.2.10:5060\"\n";

/// A core that lints have nothing to say about.
const CORE: &str = "[core]\nnext_hops = [\"sip:10.0.0.5\"]\nsources = [\"10.0.0.0/8\"]\n";

fn both(text: &str) -> (Config, Vec<Warning>) {
    parse(text, "t").unwrap_or_else(|errors| {
        let lines: Vec<String> = errors.iter().map(ToString::to_string).collect();
        panic!("{}\nin\n{text}", lines.join("\n"))
    })
}

/// The configuration of a text after the bare one.
fn config(more: &str) -> Config {
    both(&format!("{BARE}{more}")).0
}

/// The warnings of a text, one a line.
fn warnings(text: &str) -> String {
    both(text).1.iter().map(|w| format!("{w}\n")).collect()
}

/// The errors of a text after the bare one, one a line.
fn errors(more: &str) -> String {
    parse(&format!("{BARE}{more}"), "t").unwrap_err().iter().map(|e| format!("{e}\n")).collect()
}
