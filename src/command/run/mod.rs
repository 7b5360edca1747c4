//! `redlock run`: take the locks, run COMMAND, renew in the background, release.
//!
//! This file is the way of a run from its options to its status; `waiting` is the wait for a lock,
//! `supervise` the time while COMMAND runs, `holds` what is held all the while.

mod deadlock;
mod holds;
mod supervise;
mod waiting;

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::BorrowedFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::time::Duration;

use anyhow::{Context, Result};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use self::holds::{Hold, Holds};
use self::waiting::Attempt;
use super::{BadUsage, distinct, ourselves};
use crate::child;
use crate::cli::{self, OnUnreachable};
use crate::clock::{Moment, Timer, now};
use crate::config::Settings;
use crate::exit::Exit;
use crate::lease::Lease;
use crate::lock::{self, Claim, Kind, Limit, Link, Lock, Loss, Name, Release, Reused, Who};
use crate::process;
use crate::report::{self, Voice};
use crate::signal::{SIGSTOP, Signals, ends_waiting};
use crate::sys;

/// Runs COMMAND under the locks.
pub fn run(options: cli::Run, settings: &Settings) -> Result<Exit> {
    let names = distinct(&options.names)?;
    let command = match options.shell.clone() {
        Some(script) => vec!["sh".into(), "-c".into(), script],
        None => options.command.clone(),
    };
    let who = Who {
        command: shortened(&command),
        reason: options.reason.clone(),
        instance: process::instance(),
        ..ourselves()
    };
    let prepared = match child::Prepared::new(&command, &VARIABLES) {
        Ok(prepared) => prepared,
        Err(error) => return Ok(cannot_run(&command, &error)),
    };
    let run = Run {
        limit: match (options.shared, options.slots) {
            (true, _) => Limit::SHARED,
            (false, Some(slots)) => Limit::slots(slots),
            (false, None) => Limit::EXCLUSIVE,
        },
        inherited: inherited(),
        names,
        who,
        options,
        settings,
        command,
        prepared,
        on_terminal: on_terminal(),
    };
    run.take_the_locks_and_run()
}

/// What a run knows from its start.
struct Run<'a> {
    options: cli::Run,
    settings: &'a Settings,
    /// As they were typed, each once.
    names: Vec<Name>,
    limit: Limit,
    /// What the runs around this one hold: names and tokens.
    inherited: Vec<(Name, Vec<u8>)>,
    who: Who,
    command: Vec<OsString>,
    prepared: child::Prepared,
    on_terminal: bool,
}

/// Says that COMMAND can't be started.
fn cannot_run(command: &[OsString], error: &io::Error) -> Exit {
    let program = command.first().cloned().unwrap_or_default();
    report::error(format_args!("can't run {}: {error}", program.display()));
    match error.kind() {
        io::ErrorKind::NotFound => Exit::NotFound,
        _ => Exit::CannotExecute,
    }
}

/// How taking one lock, or all, ended.
enum Taking {
    Done,
    GaveUp(GaveUp),
}

/// Why a lock was not taken.
enum GaveUp {
    /// It stayed busy, or somebody made us give up; in words.
    Busy(String),
    /// Another one that we held was lost meanwhile; in words.
    Lost(String),
    Signalled(i32),
}

impl Run<'_> {
    fn take_the_locks_and_run(&self) -> Result<Exit> {
        let started = now();
        // Until a lock is asked for, a signal has nothing to clean up and ends us by itself.
        let opened = Link::open(&self.settings.server);
        let signals = Signals::take(self.on_terminal).context("can't take signals")?;
        let mut timer = Timer::new().context("can't make a timer")?;
        let mut holds = Holds::none(&self.settings.server);
        let taking = match opened {
            Ok(link) => {
                holds.link = Some(link);
                self.take_the_locks(started, &mut holds, &signals, &mut timer)
            }
            Err(error) => Err(error.into()),
        };
        match taking {
            Ok(Taking::Done) => self.run_under(&mut holds, started, &signals, &mut timer),
            Ok(Taking::GaveUp(why)) => {
                self.release_all(&mut holds);
                Ok(self.gave_up(why))
            }
            Err(error) => {
                self.release_all(&mut holds);
                if !self.runs_without(&error) {
                    return Err(error);
                }
                self.voice()
                    .note(format_args!("{error:#}; running without a lock"));
                let environment = self.environment_without_a_lock();
                self.supervise(&environment, &mut holds, &signals, &mut timer)
            }
        }
    }

    fn voice(&self) -> Voice {
        self.settings.voice
    }

    fn gave_up(&self, why: GaveUp) -> Exit {
        match why {
            GaveUp::Busy(line) => {
                self.voice().note(line);
                Exit::Busy(self.options.conflict_exit_code)
            }
            GaveUp::Lost(line) => {
                report::error(line);
                Exit::Lost
            }
            GaveUp::Signalled(signal) => Exit::Signal(signal),
        }
    }

    fn runs_without(&self, error: &anyhow::Error) -> bool {
        let unreachable = error
            .downcast_ref::<lock::Error>()
            .is_some_and(|error| error.kind == Kind::Unreachable);
        unreachable && self.options.on_unreachable == OnUnreachable::Run
    }

    /// Takes one lock after the other, in an order that is the same for everybody.
    fn take_the_locks(
        &self,
        started: Moment,
        holds: &mut Holds,
        signals: &Signals,
        timer: &mut Timer,
    ) -> Result<Taking> {
        let mut order: Vec<&Name> = self.names.iter().collect();
        order.sort();
        for name in order {
            let lock = Lock::new(&self.settings.prefix, name.clone());
            if self.reuse(&lock, holds)? {
                continue;
            }
            let claim = Claim::new(lock, self.options.ttl, self.limit, &self.who)?;
            match Attempt::new(self, claim, holds, signals, timer).wait(started)? {
                Taking::Done => {}
                gave_up @ Taking::GaveUp(_) => return Ok(gave_up),
            }
        }
        Ok(Taking::Done)
    }

    /// Uses what a run around this one holds, if that is so; false when it isn't.
    fn reuse(&self, lock: &Lock, holds: &mut Holds) -> Result<bool> {
        // The innermost comes last.
        let known = self.inherited.iter().rev();
        let Some((name, token)) = known.into_iter().find(|(name, _)| name == lock.name()) else {
            return Ok(false);
        };
        let claim = Claim::resume(lock.clone(), token.clone(), self.options.ttl);
        let mut link = match holds.link.take() {
            Some(link) => link,
            None => Link::open(&self.settings.server)?,
        };
        let sent = now();
        let reused = claim.reuse(&mut link, self.settings.server.timeout)?;
        holds.link = Some(link);
        // Where it isn't held (any more), that was another server, or a job that has ended.
        let Some(Reused { fence, limit, slot }) = reused else {
            return Ok(false);
        };
        if limit > self.limit {
            return Err(BadUsage(format!(
                "this job holds lock \"{name}\" {}, and can't take it {} inside of that; take it so from the start, or another name",
                limit.adverb(), self.limit.adverb()
            ))
            .into());
        }
        self.voice()
            .detail(format_args!("lock \"{name}\" is held by this job already"));
        let lease = Lease::new(sent, self.options.ttl, self.options.kill_after);
        // The only holder has the first of however many slots.
        let slot = slot.max(1);
        let hold = Hold {
            claim,
            fence,
            slot,
            reused: true,
        };
        holds.add(hold, lease);
        Ok(true)
    }

    /// Runs COMMAND under the locks and releases them after that.
    fn run_under(
        &self,
        holds: &mut Holds,
        started: Moment,
        signals: &Signals,
        timer: &mut Timer,
    ) -> Result<Exit> {
        let waited = now().since(started);
        // A signal that came between the answer and here starts nothing.
        while let Some(arrived) = signals.next()? {
            if ends_waiting(arrived.signal) {
                self.release_all(holds);
                return Ok(Exit::Signal(arrived.signal));
            }
        }
        let environment = self.environment(holds, waited);
        let exit = self.supervise(&environment, holds, signals, timer)?;
        self.release_all(holds);
        Ok(exit)
    }

    /// What COMMAND finds in its environment. Of several locks: lists, in the order of the names.
    fn environment(&self, holds: &Holds, waited: Duration) -> Environment {
        let of_each = |value: &dyn Fn(&Hold) -> OsString| -> OsString {
            let in_order = self.names.iter().filter_map(|name| {
                let hold = |hold: &&Hold| hold.claim.lock().name() == name;
                holds.all.iter().find(hold)
            });
            in_order
                .map(value)
                .collect::<Vec<_>>()
                .join(OsStr::new(" "))
        };
        let token = |hold: &Hold| OsString::from_vec(hold.claim.token().to_vec());
        let mut held: Vec<OsString> = Vec::new();
        for (name, token) in &self.inherited {
            held.push(pair(name, token));
        }
        for hold in holds.all.iter().filter(|hold| !hold.reused) {
            held.push(pair(hold.claim.lock().name(), hold.claim.token()));
        }
        let mut environment = vec![
            ("REDLOCK_NAME", self.all_names()),
            ("REDLOCK_TOKEN", of_each(&token)),
            (
                "REDLOCK_FENCE",
                of_each(&|hold| hold.fence.to_string().into()),
            ),
            ("REDLOCK_WAITED_MS", waited.as_millis().to_string().into()),
            ("REDLOCK_HELD", held.join(OsStr::new(" "))),
        ];
        if self.options.slots.is_some() {
            let slot = of_each(&|hold| hold.slot.to_string().into());
            environment.push(("REDLOCK_SLOT", slot));
        }
        environment
    }

    /// The same where Redis couldn't be reached. What the runs around this one hold stays true.
    fn environment_without_a_lock(&self) -> Environment {
        let held = std::env::var_os("REDLOCK_HELD").map(|held| ("REDLOCK_HELD", held));
        [("REDLOCK_NAME", self.all_names())]
            .into_iter()
            .chain(held)
            .collect()
    }

    fn all_names(&self) -> OsString {
        let names: Vec<&str> = self.names.iter().map(Name::as_str).collect();
        names.join(" ").into()
    }

    /// Gives all locks back, the last first. A failure is a line on stderr and nothing else: the
    /// lock ends with its TTL.
    fn release_all(&self, holds: &mut Holds) {
        // The server tells us of a release before it tells those who wait, and being told would take
        // the processor from it. They are in a hurry; we are done.
        sys::yield_to_others();
        holds.rest();
        while let Some(hold) = holds.all.pop() {
            if hold.reused {
                continue;
            }
            let name = hold.claim.lock().name();
            match self.release(&hold.claim, &mut holds.link) {
                Ok(Release::Released) => self
                    .voice()
                    .detail(format_args!("lock \"{name}\" released")),
                Ok(Release::Returned) => self.voice().detail(format_args!(
                    "lock \"{name}\" had been given back by the command"
                )),
                Ok(Release::NotOurs(loss)) => self.voice().note(format_args!(
                    "{}; that was seen only at the end",
                    lost(name, &loss)
                )),
                Err(error) => {
                    let ttl = report::rough(hold.claim.ttl());
                    self.voice().note(format_args!(
                        "can't release lock \"{name}\", it ends by itself within {ttl}: {error}"
                    ));
                }
            }
        }
    }

    /// Gives a lock back, or a place in its queue; over a fresh connection where the old one is
    /// broken.
    fn release(&self, claim: &Claim, link: &mut Option<Link>) -> Result<Release, lock::Error> {
        let within = self.settings.server.timeout;
        if let Some(open) = link {
            match claim.release(open, false, within) {
                Ok(release) => return Ok(release),
                Err(_) => *link = None,
            }
        }
        let mut fresh = Link::open(&self.settings.server)?;
        let release = claim.release(&mut fresh, false, within)?;
        *link = Some(fresh);
        Ok(release)
    }
}

/// Variables for COMMAND.
type Environment = Vec<(&'static str, OsString)>;

/// All that COMMAND may find of ours. What a run around this one has set doesn't count.
const VARIABLES: [&str; 6] = [
    "REDLOCK_NAME",
    "REDLOCK_TOKEN",
    "REDLOCK_FENCE",
    "REDLOCK_SLOT",
    "REDLOCK_WAITED_MS",
    "REDLOCK_HELD",
];

/// `NAME=TOKEN`, as `REDLOCK_HELD` has them.
fn pair(name: &Name, token: &[u8]) -> OsString {
    OsString::from_vec([name.as_str().as_bytes(), b"=", token].concat())
}

/// What the runs around this one hold, by `REDLOCK_HELD`: names and tokens. What isn't of that form
/// is nobody's hold.
fn inherited() -> Vec<(Name, Vec<u8>)> {
    let held = std::env::var_os("REDLOCK_HELD").unwrap_or_default();
    let pairs = held.as_bytes().split(|&byte| byte == b' ');
    let read = |pair: &[u8]| {
        // A token has no =, but a name may have.
        let middle = pair.iter().rposition(|&byte| byte == b'=')?;
        let name = std::str::from_utf8(&pair[..middle]).ok()?.parse().ok()?;
        Some((name, pair[middle + 1..].to_vec()))
    };
    pairs.filter_map(read).collect()
}

/// How a lock was lost, in words.
fn lost(name: &Name, loss: &Loss) -> String {
    match loss {
        Loss {
            forced_by: Some(by),
            ..
        } => format!("lock \"{name}\" was taken by force by {}", report::by(by)),
        Loss {
            holder: Some(holder),
            ..
        } => format!(
            "lock \"{name}\" was lost, {} holds it now",
            report::by(&holder.who)
        ),
        Loss { .. } => format!("lock \"{name}\" was lost: its key is gone or was overwritten"),
    }
}

/// Stops ourselves, until somebody lets us go on.
fn suspend() -> io::Result<()> {
    sys::kill(nix::unistd::getpid().as_raw(), SIGSTOP)
}

/// Sleeps until one of the descriptors has something to read.
fn sleep<const N: usize>(fds: [Option<BorrowedFd<'_>>; N]) -> io::Result<()> {
    let mut fds: Vec<PollFd> = fds
        .into_iter()
        .flatten()
        .map(|fd| PollFd::new(fd, PollFlags::POLLIN))
        .collect();
    match poll(&mut fds, PollTimeout::NONE) {
        Ok(_) | Err(Errno::EINTR) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Whether we have a terminal: then the shell's job control sees us and COMMAND as one job.
fn on_terminal() -> bool {
    std::fs::File::open("/dev/tty").is_ok()
}

/// The most of a command line that is stored for others to see, in bytes.
const SHOWN: usize = 2000;

/// The command for others to see: as text, and not endless.
fn shortened(command: &[OsString]) -> Vec<String> {
    let mut room = SHOWN;
    let mut words = Vec::new();
    for word in command {
        let word = word.to_string_lossy();
        if word.len() > room {
            words.push(word.chars().take(room / 4).chain(['…']).collect());
            break;
        }
        room -= word.len();
        words.push(word.into_owned());
    }
    words
}
