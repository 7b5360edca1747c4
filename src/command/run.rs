//! `redlock run`: acquires the locks, runs COMMAND, renews the leases in the background, and releases the locks.
//!
//! Drives a run from options to exit status; [`supervise`] takes over while COMMAND is running.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::Duration;

use anyhow::Result;
use nix::unistd::{getpid, getsid};

use crate::cli::{self, OnUnreachable};
use crate::clock::now;
use crate::config::Settings;
use crate::decide::exit::Exit;
use crate::decide::lease::ttl_for_failover;
use crate::decide::session::Policy;
use crate::job::identity::own_job;
use crate::job::{self, Acquisition, Requester, fail_on, mode_after, random_fraction, sleep_until};
use crate::protocol::{self, ReleaseMode, Who};
use crate::reason::reason;
use crate::report::{self, quote};
use crate::signal::on_terminal;
use crate::stderr;
use crate::supervise::HeldLocks;
use crate::supervise::child::Prepared;
use crate::supervise::environment::{self, Environment};
use crate::supervise::hook::{Hook, News};
use crate::supervise::process;
use crate::supervise::run::{EventSources, SupervisionTerms, Work, WorkResult, supervise};
use crate::sys::{self, SpawnError};
use crate::usage::{Refusal, parse_names, program_path, refuse};
use crate::variables::EVENT;

/// Runs COMMAND under the locks.
pub fn run(options: &cli::Run, settings: &Settings) -> Result<Exit> {
    let names = parse_names(&options.names)?;
    let once = options.once.as_ref().map(|_| "--once");
    if let Some(option) = once.or(options.once_per.map(|_| "--once-per"))
        && names.len() > 1
    {
        return refuse(Exit::Usage, format!("{option} takes one NAME"));
    }
    let work = prepare(options.shell.as_ref(), &options.command)?;
    if settings.locks.have_no_url() {
        settings.verbosity.verbose(report::NO_URL);
    }
    let words = || work.words.iter().map(|word| word.to_string_lossy());
    let who = Who {
        // Set even if the kernel can't identify this process,
        // because others must see that redlock supervises the lock.
        instance: Some(process::instance().unwrap_or_default()),
        once: options.once.clone(),
        ..own_job(&options.acquire, settings, words)
    };
    settings.replicate()?;
    let mut acquisition =
        Acquisition::new(settings, names, who, &options.acquire, options.kill_after)?;
    acquisition.request.once_per = options.once_per.unwrap_or_default();
    acquisition.request.once_key.clone_from(&options.once);
    // A run may start on an unconfirmed grant, but not in these cases: with several
    // locks, --once or --once-per the server's answer matters. With --seq, other runs
    // must learn that this one has begun. With REDLOCK_SYNC, the replicas must confirm.
    let on_unreachable = options.on_unreachable.unwrap_or(settings.on_unreachable);
    acquisition.silence = (on_unreachable == OnUnreachable::Run).then_some(acquisition.request.ttl);
    acquisition.starts_on_grant = acquisition.names.len() == 1
        && options.once_per.is_none()
        && options.once.is_none()
        && options.acquire.seq.is_none()
        && settings.locks.deployment.replication().is_none();
    let run = PendingRun {
        options,
        acquisition,
        on_terminal: on_terminal(),
    };
    run.acquire_and_run(work)
}

/// Prepares COMMAND, or the shell for the SCRIPT of -c, without the variables of the locks.
///
/// # Errors
/// A [`Refusal`] if the command can't be prepared.
pub(super) fn prepare(script: Option<&OsString>, command: &[OsString]) -> Result<Work> {
    let words = match script {
        Some(script) => vec!["sh".into(), "-c".into(), script.clone()],
        None => command.to_vec(),
    };
    let cannot_run = |error| cannot_run(&words, &SpawnError::CannotExecute(error));
    Ok(Work {
        prepared: Prepared::new(&words).map_err(cannot_run)?,
        environment: Environment::new(),
        words,
    })
}

/// A run, before it has acquired its locks.
struct PendingRun<'a> {
    options: &'a cli::Run,
    acquisition: Acquisition<'a>,
    on_terminal: bool,
}

/// Shell builtins and keywords, which usually don't exist as programs.
const BUILTINS: [&str; 53] = [
    ".", ":", "[[", "!", "{", "(", "alias", "bg", "bind", "builtin", "case", "cd", "command",
    "declare", "dirs", "disown", "eval", "exec", "exit", "export", "fc", "fg", "for", "function",
    "getopts", "hash", "history", "if", "jobs", "let", "local", "popd", "pushd", "read",
    "readonly", "return", "select", "set", "shift", "shopt", "source", "time", "times", "trap",
    "type", "typeset", "ulimit", "umask", "unalias", "unset", "until", "wait", "while",
];

/// Returns the error for a command that can't be started.
pub(super) fn cannot_run(command: &[OsString], error: &SpawnError) -> Refusal {
    let program = command.first().map_or(OsStr::new(""), OsString::as_os_str);
    let path = Path::new(program);
    let program = program.to_string_lossy();
    let error = match error {
        SpawnError::CannotExecute(error) => error,
        SpawnError::NoProcess(error) => {
            let line = format!("can't start a process for {program}: {error}");
            return Refusal(Exit::Internal, line);
        }
    };
    let mut line = format!("can't run {program}: {}", why_not(path, error));
    if error.kind() != io::ErrorKind::NotFound {
        return Refusal(Exit::CannotExecute, line);
    }
    if BUILTINS.contains(&&*program) {
        line = format!("command not found: {program} is a builtin of the shell; use -c SCRIPT");
    } else if program.contains(char::is_whitespace) && !path.exists() {
        line = format!("command not found: \"{program}\" is one word; to run a shell line use -c");
    }
    Refusal(Exit::NotFound, line)
}

/// Returns the reason why a program can't be executed. The kernel has one error for several reasons.
fn why_not(program: &Path, error: &io::Error) -> String {
    let path = program_path(program.as_os_str());
    let is_path = program.as_os_str().as_bytes().contains(&b'/');
    match error.kind() {
        io::ErrorKind::NotFound => match path {
            Some(path) => missing_interpreter(&path),
            None if sets_variable(program) => "it sets a variable; put env before it".into(),
            None if !is_path => "not found in $PATH".into(),
            None => reason(error),
        },
        io::ErrorKind::PermissionDenied if is_path && program.is_dir() => {
            "it is a directory".into()
        }
        io::ErrorKind::PermissionDenied if is_path && path.is_none() && program.is_file() => {
            let word = quote(program);
            format!("it isn't executable; run: chmod +x {word}")
        }
        _ => reason(error),
    }
}

/// Longest first line in which the kernel looks for an interpreter, in bytes.
const LONGEST_FIRST_LINE: u64 = 256;

/// Longest first word of a hook that is checked as a program's name, in bytes.
const LONGEST_HOOK_WORD: usize = 200;

/// Returns the reason why a hook can't run, if its first word
/// shows one. Nobody waits for the hook's shell to report it.
fn hook_trouble(script: &str) -> Option<String> {
    let word = script.split_whitespace().next()?;
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "/._-+".contains(c);
    // Without PATH, the shell uses its own search path.
    if std::env::var_os("PATH").is_none()
        || word.len() > LONGEST_HOOK_WORD
        || !word.chars().all(is_plain)
        || BUILTINS.contains(&word)
        || program_path(OsStr::new(word)).is_some()
    {
        return None;
    }
    let kind = match Path::new(word).metadata() {
        Ok(_) if word.contains('/') => io::ErrorKind::PermissionDenied,
        _ => io::ErrorKind::NotFound,
    };
    let why = why_not(Path::new(word), &kind.into());
    Some(format!("{word}: {why}"))
}

/// Returns a message about a script's missing interpreter. Shows the carriage return of DOS line endings.
fn missing_interpreter(program: &Path) -> String {
    let mut start = Vec::new();
    let _ =
        File::open(program).and_then(|file| file.take(LONGEST_FIRST_LINE).read_to_end(&mut start));
    let start = String::from_utf8_lossy(&start);
    let line = start.strip_prefix("#!").unwrap_or_default();
    let line = line.trim_start_matches([' ', '\t']);
    let interpreter = line.split([' ', '\t', '\n']).next().unwrap_or_default();
    // For the kernel, the carriage return is part of the interpreter's name.
    if let Some(interpreter) = interpreter.strip_suffix('\r') {
        let script = quote(program);
        return format!(
            r"its interpreter {interpreter}\r does not exist; remove the DOS line endings: sed -i 's/\r$//' {script}"
        );
    }
    if interpreter.is_empty() || Path::new(interpreter).exists() {
        return "its interpreter or loader does not exist".into();
    }
    format!("its interpreter {interpreter} does not exist")
}

/// Returns true if a shell would read the word as `NAME=value`.
fn sets_variable(word: &Path) -> bool {
    let parts = word.to_str().and_then(|word| word.split_once('='));
    let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_';
    parts.is_some_and(|(name, _)| !name.is_empty() && name.chars().all(is_part))
}

/// Longest wait for earlier messages to be written before COMMAND starts. Any live reader is faster.
const FLUSH_BEFORE_START: Duration = Duration::from_millis(100);

impl PendingRun<'_> {
    /// Returns the hook for this run, if one is configured. `fences` are
    /// the tokens of its locks, and `waited_ms` is the wait for them.
    fn hook(&self, fences: Vec<u64>, waited_ms: u128) -> Option<Hook<'_>> {
        let acquisition = &self.acquisition;
        let settings = acquisition.settings;
        let script = settings.hook.as_ref()?;
        // A hook that runs redlock must not call itself again and again.
        if std::env::var_os(EVENT).is_some_and(|event| !event.is_empty()) {
            return None;
        }
        if let Some(why) = hook_trouble(script) {
            let line = format_args!("can't run REDLOCK_HOOK: {why}");
            settings.verbosity.info(line);
        }
        Some(Hook {
            script,
            names: &acquisition.names,
            who: &acquisition.request.who,
            fences,
            waited_ms: u64::try_from(waited_ms).unwrap_or(u64::MAX),
        })
    }

    /// Acquires the locks and runs COMMAND.
    fn acquire_and_run(&self, mut work: Work) -> Result<Exit> {
        let acquisition = &self.acquisition;
        let settings = acquisition.settings;
        let mut holds = HeldLocks::none(settings.locks.client());
        // Signals keep their default action until a lock is requested, because nothing needs to be
        // cleaned up before. PID 1 is an exception: signals without a handler don't terminate it.
        let is_early = std::process::id() == 1 || !settings.jitter.is_zero();
        let early = is_early.then(|| EventSources::new(self.on_terminal));
        let early = early.transpose()?;
        if let Some(sources) = &early {
            let pause = settings.jitter.mul_f64(random_fraction());
            fail_on(sleep_until(now() + pause, &sources.signals)?)?;
        }
        let started = now();
        let opened = match &early {
            Some(sources) => job::open(&mut holds.client, &sources.signals),
            None => holds.client.open().map(|()| None),
        };
        let mut sources = early.map_or_else(|| EventSources::new(self.on_terminal), Ok)?;
        let _unread = stderr::ImmediateMessages::new();
        let (EventSources { signals, timer }, requester) = (&mut sources, Requester::default());
        let acquired =
            acquisition.acquire_all(started, opened, &mut holds, requester, signals, timer);
        let Err(error) = acquired.and_then(|()| self.expect_time_to_start(&holds)) else {
            self.say_short_ttl();
            let slots = self.options.acquire.slots.is_some();
            work.environment = acquisition.environment(&holds, slots);
            let waited_ms = holds.waited_ms();
            return Ok(self.run_command(&work, holds, &mut sources, waited_ms));
        };
        let was_answered = holds.answered;
        acquisition.release_all(&ReleaseMode::UNUSED, &sources.signals, holds);
        let protocol_error = error.downcast_ref::<protocol::Error>();
        let is_unreachable = protocol_error.is_some_and(|error| error.kind.is_unreachable());
        let waited_ms = now().since(started).as_millis();
        if was_answered || !is_unreachable || acquisition.silence.is_none() {
            if let Some(news) = acquisition.busy.take()
                && let Some(hook) = self.hook(Vec::new(), waited_ms)
            {
                hook.tell(&news, settings.verbosity);
            }
            fail_on(sources.signals.late())?;
            return Err(error);
        }
        let line = format_args!("{error:#}; running without a lock");
        settings.verbosity.info(line);
        work.environment = environment::unlocked(&acquisition.names);
        let none = HeldLocks::none(settings.locks.client());
        Ok(self.run_command(&work, none, &mut sources, waited_ms))
    }

    /// Fails if a lease is about to expire, after a suspend for example, so that COMMAND must not start.
    fn expect_time_to_start(&self, holds: &HeldLocks) -> Result<()> {
        if holds.lease().is_none_or(|lease| now() < lease.stop_at()) {
            return Ok(());
        }
        let names = environment::list_of(&self.acquisition.names);
        let names = names.display();
        let line = format!("command not started: the lease of {names} was about to expire");
        refuse(Exit::Lost, line)
    }

    /// Runs COMMAND with or without locks, and releases them afterwards.
    fn run_command(
        &self,
        work: &Work,
        mut holds: HeldLocks,
        sources: &mut EventSources,
        waited_ms: u128,
    ) -> Exit {
        let (options, acquisition) = (self.options, &self.acquisition);
        let settings = acquisition.settings;
        // Earlier output must come before COMMAND's, especially if it erases a line of the terminal.
        stderr::flush(FLUSH_BEFORE_START);
        let locks = holds.in_order(&acquisition.names);
        let fences = locks.map(|hold| hold.fence).collect();
        let hook = self.hook(fences, waited_ms);
        let terms = SupervisionTerms {
            policy: Policy {
                on_terminal: self.on_terminal,
                leads_session: getsid(None) == Ok(getpid()),
                only_warn: settings.only_warn,
                with_children: options.with_children,
                kill_after: acquisition.terms.kill_after,
                timeout: settings.max_runtime(options.max_runtime),
                has_hook: hook.is_some(),
            },
            names: &acquisition.names,
            locks: &settings.locks,
            who: &acquisition.request.who,
            verbosity: settings.verbosity,
            hook: hook.as_ref(),
        };
        let WorkResult { exit, ran, by } = supervise(&terms, work, &mut holds, sources)
            .unwrap_or_else(|error| {
                let Refusal(exit, line) = cannot_run(&work.words, &error);
                report::error(line);
                WorkResult {
                    exit,
                    ran: Duration::ZERO,
                    by: None,
                }
            });
        let mode = mode_after(exit, options.hold_at_least);
        // The server answers this process before it notifies the next holder, so this
        // process must not take the processor. A hook would inherit this policy.
        if hook.is_none() {
            sys::yield_cpu();
        }
        acquisition.release_all(&mode, &sources.signals, holds);
        if let Some(hook) = &hook {
            let news = News {
                event: "ended",
                ran: Some(ran),
                exit: Some(exit),
                by,
            };
            hook.tell(&news, terms.verbosity);
        }
        job::exit_after(exit, &sources.signals)
    }

    /// Warns that a failover may take longer than a lease lasts, if the sentinels have said when a failover begins.
    fn say_short_ttl(&self) {
        let (settings, terms) = (self.acquisition.settings, self.acquisition.terms);
        let sentinels = settings.locks.deployment.sentinels();
        let Some(down_after) = sentinels.and_then(|all| all.down_after()) else {
            return;
        };
        let least = ttl_for_failover(down_after, terms.kill_after, terms.clock_skew);
        if terms.ttl < least {
            let lengths = [terms.ttl, down_after, least];
            let [ttl, down_after, least] = lengths.map(report::format_duration);
            settings.verbosity.info(format_args!(
                "a lease of {ttl} may end during a failover, which begins {down_after} after the primary's death; use --ttl {least} or more"
            ));
        }
    }
}
