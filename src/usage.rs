//! Errors that end a command, their exit status, and names as users type them.
//! This module knows no options; `mistakes` answers lines that clap rejects.

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

use anyhow::Result;

use crate::decide::exit::Exit;
use crate::pattern::is_pattern;
use crate::protocol::{Cause, Error, ErrorKind, Name};
use crate::report;
use crate::typed;

/// An exit status and its message, for a command that failed or was typed
/// wrong in a way that clap can't detect. A signal needs no message.
#[derive(Debug)]
pub struct Refusal(pub Exit, pub String);

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.1)
    }
}

impl std::error::Error for Refusal {}

/// Returns the error that ends a command with this status and message.
pub fn refuse<T>(exit: Exit, line: String) -> Result<T> {
    Err(Refusal(exit, line).into())
}

/// Returns the exit status for an error that ended a command.
pub fn exit_for(error: &anyhow::Error) -> Exit {
    if let Some(Refusal(exit, _)) = error.downcast_ref() {
        return *exit;
    }
    let kind = error.downcast_ref::<Error>().map(|error| error.kind);
    match kind {
        Some(ErrorKind::Config | ErrorKind::Replica) => Exit::Config,
        Some(ErrorKind::Refused) => Exit::Refused,
        Some(kind) if kind.may_pass() => Exit::Unreachable,
        Some(_) | None => Exit::Internal,
    }
}

/// Hint that follows a message.
const DOCTOR: &str = " (`redlock doctor` shows more)";

/// Programs that can provide a server on this host, each with the
/// command that installs the server and the command that then starts it.
const SERVERS: &str = "\
redis-server||redis-server --daemonize yes
valkey-server||valkey-server --daemonize yes
apt-get|sudo apt-get install -y redis-server|
dnf|sudo dnf install -y redis|sudo systemctl start redis
docker||docker run -d -p 127.0.0.1:6379:6379 redis";

/// Returns the end of an error message: the command that installs or starts a server on this host.
fn how_to_start(error: &Error) -> String {
    let rows = SERVERS
        .lines()
        .map(|row| row.split('|').collect::<Vec<_>>());
    let mut servers = rows.filter(|row| program_path(OsStr::new(row[0])).is_some());
    if error.has_cause(Cause::NoServerProgram) {
        let install = servers.find(|row| !row[1].is_empty());
        return install.map_or(String::new(), |row| format!("; `{}` installs it", row[1]));
    }
    if !error.has_cause(Cause::NoDefaultServer) {
        return String::new();
    }
    let is_set = std::env::var_os("REDIS_URL").is_some_and(|value| !value.is_empty());
    let unread = if is_set {
        "; REDIS_URL is set, but redlock reads REDLOCK_URL"
    } else {
        ""
    };
    let start = servers.next().map_or(String::new(), |row| {
        // Either command may be empty.
        let lines = row[1..].join(" && ");
        let line = lines.trim_matches([' ', '&']);
        format!("; `{line}` starts Redis here")
    });
    format!(
        "; if other hosts use a Redis, put REDLOCK_URL=redis://HOST into /etc/redlock.env; `-u local:` uses a server of this host alone{start}{unread}"
    )
}

/// Returns the path of an executable program: the word itself if it contains a slash, otherwise found in $PATH.
pub fn program_path(word: &OsStr) -> Option<PathBuf> {
    let is_executable = |path: &PathBuf| {
        let metadata = path.metadata();
        metadata.is_ok_and(|it| it.is_file() && it.permissions().mode() & 0o111 != 0)
    };
    if word.as_bytes().contains(&b'/') {
        return Some(PathBuf::from(word)).filter(is_executable);
    }
    let directories = std::env::var_os("PATH").unwrap_or_default();
    let mut paths = std::env::split_paths(&directories).map(|directory| directory.join(word));
    paths.find(is_executable)
}

/// Reports an error that ended a command. `words` is its command line.
pub fn fail(error: &anyhow::Error, words: &[OsString]) -> Exit {
    let (exit, mut line) = (exit_for(error), format!("{error:#}"));
    if exit == Exit::Usage {
        line = with_help(&line, typed::command(words).as_deref());
    }
    if let Some(error) = error.downcast_ref::<Error>() {
        line += &how_to_start(error);
        if error.doctor_knows_more {
            line += DOCTOR;
        }
    }
    if !line.is_empty() {
        report::error(line);
    }
    exit
}

/// Returns the message of a mistake, with the command that shows help.
pub fn with_help(what: &str, command: Option<&str>) -> String {
    let command = command.map_or(String::new(), |name| format!(" {name}"));
    let end = if what.ends_with('?') { "" } else { ";" };
    format!("{what}{end} see redlock{command} -h")
}

/// Returns true if a word is the URL of a Redis, or a URL with a user or a password.
pub fn is_private_url(word: &str) -> bool {
    word.split_once("://").is_some_and(|(scheme, rest)| {
        let scheme = scheme.to_ascii_lowercase();
        scheme.starts_with("redis") || scheme == "unix" || rest.contains('@')
    })
}

/// Refuses a server's URL where a name belongs. The message
/// doesn't repeat the URL, because it may contain a password.
pub fn refuse_url(text: &str) -> Result<()> {
    if is_private_url(text) {
        let line = "a URL stands where the lock's NAME belongs; give the URL of a Redis with --url";
        return refuse(Exit::Usage, line.into());
    }
    Ok(())
}

/// Reads a lock's name.
pub fn name(text: &str) -> Result<Name> {
    refuse_url(text)?;
    // Text processors turn hyphens into these dashes.
    if text.starts_with(['\u{2013}', '\u{2014}']) {
        let line = format!("a lock's name can't begin with a dash: {text:?}");
        return refuse(Exit::Usage, line);
    }
    let refused = |why| {
        let hint = if is_pattern(text) {
            let status = report::command_line(&["redlock", "status", text].map(str::to_owned));
            format!("; `{status}` lists the locks that match")
        } else {
            String::new()
        };
        Refusal(Exit::Usage, format!("{why}: {text:?}{hint}"))
    };
    Ok(text.parse().map_err(refused)?)
}

/// Reads names, and drops repeated ones.
pub fn parse_names(texts: &[String]) -> Result<Vec<Name>> {
    let mut names = Vec::new();
    for text in texts {
        let name = name(text)?;
        if !names.contains(&name) {
            names.push(name);
        }
    }
    Ok(names)
}
