//! The thread that takes copies from the tap and sorts them into captures.

use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::thread::park_timeout;
use std::time::{Duration, Instant, SystemTime};

use ahash::{AHashMap, AHashSet, RandomState};

use crate::flow::{ListenerId, Origin, PeerId, Transport};
use crate::proxy::Policy;
use crate::wire::{Framing, Index, Limits, Message};

use super::super::node::Node;
use super::super::tap::{Copy, Drain};
use super::filter::{Calls, Held, Looked, Streams, Verdict, call_of};
use super::pcapng::Packet;
use super::{Capture, End, Shared};

/// The tap's name for this queue.
pub(super) const NAME: &str = "capture";
/// How often the writer looks into the queue.
const LOOK: Duration = Duration::from_millis(20);
/// Messages and octets that may wait.
const QUEUE: (usize, usize) = (20_000, 32 << 20);
/// How long what was found out about addresses is believed, and the least time between two questions.
const BELIEVED: Duration = Duration::from_secs(1);
const LEAST: Duration = Duration::from_millis(100);
const TLS: &str = "by TLS, shown as TCP in the clear";

/// What the writer remembers of one capture.
#[derive(Debug, Default)]
struct Own {
    calls: Calls,
    streams: Streams,
}

pub(super) struct Writer {
    shared: Arc<Shared>,
    node: Weak<Node>,
    drain: Drain,
    own: AHashMap<u64, Own>,
    held: Held,
    keys: RandomState,
    index: Index,
    /// Our own address behind a listener that is bound to all.
    local: AHashMap<ListenerId, IpAddr>,
    whose: Whose,
}

/// Whose an address is.
#[derive(Default)]
struct Whose {
    policy: Option<Arc<Policy>>,
    instances: AHashMap<SocketAddr, PeerId>,
    asked: Option<Instant>,
    /// Addresses that were asked for since without an answer.
    unknown: AHashSet<SocketAddr>,
}

impl Writer {
    /// Opens the tap.
    pub(super) fn new(shared: Arc<Shared>, node: Weak<Node>) -> Self {
        let (messages, octets) = QUEUE;
        let drain = shared.tap.open(NAME, messages, octets, &shared.counts.dropped);
        Self {
            shared,
            node,
            drain,
            own: AHashMap::new(),
            held: Held::default(),
            keys: RandomState::new(),
            index: Index::empty(),
            local: AHashMap::new(),
            whose: Whose::default(),
        }
    }

    /// Works until there is no capture left that runs.
    pub(super) fn run(mut self) {
        loop {
            let stop = self.shared.stop.load(Ordering::Acquire);
            let running = self.turn();
            let now = Instant::now();
            if stop {
                running.iter().for_each(|c| c.end(End::Shutdown, now));
                return self.shared.tap.close(NAME);
            }
            if running.is_empty() {
                let mut all = self.shared.all();
                // One may have begun meanwhile.
                if !all.captures.iter().any(|c| c.is_running()) {
                    self.shared.tap.close(NAME);
                    all.writer = None;
                    return;
                }
            }
            park_timeout(LOOK);
        }
    }

    /// Sorts what has come; gives the captures that run on.
    fn turn(&mut self) -> Vec<Arc<Capture>> {
        let clock = (Instant::now(), SystemTime::now());
        let mut running = self.shared.all().captures.clone();
        running.retain(|c| c.is_running());
        self.own.retain(|id, _| running.iter().any(|c| c.id == *id));
        let mut taken = 0;
        while taken < QUEUE.0
            && let Some(copy) = self.drain.take()
        {
            taken += 1;
            self.sort(Arc::new(copy), &running, clock);
        }
        self.held.expire(clock.0);
        for capture in &running {
            if clock.0 >= capture.until {
                capture.end(End::Time, clock.0);
            } else if taken > 0 {
                capture.tell();
            }
        }
        running.retain(|c| c.is_running());
        running
    }

    fn sort(&mut self, copy: Arc<Copy>, running: &[Arc<Capture>], clock: (Instant, SystemTime)) {
        if copy.received {
            self.local.insert(copy.listener, copy.target.ip());
        }
        let framing = if copy.transport == Transport::Udp { Framing::Datagram } else { Framing::Stream };
        let limits = Limits { max_message: usize::MAX, max_headers: 1024, max_header: 1 << 20 };
        let mut index = std::mem::take(&mut self.index);
        let msg =
            index.read(&copy.bytes, &limits, framing).is_ok().then(|| Message::new(&copy.bytes, &index));
        let filtered = running.iter().any(|c| !c.wanted.filter.is_empty());
        let by_peer = running.iter().any(|c| c.wanted.filter.peer.is_some());
        let looked = Looked {
            call: msg.as_ref().filter(|_| filtered).and_then(|m| call_of(&self.keys, m)),
            peer: by_peer.then(|| self.whose.find(&self.node, &copy, clock.0)).flatten(),
        };
        let mut left = false;
        for capture in running {
            let own = self.own.entry(capture.id).or_default();
            match own.calls.judge(&capture.wanted.filter, &looked, msg.as_ref()) {
                Verdict::Leave => {
                    left = true;
                    continue;
                }
                Verdict::Take => {}
                Verdict::Begin => {
                    capture.count_call();
                    for before in looked.call.into_iter().flat_map(|call| self.held.of(call)) {
                        keep(capture, before, &mut own.streams, &self.local, clock, &self.shared.counts);
                    }
                }
            }
            keep(capture, &copy, &mut own.streams, &self.local, clock, &self.shared.counts);
        }
        self.index = index;
        if let Some(call) = looked.call.filter(|_| left) {
            self.held.push(call, copy);
        }
    }
}

/// Puts a message into a capture.
fn keep(
    capture: &Capture,
    copy: &Copy,
    streams: &mut Streams,
    local: &AHashMap<ListenerId, IpAddr>,
    (now, wall): (Instant, SystemTime),
    counts: &super::Counts,
) {
    let at = match copy.at.checked_duration_since(now) {
        Some(after) => wall + after,
        None => wall - now.saturating_duration_since(copy.at),
    };
    let mut source = copy.source;
    if !copy.received
        && source.ip().is_unspecified()
        && let Some(ip) = local.get(&copy.listener).filter(|ip| ip.is_ipv4() == copy.target.is_ipv4())
    {
        source.set_ip(*ip);
    }
    let stream =
        (copy.transport != Transport::Udp).then(|| streams.advance(source, copy.target, copy.bytes.len()));
    let packet = Packet {
        at,
        received: copy.received,
        source,
        target: copy.target,
        stream,
        comment: (copy.transport == Transport::Tls).then_some(TLS),
        payload: &copy.bytes,
    };
    let blocks = packet.blocks();
    if blocks.is_empty() {
        counts.too_large.fetch_add(1, Ordering::Relaxed);
        return;
    }
    counts.kept.fetch_add(1, Ordering::Relaxed);
    counts.overwritten.fetch_add(capture.push(blocks, now), Ordering::Relaxed);
}

impl Whose {
    /// The peer at the other end of a message: by its certificate or address for what came, by the instances that calls
    /// were located to for what went, else by the addresses that a peer sends from.
    fn find(&mut self, node: &Weak<Node>, copy: &Copy, now: Instant) -> Option<PeerId> {
        let other = if copy.received { copy.source } else { copy.target };
        let unasked = self.asked.is_none_or(|at| now.saturating_duration_since(at) >= BELIEVED);
        if unasked {
            self.ask(node, now);
        }
        let known = self.known(copy, other);
        if known.is_some() || unasked || self.unknown.contains(&other) {
            return known;
        }
        if self.asked.is_some_and(|at| now.saturating_duration_since(at) < LEAST) {
            return None;
        }
        // Perhaps it has been located since.
        self.ask(node, now);
        let known = self.known(copy, other);
        if known.is_none() {
            self.unknown.insert(other);
        }
        known
    }

    fn known(&self, copy: &Copy, other: SocketAddr) -> Option<PeerId> {
        let policy = self.policy.as_ref()?;
        let sender = || {
            let origin = Origin {
                transport: copy.transport,
                listener: copy.listener,
                remote: copy.source,
                local: copy.target,
                conn: None,
                identity: copy.identity.clone(),
            };
            policy.party(&origin).peer()
        };
        copy.received
            .then(sender)
            .flatten()
            .or_else(|| self.instances.get(&other).copied())
            .or_else(|| policy.sources.find(other.ip()).and_then(|p| p.peer()))
    }

    fn ask(&mut self, node: &Weak<Node>, now: Instant) {
        self.asked = Some(now);
        self.unknown.clear();
        let Some(node) = node.upgrade() else { return };
        self.policy = Some(node.policy());
        self.instances =
            node.instances(now).into_iter().filter_map(|l| Some((l.instance.addr, l.peer?))).collect();
    }
}
