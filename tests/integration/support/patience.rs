//! Patience with a limit.

use std::time::{Duration, Instant};

/// Longest wait for anything before a test fails. Only a failing test waits this long, so a slow machine has time.
pub const TIMEOUT: Duration = Duration::from_secs(60);

/// Waits until a condition holds; fails the test with `what` when it never does.
pub fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    let end = Instant::now() + TIMEOUT;
    while !condition() {
        assert!(Instant::now() < end, "never happened: {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}
