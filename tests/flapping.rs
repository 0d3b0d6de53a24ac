//! What flaps gets single requests, and what is well again its full share: selection, health and time, without anything
//! else. Every seed is a world of its own; `FLAPPING_SEEDS` says how many there are.

#![allow(clippy::unwrap_used)]

use std::collections::BinaryHeap;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use sbe::config::SrvSelection;
use sbe::flow::Transport;
use sbe::location::*;
use smallvec::SmallVec;

mod zone;
use zone::{health, key};

/// Silence is noticed after this.
const TRY_TIMEOUT: Duration = Duration::from_millis(500);
/// An answer takes so long.
const ROUND_TRIP: Duration = Duration::from_millis(20);
/// Time between requests, on average.
const PAUSE: Duration = Duration::from_millis(100);

/// By when a full share is back at the latest, as `location::standing` says: `hold_down_max`, five times 1.25
/// `hold_down`, `slow_start`; and the time until a request comes by, and a request begun before has failed.
const RECOVERY: Duration = Duration::from_millis(60_000 + 12_500 + 10_000 + 2_000);

fn seeds(default: u64) -> u64 {
    std::env::var("FLAPPING_SEEDS").ok().and_then(|n| n.parse().ok()).unwrap_or(default)
}

fn secs(n: u64) -> Duration {
    Duration::from_secs(n)
}

fn server(n: u8) -> Server {
    let addrs = SmallVec::from_slice(&[Ipv4Addr::new(10, 0, 0, n).into()]);
    Server::new(Transport::Udp, format!("s{n}").into(), 5060, 1, addrs)
}

fn instance(n: u8) -> Instance {
    Instance { transport: Transport::Udp, addr: (Ipv4Addr::new(10, 0, 0, n), 5060).into() }
}

/// The first server is up and down by turns until `well`; the second is well. Weights are equal.
struct World {
    rng: StdRng,
    start: Instant,
    located: Arc<Located>,
    health: Health,
    /// What requests under way will show, and when: nanoseconds since the start, answered or not.
    coming: BinaryHeap<std::cmp::Reverse<(Duration, bool)>>,
    period: Duration,
    phase: Duration,
    well: Duration,
    /// Times at which requests went to the first server first.
    asked: Vec<Duration>,
    /// When it went down or came back, as it was seen.
    changes: Vec<(Duration, bool)>,
    requests: u64,
}

impl World {
    /// `alone`: the first server is the only one of the better priority.
    fn new(seed: u64, half_period: Duration, alone: bool, well: Duration) -> Self {
        let mut rng = StdRng::seed_from_u64(seed);
        let start = Instant::now();
        let tiers = if alone {
            vec![Tier::new(None, 10, vec![server(1)]), Tier::new(None, 20, vec![server(2)])]
        } else {
            vec![Tier::new(None, 10, vec![server(1), server(2)])]
        };
        let located = Located::from_tiers(key("sip:d"), tiers, Outcome::Found, start + secs(86_400));
        let period = 2 * half_period;
        Self {
            phase: period.mul_f64(rng.random_range(0.0..1.0)),
            rng,
            start,
            located: Arc::new(located),
            health: health(),
            coming: BinaryHeap::new(),
            period,
            well,
            asked: Vec::new(),
            changes: Vec::new(),
            requests: 0,
        }
    }

    fn is_there(&self, at: Duration) -> bool {
        let part = (at + self.phase).as_nanos() % self.period.as_nanos();
        at >= self.well || part < self.period.as_nanos() / 2
    }

    fn run(&mut self, until: Duration) {
        let mut at = Duration::ZERO;
        while at < until {
            at += PAUSE.mul_f64(self.rng.random_range(0.5..1.5));
            self.hear(at);
            let mut selection = Selection::new(
                Arc::clone(&self.located),
                self.rng.random_range(0..=u64::MAX),
                SrvSelection::Exact,
            );
            let now = self.start + at;
            self.requests += 1;
            if selection.next(now, &mut self.health, &|_| None).unwrap().instance == instance(1) {
                self.asked.push(at);
                let there = self.is_there(at);
                let heard = at + if there { ROUND_TRIP } else { TRY_TIMEOUT };
                self.coming.push(std::cmp::Reverse((heard, there)));
            }
        }
    }

    /// Observes what has come by now.
    fn hear(&mut self, at: Duration) {
        while let Some(std::cmp::Reverse((when, answered))) = self.coming.peek().copied()
            && when <= at
        {
            self.coming.pop();
            let seen = if answered { Observation::Answered } else { Observation::Silence { invite: true } };
            if let Some(change) = self.health.observe(self.start + when, instance(1), seen) {
                self.changes.push((when, change.up));
            }
        }
    }

    fn asked_between(&self, from: Duration, to: Duration) -> usize {
        self.asked.iter().filter(|t| (from..to).contains(*t)).count()
    }
}

#[test]
fn what_flaps_gets_no_more_than_the_half_open_trickle() {
    let (warm, end) = (secs(120), secs(420));
    for seed in 0..seeds(40) {
        for alone in [false, true] {
            let mut world = World::new(seed, secs(1), alone, secs(86_400));
            world.run(end);
            // The trickle: one request for each hold-down of two seconds.
            let asked = world.asked_between(warm, end);
            let trickle = usize::try_from((end - warm).as_secs() / 2).unwrap();
            assert!(asked <= trickle, "seed {seed}, alone {alone}: {asked} requests, trickle {trickle}");
            // And it does not swing: at most one coming back for each minute of hold-down.
            let back = world.changes.iter().filter(|(t, up)| *up && *t > warm).count();
            assert!(back <= 6, "seed {seed}, alone {alone}: came back {back} times");
        }
    }
}

#[test]
fn what_flaps_slower_or_faster_gets_little_too() {
    for seed in 0..seeds(40).div_ceil(3) {
        for half in
            [Duration::from_millis(300), Duration::from_millis(700), secs(2), Duration::from_millis(3300)]
        {
            let mut world = World::new(seed, half, false, secs(86_400));
            world.run(secs(420));
            let asked = world.asked_between(secs(120), secs(420));
            assert!(asked <= 150, "seed {seed}, half a period {half:?}: {asked}");
        }
    }
}

#[test]
fn what_has_stopped_flapping_has_its_full_share_within_the_documented_time_and_keeps_it() {
    let well = secs(200);
    for seed in 0..seeds(40) {
        let mut world = World::new(seed, secs(1), false, well);
        let end = well + RECOVERY + secs(60);
        world.run(end);
        let last = world.changes.iter().rev().find(|(_, up)| *up).unwrap().0;
        assert!(last + secs(10) <= well + RECOVERY, "seed {seed}: back at {last:?}");
        let swings = world.changes.iter().filter(|(t, up)| !*up && *t > well + TRY_TIMEOUT).count();
        assert_eq!(swings, 0, "seed {seed}: it went down again, though it was well: {:?}", world.changes);
        // 60 s of ten requests a second, of which a half is 300; six standard deviations are 74.
        let got = world.asked_between(well + RECOVERY, end);
        assert!((226..=374).contains(&got), "seed {seed}: {got} requests of about 600");
    }
}

#[test]
fn one_failure_costs_a_few_seconds_and_no_more() {
    for seed in 0..seeds(40) {
        // Down for the first second only.
        let mut world = World::new(seed, secs(1), false, secs(1));
        world.phase = secs(1);
        world.run(secs(60));
        // A request within the first second fails within half a second; then hold-down and slow start.
        let full = secs(1) + TRY_TIMEOUT + secs(2) + secs(1) + secs(10);
        let last = world.changes.iter().rev().find(|(_, up)| *up).map_or(Duration::ZERO, |c| c.0);
        assert!(last + secs(10) <= full, "seed {seed}: {:?}", world.changes);
        let got = world.asked_between(full, secs(60));
        let of = (secs(60) - full).as_millis() / PAUSE.as_millis();
        let half = i64::try_from(of / 2).unwrap();
        assert!((i64::try_from(got).unwrap() - half).abs() < 70, "seed {seed}: {got} of {of}");
    }
}

/// Costs of three servers that wander, with answers now and then that are wrong altogether.
#[test]
fn noise_in_costs_moves_no_order_and_a_lasting_change_moves_it_once() {
    let policy = zone::rank_policy();
    let located = |now| {
        let tier = Tier::new(None, 10, (1..=3).map(server).collect());
        Arc::new(Located::from_tiers(key("sip:d"), vec![tier], Outcome::Found, now + secs(86_400)))
    };
    for seed in 0..seeds(40) {
        let mut rng = StdRng::seed_from_u64(seed);
        let mut now = Instant::now();
        let (located, mut memory) = (located(now), Memory::default());
        let flip = rng.random_range(20..40u64);
        let (mut orders, mut wrong_before) = (Vec::new(), false);
        for answer in 1..=60u64 {
            now += secs(30);
            let base = if answer < flip { [10.0, 30.0, 50.0] } else { [50.0, 30.0, 10.0] };
            // Wrong answers never come twice in a row; the first one is right.
            let wrong = answer > 1 && !wrong_before && rng.random_range(0..4) == 0;
            wrong_before = wrong;
            let mut snapshot = CostSnapshot::new(answer, CostMode::Numerical, false);
            for (n, base) in (1u8..).zip(base) {
                let value =
                    if wrong { rng.random_range(0.0..100.0) } else { base * rng.random_range(0.97..1.03) };
                let (fetched, end, origin) = (now, now + secs(300), CostOrigin::Endpoint);
                let cost = Cost { value, answer, fetched, fresh_until: end, usable_until: end, origin };
                snapshot.insert(Ipv4Addr::new(10, 0, 0, n).into(), cost);
            }
            let ranked = rank(&located, &snapshot, &policy, &mut memory, &|_| false, now).located;
            let order: Vec<Vec<Arc<str>>> = ranked
                .tiers
                .iter()
                .map(|t| t.servers.iter().map(|s| Arc::clone(&s.target)).collect())
                .collect();
            if orders.last() != Some(&order) {
                orders.push(order);
            }
        }
        assert_eq!(orders.first().unwrap()[0][0].as_ref(), "s1", "seed {seed}");
        assert_eq!(orders.last().unwrap()[0][0].as_ref(), "s3", "seed {seed}: {orders:?}");
        let leaders: Vec<&str> = orders.iter().map(|o| o[0][0].as_ref()).collect();
        let swings = leaders.windows(2).filter(|w| w[0] != w[1]).count();
        assert!(swings <= 2, "seed {seed}: {leaders:?}");
        assert!(!leaders[..leaders.len() - 1].contains(&"s3") || swings == 1, "seed {seed}: {leaders:?}");
    }
}
