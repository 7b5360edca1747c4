//! Scenarios, each with what has to come out.

use std::time::Duration;

use super::lab::{CLIENTS, Lab, SENTINELS, pass};
use super::report::Finding;
use crate::machines::chaos::history::{MS, Nanos, SECOND, boottime};
use crate::support::{MASTER, wait_until};

/// A name, how many seconds it takes at most, and what plays it.
pub type Scenario = (&'static str, u64, fn() -> Finding);

/// The hosts.
const A: usize = CLIENTS;
const B: usize = CLIENTS + 1;
const S1: usize = SENTINELS;
const S2: usize = SENTINELS + 1;
const S3: usize = SENTINELS + 2;

const ALL_SYNCED: &str = "REDLOCK_SYNC=all --ttl 15s -k 1s";
const PLAIN: &str = "--ttl 15s -k 1s";
/// For where a lease has to end before others start.
const SHORT: &str = "REDLOCK_SYNC=all --ttl 6s -k 1s";

/// How long a start may take beyond the failover itself, in seconds.
const BEYOND: f64 = 3.0;

/// The same under `REDLOCK_SYNC=all`: the sentinels list the dead primary anew as a replica of the next one, and take as long
/// once more to call it down (2 s); until then it might be promoted without what was granted.
const BEYOND_ALL: f64 = 2.0 + 2.0;

/// How long it takes until the sentinels say that a replica is down, in seconds.
const NOTICED: f64 = 3.0;

pub const ALL: &[Scenario] = &[
    ("v1-reset", 70, || v1(true)),
    ("v1-control", 70, || v1(false)),
    ("sentinel-failover", 160, sentinel_failover),
    ("killed-primary", 110, killed_primary),
    ("stopped-primary", 110, || {
        ex_primary(|lab| lab.all.servers[0].stall())
    }),
    ("cut-primary", 110, || ex_primary(|lab| lab.network.cut(0))),
    ("replica-back", 110, replica_back),
    ("release-to-old", 80, release_to_old),
    ("cut-client", 60, cut_client),
    ("far-125ms", 80, || far_away(125)),
    ("far-250ms", 80, || far_away(250)),
];

/// Two locks that two clients want all the time, for 300 ms: one is confirmed by all replicas, one isn't.
fn both_locks(lab: &mut Lab) {
    for client in [A, B] {
        lab.repeat(client, "all", ALL_SYNCED, 300..301);
        lab.repeat(client, "plain", PLAIN, 300..301);
    }
    lab.until_started("all", 4);
    lab.until_started("plain", 4);
}

/// The primary, R2, S1 and A are cut off from R3, R4, S2, S3 and B, which make R3 or R4 the primary. The old one lists R2 alone in
/// the end, and so does S1 if it is reset. What runs on the side of A is over before anything starts on that of B, where most
/// sentinels are.
fn v1(is_reset: bool) -> Finding {
    let mut lab = Lab::start(4, 2, "--repl-timeout 5");
    for client in [A, B] {
        lab.repeat(client, "all", SHORT, 300..301);
    }
    lab.until_started("all", 4);
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

/// An operator has the primary replaced every 10 s. With `REDLOCK_SYNC=all` there are as many holds as without, and no
/// job is stopped, short or long. Without it a job may lose a lock that was granted in the moment of a failover, and only
/// then.
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

/// The primary is killed while runs hold, wait and release.
fn killed_primary() -> Finding {
    let mut lab = Lab::start(3, 2, "");
    both_locks(&mut lab);
    let began = boottime();
    lab.all.servers[0].kill();
    let took = lab.until_failover();
    after_failover(lab, began, took)
}

/// Starts follow a failover within [`BEYOND`], and with `REDLOCK_SYNC=all` within [`BEYOND_ALL`].
fn after_failover(mut lab: Lab, began: Nanos, took: f64) -> Finding {
    lab.started_after(&["all", "plain"], boottime(), 70);
    pass(5);
    let (mut finding, [all, plain]) = lab.end(began, ["all", "plain"]);
    finding.expect_exclusion(&all);
    for (report, beyond) in [(&all, BEYOND_ALL), (&plain, BEYOND)] {
        finding.expect_unharmed(report);
        finding.expect_starts(report, took + beyond);
    }
    finding
}

/// A primary is silent until another has taken over, and then comes back as one that doesn't know of that.
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
    // Nobody waits for this one: its runs begin now.
    lab.repeat(B, "new", ALL_SYNCED, 300..301);
    pass(25);
    let locks = ["all", "plain", "long", "new"];
    let (mut finding, [all, plain, long, new]) = lab.end(began, locks);
    finding.expect_well(&[&all, &long, &new]);
    finding.expect_unharmed(&plain);
    for (report, beyond) in [(&all, BEYOND_ALL), (&plain, BEYOND)] {
        finding.expect_starts(report, took + beyond);
    }
    finding
}

/// A replica that was cut off comes back and connects anew, while the primary still has its old connection, too.
fn replica_back() -> Finding {
    let mut lab = Lab::start(3, 2, "");
    lab.all.servers[2].cli(&["CONFIG", "SET", "repl-timeout", "4"]);
    both_locks(&mut lab);
    let slow = "REDLOCK_SYNC=all --ttl 30s -k 1s";
    lab.once(A, "long", slow, 80_000);
    lab.until_started("long", 1);
    let began = boottime();
    lab.network.cut(2);
    // TCP sends again after 0.2, 0.6, 1.4 s and so on. The primary does so after 25.4 s and then after 51 s, and only then
    // hears that its old connection is over; the replica, which gives that up after 4 s, after 30 s and then after 56 s.
    pass(32);
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

/// A hold ends while only its run reaches the primary: its lock is free at the next primary all the same.
fn release_to_old() -> Finding {
    const HOLD: Nanos = 3000;
    let mut lab = Lab::start(3, 2, "");
    let locks = [
        ("all", "REDLOCK_SYNC=all --ttl 30s -k 1s"),
        ("plain", "--ttl 30s -k 1s"),
    ];
    for (lock, options) in locks {
        lab.once(A, lock, options, HOLD);
        lab.until_started(lock, 1);
        lab.repeat(B, lock, options, 300..301);
    }
    let soon = lab.starts("all")[0] + HOLD * MS - SECOND;
    let left = u64::try_from(soon - boottime()).unwrap_or(0);
    std::thread::sleep(Duration::from_nanos(left));
    lab.network.part(&[0], &[1, 2, S1, S2, S3, B]);
    let began = boottime();
    let took = lab.until_failover();
    after_failover(lab, began, took)
}

/// A client is cut off from all with its jobs, which are over before others start; nothing fails over.
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

/// A replica is cut off, and the clients are far from all servers and sentinels.
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
    // A run needs a few round trips to begin.
    finding.expect_starts(&all, NOTICED + BEYOND + 0.02 * f64::from(round_trip));
    finding
}
