//! Heavy tests run one at a time: two cores carry one cluster or one set of sentinels, not four.

use std::cell::RefCell;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Waits until no other test of this process is heavy. This thread's test is the heavy one from then on, until its
/// thread ends; it may call this again.
pub fn begin_heavy_test() {
    static TURN: Mutex<()> = Mutex::new(());
    thread_local! {
        static OWN_TURN: RefCell<Option<MutexGuard<'static, ()>>> = const { RefCell::new(None) };
    }
    OWN_TURN.with_borrow_mut(|own_turn| {
        if own_turn.is_none() {
            *own_turn = Some(TURN.lock().unwrap_or_else(PoisonError::into_inner));
        }
    });
}
