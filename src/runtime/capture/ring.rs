//! The newest packets of a capture, bounded in octets and in number, and those who read along.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use bytes::Bytes;
use tokio::sync::watch;

use super::pcapng;
use super::{End, Wanted};

/// Most packets kept, whatever their size.
const MAX_PACKETS: usize = 200_000;
/// Octets handed to a reader at once.
const CHUNK: usize = 128 * 1024;
/// A reader of a capture without news gets a block that says so; browsers and servers think a silent connection dead.
const SIGN_OF_LIFE: Duration = Duration::from_secs(5);

/// A capture, running or over.
#[derive(Debug)]
pub struct Capture {
    /// Its number.
    pub id: u64,
    /// What was asked for.
    pub wanted: Wanted,
    /// Since when.
    pub started: SystemTime,
    /// It ends by itself then.
    pub until: Instant,
    ring: Mutex<Ring>,
    /// Rises with each batch and at the end.
    news: watch::Sender<u64>,
    followers: AtomicUsize,
}

/// Its packets.
#[derive(Debug, Default)]
struct Ring {
    blocks: VecDeque<Bytes>,
    /// The number of the oldest one.
    first: u64,
    /// Of all blocks kept.
    octets: usize,
    state: State,
}

/// How a capture stands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct State {
    /// Messages that were taken.
    pub packets: u64,
    /// Octets kept now.
    pub kept_octets: usize,
    /// Messages kept now.
    pub kept_packets: usize,
    /// Messages that had to make room for newer ones.
    pub overwritten: u64,
    /// Calls of which messages were taken.
    pub calls: u64,
    /// Why it is over, and since when; `None`: it runs.
    pub ended: Option<(End, Instant)>,
}

impl Capture {
    pub(super) fn new(id: u64, wanted: Wanted, now: Instant) -> Self {
        let until = now.checked_add(wanted.time).unwrap_or(now);
        Self {
            id,
            wanted,
            started: SystemTime::now(),
            until,
            ring: Mutex::default(),
            news: watch::Sender::new(0),
            followers: AtomicUsize::new(0),
        }
    }

    fn ring(&self) -> MutexGuard<'_, Ring> {
        self.ring.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How it stands.
    pub fn state(&self) -> State {
        let ring = self.ring();
        State { kept_octets: ring.octets, kept_packets: ring.blocks.len(), ..ring.state }
    }

    /// It takes messages.
    pub fn is_running(&self) -> bool {
        self.ring().state.ended.is_none()
    }

    /// Takes one more, and gives how many had to go for it.
    pub(super) fn push(&self, blocks: Bytes, now: Instant) -> u64 {
        let mut ring = self.ring();
        if ring.state.ended.is_some() || blocks.is_empty() {
            return 0;
        }
        ring.octets += blocks.len();
        ring.blocks.push_back(blocks);
        ring.state.packets += 1;
        let mut gone = 0;
        // The newest stays, however large.
        while (ring.octets > self.wanted.octets || ring.blocks.len() > MAX_PACKETS) && ring.blocks.len() > 1 {
            let oldest = ring.blocks.pop_front().map_or(0, |b| b.len());
            ring.octets -= oldest;
            ring.first += 1;
            gone += 1;
        }
        ring.state.overwritten += gone;
        if self.wanted.packets.is_some_and(|most| ring.state.packets >= most) {
            ring.state.ended = Some((End::Packets, now));
        }
        gone
    }

    pub(super) fn count_call(&self) {
        self.ring().state.calls += 1;
    }

    /// Tells those who read along.
    pub(super) fn tell(&self) {
        self.news.send_modify(|n| *n = n.wrapping_add(1));
    }

    /// It is over. What it has is kept.
    pub(super) fn end(&self, why: End, now: Instant) {
        {
            let mut ring = self.ring();
            if ring.state.ended.is_none() {
                ring.state.ended = Some((why, now));
            }
        }
        self.tell();
    }

    /// What it has; with `follow` also what comes, until it ends.
    pub fn read(self: &Arc<Self>, follow: bool) -> Reader {
        self.followers.fetch_add(usize::from(follow), Ordering::Relaxed);
        let end = {
            let ring = self.ring();
            ring.first + ring.blocks.len() as u64
        };
        Reader {
            capture: Arc::clone(self),
            news: self.news.subscribe(),
            next: 0,
            upto: (!follow).then_some(end),
            begun: false,
            over: false,
            missed: 0,
        }
    }
}

/// Reads a capture as a pcapng file. One that is too slow misses packets: nothing waits for it.
#[derive(Debug)]
pub struct Reader {
    capture: Arc<Capture>,
    news: watch::Receiver<u64>,
    /// The number of the block that it wants next.
    next: u64,
    /// Where it stops; `None`: at the end of the capture.
    upto: Option<u64>,
    begun: bool,
    over: bool,
    missed: u64,
}

impl Reader {
    /// The next part of the file, whole blocks; `None`: that was all.
    pub async fn next(&mut self) -> Option<Bytes> {
        if !std::mem::replace(&mut self.begun, true) {
            return Some(pcapng::header());
        }
        loop {
            if self.over {
                return None;
            }
            // Before the look: what comes after it is news.
            self.news.borrow_and_update();
            let (part, ended) = self.part();
            if !part.is_empty() {
                return Some(part);
            }
            if ended {
                self.over = true;
                return Some(self.statistics());
            }
            match tokio::time::timeout(SIGN_OF_LIFE, self.news.changed()).await {
                Ok(_) => {}
                Err(_) => return Some(self.statistics()),
            }
        }
    }

    /// What is there for it, and whether no more will come.
    fn part(&mut self) -> (Bytes, bool) {
        let ring = self.capture.ring();
        self.missed += ring.first.saturating_sub(self.next);
        self.next = self.next.max(ring.first);
        let skip = usize::try_from(self.next - ring.first).unwrap_or(usize::MAX);
        let mut out = Vec::new();
        for block in ring.blocks.iter().skip(skip) {
            if self.upto.is_some_and(|upto| self.next >= upto)
                || out.len() + block.len() > CHUNK && !out.is_empty()
            {
                break;
            }
            out.extend_from_slice(block);
            self.next += 1;
        }
        let all = self.upto.is_some_and(|upto| self.next >= upto) || ring.state.ended.is_some();
        (out.into(), all)
    }

    fn statistics(&self) -> Bytes {
        pcapng::statistics(SystemTime::now(), self.next, self.missed)
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        if self.upto.is_none()
            && self.capture.followers.fetch_sub(1, Ordering::Relaxed) == 1
            && self.capture.wanted.attached
        {
            self.capture.end(End::Unattended, Instant::now());
        }
    }
}
