//! The driver's part: inputs to the shard that owns them, outputs to the network, news to the other shards.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use sbe::flow::{ListenerId, Origin, PeerId, SendFailure, Transport};
use sbe::location::{Instance, LocateKey, Observation, Question};
use sbe::shard::{Event, Input, Output, Send, SendToken, Ticket, Update, shard_of};

use super::net::ConnState;
use super::parts::Path;
use super::{Ev, MS, SEC, SECRET, World};

/// What is left to do after an input.
#[derive(Debug)]
pub enum Step {
    Stream(usize, Send),
    Locate(usize, Ticket, Arc<LocateKey>),
    Health(usize, Instance, Observation),
    Failed(usize, SendToken, SendFailure),
}

impl World {
    fn input(&mut self, shard: usize, input: Input<'_>) {
        let now = self.instant();
        self.shards[shard].handle_input(now, input);
        self.collect(shard);
    }

    /// Takes a shard's outputs; what needs no second thought is done at once.
    pub(super) fn collect(&mut self, shard: usize) {
        while let Some(output) = self.shards[shard].poll_output() {
            match output {
                Output::Send(send) => {
                    let now = self.instant();
                    let what = format!("{shard} -> {} {}", send.hop.transport, send.hop.remote);
                    self.traced(&what, &send.bytes);
                    self.check.sent(now, &self.shards[shard], &send);
                    if send.hop.transport == Transport::Udp {
                        self.element_datagram(&send);
                    } else {
                        self.steps.push_back(Step::Stream(shard, send));
                    }
                }
                Output::Locate { ticket, key } => {
                    let now = self.instant();
                    match self.dns.cached(&key, now) {
                        Some(result) => {
                            self.shards[shard].handle_input(now, Input::Located { ticket, result })
                        }
                        None => self.steps.push_back(Step::Locate(shard, ticket, Arc::new(key))),
                    }
                }
                Output::Event(Event::Health(instance, seen)) => {
                    let now = self.instant();
                    self.traced(&format!("{shard} saw {instance} {seen:?}"), b"");
                    self.check.health.observe(now, instance, seen);
                    self.steps.push_back(Step::Health(shard, instance, seen));
                }
                Output::Event(Event::FailedOver { call_id, .. }) => {
                    // With decision records or without: the log names the call.
                    assert!(!call_id.is_empty());
                    self.check.counts.failovers += 1;
                }
                Output::Event(_) => {}
                Output::Pass(_) => unreachable!("nobody takes over"),
            }
        }
    }

    /// Does what is left to do, and what follows from that.
    pub(super) fn settle(&mut self) {
        while let Some(step) = self.steps.pop_front() {
            match step {
                Step::Stream(shard, send) => self.element_stream(shard, send),
                Step::Locate(shard, ticket, key) => {
                    let enabled = self.policy.enabled(key.realm).clone();
                    if let Some(id) = self.dns.begin(shard, ticket, key, &enabled) {
                        self.dns_ask(id);
                    }
                }
                Step::Health(from, instance, seen) => {
                    for other in (0..self.shards.len()).filter(|s| *s != from) {
                        self.input(other, Input::Update(Update::Health(instance, seen)));
                    }
                }
                Step::Failed(shard, token, failure) => {
                    let now = self.instant();
                    self.traced(&format!("{shard} failed {}", failure.label()), &token.0.to_be_bytes());
                    self.check.send_failed(now, token, failure);
                    self.input(shard, Input::SendFailed { token, failure });
                }
            }
        }
    }

    /// A message arrives at the element.
    fn element_receives(&mut self, origin: &Origin, bytes: &[u8]) {
        let now = self.instant();
        self.traced(&format!("  <- {} {}", origin.transport, origin.remote), bytes);
        self.check.received(now, origin, bytes);
        let shard = shard_of(bytes, SECRET, self.shards.len());
        self.input(shard, Input::Message { origin, bytes });
        self.settle();
    }

    fn listener_at(&self, transport: Transport, bind: SocketAddr) -> Option<ListenerId> {
        self.policy.listeners.iter().find(|l| l.transport == transport && l.bind == bind).map(|l| l.id)
    }

    fn bind_of(&self, listener: ListenerId) -> SocketAddr {
        self.policy.listener(listener).expect("a listener").bind
    }

    fn element_datagram(&mut self, send: &Send) {
        if self.over {
            return;
        }
        let from = self.bind_of(send.hop.listener);
        for after in self.net.datagram() {
            self.later(after, Ev::Datagram { from, to: send.hop.remote, bytes: send.bytes.to_vec() });
        }
    }

    /// A datagram arrives somewhere.
    pub(super) fn datagram(&mut self, from: SocketAddr, to: SocketAddr, bytes: Vec<u8>) {
        if let Some(listener) = self.listener_at(Transport::Udp, to) {
            // What a dead process sent before it died still arrives; a partition holds it back.
            let cut = match self.servers.iter().find(|s| s.addr == from) {
                Some(server) => server.partitioned,
                None => self.callers_off,
            };
            if !cut {
                let origin = Origin {
                    transport: Transport::Udp,
                    listener,
                    remote: from,
                    local: to,
                    conn: None,
                    identity: None,
                };
                self.element_receives(&origin, &bytes);
            }
            return;
        }
        let closed = self
            .servers
            .iter()
            .any(|s| s.addr == to && s.mode == super::plan::Mode::Closed && !s.partitioned);
        if closed {
            if !bytes.starts_with(b"SIP/2.0 ") && self.dice.permille(900) {
                let quoted = *self.dice.pick(&[60, 548, 548, 548, 4000]);
                let payload = bytes[..bytes.len().min(quoted)].to_vec();
                let after = self.net.latency();
                self.later(after, Ev::Icmp { to, payload });
            }
            return;
        }
        self.agent_receives(Path { tcp: false, from: to, to: from, conn: None }, &bytes);
    }

    pub(super) fn icmp(&mut self, to: SocketAddr, payload: &[u8]) {
        let now = self.instant();
        self.traced(&format!("icmp {to}"), payload);
        self.check.icmp(now, to, payload);
        let whole = String::from_utf8_lossy(payload);
        let owner = whole.lines().any(|l| l.to_ascii_lowercase().starts_with("call-id:"))
            && whole.contains("\r\nCSeq");
        let shards = self.shards.len();
        if owner {
            self.input(shard_of(payload, SECRET, shards), Input::Undeliverable { to, payload });
        } else {
            for shard in 0..shards {
                self.input(shard, Input::Undeliverable { to, payload });
            }
        }
        self.settle();
    }

    /// The element sends on a stream: the connection it names, a pooled one, or a new one.
    fn element_stream(&mut self, shard: usize, send: Send) {
        if self.over {
            return;
        }
        let (hop, token) = (&send.hop, send.token);
        let found = match hop.conn {
            Some(id) => self.net.conn(id.0).filter(|c| c.usable()).map(|c| c.id),
            None => Some(self.conn_for(hop.listener, hop.remote, hop.fresh)),
        };
        let Some(conn) = found else {
            self.steps.extend(token.map(|t| Step::Failed(shard, t, SendFailure::Closed { reused: true })));
            return;
        };
        if let (Some(token), true) = (token, send.request) {
            let reused = self.net.conn(conn).is_some_and(|c| c.state != ConnState::Connecting);
            let id = sbe::flow::ConnId(conn);
            self.check.on_conn(token, id, reused);
            self.input(shard, Input::Sent { token, conn: id, reused });
        }
        let lucky = self.dice.permille(500);
        let latency = self.net.latency();
        let now = self.now;
        let Some(conn) = self.net.conn(conn) else { return };
        conn.carried_requests |= send.request;
        match conn.state {
            ConnState::Connecting => conn.waiting.push((send.bytes.to_vec(), token)),
            ConnState::Open => {
                let (at, id) = (conn.arrival(now, latency, false), conn.id);
                self.at(at, Ev::Stream { conn: id, to_element: false, bytes: send.bytes.to_vec() });
            }
            // The write fails, or it is swallowed before the reset is seen.
            ConnState::Dying if lucky => {
                self.steps
                    .extend(token.map(|t| Step::Failed(shard, t, SendFailure::Closed { reused: true })));
            }
            ConnState::Dying | ConnState::Closed => {}
        }
    }

    fn conn_for(&mut self, listener: ListenerId, remote: SocketAddr, fresh: bool) -> u64 {
        if let Some(id) = self.net.pooled(&[listener.0], remote, fresh, self.now) {
            return id;
        }
        let id = self.net.open(listener.0, remote, true, self.now);
        let (refuses, silent) = match self.servers.iter().find(|s| s.addr == remote) {
            Some(server) => {
                let closed = server.mode == super::plan::Mode::Closed;
                (closed, server.is_off() && (!closed || server.partitioned))
            }
            None => (false, self.callers_off),
        };
        let latency = self.net.latency();
        if silent {
            self.later(SEC, Ev::ConnectFailed(id, SendFailure::ConnectTimeout));
        } else if refuses {
            self.later(2 * latency, Ev::ConnectFailed(id, SendFailure::ConnectRefused));
        } else {
            self.later(2 * latency, Ev::Connected(id));
        }
        id
    }

    pub(super) fn connected(&mut self, id: u64) {
        let (now, latency) = (self.now, self.net.latency());
        let Some(conn) = self.net.conn(id).filter(|c| c.state == ConnState::Connecting) else { return };
        conn.state = ConnState::Open;
        let waiting = std::mem::take(&mut conn.waiting);
        let times: Vec<_> = waiting.iter().map(|_| conn.arrival(now, latency, false)).collect();
        for ((bytes, _), at) in waiting.into_iter().zip(times) {
            self.at(at, Ev::Stream { conn: id, to_element: false, bytes });
        }
    }

    pub(super) fn connect_failed(&mut self, id: u64, failure: SendFailure) {
        let Some(conn) = self.net.conn(id).filter(|c| c.usable()) else { return };
        conn.state = ConnState::Closed;
        let waiting = std::mem::take(&mut conn.waiting);
        for token in waiting.into_iter().filter_map(|(_, token)| token) {
            let shard = usize::from(token.shard());
            self.steps.push_back(Step::Failed(shard, token, failure));
        }
        self.settle();
        self.tell_closed(id);
    }

    /// The element learns that a connection has ended.
    pub(super) fn conn_gone(&mut self, id: u64) {
        let Some(conn) = self.net.conn(id).filter(|c| c.usable()) else { return };
        let was_made = conn.state != ConnState::Connecting;
        if was_made {
            conn.state = ConnState::Closed;
            self.tell_closed(id);
        } else {
            self.connect_failed(id, SendFailure::ConnectRefused);
        }
    }

    fn tell_closed(&mut self, id: u64) {
        for caller in &mut self.callers {
            caller.lost(id);
        }
        let Some(conn) = self.net.conn(id) else { return };
        if !conn.carried_requests {
            return;
        }
        let conn = conn.id();
        let now = self.instant();
        self.traced("closed", &id.to_be_bytes());
        self.check.conn_closed(now, conn);
        for shard in 0..self.shards.len() {
            self.input(shard, Input::ConnectionClosed { conn });
        }
        self.settle();
    }

    /// An agent sends on a stream.
    pub(super) fn agent_stream(&mut self, caller: Option<usize>, path: Path, bytes: Vec<u8>, off: bool) {
        if off {
            return;
        }
        let open = path.conn.filter(|id| self.net.conn(*id).is_some_and(|c| c.state == ConnState::Open));
        let id = match open {
            Some(id) => id,
            None => {
                let Some(listener) = self.listener_at(Transport::Tcp, path.to) else { return };
                let id = self.net.open(listener.0, path.from, false, self.now);
                if let Some(n) = caller {
                    self.callers[n].connected(id);
                }
                id
            }
        };
        let (now, latency) = (self.now, self.net.latency());
        if let Some(conn) = self.net.conn(id) {
            let at = conn.arrival(now, latency, true);
            self.at(at, Ev::Stream { conn: id, to_element: true, bytes });
        }
    }

    /// A message arrives on a connection.
    pub(super) fn stream(&mut self, id: u64, to_element: bool, bytes: Vec<u8>) {
        let Some(conn) = self.net.conn(id).filter(|c| c.state == ConnState::Open).cloned() else { return };
        let listener = ListenerId(conn.listener);
        let local = self.bind_of(listener);
        let cut = match self.servers.iter().find(|s| s.addr == conn.remote) {
            Some(server) => server.partitioned,
            None => self.callers_off,
        };
        if cut {
            return;
        }
        if to_element {
            let id = Some(conn.id());
            let origin = Origin {
                transport: Transport::Tcp,
                listener,
                remote: conn.remote,
                local,
                conn: id,
                identity: None,
            };
            self.element_receives(&origin, &bytes);
        } else {
            self.agent_receives(Path { tcp: true, from: conn.remote, to: local, conn: Some(id) }, &bytes);
        }
    }

    fn dns_ask(&mut self, id: u64) {
        let now = self.instant();
        for question in self.dns.questions(id, now) {
            let after = if self.dns.down { 2 * SEC } else { self.net.latency() + MS };
            self.later(after, Ev::Dns(id, question));
        }
        if let Some(done) = self.dns.finish(id, now) {
            for (shard, ticket) in done.waiting {
                self.input(shard, Input::Located { ticket, result: Arc::clone(&done.result) });
            }
            self.settle();
        }
    }

    pub(super) fn dns_answer(&mut self, id: u64, question: &Question) {
        let now = self.instant();
        self.dns.answered(id, question, now);
        self.dns_ask(id);
    }

    /// The prober asks for a look at every server of the first peer.
    pub(super) fn probe(&mut self) {
        if self.now > 60 * SEC {
            return;
        }
        for n in 0..self.servers.len() {
            let addr = self.servers[n].addr;
            let Some(listener) = self.policy.egress(sbe::config::Realm::Peering, Transport::Udp, addr.ip())
            else {
                continue;
            };
            if !addr.to_string().starts_with("198.51.100.") {
                continue;
            }
            let hop = sbe::flow::Hop {
                transport: Transport::Udp,
                listener: listener.id,
                remote: addr,
                conn: None,
                fresh: false,
                tls: None,
            };
            let (uri, timeout) = (format!("sip:{addr}").into(), Duration::from_secs(1));
            self.input(0, Input::Update(Update::Probe { peer: PeerId(0), hop, uri, timeout }));
            self.settle();
        }
        if let Some(every) = self.plan.probe {
            self.later(every, Ev::Probe);
        }
    }

    pub(super) fn update_all(&mut self, update: &Update) {
        for shard in 0..self.shards.len() {
            self.input(shard, Input::Update(update.clone()));
            self.settle();
        }
    }
}
