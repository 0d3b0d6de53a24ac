//! A SIP server instance of the peer: answers calls over UDP and TCP on one port and TLS on another, and fails on
//! demand.

use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, TcpSocket, TcpStream, UdpSocket};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;

use crate::flow::Transport;
use crate::wire::{Framing, Method};

use super::message::{Incoming, Sender, Sip, answer};
use super::sockets::{BACKLOG, reserve, sockets, tcp_socket};

/// RFC 3261's T1 and T2, for the retransmission of a 200 (§13.3.1.4).
const T1: Duration = Duration::from_millis(500);
const T2: Duration = Duration::from_secs(4);
/// Calls known at a time; an INVITE beyond gets 486.
const MAX_CALLS: usize = 10_000;
/// Messages queued for one connection; beyond, they are dropped with it.
const QUEUE: usize = 1024;
/// Tries for a port that is free for both transports, or free again.
const PORT_TRIES: usize = 50;
/// How long [`Instance::kill`] waits for an INVITE to come.
const PATIENCE: Duration = Duration::from_secs(2);
/// How long a TLS handshake may take.
const HANDSHAKE: Duration = Duration::from_secs(5);
/// And then for more of them to pile up.
const PILE_UP: Duration = Duration::from_millis(60);

/// What an instance does with new calls. Those it has accepted go on in any mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// 180, then 200.
    Answer,
    /// 503.
    Unavailable,
    /// Nothing at all.
    Silent,
}

/// What an instance has seen and done since it was made; restarts do not reset it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// New INVITEs.
    pub invites: u64,
    /// INVITEs outside a dialog answered with 200.
    pub answered: u64,
    /// New requests answered with 503.
    pub unavailable: u64,
    /// New requests not answered at all.
    pub ignored: u64,
    /// BYEs answered with 200.
    pub ended: u64,
    /// Retransmitted requests.
    pub retransmissions_in: u64,
    /// 200s sent again, their ACK not having come.
    pub retransmissions_out: u64,
}

#[derive(Debug, Default)]
struct Counters {
    invites: AtomicU64,
    answered: AtomicU64,
    unavailable: AtomicU64,
    ignored: AtomicU64,
    ended: AtomicU64,
    retransmissions_in: AtomicU64,
    retransmissions_out: AtomicU64,
}

fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

/// One call, by Call-ID. An attempt of the same call that comes with another branch is the same call again.
#[derive(Debug)]
struct Call {
    branch: String,
    /// What was answered to the INVITE last.
    last: Bytes,
    acked: bool,
}

/// Shared by the tasks of an instance, and outliving them.
struct State {
    counters: Counters,
    mode: Mutex<Mode>,
    ring: Duration,
    calls: Mutex<HashMap<String, Call>>,
    ringing: AtomicUsize,
    /// Stop reading at the next INVITE.
    dying: watch::Sender<bool>,
    /// An INVITE lies unread in a socket.
    held: watch::Sender<bool>,
    serial: AtomicU64,
}

impl State {
    fn calls(&self) -> MutexGuard<'_, HashMap<String, Call>> {
        self.calls.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn mode(&self) -> Mode {
        *self.mode.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn counts(&self) -> Counts {
        let c = &self.counters;
        let get = |n: &AtomicU64| n.load(Ordering::Relaxed);
        Counts {
            invites: get(&c.invites),
            answered: get(&c.answered),
            unavailable: get(&c.unavailable),
            ignored: get(&c.ignored),
            ended: get(&c.ended),
            retransmissions_in: get(&c.retransmissions_in),
            retransmissions_out: get(&c.retransmissions_out),
        }
    }
}

/// A view of an instance.
#[derive(Clone)]
pub struct Watch {
    name: String,
    addr: SocketAddr,
    secure: Option<SocketAddr>,
    state: Arc<State>,
}

impl Watch {
    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its address, for UDP and TCP.
    pub const fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// Its address for TLS, if it has one.
    pub const fn secure_addr(&self) -> Option<SocketAddr> {
        self.secure
    }

    /// What it has counted.
    pub fn counts(&self) -> Counts {
        self.state.counts()
    }

    /// What is wrong with it; `None`: nothing.
    pub fn trouble(&self) -> Option<&'static str> {
        match self.state.mode() {
            _ if *self.state.dying.borrow() => Some("down"),
            Mode::Answer => None,
            Mode::Unavailable => Some("503"),
            Mode::Silent => Some("silent"),
        }
    }
}

/// A call that rings, counted for as long as this lives.
struct Ring(Arc<State>);

impl Ring {
    fn new(state: &Arc<State>) -> Self {
        state.ringing.fetch_add(1, Ordering::AcqRel);
        Self(Arc::clone(state))
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        self.0.ringing.fetch_sub(1, Ordering::AcqRel);
    }
}

/// An instance. Dropping it ends it.
pub struct Instance {
    name: String,
    addr: SocketAddr,
    /// Where it speaks TLS, and how.
    secure: Option<(SocketAddr, TlsAcceptor)>,
    state: Arc<State>,
    tasks: JoinSet<()>,
    /// Keep the ports for us while nobody listens on them.
    reserved: Option<(UdpSocket, TcpSocket, Option<TcpSocket>)>,
}

impl Instance {
    /// Starts one on `bind`; port 0: any port that is free for UDP and TCP. It rings for `ring` before it answers.
    ///
    /// # Errors
    /// No sockets.
    pub async fn start(name: &str, bind: SocketAddr, ring: Duration) -> io::Result<Self> {
        let state = Arc::new(State {
            counters: Counters::default(),
            mode: Mutex::new(Mode::Answer),
            ring,
            calls: Mutex::default(),
            ringing: AtomicUsize::new(0),
            dying: watch::Sender::new(false),
            held: watch::Sender::new(false),
            serial: AtomicU64::new(1),
        });
        let tasks = JoinSet::new();
        let mut this = Self { name: name.into(), addr: bind, secure: None, state, tasks, reserved: None };
        this.open().await?;
        Ok(this)
    }

    /// Makes it speak TLS too, on a port of its own.
    ///
    /// # Errors
    /// No socket.
    pub fn with_tls(mut self, acceptor: TlsAcceptor) -> io::Result<Self> {
        self.secure = Some((SocketAddr::new(self.addr.ip(), 0), acceptor));
        self.open_secure()?;
        Ok(self)
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its address, for UDP and TCP.
    pub const fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// Its address for TLS, if it has one.
    pub fn secure_addr(&self) -> Option<SocketAddr> {
        self.secure.as_ref().map(|(addr, _)| *addr)
    }

    /// Changes what it does with new calls.
    pub fn set_mode(&self, mode: Mode) {
        *self.state.mode.lock().unwrap_or_else(PoisonError::into_inner) = mode;
    }

    /// A view of it that outlives it.
    pub fn watch(&self) -> Watch {
        let secure = self.secure_addr();
        Watch { name: self.name.clone(), addr: self.addr, secure, state: Arc::clone(&self.state) }
    }

    /// What it has counted.
    pub fn counts(&self) -> Counts {
        self.state.counts()
    }

    /// Closes its sockets while INVITEs are on their way to it: it reads up to the next INVITE and leaves
    /// that one, and what comes after it, in the socket. Calls that ring by then are answered first, as a
    /// call that has rung elsewhere cannot be moved. True: there was such an INVITE; false: none came
    /// within two seconds, and it is dead all the same.
    pub async fn kill(&mut self) -> bool {
        self.state.dying.send_replace(true);
        let mut held = self.state.held.subscribe();
        let found = tokio::time::timeout(PATIENCE, held.wait_for(|held| *held)).await.is_ok();
        if found {
            tokio::time::sleep(PILE_UP).await;
        }
        while self.state.ringing.load(Ordering::Acquire) > 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        self.tasks.shutdown().await;
        self.state.calls().clear();
        // A port that another program takes meanwhile could not come back. A socket connected to itself
        // and one that does not listen own the port, and whoever sends there is refused as if nobody did.
        self.reserved = reserve(self.addr, self.secure_addr()).await.ok();
        found
    }

    /// Opens the sockets again. What was before is forgotten, but for the counts.
    ///
    /// # Errors
    /// The port is taken.
    pub async fn restart(&mut self) -> io::Result<()> {
        self.tasks.shutdown().await;
        self.reserved = None;
        self.state.dying.send_replace(false);
        self.state.held.send_replace(false);
        self.open().await
    }

    async fn open(&mut self) -> io::Result<()> {
        let mut tries = 0;
        let (udp, tcp) = loop {
            match sockets(self.addr).await {
                Ok(both) => break both,
                Err(e) if tries == PORT_TRIES => return Err(e),
                Err(_) if self.addr.port() == 0 => tries += 1,
                Err(_) => {
                    tries += 1;
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
            }
        };
        self.addr = udp.local_addr()?;
        self.tasks.spawn(datagrams(Arc::clone(&self.state), Arc::new(udp)));
        self.tasks.spawn(accept(Arc::clone(&self.state), tcp, None));
        self.open_secure()
    }

    fn open_secure(&mut self) -> io::Result<()> {
        if let Some((addr, acceptor)) = &mut self.secure {
            let tcp = tcp_socket(*addr)?.listen(BACKLOG)?;
            *addr = tcp.local_addr()?;
            self.tasks.spawn(accept(Arc::clone(&self.state), tcp, Some(acceptor.clone())));
        }
        Ok(())
    }
}

/// Where answers go.
#[derive(Clone)]
enum Back {
    Datagram(Arc<UdpSocket>, SocketAddr),
    Stream(mpsc::Sender<Bytes>, SocketAddr),
}

impl Back {
    async fn send(&self, bytes: Bytes) {
        match self {
            // The far end may be gone; that is its affair.
            Back::Datagram(socket, to) => drop(socket.send_to(&bytes, to).await),
            Back::Stream(queue, _) => drop(queue.try_send(bytes)),
        }
    }

    const fn remote(&self) -> SocketAddr {
        match self {
            Back::Datagram(_, remote) | Back::Stream(_, remote) => *remote,
        }
    }
}

/// The UDP socket.
async fn datagrams(state: Arc<State>, socket: Arc<UdpSocket>) {
    let Ok(local) = socket.local_addr() else { return };
    let me = Sender { transport: Transport::Udp, addr: local };
    let mut buffer = vec![0; 65_536];
    let mut work = JoinSet::new();
    let mut dying = state.dying.subscribe();
    loop {
        tokio::select! {
            ready = socket.readable() => if ready.is_err() { return },
            Ok(()) = dying.changed() => continue,
            Some(_) = work.join_next() => continue,
        }
        if *dying.borrow() {
            let mut start = [0; 7];
            match socket.try_peek_from(&mut start) {
                Ok(_) if start == *b"INVITE " => {
                    state.held.send_replace(true);
                    // What has been accepted goes on until the task is ended.
                    return std::future::pending().await;
                }
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => continue,
                _ => {}
            }
        }
        match socket.try_recv_from(&mut buffer) {
            Ok((n, from)) => {
                let bytes = buffer.get(..n).map(Bytes::copy_from_slice).unwrap_or_default();
                if let Some(sip) = Sip::parse(bytes, Framing::Datagram) {
                    let back = Back::Datagram(Arc::clone(&socket), from);
                    take(&state, &me, sip, back, &mut work).await;
                }
            }
            // An ICMP error for an answer of ours, or nothing there after all.
            Err(_) => continue,
        }
    }
}

/// A listening socket.
async fn accept(state: Arc<State>, listener: TcpListener, tls: Option<TlsAcceptor>) {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => {
                let Ok((stream, remote)) = accepted else { continue };
                let state = Arc::clone(&state);
                match &tls {
                    None => connections.spawn(connection(state, stream, remote)),
                    Some(acceptor) => connections.spawn(secure(state, acceptor.clone(), stream, remote)),
                };
            }
            Some(_) = connections.join_next() => {}
        }
    }
}

/// One connection.
async fn connection(state: Arc<State>, stream: TcpStream, remote: SocketAddr) {
    let Ok(local) = stream.local_addr() else { return };
    let me = Sender { transport: Transport::Tcp, addr: local };
    let _ = stream.set_nodelay(true);
    let (read, mut write) = stream.into_split();
    let (queue, mut queued) = mpsc::channel::<Bytes>(QUEUE);
    let mut work = JoinSet::new();
    work.spawn(async move {
        while let Some(bytes) = queued.recv().await {
            if write.write_all(&bytes).await.is_err() {
                return;
            }
        }
    });
    let mut incoming = Incoming::new(read);
    let mut dying = state.dying.subscribe();
    loop {
        while let Some(message) = incoming.poll() {
            let Some(sip) = message else { return };
            take(&state, &me, sip, Back::Stream(queue.clone(), remote), &mut work).await;
        }
        tokio::select! {
            ready = incoming.stream().readable() => if ready.is_err() { return },
            Ok(()) = dying.changed() => continue,
            Some(_) = work.join_next() => continue,
        }
        if *dying.borrow() && !incoming.is_mid_message() {
            let mut start = [0; 7];
            match incoming.stream().as_ref().peek(&mut start).await {
                Ok(_) if start == *b"INVITE " => {
                    state.held.send_replace(true);
                    return std::future::pending().await;
                }
                _ => {}
            }
        }
        if !incoming.read().await {
            return;
        }
    }
}

/// One connection under TLS.
async fn secure(state: Arc<State>, acceptor: TlsAcceptor, stream: TcpStream, remote: SocketAddr) {
    let Ok(local) = stream.local_addr() else { return };
    let me = Sender { transport: Transport::Tls, addr: local };
    let _ = stream.set_nodelay(true);
    let Ok(Ok(stream)) = tokio::time::timeout(HANDSHAKE, acceptor.accept(stream)).await else { return };
    let (read, mut write) = tokio::io::split(stream);
    let (queue, mut queued) = mpsc::channel::<Bytes>(QUEUE);
    let mut work = JoinSet::new();
    work.spawn(async move {
        while let Some(bytes) = queued.recv().await {
            if write.write_all(&bytes).await.is_err() || write.flush().await.is_err() {
                return;
            }
        }
    });
    let mut incoming = Incoming::new(read);
    loop {
        while let Some(message) = incoming.poll() {
            let Some(sip) = message else { return };
            let is_call = sip.msg().is_request() && sip.msg().method() == Method::Invite;
            if is_call && *state.dying.borrow() {
                // What is in the socket can be read under TLS only by taking it out. To the sender it is all the
                // same: nobody has answered when the connection ends.
                state.held.send_replace(true);
                return std::future::pending().await;
            }
            take(&state, &me, sip, Back::Stream(queue.clone(), remote), &mut work).await;
        }
        tokio::select! {
            more = incoming.read() => if !more { return },
            Some(_) = work.join_next() => {}
        }
    }
}

/// Handles one message.
async fn take(state: &Arc<State>, me: &Sender, sip: Sip, back: Back, work: &mut JoinSet<()>) {
    if !sip.msg().is_request() {
        return;
    }
    let id = sip.call_id();
    let known = state.calls().contains_key(&id);
    let method = sip.msg().method();
    if !known && method != Method::Ack {
        match state.mode() {
            Mode::Answer => {}
            Mode::Silent => return count(&state.counters.ignored),
            Mode::Unavailable => {
                count(&state.counters.unavailable);
                return reply(&back, &sip, 503, "Service Unavailable", "gone", me).await;
            }
        }
    }
    match method {
        Method::Invite if sip.msg().to_tag().is_some() => {
            reply(&back, &sip, 200, "OK", "", me).await;
        }
        Method::Invite => invite(state, me, sip, id, back, work).await,
        Method::Ack => {
            if let Some(call) = state.calls().get_mut(&id) {
                call.acked = true;
            }
        }
        Method::Bye => {
            if state.calls().remove(&id).is_some() {
                count(&state.counters.ended);
                reply(&back, &sip, 200, "OK", "", me).await;
            } else {
                reply(&back, &sip, 481, "Call/Transaction Does Not Exist", "none", me).await;
            }
        }
        Method::Cancel => {
            let status = if known { (200, "OK") } else { (481, "Call/Transaction Does Not Exist") };
            reply(&back, &sip, status.0, status.1, "cancel", me).await;
        }
        _ => reply(&back, &sip, 200, "OK", "other", me).await,
    }
}

async fn reply(back: &Back, sip: &Sip, status: u16, reason: &str, tag: &str, me: &Sender) {
    back.send(answer(sip, back.remote(), status, reason, tag, &me.contact("callee"))).await;
}

/// An INVITE outside a dialog.
async fn invite(state: &Arc<State>, me: &Sender, sip: Sip, id: String, back: Back, work: &mut JoinSet<()>) {
    let branch = sip.branch();
    let again = state.calls().get(&id).map(|call| (call.branch == branch, call.last.clone()));
    match again {
        Some((true, last)) => {
            count(&state.counters.retransmissions_in);
            return back.send(last).await;
        }
        // The same call by another way (RFC 3261 §8.2.2.2).
        Some((false, _)) => return reply(&back, &sip, 482, "Loop Detected", "merged", me).await,
        None => {}
    }
    if state.calls().len() >= MAX_CALLS {
        return reply(&back, &sip, 486, "Busy Here", "full", me).await;
    }
    count(&state.counters.invites);
    let tag = format!("i{}", state.serial.fetch_add(1, Ordering::Relaxed));
    let contact = me.contact("callee");
    let make = |status, reason| answer(&sip, back.remote(), status, reason, &tag, &contact);
    let (trying, ringing, ok) = (make(100, "Trying"), make(180, "Ringing"), make(200, "OK"));
    state.calls().insert(id.clone(), Call { branch, last: ringing.clone(), acked: false });
    back.send(trying).await;
    back.send(ringing).await;
    let ring = Ring::new(state);
    let state = Arc::clone(state);
    let reliable = matches!(back, Back::Stream(..));
    work.spawn(async move {
        tokio::time::sleep(state.ring).await;
        if let Some(call) = state.calls().get_mut(&id) {
            call.last = ok.clone();
        }
        count(&state.counters.answered);
        back.send(ok.clone()).await;
        drop(ring);
        // §13.3.1.4: over any transport, until the ACK; a stream of our own loses nothing.
        let (mut wait, mut waited) = (T1, Duration::ZERO);
        while !reliable && waited < 64 * T1 {
            tokio::time::sleep(wait).await;
            waited += wait;
            wait = (wait * 2).min(T2);
            if state.calls().get(&id).is_none_or(|call| call.acked) {
                return;
            }
            count(&state.counters.retransmissions_out);
            back.send(ok.clone()).await;
        }
    });
}
