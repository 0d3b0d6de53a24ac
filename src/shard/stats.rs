//! The counters of a shard: plain numbers, read by the shell when somebody asks.

use std::time::Duration;

use ahash::AHashMap;

use crate::flow::PeerId;
use crate::wire::Method;

/// Upper bounds of the histograms, in microseconds.
pub const BUCKETS: [u64; 16] = [
    100, 250, 500, 1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 100_000, 250_000, 500_000, 1_000_000,
    2_500_000, 5_000_000, 30_000_000,
];

/// A histogram with fixed buckets.
#[derive(Clone, Debug, Default)]
pub struct Histogram {
    /// Observations up to each bound; the last: beyond all.
    pub counts: [u64; BUCKETS.len() + 1],
    /// Sum, in microseconds.
    pub sum: u64,
}

impl Histogram {
    /// Adds one observation.
    pub fn add(&mut self, value: Duration) {
        let micros = u64::try_from(value.as_micros()).unwrap_or(u64::MAX);
        let at = BUCKETS.iter().position(|b| micros <= *b).unwrap_or(BUCKETS.len());
        if let Some(count) = self.counts.get_mut(at) {
            *count += 1;
        }
        self.sum = self.sum.saturating_add(micros);
    }

    /// Adds another one to this.
    pub fn merge(&mut self, other: &Self) {
        for (a, b) in self.counts.iter_mut().zip(&other.counts) {
            *a += b;
        }
        self.sum = self.sum.saturating_add(other.sum);
    }
}

/// Everything counted. All start at 0 with the process.
#[derive(Clone, Debug, Default)]
pub struct Stats {
    /// Requests received, by side and method.
    pub requests: [[u64; Method::ALL.len()]; 3],
    /// Responses received, by side of the transaction's party and status class (index 0: 1xx).
    pub responses: [[u64; 6]; 3],
    /// Responses sent upstream or made here, by side and class.
    pub answers: [[u64; 6]; 3],
    /// Messages dropped, by reason.
    pub dropped: AHashMap<&'static str, u64>,
    /// Requests refused here, by reason.
    pub rejected: AHashMap<&'static str, u64>,
    /// Attempts ended, by peer and outcome.
    pub attempts: AHashMap<(Option<PeerId>, &'static str), u64>,
    /// Failovers, by peer and reason.
    pub failovers: AHashMap<(Option<PeerId>, &'static str), u64>,
    /// Retransmissions received and absorbed.
    pub retransmissions_in: u64,
    /// Retransmissions sent by us.
    pub retransmissions_out: u64,
    /// INVITE received to INVITE sent.
    pub setup: Histogram,
    /// INVITE received to its 2xx.
    pub answer_delay: Histogram,
    /// Calls dropped from the count by age.
    pub calls_aged: u64,
    /// Requests refused because a table is full.
    pub table_full: u64,
}

impl Stats {
    /// Counts a dropped message.
    pub fn drop(&mut self, reason: &'static str) {
        *self.dropped.entry(reason).or_default() += 1;
    }

    /// Adds another shard's to this.
    pub fn merge(&mut self, other: &Self) {
        let sides = |a: &mut [[u64; 6]; 3], b: &[[u64; 6]; 3]| {
            for (a, b) in a.iter_mut().flatten().zip(b.iter().flatten()) {
                *a += b;
            }
        };
        for (a, b) in self.requests.iter_mut().flatten().zip(other.requests.iter().flatten()) {
            *a += b;
        }
        sides(&mut self.responses, &other.responses);
        sides(&mut self.answers, &other.answers);
        for (k, v) in &other.dropped {
            *self.dropped.entry(k).or_default() += v;
        }
        for (k, v) in &other.rejected {
            *self.rejected.entry(k).or_default() += v;
        }
        for (k, v) in &other.attempts {
            *self.attempts.entry(*k).or_default() += v;
        }
        for (k, v) in &other.failovers {
            *self.failovers.entry(*k).or_default() += v;
        }
        self.retransmissions_in += other.retransmissions_in;
        self.retransmissions_out += other.retransmissions_out;
        self.setup.merge(&other.setup);
        self.answer_delay.merge(&other.answer_delay);
        self.calls_aged += other.calls_aged;
        self.table_full += other.table_full;
    }
}
