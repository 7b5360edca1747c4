//! Scenarios, each with what has to come out.

use std::time::Duration;

use super::lab::{CLIENTS, Lab, SENTINELS, pass, sentinel_url, until};
use super::report::Finding;
use crate::machines::chaos::history::{MS, Nanos, SECOND, boottime};
use crate::support::{MASTER, Network, Redis, Sentinel};

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
    ("v1-reset", 70, || v1(Forgets::ByReset)),
    ("v1-restart", 70, || v1(Forgets::ByRestart)),
    ("v1-control", 70, || v1(Forgets::Nothing)),
    ("v2-named-twice", 60, || v2(true)),
    ("v2-control", 60, || v2(false)),
    ("sentinel-failover", 160, sentinel_failover),
    ("killed-primary", 110, killed_primary),
    ("stopped-primary", 110, || ex_primary(Trouble::Stopped)),
    ("cut-primary", 110, || ex_primary(Trouble::Cut)),
    ("replica-back", 110, replica_back),
    ("release-to-old", 80, || release(Trouble::Cut)),
    ("release-fails", 80, || release(Trouble::Killed)),
    ("sentinels-anew", 110, sentinels_anew),
    ("cut-client", 60, cut_client),
    ("far-125ms", 80, || far_away(125)),
    ("far-250ms", 80, || far_away(250)),
    ("replica-copies", 60, replica_copies),
    ("crowd", 50, crowd),
    ("without-sync", 50, without_sync),
    ("cluster-killed", 110, cluster_killed),
    ("cluster-begins", 60, cluster_begins),
    ("cluster-endpoint", 50, cluster_endpoint),
    ("cluster-calls", 50, cluster_calls),
];

/// What befalls the primary.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Trouble {
    Killed,
    Stopped,
    Cut,
}

/// How a sentinel comes to know only the replicas that the old primary lists.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Forgets {
    Nothing,
    ByReset,
    ByRestart,
}

/// Two locks that two clients want all the time, for 300 ms: one is confirmed by all replicas, one isn't.
fn both_locks(lab: &mut Lab) {
    for client in [A, B] {
        lab.repeat(client, "all", ALL_SYNCED, 300..301);
        lab.repeat(client, "plain", PLAIN, 300..301);
    }
    lab.until_started("all", 4);
    lab.until_started("plain", 4);
}

/// The primary, R2, S1 and A are cut off from R3, R4, S2, S3 and B, which make R3 or R4 the primary; since when.
fn part(lab: &Lab) -> Nanos {
    lab.until_started("all", 4);
    let began = boottime();
    lab.network.part(&[0, 1, S1, A], &[2, 3, S2, S3, B]);
    until(30, "another is the primary", || {
        let named = [0, 1, 2].map(|sentinel| lab.named(sentinel));
        named[0] == Some(0) && named[1] == named[2] && named[1] > Some(1)
    });
    began
}

/// What runs on the side of A is over before anything starts on that of B, where most sentinels are.
fn expect_one_side(mut lab: Lab, began: Nanos) -> Finding {
    let (mut finding, [all]) = lab.end(began, ["all"]);
    finding.expect_exclusion(&all);
    let by_b = all.starts_by(B, began);
    finding.expect(
        by_b > 3,
        format!("the side with most sentinels goes on: {by_b} holds"),
    );
    finding
}

/// The old primary and S1, on one side of the cut, know of R2 alone in the end.
fn v1(forgets: Forgets) -> Finding {
    let mut lab = Lab::sentinel(4, 2, "--repl-timeout 5");
    for client in [A, B] {
        lab.repeat(client, "all", SHORT, 300..301);
    }
    let began = part(&lab);
    until(30, "the old primary lists one replica", || {
        lab.servers[0].info("replication", "connected_slaves") == "1"
    });
    match forgets {
        Forgets::Nothing => {}
        Forgets::ByReset => {
            lab.sentinels[0].ask(&["SENTINEL", "RESET", MASTER]);
        }
        Forgets::ByRestart => lab.make_anew(0, 0),
    }
    pass(25);
    expect_one_side(lab, began)
}

/// The URL of A names S1 twice, once by its name, and S2, which A can't reach.
fn v2(is_named_twice: bool) -> Finding {
    let mut lab = Lab::sentinel(4, 2, "--repl-timeout 5");
    lab.repeat(B, "all", SHORT, 300..301);
    if is_named_twice {
        let [s1, s2] = [S1, S2].map(Network::address);
        lab.url = sentinel_url(&[s1, Network::name(S1), s2]);
    }
    lab.repeat(A, "all", SHORT, 300..301);
    let began = part(&lab);
    pass(20);
    expect_one_side(lab, began)
}

/// An operator has the primary replaced every 10 s. With `REDLOCK_SYNC=all` there are as many holds as without, and no
/// job is stopped, short or long. Without it a job may lose a lock that was granted in the moment of a failover, and only
/// then.
fn sentinel_failover() -> Finding {
    let mut lab = Lab::sentinel(3, 2, "");
    both_locks(&mut lab);
    lab.once(A, "steady", PLAIN, 115_000);
    lab.once(B, "long", ALL_SYNCED, 115_000);
    lab.until_started("steady", 1);
    lab.until_started("long", 1);
    pass(1);
    let began = boottime();
    for turn in 0..12 {
        lab.sentinels[turn % 3].ask(&["SENTINEL", "FAILOVER", MASTER]);
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
    let mut lab = Lab::sentinel(3, 2, "");
    both_locks(&mut lab);
    let began = boottime();
    lab.servers[0].kill();
    let took = lab.until_failover(0).as_secs_f64();
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
fn ex_primary(trouble: Trouble) -> Finding {
    let mut lab = Lab::sentinel(3, 2, "");
    both_locks(&mut lab);
    lab.once(A, "long", ALL_SYNCED, 45_000);
    lab.until_started("long", 1);
    let began = boottime();
    match trouble {
        Trouble::Cut => lab.network.cut(0),
        Trouble::Killed | Trouble::Stopped => lab.servers[0].stall(),
    }
    let took = lab.until_failover(0).as_secs_f64();
    pass(3);
    lab.network.heal();
    lab.servers[0].resume();
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
    let mut lab = Lab::sentinel(3, 2, "");
    lab.servers[2].cli(&["CONFIG", "SET", "repl-timeout", "4"]);
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
    until(40, "the replica is connected again", || lab.is_whole());
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

/// How long the first hold of a lock lasts that is released at a bad moment, in milliseconds.
const HOLD: i64 = 3000;

/// Waits until so long before the end of that hold.
fn until_before_its_end(lab: &Lab, lock: &str, before: Nanos) {
    lab.until_started(lock, 1);
    let ends = lab.starts(lock)[0].0 + HOLD * MS;
    let left = u64::try_from(ends - before - boottime()).unwrap_or(0);
    std::thread::sleep(Duration::from_nanos(left));
}

/// A hold ends while only its run reaches the primary, or with it: its lock is free at the next primary all the same.
fn release(trouble: Trouble) -> Finding {
    let mut lab = Lab::sentinel(3, 2, "");
    let locks = [
        ("all", "REDLOCK_SYNC=all --ttl 30s -k 1s"),
        ("plain", "--ttl 30s -k 1s"),
    ];
    for (lock, options) in locks {
        lab.once(A, lock, options, HOLD);
        lab.until_started(lock, 1);
        lab.repeat(B, lock, options, 300..301);
    }
    if trouble == Trouble::Killed {
        until_before_its_end(&lab, "all", 50 * MS);
        lab.servers[0].kill();
    } else {
        until_before_its_end(&lab, "all", SECOND);
        lab.network.part(&[0], &[1, 2, S1, S2, S3, B]);
    }
    let began = boottime();
    let took = lab.until_failover(0).as_secs_f64();
    after_failover(lab, began, took)
}

/// Two sentinels lose their files, and with these the number of a failover that a holder and a waiter have seen; the third
/// is silent.
fn sentinels_anew() -> Finding {
    let mut lab = Lab::sentinel(3, 2, "");
    lab.once(A, "plain", PLAIN, 45_000);
    lab.until_started("plain", 1);
    lab.repeat(B, "plain", PLAIN, 300..301);
    let began = boottime();
    lab.network.cut(0);
    lab.until_failover(0);
    lab.network.heal();
    until(40, "all is well again", || lab.is_whole());
    let primary = lab.primary().unwrap();
    lab.network.cut(S3);
    // At once: the one would learn the number from the other.
    for number in [0, 1] {
        lab.sentinels[number].kill();
    }
    for number in [0, 1] {
        lab.make_anew(number, primary);
    }
    until(20, "both name the primary", || {
        lab.named(0) == Some(primary) && lab.named(1) == Some(primary)
    });
    lab.servers[primary].cli(&["CLIENT", "KILL", "TYPE", "normal"]);
    until(90, "the waiter has had its turn", || {
        lab.starts("plain").len() > 4 || lab.statuses("plain").len() > 2
    });
    let (mut finding, [plain]) = lab.end(began, ["plain"]);
    finding.expect_unharmed(&plain);
    finding.expect_starts(&plain, 45.0 + BEYOND);
    finding
}

/// A client is cut off from all with its jobs, which are over before others start; nothing fails over.
pub fn cut_client() -> Finding {
    let mut lab = Lab::sentinel(3, 2, "");
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
    let mut lab = Lab::sentinel(3, 2, "");
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

/// A replica comes back empty and copies the data of its primary for 10 s.
fn replica_copies() -> Finding {
    let mut lab = Lab::sentinel(3, 2, "");
    for words in [
        words!("DEBUG POPULATE 20000 key 1000"),
        words!("CONFIG SET rdb-key-save-delay 500"),
    ] {
        assert_eq!(lab.servers[0].cli(words), "OK");
    }
    both_locks(&mut lab);
    let began = boottime();
    lab.servers[2].kill();
    // It was left by the first synchronization.
    std::fs::remove_file(lab.servers[2].dir.path().join("dump.rdb")).unwrap();
    lab.servers[2].start_again();
    until(20, "the copy has begun", || {
        let info = lab.servers[0].cli(words!("INFO replication"));
        info.contains("state=wait_bgsave")
    });
    // One that waits for no other run, and gives up while the replica still copies.
    let begins = format!("{ALL_SYNCED} -w 1s");
    lab.once(B, "new", &begins, 300);
    until(40, "the replica is in sync", || {
        lab.servers[2].info("replication", "master_link_status") == "up"
    });
    pass(8);
    let (mut finding, [all, new]) = lab.end(began, ["all", "new"]);
    finding.expect_well(&[&all]);
    let address = format!("{}:6379", Network::address(2));
    finding.expect(
        new.says(&format!("{address} is still copying the primary's data")),
        "a run says that the replica copies its data",
    );
    finding
}

/// A hundred runs wait while no server lives.
fn crowd() -> Finding {
    const WAITERS: u64 = 100;
    const SECONDS: u64 = 10;
    let mut lab = Lab::sentinel(3, 2, "");
    lab.once(A, "plain", PLAIN, 60_000);
    lab.until_started("plain", 1);
    for _ in 0..WAITERS / 2 {
        lab.once(A, "plain", PLAIN, 10);
        lab.once(B, "plain", PLAIN, 10);
    }
    until(30, "all wait", || {
        lab.servers[0].queue("plain").len() as u64 == WAITERS
    });
    for server in &mut lab.servers {
        server.kill();
    }
    pass(4);
    let connections = || -> u64 {
        let of = |sentinel: &Sentinel| {
            let count = sentinel.info("stats", "total_connections_received");
            count.parse().unwrap_or(0)
        };
        lab.sentinels.iter().map(of).sum()
    };
    let before = connections();
    pass(SECONDS);
    let all = connections() - before;
    let (mut finding, [_]) = lab.end(boottime(), ["plain"]);
    finding.expect(
        all <= WAITERS * SECONDS,
        format!(
            "{WAITERS} waiters open {} connections a second to the sentinels, of at most {WAITERS}",
            all / SECONDS
        ),
    );
    finding
}

/// Without `REDLOCK_SYNC`, a client that is cut off with the old primary runs beside others, as docs/servers.md says: for as long as
/// it is cut off.
fn without_sync() -> Finding {
    let mut lab = Lab::sentinel(3, 2, "");
    let options = "--ttl 6s -k 1s";
    lab.once(A, "plain", options, 40_000);
    lab.until_started("plain", 1);
    lab.repeat(B, "plain", options, 300..301);
    let began = boottime();
    lab.network.part(&[0, A], &[1, 2, S1, S2, S3, B]);
    pass(20);
    let (mut finding, [plain]) = lab.end(began, ["plain"]);
    let overlaps = plain.overlaps;
    finding.expect(true, format!("{overlaps} overlaps, which are documented"));
    finding
}

/// The owner of the locks' slot is killed just before a hold ends, so that its release finds nobody.
fn cluster_killed() -> Finding {
    let mut lab = Lab::cluster(2, "");
    let (owner, replica) = lab.owner_and_replica();
    lab.once(A, "plain", PLAIN, HOLD);
    lab.until_started("plain", 1);
    lab.repeat(B, "plain", PLAIN, 300..301);
    until_before_its_end(&lab, "plain", 50 * MS);
    let began = boottime();
    lab.servers[owner].kill();
    let took = lab.until_promoted(replica).as_secs_f64();
    lab.started_after(&["plain"], began, 70);
    pass(5);
    let (mut finding, [plain]) = lab.end(began, ["plain"]);
    finding.expect_unharmed(&plain);
    finding.expect_starts(&plain, took + BEYOND);
    finding
}

/// A run begins while the owner of the slot is dead, with a URL that doesn't name it.
fn cluster_begins() -> Finding {
    let mut lab = Lab::cluster(1, "");
    let (owner, replica) = lab.owner_and_replica();
    let others = (0..3).filter(|&node| node != owner);
    let others: Vec<String> = others.map(Network::address).collect();
    lab.url = format!("redis-cluster://{}", others.join(","));
    let began = boottime();
    lab.servers[owner].kill();
    lab.once(A, "plain", PLAIN, 300);
    let took = lab.until_promoted(replica).as_secs_f64();
    lab.started_after(&["plain"], began, 20);
    let (mut finding, [plain]) = lab.end(began, ["plain"]);
    finding.expect_unharmed(&plain);
    finding.expect_starts(&plain, took + BEYOND);
    finding
}

/// The nodes don't say where others are ("ask where you have just asked"), and each has a host of its own.
fn cluster_endpoint() -> Finding {
    let mut lab = Lab::cluster(1, "--cluster-preferred-endpoint-type unknown-endpoint");
    let (owner, _) = lab.owner_and_replica();
    let asked = (owner + 1) % 3;
    lab.url = format!("redis-cluster://{}", Network::address(asked));
    let commands = |node: &Redis| -> u64 {
        let count = node.info("stats", "total_commands_processed");
        count.parse().unwrap()
    };
    let before = commands(&lab.servers[asked]);
    let began = boottime();
    lab.once(A, "plain", PLAIN, 300);
    pass(15);
    let commands = commands(&lab.servers[asked]) - before;
    let ended = lab.statuses("plain");
    let (mut finding, [_]) = lab.end(began, ["plain"]);
    finding.expect(
        ended.len() == 1,
        format!("a run ends, and doesn't ask the same node for ever: {ended:?}, {commands} commands in 15 s"),
    );
    finding
}

/// A run waits for a lock whose node is dead, before the others have noticed that, and after.
fn cluster_calls() -> Finding {
    const SECONDS: u64 = 5;
    let mut lab = Lab::cluster(2, "--cluster-node-timeout 7000");
    let (owner, replica) = lab.owner_and_replica();
    lab.once(A, "plain", PLAIN, 60_000);
    lab.until_started("plain", 1);
    lab.once(B, "plain", PLAIN, 300);
    let queue = || lab.servers[owner].cli(&["ZCARD", "{redlock}:{redlock}:plain:queue"]);
    until(20, "it waits", || queue() == "1");
    for node in [owner, replica] {
        lab.servers[node].kill();
    }
    let before = lab.calls_of_the_last_run(SECONDS);
    pass(5);
    let after = lab.calls_of_the_last_run(SECONDS);
    let (mut finding, [_]) = lab.end(boottime(), ["plain"]);
    for (calls, when) in [(before, "before"), (after, "after")] {
        finding.expect(
            calls <= 50 * SECONDS,
            format!(
                "a waiter makes {} system calls a second {when} the others notice, of at most 50",
                calls / SECONDS
            ),
        );
    }
    finding
}
