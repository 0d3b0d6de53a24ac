//! From the text of a zone file to its records: `$ORIGIN`, `$TTL`, owners and TTLs left out (RFC 1035 §5.1,
//! RFC 2308 §4), several zones in one file. What stands in a record is parsed by hickory's zone-file parser, one
//! record at a time, so that each fault has its line.

use std::str::FromStr;

use hickory_proto::rr::{Name, RData, Record, RecordType};
use hickory_proto::serialize::txt::{Parser, parse_ttl};

use super::entry::{Entry, Fault, split};

/// Types that hickory knows no text for, or that may stand in a zone without meaning anything here.
const OTHERS: &[&str] = &[
    "AFSDB", "APL", "AVC", "CDNSKEY", "DHCID", "DLV", "EUI48", "EUI64", "GPOS", "HIP", "IPSECKEY", "KX",
    "LOC", "NID", "L32", "L64", "LP", "PX", "RP", "RT", "SPF", "TALINK", "URI", "WKS", "X25", "ZONEMD",
];

/// A record, or (`None`) only that its owner exists, with its line.
pub(super) struct Line {
    pub line: usize,
    pub owner: Name,
    pub record: Option<Record>,
}

/// What carries over from entry to entry.
struct Reader {
    origin: Option<Name>,
    owner: Option<Name>,
    default_ttl: Option<u32>,
    last_ttl: Option<u32>,
}

/// Reads all entries. `origin`: what relative names are relative to before the first `$ORIGIN`.
pub(super) fn read(text: &str, origin: Option<Name>) -> (Vec<Line>, Vec<Fault>) {
    let (entries, mut faults) = split(text);
    let mut reader = Reader { origin, owner: None, default_ttl: None, last_ttl: None };
    let mut lines = Vec::new();
    for entry in entries {
        let number = entry.line;
        match reader.entry(entry) {
            Ok(line) => lines.extend(line),
            Err(what) => faults.push((number, what)),
        }
    }
    faults.sort_by_key(|(line, _)| *line);
    (lines, faults)
}

impl Reader {
    fn entry(&mut self, entry: Entry) -> Result<Option<Line>, String> {
        let mut items = entry.items.iter().map(String::as_str).peekable();
        if !entry.blank {
            let first = items.next().unwrap_or_default();
            if first.starts_with('$') {
                let value: Vec<&str> = items.collect();
                return self.directive(first, &value).map(|()| None);
            }
            self.owner = Some(self.name(first)?);
        }
        let owner = self.owner.clone().ok_or("no owner: the first record of a file must name one")?;
        let mut ttl = None;
        let mut class = false;
        let kind = loop {
            let item = items.next().ok_or("a record has a type and data: these are missing")?;
            if let Some(seconds) = (ttl.is_none() && item.starts_with(|c: char| c.is_ascii_digit()))
                .then(|| parse_ttl(item).ok())
                .flatten()
            {
                ttl = Some(seconds);
            } else if !class && ["IN", "CH", "HS", "CS"].iter().any(|c| item.eq_ignore_ascii_case(c)) {
                if !item.eq_ignore_ascii_case("IN") {
                    return Err(format!("class {item}: only IN has a meaning here"));
                }
                class = true;
            } else {
                break item.to_ascii_uppercase();
            }
        };
        if let Some(ttl) = ttl {
            self.last_ttl = Some(ttl);
        }
        let data: Vec<&str> = items.collect();
        let record = match kind.as_str() {
            "SOA" | "NS" | "CNAME" | "A" | "AAAA" | "SRV" | "NAPTR" => {
                let ttl = ttl.or(self.default_ttl).or(self.last_ttl);
                let ttl =
                    ttl.ok_or("no TTL: write one, or $TTL before the first record (RFC 2308 section 4)")?;
                Some(self.record(&owner, ttl, &kind, &data)?)
            }
            known if is_type(known) => None,
            _ => return Err(format!("{kind} is no record type")),
        };
        Ok(Some(Line { line: entry.line, owner, record }))
    }

    fn directive(&mut self, word: &str, value: &[&str]) -> Result<(), String> {
        let only = || match value {
            [value] => Ok(*value),
            _ => Err(format!("{word} takes one value")),
        };
        match word.to_ascii_uppercase().as_str() {
            "$ORIGIN" => self.origin = Some(self.name(only()?)?),
            "$TTL" => {
                let ttl = only()?;
                self.default_ttl = Some(
                    parse_ttl(ttl).map_err(|_| format!("{ttl} is no TTL; write for example 3600 or 1h"))?,
                );
            }
            "$INCLUDE" => return Err("$INCLUDE is not followed: put everything into one file".to_owned()),
            "$GENERATE" => return Err("$GENERATE is not understood: write the records out".to_owned()),
            _ => return Err(format!("{word} is no directive; $ORIGIN and $TTL are")),
        }
        Ok(())
    }

    /// A name, made complete, in lower case.
    fn name(&self, text: &str) -> Result<Name, String> {
        if text == "@" {
            return self.origin.clone().ok_or_else(|| no_origin(text));
        }
        let name = Name::parse(text, self.origin.as_ref()).map_err(|e| format!("{text} is no name: {e}"))?;
        if name.is_fqdn() { Ok(name.to_lowercase()) } else { Err(no_origin(text)) }
    }

    fn record(&self, owner: &Name, ttl: u32, kind: &str, data: &[&str]) -> Result<Record, String> {
        let expected = match kind {
            "A" | "AAAA" | "NS" | "CNAME" => 1,
            "SRV" => 4,
            "NAPTR" => 6,
            _ => 7,
        };
        if data.len() != expected {
            return Err(format!("{kind} has {expected} items of data; here are {}", data.len()));
        }
        // Where a name stands alone, "@" is the origin; hickory takes it for an owner only.
        if self.origin.is_none() && data.contains(&"@") {
            return Err(no_origin("@"));
        }
        let origin = self.origin.as_ref().map(Name::to_ascii).unwrap_or_default();
        let data: Vec<&str> = data.iter().map(|item| if *item == "@" { &*origin } else { item }).collect();
        let text = format!("{} {ttl} IN {kind} {}\n", owner.to_ascii(), data.join(" "));
        // Without an origin the parser would refuse the file; relative names are found below.
        let sentinel = Name::from_ascii("origin.invalid.").map_err(|e| e.to_string())?;
        let origin = self.origin.clone().unwrap_or(sentinel);
        let (_, sets) = Parser::new(text, None, Some(origin)).parse().map_err(|e| format!("{kind}: {e}"))?;
        let record = sets
            .into_values()
            .flat_map(|set| set.records_without_rrsigs().cloned().collect::<Vec<_>>())
            .next()
            .ok_or_else(|| format!("{kind}: no record"))?;
        if self.origin.is_none()
            && let Some(item) = relative(&record.data, &data)
        {
            return Err(no_origin(item));
        }
        Ok(record)
    }
}

/// A name of the data that is not complete.
fn relative<'d>(data: &RData, items: &[&'d str]) -> Option<&'d str> {
    let names = match data {
        RData::A(_) | RData::AAAA(_) => items.get(..0),
        RData::SOA(_) => items.get(..2),
        _ => items.last().map(std::slice::from_ref),
    };
    names.unwrap_or_default().iter().copied().find(|name| !name.ends_with('.'))
}

fn no_origin(name: &str) -> String {
    format!(
        "{name} is a relative name, and no $ORIGIN stands before it; write for example $ORIGIN example.com."
    )
}

fn is_type(kind: &str) -> bool {
    let numbered = kind.strip_prefix("TYPE").is_some_and(|n| n.parse::<u16>().is_ok());
    numbered || OTHERS.contains(&kind) || RecordType::from_str(kind).is_ok()
}
