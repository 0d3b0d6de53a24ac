//! The ALTO client's sockets and clock. What to ask and what answers mean is decided in [`crate::alto`]; here requests
//! are carried out, and snapshots of costs handed to the ranking. Calls wait for nothing of it.

mod http;
#[cfg(test)]
mod tests;

use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError, Weak};
use std::time::{Duration, Instant};

use tokio::runtime::RuntimeFlavor;
use tokio::sync::Notify;
use tokio::task::JoinSet;

use crate::alto::client::{Event, Status};
use crate::alto::{Answer, Client, Fault, Settings};
use crate::config;
use crate::location::{CostMode, CostSnapshot};
use crate::proxy::Policy;

use super::costs::Ranker;
use super::node::Node;

use http::Http;

/// The longest sleep; a new configuration or set of addresses ends it at once. What is no longer wanted is found
/// out this often.
const NAP: Duration = Duration::from_secs(60);

/// Answers up to this long are read at once, octets.
const AT_ONCE: usize = 64 << 10;

/// The client, for whoever wants to look at it.
#[derive(Default)]
pub struct Alto {
    client: Mutex<Option<Client>>,
    /// How it stood when it was last looked at.
    seen: Mutex<Option<Status>>,
    /// A new configuration, or something to ask at once.
    wake: Notify,
}

impl Alto {
    /// How it stands; `None` without `[alto]`. While it reads a large answer, how it stood before.
    pub fn status(&self, now: Instant) -> Option<Status> {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let client = match self.client.try_lock() {
            Ok(client) => client,
            Err(TryLockError::Poisoned(client)) => client.into_inner(),
            Err(TryLockError::WouldBlock) if seen.is_some() => return seen.clone(),
            Err(TryLockError::WouldBlock) => self.lock(),
        };
        seen.clone_from(&client.as_ref().map(|client| client.status(now)));
        seen.clone()
    }

    /// Forgets costs and asks anew: those of some addresses, or all of them. False: there is no client.
    pub fn flush(&self, addrs: Option<&[IpAddr]>, now: Instant) -> bool {
        let mut client = self.lock();
        let Some(client) = client.as_mut() else { return false };
        client.flush(addrs, now);
        self.wake.notify_one();
        true
    }

    /// There is a new configuration.
    pub(super) fn wake(&self) {
        self.wake.notify_one();
    }

    /// Held for moments only, never over a wait.
    fn lock(&self) -> MutexGuard<'_, Option<Client>> {
        self.client.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A request that has ended: of which client, for which server, under which ticket.
type Landed = (u64, usize, u64, Result<Answer, Fault>);

/// What the task keeps between its turns.
struct Driver {
    alto: Arc<Alto>,
    ranker: Arc<Ranker>,
    http: Option<Arc<Http>>,
    flights: JoinSet<Landed>,
    /// Tells the answers to this client from those to an earlier one.
    generation: u64,
    /// Smaller than all numbers that the next client gives out.
    last_number: u64,
    seed: [u8; 32],
}

/// Keeps the costs of a node's peers, until the node is gone.
pub(super) async fn run(node: Weak<Node>, alto: Arc<Alto>, seed: [u8; 32]) {
    let ranker = node.upgrade().map(|node| Arc::clone(node.resolver().ranker()));
    let Some(ranker) = ranker else { return };
    let mut added = ranker.changed();
    let mut driver = Driver {
        alto: Arc::clone(&alto),
        ranker,
        http: None,
        flights: JoinSet::new(),
        generation: 0,
        last_number: 0,
        seed,
    };
    let mut policy: Option<Arc<Policy>> = None;
    loop {
        {
            // Held only for a moment, so that this does not keep the node alive.
            let Some(node) = node.upgrade() else { return };
            let current = node.policy();
            if policy.as_ref().is_none_or(|p| !Arc::ptr_eq(p, &current)) {
                driver.configure(current.config.alto.as_ref(), &current.config, Instant::now());
                policy = Some(current);
            }
        }
        let nap = driver.turn(Instant::now());
        tokio::select! {
            Some(landed) = driver.flights.join_next(), if !driver.flights.is_empty() => {
                driver.landed(landed);
            }
            () = tokio::time::sleep(nap) => driver.want(),
            changed = added.changed() => {
                if changed.is_err() {
                    return;
                }
                driver.want();
            }
            () = alto.wake.notified() => {}
        }
    }
}

impl Driver {
    /// Takes over a configuration. Files are read anew even if nothing has changed in it.
    fn configure(&mut self, alto: Option<&config::Alto>, config: &config::Config, now: Instant) {
        let shared = Arc::clone(&self.alto);
        let mut client = shared.lock();
        self.http = alto.map(|alto| Arc::new(Http::new(alto)));
        let settings = alto.map(|alto| Settings::new(alto, &config.listen));
        if settings.as_ref() == client.as_ref().map(Client::settings) {
            return;
        }
        self.last_number = client.as_ref().map_or(self.last_number, Client::last_number);
        self.generation += 1;
        self.flights.abort_all();
        let before = client.take();
        *client = settings.map(|settings| {
            // Another seed for each, from the one given.
            let mut seed = self.seed;
            for (octet, more) in seed.iter_mut().zip(self.generation.to_le_bytes()) {
                *octet ^= more;
            }
            let new = Client::new(settings, self.last_number, now, seed);
            match &before {
                Some(before) => new.after(before),
                None => new,
            }
        });
        // What the client before has found is of no use under other settings.
        self.last_number += 1;
        self.ranker.publish(CostSnapshot::new(self.last_number, CostMode::Numerical, false), now);
        if let Some(client) = client.as_mut() {
            client.set_wanted(&self.ranker.wanted(now), now);
        }
    }

    fn want(&self) {
        let now = Instant::now();
        if let Some(client) = self.alto.lock().as_mut() {
            client.set_wanted(&self.ranker.wanted(now), now);
        }
    }

    /// Sends what is to be sent, publishes what has been learnt; how long nothing is to be done after that.
    fn turn(&mut self, now: Instant) -> Duration {
        let shared = Arc::clone(&self.alto);
        let mut client = shared.lock();
        let Some(client) = client.as_mut() else { return NAP };
        while let Some(request) = client.poll_request(now) {
            let Some(http) = self.http.clone() else { break };
            let generation = self.generation;
            self.flights.spawn(async move {
                let result = http.fetch(&request).await;
                (generation, request.server, request.ticket, result)
            });
        }
        while let Some(event) = client.poll_event() {
            tell(&event);
        }
        if let Some(snapshot) = client.poll_snapshot(now) {
            self.ranker.publish(snapshot, now);
        }
        let next = client.poll_timeout().map_or(NAP, |at| at.saturating_duration_since(now));
        // The timer's grain is a millisecond.
        next.clamp(Duration::from_millis(1), NAP)
    }

    fn landed(&mut self, landed: Result<Landed, tokio::task::JoinError>) {
        // Only those of a client that is gone are aborted.
        let Ok((generation, server, ticket, result)) = landed else { return };
        if generation != self.generation {
            return;
        }
        let alto = Arc::clone(&self.alto);
        let large = result.as_ref().is_ok_and(|answer| answer.body.len() > AT_ONCE);
        apart(large, || {
            if let Some(client) = alto.lock().as_mut() {
                client.settle(server, ticket, result, Instant::now());
            }
        });
    }
}

/// Does what takes its time, where other tasks of this thread can go on meanwhile: the questions to the DNS are among
/// them, for which calls wait.
fn apart<T>(large: bool, work: impl FnOnce() -> T) -> T {
    let several = tokio::runtime::Handle::current().runtime_flavor() == RuntimeFlavor::MultiThread;
    if large && several { tokio::task::block_in_place(work) } else { work() }
}

fn tell(event: &Event) {
    match event {
        Event::Failing { directory, why } => {
            tracing::warn!(directory, "the ALTO server fails, its costs serve as long as they may: {why}");
        }
        Event::Working { directory } => tracing::info!(directory, "the ALTO server gives costs again"),
        Event::Complaint { directory, why } => {
            tracing::error!(directory, "the ALTO server says that we asked wrongly: {why}");
        }
    }
}
