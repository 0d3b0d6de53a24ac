//! The book's page of all configuration keys is made from the code's own list of them and the comments of
//! `config/sbe.toml`. Set `SBE_BLESS=1` to write it anew.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};

/// What the reference says of a key.
#[derive(Default)]
struct Entry {
    /// As it is written there.
    value: String,
    /// It is the default rather than an example.
    is_default: bool,
    meaning: String,
}

/// What the reference says of a table.
#[derive(Default)]
struct Table {
    introduction: String,
    keys: BTreeMap<String, Entry>,
}

fn path(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(name)
}

/// The comment at the end of a line, and what stands before it. No value of the reference holds ` # `.
fn split_comment(line: &str) -> (&str, &str) {
    let (before, comment) = line.split_once(" # ").unwrap_or((line, ""));
    (before.trim(), comment.trim())
}

fn is_key(word: &str) -> bool {
    !word.is_empty() && word.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_')
}

/// The tables of the reference by their heads.
fn tables() -> BTreeMap<String, Table> {
    let mut tables: BTreeMap<String, Table> = BTreeMap::new();
    let (mut title, mut key) = (String::new(), String::new());
    // Comments that begin a paragraph belong to the table after them.
    let mut waiting = String::new();
    for line in fs::read_to_string(path("config/sbe.toml")).unwrap().lines() {
        let (bare, is_example, is_comment) = match line.strip_prefix("# ") {
            Some(rest) => (rest.strip_prefix("e.g. ").unwrap_or(rest), rest.starts_with("e.g. "), true),
            None => (line, false, false),
        };
        if let (Some((word, value)), true) =
            (bare.split_once(" = "), bare.split_once(" = ").is_some_and(|(w, _)| is_key(w)))
        {
            let (value, meaning) = split_comment(value);
            let entry = Entry {
                value: value.to_owned(),
                is_default: is_comment && !is_example,
                meaning: meaning.to_owned(),
            };
            key = word.to_owned();
            let table = tables.entry(title.clone()).or_default();
            table.keys.entry(key.clone()).or_insert(entry);
        } else if bare.starts_with('[') {
            let (head, meaning) = split_comment(bare);
            title = head.to_owned();
            key.clear();
            let table = tables.entry(title.clone()).or_default();
            for text in [waiting.trim(), meaning] {
                if !text.is_empty() && table.introduction.is_empty() {
                    text.clone_into(&mut table.introduction);
                }
            }
            waiting.clear();
        } else if let Some(comment) = line.trim_start().strip_prefix('#') {
            // Deep in the line it goes on with the key before it.
            let deep = line.starts_with(' ') || comment.starts_with("      ");
            let text = comment.trim_start_matches([' ', '#']);
            match tables.get_mut(&title).and_then(|t| t.keys.get_mut(&key)) {
                Some(entry) if deep => entry.meaning = format!("{} {text}", entry.meaning),
                _ => waiting = format!("{waiting} {text}"),
            }
        } else {
            waiting.clear();
        }
    }
    tables
}

/// Text as it is, for a cell of a table.
fn plain(text: &str) -> String {
    let mut out = String::new();
    for c in text.chars() {
        if matches!(c, '|' | '*' | '_' | '<' | '[' | ']' | '`' | '\\') {
            out.push('\\');
        }
        out.push(c);
    }
    out
}

/// As code in a cell of a table.
fn code(text: &str) -> String {
    format!("`{}`", text.replace('|', "\\|"))
}

fn page() -> String {
    let tables = tables();
    let mut out = String::from(
        "# Every configuration key\n\n\
         <!-- Made by tests/configuration_page.rs from the code and config/sbe.toml: change those. -->\n\n\
         The file is TOML. An unknown key is an error, and `sbe check` shows all errors and warnings with their lines. \
         Durations are a whole number and `ms`, `s`, `m`, `h` or `d`; sizes are octets, or a number and `KiB`, `MiB` or \
         `GiB`. The same as a file to begin with: `config/sbe.toml`, in the package `/usr/share/doc/sbe/examples/sbe.toml`.\n",
    );
    for (title, keys) in sbe::config::known_keys() {
        let title = if title == "probe" { "[peer.probe]" } else { title };
        let table = tables.get(title).unwrap_or_else(|| panic!("{title} is not in config/sbe.toml"));
        write!(out, "\n## `{title}`\n\n").unwrap();
        if !table.introduction.is_empty() {
            writeln!(out, "{}\n", plain(&table.introduction)).unwrap();
        }
        out.push_str("| key | default | meaning |\n|---|---|---|\n");
        for key in keys {
            let below = tables.keys().find(|t| t.trim_matches(['[', ']']).ends_with(&format!(".{key}")));
            let (default, meaning) = match (table.keys.get(*key), below) {
                (Some(entry), _) if entry.is_default => (code(&entry.value), plain(&entry.meaning)),
                (Some(entry), _) => {
                    let join = if entry.meaning.is_empty() { "" } else { "; " };
                    let example = format!("{}{join}e.g. {}", plain(&entry.meaning), code(&entry.value));
                    (String::new(), example)
                }
                (None, Some(head)) => (String::new(), format!("see {}", code(head))),
                (None, None) => panic!("{key} of {title} is not in config/sbe.toml"),
            };
            assert!(
                !meaning.is_empty() && !meaning.starts_with("e.g. `"),
                "config/sbe.toml does not tell what {key} of {title} is"
            );
            writeln!(out, "| {} | {default} | {meaning} |", code(key)).unwrap();
        }
    }
    out
}

#[test]
fn the_page_of_all_keys_is_what_the_code_and_the_reference_give() {
    let (file, made) = (path("docs/src/configuration.md"), page());
    assert!(made.matches("\n| `").count() > 120, "{made}");
    if std::env::var_os("SBE_BLESS").is_some() {
        fs::write(&file, &made).unwrap();
    }
    let found = fs::read_to_string(&file).unwrap();
    let different = made.lines().zip(found.lines()).find(|(a, b)| a != b);
    assert!(made == found, "SBE_BLESS=1 cargo test --test configuration_page writes it anew: {different:?}");
}
