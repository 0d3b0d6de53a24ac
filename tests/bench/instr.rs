//! A fixed number of whole calls through one shard, for counting instructions:
//!
//! ```text
//! valgrind --tool=callgrind --toggle-collect='*rig::Rig::turn*' target/release/deps/instr-* 2000
//! ```
//!
//! The total divided by the number of calls is what one call costs in the element itself, sockets
//! left out; with `*turn_invite`, `*turn_ok` and so on (see `rig.rs`) what one of its messages costs.
//! With `records` behind the number, call records are on: what the shard does for them is part of it.
//! The same input each time, so that two builds can be compared to the instruction.

mod rig;

use std::time::Instant;

use rig::Rig;

fn main() {
    let calls = std::env::args().skip(1).find_map(|a| a.parse().ok()).unwrap_or(200u64);
    let now = Instant::now();
    let records = std::env::args().any(|a| a == "records");
    let more = if records { "\n[records]\noutput = \"stdout\"\n" } else { "" };
    let mut rig = Rig::with(rig::policy_with(now, more), rig::located(rig::key(), now), now);
    for call in 0..calls {
        rig.call(call, |_, _| ());
    }
    println!("{calls} calls, {} contexts linger", rig.shard.contexts());
}
