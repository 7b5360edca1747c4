//! Shared locks and slots: which runs overlap, and which never do.

use nix::sys::signal::kill;
use nix::unistd::Pid;

use crate::support::prelude::*;

/// Runs a shell script several times at once, each in a loop of this many rounds.
fn loops(redis: &Redis, count: usize, rounds: u32, script: &str) -> Vec<Running> {
    let script = format!("for round in $(seq {rounds}); do {script}; done");
    let each = (0..count).map(|_| Running::start(&mut sh(redis, &script)));
    each.collect()
}

/// Returns everything that the runs printed.
fn printed(runs: Vec<Running>) -> String {
    let ends = runs.into_iter().map(Running::finish);
    ends.map(|end| end.stdout).collect()
}

#[test]
fn readers_and_a_writer_never_run_together() {
    let redis = Redis::left_empty();
    fs::create_dir(redis.dir.path().join("readers")).unwrap();
    // Each leaves its mark first, and then looks for the other's.
    let reader = r#"redlock run -q --shared a -c '
        mkdir "$HOME/readers/$$"
        [ ! -e "$HOME/writer" ] || echo "a reader beside a writer"
        sleep 0.01
        rmdir "$HOME/readers/$$"
    '"#;
    let writer = r#"redlock run -q a -c '
        mkdir "$HOME/writer" || echo "two writers"
        [ -z "$(ls "$HOME/readers")" ] || echo "a writer beside readers"
        rmdir "$HOME/writer"
        echo written
    '"#;
    let mut all = loops(&redis, 4, 20, reader);
    all.extend(loops(&redis, 2, 20, writer));
    assert_eq!(printed(all), "written\n".repeat(40));
}

#[test]
fn n_slots_with_killed_holders_are_never_more_than_n_and_no_two_have_one_number() {
    let redis = Redis::left_empty();
    // A mark has the pid of the COMMAND in the slot. An existing mark is an overlap, unless that COMMAND is dead.
    let script = r#"redlock run -q --slots 3 --ttl 2s -k 100ms a -c '
        case $REDLOCK_SLOT in [123]) ;; *) echo "a slot $REDLOCK_SLOT";; esac
        mark=$HOME/slot-$REDLOCK_SLOT
        if ! ln -sT $$ "$mark" 2>/dev/null; then
            other=$(readlink "$mark")
            case $(sed -n "s/^State:.//p" "/proc/$other/status" 2>/dev/null) in
                [!ZX]*) echo "two in slot $REDLOCK_SLOT: $$ and $other";;
            esac
            ln -sfnT $$ "$mark"
        fi
        echo ran
        sleep 0.0$(($$ % 5 + 2))
        [ "$(readlink "$mark")" != $$ ] || rm -f "$mark"
    ' 2>/dev/null; case $? in 69|79) echo late;; esac"#;
    let runs = loops(&redis, 8, 15, script);
    let mut killed = Vec::new();
    let mut dice = Dice::new(7, 3);
    while killed.len() < 12 {
        let tokens = redis.cli(&["ZRANGE", "{redlock:a}:holders", "0", "-1"]);
        let holders: Vec<i32> = tokens.lines().filter_map(pid_of).collect();
        assert!(holders.len() <= 3, "{tokens}");
        if let Some(&pid) = holders.get(dice.below(4))
            && !killed.contains(&pid)
        {
            // The process may have just exited.
            let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
            killed.push(pid);
        }
    }
    let printed = printed(runs);
    // On a slow machine a run may lose its lease, whether or not its COMMAND has printed "ran".
    let (ran, rest): (Vec<&str>, Vec<&str>) = printed.lines().partition(|line| *line == "ran");
    let (ran, late) = (ran.len(), rest.len());
    assert!(rest.into_iter().all(|line| line == "late"), "{printed}");
    assert!(
        ran <= 120 && ran + late >= 108,
        "{ran} of 120, 12 were killed, {late} were late"
    );
    // The last killed run may have left its entry until its TTL ends.
    redis.await_free("a");
    // The next run completes the history, and nothing else is left.
    ends(&redis, "run a -- true").assert_code(0);
}

#[test]
fn plain_clients_and_runs_exclude_each_other() {
    let redis = Redis::left_empty();
    let set = words!("SET redlock:a theirs NX PX 600000");
    for mode in [&["a"][..], &["--shared", "a"], &["--slots", "3", "a"]] {
        let run = Gated::start(&redis, mode).ready();
        assert_eq!(redis.cli(set), "", "the run held it");
        run.end();
        assert_eq!(redis.cli(set), "OK");
        let waiter = Gated::queued(&redis, mode);
        redis.cli(&["DEL", "redlock:a"]);
        waiter.ready().end();
    }
}

/// Returns the number of clients that track keys and have read the key since.
fn watching(redis: &Redis) -> usize {
    let clients = redis.cli(&["CLIENT", "LIST"]);
    let watches = |client: &&str| client.contains(" flags=t") && client.contains(" cmd=eval");
    clients.lines().filter(watches).count()
}

#[test]
fn readers_that_come_do_not_make_the_others_look() {
    let redis = Redis::left_empty();
    let scripts = || redis.scripts();
    let readers: Vec<Gated> = (0..25)
        .map(|_| Gated::start(&redis, &["--shared", "--ttl", "5m", "a"]).ready())
        .collect();
    wait_until("all watch the key", || watching(&redis) == 25);
    // An acquire, a renewal and a check of the key for each.
    let sent = scripts();
    assert!(sent < 25 * 4, "{sent} scripts for 25 readers");
    for gated in readers {
        gated.end();
    }
}

#[test]
fn a_member_of_a_group_whose_key_others_change_is_stopped_at_once() {
    for change in ["SET redlock:a theirs PX 600000", "DEL redlock:a"] {
        let redis = Redis::start();
        let members =
            [(); 2].map(|()| Gated::start(&redis, words!("--ttl 120s -k 20s --shared a")).ready());
        wait_until("both watch the key", || watching(&redis) == 2);
        let changed = Instant::now();
        redis.cli(&words(change, &[]));
        for member in members {
            member.run.finish_saying(79, "lock \"a\" was lost");
        }
        // The next renewal is due only after 40 s.
        assert_took_less(changed, Duration::from_secs(20));
    }
}
