//! Weights to an order (RFC 2782), from a seed: the same seed and list give the same order.

/// How much more a positive weight counts than a zero one of the same tier: RFC 2782 wants zero to
/// have "a very small chance", which we fix at a hundredth of weight 1.
pub(super) const POSITIVE: u64 = 100;

/// One whole when shares of several tiers are joined; large enough that rounding is no bias.
pub(super) const WHOLE: u64 = 1 << 40;

/// How the load of a tier is shared out.
#[derive(Clone, Debug)]
pub(super) struct Shares {
    /// Running sums of the shares, so that a draw is a binary search.
    cumulative: Vec<u64>,
    /// All shares are equal.
    pub uniform: bool,
    /// Not made of the servers' weights alone, which therefore say nothing.
    pub joined: bool,
}

impl Shares {
    /// Exact proportions of the weights; all zero: equal shares.
    pub fn of_weights(weights: impl Iterator<Item = u16> + Clone) -> Self {
        let any = weights.clone().any(|w| w > 0);
        let share = |w: u16| if w == 0 { 1 } else { u64::from(w) * POSITIVE };
        Self::build(weights.map(|w| if any { share(w) } else { 1 }), false)
    }

    /// Equal shares for each part, divided within it by its own.
    pub fn joined<'a>(parts: impl Iterator<Item = &'a Shares>) -> Self {
        let scaled = parts.flat_map(|p| {
            let total = u128::from(p.total().max(1));
            (0..p.cumulative.len()).map(move |i| {
                let share = u128::from(p.get(i)) * u128::from(WHOLE) / total;
                u64::try_from(share).unwrap_or(WHOLE).max(1)
            })
        });
        Self::build(scaled, true)
    }

    /// Shares as they are, of which the servers' weights say nothing; each is at least 1.
    pub fn of_values(shares: impl Iterator<Item = u64>) -> Self {
        Self::build(shares.map(|s| s.max(1)), true)
    }

    fn build(shares: impl Iterator<Item = u64>, joined: bool) -> Self {
        let (mut sum, mut first, mut uniform) = (0u64, None, true);
        let cumulative = shares
            .map(|s| {
                uniform &= *first.get_or_insert(s) == s;
                sum = sum.saturating_add(s);
                sum
            })
            .collect();
        Self { cumulative, uniform, joined }
    }

    /// The share of one.
    pub fn get(&self, index: usize) -> u64 {
        let before = index.checked_sub(1).and_then(|i| self.cumulative.get(i)).copied().unwrap_or(0);
        self.cumulative.get(index).map_or(0, |upto| upto - before)
    }

    /// All shares together.
    pub fn total(&self) -> u64 {
        self.cumulative.last().copied().unwrap_or(0)
    }

    /// The share of one as a part of 1.0.
    pub fn fraction(&self, index: usize) -> f64 {
        if self.total() == 0 { 0.0 } else { self.get(index) as f64 / self.total() as f64 }
    }

    /// Whose share the point `x` of `0..total` lies in.
    pub fn at(&self, x: u64) -> usize {
        self.cumulative.partition_point(|upto| *upto <= x)
    }
}

/// Well-mixed bits of two numbers (the finaliser of SplitMix64, twice).
pub(super) fn mix(a: u64, b: u64) -> u64 {
    finalise(finalise(a ^ 0x9e37_79b9_7f4a_7c15).wrapping_add(b).wrapping_add(0x9e37_79b9_7f4a_7c15))
}

fn finalise(mut x: u64) -> u64 {
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// A stable number for a few octet strings (FNV-1a, mixed).
pub(super) fn identity(parts: &[&[u8]]) -> u64 {
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    for part in parts {
        for octet in *part {
            hash = (hash ^ u64::from(*octet)).wrapping_mul(0x0100_0000_01b3);
        }
        // A mark between the parts, outside the range of octets.
        hash = (hash ^ 0x1ff).wrapping_mul(0x0100_0000_01b3);
    }
    finalise(hash)
}

/// A number of `0..below` from random bits; 0 if `below` is 0. The bias is below 2^-20 for every
/// total that can occur.
pub(super) fn below(bits: u64, below: u64) -> u64 {
    u64::try_from((u128::from(bits) * u128::from(below)) >> 64).unwrap_or(0)
}

/// A number of 0.0 to 1.0 from random bits.
pub(super) fn unit(bits: u64) -> f64 {
    (bits >> 11) as f64 / 9_007_199_254_740_992.0
}

/// The score of a server in a weighted rendezvous: the lowest one wins, and each server's score
/// depends on nothing but itself, so that nobody else's coming and going moves a request away from
/// it. With u uniform, -ln(u)/share is exponential with rate `share`: the chance to be the lowest is
/// exactly share/total, and taking them in rising order is the weighted draw without replacement.
pub(super) fn score(seed: u64, id: u64, share: u64, uniform: bool) -> f64 {
    // 53 bits, moved off zero: the logarithm is finite.
    let u = ((mix(seed, id) >> 11) as f64 + 0.5) / 9_007_199_254_740_992.0;
    // The logarithm is monotone: equal shares need none.
    if uniform { 1.0 - u } else { -u.ln() / share as f64 }
}

/// A small set of indices: no allocation up to 64.
#[derive(Clone, Debug, Default)]
pub(super) struct Bits {
    low: u64,
    /// Those from 64 on.
    more: Vec<u64>,
}

impl Bits {
    /// Whether `index` is in it.
    pub fn has(&self, index: usize) -> bool {
        let word = match index.checked_sub(64) {
            None => self.low,
            Some(beyond) => self.more.get(beyond / 64).copied().unwrap_or(0),
        };
        word & (1 << (index % 64)) != 0
    }

    /// Puts `index` in.
    pub fn set(&mut self, index: usize) {
        let bit = 1 << (index % 64);
        let Some(beyond) = index.checked_sub(64) else {
            self.low |= bit;
            return;
        };
        let word = beyond / 64;
        if self.more.len() <= word {
            self.more.resize(word + 1, 0);
        }
        if let Some(w) = self.more.get_mut(word) {
            *w |= bit;
        }
    }

    /// Empties it.
    pub fn clear(&mut self) {
        self.low = 0;
        self.more.clear();
    }
}
