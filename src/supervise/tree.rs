//! A process tree: a command and all that it started.
//!
//! Waiting, signalling and killing use this one definition: all descendants of a process, including those in other
//! process groups and sessions, except those that were there before. Descendants without a parent become redlock's
//! children (see [`sys::adopt_orphans`]). If redlock isn't an ancestor, it finds them by the lock's token in their
//! environment. Keepers and the helpers of hooks aren't part of any tree: they end after the process they watch.

use std::collections::{HashMap, HashSet};
use std::io;
use std::time::Duration;

use nix::unistd::{Pid, getsid};

use crate::clock::{Moment, now};
use crate::supervise::environment::{Origin, origin_of};
use crate::supervise::procfs::{
    Execution, FIRST, Process, Stat, children, could_not_look, environment, is_alive,
    is_of_our_user, is_there, limit_of, processes, sees_all,
};
use crate::sys;

/// Descendants of a process, except those that were there before and their descendants.
#[derive(Clone)]
pub struct Tree {
    pub(super) root: Pid,
    /// The root is the redlock that started this COMMAND. Only children of its main thread
    /// are members, because its other threads start processes that work for redlock itself.
    is_ours: bool,
    /// Session of the root.
    session: i32,
    /// Start of this tree. Older processes aren't members, even if they become redlock's children as orphans.
    since: Moment,
    /// Children that the root had by then, because start times have a resolution of only 10 ms.
    earlier: Vec<Process>,
    /// The root, which isn't this process, has ended: its pid may belong to another process.
    root_has_ended: bool,
    /// Members that the last searches have recorded.
    pub members: Vec<Process>,
    /// Pid of COMMAND, until COMMAND is reaped.
    pub command: Option<Pid>,
    /// redlock's own limit, which [`sys::with_lower_limit`] has lowered for COMMAND and all that it starts.
    pub limit: Option<u64>,
    /// Ids of the locks in the environments of COMMAND and of all that it starts.
    pub ids: Vec<String>,
}

/// Length of the kernel's ticks, to which it rounds start times down.
const TICK: Duration = Duration::from_millis(10);

impl Tree {
    /// Returns a tree of everything that descends from redlock from
    /// now on. Costs almost nothing if redlock has no children.
    pub fn ours() -> Self {
        Self::of(Pid::this(), true)
    }

    /// Returns a tree of everything that descends from a process from now on.
    pub fn below(root: Pid) -> Self {
        Self::of(root, false)
    }

    fn of(root: Pid, is_ours: bool) -> Self {
        let since = now();
        let earlier = if is_ours && !sys::has_children() {
            Vec::new()
        } else {
            children(root, is_ours)
        };
        Self {
            root,
            is_ours,
            session: getsid(Some(root)).map_or(0, Pid::as_raw),
            since,
            earlier: earlier.into_iter().filter_map(Process::read).collect(),
            root_has_ended: false,
            members: Vec::new(),
            command: None,
            limit: None,
            ids: Vec::new(),
        }
    }

    /// Calls `visit` for each member except the root as it is found, parents before children. So a signal sent
    /// by `visit` reaches a process that is about to fork. Processes that redlock may not look at are members if
    /// their parents list them. A child of redlock can't be confused with another process, because only redlock
    /// reaps it. Any other parent may reap its child only in the microseconds before the signal is sent.
    ///
    /// A large tree takes long: the walk ends at `until`. Returns true if it was complete.
    pub fn visit(&self, until: Option<Moment>, mut visit: impl FnMut(Pid)) -> bool {
        let mut seen = HashSet::from([self.root]);
        let mut parents = Vec::from_iter((!self.root_has_ended).then_some(self.root));
        // Orphans below another root get other parents, so they are found only through the recorded processes.
        let noted = self.members.iter().filter(|_| !self.is_ours);
        for process in noted.filter(|process| process.is_alive()) {
            seen.insert(process.pid);
            visit(process.pid);
            parents.push(process.pid);
        }
        let mut next = 0;
        while let Some(&parent) = parents.get(next) {
            next += 1;
            for child in children(parent, self.is_ours && parent == self.root) {
                if until.is_some_and(|until| now() >= until) {
                    return false;
                }
                if seen.insert(child) && self.is_member(parent, child) {
                    visit(child);
                    parents.push(child);
                }
            }
        }
        true
    }

    /// Records all members except the root, until `until`, because they are hard to
    /// find after their parents have ended. Returns true if the search was complete.
    pub fn note(&mut self, until: Option<Moment>) -> bool {
        let mut members = Vec::new();
        let is_whole = self.visit(until, |pid| members.extend(Process::read(pid)));
        let new: HashSet<Process> = members.iter().copied().collect();
        // If redlock had no children before, all orphans that it adopts are members, and a new search finds them.
        let may_be_missed = self.may_adopt_others();
        let is_kept = |process: &Process| !is_whole || (may_be_missed && process.is_alive());
        let earlier = self.members.drain(..);
        members.extend(earlier.filter(|process| !new.contains(process) && is_kept(process)));
        self.members = members;
        is_whole
    }

    /// Returns true if redlock has children, and none of them is a member of the tree.
    pub fn has_only_earlier_children(&self) -> bool {
        let children = children(self.root, self.is_ours);
        // An empty list means that the children couldn't be read.
        let mut members = children.iter();
        !children.is_empty() && !members.any(|&child| self.is_member(self.root, child))
    }

    /// Handles the end of the root or of a reaped child: its pid may belong to another process from now on.
    pub fn forget(&mut self, child: Pid) {
        self.root_has_ended |= child == self.root;
        let is_other = |process: &Process| process.started.is_some() || process.pid != child;
        self.earlier.retain(is_other);
        self.command.take_if(|command| *command == child);
    }

    /// Stops all members except the root, until no new one appears: a stopped process
    /// doesn't fork, and its children keep their parent until they are found.
    pub fn stop_all(&self) {
        let mut stopped = HashSet::new();
        loop {
            let before = stopped.len();
            self.visit(None, |pid| {
                // A process that can't be stopped may go on forking, and the loop doesn't wait for it.
                if !stopped.contains(&pid) && sys::kill(pid.as_raw(), sys::SIGSTOP).is_ok() {
                    stopped.insert(pid);
                }
            });
            if stopped.len() == before {
                return;
            }
        }
    }

    /// Signals the recorded members. Returns the number of those that could be signalled.
    pub fn signal_found(&self, signal: i32) -> usize {
        let all = self.members.iter();
        all.filter(|process| process.signal(signal)).count()
    }

    /// Returns all members except the root that may still be alive.
    pub fn left(&self) -> Vec<Pid> {
        let mut left = Vec::new();
        self.visit(None, |pid| left.extend(is_alive(pid).then_some(pid)));
        left
    }

    /// Records all processes that are certain to be members even if their parents have ended: those recorded
    /// before, those with COMMAND's mark in their environment, those in the `group` that COMMAND led, and
    /// all their descendants. Processes that the execution `by` has forked since the start are members, too,
    /// except those below its earlier forks. Returns true if all could be examined before `until`.
    ///
    /// # Errors
    /// Fails if the processes can't be listed.
    pub fn scan(
        &mut self,
        group: Option<Pid>,
        by: Option<Execution>,
        until: Option<Moment>,
    ) -> io::Result<bool> {
        let all = processes()?;
        let by_pid: HashMap<Pid, &Stat> = all.iter().map(|stat| (stat.pid, stat)).collect();
        let is_of_group = |stat: &Stat| {
            group.map(Pid::as_raw) == Some(stat.group) && stat.session == self.session
        };
        let is_fork = |stat: &Stat| stat.is_fork && by.is_some() && stat.execution == by;
        let is_of_earlier_fork = |stat: &Stat| {
            let parent = |stat: &&Stat| by_pid.get(&stat.parent).copied();
            let mut line = std::iter::successors(Some(stat), parent);
            line.any(|stat| is_fork(stat) && self.was_there_before(stat.process()))
        };
        let (mut ours, mut others, mut is_whole) = (Vec::new(), Vec::new(), true);
        for stat in &all {
            if until.is_some_and(|until| now() >= until) {
                is_whole = false;
                break;
            }
            let is_root = stat.pid == self.root && !self.root_has_ended;
            if stat.has_ended || stat.is_keeper() || is_root || stat.pid == Pid::this() {
                continue;
            }
            let text = environment(stat.pid);
            is_whole &= !text.as_ref().is_err_and(could_not_look);
            // Other users may write the same text into the environments of their processes.
            let is_marked = text.as_ref().is_ok_and(|text| self.has_mark(text));
            let is_marked = is_marked && is_of_our_user(stat.pid);
            let is_new = !self.was_there_before(stat.process());
            let is_certain = self.members.contains(&stat.process())
                || is_of_group(stat)
                || (text.is_ok() && is_fork(stat) && !is_of_earlier_fork(stat));
            if is_marked || (is_new && is_certain) {
                ours.push(stat);
            } else if is_new {
                others.push(stat);
            }
        }
        let mut next = 0;
        while let Some(parent) = ours.get(next).map(|stat| stat.pid) {
            ours.extend(others.extract_if(.., |stat| stat.parent == parent));
            next += 1;
        }
        let new = ours.into_iter().map(Stat::process);
        let noted: HashSet<Process> = self.members.iter().copied().collect();
        self.members
            .extend(new.filter(|process| !noted.contains(process)));
        Ok(is_whole)
    }

    /// Returns true if a signal has stopped all members except the root and watchdogs.
    pub fn is_stopped(&self) -> bool {
        let mut all_rest = true;
        self.visit(None, |pid| {
            all_rest &= match Stat::read(pid) {
                Some(stat) => stat.is_stopped || stat.has_ended || stat.is_helper(),
                None => sys::stop_signal(pid).is_some() || !is_there(pid),
            };
        });
        all_rest
    }

    /// Returns true if a child of `parent`, which is the root or a member, is a member.
    /// Other children were there before, descend from those, or work for redlock itself.
    fn is_member(&self, parent: Pid, child: Pid) -> bool {
        // A dying redlock's watchdog may become a child of redlock's main thread for a moment.
        if child == Pid::this() {
            return false;
        }
        let stat = Stat::read(child);
        let process = Process {
            pid: child,
            started: stat.map(|stat| stat.started),
        };
        if self.was_there_before(process) || stat.is_some_and(|stat| stat.is_keeper()) {
            return false;
        }
        let is_command = self.command == Some(child);
        let may_be_of_others = parent == self.root && !is_command && self.may_adopt_others();
        !may_be_of_others || self.is_commands_orphan(process)
    }

    /// Returns true if an environment is that of COMMAND or of a process that it started.
    fn has_mark(&self, environment: &[u8]) -> bool {
        origin_of(environment, &self.ids) == Origin::Ours
    }

    /// Returns true if redlock may also adopt orphans of other processes, because it had children before COMMAND.
    pub fn may_adopt_others(&self) -> bool {
        self.is_ours && !self.earlier.is_empty()
    }

    /// Returns true if COMMAND's tree started this child of redlock, which may be an adopted
    /// orphan. A job may clear its environment, but it doesn't know about the lowered limit.
    fn is_commands_orphan(&self, process: Process) -> bool {
        let has_limit = |own: u64| limit_of(process.pid).is_none_or(|limit| limit < own);
        self.members.contains(&process)
            || environment(process.pid).is_ok_and(|text| self.has_mark(&text))
            || self.limit.is_none_or(has_limit)
    }

    /// Finds an orphaned process that a script has started; the script, which has ended, is the root of
    /// this tree. The lock's token in the environment identifies the process, or the script's session
    /// does if a program such as `env -i` has cleared the environment. Only the script's `ancestors` and
    /// the first process can have adopted its orphans. Returns `None` if not all processes are visible.
    pub fn orphan_of_script(&self, ancestors: &[Process]) -> Option<Process> {
        let all = processes().ok().filter(|_| sees_all())?;
        // The keeper has become an orphan itself, so its parent is the process that adopts orphans.
        let adopter = Pid::parent();
        let find = |pid: Pid| all.iter().find(|stat| stat.pid == pid);
        let is_earlier = |stat: &Stat| {
            let process = stat.process();
            self.earlier.contains(&process) || ancestors.contains(&process)
        };
        // Start times are rounded down, so a process may seem to have started before the tree.
        let is_younger = |stat: &Stat| stat.started + TICK > self.since.since_boot();
        // The kernel gives an orphan to the nearest ancestor that adopts orphans, or else to the first process.
        let may_adopt = |stat: &Stat| stat.pid == FIRST || ancestors.contains(&stat.process());
        let is_orphaned = |stat: &Stat| match find(stat.parent) {
            None => true,
            Some(parent) if may_adopt(parent) => {
                let adopts = [FIRST, adopter].contains(&parent.pid);
                adopts || parent.session != stat.session
            }
            // The process works for its parent, which may not even be part of the work.
            Some(_) => false,
        };
        let is_redlocks = |stat: &Stat| stat.is_keeper() || stat.is_helper();
        let works = |stat: &Stat| !stat.has_ended && !stat.is_kernel_thread && !is_redlocks(stat);
        let origin = |text: Vec<u8>| origin_of(&text, &self.ids);
        let is_work = |stat: &&Stat| match environment(stat.pid).map(origin) {
            Ok(Origin::Ours) => true,
            Ok(Origin::Unsaid) => {
                !is_earlier(stat) && stat.session == self.session && is_orphaned(stat)
            }
            Ok(Origin::OfOthers) | Err(_) => false,
        };
        let mut candidates = all.iter().filter(|stat| is_younger(stat) && works(stat));
        candidates.find(is_work).map(Stat::process)
    }

    /// Returns true if a process below the root was there before the tree's start.
    fn was_there_before(&self, process: Process) -> bool {
        let is_older = |started| started + TICK <= self.since.since_boot();
        process.started.is_some_and(is_older) || self.earlier.contains(&process)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_no_member_of_the_tree_that_it_looks_at() {
        use std::io::{Read as _, Write as _};
        use std::os::unix::net::UnixStream;

        let tree = Tree::below(Pid::this());
        let (mut reader, finder) = UnixStream::pair().unwrap();
        let child = sys::fork_apart(c"looks", finder, |mut finder| {
            let mut is_found = false;
            tree.visit(None, |pid| is_found |= pid == Pid::this());
            let _ = finder.write_all(&[u8::from(is_found)]);
        })
        .unwrap();
        let mut is_found = [2];
        reader.read_exact(&mut is_found).unwrap();
        sys::kill_and_reap(child);
        assert_eq!(is_found, [0]);
    }
}
