//! Turns: a batch of inputs goes into the shards that own them, and what comes out is carried out.
//!
//! Whoever receives a message takes the lock of the shard that owns it for the length of its
//! `handle_input` and moves the outputs out; sockets are touched only after unlocking, and never
//! are two shards locked at once. Handing messages over to the owner's thread instead would cost
//! a wake-up of that thread, several times what the whole message costs.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, TryLockError};
use std::time::{Duration, Instant};

use arc_swap::{ArcSwapOption, Cache};
use smallvec::SmallVec;
use tokio::sync::{Notify, watch};

use crate::config::Listen;
use crate::flow::{ConnId, Hop, Origin, SendFailure, Transport};
use crate::location::{Instance, LocateKey, Located, Observation};
use crate::proxy::Policy;
use crate::shard::io::{Event, Input, Output, Passed, ReadAhead, Send, SendToken, Ticket, Update};
use crate::wire::Limits;

use super::alone::Bell;
use super::call_records::Offer;
use super::counters::{Counters, DropReason};
use super::element::{Element, Locator};
use super::events::{EventLog, PeerNames};
use super::pace::{Cores, Pace, Spread};
use super::pool::Pool;
use super::quoted::quotes_call_id;
use super::runs::Runs;
use super::sys::{self, BATCH, SendBatch};
use super::tap::Tap;
use super::tls::Tls;
use super::tls::gate::{Gate, Turns};
use super::tls::words::FailureLog;
use super::udp::{Kind, UdpSocket};
use super::upgrade::beside::Stage;
use super::upgrade::channel::Channel;

mod appointments;

/// Octets read from a stream at once.
pub(super) const READ_BUFFER: usize = 64 * 1024;

/// Durations and caps that the sockets heed; from the configuration.
#[derive(Clone, Copy, Debug)]
pub(super) struct Settings {
    pub(super) idle_timeout: Duration,
    pub(super) message_timeout: Duration,
    pub(super) connect_timeout: Duration,
    /// 64*T1: how long an answer may take.
    pub(super) answer_timeout: Duration,
    /// Distance of the times at which timers fire.
    pub(super) timer_grid: Duration,
    /// Datagrams are spread over as many workers as the load needs, not always over all.
    pub(super) adaptive: bool,
    pub(super) limits: Limits,
}

/// What all workers share.
pub(super) struct Node<E> {
    pub(super) slots: Box<[Slot<E>]>,
    pub(super) locator: Arc<dyn Locator>,
    pub(super) pool: Pool,
    pub(super) counters: Arc<Counters>,
    pub(super) listen: Box<[Listen]>,
    pub(super) settings: Settings,
    /// What is shown and believed in handshakes from now on; `None` without TLS listeners.
    pub(super) tls: ArcSwapOption<Tls>,
    /// Bounds handshakes that others begin.
    pub(super) gate: Arc<Gate>,
    /// Which failed handshakes have been told.
    pub(super) failures: FailureLog,
    /// Turns true once, when the node is to end.
    pub(super) stop: watch::Sender<bool>,
    /// How far taking over is, or being taken over from.
    pub(super) stage: watch::Sender<Stage>,
    /// Another process takes over from this one.
    pub(super) leaving: AtomicBool,
    /// Where its datagrams go then.
    pub(super) successor: ArcSwapOption<Channel>,
    /// Keys the hash that assigns calls to shards.
    pub(super) secret: u64,
    /// Where the timer grid begins.
    pub(super) epoch: Instant,
    /// What the log calls the peers.
    pub(super) peers: PeerNames,
    /// Whose an address is, for the log.
    pub(super) policy: Arc<ArcSwapOption<Policy>>,
    /// Takes the events of calls; empty without `[records]`.
    pub(super) records: OnceLock<Offer>,
    /// Takes copies of messages for those who look at the wire.
    pub(super) tap: Arc<Tap>,
}

/// One shard, and the worker's appointment with it.
pub(super) struct Slot<E> {
    element: Mutex<E>,
    /// The grid line at which the shard's worker will look at its timers; `u64::MAX`: never.
    /// Written with the shard locked only.
    announced: AtomicU64,
    /// Tells that worker, in the event loop, that there is something to do earlier.
    wake: Notify,
    /// Tells it while it is on its own.
    pub(super) bell: Bell,
    /// What its worker sent in runs; an error may come back to any worker.
    pub(super) runs: Mutex<Runs>,
}

impl<E: Element> Slot<E> {
    pub(super) fn new(element: E) -> Self {
        Self {
            element: Mutex::new(element),
            announced: AtomicU64::new(u64::MAX),
            wake: Notify::new(),
            bell: Bell::default(),
            runs: Mutex::default(),
        }
    }

    /// Locks the shard. Panics of an element are caught before they could poison the lock for
    /// good; a shard is used on regardless.
    pub(super) fn lock(&self) -> MutexGuard<'_, E> {
        self.element.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn try_lock(&self) -> Option<MutexGuard<'_, E>> {
        match self.element.try_lock() {
            Ok(guard) => Some(guard),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// Makes the shard's worker carry out what the shard has to say.
    pub(super) fn attend(&self) {
        if !self.bell.ring() {
            self.wake.notify_one();
        }
    }
}

impl<E: Element> Node<E> {
    /// Gives an input to a shard from any thread; the shard's worker carries out the consequences.
    pub(super) fn post(&self, shard: usize, input: Input<'_>) {
        if let Some(slot) = self.slots.get(shard) {
            let now = Instant::now();
            feed(&mut *slot.lock(), now, input, &self.counters);
            slot.attend();
        }
    }

    /// The shard a token belongs to: its top 16 bits.
    fn shard_of_token(&self, token: SendToken) -> Option<usize> {
        usize::try_from(token.0 >> 48).ok().filter(|s| *s < self.slots.len())
    }

    /// The first grid line at or after `t`.
    fn grid_line(&self, t: Instant) -> u64 {
        let since = u64::try_from(t.saturating_duration_since(self.epoch).as_micros()).unwrap_or(u64::MAX);
        since.div_ceil(self.grid_width())
    }

    fn grid_time(&self, line: u64) -> Instant {
        self.epoch + Duration::from_micros(line.saturating_mul(self.grid_width()))
    }

    /// In microseconds.
    fn grid_width(&self) -> u64 {
        u64::try_from(self.settings.timer_grid.as_micros()).unwrap_or(u64::MAX).max(1)
    }
}

/// One message of a batch.
pub(super) struct Arrived<'a> {
    pub(super) origin: Origin,
    pub(super) bytes: &'a [u8],
}

/// A message, and whose it is.
struct Owned<'a> {
    owner: usize,
    message: &'a Arrived<'a>,
    ahead: Option<ReadAhead<'a>>,
}

/// The policy in force, without counting its users at each look.
type KnownPolicy = Cache<Arc<ArcSwapOption<Policy>>, Option<Arc<Policy>>>;

/// Something to do after unlocking, in order.
enum Step {
    Stream(Send),
    Locate(usize, Ticket, Arc<LocateKey>),
    Located(usize, Ticket, Arc<Located>),
    /// An observation, and the shard that made it.
    Health(usize, Instance, Observation),
    Tell(Event),
    Sent(SendToken, ConnId, bool),
    Failed(SendToken, SendFailure),
    Closed(ConnId),
    Pass(Box<Passed>),
}

/// One thread's side of the node.
pub(super) struct Worker<E: Element> {
    pub(super) index: usize,
    pub(super) node: Arc<Node<E>>,
    /// This worker's socket of each UDP listener, by listener.
    pub(super) udp: Vec<Option<Rc<UdpSocket>>>,
    steps: RefCell<VecDeque<Step>>,
    reader: RefCell<E::Reader>,
    /// Tasks under way that need the event loop.
    pub(super) busy: Cell<usize>,
    settling: Cell<bool>,
    /// Datagrams have been queued since the last flush: answers, requests.
    unsent: (Cell<bool>, Cell<bool>),
    pub(super) send_batch: RefCell<SendBatch>,
    pub(super) read_buffer: RefCell<Box<[u8]>>,
    log: RefCell<EventLog>,
    /// Of the handshakes on this worker.
    pub(super) turns: Turns,
    pub(super) pace: RefCell<Pace>,
    /// Messages of reads that have emptied their connections since the last turn of [`Worker::rest`].
    pub(super) read: Cell<usize>,
    /// Tells that task of them.
    pub(super) emptied: Notify,
    /// Over how many workers datagrams are spread; worker 0 decides.
    pub(super) spread: RefCell<Option<Spread>>,
    pub(super) cores: Cores,
    /// The grid line that was asked for last, the time of the one before, and its own.
    line: Cell<(u64, Instant, Instant)>,
    /// The policy as it was at the last look.
    policy: RefCell<KnownPolicy>,
}

/// Gives one input to an element. A panic is a bug that must not take the node down: the message
/// is lost, the count rises, the shard goes on.
fn feed<E: Element>(element: &mut E, now: Instant, input: Input<'_>, counters: &Counters) {
    if catch_unwind(AssertUnwindSafe(|| element.handle_input(now, input))).is_err() {
        counters.panics.fetch_add(1, Ordering::Relaxed);
        tracing::error!("the element panicked on an input; the input is lost");
    }
}

impl<E: Element> Worker<E> {
    pub(super) fn new(index: usize, node: Arc<Node<E>>, udp: Vec<Option<Rc<UdpSocket>>>) -> Rc<Self> {
        let workers = node.slots.len();
        let decides = index == 0 && workers > 1 && node.settings.adaptive;
        let spread = decides.then(|| Spread::new(workers, Instant::now(), sys::thread_time()));
        Rc::new(Self {
            index,
            udp,
            steps: RefCell::default(),
            reader: RefCell::default(),
            busy: Cell::new(0),
            settling: Cell::new(false),
            unsent: Default::default(),
            send_batch: RefCell::new(SendBatch::new()),
            read_buffer: RefCell::new(vec![0; READ_BUFFER].into_boxed_slice()),
            log: RefCell::default(),
            turns: Turns::default(),
            pace: RefCell::default(),
            read: Cell::default(),
            emptied: Notify::new(),
            spread: RefCell::new(spread),
            cores: Cores::default(),
            line: Cell::new((0, node.epoch, node.epoch)),
            policy: RefCell::new(Cache::new(Arc::clone(&node.policy))),
            node,
        })
    }

    pub(super) fn counters(&self) -> &Counters {
        &self.node.counters
    }

    /// One turn for a batch of messages: each goes to its shard, then everything is carried out.
    /// `waited`: how long the oldest of them lay in the socket, as far as that is known.
    pub(super) fn messages(self: &Rc<Self>, now: Instant, waited: Option<Duration>, batch: &[Arrived<'_>]) {
        let shards = self.node.slots.len();
        let messages = u32::try_from(batch.len()).unwrap_or(u32::MAX);
        let waited = waited.map(|delay| (delay, messages));
        match batch {
            _ if shards == 1 => {
                let mut element = self.node.slots[0].lock();
                self.visit_locked(0, &mut element, now, waited, batch.iter().map(|m| (m, None)));
            }
            [message] => {
                let limits = self.limits();
                let (owner, ahead) = self.read_ahead(message, &limits, shards);
                let mut element = self.node.slots[owner].lock();
                self.visit_locked(owner, &mut element, now, waited, std::iter::once((message, ahead)));
                element.give_back(&mut self.reader.borrow_mut());
            }
            _ => self.visit_owners(now, waited, batch, shards),
        }
        self.settle(now);
    }

    /// Those in force: a reload may have changed them, and what is read by others is read once more.
    fn limits(&self) -> Limits {
        self.policy.borrow_mut().load().as_ref().map_or(self.node.settings.limits, |p| p.limits)
    }

    /// A message's shard, and the message as read for it.
    fn read_ahead<'a>(
        &self,
        message: &Arrived<'_>,
        limits: &'a Limits,
        shards: usize,
    ) -> (usize, Option<ReadAhead<'a>>) {
        let (Arrived { origin, bytes }, secret) = (message, self.node.secret);
        let mut reader = self.reader.borrow_mut();
        // Whatever panics here is read again by the shard, where it is caught and counted.
        let reading = || E::read_ahead(&mut reader, origin, bytes, limits, secret, shards);
        let (owner, ahead) = catch_unwind(AssertUnwindSafe(reading)).unwrap_or_default();
        (if owner < shards { owner } else { owner % shards }, ahead)
    }

    /// Visits each shard that owns something of the batch once, those first that are free.
    fn visit_owners(
        &self,
        now: Instant,
        waited: Option<(Duration, u32)>,
        batch: &[Arrived<'_>],
        shards: usize,
    ) {
        let limits = self.limits();
        let mut owned: SmallVec<[Owned<'_>; BATCH]> = SmallVec::new();
        owned.extend(batch.iter().map(|message| {
            let (owner, ahead) = self.read_ahead(message, &limits, shards);
            Owned { owner, message, ahead }
        }));
        let mut busy: SmallVec<[usize; BATCH]> = SmallVec::new();
        // Own shard first: its lock is the least likely to be held by somebody else.
        for shard in (0..shards).map(|i| (self.index + i) % shards) {
            if !owned.iter().any(|o| o.owner == shard) {
                continue;
            }
            match self.node.slots[shard].try_lock() {
                Some(mut element) => self.visit_owner(shard, &mut element, now, waited, &mut owned),
                None => busy.push(shard),
            }
        }
        for shard in busy {
            self.visit_owner(shard, &mut *self.node.slots[shard].lock(), now, waited, &mut owned);
        }
    }

    fn visit_owner(
        &self,
        shard: usize,
        element: &mut E,
        now: Instant,
        waited: Option<(Duration, u32)>,
        owned: &mut [Owned<'_>],
    ) {
        let messages = owned.iter_mut().filter(|o| o.owner == shard).map(|o| (o.message, o.ahead.take()));
        self.visit_locked(shard, element, now, waited, messages);
        element.give_back(&mut self.reader.borrow_mut());
    }

    fn visit_locked<'a>(
        &self,
        shard: usize,
        element: &mut E,
        now: Instant,
        waited: Option<(Duration, u32)>,
        messages: impl Iterator<Item = (&'a Arrived<'a>, Option<ReadAhead<'a>>)>,
    ) {
        if let Some((delay, messages)) = waited {
            feed(element, now, Input::Waited { delay, messages }, self.counters());
        }
        for (Arrived { origin, bytes }, ahead) in messages {
            if self.node.tap.is_on() {
                self.node.tap.received(now, origin, bytes);
            }
            let input = match ahead {
                Some(ahead) => Input::Read { origin, bytes, ahead },
                None => Input::Message { origin, bytes },
            };
            feed(element, now, input, self.counters());
            self.collect(shard, element, now);
        }
        self.leave(shard, element, now, false);
    }

    /// Gives one input to one shard and moves its outputs out.
    fn enter(&self, shard: usize, now: Instant, input: Input<'_>) {
        let Some(slot) = self.node.slots.get(shard) else {
            return;
        };
        let mut element = slot.lock();
        feed(&mut *element, now, input, self.counters());
        self.collect(shard, &mut element, now);
        self.leave(shard, &mut element, now, false);
    }

    /// Moves the outputs out, answering from the location cache at once.
    fn collect(&self, shard: usize, element: &mut E, now: Instant) {
        let mut steps = self.steps.borrow_mut();
        let tapped = self.node.tap.is_on();
        loop {
            let output = element.poll_output();
            if tapped && let Some(Output::Send(send)) = &output {
                self.node.tap.sending(now, send, &self.node.listen);
            }
            // Taken apart where it lies: an output is moved no more often than need be.
            match output {
                None => break,
                Some(Output::Send(Send {
                    hop: Hop { transport: Transport::Udp, listener, remote, .. },
                    bytes,
                    token,
                    ..
                })) => match self.udp.get(usize::from(listener.0)) {
                    Some(Some(socket)) => match socket.queue(remote, bytes, token) {
                        Some(kind) => self.unsent(kind).set(true),
                        None => self.counters().drop_one(DropReason::UdpSendQueue),
                    },
                    _ => steps.extend(token.map(|t| Step::Failed(t, SendFailure::Local))),
                },
                Some(Output::Send(send)) => steps.push_back(Step::Stream(send)),
                Some(Output::Locate { ticket, key }) => match self.node.locator.locate_cached(&key, now) {
                    Some(result) => feed(element, now, Input::Located { ticket, result }, self.counters()),
                    None => steps.push_back(Step::Locate(shard, ticket, Arc::new(key))),
                },
                Some(Output::Event(Event::Health(instance, seen))) => {
                    steps.push_back(Step::Health(shard, instance, seen))
                }
                Some(Output::Event(Event::Call(event))) => {
                    if let Some(records) = self.node.records.get() {
                        records.offer(event);
                    }
                }
                Some(Output::Event(event)) => steps.push_back(Step::Tell(event)),
                Some(Output::Pass(passed)) => steps.push_back(Step::Pass(passed)),
            }
        }
    }

    /// Carries out everything that the shards asked for, and what follows from that.
    pub(super) fn settle(self: &Rc<Self>, now: Instant) {
        // What a step does may end in here again; the outer loop sees to it.
        if self.settling.replace(true) {
            return;
        }
        loop {
            self.flush(Kind::Answers);
            let step = self.steps.borrow_mut().pop_front();
            match step {
                Some(step) => self.carry_out(step, now),
                None => {
                    self.flush(Kind::Requests);
                    if self.steps.borrow().is_empty() {
                        break;
                    }
                }
            }
        }
        self.settling.set(false);
    }

    /// Whether a datagram of this kind has been queued.
    pub(super) fn unsent(&self, kind: Kind) -> &Cell<bool> {
        match kind {
            Kind::Answers => &self.unsent.0,
            Kind::Requests => &self.unsent.1,
        }
    }

    fn flush(self: &Rc<Self>, kind: Kind) {
        if !self.unsent(kind).replace(false) {
            return;
        }
        for socket in self.udp.iter().flatten() {
            UdpSocket::flush(socket, kind, self);
        }
    }

    fn carry_out(self: &Rc<Self>, step: Step, now: Instant) {
        match step {
            Step::Stream(send) => self.send_stream(send, now),
            Step::Locate(shard, ticket, key) => {
                let worker = Rc::clone(self);
                self.spawn(async move {
                    let result = worker.node.locator.locate(key).await;
                    worker.steps.borrow_mut().push_back(Step::Located(shard, ticket, result));
                    worker.settle(Instant::now());
                });
            }
            Step::Located(shard, ticket, result) => self.enter(shard, now, Input::Located { ticket, result }),
            Step::Health(from, instance, seen) => {
                for shard in (0..self.node.slots.len()).filter(|s| *s != from) {
                    self.enter(shard, now, Input::Update(Update::Health(instance, seen)));
                }
            }
            Step::Tell(event) => self.log.borrow_mut().tell(&event, now, self.counters(), &self.node.peers),
            Step::Sent(token, conn, reused) => {
                if let Some(shard) = self.node.shard_of_token(token) {
                    self.enter(shard, now, Input::Sent { token, conn, reused });
                }
            }
            Step::Failed(token, failure) => {
                if let Some(shard) = self.node.shard_of_token(token) {
                    self.enter(shard, now, Input::SendFailed { token, failure });
                }
            }
            Step::Pass(passed) => self.pass_on(&passed),
            Step::Closed(conn) => {
                for shard in 0..self.node.slots.len() {
                    self.enter(shard, now, Input::ConnectionClosed { conn });
                }
            }
        }
    }

    /// Tells the owner of `token`, at the next [`Worker::settle`].
    pub(super) fn failed(&self, token: Option<SendToken>, failure: SendFailure) {
        if let Some(token) = token {
            self.steps.borrow_mut().push_back(Step::Failed(token, failure));
        }
    }

    /// Tells all shards, at the next [`Worker::settle`].
    pub(super) fn closed(&self, conn: ConnId) {
        self.steps.borrow_mut().push_back(Step::Closed(conn));
    }

    /// Tells the owner of `token` at once, before anything can happen to the connection.
    pub(super) fn sent(self: &Rc<Self>, token: SendToken, conn: ConnId, reused: bool, now: Instant) {
        self.carry_out(Step::Sent(token, conn, reused), now);
    }

    /// An ICMP error. One that quotes enough goes to the owner of the call, else to all; and to those whose
    /// datagrams went with that one, at the next [`Worker::settle`].
    pub(super) fn undeliverable(&self, now: Instant, to: std::net::SocketAddr, payload: &[u8]) {
        self.pass_error_on(to, payload);
        let of = |slot: &Slot<E>| slot.runs.lock().unwrap_or_else(PoisonError::into_inner).take(to, payload);
        for token in self.node.slots.iter().find_map(of).into_iter().flatten() {
            self.failed(Some(token), SendFailure::Icmp);
        }
        let shards = self.node.slots.len();
        if quotes_call_id(payload) {
            let shard = E::shard_of(payload, self.node.secret, shards) % shards;
            self.enter(shard, now, Input::Undeliverable { to, payload });
        } else {
            for shard in 0..shards {
                self.enter(shard, now, Input::Undeliverable { to, payload });
            }
        }
    }
}
