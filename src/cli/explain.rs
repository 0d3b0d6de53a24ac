//! `sbe explain` and `sbe calls`: the decision record for people, as a ladder of what happened when and why.

use std::fmt::Write;

use serde_json::Value;

use super::show::{joined, list, plain};

/// Candidates shown of one party; the rest is counted.
const SHOWN: usize = 12;

/// Writes one line. Writing to a string cannot fail.
macro_rules! line {
    ($out:expr, $($arg:tt)*) => { let _ = writeln!($out, $($arg)*); };
}

/// `sbe explain`
pub fn explanation(v: &Value) -> String {
    let mut out = String::new();
    for (at, request) in list(&v["requests"]).iter().enumerate() {
        if at > 0 {
            out.push('\n');
        }
        one(&mut out, request);
    }
    out
}

fn one(out: &mut String, r: &Value) {
    line!(out, "{} {}", plain(&r["method"]), plain(&r["uri"]));
    line!(out, "  Call-ID  {}", plain(&r["call_id"]));
    line!(out, "  caller   {}", plain(&r["caller"]));
    line!(
        out,
        "  sent by  {}, {} over {}: {}",
        plain(&r["from"]),
        plain(&r["remote"]),
        plain(&r["transport"]),
        plain(&r["identified_by"])
    );
    if list(&r["to"]).is_empty() {
        line!(out, "  goes to  nobody: {}", plain(&r["rule_text"]));
    } else {
        line!(out, "  goes to  {}: {}", joined(&r["to"]), plain(&r["rule_text"]));
    }
    line!(out, "  result   {}", result(r));
    line!(out, "");
    for leg in list(&r["legs"]) {
        leg_text(out, leg);
    }
    let attempts = list(&r["attempts"]);
    for (at, a) in attempts.iter().enumerate() {
        attempt(out, at, a);
    }
    if !r["ended_ms"].is_null() {
        let status = r["status"]
            .as_u64()
            .map_or_else(|| "without a final response".to_owned(), |s| format!("with {s}"));
        line!(out, "{} ended {status}", at_ms(&r["ended_ms"]));
    }
    let summary = spent(r);
    if !summary.is_empty() {
        line!(out, "{:>11}  time spent: {summary}", "");
    }
}

/// The end in one line.
fn result(r: &Value) -> String {
    if r["ended_ms"].is_null() {
        return "under way".to_owned();
    }
    let status = match r["status"].as_u64() {
        Some(status) => status.to_string(),
        None => "no final response".to_owned(),
    };
    let reason = match (&r["reason_text"], &r["reason"]) {
        (Value::String(text), _) => format!(": {}", plain(&Value::String(text.clone()))),
        (_, Value::String(_)) => format!(" ({})", plain(&r["reason"])),
        _ => String::new(),
    };
    let cancelled = if r["cancelled"] == true { ", cancelled by the caller" } else { "" };
    let tries = list(&r["attempts"]).len();
    let by = match tries {
        0 => ", answered here",
        _ => "",
    };
    format!("{status} after {} ms{by}{reason}{cancelled}", plain(&r["ended_ms"]))
}

/// `    500.2 ms `
fn at_ms(ms: &Value) -> String {
    format!("{:>8.1} ms ", ms.as_f64().unwrap_or_default())
}

fn leg_text(out: &mut String, leg: &Value) {
    if leg["asked_ms"].is_null() {
        line!(out, "{:>11}  {}: was not needed", "", plain(&leg["party"]));
        return;
    }
    line!(out, "{} look up {} for {}", at_ms(&leg["asked_ms"]), plain(&leg["target"]), plain(&leg["party"]));
    if let Some(uri) = leg["request_uri"].as_str() {
        line!(out, "{:>11}  the Request-URI becomes {uri}", "");
    }
    for s in list(&leg["steps"]) {
        let source = match (s["stale"] == true, s["cached"] == true) {
            (true, _) => ", from the cache although it has run out (the DNS fails)",
            (_, true) => ", from the cache",
            _ => ", asked",
        };
        let ttl = s["ttl"].as_u64().map_or_else(String::new, |t| format!(", {t} s left to live"));
        line!(
            out,
            "{:>15}{}. {}: {}{source}{ttl}",
            "",
            plain(&s["name"]),
            plain(&s["type"]),
            plain(&s["outcome"])
        );
        for record in list(&s["records"]) {
            line!(out, "{:>17}{}", "", plain(record));
        }
    }
    let candidates = list(&leg["candidates"]);
    if candidates.is_empty() {
        line!(out, "{} nothing found: {}", at_ms(&leg["answered_ms"]), plain(&leg["text"]));
    } else {
        line!(out, "{} found {}, in this order:", at_ms(&leg["answered_ms"]), counted(candidates.len()));
    }
    for c in candidates.iter().take(SHOWN) {
        candidate(out, c);
    }
    if candidates.len() > SHOWN {
        line!(out, "{:>15}and {} more", "", candidates.len() - SHOWN);
    }
    for s in list(&leg["shadow"]) {
        line!(
            out,
            "{:>15}used, costs would make it tier {}, class {}: {}",
            "",
            plain(&s["tier"]),
            plain(&s["class"]),
            plain(&s["instance"])
        );
    }
    for l in list(&leg["left_out"]) {
        line!(out, "{:>15}left out: {} ({})", "", plain(&l["what"]), plain(&l["reason"]));
    }
}

fn counted(n: usize) -> String {
    if n == 1 { "1 candidate".to_owned() } else { format!("{n} candidates") }
}

fn candidate(out: &mut String, c: &Value) {
    let share = c["share"].as_f64().unwrap_or_default() * 100.0;
    let cost = match c["cost"].as_f64() {
        Some(cost) => {
            let age = c["cost_age"].as_f64().map_or_else(String::new, |s| format!(", {s:.0} s old"));
            format!(", cost {cost} ({}{age})", plain(&c["cost_from"]))
        }
        None => String::new(),
    };
    let class = match (c["class"].as_u64(), c["classes"].as_u64()) {
        (Some(class), Some(of)) if of > 1 => format!(", class {class} of {of}"),
        _ => String::new(),
    };
    let health = match c["health"].as_str() {
        None | Some("up" | "unknown") => String::new(),
        Some(_) => {
            let again = c["down_for"].as_f64().map_or_else(String::new, |s| format!(" for {s} s more"));
            format!(", {}{again}", plain(&c["health"]))
        }
    };
    let note = match c["tried"].as_u64() {
        Some(n) => format!("try {n}"),
        None => plain(&c["note"]),
    };
    line!(
        out,
        "{:>15}priority {}, weight {} ({share:.0} %){cost}{class}{health}: {} {} - {note}",
        "",
        plain(&c["priority"]),
        plain(&c["weight"]),
        plain(&c["instance"]),
        plain(&c["target"]),
    );
}

fn attempt(out: &mut String, at: usize, a: &Value) {
    let name = match &a["target"] {
        Value::String(target) => format!(" ({})", plain(&Value::String(target.clone()))),
        _ => String::new(),
    };
    line!(out, "{} try {}: {}{name}", at_ms(&a["started_ms"]), at + 1, plain(&a["instance"]));
    line!(out, "{:>15}chosen: {}", "", plain(&a["why"]));
    line!(out, "{:>15}branch z9hG4bK..{}", "", plain(&a["branch"]));
    if a["ended_ms"].is_null() {
        line!(out, "{:>15}{}", "", plain(&a["what"]));
        return;
    }
    if let Some(first) = a["first_response_ms"].as_f64()
        && first < a["ended_ms"].as_f64().unwrap_or_default()
    {
        line!(out, "{} first response of try {}", at_ms(&a["first_response_ms"]), at + 1);
    }
    line!(
        out,
        "{} try {}, {} ms after it began, {}",
        at_ms(&a["ended_ms"]),
        at + 1,
        plain(&a["took_ms"]),
        plain(&a["what"])
    );
}

/// Where the time went.
fn spent(r: &Value) -> String {
    let mut parts: Vec<String> = Vec::new();
    for leg in list(&r["legs"]) {
        if let (Some(asked), Some(answered)) = (leg["asked_ms"].as_f64(), leg["answered_ms"].as_f64()) {
            parts.push(format!("looking up {} {:.1} ms", plain(&leg["party"]), answered - asked));
        }
    }
    for (at, a) in list(&r["attempts"]).iter().enumerate() {
        if let Some(took) = a["took_ms"].as_f64() {
            parts.push(format!("try {} {took:.1} ms", at + 1));
        }
    }
    parts.join(", ")
}

/// `sbe calls`
pub fn calls(v: &Value) -> String {
    let mut out = String::new();
    let calls = list(&v["calls"]);
    if calls.is_empty() {
        return "no such call among the recent ones\n".to_owned();
    }
    line!(
        out,
        "{:<19}  {:<8} {:>6} {:>9}  {:>5}  {:<24} {:<36} Call-ID",
        "started (UTC)",
        "method",
        "status",
        "ms",
        "tries",
        "from > to",
        "Request-URI"
    );
    for c in calls {
        let to = joined(&c["to"]);
        let status = if c["cancelled"] == true { "cancel".to_owned() } else { plain(&c["status"]) };
        line!(
            out,
            "{:<19}  {:<8} {status:>6} {:>9}  {:>5}  {:<24} {:<36} {}",
            utc(c["started"].as_f64().unwrap_or_default()),
            plain(&c["method"]),
            plain(&c["ended_ms"]),
            plain(&c["attempts_made"]),
            format!("{} > {to}", plain(&c["from"])),
            plain(&c["uri"]),
            plain(&c["call_id"])
        );
    }
    out
}

/// `2026-11-30 17:04:09` of seconds since 1970.
fn utc(seconds: f64) -> String {
    // Out of range becomes the largest, which `time` refuses.
    let Ok(t) = time::OffsetDateTime::from_unix_timestamp(seconds.floor() as i64) else {
        return "-".to_owned();
    };
    let (year, month, day) = t.to_calendar_date();
    format!("{year:04}-{:02}-{day:02} {:02}:{:02}:{:02}", u8::from(month), t.hour(), t.minute(), t.second())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seconds_are_shown_as_a_date() {
        for (seconds, text) in [
            (0.0, "1970-01-01 00:00:00"),
            (951_782_400.0, "2000-02-29 00:00:00"),
            (f64::INFINITY, "-"),
            (1_796_058_249.5, "2026-11-30 17:04:09"),
            (4_107_542_399.0, "2100-02-28 23:59:59"),
            (4_107_542_400.0, "2100-03-01 00:00:00"),
        ] {
            assert_eq!(utc(seconds), text);
        }
    }
}
