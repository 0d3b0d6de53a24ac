//! `sbe zone check`: a domain's records against best current practice.

use std::fmt::Write;
use std::sync::Arc;

use serde_json::{Value, json};

use crate::location::zone::{Facts, Finding, Report, Severity, check as judge};
use crate::runtime::dns::{Asked, MAX_SURVEY_SERVERS, ZoneFault, ZoneFile, survey};

use super::{NO, WRONG, ZoneCheck, print};

/// Checks, and prints what was found.
pub fn check(args: &ZoneCheck) -> u8 {
    let wrong = |what: &str| {
        eprintln!("{}: {what}", args.domain.escape_default());
        WRONG
    };
    if Facts::new(&args.domain, Vec::new()).is_none() {
        return wrong("this is no domain name; write for example example.com");
    }
    if args.server.len() > MAX_SURVEY_SERVERS {
        return wrong(&format!("at most {MAX_SURVEY_SERVERS} name servers can be asked"));
    }
    let zone = args.zone.as_deref().map(|file| ZoneFile::read(file, Some(&args.domain)));
    let zone = match zone.transpose() {
        Ok(zone) => zone.map(Arc::new),
        Err(faults) => {
            for fault in faults {
                eprintln!("{fault}");
            }
            return WRONG;
        }
    };
    let asked = match &zone {
        Some(file) => vec![Asked::File(file.clone())],
        None if args.server.is_empty() => Asked::system(),
        None => args.server.iter().copied().map(Asked::Server).collect(),
    };
    if let Some(file) = zone.as_deref().filter(|file| !file.holds(&args.domain)) {
        return wrong(&format!("this domain is in none of the zones of {}", file.file()));
    }
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            eprintln!("no event loop: {error}");
            return NO;
        }
    };
    let Some(facts) = runtime.block_on(survey(&args.domain, &asked)) else {
        return wrong("this is no domain name");
    };
    let report = judge(&facts);
    let warnings = zone.as_deref().map(ZoneFile::warnings).unwrap_or_default();
    if args.json {
        let text = serde_json::to_string_pretty(&as_json(&facts, &report, warnings));
        print(&format!("{}\n", text.unwrap_or_default()));
    } else {
        print(&as_text(&facts, &report, warnings));
    }
    if report.count(Severity::Error) > 0 { NO } else { 0 }
}

/// Fields are added, never renamed.
fn as_json(facts: &Facts, report: &Report, warnings: &[ZoneFault]) -> Value {
    let finding = |f: &Finding| {
        json!({
            "severity": f.severity.label(),
            "code": f.code,
            "about": f.about,
            "what": f.what,
            "why": f.why,
            "remedy": f.remedy,
        })
    };
    json!({
        "domain": facts.domain(),
        "servers": facts.servers(),
        "errors": report.count(Severity::Error),
        "warnings": report.count(Severity::Warning),
        "infos": report.count(Severity::Info),
        "findings": report.findings.iter().map(finding).collect::<Vec<_>>(),
        "notes": warnings.iter().map(ToString::to_string).collect::<Vec<_>>(),
        "fragment": report.fragment,
    })
}

/// Writes one line. Writing to a string cannot fail.
macro_rules! line {
    ($out:expr, $($arg:tt)*) => { let _ = writeln!($out, $($arg)*); };
}

fn as_text(facts: &Facts, report: &Report, warnings: &[ZoneFault]) -> String {
    let mut out = String::new();
    line!(out, "{} as {} has it", facts.domain(), facts.servers().join(", "));
    for warning in warnings {
        line!(out, "note: {warning}");
    }
    for f in &report.findings {
        line!(out, "{}: {} ({})", f.severity.label(), plain(&f.about), f.code);
        line!(out, "    what: {}", plain(&f.what));
        line!(out, "    why:  {}", f.why);
        line!(out, "    do:   {}", plain(&f.remedy));
    }
    line!(
        out,
        "{} errors, {} warnings, {} infos",
        report.count(Severity::Error),
        report.count(Severity::Warning),
        report.count(Severity::Info)
    );
    line!(out, "\nsuggested records:\n");
    out.push_str(&report.fragment);
    out
}

/// Names in the DNS can hold any octet.
fn plain(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { '?' } else { c }).collect()
}
