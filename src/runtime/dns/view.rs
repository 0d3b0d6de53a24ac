//! The cache as the admin interface shows it.

use std::time::{Duration, Instant};

use super::cache::{Look, RrCache};
use crate::location::{Answer, AnswerMeta, RecordKind, Records};

/// One record set of the cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Name, lower case, no final dot.
    pub name: String,
    /// Type.
    pub kind: RecordKind,
    /// `found`, `nodata`, `nxdomain`, `servfail`, `timeout`.
    pub outcome: &'static str,
    /// How long ago the answer came; `None` of a failure.
    pub age: Option<Duration>,
    /// Time left to live; zero when it has run out.
    pub ttl: Duration,
    /// Run out, and kept for when the DNS fails (RFC 8767).
    pub stale: bool,
    /// The records as in a zone file.
    pub records: Vec<String>,
}

/// Up to `limit` entries by name and type.
pub(super) fn entries(sets: &RrCache, now: Instant, valid_from: Instant, limit: usize) -> Vec<Entry> {
    let mut keys: Vec<_> = sets.iter().map(|(key, _)| key).collect();
    keys.sort_unstable();
    let entry = |key: &crate::location::Question| {
        let (answer, meta) = match sets.look(key, now, valid_from) {
            Look::Fresh(a, m, _) | Look::Held(a, m) => (a, m),
            Look::Failing(a, m) | Look::Stale(a, m) => (a, AnswerMeta { expires: now, ..m }),
            Look::Miss => return None,
        };
        let (outcome, records) = match &answer {
            Answer::Records(set) => ("found", text(&set.records)),
            Answer::NoData => ("nodata", Vec::new()),
            Answer::NxDomain => ("nxdomain", Vec::new()),
            Answer::ServFail => ("servfail", Vec::new()),
            Answer::Timeout => ("timeout", Vec::new()),
        };
        let ttl = if meta.stale { Duration::ZERO } else { meta.expires.saturating_duration_since(now) };
        let age = sets.fetched(key).map(|at| now.saturating_duration_since(at));
        Some(Entry {
            name: key.name.to_string(),
            kind: key.kind,
            outcome,
            age,
            ttl,
            stale: meta.stale,
            records,
        })
    };
    keys.iter().filter_map(|key| entry(key)).take(limit).collect()
}

fn text(records: &Records) -> Vec<String> {
    match records {
        Records::Naptr(v) => v
            .iter()
            .map(|n| {
                format!(
                    "{} {} \"{}\" \"{}\" \"{}\" {}.",
                    n.order,
                    n.preference,
                    n.flags.escape_default(),
                    n.service.escape_default(),
                    n.regexp.escape_default(),
                    n.replacement
                )
            })
            .collect(),
        Records::Srv(v) => {
            v.iter().map(|s| format!("{} {} {} {}.", s.priority, s.weight, s.port, s.target)).collect()
        }
        Records::Addr(v) => v.iter().map(ToString::to_string).collect(),
    }
}
