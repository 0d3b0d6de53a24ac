//! How often the element asks for memory, message by message: bounds that must not be exceeded.

mod rig;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use rig::{Rig, STEPS};
use sbe::wire::{Framing, Index, Limits};

struct Counting;

thread_local! {
    static COUNT: Cell<u64> = const { Cell::new(0) };
}

fn count() {
    let _ = COUNT.try_with(|c| c.set(c.get() + 1));
}

// SAFETY: every call goes to the system's allocator as it came.
#[allow(unsafe_code)]
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count();
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count();
        unsafe { System.realloc(at, layout, size) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn counted() -> u64 {
    COUNT.with(Cell::get)
}

#[test]
fn indexing_an_invite_allocates_nothing() {
    let (limits, invite) = (Limits::default(), rig::invite(1));
    // One that has served before, as all do in a shard.
    let mut index = Index::parse(&invite, &limits, Framing::Datagram).unwrap_or_default();
    let before = counted();
    let read = index.read(&invite, &limits, Framing::Datagram);
    assert_eq!((counted() - before, read, index.fault()), (0, Ok(()), None));
}

/// From the received octets to the octets to send, in a shard whose tables and lanes have their
/// size already: the median over a thousand calls of each message's allocations.
#[test]
fn no_message_of_a_call_allocates_more_than_its_bound() {
    const BOUNDS: [u64; 6] = [8, 2, 1, 2, 5, 2];
    let mut rig = Rig::new();
    let mut seen: [Vec<u64>; 6] = Default::default();
    for call in 0..2000 {
        let mut before = 0;
        rig.call(call, |step, after| {
            if !after {
                before = counted();
            } else if call >= 1000 {
                seen[step].push(counted() - before);
            }
        });
    }
    for ((counts, bound), name) in seen.iter_mut().zip(BOUNDS).zip(STEPS) {
        counts.sort_unstable();
        let median = counts[counts.len() / 2];
        println!("{name}: {median} allocations (at most {bound})");
        assert!(median <= bound, "{name}: {median} allocations, at most {bound} allowed");
    }
}

/// Scanners send a lot; what they send costs to be read, and no more.
#[test]
fn a_strangers_request_allocates_nothing() {
    let mut rig = Rig::new();
    let origin = sbe::flow::Origin {
        transport: sbe::flow::Transport::Udp,
        listener: sbe::flow::ListenerId(0),
        remote: ([203, 0, 113, 9], 5060).into(),
        local: ([127, 0, 0, 1], 5060).into(),
        conn: None,
        identity: None,
    };
    for call in 0..10 {
        let invite = rig::invite(call);
        let before = counted();
        rig.shard.handle_input(rig.now, sbe::shard::Input::Message { origin: &origin, bytes: &invite });
        assert!(rig.shard.poll_output().is_none());
        if call > 0 {
            assert_eq!(counted() - before, 0);
        }
    }
    assert_eq!(rig.shard.stats().dropped.get("stranger"), Some(&10));
}

/// Two transactions on either side; those timers that most calls have no use for are put off.
#[test]
fn a_call_that_is_answered_at_once_arms_few_timers() {
    let mut rig = Rig::new();
    rig.call(0, |_, _| ());
    let before = rig.shard.timers();
    rig.call(1, |_, _| ());
    let armed = rig.shard.timers() - before;
    println!("{armed} timers");
    assert!(armed <= 6, "{armed} timers, at most 6 allowed");
}
