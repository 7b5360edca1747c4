//! `redlock fence`: a file that keeps the largest fencing token it has seen, and refuses smaller ones. Needs no
//! Redis.

use std::fs::{self, File, FileType, Metadata, OpenOptions};
use std::io::{self, ErrorKind, Read};
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::sync::mpsc;
use std::time::Duration;

use anyhow::{Context, Result};
use nix::fcntl::{Flock, FlockArg};

use super::usage::BadUsage;
use crate::cli;
use crate::clock::now;
use crate::config::BadConfig;
use crate::decide::exit::Exit;
use crate::duration;
use crate::report;
use crate::supervise::environment;
use crate::sys;

/// How long to wait for FILE's lock. Each holds it for two writes to the disk, so that only one who
/// has nothing to do with fences, or whose disk hangs, holds it for this long.
const LOCK_TIMEOUT: Duration = Duration::from_secs(10);

/// How often FILE is opened again that others replace or remove, before we say so.
const ATTEMPTS: u32 = 100;

/// Raises the file to our number, unless it holds a larger one.
pub fn fence(options: &cli::Fence) -> Result<Exit> {
    let ours = match options.number {
        Some(number) => number,
        None => from_environment()?,
    };
    let path = options.file.display();
    raise(&options.file, ours).or_else(|error| match error.downcast_ref::<io::Error>() {
        Some(cause) if is_forbidden(cause) => {
            report::error(format_args!(
                "{error:#}; the user who runs `redlock fence` must be able to read and write {path}, \
                 and to create it if it is missing"
            ));
            Ok(Exit::Refused)
        }
        Some(_) | None => Err(error),
    })
}

fn is_forbidden(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem
    )
}

fn raise(file: &Path, ours: u64) -> Result<Exit> {
    let path = file.display();
    let locked = match open(file).with_context(|| format!("can't lock {path}"))? {
        Opened::Locked(locked) => locked,
        Opened::NotAFile(kind) => {
            let line = format!(
                "{path} is {kind}; `redlock fence` needs a regular file, and creates one if the path is free"
            );
            return Err(BadConfig(line).into());
        }
        Opened::Busy => {
            report::error(format_args!(
                "another process has kept {path} locked for {}; `lsof {path}` shows that process; try again \
                 when it is done",
                duration::exact(LOCK_TIMEOUT)
            ));
            return Ok(Exit::Busy(cli::BUSY));
        }
        Opened::Replaced => {
            report::error(format_args!(
                "other programs keep replacing or removing {path}; stop them, and try again"
            ));
            return Ok(Exit::Busy(cli::BUSY));
        }
    };
    let seen = match read(&locked).with_context(|| format!("can't read {path}"))? {
        Content::Number(seen) => seen,
        Content::Nothing => {
            // Before the first number, so that no file with a number in it is lost in a crash.
            sync_directory(file, &locked)
                .with_context(|| format!("can't write the directory of {path}"))?;
            0
        }
        Content::Other => {
            let line =
                format!("{path} contains something other than a fencing token; left unchanged");
            return Err(BadConfig(line).into());
        }
    };
    if ours < seen {
        report::error(format_args!(
            "fencing token {ours} is stale: {path} was last written with {seen}"
        ));
        return Ok(Exit::StaleFence);
    }
    if ours > seen {
        // A single write over the old number, which has no more digits unless somebody wrote it by hand: a process
        // that dies here leaves the old number or the new one.
        let text = format!("{ours}\n");
        locked
            .write_all_at(text.as_bytes(), 0)
            .and_then(|()| locked.set_len(text.len() as u64))
            .with_context(|| format!("can't write {path}"))?;
    }
    // Also a number that was there: the process that wrote it may not have come this far.
    locked
        .sync_data()
        .with_context(|| format!("can't write {path}"))?;
    Ok(Exit::Success)
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
    Err(BadUsage(why).into())
}

/// The result of opening FILE.
enum Opened {
    /// It is the file at its path, and the lock on it is ours.
    Locked(Flock<File>),
    /// Something else is there, in words.
    NotAFile(&'static str),
    /// Another process keeps the lock.
    Busy,
    /// Other processes replace the file all the time.
    Replaced,
}

/// Opens the file, makes it where it isn't there, and waits for the lock on it.
fn open(path: &Path) -> io::Result<Opened> {
    let until = now() + LOCK_TIMEOUT;
    for _ in 0..ATTEMPTS {
        // Looked at before it is opened, as opening a device may do something to it.
        let exists = match fs::symlink_metadata(path) {
            Ok(found) if !found.is_file() => {
                return Ok(Opened::NotAFile(in_words(found.file_type())));
            }
            Ok(_) => true,
            Err(error) if error.kind() == ErrorKind::NotFound => false,
            Err(error) => return Err(error),
        };
        let opened = OpenOptions::new()
            .read(true)
            .write(true)
            // Asked for only where it is needed: in a directory like /tmp, the kernel refuses to
            // "create" a file that is there and another user's.
            .create(!exists)
            .truncate(false)
            // What has come to that path since then must not hold us up, or become our terminal.
            .custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY | libc::O_NOFOLLOW)
            .open(path);
        let file = match opened {
            Ok(file) => file,
            Err(error) if exists && error.kind() == ErrorKind::NotFound => continue,
            Err(error) => return Err(error),
        };
        let ours = file.metadata()?;
        if !ours.is_file() {
            return Ok(Opened::NotAFile(in_words(ours.file_type())));
        }
        let Some(locked) = lock(file, until.since(now()))? else {
            return Ok(Opened::Busy);
        };
        // While we waited, the file may have been replaced: runs that come now look at the new one.
        match fs::symlink_metadata(path) {
            Ok(there) if is_same(&ours, &there) => return Ok(Opened::Locked(locked)),
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
    }
    Ok(Opened::Replaced)
}

fn is_same(one: &Metadata, other: &Metadata) -> bool {
    (one.dev(), one.ino()) == (other.dev(), other.ino())
}

fn in_words(kind: FileType) -> &'static str {
    if kind.is_dir() {
        "a directory"
    } else if kind.is_symlink() {
        "a link, which another user may lead elsewhere"
    } else if kind.is_fifo() {
        "a named pipe"
    } else if kind.is_socket() {
        "a socket"
    } else {
        "a device"
    }
}

/// Takes the lock on a file; `None` when another process keeps it for the whole time.
fn lock(file: File, timeout: Duration) -> io::Result<Option<Flock<File>>> {
    let file = match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
        Ok(locked) => return Ok(Some(locked)),
        Err((file, nix::errno::Errno::EWOULDBLOCK)) => file,
        Err((_, error)) => return Err(error.into()),
    };
    // The kernel serves waiting processes in order, but has no time limit. So a thread waits for the lock; if it never
    // gets it, it ends with this process.
    let (sender, receiver) = mpsc::channel();
    std::thread::Builder::new()
        .name("flock".into())
        .spawn(move || sender.send(Flock::lock(file, FlockArg::LockExclusive)))?;
    match receiver.recv_timeout(timeout) {
        Ok(Ok(locked)) => Ok(Some(locked)),
        Ok(Err((_, error))) => Err(error.into()),
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
            sys::sync_file_system(file)
        }
        synced => synced,
    }
}

/// What is in the file.
pub(super) enum Content {
    Nothing,
    Number(u64),
    /// It isn't a fence.
    Other,
}

fn read(file: &File) -> io::Result<Content> {
    let mut bytes = Vec::new();
    // More than a number has; a large file isn't a fence file.
    file.take(100).read_to_end(&mut bytes)?;
    Ok(Content::parse(&bytes))
}

impl Content {
    pub(super) fn parse(bytes: &[u8]) -> Self {
        match std::str::from_utf8(bytes) {
            Ok("") => Self::Nothing,
            Ok(text) => match text.strip_suffix('\n').unwrap_or(text).parse() {
                Ok(number) => Self::Number(number),
                Err(_) => Self::Other,
            },
            Err(_) => Self::Other,
        }
    }
}
