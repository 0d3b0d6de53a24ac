//! The calls that are counted (rule 11): from the admitted INVITE to its failure or to the end of BYE.

use std::time::{Duration, Instant};

use smallvec::SmallVec;
use std::collections::HashMap;

use crate::flow::PeerId;
use crate::peering::{Ledger, Seat};
use crate::proxy::KnownToken;
use crate::transaction::key::Hashed;

/// One call, known by a hash of its Call-ID and its caller's tag.
#[derive(Debug)]
struct Call {
    /// Peers charged.
    peers: SmallVec<[PeerId; 2]>,
    /// Its place at the instance that it was sent to last, where that has limits.
    seat: Option<Seat>,
    /// INVITEs under way for it.
    inviting: u16,
    established: bool,
    /// Hash of the callee's tag, once it has answered; 0 before.
    callee: u64,
    expires: Instant,
    /// The token in our Record-Route, which its requests come back with.
    token: Option<KnownToken>,
}

/// The calls of a shard.
#[derive(Debug, Default)]
pub struct Calls {
    /// The keys are hashes already.
    table: HashMap<u64, Call, Hashed>,
}

impl Calls {
    /// How many there are.
    pub fn len(&self) -> usize {
        self.table.len()
    }

    /// True if there are none.
    pub fn is_empty(&self) -> bool {
        self.table.is_empty()
    }

    /// An admitted INVITE, whose peers have been charged already. For a call that is known, the
    /// charge is given back: it counts once.
    pub fn begin(&mut self, key: u64, peers: &[PeerId], expires: Instant, ledger: &Ledger) {
        if let Some(call) = self.table.get_mut(&key) {
            call.inviting = call.inviting.saturating_add(1);
            for peer in peers {
                ledger.release(*peer);
            }
            return;
        }
        self.table.insert(
            key,
            Call {
                peers: peers.into(),
                seat: None,
                inviting: 1,
                established: false,
                callee: 0,
                expires,
                token: None,
            },
        );
    }

    /// The call goes to another peer than was charged.
    pub fn move_to(&mut self, key: u64, from: Option<PeerId>, to: Option<PeerId>, ledger: &Ledger) {
        if let Some(call) = self.table.get_mut(&key) {
            if let Some(at) = from.and_then(|p| call.peers.iter().position(|q| *q == p)) {
                ledger.release(call.peers.remove(at));
            }
            call.peers.extend(to);
        } else if let Some(peer) = to {
            ledger.release(peer);
        }
    }

    /// The call goes to another instance than before.
    pub fn seat(&mut self, key: u64, seat: Option<Seat>, ledger: &Ledger) {
        let before = match self.table.get_mut(&key) {
            Some(call) => std::mem::replace(&mut call.seat, seat),
            None => seat,
        };
        if let Some(before) = before {
            ledger.leave(before);
        }
    }

    /// An INVITE of the call had its final response.
    pub fn answered(&mut self, key: u64, ok: bool, expires: Instant, ledger: &Ledger) {
        let Some(call) = self.table.get_mut(&key) else { return };
        call.inviting = call.inviting.saturating_sub(1);
        if ok {
            call.established = true;
            call.expires = expires;
        } else if !call.established && call.inviting == 0 {
            self.end(key, ledger);
        }
    }

    /// The callee's tag, from its 2xx, and the token of the request that brought it.
    pub fn confirm(&mut self, key: u64, callee: u64, token: Option<KnownToken>) {
        if let Some(call) = self.table.get_mut(&key) {
            call.callee = callee;
            call.token = token.or(call.token);
        }
    }

    /// If there is a call of this caller, and its callee is this one as far as is known: its token, where that
    /// is known.
    pub fn dialog(&self, key: u64, callee: impl FnOnce() -> u64) -> Option<Option<KnownToken>> {
        let call = self.table.get(&key)?;
        (call.callee == 0 || call.callee == callee()).then_some(call.token)
    }

    /// Their secret is another one now.
    pub fn forget_tokens(&mut self) {
        self.table.values_mut().for_each(|call| call.token = None);
    }

    /// A session was refreshed (RFC 4028).
    pub fn refresh(&mut self, key: u64, expires: Instant) {
        if let Some(call) = self.table.get_mut(&key) {
            call.expires = expires;
        }
    }

    /// BYE had its final response.
    pub fn end(&mut self, key: u64, ledger: &Ledger) {
        if let Some(call) = self.table.remove(&key) {
            give_back(&call, ledger);
            if self.table.capacity() > 1024 && self.table.len() * 4 < self.table.capacity() {
                let keep = self.table.len() * 2;
                self.table.shrink_to(keep);
            }
        }
    }

    /// Drops calls that nobody ended, and tells of those that had been answered. Returns how many.
    pub fn sweep(&mut self, now: Instant, ledger: &Ledger, mut tell: impl FnMut(u64)) -> usize {
        let before = self.table.len();
        self.table.retain(|key, call| {
            let over = now >= call.expires;
            if over {
                if call.established {
                    tell(*key);
                }
                give_back(call, ledger);
            }
            !over
        });
        before - self.table.len()
    }
}

fn give_back(call: &Call, ledger: &Ledger) {
    for peer in &call.peers {
        ledger.release(*peer);
    }
    if let Some(seat) = call.seat {
        ledger.leave(seat);
    }
}

/// When a call falls out of the count by itself: `max_age`, or its Session-Expires if that is shorter.
pub fn expiry(now: Instant, max_age: Duration, session_expires: Option<u32>) -> Instant {
    let age = session_expires.map_or(max_age, |s| max_age.min(Duration::from_secs(u64::from(s))));
    now + age
}

#[cfg(test)]
mod tests {
    use super::*;

    const P: PeerId = PeerId(1);

    fn charged(ledger: &Ledger, t: Instant) {
        assert_eq!(ledger.charge(t, P, None, None), Ok(()));
    }

    #[test]
    fn a_failed_invite_and_a_bye_end_the_count_and_a_second_invite_counts_once() {
        let t = Instant::now();
        let ledger = Ledger::new(t);
        let mut calls = Calls::default();
        let hour = t + Duration::from_secs(3600);
        charged(&ledger, t);
        calls.begin(7, &[P], hour, &ledger);
        charged(&ledger, t);
        calls.begin(7, &[P], hour, &ledger);
        assert_eq!((calls.len(), ledger.calls(P)), (1, 1));
        calls.answered(7, false, hour, &ledger);
        assert_eq!(ledger.calls(P), 1);
        calls.answered(7, true, hour, &ledger);
        assert_eq!((calls.len(), ledger.calls(P)), (1, 1));
        calls.end(7, &ledger);
        assert_eq!((calls.len(), ledger.calls(P)), (0, 0));
        charged(&ledger, t);
        calls.begin(8, &[P], hour, &ledger);
        calls.answered(8, false, hour, &ledger);
        assert_eq!((calls.len(), ledger.calls(P)), (0, 0));
    }

    #[test]
    fn a_token_is_known_in_its_dialog_until_the_call_or_its_secret_ends() {
        let t = Instant::now();
        let ledger = Ledger::new(t);
        let mut calls = Calls::default();
        calls.begin(7, &[], t, &ledger);
        assert_eq!(calls.dialog(7, || 9), Some(None), "before the answer");
        let token = KnownToken::new(b"abcdefghijklmnopqrst", 1);
        assert!(token.is_some());
        calls.confirm(7, 9, token);
        // Another 2xx to the same INVITE, whose token is no longer at hand.
        calls.confirm(7, 9, None);
        assert_eq!(calls.dialog(7, || 9), Some(token));
        assert_eq!((calls.dialog(7, || 8), calls.dialog(8, || 9)), (None, None), "another tag");
        calls.forget_tokens();
        assert_eq!(calls.dialog(7, || 9), Some(None));
        calls.end(7, &ledger);
        assert_eq!(calls.dialog(7, || 9), None);
    }

    #[test]
    fn a_call_that_nobody_ends_falls_out_when_its_time_has_come() {
        let t = Instant::now();
        let ledger = Ledger::new(t);
        let mut calls = Calls::default();
        charged(&ledger, t);
        calls.begin(7, &[P], expiry(t, Duration::from_secs(100), Some(90)), &ledger);
        let mut told = Vec::new();
        assert_eq!(calls.sweep(t + Duration::from_secs(89), &ledger, |key| told.push(key)), 0);
        assert_eq!(calls.sweep(t + Duration::from_secs(90), &ledger, |key| told.push(key)), 1);
        assert_eq!((ledger.calls(P), told.len()), (0, 0), "it had never been answered");
        charged(&ledger, t);
        calls.begin(8, &[P], t, &ledger);
        calls.answered(8, true, t + Duration::from_secs(9), &ledger);
        assert_eq!(calls.sweep(t + Duration::from_secs(9), &ledger, |key| told.push(key)), 1);
        assert_eq!(told, [8]);
    }
}
