//! What a user may type, and nothing else. Help, man pages and completions follow from it.

// The comments here are the help text that users read, not Markdown; fields are called as options.
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
    pub chosen: Option<Chosen>,

    #[command(flatten)]
    pub common: Common,

    /// Print the version; with -v also how it was built
    #[arg(short = 'V', long)]
    pub version: bool,
}

// Options of every command, which may stand before or after its name. No doc comment: clap would take it
// for the description of each command that these options are added to.
#[derive(Debug, Args)]
#[command(next_help_heading = "Options of every command")]
pub struct Common {
    /// Redis server: redis://, rediss:// or unix:// [env: REDLOCK_URL] [default: redis://127.0.0.1:6379]
    #[arg(short, long, value_name = "URL")]
    pub url: Option<String>,

    /// Text before each name to form the key [env: REDLOCK_PREFIX] [default: redlock:]
    #[arg(long, value_name = "TEXT")]
    pub prefix: Option<String>,

    /// File that holds the password [env: REDLOCK_PASSWORD_FILE]
    #[arg(long, value_name = "FILE")]
    pub password_file: Option<PathBuf>,

    /// Trusted certificates (PEM) for rediss:// [env: REDLOCK_TLS_CA] [default: the system's]
    #[arg(long, value_name = "FILE")]
    pub tls_ca: Option<PathBuf>,

    /// Our certificate (PEM) for rediss:// [env: REDLOCK_TLS_CERT]
    #[arg(long, value_name = "FILE")]
    pub tls_cert: Option<PathBuf>,

    /// The key (PEM) of our certificate [env: REDLOCK_TLS_KEY]
    #[arg(long, value_name = "FILE")]
    pub tls_key: Option<PathBuf>,

    /// Longest time to connect, and to wait for an answer [env: REDLOCK_CONNECT_TIMEOUT] [default: 2s]
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub connect_timeout: Option<Duration>,

    /// How many past holders of each lock are kept for `redlock history` [env: REDLOCK_HISTORY] [default: 200]
    #[arg(long = "history-size", value_name = "N", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub history_size: Option<u32>,

    /// Say nothing but errors [env: REDLOCK_QUIET]
    #[arg(short, long)]
    pub quiet: bool,

    /// Say each change of state [env: REDLOCK_VERBOSE]
    #[arg(short, long, conflicts_with = "quiet")]
    pub verbose: bool,
}

impl Common {
    /// What stands after the command's name counts before what stands in front of it.
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

/// A command with what was typed after its name.
#[derive(Debug)]
pub struct Chosen {
    pub command: Command,
    pub common: Common,
}

/// Defines the commands: their arguments, name, and the first line of their help. What a command takes
/// is defined when it is asked for, as all of it would take a third of a short run; so would clap's
/// global options, which it copies into each command.
macro_rules! commands {
    ($($command:ident $name:literal $about:literal;)*) => {
        #[derive(Debug)]
        pub enum Command {
            $($command(Box<$command>),)*
        }

        impl Subcommand for Chosen {
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

        impl FromArgMatches for Chosen {
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
    Acquire "acquire" "Take a lock for a script that goes on";
    Extend "extend" "Hold a lock for longer, from within the work";
    Check "check" "Ask whether a lock is still ours";
    Release "release" "Give a lock back, or (as a person) take it from its holder";
    Wait "wait" "Wait until a lock is free, without taking it";
    Status "status" "Show who holds which lock, and who waits";
    History "history" "Show who held a lock, how long, and how it ended";
    Freeze "freeze" "Let the holder finish, and nobody new in";
    Thaw "thaw" "Let others in again, after `redlock freeze`";
    Fence "fence" "Refuse a late writer, from plain shell";
}

/// The exit status when a lock stays busy.
pub const BUSY: u8 = 75;

/// How long to wait for a lock.
#[derive(Debug, Args)]
pub struct Patience {
    /// Wait at most this long [default: for ever]
    #[arg(short, long, value_name = "DURATION", value_parser = duration, conflicts_with = "no_wait")]
    pub wait: Option<Duration>,

    /// Don't wait: give up at once if the lock is busy
    #[arg(short, long)]
    pub no_wait: bool,

    /// Exit status when the lock stays busy [default: 75]
    #[arg(short = 'E', long, value_name = "STATUS")]
    pub conflict_exit_code: Option<u8>,
}

/// How to take a lock.
#[derive(Debug, Args)]
pub struct Taking {
    /// Lease: how long the lock outlives whoever holds it and dies; at least 1s
    #[arg(long, value_name = "DURATION", default_value = "30s", value_parser = ttl)]
    pub ttl: Duration,

    #[command(flatten)]
    pub patience: Patience,

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

    /// With --supersede: what counts as newer (a build number, a commit count); one with a smaller N that comes late gives up
    #[arg(long, value_name = "N", requires = "supersede", value_parser = clap::value_parser!(u64).range(..=1 << 53))]
    pub order: Option<u64>,

    /// With --supersede: also stop the run that holds the lock; it ends with status 79
    #[arg(long, requires = "supersede")]
    pub cancel_running: bool,

    /// Give a lock that another client has left without an expiry this TTL
    #[arg(long)]
    pub repair_ttl: bool,

    /// Why, shown to others by `redlock status`
    #[arg(long, value_name = "TEXT")]
    pub reason: Option<String>,
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

    #[command(flatten)]
    pub taking: Taking,

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

    /// Keep the lock at least this long, also when COMMAND ends sooner: hosts whose clocks differ start the same job twice
    #[arg(long, value_name = "DURATION", default_value = "0s", hide_default_value = true, value_parser = duration)]
    pub hold_at_least: Duration,

    /// Skip COMMAND (status 0, or that of -E) if a run of this lock has succeeded within this time; at most 30 days
    #[arg(long, value_name = "DURATION", value_parser = remembered)]
    pub once_per: Option<Duration>,

    /// Skip COMMAND (status 0) if `sh -c SCRIPT` succeeds; asked before waiting, and again after having waited
    #[arg(long, value_name = "SCRIPT")]
    pub unless: Option<OsString>,

    /// Hold the lock until all that COMMAND has started has ended, and not COMMAND alone
    #[arg(long)]
    pub wait_tree: bool,

    /// If it runs already, wait for that run and end with its status
    #[arg(long, conflicts_with_all = ["shared", "slots", "supersede"])]
    pub join: bool,

    /// Wait a random time before all else, at most this long
    #[arg(long, value_name = "DURATION", default_value = "0s", hide_default_value = true, value_parser = duration)]
    pub jitter: Duration,

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

    #[command(flatten)]
    pub patience: Patience,
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

/// Take a lock for a script that goes on
///
/// Takes the lock, prints what later steps need (for `eval`, by default), and ends. The lock ends
/// after its TTL, unless it is extended or released before. With --while-pid a keeper stays behind
/// that renews it for as long as that process lives.
#[derive(Debug, Args)]
pub struct Acquire {
    /// The lock's name
    #[arg(value_name = "NAME")]
    pub name: String,

    #[command(flatten)]
    pub taking: Taking,

    /// What to print
    #[arg(long, value_name = "FORMAT", value_enum, default_value_t = Format::Env)]
    pub format: Format,

    /// Keep the lock for as long as this process lives (`$$`: this script), then release it
    #[arg(long, value_name = "PID", value_parser = clap::value_parser!(i32).range(1..))]
    pub while_pid: Option<i32>,

    /// With --while-pid: what to do when the lock is lost
    #[arg(long, value_name = "ACTION", value_enum, default_value_t = OnLoss::Stop, requires = "while_pid")]
    pub on_lost: OnLoss,

    /// With --while-pid: time between SIGTERM and SIGKILL; at most half the TTL counts
    #[arg(short, long, value_name = "DURATION", default_value = "5s", value_parser = duration, requires = "while_pid")]
    pub kill_after: Duration,

    /// With --while-pid: keep the lock until all that the process has started since then has ended, too
    #[arg(long, requires = "while_pid")]
    pub wait_tree: bool,
}

/// What `redlock acquire` prints.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// Assignments for `eval`; when the lock isn't ours, a line that ends the script
    Env,
    /// An object
    Json,
    /// The token alone
    Token,
    /// Lines for $GITHUB_ENV
    Github,
}

/// What a keeper does when the lock is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum OnLoss {
    /// Stop the process and all that came from it, before anybody else can get the lock
    Stop,
    /// Send it a SIGURG, which it may trap and by default ignores
    Warn,
}

/// Which lock of this job, for those that act on one.
#[derive(Debug, Args)]
pub struct Ours {
    /// The lock's name [default: $REDLOCK_NAME]
    #[arg(value_name = "NAME")]
    pub name: Option<String>,

    /// File that holds the token; - for standard input [default: $REDLOCK_TOKEN]
    #[arg(long, value_name = "FILE")]
    pub token_file: Option<PathBuf>,
}

/// Hold a lock for longer, from within the work
///
/// Makes the lock last at least DURATION more from now; it never makes it shorter. Refused with
/// status 79 when the lock is not ours any more.
#[derive(Debug, Args)]
#[command(override_usage = "redlock extend [OPTIONS] [NAME] DURATION")]
pub struct Extend {
    /// The lock's name [default: $REDLOCK_NAME], then how long
    #[arg(value_name = "NAME", required = true, num_args = 1..=2)]
    pub name_and_duration: Vec<String>,

    /// File that holds the token; - for standard input [default: $REDLOCK_TOKEN]
    #[arg(long, value_name = "FILE")]
    pub token_file: Option<PathBuf>,
}

/// Ask whether a lock is still ours
///
/// To put before the dangerous line: status 0 when this job holds the lock, and for at least --for
/// more; else 79, and a line says why.
#[derive(Debug, Args)]
pub struct Check {
    #[command(flatten)]
    pub ours: Ours,

    /// For at least this long from now
    #[arg(long = "for", value_name = "DURATION", default_value = "0s", hide_default_value = true, value_parser = duration)]
    pub at_least: Duration,
}

/// Give a lock back, or (as a person) take it from its holder
///
/// With the token of the holder in $REDLOCK_TOKEN or --token-file the lock is given back. Without
/// one, --force frees it whoever holds it: the holder's run is told, and ends with status 79.
#[derive(Debug, Args)]
pub struct Release {
    #[command(flatten)]
    pub ours: Ours,

    /// Free the lock whoever holds it
    #[arg(long, conflicts_with = "token_file")]
    pub force: bool,

    /// With --force: only if the holder is the one that `redlock status` shows by this id
    #[arg(long, value_name = "ID", requires = "force")]
    pub id: Option<String>,
}

/// Show who held a lock, how long, and how it ended
///
/// Without a NAME: all locks below the prefix. The oldest comes first; a line for each lock sums up.
#[derive(Debug, Args)]
pub struct History {
    /// Names of locks [default: all]
    #[arg(value_name = "NAME")]
    pub names: Vec<String>,

    /// Only the last N of each lock
    #[arg(short = 'n', long = "last", value_name = "N")]
    pub last: Option<usize>,

    /// Only those that ended within this time, or haven't ended
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub since: Option<Duration>,

    /// Print a JSON array; with --follow an object a line
    #[arg(long, conflicts_with_all = ["timeline", "svg"])]
    pub json: bool,

    /// Go on: show each hold when it ends
    #[arg(short, long, conflicts_with_all = ["timeline", "svg"])]
    pub follow: bool,

    /// Draw a chart: a row for each host
    #[arg(long)]
    pub timeline: bool,

    /// Write the chart as a picture to a file; - for standard output
    #[arg(long, value_name = "FILE")]
    pub svg: Option<PathBuf>,
}

/// Let the holder finish, and nobody new in
///
/// Who waits goes on waiting, and is shown the reason; who doesn't want to wait gives up. Ends with
/// `redlock thaw`, after --for, or after 30 days.
#[derive(Debug, Args)]
pub struct Freeze {
    /// The lock's name
    #[arg(value_name = "NAME")]
    pub name: String,

    /// Why, shown to all who want the lock
    #[arg(long, value_name = "TEXT")]
    pub reason: String,

    /// How long; at most 30 days [default: 30 days]
    #[arg(long = "for", value_name = "DURATION", value_parser = remembered)]
    pub lasting: Option<Duration>,
}

/// Let others in again, after `redlock freeze`
#[derive(Debug, Args)]
pub struct Thaw {
    /// The lock's name
    #[arg(value_name = "NAME")]
    pub name: String,
}

/// Refuse a late writer, from plain shell
///
/// FILE keeps the largest number that was seen. Status 0 when N is not smaller, and FILE then holds
/// N; status 1 when it is: a later holder of the lock has been here, so the lock is ours no more.
#[derive(Debug, Args)]
pub struct Fence {
    /// File that keeps the number; made if it isn't there
    #[arg(value_name = "FILE")]
    pub file: PathBuf,

    /// Our number [default: $REDLOCK_FENCE]
    #[arg(value_name = "N")]
    pub number: Option<u64>,
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

/// What Redis remembers at most.
pub const REMEMBERED: Duration = Duration::from_secs(30 * 24 * 3600);

/// Reads a duration for which something is to be remembered.
fn remembered(text: &str) -> Result<Duration, String> {
    match positive_duration(text)? {
        duration if duration > REMEMBERED => Err("at most 30 days".into()),
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
