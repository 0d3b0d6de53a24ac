//! From a URI to what is to be located: the TARGET of RFC 3263 §4 and its preconditions.

use std::fmt;

use crate::config::{NextHop, Realm};
use crate::flow::{Host, Transport};

/// The parts of a SIP or SIPS URI that matter for locating, already parsed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TargetUri {
    /// `sips:`
    pub sips: bool,
    /// The host part.
    pub host: Host,
    /// The port, if written.
    pub port: Option<u16>,
    /// The `transport` parameter, if written.
    pub transport: Option<TransportParam>,
    /// The `maddr` parameter, if written.
    pub maddr: Option<Host>,
}

/// A `transport` parameter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TransportParam {
    /// One that this element speaks.
    Known(Transport),
    /// Any other (`sctp`, `ws`, …).
    Other,
}

impl TransportParam {
    /// From the parameter's value, in any case.
    pub fn from_token(token: &[u8]) -> Self {
        Transport::from_token(token).map_or(Self::Other, Self::Known)
    }
}

impl From<&NextHop> for TargetUri {
    fn from(hop: &NextHop) -> Self {
        Self {
            sips: hop.sips,
            host: hop.host.clone(),
            port: hop.port,
            transport: hop.transport.map(TransportParam::Known),
            maddr: None,
        }
    }
}

/// What is to be located; equal keys give equal results, so this is a cache key too.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct LocateKey {
    /// TARGET: `maddr` if there was one, else the host part.
    pub host: Host,
    /// The port, if written.
    pub port: Option<u16>,
    /// The transport, if written. `None` with `sips`: any transport under TLS.
    pub transport: Option<Transport>,
    /// Nothing but TLS will do (rule 15).
    pub sips: bool,
    /// From whose side we send, which decides the listeners and so the transports (rules 2 and 6).
    pub realm: Realm,
}

impl fmt::Display for LocateKey {
    /// As a URI.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", if self.sips { "sips" } else { "sip" }, self.host)?;
        if let Some(port) = self.port {
            write!(f, ":{port}")?;
        }
        if let Some(transport) = self.transport {
            write!(f, ";transport={transport}")?;
        }
        Ok(())
    }
}

/// Why a URI cannot be located at all.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TargetError {
    /// The `transport` parameter names what we do not speak.
    #[error("the transport of the URI is not supported")]
    UnsupportedTransport,
    /// SIPS over a datagram transport (RFC 3261 §26.2.2).
    #[error("a sips URI cannot be reached over UDP")]
    SipsOverUdp,
}

impl TargetError {
    /// The SIP status it leads to.
    pub const fn status(self) -> u16 {
        480
    }
}

/// The key for a URI seen from `realm` (RFC 3263 §4; RFC 3261 §19.1.1 for `maddr`).
///
/// # Errors
/// When no transport of ours can satisfy the URI, whatever the DNS says.
#[inline]
pub fn target_of(uri: TargetUri, realm: Realm) -> Result<LocateKey, TargetError> {
    let transport = match uri.transport {
        None => None,
        Some(TransportParam::Other) => return Err(TargetError::UnsupportedTransport),
        Some(TransportParam::Known(Transport::Udp)) if uri.sips => {
            return Err(TargetError::SipsOverUdp);
        }
        Some(TransportParam::Known(_)) if uri.sips => Some(Transport::Tls),
        Some(TransportParam::Known(t)) => Some(t),
    };
    let host = match uri.maddr.unwrap_or(uri.host) {
        Host::Addr(a) => Host::Addr(a.to_canonical()),
        name @ Host::Name(_) => name,
    };
    Ok(LocateKey { host, port: uri.port, transport, sips: uri.sips, realm })
}
