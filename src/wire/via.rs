//! Via values (RFC 3261 §20.42, RFC 3581).

use std::net::IpAddr;
use std::ops::Range;

use super::host::{HostRef, bare_addr, port};
use super::scan::{Cursor, Params, is_lws, is_token, quoted_len, sub};

/// One Via value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ViaRef<'a> {
    /// The message it is in: ranges count from its start.
    pub(crate) bytes: &'a [u8],
    /// `UDP`, `TCP`, …: any token, in any case.
    pub transport: &'a [u8],
    /// Host of the sent-by.
    pub host: HostRef<'a>,
    /// Port of the sent-by; `None` when left out.
    pub port: Option<u16>,
    /// The sent-by as written, blanks round the colon included.
    pub sent_by: &'a [u8],
    /// Parameters, from the first semicolon on; empty if there are none.
    pub params: &'a [u8],
    /// Where they stand.
    pub params_range: Range<usize>,
    /// The whole value.
    pub range: Range<usize>,
    /// The row it is in, final CRLF included.
    pub row: Range<usize>,
    /// The only value of its row.
    pub sole: bool,
}

impl<'a> ViaRef<'a> {
    /// Reads one value that fills `bytes[range]`. `None` if it is not a Via: a missing part, an
    /// empty parameter, an unbracketed IPv6 address.
    pub(crate) fn parse(bytes: &'a [u8], range: Range<usize>, row: Range<usize>, sole: bool) -> Option<Self> {
        let mut c = Cursor::new(bytes, range.clone());
        let part = |c: &mut Cursor<'a>| Some(c.take_while(is_token)).filter(|t| !t.is_empty());
        part(&mut c)?;
        if !c.separator(b'/') {
            return None;
        }
        part(&mut c)?;
        if !c.separator(b'/') {
            return None;
        }
        let transport = part(&mut c)?;
        if !c.lws() {
            return None;
        }
        let sent_by_at = c.pos;
        let host = HostRef::read(&mut c)?;
        let mut sent_by = sent_by_at..c.pos;
        c.lws();
        let mut via_port = None;
        if c.eat(b':') {
            c.lws();
            via_port = Some(port(c.take_while(|b| b.is_ascii_digit()))?);
            sent_by.end = c.pos;
            c.lws();
        }
        let params_range = match c.peek() {
            None => range.end..range.end,
            Some(b';') => c.pos..range.end,
            Some(_) => return None,
        };
        let via = ViaRef {
            bytes,
            transport,
            host,
            port: via_port,
            sent_by: sub(bytes, sent_by),
            params: sub(bytes, params_range.clone()),
            params_range,
            range,
            row,
            sole,
        };
        let sound = via.parameters().all(|p| {
            !p.name.is_empty()
                && p.name.iter().all(|&b| is_token(b))
                && p.value.is_none_or(|v| {
                    !v.iter().any(|&b| is_lws(b) || b == b'"') || quoted_len(v) == Some(v.len())
                })
        });
        sound.then_some(via)
    }

    /// Its parameters in order; their ranges are in the message.
    pub fn parameters(&self) -> Params<'a> {
        Params::new(self.bytes, self.params_range.clone())
    }

    /// The first parameter of this name (lower case): `Some(None)` if it has no value.
    pub fn param(&self, name: &[u8]) -> Option<Option<&'a [u8]>> {
        self.parameters().get(name)
    }

    /// The `branch`; `None` if absent or empty (RFC 2543 elements).
    pub fn branch(&self) -> Option<&'a [u8]> {
        self.param(b"branch").flatten().filter(|b| !b.is_empty())
    }

    /// `rport`: `Some(None)` if it asks for the port, `Some(Some(_))` once filled in (RFC 3581 §3).
    pub fn rport(&self) -> Option<Option<u16>> {
        self.param(b"rport").map(|v| v.and_then(port))
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
        self.range.end
    }
}
