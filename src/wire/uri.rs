//! URIs as they stand in a message (RFC 3261 §19.1, RFC 3966).

use std::ops::Range;

use super::host::{HostRef, port};
use super::octets::find_octet;
use super::scan::{Cursor, Params, sub};
use crate::flow::Transport;

/// Scheme of a URI; without case.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scheme<'a> {
    /// `sip:`
    Sip,
    /// `sips:`
    Sips,
    /// `tel:`
    Tel,
    /// Any other one: the rest of the URI is opaque.
    Other(&'a [u8]),
}

/// Why a URI cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UriFault {
    /// No `scheme:` at the start.
    Scheme,
    /// White space, control octets, quotes or angle brackets inside.
    Octet,
    /// More than one unescaped `@`, or nothing before it.
    User,
    /// Empty, not a host, or an IPv6 address without brackets.
    Host,
    /// Not a number from 1 to 65535.
    Port,
    /// Something other than parameters or headers after host and port.
    Trailing,
}

/// A URI taken apart. All slices are as written: nothing is unescaped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UriRef<'a> {
    /// The whole URI.
    pub bytes: &'a [u8],
    /// Its scheme.
    pub scheme: Scheme<'a>,
    /// What stands before `:` or `@`; the number of a `tel:` URI.
    pub user: Option<&'a [u8]>,
    /// What stands between `:` and `@`.
    pub password: Option<&'a [u8]>,
    /// Empty name for `tel:` and opaque URIs.
    pub host: HostRef<'a>,
    /// As written; `None` when left out.
    pub port: Option<u16>,
    /// From the first semicolon after host and port up to `?`; empty without parameters.
    pub params: &'a [u8],
    /// After the `?`.
    pub headers: Option<&'a [u8]>,
    /// Host and port within `bytes`; empty for `tel:` and opaque URIs.
    pub host_port_range: Range<usize>,
}

/// True without white space, controls, quotes and angle brackets. Looks at all octets, so that the
/// compiler can take many at a time.
pub(crate) fn octets_are_sound(uri: &[u8]) -> bool {
    !uri.iter()
        .fold(false, |bad, &b| bad | (b <= b' ') | (b == 0x7f) | (b == b'<') | (b == b'>') | (b == b'"'))
}

impl<'a> UriRef<'a> {
    /// Takes a URI apart. An unknown scheme is no error: the rest stays opaque.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, UriFault> {
        let colon = find_octet(bytes, 0..bytes.len(), b':').ok_or(UriFault::Scheme)?;
        let (word, at) = (sub(bytes, 0..colon), colon + 1);
        let sound = word == b"sip"
            || word.first().is_some_and(u8::is_ascii_alphabetic)
                && word.iter().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'+' | b'-' | b'.'));
        if !sound {
            return Err(UriFault::Scheme);
        }
        let scheme = if word == b"sip" || word.eq_ignore_ascii_case(b"sip") {
            Scheme::Sip
        } else if word.eq_ignore_ascii_case(b"sips") {
            Scheme::Sips
        } else if word.eq_ignore_ascii_case(b"tel") {
            Scheme::Tel
        } else {
            Scheme::Other(word)
        };
        let mut uri = UriRef {
            bytes,
            scheme,
            user: None,
            password: None,
            host: HostRef::Name(b""),
            port: None,
            params: b"",
            headers: None,
            host_port_range: at..at,
        };
        if matches!(scheme, Scheme::Other(_)) {
            return Ok(uri);
        }
        if !octets_are_sound(bytes) {
            return Err(UriFault::Octet);
        }
        if scheme == Scheme::Tel {
            uri.read_tel(at)?;
        } else {
            uri.read_sip(at)?;
        }
        Ok(uri)
    }

    fn read_tel(&mut self, at: usize) -> Result<(), UriFault> {
        let rest = sub(self.bytes, at..self.bytes.len());
        let n = memchr::memchr(b';', rest).unwrap_or(rest.len());
        if n == 0 {
            return Err(UriFault::User);
        }
        self.user = rest.get(..n);
        self.params = rest.get(n..).unwrap_or_default();
        Ok(())
    }

    fn read_sip(&mut self, at: usize) -> Result<(), UriFault> {
        let end = self.bytes.len();
        // `@` is allowed nowhere else unescaped, while the user part may hold ; ? / and more:
        // so it comes first.
        let mut host_at = at;
        if let Some(n) = find_octet(self.bytes, at..end, b'@') {
            let info = sub(self.bytes, at..n);
            host_at = n + 1;
            let colon = info.iter().position(|&b| b == b':');
            let user = sub(info, 0..colon.unwrap_or(info.len()));
            if user.is_empty() {
                return Err(UriFault::User);
            }
            self.user = Some(user);
            self.password = colon.and_then(|c| info.get(c + 1..));
        }
        let mut cursor = Cursor::new(self.bytes, host_at..end);
        self.host = HostRef::read(&mut cursor).filter(HostRef::is_sound).ok_or(UriFault::Host)?;
        if cursor.eat(b':') {
            let digits = cursor.take_while(|b| b.is_ascii_digit());
            self.port = Some(port(digits).filter(|&p| p != 0).ok_or(UriFault::Port)?);
        }
        self.host_port_range = host_at..cursor.pos;
        let rest = cursor.rest();
        if rest.is_empty() {
            return Ok(());
        }
        if find_octet(rest, 0..rest.len(), b'@').is_some() {
            return Err(UriFault::User);
        }
        let (params, headers) = match find_octet(rest, 0..rest.len(), b'?') {
            Some(n) => (sub(rest, 0..n), rest.get(n + 1..)),
            None => (rest, None),
        };
        if !params.is_empty() && params.first() != Some(&b';') {
            return Err(if params.first() == Some(&b':') { UriFault::Port } else { UriFault::Trailing });
        }
        self.params = params;
        self.headers = headers;
        Ok(())
    }

    /// True for `sip:` and `sips:`.
    pub fn is_sip(&self) -> bool {
        matches!(self.scheme, Scheme::Sip | Scheme::Sips)
    }

    /// Its parameters in order.
    pub fn parameters(&self) -> Params<'a> {
        Params::new(self.params, 0..self.params.len())
    }

    /// The first parameter of this name (lower case): `Some(None)` if it has no value.
    pub fn param(&self, name: &[u8]) -> Option<Option<&'a [u8]>> {
        self.parameters().get(name)
    }

    /// `transport`: the one it names, or its octets if that is not one of ours.
    pub fn transport(&self) -> Option<Result<Transport, &'a [u8]>> {
        let value = self.param(b"transport")?.unwrap_or_default();
        Some(Transport::from_token(value).ok_or(value))
    }

    /// `maddr`: where to send instead of the host.
    pub fn maddr(&self) -> Option<Result<HostRef<'a>, UriFault>> {
        let value = self.param(b"maddr")?.unwrap_or_default();
        Some(HostRef::parse(value).filter(HostRef::is_sound).ok_or(UriFault::Host))
    }

    /// Whether it asks for loose routing (RFC 3261 §19.1.1 `lr`).
    pub fn is_loose(&self) -> bool {
        self.param(b"lr").is_some()
    }
}
