//! The proxy core: RFC 3261 §16 with RFC 3263 §4.3, as decisions on plain data.
//!
//! Nothing here keeps tables or timers; the shard does. What is here says what a request or a
//! response means: is it valid (`validate`), where may it go (`route`), how does it look when it
//! leaves (`forward`, `response`), and what has been decided about it (`decision`).

pub mod context;
pub mod decision;
mod departed;
pub mod dialog;
mod forward;
mod numbers;
pub mod policy;
pub mod reply;
mod response;
mod route;
mod tls;
mod trust;
mod validate;

pub use context::{
    Attempt, Best, Cancel, Client, Context, Kind, Later, Leg, Live, Pass, Plan, Routing, Server, Stage,
};
pub use dialog::KnownToken;
pub use forward::{Forward, dialog_token, forward};
pub use policy::{Listener, PeerEntry, Policy};
pub use reply::ReplyPath;
pub use response::{Verdict, upstream, verdict};
pub use route::{Decision, decide, dialog_peer, is_own, port_of, realm_of};
pub use tls::{dialog_names, expectation, takes_back};
pub use validate::{Reject, validate};
