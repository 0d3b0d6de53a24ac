//! One shard on a bench: what goes in is written out by hand, what comes out is looked at at once.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use sbe::config::Config;
use sbe::flow::{ConnId, ListenerId, Origin, SendFailure, TlsExpectation, TlsIdentity, Transport};
use sbe::peering::Ledger;
use sbe::proxy::Policy;
use sbe::shard::{Event, Input, Output, Passed, Seeds, SendToken, Shard, Ticket, Update};

use crate::msg::Msg;
use crate::zone::Zone;

/// What the element sent.
#[derive(Clone, Debug)]
pub struct Out {
    pub to: SocketAddr,
    pub transport: Transport,
    pub listener: u16,
    pub token: Option<SendToken>,
    pub conn: Option<ConnId>,
    pub tls: Option<TlsExpectation>,
    pub msg: Msg,
}

impl Out {
    /// `INVITE 198.51.100.10:5060` or `180 10.0.1.1:5060`.
    pub fn line(&self) -> String {
        let what =
            if self.msg.is_request() { self.msg.method().to_string() } else { self.msg.status().to_string() };
        format!("{what} {}", self.to)
    }
}

pub const CORE: &str = "10.0.1.1:5060";
pub const PEER: &str = "198.51.100.200:5060";

const CONFIG: &str = r#"
[node]
name = "sbe1.example.com"
domains = ["example.com"]
[[listen]]
transport = "udp"
bind = "10.0.0.1:5060"
realm = "core"
[[listen]]
transport = "udp"
bind = "192.0.2.10:5060"
realm = "peering"
[[listen]]
transport = "tcp"
bind = "192.0.2.10:5060"
realm = "peering"
[core]
next_hops = ["sip:10.0.0.5:5060;transport=udp"]
sources = ["10.0.0.0/8"]
[[peer]]
name = "p1"
domains = ["p1.example"]
sources = ["198.51.100.0/24"]
[[peer]]
name = "p2"
domains = ["p2.example"]
sources = ["203.0.113.0/24"]
[[route]]
prefix = "+44"
peers = ["p2", "p1"]
"#;

pub struct Rig {
    pub shard: Shard,
    pub now: Instant,
    pub zone: Zone,
    pub policy: Arc<Policy>,
    pub events: Vec<Event>,
    /// Questions left unanswered while `hold` is set.
    pub held: Vec<(Ticket, sbe::location::LocateKey)>,
    pub hold: bool,
    pub ledger: Arc<Ledger>,
    /// Datagrams for who takes over.
    pub passed: Vec<Passed>,
}

impl Rig {
    pub fn new() -> Self {
        Self::with("")
    }

    /// With further lines of configuration, which must begin with a table header.
    pub fn with(more: &str) -> Self {
        Self::of(&format!("{CONFIG}{more}"))
    }

    /// As [`Self::with`], with something else in the place of what the configuration says.
    pub fn replacing(what: &str, with: &str, more: &str) -> Self {
        assert!(CONFIG.contains(what), "{what}");
        Self::of(&format!("{}{more}", CONFIG.replace(what, with)))
    }

    fn of(text: &str) -> Self {
        Self::seeded(text, [3; 32])
    }

    /// Another process of the same node: the same secrets, other branches.
    pub fn successor() -> Self {
        Self::seeded(CONFIG, [4; 32])
    }

    fn seeded(text: &str, seed: [u8; 32]) -> Self {
        let config = Config::from_toml_str(text).expect("the bench's configuration is right");
        let now = Instant::now();
        let ledger = Arc::new(Ledger::new(now));
        let policy = Arc::new(Policy::new(Arc::new(config), Arc::clone(&ledger), [7; 16], None));
        let seeds =
            Seeds { seed, keys: [1, 2, 3, 4, 5, 6, 7, 8], call: [9, 8, 7, 6], loops: [5, 4], owner: 0 };
        let mut zone = Zone::new(Duration::from_secs(300));
        for (n, priority) in [(1, 1), (2, 2), (3, 3)] {
            let host = format!("i{n}.p1.example");
            zone.srv("_sip._udp.p1.example", priority, 10, 5060, &host);
            zone.addr(&host, &format!("198.51.100.1{n}"));
        }
        zone.srv("_sip._tcp.p2.example", 1, 10, 5060, "t1.p2.example");
        zone.srv("_sip._tcp.p2.example", 2, 10, 5060, "t2.p2.example");
        zone.addr("t1.p2.example", "203.0.113.1");
        zone.addr("t2.p2.example", "203.0.113.2");
        Self {
            shard: Shard::new(0, 1, Arc::clone(&policy), &seeds),
            now,
            zone,
            policy,
            events: Vec::new(),
            held: Vec::new(),
            hold: false,
            ledger,
            passed: Vec::new(),
        }
    }

    /// A datagram from an address: the core's listener for 10/8, else the peers'.
    pub fn udp(&mut self, from: &str, bytes: &[u8]) -> Vec<Out> {
        let remote: SocketAddr = from.parse().expect("an address");
        let (listener, local) =
            if from.starts_with("10.") { (0, "10.0.0.1:5060") } else { (1, "192.0.2.10:5060") };
        let origin = Origin {
            transport: Transport::Udp,
            listener: ListenerId(listener),
            remote,
            local: local.parse().expect("an address"),
            conn: None,
            identity: None,
        };
        self.input(Input::Message { origin: &origin, bytes })
    }

    /// A message on a connection to the peers' TCP listener.
    pub fn tcp(&mut self, from: &str, conn: u64, bytes: &[u8]) -> Vec<Out> {
        let origin = Origin {
            transport: Transport::Tcp,
            listener: ListenerId(2),
            remote: from.parse().expect("an address"),
            local: "192.0.2.10:5060".parse().expect("an address"),
            conn: Some(ConnId(conn)),
            identity: None,
        };
        self.input(Input::Message { origin: &origin, bytes })
    }

    /// A message on a TLS connection to a listener, from somebody whose certificate holds these names.
    pub fn tls(&mut self, listener: u16, from: &str, conn: u64, names: &[&str], bytes: &[u8]) -> Vec<Out> {
        let names: Vec<String> = names.iter().map(|n| (*n).to_owned()).collect();
        let origin = Origin {
            transport: Transport::Tls,
            listener: ListenerId(listener),
            remote: from.parse().expect("an address"),
            local: self.policy.listeners[usize::from(listener)].bind,
            conn: Some(ConnId(conn)),
            identity: (!names.is_empty()).then(|| Arc::new(TlsIdentity { names })),
        };
        self.input(Input::Message { origin: &origin, bytes })
    }

    pub fn input(&mut self, input: Input<'_>) -> Vec<Out> {
        self.shard.handle_input(self.now, input);
        self.outputs()
    }

    pub fn fail(&mut self, token: Option<SendToken>, failure: SendFailure) -> Vec<Out> {
        self.input(Input::SendFailed { token: token.expect("a token"), failure })
    }

    pub fn update(&mut self, update: Update) -> Vec<Out> {
        self.input(Input::Update(update))
    }

    /// Lets time pass, firing timers when they are due; gives all that is sent meanwhile with its time.
    pub fn pass(&mut self, millis: u64) -> Vec<(u64, Out)> {
        let (from, end) = (self.now, self.now + Duration::from_millis(millis));
        let mut all = Vec::new();
        while let Some(due) = self.shard.poll_timeout().filter(|t| *t <= end) {
            self.now = self.now.max(due);
            self.shard.handle_timeout(self.now);
            let at = u64::try_from((self.now - from).as_millis()).unwrap_or(u64::MAX);
            all.extend(self.outputs().into_iter().map(|o| (at, o)));
        }
        self.now = end;
        all
    }

    /// Answers what was held back.
    pub fn release(&mut self) -> Vec<Out> {
        self.hold = false;
        let mut all = Vec::new();
        for (ticket, key) in std::mem::take(&mut self.held) {
            let result = Arc::new(self.zone.locate(&key, self.policy.enabled(key.realm), self.now));
            all.extend(self.input(Input::Located { ticket, result }));
        }
        all
    }

    fn outputs(&mut self) -> Vec<Out> {
        let mut all = Vec::new();
        while let Some(output) = self.shard.poll_output() {
            match output {
                Output::Send(send) => all.push(Out {
                    to: send.hop.remote,
                    transport: send.hop.transport,
                    listener: send.hop.listener.0,
                    token: send.token,
                    conn: send.hop.conn,
                    tls: send.hop.tls.as_deref().cloned(),
                    msg: Msg::parse(&send.bytes).expect("the element writes messages"),
                }),
                Output::Locate { ticket, key } if self.hold => self.held.push((ticket, key)),
                Output::Locate { ticket, key } => {
                    let result = Arc::new(self.zone.locate(&key, self.policy.enabled(key.realm), self.now));
                    self.shard.handle_input(self.now, Input::Located { ticket, result });
                }
                Output::Event(event) => self.events.push(event),
                Output::Pass(passed) => self.passed.push(*passed),
            }
        }
        all
    }

    /// After a long time nothing is left.
    pub fn expect_empty(&mut self) {
        self.pass(24 * 3600 * 1000);
        assert_eq!(
            (self.shard.contexts(), self.shard.timers(), self.shard.calls(), self.shard.open()),
            (0, 0, 0, 0),
            "contexts, timers, calls, open"
        );
        for peer in 0..3 {
            assert_eq!(self.ledger.calls(sbe::flow::PeerId(peer)), 0);
        }
    }
}

/// What was sent, in short.
pub fn lines(outs: &[Out]) -> Vec<String> {
    outs.iter().map(Out::line).collect()
}

/// What was sent and when, in short.
pub fn timed(outs: &[(u64, Out)]) -> Vec<String> {
    outs.iter().map(|(at, o)| format!("{at} {}", o.line())).collect()
}
