//! One query for all who ask the same question at the same time, and its result into the cache.

use std::collections::HashMap;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::watch;
use tokio::time::{sleep_until, timeout};

use super::cache::{Look, RrCache};
use super::stats::CacheResult;
use super::upstream::{Failure, Found, Reply};
use super::{Inner, MAX_FLIGHTS, now};
use crate::location::{Answer, AnswerMeta, Question};

/// Longest wait for an answer while there is a stale one (RFC 8767 §5: "client response timer"): below the time
/// after which a caller would notice.
pub(super) const STALE_WAIT: Duration = Duration::from_millis(500);

/// Longest wait for a turn among [`super::MAX_QUERIES`].
const TURN: Duration = Duration::from_secs(2);

/// What the askers are told.
pub(super) type Told = (Answer, AnswerMeta);

/// A query under way.
#[derive(Clone)]
pub(super) struct Flight {
    told: watch::Receiver<Option<Told>>,
    since: Instant,
}

/// All queries under way.
pub(super) type Flights = HashMap<Question, Flight, ahash::RandomState>;

/// What is known of a question without a wait.
pub(super) enum Known {
    /// This, when it ought to be refreshed, and how the cache served.
    Now(Told, Option<Instant>, CacheResult),
    /// Nobody can say without asking; perhaps a stale answer for the time of need.
    Ask(Option<Told>),
}

impl Inner {
    /// What the cache says, without a wait, nor counted. What ought to be refreshed is asked for in the background.
    pub(super) fn known(self: &Arc<Self>, question: &Question, now: Instant) -> Known {
        let valid_from = self.state.load().valid_from;
        match self.sets.look(question, now, valid_from) {
            Look::Fresh(answer, meta, refresh_at) => {
                let positive = matches!(answer, Answer::Records(_));
                let due = refresh_at.is_some_and(|at| now >= at);
                if due {
                    self.fly(question, now);
                }
                let result = if positive { CacheResult::Hit } else { CacheResult::Negative };
                Known::Now((answer, meta), refresh_at.filter(|_| !due), result)
            }
            Look::Held(answer, meta) => {
                let result = if meta.stale { CacheResult::Stale } else { CacheResult::Negative };
                Known::Now((answer, meta), None, result)
            }
            Look::Failing(answer, meta) => {
                self.fly(question, now);
                Known::Now((answer, meta), None, CacheResult::Stale)
            }
            Look::Stale(answer, meta) => Known::Ask(Some((answer, meta))),
            Look::Miss => Known::Ask(None),
        }
    }

    /// Asks the servers and waits; for a stale answer at hand not beyond `patience`.
    pub(super) async fn ask(
        self: &Arc<Self>,
        question: &Question,
        stale: Option<Told>,
        patience: Instant,
    ) -> Told {
        let Some(mut flight) = self.fly(question, now()) else {
            return stale.unwrap_or_else(|| self.refused());
        };
        // Those who come late do not wait anew for what has been silent so long.
        let patience = patience.min(flight.since + STALE_WAIT);
        let wait = flight.told.wait_for(Option::is_some);
        let told = match stale {
            None => wait.await.ok().and_then(|told| told.clone()),
            Some(stale) => tokio::select! {
                biased;
                told = wait => told.ok().and_then(|told| told.clone()).or(Some(stale)),
                () = sleep_until(patience.into()) => Some(stale),
            },
        };
        let told = told.unwrap_or_else(|| self.refused());
        self.stats.cached(if told.1.stale { CacheResult::Stale } else { CacheResult::Miss });
        told
    }

    fn refused(&self) -> Told {
        let expires = now() + super::cache::HOLD;
        (Failure::Busy.answer(), AnswerMeta { expires, cached: false, stale: false })
    }

    /// The query under way for this question, begun now if there is none; `None`: too many.
    fn fly(self: &Arc<Self>, question: &Question, now: Instant) -> Option<Flight> {
        let mut flights = self.flights.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(flight) = flights.get(question) {
            return Some(flight.clone());
        }
        if flights.len() >= MAX_FLIGHTS {
            return None;
        }
        let (tell, told) = watch::channel(None);
        let flight = Flight { told, since: now };
        flights.insert(question.clone(), flight.clone());
        drop(flights);
        let landing = Landing { inner: self.clone(), question: question.clone(), flight: flight.clone() };
        self.handle.spawn(landing.run(tell));
        Some(flight)
    }

    /// Nobody joins what is under way any more, and it does not go into the cache.
    pub(super) fn forget_flights(&self) {
        self.locations.lock().unwrap_or_else(PoisonError::into_inner).clear();
        self.flights.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }
}

/// Takes a flight off the list however it ends.
struct Landing {
    inner: Arc<Inner>,
    question: Question,
    flight: Flight,
}

impl Landing {
    async fn run(self, tell: watch::Sender<Option<Told>>) {
        let inner = &self.inner;
        let asked = now();
        let reply = match timeout(TURN, inner.permits.acquire()).await {
            Ok(Ok(_permit)) => inner.upstream.query(self.question.clone()).await,
            _ => Reply::of(Found::Failure(Failure::Busy)),
        };
        inner.stats.queried(self.question.kind, &reply.found);
        let now = now();
        let state = inner.state.load_full();
        let told = {
            let mut flights = inner.flights.lock().unwrap_or_else(PoisonError::into_inner);
            if self.is_listed(&flights) {
                for (question, set, ttl) in &reply.also {
                    let found = Found::Records(set.clone(), *ttl);
                    inner.sets.store_companion(question, &found, now, state.valid_from, &state.lives);
                }
                // Off the list in the same breath: who asks from now on finds the cache or asks anew.
                flights.remove(&self.question);
                inner.sets.store(&self.question, &reply.found, asked, now, state.valid_from, &state.lives)
            } else {
                RrCache::unstored(&reply.found, now, &state.lives)
            }
        };
        tell.send_replace(Some(told));
    }

    fn is_listed(&self, flights: &Flights) -> bool {
        flights.get(&self.question).is_some_and(|f| f.told.same_channel(&self.flight.told))
    }
}

impl Drop for Landing {
    fn drop(&mut self) {
        let mut flights = self.inner.flights.lock().unwrap_or_else(PoisonError::into_inner);
        if self.is_listed(&flights) {
            flights.remove(&self.question);
        }
    }
}
