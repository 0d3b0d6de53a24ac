//! What a proxy has to find sound before it touches a message (RFC 3261 §16.3 step 1, §8.1.1,
//! §18.3; RFC 4475).

use std::ops::Range;

use super::Limits;
use super::fault::Fault;
use super::index::{Framing, Index, Span};
use super::name::{Method, Name};
use super::name_addr::{AddrFault, NameAddrRef};
use super::octets::{digits_len, has_blank, seek, word_len};
use super::scan::{Cursor, Values, is_lws, is_token, number, same, sub};
use super::uri::{UriSpans, octets_are_sound};
use super::via::ViaSpans;

/// Runs all checks; reads the fields that every message has on the way.
pub(crate) fn run(index: &mut Index, bytes: &[u8], limits: &Limits, framing: Framing) {
    let length = content_length(index, bytes, limits, framing);
    vias(index, bytes);
    dialog_fields(index, bytes);
    call_id(index, bytes);
    cseq(index, bytes);
    if index.status == 0 {
        max_forwards(index, bytes);
        request_uri(index, bytes);
    }
    if let Err(fault) = length {
        index.blame(fault);
    }
}

fn content_length(index: &mut Index, bytes: &[u8], limits: &Limits, framing: Framing) -> Result<(), Fault> {
    let Some((at, row)) = index.first(Name::ContentLength) else {
        return match framing {
            Framing::Datagram => Ok(()),
            Framing::Stream => Err(Fault::NO_LENGTH),
        };
    };
    let read = |span: Span| number(sub(bytes, span.range()), u64::from(u32::MAX));
    let length = read(row.value).ok_or(Fault::BAD_LENGTH)?;
    if index.repeated(Name::ContentLength) {
        for row in index.rows.iter().skip(at + 1).filter(|r| r.name == Name::ContentLength) {
            if read(row.value).ok_or(Fault::BAD_LENGTH)? != length {
                return Err(Fault::TWO_LENGTHS);
            }
        }
    }
    let body = index.body.range();
    let length = usize::try_from(length).map_err(|_| Fault::BAD_LENGTH)?;
    if length > body.len() {
        let too_large = framing == Framing::Stream && body.start + length > limits.max_message;
        return Err(if too_large { Fault::MESSAGE_TOO_LARGE } else { Fault::SHORT_BODY });
    }
    index.content_length = u32::try_from(length).ok();
    index.body = (body.start..body.start + length).into();
    Ok(())
}

/// The top row in a request: what is copied and stamped. The first two values in a response: our
/// own, and the one that says where it goes. Vias further down concern those who wrote them.
fn vias(index: &mut Index, bytes: &[u8]) {
    let Some((at, _)) = index.first(Name::Via) else {
        index.blame(Fault::NO_VIA);
        return;
    };
    let response = index.status != 0;
    if plain_vias(index, bytes, at).is_some() {
        return;
    }
    let mut kept = [None; 2];
    let mut seen = 0;
    let mut sound = true;
    for row in index.rows.iter().skip(at).filter(|r| r.name == Name::Via) {
        let mut values = Values::new(bytes, row.value.range(), false);
        let mut alone = true;
        while let Some(value) = values.next() {
            alone &= values.is_done();
            let via = ViaSpans::parse(bytes, value, row.row.range(), alone);
            alone = false;
            sound &= via.is_some();
            // Readers go from the top down, and stop at what cannot be read.
            if let Some(place) = kept.get_mut(seen)
                && sound
            {
                *place = via;
            }
            seen += 1;
            if response && seen == 2 {
                break;
            }
        }
        if !response || seen == 2 {
            break;
        }
    }
    index.vias = kept;
    if !sound {
        index.blame(Fault::BAD_VIA);
    }
}

/// Keeps the Vias, where those to be checked are written in the usual way. `None`: look closer.
fn plain_vias(index: &mut Index, bytes: &[u8], at: usize) -> Option<()> {
    let response = index.status != 0;
    let repeated = index.repeated(Name::Via);
    let mut seen = 0;
    for row in index.rows.iter().skip(at).filter(|r| r.name == Name::Via) {
        let value = row.value.range();
        let mut from = value.start;
        loop {
            let via = ViaSpans::parse_plain(bytes, from..value.end, row)?;
            let end = via.end();
            if let Some(place) = index.vias.get_mut(seen) {
                *place = Some(via);
            }
            seen += 1;
            if response && seen == 2 {
                return Some(());
            }
            if end == value.end {
                break;
            }
            // The parser stops at a comma only.
            from = end + 1;
            while bytes.get(from) == Some(&b' ') {
                from += 1;
            }
        }
        if !response || !repeated {
            break;
        }
    }
    Some(())
}

fn dialog_fields(index: &mut Index, bytes: &[u8]) {
    match single(index, Name::To, Fault::NO_TO, Fault::TWO_TO).map(|v| address(bytes, v)) {
        Ok(Ok(tag)) => index.to_tag = tag,
        Ok(Err(_)) => index.blame(Fault::BAD_TO),
        Err(fault) => index.blame(fault),
    }
    match single(index, Name::From, Fault::NO_FROM, Fault::TWO_FROM).map(|v| address(bytes, v)) {
        Ok(Ok(tag)) => index.from_tag = tag,
        Ok(Err(_)) => index.blame(Fault::BAD_FROM),
        Err(fault) => index.blame(fault),
    }
}

/// The value of a field that must be there once.
fn single(index: &Index, name: Name, missing: Fault, repeated: Fault) -> Result<Span, Fault> {
    let (_, row) = index.first(name).ok_or(missing)?;
    if index.repeated(name) { Err(repeated) } else { Ok(row.value) }
}

/// Where the tag of a To or From is; the URI in it is for end points to judge.
#[inline(always)]
fn address(bytes: &[u8], value: Span) -> Result<Span, AddrFault> {
    match plain_address(bytes, value.range()) {
        Some(tag) => Ok(tag),
        None => any_address(bytes, value),
    }
}

#[inline(never)]
fn any_address(bytes: &[u8], value: Span) -> Result<Span, AddrFault> {
    let addr = NameAddrRef::parse(bytes, value.range())?;
    let mut tag = None;
    if addr.params.is_empty() {
        return Ok(Span::default());
    }
    for param in addr.parameters().filter(|p| same(p.name, b"tag")) {
        let len = param.value.unwrap_or_default().len();
        if tag.is_some() || len == 0 {
            return Err(AddrFault::BadTag);
        }
        let end = addr.params_range.start + param.range.end;
        tag = Some(Span::from(end.saturating_sub(len)..end));
    }
    Ok(tag.unwrap_or_default())
}

/// The tag of an address written in the usual way: perhaps a display name, which holds no
/// backslash if it is quoted; a URI in brackets; no parameter, or a tag alone. `None`: look closer.
#[inline(never)]
fn plain_address(bytes: &[u8], value: Range<usize>) -> Option<Span> {
    let mut at = value.start;
    if bytes.get(at) == Some(&b'"') {
        let quote = seek(bytes, at + 1..value.end, |b| b.is(b'"') | b.is(b'\\'))?;
        at = quote + 1 + usize::from(bytes.get(quote + 1) == Some(&b' '));
        if bytes.get(quote) != Some(&b'"') {
            return None;
        }
    }
    let blank = bytes.get(at + 1).is_none_or(|&b| is_lws(b) || b == b'>');
    if blank || at >= value.end || bytes.get(at) != Some(&b'<') {
        return None;
    }
    let after = seek(bytes, at..value.end, |b| b.is(b'>'))? + 1;
    if after == value.end {
        return Some(Span::default());
    }
    let tag = after + 5;
    let sole = bytes.get(after..tag)? == b";tag="
        && tag < value.end
        && seek(bytes, tag..value.end, |b| b.at_most(b'"') | b.is(b';')) == Some(value.end);
    sole.then(|| (tag..value.end).into())
}

fn call_id(index: &mut Index, bytes: &[u8]) {
    match single(index, Name::CallId, Fault::NO_CALL_ID, Fault::TWO_CALL_ID) {
        // Nothing up to a blank is mostly all there is to know.
        Ok(value)
            if value.is_empty()
                || seek(bytes, value.range(), |b| b.at_most(b' ')) != Some(value.range().end)
                    && has_blank(bytes, value.range()) =>
        {
            index.blame(Fault::BAD_CALL_ID);
        }
        Ok(_) => {}
        Err(fault) => index.blame(fault),
    }
}

fn cseq(index: &mut Index, bytes: &[u8]) {
    let value = match single(index, Name::CSeq, Fault::NO_CSEQ, Fault::TWO_CSEQ) {
        Ok(value) => value,
        Err(fault) => return index.blame(fault),
    };
    let Some((n, span)) = plain_cseq(bytes, value.range()).or_else(|| any_cseq(bytes, value.range())) else {
        return index.blame(Fault::BAD_CSEQ);
    };
    index.cseq = Some(n);
    index.cseq_method = span.clone().into();
    let method = sub(bytes, span);
    if index.status == 0 && method != sub(bytes, index.method_span.range()) {
        index.blame(match index.method {
            // RFC 4475 §3.1.2.18: 501 says more than 400 where the method is unknown, too.
            Method::Other => Fault::UNKNOWN_METHOD,
            _ => Fault::CSEQ_METHOD,
        });
    }
}

/// Number and place of the method of a CSeq that is written with one blank, of letters, digits and
/// hyphens, and lies within a block. `None`: look closer.
fn plain_cseq(bytes: &[u8], value: Range<usize>) -> Option<(u32, Range<usize>)> {
    let digits = digits_len(bytes.get(value.start..)?.first_chunk()?);
    let at = value.start + digits + 1;
    let method = word_len(bytes.get(at..)?.first_chunk()?);
    if bytes.get(at - 1) != Some(&b' ') || method == 0 || at + method != value.end {
        return None;
    }
    Some((sequence_number(sub(bytes, value.start..at - 1))?, at..value.end))
}

fn any_cseq(bytes: &[u8], value: Range<usize>) -> Option<(u32, Range<usize>)> {
    let mut c = Cursor::new(bytes, value);
    let digits = c.take_while(|b| b.is_ascii_digit());
    let spaced = c.lws();
    let at = c.pos;
    let method = c.take_while(is_token);
    let n = sequence_number(digits).filter(|_| spaced && !method.is_empty() && c.at_end())?;
    Some((n, at..c.pos))
}

/// RFC 3261 §8.1.1.5: less than 2**31.
fn sequence_number(digits: &[u8]) -> Option<u32> {
    number(digits, 0x7fff_ffff).and_then(|n| u32::try_from(n).ok())
}

fn max_forwards(index: &mut Index, bytes: &[u8]) {
    let Some((_, row)) = index.first(Name::MaxForwards) else {
        return;
    };
    if index.repeated(Name::MaxForwards) {
        return index.blame(Fault::TWO_MAX_FORWARDS);
    }
    let n = number(sub(bytes, row.value.range()), 255).and_then(|n| u8::try_from(n).ok());
    index.max_forwards = n;
    if n.is_none() {
        index.blame(Fault::BAD_MAX_FORWARDS);
    }
}

fn request_uri(index: &mut Index, bytes: &[u8]) {
    let range = index.uri.range();
    match UriSpans::parse(bytes, range.clone()) {
        Ok(parts) => {
            index.uri_parts = Some(parts);
            if parts.has_headers() {
                index.blame(Fault::URI_HEADERS);
            } else if parts.scheme().is_none() && !octets_are_sound(bytes, range) {
                // Whatever the scheme: white space makes the start line ambiguous, brackets are no
                // part of a URI.
                index.blame(Fault::BAD_URI);
            }
        }
        Err(_) => index.blame(Fault::BAD_URI),
    }
}
