//! `redlock fence`: keeps the largest fencing token so far in a file, and refuses smaller ones. Needs no Redis.

use std::fs::{self, File, Metadata, OpenOptions, TryLockError};
use std::io::{self, ErrorKind, Read};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result};

use crate::cli;
use crate::decide::exit::Exit;
use crate::usage::{Refusal, refuse};
use crate::variables::FENCE;

/// Number of tries to lock FILE, and the pause between them: 10 s in all. A `redlock fence` locks the file
/// only for two disk writes. So 10 s mean a hung disk, or a program that has nothing to do with fences.
const TRIES: u32 = 1000;
const AGAIN: Duration = Duration::from_millis(10);

/// Writes this job's number to the file, unless the file contains a larger one.
pub fn fence(options: &cli::Fence) -> Result<Exit> {
    let ours = options.number.map_or_else(from_environment, Ok)?;
    let path = options.file.display();
    raise(&options.file, ours).or_else(|error| match error.downcast_ref().map(io::Error::kind) {
        Some(ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem) => {
            let line = format!(
                "{error:#}; the user who runs `redlock fence` must be able to read and write {path}, \
                 and to create it if it is missing"
            );
            refuse(Exit::Refused, line)
        }
        _ => Err(error),
    })
}

fn raise(file: &Path, ours: u64) -> Result<Exit> {
    let (path, locked) = (file.display(), open(file)?);
    let mut bytes = Vec::new();
    // Reads more bytes than any number has, so that a large file isn't mistaken for a fence file.
    let read = (&locked).take(100).read_to_end(&mut bytes);
    read.with_context(|| format!("can't read {path}"))?;
    if bytes.is_empty() {
        // Done before the first number is written, so that a crash can't lose a file with a number in it.
        sync_directory(file, &locked)
            .with_context(|| format!("can't write the directory of {path}"))?;
    }
    let seen = number_in(&bytes).ok_or_else(|| {
        let line = format!("{path} contains something other than a fencing token; left unchanged");
        Refusal(Exit::Config, line)
    })?;
    if ours < seen {
        let line = format!("fencing token {ours} is stale: {path} was last written with {seen}");
        return refuse(Exit::StaleFence, line);
    }
    write(&locked, ours, seen).with_context(|| format!("can't write {path}"))?;
    Ok(Exit::Success)
}

/// Writes this job's number if the one in the file is smaller. Then syncs the file to disk.
fn write(file: &File, ours: u64, seen: u64) -> io::Result<()> {
    if ours > seen {
        // Overwrites the old number in a single write, so that a crash here leaves the old number or
        // the new one. The new number has at least as many digits, unless the file was edited by hand.
        let text = format!("{ours}\n");
        file.write_all_at(text.as_bytes(), 0)?;
        file.set_len(text.len() as u64)?;
    }
    // Syncs an equal number as well, because the process that wrote it may not have synced it.
    file.sync_data()
}

fn from_environment() -> Result<u64> {
    let text = std::env::var(FENCE).unwrap_or_default();
    let why = match text.parse() {
        Ok(number) => return Ok(number),
        Err(_) if text.is_empty() => "no fencing token: $REDLOCK_FENCE is not set".to_owned(),
        Err(_) => format!("$REDLOCK_FENCE is not a single number: {text:?}; give one as N"),
    };
    refuse(Exit::Usage, why)
}

/// Opens the file, and waits for the lock on it. Creates the file if it is missing.
fn open(path: &Path) -> Result<File> {
    let shown = path.display();
    let failed = || format!("can't lock {shown}");
    for _ in 0..TRIES {
        // Checked before the file is opened, because opening a device may affect it.
        let before = metadata(path).with_context(failed)?;
        if let Some(other) = &before {
            require_file(path, other)?;
        }
        let opened = OpenOptions::new()
            .read(true)
            .write(true)
            // In a directory like /tmp, the kernel refuses O_CREAT for an existing file of another user.
            .create(before.is_none())
            .truncate(false)
            // The path may lead to something else by now, which must not block redlock or become its terminal.
            .custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY | libc::O_NOFOLLOW)
            .open(path);
        let file = match opened {
            Err(error) if before.is_some() && error.kind() == ErrorKind::NotFound => continue,
            opened => opened.with_context(failed)?,
        };
        let ours = file.metadata().with_context(failed)?;
        require_file(path, &ours)?;
        let is_locked = match file.try_lock() {
            Err(TryLockError::WouldBlock) => false,
            Err(TryLockError::Error(error)) => return Err(error).with_context(failed),
            Ok(()) => true,
        };
        // Another process may have replaced the file meanwhile, so later runs would use the new one.
        let there = metadata(path).with_context(failed)?;
        let is_same = there.is_some_and(|it| (it.dev(), it.ino()) == (ours.dev(), ours.ino()));
        if is_locked && is_same {
            return Ok(file);
        }
        thread::sleep(AGAIN);
    }
    let line = format!(
        "other processes have kept {shown} locked for 10s, or keep replacing it; `lsof {shown}` shows them; try again when they are done"
    );
    refuse(Exit::Busy(cli::BUSY), line)
}

/// Returns the metadata of a path, if it exists. Doesn't follow links.
fn metadata(path: &Path) -> io::Result<Option<Metadata>> {
    match fs::symlink_metadata(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        there => there.map(Some),
    }
}

/// Refuses everything except a regular file, because another user may redirect a link.
fn require_file(path: &Path, metadata: &Metadata) -> Result<()> {
    if metadata.is_file() {
        return Ok(());
    }
    let line = format!(
        "{} is a link, a directory, a named pipe, a socket or a device; `redlock fence` needs a regular file, and creates one if the path is free",
        path.display()
    );
    refuse(Exit::Config, line)
}

/// Syncs the directory, so that a new file's name survives a crash of the machine.
fn sync_directory(path: &Path, file: &File) -> io::Result<()> {
    use ErrorKind::{InvalidInput, PermissionDenied};
    // The path may contain a symbolic link to another directory.
    let path = fs::canonicalize(path)?;
    let directory = path.parent().unwrap_or(Path::new("/"));
    match File::open(directory).and_then(|directory| directory.sync_all()) {
        // Some file systems can't sync directories, and a user may be able to write a directory without reading it.
        Err(error) if matches!(error.kind(), PermissionDenied | InvalidInput) => {
            Ok(nix::unistd::syncfs(file)?)
        }
        synced => synced,
    }
}

/// Returns the number in a fence file, and 0 for an empty one. Returns `None` if this isn't a fence file.
fn number_in(bytes: &[u8]) -> Option<u64> {
    if bytes.is_empty() {
        return Some(0);
    }
    let text = std::str::from_utf8(bytes).ok()?;
    text.strip_suffix('\n').unwrap_or(text).parse().ok()
}
