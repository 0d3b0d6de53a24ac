//! One question to the configured name servers: who is asked, by which transport, in what order, for how long.
//!
//! The transports are hickory's (`UdpClientStream`, `TcpClientStream`: a random id and port for each query, source,
//! id and question of the answer checked). hickory's own pool and resolver above them are not used: they turn
//! everything but a positive answer into an error that no longer holds the aliases or the additional section, know
//! no difference between the time for one attempt and the time for all, and have one port for all servers of a
//! system configuration.

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use hickory_proto::op::{DnsRequest, DnsRequestOptions, DnsResponse, Message, Query, ResponseCode};
use hickory_resolver::net::DnsHandle;
use hickory_resolver::net::NetError;
use hickory_resolver::net::runtime::iocompat::AsyncIoTokioAsStd;
use hickory_resolver::net::runtime::{
    DnsUdpSocket, RuntimeProvider, TokioHandle, TokioRuntimeProvider, TokioTime,
};
use hickory_resolver::net::tcp::TcpClientStream;
use hickory_resolver::net::udp::UdpClientStream;
use hickory_resolver::net::xfer::{DnsRequestSender, FirstAnswer};
use tokio::io::Interest;
use tokio::net::{TcpStream, UdpSocket};
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};

use super::upstream::Failure;

/// Silence after which the next attempt is made; the one before is still listened to.
const STEP: Duration = Duration::from_secs(1);

/// Attempts for one question where servers are silent; one for each server if there are more.
const ATTEMPTS: usize = 3;

/// Most attempts for one question, however many servers there are.
const MOST_ATTEMPTS: usize = 6;

/// How long a server is put behind the others after its first failed attempt; doubles up to [`SHUN_MAX`].
const SHUN: Duration = Duration::from_secs(2);

/// Longest time that a server is put behind the others.
const SHUN_MAX: Duration = Duration::from_secs(60);

/// UDP payload we take: no fragments on the usual paths (DNS flag day 2020).
const EDNS_PAYLOAD: u16 = 1232;

/// A name server and what is remembered of it.
#[derive(Debug)]
struct Server {
    addr: SocketAddr,
    /// Failed attempts in a row.
    strikes: AtomicU32,
    /// Milliseconds after [`Servers::born`] until which the others are asked first.
    shunned_until: AtomicU64,
}

/// The name servers that are asked, in order of preference.
#[derive(Debug)]
pub(super) struct Servers {
    list: Vec<Arc<Server>>,
    born: Instant,
}

impl Servers {
    /// Remembers nothing of any server yet.
    pub(super) fn new(addrs: &[SocketAddr]) -> Self {
        let list = addrs
            .iter()
            .map(|&addr| {
                Arc::new(Server { addr, strikes: AtomicU32::new(0), shunned_until: AtomicU64::new(0) })
            })
            .collect();
        Self { list, born: Instant::now() }
    }

    /// Their addresses.
    pub(super) fn addrs(&self) -> Vec<SocketAddr> {
        self.list.iter().map(|s| s.addr).collect()
    }

    fn millis(&self, at: Instant) -> u64 {
        u64::try_from(at.saturating_duration_since(self.born).as_millis()).unwrap_or(u64::MAX)
    }

    /// The good ones in the configured order, then those that failed lately.
    fn in_order(&self, now: Instant) -> Vec<Arc<Server>> {
        let now = self.millis(now);
        let mut order = self.list.clone();
        order.sort_by_key(|s| s.shunned_until.load(Ordering::Relaxed) > now);
        order
    }

    /// Takes down how an attempt went. Many questions failing together count as one failure.
    fn note(&self, server: &Server, good: bool) {
        let now = Instant::now();
        if good {
            server.strikes.store(0, Ordering::Relaxed);
            server.shunned_until.store(0, Ordering::Relaxed);
        } else if server.shunned_until.load(Ordering::Relaxed) <= self.millis(now) {
            let strikes = server.strikes.fetch_add(1, Ordering::Relaxed).min(5);
            let until = now + SHUN.saturating_mul(1 << strikes).min(SHUN_MAX);
            server.shunned_until.store(self.millis(until), Ordering::Relaxed);
        }
    }

    /// Asks until a server gives an answer (NXDOMAIN is one) or all attempts are used up: the next attempt
    /// starts when the one before has failed or has been silent for [`STEP`]; silent ones are still listened to.
    ///
    /// # Errors
    /// What a server said of its failure, or [`Failure::Timeout`] if none said anything.
    pub(super) async fn ask(&self, query: &Query) -> Result<Message, Failure> {
        let order = self.in_order(Instant::now());
        let attempts = order.len().clamp(ATTEMPTS, MOST_ATTEMPTS);
        let mut plan: VecDeque<Arc<Server>> = order.iter().cycle().take(attempts).cloned().collect();
        let mut running: JoinSet<(Arc<Server>, Result<Message, Failure>)> = JoinSet::new();
        let mut failure = Failure::Timeout;
        let mut latest: Option<Arc<Server>> = None;
        loop {
            if let Some(server) = plan.pop_front() {
                latest = Some(server.clone());
                let query = query.clone();
                running.spawn(async move {
                    let result = attempt(server.addr, &query).await;
                    (server, result)
                });
            }
            match timeout(STEP, running.join_next()).await {
                Ok(Some(Ok((server, Ok(message))))) => {
                    self.note(&server, true);
                    return Ok(message);
                }
                Ok(Some(Ok((server, Err(why))))) => {
                    self.note(&server, false);
                    // It has spoken, or cannot be reached at all: no sense in asking the same once more.
                    plan.retain(|s| !Arc::ptr_eq(s, &server));
                    if why != Failure::Timeout {
                        failure = why;
                    }
                    if plan.is_empty() && running.is_empty() {
                        return Err(failure);
                    }
                }
                Ok(Some(Err(_)) | None) => {
                    if plan.is_empty() && running.is_empty() {
                        return Err(failure);
                    }
                }
                Err(_) => {
                    if let Some(silent) = latest.take() {
                        self.note(&silent, false);
                    }
                    if plan.is_empty() {
                        return Err(failure);
                    }
                }
            }
        }
    }
}

/// One attempt at one server: UDP, then TCP if the answer was truncated (RFC 7766 §5).
async fn attempt(server: SocketAddr, query: &Query) -> Result<Message, Failure> {
    let mut edns = true;
    let mut message = loop {
        let mut stream = UdpClientStream::builder(server, Connected::default())
            .with_timeout(Some(STEP * 10))
            .with_max_retries(0)
            .with_os_port_selection(true)
            .build();
        let response = stream.send_message(request(query, edns)).first_answer().await;
        let message = checked(response, query)?;
        // A server from before EDNS (RFC 6891 §7).
        if edns && matches!(message.metadata.response_code, ResponseCode::FormErr | ResponseCode::NotImp) {
            edns = false;
            continue;
        }
        break message;
    };
    if message.metadata.truncation {
        // Its end would be the connection's end.
        let provider = TokioRuntimeProvider::new();
        let exchange = TcpClientStream::exchange(server, None, STEP * 2, None, provider.clone());
        let exchange = timeout(STEP, exchange).await;
        let exchange = exchange.map_err(|_| Failure::Timeout)?.map_err(|e| trouble(&e))?;
        message = checked(exchange.send(request(query, edns)).first_answer().await, query)?;
        drop(provider);
        if message.metadata.truncation {
            return Err(Failure::Malformed);
        }
    }
    match message.metadata.response_code {
        ResponseCode::NoError | ResponseCode::NXDomain => Ok(message),
        ResponseCode::ServFail => Err(Failure::ServFail),
        ResponseCode::Refused => Err(Failure::Refused),
        _ => Err(Failure::Other),
    }
}

fn request(query: &Query, edns: bool) -> DnsRequest {
    let mut options = DnsRequestOptions::default();
    options.use_edns = edns;
    options.edns_payload_len = EDNS_PAYLOAD;
    options.recursion_desired = true;
    // Repeating is our own business.
    options.retry_interval = STEP * 10;
    DnsRequest::from_query(query.clone(), options)
}

/// The message of an answer, if it answers this very question (TCP is not checked by hickory).
fn checked(response: Result<DnsResponse, NetError>, query: &Query) -> Result<Message, Failure> {
    let message = response.map_err(|e| trouble(&e))?.into_message();
    match message.queries.as_slice() {
        [asked] if asked == query => Ok(message),
        // A failure may come without the question.
        [] if message.metadata.response_code != ResponseCode::NoError => Ok(message),
        _ => Err(Failure::Malformed),
    }
}

fn trouble(error: &NetError) -> Failure {
    match error {
        NetError::Timeout | NetError::Io(_) | NetError::NoConnections | NetError::Busy => Failure::Timeout,
        NetError::Proto(_) => Failure::Malformed,
        _ => Failure::Timeout,
    }
}

/// hickory's tokio runtime with connected UDP sockets: the kernel drops what comes from elsewhere, and a port where
/// nobody listens is known at once (ICMP) and not after a timeout.
#[derive(Clone, Default)]
struct Connected(TokioRuntimeProvider);

impl RuntimeProvider for Connected {
    type Handle = TokioHandle;
    type Timer = TokioTime;
    type Udp = ConnectedUdp;
    type Tcp = AsyncIoTokioAsStd<TcpStream>;

    fn create_handle(&self) -> Self::Handle {
        self.0.create_handle()
    }

    fn connect_tcp(
        &self,
        server: SocketAddr,
        bind: Option<SocketAddr>,
        limit: Option<Duration>,
    ) -> Pin<Box<dyn Send + Future<Output = io::Result<Self::Tcp>>>> {
        self.0.connect_tcp(server, bind, limit)
    }

    fn bind_udp(
        &self,
        local: SocketAddr,
        server: SocketAddr,
    ) -> Pin<Box<dyn Send + Future<Output = io::Result<Self::Udp>>>> {
        Box::pin(async move {
            let socket = UdpSocket::bind(local).await?;
            socket.connect(server).await?;
            Ok(ConnectedUdp(socket))
        })
    }
}

/// A connected UDP socket whose receiver is woken by an ICMP error too: tokio wakes it for data only.
struct ConnectedUdp(UdpSocket);

/// What the async methods of [`DnsUdpSocket`] return.
type Boxed<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

impl DnsUdpSocket for ConnectedUdp {
    type Time = TokioTime;

    fn poll_recv_from(&self, cx: &mut Context<'_>, buf: &mut [u8]) -> Poll<io::Result<(usize, SocketAddr)>> {
        DnsUdpSocket::poll_recv_from(&self.0, cx, buf)
    }

    fn recv_from<'s, 'b, 'f>(&'s self, buf: &'b mut [u8]) -> Boxed<'f, io::Result<(usize, SocketAddr)>>
    where
        's: 'f,
        'b: 'f,
        Self: 'f,
    {
        Box::pin(async move {
            tokio::select! {
                biased;
                received = self.0.recv_from(buf) => received,
                ready = self.0.ready(Interest::ERROR) => {
                    ready?;
                    Err(self.0.take_error()?.unwrap_or_else(|| io::ErrorKind::ConnectionRefused.into()))
                }
            }
        })
    }

    fn poll_send_to(&self, cx: &mut Context<'_>, buf: &[u8], target: SocketAddr) -> Poll<io::Result<usize>> {
        self.0.poll_send_to(cx, buf, target)
    }
}
