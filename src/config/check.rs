//! From the text's tables to the checked [`Config`]: every section that stands for itself.
//!
//! Where something is wrong, a default takes its place and the check goes on, so that one run reports all there is.

use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::time::Duration;

use super::error::{At, Fault, Report, alternatives, nearest};
use super::raw::{self, Section};
use super::units::show_duration;
use super::{
    Config, Core, Dns, Families, Health, Limits, Log, NextHop, Overload, Runtime, Sip, SrvSelection, Sticky,
    admin, alto, defaults, doubts, hep, lint, listeners, names, peers, records,
};
use crate::flow::Transport;

/// Keeps every sum of an instant and a few of these far from overflow.
pub(super) const YEAR: Duration = Duration::from_secs(365 * 86_400);
pub(super) const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);
/// S11 and RFC 3261 §17.1.1.1: T1 is at most 500 ms here; below 10 ms it would flood.
pub(super) const T1_RANGE: RangeInclusive<Duration> = Duration::from_millis(10)..=Duration::from_millis(500);
/// Codes that may send a request on: final and no success.
const FAILOVER_RANGE: RangeInclusive<u64> = 300..=699;
/// Listeners and peers are numbered with 16 bits.
pub(super) const MOST_TABLES: usize = 65_535;

/// Where the parts of a configuration stand, for the checks across sections.
#[derive(Debug, Default)]
pub(super) struct Spots {
    /// All listeners were read; else nothing can be said about what is missing among them.
    pub listeners_sound: bool,
    pub listen: Vec<usize>,
    /// Of `bind`, in step with them.
    pub binds: Vec<usize>,
    pub hep: usize,
    pub admin: usize,
    /// Of what is written only.
    pub max_age: Option<usize>,
    pub dns_timeout: Option<usize>,
    pub node_domains: Vec<usize>,
    pub dns_transports: Vec<usize>,
    pub core: CoreSpots,
    pub peers: Vec<PeerSpots>,
    pub federation: usize,
}

/// Where the parts of `[core]` stand.
#[derive(Debug, Default)]
pub(super) struct CoreSpots {
    pub head: usize,
    pub next_hops: Vec<usize>,
    pub tls_names: Vec<usize>,
}

/// Where the parts of a `[[peer]]` stand.
#[derive(Debug, Default)]
pub(super) struct PeerSpots {
    pub head: usize,
    /// The table was read without errors.
    pub sound: bool,
    pub domains: Vec<usize>,
    pub next_hop: usize,
    pub sources: Vec<usize>,
    pub tls_names: Vec<usize>,
    pub certificate: usize,
    pub probe: usize,
    pub alto_scope: usize,
}

/// Reads everything. The result counts only if the report has no errors.
pub(super) fn config(report: &mut Report<'_>, root: &Section<'_>, text: &str) -> Config {
    let mut spots = Spots::default();
    let node = listeners::node(report, root, &mut spots);
    let before = report.errors();
    let listen = listeners::listeners(report, root, &mut spots);
    spots.listeners_sound = report.errors() == before;
    let tls = listeners::tls(report, root, &listen, &spots);
    let sip = sip(report, root);
    let calls = root.table(report, "calls", &raw::CALLS);
    let federation = root.table(report, "federation", &raw::FEDERATION);
    spots.federation = federation.place("open");
    spots.max_age = calls.has("max_age").then(|| calls.place("max_age"));
    let peers = peers::peers(report, root, &sip, &mut spots);
    if peers.len() > MOST_TABLES {
        report.error(0, format!("there are {} peers", peers.len()), format!("write at most {MOST_TABLES}"));
    }
    let config = Config {
        routes: peers::routes(report, root, &peers, &spots.peers),
        node,
        listen,
        tls,
        sip,
        health: health(report, root),
        calls_max_age: calls.duration(report, "max_age", SECOND..=YEAR).unwrap_or(defaults::CALLS_MAX_AGE),
        dns: dns(report, root, &mut spots),
        core: core(report, root, &mut spots),
        peers,
        federation_open: federation.boolean(report, "open").unwrap_or(false),
        federation_trust: federation.boolean(report, "trust").unwrap_or(true),
        alto: alto::alto(report, root, text),
        runtime: runtime(report, root),
        log: log(report, root),
        admin: admin::bind(report, root, &mut spots),
        admin_tokens: admin::tokens(report, root),
        records: records::records(report, root),
        hep: hep::hep(report, root, &mut spots),
        limits: limits(report, root),
        overload: overload(report, root),
    };
    lint::lint(report, &config, &spots);
    doubts::doubts(report, &config, &spots);
    config
}

/// Splits located values into values and their places.
pub(super) fn split<T>(list: Vec<At<T>>) -> (Vec<T>, Vec<usize>) {
    list.into_iter().map(|At { value, at }| (value, at)).unzip()
}

fn sip(report: &mut Report<'_>, root: &Section<'_>) -> Sip {
    let section = root.table(report, "sip", &raw::SIP);
    let d = Sip::default();
    let t1 = section.duration(report, "t1", T1_RANGE).unwrap_or(d.t1);
    let t2 = section.duration(report, "t2", MS..=YEAR).unwrap_or(d.t2);
    if t2 < t1 {
        report.error(
            section.place("t2"),
            format!("t2 = {} is below t1 = {}", show_duration(t2), show_duration(t1)),
            "T2 is where the doubling of T1 ends, write a longer one",
        );
    }
    let timer_c = section.duration(report, "timer_c", SECOND..=YEAR).unwrap_or(d.timer_c);
    if timer_c <= Duration::from_secs(180) {
        let what = format!("timer_c = {} cuts calls that ring for long", show_duration(timer_c));
        report.warn(section.place("timer_c"), what, "RFC 3261 §16.6 wants more than 3m");
    }
    let idle_timeout = section.duration(report, "idle_timeout", MS..=YEAR).unwrap_or(d.idle_timeout);
    if idle_timeout < timer_c {
        let what = format!(
            "idle_timeout = {} may close a connection under a ringing call",
            show_duration(idle_timeout)
        );
        report.warn(section.place("idle_timeout"), what, "write no less than timer_c");
    }
    let secret = section.string(report, "dialog_secret_file").filter(|s| !s.value.is_empty());
    let secret = secret.map(|s| At { value: PathBuf::from(s.value), at: s.at });
    if let Some(file) = &secret {
        report.reads(file);
    }
    let max_message = section.size(report, "max_message", 1024..=16 << 20).unwrap_or(d.max_message);
    if max_message < 65_535 {
        let what =
            format!("max_message = {max_message} refuses datagrams that RFC 3261 §18.1.1 obliges us to take");
        report.warn(section.place("max_message"), what, "write \"64KiB\" or more");
    }
    let max_header = section.size(report, "max_header", 256..=16 << 20).unwrap_or(d.max_header);
    if max_header > max_message && section.has("max_header") {
        report.warn(
            section.place("max_header"),
            "max_header is above max_message and never applies",
            "write a smaller one",
        );
    }
    Sip {
        t1,
        t2,
        t4: section.duration(report, "t4", MS..=YEAR).unwrap_or(d.t4),
        timer_c,
        idle_timeout,
        message_timeout: section.duration(report, "message_timeout", MS..=YEAR).unwrap_or(d.message_timeout),
        try_timeout: try_timeout(report, &section, t1).unwrap_or(d.try_timeout),
        connect_timeout: section.duration(report, "connect_timeout", MS..=YEAR).unwrap_or(d.connect_timeout),
        failover_codes: failover_codes(report, &section).unwrap_or(d.failover_codes),
        max_tries: max_tries(report, &section).unwrap_or(d.max_tries),
        max_message,
        max_headers: section.number(report, "max_headers", 16..=65_535).unwrap_or(d.max_headers),
        max_header,
        dialog_secret_file: secret.map(|s| s.value),
    }
}

fn max_tries(report: &mut Report<'_>, section: &Section<'_>) -> Option<u32> {
    let tries = section.number(report, "max_tries", 1..=1000)?;
    if tries == 1 {
        let remedy = "write at least 2, or leave it out";
        report.warn(
            section.place("max_tries"),
            "with max_tries = 1 no request goes on to another instance",
            remedy,
        );
    }
    Some(tries)
}

/// `try_timeout` of `[sip]` or of a peer whose effective T1 this is (rule 10).
pub(super) fn try_timeout(report: &mut Report<'_>, section: &Section<'_>, t1: Duration) -> Option<Duration> {
    let value = section.duration(report, "try_timeout", MS..=YEAR)?;
    let whole = t1 * 64;
    if value > whole {
        let what =
            format!("try_timeout = {} is longer than 64*T1 = {}", show_duration(value), show_duration(whole));
        report.warn(section.place("try_timeout"), what, format!("{} will be used", show_duration(whole)));
    } else if value < t1 {
        let what =
            format!("try_timeout = {} is shorter than T1 = {}", show_duration(value), show_duration(t1));
        report.warn(
            section.place("try_timeout"),
            what,
            "one lost datagram will look like a dead instance; several T1 are sensible",
        );
    }
    Some(value)
}

/// `failover_codes` of `[sip]` or of a peer, sorted, each once.
pub(super) fn failover_codes(report: &mut Report<'_>, section: &Section<'_>) -> Option<Vec<u16>> {
    let mut codes = Vec::new();
    for At { value, at } in section.numbers(report, "failover_codes", FAILOVER_RANGE)? {
        match value {
            401 | 407 => report.warn(
                at,
                format!("{value} asks the caller for credentials"),
                "leave it out, or no challenge will ever arrive",
            ),
            487 => report.warn(
                at,
                "487 answers a CANCEL",
                "leave it out, a cancelled call must not go on elsewhere",
            ),
            600.. => report.warn(
                at,
                format!("{value} speaks for every instance (RFC 3261 §16.7 step 5)"),
                "leave 6xx out",
            ),
            _ => {}
        }
        codes.extend(u16::try_from(value));
    }
    if section.is_empty_list("failover_codes") {
        let what = "no response sends a call to another instance, 503 neither";
        report.warn(section.place("failover_codes"), what, "write [503], or leave it out");
    }
    codes.sort_unstable();
    codes.dedup();
    Some(codes)
}

fn health(report: &mut Report<'_>, root: &Section<'_>) -> Health {
    let section = root.table(report, "health", &raw::HEALTH);
    let d = Health::default();
    let hold_down = section.duration(report, "hold_down", MS..=YEAR).unwrap_or(d.hold_down);
    let hold_down_max = section.duration(report, "hold_down_max", MS..=YEAR).unwrap_or(d.hold_down_max);
    if hold_down_max < hold_down {
        let what = format!(
            "hold_down_max = {} is below hold_down = {}",
            show_duration(hold_down_max),
            show_duration(hold_down)
        );
        let key = if section.has("hold_down_max") { "hold_down_max" } else { "hold_down" };
        report.error(
            section.place(key),
            what,
            "hold_down doubles up to hold_down_max, write a longer hold_down_max",
        );
    }
    let retry_after_max =
        section.duration(report, "retry_after_max", Duration::ZERO..=YEAR).unwrap_or(d.retry_after_max);
    let slow_start = section.duration(report, "slow_start", Duration::ZERO..=YEAR).unwrap_or(d.slow_start);
    let max_probed_down = section.float(report, "max_probed_down", 0.0..=1.0).unwrap_or(d.max_probed_down);
    Health { hold_down, hold_down_max, retry_after_max, slow_start, max_probed_down }
}

fn dns(report: &mut Report<'_>, root: &Section<'_>, spots: &mut Spots) -> Dns {
    let section = root.table(report, "dns", &raw::DNS);
    let d = Dns::default();
    spots.dns_timeout = section.has("timeout").then(|| section.place("timeout"));
    let servers = section.list(report, "servers", names::dns_server).map(|list| split(list).0);
    let transports = section
        .list(report, "transports", |text| raw::word("an entry of transports", &listeners::TRANSPORTS, text))
        .map(|list| {
            let mut seen: Vec<At<Transport>> = Vec::new();
            for entry in list {
                if seen.iter().any(|s| s.value == entry.value) {
                    report.error(
                        entry.at,
                        format!("transports has {} twice", entry.value),
                        "write each transport once",
                    );
                } else {
                    seen.push(entry);
                }
            }
            if seen.is_empty() && section.is_empty_list("transports") {
                report.error(
                    section.place("transports"),
                    "transports is empty",
                    "write at least one of \"tls\", \"tcp\", \"udp\"",
                );
            }
            let (values, places) = split(seen);
            spots.dns_transports = places;
            values
        });
    let min_ttl = section.duration(report, "min_ttl", Duration::ZERO..=YEAR).unwrap_or(d.min_ttl);
    let max_ttl = section.duration(report, "max_ttl", Duration::ZERO..=YEAR).unwrap_or(d.max_ttl);
    if min_ttl > max_ttl {
        let what =
            format!("min_ttl = {} is above max_ttl = {}", show_duration(min_ttl), show_duration(max_ttl));
        report.error(section.place("min_ttl"), what, "write min_ttl <= max_ttl");
    }
    let families = [("both", Families::Both), ("ipv4", Families::Ipv4), ("ipv6", Families::Ipv6)];
    let sticky = [("none", Sticky::None), ("call", Sticky::Call), ("ttl", Sticky::Ttl)];
    let selections = [("exact", SrvSelection::Exact), ("rfc2782", SrvSelection::Rfc2782)];
    Dns {
        servers: servers.unwrap_or(d.servers),
        transports: transports.unwrap_or(d.transports),
        addresses: section.word(report, "addresses", &families, d.addresses),
        min_ttl,
        max_ttl,
        negative_ttl: section
            .duration(report, "negative_ttl", Duration::ZERO..=YEAR)
            .unwrap_or(d.negative_ttl),
        timeout: section.duration(report, "timeout", MS..=YEAR).unwrap_or(d.timeout),
        stale_ttl: section.duration(report, "stale_ttl", Duration::ZERO..=YEAR).unwrap_or(d.stale_ttl),
        sticky: section.word(report, "sticky", &sticky, d.sticky),
        srv_selection: section.word(report, "srv_selection", &selections, d.srv_selection),
    }
}

fn core(report: &mut Report<'_>, root: &Section<'_>, spots: &mut Spots) -> Core {
    let section = root.table(report, "core", &raw::CORE);
    let next_hops: Option<Vec<At<NextHop>>> = section.list(report, "next_hops", names::next_hop);
    let (next_hops, hop_places) = split(next_hops.unwrap_or_default());
    let (prefixes, by_name) = peers::sources(report, &section);
    let (sources, _) = split(prefixes);
    if let Some(At { value, at }) = by_name.first() {
        let what = format!("\"dns:{value}\" is for peers: whoever changes a zone must not become the core");
        report.error(*at, what, "list the addresses or prefixes of the core");
    }
    let (tls_names, name_places) =
        split(section.list(report, "tls_names", names::tls_name).unwrap_or_default());
    spots.core = CoreSpots { head: section.at, next_hops: hop_places, tls_names: name_places };
    let strip_headers = section.list(report, "strip_headers", names::strippable_header).unwrap_or_default();
    Core { next_hops, sources, tls_names, strip_headers: split(strip_headers).0 }
}

fn runtime(report: &mut Report<'_>, root: &Section<'_>) -> Runtime {
    let section = root.table(report, "runtime", &raw::RUNTIME);
    let d = Runtime::default();
    Runtime {
        workers: section.number(report, "workers", 0..=1024).unwrap_or(d.workers),
        drain_timeout: section
            .duration(report, "drain_timeout", Duration::ZERO..=YEAR)
            .unwrap_or(d.drain_timeout),
        udp_segmentation: section.boolean(report, "udp_segmentation").unwrap_or(d.udp_segmentation),
    }
}

fn log(report: &mut Report<'_>, root: &Section<'_>) -> Log {
    let section = root.table(report, "log", &raw::LOG);
    let d = Log::default();
    Log {
        json: section.word(report, "format", &[("text", false), ("json", true)], d.json),
        level: section.parsed(report, "level", log_level).map_or(d.level, |l| l.value),
    }
}

/// A level, or directives `target=level` separated by commas.
fn log_level(text: &str) -> Result<String, Fault> {
    const LEVELS: [&str; 6] = ["error", "warn", "info", "debug", "trace", "off"];
    for directive in text.split(',') {
        let level = directive.rsplit('=').next().unwrap_or_default().trim();
        // A directive with a span's fields has a grammar of its own.
        if !directive.contains('[') && !LEVELS.iter().any(|l| l.eq_ignore_ascii_case(level)) {
            let meant = nearest(level, LEVELS).map_or_else(
                || format!("write {}", alternatives(LEVELS)),
                |l| format!("did you mean \"{l}\"?"),
            );
            return Err(Fault::new(format!("\"{level}\" is not a level"), meant));
        }
    }
    Ok(text.to_owned())
}

fn limits(report: &mut Report<'_>, root: &Section<'_>) -> Limits {
    const MOST: u64 = 100_000_000;
    let section = root.table(report, "limits", &raw::LIMITS);
    let d = Limits::default();
    Limits {
        transactions: section.number(report, "transactions", 1..=MOST).unwrap_or(d.transactions),
        connections: section.number(report, "connections", 1..=MOST).unwrap_or(d.connections),
        write_queue: section.size(report, "write_queue", 4096..=1 << 30).unwrap_or(d.write_queue),
        dns_entries: section.number(report, "dns_entries", 1..=MOST).unwrap_or(d.dns_entries),
        records: section.number(report, "records", 0..=MOST).unwrap_or(d.records),
    }
}

fn overload(report: &mut Report<'_>, root: &Section<'_>) -> Overload {
    let section = root.table(report, "overload", &raw::OVERLOAD);
    let d = Overload::default();
    let minute = Duration::from_secs(60);
    let target_delay = section.duration(report, "target_delay", MS..=SECOND * 10).unwrap_or(d.target_delay);
    if target_delay > Duration::from_millis(200) {
        let what =
            format!("target_delay = {} makes callers repeat their requests", show_duration(target_delay));
        report.warn(
            section.place("target_delay"),
            what,
            "an INVITE is repeated after T1; write \"200ms\" or less",
        );
    }
    Overload {
        enabled: section.boolean(report, "enabled").unwrap_or(d.enabled),
        target_delay,
        interval: section.duration(report, "interval", Duration::ZERO..=minute).unwrap_or(d.interval),
        retry_after: section.duration(report, "retry_after", SECOND..=YEAR).unwrap_or(d.retry_after),
        silence: section.duration(report, "silence", Duration::ZERO..=minute).unwrap_or(d.silence),
    }
}
