//! The cache of record sets: what is known, since when, until when, and what failed lately. Time is passed in.

use std::sync::Arc;
use std::time::{Duration, Instant};

use moka::Expiry;
use moka::sync::Cache;

use super::upstream::Found;
use crate::config;
use crate::location::{Answer, AnswerMeta, Question};

/// After a failure the same question is not asked again for so long (rule 16; RFC 9520 §3.2 wants at least this).
pub(super) const HOLD: Duration = Duration::from_secs(1);

/// While the last failure is no older than this, an expired entry is used at once; the servers are asked besides
/// (RFC 8767 §5: "failure recheck timer").
const FAILING: Duration = Duration::from_secs(30);

/// Sets with a shorter life are not refreshed ahead: they would be asked for all the time.
const REFRESH_MIN: Duration = Duration::from_secs(10);

/// How long things are believed, from `[dns]`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Lifetimes {
    min_ttl: Duration,
    max_ttl: Duration,
    negative_ttl: Duration,
    stale_ttl: Duration,
}

impl From<&config::Dns> for Lifetimes {
    fn from(dns: &config::Dns) -> Self {
        Self {
            min_ttl: dns.min_ttl,
            max_ttl: dns.max_ttl,
            negative_ttl: dns.negative_ttl,
            stale_ttl: dns.stale_ttl,
        }
    }
}

/// An answer that says something of the name.
#[derive(Clone, Debug)]
struct Good {
    answer: Answer,
    /// When it was asked for: an answer to a question from before the servers changed counts as run out.
    asked: Instant,
    fetched: Instant,
    expires: Instant,
    /// May be used beyond its time: not where it was never to be cached.
    stale_for: Duration,
}

impl Good {
    fn is_valid(&self, now: Instant, valid_from: Instant) -> bool {
        now < self.expires && self.asked >= valid_from
    }
}

/// The last failure.
#[derive(Clone, Debug)]
struct Failed {
    answer: Answer,
    at: Instant,
}

/// All that is known of one question.
#[derive(Clone, Debug)]
pub(super) struct Slot {
    good: Option<Good>,
    failed: Option<Failed>,
    /// How long moka keeps it.
    keep: Duration,
}

/// What the cache says to a question.
#[derive(Clone, Debug)]
pub(super) enum Look {
    /// Valid. From the second instant on it should be asked for again besides.
    Fresh(Answer, AnswerMeta, Option<Instant>),
    /// It failed a moment ago: this is the answer (perhaps a stale one), and nobody is to be asked.
    Held(Answer, AnswerMeta),
    /// It fails, if not at this very moment: use this, and ask besides.
    Failing(Answer, AnswerMeta),
    /// Run out: ask, and use this if the answer does not come soon.
    Stale(Answer, AnswerMeta),
    /// Nothing known.
    Miss,
}

/// Time that moka keeps an entry: until the end of its stale life.
struct Keep;

impl Expiry<Question, Arc<Slot>> for Keep {
    fn expire_after_create(&self, _: &Question, slot: &Arc<Slot>, _: Instant) -> Option<Duration> {
        Some(slot.keep)
    }

    fn expire_after_update(
        &self,
        _: &Question,
        slot: &Arc<Slot>,
        _: Instant,
        _: Option<Duration>,
    ) -> Option<Duration> {
        Some(slot.keep)
    }
}

/// The cache itself: bounded, shared.
#[derive(Clone, Debug)]
pub(super) struct RrCache {
    slots: Cache<Question, Arc<Slot>, ahash::RandomState>,
}

impl RrCache {
    /// With room for so many sets.
    pub(super) fn new(entries: usize) -> Self {
        let slots = Cache::builder()
            .max_capacity(u64::try_from(entries).unwrap_or(u64::MAX))
            .expire_after(Keep)
            .build_with_hasher(ahash::RandomState::new());
        Self { slots }
    }

    /// What is known. Nothing from before `valid_from` is valid (it may still serve as stale).
    pub(super) fn look(&self, question: &Question, now: Instant, valid_from: Instant) -> Look {
        let Some(slot) = self.slots.get(question) else {
            return Look::Miss;
        };
        let failed = slot.failed.as_ref().filter(|f| f.at >= valid_from);
        let held_until = failed.map(|f| f.at + HOLD).filter(|until| now < *until);
        let Some(good) = &slot.good else {
            return match (failed, held_until) {
                (Some(f), Some(until)) => Look::Held(f.answer.clone(), cached(until, false)),
                _ => Look::Miss,
            };
        };
        let answer = || good.answer.clone();
        if good.is_valid(now, valid_from) {
            // A failed refresh is not tried again at each call.
            let refresh_at =
                refresh_at(good.fetched, good.expires).map(|at| at.max(held_until.unwrap_or(at)));
            return Look::Fresh(answer(), cached(good.expires, false), refresh_at);
        }
        if now >= good.expires + good.stale_for {
            return match (failed, held_until) {
                (Some(f), Some(until)) => Look::Held(f.answer.clone(), cached(until, false)),
                _ => Look::Miss,
            };
        }
        match (failed, held_until) {
            (_, Some(until)) => Look::Held(answer(), cached(until, true)),
            (Some(f), None) if now < f.at + FAILING => Look::Failing(answer(), cached(now + HOLD, true)),
            _ => Look::Stale(answer(), cached(now + HOLD, true)),
        }
    }

    /// When the answer that is kept came; `None` where only a failure is.
    pub(super) fn fetched(&self, question: &Question) -> Option<Instant> {
        self.slots.get(question).and_then(|slot| slot.good.as_ref().map(|good| good.fetched))
    }

    /// True if the last answer to the question was a failure, and not long ago.
    pub(super) fn failed_lately(&self, question: &Question, now: Instant) -> bool {
        let slot = self.slots.get(question);
        slot.and_then(|slot| slot.failed.as_ref().map(|f| now < f.at + FAILING)).unwrap_or(false)
    }

    /// What the askers are told of an answer that is not taken in.
    pub(super) fn unstored(found: &Found, now: Instant, lives: &Lifetimes) -> (Answer, AnswerMeta) {
        let (answer, life, _) = judge(found, lives).unwrap_or_else(|answer| (answer, HOLD, Duration::ZERO));
        (answer, AnswerMeta { expires: now + life, cached: false, stale: false })
    }

    /// Takes in how a question ended that was asked at `asked`; returns what its askers are told.
    pub(super) fn store(
        &self,
        question: &Question,
        found: &Found,
        asked: Instant,
        now: Instant,
        valid_from: Instant,
        lives: &Lifetimes,
    ) -> (Answer, AnswerMeta) {
        let (answer, life, stale_for) = match judge(found, lives) {
            Ok(judged) => judged,
            Err(answer) => return self.store_failure(question, answer, now, valid_from),
        };
        let expires = now + life;
        if life.is_zero() {
            self.slots.invalidate(question);
        } else {
            let good = Good { answer: answer.clone(), asked, fetched: now, expires, stale_for };
            let keep = life + stale_for.max(HOLD);
            self.slots.insert(question.clone(), Arc::new(Slot { good: Some(good), failed: None, keep }));
        }
        (answer, AnswerMeta { expires, cached: false, stale: false })
    }

    fn store_failure(
        &self,
        question: &Question,
        answer: Answer,
        now: Instant,
        valid_from: Instant,
    ) -> (Answer, AnswerMeta) {
        let until = now + HOLD;
        let good = self.slots.get(question).and_then(|slot| slot.good.clone());
        let good = good.filter(|g| now < g.expires + g.stale_for);
        let keep = good
            .as_ref()
            .map_or(FAILING, |g| (g.expires + g.stale_for).saturating_duration_since(now).max(FAILING));
        let told = match &good {
            Some(g) if g.is_valid(now, valid_from) => (g.answer.clone(), cached(g.expires, false)),
            Some(g) => (g.answer.clone(), cached(until, true)),
            None => (answer.clone(), AnswerMeta { expires: until, cached: false, stale: false }),
        };
        let failed = Some(Failed { answer, at: now });
        self.slots.insert(question.clone(), Arc::new(Slot { good, failed, keep }));
        told
    }

    /// Takes in a set that came with another answer, unless something valid is known that was asked for.
    pub(super) fn store_companion(
        &self,
        question: &Question,
        found: &Found,
        now: Instant,
        valid_from: Instant,
        lives: &Lifetimes,
    ) {
        let lives_on = matches!(judge(found, lives), Ok((_, life, _)) if !life.is_zero());
        if lives_on && !matches!(self.look(question, now, valid_from), Look::Fresh(..)) {
            self.store(question, found, now, now, valid_from, lives);
        }
    }

    /// Forgets everything, or a name and all below it.
    pub(super) fn flush(&self, name: Option<&str>) {
        match name {
            None => self.slots.invalidate_all(),
            Some(name) => {
                let below = |n: &str| {
                    n.strip_suffix(name)
                        .is_some_and(|rest| name.is_empty() || rest.is_empty() || rest.ends_with('.'))
                };
                for (key, _) in self.slots.iter().filter(|(key, _)| below(&key.name)) {
                    self.slots.invalidate(&*key);
                }
            }
        }
    }

    /// Number of entries.
    pub(super) fn len(&self) -> u64 {
        self.slots.run_pending_tasks();
        self.slots.entry_count()
    }

    /// Everything, in no order.
    pub(super) fn iter(&self) -> impl Iterator<Item = (Arc<Question>, Arc<Slot>)> {
        self.slots.iter()
    }
}

/// The answer, how long it is valid, and how long beyond; a failure as error.
fn judge(found: &Found, lives: &Lifetimes) -> Result<(Answer, Duration, Duration), Answer> {
    let negative = |ttl: Option<Duration>| match ttl {
        Some(ttl) => (ttl.min(lives.negative_ttl), lives.stale_ttl),
        // Without SOA it must not be cached (RFC 2308 §5); a second spares the servers a flood.
        None => (HOLD.min(lives.negative_ttl), Duration::ZERO),
    };
    let (answer, (life, stale_for)) = match found {
        Found::Records(set, ttl) => {
            (Answer::Records(set.clone()), ((*ttl).max(lives.min_ttl).min(lives.max_ttl), lives.stale_ttl))
        }
        Found::NxDomain(ttl) => (Answer::NxDomain, negative(*ttl)),
        Found::NoData(ttl) => (Answer::NoData, negative(*ttl)),
        Found::Failure(failure) => return Err(failure.answer()),
    };
    Ok((answer, life, stale_for))
}

/// When something valid from `from` to `until` should be asked for again, if it is still in use: in the last tenth.
pub(super) fn refresh_at(from: Instant, until: Instant) -> Option<Instant> {
    let life = until.saturating_duration_since(from);
    (life >= REFRESH_MIN).then(|| until - life / 10)
}

const fn cached(expires: Instant, stale: bool) -> AnswerMeta {
    AnswerMeta { expires, cached: true, stale }
}
