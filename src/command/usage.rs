//! What was typed wrong, and the status of an error.

use std::fmt;

use anyhow::Result;
use clap::error::ErrorKind;

use crate::config::BadConfig;
use crate::exit::Exit;
use crate::lock::{self, Name};
use crate::report;

/// Something that was typed wrong, but that clap can't see; status 64.
#[derive(Debug)]
pub(super) struct BadUsage(pub String);

impl fmt::Display for BadUsage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for BadUsage {}

/// The status for an error that ended a command.
pub fn exit_for(error: &anyhow::Error) -> Exit {
    if error.is::<BadUsage>() {
        Exit::Usage
    } else if error.downcast_ref::<BadConfig>().is_some() {
        Exit::Config
    } else if let Some(error) = error.downcast_ref::<lock::Error>() {
        match error.kind {
            lock::ErrorKind::Unreachable
            | lock::ErrorKind::Loading
            | lock::ErrorKind::Busy
            | lock::ErrorKind::NotNow => Exit::Unreachable,
            lock::ErrorKind::Refused => Exit::Refused,
            lock::ErrorKind::Config | lock::ErrorKind::Replica => Exit::Config,
            lock::ErrorKind::Internal => Exit::Internal,
        }
    } else {
        Exit::Internal
    }
}

/// Answers what clap didn't take for a command: help on stdout, a mistake in a line on stderr.
pub fn usage(error: &clap::Error) -> Exit {
    let text = error.to_string();
    if error.kind() == ErrorKind::DisplayHelp {
        let _ = report::print(&text);
        return Exit::Success;
    }
    report::error(mistake(&text, error.kind()));
    Exit::Usage
}

/// clap's report of a mistake as one line, with where to read on.
fn mistake(text: &str, kind: ErrorKind) -> String {
    let (what, usage) = text.split_once("Usage: ").unwrap_or((text, "redlock"));
    let what: Vec<&str> = what.split_whitespace().collect();
    let what = what.join(" ");
    let command: Vec<&str> = usage
        .split_whitespace()
        .take_while(|word| word.chars().all(|c| c.is_ascii_lowercase()))
        .collect();
    let command = command.join(" ");
    let hint = match (kind, command.as_str()) {
        (ErrorKind::MissingRequiredArgument, "redlock run") => "COMMAND comes after --; ",
        _ => "",
    };
    let what = what
        .strip_prefix("error: ")
        .unwrap_or(&what)
        .trim_end_matches(" For more information, try '--help'.");
    format!("{what}; {hint}see {command} --help")
}

/// The mistake of giving no command at all.
pub fn no_command() -> Result<Exit> {
    Err(BadUsage(
        "no command given; try `redlock run NAME -- COMMAND` or see redlock --help".into(),
    )
    .into())
}

/// A name as it was typed.
pub(super) fn name(text: &str) -> Result<Name> {
    Ok(text
        .parse()
        .map_err(|why| BadUsage(format!("{why}: {text:?}")))?)
}

/// Names as they were typed, each once.
pub(super) fn parse_names(texts: &[String]) -> Result<Vec<Name>> {
    let mut names = Vec::new();
    for text in texts {
        let name = name(text)?;
        if !names.contains(&name) {
            names.push(name);
        }
    }
    Ok(names)
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::cli::Cli;

    #[test]
    fn a_mistake_is_one_line_that_says_where_to_read_on() {
        for (line, said) in [
            (
                &["run", "a", "true"][..],
                "the following required arguments were not provided: <COMMAND>...; COMMAND comes after --; see redlock run --help",
            ),
            (
                &["run", "--ttl", "9", "a", "--", "b"],
                "invalid value '9' for '--ttl <DURATION>': a unit is missing: 9s? 9ms?; see redlock --help",
            ),
            (
                &["rum"],
                "unrecognized subcommand 'rum' tip: a similar subcommand exists: 'run'; see redlock --help",
            ),
        ] {
            let error = Cli::try_parse_from([&["redlock"], line].concat()).unwrap_err();
            assert_eq!(mistake(&error.to_string(), error.kind()), said);
        }
    }
}
