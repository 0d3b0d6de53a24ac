//! The client: one question in, an [`Reply`] out, aliases followed, along with what came in the additional section.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use hickory_proto::op::{Message, Query};
use hickory_proto::rr::{Name, RData, Record, RecordType};
use hickory_resolver::system_conf::parse_resolv_conf;
use tracing::{info, warn};

use super::MAX_ALIASES;
use super::exchange::Servers;
use super::message::{self, Said};
use super::upstream::{Failure, Found, Pending, Reply, Upstream};
use crate::location::{NaptrRecord, Question, RecordKind, Records, RrSet, SrvRecord};

/// Where the system's name servers are named.
pub const RESOLV_CONF: &str = "/etc/resolv.conf";

/// Asked when the system names no server at all.
const FALLBACK: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 53);

/// Name servers taken from the system's configuration.
const MAX_SERVERS: usize = 8;

/// Records of one set that are read; the rest is left out.
const MAX_RECORDS: usize = 1024;

/// How long a name that cannot stand in a question counts as one that does not exist.
const IMPOSSIBLE: Duration = Duration::from_secs(60);

/// Where the servers come from.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Source {
    /// `dns.servers`
    Configured(Vec<SocketAddr>),
    /// The system's resolver configuration.
    System(PathBuf),
}

/// Asks the configured name servers, or those of the system.
#[derive(Debug)]
pub struct Client {
    source: ArcSwap<Source>,
    servers: ArcSwap<Servers>,
}

impl Client {
    /// `configured` empty: the servers of the file `system` (in the format of resolv.conf). Its search list and
    /// `ndots` have no meaning here: names of SIP are complete (RFC 3263 §4).
    pub fn new(configured: &[SocketAddr], system: &Path) -> Self {
        let source = Source::of(configured, system);
        let servers = Servers::new(&source.read());
        Self { source: ArcSwap::from_pointee(source), servers: ArcSwap::from_pointee(servers) }
    }

    /// Takes over the servers of a new configuration, or reads the system's again. True if they have changed.
    pub fn reconfigure(&self, configured: &[SocketAddr], system: &Path) -> bool {
        self.source.store(Arc::new(Source::of(configured, system)));
        self.reread()
    }

    /// Reads the system's configuration again, where the servers come from there. True if they have changed.
    pub fn reread(&self) -> bool {
        let addrs = self.source.load().read();
        if addrs == self.servers.load().addrs() {
            return false;
        }
        info!(servers = ?addrs, "name servers changed");
        self.servers.store(Arc::new(Servers::new(&addrs)));
        true
    }

    /// The file whose change matters, if the servers come from the system.
    pub fn watched(&self) -> Option<PathBuf> {
        match &**self.source.load() {
            Source::Configured(_) => None,
            Source::System(path) => Some(path.clone()),
        }
    }

    /// The servers in use.
    pub fn servers(&self) -> Vec<SocketAddr> {
        self.servers.load().addrs()
    }

    /// Asks, and tells what was seen on the way.
    pub async fn look(&self, question: &Question) -> Look {
        // A change of servers does not touch a question under way.
        let servers = self.servers.load_full();
        look(&*servers, question).await
    }
}

/// Whoever has messages for questions: name servers, or a zone file.
pub(super) trait Answering: Sync {
    /// The answer to one query.
    fn ask(&self, query: &Query) -> impl Future<Output = Result<Message, Failure>> + Send;
}

impl Answering for Servers {
    async fn ask(&self, query: &Query) -> Result<Message, Failure> {
        Servers::ask(self, query).await
    }
}

/// A question's end, and what was seen on the way: for the check of a zone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Look {
    /// How it ended.
    pub reply: Reply,
    /// Where aliases (CNAME) led, in order; empty if the name itself answered.
    pub aliases: Vec<Arc<str>>,
    /// The server has authority for the name: the TTL is that of the zone, not what is left of it in a cache.
    pub authoritative: bool,
    /// The records of the set had different TTLs.
    pub uneven: bool,
}

/// Asks until there is an answer, aliases followed.
pub(super) async fn look(answering: &impl Answering, question: &Question) -> Look {
    let mut aliases = Vec::new();
    let mut seen = (true, false);
    let reply = resolve(answering, question, &mut aliases, &mut seen).await;
    Look { reply, aliases, authoritative: seen.0, uneven: seen.1 }
}

async fn resolve(
    answering: &impl Answering,
    question: &Question,
    passed: &mut Vec<Arc<str>>,
    (authoritative, uneven): &mut (bool, bool),
) -> Reply {
    let Some(mut name) = name_of(&question.name) else {
        return Reply::of(Found::NxDomain(Some(IMPOSSIBLE)));
    };
    let kind = record_type(question.kind);
    let mut so_far = (Duration::MAX, 0);
    // Each turn follows at least one alias, so this ends.
    for _ in 0..=MAX_ALIASES {
        let message = match answering.ask(&Query::query(name.clone(), kind)).await {
            Ok(message) => message,
            Err(failure) => return Reply::of(Found::Failure(failure)),
        };
        *authoritative &= message.metadata.authoritative;
        passed.extend(message::aliases(&message, &name).map(text_of).take(MAX_ALIASES));
        match message::read(&message, &name, kind, so_far) {
            Said::Records(records, ttl) => {
                *uneven = records.iter().any(|r| records.first().is_some_and(|first| first.ttl != r.ttl));
                let Some(set) = set_of(question.kind, records.into_iter()) else {
                    return Reply::of(Found::Failure(Failure::Malformed));
                };
                let also = companions(&message, &set);
                return Reply { found: Found::Records(Arc::new(set), ttl), also };
            }
            Said::NxDomain(ttl) => return Reply::of(Found::NxDomain(ttl)),
            Said::NoData(ttl) => return Reply::of(Found::NoData(ttl)),
            Said::Failure(failure) => return Reply::of(Found::Failure(failure)),
            Said::GoOn { name: next, ttl, aliases } => {
                so_far = (ttl, aliases);
                name = next;
            }
        }
    }
    Reply::of(Found::Failure(Failure::Aliases))
}

impl Upstream for Client {
    fn query(&self, question: Question) -> Pending<'_> {
        Box::pin(async move { self.look(&question).await.reply })
    }
}

impl Source {
    fn of(configured: &[SocketAddr], system: &Path) -> Self {
        if configured.is_empty() {
            Self::System(system.to_owned())
        } else {
            Self::Configured(configured.to_vec())
        }
    }

    fn read(&self) -> Vec<SocketAddr> {
        match self {
            Self::Configured(addrs) => addrs.clone(),
            Self::System(path) => system_servers(path),
        }
    }
}

/// The servers that the file names, on port 53; [`FALLBACK`] if it names none or cannot be read.
fn system_servers(path: &Path) -> Vec<SocketAddr> {
    let parsed = std::fs::read(path).map_err(|e| e.to_string());
    let parsed = parsed.and_then(|text| parse_resolv_conf(text).map_err(|e| e.to_string()));
    match parsed {
        Ok((config, _)) => {
            config.name_servers().iter().take(MAX_SERVERS).map(|s| SocketAddr::new(s.ip, 53)).collect()
        }
        Err(why) => {
            warn!(file = %path.display(), %why, fallback = %FALLBACK, "the system names no name server");
            vec![FALLBACK]
        }
    }
}

const fn record_type(kind: RecordKind) -> RecordType {
    match kind {
        RecordKind::Naptr => RecordType::NAPTR,
        RecordKind::Srv => RecordType::SRV,
        RecordKind::A => RecordType::A,
        RecordKind::Aaaa => RecordType::AAAA,
    }
}

/// A complete name, or `None` where no DNS name can be like this (a label over 63 octets, …).
pub(super) fn name_of(text: &str) -> Option<Name> {
    let mut name = Name::from_ascii(text).ok()?;
    name.set_fqdn(true);
    Some(name)
}

/// As the pure layers write names: lower case, without final dot, the root empty.
fn text_of(name: &Name) -> Arc<str> {
    let text = name.to_lowercase().to_ascii();
    Arc::from(text.strip_suffix('.').unwrap_or(&text))
}

/// The records of a set; `None` if none can be used.
fn set_of<'a>(kind: RecordKind, records: impl Iterator<Item = &'a Record>) -> Option<RrSet> {
    let text = |bytes: &[u8]| -> Box<str> { String::from_utf8_lossy(bytes).into() };
    let records = records.take(MAX_RECORDS);
    let records = match kind {
        RecordKind::A | RecordKind::Aaaa => Records::Addr(
            records
                .filter_map(|r| match &r.data {
                    RData::A(a) => Some(IpAddr::V4(a.0)),
                    RData::AAAA(a) => Some(IpAddr::V6(a.0)),
                    _ => None,
                })
                .collect(),
        ),
        RecordKind::Srv => Records::Srv(
            records
                .filter_map(|r| match &r.data {
                    RData::SRV(s) => Some(SrvRecord {
                        priority: s.priority,
                        weight: s.weight,
                        port: s.port,
                        target: text_of(&s.target),
                    }),
                    _ => None,
                })
                .collect(),
        ),
        RecordKind::Naptr => Records::Naptr(
            records
                .filter_map(|r| match &r.data {
                    RData::NAPTR(n) => Some(NaptrRecord {
                        order: n.order,
                        preference: n.preference,
                        flags: text(&n.flags),
                        service: text(&n.services),
                        regexp: text(&n.regexp),
                        replacement: text_of(&n.replacement),
                    }),
                    _ => None,
                })
                .collect(),
        ),
    };
    let set = RrSet { records };
    (!set.is_empty()).then_some(set)
}

/// The sets of the additional section that belong to the names this answer points to (RFC 2782, RFC 3403 §4.3), and
/// no others: whatever else stands there was not asked for.
fn companions(message: &Message, set: &RrSet) -> Vec<(Question, Arc<RrSet>, Duration)> {
    const ADDRESSES: &[RecordKind] = &[RecordKind::A, RecordKind::Aaaa];
    const ALL: &[RecordKind] = &[RecordKind::Srv, RecordKind::A, RecordKind::Aaaa];
    if message.additionals.is_empty() {
        return Vec::new();
    }
    let (mut names, kinds): (Vec<&Arc<str>>, _) = match &set.records {
        Records::Srv(v) => (v.iter().map(|s| &s.target).collect(), ADDRESSES),
        Records::Naptr(v) => (v.iter().map(|n| &n.replacement).collect(), ALL),
        Records::Addr(_) => return Vec::new(),
    };
    names.sort_unstable();
    names.dedup();
    let mut sets = Vec::new();
    for text in names.into_iter().filter(|n| !n.is_empty()).take(MAX_RECORDS) {
        let Some(owner) = name_of(text) else { continue };
        for &kind in kinds {
            let of_kind = || {
                message::owned(&message.additionals, &owner).filter(|r| r.record_type() == record_type(kind))
            };
            let Some(ttl) = of_kind().map(message::ttl).min() else {
                continue;
            };
            if let Some(found) = set_of(kind, of_kind()) {
                sets.push((Question::new(text.clone(), kind), Arc::new(found), ttl));
            }
        }
    }
    sets
}
