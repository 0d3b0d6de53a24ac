//! Where an upgrade is asked for, and what became of those before; the node's part in it.

use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::{mpsc, oneshot};

use super::super::node::Node;
use super::beside::Stage;
use super::channel::{Left, Word};
use super::{Estate, Predecessor, Program, Successor, UpgradeError, launch};

/// What became of an upgrade; the label of `sbe_upgrades_total`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum Outcome {
    /// Another process has taken over.
    Ok,
    /// It could not.
    Failed,
    /// It was not tried: draining, or another one is not over.
    Refused,
    /// It had taken over, and ended unasked before this process did, which has everything again.
    Returned,
}

impl Outcome {
    /// All of them.
    pub const ALL: [Outcome; 4] = [Outcome::Ok, Outcome::Failed, Outcome::Refused, Outcome::Returned];

    /// The value of the metric's label.
    pub const fn label(self) -> &'static str {
        match self {
            Outcome::Ok => "ok",
            Outcome::Failed => "failed",
            Outcome::Refused => "refused",
            Outcome::Returned => "returned",
        }
    }
}

/// Another process has taken over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Upgraded {
    /// Its number.
    pub pid: u32,
    /// Its generation.
    pub generation: u32,
}

/// Somebody wants an upgrade, and is to be told what became of it.
pub type Request = oneshot::Sender<Result<Upgraded, UpgradeError>>;

/// An upgrade is under way for as long as somebody waits for it.
struct Busy<'a>(&'a AtomicBool);

impl Drop for Busy<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::SeqCst);
    }
}

/// Of one node.
#[derive(Debug, Default)]
pub struct Desk {
    requests: Mutex<Option<mpsc::Sender<Request>>>,
    /// One is under way.
    busy: AtomicBool,
    outcomes: [AtomicU64; Outcome::ALL.len()],
    /// How many processes there were before this one.
    before: AtomicU32,
    /// 0: none, or it has ended.
    predecessor: AtomicU32,
    successor: AtomicU32,
}

fn number(pid: &AtomicU32) -> Option<u32> {
    Some(pid.load(Ordering::Relaxed)).filter(|pid| *pid != 0)
}

impl Desk {
    pub(in crate::runtime) fn new(predecessor: Option<&Predecessor>) -> Self {
        let desk = Self::default();
        if let Some(before) = predecessor {
            desk.before.store(before.generation, Ordering::Relaxed);
            desk.predecessor.store(before.pid, Ordering::Relaxed);
        }
        desk
    }

    /// 1 for a process that was started afresh, and one more after each upgrade.
    pub fn generation(&self) -> u32 {
        self.before.load(Ordering::Relaxed).saturating_add(1)
    }

    /// The process that this one takes over from, until that has ended.
    pub fn predecessor(&self) -> Option<u32> {
        number(&self.predecessor)
    }

    /// The process that has taken over from this one.
    pub fn successor(&self) -> Option<u32> {
        number(&self.successor)
    }

    /// How many upgrades have ended so.
    pub fn count(&self, outcome: Outcome) -> u64 {
        self.outcomes.get(outcome as usize).map_or(0, |n| n.load(Ordering::Relaxed))
    }

    fn ended(&self, outcome: Outcome) {
        if let Some(n) = self.outcomes.get(outcome as usize) {
            n.fetch_add(1, Ordering::Relaxed);
        }
    }
}

impl Node {
    /// Where requests for an upgrade arrive, for whoever carries them out: one at a time.
    pub fn upgrade_requests(&self) -> mpsc::Receiver<Request> {
        let (sender, receiver) = mpsc::channel(1);
        *self.desk().requests.lock().unwrap_or_else(PoisonError::into_inner) = Some(sender);
        receiver
    }

    /// Lets another process take over: the program that is found where this one was started from.
    ///
    /// # Errors
    /// It cannot now, or the other one could not serve. Nothing has changed then.
    pub async fn upgrade(&self) -> Result<Upgraded, UpgradeError> {
        let refused = |why: &str| UpgradeError::Refused(why.to_owned());
        let desk = self.desk();
        let requests = desk.requests.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let outcome = match (self.unfit(), requests) {
            (Some(why), _) => Err(UpgradeError::Refused(why)),
            (None, None) => Err(refused("this node was not started as a program of its own")),
            (None, Some(_)) if desk.busy.swap(true, Ordering::SeqCst) => {
                Err(refused("another upgrade is under way"))
            }
            (None, Some(requests)) => {
                let _busy = Busy(&desk.busy);
                let (reply, answer) = oneshot::channel();
                match requests.try_send(reply) {
                    Ok(()) => answer.await.unwrap_or_else(|_| Err(refused("this node is about to end"))),
                    Err(_) => Err(refused("another upgrade is under way")),
                }
            }
        };
        match &outcome {
            Ok(Upgraded { pid, generation }) => {
                desk.ended(Outcome::Ok);
                tracing::info!(successor = pid, generation, "another process has taken over");
            }
            Err(UpgradeError::Refused(why)) => {
                desk.ended(Outcome::Refused);
                tracing::warn!("no upgrade: {why}");
            }
            Err(error) => {
                desk.ended(Outcome::Failed);
                tracing::error!("upgrade failed, this process goes on as before: {error}");
            }
        }
        outcome
    }

    /// Why there can be no upgrade now.
    fn unfit(&self) -> Option<String> {
        let desk = self.desk();
        if let Some(pid) = desk.successor() {
            Some(format!("process {pid} has taken over already"))
        } else if let Some(pid) = desk.predecessor() {
            Some(format!(
                "the last upgrade is not over: process {pid} still has calls to end, try again later"
            ))
        } else if self.is_draining() {
            Some("this node is draining".to_owned())
        } else if std::process::id() == 1 {
            Some(
                "this is process 1 of its container, which would end with it: replace the container"
                    .to_owned(),
            )
        } else {
            None
        }
    }

    /// Starts the process that is to take over, and hands everything over to it. Blocks, up to some ten seconds.
    /// Then it waits for [`Node::leave`].
    ///
    /// # Errors
    /// See [`Node::upgrade`].
    pub fn launch(
        &self,
        program: &Program,
        admin: Option<BorrowedFd<'_>>,
    ) -> Result<Successor, UpgradeError> {
        let left =
            |l: &crate::config::Listen| Left { transport: l.transport.param().to_owned(), bind: l.bind };
        launch(
            program,
            &Estate {
                generation: self.desk().generation(),
                workers: self.shards(),
                listeners: self.listeners().iter().map(left).collect(),
                secrets: self.secrets().clone(),
                sockets: self.handle().sockets(),
                admin,
            },
        )
    }

    /// Gives the word to the process that takes over: from now on it gets all that is new.
    ///
    /// # Errors
    /// It is gone. Nothing has changed then.
    pub fn leave(&self, successor: &Successor) -> Result<Upgraded, UpgradeError> {
        self.handle().leave(Some(Arc::clone(&successor.channel)));
        if let Err(error) = successor.go() {
            self.handle().leave(None);
            return Err(error.into());
        }
        let desk = self.desk();
        desk.successor.store(successor.pid, Ordering::Relaxed);
        Ok(Upgraded { pid: successor.pid, generation: desk.generation().saturating_add(1) })
    }

    /// The process that had taken over is gone: everything is this one's again.
    pub fn come_back(&self) {
        self.handle().leave(None);
        self.desk().successor.store(0, Ordering::Relaxed);
        self.desk().ended(Outcome::Returned);
        tracing::error!("the process that had taken over has ended: this one serves again");
    }

    /// True while another process takes over from this one.
    pub fn is_leaving(&self) -> bool {
        matches!(self.handle().stage(), Stage::Leaving { .. })
    }

    /// Waits until another process takes over (`true`), or does not after all.
    pub async fn until_leaving(&self, leaving: bool) {
        let mut stage = self.handle().stages();
        let _ = stage.wait_for(|stage| matches!(stage, Stage::Leaving { .. }) == leaving).await;
    }

    /// After [`Node::leave`]: waits until nothing is under way here any more, or for `most`. True: nothing is.
    pub async fn left(&self, most: Duration) -> bool {
        let until = Instant::now() + most;
        loop {
            if self.live().contexts == 0 && self.handle().connections() == 0 {
                return true;
            }
            if Instant::now() >= until {
                return false;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// How long that may take: as long as an INVITE that rings may (timer C), and what follows (64*T1).
    pub fn longest_leave(&self) -> Duration {
        let config = &self.policy().config;
        (config.sip.timer_c + config.sip.t1.saturating_mul(64)).max(config.runtime.drain_timeout)
    }

    /// In a process that is to take over: reports that it could, and waits for the word. False: the other one is gone.
    pub async fn succeed(&self) -> bool {
        let Some(before) = self.predecessor() else { return true };
        if before.channel.say(&Word::Ready { pid: std::process::id() }, None).is_err() {
            return false;
        }
        let mut stages = self.handle().stages();
        match stages.wait_for(|stage| *stage != Stage::Waiting).await {
            Ok(stage) => *stage != Stage::Abandoned,
            Err(_) => false,
        }
    }

    /// Waits until the predecessor has ended, and takes note of it.
    pub async fn until_alone(&self) {
        let mut stages = self.handle().stages();
        let _ = stages.wait_for(|stage| *stage != Stage::Beside && *stage != Stage::Waiting).await;
        if self.desk().predecessor.swap(0, Ordering::Relaxed) != 0 {
            tracing::info!("the old process has ended: everything is read here");
        }
    }

    /// This node is told to end: so is the predecessor, if there still is one.
    pub fn end_predecessor(&self) {
        if let (Some(before), Some(_)) = (self.predecessor(), self.desk().predecessor()) {
            let _ = before.channel.say(&Word::Ending, None);
        }
    }
}
