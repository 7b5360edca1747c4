//! The definition of the command line. This module imports nothing of this crate, because the tests that compare it with
//! the manual and the completions include only this module. Help and man pages are generated from it. `values` parses
//! the values of options.

// The doc comments are help texts, not Markdown. The fields have the names of their options.
#![allow(clippy::doc_markdown, rustdoc::bare_urls)]
#![allow(clippy::struct_excessive_bools, clippy::struct_field_names)]

mod values;

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::error::ErrorKind;
use clap::{ArgMatches, Args, FromArgMatches, ValueEnum};

pub use self::values::{LONGEST, REMEMBERED, duration, not_empty, number, positive_duration, ttl};
use self::values::{id, last, once_key, remembered, script, wait_duration};

/// Short help of redlock itself, for one screen.
pub const SHORT_HELP: &str = "\
Run a command under a lock that all your hosts share.

Usage: redlock COMMAND [OPTIONS] [NAME]...

Run
  run        Run a command while holding a lock
  guard      Run part of that command on another host or in a container

See and step in
  status     Show who holds a lock, who waits, and what happened recently
  history    Show past runs: who, how long, how they ended
  stop       Stop the holder's command, then pass the lock on
  freeze     Let the current run finish, then let nobody in
  thaw       Undo freeze
  doctor     Check that this Redis and this host are fit to hold locks

In scripts
  acquire    Take a lock and keep it while the script runs
  extend     Check that this job still holds its lock, and extend it
  release    Give a lock back; with --force, take it from its holder
  fence      Refuse a write that comes too late

Try it:  redlock -u local: run hello -- redlock -u local: status
Options: -u URL, -q, -v and -h in each command; settings: redlock help redlock
More:    redlock help [COMMAND | recipes | servers | signals | protocol]
";

/// Run a command under a lock that all your hosts share
#[derive(Debug, Args)]
#[command(
    disable_version_flag = true,
    disable_help_subcommand = true,
    subcommand_value_name = "SUBCOMMAND",
    subcommand_help_heading = "Subcommands",
    after_long_help = "\
Start here:
  redlock run deploy -- ./deploy.sh        wait for the lock, run, release
  redlock run -n nightly -- ./backup.sh    skip it if it runs elsewhere
  redlock status                           who holds what

Settings are also read from REDLOCK_… variables, ~/.config/redlock.env and
/etc/redlock.env.
More: redlock help [COMMAND | recipes | servers | signals | protocol]",
    max_term_width = 80
)]
pub struct Cli {
    #[arg(skip)]
    pub command: Option<Command>,

    #[command(flatten)]
    pub common: Common,

    /// Print the version; with -v, build details
    #[arg(short = 'V', long)]
    pub version: bool,
}

// Options of every command, accepted before and after its name. No doc comment, because clap would use it as the
// description of each command with these options.
#[derive(Debug, Default, Args)]
pub struct Common {
    /// Redis server [env: REDLOCK_URL]
    ///
    /// redis://, rediss://, unix://, redis-sentinel://, redis-cluster://, or local: for this host alone [default: redis://127.0.0.1:6379]
    #[arg(short, long, value_name = "URL", help_heading = COMMON)]
    pub url: Option<String>,

    /// Print errors only [env: REDLOCK_QUIET]
    #[arg(short, long, help_heading = COMMON)]
    pub quiet: bool,

    /// Print every state change [env: REDLOCK_VERBOSE]
    #[arg(short, long, conflicts_with = "quiet", help_heading = COMMON)]
    pub verbose: bool,
}

/// Heading of the options that every command has.
pub const COMMON: &str = "In every command";

/// Returns the command line for help and man pages: with all options in each command. The headings appear in the order
/// of their first options.
pub fn documented() -> clap::Command {
    let mut all = command();
    all.build();
    all.mut_subcommands(|command| {
        let command = command.max_term_width(80);
        command.mut_args(|argument| match argument.get_long() {
            Some("help") => argument.help_heading(COMMON),
            _ => argument,
        })
    })
}

/// Defines the commands: their arguments, name, and the first line of their help. A command's arguments are
/// defined only if it is used, because defining all of them would take a third of a short run. clap's global
/// options would take as long, because clap copies them into each command.
macro_rules! commands {
    ($($command:ident $name:literal $(| $alias:literal)* $($hide:ident)? $about:literal;)*) => {
        #[derive(Debug)]
        pub enum Command {
            $($command(Box<$command>),)*
        }

        /// Defines the command line.
        pub fn command() -> clap::Command {
            Cli::augment_args(clap::Command::new("redlock"))
                $(.subcommand(clap::Command::new($name).about($about)$(.alias($alias))*$(.$hide(true))?.defer(|command| {
                    Common::augment_args($command::augment_args(command))
                })))*
        }

        fn command_of(name: &str, matches: &mut ArgMatches) -> Result<Command, clap::Error> {
            match name {
                $($name => Ok(Command::$command(Box::new($command::from_arg_matches_mut(matches)?))),)*
                _ => Err(clap::Error::new(ErrorKind::InvalidSubcommand)),
            }
        }
    };
}

/// Converts a command line that clap has matched.
pub fn read(mut matches: ArgMatches) -> Result<Cli, clap::Error> {
    let command = matches.remove_subcommand();
    let mut cli = Cli::from_arg_matches_mut(&mut matches)?;
    if let Some((name, mut matches)) = command {
        check_names(&matches)?;
        cli.command = Some(command_of(&name, &mut matches)?);
        // Options after the command override those before it.
        let after = Common::from_arg_matches_mut(&mut matches)?;
        cli.common.url = after.url.or(cli.common.url);
        if after.quiet || after.verbose {
            (cli.common.quiet, cli.common.verbose) = (after.quiet, after.verbose);
        }
    }
    Ok(cli)
}

/// Refuses a NAME that the user probably meant as something else. Examples are the rest of a TIME that the shell has split,
/// an argument after the script of -c, and a shell before its own -c.
fn check_names(matches: &ArgMatches) -> Result<(), clap::Error> {
    let Ok(Some(names)) = matches.try_get_many::<String>("names") else {
        return Ok(());
    };
    let places = matches.indices_of("names").into_iter().flatten();
    let names: Vec<(&str, usize)> = names.map(String::as_str).zip(places).collect();
    let is_time = |id: &&str| matches!(matches.try_get_one::<Duration>(id), Ok(Some(_)));
    let times = matches.ids().map(clap::Id::as_str).filter(is_time);
    let times: Vec<usize> = times.filter_map(|id| matches.index_of(id)).collect();
    let is_rest = |(name, place): &(&str, usize)| {
        let ends_in_unit = !name.ends_with(|c: char| c.is_ascii_digit());
        ends_in_unit && duration(&format!("1{name}")).is_ok() && times.contains(&(place - 1))
    };
    let script = matches.ids().find(|id| *id == "shell");
    let script = script.and_then(|_| matches.index_of("shell"));
    let line = match script {
        // A single NAME may look like a unit.
        _ if names.len() > 1 && names.iter().any(is_rest) => {
            "a TIME is one word, such as 1h30m; the word after it can't be a NAME, because it looks like the rest of the TIME"
        }
        Some(script) if names[0].1 < script && names[names.len() - 1].1 > script => {
            "a lock NAME stands after -c SCRIPT; put names before -c; a script with arguments is: redlock run NAME -- sh -c SCRIPT sh ARG"
        }
        Some(_) if names.iter().any(|(name, _)| is_shell(OsStr::new(name))) => {
            "a shell is no lock NAME before its -c; put -- before the command"
        }
        _ => return Ok(()),
    };
    Err(clap::Error::raw(ErrorKind::TooFewValues, line))
}

/// Shells with an option `-c` of their own.
const SHELLS: [&str; 8] = ["sh", "bash", "dash", "ash", "zsh", "ksh", "mksh", "fish"];

pub fn is_shell(word: &OsStr) -> bool {
    let program = Path::new(word).file_name().and_then(OsStr::to_str);
    program.is_some_and(|program| SHELLS.contains(&program))
}

commands! {
    Run "run" "Run a command while holding a lock";
    Guard "guard" "Run a command elsewhere under a lock of this job";
    Acquire "acquire" "Acquire a lock and return (for scripts)";
    Extend "extend" "Check that this job still holds its lock, and extend it";
    Release "release" | "unlock" "Release a lock, or force it free";
    Stop "stop" "Stop the holder's command and hand its lock over";
    Status "status" | "ls" | "ps" "Show who holds which lock, and who waits";
    History "history" "Show who held a lock, for how long, and how it ended";
    Freeze "freeze" "Block new holders; the current one may finish";
    Thaw "thaw" "Undo `redlock freeze`";
    Fence "fence" "Reject stale writes, using a fence file";
    Doctor "doctor" "Check that this Redis is fit to hold locks";
    Help "help" "Show a page of the manual";
    Completions "completions" hide "Print the completions for a shell";
}

/// End of the long help of commands that depend on settings.
const SETTINGS: &str = "Settings of this host, such as REDLOCK_SYNC: see SETTINGS in redlock(1).";

/// Default exit status if a lock stays busy.
pub const BUSY: u8 = 75;

/// Options for acquiring a lock.
#[derive(Debug, Default, Args)]
pub struct AcquireOptions {
    /// Wait at most this long [default: forever]
    ///
    /// 0 is the same as --no-wait; `forever` overrides a shorter setting.
    #[arg(short, long, value_name = "TIME", allow_negative_numbers = true, value_parser = wait_duration, conflicts_with = "no_wait", help_heading = "Waiting")]
    pub wait: Option<Duration>,

    /// Don't wait: give up at once if the lock is busy
    #[arg(short, long, aliases = ["nonblock", "nb"], help_heading = "Waiting")]
    pub no_wait: bool,

    /// Status when the lock stays busy [default: 75]
    #[arg(short = 'E', long, value_name = "N", allow_negative_numbers = true, value_parser = number(0_u8, 255), help_heading = "Waiting")]
    pub conflict_exit_code: Option<u8>,

    /// Don't wait behind N others
    ///
    /// The run then gives up as if the lock had stayed busy. With --max-queue 1 -E 0, the run that waits covers this one,
    /// unless it gives up itself.
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = number(1_u32, 100), help_heading = "Waiting")]
    pub max_queue: Option<u32>,

    /// Run although the lock is frozen
    ///
    /// The run goes ahead of all that the freeze keeps out, and waits only for the holder.
    #[arg(long, help_heading = "Waiting")]
    pub ignore_freeze: bool,

    /// Tell waiters why
    ///
    /// `redlock status` shows the reason, too. [env: REDLOCK_REASON]
    #[arg(short = 'm', long, value_name = "TEXT", value_parser = not_empty, help_heading = "Waiting")]
    pub reason: Option<String>,

    /// Take a shared (read) lock
    ///
    /// A lock has any number of shared holders at a time, or one exclusive holder.
    #[arg(short, long, conflicts_with = "slots", help_heading = "Sharing")]
    pub shared: bool,

    /// Semaphore: up to N holders at a time
    ///
    /// N is a number from 1 to 9999; 1 is an exclusive lock.
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = number(1_u32, 9999), help_heading = "Sharing")]
    pub slots: Option<u32>,

    /// Make all earlier waiters give up
    ///
    /// For jobs of which only the newest is worth running.
    #[arg(long, help_heading = "Only the newest")]
    pub supersede: bool,

    /// This run's build number: lower ones give up
    ///
    /// N grows from run to run. A run gives up if a run with a larger N has been seen. Implies --supersede.
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = number(0_u64, 1 << 53), help_heading = "Only the newest")]
    pub seq: Option<u64>,

    /// Stop the running one, too
    ///
    /// The status of the run that is stopped is 79. Implies --supersede.
    #[arg(long, help_heading = "Only the newest")]
    pub cancel_in_progress: bool,

    /// Free the lock this long after a crash [default: 30s]
    ///
    /// The lock of a dead holder is free after this time. redlock run renews the lease in the background. For a script,
    /// redlock acquire --while-pid starts a process that renews it. At least 1s. [env: REDLOCK_TTL]
    #[arg(long, value_name = "TIME", allow_negative_numbers = true, value_parser = ttl, help_heading = "Lease and failures")]
    pub ttl: Option<Duration>,
}

/// Run a command while holding a lock
///
/// Acquires the lock NAME, runs COMMAND while the lease is renewed in the background, and releases
/// the lock when COMMAND ends. If the lease can't be renewed, COMMAND is stopped before another
/// client can acquire the lock. The exit status is COMMAND's. With several names, COMMAND runs once all
/// of them are held.
#[derive(Debug, Default, Args)]
#[command(
    override_usage = "redlock run [OPTIONS] NAME... -- COMMAND [ARG]...\n       redlock run [OPTIONS] NAME... -c SCRIPT",
    after_long_help = "\
NAME has 1 to 200 bytes of UTF-8 without white space, control characters, *, ? or unbalanced braces. It must not begin
with -.
TIME is 500ms, 30s, 5m, 1h30m or 2d; a number without a unit counts seconds: 10, 0.5.

Examples:
  redlock run deploy -- ./deploy.sh             wait for the lock, run, release
  redlock run -w 10m -E 0 nightly -- ./backup   skip it after 10 minutes
  redlock run --slots 3 -t 1h report -c 'make report >report.log'

Exit status: COMMAND's own, 128+N if signal N killed it, or
  64   wrong usage
  69   Redis is unreachable or not ready, or too few replicas have the lock
  75   the lock stayed busy (-E changes it)
  77   Redis denied access
  78   bad configuration
  79   the lock was lost, or the run was stopped by a person or a newer run
  124  --max-runtime stopped COMMAND
  125  redlock itself failed
  126  COMMAND can't be executed
  127  COMMAND was not found

Settings: REDLOCK_… in the environment, ~/.config/redlock.env or /etc/redlock.env. Each option marked [env: …] can be set
there, too; all others, such as REDLOCK_SYNC, only there: see SETTINGS in redlock(1)."
)]
pub struct Run {
    /// Lock name; several are always locked in the same order
    #[arg(value_name = "NAME", required = true)]
    pub names: Vec<String>,

    /// Command to run, and its arguments
    #[arg(value_name = "COMMAND", last = true, required_unless_present = "shell")]
    pub command: Vec<OsString>,

    #[command(flatten)]
    pub acquire: AcquireOptions,

    /// Run without a lock if Redis is down [default: fail]
    ///
    /// Fail, or run without a lock, if Redis is unreachable at the start. [env: REDLOCK_ON_UNREACHABLE]
    #[arg(
        long,
        value_name = "fail|run",
        value_enum,
        help_heading = "Lease and failures"
    )]
    pub on_unreachable: Option<OnUnreachable>,

    /// Keep the lock at least this long
    ///
    /// The lock is kept even if COMMAND ends sooner, so that hosts with skewed clocks don't run the job twice.
    #[arg(long, value_name = "TIME", allow_negative_numbers = true, default_value = "0s", hide_default_value = true, value_parser = duration, help_heading = "Run once across hosts")]
    pub hold_at_least: Duration,

    /// Skip if a run with this KEY succeeded
    ///
    /// KEY is what makes two runs the same job, such as a date or a commit. COMMAND is skipped if a run of this lock has
    /// succeeded with the same KEY; the status is then 0, or the one that -E sets. The last 100 keys of a lock count.
    #[arg(long, value_name = "KEY", value_parser = once_key, conflicts_with = "once_per", help_heading = "Run once across hosts")]
    pub once: Option<String>,

    /// Skip if a run succeeded within this time
    ///
    /// COMMAND is skipped if a run of this lock succeeded within this time; the status is then 0, or the one that -E sets. At
    /// most 30d.
    #[arg(long, value_name = "TIME", allow_negative_numbers = true, value_parser = remembered, help_heading = "Run once across hosts")]
    pub once_per: Option<Duration>,

    /// Stop COMMAND after this long (status 124)
    ///
    /// 0: never. (flock's --timeout is --wait here: it limits the wait for the lock.) [env: REDLOCK_MAX_RUNTIME]
    #[arg(short = 't', long, value_name = "TIME", allow_negative_numbers = true, value_parser = duration, help_heading = "The command")]
    pub max_runtime: Option<Duration>,

    /// Time between SIGTERM and SIGKILL [default: 5s]
    ///
    /// COMMAND has this long to end when it is stopped, for whatever reason. Capped at half the TTL. [env: REDLOCK_KILL_AFTER]
    #[arg(short, long, value_name = "TIME", allow_negative_numbers = true, value_parser = duration, help_heading = "The command")]
    pub kill_after: Option<Duration>,

    /// Keep the lock until background processes exit
    ///
    /// The lock is held until every process that COMMAND started has ended, not only COMMAND itself.
    #[arg(long, help_heading = "The command")]
    pub with_children: bool,

    /// Run `sh -c SCRIPT` instead of COMMAND
    #[arg(
        short = 'c',
        long,
        value_name = "SCRIPT",
        value_parser = script(),
        conflicts_with = "command",
        help_heading = "The command"
    )]
    pub shell: Option<OsString>,
}

/// Action if Redis is unreachable at the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum OnUnreachable {
    /// Exit with status 69
    #[default]
    Fail,
    /// Run COMMAND without a lock
    Run,
}

/// Run a command elsewhere under a lock of this job
///
/// For work over ssh or in a container, which the run itself can't stop. When the lock is lost or the run is over, COMMAND
/// is stopped; it is dead before the lease ends. The lock is handed over after that. A guard acquires and renews no lock:
/// if there is no lock to guard, it starts nothing, and the status is 79.
///
/// A guard finds the lock in $REDLOCK_HELD (`docker run -e REDLOCK_HELD …`), or reads the value of that variable from a file
/// or a pipe: `echo "$REDLOCK_HELD" | ssh web-1 redlock guard --held - -- ./switch.sh`.
#[derive(Debug, Args)]
#[command(after_long_help = SETTINGS)]
pub struct Guard {
    /// Lock name [default: all that $REDLOCK_HELD names]
    #[arg(value_name = "NAME")]
    pub names: Vec<String>,

    /// Command to run, and its arguments
    #[arg(value_name = "COMMAND", last = true, required_unless_present = "shell")]
    pub command: Vec<OsString>,

    /// File with the job's REDLOCK_HELD [default: $REDLOCK_HELD]
    ///
    /// With - it is the first line of standard input; COMMAND reads the rest.
    #[arg(long, value_name = "FILE")]
    pub held: Option<PathBuf>,

    /// Stop COMMAND after this long (status 124) [env: REDLOCK_MAX_RUNTIME]
    #[arg(short = 't', long, value_name = "TIME", allow_negative_numbers = true, value_parser = duration)]
    pub max_runtime: Option<Duration>,

    /// Time between SIGTERM and SIGKILL [default: 5s]
    ///
    /// COMMAND has this long to end when it is stopped, for whatever reason. Capped at half the TTL. [env: REDLOCK_KILL_AFTER]
    #[arg(short, long, value_name = "TIME", allow_negative_numbers = true, value_parser = duration)]
    pub kill_after: Option<Duration>,

    /// Guard until all processes of COMMAND end
    #[arg(long)]
    pub with_children: bool,

    /// Run `sh -c SCRIPT` instead of COMMAND
    #[arg(short = 'c', long, value_name = "SCRIPT", value_parser = script(), conflicts_with = "command")]
    pub shell: Option<OsString>,
}

/// Show who holds which lock, and who waits
///
/// Without a NAME: a table of all locks under REDLOCK_PREFIX that redlock processes hold or wait for. With names: all
/// that is known of these locks, also if they are free or other clients hold them. With a pattern
/// ('deploy-*', in quotes): a table of the locks in use that match.
#[derive(Debug, Args)]
pub struct Status {
    /// Lock names, or patterns in quotes: * is any text, ? one character [default: all that are held or waited for]
    #[arg(value_name = "NAME")]
    pub names: Vec<String>,

    /// Print a JSON array with one object per lock
    #[arg(long)]
    pub json: bool,

    /// Print names only, one per line (for completions)
    #[arg(long, conflicts_with = "json", hide = true)]
    pub names_only: bool,

    /// Clear the terminal and show it again every TIME, until Ctrl-C [default: 1s]
    #[arg(long, value_name = "TIME", num_args = 0..=1, require_equals = true, default_missing_value = "1s", value_parser = positive_duration)]
    pub watch: Option<Duration>,

    /// Show only locks that are held, or waited for, for longer than TIME
    ///
    /// Exits with 1 if there are any, else with 0.
    #[arg(long, value_name = "TIME", allow_negative_numbers = true, value_parser = duration, conflicts_with = "watch")]
    pub older_than: Option<Duration>,

    /// Print the NAMEs that have had no success for TIME, or ever
    ///
    /// Exits with 1 if there are any, else with 0.
    #[arg(long, value_name = "TIME", allow_negative_numbers = true, value_parser = positive_duration, requires = "names", conflicts_with_all = ["json", "names_only", "watch", "older_than"])]
    pub no_success_for: Option<Duration>,

    /// Write metrics for Prometheus to FILE; - for standard output
    ///
    /// The metrics are about all locks that are in use or have a history, or about those that are named. node_exporter's textfile
    /// collector reads FILE if its name ends in .prom. FILE is replaced as a whole. If Redis doesn't answer, it only says so.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["json", "names_only", "watch", "older_than", "no_success_for"], hide_short_help = true)]
    pub prometheus: Option<PathBuf>,
}

/// Acquire a lock and return (for scripts)
///
/// Acquires the lock, prints what later steps need (by default as code for `eval`), and exits. The lock
/// expires after its TTL unless it is extended or released first. With --while-pid PID, a keeper in the
/// background renews the lock for as long as process PID lives.
#[derive(Debug, Args)]
#[command(after_long_help = SETTINGS)]
pub struct Acquire {
    /// Lock name
    #[arg(value_name = "NAME")]
    pub name: String,

    #[command(flatten)]
    pub acquire: AcquireOptions,

    /// Output format [default: env]
    #[arg(long, value_name = "FORMAT", value_enum, default_value_t = Format::Env, hide_default_value = true, help_heading = "Script")]
    pub format: Format,

    /// Keep the lock while this process lives (`$$`: this script), then release it
    #[arg(long, value_name = "PID", value_parser = number(1, i32::MAX), help_heading = "Script")]
    pub while_pid: Option<i32>,

    /// With --while-pid: time between SIGTERM and SIGKILL (capped at half the TTL) [env: REDLOCK_KILL_AFTER] [default: 5s]
    #[arg(short, long, value_name = "TIME", allow_negative_numbers = true, value_parser = duration, requires = "while_pid", help_heading = "Script")]
    pub kill_after: Option<Duration>,

    /// With --while-pid: also keep the lock until all processes that PID has started under the lock have ended
    #[arg(long, requires = "while_pid", help_heading = "Script")]
    pub with_children: bool,
}

/// Output format of `redlock acquire`.
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

/// A lock of this job on which a command acts.
#[derive(Debug, Args)]
pub struct OwnLock {
    /// Lock name [default: $REDLOCK_NAME]
    #[arg(value_name = "NAME")]
    pub name: Option<String>,

    /// File with the token; - for standard input [default: $REDLOCK_TOKEN]
    #[arg(long, value_name = "FILE")]
    pub token_file: Option<PathBuf>,
}

/// Check that this job still holds its lock, and extend it
///
/// Fails with status 79 if this job no longer holds the lock. With --for, the lock lasts at least TIME from now; it is
/// never shortened. Without --for, nothing is changed.
#[derive(Debug, Args)]
#[command(after_long_help = SETTINGS)]
pub struct Extend {
    #[command(flatten)]
    pub ours: OwnLock,

    /// Make the lock last at least this long from now
    #[arg(long = "for", value_name = "TIME", allow_negative_numbers = true, value_parser = positive_duration)]
    pub lasting: Option<Duration>,
}

/// Release a lock, or force it free
///
/// Releases the lock with the holder's token, from $REDLOCK_TOKEN or --token-file. Without a token,
/// --force frees the lock regardless of its holder. The holder's run is notified, and ends with status 79. To
/// stop the holder's command before its lock is handed over, use `redlock stop`.
#[derive(Debug, Args)]
pub struct Release {
    #[command(flatten)]
    pub ours: OwnLock,

    /// Free the lock regardless of its holder
    #[arg(long, conflicts_with = "token_file")]
    pub force: bool,

    /// With --force: free only the hold with this id of `redlock status` (4 or more of its first characters are enough), or remove the waiter with this id from the queue
    #[arg(long, value_name = "ID", requires = "force", value_parser = id)]
    pub id: Option<String>,

    /// With --force: take the lock from all holders, if there are several
    #[arg(long, requires = "force", conflicts_with = "id")]
    pub all: bool,

    /// With --force: don't ask for confirmation on a terminal
    #[arg(short, long, requires = "force")]
    pub yes: bool,

    /// With --force: reason, shown to the run that loses the lock or its place in the queue
    #[arg(short = 'm', long, value_name = "TEXT", requires = "force", value_parser = not_empty)]
    pub reason: Option<String>,
}

/// Stop the holder's command and hand its lock over
///
/// The holder's command gets SIGTERM, and SIGKILL after its --kill-after; its run exits with 79 and
/// prints who stopped it. The lock is handed over once the command is dead, and redlock waits until then.
///
/// If the holder's lease should have been renewed by now, its run may be suspended, dead or cut off. `redlock stop` then
/// says how late the renewal is, and prints the line that frees the lock.
#[derive(Debug, Args)]
pub struct Stop {
    /// Lock name
    #[arg(value_name = "NAME")]
    pub name: String,

    /// Stop only the holder with this id of `redlock status`; its first 4 characters are enough if they are unique
    #[arg(long, value_name = "ID", conflicts_with = "all", value_parser = id)]
    pub id: Option<String>,

    /// Stop all holders, if there are several
    #[arg(long)]
    pub all: bool,

    /// Reason, shown to the run that is stopped
    #[arg(short = 'm', long, value_name = "TEXT", value_parser = not_empty)]
    pub reason: Option<String>,

    /// Don't wait until the lock is handed over
    #[arg(short, long)]
    pub no_wait: bool,
}

/// Show who held a lock, for how long, and how it ended
///
/// Without a NAME: all locks under REDLOCK_PREFIX. The oldest hold comes first. Times are local, with the zone.
#[derive(Debug, Args)]
pub struct History {
    /// Lock names, or patterns: * is any text, ? one character [default: all]
    #[arg(value_name = "NAME")]
    pub names: Vec<String>,

    /// Show only the last N, or all [default: 20]
    ///
    /// --json and --svg show all unless N is given.
    #[arg(short = 'n', long = "last", value_name = "N", allow_negative_numbers = true, value_parser = last)]
    pub last: Option<usize>,

    /// Show only the holds that ended within this time or haven't ended
    #[arg(long, value_name = "TIME", allow_negative_numbers = true, value_parser = duration)]
    pub since: Option<Duration>,

    /// Also show the runs that ended without the lock: skipped, gave up, superseded
    #[arg(long)]
    pub skipped: bool,

    /// Print a JSON array
    #[arg(long, conflicts_with = "svg")]
    pub json: bool,

    /// Draw a chart with a row for each host to FILE.svg; - for standard output
    #[arg(long, value_name = "FILE")]
    pub svg: Option<PathBuf>,

    /// Print only the names of the locks that are in use or have a history (for completions)
    #[arg(long, conflicts_with_all = ["json", "svg"], hide = true)]
    pub names_only: bool,
}

/// Block new holders; the current one may finish
///
/// Waiters keep waiting and see the reason; runs with --no-wait give up. The freeze lasts until
/// `redlock thaw`, until --for is over, or for 30 days. `redlock run --ignore-freeze` acquires the lock all the same.
#[derive(Debug, Args)]
pub struct Freeze {
    /// Lock name
    #[arg(value_name = "NAME", required = true)]
    pub names: Vec<String>,

    /// Reason, shown to every run that wants the lock
    #[arg(short = 'm', long, value_name = "TEXT", value_parser = not_empty)]
    pub reason: String,

    /// Duration of the freeze; at most 30d [default: 30d]
    #[arg(long = "for", value_name = "TIME", allow_negative_numbers = true, value_parser = remembered)]
    pub lasting: Option<Duration>,

    /// Return once the holder is done (79 if the freeze ends first)
    #[arg(long)]
    pub drain: bool,

    /// Freeze a name that was never used, although a similar one was
    #[arg(long)]
    pub new: bool,
}

/// Undo `redlock freeze`
#[derive(Debug, Args)]
pub struct Thaw {
    /// Lock name
    #[arg(value_name = "NAME", required = true)]
    pub names: Vec<String>,
}

/// Reject stale writes, using a fence file
///
/// FILE contains the largest fencing token seen so far. If N is not smaller, the command writes N to FILE and exits with
/// 0. If N is smaller, it exits with 1: a later holder of the lock has written its own token, so this job no longer
/// holds the lock.
#[derive(Debug, Args)]
pub struct Fence {
    /// Fence file; created if missing
    #[arg(value_name = "FILE")]
    pub file: PathBuf,

    /// This job's fencing token [default: $REDLOCK_FENCE]
    #[arg(value_name = "N", value_parser = number(0, u64::MAX))]
    pub number: Option<u64>,
}

/// Check that this Redis is fit to hold locks
///
/// Checks everything on the server and on this host that locks depend on. Prints a line for each check: ok, warn or fail,
/// the finding, and how to fix it. The Lua scripts are tried on a lock of their own, which is removed. Takes at most 2 seconds. Exits with 0, or with 1 if a check fails.
#[derive(Debug, Args)]
pub struct Doctor {
    /// Lock name: also check what is stored under it
    #[arg(value_name = "NAME")]
    pub name: Option<String>,

    /// TTL your jobs use [env: REDLOCK_TTL] [default: 30s]
    #[arg(long, value_name = "TIME", allow_negative_numbers = true, value_parser = ttl)]
    pub ttl: Option<Duration>,

    /// Print a JSON object
    #[arg(long)]
    pub json: bool,
}

/// Show a page of the manual
///
/// The pages are part of the binary, so they need no package. On a terminal man(1) shows the page, or your pager if man
/// isn't installed.
#[derive(Debug, Args)]
pub struct Help {
    /// A command, or recipes, servers, signals or protocol [default: the list of commands]
    #[arg(value_name = "PAGE")]
    pub page: Option<String>,
}

/// Print the completions for a shell
///
/// Packages install the same completions. For bash: `source <(redlock completions bash)`.
#[derive(Debug, Args)]
pub struct Completions {
    /// The shell
    #[arg(id = "of_shell", value_name = "SHELL", value_enum)]
    pub shell: Shell,
}

/// A shell that `redlock completions` knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Shell {
    Bash,
    Zsh,
    Fish,
}
