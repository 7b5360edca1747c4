//! Processes as the kernel shows them to everybody in /proc.

use std::ffi::CStr;
use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use nix::unistd::Pid;

use crate::protocol;
use crate::sys;

/// Whether a process is of the user that we are.
pub fn is_of_our_user(pid: Pid) -> bool {
    let metadata = fs::metadata(format!("/proc/{pid}"));
    metadata.is_ok_and(|metadata| metadata.uid() == nix::unistd::geteuid().as_raw())
}

/// Returns the soft limit of file locks of a process.
pub fn limit_of(pid: Pid) -> Option<u64> {
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
        let metadata = fs::metadata(path).ok()?;
        Some((metadata.dev(), metadata.ino()))
    };
    let ours = file("/proc/self/exe");
    ours.is_some() && file(&format!("/proc/{pid}/exe")) == ours
}

/// Whether there is a process with this pid, also one that may not be looked at: only the kernel's word counts.
pub fn is_there(pid: Pid) -> bool {
    let permission = sys::kill(pid.as_raw(), 0);
    permission
        .err()
        .is_none_or(|error| error.raw_os_error() != Some(libc::ESRCH))
}

/// Whether the process with this pid has not ended. One that may not be looked at counts as alive.
pub fn is_alive(pid: Pid) -> bool {
    Process::read(pid).is_some_and(|process| process.is_alive())
}

/// A process, identified by its pid and the time of its start, as the pid may be reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Process {
    pub pid: Pid,
    /// `None` if it may not be looked at.
    pub started: Option<Duration>,
}

impl Process {
    /// Returns the process that has this pid now, if any.
    pub fn read(pid: Pid) -> Option<Self> {
        let started = Stat::read(pid).map(|stat| stat.started);
        (started.is_some() || is_there(pid)).then_some(Self { pid, started })
    }

    /// Returns true if the process still has that pid, and has not ended.
    pub fn is_alive(&self) -> bool {
        match Stat::read(self.pid) {
            Some(stat) => stat.process() == *self && !stat.has_ended,
            None => self.started.is_none() && is_there(self.pid),
        }
    }

    /// Sends a signal to the process, unless it has ended.
    pub fn signal(&self, signal: i32) -> bool {
        self.is_alive() && sys::kill(self.pid.as_raw(), signal).is_ok()
    }
}

/// Longest line of ancestors that is followed, however they change meanwhile.
const MOST_ANCESTORS: usize = 100;

/// Returns the ancestors of a process, as far as they can be seen: an ancestor in another pid namespace has no number here.
/// Later there are only fewer: the kernel gives an orphan to another ancestor, or to the first process.
pub fn ancestors(of: Pid) -> impl Iterator<Item = Stat> {
    let line = std::iter::successors(Stat::read(of), |stat| Stat::read(stat.parent));
    line.skip(1).take(MOST_ANCESTORS)
}

/// The children of a process: of all its threads, or of the main one alone.
pub fn children(of: Pid, of_main_thread: bool) -> Vec<Pid> {
    let threads = match fs::read_dir(format!("/proc/{of}/task")) {
        Ok(threads) if has_own_proc() => threads,
        Ok(_) | Err(_) => return Vec::new(),
    };
    let main = of.to_string();
    let counts = |thread: &fs::DirEntry| !of_main_thread || thread.file_name() == *main;
    let mut pids = Vec::new();
    for thread in threads.flatten().filter(counts) {
        match fs::read_to_string(thread.path().join("children")) {
            Ok(list) => {
                let numbers = list.split_ascii_whitespace();
                pids.extend(numbers.filter_map(|pid| pid.parse().ok().map(Pid::from_raw)));
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
    pids
}

/// Facts that the kernel tells everybody of a process.
#[derive(Clone, Copy, Debug)]
#[allow(clippy::struct_excessive_bools)] // Each is one fact.
pub struct Stat {
    pub pid: Pid,
    pub parent: Pid,
    /// The number of its process group.
    pub group: i32,
    /// The number of its session.
    pub session: i32,
    /// When it started, since boot, rounded down to ticks of 10 ms.
    pub started: Duration,
    /// A zombie, which its parent must reap.
    pub has_ended: bool,
    /// A signal has stopped it.
    pub is_stopped: bool,
    /// The process waits for a device, uninterruptibly.
    pub waits_for_device: bool,
    pub is_kernel_thread: bool,
    /// The process has the name of a watchdog.
    is_named_helper: bool,
    /// The process has the name of a helper: a lock's keeper, or one that starts a server or calls a hook.
    is_named_keeper: bool,
    /// The process was forked, and has executed nothing since: it works for the program that has forked it.
    pub is_fork: bool,
    /// The program is timeout(1).
    pub is_timeout: bool,
    /// `None` where we may not know.
    pub execution: Option<Execution>,
    /// The set of signals that the process ignores, without real-time signals.
    ignored: u64,
    /// End of the process, as wait(2) has it: 0 before that, and if we may not know.
    pub exit_code: i32,
}

/// The first process, which adopts all orphans that no other does.
pub const FIRST: Pid = Pid::from_raw(1);

/// The flag of the kernel's own threads, `PF_KTHREAD`.
const KERNEL_THREAD: u64 = 0x0020_0000;

/// The flag of what was forked and has executed nothing since, `PF_FORKNOEXEC`.
const FORK: u64 = 0x40;

/// The execution of a program, by the addresses of its stack, words and environment: the kernel chooses others each time, and
/// a fork keeps those.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Execution([u64; 3]);

/// The flag of a process whose addresses are the same each time, `ADDR_NO_RANDOMIZE`.
const SAME_ADDRESSES: u64 = 0x0004_0000;

impl Execution {
    /// Returns the execution of a process; `None` if others may look the same, as all forks of a program do, or if we may not
    /// know.
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
    /// Reads what is known of a process; `None` if there is none.
    pub fn read(pid: Pid) -> Option<Self> {
        let stat = read(&format!("/proc/{pid}/stat"))?;
        has_own_proc().then(|| Self::parse(pid, &stat))?
    }

    /// Whether it works for a redlock that may be stopped.
    pub fn is_helper(&self) -> bool {
        self.is_named_helper && self.is_redlocks_own()
    }

    /// Whether it keeps a lock, or works for a redlock otherwise, and is no work of a command.
    pub fn is_keeper(&self) -> bool {
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

    /// Returns the identity of the process.
    pub fn process(&self) -> Process {
        Process {
            pid: self.pid,
            started: Some(self.started),
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
        // The process ends, and nothing of its program runs any more.
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
pub fn could_not_look(error: &io::Error) -> bool {
    let lacks = [libc::EMFILE, libc::ENFILE, libc::ENOMEM].map(Some);
    lacks.contains(&error.raw_os_error())
}

/// Message for a /proc that isn't this namespace's (see [`has_own_proc`]), with the remedy.
pub const FOREIGN_PROC: &str = "/proc belongs to another pid namespace, so redlock can't find child processes; mount it anew (unshare --mount-proc)";

/// Whether /proc has the processes that we see. In a new pid namespace it is still that of the outer one until it is
/// mounted again, and its numbers are those of other processes here.
pub fn has_own_proc() -> bool {
    // A fork of another thread finds nothing half done, as it might with a lock.
    static IS_OURS: AtomicBool = AtomicBool::new(false);
    if IS_OURS.load(Ordering::Relaxed) {
        return true;
    }
    match fs::read_link("/proc/self") {
        Ok(link) => {
            let is_ours = link == Path::new(&Pid::this().to_string());
            IS_OURS.store(is_ours, Ordering::Relaxed);
            is_ours
        }
        // Nothing is there, or we couldn't look this time, which says nothing.
        Err(error) => error.kind() != io::ErrorKind::NotFound,
    }
}

/// Returns all processes that we can see.
///
/// # Errors
/// The processes can't be listed, or no descriptor or memory is left to look at one.
pub fn processes() -> io::Result<Vec<Stat>> {
    if !has_own_proc() {
        return Err(io::ErrorKind::NotFound.into());
    }
    let mut processes = Vec::new();
    for entry in fs::read_dir("/proc")? {
        let name = entry?.file_name();
        let Some(pid) = name.to_str().and_then(|name| name.parse().ok()) else {
            continue;
        };
        match try_read(&format!("/proc/{pid}/stat")) {
            Ok(stat) => processes.extend(Stat::parse(Pid::from_raw(pid), &stat)),
            Err(error) if could_not_look(&error) => return Err(error),
            // The process has ended, or we may not look at it.
            Err(_) => {}
        }
    }
    Ok(processes)
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
pub fn environment(pid: Pid) -> io::Result<Vec<u8>> {
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
}
