//! Errors and warnings, each with its place in the file and a remedy.

use std::fmt;
use std::path::PathBuf;

/// Something in the configuration that must be changed before the element can run.
///
/// Displayed as `file:line:column: what is wrong, and what would be right`. Always on one line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigError {
    /// The file, as the user named it.
    pub file: String,
    /// Line, from 1.
    pub line: usize,
    /// Column in characters, from 1.
    pub column: usize,
    /// What is wrong.
    pub what: String,
    /// What would be right.
    pub remedy: String,
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}:{}: {}, {}", self.file, self.line, self.column, self.what, self.remedy)
    }
}

impl std::error::Error for ConfigError {}

/// Something that works, but hardly as intended. Displayed like an error, with `warning:` after the place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Warning {
    /// The file, as the user named it.
    pub file: String,
    /// Line, from 1.
    pub line: usize,
    /// Column in characters, from 1.
    pub column: usize,
    /// What looks wrong.
    pub what: String,
    /// What would be better.
    pub remedy: String,
}

impl fmt::Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}:{}: warning: {}, {}", self.file, self.line, self.column, self.what, self.remedy)
    }
}

/// What is wrong with one value, before it is known where that value stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Fault {
    pub what: String,
    pub remedy: String,
}

impl Fault {
    pub fn new(what: impl Into<String>, remedy: impl Into<String>) -> Self {
        Fault { what: what.into(), remedy: remedy.into() }
    }
}

/// A value with the offset in the text where it stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct At<T> {
    pub value: T,
    pub at: usize,
}

/// Collects everything found, in whatever order the checks run.
#[derive(Debug)]
pub(super) struct Report<'a> {
    file: &'a str,
    text: &'a str,
    errors: Vec<At<Fault>>,
    warnings: Vec<At<Fault>>,
    files: Vec<At<PathBuf>>,
    written: Vec<At<PathBuf>>,
}

impl<'a> Report<'a> {
    pub fn new(file: &'a str, text: &'a str) -> Self {
        Report {
            file,
            text,
            errors: Vec::new(),
            warnings: Vec::new(),
            files: Vec::new(),
            written: Vec::new(),
        }
    }

    pub fn fault(&mut self, at: usize, value: Fault) {
        self.errors.push(At { value, at });
    }

    pub fn error(&mut self, at: usize, what: impl Into<String>, remedy: impl Into<String>) {
        self.fault(at, Fault::new(what, remedy));
    }

    pub fn warn(&mut self, at: usize, what: impl Into<String>, remedy: impl Into<String>) {
        self.warnings.push(At { value: Fault::new(what, remedy), at });
    }

    /// Notes a file that the running element will read.
    pub fn reads(&mut self, file: &At<PathBuf>) {
        self.files.push(file.clone());
    }

    /// Notes a file that the running element will write.
    pub fn writes(&mut self, file: &At<PathBuf>) {
        self.written.push(file.clone());
    }

    /// Takes the files to be written that were noted so far.
    pub fn take_written(&mut self) -> Vec<At<PathBuf>> {
        std::mem::take(&mut self.written)
    }

    /// Takes the files noted so far.
    pub fn take_files(&mut self) -> Vec<At<PathBuf>> {
        std::mem::take(&mut self.files)
    }

    /// How many errors there are so far; lets a check see whether what it builds on was sound.
    pub fn errors(&self) -> usize {
        self.errors.len()
    }

    /// Errors and warnings, each in the order of the file.
    pub fn finish(self) -> (Vec<ConfigError>, Vec<Warning>) {
        let Report { file, text, mut errors, mut warnings, .. } = self;
        errors.sort_by_key(|e| e.at);
        warnings.sort_by_key(|w| w.at);
        let errors = errors.into_iter().map(|At { value, at }| place_error(file, text, at, value)).collect();
        let warnings = warnings
            .into_iter()
            .map(|At { value, at }| {
                let ConfigError { file, line, column, what, remedy } = place_error(file, text, at, value);
                Warning { file, line, column, what, remedy }
            })
            .collect();
        (errors, warnings)
    }
}

/// An error at an offset of a text.
pub(super) fn place_error(file: &str, text: &str, at: usize, fault: Fault) -> ConfigError {
    let (line, column) = position(text, at);
    ConfigError {
        file: file.to_owned(),
        line,
        column,
        what: one_line(fault.what),
        remedy: one_line(fault.remedy),
    }
}

/// Line and column, both from 1, of an offset; the column counts characters, as editors do.
fn position(text: &str, at: usize) -> (usize, usize) {
    let mut end = at.min(text.len());
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    let before = text.get(..end).unwrap_or_default();
    let line = before.matches('\n').count() + 1;
    let column = before.rsplit('\n').next().unwrap_or_default().chars().count() + 1;
    (line, column)
}

/// A string of the file may hold line ends; a message must not.
fn one_line(text: String) -> String {
    if text.chars().any(char::is_control) {
        text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
    } else {
        text
    }
}

/// `"a"`, `"a" or "b"`, `"a", "b" or "c"`.
pub(super) fn alternatives<'a>(words: impl IntoIterator<Item = &'a str>) -> String {
    let quoted: Vec<String> = words.into_iter().map(|w| format!("\"{w}\"")).collect();
    match quoted.split_last() {
        None => String::new(),
        Some((only, [])) => only.clone(),
        Some((last, rest)) => format!("{} or {last}", rest.join(", ")),
    }
}

/// The known word that was probably meant: the nearest by edits, if near enough.
pub(super) fn nearest<'a>(word: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let word = word.to_ascii_lowercase();
    let limit = (word.chars().count() / 3).max(1);
    known
        .into_iter()
        .map(|k| (edits(&word, k), k))
        .filter(|(d, _)| *d <= limit)
        .min_by_key(|(d, _)| *d)
        .map(|(_, k)| k)
}

/// Edits from one word to another: insert, delete, replace a character, or swap two neighbours.
fn edits(a: &str, b: &str) -> usize {
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().collect(), b.chars().collect());
    let first: Vec<usize> = (0..=b.len()).collect();
    // Rows of the usual table: the one before the last, the last, the one being made.
    let (mut older, mut old) = (first.clone(), first);
    for (i, ca) in a.iter().enumerate() {
        let mut row = vec![i + 1];
        for (j, cb) in b.iter().enumerate() {
            let mut best = (old[j] + usize::from(ca != cb)).min(old[j + 1] + 1).min(row[j] + 1);
            if i > 0 && j > 0 && *ca == b[j - 1] && a[i - 1] == *cb {
                best = best.min(older[j - 1] + 1);
            }
            row.push(best);
        }
        older = std::mem::replace(&mut old, row);
    }
    old.last().copied().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_known_word_is_found_if_it_is_near() {
        let known = ["t1", "t2", "timer_c", "try_timeout", "idle_timeout", "max_tries"];
        assert_eq!(nearest("try_timout", known), Some("try_timeout"));
        assert_eq!(nearest("timerc", known), Some("timer_c"));
        assert_eq!(nearest("max_treis", known), Some("max_tries"), "swapped neighbours are one edit");
        assert_eq!(nearest("Timer_C", known), Some("timer_c"));
        assert_eq!(nearest("retries", known), None);
        assert_eq!(nearest("", known), None);
    }

    #[test]
    fn columns_count_characters_and_lines_from_one() {
        let text = "a = 1\nä = \"é\" x\n";
        assert_eq!(position(text, 0), (1, 1));
        assert_eq!(position(text, 6), (2, 1));
        assert_eq!(position(text, text.find('x').map_or(0, |x| x)), (2, 9));
        assert_eq!(position(text, 7), (2, 1), "an offset inside a character belongs to it");
        assert_eq!(position(text, 1000), (3, 1));
    }

    #[test]
    fn a_message_stays_on_one_line() {
        let e = place_error("f", "x", 0, Fault::new("a\nb", "c\td"));
        assert_eq!(e.to_string(), "f:1:1: a b, c d");
    }
}
