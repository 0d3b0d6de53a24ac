//! The log: text or JSON lines on the standard error output, one line per event whatever a message holds.

use std::io::{self, Write};

use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::MakeWriter;

use crate::config;

/// Longest line written; more is cut off.
const MAX_LINE: usize = 4096;

/// Starts logging, as `[log]` says; the environment variable `RUST_LOG` replaces the level.
///
/// # Errors
/// The level is no filter expression, or logging has been started before.
pub fn init(log: &config::Log) -> Result<(), String> {
    let filter = match std::env::var("RUST_LOG") {
        Ok(text) if !text.is_empty() => {
            EnvFilter::try_new(&text).map_err(|e| format!("RUST_LOG=\"{text}\" is no filter: {e}"))?
        }
        _ => EnvFilter::try_new(&log.level)
            .map_err(|e| format!("log level \"{}\" is no filter: {e}", log.level))?,
    };
    // Colours are control octets, of which there shall be none.
    let builder = tracing_subscriber::fmt().with_env_filter(filter).with_ansi(false).with_writer(Lines);
    let started = if log.json { builder.json().flatten_event(true).try_init() } else { builder.try_init() };
    started.map_err(|e| e.to_string())
}

/// Makes every event one line without control octets, so that nobody can forge lines or steer a terminal.
struct Lines;

impl<'a> MakeWriter<'a> for Lines {
    type Writer = Line;

    fn make_writer(&'a self) -> Line {
        Line
    }
}

struct Line;

impl Write for Line {
    /// The formatter hands over a whole event at once, its line end included.
    fn write(&mut self, event: &[u8]) -> io::Result<usize> {
        io::stderr().lock().write_all(&one_line(event))?;
        Ok(event.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        io::stderr().lock().flush()
    }
}

/// The event as one line: control octets escaped, the rest of a very long one left out.
fn one_line(event: &[u8]) -> Vec<u8> {
    let text = event.strip_suffix(b"\n").unwrap_or(event);
    let mut line = Vec::with_capacity(text.len().min(MAX_LINE) + 8);
    for octet in text {
        if line.len() >= MAX_LINE {
            line.extend_from_slice(b" ...");
            break;
        }
        match octet {
            b'\n' => line.extend_from_slice(b"\\n"),
            b'\r' => line.extend_from_slice(b"\\r"),
            b'\t' => line.extend_from_slice(b"\\t"),
            0..=0x1f | 0x7f => line.extend_from_slice(format!("\\x{octet:02x}").as_bytes()),
            _ => line.push(*octet),
        }
    }
    line.push(b'\n');
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_is_one_line_without_control_octets() {
        let text = one_line(b"2026 INFO x\x1b[2J\nready\r\n\x00\x7f\tq\n");
        assert_eq!(text, b"2026 INFO x\\x1b[2J\\nready\\r\\n\\x00\\x7f\\tq\n");
        assert_eq!(one_line("umlaut \u{e4}".as_bytes()), "umlaut \u{e4}\n".as_bytes());
    }

    #[test]
    fn a_very_long_event_is_cut() {
        let text = one_line(&[b'a'; 100_000]);
        assert!(text.len() < MAX_LINE + 10 && text.ends_with(b"a ...\n"), "{}", text.len());
    }
}
