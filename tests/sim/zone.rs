//! The DNS of the simulation: a table of records, asked through the element's own step machine.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use sbe::location::{
    Answer, AnswerMeta, Enabled, LocateKey, Located, NaptrRecord, Question, RecordKind, Records, Resolution,
    RrSet, SrvRecord,
};

/// A zone: records by name, each name with one TTL.
#[derive(Clone, Debug, Default)]
pub struct Zone {
    naptr: BTreeMap<String, Vec<NaptrRecord>>,
    srv: BTreeMap<String, Vec<SrvRecord>>,
    addr: BTreeMap<String, Vec<IpAddr>>,
    pub ttl: Duration,
}

impl Zone {
    pub fn new(ttl: Duration) -> Self {
        Self { ttl, ..Self::default() }
    }

    pub fn naptr(&mut self, name: &str, order: u16, service: &str, replacement: &str) {
        self.naptr.entry(name.to_string()).or_default().push(NaptrRecord {
            order,
            preference: 10,
            flags: "s".into(),
            service: service.into(),
            regexp: "".into(),
            replacement: replacement.into(),
        });
    }

    pub fn srv(&mut self, name: &str, priority: u16, weight: u16, port: u16, target: &str) {
        self.srv.entry(name.to_string()).or_default().push(SrvRecord {
            priority,
            weight,
            port,
            target: target.into(),
        });
    }

    pub fn addr(&mut self, name: &str, addr: &str) {
        self.addr.entry(name.to_string()).or_default().extend(addr.parse::<IpAddr>());
    }

    /// Takes a host name's addresses away.
    pub fn drop_addr(&mut self, name: &str) {
        self.addr.remove(name);
    }

    fn knows(&self, name: &str) -> bool {
        let below = format!(".{name}");
        let any = |n: &String| n == name || n.ends_with(&below);
        self.naptr.keys().any(any) || self.srv.keys().any(any) || self.addr.keys().any(any)
    }

    /// What an authoritative server would say.
    pub fn answer(&self, question: &Question) -> Answer {
        let name = question.name.as_ref();
        let v6 = question.kind == RecordKind::Aaaa;
        let records = match question.kind {
            RecordKind::Naptr => self.naptr.get(name).cloned().map(Records::Naptr),
            RecordKind::Srv => self.srv.get(name).cloned().map(Records::Srv),
            RecordKind::A | RecordKind::Aaaa => self.addr.get(name).and_then(|all| {
                let some: Vec<IpAddr> = all.iter().copied().filter(|a| a.is_ipv6() == v6).collect();
                (!some.is_empty()).then_some(Records::Addr(some))
            }),
        };
        match records {
            Some(records) => Answer::Records(Arc::new(RrSet { records })),
            None if self.knows(name) => Answer::NoData,
            None => Answer::NxDomain,
        }
    }

    /// A whole location at once.
    pub fn locate(&self, key: &LocateKey, enabled: &Enabled, now: Instant) -> Located {
        let mut resolution = Resolution::new(key.clone(), enabled);
        let meta = AnswerMeta { expires: now + self.ttl, cached: false, stale: false };
        while !resolution.finished() {
            for question in resolution.next_questions() {
                resolution.answer(&question, self.answer(&question), meta);
            }
        }
        resolution.into_located(now)
    }
}
