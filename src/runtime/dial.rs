//! How connections come to be: accepted from a listener, or opened because a message wants to go.

use std::collections::VecDeque;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsFd;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use socket2::{SockRef, TcpKeepalive};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio_rustls::TlsStream;

use crate::flow::{Hop, ListenerId, Origin, SendFailure, TlsIdentity, Transport};
use crate::shard::io::Send;

use super::counters::{Counters, Direction, DropReason};
use super::driver::Worker;
use super::element::Element;
use super::events::name;
use super::pool::{Conn, NewConn};
use super::stream::{finish, serve};
use super::sys;
use super::tls::Failure;
use super::tls::gate::{self, Pass};
use super::tls::words::Cause;

/// Pause after an accept that failed for want of descriptors: the listener stays readable.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// Failures to accept are counted each, and told at most this often.
const ACCEPT_TOLD: Duration = Duration::from_secs(30);
/// Quiet time before the kernel asks whether the other end is still there, and between its questions.
const KEEPALIVE: Duration = Duration::from_secs(60);

impl<E: Element> Worker<E> {
    /// Sends a message on the connection it names, on a pooled one, or on a new one.
    pub(super) fn send_stream(self: &Rc<Self>, send: Send, now: Instant) {
        let conn = match self.connection_for(&send.hop, now) {
            Ok(conn) => conn,
            Err(failure) => return self.failed(send.token, failure),
        };
        // First the number, then the octets: the end of the connection cannot overtake it.
        if let (Some(token), true) = (send.token, send.request) {
            self.sent(token, conn.id, conn.is_open(), now);
        }
        if let Err(failure) = conn.push(send.bytes, send.token, send.request) {
            if failure == SendFailure::QueueFull {
                self.counters().drop_one(DropReason::WriteQueue);
            }
            self.failed(send.token, failure);
        }
    }

    fn connection_for(self: &Rc<Self>, hop: &Hop, now: Instant) -> Result<Arc<Conn>, SendFailure> {
        if let Some(id) = hop.conn {
            return self.node.pool.get(id).ok_or(SendFailure::Closed { reused: true });
        }
        let listener = self.node.listen.get(usize::from(hop.listener.0)).ok_or(SendFailure::Local)?;
        let local = listener.bind.ip();
        if let Some(conn) = self.node.pool.find(hop, listener.bind, now) {
            return Ok(conn);
        }
        match (hop.transport, &hop.tls) {
            (Transport::Tcp, _) | (Transport::Tls, Some(_)) => self.dial(hop, local, now),
            // Nobody would know whom to believe.
            (Transport::Tls, None) => Err(SendFailure::Tls),
            (Transport::Udp, _) => Err(SendFailure::Local),
        }
    }

    /// Begins to open a connection; what is to be sent on it may be queued at once.
    fn dial(self: &Rc<Self>, hop: &Hop, local: IpAddr, now: Instant) -> Result<Arc<Conn>, SendFailure> {
        let new = NewConn {
            transport: hop.transport,
            direction: Direction::Out,
            remote: hop.remote,
            local,
            wanted: hop.tls.clone().filter(|_| hop.transport == Transport::Tls),
        };
        let conn = self.node.pool.admit(new, now).ok_or_else(|| {
            self.counters().drop_one(DropReason::Connections);
            SendFailure::Local
        })?;
        self.counters().connection(conn.transport, conn.direction, 1);
        let (worker, made, listener) = (Rc::clone(self), Arc::clone(&conn), hop.listener);
        self.spawn(async move {
            let until = Instant::now() + worker.node.settings.connect_timeout;
            let opened = match tokio::time::timeout_at(until.into(), worker.connect(&made)).await {
                Ok(opened) => opened,
                Err(_) => Err(SendFailure::ConnectTimeout),
            };
            let (stream, local) = match opened {
                Ok(opened) => opened,
                Err(failure) => return finish(&worker, &made, VecDeque::new(), |_| failure),
            };
            let mut origin = origin_of(&made, listener, local);
            if made.wanted.is_none() {
                return serve(worker, made, stream, origin).await;
            }
            match worker.prove(&made, stream, until).await {
                Ok((stream, identity)) => {
                    origin.identity = Some(identity);
                    serve(worker, made, stream, origin).await;
                }
                Err(failure) => finish(&worker, &made, VecDeque::new(), |_| failure),
            }
        });
        Ok(conn)
    }

    /// The TLS handshake on a connection that we have opened; it too must be done by the end of `connect_timeout`.
    async fn prove(
        &self,
        conn: &Conn,
        stream: TcpStream,
        until: Instant,
    ) -> Result<(TlsStream<TcpStream>, Arc<TlsIdentity>), SendFailure> {
        let (Some(tls), Some(wanted)) = (self.node.tls.load_full(), &conn.wanted) else {
            return Err(SendFailure::Tls);
        };
        match tokio::time::timeout_at(until.into(), tls.connect(stream, wanted)).await {
            Ok(Ok((stream, identity))) => {
                conn.verified(Arc::clone(&identity));
                self.counters().handshake(Direction::Out);
                Ok((stream, identity))
            }
            Ok(Err(failure)) => {
                self.handshake_failed(conn, &failure);
                Err(SendFailure::Tls)
            }
            Err(_) => {
                let words = format!(
                    "it did not finish within connect_timeout, {} ms",
                    self.node.settings.connect_timeout.as_millis()
                );
                self.handshake_failed(conn, &Failure { cause: Cause::Timeout, words });
                Err(SendFailure::ConnectTimeout)
            }
        }
    }

    /// Counts a failed handshake, and tells of it once a minute for each other end and cause.
    pub(super) fn handshake_failed(&self, conn: &Conn, failure: &Failure) {
        self.counters().drop_one(DropReason::Handshake);
        let Some(left_out) = self.node.failures.take(conn.remote.ip(), failure.cause, Instant::now()) else {
            return Counters::add(&self.counters().log_suppressed, 1);
        };
        let (remote, cause, words) = (conn.remote, failure.cause.label(), failure.words.as_str());
        match &conn.wanted {
            Some(wanted) => {
                let peer = name(&self.node.peers, wanted.peer);
                tracing::warn!(%peer, %remote, asked_for = %wanted.server_name, cause, left_out, "TLS handshake failed: {words}");
            }
            None => {
                let peer = self.holder_of(remote.ip());
                tracing::warn!(%peer, %remote, cause, left_out, "TLS handshake failed: {words}");
            }
        }
    }

    /// Whose an address is by the `sources`, for who has not proved anything.
    fn holder_of(&self, addr: IpAddr) -> Arc<str> {
        let policy = self.node.policy.load();
        match policy.as_ref().and_then(|policy| policy.sources.find(addr)) {
            Some(party) => name(&self.node.peers, party.peer()),
            None => Arc::from("unknown"),
        }
    }

    /// Opens a connection from the listener's address.
    async fn connect(&self, conn: &Conn) -> Result<(TcpStream, SocketAddr), SendFailure> {
        let open = async {
            let socket = if conn.remote.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
            if !conn.local.is_unspecified() {
                sys::bind_address_no_port(socket.as_fd());
                socket.bind(SocketAddr::new(conn.local, 0))?;
            }
            let stream = socket.connect(conn.remote).await?;
            let local = stream.local_addr()?;
            if local == conn.remote {
                // TCP lets a socket meet itself when nobody listens on the port it happened to get.
                return Err(io::ErrorKind::ConnectionRefused.into());
            }
            tune(&stream, self.node.settings.answer_timeout);
            Ok((stream, local))
        };
        open.await.map_err(|e: io::Error| {
            tracing::debug!(remote = %conn.remote, error = %e, "cannot connect");
            classify(&e)
        })
    }

    /// Accepts connections until the worker ends.
    pub(super) async fn accept(self: Rc<Self>, listener: ListenerId, socket: TcpListener) {
        let bind = self.node.listen.get(usize::from(listener.0)).map(|l| l.bind.ip());
        let mut told: Option<Instant> = None;
        loop {
            self.until_accepting(true).await;
            let accepted = tokio::select! {
                accepted = socket.accept() => accepted,
                () = self.until_accepting(false) => continue,
            };
            match accepted {
                Ok((stream, remote)) => self.accepted(listener, bind, stream, remote),
                // The connection is gone already; the next may be fine.
                Err(e) if e.kind() == io::ErrorKind::ConnectionAborted => {}
                Err(e) => {
                    self.counters().drop_one(DropReason::Accept);
                    let now = Instant::now();
                    if told.is_none_or(|t| now.saturating_duration_since(t) >= ACCEPT_TOLD) {
                        told = Some(now);
                        tracing::warn!(listener = listener.0, error = %e, "cannot accept a connection");
                    }
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    }

    fn accepted(
        self: &Rc<Self>,
        listener: ListenerId,
        bind: Option<IpAddr>,
        stream: TcpStream,
        remote: SocketAddr,
    ) {
        let Ok(local) = stream.local_addr() else {
            return self.counters().drop_one(DropReason::Accept);
        };
        let transport = match self.node.listen.get(usize::from(listener.0)) {
            Some(listen) => listen.transport,
            None => Transport::Tcp,
        };
        let new = NewConn {
            transport,
            direction: Direction::In,
            remote,
            local: bind.unwrap_or(local.ip()),
            wanted: None,
        };
        let pass = match transport {
            Transport::Tls => match self.node.gate.enter(remote.ip()) {
                None => return self.counters().drop_one(DropReason::HandshakeLimit),
                pass => pass,
            },
            Transport::Tcp | Transport::Udp => None,
        };
        let Some(conn) = self.node.pool.admit(new, Instant::now()) else {
            return self.counters().drop_one(DropReason::Connections);
        };
        self.counters().connection(transport, Direction::In, 1);
        tune(&stream, self.node.settings.answer_timeout);
        let origin = origin_of(&conn, listener, local);
        match pass {
            None => self.spawn(serve(Rc::clone(self), conn, stream, origin)),
            Some(pass) => self.spawn(Rc::clone(self).accept_tls(conn, stream, origin, pass)),
        }
    }

    /// The TLS handshake on a connection that the other end has opened, then its service.
    async fn accept_tls(self: Rc<Self>, conn: Arc<Conn>, stream: TcpStream, mut origin: Origin, pass: Pass) {
        let Some(tls) = self.node.tls.load_full() else {
            return finish(&self, &conn, VecDeque::new(), |_| SendFailure::Tls);
        };
        let handshake = self.turns.keep(tls.accept(stream));
        let outcome = tokio::time::timeout(gate::TIMEOUT, handshake).await.unwrap_or_else(|_| {
            let words = format!("it did not finish within {} s", gate::TIMEOUT.as_secs());
            Err(Failure { cause: Cause::Timeout, words })
        });
        drop((pass, tls));
        match outcome {
            Ok((stream, identity)) => {
                self.counters().handshake(Direction::In);
                if let Some(identity) = &identity {
                    conn.verified(Arc::clone(identity));
                }
                origin.identity = identity;
                serve(self, conn, stream, origin).await;
            }
            Err(failure) => {
                self.handshake_failed(&conn, &failure);
                finish(&self, &conn, VecDeque::new(), |_| SendFailure::Tls);
            }
        }
    }
}

fn origin_of(conn: &Conn, listener: ListenerId, local: SocketAddr) -> Origin {
    Origin {
        transport: conn.transport,
        listener,
        remote: conn.remote,
        local,
        conn: Some(conn.id),
        identity: None,
    }
}

/// Small writes go at once; a peer that vanished is noticed. Best effort.
fn tune(stream: &TcpStream, answer_timeout: Duration) {
    let socket = SockRef::from(stream);
    let _ = socket.set_tcp_nodelay(true);
    let _ = socket.set_tcp_keepalive(&TcpKeepalive::new().with_time(KEEPALIVE).with_interval(KEEPALIVE / 6));
    let _ = socket.set_tcp_user_timeout(Some(answer_timeout));
}

/// What a failed connect means for the transaction.
fn classify(error: &io::Error) -> SendFailure {
    match error.raw_os_error() {
        Some(libc::ETIMEDOUT) => SendFailure::ConnectTimeout,
        Some(libc::EHOSTUNREACH | libc::ENETUNREACH | libc::EHOSTDOWN) => SendFailure::Icmp,
        Some(libc::ECONNREFUSED | libc::ECONNRESET | libc::EPIPE | libc::ECONNABORTED) => {
            SendFailure::ConnectRefused
        }
        _ if error.kind() == io::ErrorKind::ConnectionRefused => SendFailure::ConnectRefused,
        _ => SendFailure::Local,
    }
}
