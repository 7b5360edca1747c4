//! `--restart-grace`: a server that has restarted without its data grants no lock that it may have forgotten.

use std::time::Duration;

use serde_json::Value;

use crate::support::lua::{KEYS, WHO, call, source};
use crate::support::proxy::Proxy;
use crate::support::{
    Gated, Outcome, Redis, Running, assert_nothing_left, assert_within, moment, now, outcome,
    queued, wait_until,
};

/// The options of a run that keeps to the grace.
const GRACE: [&str; 2] = ["--restart-grace", "6s"];

fn redlock(redis: &Redis, arguments: &[&str]) -> Outcome {
    outcome(&mut redis.redlock(arguments))
}

fn uptime(redis: &Redis) -> i64 {
    let info = redis.cli(&["INFO", "server"]);
    let mut lines = info.lines();
    let up = lines.find_map(|line| line.strip_prefix("uptime_in_seconds:"));
    up.unwrap().trim().parse().unwrap()
}

/// A run that keeps its command to the last moment, and is cut off while the server restarts without its
/// data; the pid of its command.
fn forgotten(redis: &mut Redis) -> (Running, String) {
    let (run, pid, ()) = forgotten_after(redis, |_, _| ());
    (run, pid)
}

/// The same, after something else has been done with the server, and the pid.
fn forgotten_after<T>(
    redis: &mut Redis,
    before: impl FnOnce(&Redis, &str) -> T,
) -> (Running, String, T) {
    let proxy = Proxy::new(redis);
    let url = proxy.url();
    let script = "trap '' TERM; echo $$; while :; do sleep 0.02; done";
    let options = ["run", "-u", &url, "--ttl", "6s", "-k", "100ms", "a"];
    let words = [&options[..], &["--", "sh", "-c", script]].concat();
    let mut run = Running::start(&mut redis.redlock(&words));
    let pid = run.line();
    wait_until("it is renewed", || proxy.answered("renew") > 0);
    let done = before(redis, &pid);
    proxy.vanish();
    redis.kill();
    redis.start_again();
    (run, pid, done)
}

/// Says whether that process lives.
fn says_whether_alive(pid: &str) -> String {
    format!("if kill -0 {pid} 2>/dev/null; then echo both; else echo alone; fi")
}

/// Whether another run's command starts while that process lives.
fn overlaps(redis: &Redis, options: &[&str], pid: &str) -> bool {
    let script = says_whether_alive(pid);
    let words = [&["run", "-q"], options, &["a", "--", "sh", "-c", &script]].concat();
    let end = redlock(redis, &words);
    end.assert_code(0);
    end.stdout == "both\n"
}

#[test]
fn the_next_command_starts_when_that_of_a_forgotten_holder_is_dead() {
    let mut redis = Redis::start();
    let (run, pid) = forgotten(&mut redis);
    assert!(!overlaps(&redis, &GRACE, &pid));
    run.finish().assert_code(79);
    assert_nothing_left(&redis);
}

#[test]
fn a_run_that_waited_before_the_restart_starts_when_the_command_of_a_forgotten_holder_is_dead() {
    let mut redis = Redis::start();
    let (run, _, waiter) = forgotten_after(&mut redis, |redis, pid| {
        let script = says_whether_alive(pid);
        let words = [&["run"], &GRACE[..], &["a", "--", "sh", "-c", &script]].concat();
        queued(redis, &words)
    });
    let end = waiter.finish();
    end.assert_exited(0);
    assert_eq!(end.stdout, "alone\n");
    run.finish().assert_code(79);
}

#[test]
fn without_the_option_a_forgotten_holder_has_company_until_its_lease_ends() {
    let mut redis = Redis::start();
    let (run, pid) = forgotten(&mut redis);
    assert!(overlaps(&redis, &[], &pid));
    run.finish().assert_code(79);
}

#[test]
fn a_lock_held_back_after_a_restart_is_so_for_all_runs_which_see_why() {
    let each = |mode: &[&str]| {
        let redis = Redis::start();
        let once = |options: &[&str]| {
            redlock(
                &redis,
                &[&["run", "-n"], mode, options, &["a", "--", "true"]].concat(),
            )
        };
        let why = "ago and may have forgotten a holder (--restart-grace)";
        once(&["--restart-grace", "1h"])
            .assert_code(75)
            .assert_says("lock \"a\" is held back for")
            .assert_says(why);
        once(&[]).assert_code(75).assert_says(why);
        once(&["--restart-grace", "1s"])
            .assert_code(75)
            .assert_says(why);
        redlock(&redis, &["acquire", "-n", "a"])
            .assert_code(75)
            .assert_says(why);
        let plain = redis.cli(&["SET", "redlock:a", "plain", "NX", "PX", "1000"]);
        assert_eq!(plain, "", "a plain client is kept out, too");
        assert!(once(&["-w", "4s"]).code() == Some(64), "-n and -w");
        let waited = [&["run", "-w", "4s"], mode, &["a", "--", "true"]].concat();
        redlock(&redis, &waited)
            .assert_code(75)
            .assert_says("waiting for \"a\", held back for")
            .assert_says("gave up waiting: lock \"a\" is held back for");

        let table = redlock(&redis, &["status"]).stdout;
        assert!(table.contains("held back"), "{table}");
        let detail = redlock(&redis, &["status", "a"]).stdout;
        for text in ["held back, free", "may have forgotten a holder"] {
            assert!(detail.contains(text), "{detail}");
        }
        let json = redlock(&redis, &["status", "--json"]).stdout;
        let json: Value = serde_json::from_str(&json).unwrap();
        let restarted = &json[0]["restarted"];
        assert!(restarted["since"].as_str() < restarted["until"].as_str());
        assert_eq!(
            (&json[0]["held"], &json[0]["frozen"]),
            (&false.into(), &Value::Null)
        );
    };
    std::thread::scope(|scope| {
        for mode in [&[][..], &["--shared"], &["--slots", "3"]] {
            scope.spawn(move || each(mode));
        }
    });
}

#[test]
fn the_waiters_get_it_in_order_as_soon_as_the_grace_is_over() {
    let round = || {
        let redis = Redis::start();
        // The first fence of a name is the server's time of the grant, in microseconds.
        let stamped = ["a", "-c", "echo ${REDLOCK_FENCE}000"];
        let wait = |options: &[&str]| queued(&redis, &[&["run", "-q"], options, &stamped].concat());
        // Also those that don't ask for it.
        let waiters = [wait(&["--restart-grace", "6s"]), wait(&[]), wait(&[])];
        let status = redlock(&redis, &["status", "--json"]).stdout;
        let entry = redis.cli(&["HGET", "{redlock:a}:state", "restarted"]);
        let until = entry.split_once(' ').expect(&status).0.parse().unwrap();
        let starts = waiters.map(|waiter| moment(&waiter.finish().assert_code(0).stdout));
        assert!(starts.is_sorted(), "{starts:?}");
        assert_nothing_left(&redis);
        starts[0]
            .checked_sub(Duration::from_millis(until))
            .expect("not before that")
    };
    let late = std::thread::scope(|scope| {
        let rounds = [(); 5].map(|()| scope.spawn(round));
        rounds.map(|round| round.join().unwrap())
    });
    assert_within(Duration::from_millis(500), late.to_vec());
}

#[test]
fn a_name_that_the_server_knows_is_not_held_back() {
    let mut redis = Redis::with(&["--appendonly", "yes", "--appendfsync", "always"]);
    redlock(&redis, &["run", "a", "--", "true"]).assert_code(0);
    let holder = Gated::start(&redis, &["b"]).ready();
    redis.kill();
    redis.start_again();
    let long = ["run", "-n", "--restart-grace", "1h"];
    let names = |name| redlock(&redis, &[&long[..], &[name, "--", "true"]].concat());
    names("a").assert_code(0).assert_silent();
    names("b").assert_code(75).assert_says("is held by");
    holder.end();
    names("b").assert_code(0).assert_silent();
    // An entry in the queue, a freeze or a skipped run is no grant.
    names("c").assert_code(75).assert_says("held back");
    redlock(&redis, &["run", "-qw", "100ms", "d", "--", "true"]).assert_code(0);
    redis.cli(&["SET", "redlock:e", "plain", "PX", "60000"]);
    redlock(&redis, &["run", "-qw", "100ms", "e", "--", "true"]).assert_code(75);
    redis.cli(&["DEL", "redlock:e"]);
    redlock(&redis, &["freeze", "f", "--reason", "r"]).assert_code(0);
    redlock(&redis, &["thaw", "f"]).assert_code(0);
    for name in ["e", "f"] {
        names(name).assert_code(75).assert_says("held back");
    }
    names("d").assert_code(0).assert_silent();
}

#[test]
fn a_server_that_is_old_enough_holds_nothing_back_and_is_asked_for_its_age_only_for_an_unknown_name()
 {
    let redis = Redis::start();
    wait_until("it is two seconds old", || uptime(&redis) >= 2);
    let before = redis.calls("info");
    let grace = ["run", "-n", "--restart-grace", "500ms", "a", "--", "true"];
    redlock(&redis, &grace).assert_code(0).assert_silent();
    redlock(&redis, &grace).assert_code(0).assert_silent();
    redlock(&redis, &["run", "-n", "b", "--", "true"]).assert_code(0);
    // The tests' own look is one, and the first run's another.
    assert_eq!(redis.calls("info") - before, 2);
}

#[test]
fn neither_force_nor_a_freeze_that_ends_ends_the_grace() {
    let redis = Redis::start();
    let why = "may have forgotten a holder";
    let one = ["run", "-n", "--restart-grace", "1h", "a", "--", "true"];
    let any = ["run", "-n", "a", "--", "true"];
    redlock(&redis, &one).assert_code(75).assert_says(why);
    let waiter = queued(&redis, &["run", "-q", "a", "--", "true"]);
    let freeze = |time| {
        redlock(&redis, &["freeze", "a", "--reason", "r", "--for", time]).assert_code(0);
    };
    freeze("1h");
    redlock(&redis, &any)
        .assert_code(75)
        .assert_says("is frozen");
    redlock(&redis, &["thaw", "a"])
        .assert_code(0)
        .assert_says("is thawed");
    redlock(&redis, &any).assert_code(75).assert_says(why);
    freeze("1s");
    let over = now() + Duration::from_secs(1);
    wait_until("the freeze is over", || now() > over);
    redlock(&redis, &any).assert_code(75).assert_says(why);
    redlock(&redis, &["release", "--force", "a"]);
    redlock(&redis, &any).assert_code(75).assert_says(why);
    redlock(&redis, &["thaw", "a"]).assert_says("was not frozen");
    redlock(&redis, &any).assert_code(75).assert_says(why);
    assert_eq!(redis.queue("a"), [waiter.pid()]);
}

/// Until when the acquire script holds an unknown lock back, on a server of this age (s), at this moment of its
/// clock, for a grace (ms); 0: it grants it.
fn until(redis: &Redis, time: (&str, &str), uptime: &str, grace: &str) -> u64 {
    redis.cli(&["FLUSHALL"]);
    let script = source("acquire")
        .replace(
            "redis.call('TIME')",
            &format!("{{'{}', '{}'}}", time.0, time.1),
        )
        .replace(
            "redis.pcall('INFO', 'server')",
            &format!("'uptime_in_seconds:{uptime}\\r\\nuptime_in_days:0'"),
        );
    let rest = ["token", "30000", "1", WHO, "", "", "0", "", "0", "0", grace];
    let common = ["a", "{redlock:a}:", "200"];
    let words = [&["EVAL", &script, "11"], &KEYS[..], &common, &rest].concat();
    let answer = redis.cli(&words);
    if answer.starts_with("1\n") {
        return 0;
    }
    let last = answer.lines().last().unwrap_or_default();
    let (until, _) = last.split_once(' ').expect(&answer);
    until.parse().expect(&answer)
}

#[test]
fn whole_seconds_and_a_clock_that_was_set_back_never_end_the_grace_too_early() {
    let redis = Redis::start();
    // It says 3 s from the moment when it is just older than 2 s.
    let now = ("1800000010", "500000");
    assert_eq!(until(&redis, now, "3", "5000"), 1_800_000_013_000);
    assert_eq!(until(&redis, now, "0", "5000"), 1_800_000_016_000);
    assert_eq!(until(&redis, now, "6", "5000"), 0);
    assert_eq!(until(&redis, now, "5", "5000"), 1_800_000_011_000);
    assert_eq!(until(&redis, now, "-3600", "5000"), 1_800_000_016_000);
}

#[test]
fn a_longer_grace_counts_and_a_shorter_one_does_not_end_it() {
    let redis = Redis::start();
    let ask = |grace: &str| {
        let rest = ["1", WHO, "", "", "0", "", "0", "0", grace];
        let answer = call(
            &redis,
            "acquire",
            &[&["token", "30000"], &rest[..]].concat(),
        );
        let (until, since) = answer.last().unwrap().split_once(' ').unwrap();
        let [until, since]: [u64; 2] = [until, since].map(|ms| ms.parse().unwrap());
        until - since
    };
    assert_eq!(ask("60000"), 61_000);
    assert_eq!(ask("600000"), 601_000);
    assert_eq!(ask("60000"), 601_000);
}

#[test]
fn a_server_that_does_not_say_its_age_grants_nothing_under_the_option() {
    let redis = Redis::start();
    let grace = ["run", "--restart-grace", "1s", "a", "--", "true"];
    let rules = ["reset", "on", ">secret", "~*", "&*", "+@all", "-info"];
    redis.cli(&[&["ACL", "SETUSER", "jobs"], &rules[..]].concat());
    let url = format!("redis://jobs:secret@127.0.0.1:{}", redis.port);
    outcome(redis.redlock(&grace).env("REDLOCK_URL", &url))
        .assert_code(77)
        .assert_says("isn't permitted to run INFO; add +info to its ACL rules");
    redlock(&redis, &["run", "a", "--", "true"]).assert_code(0);

    let redis = Redis::with(&["--rename-command", "INFO", ""]);
    redlock(&redis, &grace)
        .assert_code(78)
        .assert_says("doesn't report how long it has been up, which --restart-grace needs");
    // It has noted that the request was withdrawn.
    assert_eq!(redis.keys(), ["{redlock:a}:notices"]);
}
