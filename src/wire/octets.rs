//! Searches that look at sixteen octets at a time.
//!
//! Written so that the compiler makes vector code of it: a test of one octet without a branch, over
//! an array of fixed length.

use std::ops::Range;

const BLOCK: usize = 16;

/// Whether a block holds any hit.
#[inline(always)]
fn any_hit(octets: &[u8; BLOCK], hit: impl Fn(u8) -> bool) -> bool {
    octets.iter().fold(false, |any, octet| any | hit(*octet))
}

/// The first hit of a block that holds one.
#[inline(always)]
fn first_hit(octets: &[u8; BLOCK], hit: impl Fn(u8) -> bool) -> usize {
    let mut marks = [0u8; BLOCK];
    for (mark, octet) in marks.iter_mut().zip(octets) {
        *mark = if hit(*octet) { 0xff } else { 0 };
    }
    (u128::from_le_bytes(marks).trailing_zeros() / 8) as usize
}

/// The first hit in `bytes[range]`; the end may lie beyond the octets. `hit` should not branch.
#[inline(always)]
pub(super) fn find(bytes: &[u8], range: Range<usize>, hit: impl Fn(u8) -> bool) -> Option<usize> {
    let end = range.end.min(bytes.len());
    let mut at = range.start;
    while at < end {
        let Some(block) = bytes.get(at..)?.first_chunk() else {
            return bytes.get(at..end)?.iter().position(|&b| hit(b)).map(|n| at + n);
        };
        if any_hit(block, &hit) {
            // A block may reach beyond the range.
            return Some(at + first_hit(block, &hit)).filter(|&place| place < end);
        }
        at += BLOCK;
    }
    None
}

/// Where `b` stands first in `bytes[range]`.
#[inline]
pub(super) fn find_octet(bytes: &[u8], range: Range<usize>, b: u8) -> Option<usize> {
    find(bytes, range, |octet| octet == b)
}

/// The first control octet (HTAB too) or DEL in `bytes[range]`.
#[inline]
pub(super) fn find_control(bytes: &[u8], range: Range<usize>) -> Option<usize> {
    find(bytes, range, |b| (b < 0x20) | (b == 0x7f))
}

/// True if `bytes[range]` holds neither white space, nor control octets, nor quotes: parameters
/// can then be told apart by semicolons alone.
#[inline]
pub(super) fn is_plain(bytes: &[u8], range: Range<usize>) -> bool {
    find(bytes, range, |b| (b <= b' ') | (b == b'"')).is_none()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_search_finds_what_an_octet_search_finds() {
        let mut bytes = [b'a'; 40];
        for (place, octet) in [(3, 0x00), (9, 0x1f), (17, b'\t'), (24, 0x7f), (31, b'"'), (39, b' ')] {
            bytes[place] = octet;
        }
        for b in [0x7f, b'"', b' ', b'a', b'z', 0xff] {
            for start in 0..=40 {
                for end in start..=44 {
                    let want = (start..end.min(40)).find(|i| bytes[*i] == b);
                    assert_eq!(find_octet(&bytes, start..end, b), want, "{b} in {start}..{end}");
                }
            }
        }
        for start in 0..=40 {
            let want = (start..40).find(|i| bytes[*i] < 0x20 || bytes[*i] == 0x7f);
            assert_eq!(find_control(&bytes, start..40), want, "from {start}");
        }
        assert!(is_plain(&bytes, 4..9) && !is_plain(&bytes, 32..40) && !is_plain(&bytes, 25..33));
        // Octets above 127 are none of these, wherever they stand.
        let high: Vec<u8> = (0x80..=0xff).collect();
        assert!(is_plain(&high, 0..high.len()) && find_control(&high, 0..high.len()).is_none());
    }
}
