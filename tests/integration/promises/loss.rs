//! The lock is lost, or can't be renewed, while COMMAND runs.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::support::prelude::*;
use crate::support::proxy::{Action, Proxy, Request, load_scripts};

/// Starts a run on the lock "a". Returns at its `ready` line.
fn running(redis: &Redis, options: &str, script: &str) -> Running {
    Running::ready(&mut redis.run(&format!("{options} a"), script))
}

/// Lease of a `STUBBORN` COMMAND. A busy machine has a third of a second to kill COMMAND before the lease ends.
const LEASE: Duration = Duration::from_secs(12);

/// Starts a run of a `STUBBORN` COMMAND after the words `before`. Returns at its `ready` line, with the pid of COMMAND.
fn stubborn(redis: &Redis, before: &[&str], url: &str) -> (Running, i32) {
    let words = words!("run --url {} --ttl 12s a -- perl -e", url, STUBBORN);
    let mut command = redis.redlock(&[before, words].concat());
    let mut run = Running::start(command.arg(redis.dir.path().join("life")));
    let pid = run.pid_after("ready");
    (run, pid)
}

/// Returns the end of the lease of "a" at the server.
fn expiry(redis: &Redis) -> Duration {
    let before = now();
    let left: u64 = redis.cli(&["PTTL", "redlock:a"]).parse().unwrap();
    before + Duration::from_millis(left)
}

/// Delay of a reply: longer than the margin of a lease of 12 s or 20 s, and shorter than the time for a renewal.
const LATE: Duration = Duration::from_millis(600);

#[test]
fn a_lock_that_is_taken_away_stops_command_and_is_not_taken_again() {
    // The TTL, the loss, and what is left. The last one is noticed at once, however long the lease is.
    let rows = "30s; SET redlock:a theirs PX 60000; GET redlock:a; theirs
        30s; DEL redlock:a; EXISTS redlock:a; 0
        30s; FLUSHALL; EXISTS redlock:a; 0
        30s; HSET redlock:b k theirs; HGET redlock:a k; theirs
        1h; DEL redlock:a; EXISTS redlock:a; 0";
    for row in rows.lines() {
        let mut parts = row.trim().split("; ");
        let [ttl, way, then, is_left] = [(); 4].map(|()| parts.next().unwrap());
        let redis = Redis::start();
        let run = running(&redis, &format!("--ttl {ttl} -k 200ms"), IDLE);
        let call = |line: &str| redis.cli(&words(line, &[]));
        call(way);
        // A key of another type.
        if way.starts_with("HSET") {
            call("RENAME redlock:b redlock:a");
        }
        let end = run.finish_saying(79, "lock \"a\" was lost");
        end.assert_says("stopping the command");
        assert_eq!(call(then), is_left, "{way}");
        let left: i64 = call("PTTL redlock:a").parse().unwrap();
        assert!(left < 60_000, "{way}: {left}");
    }
}

#[test]
fn with_on_lost_warn_command_goes_on_and_the_status_is_79() {
    let script = r#"echo ready; until [ -e "$HOME/go" ]; do sleep 0.02; done; echo done"#;
    // --quiet doesn't hide the message, because it is an error. Another client's lock stays.
    for (option, loss, is_left) in [
        ("-v", "DEL redlock:a", ""),
        ("-q", "SET redlock:a me PX 600000", "me"),
    ] {
        let redis = Redis::start();
        let options = format!("--ttl 30s -k 200ms REDLOCK_ON_LOST=warn {option} a");
        let mut run = redis.run(&options, script);
        let mut run = Running::ready(run.env("REDLOCK_HOOK", NOTES_LOSSES));
        await_watchdog(run.pid());
        redis.cli(&words(loss, &[]));
        wait_until("it knows that its lock is lost", || losses(&redis) == 1);
        assert!(!run.has_ended());
        fs::write(redis.dir.path().join("go"), "").unwrap();
        run.expect_line("done");
        run.finish_saying(79, "the command continues without the lock");
        assert_eq!(redis.cli(&["GET", "redlock:a"]), is_left, "{loss}");
    }
}

#[test]
fn when_redis_dies_or_stalls_command_gets_sigterm_and_is_dead_before_the_lease_ends() {
    type Fail = fn(&mut Redis);
    let ways = [Redis::kill as Fail, |redis| redis.stall()];
    side_by_side(ways, |fail| {
        let mut redis = Redis::start();
        let (mut run, _) = stubborn(&redis, &[], &redis.url());
        // Latest expiry at the server, because no renewal succeeds from now on.
        fail(&mut redis);
        let latest_expiry = now() + LEASE;
        run.expect_line("TERM");
        let end = run.finish_saying(79, "was not renewed in time");
        end.assert_says("killing the command");
        assert_dead_before(redis.dir.path(), latest_expiry);
    });
}

#[test]
fn a_renewal_whose_answer_comes_late_gives_no_time_beyond_the_end_of_the_lease_at_the_server() {
    // Later redlock loses its server, or it is stopped itself.
    side_by_side([false, true], |is_stopped| {
        let redis = Redis::start();
        load_scripts(&redis);
        let proxy = Proxy::with(&redis, |request| match &*request.operation {
            "renew" if request.before == 0 => Action::StallReply(LATE),
            "renew" => Action::LoseRequest,
            _ => Action::Pass,
        });
        let (run, command) = stubborn(&redis, &[], &proxy.url());
        // Sent after the renewal, about which the watchdog was informed before.
        wait_until("the lease is renewed", || proxy.count("check") > 0);
        if is_stopped {
            run.suspend();
        }
        let over = expiry(&redis);
        wait_until("it is dead", || !is_alive(command));
        assert_dead_before(redis.dir.path(), over);
        run.resume();
        run.finish().assert_code(79);
    });
}

#[test]
fn a_lease_that_begins_with_a_late_answer_ends_within_the_ttl_of_its_question() {
    // By a request for the lock, and by a request to reenter the lock of the outer run.
    let ways = [
        ("acquire", &[][..]),
        ("renew", &["run", "a", "--", REDLOCK]),
    ];
    side_by_side(ways, |(operation, outer)| {
        let redis = Redis::start();
        load_scripts(&redis);
        let (times, sent_at) = std::sync::mpsc::channel();
        let proxy = Proxy::with(&redis, move |request: &Request| {
            if request.operation == operation && request.before == 0 {
                let _ = times.send(now());
                Action::StallReply(LATE)
            } else if request.operation == "renew" {
                Action::LoseRequest
            } else {
                Action::Pass
            }
        });
        let (mut run, _) = stubborn(&redis, outer, &proxy.url());
        let over = sent_at.recv_timeout(TIMEOUT).unwrap() + LEASE;
        run.expect_line("TERM");
        run.finish().assert_code(79);
        assert_dead_before(redis.dir.path(), over);
    });
}

#[test]
fn a_lease_that_the_work_has_extended_ends_no_later_than_at_the_server_however_late_its_run_hears_of_it()
 {
    let redis = Redis::start();
    load_scripts(&redis);
    let (is_extended, is_heard) = (Arc::new(AtomicBool::new(false)), AtomicBool::new(false));
    let extended = Arc::clone(&is_extended);
    let proxy = Proxy::with(&redis, move |request: &Request| {
        if !extended.load(Ordering::Relaxed) {
            Action::Pass
        } else if is_heard.load(Ordering::Relaxed) {
            Action::LoseRequest
        } else if request.operation == "check" {
            is_heard.store(true, Ordering::Relaxed);
            Action::StallReply(LATE)
        } else {
            Action::Pass
        }
    });
    let mut gate = Gate::new(&redis);
    let life = redis.dir.path().join("life");
    let (url, direct) = (proxy.url(), redis.url());
    let script = r#"echo begin; read go <"$HOME/gate"; redlock -u "$0" extend --for 20s || exit; exec perl -e "$1" "$2""#;
    let options = words!(
        "run -u {} --ttl 12s a -- sh -c",
        &url,
        script,
        &direct,
        STUBBORN
    );
    let mut run = Running::start(redis.redlock(options).arg(&life));
    run.expect_line("begin");
    wait_until("it is told of changes", || proxy.answered("check") > 0);
    let looks = proxy.answered("check");
    is_extended.store(true, Ordering::Relaxed);
    gate.open();
    run.pid_after("ready");
    wait_until("it has heard", || proxy.answered("check") > looks);
    let usual = now() + LEASE;
    let over = expiry(&redis);
    run.expect_line("TERM");
    run.finish().assert_code(79);
    let last = assert_dead_before(redis.dir.path(), over);
    assert!(last > usual, "it hasn't heard that the lease is longer");
}

#[test]
fn a_lock_that_is_taken_away_after_a_renewal_or_a_lost_connection_stops_command_before_the_next_renewal()
 {
    type Lose = fn(&Redis);
    let lose_connection: Lose = |redis| {
        redis.cli(&["CLIENT", "KILL", "TYPE", "normal"]);
    };
    let lose_scripts: Lose = |redis| {
        let before = redis.calls("eval");
        redis.cli(&["SCRIPT", "FLUSH"]);
        wait_until("it is renewed", || redis.calls("eval") > before);
        wait_until("it is told of changes again", || redis.trackers() > 0);
    };
    side_by_side([lose_connection, lose_scripts], |lose| {
        let redis = Redis::start();
        let run = running(&redis, "--ttl 30s -k 1s", IDLE);
        wait_until("it is told of changes", || redis.trackers() > 0);
        lose(&redis);
        redis.cli(&["DEL", "redlock:a"]);
        let lost = Instant::now();
        run.finish().assert_code(79);
        // The next renewal is due only after 10 s.
        assert_took_less(lost, Duration::from_secs(8));
    });
}

#[test]
fn changes_of_other_locks_do_not_wake_a_holder() {
    let redis = Redis::start();
    load_scripts(&redis);
    let proxy = Proxy::new(&redis);
    let _holder = running(&redis, &format!("-u {} --ttl 1h", proxy.url()), IDLE);
    wait_until("it watches its key", || proxy.answered("check") > 0);
    let looks = proxy.count("check");
    for _ in 0..10 {
        ends(&redis, "run b -- true").assert_code(0);
    }
    // The server pushes this change after all earlier ones.
    redis.cli(&["PEXPIRE", "redlock:a", "60000"]);
    wait_until("it looks at its key", || proxy.count("check") > looks);
    assert_eq!(proxy.count("check"), looks + 1, "{proxy:?}");
}
