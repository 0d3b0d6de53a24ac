//! The DNS, as the element uses it: [`Resolver`] turns a [`LocateKey`] into a [`Located`], mostly out of its caches.
//!
//! | file | does | authority |
//! |---|---|---|
//! | `exchange` | which server is asked, by UDP or TCP, for how long | RFC 1035, 6891, 7766 |
//! | `message` | what a message says: records, nothing, an alias | RFC 1034 §3.6.2, 2181, 2308 |
//! | `client` | one question to its end; the servers of the system | RFC 2782, 3403 (additional section) |
//! | `upstream` | the seam between client and cache, where tests put a script | |
//! | `cache` | record sets, negative answers, failures, stale answers | RFC 2308, 8767, 9520 |
//! | `flight` | one query for all who ask the same; refresh ahead | |
//! | `locate` | drives the step machine of [`crate::location`] | RFC 3263 |
//! | `zone` | a zone file in the place of name servers | RFC 1034 §4.3.2, 1035 §5, 4592 |
//! | `survey` | all that the check of a zone judges | |
//! | `view`, `stats` | what the admin interface shows | |
//!
//! Two caches: record sets, each with its own lifetime, and whole results, each valid as long as all that it stands
//! on. A whole result that has run out is built again from the sets without a wait where these are still valid.
//! hickory has no cache here at all, so that no lifetime applies twice.
//!
//! Names are complete: no search list, no `ndots` (RFC 3263 §4). Without `dns.servers` the servers are those of
//! `/etc/resolv.conf`; the file is looked at every five seconds, and read again at a reload and when it has changed.
//! If it names no server, 127.0.0.1 is asked and a warning logged.
//!
//! Nothing blocks: an answer is there ([`Resolver::locate_cached`]) or a task waits for it ([`Resolver::locate`]).

mod cache;
mod client;
mod exchange;
mod flight;
mod locate;
mod message;
mod stats;
mod survey;
#[cfg(test)]
mod tests;
mod upstream;
mod view;
mod zone;

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use tokio::runtime::Handle;
use tokio::sync::Semaphore;

use cache::{Lifetimes, RrCache};
use flight::Flights;
use locate::{Results, ToldLocated};

use crate::config::{self, Realm};
use crate::location::{Enabled, LocateKey, Located};
use crate::runtime::costs::Ranker;

pub use client::{Client, Look, RESOLV_CONF};
pub use stats::{CacheResult, Stats};
pub use survey::{Asked, MAX_SURVEY_SERVERS, survey};
pub use upstream::{Failure, Found, Pending, Reply, Upstream};
pub use view::Entry;
pub use zone::{MAX_ZONE_FILE, ZoneFault, ZoneFile};

/// Aliases followed from one name, in one message or over several.
pub const MAX_ALIASES: usize = 8;

/// Questions put to the servers at the same time; others wait for their turn.
pub const MAX_QUERIES: usize = 512;

/// Questions under way, those that wait for their turn included; more are refused.
pub const MAX_FLIGHTS: usize = 16 * 1024;

/// Locations under way; more are refused.
pub const MAX_LOCATIONS: usize = 16 * 1024;

/// How often the system's resolver configuration is looked at.
pub const WATCH_INTERVAL: Duration = Duration::from_secs(5);

/// What can be sent from each realm.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EnabledByRealm {
    /// Towards peers.
    pub peering: Enabled,
    /// Towards the core.
    pub core: Enabled,
    /// By any listener.
    pub both: Enabled,
}

impl EnabledByRealm {
    /// That of one realm.
    pub const fn of(&self, realm: Realm) -> &Enabled {
        match realm {
            Realm::Peering => &self.peering,
            Realm::Core => &self.core,
            Realm::Both => &self.both,
        }
    }
}

/// Locates servers; cheap to clone, shared by all.
#[derive(Clone)]
pub struct Resolver {
    inner: Arc<Inner>,
}

struct Inner {
    upstream: Arc<dyn Upstream>,
    /// The same, where it is the real one.
    client: Option<Arc<Client>>,
    sets: RrCache,
    results: Results,
    flights: Mutex<Flights>,
    locations: Mutex<HashMap<LocateKey, ToldLocated, ahash::RandomState>>,
    state: ArcSwap<State>,
    /// Held while `state` is replaced.
    change: Mutex<()>,
    permits: Semaphore,
    serial: AtomicU64,
    stats: Stats,
    ranker: Arc<Ranker>,
    handle: Handle,
    system: PathBuf,
}

/// What a configuration, a flush or a change of servers replaces.
#[derive(Clone)]
struct State {
    lives: Lifetimes,
    /// `dns.timeout`
    budget: Duration,
    enabled: EnabledByRealm,
    /// Answers to questions from before are no longer valid: other servers are asked now.
    valid_from: Instant,
    /// Whole results of another number are no longer valid.
    epoch: u64,
}

/// The clock of the runtime, which tests can stop and turn.
fn now() -> Instant {
    tokio::time::Instant::now().into_std()
}

impl Resolver {
    /// Asks the servers of `config`, or else of `/etc/resolv.conf`. `entries`: record sets kept (`limits.dns_entries`).
    /// Queries run on `handle`.
    pub fn new(config: &config::Dns, enabled: EnabledByRealm, entries: usize, handle: Handle) -> Self {
        Self::with_system(config, enabled, entries, handle, Path::new(RESOLV_CONF))
    }

    /// The same with another file in the place of `/etc/resolv.conf`.
    pub fn with_system(
        config: &config::Dns,
        enabled: EnabledByRealm,
        entries: usize,
        handle: Handle,
        system: &Path,
    ) -> Self {
        let seen = signature(system);
        let client = Arc::new(Client::new(&config.servers, system));
        let this = Self::build(client.clone(), Some(client), config, enabled, entries, handle, system);
        this.inner.handle.spawn(watch_system(Arc::downgrade(&this.inner), seen));
        this
    }

    /// Asks something else: for tests and simulations.
    pub fn with_upstream(
        upstream: Arc<dyn Upstream>,
        config: &config::Dns,
        enabled: EnabledByRealm,
        entries: usize,
        handle: Handle,
    ) -> Self {
        Self::build(upstream, None, config, enabled, entries, handle, Path::new(RESOLV_CONF))
    }

    fn build(
        upstream: Arc<dyn Upstream>,
        client: Option<Arc<Client>>,
        config: &config::Dns,
        enabled: EnabledByRealm,
        entries: usize,
        handle: Handle,
        system: &Path,
    ) -> Self {
        let state =
            State { lives: config.into(), budget: config.timeout, enabled, valid_from: now(), epoch: 0 };
        let inner = Inner {
            upstream,
            client,
            sets: RrCache::new(entries),
            results: Results::new(entries),
            flights: Mutex::default(),
            locations: Mutex::default(),
            state: ArcSwap::from_pointee(state),
            change: Mutex::new(()),
            permits: Semaphore::new(MAX_QUERIES),
            serial: AtomicU64::new(1),
            stats: Stats::default(),
            ranker: Arc::default(),
            handle,
            system: system.to_owned(),
        };
        Self { inner: Arc::new(inner) }
    }

    /// A result that needs no wait: a valid one, or one that can be built from valid record sets. `None`: ask
    /// [`Resolver::locate`]. Never blocks; may be called on any thread.
    pub fn locate_cached(&self, key: &LocateKey, now: Instant) -> Option<Arc<Located>> {
        self.inner.locate_cached(key, now)
    }

    /// The result, after as much DNS as it takes; within `dns.timeout` at the latest there is one, if only to say
    /// that the DNS did not answer. All who ask for the same key meanwhile share one location; it goes on to its end,
    /// and into the cache, also when nobody waits any more.
    pub async fn locate(&self, key: LocateKey) -> Arc<Located> {
        Inner::locate(&self.inner, key).await
    }

    /// Takes over what can be sent after a change of listeners.
    pub fn set_enabled(&self, enabled: EnabledByRealm) {
        self.inner.replace_state(|state| state.enabled = enabled);
    }

    /// Takes over a configuration, and reads the system's again if that is used. The cache stays; if there are
    /// other servers now, what it holds counts as run out (and may serve as stale answers if they fail).
    pub fn reconfigure(&self, config: &config::Dns) {
        let changed =
            self.inner.client.as_ref().is_some_and(|c| c.reconfigure(&config.servers, &self.inner.system));
        self.inner.replace_state(|state| {
            state.lives = config.into();
            state.budget = config.timeout;
            if changed {
                state.valid_from = now();
            }
        });
        if changed {
            self.inner.forget_flights();
        }
    }

    /// Forgets everything, or a name and all below it (in any case, with or without a final dot).
    pub fn flush(&self, name: Option<&str>) {
        let name = name.map(|n| n.strip_suffix('.').unwrap_or(n).to_ascii_lowercase());
        // What is under way may have been answered before: its askers get it, the cache does not.
        self.inner.forget_flights();
        self.inner.replace_state(|_| ());
        self.inner.sets.flush(name.as_deref());
        self.inner.results.clear();
    }

    /// Up to `limit` entries of the cache of record sets, by name.
    pub fn entries(&self, limit: usize) -> Vec<Entry> {
        let valid_from = self.inner.state.load().valid_from;
        view::entries(&self.inner.sets, now(), valid_from, limit)
    }

    /// Number of record sets in the cache.
    pub fn entry_count(&self) -> u64 {
        self.inner.sets.len()
    }

    /// Counters.
    pub fn stats(&self) -> &Stats {
        &self.inner.stats
    }

    /// What orders results by their costs.
    pub fn ranker(&self) -> &Arc<Ranker> {
        &self.inner.ranker
    }

    /// The name servers in use.
    pub fn servers(&self) -> Vec<std::net::SocketAddr> {
        self.inner.client.as_ref().map(|c| c.servers()).unwrap_or_default()
    }
}

impl Inner {
    /// Changes the state; whole results from before are no longer valid.
    fn replace_state(&self, change: impl FnOnce(&mut State)) {
        let _guard = self.change.lock().unwrap_or_else(PoisonError::into_inner);
        let mut state = State::clone(&self.state.load());
        change(&mut state);
        state.epoch += 1;
        self.state.store(Arc::new(state));
    }
}

/// What changes with a file: modification time, length, inode. `None`: there is no such file.
type Signature = Option<(std::time::SystemTime, u64, u64)>;

fn signature(path: &Path) -> Signature {
    use std::os::unix::fs::MetadataExt;
    let meta = std::fs::metadata(path).ok()?;
    Some((meta.modified().ok()?, meta.len(), meta.ino()))
}

/// Reads the system's configuration again whenever its file has changed, for as long as the resolver lives.
async fn watch_system(inner: std::sync::Weak<Inner>, mut seen: Signature) {
    loop {
        tokio::time::sleep(WATCH_INTERVAL).await;
        let Some(inner) = inner.upgrade() else { return };
        let Some(client) = inner.client.clone() else {
            return;
        };
        let Some(path) = client.watched() else {
            continue;
        };
        // Files may block.
        let looked = tokio::task::spawn_blocking(move || {
            let current = signature(&path);
            (current != seen).then(|| (current, client.reread()))
        });
        if let Ok(Some((current, changed))) = looked.await {
            seen = current;
            if changed {
                inner.replace_state(|state| state.valid_from = now());
                inner.forget_flights();
            }
        }
    }
}
