//! When costs count at all: enough targets have one (`min_coverage`), and not for one answer that says otherwise.

use super::*;

const ALL: [(u32, f64); 4] = [(1, 9.0), (2, 1.0), (3, 9.0), (4, 9.0)];
const FEW: [(u32, f64); 1] = [(2, 1.0)];
const PLAIN: [&[u32]; 1] = [&[1, 2, 3, 4]];
const RANKED: [&[u32]; 2] = [&[2], &[1, 3, 4]];

fn world() -> World {
    World::of(vec![tier(10, &[1, 2, 3, 4])])
}

#[test]
fn one_answer_with_too_few_costs_changes_nothing() {
    let mut world = world();
    assert_eq!(order(&world.answers(&ALL)), RANKED, "the first answer rules at once");
    for _ in 0..20 {
        world.later(100);
        let got = world.answers(&FEW);
        assert_eq!(order(&got), RANKED);
        assert!(rankings(&got)[0].held, "and it is said");
        assert_eq!(order(&world.look()), RANKED, "looking again is no further answer");
        world.later(100);
        let got = world.answers(&ALL);
        assert_eq!(order(&got), RANKED);
        assert!(!rankings(&got)[0].held);
    }
}

#[test]
fn costs_that_stay_too_few_count_no_more_and_come_back_as_slowly() {
    let mut world = world();
    world.policy.persist = 3;
    world.answers(&ALL);
    for n in 1..=3 {
        world.later(100);
        let got = world.answers(&FEW);
        let lost = n == 3;
        assert_eq!(order(&got).len() == 1, lost, "{n}");
        assert_eq!(rankings(&got)[0].used == Use::NotCovered, lost);
    }
    for n in 1..=3 {
        world.later(100);
        let got = world.answers(&ALL);
        assert_eq!(order(&got).len() == 2, n == 3, "{n}");
        assert_eq!(rankings(&got)[0].held, n < 3, "{n}");
    }
    assert_eq!(order(&world.look()), RANKED);
}

#[test]
fn a_hold_down_keeps_what_is_due_until_it_is_over() {
    let mut world = world();
    world.policy.hold_down = secs(60);
    world.answers(&ALL);
    world.later(1);
    world.answers(&FEW);
    world.later(1);
    assert_eq!(order(&world.answers(&FEW)), PLAIN, "the first order starts no hold-down");
    world.later(1);
    world.answers(&ALL);
    world.later(1);
    assert_eq!(order(&world.answers(&ALL)), PLAIN);
    assert_eq!(world.again_at, Some(world.now + secs(58)), "it says when to look again");
    world.later(58);
    assert_eq!(order(&world.look()), RANKED);
}

#[test]
fn the_first_costs_are_not_kept_waiting_in_whatever_portions_they_come() {
    let mut world = world();
    assert_eq!(order(&world.answers(&FEW)), PLAIN);
    assert_eq!(order(&world.add(&[(1, 9.0), (3, 9.0), (4, 9.0)])), RANKED);
}

#[test]
fn with_no_cost_left_the_order_is_plain_at_once() {
    let mut world = World::of(vec![tier(10, &[1, 2]), tier(20, &[3, 4])]);
    assert_eq!(order(&world.answers(&ALL)), [vec![2], vec![1], vec![3, 4]]);
    let got = world.answers(&[(3, 1.0), (4, 1.0)]);
    assert_eq!(order(&got), [vec![1, 2], vec![3, 4]]);
    assert!(got.tiers[0].ranking.is_none(), "nothing is known of it");
    assert_eq!(order(&world.answers(&ALL))[0], [2], "and its first costs rule at once again");
}

#[test]
fn costs_that_run_out_without_fresh_ones_are_not_held_on_to() {
    let mut world = world();
    world.answers(&ALL);
    world.later(1800);
    // Two answers later there is news of one of them only; the others run out first.
    world.add(&FEW);
    world.later(5500);
    let got = world.look();
    assert_eq!(order(&got), PLAIN);
    assert_eq!(rankings(&got)[0].used, Use::NotCovered);
}

#[test]
fn what_the_operator_sets_counts_at_once() {
    let mut world = world();
    world.policy.min_coverage = 0.75;
    world.answers(&ALL);
    for _ in 0..2 {
        world.later(100);
        world.answers(&FEW);
    }
    assert_eq!(order(&world.look()), PLAIN);
    world.origin = CostOrigin::Override;
    assert_eq!(order(&world.add(&[(1, 5.0), (3, 5.0)])), [vec![2], vec![1, 3], vec![4]]);
}
