//! Lines for standard error, whose reader may have stopped reading: a pager, a terminal after Ctrl-S, a full pipe.
//!
//! A process that supervises a lock must not wait for such a reader. So while a [`ImmediateMessages`] exists, a
//! separate thread writes the lines. The thread may lag behind, and lines that exceed its queue are lost. The first
//! line starts the thread, so a run without messages never has it. (The stream can't be made non-blocking, because
//! COMMAND shares it.)

use std::io;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use nix::errno::Errno;

use crate::sys::{self, poll};

/// While a guard exists, no message waits for a reader.
pub struct ImmediateMessages(());

static GUARDED: AtomicBool = AtomicBool::new(false);

/// True in a process without a reader.
static SILENT: AtomicBool = AtomicBool::new(false);

/// The lines that aren't written yet, and the sender for more.
struct Queue {
    lines: Option<SyncSender<Vec<u8>>>,
    waiting: usize,
}

static QUEUE: Mutex<Queue> = Mutex::new(Queue {
    lines: None,
    waiting: 0,
});

/// Notified when a line has been written.
static WRITTEN: Condvar = Condvar::new();

/// Largest number of lines that wait for a reader. More are lost.
const MAX_LINES: usize = 64;

/// Longest wait for a reader at the end of redlock.
pub const LINGER: Duration = Duration::from_secs(1);

/// Stack of the thread, in bytes. Small, because the thread only writes lines.
const STACK: usize = 64 * 1024;

impl ImmediateMessages {
    /// Begins to write in a thread. The caller must have blocked all signals, so that the thread gets none.
    pub fn new() -> Self {
        GUARDED.store(true, Ordering::Relaxed);
        Self(())
    }
}

impl Drop for ImmediateMessages {
    fn drop(&mut self) {
        GUARDED.store(false, Ordering::Relaxed);
    }
}

/// Writes a whole line, or nothing if the line has no reader.
pub fn write(line: Vec<u8>) {
    if SILENT.load(Ordering::Relaxed) {
        return;
    }
    if GUARDED.load(Ordering::Relaxed) {
        enqueue(line);
        return;
    }
    // No lock depends on this process any more, so it may wait for a while.
    flush(LINGER);
    if queue().waiting == 0 && is_ready(LINGER) {
        write_all(&line);
    }
}

/// Waits until all lines are written, at most `within`.
pub fn flush(within: Duration) {
    let is_busy = |queue: &mut Queue| queue.waiting > 0;
    drop(WRITTEN.wait_timeout_while(queue(), within, is_busy));
}

/// Drops all further lines, for a forked process, which doesn't have the thread.
pub fn silence() {
    SILENT.store(true, Ordering::Relaxed);
}

fn queue() -> MutexGuard<'static, Queue> {
    QUEUE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn enqueue(line: Vec<u8>) {
    let mut queue = queue();
    if queue.lines.is_none() {
        queue.lines = start().ok();
    }
    match &queue.lines {
        Some(lines) => {
            if lines.try_send(line).is_ok() {
                queue.waiting += 1;
            }
        }
        // Without a thread, the line is written now or never.
        None => {
            if is_ready(Duration::ZERO) {
                write_all(&line);
            }
        }
    }
}

fn start() -> io::Result<SyncSender<Vec<u8>>> {
    let (lines, waiting) = sync_channel::<Vec<u8>>(MAX_LINES);
    // A terminal may stop a background job that writes to it. A supervisor must not be stopped, so this thread blocks all
    // signals.
    sys::start_thread("stderr", STACK, move || {
        while let Ok(line) = waiting.recv() {
            write_all(&line);
            queue().waiting -= 1;
            WRITTEN.notify_all();
        }
    })?;
    Ok(lines)
}

/// Returns true if a short line can be written without blocking. Waits at most `within`.
fn is_ready(within: Duration) -> bool {
    let stderr = io::stderr();
    poll::is_ready(poll::writable(stderr.as_fd()), within)
}

/// Writes everything. Ignores errors, because there is nowhere to report them.
fn write_all(mut bytes: &[u8]) {
    while !bytes.is_empty() {
        match nix::unistd::write(io::stderr(), bytes) {
            Ok(written) => bytes = bytes.get(written..).unwrap_or_default(),
            Err(Errno::EINTR) => {}
            // COMMAND shares the stream, and has made it non-blocking.
            Err(Errno::EAGAIN) if is_ready(LINGER) => {}
            Err(_) => return,
        }
    }
}
