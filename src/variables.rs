//! The names of the variables by which a job knows its locks.

pub const NAME: &str = "REDLOCK_NAME";
pub const TOKEN: &str = "REDLOCK_TOKEN";
pub const FENCE: &str = "REDLOCK_FENCE";
pub const SLOT: &str = "REDLOCK_SLOT";
pub const WAITED_MS: &str = "REDLOCK_WAITED_MS";
/// All that the job holds, what the runs around this one hold included: `NAME=TOKEN …`. What was reentered is there
/// twice: it isn't the job's own to release.
pub const HELD: &str = "REDLOCK_HELD";

/// What admits the runs of the client that has frozen a lock. It isn't part of what a run leaves to its job: that may start
/// such runs, too.
pub const PASS: &str = "REDLOCK_PASS";

/// All that a job may find of ours. What a run around this one has set doesn't count.
pub const VARIABLES: [&str; 6] = [NAME, TOKEN, FENCE, SLOT, WAITED_MS, HELD];
