//! Cost types (RFC 7285 §6.1, §10.7).

use std::fmt;

use serde::Deserialize;

use crate::location::CostMode;

/// A mode and a metric.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct CostType {
    /// How costs compare.
    pub mode: CostMode,
    /// What they measure, with an operator if there is one (`delay-rt:p95`, RFC 9439).
    pub metric: String,
}

/// As messages carry it; further members are ignored.
#[derive(Debug, Deserialize)]
pub(super) struct Raw {
    #[serde(rename = "cost-mode")]
    mode: String,
    #[serde(rename = "cost-metric")]
    metric: String,
}

impl CostType {
    /// `None`: a mode that is not known here (RFC 9274 registers others), or no metric (RFC 7285 §10.6).
    pub(super) fn of(raw: Raw) -> Option<Self> {
        let ok = |b: u8| b.is_ascii_alphanumeric() || b"-:._".contains(&b);
        let sound = (1..=32).contains(&raw.metric.len()) && raw.metric.bytes().all(ok);
        sound.then_some(Self { mode: mode(&raw.mode)?, metric: raw.metric })
    }
}

impl Raw {
    pub(super) fn words(&self) -> String {
        let short = |text: &str| text.chars().take(64).collect::<String>();
        format!("{} {}", short(&self.mode), short(&self.metric))
    }
}

impl fmt::Display for CostType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", mode_name(self.mode), self.metric)
    }
}

/// A mode by its name in messages.
pub fn mode(name: &str) -> Option<CostMode> {
    match name {
        "numerical" => Some(CostMode::Numerical),
        "ordinal" => Some(CostMode::Ordinal),
        _ => None,
    }
}

/// The name of a mode in messages.
pub const fn mode_name(mode: CostMode) -> &'static str {
    match mode {
        CostMode::Numerical => "numerical",
        CostMode::Ordinal => "ordinal",
    }
}

/// More of it is better (RFC 9439 §5): throughput and bandwidth. Everything else, unknown metrics too, is a cost in
/// the word's sense. Ranks are costs whatever they rank (RFC 7285 §6.1.2.2).
pub fn higher_is_better(cost_type: &CostType) -> bool {
    let name = cost_type.metric.split(':').next().unwrap_or_default();
    cost_type.mode == CostMode::Numerical && matches!(name, "tput" | "bw-residual" | "bw-available")
}
