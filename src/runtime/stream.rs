//! One stream connection: a task that reads, cuts and hands over messages, and writes its queue.
//!
//! Generic over the stream, so that a TLS session is served by the same code as a bare socket.

mod leave;
mod pending;

use std::collections::VecDeque;
use std::future::poll_fn;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use smallvec::SmallVec;
use tokio::io::ReadBuf;

use crate::flow::{Origin, SendFailure, Transport};
use crate::shard::io::SendToken;
use crate::shard::top_via;
use crate::wire::{Event, StreamFramer};

use super::alone::last_idle;
use super::carrier::Stream;
use super::counters::{Counters, Direction, DropReason};
use super::driver::{Arrived, READ_BUFFER, Worker};
use super::element::Element;
use super::pool::{Conn, Item};
use super::sys::BATCH;
use pending::Pending;

/// Messages written by one system call at most.
const WRITE_BATCH: usize = 32;
/// Reads before other tasks get their turn.
const READS_PER_TURN: usize = 4;
/// How long the other end may take to close after we have; until then what it sends is read and
/// thrown away, since closing over unread octets resets the connection and can destroy the last
/// answer on its way.
const LINGER: Duration = Duration::from_secs(1);
/// Between looks whether the other end is still there after it has closed its side.
const CONFIRM: Duration = Duration::from_millis(5);
/// A reader whose queue is full and who takes nothing for this long is cut off. Long enough for a pause of its own
/// (a collection of garbage, a busy core), short against a transaction's 32 s.
const STALLED: Duration = Duration::from_secs(4);
/// Responses remembered after they were written.
const REMEMBERED: usize = 16;
/// So many requests of a connection are looked at for an offer to use it the other way.
const OFFERS: u8 = 16;
/// What answers a ping (RFC 5626 §4.4.1).
const PONG: &[u8] = b"\r\n";

/// Why a connection ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// The other end closed it.
    Closed,
    /// It failed.
    Failed,
    /// No traffic for `idle_timeout`.
    Idle,
    /// A message was not complete in time.
    MessageTimeout,
    /// Its octets make no messages.
    Framing,
    /// The write queue was full, and nothing of it went out.
    Overflow,
    /// The node asked for it.
    Asked,
    /// Another process takes over, and nothing was under way.
    Left,
}

/// How far the connection is on its way to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// Both directions.
    Open,
    /// The other end has sent all it will; answers still go to it, until then.
    HalfClosed { until: Instant },
    /// Everything is written, and the other end had closed before: was that only its own direction, or is nobody
    /// there any more? It shows by an acknowledgement or a reset.
    Confirming { look: Instant, until: Instant },
    /// We write what is queued, then say that this is all.
    Flushing { why: End, until: Instant },
    /// We have said so, and wait for the other end to do likewise.
    Lingering { why: End, until: Instant },
}

/// A connection's own state.
struct Connection<E: Element, S> {
    worker: Rc<Worker<E>>,
    conn: Arc<Conn>,
    stream: S,
    origin: Origin,
    framer: StreamFramer,
    /// Received and not yet cut.
    unread: BytesMut,
    phase: Phase,
    /// Taken from the queue to be written; the first of them from `written` on.
    taken: VecDeque<Item>,
    written: usize,
    /// Since when the queue has been full without an octet going out.
    full: Option<Instant>,
    /// Requests received that have had no final response yet, as far as can be told from outside:
    /// what keeps a half-closed connection.
    owed: Pending,
    /// Requests written that have had no final response yet.
    asked: Pending,
    /// The last responses written, with their lengths, so that those can be named that a reset has destroyed.
    sent: VecDeque<(SendToken, usize)>,
    /// Something written may still be held back.
    unflushed: bool,
    /// Written since the other end closed its side: when to look what became of it.
    look: Option<Instant>,
    last_traffic: Instant,
    /// Reads have filled the buffer since then, and so many octets have been read.
    backlog: Option<(Instant, usize)>,
    /// When it was last found that there was nothing more to read.
    emptied: Instant,
    /// Since when a message has been incomplete.
    began: Option<Instant>,
    /// Requests that are still looked at for an offer of this connection (RFC 5923).
    offers: u8,
}

/// Serves a connection until it ends.
pub(super) async fn serve<E, S>(worker: Rc<Worker<E>>, conn: Arc<Conn>, stream: S, origin: Origin)
where
    E: Element,
    S: Stream,
{
    conn.opened();
    let framer = StreamFramer::new(worker.node.settings.limits);
    let limit = worker.node.settings.answer_timeout;
    let authenticated = origin.identity.is_some() && conn.direction == Direction::In;
    let connection = Connection {
        worker,
        conn,
        stream,
        origin,
        framer,
        unread: BytesMut::new(),
        phase: Phase::Open,
        taken: VecDeque::new(),
        written: 0,
        full: None,
        owed: Pending::new(limit),
        asked: Pending::new(limit),
        sent: VecDeque::new(),
        unflushed: false,
        look: None,
        last_traffic: Instant::now(),
        backlog: None,
        emptied: Instant::now(),
        began: None,
        offers: if authenticated { OFFERS } else { 0 },
    };
    connection.run().await;
}

/// Tells everybody that a connection (or the attempt to make one) has ended.
pub(super) fn finish<E: Element>(
    worker: &Rc<Worker<E>>,
    conn: &Conn,
    unwritten: VecDeque<Item>,
    failure: impl Fn(&Item) -> SendFailure,
) {
    let queued = conn.close();
    worker.node.pool.remove(conn);
    worker.counters().connection(conn.transport, conn.direction, -1);
    for item in unwritten.iter().chain(&queued) {
        worker.failed(item.token, failure(item));
    }
    if conn.has_carried_requests() {
        worker.closed(conn.id);
    }
    worker.settle(Instant::now());
}

impl<E: Element, S: Stream> Connection<E, S> {
    async fn run(mut self) {
        let conn = Arc::clone(&self.conn);
        let first = self.deadline();
        let mut sleep = std::pin::pin!(tokio::time::sleep_until(first.into()));
        let end = loop {
            if conn.take(&mut self.taken) {
                self.full.get_or_insert_with(Instant::now);
            }
            if conn.is_ending() && matches!(self.phase, Phase::Open | Phase::HalfClosed { .. }) {
                self.wind_up(End::Asked);
            }
            if self.may_be_left() {
                self.wind_up(End::Left);
            }
            let deadline = self.deadline();
            if Instant::now() >= deadline {
                match self.expire() {
                    Some(end) => break end,
                    None => continue,
                }
            }
            // Later deadlines wait until the sleep is over: most never come to pass.
            if deadline < sleep.deadline().into_std() || sleep.is_elapsed() {
                sleep.as_mut().reset(deadline.into());
            }
            tokio::select! {
                biased;
                ended = poll_fn(|cx| self.poll_io(cx)) => {
                    if let Some(end) = ended {
                        break end;
                    }
                }
                () = conn.bell.notified() => {}
                () = sleep.as_mut() => {}
            }
        };
        self.end(end);
    }

    /// When [`Connection::expire`] is due.
    fn deadline(&self) -> Instant {
        let settings = &self.worker.node.settings;
        let stalled = self.full.map(|since| since + STALLED);
        let usual = match self.phase {
            Phase::Open => {
                let idle = self.next_look(self.last_traffic + settings.idle_timeout);
                self.began.map_or(idle, |t| idle.min(t + settings.message_timeout))
            }
            Phase::HalfClosed { until } => self.look.map_or(until, |look| look.min(until)),
            Phase::Flushing { until, .. } | Phase::Lingering { until, .. } => until,
            Phase::Confirming { look, .. } => look,
        };
        stalled.map_or(usual, |stalled| stalled.min(usual))
    }

    /// The deadline has passed.
    fn expire(&mut self) -> Option<End> {
        if self.full.is_some_and(|since| since + STALLED <= Instant::now()) {
            return Some(End::Overflow);
        }
        match self.phase {
            Phase::Open => {
                let late = self
                    .began
                    .is_some_and(|t| t + self.worker.node.settings.message_timeout <= Instant::now());
                self.wind_up(if late { End::MessageTimeout } else { End::Idle });
                None
            }
            Phase::HalfClosed { until } => {
                let now = Instant::now();
                if now >= until {
                    self.wind_up(End::Closed);
                    return None;
                }
                // Its next response may be long in coming; that this one is lost must not wait for it.
                let (unacknowledged, failed) = self.stream.fate();
                self.look = (unacknowledged > 0).then(|| now + CONFIRM);
                failed.then_some(End::Failed)
            }
            Phase::Confirming { until, .. } => self.confirm(until),
            Phase::Flushing { why, .. } | Phase::Lingering { why, .. } => Some(why),
        }
    }

    /// Looks whether the other end has got everything.
    fn confirm(&mut self, until: Instant) -> Option<End> {
        // First the octets: a reset between the two looks is seen by the second.
        let (unacknowledged, failed) = self.stream.fate();
        if failed {
            return Some(End::Failed);
        }
        let now = Instant::now();
        if unacknowledged == 0 || now >= until {
            self.wind_up(End::Closed);
        } else {
            self.phase = Phase::Confirming { look: now + CONFIRM, until };
        }
        None
    }

    /// Begins to end: no new requests, what is queued is still written.
    fn wind_up(&mut self, why: End) {
        self.worker.node.pool.retire(&self.conn);
        self.phase = Phase::Flushing { why, until: Instant::now() + leave::linger(why) };
    }

    /// Writes and reads as much as goes now. Ready with the reason when the connection is over,
    /// with `None` when the queue or the timers are to be looked at again.
    fn poll_io(&mut self, cx: &mut Context<'_>) -> Poll<Option<End>> {
        let progress = match self.poll_write(cx) {
            Ok(progress) => progress,
            Err(_) => return Poll::Ready(Some(End::Failed)),
        };
        if progress {
            return Poll::Ready(None);
        }
        match self.phase {
            Phase::HalfClosed { .. } => {
                if self.owed.is_empty() && self.taken.is_empty() && self.conn.is_flushed() && !self.unflushed
                {
                    return Poll::Ready(self.confirm(Instant::now() + LINGER));
                }
                // Reading is over, so only a write tells that the other end is gone for good.
                return Poll::Pending;
            }
            Phase::Confirming { .. } => {
                if self.taken.is_empty() {
                    return Poll::Pending;
                }
                let until = Instant::now() + LINGER;
                self.phase = Phase::HalfClosed { until };
                return Poll::Ready(None);
            }
            Phase::Flushing { why, until } if self.taken.is_empty() && self.conn.is_flushed() => {
                match Pin::new(&mut self.stream).poll_shutdown(cx) {
                    Poll::Pending => {}
                    Poll::Ready(Err(_)) => return Poll::Ready(Some(why)),
                    Poll::Ready(Ok(())) if why == End::Closed => return Poll::Ready(Some(why)),
                    Poll::Ready(Ok(())) => {
                        self.phase = Phase::Lingering { why, until };
                        self.stop_writing();
                    }
                }
            }
            _ => {}
        }
        self.poll_read(cx)
    }

    /// Writes what was taken from the queue; true if all of it went and there may be more.
    fn poll_write(&mut self, cx: &mut Context<'_>) -> io::Result<bool> {
        let mut progress = false;
        while !self.taken.is_empty() {
            let mut slices: SmallVec<[IoSlice<'_>; WRITE_BATCH]> = SmallVec::new();
            for (i, item) in self.taken.iter().take(WRITE_BATCH).enumerate() {
                let from = if i == 0 { self.written } else { 0 };
                slices.push(IoSlice::new(item.bytes.get(from..).unwrap_or_default()));
            }
            match Pin::new(&mut self.stream).poll_write_vectored(cx, &slices) {
                Poll::Pending => return Ok(false),
                Poll::Ready(Err(e)) if e.kind() == io::ErrorKind::Interrupted => {}
                Poll::Ready(Err(e)) => return Err(e),
                Poll::Ready(Ok(0)) => return Err(io::ErrorKind::WriteZero.into()),
                Poll::Ready(Ok(n)) => {
                    drop(slices);
                    self.account(n);
                    progress = true;
                    self.unflushed = true;
                }
            }
        }
        if self.unflushed {
            // A TLS session holds back what is not flushed; a bare socket has nothing to do.
            match Pin::new(&mut self.stream).poll_flush(cx) {
                Poll::Pending => {}
                Poll::Ready(Ok(())) => self.unflushed = false,
                Poll::Ready(Err(e)) => return Err(e),
            }
        }
        Ok(progress)
    }

    /// `n` octets have gone out.
    fn account(&mut self, n: usize) {
        self.conn.written(n);
        self.full = None;
        self.last_traffic = Instant::now();
        if matches!(self.phase, Phase::HalfClosed { .. }) {
            self.look = Some(self.last_traffic + CONFIRM);
        }
        let mut done = 0;
        self.written = self.written.saturating_add(n);
        while let Some(item) = self.taken.front() {
            if self.written < item.bytes.len() {
                break;
            }
            self.written -= item.bytes.len();
            self.owed.response(&item.bytes);
            self.asked.request(&item.bytes, self.last_traffic);
            if let (Some(token), true) = (item.token, item.bytes.starts_with(b"SIP/2.0 ")) {
                if self.sent.len() >= REMEMBERED {
                    self.sent.pop_front();
                }
                self.sent.push_back((token, item.bytes.len()));
            }
            self.taken.pop_front();
            done += 1;
        }
        Counters::add(&self.worker.counters().stream_messages_out, done);
    }

    /// Reads what is there.
    fn poll_read(&mut self, cx: &mut Context<'_>) -> Poll<Option<End>> {
        let mut messages = 0;
        for _ in 0..READS_PER_TURN {
            let worker = Rc::clone(&self.worker);
            let mut room = worker.read_buffer.borrow_mut();
            let mut buffer = ReadBuf::new(&mut room);
            match Pin::new(&mut self.stream).poll_read(cx, &mut buffer) {
                Poll::Pending => {
                    worker.emptied(messages);
                    return Poll::Pending;
                }
                Poll::Ready(Err(e)) if e.kind() == io::ErrorKind::Interrupted => continue,
                // Closed without a word of TLS. Messages have lengths, so nothing can have been cut off unseen.
                Poll::Ready(Err(e)) if e.kind() == io::ErrorKind::UnexpectedEof => {
                    return Poll::Ready(self.end_of_stream());
                }
                Poll::Ready(Err(e)) => {
                    if let Some(failure) = self.stream.refusal(&e) {
                        worker.handshake_failed(&self.conn, &failure);
                    }
                    return Poll::Ready(Some(End::Failed));
                }
                Poll::Ready(Ok(())) => {}
            }
            let octets = buffer.filled();
            if octets.is_empty() {
                return Poll::Ready(self.end_of_stream());
            }
            if !self.takes() {
                continue;
            }
            let (read, full) = (octets.len(), octets.len() == READ_BUFFER);
            self.unread.extend_from_slice(octets);
            drop(room);
            let began = self.began;
            messages += self.hand_over(read, full);
            // A new deadline or phase is for the loop around this to heed.
            if !self.takes() || (self.began.is_some() && self.began != began) {
                return Poll::Ready(None);
            }
        }
        // There may be more, but others wait: come back at once.
        cx.waker().wake_by_ref();
        Poll::Pending
    }

    /// The other end has closed its side.
    fn end_of_stream(&mut self) -> Option<End> {
        match self.phase {
            Phase::Open => {
                self.worker.node.pool.retire(&self.conn);
                let now = Instant::now();
                self.phase = Phase::HalfClosed { until: now + self.worker.node.settings.answer_timeout };
                // What was written before its end was read may have met nobody: a reset that follows the end of
                // the stream is not told to readers.
                let (unacknowledged, failed) = self.stream.fate();
                self.look = (unacknowledged > 0).then(|| now + CONFIRM);
                failed.then_some(End::Failed)
            }
            Phase::HalfClosed { .. } | Phase::Confirming { .. } => None,
            Phase::Flushing { why, .. } | Phase::Lingering { why, .. } => Some(why),
        }
    }

    /// How long what was read has been waiting. It came after the connection was last found empty, and after the
    /// worker last had nothing to do. Of a read that fills the buffer: what is still there, at the pace at
    /// which it has been read since the buffer was first filled.
    fn waited(&mut self, now: Instant, read: usize, full: bool) -> Duration {
        if !full {
            self.backlog = None;
            let empty = std::mem::replace(&mut self.emptied, now);
            let since = last_idle().map_or(empty, |idle| idle.max(empty));
            return now.saturating_duration_since(since);
        }
        let (since, octets) = self.backlog.get_or_insert((now, 0));
        *octets = octets.saturating_add(read);
        let share = self.stream.queued() as f64 / *octets as f64;
        now.saturating_duration_since(*since).mul_f64(share)
    }

    /// Cuts what has been read and gives it to the shards; the number of messages.
    fn hand_over(&mut self, read: usize, full: bool) -> usize {
        let now = Instant::now();
        self.last_traffic = now;
        let waited = self.waited(now, read, full);
        let mut messages: SmallVec<[Bytes; BATCH]> = SmallVec::new();
        let mut broken = false;
        while let Some(event) = self.framer.poll(&mut self.unread) {
            match event {
                Event::Message { bytes, last } => {
                    self.owed.request(&bytes, now);
                    self.asked.response(&bytes);
                    self.began = None;
                    self.look_for_offer(&bytes);
                    messages.push(bytes);
                    broken = last;
                }
                // A full queue of pongs is a full queue like any other.
                Event::Ping => drop(self.conn.push(Bytes::from_static(PONG), None, false)),
                Event::Broken(_) => broken = true,
            }
            if broken {
                break;
            }
        }
        if self.framer.mid_message(&self.unread) {
            self.began.get_or_insert(now);
        } else {
            self.began = None;
        }
        Counters::add(&self.worker.counters().stream_messages_in, messages.len());
        for some in messages.chunks(BATCH) {
            let batch: SmallVec<[Arrived<'_>; BATCH]> =
                some.iter().map(|bytes| Arrived { origin: self.origin.clone(), bytes }).collect();
            self.worker.messages(now, Some(waited), &batch);
        }
        if broken {
            // The answer to what can still be answered is queued by now.
            self.wind_up(End::Framing);
        }
        messages.len()
    }

    /// A sender that has proved who it is may offer its connection for requests the other way (RFC 5923 §5).
    fn look_for_offer(&mut self, message: &[u8]) {
        if self.offers == 0 || message.starts_with(b"SIP/2.0 ") {
            return;
        }
        self.offers -= 1;
        let Some(via) = top_via(message).filter(|via| via.param(b"alias").is_some()) else { return };
        self.offers = 0;
        let port = via.port().unwrap_or(Transport::Tls.default_port());
        if self.worker.node.pool.offered(&self.conn, port) {
            tracing::debug!(conn = self.conn.id.0, remote = %self.conn.remote, port, "requests may go back on this connection");
        }
    }

    fn end(self, end: End) {
        let counters = self.worker.counters();
        match end {
            End::Framing => counters.drop_one(DropReason::Framing),
            End::MessageTimeout => counters.drop_one(DropReason::MessageTimeout),
            End::Overflow => counters.drop_one(DropReason::SlowReader),
            End::Closed | End::Failed | End::Idle | End::Asked | End::Left => {}
        }
        tracing::debug!(conn = self.conn.id.0, remote = %self.conn.remote, transport = %self.conn.transport, ?end, "connection ended");
        let overflow = end == End::Overflow;
        let Self { worker, conn, stream, taken, sent, .. } = self;
        if end == End::Failed {
            for token in lost(&sent, stream.fate().0, conn.transport) {
                worker.failed(Some(token), SendFailure::Closed { reused: true });
            }
        }
        if overflow {
            stream.abort();
        }
        drop(stream);
        finish(&worker, &conn, taken, |item| {
            if overflow { SendFailure::QueueFull } else { SendFailure::Closed { reused: item.reused } }
        });
    }
}

/// Those of the responses written that lie in the last octets, which nobody has acknowledged.
fn lost(
    sent: &VecDeque<(SendToken, usize)>,
    unacknowledged: usize,
    transport: Transport,
) -> impl Iterator<Item = SendToken> {
    // The records of TLS are longer than what is in them, and its farewell is no message.
    let overhead = if transport == Transport::Tls { 64 } else { 0 };
    let mut left = unacknowledged.saturating_sub(overhead);
    sent.iter().rev().map_while(move |(token, length)| {
        let is_lost = left > 0;
        left = left.saturating_sub(*length);
        is_lost.then_some(*token)
    })
}
