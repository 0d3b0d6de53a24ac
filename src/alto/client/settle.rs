//! What answers and errors do (RFC 7285 §8.3, §8.5; RFC 9110 §15).

use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rand::RngExt;

use super::super::backoff::Backoff;
use super::super::directory::{self, Document, Plan};
use super::super::error::{self, Code, Fault, Outcome};
use super::super::life::{self, Lifetime};
use super::super::maps::{CostMap, NetworkMap};
use super::super::{address, ecs, local, media, redirect};
use super::pairing::{Arrived, Loaded, Step};
use super::server::{Cached, Flight, Held, Job, Server};
use super::{Answer, Client, Event};

/// A query that a server calls wrong is not repeated for so long.
const WRONG: Duration = Duration::from_secs(600);
/// A directory is not asked for more often than this because a resource has gone.
const DIRECTORY_APART: Duration = Duration::from_secs(60);
/// Failed queries without a success between them that make a server a failing one: a server may answer 500 for one
/// address that it does not know.
const STREAK: u32 = 3;
/// Most refused cost types kept.
const MAX_REFUSED: usize = 64;
/// A file is read again after this, unless `refresh` says otherwise.
const FILE_LIFE: Duration = Duration::from_secs(30);

/// What a failure means beyond that something was not learnt.
enum Consequence {
    /// The server is left alone for a while.
    Server,
    /// It asks for that.
    Wait(Duration),
    /// Only this query is left alone for a while, and perhaps asked in parts.
    Query { split: bool },
    /// This query is wrong.
    Wrong,
    /// The server cannot take this address.
    Address(IpAddr),
    /// The resource does not give this type of costs after all.
    CostType,
    /// The resource has gone.
    Gone,
}

impl Client {
    fn server(&mut self, at: usize) -> Option<&mut Server> {
        self.servers.get_mut(at)
    }

    fn want(&mut self, at: usize, now: Instant) {
        if let Some(server) = self.servers.get_mut(at) {
            server.want(&self.wanted, &self.settings, now);
        }
    }

    fn directory_name(&self, at: usize) -> String {
        self.servers.get(at).map_or_else(String::new, |s| s.place.to_string())
    }

    /// Takes in an answer.
    pub(super) fn answered(&mut self, at: usize, flight: Flight, answer: &Answer, now: Instant) {
        if redirect::is_redirect(answer.status) {
            return self.redirected(at, flight, answer, now);
        }
        let job = flight.job.clone();
        let outcome = match answer.status {
            304 if flight.if_none_match.is_some() => self.renewed(at, &flight, answer, now),
            304 => Err(Fault::NothingToRenew),
            200..=299 => self.arrived(at, flight, answer, now),
            status => Err(Fault::Status {
                status,
                error: error::server_error(&answer.body).map(Box::new),
                retry_after: life::retry_after(&answer.headers, answer.wall).map(|d| d.as_secs()),
            }),
        };
        match outcome {
            Ok(()) => {
                self.count(if answer.status == 304 { Outcome::NotModified } else { Outcome::Ok });
            }
            Err(fault) => self.failed(at, &job, fault, now),
        }
    }

    fn redirected(&mut self, at: usize, mut flight: Flight, answer: &Answer, now: Instant) {
        let location = answer.headers.location.as_deref();
        match redirect::follow(&self.settings.policy, answer.status, location, &flight.seen) {
            Ok(next) => {
                self.count(Outcome::Redirect);
                let Some(server) = self.server(at) else { return };
                if next.permanent
                    && let Some(from) = flight.seen.first()
                {
                    server.remember(from.clone(), next.url.clone());
                }
                if next.get {
                    flight.post = None;
                }
                flight.seen.push(next.url);
                server.fly_on(flight);
            }
            Err(fault) => self.failed(at, &flight.job, fault, now),
        }
    }

    fn lifetime(&self, answer: &Answer, job: &Job) -> Lifetime {
        let configured = match job {
            // Directories change seldom.
            Job::Directory => self.settings.refresh.map(|r| r.max(life::LEAST)),
            Job::File => Some(self.settings.refresh.unwrap_or(FILE_LIFE)),
            _ => self.settings.refresh,
        };
        life::lifetime(&answer.headers, configured)
    }

    /// When to refresh what lives so long: at 80 %, give or take a tenth.
    fn refresh_at(&mut self, fresh: Duration, now: Instant) -> Instant {
        now + fresh.mul_f64(0.8 * self.rng.random_range(0.9..=1.1))
    }

    fn number(&mut self) -> u64 {
        self.next_answer += 1;
        self.next_answer
    }

    fn held<T>(&mut self, value: T, life: Lifetime, now: Instant) -> Held<T> {
        Held { value, answer: self.number(), fetched: now, fresh_until: now + life.fresh, life }
    }

    /// 304: what we have is as good as new.
    fn renewed(&mut self, at: usize, flight: &Flight, answer: &Answer, now: Instant) -> Result<(), Fault> {
        let life = self.lifetime(answer, &flight.job);
        let (due, number) = (self.refresh_at(life.fresh, now), self.number());
        let Some(server) = self.server(at) else { return Ok(()) };
        let which = match flight.job {
            Job::Directory => {
                let url = flight.seen.first().ok_or(Fault::NothingToRenew)?;
                let document = server.documents.get(url).ok_or(Fault::NothingToRenew)?.document.clone();
                self.document(at, flight, document, life, now);
                return Ok(());
            }
            Job::Network => {
                renew(server.maps.network.as_mut(), life, number, now)?;
                server.maps.network_due = due;
                Arrived::Network
            }
            Job::Costs => {
                renew(server.maps.costs.as_mut(), life, number, now)?;
                server.maps.costs_due = due;
                Arrived::Costs
            }
            Job::Group(_) | Job::File => return Err(Fault::NothingToRenew),
        };
        self.pair(at, which, now)
    }

    /// A success: judged by its media type, which the directory only announces.
    fn arrived(&mut self, at: usize, flight: Flight, answer: &Answer, now: Instant) -> Result<(), Fault> {
        let life = self.lifetime(answer, &flight.job);
        let body = &answer.body;
        if flight.job == Job::File {
            let sources = self.settings.sources();
            let costs = local::read(body, &self.settings.wish.cost_type, &sources)?;
            self.bad_costs += costs.bad as u64;
            let (held, due) = (self.held(costs, life, now), now + life.fresh.mul_f64(0.8));
            if let Some(server) = self.server(at) {
                (server.file, server.file_due) = (Some(held), due);
            }
            self.works(at, now);
            return Ok(());
        }
        let mut found = media::essence(answer.headers.content_type.as_deref().unwrap_or_default());
        if let Some(server) = self.server(at).filter(|s| s.accepts_json && found == media::PLAIN) {
            server.called_json += 1;
            flight.wanted.clone_into(&mut found);
        }
        let url = flight.seen.last().cloned();
        let (Some(server), Some(url)) = (self.servers.get_mut(at), url) else { return Ok(()) };
        if found == media::DIRECTORY && (flight.job == Job::Directory || !server.diverted) {
            let document = Document::parse(body, &url, &self.settings.policy)?;
            if flight.job != Job::Directory {
                // The resource is to be found from here (RFC 7285 §8.3.4.2).
                server.diverted = true;
                server.walk = Some(directory::Walk::new(url));
                server.walk_life = None;
            } else if let Some(asked) = flight.seen.first() {
                let etag = answer.headers.etag.clone();
                let others = server.documents.iter().filter(|(url, _)| *url != asked);
                let kept: usize = others.map(|(_, cached)| 1 + cached.document.resources.len()).sum();
                if kept + document.resources.len() < directory::MAX_RESOURCES {
                    server.documents.insert(asked.clone(), Cached { etag, document: document.clone() });
                }
            }
            self.document(at, &flight, document, life, now);
            return Ok(());
        }
        if found != flight.wanted {
            return Err(Fault::WrongType { wanted: flight.wanted, found: error::short(&found) });
        }
        let Some(plan) = server.plan.clone() else { return Ok(()) };
        match flight.job {
            Job::Network => {
                let map = NetworkMap::parse(body)?;
                let (held, due) = (self.held(Arc::new(map), life, now), self.refresh_at(life.fresh, now));
                let Some(server) = self.server(at) else { return Ok(()) };
                server.maps.network = Some(Loaded { held, etag: answer.headers.etag.clone() });
                server.maps.network_due = due;
                self.pair(at, Arrived::Network, now)
            }
            Job::Costs => {
                let map = CostMap::parse(body, plan.cost_type(), flight.pids)?;
                self.bad_costs += map.rows.bad as u64;
                let (held, due) = (self.held(Arc::new(map), life, now), self.refresh_at(life.fresh, now));
                let Some(server) = self.server(at) else { return Ok(()) };
                server.maps.costs = Some(Loaded { held, etag: answer.headers.etag.clone() });
                server.maps.costs_due = due;
                self.pair(at, Arrived::Costs, now)
            }
            Job::Group(id) => {
                let source = flight.dsts.first().and_then(|d| self.settings.source_for(*d));
                let Some(source) = source else { return Ok(()) };
                let found = ecs::answer(body, plan.cost_type(), source, &flight.dsts)?;
                self.bad_costs += found.bad as u64;
                let (held, due) = (self.held(found.costs, life, now), self.refresh_at(life.fresh, now));
                let Some(server) = self.server(at) else { return Ok(()) };
                if let Some(group) = server.groups.get_mut(id) {
                    (group.held, group.due, group.error) = (Some(held), due, None);
                    (group.failed_since, group.backoff) = (None, Backoff::default());
                }
                if server.groups.mend(now) {
                    self.want(at, now);
                }
                self.works(at, now);
                Ok(())
            }
            Job::Directory | Job::File => Ok(()),
        }
    }

    /// Goes on with a walk through the directories; at its end, chooses.
    fn document(&mut self, at: usize, flight: &Flight, document: Document, life: Lifetime, now: Instant) {
        let Some(server) = self.servers.get_mut(at) else { return };
        let Some(walk) = &mut server.walk else { return };
        server.walk_life = Some(server.walk_life.map_or(life.fresh, |l| l.min(life.fresh)));
        if let Some(url) = flight.seen.last() {
            walk.arrived(url, document);
        }
        self.walked(at, now);
    }

    fn walked(&mut self, at: usize, now: Instant) {
        let Some(server) = self.servers.get_mut(at) else { return };
        let Some(walk) = server.walk.take_if(|w| w.next().is_none()) else { return };
        let closure = walk.finish();
        let life = server.walk_life.unwrap_or(life::LEAST);
        server.refused.retain(|(_, _, until)| now < *until);
        let refused: Vec<_> = server.refused.iter().map(|(id, t, _)| (id.clone(), t.clone())).collect();
        let plan = directory::choose(&closure, &self.settings.wish, &refused);
        server.closure = Some(closure);
        server.directory_due = now + life.mul_f64(0.8 * self.rng.random_range(0.9..=1.1));
        match plan {
            Ok(plan) => {
                server.set_plan(plan, &self.wanted, &self.settings, now);
                if server.failing_directory {
                    server.failing_directory = false;
                    self.works(at, now);
                }
            }
            Err(fault) => {
                server.plan = None;
                self.count(fault.outcome());
                self.suspend(at, fault, true, now);
            }
        }
    }

    fn pair(&mut self, at: usize, which: Arrived, now: Instant) -> Result<(), Fault> {
        let Some(server) = self.servers.get_mut(at) else { return Ok(()) };
        match server.maps.arrived(which, now) {
            Step::Paired => {
                if server.failing || which == Arrived::Costs {
                    self.works(at, now);
                }
                self.dirty = true;
                Ok(())
            }
            Step::Waiting => {
                server.want(&self.wanted, &self.settings, now);
                Ok(())
            }
            Step::Apart(fault) => Err(fault),
        }
    }

    /// Costs have come from it.
    fn works(&mut self, at: usize, now: Instant) {
        self.dirty = true;
        let Some(server) = self.server(at) else { return };
        let failed = std::mem::take(&mut server.failing);
        (server.streak, server.diverted, server.failing_directory) = (0, false, false);
        server.last_success = Some(now);
        server.backoff.reset();
        if failed {
            let directory = self.directory_name(at);
            self.event(Event::Working { directory });
        }
    }

    /// The server is left alone for a while, and those behind it get their turn.
    fn suspend(&mut self, at: usize, fault: Fault, directory: bool, now: Instant) {
        let Some(server) = self.servers.get_mut(at) else { return };
        let wait = server.backoff.fail(&mut self.rng);
        server.not_before = now + wait;
        if directory {
            server.directory_due = server.directory_due.min(now);
        }
        server.failing_directory |= directory;
        self.mark(at, fault, now);
    }

    /// It fails, as far as anybody outside can see.
    fn mark(&mut self, at: usize, fault: Fault, now: Instant) {
        let Some(server) = self.server(at) else { return };
        let news = !std::mem::replace(&mut server.failing, true)
            || server.last_error.as_ref().is_none_or(|(_, before)| *before != fault);
        let why = fault.to_string();
        server.last_error = Some((now, fault));
        self.dirty = true;
        if news {
            let directory = self.directory_name(at);
            self.event(Event::Failing { directory, why });
        }
    }

    /// A request has brought nothing.
    pub(super) fn failed(&mut self, at: usize, job: &Job, fault: Fault, now: Instant) {
        self.count(fault.outcome());
        let Some(server) = self.servers.get_mut(at) else { return };
        if let (Job::Directory, Some(walk)) = (job, &mut server.walk) {
            if walk.at_root() {
                server.walk = None;
            } else {
                // The others serve without it; it is tried again before long.
                walk.failed(&fault);
                server.walk_life = Some(server.walk_life.unwrap_or(life::LEAST).min(DIRECTORY_APART));
                server.last_error = Some((now, fault));
                return self.walked(at, now);
            }
        }
        if matches!(job, Job::File) {
            let life = self.settings.refresh.unwrap_or(FILE_LIFE);
            server.file_due = now + life;
            return self.mark(at, fault, now);
        }
        let consequence = consequence(job, &fault);
        if matches!(consequence, Consequence::Wrong | Consequence::Address(_) | Consequence::CostType) {
            self.complaints += 1;
            let (directory, why) = (self.directory_name(at), fault.to_string());
            self.event(Event::Complaint { directory, why });
        }
        let in_directory = *job == Job::Directory;
        let Some(server) = self.servers.get_mut(at) else { return };
        match consequence {
            Consequence::Server => self.suspend(at, fault, in_directory, now),
            Consequence::Wait(wait) => {
                server.not_before = now + wait;
                self.mark(at, fault, now);
            }
            Consequence::Gone => {
                let soonest = server.directory_asked.map_or(now, |t| t + DIRECTORY_APART).max(now);
                server.directory_due = server.directory_due.min(soonest);
                self.suspend(at, fault, in_directory, now);
                if let Some(server) = self.server(at) {
                    // Until then the resource is asked no more often than that.
                    server.not_before = server.not_before.max(server.directory_due.min(soonest));
                }
            }
            Consequence::CostType => {
                if let Some(plan) = &server.plan
                    && server.refused.len() < MAX_REFUSED
                {
                    server.refused.push((plan.id().to_owned(), plan.cost_type().clone(), now + WRONG));
                }
                server.directory_due = now;
                self.suspend(at, fault, true, now);
            }
            Consequence::Address(addr) => {
                server.groups.ban(addr, now);
                server.last_error = Some((now, fault));
                server.want(&self.wanted, &self.settings, now);
            }
            Consequence::Wrong => {
                server.last_error = Some((now, fault.clone()));
                if let Job::Group(id) = job
                    && let Some(group) = server.groups.get_mut(*id)
                {
                    (group.due, group.error) = (now + WRONG, Some(fault.clone()));
                    self.one_more(at, fault, now);
                } else {
                    server.not_before = now + WRONG;
                    self.mark(at, fault, now);
                }
            }
            Consequence::Query { split } => {
                server.last_error = Some((now, fault.clone()));
                if let Job::Group(id) = job {
                    self.group_failed(at, *id, &fault, split, now);
                }
                self.one_more(at, fault, now);
            }
        }
    }

    /// A group's query has failed. It may be for one address in it: a group is asked for in halves unless it has costs
    /// that serve on, and an address alone is left out if others have succeeded meanwhile.
    fn group_failed(&mut self, at: usize, id: u64, fault: &Fault, split: bool, now: Instant) {
        let Some(server) = self.servers.get_mut(at) else { return };
        let (failing, others) = (server.failing, server.last_success);
        let Some(group) = server.groups.get_mut(id) else { return };
        let wait = group.backoff.fail(&mut self.rng);
        (group.due, group.error) = (now + wait, Some(fault.clone()));
        let since = *group.failed_since.get_or_insert(now);
        let serves = group.held.as_ref().is_some_and(|h| now < h.usable_until(&self.settings, failing));
        let others = others.is_some_and(|t| t > since);
        if !split || (serves && !others) {
            return;
        }
        match *group.addrs.as_slice() {
            [addr] if others => {
                server.groups.ban(addr, now);
                server.want(&self.wanted, &self.settings, now);
            }
            [_] => {}
            _ => server.groups.split(id, now),
        }
    }

    /// Another query in a row has failed.
    fn one_more(&mut self, at: usize, fault: Fault, now: Instant) {
        let Some(server) = self.server(at) else { return };
        server.streak = server.streak.saturating_add(1);
        if server.streak >= STREAK {
            self.suspend(at, fault, false, now);
        }
    }
}

fn renew<T>(loaded: Option<&mut Loaded<T>>, life: Lifetime, number: u64, now: Instant) -> Result<(), Fault> {
    let held = &mut loaded.ok_or(Fault::NothingToRenew)?.held;
    (held.answer, held.fetched, held.fresh_until, held.life) = (number, now, now + life.fresh, life);
    Ok(())
}

fn consequence(job: &Job, fault: &Fault) -> Consequence {
    let query = matches!(job, Job::Group(_));
    match fault {
        Fault::Status { status: 429 | 503, retry_after: Some(wait), .. } => {
            // A zero would be no wait at all.
            Consequence::Wait(Duration::from_secs((*wait).max(1)))
        }
        Fault::Status { status: 404 | 410, .. } if *job != Job::Directory => Consequence::Gone,
        Fault::Status { status: 400, error: Some(error), .. } if *job != Job::Directory => match error.code {
            Code::InvalidFieldValue => {
                let field = error.field.as_deref().unwrap_or_default();
                match error.value.as_deref().and_then(address::parse) {
                    Some(addr) if query => Consequence::Address(addr),
                    _ if field.starts_with("cost-type") => Consequence::CostType,
                    _ => Consequence::Wrong,
                }
            }
            Code::Syntax | Code::MissingField | Code::InvalidFieldType => Consequence::Wrong,
            Code::Other => Consequence::Query { split: false },
        },
        Fault::Status { status: 401 | 403 | 429 | 503, .. } | Fault::Challenge(_) => Consequence::Server,
        Fault::Status { status: 500..=599, .. } if query => Consequence::Query { split: true },
        fault if fault.is_transport() => Consequence::Server,
        _ if query => Consequence::Query { split: false },
        _ => Consequence::Server,
    }
}

/// The plan's own remark for the state.
pub(super) fn describe(plan: &Plan) -> String {
    match plan {
        Plan::Endpoint { id, .. } => id.clone(),
        Plan::Maps { network_id, cost_id, .. } => format!("{network_id} and {cost_id}"),
    }
}
