//! The allocator of the program.

use std::alloc::{GlobalAlloc, Layout};

use libmimalloc_sys::{
    mi_free, mi_malloc, mi_malloc_aligned, mi_realloc, mi_realloc_aligned, mi_zalloc, mi_zalloc_aligned,
};

/// The allocator of the program: mimalloc, asked for what all but a few pieces of memory are, without the checks that
/// an alignment of its own takes.
#[derive(Clone, Copy, Debug)]
pub struct Allocator;

/// Every block that mimalloc gives out is aligned to this, whatever its size.
const ALIGNED: usize = 8;

// SAFETY: as asked for by `GlobalAlloc`, each block comes from mimalloc, large and aligned enough, or not at all; all of its
// blocks are given back by the same function.
unsafe impl GlobalAlloc for Allocator {
    #[inline]
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let (size, align) = (layout.size(), layout.align());
        unsafe { if align <= ALIGNED { mi_malloc(size) } else { mi_malloc_aligned(size, align) } }.cast()
    }

    #[inline]
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        let (size, align) = (layout.size(), layout.align());
        unsafe { if align <= ALIGNED { mi_zalloc(size) } else { mi_zalloc_aligned(size, align) } }.cast()
    }

    #[inline]
    unsafe fn dealloc(&self, at: *mut u8, _: Layout) {
        unsafe { mi_free(at.cast()) }
    }

    #[inline]
    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        let (at, align) = (at.cast(), layout.align());
        unsafe { if align <= ALIGNED { mi_realloc(at, size) } else { mi_realloc_aligned(at, size, align) } }
            .cast()
    }
}
