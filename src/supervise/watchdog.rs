//! The watchdog: a process beside a run that kills COMMAND's tree if redlock can't. redlock
//! may have been killed, or may be suspended, held by a debugger, or late when the lease ends.
//!
//! Without a terminal, COMMAND leads its own process group, so a SIGKILL or SIGSTOP for
//! redlock's group doesn't reach it. The watchdog has its own session, and only reports other
//! signals to redlock: a signal that reaches the watchdog was sent to every process of the job.
//!
//! The watchdog kills COMMAND first, through a pidfd, because reading /proc may block. Besides
//! the pidfd it has only a socket. The main thread sends the moment when COMMAND must be dead.
//! The renewer's thread reports each successful renewal, because the main thread may be late.
//!
//! The renewer's thread forks the watchdog at the first renewal, so a short run has none.
//! The watchdog isn't a child of the main thread: all of those children are COMMAND's.

use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, sync_channel};
use std::time::Duration;

use nix::unistd::Pid;

use crate::clock::{Moment, Timer, now};
use crate::signal::forwarded;
use crate::supervise::child::Child;
use crate::supervise::process::ProcessFd;
use crate::supervise::procfs::{Process, Stat, is_there};
use crate::supervise::renewer::{OnRenewal, Renewer};
use crate::sys::poll::{self, readable};
use crate::sys::{self, ReceivedSignal, WATCHDOG};

/// Longest pause between two attempts to kill what is left.
const LOOK: Duration = Duration::from_millis(20);

/// Longest search for COMMAND's tree.
const LOOK_FOR: Duration = Duration::from_secs(1);

/// Longest time for killing what a dead redlock has left: processes that survive this can't be killed.
const GIVE_UP_AFTER: Duration = Duration::from_secs(5);

/// Longest wait for the pid of a watchdog whose start has just begun.
const STARTS_WITHIN: Duration = Duration::from_millis(50);

/// Longest delay between redlock and the watchdog in receiving a signal for every process.
const ONE_STOP: Duration = Duration::from_secs(5);

/// A message to the watchdog with its moment; or a signal that the watchdog got, with sender and time.
type Message = (Word, Moment);
type Word = (i32, i32);

/// COMMAND has ended, or must not be killed any more.
const DISMISSED: Word = (0, 0);
/// COMMAND was reaped: its pid and process group may belong to another process.
const REAPED: Word = (1, 0);
/// Moment when COMMAND must be dead, as far as the main thread knows.
const DEAD_BY: Word = (2, 0);
/// Moment when COMMAND must be dead even if a renewal succeeds, because a lock is lost.
const LOST: Word = (3, 0);
/// A renewal has succeeded: COMMAND may live until this moment, even if the main thread doesn't know yet.
const RENEWED: Word = (4, 0);

/// Moment of messages without one; also COMMAND's last moment if no lease ends.
const NEVER: Moment = Moment::at(Duration::from_nanos(i64::MAX.cast_unsigned()));

/// Sends a message as two numbers and nanoseconds since boot. The kernel transfers so few
/// bytes at once or not at all. A full socket means that the watchdog has been suspended, too.
fn write(((first, second), at): Message, mut pipe: &UnixStream) -> io::Result<()> {
    let at = i64::try_from(at.since_boot().as_nanos()).unwrap_or(i64::MAX);
    let numbers = [first.into(), second.into(), at];
    pipe.write_all(&numbers.map(i64::to_ne_bytes).concat())
}

/// Returns the next message, or `None` if the other process has ended.
fn read(mut pipe: &UnixStream) -> io::Result<Option<Message>> {
    let mut numbers = [[0; size_of::<i64>()]; 3];
    let length = pipe.read(numbers.as_flattened_mut())?;
    let [first, second, at] = numbers.map(i64::from_ne_bytes);
    let number = |number| i32::try_from(number).unwrap_or(0);
    let at = Moment::at(Duration::from_nanos(at.unsigned_abs()));
    Ok((length != 0).then_some(((number(first), number(second)), at)))
}

/// Returns the facts by which redlock and the watchdog compare a signal that both have got.
fn word_of(received: &ReceivedSignal) -> Word {
    (received.signal, received.sender.map_or(-1, Pid::as_raw))
}

/// The watchdog from redlock's side.
pub struct Watchdog {
    pipe: Arc<UnixStream>,
    /// The main thread's last message.
    last_sent: Message,
    /// Time that a renewal gives COMMAND, from the renewal's request on; `None` if renewals don't help any more.
    by_renewal: Option<Duration>,
    /// Signals that the watchdog has got, and when.
    signals: Vec<Message>,
    /// Channel for the watchdog's pid, which arrives after the fork and stays valid until `drop` reaps the process.
    number: Receiver<Pid>,
}

impl Watchdog {
    /// Lets the renewer's thread fork a watchdog for this child, which must not have been reaped before the call.
    pub fn start(child: &Child, renewer: &Renewer) -> io::Result<Self> {
        let (pipe, its) = UnixStream::pair()?;
        pipe.set_nonblocking(true)?;
        its.set_nonblocking(true)?;
        let (announce, number) = sync_channel(1);
        let watch = Watch {
            child: child.clone(),
            started: shown(child),
            command: None,
            by_main: NEVER,
            by_renewal: None,
        };
        renewer.call(Box::new(move || {
            if let Ok(pid) = sys::fork_apart(WATCHDOG, its, |pipe| drop(watch.run(&pipe))) {
                let _ = announce.send(pid);
            }
            None
        }));
        Ok(Self {
            pipe: Arc::new(pipe),
            last_sent: (DEAD_BY, NEVER),
            by_renewal: None,
            signals: Vec::new(),
            number,
        })
    }

    /// Sends the moment when COMMAND must be dead, and remembers how long a renewal lets COMMAND work.
    pub fn tell(&mut self, dead_by: Option<Moment>, by_renewal: Option<Duration>) {
        self.by_renewal = by_renewal;
        let word = match dead_by {
            Some(at) if by_renewal.is_none() => (LOST, at),
            _ => (DEAD_BY, dead_by.unwrap_or(NEVER)),
        };
        if word != self.last_sent && write(word, &self.pipe).is_ok() {
            self.last_sent = word;
        }
    }

    /// Reports that COMMAND was reaped.
    pub fn tell_reaped(&self) {
        let _ = write((REAPED, NEVER), &self.pipe);
    }

    /// Tells the watchdog to kill nothing any more.
    pub fn dismiss(&self) {
        let _ = write((DISMISSED, NEVER), &self.pipe);
    }

    /// Returns the callback by which the renewer's thread reports a renewal; `None` if renewals don't help any more.
    pub fn tells_renewal(&self) -> Option<OnRenewal> {
        let (pipe, lasting) = (Arc::clone(&self.pipe), self.by_renewal?);
        Some(Box::new(move |sent| {
            let _ = write((RENEWED, sent + lasting), &pipe);
        }))
    }

    /// Returns true if the watchdog has got this signal from the same
    /// sender, or gets it within this time. Consumes the signal.
    pub fn has_got(&mut self, received: &ReceivedSignal, within: Duration) -> bool {
        let signal = word_of(received);
        let until = now() + within;
        loop {
            let is_alive = self.is_alive();
            self.signals.retain(|&(_, at)| now() < at + ONE_STOP);
            let before = self.signals.len();
            self.signals.retain(|&(of, _)| of != signal);
            if self.signals.len() < before {
                return true;
            }
            let left = until.since(now());
            if !is_alive || left.is_zero() || !poll::is_ready(readable(self.pipe.as_fd()), left) {
                return false;
            }
        }
    }

    /// Records the signals that the watchdog has got. Returns true
    /// if its end of the socket is open: it is alive or starting.
    pub fn is_alive(&mut self) -> bool {
        loop {
            match read(&self.pipe) {
                Ok(Some(message)) => self.signals.push(message),
                Ok(None) => return false,
                Err(error) => return error.kind() == ErrorKind::WouldBlock,
            }
        }
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        self.dismiss();
        if let Ok(pid) = self.number.recv_timeout(STARTS_WITHIN) {
            sys::kill_and_reap(pid);
        }
    }
}

/// Returns the process that /proc shows for a child's pid.
fn shown(child: &Child) -> Option<Process> {
    Stat::read(child.pid).map(|stat| stat.process())
}

/// State of the watchdog process.
struct Watch {
    child: Child,
    /// COMMAND, as /proc showed it when the watchdog was started.
    started: Option<Process>,
    /// COMMAND's pidfd, unless COMMAND was already reaped.
    command: Option<ProcessFd>,
    /// Moment when COMMAND must be dead, according to the main thread.
    by_main: Moment,
    /// Moment until which the last renewal lets COMMAND live.
    by_renewal: Option<Moment>,
}

impl Watch {
    /// Runs the watchdog process until redlock dismisses it or is dead.
    fn run(mut self, pipe: &UnixStream) -> io::Result<()> {
        let mut timer = Timer::new()?;
        // These signals are blocked, as in the thread that forked this process.
        let signals = sys::signal_descriptor(&forwarded())?;
        // Discards signals from before the new session: they may
        // have been meant for redlock's group, without COMMAND.
        while let Ok(Some(_)) = sys::next_signal(&signals) {}
        // Opens COMMAND's pidfd, because kills through it need no pid and no /proc, which may block. /proc
        // shows another process if COMMAND was reaped, and with hidepid it doesn't show a setuid one.
        let command = ProcessFd::of(self.child.pid.as_raw()).ok().flatten();
        let shown = shown(&self.child);
        let may_be = !self.child.reaped && (shown.is_none() || shown == self.started);
        self.command = command.filter(|_| may_be);
        self.child.reaped |= !may_be;
        while self.listen(pipe) {
            let due = if now() >= self.dead_by() {
                self.kill_command(false);
                self.child.kill();
                self.child.refused.clear();
                now() + LOOK
            } else {
                // A process that has lost its parent is hard to find after redlock's death.
                let until = self.dead_by().min(now() + LOOK_FOR);
                self.child.look(Some(until));
                self.dead_by()
            };
            timer.set(Some(due))?;
            let sources = [pipe.as_fd(), timer.as_fd(), signals.as_fd()];
            let _ = poll::wait(&mut sources.map(readable), None);
            // Before Rust 1.90, each write to a dead redlock causes another signal, SIGPIPE.
            while let Ok(Some(received)) = sys::next_signal(&signals)
                && write((word_of(&received), now()), pipe).is_ok()
            {}
        }
        Ok(())
    }

    /// Kills COMMAND and its group first, because everything else may take time. Spares both if redlock has
    /// reaped COMMAND: its number may belong to another process or group. After redlock's death, the first
    /// process may have reaped COMMAND. No process gets its number before the last member of its group ends.
    fn kill_command(&mut self, redlock_is_dead: bool) {
        let Some(command) = &self.command else {
            return;
        };
        let permission = command.signal(0);
        let is_gone = permission.is_err_and(|error| error.raw_os_error() == Some(libc::ESRCH));
        self.child.reaped |= is_gone && (!redlock_is_dead || is_there(self.child.pid));
        self.child.kill_group();
        let _ = command.signal(sys::SIGKILL);
    }

    /// Handles redlock's messages and its death. Returns false if redlock needs no watchdog any more.
    fn listen(&mut self, pipe: &UnixStream) -> bool {
        loop {
            match read(pipe) {
                Ok(None) => {
                    self.kill_orphans();
                    return false;
                }
                Ok(Some((DISMISSED, _))) => return false,
                Ok(Some((REAPED, _))) => self.child.reaped = true,
                Ok(Some((RENEWED, dead_by))) => self.by_renewal = Some(dead_by),
                Ok(Some((word, dead_by))) => {
                    self.by_main = dead_by;
                    if word == LOST {
                        self.by_renewal = None;
                    }
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return true,
                Err(_) => {}
            }
        }
    }

    /// Returns the moment when COMMAND must be dead. A renewal can only postpone it.
    fn dead_by(&self) -> Moment {
        self.by_renewal
            .map_or(self.by_main, |at| at.max(self.by_main))
    }

    /// Kills everything that a dead redlock has left. The orphans have other parents now.
    fn kill_orphans(&mut self) {
        self.kill_command(true);
        let until = now() + GIVE_UP_AFTER;
        let mut pause = Duration::from_millis(1);
        while self.child.kill_orphans() > 0 && now() < until {
            std::thread::sleep(pause);
            pause = (pause * 2).min(LOOK);
        }
    }
}
