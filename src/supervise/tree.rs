//! A command and all that it started: its tree.
//!
//! There is one definition of it, used for waiting, signalling and killing: all descendants of a process, those in other
//! process groups and sessions included, except those that were there before. Descendants whose parents have ended are
//! found because they become ours (see [`sys::adopt_orphans`]), or where we are not their ancestor, by
//! the lock's token in their environment. Keepers and what calls hooks are part of no tree: they
//! end when what they watch has ended.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::ffi::CStr;
use std::fs::{self, File};
use std::io::{self, Read};
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use nix::unistd::{Pid, getsid};

use crate::clock::{Moment, now};
use crate::protocol;
use crate::supervise::environment::{Origin, has_called_hook, is_of_hook, lock_hooks};
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
    /// Those of them that may not be looked at. Their numbers are theirs until they are reaped.
    earlier_hidden: Vec<Pid>,
    /// What was seen to be part of the tree.
    seen: BTreeSet<Process>,
    /// How an orphan of COMMAND is told from one of those.
    evidence: Evidence,
}

/// What is known of COMMAND and all that it starts.
#[derive(Clone, Default)]
pub struct Evidence {
    /// COMMAND itself, until it is reaped.
    pub command: Option<Pid>,
    /// The limit that [`sys::with_lower_limit`] has lowered for all that COMMAND starts.
    pub limit: Option<u64>,
    /// Whether an environment is that of COMMAND, or of what it has started.
    pub is_marked: Option<IsMarked>,
}

/// Whether an environment, as `NAME=value` texts that end with a zero byte, is that of a job.
pub type IsMarked = Arc<dyn Fn(&[u8]) -> bool + Send + Sync>;

/// The kernel gives the start of a process in ticks of this length, rounded down.
const TICK: Duration = Duration::from_millis(10);

impl Tree {
    /// What descends from us from now on. Costs next to nothing where we have no children yet.
    pub fn ours() -> Self {
        let mut tree = Self::of(Pid::this(), now());
        tree.is_ours = true;
        if sys::has_children() {
            tree.note_earlier();
        }
        tree
    }

    /// What descends from a process from now on.
    pub fn below(root: Pid) -> Self {
        let mut tree = Self::of(root, now());
        tree.note_earlier();
        tree
    }

    fn note_earlier(&mut self) {
        for child in self.children(self.root) {
            match Process::read(child) {
                Some(process) => self.earlier.push(process),
                None if is_there(child) => self.earlier_hidden.push(child),
                None => {}
            }
        }
    }

    fn of(root: Pid, since: Moment) -> Self {
        Self {
            root,
            is_ours: false,
            session: getsid(None).map_or(0, Pid::as_raw),
            since,
            earlier: Vec::new(),
            earlier_hidden: Vec::new(),
            seen: BTreeSet::new(),
            evidence: Evidence::default(),
        }
    }

    /// Takes in what is known of all that COMMAND starts, of which nothing has been looked for yet.
    pub fn know(&mut self, evidence: Evidence) {
        self.evidence = evidence;
    }

    /// Shows all members but the root to `visit` as they are found, parents before children: a signal
    /// that is sent at once reaches a process that is about to fork. Those that may not be looked at are members:
    /// their parents tell of them. None of our own children can be
    /// mistaken for another process, as only we reap them, and a parent that reaps its own in between
    /// does so within the microseconds until the signal is sent.
    ///
    /// A tree may be large: those are shown that are found until then. Whether these are all.
    pub fn visit(&self, until: Option<Moment>, visit: impl FnMut(Pid)) -> bool {
        self.visit_below(&[self.root], until, visit)
    }

    /// The same for what descends from these, each of which is the root or a member.
    pub fn visit_below(
        &self,
        roots: &[Pid],
        until: Option<Moment>,
        mut visit: impl FnMut(Pid),
    ) -> bool {
        self.descend(roots, until, |parent, child| {
            let is_ours = self.is_member(parent, child);
            if is_ours {
                visit(child);
            }
            is_ours
        })
    }

    /// Finds all members but the root until then, and remembers whose they are: when their parents have ended, that may
    /// be hard to tell. Those that may be looked at, with what identifies them later, and whether there was time to find all.
    pub fn note(&mut self, until: Option<Moment>) -> (Vec<Process>, bool) {
        let mut found = Vec::new();
        let is_whole = self.visit(until, |pid| found.extend(Process::read(pid)));
        // Where there was nothing before, all that becomes ours is of the tree.
        if self.may_adopt_others() {
            self.seen.retain(Process::is_alive);
            self.seen.extend(&found);
        }
        (found, is_whole)
    }

    /// Whether the kernel has given the parent of nothing that is left, or may be, to us: of our children, of which
    /// there are some, each is known to be no member.
    pub fn has_only_earlier_children(&self) -> bool {
        let children = self.children(self.root);
        // Where none is found they couldn't be read.
        !children.is_empty()
            && !children
                .iter()
                .any(|&child| self.is_member(self.root, child))
    }

    /// A child of ours was reaped: its number may be another's from now on.
    pub fn forget(&mut self, child: Pid) {
        self.earlier_hidden.retain(|&pid| pid != child);
        self.evidence.command = self.evidence.command.filter(|&command| command != child);
    }

    /// All members but the root.
    pub fn members(&self) -> Vec<Pid> {
        let mut members = Vec::new();
        self.visit(None, |pid| members.push(pid));
        members
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
        let mut left = self.members();
        left.retain(|&pid| is_alive(pid));
        left
    }

    /// What is left of our tree where its root is dead, as far as that is certain: what was `known` of it, what has COMMAND's
    /// mark in its environment or is in the group that COMMAND has led, and what descends from these.
    ///
    /// # Errors
    /// Not all processes can be looked at.
    pub fn orphans(&self, known: &[Process], group: Option<Pid>) -> io::Result<Vec<Process>> {
        let mut all = processes()?;
        let own = Pid::this();
        all.retain(|stat| !stat.has_ended && !stat.is_keeper() && stat.pid != own);
        all.retain(|stat| !self.was_there_before(stat.process()));
        let is_of_group = |stat: &Stat| {
            let group = group.is_some_and(|group| group.as_raw() == stat.group);
            group && stat.session == self.session
        };
        // Others may write the same into the environments of their processes.
        let is_marked = |stat: &Stat| is_of_our_user(stat.pid) && self.is_marked(stat.pid);
        let is_certain =
            |stat: &Stat| known.contains(&stat.process()) || is_of_group(stat) || is_marked(stat);
        let (mut ours, mut others): (Vec<Stat>, Vec<Stat>) = all.into_iter().partition(is_certain);
        let mut next = 0;
        while let Some(parent) = ours.get(next).map(|stat| stat.pid) {
            let (children, rest): (Vec<_>, Vec<_>) =
                others.into_iter().partition(|stat| stat.parent == parent);
            ours.extend(children);
            others = rest;
            next += 1;
        }
        Ok(ours.iter().map(Stat::process).collect())
    }

    /// Returns true if all members but the root are stopped by a signal, except watchdogs.
    pub fn is_stopped(&self) -> bool {
        let rests = |stat: Stat| stat.is_stopped || stat.has_ended || stat.is_helper();
        let mut members = self.members().into_iter();
        members.all(|pid| match Stat::read(pid) {
            Some(stat) => rests(stat),
            None => sys::stop_signal(pid).is_some() || !is_there(pid),
        })
    }

    /// All processes but keepers whose environment `is_marked`, and what was forked by this execution since (but not by
    /// what it had forked before), as far as we may see, and as long as there is time.
    ///
    /// # Errors
    /// No descriptor or memory is left to look: there may be others.
    pub fn marked(
        &self,
        is_marked: impl Fn(&[u8]) -> bool,
        by: Option<Execution>,
        in_time: impl Fn() -> bool,
    ) -> io::Result<Vec<Process>> {
        let all = processes()?;
        let by_pid: HashMap<Pid, &Stat> = all.iter().map(|stat| (stat.pid, stat)).collect();
        let is_fork = |stat: &Stat| stat.is_fork && by.is_some() && stat.execution == by;
        let is_of_earlier_fork = |stat: &Stat| {
            let parent = |stat: &&Stat| by_pid.get(&stat.parent).copied();
            let mut line = std::iter::successors(Some(stat), parent);
            line.any(|stat| is_fork(stat) && self.was_there_before(stat.process()))
        };
        let mut found = Vec::new();
        for stat in &all {
            if !in_time() {
                break;
            }
            if stat.has_ended || stat.is_keeper() || stat.pid == Pid::this() {
                continue;
            }
            match environment(stat.pid) {
                // Others may write the same into the environments of their processes.
                Ok(text)
                    if (is_marked(&text) && is_of_our_user(stat.pid))
                        || (is_fork(stat) && !is_of_earlier_fork(stat)) =>
                {
                    found.push(stat.process());
                }
                Err(error) if could_not_look(&error) => return Err(error),
                // It has ended, or we may not look into it.
                Ok(_) | Err(_) => {}
            }
        }
        Ok(found)
    }

    /// Descendants that were there before, where start times alone don't show it.
    pub fn earlier(&self) -> &[Process] {
        &self.earlier
    }

    /// Returns whether a child of this parent, which is the root or a member, is part of the tree. Others were there before,
    /// were started by what was, or are what a command that works for redlock itself has left behind.
    fn is_member(&self, parent: Pid, child: Pid) -> bool {
        // The watchdog of a redlock that dies may become a child of its main thread for a moment.
        if child == Pid::this() {
            return false;
        }
        let Some(stat) = Stat::read(child) else {
            // Its parent tells of it, so it is there, or was until now.
            let was_there = parent == self.root && self.earlier_hidden.contains(&child);
            return !was_there;
        };
        let works_for_us = || {
            // Another process that has a copy of this doesn't know.
            let may_be = has_called_hook() || self.root != Pid::this();
            self.is_ours && may_be && environment(child).is_ok_and(|text| is_of_hook(&text))
        };
        if stat.is_keeper() || self.was_there_before(stat.process()) || works_for_us() {
            return false;
        }
        let is_command = self.evidence.command == Some(child);
        let may_be_of_others = parent == self.root && !is_command && self.may_adopt_others();
        !may_be_of_others || self.is_commands_orphan(stat.process())
    }

    /// Whether the environment of a process is that of COMMAND, or of what it has started.
    fn is_marked(&self, pid: Pid) -> bool {
        let is_marked = self.evidence.is_marked.as_ref();
        is_marked.is_some_and(|is_marked| environment(pid).is_ok_and(|text| is_marked(&text)))
    }

    /// Whether orphans of others may become ours, too: the root has had children before.
    pub fn may_adopt_others(&self) -> bool {
        let had_others = !self.earlier.is_empty() || !self.earlier_hidden.is_empty();
        had_others && self.is_ours
    }

    /// Returns whether COMMAND, or what it has started, has started a child of ours that may have had another parent before.
    /// A job may clear its environment, but it doesn't know of the limit.
    fn is_commands_orphan(&self, process: Process) -> bool {
        let pid = Pid::from_raw(process.pid);
        let has_limit = |own: u64| limit_of(pid).is_none_or(|limit| limit < own);
        self.seen.contains(&process)
            || self.is_marked(pid)
            || self.evidence.limit.is_none_or(has_limit)
    }

    /// Shows all that descends from these processes, with its parent, until then; below those for which `goes_on` says
    /// no, nothing is looked for. Whether that was all.
    fn descend(
        &self,
        roots: &[Pid],
        until: Option<Moment>,
        mut goes_on: impl FnMut(Pid, Pid) -> bool,
    ) -> bool {
        let mut seen: HashSet<Pid> = roots.iter().copied().collect();
        let mut found = roots.to_vec();
        let mut next = 0;
        while let Some(&parent) = found.get(next) {
            next += 1;
            for child in self.children(parent) {
                if until.is_some_and(|until| now() >= until) {
                    return false;
                }
                if seen.insert(child) && goes_on(parent, child) {
                    found.push(child);
                }
            }
        }
        true
    }

    fn children(&self, of: Pid) -> Vec<Pid> {
        children(of, self.is_ours && of == self.root)
    }

    /// Whether a process below the root was there before.
    fn was_there_before(&self, process: Process) -> bool {
        process.started + TICK <= self.since.since_boot() || self.earlier.contains(&process)
    }
}

/// Whether a process is of the user that we are.
fn is_of_our_user(pid: Pid) -> bool {
    let found = fs::metadata(format!("/proc/{pid}"));
    found.is_ok_and(|found| found.uid() == nix::unistd::geteuid().as_raw())
}

/// Returns the soft limit of file locks of a process.
fn limit_of(pid: Pid) -> Option<u64> {
    let limits = fs::read_to_string(format!("/proc/{pid}/limits")).ok()?;
    let mut lines = limits.lines();
    let soft = lines.find_map(|line| line.strip_prefix("Max file locks"))?;
    // Without a number there is no limit.
    let soft = soft.split_ascii_whitespace().next()?;
    Some(soft.parse().unwrap_or(u64::MAX))
}

/// Whether a process executes the same program file as we do.
fn has_our_program(pid: Pid) -> bool {
    let file = |path: &str| {
        fs::metadata(path)
            .map(|found| (found.dev(), found.ino()))
            .ok()
    };
    let ours = file("/proc/self/exe");
    ours.is_some() && file(&format!("/proc/{pid}/exe")) == ours
}

/// Whether there is a process with this pid, also one that may not be looked at: only the kernel's word counts.
pub fn is_there(pid: Pid) -> bool {
    let asked = sys::kill(pid.as_raw(), 0);
    asked
        .err()
        .is_none_or(|error| error.raw_os_error() != Some(libc::ESRCH))
}

/// Whether the process with this pid has not ended. One that may not be looked at counts as alive.
pub fn is_alive(pid: Pid) -> bool {
    match Stat::read(pid) {
        Some(stat) => !stat.has_ended,
        None => is_there(pid),
    }
}

/// A process, identified by its pid and the time of its start, as the pid may be reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Process {
    pub pid: i32,
    pub started: Duration,
}

impl Process {
    /// The process that has this pid now, if any.
    pub fn read(pid: Pid) -> Option<Self> {
        Some(Stat::read(pid)?.process())
    }

    /// Whether it still has that pid, and has not ended.
    pub fn is_alive(&self) -> bool {
        let stat = Stat::read(Pid::from_raw(self.pid));
        stat.is_some_and(|stat| stat.started == self.started && !stat.has_ended)
    }
}

/// Longest line of ancestors that is followed.
const MOST_ANCESTORS: usize = 100;

/// What has started a process, directly or not; `None` where not all of it can be seen. It only becomes less: what
/// loses its parent is given to another one of these, or to the first process.
pub fn ancestors(of: Pid) -> Option<Vec<Process>> {
    let mut found = Vec::new();
    let mut next = Stat::read(of)?.parent;
    // One of another pid namespace has no number here.
    while next.as_raw() != 0 {
        let stat = Stat::read(next)?;
        found.push(stat.process());
        // However they change meanwhile.
        if found.len() > MOST_ANCESTORS {
            return None;
        }
        next = stat.parent;
    }
    Some(found)
}

/// Returns whether a process has started this one, directly or not, as far as that can be seen.
pub fn is_ancestor(pid: Pid) -> bool {
    let parent = |pid: &Pid| Some(Stat::read(*pid)?.parent);
    let line = std::iter::successors(Some(Pid::this()), parent);
    // However they change meanwhile.
    line.take(MOST_ANCESTORS)
        .skip(1)
        .any(|ancestor| ancestor == pid)
}

/// The children of a process: of all its threads, or of the main one alone.
fn children(of: Pid, of_main_thread: bool) -> Vec<Pid> {
    let threads = match fs::read_dir(format!("/proc/{of}/task")) {
        Ok(threads) if has_own_proc() => threads,
        Ok(_) | Err(_) => return Vec::new(),
    };
    let main = of.to_string();
    let counts = |thread: &fs::DirEntry| !of_main_thread || thread.file_name() == *main;
    let mut found = Vec::new();
    for thread in threads.flatten().filter(counts) {
        match fs::read_to_string(thread.path().join("children")) {
            Ok(list) => {
                let pids = list.split_ascii_whitespace();
                found.extend(pids.filter_map(|pid| pid.parse().ok().map(Pid::from_raw)));
            }
            // The thread has ended, or this kernel was built without that file.
            Err(_) if !thread.path().join("children").exists() && thread.path().exists() => {
                let stats = processes().unwrap_or_default().into_iter();
                return stats
                    .filter(|stat| stat.parent == of)
                    .map(|stat| stat.pid)
                    .collect();
            }
            Err(_) => {}
        }
    }
    found
}

/// What the kernel tells everybody of a process.
#[derive(Clone, Copy, Debug)]
#[allow(clippy::struct_excessive_bools)] // Each is one fact.
pub struct Stat {
    pid: Pid,
    parent: Pid,
    /// The number of its process group.
    pub group: i32,
    /// The number of its session.
    pub session: i32,
    /// When it started, since boot, rounded down to ticks of 10 ms.
    pub started: Duration,
    /// It has ended, and its parent has to reap it.
    has_ended: bool,
    /// A signal has stopped it.
    pub is_stopped: bool,
    /// It waits for a device, uninterruptibly.
    pub waits_for_device: bool,
    is_kernel_thread: bool,
    /// The process has the name of a watchdog.
    is_named_helper: bool,
    /// The process has the name of a helper: a lock's keeper, or one that starts a server or calls a hook.
    is_named_keeper: bool,
    /// It was forked, and has executed nothing since: it works for the program that has forked it.
    pub is_fork: bool,
    /// The program is timeout(1).
    pub is_timeout: bool,
    /// `None` where we may not know.
    execution: Option<Execution>,
    /// The set of signals that the process ignores, without real-time signals.
    ignored: u64,
    /// How it ended, as wait(2) has it: 0 before that, and where we may not know.
    pub exit_code: i32,
}

/// The first process, which adopts all orphans that no other does.
const FIRST: Pid = Pid::from_raw(1);

/// The flag of the kernel's own threads, `PF_KTHREAD`.
const KERNEL_THREAD: u64 = 0x0020_0000;

/// The flag of what was forked and has executed nothing since, `PF_FORKNOEXEC`.
const FORK: u64 = 0x40;

/// The execution of a program, by where the kernel has put its stack, words and environment: somewhere else each time,
/// and what is forked has all that in the same places.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Execution([u64; 3]);

/// The flag of a process whose addresses are the same each time, `ADDR_NO_RANDOMIZE`.
const SAME_ADDRESSES: u64 = 0x0004_0000;

impl Execution {
    /// That of a process; `None` where others may look the same, or we may not know. So it is with what was forked
    /// itself: all that its program has forked looks the same.
    pub fn of(pid: Pid) -> Option<Self> {
        let stat = Stat::read(pid)?;
        let is_random = read("/proc/sys/kernel/randomize_va_space")?.trim() != "0";
        let personality = read(&format!("/proc/{pid}/personality"))?;
        let personality = u64::from_str_radix(personality.trim(), 16).ok()?;
        let is_alone = is_random && personality & SAME_ADDRESSES == 0 && !stat.is_fork;
        stat.execution.filter(|_| is_alone)
    }
}

impl Stat {
    /// Reads what is known of a process; `None` where there is none.
    pub fn read(pid: Pid) -> Option<Self> {
        let stat = read(&format!("/proc/{pid}/stat"))?;
        has_own_proc().then(|| Self::parse(pid, &stat))?
    }

    /// Whether it works for a redlock that may be stopped.
    fn is_helper(&self) -> bool {
        self.is_named_helper && self.is_redlocks_own()
    }

    /// Whether it keeps a lock, or works for a redlock otherwise, and is no work of a command.
    fn is_keeper(&self) -> bool {
        (self.is_named_keeper && self.is_redlocks_own()) || self.is_local_server()
    }

    /// Returns true for a server of this host that redlock has started; such a server leads a session.
    fn is_local_server(&self) -> bool {
        self.session == self.pid.as_raw() && protocol::is_local_server(self.pid.as_raw())
    }

    /// Whether a redlock has forked it: any process may have such a name.
    fn is_redlocks_own(&self) -> bool {
        self.is_fork && has_our_program(self.pid)
    }

    /// Returns true if the process ignores this signal; false for real-time signals, of which the kernel doesn't tell.
    pub fn ignores(&self, signal: i32) -> bool {
        (1..32).contains(&signal) && self.ignored & (1 << (signal - 1)) != 0
    }

    /// What identifies it later.
    pub fn process(&self) -> Process {
        Process {
            pid: self.pid.as_raw(),
            started: self.started,
        }
    }

    fn parse(pid: Pid, stat: &str) -> Option<Self> {
        // The program's name, in parentheses, may contain anything.
        let (name, fields) = stat.rsplit_once(')')?;
        let name = name.split_once('(').map_or(name, |(_, name)| name);
        let is_one_of = |names: &[&CStr]| names.iter().any(|it| it.to_bytes() == name.as_bytes());
        let fields: Vec<&str> = fields.split_ascii_whitespace().collect();
        let field = |number: usize| fields.get(number - 3).copied();
        let ticks: u64 = field(22)?.parse().ok()?;
        let flags: u64 = field(9)?.parse().ok()?;
        // It ends, and nothing of its program runs any more.
        let has_no_memory = flags & KERNEL_THREAD == 0 && field(23)? == "0";
        let address = |number| field(number).and_then(|field| field.parse().ok());
        let places = [28, 48, 50].map(|number| address(number).unwrap_or(0));
        Some(Self {
            pid,
            parent: Pid::from_raw(field(4)?.parse().ok()?),
            group: field(5)?.parse().ok()?,
            session: field(6)?.parse().ok()?,
            started: Duration::from_millis(ticks.saturating_mul(10)),
            // Where the first thread has ended before the others, it looks just so.
            has_ended: (matches!(field(3)?, "Z" | "X") || has_no_memory)
                && field(20)?.parse::<u32>().ok()? <= 1,
            is_stopped: field(3)? == "T",
            waits_for_device: field(3)? == "D",
            is_kernel_thread: flags & KERNEL_THREAD != 0,
            is_fork: flags & FORK != 0,
            is_timeout: name == "timeout",
            // All are 0 where we may not know.
            execution: (!places.contains(&0)).then_some(Execution(places)),
            is_named_helper: name.as_bytes() == sys::WATCHDOG.to_bytes(),
            is_named_keeper: is_one_of(&[sys::KEEPER, sys::HOOK, sys::LOCAL_SERVER]),
            ignored: field(33).and_then(|set| set.parse().ok()).unwrap_or(0),
            exit_code: field(52).and_then(|code| code.parse().ok()).unwrap_or(0),
        })
    }
}

/// A short file of the kernel's. The name of a program in it is cut after 15 bytes, which may be within a character.
pub fn read(path: &str) -> Option<String> {
    try_read(path).ok()
}

fn try_read(path: &str) -> io::Result<String> {
    let mut text = [0; 1024];
    let length = File::open(path)?.read(&mut text)?;
    Ok(String::from_utf8_lossy(&text[..length]).into_owned())
}

/// Whether we couldn't look, as no descriptor or memory is left for that.
fn could_not_look(error: &io::Error) -> bool {
    let lacks = [libc::EMFILE, libc::ENFILE, libc::ENOMEM].map(Some);
    lacks.contains(&error.raw_os_error())
}

/// What is wrong where [`has_own_proc`] says so, and what to do.
pub const FOREIGN_PROC: &str = "/proc belongs to another pid namespace, so redlock can't find child processes; mount it anew (unshare --mount-proc)";

/// Whether /proc has the processes that we see. In a new pid namespace it is still that of the outer one until it is
/// mounted again, and its numbers are those of other processes here.
pub fn has_own_proc() -> bool {
    static IS_OURS: OnceLock<bool> = OnceLock::new();
    if let Some(is_ours) = IS_OURS.get() {
        return *is_ours;
    }
    match fs::read_link("/proc/self") {
        Ok(link) => *IS_OURS.get_or_init(|| link == Path::new(&Pid::this().to_string())),
        // Nothing is there, or we couldn't look this time, which says nothing.
        Err(error) => error.kind() != io::ErrorKind::NotFound,
    }
}

/// Forks as [`sys::fork_apart`] does, with nothing half done: a lock that another thread has at a fork, or something that it
/// is just initializing, stays so in the child for ever.
///
/// # Errors
/// Those of [`sys::fork_apart`].
pub fn fork_apart<F: AsFd>(name: &CStr, kept: F, work: impl FnOnce(F)) -> io::Result<Pid> {
    has_own_proc();
    let hooks = lock_hooks();
    sys::fork_apart(name, kept, |kept| {
        drop(hooks);
        work(kept);
    })
}

/// All processes that we can see.
///
/// # Errors
/// The processes can't be listed, or no descriptor or memory is left to look at one.
fn processes() -> io::Result<Vec<Stat>> {
    Ok(seen_and_hidden()?.0)
}

/// The same, and whether there is one into which we may not look.
fn seen_and_hidden() -> io::Result<(Vec<Stat>, bool)> {
    if !has_own_proc() {
        return Err(io::ErrorKind::NotFound.into());
    }
    let (mut found, mut hidden) = (Vec::new(), false);
    for entry in fs::read_dir("/proc")? {
        let pid = entry?
            .file_name()
            .to_str()
            .and_then(|name| name.parse().ok());
        let Some(pid) = pid.map(Pid::from_raw) else {
            continue;
        };
        let has_ended = [libc::ENOENT, libc::ESRCH].map(Some);
        match try_read(&format!("/proc/{pid}/stat")) {
            Ok(stat) => found.extend(Stat::parse(pid, &stat)),
            Err(error) if could_not_look(&error) => return Err(error),
            Err(error) => hidden |= !has_ended.contains(&error.raw_os_error()),
        }
    }
    Ok((found, hidden))
}

/// Whether we see the processes of all users. Where /proc is mounted with `hidepid`, that is root alone.
pub fn sees_all() -> bool {
    let Some(mounts) = fs::read_to_string("/proc/self/mountinfo").ok() else {
        return false;
    };
    let is_of_proc = |line: &&str| line.split(' ').nth(4) == Some("/proc");
    let hides = mounts.lines().filter(is_of_proc);
    let hides = hides.into_iter().any(|line| line.contains("hidepid="));
    Stat::read(FIRST).is_some() && (!hides || nix::unistd::geteuid().is_root())
}

/// The environment with which a process was started, as `NAME=value` texts that end with a zero byte. Where its
/// first thread has ended, only the others have it.
fn environment(pid: Pid) -> io::Result<Vec<u8>> {
    let first = fs::read(format!("/proc/{pid}/environ"));
    let has_it = |text: &io::Result<Vec<u8>>| text.as_ref().is_ok_and(|text| !text.is_empty());
    let has_ended = |error: &io::Error| error.raw_os_error() == Some(libc::ESRCH);
    if has_it(&first) || first.as_ref().is_err_and(|error| !has_ended(error)) {
        return first;
    }
    let threads = fs::read_dir(format!("/proc/{pid}/task"))?.flatten();
    let mut texts = threads.map(|thread| fs::read(thread.path().join("environ")));
    texts.find(has_it).unwrap_or(first)
}

/// What is known of a script that has ended.
pub struct EndedScript<'a> {
    /// A moment at which the script was alive, before it took the lock: all of its work is younger.
    pub since: Moment,
    pub session: i32,
    /// Its children at that moment.
    pub earlier: &'a [Process],
    /// The processes that had started it: only these, and the first process, can have adopted orphans of its work.
    pub ancestors: &'a [Process],
    /// The process that has adopted this one.
    pub adopter: Pid,
}

/// Finds a process that a script has started and that was orphaned: by the lock's token in its environment, or by the
/// script's session. (A program like `env -i` clears the environment.) Returns `None` if not all processes can be seen.
pub fn orphan_of(script: &EndedScript, origin: impl Fn(&[u8]) -> Origin) -> Option<Process> {
    let (all, is_any_hidden) = seen_and_hidden().ok()?;
    if is_any_hidden || !sees_all() {
        return None;
    }
    let find = |pid: Pid| all.iter().find(|stat| stat.pid == pid);
    let is_earlier = |stat: &Stat| {
        let mut earlier = script.earlier.iter().chain(script.ancestors);
        earlier.any(|process| *process == stat.process())
    };
    // The times of starts are rounded, so that one shortly before may seem to be after that.
    let is_younger = |stat: &Stat| stat.started + TICK > script.since.since_boot();
    let is_excluded = |stat: &Stat| is_earlier(stat) || !is_younger(stat);
    let parent = |pid: &Pid| Some(find(*pid)?.parent);
    let ourselves: Vec<Pid> = std::iter::successors(Some(Pid::this()), parent)
        .take(MOST_ANCESTORS)
        .collect();
    // The kernel gives an orphan to the nearest ancestor that adopts orphans, or else to the first process.
    let may_adopt = |stat: &Stat| stat.pid == FIRST || script.ancestors.contains(&stat.process());
    let is_orphaned = |stat: &Stat| {
        let mut child = *stat;
        loop {
            match find(child.parent) {
                None => return true,
                Some(parent) if may_adopt(parent) => {
                    let adopts = [FIRST, script.adopter].contains(&parent.pid);
                    return adopts || parent.session != child.session;
                }
                // What a keeper has below it works for redlock: a hook, say.
                Some(parent)
                    if parent.is_keeper()
                        || is_excluded(parent)
                        || ourselves.contains(&parent.pid) =>
                {
                    return false;
                }
                Some(parent) => child = *parent,
            }
        }
    };
    let is_redlocks = |stat: &Stat| stat.is_keeper() || stat.is_helper();
    let works = |stat: &Stat| !stat.has_ended && !stat.is_kernel_thread && !is_redlocks(stat);
    let is_work = |stat: &&Stat| match environment(stat.pid).as_deref().map(&origin) {
        Ok(Origin::Ours) => true,
        Ok(Origin::Unsaid) => {
            !is_earlier(stat)
                && !ourselves.contains(&stat.pid)
                && stat.session == script.session
                && is_orphaned(stat)
        }
        Ok(Origin::OfOthers) | Err(_) => false,
    };
    let mut candidates = all.iter().filter(|stat| is_younger(stat) && works(stat));
    candidates.find(is_work).map(Stat::process)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_name_changes_nothing_else_of_its_stat() {
        let fields = "S 1 7 7 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 1 0 12345 4096 0 0 0 0 0 0 0 0 0 2 0 0 0 0 17 0 0 0 0 0 0 0 0 0 0 0 0 0 256";
        for name in ["redlock", "a) Z 1 (b", "", ")", "(", ") Z 1 9 9", "a\nb"] {
            let stat = format!("7 ({name}) {fields}");
            let stat = Stat::parse(Pid::from_raw(7), &stat).unwrap();
            assert_eq!((stat.parent.as_raw(), stat.session), (1, 7), "{name:?}");
            assert_eq!((stat.started.as_millis(), stat.exit_code), (123_450, 256));
            assert!(
                !stat.has_ended
                    && !stat.is_stopped
                    && stat.ignores(libc::SIGINT)
                    && !stat.ignores(libc::SIGTERM)
            );
        }
        assert!(Stat::parse(Pid::from_raw(7), "7 (x) Z 1").is_none());
    }

    #[test]
    fn what_the_kernel_tells_of_a_process_is_read_whatever_its_name() {
        let stat = "7 (a) b (c) S 3 7 5 34816 7 4194560 0 0 0 0 0 0 0 0 20 0 1 0 1234 4096 1";
        let stat = Stat::parse(Pid::from_raw(7), stat).unwrap();
        assert_eq!((stat.parent.as_raw(), stat.session), (3, 5));
        assert_eq!(stat.started, Duration::from_millis(12_340));
        assert!(!stat.has_ended && !stat.is_kernel_thread);
        assert!(Stat::parse(Pid::from_raw(7), "7 (a) S 3").is_none());
    }

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
        let members = tree.members();
        for child in [&mut before, &mut after] {
            child.kill().unwrap();
            child.wait().unwrap();
        }
        assert!(members.contains(&pid(&after)), "{members:?}");
        assert!(!members.contains(&pid(&before)), "{members:?}");
    }

    #[test]
    fn a_forked_process_finds_no_lock_taken() {
        use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
        let (taken, is_taken) = std::sync::mpsc::channel();
        let holder = std::thread::spawn(move || {
            let hooks = lock_hooks();
            taken.send(()).unwrap();
            std::thread::sleep(Duration::from_millis(200));
            drop(hooks);
        });
        is_taken.recv().unwrap();
        let null = File::open("/dev/null").unwrap();
        let child = fork_apart(c"test", null, |_| drop(lock_hooks())).unwrap();
        holder.join().unwrap();
        let until = now() + Duration::from_secs(60);
        while now() < until {
            match waitpid(child, Some(WaitPidFlag::WNOHANG)).unwrap() {
                WaitStatus::StillAlive => std::thread::sleep(Duration::from_millis(5)),
                status => return assert_eq!(status, WaitStatus::Exited(child, 0)),
            }
        }
        sys::kill_and_reap(child);
        panic!("it waits for a lock for ever");
    }
}
