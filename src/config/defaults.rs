//! What holds where the configuration says nothing.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use super::{Alive, Dns, Families, Health, Limits, Log, Overload, Probe, Runtime, Sip, SrvSelection, Sticky};
use crate::flow::Transport;

/// `[calls] max_age`.
pub const CALLS_MAX_AGE: Duration = Duration::from_secs(12 * 3600);

/// `[admin] bind`: loopback, since nobody is asked who they are.
pub const ADMIN_BIND: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 9060);

impl Default for Sip {
    fn default() -> Self {
        Sip {
            t1: Duration::from_millis(500),
            t2: Duration::from_secs(4),
            t4: Duration::from_secs(5),
            timer_c: Duration::from_secs(185),
            idle_timeout: Duration::from_secs(600),
            message_timeout: Duration::from_secs(10),
            try_timeout: Duration::from_secs(3),
            connect_timeout: Duration::from_secs(1),
            failover_codes: vec![503],
            max_tries: 10,
            max_message: 64 * 1024,
            max_headers: 256,
            max_header: 32 * 1024,
            dialog_secret_file: None,
        }
    }
}

impl Default for Health {
    fn default() -> Self {
        Health {
            hold_down: Duration::from_secs(2),
            hold_down_max: Duration::from_secs(60),
            retry_after_max: Duration::from_secs(3600),
            slow_start: Duration::from_secs(10),
            max_probed_down: 1.0,
        }
    }
}

impl Default for Dns {
    fn default() -> Self {
        Dns {
            servers: Vec::new(),
            transports: vec![Transport::Tls, Transport::Tcp, Transport::Udp],
            addresses: Families::Both,
            min_ttl: Duration::ZERO,
            max_ttl: Duration::from_secs(86_400),
            negative_ttl: Duration::from_secs(60),
            timeout: Duration::from_secs(5),
            stale_ttl: Duration::from_secs(3600),
            sticky: Sticky::Call,
            srv_selection: SrvSelection::Exact,
        }
    }
}

impl Default for Probe {
    fn default() -> Self {
        Probe {
            interval: Duration::from_secs(30),
            timeout: Duration::from_secs(2),
            down_after: 3,
            up_after: 2,
            alive: Alive::Usual,
        }
    }
}

impl Default for Runtime {
    fn default() -> Self {
        Runtime { workers: 0, drain_timeout: Duration::from_secs(30), udp_segmentation: true }
    }
}

impl Default for Log {
    fn default() -> Self {
        Log { json: false, level: "info".to_owned() }
    }
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            transactions: 1_000_000,
            connections: 20_000,
            write_queue: 1 << 20,
            dns_entries: 200_000,
            records: 10_000,
        }
    }
}

impl Default for Overload {
    fn default() -> Self {
        Overload {
            enabled: true,
            target_delay: Duration::from_millis(20),
            interval: Duration::from_millis(100),
            retry_after: Duration::from_secs(10),
            silence: Duration::from_secs(4),
        }
    }
}
