//! Lines of answered calls, until those end.

use std::collections::BTreeMap;

use ahash::AHashMap;
use smallvec::SmallVec;

use super::line::Begun;

/// Usually one: a call that passes this element twice is one call with two records.
type Lines = SmallVec<[(u64, Begun); 1]>;

/// A bounded table of them.
pub(super) struct Open {
    calls: AHashMap<u64, Lines>,
    /// Calls by the age of their lines.
    ages: BTreeMap<u64, u64>,
    next: u64,
    most: usize,
}

impl Open {
    pub(super) fn new(most: usize) -> Self {
        Self { calls: AHashMap::new(), ages: BTreeMap::new(), next: 0, most }
    }

    pub(super) fn len(&self) -> usize {
        self.ages.len()
    }

    /// Adds one; gives the oldest back if there are too many now.
    pub(super) fn add(&mut self, call: u64, line: Begun) -> Option<Begun> {
        let age = self.next;
        self.next += 1;
        self.calls.entry(call).or_default().push((age, line));
        self.ages.insert(age, call);
        if self.ages.len() <= self.most {
            return None;
        }
        let (oldest, call) = self.ages.pop_first()?;
        let lines = self.calls.get_mut(&call)?;
        let at = lines.iter().position(|(age, _)| *age == oldest)?;
        let (_, line) = lines.remove(at);
        if lines.is_empty() {
            self.calls.remove(&call);
        }
        Some(line)
    }

    /// Takes those of a call.
    pub(super) fn take(&mut self, call: u64) -> impl Iterator<Item = Begun> {
        let lines = self.calls.remove(&call).unwrap_or_default();
        for (age, _) in &lines {
            self.ages.remove(age);
        }
        lines.into_iter().map(|(_, line)| line)
    }

    /// Takes all, oldest first.
    pub(super) fn take_all(&mut self) -> Vec<Begun> {
        self.ages.clear();
        let mut all: Vec<(u64, Begun)> = self.calls.drain().flat_map(|(_, lines)| lines).collect();
        all.sort_by_key(|(age, _)| *age);
        all.into_iter().map(|(_, line)| line).collect()
    }
}
