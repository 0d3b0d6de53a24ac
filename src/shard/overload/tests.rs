//! The governor in a simulated element: one queue, work that takes time, callers that repeat what is not answered.

#![allow(clippy::unwrap_used)]

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::time::{Duration, Instant};

use super::{Class, Governor, Silence, Verdict};
use crate::config::Overload;
use crate::flow::PeerId;
use crate::peering::Party;
use crate::transaction::{KeySecrets, ServerKey, ServerKeyParts};

/// Microseconds.
type Micros = u64;
const SECOND: Micros = 1_000_000;
/// Calls per second that the simulated element can carry at most.
const CAPACITY: f64 = 1000.0;
/// Messages that the socket holds.
const ROOM: usize = 5000;
const BATCH: usize = 32;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    Invite { again: u32 },
    Ringing,
    Ok,
    Ack,
    Bye,
    ByeOk,
    ShedAck,
}

/// What handling takes: 1000 for a whole call, 140 for a refused one.
fn cost(kind: Kind) -> Micros {
    match kind {
        Kind::Invite { .. } => 300,
        Kind::Ringing | Kind::Bye | Kind::ByeOk => 140,
        Kind::Ok => 160,
        Kind::Ack => 120,
        Kind::ShedAck => 30,
    }
}
const REFUSING: Micros = 110;

#[derive(Clone, Copy, Debug)]
struct Call {
    from: Party,
    began: Micros,
    answered: bool,
    refused: bool,
    admitted: bool,
}

/// Calls per second from a sender between two times.
struct Load {
    from: Party,
    rate: f64,
    between: (Micros, Micros),
}

/// What came of the calls that began in a span of time.
#[derive(Debug, Default)]
struct Outcome {
    offered: usize,
    done: usize,
    refused: usize,
    setup: Vec<Micros>,
}

impl Outcome {
    fn p99(&self) -> Micros {
        let mut all = self.setup.clone();
        all.sort_unstable();
        all.get(all.len() * 99 / 100).copied().unwrap_or(0)
    }
}

struct World {
    start: Instant,
    governor: Governor,
    /// The element runs for the first so many microseconds of each period only.
    quota: Option<(Micros, Micros)>,
    /// It stands still in this span.
    stall: Option<(Micros, Micros)>,
    now: Micros,
    coming: BinaryHeap<Reverse<(Micros, usize, Kind)>>,
    queue: VecDeque<(Micros, usize, Kind)>,
    calls: Vec<Call>,
    setups: Vec<Option<Micros>>,
    lost: usize,
}

impl World {
    fn new() -> Self {
        Self {
            start: Instant::now(),
            governor: Governor::new(Overload::default()),
            quota: None,
            stall: None,
            now: 0,
            coming: BinaryHeap::new(),
            queue: VecDeque::new(),
            calls: Vec::new(),
            setups: Vec::new(),
            lost: 0,
        }
    }

    /// Callers come at times that are not quite even.
    fn offer(&mut self, load: &Load) {
        let (from, to) = load.between;
        let gap = SECOND as f64 / load.rate;
        let (mut at, mut bits) = (from as f64, 0x2545_f491_4f6c_dd1d_u64);
        while at < to as f64 {
            bits ^= bits << 13;
            bits ^= bits >> 7;
            bits ^= bits << 17;
            let call = self.calls.len();
            let began = at as Micros;
            self.calls.push(Call {
                from: load.from,
                began,
                answered: false,
                refused: false,
                admitted: false,
            });
            self.setups.push(None);
            self.coming.push(Reverse((began, call, Kind::Invite { again: 0 })));
            at += gap * 2.0 * (bits % 1000) as f64 / 1000.0;
        }
    }

    /// The time after working for `work`.
    fn work(&mut self, work: Micros) {
        let mut left = work;
        while left > 0 {
            if let Some((from, to)) = self.stall
                && (from..to).contains(&self.now)
            {
                self.now = to;
            }
            match self.quota {
                None => {
                    self.now += left;
                    left = 0;
                }
                Some((run, period)) => {
                    let into = self.now % period;
                    let slice = run.saturating_sub(into).min(left);
                    self.now += slice;
                    left -= slice;
                    if left > 0 {
                        self.now += period - self.now % period;
                    }
                }
            }
        }
    }

    fn arrive(&mut self) {
        while let Some(Reverse((at, call, kind))) = self.coming.peek().copied() {
            if at > self.now {
                break;
            }
            self.coming.pop();
            if let Kind::Invite { again } = kind {
                let c = self.calls[call];
                if c.answered || c.refused || again > 6 {
                    continue;
                }
                let wait = 500_000 << again;
                self.coming.push(Reverse((at + wait, call, Kind::Invite { again: again + 1 })));
            }
            if self.queue.len() < ROOM {
                self.queue.push_back((at, call, kind));
            } else {
                self.lost += 1;
            }
        }
    }

    fn run(&mut self, until: Micros) {
        while self.now < until {
            self.arrive();
            if self.queue.is_empty() {
                match self.coming.peek() {
                    Some(Reverse((at, ..))) => self.now = *at,
                    None => return,
                }
                continue;
            }
            if let Some((from, to)) = self.stall
                && (from..to).contains(&self.now)
            {
                self.now = to;
                continue;
            }
            let n = self.queue.len().min(BATCH);
            let waited = Duration::from_micros(self.now - self.queue[0].0);
            let now = self.start + Duration::from_micros(self.now);
            self.governor.observe(now, waited, n as u32);
            for _ in 0..n {
                let (_, call, kind) = self.queue.pop_front().unwrap();
                self.handle(call, kind);
            }
        }
    }

    fn handle(&mut self, call: usize, kind: Kind) {
        let (party, admitted) = (self.calls[call].from, self.calls[call].admitted);
        let mut spent = cost(kind);
        let mut follow: Option<(Micros, Kind)> = None;
        match kind {
            Kind::Invite { .. } if admitted => spent = 100,
            Kind::Invite { .. } => match self.governor.offer(party, Class::Call) {
                Verdict::Admit => {
                    self.calls[call].admitted = true;
                    self.calls[call].answered = true;
                    follow = Some((1_000, Kind::Ringing));
                    self.coming.push(Reverse((self.now + 21_000, call, Kind::Ok)));
                }
                Verdict::Refuse => {
                    spent = REFUSING;
                    self.calls[call].refused = true;
                    follow = Some((1_000, Kind::ShedAck));
                }
            },
            Kind::Ok => {
                follow = Some((1_000, Kind::Ack));
                self.coming.push(Reverse((self.now + 101_000, call, Kind::Bye)));
            }
            Kind::Bye => follow = Some((1_000, Kind::ByeOk)),
            Kind::Ringing | Kind::Ack | Kind::ByeOk | Kind::ShedAck => {}
        }
        self.work(spent);
        if kind == Kind::Ok {
            self.setups[call] = Some(self.now - self.calls[call].began);
        }
        if let Some((after, kind)) = follow {
            self.coming.push(Reverse((self.now + after, call, kind)));
        }
    }

    /// Of the calls that began in a span of time, of one sender or of all.
    fn outcome(&self, (from, to): (Micros, Micros), party: Option<Party>) -> Outcome {
        let mut sum = Outcome::default();
        for (call, setup) in self.calls.iter().zip(&self.setups) {
            if !(from..to).contains(&call.began) || party.is_some_and(|p| p != call.from) {
                continue;
            }
            sum.offered += 1;
            sum.refused += usize::from(call.refused);
            if let Some(setup) = setup {
                sum.done += 1;
                sum.setup.push(*setup);
            }
        }
        sum
    }
}

/// The core alone at some multiple of the capacity for 12 s, then at 0.8 of it for 8 s.
fn at(factor: f64, quota: Option<(Micros, Micros)>) -> World {
    let mut world = World::new();
    world.quota = quota;
    let share = quota.map_or(1.0, |(run, period)| run as f64 / period as f64);
    let rate = CAPACITY * share * factor;
    world.offer(&Load { from: Party::Core, rate, between: (0, 12 * SECOND) });
    world.offer(&Load {
        from: Party::Core,
        rate: CAPACITY * share * 0.8,
        between: (12 * SECOND, 20 * SECOND),
    });
    world.run(22 * SECOND);
    world
}

fn per_second(outcome: &Outcome, span: (Micros, Micros)) -> f64 {
    outcome.done as f64 * SECOND as f64 / (span.1 - span.0) as f64
}

#[test]
fn nothing_is_shed_below_the_capacity() {
    for factor in [0.5, 0.8, 0.9] {
        let world = at(factor, None);
        let all = world.outcome((0, 20 * SECOND), None);
        assert_eq!((all.refused, all.done), (0, all.offered), "at {factor}");
    }
}

#[test]
fn goodput_stays_near_what_arithmetic_allows_at_every_load() {
    for quota in [None, Some((1_000, 5_000))] {
        let share = if quota.is_some() { 0.2 } else { 1.0 };
        for (factor, least) in [(1.0, 0.93), (1.3, 0.87), (2.0, 0.78), (3.0, 0.6), (5.0, 0.27)] {
            let world = at(factor, quota);
            // What is left of the capacity when everything else is refused.
            for second in 1..6 {
                let span = (2 * second * SECOND, 2 * (second + 1) * SECOND);
                let some = world.outcome(span, None);
                let goodput = per_second(&some, span) / (CAPACITY * share);
                assert!(goodput >= least, "{goodput:.3} of the capacity at {factor} in {span:?}, {quota:?}");
                assert!(some.p99() < 400_000, "p99 {} us at {factor} in {span:?}, {quota:?}", some.p99());
            }
        }
    }
}

#[test]
fn from_the_first_moment_of_overload_set_up_is_quick() {
    let world = at(2.0, None);
    let start = world.outcome((0, 2 * SECOND), None);
    assert!(start.p99() < 500_000, "p99 {} us", start.p99());
    assert!(start.done > 1_400, "{} of 2000 that would go", start.done);
}

#[test]
fn full_service_is_back_within_two_seconds_after_the_overload() {
    for factor in [1.3, 2.0, 5.0] {
        let world = at(factor, None);
        let after = world.outcome((14 * SECOND, 20 * SECOND), None);
        assert_eq!((after.refused, after.done), (0, after.offered), "after {factor}");
        assert!(after.p99() < 60_000, "p99 {} us after {factor}", after.p99());
        assert!(!world.governor.is_shedding());
    }
}

#[test]
fn more_than_can_even_be_refused_does_not_paralyse() {
    let world = at(10.0, None);
    assert!(world.lost > 0, "it was too much indeed");
    // What was lost is repeated for half a minute, and competes with what is new.
    let after = world.outcome((16 * SECOND, 20 * SECOND), None);
    assert!(after.done * 2 > after.offered, "{} of {}", after.done, after.offered);
}

#[test]
fn a_burst_of_fifty_milliseconds_is_no_overload() {
    for (base, factor) in [(0.5, 2.0), (0.8, 1.2)] {
        let mut world = World::new();
        world.offer(&Load { from: Party::Core, rate: CAPACITY * base, between: (0, 6 * SECOND) });
        for at in [SECOND, 3 * SECOND, 5 * SECOND] {
            let between = (at, at + 50_000);
            world.offer(&Load { from: Party::Core, rate: CAPACITY * factor, between });
        }
        world.run(8 * SECOND);
        let all = world.outcome((0, 8 * SECOND), None);
        assert_eq!((all.refused, all.done), (0, all.offered), "{base} and {factor}");
    }
}

#[test]
fn standing_still_for_a_moment_is_no_overload() {
    let mut world = World::new();
    world.stall = Some((2 * SECOND, 2 * SECOND + 150_000));
    world.offer(&Load { from: Party::Core, rate: CAPACITY * 0.6, between: (0, 5 * SECOND) });
    world.run(7 * SECOND);
    let all = world.outcome((0, 7 * SECOND), None);
    assert_eq!((all.refused, all.done), (0, all.offered));
}

#[test]
fn whoever_stays_below_its_share_is_served_in_full() {
    let (small, large, other) = (Party::Peer(PeerId(1)), Party::Peer(PeerId(2)), Party::Peer(PeerId(3)));
    let mut world = World::new();
    let between = (0, 12 * SECOND);
    for (from, rate) in [(small, 0.05), (large, 2.0), (other, 0.1), (Party::Core, 0.2)] {
        world.offer(&Load { from, rate: CAPACITY * rate, between });
    }
    world.run(14 * SECOND);
    let span = (2 * SECOND, 12 * SECOND);
    for party in [small, other, Party::Core] {
        let of = world.outcome(span, Some(party));
        assert!(of.done as f64 >= of.offered as f64 * 0.98, "{party:?}: {} of {}", of.done, of.offered);
    }
    let of = world.outcome(span, Some(large));
    assert!(of.refused > of.done, "the one that floods bears it: {} of {}", of.done, of.offered);
    assert!(of.done > 0, "and is not shut out");
}

#[test]
fn equal_floods_get_equal_shares_and_the_core_as_much_as_all_peers() {
    let mut world = World::new();
    let between = (0, 12 * SECOND);
    let peers = [0, 1].map(|p| Party::Peer(PeerId(p)));
    for from in [peers[0], peers[1], Party::Core] {
        world.offer(&Load { from, rate: CAPACITY, between });
    }
    world.run(14 * SECOND);
    let done = |p| world.outcome((2 * SECOND, 12 * SECOND), Some(p)).done as f64;
    let (a, b, core) = (done(peers[0]), done(peers[1]), done(Party::Core));
    assert!((a / b - 1.0).abs() < 0.1, "{a} and {b}");
    assert!((core / (a + b) - 1.0).abs() < 0.1, "{core} and {}", a + b);
}

#[test]
fn of_many_who_call_now_and_then_the_right_share_is_admitted() {
    let mut world = World::new();
    let between = (0, 12 * SECOND);
    for peer in 0..2000 {
        // All begin at another time.
        let begin = u64::from(peer) * 1_000;
        let load = Load { from: Party::Peer(PeerId(peer)), rate: 1.0, between: (begin, between.1) };
        world.offer(&load);
    }
    world.run(14 * SECOND);
    let all = world.outcome((4 * SECOND, 12 * SECOND), None);
    let goodput = all.done as f64 / 8.0 / CAPACITY;
    assert!(goodput > 0.7, "{goodput}");
    assert!(all.p99() < 500_000, "p99 {} us", all.p99());
}

#[test]
fn what_is_exempt_counts_against_its_sender() {
    let mut governor = overloaded(0.5);
    let core = Party::Core;
    for _ in 0..10 {
        governor.exempt(core);
    }
    let admitted = (0..10).filter(|_| governor.offer(core, Class::Call) == Verdict::Admit).count();
    assert_eq!(admitted, 0, "its credit is used up");
}

#[test]
fn other_requests_are_spared_longer_than_calls_and_probes_longest() {
    let mut governor = overloaded(0.5);
    let core = Party::Core;
    let admitted = |governor: &mut Governor, class| {
        (0..100).filter(|_| governor.offer(core, class) == Verdict::Admit).count()
    };
    let calls = admitted(&mut governor, Class::Call);
    assert!((40..=60).contains(&calls), "{calls} calls of 100");
    assert!(admitted(&mut governor, Class::Other) >= 99);
    assert_eq!(admitted(&mut governor, Class::Probe), 100);
    governor.pressure = 1.0;
    governor.deal(1.0);
    assert_eq!(admitted(&mut governor, Class::Probe) + admitted(&mut governor, Class::Other), 0);
    assert_eq!(governor.offer(core, Class::Call), Verdict::Refuse);
}

#[test]
fn switched_off_nothing_is_shed() {
    let mut governor = overloaded(0.5);
    governor.set_rules(Overload { enabled: false, ..Overload::default() });
    assert!(!governor.is_shedding());
    let now = Instant::now();
    for ms in 0..1000 {
        governor.observe(now + Duration::from_millis(ms), Duration::from_secs(1), 1);
    }
    assert!(!governor.is_shedding());
    assert_eq!(governor.offer(Party::Core, Class::Call), Verdict::Admit);
}

#[test]
fn after_a_second_without_a_message_the_past_does_not_count() {
    let mut world = at(2.0, None);
    world.governor = overloaded(0.5);
    let later = world.start + Duration::from_secs(3600);
    assert!(!world.governor.state(later).shedding);
    assert!(world.governor.state(later).admit >= 1.0);
    for ms in [0, 30] {
        world.governor.observe(later + Duration::from_millis(ms), Duration::ZERO, 1);
    }
    assert!(!world.governor.is_shedding());
}

/// One that has been shedding.
fn overloaded(pressure: f64) -> Governor {
    let mut governor = Governor::new(Overload::default());
    let now = Instant::now();
    for ms in 0..300 {
        governor.observe(now + Duration::from_millis(ms), Duration::from_millis(20 + ms / 4), 1);
    }
    assert!(governor.is_shedding());
    governor.pressure = pressure;
    for _ in 0..100 {
        governor.offer(Party::Core, Class::Call);
    }
    governor.deal(1.0);
    governor
}

fn key(n: u32) -> ServerKey {
    let branch = format!("z9hG4bK{n}");
    let parts = ServerKeyParts {
        branch: Some(branch.as_bytes()),
        sent_by_host: b"a",
        sent_by_port: 0,
        method: b"INVITE",
        request_uri: b"",
        to_tag: None,
        from_tag: None,
        call_id: b"",
        cseq: 1,
        top_via: b"",
    };
    ServerKey::of(&KeySecrets::new([1, 2, 3, 4, 5, 6, 7, 8]), &parts)
}

#[test]
fn what_was_refused_is_remembered_for_a_while_and_then_not() {
    let (keep, start) = (Duration::from_secs(4), Instant::now());
    let mut silence = Silence::default();
    assert!(!silence.contains(start, key(1), keep), "nothing yet");
    for n in 0..5000 {
        silence.insert(start, key(n));
    }
    let known = |silence: &Silence, at| (0..10_000).filter(|n| silence.contains(at, key(*n), keep)).count();
    let soon = start + Duration::from_secs(3);
    assert!((4_500..=5_000).contains(&known(&silence, soon)), "{}", known(&silence, soon));
    assert_eq!(known(&silence, start + Duration::from_secs(5)), 0);
    assert!(!silence.sweep(soon, keep));
    assert!(silence.sweep(start + Duration::from_secs(10), keep), "the memory is given back");
    assert!(silence.is_empty());
}
