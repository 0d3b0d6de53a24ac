//! Octet classes, a cursor with the RFC's white space, and the two lists of the grammar: values
//! between commas, parameters between semicolons (RFC 3261 §25.1).

use std::ops::Range;

use super::octets::{digits_len, find_octet, is_plain, word_len};

const TOKEN: u8 = 1;
const HOST: u8 = 2;
const LWS: u8 = 4;

/// Classes of each octet.
const CLASS: [u8; 256] = {
    let mut table = [0u8; 256];
    let mut i = 0;
    while i < 256 {
        let b = i as u8;
        if b.is_ascii_alphanumeric() {
            table[i] = TOKEN | HOST;
        } else {
            table[i] = match b {
                b'-' | b'.' | b'_' => TOKEN | HOST,
                b'!' | b'%' | b'*' | b'+' | b'`' | b'\'' | b'~' => TOKEN,
                b' ' | b'\t' | b'\r' | b'\n' => LWS,
                _ => 0,
            };
        }
        i += 1;
    }
    table
};

/// `token` characters.
pub(crate) fn is_token(b: u8) -> bool {
    CLASS[usize::from(b)] & TOKEN != 0
}

/// Characters of host names; `_` too, as real zones use it.
pub(crate) fn is_host(b: u8) -> bool {
    CLASS[usize::from(b)] & HOST != 0
}

/// White space inside a row. Rows hold CR and LF only as folding: the index has seen to that, or
/// carries a fault.
pub(crate) fn is_lws(b: u8) -> bool {
    CLASS[usize::from(b)] & LWS != 0
}

/// A control octet that has no place in a header, HTAB excepted.
pub(crate) fn is_control(b: u8) -> bool {
    (b < 0x20 && b != b'\t') || b == 0x7f
}

/// Length of the token at the start of a range.
#[inline(always)]
pub(crate) fn token_len(bytes: &[u8], range: Range<usize>) -> usize {
    if let Some(block) = bytes.get(range.start..).and_then(<[u8]>::first_chunk) {
        // Most consist of nothing but letters, digits and hyphens.
        let len = word_len(block);
        let ended = block.get(len).is_some_and(|&b| !is_token(b));
        if ended && range.start + len <= range.end {
            return len;
        }
    }
    let rest = sub(bytes, range);
    rest.iter().position(|&b| !is_token(b)).unwrap_or(rest.len())
}

/// The octets of a range; empty where the range does not fit.
pub(crate) fn sub(bytes: &[u8], range: Range<usize>) -> &[u8] {
    bytes.get(range).unwrap_or_default()
}

/// A range without the white space at its ends.
pub(crate) fn trim(bytes: &[u8], range: Range<usize>) -> Range<usize> {
    let (mut start, mut end) = (range.start, range.end.min(bytes.len()));
    while start < end && bytes.get(start).is_some_and(|&b| is_lws(b)) {
        start += 1;
    }
    while end > start && bytes.get(end - 1).is_some_and(|&b| is_lws(b)) {
        end -= 1;
    }
    start..end.max(start)
}

/// A decimal number: digits only, at least one, at most `max`. Leading zeros are fine.
pub(crate) fn number(s: &[u8], max: u64) -> Option<u64> {
    if s.is_empty() {
        return None;
    }
    s.iter().try_fold(0u64, |n, &b| {
        let d = b.wrapping_sub(b'0');
        if d > 9 {
            return None;
        }
        n.checked_mul(10)?.checked_add(u64::from(d)).filter(|&n| n <= max)
    })
}

/// The port at the start of a range, 0 included: all digits there are; and where they end. `None`: none, or too
/// large a number.
#[inline]
pub(crate) fn port_at(bytes: &[u8], range: Range<usize>) -> Option<(u16, usize)> {
    if let Some(block) = bytes.get(range.start..).and_then(<[u8]>::first_chunk)
        && digits_len(block) == 4
        && range.start + 4 <= range.end
        && let Some(four) = block.first_chunk()
    {
        // As usual. Pairs of digits first, then both pairs.
        let digits = u32::from_le_bytes(*four) & 0x0f0f_0f0f;
        let pairs = digits.wrapping_mul(10).wrapping_add(digits >> 8) & 0x00ff_00ff;
        let port = pairs.wrapping_mul(100).wrapping_add(pairs >> 16) & 0xffff;
        return u16::try_from(port).ok().map(|port| (port, range.start + 4));
    }
    let (mut len, mut n) = (0, 0u32);
    for b in sub(bytes, range.clone()) {
        let digit = u32::from(b.wrapping_sub(b'0'));
        if digit > 9 {
            break;
        }
        n = n * 10 + digit;
        if n > u32::from(u16::MAX) {
            return None;
        }
        len += 1;
    }
    u16::try_from(n).ok().filter(|_| len > 0).map(|port| (port, range.start + len))
}

/// Reads forward over `bytes[pos..end]`.
#[derive(Clone, Debug)]
pub(crate) struct Cursor<'a> {
    bytes: &'a [u8],
    pub(crate) pos: usize,
    end: usize,
}

impl<'a> Cursor<'a> {
    pub(crate) fn new(bytes: &'a [u8], range: Range<usize>) -> Self {
        let end = range.end.min(bytes.len());
        Cursor { bytes, pos: range.start.min(end), end }
    }

    pub(crate) fn rest(&self) -> &'a [u8] {
        sub(self.bytes, self.pos..self.end)
    }

    pub(crate) fn peek(&self) -> Option<u8> {
        if self.pos < self.end { self.bytes.get(self.pos).copied() } else { None }
    }

    pub(crate) fn at_end(&self) -> bool {
        self.pos >= self.end
    }

    /// Skips white space; true if there was any.
    pub(crate) fn lws(&mut self) -> bool {
        !self.take_while(is_lws).is_empty()
    }

    pub(crate) fn eat(&mut self, b: u8) -> bool {
        let found = self.peek() == Some(b);
        if found {
            self.pos += 1;
        }
        found
    }

    pub(crate) fn take_while(&mut self, class: impl Fn(u8) -> bool) -> &'a [u8] {
        let rest = self.rest();
        let n = rest.iter().position(|&b| !class(b)).unwrap_or(rest.len());
        self.pos += n;
        rest.get(..n).unwrap_or_default()
    }

    /// The port at the cursor, 0 included: all digits there are. `None`: none, or too large a number.
    pub(crate) fn port(&mut self) -> Option<u16> {
        let (port, end) = port_at(self.bytes, self.pos..self.end)?;
        self.pos = end;
        Some(port)
    }

    /// A separator with white space around it (SLASH, COLON, …).
    pub(crate) fn separator(&mut self, b: u8) -> bool {
        self.lws();
        let found = self.eat(b);
        self.lws();
        found
    }

    /// Skips a quoted-string that starts here; `None` if it does not end.
    pub(crate) fn quoted(&mut self) -> Option<()> {
        let n = quoted_len(self.rest())?;
        self.pos += n;
        Some(())
    }
}

/// Length of the quoted-string at the start of `s`, quotes included.
pub(crate) fn quoted_len(s: &[u8]) -> Option<usize> {
    if s.first() != Some(&b'"') {
        return None;
    }
    let mut i = 1;
    loop {
        i += memchr::memchr2(b'"', b'\\', s.get(i..)?)?;
        if s.get(i) == Some(&b'"') {
            return Some(i + 1);
        }
        i += 2;
    }
}

/// The values of a row, split at commas outside quoted strings and, for addresses, outside `<>`.
/// Empty values are reported as empty ranges; an empty row is one empty value.
#[derive(Clone, Debug)]
pub(crate) struct Values<'a> {
    bytes: &'a [u8],
    pos: usize,
    end: usize,
    brackets: bool,
    done: bool,
}

impl<'a> Values<'a> {
    pub(crate) fn new(bytes: &'a [u8], range: Range<usize>, brackets: bool) -> Self {
        Values { bytes, pos: range.start, end: range.end, brackets, done: false }
    }

    /// True once the last one has been given.
    pub(crate) fn is_done(&self) -> bool {
        self.done
    }
}

impl Iterator for Values<'_> {
    type Item = Range<usize>;

    fn next(&mut self) -> Option<Range<usize>> {
        if self.done {
            return None;
        }
        let start = self.pos;
        let mut i = start;
        loop {
            let rest = sub(self.bytes, i..self.end);
            let found = if self.brackets {
                memchr::memchr3(b',', b'"', b'<', rest)
            } else {
                memchr::memchr2(b',', b'"', rest)
            };
            let Some(n) = found else {
                self.done = true;
                return Some(trim(self.bytes, start..self.end));
            };
            let at = i + n;
            // What does not end swallows the rest: the reader of the value will refuse it.
            let skipped = match self.bytes.get(at) {
                Some(b',') => {
                    self.pos = at + 1;
                    return Some(trim(self.bytes, start..at));
                }
                Some(b'"') => quoted_len(sub(self.bytes, at..self.end)),
                _ => memchr::memchr(b'>', sub(self.bytes, at..self.end)).map(|n| n + 1),
            };
            i = skipped.map_or(self.end, |n| at + n);
        }
    }
}

/// One parameter: `;name` or `;name=value`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Param<'a> {
    /// As written; compare without case.
    pub name: &'a [u8],
    /// As written, quotes included; `None` without `=`.
    pub value: Option<&'a [u8]>,
    /// From the name to the end of the value.
    pub range: Range<usize>,
    /// Where the semicolon before the name stands.
    pub semicolon: usize,
}

/// Walks over `;a=b;c` with white space round every separator. Empty parameters are reported with
/// an empty name.
#[derive(Clone, Debug)]
pub struct Params<'a> {
    cursor: Cursor<'a>,
    /// No white space and no quotes: semicolons and equals signs alone divide.
    plain: bool,
}

impl<'a> Params<'a> {
    /// Over `bytes[range]`, which is empty or starts (after white space) with a semicolon.
    pub(crate) fn new(bytes: &'a [u8], range: Range<usize>) -> Self {
        let cursor = Cursor::new(bytes, range);
        let plain = is_plain(bytes, cursor.pos..cursor.end);
        Params { cursor, plain }
    }

    /// Over a range known to hold neither white space nor quotes.
    pub(crate) fn plain(bytes: &'a [u8], range: Range<usize>) -> Self {
        Params { cursor: Cursor::new(bytes, range), plain: true }
    }

    /// The first of this name: `Some(None)` if it has no value. The name in lower case.
    pub fn get(self, name: &[u8]) -> Option<Option<&'a [u8]>> {
        self.into_iter().find(|p| same(p.name, name)).map(|p| p.value)
    }

    /// The next one where nothing but semicolons and equals signs divides.
    fn next_plain(&mut self) -> Option<Param<'a>> {
        let c = &mut self.cursor;
        if c.at_end() {
            return None;
        }
        let semicolon = c.pos;
        let _ = c.eat(b';');
        let start = c.pos;
        let name = c.take_while(|b| !matches!(b, b';' | b'='));
        let value = c.eat(b'=').then(|| {
            let from = c.pos;
            c.pos = find_octet(c.bytes, from..c.end, b';').unwrap_or(c.end);
            sub(c.bytes, from..c.pos)
        });
        Some(Param { name, value, range: start..c.pos, semicolon })
    }
}

/// Equal without case; octets that are the same already are not looked at one by one.
pub(crate) fn same(a: &[u8], b: &[u8]) -> bool {
    a.len() == b.len() && (a == b || a.eq_ignore_ascii_case(b))
}

impl<'a> Iterator for Params<'a> {
    type Item = Param<'a>;

    fn next(&mut self) -> Option<Param<'a>> {
        if self.plain {
            return self.next_plain();
        }
        let c = &mut self.cursor;
        c.lws();
        if c.at_end() {
            return None;
        }
        let semicolon = c.pos;
        // Whatever stands where a semicolon should is passed over as a parameter of its own.
        let _ = c.eat(b';');
        c.lws();
        let start = c.pos;
        let name = c.take_while(|b| !is_lws(b) && !matches!(b, b';' | b'='));
        let mut end = c.pos;
        c.lws();
        let mut value = None;
        if c.eat(b'=') {
            c.lws();
            let from = c.pos;
            if c.peek() == Some(b'"') && c.quoted().is_none() {
                c.pos = c.end;
            }
            // Also what follows a closing quote or a blank: whoever checks sees it in the value.
            c.pos = memchr::memchr(b';', c.rest()).map_or(c.end, |n| c.pos + n);
            let range = trim(c.bytes, from..c.pos);
            end = range.end.max(from);
            value = Some(sub(c.bytes, range));
        } else if !c.at_end() && c.peek() != Some(b';') {
            c.take_while(|b| b != b';');
            end = trim(c.bytes, start..c.pos).end;
            return Some(Param { name: sub(c.bytes, start..end), value: None, range: start..end, semicolon });
        }
        Some(Param { name, value, range: start..end, semicolon })
    }
}
