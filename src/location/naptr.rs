//! Which NAPTR records count for SIP, and in which order (RFC 3263 §4.1, RFC 3403 §4).

use std::sync::Arc;

use super::candidate::LeftOutReason;
use super::enabled::Enabled;
use super::question::{NaptrRecord, normal_name};
use super::resolve::{LeftOutList, MAX_NAPTR};
use super::target::LocateKey;
use crate::flow::Transport;

/// A usable NAPTR record: a transport, and where its SRV records are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Service {
    /// Order and preference.
    pub naptr: (u16, u16),
    /// The transport that its service names.
    pub transport: Transport,
    /// Where to ask for SRV.
    pub name: Arc<str>,
}

/// What a SERVICES field asks for, in any case (RFC 3403 §4.1, RFC 3263 §4.1).
pub(super) fn transport_of(service: &str) -> Result<Transport, LeftOutReason> {
    let is = |name: &str| service.eq_ignore_ascii_case(name);
    if is("SIP+D2U") {
        Ok(Transport::Udp)
    } else if is("SIP+D2T") {
        Ok(Transport::Tcp)
    } else if is("SIPS+D2T") {
        Ok(Transport::Tls)
    } else if ["SIP+D2S", "SIPS+D2S", "SIP+D2W", "SIPS+D2W"].into_iter().any(is) {
        // SCTP (RFC 4168) and WebSocket (RFC 7118): SIP, but not ours.
        Err(LeftOutReason::TransportNotEnabled)
    } else {
        Err(LeftOutReason::ForeignService)
    }
}

fn usable(record: &NaptrRecord, key: &LocateKey, enabled: &Enabled) -> Result<Service, LeftOutReason> {
    let transport = transport_of(&record.service)?;
    if key.sips && transport != Transport::Tls {
        return Err(LeftOutReason::NotSecure);
    }
    // SIPS leaves no choice, so our list of preferences has no say in it.
    let ours = if key.sips { enabled.has(transport) } else { enabled.discoverable().any(|t| t == transport) };
    if !ours {
        return Err(LeftOutReason::TransportNotEnabled);
    }
    if !record.flags.eq_ignore_ascii_case("s") {
        return Err(LeftOutReason::NotTerminal);
    }
    if !record.regexp.is_empty() {
        return Err(LeftOutReason::HasRegexp);
    }
    let name = normal_name(&record.replacement).ok_or(LeftOutReason::BadName)?;
    Ok(Service { naptr: (record.order, record.preference), transport, name })
}

/// The usable services, in the order of trying: the peer's order, then its preference, then ours.
/// Each later one is a fallback for those before.
pub(super) fn services(
    records: &[NaptrRecord],
    key: &LocateKey,
    enabled: &Enabled,
    left_out: &mut LeftOutList,
) -> Vec<Service> {
    let mut services: Vec<Service> = Vec::new();
    let mut sorted: Vec<&NaptrRecord> = records.iter().collect();
    sorted.sort_by_key(|r| (r.order, r.preference));
    for record in sorted {
        let outcome = match usable(record, key, enabled) {
            Ok(s) if services.iter().any(|o| o.transport == s.transport && o.name == s.name) => {
                Err(LeftOutReason::Duplicate)
            }
            Ok(_) if services.len() >= MAX_NAPTR => Err(LeftOutReason::OverLimit),
            other => other,
        };
        match outcome {
            Ok(service) => services.push(service),
            Err(reason) => left_out.push(reason, || record.describe()),
        }
    }
    services.sort_by_key(|s| (s.naptr, enabled.rank(s.transport)));
    services
}
