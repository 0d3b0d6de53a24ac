//! Locating SIP servers: RFC 3263, RFC 2782, and the ranking of what was found.
//!
//! Pure: no clock, no socket, no lock. Time and seeds are passed in, the DNS is asked by value.
//!
//! | file | does | authority |
//! |---|---|---|
//! | `target` | URI parts to a [`LocateKey`] | RFC 3263 §4 |
//! | `enabled` | what we can send by | RFC 3263 §4.1 |
//! | `question` | DNS questions and answers as plain data | RFC 1035, 2782, 3403 |
//! | `naptr` | which NAPTR records count, in which order | RFC 3263 §4.1, RFC 3403 §4 |
//! | `resolve` | the step machine: questions out, answers in, a [`Located`] at the end | RFC 3263 §4.1, §4.2, RFC 7984 |
//! | `assemble` | answers to tiers of servers | RFC 2782, RFC 3263 §4.2 |
//! | `candidate` | the immutable result | |
//! | `draw` | weights to an order | RFC 2782 |
//! | `rank` | one request's way through a result | RFC 3263 §4.3 |
//! | `forecast` | where calls would go, for `sbe resolve` | |
//! | `zone` | the check of a domain's records | RFC 3263, 2782, 3403 |
//! | `health` | what we remember of instances | |
//! | `standing` | one instance: up, down, half-open, on its way back | rule 9 |
//! | `snapshot` | the costs known at one moment | RFC 7285 §6 |
//! | `classes` | costs to classes of equals | RFC 7285 §6.1.2, RFC 9439 |
//! | `hysteresis` | when a changed order is taken over | |
//! | `ranking` | a result and costs to a result in their order | RFC 2782 "Priority" |

mod assemble;
mod candidate;
mod classes;
mod draw;
mod enabled;
mod forecast;
mod health;
mod hysteresis;
mod naptr;
mod question;
mod rank;
mod ranking;
mod resolve;
mod snapshot;
mod standing;
mod target;
pub mod zone;

pub use candidate::{Instance, LeftOut, LeftOutReason, Located, Outcome, Server, Tier};
pub use classes::RankPolicy;
pub use enabled::Enabled;
pub use forecast::{Forecast, Prospect, SAMPLES, Usable, forecast};
pub use health::{Health, MAX_INSTANCES};
pub use hysteresis::Memory;
pub use question::{
    Answer, AnswerMeta, DnsStep, NaptrRecord, Question, RecordKind, Records, RrSet, SrvRecord, StepOutcome,
};
pub use rank::{Candidate, PickReason, Selection};
pub use ranking::{Ranked, Ranking, Use, rank};
pub use resolve::{
    MAX_ADDRESSES, MAX_CANDIDATES, MAX_LEFT_OUT, MAX_NAPTR, MAX_SRV, MAX_TARGETS, Resolution, UNANSWERED_HOLD,
};
pub use snapshot::{Cost, CostMode, CostOrigin, CostSnapshot};
pub use standing::{Change, HealthPolicy, Observation, Standing};
pub use target::{LocateKey, TargetError, TargetUri, TransportParam, target_of};
