//! When a worker looks at its shard: the grid line that it has announced, and what is due then.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::super::alone::STAY;
use super::super::element::Element;
use super::Worker;

impl<E: Element> Worker<E> {
    /// Before unlocking: fires what is due and tells the shard's worker of an earlier deadline.
    /// `appointed`: we are that worker, and the appointment is made anew, later ones included.
    pub(super) fn leave(&self, shard: usize, element: &mut E, now: Instant, appointed: bool) {
        let mut next = element.poll_timeout();
        if next.is_some_and(|t| t <= now) {
            if catch_unwind(AssertUnwindSafe(|| element.handle_timeout(now))).is_err() {
                self.counters().panics.fetch_add(1, Ordering::Relaxed);
                tracing::error!("the element panicked on a timer");
            }
            self.collect(shard, element, now);
            next = element.poll_timeout();
        }
        let slot = &self.node.slots[shard];
        if appointed {
            let line = next.map_or(u64::MAX, |t| self.node.grid_line(t));
            slot.announced.store(line, Ordering::SeqCst);
        } else if let Some(t) = next {
            let announced = slot.announced.load(Ordering::SeqCst);
            if announced != u64::MAX && t > self.times_of(announced).0 {
                // It will be looked at in time, as mostly.
                return;
            }
            let line = self.node.grid_line(t);
            if line < announced {
                slot.announced.store(line, Ordering::SeqCst);
                // A worker on its own looks at its appointment before it sleeps.
                if shard != self.index || !slot.bell.is_alone() {
                    slot.attend();
                }
            }
        }
    }

    /// The times of the grid line before this one, and of this one: mostly the one that it was before.
    #[inline(always)]
    fn times_of(&self, line: u64) -> (Instant, Instant) {
        if self.line.get().0 != line {
            self.look_up(line);
        }
        let (_, before, at) = self.line.get();
        (before, at)
    }

    #[cold]
    fn look_up(&self, line: u64) {
        let before = self.node.grid_time(line.saturating_sub(1));
        self.line.set((line, before, self.node.grid_time(line)));
    }

    /// Looks at this worker's shard: what others have given it to do, and what is due.
    pub(in super::super) fn keep_appointment(self: &Rc<Self>, now: Instant) {
        let slot = &self.node.slots[self.index];
        {
            let mut element = slot.lock();
            self.collect(self.index, &mut element, now);
            self.leave(self.index, &mut element, now, true);
        }
        self.settle(now);
    }

    /// When this worker's shard wants to be looked at; `None`: never, as things stand.
    pub(in super::super) fn appointment(&self) -> Option<Instant> {
        let line = self.node.slots[self.index].announced.load(Ordering::SeqCst);
        (line != u64::MAX).then(|| self.times_of(line).1)
    }

    /// Whether that time has come.
    pub(in super::super) fn is_due(&self, now: Instant) -> bool {
        self.appointment().is_some_and(|at| at <= now)
    }

    /// Runs the tasks of the event loop until there are none that need it, or the node stops.
    pub(in super::super) async fn stay_with_tasks(self: &Rc<Self>) {
        let mut stop = self.node.stop.subscribe();
        loop {
            tokio::select! {
                _ = stop.wait_for(|stop| *stop) => return,
                () = tokio::time::sleep(STAY) => {}
            }
            if self.busy.get() == 0 {
                return;
            }
        }
    }

    /// Keeps the shard's appointments until the worker ends.
    pub(in super::super) async fn keep_timers(self: Rc<Self>) {
        let slot = &self.node.slots[self.index];
        let sleep = tokio::time::sleep_until((Instant::now() + Duration::from_secs(3600)).into());
        let mut sleep = std::pin::pin!(sleep);
        loop {
            self.keep_appointment(Instant::now());
            match slot.announced.load(Ordering::SeqCst) {
                u64::MAX => slot.wake.notified().await,
                line => {
                    sleep.as_mut().reset(self.node.grid_time(line).into());
                    tokio::select! {
                        () = slot.wake.notified() => {}
                        () = sleep.as_mut() => {}
                    }
                }
            }
        }
    }
}
