//! Patience with a limit.

use std::time::{Duration, Instant};

/// Longest wait for anything before a test fails. Only a failing test waits this long, so a slow machine has time.
pub const TIMEOUT: Duration = Duration::from_secs(60);

/// Waits until a condition holds; fails the test with `what` when it never does.
pub fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    await_some(what, || condition().then_some(()));
}

/// Waits until there is something, and returns that.
pub fn await_some<T>(what: &str, mut find: impl FnMut() -> Option<T>) -> T {
    let end = Instant::now() + TIMEOUT;
    loop {
        if let Some(something) = find() {
            return something;
        }
        assert!(Instant::now() < end, "never happened: {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}
