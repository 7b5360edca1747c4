//! Which process it is that holds a lock, so that others on the same host can see that it is dead.
//!
//! A process is known by the boot it lives in, its pid namespace, its pid, a moment at which it was
//! alive, and its session: a process that has the pid but started later is another one. (Its own start
//! time would say the same, but /proc/self takes a twentieth of a short run to come into being.) Only
//! one that the kernel itself declares dead counts as such: the namespace has no such pid, or the
//! very process has ended. All others may still live.
//!
//! A machine that was cloned while it ran has the same boot and namespaces as its twin, and doesn't
//! know the twin's processes. So each holder leaves a *mark* on its own host, a file in memory,
//! as soon as it renews for the first time; without that mark nothing is known of a holder. With each
//! renewal it notes down there the processes of its tree, so that its work can be found when it is dead.

#[cfg(any(test, fuzzing))]
pub mod fuzz;

use std::ffi::OsStr;
use std::fmt::{self, Write as _};
use std::fs::{self, OpenOptions};
use std::io::{self, Read as _};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{FileExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{self, ExitStatus};
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::unistd::{Pid, getsid};

use crate::clock::{Moment, now};
use crate::sys;
use crate::tree::{self, DeadHolder, Origin, Process, Remains, Stat, read};

/// Our own identity, as `<boot>:<pid namespace>:<pid>:<ms since boot>:<session>`; `None` where the
/// kernel doesn't say.
pub fn instance() -> Option<String> {
    identity(process::id(), getsid(None).ok()?.as_raw())
}

/// The same for another process, which is alive.
fn identity(pid: impl fmt::Display, session: i32) -> Option<String> {
    let alive = now().since_boot().as_millis();
    Some(format!("{}:{pid}:{alive}:{session}", pid_scope()?))
}

/// The command line of a process; empty where it can't be known.
pub fn command_line(pid: i32) -> Vec<String> {
    if !tree::has_own_proc() {
        return Vec::new();
    }
    let words = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let words = words.strip_suffix(b"\0").unwrap_or(&words);
    let texts = words.split(|&byte| byte == 0);
    texts
        .map(|word| String::from_utf8_lossy(word).into_owned())
        .collect()
}

/// Where pids mean the same: this boot, this pid namespace.
fn pid_scope() -> Option<String> {
    let boot = read("/proc/sys/kernel/random/boot_id")?;
    let namespace = sys::pid_namespace().or_else(|| {
        let link = fs::read_link("/proc/self/ns/pid").ok()?;
        let inode = link.to_str()?.strip_prefix("pid:[")?.strip_suffix(']')?;
        inode.parse().ok()
    })?;
    Some(format!("{}:{namespace}", boot.trim()))
}

/// What can be known of the process that holds a lock, and of its work.
pub enum Liveness {
    /// It has ended, and nothing of its work is left.
    Dead,
    /// This process lives: the holder, or a part of its work. Its descriptor becomes readable when it
    /// ends.
    Alive(ProcessFd),
    /// It lives elsewhere, or it can't be known.
    Unknown,
}

/// A process that lives, or has lived: it can't be mistaken for another one.
pub struct ProcessFd(OwnedFd);

impl ProcessFd {
    /// The process that has this pid now; `None` when there is none.
    pub fn of(pid: i32) -> io::Result<Option<Self>> {
        let process = sys::pidfd(pid)?.map(Self);
        Ok(process.filter(|process| !process.has_ended()))
    }

    /// Which process it is, for others; `pid` is its own.
    pub fn instance(&self, pid: i32) -> Option<String> {
        let session = Stat::read(Pid::from_raw(pid))?.session;
        let identity = identity(pid, session)?;
        // It had that pid all the while.
        (!self.has_ended()).then_some(identity)
    }

    /// Sends it a signal; 0 only asks whether we may.
    pub fn signal(&self, signal: i32) -> io::Result<()> {
        sys::signal(self.0.as_fd(), signal)
    }

    /// Whether the process has ended (it may still have to be reaped).
    pub fn has_ended(&self) -> bool {
        let mut fds = [PollFd::new(self.0.as_fd(), PollFlags::POLLIN)];
        poll(&mut fds, PollTimeout::ZERO) == Ok(1)
    }

    /// How it ended, if it has and the kernel says so; `pid` is its own.
    pub fn exit_status(&self, pid: i32) -> Option<ExitStatus> {
        // Until it is reaped the pid is its own, and the one way; after that the other is.
        let unreaped = Stat::read(Pid::from_raw(pid)).map_or(0, |stat| stat.exit_code);
        match sys::exit_status(self.0.as_fd()) {
            Some(status) => Some(status),
            None if unreaped != 0 => Some(ExitStatus::from_raw(unreaped)),
            None => None,
        }
    }
}

impl AsFd for ProcessFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// What has become of the processes with these identities (with commas between), which hold a lock
/// under this id, and of their work: dead only if all are known to be dead. `origin` says what an
/// environment has to do with that hold.
pub fn liveness(instances: &str, id: &str, origin: impl Fn(&[u8]) -> Origin) -> Liveness {
    let mut known = Vec::new();
    for instance in instances.split(',') {
        match state_of(instance) {
            State::Dead(dead) => known.push(Some(dead)),
            State::Alive(process) => return Liveness::Alive(process),
            State::Unknown => known.push(None),
        }
    }
    let Some(dead) = known.into_iter().collect::<Option<Vec<_>>>() else {
        return Liveness::Unknown;
    };
    let Some(mark) = mark(id).and_then(|path| Mark::read(&path)) else {
        return Liveness::Unknown;
    };
    for Identity { alive, session, .. } in dead {
        let holder = DeadHolder {
            alive,
            session,
            members: &mark.members,
            noted: mark.noted,
            earlier: &mark.ancestors,
        };
        match tree::remains(&holder, &origin) {
            Remains::Nothing => {}
            Remains::Unknown => return Liveness::Unknown,
            Remains::Process(pid) => {
                return match ProcessFd::of(pid.as_raw()) {
                    Ok(Some(process)) => Liveness::Alive(process),
                    // It has just ended; what it has started is for another look.
                    Ok(None) | Err(_) => Liveness::Unknown,
                };
            }
        }
    }
    Liveness::Dead
}

/// A process of this host.
struct Identity {
    pid: i32,
    alive: Moment,
    session: i32,
}

impl Identity {
    /// Reads it; `None` for a process of another host, boot or pid namespace.
    fn parse(instance: &str) -> Option<Self> {
        Self::parse_in(&pid_scope()?, instance)
    }

    /// The same, where pids mean the same in this scope.
    fn parse_in(scope: &str, instance: &str) -> Option<Self> {
        let mut parts = instance.strip_prefix(scope)?.strip_prefix(':')?.split(':');
        let identity = Self {
            pid: parts.next()?.parse().ok().filter(|&pid| pid > 0)?,
            alive: Moment::at(Duration::from_millis(parts.next()?.parse().ok()?)),
            session: parts.next()?.parse().ok()?,
        };
        parts.next().is_none().then_some(identity)
    }
}

/// What is known of one process.
enum State {
    Dead(Identity),
    Alive(ProcessFd),
    Unknown,
}

fn state_of(instance: &str) -> State {
    let Some(identity) = Identity::parse(instance) else {
        return State::Unknown;
    };
    let started = |pid| Stat::read(Pid::from_raw(pid)).map(|stat| stat.started);
    match sys::pidfd(identity.pid) {
        Ok(None) => State::Dead(identity),
        // The descriptor stays with the process that had the pid when it was opened.
        Ok(Some(fd))
            if started(identity.pid).is_some_and(|at| at <= identity.alive.since_boot()) =>
        {
            let process = ProcessFd(fd);
            if process.has_ended() {
                State::Dead(identity)
            } else {
                State::Alive(process)
            }
        }
        Ok(Some(_)) | Err(_) => State::Unknown,
    }
}

/// Where marks are: in memory, so that none outlives this boot.
const MARKS: &str = "/dev/shm";

/// What the name of each mark begins with.
const MARK: &str = "redlock-";

/// Marks that are as old as this, and whose process is dead, are removed.
const OLD: Duration = Duration::from_secs(3600);

/// How many files are looked at for that.
const LOOKED_AT: usize = 1000;

/// How many members of a tree are noted down; more are too many to go through.
const MEMBERS: usize = 1000;

/// The mark of the hold with this id; `None` when that isn't an id.
fn mark(id: &str) -> Option<PathBuf> {
    let is_id = !id.is_empty() && id.bytes().all(|byte| byte.is_ascii_hexdigit());
    is_id.then(|| PathBuf::from(format!("{MARKS}/{MARK}{id}")))
}

/// What a mark says.
#[cfg_attr(any(test, fuzzing), derive(Debug, PartialEq, Eq))]
struct Mark {
    /// The process that has left it.
    instance: String,
    /// When its tree was noted down.
    noted: Moment,
    members: Vec<Process>,
    /// The processes that had started it: what else they have started isn't part of its work.
    ancestors: Vec<Process>,
}

impl Mark {
    /// As text: the instance, the moment in milliseconds since boot, a line for each member with its pid
    /// and the time of its start, `below`, the same for the ancestors, and `end`.
    fn to_text(&self) -> String {
        let Self {
            instance, noted, ..
        } = self;
        let mut text = format!("{instance}\n{}\n", noted.since_boot().as_millis());
        for (processes, end) in [(&self.members, "below"), (&self.ancestors, "end")] {
            for Process { pid, started } in processes {
                let _ = writeln!(text, "{pid} {}", started.as_millis());
            }
            let _ = writeln!(text, "{end}");
        }
        text
    }

    /// Reads it; `None` for anything else. A user who may write into that directory may put anything there.
    fn read(path: &Path) -> Option<Self> {
        let mut open = OpenOptions::new();
        let flags = libc::O_NONBLOCK | libc::O_NOFOLLOW | libc::O_NOCTTY;
        let file = open.read(true).custom_flags(flags).open(path).ok()?;
        if !file.metadata().ok()?.is_file() {
            return None;
        }
        let mut text = String::new();
        file.take(64 * 1024).read_to_string(&mut text).ok()?;
        Self::parse(&text)
    }

    fn parse(text: &str) -> Option<Self> {
        let (text, _) = text.split_once("\nend\n")?;
        let mut lines = text.split('\n');
        let instance = lines.next()?.to_owned();
        let milliseconds = |text: &str| Some(Duration::from_millis(text.parse().ok()?));
        let noted = Moment::at(milliseconds(lines.next()?)?);
        let known = |line: &str| {
            let (pid, started) = line.split_once(' ')?;
            Some(Process {
                pid: pid.parse().ok()?,
                started: milliseconds(started)?,
            })
        };
        let is_member = |line: &&str| *line != "below";
        let members = lines.by_ref().take_while(is_member).map(known);
        let members = members.collect::<Option<_>>()?;
        let ancestors = lines.map(known).collect::<Option<_>>()?;
        Some(Self {
            instance,
            noted,
            members,
            ancestors,
        })
    }
}

/// Leaves a mark on this host for a hold of this process, or brings it up to date: by its tree as it was
/// found from this moment on. Where it can't be written, others wait for the end of the lease if this
/// process dies.
pub fn leave_mark(id: &str, noted: Moment, members: &[Process]) {
    let (Some(path), Some(instance)) = (mark(id), instance()) else {
        return;
    };
    if members.len() > MEMBERS {
        remove_mark(id);
        return;
    }
    let text = Mark {
        instance,
        noted,
        members: members.to_vec(),
        ancestors: tree::ancestors(),
    }
    .to_text();
    let mut open = OpenOptions::new();
    let flags = libc::O_NONBLOCK | libc::O_NOFOLLOW | libc::O_NOCTTY;
    open.write(true).mode(0o644).custom_flags(flags);
    let file = open
        .open(&path)
        .or_else(|_| open.create_new(true).open(&path));
    let written = file.and_then(|file| {
        file.write_all_at(text.as_bytes(), 0)?;
        file.set_len(text.len() as u64)
    });
    if written.is_err() {
        remove_mark(id);
    }
}

/// Removes marks that are not needed any more.
pub fn remove_old_marks() {
    let user = nix::unistd::geteuid().as_raw();
    let marks = fs::read_dir(MARKS).into_iter().flatten().flatten();
    let is_mark = |name: &OsStr| name.as_bytes().starts_with(MARK.as_bytes());
    for entry in marks
        .take(LOOKED_AT)
        .filter(|entry| is_mark(&entry.file_name()))
    {
        let Ok(metadata) = entry.metadata() else {
            continue;
        };
        let age = metadata
            .modified()
            .map(|at| at.elapsed().unwrap_or_default());
        let is_ours = metadata.is_file() && metadata.uid() == user;
        if is_ours
            && age.is_ok_and(|age| age > OLD)
            && let Some(mark) = Mark::read(&entry.path())
            && matches!(state_of(&mark.instance), State::Dead(_))
        {
            let _ = fs::remove_file(entry.path());
        }
    }
}

/// Removes the mark of a hold that is over.
pub fn remove_mark(id: &str) {
    if let Some(path) = mark(id) {
        let _ = fs::remove_file(path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_less_than_the_very_process_counts() {
        let us = instance().unwrap();
        let parts: Vec<&str> = us.split(':').collect();
        let [boot, namespace, pid, alive, session] = parts[..] else {
            panic!("{us}");
        };
        let with = |boot: &str, pid: &str, alive: &str| {
            format!("{boot}:{namespace}:{pid}:{alive}:{session}")
        };
        // A pid that no Linux gives out.
        let unused = i32::MAX.to_string();
        // Our pid, but at a time when we had not started: it was used again.
        let reused = with(boot, pid, "1");
        let gone = with(boot, &unused, alive);
        let elsewhere = with("elsewhere", &unused, alive);
        assert!(matches!(state_of(&us), State::Alive(_)));
        assert!(matches!(state_of(&gone), State::Dead(_)));
        for unknown in [
            &reused,
            &elsewhere,
            "",
            &with(boot, "0", alive),
            &with(boot, "-1", alive),
        ] {
            assert!(matches!(state_of(unknown), State::Unknown), "{unknown}");
        }
        assert_eq!(
            namespace,
            fs::metadata("/proc/self/ns/pid").unwrap().ino().to_string()
        );
        let alive = |instances: &str| liveness(instances, "0", |_| Origin::Unsaid);
        assert!(matches!(alive(&format!("{gone},{us}")), Liveness::Alive(_)));
        assert!(matches!(
            alive(&format!("{gone},{elsewhere}")),
            Liveness::Unknown
        ));
    }

    #[test]
    fn a_mark_says_what_was_noted_down_and_nothing_else_is_one() {
        let id = format!("{:012x}", u64::from(process::id()) + (1 << 40));
        let path = mark(&id).unwrap();
        let member = Process {
            pid: 7,
            started: Duration::from_millis(120),
        };
        let at = Moment::at(Duration::from_millis(99));
        leave_mark(&id, at, &[member, member]);
        leave_mark(&id, at, &[member]);
        let read = Mark::read(&path).unwrap();
        assert_eq!((read.noted, read.members), (at, vec![member]));
        assert_eq!(read.instance.split(':').count(), 5);
        remove_mark(&id);
        for text in ["", "x\n99\n7 120\n", "x\ny\nend\n", "x\n99\n7\nend\n"] {
            fs::write(&path, text).unwrap();
            assert!(Mark::read(&path).is_none(), "{text:?}");
        }
        fs::remove_file(&path).unwrap();
        nix::unistd::mkfifo(&path, nix::sys::stat::Mode::S_IRWXU).unwrap();
        assert!(Mark::read(&path).is_none());
        fs::remove_file(&path).unwrap();
    }

    #[test]
    fn a_holder_that_left_no_mark_on_this_host_is_not_known_to_be_dead() {
        let us = instance().unwrap();
        // It was alive before all that lives now, so that anything may be left of its work.
        let parts: Vec<&str> = us.split(':').collect();
        let gone = format!("{}:{}:{}:1:1", parts[0], parts[1], i32::MAX);
        let id = format!("{:012x}", process::id());
        assert!(matches!(
            liveness(&gone, &id, |_| Origin::Unsaid),
            Liveness::Unknown
        ));
        leave_mark(&id, now(), &[]);
        assert!(!matches!(
            liveness(&gone, &id, |_| Origin::Ours),
            Liveness::Dead
        ));
        remove_mark(&id);
        assert!(!mark(&id).unwrap().exists());
    }
}
