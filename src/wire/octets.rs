//! Searches that look at many octets at a time: sixteen where the processor has vectors for it
//! (every x86-64 does), else eight in plain integer arithmetic.

use std::ops::Range;

pub(super) use block::Block;

/// Sixteen octets, with the vector instructions that belong to the base of x86-64.
#[cfg(target_arch = "x86_64")]
mod block {
    use std::arch::x86_64::{
        __m128i, _mm_cmpeq_epi8, _mm_min_epu8, _mm_movemask_epi8, _mm_or_si128, _mm_set_epi64x, _mm_set1_epi8,
    };

    /// Octets to be searched.
    #[derive(Clone, Copy)]
    pub(crate) struct Block(__m128i);

    /// All ones in each octet that is a hit.
    #[derive(Clone, Copy)]
    pub(crate) struct Hits(__m128i);

    impl Block {
        /// Octets in a block.
        pub(super) const LEN: usize = 16;

        #[inline(always)]
        pub(super) fn load(octets: &[u8; Self::LEN]) -> Self {
            let both = u128::from_le_bytes(*octets);
            let half = |n: u128| i64::from_le_bytes((n as u64).to_le_bytes());
            Self(_mm_set_epi64x(half(both >> 64), half(both)))
        }

        /// The octets that are `b`.
        #[inline(always)]
        pub(crate) fn equal(self, b: u8) -> Hits {
            Hits(_mm_cmpeq_epi8(self.0, _mm_set1_epi8(b.cast_signed())))
        }

        /// The octets up to `b`.
        #[inline(always)]
        pub(crate) fn up_to(self, b: u8) -> Hits {
            Hits(_mm_cmpeq_epi8(_mm_min_epu8(self.0, _mm_set1_epi8(b.cast_signed())), self.0))
        }
    }

    impl Hits {
        /// Those of both.
        #[inline(always)]
        pub(crate) fn or(self, other: Hits) -> Hits {
            Hits(_mm_or_si128(self.0, other.0))
        }

        /// The first one.
        #[inline(always)]
        pub(super) fn first(self) -> Option<usize> {
            let mask = _mm_movemask_epi8(self.0);
            (mask != 0).then(|| mask.trailing_zeros() as usize)
        }
    }
}

/// Eight octets in one integer.
#[cfg(not(target_arch = "x86_64"))]
mod block {
    const ONES: u64 = 0x0101_0101_0101_0101;
    const TOPS: u64 = 0x8080_8080_8080_8080;

    /// Octets to be searched.
    #[derive(Clone, Copy)]
    pub(crate) struct Block(u64);

    /// The top bit of each octet that is a hit. Octets above the first hit may be marked wrongly (a
    /// borrow runs upwards); the first one never is, and that is all that is asked for.
    #[derive(Clone, Copy)]
    pub(crate) struct Hits(u64);

    impl Block {
        /// Octets in a block.
        pub(super) const LEN: usize = 8;

        pub(super) fn load(octets: &[u8; Self::LEN]) -> Self {
            Self(u64::from_le_bytes(*octets))
        }

        /// The octets that are `b`.
        pub(crate) fn equal(self, b: u8) -> Hits {
            let zero = self.0 ^ ONES.wrapping_mul(u64::from(b));
            Hits(zero.wrapping_sub(ONES) & !zero & TOPS)
        }

        /// The octets up to `b`, which is below 127.
        pub(crate) fn up_to(self, b: u8) -> Hits {
            Hits(self.0.wrapping_sub(ONES.wrapping_mul(u64::from(b) + 1)) & !self.0 & TOPS)
        }
    }

    impl Hits {
        /// Those of both.
        pub(crate) fn or(self, other: Hits) -> Hits {
            Hits(self.0 | other.0)
        }

        /// The first one.
        pub(super) fn first(self) -> Option<usize> {
            (self.0 != 0).then(|| (self.0.trailing_zeros() / 8) as usize)
        }
    }
}

/// The first hit in `bytes[range]`; both ends may lie beyond the octets.
#[inline(always)]
pub(super) fn find(bytes: &[u8], range: Range<usize>, hits: impl Fn(Block) -> block::Hits) -> Option<usize> {
    let end = range.end.min(bytes.len());
    let mut at = range.start;
    while at < end {
        let rest = bytes.get(at..)?;
        let found = match rest.first_chunk() {
            Some(octets) => hits(Block::load(octets)).first(),
            None => hits(Block::load(&last_octets(rest))).first(),
        };
        if let Some(place) = found {
            return (at + place < end).then_some(at + place);
        }
        at += Block::LEN;
    }
    None
}

/// Less than a block; what is missing is zero, and lies beyond the end.
#[inline]
fn last_octets(rest: &[u8]) -> [u8; Block::LEN] {
    let mut octets = [0; Block::LEN];
    for (to, from) in octets.iter_mut().zip(rest) {
        *to = *from;
    }
    octets
}

/// Where `b` stands first in `bytes[range]`.
#[inline]
pub(super) fn find_octet(bytes: &[u8], range: Range<usize>, b: u8) -> Option<usize> {
    find(bytes, range, |block| block.equal(b))
}

/// The first control octet (HTAB too) or DEL in `bytes[range]`.
#[inline]
pub(super) fn find_control(bytes: &[u8], range: Range<usize>) -> Option<usize> {
    find(bytes, range, |block| block.up_to(0x1f).or(block.equal(0x7f)))
}

/// True if `bytes[range]` holds neither white space, nor control octets, nor quotes: parameters
/// can then be told apart by semicolons alone.
#[inline]
pub(super) fn is_plain(bytes: &[u8], range: Range<usize>) -> bool {
    find(bytes, range, |block| block.up_to(b' ').or(block.equal(b'"'))).is_none()
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
