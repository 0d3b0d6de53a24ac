//! The most memory held at a time.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

struct Counting;

static HELD: AtomicUsize = AtomicUsize::new(0);
static MOST: AtomicUsize = AtomicUsize::new(0);

fn more(octets: usize) {
    let held = HELD.fetch_add(octets, Ordering::Relaxed) + octets;
    MOST.fetch_max(held, Ordering::Relaxed);
}

fn less(octets: usize) {
    HELD.fetch_sub(octets, Ordering::Relaxed);
}

// SAFETY: every call goes to the system's allocator as it came.
#[allow(unsafe_code)]
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        more(layout.size());
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        less(layout.size());
        unsafe { System.dealloc(at, layout) }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // Both are there while one is copied into the other.
        more(size);
        let moved = unsafe { System.realloc(at, layout, size) };
        less(layout.size());
        moved
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// One test at a time, so that each sees its own memory.
pub static ALONE: Mutex<()> = Mutex::new(());

/// How much more than before was held at the most, and is held after it, in MiB.
pub fn most<T>(work: impl FnOnce() -> T) -> (T, usize, usize) {
    let before = HELD.load(Ordering::Relaxed);
    MOST.store(before, Ordering::Relaxed);
    let result = work();
    let mib = |octets: usize| octets.saturating_sub(before) >> 20;
    (result, mib(MOST.load(Ordering::Relaxed)), mib(HELD.load(Ordering::Relaxed)))
}
