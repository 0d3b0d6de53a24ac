//! What a service manager is told (sd_notify): ready, reloading, stopping, and that every shard still answers.

use std::sync::Arc;
use std::time::Duration;

use sd_notify::NotifyState;

use crate::runtime::node::Node;

/// A shard that cannot be locked for this long does not answer.
const STUCK: Duration = Duration::from_secs(2);

/// Without a service manager nobody listens, which is no error; nor is a manager that is gone.
fn tell(state: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(state) {
        tracing::debug!(%error, "the service manager cannot be told");
    }
}

/// Requests are accepted.
pub fn ready() {
    tell(&[NotifyState::Ready]);
}

/// This process is the one to watch: another has taken over, or has not after all.
pub fn main_is(pid: u32) {
    tell(&[NotifyState::MainPid(pid)]);
}

/// The configuration is being read again; [`ready`] ends it.
pub fn reloading() {
    match NotifyState::monotonic_usec_now() {
        Ok(now) => tell(&[NotifyState::Reloading, now]),
        Err(error) => tracing::debug!(%error, "no monotonic time for the service manager"),
    }
}

/// Drains, then ends.
pub fn stopping() {
    tell(&[NotifyState::Stopping]);
}

/// Tells the watchdog, where there is one, twice in its interval that all shards answer.
pub async fn watch(node: Arc<Node>) {
    let Some(interval) = sd_notify::watchdog_enabled() else { return };
    let mut beat = tokio::time::interval(interval / 2);
    loop {
        beat.tick().await;
        let node = Arc::clone(&node);
        let look = tokio::task::spawn_blocking(move || node.open());
        if matches!(tokio::time::timeout(STUCK, look).await, Ok(Ok(_))) {
            tell(&[NotifyState::Watchdog]);
        }
    }
}
