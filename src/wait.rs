//! Waiting for a lock. Pure.

mod timing;

pub use self::timing::{
    Next, Pace, ProgressSchedule, WaitLimit, WakeBy, end_of, heartbeat, is_near, next, reconnect,
};
