//! `sbe capture`: messages of a running node as a pcapng file or stream.

use std::fs::File;
use std::io::{self, IsTerminal, Write};
use std::path::Path;

use serde_json::Value;

use crate::admin::client::{ClientError, encoded};

use super::{Capture, NO, UNREACHABLE, WRONG, ask, show};

/// Begins a capture and follows it; or one of the smaller acts.
pub fn capture(args: &Capture) -> u8 {
    if args.list {
        return ask::ask(&args.admin, "GET", "/api/v1/capture", listed);
    }
    if let Some(id) = args.stop {
        return ask::ask(&args.admin, "DELETE", &format!("/api/v1/capture/{id}"), |_| "stopped\n".to_owned());
    }
    if let Some(id) = args.fetch {
        return target(args).map_or_else(|status| status, |out| fetch(args, id, false, out));
    }
    if args.background {
        return ask::ask(&args.admin, "POST", &asked(args), begun);
    }
    let out = match target(args) {
        Ok(out) => out,
        Err(status) => return status,
    };
    let answer = match ask::node(&args.admin).and_then(|node| Ok(node.ask("POST", &asked(args))?)) {
        Ok(answer) => answer,
        Err(fault) => return fault.tell(),
    };
    let id = serde_json::from_slice::<Value>(&answer.body).ok().and_then(|v| v["id"].as_u64());
    match id {
        Some(id) if answer.status == 201 => fetch(args, id, true, out),
        _ => ask::tell(&answer, args.admin.json, |_| String::new()),
    }
}

/// The request for a new capture.
fn asked(args: &Capture) -> String {
    let number = |n: Option<u64>| n.map(|n| n.to_string());
    let given = [
        ("peer", args.peer.clone()),
        ("user", args.user.clone()),
        ("call_id", args.call_id.clone()),
        ("seconds", args.seconds.clone()),
        ("size", args.size.clone()),
        ("packets", number(args.packets)),
        ("attached", (!args.background).then(|| "true".to_owned())),
    ];
    let given = given.iter().filter_map(|(key, value)| Some(format!("{key}={}", encoded(value.as_ref()?))));
    format!("/api/v1/capture?{}", given.collect::<Vec<_>>().join("&"))
}

/// Where the file goes to.
fn target(args: &Capture) -> Result<Box<dyn Write>, u8> {
    match args.out.as_deref() {
        Some(path) if path != Path::new("-") => match File::create(path) {
            Ok(file) => Ok(Box::new(file)),
            Err(error) => {
                eprintln!("{}: {error}", path.display());
                Err(WRONG)
            }
        },
        _ if io::stdout().is_terminal() => {
            eprintln!("a capture is no text: write --out FILE, or pipe it: sbe capture | tshark -r -");
            Err(WRONG)
        }
        _ => Ok(Box::new(io::stdout())),
    }
}

fn fetch(args: &Capture, id: u64, follow: bool, mut out: Box<dyn Write>) -> u8 {
    let query = if follow { "?follow=true" } else { "" };
    let mut blocks = Blocks::default();
    let mut failed = None;
    let answer = ask::node(&args.admin).and_then(|node| {
        Ok(node.stream(&format!("/api/v1/capture/{id}.pcapng{query}"), &mut |part| {
            let written = out.write_all(blocks.whole(part)).and_then(|()| out.flush());
            written.inspect_err(|e| failed = Some((e.kind(), e.to_string()))).is_ok()
        })?)
    });
    match (answer, failed) {
        // Who reads has seen enough.
        (_, Some((io::ErrorKind::BrokenPipe, _))) => 0,
        (_, Some((_, error))) => {
            eprintln!("the capture cannot be written: {error}");
            NO
        }
        (Ok(None), None) => 0,
        (Ok(Some(answer)), None) => ask::tell(&answer, args.admin.json, |_| String::new()),
        (Err(fault), None) => fault.tell(),
    }
}

/// Cuts a pcapng file that comes in pieces into whole blocks, so that what is written can be read whenever it ends.
#[derive(Debug, Default)]
struct Blocks {
    /// What was given out last, then what is not whole yet.
    room: Vec<u8>,
    given: usize,
}

impl Blocks {
    fn whole(&mut self, part: &[u8]) -> &[u8] {
        self.room.drain(..self.given);
        self.room.extend_from_slice(part);
        let mut at = 0;
        while let Some(length) = self.room.get(at + 4..at + 8) {
            let length = length.try_into().map_or(0, |l| u32::from_le_bytes(l) as usize);
            if length < 12 || self.room.len() - at < length {
                break;
            }
            at += length;
        }
        self.given = at;
        self.room.get(..at).unwrap_or_default()
    }
}

fn begun(value: &Value) -> String {
    let id = value["id"].as_u64().unwrap_or_default();
    format!(
        "capture {id}: fetch it by sbe capture --fetch {id} --out FILE, end it by sbe capture --stop {id}\n"
    )
}

fn listed(value: &Value) -> String {
    let all = value["captures"].as_array().map(Vec::as_slice).unwrap_or_default();
    if all.is_empty() {
        return "no captures\n".to_owned();
    }
    let line = |c: &Value| {
        let filter: Vec<String> = c["filter"]
            .as_object()
            .into_iter()
            .flatten()
            .map(|(key, text)| format!("{key}={}", show::plain(text)))
            .collect();
        let filter = if filter.is_empty() { "everything".to_owned() } else { filter.join(" ") };
        let how = match c["left"].as_f64() {
            Some(left) => format!("running, {left:.0} s left"),
            None => format!("over ({})", show::plain(&c["ended"])),
        };
        let (kept, octets) = (&c["kept"]["packets"], c["kept"]["octets"].as_u64().unwrap_or(0) / 1024);
        format!("{:>4}  {how}  {kept} packets, {octets} KiB  {filter}\n", c["id"])
    };
    all.iter().map(line).collect()
}

/// What went wrong before there was an answer.
#[derive(Debug)]
pub enum Fault {
    /// The token's file.
    Token(crate::admin::auth::TokenError),
    /// The node.
    Node(ClientError),
}

impl From<ClientError> for Fault {
    fn from(error: ClientError) -> Self {
        Fault::Node(error)
    }
}

impl Fault {
    /// Tells, and gives the exit status.
    pub fn tell(&self) -> u8 {
        match self {
            Fault::Token(error) => {
                eprintln!("{error}");
                WRONG
            }
            Fault::Node(error) => {
                eprintln!("{error}");
                if matches!(error, ClientError::Url(_)) { WRONG } else { UNREACHABLE }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_comes_in_pieces_is_written_in_whole_blocks() {
        let block = |n: u8| [&[n, 0, 0, 0, 16, 0, 0, 0][..], &[n; 4], &[16, 0, 0, 0]].concat();
        let file: Vec<u8> = (1..=4).flat_map(block).collect();
        for size in [1, 7, 16, 23, 64] {
            let mut blocks = Blocks::default();
            let mut out = Vec::new();
            for part in file.chunks(size) {
                let whole = blocks.whole(part);
                assert_eq!(whole.len() % 16, 0);
                out.extend_from_slice(whole);
            }
            assert_eq!(out, file, "in pieces of {size}");
        }
    }

    #[test]
    fn what_was_left_out_is_not_asked_for() {
        use clap::Parser;
        let parsed = |args: &[&str]| match super::super::Cli::try_parse_from(args).map(|c| c.command) {
            Ok(super::super::Command::Capture(args)) => asked(&args),
            other => format!("{other:?}"),
        };
        assert_eq!(parsed(&["sbe", "capture"]), "/api/v1/capture?attached=true");
        assert_eq!(
            parsed(&[
                "sbe",
                "capture",
                "--user",
                "+44 2",
                "--call-id",
                "-a@b",
                "--seconds",
                "1m",
                "--background"
            ]),
            "/api/v1/capture?user=%2B44%202&call_id=-a%40b&seconds=1m"
        );
    }
}
