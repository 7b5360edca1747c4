//! The process that holds a lock, identified so that others on the same host can tell that it is dead.
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
//! renewal it notes down there the processes of its tree, so that its work can be found when it is dead. Only the
//! file of the holder's user is a mark, as anybody may create others there.

#[cfg(any(test, fuzzing))]
#[path = "../../tests/fuzz/process.rs"]
pub mod fuzz;

use std::ffi::OsStr;
use std::fmt::{self, Write as _};
use std::fs::{self, OpenOptions};
use std::io::{self, Read as _};
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{FileExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{self, ExitStatus};
use std::time::Duration;

use nix::fcntl::{AT_FDCWD, AtFlags};
use nix::unistd::{Pid, getsid, linkat};

use crate::clock::{Moment, now};
use crate::decide::wait::HolderState;
use crate::supervise::environment::Origin;
use crate::supervise::tree::{self, DeadHolder, Process, Remains, Stat, read};
use crate::sys::{self, poll};

/// Our own identity, as `<boot>:<pid namespace>:<pid>:<ms since boot>:<session>:<user>:<user namespace>:<time
/// namespace>`; `None` where the kernel doesn't say. The user is the one who leaves the mark: redlock's.
pub fn instance() -> Option<String> {
    identity(process::id(), getsid(None).ok()?.as_raw())
}

/// The same for another process, which is alive.
fn identity(pid: impl fmt::Display, session: i32) -> Option<String> {
    let alive = now().since_boot().as_millis();
    let user = nix::unistd::geteuid();
    let Scope { pids, others } = Scope::ours()?;
    Some(format!("{pids}:{pid}:{alive}:{session}:{user}:{others}"))
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

/// Where pids, users and times mean the same.
struct Scope {
    /// This boot and this pid namespace.
    pids: String,
    /// This user namespace and this time namespace.
    others: String,
}

impl Scope {
    fn ours() -> Option<Self> {
        use sys::Namespace::{Pid, Time, User};
        let boot = read("/proc/sys/kernel/random/boot_id")?;
        let [pids, users, times] = sys::namespaces([Pid, User, Time]).or_else(|| {
            let inode = |name: &str| {
                let link = fs::read_link(format!("/proc/self/ns/{name}")).ok()?;
                let inode = link.to_str()?.split_once(":[")?.1.strip_suffix(']')?;
                inode.parse().ok()
            };
            // A kernel may be without the other two.
            let [users, times] = ["user", "time"].map(|name| inode(name).unwrap_or(0));
            Some([inode("pid")?, users, times])
        })?;
        Some(Self {
            pids: format!("{}:{pids}", boot.trim()),
            others: format!("{users}:{times}"),
        })
    }
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
        poll::is_ready(poll::readable(self.0.as_fd()), Duration::ZERO)
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
/// environment has to do with that hold. The descriptor of one that lives becomes readable when it ends.
pub fn holder_state(
    instances: &str,
    id: &str,
    origin: impl Fn(&[u8]) -> Origin,
) -> HolderState<ProcessFd> {
    let mut dead = Vec::new();
    let mut is_known = true;
    for identity in instances.split(',').map(Identity::parse) {
        match identity.as_ref().map_or(HolderState::Unknown, state_of) {
            HolderState::Dead => dead.extend(identity),
            HolderState::Alive(process) => return HolderState::Alive(process),
            HolderState::Unknown => is_known = false,
        }
    }
    if !is_known {
        return HolderState::Unknown;
    }
    let Some(mark) = left_by(&dead, id) else {
        return HolderState::Unknown;
    };
    let (adopter, orphan) = sys::adopter().ok().unzip();
    let remains = |holder: &Identity| {
        let holder = DeadHolder {
            alive: holder.alive,
            session: holder.session,
            members: &mark.members,
            noted: mark.noted.max(holder.alive),
            earlier: &[],
            ancestors: &mark.ancestors,
            adopter,
            orphan,
        };
        tree::remains(&holder, &origin)
    };
    // One that has just ended may have left others, for which another look is needed.
    for _ in 0..LOOKS {
        let found = dead.iter().map(remains);
        match found.max_by_key(|found| found.certainty()) {
            None | Some(Remains::Nothing) => return HolderState::Dead,
            Some(Remains::Unknown) => return HolderState::Unknown,
            Some(Remains::Process(pid)) => {
                if let Ok(Some(process)) = ProcessFd::of(pid.as_raw()) {
                    return HolderState::Alive(process);
                }
            }
        }
    }
    HolderState::Unknown
}

/// Returns the pid of the first of the processes with these identities (with commas between) that has started this one.
pub fn ancestor(instances: &str) -> Option<i32> {
    let mut identities = instances.split(',').filter_map(Identity::parse);
    let is_ancestor = |holder: &Identity| {
        matches!(state_of(holder), HolderState::Alive(_))
            && tree::is_ancestor(Pid::from_raw(holder.pid))
    };
    identities.find(is_ancestor).map(|holder| holder.pid)
}

/// The mark of the hold with this id, if one of these processes has left it since, as far as its owner shows that:
/// anybody may create a file by that name.
fn left_by(dead: &[Identity], id: &str) -> Option<Mark> {
    let path = mark(id)?;
    dead.iter().find_map(|holder| {
        let mark = Mark::read(&path, holder.user)?;
        let by = Identity::parse(&mark.instance)?;
        (by.pid == holder.pid && by.session == holder.session && by.alive >= holder.alive)
            .then_some(mark)
    })
}

/// A process of this host.
struct Identity {
    pid: i32,
    alive: Moment,
    session: i32,
    /// The owner of its mark.
    user: u32,
}

impl Identity {
    /// Reads it; `None` for a process of another host, boot or namespace, and of a redlock that says less.
    fn parse(instance: &str) -> Option<Self> {
        Self::parse_in(&Scope::ours()?, instance)
    }

    /// The same, where all that means the same in this scope.
    fn parse_in(scope: &Scope, instance: &str) -> Option<Self> {
        let of_pids = instance.strip_prefix(&scope.pids)?.strip_prefix(':')?;
        let mut parts = of_pids.splitn(5, ':');
        let identity = Self {
            pid: parts.next()?.parse().ok().filter(|&pid| pid > 0)?,
            alive: Moment::at(Duration::from_millis(parts.next()?.parse().ok()?)),
            session: parts.next()?.parse().ok()?,
            user: parts.next()?.parse().ok()?,
        };
        (parts.next()? == scope.others).then_some(identity)
    }
}

/// What is known of the process with this identity itself.
fn state_of(identity: &Identity) -> HolderState<ProcessFd> {
    let started = |pid| Stat::read(Pid::from_raw(pid)).map(|stat| stat.started);
    match sys::pidfd(identity.pid) {
        Ok(None) => HolderState::Dead,
        // The descriptor stays with the process that had the pid when it was opened.
        Ok(Some(fd))
            if started(identity.pid).is_some_and(|at| at <= identity.alive.since_boot()) =>
        {
            let process = ProcessFd(fd);
            if process.has_ended() {
                HolderState::Dead
            } else {
                HolderState::Alive(process)
            }
        }
        Ok(Some(_)) | Err(_) => HolderState::Unknown,
    }
}

/// How often it is looked for what is left of a dead holder's work, where what was found has just ended.
const LOOKS: usize = 10;

/// Where marks are: in memory, so that none outlives this boot.
const MARKS: &str = "/dev/shm";

/// What the name of each mark begins with.
const MARK_PREFIX: &str = "redlock-";

/// Marks that are as old as this, and whose process is dead, are removed.
const OLD: Duration = Duration::from_secs(3600);

/// How many files are looked at for that.
const LOOKED_AT: usize = 1000;

/// How many members of a tree are noted down; more are too many to go through.
pub const MEMBERS: usize = 1000;

/// The mark of the hold with this id; `None` when that isn't an id.
fn mark(id: &str) -> Option<PathBuf> {
    let is_id = !id.is_empty() && id.bytes().all(|byte| byte.is_ascii_hexdigit());
    is_id.then(|| PathBuf::from(format!("{MARKS}/{MARK_PREFIX}{id}")))
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

    /// Reads it; `None` for anything that this user hasn't left. A user who may write into that directory may put
    /// anything there.
    fn read(path: &Path, user: u32) -> Option<Self> {
        let mut open = OpenOptions::new();
        let flags = libc::O_NONBLOCK | libc::O_NOFOLLOW | libc::O_NOCTTY;
        let file = open.read(true).custom_flags(flags).open(path).ok()?;
        let metadata = file.metadata().ok()?;
        // A file of this user's by another name may be about another hold, and what others may write to is anybody's.
        let is_theirs = metadata.uid() == user && is_known(user);
        if !is_theirs
            || !metadata.is_file()
            || metadata.nlink() != 1
            || metadata.mode() & 0o022 != 0
        {
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

/// Whether the kernel shows this user as the owner of no other user's files. All users that a user namespace doesn't
/// know look like one, and that is usually also `nobody`.
fn is_known(user: u32) -> bool {
    let all = ["0", "0", "4294967295"];
    let knows_all = |map: String| map.split_ascii_whitespace().eq(all);
    let unknown = read("/proc/sys/kernel/overflowuid").and_then(|id| id.trim().parse().ok());
    unknown.is_some_and(|unknown: u32| unknown != user)
        || read("/proc/self/uid_map").is_some_and(knows_all)
}

/// Leaves a mark on this host for a hold of this process, in place of an earlier one: of its tree as it was found from
/// this moment on, and of what had started it. Where it can't be written, others wait for the end of the lease if this
/// process dies; and so they do where we don't see all processes.
pub fn leave_mark(id: &str, noted: Moment, members: &[Process], ancestors: Option<&[Process]>) {
    // What somebody else has left stays, and is none of ours.
    remove_mark(id);
    let (Some(path), Some(instance), Some(ancestors)) = (mark(id), instance(), ancestors) else {
        return;
    };
    if members.len() > MEMBERS || !tree::sees_all() {
        return;
    }
    let text = Mark {
        instance,
        noted,
        members: members.to_vec(),
        ancestors: ancestors.to_vec(),
    }
    .to_text();
    // Without a name until all of it is written.
    let mut open = OpenOptions::new();
    let open = open.write(true).mode(0o644).custom_flags(libc::O_TMPFILE);
    let written = open.open(MARKS).and_then(|file| {
        file.write_all_at(text.as_bytes(), 0)?;
        Ok(file)
    });
    if let Ok(file) = written {
        let from = format!("/proc/self/fd/{}", file.as_raw_fd());
        let follow = AtFlags::AT_SYMLINK_FOLLOW;
        let _ = linkat(AT_FDCWD, from.as_str(), AT_FDCWD, &path, follow);
    }
}

/// Removes marks that are not needed any more.
pub fn remove_old_marks() {
    let user = nix::unistd::geteuid().as_raw();
    let marks = fs::read_dir(MARKS).into_iter().flatten().flatten();
    let is_mark = |name: &OsStr| name.as_bytes().starts_with(MARK_PREFIX.as_bytes());
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
            && let Some(mark) = Mark::read(&entry.path(), user)
            && Identity::parse(&mark.instance)
                .is_some_and(|holder| matches!(state_of(&holder), HolderState::Dead))
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
        let [boot, namespace, pid, alive, ..] = parts[..] else {
            panic!("{us}");
        };
        let rest = parts[4..].join(":");
        let with =
            |boot: &str, pid: &str, alive: &str| format!("{boot}:{namespace}:{pid}:{alive}:{rest}");
        // As a redlock says it that doesn't name its user.
        let unnamed = parts[..5].join(":");
        // A pid that no Linux gives out.
        let unused = i32::MAX.to_string();
        // Our pid, but at a time when we had not started: it was used again.
        let reused = with(boot, pid, "1");
        let gone = with(boot, &unused, alive);
        let elsewhere = with("elsewhere", &unused, alive);
        let state = |instance: &str| state_of(&Identity::parse(instance).unwrap());
        assert!(matches!(state(&us), HolderState::Alive(_)));
        assert!(matches!(state(&gone), HolderState::Dead));
        for unknown in [
            &reused,
            &elsewhere,
            "",
            &with(boot, "0", alive),
            &with(boot, "-1", alive),
            &unnamed,
            &format!("{us}1"),
            &format!("{us}:1"),
        ] {
            let identity = Identity::parse(unknown);
            let state = identity.as_ref().map_or(HolderState::Unknown, state_of);
            assert!(matches!(state, HolderState::Unknown), "{unknown}");
        }
        assert_eq!(
            namespace,
            fs::metadata("/proc/self/ns/pid").unwrap().ino().to_string()
        );
        let alive = |instances: &str| holder_state(instances, "0", |_| Origin::Unsaid);
        assert!(matches!(
            alive(&format!("{gone},{us}")),
            HolderState::Alive(_)
        ));
        assert!(matches!(
            alive(&format!("{gone},{elsewhere}")),
            HolderState::Unknown
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
        let user = nix::unistd::geteuid().as_raw();
        let leave = |members: &[Process]| leave_mark(&id, at, members, Some(&[]));
        leave(&[member, member]);
        leave(&[member]);
        let read = Mark::read(&path, user).unwrap();
        assert_eq!((read.noted, read.members), (at, vec![member]));
        assert_eq!(read.instance.split(':').count(), 8);
        // It says something else later on, or nothing.
        leave(&vec![member; MEMBERS + 1]);
        assert!(!path.exists());
        leave(&[member]);
        leave_mark(&id, at, &[member], None);
        assert!(!path.exists());
        // Somebody else's, a second name for another one, and one that others may write to.
        leave(&[member]);
        assert!(Mark::read(&path, user + 1).is_none());
        let second = path.with_extension("second");
        fs::hard_link(&path, &second).unwrap();
        assert!(Mark::read(&path, user).is_none());
        fs::remove_file(second).unwrap();
        assert!(Mark::read(&path, user).is_some());
        let all = std::os::unix::fs::PermissionsExt::from_mode(0o666);
        fs::set_permissions(&path, all).unwrap();
        assert!(Mark::read(&path, user).is_none());
        remove_mark(&id);
        for text in ["", "x\n99\n7 120\n", "x\ny\nend\n", "x\n99\n7\nend\n"] {
            fs::write(&path, text).unwrap();
            assert!(Mark::read(&path, user).is_none(), "{text:?}");
        }
        fs::remove_file(&path).unwrap();
        nix::unistd::mkfifo(&path, nix::sys::stat::Mode::S_IRWXU).unwrap();
        assert!(Mark::read(&path, user).is_none());
        fs::remove_file(&path).unwrap();
    }

    #[test]
    fn a_holder_that_left_no_mark_on_this_host_is_not_known_to_be_dead() {
        let us = instance().unwrap();
        // It was alive before all that lives now, so that anything may be left of its work.
        let parts: Vec<&str> = us.split(':').collect();
        let rest = parts[5..].join(":");
        let gone = format!("{}:{}:{}:1:1:{rest}", parts[0], parts[1], i32::MAX);
        let id = format!("{:012x}", process::id());
        assert!(matches!(
            holder_state(&gone, &id, |_| Origin::Unsaid),
            HolderState::Unknown
        ));
        leave_mark(&id, now(), &[], Some(&[]));
        assert!(!matches!(
            holder_state(&gone, &id, |_| Origin::Ours),
            HolderState::Dead
        ));
        remove_mark(&id);
        assert!(!mark(&id).unwrap().exists());
    }
}
