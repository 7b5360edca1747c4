//! The watchdog: a process beside a run that kills COMMAND's tree where redlock can't, as it was killed, or was stopped
//! for longer than its lease.
//!
//! Without a terminal COMMAND leads a process group of its own, so that a SIGKILL or SIGSTOP for the group of redlock
//! doesn't reach it. The watchdog is in a session of its own, ignores all other signals, and holds nothing but a pipe,
//! through which redlock tells by when COMMAND has to be dead. It is forked by the thread that renews, when that begins:
//! a short run never has it, and it is none of the main thread's children, all of which are COMMAND's.

use std::fs::File;
use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::AsFd;
use std::sync::mpsc::{Receiver, sync_channel};
use std::time::Duration;

use nix::fcntl::OFlag;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::unistd::{Pid, pipe2};

use crate::child::Child;
use crate::clock::{Moment, Timer, now};
use crate::renewer::Call;
use crate::sys;
use crate::tree::{self, Process, WATCHDOG};

/// How often it looks whether redlock is stopped, or something is left, where it is late.
const LOOK: Duration = Duration::from_millis(20);

/// The time between two looks for COMMAND's tree, and how long each may take.
const LOOK_AGAIN: Duration = Duration::from_millis(500);
const LOOK_FOR: Duration = Duration::from_secs(1);

/// For how long it kills what a killed redlock has left: what withstands that can't be killed.
const GIVE_UP_AFTER: Duration = Duration::from_secs(5);

/// How long redlock waits for its number, where it was just begun.
const STARTS_WITHIN: Duration = Duration::from_millis(50);

/// A message to it is a time since boot in nanoseconds, or one of these. COMMAND has ended, or is no longer to be killed.
const DISMISSED: u64 = 0;

/// COMMAND was reaped: its number, and that of its group, may be another's.
const REAPED: u64 = 1;

/// There is no lease that ends.
const NEVER: u64 = u64::MAX;

/// The watchdog, as redlock knows it.
pub struct Watchdog {
    words: File,
    /// What it was told last.
    told: u64,
    /// Its number comes when it was forked.
    number: Receiver<Pid>,
    process: Option<Process>,
}

impl Watchdog {
    /// Has one forked that kills this child, whose number is its own until this returns, and which has to be dead by then.
    /// `in_thread` has that done in the thread that renews.
    pub fn start(
        child: &Child,
        dead_by: Option<Moment>,
        in_thread: impl FnOnce(Call),
    ) -> io::Result<Self> {
        let (read, words) = pipe2(OFlag::O_CLOEXEC | OFlag::O_NONBLOCK)?;
        let (announce, number) = sync_channel(1);
        let watch = Watch {
            child: child.clone(),
            command: Process::read(child.pid()),
            redlock: Pid::this(),
            dead_by: word(dead_by),
            looked: None,
        };
        let read = File::from(read);
        in_thread(Box::new(move || {
            if let Ok(pid) = sys::fork_apart(WATCHDOG, read, |words| watch.run(words)) {
                let _ = announce.send(pid);
            }
        }));
        Ok(Self {
            words: File::from(words),
            told: word(dead_by),
            number,
            process: None,
        })
    }

    /// By when COMMAND has to be dead, as far as is known now.
    pub fn tell(&mut self, dead_by: Option<Moment>) {
        let word = word(dead_by);
        // One that doesn't read has been stopped, too.
        if word != self.told && self.write(word) {
            self.told = word;
        }
    }

    /// COMMAND was reaped.
    pub fn tell_reaped(&mut self) {
        self.write(REAPED);
    }

    /// It is to kill nothing any more.
    pub fn dismiss(&mut self) {
        self.write(DISMISSED);
    }

    fn write(&mut self, word: u64) -> bool {
        self.words.write_all(&word.to_ne_bytes()).is_ok()
    }

    /// Itself, as long as it lives.
    pub fn process(&mut self) -> Option<Process> {
        if self.process.is_none() {
            let number = self.number.recv_timeout(STARTS_WITHIN).ok();
            self.process = number.and_then(Process::read);
        }
        self.process.filter(Process::is_alive)
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        self.dismiss();
        if let Some(process) = self.process.or_else(|| self.process()) {
            sys::kill_and_reap(Pid::from_raw(process.pid));
        }
    }
}

fn word(dead_by: Option<Moment>) -> u64 {
    dead_by.map_or(NEVER, |at| {
        u64::try_from(at.since_boot().as_nanos()).unwrap_or(NEVER)
    })
}

/// What it knows.
struct Watch {
    child: Child,
    /// COMMAND itself.
    command: Option<Process>,
    redlock: Pid,
    dead_by: u64,
    /// When it last looked for COMMAND's tree.
    looked: Option<Moment>,
}

/// What redlock has told.
enum Told {
    Nothing,
    Something,
    Dismissed,
    /// It is dead.
    End,
}

impl Watch {
    /// All its life.
    fn run(mut self, mut words: File) {
        let Ok(mut timer) = Timer::new() else { return };
        loop {
            match self.listen(&mut words) {
                Told::Nothing => {}
                // Both are hard to find out when redlock is dead.
                Told::Something => {
                    self.note_reaped();
                    self.look();
                }
                Told::Dismissed => return,
                Told::End => return self.kill_orphans(),
            }
            let is_late = self.dead_by().is_some_and(|at| now() >= at);
            if is_late && self.is_redlock_stopped() {
                self.note_reaped();
                self.child.kill();
            }
            let due = if is_late {
                Some(now() + LOOK)
            } else {
                self.dead_by()
            };
            if timer.set(due).is_err() {
                return;
            }
            let mut fds =
                [words.as_fd(), timer.as_fd()].map(|fd| PollFd::new(fd, PollFlags::POLLIN));
            let _ = poll(&mut fds, PollTimeout::NONE);
        }
    }

    /// Looks for COMMAND's tree, but not again and again.
    fn look(&mut self) {
        let began = now();
        if self.looked.is_none_or(|at| began >= at + LOOK_AGAIN) {
            self.child.look(Some(began + LOOK_FOR));
            self.looked = Some(now());
        }
    }

    fn listen(&mut self, words: &mut File) -> Told {
        let mut told = Told::Nothing;
        let mut word = [0; 8];
        loop {
            match words.read(&mut word) {
                Ok(8) => match u64::from_ne_bytes(word) {
                    DISMISSED => return Told::Dismissed,
                    REAPED => self.child.was_reaped(),
                    dead_by => {
                        self.dead_by = dead_by;
                        told = Told::Something;
                    }
                },
                Ok(_) => return Told::End,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return told,
                Err(_) => {}
            }
        }
    }

    fn dead_by(&self) -> Option<Moment> {
        let is_told = self.dead_by != NEVER;
        is_told.then(|| Moment::at(Duration::from_nanos(self.dead_by)))
    }

    /// Whether a signal has stopped redlock. One that is only late decides for itself: it may know of a later renewal.
    fn is_redlock_stopped(&self) -> bool {
        tree::Stat::read(self.redlock).is_some_and(|stat| stat.is_stopped)
    }

    /// Whether redlock has reaped COMMAND: then its number, and that of its group, may be another's.
    fn note_reaped(&mut self) {
        let now = Process::read(self.child.pid());
        if now.is_none() || now != self.command {
            self.child.was_reaped();
        }
    }

    /// Kills what a killed redlock has left. Its orphans have other parents now.
    fn kill_orphans(mut self) {
        let until = now() + GIVE_UP_AFTER;
        let mut pause = Duration::from_millis(1);
        while self.child.kill_orphans() > 0 && now() < until {
            std::thread::sleep(pause);
            pause = (pause * 2).min(LOOK);
        }
    }
}
