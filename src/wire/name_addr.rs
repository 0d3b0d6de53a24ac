//! `name-addr` and `addr-spec` with header parameters: From, To, Route, Record-Route, Contact
//! (RFC 3261 §20.10, §25.1).

use std::ops::Range;

use super::octets::find_octet;
use super::scan::{Cursor, Param, Params, is_lws, sub, trim};
use super::uri::UriFault;

/// Why an address cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AddrFault {
    /// A quoted string or an angle bracket does not end.
    Unterminated,
    /// A comma, semicolon or stray bracket or quote in an unquoted display name, or a comma in a
    /// bare URI.
    Display,
    /// No URI.
    Empty,
    /// Something other than parameters after the URI.
    Trailing,
    /// The `tag` parameter is there twice, or has no value.
    BadTag,
    /// A Route or Record-Route value without angle brackets.
    NoBrackets,
    /// The URI in it.
    Uri(UriFault),
}

impl From<UriFault> for AddrFault {
    fn from(fault: UriFault) -> Self {
        AddrFault::Uri(fault)
    }
}

/// An address with its parts as written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NameAddrRef<'a> {
    /// Display name with its quotes; empty if there is none.
    pub display: &'a [u8],
    /// The URI without brackets and blanks around it; not yet looked at.
    pub uri: &'a [u8],
    /// Where the URI stands.
    pub uri_range: Range<usize>,
    /// Header parameters, from the first semicolon on.
    pub params: &'a [u8],
    /// Where the parameters stand; empty at the end of the value without any.
    pub params_range: Range<usize>,
    /// The whole value.
    pub range: Range<usize>,
    /// The URI is in `<>`.
    pub bracketed: bool,
}

impl<'a> NameAddrRef<'a> {
    /// Reads one value that fills `bytes[range]`.
    pub fn parse(bytes: &'a [u8], range: Range<usize>) -> Result<Self, AddrFault> {
        let range = trim(bytes, range);
        let mut c = Cursor::new(bytes, range.clone());
        let display = match c.peek() {
            None => return Err(AddrFault::Empty),
            Some(b'<') => range.start..range.start,
            Some(b'"') => {
                c.quoted().ok_or(AddrFault::Unterminated)?;
                let end = c.pos;
                c.lws();
                if c.peek() != Some(b'<') {
                    return Err(AddrFault::Display);
                }
                range.start..end
            }
            Some(_) => {
                let before = c.take_while(|b| !matches!(b, b'<' | b'"' | b';' | b',' | b'>'));
                match c.peek() {
                    Some(b'<') => trim(bytes, range.start..c.pos),
                    // A bare URI: its parameters are the header's (RFC 3261 §20.10).
                    None | Some(b';') => {
                        let uri_range = trim(bytes, range.start..c.pos);
                        if uri_range.is_empty() {
                            return Err(AddrFault::Empty);
                        }
                        if before.get(..uri_range.len()).is_none_or(|u| u.iter().any(|&b| is_lws(b))) {
                            return Err(AddrFault::Display);
                        }
                        return Self::finish(bytes, range, 0..0, uri_range, c, false);
                    }
                    Some(_) => return Err(AddrFault::Display),
                }
            }
        };
        let open = c.pos;
        let close = find_octet(bytes, open..range.end, b'>').ok_or(AddrFault::Unterminated)?;
        let uri_range = trim(bytes, open + 1..close);
        if uri_range.is_empty() {
            return Err(AddrFault::Empty);
        }
        c.pos = close + 1;
        Self::finish(bytes, range, display, uri_range, c, true)
    }

    fn finish(
        bytes: &'a [u8],
        range: Range<usize>,
        display: Range<usize>,
        uri_range: Range<usize>,
        mut c: Cursor<'a>,
        bracketed: bool,
    ) -> Result<Self, AddrFault> {
        let after = c.pos;
        c.lws();
        let params_range = match c.peek() {
            None => after..after,
            Some(b';') => c.pos..range.end,
            Some(_) => return Err(AddrFault::Trailing),
        };
        if find_octet(bytes, params_range.clone(), b'"').is_some() {
            quotes_closed(sub(bytes, params_range.clone()))?;
        }
        if !bracketed
            && find_octet(bytes, params_range.clone(), b'<').is_some()
            && Params::new(bytes, params_range.clone()).any(|p| has_bracket(&p))
        {
            // Not parameters of a bare URI, but a display name with a semicolon in it.
            return Err(AddrFault::Display);
        }
        Ok(NameAddrRef {
            display: sub(bytes, display),
            uri: sub(bytes, uri_range.clone()),
            uri_range,
            params: sub(bytes, params_range.clone()),
            params_range,
            range,
            bracketed,
        })
    }

    /// Its parameters in order; their ranges count from the start of [`NameAddrRef::params`].
    pub fn parameters(&self) -> Params<'a> {
        Params::new(self.params, 0..self.params.len())
    }

    /// The first parameter of this name (lower case): `Some(None)` if it has no value.
    pub fn param(&self, name: &[u8]) -> Option<Option<&'a [u8]>> {
        self.parameters().get(name)
    }

    /// The `tag`; `None` if absent or empty.
    pub fn tag(&self) -> Option<&'a [u8]> {
        self.param(b"tag").flatten().filter(|t| !t.is_empty())
    }
}

fn has_bracket(param: &Param<'_>) -> bool {
    let value = param.value.filter(|v| v.first() != Some(&b'"')).unwrap_or_default();
    param.name.contains(&b'<') || value.contains(&b'<')
}

fn quotes_closed(params: &[u8]) -> Result<(), AddrFault> {
    let mut c = Cursor::new(params, 0..params.len());
    loop {
        c.take_while(|b| b != b'"');
        if c.at_end() {
            return Ok(());
        }
        c.quoted().ok_or(AddrFault::Unterminated)?;
    }
}
