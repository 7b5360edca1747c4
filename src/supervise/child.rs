//! The supervised child: spawns it, signals it and its process tree, and reaps it.

use std::collections::HashSet;
use std::ffi::{CStr, CString, OsStr, OsString};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::time::Duration;

use nix::sys::signal::Signal;
use nix::unistd::{Pid, getpgid};

use crate::clock::{Moment, now};
use crate::decide::job_control::StoppedBy;
use crate::decide::session::Event;
use crate::signal::{SIGINT, Signals};
use crate::supervise::environment::Environment;
use crate::supervise::procfs::{Process, Stat, is_alive};
use crate::supervise::script::KeptScript;
use crate::supervise::tree::Tree;
use crate::sys::{self, Reach, SpawnError, SpawnSpec};
use crate::variables::VARIABLES;

/// A spawned child, which may have been reaped; or the script of a keeper, which isn't redlock's child.
#[derive(Clone)]
pub struct Child {
    pub(super) pid: Pid,
    /// The child leads its own process group, and redlock signals the whole group. On a terminal it
    /// stays in redlock's group instead, so that the shell's job control treats both as one job.
    pub(super) own_group: bool,
    /// The child has been reaped: its pid and process group may belong to another process now.
    pub(super) reaped: bool,
    pub(super) tree: Tree,
    /// Time that the last complete walk of the tree took, or longer if a later one was cut short.
    pub(super) walk: Duration,
    /// Processes that redlock may not signal, since the last report about them.
    pub(super) refused: Vec<Pid>,
    /// The script, if this process is a keeper.
    pub(super) script: Option<KeptScript>,
}

/// A command that is prepared in advance, so that starting it takes no longer than necessary.
pub struct Prepared {
    candidates: Vec<CString>,
    arguments: Vec<CString>,
    /// Environment as `NAME=value` texts, without redlock's own variables.
    environment: Vec<&'static CStr>,
    /// Variables that contain redlock's pid, and will contain the child's instead.
    pid_variables: Vec<&'static CStr>,
}

/// A command, prepared to be run, and its variables.
pub struct Work {
    pub words: Vec<OsString>,
    pub prepared: Prepared,
    pub environment: Environment,
}

/// Variables by which a service manager names the pid that it means: `sd_watchdog_enabled(3)`, `sd_listen_fds(3)`.
const PID_VARIABLES: [&CStr; 2] = [c"WATCHDOG_PID", c"LISTEN_PID"];

impl Prepared {
    /// Prepares a command and its arguments. The environment is redlock's, without the variables about locks.
    ///
    /// # Errors
    /// `NotFound` if there is no command.
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
        // The variable identifies the process that LISTEN_PID named, which COMMAND is not.
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

impl Child {
    /// Starts a command under the locks with these ids, but not after a time since boot. Passes on the standard
    /// streams, and the environment plus the work's variables. The kernel kills the child when redlock dies; orphans of
    /// the tree become redlock's children.
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
        // Refuses to start COMMAND if this fails, because its orphans could then escape.
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
        tree.command = Some(pid);
        (tree.limit, tree.ids) = (limit, ids);
        Ok(Self {
            pid,
            own_group,
            reaped: false,
            tree,
            walk: Duration::ZERO,
            refused: Vec::new(),
            script: None,
        })
    }

    /// Forwards a signal to the child, or to its process group if it leads one.
    /// If the child has ended, all that is left of its tree gets the signal.
    pub fn forward(&mut self, signal: i32) {
        if self.reaped && self.script.is_none() {
            return self.signal_tree(None, |_| signal);
        }
        // A COMMAND that started in redlock's group may lead its own by now, as timeout(1) does.
        let has_group = self.own_group || self.group() == Some(self.pid);
        let sent = match &self.script {
            Some(script) => script.process.signal(signal),
            None if has_group => sys::kill(-self.pid.as_raw(), signal),
            None => sys::kill(self.pid.as_raw(), signal),
        };
        self.refused.extend(refused(self.pid, &sent));
    }

    /// Continues the whole job: redlock's process group, and the child if it has left that group. The
    /// group usually contains the child's descendants, and anything else that the shell has put there.
    pub fn continue_job(&mut self) {
        // An error only concerns processes in the group that aren't the child's.
        let _ = sys::kill(0, sys::SIGCONT);
        self.forward_outside(sys::SIGCONT);
    }

    /// Forwards a signal that redlock's process group has already got: to the child if it has
    /// left that group, or to the rest of its tree outside the group if the child has ended.
    pub fn forward_outside(&mut self, signal: i32) {
        if self.reaped {
            let outside = |pid| if is_in_our_group(pid) { 0 } else { signal };
            self.signal_tree(None, outside);
        } else if self.is_outside() {
            self.forward(signal);
        }
    }

    /// Returns true if the child isn't in redlock's process group.
    pub fn is_outside(&self) -> bool {
        self.group() != Some(nix::unistd::getpgrp())
    }

    /// Returns the child's process group, until the child is reaped.
    fn group(&self) -> Option<Pid> {
        let pid = (!self.reaped).then_some(self.pid)?;
        getpgid(Some(pid)).ok()
    }

    /// Returns the kind of stop, if the child is stopped.
    pub fn stopped_by(&self) -> Option<StoppedBy> {
        let signal = (!self.reaped).then(|| sys::stop_signal(self.pid))??;
        // SIGSTOP outside redlock's group is job control, because a
        // shell that suspends itself stops its own group with it.
        let is_other = signal == Signal::SIGSTOP && !self.is_outside();
        Some(if is_other {
            StoppedBy::Other
        } else {
            StoppedBy::JobControl
        })
    }

    /// Records the members of the child's tree, until `until` at the latest.
    pub fn look(&mut self, until: Option<Moment>) {
        let began = now();
        let is_whole = self.tree.note(until);
        let took = now().since(began);
        self.walk = if is_whole { took } else { self.walk.max(took) };
    }

    /// Sends SIGTERM to the child and its tree, except the processes that a SIGTERM
    /// with this `reach` has already reached. The search for them ends at `kill_at`.
    /// A stopped process is continued, because it handles SIGTERM only then.
    pub fn terminate(&mut self, kill_at: Option<Moment>, reach: Reach) {
        if let Some(script) = &self.script {
            return script.terminate(&mut self.tree, kill_at);
        }
        // Records the tree before its first process ends, because children then have no parent for a moment.
        self.look(kill_at);
        let (leader, has_group) = (self.pid, self.own_group && !self.reaped);
        if has_group && reach != Reach::All {
            // A process that is forked meanwhile gets the group's signal.
            let _ = sys::kill(-leader.as_raw(), sys::SIGTERM);
        }
        let asks = |pid: Pid| {
            // Signal 0 only checks the permission to signal a process.
            let has_got_it = reach == Reach::All
                || (has_group && getpgid(Some(pid)) == Ok(leader))
                || (reach == Reach::Group && is_in_our_group(pid));
            if has_got_it { 0 } else { sys::SIGTERM }
        };
        // A stopped process that is continued first may stop itself again before its SIGTERM.
        let wakes = |pid: Pid| {
            let is_stopped = Stat::read(pid).is_some_and(|stat| stat.is_stopped);
            if is_stopped { sys::SIGCONT } else { 0 }
        };
        self.signal_tree(kill_at, asks);
        self.signal_tree(kill_at, wakes);
    }

    /// Sends SIGTERM to the members of the tree that SIGINT has not ended: those
    /// that ignore it, or are in another group than redlock's and the child's.
    pub fn terminate_others(&mut self) {
        let leader = self.pid;
        self.signal_tree(None, |pid| {
            let ignores_it = || Stat::read(pid).is_some_and(|stat| stat.ignores(SIGINT));
            // This is redlock's group, or the group that the child has led.
            let is_of_it = || getpgid(Some(pid)) == Ok(leader) || is_in_our_group(pid);
            let has_got_it = is_of_it() && !ignores_it();
            if has_got_it { 0 } else { sys::SIGTERM }
        });
    }

    /// Kills the child and its tree. A process that is forked meanwhile
    /// may escape, so the caller repeats this until nothing is left.
    pub fn kill(&mut self) {
        if let Some(script) = &self.script {
            return script.kill(&mut self.tree);
        }
        self.kill_group();
        // Kills the recorded processes first, because walking a large tree takes longer.
        self.tree.signal_found(sys::SIGKILL);
        self.tree.stop_all();
        self.signal_tree(None, |_| sys::SIGKILL);
    }

    /// Kills the child's process group, if it leads one: the kernel lets none of the group escape.
    pub fn kill_group(&self) {
        if self.own_group && !self.reaped {
            let _ = sys::kill(-self.pid.as_raw(), sys::SIGKILL);
        }
    }

    /// Kills what is left of the child and its tree after its redlock died; the
    /// watchdog calls this. Returns the number of processes that could be signalled.
    pub fn kill_orphans(&mut self) -> usize {
        // The group's number stays reserved while the group has a member.
        let group = (self.own_group && !self.reaped).then_some(self.pid);
        // A stopped process doesn't fork, and the processes it has forked keep their parent until they are found.
        loop {
            let before = self.tree.members.len();
            let is_listed = self.tree.scan(group, None, None).is_ok();
            self.tree.signal_found(sys::SIGSTOP);
            if !is_listed || self.tree.members.len() == before {
                return self.tree.signal_found(sys::SIGKILL);
            }
        }
    }

    /// Sends the signal that `signal` chooses to the child, and to each member of its tree
    /// that is recorded or found before `until`. Signal 0 only checks the permission.
    fn signal_tree(&mut self, until: Option<Moment>, signal: impl Fn(Pid) -> i32) {
        let mut reached = HashSet::new();
        let not_permitted = &mut self.refused;
        let mut send = |pid: Pid| {
            if reached.insert(pid) {
                not_permitted.extend(refused(pid, &sys::kill(pid.as_raw(), signal(pid))));
            }
        };
        // The child first, because finding the others may take a while.
        if !self.reaped {
            send(self.pid);
        }
        let in_time = |_: &&Process| until.is_none_or(|until| now() < until);
        let noted = self.tree.members.iter().take_while(in_time);
        for process in noted.filter(|process| process.is_alive()) {
            send(process.pid);
        }
        self.tree.visit(until, send);
    }

    /// Reaps ended children. Returns the next end that matters, or `None` if there is none yet: that of the child, and
    /// then that of its tree, if the kernel confirms that nothing of it is left. Adopted orphans, and children that
    /// were there before COMMAND, don't matter.
    pub fn reap(&mut self) -> io::Result<Option<Event<'static>>> {
        if let Some(script) = &mut self.script {
            return Ok(script.reap(&mut self.reaped, &mut self.tree));
        }
        loop {
            let has_none = match sys::reap() {
                Ok(Some((pid, status))) => {
                    let pid = Pid::from_raw(pid);
                    self.tree.forget(pid);
                    if pid == self.pid {
                        self.reaped = true;
                        return Ok(Some(Event::Ended(status)));
                    }
                    continue;
                }
                Ok(None) => self.reaped && self.tree.has_only_earlier_children(),
                Err(error) if error.raw_os_error() == Some(libc::ECHILD) => self.reaped,
                Err(error) => return Err(error),
            };
            return Ok(has_none.then_some(Event::TreeEnded));
        }
    }
}

fn is_in_our_group(pid: Pid) -> bool {
    getpgid(Some(pid)) == Ok(nix::unistd::getpgrp())
}

/// Returns the process if redlock may not signal it and it is still alive.
fn refused(pid: Pid, sent: &io::Result<()>) -> Option<Pid> {
    let error = sent.as_ref().err()?;
    let is_refused = error.kind() == io::ErrorKind::PermissionDenied;
    (is_refused && is_alive(pid)).then_some(pid)
}

/// Returns the paths at which execvp(3) would look for a program.
fn candidates(program: &OsStr) -> io::Result<Vec<CString>> {
    if program.as_bytes().contains(&b'/') {
        return Ok(vec![c_string(program)?]);
    }
    let path = std::env::var_os("PATH").unwrap_or_else(|| "/usr/local/bin:/bin:/usr/bin".into());
    // An empty directory in PATH means the current directory.
    std::env::split_paths(&path)
        .map(|directory| c_string(directory.join(program)))
        .collect()
}

fn c_string(text: impl AsRef<OsStr>) -> io::Result<CString> {
    Ok(CString::new(text.as_ref().as_bytes())?)
}
