//! A whole node: configuration, shards, sockets, DNS and probes, started, reloaded and drained together.
//!
//! What is asked of the shards is copied out under their locks and worked on outside.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant, SystemTime};

use arc_swap::ArcSwap;

use crate::config::{self, Config, Listen, Realm};
use crate::flow::PeerId;
use crate::location::{Instance, Standing};
use crate::peering::{Ledger, Published};
use crate::proxy::Policy;
use crate::shard::{Seeds, Shard, Stats, Update};

use super::call_records::CallRecords;
use super::capture::Captures;
use super::dns::{EnabledByRealm, Resolver};
use super::fixed::keep_fixed;
use super::hep::Capture;
pub use super::outcomes::{NodeError, ReloadError, Reloaded};
use super::random::{random, random_words};
use super::tls::{Certificate, Tls};
use super::upgrade::channel::Secrets;
use super::upgrade::{Desk, Heritage, Predecessor};
use super::{Counters, Handle, alto, follow, onlookers, probe, secret, start_from, workers};

/// An instance of a peer (`None`: the core's) and how it stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Listed {
    /// Whose.
    pub peer: Option<PeerId>,
    /// Which.
    pub instance: Instance,
    /// How it stands; on several shards, the worst.
    pub standing: Standing,
    /// It is probed.
    pub probed: bool,
}

/// Live transactions and the like, of all shards.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Live {
    /// Server transactions.
    pub servers: usize,
    /// Client transactions.
    pub clients: usize,
    /// Server transactions without a final response.
    pub open: usize,
    /// Response contexts, lingering ones included.
    pub contexts: usize,
    /// Calls counted.
    pub calls: usize,
    /// Timers armed.
    pub timers: usize,
}

/// A running node. The last owner's drop ends it, without waiting for calls: draining comes before that.
pub struct Node {
    handle: Handle<Shard>,
    /// After the handle: it is dropped, and so writes its last lines, when no worker runs any more.
    records: Option<CallRecords>,
    hep: Option<Capture>,
    captures: Captures,
    resolver: Resolver,
    ledger: Arc<Ledger>,
    secrets: Secrets,
    desk: Desk,
    predecessor: Option<Predecessor>,
    policy: ArcSwap<Policy>,
    path: Option<PathBuf>,
    started: Instant,
    started_at: SystemTime,
    draining: AtomicBool,
    ready: AtomicBool,
    reloads: [AtomicU64; 2],
    /// Held while a configuration is taken over.
    reloading: Mutex<()>,
    pub(super) probed: ArcSwap<Vec<(PeerId, Instance)>>,
    /// Tells the prober of a new policy.
    policy_changed: Arc<tokio::sync::Notify>,
    /// Tells who follows the names in `sources` of a new policy.
    names_changed: Arc<tokio::sync::Notify>,
    alto: Arc<alto::Alto>,
}

impl Node {
    /// Starts everything: when this returns, traffic is accepted. DNS queries and probes run on `tokio`.
    /// `path`: where [`Node::reload`] reads a new configuration.
    ///
    /// # Errors
    /// Sockets, threads, the secret's file, or no randomness; nothing is left running then.
    pub fn start(
        config: Config,
        path: Option<PathBuf>,
        tokio: &tokio::runtime::Handle,
    ) -> Result<Arc<Self>, NodeError> {
        Self::start_from(config, path, tokio, Heritage::default())
    }

    /// As [`Node::start`], with what another process has left. If that still runs, traffic is accepted once it gives
    /// the word ([`Node::succeed`]).
    ///
    /// # Errors
    /// As [`Node::start`].
    pub fn start_from(
        mut config: Config,
        path: Option<PathBuf>,
        tokio: &tokio::runtime::Handle,
        heritage: Heritage,
    ) -> Result<Arc<Self>, NodeError> {
        let predecessor = heritage.predecessor().cloned();
        if let Some(before) = &predecessor
            && before.workers != workers(&config)
        {
            // Each has its sockets.
            tracing::warn!(workers = before.workers, "runtime.workers takes a restart to change");
            config.runtime.workers = before.workers;
        }
        let mut secrets =
            predecessor.as_ref().map_or_else(new_secrets, |before| Ok(before.secrets.clone()))?;
        if let Some(file) = &config.sip.dialog_secret_file {
            secrets.dialog = secret::read(file)?;
        }
        let config = Arc::new(config);
        let ledger = Arc::new(Ledger::new(Instant::now()));
        let policy = Arc::new(Policy::new(Arc::clone(&config), Arc::clone(&ledger), secrets.dialog, None));
        let resolver = Resolver::new(&config.dns, enabled(&policy), config.limits.dns_entries, tokio.clone());
        resolver.ranker().configure_from(&config);
        let records =
            config.records.as_ref().map(|r| CallRecords::start(r, Arc::clone(&policy))).transpose()?;
        let shards = shards(&policy, &secrets)?;
        let handle = start_from(&config, shards, Arc::new(resolver.clone()), secrets.owner, heritage)?;
        let hep = config.hep.as_ref().map(|h| Capture::start(h, handle.tap()).map_err(NodeError::Hep));
        handle.watch(records.as_ref());
        let captures = Captures::new(Arc::clone(handle.tap()));
        let node = Arc::new(Self {
            policy: ArcSwap::new(Arc::clone(&policy)),
            handle,
            records,
            hep: hep.transpose()?,
            captures,
            resolver,
            ledger,
            secrets,
            desk: Desk::new(predecessor.as_ref()),
            predecessor,
            path,
            started: Instant::now(),
            started_at: SystemTime::now(),
            draining: AtomicBool::new(false),
            ready: AtomicBool::new(false),
            reloads: Default::default(),
            reloading: Mutex::default(),
            probed: ArcSwap::default(),
            policy_changed: Arc::default(),
            names_changed: Arc::default(),
            alto: Arc::default(),
        });
        if node.handle.listeners() != config.listen {
            // Port 0 has become a real one, which belongs into Via and Record-Route.
            let config = Config { listen: node.handle.listeners().to_vec(), ..Config::clone(&config) };
            node.take_over(config);
        } else {
            node.name_peers(&policy);
        }
        let weak = Arc::downgrade(&node);
        node.resolver
            .ranker()
            .ask_health(Box::new(move |now| weak.upgrade().map(|node| node.down(now)).unwrap_or_default()));
        tokio.spawn(probe::run(Arc::downgrade(&node), Arc::clone(&node.policy_changed), random()?));
        tokio.spawn(follow::run(Arc::downgrade(&node), Arc::clone(&node.names_changed)));
        onlookers::look(config.runtime.udp_segmentation, node.handle.counters());
        tokio.spawn(onlookers::run(Arc::downgrade(&node)));
        tokio.spawn(watch_certificates(Arc::downgrade(&node)));
        tokio.spawn(follow::forget_departed(Arc::downgrade(&node)));
        tokio.spawn(alto::run(Arc::downgrade(&node), Arc::clone(&node.alto), random()?));
        Ok(node)
    }

    /// The policy in force.
    pub fn policy(&self) -> Arc<Policy> {
        self.policy.load_full()
    }

    /// Where upgrades are asked for.
    pub const fn desk(&self) -> &Desk {
        &self.desk
    }

    pub(super) const fn predecessor(&self) -> Option<&Predecessor> {
        self.predecessor.as_ref()
    }

    pub(super) const fn secrets(&self) -> &Secrets {
        &self.secrets
    }

    pub(super) const fn handle(&self) -> &Handle<Shard> {
        &self.handle
    }

    /// The listeners with the addresses they are bound to, in file order.
    pub fn listeners(&self) -> &[Listen] {
        self.handle.listeners()
    }

    /// The resolver.
    pub fn resolver(&self) -> &Resolver {
        &self.resolver
    }

    /// The call records; `None` without `[records]`.
    pub fn call_records(&self) -> Option<&CallRecords> {
        self.records.as_ref()
    }

    /// What copies messages to a capture server; `None` without `[hep]`.
    pub fn hep(&self) -> Option<&Capture> {
        self.hep.as_ref()
    }

    /// Captures on demand.
    pub fn captures(&self) -> &Captures {
        &self.captures
    }

    /// The ALTO client.
    pub fn alto(&self) -> &alto::Alto {
        &self.alto
    }

    /// Calls and rates of the peers.
    pub fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    /// What the sockets have counted.
    pub fn counters(&self) -> &Counters {
        self.handle.counters()
    }

    /// The configuration file.
    pub fn path(&self) -> Option<&Path> {
        self.path.as_deref()
    }

    /// When it was started.
    pub const fn started(&self) -> Instant {
        self.started
    }

    /// The wall clock's time of a moment.
    pub fn wall_clock(&self, at: Instant) -> SystemTime {
        match at.checked_duration_since(self.started) {
            Some(after) => self.started_at + after,
            None => self.started_at - self.started.saturating_duration_since(at),
        }
    }

    /// Number of shards, and so of workers.
    pub fn shards(&self) -> usize {
        self.handle.shards()
    }

    /// Begins or ends draining (rule 12).
    pub fn drain(&self, drain: bool) {
        if self.draining.swap(drain, Ordering::Relaxed) != drain {
            tracing::info!(
                draining = drain,
                "{}",
                if drain { "draining" } else { "accepting requests again" }
            );
        }
        self.handle.update(&Update::Drain(drain));
    }

    /// True while draining.
    pub fn is_draining(&self) -> bool {
        self.draining.load(Ordering::Relaxed)
    }

    /// Everything has been started that belongs to it: it may be told so to load balancers.
    pub fn set_ready(&self) {
        self.ready.store(true, Ordering::Relaxed);
    }

    /// Why it should get no new requests; `None`: it should.
    pub fn unready(&self) -> Option<&'static str> {
        if self.is_draining() {
            Some("draining")
        } else if !self.ready.load(Ordering::Relaxed) {
            Some("starting")
        } else {
            None
        }
    }

    /// Configurations taken over and refused since the start.
    pub fn reloads(&self) -> [u64; 2] {
        [0, 1].map(|i| self.reloads.get(i).map_or(0, |n: &AtomicU64| n.load(Ordering::Relaxed)))
    }

    /// Reads the configuration file again and takes it over as a whole, or not at all. Reads files: may block.
    ///
    /// # Errors
    /// There is no file, or it has errors.
    pub fn reload(&self) -> Result<Reloaded, ReloadError> {
        let _one_at_a_time = self.reloading.lock().unwrap_or_else(PoisonError::into_inner);
        let outcome = self.try_reload();
        let count = self.reloads.get(usize::from(outcome.is_err()));
        if let Some(count) = count {
            count.fetch_add(1, Ordering::Relaxed);
        }
        match &outcome {
            Ok(reloaded) => {
                for warning in &reloaded.warnings {
                    tracing::warn!("{warning}");
                }
                let restart_needed = reloaded.restart_needed.join(", ");
                if restart_needed.is_empty() {
                    tracing::info!("configuration reloaded");
                } else {
                    tracing::warn!(restart_needed, "configuration reloaded, some of it needs a restart");
                }
            }
            Err(ReloadError::NoFile) => tracing::error!("nothing to reload: not started from a file"),
            Err(ReloadError::Tls(error)) => {
                tracing::error!("{error}");
                tracing::error!("the configuration is not taken over, the old one stays");
            }
            Err(ReloadError::Config(errors)) => {
                for error in errors {
                    tracing::error!("{error}");
                }
                tracing::error!(
                    errors = errors.len(),
                    "the configuration is not taken over, the old one stays"
                );
            }
        }
        outcome
    }

    fn try_reload(&self) -> Result<Reloaded, ReloadError> {
        let path = self.path.as_deref().ok_or(ReloadError::NoFile)?;
        let (mut config, warnings) = config::load(path).map_err(ReloadError::Config)?;
        if config.tls.is_none() {
            // The TLS listeners stay until a restart, and need it.
            config.tls.clone_from(&self.policy().config.tls);
        }
        // Read anew even if nothing has changed in the configuration: the files may have.
        let tls = Tls::load(&config)?;
        let restart_needed = self.take_over(config);
        if let Some(records) = &self.records {
            records.reopen();
        }
        if let Some(mut tls) = tls {
            let policy = self.policy();
            tls.number(|name| policy.peers.iter().flatten().find(|p| p.config.name == name).map(|p| p.id));
            self.handle.set_tls(tls);
            self.tell_of_certificates();
        }
        Ok(Reloaded { warnings, restart_needed })
    }

    /// Puts a configuration in force as far as that goes without a restart.
    fn take_over(&self, mut config: Config) -> Vec<&'static str> {
        let before = self.policy();
        let restart_needed = keep_fixed(&mut config, &before.config, self.handle.listeners());
        let config = Arc::new(config);
        let new =
            Policy::new(Arc::clone(&config), Arc::clone(&self.ledger), self.secrets.dialog, Some(&before));
        let policy = Arc::new(new.with_departed(&before, Instant::now(), |peer| self.ledger.calls(peer) > 0));
        self.policy.store(Arc::clone(&policy));
        self.name_peers(&policy);
        self.resolver.set_enabled(enabled(&policy));
        self.resolver.reconfigure(&config.dns);
        self.resolver.ranker().configure_from(&config);
        if let Some(records) = &self.records {
            records.set_policy(Arc::clone(&policy));
        }
        self.handle.update(&Update::Policy(policy));
        self.policy_changed.notify_one();
        self.names_changed.notify_one();
        self.alto.wake();
        restart_needed
    }

    /// Puts other addresses behind the names in `sources`. Waits for a reload that is under way: may block.
    pub(super) fn set_published(&self, published: Published) {
        self.replace_policy(|policy| Some(policy.with_published(published)));
    }

    /// Forgets removed peers whose calls have ended. May block likewise.
    pub(super) fn forget_departed(&self) {
        let calls = |peer| self.ledger.calls(peer) > 0;
        if self.policy().departed_names().next().is_some() {
            self.replace_policy(|policy| policy.without_departed(Instant::now(), calls));
        }
    }

    fn replace_policy(&self, other: impl FnOnce(&Policy) -> Option<Policy>) {
        let _one_at_a_time = self.reloading.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(policy) = other(&self.policy()).map(Arc::new) else { return };
        self.policy.store(Arc::clone(&policy));
        self.name_peers(&policy);
        self.handle.update(&Update::Policy(policy));
    }

    /// The certificates that this node shows, its own first.
    pub fn certificates(&self) -> Vec<Certificate> {
        self.handle.tls().map_or_else(Vec::new, |tls| tls.certificates().cloned().collect())
    }

    /// What is wrong with the certificates at this moment, though they are in use: for readiness and the log.
    pub fn certificate_warnings(&self) -> Vec<String> {
        let config = &self.policy().config;
        self.handle.tls().map_or_else(Vec::new, |tls| {
            tls.misfits(config, SystemTime::now()).iter().map(ToString::to_string).collect()
        })
    }

    fn tell_of_certificates(&self) {
        for warning in self.certificate_warnings() {
            tracing::warn!("{warning}");
        }
    }

    fn name_peers(&self, policy: &Arc<Policy>) {
        let names = (0..policy.peers.len()).map(|at| {
            let peer = u16::try_from(at).ok().map(PeerId);
            Arc::from(policy.peer_name(peer))
        });
        self.handle.name_peers(names.collect(), Arc::clone(policy));
    }

    /// The counters of all shards.
    pub fn stats(&self) -> Stats {
        let mut sum = Stats::default();
        for stats in self.each(|shard| shard.stats().clone()) {
            sum.merge(&stats);
        }
        sum
    }

    /// What is under way.
    pub fn live(&self) -> Live {
        let all = self.each(|shard| {
            let (servers, clients) = shard.transactions();
            Live {
                servers,
                clients,
                open: shard.open(),
                contexts: shard.contexts(),
                calls: shard.calls(),
                timers: shard.timers(),
            }
        });
        all.into_iter().fold(Live::default(), |sum, one| Live {
            servers: sum.servers + one.servers,
            clients: sum.clients + one.clients,
            open: sum.open + one.open,
            contexts: sum.contexts + one.contexts,
            calls: sum.calls + one.calls,
            timers: sum.timers + one.timers,
        })
    }

    /// Server transactions that still owe a final response.
    pub fn open(&self) -> usize {
        self.each(|shard| shard.open()).into_iter().sum()
    }

    /// Gives news to one shard, or to all of them.
    pub(super) fn update(&self, shard: Option<usize>, update: Update) {
        match shard {
            Some(shard) => self.handle.update_one(shard, update),
            None => self.handle.update(&update),
        }
    }

    /// Takes note of what is probed.
    pub(super) fn set_probed(&self, instances: Vec<(PeerId, Instance)>) {
        self.probed.store(Arc::new(instances));
    }

    /// Looks at one shard, under its lock. `None`: there is no such shard.
    pub(super) fn with_shard<R>(&self, at: usize, ask: impl FnOnce(&mut Shard) -> R) -> Option<R> {
        self.handle.with_shard(at, ask)
    }

    /// Asks every shard in turn.
    pub(super) fn each<R>(&self, ask: impl Fn(&mut Shard) -> R) -> Vec<R> {
        (0..self.handle.shards()).filter_map(|at| self.handle.with_shard(at, &ask)).collect()
    }
}

/// Tells once a day of certificates that are about to expire.
async fn watch_certificates(node: Weak<Node>) {
    while let Some(node) = node.upgrade() {
        node.tell_of_certificates();
        drop(node);
        tokio::time::sleep(Duration::from_secs(86_400)).await;
    }
}

/// What each realm can send by.
pub fn enabled(policy: &Policy) -> EnabledByRealm {
    EnabledByRealm {
        peering: policy.enabled(Realm::Peering).clone(),
        core: policy.enabled(Realm::Core).clone(),
        both: policy.enabled(Realm::Both).clone(),
    }
}

/// Drawn anew at every start that takes nothing over.
fn new_secrets() -> Result<Secrets, NodeError> {
    let [owner] = random_words()?;
    let (keys, call, loops) = (random_words()?, random_words()?, random_words()?);
    Ok(Secrets { dialog: random()?, owner, keys, call, loops })
}

/// One shard per worker. What they draw is their own, so that their branches differ from those of a process before.
fn shards(policy: &Arc<Policy>, secrets: &Secrets) -> Result<Vec<Shard>, NodeError> {
    let count = workers(&policy.config);
    let Secrets { owner, keys, call, loops, .. } = *secrets;
    (0..count)
        .map(|id| {
            let seeds = Seeds { seed: random()?, keys, call, loops, owner };
            Ok(Shard::new(u16::try_from(id).unwrap_or(u16::MAX), count, Arc::clone(policy), &seeds))
        })
        .collect()
}

/// Waits until no server transaction lacks its final response, or for `most`. True: none does.
pub async fn drained(node: &Node, most: Duration) -> bool {
    let until = Instant::now() + most;
    loop {
        if node.open() == 0 {
            return true;
        }
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return false;
        }
        tokio::time::sleep(left.min(Duration::from_millis(20))).await;
    }
}
