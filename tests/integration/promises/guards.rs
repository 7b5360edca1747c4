//! Work elsewhere under a lock: it ends with the run that holds the lock, and only then is the lock handed over.
//!
//! The tests start the guards themselves, so that these aren't part of the run's process tree, as over ssh or in a container.

use crate::support::prelude::*;
use crate::support::proxy::{Action, Proxy, load_scripts};

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
    let guard = holder.guard(&redis, &[], script);
    let fence = redis.cli(&["HGET", "{redlock:a}:state", "fence"]);
    let printed = format!("checked a {fence}\nnested\nguarded again\nreleased 0\n");
    guard.finish().assert_printed(0, &printed);
    assert_eq!(redis.holder("a"), Some(holder.run.pid()));
    holder.end(&redis);
}

#[test]
fn without_a_lock_to_guard_nothing_is_started_and_nothing_is_acquired() {
    let redis = Redis::left_empty();
    let refused = |held: &str, says: &str| {
        redis.play(&format!("79 REDLOCK_HELD={held} -- echo never → {says}"));
    };
    refused("'' redlock guard", "REDLOCK_HELD isn't set here");
    refused("a=no-such-token redlock guard", "is not held");
    let holder = Holder::start(&redis, &["a"]);
    let held = format!("'{}' redlock guard", holder.held);
    refused(&format!("{held} b"), "this job doesn't hold \"b\"");
    refused("a=another-token redlock guard a", "holds it now");
    holder.end(&redis);
    refused(&held, "lock \"a\"");
}

#[test]
fn a_guard_reads_the_locks_from_its_input_or_a_file_and_leaves_the_rest_to_its_command() {
    let redis = Redis::start();
    let script = r#"
        redlock guard -- printenv REDLOCK_NAME
        echo "$REDLOCK_HELD" >~/held; printf '%s\nfirst\nsecond\n' "$REDLOCK_HELD" >~/input
        unset REDLOCK_NAME REDLOCK_TOKEN REDLOCK_HELD
        redlock guard --held ~/held b -- printenv REDLOCK_NAME
        redlock guard --held - <~/input -c '
            read -r line; echo "$line"; cat; echo "$REDLOCK_NAME"; redlock extend b; redlock extend "a\$c"'"#;
    let end = outcome(&mut redis.run("b a$c", script));
    end.assert_silent()
        .assert_printed(0, "b a$c\nb\nfirst\nsecond\na$c b\n");
}

#[test]
fn a_value_of_held_that_names_no_lock_is_refused_and_not_repeated() {
    let redis = Redis::start();
    let guard = "redlock guard --held ~/held -- echo never";
    let other = "doesn't contain the value of REDLOCK_HELD";
    redis.play(&format!(
        r"64 {guard} → /held
        79 >~/held; {guard} → is empty
        79 echo >~/held; {guard} → is empty
        64 printf hunter2 >~/held; {guard} → {other}
        64 printf 'a=hunter2 b' >~/held; {guard} → {other}
        64 printf 'a=hunter2\nb=hunter2' >~/held; {guard} → {other}
        79 printf a=hunter2 >~/held; {guard} → is not held
        79 redlock guard --held - -- echo never </dev/null → standard input is empty
        64 redlock guard --held - -- echo never <. → can't read standard input
        64 head -c 200000 /dev/zero | redlock guard --held - -- echo never → 128 KiB"
    ));
}

#[test]
fn stop_ends_the_guards_with_the_run_and_waits_for_them_even_if_the_run_is_over() {
    for (is_over, status) in [(false, 79), (true, 0)] {
        let redis = Redis::left_empty();
        let (mut holder, mut guard) = guarded(&redis, words!("--ttl 120s a"));
        if is_over {
            leave_lock_to(&mut guard, &redis);
        }
        let mut stop = Running::start(&mut redis.redlock(words!("stop --reason hung a")));
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
        holder.run.finish().assert_exited(status);
    }
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
fn guarded_work_is_terminated_and_dead_before_a_lease_ends_that_nobody_renews_however_late_answers_are()
 {
    use Action::{LoseRequest, Pass, StallReply};
    let [late, later] = [700, 1_000].map(|ms| StallReply(Duration::from_millis(ms)));
    // Treatments of the first request of the guard and of the others. The lease starts with the first one.
    let rows = [(Pass, Pass), (Pass, late), (later, LoseRequest)];
    side_by_side(rows, |(first, others)| {
        let redis = Redis::start();
        load_scripts(&redis);
        let proxy = Proxy::with(&redis, move |request| {
            match (&*request.operation, request.before) {
                ("guard", 0) => first,
                ("guard", _) => others,
                _ => Pass,
            }
        });
        let script = format!(
            r#"eval "$(redlock acquire --ttl 12s a)"
            redlock -u {} guard -k 1s -c 'trap "date +%s%N" TERM; echo started; {LIVES}'
            echo "status $?""#,
            proxy.url()
        );
        let mut run = Running::start(&mut sh(&redis, &script));
        run.expect_line("started");
        let looked = now();
        let left: u64 = redis.cli(&["PTTL", "redlock:a"]).parse().unwrap();
        let lease_ends = looked + Duration::from_millis(left);
        let terminated = moment(&run.line());
        run.expect_line("status 79");
        let has_more = proxy.answered("guard") > 1;
        assert_eq!(has_more, others != LoseRequest, "{proxy:?}");
        assert!(terminated < lease_ends, "{terminated:?} {lease_ends:?}");
        assert_dead_before(redis.dir.path(), lease_ends);
        run.finish().assert_exited(0);
    });
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
    let with = |words: &[&str], timeout: &str, held: &str| {
        let mut command = set.redlock(words);
        command.envs([("REDLOCK_SYNC", "all"), ("REDLOCK_SYNC_TIMEOUT", timeout)]);
        Running::start(command.env("REDLOCK_HELD", held))
    };
    let mut run = with(words!("run --ttl 120s a -c", SAYS_HELD), "30s", "");
    let held = run.line();
    let guard = with(words!("guard -- echo ran"), "30s", &held);
    guard.finish().assert_printed(0, "ran\n");
    let replica = (0..3).find(|&node| node != set.primary()).unwrap();
    set.servers[replica].stall();
    let guard = with(words!("guard -- echo never"), "200ms", &held);
    guard.finish().assert_printed(69, "");
    set.servers[replica].resume();
    fs::write(set.home.path().join("end"), "").unwrap();
    run.finish().assert_exited(0);
}
