//! Scenarios, each with what has to come out.

use super::lab::{CLIENTS, Lab, SENTINELS};
use super::report::Finding;
use crate::chaos::history::{Nanos, boottime};
use crate::support::{MASTER, Network};

pub struct Scenario {
    pub name: &'static str,
    /// How long it takes, at most.
    pub seconds: u64,
    pub play: fn() -> Finding,
}

/// The hosts.
const A: usize = CLIENTS;
const B: usize = CLIENTS + 1;
const S1: usize = SENTINELS;
const S2: usize = SENTINELS + 1;
const S3: usize = SENTINELS + 2;

const ALL_SYNCED: &str = "--sync all --ttl 15s -k 1s";
const PLAIN: &str = "--ttl 15s -k 1s";
/// For where a lease has to end before others start.
const SHORT: &str = "--sync all --ttl 6s -k 1s";

/// How long a start may take beyond the failover itself, in seconds.
const BEYOND: f64 = 3.0;

pub const ALL: &[Scenario] = &[
    Scenario {
        name: "v1-reset",
        seconds: 70,
        play: || v1(Forgets::ByReset),
    },
    Scenario {
        name: "v1-restart",
        seconds: 70,
        play: || v1(Forgets::ByRestart),
    },
    Scenario {
        name: "v1-control",
        seconds: 70,
        play: || v1(Forgets::Nothing),
    },
    Scenario {
        name: "v2-named-twice",
        seconds: 60,
        play: || v2(true),
    },
    Scenario {
        name: "v2-control",
        seconds: 60,
        play: || v2(false),
    },
    Scenario {
        name: "sentinel-failover",
        seconds: 150,
        play: sentinel_failover,
    },
    Scenario {
        name: "killed-primary",
        seconds: 110,
        play: killed_primary,
    },
];

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

/// The primary, R2, S1 and A are cut off from R3, R4, S2, S3 and B; the old primary and S1 know of R2 alone in the end.
/// S2 and S3 make R3 or R4 the primary, and what runs on the other side has to be over by then.
fn v1(forgets: Forgets) -> Finding {
    let mut lab = Lab::sentinel(4, 2, &["--repl-timeout", "5"]);
    for client in [A, B] {
        lab.repeat(client, "all", SHORT, 300..301);
    }
    lab.until_started("all", 4);
    let began = boottime();
    lab.network.part(&[0, 1, S1, A], &[2, 3, S2, S3, B]);
    lab.until(30, "the old primary lists one replica", || {
        lab.servers[0].info("replication", "connected_slaves") == "1"
    });
    lab.until(30, "another is the primary", || {
        let named = [0, 1, 2].map(|sentinel| lab.named(sentinel));
        named[0] == Some(0) && named[1] == named[2] && named[1] > Some(1)
    });
    match forgets {
        Forgets::Nothing => {}
        Forgets::ByReset => {
            lab.sentinels[0].ask(&["SENTINEL", "RESET", MASTER]);
        }
        Forgets::ByRestart => lab.make_anew(0, 0),
    }
    lab.pass(25);
    let (mut finding, [all]) = lab.end(began, ["all"]);
    finding.expect_exclusion(&all);
    let by_b = all.starts_by(B, began);
    finding.expect(
        by_b > 10,
        format!("the side with most sentinels goes on: {by_b} holds"),
    );
    finding
}

/// The same cut; the URL of A names S1 twice, once by its name, and S2, which A can't reach.
fn v2(is_named_twice: bool) -> Finding {
    let mut lab = Lab::sentinel(4, 2, &["--repl-timeout", "5"]);
    let [s1, s2, s3] = [S1, S2, S3].map(Network::address);
    let all = lab.url.clone();
    let twice = [s1.clone(), Network::name(S1), s2.clone()];
    let once = [s1, s2, s3];
    lab.url = lab.url_of(if is_named_twice { &twice } else { &once });
    lab.repeat(A, "all", SHORT, 300..301);
    lab.url = all;
    lab.repeat(B, "all", SHORT, 300..301);
    lab.until_started("all", 4);
    let began = boottime();
    lab.network.part(&[0, 1, S1, A], &[2, 3, S2, S3, B]);
    lab.until(30, "another is the primary", || {
        let named = [0, 1, 2].map(|sentinel| lab.named(sentinel));
        named[0] == Some(0) && named[1] == named[2] && named[1] > Some(1)
    });
    lab.pass(20);
    let (mut finding, [all]) = lab.end(began, ["all"]);
    finding.expect_exclusion(&all);
    let by_b = all.starts_by(B, began);
    finding.expect(
        by_b > 10,
        format!("the side with most sentinels goes on: {by_b} holds"),
    );
    finding
}

/// An operator has the primary replaced every 10 s. With `--sync all` there are as many holds as without, and no
/// job is stopped, short or long.
fn sentinel_failover() -> Finding {
    let mut lab = Lab::sentinel(3, 2, &[]);
    both_locks(&mut lab);
    lab.repeat(A, "long", ALL_SYNCED, 18_000..18_001);
    lab.repeat(B, "long", ALL_SYNCED, 18_000..18_001);
    let began = boottime();
    for turn in 0..12 {
        lab.sentinels[turn % 3].ask(&["SENTINEL", "FAILOVER", MASTER]);
        lab.pass(10);
    }
    let (mut finding, [all, plain, long]) = lab.end(began, ["all", "plain", "long"]);
    for report in [&all, &long] {
        finding.expect_exclusion(report);
    }
    for report in [&all, &plain, &long] {
        finding.expect_unharmed(report);
    }
    let (with, without) = (all.starts.len(), plain.starts.len());
    finding.expect(
        with * 10 >= without * 8,
        format!("as many holds with `all` as without, or a fifth fewer: {with} and {without}"),
    );
    finding
}

/// The primary is killed while runs hold, wait and release.
fn killed_primary() -> Finding {
    let mut lab = Lab::sentinel(3, 2, &[]);
    both_locks(&mut lab);
    let began = boottime();
    lab.servers[0].kill();
    let took = lab.until_failover(0).as_secs_f64();
    after_failover(lab, began, took)
}

/// Starts follow a failover within [`BEYOND`], with and without `--sync all`.
fn after_failover(mut lab: Lab, began: Nanos, took: f64) -> Finding {
    lab.started_after(&["all", "plain"], boottime(), 70);
    lab.pass(5);
    let (mut finding, [all, plain]) = lab.end(began, ["all", "plain"]);
    finding.expect_exclusion(&all);
    for report in [&all, &plain] {
        finding.expect_unharmed(report);
        finding.expect_starts(report, took + BEYOND);
    }
    finding
}
