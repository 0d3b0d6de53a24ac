//! Times of the parts that a call is made of: `cargo bench --bench element`.

mod rig;

use std::sync::Arc;
use std::time::Instant;

use divan::{Bencher, black_box};

use rig::Rig;
use sbe::location::{Health, HealthPolicy, Selection};
use sbe::wire::{Framing, Index, Limits, Message};

fn main() {
    divan::main();
}

/// To index and check an INVITE of 1 kB with SDP; budget: 0.7 µs.
#[divan::bench]
fn index_invite(bencher: Bencher<'_, '_>) {
    let invite = rig::invite(1);
    let limits = Limits::default();
    bencher.bench_local(|| Index::parse(black_box(&invite), &limits, Framing::Datagram).map(|i| i.fault()));
}

/// To write it out with all changes that forwarding makes.
#[divan::bench]
fn forward_invite(bencher: Bencher<'_, '_>) {
    use sbe::proxy::{Forward, Routing, forward};
    use sbe::transaction::Branch;
    let invite = rig::invite(1);
    let Ok(index) = Index::parse(&invite, &Limits::default(), Framing::Datagram) else { return };
    let policy = rig::policy(Instant::now());
    let branch = Branch::mint(0, 1, 2, 3, 4);
    let routing = Routing::default();
    bencher.bench_local(|| {
        let listener = &policy.listeners[0];
        forward(
            black_box(&Message::new(&invite, &index)),
            &Forward {
                out: listener,
                inn: listener,
                source: ([127, 0, 0, 10], 5070).into(),
                routing: &routing,
                uri: None,
                branch: &branch,
                token: b"abcdefghijklmnopqrst",
                alias: false,
                strip: &[],
            },
        )
    });
}

/// To pick the server for a call from a located result.
#[divan::bench]
fn pick_server(bencher: Bencher<'_, '_>) {
    let now = Instant::now();
    let policy = rig::policy(now);
    let located = Arc::new(rig::located(rig::key(), now));
    let health_policy = HealthPolicy::new(&policy.config.health, policy.config.sip.try_timeout);
    let mut health = Health::new(health_policy);
    let mut seed = 0u64;
    bencher.bench_local(|| {
        seed += 1;
        let mode = policy.config.dns.srv_selection;
        Selection::new(Arc::clone(black_box(&located)), seed, mode).next(now, &mut health, &|_| None)
    });
}

/// A whole call through one shard: six messages in, seven out. Includes what the two ends of the
/// call cost, about a tenth.
#[divan::bench(sample_count = 20, sample_size = 500)]
fn whole_call(bencher: Bencher<'_, '_>) {
    let mut rig = Rig::new();
    let mut call = 0;
    bencher.bench_local(|| {
        call += 1;
        rig.call(call, |_, _| ());
    });
}
