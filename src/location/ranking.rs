//! A result and the costs known to the same result in the order that they give it.
//!
//! Servers are moved into tiers of their own by class, addresses within a server by cost; nothing is added or
//! removed. This is done when a result is built and when costs change, so that a call reads an order that is made.
//!
//! | rule | what becomes of a tier |
//! |---|---|
//! | `classes` | one tier for each class, the best first; weights decide within it |
//! | `strict` | the same with every different cost a class |
//! | `weights` | one tier, the weights scaled by cost; with ranks, which have no ratios: as `classes` |
//! | `off` | nothing; [`Located::shadow`] tells what `classes` would have done |
//!
//! With `scope = "across-priorities"` classes reach over all priorities of one NAPTR record and transport, never
//! over more, and never for SIPS.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Instant;

use smallvec::SmallVec;

use super::candidate::{Instance, Located, Outcome, Server, Tier};
use super::classes::{RankPolicy, Scale};
use super::draw::{POSITIVE, Shares, WHOLE};
use super::hysteresis::{Group, Memory, Order, Seen};
use super::question::RecordKind;
use super::snapshot::{Cost, CostMode, CostSnapshot};
use crate::config::{AltoRule, AltoScope};
use crate::flow::Transport;

/// What costs made of a tier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ranking {
    /// The rule applied; `weights` gives way to `classes` where there are ranks.
    pub rule: AltoRule,
    /// What came of it.
    pub used: Use,
    /// The class of this tier, 0 the best; that of its best server where classes share a tier.
    pub class: u16,
    /// Of how many.
    pub classes: u16,
    /// It stands before one of a better priority, by agreement.
    pub overrides_priority: bool,
    /// The latest costs say otherwise, but not often enough yet.
    pub held: bool,
}

/// What came of the costs of a tier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Use {
    /// They made the order; with one class they left it as it was.
    Applied,
    /// They are shown only (`rule = "off"`).
    Shown,
    /// Too few of the targets have one (`min_coverage`).
    NotCovered,
}

impl Use {
    /// A fixed word for records.
    pub const fn label(self) -> &'static str {
        match self {
            Use::Applied => "applied",
            Use::Shown => "shown",
            Use::NotCovered => "not_covered",
        }
    }
}

/// A result in its order.
#[derive(Clone, Debug)]
pub struct Ranked {
    /// The result.
    pub located: Arc<Located>,
    /// From then on it has to be ranked again, though the costs be the same: some run out, or a change is due.
    pub again_at: Option<Instant>,
}

/// NAPTR order and preference, transport, and priority of a group.
type Alike = (Option<(u16, u16)>, Option<Transport>, Option<u16>);

/// Where a result was ranked: what is passed on everywhere.
struct Pass<'a> {
    snapshot: &'a CostSnapshot,
    policy: &'a RankPolicy,
    memory: &'a mut Memory,
    down: &'a dyn Fn(&Instance) -> bool,
    /// The end of the life of the SRV sets.
    pin: Instant,
    now: Instant,
    again_at: Option<Instant>,
    /// Groups had so far.
    groups: Vec<Alike>,
}

/// Ranks a result. `located` is as the DNS gave it; `memory` is that of its key. `down`: what is known to be down.
pub fn rank(
    located: &Arc<Located>,
    snapshot: &CostSnapshot,
    policy: &RankPolicy,
    memory: &mut Memory,
    down: &dyn Fn(&Instance) -> bool,
    now: Instant,
) -> Ranked {
    let mut with = Located::clone(located);
    let mut ends: Option<Instant> = None;
    let across = mixes(policy, effective(policy, snapshot), located.key.sips);
    for group in with.tiers.chunk_by_mut(|a, b| across && mixable(a, b)) {
        let own = own_answer(group, snapshot, now);
        for server in group.iter_mut().flat_map(|t| &mut t.servers) {
            let cost = |a| own.and_then(|own| snapshot.rank(a, own, now)).or_else(|| snapshot.cost(a, now));
            let costs: Box<[Option<Cost>]> =
                server.addrs.iter().map(|a| cost(a).copied().filter(sound)).collect();
            if costs.iter().any(Option::is_some) {
                ends = costs.iter().flatten().map(|c| c.usable_until).chain(ends).min();
                server.costs = costs;
            }
        }
    }
    if ends.is_none() || located.outcome != Outcome::Found {
        memory.clear();
        return Ranked { located: Arc::clone(located), again_at: None };
    }
    memory.begin();
    let pin = srv_end(located, now);
    let mut pass = Pass { snapshot, policy, memory, down, pin, now, again_at: ends, groups: Vec::new() };
    let ordered = pass.all(&with);
    let again_at = pass.again_at;
    memory.end();
    let located = match policy.rule {
        AltoRule::Off => {
            let changed = !same_order(&with, &ordered);
            mark_shown(&mut with, &ordered);
            with.shadow = changed.then(|| Arc::new(ordered));
            with
        }
        _ => ordered,
    };
    Ranked { located: Arc::new(located), again_at }
}

/// The rule that makes the order, be it only to show it.
fn effective(policy: &RankPolicy, snapshot: &CostSnapshot) -> AltoRule {
    match policy.rule {
        AltoRule::Weights if snapshot.mode == CostMode::Ordinal => AltoRule::Classes,
        AltoRule::Off => AltoRule::Classes,
        rule => rule,
    }
}

/// Whether costs may mix the priorities of a location: never for SIPS. Weights are scaled within a priority.
fn mixes(policy: &RankPolicy, rule: AltoRule, sips: bool) -> bool {
    policy.scope == AltoScope::AcrossPriorities && rule != AltoRule::Weights && !sips
}

/// Whether two tiers differ in nothing but their priority.
fn mixable(a: &Tier, b: &Tier) -> bool {
    a.naptr == b.naptr && a.transport().is_some() && a.transport() == b.transport()
}

/// The answer that ranks this group; `None`: any cost will do, numbers compare.
fn own_answer(group: &[Tier], snapshot: &CostSnapshot, now: Instant) -> Option<u64> {
    if snapshot.mode == CostMode::Numerical {
        return None;
    }
    let mut addrs: Vec<IpAddr> =
        group.iter().flat_map(|t| &t.servers).flat_map(|s| s.addrs.iter().copied()).collect();
    addrs.sort_unstable();
    addrs.dedup();
    snapshot.answer_for(&addrs, now)
}

impl Pass<'_> {
    fn all(&mut self, with: &Located) -> Located {
        let rule = effective(self.policy, self.snapshot);
        let across = mixes(self.policy, rule, with.key.sips);
        let mut tiers = Vec::with_capacity(with.tiers.len());
        for group in with.tiers.chunk_by(|a, b| across && mixable(a, b)) {
            self.group(group, rule, across, &mut tiers);
        }
        for server in tiers.iter_mut().flat_map(|t| &mut t.servers) {
            self.addresses(server, rule);
        }
        let mut located = with.clone();
        located.tiers = tiers;
        located.sealed()
    }

    /// One group: a tier, or the priorities that costs may mix.
    fn group(&mut self, group: &[Tier], rule: AltoRule, across: bool, out: &mut Vec<Tier>) {
        let servers: Vec<&Server> = group.iter().flat_map(|t| &t.servers).collect();
        let scale = Scale::new(self.policy, rule, self.snapshot);
        let answer = self.answer_of(&servers);
        let seen: Vec<Seen> = servers.iter().map(|s| self.target(s, answer, &scale)).collect();
        let known = seen.iter().filter(|s| s.cost.is_some()).count();
        let covers = known as f64 >= self.policy.min_coverage * seen.len() as f64;
        let mut ranking = Ranking {
            rule,
            used: Use::Applied,
            class: 0,
            classes: 1,
            overrides_priority: false,
            held: false,
        };
        let (Some(first), 1..) = (group.first(), known) else {
            // Nothing is left to order by, and nothing to hold.
            ranking.used = Use::NotCovered;
            let any = servers.iter().any(|s| !s.costs.is_empty());
            return out.extend(group.iter().map(|t| Tier { ranking: any.then_some(ranking), ..t.clone() }));
        };
        let alike = (first.naptr, first.transport(), (!across).then_some(first.priority));
        let nth = self.groups.iter().filter(|g| **g == alike).count();
        self.groups.push(alike);
        let key = Group::Targets(alike.0, alike.1, alike.2, nth);
        let order = self.memory.order(key, &seen, covers, &scale, self.policy, Some(self.pin), self.now);
        self.again_at = earlier(self.again_at, order.again_at);
        ranking.held = order.held;
        if !order.covered {
            ranking.used = Use::NotCovered;
            return out.extend(group.iter().map(|t| Tier { ranking: Some(ranking), ..t.clone() }));
        }
        ranking.classes = order.count;
        if rule == AltoRule::Weights {
            let factors = scale.factors(&order.costs);
            let mut at = 0;
            for tier in group {
                let part = factors.get(at..at + tier.servers.len()).unwrap_or_default();
                let classes = order.classes.get(at..at + tier.servers.len()).unwrap_or_default();
                at += tier.servers.len();
                out.push(weighted(tier, part, classes, ranking));
            }
            return;
        }
        if self.policy.max_share < 1.0 && group.len() == 1 && order.count > 1 {
            return out.push(shared(first, &order, ranking, self.policy.max_share));
        }
        split(group, &order, ranking, out);
    }

    /// A target as the hysteresis sees it: with the best of its addresses' costs.
    fn target(&self, server: &Server, answer: Option<u64>, scale: &Scale) -> Seen {
        let counts = |c: &&Cost| answer.is_none_or(|a| a == c.answer);
        let costs = server.costs.iter().flatten().filter(counts);
        let cost = costs.min_by(|a, b| scale.compare(Some(a.value), Some(b.value))).copied();
        let mut instances = (0..server.addrs.len()).filter_map(|at| server.instance(at));
        Seen { id: server.id, cost, down: instances.all(|i| (self.down)(&i)) }
    }

    /// The answer that counts: ranks are comparable only within one (RFC 7285 §6.2). It is the one that most of the
    /// targets have a rank in, of several the latest. Numbers of different answers compare.
    fn answer_of(&self, servers: &[&Server]) -> Option<u64> {
        if self.snapshot.mode == CostMode::Numerical {
            return None;
        }
        let mut answers: Vec<(u64, usize)> = Vec::new();
        for server in servers {
            let mut own: SmallVec<[u64; 4]> = server.costs.iter().flatten().map(|c| c.answer).collect();
            own.sort_unstable();
            own.dedup();
            for answer in own {
                match answers.iter_mut().find(|(a, _)| *a == answer) {
                    Some((_, count)) => *count += 1,
                    None => answers.push((answer, 1)),
                }
            }
        }
        answers.into_iter().max_by_key(|(answer, count)| (*count, *answer)).map(|(answer, _)| answer)
    }

    /// Orders the addresses of a server by cost, else as they were.
    fn addresses(&mut self, server: &mut Server, rule: AltoRule) {
        if server.addrs.len() < 2 || server.costs.is_empty() {
            return;
        }
        let scale = Scale::new(self.policy, rule, self.snapshot).exact();
        let answer = self.answer_of(&[server]);
        let seen: Vec<Seen> = server
            .addrs
            .iter()
            .enumerate()
            .map(|(at, addr)| Seen {
                id: address_id(addr),
                cost: server.cost(at).copied().filter(|c| answer.is_none_or(|a| a == c.answer)),
                down: server.instance(at).is_some_and(|i| (self.down)(&i)),
            })
            .collect();
        let group = Group::Addresses(server.id);
        let order = self.memory.order(group, &seen, true, &scale, self.policy, Some(self.pin), self.now);
        self.again_at = earlier(self.again_at, order.again_at);
        let mut places: Vec<usize> = (0..server.addrs.len()).collect();
        places.sort_by_key(|at| order.classes.get(*at).copied().unwrap_or(u16::MAX));
        server.addrs = places.iter().filter_map(|at| server.addrs.get(*at).copied()).collect();
        server.costs = places.iter().filter_map(|at| server.costs.get(*at).copied()).collect();
    }
}

/// One tier for each class and priority: by class, then by priority.
fn split(group: &[Tier], order: &Order, ranking: Ranking, out: &mut Vec<Tier>) {
    let from = out.len();
    for class in 0..order.count {
        let mut classes = order.classes.iter();
        for tier in group {
            let members: Vec<Server> = tier
                .servers
                .iter()
                .zip(classes.by_ref())
                .filter(|(_, c)| **c == class)
                .map(|(s, c)| Server { class: *c, ..s.clone() })
                .collect();
            if members.is_empty() {
                continue;
            }
            let whole = members.len() == tier.servers.len();
            let mut part = if whole {
                Tier { servers: members, ..tier.clone() }
            } else {
                Tier::new(tier.naptr, tier.priority, members)
            };
            part.ranking = Some(Ranking { class, ..ranking });
            out.push(part);
        }
    }
    let mut best_behind = u16::MAX;
    for tier in out.get_mut(from..).unwrap_or_default().iter_mut().rev() {
        if let Some(ranking) = &mut tier.ranking {
            ranking.overrides_priority = tier.priority > best_behind;
        }
        best_behind = best_behind.min(tier.priority);
    }
}

/// One tier, the best class of which gets `most` of the load, the others the rest by their weights.
fn shared(tier: &Tier, order: &Order, ranking: Ranking, most: f64) -> Tier {
    let mut tier = classed(tier, &order.classes, ranking);
    let leads = |at: usize| order.classes.get(at) == Some(&0);
    let part = |leading: bool| -> f64 {
        (0..tier.servers.len()).filter(|at| leads(*at) == leading).map(|at| tier.share(at)).sum()
    };
    let (lead, rest) = (part(true), part(false));
    let values: Vec<u64> = (0..tier.servers.len())
        .map(|at| {
            let (whole, of) = if leads(at) { (most, lead) } else { (1.0 - most, rest) };
            let fraction = if of > 0.0 { whole * tier.share(at) / of } else { 0.0 };
            (fraction * WHOLE as f64) as u64
        })
        .collect();
    tier.shares = Shares::of_values(values.into_iter());
    tier
}

/// One tier, the weights of which are scaled: no positive weight below 1, zero ones as small as ever.
fn weighted(tier: &Tier, factors: &[f64], classes: &[u16], ranking: Ranking) -> Tier {
    let mut tier = classed(tier, classes, ranking);
    let any = tier.servers.iter().any(|s| s.weight > 0);
    let values: Vec<u64> = tier
        .servers
        .iter()
        .zip(factors)
        .map(|(server, factor)| match server.weight {
            0 if any => 1,
            // Zero alone is equal shares: of a hundred each.
            0 => (100.0 * factor * POSITIVE as f64) as u64,
            weight => ((f64::from(weight) * factor).max(1.0) * POSITIVE as f64) as u64,
        })
        .collect();
    tier.shares = Shares::of_values(values.into_iter());
    tier
}

/// A tier of several classes.
fn classed(tier: &Tier, classes: &[u16], ranking: Ranking) -> Tier {
    let mut tier = tier.clone();
    for (server, class) in tier.servers.iter_mut().zip(classes) {
        server.class = *class;
    }
    tier.ranking = Some(ranking);
    tier
}

/// Marks a result whose order stays with the classes that it would have had.
fn mark_shown(with: &mut Located, ordered: &Located) {
    for tier in &mut with.tiers {
        for server in &mut tier.servers {
            let would = ordered.tiers.iter().filter(|t| t.naptr == tier.naptr && t.priority == tier.priority);
            for other in would {
                if let Some(found) = other.servers.iter().find(|s| s.id == server.id) {
                    server.class = found.class;
                    tier.ranking = other.ranking.map(|r| Ranking { used: shown(r.used), class: 0, ..r });
                }
            }
        }
        if let Some(ranking) = &mut tier.ranking {
            ranking.class = tier.servers.iter().map(|s| s.class).min().unwrap_or(0);
            ranking.overrides_priority = false;
        }
    }
}

fn shown(used: Use) -> Use {
    if used == Use::Applied { Use::Shown } else { used }
}

/// Whether requests take the same way through both.
fn same_order(a: &Located, b: &Located) -> bool {
    let servers = |t: &Tier| t.servers.iter().map(|s| (s.id, s.addrs.clone())).collect::<Vec<_>>();
    a.tiers.len() == b.tiers.len() && a.tiers.iter().zip(&b.tiers).all(|(a, b)| servers(a) == servers(b))
}

/// When the first of the SRV sets runs out that a result stands on; without any, the result itself.
fn srv_end(located: &Located, now: Instant) -> Instant {
    let sets = located.steps.iter().filter(|s| s.question.kind == RecordKind::Srv);
    sets.filter_map(|s| s.ttl).min().map_or(located.expires, |ttl| now + ttl)
}

/// A number for an address within a server.
fn address_id(addr: &IpAddr) -> u64 {
    super::draw::identity(&[addr.to_string().as_bytes()])
}

/// Values that cannot be ordered are none.
fn sound(cost: &Cost) -> bool {
    cost.value.is_finite() && cost.value >= 0.0
}

fn earlier(a: Option<Instant>, b: Option<Instant>) -> Option<Instant> {
    match (a, b) {
        (Some(a), Some(b)) => Some(a.min(b)),
        (a, b) => a.or(b),
    }
}
