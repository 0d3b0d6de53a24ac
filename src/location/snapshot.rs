//! What is known of the costs towards addresses at one moment (RFC 7285), as one immutable value.
//!
//! The ALTO client makes it, the ranking reads it. Costs order what the DNS and the policy found; they never add or
//! remove a candidate.

use std::collections::HashMap;
use std::net::IpAddr;
use std::time::Instant;

use smallvec::SmallVec;

/// How costs compare (RFC 7285 §6.1.2).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum CostMode {
    /// Numbers: comparable over the answers of one resource, ratios included.
    #[default]
    Numerical,
    /// Ranks: comparable only within one answer (RFC 7285 §6.2).
    Ordinal,
}

/// Where a cost comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CostOrigin {
    /// Endpoint Cost Service (RFC 7285 §11.5).
    Endpoint,
    /// A matching pair of network map and cost map (RFC 7285 §11.2).
    Maps,
    /// A file of the operator's.
    File,
    /// `[[alto.override]]`
    Override,
}

impl CostOrigin {
    /// A fixed word for records.
    pub const fn label(self) -> &'static str {
        match self {
            CostOrigin::Endpoint => "endpoint_cost",
            CostOrigin::Maps => "maps",
            CostOrigin::File => "file",
            CostOrigin::Override => "override",
        }
    }
}

/// The cost of one address.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Cost {
    /// The value as received; finite and not negative.
    pub value: f64,
    /// The answer that it came with: grows with each fresh answer, equal for all costs of one answer. A 304 that
    /// confirms an answer counts as a fresh one.
    pub answer: u64,
    /// When that answer came.
    pub fetched: Instant,
    /// The end of its lifetime.
    pub fresh_until: Instant,
    /// Not used from then on.
    pub usable_until: Instant,
    /// Whose word it is.
    pub origin: CostOrigin,
}

/// All costs known.
#[derive(Clone, Debug, Default)]
pub struct CostSnapshot {
    /// Grows with each snapshot.
    pub serial: u64,
    /// How values compare.
    pub mode: CostMode,
    /// A larger value is the better one (`tput`, `bw-residual`, `bw-available`; RFC 9439).
    pub higher_is_better: bool,
    /// Numbers: one for each address. Ranks: one for each answer that it has a rank in, by answer, since an address may
    /// be in several sets that were asked for.
    costs: HashMap<IpAddr, SmallVec<[Cost; 1]>, ahash::RandomState>,
    /// Number of addresses in each answer.
    sizes: HashMap<u64, usize, ahash::RandomState>,
}

impl CostSnapshot {
    /// Nothing known.
    pub fn new(serial: u64, mode: CostMode, higher_is_better: bool) -> Self {
        Self { serial, mode, higher_is_better, ..Self::default() }
    }

    /// Puts the cost of an address in, in place of an earlier one; of ranks, in place of an earlier one in the same
    /// answer.
    pub fn insert(&mut self, addr: IpAddr, cost: Cost) {
        let known = self.costs.entry(addr.to_canonical()).or_default();
        let place = match self.mode {
            CostMode::Numerical => {
                if known.is_empty() {
                    Err(0)
                } else {
                    Ok(0)
                }
            }
            CostMode::Ordinal => known.binary_search_by_key(&cost.answer, |c| c.answer),
        };
        match place.map(|at| known.get_mut(at)) {
            Ok(Some(same)) => {
                if let Some(size) = self.sizes.get_mut(&same.answer) {
                    *size -= 1;
                }
                *same = cost;
            }
            Ok(None) => known.push(cost),
            Err(at) => known.insert(at, cost),
        }
        *self.sizes.entry(cost.answer).or_default() += 1;
    }

    /// The cost of an address, if there is one that may be used now; of several ranks that of the latest answer.
    pub fn cost(&self, addr: &IpAddr, now: Instant) -> Option<&Cost> {
        self.usable(addr, now).next_back()
    }

    /// The rank of an address in one answer.
    pub fn rank(&self, addr: &IpAddr, answer: u64, now: Instant) -> Option<&Cost> {
        self.usable(addr, now).find(|c| c.answer == answer)
    }

    fn usable(&self, addr: &IpAddr, now: Instant) -> impl DoubleEndedIterator<Item = &Cost> {
        self.costs.get(&addr.to_canonical()).into_iter().flatten().filter(move |c| now < c.usable_until)
    }

    /// The answer to be used for a set whose ranks are compared with each other (RFC 7285 §6.2): the one with ranks for
    /// most of it, of several the one that says least of others, which is that to the question for this very set; of
    /// several, the latest.
    pub fn answer_for(&self, addrs: &[IpAddr], now: Instant) -> Option<u64> {
        let mut counts: HashMap<u64, usize, ahash::RandomState> = HashMap::default();
        for cost in addrs.iter().flat_map(|a| self.usable(a, now)) {
            *counts.entry(cost.answer).or_default() += 1;
        }
        let size = |answer: &u64| self.sizes.get(answer).copied().unwrap_or(0);
        let best = counts.iter().max_by_key(|(answer, n)| (**n, std::cmp::Reverse(size(answer)), **answer));
        best.map(|(answer, _)| *answer)
    }

    /// Number of addresses with a cost.
    pub fn len(&self) -> usize {
        self.costs.len()
    }

    /// True if no cost is known.
    pub fn is_empty(&self) -> bool {
        self.costs.is_empty()
    }

    /// All of them, by address; of ranks all answers' by turns.
    pub fn sorted(&self) -> Vec<(IpAddr, Cost)> {
        let mut all: Vec<_> = self.costs.iter().flat_map(|(a, list)| list.iter().map(|c| (*a, *c))).collect();
        all.sort_unstable_by_key(|(a, c)| (*a, c.answer));
        all
    }
}
