//! Memory for a short run: one block that exists from the start, handed out front to back.
//!
//! musl's allocator calls the kernel for each new size of block, which costs a short run 6 % of its time
//! (docs/benchmarks.md). Here an allocation is one addition. Memory in the block is never reused, so a long run fills it. After
//! that, and for large allocations, the system's allocator takes over.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::UnsafeCell;
use std::ptr;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Size of the block, in bytes. A short run uses a little more than half of it.
const SIZE: usize = 384 * 1024;

/// Largest allocation in the block, in bytes. Larger ones would keep their pages even after they are freed.
const LARGE: usize = 32 * 1024;

#[repr(C, align(16))]
struct Arena {
    block: UnsafeCell<[u8; SIZE]>,
    /// Start of the free part.
    next: AtomicUsize,
}

// libFuzzer measures allocations itself.
#[cfg_attr(not(fuzzing), global_allocator)]
static ARENA: Arena = Arena {
    block: UnsafeCell::new([0; SIZE]),
    next: AtomicUsize::new(0),
};

impl Arena {
    /// Returns true if an allocation is in the block.
    fn has(&self, allocation: *mut u8) -> bool {
        (allocation as usize).wrapping_sub(self.block.get() as usize) < SIZE
    }
}

// SAFETY: each byte belongs to at most one allocation, and its owner may use it in any way.
unsafe impl Sync for Arena {}

// SAFETY: the allocated parts don't overlap, because their bounds come from one counter that only grows. Each
// part is a multiple of 16 bytes, and larger alignments go to the system.
unsafe impl GlobalAlloc for Arena {
    // Not inlined, because thousands of copies make the program larger and no faster.
    #[inline(never)]
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let size = layout.size().next_multiple_of(16);
        if size <= LARGE
            && layout.align() <= 16
            && self.next.load(Ordering::Relaxed) <= SIZE - LARGE
        {
            let start = self.next.fetch_add(size, Ordering::Relaxed);
            if start + size <= SIZE {
                // SAFETY: the part is within the block.
                return unsafe { self.block.get().cast::<u8>().add(start) };
            }
        }
        // SAFETY: the caller keeps the promises of `alloc`.
        unsafe { System.alloc(layout) }
    }

    #[inline(never)]
    unsafe fn dealloc(&self, allocation: *mut u8, layout: Layout) {
        if !self.has(allocation) {
            // SAFETY: the allocation came from the system.
            unsafe { System.dealloc(allocation, layout) }
        }
    }

    // Overridden, because the default would copy a large allocation each time it grows.
    #[inline(never)]
    unsafe fn realloc(&self, allocation: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        if !self.has(allocation) {
            // SAFETY: the allocation came from the system.
            return unsafe { System.realloc(allocation, layout, size) };
        }
        // SAFETY: the caller promises that the new size is valid; the two allocations don't overlap.
        unsafe {
            let moved = self.alloc(Layout::from_size_align_unchecked(size, layout.align()));
            if !moved.is_null() {
                ptr::copy_nonoverlapping(allocation, moved, size.min(layout.size()));
            }
            moved
        }
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn threads_that_allocate_at_once_never_share_a_byte() {
        let fill = |mark: u8| {
            move || {
                for round in 1..200_usize {
                    let mut bytes = vec![mark; round];
                    bytes.extend(std::iter::repeat_n(mark, round * 3));
                    let other = vec![!mark; round % 7 * 100];
                    assert!(bytes.iter().all(|&byte| byte == mark));
                    drop(bytes);
                    assert!(other.iter().all(|&byte| byte == !mark));
                }
            }
        };
        let threads: Vec<_> = (0..4).map(|mark| std::thread::spawn(fill(mark))).collect();
        for thread in threads {
            thread.join().unwrap();
        }
    }
}
