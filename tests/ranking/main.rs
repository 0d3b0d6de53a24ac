//! What costs do to an order (RFC 7285, RFC 2782): the rules, when a change is taken over, and what never changes.

#![allow(clippy::unwrap_used)]

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use sbe::config::{AltoRule, AltoScope, SrvSelection};
use sbe::flow::Transport;
use sbe::location::*;
use smallvec::SmallVec;

mod coverage;
mod properties;
mod sets;
#[path = "../zone/mod.rs"]
mod zone;
use zone::{health, key, rank_policy as policy};

fn addr(n: u32) -> IpAddr {
    Ipv4Addr::from(0x0a00_0000 + n).into()
}

fn secs(n: u64) -> Duration {
    Duration::from_secs(n)
}

fn server(n: u32, weight: u16, addrs: &[u32]) -> Server {
    let addrs = addrs.iter().map(|a| addr(*a)).collect();
    Server::new(Transport::Udp, format!("s{n}").into(), 5060, weight, addrs)
}

/// One server of weight 1 for each number, `s<number>` at `10.0.0.<number>`.
fn tier(priority: u16, numbers: &[u32]) -> Tier {
    Tier::new(None, priority, numbers.iter().map(|n| server(*n, 1, &[*n])).collect())
}

fn weighted(priority: u16, members: &[(u32, u16)]) -> Tier {
    Tier::new(None, priority, members.iter().map(|(n, w)| server(*n, *w, &[*n])).collect())
}

fn located(uri: &str, tiers: Vec<Tier>, now: Instant) -> Arc<Located> {
    Arc::new(Located::from_tiers(key(uri), tiers, Outcome::Found, now + secs(60)))
}

/// A world with one location whose costs come by answers.
struct World {
    policy: RankPolicy,
    mode: CostMode,
    higher: bool,
    located: Arc<Located>,
    memory: Memory,
    down: Vec<u32>,
    answer: u64,
    origin: CostOrigin,
    snapshot: CostSnapshot,
    now: Instant,
    again_at: Option<Instant>,
}

impl World {
    fn of(tiers: Vec<Tier>) -> Self {
        Self::at("sip:d", tiers, policy())
    }

    fn at(uri: &str, tiers: Vec<Tier>, policy: RankPolicy) -> Self {
        let now = Instant::now();
        Self {
            policy,
            mode: CostMode::Numerical,
            higher: false,
            located: located(uri, tiers, now),
            memory: Memory::default(),
            down: Vec::new(),
            answer: 0,
            origin: CostOrigin::Endpoint,
            snapshot: CostSnapshot::default(),
            now,
            again_at: None,
        }
    }

    /// A fresh answer with these costs.
    fn answers(&mut self, costs: &[(u32, f64)]) -> Arc<Located> {
        self.snapshot = CostSnapshot::new(self.answer, self.mode, self.higher);
        self.add(costs)
    }

    /// A further answer beside what is known.
    fn add(&mut self, costs: &[(u32, f64)]) -> Arc<Located> {
        self.answer += 1;
        for (n, value) in costs {
            let cost = Cost {
                value: *value,
                answer: self.answer,
                fetched: self.now,
                fresh_until: self.now + secs(3600),
                usable_until: self.now + secs(7200),
                origin: self.origin,
            };
            self.snapshot.insert(addr(*n), cost);
        }
        self.look()
    }

    /// Nothing new.
    fn look(&mut self) -> Arc<Located> {
        let down = |i: &Instance| self.down.iter().any(|n| addr(*n) == i.addr.ip());
        let ranked = rank(&self.located, &self.snapshot, &self.policy, &mut self.memory, &down, self.now);
        self.again_at = ranked.again_at;
        ranked.located
    }

    fn later(&mut self, seconds: u64) {
        self.now += secs(seconds);
    }
}

/// The numbers of the servers, tier by tier.
fn order(located: &Located) -> Vec<Vec<u32>> {
    let number = |s: &Server| s.target.trim_start_matches('s').parse().unwrap();
    located.tiers.iter().map(|t| t.servers.iter().map(number).collect()).collect()
}

fn rankings(located: &Located) -> Vec<Ranking> {
    located.tiers.iter().map(|t| t.ranking.unwrap()).collect()
}

/// Costs, and the tiers that they make.
type Row<'a> = (&'a [(u32, f64)], &'a [&'a [u32]]);

#[test]
fn costs_within_the_band_of_the_best_are_one_class_and_the_rest_is_classed_alike() {
    let rows: &[Row] = &[
        (&[(1, 10.0), (2, 11.0), (3, 11.01), (4, 12.1)], &[&[1, 2], &[3, 4]]),
        (&[(1, 10.0), (2, 10.0), (3, 10.0), (4, 10.0)], &[&[1, 2, 3, 4]]),
        (&[(1, 40.0), (2, 30.0), (3, 20.0), (4, 10.0)], &[&[4], &[3], &[2], &[1]]),
        // Nothing is within a relative band of zero but zero.
        (&[(1, 0.0), (2, 0.001), (3, 0.0), (4, 1.0)], &[&[1, 3], &[2], &[4]]),
        // What has no cost comes last, and counts as nothing, not as zero.
        (&[(1, 10.0), (3, 1.0)], &[&[3], &[1], &[2, 4]]),
        (&[(1, 10.0), (2, 10.0), (3, 10.0)], &[&[1, 2, 3], &[4]]),
        // Not covered: one of four is below a half.
        (&[(3, 1.0)], &[&[1, 2, 3, 4]]),
        (&[], &[&[1, 2, 3, 4]]),
    ];
    for (costs, expect) in rows {
        let mut world = World::of(vec![tier(10, &[1, 2, 3, 4])]);
        assert_eq!(order(&world.answers(costs)), *expect, "{costs:?}");
    }
}

#[test]
fn an_absolute_band_is_added_to_the_relative_one() {
    let mut world = World::of(vec![tier(10, &[1, 2, 3])]);
    world.policy.band_abs = 2.0;
    assert_eq!(order(&world.answers(&[(1, 0.0), (2, 2.0), (3, 2.5)])), [vec![1, 2], vec![3]]);
}

#[test]
fn coverage_counts_targets_and_is_inclusive() {
    for (least, costs, used) in
        [(0.5, 2, true), (0.51, 2, false), (1.0, 4, true), (1.0, 3, false), (0.0, 1, true)]
    {
        let mut world = World::of(vec![tier(10, &[1, 2, 3, 4])]);
        world.policy.min_coverage = least;
        let known: Vec<(u32, f64)> = (1..=costs).map(|n| (n, f64::from(n))).collect();
        let got = world.answers(&known);
        let expect = if used { Use::Applied } else { Use::NotCovered };
        assert_eq!(rankings(&got)[0].used, expect, "{least} {costs}");
        assert_eq!(got.tiers.len() > 1, used);
        assert_eq!(got.tiers[0].servers[0].cost(0).map(|c| c.value), Some(1.0), "shown in any case");
    }
}

#[test]
fn a_higher_throughput_is_the_better_one() {
    let mut world = World::of(vec![tier(10, &[1, 2, 3, 4])]);
    world.higher = true;
    let got = world.answers(&[(1, 100.0), (2, 109.0), (3, 110.0), (4, 50.0)]);
    assert_eq!(order(&got), [vec![1, 2, 3], vec![4]]);
    let mut world = World::of(vec![tier(10, &[1, 2, 3, 4])]);
    world.higher = true;
    // No cost comes last here too, though every value is better than none.
    assert_eq!(order(&world.answers(&[(1, 0.0), (2, 10.0), (4, 1.0)])), [vec![2], vec![4], vec![1], vec![3]]);
}

#[test]
fn ranks_know_no_band() {
    let mut world = World::of(vec![tier(10, &[1, 2, 3])]);
    world.mode = CostMode::Ordinal;
    assert_eq!(order(&world.answers(&[(1, 101.0), (2, 100.0), (3, 101.0)])), [vec![2], vec![1, 3]]);
}

#[test]
fn ranks_of_two_answers_are_not_compared() {
    let mut world = World::of(vec![tier(10, &[1, 2, 3])]);
    world.mode = CostMode::Ordinal;
    world.answers(&[(1, 1.0)]);
    // Rank 1 of the other answer says nothing here: the answer with most targets counts.
    let got = world.add(&[(2, 2.0), (3, 1.0)]);
    assert_eq!(order(&got), [vec![3], vec![2], vec![1]]);
    assert_eq!(got.tiers[2].servers[0].cost(0).unwrap().value, 1.0, "but it is shown");
    // Numbers of two answers compare.
    let mut world = World::of(vec![tier(10, &[1, 2, 3])]);
    world.answers(&[(1, 1.0), (2, 9.0)]);
    assert_eq!(order(&world.add(&[(3, 5.0)]))[0], [1]);
}

#[test]
fn strict_makes_every_cost_a_class() {
    let mut world = World::of(vec![tier(10, &[1, 2, 3, 4])]);
    world.policy.rule = AltoRule::Strict;
    let got = world.answers(&[(1, 10.0), (2, 10.01), (3, 10.0), (4, 9.99)]);
    assert_eq!(order(&got), [vec![4], vec![1, 3], vec![2]]);
}

#[test]
fn a_target_is_as_good_as_its_best_address_and_tries_the_cheapest_first() {
    let tiers = vec![Tier::new(None, 1, vec![server(1, 1, &[1, 2]), server(3, 1, &[3, 4, 5])])];
    let mut world = World::of(tiers);
    let got = world.answers(&[(1, 5.0), (2, 50.0), (3, 60.0), (4, 70.0), (5, 1.0)]);
    assert_eq!(order(&got), [vec![3], vec![1]]);
    assert_eq!(got.tiers[0].servers[0].addrs.as_slice(), [addr(5), addr(3), addr(4)]);
    let costs: Vec<f64> = (0..3).map(|a| got.tiers[0].servers[0].cost(a).unwrap().value).collect();
    assert_eq!(costs, [1.0, 60.0, 70.0], "costs go with their addresses");
    let instances: Vec<IpAddr> = got.instances().map(|i| i.addr.ip()).collect();
    assert_eq!(instances, [5, 3, 4, 1, 2].map(addr));
}

#[test]
fn weights_are_scaled_by_cost_and_stay_weights() {
    let mut world = World::of(vec![weighted(10, &[(1, 100), (2, 100), (3, 0)])]);
    world.policy.rule = AltoRule::Weights;
    let got = world.answers(&[(1, 10.0), (2, 40.0), (3, 10.0)]);
    assert_eq!(order(&got), [vec![1, 2, 3]], "one tier");
    // e = 0.1 (a hundredth of the median): 100 against 100 * 10.1 / 40.1.
    let second = 100.0 * 10.1 / 40.1;
    assert!((got.tiers[0].share(1) - second / (100.0 + second)).abs() < 0.001, "{}", got.tiers[0].share(1));
    assert!(got.tiers[0].share(2) < 0.001, "a zero weight stays small");
    // No positive weight falls below 1, and without a cost it counts as the worst.
    let mut world = World::of(vec![weighted(10, &[(1, 10), (2, 10), (3, 10)])]);
    world.policy.rule = AltoRule::Weights;
    let got = world.answers(&[(1, 1.0), (2, 10_000.0)]);
    let shares: Vec<f64> = (0..3).map(|s| (got.tiers[0].share(s) * 12.0 * 10.0).round() / 10.0).collect();
    assert_eq!(shares, [10.0, 1.0, 1.0]);
    // More is better: mirrored.
    let mut world = World::of(vec![weighted(10, &[(1, 100), (2, 100)])]);
    world.policy.rule = AltoRule::Weights;
    world.higher = true;
    let got = world.answers(&[(1, 40.0), (2, 10.0)]);
    assert!((0.7..0.85).contains(&got.tiers[0].share(0)));
    // Ranks have no ratios.
    let mut world = World::of(vec![tier(10, &[1, 2])]);
    world.policy.rule = AltoRule::Weights;
    world.mode = CostMode::Ordinal;
    let got = world.answers(&[(1, 2.0), (2, 1.0)]);
    assert_eq!((order(&got), rankings(&got)[0].rule), (vec![vec![2], vec![1]], AltoRule::Classes));
}

#[test]
fn a_share_can_be_kept_for_the_other_classes() {
    for mode in [SrvSelection::Exact, SrvSelection::Rfc2782] {
        let mut world = World::of(vec![weighted(10, &[(1, 1), (2, 3), (3, 100)])]);
        world.policy.max_share = 0.8;
        let got = world.answers(&[(1, 5.0), (2, 5.0), (3, 50.0)]);
        let mut counts = [0u32; 3];
        for seed in 0..20_000u64 {
            let mut s = Selection::new(Arc::clone(&got), seed.wrapping_mul(0x9e37_79b9_7f4a_7c15), mode);
            counts[usize::from(s.next(world.now, &mut health(), &|_| None).unwrap().server)] += 1;
        }
        let shares: Vec<f64> = counts.iter().map(|c| f64::from(*c) / 20_000.0).collect();
        for (share, expect) in shares.iter().zip([0.2, 0.6, 0.2]) {
            assert!((share - expect).abs() < 0.015, "{shares:?}");
        }
    }
}

#[test]
fn off_changes_nothing_and_tells_what_it_would_have() {
    let mut world = World::of(vec![tier(10, &[1, 2]), tier(20, &[3])]);
    world.policy.rule = AltoRule::Off;
    let got = world.answers(&[(1, 10.0), (2, 1.0), (3, 0.1)]);
    assert_eq!(order(&got), [vec![1, 2], vec![3]]);
    assert_eq!(got.tiers[0].servers.iter().map(|s| s.class).collect::<Vec<_>>(), [1, 0]);
    assert_eq!((rankings(&got)[0].used, rankings(&got)[0].classes), (Use::Shown, 2));
    assert_eq!(got.tiers[0].servers[1].cost(0).unwrap().value, 1.0);
    assert_eq!(order(got.shadow.as_ref().unwrap()), [vec![2], vec![1], vec![3]]);
    // Where it would have changed nothing there is no shadow.
    let mut world = World::of(vec![tier(10, &[1, 2])]);
    world.policy.rule = AltoRule::Off;
    assert!(world.answers(&[(1, 1.0), (2, 1.0)]).shadow.is_none());
}

fn across(uri: &str, tiers: Vec<Tier>) -> World {
    World::at(uri, tiers, RankPolicy { scope: AltoScope::AcrossPriorities, ..policy() })
}

#[test]
fn by_agreement_classes_go_before_priorities_and_it_is_marked() {
    let mut world = across("sip:d", vec![tier(10, &[1, 2]), tier(20, &[3, 4])]);
    let got = world.answers(&[(1, 10.0), (2, 1.0), (3, 1.0), (4, 10.0)]);
    assert_eq!(order(&got), [vec![2], vec![3], vec![1], vec![4]]);
    let marks: Vec<_> = rankings(&got).iter().map(|r| (r.class, r.overrides_priority)).collect();
    assert_eq!(marks, [(0, false), (0, true), (1, false), (1, false)]);
    let priorities: Vec<u16> = got.tiers.iter().map(|t| t.priority).collect();
    assert_eq!(priorities, [10, 20, 10, 20]);
    // The same costs in the default scope.
    let mut world = World::of(vec![tier(10, &[1, 2]), tier(20, &[3, 4])]);
    let got = world.answers(&[(1, 10.0), (2, 1.0), (3, 1.0), (4, 10.0)]);
    assert_eq!(order(&got), [vec![2], vec![1], vec![3], vec![4]]);
    assert!(rankings(&got).iter().all(|r| !r.overrides_priority));
}

#[test]
fn no_agreement_reaches_across_transports_or_to_sips() {
    let tcp = |n: u32| {
        let addrs = SmallVec::from_slice(&[addr(n)]);
        Server::new(Transport::Tcp, format!("s{n}").into(), 5060, 1, addrs)
    };
    let first = Tier::new(Some((10, 10)), 0, vec![tcp(1)]);
    let second = Tier::new(Some((20, 10)), 0, vec![server(2, 1, &[2])]);
    let costs = [(1, 10.0), (2, 1.0)];
    let mut world = across("sip:d", vec![first.clone(), second]);
    assert_eq!(order(&world.answers(&costs)), [vec![1], vec![2]]);
    // Nor over transports of one NAPTR standing, or over two NAPTR records of one transport.
    let same = Tier::new(Some((10, 10)), 5, vec![server(2, 1, &[2])]);
    let mut world = across("sip:d", vec![first.clone(), same]);
    assert_eq!(order(&world.answers(&costs)), [vec![1], vec![2]]);
    let other = Tier::new(Some((10, 20)), 0, vec![tcp(2)]);
    let mut world = across("sip:d", vec![first, other]);
    assert_eq!(order(&world.answers(&costs)), [vec![1], vec![2]]);
    let mut world = across("sips:d", vec![tier(10, &[1]), tier(20, &[2])]);
    assert_eq!(order(&world.answers(&costs)), [vec![1], vec![2]]);
}

#[test]
fn one_answer_that_says_otherwise_changes_nothing() {
    let mut world = World::of(vec![tier(10, &[1, 2])]);
    let (good, bad) = ([(1, 1.0), (2, 10.0)], [(1, 100.0), (2, 10.0)]);
    assert_eq!(order(&world.answers(&good)), [vec![1], vec![2]], "the first snapshot rules at once");
    for _ in 0..20 {
        world.later(60);
        let got = world.answers(&bad);
        assert_eq!(order(&got), [vec![1], vec![2]]);
        assert!(rankings(&got)[0].held);
        assert_eq!(order(&world.look()), [vec![1], vec![2]], "looking again is no further answer");
        world.later(60);
        let got = world.answers(&good);
        assert_eq!(order(&got), [vec![1], vec![2]]);
        assert!(!rankings(&got)[0].held);
    }
}

#[test]
fn a_flip_is_taken_over_after_persist_answers() {
    for persist in 1..5 {
        let mut world = World::of(vec![tier(10, &[1, 2])]);
        world.policy.persist = persist;
        world.answers(&[(1, 1.0), (2, 10.0)]);
        for n in 1..=persist {
            world.later(1);
            let got = world.answers(&[(1, 10.0), (2, 1.0)]);
            let expect = if n < persist { [vec![1], vec![2]] } else { [vec![2], vec![1]] };
            assert_eq!(order(&got), expect, "answer {n} of {persist}");
        }
    }
}

#[test]
fn a_challenger_within_the_band_takes_nothing_over() {
    let mut world = World::of(vec![tier(10, &[1, 2])]);
    world.answers(&[(1, 10.0), (2, 10.5)]);
    for _ in 0..10 {
        world.later(100);
        assert_eq!(order(&world.answers(&[(1, 10.5), (2, 10.0)])), [vec![1, 2]]);
    }
}

#[test]
fn two_changes_are_a_hold_down_apart_and_the_second_comes_without_a_further_answer() {
    let mut world = World::of(vec![tier(10, &[1, 2])]);
    let (left, right) = ([(1, 1.0), (2, 10.0)], [(1, 10.0), (2, 1.0)]);
    world.answers(&left);
    world.answers(&right);
    assert_eq!(order(&world.answers(&right)), [vec![2], vec![1]]);
    let changed = world.now;
    for _ in 0..5 {
        world.later(10);
        assert_eq!(order(&world.answers(&left)), [vec![2], vec![1]]);
    }
    assert_eq!(world.again_at, Some(changed + secs(60)), "it says when to look again");
    world.later(9);
    assert_eq!(order(&world.look()), [vec![2], vec![1]]);
    world.later(1);
    assert_eq!(order(&world.look()), [vec![1], vec![2]]);
}

#[test]
fn a_round_in_two_parts_counts_once() {
    let mut world = World::of(vec![tier(10, &[1, 2])]);
    world.policy.persist = 2;
    world.answers(&[(1, 1.0), (2, 10.0)]);
    world.add(&[(1, 20.0)]);
    assert_eq!(order(&world.add(&[(2, 10.0)])), [vec![1], vec![2]]);
    world.add(&[(1, 20.0)]);
    assert_eq!(order(&world.add(&[(2, 10.0)])), [vec![2], vec![1]]);
}

#[test]
fn what_is_exempt_is_taken_over_at_once() {
    let costs = [(1, 1.0), (2, 10.0), (3, 5.0)];
    let turned = [(1, 10.0), (2, 1.0), (3, 5.0)];
    let all = |world: &mut World| assert_eq!(order(&world.answers(&costs)), [vec![1], vec![3], vec![2]]);
    // The leader is down.
    let mut world = World::of(vec![tier(10, &[1, 2, 3])]);
    all(&mut world);
    world.down = vec![1];
    assert_eq!(order(&world.answers(&turned)), [vec![2], vec![3], vec![1]]);
    // The leader is gone from the DNS.
    let mut world = World::of(vec![tier(10, &[1, 2, 3])]);
    all(&mut world);
    world.located = located("sip:d", vec![tier(10, &[2, 3])], world.now);
    assert_eq!(order(&world.answers(&turned)), [vec![2], vec![3]]);
    // The operator says so.
    let mut world = World::of(vec![tier(10, &[1, 2, 3])]);
    all(&mut world);
    world.origin = CostOrigin::Override;
    assert_eq!(order(&world.add(&[(2, 0.5)])), [vec![2], vec![1], vec![3]]);
    // The first costs of what had none.
    let mut world = World::of(vec![tier(10, &[1, 2])]);
    assert_eq!(order(&world.answers(&[])), [vec![1, 2]]);
    assert_eq!(order(&world.answers(&[(1, 9.0), (2, 1.0)])), [vec![2], vec![1]]);
}

#[test]
fn the_order_of_addresses_is_held_as_that_of_targets() {
    let mut world = World::of(vec![Tier::new(None, 1, vec![server(1, 1, &[1, 2])])]);
    world.answers(&[(1, 1.0), (2, 2.0)]);
    let first = |l: &Located| l.tiers[0].servers[0].addrs[0];
    assert_eq!(first(&world.answers(&[(1, 3.0), (2, 2.0)])), addr(1));
    assert_eq!(first(&world.answers(&[(1, 3.0), (2, 2.0)])), addr(2));
}

#[test]
fn costs_that_have_run_out_leave_the_plain_order() {
    let mut world = World::of(vec![tier(10, &[1, 2])]);
    assert_eq!(order(&world.answers(&[(1, 9.0), (2, 1.0)])), [vec![2], vec![1]]);
    assert_eq!(world.again_at, Some(world.now + secs(7200)), "it says when");
    world.later(7200);
    let got = world.look();
    assert_eq!(order(&got), [vec![1, 2]]);
    assert!(got.tiers[0].ranking.is_none() && Arc::ptr_eq(&got, &world.located));
}

#[test]
fn an_order_stays_for_the_life_of_its_records_where_requests_stick_to_it() {
    let mut world = World::of(vec![tier(10, &[1, 2])]);
    world.policy.pinned = true;
    let (left, right) = ([(1, 1.0), (2, 10.0)], [(1, 10.0), (2, 1.0)]);
    world.answers(&left);
    for _ in 0..5 {
        world.later(10);
        assert_eq!(order(&world.answers(&right)), [vec![1], vec![2]]);
    }
    world.later(10);
    assert_eq!(order(&world.look()), [vec![2], vec![1]], "60 s are over");
}

#[test]
fn two_services_of_equal_standing_hold_an_order_each() {
    let naptr = Some((10, 10));
    let of = |numbers: &[u32]| Tier::new(naptr, 10, numbers.iter().map(|n| server(*n, 1, &[*n])).collect());
    let mut world = World::of(vec![of(&[1, 2]), of(&[3, 4])]);
    let (one, other) = ([(1, 1.0), (2, 9.0), (3, 1.0), (4, 9.0)], [(1, 9.0), (2, 1.0), (3, 9.0), (4, 1.0)]);
    let plain = [vec![1], vec![2], vec![3], vec![4]];
    assert_eq!(order(&world.answers(&one)), plain);
    assert_eq!(order(&world.answers(&other)), plain, "one answer");
    assert_eq!(order(&world.answers(&other)), [vec![2], vec![1], vec![4], vec![3]], "two");
}

#[test]
fn one_call_goes_where_it_went_within_a_class() {
    let mut world = World::of(vec![tier(10, &[1, 2, 3, 4])]);
    let first = |l: &Arc<Located>, seed| {
        let mut s = Selection::new(Arc::clone(l), seed, SrvSelection::Exact);
        s.next(Instant::now(), &mut health(), &|_| None).unwrap().instance
    };
    let plain = Arc::clone(&world.located);
    let got = world.answers(&[(1, 1.0), (2, 1.0), (3, 9.0), (4, 9.0)]);
    for seed in 0..500u64 {
        let seed = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let before = first(&plain, seed);
        if [addr(1), addr(2)].contains(&before.addr.ip()) {
            assert_eq!(first(&got, seed), before);
        }
    }
}
