//! What the checks make of evidence that is as it should be, but for one thing.

use std::collections::BTreeMap;

use super::super::evidence::{
    ClockOffset, Info, Known, NamedLock, Probe, Replica, ReplicaEntry, RoundTrip, Sentinel,
    SentinelAnswer, SentinelEvidence, Stranger, Subject, Validity, Verdict as Permission,
};
use super::super::finding::Level;
use super::super::host::{Kernel, Proc};
use super::*;
use crate::config::Exposure;
use crate::protocol::{Hold, Inspected, Key, KnownReplica, Messages, RedisCli, Transport, Trial};
use crate::report::format_duration;

const INFO: &str = "redis_version:7.0.15\r\nredis_mode:standalone\r\nos:Linux\r\n\
    process_supervised:no\r\nuptime_in_seconds:100000\r\nconnected_clients:3\r\nmaxclients:10000\r\n\
    used_memory:1000000\r\nmaxmemory:0\r\nmaxmemory_policy:noeviction\r\nevicted_keys:0\r\n\
    aof_enabled:1\r\naof_last_write_status:ok\r\nrdb_last_save_time:1000\r\n\
    rdb_last_bgsave_status:ok\r\nrole:master\r\nconnected_slaves:0\r\ncluster_enabled:0\r\n";

const MEASURE: Measure = Measure {
    ttl: Duration::from_secs(30),
    now: 2000,
};

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

fn trip(us: u64, ahead_us: i64) -> RoundTrip {
    RoundTrip {
        took: Duration::from_micros(us),
        clock: Some(ClockOffset {
            ahead_us,
            error_us: us / 2,
        }),
    }
}

fn redis_cli(host: &str, port: u16, user: Option<&str>) -> RedisCli {
    RedisCli::for_tests(host, port, user)
}

/// A server at which nothing is wrong.
pub fn healthy() -> Evidence {
    let config = [("save", ""), ("appendfsync", "everysec"), ("timeout", "0")];
    Evidence {
        place: "redis.internal:6379".into(),
        is_local: false,
        redis_cli: redis_cli("redis.internal", 6379, Some("jobs")),
        is_typed: false,
        prefix: "redlock:".into(),
        prefix_has_tag: false,
        user: Some("jobs".into()),
        transport: Transport::Plain { is_loopback: false },
        timeout: ms(2000),
        connected: Ok(ms(1)),
        certificate: None,
        own_certificate: None,
        info: Ok(Info::parse(INFO)),
        config: config.map(|(name, value)| (name, Ok(value.into()))).into(),
        round_trips: Ok(vec![trip(200, 10), trip(300, 20)]),
        replicas: Vec::new(),
        nodes: Vec::new(),
        others: Vec::new(),
        long_answer: Ok(()),
        slot: None,
        knows_replicas: false,
        probes: Ok(Vec::new()),
        scripts: Ok(Trial {
            done: 12,
            took: ms(1),
            failure: None,
        }),
        messages: Ok(Messages {
            resp3: true,
            refused: None,
            is_subscribed: true,
            is_sharded: false,
            was_granted: true,
            was_invalidated: true,
        }),
        named: None,
        sentinels: None,
        acknowledged: Ok(9),
    }
}

fn host() -> Host {
    Host {
        kernel: Kernel {
            boot_clock: Ok(Duration::ZERO),
            pdeathsig: Ok(()),
            pidfd: Ok(()),
            subreaper: Ok(()),
            proc: Proc::All,
        },
        refused: Vec::new(),
        exposed: Vec::new(),
        namesakes: Vec::new(),
        local_socket: None,
        has_no_url: false,
    }
}

/// The same server, where INFO has these lines in place of others.
fn with_info(lines: &[&str]) -> Evidence {
    let fields: BTreeMap<&str, &str> = INFO
        .lines()
        .chain(lines.iter().copied())
        .filter_map(|line| line.split_once(':'))
        .collect();
    let text: Vec<String> = fields.iter().map(|(k, v)| format!("{k}:{v}")).collect();
    Evidence {
        info: Ok(Info::parse(&text.join("\n"))),
        ..healthy()
    }
}

/// All but this check are well; its level, what it says, and the fix.
#[track_caller]
fn only(evidence: &Evidence, check: &str) -> (Level, String, String) {
    let all = all(evidence, &host(), MEASURE);
    let bad: Vec<&Finding> = all.iter().filter(|it| it.level != Level::Ok).collect();
    assert!(bad.iter().all(|it| it.check == check), "{bad:#?}");
    let found = all.iter().find(|it| it.check == check).expect("the check");
    assert!(
        found.level == Level::Ok || found.fix.is_some() || found.unknown.is_some(),
        "{found:?}"
    );
    (found.level, found.message.clone(), fix_of(found))
}

fn fix_of(finding: &Finding) -> String {
    let fix = finding.fix.as_ref();
    fix.map_or(String::new(), |fix| fix.text().to_owned())
}

#[track_caller]
fn assert_only(evidence: &Evidence, check: &str, level: Level, message: &str, fix: &str) {
    let found = only(evidence, check);
    assert_eq!(found.0, level, "{found:?}");
    assert!(found.1.contains(message), "{message:?}: {found:?}");
    assert!(found.2.contains(fix), "{fix:?}: {found:?}");
}

#[test]
fn where_nothing_is_wrong_all_is_ok_and_each_check_has_a_name_of_its_own() {
    let all = all(&healthy(), &host(), MEASURE);
    assert!(all.iter().all(|it| it.level == Level::Ok), "{all:#?}");
    let mut names: Vec<&str> = all.iter().map(|it| it.check).collect();
    let many = names.len();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), many, "{names:?}");
}

#[test]
fn how_many_runs_the_server_has_room_for_is_said_also_when_all_is_well() {
    for (lines, check, says) in [
        (
            &["connected_clients:3", "maxclients:10000"][..],
            "clients",
            "3 of at most 10000: 9997 more runs can hold locks or wait",
        ),
        (
            &["used_memory:1000000", "maxmemory:101000000"],
            "eviction",
            "room for about 50000 more locks or waiters",
        ),
    ] {
        let all = all(&with_info(lines), &host(), MEASURE);
        let found = all.iter().find(|it| it.check == check).unwrap();
        assert_eq!(found.level, Level::Ok);
        assert!(found.message.contains(says), "{}", found.message);
    }
}

#[test]
#[allow(clippy::too_many_lines)] // A table.
fn what_info_says_is_judged() {
    use Level::{Fail, Ok, Warn};
    let noeviction = "redis-cli -h redis.internal --askpass CONFIG SET maxmemory-policy noeviction  # as an administrator, and in redis.conf";
    let append = "redis-cli -h redis.internal --askpass CONFIG SET appendonly yes";
    for (lines, check, level, message, fix) in [
        // Eviction.
        (
            &["maxmemory_policy:allkeys-lru", "maxmemory:100000000"][..],
            "eviction",
            Fail,
            "a full server evicts locks",
            noeviction,
        ),
        (
            &[
                "maxmemory_policy:volatile-ttl",
                "maxmemory:1",
                "evicted_keys:7",
            ],
            "eviction",
            Fail,
            "has evicted 7 keys",
            noeviction,
        ),
        (
            &["maxmemory_policy:allkeys-lru"],
            "eviction",
            Warn,
            "as soon as maxmemory is set",
            noeviction,
        ),
        (
            &["maxmemory:1100000"],
            "eviction",
            Warn,
            "grants no new lock",
            "raise maxmemory",
        ),
        (
            &["maxmemory:9000000"],
            "eviction",
            Ok,
            "1.0 MB of 9.0 MB used",
            "",
        ),
        // Persistence and restarts.
        (
            &["aof_last_write_status:err"],
            "persistence",
            Warn,
            "can't be written",
            "disk is full",
        ),
        (
            &["aof_enabled:0"],
            "persistence",
            Warn,
            "a restart forgets all locks",
            append,
        ),
        (
            &[
                "uptime_in_seconds:3",
                "aof_last_rewrite_time_sec:-1",
                "aof_rewrite_in_progress:0",
            ],
            "uptime",
            Ok,
            "with the locks from before",
            "",
        ),
        (
            // Its file is younger than its start.
            &["uptime_in_seconds:3", "aof_last_rewrite_time_sec:0"],
            "uptime",
            Warn,
            "the server may have forgotten locks",
            "wait ",
        ),
        // Roles.
        (
            &["role:active-replica", "master_host:b", "master_port:6379"],
            "role",
            Fail,
            "a writable replica of b:6379",
            "active-replica no",
        ),
        (
            &[
                "role:slave",
                "slave_read_only:0",
                "master_host:b",
                "master_port:6379",
            ],
            "role",
            Fail,
            "a writable replica of b:6379",
            "replica-read-only yes",
        ),
        (
            &["active_replica:1"],
            "role",
            Fail,
            "both grant the same lock",
            "make it read-only",
        ),
        (
            &[
                "role:slave",
                "slave_read_only:1",
                "master_host:b",
                "master_port:7",
                "master_link_status:up",
            ],
            "role",
            Fail,
            "a read-only replica of b:7 (link up)",
            "--url redis://b:7",
        ),
        (
            &["connected_slaves:2"],
            "role",
            Ok,
            "primary of 2 replicas",
            "",
        ),
        (
            &["valkey_version:8.1.0", "server_name:valkey"],
            "server",
            Ok,
            "Valkey 8.1.0",
            "",
        ),
        (
            &["executable:/usr/bin/keydb-server"],
            "server",
            Ok,
            "KeyDB 7.0.15",
            "",
        ),
        (
            &["os:Amazon ElastiCache"],
            "server",
            Ok,
            "Redis 7.0.15 (Amazon ElastiCache)",
            "",
        ),
        // Replicas.
        (
            &[
                "slave0:ip=b,port=1,state=online,offset=5,lag=0",
                "master_repl_offset:5",
            ],
            "replicas",
            Ok,
            "1 in sync, none behind",
            "",
        ),
        (
            &[
                "slave0:ip=b,port=1,state=online,offset=5,lag=60",
                "master_repl_offset:5",
            ],
            "replicas",
            Warn,
            "b:1 was last heard of 1m ago",
            "see that replica's log",
        ),
        (
            &[
                "slave0:ip=b,port=1,state=online,offset=5,lag=0",
                "master_repl_offset:5000005",
            ],
            "replicas",
            Warn,
            "b:1 is 5.0 MB behind",
            "see that replica's log",
        ),
        (
            &["slave0:ip=b,port=1,state=wait_bgsave,offset=0,lag=0"],
            "replicas",
            Warn,
            "b:1 is not in sync yet",
            "see that replica's log",
        ),
        // Others.
        (
            &["cluster_enabled:1"],
            "cluster",
            Fail,
            "redlock: has no hash tag",
            "--url redis-cluster://redis.internal:6379",
        ),
        (
            &["connected_clients:9500"],
            "clients",
            Warn,
            "9500 of at most 10000",
            "maxclients",
        ),
    ] {
        assert_only(&with_info(lines), check, level, message, fix);
    }
}

#[test]
fn a_server_without_an_append_only_file_forgets_and_with_a_supervisor_its_replicas_forget_too() {
    let judge = |lines: &[&str], save: &str| {
        let mut evidence = with_info(&[&["aof_enabled:0"], lines].concat());
        evidence.config.insert("save", Ok(save.into()));
        let found = persistence(&evidence, MEASURE);
        (found.level, found.message, uptime(&evidence, MEASURE).level)
    };
    let rule = "3600 1 300 100";
    let (level, message, _) = judge(&[], rule);
    assert_eq!(level, Level::Warn);
    assert!(
        message.ends_with("since the last snapshot, 16m40s ago"),
        "{message}"
    );
    let (level, message, _) = judge(&["rdb_last_bgsave_status:err"], rule);
    assert_eq!(level, Level::Warn);
    assert!(message.starts_with("the last snapshot failed"), "{message}");
    let replica = "connected_slaves:1";
    assert_eq!(judge(&[replica], "").0, Level::Warn);
    assert_eq!(
        judge(&[replica, "process_supervised:systemd"], "").0,
        Level::Fail
    );
    assert_eq!(judge(&["process_supervised:systemd"], "").0, Level::Warn);
    for save in ["", rule] {
        assert_eq!(judge(&["uptime_in_seconds:3"], save).2, Level::Warn);
        assert_eq!(judge(&["uptime_in_seconds:31"], save).2, Level::Ok);
    }
}

#[test]
fn what_is_set_is_written_down_for_the_next_start() {
    let lines = [
        "maxmemory_policy:allkeys-lru",
        "config_file:/etc/redis.conf",
    ];
    assert_only(
        &with_info(&lines),
        "eviction",
        Level::Warn,
        "as soon as",
        "noeviction && redis-cli -h redis.internal --askpass CONFIG REWRITE  # as an administrator",
    );
}

#[test]
fn what_a_managed_service_does_not_show_is_not_known_and_what_decides_keeps_it_from_being_fit() {
    let denied = |command| Unknown::Denied(command);
    let mut evidence = with_info(&["aof_enabled:0"]);
    for value in evidence.config.values_mut() {
        *value = Err(denied("CONFIG"));
    }
    let (level, message, _) = only(&evidence, "persistence");
    assert_eq!(level, Level::Unknown);
    assert_eq!(message, "not checked: CONFIG is not permitted");
    assert_eq!(verdict(&all(&evidence, &host(), MEASURE)), Verdict::Fit);

    evidence.info = Err(denied("INFO"));
    let found = all(&evidence, &host(), MEASURE);
    assert!(found.iter().all(|it| it.level < Level::Warn), "{found:#?}");
    let reasons = not_known(&found);
    assert_eq!(reasons.len(), 1, "{reasons:?}");
    assert!(reasons[0].1.contains(&"eviction") && reasons[0].1.contains(&"role"));
    let undecided = vec!["server", "role", "cluster", "eviction"];
    assert_eq!(verdict(&found), Verdict::NotKnown(undecided));
}

#[test]
fn latency_is_judged_by_the_time_between_renewals() {
    for (longest, level) in [
        (ms(999), Level::Ok),
        (ms(1000), Level::Warn),
        (ms(10_000), Level::Fail),
    ] {
        let mut trips = vec![trip(100, 0); 39];
        trips.push(RoundTrip {
            took: longest,
            clock: None,
        });
        let evidence = Evidence {
            round_trips: Ok(trips),
            ..healthy()
        };
        let found = latency(&evidence, MEASURE);
        assert_eq!(found.level, level, "{found:?}");
        assert!(found.message.starts_with("p50 0.1 ms, p99 "), "{found:?}");
        assert_eq!(found.facts["p50_us"], 100);
    }
    // A slow one of a hundred is the most, and not the 99th percentile.
    let mut trips = vec![trip(100, 0); 99];
    trips.push(trip(5_000_000, 0));
    let evidence = Evidence {
        round_trips: Ok(trips),
        ..healthy()
    };
    assert_eq!(latency(&evidence, MEASURE).level, Level::Ok);
}

fn replica(ahead_us: i64, priority: u32) -> Replica {
    Replica {
        entry: ReplicaEntry {
            host: "b".into(),
            port: 6379,
            is_online: true,
            behind: Some(0),
            last_heard: Some(Duration::ZERO),
        },
        clock: Ok(ClockOffset {
            ahead_us,
            error_us: 1000,
        }),
        info: Ok(Info::parse(&format!("slave_priority:{priority}"))),
    }
}

#[test]
fn clocks_are_compared_between_servers_and_ours_hardly_matters() {
    for (server, replicas, level, message) in [
        (0, &[][..], Level::Ok, "agrees with this host's"),
        (
            -5_000_000,
            &[],
            Level::Ok,
            "the server's clock is 5.0 s behind",
        ),
        (11_000_000, &[], Level::Warn, "status and history"),
        (
            0,
            &[400_000],
            Level::Ok,
            "the clocks of the other servers agree within",
        ),
        // What the questions took doesn't count.
        (
            0,
            &[500_500],
            Level::Ok,
            "the clocks of the other servers agree within",
        ),
        (
            0,
            &[400_000, 600_000],
            Level::Warn,
            "b:6379 is 599 ms from the primary's",
        ),
        (0, &[-15_100_000], Level::Fail, "too early or too late"),
        // All are wrong alike.
        (
            3_000_000,
            &[3_000_000],
            Level::Ok,
            "the clocks of the other servers agree within 1.0 ms",
        ),
    ] {
        let evidence = Evidence {
            round_trips: Ok(vec![trip(200, server)]),
            replicas: replicas.iter().map(|&ahead| replica(ahead, 100)).collect(),
            ..healthy()
        };
        let found = clocks(&evidence, MEASURE);
        assert_eq!(found.level, level, "{found:?}");
        assert!(found.message.contains(message), "{message:?}: {found:?}");
    }
    let evidence = Evidence {
        nodes: vec![replica(-900_000, 100)],
        ..healthy()
    };
    assert_only(&evidence, "clocks", Level::Warn, "b:6379 is 89", "NTP");
}

#[test]
fn replicas_that_may_never_be_promoted_are_none() {
    let lines = [
        "slave0:ip=b,port=6379,state=online,offset=5,lag=0",
        "master_repl_offset:5",
    ];
    for (priority, level) in [(100, Level::Ok), (0, Level::Warn)] {
        let evidence = Evidence {
            replicas: vec![replica(0, priority)],
            ..with_info(&lines)
        };
        assert_eq!(replicas_level(&evidence), level);
    }
}

fn replicas_level(evidence: &Evidence) -> Level {
    replicas(evidence).level
}

fn listed(address: &str) -> KnownReplica {
    KnownReplica {
        address: address.into(),
        priority: 100,
        is_down: false,
        is_former: false,
    }
}

fn sentinel(primary: &str) -> SentinelAnswer {
    SentinelAnswer {
        id: String::new(),
        took: ms(1),
        primary: primary.into(),
        flags: "master".into(),
        quorum: 2,
        sentinels: 3,
        replicas: Ok(vec![listed("b:6379")]),
        no_quorum: None,
        down_after: ms(5000),
        failover_timeout: ms(60_000),
    }
}

/// Each is another one, unless it has an id.
fn own_id(
    (one, mut answer): (Sentinel, Known<SentinelAnswer>),
) -> (Sentinel, Known<SentinelAnswer>) {
    if let Ok(answer) = &mut answer
        && answer.id.is_empty()
    {
        answer.id.clone_from(&one.place);
    }
    (one, answer)
}

fn by_sentinels(answers: Vec<Known<SentinelAnswer>>) -> Evidence {
    let places = ["s1", "s2", "s3"].map(|host| Sentinel {
        place: format!("{host}:26379"),
        redis_cli: redis_cli(host, 26379, None),
    });
    Evidence {
        sentinels: Some(SentinelEvidence {
            primary: "mymaster".into(),
            origin: None,
            answers: places.into_iter().zip(answers).map(own_id).collect(),
        }),
        acknowledged: Ok(1),
        knows_replicas: true,
        ..with_info(&["connected_slaves:1"])
    }
}

#[test]
fn sentinels_have_to_answer_to_agree_and_to_be_enough() {
    let one = || Ok(sentinel("a:1"));
    let with = |change: fn(&mut SentinelAnswer)| {
        let mut answer = sentinel("a:1");
        change(&mut answer);
        Ok(answer)
    };
    let gone = || Err(Unknown::Failed("can't reach the sentinel at s3".into()));
    let refused = || {
        let why = "the sentinel at s1 refused the default user: the password for the sentinels, which the URL sets, is wrong";
        Err(Unknown::Failed(why.into()))
    };
    for (answers, level, message, fix) in [
        (
            vec![one(), one(), one()],
            Level::Ok,
            "3 of 3 agree on a:1; quorum 2 of 3",
            "",
        ),
        (
            vec![one(), one(), gone()],
            Level::Warn,
            "2 of 3 agree on a:1; s3:26379 gives no answer",
            "start it",
        ),
        (
            vec![one(), gone(), gone()],
            Level::Warn,
            "1 of 3 agree on a:1; s2:26379, s3:26379 give no answer",
            "start them, or correct",
        ),
        (
            vec![refused(), gone(), refused()],
            Level::Fail,
            "the password for the sentinels, which the URL sets, is wrong",
            "correct sentinel_password in the URL",
        ),
        (
            vec![gone(), gone(), gone()],
            Level::Fail,
            "none of 3 answers",
            "start them",
        ),
        (
            vec![one(), Ok(sentinel("b:1")), one()],
            Level::Fail,
            "s1:26379 says that mymaster is a:1, but s2:26379 says b:1",
            "logs",
        ),
        (
            vec![with(|it| it.quorum = 4), one(), one()],
            Level::Fail,
            "the quorum is 4, and there are only 3 sentinels",
            "redis-cli -h s1 -p 26379 SENTINEL SET mymaster quorum 2",
        ),
        (
            vec![with(|it| it.sentinels = 2)],
            Level::Warn,
            "2 sentinels in all",
            "three or more",
        ),
    ] {
        let evidence = by_sentinels(answers);
        let found = sentinels(&evidence, evidence.sentinels.as_ref().unwrap());
        assert_eq!(found.level, level, "{found:?}");
        assert!(found.message.contains(message), "{message:?}: {found:?}");
        assert!(fix_of(&found).contains(fix), "{fix:?}: {found:?}");
    }
}

#[test]
fn a_failover_should_be_over_before_a_lease_ends() {
    for (down_after, level, message, least) in [
        (4000, Level::Ok, "leases of 30s outlive it", 20_000),
        // Here, with --sync all they don't.
        (
            5000,
            Level::Ok,
            "with `--sync all`, only leases of 31s do",
            21_000,
        ),
        (
            10_750,
            Level::Ok,
            "with `--sync all`, only leases of 49s do",
            30_000,
        ),
        (
            10_751,
            Level::Warn,
            "leases of 30s may end before that failover is over",
            31_000,
        ),
        (
            30_000,
            Level::Warn,
            "leases of 30s may end before that failover is over",
            61_000,
        ),
    ] {
        let mut slow = sentinel("a:1");
        slow.down_after = ms(down_after);
        let mut other = sentinel("a:1");
        other.down_after = ms(1000);
        let evidence = by_sentinels(vec![Ok(other), Ok(slow)]);
        let found = failover(evidence.sentinels.as_ref().unwrap(), MEASURE);
        assert_eq!(found.level, level, "{found:?}");
        assert!(found.message.contains("is retried after 2m"), "{found:?}");
        assert!(found.message.ends_with(message), "{found:?}");
        assert_eq!(found.facts["least_ttl_ms"], least);
        let expected = format!("--ttl {} (REDLOCK_TTL)", format_duration(ms(least)));
        assert_eq!(fix_of(&found).contains(&expected), level == Level::Warn);
    }
}

#[test]
fn the_failover_of_a_cluster_is_judged_by_its_node_timeout() {
    let with = |timeout: &str| {
        let mut evidence = healthy();
        evidence
            .config
            .insert("cluster-node-timeout", Ok(timeout.into()));
        evidence
    };
    assert!(cluster_failover(&healthy(), MEASURE).is_none());
    let found = cluster_failover(&with("5000"), MEASURE).unwrap();
    assert_eq!((found.check, found.level), ("failover", Level::Ok));
    let fix = "--ttl 37s (REDLOCK_TTL), or 42s with `--sync all`";
    assert_only(&with("15000"), "failover", Level::Warn, "begins 15s", fix);
}

#[test]
fn two_primaries_fail() {
    let other = |role: &str| Replica {
        info: Ok(Info::parse(&format!("role:{role}"))),
        ..replica(0, 100)
    };
    let with = |role: &str| Evidence {
        others: vec![other(role)],
        ..by_sentinels(vec![Ok(sentinel("a:1"))])
    };
    assert_eq!(role(&with("slave")).level, Level::Ok);
    let found = role(&with("master"));
    assert_eq!(found.level, Level::Fail, "{found:?}");
    let message = "b:6379, which the sentinels name, and redis.internal:6379 are both primaries";
    assert!(found.message.starts_with(message), "{found:?}");
    assert_eq!(verdict(&[found]), Verdict::Unfit);
}

#[test]
fn packets_that_are_lost_for_their_size_fail() {
    let lost = Evidence {
        long_answer: Err(Unknown::NoAnswer),
        ..healthy()
    };
    assert_only(&lost, "packets", Level::Fail, "one of 4 kB doesn't", "MTU");
    let denied = Evidence {
        long_answer: Err(Unknown::Denied("EVAL")),
        ..healthy()
    };
    assert_eq!(packets(&denied).level, Level::Ok);
}

#[test]
fn replicas_that_lose_locks_once_they_are_primaries_warn() {
    let with = |lines: &str| Evidence {
        replicas: vec![Replica {
            info: Ok(Info::parse(lines)),
            ..replica(0, 100)
        }],
        ..healthy()
    };
    let evicts = with("maxmemory_policy:allkeys-lru\naof_enabled:1");
    let message = "replica b:6379 may evict locks";
    assert_only(
        &evicts,
        "eviction",
        Level::Warn,
        message,
        "noeviction on that replica",
    );
    let forgets = with("maxmemory_policy:noeviction\naof_enabled:0");
    let message = "replica b:6379 keeps none";
    assert_only(
        &forgets,
        "persistence",
        Level::Warn,
        message,
        "appendonly yes",
    );
}

#[test]
fn a_priority_that_decides_who_takes_over_is_noted() {
    let lines = [
        "slave0:ip=b,port=6379,state=online,offset=5,lag=0",
        "slave1:ip=c,port=6379,state=online,offset=5,lag=0",
    ];
    let with = |priority| Evidence {
        replicas: vec![replica(0, 100), replica(0, priority)],
        ..with_info(&lines)
    };
    let message = |priority| replicas(&with(priority)).message;
    assert!(message(10).ends_with(
        "replica-priority 100, 10: the replica with the lowest priority above 0 takes over first"
    ));
    assert!(message(100).ends_with("replica-priority 100, 100"));
}

#[test]
fn sync_all_by_few_sentinels_or_other_addresses_warns() {
    let slave = "slave0:ip=10.0.0.7,port=6379,state=online,offset=5,lag=0";
    let connected = |evidence: Evidence| Evidence {
        info: with_info(&["connected_slaves:1", slave]).info,
        ..evidence
    };
    let found = sync(&connected(by_sentinels(vec![Ok(sentinel("a:1"))])));
    assert_eq!(found.level, Level::Warn, "{found:?}");
    assert!(
        found.message.contains("names 1 of the 3 sentinels"),
        "{found:?}"
    );
    assert!(fix_of(&found).contains("SENTINEL SENTINELS mymaster"));
    // One by two names is one.
    let mut twice = sentinel("a:1");
    twice.id = "abc".into();
    let found = sync(&by_sentinels(vec![Ok(twice.clone()), Ok(twice)]));
    assert!(
        found.message.contains("names 1 of the 3 sentinels"),
        "{found:?}"
    );

    let two = || by_sentinels(vec![Ok(sentinel("a:1")), Ok(sentinel("a:1"))]);
    let found = sync(&connected(two()));
    assert_eq!(found.level, Level::Warn, "{found:?}");
    assert!(
        found
            .message
            .contains("list a replica b:6379, but 10.0.0.7:6379")
    );
    assert!(fix_of(&found).contains("replica-announce-ip and -port to b:6379"));

    let mut denied = sentinel("a:1");
    denied.replicas = Err(Unknown::Denied("SENTINEL REPLICAS"));
    let found = sync(&by_sentinels(vec![Ok(denied.clone()), Ok(denied)]));
    assert_eq!(found.level, Level::Unknown, "{found:?}");
}

#[test]
fn a_sentinel_that_answers_late_warns() {
    let mut slow = sentinel("a:1");
    slow.took = ms(300);
    let evidence = by_sentinels(vec![Ok(sentinel("a:1")), Ok(slow), Ok(sentinel("a:1"))]);
    let found = sentinels(&evidence, evidence.sentinels.as_ref().unwrap());
    assert_eq!(found.level, Level::Warn);
    assert!(
        found.message.ends_with("s2:26379 took 300 ms to answer"),
        "{found:?}"
    );
}

#[test]
fn no_failover_is_possible_where_too_few_sentinels_answer() {
    let one = || Ok(sentinel("a:1"));
    let gone = || Err(Unknown::Failed("can't reach the sentinel at s3".into()));
    let judge = |answers| {
        let evidence = by_sentinels(answers);
        failover(evidence.sentinels.as_ref().unwrap(), MEASURE)
    };
    for answers in [vec![one(), one(), gone()], vec![one(), gone()], vec![one()]] {
        assert_eq!(judge(answers).level, Level::Ok);
    }
    let found = judge(vec![one(), gone(), gone()]);
    assert_eq!(found.level, Level::Fail);
    let message = "1 of 3 sentinels answer, but a failover needs 2";
    assert!(found.message.ends_with(message), "{found:?}");
    // The quorum may be more than the majority.
    let mut all = sentinel("a:1");
    all.quorum = 3;
    assert_eq!(judge(vec![Ok(all), one(), gone()]).level, Level::Fail);
    // The others aren't in the URL, but it knows of them.
    let mut alone = sentinel("a:1");
    alone.no_quorum = Some("1 usable Sentinels".into());
    let found = judge(vec![Ok(alone)]);
    assert_eq!(found.level, Level::Fail);
    assert!(found.message.contains("s1:26379 reports"), "{found:?}");
}

#[test]
fn a_dead_primary_and_dead_sentinels_are_one_failure_each() {
    let unconnected = |kind, answers| Evidence {
        connected: Err(Error::new(kind, "can't reach Redis at a:1".into())),
        info: Err(Unknown::NotAsked),
        round_trips: Err(Unknown::NotAsked),
        probes: Err(Unknown::NotAsked),
        scripts: Err(Unknown::NotAsked),
        messages: Err(Unknown::NotAsked),
        ..by_sentinels(answers)
    };
    let failed = |evidence: &Evidence| {
        let found = all(evidence, &host(), MEASURE).into_iter();
        let mut failed: Vec<Finding> = found.filter(|it| it.level == Level::Fail).collect();
        assert_eq!(failed.len(), 1, "{failed:?}");
        failed.remove(0)
    };
    let mut down = sentinel("a:1");
    down.flags = "master,s_down".into();
    let down = || Ok(down.clone());
    let evidence = unconnected(ErrorKind::NoPrimary, vec![down(), down(), down()]);
    let found = failed(&evidence);
    assert_eq!(found.check, "connection");
    assert!(fix_of(&found).starts_with("start the primary"));
    let found = sentinels(&evidence, evidence.sentinels.as_ref().unwrap());
    assert_eq!(found.level, Level::Warn);
    assert_eq!(found.message, "3 of 3 agree on a:1, which is down");

    let gone = || Err(Unknown::Failed("can't reach the sentinel at s3".into()));
    let found = failed(&unconnected(ErrorKind::Unreachable, vec![gone(), gone()]));
    assert_eq!(found.check, "sentinels");
    assert!(fix_of(&found).starts_with("start them"));
}

#[test]
fn a_sentinel_is_one_failure_though_it_lacks_commands() {
    let missing = Probe {
        subject: Subject::Command("set"),
        verdict: Permission::Missing,
    };
    let by_valkey = with_info(&["redis_mode:", "server_mode:sentinel"]);
    assert_eq!(by_valkey.info.unwrap().mode(), "sentinel");
    let evidence = Evidence {
        probes: Ok(vec![missing]),
        ..with_info(&["redis_mode:sentinel"])
    };
    let found = all(&evidence, &host(), MEASURE);
    let failed: Vec<&Finding> = found.iter().filter(|it| it.level == Level::Fail).collect();
    assert_eq!(failed.len(), 1, "{failed:?}");
    let fix = fix_of(failed[0]);
    assert!(fix.starts_with("--url redis-sentinel://redis.internal:6379/NAME"));
}

#[test]
fn a_replica_is_one_failure_though_it_refuses_writes() {
    let evidence = Evidence {
        scripts: Ok(Trial {
            done: 0,
            took: ms(1),
            failure: Some((
                "acquire",
                Error::new(ErrorKind::Replica, "is a read-only replica".into()),
            )),
        }),
        ..with_info(&["role:slave", "slave_read_only:1"])
    };
    let found = all(&evidence, &host(), MEASURE);
    let failed: Vec<&Finding> = found.iter().filter(|it| it.level == Level::Fail).collect();
    assert_eq!(failed.len(), 1, "{failed:?}");
    assert_eq!(failed[0].check, "role");
}

#[test]
fn sync_is_possible_where_the_replicas_confirm() {
    let all = || by_sentinels(vec![Ok(sentinel("a:1")), Ok(sentinel("a:1"))]);
    // One of those that they list isn't connected.
    let listing = |replicas: &[KnownReplica]| {
        let mut answer = sentinel("a:1");
        answer.replicas = Ok(replicas.to_vec());
        by_sentinels(vec![Ok(answer.clone()), Ok(answer)])
    };
    // It was the primary, has come back, and isn't waited for.
    let mut former = listed("d:6379");
    former.is_former = true;
    let plain = |connected: &str, confirmed| Evidence {
        acknowledged: confirmed,
        ..with_info(&[connected])
    };
    for (evidence, level, message) in [
        (all(), Level::Ok, "`--sync all` is possible: 1 replica"),
        (
            plain("connected_slaves:2", Ok(2)),
            Level::Ok,
            "`--sync 2` is possible",
        ),
        (
            plain("connected_slaves:2", Ok(1)),
            Level::Warn,
            "1 of 2 replicas confirm",
        ),
        (plain("connected_slaves:0", Ok(0)), Level::Ok, "no replica"),
        (
            listing(&[listed("b:6379"), former.clone()]),
            Level::Ok,
            "`--sync all` is possible: 1 replica",
        ),
        (
            listing(&[listed("b:6379"), listed("c:6379")]),
            Level::Warn,
            "1 of the 2 replicas listed by the sentinels",
        ),
        (
            plain("connected_slaves:1", Err(Unknown::Denied("WAIT"))),
            Level::Unknown,
            "WAIT is not permitted",
        ),
        (
            Evidence {
                knows_replicas: true,
                ..with_info(&[])
            },
            Level::Warn,
            "nothing takes over",
        ),
    ] {
        let found = sync(&evidence);
        assert_eq!(found.level, level, "{found:?}");
        assert!(found.message.contains(message), "{message:?}: {found:?}");
    }
}

#[test]
fn the_missing_rules_are_named_as_they_are_typed() {
    let probe = |subject, verdict| Probe { subject, verdict };
    let evidence = |probes| Evidence {
        probes: Ok(probes),
        ..healthy()
    };
    let lacking = evidence(vec![
        probe(Subject::Command("get"), Permission::Permitted),
        probe(Subject::Command("set"), Permission::Denied),
        probe(Subject::Keys("{redlock:".into()), Permission::Denied),
        probe(Subject::Optional("publish"), Permission::Denied),
        probe(Subject::Keys("redlock:".into()), Permission::Unclear),
    ]);
    assert_only(
        &lacking,
        "permissions",
        Level::Fail,
        "user \"jobs\" lacks +set ~{redlock:*",
        "redis-cli -h redis.internal --askpass ACL SETUSER jobs +set '~{redlock:*' +publish '~redlock:*'  # as an administrator",
    );
    let mut polling = evidence(vec![probe(
        Subject::Optional("publish"),
        Permission::Denied,
    )]);
    assert_only(
        &polling,
        "permissions",
        Level::Warn,
        "+publish, which",
        "+publish",
    );
    polling.messages.as_mut().unwrap().was_granted = false;
    let found = messages(&polling);
    assert_eq!(found.level, Level::Warn);
    assert_eq!(
        fix_of(&found),
        "add the rules that are missing (permissions)"
    );
    let on_cluster = evidence(vec![probe(Subject::Optional("asking"), Permission::Denied)]);
    assert_only(
        &on_cluster,
        "permissions",
        Level::Warn,
        "+asking, which redlock needs while nodes fail or hash slots move",
        "+asking",
    );
    let renamed = evidence(vec![
        probe(Subject::Command("eval"), Permission::Missing),
        probe(Subject::Command("evalsha"), Permission::Missing),
        probe(Subject::Optional("client|tracking"), Permission::Missing),
    ]);
    assert_only(
        &renamed,
        "commands",
        Level::Fail,
        "EVAL, EVALSHA are missing",
        "rename-command",
    );
}

#[test]
fn a_user_with_the_rules_for_looking_may_only_look() {
    let manual = include_str!("../../../../man/redlock-protocol.7");
    let (_, rules) = manual.split_once("viewer reset on").unwrap();
    let (rules, _) = rules.split_once(".fi").unwrap();
    let permits = |name: &str| {
        rules
            .split_whitespace()
            .any(|word| word == format!("+{name}"))
    };
    let judge = |of: &[&'static str], permits: &dyn Fn(&str) -> bool| {
        let probe = |name: &&'static str| Probe {
            subject: Subject::Command(name),
            verdict: if permits(name) {
                Permission::Permitted
            } else {
                Permission::Denied
            },
        };
        let evidence = Evidence {
            probes: Ok(of.iter().map(probe).collect()),
            ..healthy()
        };
        let found = permissions(&evidence);
        (
            found.level,
            found.message.contains("can read locks"),
            fix_of(&found),
        )
    };
    let all = [
        "get", "hget", "lrange", "getrange", "set", "hset", "unlink", "evalsha",
    ];
    let (level, looks, fix) = judge(&all, &permits);
    assert!(
        level == Level::Fail && looks && !fix.contains("SETUSER"),
        "{fix}"
    );
    // One of both kinds is neither.
    for odd in ["get", "set"] {
        let (_, looks, fix) = judge(&all, &|name| permits(name) != (name == odd));
        assert!(!looks && fix.contains("ACL SETUSER jobs "), "{odd}: {fix}");
    }
}

#[test]
fn a_user_in_the_place_of_a_password_is_not_repeated() {
    let probe = Probe {
        subject: Subject::Command("set"),
        verdict: Permission::Denied,
    };
    let hidden = Evidence {
        user: Some("***".into()),
        probes: Ok(vec![probe]),
        ..healthy()
    };
    let fix = fix_of(&permissions(&hidden));
    assert_eq!(fix, "give the user in the URL +set");
}

#[test]
fn what_could_not_be_checked_keeps_a_server_from_being_fit_where_it_decides() {
    let check = |name| super::super::finding::Check(name, super::super::finding::Group::Server);
    let unknown = |name| check(name).unknown(&Unknown::NoAnswer);
    for name in DECIDING {
        let found = [check("other").ok(""), unknown(name)];
        assert_eq!(verdict(&found), Verdict::NotKnown(vec![name]));
    }
    assert_eq!(verdict(&[unknown("persistence")]), Verdict::Fit);
    let failed = [unknown("role"), check("tls").fail("", "")];
    assert_eq!(verdict(&failed), Verdict::Unfit);
}

#[test]
fn sentinels_that_have_not_found_each_other_keep_their_quorum() {
    let alone = || {
        let mut answer = sentinel("a:1");
        (answer.sentinels, answer.quorum) = (1, 2);
        Ok(answer)
    };
    let evidence = by_sentinels(vec![alone(), alone(), alone()]);
    let found = sentinels(&evidence, evidence.sentinels.as_ref().unwrap());
    assert_eq!(found.level, Level::Ok, "{found:?}");
    let mut many = sentinel("a:1");
    (many.sentinels, many.quorum) = (5, 9);
    let evidence = by_sentinels(vec![Ok(many)]);
    let found = sentinels(&evidence, evidence.sentinels.as_ref().unwrap());
    assert_eq!(
        fix_of(&found),
        "redis-cli -h s1 -p 26379 SENTINEL SET mymaster quorum 3  # and do the same on the sentinels that the URL doesn't name"
    );
}

#[test]
fn on_a_cluster_a_replica_is_added_by_its_own_command() {
    let evidence = Evidence {
        knows_replicas: true,
        prefix_has_tag: true,
        ..with_info(&["cluster_enabled:1"])
    };
    assert_only(
        &evidence,
        "sync",
        Level::Warn,
        "no replica",
        "add it as a replica",
    );
}

#[test]
fn without_messages_waiters_poll_and_the_reason_is_said() {
    let heard = |resp3, is_subscribed, refused: Option<&str>| Evidence {
        messages: Ok(Messages {
            resp3,
            refused: refused.map(str::to_owned),
            is_subscribed,
            is_sharded: false,
            was_granted: false,
            was_invalidated: true,
        }),
        ..healthy()
    };
    for (evidence, message) in [
        (heard(false, false, None), "no RESP3"),
        (
            heard(false, false, Some("ERR unknown command")),
            "ERR unknown command",
        ),
        (heard(true, false, None), "can't subscribe"),
        (heard(true, true, None), "no message arrived"),
    ] {
        assert_only(&evidence, "messages", Level::Warn, message, "Redis 6");
    }
    let mut untracked = healthy();
    untracked.messages.as_mut().unwrap().was_invalidated = false;
    assert_only(&untracked, "tracking", Level::Warn, "every 10s", "Redis 6");
}

#[test]
fn a_certificate_is_renewed_in_time() {
    let day = 86400;
    for (left, long, level, message) in [
        (61 * day, 90 * day, Level::Ok, "for 61d more"),
        (13 * day, 90 * day, Level::Warn, "expires in 13d"),
        (-3600, 90 * day, Level::Fail, "has expired, 1h ago"),
        // One that lives for a day only.
        (5 * 3600, day, Level::Ok, "for 5h more"),
        (3600, day, Level::Warn, "expires in 1h"),
    ] {
        let until = MEASURE.now + left;
        let validity = Validity {
            from: until - long,
            until,
        };
        let host = "redis.internal";
        let encrypted = Evidence {
            transport: Transport::Tls { host: host.into() },
            certificate: Some(validity),
            ..healthy()
        };
        let fix = if level == Level::Ok { "" } else { "renew" };
        assert_only(&encrypted, "tls", level, message, fix);
        let ours = Evidence {
            own_certificate: Some(validity),
            ..healthy()
        };
        assert_only(&ours, "client-certificate", level, message, fix);
    }
}

#[test]
fn a_connection_that_failed_says_why_and_all_else_is_not_known() {
    let failed = |kind, message: &str, transport| Evidence {
        connected: Err(Error::new(kind, message.into())),
        transport,
        info: Err(Unknown::NotAsked),
        round_trips: Err(Unknown::NotAsked),
        probes: Err(Unknown::NotAsked),
        scripts: Err(Unknown::NotAsked),
        messages: Err(Unknown::NotAsked),
        ..healthy()
    };
    let plain = Transport::Plain { is_loopback: false };
    let tls = Transport::Tls { host: "h".into() };
    for (evidence, check, message, fix) in [
        (
            failed(
                ErrorKind::Unreachable,
                "can't reach Redis at h: connection refused",
                plain.clone(),
            ),
            "connection",
            "connection refused",
            "start Redis",
        ),
        (
            failed(
                ErrorKind::Unreachable,
                "can't reach Redis at h: no answer in time",
                plain.clone(),
            ),
            "connection",
            "no answer in time",
            "firewall",
        ),
        (
            failed(
                ErrorKind::Refused,
                "Redis at redis.internal:6379 requires a password; use --password-file",
                plain,
            ),
            "connection",
            "requires a password",
            "use --password-file",
        ),
        (
            failed(
                ErrorKind::Config,
                "TLS with h failed: expired; renew it",
                tls,
            ),
            "tls",
            "TLS with h failed: expired",
            "renew it",
        ),
    ] {
        let found = all(&evidence, &host(), MEASURE);
        let bad: Vec<&Finding> = found.iter().filter(|it| it.level == Level::Fail).collect();
        assert_eq!(bad.len(), 1, "{bad:?}");
        assert_eq!(bad[0].check, check);
        assert!(bad[0].message.contains(message), "{bad:?}");
        assert!(fix_of(bad[0]).contains(fix), "{bad:?}");
        assert!(found.iter().all(|it| it.level != Level::Warn), "{found:#?}");
        let fine = |it: &&Finding| it.level == Level::Ok && it.check == "tls";
        assert!(found.iter().find(fine).is_none(), "{found:#?}");
    }
}

#[test]
fn writes_that_are_refused_are_one_failure() {
    for (kind, message) in [
        (
            ErrorKind::NotNow,
            "Redis at redis.internal:6379 is not ready: it has no memory left; free some",
        ),
        (
            ErrorKind::Replica,
            "Redis at redis.internal:6379 is a read-only replica; use the URL of its primary",
        ),
    ] {
        let evidence = Evidence {
            scripts: Ok(Trial {
                done: 0,
                took: ms(1),
                failure: Some(("acquire", Error::new(kind, message.into()))),
            }),
            ..healthy()
        };
        let found = writes(&evidence);
        assert_eq!(found.level, Level::Fail);
        assert!(found.message.starts_with("refused: it "), "{found:?}");
        assert!(found.fix.is_some());
        assert_eq!(scripts(&evidence).level, Level::Unknown);
    }
    let broken = Evidence {
        scripts: Ok(Trial {
            done: 3,
            took: ms(1),
            failure: Some((
                "check",
                Error::new(ErrorKind::Internal, "Redis answered: no".into()),
            )),
        }),
        ..healthy()
    };
    assert_eq!(scripts(&broken).message, "check: Redis answered: no");
    assert_eq!(writes(&broken).level, Level::Unknown);
}

#[test]
fn time_outs_that_cost_renewals_are_named() {
    let slow = Evidence {
        timeout: Duration::from_secs(11),
        ..healthy()
    };
    assert_only(
        &slow,
        "timeouts",
        Level::Warn,
        "--connect-timeout 11s",
        "--connect-timeout 10s",
    );
    let mut idle = healthy();
    idle.config.insert("timeout", Ok("5".into()));
    assert_only(
        &idle,
        "timeouts",
        Level::Warn,
        "idle for 5s",
        "CONFIG SET timeout 0",
    );
    idle.config.insert("timeout", Ok("300".into()));
    assert_only(&idle, "timeouts", Level::Ok, "kept for 5m", "");
}

#[test]
fn doctor_reports_the_key_that_is_stored_under_a_name() {
    let found = |key| Inspected {
        name: "deploy".parse().unwrap(),
        fence: None,
        now_ms: 0,
        key,
        frozen: None,
        waiters: Vec::new(),
        usual: None,
        record: crate::protocol::Record::default(),
    };
    let foreign = |left| {
        Key::Held(vec![Hold {
            id: "0123".into(),
            left,
            holder: None,
            guards: Vec::new(),
            stopping: None,
        }])
    };
    let named = |found: Option<Inspected>, strangers: Vec<Stranger>| Evidence {
        named: Some(Ok(NamedLock {
            key: "redlock:deploy".into(),
            strangers,
            found,
        })),
        ..healthy()
    };
    let stranger = |key: &str| Stranger {
        key: key.into(),
        found: "zset".into(),
        expected: "string",
    };
    for (evidence, level, message, fix) in [
        (
            named(Some(found(Key::Free)), Vec::new()),
            Level::Ok,
            "\"deploy\" is free",
            "",
        ),
        (
            named(Some(found(foreign(Some(ms(9000))))), Vec::new()),
            Level::Ok,
            "another client",
            "",
        ),
        (
            named(Some(found(foreign(None))), Vec::new()),
            Level::Fail,
            "has no expiry",
            "first make sure that the program that set the key is dead; then redlock release --force deploy",
        ),
        (
            named(None, vec![stranger("redlock:deploy")]),
            Level::Fail,
            "is a sorted set of another program",
            "choose another name or --prefix",
        ),
        (
            named(None, vec![stranger("a"), stranger("b")]),
            Level::Fail,
            "(and 1 key more)",
            "may still need",
        ),
    ] {
        assert_only(&evidence, "name", level, message, fix);
    }
}

#[test]
fn what_this_host_lacks_is_a_warning_and_its_clock_a_failure() {
    let with = |kernel| Host { kernel, ..host() };
    let lacks = with(Kernel {
        boot_clock: Err("CLOCK_BOOTTIME fails".into()),
        pdeathsig: Err("PR_SET_PDEATHSIG fails".into()),
        pidfd: Err("pidfd_open fails".into()),
        subreaper: Err("PR_SET_CHILD_SUBREAPER fails".into()),
        proc: Proc::Foreign,
    });
    let found = this_host(&lacks).into_iter().take(5);
    let levels: Vec<_> = found.map(|it| (it.level, it.fix.is_some())).collect();
    let warned = (Level::Warn, true);
    assert_eq!(
        levels,
        [(Level::Fail, true), warned, warned, warned, warned]
    );
    let suspended = with(Kernel {
        boot_clock: Ok(Duration::from_secs(7200)),
        ..host().kernel
    });
    assert!(this_host(&suspended)[0].message.contains("2h since boot"));
}

#[test]
fn settings_that_others_may_write_fail_and_secrets_that_all_can_read_warn() {
    let exposure = |what: &str, command: &str| Exposure {
        what: what.into(),
        command: Some(command.into()),
        otherwise: None,
    };
    let open = Host {
        refused: vec![exposure("a", "chmod a"), exposure("b", "chmod b")],
        exposed: vec![exposure("c", "chmod o-r c")],
        ..host()
    };
    let found = all(&healthy(), &open, MEASURE);
    let bad = found.iter().filter(|it| it.level != Level::Ok);
    let bad: Vec<_> = bad
        .map(|it| (it.check, it.level, &*it.message, fix_of(it)))
        .collect();
    assert_eq!(
        bad,
        [
            (
                "settings",
                Level::Fail,
                "a; b",
                "chmod a && chmod b".to_owned()
            ),
            ("secrets", Level::Warn, "c", "chmod o-r c".to_owned()),
        ]
    );
}
