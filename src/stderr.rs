//! Lines on their way to standard error, where a reader may have stopped reading: a pager, a terminal
//! after Ctrl-S, a full pipe.
//!
//! A process that watches over a lock must not wait for such a reader. So while a [`Guard`] exists a
//! separate thread writes; it may lag behind, and lines that it can't keep up with are lost. The
//! thread is started with the first line: a run that has nothing to say never has it.
//! (The stream can't be made non-blocking, as COMMAND shares it.)

use std::io;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use nix::errno::Errno;

use crate::sys::{self, poll};

/// While one exists, no message waits for a reader.
pub struct Guard(());

static GUARDED: AtomicBool = AtomicBool::new(false);

/// Set in a process that has no reader.
static SILENT: AtomicBool = AtomicBool::new(false);

/// The lines that are on their way, and how to send more.
struct Queue {
    lines: Option<SyncSender<Vec<u8>>>,
    waiting: usize,
}

static QUEUE: Mutex<Queue> = Mutex::new(Queue {
    lines: None,
    waiting: 0,
});

/// A line has been written.
static WRITTEN: Condvar = Condvar::new();

/// How many lines may wait for a reader; later ones are lost.
const MAX_LINES: usize = 64;

/// How long the end of redlock waits for a reader.
pub const LINGER: Duration = Duration::from_secs(1);

/// The thread writes a line and waits for more.
const STACK: usize = 64 * 1024;

impl Guard {
    /// From now on no line waits for a reader. Signals have to be blocked already, so that the thread
    /// gets none.
    pub fn new() -> Self {
        GUARDED.store(true, Ordering::Relaxed);
        Self(())
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        GUARDED.store(false, Ordering::Relaxed);
    }
}

/// Writes a line, whole, or not at all where it has no reader.
pub fn write(line: Vec<u8>) {
    if SILENT.load(Ordering::Relaxed) {
        return;
    }
    if GUARDED.load(Ordering::Relaxed) {
        enqueue(line);
        return;
    }
    // Nothing is at stake any more, but that redlock ends.
    flush(LINGER);
    if queue().waiting == 0 && is_ready(LINGER) {
        write_all(&line);
    }
}

/// Waits until all lines are written, at most for a time.
pub fn flush(within: Duration) {
    let is_busy = |queue: &mut Queue| queue.waiting > 0;
    drop(WRITTEN.wait_timeout_while(queue(), within, is_busy));
}

/// Says nothing any more: for a process that was forked, which doesn't have the thread.
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
        // A thread can't be made: now or never.
        None => {
            if is_ready(Duration::ZERO) {
                write_all(&line);
            }
        }
    }
}

fn start() -> io::Result<SyncSender<Vec<u8>>> {
    let (lines, waiting) = sync_channel::<Vec<u8>>(MAX_LINES);
    // A job in the background of a terminal may be stopped for writing; a supervisor may not, and this
    // thread gets no signals.
    sys::start_thread("stderr", STACK, move || {
        while let Ok(line) = waiting.recv() {
            write_all(&line);
            queue().waiting -= 1;
            WRITTEN.notify_all();
        }
    })?;
    Ok(lines)
}

/// Whether a short line can be written without waiting, within a time.
fn is_ready(within: Duration) -> bool {
    let stderr = io::stderr();
    poll::is_ready(poll::writable(stderr.as_fd()), within)
}

/// Writes everything; an error is nothing that could be said.
fn write_all(mut bytes: &[u8]) {
    while !bytes.is_empty() {
        match nix::unistd::write(io::stderr(), bytes) {
            Ok(written) => bytes = bytes.get(written..).unwrap_or_default(),
            Err(Errno::EINTR) => {}
            // COMMAND has made the stream that we share non-blocking.
            Err(Errno::EAGAIN) if is_ready(LINGER) => {}
            Err(_) => return,
        }
    }
}
