//! A command and all that it started: its tree.
//!
//! There is one definition of it, used for waiting, signalling and killing: all descendants of a process, those in other
//! process groups and sessions included, except those that were there before. Descendants whose parents have ended are
//! found because they become ours (see [`sys::adopt_orphans`]), or where we are not their ancestor, by
//! the lock's token in their environment. Keepers and what calls hooks are part of no tree: they
//! end when what they watch has ended.

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

/// The descendants of a process, except those that were there before, and what those start.
#[derive(Clone)]
pub struct Tree {
    root: Pid,
    /// The root is the redlock whose COMMAND this is: of its children, those of its main thread count, as its others start
    /// what works for redlock itself.
    is_ours: bool,
    /// The number of its session.
    session: i32,
    /// What was started before this moment was there before, and may become ours as an orphan.
    since: Moment,
    /// The children that the root had by then: start times have a resolution of only 10 ms.
    earlier: Vec<Process>,
    /// The root, which isn't this process, has ended: its number may be another process's.
    root_has_ended: bool,
    /// The members that the last looks have noted.
    pub found: Vec<Process>,
    /// How an orphan of COMMAND is told from one of those.
    pub evidence: Evidence,
}

/// What is known of COMMAND and all that it starts.
#[derive(Clone, Default)]
pub struct Evidence {
    /// COMMAND itself, until it is reaped.
    pub command: Option<Pid>,
    /// The limit that [`sys::with_lower_limit`] has lowered for all that COMMAND starts.
    pub limit: Option<u64>,
    /// Ids of the locks that are in the environments of COMMAND and of what it starts.
    pub ids: Vec<String>,
}

/// The kernel gives the start of a process in ticks of this length, rounded down.
const TICK: Duration = Duration::from_millis(10);

impl Tree {
    /// What descends from us from now on. Costs next to nothing where we have no children yet.
    pub fn ours() -> Self {
        Self::of(Pid::this(), true)
    }

    /// What descends from a process from now on.
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
            found: Vec::new(),
            evidence: Evidence::default(),
        }
    }

    /// Shows all members but the root to `visit` as they are found, parents before children: a signal
    /// that is sent at once reaches a process that is about to fork. Those that may not be looked at are members:
    /// their parents tell of them. None of our own children can be
    /// mistaken for another process, as only we reap them, and a parent that reaps its own in between
    /// does so within the microseconds until the signal is sent.
    ///
    /// A tree may be large: those are shown that are found until then. Whether these are all.
    pub fn visit(&self, until: Option<Moment>, mut visit: impl FnMut(Pid)) -> bool {
        let mut seen = HashSet::from([self.root]);
        let mut parents = vec![self.root];
        if self.root_has_ended {
            parents.clear();
        }
        // Orphans below another root become children of another process.
        let noted = self.found.iter().filter(|_| !self.is_ours);
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

    /// Notes all members but the root that are found until then: when their parents have ended, that may be hard. Returns
    /// whether there was time to find all.
    pub fn note(&mut self, until: Option<Moment>) -> bool {
        let mut members = Vec::new();
        let is_whole = self.visit(until, |pid| members.extend(Process::read(pid)));
        let new: HashSet<Process> = members.iter().copied().collect();
        // If there was nothing before, all that becomes ours is of the tree.
        let may_be_missed = self.may_adopt_others();
        let is_kept = |process: &Process| !is_whole || (may_be_missed && process.is_alive());
        let earlier = self.found.drain(..);
        members.extend(earlier.filter(|process| !new.contains(process) && is_kept(process)));
        self.found = members;
        is_whole
    }

    /// Whether the kernel has given the parent of nothing that is left, or may be, to us: of our children, of which
    /// there are some, each is known to be no member.
    pub fn has_only_earlier_children(&self) -> bool {
        let children = children(self.root, self.is_ours);
        // Where none is found they couldn't be read.
        let mut members = children.iter();
        !children.is_empty() && !members.any(|&child| self.is_member(self.root, child))
    }

    /// The root has ended, or a child of ours was reaped: its number may be another's from now on.
    pub fn forget(&mut self, child: Pid) {
        self.root_has_ended |= child == self.root;
        let is_other = |process: &Process| process.started.is_some() || process.pid != child;
        self.earlier.retain(is_other);
        self.evidence.command = self.evidence.command.filter(|&command| command != child);
    }

    /// Stops all members but the root, until no new one is found: what is stopped forks no more, and what it has forked keeps
    /// its parent until it is found.
    pub fn stop_all(&self) {
        let mut stopped = HashSet::new();
        loop {
            let before = stopped.len();
            self.visit(None, |pid| {
                // What may not be stopped forks on, and isn't waited for.
                if !stopped.contains(&pid) && sys::kill(pid.as_raw(), sys::SIGSTOP).is_ok() {
                    stopped.insert(pid);
                }
            });
            if stopped.len() == before {
                return;
            }
        }
    }

    /// Returns all members but the root that aren't known to have ended.
    pub fn left(&self) -> Vec<Pid> {
        let mut left = Vec::new();
        self.visit(None, |pid| left.extend(is_alive(pid).then_some(pid)));
        left
    }

    /// Notes what is certain to be of the tree even if its parent has ended: what was noted before, what has COMMAND's mark in
    /// its environment, what is in this group that COMMAND has led, what was forked `by` this execution since (but not by what
    /// it had forked before), and what descends from these. Returns whether all could be looked at in time.
    ///
    /// # Errors
    /// The processes can't be listed.
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
            if stat.has_ended || stat.is_keeper() || stat.pid == Pid::this() {
                continue;
            }
            let text = environment(stat.pid);
            is_whole &= !text.as_ref().is_err_and(could_not_look);
            // Others may write the same into the environments of their processes.
            let is_marked = text.as_ref().is_ok_and(|text| self.has_mark(text));
            let is_marked = is_marked && is_of_our_user(stat.pid);
            let is_new = !self.was_there_before(stat.process());
            let is_certain = self.found.contains(&stat.process())
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
        let noted: HashSet<Process> = self.found.iter().copied().collect();
        self.found
            .extend(new.filter(|process| !noted.contains(process)));
        Ok(is_whole)
    }

    /// Returns true if all members but the root are stopped by a signal, except watchdogs.
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

    /// Returns whether a child of this parent, which is the root or a member, is part of the tree. Others were there before,
    /// were started by what was, or work for redlock itself.
    fn is_member(&self, parent: Pid, child: Pid) -> bool {
        // The watchdog of a redlock that dies may become a child of its main thread for a moment.
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
        let is_command = self.evidence.command == Some(child);
        let may_be_of_others = parent == self.root && !is_command && self.may_adopt_others();
        !may_be_of_others || self.is_commands_orphan(process)
    }

    /// Returns whether an environment is that of COMMAND, or of what COMMAND has started.
    fn has_mark(&self, environment: &[u8]) -> bool {
        origin_of(environment, &self.evidence.ids) == Origin::Ours
    }

    /// Whether orphans of others may become ours, too: the root has had children before.
    pub fn may_adopt_others(&self) -> bool {
        self.is_ours && !self.earlier.is_empty()
    }

    /// Returns whether COMMAND, or what it has started, has started a child of ours that may have had another parent before.
    /// A job may clear its environment, but it doesn't know of the limit.
    fn is_commands_orphan(&self, process: Process) -> bool {
        let has_limit = |own: u64| limit_of(process.pid).is_none_or(|limit| limit < own);
        self.found.contains(&process)
            || environment(process.pid).is_ok_and(|text| self.has_mark(&text))
            || self.evidence.limit.is_none_or(has_limit)
    }

    /// Finds a process that a script, the root of this tree which has ended, has started, and that was orphaned: by the lock's
    /// token in its environment, or by the script's session. (A program like `env -i` clears the environment.) `ancestors`
    /// had started the script: only these, and the first process, can have adopted orphans of its work. Returns `None` if
    /// not all processes can be seen.
    pub fn orphan_of_script(&self, ancestors: &[Process]) -> Option<Process> {
        let all = processes().ok().filter(|_| sees_all())?;
        // The keeper has become an orphan itself.
        let adopter = Pid::parent();
        let find = |pid: Pid| all.iter().find(|stat| stat.pid == pid);
        let is_earlier = |stat: &Stat| {
            let process = stat.process();
            self.earlier.contains(&process) || ancestors.contains(&process)
        };
        // The times of starts are rounded, so that one shortly before may seem to be after that.
        let is_younger = |stat: &Stat| stat.started + TICK > self.since.since_boot();
        // The kernel gives an orphan to the nearest ancestor that adopts orphans, or else to the first process.
        let may_adopt = |stat: &Stat| stat.pid == FIRST || ancestors.contains(&stat.process());
        let is_orphaned = |stat: &Stat| match find(stat.parent) {
            None => true,
            Some(parent) if may_adopt(parent) => {
                let adopts = [FIRST, adopter].contains(&parent.pid);
                adopts || parent.session != stat.session
            }
            // Of its parent's work, or of none.
            Some(_) => false,
        };
        let is_redlocks = |stat: &Stat| stat.is_keeper() || stat.is_helper();
        let works = |stat: &Stat| !stat.has_ended && !stat.is_kernel_thread && !is_redlocks(stat);
        let origin = |text: Vec<u8>| origin_of(&text, &self.evidence.ids);
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

    /// Whether a process below the root was there before.
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
        let (mut found, finder) = UnixStream::pair().unwrap();
        let child = sys::fork_apart(c"looks", finder, |mut finder| {
            let mut is_found = false;
            tree.visit(None, |pid| is_found |= pid == Pid::this());
            let _ = finder.write_all(&[u8::from(is_found)]);
        })
        .unwrap();
        let mut is_found = [2];
        found.read_exact(&mut is_found).unwrap();
        sys::kill_and_reap(child);
        assert_eq!(is_found, [0]);
    }

    #[test]
    fn what_was_there_before_is_not_part_of_the_tree() {
        let sleeper = || {
            let mut sleep = std::process::Command::new("sleep");
            sleep.arg("60").spawn().unwrap()
        };
        let pid = |child: &std::process::Child| Pid::from_raw(child.id().cast_signed());
        let mut before = sleeper();
        // Of all threads: a test isn't the main one.
        let tree = Tree::below(Pid::this());
        let mut after = sleeper();
        let mut members = Vec::new();
        tree.visit(None, |pid| members.push(pid));
        for child in [&mut before, &mut after] {
            child.kill().unwrap();
            child.wait().unwrap();
        }
        assert!(members.contains(&pid(&after)), "{members:?}");
        assert!(!members.contains(&pid(&before)), "{members:?}");
    }
}
