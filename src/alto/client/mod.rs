//! The client as a state machine: it says what to ask ([`Client::poll_request`]) and when to be looked at again
//! ([`Client::poll_timeout`]), is told of answers ([`Client::settle`]), and makes snapshots of costs. It knows no
//! socket and no clock.
//!
//! | file | holds |
//! |---|---|
//! | `server` | one configured directory: what is known of it, what to ask it next |
//! | `groups` | the addresses that endpoint costs are asked for, in the sets asked together |
//! | `pairing` | network map and cost map, taken over as a pair |
//! | `settle` | what answers and errors do |
//! | `status` | snapshots and the state, as told outside |
//!
//! Servers are used in the order of the configuration: a later one is asked while all before it fail, and costs come
//! from one server at a time. One request is under way at a server.

mod groups;
mod pairing;
mod server;
mod settle;
mod status;

use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rand::SeedableRng;
use rand::rngs::StdRng;
use url::Url;

use super::error::{Fault, Outcome};
use super::settings::Settings;

pub use groups::MAX_ADDRESSES;
pub use status::{ServerStatus, State, Status};

use server::Server;

/// Least time between two queries: ten in a second.
pub const SPACING: Duration = Duration::from_millis(100);
/// Longest time for an answer.
pub const WITHIN: Duration = Duration::from_secs(5);
/// Longest time for a map.
pub const MAP_WITHIN: Duration = Duration::from_secs(30);
/// Longest answer, octets.
pub const LIMIT: usize = 1 << 20;
/// Longest map, octets.
pub const MAP_LIMIT: usize = 32 << 20;
/// Most events kept until they are read.
const MAX_EVENTS: usize = 64;

/// Where a request goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// To a server.
    Http(Url),
    /// A file is read.
    File(PathBuf),
}

/// Something to ask.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// Which configured directory it is for.
    pub server: usize,
    /// To be given back with the answer.
    pub ticket: u64,
    /// Where to.
    pub target: Target,
    /// POST with this type and body; `None`: GET.
    pub post: Option<(&'static str, Vec<u8>)>,
    /// The Accept header.
    pub accept: String,
    /// The If-None-Match header.
    pub if_none_match: Option<String>,
    /// Our credentials and certificate may go there.
    pub credentials: bool,
    /// The answer is cut off beyond this, octets.
    pub limit: usize,
    /// And given up after this.
    pub within: Duration,
}

/// The headers of an answer that count.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Headers {
    /// Content-Type
    pub content_type: Option<String>,
    /// Cache-Control, all of them joined by commas
    pub cache_control: Option<String>,
    /// Age
    pub age: Option<String>,
    /// Expires
    pub expires: Option<String>,
    /// Date
    pub date: Option<String>,
    /// ETag
    pub etag: Option<String>,
    /// Location
    pub location: Option<String>,
    /// Retry-After
    pub retry_after: Option<String>,
}

/// An answer; a file's has status 200 and no headers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Answer {
    /// The status.
    pub status: u16,
    /// Headers.
    pub headers: Headers,
    /// The body.
    pub body: Vec<u8>,
    /// Our time since 1970.
    pub wall: Duration,
}

/// Something worth a line in the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A server has begun to fail, or fails for another reason.
    Failing {
        /// The configured directory.
        directory: String,
        /// Why.
        why: String,
    },
    /// It gives costs again.
    Working {
        /// The configured directory.
        directory: String,
    },
    /// It says that we asked wrongly.
    Complaint {
        /// The configured directory.
        directory: String,
        /// What it says.
        why: String,
    },
}

/// See the module's text.
pub struct Client {
    settings: Settings,
    servers: Vec<Server>,
    /// Addresses wanted, those that are compared with each other together; by family.
    wanted: groups::Wanted,
    rng: StdRng,
    next_query: Instant,
    next_ticket: u64,
    next_answer: u64,
    /// Given to the operator's costs.
    own_answer: u64,
    serial: u64,
    started: Instant,
    dirty: bool,
    outcomes: [u64; Outcome::ALL.len()],
    /// Answers that said we asked wrongly.
    complaints: u64,
    /// Costs refused as none.
    bad_costs: u64,
    events: Vec<Event>,
}

impl Client {
    /// A client that knows nothing yet. `first`: smaller than all numbers of answers and snapshots that it gives out.
    pub fn new(settings: Settings, first: u64, now: Instant, seed: [u8; 32]) -> Self {
        let servers = settings.places.iter().map(|place| {
            let accepts_json = settings.accept_json.contains(place);
            Server::new(place.clone(), accepts_json, now)
        });
        Self {
            servers: servers.collect(),
            wanted: groups::Wanted::default(),
            rng: StdRng::from_seed(seed),
            next_query: now,
            next_ticket: 1,
            next_answer: first + 2,
            own_answer: first + 1,
            serial: first,
            started: now,
            dirty: !settings.overrides.is_empty(),
            outcomes: [0; Outcome::ALL.len()],
            complaints: 0,
            bad_costs: 0,
            events: Vec::new(),
            settings,
        }
    }

    /// Goes on with the counts of the client that it takes the place of.
    #[must_use]
    pub fn after(mut self, other: &Client) -> Self {
        self.outcomes = other.outcomes;
        (self.complaints, self.bad_costs) = (other.complaints, other.bad_costs);
        self
    }

    /// What it was made with.
    pub const fn settings(&self) -> &Settings {
        &self.settings
    }

    /// The highest number given out so far, for a client that follows this one.
    pub const fn last_number(&self) -> u64 {
        if self.next_answer > self.serial { self.next_answer } else { self.serial }
    }

    /// The sets of addresses that costs are wanted for, each to be compared within itself.
    pub fn set_wanted(&mut self, sets: &[Arc<[IpAddr]>], now: Instant) {
        let wanted = groups::Wanted::of(sets);
        if wanted == self.wanted {
            return;
        }
        self.wanted = wanted;
        self.dirty = true;
        for server in &mut self.servers {
            server.want(&self.wanted, &self.settings, now);
        }
    }

    /// Forgets costs and asks anew: those of some addresses, or all of them.
    pub fn flush(&mut self, addrs: Option<&[IpAddr]>, now: Instant) {
        for server in &mut self.servers {
            server.flush(addrs, now);
            server.want(&self.wanted, &self.settings, now);
        }
        self.dirty = true;
    }

    /// The next thing to ask now. To be called until it gives nothing.
    pub fn poll_request(&mut self, now: Instant) -> Option<Request> {
        if now < self.next_query {
            return None;
        }
        for at in 0..self.servers.len() {
            let ticket = self.next_ticket;
            let server = self.servers.get_mut(at)?;
            let request = server.next_request(at, ticket, &self.settings, &self.wanted, now);
            if let Some(request) = request {
                self.next_ticket += 1;
                self.next_query = now + SPACING;
                return Some(request);
            }
            if !server.is_failing() {
                // As long as it works, those behind it are not asked.
                return None;
            }
        }
        None
    }

    /// When [`Client::poll_request`] may have something, unless something happens before.
    pub fn poll_timeout(&self) -> Option<Instant> {
        let mut earliest: Option<Instant> = None;
        for server in &self.servers {
            if let Some(at) = server.next_due(&self.settings, &self.wanted) {
                earliest = Some(earliest.map_or(at, |e| e.min(at)));
            }
            if !server.is_failing() {
                break;
            }
        }
        earliest.map(|at| at.max(self.next_query))
    }

    /// Something to log.
    pub fn poll_event(&mut self) -> Option<Event> {
        if self.events.is_empty() { None } else { Some(self.events.remove(0)) }
    }

    fn event(&mut self, event: Event) {
        if self.events.len() < MAX_EVENTS {
            self.events.push(event);
        }
    }

    fn count(&mut self, outcome: Outcome) {
        if let Some(count) = self.outcomes.get_mut(outcome as usize) {
            *count += 1;
        }
    }

    /// The answer to a request, or why there is none. An answer to what is no longer asked is ignored.
    pub fn settle(&mut self, server: usize, ticket: u64, result: Result<Answer, Fault>, now: Instant) {
        let Some(flight) = self.servers.get_mut(server).and_then(|s| s.land(ticket)) else { return };
        match result {
            Ok(answer) => self.answered(server, flight, &answer, now),
            Err(fault) => self.failed(server, &flight.job, fault, now),
        }
    }
}
