//! A seeded world around the element: virtual time, a network with faults, a DNS, callers and servers.
//!
//! The world plays the driver's part: it feeds shards, carries out what they ask for, shares what they
//! see of instances, and lets [`check::Check`] look at all that goes in and out.

mod bytes;
mod caller;
mod check;
mod dice;
mod dns;
mod driver;
mod faults;
mod health;
mod net;
mod parts;
mod plan;
mod responses;
mod server;

use std::collections::{BTreeMap, VecDeque};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use sbe::config::Config;
use sbe::flow::SendFailure;
use sbe::location::Question;
use sbe::peering::Ledger;
use sbe::proxy::Policy;
use sbe::shard::{Seeds, Shard};

use caller::Caller;
use check::Check;
use dice::Dice;
use dns::Dns;
use driver::Step;
use net::Net;
use parts::{Act, Note, Path};
use plan::Fault;
pub use plan::Plan;
use server::Server;

/// Microseconds of the world.
pub type Micros = u64;
pub const MS: Micros = 1_000;
pub const SEC: Micros = 1_000_000;

/// Something that is going to happen.
#[derive(Debug)]
pub enum Ev {
    Caller(usize, caller::Wake),
    Server(usize, u64, server::Wake),
    Datagram {
        from: SocketAddr,
        to: SocketAddr,
        bytes: Vec<u8>,
    },
    Icmp {
        to: SocketAddr,
        payload: Vec<u8>,
    },
    Stream {
        conn: u64,
        to_element: bool,
        bytes: Vec<u8>,
    },
    Connected(u64),
    ConnectFailed(u64, SendFailure),
    /// The element learns that a connection is gone.
    Gone(u64),
    Dns(u64, Question),
    Fault(Fault),
    Probe,
}

/// What a run amounts to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Over everything that went in and came out, with its time.
    pub trace: u64,
    pub answered: u64,
    pub failed: u64,
    pub timed_out: u64,
    pub cancelled: u64,
    pub two_answers: u64,
    pub failovers: u64,
    pub late_answers: u64,
    pub late_rings: u64,
    pub messages: u64,
}

pub struct World {
    now: Micros,
    base: Instant,
    /// How far the element's clock has jumped ahead.
    skew: Micros,
    queue: BTreeMap<(Micros, u64), Ev>,
    sequence: u64,
    plan: Plan,
    dice: Dice,
    net: Net,
    dns: Dns,
    callers: Vec<Caller>,
    servers: Vec<Server>,
    callers_off: bool,
    shards: Vec<Shard>,
    policy: Arc<Policy>,
    reload: Arc<Policy>,
    ledger: Arc<Ledger>,
    steps: VecDeque<Step>,
    check: Check,
    trace: DefaultHasher,
    report: Report,
    /// The agents are gone: only the element's timers run.
    over: bool,
}

/// Keys the assignment of calls to shards.
const SECRET: u64 = 0x5eed;

impl World {
    pub fn new(plan: Plan) -> Self {
        let base = Instant::now();
        let ledger = Arc::new(Ledger::new(base));
        let parse =
            |text: &str| Arc::new(Config::from_toml_str(text).unwrap_or_else(|e| panic!("{e:?}\n{text}")));
        let policy = Arc::new(Policy::new(parse(&plan.config), Arc::clone(&ledger), [9; 16], None));
        let reload = Arc::new(Policy::new(parse(&plan.reload), Arc::clone(&ledger), [9; 16], Some(&policy)));
        let mut dice = Dice::new(plan.seed ^ 0xd1ce);
        let keys = std::array::from_fn(|_| dice.next());
        let call = std::array::from_fn(|_| dice.next());
        let loops = [dice.next(), dice.next()];
        let shards = (0..plan.shards)
            .map(|id| {
                let mut seed = [0u8; 32];
                seed.fill_with(|| dice.next() as u8);
                Shard::new(
                    id as u16,
                    plan.shards,
                    Arc::clone(&policy),
                    &Seeds { seed, keys, call, loops, owner: SECRET },
                )
            })
            .collect();
        let net = Net {
            dice: Dice::new(plan.seed ^ 0x0e7),
            loss: plan.loss,
            duplicates: plan.duplicates,
            latency: plan.latency,
            conns: Vec::new(),
        };
        let servers = plan
            .servers
            .iter()
            .enumerate()
            .map(|(n, a)| Server::new(n, a.parse().unwrap(), plan.t1))
            .collect();
        let dns = Dns::new(plan.zone.clone(), policy.config.dns.stale_ttl);
        let mut world = Self {
            now: 0,
            base,
            skew: 0,
            queue: BTreeMap::new(),
            sequence: 0,
            dice,
            net,
            dns,
            callers: Vec::new(),
            servers,
            callers_off: false,
            shards,
            check: Check::new(vec![Arc::clone(&policy), Arc::clone(&reload)]),
            policy,
            reload,
            ledger,
            steps: VecDeque::new(),
            trace: DefaultHasher::new(),
            report: Report::default(),
            over: false,
            plan,
        };
        world.populate();
        world
    }

    fn populate(&mut self) {
        for (n, job) in self.plan.jobs.clone().into_iter().enumerate() {
            let at = job.at;
            let ip = if job.core { "10." } else { "192." };
            let wanted = if job.tcp { sbe::flow::Transport::Tcp } else { sbe::flow::Transport::Udp };
            let of_transport = || self.policy.listeners.iter().filter(|l| l.transport == wanted);
            let to =
                of_transport().find(|l| l.bind.to_string().starts_with(ip)).or_else(|| of_transport().next());
            let to = to.map(|l| l.bind).expect("a listener");
            self.callers.push(Caller::new(n, job, to, self.plan.t1));
            self.at(at, Ev::Caller(n, caller::Wake::Start));
        }
        for (at, fault) in self.plan.faults.clone() {
            self.at(at, Ev::Fault(fault));
        }
        if let Some(every) = self.plan.probe {
            self.at(every, Ev::Probe);
        }
    }

    /// The element's clock.
    fn instant(&self) -> Instant {
        self.base + Duration::from_micros(self.now + self.skew)
    }

    fn at(&mut self, at: Micros, ev: Ev) {
        self.sequence += 1;
        self.queue.insert((at, self.sequence), ev);
    }

    fn later(&mut self, after: Micros, ev: Ev) {
        self.at(self.now + after, ev);
    }

    fn traced(&mut self, what: &str, bytes: &[u8]) {
        (self.now, self.skew, what, bytes).hash(&mut self.trace);
        self.report.messages += 1;
        if std::env::var_os("SIM_TRACE").is_some() {
            let text = String::from_utf8_lossy(bytes);
            let shown = if std::env::var_os("SIM_TRACE_FULL").is_some() {
                &text
            } else {
                text.lines().next().unwrap_or("")
            };
            let branch = crate::msg::Msg::parse(bytes).map(|m| format!("{} {}", m.branch(0), m.call_id()));
            println!(
                "{:>10.3} {what} {shown} {}",
                (self.now + self.skew) as f64 / 1000.0,
                branch.unwrap_or_default()
            );
        }
    }

    /// Runs to the end and looks whether everything is gone.
    pub fn run(mut self) -> Report {
        // Twelve virtual minutes see the end of every transaction and every counted call.
        while let Some(next) = self.next_time().filter(|t| *t < 720 * SEC) {
            self.now = next;
            self.fire();
            if let Some(entry) = self.queue.first_entry().filter(|e| e.key().0 <= self.now) {
                let ev = entry.remove();
                self.happen(ev);
            }
        }
        self.over = true;
        self.long_jump();
        self.report.trace = self.trace.finish();
        let counts = self.check.counts;
        self.report.failovers = counts.failovers;
        self.report.late_answers = counts.late_answers;
        self.report.late_rings = counts.late_rings;
        self.report
    }

    /// When something happens next: in the world, or by a timer of the element.
    fn next_time(&self) -> Option<Micros> {
        let world = self.queue.first_key_value().map(|((at, _), _)| *at);
        let element = self.shards.iter().filter_map(Shard::poll_timeout).min().map(|t| {
            let since = t.saturating_duration_since(self.base).as_nanos().div_ceil(1000);
            u64::try_from(since).unwrap_or(u64::MAX).saturating_sub(self.skew)
        });
        match (world, element) {
            // Nothing but sweeps is left once all agents are done.
            (None, _) => None,
            (Some(w), Some(e)) => Some(w.min(e).max(self.now)),
            (Some(w), None) => Some(w),
        }
    }

    /// Fires the element's timers that are due.
    fn fire(&mut self) {
        let now = self.instant();
        for n in 0..self.shards.len() {
            if self.shards[n].poll_timeout().is_some_and(|t| t <= now) {
                self.shards[n].handle_timeout(now);
                self.collect(n);
                self.settle();
                self.check.step_end();
            }
        }
    }

    /// After a day nothing is left, and no timer is armed.
    fn long_jump(&mut self) {
        self.queue.clear();
        self.skew += 25 * 3600 * SEC;
        self.check.jumped = true;
        for _ in 0..100_000 {
            self.fire();
            let Some(next) = self.shards.iter().filter_map(Shard::poll_timeout).min() else { break };
            let now = self.instant();
            if next > now {
                self.skew += u64::try_from((next - now).as_nanos().div_ceil(1000)).unwrap_or(SEC);
            }
        }
        for shard in &self.shards {
            let left = (shard.contexts(), shard.timers(), shard.calls(), shard.open(), shard.transactions());
            assert_eq!(left, (0, 0, 0, 0, (0, 0)), "left over: contexts, timers, calls, open, transactions");
            assert!(shard.health(self.instant()).is_empty(), "health is remembered for ever");
        }
        for peer in 0..4 {
            assert_eq!(
                self.ledger.calls(sbe::flow::PeerId(peer)),
                0,
                "calls charged to peer {peer} for ever"
            );
        }
        self.check.finish();
    }

    fn happen(&mut self, ev: Ev) {
        match ev {
            Ev::Caller(n, wake) => {
                let mut acts = Vec::new();
                self.callers[n].wake(wake, &mut acts);
                self.act(Some(n), None, acts);
            }
            Ev::Server(n, key, wake) => {
                let mut acts = Vec::new();
                self.servers[n].wake(key, wake, &mut acts);
                self.act(None, Some(n), acts);
            }
            Ev::Datagram { from, to, bytes } => self.datagram(from, to, bytes),
            Ev::Icmp { to, payload } => self.icmp(to, &payload),
            Ev::Stream { conn, to_element, bytes } => self.stream(conn, to_element, bytes),
            Ev::Connected(conn) => self.connected(conn),
            Ev::ConnectFailed(conn, failure) => self.connect_failed(conn, failure),
            Ev::Gone(conn) => self.conn_gone(conn),
            Ev::Dns(id, question) => self.dns_answer(id, &question),
            Ev::Fault(fault) => self.fault(fault),
            Ev::Probe => self.probe(),
        }
        self.check.step_end();
    }

    /// Something has come for an agent.
    fn agent_receives(&mut self, path: Path, bytes: &[u8]) {
        let Some(msg) = crate::msg::Msg::parse(bytes) else { return };
        let mut acts = Vec::new();
        if let Some(n) = self.servers.iter().position(|s| s.addr == path.from) {
            if !self.servers[n].is_off() {
                self.servers[n].receive(path, &msg, &mut acts);
                self.act(None, Some(n), acts);
            }
        } else if let Some(n) = self.callers.iter().position(|c| c.addr() == path.from)
            && !self.callers_off
        {
            self.callers[n].receive(path, &msg, &mut acts);
            self.act(Some(n), None, acts);
        }
    }

    /// Carries out what an agent wants.
    fn act(&mut self, caller: Option<usize>, server: Option<usize>, acts: Vec<Act>) {
        for act in acts {
            match act {
                Act::Later(after, ev) => self.later(after, ev),
                Act::Note(note) => self.note(note),
                Act::Send(path, bytes) => {
                    let off = server.map_or(self.callers_off, |n| self.servers[n].is_off());
                    if path.tcp {
                        self.agent_stream(caller, path, bytes, off);
                    } else if !off {
                        for after in self.net.datagram() {
                            self.later(
                                after,
                                Ev::Datagram { from: path.from, to: path.to, bytes: bytes.clone() },
                            );
                        }
                    }
                }
            }
        }
    }

    fn note(&mut self, note: Note) {
        match note {
            Note::Answered => self.report.answered += 1,
            Note::Failed(_) => self.report.failed += 1,
            Note::TimedOut => self.report.timed_out += 1,
            Note::TwoAnswers => self.report.two_answers += 1,
            Note::Cancelled => self.report.cancelled += 1,
        }
    }
}
