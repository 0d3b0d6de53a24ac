//! URIs as they stand in a message (RFC 3261 §19.1, RFC 3966).

use std::net::IpAddr;
use std::ops::Range;

use super::host::{HostRef, port};
use super::index::Span;
use super::octets::{find, find_octet};
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

/// True without white space, controls, quotes and angle brackets.
pub(crate) fn octets_are_sound(uri: &[u8]) -> bool {
    find(uri, 0..uri.len(), |b| (b <= b' ') | (b == 0x7f) | (b == b'<') | (b == b'>') | (b == b'"')).is_none()
}

/// A URI by its places, which count from its start: to be kept without the octets.
#[derive(Clone, Copy, Debug)]
pub(crate) struct UriSpans {
    /// Where the scheme ends.
    colon: u32,
    /// `None`: a scheme of no interest here.
    scheme: Option<Scheme<'static>>,
    user: Option<Span>,
    password: Option<Span>,
    /// `None`: a name.
    addr: Option<IpAddr>,
    /// The host alone, where it is a name.
    name: Span,
    host_port: Span,
    port: Option<u16>,
    params: Span,
    headers: Option<Span>,
}

impl UriSpans {
    /// Takes a URI apart; see [`UriRef::parse`].
    pub(crate) fn parse(bytes: &[u8]) -> Result<Self, UriFault> {
        let (scheme, colon) = if bytes.starts_with(b"sip:") {
            (Some(Scheme::Sip), 3)
        } else {
            let colon = find_octet(bytes, 0..bytes.len(), b':').ok_or(UriFault::Scheme)?;
            (scheme_of(sub(bytes, 0..colon))?, colon)
        };
        let at = colon + 1;
        let none = Span::from(at..at);
        let mut uri = UriSpans {
            colon: Span::from(colon..colon).start,
            scheme,
            user: None,
            password: None,
            addr: None,
            name: none,
            host_port: none,
            port: None,
            params: none,
            headers: None,
        };
        if scheme.is_none() {
            return Ok(uri);
        }
        if !octets_are_sound(bytes) {
            return Err(UriFault::Octet);
        }
        if scheme == Some(Scheme::Tel) {
            uri.read_tel(bytes, at)?;
        } else {
            uri.read_sip(bytes, at)?;
        }
        Ok(uri)
    }

    fn read_tel(&mut self, bytes: &[u8], at: usize) -> Result<(), UriFault> {
        let end = find_octet(bytes, at..bytes.len(), b';').unwrap_or(bytes.len());
        if end == at {
            return Err(UriFault::User);
        }
        self.user = Some((at..end).into());
        self.params = (end..bytes.len()).into();
        Ok(())
    }

    fn read_sip(&mut self, bytes: &[u8], at: usize) -> Result<(), UriFault> {
        let end = bytes.len();
        // `@` is allowed nowhere else unescaped, while the user part may hold ; ? / and more:
        // so it comes first.
        let mut host_at = at;
        if let Some(n) = find_octet(bytes, at..end, b'@') {
            host_at = n + 1;
            let colon = find_octet(bytes, at..n, b':');
            let user_end = colon.unwrap_or(n);
            if user_end == at {
                return Err(UriFault::User);
            }
            self.user = Some((at..user_end).into());
            self.password = colon.map(|c| (c + 1..n).into());
        }
        let mut cursor = Cursor::new(bytes, host_at..end);
        let host = HostRef::read(&mut cursor).filter(HostRef::is_sound).ok_or(UriFault::Host)?;
        self.addr = host.addr();
        self.name = (host_at..cursor.pos).into();
        if cursor.eat(b':') {
            let digits = cursor.take_while(|b| b.is_ascii_digit());
            self.port = Some(port(digits).filter(|&p| p != 0).ok_or(UriFault::Port)?);
        }
        let rest = cursor.pos;
        self.host_port = (host_at..rest).into();
        self.params = (rest..end).into();
        if rest == end {
            return Ok(());
        }
        if find_octet(bytes, rest..end, b'@').is_some() {
            return Err(UriFault::User);
        }
        if let Some(n) = find_octet(bytes, rest..end, b'?') {
            self.params = (rest..n).into();
            self.headers = Some((n + 1..end).into());
        }
        match sub(bytes, self.params.range()).first() {
            None | Some(b';') => Ok(()),
            Some(b':') => Err(UriFault::Port),
            Some(_) => Err(UriFault::Trailing),
        }
    }

    /// With the octets that it was read from.
    pub(crate) fn view<'a>(&self, bytes: &'a [u8]) -> UriRef<'a> {
        let part = |span: Span| sub(bytes, span.range());
        UriRef {
            bytes,
            scheme: self.scheme.unwrap_or(Scheme::Other(sub(bytes, 0..self.colon as usize))),
            user: self.user.map(part),
            password: self.password.map(part),
            host: self.addr.map_or(HostRef::Name(part(self.name)), HostRef::Addr),
            port: self.port,
            params: part(self.params),
            headers: self.headers.map(part),
            host_port_range: self.host_port.range(),
        }
    }
}

/// `None`: one that we do not know.
fn scheme_of(word: &[u8]) -> Result<Option<Scheme<'static>>, UriFault> {
    let sound = word.first().is_some_and(u8::is_ascii_alphabetic)
        && word.iter().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'+' | b'-' | b'.'));
    if !sound {
        return Err(UriFault::Scheme);
    }
    let known = [(&b"sip"[..], Scheme::Sip), (b"sips", Scheme::Sips), (b"tel", Scheme::Tel)];
    Ok(known.into_iter().find(|(name, _)| word.eq_ignore_ascii_case(name)).map(|(_, scheme)| scheme))
}

impl<'a> UriRef<'a> {
    /// Takes a URI apart. An unknown scheme is no error: the rest stays opaque.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, UriFault> {
        UriSpans::parse(bytes).map(|spans| spans.view(bytes))
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
