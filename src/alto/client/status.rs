//! What the client tells outside: snapshots of costs for the ranking, and its state for the operator.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use crate::location::{Cost, CostMode, CostOrigin, CostSnapshot};

use super::super::cost_type::{self, CostType};
use super::super::directory::Plan;
use super::super::error::Outcome;
use super::Client;
use super::server::{Held, Server};
use super::settle::describe;

/// The operator's costs do not age.
const FOR_EVER: Duration = Duration::from_secs(10 * 365 * 86_400);

/// How it stands with a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Nothing has come from it yet, or nothing was to be asked.
    Empty,
    /// Costs within their lifetime.
    Fresh,
    /// Costs beyond it, used while they are fetched again.
    Stale,
    /// It fails; costs are used that it gave before.
    Failing,
    /// It fails, and there are no costs of its that may be used.
    Expired,
}

impl State {
    /// A fixed word.
    pub const fn label(self) -> &'static str {
        match self {
            State::Empty => "empty",
            State::Fresh => "fresh",
            State::Stale => "stale",
            State::Failing => "failing",
            State::Expired => "expired",
        }
    }
}

/// What is told of a server.
#[derive(Clone, Debug)]
pub struct ServerStatus {
    /// The configured directory.
    pub directory: String,
    /// How it stands.
    pub state: State,
    /// Its costs are in use.
    pub in_use: bool,
    /// The last error, and when it was.
    pub last_error: Option<(Instant, String)>,
    /// When costs came last.
    pub last_success: Option<Instant>,
    /// Failures in a row.
    pub failures: u32,
    /// `endpoint_cost`, `maps`, `filtered_maps` or `file`.
    pub service: Option<&'static str>,
    /// The resources asked.
    pub resource: Option<String>,
    /// The type of its costs.
    pub cost_type: Option<String>,
    /// Version of the network map in use: its id and tag.
    pub vtag: Option<(String, String)>,
    /// When the oldest costs in use came.
    pub fetched: Option<Instant>,
    /// When the first of them reach the end of their lifetime.
    pub fresh_until: Option<Instant>,
    /// When it is asked next.
    pub next: Option<Instant>,
    /// Number of addresses that it gives costs for.
    pub costs: usize,
    /// `accept_json` names it: what it calls `application/json` is taken for what was asked.
    pub accepts_json: bool,
    /// Answers that it has called so, and that were taken.
    pub called_json: u64,
    /// Addresses left out because the server cannot take them.
    pub left_out: usize,
    /// Directories read.
    pub directories: usize,
    /// What of its directories was left out, and why.
    pub notes: Vec<String>,
}

/// What is told of the client.
#[derive(Clone, Debug, Default)]
pub struct Status {
    /// In the order of the configuration.
    pub servers: Vec<ServerStatus>,
    /// Our own addresses, as sources.
    pub sources: Vec<IpAddr>,
    /// Addresses that costs are wanted for.
    pub wanted: usize,
    /// Requests by outcome.
    pub outcomes: Vec<(Outcome, u64)>,
    /// Answers that said we asked wrongly.
    pub complaints: u64,
    /// Costs refused: negative, no numbers, too large.
    pub bad_costs: u64,
}

/// A cost and the data that it comes from.
struct Found {
    addr: IpAddr,
    value: f64,
    answer: u64,
    fetched: Instant,
    fresh_until: Instant,
    usable_until: Instant,
    origin: CostOrigin,
}

impl Client {
    /// A new snapshot, if something has changed since the last one.
    pub fn poll_snapshot(&mut self, now: Instant) -> Option<CostSnapshot> {
        if !std::mem::take(&mut self.dirty) {
            return None;
        }
        self.serial = self.last_number() + 1;
        self.next_answer = self.next_answer.max(self.serial);
        let used = self.in_use(now).and_then(|at| self.servers.get(at));
        let found = used.map(|server| self.costs_of(server)).unwrap_or_default();
        let wish = &self.settings.wish.cost_type;
        let mode = used.map_or(wish.mode, |server| server.mode(&self.settings));
        let cost_type = CostType { mode, metric: wish.metric.clone() };
        let mut snapshot = CostSnapshot::new(self.serial, mode, cost_type::higher_is_better(&cost_type));
        for f in &found {
            let (fetched, fresh_until, usable_until) = (f.fetched, f.fresh_until, f.usable_until);
            let cost = Cost {
                value: f.value,
                answer: f.answer,
                fetched,
                fresh_until,
                usable_until,
                origin: f.origin,
            };
            snapshot.insert(f.addr, cost);
        }
        if self.settings.overrides.is_empty() {
            return Some(snapshot);
        }
        match mode {
            CostMode::Numerical => {
                for addr in self.wanted.addrs() {
                    self.set(&mut snapshot, addr, self.own_answer);
                }
            }
            // Among ranks, the operator's count as of the same answer, so that they compare.
            CostMode::Ordinal => {
                for set in &self.wanted.sets {
                    let answer = snapshot.answer_for(set, now).unwrap_or(self.own_answer);
                    for addr in set {
                        self.set(&mut snapshot, *addr, answer);
                    }
                }
            }
        }
        Some(snapshot)
    }

    /// Puts in what the operator has set for an address, if that is so.
    fn set(&self, snapshot: &mut CostSnapshot, addr: IpAddr, answer: u64) {
        let Some(value) = self.settings.override_of(addr) else { return };
        let until = self.started + FOR_EVER;
        let cost = Cost {
            value,
            answer,
            fetched: self.started,
            fresh_until: until,
            usable_until: until,
            origin: CostOrigin::Override,
        };
        snapshot.insert(addr, cost);
    }

    /// The server whose costs are used: the first that works and has some, else the first that has some.
    fn in_use(&self, now: Instant) -> Option<usize> {
        let with = |failing: bool| {
            self.servers.iter().position(|server| {
                (failing || !server.failing) && self.costs_of(server).iter().any(|f| now < f.usable_until)
            })
        };
        with(false).or_else(|| with(true))
    }

    /// All costs of a server for what is wanted.
    fn costs_of(&self, server: &Server) -> Vec<Found> {
        let settings = &self.settings;
        let found = |addr: IpAddr, value: f64, answer, times: (Instant, Instant, Instant), origin| {
            let (fetched, fresh_until, usable_until) = times;
            Found { addr, value, answer, fetched, fresh_until, usable_until, origin }
        };
        let mut all = Vec::new();
        if let Some(held) = &server.file {
            let times = times(held, self, server);
            for addr in self.wanted.addrs() {
                let source = settings.source_for(addr);
                if let Some(value) = source.and_then(|source| held.value.cost(source, addr)) {
                    all.push(found(addr, value, held.answer, times, CostOrigin::File));
                }
            }
        }
        match (&server.plan, &server.maps.pair) {
            (Some(Plan::Endpoint { .. }), _) => {
                for group in &server.groups.list {
                    let Some(held) = &group.held else { continue };
                    let times = times(held, self, server);
                    for (addr, value) in &held.value {
                        all.push(found(*addr, *value, held.answer, times, CostOrigin::Endpoint));
                    }
                }
            }
            (Some(Plan::Maps { .. }), Some(held)) => {
                let times = times(held, self, server);
                for addr in self.wanted.addrs() {
                    let source = settings.source_for(addr);
                    if let Some(value) = source.and_then(|source| held.value.cost(source, addr)) {
                        all.push(found(addr, value, held.answer, times, CostOrigin::Maps));
                    }
                }
            }
            _ => {}
        }
        all
    }

    /// How it stands.
    pub fn status(&self, now: Instant) -> Status {
        let in_use = self.in_use(now);
        let mut before_fail = true;
        let mut servers = Vec::with_capacity(self.servers.len());
        for (at, server) in self.servers.iter().enumerate() {
            let next = server.next_due(&self.settings, &self.wanted).filter(|_| before_fail);
            before_fail &= server.failing;
            servers.push(self.server_status(server, in_use == Some(at), next, now));
        }
        Status {
            servers,
            sources: self.settings.sources(),
            wanted: self.wanted.len(),
            outcomes: Outcome::ALL.iter().copied().zip(self.outcomes).collect(),
            complaints: self.complaints,
            bad_costs: self.bad_costs,
        }
    }

    fn server_status(
        &self,
        server: &Server,
        in_use: bool,
        next: Option<Instant>,
        now: Instant,
    ) -> ServerStatus {
        let costs = self.costs_of(server);
        let usable: Vec<&Found> = costs.iter().filter(|f| now < f.usable_until).collect();
        // With maps, what is known need not be what is wanted now.
        let pair = server.maps.pair.as_ref();
        let fetched = usable.iter().map(|f| f.fetched).min().or(pair.map(|p| p.fetched));
        let fresh_until = usable.iter().map(|f| f.fresh_until).min().or(pair.map(|p| p.fresh_until));
        let has_data =
            !usable.is_empty() || pair.is_some_and(|p| now < p.usable_until(&self.settings, server.failing));
        let fresh = fresh_until.is_some_and(|until| now < until);
        let state = match (server.failing, has_data) {
            (true, true) => State::Failing,
            (true, false) => State::Expired,
            (false, true) if fresh => State::Fresh,
            (false, true) => State::Stale,
            (false, false) => State::Empty,
        };
        let closure = server.closure.as_ref();
        let service = server.plan.as_ref().map(Plan::service);
        ServerStatus {
            directory: server.place.to_string(),
            state,
            in_use,
            last_error: server.last_error.as_ref().map(|(at, fault)| (*at, fault.to_string())),
            last_success: server.last_success,
            failures: server.backoff.failures(),
            service: service.or(server.file.as_ref().map(|_| "file")),
            resource: server.plan.as_ref().map(describe),
            cost_type: server.plan.as_ref().map(|p| p.cost_type().to_string()),
            vtag: pair.and_then(|p| p.value.network.vtag.as_ref()).map(|v| (v.id.clone(), v.tag.clone())),
            fetched,
            fresh_until,
            next,
            costs: usable.iter().map(|f| f.addr).collect::<BTreeSet<_>>().len(),
            accepts_json: server.accepts_json,
            called_json: server.called_json,
            left_out: server.groups.banned(),
            directories: closure.map_or(0, |c| c.directories),
            notes: closure.map(|c| c.notes.clone()).unwrap_or_default(),
        }
    }
}

fn times<T>(held: &Held<T>, client: &Client, server: &Server) -> (Instant, Instant, Instant) {
    (held.fetched, held.fresh_until, held.usable_until(&client.settings, server.failing))
}
