//! Telephone numbers in user parts: read without escapes and separators, and written as another side wants them.

use smallvec::SmallVec;

use crate::config::NumberRule;
use crate::wire::{Scheme, UriRef};

/// Octets with their `%` escapes resolved.
fn unescaped(text: &[u8]) -> SmallVec<[u8; 32]> {
    let mut out = SmallVec::new();
    let mut rest = text;
    while let Some((first, more)) = rest.split_first() {
        let nibble = |at: usize| more.get(at).and_then(|d| char::from(*d).to_digit(16));
        match (first, nibble(0), nibble(1)) {
            (b'%', Some(high), Some(low)) => {
                out.push(u8::try_from(high * 16 + low).unwrap_or_default());
                rest = more.get(2..).unwrap_or_default();
            }
            _ => {
                out.push(*first);
                rest = more;
            }
        }
    }
    out
}

/// A user part as a telephone number, without escapes (RFC 3261 §19.1.4) and visual separators (RFC 3966
/// §3); `None` if it is no number.
pub(super) fn digits_of(user: &[u8]) -> Option<SmallVec<[u8; 32]>> {
    let number = unescaped(user.split(|b| *b == b';').next().unwrap_or_default());
    let separator = |b: &u8| matches!(b, b'-' | b'.' | b'(' | b')');
    let digits = number.strip_prefix(b"+").unwrap_or(&number);
    let is_number = !digits.is_empty() && digits.iter().all(|b| b.is_ascii_digit() || separator(b));
    is_number.then(|| number.iter().copied().filter(|b| !separator(b)).collect())
}

/// A `sip:` or `sips:` URI with its number as the first rule that fits makes it; `None`: no rule fits, or there
/// is no number. One in a context of its own (`phone-context`, RFC 3966 §5.1.5) means what it says there.
pub(super) fn normalised(rules: &[NumberRule], uri: &UriRef<'_>) -> Option<Vec<u8>> {
    if rules.is_empty() || !matches!(uri.scheme, Scheme::Sip | Scheme::Sips) {
        return None;
    }
    let user = uri.user?;
    let number_end = user.iter().position(|b| *b == b';').unwrap_or(user.len());
    let (_, params) = user.split_at_checked(number_end)?;
    let in_context = |p: &[u8]| p.get(..13).is_some_and(|name| name.eq_ignore_ascii_case(b"phone-context"));
    if params.split(|b| *b == b';').any(in_context) {
        return None;
    }
    let digits = digits_of(user)?;
    let (rule, rest) = rules.iter().find_map(|rule| {
        let rest = digits.strip_prefix(rule.strip.as_bytes())?;
        (!rest.is_empty()).then_some((rule, rest))
    })?;
    let start = memchr::memchr(b':', uri.bytes)? + 1;
    let (head, tail) = (uri.bytes.get(..start)?, uri.bytes.get(start + number_end..)?);
    Some([head, rule.prefix.as_bytes(), rest, tail].concat())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn rule(strip: &str, prefix: &str) -> NumberRule {
        NumberRule { strip: strip.into(), prefix: prefix.into() }
    }

    fn made(rules: &[NumberRule], uri: &str) -> Option<String> {
        normalised(rules, &UriRef::parse(uri.as_bytes()).unwrap()).map(|u| String::from_utf8(u).unwrap())
    }

    #[test]
    fn the_first_rule_that_fits_writes_the_number_anew_and_leaves_the_rest_of_the_uri() {
        let rules = [rule("00", "+"), rule("0", "+49"), rule("+", "+")];
        for (uri, want) in [
            ("sip:004420@a.example", Some("sip:+4420@a.example")),
            ("sip:030123@a.example", Some("sip:+4930123@a.example")),
            ("sip:%2b49(30)-12.3@a.example", Some("sip:+4930123@a.example")),
            ("SIPS:0030;isub=1;x=0:pw@a.example:5070;user=phone?s=0", {
                Some("SIPS:+30;isub=1;x=0:pw@a.example:5070;user=phone?s=0")
            }),
            ("sip:112@a.example", None),
            ("sip:00@a.example", Some("sip:+490@a.example")),
            ("sip:0@a.example", None),
            ("sip:00alice@a.example", None),
            ("sip:00#1@a.example", None),
            ("sip:00301;phone-context=+49@a.example", None),
            ("sip:00301;x=1;Phone-Context=+49@a.example", None),
            ("sip:a.example", None),
            ("tel:0030", None),
        ] {
            assert_eq!(made(&rules, uri).as_deref(), want, "{uri}");
        }
    }

    #[test]
    fn a_rule_without_strip_fits_every_number_and_one_without_prefix_takes_away() {
        assert_eq!(made(&[rule("", "9")], "sip:12@a").as_deref(), Some("sip:912@a"));
        assert_eq!(made(&[rule("+", "")], "sip:+12@a").as_deref(), Some("sip:12@a"));
        assert_eq!(made(&[], "sip:+12@a"), None);
    }
}
