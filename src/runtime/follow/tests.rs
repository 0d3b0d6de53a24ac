#![allow(clippy::unwrap_used)]
//! When names are located again, and what stays while the DNS is down.

use std::net::SocketAddr;

use smallvec::smallvec;

use super::*;
use crate::config::Config;
use crate::flow::Transport;
use crate::location::{Server, Tier};
use crate::peering::{Ledger, Party};

const STALE: Duration = Duration::from_secs(600);

fn policy(sources: &str) -> Policy {
    let text = format!(
        "[node]\nname = \"edge.test\"\n[[listen]]\ntransport = \"udp\"\nbind = \"127.0.0.1:5060\"\n\
         [core]\nnext_hops = [\"sip:127.0.0.9\"]\nsources = [\"10.0.0.0/8\"]\n\
         [[peer]]\nname = \"one\"\ndomains = [\"one.test\"]\nsources = {sources}\n\
         [[peer]]\nname = \"two\"\ndomains = [\"two.test\"]\nsources = [\"203.0.113.0/24\"]\n"
    );
    let config = Config::from_toml_str(&text).unwrap();
    Policy::new(Arc::new(config), Arc::new(Ledger::new(Instant::now())), [1; 16], None)
}

fn found(key: &LocateKey, outcome: Outcome, addrs: &[&str], now: Instant) -> Located {
    let servers = addrs
        .iter()
        .map(|a| {
            let addr: SocketAddr = format!("{a}:5060").parse().unwrap();
            Server::new(Transport::Udp, addr.ip().to_string().into(), addr.port(), 0, smallvec![addr.ip()])
        })
        .collect();
    let tiers = vec![Tier::new(None, 0, servers)];
    Located::from_tiers(key.clone(), tiers, outcome, now + Duration::from_secs(60))
}

fn addrs(follower: &Follower) -> Vec<String> {
    let published = follower.published();
    published
        .iter()
        .flat_map(|(_, _, f)| f.addrs.iter().map(ToString::to_string).collect::<Vec<_>>())
        .collect()
}

/// A follower that has found these addresses, with the key it asks for.
fn begun(found_first: &[&str], now: Instant) -> (Follower, LocateKey) {
    let mut follower = Follower::default();
    follower.take_over(&policy("[\"dns:one.test\"]"), now);
    let key = follower.due(now).unwrap();
    assert!(follower.due(now).is_none(), "a location under way is not begun again");
    follower.located(now, &found(&key, Outcome::Found, found_first, now), STALE);
    (follower, key)
}

#[test]
fn a_name_is_located_again_when_it_has_run_out_and_what_it_leads_to_then_is_all_that_counts() {
    let t0 = Instant::now();
    let (mut follower, key) = begun(&["192.0.2.2", "192.0.2.1", "192.0.2.2"], t0);
    assert_eq!(key.to_string(), "sip:one.test");
    assert_eq!(addrs(&follower), ["192.0.2.1", "192.0.2.2"]);
    assert_eq!(follower.nap(t0, true), Duration::from_secs(60));
    assert!(follower.due(t0 + Duration::from_secs(59)).is_none());
    let t1 = t0 + Duration::from_secs(60);
    assert_eq!(follower.due(t1), Some(key.clone()));
    follower.located(t1, &found(&key, Outcome::Found, &["192.0.2.3"], t1), STALE);
    assert_eq!(addrs(&follower), ["192.0.2.3"]);
    follower.located(t1, &found(&key, Outcome::NoSuchName, &[], t1), STALE);
    assert!(addrs(&follower).is_empty(), "a name that is gone lets nobody in");
}

#[test]
fn while_the_dns_is_down_what_is_known_serves_as_long_as_stale_answers_do_and_no_longer() {
    let t0 = Instant::now();
    let (mut follower, key) = begun(&["192.0.2.1"], t0);
    let end = Duration::from_secs(60) + STALE;
    for (after, want) in [(Duration::from_secs(61), 1), (end - Duration::from_millis(1), 1), (end, 0)] {
        let now = t0 + after;
        follower.located(now, &found(&key, Outcome::DnsFailure, &[], now), STALE);
        assert_eq!(addrs(&follower).len(), want, "{after:?}");
        assert!(follower.nap(now, true) <= RETRY, "it is asked again soon");
        let published = follower.published();
        assert!(published.iter().all(|(_, _, f)| f.stale));
    }
}

#[test]
fn a_reload_keeps_what_is_known_of_names_that_stay_and_drops_the_others() {
    let t0 = Instant::now();
    let (mut follower, key) = begun(&["192.0.2.1"], t0);
    follower.take_over(&policy("[\"dns:more.test\", \"dns:one.test\"]"), t0);
    assert_eq!(addrs(&follower), ["192.0.2.1"]);
    let due: Vec<String> = std::iter::from_fn(|| follower.due(t0)).map(|k| k.to_string()).collect();
    assert_eq!(due, ["sip:more.test", "sip:one.test"]);
    follower.take_over(&policy("[\"192.0.2.1\"]"), t0);
    follower.located(t0, &found(&key, Outcome::Found, &["192.0.2.9"], t0), STALE);
    assert_eq!(follower.published(), Published::default());
}

#[test]
fn one_name_can_let_in_so_many_and_tells_how_many_it_does_not() {
    let many: Vec<String> = (0..300).map(|n| format!("192.0.{}.{}", n / 250, n % 250 + 1)).collect();
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    // So many servers are more than a location gives; the bound holds whoever asks.
    let (follower, _) = begun(&many, Instant::now());
    let published = follower.published();
    let (_, _, name) = published.iter().next().unwrap();
    assert!(name.addrs.len() <= MAX_ADDRESSES);
    assert_eq!(
        name.addrs.len() + name.left_out,
        addresses(&found(
            &LocateKey {
                host: Host::Name("one.test".into()),
                port: None,
                transport: None,
                sips: false,
                realm: Realm::Peering,
            },
            Outcome::Found,
            &many,
            Instant::now(),
        ))
        .len()
    );
}

#[test]
fn nobody_gets_the_addresses_of_another_by_publishing_them() {
    let t0 = Instant::now();
    let policy = policy("[\"dns:one.test\"]");
    let mut follower = Follower::default();
    follower.take_over(&policy, t0);
    let key = follower.due(t0).unwrap();
    let all = ["10.0.0.5", "203.0.113.7", "198.51.100.1", "0.0.0.0", "224.0.0.1"];
    follower.located(t0, &found(&key, Outcome::Found, &all, t0), STALE);
    assert_eq!(addrs(&follower), ["10.0.0.5", "198.51.100.1", "203.0.113.7"]);
    let with = policy.with_published(follower.published());
    let who = |addr: &str| with.sources.find(addr.parse().unwrap());
    assert_eq!(who("10.0.0.5"), Some(Party::Core));
    assert_eq!(who("203.0.113.7"), Some(Party::Peer(PeerId(1))));
    assert_eq!(who("198.51.100.1"), Some(Party::Peer(PeerId(0))));
    assert_eq!(who("198.51.100.2"), None);
    assert_eq!(policy.sources.find("198.51.100.1".parse().unwrap()), None);
    // Another configuration begins with what is known.
    let again = Policy::new(Arc::clone(&with.config), Arc::clone(&with.ledger), [1; 16], Some(&with));
    assert_eq!(again.sources.find("198.51.100.1".parse().unwrap()), Some(Party::Peer(PeerId(0))));
}
