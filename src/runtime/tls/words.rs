//! Failed handshakes in words an operator can act on, one line for each other end and cause.

use std::collections::HashMap;
use std::io;
use std::net::IpAddr;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustls::{AlertDescription, Error, InvalidMessage, PeerIncompatible};
use x509_parser::time::ASN1Time;

/// The same failure is told again no sooner than this.
const REPEAT: Duration = Duration::from_secs(60);
/// Failures told apart; with more within [`REPEAT`], further ones are only counted.
const MOST: usize = 256;
/// Names listed in a line.
const MOST_NAMES: usize = 8;

/// Why a handshake failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(in crate::runtime) enum Cause {
    /// The certificate names somebody else.
    WrongName,
    /// It is no longer valid, or an authority of its chain.
    Expired,
    /// It is not yet valid.
    NotYetValid,
    /// Nobody we trust has issued it.
    UnknownIssuer,
    /// It has been revoked.
    Revoked,
    /// It cannot be verified for another reason.
    Chain,
    /// It is no certificate.
    Unreadable,
    /// There is none, and there must be one.
    NoCertificate,
    /// There is no name that the other end could prove.
    NoName,
    /// The other end did not like ours, or something else.
    Alert,
    /// What came is no TLS.
    NotTls,
    /// The two sides have no version, cipher or group in common.
    NothingInCommon,
    /// It was not done in time.
    Timeout,
    /// The other end went away.
    Closed,
    /// Anything else.
    Protocol,
}

impl Cause {
    /// A fixed word for logs.
    pub(in crate::runtime) const fn label(self) -> &'static str {
        match self {
            Cause::WrongName => "wrong_name",
            Cause::Expired => "expired",
            Cause::NotYetValid => "not_yet_valid",
            Cause::UnknownIssuer => "unknown_issuer",
            Cause::Revoked => "revoked",
            Cause::Chain => "chain",
            Cause::Unreadable => "unreadable",
            Cause::NoCertificate => "no_certificate",
            Cause::NoName => "no_name",
            Cause::Alert => "alert",
            Cause::NotTls => "not_tls",
            Cause::NothingInCommon => "nothing_in_common",
            Cause::Timeout => "timeout",
            Cause::Closed => "closed",
            Cause::Protocol => "protocol",
        }
    }
}

/// What an error of a handshake, or of a session later on, means.
pub(in crate::runtime) fn explain(error: &io::Error) -> (Cause, String) {
    let tls = error.get_ref().and_then(|inner| inner.downcast_ref::<Error>());
    match tls {
        None if error.kind() == io::ErrorKind::UnexpectedEof => {
            (Cause::Closed, "it closed the connection during the handshake".to_owned())
        }
        None => (Cause::Closed, format!("the connection failed during the handshake: {error}")),
        Some(Error::AlertReceived(alert)) => (Cause::Alert, refused(*alert)),
        Some(Error::NoCertificatesPresented) => {
            let words = "it showed no certificate, and [tls] client_certificates = \"require\"";
            (Cause::NoCertificate, words.to_owned())
        }
        Some(Error::InvalidMessage(InvalidMessage::InvalidContentType)) => {
            (Cause::NotTls, "what it sends is no TLS; does it speak plain SIP to this port?".to_owned())
        }
        Some(Error::PeerIncompatible(what)) => (Cause::NothingInCommon, incompatible(what)),
        Some(other) => (Cause::Protocol, other.to_string()),
    }
}

/// An alert of the other end.
fn refused(alert: AlertDescription) -> String {
    use AlertDescription as A;
    let hint = match alert {
        A::UnknownCA => "it does not trust the authority of our certificate",
        A::CertificateExpired => "it says that our certificate has expired",
        A::CertificateRevoked => "it says that our certificate is revoked",
        A::CertificateRequired => "it wants a certificate of ours, and got none",
        A::BadCertificate | A::CertificateUnknown | A::UnsupportedCertificate | A::AccessDenied => {
            "it does not accept our certificate; is the name in it the one that it knows us by?"
        }
        A::UnrecognisedName => "it has no certificate for the name that we asked for",
        A::ProtocolVersion => "it does not speak TLS 1.2 or 1.3",
        A::HandshakeFailure => "it found no cipher in common, or wants a certificate",
        _ => "it refused the handshake",
    };
    format!("{hint} (alert {alert:?})")
}

fn incompatible(what: &PeerIncompatible) -> String {
    let hint = match what {
        PeerIncompatible::SupportedVersionsExtensionRequired
        | PeerIncompatible::Tls12NotOffered
        | PeerIncompatible::Tls12NotOfferedOrEnabled
        | PeerIncompatible::ServerDoesNotSupportTls12Or13 => "it speaks only versions older than TLS 1.2",
        PeerIncompatible::NoCipherSuitesInCommon => "there is no cipher in common",
        PeerIncompatible::NoKxGroupsInCommon | PeerIncompatible::NamedGroupsExtensionRequired => {
            "there is no key exchange group in common"
        }
        _ => "the two sides have nothing in common",
    };
    format!("{hint} ({what:?})")
}

/// `"a"`, or `one of "a", "b"`.
pub(super) fn one_of(names: &[String]) -> String {
    match names {
        [] => "nobody, as no name is configured".to_owned(),
        [only] => format!("\"{only}\""),
        several => {
            let mut text: Vec<String> = several.iter().take(MOST_NAMES).map(|n| format!("\"{n}\"")).collect();
            if several.len() > MOST_NAMES {
                text.push("…".to_owned());
            }
            format!("one of {}", text.join(", "))
        }
    }
}

/// A day, from seconds since 1970.
pub(super) fn date(seconds: u64) -> String {
    i64::try_from(seconds)
        .ok()
        .and_then(|s| ASN1Time::from_timestamp(s).ok())
        .map_or_else(|| format!("{seconds} s after 1970"), |t| t.to_string())
}

/// Which failures have been told, and when.
#[derive(Debug, Default)]
pub(in crate::runtime) struct FailureLog {
    told: Mutex<HashMap<(IpAddr, Cause), Told, ahash::RandomState>>,
}

#[derive(Debug)]
struct Told {
    at: Instant,
    since: u32,
}

impl FailureLog {
    /// Whether this failure is to be told now: `Some` with how many of its kind have not been told since the last.
    pub(in crate::runtime) fn take(&self, from: IpAddr, cause: Cause, now: Instant) -> Option<u32> {
        let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(entry) = told.get_mut(&(from, cause)) {
            if now.saturating_duration_since(entry.at) < REPEAT {
                entry.since = entry.since.saturating_add(1);
                return None;
            }
            let since = std::mem::take(&mut entry.since);
            entry.at = now;
            return Some(since);
        }
        if told.len() >= MOST {
            told.retain(|_, entry| now.saturating_duration_since(entry.at) < REPEAT);
            if told.len() >= MOST {
                return None;
            }
        }
        told.insert((from, cause), Told { at: now, since: 0 });
        Some(0)
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    fn from(n: u32) -> IpAddr {
        IpAddr::V4(Ipv4Addr::from(n))
    }

    #[test]
    fn a_failure_is_told_once_a_minute_for_each_address_and_cause() {
        let (log, now) = (FailureLog::default(), Instant::now());
        assert_eq!(log.take(from(1), Cause::Expired, now), Some(0));
        assert_eq!(log.take(from(1), Cause::Expired, now), None);
        assert_eq!(log.take(from(1), Cause::WrongName, now), Some(0));
        assert_eq!(log.take(from(2), Cause::Expired, now), Some(0));
        assert_eq!(log.take(from(1), Cause::Expired, now + REPEAT / 2), None);
        assert_eq!(log.take(from(1), Cause::Expired, now + REPEAT), Some(2), "and how many were left out");
        assert_eq!(log.take(from(1), Cause::Expired, now + REPEAT * 2), Some(0));
    }

    #[test]
    fn failures_from_everywhere_fill_neither_the_log_nor_the_memory() {
        let (log, now) = (FailureLog::default(), Instant::now());
        let told = (0..100_000).filter(|n| log.take(from(*n), Cause::NotTls, now).is_some()).count();
        assert_eq!(told, MOST);
        assert_eq!(log.told.lock().map(|t| t.len()).unwrap_or(0), MOST);
        assert_eq!(
            log.take(from(7_000_000), Cause::NotTls, now + REPEAT),
            Some(0),
            "a minute later there is room"
        );
    }

    #[test]
    fn a_date_is_readable() {
        assert_eq!(date(1_700_000_000), "Nov 14 22:13:20 2023 +00:00");
    }
}
