//! Peers and the core: who sent a message, whose a domain is, what each may do.
//!
//! Rules 1 to 3 and 11 of the product's documented behaviour. Everything here is built once per
//! configuration and only read afterwards; the ledger of limits is the one part that counts.

pub mod domains;
pub mod limits;
pub mod published;
pub mod scopes;
pub mod sources;

pub use domains::{Domains, Owner};
pub use limits::{InstanceLimits, Ledger, Refusal, Seat, Used};
pub use published::{Published, PublishedName};
pub use scopes::Scopes;
pub use sources::Sources;

use crate::flow::PeerId;

/// Who a message came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Party {
    /// The operator's own side.
    Core,
    /// A configured peer.
    Peer(PeerId),
    /// Anybody, where open federation is written out (rule 14).
    Federation,
    /// Nobody known: no service.
    Stranger,
}

impl Party {
    /// The peer, if it is one.
    pub const fn peer(self) -> Option<PeerId> {
        match self {
            Party::Peer(p) => Some(p),
            _ => None,
        }
    }

    /// The metric label of the side: `core`, `peering`, or `none` for strangers.
    pub const fn side(self) -> Side {
        match self {
            Party::Core => Side::Core,
            Party::Peer(_) | Party::Federation => Side::Peering,
            Party::Stranger => Side::None,
        }
    }
}

/// The side of the element a message belongs to; labels of metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Side {
    /// The operator's core.
    Core,
    /// The peers.
    Peering,
    /// Strangers.
    None,
}

impl Side {
    /// All, by number.
    pub const ALL: [Side; 3] = [Side::Core, Side::Peering, Side::None];

    /// Metric label.
    pub const fn label(self) -> &'static str {
        match self {
            Side::Core => "core",
            Side::Peering => "peering",
            Side::None => "none",
        }
    }
}
