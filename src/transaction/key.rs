//! How a message finds its transaction: our own branches, and the keys of server transactions
//! (RFC 3261 §17.1.3, §17.2.3).

use std::fmt;
use std::hash::{BuildHasher, Hash, Hasher};

use ahash::{AHasher, RandomState};

/// What a branch of RFC 3261 begins with (§8.1.1.7).
pub const MAGIC_COOKIE: &[u8; 7] = b"z9hG4bK";

const HEX: &[u8; 16] = b"0123456789abcdef";
/// shard, slot, generation, random, loop hash.
const PAYLOAD: usize = 2 + 4 + 4 + 8 + 4;

/// A branch parameter of ours: the cookie, then what [`BranchParts`] holds in lower-case hex.
///
/// It names the slot of its client transaction, so that a response is matched without a table
/// (§17.1.3; the shard compares generation and random number), and carries the hash by which a
/// loop is seen (§16.3 step 4, §16.6 step 8).
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Branch([u8; Branch::LEN]);

/// What is written into a [`Branch`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BranchParts {
    /// The shard that owns the transaction.
    pub shard: u16,
    /// Its place in the shard's table.
    pub slot: u32,
    /// How often the place had been used before.
    pub generation: u32,
    /// Not to be guessed: proves that a response was sent by somebody who saw the request.
    pub random: u64,
    /// [`loop_hash`] of the request as received.
    pub loop_hash: u32,
}

impl Branch {
    /// Octets of every branch of ours.
    pub const LEN: usize = MAGIC_COOKIE.len() + 2 * PAYLOAD;

    /// Writes a new branch. `random` must come from a generator that nobody can predict.
    pub fn mint(shard: u16, slot: u32, generation: u32, random: u64, loop_hash: u32) -> Self {
        let mut branch = [b'0'; Self::LEN];
        let (cookie, text) = branch.split_at_mut(MAGIC_COOKIE.len());
        cookie.copy_from_slice(MAGIC_COOKIE);
        let (head, tail) = text.split_at_mut(20);
        let (mid, tail) = tail.split_at_mut(16);
        let place = u128::from(shard) << 64 | u128::from(slot) << 32 | u128::from(generation);
        put_hex(head, place);
        put_hex(mid, u128::from(random));
        put_hex(tail, u128::from(loop_hash));
        Self(branch)
    }

    /// As written into a Via.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// As text; always ASCII.
    pub fn as_str(&self) -> &str {
        str::from_utf8(&self.0).unwrap_or_default()
    }

    /// The shard that a branch names, if it is one of ours.
    pub fn shard_of(branch: &[u8]) -> Option<u16> {
        let (cookie, hex) = branch.split_first_chunk::<{ MAGIC_COOKIE.len() }>()?;
        if !cookie.eq_ignore_ascii_case(MAGIC_COOKIE) {
            return None;
        }
        four_digits(*hex.first_chunk()?)
    }

    /// Reads a branch of ours, in either case (§7.3.1). `None` for anything that is not one by its
    /// form; that it is one in truth, only the transaction's own random number shows.
    pub fn parse(branch: &[u8]) -> Option<BranchParts> {
        let (cookie, hex) = branch.split_first_chunk::<{ MAGIC_COOKIE.len() }>()?;
        let (shard, rest) = hex.split_first_chunk::<4>()?;
        let ([slot, generation, high, low, hash], []) = rest.as_chunks::<8>() else { return None };
        if !cookie.eq_ignore_ascii_case(MAGIC_COOKIE) {
            return None;
        }
        Some(BranchParts {
            shard: four_digits(*shard)?,
            slot: eight_digits(*slot)? as u32,
            generation: eight_digits(*generation)? as u32,
            random: eight_digits(*high)? << 32 | eight_digits(*low)?,
            loop_hash: eight_digits(*hash)? as u32,
        })
    }
}

impl fmt::Debug for Branch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl fmt::Display for Branch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Fills `text` with the last digits of `value`.
fn put_hex(text: &mut [u8], mut value: u128) {
    for pair in text.rchunks_exact_mut(2) {
        let octet = usize::try_from(value & 0xff).unwrap_or(0);
        if let ([high, low], Some(digits)) = (pair, HEX_PAIRS.get(octet)) {
            [*high, *low] = *digits;
        }
        value >>= 8;
    }
}

/// Both digits of every octet.
const HEX_PAIRS: [[u8; 2]; 256] = {
    let mut pairs = [[0; 2]; 256];
    let mut i = 0;
    while i < 256 {
        pairs[i] = [HEX[i >> 4], HEX[i & 15]];
        i += 1;
    }
    pairs
};

/// The number that four hexadecimal digits, in either case, stand for.
fn four_digits([a, b, c, d]: [u8; 4]) -> Option<u16> {
    Some(eight_digits([b'0', b'0', b'0', b'0', a, b, c, d])? as u16)
}

/// Eight octets with capital letters made small.
const fn lower(octets: u64) -> u64 {
    const EACH: u64 = 0x0101_0101_0101_0101;
    const HIGH: u64 = 0x80 * EACH;
    let ascii = octets & !HIGH;
    // In every octet, with its highest bit clear, a sum reaches that bit from a certain octet on.
    let from_a = ascii + EACH * (0x80 - b'A' as u64);
    let beyond_z = ascii + EACH * (0x7f - b'Z' as u64);
    octets | (from_a & !beyond_z & !octets & HIGH) >> 2
}

/// The number that eight hexadecimal digits stand for.
#[inline]
fn eight_digits(digits: [u8; 8]) -> Option<u64> {
    const EACH: u64 = 0x0101_0101_0101_0101;
    const HIGH: u64 = 0x80 * EACH;
    let text = u64::from_be_bytes(digits);
    // In every octet, with its highest bit clear, a sum reaches that bit from a certain octet on.
    let from = |octets: u64, least: u8| octets + EACH * u64::from(0x80 - least);
    let lower = text | (0x20 * EACH);
    let numeral = from(text & !HIGH, b'0') & !from(text & !HIGH, b'9' + 1);
    let letter = from(lower & !HIGH, b'a') & !from(lower & !HIGH, b'f' + 1);
    if text & HIGH != 0 || (numeral | letter) & HIGH != HIGH {
        return None;
    }
    // The low four bits, and nine more for a letter; then neighbours are put together.
    let nibbles = (text & (0x0f * EACH)) + 9 * ((letter >> 7) & EACH);
    let pairs = (nibbles | nibbles >> 4) & 0x00ff_00ff_00ff_00ff;
    let quads = (pairs | pairs >> 8) & 0x0000_ffff_0000_ffff;
    Some((quads | quads >> 16) & 0xffff_ffff)
}

/// True for a branch made by the rules of RFC 3261: the cookie with something after it. The bare
/// cookie names no transaction and is treated as none.
pub fn is_rfc3261_branch(branch: &[u8]) -> bool {
    branch
        .split_first_chunk::<{ MAGIC_COOKIE.len() }>()
        .is_some_and(|(cookie, rest)| !rest.is_empty() && cookie.eq_ignore_ascii_case(MAGIC_COOKIE))
}

/// A keyed hash over what decides where a request goes (§16.6 step 8: Request-URI as received, Route,
/// To tag, From tag, Call-ID, CSeq number, Proxy-Require, Proxy-Authorization, …).
///
/// The core puts the hash of the request as received into the branch it sends; a request that comes
/// back with a Via of ours whose branch carries the very hash that it would get now has looped, with
/// another it spirals. Only the parts and their order count, not where they came from.
pub fn loop_hash(secret: &[u64; 2], parts: &[&[u8]]) -> u32 {
    let mut hash = LoopSecret::new(secret).begin();
    for part in parts {
        hash.part(part);
    }
    hash.finish()
}

/// The secret behind [`loop_hash`].
#[derive(Clone, Debug)]
pub struct LoopSecret(RandomState);

impl LoopSecret {
    /// From random numbers drawn once, at start.
    pub fn new(secret: &[u64; 2]) -> Self {
        let [a, b] = *secret;
        // Four seeds from two: the constants only keep the halves apart.
        Self(RandomState::with_seeds(a, b, a.rotate_left(32) ^ 0x6c6f_6f70, !b))
    }

    /// Begins a [`loop_hash`], of no part so far.
    pub fn begin(&self) -> LoopHash {
        LoopHash(self.0.build_hasher())
    }
}

/// A [`loop_hash`] that is being made.
#[derive(Clone, Debug)]
pub struct LoopHash(AHasher);

impl LoopHash {
    /// Adds a part. The hasher mixes in the length of what is written at once, so that parts keep their borders.
    pub fn part(&mut self, part: &[u8]) {
        self.0.write(part);
    }

    /// The hash.
    pub fn finish(self) -> u32 {
        let hash = self.0.finish();
        (hash >> 32) as u32 ^ (hash & 0xffff_ffff) as u32
    }
}

/// The secrets behind [`ServerKey`]: without them nobody can make two requests collide.
#[derive(Clone, Debug)]
pub struct KeySecrets {
    high: RandomState,
    low: RandomState,
}

impl KeySecrets {
    /// From random numbers drawn once, at start.
    pub fn new(seeds: [u64; 8]) -> Self {
        let [a, b, c, d, e, f, g, h] = seeds;
        Self { high: RandomState::with_seeds(a, b, c, d), low: RandomState::with_seeds(e, f, g, h) }
    }
}

/// What of a request decides which server transaction it belongs to. All of it as received.
#[derive(Clone, Copy, Debug)]
pub struct ServerKeyParts<'a> {
    /// The branch of the topmost Via.
    pub branch: Option<&'a [u8]>,
    /// Host of the topmost Via's sent-by.
    pub sent_by_host: &'a [u8],
    /// Its port; 0: none given.
    pub sent_by_port: u16,
    /// The method of the request line.
    pub method: &'a [u8],
    /// The Request-URI.
    pub request_uri: &'a [u8],
    /// The tag of To.
    pub to_tag: Option<&'a [u8]>,
    /// The tag of From.
    pub from_tag: Option<&'a [u8]>,
    /// Call-ID.
    pub call_id: &'a [u8],
    /// The number of CSeq.
    pub cseq: u32,
    /// The value of the topmost Via.
    pub top_via: &'a [u8],
}

/// The key of a server transaction: a keyed hash, wide enough to stand for what was hashed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ServerKey {
    high: u64,
    low: u64,
}

impl Hash for ServerKey {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.low);
    }
}

impl ServerKey {
    /// 64 bits of it: enough to find a place in a table, not to stand for the whole.
    pub fn short(self) -> u64 {
        self.low
    }

    /// The key of the transaction that this request belongs to (§17.2.3). An ACK has that of its
    /// INVITE; a CANCEL has one of its own.
    ///
    /// A branch of RFC 3261 counts with sent-by and method, without case. Else the rules for
    /// RFC 2543: Request-URI, tags, Call-ID, CSeq number and topmost Via. There the To tag is left
    /// out for INVITE, ACK and CANCEL, as the ACK has a tag that the INVITE had not.
    pub fn of(secrets: &KeySecrets, parts: &ServerKeyParts<'_>) -> Self {
        let method: &[u8] = if parts.method == b"ACK" { b"INVITE" } else { parts.method };
        Self::with_method(secrets, parts, method)
    }

    /// The same for a branch of RFC 3261, which needs less: the branch, the host and port of sent-by, and the method.
    pub fn of_branch(secrets: &KeySecrets, branch: &[u8], host: &[u8], port: u16, method: &[u8]) -> Self {
        let method: &[u8] = if method == b"ACK" { b"INVITE" } else { method };
        Self::by_branch(secrets, branch, host, port, method)
    }

    fn by_branch(secrets: &KeySecrets, branch: &[u8], host: &[u8], port: u16, method: &[u8]) -> Self {
        let mut hash = Hash128::new(secrets);
        // The cookie is in all of them.
        let branch = branch.get(MAGIC_COOKIE.len()..).unwrap_or_default();
        hash.number(u64::from(port) << 16 | 1);
        hash.caseless(branch);
        hash.caseless(host);
        hash.exact(method);
        hash.finish()
    }

    /// For a CANCEL: the key of the INVITE that it is to cancel (§9.2).
    pub fn of_cancelled_invite(secrets: &KeySecrets, cancel: &ServerKeyParts<'_>) -> Self {
        Self::with_method(secrets, cancel, b"INVITE")
    }

    fn with_method(secrets: &KeySecrets, parts: &ServerKeyParts<'_>, method: &[u8]) -> Self {
        if let Some(branch) = parts.branch.filter(|b| is_rfc3261_branch(b)) {
            return Self::by_branch(secrets, branch, parts.sent_by_host, parts.sent_by_port, method);
        }
        let mut hash = Hash128::new(secrets);
        hash.number(2);
        hash.exact(method);
        hash.exact(parts.request_uri);
        if !matches!(method, b"INVITE" | b"CANCEL") {
            hash.optional(parts.to_tag);
        }
        hash.optional(parts.from_tag);
        hash.exact(parts.call_id);
        hash.number(u64::from(parts.cseq));
        hash.exact(parts.top_via);
        hash.finish()
    }
}

/// Two hashers fed with the same. Every part goes in behind its length, so that no two lists of parts look alike.
struct Hash128 {
    high: AHasher,
    low: AHasher,
}

impl Hash128 {
    fn new(secrets: &KeySecrets) -> Self {
        Self { high: secrets.high.build_hasher(), low: secrets.low.build_hasher() }
    }

    fn number(&mut self, n: u64) {
        self.high.write_u64(n);
        self.low.write_u64(n);
    }

    fn exact(&mut self, part: &[u8]) {
        self.number(u64::try_from(part.len()).unwrap_or(u64::MAX));
        self.high.write(part);
        self.low.write(part);
    }

    fn optional(&mut self, part: Option<&[u8]>) {
        self.number(u64::from(part.is_some()));
        self.exact(part.unwrap_or_default());
    }

    /// In lower case, sixteen octets at a time.
    fn caseless(&mut self, part: &[u8]) {
        self.number(u64::try_from(part.len()).unwrap_or(u64::MAX));
        let (whole, rest) = part.as_chunks::<16>();
        for octets in whole {
            self.block(*octets);
        }
        if rest.is_empty() {
            return;
        }
        // The last sixteen, some of them once more; the length says which.
        let last = part.last_chunk::<16>().copied().unwrap_or_else(|| {
            let mut octets = [0; 16];
            if let Some(place) = octets.get_mut(..rest.len()) {
                place.copy_from_slice(rest);
            }
            octets
        });
        self.block(last);
    }

    fn block(&mut self, octets: [u8; 16]) {
        let n = u128::from_le_bytes(octets);
        let [high, low] = [n >> 64, n & u128::from(u64::MAX)].map(|half| lower(half as u64));
        let n = u128::from(high) << 64 | u128::from(low);
        self.high.write_u128(n);
        self.low.write_u128(n);
    }

    fn finish(self) -> ServerKey {
        ServerKey { high: self.high.finish(), low: self.low.finish() }
    }
}

/// For tables whose keys are keyed hashes: of these nobody can make many that meet, as they are.
#[derive(Clone, Copy, Debug, Default)]
pub struct Hashed(u64);

impl BuildHasher for Hashed {
    type Hasher = Self;

    fn build_hasher(&self) -> Self {
        Self(0)
    }
}

impl Hasher for Hashed {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for octet in bytes {
            self.0 = self.0.rotate_left(8) ^ u64::from(*octet);
        }
    }

    fn write_u64(&mut self, n: u64) {
        self.0 ^= n;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hexadecimal_digits_of_either_case_are_read_and_nothing_else_is() {
        for at in 0..8 {
            for octet in 0..=255u8 {
                let mut text = *b"0aF39bCd";
                text[at] = octet;
                let want = std::str::from_utf8(&text)
                    .ok()
                    .filter(|t| t.bytes().all(|b| b.is_ascii_hexdigit()))
                    .and_then(|t| u64::from_str_radix(t, 16).ok());
                assert_eq!(eight_digits(text), want, "{octet} at {at}");
            }
        }
        assert_eq!((four_digits(*b"0aFf"), four_digits(*b"0a+f")), (Some(0xaff), None));
    }

    #[test]
    fn capital_letters_are_made_small_and_nothing_else_is_changed() {
        for octet in 0..=255u8 {
            for at in 0..8 {
                let mut text = *b"aZ9[@z\xffA";
                text[at] = octet;
                let want = text.map(|octet| octet.to_ascii_lowercase());
                assert_eq!(lower(u64::from_le_bytes(text)).to_le_bytes(), want, "{octet} at {at}");
            }
        }
    }
}
