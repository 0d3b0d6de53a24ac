//! The admin interface: metrics, health, JSON and a few actions over HTTP, and the small client that the command line uses.
//!
//! | file | does |
//! |---|---|
//! | `http` | routes, and who may ask |
//! | `metrics` | the counters as Prometheus text |
//! | `text` | the exposition format |
//! | `api` | status, peers, DNS as JSON |
//! | `alto` | the ALTO client's state, costs and metrics |
//! | `resolve` | how a URI would be located, without sending anything |
//! | `explain` | the decision record of a call as JSON |
//! | `page` | what a browser sees |
//! | `client` | asks a running node |

mod alto;
mod api;
pub mod client;
mod explain;
mod http;
mod metrics;
mod page;
mod process;
pub mod resolve;
#[cfg(test)]
mod tests;
mod text;

pub use http::{ServeError, bind, serve};
pub use metrics::metrics;
