//! When a connection is left to a process that takes over: the other end opens a new one, which comes to that.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use crate::flow::SendFailure;

use super::super::carrier::Stream;
use super::super::element::Element;
use super::super::upgrade::beside::Stage;
use super::{Connection, End, LINGER, Phase};

/// As [`LINGER`], where another process takes over: requests that have crossed our farewell are still served.
const FAREWELL: Duration = Duration::from_secs(4);
/// A connection that is to be left is left after so long without traffic.
const QUIET: Duration = Duration::from_millis(200);
/// After so long any moment will do.
const RESTLESS: Duration = Duration::from_secs(5);
/// Between looks whether it may be left.
const LOOK: Duration = Duration::from_millis(20);

/// How long the other end may take to close after we have.
pub(super) fn linger(why: End) -> Duration {
    if why == End::Left { FAREWELL } else { LINGER }
}

impl<E: Element, S: Stream> Connection<E, S> {
    /// Looks again before `deadline`, if another process takes over.
    pub(super) fn next_look(&self, deadline: Instant) -> Instant {
        if self.worker.node.leaving.load(Ordering::Relaxed) {
            deadline.min(Instant::now() + LOOK)
        } else {
            deadline
        }
    }

    /// Another process takes over: whether the other end loses nothing if it has to open a new connection.
    pub(super) fn may_be_left(&mut self) -> bool {
        if !self.worker.node.leaving.load(Ordering::Relaxed) {
            return false;
        }
        let now = Instant::now();
        if self.phase != Phase::Open || self.began.is_some() || !self.unread.is_empty() {
            return false;
        }
        let quiet = now.saturating_duration_since(self.last_traffic);
        let restless = match *self.worker.node.stage.borrow() {
            Stage::Leaving { since } => now.saturating_duration_since(since) >= RESTLESS,
            _ => return false,
        };
        self.owed.is_over(now)
            && self.asked.is_over(now)
            && (quiet >= QUIET || restless)
            && self.taken.is_empty()
            && self.conn.is_flushed()
            && self.stream.queued() == 0
    }

    /// After our farewell: what would still be written finds another way at once (a response by the sent-by of
    /// its Via, RFC 3261 §18.2.2), while what the other end had written before it read of our farewell is still taken.
    /// Writing would fail, and closing for that would destroy what is on its way here.
    pub(super) fn stop_writing(&mut self) {
        let queued = self.conn.close();
        for item in self.taken.drain(..).chain(queued) {
            self.worker.failed(item.token, SendFailure::Closed { reused: true });
        }
        self.worker.settle(Instant::now());
    }

    /// What is read goes to the shards: until the end begins, and after that if requests may have crossed it.
    pub(super) fn takes(&self) -> bool {
        match self.phase {
            Phase::Open => true,
            Phase::Flushing { why, .. } | Phase::Lingering { why, .. } => why == End::Left,
            Phase::HalfClosed { .. } | Phase::Confirming { .. } => false,
        }
    }
}
