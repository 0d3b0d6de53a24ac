//! A small zone in memory, and a location run against it, round by round.

#![allow(clippy::unwrap_used, dead_code, missing_docs)]

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use sbe::config::{AltoRule, AltoScope, Families, Realm};
use sbe::flow::{Host, Transport};
use sbe::location::*;

pub const ALL: [Transport; 3] = [Transport::Tls, Transport::Tcp, Transport::Udp];

/// Zone data in the manner of a zone file, below `example.test`.
#[derive(Clone)]
pub struct Zone {
    sets: BTreeMap<Question, Answer>,
    names: BTreeSet<String>,
    failing: BTreeMap<String, Answer>,
    ttls: BTreeMap<String, u64>,
    pub now: Instant,
}

fn full(label: &str) -> String {
    match label {
        "." => String::new(),
        name if name.ends_with('.') => name.trim_end_matches('.').to_owned(),
        name => format!("{name}.example.test"),
    }
}

fn words(line: &str) -> Vec<String> {
    let (mut out, mut word, mut quoted) = (Vec::new(), String::new(), false);
    for c in line.chars() {
        match c {
            '"' if quoted => {
                out.push(std::mem::take(&mut word));
                quoted = false;
            }
            '"' => quoted = true,
            ' ' if !quoted => {
                if !word.is_empty() {
                    out.push(std::mem::take(&mut word));
                }
            }
            c => word.push(c),
        }
    }
    if !word.is_empty() {
        out.push(word);
    }
    out
}

impl Zone {
    pub fn new(text: &str) -> Self {
        let mut zone = Self {
            sets: BTreeMap::new(),
            names: BTreeSet::new(),
            failing: BTreeMap::new(),
            ttls: BTreeMap::new(),
            now: Instant::now(),
        };
        for line in text.lines().map(str::trim).filter(|l| !l.is_empty()) {
            let w = words(line);
            let n = |i: usize| w[i].parse::<u16>().unwrap();
            let (kind, records) = match w[1].as_str() {
                "NAPTR" => (
                    RecordKind::Naptr,
                    Records::Naptr(vec![NaptrRecord {
                        order: n(2),
                        preference: n(3),
                        flags: w[4].as_str().into(),
                        service: w[5].as_str().into(),
                        regexp: w[6].as_str().into(),
                        replacement: full(&w[7]).into(),
                    }]),
                ),
                "SRV" => (
                    RecordKind::Srv,
                    Records::Srv(vec![SrvRecord {
                        priority: n(2),
                        weight: n(3),
                        port: n(4),
                        target: full(&w[5]).into(),
                    }]),
                ),
                "A" => (RecordKind::A, Records::Addr(vec![w[2].parse::<IpAddr>().unwrap()])),
                "AAAA" => (RecordKind::Aaaa, Records::Addr(vec![w[2].parse::<IpAddr>().unwrap()])),
                other => panic!("{other}"),
            };
            let name = full(&w[0]);
            zone.names.insert(name.clone());
            let q = Question::new(name.into(), kind);
            let merged = match (zone.sets.remove(&q), records) {
                (None, records) => records,
                (Some(Answer::Records(old)), new) => match (old.records.clone(), new) {
                    (Records::Naptr(mut a), Records::Naptr(b)) => {
                        a.extend(b);
                        Records::Naptr(a)
                    }
                    (Records::Srv(mut a), Records::Srv(b)) => {
                        a.extend(b);
                        Records::Srv(a)
                    }
                    (Records::Addr(mut a), Records::Addr(b)) => {
                        a.extend(b);
                        Records::Addr(a)
                    }
                    _ => unreachable!(),
                },
                _ => unreachable!(),
            };
            zone.sets.insert(q, Answer::Records(Arc::new(RrSet { records: merged })));
        }
        zone
    }

    /// `what`: a name, or a name and a type.
    pub fn fail(mut self, what: &str, answer: Answer) -> Self {
        self.failing.insert(what.to_owned(), answer);
        self
    }

    pub fn ttl(mut self, what: &str, seconds: u64) -> Self {
        self.ttls.insert(what.to_owned(), seconds);
        self
    }

    pub fn lookup(&self, q: &Question) -> (Answer, AnswerMeta) {
        let short = q.name.strip_suffix(".example.test").unwrap_or(&q.name);
        let typed = format!("{short} {}", q.kind.label());
        let answer = if let Some(a) = self.failing.get(&typed).or_else(|| self.failing.get(short)) {
            a.clone()
        } else if let Some(a) = self.sets.get(q) {
            a.clone()
        } else if self.names.contains(&*q.name) {
            Answer::NoData
        } else {
            Answer::NxDomain
        };
        let ttl = self.ttls.get(&typed).copied().unwrap_or(300);
        (answer, AnswerMeta { expires: self.now + Duration::from_secs(ttl), cached: false, stale: false })
    }

    /// Locates and gives the questions, round by round.
    pub fn rounds(&self, key: LocateKey, enabled: &Enabled) -> (Located, Vec<Vec<String>>) {
        let mut r = Resolution::new(key, enabled);
        let mut rounds = Vec::new();
        loop {
            let questions = r.next_questions();
            if questions.is_empty() {
                break;
            }
            rounds.push(questions.iter().map(|q| q.to_string().replace(".example.test.", "")).collect());
            for q in &questions {
                let (answer, meta) = self.lookup(q);
                r.answer(q, answer, meta);
            }
            assert!(rounds.len() < 10, "an endless location");
        }
        assert!(r.finished());
        (r.into_located(self.now), rounds)
    }

    pub fn locate(&self, uri: &str) -> Found {
        self.locate_with(uri, &everything())
    }

    pub fn locate_with(&self, uri: &str, enabled: &Enabled) -> Found {
        let (located, rounds) = self.rounds(key(uri), enabled);
        Found { located, rounds }
    }
}

pub struct Found {
    pub located: Located,
    pub rounds: Vec<Vec<String>>,
}

impl Found {
    pub fn asked(&self) -> Vec<&str> {
        self.rounds.iter().flatten().map(String::as_str).collect()
    }

    /// Every candidate in the order of tiers and of the records, one string for each tier.
    pub fn tiers(&self) -> Vec<String> {
        self.located
            .tiers
            .iter()
            .map(|t| {
                let all: Vec<String> = t
                    .servers
                    .iter()
                    .flat_map(|s| (0..s.addrs.len()).map(|i| s.instance(i).unwrap().to_string()))
                    .collect();
                all.join(" ")
            })
            .collect()
    }

    pub fn reasons(&self) -> Vec<LeftOutReason> {
        self.located.left_out.iter().map(|l| l.reason).collect()
    }
}

pub fn everything() -> Enabled {
    Enabled::new(&ALL, [true; 3], [true; 3], Families::Both)
}

pub fn v4_only() -> Enabled {
    Enabled::new(&ALL, [true; 3], [false; 3], Families::Both)
}

pub fn host(text: &str) -> Host {
    match text.trim_matches(['[', ']']).parse() {
        Ok(a) => Host::Addr(a),
        Err(_) => Host::Name(full(text).into()),
    }
}

/// A key from a URI without user part; names are below `example.test`.
pub fn key(uri: &str) -> LocateKey {
    target(uri).unwrap()
}

pub fn target(uri: &str) -> Result<LocateKey, TargetError> {
    let (scheme, rest) = uri.split_once(':').unwrap();
    let mut parts = rest.split(';');
    let hostport = parts.next().unwrap();
    let (name, port) = match hostport.rsplit_once(':') {
        Some((name, port)) if !name.contains(':') || name.ends_with(']') => {
            (name, Some(port.parse().unwrap()))
        }
        _ => (hostport, None),
    };
    let (mut transport, mut maddr) = (None, None);
    for p in parts {
        match p.split_once('=').unwrap() {
            ("transport", t) => transport = Some(TransportParam::from_token(t.as_bytes())),
            ("maddr", m) => maddr = Some(host(m)),
            _ => panic!("{p}"),
        }
    }
    target_of(TargetUri { sips: scheme == "sips", host: host(name), port, transport, maddr }, Realm::Peering)
}

pub fn health() -> Health {
    Health::new(policy())
}

pub fn policy() -> HealthPolicy {
    HealthPolicy {
        hold_down: Duration::from_secs(2),
        hold_down_max: Duration::from_secs(60),
        retry_after_max: Duration::from_secs(3600),
        trial_timeout: Duration::from_secs(3),
        slow_start: Duration::from_secs(10),
        max_probed_down: 1.0,
    }
}

/// The rule as it stands without any key of `[alto]` that changes it.
pub fn rank_policy() -> RankPolicy {
    RankPolicy {
        rule: AltoRule::Classes,
        scope: AltoScope::WithinPriority,
        band: 0.1,
        band_abs: 0.0,
        min_coverage: 0.5,
        max_share: 1.0,
        persist: 2,
        hold_down: Duration::from_secs(60),
        pinned: false,
    }
}
