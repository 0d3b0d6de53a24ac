//! What the sockets need of the element behind them, and of whoever locates servers.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::flow::Origin;
use crate::location::{LocateKey, Located};
use crate::shard::io::{Input, Output, ReadAhead};
use crate::wire::Limits;

/// The element as the runtime sees it: input, timeout, outputs. A pure value; all methods
/// return without waiting for anything.
pub trait Element: Send + 'static {
    /// What a worker keeps for reading messages before it knows their shards.
    type Reader: Default;

    /// Something happened.
    fn handle_input(&mut self, now: Instant, input: Input<'_>);
    /// As [`Input::Waited`].
    fn waited(&mut self, now: Instant, delay: Duration, messages: u32) {
        self.handle_input(now, Input::Waited { delay, messages });
    }
    /// The time of [`Element::poll_timeout`] has come, or passed.
    fn handle_timeout(&mut self, now: Instant);
    /// What is to be done next; `None`: nothing until the next input or timeout.
    fn poll_output(&mut self) -> Option<Output>;
    /// When [`Element::handle_timeout`] is to be called next.
    fn poll_timeout(&self) -> Option<Instant>;
    /// Which of `shards` elements a message belongs to: the same one for all messages of a call.
    fn shard_of(bytes: &[u8], secret: u64, shards: usize) -> usize;

    /// The same, reading as much as will be needed anyway, outside of the shard's lock.
    fn read_ahead<'a>(
        _reader: &mut Self::Reader,
        _origin: &Origin,
        bytes: &[u8],
        _limits: &'a Limits,
        secret: u64,
        shards: usize,
    ) -> (usize, Option<ReadAhead<'a>>) {
        (Self::shard_of(bytes, secret, shards), None)
    }

    /// Gives back the room of what was read ahead.
    fn give_back(&mut self, _reader: &mut Self::Reader) {}
}

/// A future that can be kept and sent.
pub type BoxFuture<T> = Pin<Box<dyn Future<Output = T> + Send + 'static>>;

/// Finds servers (RFC 3263): the answer to [`Output::Locate`].
pub trait Locator: Send + Sync + 'static {
    /// The answer, if nothing need be asked for it. Called with a shard locked: must not wait.
    fn locate_cached(&self, key: &LocateKey, now: Instant) -> Option<Arc<Located>>;
    /// The answer. Polled on the worker that asks; ends within the budget of a location
    /// (`dns.timeout`), and failure is an answer too.
    fn locate(&self, key: Arc<LocateKey>) -> BoxFuture<Arc<Located>>;
}
