//! Where messages come from and go to: transports, hosts, hops.
//!
//! Plain data shared by every layer; "flow" in the sense of RFC 5626 §2: one listener's socket or
//! one connection, seen from this element.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

/// A transport that this element speaks (RFC 3261 §18, RFC 3263 §4.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum Transport {
    /// Datagrams.
    Udp,
    /// A plain stream.
    Tcp,
    /// A stream under TLS over TCP.
    Tls,
}

impl Transport {
    /// All of them, in the order of their numbers.
    pub const ALL: [Transport; 3] = [Transport::Udp, Transport::Tcp, Transport::Tls];

    /// The token of a Via's sent-protocol: `UDP`, `TCP`, `TLS`.
    pub const fn via_token(self) -> &'static str {
        match self {
            Transport::Udp => "UDP",
            Transport::Tcp => "TCP",
            Transport::Tls => "TLS",
        }
    }

    /// The value of a `transport` parameter and of metric labels: `udp`, `tcp`, `tls`.
    pub const fn param(self) -> &'static str {
        match self {
            Transport::Udp => "udp",
            Transport::Tcp => "tcp",
            Transport::Tls => "tls",
        }
    }

    /// Port when none is given (RFC 3261 §19.1.2).
    pub const fn default_port(self) -> u16 {
        match self {
            Transport::Udp | Transport::Tcp => 5060,
            Transport::Tls => 5061,
        }
    }

    /// True for TCP and TLS: no retransmission by us, framed by Content-Length.
    pub const fn is_reliable(self) -> bool {
        !matches!(self, Transport::Udp)
    }

    /// From a `transport` parameter or a Via token, in any case.
    pub fn from_token(token: &[u8]) -> Option<Self> {
        // In the two usual spellings first: a comparison without case looks at each octet.
        Self::ALL
            .into_iter()
            .find(|t| token == t.via_token().as_bytes() || token == t.param().as_bytes())
            .or_else(|| Self::ALL.into_iter().find(|t| token.eq_ignore_ascii_case(t.param().as_bytes())))
    }
}

impl fmt::Display for Transport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.param())
    }
}

/// A host as URIs and Vias name it (RFC 3261 §25.1 `host`).
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Host {
    /// A domain name: ASCII lower case, no final dot.
    Name(Arc<str>),
    /// An IPv4 address or an IPv6 reference.
    Addr(IpAddr),
}

impl fmt::Display for Host {
    /// As in a URI: IPv6 in brackets.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Host::Name(n) => f.write_str(n),
            Host::Addr(IpAddr::V4(a)) => write!(f, "{a}"),
            Host::Addr(IpAddr::V6(a)) => write!(f, "[{a}]"),
        }
    }
}

/// Index of a `[[listen]]` table in the configuration, in file order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ListenerId(pub u16);

/// A stream connection; never used twice in the life of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ConnId(pub u64);

/// What a verified peer certificate says: its SIP domain identities (RFC 5922 §7.1), lower case.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct TlsIdentity {
    /// SIP URI identities if there are any, else DNS names of the subjectAltName.
    pub names: Vec<String>,
}

/// Where a message came from.
#[derive(Clone, Debug)]
pub struct Origin {
    /// The transport it came by.
    pub transport: Transport,
    /// The listener whose socket (or whose accepted, or for whose sake opened, connection) it came by.
    pub listener: ListenerId,
    /// The sender's address as the socket gave it.
    pub remote: SocketAddr,
    /// Our own address it was received on (differs from the bind address of a wildcard listener).
    pub local: SocketAddr,
    /// The connection, for streams.
    pub conn: Option<ConnId>,
    /// The verified client (or server) certificate's identity, for TLS with one.
    pub identity: Option<Arc<TlsIdentity>>,
}

/// The name or names a TLS server must prove (RFC 5922 §7.3), and what we show it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct TlsExpectation {
    /// Sent as SNI: the domain that was to be reached.
    pub server_name: Arc<str>,
    /// Any one of these identities is enough (includes `server_name` unless the peer's names replace it).
    pub accepted: Arc<[String]>,
    /// The peer whose own client certificate is shown, if it has one.
    pub peer: Option<PeerId>,
}

/// A configured `[[peer]]`, numbered so that the number survives reloads (interned by name).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PeerId(pub u16);

/// Where a message is to go.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Hop {
    /// Transport to use.
    pub transport: Transport,
    /// The listener to send from: UDP leaves from its socket, streams bind its address (rule 6).
    pub listener: ListenerId,
    /// The other end.
    pub remote: SocketAddr,
    /// Send on this very connection or fail with [`SendFailure::Closed`]; `None`: an open connection
    /// to `remote` is used, else a new one is made.
    pub conn: Option<ConnId>,
    /// Refuse pooled connections: one was found dead a moment ago (rule 10).
    pub fresh: bool,
    /// What the other end's certificate must say; TLS only.
    pub tls: Option<Arc<TlsExpectation>>,
}

/// Why something could not be sent, or will never be answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SendFailure {
    /// ICMP said that port, host or network cannot be reached (RFC 3261 §18.4).
    Icmp,
    /// The connection was refused or reset while it was made.
    ConnectRefused,
    /// No connection within `connect_timeout`.
    ConnectTimeout,
    /// The TLS handshake failed, or the certificate does not name whom we want.
    Tls,
    /// The named connection is no longer there, or ended before an answer came. `reused`: it was
    /// not made for this message.
    Closed {
        /// It had been used before.
        reused: bool,
    },
    /// The connection's write queue is full (a slow reader).
    QueueFull,
    /// The datagram is larger than the path or the protocol takes.
    TooLarge,
    /// Any other local error (no route, no socket, no descriptor).
    Local,
}

impl SendFailure {
    /// A fixed word for metrics and records.
    pub const fn label(self) -> &'static str {
        match self {
            SendFailure::Icmp => "icmp",
            SendFailure::ConnectRefused => "connect_refused",
            SendFailure::ConnectTimeout => "connect_timeout",
            SendFailure::Tls => "tls",
            SendFailure::Closed { .. } => "closed",
            SendFailure::QueueFull => "queue_full",
            SendFailure::TooLarge => "too_large",
            SendFailure::Local => "local",
        }
    }
}
