//! Threads beside the main one.

use std::alloc::{GlobalAlloc, Layout, System};
use std::io;
use std::thread::JoinHandle;

use nix::sys::signal::SigSet;

/// As large as a thread's stack usually is: TLS needs some of it.
pub const USUAL_STACK: usize = 2 * 1024 * 1024;

/// Room for a thread's handle: the standard library allocates that past our allocator, and ends the process
/// where it can't. While a block of its size is there, so is memory for another one.
struct HandleRoom(*mut u8);

impl HandleRoom {
    const LAYOUT: Layout = Layout::new::<[usize; 6]>();

    fn new() -> io::Result<Self> {
        // SAFETY: the layout isn't empty. A compiler would leave out what isn't used.
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

/// Starts a thread that gets no signals.
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
