//! `[alto]`: whose costs rank the candidates, and how.

use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use ipnet::IpNet;

use super::check::{MS, YEAR};
use super::error::{At, Fault, Report};
use super::names;
use super::raw::{self, Section};
use super::units::show_duration;

/// Most directories.
const MAX_DIRECTORIES: usize = 10;

/// `[alto]`
#[derive(Clone, Debug, PartialEq)]
pub struct Alto {
    /// URLs of directories, the preferred one first: `https`, `http` or `file`.
    pub directories: Vec<String>,
    /// Which of a server's services are used.
    pub service: AltoService,
    /// The id of the resource to ask; `None`: the first that serves.
    pub resource: Option<String>,
    /// Whose costs we ask for; `None`: the address that a candidate would be reached from.
    pub source: Option<IpAddr>,
    /// Cost metric (RFC 7285 §6.1.1, RFC 9439).
    pub metric: String,
    /// Cost mode wanted.
    pub mode: AltoMode,
    /// How far costs reach, where a peer's `alto_scope` doesn't say.
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
    /// Hosts or origins that servers may send us to, besides their own.
    pub redirect_allow: Vec<String>,
    /// Those of `directories` whose servers may call their answers `application/json`.
    pub accept_json: Vec<String>,
    /// PEM files of authorities trusted for the servers; empty: the system's.
    pub trust: Vec<PathBuf>,
    /// The certificate we show the servers, and its key.
    pub certificate: Option<(PathBuf, PathBuf)>,
    /// How we tell the servers who we are, besides by certificate.
    pub credentials: Option<AltoCredentials>,
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

/// `[alto] service`
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AltoService {
    /// Endpoint costs if the server offers them, else maps.
    Auto,
    /// Endpoint costs (RFC 7285 §11.5). The server learns whom we call.
    Endpoint,
    /// Maps (RFC 7285 §11.2). The server does not learn whom we call.
    Maps,
}

/// Credentials for HTTP; the secrets stay in their files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AltoCredentials {
    /// A bearer token (RFC 6750): `token_file`.
    Bearer(PathBuf),
    /// Basic (RFC 7617): `basic_user`, `basic_password_file`.
    Basic(String, PathBuf),
    /// Digest (RFC 7616): `digest_user`, `digest_password_file`. The only one that may go without TLS.
    Digest(String, PathBuf),
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
    let directories = directories(report, &section);
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
    let services =
        [("auto", AltoService::Auto), ("endpoint", AltoService::Endpoint), ("maps", AltoService::Maps)];
    let resource = section.parsed(report, "resource", |text| {
        // RFC 7285 §10.2.
        let ok = |b: u8| b.is_ascii_alphanumeric() || b"-:@_.".contains(&b);
        if (1..=64).contains(&text.len()) && text.bytes().all(ok) {
            Ok(text.to_owned())
        } else {
            Err(Fault::new(
                format!("\"{text}\" is not the id of a resource"),
                "write one as the server's directory names it",
            ))
        }
    });
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
        service: section.word(report, "service", &services, AltoService::Auto),
        resource: resource.map(|r| r.value),
        redirect_allow: redirect_allow(report, &section),
        accept_json: accept_json(report, &section, &directories),
        trust: trust(report, &section),
        certificate: certificate(report, &section),
        credentials: credentials(report, &section, &directories),
        directories: directories.into_iter().map(|d| d.value).collect(),
        source: source.map(|s| s.value),
        metric: metric.map_or_else(|| "routingcost".to_owned(), |m| m.value),
        mode,
        scope: scope(report, &section, "scope").unwrap_or(AltoScope::WithinPriority),
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

/// `scope`, and `alto_scope` of a peer.
pub(super) fn scope(report: &mut Report<'_>, section: &Section<'_>, key: &'static str) -> Option<AltoScope> {
    let words =
        [("within-priority", AltoScope::WithinPriority), ("across-priorities", AltoScope::AcrossPriorities)];
    section.has(key).then(|| section.word(report, key, &words, AltoScope::WithinPriority))
}

/// `directory`, one URL or a list.
fn directories(report: &mut Report<'_>, section: &Section<'_>) -> Vec<At<String>> {
    if !section.has("directory") || section.is_string("directory") {
        let one = section.required(report, "directory", "\"https://alto.example.net/directory\"", directory);
        return plain(report, one.into_iter().collect());
    }
    let list = section.list(report, "directory", directory).unwrap_or_default();
    if section.is_empty_list("directory") {
        let remedy = "write at least one, or leave out [alto]";
        report.error(section.place("directory"), "directory is empty", remedy);
    }
    if let Some(beyond) = list.get(MAX_DIRECTORIES) {
        let what = format!("more than {MAX_DIRECTORIES} directories");
        report.error(beyond.at, what, "leave out the last ones");
    }
    plain(report, list)
}

fn directory(url: &str) -> Result<String, Fault> {
    let known = ["https://", "http://", "file:///"];
    let usable = known.iter().any(|scheme| url.len() > scheme.len() && url.starts_with(scheme))
        && !url.contains(char::is_whitespace)
        && url::Url::parse(url).is_ok();
    if !usable {
        return Err(Fault::new(
            format!("\"{url}\" is not the URL of a directory"),
            "write one that begins with https://, http:// or file:///",
        ));
    }
    if url::Url::parse(url).is_ok_and(|u| !u.username().is_empty() || u.password().is_some()) {
        return Err(Fault::new(
            "a URL with a user name or password in it".to_owned(),
            "write digest_user and digest_password_file, or basic_user and basic_password_file",
        ));
    }
    Ok(url.to_owned())
}

/// Warns of what comes without TLS from elsewhere.
fn plain(report: &mut Report<'_>, list: Vec<At<String>>) -> Vec<At<String>> {
    for url in list.iter().filter(|d| d.value.starts_with("http://")) {
        if !["http://127.", "http://[::1]", "http://localhost"].iter().any(|own| url.value.starts_with(own)) {
            report.warn(url.at, "anybody on the way can change what http:// brings", "write https://");
        }
    }
    list
}

/// Of the directories, those whose servers label their answers as plain JSON.
fn accept_json(report: &mut Report<'_>, section: &Section<'_>, directories: &[At<String>]) -> Vec<String> {
    let list = section.list(report, "accept_json", |text| Ok(text.to_owned())).unwrap_or_default();
    for url in &list {
        if !directories.iter().any(|d| d.value == url.value) {
            let what = format!("accept_json names \"{}\", which is not in directory", url.value);
            report.error(url.at, what, "write the URL as it stands there");
        }
    }
    list.into_iter().map(|url| url.value).collect()
}

/// Hosts, or origins such as `https://cdn.example.net`.
fn redirect_allow(report: &mut Report<'_>, section: &Section<'_>) -> Vec<String> {
    let list = section.list(report, "redirect_allow", |text| {
        let origin = url::Url::parse(text)
            .is_ok_and(|u| matches!(u.scheme(), "http" | "https") && u.path() == "/" && u.query().is_none());
        let host = text.parse::<std::net::Ipv6Addr>().is_err() && url::Host::parse(text).is_ok();
        if origin || host {
            Ok(text.to_ascii_lowercase())
        } else {
            Err(Fault::new(
                format!("\"{text}\" is neither a host nor an origin"),
                "write one, such as \"cdn.example.net\" or \"https://cdn.example.net:8443\"",
            ))
        }
    });
    list.unwrap_or_default().into_iter().map(|a| a.value).collect()
}

/// A list of files, or `"system"`.
fn trust(report: &mut Report<'_>, section: &Section<'_>) -> Vec<PathBuf> {
    if !section.has("trust") || section.is_string("trust") {
        section.parsed(report, "trust", |text| match text {
            "system" => Ok(()),
            _ => Err(Fault::new(
                format!("trust cannot be \"{text}\""),
                format!("write a list of PEM files, trust = [\"{text}\"], or trust = \"system\""),
            )),
        });
        return Vec::new();
    }
    let list = section.list(report, "trust", super::listeners::path).unwrap_or_default();
    if section.is_empty_list("trust") {
        let what = "trust = [] trusts nobody, so no certificate could be verified";
        report.error(section.place("trust"), what, "list PEM files, or write trust = \"system\"");
    }
    for file in &list {
        report.reads(file);
    }
    list.into_iter().map(|f| f.value).collect()
}

/// Two keys that go together; `None`: at least one is not there.
fn both(report: &mut Report<'_>, section: &Section<'_>, keys: [&'static str; 2]) -> Option<()> {
    let [first, second] = keys;
    for (one, other) in [(first, second), (second, first)] {
        if section.has(one) && !section.has(other) {
            let what = format!("{one} without {other}");
            report.error(section.place_of_key(one), what, format!("add {other}, or leave out both"));
        }
    }
    (section.has(first) && section.has(second)).then_some(())
}

fn certificate(report: &mut Report<'_>, section: &Section<'_>) -> Option<(PathBuf, PathBuf)> {
    both(report, section, ["certificate", "key"])?;
    let certificate = section.parsed(report, "certificate", super::listeners::path);
    let key = section.parsed(report, "key", super::listeners::path);
    for file in certificate.iter().chain(&key) {
        report.reads(file);
    }
    Some((certificate?.value, key?.value))
}

fn credentials(
    report: &mut Report<'_>,
    section: &Section<'_>,
    directories: &[At<String>],
) -> Option<AltoCredentials> {
    let token = section.parsed(report, "token_file", super::listeners::path);
    if let Some(token) = &token {
        report.reads(token);
    }
    let digest = user(report, section, ["digest_user", "digest_password_file"]);
    let basic = user(report, section, ["basic_user", "basic_password_file"]);
    let ways =
        [("token_file", token.is_some()), ("digest_user", digest.is_some()), ("basic_user", basic.is_some())];
    let mut ways = ways.into_iter().filter(|(_, there)| *there).map(|(key, _)| key);
    if let (Some(used), Some(other)) = (ways.next(), ways.next()) {
        let what = format!("{used} and {other} are two ways to say who we are, {used} is used");
        report.warn(section.place_of_key(other), what, "leave one");
    }
    let plain = directories.iter().find(|d| d.value.starts_with("http://"));
    if let Some(plain) = plain.filter(|_| token.is_some() || basic.is_some()) {
        let what = "credentials are not sent without TLS";
        report.error(plain.at, what, "write https://, or leave out the credentials, or write digest_user");
    }
    let token = token.map(|t| AltoCredentials::Bearer(t.value));
    let digest = digest.map(|(user, file)| AltoCredentials::Digest(user, file));
    token.or(digest).or(basic.map(|(user, file)| AltoCredentials::Basic(user, file)))
}

/// A user's name, and the file of its password.
fn user(
    report: &mut Report<'_>,
    section: &Section<'_>,
    keys: [&'static str; 2],
) -> Option<(String, PathBuf)> {
    both(report, section, keys)?;
    let [name, password] = keys;
    let user = section.parsed(report, name, |text| {
        // RFC 7617 §2, RFC 7616 §3.4.2.
        if text.is_empty() || text.contains(':') || text.chars().any(char::is_control) {
            return Err(Fault::new(
                format!("{name} is empty, or has a colon in it"),
                "write the user's name",
            ));
        }
        Ok(text.to_owned())
    });
    let file = section.parsed(report, password, super::listeners::path)?;
    report.reads(&file);
    Some((user?.value, file.value))
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
