//! The DNS client of the simulation: questions with latency, a cache of record sets, stale answers, outages.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use sbe::location::{Answer, AnswerMeta, Enabled, LocateKey, Located, Question, Resolution};
use sbe::shard::Ticket;

use crate::zone::Zone;

#[derive(Debug)]
struct Pending {
    key: Arc<LocateKey>,
    resolution: Resolution,
    /// Who waits: shard and ticket.
    waiting: Vec<(usize, Ticket)>,
    open: usize,
}

#[derive(Debug)]
pub struct Dns {
    pub zone: Zone,
    pub down: bool,
    sets: BTreeMap<Question, (Answer, Instant)>,
    results: Vec<Arc<Located>>,
    pending: BTreeMap<u64, Pending>,
    next: u64,
    stale: Duration,
}

/// A finished location, for these.
pub struct Done {
    pub result: Arc<Located>,
    pub waiting: Vec<(usize, Ticket)>,
}

impl Dns {
    pub fn new(zone: Zone, stale: Duration) -> Self {
        Self {
            zone,
            down: false,
            sets: BTreeMap::new(),
            results: Vec::new(),
            pending: BTreeMap::new(),
            next: 0,
            stale,
        }
    }

    /// A result that is still valid.
    pub fn cached(&self, key: &LocateKey, now: Instant) -> Option<Arc<Located>> {
        self.results.iter().find(|r| r.key == *key && now < r.expires).cloned()
    }

    /// Begins a location, or joins the one under way. Gives the questions to be asked.
    pub fn begin(
        &mut self,
        shard: usize,
        ticket: Ticket,
        key: Arc<LocateKey>,
        enabled: &Enabled,
    ) -> Option<u64> {
        if let Some(known) = self.pending.values_mut().find(|p| p.key == key) {
            known.waiting.push((shard, ticket));
            return None;
        }
        self.next += 1;
        let resolution = Resolution::new(LocateKey::clone(&key), enabled);
        self.pending.insert(self.next, Pending { key, resolution, waiting: vec![(shard, ticket)], open: 0 });
        Some(self.next)
    }

    /// The questions that a location wants asked now; what the cache knows is answered at once.
    pub fn questions(&mut self, id: u64, now: Instant) -> Vec<Question> {
        let mut ask = Vec::new();
        let Some(pending) = self.pending.get_mut(&id) else { return ask };
        loop {
            let questions = pending.resolution.next_questions();
            if questions.is_empty() {
                break;
            }
            for question in questions {
                match self.sets.get(&question) {
                    Some((answer, expires)) if now < *expires => {
                        let meta = AnswerMeta { expires: *expires, cached: true, stale: false };
                        pending.resolution.answer(&question, answer.clone(), meta);
                    }
                    _ => {
                        pending.open += 1;
                        ask.push(question);
                    }
                }
            }
        }
        ask
    }

    /// An answer has come, or will not come any more.
    pub fn answered(&mut self, id: u64, question: &Question, now: Instant) {
        let Some(pending) = self.pending.get_mut(&id) else { return };
        pending.open -= 1;
        if !self.down {
            let answer = self.zone.answer(question);
            let expires = now + self.zone.ttl;
            self.sets.insert(question.clone(), (answer.clone(), expires));
            pending.resolution.answer(question, answer, AnswerMeta { expires, cached: false, stale: false });
            return;
        }
        // RFC 8767: what was known goes on for a while.
        match self.sets.get(question) {
            Some((answer, expires)) if now < *expires + self.stale => {
                let meta = AnswerMeta { expires: now + Duration::from_secs(1), cached: true, stale: true };
                pending.resolution.answer(question, answer.clone(), meta);
            }
            _ => {
                let meta = AnswerMeta { expires: now + Duration::from_secs(1), cached: false, stale: false };
                pending.resolution.answer(question, Answer::Timeout, meta);
            }
        }
    }

    /// The result, once there is one.
    pub fn finish(&mut self, id: u64, now: Instant) -> Option<Done> {
        if !self.pending.get(&id).is_some_and(|p| p.resolution.finished() && p.open == 0) {
            return None;
        }
        let pending = self.pending.remove(&id)?;
        let mut located = pending.resolution.into_located(now);
        self.next += 1;
        located.serial = self.next;
        let result = Arc::new(located);
        self.results.retain(|r| r.key != result.key);
        self.results.push(Arc::clone(&result));
        Some(Done { result, waiting: pending.waiting })
    }

    /// Forgets results (another configuration may enable other transports).
    pub fn forget(&mut self) {
        self.results.clear();
    }
}
