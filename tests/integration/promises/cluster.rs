//! Redis Cluster: all keys are in one hash slot, whichever node answers first, and wherever the slot moves.

use std::sync::mpsc::channel;

use crate::promises::trouble::self_signed;
use crate::support::prelude::*;
use crate::support::proxy::{Action, Proxy};

/// Queue of the lock "a".
const QUEUE: &str = "{redlock}:{redlock}:a:queue";

/// A key in the hash slot of all locks.
const KEY: &str = "{redlock}:a";

/// Returns the number of waiters for the lock "a", according to a node.
fn waiting(node: &Redis) -> usize {
    node.cli(&["ZCARD", QUEUE]).parse().unwrap_or(0)
}

/// Returns the number of subscribed channels in a node's slots.
fn channels(node: &Redis) -> usize {
    let channels = node.cli(&["PUBSUB", "SHARDCHANNELS", "{redlock}:*"]);
    channels.lines().filter(|line| !line.is_empty()).count()
}

/// Starts a job. The words are redlock's, up to the names of the locks.
fn start(cluster: &Cluster, label: &str, words: &[&str]) -> Gated {
    Gated::labelled(label, cluster.home.path(), cluster.redlock(words))
}

/// Starts a job under the lock "a".
fn job(cluster: &Cluster, label: &str, options: &[&str]) -> Gated {
    start(cluster, label, &[&["run"], options, &["a"]].concat())
}

/// Begins to move the slot of all locks. The states of "a" and "b" move at once, so only the locks themselves can be renewed.
fn begin_to_move(cluster: &Cluster, from: usize, to: usize) {
    cluster.begin_to_move(&cluster.slot(KEY), from, to);
    let states = ["{redlock}:{redlock}:a:state", "{redlock}:{redlock}:b:state"];
    cluster.move_keys(&states, from, to);
}

/// Waits until node 3, the replica of node 0, has all of its data.
fn settle(cluster: &Cluster) {
    let offset = |node: usize, field| cluster.nodes[node].info("replication", field);
    wait_until("the replica has all of that", || {
        offset(0, "master_repl_offset") == offset(3, "slave_repl_offset")
    });
}

/// Waits until another node has noticed that this node is down.
fn wait_until_missed(cluster: &Cluster, node: usize) {
    let other = &cluster.nodes[(node + 1) % 3];
    wait_until("the others have noticed it", || {
        let info = other.cli(&["CLUSTER", "INFO"]);
        info.contains("cluster_state:fail")
    });
}

/// Queues this many jobs one after the other, with their numbers as labels; `node` has the lock.
fn queued(cluster: &Cluster, node: usize, options: &[&str], count: usize) -> Vec<Gated> {
    let start = |number: usize| {
        let waiter = job(cluster, &number.to_string(), options);
        wait_until("it stands in the queue", || {
            waiting(&cluster.nodes[node]) == number + 1
        });
        waiter
    };
    (0..count).map(start).collect()
}

/// Runs a command under two locks with this URL.
fn run(url: &str, words: &[&str]) -> Outcome {
    let options = [&["-u", url, "run"], words, &["a", "b", "--", "true"]].concat();
    outcome(&mut redlock(&options))
}

#[test]
fn whichever_node_is_asked_first_all_keys_are_in_one_slot_and_all_commands_work() {
    let cluster = Cluster::start(&[]);
    let node = cluster.owner(&cluster.slot(KEY));
    for first in 0..3 {
        let end = run(&cluster.url_of(&[first]), &[]);
        end.assert_code(0).assert_silent();
    }
    let command = |words: &[&str]| {
        let end = outcome(&mut cluster.redlock(words));
        end.assert_code(0).stdout.clone()
    };
    let holder = job(&cluster, "holder", &["--slots", "2"]).ready();
    let waiter = queued(&cluster, node, &[], 1);
    let status = command(&["status"]);
    assert_has(&status, &["slot 1/2", "waiting #1"]);
    assert!(command(&["status", "a"]).contains("waiting"));
    holder.end();
    for job in waiter {
        job.end();
    }
    command(&["freeze", "-q", "a", "--reason", "x"]);
    command(&["thaw", "-q", "a"]);
    command(words!("run -q --shared a -- redlock run b -- true"));
    assert_eq!(command(&["history", "a"]).lines().count(), 7);
    for (number, other) in cluster.nodes.iter().enumerate() {
        assert_eq!(other.cli(&["DBSIZE"]) == "0", number != node);
    }
    // The URL's hash tag is part of all keys; an explicit prefix must have one.
    let (plain, url) = (&cluster.nodes[(node + 1) % 3], cluster.url());
    plain.play(&format!("0 {url}/jobs"));
    let jobs = cluster.owner(&cluster.slot("{jobs}:a"));
    let kept = cluster.nodes[jobs].cli(&["EXISTS", "{jobs}:{jobs}:a:state"]);
    assert_eq!(kept, "1");
    // With a server's URL, a cluster node names the right URL. A number after the hosts is a database, not a name for other
    // locks.
    let (server, port) = (plain.tcp_url(), plain.port);
    let no_database = "a cluster has only database 0; leave";
    plain.play(&format!(
        "0 REDLOCK_PREFIX=x{{ci}}: {url}/jobs
        78 REDLOCK_PREFIX=ci: {url}/jobs → put it in braces … REDLOCK_PREFIX='{{redlock}}:'
        78 REDLOCK_PREFIX={{redlock}}: {server} → use redis-cluster://127.0.0.1:{port}
        78 {url}/0 → {no_database} /0 out
        78 {url}/0/ → {no_database} /0 out
        78 {url}/15 → {no_database} the number out"
    ));
}

#[test]
fn a_silent_node_costs_a_share_of_the_timeout_and_an_address_that_cannot_be_reached_is_named() {
    let cluster = Cluster::start(&[]);
    let number = cluster.owner(&cluster.slot(KEY));
    let (node, other) = (&cluster.nodes[number], &cluster.nodes[(number + 1) % 3]);
    let server = UnresponsiveServer::new();
    let silent = server.url().replace("redis://", "");
    // A node that used up the whole timeout would make this 69.
    let url = format!("redis-cluster://{silent},{silent},127.0.0.1:{}", node.port);
    node.play(&format!("0 REDLOCK_REDIS_TIMEOUT=6s {url}"));
    // As behind NAT or in a container: the other nodes announce an address that leads nowhere.
    let nowhere = ["CONFIG", "SET", "cluster-announce-port", "1"];
    assert_eq!(node.cli(&nowhere), "OK");
    wait_until("the others know the new address", || {
        other.cli(&["EXISTS", KEY]).ends_with("127.0.0.1:1")
    });
    // The URL's own address is used if it has the node.
    let (port, whole) = (other.port, cluster.url());
    node.play(&format!(
        "69 redlock -u redis-cluster://127.0.0.1:{port} run -w 1s a -- true → … can't reach Redis at 127.0.0.1:1: connection refused … Redis at 127.0.0.1:{port} names that node by this address … cluster-announce-ip
        0 {whole}"
    ));
}

#[test]
fn a_migration_of_the_slot_that_takes_longer_than_the_ttl_loses_neither_the_lock_nor_a_turn() {
    let cluster = Cluster::start(&[]);
    let slot = cluster.slot(KEY);
    let from = cluster.owner(&slot);
    let to = (from + 1) % 3;
    let fill = "for n = 1, 10000 do redis.call('SET', '{redlock}:fill:' .. n, n) end";
    cluster.nodes[from].cli(&["EVAL", fill, "1", "{redlock}:fill:1"]);
    let ttl = ["--ttl", "6s", "-q"];
    let mut holder = job(&cluster, "holder", &ttl).ready();
    let mut waiters = queued(&cluster, from, &ttl, 20);
    assert_eq!(channels(&cluster.nodes[from]), 20);

    let (began, mut parts) = (Instant::now(), 0);
    cluster.move_slot(&slot, from, to, |_| {
        // Stretched over all of its parts to more than the TTL.
        parts += 1;
        let due = began + Duration::from_millis(70) * parts;
        std::thread::sleep(due.saturating_duration_since(Instant::now()));
        assert!(!holder.run.has_ended(), "the lock was lost");
    });
    let took = began.elapsed();
    assert!(took > Duration::from_millis(6500), "{took:?}");
    assert_eq!(cluster.owner(&slot), to);
    wait_until("all listen where the slot is now", || {
        channels(&cluster.nodes[to]) == 20 && waiting(&cluster.nodes[to]) == 20
    });
    assert_eq!(channels(&cluster.nodes[from]), 0);
    assert!(!holder.run.has_ended(), "the lock was lost");

    // Once more, fast, while the lock passes from one run to the next.
    let home = cluster.home.path();
    waiters.iter_mut().for_each(Gated::open);
    holder.open();
    cluster.move_slot(&slot, to, from, |_| {});
    // A lock that can't be released meanwhile expires, with a message.
    holder.finish().assert_code(0);
    for waiter in waiters {
        waiter.finish().assert_code(0);
    }
    assert_in_turn(home);
    assert_eq!(turns(home).len(), 21);
}

#[test]
fn a_migration_that_takes_longer_than_the_ttl_ends_a_lock_that_replicas_have_to_confirm() {
    let cluster = Cluster::start(&[0]);
    let sync = words!("run --ttl 3s -k 500ms -q REDLOCK_SYNC=1 a");
    let confirmed = start(&cluster, "a", sync).ready();
    let mut other = start(&cluster, "b", words!("run --ttl 6s -k 500ms -q b")).ready();
    begin_to_move(&cluster, 0, 1);
    confirmed.finish().assert_code(79);
    assert!(!other.run.has_ended(), "its lock was lost");
    cluster.move_slot(&cluster.slot(KEY), 0, 1, |_| {});
    other.end();
    // A run also ends with its lease if one of its two locks is taken away during a migration.
    let both = start(&cluster, "both", words!("run --ttl 3s -k 500ms -q a b")).ready();
    begin_to_move(&cluster, 1, 2);
    cluster.nodes[1].cli(&["SET", "{redlock}:b", "theirs", "PX", "60000"]);
    both.finish().assert_code(79);
}

#[test]
fn a_release_waits_for_the_end_of_a_migration_but_no_longer_than_the_timeout() {
    let cluster = Cluster::start(&[]);
    let slot = cluster.slot(KEY);
    let (from, to) = (cluster.owner(&slot), 2);
    assert_ne!(from, to);
    let patient = words!("run --ttl 60s REDLOCK_REDIS_TIMEOUT=60s a");
    let hasty = words!("run --ttl 60s REDLOCK_REDIS_TIMEOUT=2s b");
    let mut released = start(&cluster, "a", patient).ready();
    let mut kept = start(&cluster, "b", hasty).ready();
    begin_to_move(&cluster, from, to);
    kept.open();
    kept.run.finish_saying(0, "can't release lock \"b\"");
    let rejected = || {
        let counts = cluster.nodes[from].info("commandstats", "cmdstat_evalsha");
        let mut counts = counts.split(',');
        let rejected = counts.find_map(|count| count.strip_prefix("rejected_calls="));
        let rejected = rejected.expect("Redis 6.2 and later has it");
        rejected.parse::<u64>().unwrap()
    };
    let before = rejected();
    released.open();
    wait_until("it has tried for a while", || rejected() > before + 5);
    cluster.move_slot(&slot, from, to, |_| {});
    released.finish().assert_code(0).assert_silent();
    assert_eq!(cluster.nodes[to].cli(&["EXISTS", KEY]), "0");
}

#[test]
fn a_failover_of_the_node_that_is_shorter_than_the_ttl_loses_neither_the_lock_nor_a_turn() {
    let mut cluster = Cluster::start(&[0]);
    assert_eq!(cluster.owner(&cluster.slot(KEY)), 0);
    // The URL has only one node, which is going to die.
    let url = cluster.url_of(&[0]);
    let options = ["-u", &url, "--ttl", "20s", "-k", "1s", "-q"];
    let holder = job(&cluster, "holder", &options).ready();
    let waiters = queued(&cluster, 0, &options, 5);
    wait_until("the first renewal has asked for the other nodes", || {
        cluster.nodes[0].calls("cluster|nodes") > 5
    });
    settle(&cluster);
    cluster.nodes[0].kill();
    wait_until("the replica is the primary, and all wait there", || {
        waiting(&cluster.nodes[3]) == 5 && channels(&cluster.nodes[3]) == 5
    });
    holder.end();
    for mut waiter in waiters {
        waiter.open();
        waiter.finish().assert_code(0).assert_silent();
    }
    let home = cluster.home.path();
    assert_in_turn(home);
    let order: Vec<String> = turns(home).into_iter().map(|(_, label)| label).collect();
    assert_eq!(order[1..], ["0", "1", "2", "3", "4"]);
}

#[test]
fn sync_all_needs_more_than_half_of_the_nodes_that_could_have_the_slot() {
    let cluster = Cluster::start(&[0, 0, 0, 0]);
    assert_eq!(cluster.owner(&cluster.slot(KEY)), 0);
    // For the other nodes, the primary and two of its replicas are on the far side of a split.
    for number in [0, 3, 4] {
        cluster.nodes[number].stall();
    }
    let has_followers = |number: usize, count: &str| {
        let field = |name| cluster.nodes[number].info("replication", name);
        field("role") == "master" && field("connected_slaves") == count
    };
    let next = await_some("one of the others follows the other one", || {
        [5, 6]
            .into_iter()
            .find(|&number| has_followers(number, "1"))
    });
    let sync = words!("REDLOCK_SYNC=all REDLOCK_SYNC_TIMEOUT=2s");
    let run_with = |wait: &[&str]| run(&cluster.url_of(&[1]), &[sync, wait].concat());
    run_with(&["-w", "3s"]).assert_said(69, "only 2 of the 5 nodes that could have its hash slot");
    cluster.nodes[3].resume();
    wait_until("it follows the new primary", || has_followers(next, "2"));
    run_with(&["-w", "50s"]).assert_code(0);
    for number in [0, 4] {
        cluster.nodes[number].resume();
    }
}

#[test]
fn sync_all_waits_for_each_replica_also_for_one_that_the_node_gets_while_a_lock_is_held() {
    let cluster = Cluster::start(&[0, 1]);
    let (node, replica) = (&cluster.nodes[0], &cluster.nodes[4]);
    cluster.nodes[3].stall();
    let short = words!("-w 300ms REDLOCK_SYNC=all REDLOCK_SYNC_TIMEOUT=500ms");
    let end = run(&cluster.url(), short);
    cluster.nodes[3].resume();
    end.assert_said(69, "gave lock ");
    end.assert_says(&format!("127.0.0.1:{} is ", cluster.nodes[3].port));
    let options = words!("--ttl 5s REDLOCK_SYNC=all REDLOCK_SYNC_TIMEOUT=2s");
    let holder = job(&cluster, "holder", options).ready();
    let id = cluster.id(0);
    assert_eq!(replica.cli(&["CLUSTER", "REPLICATE", &id]), "OK");
    wait_until("it follows the node", || {
        node.info("replication", "connected_slaves") == "2"
    });
    // This replica stops following its primary, but seems well to all other nodes.
    replica.cli(words!("CONFIG SET masteruser nobody"));
    replica.cli(words!("CONFIG SET masterauth nothing"));
    node.cli(words!("CLIENT KILL TYPE replica"));
    wait_until("it isn't connected", || {
        replica.info("replication", "master_link_status") == "down"
    });
    holder
        .run
        .finish_saying(79, "hasn't replicated the lock: 1 of 2 replicas");
}

#[test]
fn a_node_that_becomes_a_replica_before_its_replicas_have_confirmed_a_lock_costs_its_run_only_time()
{
    // The node changes while the run waits for the replicas, or before the run asks for them again.
    for (replicas, is_second) in [(&[0, 0][..], false), (&[0, 0, 0], true)] {
        let cluster = Cluster::start(replicas);
        assert_eq!(cluster.owner(&cluster.slot(KEY)), 0);
        let node = |number: usize| &cluster.nodes[number];
        if is_second {
            // WAIT includes this replica's confirmation, although the replica can't be promoted.
            let never = words!("CONFIG SET cluster-replica-no-failover yes");
            assert_eq!(node(5).cli(never), "OK");
            wait_until("the node knows", || {
                node(0).cli(&["CLUSTER", "NODES"]).contains("nofailover")
            });
        }
        node(3).stall();
        let (reached, waiting) = channel();
        let (go, gone) = channel::<()>();
        let proxy = Proxy::with(node(0), move |request| {
            if is_second && request.operation == "WAIT" && request.before == 1 {
                let _ = reached.send(());
                let _ = gone.recv_timeout(TIMEOUT);
            }
            Action::Pass
        });
        let url = format!("redis-cluster://127.0.0.1:{}", proxy.port());
        let sync = "run --url {} REDLOCK_SYNC=all REDLOCK_SYNC_TIMEOUT=15s --ttl 25s a -- echo ran";
        let mut run = Running::start(&mut cluster.redlock(&words(sync, &[&url])));
        if is_second {
            waiting.recv_timeout(TIMEOUT).expect("it asks again");
        } else {
            wait_until("it waits for the replicas", || {
                node(0).info("clients", "blocked_clients") == "1"
            });
        }
        assert_eq!(node(4).cli(words!("CLUSTER FAILOVER TAKEOVER")), "OK");
        wait_until("the node has heard of that", || {
            node(0).info("replication", "role") == "slave"
        });
        node(3).resume();
        drop(go);
        run.expect_line("ran");
        run.finish().assert_exited(0);
        assert_eq!(node(4).cli(&["EXISTS", KEY]), "0");
    }
}

#[test]
fn without_a_permission_for_channels_of_slots_a_waiter_polls() {
    let cluster = Cluster::start(&[]);
    let node = cluster.owner(&cluster.slot(KEY));
    let documented = "~{redlock}:* &{redlock}:* +evalsha +eval +get +set +getrange +unlink +exists +type \
        +pttl +pexpire +time +hget +hmget +hset +hdel +hscan +zadd +zrem +zrange +zrank \
        +zscan +zscore +zcard +zrangebyscore +zremrangebyscore +lpush +ltrim +lrange +hello +client|tracking \
        +client|caching +role +wait +ssubscribe +spublish +cluster|nodes +asking";
    let manual = fs::read_to_string("man/redlock-servers.7").unwrap();
    assert!(manual.contains("+ssubscribe +spublish"));
    for (user, without) in [("all", ""), ("deaf", "-ssubscribe"), ("mute", "-spublish")] {
        for node in &cluster.nodes {
            let set = format!("ACL SETUSER {user} reset on >secret {documented} {without}");
            let set: Vec<&str> = set.split_whitespace().collect();
            assert_eq!(node.cli(&set), "OK");
        }
        let url = cluster.url().replace("://", &format!("://{user}:secret@"));
        let options = ["-u", &url, "-q"];
        let holder = job(&cluster, "holder", &options).ready();
        let mut waiters = queued(&cluster, node, &options, 1);
        if user == "all" {
            assert_eq!(channels(&cluster.nodes[node]), 1);
        }
        waiters[0].open();
        holder.end();
        waiters.remove(0).finish().assert_code(0).assert_silent();
    }
    assert_in_turn(cluster.home.path());
}

#[test]
fn while_the_node_is_down_a_run_waits_and_says_so_or_gives_up_after_the_connect_timeout() {
    let mut cluster = Cluster::start(&[]);
    let node = cluster.owner(&cluster.slot(KEY));
    cluster.nodes[node].kill();
    let mut waiting = Running::start(&mut cluster.redlock(words!("run --ttl 20s a -- echo in")));
    let (began, other) = (Instant::now(), cluster.url_of(&[(node + 1) % 3]));
    let hasty = words!("-n REDLOCK_REDIS_TIMEOUT=1500ms");
    run(&other, hasty).assert_exited(69);
    let took = began.elapsed().as_millis();
    assert!((1500..20_000).contains(&took), "{took}");
    wait_until_missed(&cluster, node);
    assert!(!waiting.has_ended());
    outcome(&mut cluster.redlock(&["run", "--no-wait", "a", "--", "true"])).assert_exited(69);
    cluster.nodes[node].start_again();
    waiting.expect_line("in");
    waiting.finish_saying(0, "Redis answers again");
}

#[test]
fn at_the_replica_of_a_dead_node_a_release_is_repeated_and_a_run_begins_though_the_url_names_neither()
 {
    let mut cluster = Cluster::start(&[0]);
    assert_eq!(cluster.owner(&cluster.slot(KEY)), 0);
    let mut holder = job(&cluster, "holder", &["--ttl", "90s", "-k", "30s"]).ready();
    settle(&cluster);
    cluster.nodes[0].kill();
    holder.open();
    let url = cluster.url_of(&[1]);
    let lines = ["b", "-n REDLOCK_REDIS_TIMEOUT=50s c"];
    let runs = lines.map(|line| {
        let run = format!("-u {url} run -q {line} -- true");
        Running::start(&mut redlock(&words(&run, &[])))
    });
    for run in runs {
        run.finish().assert_code(0).assert_silent();
    }
    holder.finish().assert_code(0).assert_silent();
    assert_eq!(cluster.nodes[3].info("replication", "role"), "master");
    assert_eq!(cluster.nodes[3].cli(&["EXISTS", KEY]), "0");
}

#[test]
fn a_waiter_makes_at_most_eighty_system_calls_a_second_while_the_node_is_dead() {
    let mut cluster = Cluster::start(&[1, 1, 2]);
    assert_eq!(cluster.owner(&cluster.slot(KEY)), 0);
    let options = ["--ttl", "90s"];
    let _holder = job(&cluster, "holder", &options).ready();
    let waiter = queued(&cluster, 0, &options, 1);
    cluster.nodes[0].kill();
    wait_until_missed(&cluster, 0);
    let began = Instant::now();
    let counts = cluster.home.path().join("counts");
    let options = ["-f", "-c", "-o", counts.to_str().unwrap()];
    let mut strace = attach_strace(waiter[0].run.pid(), &options);
    std::thread::sleep(Duration::from_secs(10));
    send(strace.id().try_into().unwrap(), libc::SIGINT);
    strace.wait().unwrap();
    let took = began.elapsed().as_secs_f64();
    let counts = fs::read_to_string(&counts).unwrap();
    let total = counts.lines().find(|line| line.ends_with(" total"));
    let mut fields = total.expect("a sum").split_whitespace();
    let calls: f64 = fields.nth(3).unwrap().parse().expect("a number of calls");
    // Each attempt to connect has a thread of its own, which takes some 20 of 45 calls.
    assert!(calls <= 80.0 * took, "{calls} in {took} s");
}

#[test]
fn over_tls_a_node_is_reached_by_the_name_that_it_announces_beside_its_number() {
    if SERVER.is_before(7, 0) {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    self_signed(directory.path(), "leaf", "2", "FALSE");
    let file = directory.path().join("leaf").display().to_string();
    let cert = format!("{file}.crt");
    let mut ports = Vec::new();
    let cluster = Cluster::of(&[], |common| {
        let (plain, port) = (free_port(), free_port());
        let tls = format!(
            "--tls-cluster yes --cluster-port {} --tls-port {port} --tls-cert-file {cert} \
             --tls-key-file {file}.key --tls-ca-cert-file {cert} --tls-auth-clients no",
            plain + 10_000
        );
        ports.push(port);
        let tls: Vec<&str> = tls.split(' ').collect();
        Redis::at(|| plain, &[], &[common, &tls].concat())
    });
    for (name, count) in [("localhost", 3), ("", 0)] {
        for node in &cluster.nodes {
            node.cli(&["CONFIG", "SET", "cluster-announce-hostname", name]);
        }
        wait_until("the nodes know each other's names", || {
            let mut nodes = cluster.nodes.iter();
            nodes.all(|node| {
                let list = node.cli(&["CLUSTER", "NODES"]);
                list.matches("localhost").count() == count
            })
        });
        for port in &ports {
            let url = format!("rediss-cluster://localhost:{port}");
            let run = words!("-u {} REDLOCK_TLS_CA={} run -n a -- echo ran", &url, &cert);
            let end = outcome(&mut redlock(run));
            if count > 0 {
                end.assert_printed(0, "ran\n");
            } else if end.code() != Some(0) {
                end.assert_said(78, "cluster-announce-hostname");
                end.assert_says("cluster-preferred-endpoint-type");
            }
        }
    }
}
