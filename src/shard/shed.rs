//! Refusing new requests under overload: as early and as cheaply as can be.
//!
//! No transaction, no decision record, no event, and nothing said against any instance: a count, a 503, and a memory
//! of it that keeps retransmissions quiet for a while.

use std::time::{Duration, Instant};

use rand::Rng;

use crate::flow::Origin;
use crate::peering::Party;
use crate::proxy::ReplyPath;
use crate::transaction::ServerKey;
use crate::wire::build::{ResponseOptions, response};
use crate::wire::{Message, Method, Name};

use super::overload::{Change, Class, State, Verdict};
use super::{Core, Event, Output, Send, Shard};

/// Begins the To tag of refusals: no tag of ours with digits alone looks like it.
const TAG: &[u8; 5] = b"sbe-o";

/// A To tag for the refusals of one shard. They share it (RFC 3261 §8.2.7 wants equal ones for equal
/// requests); by it their ACKs are known at a glance.
pub(super) fn shed_tag(rng: &mut impl Rng) -> [u8; 12] {
    let mut tag = [b'0'; 12];
    let mut bits = rng.next_u64();
    for (at, place) in tag.iter_mut().enumerate() {
        *place = match TAG.get(at) {
            Some(octet) => *octet,
            None => char::from_digit((bits & 15) as u32, 16).map_or(b'0', |c| c as u8),
        };
        if at >= TAG.len() {
            bits >>= 4;
        }
    }
    tag
}

impl Shard {
    /// How the overload governor stands.
    pub fn overload(&self, now: Instant) -> State {
        self.core.governor.state(now)
    }
}

impl Core {
    pub(super) fn waited(&mut self, now: Instant, delay: Duration, messages: u32) {
        if let Some(change) = self.governor.observe(now, delay, messages) {
            let begins = change == Change::Begins;
            let delay = self.governor.state(now).delay;
            self.outputs.push_back(Output::Event(Event::Overload { begins, delay }));
        }
    }

    /// Calls have been refused lately: ACKs to that are to come.
    pub(super) fn is_refusing(&self) -> bool {
        !self.silence.is_empty()
    }

    /// The ACK to a refusal of ours: seen before anything of it is read, mostly.
    pub(super) fn is_shed_ack(&self, bytes: &[u8]) -> bool {
        self.is_refusing() && bytes.starts_with(b"ACK ") && self.shed_ack.find(bytes).is_some()
    }

    /// Under overload, a new request: true if it is refused, or was a moment ago.
    pub(super) fn shed(
        &mut self,
        now: Instant,
        origin: &Origin,
        msg: &Message<'_>,
        party: Party,
        key: ServerKey,
        reply: &ReplyPath,
    ) -> bool {
        let class = match msg.method() {
            Method::Invite => Class::Call,
            Method::Options => Class::Probe,
            Method::Ack | Method::Cancel | Method::Bye => return false,
            _ => Class::Other,
        };
        // What cannot be read is told so, without a transaction either.
        if msg.to_tag().is_some() || msg.index.fault().is_some() {
            return false;
        }
        let keep = self.policy.config.overload.silence;
        if self.silence.contains(now, key, keep) {
            self.stats.drop("shed_again");
            return true;
        }
        if is_emergency(msg) {
            self.governor.exempt(party);
            return false;
        }
        if self.governor.offer(party, class) == Verdict::Admit {
            return false;
        }
        *self.stats.shed.entry(party).or_default() += 1;
        if !origin.transport.is_reliable() && !keep.is_zero() {
            self.silence.insert(now, key);
            self.keep_sweeping(now);
        }
        self.refuse(origin, msg, reply);
        true
    }

    fn refuse(&mut self, origin: &Origin, msg: &Message<'_>, reply: &ReplyPath) {
        let most = self.policy.config.overload.retry_after.as_secs().max(1);
        let seconds = 1 + self.random() % most;
        let mut text = [0u8; 20];
        let rows = [("Retry-After", decimal(seconds, &mut text))];
        let tag = self.shed_tag;
        let options = ResponseOptions {
            stamp: Some(origin.remote),
            to_tag: Some(&tag),
            extra_rows: &rows,
            ..ResponseOptions::default()
        };
        let bytes = response(*msg, 503, "Service Unavailable", options).into();
        self.outputs.push_back(Output::Send(Send { hop: reply.hop(), bytes, token: None, request: false }));
    }
}

/// A number in digits, at the end of `room`.
fn decimal(mut n: u64, room: &mut [u8; 20]) -> &[u8] {
    let mut from = room.len();
    for place in room.iter_mut().rev() {
        *place = b'0' + (n % 10) as u8;
        n /= 10;
        from -= 1;
        if n == 0 {
            break;
        }
    }
    room.get(from..).unwrap_or_default()
}

/// An emergency call, or one of those who go first: RFC 5031 (`urn:service:sos`), `sos` as a SIP user or host,
/// `Priority: emergency` (RFC 3261 §20.26), any Resource-Priority (RFC 4412).
///
/// Whoever is admitted as a sender is trusted not to mark everything so: what is exempt counts against the
/// sender's share all the same.
fn is_emergency(msg: &Message<'_>) -> bool {
    is_sos(msg.uri())
        || msg.fields().filter(|f| f.name == Name::Other).any(|f| match f.raw_name.len() {
            8 => f.raw_name.eq_ignore_ascii_case(b"Priority") && f.value.eq_ignore_ascii_case(b"emergency"),
            17 => f.raw_name.eq_ignore_ascii_case(b"Resource-Priority"),
            _ => false,
        })
}

fn is_sos(uri: &[u8]) -> bool {
    let begins =
        |text: &[u8], with: &[u8]| text.get(..with.len()).is_some_and(|t| t.eq_ignore_ascii_case(with));
    // The end of a label, or of the whole.
    let whole = |rest: Option<&[u8]>| match rest {
        Some(rest) => matches!(rest.first(), None | Some(b'.' | b';' | b'@' | b':' | b'?' | b'>')),
        None => false,
    };
    let Some(colon) = memchr::memchr(b':', uri) else { return false };
    let (scheme, rest) = uri.split_at(colon);
    let rest = rest.get(1..).unwrap_or_default();
    if scheme.eq_ignore_ascii_case(b"urn") {
        return begins(rest, b"service:sos") && whole(rest.get(11..));
    }
    if !(scheme.eq_ignore_ascii_case(b"sip") || scheme.eq_ignore_ascii_case(b"sips")) {
        return false;
    }
    let host = memchr::memchr(b'@', rest).and_then(|at| rest.get(at + 1..));
    begins(rest, b"sos") && whole(rest.get(3..))
        || host.is_some_and(|h| begins(h, b"sos") && whole(h.get(3..)))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn emergency_numbers_are_known_by_their_uri() {
        for yes in [
            "urn:service:sos",
            "URN:Service:SOS.fire",
            "sip:sos@example.com",
            "sip:SOS.police@example.com",
            "sips:sos@example.com;user=phone",
            "sip:sos",
            "sip:112@sos.example.com",
        ] {
            assert!(is_sos(yes.as_bytes()), "{yes}");
        }
        for no in [
            "sip:soso@example.com",
            "sip:a@sosnowiec.example",
            "urn:service:counseling",
            "tel:sos",
            "sos",
            "",
        ] {
            assert!(!is_sos(no.as_bytes()), "{no}");
        }
    }

    #[test]
    fn numbers_are_written_in_digits() {
        let mut room = [0; 20];
        for n in [0, 7, 10, 3600, u64::MAX] {
            assert_eq!(decimal(n, &mut room), n.to_string().as_bytes());
        }
    }
}
