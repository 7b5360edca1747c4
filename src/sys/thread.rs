//! Threads other than the main one.

use std::alloc::{GlobalAlloc, Layout, System};
use std::io;
use std::thread::JoinHandle;

use nix::sys::signal::SigSet;

/// Usual size of a thread's stack, in bytes. TLS needs some of it.
pub const USUAL_STACK: usize = 2 * 1024 * 1024;

/// An allocated block of a thread handle's size. The standard library allocates the handle past redlock's allocator, and
/// aborts the process if it can't. While this block is allocated, there is memory for another one of the same size.
struct HandleRoom(*mut u8);

impl HandleRoom {
    const LAYOUT: Layout = Layout::new::<[usize; 6]>();

    fn new() -> io::Result<Self> {
        // SAFETY: the layout isn't empty. The black box keeps the compiler from removing the unused allocation.
        let block = std::hint::black_box(unsafe { System.alloc(Self::LAYOUT) });
        if block.is_null() {
            return Err(io::ErrorKind::OutOfMemory.into());
        }
        Ok(Self(block))
    }
}

impl Drop for HandleRoom {
    fn drop(&mut self) {
        // SAFETY: the block was allocated with this layout.
        unsafe { System.dealloc(self.0, Self::LAYOUT) }
    }
}

/// Starts a thread that blocks all signals.
pub fn start_thread(
    name: &str,
    stack: usize,
    work: impl FnOnce() + Send + 'static,
) -> io::Result<JoinHandle<()>> {
    let _room = HandleRoom::new()?;
    let thread = std::thread::Builder::new().name(name.into());
    thread.stack_size(stack).spawn(|| {
        if SigSet::all().thread_block().is_ok() {
            work();
        }
    })
}
