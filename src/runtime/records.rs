//! Looking through the decision records of all shards.

use crate::proxy::decision::Record;

use super::node::Node;

/// Records looked at under one lock of a shard: some ten microseconds.
const PAGE: usize = 128;

impl Node {
    /// The decision records of a Call-ID, oldest first.
    pub fn records(&self, call_id: &[u8]) -> Vec<Record> {
        let mut all: Vec<Record> = self.each(|shard| shard.records(call_id)).into_iter().flatten().collect();
        all.sort_by_key(|r| r.started);
        all
    }

    /// The newest finished records for which `wanted` holds, newest first.
    pub fn search(&self, most: usize, wanted: &dyn Fn(&Record) -> bool) -> Vec<Record> {
        let mut all: Vec<Record> = Vec::new();
        let mut places: Vec<Option<u64>> = vec![Some(u64::MAX); self.shards()];
        let mut found = vec![0; places.len()];
        // Page by page of each shard in turn, so that calls get in between.
        while places.iter().any(Option::is_some) {
            for (shard, (place, found)) in places.iter_mut().zip(&mut found).enumerate() {
                let Some(before) = *place else { continue };
                let left = most - *found;
                let page = self.with_shard(shard, |s| s.page(before, PAGE, left, wanted));
                let (records, next) = page.unwrap_or_default();
                *found += records.len();
                all.extend(records);
                *place = next.filter(|_| *found < most);
            }
        }
        all.sort_by_key(|r| std::cmp::Reverse(r.started));
        all.truncate(most);
        all
    }
}
