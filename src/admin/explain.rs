//! The decision record of a request as JSON. All times are milliseconds since the request came.

use std::collections::BTreeMap;
use std::time::{Instant, SystemTime};

use serde_json::{Value, json};

use crate::location::{Instance, Standing};
use crate::proxy::Policy;
use crate::proxy::decision::{AttemptRecord, LegRecord, Record};
use crate::runtime::node::Node;

use super::resolve::{found_of, from_cache, party, round};
use super::words;

/// Most octets shown of what stood in a message.
const MAX_TEXT: usize = 1024;

/// The whole record.
pub fn record(node: &Node, policy: &Policy, record: &Record) -> Value {
    let legs: Vec<Value> = record.legs.iter().map(|leg| leg_of(policy, record, leg)).collect();
    let attempts: Vec<Value> = (0..record.attempts.len()).filter_map(|at| attempt(record, at)).collect();
    let mut value = summary(node, policy, record);
    if let Some(map) = value.as_object_mut() {
        map.insert("legs".into(), legs.into());
        map.insert("attempts".into(), attempts.into());
    }
    value
}

/// What a list of calls shows of it.
pub fn summary(node: &Node, policy: &Policy, record: &Record) -> Value {
    let started = node.wall_clock(record.started).duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    json!({
        "call_id": shown(record.call_id()),
        "method": shown(record.method()),
        "uri": shown(record.uri()),
        "caller": shown(record.caller()),
        "from": party(policy, record.from),
        "identified_by": words::identified(policy, record),
        "remote": record.remote.to_string(),
        "transport": record.transport.param(),
        "rule": record.rule.label(),
        "rule_text": words::rule(record.rule),
        "to": record.legs.iter().map(|l| party(policy, l.party)).collect::<Vec<_>>(),
        "started": (started.as_secs_f64() * 1000.0).round() / 1000.0,
        "status": (record.status != 0).then_some(record.status),
        "reason": (!record.reason.is_empty()).then_some(record.reason),
        "reason_text": words::refusal(record.reason),
        "cancelled": record.cancelled,
        "ended_ms": record.ended.map(|t| ms(record, t)),
        "attempts_made": record.attempts.len(),
    })
}

fn leg_of(policy: &Policy, record: &Record, leg: &LegRecord) -> Value {
    let mut value = json!({
        "party": party(policy, leg.party),
        "request_uri": leg.uri.as_deref().map(shown),
        "asked_ms": leg.asked.map(|t| ms(record, t)),
        "answered_ms": leg.answered.map(|t| ms(record, t)),
    });
    if let (Some(located), Some(map)) = (&leg.located, value.as_object_mut()) {
        let own = |i: &Instance| policy.domains.is_own_socket(i.addr);
        // As things stood then: what holds now would mislead.
        let at = leg.answered.unwrap_or(record.started);
        let standings: BTreeMap<Instance, Standing> = leg.standings.iter().copied().collect();
        let mut found = found_of(located, at, Some(&standings), Some(&own));
        if let Some(asked) = leg.asked {
            from_cache(&mut found, located, asked);
        }
        if let Ok(Value::Object(mut found)) = serde_json::to_value(found) {
            if let Some(candidates) = found.get_mut("candidates").and_then(Value::as_array_mut) {
                note(record, leg, candidates);
            }
            map.insert("target".into(), located.key.to_string().into());
            map.extend(found);
        }
    }
    value
}

/// What became of each candidate: the number of its attempt, from 1, or why there was none.
fn note(record: &Record, leg: &LegRecord, candidates: &mut [Value]) {
    let tried = |candidate: &Value| {
        let instance = candidate.get("instance").and_then(Value::as_str).unwrap_or_default();
        record.attempts.iter().position(|a| {
            record.legs.get(usize::from(a.place.0)).is_some_and(|l| l.party == leg.party)
                && a.instance.to_string() == instance
        })
    };
    let tries: Vec<Option<usize>> = candidates.iter().map(tried).collect();
    let last = tries.iter().rposition(Option::is_some);
    for (at, (candidate, tried)) in candidates.iter_mut().zip(tries).enumerate() {
        let Some(map) = candidate.as_object_mut() else { continue };
        let down = matches!(map.get("health").and_then(Value::as_str), Some("down" | "probed_down"));
        let note = match tried {
            Some(_) => "tried",
            None if down && last.is_some_and(|last| at < last) => "passed over: it was down",
            None if record.ended.is_none() => "not tried yet",
            None => "not needed",
        };
        map.insert("note".into(), note.into());
        map.insert("tried".into(), tried.map(|t| t + 1).into());
    }
}

fn attempt(record: &Record, at: usize) -> Option<Value> {
    let attempt: &AttemptRecord = record.attempts.get(at)?;
    let (leg, tier, server) = attempt.place;
    let place = record
        .legs
        .get(usize::from(leg))
        .and_then(|l| l.located.as_ref())
        .and_then(|l| Some((l.tiers.get(usize::from(tier))?, usize::from(server))));
    let server = place.and_then(|(t, s)| t.servers.get(s));
    let cost = words::cost(record, attempt);
    let value = json!({
        "leg": leg,
        "tier": tier,
        "instance": attempt.instance.to_string(),
        "target": server.map(|s| s.target.to_string()),
        "priority": place.map(|(t, _)| t.priority),
        "weight": server.map(|s| s.weight),
        "share": place.map(|(t, s)| (t.share(s) * 10_000.0).round() / 10_000.0),
        "standing": attempt.standing.label(),
        "picked": attempt.reason.label(),
        "cost": cost.map(|c| c.value),
        "cost_age": cost.map(|c| round(attempt.started.saturating_duration_since(c.fetched).as_secs_f64())),
        "cost_from": cost.map(|c| c.origin.label()),
        "class": place.and_then(|(t, _)| t.ranking).and(server.map(|s| s.class)),
        "classes": place.and_then(|(t, _)| t.ranking).map(|r| r.classes),
        "branch": format!("{:016x}", attempt.branch),
        "started_ms": ms(record, attempt.started),
        "first_response_ms": attempt.first_response.map(|t| ms(record, t)),
        "rang_ms": attempt.rang.map(|t| ms(record, t)),
        "ended_ms": attempt.ended.map(|t| ms(record, t)),
        "outcome": attempt.outcome,
        "status": (attempt.status != 0).then_some(attempt.status),
        "took_ms": attempt.ended.map(|t| round_ms(t.saturating_duration_since(attempt.started))),
        "why": words::chosen(record, at),
        "what": words::outcome(record, at),
    });
    Some(value)
}

fn round_ms(took: std::time::Duration) -> f64 {
    took.as_micros() as f64 / 1000.0
}

/// Milliseconds since the request came, to the microsecond.
fn ms(record: &Record, at: Instant) -> f64 {
    round_ms(at.saturating_duration_since(record.started))
}

/// What stood in a message, as printable ASCII of bounded length.
fn shown(octets: &[u8]) -> String {
    let start = octets.get(..MAX_TEXT).unwrap_or(octets);
    let mut text = start.escape_ascii().to_string();
    // JSON has its own escapes for these two.
    if text.contains("\\\"") || text.contains("\\'") {
        text = text.replace("\\\"", "\"").replace("\\'", "'");
    }
    text
}
