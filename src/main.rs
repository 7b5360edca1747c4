//! redlock: mutual exclusion for shell scripts over Redis.
//!
//! `docs/architecture.md` shows where to begin reading, how a run works, and which module belongs to which layer.
//!
//! # Invariants
//!
//! 1. Only `server` and `protocol` use the redis crate. Only `supervise/child` starts COMMAND, only
//!    `supervise/hook` starts hooks, and only `server/local` starts servers. All unsafe code is in `sys`.
//! 2. `decide`, `ci`, `pattern` and the drawing of the history are
//!    pure: they read no clock, do no I/O and start no thread.
//! 3. Only `main` ends redlock, after each lock is released, lost, or left to its lease. There are two exceptions.
//!    A signal ends a slow release, and an interrupt ends a command such as `stop` that waits for Redis.
//! 4. redlock never signals a process that it has reaped, nor the group
//!    of that process. No lock is released before COMMAND is reaped.
//! 5. Only Lua scripts change locks. A script checks the holder's token before it changes
//!    a hold, except for requests about other clients' holds, such as `release --force`.
//! 6. Each deadline counts from before the request, on a clock that continues during suspend.
//! 7. redlock writes messages to stderr, with a prefix, and results to stdout.
//! 8. A process that supervises work blocks only in `poll`, or for a limited time.
//!    After any failure it stops the work, reaps it, and releases the locks.
//!    redlock acts before it reports, and never waits for a reader of its messages.
//! 9. COMMAND's process tree has one definition, in `supervise/tree`.
//!    redlock uses it for waiting, signalling and killing.

// libFuzzer has its own main.
#![cfg_attr(fuzzing, no_main, allow(dead_code))]

mod ci;
mod cli;
mod clock;
mod command;
mod config;
mod decide;
mod duration;
mod file;
#[cfg(any(test, fuzzing))]
#[path = "../tests/fuzz/mod.rs"]
mod fuzz;
mod job;
mod pattern;
mod protocol;
mod reason;
mod report;
mod server;
mod shell;
mod signal;
mod stderr;
mod supervise;
mod sys;
mod systemd;
mod typed;
mod usage;
mod variables;

use std::ffi::OsString;
use std::process::ExitCode;

use crate::cli::{Cli, Command};
use crate::config::{Settings, Sources};
use crate::decide::exit::Exit;

fn main() -> ExitCode {
    let words: Vec<OsString> = std::env::args_os().skip(1).collect();
    if std::env::var_os(command::completions::COMPLETES).is_some() {
        let exit = command::completions::complete(&words);
        let exit = exit.unwrap_or_else(|error| usage::fail(&error, &[]));
        return exit.code().into();
    }
    let (exit, is_evaluated) = match typed::read_usual(&words) {
        Some(cli) => (perform(cli), false),
        None => by_clap(&words),
    };
    let exit = exit.unwrap_or_else(|error| usage::fail(&error, &words));
    if is_evaluated {
        command::acquire::fail_eval(exit);
    }
    stderr::flush(stderr::LINGER);
    if let Exit::Interrupted(signal) = exit {
        sys::die_by(signal);
    }
    exit.code().into()
}

/// Runs a command line with clap. Returns true with the result if a shell evaluates the output.
fn by_clap(words: &[OsString]) -> (anyhow::Result<Exit>, bool) {
    let read = typed::read(words);
    let is_evaluated = typed::is_evaluated(read.as_ref().ok(), words);
    let exit = match read {
        Ok(cli) => perform(cli),
        Err(error) => command::mistakes::usage(&error, words),
    };
    (exit, is_evaluated)
}

fn perform(cli: Cli) -> anyhow::Result<Exit> {
    if cli.version {
        return command::version::version(cli.common.verbose);
    }
    let Some(command) = cli.command else {
        return Ok(command::mistakes::no_command());
    };
    // doctor itself reports refused files and settings without effect.
    let is_doctor = matches!(command, Command::Doctor(_));
    let settings = || {
        let sources = Sources::read()?;
        if !is_doctor {
            sources.expect_trusted()?;
        }
        if let Some(url) = &cli.common.url {
            report::remember_url(job::privacy::masked_url(url));
        }
        let settings = Settings::read(&cli.common, &sources)?;
        if !is_doctor {
            settings.warn();
        }
        Ok::<_, anyhow::Error>(settings)
    };
    match command {
        Command::Run(options) => command::run::run(&options, &settings()?),
        Command::Guard(options) => command::guard::guard(&options, &settings()?),
        Command::Acquire(options) => command::acquire::acquire(&options, &settings()?),
        Command::Extend(options) => command::extend::extend(&options, &settings()?),
        Command::Release(options) => command::release::release(&options, &settings()?),
        Command::Stop(options) => command::stop::stop(&options, &settings()?),
        Command::Status(options) => command::status::status(&options, &settings()?),
        Command::History(options) => command::history::history(&options, &settings()?),
        Command::Freeze(options) => command::freeze::freeze(&options, &settings()?),
        Command::Thaw(options) => command::freeze::thaw(&options, &settings()?),
        Command::Fence(options) => command::fence::fence(&options),
        Command::Help(options) => command::manual::help(&options),
        Command::Completions(options) => command::completions::completions(&options),
        Command::Doctor(options) => command::doctor::doctor(&options, &settings()?),
    }
}
