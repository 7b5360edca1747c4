//! Scenarios with their expected outcomes.

use std::time::Duration;

use super::lab::{CLIENTS, Lab, SENTINELS, pass};
use super::report::Finding;
use crate::machines::chaos::history::{Nanos, boottime};
use crate::support::{Cluster, Link, MASTER, asked, wait_until};

/// Name, and the function that plays the scenario.
pub type Scenario = (&'static str, fn() -> Finding);

/// Hosts of the clients and sentinels.
const A: usize = CLIENTS;
const B: usize = CLIENTS + 1;
const S1: usize = SENTINELS;
const S2: usize = SENTINELS + 1;
const S3: usize = SENTINELS + 2;

const ALL_SYNCED: &str = "REDLOCK_SYNC=all --ttl 15s -k 1s";
const PLAIN: &str = "--ttl 15s -k 1s";
/// Options for scenarios in which other jobs must not need to wait until a lease ends.
const SLOW: &str = "REDLOCK_SYNC=all --ttl 30s -k 1s";
/// Options for scenarios in which a lease must end before other jobs start.
const SHORT: &str = "REDLOCK_SYNC=all --ttl 6s -k 1s";

/// Longest delay of a start beyond the failover itself, in seconds.
const BEYOND: f64 = 3.0;

/// Longest time without a start if the primary is killed, including the failover, in seconds.
const KILLED: f64 = 4.5;

/// Time until the sentinels report that a replica is down, in seconds.
const NOTICED: f64 = 3.0;

pub const ALL: &[Scenario] = &[
    ("v1-reset", || v1(true)),
    ("v1-control", || v1(false)),
    ("disagreeing-sentinel", disagreeing_sentinel),
    ("sentinel-failover", sentinel_failover),
    ("release-in-failover", release_in_failover),
    ("killed-primary", killed_primary),
    ("killed-often", killed_often),
    ("stopped-primary", || {
        ex_primary(|lab| lab.all.servers[0].stall())
    }),
    ("cut-primary", || ex_primary(|lab| lab.network.cut(0))),
    ("replica-without-line", replica_without_line),
    ("replica-back", || replica_back("60", "4", 32)),
    ("silent-replica", || replica_back("10", "10", 40)),
    ("release-to-old", release_to_old),
    ("cut-client", cut_client),
    ("far-125ms", || far_away(125)),
    ("far-250ms", || far_away(250)),
    ("sentinel-mix", sentinel_mix),
    ("cluster-takeover", cluster_takeover),
    ("cluster-mix", cluster_mix),
];

/// Lets two clients compete for two locks all the time, 300 ms each. Grants of one lock wait for all replicas, those of the
/// other for none.
fn both_locks<Site>(lab: &mut Lab<Site>) {
    compete(lab, "all", ALL_SYNCED);
    compete(lab, "plain", PLAIN);
}

/// Lets both clients compete for a lock like that.
fn compete<Site>(lab: &mut Lab<Site>, lock: &str, options: &str) {
    for client in [A, B] {
        lab.repeat(client, lock, options, 300..301);
    }
    lab.until_started(lock, 4);
}

/// Cuts the primary, R2, S1 and A off from R3, R4, S2, S3 and B, which promote R3 or R4. In the end the old primary lists only
/// R2, and so does S1 if it is reset. Jobs on A's side end before any start on B's side, which has most sentinels.
fn v1(is_reset: bool) -> Finding {
    let mut lab = Lab::start(4, 2, "--repl-timeout 5");
    compete(&mut lab, "all", SHORT);
    let began = boottime();
    lab.network.part(&[0, 1, S1, A], &[2, 3, S2, S3, B]);
    wait_until("another is the primary", || {
        let named = [0, 1, 2].map(|sentinel| lab.named(sentinel));
        named[0] == Some(0) && named[1] == named[2] && named[1] > Some(1)
    });
    wait_until("the old primary lists one replica", || {
        lab.all.servers[0].info("replication", "connected_slaves") == "1"
    });
    if is_reset {
        lab.all.sentinels[0].ask(&["SENTINEL", "RESET", MASTER]);
    }
    pass(25);
    let (mut finding, [all]) = lab.end(began, ["all"]);
    finding.expect_exclusion(&all);
    let by_b = all.starts_by(B, began);
    let what = format!("the side with most sentinels goes on: {by_b} holds");
    finding.expect(by_b > 3, what);
    finding
}

/// Cuts the primary and the first sentinel of the URL off from the other servers and sentinels, which replace that primary.
/// Clients reach all of them. Later runs take no lock at the old primary, although that sentinel still names it.
fn disagreeing_sentinel() -> Finding {
    let mut lab = Lab::start(3, 2, "");
    both_locks(&mut lab);
    let began = boottime();
    lab.network.part(&[0, S1], &[1, 2, S2, S3]);
    let took = lab.until_failover();
    pass(5);
    for client in [A, B] {
        lab.repeat(client, "new", PLAIN, 20..4000);
    }
    pass(40);
    let (mut finding, [all, new]) = lab.end(began, ["all", "new"]);
    finding.expect_well(&[&all, &new]);
    // The old primary still answers, so a renewal there must fail first.
    finding.expect_starts(&all, took + 2.0 * BEYOND);
    finding
}

/// Lets an operator replace the primary every 10 s. With `REDLOCK_SYNC=all` there are as many holds as without, and no job is
/// stopped, short or long. Without it a job may lose a lock that was granted at the moment of a failover, but no other lock.
fn sentinel_failover() -> Finding {
    let mut lab = Lab::start(3, 2, "");
    both_locks(&mut lab);
    lab.once(A, "steady", PLAIN, 115_000);
    lab.once(B, "long", ALL_SYNCED, 115_000);
    lab.until_started("steady", 1);
    lab.until_started("long", 1);
    pass(1);
    let began = boottime();
    for turn in 0..12 {
        lab.all.sentinels[turn % 3].ask(&["SENTINEL", "FAILOVER", MASTER]);
        pass(10);
    }
    let locks = ["all", "plain", "long", "steady"];
    let (mut finding, [all, plain, long, steady]) = lab.end(began, locks);
    finding.expect_well(&[&all, &long, &steady]);
    let (with, without) = (all.starts.len(), plain.starts.len());
    finding.expect(
        with * 10 >= without * 8,
        format!("as many holds with `all` as without, or a fifth fewer: {with} and {without}"),
    );
    finding
}

/// Ends holds within two seconds after an operator has replaced the primary, 10 s after another failover. Each lock is granted
/// as soon as there is a primary, long before the TTL is over.
fn release_in_failover() -> Finding {
    const HOLD: i64 = 8000;
    let locks = ["0", "1", "2", "3", "4", "5", "6", "7"];
    let mut lab = Lab::start(3, 2, "");
    lab.all.failover();
    for (number, lock) in (0..).zip(locks) {
        lab.once(A, lock, SLOW, HOLD + 250 * number);
    }
    for lock in locks {
        lab.until_started(lock, 1);
        lab.repeat(B, lock, SLOW, 3000..3001);
    }
    lab.until_due("0", HOLD);
    let began = boottime();
    lab.all.sentinels[1].ask(&["SENTINEL", "FAILOVER", MASTER]);
    lab.started_after(&locks, began, 70);
    pass(5);
    let (mut finding, reports) = lab.end(began, locks);
    for report in &reports {
        finding.expect_well(&[report]);
        finding.expect_starts(report, 15.0);
    }
    finding
}

/// Kills the primary while runs hold, wait and release. Starts follow a failover within [`BEYOND`].
fn killed_primary() -> Finding {
    let mut lab = Lab::start(3, 2, "");
    both_locks(&mut lab);
    let began = boottime();
    lab.all.servers[0].kill();
    let took = lab.until_failover();
    lab.started_after(&["all", "plain"], boottime(), 70);
    pass(5);
    let (mut finding, [all, plain]) = lab.end(began, ["all", "plain"]);
    finding.expect_exclusion(&all);
    for report in [&all, &plain] {
        finding.expect_unharmed(report);
        finding.expect_starts(report, took + BEYOND);
    }
    finding
}

/// Kills the primary every 15 s, and starts it again after another server has taken over.
fn killed_often() -> Finding {
    let mut lab = Lab::start(3, 2, "");
    // Runs repeat a failed release for --kill-after, which is 5 s.
    compete(&mut lab, "all", "REDLOCK_SYNC=all --ttl 15s");
    let began = boottime();
    for _ in 0..4 * rounds() {
        let primary = lab.all.primary();
        lab.all.servers[primary].kill();
        pass(6);
        lab.start_again(primary);
        pass(9);
        lab.all.wait_until_whole();
    }
    let (mut finding, [all]) = lab.end(began, ["all"]);
    finding.expect_well(&[&all]);
    finding.expect_starts(&all, KILLED);
    finding
}

/// Silences a primary until another server has taken over. The old primary then returns without knowing that.
fn ex_primary(befall: fn(&Lab)) -> Finding {
    let mut lab = Lab::start(3, 2, "");
    both_locks(&mut lab);
    lab.once(A, "long", ALL_SYNCED, 45_000);
    lab.until_started("long", 1);
    let began = boottime();
    befall(&lab);
    let took = lab.until_failover();
    pass(3);
    lab.network.heal();
    lab.all.servers[0].resume();
    // Runs of "new" begin now, so none of them has met the old primary.
    lab.repeat(B, "new", ALL_SYNCED, 300..301);
    pass(25);
    let locks = ["all", "plain", "long", "new"];
    let (mut finding, [all, plain, long, new]) = lab.end(began, locks);
    finding.expect_well(&[&all, &long, &new]);
    finding.expect_unharmed(&plain);
    for report in [&all, &plain] {
        finding.expect_starts(report, took + BEYOND);
    }
    finding
}

/// Cuts the replica that sentinels prefer off from the primary, and lets them promote it: nothing was granted meanwhile.
fn replica_without_line() -> Finding {
    let mut lab = Lab::start(3, 2, "--repl-timeout 5");
    lab.all.prefer(1);
    for client in [A, B] {
        lab.repeat(client, "all", ALL_SYNCED, 4000..6000);
    }
    lab.until_started("all", 2);
    let began = boottime();
    lab.network.part(&[0], &[1]);
    pass(8);
    lab.all.servers[0].kill();
    let took = lab.until_failover();
    let is_promoted = lab.all.servers[1].info("replication", "role") == "master";
    lab.started_after(&["all"], boottime(), 70);
    pass(10);
    let (mut finding, [all]) = lab.end(began, ["all"]);
    finding.expect(is_promoted, "the replica without a line was promoted");
    finding.expect_well(&[&all]);
    // No hold begins during the 8 s of the cut, and one that began just before it ends late.
    finding.expect_starts(&all, 8.0 + took + 8.0);
    finding
}

/// Cuts a replica off for this many seconds, until it connects again. The primary may still have its old connection too, unless
/// its `repl-timeout` is over.
fn replica_back(of_primary: &str, of_replica: &str, seconds: u64) -> Finding {
    let mut lab = Lab::start(3, 2, &format!("--repl-timeout {of_primary}"));
    lab.all.servers[2].cli(&["CONFIG", "SET", "repl-timeout", of_replica]);
    both_locks(&mut lab);
    lab.once(A, "long", ALL_SYNCED, 80_000);
    lab.until_started("long", 1);
    let began = boottime();
    lab.network.cut(2);
    // TCP sends again after 0.2, 0.6, 1.4 s and so on. The primary sends after 25.4 s and then 51 s, and only then learns that
    // its old connection is over. A replica that gives up after 4 s sends after 30 s and then 56 s.
    pass(seconds);
    lab.network.heal();
    let back = boottime();
    wait_until("the replica is connected again", || {
        lab.all.lacking().is_none()
    });
    pass(25);
    let (mut finding, [all, long]) = lab.end(began, ["all", "long"]);
    finding.expect_well(&[&all, &long]);
    finding.expect_starts(&all, NOTICED + BEYOND);
    let since = all.longest_since(back);
    finding.expect(
        since <= BEYOND,
        format!(
            "it is in step at once: {since:.1} s without a start since then, of at most {BEYOND:.1}"
        ),
    );
    finding
}

/// Ends a hold while only its run reaches the primary. With `REDLOCK_SYNC=all` the lock is free at the next primary at once;
/// otherwise it is free when the lease ends.
fn release_to_old() -> Finding {
    const HOLD: i64 = 3000;
    let mut lab = Lab::start(3, 2, "");
    for (lock, options) in [("all", SLOW), ("plain", PLAIN)] {
        lab.once(A, lock, options, HOLD);
        lab.until_started(lock, 1);
        lab.repeat(B, lock, options, 300..301);
    }
    lab.until_due("all", HOLD - 1000);
    lab.network.part(&[0], &[1, 2, S1, S2, S3, B]);
    let began = boottime();
    let took = lab.until_failover();
    lab.started_after(&["all", "plain"], boottime(), 70);
    pass(5);
    let (mut finding, [all, plain]) = lab.end(began, ["all", "plain"]);
    finding.expect_exclusion(&all);
    finding.expect_unharmed(&all);
    finding.expect_unharmed(&plain);
    finding.expect_starts(&all, took + BEYOND);
    finding.expect_starts(&plain, 15.0 + BEYOND);
    finding
}

/// Cuts a client with its jobs off from everything. The jobs end before others start; nothing fails over.
pub fn cut_client() -> Finding {
    let mut lab = Lab::start(3, 2, "");
    for (lock, options) in [("all", SHORT), ("plain", "--ttl 6s -k 1s")] {
        lab.once(A, lock, options, 60_000);
        lab.until_started(lock, 1);
        lab.repeat(B, lock, options, 300..301);
    }
    pass(3);
    let began = boottime();
    lab.network.cut(A);
    lab.started_after(&["all", "plain"], began, 30);
    pass(3);
    let (mut finding, [all, plain]) = lab.end(began, ["all", "plain"]);
    for report in [&all, &plain] {
        finding.expect_exclusion(report);
        finding.expect_starts(report, 6.0 + BEYOND);
    }
    finding
}

/// Cuts a replica off while the clients are far from all servers and sentinels.
fn far_away(round_trip: u32) -> Finding {
    let mut lab = Lab::start(3, 2, "");
    let servers: Vec<usize> = (0..CLIENTS).collect();
    let delay = Duration::from_millis(round_trip.into()) / 2;
    for (from, to) in [(&[A, B][..], &servers[..]), (&servers[..], &[A, B][..])] {
        lab.network.change(from, to, |link| link.delay = delay);
    }
    both_locks(&mut lab);
    let began = boottime();
    lab.network.cut(2);
    pass(40);
    let (mut finding, [all]) = lab.end(began, ["all"]);
    finding.expect_well(&[&all]);
    // A run needs a few round trips to start.
    finding.expect_starts(&all, NOTICED + BEYOND + 0.02 * f64::from(round_trip));
    finding
}

/// Cuts two sites off from each other: the owner of the locks with one replica, and two more replicas. An operator lets the
/// other site take over (`CLUSTER FAILOVER TAKEOVER`). Jobs go on at one site at most.
fn cluster_takeover() -> Finding {
    let mut lab = Lab::cluster(&[0, 1, 2, 0, 0], 2);
    compete(&mut lab, "all", SHORT);
    let began = boottime();
    lab.network.part(&[0, 1, 2, 7, A], &[3, 4, 5, 6, B]);
    pass(5);
    for replica in &lab.all.nodes[3..6] {
        replica.cli(&["CLUSTER", "FAILOVER", "TAKEOVER"]);
    }
    pass(30);
    let (mut finding, [all]) = lab.end(began, ["all"]);
    finding.expect_exclusion(&all);
    finding
}

/// Plays faults of a cluster one after the other. The owner of the locks hangs, is cut off and is replaced on request. A
/// replica of the owner is cut off, and all lines are slow or lose frames.
fn cluster_mix() -> Finding {
    const FAULTS: [fn(&Lab<Cluster>, usize); 6] = [
        |lab, owner| lab.all.nodes[owner].stall(),
        |lab, owner| lab.network.cut(owner),
        |lab, owner| lab.all.failover(if owner == 3 { 4 } else { 3 }),
        |lab, owner| lab.network.cut(if owner == 4 { 0 } else { 4 }),
        |lab, _| every_link(lab, |link| link.delay = Duration::from_millis(100)),
        |lab, _| every_link(lab, |link| link.loss = 10),
    ];
    let mut lab = Lab::cluster(&[0, 0, 1, 2], 2);
    both_locks(&mut lab);
    let began = boottime();
    for fault in (0..rounds()).flat_map(|_| FAULTS) {
        let owner = lab.owner();
        fault(&lab, owner);
        pass(12);
        lab.network.heal();
        lab.all.nodes[owner].resume();
        lab.all.wait_until_whole();
    }
    judge_mix(lab, began)
}

/// Plays faults of servers with sentinels one after the other. The primary hangs, is cut off, is killed and is replaced on
/// request. A replica is cut off, and all lines are slow or lose frames.
fn sentinel_mix() -> Finding {
    const FAULTS: [fn(&mut Lab, usize); 7] = [
        |lab, primary| lab.all.servers[primary].stall(),
        |lab, primary| lab.network.cut(primary),
        |lab, primary| lab.all.servers[primary].kill(),
        |lab, _| drop(lab.all.sentinels[0].ask(&["SENTINEL", "FAILOVER", MASTER])),
        |lab, primary| lab.network.cut((primary + 1) % 3),
        |lab, _| every_link(lab, |link| link.delay = Duration::from_millis(100)),
        |lab, _| every_link(lab, |link| link.loss = 10),
    ];
    let mut lab = Lab::start(3, 2, "");
    both_locks(&mut lab);
    let began = boottime();
    for fault in (0..rounds()).flat_map(|_| FAULTS) {
        let primary = lab.all.primary();
        fault(&mut lab, primary);
        pass(12);
        lab.network.heal();
        if lab.all.servers[primary].has_ended() {
            lab.start_again(primary);
        } else {
            lab.all.servers[primary].resume();
        }
        lab.all.wait_until_whole();
    }
    judge_mix(lab, began)
}

/// Judges a mix of faults since `began`.
fn judge_mix<Site>(mut lab: Lab<Site>, began: Nanos) -> Finding {
    let (mut finding, [all]) = lab.end(began, ["all"]);
    finding.expect_well(&[&all]);
    finding.expect_starts(&all, 25.0);
    finding
}

/// Returns the rounds of each fault in a mix: `PARTITION_ROUNDS`, or 1.
fn rounds() -> usize {
    asked("PARTITION_ROUNDS").unwrap_or(1)
}

fn every_link<Site>(lab: &Lab<Site>, change: fn(&mut Link)) {
    let all = lab.network.all();
    lab.network.change(&all, &all, change);
}
