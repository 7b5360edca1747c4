//! What a user may type, and nothing else. Help, man pages and completions follow from it.

// The comments here are the help text that users read, not Markdown; fields are called as options.
#![allow(clippy::doc_markdown, rustdoc::bare_urls)]
#![allow(clippy::struct_excessive_bools, clippy::struct_field_names)]

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum};

/// Mutual exclusion for shell scripts over Redis
#[derive(Debug, Parser)]
#[command(
    name = "redlock",
    disable_version_flag = true,
    disable_help_subcommand = true,
    args_conflicts_with_subcommands = false,
    after_help = "\
Start here:
  redlock run deploy -- ./deploy.sh        wait for the lock, run, release
  redlock run -n nightly -- ./backup.sh    skip it (status 75) if it runs elsewhere
  redlock status                           who holds what

Settings are also read from REDLOCK_… variables, ~/.config/redlock.env and /etc/redlock.env."
)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Option<Command>,

    #[command(flatten)]
    pub common: Common,

    /// Print the version; with -v also how it was built
    #[arg(short = 'V', long)]
    pub version: bool,
}

/// Options of every command.
#[derive(Debug, Args)]
#[command(next_help_heading = "Options of every command")]
pub struct Common {
    /// Redis server: redis://, rediss:// or unix:// [env: REDLOCK_URL] [default: redis://127.0.0.1:6379]
    #[arg(short, long, value_name = "URL", global = true)]
    pub url: Option<String>,

    /// Text before each name to form the key [env: REDLOCK_PREFIX] [default: redlock:]
    #[arg(long, value_name = "TEXT", global = true)]
    pub prefix: Option<String>,

    /// File that holds the password [env: REDLOCK_PASSWORD_FILE]
    #[arg(long, value_name = "FILE", global = true)]
    pub password_file: Option<PathBuf>,

    /// Trusted certificates (PEM) for rediss:// [env: REDLOCK_TLS_CA] [default: the system's]
    #[arg(long, value_name = "FILE", global = true)]
    pub tls_ca: Option<PathBuf>,

    /// Our certificate (PEM) for rediss:// [env: REDLOCK_TLS_CERT]
    #[arg(long, value_name = "FILE", global = true)]
    pub tls_cert: Option<PathBuf>,

    /// The key (PEM) of our certificate [env: REDLOCK_TLS_KEY]
    #[arg(long, value_name = "FILE", global = true)]
    pub tls_key: Option<PathBuf>,

    /// Longest time to connect, and to wait for an answer [env: REDLOCK_CONNECT_TIMEOUT] [default: 2s]
    #[arg(long, value_name = "DURATION", value_parser = duration, global = true)]
    pub connect_timeout: Option<Duration>,

    /// Say nothing but errors [env: REDLOCK_QUIET]
    #[arg(short, long, global = true)]
    pub quiet: bool,

    /// Say each change of state [env: REDLOCK_VERBOSE]
    #[arg(short, long, global = true, conflicts_with = "quiet")]
    pub verbose: bool,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    Run(Box<Run>),
    Wait(Wait),
    Status(Status),
    Release(Release),
}

/// Run a command while holding a lock
///
/// Takes the lock NAME, runs COMMAND while the lease is renewed in the background, and releases
/// the lock when COMMAND ends. If the lock is lost, COMMAND is stopped before anybody else can
/// get it. The exit status is COMMAND's. With several names COMMAND runs when all are held.
#[derive(Debug, Args)]
#[command(
    override_usage = "redlock run [OPTIONS] NAME... -- COMMAND [ARG]...\n       redlock run [OPTIONS] NAME... -c SCRIPT"
)]
pub struct Run {
    /// The lock's name; several are taken in one global order
    #[arg(value_name = "NAME", required = true)]
    pub names: Vec<String>,

    /// What to run, and its arguments
    #[arg(value_name = "COMMAND", last = true, required_unless_present = "shell")]
    pub command: Vec<OsString>,

    /// Lease: how long the lock outlives a killed redlock; at least 1s
    #[arg(long, value_name = "DURATION", default_value = "30s", value_parser = ttl)]
    pub ttl: Duration,

    /// Wait at most this long for the lock [default: for ever]
    #[arg(short, long, value_name = "DURATION", value_parser = duration, conflicts_with = "no_wait")]
    pub wait: Option<Duration>,

    /// Don't wait: give up at once if the lock is busy
    #[arg(short, long)]
    pub no_wait: bool,

    /// Exit status when the lock stays busy
    #[arg(short = 'E', long, value_name = "STATUS", default_value_t = 75)]
    pub conflict_exit_code: u8,

    /// Share the lock with all others that take it so (readers); excludes those that don't
    #[arg(short, long, conflicts_with = "slots")]
    pub shared: bool,

    /// Share the lock with others: at most N hold it at a time [default: 1, nobody else]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=9999))]
    pub slots: Option<u32>,

    /// Go before lower priorities in the queue (-1000 to 1000)
    #[arg(long, value_name = "N", default_value_t = 0, allow_negative_numbers = true,
        value_parser = clap::value_parser!(i32).range(-1000..=1000))]
    pub priority: i32,

    /// Newest waiter first
    #[arg(long)]
    pub lifo: bool,

    /// Have those give up that have waited longer: only the newest is worth doing
    #[arg(long)]
    pub supersede: bool,

    /// Stop COMMAND after this long; the status is then 124
    #[arg(short, long, value_name = "DURATION", value_parser = positive_duration)]
    pub timeout: Option<Duration>,

    /// Time between SIGTERM and SIGKILL when COMMAND is stopped; at most half the TTL counts
    #[arg(short, long, value_name = "DURATION", default_value = "5s", value_parser = duration)]
    pub kill_after: Duration,

    /// What to do when the lock is lost while COMMAND runs
    #[arg(long, value_name = "ACTION", value_enum, default_value_t = OnLost::Stop)]
    pub on_lost: OnLost,

    /// What to do when Redis can't be reached at the start
    #[arg(long, value_name = "ACTION", value_enum, default_value_t = OnUnreachable::Fail)]
    pub on_unreachable: OnUnreachable,

    /// Why, shown to others by `redlock status`
    #[arg(long, value_name = "TEXT")]
    pub reason: Option<String>,

    /// Run `sh -c SCRIPT` in place of COMMAND
    #[arg(short = 'c', long, value_name = "SCRIPT", conflicts_with = "command")]
    pub shell: Option<OsString>,
}

/// What to do when the lock is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum OnLost {
    /// Stop COMMAND, before anybody else can get the lock; the status is 79
    Stop,
    /// Let COMMAND go on without the lock and say so; the status is 79 all the same
    Warn,
}

/// What to do when Redis can't be reached at the start.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum OnUnreachable {
    /// End with status 69
    Fail,
    /// Run COMMAND without a lock
    Run,
}

/// Wait until a lock is free, without taking it
///
/// Ends with status 0 when nobody holds the lock; of several, when nobody holds any. Somebody may
/// take it right after that: to do something while it is free, use `redlock run`.
#[derive(Debug, Args)]
pub struct Wait {
    /// The lock's name
    #[arg(value_name = "NAME", required = true)]
    pub names: Vec<String>,

    /// Wait at most this long [default: for ever]
    #[arg(short, long, value_name = "DURATION", value_parser = duration, conflicts_with = "no_wait")]
    pub wait: Option<Duration>,

    /// Don't wait: only say whether it is free
    #[arg(short, long)]
    pub no_wait: bool,

    /// Exit status when the lock stays busy
    #[arg(short = 'E', long, value_name = "STATUS", default_value_t = 75)]
    pub conflict_exit_code: u8,
}

/// Show who holds which lock, and who waits
///
/// Without a NAME: all locks below the prefix that redlock holds or waits for. With names: those,
/// also free ones and those of other clients.
#[derive(Debug, Args)]
pub struct Status {
    /// Names of locks [default: all that are held or waited for]
    #[arg(value_name = "NAME")]
    pub names: Vec<String>,

    /// Print a JSON array, one object a lock
    #[arg(long)]
    pub json: bool,

    /// Print names only, one a line
    #[arg(long, conflicts_with = "json")]
    pub names_only: bool,

    /// Show it again every DURATION until interrupted [default: 1s]
    #[arg(long, value_name = "DURATION", num_args = 0..=1, default_missing_value = "1s")]
    pub watch: Option<String>,
}

/// Give a lock back, or (as a person) take it from its holder
///
/// With the token of the holder in $REDLOCK_TOKEN or --token-file the lock is given back. Without
/// one, --force frees it whoever holds it: the holder's run is told, and ends with status 79.
#[derive(Debug, Args)]
pub struct Release {
    /// The lock's name [default: $REDLOCK_NAME]
    #[arg(value_name = "NAME")]
    pub name: Option<String>,

    /// File that holds the token; - for standard input
    #[arg(long, value_name = "FILE", conflicts_with = "force")]
    pub token_file: Option<PathBuf>,

    /// Free the lock whoever holds it
    #[arg(long)]
    pub force: bool,

    /// With --force: only if the holder is the one that `redlock status` shows by this id
    #[arg(long, value_name = "ID", requires = "force")]
    pub id: Option<String>,
}

/// Longer durations are mistakes, and would overflow the server's arithmetic.
const LONGEST: Duration = Duration::from_secs(365 * 24 * 3600);

/// Reads a duration as `30s`, `500ms` or `1h 30m`.
pub fn duration(text: &str) -> Result<Duration, String> {
    let duration = humantime::parse_duration(text).map_err(|error| {
        if text.parse::<f64>().is_ok() {
            format!("a unit is missing: {text}s? {text}ms?")
        } else {
            format!("{error} (durations look like 500ms, 30s or 1h 30m)")
        }
    })?;
    if duration > LONGEST {
        return Err("at most a year".into());
    }
    Ok(duration)
}

/// Reads a duration that isn't zero.
pub fn positive_duration(text: &str) -> Result<Duration, String> {
    match duration(text)? {
        Duration::ZERO => Err("more than nothing, please".into()),
        duration => Ok(duration),
    }
}

fn ttl(text: &str) -> Result<Duration, String> {
    let ttl = duration(text)?;
    if ttl < Duration::from_secs(1) {
        return Err("at least 1s: a shorter lease can't be renewed in time".into());
    }
    Ok(ttl)
}
