//! What the sockets count, for the metrics. Plain atomics, added to once per batch where it matters.

use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};

use crate::flow::Transport;

/// Who opened a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Direction {
    /// The other end.
    In,
    /// This element.
    Out,
}

impl Direction {
    /// Both.
    pub const ALL: [Direction; 2] = [Direction::In, Direction::Out];

    /// The value of a metric label.
    pub const fn label(self) -> &'static str {
        match self {
            Direction::In => "in",
            Direction::Out => "out",
        }
    }
}

/// Why the sockets dropped a message, refused a connection or closed one against the peer's wish.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(usize)]
pub enum DropReason {
    /// A UDP socket took no more and its queue was full.
    UdpSendQueue,
    /// A datagram larger than the receive buffer, or larger than can be sent.
    Oversize,
    /// A connection beyond `limits.connections`.
    Connections,
    /// A connection whose reader took nothing for seconds while its queue was full.
    SlowReader,
    /// A message that found a connection's queue full (`limits.write_queue`).
    WriteQueue,
    /// A connection whose octets could not be cut into messages.
    Framing,
    /// A connection whose message was not complete within `message_timeout`.
    MessageTimeout,
    /// An accepted connection that could not be set up (no descriptor, gone again).
    Accept,
    /// A datagram that the kernel refused to send.
    Unsendable,
    /// A TLS handshake that failed.
    Handshake,
    /// A connection closed at once because too many TLS handshakes were under way.
    HandshakeLimit,
    /// A datagram that the process that takes over could not be given in time.
    HandOver,
}

impl DropReason {
    /// All of them.
    pub const ALL: [DropReason; 12] = [
        DropReason::UdpSendQueue,
        DropReason::Oversize,
        DropReason::Connections,
        DropReason::SlowReader,
        DropReason::WriteQueue,
        DropReason::Framing,
        DropReason::MessageTimeout,
        DropReason::Accept,
        DropReason::Unsendable,
        DropReason::Handshake,
        DropReason::HandshakeLimit,
        DropReason::HandOver,
    ];

    /// The value of `sbe_dropped_total`'s label.
    pub const fn label(self) -> &'static str {
        match self {
            DropReason::UdpSendQueue => "udp_send_queue",
            DropReason::Oversize => "oversize",
            DropReason::Connections => "connections",
            DropReason::SlowReader => "slow_reader",
            DropReason::WriteQueue => "write_queue",
            DropReason::Framing => "framing",
            DropReason::MessageTimeout => "message_timeout",
            DropReason::Accept => "accept",
            DropReason::Unsendable => "unsendable",
            DropReason::Handshake => "tls_handshake",
            DropReason::HandshakeLimit => "tls_handshake_limit",
            DropReason::HandOver => "hand_over",
        }
    }
}

/// Counters of the whole node.
#[derive(Debug, Default)]
pub struct Counters {
    connections: [[AtomicI64; 2]; 3],
    dropped: [AtomicU64; DropReason::ALL.len()],
    handshakes: [AtomicU64; 2],
    /// Datagrams received.
    pub datagrams_in: AtomicU64,
    /// Datagrams sent.
    pub datagrams_out: AtomicU64,
    /// Stream messages received.
    pub stream_messages_in: AtomicU64,
    /// Stream messages written in full.
    pub stream_messages_out: AtomicU64,
    /// Entries taken from error queues.
    pub icmp_errors: AtomicU64,
    /// Times that a UDP socket was found ready: the wake-ups that batches are to save.
    pub udp_wakeups: AtomicU64,
    /// Runs of datagrams that went to the kernel as one.
    pub datagram_runs: AtomicU64,
    /// Runs may be made at the moment.
    pub segmentation: AtomicBool,
    /// Workers that datagrams are spread over at the moment.
    pub udp_workers: AtomicU64,
    /// Panics of an element that were caught; each is a bug.
    pub panics: AtomicU64,
    /// Datagrams given to the process that takes over.
    pub handed_over: AtomicU64,
    /// Lines left out of the log because there were too many of their kind.
    pub log_suppressed: AtomicU64,
}

impl Counters {
    /// Open connections (and ones being made), for `sbe_connections{transport,direction}`.
    pub fn connections(&self, transport: Transport, direction: Direction) -> i64 {
        self.connections[transport as usize][direction as usize].load(Ordering::Relaxed)
    }

    /// For `sbe_dropped_total{reason}`.
    pub fn dropped(&self, reason: DropReason) -> u64 {
        self.dropped[reason as usize].load(Ordering::Relaxed)
    }

    /// TLS handshakes that succeeded, by who opened the connection.
    pub fn handshakes(&self, direction: Direction) -> u64 {
        self.handshakes[direction as usize].load(Ordering::Relaxed)
    }

    pub(super) fn handshake(&self, direction: Direction) {
        self.handshakes[direction as usize].fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn drop_one(&self, reason: DropReason) {
        self.dropped[reason as usize].fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn connection(&self, transport: Transport, direction: Direction, change: i64) {
        self.connections[transport as usize][direction as usize].fetch_add(change, Ordering::Relaxed);
    }

    pub(super) fn add(counter: &AtomicU64, n: usize) {
        counter.fetch_add(n as u64, Ordering::Relaxed);
    }
}
