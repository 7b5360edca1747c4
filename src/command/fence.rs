//! `redlock fence`: a file that knows the largest fence it has seen, and refuses smaller ones. Needs no
//! Redis.

use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::FileExt;

use anyhow::{Context, Result};
use nix::fcntl::{Flock, FlockArg};

use super::BadUsage;
use crate::cli;
use crate::config::BadConfig;
use crate::exit::Exit;
use crate::report;

/// Raises the file to our number, unless it holds a larger one.
pub fn fence(options: &cli::Fence) -> Result<Exit> {
    let ours = match options.number {
        Some(number) => number,
        None => from_environment()?,
    };
    let path = options.file.display();
    let file = open(options).with_context(|| format!("can't lock {path}"))?;
    let seen = read(&file).with_context(|| format!("can't read {path}"))?;
    let Some(seen) = seen else {
        let line = format!("{path} holds something else than a fence; it is left alone");
        return Err(BadConfig(line).into());
    };
    if ours < seen {
        report::error(format_args!(
            "a later holder of the lock, with fence {seen}, has been at {path}; this is {ours}"
        ));
        return Ok(Exit::Outdated);
    }
    if ours > seen {
        // One write over the old number, which is no longer unless it was written by hand: whoever
        // dies here leaves one of the two.
        let text = format!("{ours}\n");
        file.write_all_at(text.as_bytes(), 0)
            .and_then(|()| file.set_len(text.len() as u64))
            .and_then(|()| file.sync_data())
            .with_context(|| format!("can't write {path}"))?;
    }
    Ok(Exit::Success)
}

fn from_environment() -> Result<u64> {
    let text = std::env::var("REDLOCK_FENCE").unwrap_or_default();
    let why = match text.parse() {
        Ok(number) => return Ok(number),
        Err(_) if text.is_empty() => "which number? $REDLOCK_FENCE is not set".to_owned(),
        Err(_) if text.contains(' ') => "which number? $REDLOCK_FENCE has several".to_owned(),
        Err(_) => format!("$REDLOCK_FENCE is no number: {text:?}"),
    };
    Err(BadUsage(why).into())
}

/// Opens the file, makes it where it isn't there, and waits for the lock on it.
fn open(options: &cli::Fence) -> io::Result<Flock<File>> {
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .open(&options.file)?;
    Flock::lock(file, FlockArg::LockExclusive).map_err(|(_, error)| error.into())
}

/// The number in the file: 0 in an empty one, `None` where there is something else.
fn read(file: &File) -> io::Result<Option<u64>> {
    let mut text = String::new();
    // More than a number has; a large file is no fence.
    match file.take(100).read_to_string(&mut text) {
        Ok(_) if text.is_empty() => Ok(Some(0)),
        Ok(_) => Ok(text.strip_suffix('\n').unwrap_or(&text).parse().ok()),
        Err(error) if error.kind() == io::ErrorKind::InvalidData => Ok(None),
        Err(error) => Err(error),
    }
}
