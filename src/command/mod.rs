//! The commands, one file each, and what they share: usage errors and the status of an error.

mod acquire;
mod acquisition;
mod environment;
mod extend;
mod fence;
mod freeze;
mod history;
mod job;
mod release;
mod run;
mod status;
mod wait;

use std::borrow::Cow;
use std::fmt;

use anyhow::Result;
use clap::error::ErrorKind;

use crate::ci;
use crate::config::BadConfig;
use crate::exit::Exit;
use crate::lock::{self, Name, Who};
use crate::report;

pub use self::acquire::{acquire, fail_eval};
pub use self::extend::{check, extend};
pub use self::fence::fence;
pub use self::freeze::{freeze, thaw};
pub use self::history::history;
pub use self::release::release;
pub use self::run::run;
pub use self::status::status;
pub use self::wait::wait;

/// Something that was typed wrong, but that clap can't see; status 64.
#[derive(Debug)]
struct BadUsage(String);

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
            lock::ErrorKind::Unreachable | lock::ErrorKind::NotNow => Exit::Unreachable,
            lock::ErrorKind::Refused => Exit::Refused,
            lock::ErrorKind::Config => Exit::Config,
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

/// The version on stdout; at length how it was built.
pub fn version(at_length: bool) -> Result<Exit> {
    let mut text = format!("redlock {}\n", env!("CARGO_PKG_VERSION"));
    if at_length {
        let linked = if cfg!(target_feature = "crt-static") {
            "static"
        } else {
            "dynamic"
        };
        let libc = if cfg!(target_env = "musl") {
            "musl"
        } else {
            "glibc"
        };
        let profile = if cfg!(debug_assertions) {
            "debug"
        } else {
            "release"
        };
        let arch = std::env::consts::ARCH;
        text = format!("{text}{profile} build for {arch}-linux, {linked} {libc}\n");
    }
    report::print(&text)?;
    Ok(Exit::Success)
}

fn name(text: &str) -> Result<Name> {
    Ok(text
        .parse()
        .map_err(|why| BadUsage(format!("{why}: {text:?}")))?)
}

/// Names as they were typed, each once.
fn distinct(texts: &[String]) -> Result<Vec<Name>> {
    let mut names = Vec::new();
    for text in texts {
        let name = name(text)?;
        if !names.contains(&name) {
            names.push(name);
        }
    }
    Ok(names)
}

/// Who we are, to others.
fn own_identity() -> Who {
    let variable = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
    Who {
        host: nix::unistd::gethostname()
            .map(|name| name.to_string_lossy().into_owned())
            .unwrap_or_default(),
        // The password database only where there is no environment: reading it takes time.
        user: variable("USER")
            .or_else(|| variable("LOGNAME"))
            .or_else(|| {
                let user = nix::unistd::User::from_uid(nix::unistd::getuid());
                user.ok().flatten().map(|user| user.name)
            })
            .unwrap_or_else(|| nix::unistd::getuid().to_string()),
        pid: std::process::id(),
        url: ci::link(variable),
        ..Who::default()
    }
}

/// Whether we have a terminal: then the shell's job control sees us and COMMAND as one job.
fn on_terminal() -> bool {
    std::fs::File::open("/dev/tty").is_ok()
}

/// The most of a command line that is stored for others to see, in bytes.
const SHOWN: usize = 2000;

/// The command for others to see: not endless.
fn shortened<'a>(command: impl Iterator<Item = Cow<'a, str>>) -> Vec<String> {
    let mut room = SHOWN;
    let mut words = Vec::new();
    for word in command {
        if word.len() > room {
            words.push(word.chars().take(room / 4).chain(['…']).collect());
            break;
        }
        room -= word.len();
        words.push(word.into_owned());
    }
    words
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
