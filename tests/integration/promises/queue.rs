//! Waiting: the order of turns, and what disturbs it.
//!
//! The timed bounds are those that redlock promises; both ends are taken by the processes
//! themselves, by one clock.

use std::fs;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use nix::sys::signal::Signal;

use crate::support::proxy::{Action, Proxy, load_scripts};
use crate::support::{
    Gated, REDLOCK, Redis, Running, assert_nothing_left, assert_within, moment, now, outcome,
    queued, send, wait_until,
};

const MS: Duration = Duration::from_millis(1);

/// How long a waiter that was granted the lock has to confirm it.
const CLAIM: Duration = Duration::from_secs(2);

/// The heartbeat of the second in the queue.
const HEARTBEAT: Duration = Duration::from_millis(2500);

/// A waiter for the lock "a", in the queue, that writes its label to a file when its turn has come.
fn labelled(redis: &Redis, options: &[&str], label: &str) -> Running {
    let script = format!(r#"echo {label} >>"$HOME/order""#);
    let arguments = [&["run", "-q"], options, &["a", "-c", &script]].concat();
    queued(redis, &arguments)
}

/// The labels so far, in the order of their turns.
fn order(redis: &Redis) -> Vec<String> {
    let text = fs::read_to_string(redis.dir.path().join("order")).unwrap_or_default();
    text.lines().map(str::to_owned).collect()
}

fn all_succeed(runs: impl IntoIterator<Item = Running>) {
    for run in runs {
        run.finish().assert_code(0).assert_silent();
    }
}

/// A waiter on a slow machine may report the wait.
#[track_caller]
fn succeeds_and_says_only_that_it_waits(run: Running) {
    let end = run.finish();
    end.assert_code(0);
    let mut lines = end.stderr.lines();
    let is_wait = |line: &str| line.contains("waiting for \"a\"");
    assert!(lines.all(is_wait), "{end:?}");
}

/// The lock "a" is a plain client's, for long.
fn held_by_a_plain_client(redis: &Redis) {
    assert_eq!(redis.cli(words!("SET redlock:a theirs PX 600000")), "OK");
}

#[test]
fn twenty_waiters_run_in_the_order_in_which_they_came_in_each_of_three_rounds() {
    let redis = Redis::start();
    let mut expected = Vec::new();
    for round in 0..3 {
        let holder = Gated::start(&redis, &["a"]).ready();
        let labels: Vec<String> = (0..20).map(|number| format!("{round}-{number}")).collect();
        let waiters: Vec<Running> = labels
            .iter()
            .map(|label| labelled(&redis, &[], label))
            .collect();
        assert_eq!(redis.cli(&["ZCARD", "{redlock:a}:queue"]), "20");
        holder.end();
        all_succeed(waiters);
        expected.extend(labels);
        assert_eq!(order(&redis), expected);
        assert_nothing_left(&redis);
    }
}

#[test]
fn runs_that_come_again_line_up_behind_the_waiters() {
    let redis = Redis::start();
    let holder = Gated::start(&redis, &["a"]).ready();
    // Each takes three turns, and is in the queue again before it comes to the next.
    let mut loops: Vec<Running> = Vec::new();
    for label in ["x", "y", "z"] {
        // A turn ends when both others wait; the last turns find them in their order.
        let script = format!(
            r#"export turn; for turn in 1 2 3; do redlock run -q a -c 'echo {label} >>"$HOME/order"
                until [ $turn = 3 ] || [ "$(redis-cli -s "$HOME/redis.sock" ZCARD {{redlock:a}}:queue)" = 2 ]
                do sleep 0.01; done'; done"#
        );
        let mut shell = crate::support::directly(&redis, &["sh", "-c", &script]);
        let before = redis.queue("a").len();
        loops.push(Running::start(&mut shell));
        wait_until("it waits", || redis.queue("a").len() > before);
    }
    holder.end();
    all_succeed(loops);
    assert_eq!(order(&redis), ["x", "y", "z"].repeat(3));
    assert_nothing_left(&redis);
}

#[test]
fn a_release_passes_ten_killed_waiters_over_and_grants_the_lock_to_a_live_one() {
    let redis = Redis::start();
    let holder = Gated::start(&redis, &["a"]).ready();
    let mut ahead: Vec<Running> = (0..10)
        .map(|_| queued(&redis, &["run", "-q", "a", "--", "true"]))
        .collect();
    let live = Gated::queued(&redis, &["-q", "a"]);
    ahead.iter_mut().for_each(Running::kill);
    assert_eq!(redis.queue("a").len(), 11, "they left without a word");
    holder.end();
    // Neither free until a heartbeat nor granted to a dead waiter.
    let pid = Some(live.run.pid());
    assert_eq!(redis.holder("a"), pid, "{}", redis.describe_key("a"));
    live.ready().end();
    assert_nothing_left(&redis);
}

#[test]
fn a_killed_waiter_behind_the_head_does_not_disturb_the_others() {
    let redis = Redis::start();
    let holder = Gated::start(&redis, &["a"]).ready();
    let first = labelled(&redis, &[], "first");
    let mut second = labelled(&redis, &[], "second");
    let third = labelled(&redis, &[], "third");
    second.kill();
    holder.end();
    all_succeed([first, third]);
    assert_eq!(order(&redis), ["first", "third"]);
    assert_nothing_left(&redis);
}

#[test]
fn a_stopped_head_costs_the_next_one_a_grant_and_a_heartbeat_and_comes_back_in_its_old_place() {
    let redis = Redis::start();
    let holder = Gated::start(&redis, &["a"]).ready();
    let stopped = labelled(&redis, &[], "stopped");
    let next = Gated::queued(&redis, &["a"]);
    let last = labelled(&redis, &[], "last");
    stopped.suspend();
    let released = holder.end();
    assert_eq!(
        redis.holder("a"),
        Some(stopped.pid()),
        "{}",
        redis.describe_key("a")
    );
    let next = next.ready();
    let waited = now().saturating_sub(released);
    // Not for as long as a lease, which is 30 s.
    assert!(waited < CLAIM + HEARTBEAT + MS * 10_000, "{waited:?}");
    assert_eq!(redis.queue("a"), [last.pid()]);
    stopped.resume();
    let pids = [stopped.pid(), last.pid()];
    wait_until("it is back in its place", || redis.queue("a") == pids);
    next.end();
    all_succeed([stopped, last]);
    assert_eq!(order(&redis), ["stopped", "last"]);
    assert_nothing_left(&redis);
}

#[test]
fn a_run_that_ends_hands_its_lock_on_past_a_thousand_dead_waiters() {
    let redis = Redis::start();
    let holder = Gated::start(&redis, &["a"]).ready();
    let live = Gated::queued(&redis, &["a"]);
    // They seem to live, and have no connection any more.
    let code = "for n = 1, 1050 do
        redis.call('ZADD', '{redlock:a}:queue', n - 2000, 'token' .. n)
        redis.call('HSET', '{redlock:a}:waiters', 'token' .. n, '99999999999999:0:1 1 1 1 {}')
    end";
    redis.cli(&["EVAL", code, "0"]);
    holder.end();
    // It isn't free, for the one behind them to find with its next heartbeat.
    assert_ne!(redis.cli(&["GET", "redlock:a"]), "");
    live.ready().end();
}

#[test]
fn twenty_stopped_waiters_ahead_cost_a_live_one_no_more_than_five_seconds() {
    let redis = Redis::start();
    let holder = Gated::start(&redis, &["a"]).ready();
    let stopped: Vec<Running> = (0..20)
        .map(|number| labelled(&redis, &[], &number.to_string()))
        .collect();
    let live = Gated::queued(&redis, &["a"]);
    let last = labelled(&redis, &[], "last");
    stopped.iter().for_each(Running::suspend);
    let released = holder.end();
    let live = live.ready();
    let waited = now().saturating_sub(released);
    // One grant after the other would take 40 s.
    assert!(waited < Duration::from_secs(20), "{waited:?}");
    // They come back in their old places.
    stopped.iter().for_each(Running::resume);
    let pids: Vec<i32> = stopped.iter().chain([&last]).map(Running::pid).collect();
    wait_until("all are back", || redis.queue("a") == pids);
    live.end();
    all_succeed(stopped);
    all_succeed([last]);
    let mut expected: Vec<String> = (0..20).map(|number| number.to_string()).collect();
    expected.push("last".into());
    assert_eq!(order(&redis), expected);
    assert_nothing_left(&redis);
}

#[test]
fn each_of_eight_leases_that_are_not_released_is_noticed_by_the_next_in_line_when_it_ends() {
    let redis = Redis::start();
    assert_eq!(redis.cli(words!("SET redlock:a theirs PX 1000")), "OK");
    let script = r#"redlock acquire -q a --ttl 1s >"$HOME/$$" && date +%s%N"#;
    let waiters: Vec<Running> = (0..8)
        .map(|_| {
            let mut shell = crate::support::directly(&redis, &["sh", "-c", script]);
            Running::start(&mut shell)
        })
        .collect();
    let ends = waiters.into_iter().map(Running::finish);
    let mut times: Vec<Duration> = ends.map(|end| moment(&end.stdout)).collect();
    times.sort();
    let gaps = times
        .windows(2)
        .map(|pair| pair[1].saturating_sub(pair[0]))
        .collect();
    assert_within(MS * 1500, gaps);
}

#[test]
fn a_waiter_whose_connection_is_killed_when_it_has_just_been_granted_the_lock_runs() {
    let redis = Redis::start();
    let holder = Gated::start(&redis, &["a"]).ready();
    // Longer than an unconfirmed grant lasts.
    let head = queued(&redis, &["run", "a", "-c", "sleep 2"]);
    let clients = redis.cli(&["CLIENT", "LIST"]);
    let subscribed: Vec<&str> = clients
        .lines()
        .filter(|client| client.contains(" sub=1 "))
        .filter_map(|client| client.split([' ', '=']).nth(1))
        .collect();
    let [id] = subscribed[..] else {
        panic!("one should listen: {clients}");
    };
    head.suspend();
    holder.end();
    assert_eq!(
        redis.holder("a"),
        Some(head.pid()),
        "{}",
        redis.describe_key("a")
    );
    assert_eq!(redis.cli(&["CLIENT", "KILL", "ID", id]), "1");
    head.resume();
    succeeds_and_says_only_that_it_waits(head);
    assert_nothing_left(&redis);
}

#[test]
fn a_command_that_was_handed_the_lock_may_extend_it_at_once() {
    let redis = Redis::start();
    let holder = Gated::start(&redis, &["a"]).ready();
    let next = queued(&redis, words!("run a --", REDLOCK, "extend", "--for", "1m"));
    holder.end();
    succeeds_and_says_only_that_it_waits(next);
    assert_nothing_left(&redis);
}

#[test]
fn a_command_that_is_over_before_its_grant_is_confirmed_is_in_the_history_as_any_other() {
    let redis = Redis::start();
    let holder = Gated::start(&redis, &["a"]).ready();
    let next: Vec<Running> = (0..3)
        .map(|_| queued(&redis, &["run", "a", "--", "true"]))
        .collect();
    holder.end();
    next.into_iter()
        .for_each(succeeds_and_says_only_that_it_waits);
    let history = outcome(&mut redis.redlock(&["history", "--json", "a"])).stdout;
    let ok = history.matches(r#""end":"status","status":0"#).count();
    assert_eq!(ok, 4, "{history}");
    assert_nothing_left(&redis);
}

#[test]
fn no_command_starts_on_a_grant_that_the_server_refused_to_write() {
    for waiters in [1, 2] {
        let redis = Redis::start();
        let mut holder = Gated::start(&redis, &["--ttl", "60s", "a"]).ready();
        let next: Vec<Gated> = (0..waiters)
            .map(|_| Gated::queued(&redis, &["a"]))
            .collect();
        // A replica of nothing.
        redis.cli(&["REPLICAOF", "127.0.0.1", "1"]);
        // Its release is refused, and with it the grant.
        holder.open();
        let end = holder.run.finish();
        end.assert_code(0).assert_says("can't release");
        let pids: Vec<i32> = next.iter().map(|next| next.run.pid()).collect();
        assert_eq!(redis.queue("a"), pids);
        redis.cli(&["REPLICAOF", "NO", "ONE"]);
        // As if its lease were over.
        redis.cli(&["DEL", "redlock:a"]);
        for next in next {
            next.end();
        }
        assert_nothing_left(&redis);
    }
}

#[test]
fn a_lock_that_was_handed_on_lasts_no_longer_than_the_ttl_once_it_is_confirmed() {
    let redis = Redis::start();
    let holder = Gated::start(&redis, &["a"]).ready();
    // A grant lasts for 5 s.
    let next = Gated::queued(&redis, &["--ttl", "3s", "a"]);
    holder.end();
    let next = next.ready();
    wait_until("it is confirmed", || {
        redis.cli(&["HVALS", "{redlock:a}:meta"]).contains(" held ")
    });
    let left: i64 = redis.cli(&["PTTL", "redlock:a"]).parse().unwrap();
    assert!(left <= 3000, "{left}");
    next.end();
    assert_nothing_left(&redis);
}

#[test]
fn a_waiter_whose_connection_broke_unnoticed_is_passed_over_and_comes_back_in_its_old_place() {
    let redis = Redis::start();
    let holder = Gated::start(&redis, &["a"]).ready();
    let head = labelled(&redis, &[], "head");
    let next = Gated::queued(&redis, &["a"]);
    let last = labelled(&redis, &[], "last");
    // It can't notice, and Redis doesn't tell it.
    head.suspend();
    let channels = redis.cli(&["PUBSUB", "CHANNELS", "*"]);
    assert_eq!(channels.lines().count(), 3, "{channels}");
    let clients = redis.cli(&["CLIENT", "LIST"]);
    let ids = clients.lines().filter(|client| client.contains(" sub=1 "));
    // The oldest connection is that of the first waiter.
    let first = ids
        .filter_map(|client| client.split([' ', '=']).nth(1)?.parse::<u64>().ok())
        .min();
    redis.cli(&["CLIENT", "KILL", "ID", &first.unwrap().to_string()]);
    holder.end();
    let next = next.ready();
    head.resume();
    let pids = [head.pid(), last.pid()];
    wait_until("it is back in its place", || redis.queue("a") == pids);
    next.end();
    all_succeed([head, last]);
    assert_eq!(order(&redis), ["head", "last"]);
    assert_nothing_left(&redis);
}

/// A network between a waiter and Redis that can lose what Redis says.
struct Network {
    port: u16,
    loses: Arc<AtomicBool>,
    streams: Arc<Mutex<Vec<TcpStream>>>,
}

impl Network {
    fn to(server: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let network = Self {
            port: listener.local_addr().unwrap().port(),
            loses: Arc::default(),
            streams: Arc::default(),
        };
        let (loses, streams) = (Arc::clone(&network.loses), Arc::clone(&network.streams));
        std::thread::spawn(move || {
            while let Ok((client, _)) = listener.accept() {
                let Ok(server) = TcpStream::connect(("127.0.0.1", server)) else {
                    return;
                };
                let clone = |stream: &TcpStream| stream.try_clone().unwrap();
                streams
                    .lock()
                    .unwrap()
                    .extend([clone(&client), clone(&server)]);
                forward(clone(&client), clone(&server), Arc::default());
                forward(server, client, Arc::clone(&loses));
            }
        });
        network
    }

    fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// From now on nothing that Redis says arrives.
    fn lose(&self) {
        self.loses.store(true, Ordering::SeqCst);
    }

    /// Cuts all connections; new ones lose nothing.
    fn cut(&self) {
        for stream in self.streams.lock().unwrap().drain(..) {
            let _ = stream.shutdown(Shutdown::Both);
        }
        self.loses.store(false, Ordering::SeqCst);
    }
}

/// Takes bytes from one to the other, unless they are to be lost.
fn forward(mut from: TcpStream, mut to: TcpStream, loses: Arc<AtomicBool>) {
    std::thread::spawn(move || {
        let mut bytes = [0; 4096];
        while let Ok(read @ 1..) = from.read(&mut bytes) {
            if !loses.load(Ordering::SeqCst) && to.write_all(&bytes[..read]).is_err() {
                break;
            }
        }
        let _ = to.shutdown(Shutdown::Both);
    });
}

#[test]
fn a_lost_message_costs_no_more_than_a_new_connection() {
    let redis = Redis::start();
    let network = Network::to(redis.port);
    let holder = Gated::start(&redis, &["a"]).ready();
    let head = labelled(&redis, &["-u", &network.url()], "head");
    network.lose();
    holder.end();
    assert_eq!(
        redis.holder("a"),
        Some(head.pid()),
        "{}",
        redis.describe_key("a")
    );
    network.cut();
    all_succeed([head]);
    assert_nothing_left(&redis);
}

#[test]
fn when_the_holder_dies_the_head_of_the_queue_has_the_lock_at_its_expiry() {
    let redis = Redis::start();
    let rounds: Vec<(Duration, Running)> = (0..5)
        .map(|round| {
            let name = format!("lock-{round}");
            let key = format!("redlock:{name}");
            assert_eq!(redis.cli(&["SET", &key, "theirs"]), "OK");
            let waiter = redis.redlock(&["run", "-q", &name, "--", "date", "+%s%N"]);
            let waiter = Running::start(&mut { waiter });
            wait_until("it waits", || redis.queue(&name) == [waiter.pid()]);
            // It looks after 1 s and 3 s, and learns of this; it would look again after 5 s, 1.6 s late.
            let expiry = now() + MS * (3300 + 25 * round);
            let at = expiry.as_millis().to_string();
            assert_eq!(redis.cli(&["PEXPIREAT", &key, &at]), "1");
            (expiry, waiter)
        })
        .collect();
    let times = rounds.into_iter().map(|(expiry, waiter)| {
        let end = waiter.finish();
        end.assert_code(0).assert_silent();
        moment(&end.stdout)
            .checked_sub(Duration::from_millis(
                expiry.as_millis().try_into().unwrap(),
            ))
            .expect("not before the lease was over")
    });
    let times = times.collect();
    assert_within(MS * 1000, times);
    assert_nothing_left(&redis);
}

#[test]
fn of_five_deploys_that_supersede_each_other_the_first_and_the_last_run() {
    let redis = Redis::start();
    let first = Gated::start(&redis, &["--supersede", "a"]).ready();
    let mut waiting = Gated::queued(&redis, &["--supersede", "a"]);
    for _ in 3..=5 {
        let newer = Gated::queued(&redis, &["--supersede", "a"]);
        let pid = newer.run.pid();
        let end = waiting.run.finish();
        end.assert_code(75)
            .assert_says("superseded by ")
            .assert_says(&format!("(pid {pid})"));
        assert_eq!(end.stdout, "", "COMMAND was not started");
        assert_eq!(redis.queue("a"), [pid]);
        waiting = newer;
    }
    first.end();
    waiting.ready().end();
    assert_nothing_left(&redis);
}

#[test]
fn a_superseded_waiter_that_did_not_hear_of_it_learns_it_when_it_comes_back() {
    let redis = Redis::start();
    held_by_a_plain_client(&redis);
    let old = queued(&redis, &["run", "a", "-c", r#"echo old >>"$HOME/order""#]);
    old.suspend();
    let new = labelled(&redis, &["--supersede"], "new");
    redis.cli(&["DEL", "redlock:a"]);
    all_succeed([new]);
    old.resume();
    old.finish().assert_code(75).assert_says("superseded by ");
    assert_eq!(order(&redis), ["new"]);
    assert_nothing_left(&redis);
}

#[test]
fn a_waiter_that_gives_up_leaves_the_queue() {
    let redis = Redis::start();
    held_by_a_plain_client(&redis);
    let end = outcome(&mut redis.redlock(words!("run -w 1s a -- echo ran")));
    end.assert_code(75).assert_says("gave up waiting");
    assert_eq!(end.stdout, "");
    let ticket = redis.cli(&["HGET", "{redlock:a}:state", "ticket"]);
    assert_eq!(ticket, "1", "it stood in the queue");
    assert_eq!(redis.cli(&["ZCARD", "{redlock:a}:queue"]), "0");
    assert_eq!(redis.keys(), ["redlock:a", "{redlock:a}:state"]);
}

#[test]
fn a_waiter_that_is_interrupted_leaves_the_queue_at_once() {
    let redis = Redis::start();
    held_by_a_plain_client(&redis);
    for signal in [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP] {
        let waiter = queued(&redis, &["run", "a", "--", "echo", "ran"]);
        waiter.signal(signal);
        let end = waiter.finish();
        end.assert_code(128 + signal as i32);
        assert_eq!(end.stdout, "", "COMMAND was not started");
        assert_eq!(redis.cli(&["ZCARD", "{redlock:a}:queue"]), "0");
        assert_eq!(redis.keys(), ["redlock:a", "{redlock:a}:state"]);
    }
}

#[test]
fn a_waiter_that_is_interrupted_when_it_has_just_been_granted_the_lock_hands_it_on() {
    for signal in [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP] {
        let redis = Redis::start();
        let holder = Gated::start(&redis, &["a"]).ready();
        let interrupted = queued(&redis, &["run", "-q", "a", "--", "echo", "ran"]);
        let next = Gated::queued(&redis, &["-q", "a"]);
        interrupted.suspend();
        holder.end();
        assert_eq!(redis.holder("a"), Some(interrupted.pid()));
        interrupted.signal(signal);
        interrupted.resume();
        let end = interrupted.finish();
        end.assert_code(128 + signal as i32).assert_silent();
        assert_eq!(end.stdout, "", "COMMAND was not started");
        // Neither free until a heartbeat nor left to a grant that runs out.
        let pid = Some(next.run.pid());
        assert_eq!(
            redis.holder("a"),
            pid,
            "{signal}: {}",
            redis.describe_key("a")
        );
        next.ready().end();
        assert_nothing_left(&redis);
    }
}

#[test]
fn a_cancelled_writer_at_the_head_lets_the_readers_behind_it_in_at_once() {
    let redis = Redis::start();
    let reader = Gated::start(&redis, &["--shared", "a"]).ready();
    let writer = queued(&redis, &["run", "-q", "a", "--", "echo", "ran"]);
    let behind = [(); 2].map(|()| Gated::queued(&redis, &["-q", "--shared", "a"]));
    writer.signal(Signal::SIGTERM);
    writer.finish().assert_code(143);
    // While the first reader still holds it.
    for reader in behind.map(Gated::ready) {
        reader.end();
    }
    reader.end();
    assert_nothing_left(&redis);
}

/// A user of the server who may do all but what these rules take away; its URL.
fn user(redis: &Redis, name: &str, rules: &[&str]) -> String {
    let all = ["on", ">secret", "~*", "&*", "+@all"];
    let setting = [&["ACL", "SETUSER", name], &all[..], rules].concat();
    assert_eq!(redis.cli(&setting), "OK");
    format!("redis://{name}:secret@127.0.0.1:{}", redis.port)
}

/// What forbids that messages are heard, or sent.
const WITHOUT_MESSAGES: [(&str, &[&str]); 3] = [
    ("deaf", &["-subscribe"]),
    ("mute", &["-publish"]),
    ("cut-off", &["resetchannels"]),
];

#[test]
fn where_messages_are_forbidden_a_waiter_looks_by_itself() {
    for (name, rules) in WITHOUT_MESSAGES {
        let redis = Redis::start();
        held_by_a_plain_client(&redis);
        let url = user(&redis, name, rules);
        let waiter = labelled(&redis, &["-u", &url], name);
        if name != "mute" {
            let before = redis.calls("evalsha");
            wait_until("it looks again and again", || {
                redis.calls("evalsha") > before + 3
            });
        }
        redis.cli(&["DEL", "redlock:a"]);
        all_succeed([waiter]);
        assert_eq!(order(&redis), [name]);
        assert_nothing_left(&redis);
    }
}

#[test]
fn where_messages_are_forbidden_the_order_of_turns_is_the_same() {
    for (name, rules) in WITHOUT_MESSAGES {
        let redis = Redis::start();
        let url = user(&redis, name, rules);
        let holder = Gated::start(&redis, &["-u", &url, "a"]).ready();
        let waiters = ["1", "2", "3"].map(|label| labelled(&redis, &["-u", &url], label));
        holder.end();
        all_succeed(waiters);
        assert_eq!(order(&redis), ["1", "2", "3"], "{name}");
        assert_nothing_left(&redis);
    }
}

#[test]
fn a_waiter_that_may_not_subscribe_waits_among_others_that_do() {
    let redis = Redis::start();
    let deaf = user(&redis, "deaf", &["-subscribe"]);
    let holder = Gated::start(&redis, &["a"]).ready();
    let waiters = [
        labelled(&redis, &[], "1"),
        labelled(&redis, &["-u", &deaf], "2"),
        labelled(&redis, &[], "3"),
    ];
    holder.end();
    all_succeed(waiters);
    assert_eq!(order(&redis), ["1", "2", "3"]);
    assert_nothing_left(&redis);
}

#[test]
fn a_holder_that_may_not_publish_hands_on_to_others_all_the_same() {
    let redis = Redis::start();
    let mute = user(&redis, "mute", &["-publish"]);
    let holder = Gated::start(&redis, &["-u", &mute, "a"]).ready();
    let waiters = ["1", "2"].map(|label| labelled(&redis, &[], label));
    holder.end();
    all_succeed(waiters);
    assert_eq!(order(&redis), ["1", "2"]);
    assert_nothing_left(&redis);
}

#[test]
fn waiters_survive_a_restart_of_redis_and_keep_their_turns() {
    let mut redis = Redis::start();
    held_by_a_plain_client(&redis);
    let first = labelled(&redis, &[], "first");
    let second = labelled(&redis, &[], "second");
    // So that none is back before the lock is held again.
    first.suspend();
    second.suspend();
    redis.kill();
    redis.start_again();
    held_by_a_plain_client(&redis);
    second.resume();
    wait_until("the second is back", || redis.queue("a") == [second.pid()]);
    first.resume();
    let pids = [first.pid(), second.pid()];
    wait_until("the first is back, before it", || redis.queue("a") == pids);
    redis.cli(&["DEL", "redlock:a"]);
    all_succeed([first, second]);
    assert_eq!(order(&redis), ["first", "second"]);
    assert_nothing_left(&redis);
}

#[test]
fn waiters_survive_a_flush_and_keep_their_turns() {
    let redis = Redis::start();
    held_by_a_plain_client(&redis);
    let first = labelled(&redis, &[], "first");
    let second = labelled(&redis, &[], "second");
    // The second one comes back before the first one, which is stopped.
    send(first.pid(), libc::SIGSTOP);
    // In one go, so that the lock is never free.
    let script = "redis.call('FLUSHALL') return redis.call('SET', KEYS[1], 'theirs')";
    assert_eq!(redis.cli(&["EVAL", script, "1", "redlock:a"]), "OK");
    let pids = [first.pid(), second.pid()];
    wait_until("the second is back", || redis.queue("a") == pids[1..]);
    send(first.pid(), libc::SIGCONT);
    wait_until("both are back", || redis.queue("a").len() == 2);
    assert_eq!(redis.queue("a"), pids);
    redis.cli(&["DEL", "redlock:a"]);
    all_succeed([first, second]);
    assert_eq!(order(&redis), ["first", "second"]);
    assert_nothing_left(&redis);
}

/// What the server publishes to waiters.
struct Messages(Running);

impl Messages {
    fn of(redis: &Redis) -> Self {
        let port = redis.port.to_string();
        let mut listen = std::process::Command::new("redis-cli");
        let mut lines = Running::start(listen.args(["-p", &port, "PSUBSCRIBE", "*"]));
        while lines.line() != "1" {}
        Self(lines)
    }

    /// A message is four lines: its kind, the pattern, the channel and the text.
    fn next(&mut self) -> String {
        let message: Vec<String> = (0..4).map(|_| self.0.line()).collect();
        message[3].clone()
    }

    /// The next one that begins like this.
    fn skip_to(&mut self, beginning: &str) -> String {
        loop {
            let message = self.next();
            if message.starts_with(beginning) {
                return message;
            }
        }
    }
}

#[test]
fn a_release_after_a_second_wakes_the_next_waiter_alone_and_the_others_if_that_one_does_not_confirm()
 {
    let redis = Redis::start();
    let mut messages = Messages::of(&redis);
    let holder = Gated::start(&redis, &["a"]).ready();
    let began = now();
    let suspended = queued(&redis, &["run", "a", "--", "true"]);
    let others = [(); 3].map(|()| queued(&redis, &["run", "a", "--", "true"]));
    // After a shorter hold others are woken at once.
    wait_until("the hold has lasted", || now() > began + 1001 * MS);
    send(suspended.pid(), libc::SIGSTOP);
    holder.end();
    let message = messages.skip_to("granted ");
    assert!(message.ends_with(" soon"), "{message}");
    assert_eq!(
        [messages.next(), messages.next(), messages.next()],
        ["next"; 3]
    );
    // By the server's clock the next one has had 5 ms for itself.
    let number = |text: &str, place| -> u64 {
        let word: Option<&str> = text.split(' ').nth(place);
        word.unwrap().parse().unwrap()
    };
    let notified = redis.cli(&["HGET", "{redlock:a}:state", "notified"]);
    let pause = number(&notified, 0) - number(&message, 3);
    assert!(pause >= 5, "{pause} ms");
    send(suspended.pid(), libc::SIGCONT);
    for run in others.into_iter().chain([suspended]) {
        run.finish().assert_code(0);
    }
    assert_nothing_left(&redis);
}

#[test]
fn a_run_hands_all_its_locks_on_before_it_looks_whether_their_next_holders_confirm() {
    let redis = Redis::start();
    let mut messages = Messages::of(&redis);
    let holder = Gated::start(&redis, &["a", "b"]).ready();
    let began = now();
    let mut waiting = Vec::new();
    for (name, others) in [("a", 1), ("b", 1)] {
        for place in 0..=others {
            waiting.push(Running::start(
                &mut redis.redlock(&["run", name, "--", "true"]),
            ));
            wait_until("it waits", || redis.queue(name).len() > place);
        }
    }
    for first in [&waiting[0], &waiting[2]] {
        send(first.pid(), libc::SIGSTOP);
    }
    wait_until("the hold has lasted", || now() > began + 1001 * MS);
    holder.end();
    messages.skip_to("granted ");
    assert!(messages.next().starts_with("granted "));
    assert_eq!([messages.next(), messages.next()], ["next"; 2]);
    for first in [&waiting[0], &waiting[2]] {
        send(first.pid(), libc::SIGCONT);
    }
    for run in waiting {
        run.finish().assert_code(0);
    }
    assert_nothing_left(&redis);
}

#[test]
fn a_server_that_hangs_when_others_may_have_to_be_woken_keeps_no_run_from_its_end() {
    let redis = Redis::start();
    load_scripts(&redis);
    let proxy = Proxy::with(&redis, |request| {
        if request.operation == "release" && request.before == 1 {
            Action::LoseRequest
        } else {
            Action::Pass
        }
    });
    let url = proxy.url();
    let holder = Gated::start(&redis, &["-u", &url, "REDLOCK_REDIS_TIMEOUT=10m", "a"]).ready();
    let began = now();
    let waiting = [(); 2].map(|()| queued(&redis, &["run", "a", "--", "true"]));
    wait_until("the hold has lasted", || now() > began + 1001 * MS);
    holder.end();
    assert_eq!(proxy.count("release"), 2);
    for run in waiting {
        run.finish().assert_code(0);
    }
    assert_nothing_left(&redis);
}

#[test]
fn of_twenty_that_race_to_wait_behind_few_as_many_wait_as_may_and_the_others_give_up() {
    let redis = Redis::start();
    let holder = Gated::start(&redis, &["a"]).ready();
    let words = [
        "run",
        "-q",
        "--max-queue",
        "3",
        "-E",
        "7",
        "a",
        "--",
        "true",
    ];
    let mut all: Vec<Running> = (0..20)
        .map(|_| Running::start(&mut redis.redlock(&words)))
        .collect();
    wait_until("all but three have given up", || {
        all.iter_mut()
            .filter_map(|run| (!run.has_ended()).then_some(()))
            .count()
            == 3
    });
    assert_eq!(redis.cli(&["ZCARD", "{redlock:a}:queue"]), "3");
    holder.end();
    let ends: Vec<i32> = all
        .into_iter()
        .map(|run| run.finish().code().unwrap())
        .collect();
    assert_eq!(
        ends.iter().filter(|&&code| code == 7).count(),
        17,
        "{ends:?}"
    );
    assert_eq!(
        ends.iter().filter(|&&code| code == 0).count(),
        3,
        "{ends:?}"
    );
    assert_nothing_left(&redis);
}

#[test]
fn a_killed_waiter_covers_no_run_that_comes_after_it() {
    let redis = Redis::start();
    let holder = Gated::start(&redis, &["a"]).ready();
    let mut killed = queued(&redis, &["run", "-q", "a", "--", "true"]);
    let words = ["run", "--max-queue", "1", "a", "--", "true"];
    outcome(&mut redis.redlock(&words))
        .assert_code(75)
        .assert_says("a run waits for lock \"a\" already");
    killed.kill();
    let waiter = queued(&redis, &words);
    holder.end();
    waiter.finish().assert_code(0);
}
