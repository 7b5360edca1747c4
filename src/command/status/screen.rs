//! The terminal's other screen, which leaves what was shown before as it was.
//!
//! Nothing here waits for the terminal: its output may be stopped (Ctrl-S), or not be read.

use std::cell::{Cell, RefCell};
use std::fs::{File, OpenOptions};
use std::io::{self, IsTerminal, Write as _};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::time::Duration;

use nix::errno::Errno;
use nix::fcntl::OFlag;
use nix::sys::termios::{
    InputFlags, LocalFlags, SetArg, SpecialCharacterIndices, Termios, tcgetattr, tcsetattr,
};
use nix::unistd::{getpgrp, read, tcgetpgrp};

use crate::clock::now;
use crate::signal::ignores_terminal_stops;
use crate::sys::{self, poll};

/// How long a terminal that isn't read has for the sequence that brings the first screen back.
const LINGER: Duration = Duration::from_millis(500);

pub struct Screen {
    /// How the keyboard was set, where standard input is the terminal.
    settings: Option<Termios>,
    output: File,
    /// How many bytes are written without asking whether the terminal takes more.
    at_once: usize,
    unwritten: RefCell<Vec<u8>>,
    is_entered: Cell<bool>,
}

impl Screen {
    /// Still as it was; [`Self::enter`] changes that.
    pub fn new() -> io::Result<Self> {
        let stdin = io::stdin();
        let settings = if stdin.is_terminal() {
            tcgetattr(&stdin).ok()
        } else {
            None
        };
        // Opened once more, as other processes share what standard output is, and would find it
        // non-blocking too.
        let flags = OFlag::O_NONBLOCK | OFlag::O_NOCTTY;
        let opened = OpenOptions::new()
            .write(true)
            .custom_flags(flags.bits())
            .open(sys::standard_output());
        let (output, at_once) = match opened {
            Ok(output) => (output, usize::MAX),
            // The terminal of another user (`su`): a writable terminal accepts at least one byte.
            Err(_) => (File::from(io::stdout().as_fd().try_clone_to_owned()?), 1),
        };
        Ok(Self {
            settings,
            output,
            at_once,
            unwritten: RefCell::default(),
            is_entered: Cell::new(false),
        })
    }

    /// Whether keys can be typed.
    pub fn has_keys(&self) -> bool {
        self.settings.is_some()
    }

    /// Whether the terminal is another job's, so that its keyboard isn't ours to set.
    pub fn is_in_background(&self) -> bool {
        self.has_keys()
            && tcgetpgrp(io::stdin()).is_ok_and(|group| group != getpgrp())
            && !ignores_terminal_stops()
    }

    /// Begins an empty screen. Twice is as good as once.
    pub fn enter(&self) -> io::Result<()> {
        if let Some(settings) = &self.settings {
            // Keys come one by one, and aren't shown; Ctrl-C stays a signal.
            let mut settings = settings.clone();
            settings
                .local_flags
                .remove(LocalFlags::ICANON | LocalFlags::ECHO);
            settings.control_chars[SpecialCharacterIndices::VMIN as usize] = 0;
            settings.control_chars[SpecialCharacterIndices::VTIME as usize] = 0;
            tcsetattr(io::stdin(), SetArg::TCSANOW, &settings)?;
        }
        if !self.is_entered.replace(true) {
            self.write("\x1b[?1049h")?;
        }
        self.write("\x1b[?25l\x1b[H\x1b[J")
    }

    /// Writes a text, as much as the terminal takes now; the rest by [`Self::write_rest`].
    pub fn write(&self, text: &str) -> io::Result<()> {
        self.unwritten.borrow_mut().extend(text.bytes());
        self.write_rest()
    }

    /// Goes on with what wasn't written yet.
    pub fn write_rest(&self) -> io::Result<()> {
        let mut unwritten = self.unwritten.borrow_mut();
        while !unwritten.is_empty() && self.takes_output(Duration::ZERO) {
            let count = unwritten.len().min(self.at_once);
            match (&self.output).write(&unwritten[..count]) {
                Ok(written) => drop(unwritten.drain(..written)),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Whether the terminal hasn't taken all yet.
    pub fn is_behind(&self) -> bool {
        !self.unwritten.borrow().is_empty()
    }

    /// Whether the terminal takes output, or does within this time.
    fn takes_output(&self, within: Duration) -> bool {
        poll::is_ready(poll::writable(self.output.as_fd()), within)
    }

    /// Brings back what was there.
    pub fn leave(&self) {
        if !self.is_entered.replace(false) {
            return;
        }
        // The terminal of another job has the settings that this one gave it.
        let is_ours = !self.is_in_background();
        if is_ours && !self.takes_output(Duration::ZERO) {
            self.undo_ctrl_s();
        }
        let end = now() + LINGER;
        let mut result = self.write("\x1b[?25h\x1b[?1049l");
        while result.is_ok() && self.is_behind() && self.takes_output(end.since(now())) {
            result = self.write_rest();
        }
        self.unwritten.borrow_mut().clear();
        if let Some(settings) = self.settings.as_ref().filter(|_| is_ours) {
            let _ = tcsetattr(io::stdin(), SetArg::TCSANOW, settings);
        }
    }

    /// Lets output go on that Ctrl-S has stopped: it does when that key loses its meaning.
    fn undo_ctrl_s(&self) {
        if let Ok(before) = tcgetattr(&self.output) {
            let mut settings = before.clone();
            settings.input_flags.remove(InputFlags::IXON);
            let _ = tcsetattr(&self.output, SetArg::TCSANOW, &settings);
            let _ = tcsetattr(&self.output, SetArg::TCSANOW, &before);
        }
    }

    /// Whether a key was typed that ends the picture, or none can be typed any more.
    pub fn ends_by_key() -> bool {
        let mut keys = [0; 1024];
        match read(io::stdin(), &mut keys) {
            Ok(count) => count == 0 || keys[..count].iter().any(|key| b"qQ\x03\x04".contains(key)),
            Err(error) => !matches!(error, Errno::EINTR | Errno::EAGAIN),
        }
    }
}

impl AsFd for Screen {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.output.as_fd()
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        self.leave();
    }
}
