//! Searching among the recent calls: by user, peer, outcome, method and time.

use std::time::{Duration, Instant, SystemTime};

use serde::Deserialize;

use crate::peering::Party;
use crate::proxy::Policy;
use crate::proxy::decision::Record;
use crate::runtime::node::Node;

/// Records listed where no limit is asked for, and the most.
const LIMITS: (usize, usize) = (100, 10_000);

/// `/api/v1/calls?…`; everything left out holds for all.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Query {
    /// A part of the Request-URI or of the From header field: a number, a user, a domain. Any case.
    pub user: Option<String>,
    /// A peer's name, or `core`: whom it came from or was for.
    pub peer: Option<String>,
    /// `ok`, `failed`, `refused`, `cancelled`, `failover` (more than one attempt), a status (`486`) or a class (`5xx`).
    pub outcome: Option<String>,
    /// A method.
    pub method: Option<String>,
    /// Not before: seconds since 1970, or ago (`15m`, `2h`).
    pub since: Option<String>,
    /// Not after; likewise.
    pub until: Option<String>,
    /// At most so many.
    pub limit: Option<usize>,
}

/// What a final result has to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    Ok,
    Failed,
    Refused,
    Cancelled,
    Failover,
    Status(u16),
    Class(u16),
}

impl Outcome {
    fn parse(text: &str) -> Option<Self> {
        let class = |c: &str| c.parse::<u16>().ok().filter(|c| (1..=6).contains(c)).map(Outcome::Class);
        Some(match text.to_ascii_lowercase().as_str() {
            "ok" => Outcome::Ok,
            "failed" => Outcome::Failed,
            "refused" => Outcome::Refused,
            "cancelled" => Outcome::Cancelled,
            "failover" => Outcome::Failover,
            other => match other.strip_suffix("xx") {
                Some(digit) => class(digit)?,
                None => Outcome::Status(other.parse().ok().filter(|s| (100..700).contains(s))?),
            },
        })
    }

    fn fits(self, record: &Record) -> bool {
        match self {
            Outcome::Ok => (200..300).contains(&record.status),
            Outcome::Failed => !(200..300).contains(&record.status) && !record.cancelled,
            Outcome::Refused => record.attempts.is_empty() && record.status >= 300,
            Outcome::Cancelled => record.cancelled,
            Outcome::Failover => record.attempts.len() > 1,
            Outcome::Status(status) => record.status == status,
            Outcome::Class(class) => record.status / 100 == class,
        }
    }
}

/// The records asked for, newest first.
///
/// # Errors
/// What is wrong with the question, for people.
pub fn search(node: &Node, policy: &Policy, query: &Query) -> Result<Vec<Record>, String> {
    let outcome = match &query.outcome {
        None => None,
        Some(text) => Some(Outcome::parse(text).ok_or_else(|| {
            format!("outcome \"{text}\": write ok, failed, refused, cancelled, failover, a status as 486 or a class as 5xx")
        })?),
    };
    let party = match &query.peer {
        None => None,
        Some(name) => Some(party(policy, name).ok_or_else(|| format!("there is no peer \"{name}\""))?),
    };
    let now = (Instant::now(), SystemTime::now());
    let since = moment(query.since.as_deref(), now)?;
    let until = moment(query.until.as_deref(), now)?;
    let user = query.user.as_ref().map(|u| u.to_ascii_lowercase());
    let wanted = |record: &Record| {
        outcome.is_none_or(|o| o.fits(record))
            && party.is_none_or(|p| record.from == p || record.legs.iter().any(|l| l.party == p))
            && since.is_none_or(|t| record.started >= t)
            && until.is_none_or(|t| record.started <= t)
            && query.method.as_ref().is_none_or(|m| record.method().eq_ignore_ascii_case(m.as_bytes()))
            && user.as_ref().is_none_or(|u| {
                contains(record.uri(), u.as_bytes()) || contains(record.caller(), u.as_bytes())
            })
    };
    Ok(node.search(query.limit.unwrap_or(LIMITS.0).min(LIMITS.1), &wanted))
}

fn party(policy: &Policy, name: &str) -> Option<Party> {
    match name {
        "core" => Some(Party::Core),
        "federation" => Some(Party::Federation),
        "stranger" => Some(Party::Stranger),
        _ => policy.peers.iter().flatten().find(|p| p.config.name == name).map(|p| Party::Peer(p.id)),
    }
}

/// `needle` is lower case.
fn contains(text: &[u8], needle: &[u8]) -> bool {
    let same = |window: &[u8]| window.iter().zip(needle).all(|(a, b)| a.to_ascii_lowercase() == *b);
    needle.is_empty() || text.windows(needle.len()).any(same)
}

/// A point in time: seconds since 1970, or so long ago. Before this machine's clock began means always.
fn moment(text: Option<&str>, now: (Instant, SystemTime)) -> Result<Option<Instant>, String> {
    let Some(text) = text else { return Ok(None) };
    let wrong = || format!("time \"{text}\": write seconds since 1970, or how long ago, as 15m or 2h");
    let ago = match text.parse::<f64>() {
        Ok(seconds) => {
            let since = Duration::try_from_secs_f64(seconds).map_err(|_| wrong())?;
            let at = SystemTime::UNIX_EPOCH.checked_add(since).ok_or_else(wrong)?;
            match now.1.duration_since(at) {
                Ok(ago) => ago,
                // In the future.
                Err(ahead) => return Ok(now.0.checked_add(ahead.duration())),
            }
        }
        Err(_) => crate::config::read_duration(text).ok_or_else(wrong)?,
    };
    Ok(now.0.checked_sub(ago))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outcomes_are_words_statuses_and_classes() {
        for (text, want) in [
            ("ok", Some(Outcome::Ok)),
            ("Failed", Some(Outcome::Failed)),
            ("486", Some(Outcome::Status(486))),
            ("5xx", Some(Outcome::Class(5))),
            ("5XX", Some(Outcome::Class(5))),
            ("7xx", None),
            ("99", None),
            ("700", None),
            ("maybe", None),
        ] {
            assert_eq!(Outcome::parse(text), want, "{text}");
        }
    }

    #[test]
    fn a_part_of_a_number_is_found_in_any_case() {
        for (text, needle, want) in [
            ("sip:+442079460000@Example.COM", "2079", true),
            ("sip:+442079460000@Example.COM", "example.com", true),
            ("sip:a@b", "longer than the text", false),
            ("", "", true),
            ("", "a", false),
        ] {
            assert_eq!(contains(text.as_bytes(), needle.as_bytes()), want, "{text} {needle}");
        }
    }

    #[test]
    fn times_are_absolute_or_ago() {
        let start = Instant::now() + Duration::from_secs(100_000);
        let now = (start, SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000));
        assert_eq!(moment(None, now), Ok(None));
        assert_eq!(moment(Some("15m"), now), Ok(Some(start - Duration::from_secs(900))));
        assert_eq!(moment(Some("999940"), now), Ok(Some(start - Duration::from_secs(60))));
        assert_eq!(moment(Some("1000060"), now), Ok(Some(start + Duration::from_secs(60))));
        for bad in ["soon", "-5", "NaN", "1e400", ""] {
            assert!(moment(Some(bad), now).is_err(), "{bad}");
        }
    }
}
