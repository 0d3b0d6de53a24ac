//! `[hep]`: a copy of every SIP message to a capture server.

use std::net::SocketAddr;

use super::check::Spots;
use super::error::{Fault, Report};
use super::names;
use super::raw::{self, Section};

/// `[hep]`
#[derive(Clone, PartialEq, Eq)]
pub struct Hep {
    /// Where to, by UDP.
    pub server: SocketAddr,
    /// What this node is called there: the capture agent's number.
    pub id: u32,
    /// Sent along in the clear.
    pub password: Option<String>,
    /// Messages that may wait to be sent; beyond, they are dropped and counted.
    pub queue: usize,
}

impl std::fmt::Debug for Hep {
    /// Without the password.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { server, id, queue, .. } = self;
        f.debug_struct("Hep")
            .field("server", server)
            .field("id", id)
            .field("queue", queue)
            .finish_non_exhaustive()
    }
}

/// Default of `id`.
pub const ID: u32 = 2001;
/// Default of `queue`.
pub const QUEUE: usize = 10_000;
/// Longest password, octets.
const MAX_PASSWORD: usize = 255;

/// `None`: no `server`, no copies.
pub(super) fn hep(report: &mut Report<'_>, root: &Section<'_>, spots: &mut Spots) -> Option<Hep> {
    let section = root.table(report, "hep", &raw::HEP);
    spots.hep = section.place("server");
    let id = section.number(report, "id", 0..=u64::from(u32::MAX)).unwrap_or(ID);
    let queue = section.number(report, "queue", 1..=1_000_000).unwrap_or(QUEUE);
    let password = section.parsed(report, "password", |text| {
        if (1..=MAX_PASSWORD).contains(&text.len()) {
            Ok(text.to_owned())
        } else {
            Err(Fault::new("password is empty or too long", format!("write 1 to {MAX_PASSWORD} octets")))
        }
    });
    let server = section.parsed(report, "server", |text| {
        let addr = names::socket(text)?;
        if addr.port() == 0 || addr.ip().is_unspecified() {
            return Err(Fault::new(
                format!("nothing can be sent to {addr}"),
                "write the server's address and port",
            ));
        }
        Ok(addr)
    })?;
    Some(Hep { server: server.value, id, password: password.map(|p| p.value), queue })
}
