//! Whom a certificate names: SIP domain identities by RFC 5922 §7.1 and §7.2.
//!
//! A `sip:` URI of the subjectAltName without a user part names its host; only where there is none do the
//! DNS names count. Names are compared whole and without regard to case. Wildcards name nobody, addresses
//! name nobody, and the common name of the subject is never looked at: RFC 5922 allows that only for
//! certificates without a subjectAltName, and any such certificate can be issued anew with one.

use std::net::IpAddr;

use x509_parser::extensions::GeneralName;
use x509_parser::prelude::{FromDer, X509Certificate};

use crate::flow::TlsIdentity;

/// What a certificate says about its holder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Presented {
    /// The names that count.
    pub(super) identity: TlsIdentity,
    /// Those that don't, each with the reason; for the log.
    pub(super) ignored: Vec<String>,
    /// Its issuer, for the log.
    pub(super) issuer: String,
    /// Its validity, in seconds since 1970.
    pub(super) not_before: i64,
    /// Its validity, in seconds since 1970.
    pub(super) not_after: i64,
}

/// Names listed in the log at most: a certificate may hold thousands.
const MOST_SHOWN: usize = 8;

impl Presented {
    /// Reads a certificate; `None`: it is no X.509 certificate, or its subjectAltName is broken.
    pub(super) fn read(der: &[u8]) -> Option<Self> {
        let (_, certificate) = X509Certificate::from_der(der).ok()?;
        let alternative = certificate.subject_alternative_name().ok()?;
        let names = alternative.as_ref().map_or(&[][..], |found| &found.value.general_names);
        let (mut uris, mut hosts, mut ignored) = (Vec::new(), Vec::new(), Vec::new());
        for name in names {
            match name {
                GeneralName::URI(uri) => match domain_of_uri(uri) {
                    Ok(domain) => uris.push(domain),
                    Err(why) => ignored.push(format!("URI:{} ({why})", shown(uri))),
                },
                GeneralName::DNSName(text) => match domain(text) {
                    Ok(domain) => hosts.push(domain),
                    Err(why) => ignored.push(format!("DNS:{} ({why})", shown(text))),
                },
                GeneralName::IPAddress(octets) => {
                    ignored.push(format!("IP:{} (addresses don't count)", address(octets)));
                }
                _ => {}
            }
        }
        if names.is_empty() {
            let common = certificate.subject().iter_common_name().filter_map(|n| n.as_str().ok());
            ignored.extend(common.map(|n| format!("CN={} (the common name doesn't count)", shown(n))));
        }
        let names = if uris.is_empty() {
            hosts
        } else {
            let shut_out = hosts.iter().map(|n| format!("DNS:{n} (a sip URI goes before DNS names)"));
            ignored.extend(shut_out);
            uris
        };
        Some(Self {
            identity: TlsIdentity { names },
            ignored,
            issuer: shown(&certificate.issuer().to_string()),
            not_before: certificate.validity().not_before.timestamp(),
            not_after: certificate.validity().not_after.timestamp(),
        })
    }

    /// True if it names one of these.
    pub(super) fn is_one_of(&self, accepted: &[String]) -> bool {
        names_one_of(&self.identity, accepted)
    }

    /// Its names in words: `"a.example", "b.example"; not counted: DNS:*.example (wildcard)`.
    pub(super) fn words(&self) -> String {
        let list = |names: &[String], quote: &str| {
            let mut text: Vec<String> =
                names.iter().take(MOST_SHOWN).map(|n| format!("{quote}{n}{quote}")).collect();
            if names.len() > MOST_SHOWN {
                text.push(format!("and {} more", names.len() - MOST_SHOWN));
            }
            text.join(", ")
        };
        let names = match self.identity.names.as_slice() {
            [] => "nobody".to_owned(),
            names => list(names, "\""),
        };
        if self.ignored.is_empty() {
            names
        } else {
            format!("{names}; not counted: {}", list(&self.ignored, ""))
        }
    }
}

/// RFC 5922 §7.2: whole names, without regard to case.
pub(in crate::runtime) fn names_one_of(identity: &TlsIdentity, accepted: &[String]) -> bool {
    identity.names.iter().any(|name| accepted.iter().any(|wanted| wanted.eq_ignore_ascii_case(name)))
}

/// The domain that a URI identity names.
fn domain_of_uri(uri: &str) -> Result<String, &'static str> {
    let (scheme, rest) = uri.split_once(':').ok_or("no sip URI")?;
    if !scheme.eq_ignore_ascii_case("sip") {
        return Err("not of scheme sip");
    }
    if rest.contains('@') {
        return Err("it names a user");
    }
    if rest.starts_with('[') {
        return Err("addresses don't count");
    }
    domain(rest.split([':', ';', '?']).next().unwrap_or_default())
}

/// A domain name in lower case, without its final dot.
fn domain(text: &str) -> Result<String, &'static str> {
    let name = text.strip_suffix('.').unwrap_or(text);
    if name.contains('*') {
        return Err("wildcards don't count");
    }
    if name.parse::<IpAddr>().is_ok() {
        return Err("addresses don't count");
    }
    let label =
        |l: &str| !l.is_empty() && l.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_'));
    if name.split('.').all(label) { Ok(name.to_ascii_lowercase()) } else { Err("no domain name") }
}

fn address(octets: &[u8]) -> String {
    if let Ok(v4) = <[u8; 4]>::try_from(octets) {
        IpAddr::from(v4).to_string()
    } else if let Ok(v6) = <[u8; 16]>::try_from(octets) {
        IpAddr::from(v6).to_string()
    } else {
        "?".to_owned()
    }
}

/// Text of a certificate as the log may show it.
fn shown(text: &str) -> String {
    text.chars().take(120).flat_map(char::escape_default).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sip_uri_without_a_user_names_its_host() {
        for (uri, want) in [
            ("sip:dest.example.test", Ok("dest.example.test")),
            ("SIP:Dest.Example.Test", Ok("dest.example.test")),
            ("sip:dest.example.test:5061;transport=tls", Ok("dest.example.test")),
            ("sip:alice@dest.example.test", Err("it names a user")),
            ("sip:alice:secret@dest.example.test", Err("it names a user")),
            ("sips:dest.example.test", Err("not of scheme sip")),
            ("https://dest.example.test", Err("not of scheme sip")),
            ("sip:192.0.2.7", Err("addresses don't count")),
            ("sip:[2001:db8::7]", Err("addresses don't count")),
            ("sip:*.example.test", Err("wildcards don't count")),
            ("sip:", Err("no domain name")),
            ("sip:dest.example.test%00.evil.test", Err("no domain name")),
        ] {
            assert_eq!(domain_of_uri(uri), want.map(str::to_owned), "{uri}");
        }
    }

    #[test]
    fn a_name_with_an_octet_that_no_host_name_has_is_no_name() {
        for text in ["", ".", "a..b", "dest.example.test\0.evil.test", "dest.example.test/evil", " a"] {
            assert_eq!(domain(text), Err("no domain name"), "{text:?}");
        }
        assert_eq!(domain("Dest.example.test."), Ok("dest.example.test".to_owned()));
    }

    #[test]
    fn what_is_no_certificate_names_nobody() {
        assert_eq!(Presented::read(b""), None);
        assert_eq!(Presented::read(&[0x30, 0x82, 0xff, 0xff, 0]), None);
    }
}
