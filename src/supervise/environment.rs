//! The variables by which a job knows its locks: a run and an acquire write them, and the commands of
//! the job read them.

use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};

use crate::protocol::{Name, Token};
use crate::variables::{GUARD, HELD, NAME, TOKEN};

/// Variables for what works under the locks.
pub type Environment = Vec<(&'static str, OsString)>;

/// What the environment of a process says about the lock under which it was started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// It has the token of the hold in question.
    Ours,
    /// It has other tokens only.
    OfOthers,
    /// Nothing.
    Unsaid,
}

/// A hold of a job, as `REDLOCK_HELD` tells it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobHold {
    pub name: Name,
    pub token: Token,
    /// A run within the one that holds the lock uses it, too, and has nothing of it to release.
    pub is_reentered: bool,
}

impl JobHold {
    pub fn is_of(&self, name: &Name, token: &Token) -> bool {
        &self.name == name && &self.token == token
    }
}

/// What a job finds that runs without its locks. What the runs around this one hold stays true.
pub fn unlocked(names: &[Name]) -> Environment {
    let held = std::env::var_os(HELD).map(|held| (HELD, held));
    [(NAME, list_of(names))].into_iter().chain(held).collect()
}

/// Names as a job finds them.
pub fn list_of(names: &[Name]) -> OsString {
    let names: Vec<&str> = names.iter().map(Name::as_str).collect();
    names.join(" ").into()
}

/// Returns `NAME=TOKEN`, or `NAME~TOKEN` for a lock that is reentered.
pub fn entry(name: &Name, token: &Token, is_reentered: bool) -> OsString {
    let separator = if is_reentered { b"~" } else { b"=" };
    OsString::from_vec([name.as_str().as_bytes(), separator, token.as_bytes()].concat())
}

/// The names of the locks of the run that we are in, as the environment has them.
pub fn names() -> Option<String> {
    std::env::var(NAME).ok()
}

/// The token of a lock; `of_run` are the names of the run that we are in. One alone may be of any
/// bytes, and stands for the name that was given where the environment names none.
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

/// Returns what the runs around this one hold.
pub fn inherited() -> Vec<JobHold> {
    let held = std::env::var_os(HELD).unwrap_or_default();
    read_held(held.as_bytes())
}

/// Whether this is a hold of an outer run or script, which a job has only reentered.
pub fn is_reentered(name: &Name, token: &Token) -> bool {
    let mut held = inherited().into_iter();
    held.any(|hold| hold.is_reentered && hold.is_of(name, token))
}

/// Returns what the environment of a process, as `NAME=value` texts that end with a zero byte, says about the holds and
/// guards with these ids.
pub fn origin_of(environment: &[u8], ids: &[String]) -> Origin {
    let variable = |name: &str| {
        let mut variables = environment.split(|&byte| byte == 0);
        let value =
            variables.find_map(|text| text.strip_prefix(name.as_bytes())?.strip_prefix(b"="));
        value.unwrap_or_default()
    };
    let mut guards = variable(GUARD).split(|&byte| byte == b' ');
    let has_guard = guards.any(|guard| ids.iter().any(|id| id.as_bytes() == guard));
    let held = read_held(variable(HELD));
    if has_guard || held.iter().any(|hold| ids.contains(&hold.token.id())) {
        Origin::Ours
    } else if held.is_empty() {
        Origin::Unsaid
    } else {
        Origin::OfOthers
    }
}

/// Reads `NAME=TOKEN …`. What isn't of that form is not a hold.
pub fn read_held(held: &[u8]) -> Vec<JobHold> {
    entries(held).flatten().collect()
}

/// Reads `NAME=TOKEN …`; `None` if any of it isn't of that form.
pub fn parse_held(held: &[u8]) -> Option<Vec<JobHold>> {
    entries(held).collect()
}

fn entries(held: &[u8]) -> impl Iterator<Item = Option<JobHold>> {
    let entries = held.split(|&byte| byte == b' ');
    entries.filter(|entry| !entry.is_empty()).map(|entry| {
        // A token has neither = nor ~, but a name may have both.
        let middle = entry.iter().rposition(|byte| b"=~".contains(byte))?;
        Some(JobHold {
            name: std::str::from_utf8(&entry[..middle]).ok()?.parse().ok()?,
            token: Token::read(entry[middle + 1..].to_vec())?,
            is_reentered: entry[middle] == b'~',
        })
    })
}
