//! The server of this host, for `local:` and `local:user`: found, started once by whoever needs it first, and ended. It
//! knows no script and no lock.
//!
//! A server that runs costs one connection and nothing else. Only where none answers is the lock taken that a server has
//! as long as it lives, however it ends: so there is never a second one of the same data. Whoever has the lock looks
//! again, and starts a server that inherits it.

mod container;
mod holders;
mod home;
mod life;
mod state;
mod talk;

use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nix::fcntl::OFlag;
use nix::unistd::{geteuid, pipe2};
use redis::cmd;

use self::holders::holders;
use self::home::{Home, is_for_host, read_plain};
pub(super) use self::state::NotOpen;
use self::state::Running;
pub use self::state::{NOT_INSTALLED, State};
use self::talk::{Facts, ask};
use super::error::{Error, ErrorKind};
use super::stream::open_unix;
use super::url::Scope;
use crate::reason::reason;
use crate::sys::{self, poll};

/// How often it is looked whether a server is up.
const LOOK_EVERY: Duration = Duration::from_millis(1);

/// How long a server may take to end, until it is asked otherwise.
const ENDS_WITHIN: Duration = Duration::from_secs(3);

/// The server of a user or of this host.
#[derive(Debug)]
pub struct Local {
    home: Home,
}

impl Local {
    pub fn new(scope: Scope) -> Self {
        let home = Home::of(scope);
        Self { home }
    }

    /// The same for a command about the server itself.
    pub fn settled(scope: Scope) -> Self {
        let home = Home::settled(scope);
        Self { home }
    }

    pub fn scope(&self) -> Scope {
        self.home.scope
    }

    pub fn socket(&self) -> PathBuf {
        self.home.socket()
    }

    pub fn data(&self) -> &Path {
        &self.home.data
    }

    /// What a command for this server begins with, for people to type.
    pub fn command(&self) -> String {
        self.home.command()
    }

    /// Connects to it, and starts it where it doesn't run.
    pub(super) fn open(&self, until: Instant) -> Result<UnixStream, NotOpen> {
        match open_unix(&self.home.socket(), until) {
            Ok(stream) => Ok(trusted(self.scope(), stream)?),
            Err(error) if is_absent(&error) || is_closed(&error) => {
                // The directory of a login may have come or gone since.
                let home = Home::settled(self.scope());
                home.expect_usable()?;
                if is_closed(&error) {
                    return Err(home.closed().into());
                }
                bring_up(&home, until)
            }
            Err(error) => Err(NotOpen::Socket(error)),
        }
    }

    /// How it is doing. It is never started by that.
    pub fn state(&self, until: Instant) -> Result<State, Error> {
        self.home.expect_usable()?;
        let why = match self.connect(until) {
            Ok((stream, socket)) => match Facts::ask(&stream, until) {
                Ok(facts) => return Ok(State::Running(running(&facts, socket))),
                Err(error) => format!("it doesn't answer ({})", reason(&error)),
            },
            Err(error) if is_closed(&error) => return Err(self.home.closed()),
            Err(error) if is_absent(&error) => "its socket is gone".into(),
            Err(error) => reason(&error),
        };
        match self.home.is_locked() {
            Ok(true) => Ok(State::Silent(why)),
            Ok(false) => Ok(State::Stopped),
            Err(error) => Err(self.failed(&error)),
        }
    }

    /// A connection, and the socket that it is to.
    fn connect(&self, until: Instant) -> io::Result<(UnixStream, PathBuf)> {
        let socket = self.home.socket();
        match (open_unix(&socket, until), self.home.other_socket()) {
            (Err(error), Some(other)) if is_absent(&error) => match open_unix(&other, until) {
                Ok(stream) => Ok((stream, other)),
                Err(_) => Err(error),
            },
            (opened, _) => Ok((opened?, socket)),
        }
    }

    /// Has it end; whether there was one. It is asked over its socket, and where it doesn't answer there, the processes
    /// are ended that have its lock.
    pub fn stop(&self) -> Result<bool, Error> {
        self.home.expect_usable()?;
        let mut until = Instant::now() + ENDS_WITHIN;
        let (mut was_there, mut is_asked) = (false, false);
        if let Ok((stream, _)) = self.connect(until) {
            was_there = true;
            // It closes the connection.
            let answer = ask(&stream, &cmd("SHUTDOWN"), Instant::now() + ENDS_WITHIN / 2);
            is_asked = answer.is_err_and(|error| error.kind() != io::ErrorKind::WouldBlock);
        }
        let mut signals = [sys::SIGTERM, sys::SIGKILL].into_iter();
        let mut killed = false;
        while self.home.is_locked().map_err(|error| self.failed(&error))? {
            was_there = true;
            if !is_asked || Instant::now() >= until {
                let Some(signal) = signals.next() else {
                    return Err(Error::new(
                        ErrorKind::Unreachable,
                        format!("the server of {} doesn't end", self.data().display()),
                    ));
                };
                self.signal(signal);
                killed = signal == sys::SIGKILL;
                is_asked = true;
                until = Instant::now() + ENDS_WITHIN;
            }
            std::thread::sleep(LOOK_EVERY);
            if killed {
                // Its keeper may have started another one before it was killed itself.
                self.signal(sys::SIGKILL);
            }
        }
        Ok(was_there)
    }

    /// Sends a signal to the processes that have the locks.
    fn signal(&self, signal: i32) {
        for lock in self.home.locks() {
            for holder in holders(&lock).unwrap_or_default() {
                holder.signal(signal);
            }
        }
    }

    fn failed(&self, error: &io::Error) -> Error {
        let lock = self.data().join("server.lock");
        let why = format!("can't look at {}: {}", lock.display(), reason(error));
        Error::new(ErrorKind::Refused, why)
    }
}

/// Whose server a command uses that isn't told: this host's where this user may, else the user's own.
pub fn usual_scope() -> Scope {
    if is_for_host() {
        Scope::Host
    } else {
        Scope::User
    }
}

/// Starts the server, or waits for whoever does.
fn bring_up(home: &Home, until: Instant) -> Result<UnixStream, NotOpen> {
    home.expect_startable()?;
    let owner = home.owner()?;
    home.prepare(owner)?;
    let mut nothing_there = None;
    loop {
        let locked = home
            .try_lock()
            .map_err(|error| cannot_start(home, &reason(&error)))?;
        let opened = open_unix(&home.socket(), until);
        match (opened, &locked) {
            // Somebody was first.
            (Ok(stream), _) => return Ok(trusted(home.scope, stream)?),
            (Err(error), _) if !is_absent(&error) => {
                let last = nothing_there.take();
                let last = last.filter(|_| error.kind() == io::ErrorKind::TimedOut);
                return Err(without_socket(home, last.unwrap_or(error)));
            }
            (Err(_), Some(locked)) => {
                let Some(program) = life::program() else {
                    return Err(not_installed(home.scope).into());
                };
                let failed = |error: io::Error| cannot_start(home, &reason(&error));
                home.forget_socket().map_err(failed)?;
                let (read, write) =
                    pipe2(OFlag::O_CLOEXEC).map_err(|error| failed(error.into()))?;
                life::begin(&program, home, owner, locked, &File::from(write)).map_err(failed)?;
                return until_it_answers(home, &File::from(read), until);
            }
            (Err(error), None) => {
                let other = home.other_socket().map(|other| open_unix(&other, until));
                if let Some(Ok(stream)) = other {
                    return Ok(trusted(home.scope, stream)?);
                }
                nothing_there = Some(error);
            }
        }
        std::thread::sleep(LOOK_EVERY);
    }
}

/// Waits until a server that was started is shown, which is when it answers.
fn until_it_answers(home: &Home, pipe: &File, until: Instant) -> Result<UnixStream, NotOpen> {
    loop {
        if let Ok(stream) = open_unix(&home.socket(), until) {
            return Ok(stream);
        }
        if poll::is_ready(poll::readable(pipe.as_fd()), LOOK_EVERY) {
            return Err(ended(home).into());
        }
        if Instant::now() >= until {
            return Err(not_ready(home).into());
        }
    }
}

/// A server of this user's alone is one that this user has started.
fn trusted(scope: Scope, stream: UnixStream) -> Result<UnixStream, Error> {
    let user = geteuid().as_raw();
    match scope {
        Scope::Host => Ok(stream),
        Scope::User if sys::peer_user(&stream).is_ok_and(|peer| peer == user) => Ok(stream),
        Scope::User => Err(Error::new(
            ErrorKind::Config,
            "the server at the socket of `local:user` belongs to another user; remove the socket"
                .into(),
        )),
    }
}

/// Whether nothing listens there.
fn is_absent(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused | io::ErrorKind::NotADirectory
    )
}

fn is_closed(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::PermissionDenied
}

fn cannot_start(home: &Home, why: &str) -> Error {
    let socket = home.socket();
    let why = format!(
        "can't start a server for `{}` at {}: {why}",
        home.scope,
        socket.display()
    );
    Error::new(ErrorKind::Unreachable, why)
}

fn not_installed(scope: Scope) -> Error {
    let why = format!("can't start a server for `{scope}`, as {NOT_INSTALLED}");
    Error::new(ErrorKind::Unreachable, why)
}

/// The error for a server that has ended instead of answering, by the end of its log.
fn ended(home: &Home) -> Error {
    let log = read_plain(&home.log()).unwrap_or_default();
    let last = log.lines().rev().find(|line| !line.trim().is_empty());
    // Before that stand its number and the time.
    let last = last.map(|line| line.split_once(" # ").map_or(line, |(_, said)| said));
    let log = home.log();
    cannot_start(
        home,
        &match last {
            Some(last) => format!("it ended: {last} ({})", log.display()),
            None => format!("it ended, and wrote nothing to {}", log.display()),
        },
    )
}

/// The error for a server that is there, at no socket.
fn without_socket(home: &Home, error: io::Error) -> NotOpen {
    let socket = home.socket();
    if !home.was_ready() {
        return not_ready(home).into();
    }
    let stops = format!(
        "`{} local stop` ends it, and the next command starts another",
        home.command()
    );
    let message = match error.kind() {
        io::ErrorKind::NotFound => format!(
            "the server for `{}` runs, but its socket {} is gone; {stops}",
            home.scope,
            socket.display()
        ),
        _ => return NotOpen::Socket(error),
    };
    Error::new(ErrorKind::Unreachable, message).into()
}

/// The error for a server that isn't ready yet.
fn not_ready(home: &Home) -> Error {
    let socket = home.socket();
    let why = format!(
        "the server for `{}` at {} was started and isn't ready yet; try again when it has loaded its data",
        home.scope,
        socket.display()
    );
    Error::new(ErrorKind::Loading, why)
}

fn running(facts: &Facts, socket: PathBuf) -> Running {
    let version = match facts.text("valkey_version") {
        Some(version) => format!("Valkey {version}"),
        None => format!("Redis {}", facts.text("redis_version").unwrap_or("?")),
    };
    let up_for = facts.number("uptime_in_seconds").unwrap_or_default();
    Running {
        version,
        pid: facts.number("process_id").unwrap_or_default(),
        up_for: Duration::from_secs(up_for),
        socket,
    }
}
