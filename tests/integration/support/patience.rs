//! Waiting with a limit.

use std::time::{Duration, Instant};

/// Longest wait for anything before a test fails. Only a failing test waits this long, so a slow machine has time.
pub const TIMEOUT: Duration = Duration::from_secs(60);

/// Waits until a condition holds. Fails the test with `what` if it never does.
pub fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    await_some(what, || condition().then_some(()));
}

/// Waits until `find` returns something. Returns that.
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
