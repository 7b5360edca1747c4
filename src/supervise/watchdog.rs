//! The watchdog: a process beside a run that kills COMMAND's tree where redlock can't, as it was killed, or hasn't done it
//! when the lease ends: stopped, held by a debugger, or late.
//!
//! Without a terminal COMMAND leads a process group of its own, so that a SIGKILL or SIGSTOP for the group of redlock
//! doesn't reach it. The watchdog is in a session of its own, and only tells redlock of all other signals: one that
//! reaches the watchdog there was sent to every process of the job. It holds COMMAND's descriptor,
//! by which it kills COMMAND first of all, as a look into /proc may keep it waiting. Besides that it holds nothing but a
//! pair of sockets, through which the main thread tells by when COMMAND has to be dead, and the thread that renews that a renewal has
//! succeeded, as the main thread may be late to hear of it. It is forked by the thread that renews, when that begins: a
//! short run never has it, and it is none of the main thread's children, all of which are COMMAND's.

use std::fs::File;
use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, sync_channel};
use std::time::Duration;

use nix::unistd::Pid;

use crate::clock::{Moment, Timer, now};
use crate::signal::passed_on;
use crate::supervise::child::Child;
use crate::supervise::process::ProcessFd;
use crate::supervise::procfs::{Process, Stat};
use crate::supervise::renewer::{OnRenewal, Renewer};
use crate::sys::poll::{self, readable};
use crate::sys::{self, ReceivedSignal, WATCHDOG};

/// How often it kills what is left.
const LOOK: Duration = Duration::from_millis(20);

/// How long a look for COMMAND's tree may take.
const LOOK_FOR: Duration = Duration::from_secs(1);

/// For how long it kills what a killed redlock has left: what withstands that can't be killed.
const GIVE_UP_AFTER: Duration = Duration::from_secs(5);

/// How long redlock waits for its number, where it was just begun.
const STARTS_WITHIN: Duration = Duration::from_millis(50);

/// A signal for every process reaches redlock and the watchdog within this time, one after the other.
const ONE_STOP: Duration = Duration::from_secs(5);

/// A word for the watchdog with its moment; or a signal of the watchdog's with its sender, and when that came.
type Message = (Word, Moment);
type Word = (i32, i32);

/// COMMAND has ended, or is no longer to be killed.
const DISMISSED: Word = (0, 0);
/// COMMAND was reaped: its number, and that of its group, may be another's.
const REAPED: Word = (1, 0);
/// By when COMMAND has to be dead, as far as the main thread knows.
const DEAD_BY: Word = (2, 0);
/// By when COMMAND has to be dead, whatever was renewed, as a lock is lost.
const LOST: Word = (3, 0);
/// A renewal has succeeded, so that COMMAND needn't be dead before this, though the main thread hasn't heard of it.
const RENEWED: Word = (4, 0);

/// The moment of a word without one, and the last moment of COMMAND if no lease ends.
const NEVER: Moment = Moment::at(Duration::from_nanos(i64::MAX.cast_unsigned()));

/// Sends a message, as two numbers and nanoseconds since boot. The kernel writes and reads so little as a whole. A watchdog
/// that doesn't read has been stopped, too.
fn write(((first, second), at): Message, mut pipe: &File) -> io::Result<()> {
    let at = i64::try_from(at.since_boot().as_nanos()).unwrap_or(i64::MAX);
    let numbers = [first.into(), second.into(), at];
    pipe.write_all(&numbers.map(i64::to_ne_bytes).concat())
}

/// Returns the next message; `None` after the end of the other process.
fn read(mut pipe: &File) -> io::Result<Option<Message>> {
    let mut numbers = [[0; size_of::<i64>()]; 3];
    let length = pipe.read(numbers.as_flattened_mut())?;
    let [first, second, at] = numbers.map(i64::from_ne_bytes);
    let number = |number| i32::try_from(number).unwrap_or(0);
    let at = Moment::at(Duration::from_nanos(at.unsigned_abs()));
    Ok((length != 0).then_some(((number(first), number(second)), at)))
}

/// Returns what is compared of a signal that redlock and the watchdog have got.
fn word_of(received: &ReceivedSignal) -> Word {
    (received.signal, received.sender.map_or(-1, Pid::as_raw))
}

/// The watchdog, as redlock knows it.
pub struct Watchdog {
    pipe: Arc<File>,
    /// The last word of the main thread.
    told: Message,
    /// For how long COMMAND may work by a renewal, from when that is sent; `None`: no renewal counts.
    by_renewal: Option<Duration>,
    /// Signals that it has got, and when.
    signals: Vec<Message>,
    /// Its number comes when it was forked, and is its own until it is reaped here.
    number: Receiver<Pid>,
}

impl Watchdog {
    /// Has one forked that kills this child, whose number is its own until this returns. The thread that renews does that.
    pub fn start(child: &Child, renewer: &Renewer) -> io::Result<Self> {
        let ends = UnixStream::pair()?;
        let file = |end: UnixStream| -> io::Result<File> {
            end.set_nonblocking(true)?;
            Ok(OwnedFd::from(end).into())
        };
        let (its, pipe) = (file(ends.0)?, file(ends.1)?);
        let (announce, number) = sync_channel(1);
        let watch = Watch {
            child: child.clone(),
            started: shown(child),
            command: None,
            by_main: NEVER,
            by_renewal: None,
        };
        renewer.call(Box::new(move || {
            if let Ok(pid) = sys::fork_apart(WATCHDOG, its, |pipe| watch.run(&pipe)) {
                let _ = announce.send(pid);
            }
            None
        }));
        Ok(Self {
            pipe: Arc::new(pipe),
            told: (DEAD_BY, NEVER),
            by_renewal: None,
            signals: Vec::new(),
            number,
        })
    }

    /// Tells it by when COMMAND has to be dead, as far as is known now, and for how long it may work by a renewal.
    pub fn tell(&mut self, dead_by: Option<Moment>, by_renewal: Option<Duration>) {
        self.by_renewal = by_renewal;
        let word = match dead_by {
            Some(at) if by_renewal.is_none() => (LOST, at),
            _ => (DEAD_BY, dead_by.unwrap_or(NEVER)),
        };
        if word != self.told && write(word, &self.pipe).is_ok() {
            self.told = word;
        }
    }

    /// COMMAND was reaped.
    pub fn tell_reaped(&self) {
        let _ = write((REAPED, NEVER), &self.pipe);
    }

    /// It is to kill nothing any more.
    pub fn dismiss(&self) {
        let _ = write((DISMISSED, NEVER), &self.pipe);
    }

    /// Returns the call by which another thread tells it that a renewal has succeeded; `None` if no renewal counts.
    pub fn tells_renewal(&self) -> Option<OnRenewal> {
        let (pipe, lasting) = (Arc::clone(&self.pipe), self.by_renewal?);
        Some(Box::new(move |sent| {
            let _ = write((RENEWED, sent + lasting), &pipe);
        }))
    }

    /// Returns whether it has got this signal from the same process, or gets it within this time. A signal that it has got counts
    /// once.
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

    /// Takes in the signals that it has got. Returns whether it lives, or is about to: its end of the pipe is open.
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

/// Returns the process that /proc shows under the number of a child.
fn shown(child: &Child) -> Option<Process> {
    Stat::read(child.pid).map(|stat| stat.process())
}

/// State of the watchdog.
struct Watch {
    child: Child,
    /// COMMAND as /proc has shown it before.
    started: Option<Process>,
    /// COMMAND itself, unless it was reaped before.
    command: Option<ProcessFd>,
    /// By when it has to be dead, by the main thread.
    by_main: Moment,
    /// By when it has to be dead, by the last renewal.
    by_renewal: Option<Moment>,
}

/// The end of a watchdog's work.
enum End {
    Dismissed,
    RedlockIsDead,
}

impl Watch {
    /// All its life.
    fn run(mut self, pipe: &File) {
        let Ok(mut timer) = Timer::new() else { return };
        // They are blocked, as in the thread that has forked this process.
        let Ok(signals) = sys::signal_descriptor(&passed_on()) else {
            return;
        };
        // A signal that came before the new session may have been sent to redlock's group alone, so that COMMAND lacks it.
        while let Ok(Some(_)) = sys::next_signal(&signals) {}
        // COMMAND is killed by that without a look at what may keep us waiting: its number, /proc. That shows another process
        // once COMMAND was reaped, and with hidepid nothing of a setuid one.
        let command = ProcessFd::of(self.child.pid.as_raw()).ok().flatten();
        let shown = shown(&self.child);
        let may_be = !self.child.reaped && (shown.is_none() || shown == self.started);
        self.command = command.filter(|_| may_be);
        self.child.reaped |= !may_be;
        loop {
            match self.listen(pipe) {
                None => {}
                Some(End::Dismissed) => return,
                Some(End::RedlockIsDead) => return self.kill_orphans(),
            }
            let due = if now() >= self.dead_by() {
                self.kill_command();
                self.child.kill();
                now() + LOOK
            } else {
                // What has lost its parent is hard to find when redlock is dead.
                let until = self.dead_by().min(now() + LOOK_FOR);
                self.child.look(Some(until));
                self.dead_by()
            };
            if timer.set(Some(due)).is_err() {
                return;
            }
            let sources = [pipe.as_fd(), timer.as_fd(), signals.as_fd()];
            let _ = poll::wait(&mut sources.map(readable), None);
            // A message to a dead redlock is another signal, SIGPIPE.
            while let Ok(Some(received)) = sys::next_signal(&signals) {
                if write((word_of(&received), now()), pipe).is_err() {
                    break;
                }
            }
        }
    }

    /// Kills COMMAND, and its group, before anything that may take its time, unless it was reaped: then its number, and that of
    /// its group, may be another's.
    fn kill_command(&mut self) {
        let Some(command) = &self.command else {
            return;
        };
        let permission = command.signal(0);
        if permission.is_err_and(|error| error.raw_os_error() == Some(libc::ESRCH)) {
            self.child.reaped = true;
        }
        self.child.kill_group();
        let _ = command.signal(sys::SIGKILL);
    }

    /// Takes in what redlock has sent.
    fn listen(&mut self, pipe: &File) -> Option<End> {
        loop {
            match read(pipe) {
                Ok(None) => return Some(End::RedlockIsDead),
                Ok(Some((DISMISSED, _))) => return Some(End::Dismissed),
                Ok(Some((REAPED, _))) => self.child.reaped = true,
                Ok(Some((RENEWED, dead_by))) => self.by_renewal = Some(dead_by),
                Ok(Some((word, dead_by))) => {
                    self.by_main = dead_by;
                    if word == LOST {
                        self.by_renewal = None;
                    }
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return None,
                Err(_) => {}
            }
        }
    }

    /// By when COMMAND has to be dead. A renewal only makes that later.
    fn dead_by(&self) -> Moment {
        self.by_renewal
            .map_or(self.by_main, |at| at.max(self.by_main))
    }

    /// Kills what a killed redlock has left. Its orphans have other parents now.
    fn kill_orphans(mut self) {
        self.kill_command();
        let until = now() + GIVE_UP_AFTER;
        let mut pause = Duration::from_millis(1);
        while self.child.kill_orphans() > 0 && now() < until {
            std::thread::sleep(pause);
            pause = (pause * 2).min(LOOK);
        }
    }
}
