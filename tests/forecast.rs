//! Where calls would go, foretold, against where the selection sends them.

#![allow(clippy::unwrap_used)]

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use proptest::prelude::*;
use sbe::config::{Realm, SrvSelection};
use sbe::flow::{Host, Transport};
use sbe::location::*;
use smallvec::SmallVec;

fn addr(n: u8) -> IpAddr {
    IpAddr::V4(Ipv4Addr::new(192, 0, 2, n))
}

/// Tiers of servers, each with its weight and the last octets of its addresses.
fn located(tiers: &[Vec<(u16, Vec<u8>)>], now: Instant) -> Located {
    let key = LocateKey {
        host: Host::Name("dest.test".into()),
        port: None,
        transport: None,
        sips: false,
        realm: Realm::Both,
    };
    let mut number = 0;
    let tiers = tiers.iter().enumerate().map(|(priority, servers)| {
        let servers = servers.iter().map(|(weight, addrs)| {
            number += 1;
            let addrs: SmallVec<[IpAddr; 2]> = addrs.iter().map(|n| addr(*n)).collect();
            Server::new(Transport::Udp, format!("s{number}.test").into(), 5060, *weight, addrs)
        });
        Tier::new(None, u16::try_from(priority).unwrap(), servers.collect())
    });
    Located::from_tiers(key, tiers.collect(), Outcome::Found, now + Duration::from_secs(60))
}

fn health(now: Instant, down: &dyn Fn(&Instance) -> bool, located: &Located) -> Health {
    let second = Duration::from_secs(1);
    let mut health = Health::new(HealthPolicy {
        hold_down: second,
        hold_down_max: second,
        retry_after_max: second,
        trial_timeout: second,
        slow_start: Duration::ZERO,
        max_probed_down: 1.0,
    });
    for instance in located.instances().filter(|i| down(i)) {
        health.observe(now, instance, Observation::ProbeBad { down_after: 1 });
    }
    health
}

fn last(instance: &Instance) -> u8 {
    match instance.addr.ip() {
        IpAddr::V4(a) => a.octets()[3],
        IpAddr::V6(_) => 0,
    }
}

/// Compares a forecast with `calls` calls: the shares of the first tries, and the order of tiers and of what is down.
fn compare(tiers: &[Vec<(u16, Vec<u8>)>], down: &[u8], own: &[u8], mode: SrvSelection, calls: u32) {
    let now = Instant::now();
    let located = Arc::new(located(tiers, now));
    let is_down = |i: &Instance| down.contains(&last(i));
    let usable = |i: &Instance| match (own.contains(&last(i)), is_down(i)) {
        (true, _) => Usable::Never,
        (false, true) => Usable::AsLastResort,
        (false, false) => Usable::Yes,
    };
    let foretold = forecast(&located, mode, now, &usable);
    let avoid = |i: &Instance| own.contains(&last(i)).then_some(LeftOutReason::OwnListener);
    let mut health = health(now, &is_down, &located);
    let mut firsts: HashMap<(usize, usize, Instance), f64> = HashMap::new();
    let mut way = Vec::new();
    for seed in 0..calls {
        let mut selection =
            Selection::new(located.clone(), u64::from(seed).wrapping_mul(0x9e37_79b9_97f4_a7c1), mode);
        let mut next = || selection.next(now, &mut health, &avoid);
        let first = next();
        if let Some(c) = first {
            *firsts.entry((c.tier.into(), c.server.into(), c.instance)).or_default() +=
                1.0 / f64::from(calls);
        }
        way = first.into_iter().collect();
        if seed >= 50 {
            continue;
        }
        way.extend(std::iter::from_fn(next));
        // Whatever is drawn, a call goes through the tiers, and through what is up, in the order foretold.
        let mut order: Vec<(usize, Instance)> = foretold
            .prospects
            .iter()
            .map(|p| (p.order, located.tiers[p.tier].servers[p.server].instance(p.address).unwrap()))
            .collect();
        order.sort();
        order.dedup();
        let shape = |i: &Instance| usable(i);
        assert_eq!(
            order.iter().map(|(_, i)| shape(i)).collect::<Vec<_>>(),
            way.iter().map(|c| shape(&c.instance)).collect::<Vec<_>>()
        );
    }
    assert_eq!(foretold.prospects.is_empty(), way.is_empty());
    let total: f64 = foretold.prospects.iter().map(|p| p.first).sum();
    assert!(way.is_empty() || (total - 1.0).abs() < 1e-9, "{total}");
    for p in &foretold.prospects {
        let instance = located.tiers[p.tier].servers[p.server].instance(p.address).unwrap();
        let seen = firsts.remove(&(p.tier, p.server, instance)).unwrap_or(0.0);
        let variance = p.first * (1.0 - p.first);
        let estimate = foretold.sampled.map_or(0.0, |n| 1.0 / f64::from(n));
        let bound = 5.0 * (variance * (1.0 / f64::from(calls) + estimate)).sqrt()
            + 1.5 / f64::from(calls)
            + 20.0 * estimate;
        assert!((seen - p.first).abs() <= bound, "{instance}: foretold {}, seen {seen}", p.first);
    }
    assert!(firsts.is_empty(), "first and not foretold: {firsts:?}");
}

#[test]
fn without_the_largest_the_others_keep_their_proportions() {
    let tiers = [vec![(60, vec![1]), (30, vec![2]), (10, vec![3])], vec![(0, vec![4])]];
    let now = Instant::now();
    let located = located(&tiers, now);
    let firsts = |down: &[u8]| -> Vec<f64> {
        let usable = |i: &Instance| if down.contains(&last(i)) { Usable::AsLastResort } else { Usable::Yes };
        let foretold = forecast(&located, SrvSelection::Exact, now, &usable);
        foretold.prospects.iter().map(|p| p.first).collect()
    };
    assert_eq!(firsts(&[]), [0.6, 0.3, 0.1, 0.0]);
    assert_eq!(firsts(&[1]), [0.0, 0.75, 0.25, 0.0]);
    assert_eq!(firsts(&[1, 2, 3]), [0.0, 0.0, 0.0, 1.0]);
    // Everything is down: the usual order.
    assert_eq!(firsts(&[1, 2, 3, 4]), [0.6, 0.3, 0.1, 0.0]);
}

#[test]
fn what_is_down_comes_last_and_addresses_of_a_server_one_after_the_other() {
    let now = Instant::now();
    let located = located(&[vec![(10, vec![1]), (90, vec![2, 3])], vec![(0, vec![4, 1])]], now);
    let usable = |i: &Instance| if last(i) == 2 { Usable::AsLastResort } else { Usable::Yes };
    let foretold = forecast(&located, SrvSelection::Exact, now, &usable);
    let orders: Vec<(usize, f64)> = foretold.prospects.iter().map(|p| (p.order, p.first)).collect();
    assert_eq!(orders, [(1, 0.1), (3, 0.0), (0, 0.9), (2, 0.0), (1, 0.0)], "the last is the first once more");
    assert_eq!(foretold.sampled, None);
}

#[test]
fn large_tiers_are_foretold_as_they_are_drawn() {
    let servers: Vec<(u16, Vec<u8>)> = (1..=100).map(|n| (n, vec![u8::try_from(n).unwrap()])).collect();
    compare(&[servers], &[100, 99, 98, 97, 96, 95], &[94], SrvSelection::Exact, 3000);
}

#[test]
fn the_literal_procedure_is_foretold_by_its_own_draws() {
    for (down, own) in [(&[][..], &[][..]), (&[1, 2], &[][..]), (&[1], &[3]), (&[1, 2, 3, 4, 5], &[])] {
        let tiers = [vec![(5, vec![1]), (0, vec![2]), (2, vec![3]), (1, vec![4])], vec![(0, vec![5])]];
        compare(&tiers, down, own, SrvSelection::Rfc2782, 5000);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn calls_go_where_the_forecast_says(
        tiers in prop::collection::vec(
            prop::collection::vec((prop_oneof![Just(0_u16), 0_u16..100, Just(65535)], prop::collection::vec(1_u8..24, 1..4)), 1..6),
            1..4,
        ),
        down in prop::collection::vec(1_u8..24, 0..20),
        own in prop::collection::vec(1_u8..24, 0..3),
    ) {
        // A server does not list an address twice.
        let tiers: Vec<Vec<(u16, Vec<u8>)>> = tiers
            .into_iter()
            .map(|t| t.into_iter().map(|(w, mut a)| { a.sort_unstable(); a.dedup(); (w, a) }).collect())
            .collect();
        compare(&tiers, &down, &own, SrvSelection::Exact, 2000);
    }
}
