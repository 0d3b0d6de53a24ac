//! Captures on demand: the messages of some calls, or all, as pcapng.
//!
//! While none runs there is no thread and no copy ([`super::tap`]). The first one starts a thread that parses copies, asks each
//! capture's [`Filter`], and keeps what is wanted in that capture's ring, where readers find it, during the capture and after.

mod filter;
mod pcapng;
mod ring;
#[cfg(test)]
mod tests;
mod writer;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

pub use filter::Filter;
pub use ring::{Capture, Reader, State};

use super::node::Node;
use super::tap::Tap;

/// Captures kept, those that are over included; of these the oldest goes for a new one.
pub const MAX_CAPTURES: usize = 8;
/// What is over is forgotten after this.
pub const KEPT: Duration = Duration::from_secs(3600);
/// Least, usual and most octets of a ring.
pub const OCTETS: [usize; 3] = [64 << 10, 16 << 20, 64 << 20];
/// Least, usual and most time of a capture.
pub const TIME: [Duration; 3] =
    [Duration::from_secs(1), Duration::from_secs(300), Duration::from_secs(24 * 3600)];

/// What is asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// Which calls.
    pub filter: Filter,
    /// The same in words, for lists.
    pub words: Vec<(&'static str, String)>,
    /// How long.
    pub time: Duration,
    /// Octets kept; the oldest go first.
    pub octets: usize,
    /// It ends after so many messages.
    pub packets: Option<u64>,
    /// It ends when nobody follows it any more.
    pub attached: bool,
}

/// Why a capture is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// Its time has run out.
    Time,
    /// It has as many messages as were asked for.
    Packets,
    /// Who followed it has gone.
    Unattended,
    /// Somebody stopped it.
    Stopped,
    /// The node ends.
    Shutdown,
}

impl End {
    /// A fixed word.
    pub const fn label(self) -> &'static str {
        match self {
            End::Time => "time",
            End::Packets => "packets",
            End::Unattended => "unattended",
            End::Stopped => "stopped",
            End::Shutdown => "shutdown",
        }
    }
}

/// Why there is no new capture.
#[derive(Debug, thiserror::Error)]
pub enum CaptureError {
    /// All places are taken by captures that run.
    #[error("{MAX_CAPTURES} captures are running: stop one")]
    TooMany,
    /// The system has no thread.
    #[error("no thread: {0}")]
    Thread(std::io::Error),
}

/// What has become of messages.
#[derive(Debug, Default)]
pub struct Counts {
    kept: AtomicU64,
    overwritten: AtomicU64,
    too_large: AtomicU64,
    /// Shared with the queue.
    dropped: Arc<AtomicU64>,
}

impl Counts {
    /// Messages by what became of them.
    pub fn outcomes(&self) -> [(&'static str, u64); 4] {
        let read = |n: &AtomicU64| n.load(Ordering::Relaxed);
        [
            ("kept", read(&self.kept)),
            ("overwritten", read(&self.overwritten)),
            ("dropped", read(&self.dropped)),
            ("too_large", read(&self.too_large)),
        ]
    }
}

/// All captures of a node.
#[derive(Debug)]
pub struct Captures(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    tap: Arc<Tap>,
    counts: Counts,
    stop: AtomicBool,
    state: Mutex<All>,
}

#[derive(Debug, Default)]
struct All {
    /// Oldest first.
    captures: Vec<Arc<Capture>>,
    last: u64,
    writer: Option<JoinHandle<()>>,
}

impl Shared {
    fn all(&self) -> MutexGuard<'_, All> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Captures {
    pub(super) fn new(tap: Arc<Tap>) -> Self {
        Self(Arc::new(Shared {
            tap,
            counts: Counts::default(),
            stop: AtomicBool::new(false),
            state: Mutex::default(),
        }))
    }

    /// Begins one. `node`: tells whose the addresses are.
    ///
    /// # Errors
    /// There are too many, or there is no thread for the first.
    pub fn start(&self, node: &Arc<Node>, wanted: Wanted) -> Result<Arc<Capture>, CaptureError> {
        self.begin(Arc::downgrade(node), wanted)
    }

    fn begin(&self, node: Weak<Node>, wanted: Wanted) -> Result<Arc<Capture>, CaptureError> {
        let mut all = self.0.all();
        forget(&mut all, Instant::now());
        if all.captures.len() >= MAX_CAPTURES {
            let over = all.captures.iter().position(|c| !c.is_running()).ok_or(CaptureError::TooMany)?;
            all.captures.remove(over);
        }
        if all.writer.as_ref().is_none_or(JoinHandle::is_finished) {
            let writer = writer::Writer::new(Arc::clone(&self.0), node);
            let thread = std::thread::Builder::new().name("sbe-capture".to_owned()).spawn(|| writer.run());
            all.writer = Some(thread.map_err(|error| {
                self.0.tap.close(writer::NAME);
                CaptureError::Thread(error)
            })?);
        }
        all.last += 1;
        let capture = Arc::new(Capture::new(all.last, wanted, Instant::now()));
        all.captures.push(Arc::clone(&capture));
        Ok(capture)
    }

    /// All of them, oldest first.
    pub fn list(&self) -> Vec<Arc<Capture>> {
        let mut all = self.0.all();
        forget(&mut all, Instant::now());
        all.captures.clone()
    }

    /// One of them.
    pub fn get(&self, id: u64) -> Option<Arc<Capture>> {
        self.list().into_iter().find(|c| c.id == id)
    }

    /// Ends one and forgets it. False: there is none of this number.
    pub fn remove(&self, id: u64) -> bool {
        let mut all = self.0.all();
        let Some(at) = all.captures.iter().position(|c| c.id == id) else { return false };
        let capture = all.captures.remove(at);
        drop(all);
        capture.end(End::Stopped, Instant::now());
        true
    }

    /// What has become of messages.
    pub fn counts(&self) -> &Counts {
        &self.0.counts
    }
}

impl Drop for Captures {
    fn drop(&mut self) {
        self.0.stop.store(true, Ordering::Release);
        let Some(writer) = self.0.all().writer.take() else { return };
        writer.thread().unpark();
        // The writer itself may have been the node's last owner.
        if writer.thread().id() != std::thread::current().id() && writer.join().is_err() {
            tracing::error!("the writer of captures had panicked");
        }
    }
}

/// Lets go of what was over long ago, and of what its only reader has left.
fn forget(all: &mut All, now: Instant) {
    all.captures.retain(|c| {
        c.state()
            .ended
            .is_none_or(|(why, at)| why != End::Unattended && now.saturating_duration_since(at) < KEPT)
    });
}
