//! Drives the step machine of [`crate::location`], and keeps whole results.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use arc_swap::ArcSwapOption;
use moka::Expiry;
use moka::sync::Cache;
use smallvec::SmallVec;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::sleep_until;

use super::cache;
use super::flight::{Known, STALE_WAIT, Told};
use super::stats::CacheResult;
use super::{Inner, MAX_LOCATIONS, State, now};
use crate::location::{LocateKey, Located, Outcome, Question, Ranked, RecordKind, Resolution};

/// How long one address family is waited for once the other has brought addresses.
const LAG: Duration = Duration::from_millis(100);

/// How long the addresses of one server are waited for once those of another are known.
const SPARE: Duration = Duration::from_millis(500);

/// How long an answer is waited for whose question failed lately: a server that is well again answers
/// within this, and one that is not costs no call more.
const DOUBT: Duration = Duration::from_millis(300);

/// Time between looks at what ought to be refreshed, until the result runs out.
const REFRESH_AGAIN: Duration = Duration::from_secs(5);

/// A whole result in the cache.
struct Kept {
    /// In the order that costs give it.
    located: Arc<Located>,
    /// As the DNS gave it.
    plain: Arc<Located>,
    /// The costs that made the order, as [`Ranker::epoch`] counts them.
    costs: u64,
    /// When that order runs out.
    rank_at: Option<Instant>,
    /// When something that it stands on ought to be asked for again.
    refresh_at: Option<Instant>,
    /// How often that has been done.
    refreshes: AtomicU32,
    epoch: u64,
    keep: Duration,
}

impl Kept {
    /// True for one caller at [`Kept::refresh_at`], and again from time to time: the first try may fail.
    fn refresh_is_due(&self, now: Instant) -> bool {
        let Some(at) = self.refresh_at else {
            return false;
        };
        let done = self.refreshes.load(Ordering::Relaxed);
        now >= at + REFRESH_AGAIN * done
            && self
                .refreshes
                .compare_exchange(done, done.saturating_add(1), Ordering::Relaxed, Ordering::Relaxed)
                .is_ok()
    }
}

/// Places before the cache of whole results.
const NEAR: usize = 256;

/// The cache of whole results.
pub(super) struct Results {
    kept: Cache<LocateKey, Arc<Kept>, ahash::RandomState>,
    /// Before it, by the hash of the key: what was looked for last. Nothing here counts, is timed or moved about at a
    /// look; whoever finds something sees from it whether it still holds.
    near: Box<[ArcSwapOption<Kept>]>,
    places: ahash::RandomState,
}

struct Keep;

impl Expiry<LocateKey, Arc<Kept>> for Keep {
    fn expire_after_create(&self, _: &LocateKey, kept: &Arc<Kept>, _: Instant) -> Option<Duration> {
        Some(kept.keep)
    }

    fn expire_after_update(
        &self,
        _: &LocateKey,
        kept: &Arc<Kept>,
        _: Instant,
        _: Option<Duration>,
    ) -> Option<Duration> {
        Some(kept.keep)
    }
}

impl Results {
    pub(super) fn new(entries: usize) -> Self {
        let kept = Cache::builder()
            .max_capacity(u64::try_from(entries).unwrap_or(u64::MAX))
            .expire_after(Keep)
            .build_with_hasher(ahash::RandomState::new());
        let near = (0..NEAR).map(|_| ArcSwapOption::empty()).collect();
        Self { kept, near, places: ahash::RandomState::new() }
    }

    pub(super) fn clear(&self) {
        self.kept.invalidate_all();
        self.near.iter().for_each(|place| place.store(None));
    }

    fn place(&self, key: &LocateKey) -> Option<&ArcSwapOption<Kept>> {
        let at = self.places.hash_one(key) % u64::try_from(NEAR).unwrap_or(1);
        self.near.get(usize::try_from(at).unwrap_or(0))
    }

    fn get(&self, key: &LocateKey) -> Option<Arc<Kept>> {
        let place = self.place(key)?;
        let near = place.load();
        if let Some(kept) = near.as_ref().filter(|kept| kept.located.key == *key) {
            return Some(Arc::clone(kept));
        }
        let kept = self.kept.get(key)?;
        // Unless something newer has been put there meanwhile.
        place.compare_and_swap(&near, Some(Arc::clone(&kept)));
        Some(kept)
    }

    fn insert(&self, kept: Kept) {
        let kept = Arc::new(kept);
        let key = &kept.located.key;
        self.kept.insert(key.clone(), Arc::clone(&kept));
        if let Some(place) = self.place(key) {
            place.store(Some(Arc::clone(&kept)));
        }
    }
}

impl Inner {
    pub(super) fn locate_cached(self: &Arc<Self>, key: &LocateKey, now: Instant) -> Option<Arc<Located>> {
        let state = self.state.load();
        let kept = self.results.get(key);
        if let Some(kept) = kept.filter(|k| k.epoch == state.epoch && now < k.located.expires) {
            if kept.refresh_is_due(now) {
                // Looking is enough: what is due is asked for.
                for step in &kept.located.steps {
                    let _ = self.known(&step.question, now);
                }
            }
            let found = kept.located.outcome == Outcome::Found;
            self.stats.cached(if found { CacheResult::Hit } else { CacheResult::Negative });
            if kept.costs != self.ranker.epoch() || kept.rank_at.is_some_and(|at| at <= now) {
                return Some(self.rank_again(&kept, now));
            }
            return Some(kept.located.clone());
        }
        self.rebuild(key, &state, now)
    }

    /// Puts a kept result into the order that costs give it now. No question to the DNS, no wait.
    fn rank_again(&self, kept: &Kept, now: Instant) -> Arc<Located> {
        let costs = self.ranker.epoch();
        let Ranked { located, again_at } = self.ranker.rank(kept.plain.clone(), now);
        let again = Kept {
            located: located.clone(),
            plain: kept.plain.clone(),
            costs,
            rank_at: again_at,
            refresh_at: kept.refresh_at,
            refreshes: AtomicU32::new(kept.refreshes.load(Ordering::Relaxed)),
            epoch: kept.epoch,
            keep: located.expires.saturating_duration_since(now),
        };
        self.results.insert(again);
        located
    }

    /// Builds a result of what the cache holds; `None` if that is not enough.
    fn rebuild(self: &Arc<Self>, key: &LocateKey, state: &State, now: Instant) -> Option<Arc<Located>> {
        let mut resolution = Resolution::new(key.clone(), state.enabled.of(key.realm));
        let mut refresh_at = None;
        let mut served: SmallVec<[CacheResult; 16]> = SmallVec::new();
        while !resolution.finished() {
            let questions = resolution.next_questions();
            if questions.is_empty() {
                return None;
            }
            for question in &questions {
                let Known::Now((answer, meta), at, result) = self.known(question, now) else {
                    return None;
                };
                served.push(result);
                refresh_at = earlier(refresh_at, at);
                resolution.answer(question, answer, meta);
            }
        }
        served.into_iter().for_each(|result| self.stats.cached(result));
        Some(self.keep(resolution, refresh_at, state, now))
    }

    pub(super) async fn locate(this: &Arc<Self>, key: LocateKey) -> Arc<Located> {
        if let Some(located) = this.locate_cached(&key, now()) {
            return located;
        }
        let listed = {
            let mut locations = this.locations.lock().unwrap_or_else(PoisonError::into_inner);
            match locations.get(&key) {
                Some(told) => Some(told.clone()),
                None if locations.len() >= MAX_LOCATIONS => None,
                None => {
                    let (tell, told) = watch::channel(None);
                    locations.insert(key.clone(), told.clone());
                    let listing = Listing { inner: this.clone(), key: key.clone(), told: told.clone() };
                    this.handle.spawn(listing.run(tell));
                    Some(told)
                }
            }
        };
        if let Some(mut told) = listed
            && let Ok(located) = told.wait_for(Option::is_some).await
            && let Some(located) = &*located
        {
            return located.clone();
        }
        // Too many are under way, or the task is gone (the runtime ends): the time is over.
        let state = this.state.load();
        let mut resolution = Resolution::new(key.clone(), state.enabled.of(key.realm));
        resolution.time_out();
        Arc::new(resolution.into_located(now()))
    }

    /// One location from its first question to its end.
    async fn drive(self: &Arc<Self>, key: &LocateKey) -> Arc<Located> {
        let state = self.state.load_full();
        let begun = now();
        let (deadline, patience) = (begun + state.budget, begun + STALE_WAIT);
        let mut resolution = Resolution::new(key.clone(), state.enabled.of(key.realm));
        let mut asking: JoinSet<(Question, Told)> = JoinSet::new();
        // Open questions that are not waited for beyond a moment of their own.
        let mut limits: Vec<(Question, Instant)> = Vec::new();
        let mut refresh_at = None;
        loop {
            let asked = self.put_questions(&mut resolution, &mut asking, &mut refresh_at, patience);
            for question in asked {
                // A name server that swallows NAPTR questions must leave time for the others.
                let limit = match question.kind {
                    _ if self.sets.failed_lately(&question, now()) => now() + DOUBT,
                    RecordKind::Naptr => begun + state.budget / 2,
                    _ => continue,
                };
                limits.push((question, limit));
            }
            if resolution.finished() {
                break;
            }
            let at = now();
            if at >= deadline || asking.is_empty() {
                resolution.time_out();
                break;
            }
            let spare = resolution.spare();
            for (questions, wait) in [(resolution.lagging(), LAG), (spare, SPARE)] {
                for question in questions {
                    match limits.iter_mut().find(|(q, _)| *q == question) {
                        // The first time it is seen; later its limit is nearer.
                        Some((_, limit)) => *limit = (*limit).min(at + wait),
                        None => limits.push((question, at + wait)),
                    }
                }
            }
            limits.retain(|(_, limit)| *limit > at);
            let wake = limits.iter().map(|(_, until)| *until).fold(deadline, Instant::min);
            tokio::select! {
                Some(ended) = asking.join_next() => {
                    if let Ok((question, (answer, meta))) = ended {
                        refresh_at = earlier(refresh_at, cache::refresh_at(now(), meta.expires));
                        resolution.answer(&question, answer, meta);
                    }
                }
                () = sleep_until(wake.into()) => {
                    let at = now();
                    for (question, _) in limits.iter().filter(|(_, until)| *until <= at) {
                        resolution.give_up(question);
                    }
                }
            }
        }
        self.keep(resolution, refresh_at, &state, now())
    }

    /// Answers from the cache what can be, puts the rest to the servers; returns that rest.
    fn put_questions(
        self: &Arc<Self>,
        resolution: &mut Resolution,
        asking: &mut JoinSet<(Question, Told)>,
        refresh_at: &mut Option<Instant>,
        patience: Instant,
    ) -> Vec<Question> {
        let mut asked = Vec::new();
        loop {
            let questions = resolution.next_questions();
            if questions.is_empty() {
                return asked;
            }
            for question in questions {
                match self.known(&question, now()) {
                    Known::Now((answer, meta), at, result) => {
                        self.stats.cached(result);
                        *refresh_at = earlier(*refresh_at, at);
                        resolution.answer(&question, answer, meta);
                    }
                    Known::Ask(stale) => {
                        asked.push(question.clone());
                        let inner = self.clone();
                        asking.spawn_on(
                            async move {
                                let told = inner.ask(&question, stale, patience).await;
                                (question, told)
                            },
                            &self.handle,
                        );
                    }
                }
            }
        }
    }

    fn keep(
        &self,
        resolution: Resolution,
        refresh_at: Option<Instant>,
        state: &State,
        now: Instant,
    ) -> Arc<Located> {
        let mut located = resolution.into_located(now);
        if matches!(located.outcome, Outcome::DnsFailure | Outcome::TimedOut) {
            // The first failure on the way may be over its second by now; the whole must not begin anew at once.
            located.expires = located.expires.max(now + cache::HOLD);
        }
        located.made = Some(now);
        located.serial = self.serial.fetch_add(1, Ordering::Relaxed);
        let costs = self.ranker.epoch();
        let plain = Arc::new(located);
        let Ranked { located, again_at } = self.ranker.rank(plain.clone(), now);
        let keep = located.expires.saturating_duration_since(now);
        if !keep.is_zero() {
            let kept = Kept {
                located: located.clone(),
                plain,
                costs,
                rank_at: again_at,
                refresh_at,
                refreshes: AtomicU32::new(0),
                epoch: state.epoch,
                keep,
            };
            self.results.insert(kept);
        }
        located
    }
}

fn earlier(a: Option<Instant>, b: Option<Instant>) -> Option<Instant> {
    match (a, b) {
        (Some(a), Some(b)) => Some(a.min(b)),
        (a, b) => a.or(b),
    }
}

/// Where the result of a location under way appears.
pub(super) type ToldLocated = watch::Receiver<Option<Arc<Located>>>;

/// Takes a location off the list however it ends.
struct Listing {
    inner: Arc<Inner>,
    key: LocateKey,
    told: ToldLocated,
}

impl Listing {
    async fn run(self, tell: watch::Sender<Option<Arc<Located>>>) {
        let located = self.inner.drive(&self.key).await;
        tell.send_replace(Some(located));
    }
}

impl Drop for Listing {
    fn drop(&mut self) {
        let mut locations = self.inner.locations.lock().unwrap_or_else(PoisonError::into_inner);
        if locations.get(&self.key).is_some_and(|told| told.same_channel(&self.told)) {
            locations.remove(&self.key);
        }
    }
}
