//! What `REDLOCK_SYNC` promises: with `all` a failover loses no lock, whichever replica follows the primary; with
//! fewer replicas it may.

use std::collections::HashMap;
use std::path::Path;

use crate::promises::sentinel::Proxied;
use crate::support::prelude::*;

/// Starts a job.
fn job(all: &Replicated, label: &str, options: &[&str]) -> Gated {
    let run = all.redlock(&[&["run"], options, &["a"]].concat());
    Gated::labelled(label, all.home.path(), run)
}

/// Starts a run; the words are those of redlock.
fn run(all: &Replicated, words: &[&str]) -> Running {
    Running::start(&mut all.redlock(words))
}

/// What is left of the lease of "a" at a server, in milliseconds.
fn left(server: &Redis) -> i64 {
    server.cli(&["PTTL", "redlock:a"]).parse().unwrap()
}

/// The command printed when it ended, which is before the end of a lease that was renewed for the last time at this moment.
#[track_caller]
fn assert_ended_within_9_s(since: Duration, end: &Outcome) {
    let ended = moment(end.stdout.lines().last().unwrap());
    let lease_end = since + Duration::from_secs(9);
    assert!(ended < lease_end, "{ended:?} {lease_end:?}");
}

/// `host:port` of a server.
fn address(all: &Replicated, number: usize) -> String {
    format!("127.0.0.1:{}", all.servers[number].port)
}

#[test]
fn with_sync_1_two_may_run_when_a_replica_without_the_lock_is_promoted() {
    let mut all = Replicated::start();
    all.prefer(2);
    all.cut_replication(0, 2);
    // One replica has it; COMMAND goes on when the lock is lost, until the second was there.
    let stubborn = r#"trap 'echo asked' TERM; exec 9>>"$HOME/inside"; flock 9; echo ready
        until [ -e "$HOME/go" ]; do sleep 0.05; done"#;
    let words = words!("run REDLOCK_SYNC=1 --ttl 60s -k 20s a -c", stubborn);
    let mut holder = run(&all, words).at_ready();
    all.servers[0].kill();
    assert_eq!(all.primary_after(0), 2);
    job(&all, "second", &["REDLOCK_SYNC=1"]).ready().end();
    let overlaps = fs::read_to_string(all.home.path().join("overlaps"));
    assert_ne!(overlaps.unwrap_or_default(), "", "the second waited");
    holder.expect_line("asked");
    fs::write(all.home.path().join("go"), "").unwrap();
    holder.finish().assert_code(79);
}

#[test]
fn with_sync_all_a_grant_that_a_replica_does_not_have_is_given_back_and_that_one_is_named() {
    let mut all = Replicated::start();
    let lagging = address(&all, 2);
    let lagging = lagging.as_str();
    all.cut_replication(0, 2);
    for (command, says) in [
        ("run --wait 2s REDLOCK_SYNC=all a -- echo ran", lagging),
        ("run --wait 2s REDLOCK_SYNC=2 a -- echo ran", ""),
        ("acquire --wait 2s REDLOCK_SYNC=all a", lagging),
    ] {
        let words: Vec<&str> = command.split(' ').collect();
        let words = [&["REDLOCK_SYNC_TIMEOUT=300ms"], &words[..]].concat();
        let end = outcome(&mut all.redlock(&words));
        end.assert_said(69, says);
        assert!(!end.stdout.contains("ran"), "{command}");
        all.servers[0].await_free("a");
    }
    // One that is never to follow the primary doesn't count.
    all.servers[2].cli(&["CONFIG", "SET", "replica-priority", "0"]);
    let sync = words!("run -q -w 1s REDLOCK_SYNC=all a -- true");
    let runs = |all: &Replicated| outcome(&mut all.redlock(sync)).code() == Some(0);
    wait_until("it doesn't count any more", || runs(&all));
    // Nor does its confirmation count for one that could.
    let connected = |all: &Replicated, replica: usize| {
        all.servers[replica].info("replication", "master_link_status") == "up"
    };
    all.servers[0].cli(&["ACL", "SETUSER", "server-2", "on"]);
    wait_until("it is connected again", || connected(&all, 2));
    all.cut_replication(0, 1);
    outcome(&mut all.redlock(sync)).assert_said(69, &address(&all, 1));
    all.servers[0].cli(&["ACL", "SETUSER", "server-1", "on"]);
    wait_until("the other one is, too", || connected(&all, 1));
    // Nor does one that is dead, once the sentinels know it.
    all.set_patient(true);
    all.servers[1].kill();
    assert!(!runs(&all), "a replica that just died is left out");
    all.set_patient(false);
    all.servers[2].cli(&["CONFIG", "SET", "replica-priority", "100"]);
    all.servers[0].cli(&["ACL", "SETUSER", "server-2", "on"]);
    wait_until("it doesn't count any more", || runs(&all));
}

#[test]
fn with_sync_status_shows_no_holder_before_the_replicas_have_its_grant() {
    let all = Replicated::start();
    let json = || -> Value {
        let end = outcome(&mut all.redlock(&["status", "--json", "a"]));
        let locks: Value = serde_json::from_str(&end.assert_code(0).stdout).unwrap();
        locks[0].clone()
    };
    all.cut_replication(0, 2);
    let words = words!("run REDLOCK_SYNC=2 REDLOCK_SYNC_TIMEOUT=20s --ttl 2m a -- sleep 60");
    let run = run(&all, words);
    wait_until("it is granted", || {
        all.servers[0].cli(&["EXISTS", "redlock:a"]) == "1"
    });
    let lock = json();
    assert_eq!(lock["holders"], Value::Array(Vec::new()), "{lock}");
    let waiter = &lock["waiters"][0];
    assert!(
        waiter["pid"] == run.pid() && waiter["granted"] == true,
        "{lock}"
    );
    all.servers[0].cli(&["ACL", "SETUSER", "server-2", "on"]);
    wait_until("it is a holder", || {
        json()["holders"][0]["pid"] == run.pid()
    });
    run.signal(Signal::SIGTERM);
    run.finish();
    // A script's lock has no run that renews it.
    outcome(&mut all.redlock(&["acquire", "REDLOCK_SYNC=2", "a"])).assert_code(0);
    let lock = json();
    let holders = lock["holders"].as_array().map(Vec::len);
    assert_eq!(holders, Some(1), "{lock}");
}

#[test]
fn with_sync_all_the_list_of_one_sentinel_that_was_reset_is_not_the_list_of_the_replicas() {
    let all = Replicated::start();
    let forgotten = address(&all, 2);
    all.cut_replication(0, 2);
    // It learns of the replicas anew, from the primary.
    let first = &all.sentinels[0];
    assert_eq!(first.cli(&["SENTINEL", "RESET", MASTER]), "1");
    let listed = || first.fields("REPLICAS", "port");
    let connected = all.servers[1].port.to_string();
    wait_until("it lists the one that is connected alone", || {
        listed() == [connected.as_str()]
    });
    let sync = words!("-w 3s REDLOCK_SYNC=all REDLOCK_SYNC_TIMEOUT=300ms");
    let run = |url: &str, options: &[&str]| {
        let words = [&["run", "--url", url], options, words!("a -- echo ran")].concat();
        outcome(&mut all.redlock(&words))
    };
    let end = run(&all.url(), sync);
    assert_eq!(end.assert_said(69, &forgotten).stdout, "");
    // Where the URL names no other one, nothing can be known.
    wait_until("it knows of the others again", || {
        first.fields("SENTINELS", "port").len() == 2
    });
    let alone = all.url_at(std::iter::once(first.port));
    let end = run(&alone, sync);
    let says = "the URL names only 1 of them";
    assert_eq!(end.assert_said(78, says).stdout, "");
    run(&alone, &["-w", "30s", "REDLOCK_SYNC=1"]).assert_code(0);
}

#[test]
fn with_sync_all_a_former_primary_that_is_back_is_not_waited_for_before_it_follows() {
    let mut all = Replicated::start();
    all.servers[0].kill();
    let primary = all.primary_after(0);
    all.start_again(0);
    // Nobody demotes it.
    let rules = ["ACL", "SETUSER", "sentinel", "-slaveof", "-replicaof"];
    assert_eq!(all.servers[0].cli(&rules), "OK");
    let port = all.servers[0].port.to_string();
    let is_back = |sentinel: &Sentinel| {
        let fields = |name| sentinel.fields("REPLICAS", name);
        let ports = fields("port").into_iter();
        let all = ports.zip(fields("flags")).zip(fields("role-reported"));
        let mut found = all.filter(|((of, _), _)| *of == port);
        found.any(|((_, flags), role)| flags == "slave" && role == "master")
    };
    wait_until("all sentinels see that it is a primary", || {
        all.sentinels.iter().all(is_back)
    });
    let end = run(&all, words!("run -q -w 30s REDLOCK_SYNC=all a -- true")).finish();
    end.assert_code(0).assert_silent();
    assert_eq!(all.servers[0].info("replication", "role"), "master");
    assert_eq!(all.primary(), primary);
}

#[test]
fn with_sync_all_a_dead_former_primary_is_not_waited_for_until_it_is_down_a_second_time() {
    let mut all = Replicated::start();
    let words = ["REDLOCK_SYNC=all", "--ttl", "30s", "-k", "1s"];
    let holder = job(&all, "holder", &words).ready();
    all.settle(0);
    all.servers[0].kill();
    let primary = all.primary_after(0);
    // From now on nobody finds it down again, or not before the leases have ended.
    all.set_patient(true);
    let is_up = |sentinel: &Sentinel| {
        let ports = sentinel.fields("REPLICAS", "port").into_iter();
        let mut all_flags = ports.zip(sentinel.fields("REPLICAS", "flags"));
        let port = all.servers[0].port.to_string();
        all_flags.any(|(of, flags)| of == port && !flags.contains("s_down"))
    };
    wait_until("the sentinels list it, and don't find it down", || {
        all.sentinels.iter().all(is_up)
    });
    let end = run(&all, words!("run -q -w 20s REDLOCK_SYNC=all b -- true")).finish();
    end.assert_code(0).assert_silent();
    wait_until("the holder renews its lease there", || {
        left(&all.servers[primary]) > 25_000
    });
    holder.end();
}

#[test]
fn with_sync_all_a_replica_that_copies_its_data_is_named_with_what_to_do() {
    let mut all = Replicated::start();
    // It comes back empty, and its primary takes a second for each key of the copy.
    for number in 0..30 {
        let set = all.servers[0].cli(&["SET", &format!("key-{number}"), "x"]);
        assert_eq!(set, "OK");
    }
    let slowly = ["CONFIG", "SET", "rdb-key-save-delay", "1000000"];
    assert_eq!(all.servers[0].cli(&slowly), "OK");
    let dir = all.servers[2].cli(&["CONFIG", "GET", "dir"]);
    all.servers[2].kill();
    // It was copied once before.
    let copy = Path::new(dir.lines().last().unwrap()).join("dump.rdb");
    let _ = fs::remove_file(copy);
    all.start_again(2);
    let copies = || {
        all.servers[0]
            .cli(&["INFO", "replication"])
            .contains("wait_bgsave")
    };
    wait_until("it waits for its copy", copies);
    let end = run(&all, words!("run -w 3s REDLOCK_SYNC=all a -- true")).finish();
    let replica = address(&all, 2);
    end.assert_said(69, &format!(
        "replica {replica} is still copying the primary's data; REDLOCK_SYNC=N would wait for any N replicas"
    ));
    let end = run(&all, words!("run -q REDLOCK_SYNC=1 a -- true")).finish();
    end.assert_code(0).assert_silent();
}

#[test]
fn with_sync_all_a_run_that_begins_while_the_primary_is_replaced_waits_for_the_next_one() {
    let mut all = Replicated::start();
    all.set_patient(true);
    all.servers[0].kill();
    let sync = words!("REDLOCK_SYNC=all run --ttl 60s a -- echo ran");
    let waits = run(&all, sync);
    // Not for long.
    let began = now();
    let hasty = words!("run -n REDLOCK_SYNC=all REDLOCK_REDIS_TIMEOUT=500ms --ttl 60s a -- true");
    run(&all, hasty).finish().assert_code(69);
    let took = now().saturating_sub(began);
    assert!(took >= Duration::from_millis(500), "{took:?}");
    all.set_patient(false);
    all.primary_after(0);
    waits.finish().assert_printed(0, "ran\n");
}

#[test]
fn with_sync_1_a_run_that_begins_before_a_replica_follows_waits_for_it() {
    let all = Replicated::start();
    // As just after a failover.
    all.cut_replication(0, 1);
    all.cut_replication(0, 2);
    let words = words!("run REDLOCK_SYNC=1 REDLOCK_SYNC_TIMEOUT=300ms --ttl 60s a -- echo ran");
    let waits = run(&all, words);
    wait_until("it has tried again", || all.servers[0].calls("wait") >= 3);
    all.servers[0].cli(&["ACL", "SETUSER", "server-2", "on"]);
    waits.finish().assert_printed(0, "ran\n");
}

#[test]
fn with_sync_all_a_grant_that_stays_unconfirmed_for_a_ttl_is_requested_again_with_a_new_fence() {
    let all = Replicated::start();
    all.cut_replication(0, 2);
    let options = words!("run REDLOCK_SYNC=all REDLOCK_SYNC_TIMEOUT=300ms --ttl 6s a -c");
    let waits = run(&all, &[options, &["echo $REDLOCK_FENCE"]].concat());
    let fence = || all.servers[0].cli(&["HGET", "{redlock:a}:state", "fence"]);
    wait_until("it is granted", || !fence().is_empty());
    let first = fence();
    wait_until("it is granted once more", || fence() != first);
    all.servers[0].cli(&["ACL", "SETUSER", "server-2", "on"]);
    let end = waits.finish();
    let number = |text: &str| text.trim().parse::<u64>().expect("a fencing token");
    assert!(
        number(&end.assert_code(0).stdout) > number(&first),
        "{end:?}"
    );
}

#[test]
fn with_sync_all_a_command_that_waited_does_not_start_on_a_grant_that_a_replica_does_not_have() {
    let all = Replicated::start();
    let holder = job(&all, "holder", &[]).ready();
    let words = words!("run REDLOCK_SYNC=all --ttl 60s --wait 8s a -- echo ran");
    let mut waiter = run(&all, words);
    waiter.wait_until_queued(&all.servers[0]);
    all.cut_replication(0, 2);
    holder.end();
    let end = waiter.finish_saying(69, &address(&all, 2));
    assert_eq!(end.stdout, "");
}

#[test]
fn with_sync_all_a_renewal_that_a_replica_does_not_have_moves_no_deadline_and_is_reported_once() {
    let all = Replicated::start();
    let lagging = address(&all, 2);
    let until_stopped = r"trap 'date +%s%N; exit 3' TERM; echo ready; while :; do sleep 0.05; done";
    let words = words!("run REDLOCK_SYNC=all --ttl 9s -k 3s a -c", until_stopped);
    let holder = run(&all, words).at_ready();
    all.cut_replication(0, 2);
    // The last renewal that counts was sent before that.
    let cut = now();
    let end = holder.finish_saying(79, &lagging);
    let reports = end.stderr.matches("replicas didn't confirm a renewal");
    assert_eq!(reports.count(), 1, "{end:?}");
    assert_ended_within_9_s(cut, &end);
}

#[test]
fn with_sync_1_a_renewal_of_several_locks_counts_for_each_that_a_replica_has() {
    let all = Replicated::start();
    let script = r#"until [ -e "$HOME/end" ]; do sleep 0.02; done"#;
    let line = r#"REDLOCK_SYNC=1 exec redlock run -v --ttl 12s -k 200ms a b -c "$0" 2>&1"#;
    let mut shell = Command::new("sh");
    shell.args(["-c", line, script]).env_clear();
    shell.env("PATH", path()).env("REDLOCK_URL", all.url());
    let mut run = Running::start(shell.env("HOME", all.home.path()));
    let mut renewals = 0;
    while renewals < 4 {
        let line = run.line();
        assert!(!line.contains("renewal failed"), "{line}");
        renewals += usize::from(line.ends_with("lease renewed"));
    }
    fs::write(all.home.path().join("end"), "").unwrap();
    run.finish().assert_code(0);
}

#[test]
fn with_sync_all_a_lock_is_released_also_where_too_few_sentinels_answer_for_a_renewal() {
    let all = Replicated::start();
    let work = "echo ready; exec sleep 600";
    let words = words!("run REDLOCK_SYNC=all --ttl 9s -k 0s a -c", work);
    let holder = run(&all, words).at_ready();
    all.sentinels[1..].iter().for_each(Sentinel::kill);
    // Each renewal that doesn't count gives its connection up, so that the release needs another one.
    let end = holder.finish_saying(79, "only 1 of 3 sentinels named");
    assert!(!end.stderr.contains("can't release"), "{end:?}");
    assert!(!all.servers[0].is_held("a"));
}

#[test]
fn with_sync_all_an_extension_that_a_replica_does_not_have_moves_no_deadline() {
    let all = Replicated::start();
    let script = r#"trap 'date +%s%N; exit 3' TERM; echo ready
        until [ -e "$HOME/go" ]; do sleep 0.02; done
        redlock extend --for 60s; echo extended; while :; do sleep 0.05; done"#;
    let words = words!("run REDLOCK_SYNC=all --ttl 9s -k 3s a -c", script);
    let mut holder = run(&all, words).at_ready();
    wait_until("it is renewed, and told of changes", || {
        all.servers[0].trackers() > 0
    });
    all.cut_replication(0, 2);
    // The last renewal that counts was sent before that, and the next one is due in three seconds.
    let cut = now();
    fs::write(all.home.path().join("go"), "").unwrap();
    holder.expect_line("extended");
    let end = holder.finish();
    end.assert_code(79);
    assert_ended_within_9_s(cut, &end);
}

#[test]
fn with_sync_all_the_holder_goes_on_whichever_replica_is_promoted() {
    let mut all = Replicated::start();
    let home = all.home.path().to_owned();
    all.prefer(2);
    let sync = ["REDLOCK_SYNC=all", "--ttl", "15s", "-k", "1s"];
    let holder = job(&all, "holder", &sync).ready();
    let mut waiter = job(&all, "waiter", &sync);
    waiter.run.wait_until_queued(&all.servers[0]);
    // The lock is there; its renewals aren't any more. A replica that is cut off for nine seconds isn't promoted.
    all.settle(0);
    all.cut_replication(0, 2);
    wait_until("it is renewed where that counts for nothing", || {
        left(&all.servers[0]) > left(&all.servers[2]) + 1_000
    });
    all.servers[0].kill();
    assert_eq!(all.primary_after(0), 2);
    wait_until("it is renewed there", || left(&all.servers[2]) > 13_000);
    holder.end();
    waiter.ready().end();
    assert_in_turn(&home);
    assert_eq!(turns(&home).len(), 2);
}

#[test]
fn a_primary_whose_clock_is_ahead_grants_nothing_before_the_command_ends_by_the_clock_skew() {
    // The first is ahead, by less than the clock skew that redlock expects; the second is behind.
    let clocks = [WallClock::ahead_by(450), WallClock::ahead_by(-3_000)];
    let before = HashMap::from([(1, clocks[0].before()), (2, clocks[1].before())]);
    let mut all = Replicated::with(&Plan {
        before,
        ..Plan::default()
    });
    all.prefer(1);
    let proxied = Proxied::new(&all);
    let home = all.home.path().to_owned();
    let job = |label: &str, url: &str| {
        let run = all.redlock(&["--url", url, "run", "--ttl", "11s", "-k", "500ms", "a"]);
        Gated::labelled(label, &home, run)
    };
    let holder = job("holder", &proxied.url(&all)).ready();
    let mut waiter = job("waiter", &all.url());
    waiter.run.wait_until_queued(&all.servers[0]);
    waiter.open();
    all.settle(0);
    // From now on the holder reaches nobody.
    for proxy in &proxied.proxies {
        proxy.vanish();
    }
    crate::support::send(all.servers[0].pid(), libc::SIGKILL);
    assert_eq!(all.primary_after(0), 1);
    waiter.finish().assert_code(0);
    holder.finish().assert_code(79);
    assert_in_turn(&home);
    // The fence grows even where the clock has gone back by seconds.
    all.servers[0].kill();
    all.start_again(0);
    all.wait_until_whole();
    all.prefer(2);
    assert_eq!(all.failover(), 2);
    let run = all.redlock(&["run", "a"]);
    Gated::labelled("later", &home, run).ready().end();
    assert_in_turn(&home);
}
