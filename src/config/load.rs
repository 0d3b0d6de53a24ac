//! From a file or a text to a checked configuration.

use std::fs::File;
use std::path::{Path, PathBuf};

use toml::de::{DeTable, DeValue};

use super::error::{At, Fault, Report, place_error};
use super::raw::Section;
use super::{Config, ConfigError, Warning, check};

/// Files read where none is named, in this order.
const DEFAULT_PATHS: [&str; 2] = ["config/sbe.toml", "/etc/sbe/sbe.toml"];

impl Config {
    /// Where a configuration is looked for when none is named: the first that exists counts.
    pub fn default_paths() -> [&'static Path; 2] {
        DEFAULT_PATHS.map(Path::new)
    }

    /// Checks a text, without warnings and without a file's name; for tests and tools.
    ///
    /// # Errors
    /// All errors of the text.
    pub fn from_toml_str(text: &str) -> Result<Config, Vec<ConfigError>> {
        parse(text, "sbe.toml").map(|(config, _)| config)
    }
}

/// The configuration file to use: the named one, else the first of [`Config::default_paths`] that exists.
///
/// # Errors
/// None was named and none of the usual ones exists.
pub fn find(named: Option<&Path>) -> Result<PathBuf, ConfigError> {
    if let Some(path) = named {
        return Ok(path.to_owned());
    }
    let [first, second] = Config::default_paths();
    [first, second].into_iter().find(|p| p.exists()).map(Path::to_owned).ok_or_else(|| {
        let what = format!("no configuration: neither {} nor {} exists", first.display(), second.display());
        place_error(
            &first.display().to_string(),
            "",
            0,
            Fault::new(what, "create one of them, or name a file with --config"),
        )
    })
}

/// Reads and checks a file. Files named in it are looked at too: one that cannot be read gives a warning,
/// since a configuration may be checked on another machine than it is for.
///
/// # Errors
/// All errors found, in the order of the file.
pub fn load(path: &Path) -> Result<(Config, Vec<Warning>), Vec<ConfigError>> {
    let name = path.display().to_string();
    let octets = std::fs::read(path).map_err(|e| {
        let remedy = "name an existing configuration with --config";
        vec![place_error(
            &name,
            "",
            0,
            Fault::new(format!("the file cannot be read ({})", reason(&e)), remedy),
        )]
    })?;
    let text = match String::from_utf8(octets) {
        Ok(text) => text,
        Err(e) => {
            let at = e.utf8_error().valid_up_to();
            let text = String::from_utf8_lossy(e.as_bytes());
            return Err(vec![place_error(
                &name,
                &text,
                at,
                Fault::new("this is not UTF-8", "save the file as UTF-8"),
            )]);
        }
    };
    read(&text, &name, true)
}

/// Checks a text; `name` stands for the file in messages. Looks at nothing outside.
///
/// # Errors
/// All errors found, in the order of the text.
pub fn parse(text: &str, name: &str) -> Result<(Config, Vec<Warning>), Vec<ConfigError>> {
    read(text, name, false)
}

/// A complaint about a file's content found later, in the form and with the place of those found here: the value
/// of `key` in the table `[table]`, or in the `[[table]]` of this name.
pub fn complaint(
    path: &Path,
    table: (&str, Option<&str>),
    key: &str,
    what: String,
    remedy: String,
) -> ConfigError {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    let (document, _) = DeTable::parse_recoverable(&text);
    let at = value_at(document.get_ref(), table, key).unwrap_or(0);
    place_error(&path.display().to_string(), &text, at, Fault::new(what, remedy))
}

fn value_at(root: &DeTable<'_>, (table, name): (&str, Option<&str>), key: &str) -> Option<usize> {
    let found = match (root.get(table)?.get_ref(), name) {
        (DeValue::Table(found), None) => found,
        (DeValue::Array(tables), Some(name)) => tables.iter().find_map(|t| match t.get_ref() {
            DeValue::Table(t) if t.get("name")?.get_ref().as_str() == Some(name) => Some(t),
            _ => None,
        })?,
        _ => return None,
    };
    found.get(key).map(|value| value.span().start)
}

fn read(text: &str, name: &str, open_files: bool) -> Result<(Config, Vec<Warning>), Vec<ConfigError>> {
    let mut report = Report::new(name, text);
    let (document, mut faults) = DeTable::parse_recoverable(text);
    if !faults.is_empty() {
        // One slip makes the parser complain several times; the first of a line says it.
        faults.sort_by_key(|f| f.span().map_or(0, |s| s.start));
        let mut line_end = None;
        for fault in faults {
            let at = fault.span().map_or(0, |s| s.start);
            if line_end.is_none_or(|end| at > end) {
                report.fault(at, syntax(text, at, fault.message()));
                line_end =
                    Some(text.get(at..).and_then(|rest| rest.find('\n')).map_or(text.len(), |n| at + n));
            }
        }
        return Err(report.finish().0);
    }
    let root = Section::root(&mut report, document.get_ref());
    let config = check::config(&mut report, &root, text);
    if open_files {
        for At { value, at } in report.take_files() {
            if let Err(e) = File::open(&value) {
                let what = format!("{} cannot be read ({})", value.display(), reason(&e));
                let remedy = match e.kind() {
                    std::io::ErrorKind::PermissionDenied => "let the user that runs sbe read it",
                    _ => "put it there before sbe run",
                };
                report.warn(at, what, remedy);
            }
        }
        for At { value, at } in report.take_written() {
            if let Some(why) = unwritable(&value) {
                let what = format!("{} cannot be written ({why})", value.display());
                report.warn(at, what, "make the directory, for the user that sbe runs as, before sbe run");
            }
        }
    }
    match report.finish() {
        (errors, warnings) if errors.is_empty() => Ok((config, warnings)),
        (errors, _) => Err(errors),
    }
}

/// Why no file can be made here, as far as that is seen without making one.
fn unwritable(path: &Path) -> Option<String> {
    let dir = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    match (std::fs::metadata(dir), std::fs::metadata(path)) {
        (Err(e), _) => Some(format!("its directory: {}", reason(&e))),
        (Ok(dir), _) if !dir.is_dir() => Some("its directory is none".to_owned()),
        (_, Ok(file)) if file.is_dir() => Some("it is a directory".to_owned()),
        (_, Ok(file)) if file.permissions().readonly() => Some("it is read-only".to_owned()),
        (Ok(dir), Err(_)) if dir.permissions().readonly() => Some("its directory is read-only".to_owned()),
        _ => None,
    }
}

/// The parser's complaint, in our form.
fn syntax(text: &str, at: usize, message: &str) -> Fault {
    let rest = text.get(at..).unwrap_or_default();
    match message.split_once(", expected ") {
        _ if message.starts_with("duplicate key") => {
            let word: String =
                rest.chars().take_while(|c| c.is_alphanumeric() || matches!(c, '_' | '-' | '"')).collect();
            Fault::new(
                format!("{word} is written twice"),
                "leave one (tables that repeat have double brackets, [[peer]])",
            )
        }
        _ if message.starts_with("string values must be quoted") => {
            let word = rest.split(['\n', '#', ',', ']']).next().unwrap_or_default().trim();
            if word.is_empty() {
                Fault::new("the value is missing", "write one after the =, strings in quotes")
            } else {
                Fault::new(
                    format!("the value {word} is not valid TOML"),
                    format!("write strings in quotes: \"{}\"", word.replace('"', "")),
                )
            }
        }
        Some((what, expected)) => Fault::new(what.to_owned(), format!("expected {expected}")),
        None => Fault::new(message.to_owned(), "correct the TOML here"),
    }
}

/// The system's words without its number.
fn reason(error: &std::io::Error) -> String {
    let text = error.to_string();
    text.split(" (os error").next().unwrap_or_default().to_owned()
}
