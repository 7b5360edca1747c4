//! `redlock release`: give a lock back by its token, or take it from its holder by force.

use std::io::Read;
use std::path::Path;

use anyhow::{Context, Result};

use super::{BadUsage, name, ourselves};
use crate::cli;
use crate::config::Settings;
use crate::exit::Exit;
use crate::lock::{Claim, Forced, Key, Link, Lock, Release, inspect};
use crate::report;

/// Releases a lock.
pub fn release(options: &cli::Release, settings: &Settings) -> Result<Exit> {
    let inherited = std::env::var("REDLOCK_NAME").ok();
    let Some(text) = options.name.as_ref().or(inherited.as_ref()) else {
        return Err(BadUsage("which lock? give its NAME".into()).into());
    };
    let lock = Lock::new(&settings.prefix, name(text)?);
    if options.force {
        return force(&lock, options.id.as_deref(), settings);
    }
    let token = match &options.token_file {
        Some(path) => Some(token_from(path)?),
        None => std::env::var_os("REDLOCK_TOKEN")
            .filter(|token| !token.is_empty())
            .map(std::os::unix::ffi::OsStringExt::into_vec),
    };
    match token {
        Some(token) => give_back(lock, token, settings),
        None => refuse(&lock, settings),
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

fn give_back(lock: Lock, token: Vec<u8>, settings: &Settings) -> Result<Exit> {
    let within = settings.server.timeout;
    let mut link = Link::open(&settings.server)?;
    let claim = Claim::resume(lock, token, std::time::Duration::ZERO);
    match claim.release(&mut link, true, within)? {
        Release::Released => {
            settings
                .voice
                .detail(format_args!("released lock \"{}\"", claim.lock().name()));
            Ok(Exit::Success)
        }
        Release::Returned => {
            let name = claim.lock().name();
            report::error(format_args!("lock \"{name}\" was given back before"));
            Ok(Exit::Lost)
        }
        Release::NotOurs(loss) => {
            let name = claim.lock().name();
            let now = match (loss.forced_by, loss.holder) {
                (Some(by), _) => format!("{} took it by force", report::by(&by)),
                (None, Some(holder)) => format!("it is held by {}", report::by(&holder.who)),
                (None, None) => format!("see `redlock status {name}`"),
            };
            report::error(format_args!(
                "lock \"{name}\" is not held with this token; {now}"
            ));
            Ok(Exit::Lost)
        }
    }
}

/// Without a token: says who holds the lock, and changes nothing.
fn refuse(lock: &Lock, settings: &Settings) -> Result<Exit> {
    let mut link = Link::open(&settings.server)?;
    let found = inspect(
        &mut link,
        &settings.prefix,
        std::slice::from_ref(lock.name()),
    )?;
    let name = lock.name();
    let Some(found) = found.first() else {
        return Ok(Exit::Lost);
    };
    match (&found.key, found.holds()) {
        (Key::NotALock(kind), _) => report::error(format_args!(
            "\"{name}\" is no lock: the key holds a {kind}; it is left alone"
        )),
        (_, []) => report::error(format_args!("lock \"{name}\" is not held")),
        (_, [hold, others @ ..]) => {
            let whom = report::holder(hold.holder.as_ref());
            let beside = match others.len() {
                0 => String::new(),
                others => format!(" and {others} more"),
            };
            let until = report::left(hold.left);
            let id = &hold.id;
            report::error(format_args!(
                "lock \"{name}\" is held by {whom}{beside} {until}; without its token only --force frees it (--force --id {id} frees just this holder)"
            ));
        }
    }
    Ok(Exit::Lost)
}

fn force(lock: &Lock, id: Option<&str>, settings: &Settings) -> Result<Exit> {
    let mut link = Link::open(&settings.server)?;
    let name = lock.name();
    let by = ourselves();
    match lock.force(&mut link, id, Some(&by), settings.server.timeout)? {
        Forced::Freed { holder, others } => {
            let whose = report::holder(holder.as_ref());
            let beside = match others {
                0 => String::new(),
                others => format!(" and {others} more"),
            };
            settings
                .voice
                .note(format_args!("lock \"{name}\" taken from {whose}{beside}"));
            Ok(Exit::Success)
        }
        Forced::WasFree => {
            report::error(format_args!("lock \"{name}\" is not held"));
            Ok(Exit::Lost)
        }
        Forced::Another(id, holder) => {
            let whose = report::holder(holder.as_ref());
            report::error(format_args!(
                "lock \"{name}\" is held by {whose} with id {id}, not by the one you named; nothing was changed"
            ));
            Ok(Exit::Lost)
        }
    }
}
