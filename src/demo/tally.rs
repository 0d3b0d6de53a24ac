//! What became of the calls.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::watch;

use super::caller::Outcome;

/// Failed calls remembered by name.
const NAMED: usize = 10;

/// The numbers so far.
#[derive(Clone, Debug)]
pub(super) struct Figures {
    /// When counting began.
    pub(super) since: Instant,
    /// Calls begun.
    pub(super) started: u64,
    /// 2xx at the caller.
    pub(super) answered: u64,
    /// Any other end.
    pub(super) failed: u64,
    /// BYEs answered with 2xx.
    pub(super) ended: u64,
    /// BYEs refused or not answered.
    pub(super) unended: u64,
    /// The longest setup, and whose.
    pub(super) slowest: (Duration, String),
    /// Setup times together.
    pub(super) setup: Duration,
    /// The first failed calls with their status.
    pub(super) failures: Vec<(String, u16)>,
}

impl Figures {
    /// Calls that have no final response yet.
    pub(super) const fn in_setup(&self) -> u64 {
        self.started - self.answered - self.failed
    }

    /// Calls there are, from INVITE to the end of BYE.
    pub(super) const fn live(&self) -> u64 {
        self.started - self.failed - self.ended - self.unended
    }
}

/// Counts, for all tasks.
pub(super) struct Tally {
    figures: Mutex<Figures>,
    in_setup: watch::Sender<u64>,
}

impl Default for Tally {
    fn default() -> Self {
        let figures = Figures {
            since: Instant::now(),
            started: 0,
            answered: 0,
            failed: 0,
            ended: 0,
            unended: 0,
            slowest: (Duration::ZERO, String::new()),
            setup: Duration::ZERO,
            failures: Vec::new(),
        };
        Self { figures: Mutex::new(figures), in_setup: watch::Sender::new(0) }
    }
}

impl Tally {
    fn lock(&self) -> MutexGuard<'_, Figures> {
        self.figures.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change(&self, f: impl FnOnce(&mut Figures)) {
        let mut figures = self.lock();
        f(&mut figures);
        self.in_setup.send_replace(figures.in_setup());
    }

    /// The numbers so far.
    pub(super) fn figures(&self) -> Figures {
        self.lock().clone()
    }

    /// A call begins.
    pub(super) fn begin(&self) {
        self.change(|f| f.started += 1);
    }

    /// Its INVITE has come to an end.
    pub(super) fn end(&self, id: &str, outcome: &Outcome) {
        self.change(|f| {
            if outcome.is_success() {
                f.answered += 1;
                f.setup += outcome.setup;
                if outcome.setup > f.slowest.0 {
                    f.slowest = (outcome.setup, id.to_owned());
                }
            } else {
                f.failed += 1;
                if f.failures.len() < NAMED {
                    f.failures.push((id.to_owned(), outcome.status));
                }
            }
        });
    }

    /// Its BYE has.
    pub(super) fn hung_up(&self, confirmed: bool) {
        self.change(|f| if confirmed { f.ended += 1 } else { f.unended += 1 });
    }

    /// Waits until every call begun has its final response.
    pub(super) async fn settled(&self) {
        // Never closed while `self` lives.
        let _ = self.in_setup.subscribe().wait_for(|n| *n == 0).await;
    }
}
