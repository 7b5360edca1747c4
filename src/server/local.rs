//! The server of this user on this host, for `local:`. This module knows no script and no lock.
//!
//! If the server is running, redlock only connects to it. If nothing listens, redlock locks a file and starts a server with
//! that file as its standard input. The server holds the file lock until it ends in whatever way, so there is never a second
//! server on the same data.

use std::env;
use std::ffi::{CString, OsStr};
use std::fs::{self, DirBuilder, File, OpenOptions, TryLockError};
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt, OpenOptionsExt};
use std::path::PathBuf;
use std::slice;
use std::time::Duration;

use nix::sys::stat::{Mode, umask};
use nix::sys::wait::waitpid;
use nix::unistd::{geteuid, gethostname};
use redis::cmd;

use super::connection::Connection;
use super::endpoint::Search;
use super::error::{Cause, Error, ErrorKind};
use super::left;
use crate::reason::reason;
use crate::sys;

/// Beginning of each message about a server of this host.
pub const THIS_HOST_ONLY: &str = "this host only";

/// The server programs, in order of preference.
const PROGRAMS: [&str; 2] = ["redis-server", "valkey-server"];

/// The options of a server. With another appendfsync, a slow disk delays the write to the file, and a killed server forgets
/// operations that it has confirmed. If the host crashes, all holders are gone, too.
const OPTIONS: &str =
    "--port 0 --unixsocketperm 600 --appendonly yes --appendfsync no --maxmemory-policy noeviction";

/// The socket in the directory of a server.
const SOCKET: &str = "server.sock";

/// The file that a server locks, with the server's pid in it.
const LOCK: &str = "redlock-server.lock";

/// Longest path of a socket, in bytes.
const LONGEST_PATH: usize = 107;

/// Time after its start in which a server may have no socket yet.
const STARTS_WITHIN: Duration = Duration::from_secs(10);

/// Pause between two attempts to connect to a server that starts.
const RETRY_AFTER: Duration = Duration::from_millis(1);

/// The server of this user, which runs or can be started.
#[derive(Debug)]
pub struct Local {
    directory: PathBuf,
}

impl Local {
    /// Finds the directory of this user's server.
    ///
    /// # Errors
    /// [`ErrorKind::Config`] if this user has no directory for a server.
    pub fn new() -> Result<Self, Error> {
        let directory = directory().map_err(|why| refused(&why).after(THIS_HOST_ONLY))?;
        Ok(Self { directory })
    }

    /// Connects to the server, and starts it if it isn't running.
    pub(super) fn open(&self, search: &Search) -> Result<Connection, Error> {
        let opened = match self.expect_private().and_then(|()| self.connect(search)) {
            Err(error) if is_absent(&error) => self.start(search, error),
            opened => opened,
        };
        let origin = || search.last.url_origin();
        opened.map_err(|error| error.after(THIS_HOST_ONLY).with_origin(origin()))
    }

    pub fn socket(&self) -> PathBuf {
        self.directory.join(SOCKET)
    }

    /// Connects to this user's server, and waits until it has loaded its data.
    fn connect(&self, search: &Search) -> Result<Connection, Error> {
        let mut question = cmd("EXISTS");
        // The server refuses EXISTS while it loads its data, but not while its disk is full. PING fails then.
        question.arg("redlock");
        loop {
            let questions = slice::from_ref(&question);
            let (connection, _) =
                match Connection::open(&search.last, left(search.until), questions) {
                    Err(error)
                        if error.kind == ErrorKind::Loading && !left(search.until).is_zero() =>
                    {
                        std::thread::sleep(RETRY_AFTER);
                        continue;
                    }
                    opened => opened?,
                };
            if sys::peer_user(&connection).is_ok_and(|user| user == geteuid().as_raw()) {
                return Ok(connection);
            }
            return Err(refused(&format!(
                "the server at {} is another user's; remove the socket",
                self.socket().display()
            )));
        }
    }

    /// Refuses a directory in which another user could have put a server.
    fn expect_private(&self) -> Result<(), Error> {
        let metadata = match fs::symlink_metadata(&self.directory) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            metadata => metadata.map_err(|error| self.failed(&error))?,
        };
        let is_own = metadata.is_dir() && metadata.uid() == geteuid().as_raw();
        if is_own && metadata.mode() & 0o022 == 0 {
            return Ok(());
        }
        Err(refused(&format!(
            "{} must be a directory of this user that nobody else can write; remove it, or set XDG_STATE_HOME to another directory",
            self.directory.display()
        )))
    }

    /// Starts the server, which was `absent`, or waits until another process has started it.
    fn start(&self, search: &Search, mut absent: Error) -> Result<Connection, Error> {
        let failed = |error| self.failed(&error);
        let mut builder = DirBuilder::new();
        let made = builder.recursive(true).mode(0o700).create(&self.directory);
        made.map_err(failed)?;
        self.expect_private()?;
        let (mut has_started, mut has_ended_another) = (false, false);
        loop {
            let mut open = OpenOptions::new();
            let open = open.read(true).append(true).create(true).mode(0o600);
            let lock = open.open(self.directory.join(LOCK)).map_err(failed)?;
            // The lock ends when the last copy of this descriptor is closed, in any process, and not before.
            match lock.try_lock() {
                Err(TryLockError::WouldBlock) => {
                    // A server that has closed a connection has a socket, so only a missing one counts as lost.
                    let is_lost = absent.has_cause(Cause::NoServer) && !has_ended_another;
                    has_ended_another |= is_lost && end_unreachable(&lock).is_some();
                }
                Err(TryLockError::Error(error)) => return Err(failed(error)),
                Ok(()) if has_started => return Err(self.ended()),
                Ok(()) => {
                    self.fork_server(&lock)?;
                    has_started = true;
                }
            }
            match self.connect(search) {
                Err(error) if is_absent(&error) => absent = error,
                Err(error) if error.has_cause(Cause::Silent) => return Err(self.not_ready(&lock)),
                opened => return opened,
            }
            drop(lock);
            std::thread::sleep(RETRY_AFTER);
        }
    }

    /// Starts a server that isn't part of any job: it has its own session, and init or a subreaper is its parent.
    fn fork_server(&self, lock: &File) -> Result<(), Error> {
        let program = program().ok_or_else(|| {
            let why = "can't start a server for `local:`, as neither redis-server nor valkey-server is installed";
            unreachable(why).because(Cause::NoServerProgram)
        })?;
        let more = ["--unixsocket", SOCKET, "--save", ""];
        let options = OPTIONS.split(' ').chain(more).map(OsStr::new);
        let words = std::iter::once(program.as_os_str()).chain(options);
        let words: Result<Vec<_>, _> = words.map(|word| CString::new(word.as_bytes())).collect();
        let words = words.map_err(|error| self.failed(&error.into()))?;
        let first = sys::fork_apart(sys::LOCAL_SERVER, lock, |lock| {
            let _ = sys::fork_apart(sys::LOCAL_SERVER, lock, |lock| {
                let _ = self.become_server(&words, lock);
            });
        });
        let _ = waitpid(first.map_err(|error| self.failed(&error))?, None);
        Ok(())
    }

    fn become_server(&self, words: &[CString], mut lock: &File) -> io::Result<()> {
        umask(Mode::from_bits_truncate(0o077));
        // The limits were meant for a job.
        sys::lift_limits();
        lock.set_len(0)?;
        write!(lock, "{}", std::process::id())?;
        let mut log = File::create(self.log())?;
        env::set_current_dir(&self.directory)?;
        let variables = [c"PATH=/usr/local/bin:/usr/bin:/bin".to_owned()];
        let error = sys::become_program(&words[0], words, &variables, lock, &log);
        writeln!(log, "{}: {error}", words[0].to_string_lossy())
    }

    fn log(&self) -> PathBuf {
        self.directory.join("server.log")
    }

    /// Returns the error for a server that holds the lock and doesn't listen.
    fn not_ready(&self, lock: &File) -> Error {
        let socket = self.socket();
        let socket = socket.display();
        match overdue_pid(lock) {
            Some(pid) => unreachable(&format!(
                "the server for `local:` (pid {pid}) doesn't listen at {socket}; end it with `kill {pid}`, and the next command starts it again"
            )),
            None => Error::new(
                ErrorKind::Loading,
                format!("the server for `local:` at {socket} isn't ready yet; try again"),
            ),
        }
    }

    /// Returns the error for a server that ended instead of listening, with the last line of its log.
    fn ended(&self) -> Error {
        let log = fs::read_to_string(self.log()).unwrap_or_default();
        let last = log.lines().rev().find(|line| !line.trim().is_empty());
        // The pid and the time stand before " # ".
        let last = last.map(|line| line.split_once(" # ").map_or(line, |(_, text)| text));
        unreachable(&format!(
            "can't start a server for `local:`: it ended: {} ({})",
            last.unwrap_or("its log is empty"),
            self.log().display()
        ))
    }

    fn failed(&self, error: &io::Error) -> Error {
        let directory = self.directory.display();
        unreachable(&format!(
            "can't use the server for `local:` in {directory}: {}",
            reason(error)
        ))
    }
}

/// Ends a server that has lost its socket, because no client can reach it, and it keeps the data locked. Returns `None` if
/// there is no such server.
fn end_unreachable(lock: &File) -> Option<()> {
    let pid = overdue_pid(lock)?;
    // Opened before the check, so that the pid can't be reused by another process after it.
    let process = sys::pidfd(pid).ok()??;
    let input = fs::metadata(format!("/proc/{pid}/fd/0")).ok()?;
    let lock = lock.metadata().ok()?;
    let is_server = (input.dev(), input.ino()) == (lock.dev(), lock.ino());
    is_server.then(|| sys::signal(process.as_fd(), sys::SIGTERM).ok())?
}

/// Returns true if redlock has started this process as a server for `local:`, even for another user.
pub fn is_server(pid: i32) -> bool {
    let input = fs::read_link(format!("/proc/{pid}/fd/0")).unwrap_or_default();
    let name = input.file_name().unwrap_or_default();
    name.as_bytes().starts_with(LOCK.as_bytes())
}

/// Returns the server's directory, which survives a logout and isn't cleaned up, or the reason why there is none.
fn directory() -> Result<PathBuf, String> {
    if geteuid().is_root() {
        return Ok("/run/redlock".into());
    }
    let named = |name| {
        let path = env::var_os(name).map(PathBuf::from);
        path.filter(|path| path.is_absolute())
    };
    let home = || named("HOME").filter(|home| home.is_dir());
    let state = named("XDG_STATE_HOME").or_else(|| Some(home()?.join(".local/state")));
    let state = state.ok_or(
        "`local:` needs a home directory: set HOME, or XDG_STATE_HOME to a directory of this user",
    )?;
    // Several hosts may share a home directory.
    let machine = fs::read_to_string("/etc/machine-id").unwrap_or_default();
    let host = match machine.trim() {
        "" => gethostname().unwrap_or_default(),
        machine => machine.into(),
    };
    let directory = state.join("redlock").join(host);
    let socket = directory.join(SOCKET);
    let length = socket.as_os_str().len();
    if length > LONGEST_PATH {
        return Err(format!(
            "the path of the socket {} has {length} bytes, and at most {LONGEST_PATH} are possible: set XDG_STATE_HOME to a directory with a shorter path",
            socket.display()
        ));
    }
    Ok(directory)
}

fn program() -> Option<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_else(|| "/usr/local/bin:/usr/bin:/bin".into());
    let directories: Vec<PathBuf> = env::split_paths(&path).collect();
    PROGRAMS.iter().find_map(|program| {
        let mut paths = directories.iter().map(|directory| directory.join(program));
        paths.find(|path| path.is_absolute() && path.is_file())
    })
}

/// Returns the pid of a server that holds the lock and should have had a socket by now. The file changes at each start.
fn overdue_pid(lock: &File) -> Option<i32> {
    // The pid is read before the age, so that a server that has just started isn't taken for an old one.
    let mut text = [0; 16];
    let length = lock.read_at(&mut text, 0).ok()?;
    let pid = str::from_utf8(&text[..length]).ok()?.parse().ok()?;
    let age = lock.metadata().ok()?.modified().ok()?.elapsed().ok()?;
    (age >= STARTS_WITHIN).then_some(pid)
}

/// Returns true if there is no server, or it is ending.
fn is_absent(error: &Error) -> bool {
    matches!(error.cause, Some(Cause::NoServer | Cause::Closed))
}

fn refused(why: &str) -> Error {
    Error::new(ErrorKind::Config, why.into())
}

fn unreachable(why: &str) -> Error {
    Error::new(ErrorKind::Unreachable, why.into())
}
