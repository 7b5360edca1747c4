//! For how long a lock has been held and waited for, by the server's clock. Pure.

use std::time::Duration;

use crate::protocol::Inspected;

/// For how long its oldest holder has had it; `None` where it has none, or where that isn't known (another client's).
pub fn held(lock: &Inspected) -> Option<Duration> {
    let holders = lock.holders().filter_map(|hold| hold.holder.as_ref());
    let since = holders.map(|holder| holder.since_ms).min();
    since.map(|since| age(lock, since))
}

/// For how long the oldest of those that wait for it has waited.
pub fn waited(lock: &Inspected) -> Option<Duration> {
    let granted = lock.grants().map(|(_, holder)| holder.waiting_since_ms());
    let waiting = lock.waiters.iter().map(|waiting| waiting.waiter.since_ms);
    let since = granted.chain(waiting).min();
    since.map(|since| age(lock, since))
}

/// Returns the time since the last success, or `None` if no success is known.
pub fn since_success(lock: &Inspected) -> Option<Duration> {
    lock.record.succeeded_ms.map(|at| age(lock, at))
}

/// Whether it has been held, or waited for, for longer than this.
pub fn is_older(lock: &Inspected, than: Duration) -> bool {
    [held(lock), waited(lock)].into_iter().flatten().max() > Some(than)
}

fn age(lock: &Inspected, since_ms: u64) -> Duration {
    Duration::from_millis(lock.now_ms.saturating_sub(since_ms))
}
