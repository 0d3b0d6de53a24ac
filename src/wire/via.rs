//! Via values (RFC 3261 §20.42, RFC 3581).

use std::net::IpAddr;
use std::ops::Range;

use super::host::{HostRef, bare_addr, host_at, ipv4_at, port};
use super::index::{Row, Span};
use super::octets::seek;
use super::scan::{Cursor, Params, is_lws, is_token, port_at, quoted_len, same, sub, token_len};

/// One Via value: where its parts stand in a message, and the message. Made in no time; the parts are cut out when they
/// are asked for.
#[derive(Clone, Copy, Debug)]
pub struct ViaRef<'a> {
    bytes: &'a [u8],
    spans: ViaSpans,
}

/// The parameters that every message is asked for, noted while all of them were checked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Noted {
    /// The value of the first `branch`; empty: none.
    branch: Span,
    branch_seen: bool,
    /// The first `rport`.
    rport: Option<Option<u16>>,
    /// There is a `received`.
    received: bool,
}

/// A Via value by its places, to be kept without the octets.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ViaSpans {
    transport: Span,
    /// `None`: the name at the start of `sent_by`, up to `host_end`.
    addr: Option<IpAddr>,
    host_end: u32,
    port: Option<u16>,
    sent_by: Span,
    params: Span,
    value: Span,
    row: Span,
    sole: bool,
    noted: Noted,
}

impl ViaSpans {
    /// Reads one value that fills `bytes[range]`; see [`ViaRef::parse`].
    pub(crate) fn parse(bytes: &[u8], range: Range<usize>, row: Range<usize>, sole: bool) -> Option<Self> {
        let mut c = Cursor::new(bytes, range.clone());
        let transport_at =
            if c.rest().starts_with(b"SIP/2.0/") && !c.rest().get(8).is_some_and(|&b| is_lws(b)) {
                c.pos += 8;
                c.pos
            } else {
                for _ in 0..2 {
                    if c.take_while(is_token).is_empty() || !c.separator(b'/') {
                        return None;
                    }
                }
                c.pos
            };
        let transport = transport_at..transport_at + c.take_while(is_token).len();
        if transport.is_empty() || !c.lws() {
            return None;
        }
        let sent_by_at = c.pos;
        let host = HostRef::read(&mut c)?;
        let host_end = Span::from(c.pos..c.pos).start;
        let mut sent_by = sent_by_at..c.pos;
        c.lws();
        let mut via_port = None;
        if c.eat(b':') {
            c.lws();
            via_port = Some(c.port()?);
            sent_by.end = c.pos;
            c.lws();
        }
        let params = match c.peek() {
            None => range.end..range.end,
            Some(b';') => c.pos..range.end,
            Some(_) => return None,
        };
        let noted = Noted::read(bytes, params.clone())?;
        Some(Self {
            transport: transport.into(),
            addr: host.addr(),
            host_end,
            port: via_port,
            sent_by: sent_by.into(),
            params: params.into(),
            value: range.into(),
            row: row.into(),
            sole,
            noted,
        })
    }

    /// Reads one value up to the end of `bytes[range]` or a comma, written without quotes and
    /// without a blank but the one before the sent-by; `range` ends where the row's value ends.
    /// `None`: any other value.
    #[inline(always)]
    pub(crate) fn parse_plain(bytes: &[u8], range: Range<usize>, row: &Row) -> Option<Self> {
        let head: &[u8; 12] = bytes.get(range.start..range.end)?.first_chunk()?;
        let (version, transport) = head.split_first_chunk::<8>()?;
        if version != b"SIP/2.0/" {
            return None;
        }
        let transport_at = range.start + 8;
        let transport = match transport {
            b"UDP " | b"TCP " | b"TLS " => transport_at..transport_at + 3,
            _ => transport_at..transport_at + token_len(bytes, transport_at..range.end),
        };
        if transport.is_empty() || bytes.get(transport.end) != Some(&b' ') {
            return None;
        }
        let sent_by_at = transport.end + 1;
        let (addr, host_end) = match ipv4_at(bytes, sent_by_at..range.end) {
            Some((addr, end)) => (Some(addr), end),
            None => host_at(bytes, sent_by_at..range.end).map(|(host, end)| (host.addr(), end))?,
        };
        let (mut via_port, mut params_at) = (None, host_end);
        if host_end < range.end && bytes.get(host_end) == Some(&b':') {
            let (port, end) = port_at(bytes, host_end + 1..range.end)?;
            (via_port, params_at) = (Some(port), end);
        }
        let mut noted = Noted::default();
        let end = noted.read_plain(bytes, params_at..range.end)?;
        Some(Self {
            transport: transport.into(),
            addr,
            host_end: Span::from(host_end..host_end).start,
            port: via_port,
            sent_by: (sent_by_at..params_at).into(),
            params: (params_at..end).into(),
            value: (range.start..end).into(),
            row: row.row,
            sole: row.value.range() == (range.start..end),
            noted,
        })
    }

    /// Where the value ends.
    pub(crate) fn end(&self) -> usize {
        self.value.range().end
    }

    /// The only value of its row.
    pub(crate) fn is_sole(&self) -> bool {
        self.sole
    }

    /// With the octets that it was read from.
    #[inline]
    pub(crate) fn view<'a>(&self, bytes: &'a [u8]) -> ViaRef<'a> {
        ViaRef { bytes, spans: *self }
    }
}

impl Noted {
    /// Checks all parameters. `None`: an empty one, a name that is no token, a value with blanks or
    /// loose quotes in it.
    fn read(bytes: &[u8], params: Range<usize>) -> Option<Self> {
        let mut noted = Noted::default();
        for p in Params::new(bytes, params) {
            if p.name.is_empty() || !p.name.iter().all(|&b| is_token(b)) {
                return None;
            }
            let sound = p
                .value
                .is_none_or(|v| !v.iter().any(|&b| is_lws(b) || b == b'"') || quoted_len(v) == Some(v.len()));
            if !sound {
                return None;
            }
            let len = p.value.map(<[u8]>::len);
            let value = p.range.end.saturating_sub(len.unwrap_or(0))..p.range.end;
            noted.note(bytes, p.name, len.is_some(), value);
        }
        Some(noted)
    }

    /// Checks parameters that semicolons and equals signs alone divide, up to a comma; returns where
    /// they end. `None` if there is more to them, or one is not sound.
    fn read_plain(&mut self, bytes: &[u8], params: Range<usize>) -> Option<usize> {
        let end = params.end.min(bytes.len());
        let mut at = params.start;
        while at < end && bytes.get(at) == Some(&b';') {
            let start = at + 1;
            let value_end = |from: usize| {
                // Blanks, quotes and what lies between them are looked at more closely.
                seek(bytes, from..end, |b| b.at_most(b'"') | b.is(b';') | b.is(b','))
            };
            if !self.branch_seen && bytes.get(start..end).is_some_and(|rest| rest.starts_with(b"branch=")) {
                // In every Via, and mostly written so.
                at = value_end(start + 7)?;
                self.branch_seen = true;
                self.branch = (start + 7..at).into();
                continue;
            }
            let name_end = start + token_len(bytes, start..end);
            if name_end == start {
                return None;
            }
            let has_value = name_end < end && bytes.get(name_end) == Some(&b'=');
            let from = name_end + usize::from(has_value);
            at = from;
            if has_value {
                at = value_end(from)?;
            }
            self.note(bytes, sub(bytes, start..name_end), has_value, from..at);
        }
        (at == end || bytes.get(at) == Some(&b',')).then_some(at)
    }

    fn note(&mut self, bytes: &[u8], name: &[u8], has_value: bool, value: Range<usize>) {
        match name.len() {
            6 if !self.branch_seen && same(name, b"branch") => {
                self.branch_seen = true;
                self.branch = value.into();
            }
            5 if self.rport.is_none() && same(name, b"rport") => {
                self.rport = Some(Some(sub(bytes, value)).filter(|_| has_value).and_then(port));
            }
            8 => self.received |= same(name, b"received"),
            _ => {}
        }
    }
}

impl<'a> ViaRef<'a> {
    /// Reads one value that fills `bytes[range]`. `None` if it is not a Via: a missing part, an
    /// empty parameter, an unbracketed IPv6 address.
    pub(crate) fn parse(bytes: &'a [u8], range: Range<usize>, row: Range<usize>, sole: bool) -> Option<Self> {
        ViaSpans::parse(bytes, range, row, sole).map(|spans| spans.view(bytes))
    }

    /// `UDP`, `TCP`, …: any token, in any case.
    pub fn transport(&self) -> &'a [u8] {
        sub(self.bytes, self.spans.transport.range())
    }

    /// Host of the sent-by.
    #[inline]
    pub fn host(&self) -> HostRef<'a> {
        let spans = &self.spans;
        match spans.addr {
            Some(addr) => HostRef::Addr(addr),
            None => HostRef::Name(sub(self.bytes, spans.sent_by.range().start..spans.host_end as usize)),
        }
    }

    /// Port of the sent-by; `None` when left out.
    #[inline]
    pub fn port(&self) -> Option<u16> {
        self.spans.port
    }

    /// The sent-by as written, blanks round the colon included.
    #[inline]
    pub fn sent_by(&self) -> &'a [u8] {
        sub(self.bytes, self.spans.sent_by.range())
    }

    /// The whole value, as written.
    pub fn value(&self) -> &'a [u8] {
        sub(self.bytes, self.range())
    }

    /// Where the whole value stands.
    pub fn range(&self) -> Range<usize> {
        self.spans.value.range()
    }

    /// The row it is in, final CRLF included.
    pub fn row(&self) -> Range<usize> {
        self.spans.row.range()
    }

    /// The only value of its row.
    pub fn is_sole(&self) -> bool {
        self.spans.sole
    }

    /// Its parameters in order; their ranges are in the message.
    pub fn parameters(&self) -> Params<'a> {
        Params::new(self.bytes, self.spans.params.range())
    }

    /// The first parameter of this name (lower case): `Some(None)` if it has no value.
    pub fn param(&self, name: &[u8]) -> Option<Option<&'a [u8]>> {
        self.parameters().get(name)
    }

    /// The `branch`; `None` if absent or empty (RFC 2543 elements).
    #[inline]
    pub fn branch(&self) -> Option<&'a [u8]> {
        Some(sub(self.bytes, self.spans.noted.branch.range())).filter(|b| !b.is_empty())
    }

    /// `rport`: `Some(None)` if it asks for the port, `Some(Some(_))` once filled in (RFC 3581 §3).
    pub fn rport(&self) -> Option<Option<u16>> {
        self.spans.noted.rport
    }

    /// True if neither `rport` nor `received` is there: both can only be added.
    pub(crate) fn is_unmarked(&self) -> bool {
        self.spans.noted.rport.is_none() && !self.spans.noted.received
    }

    /// `received`; brackets round IPv6 are tolerated (RFC 5118 §4.5).
    pub fn received(&self) -> Option<IpAddr> {
        self.param(b"received").flatten().and_then(bare_addr)
    }

    /// `maddr`, if it is a host.
    pub fn maddr(&self) -> Option<HostRef<'a>> {
        self.param(b"maddr").flatten().and_then(HostRef::parse)
    }

    /// Where further parameters may be inserted.
    pub fn params_end(&self) -> usize {
        self.range().end
    }
}
