//! Patience with a limit.

use std::time::{Duration, Instant};

/// How long anything may take before a test calls it a failure.
pub const TIMEOUT: Duration = Duration::from_secs(20);

/// Waits until a condition holds; fails the test with `what` when it never does.
pub fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    let end = Instant::now() + TIMEOUT;
    while !condition() {
        assert!(Instant::now() < end, "never happened: {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}
