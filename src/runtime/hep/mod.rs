//! Every SIP message, in and out, to a capture server such as Homer: HEP version 3 by UDP.
//!
//! Workers hand copies over through a queue that is bounded in messages and octets, and never wait; a thread of its own
//! sends them. What finds no room is dropped and counted.

mod packet;
#[cfg(test)]
mod tests;

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::{JoinHandle, park_timeout};
use std::time::{Duration, Instant, SystemTime};

use bytes::Bytes;

use crate::config::{Hep, Listen};
use crate::flow::{Origin, Transport};
use crate::shard::io::Send;

use packet::Packet;

/// How often the sender looks into the queue.
const LOOK: Duration = Duration::from_millis(20);
/// Octets that may wait.
const MAX_WAITING: usize = 32 << 20;

/// What has become of the copies.
#[derive(Debug, Default)]
pub struct Counts {
    sent: AtomicU64,
    dropped: AtomicU64,
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

/// A copy on its way to the sender.
#[derive(Debug)]
struct Copy {
    at: Instant,
    source: SocketAddr,
    target: SocketAddr,
    transport: Transport,
    bytes: Bytes,
}

/// Where workers hand copies over.
#[derive(Clone, Debug)]
pub(super) struct Tap {
    queue: SyncSender<Copy>,
    /// Octets that wait.
    waiting: Arc<AtomicUsize>,
    counts: Arc<Counts>,
}

impl Tap {
    /// A message has come.
    pub(super) fn received(&self, at: Instant, origin: &Origin, bytes: &[u8]) {
        if !bytes.first().is_some_and(u8::is_ascii_alphabetic) {
            // A keep-alive.
            return;
        }
        let (source, target) = (origin.remote, origin.local);
        self.offer(bytes.len(), || Copy {
            at,
            source,
            target,
            transport: origin.transport,
            bytes: Bytes::copy_from_slice(bytes),
        });
    }

    /// A message is about to be sent. Its source is the listener's address: which port a connection has is not known.
    pub(super) fn sending(&self, at: Instant, send: &Send, listeners: &[Listen]) {
        let target = send.hop.remote;
        let any = if target.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
        let listener = listeners.get(usize::from(send.hop.listener.0));
        let source = listener.map_or(SocketAddr::new(any, 0), |l| l.bind);
        let transport = send.hop.transport;
        self.offer(send.bytes.len(), || Copy { at, source, target, transport, bytes: send.bytes.clone() });
    }

    fn offer(&self, octets: usize, copy: impl FnOnce() -> Copy) {
        let before = self.waiting.fetch_add(octets, Ordering::Relaxed);
        if before.saturating_add(octets) > MAX_WAITING || self.queue.try_send(copy()).is_err() {
            self.waiting.fetch_sub(octets, Ordering::Relaxed);
            self.counts.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// The sender. Dropping it sends what is queued.
pub struct Capture {
    tap: Tap,
    stop: Arc<AtomicBool>,
    sender: Option<JoinHandle<()>>,
}

impl Capture {
    /// Opens the socket and starts the sender.
    ///
    /// # Errors
    /// There is no socket, no route, or no thread.
    pub fn start(settings: &Hep) -> io::Result<Self> {
        let any: SocketAddr = match settings.server {
            SocketAddr::V4(_) => (Ipv4Addr::UNSPECIFIED, 0).into(),
            SocketAddr::V6(_) => (Ipv6Addr::UNSPECIFIED, 0).into(),
        };
        let socket = UdpSocket::bind(any)?;
        socket.connect(settings.server)?;
        let (queue, copies) = sync_channel(settings.queue);
        let tap = Tap { queue, waiting: Arc::default(), counts: Arc::default() };
        let stop: Arc<AtomicBool> = Arc::default();
        let mut sender = Sender {
            socket,
            copies,
            settings: settings.clone(),
            waiting: Arc::clone(&tap.waiting),
            counts: Arc::clone(&tap.counts),
            room: Vec::new(),
        };
        let told = Arc::clone(&stop);
        let thread =
            std::thread::Builder::new().name("sbe-hep".to_owned()).spawn(move || sender.run(&told))?;
        Ok(Self { tap, stop, sender: Some(thread) })
    }

    pub(super) fn tap(&self) -> Tap {
        self.tap.clone()
    }

    /// What has become of the copies so far.
    pub fn counts(&self) -> &Counts {
        &self.tap.counts
    }
}

impl Drop for Capture {
    fn drop(&mut self) {
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
    copies: Receiver<Copy>,
    settings: Hep,
    waiting: Arc<AtomicUsize>,
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
                && let Ok(copy) = self.copies.try_recv()
            {
                taken += 1;
                self.waiting.fetch_sub(copy.bytes.len(), Ordering::Relaxed);
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
