//! Servers that are far away, suspended for a moment or not ready: what is started, and how
//! often they are asked.

use std::sync::mpsc::{Receiver, Sender, channel};

use crate::promises::trouble::stranger;
use crate::support::prelude::*;
use crate::support::proxy::{Action, Proxy, Request, load_scripts};

const MS: Duration = Duration::from_millis(1);

/// The whole lease of the lock "a" is there: its confirmation has arrived.
fn is_confirmed(redis: &Redis) -> bool {
    let left = redis.cli(&["PTTL", "redlock:a"]).parse::<i64>();
    left.is_ok_and(|left| left >= 10_000)
}

/// A holder of the lock "a" on another host: no process here sees it end.
struct Elsewhere<'a> {
    redis: &'a Redis,
    token: String,
}

impl<'a> Elsewhere<'a> {
    fn holding(redis: &'a Redis) -> Self {
        let end = ends(redis, "acquire --ttl 60s --format token a");
        end.assert_code(0);
        let token = end.stdout.trim().to_owned();
        Self { redis, token }
    }

    fn release(self) {
        let mut release = self.redis.redlock(&["release", "a"]);
        outcome(release.env("REDLOCK_TOKEN", self.token)).assert_code(0);
    }
}

/// A run that waits for the lock "a" by way of a proxy, and has got its place.
#[track_caller]
fn waiting(redis: &Redis, proxy: &Proxy, options: &[&str]) -> Gated {
    let url = proxy.url();
    let options = [&["-q", "--url", &url], options, &["a"]].concat();
    let waiter = Gated::queued(redis, &options);
    wait_until("it has a place in the queue", || {
        proxy.answered("enqueue") > 0
    });
    waiter
}

/// Lets COMMAND run until the confirmation of its lock was answered, and one renewal after it.
#[track_caller]
fn finish_once_confirmed(redis: &Redis, proxy: &Proxy, mut waiter: Gated) -> Outcome {
    wait_until("the confirmation was answered, or it has ended", || {
        // A renewal ends with a look whether the lock is still there.
        (is_confirmed(redis) && proxy.answered("check") > 0) || waiter.run.has_ended()
    });
    waiter.open();
    waiter.run.finish()
}

/// Has a run wait for the lock "a" by way of a proxy, hands it over, and lets COMMAND run until its
/// confirmation was answered.
#[track_caller]
fn hand_over(redis: &Redis, proxy: &Proxy, options: &[&str]) -> Outcome {
    let holder = Elsewhere::holding(redis);
    let waiter = waiting(redis, proxy, options);
    holder.release();
    finish_once_confirmed(redis, proxy, waiter)
}

/// From now on what may confirm a grant comes to the server only when the sender is dropped, and is told here before.
fn hold_confirmations(proxy: &Proxy) -> (Receiver<String>, Sender<()>) {
    let (confirmations, confirmed) = channel();
    let (release, released) = channel();
    proxy.set_hook(move |request: &Request| {
        if ["heartbeat", "renew"].contains(&&*request.operation) {
            let _ = confirmations.send(request.operation.clone());
            let _ = released.recv_timeout(TIMEOUT);
        }
        Action::Pass
    });
    (confirmed, release)
}

#[test]
fn over_a_line_of_any_length_a_lock_is_handed_over_and_the_command_runs_to_its_end() {
    side_by_side([50, 200, 400, 800, 1_500], |round_trip| {
        let redis = Redis::left_empty();
        load_scripts(&redis);
        let proxy = Proxy::with_round_trip(&redis, MS * round_trip);
        let end = hand_over(&redis, &proxy, &["REDLOCK_REDIS_TIMEOUT=30s"]);
        assert_eq!(end.code(), Some(0), "{round_trip} ms: {end:?} {proxy:?}");
        end.assert_silent();
    });
}

#[test]
fn far_from_the_server_a_command_starts_when_its_lock_is_confirmed_and_nearby_before() {
    for (round_trip, starts_on_the_grant) in [(0, true), (250, false)] {
        let redis = Redis::left_empty();
        load_scripts(&redis);
        let holder = Elsewhere::holding(&redis);
        let proxy = Proxy::with_round_trip(&redis, MS * round_trip);
        let mut waiter = waiting(&redis, &proxy, &[]);
        // No confirmation arrives before COMMAND was seen.
        let (confirmed, release) = hold_confirmations(&proxy);
        holder.release();
        // A heartbeat may have come before the grant did: it confirms as well.
        let operation = confirmed.recv_timeout(TIMEOUT).unwrap();
        if starts_on_the_grant && operation == "renew" {
            waiter.run.expect_line("ready");
            drop(release);
        } else {
            assert!(!starts_on_the_grant || operation == "heartbeat");
            assert_eq!(operation, "heartbeat", "{round_trip} ms");
            drop(release);
            waiter.run.expect_line("ready");
            assert!(is_confirmed(&redis), "{}", redis.describe_key("a"));
        }
        waiter.open();
        waiter.run.finish().assert_code(0).assert_silent();
    }
}

#[test]
fn where_more_matters_than_the_grant_a_command_starts_when_its_lock_is_confirmed() {
    // Others have to know of the start, its answer says whether to start, or there is a lock before it.
    for options in [
        words!("--supersede --seq 5"),
        words!("--once-per 1h"),
        words!("1st --ttl 60s"),
    ] {
        let redis = Redis::start();
        load_scripts(&redis);
        let holder = Elsewhere::holding(&redis);
        let proxy = Proxy::new(&redis);
        let mut waiter = waiting(&redis, &proxy, options);
        if options.contains(&"1st") {
            wait_until("the first is renewed", || proxy.answered("check") > 0);
        }
        let (confirmed, release) = hold_confirmations(&proxy);
        drop(release);
        holder.release();
        let first = confirmed.recv_timeout(TIMEOUT).unwrap();
        // A renewal would be that of a command that has started.
        assert_eq!(first, "heartbeat", "{options:?}");
        waiter.run.expect_line("ready");
        waiter.open();
        waiter.run.finish().assert_code(0);
    }
}

#[test]
fn a_confirmation_that_is_lost_is_sent_again_and_the_command_does_not_notice() {
    for action in [
        Action::LoseRequest,
        Action::LoseReply,
        Action::Reset,
        Action::ResetReply,
        Action::Cut(5),
    ] {
        let redis = Redis::left_empty();
        load_scripts(&redis);
        let proxy = Proxy::once(&redis, "renew", 0, action);
        let end = hand_over(&redis, &proxy, &["--ttl", "30s"]);
        assert_eq!(end.code(), Some(0), "{action:?}: {end:?} {proxy:?}");
    }
}

#[test]
fn a_stall_of_three_seconds_at_any_step_of_a_wait_is_survived() {
    let three = Duration::from_secs(3);
    let steps = [
        ("acquire", &["REDLOCK_REDIS_TIMEOUT=30s"][..]),
        ("enqueue", &[]),
        ("HELLO", &[]),
        ("SUBSCRIBE", &[]),
        ("heartbeat", &[]),
        ("renew", &[]),
        ("check", &[]),
    ];
    std::thread::scope(|scope| {
        for (step, options) in steps {
            for stall in [Action::Stall(three), Action::StallReply(three)] {
                scope.spawn(move || {
                    let redis = Redis::start();
                    load_scripts(&redis);
                    let (stalls, stalled) = channel();
                    let proxy = Proxy::with(&redis, move |request| {
                        if request.operation != step || request.before > 0 {
                            return Action::Pass;
                        }
                        let _ = stalls.send(Instant::now());
                        stall
                    });
                    let holder = Elsewhere::holding(&redis);
                    let url = proxy.url();
                    let first = words!("-q --ttl 30s --url", &url);
                    let mut waiter = Gated::start(&redis, &[first, options, &["a"]].concat());
                    let begin = || stalled.recv_timeout(TIMEOUT).unwrap();
                    let mut stalled_at = None;
                    if ["renew", "check"].contains(&step) {
                        // What a holder does comes only with the hand-over.
                        waiter.run.wait_until_queued(&redis);
                    } else {
                        stalled_at = Some(begin());
                    }
                    holder.release();
                    waiter.run.expect_line("ready");
                    let stalled_at = stalled_at.unwrap_or_else(begin);
                    let what = || format!("{stall:?} of {step}: {proxy:?}");
                    wait_until(&what(), || {
                        let is_over = stalled_at.elapsed() > three + MS * 500;
                        let is_kept = is_confirmed(&redis) && proxy.answered("check") > 0;
                        (is_over && is_kept) || waiter.run.has_ended()
                    });
                    waiter.open();
                    let end = waiter.run.finish();
                    assert_eq!(end.code(), Some(0), "{}; {end:?}", what());
                    wait_until(&what(), || redis.holder("a").is_none());
                    assert_eq!(redis.queue("a"), [0; 0], "{}", what());
                });
            }
        }
    });
}

#[test]
fn a_holder_whose_key_is_written_all_the_time_looks_at_it_now_and_then() {
    let redis = Redis::start();
    // The next renewal, which would notice it as well, is 40 seconds away.
    let mut holder = Gated::start(&redis, words!("--ttl 2m --shared a")).ready();
    wait_until("it watches its key", || redis.trackers() > 0);
    let before = redis.calls("evalsha");
    let began = Instant::now();
    // As each member of a group may do; the lock stays what it is.
    let write = ["SET", "redlock:a", "redlock:shared", "KEEPTTL"];
    while began.elapsed() < Duration::from_secs(1) {
        redis.cli(&write);
    }
    let looks = redis.calls("evalsha") - before;
    let tenths = u64::try_from(began.elapsed().as_millis()).unwrap() / 100;
    assert!(looks <= 10 + 2 * tenths, "{looks} in {tenths} tenths");
    assert!(!holder.run.has_ended());
    let lost = Instant::now();
    redis.cli(&["SET", "redlock:a", "theirs", "PX", "60000"]);
    holder.run.finish().assert_code(79);
    assert_took_less(lost, Duration::from_secs(30));
}

#[test]
fn a_nested_run_whose_first_answer_takes_more_than_a_second_waits_and_runs() {
    let redis = Redis::start();
    load_scripts(&redis);
    let stall = Action::StallReply(MS * 1_100);
    let proxy = Proxy::once(&redis, "acquire", 0, stall);
    let url = proxy.url();
    let other = Gated::start(&redis, &["b"]).ready();
    let outer = words!("run -q a -- env REDLOCK_REDIS_TIMEOUT=30s", REDLOCK);
    let inner = words!("run -q --url {} b -- echo ran", &url);
    let run = Running::start(&mut redis.redlock(&[outer, inner].concat()));
    wait_until("it waits, or has ended", || {
        redis.queue("b").len() == 1 || redis.holder("a").is_none() && proxy.count("acquire") > 0
    });
    other.end();
    run.finish().assert_silent().assert_printed(0, "ran\n");
}

#[test]
fn a_run_that_a_signal_ends_in_a_renewal_has_time_to_log_in_again_far_away_for_its_release() {
    let redis = Redis::with(&["--user", "far", "on", ">pw", "~*", "+@all"]);
    load_scripts(&redis);
    let proxy = Proxy::with(&redis, |request| match &*request.operation {
        "renew" => Action::LoseReply,
        "AUTH" if request.before > 0 => Action::StallReply(MS * 300),
        _ => Action::Pass,
    });
    let url = proxy.url().replace("redis://", "redis://far:pw@");
    let words = words!("--url {} run --ttl 20s a -- sleep 600", &url);
    let run = Running::start(&mut redis.redlock(words));
    wait_until("it renews", || proxy.count("renew") > 0);
    send(run.pid(), libc::SIGINT);
    run.finish().assert_killed_by(libc::SIGINT);
    assert_eq!(redis.holder("a"), None);
}

#[test]
fn a_run_that_a_signal_ends_waits_for_its_release_over_a_line_of_more_than_half_a_second() {
    side_by_side([700, 1_200], |round_trip| {
        let redis = Redis::start();
        load_scripts(&redis);
        let proxy = Proxy::with_round_trip(&redis, MS * round_trip);
        let mut run = redis.run("--ttl 1h a", "echo ready; exec sleep 600");
        run.env("REDLOCK_URL", proxy.url());
        let run = Running::ready(&mut run);
        // The first renewal, and the look that follows it, are over.
        wait_until("it was renewed", || proxy.answered("check") > 0);
        std::thread::sleep(MS * 2 * round_trip);
        send(run.pid(), libc::SIGINT);
        run.finish().assert_killed_by(libc::SIGINT).assert_silent();
        assert_eq!(redis.holder("a"), None, "{round_trip} ms");
    });
}

/// A way to a server that vanishes when it is asked for a lock for the second time, or for the first time.
fn vanishing(redis: &Redis, before: usize) -> Proxy {
    let proxy = Proxy::new(redis);
    let vanish = proxy.vanishing();
    proxy.set_hook(move |request| match &*request.operation {
        "acquire" if request.before >= before => {
            vanish();
            Action::LoseRequest
        }
        _ => Action::Pass,
    });
    proxy
}

#[test]
fn a_command_never_runs_without_a_lock_once_the_server_has_answered() {
    let redis = Redis::start();
    load_scripts(&redis);
    // Long enough for a first answer: without that, COMMAND would run.
    let options = "--on-unreachable run --ttl 6s REDLOCK_REDIS_TIMEOUT=5s";
    let run = |proxy: &Proxy, names: &str| {
        let mut run = redis.run(&format!("{options} {names}"), "echo ran");
        run.env("REDLOCK_URL", proxy.url());
        Running::start(&mut run)
    };
    let holder = Gated::start(&redis, &["a"]).ready();
    // It answers first, and is gone while one waits.
    let proxy = Proxy::new(&redis);
    let mut waiter = run(&proxy, "a");
    waiter.wait_until_queued(&redis);
    proxy.vanish();
    waiter.finish().assert_printed(69, "");
    // The first of two locks is taken, and the server is gone before the second is.
    let end = run(&vanishing(&redis, 1), "b c").finish();
    // What it held is lost where that takes longer than the lease.
    assert!(matches!(end.code(), Some(69 | 79)), "{end:?}");
    assert_eq!(end.stdout, "");
    holder.end();
}

#[test]
fn a_nested_run_whose_server_is_gone_once_it_has_said_what_the_job_holds_never_runs_without_a_lock()
{
    let redis = Redis::start();
    load_scripts(&redis);
    let proxy = vanishing(&redis, 0);
    let url = proxy.url();
    let outer = words!("run a -- env REDLOCK_REDIS_TIMEOUT=5s", REDLOCK);
    let options = words!("run --url {} --on-unreachable run --ttl 6s", &url);
    let words = [outer, options, words!("a b -- echo ran")].concat();
    let end = outcome(&mut redis.redlock(&words));
    // What it reuses is lost where that takes longer than the lease.
    assert!(matches!(end.code(), Some(69 | 79)), "{end:?}");
    assert_eq!(end.stdout, "");
}

#[test]
fn a_server_that_can_not_do_it_now_is_not_one_that_is_out_of_reach() {
    let redis = Redis::start();
    // A server that loads its data says so to whatever is asked.
    let loading = stranger(b"", b"-LOADING Redis is loading the dataset in memory\r\n");
    let run = "run -n --on-unreachable run a -- echo ran";
    redis.play(&format!(
        "CONFIG SET maxmemory 1
        69 redlock {run} → … no memory left (maxmemory)
        CONFIG SET maxmemory 0
        REPLICAOF 127.0.0.1 1
        78 redlock {run} → … is a read-only replica; use the URL of its primary
        REPLICAOF NO ONE
        69 redlock -u redis://127.0.0.1:{loading} {run} → … it is loading its data"
    ));
}
