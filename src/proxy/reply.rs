//! Where responses go (RFC 3261 §18.2.2, RFC 3581 §4, RFC 3263 §5), and where they never do.
//!
//! The way back has three parts, each taken when the one before has failed: the connection that the request
//! came on, or the address that it came from; over streams a new connection to that address and the port of
//! sent-by; then the servers of the sent-by domain in the DNS. The last part lets the sender of a request name
//! others as receivers, so it is for the core and for peers only, and only to where the sender itself could be:
//! - the sent-by domain is one of the peer's `domains`, `tls_names` or its `next_hop`, or one of the core's
//!   `tls_names` or `next_hops`; or the certificate shown on the request's connection holds it;
//! - or else the address found lies in the `sources` of that very party.
//!
//! Over TLS the server must also prove to be who sent the request.

use std::net::SocketAddr;
use std::sync::Arc;

use crate::config::NextHop;
use crate::flow::{ConnId, Hop, ListenerId, TlsExpectation, TlsIdentity, Transport};
use crate::location::LocateKey;
use crate::peering::{Owner, Party};
use crate::wire::{HostRef, ViaRef};

use super::policy::Policy;
use super::route::realm_of;

/// Where responses go first, and what is needed to find other ways.
#[derive(Clone, Debug)]
pub struct ReplyPath {
    /// By the transport that the request came by.
    pub transport: Transport,
    /// From the listener that it came to.
    pub listener: ListenerId,
    /// UDP: where to; streams: the other end of the connection.
    pub to: SocketAddr,
    /// The connection that it came on.
    pub conn: Option<ConnId>,
    /// Streams: where a new connection goes when that one is dead: the source address with the sent-by port.
    pub fallback: SocketAddr,
    /// TLS: whom the sender's certificate names.
    pub identity: Option<Arc<TlsIdentity>>,
    /// The way taken since the first one failed.
    pub detour: Option<Box<Hop>>,
}

impl ReplyPath {
    /// The hop that this path stands for now.
    pub fn hop(&self) -> Hop {
        match &self.detour {
            Some(hop) => Hop::clone(hop),
            None => self.hop_to(self.to, self.conn, None),
        }
    }

    /// A hop of this path's transport to another place.
    pub fn hop_to(&self, remote: SocketAddr, conn: Option<ConnId>, tls: Option<Arc<TlsExpectation>>) -> Hop {
        Hop { transport: self.transport, listener: self.listener, remote, conn, fresh: false, tls }
    }
}

/// A sent-by as the way back needs it.
#[derive(Clone, Copy, Debug)]
pub struct SentBy<'a> {
    /// Its host.
    pub host: HostRef<'a>,
    /// Its port, if one is written.
    pub port: Option<u16>,
}

impl<'a> SentBy<'a> {
    /// That of a Via.
    pub fn of(via: &ViaRef<'a>) -> Self {
        Self { host: via.host(), port: via.port() }
    }

    /// What to locate for the third part of the way (RFC 3263 §5): SRV of the domain for the transport that the
    /// request came by, its address where a port is written. `None` for an address, which the second part was for.
    pub fn locate_key(&self, transport: Transport, party: Party) -> Option<LocateKey> {
        matches!(self.host, HostRef::Name(_)).then(|| LocateKey {
            host: self.host.to_host(),
            port: self.port,
            transport: Some(transport),
            sips: false,
            realm: realm_of(party),
        })
    }

    /// Whether the name of the sent-by is the sender's own.
    pub fn belongs_to(&self, policy: &Policy, party: Party, identity: Option<&TlsIdentity>) -> bool {
        let HostRef::Name(_) = self.host else { return false };
        let name = self.host.to_host().to_string();
        let is = |n: &String| n.eq_ignore_ascii_case(&name);
        if identity.is_some_and(|i| i.names.iter().any(is)) {
            return true;
        }
        let next_hop = |hop: &NextHop| self.host.eq_host(&hop.host);
        if policy.names(party).iter().any(is) {
            return true;
        }
        match party {
            Party::Core => policy.config.core.next_hops.iter().any(next_hop),
            Party::Peer(p) => {
                policy.domains.owner(&self.host, self.port.unwrap_or(0)) == Owner::Peer(p)
                    || policy.peer(p).is_some_and(|p| p.config.next_hop.as_ref().is_some_and(next_hop))
            }
            Party::Federation | Party::Stranger => false,
        }
    }
}

/// Whom a TLS server must prove to be that is to get a response: the sender, as its certificate named it; one
/// that showed none, by the name in its sent-by. `None`: there is no name that it could prove.
pub fn reply_expectation(
    policy: &Policy,
    party: Party,
    identity: Option<&TlsIdentity>,
    sent_by: &SentBy<'_>,
) -> Option<TlsExpectation> {
    let written = matches!(sent_by.host, HostRef::Name(_)).then(|| sent_by.host.to_host().to_string());
    let known: &[String] = identity.map_or(&[], |i| &i.names);
    let mut accepted: Vec<String> = known.to_vec();
    if known.is_empty() {
        accepted.extend(written.clone());
    } else {
        accepted.extend(policy.accepted_names(party).iter().cloned());
    }
    let server_name = written.or_else(|| accepted.first().cloned())?;
    Some(TlsExpectation { server_name: server_name.into(), accepted: accepted.into(), peer: party.peer() })
}
