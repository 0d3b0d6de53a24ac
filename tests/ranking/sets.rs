//! Ranks of an address that is in several sets: each set goes by the answer to its own question (RFC 7285 §6.2).

use super::*;

#[test]
fn each_tier_goes_by_the_ranks_of_its_own_answer() {
    // s2 stands in both priorities.
    let mut world = World::of(vec![tier(10, &[1, 2]), tier(20, &[2, 3, 4])]);
    world.mode = CostMode::Ordinal;
    world.answers(&[(1, 2.0), (2, 1.0)]);
    let got = world.add(&[(2, 3.0), (3, 1.0), (4, 2.0)]);
    assert_eq!(order(&got), [vec![2], vec![1], vec![3], vec![4], vec![2]]);
    let ranks: Vec<f64> = got.tiers.iter().map(|t| t.servers[0].cost(0).unwrap().value).collect();
    assert_eq!(ranks, [1.0, 2.0, 1.0, 2.0, 3.0], "and each place shows its own rank");
    // In whatever order the answers come.
    let mut world = World::of(vec![tier(10, &[1, 2]), tier(20, &[2, 3, 4])]);
    world.mode = CostMode::Ordinal;
    world.answers(&[(2, 3.0), (3, 1.0), (4, 2.0)]);
    assert_eq!(order(&world.add(&[(1, 2.0), (2, 1.0)])), [vec![2], vec![1], vec![3], vec![4], vec![2]]);
}

#[test]
fn a_set_within_a_larger_one_goes_by_its_own_answer_though_the_other_be_later() {
    let mut world = World::of(vec![tier(10, &[1, 2])]);
    world.mode = CostMode::Ordinal;
    world.answers(&[(1, 1.0), (2, 2.0)]);
    for _ in 0..5 {
        world.later(100);
        // What others ask for, ranked otherwise.
        assert_eq!(order(&world.add(&[(1, 3.0), (2, 2.0), (3, 1.0)])), [vec![1], vec![2]]);
    }
}

#[test]
fn a_later_answer_to_the_same_question_takes_the_place_of_the_earlier_one() {
    let mut world = World::of(vec![tier(10, &[1, 2])]);
    world.mode = CostMode::Ordinal;
    world.policy.persist = 1;
    world.answers(&[(1, 1.0), (2, 2.0)]);
    assert_eq!(order(&world.add(&[(1, 2.0), (2, 1.0)])), [vec![2], vec![1]]);
}
