//! One configured directory: what is known of it, and what to ask it next.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use url::Url;

use crate::location::CostMode;

use super::super::backoff::Backoff;
use super::super::cost_type::CostType;
use super::super::directory::{Closure, Document, Plan, Walk};
use super::super::error::Fault;
use super::super::life::Lifetime;
use super::super::local::LocalCosts;
use super::super::settings::{Place, Settings};
use super::super::{ecs, maps, media};
use super::groups::{Groups, Wanted};
use super::pairing::Maps;
use super::{LIMIT, MAP_LIMIT, MAP_WITHIN, Request, Target, WITHIN};

/// Most redirects remembered.
const MAX_MOVED: usize = 64;

/// Data with its times.
#[derive(Clone, Debug)]
pub struct Held<T> {
    pub value: T,
    /// The answer that it came with.
    pub answer: u64,
    pub fetched: Instant,
    pub fresh_until: Instant,
    pub life: Lifetime,
}

impl<T> Held<T> {
    /// When it stops to be of use: some time after its lifetime, more while the server fails (RFC 5861, within the
    /// configured bounds).
    pub fn usable_until(&self, settings: &Settings, failing: bool) -> Instant {
        let (most, said) = if failing {
            (settings.max_stale, self.life.if_error)
        } else {
            (settings.stale, self.life.while_revalidate)
        };
        self.fresh_until + said.map_or(most, |said| said.min(most))
    }
}

/// What a request is for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Job {
    Directory,
    Network,
    Costs,
    /// Endpoint costs of the group with this number.
    Group(u64),
    File,
}

/// A request under way.
#[derive(Clone, Debug)]
pub struct Flight {
    pub ticket: u64,
    pub job: Job,
    /// All addresses asked, the latest last.
    pub seen: Vec<Url>,
    pub post: Option<(&'static str, Vec<u8>)>,
    pub if_none_match: Option<String>,
    pub wanted: &'static str,
    /// A redirect is to be followed: the request is yet to go out.
    pub waiting: bool,
    /// What a group's query asked for.
    pub dsts: Vec<IpAddr>,
    /// The PIDs whose costs were asked for.
    pub pids: BTreeSet<Arc<str>>,
}

/// A directory as fetched last.
#[derive(Clone, Debug)]
pub struct Cached {
    pub etag: Option<String>,
    pub document: Document,
}

/// See the module's text.
pub struct Server {
    pub place: Place,
    pub walk: Option<Walk>,
    /// Shortest lifetime among the directories of this walk.
    pub walk_life: Option<Duration>,
    pub documents: BTreeMap<Url, Cached>,
    pub closure: Option<Closure>,
    pub directory_due: Instant,
    /// When the first directory was last asked for.
    pub directory_asked: Option<Instant>,
    /// A resource has given a directory instead of itself.
    pub diverted: bool,
    pub plan: Option<Plan>,
    /// Cost types that a resource has refused, and until when.
    pub refused: Vec<(String, CostType, Instant)>,
    pub maps: Maps,
    pub groups: Groups,
    pub file: Option<Held<LocalCosts>>,
    pub file_due: Instant,
    flight: Option<Flight>,
    pub not_before: Instant,
    pub backoff: Backoff,
    pub failing: bool,
    /// The failure is that no directory or no plan could be had.
    pub failing_directory: bool,
    /// Failed queries since one succeeded.
    pub streak: u32,
    pub last_error: Option<(Instant, Fault)>,
    pub last_success: Option<Instant>,
    pub moved: BTreeMap<Url, Url>,
    /// See [`Settings::accept_json`].
    pub accepts_json: bool,
    pub called_json: u64,
}

impl Server {
    pub fn new(place: Place, accepts_json: bool, now: Instant) -> Self {
        Self {
            accepts_json,
            called_json: 0,
            place,
            walk: None,
            walk_life: None,
            documents: BTreeMap::new(),
            closure: None,
            directory_due: now,
            directory_asked: None,
            diverted: false,
            plan: None,
            refused: Vec::new(),
            maps: Maps::new(now),
            groups: Groups::default(),
            file: None,
            file_due: now,
            flight: None,
            not_before: now,
            backoff: Backoff::default(),
            failing: false,
            failing_directory: false,
            streak: 0,
            last_error: None,
            last_success: None,
            moved: BTreeMap::new(),
        }
    }

    pub const fn is_failing(&self) -> bool {
        self.failing
    }

    /// How its costs compare.
    pub fn mode(&self, settings: &Settings) -> CostMode {
        self.plan.as_ref().map_or(settings.wish.cost_type.mode, |p| p.cost_type().mode)
    }

    /// Takes note of what is wanted.
    pub fn want(&mut self, wanted: &Wanted, settings: &Settings, now: Instant) {
        match &self.plan {
            Some(Plan::Endpoint { cost_type, .. }) => {
                // Addresses of a family in which we have none ourselves cannot be asked for.
                let possible = |addr| settings.source_for(addr).is_some();
                self.groups.sync(wanted, possible, cost_type.mode, now);
            }
            Some(Plan::Maps { filtered: true, .. })
                if !self.pids_wanted(wanted).is_subset(&self.maps.asked) =>
            {
                self.maps.costs_due = now;
            }
            _ => {}
        }
    }

    /// The PIDs of the addresses wanted.
    fn pids_wanted(&self, wanted: &Wanted) -> BTreeSet<Arc<str>> {
        let Some(network) = &self.maps.network else { return BTreeSet::new() };
        wanted.addrs().filter_map(|a| network.held.value.pid(a).cloned()).collect()
    }

    /// Uses other resources from now on.
    pub fn set_plan(&mut self, plan: Plan, wanted: &Wanted, settings: &Settings, now: Instant) {
        let Some(before) = self.plan.replace(plan.clone()) else {
            return self.want(wanted, settings, now);
        };
        if before == plan {
            return;
        }
        if before.same_resources(&plan) {
            // They have only moved: what is known stays until they are read again.
            self.groups.all_due(now);
            (self.maps.network_due, self.maps.costs_due) = (now, now);
        } else {
            self.maps = Maps::new(now);
            self.groups = Groups::default();
        }
        self.want(wanted, settings, now);
    }

    pub fn flush(&mut self, addrs: Option<&[IpAddr]>, now: Instant) {
        self.groups.flush(addrs, now);
        self.refused.clear();
        if addrs.is_none() {
            self.maps = Maps::new(now);
            self.documents.clear();
            self.moved.clear();
            (self.directory_due, self.walk, self.file) = (now, None, None);
            // What is under way was asked before.
            self.flight = None;
        } else {
            (self.maps.network_due, self.maps.costs_due) = (now, now);
        }
        self.file_due = now;
        self.not_before = now;
    }

    /// What is to be asked next, and from when on.
    fn next_job(&self, settings: &Settings, wanted: &Wanted) -> Option<(Job, Instant)> {
        if let Place::File(_) = self.place {
            return Some((Job::File, self.file_due));
        }
        if self.walk.is_some() {
            return Some((Job::Directory, self.not_before));
        }
        let mut jobs = vec![(Job::Directory, self.directory_due)];
        match &self.plan {
            Some(Plan::Endpoint { .. }) => {
                let next = self.groups.list.iter().min_by_key(|g| g.due);
                jobs.extend(next.map(|g| (Job::Group(g.id), g.due)));
            }
            Some(Plan::Maps { filtered, .. }) => {
                jobs.push((Job::Network, self.maps.network_due));
                if let Some(network) = &self.maps.network
                    && !maps::source_pids(&network.held.value, &settings.sources()).is_empty()
                    && (!filtered || !self.pids_wanted(wanted).is_empty())
                {
                    jobs.push((Job::Costs, self.maps.costs_due));
                }
            }
            None => {}
        }
        // Of several that may be asked at one time, the one named first, on which the others depend.
        jobs.into_iter().min_by_key(|(_, due)| (*due).max(self.not_before))
    }

    pub fn next_due(&self, settings: &Settings, wanted: &Wanted) -> Option<Instant> {
        match &self.flight {
            Some(flight) => flight.waiting.then_some(self.not_before),
            None => self.next_job(settings, wanted).map(|(_, due)| due.max(self.not_before)),
        }
    }

    pub fn next_request(
        &mut self,
        server: usize,
        ticket: u64,
        settings: &Settings,
        wanted: &Wanted,
        now: Instant,
    ) -> Option<Request> {
        if let Some(flight) = &mut self.flight {
            if !flight.waiting {
                return None;
            }
            (flight.waiting, flight.ticket) = (false, ticket);
        } else {
            if now < self.not_before {
                return None;
            }
            let (job, due) = self.next_job(settings, wanted)?;
            if due > now {
                return None;
            }
            let flight = self.take_off(job, ticket, settings, wanted, now)?;
            self.flight = Some(flight);
        }
        let flight = self.flight.as_ref()?;
        let target = match &self.place {
            Place::File(path) => Target::File(path.clone()),
            Place::Http(_) => Target::Http(flight.seen.last()?.clone()),
        };
        let credentials = match &target {
            Target::Http(url) => settings.policy.trusts(url),
            Target::File(_) => false,
        };
        let large = matches!(flight.job, Job::Network | Job::Costs | Job::File);
        Some(Request {
            server,
            ticket,
            target,
            post: flight.post.clone(),
            accept: media::accept(flight.wanted, self.accepts_json),
            if_none_match: flight.if_none_match.clone(),
            credentials,
            limit: if large { MAP_LIMIT } else { LIMIT },
            within: if large { MAP_WITHIN } else { WITHIN },
        })
    }

    /// A new request.
    fn take_off(
        &mut self,
        job: Job,
        ticket: u64,
        settings: &Settings,
        wanted: &Wanted,
        now: Instant,
    ) -> Option<Flight> {
        let mut flight = Flight {
            ticket,
            job: job.clone(),
            seen: Vec::new(),
            post: None,
            if_none_match: None,
            wanted: media::DIRECTORY,
            waiting: false,
            dsts: Vec::new(),
            pids: BTreeSet::new(),
        };
        let url = match (&job, self.plan.clone()) {
            (Job::File, _) => return Some(flight),
            (Job::Directory, _) => {
                let Place::Http(root) = &self.place else { return None };
                if self.walk.is_none() {
                    self.directory_asked = Some(now);
                    self.moved.clear();
                    (self.walk, self.walk_life) = (Some(Walk::new(root.clone())), None);
                }
                let url = self.walk.as_ref()?.next()?.clone();
                flight.if_none_match = self.documents.get(&url).and_then(|c| c.etag.clone());
                url
            }
            (Job::Network, Some(Plan::Maps { network, .. })) => {
                flight.wanted = media::NETWORK_MAP;
                if !self.maps.network_again {
                    flight.if_none_match = self.maps.network.as_ref().and_then(|n| n.etag.clone());
                }
                network
            }
            (Job::Costs, Some(Plan::Maps { costs, filtered, cost_type, .. })) => {
                flight.wanted = media::COST_MAP;
                let network = &self.maps.network.as_ref()?.held.value;
                flight.pids = maps::source_pids(network, &settings.sources());
                if filtered {
                    self.maps.asked = self.pids_wanted(wanted);
                    let body = maps::filter(&cost_type, &flight.pids, &self.maps.asked);
                    flight.post = Some((media::COST_MAP_FILTER, body));
                } else if !self.maps.costs_again {
                    // The rows of other PIDs than ours were not kept.
                    let known = self.maps.costs.as_ref().filter(|c| c.held.value.sources == flight.pids);
                    flight.if_none_match = known.and_then(|c| c.etag.clone());
                }
                costs
            }
            (Job::Group(_), Some(Plan::Endpoint { url, cost_type, .. })) => {
                flight.wanted = media::ENDPOINT_COST;
                let group = self.groups.due(cost_type.mode, now)?;
                flight.job = Job::Group(group.id);
                flight.dsts.clone_from(&group.addrs);
                let source = settings.source_for(*group.addrs.first()?)?;
                flight.post =
                    Some((media::ENDPOINT_COST_PARAMS, ecs::query(&cost_type, source, &flight.dsts)));
                url
            }
            _ => return None,
        };
        flight.seen.push(url.clone());
        if let Some(moved) = self.moved.get(&url) {
            flight.seen.push(moved.clone());
        }
        Some(flight)
    }

    /// The request that an answer belongs to.
    pub fn land(&mut self, ticket: u64) -> Option<Flight> {
        self.flight.take_if(|f| f.ticket == ticket && !f.waiting)
    }

    /// Goes on to where a redirect leads.
    pub fn fly_on(&mut self, flight: Flight) {
        self.flight = Some(Flight { waiting: true, ..flight });
    }

    /// Remembers a redirect for good, that is, until the directory is read again.
    pub fn remember(&mut self, from: Url, to: Url) {
        if self.moved.len() < MAX_MOVED {
            self.moved.insert(from, to);
        }
    }
}
