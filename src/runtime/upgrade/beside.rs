//! The new process, while the old one still reads the datagrams: it gets those that are its own by the channel.

use std::io;
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::rc::Rc;
use std::time::{Duration, Instant};

use tokio::io::Interest;

use crate::flow::{Origin, Transport};
use crate::shard::Passed;

use super::super::counters::{Counters, DropReason};
use super::super::driver::{Arrived, Worker};
use super::super::element::Element;
use super::super::sys;
use super::channel::{self, Received, Word};
use super::heritage::Predecessor;

/// Messages taken before other tasks of the worker get their turn.
const PER_TURN: usize = 128;

/// How far a process is with taking over, or with being taken over from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::runtime) enum Stage {
    /// The predecessor has not given the word yet.
    Waiting,
    /// The predecessor was gone before it did.
    Abandoned,
    /// Connections are accepted; the predecessor reads the datagrams.
    Beside,
    /// All is this process's own.
    Serving,
    /// A successor accepts the connections; this process reads the datagrams until its transactions are over.
    Leaving {
        /// Since when.
        since: Instant,
    },
}

impl Stage {
    /// Connections are accepted.
    pub(in crate::runtime) const fn accepts(self) -> bool {
        matches!(self, Stage::Beside | Stage::Serving)
    }

    /// Datagrams are read.
    pub(in crate::runtime) const fn reads(self) -> bool {
        matches!(self, Stage::Serving | Stage::Leaving { .. })
    }
}

impl<E: Element> Worker<E> {
    /// Gives a datagram to the process that takes over.
    pub(in crate::runtime) fn pass_on(&self, passed: &Passed) {
        let Some(successor) = &*self.node.successor.load() else { return };
        if successor.pass(passed) {
            Counters::add(&self.counters().handed_over, 1);
        } else {
            self.counters().drop_one(DropReason::HandOver);
        }
    }

    /// And an ICMP error, for whose datagram that was shows by its branch: who has not sent it takes no notice.
    pub(in crate::runtime) fn pass_error_on(&self, to: SocketAddr, payload: &[u8]) {
        if let Some(successor) = &*self.node.successor.load() {
            successor.pass_error(to, payload);
        }
    }

    /// Listens to the predecessor until it has ended.
    pub(in crate::runtime) async fn listen_to(self: Rc<Self>, predecessor: Predecessor) {
        if let Err(error) = self.hear(&predecessor).await {
            tracing::error!(%error, "the channel to the old process fails");
        }
        self.node.stage.send_modify(|stage| {
            *stage = match *stage {
                Stage::Waiting => Stage::Abandoned,
                Stage::Beside => Stage::Serving,
                other => other,
            }
        });
    }

    async fn hear(self: &Rc<Self>, predecessor: &Predecessor) -> io::Result<()> {
        let channel = &predecessor.channel;
        socket2::SockRef::from(&channel.fd()).set_nonblocking(true)?;
        let fd = sys::watch(channel.fd().as_fd().try_clone_to_owned()?, Interest::READABLE)?;
        let mut room = channel::room();
        loop {
            let mut guard = fd.readable().await?;
            for _ in 0..PER_TURN {
                match channel.receive(&mut room) {
                    Ok(Received::Datagram { listener, remote, local, bytes }) => {
                        // One that the new configuration has no listener for is nobody's.
                        if let Some(listener) = predecessor.listeners.get(listener).copied().flatten() {
                            let (transport, conn, identity) = (Transport::Udp, None, None);
                            let origin = Origin { transport, listener, remote, local, conn, identity };
                            let batch = [Arrived { origin, bytes }];
                            self.messages(Instant::now(), None, &batch);
                        }
                    }
                    Ok(Received::Undeliverable { to, payload }) => {
                        let now = Instant::now();
                        self.undeliverable(now, to, payload);
                        self.settle(now);
                    }
                    Ok(Received::Word(Word::Go, _)) => {
                        self.node.stage.send_replace(Stage::Beside);
                    }
                    Ok(Received::Word(Word::Done, _) | Received::End) => return Ok(()),
                    Ok(Received::Word(word, _)) => tracing::warn!(?word, "not expected from the old process"),
                    Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                        guard.clear_ready();
                        break;
                    }
                    Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                    Err(e) => return Err(e),
                }
            }
            drop(guard);
            tokio::task::yield_now().await;
        }
    }

    /// Waits until the datagrams are to be read here.
    pub(in crate::runtime) async fn until_reading(&self) {
        let _ = self.node.stage.subscribe().wait_for(|stage| stage.reads()).await;
    }

    /// Waits until connections are to be accepted, or are not any more.
    pub(in crate::runtime) async fn until_accepting(&self, accepting: bool) {
        if self.node.stage.subscribe().wait_for(|stage| stage.accepts() == accepting).await.is_err() {
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    }
}
