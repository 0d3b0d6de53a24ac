//! Bounds for handshakes of connections that others open: how many at a time, how many for one source, how
//! long, and how much of a worker's time.

use std::cell::Cell;
use std::collections::HashMap;
use std::future::{Future, poll_fn};
use std::net::IpAddr;
use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::Poll;
use std::time::{Duration, Instant};

/// Handshakes under way at a time, in the whole node; more connections are closed at once.
pub(in crate::runtime) const MOST: usize = 1024;
/// Those of one source address.
pub(in crate::runtime) const MOST_PER_SOURCE: usize = 128;
/// How long one may take. A round trip takes two or three of the path's delay.
pub(in crate::runtime) const TIMEOUT: Duration = Duration::from_secs(5);

/// Counts handshakes under way.
#[derive(Debug, Default)]
pub(in crate::runtime) struct Gate {
    inside: Mutex<Inside>,
}

#[derive(Debug, Default)]
struct Inside {
    all: usize,
    by_source: HashMap<IpAddr, usize, ahash::RandomState>,
}

/// A handshake under way; leaves when dropped.
#[derive(Debug)]
pub(in crate::runtime) struct Pass {
    gate: Arc<Gate>,
    source: IpAddr,
}

impl Gate {
    /// Lets a handshake begin, if there are not too many.
    pub(in crate::runtime) fn enter(self: &Arc<Self>, source: IpAddr) -> Option<Pass> {
        let mut inside = self.inside.lock().unwrap_or_else(PoisonError::into_inner);
        if inside.all >= MOST || inside.by_source.get(&source).is_some_and(|n| *n >= MOST_PER_SOURCE) {
            return None;
        }
        inside.all += 1;
        *inside.by_source.entry(source).or_default() += 1;
        Some(Pass { gate: Arc::clone(self), source })
    }

    /// Handshakes under way.
    #[cfg(test)]
    pub(in crate::runtime) fn len(&self) -> usize {
        self.inside.lock().unwrap_or_else(PoisonError::into_inner).all
    }
}

impl Drop for Pass {
    fn drop(&mut self) {
        let mut inside = self.gate.inside.lock().unwrap_or_else(PoisonError::into_inner);
        inside.all = inside.all.saturating_sub(1);
        if let Some(n) = inside.by_source.get_mut(&self.source) {
            *n = n.saturating_sub(1);
            if *n == 0 {
                inside.by_source.remove(&self.source);
            }
        }
    }
}

/// When a worker's handshakes may compute again.
///
/// A step of a handshake takes some tenths of a millisecond, so a burst of them would hold up the messages
/// of established connections for long. After each step the others on the worker get their turn first.
#[derive(Debug, Default)]
pub(in crate::runtime) struct Turns {
    not_before: Cell<Option<Instant>>,
}

impl Turns {
    /// Runs a handshake at this turns.
    pub(in crate::runtime) async fn keep<T>(&self, handshake: impl Future<Output = T>) -> T {
        let mut handshake = pin!(handshake);
        poll_fn(|cx| {
            let begun = Instant::now();
            if self.not_before.get().is_some_and(|t| begun < t) {
                // To the end of the worker's queue.
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
            let outcome = handshake.as_mut().poll(cx);
            let now = Instant::now();
            self.not_before.set(Some(now + (now - begun) / 4));
            outcome
        })
        .await
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn one_source_cannot_take_all_places_and_all_of_them_not_more_than_there_are() {
        let gate = Arc::new(Gate::default());
        let source = |n: u32| IpAddr::from(std::net::Ipv4Addr::from(n));
        let mut inside: Vec<Pass> = (0..1000).filter_map(|_| gate.enter(source(1))).collect();
        assert_eq!(inside.len(), MOST_PER_SOURCE);
        assert!(gate.enter(source(2)).is_some());
        inside.extend((2..5000).filter_map(|n| gate.enter(source(n))));
        assert_eq!((inside.len(), gate.len()), (MOST, MOST));
        drop(inside.pop());
        assert!(gate.enter(source(1)).is_none(), "still too many of this one");
        assert!(gate.enter(source(9999)).is_some());
        drop(inside);
        assert_eq!(gate.len(), 0);
        assert!(gate.inside.lock().unwrap().by_source.is_empty());
    }

    #[tokio::test]
    async fn a_step_of_another_handshake_waits_for_its_turn() {
        let turns = Turns::default();
        let until = Instant::now() + Duration::from_millis(20);
        turns.not_before.set(Some(until));
        let at = turns.keep(async { Instant::now() }).await;
        assert!(at >= until);
    }
}
