//! Waiting: the order of turns, and what disturbs it.
//!
//! redlock promises the timed bounds. The processes themselves take both times, on one clock.

use crate::support::prelude::*;

const MS: Duration = Duration::from_millis(1);

/// Queues a waiter for the lock "a" that writes its label to a file at its turn.
fn labelled(redis: &Redis, options: &[&str], label: &str) -> Running {
    let script = format!(r#"echo {label} >>"$HOME/order""#);
    let arguments = [&["run", "-q"], options, &["a", "-c", &script]].concat();
    queued(redis, &arguments)
}

/// Returns the labels so far, in the order of their turns.
fn order(redis: &Redis) -> Vec<String> {
    let text = fs::read_to_string(redis.dir.path().join("order")).unwrap_or_default();
    text.lines().map(str::to_owned).collect()
}

fn all_succeed(runs: impl IntoIterator<Item = Running>) {
    for run in runs {
        run.finish().assert_code(0).assert_silent();
    }
}

/// Asserts that a run succeeds and prints at most that it waits, which it does on a slow machine.
#[track_caller]
fn succeeds_and_says_only_that_it_waits(run: Running) {
    let end = run.finish();
    end.assert_code(0);
    let mut lines = end.stderr.lines();
    let is_wait = |line: &str| line.contains("waiting for \"a\"");
    assert!(lines.all(is_wait), "{end:?}");
}

/// Lets a plain client hold the lock "a" for long.
fn held_by_a_plain_client(redis: &Redis) {
    assert_eq!(redis.cli(words!("SET redlock:a theirs PX 600000")), "OK");
}

/// Asserts that a run holds the lock "a" or was granted it.
#[track_caller]
fn assert_has_it(redis: &Redis, run: &Running) {
    let holder = redis.holder("a");
    assert_eq!(holder, Some(run.pid()), "{}", redis.describe_key("a"));
}

/// Returns the ids of the connections with a subscription, the oldest first.
fn subscribers(redis: &Redis) -> Vec<u64> {
    let clients = redis.cli(&["CLIENT", "LIST"]);
    let subscribed = clients.lines().filter(|client| client.contains(" sub=1 "));
    let ids = subscribed.filter_map(|client| client.split([' ', '=']).nth(1)?.parse().ok());
    let mut ids: Vec<u64> = ids.collect();
    ids.sort_unstable();
    ids
}

#[test]
fn twenty_waiters_run_in_the_order_in_which_they_came() {
    let redis = Redis::start();
    let holder = Gated::start(&redis, &["a"]).ready();
    let labels: Vec<String> = (0..20).map(|number| number.to_string()).collect();
    let waiters = labels.iter().map(|label| labelled(&redis, &[], label));
    let waiters: Vec<Running> = waiters.collect();
    assert_eq!(redis.cli(&["ZCARD", "{redlock:a}:queue"]), "20");
    holder.end();
    all_succeed(waiters);
    assert_eq!(order(&redis), labels);
    assert_nothing_left(&redis);
}

#[test]
fn a_release_passes_ten_killed_waiters_over_and_grants_the_lock_to_a_live_one() {
    let redis = Redis::left_empty();
    let holder = Gated::start(&redis, &["a"]).ready();
    let mut ahead: Vec<Running> = (0..10)
        .map(|_| queued(&redis, &["run", "-q", "a", "--", "true"]))
        .collect();
    let live = Gated::queued(&redis, &["-q", "a"]);
    ahead.iter_mut().for_each(Running::kill);
    assert_eq!(redis.queue("a").len(), 11, "they left without a word");
    holder.end();
    // The lock is neither free until a heartbeat nor granted to a dead waiter.
    assert_has_it(&redis, &live.run);
    live.ready().end();
}

#[test]
fn suspended_waiters_delay_a_live_one_briefly_and_keep_their_places() {
    for count in [1, 3] {
        let redis = Redis::left_empty();
        let holder = Gated::start(&redis, &["a"]).ready();
        let stopped: Vec<Running> = (0..count)
            .map(|number| labelled(&redis, &[], &number.to_string()))
            .collect();
        let live = Gated::queued(&redis, &["a"]);
        let last = labelled(&redis, &[], "last");
        stopped.iter().for_each(Running::suspend);
        let released = holder.end();
        assert_has_it(&redis, &stopped[0]);
        let live = live.ready();
        let waited = now().saturating_sub(released);
        // A grant lasts 5 s, and each later one 2 s. A lease would take 30 s.
        assert!(waited < MS * 14_500, "{count}: {waited:?}");
        if count == 1 {
            assert_eq!(redis.queue("a"), [last.pid()]);
        }
        stopped.iter().for_each(Running::resume);
        let pids: Vec<i32> = stopped.iter().chain([&last]).map(Running::pid).collect();
        wait_until("all are back", || redis.queue("a") == pids);
        live.end();
        all_succeed(stopped.into_iter().chain([last]));
        let mut expected: Vec<String> = (0..count).map(|number| number.to_string()).collect();
        expected.push("last".into());
        assert_eq!(order(&redis), expected);
    }
}

#[test]
fn a_run_that_ends_hands_its_lock_on_past_a_thousand_dead_waiters() {
    let redis = Redis::start();
    let holder = Gated::start(&redis, &["a"]).ready();
    let live = Gated::queued(&redis, &["a"]);
    // At the head of the queue; they seem alive, but have no connection any more.
    let code = "for n = 1, 1050 do
        redis.call('ZADD', '{redlock:a}:queue', n - 2000, 'token' .. n)
        redis.call('HSET', '{redlock:a}:waiters', 'token' .. n, '99999999999999:2000 1 1 1 {}')
    end";
    redis.cli(&["EVAL", code, "0"]);
    holder.end();
    // The lock isn't free, so the live waiter behind the dead ones needn't find it with its next heartbeat.
    assert_ne!(redis.cli(&["GET", "redlock:a"]), "");
    live.ready().end();
}

#[test]
fn a_command_may_extend_its_lock_and_end_before_its_grant_is_confirmed_and_has_its_place_in_the_history()
 {
    let redis = Redis::left_empty();
    let holder = Gated::start(&redis, &["a"]).ready();
    let extend = words!("{} extend --for 1m", REDLOCK);
    let commands = [extend, &["true"], &["true"]];
    let next = commands.map(|command| queued(&redis, &[&["run", "a", "--"], command].concat()));
    holder.end();
    next.into_iter()
        .for_each(succeeds_and_says_only_that_it_waits);
    let history = ends(&redis, "history --json a").stdout;
    let ok = history.matches(r#""end":"status","status":0"#).count();
    assert_eq!(ok, 4, "{history}");
}

#[test]
fn a_waiter_whose_connection_broke_unnoticed_is_passed_over_and_comes_back_in_its_old_place() {
    let redis = Redis::left_empty();
    let holder = Gated::start(&redis, &["a"]).ready();
    let head = labelled(&redis, &[], "head");
    let next = Gated::queued(&redis, &["a"]);
    let last = labelled(&redis, &[], "last");
    // The waiter can't notice, and Redis doesn't notify it.
    head.suspend();
    // The oldest connection belongs to the first waiter.
    let ids = subscribers(&redis);
    assert_eq!(ids.len(), 3);
    redis.cli(&["CLIENT", "KILL", "ID", &ids[0].to_string()]);
    holder.end();
    let next = next.ready();
    head.resume();
    let pids = [head.pid(), last.pid()];
    wait_until("it is back in its place", || redis.queue("a") == pids);
    next.end();
    all_succeed([head, last]);
    assert_eq!(order(&redis), ["head", "last"]);
}

#[test]
fn when_the_holder_dies_the_head_of_the_queue_has_the_lock_at_its_expiry() {
    let redis = Redis::left_empty();
    let rounds = [0, 1, 2, 3, 4].map(|round| {
        let name = format!("lock-{round}");
        let key = format!("redlock:{name}");
        assert_eq!(redis.cli(&["SET", &key, "theirs"]), "OK");
        let run = words!("run -q {} -- date +%s%N", &name);
        let waiter = Running::start(&mut redis.redlock(run));
        wait_until("it waits", || redis.queue(&name) == [waiter.pid()]);
        // The waiter checks after 1 s and 3 s and learns the expiry; its next check would come after 5 s, 1.6 s late.
        let expiry = (now() + MS * (3300 + 25 * round)).as_millis();
        let expiry: u64 = expiry.try_into().unwrap();
        assert_eq!(redis.cli(&["PEXPIREAT", &key, &expiry.to_string()]), "1");
        (Duration::from_millis(expiry), waiter)
    });
    let times = rounds.map(|(expiry, waiter)| {
        let end = waiter.finish();
        end.assert_code(0).assert_silent();
        let waited = moment(&end.stdout).checked_sub(expiry);
        waited.expect("not before the lease was over")
    });
    assert_within(MS * 1000, times.into());
}

#[test]
fn a_waiter_that_gives_up_leaves_the_queue() {
    let redis = Redis::start();
    held_by_a_plain_client(&redis);
    let end = ends(&redis, "run -w 1s a -- echo ran");
    end.assert_printed(75, "").assert_says("gave up waiting");
    let ticket = redis.cli(&["HGET", "{redlock:a}:state", "ticket"]);
    assert_eq!(ticket, "1", "it stood in the queue");
    assert_eq!(redis.cli(&["ZCARD", "{redlock:a}:queue"]), "0");
    assert_eq!(redis.keys(), ["redlock:a", "{redlock:a}:state"]);
}

#[test]
fn a_waiter_that_is_interrupted_when_it_has_just_been_granted_the_lock_hands_it_on() {
    for signal in [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP] {
        let redis = Redis::left_empty();
        let holder = Gated::start(&redis, &["a"]).ready();
        let interrupted = queued(&redis, &["run", "-q", "a", "--", "echo", "ran"]);
        let next = Gated::queued(&redis, &["-q", "a"]);
        interrupted.suspend();
        holder.end();
        assert_has_it(&redis, &interrupted);
        interrupted.signal(signal);
        interrupted.resume();
        let end = interrupted.finish();
        end.assert_code(128 + signal as i32).assert_silent();
        assert_eq!(end.stdout, "", "COMMAND was not started");
        // The lock is neither free until a heartbeat nor left to a grant that expires.
        assert_has_it(&redis, &next.run);
        next.ready().end();
    }
}

#[test]
fn waiters_keep_their_turns_though_the_server_has_forgotten_all_and_the_second_is_back_first() {
    type Forget = fn(&mut Redis);
    let restart: Forget = |redis| {
        redis.kill();
        redis.start_again();
    };
    let flush: Forget = |redis| assert_eq!(redis.cli(&["FLUSHALL"]), "OK");
    for forget in [restart, flush] {
        let mut redis = Redis::left_empty();
        held_by_a_plain_client(&redis);
        let [first, second] = ["first", "second"].map(|label| labelled(&redis, &[], label));
        // Suspended, so that neither is back before the lock is held again.
        first.suspend();
        second.suspend();
        forget(&mut redis);
        held_by_a_plain_client(&redis);
        let pids = [first.pid(), second.pid()];
        second.resume();
        wait_until("the second is back", || redis.queue("a") == pids[1..]);
        first.resume();
        wait_until("both are back", || redis.queue("a").len() == 2);
        assert_eq!(redis.queue("a"), pids);
        redis.cli(&["DEL", "redlock:a"]);
        all_succeed([first, second]);
        assert_eq!(order(&redis), ["first", "second"]);
    }
}

#[test]
fn waiters_keep_their_order_without_permission_for_messages() {
    // The holder and three waiters; `true` for the restricted ones.
    for (rule, limited) in [
        ("-subscribe", [true; 4]),
        ("-publish", [true; 4]),
        ("resetchannels", [true; 4]),
        ("-subscribe", [false, false, true, false]),
        ("-publish", [true, false, false, false]),
    ] {
        let redis = Redis::left_empty();
        let user = words!("ACL SETUSER limited on >secret ~* &* +@all {}", rule);
        assert_eq!(redis.cli(user), "OK");
        let login = format!("redis://limited:secret@127.0.0.1:{}", redis.port);
        let urls = [redis.url(), login];
        let [url, others @ ..] = limited.map(|is_limited| &*urls[usize::from(is_limited)]);
        let holder = Gated::start(&redis, &["-u", url, "a"]).ready();
        let mut label = 0;
        let waiters = others.map(|url| {
            label += 1;
            labelled(&redis, &["-u", url], &label.to_string())
        });
        holder.end();
        all_succeed(waiters);
        assert_eq!(order(&redis), ["1", "2", "3"], "{rule} {limited:?}");
    }
}

#[test]
fn max_queue_holds_for_twenty_concurrent_runs() {
    let redis = Redis::left_empty();
    let holder = Gated::start(&redis, &["a"]).ready();
    let words = words!("run -q --max-queue 3 -E 7 a -- true");
    let mut all = [(); 20].map(|()| Running::start(&mut redis.redlock(words)));
    wait_until("all but three have given up", || {
        let ended = all.iter_mut().map(|run| usize::from(run.has_ended()));
        ended.sum::<usize>() == 17
    });
    assert_eq!(redis.cli(&["ZCARD", "{redlock:a}:queue"]), "3");
    holder.end();
    let mut ends = all.map(|run| run.finish().code().unwrap());
    ends.sort_unstable();
    assert_eq!(ends[..3], [0; 3], "{ends:?}");
    assert_eq!(ends[3..], [7; 17], "{ends:?}");
}
