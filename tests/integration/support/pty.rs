//! A terminal to type on: a pseudo-terminal that is the controlling terminal of a process.

#![allow(unsafe_code)]

use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus};
use std::time::{Duration, Instant};

use nix::fcntl::OFlag;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::pty::{PtyMaster, grantpt, posix_openpt, ptsname_r, unlockpt};
use nix::sys::termios::{LocalFlags, OutputFlags, SetArg, tcgetattr, tcsetattr};

use crate::support::{TIMEOUT, wait_until};

/// A terminal and the process at the head of its session. At the end of the test the process is killed and the terminal hung
/// up.
pub struct Terminal {
    process: Child,
    master: Option<PtyMaster>,
    unread: String,
    /// Everything shown so far.
    pub shown: String,
}

/// Opens the side of a terminal that processes use.
fn slave(master: &PtyMaster) -> File {
    let mut both = OpenOptions::new();
    let both = both.read(true).write(true).custom_flags(libc::O_NOCTTY);
    both.open(ptsname_r(master).unwrap()).unwrap()
}

impl Terminal {
    /// Starts a command at the head of a session on a new terminal, without echo and without translation of line ends.
    pub fn start(mut command: Command) -> Self {
        // CLOEXEC, because a terminal that another test's child inherits could never be hung up.
        let flags = OFlag::O_RDWR | OFlag::O_NOCTTY | OFlag::O_CLOEXEC;
        let master = posix_openpt(flags).expect("a new terminal");
        grantpt(&master).unwrap();
        unlockpt(&master).unwrap();
        let slave = slave(&master);
        let mut settings = tcgetattr(&slave).unwrap();
        settings.local_flags.remove(LocalFlags::ECHO);
        // Otherwise Ctrl-C would discard recent output.
        settings.local_flags.insert(LocalFlags::NOFLSH);
        settings.output_flags.remove(OutputFlags::OPOST);
        tcsetattr(&slave, SetArg::TCSANOW, &settings).unwrap();
        // SAFETY: system calls only, between fork and exec. Standard input is the terminal by then.
        unsafe {
            command.pre_exec(|| {
                // Fails harmlessly if the command already leads a session.
                libc::setsid();
                match libc::ioctl(0, libc::TIOCSCTTY, 0) {
                    0 => Ok(()),
                    _ => Err(std::io::Error::last_os_error()),
                }
            });
        }
        let clone = |file: &File| file.try_clone().unwrap();
        let process = command
            .stdin(clone(&slave))
            .stdout(clone(&slave))
            .stderr(slave)
            .spawn()
            .unwrap_or_else(|error| panic!("can't start {command:?}: {error}"));
        Self {
            process,
            master: Some(master),
            unread: String::new(),
            shown: String::new(),
        }
    }

    pub fn pid(&self) -> i32 {
        self.process.id().try_into().unwrap()
    }

    fn master(&mut self) -> &mut PtyMaster {
        self.master.as_mut().expect("it isn't hung up")
    }

    /// Types on the keyboard: `\x03` is Ctrl-C.
    pub fn type_in(&mut self, text: &str) {
        self.master().write_all(text.as_bytes()).unwrap();
    }

    /// Stops the output like Ctrl-S, and waits until no process can write any more.
    pub fn stop_output(&mut self) {
        let slave = slave(self.master());
        self.type_in("\x13");
        wait_until("the terminal takes no output", || {
            let mut slave = [PollFd::new(slave.as_fd(), PollFlags::POLLOUT)];
            poll(&mut slave, PollTimeout::ZERO) == Ok(0)
        });
    }

    /// Lets the output go on, like Ctrl-Q.
    pub fn resume_output(&mut self) {
        self.type_in("\x11");
    }

    /// Changes the size of the window.
    pub fn resize(&mut self, rows: u16, columns: u16) {
        let size = libc::winsize {
            ws_row: rows,
            ws_col: columns,
            ws_xpixel: 0,
            ws_ypixel: 0,
        };
        // SAFETY: the kernel reads one winsize.
        let result =
            unsafe { libc::ioctl(self.master().as_raw_fd(), libc::TIOCSWINSZ, &raw const size) };
        assert_eq!(result, 0);
    }

    /// Returns the process group in the foreground.
    pub fn foreground(&mut self) -> i32 {
        nix::unistd::tcgetpgrp(self.master()).unwrap().as_raw()
    }

    /// Hangs up the terminal.
    pub fn hang_up(&mut self) {
        self.master = None;
    }

    /// Returns the rest of the next line with this beginning, skipping others.
    #[track_caller]
    pub fn line(&mut self, beginning: &str) -> String {
        let end = Instant::now() + TIMEOUT;
        loop {
            while let Some((line, rest)) = self.unread.split_once('\n') {
                let line = line.trim_end().to_owned();
                self.unread = rest.to_owned();
                if line.starts_with(beginning) {
                    return line;
                }
            }
            assert!(
                self.read(end),
                "no line {beginning:?} came; shown: {:?}",
                self.shown
            );
        }
    }

    /// Waits until the shown text fulfils a condition.
    #[track_caller]
    pub fn wait_until(&mut self, what: &str, condition: impl Fn(&str) -> bool) {
        let end = Instant::now() + TIMEOUT;
        while !condition(&self.shown) {
            assert!(self.read(end), "{what} never came; shown: {:?}", self.shown);
        }
    }

    /// Returns how often this exact line was shown; a shell may show a command line that contains it.
    pub fn count(&self, line: &str) -> usize {
        let lines = self.shown.lines();
        lines.filter(|shown| shown.trim_end() == line).count()
    }

    /// Reads some output. Returns false at its end or after the time limit.
    fn read(&mut self, until: Instant) -> bool {
        let left = until.saturating_duration_since(Instant::now());
        let left = PollTimeout::try_from(left).unwrap();
        let mut bytes = [0; 4096];
        let master = self.master();
        if poll(&mut [PollFd::new(master.as_fd(), PollFlags::POLLIN)], left) == Ok(0) {
            return false;
        }
        // A terminal that no process has open any more ends with an error.
        let read = master.read(&mut bytes).unwrap_or(0);
        let text = String::from_utf8_lossy(&bytes[..read]);
        self.unread += &text;
        self.shown += &text;
        read > 0
    }

    /// Waits for the end of the process and, unless the terminal was hung up, of its output.
    #[track_caller]
    pub fn finish(&mut self) -> ExitStatus {
        let mut status = None;
        wait_until("the process on the terminal ends", || {
            status = self.process.try_wait().unwrap();
            status.is_some()
        });
        let end = Instant::now() + Duration::from_secs(1);
        while self.master.is_some() && self.read(end) {}
        status.unwrap()
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
