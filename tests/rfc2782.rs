//! RFC 2782: priority strictly, weight as a share; and what health does to the order.

#![allow(clippy::unwrap_used)]

use std::collections::{BTreeMap, HashSet};
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use proptest::prelude::*;
use sbe::config::SrvSelection;
use sbe::flow::Transport;
use sbe::location::*;
use smallvec::SmallVec;

mod zone;
use zone::{health, key};

const EXACT: SrvSelection = SrvSelection::Exact;
const SEEDS: [u64; 10] = [1, 2, 3, 5, 8, 13, 21, 0xdead_beef, u64::MAX, 0x0123_4567_89ab_cdef];

/// A seed for the `i`th request of a run.
fn seed(run: u64, i: u64) -> u64 {
    let x = (run ^ i.wrapping_mul(0xd134_2543_de82_ef95)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    x ^ (x >> 29)
}

fn addr(n: u32) -> IpAddr {
    Ipv4Addr::from(0x0a00_0000 + n).into()
}

/// One server for each weight, `10.0.0.<number>`.
fn tier(priority: u16, first: u32, weights: &[u16]) -> Tier {
    let server = |(i, w): (usize, &u16)| {
        let n = first + u32::try_from(i).unwrap();
        Server::new(Transport::Udp, format!("s{n}").into(), 5060, *w, SmallVec::from_slice(&[addr(n)]))
    };
    Tier::new(None, priority, weights.iter().enumerate().map(server).collect())
}

fn located(tiers: Vec<Tier>, now: Instant) -> Arc<Located> {
    Arc::new(Located::from_tiers(key("sip:d"), tiers, Outcome::Found, now + Duration::from_secs(60)))
}

fn udp(n: u32) -> Instance {
    Instance { transport: Transport::Udp, addr: (addr(n), 5060).into() }
}

fn all(
    located: &Arc<Located>,
    seed: u64,
    mode: SrvSelection,
    now: Instant,
    health: &mut Health,
) -> Vec<Candidate> {
    let mut s = Selection::new(Arc::clone(located), seed, mode);
    std::iter::from_fn(|| s.next(now, health, &|_| None)).collect()
}

fn first(located: &Arc<Located>, seed: u64, now: Instant, health: &mut Health) -> Instance {
    Selection::new(Arc::clone(located), seed, EXACT).next(now, health, &|_| None).unwrap().instance
}

/// How often each server comes first, in percent, over `n` requests.
fn shares(weights: &[u16], mode: SrvSelection, run: u64, n: u64) -> Vec<f64> {
    let now = Instant::now();
    let located = located(vec![tier(10, 0, weights)], now);
    let mut health = health();
    let mut counts = vec![0u64; weights.len()];
    for i in 0..n {
        let mut s = Selection::new(Arc::clone(&located), seed(run, i), mode);
        counts[usize::from(s.next(now, &mut health, &|_| None).unwrap().server)] += 1;
    }
    counts.iter().map(|c| 100.0 * *c as f64 / n as f64).collect()
}

fn near(shares: &[f64], want: &[f64], within: f64) {
    assert_eq!(shares.len(), want.len());
    assert!(shares.iter().zip(want).all(|(s, w)| (s - w).abs() <= within), "{shares:?}, not {want:?}");
}

#[test]
fn weights_3_2_1_give_their_shares_for_every_seed() {
    for run in SEEDS {
        near(&shares(&[3, 2, 1], EXACT, run, 60_000), &[50.0, 33.33, 16.67], 1.0);
    }
}

#[test]
fn equal_weights_and_zeros_alone_are_drawn_evenly() {
    for run in SEEDS {
        near(&shares(&[1, 1], EXACT, run, 20_000), &[50.0, 50.0], 1.5);
        near(&shares(&[0, 0, 0], EXACT, run, 20_000), &[33.3, 33.3, 33.3], 1.5);
        near(&shares(&[65535; 3], EXACT, run, 20_000), &[33.3, 33.3, 33.3], 1.5);
    }
}

#[test]
fn a_zero_among_others_gets_a_small_share_and_never_none() {
    let s = shares(&[0, 1], EXACT, 7, 60_000);
    assert!((0.5..1.6).contains(&s[0]), "a hundredth of weight 1: {s:?}");
    let s = shares(&[0, 100], EXACT, 7, 60_000);
    assert!(s[0] < 0.1, "{s:?}");
}

#[test]
fn many_servers_are_drawn_as_exactly_as_few() {
    let weights: Vec<u16> = (0..1000).map(|i| if i % 10 == 0 { 91 } else { 1 }).collect();
    let s = shares(&weights, EXACT, 3, 60_000);
    let heavy: f64 = s.iter().step_by(10).sum();
    assert!((heavy - 91.0).abs() < 1.0, "{heavy}");
}

#[test]
fn the_procedure_to_the_letter_has_the_bias_that_the_letter_has() {
    // A number from 0 to 2 inclusive against running sums 1 and 2: two thirds for the first.
    near(&shares(&[1, 1], SrvSelection::Rfc2782, 1, 60_000), &[66.7, 33.3], 1.0);
    near(&shares(&[0, 0, 0, 0], SrvSelection::Rfc2782, 1, 60_000), &[25.0; 4], 1.0);
    // 0 of 0..=3 hits the zero one.
    near(&shares(&[3, 0], SrvSelection::Rfc2782, 1, 60_000), &[75.0, 25.0], 1.0);
}

#[test]
fn the_second_choice_follows_the_weights_of_the_rest() {
    let now = Instant::now();
    // A hundred zeros weigh as much as one server of weight 1.
    for (weights, expect) in [(vec![6u16, 3, 1], 0.75), ([vec![6u16, 3, 1], vec![0; 100]].concat(), 0.6)] {
        let located = located(vec![tier(1, 0, &weights)], now);
        let mut health = health();
        health.observe(now, udp(0), Observation::Silence { invite: true });
        let hits = (0..20_000).filter(|i| first(&located, seed(4, *i), now, &mut health) == udp(1)).count();
        let share = hits as f64 / 20_000.0;
        assert!((share - expect).abs() < 0.05, "{share}");
    }
}

#[test]
fn one_seed_gives_one_order() {
    let now = Instant::now();
    let located = located(vec![tier(1, 0, &[5; 20]), tier(2, 100, &[1, 2, 3]), tier(3, 200, &[1; 80])], now);
    for mode in [EXACT, SrvSelection::Rfc2782] {
        let one = all(&located, 42, mode, now, &mut health());
        assert_eq!(one, all(&located, 42, mode, now, &mut health()));
        assert_ne!(one, all(&located, 43, mode, now, &mut health()));
    }
}

#[test]
fn every_address_of_a_server_comes_before_the_next_server() {
    let now = Instant::now();
    let server = |n: u32| {
        let addrs = SmallVec::from_slice(&[addr(n), addr(n + 1)]);
        Server::new(Transport::Udp, format!("s{n}").into(), 5060, 1, addrs)
    };
    let located = located(vec![Tier::new(None, 1, vec![server(10), server(20)])], now);
    let order: Vec<Instance> =
        all(&located, 9, EXACT, now, &mut health()).iter().map(|c| c.instance).collect();
    let either = [vec![udp(10), udp(11), udp(20), udp(21)], vec![udp(20), udp(21), udp(10), udp(11)]];
    assert!(either.contains(&order), "{order:?}");
}

#[test]
fn two_names_for_one_address_are_one_candidate() {
    let now = Instant::now();
    let server = |name: &str, n: &[u32]| {
        let addrs = n.iter().map(|n| addr(*n)).collect();
        Server::new(Transport::Udp, name.into(), 5060, 1, addrs)
    };
    let located = located(
        vec![
            Tier::new(None, 1, vec![server("a", &[1, 2]), server("b", &[2, 3])]),
            Tier::new(None, 2, vec![server("c", &[3])]),
        ],
        now,
    );
    for i in 0..50 {
        let got: Vec<Instance> =
            all(&located, i, EXACT, now, &mut health()).iter().map(|c| c.instance).collect();
        assert_eq!(got.len(), 3, "{got:?}");
    }
}

#[test]
fn a_call_stays_with_its_server_when_others_vanish_or_go_down() {
    let now = Instant::now();
    let full = located(vec![tier(1, 0, &[4, 1, 0, 7, 2])], now);
    let less = located(
        vec![Tier::new(
            None,
            1,
            tier(1, 0, &[4, 1, 0, 7, 2]).servers.into_iter().filter(|s| s.weight != 7).collect(),
        )],
        now,
    );
    let mut well = health();
    let mut ill = health();
    ill.observe(now, udp(3), Observation::Silence { invite: true });
    let mut moved = BTreeMap::new();
    for i in 0..2000 {
        let before = first(&full, seed(1, i), now, &mut well);
        for after in [first(&full, seed(1, i), now, &mut ill), first(&less, seed(1, i), now, &mut well)] {
            if before == udp(3) {
                *moved.entry(after).or_insert(0) += 1;
            } else {
                assert_eq!(before, after);
            }
        }
    }
    assert!(
        moved.len() >= 3 && !moved.contains_key(&udp(3)),
        "its calls are spread over the rest: {moved:?}"
    );
    // The same with more servers than are scored one by one, for instances that go down.
    let many = located(vec![tier(1, 0, &[1; 200])], now);
    for i in 0..500 {
        let before = first(&many, seed(1, i), now, &mut well);
        if before != udp(3) {
            assert_eq!(before, first(&many, seed(1, i), now, &mut ill));
        }
    }
}

#[test]
fn what_is_down_comes_after_all_tiers_in_the_usual_order() {
    let now = Instant::now();
    let located = located(vec![tier(1, 0, &[1]), tier(2, 1, &[1]), tier(3, 2, &[1])], now);
    let mut h = health();
    h.observe(now, udp(0), Observation::Silence { invite: true });
    h.observe(now, udp(1), Observation::ProbeBad { down_after: 1 });
    let got = all(&located, 1, EXACT, now, &mut h);
    let order: Vec<_> = got.iter().map(|c| (c.instance, c.standing.label(), c.reason.label())).collect();
    assert_eq!(
        order,
        [
            (udp(2), "up", "only_server"),
            (udp(0), "down", "last_resort"),
            (udp(1), "probed_down", "last_resort")
        ]
    );
    // All down: the usual order.
    h.observe(now, udp(2), Observation::Silence { invite: true });
    let order: Vec<Instance> = all(&located, 1, EXACT, now, &mut h).iter().map(|c| c.instance).collect();
    assert_eq!(order, [udp(0), udp(1), udp(2)]);
}

#[test]
fn exactly_one_request_tries_a_half_open_instance() {
    let now = Instant::now();
    let located = located(vec![tier(1, 0, &[1]), tier(2, 1, &[1])], now);
    let mut h = health();
    h.observe(now, udp(0), Observation::Silence { invite: true });
    let later = now + Duration::from_secs(2);
    let pick =
        |h: &mut Health, at| Selection::new(Arc::clone(&located), 1, EXACT).next(at, h, &|_| None).unwrap();
    let trial = pick(&mut h, later);
    assert_eq!((trial.instance, trial.standing, trial.reason), (udp(0), Standing::Trial, PickReason::Trial));
    for _ in 0..5 {
        assert_eq!(pick(&mut h, later).instance, udp(1));
    }
    // The trial's own request goes on without meeting it again.
    h.observe(later, udp(0), Observation::Answered);
    assert_eq!(pick(&mut h, later).instance, udp(0));
    assert_eq!(pick(&mut h, later).standing, Standing::Up);
}

/// How often each server comes first, in percent.
fn shares_of(located: &Arc<Located>, mode: SrvSelection, now: Instant, health: &mut Health) -> Vec<f64> {
    let mut counts = vec![0u32; located.tiers[0].servers.len()];
    for i in 0..40_000 {
        let mut s = Selection::new(Arc::clone(located), seed(5, i), mode);
        counts[usize::from(s.next(now, health, &|_| None).unwrap().server)] += 1;
    }
    counts.iter().map(|c| f64::from(*c) / 400.0).collect()
}

#[test]
fn what_has_come_back_gets_a_growing_part_of_its_weight_and_the_others_keep_their_proportions() {
    let now = Instant::now();
    let many = [vec![40u16, 30, 30], vec![0; 70]].concat();
    for (weights, mode) in [
        (vec![40u16, 30, 30], EXACT),
        (vec![40u16, 30, 30], SrvSelection::Rfc2782),
        (many, EXACT),
        (vec![1, 1, 1], EXACT),
    ] {
        let located = located(vec![tier(1, 0, &weights), tier(2, 100, &[1])], now);
        let mut h = health();
        h.observe(now, udp(0), Observation::Silence { invite: true });
        h.observe(now, udp(0), Observation::Answered);
        let full: f64 = weights.iter().map(|w| f64::from(*w)).sum();
        for (past, part) in [(0, 0.1), (5, 0.55), (10, 1.0), (100, 1.0)] {
            let got = shares_of(&located, mode, now + Duration::from_secs(past), &mut h);
            let own = f64::from(weights[0]) * part;
            let sum = full - f64::from(weights[0]) + own;
            near(
                &got[..3],
                &[
                    100.0 * own / sum,
                    100.0 * f64::from(weights[1]) / sum,
                    100.0 * f64::from(weights[2]) / sum,
                ],
                1.6,
            );
        }
    }
}

#[test]
fn a_growing_share_moves_requests_only_to_what_grows_and_costs_no_priority() {
    let now = Instant::now();
    let located = located(vec![tier(1, 0, &[1, 1, 1]), tier(2, 100, &[1])], now);
    let mut h = health();
    h.observe(now, udp(0), Observation::Silence { invite: true });
    h.observe(now, udp(0), Observation::Answered);
    for i in 0..500 {
        let way: Vec<Instance> =
            (0..=10).map(|s| first(&located, seed(1, i), now + Duration::from_secs(s), &mut h)).collect();
        let moved = way.iter().position(|w| *w == udp(0)).unwrap_or(way.len());
        assert!(
            way[..moved].iter().all(|w| *w == way[0]) && way[moved..].iter().all(|w| *w == udp(0)),
            "{way:?}"
        );
    }
    // The only one of its priority gets everything at once.
    let alone = self::located(vec![tier(1, 0, &[1]), tier(2, 1, &[1])], now);
    assert!((0..500).all(|i| first(&alone, seed(1, i), now, &mut h) == udp(0)));
}

#[test]
fn probes_lose_their_vote_when_they_take_out_more_than_can_be_believed() {
    let now = Instant::now();
    let bad = Observation::ProbeBad { down_after: 1 };
    let policy = HealthPolicy { max_probed_down: 0.5, ..zone::policy() };
    let located = located(vec![tier(1, 0, &[1, 1]), tier(2, 2, &[1, 1])], now);
    let mut h = Health::new(policy);
    let labels = |h: &mut Health| -> Vec<(&str, &str)> {
        all(&located, 1, EXACT, now, h).iter().map(|c| (c.standing.label(), c.reason.label())).collect()
    };
    h.observe(now, udp(0), bad);
    h.observe(now, udp(1), bad);
    // A half is not more than a half.
    assert_eq!(labels(&mut h)[..2], [("up", "drawn"); 2]);
    assert_eq!(labels(&mut h)[2..], [("probed_down", "last_resort"); 2]);
    h.observe(now, udp(2), bad);
    assert_eq!(labels(&mut h)[..2], [("probed_down", "probes_overruled"); 2]);
    assert_eq!(all(&located, 1, EXACT, now, &mut h).iter().map(|c| c.tier).collect::<Vec<_>>(), [0, 0, 1, 1]);
    // A failed request agrees with the probes: that one is down, and no longer counts as disputed.
    h.observe(now, udp(0), Observation::Silence { invite: true });
    let last: Vec<_> = labels(&mut h)[2..].to_vec();
    assert_eq!(last.iter().filter(|l| l.1 == "last_resort").count(), 2, "a half again: {last:?}");
    // By default only all of them being down counts.
    let mut h = health();
    (0..3).for_each(|n| {
        h.observe(now, udp(n), bad);
    });
    let got = all(&located, 1, EXACT, now, &mut h);
    assert_eq!((got[0].instance, got.len()), (udp(3), 4));
}

#[test]
fn what_must_be_avoided_is_not_even_a_last_resort() {
    let now = Instant::now();
    let located = located(vec![tier(1, 0, &[1, 1, 1])], now);
    let mut h = health();
    let mut s = Selection::new(Arc::clone(&located), 1, EXACT);
    let avoid = |i: &Instance| (*i != udp(1)).then_some(LeftOutReason::OwnListener);
    assert_eq!(s.next(now, &mut h, &avoid).unwrap().instance, udp(1));
    assert_eq!(s.next(now, &mut h, &avoid), None);
    assert_eq!(s.next(now, &mut h, &avoid), None, "and it stays so");
    assert_eq!((s.offered(), s.left_out()), (1, Some(LeftOutReason::OwnListener)));
    let mut s = Selection::new(located, 1, EXACT);
    let own = |_: &Instance| Some(LeftOutReason::OwnListener);
    assert_eq!((s.next(now, &mut h, &own), s.offered()), (None, 0));
}

/// Tiers of servers with some addresses each, drawn from a small pool so that they repeat.
fn tiers() -> impl Strategy<Value = Vec<Vec<(u16, Vec<u32>)>>> {
    let server = (prop_oneof![Just(0u16), 1..10u16, Just(u16::MAX)], prop::collection::vec(0..40u32, 1..4));
    let few = prop::collection::vec(server.clone(), 1..6);
    let many = prop::collection::vec(server, 60..90);
    prop::collection::vec(prop_oneof![4 => few, 1 => many], 1..4)
}

fn build(spec: &[Vec<(u16, Vec<u32>)>], now: Instant) -> Arc<Located> {
    let tier = |(p, servers): (usize, &Vec<(u16, Vec<u32>)>)| {
        let server = |(i, (w, addrs)): (usize, &(u16, Vec<u32>))| {
            let addrs = addrs.iter().map(|n| addr(*n)).collect();
            Server::new(Transport::Udp, format!("t{p}s{i}").into(), 5060, *w, addrs)
        };
        Tier::new(None, u16::try_from(p).unwrap(), servers.iter().enumerate().map(server).collect())
    };
    located(spec.iter().enumerate().map(tier).collect(), now)
}

proptest! {
    #[test]
    fn each_candidate_comes_exactly_once_and_priority_holds_among_those_up(
        spec in tiers(), seed: u64, literal: bool, down in prop::collection::vec(0..40u32, 0..20), probed in 0..40u32,
    ) {
        let now = Instant::now();
        let located = build(&spec, now);
        let mode = if literal { SrvSelection::Rfc2782 } else { EXACT };
        let mut h = health();
        for n in &down {
            h.observe(now, udp(*n), Observation::Silence { invite: true });
        }
        h.observe(now, udp(probed), Observation::ProbeBad { down_after: 1 });
        let got = all(&located, seed, mode, now, &mut h);

        let every: HashSet<Instance> = spec.iter().flatten().flat_map(|(_, a)| a).map(|n| udp(*n)).collect();
        let given: HashSet<Instance> = got.iter().map(|c| c.instance).collect();
        prop_assert_eq!(&every, &given);
        prop_assert_eq!(every.len(), got.len());
        prop_assert_eq!(every.len(), located.instance_count());
        prop_assert_eq!(every.len(), located.instances().collect::<HashSet<_>>().len());
        // First those that are up, by tier; then the others, by tier.
        let rank = |c: &Candidate| (c.standing != Standing::Up, c.tier);
        prop_assert!(got.windows(2).all(|w| rank(&w[0]) <= rank(&w[1])));
        for c in &got {
            let server = &located.tiers[usize::from(c.tier)].servers[usize::from(c.server)];
            prop_assert!(server.addrs.contains(&c.instance.addr.ip()));
        }
        prop_assert_eq!(got, all(&located, seed, mode, now, &mut h));
    }

    #[test]
    fn taking_out_one_server_moves_only_its_own_requests(weights in prop::collection::vec(0..20u16, 2..60), gone: prop::sample::Index, seed: u64) {
        let now = Instant::now();
        let gone = gone.index(weights.len());
        let servers = tier(1, 0, &weights).servers;
        let rest: Vec<Server> = servers.iter().enumerate().filter(|(i, _)| *i != gone).map(|(_, s)| s.clone()).collect();
        // Without another positive weight the zeros' shares change, but they stay equal.
        let before = first(&located(vec![Tier::new(None, 1, servers)], now), seed, now, &mut health());
        let after = first(&located(vec![Tier::new(None, 1, rest)], now), seed, now, &mut health());
        let victim = udp(u32::try_from(gone).unwrap());
        prop_assert!(before == victim || before == after, "{} {}", before, after);
    }

    #[test]
    fn avoidance_never_adds_or_loses_a_candidate(spec in tiers(), seed: u64, own in 0..40u32) {
        let now = Instant::now();
        let located = build(&spec, now);
        let mut s = Selection::new(Arc::clone(&located), seed, EXACT);
        let avoid = |i: &Instance| (*i == udp(own)).then_some(LeftOutReason::OwnListener);
        let mut h = health();
        let got: Vec<Candidate> = std::iter::from_fn(|| s.next(now, &mut h, &avoid)).collect();
        let every: HashSet<Instance> = located.instances().filter(|i| *i != udp(own)).collect();
        prop_assert_eq!(got.len(), every.len());
        prop_assert_eq!(got.iter().map(|c| c.instance).collect::<HashSet<_>>(), every);
        prop_assert!(got.windows(2).all(|w| w[0].tier <= w[1].tier));
    }
}
