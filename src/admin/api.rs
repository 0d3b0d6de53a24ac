//! Status, peers and DNS as JSON. Fields are added, never renamed.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::{Instant, SystemTime};

use serde_json::{Value, json};

use crate::config::{ConfigError, DomainPattern, Warning};
use crate::flow::{Host, PeerId};
use crate::location::Instance;
use crate::peering::{InstanceLimits, Party, Used};
use crate::proxy::{PeerEntry, Policy};
use crate::runtime::glance::Fallen;
use crate::runtime::node::{Listed, Node, ReloadError, Reloaded};
use crate::runtime::upgrade::{UpgradeError, Upgraded};

use super::process::Process;
use super::resolve::{down_for, round};
use super::words;

/// Record sets listed where no limit is asked for.
pub const DNS_ENTRIES: usize = 1000;

/// `/api/v1/status`
pub fn status(node: &Node) -> Value {
    let now = Instant::now();
    let (policy, live, stats) = (node.policy(), node.live(), node.stats());
    let started = node.wall_clock(node.started()).duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let process = Process::look();
    let listeners: Vec<Value> = node
        .listeners()
        .iter()
        .map(|l| {
            json!({
                "transport": l.transport.param(),
                "bind": l.bind.to_string(),
                "realm": realm(l.realm),
                "advertise": l.advertise.as_ref().map(|(host, port)| match port {
                    Some(port) => format!("{host}:{port}"),
                    None => host.to_string(),
                }),
            })
        })
        .collect();
    let [taken, refused] = node.reloads();
    let listed = node.instances(now);
    let overload = node.overload(now);
    json!({
        "name": policy.config.node.name.to_string(),
        "version": env!("CARGO_PKG_VERSION"),
        "ready": node.unready().is_none(),
        "reason": node.unready(),
        "draining": node.is_draining(),
        "started": round(started.as_secs_f64()),
        "uptime": round(now.saturating_duration_since(node.started()).as_secs_f64()),
        "config": node.path().map(|p| p.display().to_string()),
        "reloads": { "ok": taken, "error": refused },
        "generation": node.desk().generation(),
        "pid": std::process::id(),
        "predecessor": node.desk().predecessor(),
        "successor": node.desk().successor(),
        "workers": node.shards(),
        "listeners": listeners,
        "calls": live.calls,
        "transactions": { "server": live.servers, "client": live.clients, "open": live.open },
        "overload": {
            "shedding": overload.shedding,
            "admit_ratio": round(overload.admit),
            "delay": round(overload.delay.as_secs_f64()),
            "shed": stats.shed.values().sum::<u64>(),
        },
        "requests": stats.requests.iter().flatten().sum::<u64>(),
        "attempts": stats.attempts.iter().map(|(_, n)| n).sum::<u64>(),
        "failovers": stats.failovers.values().sum::<u64>(),
        "peers": policy.peers.iter().flatten().count(),
        "instances": { "up": listed.iter().filter(|i| is_up(i)).count(), "all": listed.len() },
        "memory": process.resident,
        "descriptors": process.descriptors,
    })
}

/// A realm as the configuration writes it.
pub fn realm(realm: crate::config::Realm) -> &'static str {
    match realm {
        crate::config::Realm::Peering => "peering",
        crate::config::Realm::Core => "core",
        crate::config::Realm::Both => "both",
    }
}

fn is_up(listed: &Listed) -> bool {
    listed.standing == crate::location::Standing::Up
}

/// `/api/v1/peers`
pub fn peers(node: &Node) -> Value {
    let now = Instant::now();
    let (policy, stats, listed) = (node.policy(), node.stats(), node.instances(now));
    let (fallen, ramps) = (node.fallen(), node.ramps(now));
    let used = |l: &Listed| l.peer.and_then(|peer| node.used_of(now, peer, &l.instance));
    let of = |peer| -> (Vec<Value>, Value, Value) {
        let own = listed.iter().filter(|l| l.peer == peer);
        let instances = own.map(|l| instance(l, used(l), &fallen, &ramps, now)).collect();
        let words = |counts: &mut dyn Iterator<Item = ((Option<PeerId>, &'static str), u64)>| {
            let mut words: Vec<_> = counts.filter(|((p, _), _)| *p == peer).collect();
            words.sort_unstable();
            words.into_iter().map(|((_, word), n)| (word.to_owned(), Value::from(n))).collect::<Value>()
        };
        let failovers = &mut stats.failovers.iter().map(|(k, n)| (*k, *n));
        (instances, words(&mut stats.attempts.iter()), words(failovers))
    };
    let all: Vec<Value> = policy
        .peers
        .iter()
        .flatten()
        .map(|peer| {
            let (instances, attempts, failovers) = of(Some(peer.id));
            let config = &peer.config;
            json!({
                "name": config.name,
                "domains": config.domains.iter().map(domain).collect::<Vec<_>>(),
                "next_hop": config.next_hop.as_ref().map(|h| h.uri.as_str()),
                "sources": config
                    .sources
                    .iter()
                    .map(ToString::to_string)
                    .chain(config.source_names.iter().map(|name| format!("dns:{name}")))
                    .collect::<Vec<_>>(),
                "published_sources": published(&policy, peer),
                "calls": node.ledger().calls(peer.id),
                "rate": node.ledger().used(now, peer.id, config.max_rate).rate,
                "max_calls": config.max_calls,
                "max_rate": config.max_rate,
                "max_calls_per_instance": config.max_calls_per_instance,
                "max_rate_per_instance": config.max_rate_per_instance,
                "probed": config.probe.is_some(),
                "instances": instances,
                "attempts": attempts,
                "failovers": failovers,
            })
        })
        .collect();
    let (instances, attempts, failovers) = of(None);
    json!({
        "peers": all,
        "core": {
            "next_hops": policy.config.core.next_hops.iter().map(|h| h.uri.as_str()).collect::<Vec<_>>(),
            "instances": instances,
            "attempts": attempts,
            "failovers": failovers,
        },
    })
}

/// What the names in a peer's `sources` have led to.
fn published(policy: &Policy, peer: &PeerEntry) -> Vec<Value> {
    let of = |name: &Host| {
        let found = policy.published().get(peer.id, name);
        let (own, others): (Vec<IpAddr>, Vec<IpAddr>) = found
            .iter()
            .flat_map(|found| found.addrs.iter().copied())
            .partition(|addr| policy.sources.find(*addr) == Some(Party::Peer(peer.id)));
        let shown = |addrs: &[IpAddr]| addrs.iter().map(ToString::to_string).collect::<Vec<_>>();
        json!({
            "name": name.to_string(),
            // Before the first answer nothing is known.
            "located": found.is_some(),
            "stale": found.is_some_and(|f| f.stale),
            "addresses": shown(&own),
            "of_others": shown(&others),
            "left_out": found.map_or(0, |f| f.left_out),
        })
    };
    peer.config.source_names.iter().map(of).collect()
}

fn domain(pattern: &DomainPattern) -> String {
    match pattern {
        DomainPattern::Exact(host) => host.to_string(),
        DomainPattern::Below(name) => format!("*.{name}"),
    }
}

fn instance(
    listed: &Listed,
    used: Option<(Used, InstanceLimits)>,
    fallen: &Fallen,
    ramps: &BTreeMap<Instance, f64>,
    now: Instant,
) -> Value {
    let down = fallen.get(&listed.instance).filter(|_| !is_up(listed));
    // The part of its share by weight that it gets: less than all of it after a recovery (`slow_start`).
    let part = if is_up(listed) { ramps.get(&listed.instance).copied().unwrap_or(1.0) } else { 0.0 };
    json!({
        "ramp": round(part),
        "instance": listed.instance.to_string(),
        "up": is_up(listed),
        "standing": listed.standing.label(),
        "since": down.map(|(since, _)| round(now.saturating_duration_since(*since).as_secs_f64())),
        "reason": down.map(|(_, reason)| *reason),
        "reason_text": down.map(|(_, reason)| words::fallen(reason)),
        "down_for": down_for(listed.standing, now),
        "probed": listed.probed,
        "calls": used.map(|(used, _)| used.calls),
        "rate": used.map(|(used, _)| used.rate),
        "max_calls": used.and_then(|(_, limits)| limits.calls),
        "max_rate": used.and_then(|(_, limits)| limits.rate),
    })
}

/// `/api/v1/dns`
pub fn dns(node: &Node, limit: usize) -> Value {
    let resolver = node.resolver();
    let entries: Vec<Value> = resolver
        .entries(limit)
        .into_iter()
        .map(|e| {
            json!({
                "name": e.name,
                "type": e.kind.label(),
                "outcome": e.outcome,
                "age": e.age.map(|age| round(age.as_secs_f64())),
                "ttl": round(e.ttl.as_secs_f64()),
                "stale": e.stale,
                "records": e.records,
            })
        })
        .collect();
    json!({
        "servers": resolver.servers().iter().map(ToString::to_string).collect::<Vec<_>>(),
        "count": resolver.entry_count(),
        "queries": resolver.stats().total_queries(),
        "cache": resolver.stats().cache().map(|(result, n)| (result.to_owned(), Value::from(n))).collect::<Value>(),
        "entries": entries,
    })
}

/// What a reload has done, and the HTTP status for it.
pub fn reloaded(outcome: &Result<Reloaded, ReloadError>) -> (u16, Value) {
    match outcome {
        Ok(reloaded) => (
            200,
            json!({
                "ok": true,
                "warnings": reloaded.warnings.iter().map(Warning::to_string).collect::<Vec<_>>(),
                "restart_needed": reloaded.restart_needed,
            }),
        ),
        Err(error) => {
            let errors: Vec<String> = match error {
                ReloadError::Config(errors) => errors.iter().map(ConfigError::to_string).collect(),
                ReloadError::NoFile => Vec::new(),
                ReloadError::Tls(error) => vec![error.to_string()],
            };
            (422, json!({ "ok": false, "error": error.to_string(), "errors": errors }))
        }
    }
}

/// What became of an upgrade, and the HTTP status for it.
pub fn upgraded(outcome: &Result<Upgraded, UpgradeError>) -> (u16, Value) {
    match outcome {
        Ok(Upgraded { pid, generation }) => {
            (200, json!({ "ok": true, "pid": pid, "generation": generation }))
        }
        Err(UpgradeError::Failed(why)) => {
            (422, json!({ "ok": false, "error": "the new process cannot start", "errors": why }))
        }
        Err(error) => {
            let status = if matches!(error, UpgradeError::Refused(_)) { 409 } else { 422 };
            (status, json!({ "ok": false, "error": error.to_string(), "errors": [] }))
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::time::Duration;

    use super::*;
    use crate::flow::Transport;
    use crate::location::Standing;

    #[test]
    fn an_instance_shows_the_part_of_its_share_that_it_gets() {
        let now = Instant::now();
        let at = Instance { transport: Transport::Udp, addr: "192.0.2.7:5060".parse().unwrap() };
        let listed = |standing| Listed { peer: None, instance: at, standing, probed: false };
        let shown = |standing, ramps: &[(Instance, f64)]| {
            instance(&listed(standing), None, &Fallen::default(), &ramps.iter().copied().collect(), now)["ramp"]
                .clone()
        };
        assert_eq!(shown(Standing::Up, &[]), 1.0);
        assert_eq!(shown(Standing::Up, &[(at, 0.55)]), 0.55, "slow start");
        assert_eq!(shown(Standing::Trial, &[]), 0.0);
        assert_eq!(shown(Standing::Down { until: now + Duration::from_secs(2) }, &[(at, 0.55)]), 0.0);
    }
}
