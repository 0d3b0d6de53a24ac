//! A SIP peering border element: a stateful SIP proxy at the edge between a provider's core and its peers.

pub mod admin;
pub mod alto;
pub mod cli;
pub mod config;
pub mod demo;
pub mod flow;
pub mod location;
pub mod peering;
pub mod proxy;
pub mod runtime;
pub mod shard;
pub mod transaction;
pub mod wire;
