//! Heavy tests run one at a time: two cores can run one cluster or one set of sentinels, not four.

use std::cell::RefCell;
use std::fs::File;

use super::REDLOCK;

/// Waits until no other test has many servers, in this process or in another (`scripts/test`). The turn belongs to this
/// thread's test until the thread ends; calling this again does nothing.
pub fn begin_heavy_test() {
    thread_local!(static TURN: Turn = const { Turn::new(None) });
    TURN.with(|turn| wait_for(turn, "/proc/self/exe"));
}

/// Waits until no other test makes packages, in the same way.
pub fn begin_packaging_test() {
    thread_local!(static TURN: Turn = const { Turn::new(None) });
    TURN.with(|turn| wait_for(turn, REDLOCK));
}

/// File that this thread's test has locked.
type Turn = RefCell<Option<File>>;

fn wait_for(turn: &Turn, path: &str) {
    turn.borrow_mut().get_or_insert_with(|| {
        let file = File::open(path).unwrap();
        file.lock().unwrap();
        file
    });
}
