//! Two holders never run at once, whichever clients they are.

use std::path::PathBuf;

use crate::support::prelude::*;

#[test]
fn fifty_parallel_runs_never_overlap_and_their_fences_grow() {
    let redis = Redis::start();
    let home = redis.dir.path();
    let mut runs: Vec<Gated> = (0..50)
        .map(|_| redis.redlock(words!("run -q REDLOCK_REDIS_TIMEOUT=60s a")))
        .map(|run| Gated::labelled("", home, run))
        .collect();
    runs.iter_mut().for_each(Gated::open);
    for run in runs {
        run.finish().assert_silent().assert_code(0);
    }
    assert_in_turn(home);
    assert_eq!(turns(home).len(), 50);
    assert_eq!(redis.keys(), ["{redlock:a}:state"]);
}

#[test]
fn the_fence_grows_across_expiry_flushes_and_restarts() {
    let mut redis = Redis::start();
    let fence = |redis: &Redis| -> u64 {
        let end = outcome(&mut redis.run("a -- sh", "echo $REDLOCK_FENCE"));
        end.stdout.trim().parse().unwrap()
    };
    let mut fences = vec![fence(&redis)];
    redis.cli(&["FLUSHALL"]);
    fences.push(fence(&redis));
    redis.kill();
    redis.start_again();
    fences.push(fence(&redis));
    // A fencing token from the future, as after the clock was set back.
    redis.cli(&["HSET", "{redlock:a}:state", "fence", "4000000000000000"]);
    fences.extend([fence(&redis), fence(&redis)]);
    assert!(fences.is_sorted_by(|one, next| one < next), "{fences:?}");
    assert_eq!(fences[3..], [4_000_000_000_000_001, 4_000_000_000_000_002]);
}

/// Returns a Python with redis-py, installed only once.
fn python() -> PathBuf {
    static MADE: std::sync::OnceLock<PathBuf> = std::sync::OnceLock::new();
    let make = || {
        let directory = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("python");
        let python = directory.join("bin/python");
        let works = |python: &PathBuf| {
            Command::new(python)
                .args(["-c", "import redis"])
                .output()
                .is_ok_and(|output| output.status.success())
        };
        if !works(&python) {
            let run = |command: &mut Command| {
                let end: Outcome = command
                    .output()
                    .unwrap_or_else(|error| panic!("{command:?}: {error}"))
                    .into();
                end.assert_code(0);
            };
            run(Command::new("python3").args(["-m", "venv"]).arg(&directory));
            run(Command::new(&python).args(["-m", "pip", "install", "--quiet", "redis==5.*"]));
        }
        python
    };
    MADE.get_or_init(make).clone()
}

#[test]
fn redis_py_and_redlock_exclude_each_other() {
    let redis = Redis::start();
    let script = r#"
import redis, subprocess, sys
client = redis.Redis(unix_socket_path=sys.argv[1])
lock = client.lock("redlock:a", timeout=30, blocking=False)
assert lock.acquire()
assert subprocess.run(["redlock", "run", "-q", "-n", "a", "--", "true"]).returncode == 75
lock.release()
holder = subprocess.Popen(["redlock", "run", "a", "--", "sh", "-c", "echo ready; read x"],
                          stdin=subprocess.PIPE, stdout=subprocess.PIPE)
assert holder.stdout.readline() == b"ready\n"
assert not lock.acquire()
holder.communicate(b"\n")
assert holder.returncode == 0
assert lock.acquire()
lock.release()
"#;
    let mut command = Command::new(python());
    command
        .args(["-c", script])
        .arg(redis.socket())
        .env("PATH", crate::support::path())
        .env("REDLOCK_URL", redis.url());
    crate::support::without_terminal(&mut command);
    outcome(&mut command).assert_code(0).assert_silent();
}
