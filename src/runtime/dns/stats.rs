//! Counters of the resolver: `sbe_dns_queries_total{type,outcome}` and `sbe_dns_cache_total{result}`.

use std::sync::atomic::{AtomicU64, Ordering};

use super::upstream::{Failure, Found};
use crate::location::RecordKind;

/// How the cache served a question (or a whole location at once).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CacheResult {
    /// From what is valid: records, or a whole location.
    Hit,
    /// The servers had to be asked and waited for.
    Miss,
    /// From what had run out, as the servers fail (RFC 8767).
    Stale,
    /// From a valid negative answer, or from a failure held for a second (rule 16).
    Negative,
}

/// Label values of `result`, in the order of [`CacheResult`].
const RESULTS: [&str; 4] = ["hit", "miss", "stale", "negative"];
/// Label values of `type`.
const TYPES: [&str; 4] = ["naptr", "srv", "a", "aaaa"];
/// Label values of `outcome`.
const OUTCOMES: [&str; 10] = [
    "found",
    "nxdomain",
    "nodata",
    "servfail",
    "refused",
    "other",
    "malformed",
    "alias_loop",
    "timeout",
    "busy",
];

/// Counters since the start.
#[derive(Debug, Default)]
pub struct Stats {
    queries: [[AtomicU64; OUTCOMES.len()]; TYPES.len()],
    cache: [AtomicU64; RESULTS.len()],
}

impl Stats {
    pub(super) fn cached(&self, result: CacheResult) {
        if let Some(counter) = self.cache.get(result as usize) {
            counter.fetch_add(1, Ordering::Relaxed);
        }
    }

    pub(super) fn queried(&self, kind: RecordKind, found: &Found) {
        let kind = match kind {
            RecordKind::Naptr => 0,
            RecordKind::Srv => 1,
            RecordKind::A => 2,
            RecordKind::Aaaa => 3,
        };
        let outcome = match found {
            Found::Records(..) => 0,
            Found::NxDomain(_) => 1,
            Found::NoData(_) => 2,
            Found::Failure(Failure::ServFail) => 3,
            Found::Failure(Failure::Refused) => 4,
            Found::Failure(Failure::Other) => 5,
            Found::Failure(Failure::Malformed) => 6,
            Found::Failure(Failure::Aliases) => 7,
            Found::Failure(Failure::Timeout) => 8,
            Found::Failure(Failure::Busy) => 9,
        };
        if let Some(counter) = self.queries.get(kind).and_then(|row| row.get(outcome)) {
            counter.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Questions put to the servers (retries and servers not counted one by one): type, outcome, number.
    pub fn queries(&self) -> impl Iterator<Item = (&'static str, &'static str, u64)> {
        TYPES.iter().zip(&self.queries).flat_map(|(kind, row)| {
            OUTCOMES.iter().zip(row).map(|(outcome, n)| (*kind, *outcome, n.load(Ordering::Relaxed)))
        })
    }

    /// How the cache served: result, number.
    pub fn cache(&self) -> impl Iterator<Item = (&'static str, u64)> {
        RESULTS.iter().zip(&self.cache).map(|(result, n)| (*result, n.load(Ordering::Relaxed)))
    }

    /// All questions put to the servers.
    pub fn total_queries(&self) -> u64 {
        self.queries().map(|(_, _, n)| n).sum()
    }
}
