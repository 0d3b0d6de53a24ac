//! The configuration: TOML text in, a checked [`Config`] out, or errors with file, line, column and remedy.

mod admin;
mod alto;
mod check;
pub mod defaults;
mod doubts;
mod error;
pub mod hep;
mod lint;
mod listeners;
mod load;
mod names;
mod peers;
mod raw;
pub mod records;
#[cfg(test)]
mod tests;
mod units;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

pub use admin::AdminTokens;
pub use alto::{Alto, AltoCredentials, AltoMode, AltoRule, AltoScope, AltoService};
pub use error::{ConfigError, Warning};
pub use hep::Hep;
pub use load::{complaint, find, load, parse};
pub use raw::known_keys;
pub use records::{Records, RecordsOutput};
pub use units::{read_duration, read_size, show_duration, show_size};

use crate::flow::{Host, Transport};

/// Whom a listener serves and who is reached from it (rule 2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Realm {
    /// Towards peers.
    Peering,
    /// Towards the operator's core.
    Core,
    /// Both.
    Both,
}

/// The whole configuration, checked.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// `[node]`
    pub node: Node,
    /// `[[listen]]`, at least one, in file order.
    pub listen: Vec<Listen>,
    /// `[tls]`
    pub tls: Option<Tls>,
    /// `[sip]`
    pub sip: Sip,
    /// `[health]`
    pub health: Health,
    /// `[calls] max_age`
    pub calls_max_age: Duration,
    /// `[dns]`
    pub dns: Dns,
    /// `[core]`
    pub core: Core,
    /// `[[peer]]`, names unique, in file order.
    pub peers: Vec<Peer>,
    /// `[[route]]`
    pub routes: Vec<RouteRule>,
    /// `[federation] open`
    pub federation_open: bool,
    /// `[federation] trust`: strangers are in the trust domain (RFC 3325).
    pub federation_trust: bool,
    /// `[alto]`
    pub alto: Option<Alto>,
    /// `[runtime]`
    pub runtime: Runtime,
    /// `[log]`
    pub log: Log,
    /// `[admin] bind`; `None`: no admin interface.
    pub admin: Option<SocketAddr>,
    /// `[admin]`: who may use it.
    pub admin_tokens: AdminTokens,
    /// `[records]`; `None`: no call records.
    pub records: Option<Records>,
    /// `[hep]`; `None`: no copies to a capture server.
    pub hep: Option<Hep>,
    /// `[limits]`
    pub limits: Limits,
    /// `[overload]`
    pub overload: Overload,
}

/// `[node]`
#[derive(Clone, Debug, PartialEq)]
pub struct Node {
    /// Via sent-by and Record-Route host.
    pub name: Host,
    /// Our own domains, lower case.
    pub domains: Vec<Host>,
}

/// One `[[listen]]`.
#[derive(Clone, Debug, PartialEq)]
pub struct Listen {
    /// Transport.
    pub transport: Transport,
    /// Address and port of the socket.
    pub bind: SocketAddr,
    /// Whom it serves.
    pub realm: Realm,
    /// `advertise`: host and, if written, port.
    pub advertise: Option<(Host, Option<u16>)>,
}

/// `[tls]`
#[derive(Clone, Debug, PartialEq)]
pub struct Tls {
    /// PEM chain.
    pub certificate: PathBuf,
    /// PEM key.
    pub key: PathBuf,
    /// PEM files of trusted authorities; empty with `system_trust`.
    pub trust: Vec<PathBuf>,
    /// `trust = "system"`.
    pub system_trust: bool,
    /// PEM files of revoked certificates.
    pub crl: Vec<PathBuf>,
    /// `client_certificates`
    pub client_certificates: ClientCertificates,
}

/// `client_certificates`
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClientCertificates {
    /// The handshake fails without one.
    Require,
    /// Asked for; without one, `sources` decide.
    Request,
    /// Not asked for.
    None,
}

/// `[sip]`; durations as in RFC 3261 §17 table 4.
#[derive(Clone, Debug, PartialEq)]
pub struct Sip {
    /// T1, 10 to 500 ms.
    pub t1: Duration,
    /// T2.
    pub t2: Duration,
    /// T4.
    pub t4: Duration,
    /// Timer C.
    pub timer_c: Duration,
    /// A connection without traffic is closed after this.
    pub idle_timeout: Duration,
    /// A message on a stream must be complete within this.
    pub message_timeout: Duration,
    /// Silence of one instance before the next is tried.
    pub try_timeout: Duration,
    /// Connect, handshake included.
    pub connect_timeout: Duration,
    /// Final responses that send a request to the next candidate.
    pub failover_codes: Vec<u16>,
    /// Candidates tried for one request.
    pub max_tries: u32,
    /// Largest message, octets.
    pub max_message: usize,
    /// Most header fields (rows) of a message.
    pub max_headers: usize,
    /// Longest header field (all its folded lines), octets.
    pub max_header: usize,
    /// Rule 8; `None`: a random secret made at start.
    pub dialog_secret_file: Option<PathBuf>,
}

/// `[health]`, rule 9.
#[derive(Clone, Debug, PartialEq)]
pub struct Health {
    /// First avoidance of a failed instance; doubles.
    pub hold_down: Duration,
    /// Its cap.
    pub hold_down_max: Duration,
    /// Cap of a Retry-After.
    pub retry_after_max: Duration,
    /// What comes back has its full share after this; zero: at once.
    pub slow_start: Duration,
    /// Part of a name's instances that probes alone may take out, 0 to 1; beyond, they lose their vote.
    pub max_probed_down: f64,
}

/// `[dns] addresses`
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Families {
    /// A and AAAA.
    Both,
    /// A only.
    Ipv4,
    /// AAAA only.
    Ipv6,
}

/// `[dns] sticky`, rule 13.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sticky {
    /// Every request draws anew.
    None,
    /// Requests with one Call-ID stay together.
    Call,
    /// All requests to a domain, while its SRV set is cached.
    Ttl,
}

/// `[dns] srv_selection`
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SrvSelection {
    /// Shares exactly as the weights say.
    Exact,
    /// RFC 2782's procedure to the letter.
    Rfc2782,
}

/// `[dns]`
#[derive(Clone, Debug, PartialEq)]
pub struct Dns {
    /// Servers; empty: the system's resolver configuration.
    pub servers: Vec<SocketAddr>,
    /// Our preference among transports.
    pub transports: Vec<Transport>,
    /// Address families asked for.
    pub addresses: Families,
    /// Floor of TTLs.
    pub min_ttl: Duration,
    /// Cap of TTLs.
    pub max_ttl: Duration,
    /// Cap for NXDOMAIN and NODATA.
    pub negative_ttl: Duration,
    /// Budget of a whole location.
    pub timeout: Duration,
    /// Answers from expired entries while the DNS is down (RFC 8767); zero: never.
    pub stale_ttl: Duration,
    /// Rule 13.
    pub sticky: Sticky,
    /// How weights are drawn.
    pub srv_selection: SrvSelection,
}

/// A next hop given as a URI (`next_hop`, `next_hops`): replaces the TARGET only (rule 5).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct NextHop {
    /// As written.
    pub uri: String,
    /// `sips:`
    pub sips: bool,
    /// Host.
    pub host: Host,
    /// Port, if written.
    pub port: Option<u16>,
    /// `transport` parameter, if written.
    pub transport: Option<Transport>,
}

/// `[core]`
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Core {
    /// Where requests for our own domains go; one tier of equal weights.
    pub next_hops: Vec<NextHop>,
    /// Who may send as the core.
    pub sources: Vec<ipnet::IpNet>,
    /// Who may send as the core over TLS.
    pub tls_names: Vec<String>,
    /// Header names (lower case) removed from what the core sends to peers.
    pub strip_headers: Vec<String>,
}

/// A pattern of `domains`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum DomainPattern {
    /// This very domain or address.
    Exact(Host),
    /// `*.example.com`: everything below `example.com` (held here without `*.`), not itself.
    Below(String),
}

/// One `[[peer]]`.
#[derive(Clone, Debug, PartialEq)]
pub struct Peer {
    /// Unique name; a metric label.
    pub name: String,
    /// Domains reached through it.
    pub domains: Vec<DomainPattern>,
    /// Indirect peering.
    pub next_hop: Option<NextHop>,
    /// Who may send as this peer.
    pub sources: Vec<ipnet::IpNet>,
    /// `dns:` entries of `sources`: whoever sends from an address of the servers of these names is this peer.
    pub source_names: Vec<Host>,
    /// Names over TLS; `None`: the exact entries of `domains`.
    pub tls_names: Option<Vec<String>>,
    /// The certificate we show it, and its key.
    pub certificate: Option<(PathBuf, PathBuf)>,
    /// Header names (lower case) removed from what this peer sends.
    pub strip_headers: Vec<String>,
    /// It is in the trust domain: asserted identities pass, both ways (RFC 3325).
    pub trust: bool,
    /// Most calls at a time.
    pub max_calls: Option<u32>,
    /// Most new calls per second.
    pub max_rate: Option<u32>,
    /// Most calls at a time that one of its instances gets from us.
    pub max_calls_per_instance: Option<u32>,
    /// Most new calls per second that one of its instances gets from us.
    pub max_rate_per_instance: Option<u32>,
    /// Overrides `[sip] t1`.
    pub t1: Option<Duration>,
    /// Overrides `[sip] try_timeout`.
    pub try_timeout: Option<Duration>,
    /// Overrides `[sip] failover_codes`.
    pub failover_codes: Option<Vec<u16>>,
    /// How numbers of requests that come from it are written for the core; the first that fits.
    pub numbers_in: Vec<NumberRule>,
    /// How numbers of requests that go to it are written.
    pub numbers_out: Vec<NumberRule>,
    /// Active probing.
    pub probe: Option<Probe>,
    /// Overrides `[alto] scope`: what was agreed with it.
    pub alto_scope: Option<AltoScope>,
}

/// `numbers_in` and `numbers_out` of a peer: in a number that begins with `strip`, `prefix` takes its place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NumberRule {
    /// What the number begins with; empty: every number fits.
    pub strip: String,
    /// What takes its place.
    pub prefix: String,
}

/// `probe` of a peer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Probe {
    /// Between probes of one address.
    pub interval: Duration,
    /// Silence that counts as a failure.
    pub timeout: Duration,
    /// Failures in a row until down.
    pub down_after: u32,
    /// Good answers in a row until up.
    pub up_after: u32,
    /// Final responses that count as a good answer.
    pub alive: Alive,
}

/// `probe.alive`: which final responses show that an instance can take calls.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Alive {
    /// All but 503.
    #[default]
    Usual,
    /// These: from and to, both included.
    Only(Vec<(u16, u16)>),
}

impl Alive {
    /// Whether a final response counts.
    pub fn counts(&self, status: u16) -> bool {
        match self {
            Alive::Usual => status != 503,
            Alive::Only(ranges) => ranges.iter().any(|(from, to)| (*from..=*to).contains(&status)),
        }
    }
}

/// One `[[route]]` (rule 3).
#[derive(Clone, Debug, PartialEq)]
pub struct RouteRule {
    /// Prefix of the user part; the longest wins.
    pub prefix: String,
    /// Indices into [`Config::peers`], in order of preference.
    pub peers: Vec<usize>,
}

/// `[runtime]`
#[derive(Clone, Debug, PartialEq)]
pub struct Runtime {
    /// Worker threads; 0: one per core.
    pub workers: usize,
    /// Longest drain before exit.
    pub drain_timeout: Duration,
    /// Datagrams that are alike go to the kernel as one, unless packets are captured on this host.
    pub udp_segmentation: bool,
}

/// `[log]`
#[derive(Clone, Debug, PartialEq)]
pub struct Log {
    /// JSON lines instead of text.
    pub json: bool,
    /// `error`, `warn`, `info`, `debug`, `trace`, or a filter expression.
    pub level: String,
}

/// `[limits]`: caps of tables, each with a metric and a defined behaviour when reached.
#[derive(Clone, Debug, PartialEq)]
pub struct Limits {
    /// Server transactions of the whole node; beyond: 503 (INVITE and others), ACK dropped.
    pub transactions: usize,
    /// Stream connections; beyond: new ones are closed at once.
    pub connections: usize,
    /// Octets queued for one connection; beyond: it is closed.
    pub write_queue: usize,
    /// DNS cache entries (RRsets).
    pub dns_entries: usize,
    /// Decision records kept.
    pub records: usize,
}

/// `[overload]`: when new calls are refused because the element itself cannot keep up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Overload {
    /// False: never.
    pub enabled: bool,
    /// How long messages may wait to be handled; under overload they wait about this long.
    pub target_delay: Duration,
    /// They must wait longer than that for this long before anything is refused: a burst is none.
    pub interval: Duration,
    /// Retry-After is drawn between one second and this.
    pub retry_after: Duration,
    /// A refused request's retransmissions get no further answer for this long.
    pub silence: Duration,
}
