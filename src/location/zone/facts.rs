//! What is to be asked about a domain, and what the servers said.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use super::super::naptr::transport_of;
use super::super::question::{NaptrRecord, Question, RecordKind, Records, RrSet, SrvRecord, normal_name};
use super::{SERVICES, Service};
use crate::flow::Transport;

/// Most names of SRV records, and most of their targets, that are looked at.
pub const MAX_SURVEYED: usize = 256;

/// What one server said to one question.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Seen {
    /// Records.
    Records {
        /// These.
        set: Arc<RrSet>,
        /// The least TTL of them and of the aliases before them.
        ttl: Duration,
        /// They had different TTLs.
        uneven: bool,
    },
    /// The name has no such records.
    NoData,
    /// No such name.
    NxDomain,
    /// No answer; a word for why.
    Failed(&'static str),
    /// Out of the reach of what is asked (a zone file without this name).
    OutOfReach,
}

/// The same with the way to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fact {
    /// What was said.
    pub seen: Seen,
    /// Where aliases (CNAME) led, in order.
    pub aliases: Vec<Arc<str>>,
    /// By a server with authority: the TTL is that of the zone.
    pub authoritative: bool,
}

/// All that is known of a domain.
#[derive(Clone, Debug)]
pub struct Facts {
    domain: Arc<str>,
    servers: Vec<String>,
    /// By question; each with what the servers said, by their index.
    answers: BTreeMap<Question, BTreeMap<usize, Fact>>,
}

/// SRV records of a domain by the services they are for.
pub(super) struct SrvName {
    pub name: Arc<str>,
    pub services: Vec<Service>,
}

impl Facts {
    /// Nothing known of `domain` yet. `servers`: who is asked, for people. `None`: this is no domain name.
    pub fn new(domain: &str, servers: Vec<String>) -> Option<Self> {
        let domain = normal_name(&domain.into())?;
        // An address is no domain.
        if domain.parse::<IpAddr>().is_ok() || domain.contains([':', '@', '/', '"', ';', '\\', '(', ')']) {
            return None;
        }
        Some(Self { domain, servers, answers: BTreeMap::new() })
    }

    /// The domain, in lower case without final dot.
    pub fn domain(&self) -> &str {
        &self.domain
    }

    /// Who was asked.
    pub fn servers(&self) -> &[String] {
        &self.servers
    }

    /// What is to be asked now, given what is known. Nothing: all is known.
    pub fn questions(&self) -> Vec<Question> {
        let addresses =
            |name: &Arc<str>| [RecordKind::A, RecordKind::Aaaa].map(|k| Question::new(name.clone(), k));
        let mut all = vec![Question::new(self.domain.clone(), RecordKind::Naptr)];
        all.extend(addresses(&self.domain));
        let names = self.srv_names();
        all.extend(names.iter().map(|n| Question::new(n.name.clone(), RecordKind::Srv)));
        all.extend(self.targets().iter().flat_map(addresses));
        all.retain(|question| !self.answers.contains_key(question));
        all.sort();
        all.dedup();
        all
    }

    /// Takes down what a server, by its index, said.
    pub fn put(&mut self, question: Question, server: usize, fact: Fact) {
        self.answers.entry(question).or_default().insert(server, fact);
    }

    /// All answers, by question.
    pub(super) fn answers(&self) -> impl Iterator<Item = (&Question, &BTreeMap<usize, Fact>)> {
        self.answers.iter()
    }

    pub(super) fn server(&self, index: usize) -> &str {
        self.servers.get(index).map_or("?", String::as_str)
    }

    /// What is believed: what the first server said that could say anything.
    pub(super) fn fact(&self, name: &Arc<str>, kind: RecordKind) -> Option<&Fact> {
        let all = self.answers.get(&Question::new(name.clone(), kind))?;
        let says = |f: &&Fact| !matches!(f.seen, Seen::Failed(_) | Seen::OutOfReach);
        all.values().find(says).or_else(|| all.values().next())
    }

    /// True if it is known whether there are such records.
    pub(super) fn is_known(&self, name: &Arc<str>, kind: RecordKind) -> bool {
        self.fact(name, kind).is_some_and(|f| !matches!(f.seen, Seen::Failed(_) | Seen::OutOfReach))
    }

    fn records(&self, name: &Arc<str>, kind: RecordKind) -> Option<&Records> {
        match &self.fact(name, kind)?.seen {
            Seen::Records { set, .. } => Some(&set.records),
            _ => None,
        }
    }

    pub(super) fn naptr(&self) -> &[NaptrRecord] {
        match self.records(&self.domain, RecordKind::Naptr) {
            Some(Records::Naptr(records)) => records,
            _ => &[],
        }
    }

    pub(super) fn srv(&self, name: &Arc<str>) -> &[SrvRecord] {
        match self.records(name, RecordKind::Srv) {
            Some(Records::Srv(records)) => records,
            _ => &[],
        }
    }

    /// The addresses of a name, of both families.
    pub(super) fn addresses(&self, name: &Arc<str>) -> Vec<IpAddr> {
        let mut all = Vec::new();
        for kind in [RecordKind::A, RecordKind::Aaaa] {
            if let Some(Records::Addr(records)) = self.records(name, kind) {
                all.extend(records.iter().map(IpAddr::to_canonical));
            }
        }
        all
    }

    /// True if both families of a name are known.
    pub(super) fn addresses_known(&self, name: &Arc<str>) -> bool {
        [RecordKind::A, RecordKind::Aaaa].into_iter().all(|kind| self.is_known(name, kind))
    }

    /// Where an alias leads, if the name is one.
    pub(super) fn alias(&self, name: &Arc<str>) -> Option<&Arc<str>> {
        let kinds = [RecordKind::A, RecordKind::Aaaa];
        kinds.into_iter().find_map(|kind| self.fact(name, kind)?.aliases.last())
    }

    /// `prefix.domain`, if that can be a name.
    pub(super) fn below(&self, prefix: &str) -> Option<Arc<str>> {
        normal_name(&format!("{prefix}.{}", self.domain).into())
    }

    pub(super) fn domain_name(&self) -> &Arc<str> {
        &self.domain
    }

    /// The NAPTR records of a SIP transport of ours that lead somewhere.
    pub(super) fn usable(&self, transport: Transport) -> impl Iterator<Item = (&NaptrRecord, Arc<str>)> {
        self.naptr().iter().filter_map(move |record| {
            let fits = transport_of(&record.service) == Ok(transport)
                && record.flags.eq_ignore_ascii_case("s")
                && record.regexp.is_empty();
            Some((record, normal_name(&record.replacement).filter(|_| fits)?))
        })
    }

    /// The names of SRV records: those of convention, and those that NAPTR records of SIP lead to.
    pub(super) fn srv_names(&self) -> Vec<SrvName> {
        let mut names: Vec<SrvName> = Vec::new();
        let mut add = |name: Arc<str>, service: Service| match names.iter_mut().find(|n| n.name == name) {
            Some(known) if known.services.contains(&service) => {}
            Some(known) => known.services.push(service),
            None => names.push(SrvName { name, services: vec![service] }),
        };
        for service in SERVICES {
            for name in
                self.below(service.prefix).into_iter().chain(self.usable(service.transport).map(|(_, n)| n))
            {
                add(name, service);
            }
        }
        names.truncate(MAX_SURVEYED);
        names
    }

    /// The targets of all SRV records, each once.
    pub(super) fn targets(&self) -> Vec<Arc<str>> {
        let names = self.srv_names();
        let records = names.iter().flat_map(|n| self.srv(&n.name));
        let mut targets: Vec<Arc<str>> = records
            .filter(|r| !r.is_not_offered() && literal(&r.target).is_none())
            .filter_map(|r| normal_name(&r.target))
            .collect();
        targets.sort();
        targets.dedup();
        targets.truncate(MAX_SURVEYED);
        targets
    }
}

/// The address that somebody wrote as a name.
pub(super) fn literal(target: &str) -> Option<IpAddr> {
    let bare = target.trim_end_matches('.');
    bare.trim_start_matches('[').trim_end_matches(']').parse().ok()
}
