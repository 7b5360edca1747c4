//! The names of the variables by which a job knows its locks.

pub const NAME: &str = "REDLOCK_NAME";
pub const TOKEN: &str = "REDLOCK_TOKEN";
pub const FENCE: &str = "REDLOCK_FENCE";
pub const SLOT: &str = "REDLOCK_SLOT";
pub const WAITED_MS: &str = "REDLOCK_WAITED_MS";
/// All that the job holds, what the runs around this one hold included: `NAME=TOKEN …`, or `NAME~TOKEN` for what was
/// reentered and isn't the job's own to release.
pub const HELD: &str = "REDLOCK_HELD";
/// The ids of the guards whose work the job is.
pub const GUARD: &str = "REDLOCK_GUARD";

/// What has happened, for a hook. Whatever runs in one has it, and calls none.
pub const EVENT: &str = "REDLOCK_EVENT";
pub const RAN_MS: &str = "REDLOCK_RAN_MS";
pub const STATUS: &str = "REDLOCK_STATUS";
/// Also a setting: the default of `--reason`.
pub const REASON: &str = "REDLOCK_REASON";
pub const BY: &str = "REDLOCK_BY";
pub const COMMAND: &str = "REDLOCK_COMMAND";
pub const JSON: &str = "REDLOCK_JSON";

/// What a hook finds of ours besides, that sets nothing.
pub const OF_HOOK: [&str; 6] = [EVENT, RAN_MS, STATUS, BY, COMMAND, JSON];

/// All that a job may find of ours. What a run around this one has set doesn't count.
pub const VARIABLES: [&str; 7] = [NAME, TOKEN, FENCE, SLOT, WAITED_MS, HELD, GUARD];
