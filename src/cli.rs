//! The command line, and nothing else: it imports nothing of this crate, as the tests that compare it with
//! the manual and the completions include this file alone. Help and man pages are generated from it.

// The doc comments are the help text, not Markdown; fields are named after their options.
#![allow(clippy::doc_markdown, rustdoc::bare_urls)]
#![allow(clippy::struct_excessive_bools, clippy::struct_field_names)]

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::error::ErrorKind;
use clap::{ArgMatches, Args, FromArgMatches, Parser, Subcommand, ValueEnum};

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
    pub chosen: Option<Invocation>,

    #[command(flatten)]
    pub common: Common,

    /// Print the version; with -v, build details
    #[arg(short = 'V', long)]
    pub version: bool,
}

// Options of every command, accepted before and after its name. No doc comment: clap would use it as the
// description of each command that these options are added to.
#[derive(Debug, Args)]
#[command(next_help_heading = "Common options")]
pub struct Common {
    /// Redis server: redis://, rediss:// or unix:// [env: REDLOCK_URL] [default: redis://127.0.0.1:6379]
    #[arg(short, long, value_name = "URL")]
    pub url: Option<String>,

    /// Key prefix [env: REDLOCK_PREFIX] [default: redlock:]
    #[arg(long, value_name = "TEXT")]
    pub prefix: Option<String>,

    /// File with the password [env: REDLOCK_PASSWORD_FILE]
    #[arg(long, value_name = "FILE")]
    pub password_file: Option<PathBuf>,

    /// Trusted certificates (PEM), of CAs or of the server itself, for rediss:// [env: REDLOCK_TLS_CA] [default: the system's]
    #[arg(long, value_name = "FILE")]
    pub tls_ca: Option<PathBuf>,

    /// Client certificate (PEM) for rediss:// [env: REDLOCK_TLS_CERT]
    #[arg(long, value_name = "FILE")]
    pub tls_cert: Option<PathBuf>,

    /// Client key (PEM) [env: REDLOCK_TLS_KEY]
    #[arg(long, value_name = "FILE")]
    pub tls_key: Option<PathBuf>,

    /// Timeout for connecting and for each reply [env: REDLOCK_CONNECT_TIMEOUT] [default: 2s]
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub connect_timeout: Option<Duration>,

    /// How many past holds of each lock to keep for `redlock history`; 0: none [env: REDLOCK_HISTORY] [default: 200]
    #[arg(long = "history-size", value_name = "N", value_parser = clap::value_parser!(u32).range(0..=10_000))]
    pub history_size: Option<u32>,

    /// Print errors only [env: REDLOCK_QUIET]
    #[arg(short, long)]
    pub quiet: bool,

    /// Print every state change [env: REDLOCK_VERBOSE]
    #[arg(short, long, conflicts_with = "quiet")]
    pub verbose: bool,
}

impl Common {
    /// Options after the subcommand override those before it.
    pub fn or(self, before: Self) -> Self {
        let says = self.quiet || self.verbose;
        let (quiet, verbose) = if says {
            (self.quiet, self.verbose)
        } else {
            (before.quiet, before.verbose)
        };
        Self {
            url: self.url.or(before.url),
            prefix: self.prefix.or(before.prefix),
            password_file: self.password_file.or(before.password_file),
            tls_ca: self.tls_ca.or(before.tls_ca),
            tls_cert: self.tls_cert.or(before.tls_cert),
            tls_key: self.tls_key.or(before.tls_key),
            connect_timeout: self.connect_timeout.or(before.connect_timeout),
            history_size: self.history_size.or(before.history_size),
            quiet,
            verbose,
        }
    }
}

/// A command with the options that follow its name.
#[derive(Debug)]
pub struct Invocation {
    pub command: Command,
    pub common: Common,
}

/// Defines the commands: their arguments, name, and the first line of their help. The arguments of a
/// command are defined only when it is used, as defining all of them would take a third of a short run;
/// so would clap's global options, which it copies into each command.
macro_rules! commands {
    ($($command:ident $name:literal $about:literal;)*) => {
        #[derive(Debug)]
        pub enum Command {
            $($command(Box<$command>),)*
        }

        impl Subcommand for Invocation {
            fn augment_subcommands(cli: clap::Command) -> clap::Command {
                cli$(.subcommand(clap::Command::new($name).about($about).defer(|command| {
                    Common::augment_args($command::augment_args(command))
                })))*
            }

            fn augment_subcommands_for_update(cli: clap::Command) -> clap::Command {
                Self::augment_subcommands(cli)
            }

            fn has_subcommand(name: &str) -> bool {
                [$($name),*].contains(&name)
            }
        }

        impl FromArgMatches for Invocation {
            fn from_arg_matches(found: &ArgMatches) -> Result<Self, clap::Error> {
                match found.subcommand() {
                    $(Some(($name, found)) => Ok(Self {
                        command: Command::$command(Box::new($command::from_arg_matches(found)?)),
                        common: Common::from_arg_matches(found)?,
                    }),)*
                    _ => Err(clap::Error::new(ErrorKind::MissingSubcommand)),
                }
            }

            fn update_from_arg_matches(&mut self, found: &ArgMatches) -> Result<(), clap::Error> {
                *self = Self::from_arg_matches(found)?;
                Ok(())
            }
        }
    };
}

commands! {
    Run "run" "Run a command while holding a lock";
    Acquire "acquire" "Acquire a lock and return (for scripts)";
    Extend "extend" "Extend a lock held by this job";
    Check "check" "Check that this job still holds a lock";
    Release "release" "Release a lock, or force it free";
    Wait "wait" "Wait until a lock is free, without acquiring it";
    Status "status" "Show who holds which lock, and who waits";
    History "history" "Show who held a lock, for how long, and how it ended";
    Freeze "freeze" "Block new holders; the current one may finish";
    Thaw "thaw" "Undo `redlock freeze`";
    Fence "fence" "Reject stale writes, using a fence file";
}

/// The exit status when a lock stays busy.
pub const BUSY: u8 = 75;

/// How long to wait for a lock.
#[derive(Debug, Args)]
pub struct WaitOptions {
    /// Wait at most this long [default: forever]
    #[arg(short, long, value_name = "DURATION", value_parser = duration, conflicts_with = "no_wait")]
    pub wait: Option<Duration>,

    /// Don't wait: give up at once if the lock is busy
    #[arg(short, long)]
    pub no_wait: bool,

    /// Exit status when the lock stays busy [default: 75]
    #[arg(short = 'E', long, value_name = "STATUS")]
    pub conflict_exit_code: Option<u8>,
}

/// How to acquire a lock.
#[derive(Debug, Args)]
pub struct AcquireOptions {
    /// Lease duration: if the holder dies, its lock expires within this time; at least 1s
    #[arg(long, value_name = "DURATION", default_value = "30s", value_parser = ttl)]
    pub ttl: Duration,

    #[command(flatten)]
    pub wait: WaitOptions,

    /// Shared (reader) lock: any number of shared holders at a time, but no exclusive one
    #[arg(short, long, conflicts_with = "slots")]
    pub shared: bool,

    /// Semaphore: up to N holders at a time [default: 1, exclusive]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=9999))]
    pub slots: Option<u32>,

    /// Queue priority (-1000 to 1000); higher goes first
    #[arg(long, value_name = "N", default_value_t = 0, allow_negative_numbers = true,
        value_parser = clap::value_parser!(i32).range(-1000..=1000))]
    pub priority: i32,

    /// Newest waiter first, within its priority
    #[arg(long)]
    pub lifo: bool,

    /// Make all earlier waiters give up: only the newest is worth running
    #[arg(long)]
    pub supersede: bool,

    /// With --supersede: this run's version (such as a build number); a run older than the newest seen gives up
    #[arg(long, value_name = "N", requires = "supersede", value_parser = clap::value_parser!(u64).range(..=1 << 53))]
    pub order: Option<u64>,

    /// With --supersede: also terminate the run that holds the lock; its status is 79
    #[arg(long, requires = "supersede")]
    pub cancel_running: bool,

    /// If another client's lock has no expiry, set this TTL on it
    #[arg(long)]
    pub repair_ttl: bool,

    /// Reason, shown in `redlock status` and to waiters
    #[arg(long, value_name = "TEXT", value_parser = not_empty)]
    pub reason: Option<String>,
}

/// Run a command while holding a lock
///
/// Acquires the lock NAME, runs COMMAND while the lease is renewed in the background, and releases
/// the lock when COMMAND ends. If the lease can't be renewed, COMMAND is terminated before another
/// client can acquire the lock. The exit status is COMMAND's. With several names, COMMAND runs once all
/// of them are held.
#[derive(Debug, Args)]
#[command(
    override_usage = "redlock run [OPTIONS] NAME... -- COMMAND [ARG]...\n       redlock run [OPTIONS] NAME... -c SCRIPT"
)]
pub struct Run {
    /// Lock name; several are acquired in one global order
    #[arg(value_name = "NAME", required = true)]
    pub names: Vec<String>,

    /// Command to run, and its arguments
    #[arg(value_name = "COMMAND", last = true, required_unless_present = "shell")]
    pub command: Vec<OsString>,

    #[command(flatten)]
    pub acquire: AcquireOptions,

    /// Terminate COMMAND after this long (status 124)
    #[arg(short, long, value_name = "DURATION", value_parser = positive_duration)]
    pub timeout: Option<Duration>,

    /// Time between SIGTERM and SIGKILL when COMMAND is terminated (capped at half the TTL)
    #[arg(short, long, value_name = "DURATION", default_value = "5s", value_parser = duration)]
    pub kill_after: Duration,

    /// What to do when the lock is lost while COMMAND runs
    #[arg(long, value_name = "ACTION", value_enum, default_value_t = OnLost::Stop)]
    pub on_lost: OnLost,

    /// What to do when Redis is unreachable at the start
    #[arg(long, value_name = "ACTION", value_enum, default_value_t = OnUnreachable::Fail)]
    pub on_unreachable: OnUnreachable,

    /// Keep the lock at least this long even if COMMAND ends sooner, so that hosts with skewed clocks don't run the job twice
    #[arg(long, value_name = "DURATION", default_value = "0s", hide_default_value = true, value_parser = duration)]
    pub hold_at_least: Duration,

    /// Skip COMMAND (status 0, or that of -E) if a run of this lock succeeded within this time; at most 30 days
    #[arg(long, value_name = "DURATION", value_parser = remembered)]
    pub once_per: Option<Duration>,

    /// Skip COMMAND (status 0) if `sh -c SCRIPT` succeeds; checked before waiting and again after
    #[arg(long, value_name = "SCRIPT")]
    pub unless: Option<OsString>,

    /// Hold the lock until every process that COMMAND started has ended, not only COMMAND itself
    #[arg(long)]
    pub wait_tree: bool,

    /// If a run is in progress, wait for it and exit with its status
    #[arg(long, conflicts_with_all = ["shared", "slots", "supersede"])]
    pub join: bool,

    /// Sleep a random time first, up to this long
    #[arg(long, value_name = "DURATION", default_value = "0s", hide_default_value = true, value_parser = duration)]
    pub jitter: Duration,

    /// Run `sh -c SCRIPT` instead of COMMAND
    #[arg(short = 'c', long, value_name = "SCRIPT", conflicts_with = "command")]
    pub shell: Option<OsString>,
}

/// What to do when the lock is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum OnLost {
    /// Terminate COMMAND; the exit status is 79
    Stop,
    /// Let COMMAND continue without the lock, with a warning; the exit status is still 79
    Warn,
}

/// What to do when Redis is unreachable at the start.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum OnUnreachable {
    /// Exit with status 69
    Fail,
    /// Run COMMAND without a lock
    Run,
}

/// Wait until a lock is free, without acquiring it
///
/// Exits with status 0 once the lock has no holder; with several names, once none of them has. Another
/// client may acquire it right afterwards: to keep others out, use `redlock run`.
#[derive(Debug, Args)]
pub struct Wait {
    /// Lock name
    #[arg(value_name = "NAME", required = true)]
    pub names: Vec<String>,

    #[command(flatten)]
    pub wait: WaitOptions,
}

/// Show who holds which lock, and who waits
///
/// Without a NAME: all locks with the prefix that a redlock holds or waits for. With names: these locks,
/// including free ones and those that other clients hold.
#[derive(Debug, Args)]
pub struct Status {
    /// Lock names [default: all that are held or waited for]
    #[arg(value_name = "NAME")]
    pub names: Vec<String>,

    /// Print a JSON array with one object per lock
    #[arg(long)]
    pub json: bool,

    /// Print names only, one per line
    #[arg(long, conflicts_with = "json")]
    pub names_only: bool,

    /// Refresh every DURATION until interrupted [default: 1s]
    #[arg(long, value_name = "DURATION", num_args = 0..=1, default_missing_value = "1s")]
    pub watch: Option<String>,
}

/// Acquire a lock and return (for scripts)
///
/// Acquires the lock, prints what later steps need (by default as code for `eval`), and exits. The lock
/// expires after its TTL unless it is extended or released first. With --while-pid, a keeper stays in the
/// background and renews the lock while that process lives.
#[derive(Debug, Args)]
pub struct Acquire {
    /// Lock name
    #[arg(value_name = "NAME")]
    pub name: String,

    #[command(flatten)]
    pub acquire: AcquireOptions,

    /// What to print
    #[arg(long, value_name = "FORMAT", value_enum, default_value_t = Format::Env)]
    pub format: Format,

    /// Keep the lock while this process lives (`$$`: this script), then release it
    #[arg(long, value_name = "PID", value_parser = clap::value_parser!(i32).range(1..))]
    pub while_pid: Option<i32>,

    /// With --while-pid: what to do when the lock is lost
    #[arg(long, value_name = "ACTION", value_enum, default_value_t = KeeperOnLost::Stop, requires = "while_pid")]
    pub on_lost: KeeperOnLost,

    /// With --while-pid: time between SIGTERM and SIGKILL (capped at half the TTL)
    #[arg(short, long, value_name = "DURATION", default_value = "5s", value_parser = duration, requires = "while_pid")]
    pub kill_after: Duration,

    /// With --while-pid: also keep the lock until every process started by it since then has ended
    #[arg(long, requires = "while_pid")]
    pub wait_tree: bool,
}

/// What `redlock acquire` prints.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// Assignments for `eval`; if the lock was not acquired, a line that ends the script
    Env,
    /// A JSON object
    Json,
    /// The token only
    Token,
    /// Lines for $GITHUB_ENV
    Github,
}

/// What a keeper does when the lock is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum KeeperOnLost {
    /// Terminate the process and all its descendants
    Stop,
    /// Send it SIGURG, which it may trap, and ignores by default
    Warn,
}

/// Which of this job's locks a command acts on.
#[derive(Debug, Args)]
pub struct OwnLock {
    /// Lock name [default: $REDLOCK_NAME]
    #[arg(value_name = "NAME")]
    pub name: Option<String>,

    /// File with the token; - for standard input [default: $REDLOCK_TOKEN]
    #[arg(long, value_name = "FILE")]
    pub token_file: Option<PathBuf>,
}

/// Extend a lock held by this job
///
/// Makes the lock last at least DURATION from now; it is never shortened. Fails with status 79 if this
/// job no longer holds the lock.
#[derive(Debug, Args)]
#[command(override_usage = "redlock extend [OPTIONS] [NAME] DURATION")]
pub struct Extend {
    /// Lock name [default: $REDLOCK_NAME], then the duration
    #[arg(value_name = "NAME", required = true, num_args = 1..=2)]
    pub name_and_duration: Vec<String>,

    /// File with the token; - for standard input [default: $REDLOCK_TOKEN]
    #[arg(long, value_name = "FILE")]
    pub token_file: Option<PathBuf>,
}

/// Check that this job still holds a lock
///
/// Use before a critical step: exits 0 if this job holds the lock, and for at least --for longer;
/// otherwise exits 79 and prints why.
#[derive(Debug, Args)]
pub struct Check {
    #[command(flatten)]
    pub ours: OwnLock,

    /// Require that the lock is held for at least this long from now
    #[arg(long = "for", value_name = "DURATION", default_value = "0s", hide_default_value = true, value_parser = duration)]
    pub at_least: Duration,
}

/// Release a lock, or force it free
///
/// With the holder's token, from $REDLOCK_TOKEN or --token-file, the lock is released. Without a token,
/// --force frees the lock regardless of its holder, whose run is notified and ends with status 79.
#[derive(Debug, Args)]
pub struct Release {
    #[command(flatten)]
    pub ours: OwnLock,

    /// Free the lock regardless of its holder
    #[arg(long, conflicts_with = "token_file")]
    pub force: bool,

    /// With --force: only the holder with this id, as shown by `redlock status`
    #[arg(long, value_name = "ID", requires = "force")]
    pub id: Option<String>,
}

/// Show who held a lock, for how long, and how it ended
///
/// Without a NAME: all locks with the prefix. The oldest hold comes first; each lock ends with a summary
/// line.
#[derive(Debug, Args)]
pub struct History {
    /// Lock names [default: all]
    #[arg(value_name = "NAME")]
    pub names: Vec<String>,

    /// Only the last N holds of each lock
    #[arg(short = 'n', long = "last", value_name = "N")]
    pub last: Option<usize>,

    /// Only holds that ended within this time or haven't ended
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub since: Option<Duration>,

    /// Print a JSON array; with --follow, one object per line
    #[arg(long, conflicts_with_all = ["timeline", "svg"])]
    pub json: bool,

    /// Follow: print each hold as it ends
    #[arg(short, long, conflicts_with_all = ["timeline", "svg"])]
    pub follow: bool,

    /// Draw a chart with a row for each host
    #[arg(long)]
    pub timeline: bool,

    /// Write the chart as an SVG image to FILE; - for standard output
    #[arg(long, value_name = "FILE")]
    pub svg: Option<PathBuf>,
}

/// Block new holders; the current one may finish
///
/// Waiters keep waiting and see the reason; runs with --no-wait give up. The freeze lasts until
/// `redlock thaw`, until --for is over, or for 30 days.
#[derive(Debug, Args)]
pub struct Freeze {
    /// Lock name
    #[arg(value_name = "NAME")]
    pub name: String,

    /// Reason, shown to every run that wants the lock
    #[arg(long, value_name = "TEXT", value_parser = not_empty)]
    pub reason: String,

    /// Duration of the freeze; at most 30 days [default: 30 days]
    #[arg(long = "for", value_name = "DURATION", value_parser = remembered)]
    pub lasting: Option<Duration>,
}

/// Undo `redlock freeze`
#[derive(Debug, Args)]
pub struct Thaw {
    /// Lock name
    #[arg(value_name = "NAME")]
    pub name: String,
}

/// Reject stale writes, using a fence file
///
/// FILE contains the largest fence seen so far. Exits 0 if N is not smaller, and FILE then contains N.
/// Exits 1 if N is smaller: a later holder of the lock has written its fence, so this job no longer holds
/// the lock.
#[derive(Debug, Args)]
pub struct Fence {
    /// Fence file; created if missing
    #[arg(value_name = "FILE")]
    pub file: PathBuf,

    /// This job's fence [default: $REDLOCK_FENCE]
    #[arg(value_name = "N")]
    pub number: Option<u64>,
}

/// A longer duration is a mistake, and would overflow the server's arithmetic.
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
        return Err("must be at most a year".into());
    }
    Ok(duration)
}

/// Reads a duration that isn't zero.
pub fn positive_duration(text: &str) -> Result<Duration, String> {
    match duration(text)? {
        Duration::ZERO => Err("must be greater than 0".into()),
        duration => Ok(duration),
    }
}

/// The longest time for which Redis remembers anything on request.
pub const REMEMBERED: Duration = Duration::from_secs(30 * 24 * 3600);

/// Reads a duration for which Redis has to remember something.
fn remembered(text: &str) -> Result<Duration, String> {
    match positive_duration(text)? {
        duration if duration > REMEMBERED => Err("must be at most 30 days".into()),
        duration => Ok(duration),
    }
}

fn not_empty(text: &str) -> Result<String, String> {
    if text.trim().is_empty() {
        return Err("must not be empty".into());
    }
    Ok(text.to_owned())
}

fn ttl(text: &str) -> Result<Duration, String> {
    let ttl = duration(text)?;
    if ttl < Duration::from_secs(1) {
        return Err("must be at least 1s: a shorter lease can't be renewed in time".into());
    }
    Ok(ttl)
}
