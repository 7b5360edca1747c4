//! Tests in a separate pid namespace, and as another user.

use std::cell::RefCell;
use std::fs;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};

use super::{Gate, REDLOCK, Redis, Scratch, path, without_terminal, words};

/// Runs a test in a separate pid namespace, or alone if that isn't permitted. Must come first in tests that leave orphaned
/// processes behind or check that there are none, because orphans of several tests can't be told apart.
macro_rules! among_own_processes {
    () => {
        if crate::support::has_run_among_own_processes() {
            return;
        }
    };
}
pub(crate) use among_own_processes;

/// Returns true if the test of this thread has run, in another process.
pub fn has_run_among_own_processes() -> bool {
    const MARK: &str = "REDLOCK_TEST_AMONG_OWN_PROCESSES";
    const UNSHARE: [&str; 5] = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"];
    static IS_PERMITTED: LazyLock<bool> =
        LazyLock::new(|| is_permitted(&[&UNSHARE[..], &["true"]].concat()));
    static ALONE: Mutex<()> = Mutex::new(());
    thread_local! {
        static UNTIL_THE_END: RefCell<Option<MutexGuard<'static, ()>>> = const { RefCell::new(None) };
    }
    if std::env::var_os(MARK).is_some() {
        return false;
    }
    if !*IS_PERMITTED {
        let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        UNTIL_THE_END.set(Some(alone));
        return false;
    }
    let thread = std::thread::current();
    let name = thread.name().expect("a test has a thread with its name");
    let output = Command::new(UNSHARE[0])
        .args(&UNSHARE[1..])
        // The shell reaps the orphaned processes. A session from outside has no number in the namespace.
        .args(["sh", "-c", "setsid -w \"$0\" \"$@\"; exit $?"])
        .arg(std::env::current_exe().unwrap())
        .args([name, "--exact", "--test-threads", "1", "--nocapture"])
        .env(MARK, "1")
        .output()
        .unwrap();
    let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
    let (stdout, stderr) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{stdout}\n{stderr}");
    assert!(stdout.contains("1 passed"), "{stdout}");
    true
}

/// Returns words before a command that make it the first process of a pid namespace; `None` if that isn't permitted.
pub fn in_own_pids() -> Option<Vec<&'static str>> {
    let mut unshare = words("unshare --pid --fork --kill-child --mount-proc", &[]);
    if !nix::unistd::geteuid().is_root() {
        unshare.extend(["--user", "--map-root-user"]);
    }
    is_permitted(&[&unshare[..], &["true"]].concat()).then_some(unshare)
}

/// Returns true if this command succeeds here; it may need a missing permission.
pub fn is_permitted(words: &[&str]) -> bool {
    let output = Command::new(words[0]).args(&words[1..]).output();
    output.is_ok_and(|output| output.status.success())
}

/// Another user, without any privilege, in a directory with everything that this user needs: `redlock`, `head` (setuid root),
/// `become` (executes its arguments as root, like sudo) and `gate` (a pipe that is closed when this is dropped). Paths are
/// relative, because other users may be unable to enter the directories above.
pub struct OtherUser {
    id: u32,
    dir: Scratch,
    gate: Gate,
}

impl OtherUser {
    /// Creates a user. Returns `None` if the tests don't run as root, or setuid programs have no effect.
    pub fn new() -> Option<Self> {
        Self::with_id(54321)
    }

    /// Creates a user without any other process, from this run of the tests or another.
    pub fn alone() -> Option<Self> {
        static OTHERS: AtomicU32 = AtomicU32::new(0);
        let number = OTHERS.fetch_add(1, Ordering::Relaxed);
        Self::with_id(100_000 + std::process::id() + 10_000_000 * number)
    }

    fn with_id(id: u32) -> Option<Self> {
        use std::os::unix::fs::PermissionsExt;
        // Installed by another process: children of other tests briefly inherit files that this process has open for writing,
        // which then can't be executed.
        let setup = r#"cd "$0"; chmod 755 .; install -m 755 "$1" redlock
            for program in head setpriv; do install -m 4755 "$(command -v $program)" .; done
            printf '#!/bin/sh\nexec ./setpriv --reuid 0 --regid 0 --clear-groups "$@"\n' >become
            chmod 755 become"#;
        let dir = Scratch::new();
        let home = dir.path().to_str().unwrap();
        if !nix::unistd::getuid().is_root()
            || !is_permitted(&["sh", "-e", "-c", setup, home, REDLOCK])
        {
            return None;
        }
        let path = dir.path().join("gate");
        let gate = Gate::at(&path);
        fs::set_permissions(&path, fs::Permissions::from_mode(0o666)).unwrap();
        let user = Self { id, dir, gate };
        let probe = user.command(&["./become", "true"]).status();
        probe.is_ok_and(|status| status.success()).then_some(user)
    }

    /// Returns a command of this user.
    pub fn command(&self, words: &[&str]) -> Command {
        self.command_below(&["env"], words)
    }

    /// Like `command`, started by a program of root that executes its last arguments.
    pub fn command_below(&self, root: &[&str], words: &[&str]) -> Command {
        let id = self.id.to_string();
        let mut command = Command::new(root[0]);
        command
            .args(&root[1..])
            .args(["setpriv", "--reuid", &id, "--regid", &id, "--clear-groups"])
            .args(words)
            .env_clear()
            .env("PATH", path())
            .current_dir(self.dir.path())
            .stdin(Stdio::null());
        without_terminal(&mut command);
        command
    }

    /// Returns this user's redlock.
    pub fn redlock(&self, redis: &Redis, arguments: &[&str]) -> Command {
        let mut command = self.command(&[&["./redlock"], arguments].concat());
        command.env("REDLOCK_URL", redis.tcp_url());
        command
    }

    /// Removes the gate.
    pub fn close_gate(&self) {
        fs::remove_file(self.dir.path().join("gate")).unwrap();
    }

    /// Lets one reader of the gate go on.
    pub fn open_gate(&mut self) {
        self.gate.open();
    }
}
