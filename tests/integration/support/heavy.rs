//! Heavy tests run one at a time: two cores carry one cluster or one set of sentinels, not four.

use std::cell::RefCell;
use std::fs::File;

/// Waits until no other test is heavy, in this process or beside it (`scripts/test`). This thread's test is the heavy
/// one from then on, until its thread ends; it may call this again.
pub fn begin_heavy_test() {
    thread_local! {
        static OWN_TURN: RefCell<Option<File>> = const { RefCell::new(None) };
    }
    OWN_TURN.with_borrow_mut(|own_turn| {
        own_turn.get_or_insert_with(|| {
            let turn = File::open("/proc/self/exe").unwrap();
            turn.lock().unwrap();
            turn
        });
    });
}
