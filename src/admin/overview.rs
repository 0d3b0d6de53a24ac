//! What an operator looks at first, in one answer: `/api/v1/overview`, and every second `/api/v1/events`.
//! And `/api/v1/certificates`.

use std::collections::{BTreeMap, HashMap};
use std::time::{Instant, SystemTime};

use serde_json::{Value, json};

use crate::flow::{PeerId, Transport};
use crate::location::{Instance, Located, Standing};
use crate::proxy::Policy;
use crate::runtime::Direction;
use crate::runtime::glance::{Fallen, Glance};
use crate::runtime::node::{Listed, Node};
use crate::runtime::tls::Setting;

use super::feed::Seen;
use super::journal::{Event, Journal};
use super::resolve::{down_for, round};
use super::window::{Attempts, Counts, Directions, SECONDS, Second, Tally, Window, ratio};
use super::words;

/// Peers in one answer: those in trouble first, then by calls. `/api/v1/peers` has all.
const PEERS: usize = 100;
/// Instances of a peer in one answer, those in trouble first.
const INSTANCES: usize = 64;
/// Causes of failure in one answer, most frequent first.
const CAUSES: usize = 20;
/// Happenings in one answer.
const HAPPENED: usize = 30;
/// Seconds over which rates are averaged.
const RATE: usize = 5;

/// Where an instance stands in what was located last.
#[derive(Clone, Debug)]
struct Place {
    target: String,
    priority: u16,
    weight: u16,
    share: f64,
}

type Places = HashMap<(Option<PeerId>, Instance), Place>;

/// Everything, of this moment. `history`: with the course of the last minutes.
pub fn overview(node: &Node, seen: &Seen, second: u64, history: bool) -> Value {
    let Seen { glance, window, journal, .. } = seen;
    let now = Instant::now();
    let policy = node.policy();
    let counts = window.sum(second);
    let listed = node.instances(now);
    let up = listed.iter().filter(|l| l.standing == Standing::Up).count();
    let overload = node.overload(now);
    let at = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let places = places(node, now);
    let (peers, left_out) = parties(node, &policy, glance, &counts, &listed, &places, now);
    let mut value = json!({
        "at": round(at.as_secs_f64()),
        "name": policy.config.node.name.to_string(),
        "version": env!("CARGO_PKG_VERSION"),
        "uptime": round(now.saturating_duration_since(node.started()).as_secs_f64()),
        "ready": node.unready().is_none(),
        "reason": node.unready(),
        "draining": node.is_draining(),
        "open": glance.open,
        "calls": glance.calls,
        "records": policy.config.limits.records > 0,
        "overload": {
            "enabled": policy.config.overload.enabled,
            "shedding": overload.shedding,
            "admit_ratio": round(overload.admit),
            "delay_ms": round(overload.delay.as_secs_f64() * 1000.0),
            "target_ms": round(policy.config.overload.target_delay.as_secs_f64() * 1000.0),
            "shed": glance.stats.shed.values().sum::<u64>(),
        },
        "limits": limits(node, &policy, glance),
        "warnings": node.certificate_warnings(),
        "dns_stale": node.resolver().stats().cache().find(|(word, _)| *word == "stale").map(|(_, n)| n),
        "instances": { "up": up, "all": listed.len() },
        "rates": rates(window),
        "window": {
            "seconds": SECONDS,
            "calls": counts.all.calls,
            "all": tally(&counts.all),
            "causes": causes(&counts),
            "outcomes": outcomes(&counts),
        },
        "happened": happened(node, &policy, journal, &listed, &places),
        "peers": peers,
        "peers_left_out": left_out,
        "second": window.seconds().next_back().map(row),
    });
    if history && let Some(map) = value.as_object_mut() {
        let seconds: Vec<Value> = window.seconds().map(row).collect();
        map.insert("history".into(), seconds.into());
    }
    value
}

/// The last happenings, newest first.
fn happened(
    node: &Node,
    policy: &Policy,
    journal: &Journal,
    listed: &[Listed],
    places: &Places,
) -> Vec<Value> {
    let of = |instance: &Instance| {
        let peer = listed.iter().find(|l| l.instance == *instance).map(|l| l.peer);
        let place = peer.and_then(|p| places.get(&(p, *instance)));
        json!({
            "instance": instance.to_string(),
            "peer": peer.map(|p| policy.peer_name(p)),
            "target": place.map(|p| p.target.as_str()),
        })
    };
    let all = journal.last(HAPPENED).map(|(at, event)| {
        let (word, mut value) = match event {
            Event::Down(instance, reason) => {
                let mut value = of(instance);
                value["reason"] = (*reason).into();
                value["text"] = words::fallen(reason).into();
                ("down", value)
            }
            Event::Up(instance, after) => {
                let mut value = of(instance);
                value["after"] = round(after.as_secs_f64()).into();
                ("up", value)
            }
            Event::Shedding(true) => ("overload_begins", json!({})),
            Event::Shedding(false) => ("overload_ends", json!({})),
            Event::Draining(true) => ("drain_begins", json!({})),
            Event::Draining(false) => ("drain_ends", json!({})),
        };
        let at = node.wall_clock(*at).duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        value["event"] = word.into();
        value["at"] = round(at.as_secs_f64()).into();
        value
    });
    all.collect()
}

/// `[calls, invites, attempts, failovers, refused]`
fn row(s: &Second) -> Value {
    json!([s.calls, s.invites, s.attempts, s.failovers, s.refused])
}

/// Per second, over the last few.
fn rates(window: &Window) -> Value {
    let last: Vec<&Second> = window.seconds().rev().take(RATE).collect();
    let mean = |of: fn(&Second) -> u64| {
        let sum: u64 = last.iter().map(|s| of(s)).sum();
        ratio(sum, last.len() as u64).map(|r| (r * 10.0).round() / 10.0)
    };
    json!({
        "invites": mean(|s| s.invites),
        "attempts": mean(|s| s.attempts),
        "failovers": mean(|s| s.failovers),
        "refused": mean(|s| s.refused),
    })
}

/// What is used of what there is.
fn limits(node: &Node, policy: &Policy, glance: &Glance) -> Value {
    let limits = &policy.config.limits;
    let connections: i64 = [Transport::Tcp, Transport::Tls]
        .into_iter()
        .flat_map(|t| Direction::ALL.map(|d| node.counters().connections(t, d)))
        .sum();
    json!([
        { "name": "transactions", "used": glance.contexts, "limit": limits.transactions },
        { "name": "connections", "used": connections, "limit": limits.connections },
        { "name": "dns_entries", "used": node.resolver().entry_count(), "limit": limits.dns_entries },
    ])
}

fn tally(tally: &Tally) -> Value {
    let delay = |share| tally.delay.percentile(share).map(|ms| (ms * 10.0).round() / 10.0);
    json!({
        "calls": tally.calls,
        "answered": tally.answered,
        "cancelled": tally.cancelled,
        "refused": tally.refused,
        "failed_over": tally.failed_over,
        "answer_ratio": tally.answer_ratio().map(round),
        "effectiveness": tally.effectiveness().map(round),
        "delay_ms": { "p50": delay(0.5), "p95": delay(0.95), "p99": delay(0.99) },
    })
}

fn causes(counts: &Counts) -> Vec<Value> {
    let mut all: Vec<_> = counts.causes.iter().collect();
    all.sort_by_key(|(_, n)| std::cmp::Reverse(**n));
    let all = all.into_iter().take(CAUSES);
    all.map(|(&(reason, status), n)| {
        json!({
            "status": status,
            "reason": (!reason.is_empty()).then_some(reason),
            "text": words::refusal(reason),
            "calls": n,
        })
    })
    .collect()
}

fn outcomes(counts: &Counts) -> Vec<Value> {
    let mut all: Vec<_> = counts.outcomes.iter().collect();
    all.sort_by_key(|(_, n)| std::cmp::Reverse(**n));
    let all = all.into_iter().take(CAUSES);
    all.map(|(outcome, n)| json!({ "outcome": outcome, "text": words::failure(outcome), "attempts": n }))
        .collect()
}

/// The core and the peers, and how many peers found no place.
fn parties(
    node: &Node,
    policy: &Policy,
    glance: &Glance,
    counts: &Counts,
    listed: &[Listed],
    places: &Places,
    now: Instant,
) -> (Vec<Value>, usize) {
    let fallen = node.fallen();
    let ramps = node.ramps(now);
    let mut by_peer: HashMap<Option<PeerId>, Vec<&Listed>> = HashMap::new();
    for one in listed {
        by_peer.entry(one.peer).or_default().push(one);
    }
    let bad = |peer: Option<PeerId>| {
        by_peer.get(&peer).map_or(0, |all| all.iter().filter(|l| l.standing != Standing::Up).count())
    };
    let calls = |peer: Option<PeerId>| counts.parties.get(&peer).map_or(0, |d| d.to.calls + d.from.calls);
    let mut ids: Vec<Option<PeerId>> = policy.peers.iter().flatten().map(|p| Some(p.id)).collect();
    // Stable: in the order of the configuration where nothing else speaks.
    ids.sort_by_cached_key(|id| std::cmp::Reverse((bad(*id) > 0, calls(*id))));
    let left_out = ids.len().saturating_sub(PEERS);
    ids.truncate(PEERS);
    ids.insert(0, None);
    let nothing = Directions::default();
    let none = Vec::new();
    let all = ids.into_iter().map(|id| {
        let listed = by_peer.get(&id).unwrap_or(&none);
        let peer = id.and_then(|i| policy.peer(i));
        let both = counts.parties.get(&id).unwrap_or(&nothing);
        let attempts: u64 = glance.stats.attempts.iter().filter(|((p, _), _)| *p == id).map(|(_, n)| n).sum();
        let (shown, more) = instances(id, listed, counts, &fallen, &ramps, places, now);
        json!({
            "name": policy.peer_name(id),
            "core": id.is_none(),
            "calls": id.map(|i| node.ledger().calls(i)),
            "max_calls": peer.and_then(|p| p.config.max_calls),
            "max_rate": peer.and_then(|p| p.config.max_rate),
            "probed": peer.is_some_and(|p| p.config.probe.is_some()),
            "attempts": attempts,
            "to": tally(&both.to),
            "from": tally(&both.from),
            "up": listed.len() - bad(id),
            "instances": shown,
            "instances_left_out": more,
        })
    });
    (all.collect(), left_out)
}

fn instances(
    peer: Option<PeerId>,
    listed: &[&Listed],
    counts: &Counts,
    fallen: &Fallen,
    ramps: &BTreeMap<Instance, f64>,
    places: &Places,
    now: Instant,
) -> (Vec<Value>, usize) {
    let of = |i: Instance| counts.instances.get(&(peer, i)).copied().unwrap_or_default();
    let all: u64 = listed.iter().map(|l| of(l.instance).all).sum();
    let mut shown: Vec<&&Listed> = listed.iter().collect();
    let left_out = shown.len().saturating_sub(INSTANCES);
    if left_out > 0 {
        shown.sort_by_key(|l| (l.standing == Standing::Up, std::cmp::Reverse(of(l.instance).all)));
        shown.truncate(INSTANCES);
    }
    // As a call would go through them.
    let rank = |l: &Listed| {
        places.get(&(peer, l.instance)).map_or((u16::MAX, 0), |p| (p.priority, u16::MAX - p.weight))
    };
    shown.sort_by_cached_key(|l| (l.instance.transport, rank(l), l.instance));
    let shown = shown.into_iter().map(|l| {
        let place = places.get(&(peer, l.instance));
        let Attempts { all: attempts, ok, failed } = of(l.instance);
        let down = fallen.get(&l.instance).filter(|_| l.standing != Standing::Up);
        json!({
            "instance": l.instance.to_string(),
            "transport": l.instance.transport.param(),
            "address": l.instance.addr.to_string(),
            "target": place.map(|p| p.target.as_str()),
            "priority": place.map(|p| p.priority),
            "weight": place.map(|p| p.weight),
            "planned": place.map(|p| round(p.share)),
            "standing": l.standing.label(),
            "up": l.standing == Standing::Up,
            "since": down.map(|(since, _)| round(now.saturating_duration_since(*since).as_secs_f64())),
            "reason": down.map(|(_, reason)| *reason),
            "reason_text": down.map(|(_, reason)| words::fallen(reason)),
            "down_for": down_for(l.standing, now),
            "ramp": ramps.get(&l.instance).map(|r| round(*r)),
            "probed": l.probed,
            "attempts": attempts,
            "ok": ok,
            "failed": failed,
            "share": ratio(attempts, all).map(round),
        })
    });
    (shown.collect(), left_out)
}

/// Where each instance stands in what was located for its peer.
fn places(node: &Node, now: Instant) -> Places {
    let mut all = HashMap::new();
    for (peer, located) in node.stats().locations(now) {
        place_all(&mut all, peer, &located);
    }
    all
}

fn place_all(all: &mut Places, peer: Option<PeerId>, located: &Located) {
    for tier in &located.tiers {
        for (at, server) in tier.servers.iter().enumerate() {
            for instance in (0..server.addrs.len()).filter_map(|a| server.instance(a)) {
                all.entry((peer, instance)).or_insert_with(|| Place {
                    target: server.target.to_string(),
                    priority: tier.priority,
                    weight: server.weight,
                    share: tier.share(at),
                });
            }
        }
    }
}

/// `/api/v1/certificates`
pub fn certificates(node: &Node) -> Value {
    let now = SystemTime::now();
    let unix = |at: SystemTime| at.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs();
    let all: Vec<Value> = node
        .certificates()
        .iter()
        .map(|c| {
            let left = match c.not_after.duration_since(now) {
                Ok(left) => left.as_secs_f64(),
                Err(over) => -over.duration().as_secs_f64(),
            };
            json!({
                "file": c.file.display().to_string(),
                "peer": match &c.setting {
                    Setting::PeerCertificate(peer) => Some(peer.as_str()),
                    _ => None,
                },
                "names": c.names,
                "not_before": unix(c.not_before),
                "not_after": unix(c.not_after),
                // A day that has begun does not count.
                "days_left": (left / 86_400.0).floor() as i64,
            })
        })
        .collect();
    json!({ "certificates": all, "warnings": node.certificate_warnings() })
}
