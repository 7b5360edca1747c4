//! `acquire --while-pid`: what stays behind to keep a script's lock, and when it goes.

use std::fs;
use std::io::Write;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;

use crate::support::{
    PATIENCE, Redis, Running, assert_nothing_left, assert_within, is_alive, moment, now, outcome,
    path, pipe, queued, wait_until, without_terminal,
};

/// A script that holds the lock "a" from its `ready` line on; `rest` follows.
fn holder(redis: &Redis, options: &str, rest: &str) -> Running {
    after("", redis, options, rest)
}

/// The same after a first line.
fn after(first: &str, redis: &Redis, options: &str, rest: &str) -> Running {
    let text = format!(
        "{first}\neval \"$(redlock acquire a --while-pid $$ {options})\"\necho ready\n{rest}"
    );
    let mut command = std::process::Command::new("bash");
    command
        .args(["-c", &text])
        .env_clear()
        .env("PATH", path())
        .env("HOME", redis.dir.path())
        .env("REDLOCK_URL", redis.url())
        .current_dir(redis.dir.path());
    without_terminal(&mut command);
    let mut script = Running::start(&mut command);
    script.expect_line("ready");
    script
}

/// The keeper of a script.
fn keeper(script: &Running) -> i32 {
    let pid = script.pid().to_string();
    let is_keeper = |candidate: &i32| {
        let words = fs::read(format!("/proc/{candidate}/cmdline")).unwrap_or_default();
        let words: Vec<&[u8]> = words.split(|&byte| byte == 0).collect();
        words.contains(&&b"acquire"[..]) && words.contains(&pid.as_bytes())
    };
    let processes = fs::read_dir("/proc").unwrap().flatten();
    let mut pids = processes.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.find(is_keeper).expect("a keeper")
}

const WAIT: &str = "sleep 60 & wait";

#[test]
fn the_rest_of_a_script_is_guarded_and_the_lock_is_free_at_its_end() {
    let redis = Redis::start();
    let mut gate = pipe(&redis.dir.path().join("fifo"));
    let script = holder(&redis, "--ttl 1s", "read go <fifo");
    // It is renewed: several TTLs later it is still held.
    let renewals = redis.calls("time");
    wait_until("it is renewed", || redis.calls("time") > renewals + 8);
    outcome(&mut redis.redlock(&["run", "-n", "a", "--", "true"])).assert_code(75);
    let waiter = queued(&redis, &["run", "-q", "a", "--", "true"]);
    let keeper = keeper(&script);
    gate.write_all(b"go\n").unwrap();
    script.finish().assert_code(0);
    waiter.finish().assert_code(0);
    wait_until("the keeper is gone", || !is_alive(keeper));
    assert_nothing_left(&redis);
}

#[test]
fn however_a_script_is_killed_its_lock_is_free_at_once() {
    let redis = Redis::start();
    let mut times = Vec::new();
    for signal in [
        Signal::SIGHUP,
        Signal::SIGINT,
        Signal::SIGQUIT,
        Signal::SIGABRT,
        Signal::SIGKILL,
        Signal::SIGUSR1,
        Signal::SIGSEGV,
        Signal::SIGPIPE,
        Signal::SIGALRM,
        Signal::SIGTERM,
    ] {
        // exec, as a shell itself would put some of them off.
        let mut script = holder(&redis, "", "exec sleep 60");
        let waiter = queued(&redis, &["run", "-q", "a", "--", "date", "+%s%N"]);
        let killed = now();
        script.signal(signal);
        let end = waiter.finish();
        end.assert_code(0);
        times.push(moment(&end.stdout).saturating_sub(killed));
        wait_until("the script is gone", || script.has_ended());
    }
    assert_within(Duration::from_millis(500), times);
    wait_until("all is given back", || {
        redis.cli(&["EXISTS", "redlock:a"]) == "0"
    });
    assert_nothing_left(&redis);
}

#[test]
fn a_keeper_holds_nothing_of_the_script_and_one_connection() {
    let redis = Redis::start();
    let script = after("exec 8>eight 9< <(sleep 60)", &redis, "", WAIT);
    let keeper = keeper(&script);
    // The renewing thread is there after a moment, with all that there ever is.
    wait_until("it has renewed", || {
        redis.cli(&["CLIENT", "LIST"]).contains("cmd=evalsha")
    });
    let files: Vec<String> = fs::read_dir(format!("/proc/{keeper}/fd"))
        .unwrap()
        .flatten()
        .filter_map(|entry| Some(fs::read_link(entry.path()).ok()?.display().to_string()))
        .collect();
    let count = |kind: &str| files.iter().filter(|file| file.starts_with(kind)).count();
    assert_eq!((count("/dev/null"), count("socket:")), (3, 1), "{files:?}");
    assert_eq!(
        count("/dev/null") + count("socket:") + count("anon_inode:"),
        files.len(),
        "{files:?}"
    );
    assert_eq!(
        fs::read_link(format!("/proc/{keeper}/cwd"))
            .unwrap()
            .to_str(),
        Some("/")
    );
    let stat = fs::read_to_string(format!("/proc/{keeper}/stat")).unwrap();
    let fields: Vec<&str> = stat
        .rsplit_once(')')
        .unwrap()
        .1
        .split_whitespace()
        .collect();
    let (session, terminal) = (fields[3], fields[4]);
    assert_eq!((session, terminal), (keeper.to_string().as_str(), "0"));
}

#[test]
fn a_keeper_survives_a_broken_connection() {
    let redis = Redis::start();
    let script = holder(&redis, "--ttl 1s", WAIT);
    redis.cli(&["CLIENT", "KILL", "TYPE", "normal"]);
    let renewals = redis.calls("time");
    wait_until("it is renewed", || redis.calls("time") > renewals + 8);
    let kept = redis.holder("a");
    assert_eq!(kept, Some(script.pid()), "{}", redis.view("a"));
}

#[test]
fn a_keeper_survives_a_redis_that_restarts_with_its_data() {
    let mut redis = Redis::with(&["--appendonly", "yes", "--appendfsync", "always"]);
    let mut script = holder(&redis, "--ttl 10s", WAIT);
    let token = redis.cli(&["GET", "redlock:a"]);
    redis.kill();
    redis.start_again();
    wait_until("the data is there", || {
        redis.cli(&["GET", "redlock:a"]) == token
    });
    let renewals = redis.calls("pexpire");
    wait_until("it is renewed", || redis.calls("pexpire") > renewals);
    assert!(!script.has_ended());
    script.kill();
    wait_until("it is given back", || {
        redis.cli(&["EXISTS", "redlock:a"]) == "0"
    });
}

#[test]
fn a_script_whose_lock_is_forced_away_is_stopped_with_all_it_runs() {
    let redis = Redis::start();
    let mut script = holder(&redis, "", "sleep 300 & echo $!; wait");
    let child = script.line().parse().unwrap();
    let keeper = keeper(&script);
    outcome(&mut redis.redlock(&["release", "--force", "-q", "a"])).assert_code(0);
    script.finish();
    wait_until("its child is gone, and the keeper", || {
        !is_alive(child) && !is_alive(keeper)
    });
    assert_nothing_left(&redis);
}

#[test]
fn a_script_that_ignores_term_is_killed_after_kill_after() {
    let redis = Redis::start();
    let rest = "trap '' TERM; echo deaf; while :; do sleep 1; done";
    let mut script = holder(&redis, "-k 200ms", rest);
    script.expect_line("deaf");
    outcome(&mut redis.redlock(&["release", "--force", "-q", "a"])).assert_code(0);
    let end = script.finish();
    assert_eq!(
        std::os::unix::process::ExitStatusExt::signal(&end.status),
        Some(9)
    );
}

#[test]
fn with_on_lost_warn_a_script_may_hear_of_it_and_goes_on() {
    let redis = Redis::start();
    let rest = "trap 'echo lost; exit 3' URG; echo set; while :; do sleep 0.05; done";
    let mut script = holder(&redis, "--on-lost warn", rest);
    script.expect_line("set");
    outcome(&mut redis.redlock(&["release", "--force", "-q", "a"])).assert_code(0);
    script.expect_line("lost");
    script.finish().assert_code(3);
    // One that doesn't listen is left alone.
    let mut deaf = holder(
        &redis,
        "--on-lost warn",
        "while kill -0 $PPID; do sleep 0.05; done",
    );
    let keeper = keeper(&deaf);
    outcome(&mut redis.redlock(&["release", "--force", "-q", "a"])).assert_code(0);
    wait_until("the keeper is gone", || !is_alive(keeper));
    assert!(!deaf.has_ended());
}

#[test]
fn a_script_is_dead_before_a_lease_ends_that_nobody_can_renew() {
    let redis = Redis::start();
    let rest = "trap '' TERM; echo deaf; while :; do sleep 0.01; date +%s%N >alive; done";
    let mut script = holder(&redis, "--ttl 1s -k 200ms", rest);
    script.expect_line("deaf");
    let pttl = redis.cli(&["PTTL", "redlock:a"]);
    redis.stall();
    let lease_ends = Instant::now() + Duration::from_millis(pttl.parse().unwrap());
    script.finish();
    assert!(
        Instant::now() < lease_ends + Duration::from_millis(50),
        "after {pttl} ms"
    );
    redis.resume();
}

#[test]
fn release_in_the_script_ends_the_keeper_and_nothing_else() {
    let redis = Redis::start();
    let mut script = holder(&redis, "", "redlock release; echo $?; echo on");
    let keeper = keeper(&script);
    script.expect_line("0");
    script.expect_line("on");
    wait_until("the keeper is gone", || !is_alive(keeper));
    script.finish().assert_code(0);
    assert_nothing_left(&redis);
}

#[test]
fn a_term_to_the_keeper_is_passed_on_and_the_lock_is_kept_until_the_script_has_ended() {
    let redis = Redis::start();
    let rest =
        "trap 'redlock check && echo ours; exit 0' TERM; echo set; while :; do sleep 0.05; done";
    let mut script = holder(&redis, "", rest);
    script.expect_line("set");
    let keeper = nix::unistd::Pid::from_raw(keeper(&script));
    nix::sys::signal::kill(keeper, Signal::SIGTERM).unwrap();
    script.expect_line("ours");
    script.finish().assert_code(0);
    wait_until("it is given back", || {
        redis.cli(&["EXISTS", "redlock:a"]) == "0"
    });
}

#[test]
fn the_lock_of_a_killed_keeper_ends_with_its_ttl_and_not_before_while_the_script_lives() {
    let redis = Redis::start();
    let script = holder(&redis, "--ttl 2s", WAIT);
    let keeper = nix::unistd::Pid::from_raw(keeper(&script));
    nix::sys::signal::kill(keeper, Signal::SIGKILL).unwrap();
    let left: u64 = redis.cli(&["PTTL", "redlock:a"]).parse().unwrap();
    let began = Instant::now();
    outcome(&mut redis.redlock(&["run", "-q", "a", "--", "true"])).assert_code(0);
    assert!(began.elapsed() + Duration::from_millis(50) > Duration::from_millis(left));
    assert!(began.elapsed() < PATIENCE / 4);
}

#[test]
fn where_script_and_keeper_are_dead_the_lock_is_taken_over_at_once() {
    let redis = Redis::start();
    let mut script = holder(&redis, "--ttl 1m", "exec sleep 60");
    let keeper = nix::unistd::Pid::from_raw(keeper(&script));
    nix::sys::signal::kill(keeper, Signal::SIGKILL).unwrap();
    script.kill();
    // Or this would be after a minute.
    outcome(&mut redis.redlock(&["run", "-q", "a", "--", "true"])).assert_code(0);
}

#[test]
fn only_a_process_that_lives_and_may_be_stopped_is_kept_for() {
    let redis = Redis::start();
    let acquire = |pid: &str, options: &[&str]| {
        let arguments = ["acquire", "a", "--format", "token", "--while-pid", pid];
        outcome(&mut redis.redlock(&[&arguments, options].concat()))
    };
    acquire("2147483646", &[])
        .assert_code(64)
        .assert_says("no such process");
    acquire("0", &[]).assert_code(64);
    if !nix::unistd::getuid().is_root() {
        acquire("1", &[])
            .assert_code(64)
            .assert_says("--on-lost warn");
    }
    assert_nothing_left(&redis);
}
