//! Which messages a capture takes: all of a call, once one of them has shown what was asked for.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ahash::{AHashMap, RandomState};

use crate::flow::PeerId;
use crate::wire::{Message, Name};

use super::super::tap::Copy;

/// Calls that a capture remembers; beyond, the oldest is forgotten.
const MAX_CALLS: usize = 20_000;
/// Octets, messages and time that what nobody wants yet is held: a message to come may show whose call it is.
const HELD_OCTETS: usize = 8 << 20;
const HELD: usize = 20_000;
const HELD_TIME: Duration = Duration::from_secs(32);

/// What a capture is about. All that is given must have been seen in a call.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Filter {
    /// Messages from or to this peer.
    pub peer: Option<PeerId>,
    /// A part of the Request-URI or of the addresses in From, To or P-Asserted-Identity, in lower case.
    pub user: Option<Box<[u8]>>,
    /// The Call-ID, whole.
    pub call_id: Option<Box<[u8]>>,
}

const PEER: u8 = 1;
const USER: u8 = 2;
const CALL_ID: u8 = 4;

impl Filter {
    /// Everything is wanted.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    fn wanted(&self) -> u8 {
        let bit = |given: bool, bit: u8| if given { bit } else { 0 };
        bit(self.peer.is_some(), PEER) | bit(self.user.is_some(), USER) | bit(self.call_id.is_some(), CALL_ID)
    }

    /// What of it this message shows.
    fn shown(&self, looked: &Looked, msg: Option<&Message<'_>>) -> u8 {
        let mut shown = 0;
        if self.peer.is_some() && self.peer == looked.peer {
            shown |= PEER;
        }
        let Some(msg) = msg else { return shown };
        if let Some(user) = &self.user
            && names(msg, user)
        {
            shown |= USER;
        }
        if self.call_id.as_deref().is_some_and(|id| id == msg.call_id()) {
            shown |= CALL_ID;
        }
        shown
    }
}

/// Whether one of the addresses in a message has this part.
fn names(msg: &Message<'_>, user: &[u8]) -> bool {
    (msg.is_request() && contains(msg.uri(), user))
        || [Name::From, Name::To]
            .into_iter()
            .any(|name| msg.header(name).is_some_and(|f| contains(f.value, user)))
        || msg.named(b"P-Asserted-Identity").any(|f| contains(f.value, user))
}

/// `needle` is lower case.
fn contains(text: &[u8], needle: &[u8]) -> bool {
    let same = |window: &[u8]| window.iter().zip(needle).all(|(a, b)| a.to_ascii_lowercase() == *b);
    needle.is_empty() || text.windows(needle.len()).any(same)
}

/// What has been found out about a message, once for all captures.
#[derive(Clone, Copy, Debug)]
pub(super) struct Looked {
    /// A keyed hash of its Call-ID; `None`: it has none that could be read.
    pub(super) call: Option<u64>,
    /// Whom it came from or went to.
    pub(super) peer: Option<PeerId>,
}

/// The calls of a capture.
#[derive(Debug, Default)]
pub(super) struct Calls {
    seen: AHashMap<u64, u8>,
    /// Oldest first.
    order: VecDeque<u64>,
}

/// What to do with a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// It is wanted.
    Take,
    /// It is the first of its call that is; those before it that were held are wanted too.
    Begin,
    /// Not yet, or never.
    Leave,
}

impl Calls {
    /// Judges one message.
    pub(super) fn judge(&mut self, filter: &Filter, looked: &Looked, msg: Option<&Message<'_>>) -> Verdict {
        let wanted = filter.wanted();
        if wanted == 0 {
            return Verdict::Take;
        }
        let Some(call) = looked.call else {
            return if filter.shown(looked, msg) == wanted { Verdict::Take } else { Verdict::Leave };
        };
        let before = self.seen.get(&call).copied().unwrap_or(0);
        if before == wanted {
            return Verdict::Take;
        }
        let now = before | filter.shown(looked, msg);
        if now == before {
            return Verdict::Leave;
        }
        if self.seen.insert(call, now).is_none() {
            self.order.push_back(call);
            if self.order.len() > MAX_CALLS
                && let Some(oldest) = self.order.pop_front()
            {
                self.seen.remove(&oldest);
            }
        }
        if now == wanted { Verdict::Begin } else { Verdict::Leave }
    }
}

/// Messages that some capture does not want yet.
#[derive(Debug, Default)]
pub(super) struct Held {
    copies: VecDeque<(u64, Arc<Copy>)>,
    octets: usize,
}

impl Held {
    /// Keeps one for a while.
    pub(super) fn push(&mut self, call: u64, copy: Arc<Copy>) {
        self.octets += copy.bytes.len();
        self.copies.push_back((call, copy));
        while self.octets > HELD_OCTETS || self.copies.len() > HELD {
            self.pop();
        }
    }

    fn pop(&mut self) {
        if let Some((_, copy)) = self.copies.pop_front() {
            self.octets -= copy.bytes.len();
        }
    }

    /// Forgets what is too old.
    pub(super) fn expire(&mut self, now: Instant) {
        while self.copies.front().is_some_and(|(_, c)| now.saturating_duration_since(c.at) > HELD_TIME) {
            self.pop();
        }
    }

    /// Those of one call, oldest first.
    pub(super) fn of(&self, call: u64) -> impl Iterator<Item = &Arc<Copy>> {
        self.copies.iter().filter(move |(c, _)| *c == call).map(|(_, copy)| copy)
    }
}

/// The sequence numbers of the streams in one capture.
#[derive(Debug, Default)]
pub(super) struct Streams(AHashMap<(SocketAddr, SocketAddr), u32>);

impl Streams {
    /// Those of a message of so many octets: its own and the other direction's.
    pub(super) fn advance(&mut self, source: SocketAddr, target: SocketAddr, octets: usize) -> (u32, u32) {
        if self.0.len() > MAX_CALLS {
            self.0.clear();
        }
        let back = self.0.get(&(target, source)).copied().unwrap_or(1);
        let next = self.0.entry((source, target)).or_insert(1);
        let sequence = *next;
        *next = next.wrapping_add(u32::try_from(octets).unwrap_or(0));
        (sequence, back)
    }
}

/// The hash of a Call-ID.
pub(super) fn call_of(keys: &RandomState, msg: &Message<'_>) -> Option<u64> {
    Some(msg.call_id()).filter(|id| !id.is_empty()).map(|id| keys.hash_one(id))
}
