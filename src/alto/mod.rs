//! The ALTO client without its sockets (RFC 7285): what is asked, what answers mean, and what to do about errors.
//!
//! | file | holds | RFC |
//! |---|---|---|
//! | `media` | media types | 7285 §8.4, §11 |
//! | `json` | bounded JSON, names and numbers | 7285 §8.4, §10, §11.2.3.6 |
//! | `address` | typed addresses | 7285 §10.4 |
//! | `cost_type` | modes, metrics, which way is better | 7285 §6.1, 9439 |
//! | `directory` | information resource directories, and which resource is chosen | 7285 §9 |
//! | `maps` | network maps, cost maps, and pairs of them | 7285 §11.2, §10.3 |
//! | `ecs` | the endpoint cost service | 7285 §11.5 |
//! | `local` | costs in a file | |
//! | `error` | what goes wrong, in words | 7285 §8.5 |
//! | `life` | how long an answer serves | 9111, 5861 |
//! | `redirect` | where redirects and directories may lead | 7285 §8.3.3 |
//! | `backoff` | when to try again | |
//! | `digest` | who we are, by HTTP Digest | 7616 |
//! | `client` | the whole as a state machine: requests out, answers in, snapshots of costs out | |

pub mod address;
pub mod backoff;
pub mod client;
pub mod cost_type;
pub mod digest;
pub mod directory;
pub mod ecs;
pub mod error;
pub mod json;
pub mod life;
pub mod local;
pub mod maps;
pub mod media;
pub mod redirect;
mod settings;
#[cfg(test)]
mod tests;

pub use client::{Answer, Client, Headers, Request, Target};
pub use cost_type::CostType;
pub use error::Fault;
pub use settings::{Place, Service, Settings};
