//! Who gets how much of what can be admitted: max-min fair between senders.
//!
//! Whoever offers less than its share is served in full, and what it leaves is the others'. The core
//! weighs as much as all peers together, since it speaks for one of the two sides of every call.

use ahash::AHashMap;

use crate::peering::Party;

/// Offers are remembered with this weight from step to step: for about a fifth of a second.
const MEMORY: f64 = 0.9;
/// Senders that offer less than this per step are forgotten.
const NOTHING: f64 = 0.01;
/// So much may be owed for requests that were exempt.
const MOST_DEBT: f64 = -20.0;
/// Rounds of filling up; each settles at least one sender, and all but the last few quickly.
const ROUNDS: usize = 8;

/// One sender.
#[derive(Clone, Copy, Debug)]
struct Sender {
    /// New requests in this step.
    count: f64,
    /// In a step, of late.
    offers: f64,
    /// Share of them that is admitted.
    share: f64,
    /// What has been dealt out and not used; at 1 the next one is admitted.
    credit: f64,
}

/// The senders of late.
#[derive(Debug)]
pub(super) struct Fair {
    senders: AHashMap<Party, Sender>,
    /// The share of a sender not known yet.
    unknown: f64,
    dealt: bool,
}

impl Default for Fair {
    fn default() -> Self {
        Self { senders: AHashMap::new(), unknown: 1.0, dealt: false }
    }
}

impl Fair {
    /// Forgets everybody.
    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }

    /// One more request of a sender; true if it is admitted. `ease` raises the sender's share.
    pub(super) fn take(&mut self, party: Party, ease: f64) -> bool {
        let sender = self.sender(party);
        sender.count += 1.0;
        sender.credit += (sender.share * ease).min(1.0);
        let admitted = sender.credit >= 1.0;
        if admitted {
            sender.credit -= 1.0;
        }
        admitted
    }

    /// One more request of a sender, admitted in any case.
    pub(super) fn charge(&mut self, party: Party) {
        let sender = self.sender(party);
        sender.count += 1.0;
        sender.credit = (sender.credit + sender.share - 1.0).max(MOST_DEBT);
    }

    fn sender(&mut self, party: Party) -> &mut Sender {
        let share = self.unknown;
        self.senders.entry(party).or_insert(Sender { count: 0.0, offers: 0.0, share, credit: 0.5 })
    }

    /// Deals out anew: `admit` of all that is offered. The last deal was `steps` steps ago.
    pub(super) fn deal(&mut self, admit: f64, steps: f64) {
        let memory = MEMORY.powf(steps.max(0.1));
        self.senders.retain(|_, s| {
            let fresh = s.count / steps.max(0.1);
            // The first count is all that is known of a new sender.
            s.offers = if s.offers == 0.0 { fresh } else { s.offers * memory + fresh * (1.0 - memory) };
            s.count = 0.0;
            s.offers >= NOTHING
        });
        if self.senders.is_empty() {
            self.unknown = if self.dealt { 1.0 } else { admit };
            self.dealt = true;
            return;
        }
        self.unknown = 1.0;
        self.dealt = true;
        let level = self.level(admit);
        let peers = self.peers();
        for (party, sender) in &mut self.senders {
            sender.share =
                if admit <= 0.0 { 0.0 } else { (level * weight(*party, peers) / sender.offers).min(1.0) };
        }
    }

    fn peers(&self) -> f64 {
        let peers = self.senders.len() - usize::from(self.senders.contains_key(&Party::Core));
        u32::try_from(peers.max(1)).map_or(f64::MAX, f64::from)
    }

    /// What a sender of weight 1 may have per step.
    fn level(&self, admit: f64) -> f64 {
        let peers = self.peers();
        let offered: f64 = self.senders.values().map(|s| s.offers).sum();
        let all: f64 = self.senders.keys().map(|p| weight(*p, peers)).sum();
        let mut level = offered * admit / all;
        for _ in 0..ROUNDS {
            let (mut rest, mut weights) = (offered * admit, 0.0);
            for (party, sender) in &self.senders {
                let weight = weight(*party, peers);
                if sender.offers <= level * weight {
                    rest -= sender.offers;
                } else {
                    weights += weight;
                }
            }
            if weights <= 0.0 {
                return f64::MAX;
            }
            let next = rest / weights;
            if next - level <= level * 0.001 {
                return next.max(level);
            }
            level = next;
        }
        level
    }
}

fn weight(party: Party, peers: f64) -> f64 {
    if party == Party::Core { peers } else { 1.0 }
}
