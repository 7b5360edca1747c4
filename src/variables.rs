//! Names of the environment variables that tell a job about its locks.

pub const NAME: &str = "REDLOCK_NAME";
pub const TOKEN: &str = "REDLOCK_TOKEN";
pub const FENCE: &str = "REDLOCK_FENCE";
pub const SLOT: &str = "REDLOCK_SLOT";
pub const WAITED_MS: &str = "REDLOCK_WAITED_MS";
/// All locks of the job, including those of the runs around this one: `NAME=TOKEN …`, or `NAME~TOKEN` for a lock that was
/// reentered, and that the job must not release.
pub const HELD: &str = "REDLOCK_HELD";
/// The ids of the guards under which the job runs.
pub const GUARD: &str = "REDLOCK_GUARD";

/// The event for a hook. All processes in a hook have this variable, and call no hooks themselves.
pub const EVENT: &str = "REDLOCK_EVENT";
pub const RAN_MS: &str = "REDLOCK_RAN_MS";
pub const STATUS: &str = "REDLOCK_STATUS";
/// Also a setting: the default of `--reason`.
pub const REASON: &str = "REDLOCK_REASON";
pub const BY: &str = "REDLOCK_BY";
pub const COMMAND: &str = "REDLOCK_COMMAND";
pub const JSON: &str = "REDLOCK_JSON";

/// Further variables of a hook, which are no settings.
pub const OF_HOOK: [&str; 6] = [EVENT, RAN_MS, STATUS, BY, COMMAND, JSON];

/// All variables of a job. redlock removes the values that a run around this one has set.
pub const VARIABLES: [&str; 7] = [NAME, TOKEN, FENCE, SLOT, WAITED_MS, HELD, GUARD];
