//! Between the ALTO client and the ranking: which sets of addresses costs are wanted for, and the snapshot in use.
//!
//! Whole results of the DNS pass through [`Ranker::rank`] on their way into the cache, so a call reads an order that
//! is already made and waits for nothing. A set that is seen there is remembered, and asked ahead by whoever
//! listens on [`Ranker::changed`].
//!
//! With each snapshot the orders of all results known are decided anew ([`crate::location::Memory`]), whether calls
//! look at them or not: what counts is how many answers said so. Kept results learn of it by [`Ranker::epoch`], which
//! is one atomic load.

use std::collections::{HashMap, HashSet};
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use arc_swap::{ArcSwap, ArcSwapOption};
use tokio::sync::watch;

use crate::config::{AltoScope, Config, Realm};
use crate::location::{
    CostSnapshot, Instance, LocateKey, Located, Memory, Outcome, RankPolicy, Ranked, rank,
};
use crate::peering::Scopes;

/// Most sets remembered; a further one displaces the one that has not been seen for longest.
pub const MAX_SETS: usize = 10_000;

/// Most results whose order is remembered; beyond, the tenth that was built longest ago is forgotten, which costs
/// these no more than their hysteresis.
pub const MAX_RANKED: usize = 10_000;

/// A set that no location has shown for so long is no longer asked for.
const FORGOTTEN: Duration = Duration::from_secs(2 * 3600);

/// The addresses of one tier of a peer's servers: two at least, sorted, no duplicates.
pub type AddressSet = Arc<[IpAddr]>;

/// Instances that are down.
pub type Down = HashSet<Instance, ahash::RandomState>;

/// Who knows of them.
pub type AskDown = Box<dyn Fn(Instant) -> Down + Send + Sync>;

/// How costs become an order, and where they may go before priorities.
#[derive(Clone, Debug, PartialEq)]
struct Rules {
    rank: RankPolicy,
    scopes: Scopes,
}

impl Rules {
    fn of(&self, key: &LocateKey) -> RankPolicy {
        RankPolicy { scope: self.scopes.of(&key.host), ..self.rank.clone() }
    }
}

/// What is remembered of the order of one result.
struct Entry {
    /// As the DNS gave it.
    located: Arc<Located>,
    memory: Memory,
    seen: Instant,
}

/// See the module's text. Shared by all; short locks, never held over a wait.
pub struct Ranker {
    policy: ArcSwapOption<Rules>,
    snapshot: ArcSwap<CostSnapshot>,
    entries: Mutex<HashMap<LocateKey, Entry, ahash::RandomState>>,
    epoch: AtomicU64,
    /// Tells which instances are down.
    health: OnceLock<AskDown>,
    down: ArcSwap<Down>,
    wanted: Mutex<HashMap<AddressSet, Instant, ahash::RandomState>>,
    /// Sent when a set is added; and when a snapshot is published.
    added: watch::Sender<u64>,
    published: watch::Sender<u64>,
}

impl Default for Ranker {
    fn default() -> Self {
        Self {
            policy: ArcSwapOption::empty(),
            snapshot: ArcSwap::default(),
            entries: Mutex::default(),
            epoch: AtomicU64::new(0),
            health: OnceLock::new(),
            down: ArcSwap::default(),
            wanted: Mutex::default(),
            added: watch::Sender::new(0),
            published: watch::Sender::new(0),
        }
    }
}

impl Ranker {
    /// Takes over how costs become an order, with the scope of the policy for all; `None`: there are none. A change
    /// forgets the orders held.
    pub fn configure(&self, policy: Option<RankPolicy>) {
        let rules = policy.map(|rank| Rules { scopes: Scopes::all(rank.scope), rank });
        self.set(rules);
    }

    /// The same from a whole configuration, with what was agreed with each peer.
    pub fn configure_from(&self, config: &Config) {
        let rules = RankPolicy::of(config).map(|rank| Rules { rank, scopes: Scopes::new(config) });
        self.set(rules);
    }

    fn set(&self, policy: Option<Rules>) {
        if self.policy.load().as_deref() == policy.as_ref() {
            return;
        }
        self.policy.store(policy.map(Arc::new));
        self.entries().clear();
        self.epoch.fetch_add(1, Ordering::Release);
    }

    /// A result in the order that costs give it, the same candidates in it: when it is built, after a change of costs,
    /// or when an order has run out. `located` is as the DNS gave it.
    pub fn rank(&self, located: Arc<Located>, now: Instant) -> Ranked {
        let policy = self.policy.load_full();
        let (Some(policy), Realm::Peering | Realm::Both, Outcome::Found) =
            (policy, located.key.realm, located.outcome)
        else {
            return Ranked { located, again_at: None };
        };
        let policy = policy.of(&located.key);
        // A result is used as long as it is looked at, which need not be built anew for hours.
        self.want_all(&located, &policy, now);
        let mut entries = self.entries();
        if entries.len() >= MAX_RANKED && !entries.contains_key(&located.key) {
            forget_some(&mut entries);
        }
        let entry = entries.entry(located.key.clone()).or_insert_with(|| Entry {
            located: Arc::clone(&located),
            memory: Memory::default(),
            seen: now,
        });
        entry.located = located;
        entry.seen = now;
        self.decide(entry, &policy, now)
    }

    fn decide(&self, entry: &mut Entry, policy: &RankPolicy, now: Instant) -> Ranked {
        let (snapshot, down) = (self.snapshot.load(), self.down.load());
        rank(&entry.located, &snapshot, policy, &mut entry.memory, &|i| down.contains(i), now)
    }

    fn entries(&self) -> MutexGuard<'_, HashMap<LocateKey, Entry, ahash::RandomState>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Grows whenever kept results have to be ranked anew.
    pub fn epoch(&self) -> u64 {
        self.epoch.load(Ordering::Acquire)
    }

    /// Remembers the sets of a result.
    fn want_all(&self, located: &Located, policy: &RankPolicy, now: Instant) {
        let across = !located.key.sips && policy.scope == AltoScope::AcrossPriorities;
        // What is compared must be in one set: ranks are comparable only within one answer.
        let groups =
            located.tiers.chunk_by(|a, b| across && a.naptr == b.naptr && a.transport() == b.transport());
        for group in groups {
            let servers = group.iter().flat_map(|t| &t.servers);
            let mut set: Vec<IpAddr> = servers.flat_map(|s| s.addrs.iter().copied()).collect();
            set.sort_unstable();
            set.dedup();
            if set.len() > 1 {
                self.want(set.into(), now);
            }
        }
    }

    fn want(&self, set: AddressSet, now: Instant) {
        let mut wanted = self.wanted.lock().unwrap_or_else(PoisonError::into_inner);
        if wanted.insert(set, now).is_some() {
            return;
        }
        if wanted.len() > MAX_SETS {
            let oldest = wanted.iter().min_by_key(|(_, seen)| **seen).map(|(set, _)| set.clone());
            if let Some(oldest) = oldest {
                wanted.remove(&oldest);
            }
        }
        drop(wanted);
        self.added.send_modify(|n| *n += 1);
    }

    /// The sets that costs are wanted for, sorted.
    pub fn wanted(&self, now: Instant) -> Vec<AddressSet> {
        let mut wanted = self.wanted.lock().unwrap_or_else(PoisonError::into_inner);
        wanted.retain(|_, seen| now.saturating_duration_since(*seen) < FORGOTTEN);
        let mut sets: Vec<AddressSet> = wanted.keys().cloned().collect();
        sets.sort_unstable();
        sets
    }

    /// Changes whenever a set is added.
    pub fn changed(&self) -> watch::Receiver<u64> {
        self.added.subscribe()
    }

    /// Takes over a snapshot, and decides with it the order of all results known.
    pub fn publish(&self, snapshot: CostSnapshot, now: Instant) {
        let serial = snapshot.serial;
        self.snapshot.store(Arc::new(snapshot));
        if let Some(ask) = self.health.get() {
            self.down.store(Arc::new(ask(now)));
        }
        let keys: Vec<LocateKey> = {
            let mut entries = self.entries();
            entries.retain(|_, e| now.saturating_duration_since(e.seen) < FORGOTTEN);
            entries.keys().cloned().collect()
        };
        for key in keys {
            // One lock each, so that locations need not wait for all.
            if let (Some(policy), Some(entry)) = (self.policy.load_full(), self.entries().get_mut(&key)) {
                let _ = self.decide(entry, &policy.of(&key), now);
            }
        }
        self.epoch.fetch_add(1, Ordering::Release);
        self.published.send_replace(serial);
    }

    /// Sets who is asked, with each snapshot, which instances are down: an order whose leading class is all down is not
    /// held against a change. The first one set stays.
    pub fn ask_health(&self, ask: AskDown) {
        let _ = self.health.set(ask);
    }

    /// The snapshot in use.
    pub fn snapshot(&self) -> Arc<CostSnapshot> {
        self.snapshot.load_full()
    }
}

/// Makes room by forgetting the tenth that was built longest ago.
fn forget_some(entries: &mut HashMap<LocateKey, Entry, ahash::RandomState>) {
    let mut seen: Vec<Instant> = entries.values().map(|e| e.seen).collect();
    let nth = seen.len() / 10;
    if let Some(oldest) = (nth < seen.len()).then(|| *seen.select_nth_unstable(nth).1) {
        entries.retain(|_, e| e.seen > oldest);
    }
}
