//! Copies of messages for whoever looks at the wire: one tap, where messages enter shards and outputs leave them.
//!
//! While nobody looks, a message costs one relaxed load. Else its octets are copied once for all who look (what is sent is
//! shared, not copied), and offered to queues that are bounded in messages and octets. Nothing waits here.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Instant;

use arc_swap::ArcSwap;
use bytes::Bytes;

use crate::config::Listen;
use crate::flow::{ListenerId, Origin, TlsIdentity, Transport};
use crate::shard::io::Send;

/// A message on the wire.
#[derive(Clone, Debug)]
pub(super) struct Copy {
    pub(super) at: Instant,
    /// We received it; else we sent it.
    pub(super) received: bool,
    pub(super) listener: ListenerId,
    pub(super) source: SocketAddr,
    pub(super) target: SocketAddr,
    pub(super) transport: Transport,
    /// Of the sender's certificate.
    pub(super) identity: Option<Arc<TlsIdentity>>,
    pub(super) bytes: Bytes,
}

/// A queue of copies, and who empties it.
#[derive(Clone, Debug)]
struct Sink {
    queue: SyncSender<Copy>,
    /// Octets that wait, and the most of them.
    waiting: Arc<AtomicUsize>,
    most: usize,
    dropped: Arc<AtomicU64>,
}

impl Sink {
    fn offer(&self, copy: Copy) {
        let octets = copy.bytes.len();
        let before = self.waiting.fetch_add(octets, Ordering::Relaxed);
        if before.saturating_add(octets) > self.most || self.queue.try_send(copy).is_err() {
            self.waiting.fetch_sub(octets, Ordering::Relaxed);
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// The other end of a queue.
#[derive(Debug)]
pub(super) struct Drain {
    queue: Receiver<Copy>,
    waiting: Arc<AtomicUsize>,
}

impl Drain {
    /// The oldest copy, without waiting.
    pub(super) fn take(&self) -> Option<Copy> {
        let copy = self.queue.try_recv().ok()?;
        self.waiting.fetch_sub(copy.bytes.len(), Ordering::Relaxed);
        Some(copy)
    }
}

/// Where workers hand copies over.
#[derive(Debug, Default)]
pub(super) struct Tap {
    on: AtomicBool,
    sinks: ArcSwap<Vec<(&'static str, Sink)>>,
}

impl Tap {
    /// Begins to copy into a queue of so many messages and octets; `dropped` counts what finds no room.
    /// A name stands for one queue: the one before goes.
    pub(super) fn open(
        &self,
        name: &'static str,
        messages: usize,
        octets: usize,
        dropped: &Arc<AtomicU64>,
    ) -> Drain {
        let (queue, copies) = sync_channel(messages);
        let waiting: Arc<AtomicUsize> = Arc::default();
        let sink = Sink { queue, waiting: Arc::clone(&waiting), most: octets, dropped: Arc::clone(dropped) };
        self.change(name, Some(sink));
        Drain { queue: copies, waiting }
    }

    /// Copies no more for this one.
    pub(super) fn close(&self, name: &'static str) {
        self.change(name, None);
    }

    fn change(&self, name: &'static str, sink: Option<Sink>) {
        self.sinks.rcu(|sinks| {
            let others = sinks.iter().filter(|(n, _)| *n != name).cloned();
            let sinks: Vec<_> = others.chain(sink.clone().map(|s| (name, s))).collect();
            self.on.store(!sinks.is_empty(), Ordering::Relaxed);
            sinks
        });
    }

    /// Somebody looks.
    #[inline]
    pub(super) fn is_on(&self) -> bool {
        self.on.load(Ordering::Relaxed)
    }

    /// A message has come.
    #[cold]
    pub(super) fn received(&self, at: Instant, origin: &Origin, bytes: &[u8]) {
        if !bytes.first().is_some_and(u8::is_ascii_alphabetic) {
            // A keep-alive.
            return;
        }
        self.offer(Copy {
            at,
            received: true,
            listener: origin.listener,
            source: origin.remote,
            target: origin.local,
            transport: origin.transport,
            identity: origin.identity.clone(),
            bytes: Bytes::copy_from_slice(bytes),
        });
    }

    /// A message is about to be sent. Its source is the listener's address: which port a connection has is not known.
    #[cold]
    pub(super) fn sending(&self, at: Instant, send: &Send, listeners: &[Listen]) {
        let target = send.hop.remote;
        let any = if target.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
        let listener = listeners.get(usize::from(send.hop.listener.0));
        self.offer(Copy {
            at,
            received: false,
            listener: send.hop.listener,
            source: listener.map_or(SocketAddr::new(any, 0), |l| l.bind),
            target,
            transport: send.hop.transport,
            identity: None,
            bytes: send.bytes.clone(),
        });
    }

    fn offer(&self, copy: Copy) {
        let sinks = self.sinks.load();
        let Some(((_, last), others)) = sinks.split_last() else { return };
        for (_, sink) in others {
            sink.offer(copy.clone());
        }
        last.offer(copy);
    }
}
