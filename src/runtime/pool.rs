//! The registry of stream connections, shared by all workers: by number, and by whom they reach.
//!
//! A connection lives on one worker; everybody else holds its [`Conn`], a bounded queue of what is
//! to be written and a bell. What is sent while the connection is still being made waits there too.

use std::collections::{HashMap, VecDeque};
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use smallvec::SmallVec;
use tokio::sync::Notify;

use crate::flow::{ConnId, Hop, SendFailure, TlsExpectation, TlsIdentity, Transport};
use crate::shard::io::SendToken;

use super::counters::Direction;
use super::tls::identity::names_one_of;

/// A connection made less than this ago is no "pooled" one: it serves a send that wants a fresh
/// connection, so that a hundred transactions whose connection died share one new connection
/// instead of opening a hundred.
const FRESH: Duration = Duration::from_secs(1);

/// Something to write.
#[derive(Debug)]
pub(super) struct Item {
    pub(super) bytes: Bytes,
    pub(super) token: Option<SendToken>,
    /// The connection had been open before this was queued.
    pub(super) reused: bool,
}

/// What is waiting to be written.
#[derive(Debug, Default)]
struct WriteQueue {
    items: VecDeque<Item>,
    /// Octets in `items`, and of what the connection has taken but not yet written.
    octets: usize,
    /// Something found no room since the last octets went out.
    full: bool,
    /// Nothing is taken any more.
    closed: bool,
}

/// A connection as others see it.
#[derive(Debug)]
pub(super) struct Conn {
    pub(super) id: ConnId,
    pub(super) transport: Transport,
    pub(super) direction: Direction,
    /// The other end.
    pub(super) remote: SocketAddr,
    /// Our address: the listener's bind address for connections we open, which may be a wildcard.
    pub(super) local: IpAddr,
    /// Connections that we open: whom the other end must prove to be, and as whom we come.
    pub(super) wanted: Option<Arc<TlsExpectation>>,
    /// Whom the other end's certificate named, once a handshake has shown that.
    identity: Mutex<Option<Arc<TlsIdentity>>>,
    born: Instant,
    /// The connection (and its handshake) is there.
    open: AtomicBool,
    /// The port that the other end listens on, once it has offered this connection, which it opened, for requests
    /// to there (RFC 5923 §5).
    alias: OnceLock<u16>,
    /// Requests of ours went over it: its end is of interest.
    carried_requests: AtomicBool,
    /// To be closed once its queue is empty.
    ending: AtomicBool,
    queue: Mutex<WriteQueue>,
    queue_limit: usize,
    /// Rings when the queue or `ending` has changed.
    pub(super) bell: Notify,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Conn {
    /// Queues a message. `QueueFull`: there is no room for it, and the connection is to see whether its reader gets on
    /// at all. What begins a call finds the queue full a little earlier, so that room is left for what brings
    /// the calls that there are to an end. `Closed`: it has ended meanwhile.
    pub(super) fn push(
        &self,
        bytes: Bytes,
        token: Option<SendToken>,
        request: bool,
    ) -> Result<(), SendFailure> {
        if bytes.is_empty() {
            return Ok(());
        }
        let reused = self.open.load(Ordering::Relaxed);
        let mut queue = locked(&self.queue);
        if queue.closed {
            return Err(SendFailure::Closed { reused });
        }
        let octets = queue.octets.saturating_add(bytes.len());
        let begins = request && bytes.starts_with(b"INVITE ");
        let limit = if begins { self.queue_limit / 4 * 3 } else { self.queue_limit };
        // One message that is larger by itself is bounded by what a message may be.
        if queue.octets > 0 && octets > limit {
            if !std::mem::replace(&mut queue.full, true) {
                drop(queue);
                self.bell.notify_one();
            }
            return Err(SendFailure::QueueFull);
        }
        queue.octets = octets;
        queue.items.push_back(Item { bytes, token, reused });
        drop(queue);
        if request {
            self.carried_requests.store(true, Ordering::Relaxed);
        }
        self.bell.notify_one();
        Ok(())
    }

    /// Moves what is queued to `taken` if that is empty; true if something found no room since octets last went out.
    /// What was taken counts against the limit until [`Conn::written`].
    pub(super) fn take(&self, taken: &mut VecDeque<Item>) -> bool {
        let mut queue = locked(&self.queue);
        if taken.is_empty() {
            std::mem::swap(&mut queue.items, taken);
        }
        queue.full
    }

    /// Octets have gone out.
    pub(super) fn written(&self, octets: usize) {
        let mut queue = locked(&self.queue);
        queue.octets = queue.octets.saturating_sub(octets);
        queue.full = false;
    }

    /// Nothing is queued or taken.
    pub(super) fn is_flushed(&self) -> bool {
        locked(&self.queue).octets == 0
    }

    /// Takes nothing any more; returns what was still queued.
    pub(super) fn close(&self) -> VecDeque<Item> {
        let mut queue = locked(&self.queue);
        queue.closed = true;
        std::mem::take(&mut queue.items)
    }

    /// The connection is there.
    pub(super) fn opened(&self) {
        self.open.store(true, Ordering::Relaxed);
    }

    /// It has been made.
    pub(super) fn is_open(&self) -> bool {
        self.open.load(Ordering::Relaxed)
    }

    pub(super) fn has_carried_requests(&self) -> bool {
        self.carried_requests.load(Ordering::Relaxed)
    }

    /// Asks the connection to end once everything queued is written.
    pub(super) fn end(&self) {
        self.ending.store(true, Ordering::Relaxed);
        self.bell.notify_one();
    }

    pub(super) fn is_ending(&self) -> bool {
        self.ending.load(Ordering::Relaxed)
    }

    /// Whether a send that names no connection may use this one.
    fn serves(&self, hop: &Hop, now: Instant) -> bool {
        if hop.fresh {
            let new = now.saturating_duration_since(self.born) < FRESH;
            if self.direction == Direction::In || !new {
                return false;
            }
        }
        let Some(wanted) = &hop.tls else {
            return self.transport != Transport::Tls;
        };
        match (&*locked(&self.identity), &self.wanted) {
            // RFC 5923 §4, RFC 5922 §7.3: only if it was verified for the name that is asked for, and we have
            // come as the one that this peer knows us as.
            (Some(identity), made) => {
                names_one_of(identity, &wanted.accepted)
                    && made.as_ref().is_none_or(|made| made.peer == wanted.peer)
            }
            // Still being made.
            (None, made) => made.as_ref() == Some(wanted),
        }
    }

    /// The handshake has shown whom the other end's certificate names.
    pub(super) fn verified(&self, identity: Arc<TlsIdentity>) {
        *locked(&self.identity) = Some(identity);
    }
}

/// Whom a connection reaches, and from which of our addresses.
type Route = (Transport, SocketAddr, IpAddr);

#[derive(Debug, Default)]
struct Tables {
    by_id: HashMap<ConnId, Arc<Conn>, ahash::RandomState>,
    /// Usable for new requests, the newest last.
    by_route: HashMap<Route, SmallVec<[Arc<Conn>; 1]>, ahash::RandomState>,
    /// Accepted connections by the other end's address.
    accepted: HashMap<IpAddr, usize, ahash::RandomState>,
    /// The node is ending: no more connections.
    ending: bool,
}

/// The part of all connections that one address may have accepted: a quarter.
const SHARE: usize = 4;
/// But never less than this.
const LEAST_SHARE: usize = 64;

/// Connections to one place that are looked through for one that the other end has opened, or that we have.
const LOOKED_AT: usize = 16;

/// All stream connections of the node.
#[derive(Debug)]
pub(super) struct Pool {
    tables: Mutex<Tables>,
    next_id: AtomicU64,
    max: usize,
    queue_limit: usize,
}

/// What [`Pool::admit`] is told of a connection.
#[derive(Debug)]
pub(super) struct NewConn {
    pub(super) transport: Transport,
    pub(super) direction: Direction,
    pub(super) remote: SocketAddr,
    pub(super) local: IpAddr,
    pub(super) wanted: Option<Arc<TlsExpectation>>,
}

impl Pool {
    /// At most `max` connections, each with at most `queue_limit` octets to write.
    pub(super) fn new(max: usize, queue_limit: usize) -> Self {
        Self { tables: Mutex::default(), next_id: AtomicU64::new(1), max, queue_limit }
    }

    /// Enters a connection (made, or about to be made); `None`: there are too many.
    pub(super) fn admit(&self, new: NewConn, now: Instant) -> Option<Arc<Conn>> {
        let mut tables = locked(&self.tables);
        if tables.ending || tables.by_id.len() >= self.max {
            return None;
        }
        if new.direction == Direction::In {
            // Whoever it is, a single address does not take all the room.
            let share = (self.max / SHARE).max(LEAST_SHARE);
            let taken = tables.accepted.entry(new.remote.ip()).or_default();
            if *taken >= share {
                return None;
            }
            *taken += 1;
        }
        let conn = Arc::new(Conn {
            id: ConnId(self.next_id.fetch_add(1, Ordering::Relaxed)),
            transport: new.transport,
            direction: new.direction,
            remote: new.remote,
            local: new.local,
            wanted: new.wanted,
            identity: Mutex::default(),
            born: now,
            open: AtomicBool::new(false),
            alias: OnceLock::new(),
            carried_requests: AtomicBool::new(false),
            ending: AtomicBool::new(false),
            queue: Mutex::default(),
            queue_limit: self.queue_limit,
            bell: Notify::new(),
        });
        tables.by_id.insert(conn.id, Arc::clone(&conn));
        tables.by_route.entry(route_of(&conn)).or_default().push(Arc::clone(&conn));
        Some(conn)
    }

    /// The connection of this number, unless it has ended.
    pub(super) fn get(&self, id: ConnId) -> Option<Arc<Conn>> {
        locked(&self.tables).by_id.get(&id).cloned()
    }

    /// The connection that a send to `hop` from our listener at `bind` may use: the newest, one that is open before one
    /// that is still being made. One that the other end opened is used if its remote address is the hop's, port
    /// included, or if it was offered for that port ([`Self::offered`]).
    ///
    /// Two that were opened at the same time, one by either end, would both be used for ever. Both ends can tell which
    /// of the two listens on the lower address: new requests go by the connection that this one has opened, and the
    /// other connection ends when it has been idle for long enough.
    pub(super) fn find(&self, hop: &Hop, bind: SocketAddr, now: Instant) -> Option<Arc<Conn>> {
        let tables = locked(&self.tables);
        let conns = tables.by_route.get(&(hop.transport, hop.remote, bind.ip()))?;
        let mut serving = conns.iter().rev().filter(|c| c.serves(hop, now));
        let first = serving.next()?;
        let Some(other) = serving.take(LOOKED_AT).find(|c| c.direction != first.direction) else {
            return Some(Arc::clone(first));
        };
        let preferred = if bind < hop.remote { Direction::Out } else { Direction::In };
        let is_better =
            (other.is_open(), other.direction == preferred) > (first.is_open(), first.direction == preferred);
        Some(Arc::clone(if is_better { other } else { first }))
    }

    /// The other end offers a connection that it has opened for requests to the port that it listens on
    /// (RFC 5923 §5): it is found for that port of its address too. Whom that serves its certificate decides, as for
    /// a connection that we open: without one, over TCP above all, the offer counts for nothing, since anybody
    /// could take over the requests of whoever listens there. The first offer counts. True: it does.
    pub(super) fn offered(&self, conn: &Arc<Conn>, port: u16) -> bool {
        let acceptable = conn.transport == Transport::Tls
            && conn.direction == Direction::In
            && locked(&conn.identity).is_some()
            && port != 0;
        let mut tables = locked(&self.tables);
        let usable =
            tables.by_route.get(&route_of(conn)).is_some_and(|all| all.iter().any(|c| c.id == conn.id));
        if !acceptable || !usable || conn.alias.set(port).is_err() {
            return false;
        }
        if port != conn.remote.port() {
            tables.by_route.entry(alias_of(conn, port)).or_default().push(Arc::clone(conn));
        }
        true
    }

    /// No new requests on this connection; answers still find it.
    pub(super) fn retire(&self, conn: &Conn) {
        let mut tables = locked(&self.tables);
        let alias = conn.alias.get().map(|port| alias_of(conn, *port));
        for route in [Some(route_of(conn)), alias].into_iter().flatten() {
            if let Some(conns) = tables.by_route.get_mut(&route) {
                conns.retain(|c| c.id != conn.id);
                if conns.is_empty() {
                    tables.by_route.remove(&route);
                }
            }
        }
    }

    /// Strikes a connection off.
    pub(super) fn remove(&self, conn: &Conn) {
        self.retire(conn);
        let mut tables = locked(&self.tables);
        if tables.by_id.remove(&conn.id).is_some() && conn.direction == Direction::In {
            let ip = conn.remote.ip();
            if let Some(taken) = tables.accepted.get_mut(&ip) {
                *taken -= 1;
                if *taken == 0 {
                    tables.accepted.remove(&ip);
                }
            }
        }
    }

    /// Has every connection look whether it is to end.
    pub(super) fn ring_all(&self) {
        for conn in locked(&self.tables).by_id.values() {
            conn.bell.notify_one();
        }
    }

    /// Asks all connections to end, and admits no more.
    pub(super) fn end_all(&self) {
        let mut tables = locked(&self.tables);
        tables.ending = true;
        for conn in tables.by_id.values() {
            conn.end();
        }
    }

    /// Connections there are.
    pub(super) fn len(&self) -> usize {
        locked(&self.tables).by_id.len()
    }
}

fn route_of(conn: &Conn) -> Route {
    (conn.transport, conn.remote, conn.local)
}

fn alias_of(conn: &Conn, port: u16) -> Route {
    (conn.transport, SocketAddr::new(conn.remote.ip(), port), conn.local)
}
