#![allow(clippy::unwrap_used)]

mod client;
mod server;
