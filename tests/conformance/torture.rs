//! The torture messages and what the index beside them says a proxy does with each.
// Shared by several test programs, none of which uses all of it.
#![allow(dead_code)]

use std::path::PathBuf;

use sbe::wire::{Framing, Index, Limits, Message, Unusable};

/// One line of `INDEX.tsv`.
pub struct Case {
    pub file: String,
    /// Outcomes that the RFC allows, joined by `-or-`.
    pub proxy: String,
    pub bytes: Vec<u8>,
}

impl Case {
    pub fn allows(&self, outcome: &str) -> bool {
        self.proxy.split("-or-").any(|o| o == outcome)
    }

    pub fn index(&self) -> Result<Index, Unusable> {
        Index::parse(&self.bytes, &Limits::default(), Framing::Datagram)
    }
}

/// All cases of `tests/torture/<rfc>/`.
pub fn cases(rfc: &str) -> Vec<Case> {
    let dir = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/torture").join(rfc);
    let index = std::fs::read_to_string(dir.join("INDEX.tsv")).expect("INDEX.tsv");
    index
        .lines()
        .filter(|line| !line.starts_with('#') && !line.starts_with("file\t"))
        .map(|line| {
            let columns: Vec<&str> = line.split('\t').collect();
            Case {
                file: columns[0].to_owned(),
                proxy: columns[3].to_owned(),
                bytes: std::fs::read(dir.join(columns[0])).expect(columns[0]),
            }
        })
        .collect()
}

/// One case by its name without `.dat`.
pub fn case(rfc: &str, name: &str) -> Case {
    let file = format!("{name}.dat");
    cases(rfc).into_iter().find(|c| c.file == file).expect("a file of the index")
}

/// What this layer makes of each case, against the outcomes allowed. Outcomes that need a proxy
/// (416, 420, 483, dropping a stray response) ask of the message only that it parses.
pub fn check_all(rfc: &str) {
    let mut wrong = Vec::new();
    for case in cases(rfc) {
        let got = match case.index() {
            Err(why) => format!("drop ({})", why.label()),
            Ok(index) => match index.fault() {
                None => "parse".to_owned(),
                Some(_) if !Message::new(&case.bytes, &index).is_request() => "drop (response)".to_owned(),
                Some(fault) => fault.status.to_string(),
            },
        };
        let parses = ["forward", "forward-first-only", "forward-response", "416", "420", "483"]
            .iter()
            .any(|o| case.allows(o))
            // Sound messages that a proxy drops for what they say.
            || matches!(case.file.as_str(), "noreason.dat" | "bcast.dat");
        let right = match got.as_str() {
            "parse" => parses,
            drop if drop.starts_with("drop") => case.allows("drop"),
            status => case.allows(status),
        };
        if !right {
            wrong.push(format!("{}: {got}, not {}", case.file, case.proxy));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}
