//! One request's way through a [`Located`]: tier by tier, health first, then weight (RFC 3263 §4.3).
//!
//! Costs are not looked at here: they have made the tiers and the order of addresses before (`ranking`).

use std::sync::Arc;
use std::time::Instant;

use super::candidate::{Instance, LeftOutReason, Located, Server, Tier};
use super::draw::{self, Bits};
use super::health::Health;
use super::standing::Standing;
use crate::config::SrvSelection;

/// Up to this many servers the draw is a rendezvous, which is stable when others come and go but
/// looks at every server; beyond, it is a binary search.
const RENDEZVOUS: usize = 64;

/// Draws that may hit a server already used up before the rest is counted out.
const REDRAWS: u32 = 16;

/// Why a candidate came up now.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PickReason {
    /// The only server of its tier.
    OnlyServer,
    /// The only server of its class of costs; its tier has more.
    OnlyInClass,
    /// Drawn by weight.
    Drawn,
    /// A further address of the server before.
    NextAddress,
    /// Half-open: this request tries it.
    Trial,
    /// Probes say that it is down, but they say so of more than can be believed (`max_probed_down`).
    Overruled,
    /// Known to be down, but everything else is used up.
    LastResort,
}

impl PickReason {
    /// A fixed word for records.
    pub const fn label(self) -> &'static str {
        match self {
            PickReason::OnlyServer => "only_server",
            PickReason::OnlyInClass => "only_in_class",
            PickReason::Drawn => "drawn",
            PickReason::NextAddress => "next_address",
            PickReason::Trial => "trial",
            PickReason::Overruled => "probes_overruled",
            PickReason::LastResort => "last_resort",
        }
    }
}

/// An instance to try now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// Where to.
    pub instance: Instance,
    /// Index into [`Located::tiers`].
    pub tier: u16,
    /// Index into the tier's servers.
    pub server: u16,
    /// How it stood when picked; [`Standing::Trial`]: its one trial is this request's.
    pub standing: Standing,
    /// Why it came up now.
    pub reason: PickReason,
}

/// Where one request has got to in a shared result. Gives each instance at most once.
#[derive(Clone, Debug)]
pub struct Selection {
    located: Arc<Located>,
    seed: u64,
    mode: SrvSelection,
    /// What is down is offered now.
    last_resort: bool,
    /// Something was passed over because it is down.
    passed_over: bool,
    tier: usize,
    /// The server whose addresses are being gone through, and whether it gave one already.
    current: Option<(usize, bool)>,
    /// Servers of the tier that are used up in this pass.
    done: Bits,
    /// Instances given or left out for good.
    tried: Bits,
    draws: u32,
    offered: u32,
    /// Probes have lost their vote here; `None`: not asked yet.
    overruled: Option<bool>,
    left_out: Option<LeftOutReason>,
}

impl Selection {
    /// Begins a way through `located`. `seed` decides every draw: a keyed hash of the Call-ID or of
    /// the domain for stickiness (rule 13), else a random number.
    pub fn new(located: Arc<Located>, seed: u64, mode: SrvSelection) -> Self {
        Self {
            located,
            seed,
            mode,
            last_resort: false,
            passed_over: false,
            tier: 0,
            current: None,
            done: Bits::default(),
            tried: Bits::default(),
            draws: 0,
            offered: 0,
            overruled: None,
            left_out: None,
        }
    }

    /// The result that it goes through.
    pub fn located(&self) -> &Arc<Located> {
        &self.located
    }

    /// How many candidates it has given.
    pub fn offered(&self) -> u32 {
        self.offered
    }

    /// Why something was left out by `avoid`, if anything was; of several reasons
    /// [`LeftOutReason::OwnListener`] stands first.
    pub fn left_out(&self) -> Option<LeftOutReason> {
        self.left_out
    }

    /// The next candidate, or `None` when all are used up. What is down is passed over and comes
    /// again, in the usual order, only after everything else (rule 9). `avoid` names what must not
    /// be used at all; it is not offered later either.
    pub fn next(
        &mut self,
        now: Instant,
        health: &mut Health,
        avoid: &dyn Fn(&Instance) -> Option<LeftOutReason>,
    ) -> Option<Candidate> {
        let located = Arc::clone(&self.located);
        loop {
            let Some(tier) = located.tiers.get(self.tier) else {
                if self.last_resort || !self.passed_over {
                    return None;
                }
                self.last_resort = true;
                self.enter(0);
                continue;
            };
            let (at, gave) = match self.current {
                Some(current) => current,
                None => match self.draw(tier, now, health) {
                    Some(at) => (at, false),
                    None => {
                        self.enter(self.tier + 1);
                        continue;
                    }
                },
            };
            let picked = tier.servers.get(at).and_then(|s| self.pick(s, now, health, avoid));
            let Some((instance, standing)) = picked else {
                self.done.set(at);
                self.current = None;
                continue;
            };
            self.current = Some((at, true));
            self.offered += 1;
            let reason = match standing {
                Standing::Trial => PickReason::Trial,
                Standing::ProbedDown if !self.last_resort => PickReason::Overruled,
                Standing::Down { .. } | Standing::ProbedDown => PickReason::LastResort,
                Standing::Up if gave => PickReason::NextAddress,
                Standing::Up if tier.servers.len() == 1 => match tier.ranking {
                    Some(ranking) if ranking.classes > 1 => PickReason::OnlyInClass,
                    _ => PickReason::OnlyServer,
                },
                Standing::Up => PickReason::Drawn,
            };
            let small = |n: usize| u16::try_from(n).unwrap_or(u16::MAX);
            return Some(Candidate { instance, tier: small(self.tier), server: small(at), standing, reason });
        }
    }

    /// Begins a tier.
    fn enter(&mut self, tier: usize) {
        self.tier = tier;
        self.current = None;
        self.draws = 0;
        self.done.clear();
    }

    /// The next address of a server that can be tried in this pass.
    fn pick(
        &mut self,
        server: &Server,
        now: Instant,
        health: &mut Health,
        avoid: &dyn Fn(&Instance) -> Option<LeftOutReason>,
    ) -> Option<(Instance, Standing)> {
        let mut passed = 0u64;
        loop {
            let (at, number) = server
                .instances
                .iter()
                .enumerate()
                .map(|(i, n)| (i, *n))
                .find(|(i, n)| !self.tried.has(*n as usize) && passed & (1 << (i % 64)) == 0)?;
            let instance = server.instance(at)?;
            if let Some(reason) = avoid(&instance) {
                if self.left_out != Some(LeftOutReason::OwnListener) {
                    self.left_out = Some(reason);
                }
                self.tried.set(number as usize);
                continue;
            }
            let standing = match health.standing(now, &instance) {
                // Somebody else may have been quicker.
                Standing::Trial if !health.claim_trial(now, &instance) => health.standing(now, &instance),
                standing => standing,
            };
            let usable = match standing {
                Standing::Up | Standing::Trial => true,
                Standing::ProbedDown if health.is_disputed(&instance) => self.are_probes_overruled(health),
                Standing::Down { .. } | Standing::ProbedDown => false,
            };
            if usable || self.last_resort {
                self.tried.set(number as usize);
                return Some((instance, standing));
            }
            self.passed_over = true;
            passed |= 1 << (at % 64);
        }
    }

    fn are_probes_overruled(&mut self, health: &Health) -> bool {
        *self.overruled.get_or_insert_with(|| health.are_probes_overruled(&self.located))
    }

    /// Draws one of the tier's servers that are not used up: by weight, of which what has just come back has a part.
    fn draw(&mut self, tier: &Tier, now: Instant, health: &Health) -> Option<usize> {
        let count = tier.servers.len();
        if count <= 1 {
            return (count == 1 && !self.done.has(0)).then_some(0);
        }
        let ramp = |at: usize| {
            let instance = tier.servers.get(at).and_then(|s| s.instance(0));
            instance.map_or(1.0, |i| health.ramp(now, &i))
        };
        let ramping = health.is_ramping(now);
        if self.mode == SrvSelection::Exact && count <= RENDEZVOUS {
            return if ramping { self.draw_by_score(tier, ramp) } else { self.draw_by_score(tier, |_| 1.0) };
        }
        let mut drawn = self.draw_once(tier)?;
        for _ in 0..REDRAWS {
            // Passed over with the chance that it lacks, all others keep their proportions.
            if !ramping || draw::unit(self.bits()) <= ramp(drawn) {
                break;
            }
            drawn = self.draw_once(tier)?;
        }
        Some(drawn)
    }

    fn draw_once(&mut self, tier: &Tier) -> Option<usize> {
        match self.mode {
            SrvSelection::Rfc2782 => self.draw_literally(tier),
            SrvSelection::Exact => self.draw_by_sum(tier),
        }
    }

    /// `ramp`: the part of its share that counts. A change of it moves requests to or from that server only.
    fn draw_by_score(&self, tier: &Tier, ramp: impl Fn(usize) -> f64) -> Option<usize> {
        let open = || (0..tier.servers.len()).filter(|at| !self.done.has(*at));
        // Only where all shares count in full is there the shorter formula, which gives the same order.
        let uniform = tier.shares.uniform && open().all(|at| ramp(at) >= 1.0);
        let mut best: Option<(f64, usize)> = None;
        for at in open() {
            let Some(server) = tier.servers.get(at) else { continue };
            let mut score = draw::score(self.seed, server.id, tier.shares.get(at), uniform);
            if !uniform {
                score /= ramp(at);
            }
            if best.is_none_or(|(s, _)| score < s) {
                best = Some((score, at));
            }
        }
        best.map(|(_, at)| at)
    }

    fn draw_by_sum(&mut self, tier: &Tier) -> Option<usize> {
        // Drawing again on a hit of what is used up is the exact draw among the rest.
        for _ in 0..REDRAWS {
            let x = draw::below(self.bits(), tier.shares.total());
            let at = tier.shares.at(x);
            if !self.done.has(at) {
                return Some(at);
            }
        }
        let total: u64 = self.members(tier).map(|at| tier.shares.get(at)).sum();
        let mut x = draw::below(self.bits(), total);
        self.members(tier).find(|at| {
            let share = tier.shares.get(*at);
            let hit = x < share;
            x = x.wrapping_sub(share);
            hit
        })
    }

    /// RFC 2782, "Weight", to the letter: zero weights first, running sums, a number from 0 to the
    /// sum inclusive, the first sum not below it. "Any order" among the zero ones is a random one.
    fn draw_literally(&mut self, tier: &Tier) -> Option<usize> {
        let weight = |at: usize| {
            let plain = tier.servers.get(at).map_or(0, |s| u64::from(s.weight));
            if tier.shares.joined { tier.shares.get(at) } else { plain }
        };
        let sum: u64 = self.members(tier).map(weight).sum();
        let x = draw::below(self.bits(), sum + 1);
        let zeros = self.members(tier).filter(|at| weight(*at) == 0).count();
        if x == 0 && zeros > 0 {
            let bits = self.bits();
            let nth = usize::try_from(draw::below(bits, zeros as u64)).unwrap_or(0);
            return self.members(tier).filter(|at| weight(*at) == 0).nth(nth);
        }
        let mut running = 0;
        self.members(tier).filter(|at| weight(*at) > 0).find(|at| {
            running += weight(*at);
            running >= x
        })
    }

    /// The servers that are not used up.
    fn members<'a>(&'a self, tier: &'a Tier) -> impl Iterator<Item = usize> + 'a {
        (0..tier.servers.len()).filter(|at| !self.done.has(*at))
    }

    /// The next random bits: they depend on the seed, the tier and the number of draws in it.
    fn bits(&mut self) -> u64 {
        self.draws = self.draws.wrapping_add(1);
        draw::mix(draw::mix(self.seed, self.tier as u64), u64::from(self.draws))
    }
}
