//! Where calls would go, without sending any: for each candidate of a result the share of calls that would try it
//! first, and its place in the order in which a call would go on.
//!
//! The shares are those that [`Selection`] draws by, made up to one among the servers that can be tried: a weighted
//! draw without replacement that passes over some is the weighted draw among the others. The literal procedure of
//! RFC 2782 has no such property, so there the selection itself draws, [`SAMPLES`] times.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::candidate::{Instance, LeftOutReason, Located, Server};
use super::draw;
use super::health::Health;
use super::rank::Selection;
use super::standing::HealthPolicy;
use crate::config::SrvSelection;

/// Draws made where shares are estimated: the standard error is at most 0.4 %.
pub const SAMPLES: u32 = 20_000;

/// Whether a call may try an instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Usable {
    /// In its turn.
    Yes,
    /// Only after everything else: it is down, or on trial by another call.
    AsLastResort,
    /// Not at all.
    Never,
}

/// What is to be expected of one address of one server.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Prospect {
    /// Index into [`Located::tiers`].
    pub tier: usize,
    /// Index into the tier's servers.
    pub server: usize,
    /// Index into the server's addresses.
    pub address: usize,
    /// The share of calls that try it first, 0.0 to 1.0.
    pub first: f64,
    /// When a call comes to it that draws the server with the largest share each time; from 0. An instance that is
    /// listed more than once is tried once.
    pub order: usize,
}

/// The prospects of a result.
#[derive(Clone, Debug, PartialEq)]
pub struct Forecast {
    /// All addresses that a call might try, in the order of the result.
    pub prospects: Vec<Prospect>,
    /// The shares are estimates, made by so many draws.
    pub sampled: Option<u32>,
}

/// Foretells where calls go that take `located` as it is. `now` is only passed on to the selection.
pub fn forecast(
    located: &Located,
    mode: SrvSelection,
    now: Instant,
    usable: &dyn Fn(&Instance) -> Usable,
) -> Forecast {
    let any_up = servers(located).any(|(_, _, s)| first_of(s, usable, Usable::Yes).is_some());
    // With nothing up, what is down is tried in the usual order.
    let wanted = if any_up { Usable::Yes } else { Usable::AsLastResort };
    let (firsts, sampled) = match mode {
        SrvSelection::Exact => (exact(located, usable, wanted), None),
        SrvSelection::Rfc2782 => (drawn(located, now, usable, wanted), Some(SAMPLES)),
    };
    let order = order(located, usable);
    let mut prospects = Vec::new();
    for (tier, server, listed) in servers(located) {
        for address in 0..listed.addrs.len() {
            let Some(instance) = listed.instance(address) else { continue };
            let Some(order) = order.get(&instance) else { continue };
            let first = firsts.get(&(tier, server, address)).copied().unwrap_or(0.0);
            prospects.push(Prospect { tier, server, address, first, order: *order });
        }
    }
    Forecast { prospects, sampled }
}

/// Tier, server and address to a share.
type Firsts = HashMap<(usize, usize, usize), f64, ahash::RandomState>;

fn servers(located: &Located) -> impl Iterator<Item = (usize, usize, &Server)> {
    let tiers = located.tiers.iter().enumerate();
    tiers.flat_map(|(tier, t)| t.servers.iter().enumerate().map(move |(at, server)| (tier, at, server)))
}

/// The address of a server that is tried first.
fn first_of(server: &Server, usable: &dyn Fn(&Instance) -> Usable, wanted: Usable) -> Option<usize> {
    (0..server.addrs.len()).find(|address| server.instance(*address).is_some_and(|i| usable(&i) == wanted))
}

fn exact(located: &Located, usable: &dyn Fn(&Instance) -> Usable, wanted: Usable) -> Firsts {
    for (number, tier) in located.tiers.iter().enumerate() {
        let open: Vec<(usize, usize, u64)> = tier
            .servers
            .iter()
            .enumerate()
            .filter_map(|(at, s)| Some((at, first_of(s, usable, wanted)?, tier.shares.get(at))))
            .collect();
        let total: u64 = open.iter().map(|(_, _, share)| share).sum();
        if total > 0 {
            return open
                .into_iter()
                .map(|(at, address, share)| ((number, at, address), share as f64 / total as f64))
                .collect();
        }
    }
    Firsts::default()
}

/// The first candidates of many calls, by the selection's own draws.
fn drawn(located: &Located, now: Instant, usable: &dyn Fn(&Instance) -> Usable, wanted: Usable) -> Firsts {
    let shared = Arc::new(located.clone());
    let nothing = Duration::ZERO;
    let policy = HealthPolicy {
        hold_down: nothing,
        hold_down_max: nothing,
        retry_after_max: nothing,
        trial_timeout: nothing,
        slow_start: nothing,
        max_probed_down: 1.0,
    };
    let mut health = Health::new(policy);
    // For the first candidate it makes no difference whether something is passed over or left out.
    let avoid = |i: &Instance| (usable(i) != wanted).then_some(LeftOutReason::OwnListener);
    let mut firsts = Firsts::default();
    for number in 0..SAMPLES {
        let seed = draw::mix(0x666f_7265, u64::from(number));
        let mut selection = Selection::new(Arc::clone(&shared), seed, SrvSelection::Rfc2782);
        let Some(candidate) = selection.next(now, &mut health, &avoid) else { break };
        let (tier, server) = (usize::from(candidate.tier), usize::from(candidate.server));
        let listed = shared.tiers.get(tier).and_then(|t| t.servers.get(server));
        let address = listed.and_then(|s| first_of(s, usable, wanted)).unwrap_or(0);
        *firsts.entry((tier, server, address)).or_default() += 1.0 / f64::from(SAMPLES);
    }
    firsts
}

/// When each instance is come to: tier by tier, a server's addresses one after the other; then what is down.
fn order(
    located: &Located,
    usable: &dyn Fn(&Instance) -> Usable,
) -> HashMap<Instance, usize, ahash::RandomState> {
    let mut order = HashMap::default();
    let mut seen: HashSet<Instance, ahash::RandomState> = HashSet::default();
    for wanted in [Usable::Yes, Usable::AsLastResort] {
        for tier in &located.tiers {
            let mut by_share: Vec<usize> = (0..tier.servers.len()).collect();
            by_share.sort_by_key(|at| std::cmp::Reverse(tier.shares.get(*at)));
            for server in by_share.into_iter().filter_map(|at| tier.servers.get(at)) {
                for instance in (0..server.addrs.len()).filter_map(|a| server.instance(a)) {
                    if usable(&instance) == wanted && seen.insert(instance) {
                        order.insert(instance, order.len());
                    }
                }
            }
        }
    }
    order
}
