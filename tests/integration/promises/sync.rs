//! Promises of `REDLOCK_SYNC`: with `all` a failover loses no lock, whichever replica follows the primary.

use std::collections::HashMap;

use crate::promises::sentinel::Proxied;
use crate::support::prelude::*;

/// Starts a job.
fn job(all: &Replicated, label: &str, options: &[&str]) -> Gated {
    let run = all.redlock(&[&["run"], options, &["a"]].concat());
    Gated::labelled(label, all.home.path(), run)
}

/// Starts a run with these words of redlock.
fn run(all: &Replicated, words: &[&str]) -> Running {
    Running::start(&mut all.redlock(words))
}

/// Returns the rest of the lease of "a" at a server, in milliseconds.
fn left(server: &Redis) -> i64 {
    server.cli(&["PTTL", "redlock:a"]).parse().unwrap()
}

/// Lets the primary accept a replica again.
fn connect(all: &Replicated, replica: usize) {
    let user = format!("server-{replica}");
    all.servers[0].cli(&["ACL", "SETUSER", &user, "on"]);
    wait_until("it is connected again", || {
        all.servers[replica].info("replication", "master_link_status") == "up"
    });
}

/// Returns `host:port` of a server.
fn address(all: &Replicated, number: usize) -> String {
    format!("127.0.0.1:{}", all.servers[number].port)
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
    // redlock doesn't wait for a replica that must never be promoted.
    all.servers[2].cli(&["CONFIG", "SET", "replica-priority", "0"]);
    let sync = words!("run -q -w 1s REDLOCK_SYNC=all a -- true");
    let runs = |all: &Replicated| outcome(&mut all.redlock(sync)).code() == Some(0);
    wait_until("it doesn't count any more", || runs(&all));
    // The confirmation of that replica doesn't replace that of another one.
    connect(&all, 2);
    all.cut_replication(0, 1);
    outcome(&mut all.redlock(sync)).assert_said(69, &address(&all, 1));
    connect(&all, 1);
    // redlock doesn't wait for a dead replica once the sentinels know of its death.
    all.set_patient(true);
    all.servers[1].kill();
    assert!(!runs(&all), "a replica that just died is left out");
    all.set_patient(false);
    all.servers[2].cli(&["CONFIG", "SET", "replica-priority", "100"]);
    wait_until("it doesn't count any more", || runs(&all));
}

#[test]
fn with_sync_status_shows_no_holder_before_the_replicas_have_its_grant() {
    let all = Replicated::start();
    let json = || json(&all.servers[0], "status --json a")[0].clone();
    all.cut_replication(0, 2);
    let words = words!("run REDLOCK_SYNC=2 REDLOCK_SYNC_TIMEOUT=20s --ttl 2m a -- sleep 60");
    let run = run(&all, words);
    wait_until("it is granted", || all.servers[0].is_held("a"));
    let lock = json();
    assert_eq!(lock["holders"], Value::Array(Vec::new()), "{lock}");
    let waiter = &lock["waiters"][0];
    assert_eq!(waiter["pid"], run.pid(), "{lock}");
    assert_eq!(waiter["granted"], true, "{lock}");
    connect(&all, 2);
    wait_until("it is a holder", || {
        json()["holders"][0]["pid"] == run.pid()
    });
    run.signal(Signal::SIGTERM);
    run.finish();
    // No run renews a script's lock.
    outcome(&mut all.redlock(&["acquire", "REDLOCK_SYNC=2", "a"])).assert_code(0);
    let lock = json();
    let holders = lock["holders"].as_array().map(Vec::len);
    assert_eq!(holders, Some(1), "{lock}");
}

/// Waits until all sentinels list server 0 as a replica with matching flags and role. Then asserts that a run with
/// `REDLOCK_SYNC=all` succeeds.
#[track_caller]
fn assert_runs_when_listed(all: &Replicated, is_meant: fn(&str, &str) -> bool) {
    let port = all.servers[0].port.to_string();
    let lists = |sentinel: &Sentinel| {
        let fields = |name| sentinel.fields("REPLICAS", name).into_iter();
        let each = fields("port").zip(fields("flags").zip(fields("role-reported")));
        let mut own = each.filter(|(of, _)| *of == port);
        own.any(|(_, (flags, role))| is_meant(&flags, &role))
    };
    wait_until("all sentinels list it", || all.sentinels.iter().all(lists));
    let end = run(all, words!("run -q -w 30s REDLOCK_SYNC=all b -- true")).finish();
    end.assert_code(0).assert_silent();
}

#[test]
fn with_sync_all_a_run_does_not_wait_for_a_former_primary_that_does_not_follow() {
    let mut all = Replicated::start();
    let words = ["REDLOCK_SYNC=all", "--ttl", "30s", "-k", "1s"];
    let holder = job(&all, "holder", &words).ready();
    all.settle(0);
    all.servers[0].kill();
    let primary = all.primary_after(0);
    // From now on no sentinel finds it down again, or not before the leases have ended.
    all.set_patient(true);
    assert_runs_when_listed(&all, |flags, _| !flags.contains("s_down"));
    wait_until("the holder renews its lease there", || {
        left(&all.servers[primary]) > 25_000
    });
    holder.end();
    all.start_again(0);
    // No sentinel can demote it.
    let rules = words!("ACL SETUSER sentinel -slaveof -replicaof");
    assert_eq!(all.servers[0].cli(rules), "OK");
    assert_runs_when_listed(&all, |flags, role| flags == "slave" && role == "master");
    assert_eq!(all.servers[0].info("replication", "role"), "master");
    assert_eq!(all.primary(), primary);
}

#[test]
fn with_sync_all_a_run_that_begins_while_the_primary_is_replaced_waits_for_the_next_one() {
    let mut all = Replicated::start();
    all.set_patient(true);
    all.servers[0].kill();
    let sync = words!("REDLOCK_SYNC=all run --ttl 60s a -- echo ran");
    let waits = run(&all, sync);
    // With a short timeout, a run gives up instead.
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
fn with_sync_a_run_waits_for_a_replica_and_requests_its_grant_again_after_a_ttl_with_a_new_fence() {
    let all = Replicated::start();
    // With 1, no replica follows, as just after a failover.
    for sync in ["all", "1"] {
        all.cut_replication(0, 2);
        if sync == "1" {
            all.cut_replication(0, 1);
        }
        let line = "run REDLOCK_SYNC={} REDLOCK_SYNC_TIMEOUT=300ms --ttl 3s a -c";
        let waits = run(&all, &words(line, &[sync, "echo $REDLOCK_FENCE"]));
        let grant = || all.servers[0].cli(&["GET", "redlock:a"]);
        let fence = || all.servers[0].cli(&["HGET", "{redlock:a}:state", "fence"]);
        wait_until("it is granted", || !grant().is_empty());
        let first = fence();
        wait_until("it is granted once more", || fence() != first);
        connect(&all, 2);
        let end = waits.finish();
        let number = |text: &str| text.trim().parse::<u64>().expect("a fencing token");
        let last = number(&end.assert_code(0).stdout);
        assert!(last > number(&first), "{end:?}");
    }
}

#[test]
fn with_sync_all_a_command_that_waited_does_not_start_on_a_grant_that_a_replica_does_not_have() {
    let all = Replicated::start();
    let holder = job(&all, "holder", &[]).ready();
    let words = words!("run REDLOCK_SYNC=all --ttl 60s --wait 6s a -- echo ran");
    let mut waiter = run(&all, words);
    waiter.wait_until_queued(&all.servers[0]);
    all.cut_replication(0, 2);
    holder.end();
    let end = waiter.finish_saying(69, &address(&all, 2));
    assert_eq!(end.stdout, "");
}

#[test]
fn with_sync_all_a_renewal_or_extension_that_a_replica_does_not_have_moves_no_deadline() {
    let all = Replicated::start();
    let (go, lagging) = (all.home.path().join("go"), address(&all, 2));
    let holders = [("a", ""), ("b", "redlock extend --for 60s b")].map(|(name, extend)| {
        let script = format!(
            r#"trap 'date +%s%N; exit 3' TERM; echo ready
            until [ -e "$HOME/go" ]; do sleep 0.02; done
            {extend}
            echo extended; while :; do sleep 0.05; done"#
        );
        let words = words!("run REDLOCK_SYNC=all --ttl 9s -k 3s {} -c", name, &script);
        run(&all, words).at_ready()
    });
    wait_until("both are renewed, and told of changes", || {
        all.servers[0].trackers() >= 2
    });
    all.cut_replication(0, 2);
    // The last valid renewals were sent before that, and the next ones are due in three seconds.
    let cut = now();
    fs::write(&go, "").unwrap();
    for mut holder in holders {
        holder.expect_line("extended");
        let end = holder.finish_saying(79, &lagging);
        let reports = end.stderr.matches("no renewal has succeeded for ");
        assert_eq!(reports.count(), 1, "{end:?}");
        let ended = moment(end.stdout.lines().last().unwrap());
        assert!(ended < cut + Duration::from_secs(9), "{cut:?} {ended:?}");
    }
}

#[test]
fn with_sync_1_a_renewal_of_several_locks_counts_for_each_that_a_replica_has() {
    let all = Replicated::start();
    let script = r#"until [ -e "$HOME/end" ]; do sleep 0.02; done"#;
    let line = r#"exec redlock run -v --ttl 6s -k 200ms a b -c "$0" 2>&1"#;
    let mut shell = directly(&all.servers[0], &["sh", "-c", line, script]);
    shell.env("REDLOCK_URL", all.url()).env("REDLOCK_SYNC", "1");
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
fn with_sync_all_the_holder_goes_on_whichever_replica_is_promoted() {
    let mut all = Replicated::start();
    let home = all.home.path().to_owned();
    all.prefer(2);
    let sync = ["REDLOCK_SYNC=all", "--ttl", "15s", "-k", "1s"];
    let holder = job(&all, "holder", &sync).ready();
    let mut waiter = job(&all, "waiter", &sync);
    waiter.run.wait_until_queued(&all.servers[0]);
    // The replica has the lock, but no renewals any more. A replica that was cut off for nine seconds isn't promoted.
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
    // By less than the clock skew that redlock expects.
    let clock = WallClock::ahead_by(450);
    let all = Replicated::with(&Plan {
        before: HashMap::from([(1, clock.before())]),
        ..Plan::default()
    });
    all.prefer(1);
    let proxied = Proxied::new(&all);
    let home = all.home.path().to_owned();
    let job = |label: &str, url: &str| {
        let run = all.redlock(&["--url", url, "run", "--ttl", "8s", "-k", "500ms", "a"]);
        Gated::labelled(label, &home, run)
    };
    let holder = job("holder", &proxied.url(&all)).ready();
    let mut waiter = job("waiter", &all.url());
    waiter.run.wait_until_queued(&all.servers[0]);
    waiter.open();
    all.settle(0);
    // From now on the holder reaches no server.
    for proxy in &proxied.proxies {
        proxy.vanish();
    }
    crate::support::send(all.servers[0].pid(), libc::SIGKILL);
    assert_eq!(all.primary_after(0), 1);
    waiter.finish().assert_code(0);
    holder.finish().assert_code(79);
    assert_in_turn(&home);
}
