use super::*;
use crate::protocol::Access;

/// Returns the finding of `judge` about a server with this INFO, as `LEVEL: MESSAGE`.
fn judged(url: &str, info: &str, judge: fn(&mut ExaminedServer) -> Finding) -> String {
    let access = Access {
        url,
        timeout: Duration::from_secs(1),
        ..Access::default()
    };
    let locks = Locks::new(&access, None, 0).unwrap();
    let mut server = ExaminedServer {
        client: locks.client(),
        redis_cli: locks.server().redis_cli(),
        place: locks.server().to_string(),
        findings: Vec::new(),
        until: Instant::now(),
        connected: Ok(Duration::ZERO),
        info: Info::default(),
        quorum: None,
        votes: Vec::new(),
        listed: Vec::new(),
        locks: &locks,
    };
    server.info.add(&info.replace(' ', "\n"));
    let finding = judge(&mut server);
    format!("{:?}: {}", finding.level, finding.message)
}

/// Cases: a check, the server's INFO, and the beginning of the finding.
const CASES: &str = "\
role|role:active-replica master_host:h master_port:1|Fail: a writable replica of h:1: both grant the same lock
role|role:master active_replica:1 master_host:h master_port:1|Fail: a writable replica of h:1: both grant the same lock
role||Unknown: INFO has no role
kind|redis_version:6 mvcc_depth:0|Ok: KeyDB 6, standalone
kind|valkey_version:8 redis_version:7 server_mode:cluster|Ok: Valkey 8, cluster
persistence|save: slave0:ip=a,port=1,state=online process_supervised:systemd|Fail: none, and a supervisor restarts the server
persistence|save: slave0:ip=a,port=1,state=online process_supervised:no|Warn: none: a restart forgets all locks
persistence||Warn: snapshots at most
persistence|aof_enabled:1 appendfsync:everysec|Ok: append-only file (everysec): a crash may forget the last second
persistence|aof_enabled:1 aof_last_write_status:err|Warn: the last write to the disk failed
eviction|maxmemory_policy:noeviction maxmemory:100 used_memory:90|Warn: noeviction; 90% of maxmemory
eviction|maxmemory_policy:noeviction maxmemory:100 used_memory:89|Ok: noeviction; 89% of maxmemory
replicas||Moot: none";

#[test]
fn servers_that_no_test_starts_are_judged_by_their_info() {
    for case in CASES.lines() {
        let mut parts = case.split('|');
        let mut part = || parts.next().unwrap();
        let judge: fn(&mut ExaminedServer) -> Finding = match part() {
            "role" => |it| it.role(),
            "kind" => |it| it.kind(),
            "persistence" => |it| it.persistence(),
            "eviction" => |it| it.eviction(),
            _ => |it| it.replicas(),
        };
        let finding = judged("redis://h", part(), judge);
        assert!(finding.starts_with(part()), "{case}: {finding}");
    }
    let none = judged("redis-sentinel://h/m", "", |it| it.replicas());
    assert!(none.starts_with("Warn: none"), "{none}");
    for (timeout, expected) in [
        (10, "Ok: 1 in sync"),
        (11, "Warn: repl-timeout is over 10s"),
    ] {
        let info = "slave0:ip=a,port=1,state=online,lag=0 connected_slaves:1 repl-timeout:";
        let finding = judged("redis-cluster://h", &format!("{info}{timeout}"), |it| {
            it.quorum = Some(Quorum::All);
            it.listed = vec!["a:1".into()];
            it.replicas()
        });
        assert!(finding.starts_with(expected), "{finding}");
    }
}
