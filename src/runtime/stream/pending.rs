//! Which requests of one direction of a connection have had no final response yet.
//!
//! Each by itself, not how many: a response that is sent twice answers nothing twice, and a request that nobody will
//! ever answer (RFC 4320) must not be mistaken for one that somebody still waits for.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use crate::shard::top_via;

/// More than that are looked through, at most once in [`PAUSE`], for those that are over without an answer.
const MANY: usize = 256;
const PAUSE: Duration = Duration::from_secs(1);
/// No more than that are kept. Those beyond count as answered.
const MOST: usize = 16_384;

/// What is waited for by one branch.
#[derive(Clone, Copy, Debug)]
struct Waited {
    since: Instant,
    is_invite: bool,
    /// The request itself.
    request: bool,
    /// The CANCEL for it, which has the same branch (RFC 3261 §9.1).
    cancel: bool,
}

impl Waited {
    /// Nobody waits for it any longer. An INVITE is answered some time, however long it rings.
    fn is_over(&self, now: Instant, limit: Duration) -> bool {
        !(self.is_invite && self.request) && now.saturating_duration_since(self.since) >= limit
    }
}

/// Requests without their final response.
#[derive(Debug)]
pub(super) struct Pending {
    by_branch: HashMap<u64, Waited, ahash::RandomState>,
    /// How long a request other than INVITE is waited for: 64*T1.
    limit: Duration,
    looked: Option<Instant>,
}

impl Pending {
    pub(super) fn new(limit: Duration) -> Self {
        Self { by_branch: HashMap::default(), limit, looked: None }
    }

    /// Takes note of a message that goes the way of the requests.
    pub(super) fn request(&mut self, message: &[u8], now: Instant) {
        if message.starts_with(b"SIP/2.0 ") || message.starts_with(b"ACK ") {
            return;
        }
        let key = self.key(message);
        self.sweep(now);
        if self.by_branch.len() >= MOST && !self.by_branch.contains_key(&key) {
            return;
        }
        let waited = self.by_branch.entry(key).or_insert(Waited {
            since: now,
            is_invite: false,
            request: false,
            cancel: false,
        });
        waited.since = now;
        if message.starts_with(b"CANCEL ") {
            waited.cancel = true;
        } else {
            waited.request = true;
            waited.is_invite = message.starts_with(b"INVITE ");
        }
    }

    /// Takes note of a message that goes the way of the responses.
    pub(super) fn response(&mut self, message: &[u8]) {
        let class = message.strip_prefix(b"SIP/2.0 ").and_then(|rest| rest.first());
        if !class.is_some_and(|class| (b'2'..=b'6').contains(class)) {
            return;
        }
        let key = self.key(message);
        let Some(waited) = self.by_branch.get_mut(&key) else { return };
        if waited.cancel && (!waited.request || memchr::memmem::find(message, b" CANCEL\r\n").is_some()) {
            waited.cancel = false;
        } else {
            waited.request = false;
        }
        if !waited.request && !waited.cancel {
            self.by_branch.remove(&key);
        }
    }

    /// All have their responses.
    pub(super) fn is_empty(&self) -> bool {
        self.by_branch.is_empty()
    }

    /// Nobody waits for a response any longer.
    pub(super) fn is_over(&self, now: Instant) -> bool {
        self.by_branch.values().all(|waited| waited.is_over(now, self.limit))
    }

    /// Those without a branch (RFC 2543) share one.
    fn key(&self, message: &[u8]) -> u64 {
        let via = top_via(message);
        self.by_branch.hasher().hash_one(via.as_ref().and_then(|via| via.branch()).unwrap_or_default())
    }

    fn sweep(&mut self, now: Instant) {
        let lately = |looked: Instant| now.saturating_duration_since(looked) < PAUSE;
        if self.by_branch.len() < MANY || self.looked.is_some_and(lately) {
            return;
        }
        self.looked = Some(now);
        let limit = self.limit;
        self.by_branch.retain(|_, waited| !waited.is_over(now, limit));
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    const LIMIT: Duration = Duration::from_secs(32);

    fn message(start: &str, branch: &str, method: &str) -> Vec<u8> {
        format!("{start}\r\nVia: SIP/2.0/TCP a.test;branch=z9hG4bK{branch}\r\nCSeq: 1 {method}\r\n\r\n")
            .into()
    }

    fn request(method: &str, branch: &str) -> Vec<u8> {
        message(&format!("{method} sip:b@b.test SIP/2.0"), branch, method)
    }

    fn response(code: u16, branch: &str, method: &str) -> Vec<u8> {
        message(&format!("SIP/2.0 {code} X"), branch, method)
    }

    #[test]
    fn a_response_that_is_repeated_answers_only_its_own_request() {
        let (mut pending, now) = (Pending::new(LIMIT), Instant::now());
        pending.request(&request("INVITE", "1"), now);
        pending.request(&request("INVITE", "2"), now);
        pending.response(&response(180, "1", "INVITE"));
        pending.response(&response(200, "1", "INVITE"));
        pending.response(&response(200, "1", "INVITE"));
        assert!(!pending.is_over(now));
        pending.response(&response(486, "2", "INVITE"));
        assert!(pending.is_empty() && pending.is_over(now));
        pending.request(&request("ACK", "2"), now);
        assert!(pending.is_empty(), "an ACK has no response");
    }

    #[test]
    fn an_invite_is_waited_for_however_long_it_rings_other_requests_are_not() {
        let (mut pending, now) = (Pending::new(LIMIT), Instant::now());
        pending.request(&request("INVITE", "1"), now);
        pending.request(&request("OPTIONS", "2"), now);
        let later = now + 2 * LIMIT;
        assert!(!pending.is_over(later));
        pending.response(&response(200, "1", "INVITE"));
        assert!(!pending.is_over(now) && pending.is_over(later) && !pending.is_empty());
    }

    #[test]
    fn the_answer_to_a_cancel_is_not_the_one_to_its_invite() {
        let (mut pending, now) = (Pending::new(LIMIT), Instant::now());
        pending.request(&request("INVITE", "1"), now);
        pending.request(&request("CANCEL", "1"), now);
        pending.response(&response(200, "1", "CANCEL"));
        assert!(!pending.is_over(now + 2 * LIMIT));
        pending.response(&response(487, "1", "INVITE"));
        assert!(pending.is_empty());
    }

    #[test]
    fn what_is_never_answered_takes_no_room_for_ever() {
        let (mut pending, mut now) = (Pending::new(LIMIT), Instant::now());
        for n in 0..100_000 {
            now += Duration::from_millis(10);
            pending.request(&request("MESSAGE", &n.to_string()), now);
            assert!(pending.by_branch.len() <= 3_400, "{n}: as many as come within the limit, and a second");
        }
        for n in 0..2 * MOST {
            pending.request(&request("INVITE", &format!("i{n}")), now);
        }
        assert_eq!(pending.by_branch.len(), MOST);
    }
}
