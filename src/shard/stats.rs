//! The counters of a shard: plain numbers, read by the shell when somebody asks.

use std::sync::Arc;
use std::time::{Duration, Instant};

use ahash::AHashMap;

use crate::flow::PeerId;
use crate::location::{LocateKey, Located};
use crate::peering::Party;
use crate::wire::Method;

/// Upper bounds of the histograms, in microseconds.
pub const BUCKETS: [u64; 16] = [
    100, 250, 500, 1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 100_000, 250_000, 500_000, 1_000_000,
    2_500_000, 5_000_000, 30_000_000,
];

/// Locations remembered for the list of instances.
const LOCATIONS: usize = 1024;
/// How long one that nobody uses is remembered.
const LOCATION_KEPT: Duration = Duration::from_secs(3600);

/// Locations of which it is known that they were remembered a moment ago.
const NOTED: usize = 16;
/// That long.
const AGAIN: Duration = Duration::from_secs(1);

/// A histogram with fixed buckets.
#[derive(Clone, Debug, Default)]
pub struct Histogram {
    /// Observations up to each bound; the last: beyond all.
    pub counts: [u64; BUCKETS.len() + 1],
    /// Sum, in microseconds.
    pub sum: u64,
}

impl Histogram {
    /// Adds one observation.
    pub fn add(&mut self, value: Duration) {
        let micros = u64::try_from(value.as_micros()).unwrap_or(u64::MAX);
        let at = BUCKETS.iter().position(|b| micros <= *b).unwrap_or(BUCKETS.len());
        if let Some(count) = self.counts.get_mut(at) {
            *count += 1;
        }
        self.sum = self.sum.saturating_add(micros);
    }

    /// Adds another one to this.
    pub fn merge(&mut self, other: &Self) {
        for (a, b) in self.counts.iter_mut().zip(&other.counts) {
            *a += b;
        }
        self.sum = self.sum.saturating_add(other.sum);
    }
}

/// Counts by peer and one of a few fixed words, for what is counted with every call: nothing is hashed.
#[derive(Clone, Debug, Default)]
pub struct ByPeer {
    /// The core (and strangers) first, then the peers by number.
    rows: Vec<Vec<(&'static str, u64)>>,
}

impl ByPeer {
    /// Counts `n` more.
    pub fn add(&mut self, peer: Option<PeerId>, word: &'static str, n: u64) {
        let at = peer.map_or(0, |peer| usize::from(peer.0) + 1);
        if self.rows.len() <= at {
            self.rows.resize_with(at + 1, Vec::new);
        }
        let Some(row) = self.rows.get_mut(at) else { return };
        match row.iter_mut().find(|(known, _)| *known == word) {
            Some((_, count)) => *count += n,
            None => row.push((word, n)),
        }
    }

    /// All that has been counted, by peer.
    pub fn iter(&self) -> impl Iterator<Item = ((Option<PeerId>, &'static str), u64)> + '_ {
        let peers = std::iter::once(None).chain((0..).map(|id| Some(PeerId(id))));
        peers.zip(&self.rows).flat_map(|(peer, row)| row.iter().map(move |(word, n)| ((peer, *word), *n)))
    }
}

/// Everything counted. All start at 0 with the process.
#[derive(Clone, Debug, Default)]
pub struct Stats {
    /// Requests received, by side and method.
    pub requests: [[u64; Method::ALL.len()]; 3],
    /// Responses received, by side of the transaction's party and status class (index 0: 1xx).
    pub responses: [[u64; 6]; 3],
    /// Responses sent upstream or made here, by side and class.
    pub answers: [[u64; 6]; 3],
    /// Messages dropped, by reason.
    pub dropped: AHashMap<&'static str, u64>,
    /// Requests refused here, by reason.
    pub rejected: AHashMap<&'static str, u64>,
    /// Attempts ended, by peer and outcome.
    pub attempts: ByPeer,
    /// Failovers, by peer and reason.
    pub failovers: AHashMap<(Option<PeerId>, &'static str), u64>,
    /// Retransmissions received and absorbed.
    pub retransmissions_in: u64,
    /// Retransmissions sent by us.
    pub retransmissions_out: u64,
    /// INVITE received to INVITE sent.
    pub setup: Histogram,
    /// INVITE received to its 2xx.
    pub answer_delay: Histogram,
    /// Calls dropped from the count by age.
    pub calls_aged: u64,
    /// Requests refused because a table is full.
    pub table_full: u64,
    /// New requests refused under overload, by sender.
    pub shed: AHashMap<Party, u64>,
    /// What was located outside dialogs and for whom, and when it was last used; bounded.
    /// What a dialog's own addresses lead to is not here: these are no servers.
    pub located: AHashMap<(Option<PeerId>, LocateKey), (Arc<Located>, Instant)>,
    /// What was remembered last, which need not be done again with every call.
    noted: Vec<Option<Noted>>,
}

/// See [`Stats::locate`].
#[derive(Clone, Debug)]
struct Noted {
    peer: Option<PeerId>,
    located: Arc<Located>,
    until: Instant,
}

impl Stats {
    /// Counts a dropped message.
    pub fn drop(&mut self, reason: &'static str) {
        *self.dropped.entry(reason).or_default() += 1;
    }

    /// A copy of the numbers, without what was located: that is a large table.
    pub fn numbers(&self) -> Self {
        Self {
            requests: self.requests,
            responses: self.responses,
            answers: self.answers,
            dropped: self.dropped.clone(),
            rejected: self.rejected.clone(),
            attempts: self.attempts.clone(),
            failovers: self.failovers.clone(),
            retransmissions_in: self.retransmissions_in,
            retransmissions_out: self.retransmissions_out,
            setup: self.setup.clone(),
            answer_delay: self.answer_delay.clone(),
            calls_aged: self.calls_aged,
            table_full: self.table_full,
            shed: self.shed.clone(),
            located: AHashMap::new(),
            noted: Vec::new(),
        }
    }

    /// Remembers what was located for a peer (`None`: the core); with the table full, only what is known already.
    pub fn locate(&mut self, now: Instant, peer: Option<PeerId>, located: &Arc<Located>) {
        let place = usize::try_from(located.serial).unwrap_or(0) % NOTED;
        if let Some(Some(noted)) = self.noted.get(place)
            && noted.peer == peer
            && Arc::ptr_eq(&noted.located, located)
            && now < noted.until
        {
            return;
        }
        if self.noted.is_empty() {
            self.noted.resize(NOTED, None);
        }
        if let Some(noted) = self.noted.get_mut(place) {
            *noted = Some(Noted { peer, located: Arc::clone(located), until: now + AGAIN });
        }
        let key = (peer, located.key.clone());
        if self.located.len() >= LOCATIONS && !self.located.contains_key(&key) {
            self.located.retain(|_, (_, used)| now.saturating_duration_since(*used) < LOCATION_KEPT);
            if self.located.len() >= LOCATIONS {
                return;
            }
        }
        self.located.insert(key, (Arc::clone(located), now));
    }

    /// Adds another shard's to this.
    pub fn merge(&mut self, other: &Self) {
        let sides = |a: &mut [[u64; 6]; 3], b: &[[u64; 6]; 3]| {
            for (a, b) in a.iter_mut().flatten().zip(b.iter().flatten()) {
                *a += b;
            }
        };
        for (a, b) in self.requests.iter_mut().flatten().zip(other.requests.iter().flatten()) {
            *a += b;
        }
        sides(&mut self.responses, &other.responses);
        sides(&mut self.answers, &other.answers);
        for (k, v) in &other.dropped {
            *self.dropped.entry(k).or_default() += v;
        }
        for (k, v) in &other.rejected {
            *self.rejected.entry(k).or_default() += v;
        }
        for ((peer, outcome), n) in other.attempts.iter() {
            self.attempts.add(peer, outcome, n);
        }
        for (k, v) in &other.failovers {
            *self.failovers.entry(*k).or_default() += v;
        }
        self.retransmissions_in += other.retransmissions_in;
        self.retransmissions_out += other.retransmissions_out;
        self.setup.merge(&other.setup);
        self.answer_delay.merge(&other.answer_delay);
        self.calls_aged += other.calls_aged;
        self.table_full += other.table_full;
        for (k, v) in &other.shed {
            *self.shed.entry(*k).or_default() += v;
        }
        for (key, (located, used)) in &other.located {
            match self.located.get_mut(key) {
                Some((_, known)) if *known >= *used => {}
                _ => std::mem::drop(self.located.insert(key.clone(), (Arc::clone(located), *used))),
            }
        }
    }

    /// What was located and for whom, used within the last hour, in a fixed order.
    pub fn locations(&self, now: Instant) -> Vec<(Option<PeerId>, Arc<Located>)> {
        let mut all: Vec<_> = self
            .located
            .iter()
            .filter(|(_, (_, used))| now.saturating_duration_since(*used) < LOCATION_KEPT)
            .map(|((peer, _), (located, _))| (*peer, Arc::clone(located)))
            .collect();
        all.sort_by_cached_key(|(peer, located)| (*peer, located.key.to_string()));
        all
    }
}
