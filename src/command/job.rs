//! The locks of the job that we are part of, by its environment.

use std::io::Read;
use std::os::unix::ffi::OsStringExt;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};

use super::take::inherited;
use super::{BadUsage, name};
use crate::cli;
use crate::config::Settings;
use crate::lock::{Claim, Lock, Name};

/// What a job says it holds.
pub enum Held {
    /// With its token: what can be extended, checked and released.
    Claims(Vec<Claim>),
    /// There is no token for this name.
    Unknown(Name),
}

/// The locks that are meant: the one of that name, or all of the run that we are in. `ttl` is for how
/// long a renewal makes them last.
pub fn held(ours: &cli::Ours, settings: &Settings, ttl: Duration) -> Result<Held> {
    let of_run: Vec<String> = words("REDLOCK_NAME");
    let names = match &ours.name {
        Some(name) => vec![name.clone()],
        None => of_run.clone(),
    };
    if names.is_empty() {
        return Err(BadUsage("which lock? give its NAME".into()).into());
    }
    let names: Vec<Name> = names.iter().map(|text| name(text)).collect::<Result<_>>()?;
    let claim = |name: &Name, token: Vec<u8>| {
        let lock = Lock::new(&settings.namespace, name.clone());
        Claim::resume(lock, token, ttl)
    };
    if let Some(path) = &ours.token_file {
        let token = token_from(path)?;
        let claims = names.iter().map(|name| claim(name, token.clone()));
        return Ok(Held::Claims(claims.collect()));
    }
    let around = inherited();
    let mut claims = Vec::new();
    for name in names {
        // The innermost comes last.
        let outer = || around.iter().rev().find(|(of, _)| *of == name);
        let token = token_of(&name, &of_run).or_else(|| outer().map(|(_, token)| token.clone()));
        match token {
            Some(token) => claims.push(claim(&name, token)),
            None => return Ok(Held::Unknown(name)),
        }
    }
    Ok(Held::Claims(claims))
}

fn words(variable: &str) -> Vec<String> {
    let value = std::env::var(variable).unwrap_or_default();
    value.split_whitespace().map(str::to_owned).collect()
}

/// The token in the environment for this name. One alone may be of any bytes, and stands for the name
/// that was given where the environment names none.
fn token_of(name: &Name, of_run: &[String]) -> Option<Vec<u8>> {
    let whole = std::env::var_os("REDLOCK_TOKEN").filter(|token| !token.is_empty())?;
    match of_run {
        [] => Some(whole.into_vec()),
        [only] if only == name.as_str() => Some(whole.into_vec()),
        several => {
            let at = several.iter().position(|of| of == name.as_str())?;
            words("REDLOCK_TOKEN")
                .get(at)
                .map(|token| token.clone().into_bytes())
        }
    }
}

/// The token that a file holds, without the newline at its end.
fn token_from(path: &Path) -> Result<Vec<u8>> {
    let mut token = Vec::new();
    if path == Path::new("-") {
        std::io::stdin()
            .read_to_end(&mut token)
            .context("can't read the token")?;
    } else {
        token = std::fs::read(path).map_err(|error| {
            BadUsage(format!(
                "can't read the token file {}: {error}",
                path.display()
            ))
        })?;
    }
    while token.last().is_some_and(u8::is_ascii_whitespace) {
        token.pop();
    }
    if token.is_empty() {
        return Err(BadUsage("the token file is empty".into()).into());
    }
    Ok(token)
}
