//! The ALTO client's state and costs. They are told here only, to the operator: a server need not want them passed on
//! (RFC 7285 §15.3).

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::time::{Duration, Instant, SystemTime};

use serde_json::{Value, json};

use crate::alto::client::{ServerStatus, State};
use crate::alto::error::Outcome;
use crate::location::{CostMode, CostSnapshot};
use crate::runtime::node::Node;

use super::resolve::round;
use super::text::Text;

/// Costs listed where no limit is asked for.
pub const COSTS: usize = 1000;

/// `/api/v1/alto`
pub fn alto(node: &Node, limit: usize) -> Value {
    let now = Instant::now();
    let snapshot = node.resolver().ranker().snapshot();
    let age = age(&snapshot, now).map(seconds);
    let Some(status) = node.alto().status(now) else {
        return json!({ "configured": false, "servers": [], "costs": [], "count": 0, "age": null });
    };
    let costs: Vec<Value> = snapshot
        .sorted()
        .into_iter()
        .filter(|(_, cost)| now < cost.usable_until)
        .take(limit)
        .map(|(addr, cost)| {
            json!({
                "address": addr.to_string(),
                "cost": cost.value,
                "origin": cost.origin.label(),
                "answer": cost.answer,
                "age": seconds(now.saturating_duration_since(cost.fetched)),
                "fresh": now < cost.fresh_until,
                "fresh_for": until(cost.fresh_until, now),
                "usable_for": until(cost.usable_until, now),
            })
        })
        .collect();
    json!({
        "configured": true,
        "servers": status.servers.iter().map(|s| server(node, s, now)).collect::<Vec<_>>(),
        "sources": status.sources.iter().map(ToString::to_string).collect::<Vec<_>>(),
        "mode": match snapshot.mode { CostMode::Numerical => "numerical", CostMode::Ordinal => "ordinal" },
        "higher_is_better": snapshot.higher_is_better,
        "wanted": status.wanted,
        "requests": status.outcomes.iter().map(|(o, n)| (o.label().to_owned(), Value::from(*n))).collect::<Value>(),
        "complaints": status.complaints,
        "bad_costs": status.bad_costs,
        "age": age,
        "count": snapshot.len(),
        "costs": costs,
    })
}

fn server(node: &Node, s: &ServerStatus, now: Instant) -> Value {
    let since = |at: Instant| seconds(now.saturating_duration_since(at));
    json!({
        "directory": s.directory,
        "state": s.state.label(),
        "in_use": s.in_use,
        "service": s.service,
        "resource": s.resource,
        "cost_type": s.cost_type,
        "vtag": s.vtag.as_ref().map(|(id, tag)| json!({ "resource_id": id, "tag": tag })),
        "costs": s.costs,
        "age": s.fetched.map(since),
        "fresh_for": s.fresh_until.map(|at| until(at, now)),
        "next_request": s.next.map(|at| until(at, now)),
        "last_success": s.last_success.map(since),
        "last_error": s.last_error.as_ref().map(|(at, why)| json!({
            "error": why,
            "ago": since(*at),
            "at": round(
                node.wall_clock(*at).duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs_f64()
            ),
        })),
        "failures": s.failures,
        "accepts_json": s.accepts_json,
        "called_json": s.called_json,
        "left_out": s.left_out,
        "directories": s.directories,
        "notes": s.notes,
    })
}

fn seconds(d: Duration) -> f64 {
    round(d.as_secs_f64())
}

fn until(at: Instant, now: Instant) -> f64 {
    seconds(at.saturating_duration_since(now))
}

/// The age of the oldest cost that is in use; `None`: there is none. The operator's own do not age.
fn age(snapshot: &CostSnapshot, now: Instant) -> Option<Duration> {
    let all = snapshot.sorted().into_iter().map(|(_, cost)| cost);
    let used = all.filter(|c| now < c.usable_until && c.origin != crate::location::CostOrigin::Override);
    used.map(|c| now.saturating_duration_since(c.fetched)).max()
}

/// The addresses that a flush is about: one, or those of a peer's instances.
pub fn addresses(node: &Node, whose: &str) -> Option<Vec<IpAddr>> {
    if let Ok(addr) = whose.parse::<IpAddr>() {
        return Some(vec![addr.to_canonical()]);
    }
    let policy = node.policy();
    let peer = policy.peers.iter().flatten().find(|p| p.config.name == whose)?.id;
    let listed = node.instances(Instant::now());
    let all: BTreeSet<IpAddr> =
        listed.iter().filter(|l| l.peer == Some(peer)).map(|l| l.instance.addr.ip().to_canonical()).collect();
    Some(all.into_iter().collect())
}

/// The metrics.
pub fn metrics(text: &mut Text, node: &Node, now: Instant) {
    let status = node.alto().status(now).unwrap_or_default();
    let snapshot = node.resolver().ranker().snapshot();
    text.family("sbe_alto_requests_total", "counter", "Requests to ALTO servers, by outcome.");
    for outcome in Outcome::ALL {
        let n = status.outcomes.iter().find(|(o, _)| *o == outcome).map_or(0, |(_, n)| *n);
        text.sample(&[("outcome", outcome.label())], n);
    }
    let oldest = age(&snapshot, now).unwrap_or_default();
    text.family("sbe_alto_age_seconds", "gauge", "Age of the oldest cost in use; 0 without any.")
        .sample(&[], oldest.as_secs_f64());
    let usable = snapshot.sorted().iter().filter(|(_, c)| now < c.usable_until).count();
    text.family("sbe_alto_costs", "gauge", "Addresses with a cost that may be used.").sample(&[], usable);
    text.family("sbe_alto_wanted", "gauge", "Addresses that costs are wanted for.")
        .sample(&[], status.wanted);
    text.family("sbe_alto_complaints_total", "counter", "Answers that say we asked wrongly.")
        .sample(&[], status.complaints);
    text.family("sbe_alto_bad_costs_total", "counter", "Costs refused: negative, no number, too large.")
        .sample(&[], status.bad_costs);
    text.family("sbe_alto_server_state", "gauge", "1 for the state that an ALTO server is in.");
    for server in &status.servers {
        for state in [State::Empty, State::Fresh, State::Stale, State::Failing, State::Expired] {
            let labels = [("directory", server.directory.as_str()), ("state", state.label())];
            text.sample(&labels, u8::from(server.state == state));
        }
    }
}
