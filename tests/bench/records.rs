//! What the decision records cost: the same calls through one shard with records and without, by turns.
//!
//! ```text
//! cargo bench --bench records                    # 400 rounds of 500 calls each way
//! cargo bench --bench records -- --rounds 800 --calls 250 --kept 1000
//! ```
//!
//! A call is six messages (INVITE, 180, 200, ACK, BYE, 200); two of them are requests with a record. Without: `[limits]
//! records = 0`, and none is made. With: the usual 10,000 kept, so that each new one displaces an old one. Two shards without
//! are measured, which tells how much the figures mean: the median of the rounds' ratios is told, and where nine in ten lie.
#![allow(clippy::unwrap_used, clippy::indexing_slicing)]

#[path = "rig.rs"]
mod rig;

use std::time::{Duration, Instant};

use rig::Rig;

// As in the program.
#[global_allocator]
static ALLOCATOR: sbe::runtime::Allocator = sbe::runtime::Allocator;

/// More than are kept by default.
const WARM: u64 = 12_000;

fn argument(name: &str, default: u32) -> u32 {
    let args: Vec<String> = std::env::args().collect();
    let at = args.iter().position(|a| a == name);
    at.and_then(|at| args.get(at + 1)).and_then(|v| v.parse().ok()).unwrap_or(default)
}

fn rig(more: &str) -> Rig {
    let now = Instant::now();
    Rig::with(rig::policy_with(now, more), rig::located(rig::key(), now), now)
}

/// What one call takes, the middle one of a round: only what the shard does is counted, not what the two ends do, and a
/// call in which this process was stopped for another one doesn't count for more than its place.
fn calls(rig: &mut Rig, from: u64, calls: u64) -> f64 {
    let mut spent = Vec::with_capacity(calls as usize);
    for call in from..from + calls {
        let (mut took, mut began) = (Duration::ZERO, Instant::now());
        rig.call(call, |_, after| if after { took += began.elapsed() } else { began = Instant::now() });
        spent.push(took.as_secs_f64() * 1e6);
    }
    // What lingers has its end, so that no round has more of it than another.
    rig.pass(Duration::from_secs(40));
    spent.sort_by(f64::total_cmp);
    at(&spent, 0.5)
}

fn at(sorted: &[f64], part: f64) -> f64 {
    sorted[((sorted.len() - 1) as f64 * part).round() as usize]
}

fn main() {
    let (rounds, number) = (u64::from(argument("--rounds", 400)), u64::from(argument("--calls", 500)));
    let kept = argument("--kept", 10_000);
    let [some, none] = [kept, 0].map(|n| format!("\n[limits]\nrecords = {n}\n"));
    let mut rigs = [rig(&some), rig(&none), rig(&none)];
    for rig in &mut rigs {
        calls(rig, 0, WARM);
    }
    let mut spent = vec![[0.0; 3]; 0];
    for round in 0..rounds {
        let mut row = [0.0; 3];
        for turn in 0..3 {
            // Each one is first, second and last as often as the others.
            let which = (turn + round as usize) % 3;
            row[which] = calls(&mut rigs[which], WARM + round * number, number);
        }
        spent.push(row);
    }
    let kept = rigs[0].shard.records_after(0, usize::MAX, &mut |_| ());
    assert!(kept >= WARM, "records were kept: {kept}");
    assert_eq!(rigs[1].shard.records_after(0, usize::MAX, &mut |_| ()), 0, "and here none");
    for (which, name) in ["with records", "without", "without, again"].into_iter().enumerate() {
        let mut of: Vec<f64> = spent.iter().map(|row| row[which]).collect();
        of.sort_by(f64::total_cmp);
        println!("{name:<16} {:7.3} us for a call (median of {rounds} rounds of {number})", at(&of, 0.5));
    }
    for (name, over) in [("with / without", 0), ("without again / without", 2)] {
        let mut ratios: Vec<f64> = spent.iter().map(|row| row[over] / row[1]).collect();
        ratios.sort_by(f64::total_cmp);
        let [low, mid, high] = [0.05, 0.5, 0.95].map(|p| at(&ratios, p));
        println!("{name:<24} {mid:.4} ({low:.3} to {high:.3})");
    }
}
