use super::*;
use crate::protocol::Access;

/// Returns the finding of `judge` about a server with this INFO, as `LEVEL: MESSAGE`.
fn judged(url: &str, info: &str, judge: fn(&mut Server) -> Finding) -> String {
    let access = Access {
        url,
        timeout: Duration::from_secs(1),
        ..Access::default()
    };
    let locks = Locks::new(&access, None, 0).unwrap();
    let mut server = Server {
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

// Method paths would have one lifetime each, but the function needs any.
#[allow(clippy::redundant_closure_for_method_calls)]
#[test]
fn servers_that_no_test_starts_are_judged_by_their_info() {
    let single = "redis://h";
    let role = |info: &str| judged(single, info, |it| it.role());
    let both = "Fail: a writable replica of h:1: both grant the same lock";
    let active = "role:active-replica master_host:h master_port:1";
    assert_eq!(role(active), both);
    let other = active.replace("active-replica", "master active_replica:1");
    assert_eq!(role(&other), both);
    assert_eq!(role(""), "Unknown: INFO has no role");
    let kind = |info: &str| judged(single, info, |it| it.kind());
    let keydb = "redis_version:6 mvcc_depth:0";
    assert_eq!(kind(keydb), "Ok: KeyDB 6, standalone");
    let valkey = "valkey_version:8 redis_version:7 server_mode:cluster";
    assert_eq!(kind(valkey), "Ok: Valkey 8, cluster");
    let kept = |info: &str| judged(single, info, |it| it.persistence());
    let copied = "save: slave0:ip=a,port=1,state=online process_supervised:systemd";
    assert!(kept(copied).starts_with("Fail: none, and a supervisor restarts the server"));
    assert!(kept(&copied.replace("systemd", "no")).starts_with("Warn: none"));
    assert!(kept("").starts_with("Warn: snapshots at most"));
    let log = "aof_enabled:1 appendfsync:everysec";
    assert!(kept(log).ends_with("a crash may forget the last second"));
    let failing = "aof_enabled:1 aof_last_write_status:err";
    assert!(kept(failing).starts_with("Warn: the last write to the disk failed"));
    let replicas = |url: &str| judged(url, "", |it| it.replicas());
    assert_eq!(replicas(single), "Moot: none");
    assert!(replicas("redis-sentinel://h/m").starts_with("Warn: none"));
    let one = "slave0:ip=a,port=1,state=online,lag=0 connected_slaves:1 repl-timeout:";
    let synced = |timeout: &str| {
        judged("redis-cluster://h", &format!("{one}{timeout}"), |it| {
            it.quorum = Some(Quorum::All);
            it.listed = vec!["a:1".into()];
            it.replicas()
        })
    };
    assert_eq!(synced("10"), "Ok: 1 in sync");
    assert!(synced("11").starts_with("Warn: repl-timeout is over 10s"));
    let evicts = |info: &str| judged(single, info, |it| it.eviction());
    let full = "maxmemory_policy:noeviction maxmemory:100 used_memory:90";
    assert!(evicts(full).starts_with("Warn: noeviction; 90% of maxmemory"));
    assert!(evicts(&full.replace("90", "89")).starts_with("Ok: "));
}
