//! `acquire --while-pid`: the keeper that stays behind to renew a script's lock, and its end.

use crate::promises::watchdog::assert_holds_nothing;
use crate::support::prelude::*;
use crate::support::proxy::{Action, Proxy, load_scripts};

/// Starts a script that holds the lock "a" from its `ready` line on; `rest` follows.
fn holder(redis: &Redis, options: &str, rest: &str) -> Running {
    after("", redis, options, rest)
}

/// Returns a shell without a terminal that knows the server, with nothing of the tests' environment.
fn bash(redis: &Redis, text: &str) -> Command {
    let mut command = directly(redis, &["bash", "-c", text]);
    command.current_dir(redis.dir.path());
    command
}

/// Like `holder`, after a first line.
pub fn after(first: &str, redis: &Redis, options: &str, rest: &str) -> Running {
    let text = format!(
        "{first}\neval \"$(redlock acquire a --while-pid $$ {options})\"\necho ready\n{rest}"
    );
    Running::ready(&mut bash(redis, &text))
}

/// Returns the keeper of a script.
pub fn keeper(script: &Running) -> i32 {
    keeper_of(script.pid())
}

fn keeper_of(script: i32) -> i32 {
    let pid = script.to_string();
    let is_keeper = |candidate: &i32| {
        let words = proc(*candidate, "cmdline");
        let words: Vec<&str> = words.split('\0').collect();
        words.contains(&"acquire") && words.contains(&&*pid)
    };
    pids().find(is_keeper).expect("a keeper")
}

/// End of a script without a child that would outlive it.
const WAIT: &str = "exec sleep 60";

#[test]
fn the_rest_of_a_script_is_guarded_and_the_lock_is_free_at_its_end() {
    let redis = Redis::left_empty();
    let mut gate = Gate::new(&redis);
    let mut script = holder(&redis, "--ttl 6s", "read go <gate");
    // Three renewals of two commands each.
    script.await_renewals(&redis, 5);
    ends(&redis, "run -n a -- true").assert_code(75);
    let waiter = queued(&redis, &["run", "-q", "a", "--", "true"]);
    let keeper = keeper(&script);
    gate.open();
    script.finish().assert_code(0);
    waiter.finish().assert_code(0);
    wait_until("the keeper is gone", || !is_alive(keeper));
}

#[test]
fn however_a_script_is_killed_its_lock_is_free_at_once() {
    let redis = Redis::left_empty();
    let mut times = Vec::new();
    // Without the signals that are ignored by default, and those that only stop.
    let ignored = [libc::SIGCHLD, libc::SIGURG, libc::SIGWINCH, libc::SIGCONT];
    let stops = libc::SIGSTOP..=libc::SIGTTOU;
    let ends = |number: &i32| !ignored.contains(number) && !stops.contains(number);
    for number in (1..=31).chain([34, 64]).filter(ends) {
        // exec, because a shell itself would delay some of the signals.
        let mut script = holder(&redis, "", "ulimit -c 0; exec sleep 60");
        // A signal that the shell handles just before it executes the program is lost.
        wait_until("the shell is gone", || {
            proc(script.pid(), "comm") == "sleep"
        });
        let waiter = queued(&redis, words!("run -q a -- date +%s%N"));
        let killed = now();
        send(script.pid(), number);
        let end = waiter.finish();
        end.assert_code(0);
        times.push(moment(&end.stdout).saturating_sub(killed));
        wait_until("the script is gone", || script.has_ended());
    }
    assert_within(Duration::from_secs(2), times);
    redis.await_free("a");
}

#[test]
fn a_keeper_is_small_and_holds_nothing_of_the_script_and_one_connection() {
    let redis = Redis::start();
    let script = after("exec 8>eight 9< <(sleep 60)", &redis, "", WAIT);
    let keeper = keeper(&script);
    // The renewing thread is there a moment later, with everything that it ever has.
    wait_until("it has renewed", || {
        redis.cli(&["CLIENT", "LIST"]).contains("cmd=evalsha")
    });
    assert_holds_nothing(keeper);
    // Session and terminal.
    assert_eq!(stat(keeper)[3..5], [&keeper.to_string(), "0"]);
    // Without the program itself, whose size differs in each build; `make bench` measures both.
    let own = status_of(keeper, "RssAnon");
    assert!(own.trim_end_matches(" kB").parse::<u64>().unwrap() <= 2048);
}

#[test]
fn a_script_goes_on_beside_its_keeper_where_there_is_no_dev_null() {
    return_unless!(is_permitted(&["unshare", "-m", "true"]));
    let redis = Redis::start();
    let text = "mount -t tmpfs none /dev && eval \"$(redlock acquire a --while-pid $$)\" && redlock extend";
    let mut command = directly(&redis, &["unshare", "-m", "bash", "-c", text]);
    outcome(&mut command).assert_code(0).assert_silent();
}

#[test]
fn a_keeper_keeps_the_lock_of_a_stopped_script_and_after_its_connection_or_its_server_ended() {
    for what in ["stop", "connection", "server"] {
        let mut redis = Redis::with(words!("--appendonly yes --appendfsync always"));
        let mut script = holder(&redis, "--ttl 10s", WAIT);
        match what {
            "stop" => script.suspend(),
            "connection" => drop(redis.cli(words!("CLIENT KILL TYPE normal"))),
            _ => {
                redis.kill();
                redis.start_again();
                wait_until("the data is there", || redis.holder("a").is_some());
            }
        }
        script.await_renewals(&redis, 4);
        assert_eq!(redis.holder("a"), Some(script.pid()));
        script.kill();
        redis.await_free("a");
    }
}

#[test]
fn a_script_whose_lock_is_lost_is_stopped_with_all_it_runs_and_killed_if_it_ignores_that() {
    let obeys = "sleep 300 & echo $!; wait";
    let deaf = "trap '' TERM; sleep 300 & echo $!; while :; do sleep 0.05; done";
    for (rest, is_forced, signal) in [
        (obeys, true, libc::SIGTERM),
        (deaf, true, libc::SIGKILL),
        (deaf, false, libc::SIGKILL),
    ] {
        let mut redis = Redis::left_empty();
        let mut script = holder(&redis, "--ttl 6s -k 300ms", rest);
        let child = script.line().parse().unwrap();
        let keeper = keeper(&script);
        if is_forced {
            ends(&redis, "release --force -q a").assert_code(0);
        } else {
            // The restarted server is empty, and pushes nothing to the old connection.
            redis.kill();
            redis.start_again();
        }
        script.finish().assert_killed_by(signal);
        wait_until("its child is gone, and the keeper", || {
            !is_alive(child) && !is_alive(keeper)
        });
    }
}

#[test]
fn a_keeper_that_got_a_signal_still_repeats_a_release_that_is_lost() {
    let redis = Redis::left_empty();
    load_scripts(&redis);
    // The server gets nothing for longer than a run that got a signal would try.
    let mut began = None;
    let proxy = Proxy::with(&redis, move |request| {
        let mut is_early = || began.get_or_insert_with(Instant::now).elapsed().as_millis() < 1500;
        match &*request.operation {
            "release" if is_early() => Action::LoseRequest,
            _ => Action::Pass,
        }
    });
    let settings = format!("REDLOCK_URL={} REDLOCK_REDIS_TIMEOUT=2s", proxy.url());
    let mut gate = Gate::new(&redis);
    let export = format!("export {settings}");
    let script = after(&export, &redis, "--ttl 1h", "read go <gate");
    // A keeper heeds only SIGTERM.
    send(keeper(&script), libc::SIGHUP);
    gate.open();
    script.finish().assert_code(0);
    redis.await_free("a");
}

#[test]
fn a_program_that_a_script_becomes_gets_one_sigterm() {
    let redis = Redis::left_empty();
    // The worker shuts down at the first SIGTERM. A second SIGTERM would be an order to abort.
    let worker = r#"exec python3 -c '
import signal, sys, time
terms = []
signal.signal(signal.SIGTERM, lambda *_: terms.append(1))
print("works", flush=True)
while not terms: signal.pause()
time.sleep(0.5)
sys.exit(len(terms))'"#;
    let mut script = holder(&redis, "--ttl 6s -k 5s", worker);
    script.expect_line("works");
    ends(&redis, "stop -q a").assert_code(0);
    script.finish().assert_code(1);
}

#[test]
fn with_on_lost_warn_a_script_may_hear_of_a_loss_or_a_stop_and_goes_on() {
    let hears = "trap 'echo heard' URG; echo set
        while [ ! -e ~/end ]; do sleep 0.05; done; echo over";
    let deaf = "echo set; while [ ! -e ~/end ]; do sleep 0.05; done; echo over";
    for (line, rest, is_kept) in [
        ("release --force -q a", hears, false),
        ("release --force -q a", deaf, false),
        ("stop -n a", hears, true),
    ] {
        let redis = Redis::left_empty();
        let mut script = after("export REDLOCK_ON_LOST=warn", &redis, "", rest);
        script.expect_line("set");
        let keeper = keeper(&script);
        wait_until("the keeper watches", || redis.trackers() > 0);
        ends(&redis, line).assert_code(0);
        if rest == hears {
            script.expect_line("heard");
        }
        wait_until("a keeper without its lock is gone", || {
            is_kept || !is_alive(keeper)
        });
        assert!(!script.has_ended() && redis.is_held("a") == is_kept);
        fs::write(redis.dir.path().join("end"), "").unwrap();
        let end = script.finish();
        end.assert_code(0);
        assert_eq!(end.stdout.lines().last(), Some("over"));
        wait_until("the keeper is gone", || !is_alive(keeper));
    }
}

#[test]
fn a_script_and_its_child_are_dead_before_a_lease_ends_that_cannot_be_renewed() {
    // The child keeps writing the time into a file.
    let deaf = r#"trap "" TERM; echo $$; while :; do date +%s%N >next$$ && mv next$$ life; done"#;
    // A script that is as deaf as its child, and one that ends at once.
    side_by_side([deaf, "echo $$; wait"], |rest| {
        let redis = Redis::start();
        let mut script = holder(
            &redis,
            "--ttl 12s -k 1s",
            &format!("sh -c '{deaf}' & {rest}"),
        );
        let pids = [script.line(), script.line()].map(|pid| pid.parse::<i32>().unwrap());
        // The next renewal is 4 s away.
        script.await_renewals(&redis, 1);
        let pttl: u64 = redis.cli(&["PTTL", "redlock:a"]).parse().unwrap();
        redis.stall();
        let lease_ends = now() + Duration::from_millis(pttl);
        wait_until("both are dead", || {
            script.has_ended() && !pids.iter().any(|&pid| is_alive(pid))
        });
        assert_dead_before(redis.dir.path(), lease_ends);
        redis.resume();
    });
}

#[test]
fn the_lock_of_a_killed_keeper_ends_with_its_ttl_and_not_before_while_the_script_lives() {
    let redis = Redis::start();
    let mut script = holder(&redis, "--ttl 5s", WAIT);
    send(keeper(&script), libc::SIGKILL);
    let began = Instant::now();
    let left: u64 = redis.cli(&["PTTL", "redlock:a"]).parse().unwrap();
    ends(&redis, "run -q a -- true").assert_code(0);
    assert!(began.elapsed() >= Duration::from_millis(left));
    assert!(began.elapsed() < TIMEOUT / 4);
    assert!(!script.has_ended());
}

#[test]
fn a_keeper_requires_a_live_process_that_it_may_signal() {
    let redis = Redis::left_empty();
    let refused = |pid: &str, says: &str| {
        let line = format!("acquire a --format token --while-pid {pid}");
        ends(&redis, &line).assert_said(64, says);
    };
    refused("2147483646", "no such process");
    refused("0", "");
    // Otherwise a lost lock would stop this whole machine.
    if !nix::unistd::getuid().is_root() {
        refused("1", "");
    }
    // Each of these processes would end at once.
    for before in ["", ":; ", "2>/dev/null "] {
        let acquire = format!("{before}redlock acquire a --while-pid $BASHPID");
        let text = format!("eval \"$({acquire})\"; echo works on");
        outcome(&mut bash(&redis, &text)).assert_printed(64, "");
    }
    // The process ends during the wait.
    redis.cli(words!("SET redlock:a somebody PX 600000"));
    let mut process = Running::start(Command::new("sleep").arg("60"));
    let pid = process.pid().to_string();
    let waiter = Running::start(&mut redis.redlock(words!("acquire -q a --while-pid {}", &pid)));
    wait_until("it waits", || redis.queue("a").len() == 1);
    process.kill();
    let end = waiter.finish_saying(64, &format!("--while-pid {pid}: that process ended before"));
    assert_has(&end.stdout, &["exit 64"]);
    redis.cli(&["DEL", "redlock:a"]);
}

#[test]
fn children_of_a_killed_shell_are_stopped_before_its_lock_is_free() {
    let redis = Redis::left_empty();
    let mut gate = Gate::new(&redis);
    let starts = "sleep 60 & echo $!; wait";
    // Without executing a program, it doesn't have the lock's token in its environment.
    let forks = "mkfifo never$$; (echo $BASHPID; read go <never$$) & wait";
    for (rest, signal) in [
        (starts, Signal::SIGTERM),
        (starts, Signal::SIGHUP),
        (starts, Signal::SIGKILL),
        (forks, Signal::SIGTERM),
        (forks, Signal::SIGKILL),
    ] {
        let mut script = holder(&redis, "", &format!("read go <gate; {rest}"));
        if rest == forks {
            // From then on the keeper's next scan of the children is 10 s away.
            script.await_renewals(&redis, 1);
        }
        gate.open();
        let child: i32 = script.line().parse().unwrap();
        let waiter = queued(&redis, &["run", "-q", "a", "--", "true"]);
        script.signal(signal);
        waiter.finish().assert_code(0);
        assert!(!is_alive(child), "{rest:?} works on, after {signal}");
    }
}

#[test]
fn orphans_of_a_killed_script_get_sigterm_at_every_depth_and_end_before_its_lock_is_free() {
    let redis = Redis::start();
    let work = "work() { trap 'echo asked $1; exit' TERM; echo ready $BASHPID; while :; do read -t 0.1 <>never; done; }";
    // A process without the token still has its parent; another is in a session of its own.
    let stranger = r#"env -i bash -c "$WORK; work 4""#;
    let apart = r#"setsid bash -c "$WORK; work 5""#;
    let rest = format!(
        "mkfifo never; {work}; export WORK=\"$(declare -f work)\"; read go <gate
        ( ( ( {stranger} & work 3 ) & work 2 ) & work 1 ) & ({apart} & exit 0); wait"
    );
    let mut gate = Gate::new(&redis);
    let mut script = holder(&redis, "--ttl 30s", &rest);
    let keeper = keeper(&script);
    script.await_renewals(&redis, 1);
    gate.open();
    let pids = [(); 5].map(|()| script.pid_after("ready"));
    send(script.pid(), libc::SIGKILL);
    let mut lines: Vec<String> = (1..=5).map(|_| script.line()).collect();
    lines.sort();
    assert_eq!(
        lines,
        [1, 2, 3, 4, 5].map(|number| format!("asked {number}"))
    );
    redis.await_free("a");
    assert!(!pids.into_iter().any(is_alive));
    wait_until("the keeper is gone", || !is_alive(keeper));
}

/// Two instances of one script have the same words, environment and session.
#[test]
fn when_one_of_two_instances_of_a_script_is_killed_the_work_of_the_other_goes_on() {
    let redis = Redis::start();
    let script = redis.dir.path().join("work.sh");
    let text = r#"for name in b c; do mkdir $name 2>/dev/null && break; done
eval "$(redlock acquire $name --while-pid $$)"
( ( read -t 60 <>never ) & echo "$name $$ $!" ) &
read -t 60 <>never
"#;
    fs::write(&script, text).unwrap();
    let both = "mkfifo never; bash work.sh & bash work.sh & wait";
    let mut both = Running::start(&mut bash(&redis, both));
    let mut lines = [both.line(), both.line()];
    lines.sort();
    let numbers = |line: &String| -> Vec<i32> {
        let numbers = line.split(' ').skip(1);
        numbers.map(|number| number.parse().unwrap()).collect()
    };
    let [first, second] = [numbers(&lines[0]), numbers(&lines[1])];
    send(first[0], libc::SIGKILL);
    redis.await_free("b");
    assert!(!is_alive(first[1]));
    assert!(is_alive(second[1]) && redis.holder("c").is_some());
    send(second[0], libc::SIGKILL);
    redis.await_free("c");
    assert!(!is_alive(second[1]));
}

/// The orphan may belong to another job.
#[test]
fn an_orphan_of_the_scripts_session_is_waited_for_and_never_signalled() {
    let redis = Redis::start();
    let [mut go, mut begin] = ["go", "begin"].map(|name| Gate::at(&redis.dir.path().join(name)));
    let text = r#"
bash -c 'eval "$(redlock acquire a --while-pid $$ --with-children -k 100ms --ttl 6s)"; echo $$; read go <go' &
read started <begin
bash -c 'sleep 60 & echo $!'
wait"#;
    let mut session = Running::start(&mut bash(&redis, text));
    let script: i32 = session.line().parse().unwrap();
    begin.open();
    let other: i32 = session.line().parse().unwrap();
    let keeper = keeper_of(script);
    go.open();
    wait_until("the script has ended", || !is_alive(script));
    redis.await_calls("pexpire", 3);
    ends(&redis, "release --force -q a").assert_code(0);
    wait_until("its keeper is gone", || !is_alive(keeper));
    assert!(is_alive(other));
    send(other, libc::SIGKILL);
}

#[test]
fn a_keeper_is_forked_when_no_other_thread_is_left() {
    let redis = Redis::with(&["--requirepass", "secret"]);
    let trace = || home_file(&redis, "trace");
    let url = format!("redis://:secret@127.0.0.1:{}", redis.port);
    // The thread that waits for a stalled server takes its time to end.
    let strace = "strace -f -o trace -e trace=exit,clone,?clone3,fork,vfork -e inject=exit:delay_enter=20000";
    let acquire = format!("redlock -u {url} acquire -q a --while-pid $!");
    let text = format!("sleep 60 & echo $!; REDLOCK_REDIS_TIMEOUT=60s exec {strace} {acquire}");
    redis.stall();
    let mut script = Running::start(&mut bash(&redis, &text));
    let process = script.line().parse().unwrap();
    wait_until("a thread is started", || trace().contains("clone"));
    redis.resume();
    wait_until("a process is forked", || trace().contains("SIGCHLD"));
    send(process, libc::SIGKILL);
    script.finish().assert_code(0);
    let trace = trace();
    let (before, _) = trace.split_once(" exit(0)").expect("a thread ends");
    let thread = before.lines().last().unwrap();
    let ended = trace.find(&format!("{thread} +++ exited")).unwrap();
    let forked = trace.find("SIGCHLD").unwrap();
    assert!(ended < forked, "{trace}");
}

#[test]
fn a_script_that_waited_for_its_lock_has_a_keeper_too() {
    for options in ["--ttl 6s", "--ttl 6s --slots 2", "--ttl 6s -s"] {
        let redis = Redis::left_empty();
        let first = Gated::start(&redis, &["a"]).ready();
        let text = format!(
            r#"eval "$(redlock acquire -q a --while-pid $$ {options})"; echo "held $REDLOCK_SLOT"; read go <gate; redlock extend"#
        );
        let mut gate = Gate::new(&redis);
        let mut script = Running::start(&mut bash(&redis, &text));
        wait_until("it waits", || redis.queue("a").len() == 1);
        first.end();
        assert!(script.line().starts_with("held"));
        script.await_renewals(&redis, 3);
        gate.open();
        script.finish().assert_code(0).assert_silent();
        redis.await_free("a");
    }
}

#[test]
fn acquire_stops_waiting_when_the_process_it_is_for_has_died() {
    for options in ["--while-pid $$", "", "--format token"] {
        let redis = Redis::left_empty();
        let first = Gated::start(&redis, &["a"]).ready();
        let text = format!("lock=$(redlock acquire -q a {options}); echo got");
        let mut script = Running::start(&mut bash(&redis, &text));
        wait_until("it waits", || redis.queue("a").len() == 1);
        let behind = queued(&redis, &["run", "-q", "a", "--", "true"]);
        script.kill();
        wait_until("it has left the queue", || redis.queue("a").len() == 1);
        first.end();
        behind.finish().assert_code(0);
    }
}

#[test]
fn a_keeper_that_stood_still_for_too_long_stops_the_script_when_it_goes_on() {
    let redis = Redis::start();
    let mut script = holder(&redis, "--ttl 4s", "sleep 60 & echo $!; wait");
    let child: i32 = script.line().parse().unwrap();
    let keeper = keeper(&script);
    send(keeper, libc::SIGSTOP);
    let next = ends(&redis, "acquire -q a --format token");
    next.assert_code(0);
    assert!(!script.has_ended());
    send(keeper, libc::SIGCONT);
    wait_until("the script and its child are dead", || {
        script.has_ended() && !is_alive(child) && !is_alive(keeper)
    });
    // The keeper doesn't touch the next holder's lock.
    assert_eq!(redis.cli(&["GET", "redlock:a"]), next.stdout.trim());
}

#[test]
fn each_of_several_locks_of_a_script_has_its_keeper() {
    let redis = Redis::left_empty();
    let mut gate = Gate::new(&redis);
    let rest = r#"read go <gate; eval "$(redlock acquire b --ttl 6s --while-pid $$)"
        redlock release a; echo $?; exec sleep 60"#;
    let mut script = holder(&redis, "--ttl 6s", rest);
    let first = keeper(&script);
    gate.open();
    script.expect_line("0");
    wait_until("the keeper is gone", || !is_alive(first));
    script.await_renewals(&redis, 5);
    assert_eq!(redis.cli(&["EXISTS", "redlock:a", "redlock:b"]), "1");
    script.kill();
    redis.await_free("b");
}

#[test]
fn a_script_may_be_started_with_closed_streams_or_in_a_directory_that_goes() {
    let redis = Redis::left_empty();
    let gone = "mkdir d; cd d; rmdir ../d";
    for first in ["exec <&-", "exec 2>&-", gone, "ulimit -n 16"] {
        let mut script = after(first, &redis, "--ttl 6s", WAIT);
        let keeper = keeper(&script);
        script.await_renewals(&redis, 3);
        drop(script);
        wait_until("the keeper is gone", || !is_alive(keeper));
    }
}

#[test]
fn descendants_of_a_killed_script_are_stopped_even_at_the_descriptor_limit() {
    let redis = Redis::start();
    let mut gate = Gate::new(&redis);
    let rest = r#"for n in $(seq 90); do sleep 60 & echo $!; done; echo all; read go <"$HOME/gate"; kill -9 $$"#;
    let mut script = after("ulimit -n 64", &redis, "--ttl 6s -k 100ms", rest);
    let pids = (0..90).map(|_| script.line().parse().unwrap());
    let started: Vec<i32> = pids.collect();
    script.expect_line("all");
    // Two renewals of two commands each: the keeper has scanned for processes with the first.
    script.await_renewals(&redis, 4);
    gate.open();
    redis.await_free("a");
    let left: Vec<i32> = started.into_iter().filter(|&pid| is_alive(pid)).collect();
    assert!(left.is_empty(), "{left:?}");
}

/// Scanning all processes takes a while if there are many, or if their environments are large.
#[test]
fn a_script_is_killed_before_all_processes_are_looked_at() {
    let redis = Redis::start();
    let trace = redis.dir.path().join("trace");
    let mut script = holder(&redis, "--ttl 5s -k 0s", WAIT);
    let calls = "trace=openat,kill,pidfd_send_signal";
    let options = ["-e", calls, "-o", trace.to_str().unwrap()];
    let mut strace = attach_strace(keeper(&script), &options);
    redis.stall();
    wait_until("the script is dead", || script.has_ended());
    redis.resume();
    strace.wait().unwrap();
    let calls = home_file(&redis, "trace");
    let first = |part: &str| calls.lines().position(|line| line.contains(part));
    let killed = first("SIGKILL").unwrap_or_else(|| panic!("{calls}"));
    let looked = first("\"/proc\",").unwrap_or_else(|| panic!("{calls}"));
    assert!(killed < looked, "{calls}");
    // The keeper ends like any other program.
    assert!(calls.contains("+++ exited with 0 +++"), "{calls}");
}

#[test]
fn other_work_of_a_job_survives_a_killed_script_that_reentered_its_lock() {
    let redis = Redis::left_empty();
    let inner = r#"lock=$(redlock acquire -q a --while-pid $$) || exit
        eval "$lock"; echo $$; read go <gate; kill -SEGV $$"#;
    fs::write(redis.dir.path().join("inner.sh"), inner).unwrap();
    let mut gate = Gate::new(&redis);
    let outer = "sleep 60 & echo $!; bash inner.sh 2>/dev/null; echo ended; exec sleep 60";
    let run = format!("exec redlock run -q a -c '{outer}'");
    let mut outer = Running::start(&mut bash(&redis, &run));
    let sibling: i32 = outer.line().parse().unwrap();
    let inner: i32 = outer.line().parse().unwrap();
    let keeper = keeper_of(inner);
    gate.open();
    outer.expect_line("ended");
    wait_until("the keeper is gone", || !is_alive(keeper));
    assert!(is_alive(sibling) && !outer.has_ended());
    assert!(redis.is_held("a"));
    outer.signal(Signal::SIGTERM);
    outer.finish().assert_code(143);
}

#[test]
fn keepers_do_not_wait_for_each_other() {
    let redis = Redis::left_empty();
    // Each keeper is forked from an acquire whose environment has the tokens of the earlier locks.
    let lock = r#"lock() { l=$(redlock acquire -q "$1" --while-pid "$2" --with-children) || exit; eval "$l"; }"#;
    let again = "( id=$BASHPID; lock a $id )";
    let script = format!("{lock}; lock a $$; lock b $$; {again}; {again}");
    outcome(&mut bash(&redis, &script)).assert_code(0);
    redis.await_free("a b");
    // Keepers and a run that waits for its tree don't wait for each other, either.
    let inner = format!("{lock}; {again} & {again} & wait");
    outcome(&mut redis.run("-q c --with-children -- bash", &inner)).assert_code(0);
    redis.await_free("a c");
}

#[test]
fn the_keeper_of_another_lock_of_a_script_that_is_stopped_releases_that_one() {
    let redis = Redis::left_empty();
    let second =
        "eval \"$(redlock acquire -q b --while-pid $$ --ttl 1h)\"; trap '' TERM; echo both";
    let mut script = holder(&redis, "-k 100ms --ttl 1h", &format!("{second}; {WAIT}"));
    script.expect_line("both");
    ends(&redis, "stop -q a").assert_code(0);
    redis.await_free("a b");
}

#[test]
fn an_acquire_whose_token_nobody_reads_ends_with_the_process_it_is_for_or_by_a_signal() {
    let redis = Redis::left_empty();
    for is_signalled in [false, true] {
        let mut process = Running::start(Command::new("sleep").arg("60"));
        let pid = process.pid().to_string();
        // A full pipe.
        let (_reader, writer) = nix::unistd::pipe().unwrap();
        let flags = nix::fcntl::OFlag::O_NONBLOCK;
        nix::fcntl::fcntl(&writer, nix::fcntl::FcntlArg::F_SETFL(flags)).unwrap();
        while nix::unistd::write(&writer, &[0; 4096]).is_ok() {}
        let words = words!("acquire -q a --ttl 1h --while-pid", &pid);
        let mut acquire = redis.redlock(words).stdout(writer).spawn().unwrap();
        wait_until("it is held", || redis.is_held("a"));
        if is_signalled {
            send(acquire.id().try_into().unwrap(), libc::SIGTERM);
        } else {
            process.kill();
        }
        wait_until("it has ended", || acquire.try_wait().unwrap().is_some());
        redis.await_free("a");
    }
}
