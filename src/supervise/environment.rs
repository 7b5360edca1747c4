//! Variables that tell a job its locks: `redlock run` and `redlock acquire`
//! write them, and redlock's other commands read them in the job.

use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};

use crate::protocol::{Name, Token};
use crate::variables::{GUARD, HELD, NAME, TOKEN};

/// Variables for the work that runs under the locks.
pub type Environment = Vec<(&'static str, OsString)>;

/// Lock under which a process was started, according to its environment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// The environment has the token of the hold in question.
    Ours,
    /// The environment has only other tokens.
    OfOthers,
    /// The environment names no lock.
    Unsaid,
}

/// A hold of a job, as listed in `REDLOCK_HELD`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobHold {
    pub name: Name,
    pub token: Token,
    /// An inner run uses the lock of an outer one, and must not release it.
    pub is_reentered: bool,
}

/// Returns the variables for a job that runs without its locks. The holds of outer runs stay listed.
pub fn unlocked(names: &[Name]) -> Environment {
    let held = std::env::var_os(HELD).map(|held| (HELD, held));
    [(NAME, list_of(names))].into_iter().chain(held).collect()
}

/// Returns names in the form of `REDLOCK_NAME`.
pub fn list_of(names: &[Name]) -> OsString {
    let names: Vec<&str> = names.iter().map(Name::as_str).collect();
    names.join(" ").into()
}

/// Returns `NAME=TOKEN`, or `NAME~TOKEN` for a lock that is reentered.
pub fn entry(name: &Name, token: &Token, is_reentered: bool) -> OsString {
    let separator = if is_reentered { b"~" } else { b"=" };
    OsString::from_vec([name.as_str().as_bytes(), separator, token.as_bytes()].concat())
}

/// Returns the names of the locks of the surrounding run, from the environment.
pub fn names() -> Option<String> {
    std::env::var(NAME).ok()
}

/// Returns the token of a lock; `of_run` are the locks of the surrounding run. A single token
/// may consist of any bytes, and belongs to any given name if the environment names no lock.
pub fn token_of(name: &Name, of_run: &[&str]) -> Option<Token> {
    let whole = std::env::var_os(TOKEN)?;
    match of_run {
        [] => Token::read(whole.into_vec()),
        [only] if *only == name.as_str() => Token::read(whole.into_vec()),
        several => {
            let at = several.iter().position(|of| *of == name.as_str())?;
            let token = whole.to_str()?.split_whitespace().nth(at)?;
            Token::read(token.into())
        }
    }
}

/// Returns the holds of the surrounding runs.
pub fn inherited() -> Vec<JobHold> {
    let held = std::env::var_os(HELD).unwrap_or_default();
    entries(held.as_bytes()).flatten().collect()
}

/// Returns true if this is a hold of an outer run or script that the job has reentered.
pub fn is_reentered(name: &Name, token: &Token) -> bool {
    let mut held = inherited().into_iter();
    held.any(|hold| (&hold.name, &hold.token, hold.is_reentered) == (name, token, true))
}

/// Returns whose locks a process was started under. `environment` has `NAME=value`
/// texts that end with a zero byte; `ids` are those of this run's holds and guards.
pub fn origin_of(environment: &[u8], ids: &[String]) -> Origin {
    let variable = |name: &str| {
        let mut variables = environment.split(|&byte| byte == 0);
        let value =
            variables.find_map(|text| text.strip_prefix(name.as_bytes())?.strip_prefix(b"="));
        value.unwrap_or_default()
    };
    let mut guards = variable(GUARD).split(|&byte| byte == b' ');
    let has_guard = guards.any(|guard| ids.iter().any(|id| id.as_bytes() == guard));
    let mut held = entries(variable(HELD)).flatten().peekable();
    let is_unsaid = held.peek().is_none();
    if has_guard || held.any(|hold| ids.contains(&hold.token.id())) {
        Origin::Ours
    } else if is_unsaid {
        Origin::Unsaid
    } else {
        Origin::OfOthers
    }
}

/// Reads `NAME=TOKEN …`. A malformed entry is `None`.
pub fn entries(held: &[u8]) -> impl Iterator<Item = Option<JobHold>> {
    let entries = held.split(|&byte| byte == b' ');
    entries.filter(|entry| !entry.is_empty()).map(|entry| {
        // A token contains neither = nor ~, but a name may contain both.
        let middle = entry.iter().rposition(|byte| b"=~".contains(byte))?;
        Some(JobHold {
            name: std::str::from_utf8(&entry[..middle]).ok()?.parse().ok()?,
            token: Token::read(entry[middle + 1..].to_vec())?,
            is_reentered: entry[middle] == b'~',
        })
    })
}
