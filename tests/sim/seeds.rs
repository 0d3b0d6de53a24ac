//! Many seeds, each a world of its own with faults of its own.
//!
//! `SIM_SEED=n` replays one seed (`SIM_TRACE=1` prints what goes in and out, `SIM_TRACE_FULL=1` whole
//! messages); `SIM_SEEDS=n` runs that many, `SIM_FROM=n` begins there.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::world::{Plan, Report, World};

/// Seeds of every test run.
const SEEDS: u64 = 2_000;

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

/// One world; a failure says which.
fn run(seed: u64) -> Report {
    match catch_unwind(AssertUnwindSafe(|| World::new(Plan::new(seed)).run())) {
        Ok(report) => report,
        Err(cause) => {
            eprintln!(
                "seed {seed} failed; again: SIM_SEED={seed} SIM_TRACE=1 cargo test --test sim one_seed -- --nocapture"
            );
            resume_unwind(cause)
        }
    }
}

#[test]
fn one_seed_gives_one_run() {
    let seeds = number("SIM_SEED").map_or(0..20, |s| s..s + 1);
    for seed in seeds {
        let first = run(seed);
        if std::env::var_os("SIM_TRACE").is_some() {
            println!("{first:?}");
            continue;
        }
        assert_eq!(first, run(seed), "seed {seed} ran in two ways");
    }
}

#[test]
fn the_invariants_hold_whatever_goes_wrong() {
    let from = number("SIM_FROM").unwrap_or(0);
    let count = number("SIM_SEEDS").unwrap_or(SEEDS);
    let next = AtomicU64::new(from);
    let total = Mutex::new(Report::default());
    let failed: Mutex<Vec<u64>> = Mutex::default();
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= from + count {
                        break;
                    }
                    match catch_unwind(AssertUnwindSafe(|| run(seed))) {
                        Ok(report) => add(&mut total.lock().unwrap(), &report),
                        Err(_) => failed.lock().unwrap().push(seed),
                    }
                    // Ten failures tell enough.
                    if failed.lock().unwrap().len() >= 10 {
                        break;
                    }
                }
            });
        }
    });
    let (failed, total) = (failed.into_inner().unwrap(), total.into_inner().unwrap());
    println!("{count} seeds from {from}: {total:?}");
    assert!(failed.is_empty(), "failing seeds: {failed:?}");
    // The worlds are not dull.
    let often = |n: u64| n * 10 >= count;
    for n in
        [total.answered, total.failed, total.cancelled, total.failovers, total.late_answers, total.late_rings]
    {
        assert!(count < 200 || often(n), "{total:?}");
    }
}

fn add(total: &mut Report, one: &Report) {
    total.answered += one.answered;
    total.failed += one.failed;
    total.timed_out += one.timed_out;
    total.cancelled += one.cancelled;
    total.two_answers += one.two_answers;
    total.failovers += one.failovers;
    total.late_answers += one.late_answers;
    total.late_rings += one.late_rings;
    total.messages += one.messages;
}
