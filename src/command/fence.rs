//! `redlock fence`: a file that keeps the largest fencing token it has seen, and refuses smaller ones. Needs no
//! Redis.

use std::fs::{self, File, Metadata, OpenOptions};
use std::io::{self, ErrorKind, Read};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result};
use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};

use super::usage::refuse;
use crate::cli;
use crate::config::BadConfig;
use crate::decide::exit::Exit;
use crate::variables::FENCE;

/// Number of tries to lock FILE, and the pause between two of them: ten seconds together. Each process holds the lock for
/// two writes to the disk, so that only a process that has nothing to do with fences, or whose disk hangs, holds it that long.
const TRIES: u32 = 1000;
const AGAIN: Duration = Duration::from_millis(10);

/// Raises the file to our number, unless it holds a larger one.
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
    // More than a number has; a large file isn't a fence file.
    let read = (&*locked).take(100).read_to_end(&mut bytes);
    read.with_context(|| format!("can't read {path}"))?;
    if bytes.is_empty() {
        // Before the first number, so that no file with a number in it is lost in a crash.
        sync_directory(file, &locked)
            .with_context(|| format!("can't write the directory of {path}"))?;
    }
    let seen = number_in(&bytes).ok_or_else(|| {
        BadConfig(format!(
            "{path} contains something other than a fencing token; left unchanged"
        ))
    })?;
    if ours < seen {
        let line = format!("fencing token {ours} is stale: {path} was last written with {seen}");
        return refuse(Exit::StaleFence, line);
    }
    write(&locked, ours, seen).with_context(|| format!("can't write {path}"))?;
    Ok(Exit::Success)
}

/// Writes our number, if the file has a smaller one, to the disk.
fn write(file: &File, ours: u64, seen: u64) -> io::Result<()> {
    if ours > seen {
        // A single write over the old number, which has no more digits unless somebody wrote it by hand: a process
        // that dies here leaves the old number or the new one.
        let text = format!("{ours}\n");
        file.write_all_at(text.as_bytes(), 0)?;
        file.set_len(text.len() as u64)?;
    }
    // Also a number that was there: the process that wrote it may not have come this far.
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

/// Opens the file, creates it if it is missing, and waits for the lock on it.
fn open(path: &Path) -> Result<Flock<File>> {
    let shown = path.display();
    let failed = || format!("can't lock {shown}");
    for _ in 0..TRIES {
        // Opening a device may do something to it.
        let before = metadata(path).with_context(failed)?;
        if let Some(other) = &before {
            require_file(path, other)?;
        }
        let opened = OpenOptions::new()
            .read(true)
            .write(true)
            // In a directory like /tmp, the kernel refuses to "create" a file that is there and another user's.
            .create(before.is_none())
            .truncate(false)
            // If the path leads to something else by now, that must not hold redlock up, or become its terminal.
            .custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY | libc::O_NOFOLLOW)
            .open(path);
        let file = match opened {
            Err(error) if before.is_some() && error.kind() == ErrorKind::NotFound => continue,
            opened => opened.with_context(failed)?,
        };
        let ours = file.metadata().with_context(failed)?;
        require_file(path, &ours)?;
        let locked = match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
            Err((_, Errno::EWOULDBLOCK)) => None,
            locked => Some(locked.map_err(|(_, errno)| errno).with_context(failed)?),
        };
        // Another process may have replaced the file meanwhile: runs that come now look at the new one.
        let there = metadata(path).with_context(failed)?;
        let is_same = there.is_some_and(|it| (it.dev(), it.ino()) == (ours.dev(), ours.ino()));
        if let Some(locked) = locked.filter(|_| is_same) {
            return Ok(locked);
        }
        thread::sleep(AGAIN);
    }
    let line = format!(
        "other processes have kept {shown} locked for 10s, or keep replacing it; `lsof {shown}` shows them; try again when they are done"
    );
    refuse(Exit::Busy(cli::BUSY), line)
}

/// Returns what is at a path, if anything is.
fn metadata(path: &Path) -> io::Result<Option<Metadata>> {
    match fs::symlink_metadata(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        there => there.map(Some),
    }
}

/// Refuses anything but a regular file: another user may lead a link elsewhere.
fn require_file(path: &Path, metadata: &Metadata) -> Result<(), BadConfig> {
    if metadata.is_file() {
        return Ok(());
    }
    Err(BadConfig(format!(
        "{} is a link, a directory, a named pipe, a socket or a device; `redlock fence` needs a regular file, and creates one if the path is free",
        path.display()
    )))
}

/// Has the name of a new file outlive a crash of the machine.
fn sync_directory(path: &Path, file: &File) -> io::Result<()> {
    // A symbolic link may lead to another directory.
    let path = fs::canonicalize(path)?;
    let directory = path.parent().unwrap_or(Path::new("/"));
    match File::open(directory).and_then(|directory| directory.sync_all()) {
        // Not every file system syncs directories, and not every user who may write one may open it.
        Err(error)
            if error.kind() == ErrorKind::PermissionDenied
                || error.raw_os_error() == Some(libc::EINVAL) =>
        {
            Ok(nix::unistd::syncfs(file)?)
        }
        synced => synced,
    }
}

/// Returns the number in a fence file, 0 for an empty one; `None` if it isn't a fence file.
fn number_in(bytes: &[u8]) -> Option<u64> {
    if bytes.is_empty() {
        return Some(0);
    }
    let text = std::str::from_utf8(bytes).ok()?;
    text.strip_suffix('\n').unwrap_or(text).parse().ok()
}
