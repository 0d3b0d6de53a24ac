//! Tests of the client without its sockets.
#![allow(clippy::unwrap_used)]

mod client;
mod digest;
mod directory;
mod failures;
mod maps;
mod stage;
mod values;
