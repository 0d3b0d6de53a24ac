//! UDP: datagrams in batches, and ICMP errors from the error queue.
//!
//! A wake-up costs more than several datagrams, so a turn takes what is there (up to a few
//! batches), works through it, and sends what came of it in batches too. The socket is watched for
//! reading and errors only: watching for writability as well would wake the worker for every
//! datagram that leaves the send buffer.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::io;
use std::net::{SocketAddr, UdpSocket as StdSocket};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::rc::Rc;
use std::sync::PoisonError;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use bytes::Bytes;
use smallvec::SmallVec;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use crate::flow::{ListenerId, Origin, SendFailure, Transport};
use crate::shard::io::SendToken;

use super::counters::{Counters, DropReason};
use super::driver::{Arrived, Worker};
use super::element::Element;
use super::sys::{self, BATCH, DATAGRAM, ErrorReader, RUN, Received, RecvBatch};

/// Datagrams waiting for room in the send buffer, per socket and kind.
const SEND_QUEUE: usize = 4096;
/// Longer queues stay in their order: they have waited for room, and sorting them would cost more than it saves.
const GROUPED: usize = 2 * BATCH;
/// Batches taken before other tasks of the worker get their turn.
const BATCHES_PER_TURN: usize = 4;
/// Error queue entries taken before other tasks get their turn.
const ERRORS_PER_TURN: usize = 256;

/// What is sent in a turn goes in this order, over all sockets: once a request is out, its answer
/// may come back to another worker and be passed on, and a 100 of ours must not come after it.
#[derive(Clone, Copy)]
pub(super) enum Kind {
    Answers,
    Requests,
}

/// A datagram to send.
struct Datagram {
    to: SocketAddr,
    bytes: Bytes,
    token: Option<SendToken>,
}

/// One worker's socket of one UDP listener.
pub(super) struct UdpSocket {
    listener: ListenerId,
    local: SocketAddr,
    fd: AsyncFd<OwnedFd>,
    answers: RefCell<VecDeque<Datagram>>,
    requests: RefCell<VecDeque<Datagram>>,
    /// The send buffer is full and somebody waits for room in it.
    blocked: Cell<bool>,
    /// Datagrams up to this length may be parts of runs. What the kernel or a device refuses lowers it.
    longest_part: Cell<usize>,
}

impl<E: Element> Worker<E> {
    /// These datagrams have been sent in runs of these lengths.
    fn sent_in_runs(&self, runs: impl Iterator<Item = usize>, mut sent: impl Iterator<Item = Datagram>) {
        for others in runs.map(|n| n.saturating_sub(1)) {
            let Some(first) = sent.next() else { return };
            if others > 0 {
                Counters::add(&self.counters().datagram_runs, 1);
                let tokens = sent.by_ref().take(others).filter_map(|d| d.token).collect();
                let mut kept =
                    self.node.slots[self.index].runs.lock().unwrap_or_else(PoisonError::into_inner);
                kept.remember(first.to, first.bytes, tokens);
            }
        }
    }
}

impl UdpSocket {
    /// Takes a bound, non-blocking socket into the current worker's event loop.
    pub(super) fn new(listener: ListenerId, socket: StdSocket) -> io::Result<Rc<Self>> {
        let local = socket.local_addr()?;
        let fd = sys::watch(socket.into(), Interest::READABLE | Interest::ERROR)?;
        Ok(Rc::new(Self {
            listener,
            local,
            fd,
            answers: RefCell::default(),
            requests: RefCell::default(),
            blocked: Cell::new(false),
            longest_part: Cell::new(RUN),
        }))
    }

    /// For watching it.
    pub(super) fn descriptor(&self) -> i32 {
        self.fd.get_ref().as_raw_fd()
    }

    /// Queues a datagram until the turn's end, and tells its kind; `None`: dropped, the queue is full.
    pub(super) fn queue(&self, to: SocketAddr, bytes: Bytes, token: Option<SendToken>) -> Option<Kind> {
        let kind = if bytes.starts_with(b"SIP/2.0 ") { Kind::Answers } else { Kind::Requests };
        let mut queue = self.of(kind).borrow_mut();
        if queue.len() >= SEND_QUEUE {
            return None;
        }
        queue.push_back(Datagram { to, bytes, token });
        Some(kind)
    }

    fn of(&self, kind: Kind) -> &RefCell<VecDeque<Datagram>> {
        match kind {
            Kind::Answers => &self.answers,
            Kind::Requests => &self.requests,
        }
    }

    /// Sends what is queued of one kind. Failures are told at the worker's next settling.
    #[inline]
    pub(super) fn flush<E: Element>(socket: &Rc<Self>, kind: Kind, worker: &Rc<Worker<E>>) {
        let queue = socket.of(kind);
        if socket.blocked.get() {
            return;
        }
        let mut datagrams = queue.borrow_mut();
        let sent = match datagrams.front() {
            None => return,
            // One alone, as mostly while little is going on. What fails is tried again below.
            Some(one) if datagrams.len() == 1 => {
                sys::send_one(socket.fd.get_ref().as_fd(), one.to, &one.bytes).is_ok()
            }
            Some(_) => false,
        };
        if sent {
            datagrams.clear();
            Counters::add(&worker.counters().datagrams_out, 1);
        } else {
            drop(datagrams);
            Self::flush_some(socket, queue, worker);
        }
    }

    #[inline(never)]
    fn flush_some<E: Element>(
        socket: &Rc<Self>,
        queue: &RefCell<VecDeque<Datagram>>,
        worker: &Rc<Worker<E>>,
    ) {
        let mut queue = queue.borrow_mut();
        let mut sent = 0;
        // The first datagram's failure may be the echo of an ICMP error for an earlier one, which
        // the kernel reports once to whoever calls next: so each gets a second try.
        let mut tried = false;
        // A run has failed twice: each goes alone.
        let mut alone = false;
        group(queue.make_contiguous());
        while let Some(first) = queue.front() {
            let fd = socket.fd.get_ref().as_fd();
            let mut batch = worker.send_batch.borrow_mut();
            let single = queue.len() == 1;
            let result = if single {
                sys::send_one(fd, first.to, &first.bytes).map(|()| 1)
            } else {
                let runs = !alone && worker.counters().segmentation.load(Ordering::Relaxed);
                let part = if runs { socket.longest_part.get() } else { 0 };
                batch.send(fd, part, queue.iter().map(|d| (d.to, &d.bytes[..])))
            };
            match result {
                Ok(1) => {
                    sent += 1;
                    tried = false;
                    drop(queue.pop_front());
                }
                Ok(n) => {
                    sent += n;
                    tried = false;
                    if batch.sent_runs().len() == n {
                        drop(queue.drain(..n));
                    } else {
                        worker.sent_in_runs(batch.sent_runs(), queue.drain(..n));
                    }
                }
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                    socket.wait_for_room(worker);
                    break;
                }
                Err(_) if !tried => tried = true,
                Err(e) if !single && !alone && batch.first_run() > 1 => {
                    alone = true;
                    tried = false;
                    if let Some(longest) = longest_part_after(&e, first.bytes.len()) {
                        socket.longest_part.set(longest.min(socket.longest_part.get()));
                    }
                }
                Err(e) => {
                    tried = false;
                    if let Some(failed) = queue.pop_front() {
                        let failure = classify(&e);
                        let oversize = failure == SendFailure::TooLarge;
                        let reason = if oversize { DropReason::Oversize } else { DropReason::Unsendable };
                        worker.counters().drop_one(reason);
                        worker.failed(failed.token, failure);
                    }
                }
            }
        }
        Counters::add(&worker.counters().datagrams_out, sent);
    }

    /// Flushes again once the send buffer has room. Rare, so it watches a duplicate of the
    /// descriptor for as long as it takes.
    fn wait_for_room<E: Element>(self: &Rc<Self>, worker: &Rc<Worker<E>>) {
        self.blocked.set(true);
        let (socket, whose) = (Rc::clone(self), worker);
        let worker = Rc::clone(whose);
        let task = async move {
            if socket.room().await.is_err() {
                // No descriptor to watch with: look again in a moment.
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
            socket.blocked.set(false);
            for kind in [Kind::Answers, Kind::Requests] {
                worker.unsent(kind).set(true);
            }
            worker.settle(Instant::now());
        };
        whose.spawn(task);
    }

    async fn room(&self) -> io::Result<()> {
        let twin: OwnedFd = self.fd.get_ref().as_fd().try_clone_to_owned()?;
        let twin = sys::watch(twin, Interest::WRITABLE)?;
        twin.writable().await?.retain_ready();
        Ok(())
    }

    /// Lets the first `members` workers have this listener's datagrams.
    pub(super) fn spread_over(&self, members: usize) {
        if let Err(e) = sys::spread_evenly(self.fd.get_ref().as_fd(), members) {
            tracing::warn!(listener = self.listener.0, error = %e, "cannot spread datagrams anew");
        }
    }

    /// Receives until the worker ends.
    pub(super) async fn receive<E: Element>(
        self: Rc<Self>,
        worker: Rc<Worker<E>>,
        room: Rc<RefCell<RecvBatch>>,
        errors: Rc<RefCell<ErrorReader>>,
    ) {
        worker.until_reading().await;
        loop {
            let Ok(mut guard) = self.fd.ready(Interest::READABLE | Interest::ERROR).await else {
                return;
            };
            let failed = guard.ready().is_error();
            let now = Instant::now();
            if self.turn(&worker, &mut room.borrow_mut(), &mut errors.borrow_mut(), failed, now).0 {
                guard.clear_ready();
                drop(guard);
            } else {
                drop(guard);
                tokio::task::yield_now().await;
            }
        }
    }

    /// Takes a turn's worth of datagrams, and of errors where there may be some (`failed`). True: there are no
    /// more for now; with the time at the end.
    pub(super) fn turn<E: Element>(
        &self,
        worker: &Rc<Worker<E>>,
        room: &mut RecvBatch,
        errors: &mut ErrorReader,
        failed: bool,
        now: Instant,
    ) -> (bool, Instant) {
        Counters::add(&worker.counters().udp_wakeups, 1);
        let mut drained = true;
        if failed {
            drained = self.take_errors(worker, errors);
        }
        let (taken, empty) = self.take_datagrams(worker, room, errors, failed, now);
        let after = Instant::now();
        worker.balance(empty, after);
        (drained && empty && !worker.pause(taken, after), after)
    }

    /// Takes a turn's worth of datagrams; returns how many, and true when none are left.
    fn take_datagrams<E: Element>(
        &self,
        worker: &Rc<Worker<E>>,
        room: &mut RecvBatch,
        errors: &mut ErrorReader,
        failed: bool,
        mut now: Instant,
    ) -> (usize, bool) {
        let wildcard = self.local.ip().is_unspecified();
        let (mut taken, mut failures) = (0, 0);
        for batch in 0..BATCHES_PER_TURN {
            if batch > 0 {
                now = Instant::now();
            }
            match room.receive(self.fd.get_ref().as_fd(), wildcard) {
                Ok(n) => {
                    taken += n;
                    self.work_through(worker, room, n, now);
                    // A short batch means an empty queue, unless it ended at a pending error.
                    if room.drained() && !failed {
                        return (taken, true);
                    }
                }
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return (taken, true),
                // An ICMP error of the past, reported here too: its story is in the error queue.
                Err(_) => {
                    failures += 1;
                    self.take_errors(worker, errors);
                }
            }
        }
        // Nothing but failures: no error of the past, then, and asking again at once would spin.
        (taken, failures == BATCHES_PER_TURN)
    }

    fn work_through<E: Element>(&self, worker: &Rc<Worker<E>>, room: &RecvBatch, n: usize, now: Instant) {
        let counters = worker.counters();
        Counters::add(&counters.datagrams_in, n);
        let arrived = |i| self.arrived(room.get(i)?, counters);
        if n == 1 {
            if let Some(message) = arrived(0) {
                // One with nothing behind it is no queue; it can have waited for the rest of this turn at most.
                worker.messages(now, Some(Duration::ZERO), std::slice::from_ref(&message));
            }
            return;
        }
        let mut batch: SmallVec<[Arrived<'_>; BATCH]> = SmallVec::new();
        batch.extend((0..n).filter_map(arrived));
        if !batch.is_empty() {
            worker.messages(now, room.waited(), &batch);
        }
    }

    /// A datagram with where it came from; `None`, and counted: it is too large.
    #[inline]
    fn arrived<'a>(&self, datagram: Received<'a>, counters: &Counters) -> Option<Arrived<'a>> {
        if datagram.truncated || datagram.bytes.len() >= DATAGRAM {
            counters.drop_one(DropReason::Oversize);
            return None;
        }
        let local = datagram.local.map_or(self.local, |ip| SocketAddr::new(ip, self.local.port()));
        let origin = Origin {
            transport: Transport::Udp,
            listener: self.listener,
            remote: datagram.remote,
            local,
            conn: None,
            identity: None,
        };
        Some(Arrived { origin, bytes: datagram.bytes })
    }

    /// Takes entries off the error queue; true when none are left.
    fn take_errors<E: Element>(&self, worker: &Rc<Worker<E>>, errors: &mut ErrorReader) -> bool {
        let now = Instant::now();
        let mut drained = false;
        let mut taken = 0;
        while taken < ERRORS_PER_TURN {
            match errors.next(self.fd.get_ref().as_fd()) {
                Ok(Some(error)) => {
                    taken += 1;
                    if error.unreachable && !error.payload.is_empty() {
                        worker.undeliverable(now, error.to, error.payload);
                    }
                }
                Ok(None) => taken += 1,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                // Empty, or a queue that cannot be read: waiting is all that is left.
                Err(_) => {
                    drained = true;
                    break;
                }
            }
        }
        Counters::add(&worker.counters().icmp_errors, taken);
        worker.settle(now);
        drained
    }
}

/// Brings together what goes to one place, where runs can be made of it. What goes to one place keeps its order.
fn group(queue: &mut [Datagram]) {
    if queue.len() <= GROUPED && !queue.is_sorted_by_key(|d| d.to) {
        queue.sort_by_key(|d| d.to);
    }
}

/// How long the parts of runs may be after one with parts of this length was refused; `None`: it was not because of
/// the run.
fn longest_part_after(error: &io::Error, part: usize) -> Option<usize> {
    match error.raw_os_error() {
        // Longer than the path takes in one packet, or a kernel that knows no runs.
        Some(libc::EINVAL | libc::EMSGSIZE) => Some(part.saturating_sub(1)),
        // A way out that cannot divide them, for want of a checksum in hardware or under IPsec.
        Some(libc::EIO | libc::EOPNOTSUPP | libc::ENOPROTOOPT) => Some(0),
        _ => None,
    }
}

/// What a failed send means for the transaction.
fn classify(error: &io::Error) -> SendFailure {
    match error.raw_os_error() {
        Some(libc::EMSGSIZE) => SendFailure::TooLarge,
        Some(libc::ECONNREFUSED | libc::EHOSTUNREACH | libc::EHOSTDOWN | libc::ENETUNREACH) => {
            SendFailure::Icmp
        }
        _ => SendFailure::Local,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_send_error_says_whose_fault_it_is() {
        let of = |code| classify(&io::Error::from_raw_os_error(code));
        assert_eq!(of(libc::EMSGSIZE), SendFailure::TooLarge);
        assert_eq!(of(libc::EHOSTUNREACH), SendFailure::Icmp);
        assert_eq!(of(libc::EPERM), SendFailure::Local);
    }
}
