//! Searches that look at sixteen octets at a time.
//!
//! A [`Block`] is tested as a whole and tells by a bit each which of its octets are meant. On x86-64 that
//! is two or three instructions of SSE2, which every such processor has; elsewhere a loop that
//! compilers turn into something similar.

use std::ops::Range;

/// Octets in a block.
pub(super) const BLOCK: usize = 16;

#[cfg(target_arch = "x86_64")]
mod block {
    use safe_arch::{
        cmp_eq_mask_i8_m128i, load_unaligned_m128i, m128i, min_u8_m128i, move_mask_i8_m128i,
        set_splat_i8_m128i, sub_i8_m128i,
    };
    use std::ops::BitOr;

    /// Sixteen octets of a message.
    #[derive(Clone, Copy)]
    pub(crate) struct Block(m128i);

    /// For each of them whether it is meant.
    #[derive(Clone, Copy)]
    pub(crate) struct Marks(m128i);

    #[inline(always)]
    fn all(b: u8) -> m128i {
        set_splat_i8_m128i(b.cast_signed())
    }

    impl Block {
        #[inline(always)]
        pub(crate) fn new(octets: &[u8; super::BLOCK]) -> Self {
            Self(load_unaligned_m128i(octets))
        }

        /// Those that are the same in `other`.
        #[inline(always)]
        pub(crate) fn as_in(self, other: Self) -> Marks {
            Marks(cmp_eq_mask_i8_m128i(self.0, other.0))
        }

        /// Those equal to `b`.
        #[inline(always)]
        pub(crate) fn is(self, b: u8) -> Marks {
            Marks(cmp_eq_mask_i8_m128i(self.0, all(b)))
        }

        /// Those not above `b`.
        #[inline(always)]
        pub(crate) fn at_most(self, b: u8) -> Marks {
            Marks(cmp_eq_mask_i8_m128i(min_u8_m128i(self.0, all(b)), self.0))
        }

        /// Those from `first` to `last`.
        #[inline(always)]
        pub(crate) fn between(self, first: u8, last: u8) -> Marks {
            Block(sub_i8_m128i(self.0, all(first))).at_most(last - first)
        }

        /// With the bits of `b` set in each.
        #[inline(always)]
        pub(crate) fn with(self, b: u8) -> Self {
            Self(self.0 | all(b))
        }
    }

    impl BitOr for Marks {
        type Output = Self;

        #[inline(always)]
        fn bitor(self, other: Self) -> Self {
            Self(self.0 | other.0)
        }
    }

    impl Marks {
        /// A bit for each octet, the first one's lowest.
        #[inline(always)]
        pub(crate) fn bits(self) -> u32 {
            move_mask_i8_m128i(self.0).cast_unsigned()
        }
    }
}

#[cfg(not(target_arch = "x86_64"))]
mod block {
    use super::portable as block;
    pub(crate) use block::{Block, Marks};
}

/// The same without the processor's help.
#[cfg(any(test, not(target_arch = "x86_64")))]
mod portable {
    use std::ops::BitOr;

    #[derive(Clone, Copy)]
    pub(crate) struct Block([u8; super::BLOCK]);

    #[derive(Clone, Copy)]
    pub(crate) struct Marks(u32);

    impl Block {
        #[inline(always)]
        pub(crate) fn new(octets: &[u8; super::BLOCK]) -> Self {
            Self(*octets)
        }

        #[inline(always)]
        fn marks(self, hit: impl Fn(u8) -> bool) -> Marks {
            Marks(self.0.iter().rev().fold(0, |bits, octet| bits << 1 | u32::from(hit(*octet))))
        }

        #[inline(always)]
        pub(crate) fn as_in(self, other: Self) -> Marks {
            let same = self.0.iter().zip(other.0).rev().map(|(a, b)| *a == b);
            Marks(same.fold(0, |bits, same| bits << 1 | u32::from(same)))
        }

        #[inline(always)]
        pub(crate) fn is(self, b: u8) -> Marks {
            self.marks(|octet| octet == b)
        }

        #[inline(always)]
        pub(crate) fn at_most(self, b: u8) -> Marks {
            self.marks(|octet| octet <= b)
        }

        #[inline(always)]
        pub(crate) fn between(self, first: u8, last: u8) -> Marks {
            self.marks(|octet| octet.wrapping_sub(first) <= last - first)
        }

        #[inline(always)]
        pub(crate) fn with(self, b: u8) -> Self {
            Self(self.0.map(|octet| octet | b))
        }
    }

    impl BitOr for Marks {
        type Output = Self;

        #[inline(always)]
        fn bitor(self, other: Self) -> Self {
            Self(self.0 | other.0)
        }
    }

    impl Marks {
        #[inline(always)]
        pub(crate) fn bits(self) -> u32 {
            self.0
        }
    }
}

pub(super) use block::{Block, Marks};

/// The first hit in `bytes[range]`; the end may lie beyond the octets.
#[inline(always)]
pub(super) fn find(bytes: &[u8], range: Range<usize>, hit: impl Fn(Block) -> Marks) -> Option<usize> {
    let end = range.end.min(bytes.len());
    let mut at = range.start;
    while at < end {
        let bits = match bytes.get(at..).and_then(<[u8]>::first_chunk) {
            Some(block) => hit(Block::new(block)).bits(),
            None => {
                let (block, behind) = last_block(bytes, at);
                hit(Block::new(&block)).bits() >> behind
            }
        };
        if bits != 0 {
            // A block may reach beyond the range.
            return Some(at + bits.trailing_zeros() as usize).filter(|&place| place < end);
        }
        at += BLOCK;
    }
    None
}

/// The first hit in `bytes[range]`, or the range's end where there is none. `None`: not to be told by whole blocks, as
/// the octets end before; look closer, with [`find`].
#[inline(always)]
pub(super) fn seek(bytes: &[u8], range: Range<usize>, hit: impl Fn(Block) -> Marks) -> Option<usize> {
    let mut at = range.start;
    if at >= range.end {
        return Some(range.end);
    }
    let (blocks, _) = bytes.get(at..)?.as_chunks();
    for block in blocks {
        let bits = hit(Block::new(block)).bits();
        if bits != 0 {
            // A block may reach beyond the range.
            return Some((at + bits.trailing_zeros() as usize).min(range.end));
        }
        at += BLOCK;
        if at >= range.end {
            return Some(range.end);
        }
    }
    None
}

/// Fewer octets than a block from `at` to the end: a block that ends with them, and how many octets
/// stand in it before them.
#[inline(never)]
fn last_block(bytes: &[u8], at: usize) -> ([u8; BLOCK], u32) {
    let rest = bytes.get(at..).unwrap_or_default();
    let mut block = [0; BLOCK];
    let behind = BLOCK - rest.len().min(BLOCK);
    match bytes.last_chunk() {
        Some(last) => block = *last,
        None => {
            if let Some(room) = block.get_mut(behind..) {
                room.copy_from_slice(rest);
            }
        }
    }
    (block, u32::try_from(behind).unwrap_or(0))
}

/// Where `b` stands first in `bytes[range]`.
#[inline]
pub(super) fn find_octet(bytes: &[u8], range: Range<usize>, b: u8) -> Option<usize> {
    find(bytes, range, |block| block.is(b))
}

/// True if `bytes[range]` holds neither white space, nor control octets, nor quotes: parameters
/// can then be told apart by semicolons alone.
#[inline]
pub(super) fn is_plain(bytes: &[u8], range: Range<usize>) -> bool {
    find(bytes, range, |block| block.at_most(b' ') | block.is(b'"')).is_none()
}

/// White space of the RFC.
#[inline]
pub(super) fn has_blank(bytes: &[u8], range: Range<usize>) -> bool {
    find(bytes, range, |b| b.is(b' ') | b.is(b'\t') | b.is(b'\r') | b.is(b'\n')).is_some()
}

/// Letters, digits and hyphens: what names of fields and parameters are made of, though tokens may
/// hold more.
#[inline(always)]
fn word(block: Block) -> Marks {
    block.with(0x20).between(b'a', b'z') | block.between(b'0', b'9') | block.is(b'-')
}

/// How many letters, digits and hyphens this block begins with.
#[inline(always)]
pub(super) fn word_len(block: &[u8; BLOCK]) -> usize {
    word(Block::new(block)).bits().trailing_ones() as usize
}

/// How many digits this block begins with.
#[inline(always)]
pub(super) fn digits_len(block: &[u8; BLOCK]) -> usize {
    Block::new(block).between(b'0', b'9').bits().trailing_ones() as usize
}

/// Octets looked at by [`Controls`] at once.
const WINDOW: usize = 4 * BLOCK;

/// The control octets (HTAB and DEL too) of a message, one after the other.
#[derive(Clone, Copy)]
pub(super) struct Controls<'a> {
    bytes: &'a [u8],
    /// Where the window begins.
    base: usize,
    /// A bit for each control octet of the window that is still to come.
    marks: u64,
}

impl<'a> Controls<'a> {
    /// From `at` on.
    pub(super) fn new(bytes: &'a [u8], at: usize) -> Self {
        let mut controls = Self { bytes, base: at, marks: 0 };
        controls.seek(at);
        controls
    }

    /// The message.
    #[inline(always)]
    pub(super) fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// Goes on from `at`.
    pub(super) fn seek(&mut self, at: usize) {
        self.base = at;
        self.marks = controls_in(self.bytes, at);
    }

    #[inline(always)]
    fn advance(&mut self) {
        self.base += WINDOW;
        self.marks = controls_in(self.bytes, self.base);
    }

    /// Where the CR of the next line end stands, if the next two control octets are one. `None`: they
    /// are something else, or there are none; then [`Self::seek`] must tell where to go on.
    #[inline(always)]
    pub(super) fn line_end(&mut self) -> Option<usize> {
        while self.marks == 0 {
            if self.base >= self.bytes.len() {
                return None;
            }
            self.advance();
        }
        let at = self.base + self.marks.trailing_zeros() as usize;
        if self.bytes.get(at..)?.first_chunk()? != b"\r\n" {
            return None;
        }
        self.marks &= self.marks - 1;
        if self.marks == 0 {
            // The LF is the first octet of the next window.
            self.advance();
        }
        // What is lowest now is that LF.
        self.marks &= self.marks.wrapping_sub(1);
        Some(at)
    }
}

/// A bit for each control octet of the window at `at`.
#[inline(always)]
fn controls_in(bytes: &[u8], at: usize) -> u64 {
    match bytes.get(at..).and_then(<[u8]>::first_chunk) {
        Some(window) => controls_of(window),
        None => last_controls(bytes, at),
    }
}

#[inline(always)]
fn controls_of(window: &[u8; WINDOW]) -> u64 {
    let marks = |block: &[u8; BLOCK]| {
        let block = Block::new(block);
        (block.at_most(0x1f) | block.is(0x7f)).bits()
    };
    let (blocks, _) = window.as_chunks();
    let [a, b, c, d] = blocks else { return 0 };
    let (low, high) = (marks(a) | marks(b) << BLOCK, marks(c) | marks(d) << BLOCK);
    u64::from(low) | u64::from(high) << (2 * BLOCK)
}

#[inline(never)]
fn last_controls(bytes: &[u8], at: usize) -> u64 {
    let rest = bytes.get(at..).unwrap_or_default();
    if let Some(window) = bytes.last_chunk() {
        // What stands before `at` is shifted out.
        let behind = u32::try_from(WINDOW - rest.len().min(WINDOW)).unwrap_or(0);
        return controls_of(window).checked_shr(behind).unwrap_or(0);
    }
    let mut window = [b' '; WINDOW];
    if let Some(room) = window.get_mut(..rest.len()) {
        room.copy_from_slice(rest);
    }
    controls_of(&window)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn octets() -> [u8; 40] {
        let mut bytes = [b'a'; 40];
        for (place, octet) in [(3, 0x00), (9, 0x1f), (17, b'\t'), (24, 0x7f), (31, b'"'), (39, b' ')] {
            bytes[place] = octet;
        }
        bytes
    }

    #[test]
    fn a_block_search_finds_what_an_octet_search_finds() {
        let bytes = octets();
        for b in [0x7f, b'"', b' ', b'a', b'z', 0xff] {
            for len in [5, 15, 16, 17, 40] {
                let bytes = &bytes[..len];
                for start in 0..=len {
                    for end in start..=len + 4 {
                        let want = (start..end.min(len)).find(|i| bytes[*i] == b);
                        let sought = seek(bytes, start..end, |block| block.is(b));
                        assert!(sought.is_none_or(|at| at == want.unwrap_or(end)), "{b} in {start}..{end}");
                        assert!(
                            sought.is_some() || start + 4 * BLOCK > len,
                            "{b} in {start}..{end} of {len}"
                        );
                        assert_eq!(find_octet(bytes, start..end, b), want, "{b} in {start}..{end} of {len}");
                    }
                }
            }
        }
        assert!(is_plain(&bytes, 4..9) && !is_plain(&bytes, 32..40) && !is_plain(&bytes, 25..33));
        assert!(has_blank(&bytes, 10..20) && has_blank(&bytes, 30..40) && !has_blank(&bytes, 18..39));
        // Octets above 127 are none of these, wherever they stand.
        let high: Vec<u8> = (0x80..=0xff).collect();
        assert!(is_plain(&high, 0..high.len()) && !has_blank(&high, 0..high.len()));
    }

    #[test]
    fn both_kinds_of_blocks_mark_the_same_octets() {
        for start in 0..=240u8 {
            let octets: [u8; BLOCK] = std::array::from_fn(|i| start.wrapping_add(i as u8));
            let (fast, slow) = (Block::new(&octets), portable::Block::new(&octets));
            for b in 0..=255 {
                assert_eq!(fast.is(b).bits(), slow.is(b).bits(), "{start} {b}");
                assert_eq!(fast.at_most(b).bits(), slow.at_most(b).bits(), "{start} {b}");
                assert_eq!(fast.between(b / 2, b).bits(), slow.between(b / 2, b).bits(), "{start} {b}");
                assert_eq!(fast.with(b).at_most(b'z').bits(), slow.with(b).at_most(b'z').bits());
                let other: [u8; BLOCK] = std::array::from_fn(|i| if i % 3 == 0 { octets[i] } else { b });
                let same = fast.as_in(Block::new(&other)).bits();
                assert_eq!(same, slow.as_in(portable::Block::new(&other)).bits(), "{start} {b}");
                assert_eq!((fast.is(b) | fast.is(9)).bits(), (slow.is(b) | slow.is(9)).bits());
            }
            let of = |b: &u8| b.is_ascii_alphanumeric() || *b == b'-';
            assert_eq!(word_len(&octets), octets.iter().take_while(|b| of(b)).count(), "{start}");
        }
    }

    #[test]
    fn line_ends_are_found_wherever_windows_begin() {
        for before in 0..WINDOW + 2 {
            for between in 0..WINDOW + 2 {
                let text = [vec![b'a'; before], b"\r\n".to_vec(), vec![b'b'; between], b"\r\n\r\n".to_vec()];
                let bytes = text.concat();
                let mut controls = Controls::new(&bytes, 0);
                assert_eq!(controls.line_end(), Some(before));
                assert_eq!(controls.line_end(), Some(before + 2 + between));
                assert_eq!(controls.line_end(), Some(before + 4 + between));
                assert_eq!(controls.line_end(), None);
                controls.seek(before + 2);
                assert_eq!(controls.line_end(), Some(before + 2 + between));
            }
        }
    }

    #[test]
    fn other_control_octets_are_no_line_ends() {
        for odd in [&b"\r"[..], b"\n\r\n", b"\t\r\n", b"\x7f\r\n", b"\0\r\n", b"\r\r\n"] {
            for before in 0..WINDOW + 2 {
                let bytes = [vec![b'a'; before], odd.to_vec()].concat();
                assert_eq!(Controls::new(&bytes, 0).line_end(), None, "{odd:?} after {before}");
            }
        }
    }
}
