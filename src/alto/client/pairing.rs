//! Network map and cost map, taken over only as a pair of one version (RFC 7285 §10.3).

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Instant;

use super::super::error::Fault;
use super::super::maps::{CostMap, NetworkMap, Pair};
use super::server::Held;

/// One of the two as fetched last.
#[derive(Clone, Debug)]
pub struct Loaded<T> {
    pub held: Held<Arc<T>>,
    pub etag: Option<String>,
}

/// The two maps of a server.
#[derive(Clone, Debug)]
pub struct Maps {
    pub network: Option<Loaded<NetworkMap>>,
    pub costs: Option<Loaded<CostMap>>,
    pub network_due: Instant,
    pub costs_due: Instant,
    /// Fetched again because the two did not fit; not by their ETags, which may be what is wrong.
    pub network_again: bool,
    pub costs_again: bool,
    /// What is in use.
    pub pair: Option<Held<Pair>>,
    /// The PIDs asked for, where the cost map is filtered.
    pub asked: BTreeSet<Arc<str>>,
}

/// Which one has arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrived {
    Network,
    Costs,
}

/// What comes of an arrival.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// A pair is in use, a new one or the old one confirmed.
    Paired,
    /// The other one, or both again, are due.
    Waiting,
    /// They do not fit even though both were fetched again. The pair in use stays.
    Apart(Fault),
}

impl Maps {
    pub fn new(now: Instant) -> Self {
        Self {
            network: None,
            costs: None,
            network_due: now,
            costs_due: now,
            network_again: false,
            costs_again: false,
            pair: None,
            asked: BTreeSet::new(),
        }
    }

    /// Takes over the pair if the two fit, else has them fetched again: first the network map, then the cost map,
    /// each once.
    pub fn arrived(&mut self, which: Arrived, now: Instant) -> Step {
        let (Some(network), Some(costs)) = (&self.network, &self.costs) else {
            return Step::Waiting;
        };
        if costs.held.value.fits(&network.held.value) {
            self.pair = Some(Held {
                value: Pair {
                    network: Arc::clone(&network.held.value),
                    costs: Arc::clone(&costs.held.value),
                },
                // A network map confirmed is no news of costs.
                answer: costs.held.answer,
                fetched: costs.held.fetched,
                fresh_until: network.held.fresh_until.min(costs.held.fresh_until),
                life: costs.held.life,
            });
            (self.network_again, self.costs_again) = (false, false);
            return Step::Paired;
        }
        match which {
            // As after every change of the network map.
            Arrived::Network if !self.network_again => {
                self.costs_due = now;
                Step::Waiting
            }
            Arrived::Costs if !self.network_again => {
                (self.network_again, self.network_due) = (true, now);
                Step::Waiting
            }
            Arrived::Network if !self.costs_again => {
                (self.costs_again, self.costs_due) = (true, now);
                Step::Waiting
            }
            _ => {
                let fault = Fault::Versions {
                    wanted: costs.held.value.depends_on(),
                    found: network.held.value.vtag.as_ref().map_or_else(String::new, ToString::to_string),
                };
                (self.network_again, self.costs_again) = (false, false);
                // The next round begins from nothing.
                (self.network, self.costs) = (None, None);
                (self.network_due, self.costs_due) = (now, now);
                Step::Apart(fault)
            }
        }
    }
}
