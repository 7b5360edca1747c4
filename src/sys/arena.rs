//! Memory for a short run: one block that is there from the start, handed out front to back.
//!
//! musl's allocator asks the kernel again for each size of block, which costs a short run a tenth
//! of its time. Here an allocation is an addition. What is freed is used again only if it was the
//! last that was handed out, so the block fills up in a long run; from then on, and for all that
//! doesn't fit or is large, the system's allocator serves.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::UnsafeCell;
use std::ptr;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The size of the block; a short run that clap reads for uses a good half of it.
pub(super) const SIZE: usize = 384 * 1024;

/// What is larger isn't taken from the block: a holder would have its pages for good, long after it was freed.
const LARGE: usize = 32 * 1024;

const PAGE: usize = 4096;

#[repr(C, align(4096))]
struct Block(UnsafeCell<[u8; SIZE]>);

// SAFETY: each byte belongs to at most one allocation, and its owner may do as it likes.
unsafe impl Sync for Block {}

static BLOCK: Block = Block(UnsafeCell::new([0; SIZE]));

/// Where the free part of the block begins.
static NEXT: AtomicUsize = AtomicUsize::new(0);

/// The allocator; see the head of this file.
struct Arena;

// libFuzzer measures what is allocated.
#[cfg_attr(not(fuzzing), global_allocator)]
static ARENA: Arena = Arena;

/// Where the block begins.
pub(super) fn begin() -> usize {
    BLOCK.0.get().addr()
}

/// The position of an allocation in the block; `None` when it is the system's.
fn offset(allocation: *mut u8) -> Option<usize> {
    let offset = (allocation as usize).wrapping_sub(BLOCK.0.get() as usize);
    (offset < SIZE).then_some(offset)
}

/// Moves the free part's beginning, if it is where it is thought to be. What was written to memory
/// before it was freed is done before another thread gets it: a release, and an acquire in `alloc`.
fn advance(from: usize, to: usize) -> bool {
    NEXT.compare_exchange(from, to, Ordering::AcqRel, Ordering::Relaxed)
        .is_ok()
}

// SAFETY: the parts that are handed out don't overlap, as their bounds come from one counter that
// is changed atomically; it moves back only over the part that ends at it, when that is freed.
// Alignment holds, as the block is aligned to a page and larger alignments go to the system.
// Never inlined: there are thousands of calls, and copies of this in all of them make the program
// larger and no faster.
unsafe impl GlobalAlloc for Arena {
    #[inline(never)]
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let mut next = NEXT.load(Ordering::Relaxed);
        loop {
            let start = next.next_multiple_of(layout.align());
            let end = start.saturating_add(layout.size());
            if end > SIZE || layout.size() > LARGE || layout.align() > PAGE {
                // SAFETY: the caller's promises are passed on.
                return unsafe { System.alloc(layout) };
            }
            match NEXT.compare_exchange_weak(next, end, Ordering::AcqRel, Ordering::Relaxed) {
                // SAFETY: `start` is within the block, or at its end for an empty allocation.
                Ok(_) => return unsafe { BLOCK.0.get().cast::<u8>().add(start) },
                Err(other) => next = other,
            }
        }
    }

    #[inline(never)]
    unsafe fn dealloc(&self, allocation: *mut u8, layout: Layout) {
        match offset(allocation) {
            Some(start) => {
                advance(start + layout.size(), start);
            }
            // SAFETY: what isn't in the block came from the system.
            None => unsafe { System.dealloc(allocation, layout) },
        }
    }

    #[inline(never)]
    unsafe fn realloc(&self, allocation: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        let Some(start) = offset(allocation) else {
            // SAFETY: what isn't in the block came from the system.
            return unsafe { System.realloc(allocation, layout, size) };
        };
        let fits = size <= LARGE && start.saturating_add(size) <= SIZE;
        if size <= layout.size() || (fits && advance(start + layout.size(), start + size)) {
            return allocation;
        }
        // SAFETY: the caller promises that the new size is valid with the old alignment; the old
        // allocation has at least the bytes that are copied, and the new one is another place.
        unsafe {
            let moved = self.alloc(Layout::from_size_align_unchecked(size, layout.align()));
            if !moved.is_null() {
                ptr::copy_nonoverlapping(allocation, moved, layout.size());
                self.dealloc(allocation, layout);
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
