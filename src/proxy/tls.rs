//! Whom a TLS server must prove to be, and what a dialog remembers of it (RFC 5922 §7.3, rules 5 and 8).

use std::net::IpAddr;
use std::sync::Arc;

use crate::flow::{Host, TlsExpectation, TlsIdentity};
use crate::peering::Party;

use super::Leg;
use super::dialog::Names;
use super::policy::Policy;

/// What is expected of a server of `party`, found for `host`: never the name that the DNS led to.
///
/// The host is asked for by its name, and that name will do; so will the party's `tls_names`, and the name
/// that the server of this dialog had at first (`remembered`). An address can prove nothing, so there the
/// name of the dialog stands for it, or without one any of the party's names.
pub fn expectation(policy: &Policy, party: Party, host: &Host, remembered: Option<&str>) -> TlsExpectation {
    let configured = policy.accepted_names(party);
    let peer = party.peer();
    let with = |names: &[&str]| -> Arc<[String]> {
        configured.iter().cloned().chain(names.iter().map(|n| (*n).to_owned())).collect()
    };
    match (host, remembered) {
        (Host::Name(name), Some(first)) if **name != *first => {
            TlsExpectation { server_name: Arc::clone(name), accepted: with(&[name, first]), peer }
        }
        (Host::Name(name), _) => {
            TlsExpectation { server_name: Arc::clone(name), accepted: with(&[name]), peer }
        }
        (Host::Addr(_), Some(first)) => {
            TlsExpectation { server_name: first.into(), accepted: with(&[first]), peer }
        }
        (Host::Addr(addr), None) => {
            let names = policy.names(party);
            let server_name = names.first().map_or_else(|| addr.to_string().into(), |n| n.as_str().into());
            TlsExpectation { server_name, accepted: names, peer }
        }
    }
}

/// Whether requests are served that come back on a connection made to a server of `party`: whichever of the
/// accepted names it proves, it is that party then. Only in that case may our Via offer it (RFC 5923 §4).
pub fn takes_back(policy: &Policy, party: Party, wanted: &TlsExpectation) -> bool {
    let is_known = |name: &String| match policy.tls_names.get(name.as_str()) {
        Some(known) => *known == party,
        None => party == Party::Federation && policy.config.federation_open,
    };
    !wanted.accepted.is_empty() && wanted.accepted.iter().all(is_known)
}

/// What the token of a dialog is to say of the two sides: what it said before, else what is known now.
///
/// `sender`: the verified identity of who sent the request; `far`: what is expected of the next hop.
pub fn dialog_names<'a>(
    policy: &Policy,
    from: Party,
    sender: Option<&'a TlsIdentity>,
    leg: &'a Leg,
    far: Option<&'a TlsExpectation>,
) -> Names<'a> {
    let theirs = far.and_then(|tls| {
        let asked = Some(tls.server_name.as_ref()).filter(|n| n.parse::<IpAddr>().is_err());
        leg.tls_name().or(asked)
    });
    let senders = leg.sender_name().or_else(|| sender.and_then(|s| policy.name_of(from, s)));
    match leg.party {
        Party::Core => Names { peer: senders, core: theirs },
        _ => Names { peer: theirs, core: senders },
    }
}
