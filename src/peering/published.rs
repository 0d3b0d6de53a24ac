//! Addresses that peers publish in the DNS and send from (`sources = ["dns:…"]`), as they were found last.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use crate::flow::{Host, PeerId};

/// What the names in `sources` have led to, by peer and name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Published {
    names: BTreeMap<(PeerId, Host), PublishedName>,
}

/// What one name has led to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PublishedName {
    /// The addresses of all its servers, sorted, without duplicates.
    pub addrs: Arc<[IpAddr]>,
    /// The DNS does not answer, or not for all of it: some of this is what was known before.
    pub stale: bool,
    /// Addresses beyond what is kept for one name.
    pub left_out: usize,
}

impl Published {
    /// Takes in what a name of a peer has led to.
    pub fn set(&mut self, peer: PeerId, name: Host, found: PublishedName) {
        self.names.insert((peer, name), found);
    }

    /// What a name of a peer has led to; `None`: nothing is known of it yet.
    pub fn get(&self, peer: PeerId, name: &Host) -> Option<&PublishedName> {
        self.names.get(&(peer, name.clone()))
    }

    /// All, by peer and name.
    pub fn iter(&self) -> impl Iterator<Item = (PeerId, &Host, &PublishedName)> {
        self.names.iter().map(|((peer, name), found)| (*peer, name, found))
    }
}
