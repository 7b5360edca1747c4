//! Work on several threads.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Calls `work` with each number below `numbers`. Returns the results in order.
pub fn on_threads<T: Send>(
    threads: usize,
    numbers: usize,
    work: impl Fn(usize) -> T + Sync,
) -> Vec<T> {
    let next = AtomicUsize::new(0);
    let done = Mutex::new(Vec::new());
    let go_on = || {
        loop {
            let number = next.fetch_add(1, Ordering::Relaxed);
            if number >= numbers {
                return;
            }
            let one = work(number);
            done.lock().unwrap().push((number, one));
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(go_on);
        }
    });
    let mut done = done.into_inner().unwrap();
    done.sort_by_key(|(number, _)| *number);
    done.into_iter().map(|(_, one)| one).collect()
}

/// Returns the number of threads that the machine can run at a time.
pub fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}
