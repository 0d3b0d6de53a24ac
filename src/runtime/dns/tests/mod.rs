#![allow(clippy::unwrap_used)]

mod client;
mod costs;
mod outage;
mod resolver;
mod script;
mod server;
mod survey;
mod whole;
mod zone;
