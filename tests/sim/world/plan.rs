//! What a seed stands for: a configuration, a zone, servers, callers, and what goes wrong when.

use std::fmt::Write as _;
use std::time::Duration;

use super::dice::Dice;
use super::{MS, Micros, SEC};
use crate::zone::Zone;

/// How a server behaves towards everybody.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Does what the caller's script says.
    Normal,
    /// Answers everything with 503, and this Retry-After.
    Overloaded(Option<u32>),
    /// Its port is closed: ICMP errors, refused and reset connections.
    Closed,
    /// Takes everything and says nothing.
    BlackHole,
    /// Does everything this much later.
    Slow(Micros),
}

/// Something that happens to the world.
#[derive(Clone, Debug)]
pub enum Fault {
    Mode(usize, Mode),
    /// Nothing gets through between the element and this server.
    Partition(usize, bool),
    /// Nothing gets through between the element and any caller.
    CallersOff(bool),
    /// All connections of this server are reset.
    Reset(usize),
    /// All connections of callers are reset.
    ResetCallers,
    /// The DNS servers are silent.
    DnsDown(bool),
    /// A host name loses its address.
    Unlisted(String),
    /// The element's clock jumps ahead.
    Jump(Micros),
    /// Another configuration.
    Reload,
    Drain(bool),
}

/// What a caller does.
#[derive(Clone, Debug)]
pub struct Job {
    pub at: Micros,
    /// From the core's side; else from a peer's.
    pub core: bool,
    pub tcp: bool,
    pub uri: String,
    pub kind: JobKind,
    /// For the server: `X-Sim`.
    pub script: String,
    /// The INVITE is too large for UDP.
    pub large: bool,
}

#[derive(Clone, Debug)]
pub enum JobKind {
    Call {
        /// After this time, if it has not been answered.
        cancel: Option<Micros>,
        /// The caller does not wait for a provisional before it cancels.
        rash: bool,
        /// The caller hangs up after this; else the server does.
        bye: Option<Micros>,
        reinvite: Option<Micros>,
    },
    Message,
}

#[derive(Clone, Debug)]
pub struct Plan {
    pub seed: u64,
    pub shards: usize,
    /// Of everybody.
    pub t1: Micros,
    pub config: String,
    pub reload: String,
    pub zone: Zone,
    /// Address of each server.
    pub servers: Vec<String>,
    pub jobs: Vec<Job>,
    pub faults: Vec<(Micros, Fault)>,
    /// Per thousand datagrams.
    pub loss: u64,
    pub duplicates: u64,
    pub latency: (Micros, Micros),
    /// The prober's interval, if there is one.
    pub probe: Option<Micros>,
}

impl Plan {
    pub fn new(seed: u64) -> Self {
        let mut dice = Dice::new(seed);
        let d = &mut dice;
        let (mut zone, servers) = servers(d);
        zone.ttl = Duration::from_secs(*d.pick(&[2, 10, 30, 300]));
        let probe = d.permille(150).then(|| d.range(500, 3000) * MS);
        let t1 = *d.pick(&[500, 500, 100]);
        let (config, reload) = configs(d, probe.is_some(), t1);
        let fuss = *d.pick(&[0, 0, 10, 60]);
        let mut plan = Self {
            seed,
            shards: d.range(1, 4) as usize,
            t1: t1 * MS,
            config,
            reload,
            zone,
            jobs: Vec::new(),
            faults: Vec::new(),
            loss: fuss,
            duplicates: *d.pick(&[0, 20, 100]),
            latency: *d.pick(&[(MS, 2 * MS), (5 * MS, 30 * MS), (10 * MS, 200 * MS)]),
            probe,
            servers,
        };
        for _ in 0..d.range(3, 16) {
            plan.jobs.push(job(d));
        }
        plan.add_faults(d);
        plan
    }

    fn add_faults(&mut self, d: &mut Dice) {
        for _ in 0..d.range(1, 7) {
            let at = d.range(0, 20 * SEC);
            let until = at + d.range(200 * MS, 15 * SEC);
            let server = d.range(0, self.servers.len() as u64) as usize;
            match d.range(0, 20) {
                0..4 => self.during(
                    at,
                    until,
                    Fault::Mode(server, Mode::Closed),
                    Fault::Mode(server, Mode::Normal),
                ),
                4..7 => self.during(
                    at,
                    until,
                    Fault::Mode(server, Mode::BlackHole),
                    Fault::Mode(server, Mode::Normal),
                ),
                7..10 => {
                    let after = *d.pick(&[None, None, Some(1), Some(5), Some(60)]);
                    self.during(
                        at,
                        until,
                        Fault::Mode(server, Mode::Overloaded(after)),
                        Fault::Mode(server, Mode::Normal),
                    );
                }
                10..12 => {
                    let late = d.range(500 * MS, 6 * SEC);
                    self.during(
                        at,
                        until,
                        Fault::Mode(server, Mode::Slow(late)),
                        Fault::Mode(server, Mode::Normal),
                    );
                }
                12 => self.during(at, until, Fault::Partition(server, true), Fault::Partition(server, false)),
                13 => self.during(at, until, Fault::CallersOff(true), Fault::CallersOff(false)),
                14 => self.faults.push((at, Fault::Reset(server))),
                15 => self.faults.push((at, Fault::ResetCallers)),
                16 => self.during(at, until, Fault::DnsDown(true), Fault::DnsDown(false)),
                17 => self.faults.push((at, Fault::Unlisted(format!("i{}.p1.example", d.range(1, 5))))),
                18 => self.faults.push((at, Fault::Jump(*d.pick(&[200 * MS, 2 * SEC, 5 * SEC, 40 * SEC])))),
                _ if d.permille(300) => self.during(at, at + SEC, Fault::Drain(true), Fault::Drain(false)),
                _ => self.faults.push((at, Fault::Reload)),
            }
        }
        self.faults.sort_by_key(|(at, _)| *at);
    }

    fn during(&mut self, at: Micros, until: Micros, begin: Fault, end: Fault) {
        self.faults.push((at, begin));
        self.faults.push((until, end));
    }
}

/// Two peers and the core: where their servers are, and what the DNS says of them.
fn servers(d: &mut Dice) -> (Zone, Vec<String>) {
    let mut zone = Zone::new(Duration::from_secs(30));
    let mut all = Vec::new();
    let count = d.range(2, 5);
    let tcp_too = d.permille(400);
    let flat = d.permille(400);
    for n in 1..=count {
        let host = format!("i{n}.p1.example");
        let weight = *d.pick(&[0, 10, 10, 50]);
        let priority = if flat { 1 } else { d.range(1, 4) as u16 };
        zone.srv("_sip._udp.p1.example", priority, weight, 5060, &host);
        if tcp_too {
            zone.srv("_sip._tcp.p1.example", priority, weight, 5060, &host);
        }
        zone.addr(&host, &format!("198.51.100.{}", 10 + n));
        all.push(format!("198.51.100.{}:5060", 10 + n));
        if d.permille(200) {
            zone.addr(&host, &format!("198.51.100.{}", 20 + n));
            all.push(format!("198.51.100.{}:5060", 20 + n));
        }
    }
    if tcp_too && d.permille(500) {
        zone.naptr("p1.example", 10, "SIP+D2U", "_sip._udp.p1.example");
        zone.naptr("p1.example", 20, "SIP+D2T", "_sip._tcp.p1.example");
    }
    let transport = if d.permille(500) { "tcp" } else { "udp" };
    for n in 1..=d.range(1, 4) {
        let host = format!("t{n}.transit.example");
        zone.srv(&format!("_sip._{transport}.transit.example"), n as u16, 10, 5070, &host);
        zone.addr(&host, &format!("203.0.113.{n}"));
        all.push(format!("203.0.113.{n}:5070"));
    }
    for n in 1..=2 {
        zone.addr("pool.core.example", &format!("10.0.2.{n}"));
        all.push(format!("10.0.2.{n}:5060"));
    }
    all.push("10.0.0.5:5060".to_string());
    all.push("10.0.0.6:5060".to_string());
    (zone, all)
}

/// The configuration, and the one that a reload brings.
fn configs(d: &mut Dice, probed: bool, t1: u64) -> (String, String) {
    let one = d.permille(300);
    let listeners: &[(&str, &str, &str)] = if one {
        &[("udp", "192.0.2.10", "both"), ("tcp", "192.0.2.10", "both")]
    } else {
        &[
            ("udp", "10.0.0.1", "core"),
            ("udp", "192.0.2.10", "peering"),
            ("tcp", "192.0.2.10", "peering"),
            ("tcp", "10.0.0.1", "core"),
        ]
    };
    let mut fixed = "[node]\nname = \"sbe1.example.com\"\ndomains = [\"example.com\"]\n".to_string();
    for (transport, ip, realm) in listeners {
        let realm = if *realm == "both" { String::new() } else { format!("realm = \"{realm}\"\n") };
        let _ = write!(fixed, "[[listen]]\ntransport = \"{transport}\"\nbind = \"{ip}:5060\"\n{realm}");
    }
    let hops = *d.pick(&[
        "\"sip:10.0.0.5:5060;transport=udp\"",
        "\"sip:10.0.0.5:5060;transport=udp\", \"sip:10.0.0.6:5060;transport=udp\"",
        "\"sip:pool.core.example\"",
        "\"sip:10.0.0.5:5060;transport=tcp\", \"sip:pool.core.example:5060;transport=udp\"",
    ]);
    let _ = write!(fixed, "[core]\nnext_hops = [{hops}]\nsources = [\"10.0.0.0/8\"]\n");
    let timer_c = *d.pick(&["10s", "30s", "185s"]);
    let _ = write!(
        fixed,
        "[calls]\nmax_age = \"5m\"\n[health]\nhold_down = \"{}\"\n",
        d.pick(&["1s", "2s", "10s"])
    );
    let order = *d.pick(&["[\"udp\", \"tcp\"]", "[\"tcp\", \"udp\"]"]);
    let probe =
        if probed { "probe = { method = \"OPTIONS\", interval = \"5s\", timeout = \"1s\" }\n" } else { "" };
    let whole = |d: &mut Dice, first: bool| {
        let mut text = fixed.clone();
        let _ = write!(
            text,
            "[sip]\nt1 = \"{t1}ms\"\ntimer_c = \"{timer_c}\"\ntry_timeout = \"{}\"\nmax_tries = {}\n",
            d.pick(&["1s", "3s", "3s"]),
            d.pick(&[10, 10, 10, 2]),
        );
        let _ = write!(
            text,
            "[dns]\ntransports = {order}\nsticky = \"{}\"\nsrv_selection = \"{}\"\n",
            d.pick(&["none", "call", "ttl"]),
            d.pick(&["exact", "rfc2782"]),
        );
        let limit = if d.permille(150) { "max_calls = 3\nmax_rate = 2\n" } else { "" };
        let _ = write!(
            text,
            "[[peer]]\nname = \"p1\"\ndomains = [\"p1.example\", \"198.51.100.11\"]\nsources = [\"198.51.100.0/24\"]\nstrip_headers = [\"x-secret\"]\n{limit}{probe}"
        );
        if first || d.permille(700) {
            let _ = write!(
                text,
                "[[peer]]\nname = \"p2\"\ndomains = [\"p2.example\"]\nnext_hop = \"sip:transit.example\"\nsources = [\"203.0.113.0/24\"]\nt1 = \"200ms\"\ntry_timeout = \"1s\"\nfailover_codes = [503, 500]\n[[route]]\nprefix = \"+44\"\npeers = [\"p2\", \"p1\"]\n"
            );
        }
        text
    };
    let first = whole(d, true);
    (first, whole(d, false))
}

fn job(d: &mut Dice) -> Job {
    let core = d.permille(700);
    let uri = if core {
        *d.pick(&[
            "sip:bob@p1.example",
            "sip:bob@p1.example",
            "sip:bob@p1.example",
            "sip:+4420@example.com",
            "sip:carol@p2.example",
            "sip:bob@198.51.100.11:5060",
            "sip:bob@p1.example;transport=udp",
            "sip:x@elsewhere.example",
        ])
    } else {
        *d.pick(&["sip:dave@example.com", "sip:dave@example.com", "sip:dave@example.com", "sip:x@p2.example"])
    };
    let mut script = String::new();
    let (rings, answers) = match d.range(0, 10) {
        // Rings until somebody gives up.
        0 => (true, None),
        1 => (false, None),
        _ => (d.permille(800), Some(d.range(50, 8000))),
    };
    if rings {
        let _ = write!(script, "ring={},", d.range(10, 1500));
        if d.permille(300) {
            let _ = write!(script, "every={},", d.range(3000, 9000));
        }
    }
    if let Some(at) = answers {
        let status = *d.pick(&[200, 200, 200, 200, 200, 486, 302, 603, 404, 407, 503, 500]);
        let _ = write!(script, "final={status},at={at},");
    }
    let _ = write!(script, "cancel={},", d.pick(&["obey", "obey", "race", "deaf"]));
    let hangs_up = d.permille(700);
    if !hangs_up {
        let _ = write!(script, "bye={},", d.range(500, 6000));
    }
    let kind = if d.permille(150) {
        JobKind::Message
    } else {
        JobKind::Call {
            cancel: d.permille(350).then(|| d.range(0, 9000) * MS),
            rash: d.permille(200),
            bye: hangs_up.then(|| d.range(100, 6000) * MS),
            reinvite: d.permille(250).then(|| d.range(100, 3000) * MS),
        }
    };
    Job {
        at: d.range(0, 18 * SEC),
        core,
        tcp: d.permille(250),
        uri: uri.to_string(),
        kind,
        script,
        large: d.permille(100),
    }
}
