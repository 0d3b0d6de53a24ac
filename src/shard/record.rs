//! What a decision record keeps of a request: the few of its words that are shown.

use std::time::Instant;

use crate::flow::Origin;
use crate::peering::Party;
use crate::proxy::Plan;
use crate::proxy::decision::{LegRecord, Record};
use crate::wire::{Message, Name};

/// Of requests up to this long the words are kept whole.
const WHOLE: usize = 2_048;
/// Longest Call-ID, method or URI that is kept of a longer one, octets; the rest is cut off.
const RECORD_WORD: usize = 512;

/// Begins the record of a request that has just come. `record` is an empty one.
pub(super) fn begin(
    record: &mut Record,
    now: Instant,
    origin: &Origin,
    msg: &Message<'_>,
    party: Party,
    plan: &Plan,
) {
    let most = if msg.bytes.len() > WHOLE { RECORD_WORD } else { WHOLE };
    let caller = msg.header(Name::From).map_or(&b""[..], |f| f.value);
    let [call_id, method, uri, caller] =
        [msg.call_id(), msg.method_bytes(), msg.uri(), caller].map(|word| word.get(..most).unwrap_or(word));
    record.words.set(call_id, method, uri, caller);
    record.from = party;
    record.identity.clone_from(&origin.identity);
    record.remote = origin.remote;
    record.transport = origin.transport;
    record.rule = plan.rule;
    record.started = now;
    for leg in &plan.legs {
        let uri = leg.uri.as_deref().or(plan.routing.uri.as_deref());
        record.legs.push(LegRecord {
            uri: uri.map(|uri| Box::from(uri.get(..RECORD_WORD).unwrap_or(uri))),
            party: leg.party,
            located: None,
            asked: None,
            answered: None,
            standings: Box::default(),
        });
    }
}
