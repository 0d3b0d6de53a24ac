//! `[node]`, `[[listen]]` and `[tls]`: who we are, and where we are reached.

use std::net::SocketAddr;
use std::path::PathBuf;

use super::check::{MOST_TABLES, Spots, split};
use super::error::{Fault, Report, alternatives};
use super::raw::{self, Section};
use super::{ClientCertificates, Listen, Node, Realm, Tls, names};
use crate::flow::{Host, Transport};

/// `[node]`
pub(super) fn node(report: &mut Report<'_>, root: &Section<'_>, spots: &mut Spots) -> Node {
    let section = root.table(report, "node", &raw::NODE);
    let name = if section.is_present() {
        section.required(
            report,
            "name",
            "\"sbe1.example.com\", the host that peers see in Via and Record-Route",
            names::host,
        )
    } else {
        if !root.has("node") {
            report.error(0, "[node] is missing", "add [node] with name = \"sbe1.example.com\"");
        }
        None
    };
    let domains = section.list(report, "domains", |text| match text.strip_prefix("*.") {
        Some(_) => {
            Err(Fault::new(format!("\"{text}\" is a wildcard, own domains are exact"), "list each domain"))
        }
        None => names::host(text),
    });
    let (domains, places) = split(domains.unwrap_or_default());
    spots.node_domains = places;
    Node { name: name.map_or_else(|| Host::Name("invalid".into()), |n| n.value), domains }
}

/// Transports as they are written.
pub(super) const TRANSPORTS: [(&str, Transport); 3] =
    [("udp", Transport::Udp), ("tcp", Transport::Tcp), ("tls", Transport::Tls)];

/// `[[listen]]`, in file order.
pub(super) fn listeners(report: &mut Report<'_>, root: &Section<'_>, spots: &mut Spots) -> Vec<Listen> {
    let sections = root.tables(report, "listen", &raw::LISTEN);
    if sections.is_empty() && !root.has("listen") {
        let example = "add one, such as [[listen]] with transport = \"udp\" and bind = \"192.0.2.10:5060\"";
        report.error(0, "there is no [[listen]]", example);
    }
    if sections.len() > MOST_TABLES {
        report.error(
            0,
            format!("there are {} listeners", sections.len()),
            format!("write at most {MOST_TABLES}"),
        );
    }
    let mut listen: Vec<Listen> = Vec::new();
    for section in &sections {
        let transport =
            section.required(report, "transport", &alternatives(TRANSPORTS.map(|t| t.0)), |text| {
                raw::word("transport", &TRANSPORTS, text)
            });
        let bind = section.required(report, "bind", "\"192.0.2.10:5060\", address and port", names::socket);
        let realm =
            section.word(report, "realm", &[("peering", Realm::Peering), ("core", Realm::Core)], Realm::Both);
        let advertise = section.parsed(report, "advertise", |text| match names::host_port(text)? {
            (Host::Addr(a), _) if a.is_unspecified() => Err(Fault::new(
                format!("nobody can answer to \"{text}\""),
                "advertise an address or a name that others can reach",
            )),
            other => Ok(other),
        });
        let (Some(transport), Some(bind)) = (transport, bind) else {
            continue;
        };
        let (transport, bind_at, bind) = (transport.value, bind.at, bind.value);
        if bind.ip().is_multicast() {
            report.error(
                bind_at,
                format!("bind = \"{bind}\" is a multicast address"),
                "write an address of this machine",
            );
        }
        if bind.ip().is_unspecified() && !section.has("advertise") {
            let what = format!(
                "bind = \"{bind}\" takes every address, so nobody can be told which one to answer to"
            );
            report.error(
                bind_at,
                what,
                "add advertise = \"…\" with a name or an address of this listener, or bind to one address",
            );
        } else if bind.port() == 0 {
            report.warn(
                bind_at,
                "port 0 is another port at every start",
                format!("write one, usually {}", transport.default_port()),
            );
        } else if bind.port() != transport.default_port() && !section.has("advertise") {
            let what = format!(
                "{transport} on port {} instead of {}: Via will say name:port",
                bind.port(),
                transport.default_port()
            );
            report.warn(
                bind_at,
                what,
                "add advertise = \"host:port\" if others reach this listener by another name or port",
            );
        }
        if let Some(other) = listen.iter().find(|other| collide(other, transport, bind)) {
            let what = format!("{transport} on {bind} collides with {} on {}", other.transport, other.bind);
            report.error(
                bind_at,
                what,
                "give each listener an address and port of its own (TCP and TLS share theirs)",
            );
        }
        listen.push(Listen { transport, bind, realm, advertise: advertise.map(|a| a.value) });
        spots.listen.push(section.at);
        spots.binds.push(bind_at);
    }
    listen
}

/// Two sockets that cannot both be bound.
fn collide(other: &Listen, transport: Transport, bind: SocketAddr) -> bool {
    let same_kind = other.transport.is_reliable() == transport.is_reliable();
    let (a, b) = (other.bind.ip(), bind.ip());
    let same_address = a == b || (a.is_ipv4() == b.is_ipv4() && (a.is_unspecified() || b.is_unspecified()));
    same_kind && same_address && other.bind.port() == bind.port() && bind.port() != 0
}

/// A path that is read at start.
pub(super) fn path(text: &str) -> Result<PathBuf, Fault> {
    if text.is_empty() {
        Err(Fault::new("the path is empty", "write the path of a PEM file"))
    } else {
        Ok(PathBuf::from(text))
    }
}

/// `[tls]`; needed if there is a tls listener.
pub(super) fn tls(
    report: &mut Report<'_>,
    root: &Section<'_>,
    listen: &[Listen],
    spots: &Spots,
) -> Option<Tls> {
    let listener = listen.iter().position(|l| l.transport == Transport::Tls);
    let section = root.table(report, "tls", &raw::TLS);
    if !section.is_present() {
        if let Some(at) = listener.and_then(|i| spots.listen.get(i)).filter(|_| !root.has("tls")) {
            report.error(*at, "a tls listener without [tls]", "add [tls] with certificate, key and trust");
        }
        return None;
    }
    if listener.is_none() && spots.listeners_sound {
        let remedy =
            "add a [[listen]] with transport = \"tls\"; without one, TLS is used in neither direction";
        report.warn(section.at, "[tls] without a tls listener", remedy);
    }
    let certificate = section.required(report, "certificate", "\"certs/sbe.pem\"", path);
    let key = section.required(report, "key", "\"certs/sbe.key\"", path);
    // Either one word or a list of files.
    let is_list = section.has("trust") && !section.is_string("trust");
    let trust = if is_list {
        let list = section.list(report, "trust", path);
        if list.as_ref().is_some_and(Vec::is_empty) && section.is_empty_list("trust") {
            let what = "trust = [] trusts nobody, so no certificate could be verified";
            report.error(section.place("trust"), what, "list PEM files, or write trust = \"system\"");
        }
        list.unwrap_or_default()
    } else {
        section.parsed(report, "trust", |text| match text {
            "system" => Ok(()),
            _ => Err(Fault::new(
                format!("trust cannot be \"{text}\""),
                format!("write a list of PEM files, trust = [\"{text}\"], or trust = \"system\""),
            )),
        });
        Vec::new()
    };
    let crl = section.list(report, "crl", path).unwrap_or_default();
    for file in certificate.iter().chain(&key).chain(&trust).chain(&crl) {
        report.reads(file);
    }
    let words = [
        ("require", ClientCertificates::Require),
        ("request", ClientCertificates::Request),
        ("none", ClientCertificates::None),
    ];
    Some(Tls {
        certificate: certificate.map(|c| c.value).unwrap_or_default(),
        key: key.map(|k| k.value).unwrap_or_default(),
        trust: split(trust).0,
        system_trust: !is_list,
        crl: split(crl).0,
        client_certificates: section.word(report, "client_certificates", &words, ClientCertificates::Require),
    })
}
