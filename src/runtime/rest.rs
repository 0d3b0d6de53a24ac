//! A worker's rests under a steady load, and how many workers share the datagrams.

use std::rc::Rc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use super::driver::Worker;
use super::element::Element;
use super::sys;

impl<E: Element> Worker<E> {
    /// After a turn that emptied a UDP socket of `n` datagrams: true when it is to look again at
    /// once, having rested while more came in.
    pub(super) fn pause(&self, n: usize, now: Instant) -> bool {
        let mut pace = self.pace.borrow_mut();
        let Some(rest) = pace.rest_after(now, n) else { return false };
        // The thread itself: were only the task to wait, the event loop would still be woken by
        // every datagram. The worker's other tasks wait this moment with it.
        std::thread::sleep(rest);
        pace.rested(rest, now, Instant::now());
        true
    }

    /// After a turn that did or did not empty a UDP socket: looks now and then whether datagrams
    /// should go to more workers, or to fewer.
    pub(super) fn balance(&self, emptied: bool, now: Instant) {
        let mut spread = self.spread.borrow_mut();
        let Some(spread) = spread.as_mut() else { return };
        spread.turn_ended(emptied);
        if !spread.is_due(now) {
            return;
        }
        let cores = self.cores.get_or_look(now);
        if let Some(members) = spread.sample(now, sys::thread_time(), cores) {
            for socket in self.udp.iter().flatten() {
                socket.spread_over(members);
            }
            self.counters().udp_workers.store(members as u64, Ordering::Relaxed);
        }
    }

    /// A connection has been emptied of so many messages.
    pub(super) fn emptied(&self, messages: usize) {
        if messages > 0 {
            self.read.set(self.read.get().saturating_add(messages));
            self.emptied.notify_one();
        }
    }

    /// Under a steady load rests between the reads of connections, so that the next messages come, and leave, several
    /// at a time. A task of its own, so its turn comes after those of all connections that had something to read
    /// or to write, and once for all of them.
    pub(super) async fn rest(self: Rc<Self>) {
        loop {
            self.emptied.notified().await;
            // What has been forwarded is written first.
            tokio::task::yield_now().await;
            self.pause(self.read.take(), Instant::now());
        }
    }
}
