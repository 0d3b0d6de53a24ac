//! The shard behind the sockets, and the resolver beside it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::flow::Origin;
use crate::location::{LocateKey, Located};
use crate::shard::io::ReadAhead;
use crate::shard::{Input, Output, Reader};
use crate::wire::Limits;

use super::dns::Resolver;
use super::element::{BoxFuture, Element, Locator};

impl Locator for Resolver {
    fn locate_cached(&self, key: &LocateKey, now: Instant) -> Option<Arc<Located>> {
        Resolver::locate_cached(self, key, now)
    }

    fn locate(&self, key: Arc<LocateKey>) -> BoxFuture<Arc<Located>> {
        let resolver = self.clone();
        Box::pin(async move { resolver.locate(LocateKey::clone(&key)).await })
    }
}

impl Element for crate::shard::Shard {
    type Reader = Reader;

    fn handle_input(&mut self, now: Instant, input: Input<'_>) {
        crate::shard::Shard::handle_input(self, now, input);
    }

    fn waited(&mut self, now: Instant, delay: Duration, messages: u32) {
        crate::shard::Shard::waited(self, now, delay, messages);
    }

    fn handle_timeout(&mut self, now: Instant) {
        crate::shard::Shard::handle_timeout(self, now);
    }

    fn poll_output(&mut self) -> Option<Output> {
        crate::shard::Shard::poll_output(self)
    }

    fn poll_timeout(&self) -> Option<Instant> {
        crate::shard::Shard::poll_timeout(self)
    }

    fn shard_of(bytes: &[u8], secret: u64, shards: usize) -> usize {
        crate::shard::shard_of(bytes, secret, shards)
    }

    fn read_ahead<'a>(
        reader: &mut Reader,
        origin: &Origin,
        bytes: &[u8],
        limits: &'a Limits,
        secret: u64,
        shards: usize,
    ) -> (usize, Option<ReadAhead<'a>>) {
        reader.read(origin, bytes, limits, secret, shards)
    }

    fn give_back(&mut self, reader: &mut Reader) {
        crate::shard::Shard::give_back(self, reader);
    }
}
