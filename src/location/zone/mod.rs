//! The check of a domain's zone: what is found in the DNS, held against best current practice, with a remedy for each
//! fault and a suggested fragment. Facts in, findings out; whoever asks the DNS puts the facts together by
//! [`Facts::questions`] and [`Facts::put`].
//!
//! | file | does | authority |
//! |---|---|---|
//! | `facts` | what is to be asked, and what the servers said | |
//! | `naptr` | services, flags, order | RFC 3263 §4.1, RFC 3403 §4 |
//! | `srv` | targets, weights, redundancy | RFC 2782 |
//! | `address` | addresses and families | RFC 2782, RFC 7984 |
//! | `ttl` | lifetimes | RFC 2181 §5.2, RFC 1035 §3.2.1 |
//! | `lookup` | failures, servers that differ | RFC 2308 §7, RFC 1034 §4.3.5 |
//! | `fragment` | the suggested records | RFC 1035 §5 |

mod address;
mod facts;
mod fragment;
mod lookup;
mod naptr;
mod srv;
#[cfg(test)]
mod tests;
mod ttl;

use crate::flow::Transport;

pub use facts::{Fact, Facts, MAX_SURVEYED, Seen};

/// How bad it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Severity {
    /// Calls fail, or a record has no effect.
    Error,
    /// Calls can fail, or go otherwise than was probably meant.
    Warning,
    /// To be known.
    Info,
}

impl Severity {
    /// A fixed word.
    pub const fn label(self) -> &'static str {
        match self {
            Severity::Error => "error",
            Severity::Warning => "warning",
            Severity::Info => "info",
        }
    }
}

/// One thing found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// How bad it is.
    pub severity: Severity,
    /// A fixed word.
    pub code: &'static str,
    /// The name or record it is about, as in a zone file.
    pub about: String,
    /// What is wrong.
    pub what: String,
    /// Why that matters, with the section that says so.
    pub why: &'static str,
    /// What to do.
    pub remedy: String,
}

/// All that came of a check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// Worst first.
    pub findings: Vec<Finding>,
    /// Records as they could be, in the format of a zone file; what cannot be known is marked by `; TODO`.
    pub fragment: String,
}

impl Report {
    /// How many findings have this severity.
    pub fn count(&self, severity: Severity) -> usize {
        self.findings.iter().filter(|f| f.severity == severity).count()
    }
}

/// Most findings of one check; the rest is left out, the least severe first.
pub const MAX_FINDINGS: usize = 500;

/// Judges a zone by what was found of it.
pub fn check(facts: &Facts) -> Report {
    let mut findings = Findings::default();
    lookup::judge(facts, &mut findings);
    naptr::judge(facts, &mut findings);
    srv::judge(facts, &mut findings);
    address::judge(facts, &mut findings);
    ttl::judge(facts, &mut findings);
    let mut findings = findings.0;
    findings.sort_by_key(|f| f.severity);
    findings.truncate(MAX_FINDINGS);
    Report { findings, fragment: fragment::suggest(facts) }
}

/// Findings as they come up.
#[derive(Default)]
struct Findings(Vec<Finding>);

impl Findings {
    fn add(
        &mut self,
        severity: Severity,
        code: &'static str,
        about: impl Into<String>,
        what: impl Into<String>,
        why: &'static str,
        remedy: impl Into<String>,
    ) {
        let (about, what, remedy) = (about.into(), what.into(), remedy.into());
        let finding = Finding { severity, code, about, what, why, remedy };
        if !self.0.contains(&finding) {
            self.0.push(finding);
        }
    }

    fn error(
        &mut self,
        code: &'static str,
        about: impl Into<String>,
        what: impl Into<String>,
        why: &'static str,
        remedy: impl Into<String>,
    ) {
        self.add(Severity::Error, code, about, what, why, remedy);
    }

    fn warning(
        &mut self,
        code: &'static str,
        about: impl Into<String>,
        what: impl Into<String>,
        why: &'static str,
        remedy: impl Into<String>,
    ) {
        self.add(Severity::Warning, code, about, what, why, remedy);
    }

    fn info(
        &mut self,
        code: &'static str,
        about: impl Into<String>,
        what: impl Into<String>,
        why: &'static str,
        remedy: impl Into<String>,
    ) {
        self.add(Severity::Info, code, about, what, why, remedy);
    }
}

/// One of the three services that a peer's zone is to have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Service {
    transport: Transport,
    /// SERVICES of its NAPTR record.
    service: &'static str,
    /// Where its SRV records are by convention (RFC 3263 §4.2).
    prefix: &'static str,
    /// The port where nothing else is said.
    port: u16,
}

/// The three, best first.
const SERVICES: [Service; 3] = [
    Service { transport: Transport::Tls, service: "SIPS+D2T", prefix: "_sips._tcp", port: 5061 },
    Service { transport: Transport::Tcp, service: "SIP+D2T", prefix: "_sip._tcp", port: 5060 },
    Service { transport: Transport::Udp, service: "SIP+D2U", prefix: "_sip._udp", port: 5060 },
];
