//! The locks of this process's job, by its environment.

use std::path::Path;

use anyhow::{Context, Result};

use super::usage::{BadUsage, name};
use crate::cli;
use crate::config::Settings;
use crate::file;
use crate::protocol::{Claim, Name, Token};
use crate::report;
use crate::supervise::environment;

/// What a job says it holds.
pub enum Held {
    /// With its token: what can be extended, checked and released.
    Claims(Vec<Claim>),
    /// No token is known for this name.
    Unknown(Name),
}

/// The locks that are meant: the one of that name, or all of the run that we are in.
pub fn held(ours: &cli::OwnLock, settings: &Settings) -> Result<Held> {
    let of_run = environment::names().unwrap_or_default();
    let of_run: Vec<&str> = of_run.split_whitespace().collect();
    let names = match &ours.name {
        Some(name) => vec![name.as_str()],
        None => of_run.clone(),
    };
    if names.is_empty() {
        return Err(BadUsage("no lock NAME given, and $REDLOCK_NAME is not set".into()).into());
    }
    let names: Vec<Name> = names.into_iter().map(name).collect::<Result<_>>()?;
    let claim = |name: &Name, token| Claim::resume(settings.locks.lock(name.clone()), token);
    if let Some(path) = &ours.token_file {
        let token = token_from(path)?;
        let claims = names.iter().map(|name| claim(name, token.clone()));
        return Ok(Held::Claims(claims.collect()));
    }
    let around = environment::inherited();
    let mut claims = Vec::new();
    for name in names {
        // The innermost comes last.
        let outer = || around.iter().rev().find(|(of, _)| *of == name);
        let token = environment::token_of(&name, &of_run);
        match token.or_else(|| outer().map(|(_, token)| token.clone())) {
            Some(token) => claims.push(claim(&name, token)),
            None => return Ok(Held::Unknown(name)),
        }
    }
    Ok(Held::Claims(claims))
}

/// The same; `None` after a message where this job has no token.
pub fn claims(ours: &cli::OwnLock, settings: &Settings) -> Result<Option<Vec<Claim>>> {
    match held(ours, settings)? {
        Held::Claims(claims) => Ok(Some(claims)),
        Held::Unknown(name) => {
            let hint = match cli::positive_duration(name.as_str()) {
                Ok(_) => "; a time follows --for, as one word: --for 1h30m",
                Err(_) => "",
            };
            report::error(format_args!(
                "no token for lock \"{name}\": run this inside `redlock run` or after `redlock acquire`, or give --token-file{hint}"
            ));
            Ok(None)
        }
    }
}

/// The token that a file holds.
fn token_from(path: &Path) -> Result<Token> {
    let text = if path == Path::new("-") {
        file::read_all(std::io::stdin()).context("can't read the token")?
    } else {
        file::read(path).map_err(|error| {
            BadUsage(format!(
                "can't read the token file {}: {}",
                path.display(),
                crate::reason::reason(&error)
            ))
        })?
    };
    Ok(Token::read(text).ok_or_else(|| BadUsage("the token file is empty".into()))?)
}

/// The locks that the environment names with their tokens, each once; of a lock that is there twice the innermost.
pub(super) fn held_by_job() -> Vec<(Name, Token)> {
    let of_run = environment::names().unwrap_or_default();
    let of_run: Vec<&str> = of_run.split_whitespace().collect();
    let own = of_run.iter().filter_map(|text| {
        let name = name(text).ok()?;
        let token = environment::token_of(&name, &of_run)?;
        Some((name, token))
    });
    innermost(environment::inherited().into_iter().chain(own))
}

/// Returns each lock once: of a lock that is there twice the innermost hold, which comes last.
pub(super) fn innermost(all: impl IntoIterator<Item = (Name, Token)>) -> Vec<(Name, Token)> {
    let mut held: Vec<(Name, Token)> = Vec::new();
    for (name, token) in all {
        held.retain(|(of, _)| *of != name);
        held.push((name, token));
    }
    held
}
