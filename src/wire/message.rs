//! A message: octets and index together, with views read on demand.

use std::ops::Range;

use super::index::{Index, Row, Span};
use super::name::{Method, Name, Wanted};
use super::name_addr::{AddrFault, NameAddrRef};
use super::scan::{Values, number, sub};
use super::uri::{Scheme, UriRef};
use super::via::ViaRef;

/// A received message.
#[derive(Clone, Copy, Debug)]
pub struct Message<'a> {
    /// All octets of the datagram, or of the message cut from a stream.
    pub bytes: &'a [u8],
    /// The index made from them.
    pub index: &'a Index,
}

/// One header row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Field<'a> {
    /// Its name, compact forms resolved.
    pub name: Name,
    /// Its name as written.
    pub raw_name: &'a [u8],
    /// Its value without white space around it; folding may be inside.
    pub value: &'a [u8],
    /// The whole row, final CRLF included.
    pub row: Range<usize>,
    /// Where the value stands.
    pub value_range: Range<usize>,
    /// Which row it is, from 0.
    pub at: usize,
}

/// One value of Route, Record-Route or Path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RouteValue<'a> {
    /// Display name, URI, parameters.
    pub addr: NameAddrRef<'a>,
    /// Its URI taken apart.
    pub uri: UriRef<'a>,
    /// Where the value stands.
    pub range: Range<usize>,
    /// The row it is in, final CRLF included.
    pub row: Range<usize>,
    /// Which row that is, from 0.
    pub row_at: usize,
    /// Which value of the whole list it is, over all rows, from 0.
    pub ordinal: usize,
    /// The only value of its row.
    pub sole: bool,
}

impl<'a> Message<'a> {
    /// `index` must have been made from `bytes`; with others, views are empty or make no sense.
    pub fn new(bytes: &'a [u8], index: &'a Index) -> Self {
        Message { bytes, index }
    }

    /// True for requests.
    #[inline]
    pub fn is_request(&self) -> bool {
        self.index.status == 0
    }

    /// The method of a request; for a response that of its CSeq.
    #[inline]
    pub fn method(&self) -> Method {
        if self.is_request() {
            self.index.method
        } else {
            Method::of(sub(self.bytes, self.index.cseq_method.range()))
        }
    }

    /// The method as written in the start line of a request; empty for responses.
    pub fn method_bytes(&self) -> &'a [u8] {
        sub(self.bytes, self.index.method_span.range())
    }

    /// The Request-URI; empty for responses.
    pub fn uri(&self) -> &'a [u8] {
        sub(self.bytes, self.uri_range())
    }

    /// Where the Request-URI stands.
    pub fn uri_range(&self) -> Range<usize> {
        self.index.uri.range()
    }

    /// The Request-URI taken apart, if it can be.
    pub fn request_uri(&self) -> Option<UriRef<'a>> {
        self.index.uri_parts.as_ref().map(|parts| parts.view(self.bytes))
    }

    /// The scheme of the Request-URI; `None` if that cannot be read. One that is not known has no name.
    pub fn request_scheme(&self) -> Option<Scheme<'static>> {
        self.index.uri_parts.as_ref().map(|parts| parts.scheme().unwrap_or(Scheme::Other(b"")))
    }

    /// The status code; 0 for requests.
    pub fn status(&self) -> u16 {
        self.index.status
    }

    /// The reason phrase of a response.
    pub fn reason_phrase(&self) -> &'a [u8] {
        sub(self.bytes, self.index.reason.range())
    }

    /// The start line with its CRLF.
    pub fn start_line_range(&self) -> Range<usize> {
        self.index.start_line.range()
    }

    /// The message without leading line ends and, in a datagram, without octets past its end.
    pub fn range(&self) -> Range<usize> {
        self.index.start_line.range().start..self.index.body.range().end
    }

    #[inline]
    fn field(&self, at: usize, row: &Row) -> Field<'a> {
        let whole = row.row.range();
        Field {
            name: row.name,
            raw_name: sub(self.bytes, whole.start..whole.start + usize::from(row.name_len)),
            value: sub(self.bytes, row.value.range()),
            row: whole,
            value_range: row.value.range(),
            at,
        }
    }

    /// The first row of a known name.
    #[inline]
    pub fn header(&self, name: Name) -> Option<Field<'a>> {
        self.index.first(name).map(|(at, row)| self.field(at, row))
    }

    /// All rows of a known name, in order.
    #[inline]
    pub fn headers(&self, name: Name) -> Fields<'a> {
        let at = self.index.first(name).map_or(self.index.rows.len(), |(at, _)| at);
        // Known to be the only one, or else all rows are looked at.
        let end = if self.index.repeated(name) || name == Name::Other { usize::MAX } else { at + 1 };
        Fields { message: *self, at, end, wanted: Some(name) }
    }

    /// All rows, in order; lines that are no header fields too, with an empty name.
    pub fn fields(&self) -> Fields<'a> {
        Fields { message: *self, at: 0, end: usize::MAX, wanted: None }
    }

    /// All rows of a field given by its name in lower case, long or compact; found in any case and
    /// in either form.
    pub fn named<'n>(&self, name: &'n [u8]) -> impl Iterator<Item = Field<'a>> + use<'a, 'n> {
        let wanted = Wanted::new(name);
        self.fields().filter(move |f| wanted.is(f.name, f.raw_name))
    }

    /// The values of all rows of a comma-separated field of tokens (Proxy-Require, Supported, …);
    /// empty ones left out.
    pub fn tokens(&self, name: Name) -> impl Iterator<Item = &'a [u8]> + use<'a> {
        let bytes = self.bytes;
        self.headers(name)
            .flat_map(move |f| Values::new(bytes, f.value_range, false))
            .map(move |range| sub(bytes, range))
            .filter(|value| !value.is_empty())
    }

    /// The body: as long as Content-Length says, or to the end of the datagram.
    pub fn body(&self) -> &'a [u8] {
        sub(self.bytes, self.body_range())
    }

    /// Where the body stands.
    pub fn body_range(&self) -> Range<usize> {
        self.index.body.range()
    }

    /// Where the blank line stands: rows may be inserted here.
    pub fn headers_end(&self) -> usize {
        self.index.headers_end as usize
    }

    /// The Via values from the top down. Ends early at one that cannot be read; below the top row
    /// of a request that is no fault of the message.
    pub fn vias(&self) -> Vias<'a> {
        let at = self.index.first(Name::Via).map_or(self.index.rows.len(), |(at, _)| at);
        Vias { message: *self, at, values: None, number: 0 }
    }

    /// The topmost Via value, if it can be read.
    #[inline]
    pub fn top_via(&self) -> Option<ViaRef<'a>> {
        let [top, _] = &self.index.vias;
        top.as_ref().map(|via| via.view(self.bytes))
    }

    /// The Via value below the topmost one, if both can be read.
    pub fn second_via(&self) -> Option<ViaRef<'a>> {
        match &self.index.vias {
            [Some(_), Some(via)] => Some(via.view(self.bytes)),
            _ => self.vias().nth(1),
        }
    }

    /// How many Via values there are, readable or not.
    pub fn via_count(&self) -> usize {
        self.headers(Name::Via).map(|f| Values::new(self.bytes, f.value_range, false).count()).sum()
    }

    /// The values of Route in order.
    pub fn routes(&self) -> RouteValues<'a> {
        self.route_values(Name::Route)
    }

    /// The values of Record-Route in order.
    pub fn record_routes(&self) -> RouteValues<'a> {
        self.route_values(Name::RecordRoute)
    }

    /// The values of a field of the Route kind, in order. RFC 3261 §20.34: brackets are a must, as
    /// parameters would be taken for the field's own otherwise.
    pub fn route_values(&self, name: Name) -> RouteValues<'a> {
        RouteValues { fields: self.headers(name), values: None, ordinal: 0 }
    }

    /// The values of Contact in order (`*` too, as a bare address).
    pub fn contacts(&self) -> impl Iterator<Item = Result<NameAddrRef<'a>, AddrFault>> + use<'a> {
        let bytes = self.bytes;
        self.headers(Name::Contact)
            .flat_map(move |f| Values::new(bytes, f.value_range, true))
            .map(move |range| NameAddrRef::parse(bytes, range))
    }

    fn address(&self, name: Name) -> Option<NameAddrRef<'a>> {
        let (_, row) = self.index.first(name)?;
        NameAddrRef::parse(self.bytes, row.value.range()).ok()
    }

    /// From, if it can be read.
    pub fn from(&self) -> Option<NameAddrRef<'a>> {
        self.address(Name::From)
    }

    /// To, if it can be read.
    pub fn to(&self) -> Option<NameAddrRef<'a>> {
        self.address(Name::To)
    }

    /// The tag of From; elements of RFC 2543 may leave it out.
    #[inline]
    pub fn from_tag(&self) -> Option<&'a [u8]> {
        Some(sub(self.bytes, self.index.from_tag.range())).filter(|t| !t.is_empty())
    }

    /// The tag of To.
    #[inline]
    pub fn to_tag(&self) -> Option<&'a [u8]> {
        Some(sub(self.bytes, self.index.to_tag.range())).filter(|t| !t.is_empty())
    }

    /// The Call-ID; empty if there is none.
    #[inline]
    pub fn call_id(&self) -> &'a [u8] {
        self.index.first(Name::CallId).map_or(b"", |(_, row)| sub(self.bytes, row.value.range()))
    }

    /// Number and method of CSeq, if it can be read.
    pub fn cseq(&self) -> Option<(u32, &'a [u8])> {
        Some((self.index.cseq?, sub(self.bytes, self.index.cseq_method.range())))
    }

    /// Max-Forwards (0 to 255); `None` if absent.
    pub fn max_forwards(&self) -> Option<u32> {
        self.index.max_forwards.map(u32::from)
    }

    /// Content-Length, if there is one that fits the message.
    pub fn content_length(&self) -> Option<usize> {
        self.index.content_length.and_then(|n| usize::try_from(n).ok())
    }

    /// The leading delta-seconds of a field's value (Retry-After, Session-Expires, Expires, Min-SE),
    /// in seconds; too large a number counts as the largest (RFC 3261 §20.19).
    pub fn seconds(&self, name: Name) -> Option<u32> {
        let value = self.header(name)?.value;
        let n = value.iter().take_while(|b| b.is_ascii_digit()).count();
        let digits = value.get(..n).filter(|d| !d.is_empty())?;
        let sane = number(digits, u64::from(u32::MAX)).and_then(|n| u32::try_from(n).ok());
        Some(sane.unwrap_or(u32::MAX))
    }
}

/// Rows of a message in order.
#[derive(Clone, Debug)]
pub struct Fields<'a> {
    message: Message<'a>,
    at: usize,
    end: usize,
    wanted: Option<Name>,
}

impl<'a> Iterator for Fields<'a> {
    type Item = Field<'a>;

    #[inline]
    fn next(&mut self) -> Option<Field<'a>> {
        loop {
            let at = self.at;
            if at >= self.end {
                return None;
            }
            let row = self.message.index.rows.get(at)?;
            self.at += 1;
            if self.wanted.is_none_or(|name| name == row.name) {
                return Some(self.message.field(at, row));
            }
        }
    }
}

/// Values of Route or Record-Route; see [`Message::route_values`].
#[derive(Clone, Debug)]
pub struct RouteValues<'a> {
    fields: Fields<'a>,
    /// What is left of a row, the row, and whether none of it has been given yet.
    values: Option<(Values<'a>, Field<'a>, bool)>,
    ordinal: usize,
}

impl<'a> Iterator for RouteValues<'a> {
    type Item = Result<RouteValue<'a>, AddrFault>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if let Some((values, field, first)) = &mut self.values
                && let Some(range) = values.next()
            {
                let sole = std::mem::replace(first, false) && values.is_done();
                let ordinal = self.ordinal;
                self.ordinal += 1;
                let bytes = self.fields.message.bytes;
                return Some(NameAddrRef::parse(bytes, range.clone()).and_then(|addr| {
                    if !addr.bracketed {
                        return Err(AddrFault::NoBrackets);
                    }
                    let uri = UriRef::parse_in(bytes, addr.uri_range.clone())?;
                    Ok(RouteValue {
                        addr,
                        uri,
                        range,
                        row: field.row.clone(),
                        row_at: field.at,
                        ordinal,
                        sole,
                    })
                }));
            }
            let field = self.fields.next()?;
            let bytes = self.fields.message.bytes;
            self.values = Some((Values::new(bytes, field.value_range.clone(), true), field, true));
        }
    }
}

/// Via values of a message, from the top down; see [`Message::vias`].
#[derive(Clone, Debug)]
pub struct Vias<'a> {
    message: Message<'a>,
    /// The next row to look at.
    at: usize,
    /// What is left of the row before, and where that row is.
    values: Option<(Values<'a>, Span, bool)>,
    number: usize,
}

impl<'a> Iterator for Vias<'a> {
    type Item = ViaRef<'a>;

    fn next(&mut self) -> Option<ViaRef<'a>> {
        let Message { bytes, index } = self.message;
        if self.number == 0
            && let [Some(top), _] = &index.vias
            && top.is_sole()
        {
            // Alone in its row, as most are, and known already.
            self.number = 1;
            self.at = if index.repeated(Name::Via) { self.at + 1 } else { usize::MAX };
            return Some(top.view(bytes));
        }
        loop {
            if let Some((values, row, first)) = &mut self.values
                && let Some(value) = values.next()
            {
                let sole = std::mem::replace(first, false) && values.is_done();
                let known = index.vias.get(self.number).copied().flatten();
                self.number += 1;
                let via = match known {
                    Some(known) => Some(known.view(bytes)),
                    None => ViaRef::parse(bytes, value, row.range(), sole),
                };
                if via.is_none() {
                    self.at = usize::MAX;
                    self.values = None;
                }
                return via;
            }
            let row = index.rows.get(self.at)?;
            self.at += 1;
            if row.name == Name::Via {
                self.values = Some((Values::new(bytes, row.value.range(), false), row.row, true));
            }
        }
    }
}
