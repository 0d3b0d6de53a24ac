//! Lines into files that rotate, fill up or are moved away; the table of calls under way.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use super::line::{Begun, rfc3339};
use super::open::Open;
use super::sink::Sink;
use super::{Counts, Offer};
use crate::config::{Records, RecordsOutput};
use crate::shard::{CallEnd, CallEvent};

/// A directory of its own, removed when dropped.
struct Directory(PathBuf);

impl Directory {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("sbe-records-{}-{name}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    fn file(&self) -> PathBuf {
        self.0.join("calls.jsonl")
    }

    fn read(&self, name: &str) -> String {
        fs::read_to_string(self.0.join(name)).unwrap()
    }

    fn names(&self) -> Vec<String> {
        let mut all: Vec<String> =
            fs::read_dir(&self.0).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
        all.sort();
        all
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn settings(file: &Path, max_size: u64, keep: u32) -> Records {
    Records { output: RecordsOutput::File(file.to_owned()), max_size, keep, queue: 10, max_open: 10 }
}

fn sink(file: &Path, max_size: u64, keep: u32) -> (Sink, Arc<Counts>) {
    let counts: Arc<Counts> = Arc::default();
    (Sink::new(&settings(file, max_size, keep), Arc::clone(&counts)).unwrap(), counts)
}

fn outcomes(counts: &Counts) -> [u64; 3] {
    counts.outcomes().map(|(_, n)| n)
}

#[test]
fn a_file_that_would_grow_too_large_is_put_aside_and_the_oldest_of_those_goes() {
    let directory = Directory::new("rotation");
    let (mut sink, counts) = sink(&directory.file(), 30, 2);
    for n in 0..8 {
        // Ten octets each: three fit.
        sink.line(&format!("line {n:04}"));
        if n % 2 == 0 {
            sink.flush();
        }
    }
    sink.flush();
    assert_eq!(directory.names(), ["calls.jsonl", "calls.jsonl.1", "calls.jsonl.2"]);
    assert_eq!(directory.read("calls.jsonl.2"), "line 0000\nline 0001\nline 0002\n");
    assert_eq!(directory.read("calls.jsonl.1"), "line 0003\nline 0004\nline 0005\n");
    assert_eq!(directory.read("calls.jsonl"), "line 0006\nline 0007\n");
    for n in 8..10 {
        sink.line(&format!("line {n:04}"));
    }
    sink.flush();
    assert_eq!(directory.names().len(), 3);
    assert_eq!(directory.read("calls.jsonl.2"), "line 0003\nline 0004\nline 0005\n");
    assert_eq!(directory.read("calls.jsonl"), "line 0009\n");
    assert_eq!(outcomes(&counts), [10, 0, 0]);
}

#[test]
fn with_nothing_to_keep_a_full_file_begins_anew() {
    let directory = Directory::new("keep-none");
    let (mut sink, counts) = sink(&directory.file(), 20, 0);
    for n in 0..5 {
        sink.line(&format!("line {n:04}"));
        sink.flush();
    }
    assert_eq!(directory.names(), ["calls.jsonl"]);
    assert_eq!(directory.read("calls.jsonl"), "line 0004\n");
    assert_eq!(outcomes(&counts), [5, 0, 0]);
}

#[test]
fn a_file_is_continued_after_a_restart_and_a_line_that_was_cut_off_is_ended() {
    let directory = Directory::new("restart");
    fs::write(directory.file(), "line 0000\nline 0").unwrap();
    let (mut sink, _) = sink(&directory.file(), 1000, 2);
    sink.line("line 0002");
    sink.flush();
    assert_eq!(directory.read("calls.jsonl"), "line 0000\nline 0\nline 0002\n");
}

#[test]
fn a_file_that_was_moved_away_is_opened_anew_on_demand() {
    let directory = Directory::new("reopen");
    let (mut sink, _) = sink(&directory.file(), 1000, 2);
    sink.line("line 0000");
    sink.flush();
    fs::rename(directory.file(), directory.0.join("moved")).unwrap();
    sink.line("line 0001");
    sink.reopen();
    sink.line("line 0002");
    sink.flush();
    assert_eq!(directory.read("moved"), "line 0000\nline 0001\n");
    assert_eq!(directory.read("calls.jsonl"), "line 0002\n");
}

#[test]
fn lines_for_a_full_disk_are_counted_and_not_kept() {
    let (mut sink, counts) = sink(Path::new("/dev/full"), 1000, 2);
    for n in 0..10_000 {
        sink.line(&format!("line {n:04}"));
    }
    sink.flush();
    assert_eq!(outcomes(&counts), [0, 0, 10_000]);
}

#[test]
fn a_directory_that_has_gone_is_counted_and_used_again_when_it_is_back() {
    let directory = Directory::new("gone");
    let (mut sink, counts) = sink(&directory.file(), 1000, 2);
    fs::remove_dir_all(&directory.0).unwrap();
    sink.reopen();
    sink.line("line 0000");
    sink.flush();
    assert_eq!(outcomes(&counts), [0, 0, 1]);
    fs::create_dir_all(&directory.0).unwrap();
    sink.line("line 0001");
    sink.flush();
    assert_eq!(outcomes(&counts), [1, 0, 1]);
    assert_eq!(directory.read("calls.jsonl"), "line 0001\n");
}

#[test]
fn a_path_that_cannot_be_written_is_an_error_at_the_start() {
    let error =
        Sink::new(&settings(Path::new("/nowhere/calls.jsonl"), 1000, 1), Arc::default()).err().unwrap();
    assert!(error.to_string().starts_with("[records] output: /nowhere/calls.jsonl: No such file"), "{error}");
}

#[test]
fn a_full_queue_drops_and_counts_at_once() {
    let counts: Arc<Counts> = Arc::default();
    let (queue, events) = std::sync::mpsc::sync_channel(3);
    let offer = Offer { queue, counts: Arc::clone(&counts) };
    let ended = || CallEvent::Ended { call: 7, at: Instant::now(), how: CallEnd::Bye };
    (0..10).for_each(|_| offer.offer(ended()));
    assert_eq!(counts.ends_lost(), 7);
    assert_eq!(events.try_iter().count(), 3);
    offer.offer(ended());
    assert_eq!((counts.ends_lost(), events.try_iter().count()), (7, 1), "there is room again");
}

fn begun(name: &str) -> Begun {
    Begun::of(format!("{{\"call_id\":\"{name}\""), Instant::now())
}

fn name(line: Begun) -> String {
    let line = line.finished("bye", None);
    let value: serde_json::Value = serde_json::from_str(&line).unwrap();
    value["call_id"].as_str().unwrap().to_owned()
}

#[test]
fn a_full_table_of_calls_gives_up_the_oldest_and_a_call_may_have_several_lines() {
    let mut open = Open::new(3);
    assert!(open.add(1, begun("a")).is_none());
    assert!(open.add(2, begun("b")).is_none());
    assert!(open.add(1, begun("c")).is_none());
    assert_eq!(open.add(3, begun("d")).map(name).as_deref(), Some("a"));
    assert_eq!(open.take(1).map(name).collect::<Vec<_>>(), ["c"]);
    assert_eq!(open.take(1).count(), 0);
    assert_eq!(open.len(), 2);
    open.add(2, begun("e"));
    assert_eq!(open.take(2).map(name).collect::<Vec<_>>(), ["b", "e"]);
    open.add(4, begun("f"));
    assert_eq!(open.take_all().into_iter().map(name).collect::<Vec<_>>(), ["d", "f"]);
    assert_eq!(open.len(), 0);
}

#[test]
fn a_line_ends_with_how_and_when_the_call_did() {
    let answered = Instant::now();
    let wall = SystemTime::UNIX_EPOCH + Duration::from_millis(1_700_000_000_042);
    let end = (answered + Duration::from_micros(61_250), wall);
    let begun = || Begun::of("{\"v\":1".into(), answered);
    assert_eq!(
        begun().finished("bye", Some(end)),
        r#"{"v":1,"end":"bye","ended":"2023-11-14T22:13:20.042Z","duration_ms":61.25}"#
    );
    assert_eq!(begun().finished("", None), r#"{"v":1,"end":null,"ended":null,"duration_ms":null}"#);
    assert_eq!(rfc3339(SystemTime::UNIX_EPOCH), "1970-01-01T00:00:00.000Z");
}
