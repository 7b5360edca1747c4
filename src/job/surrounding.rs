//! The locks of the job that this process belongs to, according to its environment.

use std::path::Path;

use anyhow::Result;

use crate::cli;
use crate::config::Settings;
use crate::decide::exit::Exit;
use crate::file;
use crate::protocol::{Claim, Name, Token};
use crate::reason::reason;
use crate::supervise::environment;
use crate::usage::{Refusal, name, refuse};

/// Error if neither a lock's name nor a job is given.
pub const NO_NAME: &str = "no lock NAME given, and $REDLOCK_NAME is not set";

/// Returns the named lock, or all locks of the surrounding run.
/// Returns a lock's name as the error if its token is unknown.
pub fn claims(ours: &cli::OwnLock, settings: &Settings) -> Result<Result<Vec<Claim>, Name>> {
    let of_run = environment::names().unwrap_or_default();
    let of_run: Vec<&str> = of_run.split_whitespace().collect();
    let names = match &ours.name {
        Some(name) => vec![name.as_str()],
        None => of_run.clone(),
    };
    if names.is_empty() {
        return refuse(Exit::Usage, NO_NAME.into());
    }
    let names: Vec<Name> = names.into_iter().map(name).collect::<Result<_>>()?;
    let given = ours.token_file.as_deref().map(token_from).transpose()?;
    let around = environment::inherited();
    let claim = |name: Name| -> Result<Claim, Name> {
        // Searches backwards, because the innermost hold is the last.
        let outer = around.iter().rev().find(|hold| hold.name == name);
        let token = given
            .clone()
            .or_else(|| environment::token_of(&name, &of_run))
            .or_else(|| outer.map(|hold| hold.token.clone()));
        let token = token.ok_or_else(|| name.clone())?;
        Ok(Claim::resume(settings.locks.lock(name), token))
    };
    Ok(names.into_iter().map(claim).collect())
}

/// Reads a token from a file.
fn token_from(path: &Path) -> Result<Token> {
    let text = file::read_or_input(path).map_err(|error| {
        let (path, reason) = (path.display(), reason(&error));
        Refusal(
            Exit::Usage,
            format!("can't read the token file {path}: {reason}"),
        )
    })?;
    Ok(Token::read(text).ok_or_else(|| Refusal(Exit::Usage, "the token file is empty".into()))?)
}
