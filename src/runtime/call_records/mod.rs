//! Call records: one line of JSON for each call, written by a thread of its own.
//!
//! Workers hand events over through a bounded queue and never wait: what finds it full is dropped and counted. The
//! writer looks into the queue at fixed times, so that nobody has to wake it, and whatever the disk does to it stays
//! with it.

mod line;
mod open;
mod sink;
#[cfg(test)]
mod tests;

use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{JoinHandle, park_timeout};
use std::time::{Duration, Instant, SystemTime};

use arc_swap::ArcSwap;

use crate::config::Records;
use crate::proxy::Policy;
use crate::shard::{CallEnd, CallEvent};

use open::Open;
use sink::Sink;

/// How often the writer looks into the queue.
const LOOK: Duration = Duration::from_millis(100);
/// How long the end of the node waits for what is queued to be written.
const LAST_WORDS: Duration = Duration::from_secs(2);

/// Why a node with `[records]` could not be started.
#[derive(Debug, thiserror::Error)]
pub enum RecordsError {
    /// The file.
    #[error("[records] output: {path}: {cause}")]
    File {
        /// Which.
        path: PathBuf,
        /// Why.
        cause: io::Error,
    },
    /// The thread, or the standard output.
    #[error("[records]: {0}")]
    Other(io::Error),
}

/// What has become of the records.
#[derive(Debug, Default)]
pub struct Counts {
    written: AtomicU64,
    dropped: AtomicU64,
    failed: AtomicU64,
    ends_lost: AtomicU64,
    open: AtomicU64,
}

impl Counts {
    /// Lines by what became of them: `written`; `dropped`, as the queue was full; `failed`, as they could not be written.
    pub fn outcomes(&self) -> [(&'static str, u64); 3] {
        let read = |n: &AtomicU64| n.load(Ordering::Relaxed);
        [("written", read(&self.written)), ("dropped", read(&self.dropped)), ("failed", read(&self.failed))]
    }

    /// Ends of calls that found the queue full; the lines of those calls do not tell their end.
    pub fn ends_lost(&self) -> u64 {
        self.ends_lost.load(Ordering::Relaxed)
    }

    /// Answered calls whose line waits for their end.
    pub fn open(&self) -> u64 {
        self.open.load(Ordering::Relaxed)
    }
}

/// Where workers hand events over.
#[derive(Clone, Debug)]
pub(super) struct Offer {
    queue: SyncSender<CallEvent>,
    counts: Arc<Counts>,
}

impl Offer {
    /// Hands an event over, or drops and counts it. Never waits: may be called with a shard locked, which keeps the
    /// events of a call in their order.
    pub(super) fn offer(&self, event: CallEvent) {
        let lost = match &event {
            CallEvent::Final { .. } => &self.counts.dropped,
            CallEvent::Ended { .. } => &self.counts.ends_lost,
        };
        if self.queue.try_send(event).is_err() {
            lost.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// What the writer is told beside the queue.
struct Orders {
    policy: ArcSwap<Policy>,
    reopen: AtomicBool,
    stop: AtomicBool,
}

/// The call records of a node. Dropping it writes what is queued and the calls that are still up, and waits for
/// that two seconds at most.
pub struct CallRecords {
    offer: Offer,
    orders: Arc<Orders>,
    /// The thread, and what tells of its end; in a lock for being shared only.
    writer: Mutex<Option<(JoinHandle<()>, Receiver<()>)>>,
}

impl CallRecords {
    /// Opens the output and starts the writer.
    ///
    /// # Errors
    /// The file cannot be opened, or there is no thread.
    pub fn start(settings: &Records, policy: Arc<Policy>) -> Result<Self, RecordsError> {
        let counts: Arc<Counts> = Arc::default();
        let sink = Sink::new(settings, Arc::clone(&counts))?;
        let (queue, events) = sync_channel(settings.queue);
        let orders = Arc::new(Orders {
            policy: ArcSwap::new(policy),
            reopen: AtomicBool::new(false),
            stop: AtomicBool::new(false),
        });
        let mut writer = Writer {
            events,
            most: settings.queue,
            orders: Arc::clone(&orders),
            open: Open::new(settings.max_open),
            sink,
            counts: Arc::clone(&counts),
        };
        // Told by the drop of the sender, however the thread ends.
        let (ends, done) = sync_channel(1);
        let writer = std::thread::Builder::new()
            .name("sbe-records".to_owned())
            .spawn(move || {
                writer.run();
                drop(ends);
            })
            .map_err(RecordsError::Other)?;
        Ok(Self { offer: Offer { queue, counts }, orders, writer: Mutex::new(Some((writer, done))) })
    }

    pub(super) fn offers(&self) -> Offer {
        self.offer.clone()
    }

    /// What has become of the records so far.
    pub fn counts(&self) -> &Counts {
        &self.offer.counts
    }

    /// Opens the file anew before the next line: it may have been moved away.
    pub fn reopen(&self) {
        self.orders.reopen.store(true, Ordering::Release);
    }

    /// The names of peers from now on.
    pub fn set_policy(&self, policy: Arc<Policy>) {
        self.orders.policy.store(policy);
    }
}

impl Drop for CallRecords {
    fn drop(&mut self) {
        self.orders.stop.store(true, Ordering::Release);
        let writer = self.writer.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        let Some((writer, done)) = writer else { return };
        writer.thread().unpark();
        if done.recv_timeout(LAST_WORDS) == Err(std::sync::mpsc::RecvTimeoutError::Timeout) {
            // It hangs in a write, and would hold up the end.
            tracing::error!("call records: the output takes nothing, what was queued is lost");
        } else if writer.join().is_err() {
            tracing::error!("the writer of call records had panicked");
        }
    }
}

/// The wall clock's time of a moment near this one. Taken anew for each look, so that it follows a clock that is set.
#[derive(Clone, Copy)]
struct Clock(Instant, SystemTime);

impl Clock {
    fn now() -> Self {
        Self(Instant::now(), SystemTime::now())
    }

    fn wall(&self, at: Instant) -> SystemTime {
        match at.checked_duration_since(self.0) {
            Some(after) => self.1 + after,
            None => self.1 - self.0.saturating_duration_since(at),
        }
    }
}

/// The thread that writes.
struct Writer {
    events: Receiver<CallEvent>,
    /// Events taken before looking up from the queue.
    most: usize,
    orders: Arc<Orders>,
    open: Open,
    sink: Sink,
    counts: Arc<Counts>,
}

impl Writer {
    fn run(&mut self) {
        loop {
            // Before the look into the queue: what was offered before the order to stop is written.
            let stop = self.orders.stop.load(Ordering::Acquire);
            if self.orders.reopen.swap(false, Ordering::AcqRel) {
                self.sink.reopen();
            }
            let (policy, clock) = (self.orders.policy.load_full(), Clock::now());
            let mut taken = 0;
            while taken < self.most
                && let Ok(event) = self.events.try_recv()
            {
                taken += 1;
                self.take(event, &policy, clock);
            }
            if stop {
                for line in self.open.take_all() {
                    self.sink.line(&line.finished("stopped", None));
                }
            }
            self.sink.flush();
            self.counts.open.store(u64::try_from(self.open.len()).unwrap_or(0), Ordering::Relaxed);
            if stop {
                return;
            }
            if taken < self.most {
                park_timeout(LOOK);
            }
        }
    }

    fn take(&mut self, event: CallEvent, policy: &Policy, clock: Clock) {
        match event {
            CallEvent::Final { call, record } => {
                let line = line::begun(&record, policy, clock);
                match call {
                    Some(call) => {
                        if let Some(oldest) = self.open.add(call, line) {
                            self.sink.line(&oldest.finished("unknown", None));
                        }
                    }
                    None => self.sink.line(&line.finished("", None)),
                }
            }
            CallEvent::Ended { call, at, how } => {
                // An aged call was not seen to end: when it did is not known.
                let end = (how == CallEnd::Bye).then(|| (at, clock.wall(at)));
                for line in self.open.take(call) {
                    self.sink.line(&line.finished(how.label(), end));
                }
            }
        }
    }
}
