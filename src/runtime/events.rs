//! Events of the shards in the log: escaped, and never a flood.

use std::time::{Duration, Instant};

use crate::shard::io::Event;

use super::counters::Counters;

/// Lines of one kind per second and worker; more are counted only.
const LINES_PER_SECOND: u32 = 10;

/// Counts the lines of one kind in the current second.
#[derive(Debug, Default)]
struct Allowance {
    since: Option<Instant>,
    used: u32,
}

impl Allowance {
    fn take(&mut self, now: Instant) -> bool {
        if self.since.is_none_or(|t| now.saturating_duration_since(t) >= Duration::from_secs(1)) {
            *self = Self { since: Some(now), used: 0 };
        }
        self.used = self.used.saturating_add(1);
        self.used <= LINES_PER_SECOND
    }
}

/// Writes events to the log, a bounded number per second of each kind.
#[derive(Debug, Default)]
pub(super) struct EventLog {
    rejected: Allowance,
    failed_over: Allowance,
    changed: Allowance,
}

impl EventLog {
    pub(super) fn tell(&mut self, event: &Event, now: Instant, counters: &Counters) {
        let told = match event {
            Event::Health(..) => true,
            Event::InstanceChanged { peer, instance, up, reason } => {
                let allowed = self.changed.take(now);
                if allowed {
                    tracing::warn!(peer = peer.map(|p| p.0), %instance, up, reason, "an instance changed its standing");
                }
                allowed
            }
            Event::FailedOver { call_id, peer, instance, reason } => {
                let allowed = self.failed_over.take(now);
                if allowed {
                    tracing::info!(
                        call_id = %call_id.escape_ascii(),
                        peer = peer.map(|p| p.0),
                        %instance,
                        reason,
                        "an attempt failed; the next candidate is tried"
                    );
                }
                allowed
            }
            Event::Rejected { call_id, remote, transport, listener, status, reason } => {
                let allowed = self.rejected.take(now);
                if allowed {
                    tracing::info!(
                        call_id = %call_id.escape_ascii(),
                        %remote,
                        %transport,
                        listener = listener.0,
                        status,
                        reason,
                        "a request was refused"
                    );
                }
                allowed
            }
        };
        if !told {
            Counters::add(&counters.log_suppressed, 1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_of_events_is_counted_and_not_written() {
        let mut allowance = Allowance::default();
        let now = Instant::now();
        let told = (0..1000).filter(|_| allowance.take(now)).count();
        assert_eq!(told, 10);
        assert!(allowance.take(now + Duration::from_secs(1)), "a new second, a new allowance");
    }
}
