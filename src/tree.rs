//! A command and all that it started: its tree.
//!
//! There is one definition of it, used for waiting, signalling and killing, and for deciding that
//! nothing of a dead holder's work is left: all descendants of a process, those in other process groups
//! and sessions included, but for those that were there before. Descendants whose parents have ended are
//! found because they become ours (see [`sys::adopt_orphans`]), or where we are not their ancestor, by
//! the lock's token in their environment. Keepers are part of no tree: they end when what they watch has ended.

#[cfg(any(test, fuzzing))]
pub mod fuzz;

use std::collections::{HashMap, HashSet};
use std::ffi::CStr;
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::Path;
use std::sync::OnceLock;
use std::time::Duration;

use nix::unistd::{Pid, gettid};

use crate::clock::{Moment, now};
use crate::output;
use crate::signal::SIGINT;
use crate::sys;

/// The descendants of a process, except those that were there before.
pub struct Tree {
    root: Pid,
    /// What was started before this moment was there before, and may become ours as an orphan.
    since: Moment,
    /// The children that the root had by then: start times have a resolution of only 10 ms.
    earlier: Vec<Process>,
}

/// The kernel gives the start of a process in ticks of this length, rounded down.
const TICK: Duration = Duration::from_millis(10);

impl Tree {
    /// What descends from us from now on. Costs next to nothing where we have no children yet.
    pub fn ours() -> Self {
        let root = Pid::this();
        if sys::has_children() {
            return Self::below(root);
        }
        Self {
            root,
            since: now(),
            earlier: Vec::new(),
        }
    }

    /// What descends from a process from now on.
    pub fn below(root: Pid) -> Self {
        let since = now();
        let earlier = children(root).into_iter().filter_map(Process::read);
        Self {
            root,
            since,
            earlier: earlier.collect(),
        }
    }

    /// Shows all members but the root to `visit` as they are found, parents before children: a signal
    /// that is sent at once reaches a process that is about to fork. None of our own children can be
    /// mistaken for another process, as only we reap them, and a parent that reaps its own in between
    /// does so within the microseconds until the signal is sent.
    ///
    /// A tree may be large: those are shown that are found until then.
    pub fn visit(&self, until: Option<Moment>, visit: impl FnMut(Pid)) {
        self.visit_below(&[self.root], until, visit);
    }

    /// The same for what descends from these, each of which is the root or a member.
    pub fn visit_below(&self, roots: &[Pid], until: Option<Moment>, mut visit: impl FnMut(Pid)) {
        let mut seen: HashSet<Pid> = roots.iter().copied().collect();
        let mut found = roots.to_vec();
        let mut next = 0;
        while let Some(&parent) = found.get(next) {
            next += 1;
            for child in children(parent) {
                if until.is_some_and(|until| now() >= until) {
                    return;
                }
                if seen.insert(child) && !self.is_apart(child) {
                    visit(child);
                    found.push(child);
                }
            }
        }
    }

    /// Whether none of our children, of which there are some, is a member.
    pub fn has_only_earlier_children(&self) -> bool {
        let children = children(self.root);
        // Where none is found they couldn't be read.
        !children.is_empty() && children.iter().all(|&child| self.is_apart(child))
    }

    /// All members but the root.
    pub fn members(&self) -> Vec<Pid> {
        let mut members = Vec::new();
        self.visit(None, |pid| members.push(pid));
        members
    }

    /// All members but the root, with what identifies them later; those that are found until then.
    pub fn processes(&self, until: Option<Moment>) -> Vec<Process> {
        let mut found = Vec::new();
        self.visit(until, |pid| found.extend(Process::read(pid)));
        found
    }

    /// Whether all members but the root are stopped by a signal, or only wait to wake one that is.
    pub fn is_stopped(&self) -> bool {
        let rests = |stat: Stat| stat.is_stopped || stat.has_ended || stat.is_waker;
        let mut members = self.members().into_iter();
        members.all(|pid| Stat::read(pid).is_none_or(rests))
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
            if stat.has_ended || stat.is_keeper || stat.pid == Pid::this() {
                continue;
            }
            match environment(stat.pid) {
                Ok(text) if is_marked(&text) || (is_fork(stat) && !is_of_earlier_fork(stat)) => {
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

    /// Whether a process below the root isn't part of it: it was there before, or is what a command that
    /// works for redlock itself has left behind.
    fn is_apart(&self, pid: Pid) -> bool {
        let is_other = |stat: Stat| stat.is_keeper || self.was_there_before(stat.process());
        let works_for_us = || {
            let may_be = self.root == Pid::this() && output::was_used();
            may_be && environment(pid).is_ok_and(|text| output::is_marked(&text))
        };
        Stat::read(pid).is_some_and(is_other) || works_for_us()
    }

    /// Whether a process below the root was there before.
    fn was_there_before(&self, process: Process) -> bool {
        process.started + TICK <= self.since.since_boot() || self.earlier.contains(&process)
    }

    /// Whether we have children that we can't see: without a /proc that shows them, or without a descriptor to look.
    pub fn is_hidden(&self) -> bool {
        children(self.root).is_empty() && sys::has_children()
    }
}

/// A process, identified by its pid and the time of its start, as the pid may be reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
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

/// What has started this process, directly or not.
pub fn ancestors() -> Vec<Process> {
    let mut found = Vec::new();
    let mut next = Pid::parent();
    // However they change meanwhile.
    while found.len() < 100
        && let Some(stat) = Stat::read(next)
    {
        found.push(stat.process());
        next = stat.parent;
    }
    found
}

/// The children of a process, of all its threads; of our own only those of this thread, as others start
/// what works for redlock itself.
fn children(of: Pid) -> Vec<Pid> {
    let threads = match fs::read_dir(format!("/proc/{of}/task")) {
        Ok(threads) if has_own_proc() => threads,
        Ok(_) | Err(_) => return Vec::new(),
    };
    let this = gettid().to_string();
    let counts = |thread: &fs::DirEntry| of != Pid::this() || thread.file_name() == *this;
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
    /// The number of its session.
    pub session: i32,
    /// When it started, since boot, rounded down to ticks of 10 ms.
    pub started: Duration,
    /// It has ended, and its parent has to reap it.
    has_ended: bool,
    /// A signal has stopped it.
    pub is_stopped: bool,
    is_kernel_thread: bool,
    /// It is a [`sys::Waker`].
    is_waker: bool,
    /// It is the keeper of a lock.
    is_keeper: bool,
    /// It was forked, and has executed nothing since: it works for the program that has forked it.
    pub is_fork: bool,
    /// `None` where we may not know.
    execution: Option<Execution>,
    /// It adopts orphans, or at least has a name by which programs are known that do.
    adopts: bool,
    /// It ignores SIGINT.
    pub ignores_int: bool,
    /// How it ended, as wait(2) has it: 0 before that, and where we may not know.
    pub exit_code: i32,
}

/// The first process, which adopts all orphans that no other does.
const FIRST: Pid = Pid::from_raw(1);

/// Programs that are known to adopt orphans, by the kernel's names for them (15 bytes).
const REAPERS: [&str; 10] = [
    "redlock",
    "systemd",
    "containerd-shim",
    "conmon",
    "tini",
    "docker-init",
    "dumb-init",
    "catatonit",
    "s6-svscan",
    "runsvdir",
];

/// The name of a keeper.
pub const KEEPER: &CStr = c"redlock-keeper";

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
        let fields: Vec<&str> = fields.split_ascii_whitespace().collect();
        let field = |number: usize| fields.get(number - 3).copied();
        let ticks: u64 = field(22)?.parse().ok()?;
        let flags: u64 = field(9)?.parse().ok()?;
        let address = |number| field(number).and_then(|field| field.parse().ok());
        let places = [28, 48, 50].map(|number| address(number).unwrap_or(0));
        Some(Self {
            pid,
            parent: Pid::from_raw(field(4)?.parse().ok()?),
            session: field(6)?.parse().ok()?,
            started: Duration::from_millis(ticks.saturating_mul(10)),
            // Where the first thread has ended before the others, it looks just so.
            has_ended: matches!(field(3)?, "Z" | "X") && field(20)?.parse::<u32>().ok()? <= 1,
            is_stopped: field(3)? == "T",
            is_kernel_thread: flags & KERNEL_THREAD != 0,
            is_fork: flags & FORK != 0,
            // All are 0 where we may not know.
            execution: (!places.contains(&0)).then_some(Execution(places)),
            is_waker: name.as_bytes() == sys::WAKER.to_bytes(),
            is_keeper: name.as_bytes() == KEEPER.to_bytes(),
            adopts: pid == FIRST || REAPERS.contains(&name),
            ignores_int: {
                let ignored: u64 = field(33).and_then(|set| set.parse().ok()).unwrap_or(0);
                ignored & (1 << (SIGINT - 1)) != 0
            },
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
pub const FOREIGN_PROC: &str = "/proc isn't that of this pid namespace, so what a process starts can't be found; mount it (unshare --mount-proc)";

/// Whether /proc has the processes that we see. In a new pid namespace it is still that of the outer one until it is
/// mounted again, and its numbers are those of other processes here.
pub fn has_own_proc() -> bool {
    static IS_OURS: OnceLock<bool> = OnceLock::new();
    let is_ours = || {
        let own = fs::read_link("/proc/self");
        own.is_ok_and(|link| link == Path::new(&Pid::this().to_string()))
    };
    *IS_OURS.get_or_init(is_ours)
}

/// All processes that we can see.
///
/// # Errors
/// The processes can't be listed, or no descriptor or memory is left to look at one.
fn processes() -> io::Result<Vec<Stat>> {
    if !has_own_proc() {
        return Err(io::ErrorKind::NotFound.into());
    }
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc")? {
        let pid = entry?
            .file_name()
            .to_str()
            .and_then(|name| name.parse().ok());
        let Some(pid) = pid.map(Pid::from_raw) else {
            continue;
        };
        match try_read(&format!("/proc/{pid}/stat")) {
            Ok(stat) => found.extend(Stat::parse(pid, &stat)),
            Err(error) if could_not_look(&error) => return Err(error),
            // It has ended.
            Err(_) => {}
        }
    }
    Ok(found)
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

/// What the environment of a process says about the lock under which it was started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// It has the token of the hold in question.
    Ours,
    /// It has other tokens only.
    OfOthers,
    /// Nothing.
    Unsaid,
}

/// What is left of the work of a holder that is dead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Remains {
    Nothing,
    /// This process, and perhaps others.
    Process(Pid),
    /// There is a process that may be part of it, but that we may not look into.
    Unknown,
}

/// What is known of a holder that is dead.
pub struct DeadHolder<'a> {
    /// A moment at which it was alive, before it took the lock: all of its work is younger.
    pub alive: Moment,
    pub session: i32,
    /// Its tree at this moment, as it has noted it down.
    pub members: &'a [Process],
    pub noted: Moment,
    /// What was there before.
    pub earlier: &'a [Process],
}

/// Looks for what is left of the work of a dead holder:
///
/// - processes that were in its tree when it last noted that down;
/// - processes that have the lock's token in their environment;
/// - processes of its session that have lost their parents. (A program like `env -i` clears the environment.)
///
/// Other processes that have lost their parents since that note may be part of it, and so may processes that
/// we may not look into, unless tokens of other holds, or a session that another process leads, show where
/// they come from. A process that still has its parent was not started by the dead holder.
pub fn remains(holder: &DeadHolder, origin: impl Fn(&[u8]) -> Origin) -> Remains {
    let Ok(all) = processes() else {
        return Remains::Unknown;
    };
    // Where even the first process can't be seen, others can't either.
    if !all.iter().any(|stat| stat.pid == FIRST) {
        return Remains::Unknown;
    }
    let find = |pid: Pid| all.iter().find(|stat| stat.pid == pid);
    let is_earlier = |stat: &Stat| holder.earlier.contains(&stat.process());
    // The times of starts are rounded, so that one shortly before may seem to be after that.
    let started_after = |stat: &Stat, at: Moment| stat.started + TICK > at.since_boot();
    let has_lost_its_parent = |stat: &Stat| {
        let mut of = *stat;
        loop {
            match find(of.parent) {
                None => return true,
                Some(parent) if parent.adopts => return true,
                Some(parent) if started_after(parent, holder.alive) && !is_earlier(parent) => {
                    of = *parent;
                }
                // Where it is of the holder's session, its parent would be, too.
                Some(parent) => {
                    return stat.session == holder.session && parent.session != of.session;
                }
            }
        }
    };
    let mut ourselves = vec![Pid::this()];
    while let Some(stat) = ourselves.last().and_then(|&pid| find(pid)) {
        ourselves.push(stat.parent);
    }
    // The leader of a session has started all that is in it.
    let is_of_another_session = |stat: &Stat| {
        let leader = find(Pid::from_raw(stat.session));
        stat.session != holder.session
            && leader.is_some_and(|leader| {
                leader.pid != stat.pid
                    && (!started_after(leader, holder.alive) || !has_lost_its_parent(leader))
            })
    };
    let mut unknown = false;
    let works = |stat: &Stat| !stat.has_ended && !stat.is_kernel_thread && !stat.is_keeper;
    let suspects = all.iter();
    let suspects = suspects.filter(|stat| started_after(stat, holder.alive) && works(stat));
    for stat in suspects {
        let process = stat.process();
        let environment = environment(stat.pid);
        let said = environment
            .as_ref()
            .map_or(Origin::Unsaid, |text| origin(text));
        if said == Origin::Ours || holder.members.contains(&process) {
            return Remains::Process(stat.pid);
        }
        let is_of_others = said == Origin::OfOthers || is_earlier(stat);
        if is_of_others || ourselves.contains(&stat.pid) || !has_lost_its_parent(stat) {
            continue;
        }
        if environment.is_ok() && stat.session == holder.session {
            return Remains::Process(stat.pid);
        }
        unknown |= started_after(stat, holder.noted) && !is_of_another_session(stat);
    }
    if unknown {
        Remains::Unknown
    } else {
        Remains::Nothing
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_kernel_tells_of_a_process_is_read_whatever_its_name() {
        let stat = "7 (a) b (c) S 3 7 5 34816 7 4194560 0 0 0 0 0 0 0 0 20 0 1 0 1234 0 0";
        let stat = Stat::parse(Pid::from_raw(7), stat).unwrap();
        assert_eq!((stat.parent.as_raw(), stat.session), (3, 5));
        assert_eq!(stat.started, Duration::from_millis(12_340));
        assert!(!stat.has_ended && !stat.is_kernel_thread);
        assert!(Stat::parse(Pid::from_raw(7), "7 (a) S 3").is_none());
    }

    #[test]
    fn what_was_there_before_is_not_part_of_the_tree() {
        let sleeper = || {
            let mut sleep = std::process::Command::new("sleep");
            sleep.arg("60").spawn().unwrap()
        };
        let pid = |child: &std::process::Child| Pid::from_raw(child.id().cast_signed());
        let mut before = sleeper();
        let tree = Tree::ours();
        let mut after = sleeper();
        let members = tree.members();
        assert!(members.contains(&pid(&after)), "{members:?}");
        assert!(!members.contains(&pid(&before)), "{members:?}");
        for child in [&mut before, &mut after] {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }
}
