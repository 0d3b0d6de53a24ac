//! The step machine of RFC 3263 §4: questions out, answers in, a [`Located`] at the end.

use std::time::{Duration, Instant};

use smallvec::SmallVec;

use super::candidate::{FOREVER, Located, Outcome};
use super::enabled::Enabled;
use super::question::{Answer, AnswerMeta, Question};
use super::target::LocateKey;

/// Most NAPTR records used of one answer.
pub const MAX_NAPTR: usize = 32;
/// Most SRV records used of one answer, lowest priorities first.
pub const MAX_SRV: usize = 1024;
/// Most host names looked up for one location.
pub const MAX_TARGETS: usize = 1024;
/// Most addresses used of one host name.
pub const MAX_ADDRESSES: usize = 64;
/// Most candidates (addresses of servers) of one location.
pub const MAX_CANDIDATES: usize = 4096;
/// Most left-out entries recorded.
pub const MAX_LEFT_OUT: usize = 64;
/// How long a result is believed that a question was left unanswered for.
pub const UNANSWERED_HOLD: Duration = Duration::from_secs(1);

/// One location under way.
#[derive(Debug)]
pub struct Resolution {
    key: LocateKey,
    enabled: Enabled,
}

impl Resolution {
    /// Begins to locate `key`. A numeric host needs no question.
    pub fn new(key: LocateKey, enabled: &Enabled) -> Self {
        Self {
            key,
            enabled: enabled.clone(),
        }
    }

    /// The questions that can be asked now, side by side; each is given out once.
    pub fn next_questions(&mut self) -> SmallVec<[Question; 4]> {
        SmallVec::new()
    }

    /// The answer to a question given out before; any other is ignored.
    pub fn answer(&mut self, question: &Question, answer: Answer, meta: AnswerMeta) {
        let _ = (question, answer, meta);
    }

    /// Open address questions whose other address family has been answered with addresses: these
    /// need not be waited for long (`dns.addresses`); see [`Resolution::give_up`].
    pub fn lagging(&self) -> SmallVec<[Question; 4]> {
        SmallVec::new()
    }

    /// Goes on without the answer to one question.
    pub fn give_up(&mut self, question: &Question) {
        let _ = question;
    }

    /// The time for the whole location (`dns.timeout`) has run out: finishes with what is known.
    pub fn time_out(&mut self) {}

    /// True once nothing is open: time for [`Resolution::into_located`].
    pub fn finished(&self) -> bool {
        true
    }

    /// The result.
    pub fn into_located(self, now: Instant) -> Located {
        let _ = self.enabled;
        Located::from_tiers(self.key, Vec::new(), Outcome::NoTransport, now + FOREVER)
    }
}
