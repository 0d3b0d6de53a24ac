//! When to try again: 1 s, doubled up to 5 min, give or take a quarter.

use std::time::Duration;

use rand::{Rng, RngExt};

/// The first wait.
pub const FIRST: Duration = Duration::from_secs(1);
/// The longest one.
pub const LONGEST: Duration = Duration::from_secs(300);

/// Failures in a row.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Backoff {
    failures: u32,
}

impl Backoff {
    /// Another failure: how long to wait.
    pub fn fail(&mut self, rng: &mut impl Rng) -> Duration {
        let doubled = FIRST.saturating_mul(1 << self.failures.min(16)).min(LONGEST);
        self.failures = self.failures.saturating_add(1);
        doubled.mul_f64(rng.random_range(0.75..=1.25))
    }

    /// It works again.
    pub const fn reset(&mut self) {
        self.failures = 0;
    }

    /// Failures in a row.
    pub const fn failures(&self) -> u32 {
        self.failures
    }
}
