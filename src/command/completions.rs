//! Completions for a shell's tab key: the scripts in completions/
//! call redlock, and clap completes the line from its definition.

use std::ffi::OsString;
use std::fmt::Write as _;
use std::process::{Command, Stdio};

use anyhow::{Context, Result};
use clap_complete::CompletionCandidate;
use clap_complete::engine::ArgValueCandidates;

use super::manual;
use crate::cli::{self, Shell};
use crate::decide::exit::Exit;
use crate::report;

/// Variable by which a shell's script asks for completions.
pub const COMPLETES: &str = "_REDLOCK_COMPLETES";

/// Longest wait for a server to connect or answer, unless the environment sets another.
const PATIENCE: &str = "300ms";

/// Prints the completion script for a shell, which packages install as a file.
pub fn completions(options: &cli::Completions) -> Result<Exit> {
    report::print(match options.shell {
        Shell::Bash => include_str!("../../completions/redlock.bash"),
        Shell::Zsh => include_str!("../../completions/_redlock"),
        Shell::Fish => include_str!("../../completions/redlock.fish"),
    })?;
    Ok(Exit::Success)
}

/// Prints the possible next words, a candidate and its description
/// per line. `words` are a `--` and the line up to the cursor.
///
/// # Errors
///
/// Fails for an empty line, or if standard output can't be written.
pub fn complete(words: &[OsString]) -> Result<Exit> {
    let line = words.get(1..).unwrap_or_default().to_vec();
    let last = line.len().checked_sub(1).context("no line to complete")?;
    let is_option = line[last].as_encoded_bytes().starts_with(b"-");
    let server = url_option(&line);
    let here = std::env::current_dir().ok();
    let mut commands = cli::documented().mut_subcommands(|command| with_names(command, &server));
    let mut text = String::new();
    for candidate in clap_complete::engine::complete(&mut commands, line, last, here.as_deref())? {
        let value = candidate.get_value().to_string_lossy();
        if value.starts_with('-') && !is_option {
            continue;
        }
        let help = candidate.get_help().map(ToString::to_string);
        let summary = help.iter().flat_map(|help| help.lines()).next();
        let summary = summary.unwrap_or_default();
        let _ = writeln!(text, "{value}\t{summary}");
    }
    report::print(&text)?;
    Ok(Exit::Success)
}

/// Offers the locks on `server` for arguments that are names of locks, and the manual's pages
/// for `help`. Only locks with a holder or a waiter can be stopped, released or extended.
fn with_names(command: clap::Command, server: &[OsString]) -> clap::Command {
    let listing = match command.get_name() {
        "stop" | "release" | "extend" => "status",
        _ => "history",
    };
    command.mut_args(|argument| {
        let server = server.to_vec();
        match argument.get_value_names().unwrap_or_default() {
            [name] if name == "NAME" => argument.add(ArgValueCandidates::new(move || {
                candidates(names(listing, &server).lines())
            })),
            [name] if name == "PAGE" => {
                argument.add(ArgValueCandidates::new(|| candidates(manual::pages())))
            }
            _ => argument,
        }
    })
}

/// Returns names as candidates. Omits names that begin with a dash, because they would be read as options.
fn candidates<'a>(names: impl Iterator<Item = &'a str>) -> Vec<CompletionCandidate> {
    let names = names.filter(|name| !name.starts_with('-'));
    names.map(CompletionCandidate::new).collect()
}

/// Returns the names of locks that are held or waited for; `history` adds
/// those with a history. Returns no names if the server doesn't answer soon.
fn names(listing: &str, server: &[OsString]) -> String {
    let Ok(redlock) = std::env::current_exe() else {
        return String::new();
    };
    let mut asking = Command::new(redlock);
    asking.args(server).args([listing, "--names-only", "-q"]);
    asking.stdin(Stdio::null()).stderr(Stdio::null());
    asking.env_remove(COMPLETES);
    if std::env::var_os("REDLOCK_REDIS_TIMEOUT").is_none() {
        asking.env("REDLOCK_REDIS_TIMEOUT", PATIENCE);
    }
    let output = asking.output().map(|output| output.stdout);
    String::from_utf8_lossy(&output.unwrap_or_default()).into_owned()
}

/// Returns the option on the line that names the server.
fn url_option(line: &[OsString]) -> Vec<OsString> {
    let is_joined = |word: &OsString| word.as_encoded_bytes().starts_with(b"--url=");
    let is_url = |word: &OsString| word == "-u" || word == "--url" || is_joined(word);
    let mut rest = line.iter().skip_while(|word| !is_url(word)).cloned();
    let option = rest.next();
    let value = rest.next().filter(|_| !option.iter().any(is_joined));
    option.into_iter().chain(value).collect()
}
