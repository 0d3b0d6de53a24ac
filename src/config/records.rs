//! `[records]`: call records, one line for each call.

use std::path::PathBuf;

use super::error::{At, Fault, Report};
use super::raw::{self, Section};

/// `[records]`
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Records {
    /// Where the lines go.
    pub output: RecordsOutput,
    /// A file that would grow beyond this many octets is put aside first.
    pub max_size: u64,
    /// Files put aside that are kept.
    pub keep: u32,
    /// Events that may wait for the writer; beyond, they are dropped and counted.
    pub queue: usize,
    /// Answered calls whose line waits for their end; beyond, that of the oldest is written without it.
    pub max_open: usize,
}

/// `output`
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RecordsOutput {
    /// `file:PATH`
    File(PathBuf),
    /// `stdout`
    Stdout,
}

/// Default of `max_size`, octets.
pub const MAX_SIZE: u64 = 100 << 20;
/// Default of `keep`.
pub const KEEP: u32 = 10;
/// Default of `queue`.
pub const QUEUE: usize = 10_000;
/// Default of `max_open`.
pub const MAX_OPEN: usize = 1_000_000;

/// `None`: no `output`, no records.
pub(super) fn records(report: &mut Report<'_>, root: &Section<'_>) -> Option<Records> {
    let section = root.table(report, "records", &raw::RECORDS);
    // All keys are checked, whether or not they are of use.
    let max_size = section.size(report, "max_size", 4096..=1 << 40);
    let keep = section.number(report, "keep", 0..=1000).unwrap_or(KEEP);
    let queue = section.number(report, "queue", 1..=10_000_000).unwrap_or(QUEUE);
    let max_open = section.number(report, "max_open", 1..=100_000_000).unwrap_or(MAX_OPEN);
    let output = section.parsed(report, "output", output)?;
    if let RecordsOutput::File(path) = &output.value {
        report.writes(&At { value: path.clone(), at: output.at });
    }
    let max_size = max_size.and_then(|n| u64::try_from(n).ok()).unwrap_or(MAX_SIZE);
    Some(Records { output: output.value, max_size, keep, queue, max_open })
}

fn output(text: &str) -> Result<RecordsOutput, Fault> {
    match text.strip_prefix("file:") {
        Some(path) if !path.is_empty() => Ok(RecordsOutput::File(PathBuf::from(path))),
        None if text == "stdout" => Ok(RecordsOutput::Stdout),
        _ => Err(Fault::new(
            format!("output cannot be \"{text}\""),
            "write \"stdout\" or a file, such as \"file:/var/log/sbe/calls.jsonl\"",
        )),
    }
}
