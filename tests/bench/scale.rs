//! How the element grows: with the size of the world, with cores, with live calls.
//!
//! ```text
//! cargo bench --bench scale              # all of it
//! cargo bench --bench scale -- memory    # one part: world, cache, cores, memory
//! ```
//!
//! The memory part lets hours pass in an instant. The allocator gives back to the system what has not been used for a
//! second of real time; `MIMALLOC_PURGE_DELAY=10` (ms) lets it see the end of this one.
//!
//! Every figure is a ratio taken in one run, the two sides in turn, or octets counted by the process itself.
#![allow(clippy::unwrap_used, clippy::indexing_slicing)]

mod rig;

use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

use sbe::config::Realm;
use sbe::flow::{Host, Transport};
use sbe::location::{LocateKey, Located, Outcome, Question, Records, RrSet, Server, Tier};
use sbe::runtime::dns::{EnabledByRealm, Found, Pending, Reply, Resolver, Upstream};
use sbe::runtime::node::enabled;

use rig::{Rig, key, located, policy, policy_with};

/// The product's own.
#[global_allocator]
static ALLOCATOR: sbe::runtime::Allocator = sbe::runtime::Allocator;

fn main() {
    let wanted: Vec<String> = std::env::args().skip(1).filter(|a| !a.starts_with('-')).collect();
    // Memory first: what the others leave behind would be used again.
    let all = [("memory", memory as fn()), ("world", world), ("cache", cache), ("cores", cores)];
    for (name, run) in all {
        if wanted.is_empty() || wanted.iter().any(|w| w == name) {
            run();
        }
    }
}

/// Seconds for `calls` whole calls through a rig.
fn calls(rig: &mut Rig, from: u64, calls: u64) -> f64 {
    let began = Instant::now();
    for call in from..from + calls {
        rig.call(call, |_, _| ());
    }
    began.elapsed().as_secs_f64()
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// 10,000 peers, and 1,000 instances behind the domain that is called.
fn world() {
    let now = Instant::now();
    let peers: String = (0..10_000)
        .map(|n| {
            format!(
                "[[peer]]\nname = \"p{n}\"\ndomains = [\"p{n}.example\", \"*.p{n}.example\"]\nsources = [\"10.{}.{}.0/28\"]\n",
                n / 250,
                n % 250
            )
        })
        .collect();
    let servers = (0..1_000u16)
        .map(|n| {
            let addr = "127.0.0.21".parse().unwrap();
            let target = format!("uas{n}.peer.test").into();
            Server::new(Transport::Udp, target, 5080 + n, 1 + n % 7, std::iter::once(addr).collect())
        })
        .collect();
    let tier = Tier::new(Some((10, 10)), 10, servers);
    let large = Located::from_tiers(key(), vec![tier], Outcome::Found, now + Duration::from_secs(3600));
    let mut small = Rig::new();
    let mut big = Rig::with(policy_with(now, &peers), large, now);
    let (mut a, mut b) = (Vec::new(), Vec::new());
    const N: u64 = 2_000;
    for round in 0..12u64 {
        let (s, l) = (calls(&mut small, round * N, N), calls(&mut big, round * N, N));
        small.pass(Duration::from_secs(60));
        big.pass(Duration::from_secs(60));
        if round >= 2 {
            a.push(s);
            b.push(l);
        }
    }
    let ratio = median(a.iter().zip(&b).map(|(s, l)| l / s).collect());
    let micros = |v: &[f64]| median(v.to_vec()) / N as f64 * 1e6;
    println!(
        "world: a call costs {:.2} us with 1 peer and 1 instance, {:.2} us with 10,001 peers and 1,000 instances: x {ratio:.3}",
        micros(&a),
        micros(&b)
    );
}

/// A name server that knows an address for every name.
struct Addresses;

impl Upstream for Addresses {
    fn query(&self, _: Question) -> Pending<'_> {
        let records = Records::Addr(vec!["127.0.0.21".parse().unwrap()]);
        let found = Found::Records(Arc::new(RrSet { records }), Duration::from_secs(3600));
        Box::pin(async { Reply::of(found) })
    }
}

/// A cached location among 100,000 others.
fn cache() {
    let tokio = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let policy = policy(Instant::now());
    let resolver = |entries: usize| {
        let enabled: EnabledByRealm = enabled(&policy);
        Resolver::with_upstream(
            Arc::new(Addresses),
            &policy.config.dns,
            enabled,
            entries,
            tokio.handle().clone(),
        )
    };
    let name = |n: usize| LocateKey {
        host: Host::Name(format!("d{n}.example").into()),
        port: Some(5060),
        transport: Some(Transport::Udp),
        sips: false,
        realm: Realm::Peering,
    };
    let (small, big) = (resolver(1_000), resolver(400_000));
    tokio.block_on(async {
        small.locate(name(0)).await;
        for n in 0..100_000 {
            big.locate(name(n)).await;
        }
    });
    let now = Instant::now();
    let time = |r: &Resolver, n: usize| {
        let keys: Vec<LocateKey> = (0..64).map(|i| name(if n == 1 { 0 } else { i * (n / 64) })).collect();
        let began = Instant::now();
        let mut found = 0usize;
        for turn in 0..100_000usize {
            found += usize::from(r.locate_cached(&keys[turn % 64], now).is_some());
        }
        (began.elapsed().as_secs_f64() / 100_000.0 * 1e9, found)
    };
    let (mut a, mut b) = (Vec::new(), Vec::new());
    for _ in 0..10 {
        let (s, l) = (time(&small, 1), time(&big, 100_000));
        assert!(s.1 == 100_000 && l.1 == 100_000, "all from the cache: {} and {}", s.1, l.1);
        a.push(s.0);
        b.push(l.0);
    }
    println!("cache: a look-up costs {:.0} ns with 1 domain, {:.0} ns with 100,000", median(a), median(b));
}

/// Two shards on two threads against one on one.
fn cores() {
    const N: u64 = 20_000;
    let run = |threads: u64| {
        let gate = Arc::new(Barrier::new(threads as usize));
        let handles: Vec<_> = (0..threads)
            .map(|_| {
                let gate = Arc::clone(&gate);
                std::thread::spawn(move || {
                    let mut rig = Rig::new();
                    calls(&mut rig, 0, 2_000);
                    gate.wait();
                    let began = Instant::now();
                    for part in 0..10 {
                        calls(&mut rig, 10_000 + part * N / 10, N / 10);
                        rig.pass(Duration::from_secs(60));
                    }
                    began.elapsed().as_secs_f64()
                })
            })
            .collect();
        let slowest = handles.into_iter().map(|h| h.join().unwrap()).fold(0.0, f64::max);
        (N * threads) as f64 / slowest
    };
    let mut ratios = Vec::new();
    let (mut one, mut two) = (Vec::new(), Vec::new());
    for _ in 0..5 {
        let (a, b) = (run(1), run(2));
        ratios.push(b / a);
        one.push(a);
        two.push(b);
    }
    println!(
        "cores: {:.0} calls/s by one shard, {:.0} by two on two cores: x {:.2} (no sockets, both ends of the calls included)",
        median(one),
        median(two),
        median(ratios)
    );
}

/// Proportional set size of this process, octets.
fn pss() -> u64 {
    let text = std::fs::read_to_string("/proc/self/smaps_rollup").unwrap();
    text.lines()
        .filter_map(|l| l.strip_prefix("Pss:"))
        .filter_map(|l| l.trim().trim_end_matches(" kB").trim().parse::<u64>().ok())
        .sum::<u64>()
        * 1024
}

/// 100,000 live calls; the transactions that linger behind them; what comes back.
fn memory() {
    const N: u64 = 100_000;
    let mut rig = Rig::new();
    calls(&mut rig, 0, 1_000);
    rig.pass(Duration::from_secs(120));
    let before = pss();
    for call in 0..N {
        rig.open_call(1_000_000 + call);
    }
    let lingering = pss();
    println!(
        "memory: {N} calls just answered: {} contexts, {} octets each",
        rig.shard.contexts(),
        lingering.saturating_sub(before) / N
    );
    rig.pass(Duration::from_secs(40));
    let live = pss();
    assert_eq!(rig.shard.calls() as u64, N);
    println!("memory: the same {} calls after 40 s: {} octets each", N, live.saturating_sub(before) / N);
    rig.pass(Duration::from_secs(13 * 3600));
    assert_eq!((rig.shard.calls(), rig.shard.contexts()), (0, 0));
    let after = pss();
    println!(
        "memory: {} MB before, {} MB at most, {} MB when all is over",
        before >> 20,
        lingering >> 20,
        after >> 20
    );
    let _ = located(key(), rig.now);
}
