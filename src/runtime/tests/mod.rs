#![allow(clippy::unwrap_used)]
//! Real sockets on loopback around a scripted element.

pub(super) mod config;
mod driver;
mod pool;
mod tcp;
mod tls;
mod udp;

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use bytes::Bytes;

use super::*;
use crate::flow::{ConnId, Hop, ListenerId, Origin, SendFailure, Transport};
use crate::location::{LocateKey, Located, Outcome};
use crate::shard::io::{Input, Output, Send as SendOut, SendToken, Ticket, Update};
use config::config;

/// Longer than anything takes; a test that waits this long has failed.
const PATIENCE: Duration = Duration::from_secs(20);

/// An input, kept.
#[derive(Clone, Debug)]
enum Seen {
    Message { origin: Origin, bytes: Vec<u8> },
    Located(Ticket),
    Sent(SendToken, ConnId),
    Failed(SendToken, SendFailure),
    Undeliverable { to: SocketAddr, payload: Vec<u8> },
    Closed(ConnId),
    Updated,
    Timeout,
}

/// What all elements of a node have seen, with the shard's number, and when.
#[derive(Clone, Default)]
struct Record(Arc<(Mutex<Log>, Condvar, Mutex<Vec<Duration>>)>);

type Log = Vec<(usize, Seen)>;

impl Record {
    fn push(&self, shard: usize, seen: Seen) {
        self.0.0.lock().unwrap().push((shard, seen));
        self.0.1.notify_all();
    }

    /// Waits until `f` finds what it looks for.
    fn wait<R>(&self, mut f: impl FnMut(&[(usize, Seen)]) -> Option<R>) -> R {
        let until = Instant::now() + PATIENCE;
        let mut log = self.0.0.lock().unwrap();
        loop {
            if let Some(found) = f(&log) {
                return found;
            }
            let left = until.saturating_duration_since(Instant::now());
            assert!(!left.is_zero(), "never came; seen: {:?}", log.iter().rev().take(20).collect::<Vec<_>>());
            log = self.0.1.wait_timeout(log, left).unwrap().0;
        }
    }

    fn wait_count(&self, n: usize, what: impl Fn(&Seen) -> bool) {
        self.wait(|log| (log.iter().filter(|(_, s)| what(s)).count() >= n).then_some(()));
    }

    fn count(&self, what: impl Fn(&Seen) -> bool) -> usize {
        self.0.0.lock().unwrap().iter().filter(|(_, s)| what(s)).count()
    }

    /// The message that holds `text`.
    fn message(&self, text: &str) -> (usize, Origin, Vec<u8>) {
        self.wait(|log| {
            log.iter().find_map(|(shard, seen)| match seen {
                Seen::Message { origin, bytes } if String::from_utf8_lossy(bytes).contains(text) => {
                    Some((*shard, origin.clone(), bytes.clone()))
                }
                _ => None,
            })
        })
    }

    /// The longest wait that messages were said to have had.
    fn longest_wait(&self) -> Duration {
        self.0.2.lock().unwrap().iter().max().copied().unwrap_or_default()
    }

    fn failure(&self, token: SendToken) -> SendFailure {
        self.wait(|log| {
            log.iter().find_map(|(_, seen)| match seen {
                Seen::Failed(t, failure) if *t == token => Some(*failure),
                _ => None,
            })
        })
    }

    fn sent(&self, token: SendToken) -> ConnId {
        self.wait(|log| {
            log.iter().find_map(|(_, seen)| match seen {
                Seen::Sent(t, conn) if *t == token => Some(*conn),
                _ => None,
            })
        })
    }

    fn closed(&self, conn: ConnId) {
        self.wait_count(1, |s| matches!(s, Seen::Closed(c) if *c == conn));
    }
}

type Script = Box<dyn FnMut(&mut Scripted, Instant, &Seen) + Send>;

/// An element that records what it sees and does what its script says.
struct Scripted {
    shard: usize,
    record: Record,
    script: Option<Script>,
    outputs: VecDeque<Output>,
    timeout: Option<Instant>,
}

impl Scripted {
    fn handle(&mut self, now: Instant, seen: Seen) {
        if let Some(mut script) = self.script.take() {
            script(self, now, &seen);
            self.script = Some(script);
        }
        self.record.push(self.shard, seen);
    }

    fn send(&mut self, hop: Hop, bytes: impl Into<Bytes>, token: Option<SendToken>, request: bool) {
        self.outputs.push_back(Output::Send(SendOut { hop, bytes: bytes.into(), token, request }));
    }
}

impl Element for Scripted {
    type Reader = ();

    fn handle_input(&mut self, now: Instant, input: Input<'_>) {
        let seen = match input {
            Input::Waited { delay, .. } => {
                self.record.0.2.lock().unwrap().push(delay);
                return;
            }
            Input::Message { origin, bytes } | Input::Read { origin, bytes, .. } => {
                Seen::Message { origin: origin.clone(), bytes: bytes.to_vec() }
            }
            Input::Located { ticket, .. } => Seen::Located(ticket),
            Input::Sent { token, conn, .. } => Seen::Sent(token, conn),
            Input::SendFailed { token, failure } => Seen::Failed(token, failure),
            Input::Undeliverable { to, payload } => Seen::Undeliverable { to, payload: payload.to_vec() },
            Input::ConnectionClosed { conn } => Seen::Closed(conn),
            Input::Update(_) => Seen::Updated,
        };
        self.handle(now, seen);
    }

    fn handle_timeout(&mut self, now: Instant) {
        self.timeout = None;
        self.handle(now, Seen::Timeout);
    }

    fn poll_output(&mut self) -> Option<Output> {
        self.outputs.pop_front()
    }

    fn poll_timeout(&self) -> Option<Instant> {
        self.timeout
    }

    /// `Call-ID: 7` belongs to shard 7 modulo their number.
    fn shard_of(bytes: &[u8], _secret: u64, shards: usize) -> usize {
        let text = String::from_utf8_lossy(bytes);
        let id = text.lines().find_map(|l| l.strip_prefix("Call-ID: "));
        id.and_then(|id| id.parse::<usize>().ok()).unwrap_or(0) % shards
    }

    fn read_ahead<'a>(
        _reader: &mut (),
        _origin: &Origin,
        bytes: &[u8],
        _limits: &'a crate::wire::Limits,
        secret: u64,
        shards: usize,
    ) -> (usize, Option<crate::shard::io::ReadAhead<'a>>) {
        assert!(!String::from_utf8_lossy(bytes).contains("unreadable"));
        (Self::shard_of(bytes, secret, shards), None)
    }
}

/// Knows every place at once, or after a while.
struct Known {
    cached: bool,
}

fn nowhere(key: LocateKey) -> Arc<Located> {
    Arc::new(Located::from_tiers(key, Vec::new(), Outcome::NoSuchName, Instant::now()))
}

impl Locator for Known {
    fn locate_cached(&self, key: &LocateKey, _now: Instant) -> Option<Arc<Located>> {
        self.cached.then(|| nowhere(key.clone()))
    }

    fn locate(&self, key: Arc<LocateKey>) -> BoxFuture<Arc<Located>> {
        Box::pin(async move {
            tokio::task::yield_now().await;
            nowhere(LocateKey::clone(&key))
        })
    }
}

/// A running node and what its elements see.
struct World {
    handle: Handle<Scripted>,
    record: Record,
}

/// The configuration of a test, to be changed before the start.
struct Plan {
    config: Config,
    cached: bool,
    over: SpreadOver,
}

fn plan(listen: &[(Transport, &str)]) -> Plan {
    Plan { config: config(listen), cached: true, over: SpreadOver::All }
}

impl Plan {
    fn workers(mut self, n: usize) -> Self {
        self.config.runtime.workers = n;
        self
    }

    /// Starts with the same script in every shard.
    fn start<S>(self, script: S) -> World
    where
        S: FnMut(&mut Scripted, Instant, &Seen) + Clone + Send + 'static,
    {
        let record = Record::default();
        let shards = (0..workers(&self.config))
            .map(|shard| Scripted {
                shard,
                record: record.clone(),
                script: Some(Box::new(script.clone())),
                outputs: VecDeque::new(),
                timeout: None,
            })
            .collect();
        let locator = Arc::new(Known { cached: self.cached });
        let handle = start_spread(&self.config, shards, locator, 7, self.over, Heritage::default()).unwrap();
        World { handle, record }
    }
}

impl World {
    fn addr(&self, listener: usize) -> SocketAddr {
        self.handle.listeners()[listener].bind
    }

    /// Makes shard 0 send something.
    fn send(&self, hop: Hop, bytes: &[u8], token: Option<SendToken>, request: bool) {
        self.handle.with_shard(0, |s| s.send(hop, bytes.to_vec(), token, request)).unwrap();
        // Any news makes the worker look at its shard.
        self.handle.update_one(0, Update::Drain(false));
    }

    /// Waits for something that nobody reports.
    fn until(&self, what: &str, mut f: impl FnMut(&Handle<Scripted>) -> bool) {
        let until = Instant::now() + PATIENCE;
        while !f(&self.handle) {
            assert!(Instant::now() < until, "never: {what}");
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

/// Sends every request back to where it came from as a 200 with the same Call-ID and text.
fn answering(s: &mut Scripted, _: Instant, seen: &Seen) {
    if let Seen::Message { origin, bytes } = seen
        && !bytes.starts_with(b"SIP/2.0 ")
        && !bytes.starts_with(b"ACK ")
    {
        s.send(back(origin), response_to(bytes), None, false);
    }
}

fn silent(_: &mut Scripted, _: Instant, _: &Seen) {}

/// The way back to where a message came from.
fn back(origin: &Origin) -> Hop {
    Hop { conn: origin.conn, ..hop(origin.transport, usize::from(origin.listener.0), origin.remote) }
}

fn hop(transport: Transport, listener: usize, remote: SocketAddr) -> Hop {
    Hop {
        transport,
        listener: ListenerId(u16::try_from(listener).unwrap()),
        remote,
        conn: None,
        fresh: false,
        tls: None,
    }
}

fn request(call: usize, text: &str) -> Vec<u8> {
    format!("OPTIONS sip:a@b SIP/2.0\r\nCall-ID: {call}\r\nSubject: {text}\r\nContent-Length: 0\r\n\r\n")
        .into_bytes()
}

fn response_to(request: &[u8]) -> Vec<u8> {
    let head = request.iter().position(|b| *b == b'\n').unwrap() + 1;
    [b"SIP/2.0 200 OK\r\n", &request[head..]].concat()
}

/// A token of shard 0.
fn token(n: u64) -> SendToken {
    SendToken(n)
}
