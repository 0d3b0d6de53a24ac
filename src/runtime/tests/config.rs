//! A configuration to start from.

use std::time::Duration;

use crate::config::*;
use crate::flow::{Host, Transport};

/// A peer without anything.
pub(in crate::runtime) fn peer() -> Peer {
    Peer {
        name: String::new(),
        domains: Vec::new(),
        next_hop: None,
        sources: Vec::new(),
        source_names: Vec::new(),
        tls_names: None,
        certificate: None,
        strip_headers: Vec::new(),
        trust: true,
        numbers_in: Vec::new(),
        numbers_out: Vec::new(),
        max_calls: None,
        max_rate: None,
        max_calls_per_instance: None,
        max_rate_per_instance: None,
        t1: None,
        try_timeout: None,
        failover_codes: None,
        probe: None,
        alto_scope: None,
    }
}

/// Loopback listeners, one worker, usual timers.
pub(in crate::runtime) fn config(listen: &[(Transport, &str)]) -> Config {
    let second = Duration::from_secs(1);
    Config {
        node: Node { name: Host::Name("sbe.test".into()), domains: Vec::new() },
        listen: listen
            .iter()
            .map(|(transport, bind)| Listen {
                transport: *transport,
                bind: bind.parse().unwrap(),
                realm: Realm::Both,
                advertise: None,
            })
            .collect(),
        tls: None,
        sip: Sip {
            t1: second / 2,
            t2: second * 4,
            t4: second * 5,
            timer_c: second * 185,
            idle_timeout: second * 600,
            message_timeout: second * 10,
            try_timeout: second * 3,
            connect_timeout: second * 5,
            failover_codes: vec![503],
            max_tries: 10,
            max_message: 65_536,
            max_headers: 256,
            max_header: 8_192,
            dialog_secret_file: None,
        },
        health: Health {
            hold_down: second,
            hold_down_max: second,
            retry_after_max: second,
            slow_start: Duration::ZERO,
            max_probed_down: 1.0,
        },
        calls_max_age: second,
        dns: Dns {
            servers: Vec::new(),
            transports: Vec::new(),
            addresses: Families::Both,
            min_ttl: second,
            max_ttl: second,
            negative_ttl: second,
            timeout: second,
            stale_ttl: second,
            sticky: Sticky::Call,
            srv_selection: SrvSelection::Exact,
        },
        core: Core {
            next_hops: Vec::new(),
            sources: Vec::new(),
            tls_names: Vec::new(),
            strip_headers: Vec::new(),
        },
        peers: Vec::new(),
        routes: Vec::new(),
        federation_open: false,
        federation_trust: true,
        alto: None,
        runtime: Runtime { workers: 1, drain_timeout: second, udp_segmentation: true },
        log: Log { json: false, level: "info".into() },
        admin: None,
        admin_tokens: AdminTokens::default(),
        records: None,
        hep: None,
        overload: crate::config::Overload::default(),
        limits: Limits {
            transactions: 1000,
            connections: 5000,
            write_queue: 256 * 1024,
            dns_entries: 10,
            records: 10,
        },
    }
}
