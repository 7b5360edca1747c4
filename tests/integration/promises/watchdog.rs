//! The fate of COMMAND's tree when redlock is killed, or stopped for longer than its lease: a separate process, the watchdog,
//! kills it.
//!
//! The test of a limit of processes needs root; otherwise it checks nothing.

use std::path::Path;

use nix::sys::signal::killpg;
use nix::unistd::Pid;

use crate::promises::keeper::keeper;
use crate::promises::terminal::{on_terminal, pid_in};
use crate::support::prelude::*;
use crate::support::proxy::{Action, Proxy, load_scripts};

/// Script of a COMMAND with one process in its group, one in a session of its own, and one whose parent has ended. All print
/// `ready` and their pids.
const FAMILY: &str = r#"
    say='echo ready $$; exec sleep 50'
    sh -c "$say" &
    setsid sh -c "$say" &
    (setsid sh -c "$say" & exit 0)
    echo ready $$
    wait; sleep 50"#;

/// Reads the pids of [`FAMILY`].
fn family(run: &mut Running) -> Vec<i32> {
    (0..4).map(|_| pid_in(&run.line())).collect()
}

fn run(redis: &Redis, words: &[&str]) -> Running {
    Running::start(&mut redis.redlock(words))
}

/// Returns the names of the processes that a test has started in this home directory, except the server.
pub fn processes_of(home: &Path) -> Vec<String> {
    let home = format!("HOME={}", home.display());
    let is_of = |pid: &i32| proc(*pid, "environ").split('\0').any(|it| it == home);
    let mut names: Vec<String> = pids().filter(is_of).map(|pid| proc(pid, "comm")).collect();
    names.retain(|name| name != "redis-server");
    names.sort();
    names
}

#[test]
fn process_lists_show_redlock_its_watchdog_and_command_alone() {
    let redis = Redis::start();
    // On a terminal, and without one.
    for before in ["env", "setsid -w"] {
        let words = words!("redlock run --ttl 9s -k 1s a -- sleep 50");
        let _terminal = on_terminal(&redis, &[&self::words(before, &[])[..], words].concat());
        let pid = await_some("it has the lock", || redis.holder("a"));
        await_watchdog(pid);
        redis.await_calls("pexpire", 2);
        let mut names = processes_of(redis.dir.path());
        names.retain(|name| name != "setsid");
        assert_eq!(names, ["redlock", "rl-watchdog", "sleep"]);
        send(pid, libc::SIGTERM);
        wait_until("it has ended", || !is_alive(pid));
    }
}

#[test]
fn a_kill_of_redlock_leaves_nothing_of_the_command_whatever_hits_its_group_or_its_watchdog() {
    for (hit, ttl) in [("group", "60s"), ("term", "60s"), ("kill", "6s")] {
        let redis = Redis::start();
        let mut run = run(&redis, words!("run --ttl {} -k 1s a -c", ttl, FAMILY));
        let family = family(&mut run);
        let mut watchdog = await_watchdog(run.pid());
        match hit {
            "group" => killpg(Pid::from_raw(run.pid()), Signal::SIGKILL).unwrap(),
            "term" => {
                // The watchdog sees the signal and the end of redlock at the same time.
                send(watchdog, libc::SIGSTOP);
                wait_until("it is stopped", || state(watchdog) == Some('T'));
                run.kill();
                send(watchdog, libc::SIGTERM);
                send(watchdog, libc::SIGCONT);
            }
            _ => {
                send(watchdog, libc::SIGKILL);
                let first = watchdog;
                // The next renewal starts a new watchdog.
                watchdog = await_some("there is another", || {
                    crate::support::watchdog(run.pid()).filter(|&second| second != first)
                });
                run.kill();
            }
        }
        wait_until(&format!("all are dead: {hit}"), || {
            !family.iter().any(|&pid| is_alive(pid))
        });
        wait_until("it has ended", || !is_alive(watchdog));
    }
}

/// COMMAND with a child that says `asked` at a TERM, and goes on until the home directory has `over`.
const ASKED: &str = r#"
    sh -c 'trap "echo asked" TERM; echo ready $$
        while [ ! -e "$HOME/over" ]; do sleep 0.01 & wait $!; done; echo over' &"#;

#[test]
fn a_term_for_every_process_reaches_once_what_a_killed_command_has_left() {
    let redis = Redis::start();
    let command = format!("{ASKED} exec sleep 50");
    let mut run = run(&redis, words!("run -v --ttl 120s -k 60s a -c", &command));
    let left = pid_in(&run.line());
    let watchdog = await_watchdog(run.pid());
    let command = children(run.pid())[0];
    // COMMAND has died by it when redlock takes it in.
    run.suspend();
    for pid in [left, watchdog, command, run.pid()] {
        send(pid, libc::SIGTERM);
    }
    run.expect_line("asked");
    wait_until("COMMAND has ended", || state(command) == Some('Z'));
    run.resume();
    run.await_signals_read();
    fs::write(redis.dir.path().join("over"), "").unwrap();
    let end = run.finish();
    assert_eq!(end.stdout.matches("asked").count(), 1, "{end:?}");
}

/// As `pkill -P REDLOCK` sends it.
#[test]
fn a_term_for_the_children_of_redlock_spares_nothing_that_command_has_started() {
    for rest in ["exec sleep 50", "trap : TERM; wait $!; wait $!"] {
        let redis = Redis::start();
        let command = format!("{ASKED} {rest}");
        let mut run = run(&redis, words!("run --ttl 120s -k 60s a -c", &command));
        run.pid_after("ready");
        let watchdog = await_watchdog(run.pid());
        for pid in [watchdog, children(run.pid())[0]] {
            send(pid, libc::SIGTERM);
        }
        if rest.contains("trap") {
            // Another process signals redlock after that.
            let kill = format!("kill {}", run.pid());
            assert!(sh(&redis, &kill).status().unwrap().success());
        }
        run.expect_line("asked");
        fs::write(redis.dir.path().join("over"), "").unwrap();
        run.expect_line("over");
        run.finish();
    }
}

#[test]
fn a_signal_for_redlocks_group_reaches_command_also_when_a_new_watchdog_gets_it_too() {
    let redis = Redis::start();
    // The watchdog stays in redlock's group until strace is killed.
    let words = words!(
        "strace -DDD -f -e trace=setsid -e inject=setsid:delay_enter=60s -o /dev/null {} run --ttl 120s -k 60s a -- perl -e {} child INT TERM",
        REDLOCK,
        COUNTER
    );
    for signal in [Signal::SIGINT, Signal::SIGTERM] {
        let mut run = Running::start(&mut directly(&redis, words));
        assert!(run.line().starts_with("child ready "));
        let watchdog = await_some("it has forked a watchdog", || forked_watchdog(run.pid()));
        let tracer = status_of(watchdog, "TracerPid").parse().unwrap();
        // redlock finds the signal as late as on a busy machine.
        run.signal(Signal::SIGSTOP);
        wait_until("redlock is stopped", || {
            matches!(state(run.pid()), Some('T' | 't'))
        });
        killpg(Pid::from_raw(run.pid()), signal).unwrap();
        send(tracer, libc::SIGKILL);
        assert_eq!(await_watchdog(run.pid()), watchdog);
        run.signal(Signal::SIGCONT);
        run.expect_line(&format!("child {}", &signal.as_str()[3..]));
        send(run.pid(), libc::SIGRTMAX());
        run.expect_line("child end");
        run.finish();
    }
}

#[test]
fn the_command_of_a_redlock_that_is_stopped_or_held_by_a_debugger_is_dead_when_its_lease_ends() {
    let held = words!("-e inject=poll,ppoll:delay_exit=60s -o /dev/null");
    side_by_side([true, false], |is_stopped| {
        let redis = Redis::start();
        // A busy machine has a third of a second to kill them all before the lease ends.
        let mut run = run(&redis, words!("run --ttl 12s -k 1s a -c", FAMILY));
        let family = family(&mut run);
        await_watchdog(run.pid());
        let debugger = if is_stopped {
            killpg(Pid::from_raw(run.pid()), Signal::SIGSTOP).unwrap();
            None
        } else {
            Some(attach_strace(run.pid(), held))
        };
        let next = Gated::start(&redis, &["-q", "a"]).ready();
        // COMMAND itself is reaped only when redlock goes on.
        let left = family.iter().filter(|&&pid| is_alive(pid)).count();
        assert_eq!(left, 0, "is stopped: {is_stopped}");
        let token = redis.cli(&["GET", "redlock:a"]);
        if let Some(mut debugger) = debugger {
            debugger.kill().unwrap();
            debugger.wait().unwrap();
        }
        run.signal(Signal::SIGCONT);
        run.finish_saying(79, "not renewed in time");
        assert_eq!(
            redis.cli(&["GET", "redlock:a"]),
            token,
            "it is the next one's"
        );
        next.end();
    });
}

#[test]
fn a_stopped_redlocks_command_whose_lock_is_lost_has_no_time_beyond_its_grace() {
    let redis = Redis::start();
    let script = r#"trap "echo TERM" TERM; trap "echo USR1" USR1
        echo $$; while :; do sleep 0.02; done"#;
    // According to the last renewal, COMMAND might live for minutes.
    let mut run = run(&redis, words!("run --ttl 5m -k 8s a -c", script));
    let command: i32 = run.line().parse().unwrap();
    await_watchdog(run.pid());
    wait_until("it is renewed, and told of changes", || {
        redis.trackers() > 0
    });
    redis.cli(&["DEL", "redlock:a"]);
    run.expect_line("TERM");
    // redlock handles this signal only after it has informed the watchdog.
    run.signal(Signal::SIGUSR1);
    run.expect_line("USR1");
    run.suspend();
    wait_until("it is dead", || !is_alive(command));
    run.resume();
    run.finish().assert_code(79);
}

#[test]
fn a_watchdog_kills_the_command_before_it_looks_at_anything_that_may_keep_it_waiting() {
    let redis = Redis::start();
    let script = "echo $$; exec sleep 50";
    let mut run = run(&redis, words!("run --ttl 9s a -c", script));
    let command: i32 = run.line().parse().unwrap();
    let watchdog = await_watchdog(run.pid());
    killpg(Pid::from_raw(run.pid()), Signal::SIGSTOP).unwrap();
    wait_until("it has taken in what it was told", || rests(watchdog));
    // Like a /proc that waits for the memory of another process.
    let held = words!("-e inject=openat:delay_enter=60s -o /dev/null");
    let mut strace = attach_strace(watchdog, held);
    let next = ends(&redis, "run -q a -- true");
    let is_left = state(command).is_some_and(|state| state != 'Z');
    let _ = strace.kill();
    let _ = strace.wait();
    next.assert_code(0);
    assert!(!is_left);
    run.signal(Signal::SIGCONT);
    run.finish().assert_code(79);
}

#[test]
fn a_watchdog_leaves_a_command_the_time_that_it_has_extended_its_lease_by() {
    let redis = Redis::start();
    load_scripts(&redis);
    let proxy = Proxy::new(&redis);
    let mut gate = Gate::new(&redis);
    // COMMAND takes longer than a lease after a renewal.
    let script = r#"echo ready; read go <"$HOME/gate"
        redlock -u "$0" extend --for 60s && echo extended; sleep 8; echo done"#;
    let (url, direct) = (proxy.url(), redis.url());
    let words = words!("run -u {} --ttl 6s -k 1s a -- sh -c", &url, script, &direct);
    let mut run = run(&redis, words).at_ready();
    wait_until("it is told of changes", || proxy.answered("check") > 0);
    let looks = proxy.answered("check");
    gate.open();
    run.expect_line("extended");
    wait_until("it has heard", || proxy.answered("check") > looks);
    // The watchdog knows of a renewal that redlock's timer has caused.
    wait_until("it is renewed again", || proxy.answered("renew") > 1);
    proxy.vanish();
    run.expect_line("done");
    run.finish().assert_code(0);
}

#[test]
fn a_renewal_that_finds_one_of_two_locks_lost_gives_the_command_no_more_time() {
    let redis = Redis::start();
    load_scripts(&redis);
    let proxy = Proxy::new(&redis);
    let (url, script) = (proxy.url(), "echo $$; exec sleep 60");
    let mut run = run(&redis, words!("run -u {} --ttl 15s a b -c", &url, script));
    let command: i32 = run.line().parse().unwrap();
    // If b took long to acquire, a was renewed alone before.
    await_watchdog(run.pid());
    wait_until("both are renewed", || proxy.answered("check") > 1);
    let (before, socket) = (proxy.count("renew"), redis.socket());
    proxy.set_hook(move |request| match &*request.operation {
        "renew" if request.before == before => {
            ask(&socket, &["DEL", "redlock:a"]);
            Action::Stall(Duration::from_millis(700))
        }
        _ => Action::Pass,
    });
    wait_until("a is asked for once more", || proxy.count("renew") > before);
    let requested_at = now();
    let left: u64 = redis.cli(&["PTTL", "redlock:b"]).parse().unwrap();
    // The main thread isn't notified.
    let held = words!("-e inject=poll,ppoll,restart_syscall:delay_exit=60s -o /dev/null");
    let mut strace = attach_strace(run.pid(), held);
    wait_until("b is renewed", || proxy.answered("renew") > before + 1);
    wait_until("it is dead", || !is_alive(command));
    let took = now().saturating_sub(requested_at);
    strace.kill().unwrap();
    strace.wait().unwrap();
    // According to the renewal of b, COMMAND would live a third of the TTL longer.
    let most = Duration::from_millis(left + 3_000);
    assert!(took < most, "{took:?} of {left} ms");
    run.finish().assert_code(79);
}

#[test]
fn a_watchdog_ends_with_its_run_and_kills_nothing_that_was_left_on_purpose() {
    let script = r#"(setsid sleep 50 >/dev/null 2>&1 & echo $!); read go <"$HOME/gate""#;
    // If redlock is killed while it releases, its command has ended all the same.
    for is_killed in [false, true] {
        let redis = Redis::start();
        load_scripts(&redis);
        let mut gate = Gate::new(&redis);
        let lost = if is_killed {
            Action::LoseRequest
        } else {
            Action::Pass
        };
        let proxy = Proxy::once(&redis, "release", 0, lost);
        let mut run = run(&redis, words!("run -u {} a -c", &proxy.url(), script));
        let daemon: i32 = run.line().parse().unwrap();
        let watchdog = await_watchdog(run.pid());
        gate.open();
        if is_killed {
            wait_until("it releases", || proxy.count("release") == 1);
            run.kill();
        } else {
            run.finish().assert_code(0);
        }
        wait_until("the watchdog ends", || !is_alive(watchdog));
        assert!(is_alive(daemon));
        send(daemon, libc::SIGKILL);
    }
}

/// Asserts that this helper process holds only one socket, besides /dev/null and its timers and descriptors for signals and
/// processes.
#[track_caller]
pub fn assert_holds_nothing(helper: i32) {
    let open = || {
        let open = fs::read_dir(format!("/proc/{helper}/fd")).unwrap();
        let open = open.flatten().flat_map(|fd| fs::read_link(fd.path()));
        let mut open: Vec<String> = open.map(|path| path.display().to_string()).collect();
        // A pidfd keeps none of the process's files open.
        open.retain(|path| path != "/dev/null" && !path.starts_with("anon_inode:"));
        open
    };
    wait_until(
        "it has one socket and nothing else",
        || matches!(&open()[..], [socket] if socket.starts_with("socket:")),
    );
    let directory = fs::read_link(format!("/proc/{helper}/cwd")).unwrap();
    assert_eq!(directory.to_str(), Some("/"));
}

#[test]
fn a_watchdog_holds_nothing_of_the_job() {
    let redis = Redis::start();
    let run = run(&redis, &["run", "a", "--", "sleep", "50"]);
    assert_holds_nothing(await_watchdog(run.pid()));
    run.signal(Signal::SIGTERM);
    run.finish().assert_code(143);
}

/// Starts this user's redlock at a limit of processes: redlock and COMMAND, but no renewing thread and no watchdog.
fn limited(user: &OtherUser, url: &str, words: &[&str]) -> Running {
    let limit = words!("prlimit --nproc=2 ./redlock run");
    let mut command = user.command(&[limit, words].concat());
    Running::start(command.env("REDLOCK_URL", url))
}

#[test]
fn at_a_limit_of_processes_the_lock_is_renewed_all_the_same() {
    let mut user = some_or_return!(OtherUser::alone());
    let redis = Redis::start();
    let words = words!("--ttl 9s a -- head -n 1 gate");
    let mut run = limited(&user, &redis.tcp_url(), words);
    run.await_renewals(&redis, 5);
    let tasks = fs::read_dir(format!("/proc/{}/task", run.pid())).unwrap();
    assert_eq!(tasks.count(), 1);
    user.open_gate();
    run.finish().assert_code(0).assert_silent();
}

#[test]
fn at_a_limit_of_processes_the_loss_of_the_lock_is_noticed_before_the_next_renewal() {
    let user = some_or_return!(OtherUser::alone());
    let redis = Redis::start();
    // The next renewal is due after minutes.
    let words = words!("--ttl 15m a -- sleep 290");
    let mut run = limited(&user, &redis.tcp_url(), words);
    wait_until("it tracks its lock", || redis.trackers() > 0);
    redis.cli(&["DEL", "redlock:a"]);
    wait_until("it notices that", || run.has_ended());
    run.finish().assert_code(79);
}

#[test]
fn at_a_limit_of_processes_a_deadlock_is_found_all_the_same() {
    let mut user = some_or_return!(OtherUser::alone());
    let redis = Redis::start();
    // Two redlocks, and no thread for either.
    let script = "echo ready; read go <gate; exec ./redlock run -w 60s b -- true";
    let limited = limited(&user, &redis.tcp_url(), &["a", "-c", script]).at_ready();
    let nested = "redlock run -w 60s a -- true";
    let other = Running::start(&mut redis.run("b", nested));
    wait_until("the other one waits", || redis.queue("a").len() == 1);
    let connections = || -> u64 {
        let count = redis.info("stats", "total_connections_received");
        count.parse().unwrap()
    };
    let before = connections();
    user.open_gate();
    limited.finish_saying(75, "deadlock");
    other.finish().assert_code(0);
    let more = connections() - before;
    assert!(more < 20, "{more}");
}

#[test]
fn a_watchdog_that_is_late_kills_the_group_of_a_command_that_the_first_process_has_reaped() {
    crate::support::among_own_processes!();
    let redis = Redis::start();
    // Neither its parent nor its environment shows the child's origin.
    let script = r#"echo ready; read go <"$HOME/gate"
        (env -i sh -c 'echo $$; exec sleep 50' &); exec sleep 50"#;
    let mut gate = Gate::new(&redis);
    let mut run = run(&redis, words!("run --ttl 120s a -c", script)).at_ready();
    let (watchdog, command) = (await_watchdog(run.pid()), children(run.pid())[0]);
    wait_until("it has looked at COMMAND", || rests(watchdog));
    send(watchdog, libc::SIGSTOP);
    wait_until("it is stopped", || state(watchdog) == Some('T'));
    gate.open();
    let child: i32 = run.line().parse().unwrap();
    run.kill();
    wait_until("COMMAND is reaped", || is_gone(command));
    send(watchdog, libc::SIGCONT);
    wait_until("the watchdog ends", || !is_alive(watchdog));
    assert!(!is_alive(child));
}

/// Returns true if a watchdog waits for the next message or moment.
fn rests(watchdog: i32) -> bool {
    proc(watchdog, "wchan").contains("poll")
}

/// Moment at which a bystander gets COMMAND's pid.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Reuse {
    /// A child of COMMAND keeps the run going.
    WhileRunning,
    /// A new watchdog starts after the bystander.
    BeforeWatchdog,
    /// redlock is killed while it releases the lock.
    AtRelease,
}

#[test]
fn a_watchdog_kills_no_process_that_has_the_number_of_a_reaped_command() {
    // Pids can be chosen in a namespace of its own.
    crate::support::among_own_processes!();
    for reuse in [Reuse::WhileRunning, Reuse::BeforeWatchdog, Reuse::AtRelease] {
        assert_bystander_lives(reuse);
    }
}

/// Asserts that the watchdog doesn't kill a bystander with COMMAND's pid.
#[track_caller]
fn assert_bystander_lives(reuse: Reuse) {
    let redis = Redis::start();
    load_scripts(&redis);
    let proxy = Proxy::with(&redis, |request| match &*request.operation {
        "release" => Action::LoseRequest,
        _ => Action::Pass,
    });
    let rest = match reuse {
        Reuse::AtRelease => "",
        _ => "setsid sleep 50 >/dev/null 2>&1 &",
    };
    let script = format!(r#"echo $$; {rest} until [ -e "$HOME/over" ]; do sleep 0.01; done"#);
    let (url, script) = (proxy.url(), script.as_str());
    let words = words!("redlock run -u {} --ttl 9s a -c", &url, script);
    let words = match reuse {
        Reuse::AtRelease => words.to_vec(),
        _ => [&words[..2], &["--with-children"], &words[2..]].concat(),
    };
    let shell = r#"set -m; "$@" & echo "redlock $!"
        read go <"$HOME/gate"; echo $go >/proc/sys/kernel/ns_last_pid; sleep 50 & echo "bystander $!"; wait"#;
    let mut gate = Gate::new(&redis);
    let bash = words!("bash -c {} bash", shell);
    let mut bash = Running::start(&mut directly(&redis, &[bash, &words].concat()));
    // The shell prints one pid after a word, and COMMAND only its own.
    let mut lines = [bash.line(), bash.line()];
    lines.sort();
    let [command, redlock] = lines.map(|line| pid_in(&line));
    let mut watchdog = await_watchdog(redlock);
    wait_until("it has looked at COMMAND", || rests(watchdog));
    fs::write(redis.dir.path().join("over"), "").unwrap();
    wait_until("COMMAND is reaped", || is_gone(command));
    match reuse {
        Reuse::WhileRunning => {}
        Reuse::BeforeWatchdog => send(watchdog, libc::SIGKILL),
        Reuse::AtRelease => wait_until("it releases", || proxy.count("release") == 1),
    }
    gate.say(&(command - 1).to_string());
    let bystander = bash.line();
    if bystander != format!("bystander {command}") {
        // The kernel doesn't reuse a pid this soon, or the file doesn't exist.
        return;
    }
    if reuse == Reuse::BeforeWatchdog {
        watchdog = await_watchdog(redlock);
    }
    send(redlock, libc::SIGKILL);
    wait_until("the watchdog ends", || !is_alive(watchdog));
    assert!(is_alive(command), "the bystander was killed ({reuse:?})");
}

#[test]
fn a_process_with_the_locks_token_among_other_text_is_not_killed() {
    let redis = Redis::start();
    let script = r#"echo "$REDLOCK_TOKEN"; exec sleep 50"#;
    let mut run = run(&redis, words!("run --ttl 60s a -c", script));
    let token = run.line();
    let watchdog = await_watchdog(run.pid());
    let mut other = sh(&redis, "echo ready; exec sleep 50");
    let mut other = Running::ready(other.env("HTTP_USER_AGENT", format!("Mozilla {token}")));
    run.kill();
    wait_until("the watchdog ends", || !is_alive(watchdog));
    assert!(!other.has_ended());
}

#[test]
fn a_process_with_the_name_of_a_keeper_or_the_look_of_a_hook_does_not_escape() {
    let redis = Redis::start();
    let named = r#"setsid perl -e '$0 = "NAME"; $| = 1; print "ready $$\n"; sleep 600' & sleep 50"#;
    // Without the lock's token, and with a variable of every hook.
    let orphan = r#"env -i REDLOCK_EVENT=lost sh -c 'setsid sh -c "echo \$\$; exec sleep 600 >/dev/null" &'
        exec sleep 60 >/dev/null"#;
    for script in [
        &named.replace("NAME", "redlock-keeper"),
        &named.replace("NAME", "rl-hook"),
        orphan,
    ] {
        let mut run = redis.run("-k 100ms a", script);
        let mut run = Running::start(run.env("REDLOCK_HOOK", "true"));
        let escaping = pid_in(&run.line());
        run.signal(Signal::SIGTERM);
        run.finish().assert_code(143);
        assert!(!is_alive(escaping), "{script}");
    }
}

#[test]
fn process_lists_show_no_password_of_redlocks_words_when_it_is_a_keeper_or_a_watchdog() {
    let redis = Redis::with(&["--requirepass", "hidden"]);
    let url = format!("redis://:hidden@127.0.0.1:{}", redis.port);
    let words = words!("redlock -u {} run a -c", &url, "echo ready; exec sleep 50");
    let run = Running::ready(&mut directly(&redis, words));
    let watchdog = await_watchdog(run.pid());
    wait_until("its words are gone", || {
        proc(watchdog, "cmdline").starts_with("rl-watchdog\0")
    });
    assert!(!proc(watchdog, "cmdline").contains("hidden"));
    run.signal(Signal::SIGTERM);
    run.finish();
    let script =
        format!(r#"eval "$(redlock -u {url} acquire b --while-pid $$)"; echo ready; sleep 50"#);
    let script = Running::ready(&mut directly(&redis, &["bash", "-c", &script]));
    let keeper = keeper(&script);
    wait_until("its words are gone", || {
        !proc(keeper, "cmdline").contains("hidden")
    });
}
