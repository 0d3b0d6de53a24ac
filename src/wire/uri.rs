//! URIs as they stand in a message (RFC 3261 §19.1, RFC 3966).

use std::net::IpAddr;
use std::ops::Range;

use super::host::{self, HostRef, ipv4_at};
use super::index::Span;
use super::octets::{Block, Marks, find, find_octet};
use super::scan::{Params, port_at, same, sub};
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
    noted: Noted<&'a [u8]>,
}

/// The parameters that routing asks for: the first of each name, with its value.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Noted<T> {
    lr: bool,
    /// Empty without a value.
    transport: Option<T>,
    /// Empty without a value.
    maddr: Option<T>,
}

impl Noted<Span> {
    /// From parameters without white space and quotes, which begin with a semicolon.
    fn read(bytes: &[u8], params: Range<usize>) -> Self {
        let mut noted = Noted::default();
        let mut at = params.start;
        while at < params.end {
            let next = find_octet(bytes, at + 1..params.end, b';').unwrap_or(params.end);
            let param = sub(bytes, at + 1..next);
            match param.first().map(|b| b | 0x20) {
                Some(b'l') => noted.lr |= value_of(param, b"lr").is_some(),
                Some(b't') => note(&mut noted.transport, value_of(param, b"transport"), next),
                Some(b'm') => note(&mut noted.maddr, value_of(param, b"maddr"), next),
                _ => {}
            }
            at = next;
        }
        noted
    }
}

/// Keeps the place of a value of `len` octets that ends at `end`, if it is the first.
fn note(place: &mut Option<Span>, len: Option<usize>, end: usize) {
    if let Some(len) = len {
        place.get_or_insert((end - len..end).into());
    }
}

/// The length of the value of a parameter, if this is its name: 0 without one.
fn value_of(param: &[u8], name: &[u8]) -> Option<usize> {
    let (head, tail) = param.split_at_checked(name.len())?;
    let value = match tail {
        [] => tail,
        [b'=', value @ ..] => value,
        _ => return None,
    };
    same(head, name).then_some(value.len())
}

/// White space, controls, quotes and angle brackets.
#[inline(always)]
fn unsound(b: Block) -> Marks {
    b.at_most(b' ') | b.is(0x7f) | b.is(b'<') | b.is(b'>') | b.is(b'"')
}

/// True without white space, controls, quotes and angle brackets.
pub(crate) fn octets_are_sound(bytes: &[u8], uri: Range<usize>) -> bool {
    find(bytes, uri, unsound).is_none()
}

/// A URI by its places in a message: to be kept without the octets.
#[derive(Clone, Copy, Debug)]
pub(crate) struct UriSpans {
    whole: Span,
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
    noted: Noted<Span>,
}

impl UriSpans {
    /// Takes the URI that fills `bytes[range]` apart; see [`UriRef::parse`].
    #[inline(always)]
    pub(crate) fn parse(bytes: &[u8], range: Range<usize>) -> Result<Self, UriFault> {
        let (scheme, colon) = if sub(bytes, range.clone()).starts_with(b"sip:") {
            (Some(Scheme::Sip), range.start + 3)
        } else {
            let colon = find_octet(bytes, range.clone(), b':').ok_or(UriFault::Scheme)?;
            (scheme_of(sub(bytes, range.start..colon))?, colon)
        };
        let none = Span::from(colon + 1..colon + 1);
        let mut uri = UriSpans {
            whole: range.clone().into(),
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
            noted: Noted::default(),
        };
        if scheme.is_none() {
            return Ok(uri);
        }
        let rest = colon + 1..range.end;
        if scheme == Some(Scheme::Tel) {
            if !octets_are_sound(bytes, rest.clone()) {
                return Err(UriFault::Octet);
            }
            uri.read_tel(bytes, rest)?;
        } else {
            uri.read_sip(bytes, rest)?;
        }
        Ok(uri)
    }

    fn read_tel(&mut self, bytes: &[u8], rest: Range<usize>) -> Result<(), UriFault> {
        let end = find_octet(bytes, rest.clone(), b';').unwrap_or(rest.end);
        if end == rest.start {
            return Err(UriFault::User);
        }
        self.user = Some((rest.start..end).into());
        self.params = (end..rest.end).into();
        self.noted = Noted::read(bytes, end..rest.end);
        Ok(())
    }

    fn read_sip(&mut self, bytes: &[u8], rest: Range<usize>) -> Result<(), UriFault> {
        let (at, end) = (rest.start, rest.end);
        // `@` is allowed nowhere else unescaped, while the user part may hold ; ? / and more:
        // so it comes first.
        let mut host_at = at;
        let mut questions = false;
        // Mostly there is no question mark either, which is found out on the way.
        let mut next = |from: usize| {
            let found = find(bytes, from..end, |b| unsound(b) | b.is(b'@') | b.is(b'?'))?;
            if bytes.get(found) != Some(&b'?') {
                return Some(found);
            }
            questions = true;
            find(bytes, found..end, |b| unsound(b) | b.is(b'@'))
        };
        match next(at) {
            Some(n) if bytes.get(n) == Some(&b'@') => {
                host_at = n + 1;
                match next(host_at) {
                    None => {}
                    Some(_) if octets_are_sound(bytes, host_at..end) => return Err(UriFault::User),
                    Some(_) => return Err(UriFault::Octet),
                }
                let colon = find_octet(bytes, at..n, b':');
                let user_end = colon.unwrap_or(n);
                if user_end == at {
                    return Err(UriFault::User);
                }
                self.user = Some((at..user_end).into());
                self.password = colon.map(|c| (c + 1..n).into());
            }
            Some(_) => return Err(UriFault::Octet),
            None => {}
        }
        let mut rest;
        (self.addr, rest) = match ipv4_at(bytes, host_at..end) {
            Some((addr, host_end)) => (Some(addr), host_end),
            None => host::host_at(bytes, host_at..end)
                .filter(|(host, _)| host.is_sound())
                .map(|(host, host_end)| (host.addr(), host_end))
                .ok_or(UriFault::Host)?,
        };
        self.name = (host_at..rest).into();
        if rest < end && bytes.get(rest) == Some(&b':') {
            let (port, port_end) =
                port_at(bytes, rest + 1..end).filter(|(port, _)| *port != 0).ok_or(UriFault::Port)?;
            (self.port, rest) = (Some(port), port_end);
        }
        self.host_port = (host_at..rest).into();
        self.params = (rest..end).into();
        if rest == end {
            return Ok(());
        }
        let mut params_end = end;
        if questions && let Some(n) = find_octet(bytes, rest..end, b'?') {
            params_end = n;
            self.headers = Some((n + 1..end).into());
        }
        self.params = (rest..params_end).into();
        match sub(bytes, rest..params_end).first() {
            None => Ok(()),
            Some(b';') => {
                self.noted = Noted::read(bytes, rest..params_end);
                Ok(())
            }
            Some(b':') => Err(UriFault::Port),
            Some(_) => Err(UriFault::Trailing),
        }
    }

    pub(crate) fn has_headers(&self) -> bool {
        self.headers.is_some()
    }

    /// The scheme; `None` for one that we do not know.
    pub(crate) fn scheme(&self) -> Option<Scheme<'static>> {
        self.scheme
    }

    /// With the octets that it was read from.
    pub(crate) fn view<'a>(&self, bytes: &'a [u8]) -> UriRef<'a> {
        let part = |span: Span| sub(bytes, span.range());
        let (start, host_port) = (self.whole.range().start, self.host_port.range());
        UriRef {
            bytes: part(self.whole),
            scheme: self.scheme.unwrap_or(Scheme::Other(sub(bytes, start..self.colon as usize))),
            user: self.user.map(part),
            password: self.password.map(part),
            host: self.addr.map_or(HostRef::Name(part(self.name)), HostRef::Addr),
            port: self.port,
            params: part(self.params),
            headers: self.headers.map(part),
            host_port_range: host_port.start.saturating_sub(start)..host_port.end.saturating_sub(start),
            noted: Noted {
                lr: self.noted.lr,
                transport: self.noted.transport.map(part),
                maddr: self.noted.maddr.map(part),
            },
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
        Self::parse_in(bytes, 0..bytes.len())
    }

    /// Takes the URI that fills `bytes[range]` apart.
    pub(crate) fn parse_in(bytes: &'a [u8], range: Range<usize>) -> Result<Self, UriFault> {
        UriSpans::parse(bytes, range).map(|spans| spans.view(bytes))
    }

    /// True for `sip:` and `sips:`.
    pub fn is_sip(&self) -> bool {
        matches!(self.scheme, Scheme::Sip | Scheme::Sips)
    }

    /// Its parameters in order.
    pub fn parameters(&self) -> Params<'a> {
        // White space and quotes were refused.
        Params::plain(self.params, 0..self.params.len())
    }

    /// The first parameter of this name (lower case): `Some(None)` if it has no value.
    pub fn param(&self, name: &[u8]) -> Option<Option<&'a [u8]>> {
        let (params, mut at) = (self.params, 0);
        while at < params.len() {
            let next = find_octet(params, at + 1..params.len(), b';').unwrap_or(params.len());
            let param = sub(params, at + 1..next);
            if let Some(len) = value_of(param, name) {
                return Some(param.get(param.len() - len..).filter(|_| param.len() > name.len()));
            }
            at = next;
        }
        None
    }

    /// `transport`: the one it names, or its octets if that is not one of ours.
    pub fn transport(&self) -> Option<Result<Transport, &'a [u8]>> {
        let value = self.noted.transport?;
        Some(Transport::from_token(value).ok_or(value))
    }

    /// `maddr`: where to send instead of the host.
    pub fn maddr(&self) -> Option<Result<HostRef<'a>, UriFault>> {
        let value = self.noted.maddr?;
        Some(HostRef::parse(value).filter(HostRef::is_sound).ok_or(UriFault::Host))
    }

    /// Whether it asks for loose routing (RFC 3261 §19.1.1 `lr`).
    pub fn is_loose(&self) -> bool {
        self.noted.lr
    }
}
