//! `redlock fence`: a fence file rejects each late writer.

use std::path::{Path, PathBuf};

use nix::fcntl::{Flock, FlockArg};

use crate::promises::config::set_mode;
use crate::support::prelude::*;

/// Returns a directory, and the path of a file in it that doesn't exist yet.
fn place() -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("fence");
    (dir, file)
}

fn fence(file: &Path, number: &str) -> Outcome {
    outcome(&mut redlock(&["fence", file.to_str().unwrap(), number]))
}

fn text(file: &Path) -> String {
    fs::read_to_string(file).unwrap()
}

#[test]
fn equal_and_larger_numbers_pass_silently_and_a_stale_writer_is_shown_both_and_changes_nothing() {
    let (_dir, file) = place();
    let mut last = "";
    let passes = "5 5 -4 17 -5 17 -0 18446744073709551615 -18446744073709551614";
    for number in passes.split(' ') {
        let written = || fs::metadata(&file).and_then(|file| file.modified()).ok();
        let before = written();
        if let Some(stale) = number.strip_prefix('-') {
            let end = fence(&file, stale);
            end.assert_said(1, &format!("fencing token {stale} is stale"));
            end.assert_says(&format!("was last written with {last}"));
            assert_eq!(written(), before, "{number}");
        } else {
            fence(&file, number).assert_printed(0, "").assert_silent();
            last = number;
        }
        assert_eq!(text(&file), format!("{last}\n"));
    }
}

#[test]
fn fence_uses_the_number_of_its_run_and_rejects_a_late_writer() {
    let redis = Redis::start();
    let script = r#"echo ready; read go <"$HOME/gate"; redlock fence "$HOME/fence"; echo $?"#;
    let mut gate = Gate::new(&redis);
    let mut late = Running::ready(&mut redis.run("REDLOCK_ON_LOST=warn a", script));
    ends(&redis, "release --force -q a").assert_code(0);
    let newer = r#"redlock fence "$HOME/fence" && echo "$REDLOCK_FENCE""#;
    let end = outcome(&mut redis.run("a", newer));
    let file = redis.dir.path().join("fence");
    end.assert_silent().assert_printed(0, &text(&file));
    gate.open();
    late.expect_line("1");
    late.finish();
}

#[test]
fn a_missing_or_invalid_fence_number_is_a_usage_error() {
    let (_dir, file) = place();
    let path = file.to_str().unwrap();
    let unnumbered = || redlock(&["fence", path]);
    for number in ["", "x", "-1", "1.5", "18446744073709551616", "1 2"] {
        fence(&file, number).assert_code(64);
        outcome(unnumbered().env("REDLOCK_FENCE", number)).assert_code(64);
    }
    outcome(&mut unnumbered()).assert_code(64);
    outcome(&mut redlock(&["fence"])).assert_code(64);
    assert!(!file.exists());
}

#[test]
fn fence_leaves_a_file_without_a_fencing_token_unchanged() {
    let (_dir, file) = place();
    let long = "1".repeat(5000);
    let texts = "my diary|12 monkeys|12\n13|-5||99999999999999999999999|12\0|5\u{ff}";
    for other in texts.split('|').chain([&*long]) {
        let other = format!("{other}\n");
        fs::write(&file, &other).unwrap();
        fence(&file, "99").assert_said(78, "left unchanged");
        assert_eq!(text(&file), other);
    }
}

#[test]
fn however_a_number_was_written_a_larger_one_takes_its_place() {
    let (_dir, file) = place();
    for before in "17\n|17|00017\n|00000000000000000000017\n|+17\n|".split('|') {
        fs::write(&file, before).unwrap();
        if !before.is_empty() {
            fence(&file, "16").assert_code(1);
        }
        fence(&file, "18").assert_code(0).assert_silent();
        assert_eq!(text(&file), "18\n", "after {before:?}");
    }
}

#[test]
fn a_file_that_cannot_be_written_lets_no_writer_pass() {
    let (dir, file) = place();
    fence(&dir.path().join("no/such"), "1").assert_code(125);
    fs::write(&file, "3\n").unwrap();
    set_mode(&file, 0o444);
    set_mode(dir.path(), 0o755);
    let path = file.to_str().unwrap();
    let words = ["./redlock", "fence", path, "4"];
    let user = OtherUser::new();
    // Permissions don't limit root.
    return_unless!(user.is_some() || !nix::unistd::getuid().is_root());
    let own = || redlock(&words[1..]);
    let mut command = user.as_ref().map_or_else(own, |user| user.command(&words));
    let end = outcome(&mut command);
    end.assert_said(77, path)
        .assert_says("must be able to read and write");
    assert_eq!(text(&file), "3\n");
}

#[test]
fn fence_refuses_anything_but_a_regular_file_at_once() {
    let (dir, file) = place();
    nix::unistd::mkfifo(&file, nix::sys::stat::Mode::S_IRWXU).unwrap();
    let [socket, link, regular] = ["socket", "link", "regular"].map(|name| dir.path().join(name));
    let _listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
    fs::write(&regular, "1\n").unwrap();
    std::os::unix::fs::symlink(&regular, &link).unwrap();
    let devices = [Path::new("/dev/null"), Path::new("/dev/tty")];
    for path in [&file, &link, &socket, dir.path()]
        .into_iter()
        .chain(devices)
    {
        let says = format!("{} is a link, a directory, ", path.display());
        fence(path, "1").assert_said(78, &says);
    }
}

/// Returns the system calls that make a fence durable, with their files.
fn synced(dir: &Path, file: &Path, number: &str) -> Vec<String> {
    let trace = dir.join("trace");
    let mut strace = Command::new("strace");
    strace.args(words!("-f -y -e trace=fsync,fdatasync,pwrite64 -o"));
    strace
        .arg(&trace)
        .args([REDLOCK, "fence"])
        .arg(file)
        .arg(number);
    outcome(&mut strace).assert_code(0).assert_silent();
    let calls = text(&trace);
    let calls = calls.lines().filter_map(|line| {
        let (call, arguments) = line.split_once(' ')?.1.trim_start().split_once('(')?;
        let (_, path) = arguments.split_once('<')?;
        Some(format!("{call} {}", path.split_once('>')?.0))
    });
    calls.collect()
}

#[test]
fn a_free_file_is_written_by_a_user_who_may_start_no_thread() {
    let (dir, file) = place();
    let log = dir.path().join("trace");
    let mut strace = Command::new("strace");
    strace.args(words!("-f -e inject=clone,?clone3:error=EAGAIN -o"));
    strace.arg(log).args([REDLOCK, "fence"]);
    outcome(strace.arg(&file).arg("5")).assert_code(0);
    assert_eq!(text(&file), "5\n");
}

#[test]
fn a_new_file_and_its_number_outlive_a_crash_of_the_machine() {
    let (dir, _) = place();
    let directory = dir.path().canonicalize().unwrap();
    let file = directory.join("fence");
    let (entry, there) = (directory.display(), file.display());
    let [write, sync] = [format!("pwrite64 {there}"), format!("fdatasync {there}")];
    assert_eq!(
        synced(dir.path(), &file, "5"),
        [format!("fsync {entry}"), write.clone(), sync.clone()]
    );
    assert_eq!(synced(dir.path(), &file, "6"), [write, sync.clone()]);
    // The writer of that number may have been killed before it synced the directory.
    assert_eq!(synced(dir.path(), &file, "6"), [sync]);
}

#[test]
fn fence_asks_no_redis_and_reads_no_settings() {
    let (_dir, file) = place();
    let path = file.to_str().unwrap();
    for url in ["redis://127.0.0.1:1", "nonsense"] {
        let mut command = redlock(&["fence", path, "1"]);
        outcome(command.env("REDLOCK_URL", url))
            .assert_code(0)
            .assert_silent();
    }
}

#[test]
fn a_fence_file_never_decreases_under_fifty_concurrent_writers() {
    let (_dir, file) = place();
    fence(&file, "9").assert_code(0);
    let writer = |number: u64| {
        // Numbers of different lengths.
        let number = (1 + number * 7 % 50 * 40).to_string();
        Running::start(&mut redlock(&["fence", file.to_str().unwrap(), &number]))
    };
    let mut writers: Vec<Running> = (1..=50).map(writer).collect();
    let mut seen = 9;
    wait_until("all have ended", || {
        let shown: u64 = text(&file).trim_end().parse().unwrap();
        assert!(shown >= seen, "{shown} after {seen}");
        seen = shown;
        writers.iter_mut().all(Running::has_ended)
    });
    // The largest number passes at any time.
    assert_eq!(text(&file), "1961\n");
    for writer in writers {
        let end = writer.finish();
        assert!(matches!(end.code(), Some(0 | 1)), "{end:?}");
    }
}

/// Locks a file in this process.
fn lock_of(file: &Path) -> Flock<fs::File> {
    let mut options = fs::OpenOptions::new();
    let file = options.create(true).append(true).open(file).unwrap();
    Flock::lock(file, FlockArg::LockExclusive).expect("no other process has it")
}

/// Starts a fence. Returns when it waits for the lock on the file.
fn waiting_for(file: &Path, number: &str) -> Running {
    let writer = Running::start(&mut redlock(&["fence", file.to_str().unwrap(), number]));
    let pid = writer.pid();
    wait_until("it waits", || proc(pid, "wchan").contains("nanosleep"));
    writer
}

#[test]
fn writers_that_wait_for_the_file_end_by_a_signal_or_when_it_is_theirs_or_after_ten_seconds() {
    let (_dir, file) = place();
    let lock = lock_of(&file);
    let ended = waiting_for(&file, "1");
    ended.signal(Signal::SIGTERM);
    ended.finish().assert_killed_by(15);
    let writer = waiting_for(&file, "1");
    // No writer wrote without the lock.
    assert_eq!(text(&file), "");
    drop(lock);
    writer.finish().assert_code(0).assert_silent();
    assert_eq!(text(&file), "1\n");
    let _lock = lock_of(&file);
    fence(&file, "2")
        .assert_said(75, "locked for 10s")
        .assert_says("try again");
    assert_eq!(text(&file), "1\n");
}

#[test]
fn a_file_that_is_replaced_or_removed_meanwhile_is_opened_again() {
    let (dir, file) = place();
    let lock = lock_of(&file);
    let [late, newest] = ["5", "9"].map(|number| waiting_for(&file, number));
    let other = dir.path().join("other");
    fs::write(&other, "7\n").unwrap();
    fs::rename(&other, &file).unwrap();
    drop(lock);
    // In either order of the two writers.
    late.finish_saying(1, "is stale");
    newest.finish().assert_code(0).assert_silent();
    assert_eq!(text(&file), "9\n");
    let lock = lock_of(&file);
    let writer = waiting_for(&file, "3");
    fs::remove_file(&file).unwrap();
    drop(lock);
    writer.finish().assert_code(0).assert_silent();
    assert_eq!(text(&file), "3\n");
}

#[test]
fn a_file_that_others_replace_all_the_time_is_given_up() {
    let (dir, file) = place();
    // The check after locking finds no file, as if another process removed the file each time. With glibc this is the third
    // call of statx, with musl the second of stat.
    let log = dir.path().join("trace");
    let (log, path) = (log.to_str().unwrap(), file.to_str().unwrap());
    let words = words!(
        "-f -o {} -e inject=statx:error=ENOENT:when=3+3 -e inject=?stat,?newfstatat:error=ENOENT:when=2+2 -P {} {} fence {} 1",
        log,
        path,
        REDLOCK,
        path
    );
    outcome(Command::new("strace").args(words)).assert_said(75, "keep replacing it");
    assert_eq!(text(&file), "");
}
