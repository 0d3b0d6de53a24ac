#![allow(clippy::unwrap_used)]
//! The clock of the probes.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use smallvec::smallvec;

use super::*;
use crate::config::Config;
use crate::location::{Server, Tier};
use crate::peering::Ledger;

const PROBED: &str = "probe = { method = \"OPTIONS\", interval = \"10s\", timeout = \"2s\" }\n";

fn policy(domains: &str, probe: &str) -> Policy {
    let text = format!(
        "[node]\nname = \"edge.test\"\n[[listen]]\ntransport = \"udp\"\nbind = \"127.0.0.1:5060\"\n\
         [core]\nnext_hops = [\"sip:127.0.0.9\"]\nsources = [\"127.0.0.9/32\"]\n\
         [[peer]]\nname = \"sp\"\ndomains = {domains}\nsources = [\"127.0.0.2/32\"]\n{probe}"
    );
    let config = Config::from_toml_str(&text).unwrap();
    Policy::new(Arc::new(config), Arc::new(Ledger::new(Instant::now())), [1; 16], None)
}

fn found(key: &LocateKey, addrs: &[&str], now: Instant) -> Located {
    let servers = addrs
        .iter()
        .map(|a| {
            let addr: SocketAddr = a.parse().unwrap();
            Server::new(Transport::Udp, addr.ip().to_string().into(), addr.port(), 0, smallvec![addr.ip()])
        })
        .collect();
    let outcome = if addrs.is_empty() { Outcome::NoSuchName } else { Outcome::Found };
    Located::from_tiers(
        key.clone(),
        vec![Tier::new(None, 0, servers)],
        outcome,
        now + Duration::from_secs(60),
    )
}

fn remotes(due: &[(usize, Update)]) -> Vec<String> {
    due.iter()
        .map(|(_, update)| match update {
            Update::Probe { hop, uri, .. } => format!("{} {uri}", hop.remote),
            other => format!("{other:?}"),
        })
        .collect()
}

#[test]
fn each_resolved_address_is_probed_at_the_interval_give_or_take_a_tenth() {
    let (policy, t0) = (policy("[\"a.test\"]", PROBED), Instant::now());
    let mut schedule = Schedule::new([7; 32]);
    schedule.take_over(&policy, t0);
    let key = schedule.due_location(t0).unwrap();
    assert_eq!(key.to_string(), "sip:a.test");
    assert!(schedule.due_location(t0).is_none(), "a location under way is not begun again");
    schedule.located(&policy, t0, &found(&key, &["127.0.0.21:5060", "127.0.0.22:5060"], t0));
    let mut sent: BTreeMap<String, Vec<Duration>> = BTreeMap::new();
    for ms in (0..60_000).step_by(10) {
        let now = t0 + Duration::from_millis(ms);
        for probe in remotes(&schedule.due_probes(&policy, now)) {
            sent.entry(probe).or_default().push(now - t0);
        }
    }
    let probed: Vec<&str> = sent.keys().map(String::as_str).collect();
    assert_eq!(probed, ["127.0.0.21:5060 sip:127.0.0.21:5060", "127.0.0.22:5060 sip:127.0.0.22:5060"]);
    for times in sent.values() {
        assert!(times[0] <= SPREAD + Duration::from_millis(10), "{times:?}");
        for pair in times.windows(2) {
            let gap = pair[1] - pair[0];
            assert!((8_990..=11_020).contains(&gap.as_millis()), "{times:?}");
        }
    }
}

#[test]
fn a_wildcard_names_nobody_and_is_not_probed() {
    let (policy, t0) = (policy("[\"*.a.test\", \"b.test\"]", PROBED), Instant::now());
    let mut schedule = Schedule::new([7; 32]);
    schedule.take_over(&policy, t0);
    assert_eq!(schedule.due_location(t0).unwrap().to_string(), "sip:b.test");
    assert!(schedule.due_location(t0).is_none());
}

#[test]
fn an_address_that_the_dns_no_longer_gives_is_no_longer_probed_and_not_held_down() {
    let (policy, t0) = (policy("[\"a.test\"]", PROBED), Instant::now());
    let mut schedule = Schedule::new([7; 32]);
    schedule.take_over(&policy, t0);
    let key = schedule.due_location(t0).unwrap();
    let gone = schedule.located(&policy, t0, &found(&key, &["127.0.0.21:5060", "127.0.0.22:5060"], t0));
    assert_eq!(gone, []);
    let gone = schedule.located(&policy, t0, &found(&key, &["127.0.0.22:5060"], t0));
    assert_eq!(gone.iter().map(ToString::to_string).collect::<Vec<_>>(), ["udp:127.0.0.21:5060"]);
    assert_eq!(remotes(&schedule.due_probes(&policy, t0 + SPREAD)).len(), 1);
    let gone = schedule.located(&policy, t0, &found(&key, &[], t0));
    assert_eq!(gone.len(), 1);
    assert_eq!(schedule.due_probes(&policy, t0 + Duration::from_secs(99)).len(), 0);
}

#[test]
fn while_the_dns_is_down_the_known_addresses_are_probed_on() {
    let (policy, t0) = (policy("[\"a.test\"]", PROBED), Instant::now());
    let mut schedule = Schedule::new([7; 32]);
    schedule.take_over(&policy, t0);
    let key = schedule.due_location(t0).unwrap();
    schedule.located(&policy, t0, &found(&key, &["127.0.0.21:5060"], t0));
    let failed = Located::from_tiers(key.clone(), Vec::new(), Outcome::TimedOut, t0);
    assert_eq!(schedule.located(&policy, t0, &failed), []);
    assert_eq!(schedule.due_probes(&policy, t0 + SPREAD).len(), 1);
    assert!(schedule.due_location(t0 + Duration::from_millis(900)).is_none(), "not asked again at once");
    assert_eq!(schedule.due_location(t0 + Duration::from_secs(2)), Some(key));
}

#[test]
fn a_peer_whose_probe_is_taken_out_of_the_configuration_is_no_longer_probed() {
    let t0 = Instant::now();
    let (with, without) = (policy("[\"a.test\"]", PROBED), policy("[\"a.test\"]", ""));
    let mut schedule = Schedule::new([7; 32]);
    schedule.take_over(&with, t0);
    let key = schedule.due_location(t0).unwrap();
    schedule.located(&with, t0, &found(&key, &["127.0.0.21:5060"], t0));
    assert_eq!(schedule.take_over(&with, t0), [], "a reload without a change changes nothing");
    assert_eq!(schedule.targets.len(), 1);
    assert_eq!(schedule.take_over(&without, t0).len(), 1);
    assert_eq!((schedule.targets.len(), schedule.places.len()), (0, 0));
}

#[test]
fn the_number_of_probed_addresses_is_bounded_and_none_is_our_own_listener() {
    let (policy, t0) = (policy("[\"a.test\"]", PROBED), Instant::now());
    let mut schedule = Schedule::new([7; 32]);
    schedule.take_over(&policy, t0);
    let key = schedule.due_location(t0).unwrap();
    let many: Vec<String> = (0..5000).map(|n| format!("127.1.{}.{}:5060", n / 250, n % 250 + 1)).collect();
    let mut addrs: Vec<&str> = many.iter().map(String::as_str).collect();
    addrs.insert(0, "127.0.0.1:5060");
    schedule.located(&policy, t0, &found(&key, &addrs, t0));
    assert_eq!(schedule.targets.len(), MAX_PROBED);
    assert!(!schedule.targets.keys().any(|(_, i)| i.addr == "127.0.0.1:5060".parse().unwrap()));
}
