//! `redlock release`: by token, and by force.

use crate::support::prelude::*;

fn held(redis: &Redis) -> (Running, String) {
    let mut run = Running::start(&mut redis.run("a -- sh", "echo $REDLOCK_TOKEN; exec sleep 60"));
    let token = run.line();
    (run, token)
}

fn id(redis: &Redis) -> String {
    let locks = json(redis, "status --json a");
    locks[0]["holders"][0]["id"].as_str().unwrap().to_owned()
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
    let line = "REDLOCK_TOKEN={} REDLOCK_REDIS_TIMEOUT=1h release a";
    let end = outcome(&mut redis.redlock(&words(line, &[&token])));
    end.assert_code(0).assert_silent();
}

#[test]
fn a_wrong_token_or_none_changes_nothing_names_the_holder_and_offers_stop_before_force() {
    let redis = Redis::start();
    let (run, token) = held(&redis);
    let whose = format!("(pid {})", run.pid());
    let mut release = redis.redlock(&["release", "a"]);
    outcome(release.env("REDLOCK_TOKEN", "wrong")).assert_said(79, &whose);
    let by_id = format!("--force --id {}", id(&redis));
    let end = ends(&redis, "release a");
    let text = &end.assert_said(79, &whose).assert_says(&by_id).stderr;
    let stop = text.find("redlock stop a");
    assert!(stop.is_some() && stop < text.find("--force"), "{text}");
    redis.cli(&["SET", "redlock:b", "theirs"]);
    let other = ends(&redis, "release b");
    assert!(!other.stderr.contains("redlock stop"), "{other:?}");
    other.assert_says("--force");
    assert_eq!(redis.cli(&["GET", "redlock:a"]), token);
}

#[test]
fn force_frees_another_clients_lock_but_leaves_other_keys_alone() {
    let redis = Redis::start();
    redis.cli(&["SET", "redlock:a", "theirs"]);
    let says = "forced free; it was held by another client";
    ends(&redis, "release --force a").assert_said(0, says);
    assert!(!redis.is_held("a"));
    redis.cli(&["HSET", "redlock:a", "field", "theirs"]);
    let says = "belongs to another program";
    ends(&redis, "release --force a").assert_said(78, says);
    ends(&redis, "release a").assert_said(79, "is not a lock");
    assert_eq!(redis.cli(&["HGET", "redlock:a", "field"]), "theirs");
}
