//! `redlock fence`: a fence file lets no late writer pass.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};

use crate::support::{Gate, Outcome, Redis, Running, outcome, redlock, wait_until};

/// A directory, and a file in it that isn't there yet.
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
fn equal_and_larger_numbers_pass_silently_and_smaller_ones_are_refused() {
    let (_dir, file) = place();
    for (number, status) in [
        ("5", 0),
        ("5", 0),
        ("4", 1),
        ("17", 0),
        ("5", 1),
        ("17", 0),
        ("0", 1),
        ("18446744073709551615", 0),
        ("18446744073709551614", 1),
    ] {
        let end = fence(&file, number);
        assert_eq!(end.code(), Some(status), "{number}: {end:?}");
        assert_eq!(end.stderr.is_empty(), status == 0, "{number}: {end:?}");
        assert_eq!(end.stdout, "");
    }
    assert_eq!(text(&file), "18446744073709551615\n");
}

#[test]
fn who_is_refused_is_told_both_numbers_and_changes_nothing() {
    let (_dir, file) = place();
    fence(&file, "17").assert_code(0);
    let before = fs::metadata(&file).unwrap().modified().unwrap();
    fence(&file, "16")
        .assert_code(1)
        .assert_says("fence 17")
        .assert_says("this is 16");
    assert_eq!(fs::metadata(&file).unwrap().modified().unwrap(), before);
}

#[test]
fn the_number_of_the_run_around_it_is_taken_where_none_is_given() {
    let redis = Redis::start();
    let file = redis.dir.path().join("fence");
    let file = file.to_str().unwrap();
    let script = r#"redlock fence "$0" && echo "$REDLOCK_FENCE""#;
    let run = ["run", "a", "--", "sh", "-c", script, file];
    for _ in 0..2 {
        let end = outcome(&mut redis.redlock(&run));
        end.assert_code(0).assert_silent();
        assert_eq!(text(Path::new(file)), end.stdout);
    }
}

#[test]
fn one_who_stood_still_while_another_held_the_lock_is_refused() {
    let redis = Redis::start();
    let script = r#"echo ready; read go <gate; redlock fence "$0"; echo $?"#;
    let file = redis.dir.path().join("fence");
    let mut gate = Gate::new(&redis);
    let options = [
        "run",
        "--on-lost",
        "warn",
        "a",
        "--",
        "sh",
        "-c",
        script,
        file.to_str().unwrap(),
    ];
    let mut late = redis.redlock(&options);
    let mut late = Running::start(late.current_dir(redis.dir.path()));
    late.expect_line("ready");
    outcome(&mut redis.redlock(&["release", "--force", "-q", "a"])).assert_code(0);
    let next = r#"redlock fence "$0""#;
    let next = ["run", "a", "--", "sh", "-c", next, file.to_str().unwrap()];
    outcome(&mut redis.redlock(&next)).assert_code(0);
    gate.open();
    late.expect_line("1");
    late.finish();
}

#[test]
fn no_number_or_what_is_none_is_wrong_usage_and_leaves_the_file_alone() {
    let (_dir, file) = place();
    let path = file.to_str().unwrap();
    for number in ["", "x", "-1", "1.5", "18446744073709551616", "1 2"] {
        fence(&file, number).assert_code(64);
        let mut command = redlock(&["fence", path]);
        outcome(command.env("REDLOCK_FENCE", number)).assert_code(64);
    }
    outcome(&mut redlock(&["fence", path])).assert_code(64);
    outcome(&mut redlock(&["fence"])).assert_code(64);
    assert!(!file.exists());
}

#[test]
fn what_is_no_fence_file_is_left_alone() {
    let (_dir, file) = place();
    for other in [
        "my diary\n",
        "12 monkeys\n",
        "12\n13\n",
        "-5\n",
        "\n",
        "99999999999999999999999\n",
        "12\0\n",
    ] {
        fs::write(&file, other).unwrap();
        fence(&file, "99").assert_code(78).assert_says("left alone");
        assert_eq!(text(&file), other);
    }
    let long = "1".repeat(5000);
    fs::write(&file, &long).unwrap();
    fence(&file, "99").assert_code(78);
    assert_eq!(text(&file), long);
    fs::write(&file, [b'5', 0xff, b'\n']).unwrap();
    fence(&file, "99").assert_code(78);
}

#[test]
fn however_a_number_was_written_a_larger_one_takes_its_place() {
    let (_dir, file) = place();
    for (before, smaller) in [
        ("17\n", "16"),
        ("17", "16"),
        ("", ""),
        ("00017\n", "16"),
        ("00000000000000000000017\n", "16"),
        ("+17\n", "16"),
    ] {
        fs::write(&file, before).unwrap();
        if !smaller.is_empty() {
            fence(&file, smaller).assert_code(1);
        }
        fence(&file, "18").assert_code(0).assert_silent();
        assert_eq!(text(&file), "18\n", "after {before:?}");
        fence(&file, "18").assert_code(0);
        fence(&file, "17").assert_code(1);
    }
}

#[test]
fn a_file_that_cannot_be_written_lets_nobody_pass() {
    let (dir, file) = place();
    fence(dir.path(), "1").assert_code(125);
    fence(&dir.path().join("no/such"), "1").assert_code(125);
    fs::write(&file, "3\n").unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o444)).unwrap();
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let mut command = redlock(&["fence", file.to_str().unwrap(), "4"]);
    if nix::unistd::getuid().is_root() {
        // A user to whom the permissions mean something; the binary may lie where it can't look.
        let binary = dir.path().join("redlock");
        fs::copy(crate::support::REDLOCK, &binary).unwrap();
        command = std::process::Command::new(binary);
        command
            .args(["fence", file.to_str().unwrap(), "4"])
            .uid(65_534);
    }
    outcome(&mut command)
        .assert_code(125)
        .assert_says(file.to_str().unwrap());
    assert_eq!(text(&file), "3\n");
}

#[test]
fn it_asks_no_redis_and_reads_no_settings() {
    let (_dir, file) = place();
    let path = file.to_str().unwrap();
    for url in ["redis://127.0.0.1:1", "nonsense"] {
        let mut command = redlock(&["fence", path, "1"]);
        outcome(command.env("REDLOCK_URL", url))
            .assert_code(0)
            .assert_silent();
    }
    let redis = Redis::start();
    let before = redis.cli(&["INFO", "stats"]);
    let received = |info: &str| {
        let line = |line: &&str| line.starts_with("total_connections_received");
        info.lines().find(line).map(str::to_owned)
    };
    outcome(&mut redis.redlock(&["fence", path, "2"])).assert_code(0);
    let after = redis.cli(&["INFO", "stats"]);
    // redis-cli itself is one.
    let count = |info: &str| {
        received(info)
            .unwrap()
            .split(':')
            .next_back()
            .unwrap()
            .trim()
            .parse::<u32>()
            .unwrap()
    };
    assert_eq!(count(&after), count(&before) + 1);
}

#[test]
fn of_fifty_writers_at_once_the_largest_fence_stays_and_it_never_shrinks() {
    let (_dir, file) = place();
    fence(&file, "9").assert_code(0);
    let mut writers: Vec<(u64, Running)> = (1..=50)
        .map(|number: u64| {
            // Of different lengths, too.
            let number = 1 + number * 7 % 50 * 40;
            let mut command = redlock(&["fence", file.to_str().unwrap(), &number.to_string()]);
            (number, Running::start(&mut command))
        })
        .collect();
    let mut seen = 9;
    wait_until("all have ended", || {
        let shown: u64 = text(&file)
            .trim_end()
            .parse()
            .expect("a number at all times");
        assert!(shown >= seen, "{shown} after {seen}");
        seen = shown;
        writers.iter_mut().all(|(_, writer)| writer.has_ended())
    });
    for (number, writer) in writers {
        let end = writer.finish();
        assert!(matches!(end.code(), Some(0 | 1)), "{end:?}");
        // The largest passes whenever it comes.
        if number == 1961 {
            end.assert_code(0);
        }
    }
    assert_eq!(text(&file), "1961\n");
}

#[test]
fn those_who_wait_for_the_file_are_ended_by_a_signal() {
    let (_dir, file) = place();
    let lock = format!(
        "exec 9>>{}; flock 9; echo locked; exec sleep 60",
        file.display()
    );
    let mut holder = std::process::Command::new("sh");
    let mut holder = Running::start(holder.args(["-c", &lock]));
    holder.expect_line("locked");
    let writer = Running::start(&mut redlock(&["fence", file.to_str().unwrap(), "1"]));
    let pid = writer.pid();
    wait_until("it waits for the file", || {
        fs::read_to_string(format!("/proc/{pid}/wchan"))
            .unwrap_or_default()
            .contains("lock")
    });
    writer.signal(nix::sys::signal::Signal::SIGTERM);
    let end = writer.finish();
    assert!(!end.status.success());
    // Nobody wrote without the lock.
    assert_eq!(text(&file), "");
}
