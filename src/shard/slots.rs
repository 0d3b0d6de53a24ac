//! The table of contexts: slots with generations, so that nothing old reaches anything new.

use std::collections::VecDeque;

use crate::proxy::Context;

/// Names a context: its slot, and how often the slot had been used before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Handle {
    /// Place in the table.
    pub slot: u32,
    /// Generation of the place.
    pub generation: u32,
}

#[derive(Debug)]
struct Slot {
    generation: u32,
    context: Option<Box<Context>>,
}

/// Contexts of one shard. Free places are used again in the order in which they came free, so that
/// a generation lasts long.
#[derive(Debug, Default)]
pub struct Slots {
    slots: Vec<Slot>,
    free: VecDeque<u32>,
    used: usize,
}

/// A [`super::SendToken`] has this many bits for the slot.
const MOST: usize = 1 << 24;

impl Slots {
    /// How many contexts there are.
    pub fn len(&self) -> usize {
        self.used
    }

    /// A place for a new context; `None` if the table is full (`cap`).
    pub fn reserve(&mut self, cap: usize) -> Option<Handle> {
        if self.used >= cap {
            return None;
        }
        let slot = match self.free.pop_front() {
            Some(slot) => slot,
            None if self.slots.len() >= MOST => return None,
            None => {
                let slot = u32::try_from(self.slots.len()).ok()?;
                self.slots.push(Slot { generation: 0, context: None });
                slot
            }
        };
        self.used += 1;
        let generation = self.slots.get(slot as usize)?.generation;
        Some(Handle { slot, generation })
    }

    /// Looks at a context.
    pub fn peek(&self, handle: Handle) -> Option<&Context> {
        let slot = self.slots.get(handle.slot as usize)?;
        (slot.generation == handle.generation).then_some(slot.context.as_deref()).flatten()
    }

    /// Takes a context out to work on it; it is to be put back or given up.
    pub fn take(&mut self, handle: Handle) -> Option<Box<Context>> {
        let slot = self.slots.get_mut(handle.slot as usize)?;
        (slot.generation == handle.generation).then(|| slot.context.take()).flatten()
    }

    /// As [`Self::take`], by slot and the low 16 bits of the generation.
    pub fn take_short(&mut self, slot: u32, generation: u16) -> Option<(Handle, Box<Context>)> {
        let entry = self.slots.get_mut(slot as usize)?;
        if entry.generation & 0xffff != u32::from(generation) {
            return None;
        }
        let handle = Handle { slot, generation: entry.generation };
        entry.context.take().map(|c| (handle, c))
    }

    /// Puts a context (back) into its place.
    pub fn put(&mut self, handle: Handle, context: Box<Context>) {
        if let Some(slot) = self.slots.get_mut(handle.slot as usize) {
            slot.context = Some(context);
        }
    }

    /// Gives a place up.
    pub fn release(&mut self, handle: Handle) {
        if let Some(slot) = self.slots.get_mut(handle.slot as usize) {
            slot.generation = slot.generation.wrapping_add(1);
            slot.context = None;
            self.used = self.used.saturating_sub(1);
            self.free.push_back(handle.slot);
            self.shrink();
        }
    }

    /// Memory of a burst is given back once nothing is under way.
    fn shrink(&mut self) {
        if self.used == 0 && self.slots.len() > 1024 {
            // The generations must not begin again: the first of the new ones follows the highest of the old.
            let next = self.slots.iter().map(|s| s.generation).max().unwrap_or(0).wrapping_add(1);
            self.slots.truncate(1024);
            self.slots.shrink_to(1024);
            for slot in &mut self.slots {
                slot.generation = next;
            }
            self.free = (0..1024).collect();
        }
    }

    /// Handles of all contexts, by slot.
    pub fn handles(&self) -> impl Iterator<Item = Handle> + '_ {
        self.slots
            .iter()
            .zip(0u32..)
            .filter(|(s, _)| s.context.is_some())
            .map(|(s, slot)| Handle { slot, generation: s.generation })
    }

    /// All contexts, by slot.
    pub fn iter(&self) -> impl Iterator<Item = &Context> {
        self.slots.iter().filter_map(|s| s.context.as_deref())
    }
}
