//! Work elsewhere under a lock: it ends with the run that holds the lock, and only then is the lock handed over.
//!
//! The tests start the guards themselves, so that these aren't part of the run's process tree, as over ssh or in a container.

use crate::promises::queue::add_dead_waiters;
use crate::support::prelude::*;
use crate::support::proxy::{Action, Proxy, Request, load_scripts};

/// A run of lock "a" whose COMMAND prints `REDLOCK_HELD` for guards, and ends when the test lets it.
struct Holder {
    run: Running,
    held: String,
}

const SAYS_HELD: &str = r#"echo "$REDLOCK_HELD"; while [ ! -e "$HOME/end" ]; do sleep 0.01; done"#;

impl Holder {
    fn start(redis: &Redis, options: &[&str]) -> Self {
        let words = [&["run"], options, &["-c", SAYS_HELD]].concat();
        Self::of(&mut redis.redlock(&words))
    }

    /// Starts a command whose first line is the `REDLOCK_HELD` of its lock.
    fn of(command: &mut Command) -> Self {
        let mut run = Running::start(command);
        let held = run.line();
        Self { run, held }
    }

    /// Starts a guard whose work ends only on request. Returns when the work has begun.
    #[track_caller]
    fn slow_guard(&self, redis: &Redis) -> Running {
        let mut guard = self.guard(redis, &["-k", "60s"], TAKES_ITS_TIME);
        guard.expect_line("started");
        guard
    }

    /// Starts a guard of its lock.
    fn guard(&self, redis: &Redis, options: &[&str], script: &str) -> Running {
        let words = [&["guard"], options, &["-c", script]].concat();
        let mut command = redis.redlock(&words);
        Running::start(command.env("REDLOCK_HELD", &self.held))
    }

    /// Lets COMMAND end.
    fn let_end(redis: &Redis) {
        fs::write(redis.dir.path().join("end"), "").unwrap();
    }

    /// Lets COMMAND end, and waits for the end of the run.
    #[track_caller]
    fn end(self, redis: &Redis) {
        Self::let_end(redis);
        self.run.finish().assert_exited(0);
    }
}

/// Script of work that reports SIGTERM, and ends when the test lets it.
const TAKES_ITS_TIME: &str = r#"
    trap 'echo asked' TERM
    echo started
    while [ ! -e "$HOME/over" ]; do sleep 0.01 & wait $!; done
    echo over"#;

/// Starts a run with these options and names, and a slow guard.
fn guarded(redis: &Redis, options: &[&str]) -> (Holder, Running) {
    let holder = Holder::start(redis, options);
    let guard = holder.slow_guard(redis);
    (holder, guard)
}

/// Waits until only the guards keep the lock.
fn await_end_of_run(redis: &Redis) {
    wait_until("the run is over for the server", || {
        holder(redis, "kept") == true
    });
}

/// Lets the run of a slow guard end, so that only the guard keeps the lock.
fn leave_lock_to(guard: &mut Running, redis: &Redis) {
    Holder::let_end(redis);
    guard.expect_line("asked");
    await_end_of_run(redis);
}

fn let_guards_end(redis: &Redis) {
    fs::write(redis.dir.path().join("over"), "").unwrap();
}

/// Returns a field of the only holder of lock "a".
fn holder(redis: &Redis, field: &str) -> serde_json::Value {
    let all = json(redis, "status --json a");
    all[0]["holders"][0][field].clone()
}

fn guards(redis: &Redis) -> usize {
    holder(redis, "guards").as_array().map_or(0, Vec::len)
}

#[test]
fn the_next_holder_starts_and_the_run_returns_after_the_last_guard_has_ended() {
    let redis = Redis::left_empty();
    let script = r#"exec redlock run --ttl 120s a -c "$0" 2>&1"#;
    let mut holder = Holder::of(&mut directly(&redis, &["sh", "-c", script, SAYS_HELD]));
    let mut guard = holder.slow_guard(&redis);
    let mut waiter = queued(&redis, &["run", "a", "--", "echo", "ran"]);
    leave_lock_to(&mut guard, &redis);
    let line = holder.run.line();
    assert!(line.contains("is kept until its guards"), "{line}");
    assert!(!waiter.has_ended() && !holder.run.has_ended());
    assert_eq!(guards(&redis), 1);
    let_guards_end(&redis);
    let began = Instant::now();
    guard.expect_line("over");
    holder.run.finish().assert_exited(0);
    assert_took_less(began, Duration::from_secs(4));
    waiter.finish().assert_printed(0, "ran\n");
    guard.finish_saying(79, "the run that held lock \"a\" is over");
    assert_has(&ends(&redis, "history a").stdout, &["1 guard"]);
}

#[test]
fn a_guard_that_ends_by_itself_changes_nothing_for_the_run_whichever_of_its_answers_are_lost() {
    for (operation, action) in [
        ("guard", Action::Pass),
        ("guard", Action::ResetReply),
        ("leave", Action::Reset),
    ] {
        let redis = Redis::left_empty();
        load_scripts(&redis);
        let holder = Holder::start(&redis, &["--ttl", "120s", "a"]);
        let proxy = Proxy::once(&redis, operation, 0, action);
        let guard = holder.guard(&redis, &["-u", &proxy.url()], "echo ran; exit 5");
        guard.finish().assert_silent().assert_printed(5, "ran\n");
        let is_lost = action != Action::Pass;
        assert!(proxy.count(operation) > usize::from(is_lost), "{proxy:?}");
        assert_eq!(self::holder(&redis, "kept"), false);
        assert_eq!(guards(&redis), 0);
        Holder::let_end(&redis);
        holder.run.finish().assert_exited(0).assert_silent();
    }
}

#[test]
fn guarded_work_finds_the_lock_and_what_it_starts_reenters_it_and_releases_nothing() {
    let redis = Redis::start();
    let holder = Holder::start(&redis, &["a"]);
    let script = r#"
        redlock extend a && echo "checked $REDLOCK_NAME $REDLOCK_FENCE"
        redlock run -n a -- echo nested
        redlock guard -- echo "guarded again"
        redlock release; echo "released $?""#;
    let mut guard = holder.guard(&redis, &[], script);
    let fence = redis.cli(&["HGET", "{redlock:a}:state", "fence"]);
    guard.expect_line(&format!("checked a {fence}"));
    for line in ["nested", "guarded again", "released 0"] {
        guard.expect_line(line);
    }
    guard.finish().assert_exited(0);
    assert_eq!(redis.holder("a"), Some(holder.run.pid()));
    holder.end(&redis);
}

#[test]
fn without_a_lock_to_guard_nothing_is_started_and_nothing_is_acquired() {
    let redis = Redis::left_empty();
    let refused = |held: &str, options: &[&str], says: &str| {
        let words = [&["guard"], options, &["--", "echo", "never"]].concat();
        let mut command = redis.redlock(&words);
        let end = outcome(command.env("REDLOCK_HELD", held));
        end.assert_printed(79, "").assert_says(says);
    };
    refused("", &[], "REDLOCK_HELD isn't set here");
    refused("a=no-such-token", &[], "is not held");
    assert_eq!(redis.holder("a"), None);
    let holder = Holder::start(&redis, &["a"]);
    refused(&holder.held, &["b"], "this job doesn't hold \"b\"");
    refused("a=another-token", &["a"], "holds it now");
    let held = holder.held.clone();
    holder.end(&redis);
    refused(&held, &[], "lock \"a\"");
}

#[test]
fn a_guard_of_all_locks_has_them_in_the_order_of_the_run() {
    let redis = Redis::start();
    let script = r#"redlock guard -c 'echo "$REDLOCK_NAME"'"#;
    outcome(&mut redis.run("b a c", script)).assert_printed(0, "b a c\n");
}

#[test]
fn a_guard_reads_the_locks_from_its_input_and_leaves_the_rest_to_its_command() {
    let redis = Redis::start();
    let script = r#"printf '%s\nfirst\nsecond\n' "$REDLOCK_HELD" |
        env -u REDLOCK_NAME -u REDLOCK_TOKEN -u REDLOCK_HELD redlock guard --held - -c '
            read -r line; echo "$line"; cat; echo "$REDLOCK_NAME"; redlock extend b; redlock extend "a\$c"'"#;
    let end = outcome(&mut redis.run("b a$c", script));
    end.assert_exited(0).assert_silent();
    let lines: Vec<&str> = end.stdout.lines().collect();
    assert_eq!(lines, ["first", "second", "a$c b"]);
}

#[test]
fn a_guard_reads_the_locks_from_a_file_and_guards_those_that_are_named() {
    let redis = Redis::start();
    let holder = Holder::start(&redis, &["a", "b"]);
    let path = redis.dir.path().join("held");
    fs::write(&path, format!("{}\n", holder.held)).unwrap();
    let file = path.to_str().unwrap();
    let words = words!("guard --held {} b -- printenv REDLOCK_NAME", file);
    outcome(&mut redis.redlock(words)).assert_printed(0, "b\n");
    holder.end(&redis);
}

#[test]
fn a_value_of_held_that_names_no_lock_is_refused_and_not_repeated() {
    let redis = Redis::start();
    let path = redis.dir.path().join("held");
    let file = path.to_str().unwrap();
    let other = "doesn't contain the value of REDLOCK_HELD";
    for (text, status, says) in [
        ("", 79, "is empty"),
        ("\n", 79, "is empty"),
        ("hunter2", 64, other),
        ("a=hunter2 b", 64, other),
        ("a=hunter2\nb=hunter2", 64, other),
        ("a=hunter2", 79, "is not held"),
    ] {
        fs::write(&path, text).unwrap();
        let end = outcome(&mut redis.redlock(words!("guard --held {} -- echo never", file)));
        end.assert_exited(status).assert_says(says);
        assert_eq!(end.stdout, "");
        assert!(!end.stderr.contains("hunter2"), "{end:?}");
    }
    fs::remove_file(&path).unwrap();
    let end = outcome(&mut redis.redlock(words!("guard --held {} -- echo never", file)));
    end.assert_said(64, file);
    for (script, status, says) in [
        ("$guard </dev/null", 79, "standard input is empty"),
        ("$guard <.", 64, "can't read standard input"),
        ("head -c 200000 /dev/zero | $guard", 64, "128 KiB"),
    ] {
        let mut shell = sh(&redis, script);
        shell.env("guard", "redlock guard --held - -- echo never");
        outcome(&mut shell).assert_exited(status).assert_says(says);
    }
}

#[test]
fn stop_ends_the_guards_with_the_run_and_waits_for_them_even_if_the_run_is_over() {
    for is_over in [false, true] {
        let redis = Redis::left_empty();
        let (mut holder, mut guard) = guarded(&redis, &["--ttl", "120s", "a"]);
        if is_over {
            leave_lock_to(&mut guard, &redis);
        }
        let mut stop = Running::start(&mut redis.redlock(&["stop", "--reason", "hung", "a"]));
        if !is_over {
            guard.expect_line("asked");
            await_end_of_run(&redis);
        }
        let scripts = redis.scripts();
        wait_until("stop has looked at the lock", || {
            stop.has_ended() || redis.scripts() > scripts + 8
        });
        assert!(!stop.has_ended() && !holder.run.has_ended());
        let_guards_end(&redis);
        stop.finish().assert_exited(0);
        guard.finish().assert_exited(79);
        let status = if is_over { 0 } else { 79 };
        holder.run.finish().assert_exited(status);
    }
}

#[test]
fn a_run_with_hold_at_least_returns_when_its_guards_have_ended() {
    let redis = Redis::start();
    let (mut holder, mut guard) = guarded(&redis, &["--hold-at-least", "1h", "a"]);
    leave_lock_to(&mut guard, &redis);
    assert!(!holder.run.has_ended());
    let_guards_end(&redis);
    guard.finish().assert_exited(79);
    holder.run.finish().assert_exited(0);
    ends(&redis, "run -n a -- true").assert_exited(75);
}

#[test]
fn a_lock_that_is_lost_stops_the_guards() {
    let redis = Redis::start();
    for lose in [
        &["DEL", "redlock:a"][..],
        &["SET", "redlock:a", "theirs", "PX", "100000"],
    ] {
        let holder = Holder::start(&redis, &["a"]);
        let mut guard = holder.guard(&redis, &[], "echo started; sleep 60");
        guard.expect_line("started");
        redis.cli(lose);
        guard.finish_saying(79, "lock \"a\" was");
        holder.run.finish().assert_exited(79);
        redis.cli(&["DEL", "redlock:a"]);
    }
}

/// Script that keeps writing the time into a file.
const LIVES: &str =
    r#"while :; do date +%s%N >"$HOME/life.new"; mv "$HOME/life.new" "$HOME/life"; done"#;

#[test]
fn guarded_work_is_dead_before_the_lease_ends_where_redis_does_not_answer() {
    let redis = Redis::start();
    let mut holder = Holder::start(&redis, &["--ttl", "12s", "-k", "1s", "a"]);
    let script = format!("trap '' TERM; echo $$; {LIVES}");
    let mut guard = holder.guard(&redis, &["-k", "1s"], &script);
    let pid: i32 = guard.line().parse().unwrap();
    redis.stall();
    let lease_ends = now() + Duration::from_secs(12);
    wait_until("the work is dead", || !is_alive(pid));
    assert_dead_before(redis.dir.path(), lease_ends);
    redis.resume();
    guard.finish().assert_exited(79);
    wait_until("the run has ended, too", || holder.run.has_ended());
}

#[test]
fn guarded_work_is_terminated_and_dead_before_a_lease_ends_that_nobody_renews_however_late_answers_are()
 {
    // Delays or losses of the replies to the guard, and the expected number of replies that arrive.
    type Hook = fn(&Request) -> Action;
    let hooks: [(Hook, std::ops::Range<usize>); 3] = [
        (|_| Action::Pass, 2..usize::MAX),
        (
            |request| match &*request.operation {
                "guard" if request.before > 0 => Action::StallReply(Duration::from_millis(700)),
                _ => Action::Pass,
            },
            2..usize::MAX,
        ),
        // The lease starts with the request.
        (
            |request| match (&*request.operation, request.before) {
                ("guard", 0) => Action::StallReply(Duration::from_secs(1)),
                ("guard", _) => Action::LoseRequest,
                _ => Action::Pass,
            },
            1..2,
        ),
    ];
    let each = |hook: Hook, expected: std::ops::Range<usize>| {
        let redis = Redis::start();
        load_scripts(&redis);
        let proxy = Proxy::with(&redis, hook);
        let script = format!(
            r#"eval "$(redlock acquire --ttl 12s a)"
            redlock -u "$0" guard -k 1s -c 'trap "date +%s%N" TERM; echo started; {LIVES}'
            echo "status $?""#
        );
        let mut run = Running::start(&mut directly(&redis, &["sh", "-c", &script, &proxy.url()]));
        run.expect_line("started");
        let looked = now();
        let left: u64 = redis.cli(&["PTTL", "redlock:a"]).parse().unwrap();
        let lease_ends = looked + Duration::from_millis(left);
        let terminated = moment(&run.line());
        run.expect_line("status 79");
        assert!(expected.contains(&proxy.answered("guard")), "{proxy:?}");
        assert!(terminated < lease_ends, "{terminated:?} {lease_ends:?}");
        assert_dead_before(redis.dir.path(), lease_ends);
        run.finish().assert_exited(0);
    };
    side_by_side(hooks, |(hook, expected)| each(hook, expected));
}

#[test]
fn a_guard_that_was_killed_takes_its_work_along_and_delays_the_next_holder_for_a_lease_at_most() {
    let redis = Redis::start();
    let holder = Holder::start(&redis, &["--ttl", "6s", "a"]);
    // Part of the work has a session of its own and no parent, and begins after the watchdog's last scan.
    let mut gate = Gate::new(&redis);
    let script = r#"read go <"$HOME/gate"; setsid sh -c 'echo $$; exec sleep 100' & sleep 100"#;
    let mut guard = holder.guard(&redis, &[], script);
    let watchdog = await_watchdog(guard.pid());
    gate.open();
    let pid: i32 = guard.line().parse().unwrap();
    guard.kill();
    wait_until("the watchdog ends", || !is_alive(watchdog));
    wait_until("the work is dead", || !is_alive(pid));
    let mut waiter = queued(&redis, &["run", "a", "--", "echo", "ran"]);
    Holder::let_end(&redis);
    await_end_of_run(&redis);
    let kept = Instant::now();
    waiter.expect_line("ran");
    assert_took_less(kept, Duration::from_secs(30));
    holder.run.finish().assert_exited(0);
    waiter.finish().assert_exited(0);
}

#[test]
fn a_script_that_has_acquired_the_lock_is_guarded_like_a_run() {
    let redis = Redis::left_empty();
    let script = r#"
        eval "$(redlock acquire --ttl 120s --while-pid $$ a)"
        echo "$REDLOCK_HELD"
        while [ ! -e "$HOME/end" ]; do sleep 0.01; done
        redlock release
        while [ ! -e "$HOME/over" ]; do sleep 0.01; done"#;
    let holder = Holder::of(&mut sh(&redis, script));
    let mut guard = holder.slow_guard(&redis);
    let mut waiter = queued(&redis, &["run", "a", "--", "echo", "ran"]);
    Holder::let_end(&redis);
    guard.expect_line("asked");
    assert!(!waiter.has_ended());
    let_guards_end(&redis);
    waiter.expect_line("ran");
    waiter.finish().assert_exited(0);
    holder
        .run
        .finish_saying(0, "is kept until its guards have ended");
    guard.finish().assert_exited(79);
}

#[test]
fn one_other_signal_leaves_all_locks_of_a_run_to_the_guards() {
    for names in [&["a"][..], &["a", "b"]] {
        let redis = Redis::left_empty();
        let options = [&["--ttl", "120s"], names].concat();
        let (mut holder, mut guard) = guarded(&redis, &options);
        holder.run.signal(Signal::SIGTERM);
        guard.expect_line("asked");
        await_end_of_run(&redis);
        assert!(!holder.run.has_ended());
        holder.run.signal(Signal::SIGTERM);
        holder.run.finish().assert_killed_by(libc::SIGTERM);
        assert_eq!(guards(&redis), 1);
        let_guards_end(&redis);
        guard.finish().assert_exited(79);
    }
}

#[test]
fn a_run_waits_for_its_guards_through_requests_that_fail() {
    let redis = Redis::left_empty();
    load_scripts(&redis);
    // The first release, in two scripts, finds that there are guards.
    let proxy = Proxy::with(&redis, |request| match &*request.operation {
        "release" if (2..5).contains(&request.before) => Action::Reset,
        _ => Action::Pass,
    });
    let (mut holder, mut guard) = guarded(&redis, words!("-u {} --ttl 120s a", &proxy.url()));
    Holder::let_end(&redis);
    guard.expect_line("asked");
    wait_until("it has asked in vain", || {
        holder.run.has_ended() || proxy.answered("release") > 2
    });
    assert!(!holder.run.has_ended());
    let_guards_end(&redis);
    guard.finish().assert_exited(79);
    holder.run.finish().assert_exited(0);
}

#[test]
fn without_redis_a_run_waits_a_single_lease_for_the_guards_of_all_its_locks() {
    let mut redis = Redis::start();
    let (holder, mut guard) = guarded(&redis, words!("--ttl 8s a b c d"));
    leave_lock_to(&mut guard, &redis);
    redis.kill();
    let began = Instant::now();
    holder.run.finish().assert_exited(0);
    // Waiting for one lock after the other would take 32 s.
    assert_took_less(began, Duration::from_secs(20));
    guard.finish().assert_exited(79);
}

#[test]
fn without_replies_a_guard_leaves_several_locks_in_the_time_of_one() {
    let redis = Redis::start();
    load_scripts(&redis);
    let (holder, mut guard) = guarded(&redis, words!("--ttl 1h a b c d"));
    redis.stall();
    let_guards_end(&redis);
    guard.expect_line("over");
    let began = Instant::now();
    guard.finish_saying(0, "may be kept until its lease ends");
    // Two attempts of two seconds, and the time to send the requests for the other locks.
    assert_took_less(began, Duration::from_secs(10));
    redis.resume();
    holder.end(&redis);
}

#[test]
fn one_signal_ends_a_guard_of_several_locks_that_redis_does_not_answer() {
    let redis = Redis::left_empty();
    load_scripts(&redis);
    let holder = Holder::start(&redis, &["--ttl", "1h", "a", "b", "c"]);
    let options = ["REDLOCK_REDIS_TIMEOUT=1h"];
    let mut guard = holder.guard(&redis, &options, "echo started; exec sleep 60");
    guard.expect_line("started");
    redis.stall();
    let began = Instant::now();
    guard.signal(Signal::SIGTERM);
    guard.finish().assert_killed_by(libc::SIGTERM);
    assert_took_less(began, Duration::from_secs(20));
    // The server reads the sent requests when it goes on.
    redis.resume();
    wait_until("it has left", || guards(&redis) == 0);
    holder.end(&redis);
}

#[test]
fn the_last_guard_of_a_lock_that_its_job_released_hands_it_on_past_a_thousand_dead_waiters() {
    let redis = Redis::start();
    let mut gate = Gate::new(&redis);
    let script = r#"echo "$REDLOCK_HELD"; read go <"$HOME/gate"
        redlock release -q; echo released; read go <"$HOME/gate""#;
    let holder = Holder::of(&mut redis.run("--ttl 120s a", script));
    let mut guard = holder.slow_guard(&redis);
    let live = Gated::queued(&redis, &["a"]);
    gate.open();
    let mut run = holder.run;
    run.expect_line("released");
    guard.expect_line("asked");
    add_dead_waiters(&redis);
    let_guards_end(&redis);
    guard.finish().assert_exited(79);
    // The lock isn't free, so the live waiter behind the dead ones needn't find it with its next heartbeat.
    assert_ne!(redis.cli(&["GET", "redlock:a"]), "");
    live.ready().end();
    gate.open();
    run.finish().assert_exited(0);
}

#[test]
fn work_is_guarded_in_a_cluster() {
    let cluster = Cluster::start(&[]);
    let mut run = Running::start(&mut cluster.redlock(&["run", "a", "-c", SAYS_HELD]));
    let held = run.line();
    let mut command = cluster.redlock(&["guard", "-c", "echo started; sleep 60"]);
    let mut guard = Running::start(command.env("REDLOCK_HELD", held));
    guard.expect_line("started");
    fs::write(cluster.home.path().join("end"), "").unwrap();
    run.finish().assert_exited(0);
    guard.finish_saying(79, "is over");
}

#[test]
fn with_sync_a_guard_starts_nothing_before_the_replicas_know_of_it() {
    let set = Replicated::start();
    let options = words!(
        "run REDLOCK_SYNC=all REDLOCK_SYNC_TIMEOUT=30s --ttl 120s a -c",
        SAYS_HELD
    );
    let mut run = Running::start(&mut set.redlock(options));
    let held = run.line();
    let replica = (0..3).find(|&node| node != set.primary()).unwrap();
    let guard = |timeout: &str, script: &str| {
        let words = words!(
            "guard REDLOCK_SYNC=all REDLOCK_SYNC_TIMEOUT={} -c",
            timeout,
            script
        );
        let mut command = set.redlock(words);
        Running::start(command.env("REDLOCK_HELD", &held))
    };
    guard("30s", "echo ran").finish().assert_exited(0);
    set.servers[replica].stall();
    let end = guard("200ms", "echo never").finish();
    end.assert_printed(69, "");
    set.servers[replica].resume();
    fs::write(set.home.path().join("end"), "").unwrap();
    run.finish().assert_exited(0);
}
