//! Answers as text for people. What stood in a message is printed without control octets.

use std::fmt::Write;

use serde_json::Value;

use crate::admin::resolve::{Found, LegFound, Resolution};

/// A value as text: strings without quotes, null as a dash.
pub fn plain(value: &Value) -> String {
    let text = match value {
        Value::Null => "-".to_owned(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    text.chars().map(|c| if c.is_control() { '?' } else { c }).collect()
}

pub(super) fn list(value: &Value) -> &[Value] {
    value.as_array().map(Vec::as_slice).unwrap_or_default()
}

pub(super) fn joined(value: &Value) -> String {
    let all: Vec<String> = list(value).iter().map(plain).collect();
    if all.is_empty() { "-".to_owned() } else { all.join(", ") }
}

/// Writes one line. Writing to a string cannot fail.
macro_rules! line {
    ($out:expr, $($arg:tt)*) => { let _ = writeln!($out, $($arg)*); };
}

/// `sbe status`
pub fn status(v: &Value) -> String {
    let mut out = String::new();
    let state = if v["ready"] == true { "ready".to_owned() } else { plain(&v["reason"]) };
    line!(out, "{} (sbe {}): {state}, up {} s", plain(&v["name"]), plain(&v["version"]), plain(&v["uptime"]));
    for l in list(&v["listeners"]) {
        line!(out, "listening {} {} realm={}", plain(&l["transport"]), plain(&l["bind"]), plain(&l["realm"]));
    }
    line!(out, "calls {}", plain(&v["calls"]));
    let t = &v["transactions"];
    line!(
        out,
        "transactions: server {}, client {}; without a final response {}",
        plain(&t["server"]),
        plain(&t["client"]),
        plain(&t["open"])
    );
    line!(
        out,
        "requests {}, attempts {}, failovers {}",
        plain(&v["requests"]),
        plain(&v["attempts"]),
        plain(&v["failovers"])
    );
    line!(
        out,
        "peers {}, instances up {} of {}",
        plain(&v["peers"]),
        plain(&v["instances"]["up"]),
        plain(&v["instances"]["all"])
    );
    out
}

/// `sbe peers`
pub fn peers(v: &Value) -> String {
    let mut out = String::new();
    for p in list(&v["peers"]) {
        let limit =
            if p["max_calls"].is_null() { String::new() } else { format!(" of {}", plain(&p["max_calls"])) };
        line!(out, "{}: calls {}{limit}", plain(&p["name"]), plain(&p["calls"]));
        line!(out, "  domains {}", joined(&p["domains"]));
        if !p["next_hop"].is_null() {
            line!(out, "  next hop {}", plain(&p["next_hop"]));
        }
        instances(&mut out, &p["instances"]);
    }
    line!(out, "core: next hops {}", joined(&v["core"]["next_hops"]));
    instances(&mut out, &v["core"]["instances"]);
    out
}

fn instances(out: &mut String, v: &Value) {
    for i in list(v) {
        let again = if i["down_for"].is_null() {
            String::new()
        } else {
            format!(", tried again in {} s", plain(&i["down_for"]))
        };
        let part = match i["ramp"].as_f64() {
            Some(part) if part > 0.0 && part < 1.0 => format!(", at {:.0} % of its share", part * 100.0),
            _ => String::new(),
        };
        let probed = if i["probed"] == true { ", probed" } else { "" };
        line!(out, "  {:<32} {}{again}{part}{probed}", plain(&i["instance"]), plain(&i["standing"]));
    }
}

/// `sbe drain`, `sbe undrain`
pub fn drain(v: &Value) -> String {
    let state = if v["draining"] == true { "draining" } else { "accepting requests" };
    format!("{state}; without a final response {}, calls {}\n", plain(&v["open"]), plain(&v["calls"]))
}

/// `sbe reload`
pub fn reload(v: &Value) -> String {
    let mut out = String::new();
    for warning in list(&v["warnings"]) {
        line!(out, "{}", plain(warning));
    }
    if !list(&v["restart_needed"]).is_empty() {
        line!(out, "restart needed for: {}", joined(&v["restart_needed"]));
    }
    line!(out, "reloaded");
    out
}

/// `sbe upgrade`
pub fn upgrade(v: &Value) -> String {
    format!("process {} has taken over, generation {}\n", plain(&v["pid"]), plain(&v["generation"]))
}

fn step(
    out: &mut String,
    name: &str,
    kind: &str,
    outcome: &str,
    ttl: Option<u64>,
    cached: bool,
    stale: bool,
) {
    let ttl = ttl.map_or_else(String::new, |t| format!(", {t} s to live"));
    let cached = if stale {
        ", run out"
    } else if cached {
        ", from the cache"
    } else {
        ""
    };
    line!(out, "              {name}. {kind}: {outcome}{ttl}{cached}");
}

/// `sbe resolve`
pub fn resolution(r: &Resolution, remark: Option<&str>) -> String {
    let mut out = String::new();
    line!(out, "{}", r.uri);
    if let Some(remark) = remark {
        line!(out, "  note: {remark}");
    }
    match (&r.refused, r.from, r.rule) {
        (Some(refused), ..) => {
            line!(
                out,
                "  a request for it would be refused: {} {} ({})",
                refused.status,
                refused.text,
                refused.reason
            );
        }
        (None, Some(from), Some(rule)) => {
            line!(out, "  from {from}: routed by {rule}");
        }
        _ => {
            line!(out, "  no configuration: as if listeners of all transports served both sides");
        }
    }
    for leg in &r.legs {
        resolved_leg(&mut out, leg);
    }
    for note in &r.notes {
        line!(out, "  note: {note}");
    }
    line!(out, "{} candidates", r.candidates);
    out
}

fn resolved_leg(out: &mut String, leg: &LegFound) {
    let party = leg.party.as_ref().map_or_else(String::new, |p| format!("{p}: "));
    line!(out, "  {party}{}", leg.targets.join(", "));
    if let Some(uri) = &leg.request_uri {
        line!(out, "    Request-URI becomes {uri}");
    }
    let Found { steps, candidates, left_out, .. } = &leg.found;
    for s in steps {
        step(out, &s.name, s.r#type, s.outcome, s.ttl, s.cached, s.stale);
        for record in &s.records {
            line!(out, "                {record}");
        }
    }
    if candidates.is_empty() {
        line!(out, "    no candidate: {} ({})", leg.found.text, leg.found.outcome);
    } else {
        line!(
            out,
            "    {:>4} {:>8} {:>6} {:>7} {:>7} {:>5}  {:<8} {:<40} target",
            "tier",
            "priority",
            "weight",
            "share",
            "first",
            "order",
            "health",
            "instance"
        );
    }
    for c in candidates {
        line!(
            out,
            "    {:>4} {:>8} {:>6} {:>6.2}% {:>6.2}% {:>5}  {:<8} {:<40} {}",
            c.tier,
            c.priority,
            c.weight,
            c.share * 100.0,
            c.first.unwrap_or(0.0) * 100.0,
            c.order.map_or_else(|| "-".to_owned(), |order| order.to_string()),
            c.health,
            c.instance,
            c.target
        );
        if let Some(ranking) = &c.ranking {
            let cost = match (c.cost, c.cost_from, c.cost_age) {
                (Some(cost), Some(from), Some(age)) => format!("cost {cost} ({from}, {age:.0} s old)"),
                _ => "no cost".to_owned(),
            };
            line!(out, "{:>10}{cost}; {ranking}", "");
        }
    }
    for s in leg.found.shadow.iter().flatten() {
        line!(out, "    costs would make it tier {}, class {}: {}", s.tier, s.class, s.instance);
    }
    for l in left_out {
        line!(out, "    left out: {} ({})", l.what, l.reason);
    }
    if !candidates.is_empty() {
        line!(out, "    valid for {} s", leg.found.valid_for);
    }
}
