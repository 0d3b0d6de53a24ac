//! A worker on its own: while it has no streams and asks nobody for anything, it waits for its sockets
//! itself.
//!
//! The event loop that streams, handshakes and questions to the DNS need costs more for each
//! wake-up than a datagram costs the element. So a worker enters it only while there are such
//! tasks ([`Worker::spawn`] counts them), and otherwise waits with a system call of its own for datagrams, for
//! its shard's next timer, for new connections, and for whoever rings its [`Bell`].

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::io;
use std::rc::Rc;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use mio::unix::SourceFd;
use mio::{Events, Interest, Poll, Token, Waker};
use smallvec::SmallVec;

use super::driver::Worker;
use super::element::Element;
use super::sys::{ErrorReader, RecvBatch};
use super::udp::UdpSocket;

/// How long a worker stays in the event loop at least: tasks come in crowds.
pub(super) const STAY: Duration = Duration::from_millis(20);
/// Events taken at once; more wait for the next call.
const EVENTS: usize = 64;
/// Token of the bell; sockets and listeners have smaller ones.
const BELL: Token = Token(usize::MAX);

/// A wait shorter than this found something there already: it was no idleness.
const BLINK: Duration = Duration::from_micros(100);

thread_local! {
    /// When this thread began to wait, and when it last had nothing to do.
    static IDLE: Cell<(Option<Instant>, Option<Instant>)> = const { Cell::new((None, None)) };
}

/// This thread begins to wait for something to happen.
pub(super) fn wait_begins() {
    IDLE.set((Some(Instant::now()), IDLE.get().1));
}

/// It has happened.
pub(super) fn wait_ends() {
    let (began, idle) = IDLE.get();
    let now = Instant::now();
    let waited = began.map_or(Duration::ZERO, |t| now.saturating_duration_since(t));
    IDLE.set((None, if waited >= BLINK { Some(now) } else { idle }));
}

/// When this thread last had nothing to do: what came before was there no later than that, and was
/// looked at. `None`: never yet.
pub(super) fn last_idle() -> Option<Instant> {
    IDLE.get().1
}

/// Calls a worker that waits on its own.
#[derive(Debug, Default)]
pub(super) struct Bell {
    waker: OnceLock<Waker>,
    /// The worker is on its own: it hears the bell only.
    alone: AtomicBool,
    /// Somebody wants it.
    rung: AtomicBool,
    /// It sleeps, or is about to.
    asleep: AtomicBool,
}

impl Bell {
    /// Has the worker look at its shard. False: it is in the event loop, and is to be told there.
    ///
    /// What it is to find must be written before, under the shard's lock: a worker that goes on its
    /// own says so before it takes that lock.
    pub(super) fn ring(&self) -> bool {
        if !self.alone.load(Ordering::SeqCst) {
            return false;
        }
        self.rung.store(true, Ordering::SeqCst);
        // Either it sees the ring before it sleeps, or we see that it sleeps.
        if self.asleep.swap(false, Ordering::SeqCst)
            && let Some(waker) = self.waker.get()
        {
            // It fails only if the descriptor is gone, and the worker with it.
            let _ = waker.wake();
        }
        true
    }

    /// The worker is on its own.
    pub(super) fn is_alone(&self) -> bool {
        self.alone.load(Ordering::SeqCst)
    }
}

/// What a worker waits with.
pub(super) struct Watch {
    poll: Poll,
    events: Events,
    sockets: Vec<Rc<UdpSocket>>,
    room: Rc<RefCell<RecvBatch>>,
    errors: Rc<RefCell<ErrorReader>>,
}

impl Watch {
    /// For these sockets, and for connections at these listeners (descriptors that live as long).
    pub(super) fn new(
        bell: &Bell,
        sockets: Vec<Rc<UdpSocket>>,
        listeners: &[i32],
        room: Rc<RefCell<RecvBatch>>,
        errors: Rc<RefCell<ErrorReader>>,
    ) -> io::Result<Self> {
        let poll = Poll::new()?;
        let descriptors = sockets.iter().map(|s| s.descriptor()).chain(listeners.iter().copied());
        for (at, fd) in descriptors.enumerate() {
            poll.registry().register(&mut SourceFd(&fd), Token(at), Interest::READABLE)?;
        }
        let waker = Waker::new(poll.registry(), BELL)?;
        let _ = bell.waker.set(waker);
        Ok(Self { poll, events: Events::with_capacity(EVENTS), sockets, room, errors })
    }
}

/// A task that needs the event loop, while it lives.
struct Busy<E: Element>(Rc<Worker<E>>);

impl<E: Element> Drop for Busy<E> {
    fn drop(&mut self) {
        self.0.busy.set(self.0.busy.get().saturating_sub(1));
    }
}

impl<E: Element> Worker<E> {
    /// Starts a task; the worker stays in the event loop until it has ended.
    pub(super) fn spawn(self: &Rc<Self>, task: impl Future<Output = ()> + 'static) {
        self.busy.set(self.busy.get() + 1);
        let busy = Busy(Rc::clone(self));
        tokio::task::spawn_local(async move {
            let _busy = busy;
            task.await;
        });
    }

    /// Serves the sockets until a task needs the event loop, a connection comes, or the node stops.
    pub(super) fn stay_alone(self: &Rc<Self>, watch: &mut Watch) {
        let slot = &self.node.slots[self.index];
        let bell = &slot.bell;
        bell.alone.store(true, Ordering::SeqCst);
        // What happened in the event loop, or just before it was left, is not known here.
        bell.rung.store(true, Ordering::SeqCst);
        let mut ready: SmallVec<[Ready; 8]> = watch.sockets.iter().map(|_| Ready::Perhaps).collect();
        let mut visitor = false;
        loop {
            let mut now = Instant::now();
            if bell.rung.swap(false, Ordering::SeqCst) || self.is_due(now) {
                if *self.node.stop.borrow() {
                    break;
                }
                self.keep_appointment(now);
            }
            if visitor || self.busy.get() > 0 {
                break;
            }
            let mut idle = true;
            for (socket, ready) in watch.sockets.iter().zip(&mut ready) {
                let failed = match ready {
                    Ready::No => continue,
                    Ready::Yes => false,
                    Ready::Perhaps => true,
                };
                let mut room = watch.room.borrow_mut();
                let (drained, after) =
                    socket.turn(self, &mut room, &mut watch.errors.borrow_mut(), failed, now);
                now = after;
                *ready = if drained { Ready::No } else { Ready::Yes };
                idle &= drained;
            }
            bell.asleep.store(true, Ordering::SeqCst);
            let wait = if !idle || bell.rung.load(Ordering::SeqCst) || self.busy.get() > 0 {
                Some(Duration::ZERO)
            } else {
                self.appointment().map(|at| at.saturating_duration_since(now))
            };
            // An error here is a signal, or means that waiting is impossible: looking again is all there is.
            let _ = watch.poll.poll(&mut watch.events, wait);
            bell.asleep.store(false, Ordering::SeqCst);
            for event in &watch.events {
                match ready.get_mut(event.token().0) {
                    Some(ready) if event.is_error() => *ready = Ready::Perhaps,
                    Some(ready @ Ready::No) => *ready = Ready::Yes,
                    Some(_) => {}
                    // A token behind the sockets' is that of a listener.
                    None => visitor |= event.token() != BELL,
                }
            }
        }
        bell.alone.store(false, Ordering::SeqCst);
        // The task that keeps the appointments in the event loop makes them anew.
        slot.attend();
    }
}

/// Whether a socket is to be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ready {
    No,
    Yes,
    /// It may have errors too, or nothing is known of it.
    Perhaps,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_wait_that_lasts_is_idleness() {
        assert_eq!(last_idle(), None);
        wait_begins();
        wait_ends();
        let after_a_blink = last_idle();
        wait_begins();
        std::thread::sleep(BLINK * 2);
        wait_ends();
        let idle = last_idle();
        assert!(idle > after_a_blink && idle <= Some(Instant::now()));
    }

    #[test]
    fn a_bell_is_heard_only_by_who_is_alone_and_rung_once_for_each_sleep() {
        let bell = Bell::default();
        assert!(!bell.ring(), "in the event loop");
        bell.alone.store(true, Ordering::SeqCst);
        assert!(bell.ring() && bell.rung.load(Ordering::SeqCst));
        bell.asleep.store(true, Ordering::SeqCst);
        assert!(bell.ring() && !bell.asleep.load(Ordering::SeqCst), "woken");
    }
}
