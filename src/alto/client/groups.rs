//! The addresses that endpoint costs are asked for, in the sets asked together.
//!
//! Addresses that are compared with each other are asked for together, since ranks compare only within one answer
//! (RFC 7285 §6.2): with ranks, a group is one of the sets that were wanted, and an address that is in two of them has
//! a rank in each. Numbers compare over answers, so there groups are packed to as many addresses as one query may have.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::location::CostMode;

use super::super::backoff::Backoff;
use super::super::ecs::MAX_DSTS;
use super::super::error::Fault;
use super::server::Held;

/// Most addresses that costs are kept for.
pub const MAX_ADDRESSES: usize = 10_000;
/// How long an address is left out that a server cannot take.
pub const BANNED: Duration = Duration::from_secs(600);

/// Least time between two tries to ask for a whole again that had to be asked for in parts.
const WHOLE_AFTER: Duration = Duration::from_secs(60);

/// What costs are wanted for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Wanted {
    /// All addresses.
    addrs: BTreeSet<IpAddr>,
    /// What is compared with each other: each sorted, of one family. No more addresses
    /// in all of them together than costs are kept for.
    pub sets: Vec<Vec<IpAddr>>,
}

impl Wanted {
    /// By family, within [`MAX_ADDRESSES`].
    pub fn of(sets: &[Arc<[IpAddr]>]) -> Self {
        let mut found = Self::default();
        let mut all: BTreeSet<Vec<IpAddr>> = BTreeSet::new();
        let mut sum = 0;
        for set in sets {
            for v4 in [true, false] {
                let own: BTreeSet<IpAddr> =
                    set.iter().map(IpAddr::to_canonical).filter(|a| a.is_ipv4() == v4).collect();
                for addr in &own {
                    if found.addrs.len() < MAX_ADDRESSES {
                        found.addrs.insert(*addr);
                    }
                }
                let own: Vec<IpAddr> = own.into_iter().filter(|a| found.addrs.contains(a)).collect();
                if !own.is_empty() && sum + own.len() <= MAX_ADDRESSES && !all.contains(&own) {
                    sum += own.len();
                    all.insert(own);
                }
            }
        }
        found.sets = all.into_iter().collect();
        found
    }

    /// All addresses.
    pub fn addrs(&self) -> impl Iterator<Item = IpAddr> + '_ {
        self.addrs.iter().copied()
    }

    /// How many.
    pub fn len(&self) -> usize {
        self.addrs.len()
    }
}

/// Addresses asked for in one query.
#[derive(Clone, Debug)]
pub struct Group {
    /// Tells it from others.
    pub id: u64,
    /// Sorted, of one family.
    pub addrs: Vec<IpAddr>,
    /// When to ask.
    pub due: Instant,
    /// Failures of this group.
    pub backoff: Backoff,
    /// What is known.
    pub held: Option<Held<Costs>>,
    /// What went wrong last, if it did.
    pub error: Option<Fault>,
    /// Since when it has failed without a success, itself or the larger one that it is a part of.
    pub failed_since: Option<Instant>,
}

/// By address.
pub type Costs = HashMap<IpAddr, f64, ahash::RandomState>;

/// All groups of a server.
#[derive(Clone, Debug, Default)]
pub struct Groups {
    pub list: Vec<Group>,
    next_id: u64,
    /// Until when an address is left out.
    banned: BTreeMap<IpAddr, Instant>,
    /// Something that belongs together is asked for in parts.
    in_parts: bool,
    /// Not asked for as a whole again before this.
    whole_after: Option<Instant>,
}

impl Groups {
    /// Brings the groups in line with what is wanted. New ones are due at once, known ones stay as they are.
    /// `possible`: whether an address can be asked for at all.
    pub fn sync(&mut self, wanted: &Wanted, possible: impl Fn(IpAddr) -> bool, mode: CostMode, now: Instant) {
        self.banned.retain(|_, until| now < *until);
        let banned = std::mem::take(&mut self.banned);
        let asked = |addr: &IpAddr| possible(*addr) && !banned.contains_key(addr);
        match mode {
            CostMode::Ordinal => {
                let sets = wanted.sets.iter().map(|set| set.iter().copied().filter(asked).collect());
                self.sync_ranks(sets, now);
            }
            CostMode::Numerical => self.sync_numbers(wanted.addrs().filter(asked).collect(), now),
        }
        self.banned = banned;
    }

    /// Each set is a group, and a set that has changed is a new one: its old ranks mean nothing any more.
    fn sync_ranks(&mut self, sets: impl Iterator<Item = Vec<IpAddr>>, now: Instant) {
        self.in_parts = false;
        let mut before: HashMap<Vec<IpAddr>, Group, ahash::RandomState> =
            self.list.drain(..).map(|g| (g.addrs.clone(), g)).collect();
        for mut set in sets {
            // Ranks of two answers could not be compared, so what is beyond one query stays unranked.
            set.truncate(MAX_DSTS);
            match before.remove(&set) {
                Some(group) => self.list.push(group),
                None if set.is_empty() || self.list.iter().any(|g| g.addrs == set) => {}
                None => self.add(set, now),
            }
        }
    }

    fn sync_numbers(&mut self, mut new: BTreeSet<IpAddr>, now: Instant) {
        for group in &mut self.list {
            group.addrs.retain(|a| new.remove(a));
            if let Some(held) = &mut group.held {
                held.value.retain(|a, _| group.addrs.contains(a));
            }
        }
        self.list.retain(|g| !g.addrs.is_empty());
        for v4 in [true, false] {
            let family: Vec<IpAddr> = new.iter().copied().filter(|a| a.is_ipv4() == v4).collect();
            for some in family.chunks(MAX_DSTS) {
                self.add(some.to_vec(), now);
            }
        }
    }

    fn add(&mut self, addrs: Vec<IpAddr>, due: Instant) {
        self.next_id += 1;
        self.list.push(Group {
            id: self.next_id,
            addrs,
            due,
            backoff: Backoff::default(),
            held: None,
            error: None,
            failed_since: None,
        });
    }

    /// All are asked for again.
    pub fn all_due(&mut self, now: Instant) {
        for group in &mut self.list {
            group.due = group.due.min(now);
        }
    }

    /// Whether what was asked for in parts should be asked for as a whole again: all parts have their costs. Not all
    /// the time, as the whole may be what the server cannot take.
    pub fn mend(&mut self, now: Instant) -> bool {
        let mended = self.in_parts
            && self.list.iter().all(|g| g.failed_since.is_none())
            && self.whole_after.is_none_or(|at| at <= now);
        if mended {
            (self.in_parts, self.whole_after) = (false, Some(now + WHOLE_AFTER));
        }
        mended
    }

    /// The group to ask for now. With numbers, others that are sound and due soon are joined to it.
    pub fn due(&mut self, mode: CostMode, now: Instant) -> Option<&Group> {
        let at = self.list.iter().enumerate().filter(|(_, g)| g.due <= now).min_by_key(|(_, g)| g.due)?.0;
        // Those that would be due soon come along.
        let soon = |g: &Group| {
            g.held.as_ref().map_or(now, |h| now + h.fresh_until.saturating_duration_since(h.fetched) / 5)
        };
        let sound = |g: &Group| g.backoff.failures() == 0 && g.due <= soon(g);
        if mode == CostMode::Numerical && self.list.get(at).is_some_and(sound) {
            let mut joined = self.list.remove(at);
            let mut rest = Vec::with_capacity(self.list.len());
            for other in self.list.drain(..) {
                let fits = joined.addrs.len() + other.addrs.len() <= MAX_DSTS;
                let alike =
                    other.addrs.first().map(IpAddr::is_ipv4) == joined.addrs.first().map(IpAddr::is_ipv4);
                if fits && alike && sound(&other) && other.held.is_none() == joined.held.is_none() {
                    joined.addrs.extend(other.addrs);
                    // The answer will be one; until then the older one stands for both.
                    joined.held = match (joined.held, other.held) {
                        (Some(mut one), Some(two)) => {
                            one.fetched = one.fetched.min(two.fetched);
                            one.fresh_until = one.fresh_until.min(two.fresh_until);
                            one.answer = one.answer.min(two.answer);
                            one.value.extend(two.value);
                            Some(one)
                        }
                        _ => None,
                    };
                } else {
                    rest.push(other);
                }
            }
            joined.addrs.sort_unstable();
            rest.push(joined);
            self.list = rest;
            return self.list.last();
        }
        self.list.get(at)
    }

    /// The group with this number.
    pub fn get_mut(&mut self, id: u64) -> Option<&mut Group> {
        self.list.iter_mut().find(|g| g.id == id)
    }

    /// An address is left out for a while.
    pub fn ban(&mut self, addr: IpAddr, now: Instant) {
        self.banned.insert(addr.to_canonical(), now + BANNED);
    }

    /// Addresses left out.
    pub fn banned(&self) -> usize {
        self.banned.len()
    }

    /// Asks for the two halves of a group instead of the whole, to find what the server cannot take.
    pub fn split(&mut self, id: u64, now: Instant) {
        let Some(at) = self.list.iter().position(|g| g.id == id && g.addrs.len() > 1) else { return };
        let group = self.list.remove(at);
        let (first, second) = group.addrs.split_at(group.addrs.len() / 2);
        for half in [first, second] {
            self.next_id += 1;
            let held = group.held.clone().map(|mut held| {
                held.value.retain(|a, _| half.contains(a));
                held
            });
            // The failure on record keeps it from being joined to others.
            self.list.push(Group { id: self.next_id, addrs: half.to_vec(), due: now, held, ..group.clone() });
        }
        self.in_parts = true;
    }

    /// Forgets all, or what is known of some addresses.
    pub fn flush(&mut self, addrs: Option<&[IpAddr]>, now: Instant) {
        match addrs {
            None => {
                self.list.clear();
                self.banned.clear();
            }
            Some(addrs) => {
                for group in self.list.iter_mut().filter(|g| addrs.iter().any(|a| g.addrs.contains(a))) {
                    (group.held, group.due) = (None, now);
                }
                self.banned.retain(|a, _| !addrs.contains(a));
            }
        }
    }
}
