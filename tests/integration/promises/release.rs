//! `redlock release`: by token, and by force.

use std::fs;
use std::process::Stdio;

use crate::support::{Redis, Running, outcome, wait_until};

fn held(redis: &Redis) -> (Running, String) {
    let mut run = Running::start(&mut redis.run("a -- sh", "echo $REDLOCK_TOKEN; exec sleep 60"));
    let token = run.line();
    (run, token)
}

fn is_held(redis: &Redis) -> bool {
    redis.cli(&["EXISTS", "redlock:a"]) == "1"
}

fn id(redis: &Redis) -> String {
    let end = outcome(&mut redis.redlock(&["status", "--json", "a"]));
    let locks: serde_json::Value = serde_json::from_str(&end.stdout).unwrap();
    locks[0]["holders"][0]["id"].as_str().unwrap().to_owned()
}

#[test]
fn the_token_in_the_environment_releases() {
    let redis = Redis::start();
    let (_run, token) = held(&redis);
    outcome(redis.redlock(&["release", "a"]).env("REDLOCK_TOKEN", token))
        .assert_code(0)
        .assert_silent();
    assert!(!is_held(&redis));
}

#[test]
fn the_token_in_a_file_or_on_standard_input_releases() {
    let redis = Redis::start();
    for from_file in [true, false] {
        let (_run, token) = held(&redis);
        let file = redis.dir.path().join("token");
        fs::write(&file, token + "\n").unwrap();
        let name = if from_file {
            file.to_str().unwrap()
        } else {
            "-"
        };
        let mut command = redis.redlock(&["release", "a", "--token-file", name]);
        let status = command
            .stdin(Stdio::from(fs::File::open(&file).unwrap()))
            .status()
            .unwrap();
        assert!(status.success());
        assert!(!is_held(&redis));
    }
}

#[test]
fn a_release_of_several_locks_frees_the_others_where_one_was_released_before() {
    let redis = Redis::start();
    let script = "redlock release -q a; redlock release 2>&1; echo $?; exec sleep 60";
    let mut run = Running::start(&mut redis.run("a b c", script));
    run.expect_line("redlock: lock \"a\" was already released");
    run.expect_line("79");
    for name in ["a", "b", "c"] {
        let held = redis.cli(&["EXISTS", &format!("redlock:{name}")]);
        assert_eq!(held, "0", "{name}");
    }
}

#[test]
fn a_replica_that_hangs_holds_up_no_release_where_none_takes_over() {
    let redis = Redis::start();
    let port = redis.port.to_string();
    let replica = Redis::with(&["--replicaof", "127.0.0.1", &port]);
    wait_until("it follows", || {
        replica.info("replication", "master_link_status") == "up"
    });
    let (_run, token) = held(&redis);
    replica.stall();
    let patient = ["REDLOCK_REDIS_TIMEOUT=1h", "release", "a"];
    outcome(redis.redlock(&patient).env("REDLOCK_TOKEN", token))
        .assert_code(0)
        .assert_silent();
}

#[test]
fn a_wrong_token_or_none_changes_nothing_and_the_holder_is_named() {
    let redis = Redis::start();
    let (run, token) = held(&redis);
    let whose = format!("(pid {})", run.pid());
    outcome(
        redis
            .redlock(&["release", "a"])
            .env("REDLOCK_TOKEN", "wrong"),
    )
    .assert_code(79)
    .assert_says(&whose);
    outcome(&mut redis.redlock(&["release", "a"]))
        .assert_code(79)
        .assert_says(&whose)
        .assert_says(&format!("--force --id {}", id(&redis)));
    assert_eq!(redis.cli(&["GET", "redlock:a"]), token);
}

#[test]
fn releasing_what_is_not_held_is_an_error() {
    let redis = Redis::start();
    outcome(&mut redis.redlock(&["release", "a"]))
        .assert_code(79)
        .assert_says("lock \"a\" is not held");
    outcome(
        redis
            .redlock(&["release", "a"])
            .env("REDLOCK_TOKEN", "mine"),
    )
    .assert_code(79);
    outcome(&mut redis.redlock(&["release", "--force", "a"]))
        .assert_code(79)
        .assert_says("lock \"a\" is not held");
    outcome(&mut redis.redlock(&["release"]))
        .assert_code(64)
        .assert_says("no lock NAME given");
    assert_eq!(redis.keys(), [""; 0]);
}

#[test]
fn force_frees_a_holder_seen_by_its_id_but_no_newer_one() {
    let redis = Redis::start();
    let (first, _) = held(&redis);
    let seen = id(&redis);
    outcome(&mut redis.redlock(&["release", "--force", "--id", &seen, "a"]))
        .assert_code(0)
        .assert_says("forced free; it was held by");
    drop(first);
    let (_second, token) = held(&redis);
    outcome(&mut redis.redlock(&["release", "--force", "--id", &seen, "a"]))
        .assert_code(79)
        .assert_says("nothing was changed");
    assert_eq!(redis.cli(&["GET", "redlock:a"]), token);
    outcome(&mut redis.redlock(&["release", "--id", &seen, "a"])).assert_code(64);
}

#[test]
fn force_frees_another_clients_lock_but_leaves_other_keys_alone() {
    let redis = Redis::start();
    redis.cli(&["SET", "redlock:a", "theirs"]);
    outcome(&mut redis.redlock(&["release", "--force", "a"]))
        .assert_code(0)
        .assert_says("forced free; it was held by another client");
    assert!(!is_held(&redis));
    redis.cli(&["HSET", "redlock:a", "field", "theirs"]);
    outcome(&mut redis.redlock(&["release", "--force", "a"]))
        .assert_code(78)
        .assert_says("belongs to another program");
    outcome(&mut redis.redlock(&["release", "a"]))
        .assert_code(79)
        .assert_says("is not a lock");
    assert_eq!(redis.cli(&["HGET", "redlock:a", "field"]), "theirs");
}

#[test]
fn a_forced_release_wakes_a_waiter() {
    let redis = Redis::start();
    let (_run, _) = held(&redis);
    let waiter = Running::start(&mut redis.redlock(&["run", "-q", "a", "--", "true"]));
    crate::support::wait_until("it listens", || {
        redis.cli(&["PUBSUB", "CHANNELS"]).contains("{redlock:")
    });
    outcome(&mut redis.redlock(&["release", "-q", "--force", "a"]))
        .assert_code(0)
        .assert_silent();
    waiter.finish().assert_code(0);
}
