//! `redlock fence`: a file that keeps the largest fencing token it has seen, and refuses smaller ones. Needs no
//! Redis.

use std::fs::{self, File, Metadata, OpenOptions};
use std::io::{self, ErrorKind, Read};
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::sync::mpsc;
use std::time::Duration;

use anyhow::{Context, Result};
use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};

use super::usage::refuse;
use crate::cli;
use crate::clock::now;
use crate::config::BadConfig;
use crate::decide::exit::Exit;
use crate::duration;
use crate::supervise::environment;

/// How long to wait for FILE's lock. Each holds it for two writes to the disk, so that only one who
/// has nothing to do with fences, or whose disk hangs, holds it for this long.
const LOCK_TIMEOUT: Duration = Duration::from_secs(10);

/// How often FILE is opened again that others replace or remove, before we say so.
const ATTEMPTS: u32 = 100;

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
    let text = environment::fence();
    let why = match text.parse() {
        Ok(number) => return Ok(number),
        Err(_) if text.is_empty() => "no fencing token: $REDLOCK_FENCE is not set".to_owned(),
        Err(_) if text.contains(' ') => {
            "no fencing token: $REDLOCK_FENCE has several numbers; give one of them as N".to_owned()
        }
        Err(_) => format!("$REDLOCK_FENCE is not a number: {text:?}"),
    };
    refuse(Exit::Usage, why)
}

/// Opens the file, makes it where it isn't there, and waits for the lock on it.
fn open(path: &Path) -> Result<Flock<File>> {
    let shown = path.display();
    let failed = || format!("can't lock {shown}");
    let until = now() + LOCK_TIMEOUT;
    for _ in 0..ATTEMPTS {
        // Looked at before it is opened, as opening a device may do something to it.
        let before = metadata(path).with_context(failed)?;
        if let Some(other) = &before {
            require_file(path, other)?;
        }
        let opened = OpenOptions::new()
            .read(true)
            .write(true)
            // Asked for only where it is needed: in a directory like /tmp, the kernel refuses to
            // "create" a file that is there and another user's.
            .create(before.is_none())
            .truncate(false)
            // What has come to that path since then must not hold us up, or become our terminal.
            .custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY | libc::O_NOFOLLOW)
            .open(path);
        let file = match opened {
            Err(error) if before.is_some() && error.kind() == ErrorKind::NotFound => continue,
            opened => opened.with_context(failed)?,
        };
        let ours = file.metadata().with_context(failed)?;
        require_file(path, &ours)?;
        let Some(locked) = lock(file, until.since(now())).with_context(failed)? else {
            let long = duration::exact(LOCK_TIMEOUT);
            let line = format!(
                "another process has kept {shown} locked for {long}; `lsof {shown}` shows that process; try again \
                 when it is done"
            );
            return refuse(Exit::Busy(cli::BUSY), line);
        };
        // While we waited, the file may have been replaced: runs that come now look at the new one.
        let there = metadata(path).with_context(failed)?;
        if there.is_some_and(|there| (there.dev(), there.ino()) == (ours.dev(), ours.ino())) {
            return Ok(locked);
        }
    }
    let line =
        format!("other programs keep replacing or removing {shown}; stop them, and try again");
    refuse(Exit::Busy(cli::BUSY), line)
}

/// Returns what is at a path, if anything is.
fn metadata(path: &Path) -> io::Result<Option<Metadata>> {
    match fs::symlink_metadata(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        there => there.map(Some),
    }
}

/// Refuses anything but a regular file.
fn require_file(path: &Path, metadata: &Metadata) -> Result<(), BadConfig> {
    let (path, kind) = (path.display(), metadata.file_type());
    let kinds = [
        (kind.is_dir(), "a directory"),
        (
            kind.is_symlink(),
            "a link, which another user may lead elsewhere",
        ),
        (kind.is_fifo(), "a named pipe"),
        (kind.is_socket(), "a socket"),
        (!kind.is_file(), "a device"),
    ];
    match kinds.into_iter().find(|(is_kind, _)| *is_kind) {
        Some((_, kind)) => Err(BadConfig(format!(
            "{path} is {kind}; `redlock fence` needs a regular file, and creates one if the path is free"
        ))),
        None => Ok(()),
    }
}

/// Takes the lock on a file; `None` when another process keeps it for the whole time.
fn lock(file: File, timeout: Duration) -> io::Result<Option<Flock<File>>> {
    let file = match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
        Ok(locked) => return Ok(Some(locked)),
        Err((file, Errno::EWOULDBLOCK)) => file,
        Err((_, error)) => return Err(error.into()),
    };
    // The kernel serves waiting processes in order, but has no time limit. So a thread waits for the lock; if it never
    // gets it, it ends with this process.
    let (sender, receiver) = mpsc::channel();
    std::thread::Builder::new()
        .name("flock".into())
        .spawn(move || sender.send(Flock::lock(file, FlockArg::LockExclusive)))?;
    match receiver.recv_timeout(timeout) {
        Ok(locked) => Ok(Some(locked.map_err(|(_, errno)| errno)?)),
        Err(_) => Ok(None),
    }
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
