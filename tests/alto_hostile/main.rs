//! A hostile ALTO server: what it sends costs no more memory than is bounded, changes nothing but the order within a
//! priority, and shows. A binary of its own, since it counts all memory.

#![allow(clippy::unwrap_used, clippy::indexing_slicing)]

mod inputs;
mod memory;
mod wire;
