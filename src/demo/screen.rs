//! What the demo shows: events as they happen, a line every second, a summary at the end.

use std::fmt::Write as _;
use std::io::{IsTerminal, Write as _};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::flow::Transport;
use crate::proxy::decision::Record;

use super::caller::Outcome;
use super::instance::Counts;
use super::tally::Tally;
use super::world::{self, INSTANCES, World};
use super::{Options, Transports};

/// Calls told of one by one in a second; more are in the counts only.
const LINES_PER_SECOND: u32 = 5;

const PLAIN: &str = "";
const RED: &str = "\x1b[31m";
const GREEN: &str = "\x1b[32m";
const YELLOW: &str = "\x1b[33m";
const BOLD: &str = "\x1b[1m";
const RESET: &str = "\x1b[0m";

/// The standard output.
pub(super) struct Screen {
    colour: bool,
    closed: AtomicBool,
    /// Lines about single calls in the current second.
    told: AtomicU32,
    /// The last change of a cost, and what the instances had answered until then.
    shift: Mutex<Option<(String, Vec<Counts>)>>,
}

impl Screen {
    /// In colour if it is a terminal, and NO_COLOR is not set.
    pub(super) fn new() -> Self {
        let colour =
            std::io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|v| v.is_empty());
        Self { colour, closed: AtomicBool::new(false), told: AtomicU32::new(0), shift: Mutex::default() }
    }

    /// Nobody reads it any more.
    pub(super) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Relaxed)
    }

    fn line(&self, colour: &str, text: &str) {
        let mut out = std::io::stdout().lock();
        let written = if self.colour && !colour.is_empty() {
            writeln!(out, "{colour}{text}{RESET}")
        } else {
            writeln!(out, "{text}")
        };
        if written.and_then(|()| out.flush()).is_err() {
            self.closed.store(true, Ordering::Relaxed);
        }
    }

    /// An instance has begun to fail.
    pub(super) fn failure(&self, text: &str) {
        self.line(RED, &format!("  ! {text}"));
    }

    /// An instance has come back.
    pub(super) fn recovery(&self, text: &str) {
        self.line(GREEN, &format!("  + {text}"));
    }

    /// The border element has learnt of another cost.
    pub(super) fn shift(&self, world: &World, name: &str, cost: f64, after: u128) {
        let what = format!("{name} costs {cost}");
        self.line(YELLOW, &format!("  ~ ALTO: {what} now, known to the border element after {after} ms"));
        *self.shift.lock().unwrap_or_else(PoisonError::into_inner) = Some((what, counts(world)));
    }

    /// Who there is, and what will happen.
    pub(super) fn welcome(&self, world: &World, options: &Options) {
        let mut out = String::new();
        let mut row = |what: &str, text: String| {
            let _ = writeln!(out, "  {what:<16}{text}");
        };
        row("dashboard", format!("http://{}/", world.admin));
        row("border element", listeners(world));
        row("DNS", format!("{}, zone {}", world.dns.addr(), world::DOMAIN));
        let costs: Vec<String> =
            INSTANCES.iter().zip(world::COSTS).map(|((name, ..), cost)| format!("{name} {cost}")).collect();
        row("ALTO", format!("{}, costs: {}", world.alto.url(), costs.join(", ")));
        for (instance, (name, priority, weight)) in world.instances.iter().zip(INSTANCES) {
            let tls = instance.secure_addr().map_or(String::new(), |a| format!(", {} tls", a.port()));
            row(
                "peer instance",
                format!("{name} {} udp+tcp{tls}, priority {priority}, weight {weight}", instance.addr()),
            );
        }
        let by = match options.transport {
            Transports::Udp => "UDP",
            Transports::Tcp => "TCP",
            Transports::Tls => "TLS (TCP in the core)",
            Transports::Both => "UDP and TCP by turns",
            Transports::All => "UDP, TCP and TLS by turns",
        };
        let until = options.calls.map_or("until Ctrl-C".into(), |n| format!("{n} calls"));
        row(
            "calls",
            format!("{} per second over {by}, {until}; they ring for {}", options.rate, ms(world::RING)),
        );
        row("timers", format!("{}; all others as by default", world::SHORTENED));
        row(
            "failures",
            "an instance is killed and restarted, one answers 503, one goes silent, two fail at once".into(),
        );
        row(
            "costs",
            "one instance of the first priority becomes dear, and cheap again in the next round".into(),
        );
        self.line(BOLD, "sbe demo: a border element between a core and a peer, all on loopback");
        self.line(PLAIN, &out);
    }

    /// Shows a line every second.
    pub(super) async fn tick(self: Arc<Self>, world: Arc<World>, tally: Arc<Tally>) {
        let mut seconds = tokio::time::interval(Duration::from_secs(1));
        seconds.tick().await;
        let mut before = counts(&world);
        loop {
            seconds.tick().await;
            self.told.store(0, Ordering::Relaxed);
            let now = counts(&world);
            self.line(PLAIN, &second(&world, &tally, &before, &now));
            before = now;
        }
    }

    /// Tells of a call, if there is something to tell.
    pub(super) fn call(&self, world: &World, id: &str, outcome: &Outcome) {
        let records = world.node.records(id.as_bytes());
        let Some(record) = records.first() else { return };
        if outcome.is_success() && record.attempts.len() < 2 {
            return;
        }
        if self.told.fetch_add(1, Ordering::Relaxed) >= LINES_PER_SECOND {
            return;
        }
        if outcome.is_success() {
            let text = format!(
                "  > call {id} failed over: {}, answered after {}",
                path(world, record),
                ms(outcome.setup)
            );
            self.line(YELLOW, &text);
        } else {
            let text = format!("  x call {id} FAILED with {}: {}", outcome.status, path(world, record));
            self.line(RED, &text);
        }
    }

    /// The figures of both ends. True: every call succeeded, and the ends agree.
    pub(super) fn summary(&self, world: &World, tally: &Tally) -> bool {
        let f = tally.figures();
        let stats = world.node.stats();
        let all = counts(world);
        let sum = |of: fn(&Counts) -> u64| all.iter().map(of).sum::<u64>();
        let uas = sum(|c| c.answered);
        let mut out = String::new();
        let mut row = |what: &str, text: String| {
            let _ = writeln!(out, "  {what:<16}{text}");
        };
        row("calls", format!("{} in {:.1} s", f.started, f.since.elapsed().as_secs_f64()));
        row("answered", f.answered.to_string());
        row("failed", f.failed.to_string());
        for (id, status) in &f.failures {
            row("", format!("{id}: {status}"));
        }
        if f.in_setup() > 0 {
            row("unfinished", f.in_setup().to_string());
        }
        let mut reasons: Vec<(&str, u64)> = Vec::new();
        for ((_, reason), n) in &stats.failovers {
            match reasons.iter_mut().find(|(r, _)| r == reason) {
                Some((_, sum)) => *sum += n,
                None => reasons.push((reason, *n)),
            }
        }
        reasons.retain(|(_, n)| *n > 0);
        reasons.sort_unstable();
        let total: u64 = reasons.iter().map(|(_, n)| n).sum();
        let listed: Vec<String> = reasons.iter().map(|(r, n)| format!("{r} {n}")).collect();
        row("failovers", if total == 0 { "0".into() } else { format!("{total}: {}", listed.join(", ")) });
        row(
            "both ends",
            format!("{uas} INVITEs answered by the instances, {} answers at the caller", f.answered),
        );
        row("instances", shares(world, &all.iter().map(|c| c.answered).collect::<Vec<_>>()));
        row("ALTO", format!("{} requests to the server", world.alto.total()));
        if let Some((what, before)) = &*self.shift.lock().unwrap_or_else(PoisonError::into_inner) {
            let since: Vec<u64> = all.iter().zip(before).map(|(n, b)| n.answered - b.answered).collect();
            row("", format!("since {what}: {}", shares(world, &since)));
        }
        let unended = f.answered - f.ended;
        let why = if unended > 0 { " (the instance that had answered was gone)" } else { "" };
        row("ended by BYE", format!("{} confirmed, {unended} not{why}", f.ended));
        row(
            "retransmissions",
            format!(
                "{} by the border element, {} by the caller, {} by the instances",
                stats.retransmissions_out,
                world.caller.retransmissions(),
                sum(|c| c.retransmissions_out),
            ),
        );
        if f.answered > 0 {
            let mean = f.setup.div_f64(f.answered as f64);
            row(
                "setup",
                format!("mean {}, slowest {} ({}), ringing included", ms(mean), ms(f.slowest.0), f.slowest.1),
            );
        }
        let lost = f.failed > 0 || f.in_setup() > 0 || f.started == 0;
        self.line(PLAIN, "");
        self.line(BOLD, "Summary");
        self.line(PLAIN, out.trim_end());
        match (lost, uas == f.answered) {
            (true, _) => self.line(RED, &format!("  {} of {} calls succeeded", f.answered, f.started)),
            (false, false) => self.line(RED, "  The two ends have counted differently."),
            (false, true) => {
                self.line(GREEN, &format!("  {0} of {0} calls succeeded, none was lost", f.started))
            }
        }
        !lost && uas == f.answered
    }
}

fn counts(world: &World) -> Vec<Counts> {
    world.instances.iter().map(|i| i.counts()).collect()
}

/// `core udp 127.0.0.1:4711 tcp 127.0.0.1:4712, peering … tls 127.0.0.1:4715`
fn listeners(world: &World) -> String {
    let of = |realm| {
        Transport::ALL
            .into_iter()
            .filter_map(|t| world::listener(&world.node, t, realm).map(|a| format!(" {t} {a}")))
            .collect::<String>()
    };
    format!("core{}, peering{}", of(crate::config::Realm::Core), of(crate::config::Realm::Peering))
}

/// The line of a second.
fn second(world: &World, tally: &Tally, before: &[Counts], now: &[Counts]) -> String {
    let f = tally.figures();
    let failovers: u64 = world.node.stats().failovers.values().sum();
    let invites: Vec<u64> = now.iter().zip(before).map(|(n, b)| n.answered - b.answered).collect();
    let failing: Vec<String> = world
        .instances
        .iter()
        .filter_map(|i| i.trouble().map(|what| format!("{} {what}", i.name())))
        .collect();
    let mut line = format!(
        "{:>4}s  calls {:>5}  live {:>3}  answered {:>5}  failed {}  failovers {:>3}  | {}",
        f.since.elapsed().as_secs(),
        f.started,
        f.live(),
        f.answered,
        f.failed,
        failovers,
        shares(world, &invites),
    );
    if !failing.is_empty() {
        let _ = write!(line, "  | {}", failing.join(", "));
    }
    line
}

/// `alpha 12 (60 %), beta 8 (40 %), gamma 0 (0 %)`
fn shares(world: &World, answered: &[u64]) -> String {
    let all: u64 = answered.iter().sum();
    let one = |(instance, n): (&super::instance::Watch, &u64)| {
        format!("{} {n} ({} %)", instance.name(), (n * 100 + all / 2).checked_div(all).unwrap_or(0))
    };
    world.instances.iter().zip(answered).map(one).collect::<Vec<_>>().join(", ")
}

/// `alpha udp:127.0.0.1:4713 icmp -> beta udp:127.0.0.1:4714`
fn path(world: &World, record: &Record) -> String {
    let last = record.attempts.len().saturating_sub(1);
    let mut text = String::new();
    for (at, attempt) in record.attempts.iter().enumerate() {
        let name = world.name_of(attempt.instance.addr);
        let _ = write!(text, "{name} ({})", attempt.instance);
        if at < last {
            let took = attempt
                .ended
                .map_or(Duration::ZERO, |t: Instant| t.saturating_duration_since(attempt.started));
            let _ = write!(text, " {} after {} -> ", attempt.outcome, ms(took));
        }
    }
    if record.attempts.is_empty() {
        text.push_str(record.reason);
    }
    text
}

fn ms(time: Duration) -> String {
    format!("{} ms", time.as_millis())
}
