//! Work on several threads.

use std::sync::atomic::{AtomicUsize, Ordering};

/// Calls `work` with each number below `numbers`. Returns the results in order.
pub fn on_threads<T: Send>(
    threads: usize,
    numbers: usize,
    work: impl Fn(usize) -> T + Sync,
) -> Vec<T> {
    let next = AtomicUsize::new(0);
    let draw = || Some(next.fetch_add(1, Ordering::Relaxed)).filter(|&number| number < numbers);
    let own = || -> Vec<(usize, T)> {
        let drawn = std::iter::from_fn(draw);
        drawn.map(|number| (number, work(number))).collect()
    };
    let mut done: Vec<(usize, T)> = std::thread::scope(|scope| {
        let all: Vec<_> = (0..threads).map(|_| scope.spawn(own)).collect();
        all.into_iter()
            .flat_map(|one| one.join().unwrap())
            .collect()
    });
    done.sort_by_key(|(number, _)| *number);
    done.into_iter().map(|(_, one)| one).collect()
}

/// Returns the number of threads that the machine can run at a time.
pub fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}
