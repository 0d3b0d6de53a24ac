//! What a process finds when it starts: sockets, and more, that a predecessor or the service manager leaves it.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use socket2::{SockRef, Type};

use crate::config::Listen;
use crate::flow::{ListenerId, Transport};

use super::super::sys;
use super::channel::{self, Channel, Received, Secrets, VERSION, Word};

/// Set for a process that is to take over: its standard input is the channel.
pub(super) const TAKE_OVER: &str = "SBE_TAKE_OVER";
/// How long the predecessor may take to say all.
const PATIENCE: Duration = Duration::from_secs(5);
/// Most sockets taken.
const MOST: usize = 65_536;

/// Why what was left could not be taken.
#[derive(Debug, thiserror::Error)]
pub enum HeritageError {
    /// The channel or the sockets.
    #[error("cannot take over the sockets: {0}")]
    Io(#[from] io::Error),
    /// It was left in another way than this version knows.
    #[error(
        "the running version hands over in another way ({theirs}, this one knows {VERSION}): restart instead"
    )]
    Version {
        /// The number that the other one says.
        theirs: u32,
    },
    /// Something else was said.
    #[error("the running process says something unexpected: {0}")]
    Unexpected(String),
}

/// A listener's sockets, one for each worker.
#[derive(Debug)]
struct Group {
    transport: Transport,
    bind: SocketAddr,
    sockets: Vec<OwnedFd>,
}

/// Sockets and more that were there before this process.
#[derive(Debug, Default)]
pub struct Heritage {
    groups: Vec<Group>,
    admin: Option<OwnedFd>,
    predecessor: Option<Predecessor>,
}

/// The process that this one takes over from.
#[derive(Clone, Debug)]
pub struct Predecessor {
    pub(in crate::runtime) channel: Arc<Channel>,
    pub(in crate::runtime) secrets: Secrets,
    pub(in crate::runtime) pid: u32,
    pub(in crate::runtime) generation: u32,
    pub(in crate::runtime) workers: usize,
    /// Its listeners in their order, and which of ours each of them is.
    pub(in crate::runtime) listeners: Vec<Option<ListenerId>>,
}

impl Predecessor {
    /// Tells it that this process cannot take over, and why.
    pub fn failed(&self, why: Vec<String>) {
        let _ = self.channel.say(&Word::Failed { why }, None);
    }
}

impl Heritage {
    /// Takes what was left: by a running process that starts this one ([`super::launch`]), else by the service
    /// manager (`LISTEN_FDS`), else nothing. To be called once, before anything else opens descriptors.
    ///
    /// # Errors
    /// The predecessor is gone, speaks otherwise, or hands over something else than sockets.
    pub fn take() -> Result<Self, HeritageError> {
        if std::env::var_os(TAKE_OVER).is_none() {
            return Ok(Self::activated());
        }
        let fd = io::stdin().as_fd().try_clone_to_owned()?;
        rustix::stdio::dup2_stdin(std::fs::File::open("/dev/null")?).map_err(io::Error::from)?;
        Self::receive(Channel::of(fd))
    }

    pub(super) fn receive(channel: Channel) -> Result<Self, HeritageError> {
        channel.wait_at_most(Some(PATIENCE))?;
        channel.be_patient(Some(PATIENCE))?;
        let mut room = channel::room();
        let mut heritage = Self::default();
        let predecessor = match channel.receive(&mut room)? {
            Received::Word(Word::Hello { version, pid, generation, workers, listeners, secrets }, _) => {
                if version != VERSION {
                    let theirs = version;
                    let error = HeritageError::Version { theirs };
                    let _ = channel.say(&Word::Failed { why: vec![error.to_string()] }, None);
                    return Err(error);
                }
                for left in &listeners {
                    let transport = left
                        .transport()
                        .ok_or_else(|| HeritageError::Unexpected(format!("transport {}", left.transport)))?;
                    heritage.groups.push(Group { transport, bind: left.bind, sockets: Vec::new() });
                }
                (pid, generation, workers, secrets)
            }
            other => return Err(HeritageError::Unexpected(format!("{other:?}"))),
        };
        for _ in 0..MOST {
            match channel.receive(&mut room)? {
                Received::Word(Word::Socket { listener }, Some(fd)) => {
                    match heritage.groups.get_mut(listener) {
                        Some(group) => group.sockets.push(fd),
                        None => return Err(HeritageError::Unexpected(format!("listener {listener}"))),
                    }
                }
                Received::Word(Word::Admin, Some(fd)) => heritage.admin = Some(fd),
                Received::Word(Word::Begin, _) => break,
                other => return Err(HeritageError::Unexpected(format!("{other:?}"))),
            }
        }
        let (pid, generation, workers, secrets) = predecessor;
        heritage.predecessor = Some(Predecessor {
            channel: Arc::new(channel),
            secrets,
            pid,
            generation,
            workers,
            listeners: vec![None; heritage.groups.len()],
        });
        Ok(heritage)
    }

    /// Sockets of the service manager, known by their addresses and types.
    fn activated() -> Self {
        let mut heritage = Self::default();
        for fd in sys::activated() {
            let socket = SockRef::from(&fd);
            let bind = socket.local_addr().ok().and_then(|a| a.as_socket());
            let transport = match socket.r#type() {
                Ok(Type::DGRAM) => Some(Transport::Udp),
                Ok(Type::STREAM) => Some(Transport::Tcp),
                _ => None,
            };
            // Others are none that SIP goes over.
            if let (Some(bind), Some(transport)) = (bind, transport) {
                heritage.groups.push(Group { transport, bind, sockets: vec![fd] });
            }
        }
        heritage
    }

    /// The process that this one takes over from.
    pub const fn predecessor(&self) -> Option<&Predecessor> {
        self.predecessor.as_ref()
    }

    pub(in crate::runtime) fn into_predecessor(self) -> Option<Predecessor> {
        self.predecessor
    }

    /// The admin interface's socket, if one was left for this address.
    pub fn admin(&mut self, bind: SocketAddr) -> Option<std::net::TcpListener> {
        if let Some(fd) = self.admin.take() {
            let same = SockRef::from(&fd)
                .local_addr()
                .ok()
                .and_then(|a| a.as_socket())
                .is_some_and(|a| a == bind || (bind.port() == 0 && a.ip() == bind.ip()));
            return same.then(|| fd.into());
        }
        let at = self.groups.iter().position(|g| g.transport == Transport::Tcp && g.bind == bind)?;
        self.groups.swap_remove(at).sockets.pop().map(Into::into)
    }

    /// The sockets for a listener, one for each of `workers`; its port becomes theirs. `None`: none was left for it.
    pub(in crate::runtime) fn sockets(
        &mut self,
        id: ListenerId,
        listen: &mut Listen,
        workers: usize,
    ) -> io::Result<Option<Vec<OwnedFd>>> {
        let handed = self.predecessor.is_some();
        let fits = |g: &Group| {
            // The service manager knows no TLS.
            let transport = g.transport == listen.transport
                || (!handed && g.transport == Transport::Tcp && listen.transport == Transport::Tls);
            let bind = g.bind == listen.bind || (listen.bind.port() == 0 && g.bind.ip() == listen.bind.ip());
            transport && bind && !g.sockets.is_empty()
        };
        let Some(at) = self.groups.iter().position(fits) else { return Ok(None) };
        let Some(group) = self.groups.get_mut(at) else { return Ok(None) };
        let left = std::mem::take(&mut group.sockets);
        listen.bind = group.bind;
        if let Some(place) = self.predecessor.as_mut().and_then(|p| p.listeners.get_mut(at)) {
            *place = Some(id);
        }
        // Of the service manager there is one for all of them.
        let mut sockets = Vec::with_capacity(workers);
        for i in 0..workers {
            if let Some(fd) = left.get(i % left.len().max(1)) {
                sockets.push(fd.try_clone()?);
            }
        }
        Ok(Some(sockets))
    }

    /// What was left and is for no listener: it is closed.
    pub(in crate::runtime) fn tell_of_rest(&self) {
        for group in self.groups.iter().filter(|g| !g.sockets.is_empty()) {
            tracing::warn!(transport = %group.transport, bind = %group.bind, "a socket that was left for no [[listen]] is closed");
        }
    }
}
