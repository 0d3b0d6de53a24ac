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
//! | `page` | what a browser sees |
//! | `client` | asks a running node |

mod alto;
mod api;
pub mod auth;
pub mod client;
#[cfg(test)]
mod costs_tests;
mod explain;
mod http;
mod metrics;
mod page;
mod process;
pub mod resolve;
mod search;
#[cfg(test)]
mod tests;
mod text;
pub mod whatif;
mod words;

pub use http::{ServeError, bind, serve};
pub use metrics::metrics;
