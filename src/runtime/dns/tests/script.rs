//! Name servers out of a script, for virtual time.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::time::{Instant, sleep};

use crate::config::{self, Families, Realm, SrvSelection, Sticky};
use crate::flow::{Host, Transport};
use crate::location::{
    Enabled, LocateKey, Located, NaptrRecord, Question, RecordKind, Records, RrSet, SrvRecord,
};
use crate::runtime::dns::upstream::{Failure, Found, Pending, Reply, Upstream};
use crate::runtime::dns::{EnabledByRealm, Resolver};

/// What the servers do with a question that the zone has no records for, or with all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mood {
    /// Answers from the zone; what is not there does not exist (SOA: so many seconds; `None`: without SOA).
    Good(Option<u64>),
    ServFail,
    /// Says nothing; the client gives up after three seconds.
    Silent,
}

type Companion = (Question, Arc<RrSet>, Duration);
type Rows = Vec<Vec<String>>;

#[derive(Default)]
struct Zone {
    records: HashMap<(String, RecordKind), (Found, Duration)>,
    also: HashMap<(String, RecordKind), Vec<Companion>>,
    moods: Vec<(String, Mood)>,
    asked: Vec<(Instant, Question)>,
}

/// The servers.
pub struct Script {
    zone: Mutex<Zone>,
}

/// How long the client's patience with silent servers is.
pub const PATIENCE: Duration = Duration::from_secs(3);

impl Script {
    pub fn new() -> Arc<Self> {
        Arc::new(Self { zone: Mutex::default() })
    }

    /// Adds `name ttl SRV priority weight port target`, `name ttl NAPTR order preference service replacement`,
    /// `name ttl A address` and so on, one a line; replaces what was there of that name and type.
    pub fn zone(&self, text: &str) {
        let mut sets: HashMap<(String, RecordKind), (Rows, u64)> = HashMap::new();
        for line in text.lines().map(str::trim).filter(|l| !l.is_empty()) {
            let words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
            let kind = match words[2].as_str() {
                "NAPTR" => RecordKind::Naptr,
                "SRV" => RecordKind::Srv,
                "A" => RecordKind::A,
                "AAAA" => RecordKind::Aaaa,
                other => panic!("{other}"),
            };
            let entry = sets.entry((words[0].clone(), kind)).or_default();
            entry.1 = words[1].parse().unwrap();
            entry.0.push(words[3..].to_vec());
        }
        for (key, (rows, ttl)) in sets {
            let found = Found::Records(Arc::new(set(key.1, &rows)), Duration::from_secs(ttl));
            self.zone.lock().unwrap().records.insert(key, (found, Duration::from_millis(1)));
        }
    }

    /// Takes a name out of the zone.
    pub fn forget(&self, name: &str) {
        self.zone.lock().unwrap().records.retain(|(n, _), _| n != name);
    }

    /// Makes the answer to one question come late.
    pub fn delay(&self, name: &str, kind: RecordKind, delay: Duration) {
        self.zone.lock().unwrap().records.get_mut(&(name.to_owned(), kind)).unwrap().1 = delay;
    }

    /// Sends the set of another question along.
    pub fn along(&self, name: &str, kind: RecordKind, other: &str, other_kind: RecordKind) {
        let mut zone = self.zone.lock().unwrap();
        let Found::Records(set, ttl) = zone.records[&(other.to_owned(), other_kind)].0.clone() else {
            panic!()
        };
        let also = zone.also.entry((name.to_owned(), kind)).or_default();
        also.push((Question::new(other.into(), other_kind), set, ttl));
    }

    /// The servers' way with all names that end like this; the last one set counts.
    pub fn mood(&self, suffix: &str, mood: Mood) {
        self.zone.lock().unwrap().moods.push((suffix.to_owned(), mood));
    }

    /// Questions asked since the last time, without time.
    pub fn take(&self) -> Vec<String> {
        let mut asked: Vec<_> =
            self.zone.lock().unwrap().asked.drain(..).map(|(_, q)| q.to_string()).collect();
        asked.sort();
        asked
    }
}

impl Upstream for Script {
    fn query(&self, question: Question) -> Pending<'_> {
        Box::pin(async move {
            let key = (question.name.to_string(), question.kind);
            let (mood, record, also) = {
                let mut zone = self.zone.lock().unwrap();
                zone.asked.push((Instant::now(), question.clone()));
                let mood = zone.moods.iter().rev().find(|(suffix, _)| key.0.ends_with(suffix)).map(|m| m.1);
                let also = zone.also.get(&key).cloned().unwrap_or_default();
                (mood.unwrap_or(Mood::Good(Some(60))), zone.records.get(&key).cloned(), also)
            };
            match mood {
                Mood::Silent => {
                    sleep(PATIENCE).await;
                    Reply::of(Found::Failure(Failure::Timeout))
                }
                Mood::ServFail => {
                    sleep(Duration::from_millis(1)).await;
                    Reply::of(Found::Failure(Failure::ServFail))
                }
                Mood::Good(soa) => {
                    let (found, delay) = record
                        .unwrap_or((Found::NxDomain(soa.map(Duration::from_secs)), Duration::from_millis(1)));
                    sleep(delay).await;
                    Reply { found, also }
                }
            }
        })
    }
}

fn set(kind: RecordKind, rows: &[Vec<String>]) -> RrSet {
    let n = |s: &String| s.parse().unwrap();
    let records = match kind {
        RecordKind::A | RecordKind::Aaaa => {
            Records::Addr(rows.iter().map(|r| r[0].parse().unwrap()).collect())
        }
        RecordKind::Srv => Records::Srv(
            rows.iter()
                .map(|r| SrvRecord {
                    priority: n(&r[0]),
                    weight: n(&r[1]),
                    port: n(&r[2]),
                    target: r[3].as_str().into(),
                })
                .collect(),
        ),
        RecordKind::Naptr => Records::Naptr(
            rows.iter()
                .map(|r| NaptrRecord {
                    order: n(&r[0]),
                    preference: n(&r[1]),
                    flags: "s".into(),
                    service: r[2].as_str().into(),
                    regexp: "".into(),
                    replacement: r[3].as_str().into(),
                })
                .collect(),
        ),
    };
    RrSet { records }
}

pub fn dns() -> config::Dns {
    config::Dns {
        servers: Vec::new(),
        transports: vec![Transport::Udp, Transport::Tcp],
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

pub fn enabled(families: Families) -> EnabledByRealm {
    let enabled =
        Enabled::new(&[Transport::Udp, Transport::Tcp], [true, true, false], [true, true, false], families);
    EnabledByRealm { peering: enabled.clone(), core: enabled.clone(), both: enabled }
}

/// A resolver of the script, in the runtime of the test.
pub fn resolver(script: &Arc<Script>, dns: &config::Dns) -> Resolver {
    Resolver::with_upstream(script.clone(), dns, enabled(dns.addresses), 10_000, Handle::current())
}

pub fn key(name: &str) -> LocateKey {
    LocateKey {
        host: Host::Name(name.into()),
        port: None,
        transport: None,
        sips: false,
        realm: Realm::Peering,
    }
}

/// A key that needs addresses only.
pub fn host(name: &str) -> LocateKey {
    LocateKey { port: Some(5060), transport: Some(Transport::Udp), ..key(name) }
}

/// All addresses in order.
pub fn addrs(located: &Arc<Located>) -> Vec<String> {
    located.tiers.iter().flat_map(|t| &t.servers).flat_map(|s| &s.addrs).map(IpAddr::to_string).collect()
}
