//! What a decision record keeps of a request: its words within the shared copy, not copies of them.

use std::time::Instant;

use bytes::Bytes;
use smallvec::SmallVec;

use crate::flow::Origin;
use crate::peering::Party;
use crate::proxy::Plan;
use crate::proxy::decision::{LegRecord, Record};
use crate::wire::{Message, Name};

/// Requests up to this long are kept by their record as they are; of larger ones it copies what it needs.
const RECORD_SHARES: usize = 2_048;
/// Longest Call-ID, method or URI that is copied, octets; the rest is cut off.
const RECORD_WORD: usize = 512;

/// The record of a request that has just come.
pub(super) fn record_of(
    now: Instant,
    origin: &Origin,
    msg: &Message<'_>,
    request: &Bytes,
    party: Party,
    plan: &Plan,
) -> Record {
    let part = |of: &[u8]| -> Bytes {
        if request.len() > RECORD_SHARES {
            // A record must not keep a large request alive for its few words.
            return Bytes::copy_from_slice(of.get(..RECORD_WORD).unwrap_or(of));
        }
        // The same octets within the shared copy of the request.
        let start = (of.as_ptr() as usize).wrapping_sub(msg.bytes.as_ptr() as usize);
        match start.checked_add(of.len()) {
            Some(end) if end <= request.len() => request.slice(start..end),
            _ => Bytes::copy_from_slice(of),
        }
    };
    Record {
        call_id: part(msg.call_id()),
        method: part(msg.method_bytes()),
        uri: part(msg.uri()),
        caller: msg.header(Name::From).map_or_else(Bytes::new, |f| part(f.value)),
        from: party,
        identity: origin.identity.clone(),
        remote: origin.remote,
        transport: origin.transport,
        rule: plan.rule,
        started: now,
        legs: plan
            .legs
            .iter()
            .map(|l| LegRecord {
                uri: l.uri.as_ref().or(plan.routing.uri.as_ref()).map(|uri| match uri.get(..RECORD_WORD) {
                    Some(cut) => Bytes::copy_from_slice(cut),
                    None => uri.clone(),
                }),
                party: l.party,
                located: None,
                asked: None,
                answered: None,
                standings: Vec::new(),
            })
            .collect(),
        attempts: SmallVec::new(),
        status: 0,
        reason: "",
        ended: None,
        cancelled: false,
    }
}
