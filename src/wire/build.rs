//! Messages of our own: responses, and the requests that a proxy itself sends.

use std::net::SocketAddr;
use std::ops::Range;

use super::edit::{Splices, Text, needs_no_stamp, stamp};
use super::message::{Field, Message};
use super::name::Name;
use super::scan::{is_control, is_lws, sub};

/// What goes into a response besides what the request dictates.
#[derive(Clone, Copy, Debug, Default)]
pub struct ResponseOptions<'a> {
    /// Tag to put into a To that has none; never put into a 100 (RFC 3261 §8.2.6.2).
    pub to_tag: Option<&'a [u8]>,
    /// Where the request came from: the top Via is stamped with it, as [`super::stamp_via`] does
    /// without adding `rport`.
    pub stamp: Option<SocketAddr>,
    /// Further rows: name and value. Control octets in values become blanks.
    pub extra_rows: &'a [(&'a str, &'a [u8])],
    /// Copy Record-Route (RFC 3261 §12.1.1).
    pub copy_record_route: bool,
}

/// A response without body (RFC 3261 §8.2.6). What the request lacks is left out, what is doubled
/// is copied once, and control octets that it should not hold become `?`.
pub fn response(req: Message<'_>, status: u16, reason: &str, opts: ResponseOptions<'_>) -> Vec<u8> {
    // What is copied is less than the request's header; a large body does not count.
    let extra: usize = opts.extra_rows.iter().map(|(n, v)| n.len() + v.len() + 4).sum();
    let mut out = Vec::with_capacity(req.headers_end().min(8_192) + reason.len() + extra + 128);
    out.extend_from_slice(b"SIP/2.0 ");
    out.extend_from_slice(Text::number(u64::from(status)).bytes());
    out.push(b' ');
    out.extend_from_slice(reason.as_bytes());
    out.extend_from_slice(b"\r\n");

    let mut rows = Run::new(&req);
    match (req.top_via(), opts.stamp) {
        (Some(via), Some(source)) if !needs_no_stamp(&via, source) => {
            let mut splices = Splices::default();
            stamp(&mut splices, &via, source, false);
            for field in req.headers(Name::Via) {
                copy(&mut out, &req, &field, &mut splices);
            }
        }
        _ => req.headers(Name::Via).for_each(|field| rows.copy(&mut out, &field)),
    }
    if opts.copy_record_route {
        req.headers(Name::RecordRoute).for_each(|field| rows.copy(&mut out, &field));
    }
    if let Some(from) = req.header(Name::From) {
        rows.copy(&mut out, &from);
    }
    if let Some(to) = req.header(Name::To) {
        let at = to.value_range.end;
        // A To that cannot be read might hold a tag, or end inside a quoted string.
        let untagged = || req.to_tag().is_none() && req.to().is_some();
        let tag = opts.to_tag.filter(|_| status != 100 && untagged());
        match tag {
            None => rows.copy(&mut out, &to),
            Some(tag) => {
                rows.end(&mut out);
                copy_head(&mut out, &req, to.row.start..at);
                for part in [b";tag=", tag, b"\r\n"] {
                    out.extend_from_slice(part);
                }
            }
        }
    }
    for name in [Name::CallId, Name::CSeq] {
        if let Some(field) = req.header(name) {
            rows.copy(&mut out, &field);
        }
    }
    if status == 100
        && let Some(field) = req.header(Name::Timestamp)
    {
        rows.copy(&mut out, &field);
    }
    rows.end(&mut out);
    for (name, value) in opts.extra_rows {
        push_row(&mut out, name, value);
    }
    out.extend_from_slice(b"Content-Length: 0\r\n\r\n");
    out
}

/// The ACK for a final response other than 2xx (RFC 3261 §17.1.1.3), from the INVITE as it was sent
/// on this branch.
pub fn ack(sent_invite: Message<'_>, final_response: Message<'_>) -> Vec<u8> {
    let mut out = in_transaction(&sent_invite, b"ACK");
    if let Some(to) = final_response.header(Name::To).or_else(|| sent_invite.header(Name::To)) {
        push_row(&mut out, "To", to.value);
    }
    out.extend_from_slice(b"Max-Forwards: 70\r\nContent-Length: 0\r\n\r\n");
    out
}

/// The CANCEL for an INVITE as it was sent on this branch (RFC 3261 §9.1), with further rows such as
/// Reason (RFC 3326 §2).
pub fn cancel(sent_invite: Message<'_>, extra_rows: &[(&str, &[u8])]) -> Vec<u8> {
    let mut out = in_transaction(&sent_invite, b"CANCEL");
    if let Some(to) = sent_invite.header(Name::To) {
        copy_row(&mut out, &sent_invite, &to);
    }
    out.extend_from_slice(b"Max-Forwards: 70\r\n");
    for (name, value) in extra_rows {
        push_row(&mut out, name, value);
    }
    out.extend_from_slice(b"Content-Length: 0\r\n\r\n");
    out
}

/// An OPTIONS of our own (RFC 3261 §11), to see whether an instance answers. `via` is a whole Via
/// value with its branch, `from_host` as in a URI.
pub fn options_probe(
    uri: &[u8],
    via: &[u8],
    from_host: &str,
    call_id: &[u8],
    tag: &[u8],
    cseq: u32,
) -> Vec<u8> {
    let mut out = Vec::with_capacity(512);
    for part in [b"OPTIONS ", uri, b" SIP/2.0\r\nVia: ", via, b"\r\nMax-Forwards: 70\r\nFrom: <sip:"] {
        out.extend_from_slice(part);
    }
    for part in [from_host.as_bytes(), b">;tag=", tag, b"\r\nTo: <", uri, b">\r\nCall-ID: ", call_id] {
        out.extend_from_slice(part);
    }
    out.extend_from_slice(Text::new(format_args!("\r\nCSeq: {cseq} OPTIONS\r\n")).bytes());
    out.extend_from_slice(b"Content-Length: 0\r\n\r\n");
    out
}

/// Start line, top Via, Route, From, Call-ID, CSeq of a request that shares the branch of an INVITE.
fn in_transaction(invite: &Message<'_>, method: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(512);
    for part in [method, b" ", invite.uri(), b" SIP/2.0\r\n"] {
        out.extend_from_slice(part);
    }
    if let Some(via) = invite.top_via() {
        push_row(&mut out, "Via", via.value());
    }
    for name in [Name::Route, Name::From, Name::CallId] {
        for field in invite.headers(name) {
            copy_row(&mut out, invite, &field);
        }
    }
    let n = invite.cseq().map_or(0, |(n, _)| n);
    for part in [b"CSeq: ", Text::number(u64::from(n)).bytes(), b" "] {
        out.extend_from_slice(part);
    }
    out.extend_from_slice(method);
    out.extend_from_slice(b"\r\n");
    out
}

/// Copies a row with the splices that lie in it.
fn copy(out: &mut Vec<u8>, from: &Message<'_>, field: &Field<'_>, splices: &mut Splices) {
    let at = out.len();
    splices.write(from.bytes, field.row.start..field.value_range.end, out);
    if !from.index.clean {
        cleanse(out, at, b'?');
    }
    out.extend_from_slice(b"\r\n");
}

/// Rows copied as they are, neighbours at once.
struct Run<'a> {
    from: Message<'a>,
    /// Still to be copied.
    range: Range<usize>,
}

impl<'a> Run<'a> {
    fn new(from: &Message<'a>) -> Self {
        Self { from: *from, range: 0..0 }
    }

    /// Copies a row after those before it.
    fn copy(&mut self, out: &mut Vec<u8>, field: &Field<'_>) {
        if !self.from.index.clean || field.value_range.end + 2 != field.row.end {
            self.end(out);
            return copy_row(out, &self.from, field);
        }
        // Nothing but the line end behind the value: the row as it stands there.
        if self.range.end == field.row.start {
            self.range.end = field.row.end;
        } else {
            self.end(out);
            self.range = field.row.clone();
        }
    }

    /// Copies what is left: to be done before anything else is written.
    fn end(&mut self, out: &mut Vec<u8>) {
        out.extend_from_slice(sub(self.from.bytes, self.range.clone()));
        self.range.start = self.range.end;
    }
}

/// Copies a row as it is.
fn copy_row(out: &mut Vec<u8>, from: &Message<'_>, field: &Field<'_>) {
    copy_head(out, from, field.row.start..field.value_range.end);
    out.extend_from_slice(b"\r\n");
}

/// Copies part of a row.
fn copy_head(out: &mut Vec<u8>, from: &Message<'_>, range: Range<usize>) {
    let at = out.len();
    out.extend_from_slice(sub(from.bytes, range));
    if !from.index.clean {
        cleanse(out, at, b'?');
    }
}

fn push_row(out: &mut Vec<u8>, name: &str, value: &[u8]) {
    out.extend_from_slice(name.as_bytes());
    out.extend_from_slice(b": ");
    let at = out.len();
    out.extend_from_slice(value);
    if value.iter().any(|&b| is_control(b) && !is_lws(b)) {
        cleanse(out, at, b' ');
    }
    out.extend_from_slice(b"\r\n");
}

/// Overwrites control octets from `at` on.
fn cleanse(out: &mut [u8], at: usize, with: u8) {
    for b in out.iter_mut().skip(at).filter(|b| is_control(**b)) {
        *b = with;
    }
}
