//! Another process takes over without a lost call: sockets and secrets are handed to it, calls under way end here.
//!
//! The running process starts the program again, with the same arguments, and hands it the sockets over a
//! [`channel`]. Once it reports that it could serve, it gets all that is new: connections that come, and, by the
//! channel, every datagram that belongs to no transaction here. The old one reads the datagrams until its last
//! transaction has ended, since only it knows which are its own; its connections it closes one by one, each
//! when nothing is under way on it. If the new one does not get ready, nothing has changed.

pub(super) mod beside;
pub(super) mod channel;
mod desk;
pub(super) mod heritage;

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use channel::{Channel, Left, Received, Secrets, VERSION, Word};

pub use desk::{Desk, Outcome, Request, Upgraded};
pub use heritage::{Heritage, HeritageError, Predecessor};

/// How long the new process may take until it could serve.
const READY: Duration = Duration::from_secs(8);
/// How long its exit is waited for once it has gone quiet.
const EXIT: Duration = Duration::from_secs(1);
/// Lines of its errors that are passed on.
const LINES: usize = 20;

/// Why another process did not take over. This one goes on as before.
#[derive(Debug, thiserror::Error)]
pub enum UpgradeError {
    /// Not now.
    #[error("{0}")]
    Refused(String),
    /// The program cannot be started.
    #[error("cannot start {}: {cause}", program.display())]
    Start {
        /// Which program.
        program: PathBuf,
        /// What the system says.
        cause: io::Error,
    },
    /// The sockets cannot be handed over.
    #[error("cannot hand over: {0}")]
    Channel(#[from] io::Error),
    /// It has said why it cannot.
    #[error("the new process cannot start: {}", .0.join("; "))]
    Failed(Vec<String>),
    /// It has ended without a word.
    #[error("the new process ended before it was ready ({0}): see the log")]
    Ended(ExitStatus),
    /// It says nothing.
    #[error("the new process was not ready within {} s", READY.as_secs())]
    Silent,
}

/// What is started to take over.
#[derive(Clone, Debug)]
pub struct Program {
    /// The file: where the running program was found, not what has become of its file since.
    pub path: PathBuf,
    /// Arguments after the program's name.
    pub args: Vec<std::ffi::OsString>,
}

impl Program {
    /// This program as it was started.
    pub fn own() -> Self {
        let mut args = std::env::args_os();
        let called = args.next().map(PathBuf::from).unwrap_or_default();
        // As it was called, so that a link that has come to point elsewhere leads there.
        let path = match called.components().count() {
            0 => None,
            1 => std::env::var_os("PATH")
                .and_then(|path| std::env::split_paths(&path).map(|d| d.join(&called)).find(|p| p.is_file())),
            _ => std::path::absolute(&called).ok(),
        };
        let path = path.or_else(|| std::env::current_exe().ok()).unwrap_or(called);
        Self { path, args: args.collect() }
    }
}

/// What is handed over.
#[derive(Debug)]
pub(super) struct Estate<'a> {
    pub(super) generation: u32,
    pub(super) workers: usize,
    pub(super) listeners: Vec<Left>,
    pub(super) secrets: Secrets,
    pub(super) sockets: &'a [(usize, OwnedFd)],
    pub(super) admin: Option<BorrowedFd<'a>>,
}

/// A process that could take over.
#[derive(Debug)]
pub struct Successor {
    pub(super) channel: Arc<Channel>,
    child: Mutex<Child>,
    /// Its number.
    pub pid: u32,
}

/// How it went on with the process that has taken over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Aftermath {
    /// It was told to end; both are to.
    Ending,
    /// It has ended, unasked.
    Gone,
}

impl Successor {
    /// Ends a process that is not to take over after all.
    fn end(&self) -> Option<ExitStatus> {
        let mut child = self.child.lock().unwrap_or_else(PoisonError::into_inner);
        let until = Instant::now() + EXIT;
        while Instant::now() < until {
            if let Ok(Some(status)) = child.try_wait() {
                return Some(status);
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        let _ = child.kill();
        let _ = child.wait();
        None
    }

    /// Gives it the word.
    pub(super) fn go(&self) -> io::Result<()> {
        self.channel.say(&Word::Go, None)
    }

    /// Tells it that everything is its own.
    pub fn done(&self) {
        let _ = self.channel.say(&Word::Done, None);
    }

    /// Waits until it says that it ends, or is gone. Blocks.
    pub fn aftermath(&self) -> Aftermath {
        let _ = self.channel.wait_at_most(None);
        let mut room = channel::room();
        loop {
            match self.channel.receive(&mut room) {
                Ok(Received::Word(Word::Ending, _)) => return Aftermath::Ending,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Ok(Received::End) | Err(_) => {
                    self.end();
                    return Aftermath::Gone;
                }
                Ok(_) => {}
            }
        }
    }
}

/// Starts the program and hands over; when this returns, the new process waits for [`Successor::go`]. Blocks.
pub(super) fn launch(program: &Program, estate: &Estate<'_>) -> Result<Successor, UpgradeError> {
    let (channel, theirs) = Channel::pair()?;
    let mut command = Command::new(&program.path);
    command
        .args(&program.args)
        .env(heritage::TAKE_OVER, "1")
        // These name this process.
        .env_remove("WATCHDOG_PID")
        .env_remove("LISTEN_PID")
        .env_remove("LISTEN_FDS")
        .env_remove("LISTEN_FDNAMES")
        .stdin(Stdio::from(theirs));
    let child =
        command.spawn().map_err(|cause| UpgradeError::Start { program: program.path.clone(), cause })?;
    // With it goes our copy of the other end.
    drop(command);
    let pid = child.id();
    let successor = Successor { channel: Arc::new(channel), child: Mutex::new(child), pid };
    match hand_over(&successor.channel, estate) {
        Ok(()) => Ok(successor),
        Err(UpgradeError::Channel(error)) => match successor.end() {
            Some(status) => Err(UpgradeError::Ended(status)),
            None => Err(UpgradeError::Channel(error)),
        },
        Err(error) => {
            successor.end();
            Err(error)
        }
    }
}

fn hand_over(channel: &Channel, estate: &Estate<'_>) -> Result<(), UpgradeError> {
    channel.be_patient(Some(READY))?;
    channel.say(
        &Word::Hello {
            version: VERSION,
            pid: std::process::id(),
            generation: estate.generation,
            workers: estate.workers,
            listeners: estate.listeners.clone(),
            secrets: estate.secrets.clone(),
        },
        None,
    )?;
    for (listener, fd) in estate.sockets {
        channel.say(&Word::Socket { listener: *listener }, Some(std::os::fd::AsFd::as_fd(fd)))?;
    }
    if let Some(admin) = estate.admin {
        channel.say(&Word::Admin, Some(admin))?;
    }
    channel.say(&Word::Begin, None)?;
    channel.be_patient(None)?;
    channel.wait_at_most(Some(READY))?;
    let mut room = channel::room();
    match channel.receive(&mut room) {
        Ok(Received::Word(Word::Ready { .. }, _)) => Ok(()),
        Ok(Received::Word(Word::Failed { mut why }, _)) => {
            why.truncate(LINES);
            Err(UpgradeError::Failed(why))
        }
        Ok(_) => Err(io::Error::from(io::ErrorKind::UnexpectedEof).into()),
        Err(e) if e.kind() == io::ErrorKind::WouldBlock => Err(UpgradeError::Silent),
        Err(e) => Err(e.into()),
    }
}
