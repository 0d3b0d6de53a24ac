//! All metrics. Labels come from the configuration, resolved addresses and fixed words only; what has
//! a fixed set of label values is there from the start, with 0.

use std::collections::BTreeMap;
use std::time::Instant;

use crate::flow::{PeerId, Transport};
use crate::location::Standing;
use crate::peering::{Party, Side};
use crate::proxy::Policy;
use crate::runtime::call_records::{CallRecords, Counts};
use crate::runtime::hep;
use crate::runtime::node::{Listed, Live, Node};
use crate::runtime::upgrade::Outcome;
use crate::runtime::{Counters, Direction, DropReason};
use crate::shard::Stats;
use crate::wire::Method;

use super::capture;
use super::process::Process;
use super::text::Text;

/// Status classes, by index of the counters.
const CLASSES: [&str; 6] = ["1xx", "2xx", "3xx", "4xx", "5xx", "6xx"];
/// Outcomes that every peer has from the start.
const OUTCOMES: [&str; 6] =
    ["ok", "timeout", "status_503", "client_error", "server_error", "connect_refused"];
/// Reasons to fail over that every peer has from the start.
const FAILOVERS: [&str; 3] = ["timeout", "status_503", "connect_refused"];
/// With more peers than this, zeros are left out: a series appears with its first event.
const ZEROS_FOR: usize = 256;
/// Reasons for which shards drop messages.
const DROPS: [&str; 16] = [
    "ack_not_routed",
    "bad_ack",
    "icmp",
    "keepalive",
    "late_ack",
    "late_response",
    "no_ack",
    "no_via",
    "not_sip",
    "response_undeliverable",
    "shed_ack",
    "shed_again",
    "stranger",
    "stray_response",
    "table_full",
    "too_large",
];
/// Reasons for which requests are refused here, as far as they are always of interest.
const REFUSALS: [&str; 14] = [
    "cancelled",
    "draining",
    "loop",
    "max_calls",
    "max_calls_per_instance",
    "max_forwards",
    "max_rate",
    "max_rate_per_instance",
    "no_route",
    "no_transit",
    "stranger",
    "table_full",
    "unavailable",
    "unknown_domain",
];

/// The whole text for a running node.
pub fn metrics(node: &Node) -> String {
    let now = Instant::now();
    let policy = node.policy();
    let stats = node.stats();
    let mut text = Text::default();
    about(&mut text, node, now);
    messages(&mut text, &stats, node.counters());
    state(&mut text, node.live(), &policy, node);
    overload(&mut text, node, &stats, &policy, now);
    attempts(&mut text, &stats, &policy);
    instances(&mut text, &node.instances(now), &policy);
    dns(&mut text, node);
    super::alto::metrics(&mut text, node, now);
    sockets(&mut text, node.counters());
    records(&mut text, node);
    copies(&mut text, node);
    certificates(&mut text, node);
    text.family("sbe_setup_seconds", "histogram", "INVITE received to INVITE sent.").histogram(&stats.setup);
    text.family("sbe_answer_delay_seconds", "histogram", "INVITE received to its 2xx.")
        .histogram(&stats.answer_delay);
    process(&mut text, &Process::look(), node);
    text.finish()
}

fn about(text: &mut Text, node: &Node, now: Instant) {
    text.family("sbe_build_info", "gauge", "Always 1; the version is a label.")
        .sample(&[("version", env!("CARGO_PKG_VERSION"))], 1);
    let uptime = now.saturating_duration_since(node.started());
    text.family("sbe_uptime_seconds", "gauge", "Since the start.").sample(&[], uptime.as_secs_f64());
    text.family("sbe_ready", "gauge", "1 while new requests are accepted, as /readyz says.")
        .sample(&[], u8::from(node.unready().is_none()));
    text.family("sbe_draining", "gauge", "1 while draining.").sample(&[], u8::from(node.is_draining()));
    let [taken, refused] = node.reloads();
    text.family("sbe_reloads_total", "counter", "Configurations read again, by outcome.")
        .sample(&[("outcome", "ok")], taken)
        .sample(&[("outcome", "error")], refused);
    let desk = node.desk();
    let help = "Upgrades: another process has taken over (ok), could not (failed), was not started (refused), or ended before this one (returned).";
    text.family("sbe_upgrades_total", "counter", help);
    for outcome in Outcome::ALL {
        text.sample(&[("outcome", outcome.label())], desk.count(outcome));
    }
    text.family("sbe_generation", "gauge", "1 for a process started afresh, one more after each upgrade.")
        .sample(&[], desk.generation());
    let stage = match (desk.successor(), desk.predecessor()) {
        (Some(_), _) => 2,
        (None, Some(_)) => 1,
        (None, None) => 0,
    };
    let help =
        "1 while the process before this one still ends its calls, 2 while this one does, 0 otherwise.";
    text.family("sbe_upgrade_stage", "gauge", help).sample(&[], stage);
}

fn messages(text: &mut Text, stats: &Stats, counters: &Counters) {
    text.family("sbe_requests_total", "counter", "Requests received, by side of the sender and method.");
    for (side, row) in Side::ALL.iter().zip(&stats.requests) {
        for (method, n) in Method::ALL.iter().zip(row) {
            text.sample(&[("realm", side.label()), ("method", method.label())], n);
        }
    }
    by_class(
        text,
        "sbe_responses_total",
        "Responses received, by side they came from and class.",
        &stats.responses,
    );
    by_class(text, "sbe_answers_total", "Responses sent, by side they went to and class.", &stats.answers);
    let mut dropped: BTreeMap<&str, u64> = DROPS.iter().map(|r| (*r, 0)).collect();
    for reason in DropReason::ALL {
        *dropped.entry(reason.label()).or_default() += counters.dropped(reason);
    }
    for (reason, n) in &stats.dropped {
        *dropped.entry(reason).or_default() += n;
    }
    text.family("sbe_dropped_total", "counter", "Messages dropped and connections closed, by reason.");
    for (reason, n) in dropped {
        text.sample(&[("reason", reason)], n);
    }
    let mut rejected: BTreeMap<&str, u64> = REFUSALS.iter().map(|r| (*r, 0)).collect();
    for (reason, n) in &stats.rejected {
        *rejected.entry(reason).or_default() += n;
    }
    text.family("sbe_rejected_total", "counter", "Requests answered by this element itself, by reason.");
    for (reason, n) in rejected {
        text.sample(&[("reason", reason)], n);
    }
    text.family("sbe_table_full_total", "counter", "Requests refused as limits.transactions was reached.")
        .sample(&[], stats.table_full);
    text.family("sbe_retransmissions_total", "counter", "Retransmissions absorbed (in) and sent (out).")
        .sample(&[("direction", "in")], stats.retransmissions_in)
        .sample(&[("direction", "out")], stats.retransmissions_out);
}

fn by_class(text: &mut Text, name: &'static str, help: &str, counts: &[[u64; 6]; 3]) {
    text.family(name, "counter", help);
    for (side, row) in Side::ALL.iter().zip(counts) {
        for (class, n) in CLASSES.iter().zip(row) {
            text.sample(&[("realm", side.label()), ("class", class)], n);
        }
    }
}

fn state(text: &mut Text, live: Live, policy: &Policy, node: &Node) {
    text.family(
        "sbe_transactions",
        "gauge",
        "Live transactions, those that only absorb retransmissions included.",
    )
    .sample(&[("kind", "server")], live.servers)
    .sample(&[("kind", "client")], live.clients);
    text.family("sbe_transactions_open", "gauge", "Server transactions without a final response.")
        .sample(&[], live.open);
    text.family("sbe_transactions_limit", "gauge", "limits.transactions.")
        .sample(&[], policy.config.limits.transactions);
    text.family("sbe_contexts", "gauge", "Response contexts held.").sample(&[], live.contexts);
    text.family(
        "sbe_timers",
        "gauge",
        "Timers held, those included that were cancelled and wait for their time to be forgotten.",
    )
    .sample(&[], live.timers);
    text.family("sbe_calls", "gauge", "Calls counted.").sample(&[], live.calls);
    text.family(
        "sbe_peer_calls",
        "gauge",
        "Calls counted, by peer; a call between two peers counts for both.",
    );
    for peer in policy.peers.iter().flatten() {
        text.sample(&[("peer", &peer.config.name)], node.ledger().calls(peer.id));
    }
    limits(text, node, policy);
    text.family("sbe_calls_aged_total", "counter", "Calls dropped from the count because nobody ended them.")
        .sample(&[], node.stats().calls_aged);
}

/// What counts against limits, and the limits; only of those that have any.
fn limits(text: &mut Text, node: &Node, policy: &Policy) {
    let now = Instant::now();
    let peers = || policy.peers.iter().flatten();
    let help = "max_calls of a peer, to which sbe_peer_calls is held.";
    text.family("sbe_peer_calls_limit", "gauge", help);
    for (peer, most) in peers().filter_map(|p| Some((p, p.config.max_calls?))) {
        text.sample(&[("peer", &peer.config.name)], most);
    }
    let limited = || peers().filter_map(|p| Some((p, p.config.max_rate?)));
    let help =
        "New calls of the last second that count against max_rate of a peer; above it the next is refused.";
    text.family("sbe_peer_rate", "gauge", help);
    for (peer, most) in limited() {
        text.sample(&[("peer", &peer.config.name)], node.ledger().used(now, peer.id, Some(most)).rate);
    }
    text.family("sbe_peer_rate_limit", "gauge", "max_rate of a peer, new calls per second.");
    for (peer, most) in limited() {
        text.sample(&[("peer", &peer.config.name)], most);
    }
    let any = peers().any(|p| policy.instance_limits(Party::Peer(p.id)).any());
    let listed = if any { node.instances(now) } else { Vec::new() };
    let used: Vec<_> = listed
        .iter()
        .filter_map(|l| {
            let (used, limits) = node.used_of(now, l.peer?, &l.instance)?;
            Some((policy.peer_name(l.peer), l.instance.to_string(), used, limits))
        })
        .collect();
    let help = "Calls that count against max_calls_per_instance.";
    text.family("sbe_instance_calls", "gauge", help);
    for (peer, instance, used, _) in &used {
        text.sample(&[("peer", peer), ("instance", instance)], used.calls);
    }
    text.family("sbe_instance_calls_limit", "gauge", "max_calls_per_instance.");
    for (peer, instance, most) in used.iter().filter_map(|(p, i, _, l)| Some((p, i, l.calls?))) {
        text.sample(&[("peer", peer), ("instance", instance)], most);
    }
    let help = "New calls of the last second that count against max_rate_per_instance.";
    text.family("sbe_instance_rate", "gauge", help);
    for (peer, instance, rate) in used.iter().filter_map(|(p, i, u, l)| l.rate.map(|_| (p, i, u.rate))) {
        text.sample(&[("peer", peer), ("instance", instance)], rate);
    }
    text.family("sbe_instance_rate_limit", "gauge", "max_rate_per_instance, new calls per second.");
    for (peer, instance, most) in used.iter().filter_map(|(p, i, _, l)| Some((p, i, l.rate?))) {
        text.sample(&[("peer", peer), ("instance", instance)], most);
    }
}

fn overload(text: &mut Text, node: &Node, stats: &Stats, policy: &Policy, now: Instant) {
    let state = node.overload(now);
    text.family("sbe_overload_delay_seconds", "gauge", "How long messages wait until they are handled.")
        .sample(&[], state.delay.as_secs_f64());
    text.family("sbe_overload_admit_ratio", "gauge", "Share of new calls admitted; 1 without overload.")
        .sample(&[], state.admit);
    text.family("sbe_overload_shed_total", "counter", "New requests refused under overload, by sender.");
    let mut all: BTreeMap<&str, u64> = BTreeMap::from([("core", 0)]);
    if policy.peers.len() <= ZEROS_FOR {
        all.extend(policy.peers.iter().flatten().map(|p| (p.config.name.as_str(), 0)));
    }
    for (party, n) in &stats.shed {
        let name = match party {
            Party::Federation => "federation",
            // The name of a peer that is gone is not known any more.
            Party::Peer(peer) if policy.peer(*peer).is_none() => continue,
            _ => policy.peer_name(party.peer()),
        };
        *all.entry(name).or_default() += n;
    }
    for (peer, n) in all {
        text.sample(&[("peer", peer)], n);
    }
}

/// Counters by peer and a fixed word: zeros for all peers, then what has been counted.
fn by_peer(
    text: &mut Text,
    policy: &Policy,
    label: &str,
    words: &[&'static str],
    counted: impl Iterator<Item = ((Option<PeerId>, &'static str), u64)>,
) {
    let mut all: BTreeMap<(&str, &str), u64> = BTreeMap::new();
    let zeros = if policy.peers.len() <= ZEROS_FOR { words } else { &[] };
    let peers = policy.peers.iter().flatten().map(|p| p.config.name.as_str());
    for peer in ["core"].into_iter().chain(peers) {
        all.extend(zeros.iter().map(|word| ((peer, *word), 0)));
    }
    for ((peer, word), n) in counted {
        // The name of a peer that is gone is not known any more.
        if peer.is_none_or(|p| policy.peer(p).is_some()) {
            *all.entry((policy.peer_name(peer), word)).or_default() += n;
        }
    }
    for ((peer, word), n) in all {
        text.sample(&[("peer", peer), (label, word)], n);
    }
}

fn attempts(text: &mut Text, stats: &Stats, policy: &Policy) {
    text.family("sbe_attempts_total", "counter", "Attempts at instances that have ended, by outcome.");
    by_peer(text, policy, "outcome", &OUTCOMES, stats.attempts.iter().map(|(k, n)| (*k, *n)));
    text.family(
        "sbe_failovers_total",
        "counter",
        "Attempts after which the next candidate was tried, by reason.",
    );
    by_peer(text, policy, "reason", &FAILOVERS, stats.failovers.iter().map(|(k, n)| (*k, *n)));
}

fn instances(text: &mut Text, listed: &[Listed], policy: &Policy) {
    text.family("sbe_instance_up", "gauge", "1 if nothing speaks against an instance, else 0.");
    for one in listed {
        if one.peer.is_some_and(|p| policy.peer(p).is_none()) {
            continue;
        }
        let up = u8::from(one.standing == Standing::Up);
        text.sample(&[("peer", policy.peer_name(one.peer)), ("instance", &one.instance.to_string())], up);
    }
}

fn dns(text: &mut Text, node: &Node) {
    let stats = node.resolver().stats();
    text.family("sbe_dns_queries_total", "counter", "Questions put to name servers, by type and outcome.");
    for (kind, outcome, n) in stats.queries() {
        text.sample(&[("type", kind), ("outcome", outcome)], n);
    }
    text.family("sbe_dns_cache_total", "counter", "How the DNS cache served, by result.");
    for (result, n) in stats.cache() {
        text.sample(&[("result", result)], n);
    }
    text.family("sbe_dns_cache_entries", "gauge", "Record sets in the cache.")
        .sample(&[], node.resolver().entry_count());
}

fn sockets(text: &mut Text, counters: &Counters) {
    use std::sync::atomic::{AtomicU64, Ordering};
    text.family("sbe_connections", "gauge", "Open connections, and ones being made.");
    for transport in [Transport::Tcp, Transport::Tls] {
        for direction in Direction::ALL {
            text.sample(
                &[("transport", transport.param()), ("direction", direction.label())],
                counters.connections(transport, direction),
            );
        }
    }
    text.family(
        "sbe_tls_handshakes_total",
        "counter",
        "TLS handshakes that succeeded; the others are in sbe_dropped_total.",
    );
    for direction in Direction::ALL {
        text.sample(&[("direction", direction.label())], counters.handshakes(direction));
    }
    let read = |n: &AtomicU64| n.load(Ordering::Relaxed);
    text.family("sbe_datagrams_total", "counter", "Datagrams received (in) and sent (out).")
        .sample(&[("direction", "in")], read(&counters.datagrams_in))
        .sample(&[("direction", "out")], read(&counters.datagrams_out));
    text.family("sbe_stream_messages_total", "counter", "Messages received and written on connections.")
        .sample(&[("direction", "in")], read(&counters.stream_messages_in))
        .sample(&[("direction", "out")], read(&counters.stream_messages_out));
    text.family("sbe_icmp_errors_total", "counter", "ICMP errors for datagrams of ours.")
        .sample(&[], read(&counters.icmp_errors));
    text.family("sbe_handed_over_total", "counter", "Datagrams given to the process that takes over.")
        .sample(&[], read(&counters.handed_over));
    let segmentation = "1: datagrams of one length to one place may leave as one run; 0: somebody captures packets, or it is off.";
    text.family("sbe_udp_segmentation", "gauge", segmentation)
        .sample(&[], u64::from(counters.segmentation.load(Ordering::Relaxed)));
    text.family("sbe_udp_runs_total", "counter", "Runs of datagrams that the kernel divides.")
        .sample(&[], read(&counters.datagram_runs));
    text.family("sbe_udp_wakeups_total", "counter", "Times that a UDP socket was found ready.")
        .sample(&[], read(&counters.udp_wakeups));
    text.family("sbe_panics_total", "counter", "Panics that were caught; each is a bug.")
        .sample(&[], read(&counters.panics));
    text.family("sbe_log_suppressed_total", "counter", "Log lines left out because there were too many.")
        .sample(&[], read(&counters.log_suppressed));
}

/// Copies to a capture server, without which all is zero.
fn copies(text: &mut Text, node: &Node) {
    let none = hep::Counts::default();
    let counts = node.hep().map_or(&none, hep::Capture::counts);
    let help = "Messages copied to the capture server: sent, dropped as there was no room, failed, too large to copy.";
    text.family("sbe_hep_total", "counter", help);
    for (outcome, n) in counts.outcomes() {
        text.sample(&[("outcome", outcome)], n);
    }
    capture::metrics(text, node);
}

/// Call records, without which all is zero.
fn records(text: &mut Text, node: &Node) {
    let none = Counts::default();
    let counts = node.call_records().map_or(&none, CallRecords::counts);
    let help = "Call records: written, dropped as the writer did not keep up, failed to be written.";
    text.family("sbe_call_records_total", "counter", help);
    for (outcome, n) in counts.outcomes() {
        text.sample(&[("outcome", outcome)], n);
    }
    let help = "Ends of calls that the writer of call records did not get to know.";
    text.family("sbe_call_record_ends_lost_total", "counter", help).sample(&[], counts.ends_lost());
    text.family("sbe_call_records_open", "gauge", "Answered calls whose record waits for their end.")
        .sample(&[], counts.open());
}

/// Seconds since 1970 in the manner of Prometheus: an alert compares with `time()`.
fn certificates(text: &mut Text, node: &Node) {
    let help =
        "When a certificate that we show expires, or the first of those sent with it, in seconds since 1970.";
    text.family("sbe_certificate_expiry_seconds", "gauge", help);
    // Two peers may be shown the same.
    let files: BTreeMap<String, u64> = node
        .certificates()
        .iter()
        .map(|c| {
            let at = c.not_after.duration_since(std::time::SystemTime::UNIX_EPOCH).unwrap_or_default();
            (c.file.display().to_string(), at.as_secs())
        })
        .collect();
    for (file, at) in files {
        text.sample(&[("file", &file)], at);
    }
}

fn process(text: &mut Text, process: &Process, node: &Node) {
    let mut gauge = |name, help: &str, value: Option<u64>| {
        if let Some(value) = value {
            text.family(name, "gauge", help).sample(&[], value);
        }
    };
    gauge("process_resident_memory_bytes", "Resident memory.", process.resident);
    gauge("process_virtual_memory_bytes", "Virtual memory.", process.virtual_memory);
    gauge("process_open_fds", "Open file descriptors.", process.descriptors);
    gauge("process_max_fds", "Most file descriptors.", process.max_descriptors);
    gauge("process_threads", "Threads.", process.threads);
    let epoch = std::time::SystemTime::UNIX_EPOCH;
    let start = node.wall_clock(node.started()).duration_since(epoch).unwrap_or_default();
    text.family("process_start_time_seconds", "gauge", "Start, in seconds since 1970.")
        .sample(&[], start.as_secs_f64());
    if let Some(cpu) = process.cpu {
        text.family("process_cpu_seconds_total", "counter", "CPU time used.").sample(&[], cpu.as_secs_f64());
    }
}
