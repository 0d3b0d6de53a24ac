//! Changes to a message: splices, applied in one pass.

use std::io::Write as _;
use std::net::{IpAddr, SocketAddr};
use std::ops::Range;

use smallvec::SmallVec;

use super::index::Span;
use super::message::{Message, RouteValue};
use super::name::{Name, Wanted};
use super::scan::{Values, sub};
use super::via::ViaRef;

/// One change: `range` gives way to `text`.
#[derive(Clone, Copy, Debug)]
struct Splice {
    range: Span,
    text: Span,
}

/// Changes to come, with their texts; inline for a usual forward.
#[derive(Clone, Debug, Default)]
pub(crate) struct Splices {
    list: SmallVec<[Splice; 16]>,
    scratch: SmallVec<[u8; 512]>,
    sorted: bool,
}

impl Splices {
    pub(crate) fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    fn push(&mut self, range: Range<usize>, parts: &[&[u8]]) {
        let from = self.scratch.len();
        for part in parts {
            self.scratch.extend_from_slice(part);
        }
        self.list.push(Splice { range: range.into(), text: (from..self.scratch.len()).into() });
        self.sorted = false;
    }

    /// By place; at one place insertions come before what replaces, each kind in order of calls.
    fn sort(&mut self) {
        if !self.sorted {
            // Stable, and almost always sorted already.
            for i in 1..self.list.len() {
                let mut j = i;
                while j > 0 && place(&self.list[j]) < place(&self.list[j - 1]) {
                    self.list.swap(j, j - 1);
                    j -= 1;
                }
            }
            self.sorted = true;
        }
    }

    /// Writes `bytes[window]` with all changes that lie in it.
    pub(crate) fn write(&mut self, bytes: &[u8], window: Range<usize>, out: &mut Vec<u8>) {
        self.sort();
        let mut pos = window.start;
        for splice in &self.list {
            let range = splice.range.range();
            if range.start < window.start || range.end > window.end {
                continue;
            }
            if range.start < pos {
                // Inside something that is gone already: nothing to add, perhaps more to remove.
                pos = pos.max(range.end);
                continue;
            }
            out.extend_from_slice(sub(bytes, pos..range.start));
            out.extend_from_slice(sub(&self.scratch, splice.text.range()));
            pos = range.end;
        }
        out.extend_from_slice(sub(bytes, pos..window.end));
    }
}

fn place(splice: &Splice) -> (u32, bool) {
    (splice.range.start, !splice.range.is_empty())
}

/// Splices on a message. All offsets are those of the received message, whatever was spliced
/// before; octets that no splice touches leave as they came.
#[derive(Clone, Debug)]
pub struct Edit<'a> {
    message: Message<'a>,
    splices: Splices,
}

impl<'a> Edit<'a> {
    /// Without any change yet.
    pub fn new(message: Message<'a>) -> Self {
        Edit { message, splices: Splices::default() }
    }

    /// The message as received.
    pub fn message(&self) -> Message<'a> {
        self.message
    }

    /// Puts `text` in place of a range. Where two ranges overlap, the one that starts first gives
    /// the text and both are gone.
    pub fn replace(&mut self, range: Range<usize>, text: &[u8]) {
        self.splices.push(range, &[text]);
    }

    /// Like [`Edit::replace`], with the text in pieces.
    pub fn replace_parts(&mut self, range: Range<usize>, parts: &[&[u8]]) {
        self.splices.push(range, parts);
    }

    /// Puts `text` before the octet at `at`. Several insertions at one place keep the order of the
    /// calls, and come before what replaces that octet.
    pub fn insert(&mut self, at: usize, text: &[u8]) {
        self.splices.push(at..at, &[text]);
    }

    /// Like [`Edit::insert`], with the text in pieces.
    pub fn insert_parts(&mut self, at: usize, parts: &[&[u8]]) {
        self.splices.push(at..at, parts);
    }

    /// Takes a range out.
    pub fn remove(&mut self, range: Range<usize>) {
        self.splices.push(range, &[]);
    }

    /// The changed message: one allocation of the right size.
    pub fn finish(mut self) -> Vec<u8> {
        let window = self.message.range();
        // Never too small: removed octets make up for less than nothing only where ranges overlap.
        let mut out = Vec::with_capacity(window.len() + self.splices.scratch.len());
        self.splices.write(self.message.bytes, window, &mut out);
        out
    }
}

/// A changed message written from front to back: for changes known in their order, without the list
/// that an [`Edit`] keeps. Ranges are of the message as received.
#[derive(Debug)]
pub struct Writer<'a> {
    message: Message<'a>,
    /// Up to here it has been written, or left out.
    at: usize,
    out: Vec<u8>,
}

impl<'a> Writer<'a> {
    /// At the front. `growth`: by how much the message will be longer, at most; more is no harm.
    pub fn new(message: Message<'a>, growth: usize) -> Self {
        let range = message.range();
        Writer { message, at: range.start, out: Vec::with_capacity(range.len() + growth) }
    }

    /// Copies up to `at`; nothing if that lies behind.
    pub fn copy_to(&mut self, at: usize) {
        self.out.extend_from_slice(sub(self.message.bytes, self.at..at));
        self.at = self.at.max(at);
    }

    /// Writes something else.
    pub fn put(&mut self, text: &[u8]) {
        self.out.extend_from_slice(text);
    }

    /// Copies up to a range, and leaves that out.
    pub fn replace(&mut self, range: Range<usize>, text: &[u8]) {
        self.copy_to(range.start);
        self.out.extend_from_slice(text);
        self.at = self.at.max(range.end);
    }

    /// Copies up to a Via value and writes that as [`stamp_via`] would without adding `rport`.
    pub fn stamp(&mut self, via: &ViaRef<'_>, source: SocketAddr) {
        if needs_no_stamp(via, source) {
            return;
        }
        let mut splices = Splices::default();
        stamp(&mut splices, via, source, false);
        if !splices.is_empty() {
            let range = via.range();
            self.copy_to(range.start);
            self.at = self.at.max(range.end);
            splices.write(self.message.bytes, range, &mut self.out);
        }
    }

    /// Copies what is left.
    pub fn finish(mut self) -> Vec<u8> {
        self.copy_to(self.message.range().end);
        self.out
    }
}

/// A decimal number as it is written.
pub fn decimal(n: u64) -> impl AsRef<[u8]> {
    Text::number(n)
}

/// Marks a Via value with where its request came from (RFC 3261 §18.2.1, RFC 3581 §4): `received`
/// where the sent-by is not the source's address, or `rport` is there, or the sender wrote a
/// `received` of its own; `rport` with the source's port where it is asked for, and on UDP
/// (`udp`) also where `add_rport` says so.
pub fn stamp_via(edit: &mut Edit<'_>, via: &ViaRef<'_>, source: SocketAddr, add_rport: bool, udp: bool) {
    stamp(&mut edit.splices, via, source, add_rport && udp);
}

/// True if a Via says already where its request came from, so that nothing need be added.
pub(crate) fn needs_no_stamp(via: &ViaRef<'_>, source: SocketAddr) -> bool {
    via.is_unmarked() && is_honest(via, source)
}

/// The sent-by is the source's address.
fn is_honest(via: &ViaRef<'_>, source: SocketAddr) -> bool {
    match (via.host().addr(), source.ip()) {
        (Some(IpAddr::V4(said)), IpAddr::V4(seen)) => said == seen,
        (said, seen) => said.map(|a| a.to_canonical()) == Some(seen.to_canonical()),
    }
}

pub(crate) fn stamp(splices: &mut Splices, via: &ViaRef<'_>, source: SocketAddr, add_rport: bool) {
    let end = via.params_end();
    if !add_rport && needs_no_stamp(via, source) {
        return;
    }
    let honest = is_honest(via, source);
    let (mut has_received, mut has_rport) = (false, false);
    let received = Text::new(format_args!("received={}", source.ip().to_canonical()));
    let rport = Text::new(format_args!("rport={}", source.port()));
    for param in via.parameters() {
        let (seen, text) = if param.name.eq_ignore_ascii_case(b"received") {
            (&mut has_received, received.bytes())
        } else if param.name.eq_ignore_ascii_case(b"rport") {
            (&mut has_rport, rport.bytes())
        } else {
            continue;
        };
        if *seen {
            // A second one could be believed by whoever reads the last.
            splices.push(param.semicolon..param.range.end, &[]);
        } else {
            splices.push(param.range, &[text]);
        }
        *seen = true;
    }
    if add_rport && !has_rport {
        splices.push(end..end, &[b";", rport.bytes()]);
        has_rport = true;
    }
    if !has_received && (has_rport || !honest) {
        splices.push(end..end, &[b";", received.bytes()]);
    }
}

/// Takes the topmost Via value away, with its row if it is alone there (RFC 3261 §16.7 step 3).
pub fn remove_top_via(edit: &mut Edit<'_>, via: &ViaRef<'_>) {
    edit.remove(top_via_range(edit.message, via));
}

/// What goes with the topmost Via value: its row if it is alone there, else the comma behind it and
/// the white space after that.
pub fn top_via_range(message: Message<'_>, via: &ViaRef<'_>) -> Range<usize> {
    if via.is_sole() {
        return via.row();
    }
    let bytes = message.bytes;
    let rest = via.range().end..via.row().end;
    let comma = sub(bytes, rest.clone()).iter().position(|&b| b == b',').unwrap_or_default();
    let blanks =
        sub(bytes, rest.start + comma + 1..rest.end).iter().take_while(|&&b| super::scan::is_lws(b)).count();
    via.range().start..rest.start + comma + 1 + blanks
}

/// Takes one value of a Route-like list away, with its row if it is alone there. To take several
/// away, use [`retain_values`]: two calls of this one cannot know of each other.
pub fn remove_value(edit: &mut Edit<'_>, value: &RouteValue<'_>) {
    if value.sole {
        return edit.remove(value.row.clone());
    }
    let Some(field) = edit.message.fields().nth(value.row_at) else {
        return;
    };
    let (start, end) = (value.range.start, value.range.end);
    let mut before = None;
    let mut after = None;
    for range in Values::new(edit.message.bytes, field.value_range, true) {
        if range.start < start {
            before = Some(range.end);
        } else if range.start > start && after.is_none() {
            after = Some(range.start);
        }
    }
    match (before, after) {
        (_, Some(next)) => edit.remove(start..next),
        (Some(previous), None) => edit.remove(previous..end),
        (None, None) => edit.remove(value.row.clone()),
    }
}

/// Keeps those values of a comma-separated list for which `keep` says so, given their number over
/// all rows from 0; rows that lose all their values go.
pub fn retain_values(edit: &mut Edit<'_>, name: Name, mut keep: impl FnMut(usize) -> bool) {
    let bytes = edit.message.bytes;
    let brackets = name != Name::Via;
    let mut ordinal = 0;
    for field in edit.message.headers(name) {
        // Start of the run of removed values that are not spliced out yet.
        let mut run: Option<usize> = None;
        let mut last_kept: Option<usize> = None;
        for range in Values::new(bytes, field.value_range.clone(), brackets) {
            let kept = keep(ordinal);
            ordinal += 1;
            if kept {
                if let Some(from) = run.take() {
                    edit.remove(from..range.start);
                }
                last_kept = Some(range.end);
            } else if run.is_none() {
                run = Some(range.start);
            }
        }
        if run.is_some() {
            match last_kept {
                Some(end) => edit.remove(end..field.value_range.end),
                None => edit.remove(field.row),
            }
        }
    }
}

/// Takes all rows of these fields away, however they are spelt; names in lower case.
pub fn strip_headers<N: AsRef<[u8]>>(edit: &mut Edit<'_>, names: &[N]) {
    for name in names {
        let wanted = Wanted::new(name.as_ref());
        for field in edit.message.fields().filter(|f| wanted.is(f.name, f.raw_name)) {
            edit.remove(field.row);
        }
    }
}

/// Writes Max-Forwards: in place of the value that is there, else as a row of its own
/// (RFC 3261 §16.6 step 3).
pub fn set_max_forwards(edit: &mut Edit<'_>, hops: u8) {
    let text = Text::number(u64::from(hops));
    match edit.message.header(Name::MaxForwards) {
        Some(field) => edit.replace(field.value_range, text.bytes()),
        None => {
            let at = edit.message.headers_end();
            edit.insert_parts(at, &[b"Max-Forwards: ", text.bytes(), b"\r\n"]);
        }
    }
}

/// Adds the Content-Length that a datagram may lack (RFC 3261 §16.6 step 9, §18.3).
pub fn ensure_content_length(edit: &mut Edit<'_>) {
    if edit.message.header(Name::ContentLength).is_none() {
        let text = Text::number(u64::try_from(edit.message.body_range().len()).unwrap_or(0));
        let at = edit.message.headers_end();
        edit.insert_parts(at, &[b"Content-Length: ", text.bytes(), b"\r\n"]);
    }
}

/// A short text made without allocation.
pub(crate) struct Text {
    buffer: [u8; 64],
    start: usize,
    end: usize,
}

impl Text {
    /// Cut off at 64 octets, which addresses and numbers never reach.
    pub(crate) fn new(args: std::fmt::Arguments<'_>) -> Self {
        let mut buffer = [0u8; 64];
        let mut left: &mut [u8] = &mut buffer;
        let _ = left.write_fmt(args);
        let end = 64 - left.len();
        Text { buffer, start: 0, end }
    }

    /// A decimal number.
    pub(crate) fn number(mut n: u64) -> Self {
        // From the end: no number is longer than that.
        let mut buffer = [0; 64];
        let mut start = buffer.len();
        for place in buffer.iter_mut().rev() {
            *place = b'0' + u8::try_from(n % 10).unwrap_or(0);
            n /= 10;
            start -= 1;
            if n == 0 {
                break;
            }
        }
        Text { end: buffer.len(), buffer, start }
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        sub(&self.buffer, self.start..self.end)
    }
}

impl AsRef<[u8]> for Text {
    fn as_ref(&self) -> &[u8] {
        self.bytes()
    }
}
