//! The modes of the controlling terminal.

use std::fs::File;
use std::io::{self, IsTerminal};

use nix::errno::Errno;
use nix::sys::signal::{SigSet, Signal, killpg};
use nix::sys::termios::{SetArg, Termios, tcgetattr, tcsetattr};
use nix::unistd::{getpgrp, tcgetpgrp};

/// Modes of the terminal, such as echo, to restore after a COMMAND that couldn't do so itself.
pub struct TerminalModes {
    terminal: File,
    modes: Termios,
}

impl TerminalModes {
    /// Reads the modes. Returns `None` if COMMAND isn't the program that uses the terminal: another program sets the modes in a
    /// pipeline, or if a script has put COMMAND into the background.
    pub fn read() -> Option<Self> {
        if !io::stdin().is_terminal() || !io::stdout().is_terminal() {
            return None;
        }
        let terminal = File::open("/dev/tty").ok()?;
        if tcgetpgrp(&terminal) != Ok(getpgrp()) {
            return None;
        }
        let modes = tcgetattr(&terminal).ok()?;
        Some(Self { terminal, modes })
    }

    /// Sets these modes at once, unless another job has the terminal.
    pub fn restore(&self) {
        let Ok(foreground) = tcgetpgrp(&self.terminal) else {
            return;
        };
        // A COMMAND that led its own group may have died with the terminal.
        let is_free = foreground == getpgrp() || killpg(foreground, None) == Err(Errno::ESRCH);
        // Unblocked, SIGTTOU would stop a process whose group doesn't have the terminal.
        let stop = SigSet::from(Signal::SIGTTOU);
        if is_free && stop.thread_block().is_ok() {
            let _ = tcsetattr(&self.terminal, SetArg::TCSANOW, &self.modes);
            let _ = stop.thread_unblock();
        }
    }
}
