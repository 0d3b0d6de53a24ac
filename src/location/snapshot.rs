//! What is known of the costs towards addresses at one moment (RFC 7285), as one immutable value.
//!
//! The ALTO client makes it, the ranking reads it. Costs order what the DNS and the policy found; they never add or
//! remove a candidate.

use std::collections::HashMap;
use std::net::IpAddr;
use std::time::Instant;

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
    costs: HashMap<IpAddr, Cost, ahash::RandomState>,
}

impl CostSnapshot {
    /// Nothing known.
    pub fn new(serial: u64, mode: CostMode, higher_is_better: bool) -> Self {
        Self { serial, mode, higher_is_better, costs: HashMap::default() }
    }

    /// Puts the cost of an address in, in place of an earlier one.
    pub fn insert(&mut self, addr: IpAddr, cost: Cost) {
        self.costs.insert(addr.to_canonical(), cost);
    }

    /// The cost of an address, if there is one that may be used now.
    pub fn cost(&self, addr: &IpAddr, now: Instant) -> Option<&Cost> {
        self.costs.get(&addr.to_canonical()).filter(|c| now < c.usable_until)
    }

    /// Number of addresses with a cost.
    pub fn len(&self) -> usize {
        self.costs.len()
    }

    /// True if no cost is known.
    pub fn is_empty(&self) -> bool {
        self.costs.is_empty()
    }

    /// All of them, by address.
    pub fn sorted(&self) -> Vec<(IpAddr, Cost)> {
        let mut all: Vec<_> = self.costs.iter().map(|(a, c)| (*a, *c)).collect();
        all.sort_unstable_by_key(|(a, _)| *a);
        all
    }
}
