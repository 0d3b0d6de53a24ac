//! A decision record as a line of JSON. The schema is documented in `docs/src/records.md`: fields may be added, the
//! meaning of one never changes within a version.

use std::net::SocketAddr;
use std::time::{Duration, Instant, SystemTime};

use serde::Serialize;
use time::OffsetDateTime;

use crate::peering::Party;
use crate::proxy::Policy;
use crate::proxy::decision::{AttemptRecord, Record};

use super::Clock;

/// Version of the schema.
const VERSION: u32 = 1;
/// Most octets written of what stood in a message.
const MAX_TEXT: usize = 1024;

#[derive(Serialize)]
struct Line<'a> {
    v: u32,
    call_id: String,
    caller: String,
    uri: String,
    from: &'a str,
    identified_by: Option<String>,
    remote: SocketAddr,
    transport: &'a str,
    rule: &'a str,
    to: Vec<&'a str>,
    started: String,
    status: Option<u16>,
    reason: Option<&'a str>,
    cancelled: bool,
    setup_ms: Option<f64>,
    final_ms: f64,
    attempts: Vec<Attempt>,
}

#[derive(Serialize)]
struct Attempt {
    leg: u8,
    instance: String,
    standing: &'static str,
    picked: &'static str,
    outcome: &'static str,
    status: Option<u16>,
    started_ms: f64,
    first_response_ms: Option<f64>,
    ended_ms: Option<f64>,
}

/// A line but for how the call ended.
#[derive(Clone, Debug)]
pub(super) struct Begun {
    /// JSON without the closing brace.
    json: String,
    /// When the final response was sent.
    answered: Instant,
}

/// All that is known at the final response.
pub(super) fn begun(record: &Record, policy: &Policy, clock: Clock) -> Begun {
    let answered = record.ended.unwrap_or(record.started);
    let line = Line {
        v: VERSION,
        call_id: shown(record.call_id()),
        caller: shown(record.caller()),
        uri: shown(record.uri()),
        from: party(policy, record.from),
        identified_by: identified(policy, record),
        remote: record.remote,
        transport: record.transport.param(),
        rule: record.rule.label(),
        to: record.legs.iter().map(|l| party(policy, l.party)).collect(),
        started: rfc3339(clock.wall(record.started)),
        status: (record.status != 0).then_some(record.status),
        reason: (!record.reason.is_empty()).then_some(record.reason),
        cancelled: record.cancelled,
        setup_ms: record.attempts.first().map(|a| ms(record, a.started)),
        final_ms: ms(record, answered),
        attempts: record.attempts.iter().map(|a| attempt(record, a)).collect(),
    };
    // Nothing in it can fail to serialize: keys are words, numbers finite.
    let mut json = serde_json::to_string(&line).unwrap_or_else(|_| format!("{{\"v\":{VERSION}}}"));
    json.pop();
    Begun { json, answered }
}

impl Begun {
    #[cfg(test)]
    pub(super) fn of(json: String, answered: Instant) -> Self {
        Self { json, answered }
    }

    /// The whole line without its line end: `how` the call ended (empty: it never was one), and when, by both clocks.
    pub(super) fn finished(self, how: &str, end: Option<(Instant, SystemTime)>) -> String {
        let mut line = self.json;
        let how = if how.is_empty() { "null".to_owned() } else { format!("\"{how}\"") };
        match end {
            Some((at, wall)) => line.push_str(&format!(
                ",\"end\":{how},\"ended\":\"{}\",\"duration_ms\":{}}}",
                rfc3339(wall),
                rounded(at.saturating_duration_since(self.answered))
            )),
            None => line.push_str(&format!(",\"end\":{how},\"ended\":null,\"duration_ms\":null}}")),
        }
        line
    }
}

fn attempt(record: &Record, attempt: &AttemptRecord) -> Attempt {
    Attempt {
        leg: attempt.place.0,
        instance: attempt.instance.to_string(),
        standing: attempt.standing.label(),
        picked: attempt.reason.label(),
        outcome: attempt.outcome,
        status: (attempt.status != 0).then_some(attempt.status),
        started_ms: ms(record, attempt.started),
        first_response_ms: attempt.first_response.map(|t| ms(record, t)),
        ended_ms: attempt.ended.map(|t| ms(record, t)),
    }
}

fn party(policy: &Policy, party: Party) -> &str {
    match party {
        Party::Core => "core",
        Party::Peer(id) => policy.peer(id).map_or("(removed peer)", |p| p.config.name.as_str()),
        Party::Federation => "federation",
        Party::Stranger => "stranger",
    }
}

/// `certificate NAME, NAME` or `source PREFIX`.
fn identified(policy: &Policy, record: &Record) -> Option<String> {
    match record.identity.as_ref().filter(|i| !i.names.is_empty()) {
        Some(identity) => Some(format!("certificate {}", identity.names.join(", "))),
        None => policy.sources.prefix(record.remote.ip()).map(|net| format!("source {net}")),
    }
}

fn rounded(took: Duration) -> f64 {
    // Exact: far below 2^53 microseconds.
    took.as_micros() as f64 / 1000.0
}

/// Milliseconds since the request came, to the microsecond.
fn ms(record: &Record, at: Instant) -> f64 {
    rounded(at.saturating_duration_since(record.started))
}

/// To the millisecond, in UTC (RFC 3339).
pub(super) fn rfc3339(at: SystemTime) -> String {
    let at = OffsetDateTime::from(at);
    format!(
        "{:04}-{:02}-{:02}T{:02}:{:02}:{:02}.{:03}Z",
        at.year(),
        u8::from(at.month()),
        at.day(),
        at.hour(),
        at.minute(),
        at.second(),
        at.millisecond()
    )
}

/// What stood in a message, as printable ASCII of bounded length.
fn shown(octets: &[u8]) -> String {
    // JSON has its own escapes for quotes.
    let plain = |octet: &u8| matches!(octet, b' '..=b'~') && *octet != b'\\';
    let mut rest = octets.get(..MAX_TEXT).unwrap_or(octets);
    let mut text = String::with_capacity(rest.len());
    while !rest.is_empty() {
        // Mostly there is nothing else.
        let (run, more) = rest.split_at(rest.iter().position(|o| !plain(o)).unwrap_or(rest.len()));
        text.push_str(std::str::from_utf8(run).unwrap_or_default());
        rest = more;
        if let Some((odd, more)) = rest.split_first() {
            text.extend(odd.escape_ascii().map(char::from));
            rest = more;
        }
    }
    text
}
