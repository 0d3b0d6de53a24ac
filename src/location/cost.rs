//! ALTO costs as plain data (RFC 7285): classes of addresses, read by the ranking.

use std::collections::HashMap;
use std::net::IpAddr;

/// The cost class of each known address: 0 is the cheapest. Costs order servers within a tier; they
/// never add or remove any, and never stand above priority or health.
#[derive(Clone, Debug, Default)]
pub struct Costs {
    classes: HashMap<IpAddr, u16, ahash::RandomState>,
}

impl Costs {
    /// Nothing known.
    pub fn new() -> Self {
        Self::default()
    }

    /// Puts an address into a class.
    pub fn set_class(&mut self, addr: IpAddr, class: u16) {
        self.classes.insert(addr.to_canonical(), class);
    }

    /// The class of an address, if its cost is known.
    pub fn class_of(&self, addr: &IpAddr) -> Option<u16> {
        self.classes.get(addr).copied()
    }

    /// True if no cost is known.
    pub fn is_empty(&self) -> bool {
        self.classes.is_empty()
    }
}
