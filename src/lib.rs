//! A SIP peering border element: a stateful SIP proxy at the edge between a provider's core and its peers.

pub mod config;
pub mod flow;
pub mod location;
pub mod runtime;
