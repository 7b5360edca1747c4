//! One child: spawn it, signal it (and all that came from it), reap it.

use std::collections::HashSet;
use std::ffi::{CStr, CString, OsStr, OsString};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::time::Duration;

use nix::sys::signal::Signal;
use nix::unistd::{Pid, getpgid};

use crate::clock::{Moment, now};
use crate::decide::job_control::StoppedBy;
use crate::signal::{SIGINT, Signals};
use crate::supervise::environment::Environment;
use crate::supervise::procfs::{Process, Stat, is_alive};
use crate::supervise::script::{Reaped, Script};
use crate::supervise::tree::{Evidence, Tree};
use crate::sys::{self, Reach, SpawnError, SpawnSpec};
use crate::variables::VARIABLES;

/// A child that was spawned, and may have been reaped; or a script, which isn't a child of ours.
#[derive(Clone)]
pub struct Child {
    pub(super) pid: Pid,
    /// It leads a separate process group, which gets signals as a whole. On a terminal it shares
    /// our group instead, so that the shell's job control treats both as one job.
    pub(super) own_group: bool,
    /// From then on its number, and that of its group, may be another process's.
    pub(super) reaped: bool,
    pub(super) tree: Tree,
    /// How long it takes to find all, as far as is known.
    pub(super) walk: Duration,
    /// The script of a keeper.
    pub(super) script: Option<Script>,
}

/// A command that is ready to be started, without delay when its time comes.
pub struct Prepared {
    candidates: Vec<CString>,
    arguments: Vec<CString>,
    /// Our environment as `NAME=value` texts.
    environment: Vec<&'static CStr>,
    /// Names of the variables that will hold the child's pid, because they hold ours.
    pid_variables: Vec<&'static CStr>,
}

/// Work to start.
pub struct Work {
    pub words: Vec<OsString>,
    pub prepared: Prepared,
    pub environment: Environment,
}

/// Variables by which a service manager names the process that it means: `sd_watchdog_enabled(3)`, `sd_listen_fds(3)`.
const PID_VARIABLES: [&CStr; 2] = [c"WATCHDOG_PID", c"LISTEN_PID"];

impl Prepared {
    /// Prepares a command and its arguments, with our environment except our variables about locks.
    ///
    /// # Errors
    /// `NotFound` when there is no command.
    pub fn new(words: &[OsString]) -> io::Result<Self> {
        let program = words.first().filter(|program| !program.is_empty());
        let program = program.ok_or(io::ErrorKind::NotFound)?;
        let own_pid = Pid::this().to_string();
        let (mut environment, mut pid_variables) = (Vec::new(), Vec::new());
        for variable in sys::all_variables() {
            let Some((name, value)) = sys::name_and_value(variable) else {
                continue;
            };
            let is_pid = |of: &&CStr| of.to_bytes() == name && value == own_pid.as_bytes();
            if let Some(name) = PID_VARIABLES.into_iter().find(is_pid) {
                pid_variables.push(name);
            } else if !VARIABLES.iter().any(|of| of.as_bytes() == name) {
                environment.push(variable);
            }
        }
        // It identifies the process that LISTEN_PID named.
        if pid_variables.contains(&c"LISTEN_PID") {
            environment.retain(|text| !text.to_bytes().starts_with(b"LISTEN_PIDFDID="));
        }
        Ok(Self {
            candidates: candidates(program)?,
            arguments: words.iter().map(c_string).collect::<io::Result<_>>()?,
            environment,
            pid_variables,
        })
    }
}

/// Processes that we may not signal.
pub type Refused = Vec<Pid>;

impl Child {
    /// Starts a command under the locks with these `ids`, but not after a moment since boot. Standard streams and the environment (with the work's variables) pass through;
    /// the kernel kills the child when redlock dies, and makes its orphans our children.
    pub fn spawn(
        work: &Work,
        own_group: bool,
        signals: &Signals,
        not_after: Option<Duration>,
        ids: Vec<String>,
    ) -> Result<Self, SpawnError> {
        let added = work.environment.iter();
        let added =
            added.map(|(name, value)| c_string([OsStr::new(name), value].join("=".as_ref())));
        let added: Vec<CString> = added
            .collect::<io::Result<_>>()
            .map_err(SpawnError::CannotExecute)?;
        let command = &work.prepared;
        let mut environment = command.environment.clone();
        environment.extend(added.iter().map(CString::as_c_str));
        let mut tree = Tree::ours();
        // Without that, what it starts could escape: better not to start it.
        sys::adopt_orphans().map_err(SpawnError::NoProcess)?;
        let spec = SpawnSpec {
            candidates: &command.candidates,
            arguments: &command.arguments,
            environment: &environment,
            pid_variables: &command.pid_variables,
            own_group,
            sigchld_ignored: signals.sigchld_ignored,
            not_after,
        };
        let (pid, limit) = if tree.may_adopt_others() {
            sys::with_lower_limit(|| sys::spawn(&spec))
        } else {
            (sys::spawn(&spec), None)
        };
        let pid = Pid::from_raw(pid?);
        tree.evidence = Evidence {
            command: Some(pid),
            limit,
            ids,
        };
        Ok(Self {
            pid,
            own_group,
            reaped: false,
            tree,
            walk: Duration::ZERO,
            script: None,
        })
    }

    /// Passes a signal on to the child, and to all of its group where it has its own; to all that is
    /// left of its tree when it has ended.
    pub fn forward(&self, signal: i32) -> Refused {
        if let Some(script) = &self.script {
            let sent = script.process.signal(signal);
            return refused(self.pid, &sent).into_iter().collect();
        }
        if self.reaped {
            return self.signal_tree(None, |_| signal);
        }
        // A COMMAND that shares our group may have made one of its own since, as timeout(1) does.
        let to = if self.own_group || self.group() == Some(self.pid) {
            -self.pid.as_raw()
        } else {
            self.pid.as_raw()
        };
        refused(self.pid, &sys::kill(to, signal))
            .into_iter()
            .collect()
    }

    /// Continues the whole job: our process group, which what the child has started is in as a rule, with whatever else the
    /// shell has put there, and the child.
    pub fn continue_job(&self) -> Refused {
        // What may not be signalled in it isn't the child's.
        let _ = sys::kill(0, sys::SIGCONT);
        self.forward_outside(sys::SIGCONT)
    }

    /// Passes on a signal that our process group has got: to the child where it isn't in that any more, or to what is left
    /// of its tree elsewhere.
    pub fn forward_outside(&self, signal: i32) -> Refused {
        if self.reaped {
            let outside = |pid| if is_in_our_group(pid) { 0 } else { signal };
            self.signal_tree(None, outside)
        } else if self.is_outside() {
            self.forward(signal)
        } else {
            Refused::new()
        }
    }

    /// Whether the child is in another process group than we are.
    pub fn is_outside(&self) -> bool {
        self.group() != Some(nix::unistd::getpgrp())
    }

    /// The process group that the child is in, until it is reaped.
    fn group(&self) -> Option<Pid> {
        let pid = (!self.reaped).then_some(self.pid)?;
        getpgid(Some(pid)).ok()
    }

    /// Whether the child is stopped by a signal.
    pub fn is_stopped(&self) -> bool {
        self.stopped_by().is_some()
    }

    /// By what the child is stopped, if it is.
    pub fn stopped_by(&self) -> Option<StoppedBy> {
        let signal = (!self.reaped).then(|| sys::stop_signal(self.pid))??;
        // A shell that suspends itself stops its own group so.
        let is_other = signal == Signal::SIGSTOP && !self.is_outside();
        Some(if is_other {
            StoppedBy::Other
        } else {
            StoppedBy::JobControl
        })
    }

    /// Looks for the child and all its tree until then.
    pub fn look(&mut self, until: Option<Moment>) {
        let began = now();
        let is_whole = self.tree.note(until);
        let took = now().since(began);
        self.walk = if is_whole { took } else { self.walk.max(took) };
    }

    /// Asks the child and all its tree to terminate, as far as they are found until they have to be killed, except those
    /// that a SIGTERM of this reach has reached. What is stopped takes its SIGTERM only when it goes on, so
    /// that is continued.
    pub fn terminate(&mut self, kill_at: Option<Moment>, reach: Reach) -> Refused {
        if let Some(script) = &self.script {
            script.terminate(&mut self.tree, kill_at);
            return Refused::new();
        }
        // Found before the first of them ends: its children have no parent for a moment.
        self.look(kill_at);
        let has_group = self.own_group && !self.reaped;
        if has_group && reach != Reach::All {
            // A process that is forked meanwhile gets what its group gets.
            let _ = sys::kill(-self.pid.as_raw(), sys::SIGTERM);
        }
        let asks = |pid: Pid| {
            if Stat::read(pid).is_some_and(|stat| stat.is_stopped) {
                let _ = sys::kill(pid.as_raw(), sys::SIGCONT);
            }
            // For these it is enough to know whether we may signal them.
            let has_got_it = reach == Reach::All
                || (has_group && getpgid(Some(pid)) == Ok(self.pid))
                || (reach == Reach::Group && is_in_our_group(pid));
            if has_got_it { 0 } else { sys::SIGTERM }
        };
        self.signal_tree(kill_at, asks)
    }

    /// Asks those of the tree to terminate that did not take the INT of the child's group: they are of
    /// another one, or ignore it.
    pub fn terminate_others(&self) -> Refused {
        self.signal_tree(None, |pid| {
            let ignores_it = || Stat::read(pid).is_some_and(|stat| stat.ignores(SIGINT));
            // That group is ours, or the one that the child has led.
            let is_of_it = || getpgid(Some(pid)) == Ok(self.pid) || is_in_our_group(pid);
            let has_got_it = is_of_it() && !ignores_it();
            if has_got_it { 0 } else { sys::SIGTERM }
        })
    }

    /// Kills the child and all its tree. What is forked meanwhile may escape, so this is repeated
    /// until nothing is left.
    pub fn kill(&mut self) -> Refused {
        if let Some(script) = &self.script {
            script.kill(&mut self.tree);
            return Refused::new();
        }
        self.kill_group();
        // To look for all of a large tree takes longer than to kill what was found before.
        for process in &self.tree.found {
            process.signal(sys::SIGKILL);
        }
        self.tree.stop_all();
        self.signal_tree(None, |_| sys::SIGKILL)
    }

    /// Kills the child's process group, where it has its own: the kernel lets nothing of it escape.
    pub fn kill_group(&self) {
        if self.own_group && !self.reaped {
            let _ = sys::kill(-self.pid.as_raw(), sys::SIGKILL);
        }
    }

    /// Kills what is left of the child and its tree where we are another process than the one that has started it, which is
    /// dead. How many there were that may be killed.
    pub fn kill_orphans(&mut self) -> usize {
        // A group has its number as long as one is in it, and the child was alive a moment ago.
        let group = (self.own_group && !self.reaped).then_some(self.pid);
        let signal_all = |tree: &Tree, signal| {
            let all = tree.found.iter();
            all.filter(|process| process.signal(signal)).count()
        };
        // What is stopped forks no more, and what it has forked keeps its parent until it is found.
        loop {
            let before = self.tree.found.len();
            let is_listed = self.tree.scan(group, None, None).is_ok();
            signal_all(&self.tree, sys::SIGSTOP);
            if !is_listed || self.tree.found.len() == before {
                return signal_all(&self.tree, sys::SIGKILL);
            }
        }
    }

    /// Sends the child, and each member of its tree that was noted or is found until then, the signal that it is to get; 0 only
    /// asks whether we may.
    fn signal_tree(&self, until: Option<Moment>, signal: impl Fn(Pid) -> i32) -> Refused {
        let mut reached = HashSet::new();
        let mut not_permitted = Vec::new();
        let mut send = |pid: Pid| {
            if reached.insert(pid) {
                not_permitted.extend(refused(pid, &sys::kill(pid.as_raw(), signal(pid))));
            }
        };
        // Before the others, which may take a while to find.
        if !self.reaped {
            send(self.pid);
        }
        let in_time = |_: &&Process| until.is_none_or(|until| now() < until);
        let noted = self.tree.found.iter().take_while(in_time);
        for process in noted.filter(|process| process.is_alive()) {
            send(process.pid);
        }
        self.tree.visit(until, send);
        not_permitted
    }

    /// Reaps what has ended, up to the next that matters; `None` when nothing has for now. Orphans that we adopted, and children
    /// that were there before, don't matter.
    pub fn reap(&mut self) -> io::Result<Option<Reaped>> {
        if let Some(script) = &mut self.script {
            return Ok(script.reap(self.pid, &mut self.reaped, &mut self.tree));
        }
        loop {
            let has_none = match sys::reap() {
                Ok(Some((pid, status))) => {
                    let pid = Pid::from_raw(pid);
                    self.tree.forget(pid);
                    if pid == self.pid {
                        self.reaped = true;
                        return Ok(Some(Reaped::Child(status)));
                    }
                    continue;
                }
                Ok(None) => self.reaped && self.tree.has_only_earlier_children(),
                Err(error) if error.raw_os_error() == Some(libc::ECHILD) => self.reaped,
                Err(error) => return Err(error),
            };
            return Ok(has_none.then_some(Reaped::Tree));
        }
    }
}

fn is_in_our_group(pid: Pid) -> bool {
    getpgid(Some(pid)) == Ok(nix::unistd::getpgrp())
}

/// The process, if the signal was refused because we may not send it, and it isn't known to have ended.
fn refused(pid: Pid, sent: &io::Result<()>) -> Option<Pid> {
    let error = sent.as_ref().err()?;
    let is_refused = error.kind() == io::ErrorKind::PermissionDenied;
    (is_refused && is_alive(pid)).then_some(pid)
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

fn c_string(text: impl AsRef<OsStr>) -> io::Result<CString> {
    Ok(CString::new(text.as_ref().as_bytes())?)
}
