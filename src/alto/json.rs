//! JSON within bounds: depth, names, numbers.

use std::borrow::Cow;
use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer as _, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;

use super::error::Fault;

/// Deepest nesting accepted; the deepest message of the protocol has five levels.
pub const MAX_DEPTH: usize = 16;

/// The text of a body that may be parsed: UTF-8, and no deeper than [`MAX_DEPTH`].
///
/// # Errors
/// It is not UTF-8, or too deep.
pub fn bounded(body: &[u8]) -> Result<&str, Fault> {
    let text = std::str::from_utf8(body).map_err(|_| Fault::Json("it is not UTF-8".into()))?;
    let (mut depth, mut deepest, mut quoted, mut escaped) = (0_usize, 0_usize, false, false);
    for byte in text.bytes() {
        if quoted {
            match byte {
                _ if escaped => escaped = false,
                b'\\' => escaped = true,
                b'"' => quoted = false,
                _ => {}
            }
            continue;
        }
        match byte {
            b'"' => quoted = true,
            b'{' | b'[' => {
                depth += 1;
                deepest = deepest.max(depth);
            }
            b'}' | b']' => depth = depth.saturating_sub(1),
            _ => {}
        }
    }
    if deepest > MAX_DEPTH {
        return Err(Fault::Json(format!("it is nested {deepest} deep, more than {MAX_DEPTH}")));
    }
    Ok(text)
}

/// Parses a body that [`bounded`] accepts.
///
/// # Errors
/// It is no JSON, or not of the shape wanted.
pub fn parse<'a, T: serde::Deserialize<'a>>(body: &'a [u8]) -> Result<T, Fault> {
    serde_json::from_str(bounded(body)?).map_err(|e| match e.classify() {
        serde_json::error::Category::Data => Fault::Shape(e.to_string()),
        _ => Fault::Json(e.to_string()),
    })
}

/// Text that is borrowed unless there are escapes in it.
#[derive(Deserialize)]
struct Text<'a>(#[serde(borrow)] Cow<'a, str>);

struct Members<'f>(&'f mut dyn FnMut(&str, &RawValue) -> Result<(), Fault>, Option<Fault>);

impl<'de> Visitor<'de> for &mut Members<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        while let Some(Text(name)) = map.next_key()? {
            let value = map.next_value()?;
            if let Err(fault) = (self.0)(&name, value) {
                self.1 = Some(fault);
                return Err(serde::de::Error::custom("no further"));
            }
        }
        Ok(())
    }
}

/// Shows the members of an object one by one, however many there are, and keeps none.
///
/// # Errors
/// It is no object, or `see` has said so.
pub fn members(text: &str, mut see: impl FnMut(&str, &RawValue) -> Result<(), Fault>) -> Result<(), Fault> {
    let mut visitor = Members(&mut see, None);
    let read = serde_json::Deserializer::from_str(text).deserialize_map(&mut visitor);
    match visitor.1 {
        Some(fault) => Err(fault),
        None => read.map_err(|e| Fault::Shape(e.to_string())),
    }
}

struct Strings<'f>(&'f mut dyn FnMut(&str) -> Result<(), Fault>, Option<Fault>);

impl<'de> Visitor<'de> for &mut Strings<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of strings")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<(), A::Error> {
        while let Some(Text(text)) = list.next_element()? {
            if let Err(fault) = (self.0)(&text) {
                self.1 = Some(fault);
                return Err(serde::de::Error::custom("no further"));
            }
        }
        Ok(())
    }
}

/// Shows the members of a list of strings one by one, and keeps none.
///
/// # Errors
/// It is no list of strings, or `see` has said so.
pub fn strings(text: &str, mut see: impl FnMut(&str) -> Result<(), Fault>) -> Result<(), Fault> {
    let mut visitor = Strings(&mut see, None);
    let read = serde_json::Deserializer::from_str(text).deserialize_seq(&mut visitor);
    match visitor.1 {
        Some(fault) => Err(fault),
        None => read.map_err(|e| Fault::Shape(e.to_string())),
    }
}

/// A cost (RFC 7285 §11.2.3.6): a JSON number, finite and not negative. A string, null, a negative number and one
/// that does not fit are no cost.
pub fn cost(raw: &RawValue) -> Option<f64> {
    let text = raw.get();
    if !text.starts_with(|c: char| c.is_ascii_digit() || c == '-') {
        return None;
    }
    // Adding zero makes -0 a plain 0.
    text.parse::<f64>().ok().filter(|n| n.is_finite() && *n >= 0.0).map(|n| n + 0.0)
}

/// A name of a resource or PID (RFC 7285 §10.1, §10.2).
pub fn is_id(text: &str) -> bool {
    let ok = |b: u8| b.is_ascii_alphanumeric() || b"-:@_.".contains(&b);
    (1..=64).contains(&text.len()) && text.bytes().all(ok)
}

/// The tag of a version (RFC 7285 §10.3).
pub fn is_tag(text: &str) -> bool {
    (1..=64).contains(&text.len()) && text.bytes().all(|b| (0x21..=0x7e).contains(&b))
}
