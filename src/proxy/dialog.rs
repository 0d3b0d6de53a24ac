//! The token in our Record-Route: what an in-dialog request needs to be let through (rule 8).
//!
//! It names the peer of the dialog and the TLS identities that both sides were known by, under a MAC over
//! the Call-ID, so that it proves itself without any state: after a restart, and on another node that
//! shares the secret. Written as `;sbe=TOKEN` in lower-case base32, with `-domain` behind it where the
//! peer was met by TLS, and `~domain` where the core was.

use std::hash::Hasher;

use siphasher::sip::SipHasher24;
use smallvec::SmallVec;

/// Name of the URI parameter.
pub const PARAM: &str = "sbe";
/// What stands before a token in our URIs: [`PARAM`] as a parameter.
pub const BEFORE: &str = ";sbe=";

const ALPHABET: &[u8; 32] = b"abcdefghijklmnopqrstuvwxyz234567";
const RAW: usize = 12;
const TEXT: usize = 20;

/// Whom the two sides of a dialog proved to be, where they were met by TLS.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Names<'a> {
    /// A name in the peer's certificate.
    pub peer: Option<&'a str>,
    /// A name in the core's.
    pub core: Option<&'a str>,
}

/// What a verified token says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Remembered<'a> {
    /// [`super::policy::peer_tag`] of the dialog's peer; 0: open federation.
    pub peer_tag: u32,
    /// Whom TLS servers of either side must prove to be.
    pub names: Names<'a>,
}

/// A token without names, and what it says: it need not be verified when it comes back in the same call as it was
/// written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KnownToken {
    text: [u8; TEXT],
    peer_tag: u32,
}

impl KnownToken {
    /// Of a token just minted; `None`: it has names, or there is none.
    pub fn new(token: &[u8], peer_tag: u32) -> Option<Self> {
        Some(Self { text: token.try_into().ok()?, peer_tag })
    }
}

/// Writes a token for a dialog, to stand behind `;sbe=`.
pub fn mint(secret: &[u8; 16], call_id: &[u8], peer_tag: u32, names: Names<'_>) -> SmallVec<[u8; 64]> {
    let names = Names { peer: names.peer.filter(writable), core: names.core.filter(writable) };
    let mut raw = [0u8; RAW];
    let (mac, tag) = raw.split_at_mut(8);
    mac.copy_from_slice(&tag_of(secret, call_id, peer_tag, names).to_be_bytes());
    tag.copy_from_slice(&peer_tag.to_be_bytes());
    let mut text = encode(raw);
    for (mark, name) in [(b'-', names.peer), (b'~', names.core)] {
        if let Some(name) = name {
            text.push(mark);
            text.extend(name.bytes().map(|b| b.to_ascii_lowercase()));
        }
    }
    text
}

/// Where a token ends that stands at the beginning of `text`; `None`: it does not end, or has a `~` in it.
pub fn end_of_token(text: &[u8]) -> Option<usize> {
    // One without names has one length.
    if let Some((token, [b'>', ..])) = text.split_first_chunk::<TEXT>()
        && token.iter().fold(true, |all, b| all & b.is_ascii_alphanumeric())
    {
        return Some(TEXT);
    }
    text.iter().position(|b| !b.is_ascii_alphanumeric() && !matches!(b, b'-' | b'.'))
}

/// A name that can stand in a URI parameter; all names of hosts can.
fn writable(name: &&str) -> bool {
    let plain = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'.' | b'_');
    !name.is_empty() && name.bytes().all(plain)
}

/// Reads a token that came back in a Route; `None`: not one of ours for this Call-ID. `known`: the one that was
/// minted for this call with this secret.
pub fn verify<'a>(
    secret: &[u8; 16],
    call_id: &[u8],
    token: &'a [u8],
    known: Option<&KnownToken>,
) -> Option<Remembered<'a>> {
    if let Some(known) = known.filter(|known| known.text == *token) {
        return Some(Remembered { peer_tag: known.peer_tag, names: Names::default() });
    }
    let (text, rest) = token.split_at_checked(TEXT)?;
    let names = if rest.is_empty() { Names::default() } else { names_in(rest)? };
    let raw = decode(text)?;
    let (mac, tag) = raw.split_at(8);
    let mac = u64::from_be_bytes(mac.try_into().ok()?);
    let peer_tag = u32::from_be_bytes(tag.try_into().ok()?);
    (mac == tag_of(secret, call_id, peer_tag, names)).then_some(Remembered { peer_tag, names })
}

/// The names behind a token.
fn names_in(rest: &[u8]) -> Option<Names<'_>> {
    let rest = std::str::from_utf8(rest).ok()?;
    let (peer, core) = match rest.split_once('~') {
        Some((peer, core)) => (peer, Some(core)),
        None => (rest, None),
    };
    let peer = match peer {
        "" => None,
        marked => Some(marked.strip_prefix('-')?),
    };
    Some(Names { peer, core })
}

fn tag_of(secret: &[u8; 16], call_id: &[u8], peer_tag: u32, names: Names<'_>) -> u64 {
    let mut hasher = SipHasher24::new_with_key(secret);
    hasher.write(call_id);
    let [a, b, c, d] = peer_tag.to_le_bytes();
    if names == Names::default() {
        // As below, at once.
        hasher.write(&[0, a, b, c, d, 0]);
        return hasher.finish();
    }
    hasher.write(&[0, a, b, c, d]);
    for byte in names.peer.unwrap_or("").bytes() {
        hasher.write_u8(byte.to_ascii_lowercase());
    }
    hasher.write_u8(0);
    for byte in names.core.unwrap_or("").bytes() {
        hasher.write_u8(byte.to_ascii_lowercase());
    }
    hasher.finish()
}

/// 96 bits as 20 symbols of five; the last four bits are zero.
fn encode(raw: [u8; RAW]) -> SmallVec<[u8; 64]> {
    let bits = raw.iter().fold(0u128, |bits, byte| bits << 8 | u128::from(*byte)) << PADDING;
    let mut text = [b'a'; TEXT];
    let mut left = bits;
    for place in text.iter_mut().rev() {
        let symbol = usize::try_from(left & 31).unwrap_or(0);
        *place = ALPHABET.get(symbol).copied().unwrap_or(b'a');
        left >>= 5;
    }
    SmallVec::from_slice(&text)
}

fn decode(text: &[u8]) -> Option<[u8; RAW]> {
    let (front, back) = text.split_at_checked(TEXT / 2)?;
    let mut all = 0;
    let mut half = |symbols: &[u8]| {
        symbols.iter().fold(0u64, |bits, c| {
            let value = VALUES[usize::from(*c)];
            all |= value;
            bits << 5 | u64::from(value & 31)
        })
    };
    let bits = u128::from(half(front)) << (TEXT / 2 * 5) | u128::from(half(back));
    let [_, _, _, _, raw @ ..] = (bits >> PADDING).to_be_bytes();
    (text.len() == TEXT && all < NO_SYMBOL).then_some(raw)
}

/// Bits that the last symbol has too many.
const PADDING: usize = TEXT * 5 - RAW * 8;
const NO_SYMBOL: u8 = 32;

/// The value of each symbol, in either case.
const VALUES: [u8; 256] = {
    let mut values = [NO_SYMBOL; 256];
    let mut i = 0;
    while i < 32 {
        values[ALPHABET[i] as usize] = i as u8;
        values[ALPHABET[i].to_ascii_uppercase() as usize] = i as u8;
        i += 1;
    }
    values
};

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    const SECRET: [u8; 16] = *b"0123456789abcdef";

    #[test]
    fn a_token_comes_back_as_it_was_minted_in_any_case() {
        let (peer, core) = (Some("dest.example.com"), Some("core.example.net"));
        for names in
            [Names::default(), Names { peer, core: None }, Names { peer: None, core }, Names { peer, core }]
        {
            let token = mint(&SECRET, b"call@host", 0xdead_beef, names);
            assert_eq!(
                verify(&SECRET, b"call@host", &token, None),
                Some(Remembered { peer_tag: 0xdead_beef, names })
            );
            let upper = token.to_ascii_uppercase();
            assert_eq!(verify(&SECRET, b"call@host", &upper, None).unwrap().peer_tag, 0xdead_beef);
        }
    }

    #[test]
    fn the_mac_is_that_of_the_parts_one_after_the_other() {
        let names = [None, Some("Dest.example.COM"), Some("core.example.net")];
        for (at, (peer, core)) in names.iter().flat_map(|p| names.map(|c| (*p, c))).enumerate() {
            let call_id = vec![b'x'; at * 13];
            let mut hasher = SipHasher24::new_with_key(&SECRET);
            hasher.write(&call_id);
            hasher.write_u8(0);
            hasher.write_u32(0xdead_beef);
            hasher.write(peer.unwrap_or("").to_ascii_lowercase().as_bytes());
            hasher.write_u8(0);
            hasher.write(core.unwrap_or("").to_ascii_lowercase().as_bytes());
            let names = Names { peer, core };
            assert_eq!(tag_of(&SECRET, &call_id, 0xdead_beef, names), hasher.finish(), "{names:?}");
        }
    }

    #[test]
    fn a_name_that_cannot_stand_in_a_parameter_is_left_out() {
        for name in ["a;b", "a>b", "a~b", "", "a b"] {
            let token = mint(&SECRET, b"c", 1, Names { peer: Some(name), core: Some(name) });
            assert_eq!(verify(&SECRET, b"c", &token, None).unwrap().names, Names::default(), "{name}");
        }
    }

    #[test]
    fn a_known_token_stands_for_itself_alone() {
        let mint = |call_id: &[u8], tag| mint(&SECRET, call_id, tag, Names::default());
        let token = mint(b"call@host", 7);
        let known = KnownToken::new(&token, 7).unwrap();
        let verify = |token: &[u8]| verify(&SECRET, b"call@host", token, Some(&known)).map(|r| r.peer_tag);
        assert_eq!(verify(&token), Some(7));
        assert_eq!(verify(&token.to_ascii_uppercase()), Some(7), "verified as ever");
        assert_eq!(verify(&mint(b"call@host", 8)), Some(8), "that of another attempt, verified as ever");
        assert_eq!(verify(&mint(b"other@host", 7)), None);
        for at in 0..token.len() {
            let mut forged = token.clone();
            forged[at] = if forged[at] == b'c' { b'd' } else { b'c' };
            assert_eq!(verify(&forged), None, "octet {at}");
            assert_eq!(verify(&token[..at]), None, "length {at}");
        }
        let peer = Some("a.example");
        let named = super::mint(&SECRET, b"call@host", 7, Names { peer, core: None });
        assert_eq!(KnownToken::new(&named, 7), None, "names are read from the token");
        assert_eq!(KnownToken::new(b"", 7), None);
    }

    #[test]
    fn another_call_another_secret_another_name_or_a_changed_octet_is_refused() {
        let token =
            mint(&SECRET, b"call@host", 7, Names { peer: Some("a.example"), core: Some("b.example") });
        assert_eq!(verify(&SECRET, b"other@host", &token, None), None);
        assert_eq!(verify(b"0123456789abcdeX", b"call@host", &token, None), None);
        for at in 0..token.len() {
            let mut forged = token.clone();
            forged[at] = if forged[at] == b'c' { b'd' } else { b'c' };
            assert_eq!(verify(&SECRET, b"call@host", &forged, None), None, "octet {at}");
        }
        for len in 0..token.len() {
            assert_eq!(verify(&SECRET, b"call@host", &token[..len], None), None, "length {len}");
        }
        let moved = mint(&SECRET, b"call@host", 7, Names { peer: None, core: Some("a.example") });
        let forged = [&moved[..TEXT], b"-a.example"].concat();
        assert_eq!(verify(&SECRET, b"call@host", &forged, None), None, "a name that has changed sides");
    }
}
