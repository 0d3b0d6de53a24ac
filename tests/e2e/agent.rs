//! A SIP element that a test moves by hand: UDP and TCP on one port, a log, answers on demand.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use sbe::demo::message::{Incoming, RequestParts, Sender, Sip, answer};
use sbe::flow::Transport;
use sbe::wire::{Framing, Method, Name};
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, TcpStream, UdpSocket};
use tokio::sync::{Notify, mpsc};
use tokio::task::JoinSet;

use super::PATIENCE;

/// Something received.
pub struct Received {
    pub sip: Sip,
    pub from: SocketAddr,
    pub transport: Transport,
    /// The connection it came by.
    conn: Option<mpsc::UnboundedSender<Bytes>>,
}

impl Received {
    pub fn is(&self, method: Method) -> bool {
        self.sip.msg().is_request() && self.sip.msg().method() == method
    }

    pub fn answers(&self, method: Method, status: u16) -> bool {
        self.sip.msg().status() == status && self.sip.msg().method() == method
    }

    /// An OPTIONS that the element made itself.
    pub fn is_probe(&self) -> bool {
        self.is(Method::Options) && self.sip.msg().via_count() == 1
    }
}

/// What to answer at once; `None`: nothing.
type Auto = Box<dyn FnMut(&Received) -> Option<u16> + Send>;

struct Inner {
    udp: UdpSocket,
    addr: SocketAddr,
    log: Mutex<Vec<Arc<Received>>>,
    /// Those that a test has waited for already.
    taken: Mutex<usize>,
    news: Notify,
    auto: Mutex<Auto>,
    /// Close a connection once something was answered on it.
    close_after_answer: Mutex<bool>,
}

pub struct Agent {
    inner: Arc<Inner>,
    _tasks: JoinSet<()>,
}

/// A connection that the agent has made.
pub struct Conn {
    pub local: SocketAddr,
    queue: mpsc::UnboundedSender<Bytes>,
    task: tokio::task::JoinHandle<()>,
}

impl Conn {
    pub fn send(&self, bytes: Bytes) {
        self.queue.send(bytes).unwrap();
    }

    /// Ends it, and waits until it is closed.
    pub async fn close(self) {
        self.task.abort();
        let _ = self.task.await;
    }
}

impl Agent {
    /// On a free port of `ip`; answers nothing by itself.
    pub async fn start(ip: &str) -> Self {
        let (tcp, udp) = loop {
            let tcp = TcpListener::bind((ip, 0)).await.unwrap();
            if let Ok(udp) = UdpSocket::bind(tcp.local_addr().unwrap()).await {
                break (tcp, udp);
            }
        };
        let inner = Arc::new(Inner {
            addr: udp.local_addr().unwrap(),
            udp,
            log: Mutex::default(),
            taken: Mutex::default(),
            news: Notify::new(),
            auto: Mutex::new(Box::new(|_| None)),
            close_after_answer: Mutex::default(),
        });
        let mut tasks = JoinSet::new();
        tasks.spawn(Arc::clone(&inner).datagrams());
        let accepting = Arc::clone(&inner);
        tasks.spawn(async move {
            let mut connections = JoinSet::new();
            loop {
                let (stream, _) = tcp.accept().await.unwrap();
                let (queue, queued) = mpsc::unbounded_channel();
                connections.spawn(Arc::clone(&accepting).connection(stream, queue, queued));
            }
        });
        Self { inner, _tasks: tasks }
    }

    pub fn addr(&self) -> SocketAddr {
        self.inner.addr
    }

    pub fn sender(&self, transport: Transport) -> Sender {
        Sender { transport, addr: self.addr() }
    }

    pub fn auto(&self, f: impl FnMut(&Received) -> Option<u16> + Send + 'static) {
        *self.inner.auto.lock().unwrap() = Box::new(f);
    }

    pub fn close_after_answer(&self) {
        *self.inner.close_after_answer.lock().unwrap() = true;
    }

    pub async fn send(&self, bytes: Bytes, to: SocketAddr) {
        self.inner.udp.send_to(&bytes, to).await.unwrap();
    }

    /// Opens a connection; `reset`: [`Conn::close`] resets it instead of closing it in order.
    pub async fn connect(&self, to: SocketAddr, reset: bool) -> Conn {
        let socket = tokio::net::TcpSocket::new_v4().unwrap();
        socket.bind(SocketAddr::new(self.addr().ip(), 0)).unwrap();
        let stream = socket.connect(to).await.unwrap();
        if reset {
            stream.set_zero_linger().unwrap();
        }
        let local = stream.local_addr().unwrap();
        let (queue, queued) = mpsc::unbounded_channel();
        let task = tokio::spawn(Arc::clone(&self.inner).connection(stream, queue.clone(), queued));
        Conn { local, queue, task }
    }

    pub async fn reply(&self, to: &Received, status: u16) {
        self.inner.reply(to, status).await;
    }

    /// How many there are in the log.
    pub fn count(&self, what: impl Fn(&Received) -> bool) -> usize {
        self.inner.log.lock().unwrap().iter().filter(|r| what(r)).count()
    }

    /// The next message of the kind since the last call, whatever came before it.
    pub async fn expect(&self, why: &str, what: impl Fn(&Received) -> bool) -> Arc<Received> {
        let look = || {
            let log = self.inner.log.lock().unwrap();
            let mut taken = self.inner.taken.lock().unwrap();
            let found = log.iter().enumerate().skip(*taken).find(|(_, r)| what(r))?;
            *taken = found.0 + 1;
            Some(Arc::clone(found.1))
        };
        let wait = async {
            loop {
                let news = self.inner.news.notified();
                if let Some(found) = look() {
                    return found;
                }
                news.await;
            }
        };
        tokio::time::timeout(PATIENCE, wait).await.unwrap_or_else(|_| {
            let log = self.inner.log.lock().unwrap();
            let seen: Vec<String> = log.iter().map(|r| r.sip.start_line()).collect();
            panic!("{why}: never came; seen: {seen:#?}")
        })
    }
}

impl Inner {
    async fn reply(&self, to: &Received, status: u16) {
        let contact = Sender { transport: to.transport, addr: self.addr }.contact("bob");
        let bytes = answer(&to.sip, to.from, status, "Whatever", "agent", &contact);
        match &to.conn {
            Some(queue) => drop(queue.send(bytes)),
            None => drop(self.udp.send_to(&bytes, to.from).await),
        }
    }

    async fn take(&self, received: Received) -> bool {
        let status = (self.auto.lock().unwrap())(&received);
        let received = Arc::new(received);
        // First the log: whoever sees the answer may look there.
        self.log.lock().unwrap().push(Arc::clone(&received));
        self.news.notify_waiters();
        if let (Some(status), true) = (status, received.sip.msg().is_request()) {
            self.reply(&received, status).await;
        }
        status.is_some() && *self.close_after_answer.lock().unwrap()
    }

    async fn datagrams(self: Arc<Self>) {
        let mut buffer = vec![0; 65_536];
        loop {
            if let Ok((n, from)) = self.udp.recv_from(&mut buffer).await
                && let Some(sip) = Sip::parse(buffer[..n].to_vec(), Framing::Datagram)
            {
                self.take(Received { sip, from, transport: Transport::Udp, conn: None }).await;
            }
        }
    }

    async fn connection(
        self: Arc<Self>,
        stream: TcpStream,
        queue: mpsc::UnboundedSender<Bytes>,
        mut queued: mpsc::UnboundedReceiver<Bytes>,
    ) {
        let from = stream.peer_addr().unwrap();
        let (read, mut write) = stream.into_split();
        let mut incoming = Incoming::new(read);
        let mut closing = false;
        loop {
            tokio::select! {
                biased;
                bytes = queued.recv() => if write.write_all(&bytes.unwrap()).await.is_err() { return },
                message = incoming.next(), if !closing => {
                    let Some(sip) = message else { return };
                    let conn = Some(queue.clone());
                    closing = self.take(Received { sip, from, transport: Transport::Tcp, conn }).await;
                }
                () = std::future::ready(()), if closing => return,
            }
        }
    }
}

/// One side of a dialog (RFC 3261 §12).
pub struct Side {
    pub me: Sender,
    pub local: String,
    pub remote: String,
    pub call_id: String,
    pub target: String,
    pub routes: Vec<String>,
    pub cseq: u32,
}

impl Side {
    /// The caller's, from the 2xx.
    pub fn caller(me: Sender, ok: &Sip) -> Self {
        let mut routes = ok.route_uris(Name::RecordRoute);
        routes.reverse();
        Self {
            me,
            local: ok.rows("from").remove(0),
            remote: ok.rows("to").remove(0),
            call_id: ok.call_id(),
            target: ok.contact().unwrap(),
            routes,
            cseq: 1,
        }
    }

    /// The called one's, from the INVITE, answered by [`Agent::reply`].
    pub fn callee(me: Sender, invite: &Sip) -> Self {
        Self {
            me,
            local: format!("{};tag=agent", invite.rows("to").remove(0)),
            remote: invite.rows("from").remove(0),
            call_id: invite.call_id(),
            target: invite.contact().unwrap(),
            routes: invite.route_uris(Name::RecordRoute),
            cseq: 100,
        }
    }

    /// A request within the dialog; ACK belongs to the last INVITE.
    pub fn request(&mut self, method: &str) -> Bytes {
        if method != "ACK" {
            self.cseq += 1;
        }
        RequestParts {
            sender: &self.me,
            method,
            uri: &self.target,
            branch: &format!("z9hG4bK{}{}{}", self.cseq, method, self.call_id),
            routes: &self.routes,
            from: &self.local,
            to: &self.remote,
            call_id: &self.call_id,
            cseq: self.cseq,
        }
        .build()
    }

    /// Address and transport of the first hop; all Routes here are numeric.
    pub fn first_hop(&self) -> (SocketAddr, Transport) {
        let uri = self.routes.first().unwrap().strip_prefix("sip:").unwrap();
        let (addr, params) = uri.split_once(';').unwrap();
        let transport = params.split(';').find_map(|p| p.strip_prefix("transport="));
        let transport = transport.map_or(Transport::Udp, |t| Transport::from_token(t.as_bytes()).unwrap());
        (addr.parse().unwrap(), transport)
    }
}

/// A new INVITE.
pub fn invite(me: &Sender, uri: &str, call_id: &str) -> Bytes {
    request(me, "INVITE", uri, call_id)
}

/// A new request outside a dialog.
pub fn request(me: &Sender, method: &str, uri: &str, call_id: &str) -> Bytes {
    RequestParts {
        sender: me,
        method,
        uri,
        branch: &format!("z9hG4bK{method}{call_id}"),
        routes: &[],
        from: "<sip:alice@own.example.test>;tag=alice",
        to: &format!("<{uri}>"),
        call_id,
        cseq: 1,
    }
    .build()
}
