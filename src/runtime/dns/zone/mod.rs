//! A zone file in the place of the name servers: it answers as a server with these zones would (RFC 1034 §4.3.2:
//! aliases, wildcards, names between; additional section), through the code that reads messages from the network.

mod entry;
mod read;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;
use std::io::Read;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use hickory_proto::op::{Message, MessageType, OpCode, Query, ResponseCode};
use hickory_proto::rr::{Name, RData, Record, RecordType};

use super::MAX_ALIASES;
use super::client::{Answering, look, name_of};
use super::upstream::{Failure, Pending, Upstream};
use crate::location::Question;

/// Longest file read, octets.
pub const MAX_ZONE_FILE: u64 = 64 << 20;

/// Names outside of the zones that are remembered.
const MAX_OUTSIDE: usize = 100;

/// Faults told of one file.
const MAX_FAULTS: usize = 50;

/// What is wrong with a zone file, and where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ZoneFault {
    /// The file as named.
    pub file: String,
    /// Line, from 1; `None` where it is the file as a whole.
    pub line: Option<usize>,
    /// What is wrong.
    pub what: String,
}

impl fmt::Display for ZoneFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            Some(line) => write!(f, "{}:{line}: {}", self.file, self.what),
            None => write!(f, "{}: {}", self.file, self.what),
        }
    }
}

/// The zones of one file.
#[derive(Debug)]
pub struct ZoneFile {
    file: String,
    sets: HashMap<Name, BTreeMap<RecordType, Vec<Record>>, ahash::RandomState>,
    /// Every name that exists, those between included (RFC 4592 §2.2.2).
    names: BTreeSet<Name>,
    /// Where the zones begin.
    apexes: Vec<Name>,
    warnings: Vec<ZoneFault>,
    outside: Mutex<BTreeSet<String>>,
}

impl ZoneFile {
    /// Reads a file. `origin`: what relative names are relative to where no `$ORIGIN` stands before them.
    ///
    /// # Errors
    /// The file cannot be read, or is no zone file; all faults, at most 50.
    pub fn read(path: &Path, origin: Option<&str>) -> Result<Self, Vec<ZoneFault>> {
        let file = path.display().to_string();
        let whole = |what: String| vec![ZoneFault { file: file.clone(), line: None, what }];
        let opened = std::fs::File::open(path).map_err(|e| whole(e.to_string()))?;
        let mut text = String::new();
        let length =
            opened.take(MAX_ZONE_FILE + 1).read_to_string(&mut text).map_err(|e| whole(e.to_string()))?;
        if length as u64 > MAX_ZONE_FILE {
            return Err(whole(format!("longer than {MAX_ZONE_FILE} octets")));
        }
        Self::parse(&text, &file, origin)
    }

    /// The same for a text. `file`: what messages call it.
    ///
    /// # Errors
    /// As for [`ZoneFile::read`].
    pub fn parse(text: &str, file: &str, origin: Option<&str>) -> Result<Self, Vec<ZoneFault>> {
        let fault = |line, what| ZoneFault { file: file.to_owned(), line, what };
        let origin = origin.and_then(|o| {
            let mut name = Name::from_ascii(o).ok()?.to_lowercase();
            name.set_fqdn(true);
            Some(name)
        });
        let (lines, faults) = read::read(text, origin);
        let mut faults: Vec<ZoneFault> = faults.into_iter().map(|(l, what)| fault(Some(l), what)).collect();
        let mut zone = Self {
            file: file.to_owned(),
            sets: HashMap::default(),
            names: BTreeSet::new(),
            apexes: Vec::new(),
            warnings: Vec::new(),
            outside: Mutex::default(),
        };
        for line in lines {
            zone.add(line.line, &line.owner, line.record, &mut faults, &fault);
        }
        if zone.names.is_empty() && faults.is_empty() {
            faults.push(fault(None, "no record in it".to_owned()));
        }
        if !faults.is_empty() {
            faults.truncate(MAX_FAULTS);
            return Err(faults);
        }
        zone.find_apexes();
        Ok(zone)
    }

    fn add(
        &mut self,
        line: usize,
        owner: &Name,
        record: Option<Record>,
        faults: &mut Vec<ZoneFault>,
        fault: &impl Fn(Option<usize>, String) -> ZoneFault,
    ) {
        self.names.insert(owner.clone());
        let Some(record) = record else { return };
        let kind = record.record_type();
        let node = self.sets.entry(owner.clone()).or_default();
        let alias = node.contains_key(&RecordType::CNAME);
        if (alias && kind != RecordType::CNAME) || (kind == RecordType::CNAME && !alias && !node.is_empty()) {
            faults.push(fault(
                Some(line),
                format!("{owner} has a CNAME and other records (RFC 2181 section 10.1)"),
            ));
            return;
        }
        let set = node.entry(kind).or_default();
        if set.iter().any(|r| r.data == record.data) {
            let what = format!(
                "this {kind} record of {owner} stands here twice; it counts once (RFC 2181 section 5)"
            );
            self.warnings.push(fault(Some(line), what));
            return;
        }
        if matches!(kind, RecordType::CNAME | RecordType::SOA) && !set.is_empty() {
            faults.push(fault(Some(line), format!("{owner} has more than one {kind} record")));
            return;
        }
        if let Some(first) = set.first().filter(|first| first.ttl != record.ttl) {
            let what = format!(
                "the TTL {} differs from the {} of another {kind} record of {owner}: a set has one TTL (RFC 2181 \
                 section 5.2)",
                record.ttl, first.ttl
            );
            self.warnings.push(fault(Some(line), what));
        }
        set.push(record);
    }

    /// Zones begin at SOA records; a file without any is taken to hold what is at and below its highest names.
    fn find_apexes(&mut self) {
        let with_soa = self.sets.iter().filter(|(_, node)| node.contains_key(&RecordType::SOA));
        self.apexes = with_soa.map(|(name, _)| name.clone()).collect();
        if self.apexes.is_empty() {
            // Below a highest name there is nothing highest, and a name sorts after all that it is below.
            for name in &self.names {
                if !self.apexes.iter().any(|apex| apex.zone_of(name)) {
                    self.apexes.push(name.clone());
                }
            }
        }
        let mut between = BTreeSet::new();
        for name in &self.names {
            let mut above = name.base_name();
            while !above.is_root() && self.apexes.iter().any(|apex| apex.zone_of(&above)) {
                between.insert(above.clone());
                above = above.base_name();
            }
        }
        self.names.append(&mut between);
    }

    /// What is odd in the file without being wrong.
    pub fn warnings(&self) -> &[ZoneFault] {
        &self.warnings
    }

    /// The names asked for so far that belong to no zone of this file, which counts as "no such name".
    pub fn outside(&self) -> Vec<String> {
        self.outside.lock().unwrap_or_else(PoisonError::into_inner).iter().cloned().collect()
    }

    /// The file as named.
    pub fn file(&self) -> &str {
        &self.file
    }

    /// True if a name belongs to one of the zones.
    pub fn holds(&self, name: &str) -> bool {
        name_of(name).is_some_and(|name| self.apex_of(&name.to_lowercase()).is_some())
    }

    fn apex_of(&self, name: &Name) -> Option<&Name> {
        self.apexes.iter().filter(|apex| apex.zone_of(name)).max_by_key(|apex| apex.num_labels())
    }

    /// The records of a name, those of a wildcard where that covers it (RFC 4592 §3.3.1); `None`: no such name.
    fn node(&self, name: &Name) -> Option<Option<&BTreeMap<RecordType, Vec<Record>>>> {
        if self.names.contains(name) {
            return Some(self.sets.get(name));
        }
        let mut above = name.base_name();
        while !self.names.contains(&above) {
            if above.is_root() {
                return None;
            }
            above = above.base_name();
        }
        let wildcard = above.prepend_label("*").ok()?;
        self.names.contains(&wildcard).then(|| self.sets.get(&wildcard))
    }

    fn records<'z>(&'z self, name: &Name, kind: RecordType) -> impl Iterator<Item = Record> + use<'z> {
        let owner = name.clone();
        let set = self.node(name).flatten().and_then(|node| node.get(&kind));
        set.into_iter().flatten().map(move |r| {
            let mut record = r.clone();
            record.name = owner.clone();
            record
        })
    }

    /// The answer as a server with authority for these zones would give it.
    fn message(&self, query: &Query) -> Message {
        let mut message = Message::new(0, MessageType::Response, OpCode::Query);
        message.metadata.authoritative = true;
        message.add_query(query.clone());
        let mut name = query.name.to_lowercase();
        // One more than those who read it follow, so that they see that it is too many.
        for _ in 0..=MAX_ALIASES + 1 {
            let Some(apex) = self.apex_of(&name) else {
                self.note_outside(&name);
                message.metadata.response_code = ResponseCode::NXDomain;
                break;
            };
            let Some(node) = self.node(&name) else {
                message.metadata.response_code = ResponseCode::NXDomain;
                message.add_authorities(self.records(apex, RecordType::SOA));
                break;
            };
            if node.is_some_and(|n| n.contains_key(&query.query_type)) {
                let records: Vec<Record> = self.records(&name, query.query_type).collect();
                let additional = self.additional(&records);
                message.add_answers(records);
                message.add_additionals(additional);
                break;
            }
            let alias = self.records(&name, RecordType::CNAME).next();
            let Some((record, RData::CNAME(target))) = alias.as_ref().map(|r| (r, &r.data)) else {
                message.add_authorities(self.records(apex, RecordType::SOA));
                break;
            };
            message.add_answer(record.clone());
            name = target.0.to_lowercase();
        }
        message
    }

    /// What the records point to, as far as it is in this file (RFC 2782, RFC 3403 §4.3).
    fn additional(&self, records: &[Record]) -> Vec<Record> {
        const ADDRESSES: [RecordType; 2] = [RecordType::A, RecordType::AAAA];
        let mut wanted: BTreeSet<(Name, RecordType)> = BTreeSet::new();
        for record in records {
            match &record.data {
                RData::SRV(srv) => wanted.extend(ADDRESSES.map(|kind| (srv.target.to_lowercase(), kind))),
                RData::NAPTR(naptr) => {
                    let name = naptr.replacement.to_lowercase();
                    if naptr.flags.eq_ignore_ascii_case(b"s") {
                        for srv in self.records(&name, RecordType::SRV) {
                            if let RData::SRV(srv) = &srv.data {
                                wanted.extend(ADDRESSES.map(|kind| (srv.target.to_lowercase(), kind)));
                            }
                        }
                        wanted.insert((name, RecordType::SRV));
                    } else if naptr.flags.eq_ignore_ascii_case(b"a") {
                        wanted.extend(ADDRESSES.map(|kind| (name.clone(), kind)));
                    }
                }
                _ => {}
            }
        }
        let inside = wanted.into_iter().filter(|(name, _)| self.apex_of(name).is_some());
        inside.flat_map(|(name, kind)| self.records(&name, kind).collect::<Vec<_>>()).collect()
    }

    fn note_outside(&self, name: &Name) {
        let mut outside = self.outside.lock().unwrap_or_else(PoisonError::into_inner);
        if outside.len() < MAX_OUTSIDE {
            let text = name.to_ascii();
            outside.insert(text.strip_suffix('.').unwrap_or(&text).to_owned());
        }
    }
}

impl Answering for ZoneFile {
    async fn ask(&self, query: &Query) -> Result<Message, Failure> {
        Ok(self.message(query))
    }
}

impl Upstream for ZoneFile {
    fn query(&self, question: Question) -> Pending<'_> {
        Box::pin(async move { look(self, &question).await.reply })
    }
}
