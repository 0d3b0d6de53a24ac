//! Events of the shards in the log: escaped, and never a flood.

use std::sync::Arc;
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;

use crate::flow::PeerId;
use crate::shard::Event;

use super::counters::Counters;

/// Lines of one kind per second and worker; more are counted only.
const LINES_PER_SECOND: u32 = 10;
/// Octets of a Call-ID written.
const MAX_CALL_ID: usize = 128;

/// Names of the peers, by number, as the log shows them.
pub(super) type PeerNames = ArcSwap<Vec<Arc<str>>>;

/// Counts the lines of one kind in the current second.
#[derive(Debug, Default)]
struct Allowance {
    since: Option<Instant>,
    used: u32,
}

impl Allowance {
    /// Whether one more line may be written; and how many the last second with lines left out.
    fn take(&mut self, now: Instant) -> (bool, u32) {
        let mut left_out = 0;
        if self.since.is_none_or(|t| now.saturating_duration_since(t) >= Duration::from_secs(1)) {
            left_out = self.used.saturating_sub(LINES_PER_SECOND);
            *self = Self { since: Some(now), used: 0 };
        }
        self.used = self.used.saturating_add(1);
        (self.used <= LINES_PER_SECOND, left_out)
    }
}

/// Writes events to the log, a bounded number per second of each kind.
#[derive(Debug, Default)]
pub(super) struct EventLog {
    rejected: Allowance,
    failed_over: Allowance,
    changed: Allowance,
    overload: Allowance,
}

impl EventLog {
    pub(super) fn tell(&mut self, event: &Event, now: Instant, counters: &Counters, peers: &PeerNames) {
        let (allowance, kind) = match event {
            Event::Health(..) | Event::Call(..) => return,
            Event::InstanceChanged { .. } => (&mut self.changed, "instance changed"),
            Event::FailedOver { .. } => (&mut self.failed_over, "failed over"),
            Event::Rejected { .. } => (&mut self.rejected, "refused"),
            Event::Overload { .. } => (&mut self.overload, "overload"),
        };
        let (allowed, left_out) = allowance.take(now);
        if left_out > 0 {
            tracing::warn!(kind, suppressed = left_out, "log lines left out");
        }
        if allowed {
            write(event, peers);
        } else {
            Counters::add(&counters.log_suppressed, 1);
        }
    }
}

fn write(event: &Event, peers: &PeerNames) {
    match event {
        Event::Health(..) | Event::Call(..) => {}
        Event::InstanceChanged { peer, instance, up, reason } => {
            let peer = name(peers, *peer);
            if *up {
                tracing::info!(%peer, %instance, reason, "an instance is up");
            } else {
                tracing::warn!(%peer, %instance, reason, "an instance is down");
            }
        }
        Event::Overload { begins: true, delay } => {
            tracing::warn!(delay = ?delay, "overload: new calls are being refused");
        }
        Event::Overload { begins: false, .. } => tracing::info!("the overload is over"),
        Event::FailedOver { call_id, peer, instance, reason } => tracing::info!(
            call_id = %shown(call_id),
            peer = %name(peers, *peer),
            %instance,
            reason,
            "an attempt failed, the next candidate is tried"
        ),
        Event::Rejected { call_id, remote, transport, listener, status, reason } => tracing::info!(
            call_id = %shown(call_id),
            %remote,
            %transport,
            listener = listener.0,
            status,
            reason,
            "a request was refused"
        ),
    }
}

/// The name of a peer; `core` for what is none.
pub(super) fn name(peers: &PeerNames, peer: Option<PeerId>) -> Arc<str> {
    match peer {
        None => Arc::from("core"),
        Some(id) => {
            peers.load().get(usize::from(id.0)).cloned().unwrap_or_else(|| Arc::from(format!("#{}", id.0)))
        }
    }
}

/// The start of a Call-ID, with everything but printable ASCII escaped.
fn shown(call_id: &[u8]) -> String {
    match call_id.get(..MAX_CALL_ID) {
        Some(start) if start.len() < call_id.len() => format!("{}...", start.escape_ascii()),
        _ => call_id.escape_ascii().to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_of_events_is_counted_and_not_written() {
        let mut allowance = Allowance::default();
        let now = Instant::now();
        let told = (0..1000).filter(|_| allowance.take(now).0).count();
        assert_eq!(told, 10);
        let later = now + Duration::from_secs(1);
        assert_eq!(
            allowance.take(later),
            (true, 990),
            "a new second, a new allowance, and what was left out"
        );
        assert_eq!(allowance.take(later), (true, 0));
    }

    #[test]
    fn a_call_id_is_shown_short_and_without_control_octets() {
        assert_eq!(shown(b"a\x1b[2J\nb@c"), "a\\x1b[2J\\nb@c");
        assert_eq!(shown(&[b'c'; 60_000]).len(), MAX_CALL_ID + 3);
    }

    #[test]
    fn a_peer_is_called_by_its_name() {
        let peers = PeerNames::from_pointee(vec![Arc::from("sp1"), Arc::from("sp2")]);
        assert_eq!(&*name(&peers, Some(PeerId(1))), "sp2");
        assert_eq!(&*name(&peers, Some(PeerId(9))), "#9");
        assert_eq!(&*name(&peers, None), "core");
    }
}
