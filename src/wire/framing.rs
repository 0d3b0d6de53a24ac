//! Messages out of a stream (RFC 3261 §7.5, §18.3; keep-alives of RFC 5626 §4.4.1).

use bytes::{Buf as _, Bytes, BytesMut};

use super::Limits;
use super::fault::Unusable;
use super::index::{line_end, raw_row};
use super::name::Name;
use super::scan::{is_token, number, sub};

/// What the octets at the start of a buffer are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Not enough yet; call again with more octets behind the same ones.
    Incomplete,
    /// Drop this many octets: line ends between messages.
    Skip(usize),
    /// Drop this many octets: a keep-alive that wants CRLF back.
    Ping(usize),
    /// A message of this many octets. `last`: where it ends is not sure (no usable Content-Length,
    /// too large), so answer it if need be and close.
    Message {
        /// Octets, from the start of the buffer.
        len: usize,
        /// Nothing after it can be read.
        last: bool,
    },
    /// Not SIP, or beyond all bounds: close.
    Broken(Unusable),
}

/// What a stream brought.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A message, for [`super::Index::parse`] with [`super::Framing::Stream`].
    Message {
        /// Its octets.
        bytes: Bytes,
        /// Its fault is in its framing: answer and close.
        last: bool,
    },
    /// A keep-alive: send CRLF (RFC 5626 §4.4.1).
    Ping,
    /// Close.
    Broken(Unusable),
}

/// Finds messages in a growing buffer. Looks at every octet once, however small the reads.
#[derive(Clone, Debug)]
pub struct StreamFramer {
    limits: Limits,
    /// The start of the buffer up to here holds no end of a header.
    scanned: usize,
    /// Length of the message whose header is complete, with its `last`.
    wanted: Option<(usize, bool)>,
    /// Keep-alives that we sent: that many single CRLFs are answers.
    pongs_due: u8,
}

impl StreamFramer {
    /// For a new connection.
    pub fn new(limits: Limits) -> Self {
        StreamFramer { limits, scanned: 0, wanted: None, pongs_due: 0 }
    }

    /// Tells that a CRLFCRLF was sent: the next single CRLF is its answer.
    pub fn expect_pong(&mut self) {
        self.pongs_due = self.pongs_due.saturating_add(1);
    }

    /// Whether the buffer holds part of a message: the time for it to be completed is running.
    pub fn mid_message(&self, buffer: &[u8]) -> bool {
        self.wanted.is_some() || buffer.iter().any(|b| !matches!(b, b'\r' | b'\n'))
    }

    /// How many octets the buffer must be able to hold.
    pub fn max_buffer(&self) -> usize {
        self.limits.max_message.saturating_add(4)
    }

    /// Takes what is complete off the buffer; `None` if more octets are needed. After
    /// [`Event::Broken`] or a `last` message the stream is of no more use.
    pub fn poll(&mut self, buffer: &mut BytesMut) -> Option<Event> {
        loop {
            match self.step(buffer) {
                Step::Incomplete => return None,
                Step::Skip(n) => buffer.advance(n.min(buffer.len())),
                Step::Ping(n) => {
                    buffer.advance(n.min(buffer.len()));
                    return Some(Event::Ping);
                }
                Step::Message { len, last } => {
                    let bytes = buffer.split_to(len.min(buffer.len())).freeze();
                    return Some(Event::Message { bytes, last });
                }
                Step::Broken(why) => return Some(Event::Broken(why)),
            }
        }
    }

    /// Looks at the buffer; the caller must drop what [`Step`] says before the next call.
    pub fn step(&mut self, buffer: &[u8]) -> Step {
        if let Some((len, last)) = self.wanted {
            return self.whole(buffer, len, last);
        }
        if self.scanned == 0 {
            match buffer {
                [] | [b'\r'] => return Step::Incomplete,
                [b'\r', b'\n', rest @ ..] => return self.line_ends(rest),
                [first, ..] if !is_token(*first) => return Step::Broken(Unusable::NotSip),
                _ => {}
            }
        }
        match self.find_head(buffer) {
            Some(head) => {
                let (len, last) = self.length(sub(buffer, 0..head));
                self.wanted = Some((len, last));
                self.whole(buffer, len, last)
            }
            None if buffer.len() >= self.limits.max_message => Step::Broken(Unusable::TooLarge),
            None => Step::Incomplete,
        }
    }

    fn line_ends(&mut self, rest: &[u8]) -> Step {
        match rest {
            // Two line ends are a keep-alive, unless two answers are due.
            [b'\r', b'\n', ..] if self.pongs_due < 2 => Step::Ping(4),
            _ if self.pongs_due > 0 => {
                self.pongs_due -= 1;
                Step::Skip(2)
            }
            // Half a keep-alive, or an answer to none of ours: what follows will tell.
            [] | [b'\r'] => Step::Incomplete,
            _ => Step::Skip(2),
        }
    }

    fn whole(&mut self, buffer: &[u8], len: usize, last: bool) -> Step {
        if buffer.len() < len {
            return Step::Incomplete;
        }
        self.wanted = None;
        self.scanned = 0;
        Step::Message { len, last }
    }

    /// After the blank line.
    fn find_head(&mut self, buffer: &[u8]) -> Option<usize> {
        // The blank line may have begun in what was seen before.
        let from = self.scanned.saturating_sub(3);
        let found = memchr::memmem::find(buffer.get(from..)?, b"\r\n\r\n");
        self.scanned = buffer.len();
        found.map(|n| from + n + 4)
    }

    /// How long the message of this header is, and whether that cannot be known.
    fn length(&self, head: &[u8]) -> (usize, bool) {
        let unsure = (head.len(), true);
        let Some(mut pos) = line_end(head, 0) else {
            return unsure;
        };
        let mut length = None;
        // Stops at the blank line, which is no row.
        while pos + 2 < head.len() {
            // Neither a row of another initial nor a continuation line needs to be taken apart.
            if !matches!(head.get(pos), Some(b'C' | b'c' | b'L' | b'l')) {
                pos = line_end(head, pos).unwrap_or(head.len());
                continue;
            }
            let row = raw_row(head, pos);
            if row.name == Name::ContentLength {
                let Some(n) = number(sub(head, row.value), u64::from(u32::MAX)) else {
                    return unsure;
                };
                if length.is_some_and(|other| other != n) {
                    return unsure;
                }
                length = Some(n);
            }
            pos = row.end;
        }
        length
            .and_then(|n| usize::try_from(n).ok()?.checked_add(head.len()))
            .filter(|&len| len <= self.limits.max_message)
            .map_or(unsure, |len| (len, false))
    }
}
