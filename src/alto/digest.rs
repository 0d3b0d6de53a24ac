//! HTTP Digest authentication (RFC 7616), which a client of ALTO has to know (RFC 7285 §8.3.5).
//!
//! MD5, SHA-256 and SHA-512-256, each with `-sess` too; `qop=auth` only: without it a server could be shown an old
//! answer again, and the one that asks could choose all of what is hashed. Of several challenges the strongest is
//! answered. A nonce is used on, counted, until the server wants another one (`stale`, `nextnonce`).

use std::fmt::Write as _;

use md5::Md5;
use sha2::{Digest, Sha256, Sha512_256};

/// Most challenges read of an answer, and most parameters of one.
const MAX_CHALLENGES: usize = 16;
const MAX_PARAMETERS: usize = 32;
/// Longest text of a server's that is repeated to it, octets.
const MAX_VALUE: usize = 4096;

/// What is hashed with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Hash {
    Md5,
    Sha256,
    Sha512Truncated,
}

impl Hash {
    fn of(self, text: &str) -> String {
        match self {
            Hash::Md5 => hex(&Md5::digest(text)),
            Hash::Sha256 => hex(&Sha256::digest(text)),
            Hash::Sha512Truncated => hex(&Sha512_256::digest(text)),
        }
    }
}

fn hex(octets: &[u8]) -> String {
    octets.iter().fold(String::with_capacity(2 * octets.len()), |mut text, octet| {
        let _ = write!(text, "{octet:02x}");
        text
    })
}

/// A challenge that can be answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Challenge {
    realm: String,
    nonce: String,
    opaque: Option<String>,
    hash: Hash,
    /// As written; left out of the answer if it was left out there.
    algorithm: Option<String>,
    session: bool,
    /// Only the nonce was too old: name and password are good.
    pub stale: bool,
}

/// Scheme and parameters, names in lower case, values without quotes.
type Offer = (String, Vec<(String, String)>);

/// The strongest Digest challenge among those of an answer's `WWW-Authenticate` headers.
///
/// # Errors
/// There is none that can be answered; in words, what there is.
pub fn challenge<'h>(headers: impl IntoIterator<Item = &'h str>) -> Result<Challenge, String> {
    let offers: Vec<Offer> = headers.into_iter().flat_map(offers).take(MAX_CHALLENGES).collect();
    let (mut best, mut why): (Option<Challenge>, Vec<String>) = (None, Vec::new());
    for (scheme, parameters) in &offers {
        if !scheme.eq_ignore_ascii_case("digest") {
            why.push(format!("{scheme} instead of Digest"));
            continue;
        }
        match read(parameters) {
            // The first of several that are equally strong (RFC 7616 §3.7).
            Ok(found) if best.as_ref().is_none_or(|b| found.hash > b.hash) => best = Some(found),
            Ok(_) => {}
            Err(reason) => why.push(reason),
        }
    }
    best.ok_or_else(|| if why.is_empty() { "without a challenge".to_owned() } else { why.join(", ") })
}

fn read(parameters: &[(String, String)]) -> Result<Challenge, String> {
    let find = |name: &str| parameters.iter().find(|(n, _)| n == name).map(|(_, v)| v.clone());
    let algorithm = find("algorithm");
    let name = algorithm.as_deref().unwrap_or("MD5").to_ascii_lowercase();
    let (plain, session) = name.strip_suffix("-sess").map_or((name.as_str(), false), |plain| (plain, true));
    let hash = match plain {
        "md5" => Hash::Md5,
        "sha-256" => Hash::Sha256,
        "sha-512-256" => Hash::Sha512Truncated,
        _ => return Err(format!("Digest with algorithm {name}")),
    };
    if !find("qop").is_some_and(|qop| qop.split(',').any(|q| q.trim().eq_ignore_ascii_case("auth"))) {
        return Err("Digest without qop=auth".to_owned());
    }
    let (Some(realm), Some(nonce)) = (find("realm"), find("nonce")) else {
        return Err("Digest without realm or nonce".to_owned());
    };
    let opaque = find("opaque");
    if [Some(&realm), Some(&nonce), opaque.as_ref()].into_iter().flatten().any(|v| v.len() > MAX_VALUE) {
        return Err("Digest with a realm, nonce or opaque beyond measure".to_owned());
    }
    let stale = find("stale").is_some_and(|s| s.eq_ignore_ascii_case("true"));
    Ok(Challenge { realm, nonce, opaque, hash, algorithm, session, stale })
}

/// The challenges of one header: a scheme ends where the next begins, which is a token that no `=` follows (RFC 9110
/// §11.6.1).
fn offers(header: &str) -> Vec<Offer> {
    let mut list: Vec<Offer> = Vec::new();
    let mut rest = header;
    loop {
        rest = rest.trim_start_matches([' ', '\t', ',']);
        let (word, after) = token(rest);
        if word.is_empty() || list.len() > MAX_CHALLENGES {
            return list;
        }
        let behind = after.trim_start();
        match (behind.strip_prefix('='), list.last_mut()) {
            (Some(value), Some((_, parameters))) => {
                let (value, left) = unquoted(value.trim_start());
                if parameters.len() < MAX_PARAMETERS {
                    parameters.push((word.to_ascii_lowercase(), value));
                }
                rest = left;
            }
            (Some(_), None) => return list,
            (None, _) => {
                list.push((word.to_owned(), Vec::new()));
                rest = after;
            }
        }
    }
}

fn token(text: &str) -> (&str, &str) {
    let end = text.find(|c: char| !(c.is_ascii_alphanumeric() || "!#$%&'*+-.^_`|~/".contains(c)));
    text.split_at(end.unwrap_or(text.len()))
}

/// A value, with or without quotes, and what stands behind it.
fn unquoted(text: &str) -> (String, &str) {
    let Some(inner) = text.strip_prefix('"') else {
        let end = text.find([',', ' ', '\t']).unwrap_or(text.len());
        let (value, rest) = text.split_at(end);
        return (value.to_owned(), rest);
    };
    let (mut value, mut escaped) = (String::new(), false);
    for (at, c) in inner.char_indices() {
        match c {
            _ if escaped => (escaped, value) = (false, value + c.encode_utf8(&mut [0; 4])),
            '\\' => escaped = true,
            '"' => return (value, inner.get(at + 1..).unwrap_or_default()),
            _ => value.push(c),
        }
    }
    (value, "")
}

/// A challenge being answered, request by request.
#[derive(Clone, Debug)]
pub struct Session {
    challenge: Challenge,
    /// The nonce that a `-sess` algorithm began with.
    first: String,
    cnonce: String,
    count: u32,
}

impl Session {
    /// `random`: of its own for each session.
    pub fn new(challenge: Challenge, random: [u8; 16]) -> Self {
        Self { first: challenge.nonce.clone(), cnonce: hex(&random), count: 0, challenge }
    }

    /// The value of the `Authorization` header for a request; `uri` is the path and query that it asks for.
    pub fn authorization(&mut self, user: &str, password: &str, method: &str, uri: &str) -> String {
        let Challenge { realm, nonce, opaque, hash, algorithm, session, .. } = &self.challenge;
        self.count = self.count.wrapping_add(1);
        let (cnonce, count) = (&self.cnonce, self.count);
        let mut secret = hash.of(&format!("{user}:{realm}:{password}"));
        if *session {
            secret = hash.of(&format!("{secret}:{}:{cnonce}", self.first));
        }
        let request = hash.of(&format!("{method}:{uri}"));
        let response = hash.of(&format!("{secret}:{nonce}:{count:08x}:{cnonce}:auth:{request}"));
        let mut text = String::from("Digest ");
        if user.is_ascii() {
            let _ = write!(text, "username={}", quoted(user));
        } else {
            let _ = write!(text, "username*=UTF-8''{}", percent(user));
        }
        let _ = write!(text, ", realm={}, nonce={}, uri={}", quoted(realm), quoted(nonce), quoted(uri));
        let _ = write!(text, ", response=\"{response}\", qop=auth, nc={count:08x}, cnonce=\"{cnonce}\"");
        if let Some(algorithm) = algorithm {
            let _ = write!(text, ", algorithm={algorithm}");
        }
        if let Some(opaque) = opaque {
            let _ = write!(text, ", opaque={}", quoted(opaque));
        }
        text
    }

    /// Takes note of an `Authentication-Info` header: the server may want another nonce from now on (RFC 7616 §3.5).
    pub fn info(&mut self, header: &str) {
        // It has the form of a challenge without its scheme.
        let found = offers(&format!("Digest {header}"));
        let next = found.into_iter().flat_map(|(_, p)| p).find(|(name, _)| name == "nextnonce");
        if let Some((_, nonce)) = next.filter(|(_, nonce)| !nonce.is_empty() && nonce.len() <= MAX_VALUE) {
            (self.challenge.nonce, self.count) = (nonce, 0);
        }
    }
}

fn quoted(text: &str) -> String {
    format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\""))
}

/// RFC 8187 §3.2.1.
fn percent(text: &str) -> String {
    text.bytes().fold(String::new(), |mut out, b| {
        if b.is_ascii_alphanumeric() || b"-._~".contains(&b) {
            out.push(char::from(b));
        } else {
            let _ = write!(out, "%{b:02X}");
        }
        out
    })
}
