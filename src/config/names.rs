//! Hosts, domains, addresses and next hops as the configuration writes them.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;

use ipnet::IpNet;

use super::error::{Fault, alternatives};
use super::{DomainPattern, NextHop};
use crate::flow::{Host, Transport};

/// A domain name or an address literal, an IPv6 address in brackets.
pub(super) fn host(text: &str) -> Result<Host, Fault> {
    if let Some(inner) = text.strip_prefix('[') {
        let addr = inner.strip_suffix(']').and_then(|a| a.parse::<Ipv6Addr>().ok());
        return addr.map(|a| Host::Addr(IpAddr::V6(a))).ok_or_else(|| {
            Fault::new(
                format!("\"{text}\" is not an IPv6 address in brackets"),
                "write it like \"[2001:db8::7]\"",
            )
        });
    }
    if let Ok(addr) = text.parse::<Ipv6Addr>() {
        return Err(Fault::new(
            format!("\"{text}\" is an IPv6 address without brackets"),
            format!("write \"[{addr}]\""),
        ));
    }
    if let Ok(addr) = text.parse::<Ipv4Addr>() {
        return Ok(Host::Addr(IpAddr::V4(addr)));
    }
    domain_name(text).map(|name| Host::Name(name.into()))
}

/// A domain name, lower-cased and without its final dot.
///
/// Wider than RFC 3261 §25.1 `hostname` by the underscore, which hosts inside a provider's own network do have.
pub(super) fn domain_name(text: &str) -> Result<String, Fault> {
    let wrong =
        |why: &str, remedy: &str| Fault::new(format!("\"{text}\" is not a domain name: {why}"), remedy);
    if !text.is_ascii() {
        return Err(wrong(
            "it has characters outside ASCII",
            "write internationalised names in their ASCII form (xn--…)",
        ));
    }
    let name = text.strip_suffix('.').unwrap_or(text).to_ascii_lowercase();
    if name.is_empty() {
        return Err(wrong("it is empty", "write a name such as \"example.com\""));
    }
    if name.contains("://") || name.starts_with("sip:") || name.starts_with("sips:") {
        return Err(wrong("it is a URI", "write the host alone, such as \"example.com\""));
    }
    if name.contains('*') {
        return Err(wrong("a wildcard has no place here", "name each host"));
    }
    if let Some((_, port)) = name.rsplit_once(':')
        && port.bytes().all(|b| b.is_ascii_digit())
    {
        return Err(wrong("it has a port", "write the host without a port"));
    }
    if name.len() > 253 {
        return Err(wrong("it is longer than 253 characters", "write a shorter one"));
    }
    for label in name.split('.') {
        if label.is_empty() || label.len() > 63 {
            return Err(wrong("each label has 1 to 63 characters", "write a name such as \"example.com\""));
        }
        if let Some(bad) = label.chars().find(|c| !c.is_ascii_alphanumeric() && !matches!(c, '-' | '_')) {
            return Err(wrong(&format!("'{bad}' is not allowed"), "use letters, digits and hyphens only"));
        }
        if label.starts_with('-') || label.ends_with('-') {
            return Err(wrong(
                "a label begins or ends with a hyphen",
                "write a name such as \"example.com\"",
            ));
        }
    }
    // Else "192.0.2.300" or "10.0.0" would be looked up as names.
    if name.rsplit('.').next().is_some_and(|last| last.bytes().all(|b| b.is_ascii_digit())) {
        return Err(wrong(
            "its last label is a number, and it is no IPv4 address",
            "write four numbers from 0 to 255, or a name",
        ));
    }
    Ok(name)
}

/// An entry of a peer's `domains`: a name, an address literal, or `*.` and a name.
pub(super) fn domain_pattern(text: &str) -> Result<DomainPattern, Fault> {
    if text == "*" {
        return Err(Fault::new(
            "\"*\" would give this peer every domain",
            "list its domains, or open the element to all with [federation] open = true",
        ));
    }
    let Some(below) = text.strip_prefix("*.") else {
        if text.contains('*') {
            return Err(Fault::new(
                format!("\"{text}\" has a wildcard in the middle"),
                "write it as the whole first label, such as \"*.example.com\"",
            ));
        }
        return host(text).map(DomainPattern::Exact);
    };
    match host(below)? {
        Host::Name(name) => Ok(DomainPattern::Below(name.to_string())),
        Host::Addr(_) => Err(Fault::new(
            format!("\"{text}\" puts a wildcard before an address"),
            "write the addresses one by one",
        )),
    }
}

/// `host`, `host:port`, `[v6]` or `[v6]:port`.
pub(super) fn host_port(text: &str) -> Result<(Host, Option<u16>), Fault> {
    // The colon of a port comes after the bracket, and stands alone outside of brackets.
    let after = text.rfind(']').unwrap_or(0);
    let tail = text.get(after..).unwrap_or_default();
    match tail.rfind(':') {
        Some(colon) if text.starts_with('[') || tail.matches(':').count() == 1 => {
            let (name, port) = text.split_at(after + colon);
            Ok((host(name)?, Some(port_number(port.trim_start_matches(':'), text)?)))
        }
        _ => Ok((host(text)?, None)),
    }
}

fn port_number(text: &str, whole: &str) -> Result<u16, Fault> {
    let digits = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    digits.then(|| text.parse::<u16>().ok()).flatten().filter(|p| *p != 0).ok_or_else(|| {
        Fault::new(format!("\"{whole}\" has no port after its colon"), "write a number from 1 to 65535")
    })
}

/// The address and port of a socket.
pub(super) fn socket(text: &str) -> Result<SocketAddr, Fault> {
    if let Ok(addr) = text.parse::<SocketAddr>() {
        return Ok(addr);
    }
    let example = match text.parse::<IpAddr>() {
        Ok(IpAddr::V4(a)) => format!("write the port too, such as \"{a}:5060\""),
        Ok(IpAddr::V6(a)) => {
            format!("write it in brackets and with the port, such as \"[{a}]:5060\"")
        }
        Err(_) => "write \"192.0.2.10:5060\" or \"[2001:db8::10]:5060\"".to_owned(),
    };
    Err(Fault::new(format!("\"{text}\" is not an address and port"), example))
}

/// A DNS server: an address, port 53 unless written.
pub(super) fn dns_server(text: &str) -> Result<SocketAddr, Fault> {
    let bare = text.strip_prefix('[').and_then(|t| t.strip_suffix(']')).unwrap_or(text);
    match (text.parse::<SocketAddr>(), bare.parse::<IpAddr>()) {
        (Ok(addr), _) if addr.port() != 0 => Ok(addr),
        (_, Ok(ip)) => Ok(SocketAddr::new(ip, 53)),
        _ => Err(Fault::new(
            format!("\"{text}\" is not the address of a DNS server"),
            "write an address, with a port unless it is 53: \"192.0.2.53\", \"[2001:db8::53]:5353\"",
        )),
    }
}

/// A prefix, or an address that stands for itself. Second: bits were set beyond the prefix (dropped here).
pub(super) fn prefix(text: &str) -> Result<(IpNet, bool), Fault> {
    if let Ok(addr) = text.parse::<IpAddr>() {
        return Ok((IpNet::from(addr), false));
    }
    let wrong = |remedy: String| Fault::new(format!("\"{text}\" is not a prefix"), remedy);
    let usual =
        || "write an address or a prefix, such as \"198.51.100.0/24\" or \"2001:db8::/32\"".to_owned();
    if let Some(inner) = text.strip_prefix('[') {
        let inner = inner.replace(']', "");
        return Err(wrong(
            inner
                .parse::<IpAddr>()
                .map_or_else(|_| usual(), |_| format!("write \"{inner}\" without brackets")),
        ));
    }
    let net: IpNet = text.parse().map_err(|_| wrong(usual()))?;
    Ok((net.trunc(), net.trunc() != net))
}

/// An entry of `sources`.
pub(super) enum Source {
    /// See [`prefix`].
    Prefix(IpNet, bool),
    /// `dns:` and a name: the addresses of its servers.
    Name(Host),
}

/// An entry of `sources`: a prefix, an address, or `dns:` and a name.
pub(super) fn source(text: &str) -> Result<Source, Fault> {
    match text.strip_prefix("dns:") {
        Some(name) => domain_name(name).map(|name| Source::Name(Host::Name(name.into()))),
        None => prefix(text).map(|(net, loose)| Source::Prefix(net, loose)),
    }
}

/// A name of a certificate.
pub(super) fn tls_name(text: &str) -> Result<String, Fault> {
    if text.starts_with("*.") {
        return Err(Fault::new(
            format!("\"{text}\" is a wildcard, which RFC 5922 §7.2 does not allow"),
            "name each host",
        ));
    }
    domain_name(text)
}

/// A next hop as a URI: `sip:` or `sips:`, host, port, and at most the parameters `transport` and `lr`.
pub(super) fn next_hop(text: &str) -> Result<NextHop, Fault> {
    let wrong = |why: &str, remedy: &str| Fault::new(format!("\"{text}\" is not a next hop: {why}"), remedy);
    let example = "write one like \"sip:transit.example.net;transport=tls\"";
    let (scheme, rest) = text.split_once(':').ok_or_else(|| wrong("the scheme is missing", example))?;
    let sips = match scheme.to_ascii_lowercase().as_str() {
        "sip" => false,
        "sips" => true,
        _ => {
            return Err(wrong("it does not begin with \"sip:\" or \"sips:\"", example));
        }
    };
    if rest.contains(['@', '?', '<', '>', ' ']) {
        return Err(wrong(
            "only host, port and transport count",
            "leave out user, header fields and brackets",
        ));
    }
    let mut parts = rest.split(';');
    let (host, port) = host_port(parts.next().unwrap_or_default())?;
    if matches!(&host, Host::Addr(a) if a.is_unspecified() || a.is_multicast()) {
        return Err(wrong("nobody can be reached at this address", "write the address of one host"));
    }
    let mut transport = None;
    for parameter in parts {
        let (name, value) = parameter.split_once('=').unwrap_or((parameter, ""));
        match name.to_ascii_lowercase().as_str() {
            "transport" if transport.is_none() => {
                transport = Some(Transport::from_token(value.as_bytes()).ok_or_else(|| {
                    wrong(
                        &format!("unknown transport \"{value}\""),
                        &format!("write {}", alternatives(Transport::ALL.map(Transport::param))),
                    )
                })?);
            }
            "transport" => return Err(wrong("it has two transports", "leave one")),
            "lr" => {}
            _ => {
                return Err(wrong(
                    &format!("unknown parameter \"{name}\""),
                    "only \"transport\" counts here",
                ));
            }
        }
    }
    if sips && transport == Some(Transport::Udp) {
        return Err(wrong("sips never goes over UDP", "write \"sip:\", or leave the transport out"));
    }
    Ok(NextHop { uri: text.to_owned(), sips, host, port, transport })
}

/// Header fields without which a message is none, or its dialog breaks.
const NEEDED: [&str; 10] = [
    "via",
    "from",
    "to",
    "call-id",
    "cseq",
    "max-forwards",
    "contact",
    "route",
    "record-route",
    "content-length",
];

/// Compact forms, so that a field is one and the same however the configuration spells it.
const COMPACT: [(&str, &str); 19] = [
    ("a", "accept-contact"),
    ("b", "referred-by"),
    ("c", "content-type"),
    ("d", "request-disposition"),
    ("e", "content-encoding"),
    ("f", "from"),
    ("i", "call-id"),
    ("j", "reject-contact"),
    ("k", "supported"),
    ("l", "content-length"),
    ("m", "contact"),
    ("n", "identity-info"),
    ("o", "event"),
    ("r", "refer-to"),
    ("s", "subject"),
    ("t", "to"),
    ("u", "allow-events"),
    ("v", "via"),
    ("x", "session-expires"),
];

/// The name of a header field that may be stripped, lower-cased and in its long form.
pub(super) fn strippable_header(text: &str) -> Result<String, Fault> {
    let token = |b: u8| b.is_ascii_alphanumeric() || b"-.!%*_+`'~".contains(&b);
    if text.is_empty() || !text.bytes().all(token) {
        return Err(Fault::new(
            format!("\"{text}\" is not the name of a header field"),
            "write the name alone, such as \"P-Asserted-Identity\"",
        ));
    }
    let name = text.to_ascii_lowercase();
    let name = match COMPACT.iter().find(|(short, _)| *short == name) {
        Some((_, long)) => (*long).to_owned(),
        None if name == "y" => "identity".to_owned(),
        None => name,
    };
    if NEEDED.contains(&name.as_str()) {
        return Err(Fault::new(
            format!("a message without {name} would not work"),
            "strip only what nobody needs to route the call",
        ));
    }
    Ok(name)
}

/// A peer's name: it becomes a label of metrics and part of addresses of the admin interface.
pub(super) fn peer_name(text: &str) -> Result<String, Fault> {
    let ok = |b: u8| b.is_ascii_alphanumeric() || b"-._".contains(&b);
    if text.is_empty() || text.len() > 64 || !text.bytes().all(ok) {
        return Err(Fault::new(
            format!("\"{text}\" cannot name a peer"),
            "use 1 to 64 letters, digits, hyphens, dots and underscores",
        ));
    }
    if text == "federation" {
        return Err(Fault::new(
            "\"federation\" is the name that strangers have under [federation]",
            "choose another name",
        ));
    }
    Ok(text.to_owned())
}

/// For comparing names of [`Host`]s with those of certificates.
pub(super) fn as_name(host: &Host) -> Option<&Arc<str>> {
    match host {
        Host::Name(name) => Some(name),
        Host::Addr(_) => None,
    }
}
