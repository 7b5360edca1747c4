//! Processes by their pids: signals, states and marks.

#![allow(unsafe_code)]

use std::fs;
use std::ops::Deref;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use nix::unistd::{Pid, getsid};

use super::{Redis, await_some, path, wait_until, without_terminal};

/// A temporary directory. If the test fails, all processes end that name the directory in their arguments or environment, or
/// work in it. Guards of single processes don't know the children of these.
pub struct Scratch(tempfile::TempDir);

impl Scratch {
    pub fn new() -> Self {
        Self(tempfile::tempdir().expect("a temporary directory"))
    }

    /// Kills the processes that name the directory. Returns true if there were any.
    fn kill_users(&self) -> bool {
        let directory = self.path().to_str().unwrap();
        let users = pids().filter(|&pid| {
            let names = |file| proc(pid, file).contains(directory);
            let cwd = fs::read_link(format!("/proc/{pid}/cwd"));
            ["environ", "cmdline"].into_iter().any(names)
                || cwd.is_ok_and(|cwd| cwd.starts_with(self.path()))
        });
        // SAFETY: kill touches no memory.
        let killed = users.filter(|&pid| unsafe { libc::kill(pid, libc::SIGKILL) } == 0);
        killed.count() > 0
    }
}

impl Deref for Scratch {
    type Target = tempfile::TempDir;

    fn deref(&self) -> &tempfile::TempDir {
        &self.0
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let end = Instant::now() + Duration::from_secs(10);
        // A process may have started another one before it was killed.
        while std::thread::panicking() && self.kill_users() && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

/// A Perl program that prints its label, `ready` and its pid. Its arguments name signals, and the program prints its label and
/// the name of each that arrives. RTMAX ends it: this signal has the highest number, so it is delivered last, after all earlier
/// ones were printed. Without a signal the program ends after a while. If a signal interrupted `print`, Perl would drop what
/// its handler prints.
pub const COUNTER: &str = r#"
    my ($label, @names) = @ARGV;
    my ($end, $limit) = (0, time + 60);
    sub say_it { my $line = "$label $_[0]\n"; 1 until syswrite(STDOUT, $line) || $! != 4 }
    for my $name (@names) { $SIG{$name} = sub { say_it $name } }
    $SIG{RTMAX} = sub { $end = 1 };
    say_it "ready $$";
    select(undef, undef, undef, 0.01) until $end || time > $limit;
    say_it "end";
"#;

/// Sends a signal by its number; real-time signals have no name in nix.
pub fn send(pid: i32, signal: i32) {
    // SAFETY: kill touches no memory.
    let result = unsafe { libc::kill(pid, signal) };
    assert_eq!(result, 0, "can't send {signal} to {pid}");
}

/// Returns a signal by its name, as in `signal("TERM")`.
pub fn signal(name: &str) -> Signal {
    format!("SIG{name}").parse().unwrap()
}

/// Returns the text of a file of a process in /proc, without white space at its end; empty if there is none.
pub fn proc(pid: i32, file: &str) -> String {
    let text = fs::read(format!("/proc/{pid}/{file}")).unwrap_or_default();
    String::from_utf8_lossy(&text).trim_end().to_owned()
}

/// Returns the pids of all processes.
pub fn pids() -> impl Iterator<Item = i32> {
    let entries = fs::read_dir("/proc").unwrap().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

/// Returns a field of a process's status; empty if there is none.
pub fn status_of(pid: i32, field: &str) -> String {
    let status = proc(pid, "status");
    let mut lines = status.lines();
    let value = lines.find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
    value.unwrap_or_default().trim().to_owned()
}

/// Returns the fields of a process's stat from its state on; none if there is no process.
pub fn stat(pid: i32) -> Vec<String> {
    let stat = proc(pid, "stat");
    let fields = stat.rsplit_once(')').map_or("", |(_, fields)| fields);
    fields.split_whitespace().map(str::to_owned).collect()
}

/// Returns the state of a process in proc's stat: R running, S sleeping, T stopped, Z ended.
pub fn state(pid: i32) -> Option<char> {
    stat(pid).first()?.chars().next()
}

/// Waits until a process has read its signals, and sleeps or has ended.
#[track_caller]
pub fn await_signals_read(pid: i32) {
    wait_until("it has read its signals", || {
        let has_read = status_of(pid, "ShdPnd") == "0000000000000000";
        !is_alive(pid) || has_read && state(pid) == Some('S')
    });
}

/// Returns true if a process has ended and was reaped.
pub fn is_gone(pid: i32) -> bool {
    !Path::new(&format!("/proc/{pid}")).exists()
}

/// Sets a signal's action to ignored or default. The C library refuses the signals that it uses itself, so this calls the
/// kernel.
fn set_ignored(signal: i32, ignored: bool) {
    // Handler, flags, restorer, mask; all except the handler may be zero for these two actions.
    let action = [usize::from(ignored), 0, 0, 0];
    // SAFETY: the kernel reads the action, and the length is that of its signal mask.
    unsafe {
        libc::syscall(
            libc::SYS_rt_sigaction,
            signal,
            action.as_ptr(),
            std::ptr::null::<usize>(),
            size_of::<u64>(),
        );
    }
}

/// Sets the mask of blocked signals, bit N-1 for signal N, without the C library.
fn set_mask(mask: u64) {
    // SAFETY: the kernel reads the mask, and the length is its own.
    unsafe {
        libc::syscall(
            libc::SYS_rt_sigprocmask,
            libc::SIG_SETMASK,
            &raw const mask,
            std::ptr::null::<u64>(),
            size_of::<u64>(),
        );
    }
}

/// Ignores the signals that `ignored` selects, resets all others to their default, and sets this mask.
pub fn set_signals(ignored: fn(i32) -> bool, mask: u64) {
    for signal in 1..=64 {
        set_ignored(signal, ignored(signal));
    }
    set_mask(mask);
}

/// Returns a command that starts with these signals.
pub fn with_signals(mut command: Command, ignored: fn(i32) -> bool, mask: u64) -> Command {
    // SAFETY: system calls only, between fork and exec.
    unsafe {
        command.pre_exec(move || {
            set_signals(ignored, mask);
            Ok(())
        });
    }
    command
}

/// Returns the children of a process's main thread, or of another thread.
pub fn children(parent: i32) -> Vec<i32> {
    let children = proc(parent, &format!("task/{parent}/children"));
    children.split(' ').flat_map(str::parse).collect()
}

/// Returns true if a process exists and isn't a zombie.
pub fn is_alive(pid: i32) -> bool {
    state(pid).is_some_and(|state| !['Z', 'X'].contains(&state))
}

/// Returns a command without redlock, in the same environment as with it.
pub fn directly(redis: &Redis, command: &[&str]) -> Command {
    let mut direct = Command::new(command[0]);
    direct
        .args(&command[1..])
        .env_clear()
        .env("PATH", path())
        .env("REDLOCK_URL", redis.url())
        .env("HOME", redis.dir.path());
    without_terminal(&mut direct);
    direct
}

/// Returns a line of a shell that knows this server.
pub fn sh(redis: &Redis, line: &str) -> Command {
    directly(redis, &["sh", "-c", line])
}

/// Returns the text of a file in the home directory; empty if there is none.
pub fn home_file(redis: &Redis, name: &str) -> String {
    fs::read_to_string(redis.dir.path().join(name)).unwrap_or_default()
}

/// Hook that records each loss of a lock.
pub const NOTES_LOSSES: &str = r#"test "$REDLOCK_EVENT" != lost || echo lost >>"$HOME/lost""#;

/// Returns the number of losses that this hook has recorded.
pub fn losses(redis: &Redis) -> usize {
    home_file(redis, "lost").lines().count()
}

/// Returns the watchdog of a redlock, which kills COMMAND's tree if redlock can't, and starts with the first renewal. Until it
/// has a session of its own, a signal for redlock's group reaches it too.
pub fn watchdog(redlock: i32) -> Option<i32> {
    let leads_session =
        |pid: &i32| getsid(Some(Pid::from_raw(*pid))).is_ok_and(|id| id.as_raw() == *pid);
    forked_watchdog(redlock).filter(leads_session)
}

/// Returns the watchdog even before it has a session of its own.
pub fn forked_watchdog(redlock: i32) -> Option<i32> {
    let mut threads = fs::read_dir(format!("/proc/{redlock}/task"))
        .ok()?
        .flatten();
    threads.find_map(|thread| {
        let thread = thread.file_name().to_str()?.parse().ok()?;
        let mut children = children(thread).into_iter();
        children.find(|&pid| proc(pid, "comm") == "rl-watchdog" && is_alive(pid))
    })
}

/// Waits for a watchdog that sleeps until redlock or a signal wakes it.
#[track_caller]
pub fn await_watchdog(redlock: i32) -> i32 {
    await_some("it has a watchdog", || {
        watchdog(redlock).filter(|&pid| state(pid) == Some('S'))
    })
}
