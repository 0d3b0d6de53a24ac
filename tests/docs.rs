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

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The pages of the book, and what is written elsewhere.
fn pages() -> Vec<PathBuf> {
    let mut files: Vec<PathBuf> = fs::read_dir(root().join("docs/src"))
        .unwrap()
        .map(|e| e.unwrap().path())
        .filter(|p| p.extension().is_some_and(|e| e == "md"))
        .collect();
    files.extend(
        ["README.md", "ARCHITECTURE.md", "interop/README.md", "packaging/docker/README.md"]
            .map(|f| root().join(f)),
    );
    files.sort();
    files
}

fn blocks() -> Vec<Block> {
    let mut all = Vec::new();
    for file in pages() {
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
        let line = line.split(" #").next().unwrap_or_default().trim_end().trim_end_matches('&');
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

/// Targets of the links and pictures of a text outside of code.
fn links(text: &str) -> Vec<String> {
    let mut all = Vec::new();
    let mut fenced = false;
    for line in text.lines() {
        if line.trim_start().starts_with("```") {
            fenced = !fenced;
        } else if !fenced {
            let bare: String = line.split('`').step_by(2).collect();
            all.extend(bare.split("](").skip(1).filter_map(|rest| Some(rest.split_once(')')?.0.to_owned())));
        }
    }
    all
}

#[test]
fn every_page_of_the_book_is_in_its_summary() {
    let dir = root().join("docs/src");
    let listed = links(&fs::read_to_string(dir.join("SUMMARY.md")).unwrap());
    for page in pages().iter().filter(|p| p.starts_with(&dir)) {
        let name = page.file_name().unwrap().to_string_lossy().into_owned();
        assert!(name == "SUMMARY.md" || listed.contains(&name), "{name} is in no summary");
    }
}

#[test]
fn every_link_leads_to_a_file_and_a_heading_of_it() {
    let mut count = 0;
    for page in pages() {
        for link in links(&fs::read_to_string(&page).unwrap()) {
            if link.contains("://") {
                continue;
            }
            count += 1;
            let (file, heading) = link.split_once('#').unwrap_or((&link, ""));
            let target = if file.is_empty() { page.clone() } else { page.parent().unwrap().join(file) };
            assert!(target.exists(), "{}: {link} leads nowhere", page.display());
            assert!(
                !page.starts_with(root().join("docs")) || target.starts_with(root().join("docs/src")),
                "{}: {link} leads out of the book",
                page.display()
            );
            let text = if heading.is_empty() { String::new() } else { fs::read_to_string(&target).unwrap() };
            let found = text.lines().filter(|l| l.starts_with('#')).any(|l| {
                let words = l.trim_start_matches('#').trim().to_lowercase();
                let kept = words.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
                kept.map(|c| if c == ' ' { '-' } else { c }).collect::<String>() == heading
            });
            assert!(heading.is_empty() || found, "{}: {link}: no such heading", page.display());
        }
    }
    assert!(count >= 25, "only {count} links found");
}

#[test]
fn every_picture_is_small_and_shown() {
    let texts: String = pages().iter().map(|p| fs::read_to_string(p).unwrap()).collect();
    for picture in fs::read_dir(root().join("docs/src/img")).unwrap() {
        let picture = picture.unwrap();
        let name = picture.file_name().to_string_lossy().into_owned();
        assert!(picture.metadata().unwrap().len() < 150_000, "{name} is large");
        assert!(texts.contains(&format!("img/{name})")), "{name} is shown nowhere");
    }
}
