//! A message whose call belongs to another worker: to lock that worker's shard, to hand the message over to it, or to
//! hand it over only if the shard is locked at the moment?
//!
//! ```text
//! cargo bench --bench handover
//! ```
//!
//! Two threads, a shard each; half of the INVITEs that a thread receives belong to the other's shard. Once as fast as they can, and
//! once with pauses, as between datagrams: then whoever is handed something has to be woken. All ways in turn, in one
//! run; what is counted is the time that both threads have had on a core, reading and forwarding the INVITE included.
#![allow(clippy::unwrap_used, clippy::indexing_slicing)]

mod rig;

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Barrier, Mutex};
use std::thread::Thread;
use std::time::{Duration, Instant};

use rig::{Rig, invite};

/// The product's own.
#[global_allocator]
static ALLOCATOR: sbe::runtime::Allocator = sbe::runtime::Allocator;

/// INVITEs that each thread receives in a round.
const MESSAGES: u64 = 8_000;
const ROUNDS: usize = 5;
/// Messages that may wait to be taken over.
const QUEUE: usize = 1024;

/// What is done with a message for the other's shard.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    Lock,
    HandOver,
    Either,
}

/// A message, and when it was received.
type Message = (Instant, Vec<u8>);

/// What the other thread needs to hand something over.
struct Door {
    inbox: SyncSender<Message>,
    asleep: AtomicBool,
    thread: Mutex<Option<Thread>>,
}

impl Door {
    fn hand_over(&self, message: Message) {
        self.inbox.send(message).unwrap();
        if self.asleep.swap(false, Ordering::SeqCst)
            && let Some(thread) = &*self.thread.lock().unwrap()
        {
            thread.unpark();
        }
    }
}

/// Nanoseconds that this thread has had on a core.
fn time_on_core() -> u64 {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap();
    text.split(' ').next().unwrap().parse().unwrap()
}

/// Of one round: time on a core for a message, and how long the median one took from its receipt, microseconds.
#[derive(Clone, Copy)]
struct Cost {
    core: f64,
    delay: f64,
}

struct Side {
    me: usize,
    shards: Arc<[Mutex<Rig>; 2]>,
    doors: Arc<[Door; 2]>,
    inbox: Receiver<Message>,
    delays: Vec<u64>,
}

impl Side {
    fn work(&mut self, owner: usize, (received, bytes): Message) {
        assert_eq!(self.shards[owner].lock().unwrap().turn(false, &bytes), 2, "100 and INVITE");
        self.delays.push(u64::try_from(received.elapsed().as_nanos()).unwrap());
    }

    fn take_over(&mut self) {
        while let Ok(message) = self.inbox.try_recv() {
            self.work(self.me, message);
        }
    }

    /// Waits until then; takes over meanwhile.
    fn wait_until(&mut self, due: Instant) {
        loop {
            self.doors[self.me].asleep.store(true, Ordering::SeqCst);
            self.take_over();
            let left = due.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            std::thread::park_timeout(left);
        }
        self.doors[self.me].asleep.store(false, Ordering::SeqCst);
    }

    /// Receives all messages; half of them are the other's.
    fn receive(&mut self, gap: Duration, way: Way, ended: &AtomicUsize) {
        *self.doors[self.me].thread.lock().unwrap() = Some(std::thread::current());
        let began = Instant::now();
        for n in 0..MESSAGES {
            if !gap.is_zero() {
                self.wait_until(began + gap * u32::try_from(n).unwrap());
            }
            let message = (Instant::now(), invite(n * 2 + self.me as u64));
            // By Call-ID, as if at random.
            let owner = (n.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 63) as usize;
            let free = || self.shards[owner].try_lock().is_ok();
            if owner == self.me || way == Way::Lock || (way == Way::Either && free()) {
                self.work(owner, message);
            } else {
                self.doors[owner].hand_over(message);
            }
            self.take_over();
        }
        ended.fetch_add(1, Ordering::SeqCst);
        while ended.load(Ordering::SeqCst) < 2 {
            self.take_over();
            std::thread::yield_now();
        }
        self.take_over();
    }
}

fn round(gap: Duration, way: Way) -> Cost {
    let shards = Arc::new([Mutex::new(Rig::new()), Mutex::new(Rig::new())]);
    let (inboxes, outboxes): (Vec<_>, Vec<_>) = (0..2).map(|_| sync_channel(QUEUE)).unzip();
    let door = |inbox| Door { inbox, asleep: AtomicBool::new(false), thread: Mutex::default() };
    let doors: Vec<Door> = inboxes.into_iter().map(door).collect();
    let doors: Arc<[Door; 2]> = Arc::new(doors.try_into().unwrap_or_else(|_| unreachable!("two were made")));
    let (gate, ended) = (Arc::new(Barrier::new(2)), Arc::new(AtomicUsize::new(0)));
    let threads: Vec<_> = outboxes
        .into_iter()
        .enumerate()
        .map(|(me, inbox)| {
            let (shards, doors) = (Arc::clone(&shards), Arc::clone(&doors));
            let (gate, ended) = (Arc::clone(&gate), Arc::clone(&ended));
            std::thread::spawn(move || {
                let mut side = Side { me, shards, doors, inbox, delays: Vec::new() };
                gate.wait();
                let before = time_on_core();
                side.receive(gap, way, &ended);
                (time_on_core() - before, side.delays)
            })
        })
        .collect();
    let (mut core, mut delays) = (0, Vec::new());
    for thread in threads {
        let (time, some) = thread.join().unwrap();
        core += time;
        delays.extend(some);
    }
    assert_eq!(delays.len() as u64, 2 * MESSAGES);
    delays.sort_unstable();
    Cost { core: core as f64 / delays.len() as f64 / 1000.0, delay: delays[delays.len() / 2] as f64 / 1000.0 }
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn main() {
    for (name, gap) in [("without a pause", 0), ("one in 100 us", 100), ("one in 500 us", 500)] {
        let gap = Duration::from_micros(gap);
        let ways = [Way::Lock, Way::HandOver, Way::Either];
        let rounds: Vec<[Cost; 3]> = (0..ROUNDS).map(|_| ways.map(|way| round(gap, way))).collect();
        let of = |way: usize| {
            let core = median(rounds.iter().map(|r| r[way].core));
            let delay = median(rounds.iter().map(|r| r[way].delay));
            format!("{core:.1} us on a core, median delay {delay:.1} us")
        };
        let ratio = |way: usize| median(rounds.iter().map(|r| r[way].core / r[0].core));
        println!("{name}:\n  lock       {}", of(0));
        println!("  hand over  {}; x {:.2}", of(1), ratio(1));
        println!("  either     {}; x {:.2}", of(2), ratio(2));
    }
}
