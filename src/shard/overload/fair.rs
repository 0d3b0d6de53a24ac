//! Who gets how much of what can be admitted: max-min fair between senders.
//!
//! Whoever offers less than its share is served in full, and what it leaves is the others'. The core
//! weighs as much as all peers together, since it speaks for one of the two sides of every call.

use ahash::AHashMap;

use crate::peering::Party;

/// Offers are remembered with this weight from step to step: for about a fifth of a second.
const MEMORY: f64 = 0.9;
/// Senders that offer less than this per step are forgotten.
const NOTHING: f64 = 0.001;
/// A sender that offers less per step is judged as if it offered this: what one request in the time
/// remembered looks like. From less, nothing can be said about a rate.
const LEAST: f64 = 1.0 - MEMORY;
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
    /// What a sender not known yet begins with: spread evenly over 0 to 1, so that of many who send
    /// one request each the right share is admitted.
    start: f64,
}

impl Default for Fair {
    fn default() -> Self {
        Self { senders: AHashMap::new(), unknown: 1.0, start: 0.5 }
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
        let (share, start) = (self.unknown, &mut self.start);
        self.senders.entry(party).or_insert_with(|| {
            // The golden ratio's multiples, modulo 1.
            *start = (*start + 0.618_033_988_749_895).fract();
            Sender { count: 0.0, offers: 0.0, share, credit: *start }
        })
    }

    /// Deals out anew: `admit` of all that is offered. The last deal was `steps` steps ago.
    pub(super) fn deal(&mut self, admit: f64, steps: f64) {
        let memory = MEMORY.powf(steps.max(0.1));
        self.senders.retain(|_, s| {
            s.offers = s.offers * memory + s.count / steps.max(0.1) * (1.0 - memory);
            s.count = 0.0;
            s.offers >= NOTHING
        });
        if self.senders.is_empty() {
            self.unknown = admit;
            return;
        }
        let level = self.level(admit);
        let peers = self.peers();
        self.unknown = (level / LEAST).min(1.0);
        for (party, sender) in &mut self.senders {
            sender.share = (level * weight(*party, peers) / sender.offers.max(LEAST)).min(1.0);
        }
    }

    fn peers(&self) -> f64 {
        let peers = self.senders.len() - usize::from(self.senders.contains_key(&Party::Core));
        u32::try_from(peers.max(1)).map_or(f64::MAX, f64::from)
    }

    /// What a sender of weight 1 may have per step, so that all get `admit` of what they offer together.
    fn level(&self, admit: f64) -> f64 {
        let peers = self.peers();
        let wanted = admit * self.senders.values().map(|s| s.offers).sum::<f64>();
        let mut level = 0.0;
        for _ in 0..ROUNDS {
            // Whoever is below its share counts whole; the others by what a higher level gives them.
            let (mut rest, mut slope) = (wanted, 0.0);
            for (party, sender) in &self.senders {
                let (weight, rate) = (weight(*party, peers), sender.offers.max(LEAST));
                if rate <= level * weight {
                    rest -= sender.offers;
                } else {
                    slope += sender.offers / rate * weight;
                }
            }
            if slope <= 0.0 {
                return f64::MAX;
            }
            let next = rest / slope;
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
