//! redlock: mutual exclusion for shell scripts over Redis.
//!
//! # Architecture
//!
//! `docs/architecture.md` has a picture of a run, and one of a lock's life.
//!
//! ```text
//! main → cli, config, command              what was typed, what is set, what to do
//! command/run → acquisition, supervise     a run, from its options to its status
//! command/guard → protocol, supervise      work elsewhere, under a lock of its job
//! command/acquire → acquisition, supervise a lock for a script
//! command/acquisition → protocol, decide,  acquiring locks
//!                       supervise
//! command/doctor → protocol, supervise     asks a server and this host on one connection, and judges the answers
//! supervise → decide, protocol             work under its locks, of a run and of a keeper that stays behind: one child and its
//!                                          tree, the thread that renews, the process that kills where redlock can't, whether
//!                                          the process of a holder is dead, and the variables by which a job knows its locks
//! decide → protocol                        all decisions, pure, by the answers of `protocol`: `renewals` owns the lease and
//!                                          decides when it is renewed; `session` is about a running command, `wait` about
//!                                          waiting
//! config → cli, protocol                   what is set, in a struct of its own
//! variables                                the names of the variables that a job finds
//! duration                                 durations, in words that can be typed; pure
//! reason                                   why the system refused something, in words; pure
//! shell                                    words and lines as a shell takes them, the only quoting; pure
//! typed → cli                              reads the command line with clap, and finds the command's name; pure
//! stderr                                   messages, written without waiting for a reader
//! protocol → redis                         what is said about locks; one Lua script an operation
//! redis                                    how a server is reached
//! ```
//!
//! In a run, many send and one decides: the main thread waits for whatever comes next (a signal,
//! the child's end, what the renewer reports and the server pushes, a moment) and asks the [`decide::session`],
//! or before COMMAND is started the [`decide::wait`], what to do. The renewer only carries out tasks, so a
//! hung connection never delays the thread that watches the deadline.
//!
//! # Invariants
//!
//! 1. `redis` and `protocol` alone name the redis crate; `supervise/child` alone spawns what is supervised,
//!    `supervise/hook` what is told of a run, and `redis/local` the server of this host; `sys` alone is unsafe.
//! 2. `decide`, `ci`, `pattern` and what draws the history never read a clock, do I/O or start a thread.
//! 3. Only `main` ends the process, and only after the lock is released or known lost.
//! 4. Nothing is signalled after it was reaped, nor its group; nothing is released before its child
//!    was.
//! 5. A lock is changed only by a script that checks the token first.
//! 6. Deadlines are counted from before the request, on a clock that runs during suspend.
//! 7. redlock writes to stderr, prefixed, except where its output is the product.
//! 8. A process that supervises has no blocking call but poll, and no way out but stop, reap, release,
//!    whatever failed. It acts first and speaks second, and never waits for a reader.
//! 9. A command's tree is one thing with one definition (`supervise/tree`), for waiting, signalling and killing.

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
mod pattern;
mod protocol;
mod reason;
mod redis;
mod report;
mod shell;
mod signal;
mod stderr;
mod supervise;
mod sys;
mod systemd;
mod typed;
mod variables;

use std::ffi::OsString;
use std::process::ExitCode;

use crate::cli::{Cli, Command};
use crate::config::{Settings, Sources};
use crate::decide::exit::Exit;

fn main() -> ExitCode {
    let words: Vec<OsString> = std::env::args_os().skip(1).collect();
    if std::env::var_os(command::COMPLETES).is_some() {
        let exit = command::complete(&words);
        let exit = exit.unwrap_or_else(|error| command::fail(&error, &[]));
        return exit.code().into();
    }
    let (exit, is_evaluated) = match typed::read_usual(&words) {
        Some(cli) => (perform(cli), false),
        None => by_clap(&words),
    };
    let exit = exit.unwrap_or_else(|error| command::fail(&error, &words));
    if is_evaluated {
        command::fail_eval(exit);
    }
    stderr::flush(stderr::LINGER);
    if let Exit::Interrupted(signal) = exit {
        sys::die_by(signal);
    }
    exit.code().into()
}

/// Performs any command line; true with the result if a shell evaluates the output.
fn by_clap(words: &[OsString]) -> (anyhow::Result<Exit>, bool) {
    let read = typed::read(words);
    let is_evaluated = typed::is_evaluated(read.as_ref().ok(), words);
    let exit = match read {
        Ok(cli) => perform(cli),
        Err(error) => command::usage(&error, words),
    };
    (exit, is_evaluated)
}

fn perform(cli: Cli) -> anyhow::Result<Exit> {
    if cli.version {
        return command::version(cli.common.verbose);
    }
    let Some(command) = cli.command else {
        return Ok(command::no_command());
    };
    // doctor itself reports a file that it doesn't trust, and settings without effect.
    let is_doctor = matches!(command, Command::Doctor(_));
    let settings = || {
        let sources = Sources::read()?;
        if !is_doctor {
            sources.expect_trusted()?;
        }
        if let Some(url) = &cli.common.url {
            command::remember_url(url);
        }
        let settings = Settings::read(&cli.common, &sources)?;
        if !is_doctor {
            settings.warn();
        }
        Ok::<_, anyhow::Error>(settings)
    };
    match command {
        Command::Run(options) => command::run(&options, &settings()?),
        Command::Guard(options) => command::guard(&options, &settings()?),
        Command::Acquire(options) => command::acquire(&options, &settings()?),
        Command::Extend(options) => command::extend(&options, &settings()?),
        Command::Release(options) => command::release(&options, &settings()?),
        Command::Stop(options) => command::stop(&options, &settings()?),
        Command::Status(options) => command::status(&options, &settings()?),
        Command::History(options) => command::history(&options, &settings()?),
        Command::Freeze(options) => command::freeze(&options, &settings()?),
        Command::Thaw(options) => command::thaw(&options, &settings()?),
        Command::Fence(options) => command::fence(&options),
        Command::Help(options) => command::help(&options),
        Command::Completions(options) => command::completions(&options),
        Command::Doctor(options) => command::doctor(&options, &settings()?),
    }
}
