//! While another process takes over: which datagrams still belong here.
//!
//! Both processes send by the same sockets, and this one reads them until its last transaction has ended. What
//! matches none of its transactions is the other's: new requests, those within dialogs, answers to branches
//! that the other has made. Connections are not shared, so all that comes by one belongs here.

use bytes::Bytes;

use crate::flow::{Origin, Transport};
use crate::transaction::{Branch, ServerKey};
use crate::wire::{Message, Method};

use super::io::Passed;
use super::requests::key_parts;
use super::{Handle, Output, Shard};

impl Shard {
    /// Passes on what belongs to nothing here; false: it does.
    pub(super) fn pass_on(&mut self, origin: &Origin, msg: &Message<'_>) -> bool {
        if origin.transport != Transport::Udp || self.knows(msg) {
            return false;
        }
        self.core.outputs.push_back(Output::Pass(Box::new(Passed {
            listener: origin.listener,
            remote: origin.remote,
            local: origin.local,
            bytes: Bytes::copy_from_slice(msg.bytes),
        })));
        true
    }

    /// A repeated request, the ACK or the CANCEL for one, or the answer to one of ours.
    fn knows(&self, msg: &Message<'_>) -> bool {
        let Some(via) = msg.top_via() else { return false };
        if !msg.is_request() {
            let Some(parts) = via.branch().and_then(Branch::parse) else { return false };
            let handle = Handle { slot: parts.slot, generation: parts.generation };
            return parts.shard == self.core.id
                && self.slots.peek(handle).is_some_and(|c| c.attempts.iter().any(|a| a.is_branch(&parts)));
        }
        let parts = key_parts(msg, &via);
        if self.by_key.contains_key(&ServerKey::of(&self.core.keys, &parts)) {
            return true;
        }
        msg.method() == Method::Cancel
            && self.by_key.contains_key(&ServerKey::of_cancelled_invite(&self.core.keys, &parts))
    }
}
