//! DNS questions and answers as plain data, and the record of what was asked.

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A record type that location asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum RecordKind {
    /// RFC 3403.
    Naptr,
    /// RFC 2782.
    Srv,
    /// RFC 1035.
    A,
    /// RFC 3596.
    Aaaa,
}

impl RecordKind {
    /// As in a zone file.
    pub const fn label(self) -> &'static str {
        match self {
            RecordKind::Naptr => "NAPTR",
            RecordKind::Srv => "SRV",
            RecordKind::A => "A",
            RecordKind::Aaaa => "AAAA",
        }
    }
}

/// One DNS question, class IN.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Question {
    /// A complete name: lower case, no final dot, no search list (RFC 3263 §4).
    pub name: Arc<str>,
    /// Type.
    pub kind: RecordKind,
}

impl Question {
    /// A question.
    pub fn new(name: Arc<str>, kind: RecordKind) -> Self {
        Self { name, kind }
    }
}

impl fmt::Display for Question {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}. {}", self.name, self.kind.label())
    }
}

/// A NAPTR record (RFC 3403 §4.1).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NaptrRecord {
    /// Lower first, a must.
    pub order: u16,
    /// Lower first among equal orders.
    pub preference: u16,
    /// FLAGS, as received.
    pub flags: Box<str>,
    /// SERVICES, as received.
    pub service: Box<str>,
    /// REGEXP, as received.
    pub regexp: Box<str>,
    /// REPLACEMENT; empty for the root.
    pub replacement: Arc<str>,
}

/// An SRV record (RFC 2782).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SrvRecord {
    /// Lower first.
    pub priority: u16,
    /// Relative share.
    pub weight: u16,
    /// Port.
    pub port: u16,
    /// Host name; empty for the root, which means "not offered here".
    pub target: Arc<str>,
}

impl NaptrRecord {
    /// As in a zone file, made safe to show.
    pub fn describe(&self) -> String {
        format!(
            "{} {} \"{}\" \"{}\" \"{}\" {}.",
            self.order,
            self.preference,
            self.flags.escape_default(),
            self.service.escape_default(),
            self.regexp.escape_default(),
            self.replacement.trim_end_matches('.').escape_default()
        )
    }
}

impl SrvRecord {
    /// As in a zone file, made safe to show.
    pub fn describe(&self) -> String {
        let target = self.target.trim_end_matches('.').escape_default();
        format!("{} {} {} {target}.", self.priority, self.weight, self.port)
    }

    /// True if it says "not offered here" (RFC 2782, Target).
    pub fn is_not_offered(&self) -> bool {
        matches!(&*self.target, "" | ".")
    }
}

/// A name as questions hold it: lower case, without the final dot. `None` if it cannot be asked for
/// (RFC 1035 §2.3.4), the root included.
pub(super) fn normal_name(name: &Arc<str>) -> Option<Arc<str>> {
    let bare = name.strip_suffix('.').unwrap_or(name);
    let fits = bare.len() <= 253 && bare.split('.').all(|label| (1..=63).contains(&label.len()));
    if !fits || !bare.bytes().all(|b| b.is_ascii_graphic()) {
        return None;
    }
    if bare.len() == name.len() && !bare.bytes().any(|b| b.is_ascii_uppercase()) {
        return Some(Arc::clone(name));
    }
    Some(bare.to_ascii_lowercase().into())
}

/// The records of an answer, of one type, in the order received.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Records {
    /// NAPTR
    Naptr(Vec<NaptrRecord>),
    /// SRV
    Srv(Vec<SrvRecord>),
    /// A or AAAA
    Addr(Vec<IpAddr>),
}

/// A set of records of one name and type, aliases already followed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RrSet {
    /// At least one.
    pub records: Records,
}

impl RrSet {
    /// Up to `most` records as text, for decision records.
    fn describe(&self, most: usize) -> Vec<String> {
        match &self.records {
            Records::Naptr(v) => v.iter().take(most).map(NaptrRecord::describe).collect(),
            Records::Srv(v) => v.iter().take(most).map(SrvRecord::describe).collect(),
            Records::Addr(v) => v.iter().take(most).map(ToString::to_string).collect(),
        }
    }

    /// How many records.
    pub fn len(&self) -> usize {
        match &self.records {
            Records::Naptr(v) => v.len(),
            Records::Srv(v) => v.len(),
            Records::Addr(v) => v.len(),
        }
    }

    /// True if there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// How a question ended. Only the first three say something about the name; the last two say that
/// we do not know (rule 16).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// There are records.
    Records(Arc<RrSet>),
    /// The name exists, but has none of this type.
    NoData,
    /// The name does not exist.
    NxDomain,
    /// The servers could not say: SERVFAIL, REFUSED, a broken answer, a loop of aliases.
    ServFail,
    /// Nobody answered in time.
    Timeout,
}

/// What comes with an [`Answer`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AnswerMeta {
    /// Believed until then: the smallest TTL on the way (aliases included), the negative TTL, or the
    /// time for which a failure is held.
    pub expires: Instant,
    /// It came out of the cache.
    pub cached: bool,
    /// It had run out, and was used because the DNS is down (RFC 8767).
    pub stale: bool,
}

/// A step's outcome as a fixed word.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum StepOutcome {
    /// Records.
    Found,
    /// The name has no such records.
    NoData,
    /// No such name.
    NxDomain,
    /// The servers could not say.
    ServFail,
    /// No answer in time.
    Timeout,
    /// The other address family had answered, and this one was not waited for any longer.
    NotWaitedFor,
    /// The time for the whole location ran out first.
    OutOfTime,
}

impl StepOutcome {
    /// For records and metrics.
    pub const fn label(self) -> &'static str {
        match self {
            StepOutcome::Found => "found",
            StepOutcome::NoData => "nodata",
            StepOutcome::NxDomain => "nxdomain",
            StepOutcome::ServFail => "servfail",
            StepOutcome::Timeout => "timeout",
            StepOutcome::NotWaitedFor => "not_waited_for",
            StepOutcome::OutOfTime => "out_of_time",
        }
    }
}

/// One DNS step of a location, for the decision record and `sbe resolve`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DnsStep {
    /// What was asked.
    pub question: Question,
    /// How it ended.
    pub outcome: StepOutcome,
    /// Time left to live when the location was finished; `None` without an answer.
    pub ttl: Option<Duration>,
    /// It came out of the cache.
    pub cached: bool,
    /// It had run out (RFC 8767).
    pub stale: bool,
    /// The first few records as text.
    pub records: Vec<String>,
}

/// Records shown in one step.
const SHOWN: usize = 8;

impl DnsStep {
    /// The step for an answered question.
    pub(super) fn answered(question: Question, answer: &Answer, meta: &AnswerMeta, now: Instant) -> Self {
        let (outcome, records) = match answer {
            Answer::Records(set) => (StepOutcome::Found, set.describe(SHOWN)),
            Answer::NoData => (StepOutcome::NoData, Vec::new()),
            Answer::NxDomain => (StepOutcome::NxDomain, Vec::new()),
            Answer::ServFail => (StepOutcome::ServFail, Vec::new()),
            Answer::Timeout => (StepOutcome::Timeout, Vec::new()),
        };
        let ttl = Some(meta.expires.saturating_duration_since(now));
        Self { question, outcome, ttl, cached: meta.cached, stale: meta.stale, records }
    }

    /// The step for a question that nobody waits for any more.
    pub(super) fn unanswered(question: Question, outcome: StepOutcome) -> Self {
        Self { question, outcome, ttl: None, cached: false, stale: false, records: Vec::new() }
    }
}
