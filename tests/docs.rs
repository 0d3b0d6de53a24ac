//! The book and the README say nothing that the program does not understand: every command is parsed by its own command
//! line, every piece of configuration by its own check.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::{Path, PathBuf};

use clap::Parser;
use sbe::cli::Cli;

/// A fenced block: file, line, language, text.
struct Block {
    at: String,
    language: String,
    text: String,
}

fn blocks() -> Vec<Block> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut files: Vec<PathBuf> =
        fs::read_dir(root.join("docs/src")).unwrap().map(|e| e.unwrap().path()).collect();
    files.push(root.join("README.md"));
    files.sort();
    let mut all = Vec::new();
    for file in files {
        let name = file.file_name().unwrap().to_string_lossy().into_owned();
        let mut open: Option<(usize, Block)> = None;
        for (number, line) in fs::read_to_string(&file).unwrap().lines().enumerate() {
            let bare = line.trim_start();
            match (&mut open, bare.strip_prefix("```")) {
                (None, Some(language)) => {
                    let at = format!("{name}:{}", number + 1);
                    let indent = line.len() - bare.len();
                    open = Some((indent, Block { at, language: language.to_owned(), text: String::new() }));
                }
                (Some(_), Some(_)) => all.extend(open.take().map(|(_, b)| b)),
                (Some((indent, block)), None) => {
                    block.text.push_str(line.get(*indent..).unwrap_or_default());
                    block.text.push('\n');
                }
                (None, None) => {}
            }
        }
        assert!(open.is_none(), "{name}: a block without an end");
    }
    all
}

/// The commands of ours in a shell block.
fn commands(text: &str) -> Vec<String> {
    let mut all = Vec::new();
    for line in text.lines() {
        let line = line.split(" #").next().unwrap_or_default();
        for part in line.split([';', '|']) {
            let words: Vec<&str> =
                part.split_whitespace().skip_while(|w| *w == "$" || w.contains('=')).collect();
            if words.first() == Some(&"sbe") {
                all.push(words.join(" "));
            }
        }
    }
    all
}

#[test]
fn every_command_in_the_book_is_one() {
    let mut count = 0;
    for block in blocks().iter().filter(|b| matches!(b.language.as_str(), "sh" | "console")) {
        for command in commands(&block.text) {
            count += 1;
            let parsed = Cli::try_parse_from(command.split(' '));
            assert!(parsed.is_ok(), "{}: {command}: {}", block.at, parsed.err().unwrap());
        }
    }
    assert!(count >= 30, "only {count} commands found");
}

/// Puts a table before the text, unless it is there.
fn add(text: &mut String, table: &str, more: &str) {
    if !text.lines().any(|l| l.trim() == table) {
        *text = format!("{more}\n{text}");
    }
}

#[test]
fn every_piece_of_configuration_in_the_book_is_valid() {
    let mut count = 0;
    for block in blocks().iter().filter(|b| b.language == "toml" && !b.text.contains("{{#include")) {
        count += 1;
        let mut text = block.text.clone();
        add(&mut text, "[node]", "[node]\nname = \"sbe1.example.com\"\ndomains = [\"example.com\"]\n");
        add(&mut text, "[[listen]]", "[[listen]]\ntransport = \"udp\"\nbind = \"192.0.2.10:5060\"\n");
        add(&mut text, "[core]", "[core]\nnext_hops = [\"sip:10.0.0.5\"]\nsources = [\"10.0.0.0/8\"]\n");
        if block.text.contains("realm = \"peering\"") && !block.text.contains("realm = \"core\"") {
            let core = "\n[[listen]]\ntransport = \"udp\"\nbind = \"10.0.0.10:5060\"\nrealm = \"core\"\n";
            text.push_str(core);
        }
        if block.text.contains("[[alto.override]]") {
            add(&mut text, "[alto]", "[alto]\ndirectory = \"https://alto.example.net/directory\"\n");
        }
        if block.text.contains("\"tls\"") {
            add(
                &mut text,
                "[tls]",
                "[tls]\ncertificate = \"certs/sbe.pem\"\nkey = \"certs/sbe.key\"\ntrust = [\"certs/ca.pem\"]\n",
            );
        }
        for peer in ["sp2", "sp3"] {
            if block.text.contains("[[route]]") && !block.text.contains(&format!("name = \"{peer}\"")) {
                text.push_str(&format!("\n[[peer]]\nname = \"{peer}\"\ndomains = [\"{peer}.example\"]\n"));
            }
        }
        let parsed = sbe::config::parse(&text, "book.toml");
        if let Err(errors) = parsed {
            let errors: Vec<String> = errors.iter().map(ToString::to_string).collect();
            panic!("{}:\n{}\nin\n{text}", block.at, errors.join("\n"));
        }
    }
    assert!(count >= 10, "only {count} pieces found");
}

#[test]
fn every_page_of_the_book_is_in_its_summary_and_every_link_leads_somewhere() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/src");
    let summary = fs::read_to_string(dir.join("SUMMARY.md")).unwrap();
    for page in fs::read_dir(&dir).unwrap() {
        let name = page.unwrap().file_name().to_string_lossy().into_owned();
        assert!(name == "SUMMARY.md" || summary.contains(&format!("({name})")), "{name} is in no summary");
    }
    for link in summary.split('(').skip(1) {
        let name = link.split(')').next().unwrap();
        assert!(dir.join(name).is_file(), "{name} does not exist");
    }
}
