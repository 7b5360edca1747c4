//! A terminal to type on: a pseudo-terminal with a process whose controlling terminal it is.

#![allow(unsafe_code)]

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command};
use std::sync::mpsc::{self, Receiver};
use std::time::{Duration, Instant};

use nix::pty::{OpenptyResult, openpty};
use nix::sys::termios::{LocalFlags, OutputFlags, SetArg, tcgetattr, tcsetattr};
use nix::unistd::{Pid, tcgetpgrp};

use crate::support::PATIENCE;

/// A terminal and the process at its session's head. The process is killed when the test ends,
/// and whoever else is on the terminal is hung up on.
pub struct Terminal {
    pub process: Child,
    master: Option<File>,
    output: Receiver<Vec<u8>>,
    /// What has been shown since the last match.
    unread: String,
    /// All that has been shown.
    shown: String,
}

impl Terminal {
    /// Starts a command at the head of a session on a new terminal, which echoes nothing and
    /// leaves line ends as they are.
    pub fn start(command: &mut Command) -> Self {
        let OpenptyResult { master, slave } = openpty(None, None).unwrap();
        let mut settings = tcgetattr(&slave).unwrap();
        settings.local_flags.remove(LocalFlags::ECHO);
        settings.output_flags.remove(OutputFlags::OPOST);
        tcsetattr(&slave, SetArg::TCSANOW, &settings).unwrap();
        let own = [master.as_raw_fd(), slave.as_raw_fd()];
        command
            .stdin(slave.try_clone().unwrap())
            .stdout(slave.try_clone().unwrap())
            .stderr(slave.try_clone().unwrap());
        // SAFETY: system calls only, between fork and exec; what a Command was told before (a
        // session of its own) is done already. Standard input is the terminal.
        unsafe {
            command.pre_exec(move || {
                libc::setsid();
                for fd in own {
                    libc::close(fd);
                }
                match libc::ioctl(0, libc::TIOCSCTTY, 0) {
                    0 => Ok(()),
                    _ => Err(std::io::Error::last_os_error()),
                }
            });
        }
        let process = command
            .spawn()
            .unwrap_or_else(|error| panic!("can't start {command:?}: {error}"));
        // Else this process would keep the terminal open, and the end of its users wouldn't be
        // seen as an end of the output.
        command
            .stdin(std::process::Stdio::null())
            .stdout(std::process::Stdio::null())
            .stderr(std::process::Stdio::null());
        drop(slave);
        let (sender, output) = mpsc::channel();
        let mut reader = File::from(master.try_clone().unwrap());
        // Ends when nobody has the terminal open any more.
        std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(read @ 1..) = reader.read(&mut bytes) {
                if sender.send(bytes[..read].to_vec()).is_err() {
                    break;
                }
            }
        });
        Self {
            process,
            master: Some(File::from(master)),
            output,
            unread: String::new(),
            shown: String::new(),
        }
    }
}
