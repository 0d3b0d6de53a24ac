//! The element in a world made of nothing but numbers: first straight lines, one behaviour each, then
//! seeded worlds with faults.
#![allow(clippy::unwrap_used)]

mod basics;
mod failover;
mod instances;
mod leave;
mod msg;
mod numbers;
mod overload;
mod removed;
mod returns;
mod rig;
mod secure;
mod seeds;
mod strangers;
mod trust;
mod world;
mod zone;
