//! One child: spawn it, signal it (and all that came from it), reap it.

use std::ffi::{CStr, CString, OsStr, OsString};
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::process::ExitStatus;

use nix::unistd::Pid;

use crate::process::descendants;
use crate::sys::{self, Execution};

/// A child that was spawned, and may have been reaped.
pub struct Child {
    pid: Pid,
    /// It leads a process group of its own, which is signalled as a whole. On a terminal it shares
    /// our group instead, so that the shell's job control treats both as one job.
    own_group: bool,
    reaped: bool,
    killed: bool,
}

/// A command that is ready to be started, without delay when its time comes.
pub struct Prepared {
    candidates: Vec<CString>,
    arguments: Vec<CString>,
    /// Our environment as `NAME=value` texts.
    environment: Vec<CString>,
}

impl Prepared {
    /// A command and its arguments; it gets our environment without the variables of these names.
    ///
    /// # Errors
    /// `NotFound` when there is no command.
    pub fn new(words: &[OsString], without: &[&str]) -> io::Result<Self> {
        let program = words.first().filter(|program| !program.is_empty());
        let program = program.ok_or(io::ErrorKind::NotFound)?;
        let kept =
            std::env::vars_os().filter(|(name, _)| without.iter().all(|other| name != other));
        Ok(Self {
            candidates: candidates(program)?,
            arguments: words.iter().map(c_string).collect::<io::Result<_>>()?,
            environment: kept
                .map(|(name, value)| variable(&name, &value))
                .collect::<io::Result<_>>()?,
        })
    }
}

/// What reaping found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reaped {
    /// The child itself ended.
    Child(ExitStatus),
    /// None of its descendants that we know of is left.
    Tree,
}

impl Child {
    /// Starts a command. Standard streams and the environment (with `variables` set) pass through;
    /// the kernel kills the child when redlock dies.
    ///
    /// # Errors
    /// `NotFound` or another kind when the command can't be executed.
    pub fn spawn(
        command: &Prepared,
        variables: &[(&'static str, OsString)],
        own_group: bool,
        sigchld_ignored: bool,
    ) -> io::Result<Self> {
        let mut environment = command.environment.clone();
        for (name, value) in variables {
            environment.push(variable(OsStr::new(name), value)?);
        }
        let spawn = |candidates: &[CString], arguments: &[CString]| {
            sys::spawn(&Execution {
                candidates,
                arguments,
                environment: &environment,
                own_group,
                sigchld_ignored,
            })
        };
        let Prepared {
            candidates,
            arguments,
            ..
        } = command;
        let pid = match spawn(candidates, arguments) {
            // A script without a #! line is the shell's, as execvp(3) has it.
            Err(error) if error.raw_os_error() == Some(libc::ENOEXEC) => {
                let script = candidates.iter().find(|path| is_file(path));
                let mut arguments = arguments.clone();
                arguments[0] = script.unwrap_or(&arguments[0]).clone();
                arguments.insert(0, c"sh".into());
                spawn(&[c"/bin/sh".into()], &arguments)?
            }
            spawned => spawned?,
        };
        Ok(Self {
            pid: Pid::from_raw(pid),
            own_group,
            reaped: false,
            killed: false,
        })
    }

    /// Passes on a signal that redlock got: to the whole group where it is the child's own.
    pub fn forward(&self, signal: i32) {
        if self.own_group {
            // The group exists as long as one member does, and its number isn't used again before.
            let _ = sys::kill(-self.pid.as_raw(), signal);
        } else if signal == sys::SIGTERM {
            self.signal_tree(signal);
        } else if !self.reaped && (signal != sys::SIGCONT || self.is_stopped()) {
            // The shell's `fg` has continued the whole job; once is enough.
            let _ = sys::kill(self.pid.as_raw(), signal);
        }
    }

    /// Whether the child is stopped (state T in the third field of proc's stat).
    fn is_stopped(&self) -> bool {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.pid)).unwrap_or_default();
        stat.rsplit_once(')')
            .is_some_and(|(_, fields)| fields.trim_start().starts_with('T'))
    }

    /// From now on, descendants whose parent ends become our children, so that none gets away.
    pub fn adopt_orphans() {
        let _ = nix::sys::prctl::set_child_subreaper(true);
    }

    /// Asks the child and all that came from it to stop.
    pub fn stop(&self) {
        // A stopped process takes its SIGTERM only when it goes on.
        for signal in [sys::SIGTERM, sys::SIGCONT] {
            if self.own_group {
                self.forward(signal);
            } else {
                self.signal_tree(signal);
            }
        }
    }

    /// Kills the child and all that came from it, in whatever group.
    pub fn kill(&mut self) {
        self.killed = true;
        if self.own_group {
            self.forward(sys::SIGKILL);
        }
        self.signal_tree(sys::SIGKILL);
    }

    /// Signals the child and all descendants that can be found.
    fn signal_tree(&self, signal: i32) {
        let child = (!self.reaped).then_some(self.pid);
        let rest = descendants(Pid::this())
            .into_iter()
            .filter(|&pid| Some(pid) != child);
        for pid in child.into_iter().chain(rest) {
            let _ = sys::kill(pid.as_raw(), signal);
        }
    }

    /// Reaps what has ended, up to the next that matters; `None` when nothing has for now.
    pub fn reap(&mut self) -> io::Result<Option<Reaped>> {
        loop {
            match sys::reap() {
                Ok(Some((pid, status))) if pid == self.pid.as_raw() => {
                    self.reaped = true;
                    return Ok(Some(Reaped::Child(status)));
                }
                // An orphan that we adopted.
                Ok(Some(_)) => {}
                Ok(None) => return Ok(None),
                Err(error) if error.raw_os_error() == Some(libc::ECHILD) => {
                    let gone = self.reaped && (self.killed || !self.group_lives());
                    return Ok(gone.then_some(Reaped::Tree));
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Whether anybody is left in the child's own group, as far as we may know.
    fn group_lives(&self) -> bool {
        self.own_group && sys::kill(-self.pid.as_raw(), 0).is_ok()
    }
}

/// The paths at which a program may be found, as execvp(3) looks for it.
fn candidates(program: &OsStr) -> io::Result<Vec<CString>> {
    if program.as_bytes().contains(&b'/') {
        return Ok(vec![c_string(program)?]);
    }
    let path = std::env::var_os("PATH").unwrap_or_else(|| "/usr/local/bin:/bin:/usr/bin".into());
    // An empty directory is the current one.
    std::env::split_paths(&path)
        .map(|directory| c_string(directory.join(program)))
        .collect()
}

fn variable(name: &OsStr, value: &OsStr) -> io::Result<CString> {
    c_string([name, value].join(OsStr::new("=")))
}

fn c_string(text: impl AsRef<OsStr>) -> io::Result<CString> {
    Ok(CString::new(text.as_ref().as_bytes())?)
}

fn is_file(path: &CStr) -> bool {
    fs::metadata(OsStr::from_bytes(path.to_bytes())).is_ok_and(|metadata| metadata.is_file())
}
