//! The text as a tree of tables whose keys and values know where they stand, and typed reading from it.
//!
//! A whole-document deserializer would stop at its first complaint; reading key by key finds them all in one go.

use std::ops::RangeInclusive;
use std::time::Duration;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::error::{At, Fault, Report, alternatives, nearest};
use super::units;

/// A kind of table, and the keys it may have.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Kind {
    /// As messages name it.
    pub title: &'static str,
    pub keys: &'static [&'static str],
}

macro_rules! kinds {
    ($($name:ident $title:literal [$($key:literal),* $(,)?])*) => {
        $(pub(super) const $name: Kind = Kind { title: $title, keys: &[$($key),*] };)*
        /// Every kind of table that has keys of its own.
        pub(super) const ALL_KINDS: &[&Kind] = &[$(&$name),*];
    };
}

kinds! {
    ROOT "the file" [
        "node", "listen", "tls", "sip", "health", "calls", "dns", "core", "peer", "route", "federation", "alto", "runtime", "log",
        "admin", "records", "hep", "limits", "overload",
    ]
    NODE "[node]" ["name", "domains"]
    LISTEN "[[listen]]" ["transport", "bind", "realm", "advertise"]
    TLS "[tls]" ["certificate", "key", "trust", "crl", "client_certificates"]
    SIP "[sip]" [
        "t1", "t2", "t4", "timer_c", "idle_timeout", "message_timeout", "try_timeout", "connect_timeout", "failover_codes", "max_tries",
        "max_message", "max_headers", "max_header", "dialog_secret_file",
    ]
    HEALTH "[health]" ["hold_down", "hold_down_max", "retry_after_max", "slow_start", "max_probed_down"]
    CALLS "[calls]" ["max_age"]
    DNS "[dns]" [
        "servers", "transports", "addresses", "min_ttl", "max_ttl", "negative_ttl", "timeout", "stale_ttl", "sticky", "srv_selection",
    ]
    CORE "[core]" ["next_hops", "sources", "tls_names", "strip_headers"]
    PEER "[[peer]]" [
        "name", "domains", "next_hop", "sources", "tls_names", "certificate", "key", "strip_headers", "trust", "max_calls", "max_rate", "max_calls_per_instance", "max_rate_per_instance", "t1",
        "try_timeout", "failover_codes", "numbers_in", "numbers_out", "probe", "alto_scope",
    ]
    NUMBERS_IN "[[peer.numbers_in]]" ["strip", "prefix"]
    NUMBERS_OUT "[[peer.numbers_out]]" ["strip", "prefix"]
    PROBE "probe" ["method", "interval", "timeout", "down_after", "up_after", "alive"]
    ROUTE "[[route]]" ["prefix", "peers"]
    FEDERATION "[federation]" ["open", "trust"]
    ALTO "[alto]" [
        "directory", "service", "resource", "source", "metric", "mode", "scope", "refresh", "rule", "band", "band_abs", "max_share",
        "min_coverage", "persist", "hold_down", "stale", "max_stale", "redirect_allow", "trust", "certificate", "key", "token_file", "digest_user",
        "digest_password_file", "basic_user", "basic_password_file", "accept_json", "override",
    ]
    OVERRIDE "[[alto.override]]" ["prefix", "cost"]
    RUNTIME "[runtime]" ["workers", "drain_timeout", "udp_segmentation"]
    LOG "[log]" ["format", "level"]
    ADMIN "[admin]" ["bind", "token_file", "read_token_file"]
    RECORDS "[records]" ["output", "max_size", "keep", "queue", "max_open"]
    HEP "[hep]" ["server", "id", "password", "queue"]
    LIMITS "[limits]" ["transactions", "connections", "write_queue", "dns_entries", "records"]
    OVERLOAD "[overload]" ["enabled", "target_delay", "interval", "retry_after", "silence"]
}

/// Every table, as messages name it, with the keys it may have; for documents and completions.
pub fn known_keys() -> impl Iterator<Item = (&'static str, &'static [&'static str])> {
    ALL_KINDS.iter().filter(|k| ***k != ROOT).map(|k| (k.title, k.keys))
}

/// One table of the text; absent ones read as empty.
#[derive(Clone, Copy, Debug)]
pub(super) struct Section<'t> {
    kind: &'static Kind,
    table: Option<&'t DeTable<'t>>,
    /// Where its header stands, for what is missing in it.
    pub at: usize,
}

impl<'t> Section<'t> {
    /// The whole text.
    pub fn root(report: &mut Report<'_>, table: &'t DeTable<'t>) -> Self {
        Self::new(report, &ROOT, table, 0)
    }

    fn new(report: &mut Report<'_>, kind: &'static Kind, table: &'t DeTable<'t>, at: usize) -> Self {
        for key in table.keys() {
            let name: &str = key.get_ref();
            if !kind.keys.contains(&name) {
                report.fault(key.span().start, unknown_key(kind, name));
            }
        }
        Section { kind, table: Some(table), at }
    }

    fn absent(kind: &'static Kind) -> Self {
        Section { kind, table: None, at: 0 }
    }

    /// It was written, be it empty.
    pub fn is_present(&self) -> bool {
        self.table.is_some()
    }

    fn value(&self, key: &'static str) -> Option<&'t Spanned<DeValue<'t>>> {
        debug_assert!(self.kind.keys.contains(&key), "{key} is not declared for {}", self.kind.title);
        self.table?.get(key)
    }

    /// Where a key's value stands; the header if it isn't written.
    pub fn place(&self, key: &'static str) -> usize {
        self.value(key).map_or(self.at, |v| v.span().start)
    }

    /// The key is written.
    pub fn has(&self, key: &'static str) -> bool {
        self.value(key).is_some()
    }

    /// The key holds a string.
    pub fn is_string(&self, key: &'static str) -> bool {
        matches!(self.value(key).map(Spanned::get_ref), Some(DeValue::String(_)))
    }

    /// The key holds a list with nothing in it (rather than one whose entries were all wrong).
    pub fn is_empty_list(&self, key: &'static str) -> bool {
        matches!(self.value(key).map(Spanned::get_ref), Some(DeValue::Array(items)) if items.is_empty())
    }

    /// A table below this one.
    pub fn table(&self, report: &mut Report<'_>, key: &'static str, kind: &'static Kind) -> Section<'t> {
        let Some(value) = self.value(key) else {
            return Section::absent(kind);
        };
        let at = value.span().start;
        match value.get_ref() {
            DeValue::Table(table) => Section::new(report, kind, table, at),
            DeValue::Array(_) => {
                report.error(
                    at,
                    format!("{} may stand only once", kind.title),
                    format!("write it as one table, {}", kind.title),
                );
                Section::absent(kind)
            }
            other => {
                wrong_type(report, at, key, other, &format!("write a table, {}", kind.title));
                Section::absent(kind)
            }
        }
    }

    /// An array of tables below this one.
    pub fn tables(
        &self,
        report: &mut Report<'_>,
        key: &'static str,
        kind: &'static Kind,
    ) -> Vec<Section<'t>> {
        let Some(value) = self.value(key) else {
            return Vec::new();
        };
        let remedy = format!("write {} before each", kind.title);
        let DeValue::Array(items) = value.get_ref() else {
            wrong_type(report, value.span().start, key, value.get_ref(), &remedy);
            return Vec::new();
        };
        let mut sections = Vec::new();
        for item in items.iter() {
            match item.get_ref() {
                DeValue::Table(table) => sections.push(Section::new(report, kind, table, item.span().start)),
                other => wrong_type(report, item.span().start, key, other, &remedy),
            }
        }
        sections
    }

    /// An array of tables below this one, or a single table.
    pub fn one_or_more(
        &self,
        report: &mut Report<'_>,
        key: &'static str,
        kind: &'static Kind,
    ) -> Vec<Section<'t>> {
        match self.value(key).map(Spanned::get_ref) {
            Some(DeValue::Table(_)) => vec![self.table(report, key, kind)],
            _ => self.tables(report, key, kind),
        }
    }

    /// A string.
    pub fn string(&self, report: &mut Report<'_>, key: &'static str) -> Option<At<&'t str>> {
        let value = self.value(key)?;
        let at = value.span().start;
        match value.get_ref() {
            DeValue::String(s) => Some(At { value: s.as_ref(), at }),
            other => {
                wrong_type(report, at, key, other, &format!("write a string, {key} = \"…\""));
                None
            }
        }
    }

    /// A string that means something more.
    pub fn parsed<T>(
        &self,
        report: &mut Report<'_>,
        key: &'static str,
        parse: impl Fn(&str) -> Result<T, Fault>,
    ) -> Option<At<T>> {
        let At { value, at } = self.string(report, key)?;
        parse(value).map_err(|fault| report.fault(at, fault)).ok().map(|value| At { value, at })
    }

    /// A string that must be there.
    pub fn required<T>(
        &self,
        report: &mut Report<'_>,
        key: &'static str,
        example: &str,
        parse: impl Fn(&str) -> Result<T, Fault>,
    ) -> Option<At<T>> {
        if !self.has(key) {
            report.error(
                self.at,
                format!("{} has no {key}", self.kind.title),
                format!("add {key} = {example}"),
            );
            return None;
        }
        self.parsed(report, key, parse)
    }

    /// One of a few words.
    pub fn word<T: Copy>(
        &self,
        report: &mut Report<'_>,
        key: &'static str,
        words: &[(&str, T)],
        default: T,
    ) -> T {
        self.parsed(report, key, |text| word(key, words, text)).map_or(default, |w| w.value)
    }

    /// A list of strings, each meaning something.
    pub fn list<T>(
        &self,
        report: &mut Report<'_>,
        key: &'static str,
        parse: impl Fn(&str) -> Result<T, Fault>,
    ) -> Option<Vec<At<T>>> {
        let value = self.value(key)?;
        let example = format!("write a list of strings, {key} = [\"…\"]");
        let DeValue::Array(items) = value.get_ref() else {
            wrong_type(report, value.span().start, key, value.get_ref(), &example);
            return None;
        };
        let mut list = Vec::new();
        for item in items.iter() {
            let at = item.span().start;
            match item.get_ref() {
                DeValue::String(text) => match parse(text) {
                    Ok(value) => list.push(At { value, at }),
                    Err(fault) => report.fault(at, fault),
                },
                other => wrong_type(report, at, &format!("an entry of {key}"), other, &example),
            }
        }
        Some(list)
    }

    /// A list of whole numbers within a range.
    pub fn numbers(
        &self,
        report: &mut Report<'_>,
        key: &'static str,
        range: RangeInclusive<u64>,
    ) -> Option<Vec<At<u64>>> {
        let value = self.value(key)?;
        let example = format!("write a list of numbers, {key} = [{}]", range.start());
        let DeValue::Array(items) = value.get_ref() else {
            wrong_type(report, value.span().start, key, value.get_ref(), &example);
            return None;
        };
        let mut list = Vec::new();
        for item in items.iter() {
            let at = item.span().start;
            let name = format!("an entry of {key}");
            list.extend(integer(report, &name, at, item.get_ref(), &range).map(|value| At { value, at }));
        }
        Some(list)
    }

    /// A whole number within a range.
    pub fn number<T: TryFrom<u64>>(
        &self,
        report: &mut Report<'_>,
        key: &'static str,
        range: RangeInclusive<u64>,
    ) -> Option<T> {
        let value = self.value(key)?;
        // Ranges are chosen to fit the type; a conversion that failed would read as left out.
        integer(report, key, value.span().start, value.get_ref(), &range).and_then(|n| T::try_from(n).ok())
    }

    /// A number within a range, whole or not.
    pub fn float(
        &self,
        report: &mut Report<'_>,
        key: &'static str,
        range: RangeInclusive<f64>,
    ) -> Option<f64> {
        let value = self.value(key)?;
        let at = value.span().start;
        let text = match value.get_ref() {
            DeValue::Float(f) => f.as_str(),
            DeValue::Integer(i) if i.radix() == 10 => i.as_str(),
            other => {
                wrong_type(report, at, key, other, &format!("write a number, {key} = {:?}", range.start()));
                return None;
            }
        };
        let number = text.parse::<f64>().ok().filter(|n| range.contains(n));
        if number.is_none() {
            let upper = if range.end().is_finite() {
                format!("from {} to {}", range.start(), range.end())
            } else {
                format!("from {}", range.start())
            };
            report.error(at, format!("{key} = {text} is out of range"), format!("write a number {upper}"));
        }
        number
    }

    /// True or false.
    pub fn boolean(&self, report: &mut Report<'_>, key: &'static str) -> Option<bool> {
        let value = self.value(key)?;
        match value.get_ref() {
            DeValue::Boolean(b) => Some(*b),
            other => {
                wrong_type(
                    report,
                    value.span().start,
                    key,
                    other,
                    &format!("write {key} = true or {key} = false"),
                );
                None
            }
        }
    }

    /// A duration within a range.
    pub fn duration(
        &self,
        report: &mut Report<'_>,
        key: &'static str,
        range: RangeInclusive<Duration>,
    ) -> Option<Duration> {
        let value = self.value(key)?;
        let at = value.span().start;
        let text = match value.get_ref() {
            DeValue::String(text) => text,
            other => {
                let example = match other {
                    DeValue::Integer(n) if n.as_str() != "0" => {
                        format!("write it with its unit, {key} = \"{}s\" or \"{0}ms\"", n.as_str())
                    }
                    _ => {
                        let usual = Duration::from_secs(5).clamp(*range.start(), *range.end());
                        format!("write a duration, {key} = \"{}\"", units::show_duration(usual))
                    }
                };
                wrong_type(report, at, key, other, &example);
                return None;
            }
        };
        let found = units::duration(text).map_err(|fault| report.fault(at, fault)).ok()?;
        if !range.contains(&found) {
            let (from, to) = (units::show_duration(*range.start()), units::show_duration(*range.end()));
            report.error(
                at,
                format!("{key} = \"{text}\" is out of range"),
                format!("write a duration from {from} to {to}"),
            );
            return None;
        }
        Some(found)
    }

    /// A size in octets within a range.
    pub fn size(
        &self,
        report: &mut Report<'_>,
        key: &'static str,
        range: RangeInclusive<u64>,
    ) -> Option<usize> {
        let value = self.value(key)?;
        let at = value.span().start;
        let found = match value.get_ref() {
            DeValue::String(text) => units::size(text).map_err(|fault| report.fault(at, fault)).ok()?,
            DeValue::Integer(n) if n.radix() == 10 && !n.as_str().starts_with('-') => {
                n.as_str().parse().unwrap_or(u64::MAX)
            }
            other => {
                wrong_type(report, at, key, other, &format!("write a size, {key} = \"64KiB\""));
                return None;
            }
        };
        if !range.contains(&found) {
            let (from, to) = (units::show_size(*range.start()), units::show_size(*range.end()));
            report.error(
                at,
                format!("{key} = {} is out of range", units::show_size(found)),
                format!("write a size from {from} to {to}"),
            );
            return None;
        }
        usize::try_from(found).ok()
    }

    /// Where a key itself stands; the header if it isn't written.
    pub fn place_of_key(&self, key: &'static str) -> usize {
        self.table.and_then(|t| t.get_key_value(key)).map_or(self.at, |(k, _)| k.span().start)
    }
}

/// What a word of a fixed set means.
pub(super) fn word<T: Copy>(key: &str, words: &[(&str, T)], text: &str) -> Result<T, Fault> {
    words.iter().find(|(w, _)| *w == text).map(|(_, meaning)| *meaning).ok_or_else(|| {
        let known = alternatives(words.iter().map(|(w, _)| *w));
        Fault::new(format!("{key} cannot be \"{text}\""), format!("write {known}"))
    })
}

fn integer(
    report: &mut Report<'_>,
    name: &str,
    at: usize,
    value: &DeValue<'_>,
    range: &RangeInclusive<u64>,
) -> Option<u64> {
    let DeValue::Integer(n) = value else {
        wrong_type(report, at, name, value, &format!("write a whole number, such as {}", range.start()));
        return None;
    };
    let number = u64::from_str_radix(n.as_str(), n.radix()).ok().filter(|n| range.contains(n));
    if number.is_none() {
        let remedy = format!("write a number from {} to {}", range.start(), range.end());
        report.error(at, format!("{name} = {} is out of range", n.as_str()), remedy);
    }
    number
}

fn wrong_type(report: &mut Report<'_>, at: usize, name: &str, value: &DeValue<'_>, remedy: &str) {
    let found = match value {
        DeValue::String(_) => "a string",
        DeValue::Integer(_) => "a whole number",
        DeValue::Float(_) => "a decimal number",
        DeValue::Boolean(_) => "a boolean",
        DeValue::Datetime(_) => "a date",
        DeValue::Array(_) => "a list",
        DeValue::Table(_) => "a table",
    };
    report.error(at, format!("{name} is {found}"), remedy);
}

fn unknown_key(kind: &Kind, name: &str) -> Fault {
    let what = if *kind == ROOT {
        format!("unknown table or key \"{name}\"")
    } else {
        format!("unknown key \"{name}\" in {}", kind.title)
    };
    let homes: Vec<&str> =
        ALL_KINDS.iter().filter(|k| ***k != ROOT && k.keys.contains(&name)).map(|k| k.title).collect();
    let remedy = if let Some(meant) = nearest(name, kind.keys.iter().copied()) {
        let table = ALL_KINDS.iter().find(|k| *kind == ROOT && k.title.trim_matches(['[', ']']) == meant);
        table.map_or_else(|| format!("did you mean \"{meant}\"?"), |t| format!("did you mean {}?", t.title))
    } else if !homes.is_empty() {
        format!("it belongs in {}", homes.join(" or "))
    } else if let [only] = kind.keys {
        format!("the only key here is {only}")
    } else {
        format!("the keys here are {}", kind.keys.join(", "))
    };
    Fault::new(what, remedy)
}
