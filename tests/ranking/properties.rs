//! Over random zones and costs: no priority is violated in the default scope, and nothing appears or disappears.

use proptest::prelude::*;

use super::*;

/// Tiers of servers with addresses out of a small pool, so that these repeat.
fn zones() -> impl Strategy<Value = Vec<Vec<(u16, Vec<u32>)>>> {
    let server = (0..5u16, prop::collection::vec(0..20u32, 1..4));
    prop::collection::vec(prop::collection::vec(server, 1..6), 1..4)
}

fn costs() -> impl Strategy<Value = Vec<(u32, f64)>> {
    let value = prop_oneof![0.0..100.0f64, Just(0.0), Just(1.0), Just(f64::MAX), Just(f64::NAN), Just(-1.0)];
    prop::collection::vec((0..20u32, value), 0..20)
}

fn build(spec: &[Vec<(u16, Vec<u32>)>]) -> Vec<Tier> {
    let tier = |(p, servers): (usize, &Vec<(u16, Vec<u32>)>)| {
        let server = |(i, (w, addrs)): (usize, &(u16, Vec<u32>))| {
            let n = u32::try_from(p * 100 + i).unwrap();
            server(n, *w, addrs)
        };
        Tier::new(None, u16::try_from(p).unwrap(), servers.iter().enumerate().map(server).collect())
    };
    spec.iter().enumerate().map(tier).collect()
}

fn rules() -> impl Strategy<Value = AltoRule> {
    prop_oneof![Just(AltoRule::Off), Just(AltoRule::Classes), Just(AltoRule::Weights), Just(AltoRule::Strict)]
}

proptest! {
    #[test]
    fn costs_never_break_a_priority_or_add_or_lose_a_candidate(
        spec in zones(),
        answers in prop::collection::vec((costs(), 0..100u64), 1..6),
        rule in rules(),
        flags: [bool; 4],
        seed: u64,
    ) {
        let [ordinal, higher, across, part] = flags;
        let scope = if across { AltoScope::AcrossPriorities } else { AltoScope::WithinPriority };
        let max_share = if part { 0.7 } else { 1.0 };
        let mut world = World::at("sip:d", build(&spec), RankPolicy { rule, scope, max_share, ..policy() });
        world.mode = if ordinal { CostMode::Ordinal } else { CostMode::Numerical };
        world.higher = higher;
        let every: BTreeSet<Instance> = world.located.instances().collect();
        for (costs, pause) in answers {
            world.later(pause);
            let got = world.answers(&costs);
            prop_assert_eq!(&every, &got.instances().collect());
            prop_assert_eq!(every.len(), got.instance_count());
            let servers = |l: &Located| {
                let mut all: Vec<_> = l.tiers.iter().flat_map(|t| t.servers.iter().map(|s| {
                    let mut addrs = s.addrs.to_vec();
                    addrs.sort();
                    (t.priority, s.target.to_string(), s.weight, addrs)
                })).collect();
                all.sort();
                all
            };
            prop_assert_eq!(servers(&world.located), servers(&got));
            let mut selection = Selection::new(Arc::clone(&got), seed, SrvSelection::Exact);
            let mut h = health();
            let way: Vec<Candidate> = std::iter::from_fn(|| selection.next(world.now, &mut h, &|_| None)).collect();
            prop_assert_eq!(way.len(), every.len());
            let place = |c: &Candidate| {
                let tier = &got.tiers[usize::from(c.tier)];
                (tier.priority, tier.servers[usize::from(c.server)].class)
            };
            if scope == AltoScope::WithinPriority || rule == AltoRule::Off {
                prop_assert!(way.windows(2).all(|w| place(&w[0]).0 <= place(&w[1]).0), "priorities hold");
            }
            let splits = matches!(rule, AltoRule::Classes | AltoRule::Strict) && !part && !across;
            if splits {
                prop_assert!(way.windows(2).all(|w| place(&w[0]) <= place(&w[1])), "then classes");
            }
        }
    }

    #[test]
    fn a_lasting_change_is_taken_over_whole(spec in zones(), first in costs(), then in costs(), higher: bool) {
        let mut world = World::of(build(&spec));
        world.higher = higher;
        world.answers(&first);
        for _ in 0..2 {
            world.later(100);
            world.answers(&then);
        }
        let got = world.look();
        let mut anew = World::of(build(&spec));
        anew.higher = higher;
        let fresh = anew.answers(&then);
        prop_assert_eq!(order(&got), order(&fresh));
        prop_assert!(!got.tiers.iter().filter_map(|t| t.ranking).any(|r| r.held));
    }
}
