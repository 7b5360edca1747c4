//! Finding and starting COMMAND, its environment, and failures to create things while it runs.
//!
//! strace injects errors that the kernel returns only when it is short of something. The tests of pid namespaces and of another
//! user check nothing without root or the permission to create namespaces.

use std::os::unix::fs::PermissionsExt;

use nix::sys::signal::kill;
use nix::unistd::Pid;

use crate::promises::keeper::keeper;
use crate::promises::terminal::hand_on;
use crate::support::prelude::*;

/// Returns redlock under strace with these options. strace ends like redlock; with `-D` it runs beside redlock.
fn traced(redis: &Redis, options: &[&str], arguments: &[&str]) -> Command {
    let strace = ["strace", "-o", "/dev/null"];
    directly(redis, &[&strace, options, &[REDLOCK], arguments].concat())
}

#[test]
fn when_the_renewing_thread_cannot_be_made_command_is_dead_before_the_lease_ends() {
    let redis = Redis::start();
    let life = redis.dir.path().join("life");
    // COMMAND's own process is the first clone(2) with either C library, and strace doesn't follow its children.
    let no_thread = words!("-D -e inject=clone3:error=EAGAIN -e inject=clone:error=EAGAIN:when=2+");
    let script = r#"setsid sleep 60 & echo child $!; exec perl -e "$0" "$1""#;
    let arguments = words!("run --ttl 12s -k 2s a -- sh -c", script, STUBBORN);
    let mut run = Running::start(traced(&redis, no_thread, arguments).arg(life));
    let (child, command) = (run.pid_after("child"), run.pid_after("ready"));
    redis.stall();
    let latest_expiry = now() + Duration::from_secs(12);
    run.expect_line("TERM");
    wait_until("it is dead", || !is_alive(command));
    redis.resume();
    wait_until("redlock ends", || run.has_ended());
    assert!(!is_alive(child), "a grandchild works on");
    assert!(is_gone(command), "COMMAND was not reaped");
    run.finish_saying(79, "was not renewed in time");
    assert_dead_before(redis.dir.path(), latest_expiry);
    redis.await_free("a");
}

#[test]
fn when_the_renewing_thread_can_be_made_in_time_all_goes_on() {
    let redis = Redis::left_empty();
    let no_thread =
        words!("-D -e inject=clone3:error=EAGAIN:when=1..2 -e inject=clone:error=EAGAIN:when=2..3");
    let mut gate = Gate::new(&redis);
    let arguments = words!("run --ttl 6s -k 100ms a -c", UNTIL_GATE);
    let mut run = Running::ready(&mut traced(&redis, no_thread, arguments));
    run.await_renewals(&redis, 9);
    gate.open();
    run.finish().assert_code(0).assert_silent();
}

/// Script that prints a process's environment, except values that differ between any two processes.
const SURROUNDINGS: &str = r#"
    use Cwd;
    sub slurp { open my $file, "<", "/proc/self/$_[0]" or return "none"; local $/; <$file> }
    for (split /\n/, slurp("status")) {
        print "$_\n" unless /^(Name|FDSize|Pid|Tgid|Ngid|PPid|NS\w+|Vm\w+|Rss\w+|HugetlbPages|SigQ|.*ctxt_switches):/
    }
    print "$_: ", slurp($_), "\n" for qw(limits oom_score_adj cgroup timerslack_ns personality
        coredump_filter loginuid uid_map gid_map setgroups);
    my $stat = slurp("stat");
    my @stat = split " ", substr $stat, rindex($stat, ")") + 2;
    print "terminal $stat[4] $stat[5], priority $stat[15], nice $stat[16], at the end $stat[35], ",
        "real-time $stat[37], policy $stat[38]\n";
    print "ns $_: ", readlink "/proc/self/ns/$_", "\n" for qw(cgroup ipc mnt net pid time user uts);
    print "directory ", getcwd, ", root ", readlink "/proc/self/root", "\n";
    printf "umask %o\n", umask;
    print "io ", `ionice -p $$`, "cpus ", `taskset -p $$` =~ s/\d+'s//r, "policy ", `chrt -p $$` =~ s/pid \d+'s//gr;
    for my $number (0 .. 255) {
        my $file = readlink "/proc/self/fd/$number" or next;
        next if $file =~ m{^/proc/};
        $file =~ s/^(pipe|socket):.*/$1/;
        print "descriptor $number $file\n";
    }
    print map { /^REDLOCK_(?!URL)/ ? () : "variable $_=$ENV{$_}\n" } sort keys %ENV;
"#;

#[test]
fn command_finds_everything_as_it_would_without_redlock() {
    let redis = Redis::start();
    let nowhere = format!("redis://127.0.0.1:{}", free_port());
    let opens = r#"exec env -u _ "$@" 3</dev/null 7</dev/null 200>/dev/zero"#;
    let look = ["perl", "-e", SURROUNDINGS];
    // Words that start COMMAND, with redlock or without.
    for around in [
        words!("nice -n 3"),
        &[],
        words!("prlimit --nofile=200:300 --core=0 --stack=4194304"),
        &["sh", "-c", r#"umask 027; cd /; exec "$@""#, "sh"],
        // bash tells each program its path, in the variable `_`.
        &["bash", "-c", opens, "bash"],
        words!("chrt --batch 0"),
        words!("taskset -c 0"),
    ] {
        let see = |way: &[&str]| outcome(&mut directly(&redis, &[around, way, &look].concat()));
        let direct = see(&[]);
        direct.assert_code(0).assert_silent();
        let without: Vec<&str> = direct.stdout.lines().collect();
        assert!(without.len() > 60, "{direct:?}");
        for way in [
            words!("redlock run a --"),
            words!("redlock run --on-unreachable run -u {} a --", &nowhere),
            words!("redlock run --on-unreachable run a --"),
            words!("redlock run -v --shared a --"),
            words!("redlock run --slots 3 a --"),
            words!("redlock run -t 50s -k 1s a b --"),
            words!("redlock run --ttl 9s -w 50s -q a --"),
            words!("redlock run --once-per 1ms a --"),
            words!("redlock run --supersede --cancel-in-progress a --"),
            words!("redlock run a -- redlock run b --"),
        ] {
            let under = see(way);
            under.assert_code(0);
            let with: Vec<&str> = under.stdout.lines().collect();
            let pairs = without.iter().zip(&with);
            let differ: Vec<_> = pairs.filter(|(one, other)| one != other).collect();
            assert!(
                differ.is_empty() && without.len() == with.len(),
                "{around:?} {way:?} changes (without, with redlock): {differ:#?}; {under:?}"
            );
        }
    }
}

#[test]
fn a_command_that_had_to_wait_finds_everything_as_it_would_without_redlock() {
    let redis = Redis::start();
    let see = |way: &[&str]| {
        let mut command = directly(&redis, &[way, &["perl", "-e", SURROUNDINGS]].concat());
        command.env("REDLOCK_URL", redis.tcp_url());
        Running::start(&mut command)
    };
    let direct = see(&[]).finish();
    for way in [
        words!("redlock run -v a --"),
        words!("redlock run --slots 1 -q a --"),
    ] {
        redis.cli(&["SET", "redlock:a", "somebody", "PX", "600000"]);
        let mut waiter = see(way);
        waiter.wait_until_queued(&redis);
        hand_on(&redis);
        waiter.finish().assert_printed(0, &direct.stdout);
    }
}

/// Returns a search path with these directories of the server's directory before the usual ones.
fn search_path(redis: &Redis, directories: &[&str]) -> String {
    let full = directories.iter().map(|directory| {
        let full = redis.dir.path().join(directory);
        fs::create_dir_all(&full).unwrap();
        full.display().to_string()
    });
    full.chain([path()]).collect::<Vec<_>>().join(":")
}

/// A program: its directory, text and mode.
type Tool<'a> = (&'a str, &'a str, u32);

#[test]
fn a_program_that_may_not_be_executed_or_whose_file_system_does_not_answer_is_passed_over() {
    let (two, three) = ("#!/bin/sh\necho two", "#!/bin/sh\necho three");
    let denied = ("one", "#!/bin/sh\necho one", 0o644);
    // A script without an interpreter line runs in the shell.
    let plain = ("two", "echo plain $0 $@; exit 4", 0o755);
    let both = [("two", two, 0o755), ("three", three, 0o755)];
    let rows: [(&[Tool], &str, i32, &str); 6] = [
        (&[denied, plain], "", 4, "plain HOME/two/tool x y\n"),
        (&[denied], "", 126, ""),
        (&[denied, both[1]], "", 0, "three\n"),
        (&both, "ENODEV", 0, "three\n"),
        (&both, "ESTALE", 0, "three\n"),
        (&both, "ETIMEDOUT", 0, "three\n"),
    ];
    for (tools, error, code, printed) in rows {
        let redis = Redis::left_empty();
        let home = redis.dir.path();
        let path = search_path(&redis, &["one", "two", "three"]);
        for (directory, text, mode) in tools {
            let tool = script(&home.join(directory), "tool", text);
            fs::set_permissions(tool, fs::Permissions::from_mode(*mode)).unwrap();
        }
        let run = words!("run a -- tool x y");
        // The second execve of each process, because redlock itself is the first one.
        let inject = format!("inject=execve:error={error}:when=2");
        let mut run = if error.is_empty() {
            redis.redlock(run)
        } else {
            traced(&redis, &["-f", "-e", &inject], run)
        };
        let end = outcome(run.env("PATH", path));
        let printed = printed.replace("HOME", home.to_str().unwrap());
        end.assert_printed(code, &printed);
        assert!(code == 126 || end.stderr.is_empty(), "{end:?}");
    }
}

#[test]
fn when_no_process_can_be_made_the_status_is_125_and_the_lock_is_free() {
    for (error, says) in [
        ("EAGAIN", &["Resource temporarily unavailable"][..]),
        // In the words of glibc and of musl.
        ("ENOMEM", &["annot allocate memory", "Out of memory"]),
    ] {
        let redis = Redis::left_empty();
        let inject = format!("inject=clone,clone3,fork,vfork:error={error}");
        let mut run = traced(&redis, &["-e", &inject], words!("run a -- echo ran"));
        let end = outcome(&mut run);
        end.assert_said(125, "echo");
        let is_named = says.iter().any(|text| end.stderr.contains(text));
        assert!(is_named, "{end:?}");
        assert_eq!(end.stdout, "");
    }
}

#[test]
fn a_child_that_is_killed_before_it_executes_is_not_a_command_that_was_not_found() {
    for inject in [
        "inject=setpgid:signal=KILL",
        "inject=execve:signal=KILL:when=2",
        // getppid makes the child believe that redlock has died.
        "inject=getppid:retval=1",
    ] {
        let redis = Redis::left_empty();
        // The first execve tries a directory that doesn't have the program.
        let path = search_path(&redis, &["one"]);
        let mut run = traced(&redis, &["-f", "-e", inject], &["run", "a", "--", "true"]);
        let end = outcome(run.env("PATH", path));
        let is_found = ![Some(126), Some(127)].contains(&end.code());
        assert!(is_found, "{inject}: {end:?}");
    }
}

#[test]
fn command_may_be_the_first_of_a_pid_namespace_that_redlock_is_not_in() {
    return_unless!(is_permitted(&["unshare", "--pid", "true"]));
    let redis = Redis::left_empty();
    let unshare = |command: &[&str]| {
        let words = [&["unshare", "--pid", REDLOCK, "run", "a", "--"], command].concat();
        outcome(&mut directly(&redis, &words))
    };
    let end = unshare(&["sh", "-c", "echo $$; exit 3"]);
    end.assert_silent().assert_printed(3, "1\n");
    unshare(&["no-such-command"]).assert_code(127);
}

/// Waits for the first process in the namespace of this unshare. Returns its pid outside.
#[track_caller]
pub fn inside(unshare: &Running) -> i32 {
    await_some("it is in its namespace", || {
        children(unshare.pid()).first().copied()
    })
}

#[test]
fn as_the_first_process_redlock_ends_by_a_term_while_it_connects() {
    let own = some_or_return!(in_own_pids());
    let redis = Redis::start();
    let deaf = UnresponsiveServer::new();
    redis.stall();
    for url in [deaf.url(), redis.url(), redis.tcp_url()] {
        for command in [&["run", "a", "--", "true"][..], &["acquire", "a"]] {
            let options = ["env", "REDLOCK_REDIS_TIMEOUT=50s", REDLOCK, "-u", &url];
            let words = [&own[..], &options, command].concat();
            let mut run = Running::start(&mut directly(&redis, &words));
            let redlock = inside(&run);
            wait_until("it is redlock", || proc(redlock, "comm") == "redlock");
            // The first signals may come before redlock has begun to connect.
            wait_until(&format!("{url} {command:?} ends"), || {
                if is_alive(redlock) {
                    let _ = kill(Pid::from_raw(redlock), Signal::SIGTERM);
                }
                std::thread::sleep(Duration::from_millis(50));
                run.has_ended()
            });
            run.finish().assert_code(143);
        }
    }
    redis.resume();
}

#[test]
fn an_acquire_that_cannot_say_its_token_is_refused() {
    let redis = Redis::start();
    for options in ["", "--while-pid $$", "--format token"] {
        let script = format!("redlock acquire a {options} >&-; echo $? >&2");
        let end = outcome(&mut sh(&redis, &script));
        assert!(end.stderr.ends_with("64\n"), "{options}: {end:?}");
        end.assert_says("redlock: ");
        // redlock doesn't take the lock even for a moment.
        assert_eq!(redis.scripts(), 0, "{options}");
        assert_nothing_left(&redis);
    }
}

#[test]
fn a_keeper_serves_pid_1_only_if_it_is_the_script() {
    // Outside a namespace, a lost lock would stop the whole machine.
    let own = some_or_return!(in_own_pids());
    let redis = Redis::left_empty();
    let script = "sh -c 'redlock acquire a --while-pid 1; echo $? >&2'; exit 0";
    let end = outcome(&mut directly(
        &redis,
        &[&own[..], &["sh", "-c", script]].concat(),
    ));
    end.assert_code(0);
    assert!(!end.stdout.contains("export"), "{end:?}");
    assert!(end.stderr.ends_with("64\n"), "{end:?}");
    assert!(end.stderr.starts_with("redlock: "), "{end:?}");
}

#[test]
fn a_script_that_is_the_first_process_gives_its_lock_back_at_its_end() {
    let own = some_or_return!(in_own_pids());
    let redis = Redis::left_empty();
    let mut gate = Gate::new(&redis);
    let script = r#"trap 'redlock release' EXIT
        eval "$(redlock acquire a --ttl 60s --while-pid $$)"
        echo "ready $$"; read go <"$HOME/gate"; redlock extend"#;
    let words = [&own[..], &["sh", "-c", script]].concat();
    let mut script = Running::start(&mut directly(&redis, &words));
    script.expect_line("ready 1");
    ends(&redis, "run -n a -- true").assert_code(75);
    gate.open();
    // The keeper is killed together with the script, so only the trap releases the lock.
    script.finish().assert_code(0).assert_silent();
}

#[test]
fn a_keeper_forwards_sigterm_once_and_never_escalates_to_a_kill() {
    let redis = Redis::left_empty();
    let mut gate = Gate::new(&redis);
    let text = r#"eval "$(redlock acquire a --ttl 6s -k 100ms --while-pid $$)"
        trap 'echo TERM' TERM; echo ready
        until read -t 0.1 go <"$HOME/gate"; do :; done; echo end"#;
    let mut script = Running::ready(&mut directly(&redis, &["bash", "-c", text]));
    send(keeper(&script), libc::SIGTERM);
    script.expect_line("TERM");
    // More than a TTL and many times --kill-after later, the script still holds its lock.
    script.await_renewals(&redis, 9);
    assert_eq!(redis.holder("a"), Some(script.pid()));
    gate.open();
    script.finish().assert_printed(0, "ready\nTERM\nend\n");
    redis.await_free("a");
}

#[test]
fn under_a_limit_of_file_sizes_command_gets_no_signal_for_a_file_of_redlocks() {
    let redis = Redis::start();
    let limited = r#"ulimit -f 0; exec "$0" run a -c 'read go <"$HOME/gate"; exit 7'"#;
    let mut gate = Gate::new(&redis);
    let mut run = Running::start(&mut directly(&redis, &["sh", "-c", limited, REDLOCK]));
    // redlock would write its file with the first renewal.
    wait_until("it is renewed, or ends", || {
        redis.scripts() > 2 || run.has_ended()
    });
    gate.open();
    run.finish().assert_code(7);
}
