//! One request's way through a [`Located`]: tier by tier, health first, then cost, then weight (RFC 3263 §4.3).

use std::sync::Arc;
use std::time::Instant;

use super::candidate::{Instance, LeftOutReason, Located};
use super::cost::Costs;
use super::draw::{self, Bits};
use super::health::{Health, Standing};
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
    /// Drawn by weight.
    Drawn,
    /// A further address of the server before.
    NextAddress,
    /// Half-open: this request tries it.
    Trial,
    /// Known to be down, but everything else is used up.
    LastResort,
}

impl PickReason {
    /// A fixed word for records.
    pub const fn label(self) -> &'static str {
        match self {
            PickReason::OnlyServer => "only_server",
            PickReason::Drawn => "drawn",
            PickReason::NextAddress => "next_address",
            PickReason::Trial => "trial",
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
        costs: Option<&Costs>,
        avoid: &dyn Fn(&Instance) -> Option<LeftOutReason>,
    ) -> Option<Candidate> {
        let located = Arc::clone(&self.located);
        loop {
            let Some(tier) = located.tiers.get(self.tier) else {
                if self.last_resort || !self.passed_over {
                    return None;
                }
                self.last_resort = true;
                self.tier = 0;
                self.draws = 0;
                continue;
            };
            let _ = (
                tier,
                now,
                &health,
                costs,
                avoid,
                RENDEZVOUS,
                REDRAWS,
                self.mode,
                draw::mix(self.seed, 0),
            );
            let _ = (&self.current, self.done.has(0), self.tried.has(0));
            self.tier += 1;
        }
    }
}
