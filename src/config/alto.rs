//! `[alto]`: whose costs rank the candidates, and how.

use std::net::IpAddr;
use std::time::Duration;

use ipnet::IpNet;

use super::check::{MS, YEAR};
use super::error::{Fault, Report};
use super::names;
use super::raw::{self, Section};
use super::units::show_duration;

/// `[alto]`
#[derive(Clone, Debug, PartialEq)]
pub struct Alto {
    /// Directory URL: `https`, `http` or `file`.
    pub directory: String,
    /// Whose costs we ask for; `None`: the address that a candidate would be reached from.
    pub source: Option<IpAddr>,
    /// Cost metric (RFC 7285 §6.1.1, RFC 9439).
    pub metric: String,
    /// Cost mode wanted.
    pub mode: AltoMode,
    /// How far costs reach.
    pub scope: AltoScope,
    /// Replaces the lifetime that the server's caching headers would give; `None`: they rule.
    pub refresh: Option<Duration>,
    /// How costs become an order.
    pub rule: AltoRule,
    /// Relative width of a class, from 0: costs up to `best * (1 + band)` are equal.
    pub band: f64,
    /// Absolute width, added to the relative one, in the metric's unit.
    pub band_abs: f64,
    /// Most of a tier's load that its best class gets, 0 to 1; 1: all of it while it is up.
    pub max_share: f64,
    /// Share of a tier's targets, 0 to 1, that must have a cost before costs count there.
    pub min_coverage: f64,
    /// Answers in a row that must agree before the leader changes.
    pub persist: u32,
    /// Least time between two changes of the leader.
    pub hold_down: Duration,
    /// Beyond their lifetime, costs are used this long while a refresh is under way.
    pub stale: Duration,
    /// Beyond their lifetime, costs are used at most this long while the server fails.
    pub max_stale: Duration,
    /// `[[alto.override]]`: costs that the operator sets; the longest prefix wins.
    pub overrides: Vec<(IpNet, f64)>,
    /// All keys as written.
    pub table: toml::Table,
}

/// `[alto] mode`
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AltoMode {
    /// Costs are numbers that may be compared across answers.
    Numerical,
    /// Costs are ranks within one answer.
    Ordinal,
}

/// `[alto] scope`
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AltoScope {
    /// Costs order within one SRV priority (RFC 2782's MUST stands).
    WithinPriority,
    /// Costs go before priorities, by agreement with the peers.
    AcrossPriorities,
}

/// `[alto] rule`
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AltoRule {
    /// Costs are shown and not used.
    Off,
    /// Near-equal costs form a class, weights decide within it.
    Classes,
    /// Costs scale the weights.
    Weights,
    /// Every cost is a class of its own.
    Strict,
}

impl AltoRule {
    /// As in the configuration.
    pub const fn label(self) -> &'static str {
        match self {
            AltoRule::Off => "off",
            AltoRule::Classes => "classes",
            AltoRule::Weights => "weights",
            AltoRule::Strict => "strict",
        }
    }
}

/// Reads `[alto]`; `None` if it isn't there.
pub(super) fn alto(report: &mut Report<'_>, root: &Section<'_>, text: &str) -> Option<Alto> {
    let section = root.table(report, "alto", &raw::ALTO);
    if !section.is_present() {
        return None;
    }
    let directory = section.required(report, "directory", "\"https://alto.example.net/directory\"", |url| {
        let known = ["https://", "http://", "file://"]
            .iter()
            .any(|scheme| url.len() > scheme.len() && url.starts_with(scheme));
        if known && !url.contains(char::is_whitespace) {
            Ok(url.to_owned())
        } else {
            Err(Fault::new(
                format!("\"{url}\" is not the URL of a directory"),
                "write one that begins with https://, http:// or file:///",
            ))
        }
    });
    if let Some(plain) = directory.as_ref().filter(|d| d.value.starts_with("http://"))
        && !["http://127.", "http://[::1]", "http://localhost"].iter().any(|own| plain.value.starts_with(own))
    {
        report.warn(plain.at, "anybody on the way can change what http:// brings", "write https://");
    }
    let source = section.parsed(report, "source", |text| {
        text.parse::<IpAddr>().map_err(|_| {
            Fault::new(format!("source \"{text}\" is not an address"), "write one, such as \"192.0.2.10\"")
        })
    });
    let metric = section.parsed(report, "metric", |text| {
        // RFC 7285 §10.6.
        let ok = |b: u8| b.is_ascii_alphanumeric() || b"-:._".contains(&b);
        if (1..=32).contains(&text.len()) && text.bytes().all(ok) {
            Ok(text.to_owned())
        } else {
            Err(Fault::new(
                format!("\"{text}\" is not a cost metric"),
                "write one, such as \"routingcost\" or \"delay-rt\"",
            ))
        }
    });
    let mode = section.word(
        report,
        "mode",
        &[("numerical", AltoMode::Numerical), ("ordinal", AltoMode::Ordinal)],
        AltoMode::Numerical,
    );
    let scopes =
        [("within-priority", AltoScope::WithinPriority), ("across-priorities", AltoScope::AcrossPriorities)];
    let rules = [
        ("off", AltoRule::Off),
        ("classes", AltoRule::Classes),
        ("weights", AltoRule::Weights),
        ("strict", AltoRule::Strict),
    ];
    let rule = section.word(report, "rule", &rules, AltoRule::Classes);
    if rule == AltoRule::Weights && mode == AltoMode::Ordinal {
        let what = "rule = \"weights\" needs numbers, and mode = \"ordinal\" gives ranks";
        report.error(section.place("rule"), what, "write mode = \"numerical\", or rule = \"classes\"");
    }
    let stale = section.duration(report, "stale", Duration::ZERO..=YEAR).unwrap_or(Duration::from_secs(600));
    let max_stale =
        section.duration(report, "max_stale", Duration::ZERO..=YEAR).unwrap_or(Duration::from_secs(3600));
    if max_stale < stale {
        let what =
            format!("max_stale = {} is below stale = {}", show_duration(max_stale), show_duration(stale));
        let key = if section.has("max_stale") { "max_stale" } else { "stale" };
        report.error(section.place(key), what, "write max_stale >= stale");
    }
    let overrides = overrides(report, &section);
    let written = text.parse::<toml::Table>().ok().and_then(|mut t| t.remove("alto"));
    let table = match written {
        Some(toml::Value::Table(table)) => table,
        _ => toml::Table::new(),
    };
    Some(Alto {
        directory: directory.map(|d| d.value).unwrap_or_default(),
        source: source.map(|s| s.value),
        metric: metric.map_or_else(|| "routingcost".to_owned(), |m| m.value),
        mode,
        scope: section.word(report, "scope", &scopes, AltoScope::WithinPriority),
        refresh: section.duration(report, "refresh", MS..=YEAR),
        rule,
        band: section.float(report, "band", 0.0..=1000.0).unwrap_or(0.1),
        band_abs: section.float(report, "band_abs", 0.0..=f64::MAX).unwrap_or(0.0),
        max_share: section.float(report, "max_share", 0.0..=1.0).unwrap_or(1.0),
        min_coverage: section.float(report, "min_coverage", 0.0..=1.0).unwrap_or(0.5),
        persist: section.number(report, "persist", 1..=1000).unwrap_or(2),
        hold_down: section
            .duration(report, "hold_down", Duration::ZERO..=YEAR)
            .unwrap_or(Duration::from_secs(60)),
        stale,
        max_stale,
        overrides,
        table,
    })
}

fn overrides(report: &mut Report<'_>, section: &Section<'_>) -> Vec<(IpNet, f64)> {
    let mut list: Vec<(IpNet, f64)> = Vec::new();
    for entry in section.tables(report, "override", &raw::OVERRIDE) {
        let prefix = entry.required(report, "prefix", "\"198.51.100.0/24\"", names::prefix);
        if !entry.has("cost") {
            report.error(entry.at, "[[alto.override]] has no cost", "add cost = 10");
        }
        let cost = entry.float(report, "cost", 0.0..=f64::MAX);
        let (Some(prefix), Some(cost)) = (prefix, cost) else {
            continue;
        };
        let net = prefix.value.0;
        if list.iter().any(|(seen, _)| *seen == net) {
            report.error(prefix.at, format!("a second cost for \"{net}\""), "leave one");
        }
        list.push((net, cost));
    }
    list
}
