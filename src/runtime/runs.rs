//! Runs of datagrams that went to the kernel as one, for when an ICMP error comes back.
//!
//! Where a run is divided only at its destination (the same host, a virtual link), the kernel reports one error for
//! the whole run, and quotes the beginning of its first datagram. All of them have met the same closed
//! port, so all are told (RFC 3261 §18.4). Where a run is divided on the way out, each datagram gets an error of its
//! own; those that were told before have moved on by then.

use std::collections::VecDeque;
use std::net::SocketAddr;

use bytes::Bytes;
use smallvec::SmallVec;

use crate::shard::io::SendToken;

use super::quoted::quotes_branch;

/// Runs remembered, of each worker. An error is back within a round trip; what is forgotten by then is retransmitted, and
/// gets an error of its own.
const KEPT: usize = 128;

/// Those who sent a run, all but the first.
pub(super) type Others = SmallVec<[SendToken; 8]>;

#[derive(Debug)]
struct Run {
    to: SocketAddr,
    first: Bytes,
    others: Others,
}

/// The last runs.
#[derive(Debug, Default)]
pub(super) struct Runs(VecDeque<Run>);

impl Runs {
    /// A run has been sent: its first datagram, and who sent the others.
    pub(super) fn remember(&mut self, to: SocketAddr, first: Bytes, others: Others) {
        if others.is_empty() {
            return;
        }
        if self.0.len() >= KEPT {
            self.0.pop_front();
        }
        self.0.push_back(Run { to, first, others });
    }

    /// An error for a datagram that began like this: who else was in its run. Once only, and only if so much is quoted
    /// that it must have been seen: errors are easily forged.
    pub(super) fn take(&mut self, to: SocketAddr, quoted: &[u8]) -> Option<Others> {
        if self.0.is_empty() || !quotes_branch(quoted) {
            return None;
        }
        // A quotation may end early, or go on with the second datagram of the run.
        let begins = |run: &Run| run.first.starts_with(quoted) || quoted.starts_with(&run.first);
        let at = self.0.iter().position(|run| run.to == to && begins(run))?;
        self.0.remove(at).map(|run| run.others)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn to(port: u16) -> SocketAddr {
        SocketAddr::from(([192, 0, 2, 1], port))
    }

    fn others(tokens: &[u64]) -> Others {
        tokens.iter().map(|t| SendToken(*t)).collect()
    }

    fn datagram(name: &str) -> Bytes {
        Bytes::from(format!("INVITE sip:{name} SIP/2.0\r\nVia: SIP/2.0/UDP a;branch=z9hG4bK{name}\r\n\r\n"))
    }

    #[test]
    fn an_error_finds_the_run_by_where_it_went_and_how_it_began_and_only_once() {
        let mut runs = Runs::default();
        let (a, b, c) = (datagram("a"), datagram("b"), datagram("c"));
        runs.remember(to(1), a.clone(), others(&[2, 3]));
        runs.remember(to(2), a.clone(), others(&[4]));
        runs.remember(to(1), b.clone(), others(&[5]));
        assert_eq!(runs.take(to(3), &a), None);
        assert_eq!(runs.take(to(1), &c), None);
        assert_eq!(runs.take(to(2), &[&a[..], &c[..]].concat()), Some(others(&[4])), "quoted beyond its end");
        assert_eq!(runs.take(to(1), &b), Some(others(&[5])));
        assert_eq!(runs.take(to(1), &a[..a.len() - 2]), Some(others(&[2, 3])), "quoted in part");
        assert_eq!(runs.take(to(1), &a), None);
    }

    #[test]
    fn an_error_that_quotes_what_anybody_can_guess_tells_nobody() {
        let mut runs = Runs::default();
        let a = datagram("a");
        runs.remember(to(1), a.clone(), others(&[2]));
        for end in 0..a.len() - 4 {
            assert_eq!(runs.take(to(1), &a[..end]), None, "{end}");
        }
        assert_eq!(runs.take(to(1), &a), Some(others(&[2])));
    }

    #[test]
    fn only_so_many_are_remembered_the_newest_and_none_that_would_tell_nobody() {
        let mut runs = Runs::default();
        runs.remember(to(9), datagram("x"), Others::new());
        assert_eq!(runs.take(to(9), &datagram("x")), None);
        for n in 0..=KEPT {
            runs.remember(to(1), datagram(&format!("{n:05}")), others(&[n as u64]));
        }
        assert_eq!(runs.0.len(), KEPT);
        assert_eq!(runs.take(to(1), &datagram("00000")), None);
        assert_eq!(runs.take(to(1), &datagram("00001")), Some(others(&[1])));
    }
}
