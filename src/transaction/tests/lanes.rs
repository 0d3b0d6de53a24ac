use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::{Duration, Instant};

use proptest::prelude::*;

use crate::transaction::Lanes;

const MS: Duration = Duration::from_millis(1);

fn expired<K: Copy>(lanes: &mut Lanes<K>, now: Instant) -> Vec<K> {
    std::iter::from_fn(|| lanes.pop_expired(now)).collect()
}

#[test]
fn timers_come_out_in_the_order_of_their_deadlines() {
    let start = Instant::now();
    let mut lanes = Lanes::new();
    assert!(lanes.is_empty() && lanes.poll_timeout().is_none());
    // The first of each duration waits in the heap, the later ones in lanes.
    for round in 0..3 {
        lanes.arm(start + round * MS, 100 * MS, ("long", round));
        lanes.arm(start + round * MS, 10 * MS, ("short", round));
    }
    assert_eq!(lanes.len(), 6);
    assert_eq!(lanes.poll_timeout(), Some(start + 10 * MS));
    assert!(expired(&mut lanes, start + 9 * MS).is_empty());
    assert_eq!(expired(&mut lanes, start + 11 * MS), [("short", 0), ("short", 1)]);
    assert_eq!(lanes.poll_timeout(), Some(start + 12 * MS));
    let rest = [("short", 2), ("long", 0), ("long", 1), ("long", 2)];
    assert_eq!(expired(&mut lanes, start + 500 * MS), rest);
    assert!(lanes.is_empty() && lanes.poll_timeout().is_none());
}

#[test]
fn a_clock_that_goes_back_makes_a_timer_late_but_never_early() {
    let start = Instant::now() + Duration::from_secs(60);
    let mut lanes = Lanes::new();
    for key in 0..3 {
        lanes.arm(start, 10 * MS, key);
    }
    lanes.arm(start - 5 * MS, 10 * MS, 3);
    assert!(expired(&mut lanes, start + 9 * MS).is_empty());
    assert_eq!(expired(&mut lanes, start + 10 * MS), [0, 1, 2, 3]);
    lanes.arm(start - 20 * MS, Duration::ZERO, 4);
    assert_eq!(expired(&mut lanes, start - 21 * MS), Vec::<i32>::new());
    assert_eq!(expired(&mut lanes, start - 20 * MS), [4]);
}

#[test]
fn zero_and_endless_durations_are_taken() {
    let start = Instant::now();
    let mut lanes = Lanes::new();
    for _ in 0..3 {
        lanes.arm(start, Duration::MAX, "never");
        lanes.arm(start, Duration::from_nanos(u64::MAX), "never");
        lanes.arm(start, Duration::ZERO, "now");
    }
    assert_eq!(expired(&mut lanes, start), ["now"; 3]);
    assert!(expired(&mut lanes, start + Duration::from_secs(30 * 24 * 3600)).is_empty());
    assert_eq!(lanes.len(), 6);
}

#[test]
fn more_durations_than_lanes_are_no_harm() {
    let start = Instant::now();
    let mut lanes = Lanes::new();
    for ms in (1..=100).rev() {
        for _ in 0..3 {
            lanes.arm(start, ms * MS, ms);
        }
    }
    let all = expired(&mut lanes, start + 100 * MS);
    assert_eq!(all.len(), 300);
    assert!(all.is_sorted());
    // Empty lanes are given to the durations that come now.
    for ms in 1001..=1010 {
        for _ in 0..3 {
            lanes.arm(start, ms * MS, ms);
        }
    }
    assert!(expired(&mut lanes, start + 2000 * MS).is_sorted());
    assert!(lanes.is_empty());
}

#[test]
fn a_burst_leaves_no_memory_behind() {
    let start = Instant::now();
    let mut lanes = Lanes::new();
    for key in 0..100_000u64 {
        lanes.arm(start, 32_000 * MS, key);
        lanes.arm(start, Duration::from_nanos(32_000_000_000 + key), key);
    }
    assert!(lanes.capacity() >= 200_000);
    assert_eq!(expired(&mut lanes, start + 40_000 * MS).len(), 200_000);
    assert!(lanes.is_empty());
    assert!(lanes.capacity() <= 64 * 4, "{}", lanes.capacity());
}

#[test]
fn a_steady_load_stays_in_its_memory() {
    let start = Instant::now();
    let mut lanes = Lanes::new();
    let mut fired = 0;
    let mut most = 0;
    for tick in 0..50_000u32 {
        let now = start + tick * MS;
        lanes.arm(now, 500 * MS, tick);
        lanes.arm(now, 32_000 * MS / 64, tick);
        fired += expired(&mut lanes, now).len();
        most = most.max(lanes.capacity());
    }
    assert_eq!(fired + lanes.len(), 100_000);
    assert!(lanes.len() <= 1002, "{}", lanes.len());
    assert!(most <= 8192, "{most}");
}

#[test]
fn a_timer_of_no_length_is_due_at_once() {
    let now = Instant::now();
    let mut lanes = Lanes::new();
    lanes.arm(now, Duration::ZERO, 7);
    assert_eq!(lanes.poll_timeout(), Some(now));
    assert_eq!(lanes.pop_expired(now), Some(7));
    assert!(lanes.is_empty());
}

#[derive(Clone, Debug)]
enum Step {
    Arm { after: u32 },
    Pass { ms: u32 },
    Pop,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    // Few durations that come again and again, and many that do not.
    let after = prop_oneof![
        4 => prop::sample::select(vec![0u32, 1, 10, 20, 40, 500, 640]),
        2 => 0u32..80,
        1 => 0u32..5000,
    ];
    let step = prop_oneof![
        6 => after.prop_map(|after| Step::Arm { after }),
        2 => (0u32..60).prop_map(|ms| Step::Pass { ms }),
        2 => Just(Step::Pop),
    ];
    prop::collection::vec(step, 0..600)
}

proptest! {
    /// Against the obvious model: the same deadlines fire at the same moments, in order, and every
    /// key comes out once, at its own deadline.
    #[test]
    fn lanes_do_as_a_heap_does(steps in steps()) {
        let start = Instant::now();
        let mut now = start;
        let mut lanes = Lanes::new();
        let mut heap: BinaryHeap<Reverse<Instant>> = BinaryHeap::new();
        let mut deadlines: Vec<Option<Instant>> = Vec::new();
        let end = [Step::Pass { ms: 10_000 }, Step::Pop];
        for step in steps.into_iter().chain(end) {
            match step {
                Step::Arm { after } => {
                    let after = after * MS;
                    lanes.arm(now, after, deadlines.len());
                    heap.push(Reverse(now + after));
                    deadlines.push(Some(now + after));
                }
                Step::Pass { ms } => now += ms * MS,
                Step::Pop => {
                    while heap.peek().is_some_and(|Reverse(deadline)| *deadline <= now) {
                        let Reverse(deadline) = heap.pop().unwrap();
                        let key = lanes.pop_expired(now);
                        prop_assert!(key.is_some());
                        let own = deadlines.get_mut(key.unwrap()).and_then(Option::take);
                        prop_assert_eq!(own, Some(deadline));
                    }
                    prop_assert!(lanes.pop_expired(now).is_none());
                }
            }
            prop_assert_eq!(lanes.len(), heap.len());
            let next = heap.peek().map(|Reverse(deadline)| *deadline);
            prop_assert_eq!(lanes.poll_timeout(), next);
        }
        prop_assert!(lanes.is_empty());
    }
}
