//! A user agent of the core that makes calls through the border element, over UDP and TCP.

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use tokio::io::AsyncWriteExt as _;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpStream, UdpSocket};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use crate::flow::Transport;
use crate::wire::{Framing, Method, Name};

use super::message::{Incoming, RequestParts, Sender, Sip};

/// RFC 3261's T1 and T2 (§17.1.1.1).
const T1: Duration = Duration::from_millis(500);
const T2: Duration = Duration::from_secs(4);
/// Timers B and F: no answer at all.
const GIVE_UP: Duration = T1.saturating_mul(64);
/// How long a call may ring.
const RING_LIMIT: Duration = Duration::from_secs(60);
/// Answers queued for one call; beyond, they are dropped like datagrams.
const QUEUE: usize = 32;

/// How a call went.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// The final response to the INVITE; 0: none came.
    pub status: u16,
    /// From the INVITE to that response, or until it was given up.
    pub setup: Duration,
    /// It rang.
    pub rang: bool,
}

impl Outcome {
    /// It was answered.
    pub const fn is_success(&self) -> bool {
        self.status >= 200 && self.status < 300
    }
}

/// A call that was answered: to be ended by [`Caller::hang_up`].
pub struct Dialog {
    call: Leg,
    to: String,
    target: String,
    routes: Vec<String>,
    ack: Bytes,
}

/// What all requests of a call share.
struct Leg {
    transport: Transport,
    id: String,
    from: String,
    answers: mpsc::Receiver<Sip>,
    inner: Arc<Inner>,
}

impl Drop for Leg {
    fn drop(&mut self) {
        self.inner.calls().remove(&self.id);
    }
}

/// The user agent. Dropping it ends its sockets.
pub struct Caller {
    inner: Arc<Inner>,
    _tasks: JoinSet<()>,
}

struct Inner {
    udp: Option<Link<UdpSocket>>,
    tcp: Option<Link<tokio::sync::Mutex<OwnedWriteHalf>>>,
    calls: Mutex<HashMap<String, mpsc::Sender<Sip>>>,
    serial: AtomicU64,
    retransmissions: AtomicU64,
}

struct Link<T> {
    socket: T,
    me: Sender,
}

impl Inner {
    fn calls(&self) -> MutexGuard<'_, HashMap<String, mpsc::Sender<Sip>>> {
        self.calls.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn me(&self, transport: Transport) -> io::Result<&Sender> {
        match transport {
            Transport::Udp => self.udp.as_ref().map(|l| &l.me),
            _ => self.tcp.as_ref().map(|l| &l.me),
        }
        .ok_or_else(|| io::Error::from(io::ErrorKind::NotConnected))
    }

    async fn send(&self, transport: Transport, bytes: &Bytes) -> io::Result<()> {
        match (transport, &self.udp, &self.tcp) {
            (Transport::Udp, Some(link), _) => link.socket.send(bytes).await.map(drop),
            (Transport::Tcp, _, Some(link)) => link.socket.lock().await.write_all(bytes).await,
            _ => Err(io::ErrorKind::NotConnected.into()),
        }
    }

    fn branch(&self) -> String {
        format!("z9hG4bKd{}", self.serial.fetch_add(1, Ordering::Relaxed))
    }

    fn give(&self, sip: Sip) {
        let queue = self.calls().get(&sip.call_id()).cloned();
        if let Some(queue) = queue {
            drop(queue.try_send(sip));
        }
    }
}

impl Caller {
    /// Sends from `ip` to these listeners of the border element; `None`: not by this transport.
    ///
    /// # Errors
    /// No socket, or nobody listens there.
    pub async fn start(ip: IpAddr, udp: Option<SocketAddr>, tcp: Option<SocketAddr>) -> io::Result<Self> {
        let udp = match udp {
            Some(proxy) => {
                let socket = UdpSocket::bind((ip, 0)).await?;
                socket.connect(proxy).await?;
                let me = Sender { transport: Transport::Udp, addr: socket.local_addr()? };
                Some(Link { socket, me })
            }
            None => None,
        };
        let (tcp, read) = match tcp {
            Some(proxy) => {
                let stream = TcpStream::connect(proxy).await?;
                stream.set_nodelay(true)?;
                let me = Sender { transport: Transport::Tcp, addr: stream.local_addr()? };
                let (read, write) = stream.into_split();
                (Some(Link { socket: tokio::sync::Mutex::new(write), me }), Some(read))
            }
            None => (None, None),
        };
        let inner = Arc::new(Inner {
            udp,
            tcp,
            calls: Mutex::default(),
            serial: AtomicU64::new(1),
            retransmissions: AtomicU64::new(0),
        });
        let mut tasks = JoinSet::new();
        tasks.spawn(receive_datagrams(Arc::clone(&inner)));
        if let Some(read) = read {
            tasks.spawn(receive_stream(Arc::clone(&inner), read));
        }
        Ok(Self { inner, _tasks: tasks })
    }

    /// Requests sent again because no answer had come.
    pub fn retransmissions(&self) -> u64 {
        self.inner.retransmissions.load(Ordering::Relaxed)
    }

    /// Calls `uri` and waits for the final response; acknowledges it. A dialog is there if it was a 2xx.
    ///
    /// # Errors
    /// It could not be sent at all.
    pub async fn call(
        &self,
        transport: Transport,
        uri: &str,
        call_id: &str,
    ) -> io::Result<(Outcome, Option<Dialog>)> {
        let inner = &self.inner;
        let me = inner.me(transport)?;
        let (queue, answers) = mpsc::channel(QUEUE);
        inner.calls().insert(call_id.to_owned(), queue);
        let from = format!("<sip:caller@{}>;tag=c{}", me.addr, inner.serial.fetch_add(1, Ordering::Relaxed));
        let mut call = Leg { transport, id: call_id.to_owned(), from, answers, inner: Arc::clone(inner) };
        let branch = inner.branch();
        let to = format!("<{uri}>");
        let parts = RequestParts {
            sender: me,
            method: "INVITE",
            uri,
            branch: &branch,
            routes: &[],
            from: &call.from,
            to: &to,
            call_id,
            cseq: 1,
        };
        let invite = parts.build();
        let started = Instant::now();
        let mut outcome = Outcome { status: 0, setup: Duration::ZERO, rang: false };
        let last = request(inner, transport, &invite, &mut call.answers, &branch, &mut outcome.rang).await?;
        outcome.setup = started.elapsed();
        let Some(last) = last else { return Ok((outcome, None)) };
        outcome.status = last.msg().status();
        let answered_to = last.rows("to").into_iter().next().unwrap_or_else(|| to.clone());
        if !outcome.is_success() {
            // §17.1.1.3: on the branch of the INVITE.
            let ack = RequestParts { method: "ACK", to: &answered_to, ..parts }.build();
            inner.send(transport, &ack).await?;
            return Ok((outcome, None));
        }
        let mut routes = last.route_uris(Name::RecordRoute);
        routes.reverse();
        let target = last.contact().unwrap_or_else(|| uri.to_owned());
        let ack_branch = inner.branch();
        let ack = RequestParts {
            method: "ACK",
            uri: &target,
            branch: &ack_branch,
            routes: &routes,
            to: &answered_to,
            ..parts
        }
        .build();
        inner.send(transport, &ack).await?;
        Ok((outcome, Some(Dialog { call, to: answered_to, target, routes, ack })))
    }

    /// Talks for `talk`, then sends BYE; gives the final response to it, 0 if none came.
    ///
    /// # Errors
    /// It could not be sent.
    pub async fn hang_up(&self, mut dialog: Dialog, talk: Duration) -> io::Result<u16> {
        let inner = &self.inner;
        let transport = dialog.call.transport;
        let until = tokio::time::Instant::now() + talk;
        while let Ok(Some(sip)) = tokio::time::timeout_at(until, dialog.call.answers.recv()).await {
            if sip.msg().method() == Method::Invite && (200..300).contains(&sip.msg().status()) {
                // §13.2.2.4: each 2xx, however often it comes.
                inner.send(transport, &dialog.ack).await?;
            }
        }
        let branch = inner.branch();
        let bye = RequestParts {
            sender: inner.me(transport)?,
            method: "BYE",
            uri: &dialog.target,
            branch: &branch,
            routes: &dialog.routes,
            from: &dialog.call.from,
            to: &dialog.to,
            call_id: &dialog.call.id,
            cseq: 2,
        };
        let last =
            request(inner, transport, &bye.build(), &mut dialog.call.answers, &branch, &mut false).await?;
        Ok(last.map_or(0, |sip| sip.msg().status()))
    }
}

/// A client transaction (RFC 3261 §17.1): sends, sends again over UDP, and waits for the final response.
/// `None`: none came in time.
async fn request(
    inner: &Inner,
    transport: Transport,
    bytes: &Bytes,
    answers: &mut mpsc::Receiver<Sip>,
    branch: &str,
    rang: &mut bool,
) -> io::Result<Option<Sip>> {
    let invite = bytes.starts_with(b"INVITE ");
    inner.send(transport, bytes).await?;
    let now = tokio::time::Instant::now();
    let (mut again, mut wait) = (now + T1, T1);
    let mut deadline = now + GIVE_UP;
    let mut repeat = !transport.is_reliable();
    loop {
        let next = if repeat { again.min(deadline) } else { deadline };
        match tokio::time::timeout_at(next, answers.recv()).await {
            Ok(Some(sip)) if sip.branch() == branch => {
                let status = sip.msg().status();
                if status >= 200 {
                    return Ok(Some(sip));
                }
                *rang |= status == 180;
                if invite {
                    repeat = false;
                    deadline = tokio::time::Instant::now() + RING_LIMIT;
                } else {
                    wait = T2;
                }
            }
            Ok(Some(_)) => {}
            Ok(None) => return Ok(None),
            Err(_) if tokio::time::Instant::now() >= deadline => return Ok(None),
            Err(_) => {
                inner.retransmissions.fetch_add(1, Ordering::Relaxed);
                inner.send(transport, bytes).await?;
                wait = if invite { wait * 2 } else { (wait * 2).min(T2) };
                again += wait;
            }
        }
    }
}

async fn receive_datagrams(inner: Arc<Inner>) {
    let Some(link) = &inner.udp else { return };
    let mut buffer = vec![0; 65_536];
    loop {
        // Errors are ICMP's about what was sent; the sender notices the silence.
        if let Ok(n) = link.socket.recv(&mut buffer).await
            && let Some(sip) =
                buffer.get(..n).and_then(|b| Sip::parse(Bytes::copy_from_slice(b), Framing::Datagram))
        {
            inner.give(sip);
        }
    }
}

async fn receive_stream(inner: Arc<Inner>, read: OwnedReadHalf) {
    let mut incoming = Incoming::new(read);
    while let Some(sip) = incoming.next().await {
        inner.give(sip);
    }
}
