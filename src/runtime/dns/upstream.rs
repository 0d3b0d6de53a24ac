//! What the cache knows of the name servers: a question goes out, a [`Reply`] comes back.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use crate::location::{Answer, Question, RrSet};

/// Why there is no answer. Says nothing of the name (rule 16).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// SERVFAIL.
    ServFail,
    /// REFUSED.
    Refused,
    /// Another response code, or a referral instead of an answer.
    Other,
    /// A message that cannot be read or does not belong to the question.
    Malformed,
    /// The aliases go round in circles, or there are too many.
    Aliases,
    /// No server said anything in time, or none can be reached.
    Timeout,
    /// Too many questions are under way.
    Busy,
}

impl Failure {
    /// As the pure layers see it.
    pub const fn answer(self) -> Answer {
        match self {
            Failure::ServFail | Failure::Refused | Failure::Other | Failure::Malformed | Failure::Aliases => {
                Answer::ServFail
            }
            Failure::Timeout | Failure::Busy => Answer::Timeout,
        }
    }
}

/// How a question ended, with the time to live that came with it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Found {
    /// Records, and the least TTL on the way to them.
    Records(Arc<RrSet>, Duration),
    /// No such name; for how long is `None` where no SOA came along (then not to be cached, RFC 2308 §5).
    NxDomain(Option<Duration>),
    /// The name exists without such records; TTL likewise.
    NoData(Option<Duration>),
    /// Nobody knows.
    Failure(Failure),
}

/// A question's end, and what else the answer brought.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reply {
    /// How it ended.
    pub found: Found,
    /// Sets of the additional section that belong to names the answer points to.
    pub also: Vec<(Question, Arc<RrSet>, Duration)>,
}

impl Reply {
    /// With nothing else.
    pub const fn of(found: Found) -> Self {
        Self { found, also: Vec::new() }
    }
}

/// A reply that is yet to come.
pub type Pending<'a> = Pin<Box<dyn Future<Output = Reply> + Send + 'a>>;

/// Those who are asked. The real one is [`super::Client`]; tests have a script.
pub trait Upstream: Send + Sync + 'static {
    /// Asks. Ends by itself within a few seconds, whatever the servers do.
    fn query(&self, question: Question) -> Pending<'_>;
}
