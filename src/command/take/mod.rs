//! Taking locks: from the names that were typed to holding them all, and giving them back.
//!
//! `waiting` is the wait for one lock, `join` that for another run, `deadlock` the look for others that
//! wait for us, `holds` what is held and how it is kept alive.

mod deadlock;
mod holds;
mod join;
mod waiting;

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::Duration;

use anyhow::Result;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::eventfd::{EfdFlags, EventFd};

pub use self::holds::{Hold, Holds};
use self::waiting::Attempt;
use super::BadUsage;
use crate::cli;
use crate::clock::{Moment, Timer, now};
use crate::config::Settings;
use crate::exit::Exit;
use crate::lease::Lease;
use crate::lock::{
    self, Claim, Connection, ErrorKind, Limit, Lock, Loss, Name, Order, Outcome, Reentry, Release,
    ReleaseMode, Request, Server, Supersede, Who,
};
use crate::process;
use crate::report::{self, Voice};
use crate::signal::{Signals, ends_waiting, is_passed_up};
use crate::sys;
use crate::tree::Origin;

/// One who takes locks, and what it knows from its start.
pub struct Taker<'a> {
    pub settings: &'a Settings,
    /// As they were typed, each once.
    pub names: Vec<Name>,
    pub who: Who,
    pub patience: &'a cli::Patience,
    pub request: Request,
    /// The time between SIGTERM and SIGKILL for who works under the locks.
    pub kill_after: Duration,
    /// A run that is going on is waited for and does for ours.
    pub joins: bool,
    /// The work may start on the server's word that the lock is ours, with the claim under way.
    pub starts_on_word: bool,
    /// What the runs around this one hold: names and tokens.
    pub inherited: Vec<(Name, Vec<u8>)>,
}

/// How taking one lock, or all, ended.
pub enum Taking {
    Done,
    GaveUp(GaveUp),
}

/// Why a lock was not taken.
pub enum GaveUp {
    /// It stayed busy, or somebody made us give up; in words.
    Busy(String),
    /// A run has succeeded so long ago that there is no need.
    Enough(Duration),
    /// The run that we joined has ended like this.
    Joined(Exit),
    /// Another one that we held was lost meanwhile; in words.
    Lost(String),
    Signalled(i32),
}

impl<'a> Taker<'a> {
    /// By the options that all who take locks have.
    pub fn new(
        settings: &'a Settings,
        names: Vec<Name>,
        who: Who,
        options: &'a cli::Taking,
        kill_after: Duration,
    ) -> Self {
        let request = Request {
            ttl: options.ttl,
            limit: match (options.shared, options.slots) {
                (true, _) => Limit::SHARED,
                (false, Some(slots)) => Limit::slots(slots),
                (false, None) => Limit::EXCLUSIVE,
            },
            order: Order {
                priority: options.priority,
                lifo: options.lifo,
                supersede: match (options.supersede, options.cancel_running) {
                    (false, _) => Supersede::Nobody,
                    (true, false) => Supersede::Waiters,
                    (true, true) => Supersede::HoldersToo,
                },
                number: options.order,
            },
            once_per: Duration::ZERO,
            repair_ttl: options.repair_ttl,
        };
        Self {
            settings,
            names,
            who,
            patience: &options.patience,
            request,
            kill_after,
            joins: false,
            starts_on_word: false,
            inherited: inherited(),
        }
    }

    pub fn voice(&self) -> Voice {
        self.settings.voice
    }

    /// Takes one lock after the other, in an order that is the same for everybody. `started` is
    /// when the wait began.
    pub fn take_all(
        &self,
        started: Moment,
        holds: &mut Holds,
        signals: &Signals,
        timer: &mut Timer,
    ) -> Result<Taking> {
        let mut order: Vec<&Name> = self.names.iter().collect();
        order.sort();
        for name in order {
            let lock = Lock::new(&self.settings.namespace, name.clone());
            if self.reuse(&lock, holds)? {
                continue;
            }
            let claim = Claim::new(lock, self.request, &self.who)?;
            match Attempt::new(self, claim, holds, signals, timer).wait(started)? {
                Taking::Done => {}
                gave_up @ Taking::GaveUp(_) => return Ok(gave_up),
            }
        }
        Ok(Taking::Done)
    }

    /// Says why no lock was taken, where that is worth a line, and with what status that ends.
    pub fn gave_up(&self, why: GaveUp) -> Exit {
        let status = self.patience.conflict_exit_code;
        match why {
            GaveUp::Busy(line) => {
                self.voice().note(line);
                Exit::Busy(status.unwrap_or(cli::BUSY))
            }
            GaveUp::Enough(ago) => {
                self.voice().detail(format_args!(
                    "skipped: a run has succeeded {} ago",
                    report::rough(ago)
                ));
                Exit::Busy(status.unwrap_or(0))
            }
            GaveUp::Joined(exit) => {
                self.voice().detail(format_args!(
                    "the run that was waited for ended with {}",
                    exit.code()
                ));
                exit
            }
            GaveUp::Lost(line) => {
                report::error(line);
                Exit::Lost
            }
            GaveUp::Signalled(signal) if is_passed_up(signal) => Exit::Interrupted(signal),
            GaveUp::Signalled(signal) => Exit::Signal(signal),
        }
    }

    /// Uses what a run around this one holds, if that is so; false when it isn't.
    fn reuse(&self, lock: &Lock, holds: &mut Holds) -> Result<bool> {
        // The innermost comes last.
        let known = self.inherited.iter().rev();
        let Some((name, token)) = known.into_iter().find(|(name, _)| name == lock.name()) else {
            return Ok(false);
        };
        let Request { ttl, limit, .. } = self.request;
        let claim = Claim::resume(lock.clone(), token.clone(), ttl);
        let mut link = match holds.link.take() {
            Some(link) => link,
            None => Connection::open(&self.settings.server)?,
        };
        let sent = now();
        let reused = claim.reuse(&mut link, self.settings.server.timeout)?;
        holds.link = Some(link);
        holds.answered = true;
        // Where it isn't held (any more), that was another server, or a job that has ended.
        let Some(Reentry {
            fence,
            limit: theirs,
            slot,
        }) = reused
        else {
            return Ok(false);
        };
        if theirs > limit {
            return Err(BadUsage(format!(
                "this job holds lock \"{name}\" {}, and can't take it {} inside of that; take it so from the start, or another name",
                theirs.adverb(), limit.adverb()
            ))
            .into());
        }
        self.voice()
            .detail(format_args!("lock \"{name}\" is held by this job already"));
        let hold = Hold {
            claim,
            fence,
            // The only holder has the first of however many slots.
            slot: slot.max(1),
            reused: true,
            waited: Duration::ZERO,
            success: None,
        };
        holds.add(hold, Lease::new(sent, ttl, self.kill_after));
        Ok(true)
    }

    /// What those who work under the locks find in their environment. Of several locks: lists, in
    /// the order of the names.
    pub fn environment(&self, holds: &Holds, slots: bool) -> Environment {
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
            ("REDLOCK_WAITED_MS", holds.waited_ms().to_string().into()),
            ("REDLOCK_HELD", held.join(OsStr::new(" "))),
        ];
        if slots {
            let slot = of_each(&|hold| hold.slot.to_string().into());
            environment.push(("REDLOCK_SLOT", slot));
        }
        environment
    }

    pub fn all_names(&self) -> OsString {
        let names: Vec<&str> = self.names.iter().map(Name::as_str).collect();
        names.join(" ").into()
    }

    /// Gives all locks back, the last first, at the end of a process. A failure is a line on stderr and
    /// nothing else: the lock ends with its TTL.
    pub fn release_at_end(&self, holds: &mut Holds, mode: &ReleaseMode, signals: Option<&Signals>) {
        // The server answers us before it notifies the next holder. Waking us would delay that one; we
        // have nothing urgent left.
        sys::yield_cpu();
        self.release_all(holds, mode, signals);
        if holds.marked {
            process::remove_old_marks();
        }
    }

    /// Gives all locks back, the last first. A server that stands still may make that slow; then
    /// another one of these signals ends us at once.
    pub fn release_all(&self, holds: &mut Holds, mode: &ReleaseMode, signals: Option<&Signals>) {
        holds.rest();
        while let Some(hold) = holds.all.pop() {
            if hold.reused {
                continue;
            }
            let name = hold.claim.lock().name();
            let released = self.release(&hold.claim, mode, &mut holds.link, signals);
            holds.remove_mark(&hold);
            match released {
                Ok(Release::Released) => self
                    .voice()
                    .detail(format_args!("lock \"{name}\" released")),
                Ok(Release::Kept(left)) => self.voice().detail(format_args!(
                    "lock \"{name}\" stays held for another {}",
                    report::rough(left)
                )),
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
    fn release(
        &self,
        claim: &Claim,
        mode: &ReleaseMode,
        link: &mut Option<Connection>,
        signals: Option<&Signals>,
    ) -> Result<Release, lock::Error> {
        let let_signals_through = || {
            if let Some(Err(error)) = signals.map(Signals::let_through) {
                self.voice().detail(error);
            }
        };
        let within = self.settings.server.timeout;
        let over_the_old = link
            .as_mut()
            .map(|open| claim.release(open, mode, let_signals_through, within));
        let released = if let Some(Ok(release)) = over_the_old {
            Ok(release)
        } else {
            let_signals_through();
            *link = None;
            Connection::open(&self.settings.server)
                .and_then(|fresh| claim.release(link.insert(fresh), mode, || {}, within))
        };
        if let Some(Err(error)) = signals.map(Signals::collect_again) {
            self.voice().detail(error);
        }
        released
    }
}

/// Variables for those who work under the locks.
pub type Environment = Vec<(&'static str, OsString)>;

/// All that they may find of ours. What a run around this one has set doesn't count.
pub const VARIABLES: [&str; 6] = [
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

/// What the runs around this one hold, by `REDLOCK_HELD`: names and tokens.
pub fn inherited() -> Vec<(Name, Vec<u8>)> {
    let held = std::env::var_os("REDLOCK_HELD").unwrap_or_default();
    read_holds(held.as_bytes())
}

/// What the environment of a process, as `NAME=value` texts that end with a zero byte, says about the hold
/// with this id.
pub fn origin_of(environment: &[u8], id: &str) -> Origin {
    let mut variables = environment.split(|&byte| byte == 0);
    let held = variables.find_map(|variable| variable.strip_prefix(b"REDLOCK_HELD="));
    let holds = read_holds(held.unwrap_or_default());
    if holds.is_empty() {
        Origin::Unsaid
    } else if holds.iter().any(|(_, token)| lock::id(token) == id) {
        Origin::Ours
    } else {
        Origin::OfOthers
    }
}

/// Reads `NAME=TOKEN …`. What isn't of that form is no process's hold.
fn read_holds(held: &[u8]) -> Vec<(Name, Vec<u8>)> {
    let pairs = held.split(|&byte| byte == b' ');
    let read = |pair: &[u8]| {
        // A token has no =, but a name may have.
        let middle = pair.iter().rposition(|&byte| byte == b'=')?;
        let name = std::str::from_utf8(&pair[..middle]).ok()?.parse().ok()?;
        Some((name, pair[middle + 1..].to_vec()))
    };
    pairs.filter_map(read).collect()
}

/// How the history calls the end of what was done under a lock.
pub fn outcome_of(exit: Exit) -> Outcome {
    match exit {
        Exit::Signal(signal) | Exit::Interrupted(signal) => Outcome::Signal(signal),
        Exit::Timeout => Outcome::Timeout,
        Exit::Lost => Outcome::Lost,
        Exit::Cancelled => Outcome::Cancelled(None),
        Exit::Success
        | Exit::Command(_)
        | Exit::Outdated
        | Exit::Usage
        | Exit::Unreachable
        | Exit::Busy(_)
        | Exit::Refused
        | Exit::Config
        | Exit::Internal
        | Exit::CannotExecute
        | Exit::NotFound => Outcome::Status(exit.code()),
    }
}

/// How a lock was lost, in words.
pub fn lost(name: &Name, loss: &Loss) -> String {
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

/// That somebody wants a run to end, in words.
pub fn cancelled(name: &Name, by: &Who) -> String {
    format!(
        "cancelled by {}, who waits for lock \"{name}\"",
        report::by(by)
    )
}

/// Most servers let us in sooner than this. Where one takes longer, signals have to be heeded.
const SOON: Duration = Duration::from_millis(250);

/// Opens a connection, for a process whose signals are collected; one that ends us does so also where
/// the server doesn't let us in.
pub fn open(
    server: &Arc<Server>,
    signals: &Signals,
) -> Result<Result<Connection, GaveUp>, lock::Error> {
    let started = now();
    let opened = Connection::open_within(server, SOON.min(server.timeout));
    let left = server.timeout.saturating_sub(SOON);
    if opened.is_ok() || left.is_zero() || now().since(started) < SOON {
        return opened.map(Ok);
    }
    open_in_background(server, left, signals).unwrap_or_else(|error| {
        let line = format!("can't wait for a connection: {error}");
        Err(lock::Error::new(ErrorKind::Internal, line))
    })
}

fn open_in_background(
    server: &Arc<Server>,
    within: Duration,
    signals: &Signals,
) -> io::Result<Result<Result<Connection, GaveUp>, lock::Error>> {
    let done = Arc::new(EventFd::from_flags(EfdFlags::EFD_CLOEXEC)?);
    let (answer, answered) = channel();
    let (server, waker) = (Arc::clone(server), Arc::clone(&done));
    sys::start_thread("connect", sys::USUAL_STACK, move || {
        let _ = answer.send(Connection::open_within(&server, within));
        let _ = waker.write(1);
    })?;
    loop {
        sleep([Some(signals.as_fd()), Some(done.as_fd())])?;
        if let Some(signal) = ending(signals)? {
            return Ok(Ok(Err(GaveUp::Signalled(signal))));
        }
        if let Ok(opened) = answered.try_recv() {
            return Ok(opened.map(Ok));
        }
    }
}

/// A signal that has come and ends us before there is a COMMAND.
pub fn ending(signals: &Signals) -> io::Result<Option<i32>> {
    while let Some(received) = signals.next()? {
        if ends_waiting(received.signal) {
            return Ok(Some(received.signal));
        }
    }
    Ok(None)
}

/// Sleeps until one of the descriptors has something to read.
pub fn sleep<'a>(fds: impl IntoIterator<Item = Option<BorrowedFd<'a>>>) -> io::Result<()> {
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

/// A number in 0..1.
pub fn dice() -> f64 {
    getrandom::u32().map_or(0.5, |random| f64::from(random) / f64::from(u32::MAX))
}
