//! Costs to classes: which targets of a group are as good as each other.
//!
//! Costs are only ever compared, never added or inverted, so that the same text serves metrics where the higher
//! value is the better one (RFC 9439), and ranks (RFC 7285 §6.1.2).

use std::cmp::Ordering;
use std::time::Duration;

use crate::config::{self, AltoRule, AltoScope, Sticky};

use super::snapshot::{CostMode, CostSnapshot};

/// How costs become an order: `[alto]`.
#[derive(Clone, Debug, PartialEq)]
pub struct RankPolicy {
    /// `rule`
    pub rule: AltoRule,
    /// `scope`
    pub scope: AltoScope,
    /// `band`: relative width of a class.
    pub band: f64,
    /// `band_abs`: what is added to it, in the metric's own unit.
    pub band_abs: f64,
    /// `min_coverage`: part of a group's targets that must have a cost.
    pub min_coverage: f64,
    /// `max_share`: most of a group's load that its best class gets; 1.0: all of it while it is up.
    pub max_share: f64,
    /// `persist`: fresh answers in a row that must agree before an order changes.
    pub persist: u32,
    /// `hold_down`: least time between two changes of an order.
    pub hold_down: Duration,
    /// `sticky = "ttl"`: an order stays while the SRV set that it was made for is cached.
    pub pinned: bool,
}

impl RankPolicy {
    /// From a whole configuration; `None` without `[alto]`.
    pub fn of(config: &config::Config) -> Option<Self> {
        config.alto.as_ref().map(|alto| Self::new(alto, config.dns.sticky))
    }

    /// From `[alto]` and `dns.sticky`.
    pub fn new(alto: &config::Alto, sticky: Sticky) -> Self {
        Self {
            rule: alto.rule,
            scope: alto.scope,
            band: alto.band,
            band_abs: alto.band_abs,
            min_coverage: alto.min_coverage,
            max_share: alto.max_share,
            persist: alto.persist.max(1),
            hold_down: alto.hold_down,
            pinned: sticky == Sticky::Ttl,
        }
    }
}

/// How two costs compare, and how far they may be apart and still be equal.
#[derive(Clone, Copy, Debug)]
pub(super) struct Scale {
    higher_is_better: bool,
    band: f64,
    band_abs: f64,
}

impl Scale {
    /// By a rule: ranks have no band, and `strict` takes none.
    pub fn new(policy: &RankPolicy, rule: AltoRule, snapshot: &CostSnapshot) -> Self {
        let exact = snapshot.mode == CostMode::Ordinal || rule == AltoRule::Strict;
        let (band, band_abs) = if exact { (0.0, 0.0) } else { (policy.band, policy.band_abs) };
        Self { higher_is_better: snapshot.higher_is_better, band, band_abs }
    }

    /// The same without a band.
    pub fn exact(self) -> Self {
        Self { band: 0.0, band_abs: 0.0, ..self }
    }

    /// The better cost is the lesser one; no cost comes last.
    pub fn compare(&self, a: Option<f64>, b: Option<f64>) -> Ordering {
        match (a, b) {
            (Some(a), Some(b)) if self.higher_is_better => b.total_cmp(&a),
            (Some(a), Some(b)) => a.total_cmp(&b),
            (Some(_), None) => Ordering::Less,
            (None, Some(_)) => Ordering::Greater,
            (None, None) => Ordering::Equal,
        }
    }

    /// Whether `cost` counts as equal to `best`, which is not worse.
    fn within(&self, best: f64, cost: f64) -> bool {
        let (low, high) = if self.higher_is_better { (cost, best) } else { (best, cost) };
        high <= low * (1.0 + self.band) + self.band_abs
    }

    /// The class of each: 0 is the best; from the best of the rest on, what lies within the band of it forms the
    /// next. Those without a cost form the last.
    pub fn classes(&self, costs: &[Option<f64>]) -> Vec<u16> {
        let mut order: Vec<usize> = (0..costs.len()).collect();
        let cost = |at: usize| costs.get(at).copied().flatten();
        order.sort_by(|a, b| self.compare(cost(*a), cost(*b)));
        let mut classes = vec![0; costs.len()];
        let (mut class, mut best) = (0u16, None);
        for (nth, at) in order.into_iter().enumerate() {
            let own = cost(at);
            let joins = match (best, own) {
                (None, None) => true,
                (Some(best), Some(own)) => self.within(best, own),
                _ => false,
            };
            if nth == 0 {
                best = own;
            } else if !joins {
                class = class.saturating_add(1);
                best = own;
            }
            if let Some(place) = classes.get_mut(at) {
                *place = class;
            }
        }
        classes
    }

    /// The factor that `rule = "weights"` scales the weight of a target by: `((best + e) / (cost + e))`, mirrored
    /// where higher is better, with `e` a hundredth of the median. What has no cost counts as the worst.
    pub fn factors(&self, costs: &[Option<f64>]) -> Vec<f64> {
        let mut known: Vec<f64> = costs.iter().flatten().copied().collect();
        known.sort_by(|a, b| self.compare(Some(*a), Some(*b)));
        let (Some(best), Some(worst), Some(median)) =
            (known.first(), known.last(), known.get(known.len() / 2))
        else {
            return vec![1.0; costs.len()];
        };
        // All zero: nothing to tell them apart.
        let e = if *median > 0.0 { median * 0.01 } else { 0.01 };
        let factor = |cost: f64| {
            let (low, high) = if self.higher_is_better { (cost, *best) } else { (*best, cost) };
            ((low + e) / (high + e)).clamp(0.0, 1.0)
        };
        costs.iter().map(|c| factor(c.unwrap_or(*worst))).collect()
    }
}

/// Numbers classes from 0 without gaps; returns how many there are.
pub(super) fn close_gaps(classes: &mut [u16]) -> u16 {
    let mut used: Vec<u16> = classes.to_vec();
    used.sort_unstable();
    used.dedup();
    for class in classes {
        *class =
            used.iter().position(|u| u == class).and_then(|at| u16::try_from(at).ok()).unwrap_or(u16::MAX);
    }
    u16::try_from(used.len()).unwrap_or(u16::MAX)
}
