//! The index: where in a message its start line, rows and body are, and what is wrong with it.

use std::ops::Range;

use super::Limits;
use super::check;
use super::fault::{Fault, Unusable};
use super::name::{Method, Name};
use super::octets::{Controls, seek};
use super::scan::{is_control, is_token, sub, token_len, trim};
use super::uri::UriSpans;
use super::via::ViaSpans;

/// How the end of a message was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Framing {
    /// By the end of a datagram: Content-Length may be missing, and octets past it are no part of
    /// the message (RFC 3261 §18.3).
    Datagram,
    /// Cut out of a stream by its Content-Length, which must be there.
    Stream,
}

/// Offsets into one message. Messages are shorter than 4 GiB: [`Index::parse`] sees to it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Span {
    pub(crate) start: u32,
    pub(crate) end: u32,
}

impl Span {
    pub(crate) fn range(self) -> Range<usize> {
        self.start as usize..self.end as usize
    }

    pub(crate) fn is_empty(self) -> bool {
        self.start >= self.end
    }
}

impl From<Range<usize>> for Span {
    fn from(r: Range<usize>) -> Self {
        // Messages are shorter than 4 GiB.
        debug_assert!(u32::try_from(r.start.max(r.end)).is_ok());
        Span { start: r.start as u32, end: r.end as u32 }
    }
}

/// One header row.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Row {
    pub(crate) name: Name,
    /// Octets of the name; blanks and colon follow it.
    pub(crate) name_len: u16,
    /// Whole row, final CRLF included.
    pub(crate) row: Span,
    /// Value without the white space around it.
    pub(crate) value: Span,
}

/// Room for so many rows is made at once; messages seldom have more.
const USUAL_ROWS: usize = 48;

/// `first` has this for a field that is not there.
const NONE: u16 = u16::MAX;

/// What [`Index::parse`] found. Goes with the octets it was made from and no others.
#[derive(Clone, Debug)]
pub struct Index {
    pub(crate) rows: Vec<Row>,
    /// First row of each known name.
    first: [u16; Name::COUNT],
    /// A bit for each known name with more than one row.
    repeated: u32,
    pub(crate) method: Method,
    pub(crate) method_span: Span,
    pub(crate) uri: Span,
    /// The Request-URI taken apart; `None` if it cannot be.
    pub(crate) uri_parts: Option<UriSpans>,
    /// 0 for requests.
    pub(crate) status: u16,
    pub(crate) reason: Span,
    pub(crate) start_line: Span,
    pub(crate) headers_end: u32,
    pub(crate) body: Span,
    pub(crate) content_length: Option<u32>,
    pub(crate) max_forwards: Option<u8>,
    pub(crate) cseq: Option<u32>,
    pub(crate) cseq_method: Span,
    pub(crate) from_tag: Span,
    pub(crate) to_tag: Span,
    /// The first two Via values of the topmost row (of a response: over all rows), as far as they can be read.
    pub(crate) vias: [Option<ViaSpans>; 2],
    /// No control octets but folding and quoted pairs: rows may be copied as they are.
    pub(crate) clean: bool,
    pub(crate) fault: Option<Fault>,
}

impl Default for Index {
    fn default() -> Self {
        Index::empty()
    }
}

impl Index {
    /// Finds start line, rows and body, and checks them. An error means that the octets can be
    /// neither understood nor answered; everything else is left to [`Index::fault`].
    pub fn parse(bytes: &[u8], limits: &Limits, framing: Framing) -> Result<Index, Unusable> {
        let mut index = Index::empty();
        index.read(bytes, limits, framing)?;
        Ok(index)
    }

    /// Of nothing; to be filled by [`Index::read`].
    pub fn empty() -> Index {
        Index {
            rows: Vec::new(),
            first: [NONE; Name::COUNT],
            repeated: 0,
            method: Method::Other,
            method_span: Span::default(),
            uri: Span::default(),
            uri_parts: None,
            status: 0,
            reason: Span::default(),
            start_line: Span::default(),
            headers_end: 0,
            body: Span::default(),
            content_length: None,
            max_forwards: None,
            cseq: None,
            cseq_method: Span::default(),
            from_tag: Span::default(),
            to_tag: Span::default(),
            vias: [None; 2],
            clean: true,
            fault: None,
        }
    }

    /// Forgets what was read before.
    fn clear(&mut self) {
        self.rows.clear();
        self.rows.reserve(USUAL_ROWS);
        self.first = [NONE; Name::COUNT];
        self.repeated = 0;
        self.method = Method::Other;
        self.method_span = Span::default();
        self.uri = Span::default();
        self.uri_parts = None;
        self.status = 0;
        self.reason = Span::default();
        self.content_length = None;
        self.max_forwards = None;
        self.cseq = None;
        self.cseq_method = Span::default();
        self.from_tag = Span::default();
        self.to_tag = Span::default();
        self.vias = [None; 2];
        self.clean = true;
        self.fault = None;
    }

    /// As [`Index::parse`], into the same room again. After an error it is of no use.
    pub fn read(&mut self, bytes: &[u8], limits: &Limits, framing: Framing) -> Result<(), Unusable> {
        self.clear();
        if bytes.len() > limits.max_message || u32::try_from(bytes.len()).is_err() {
            return Err(Unusable::TooLarge);
        }
        let start = bytes.iter().take_while(|&&b| matches!(b, b'\r' | b'\n')).count();
        if bytes.iter().skip(start).all(|&b| b == 0) {
            return Err(Unusable::KeepAlive);
        }
        // In a tidy header, control octets stand nowhere but in the line end of each row.
        let mut tidy = true;
        let mut controls = Controls::new(bytes, start);
        let (line_end, next) = match controls.line_end() {
            Some(at) => (at, at + 2),
            None => {
                tidy = false;
                let ends = line_end(bytes, start).map_or((bytes.len(), bytes.len()), |next| (next - 2, next));
                controls.seek(ends.1);
                ends
            }
        };
        if line_end - start > limits.max_header {
            return Err(Unusable::TooLarge);
        }
        if !(tidy && self.read_plain_start_line(bytes, start..line_end)) {
            self.read_start_line(bytes, start..line_end)?;
        }
        self.start_line = (start..next).into();
        self.read_rows(bytes, next, controls, limits, tidy);
        check::run(self, bytes, limits, framing);
        Ok(())
    }

    /// The first fault for which a proxy refuses a request, or drops a response.
    pub fn fault(&self) -> Option<Fault> {
        self.fault
    }

    /// Keeps the first fault.
    pub(crate) fn blame(&mut self, fault: Fault) {
        self.fault.get_or_insert(fault);
    }

    /// First row of a known name.
    pub(crate) fn first(&self, name: Name) -> Option<(usize, &Row)> {
        let at = usize::from(*self.first.get(name as usize)?);
        self.rows.get(at).map(|row| (at, row))
    }

    /// True if there is more than one row of this name.
    pub(crate) fn repeated(&self, name: Name) -> bool {
        self.repeated & (1 << name as u32) != 0
    }

    /// Reads a start line without control octets that is written as the RFC writes it. False, with
    /// nothing done, for any other.
    fn read_plain_start_line(&mut self, bytes: &[u8], line: Range<usize>) -> bool {
        let text = sub(bytes, line.clone());
        if let Some(rest) = text.strip_prefix(b"SIP/2.0 ") {
            let [a @ b'1'..=b'6', b @ b'0'..=b'9', c @ b'0'..=b'9', b' ', ..] = rest else { return false };
            let digit = |d: &u8| u16::from(*d - b'0');
            self.status = digit(a) * 100 + digit(b) * 10 + digit(c);
            self.reason = (line.start + 12..line.end).into();
            return true;
        }
        let method_len = token_len(bytes, line.clone());
        let uri_at = line.start + method_len + 1;
        let Some(uri_end) = seek(bytes, uri_at..line.end, |b| b.is(b' ')) else { return false };
        let plain = method_len > 0
            && text.get(method_len) == Some(&b' ')
            && uri_end > uri_at
            && sub(bytes, uri_end..line.end) == b" SIP/2.0";
        if plain {
            self.method = Method::of(sub(text, 0..method_len));
            self.method_span = (line.start..line.start + method_len).into();
            self.uri = (uri_at..uri_end).into();
        }
        plain
    }

    fn read_start_line(&mut self, bytes: &[u8], line: Range<usize>) -> Result<(), Unusable> {
        let text = sub(bytes, line.clone());
        if text.get(..4).is_some_and(|s| s.eq_ignore_ascii_case(b"SIP/")) {
            return self.read_status_line(bytes, line);
        }
        // The last word must be the version, whatever blanks stand around it.
        let tail = text.iter().rev().take_while(|&&b| matches!(b, b' ' | b'\t')).count();
        let words = sub(text, 0..text.len() - tail);
        let version_at = memchr::memrchr(b' ', words).ok_or(Unusable::NotSip)? + 1;
        let version = sub(words, version_at..words.len());
        if !version.get(..4).is_some_and(|v| v.eq_ignore_ascii_case(b"SIP/")) {
            return Err(Unusable::NotSip);
        }
        let method_len = memchr::memchr(b' ', words).ok_or(Unusable::NotSip)?;
        let method = sub(words, 0..method_len);
        if method.is_empty() || method_len + 1 >= version_at {
            return Err(Unusable::NotSip);
        }
        self.method = Method::of(method);
        self.method_span = (line.start..line.start + method_len).into();
        let uri = line.start + method_len + 1..line.start + version_at - 1;
        self.uri = trim(bytes, uri.clone()).into();
        if !version.eq_ignore_ascii_case(b"SIP/2.0") {
            self.blame(Fault::VERSION);
        } else if tail != 0 || self.uri.range() != uri || !method.iter().all(|&b| is_token(b)) {
            self.blame(Fault::START_LINE);
        }
        Ok(())
    }

    fn read_status_line(&mut self, bytes: &[u8], line: Range<usize>) -> Result<(), Unusable> {
        let text = sub(bytes, line.clone());
        let version_len = memchr::memchr(b' ', text).ok_or(Unusable::NotSip)?;
        let code_at = version_len + 1;
        let rest = text.get(code_at..).unwrap_or_default();
        let code_len = memchr::memchr(b' ', rest).unwrap_or(rest.len());
        let code = super::scan::number(sub(rest, 0..code_len), u64::from(u16::MAX));
        let reason = (line.start + code_at + code_len + 1).min(line.end)..line.end;
        self.reason = reason.into();
        // A response that cannot be read is still one: 0 would make it a request.
        self.status = code.and_then(|n| u16::try_from(n).ok()).filter(|&n| n != 0).unwrap_or(999);
        if !sub(text, 0..version_len).eq_ignore_ascii_case(b"SIP/2.0") {
            self.blame(Fault::VERSION);
        } else if code_len != 3 || !(100..=699).contains(&self.status) {
            self.blame(Fault::STATUS);
        }
        Ok(())
    }

    /// Rows up to the blank line. `tidy`: there are no control octets up to `start` but a line end.
    fn read_rows(
        &mut self,
        bytes: &[u8],
        start: usize,
        mut controls: Controls<'_>,
        limits: &Limits,
        mut tidy: bool,
    ) {
        let most = limits.max_headers.min(usize::from(NONE));
        let mut pos = start;
        // Line ends that the rows' number does not tell of: those of the start line, and inside rows.
        let mut more_line_ends = usize::from(sub(bytes, self.start_line.range()).ends_with(b"\r\n"));
        let mut over = 0;
        let mut fault = None;
        loop {
            let stop = self.tidy_rows(pos, &mut controls, most);
            pos = stop.pos;
            over += stop.over;
            if stop.blank_line {
                self.set_ends(pos, pos + 2, bytes.len());
                break;
            }
            if pos >= bytes.len() {
                fault = fault.or(Some(Fault::NO_BLANK_LINE));
                self.set_ends(pos, pos, bytes.len());
                break;
            }
            tidy = false;
            let raw = raw_row(bytes, pos);
            controls.seek(raw.end);
            more_line_ends = (more_line_ends + raw.line_ends).saturating_sub(1);
            if !raw.well_formed {
                fault = fault.or(Some(Fault::HEADER_LINE));
            }
            if self.rows.len() < most {
                push(&mut self.rows, &mut self.first, &mut self.repeated, raw.row(pos));
            } else {
                over += 1;
            }
            pos = raw.end;
        }
        let head = self.start_line.range().start..self.headers_end as usize;
        if head.len() > limits.max_header && self.rows.iter().any(|r| r.row.range().len() > limits.max_header)
        {
            fault = fault.or(Some(Fault::HEADER_TOO_LARGE));
        }
        if over > 0 {
            fault = fault.or(Some(Fault::TOO_MANY_HEADERS));
        }
        if !tidy {
            let line_ends = self.rows.len() + over + more_line_ends;
            // Every line end is two control octets; any more are out of place, or quoted.
            if count_controls(sub(bytes, head)) != 2 * line_ends && !self.controls_are_quoted(bytes) {
                self.clean = false;
                fault = Some(Fault::CONTROL);
            }
        }
        if let Some(fault) = fault {
            self.blame(fault);
        }
    }

    /// Reads rows whose only control octets are their line ends, by far the most, up to the blank line or one that
    /// wants a closer look. A function of its own, so that what it needs stays in registers.
    #[inline(never)]
    fn tidy_rows(&mut self, mut pos: usize, controls: &mut Controls<'_>, most: usize) -> Stop {
        let (rows, first, repeated) = (&mut self.rows, &mut self.first, &mut self.repeated);
        let mut seen = *controls;
        let bytes = seen.bytes();
        let mut over = 0;
        let blank_line = loop {
            let Some(text_end) = seen.line_end() else { break false };
            if text_end == pos {
                break true;
            }
            let Some(row) = tidy_row(bytes, pos, text_end) else { break false };
            if rows.len() < most {
                push(rows, first, repeated, row);
            } else {
                over += 1;
            }
            pos = text_end + 2;
        };
        *controls = seen;
        Stop { pos, over, blank_line }
    }

    fn set_ends(&mut self, headers_end: usize, body: usize, len: usize) {
        let span = Span::from(headers_end..headers_end);
        self.headers_end = span.start;
        self.body = (body..len).into();
    }

    /// The slow way, for headers with control octets: true if all of them are quoted pairs inside
    /// quoted strings (`intmeth` of RFC 4475) or folding.
    fn controls_are_quoted(&self, bytes: &[u8]) -> bool {
        let line = sub(bytes, self.start_line.range());
        if line.strip_suffix(b"\r\n").is_none_or(|l| l.iter().any(|&b| is_control(b))) {
            return false;
        }
        let indexed = self.rows.last().map_or(self.start_line.end, |row| row.row.end);
        indexed == self.headers_end && self.rows.iter().all(|row| row_is_clean(sub(bytes, row.row.range())))
    }
}

/// Where [`Index::tidy_rows`] came to an end.
struct Stop {
    pos: usize,
    /// Rows that were not kept.
    over: usize,
    /// The blank line is there; if not, look closer, with [`raw_row`].
    blank_line: bool,
}

#[inline(always)]
fn push(rows: &mut Vec<Row>, first: &mut [u16; Name::COUNT], repeated: &mut u32, row: Row) {
    if let Some(first) = first.get_mut(row.name as usize) {
        if *first == NONE {
            // There are at most as many rows as that.
            *first = rows.len() as u16;
        } else {
            *repeated |= 1 << row.name as u32;
        }
    }
    rows.push(row);
}

fn row_is_clean(row: &[u8]) -> bool {
    let Some(row) = row.strip_suffix(b"\r\n") else {
        return false;
    };
    let mut quoted = false;
    let mut i = 0;
    while let Some(&b) = row.get(i) {
        match b {
            b'"' => quoted = !quoted,
            b'\\' if quoted => {
                if matches!(row.get(i + 1), Some(b'\r' | b'\n')) {
                    return false;
                }
                i += 1;
            }
            b'\r' => {
                let folded = row.get(i + 1) == Some(&b'\n') && matches!(row.get(i + 2), Some(b' ' | b'\t'));
                if !folded {
                    return false;
                }
                i += 1;
            }
            b if is_control(b) => return false,
            _ => {}
        }
        i += 1;
    }
    true
}

fn count_controls(head: &[u8]) -> usize {
    // Chunks short enough for a byte-wide sum, which the compiler turns into vector code.
    head.chunks(128)
        .map(|chunk| usize::from(chunk.iter().map(|&b| u8::from(is_control(b))).sum::<u8>()))
        .sum()
}

/// After the next CRLF at or after `pos`. A LF alone ends nothing.
pub(crate) fn line_end(bytes: &[u8], pos: usize) -> Option<usize> {
    let mut from = pos;
    loop {
        let at = from + memchr::memchr(b'\n', bytes.get(from..)?)?;
        if at > pos && bytes.get(at - 1) == Some(&b'\r') {
            return Some(at + 1);
        }
        from = at + 1;
    }
}

/// Reads a row whose only control octets are the line end at `text_end`. `None`: look closer, with [`raw_row`].
#[inline(always)]
fn tidy_row(bytes: &[u8], pos: usize, text_end: usize) -> Option<Row> {
    let (name, name_len, colon) = match bytes.get(pos..)?.first_chunk().and_then(Name::of_row) {
        Some((name, len)) => (name, len, len),
        None => name_and_colon(bytes, pos).filter(|(_, len, _)| *len > 0)?,
    };
    let end = text_end + 2;
    let mut start = pos + colon + 1;
    // Most rows are followed by another one, which begins with a letter.
    let folded = bytes.get(end).is_some_and(|&b| b <= b' ' && matches!(b, b' ' | b'\t'));
    if folded || start > text_end {
        return None;
    }
    // Of white space, only blanks are left; mostly one, and in front. None lies beyond the line end.
    let mut value_end = text_end;
    if bytes.get(start) == Some(&b' ') {
        start += 1;
        if bytes.get(start).is_some_and(|&b| b <= b' ') {
            start = trim(bytes, start..text_end).start;
        }
    }
    if bytes.get(text_end.wrapping_sub(1)) == Some(&b' ') {
        value_end = trim(bytes, start..text_end).end;
    }
    Some(Row {
        name,
        // Nobody asks for a field with a longer name.
        name_len: u16::try_from(name_len).unwrap_or(u16::MAX),
        row: (pos..end).into(),
        value: (start..value_end).into(),
    })
}

/// The token at `pos`, perhaps empty, its length, and where from there the colon stands: past the blanks.
#[inline(never)]
fn name_and_colon(bytes: &[u8], pos: usize) -> Option<(Name, usize, usize)> {
    let rest = bytes.get(pos..)?;
    let len = rest.iter().position(|&b| !is_token(b)).unwrap_or(rest.len());
    let blanks = rest.iter().skip(len).take_while(|&&b| matches!(b, b' ' | b'\t')).count();
    let colon = len + blanks;
    (rest.get(colon) == Some(&b':')).then(|| (Name::of(sub(rest, 0..len)), len, colon))
}

/// A row as the octets show it.
pub(crate) struct RawRow {
    /// [`Name::Other`] for what is no field.
    pub(crate) name: Name,
    pub(crate) name_len: usize,
    pub(crate) value: Range<usize>,
    pub(crate) end: usize,
    line_ends: usize,
    /// A token, a colon, and a line end.
    well_formed: bool,
}

impl RawRow {
    /// As kept in an index.
    fn row(&self, pos: usize) -> Row {
        Row {
            name: self.name,
            name_len: u16::try_from(self.name_len).unwrap_or(u16::MAX),
            row: (pos..self.end).into(),
            value: self.value.clone().into(),
        }
    }
}

/// Reads the row that starts at `pos`, continuation lines included (RFC 3261 §7.3.1).
pub(crate) fn raw_row(bytes: &[u8], pos: usize) -> RawRow {
    let (name, name_len, colon) = name_and_colon(bytes, pos).unwrap_or((Name::Other, 0, 0));
    let named = name_len > 0;
    let value_at = if named { pos + colon + 1 } else { pos };
    let (mut end, mut line_ends, mut ended) = (value_at, 0, false);
    while let Some(next) = line_end(bytes, end) {
        line_ends += 1;
        end = next;
        if !matches!(bytes.get(next), Some(b' ' | b'\t')) {
            ended = true;
            break;
        }
    }
    if !ended {
        end = bytes.len();
    }
    let text_end = if ended { end - 2 } else { end };
    RawRow {
        name: if named && ended { name } else { Name::Other },
        name_len: if named { name_len } else { 0 },
        value: trim(bytes, value_at..text_end),
        end,
        line_ends,
        well_formed: named && ended,
    }
}
