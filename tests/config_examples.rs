//! The files under `config/`: examples must load, the reference must be complete and true, bad ones must say why.

#![allow(clippy::unwrap_used)]

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use sbe::config::{Config, parse};

fn toml_files(folder: &str) -> Vec<PathBuf> {
    let mut files: Vec<PathBuf> = std::fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join(folder))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|e| e == "toml"))
        .collect();
    files.sort();
    files
}

fn name(path: &Path) -> String {
    path.file_name().unwrap().to_str().unwrap().to_owned()
}

fn checked(text: &str, name: &str) -> Config {
    match parse(text, name) {
        Ok((config, _)) => config,
        Err(errors) => {
            let lines: Vec<String> = errors.iter().map(ToString::to_string).collect();
            panic!("{}\nin\n{text}", lines.join("\n"))
        }
    }
}

#[test]
fn every_example_loads_without_errors_or_warnings() {
    let files = toml_files("config");
    assert!(files.len() >= 5, "{files:?}");
    for path in files {
        match parse(&std::fs::read_to_string(&path).unwrap(), &name(&path)) {
            Ok((_, warnings)) => {
                let lines: Vec<String> = warnings.iter().map(ToString::to_string).collect();
                assert!(lines.is_empty(), "{}", lines.join("\n"));
            }
            Err(errors) => {
                panic!("{}", errors.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"))
            }
        }
    }
}

/// Set `SBE_BLESS=1` to write what is seen now; read the difference before committing it.
#[test]
fn every_bad_example_gives_exactly_the_errors_beside_it() {
    let files = toml_files("config/bad");
    assert!(files.len() >= 10, "{files:?}");
    let mut differences = Vec::new();
    for path in files {
        let text = std::fs::read_to_string(&path).unwrap();
        let errors = parse(&text, &name(&path)).err().unwrap_or_default();
        let found: String = errors.iter().map(|e| format!("{e}\n")).collect();
        let beside = path.with_extension("expected");
        if std::env::var_os("SBE_BLESS").is_some() {
            std::fs::write(&beside, &found).unwrap();
        }
        let expected = std::fs::read_to_string(&beside).unwrap_or_default();
        if found != expected || found.is_empty() {
            differences.push(format!("{}: expected\n{expected}found\n{found}", name(&path)));
        }
    }
    assert!(differences.is_empty(), "{}", differences.join("\n"));
}

#[test]
fn no_expectation_is_left_over() {
    let stems = |extension: &str| -> BTreeSet<String> {
        std::fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("config/bad"))
            .unwrap()
            .map(|entry| entry.unwrap().path())
            .filter(|p| p.extension().is_some_and(|e| e == extension))
            .map(|p| p.file_stem().unwrap().to_str().unwrap().to_owned())
            .collect()
    };
    let (bad, expected) = (stems("toml"), stems("expected"));
    assert!(expected.is_subset(&bad), "{expected:?} without {bad:?}");
}

/// A line of the reference.
enum Line<'t> {
    /// `# key = value`: a default.
    Default(&'t str),
    /// `# e.g. …`: a key without a default, or the head of a table left out.
    Example(&'t str),
    /// Anything else.
    Plain(&'t str),
}

fn reference() -> String {
    std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("config/sbe.toml")).unwrap()
}

fn lines(text: &str) -> impl Iterator<Item = Line<'_>> {
    text.lines().map(|line| match line.strip_prefix("# ") {
        Some(rest) if rest.starts_with("e.g. ") => Line::Example(&rest[5..]),
        Some(rest) if key_of(rest).is_some() => Line::Default(rest),
        _ => Line::Plain(line),
    })
}

/// The key of `key = value`.
fn key_of(line: &str) -> Option<&str> {
    let key = line.split_once(" = ")?.0;
    key.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_').then_some(key)
}

/// The title of a table's head.
fn title_of(line: &str) -> Option<&str> {
    line.starts_with('[').then(|| line.split('#').next().unwrap_or_default().trim())
}

#[test]
fn the_defaults_written_in_the_reference_change_nothing() {
    let text = reference();
    let mut open = false;
    let mut uncommented = 0;
    let with: String = lines(&text)
        .map(|line| match line {
            // Below a head that is commented out, a default would land in another table.
            Line::Default(rest) if open => {
                uncommented += 1;
                format!("{rest}\n")
            }
            Line::Default(rest) => format!("# {rest}\n"),
            Line::Example(rest) => {
                open = open && title_of(rest).is_none();
                format!("# {rest}\n")
            }
            Line::Plain(line) => {
                open = open || title_of(line).is_some();
                format!("{line}\n")
            }
        })
        .collect();
    assert!(uncommented > 40, "only {uncommented} defaults were found");
    assert_eq!(checked(&with, "with defaults"), checked(&text, "sbe.toml"));
}

#[test]
fn the_reference_with_everything_in_it_loads_and_its_defaults_change_nothing_there_either() {
    let text = reference();
    let build = |defaults: bool| -> Config {
        let text: String = lines(&text)
            .map(|line| match line {
                Line::Default(rest) if defaults => format!("{rest}\n"),
                Line::Default(_) => "\n".to_owned(),
                Line::Example(rest) | Line::Plain(rest) => format!("{rest}\n"),
            })
            .collect();
        let mut config = checked(&text, "everything");
        // Holds what is written, so it differs by definition.
        config.alto.as_mut().unwrap().table.clear();
        config
    };
    let (with, without) = (build(true), build(false));
    assert_eq!(with, without);
    let peer = with.peers.first().unwrap();
    assert!(with.tls.is_some() && peer.probe.is_some() && peer.next_hop.is_some() && !with.routes.is_empty());
}

#[test]
fn the_reference_names_every_key_of_every_table() {
    let text = reference();
    let mut written: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    let mut table = String::new();
    for line in lines(&text) {
        let (Line::Default(rest) | Line::Example(rest) | Line::Plain(rest)) = line;
        if let Some(title) = title_of(rest) {
            table = title.to_owned();
            written.entry(table.clone()).or_default();
        } else if let Some(key) = key_of(rest) {
            written.entry(table.clone()).or_default().insert(key.to_owned());
        }
    }
    for (title, keys) in sbe::config::known_keys() {
        let title = if title == "probe" { "[peer.probe]" } else { title };
        let found = written.get(title).unwrap_or_else(|| panic!("{title} is missing"));
        for key in keys {
            let as_table = written.keys().any(|t| t.trim_matches(['[', ']']).ends_with(&format!(".{key}")));
            assert!(found.contains(*key) || as_table, "{key} of {title} is missing");
        }
    }
}
