//! The admin interface: metrics, health, JSON and a few actions over HTTP, and the small client that the command line uses.
//!
//! | file | does |
//! |---|---|
//! | `http` | routes, and who may ask |
//! | `auth` | who may: tokens, roles, and what was done |
//! | `metrics` | the counters as Prometheus text |
//! | `text` | the exposition format |
//! | `api` | status, peers, DNS as JSON |
//! | `alto` | the ALTO client's state, costs and metrics |
//! | `resolve` | how a URI would be located, without sending anything |
//! | `whatif` | where calls would go if some instances were down |
//! | `explain` | the decision record of a call as JSON |
//! | `words` | the same in sentences |
//! | `search` | which of the recent calls |
//! | `page` | what a browser without scripts sees |
//! | `assets` | the dashboard's files, within the binary |
//! | `overview` | what the dashboard shows first, as JSON |
//! | `journal` | what happened lately |
//! | `window` | how calls fared in the last minutes |
//! | `feed` | live updates as server-sent events |
//! | `capture` | messages as pcapng, for operators |
//! | `client` | asks a running node |

mod alto;
mod api;
mod assets;
pub mod auth;
mod capture;
#[cfg(test)]
mod capture_tests;
pub mod client;
#[cfg(test)]
mod costs_tests;
#[cfg(test)]
mod dashboard_tests;
mod explain;
mod feed;
mod http;
mod journal;
mod metrics;
#[cfg(test)]
mod openapi_tests;
mod overview;
mod page;
mod process;
pub mod resolve;
mod search;
#[cfg(test)]
mod tests;
mod text;
pub mod whatif;
mod window;
#[cfg(test)]
mod window_tests;
mod words;

pub use http::{ServeError, bind, serve};
pub use metrics::metrics;
