//! Every SIP message, in and out, to a capture server such as Homer: HEP version 3 by UDP.
//!
//! Workers hand copies over by the tap ([`super::tap`]) and never wait; a thread of its own sends them. What finds no room
//! is dropped and counted.

mod packet;
#[cfg(test)]
mod tests;

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{JoinHandle, park_timeout};
use std::time::{Duration, Instant, SystemTime};

use crate::config::Hep;
use crate::flow::Transport;

use super::tap::{Copy, Drain, Tap};
use packet::Packet;

/// The tap's name for this queue.
const NAME: &str = "hep";
/// How often the sender looks into the queue.
const LOOK: Duration = Duration::from_millis(20);
/// Octets that may wait.
const MAX_WAITING: usize = 32 << 20;

/// What has become of the copies.
#[derive(Debug, Default)]
pub struct Counts {
    sent: AtomicU64,
    /// Shared with the queue.
    dropped: Arc<AtomicU64>,
    failed: AtomicU64,
    too_large: AtomicU64,
}

impl Counts {
    /// Messages by what became of their copies.
    pub fn outcomes(&self) -> [(&'static str, u64); 4] {
        let read = |n: &AtomicU64| n.load(Ordering::Relaxed);
        [
            ("sent", read(&self.sent)),
            ("dropped", read(&self.dropped)),
            ("failed", read(&self.failed)),
            ("too_large", read(&self.too_large)),
        ]
    }
}

/// The sender. Dropping it sends what is queued.
pub struct Capture {
    tap: Arc<Tap>,
    counts: Arc<Counts>,
    stop: Arc<AtomicBool>,
    sender: Option<JoinHandle<()>>,
}

impl Capture {
    /// Opens the socket and starts the sender.
    ///
    /// # Errors
    /// There is no socket, no route, or no thread.
    pub(super) fn start(settings: &Hep, tap: &Arc<Tap>) -> io::Result<Self> {
        let any: SocketAddr = match settings.server {
            SocketAddr::V4(_) => (Ipv4Addr::UNSPECIFIED, 0).into(),
            SocketAddr::V6(_) => (Ipv6Addr::UNSPECIFIED, 0).into(),
        };
        let socket = UdpSocket::bind(any)?;
        socket.connect(settings.server)?;
        let counts: Arc<Counts> = Arc::default();
        let stop: Arc<AtomicBool> = Arc::default();
        let mut sender = Sender {
            socket,
            copies: tap.open(NAME, settings.queue, MAX_WAITING, &counts.dropped),
            settings: settings.clone(),
            counts: Arc::clone(&counts),
            room: Vec::new(),
        };
        let told = Arc::clone(&stop);
        let thread = std::thread::Builder::new().name("sbe-hep".to_owned()).spawn(move || sender.run(&told));
        let thread = thread.inspect_err(|_| tap.close(NAME))?;
        Ok(Self { tap: Arc::clone(tap), counts, stop, sender: Some(thread) })
    }

    /// What has become of the copies so far.
    pub fn counts(&self) -> &Counts {
        &self.counts
    }
}

impl Drop for Capture {
    fn drop(&mut self) {
        self.tap.close(NAME);
        self.stop.store(true, Ordering::Release);
        let Some(sender) = self.sender.take() else { return };
        sender.thread().unpark();
        if sender.join().is_err() {
            tracing::error!("the sender of captured messages had panicked");
        }
    }
}

struct Sender {
    socket: UdpSocket,
    copies: Drain,
    settings: Hep,
    counts: Arc<Counts>,
    room: Vec<u8>,
}

impl Sender {
    fn run(&mut self, stop: &AtomicBool) {
        loop {
            // Before the look into the queue: what was offered before the order to stop is sent.
            let last = stop.load(Ordering::Acquire);
            let clock = (Instant::now(), SystemTime::now());
            let mut taken = 0;
            while taken < self.settings.queue
                && let Some(copy) = self.copies.take()
            {
                taken += 1;
                let outcome = self.send(&copy, clock);
                outcome.fetch_add(1, Ordering::Relaxed);
            }
            if last {
                return;
            }
            if taken < self.settings.queue {
                park_timeout(LOOK);
            }
        }
    }

    /// Sends one; gives the counter of what came of it.
    fn send(&mut self, copy: &Copy, (now, wall): (Instant, SystemTime)) -> &AtomicU64 {
        let at = match copy.at.checked_duration_since(now) {
            Some(after) => wall + after,
            None => wall - now.saturating_duration_since(copy.at),
        };
        let packet = Packet {
            source: copy.source,
            target: copy.target,
            stream: copy.transport != Transport::Udp,
            at,
            agent: self.settings.id,
            password: self.settings.password.as_deref(),
            payload: &copy.bytes,
        };
        if !packet.write(&mut self.room) {
            return &self.counts.too_large;
        }
        match self.socket.send(&self.room) {
            Ok(_) => &self.counts.sent,
            Err(_) => &self.counts.failed,
        }
    }
}
