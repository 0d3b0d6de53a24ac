//! Where the lines go: a file with rotation, or the standard output.

use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::config::{Records, RecordsOutput};

use super::{Counts, RecordsError};

/// Octets gathered before they are written.
const GATHER: usize = 64 * 1024;

/// The open output.
struct Target {
    file: File,
    /// A file in the proper sense, which can be rotated and cut.
    regular: bool,
    /// Octets in it.
    size: u64,
    /// Its last line has no end.
    torn: bool,
}

/// Writes lines, whole ones only as far as that is up to it.
pub(super) struct Sink {
    output: RecordsOutput,
    max_size: u64,
    keep: u32,
    target: Option<Target>,
    buffer: Vec<u8>,
    counts: Arc<Counts>,
    /// The last write failed, and the log has been told.
    failing: bool,
    /// The last rotation failed, and the log has been told.
    stuck: bool,
}

impl Sink {
    /// A file is opened at once, so that a wrong path shows at the start; anything else (a pipe may wait for its reader)
    /// with the first line.
    pub(super) fn new(settings: &Records, counts: Arc<Counts>) -> Result<Self, RecordsError> {
        let mut sink = Self {
            output: settings.output.clone(),
            max_size: settings.max_size,
            keep: settings.keep,
            target: None,
            buffer: Vec::with_capacity(GATHER),
            counts,
            failing: false,
            stuck: false,
        };
        if let RecordsOutput::File(path) = &settings.output
            && path.metadata().map_or(true, |m| m.is_file())
        {
            let opened = open(path).map_err(|cause| RecordsError::File { path: path.clone(), cause })?;
            sink.target = Some(opened);
        }
        Ok(sink)
    }

    /// Lets go of the file; the next line opens it anew.
    pub(super) fn reopen(&mut self) {
        if matches!(self.output, RecordsOutput::File(_)) {
            self.flush();
            self.target = None;
        }
    }

    /// Adds a line, which must have no line end.
    pub(super) fn line(&mut self, line: &str) {
        let more = self.buffer.len() + line.len() + 1;
        if more > GATHER || self.is_full(more) {
            self.flush();
        }
        if self.is_full(line.len() + 1) {
            self.rotate();
        }
        self.buffer.extend_from_slice(line.as_bytes());
        self.buffer.push(b'\n');
    }

    /// True if so many octets more would be too many for the file as it is.
    fn is_full(&self, more: usize) -> bool {
        let more = u64::try_from(more).unwrap_or(u64::MAX);
        self.target
            .as_ref()
            .is_some_and(|t| t.regular && t.size > 0 && t.size.saturating_add(more) > self.max_size)
    }

    /// Writes what has been gathered. What cannot be written is counted and forgotten.
    pub(super) fn flush(&mut self) {
        if self.buffer.is_empty() {
            return;
        }
        let all = lines(&self.buffer);
        if self.target.is_none() {
            match target(&self.output) {
                Ok(opened) => self.target = Some(opened),
                Err(error) => {
                    self.buffer.clear();
                    return self.note(0, all, Err(error));
                }
            }
        }
        let buffer = &self.buffer;
        let (written, outcome) = self.target.as_mut().map_or((0, Ok(())), |t| t.append(buffer));
        self.buffer.clear();
        self.note(written, all, outcome);
    }

    fn note(&mut self, written: u64, all: u64, outcome: io::Result<()>) {
        self.counts.written.fetch_add(written, Ordering::Relaxed);
        self.counts.failed.fetch_add(all.saturating_sub(written), Ordering::Relaxed);
        match outcome {
            Ok(()) if self.failing => {
                self.failing = false;
                tracing::info!("call records are written again");
            }
            Err(error) if !self.failing => {
                self.failing = true;
                tracing::error!(%error, output = self.name(), "call records cannot be written and are lost");
            }
            _ => {}
        }
    }

    fn name(&self) -> String {
        match &self.output {
            RecordsOutput::File(path) => path.display().to_string(),
            RecordsOutput::Stdout => "stdout".to_owned(),
        }
    }

    /// Puts the file aside. If that fails the lines go on into the same one: better a large file than none.
    fn rotate(&mut self) {
        let RecordsOutput::File(path) = &self.output else { return };
        match put_aside(path, self.keep) {
            Ok(()) => {
                self.stuck = false;
                self.target = None;
            }
            Err(error) if !self.stuck => {
                self.stuck = true;
                tracing::error!(%error, output = self.name(), "the file of call records cannot be renamed and grows on");
            }
            Err(_) => {}
        }
    }
}

impl Target {
    /// Appends lines. How many are whole in the file now, and what went wrong.
    fn append(&mut self, text: &[u8]) -> (u64, io::Result<()>) {
        if self.torn {
            match self.file.write(b"\n") {
                Ok(1) => (self.torn, self.size) = (false, self.size.saturating_add(1)),
                Ok(_) => return (0, Err(ErrorKind::WriteZero.into())),
                Err(error) => return (0, Err(error)),
            }
        }
        let mut done = 0;
        let outcome = loop {
            let Some(rest) = text.get(done..).filter(|r| !r.is_empty()) else { break Ok(()) };
            match self.file.write(rest) {
                Ok(0) => break Err(ErrorKind::WriteZero.into()),
                Ok(n) => done += n,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => break Err(error),
            }
        };
        let written = text.get(..done).unwrap_or(text);
        let whole = memchr::memrchr(b'\n', written).map_or(0, |at| at + 1);
        self.torn = whole != done;
        if self.torn && self.regular {
            // The start of a line that was cut off is of no use to anybody.
            let end = self.size.saturating_add(u64::try_from(whole).unwrap_or(0));
            self.torn = self.file.set_len(end).is_err();
            done = if self.torn { done } else { whole };
        }
        self.size = self.size.saturating_add(u64::try_from(done).unwrap_or(0));
        (lines(written), outcome)
    }
}

fn lines(text: &[u8]) -> u64 {
    u64::try_from(memchr::memchr_iter(b'\n', text).count()).unwrap_or(u64::MAX)
}

fn open(path: &Path) -> io::Result<Target> {
    // Who calls whom is not for everybody's eyes.
    let mut options = OpenOptions::new();
    options.append(true).create(true).mode(0o640);
    let regular = path.metadata().map_or(true, |m| m.is_file());
    if !regular {
        return Ok(Target { file: options.open(path)?, regular, size: 0, torn: false });
    }
    let file = options.read(true).open(path)?;
    let size = file.metadata()?.len();
    let mut last = [b'\n'];
    if let Some(at) = size.checked_sub(1) {
        // A run before this one may have ended in the middle of a line.
        file.read_exact_at(&mut last, at)?;
    }
    Ok(Target { file, regular, size, torn: last != [b'\n'] })
}

/// `calls.jsonl` becomes `calls.jsonl.1`, that `calls.jsonl.2`, and so on; the last one goes.
fn put_aside(path: &Path, keep: u32) -> io::Result<()> {
    let numbered = |n: u32| -> PathBuf {
        let mut name = path.as_os_str().to_owned();
        name.push(format!(".{n}"));
        name.into()
    };
    let unless_missing = |done: io::Result<()>| match done {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        done => done,
    };
    if keep == 0 {
        return unless_missing(std::fs::remove_file(path));
    }
    // As far as there are any, so that a large `keep` costs nothing.
    let last = (1..keep).find(|n| !numbered(*n).exists()).unwrap_or(keep);
    for n in (1..last).rev() {
        unless_missing(std::fs::rename(numbered(n), numbered(n + 1)))?;
    }
    unless_missing(std::fs::rename(path, numbered(1)))
}

/// Opens the output.
fn target(output: &RecordsOutput) -> io::Result<Target> {
    match output {
        RecordsOutput::File(path) => open(path),
        // A descriptor of its own: whoever prints otherwise must not wait for a slow reader with us.
        RecordsOutput::Stdout => {
            let file = File::from(io::stdout().as_fd().try_clone_to_owned()?);
            Ok(Target { file, regular: false, size: 0, torn: false })
        }
    }
}
