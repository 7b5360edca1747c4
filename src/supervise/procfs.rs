//! Processes, as the kernel shows them in /proc.

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

/// Returns true if a process belongs to redlock's user.
pub fn is_of_our_user(pid: Pid) -> bool {
    let metadata = fs::metadata(format!("/proc/{pid}"));
    metadata.is_ok_and(|metadata| metadata.uid() == nix::unistd::geteuid().as_raw())
}

/// Returns a process's soft limit of file locks.
pub fn limit_of(pid: Pid) -> Option<u64> {
    let limits = fs::read_to_string(format!("/proc/{pid}/limits")).ok()?;
    let mut lines = limits.lines();
    let soft = lines.find_map(|line| line.strip_prefix("Max file locks"))?;
    // The text is "unlimited" if there is no limit.
    let soft = soft.split_ascii_whitespace().next()?;
    Some(soft.parse().unwrap_or(u64::MAX))
}

/// Returns true if a process executes the same program file as this one.
fn has_our_program(pid: Pid) -> bool {
    let file = |path: &str| {
        let metadata = fs::metadata(path).ok()?;
        Some((metadata.dev(), metadata.ino()))
    };
    let ours = file("/proc/self/exe");
    ours.is_some() && file(&format!("/proc/{pid}/exe")) == ours
}

/// Returns true if a process with this pid exists, even if redlock may not look at it. Asks the kernel, not /proc.
pub fn is_there(pid: Pid) -> bool {
    let permission = sys::kill(pid.as_raw(), 0);
    permission
        .err()
        .is_none_or(|error| error.raw_os_error() != Some(libc::ESRCH))
}

/// Returns true if the process with this pid has not ended. A process that redlock may not look at counts as alive.
pub fn is_alive(pid: Pid) -> bool {
    Process::read(pid).is_some_and(|process| process.is_alive())
}

/// A process, identified by its pid and the time of its start, as the pid may be reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Process {
    pub pid: Pid,
    /// Start time since boot; `None` if redlock may not look at the process.
    pub started: Option<Duration>,
}

impl Process {
    /// Returns the process that has this pid now, if any.
    pub fn read(pid: Pid) -> Option<Self> {
        let started = Stat::read(pid).map(|stat| stat.started);
        (started.is_some() || is_there(pid)).then_some(Self { pid, started })
    }

    /// Returns true if the process still has this pid and has not ended.
    pub fn is_alive(&self) -> bool {
        match Stat::read(self.pid) {
            Some(stat) => stat.process() == *self && !stat.has_ended,
            None => self.started.is_none() && is_there(self.pid),
        }
    }

    /// Sends the process a signal, unless it has ended. Returns true if that worked.
    pub fn signal(&self, signal: i32) -> bool {
        self.is_alive() && sys::kill(self.pid.as_raw(), signal).is_ok()
    }
}

/// Largest number of ancestors to follow: a bound, because ancestors may change meanwhile.
const MOST_ANCESTORS: usize = 100;

/// Returns the ancestors of a process, except those in outer pid namespaces, which have no pid here. Ancestors
/// only become fewer with time, because the kernel gives orphans to another ancestor or to the first process.
pub fn ancestors(of: Pid) -> impl Iterator<Item = Stat> {
    let line = std::iter::successors(Stat::read(of), |stat| Stat::read(stat.parent));
    line.skip(1).take(MOST_ANCESTORS)
}

/// Returns the children of a process, or only those of its main thread.
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
            // The thread has ended, or the kernel was built without this file.
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

/// Facts about a process that the kernel shows to every user.
#[derive(Clone, Copy, Debug)]
#[allow(clippy::struct_excessive_bools)] // Each is one fact.
pub struct Stat {
    pub pid: Pid,
    pub parent: Pid,
    /// Id of the process group.
    pub group: i32,
    /// Id of the session.
    pub session: i32,
    /// Start time since boot, rounded down to ticks of 10 ms.
    pub started: Duration,
    /// The process is a zombie, which its parent must reap.
    pub has_ended: bool,
    /// A signal has stopped it.
    pub is_stopped: bool,
    /// The process waits uninterruptibly for a device.
    pub waits_for_device: bool,
    pub is_kernel_thread: bool,
    /// The process has the name of a watchdog.
    is_named_helper: bool,
    /// The process has the name of another helper: a keeper, a hook's helper, or a starter of a local server.
    is_named_keeper: bool,
    /// The process was forked and has executed no program since, so it belongs to the program that forked it.
    pub is_fork: bool,
    /// The program is timeout(1).
    pub is_timeout: bool,
    /// Execution of the program; `None` if redlock may not know it.
    pub execution: Option<Execution>,
    /// Bit set of the ignored signals, without real-time signals.
    ignored: u64,
    /// Exit status as in wait(2); 0 until the process ends, or if redlock may not know it.
    pub exit_code: i32,
}

/// The first process, which adopts all orphans that no other process adopts.
pub const FIRST: Pid = Pid::from_raw(1);

/// Flag of the kernel's own threads, `PF_KTHREAD`.
const KERNEL_THREAD: u64 = 0x0020_0000;

/// Flag of a process that was forked and has executed nothing since, `PF_FORKNOEXEC`.
const FORK: u64 = 0x40;

/// An execution of a program, identified by the addresses of its stack, arguments and
/// environment. The kernel chooses new addresses at each execution, and a fork keeps them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Execution([u64; 3]);

/// Flag of a process whose addresses aren't randomized, `ADDR_NO_RANDOMIZE`.
const SAME_ADDRESSES: u64 = 0x0004_0000;

impl Execution {
    /// Returns the execution of a process. Returns `None` if others may have the
    /// same addresses, as forks of one program do, or if redlock may not know them.
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
    /// Reads the facts about a process. Returns `None` if there is none.
    pub fn read(pid: Pid) -> Option<Self> {
        let stat = read(&format!("/proc/{pid}/stat"))?;
        has_own_proc().then(|| Self::parse(pid, &stat))?
    }

    /// Returns true for a watchdog: it works for a redlock that may be suspended.
    pub fn is_helper(&self) -> bool {
        self.is_named_helper && self.is_redlocks_own()
    }

    /// Returns true if the process keeps a lock or does other work for a redlock, so that it isn't part of a COMMAND.
    pub fn is_keeper(&self) -> bool {
        (self.is_named_keeper && self.is_redlocks_own()) || self.is_local_server()
    }

    /// Returns true for a local server that redlock has started. Such a server leads a session.
    fn is_local_server(&self) -> bool {
        self.session == self.pid.as_raw() && protocol::is_local_server(self.pid.as_raw())
    }

    /// Returns true if a redlock has forked the process: a name
    /// alone proves nothing, because any process may choose it.
    fn is_redlocks_own(&self) -> bool {
        self.is_fork && has_our_program(self.pid)
    }

    /// Returns true if the process ignores this signal; false for
    /// real-time signals, which the kernel doesn't list here.
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
        // The program's name, in parentheses, may contain any characters.
        let (name, fields) = stat.rsplit_once(')')?;
        let name = name.split_once('(').map_or(name, |(_, name)| name);
        let is_one_of = |names: &[&CStr]| names.iter().any(|it| it.to_bytes() == name.as_bytes());
        let fields: Vec<&str> = fields.split_ascii_whitespace().collect();
        let field = |number: usize| fields.get(number - 3).copied();
        let ticks: u64 = field(22)?.parse().ok()?;
        let flags: u64 = field(9)?.parse().ok()?;
        // The process is ending, and none of its program runs any more.
        let has_no_memory = flags & KERNEL_THREAD == 0 && field(23)? == "0";
        let address = |number| field(number).and_then(|field| field.parse().ok());
        let places = [28, 48, 50].map(|number| address(number).unwrap_or(0));
        Some(Self {
            pid,
            parent: Pid::from_raw(field(4)?.parse().ok()?),
            group: field(5)?.parse().ok()?,
            session: field(6)?.parse().ok()?,
            started: Duration::from_millis(ticks.saturating_mul(10)),
            // If the first thread has ended before the others, its
            // state looks the same, so the number of threads decides.
            has_ended: (matches!(field(3)?, "Z" | "X") || has_no_memory)
                && field(20)?.parse::<u32>().ok()? <= 1,
            is_stopped: field(3)? == "T",
            waits_for_device: field(3)? == "D",
            is_kernel_thread: flags & KERNEL_THREAD != 0,
            is_fork: flags & FORK != 0,
            is_timeout: name == "timeout",
            // All addresses are 0 if redlock may not know them.
            execution: (!places.contains(&0)).then_some(Execution(places)),
            is_named_helper: name.as_bytes() == sys::WATCHDOG.to_bytes(),
            is_named_keeper: is_one_of(&[sys::KEEPER, sys::HOOK, sys::LOCAL_SERVER]),
            ignored: field(33).and_then(|set| set.parse().ok()).unwrap_or(0),
            exit_code: field(52).and_then(|code| code.parse().ok()).unwrap_or(0),
        })
    }
}

/// Reads a short file of /proc. The kernel cuts a program's name after 15 bytes, maybe within a character.
pub fn read(path: &str) -> Option<String> {
    try_read(path).ok()
}

fn try_read(path: &str) -> io::Result<String> {
    let mut text = [0; 1024];
    let length = File::open(path)?.read(&mut text)?;
    Ok(String::from_utf8_lossy(&text[..length]).into_owned())
}

/// Returns true if the error is a lack of descriptors or memory, so that it says nothing about the process.
pub fn could_not_look(error: &io::Error) -> bool {
    let lacks = [libc::EMFILE, libc::ENFILE, libc::ENOMEM].map(Some);
    lacks.contains(&error.raw_os_error())
}

/// Error for a /proc of another pid namespace (see [`has_own_proc`]), with the remedy.
pub const FOREIGN_PROC: &str = "/proc belongs to another pid namespace, so redlock can't find child processes; mount it again (unshare --mount-proc)";

/// Returns true if /proc shows the processes of this pid namespace. In a new namespace, /proc
/// still shows the outer one until it is mounted again, and its pids mean other processes here.
pub fn has_own_proc() -> bool {
    // Atomic instead of locked, because a fork of another thread might find a lock taken.
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
        // /proc isn't mounted, or couldn't be read this time, which says nothing about its namespace.
        Err(error) => error.kind() != io::ErrorKind::NotFound,
    }
}

/// Returns all visible processes.
///
/// # Errors
/// Fails if the processes can't be listed, or if descriptors or memory run out.
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
            // The process has ended, or redlock may not look at it.
            Err(_) => {}
        }
    }
    Ok(processes)
}

/// Returns true if redlock sees the processes of all users. If /proc is mounted with `hidepid`, only root does.
pub fn sees_all() -> bool {
    let Some(mounts) = fs::read_to_string("/proc/self/mountinfo").ok() else {
        return false;
    };
    let is_of_proc = |line: &&str| line.split(' ').nth(4) == Some("/proc");
    let hides = mounts.lines().filter(is_of_proc);
    let hides = hides.into_iter().any(|line| line.contains("hidepid="));
    Stat::read(FIRST).is_some() && (!hides || nix::unistd::geteuid().is_root())
}

/// Returns the environment with which a process was started, as `NAME=value` texts that end
/// with a zero byte. If its first thread has ended, only the other threads still have it.
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
        let fields = "S 3 7 5 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 1 0 12345 4096 0 0 0 0 0 0 0 0 0 2 0 0 0 0 17 0 0 0 0 0 0 0 0 0 0 0 0 0 256";
        for name in ["redlock", "a) Z 1 (b", "", ")", "(", ") Z 1 9 9", "a\nb"] {
            let stat = format!("7 ({name}) {fields}");
            let stat = Stat::parse(Pid::from_raw(7), &stat).unwrap();
            assert_eq!((stat.parent.as_raw(), stat.session), (3, 5), "{name:?}");
            assert_eq!((stat.started.as_millis(), stat.exit_code), (123_450, 256));
            assert!(
                !stat.has_ended
                    && !stat.is_stopped
                    && !stat.is_kernel_thread
                    && stat.ignores(libc::SIGINT)
                    && !stat.ignores(libc::SIGTERM)
            );
        }
        assert!(Stat::parse(Pid::from_raw(7), "7 (x) Z 1").is_none());
    }
}
