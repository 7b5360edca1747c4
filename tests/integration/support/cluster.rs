//! A cluster of three primaries, with optional replicas.

use std::process::Command;
use std::time::{Duration, Instant};

use super::{Redis, Scratch, await_some, field_of, redlock_at, wait_until};

/// A cluster, gone when dropped. The first three nodes own a third of the hash slots each; every further node is the replica of
/// one of them.
pub struct Cluster {
    pub nodes: Vec<Redis>,
    /// Home directory of its users.
    pub home: Scratch,
}

/// Number of hash slots.
const SLOTS: u32 = 16_384;

impl Cluster {
    /// Starts three nodes, and a replica of each given one.
    pub fn start(replicas_of: &[usize]) -> Self {
        Self::with(replicas_of, &[])
    }

    pub fn with(replicas_of: &[usize], options: &[&str]) -> Self {
        Self::of(replicas_of, |common| {
            Redis::with(&[common, options].concat())
        })
    }

    /// Like `start`, with nodes that `start` launches, each with at least these options.
    pub fn of(replicas_of: &[usize], mut start: impl FnMut(&[&str]) -> Redis) -> Self {
        // Otherwise a replica could move to a primary without one after a failover.
        let stay = ["--cluster-migration-barrier", "9"];
        let common = ["--cluster-enabled", "yes", "--cluster-node-timeout", "1000"];
        let common = [&common[..], &stay, &["--repl-diskless-sync-delay", "0"]].concat();
        let nodes: Vec<Redis> = (0..3 + replicas_of.len()).map(|_| start(&common)).collect();
        let home = Scratch::new();
        let all = Self { nodes, home };
        let port = |node: usize| all.nodes[node].port.to_string();
        for (number, node) in all.nodes.iter().enumerate() {
            let epoch = (number + 1).to_string();
            assert_eq!(node.cli(&["CLUSTER", "SET-CONFIG-EPOCH", &epoch]), "OK");
            if number > 0 {
                let met = node.cli(&["CLUSTER", "MEET", all.nodes[0].host(), &port(0)]);
                assert_eq!(met, "OK");
            }
        }
        for (node, first) in all.nodes[..3].iter().zip([0, 5462, 10_924]) {
            node.add_slots(first..(first + 5462).min(SLOTS));
        }
        let count = all.nodes.len().to_string();
        for node in &all.nodes {
            wait_until("the node knows all others", || {
                node.cluster_info("cluster_known_nodes") == count
            });
        }
        for (replica, of) in all.nodes[3..].iter().zip(replicas_of) {
            let id = all.id(*of);
            wait_until("a node takes another for its primary", || {
                replica.cli(&["CLUSTER", "REPLICATE", &id]) == "OK"
            });
        }
        all.wait_until_whole();
        all
    }

    /// Waits until all nodes are well, and the replicas are in sync.
    #[track_caller]
    pub fn wait_until_whole(&self) {
        for node in &self.nodes {
            wait_until("the cluster is complete", || {
                node.cluster_info("cluster_state") == "ok"
                    && (node.info("replication", "role") == "master"
                        || node.info("replication", "master_link_status") == "up")
            });
        }
        for node in &self.nodes {
            wait_until("each primary is followed by its replicas", || {
                let replicas = node.info("replication", "connected_slaves");
                node.info("replication", "role") != "master"
                    || replicas
                        .parse()
                        .is_ok_and(|replicas| node.is_followed_by(replicas))
            });
        }
    }

    /// Returns the URL with these nodes.
    pub fn url_of(&self, nodes: &[usize]) -> String {
        let each = nodes.iter().map(|&node| &self.nodes[node]);
        let hosts: Vec<String> = each
            .map(|node| format!("{}:{}", node.host(), node.port))
            .collect();
        format!("redis-cluster://{}", hosts.join(","))
    }

    /// Returns the URL of the first three nodes.
    pub fn url(&self) -> String {
        self.url_of(&[0, 1, 2])
    }

    /// Returns a redlock that knows the cluster, with nothing of the tests' environment.
    pub fn redlock(&self, arguments: &[&str]) -> Command {
        redlock_at(&self.url(), self.home.path(), arguments)
    }

    pub fn id(&self, node: usize) -> String {
        self.nodes[node].cli(&["CLUSTER", "MYID"])
    }

    /// Returns the hash slot of a key.
    pub fn slot(&self, key: &str) -> String {
        self.nodes[0].cli(&["CLUSTER", "KEYSLOT", key])
    }

    /// Returns the number of the node that owns a slot, according to that node.
    #[track_caller]
    pub fn owner(&self, slot: &str) -> usize {
        await_some("a node has the slot", || {
            self.nodes.iter().position(|node| node.has_slot(slot))
        })
    }

    /// Promotes a replica, whose primary survives. A replica gives up after 5 s, for example while a link between nodes is
    /// reopened, so the request is repeated. Replicas refuse while they consider their primary down.
    #[track_caller]
    pub fn failover(&self, replica: usize) {
        let replica = &self.nodes[replica];
        let mut given_up_at = Instant::now();
        wait_until("the replica is a primary", || {
            let is_primary = replica.info("replication", "role") == "master";
            let is_to_be_asked = !is_primary && Instant::now() >= given_up_at;
            if is_to_be_asked && replica.cli(&["CLUSTER", "FAILOVER"]) == "OK" {
                given_up_at = Instant::now() + Duration::from_secs(6);
            }
            is_primary
        });
    }

    /// Moves a slot with all its keys in parts, like `redis-cli --cluster reshard`. Calls `between` after each part, with the
    /// number of keys moved so far.
    #[track_caller]
    pub fn move_slot(&self, slot: &str, from: usize, to: usize, mut between: impl FnMut(usize)) {
        self.begin_to_move(slot, from, to);
        let mut moved = 0;
        loop {
            let keys = self.nodes[from].cli(&["CLUSTER", "GETKEYSINSLOT", slot, "100"]);
            let keys: Vec<&str> = keys.lines().filter(|key| !key.is_empty()).collect();
            if keys.is_empty() {
                break;
            }
            self.move_keys(&keys, from, to);
            moved += keys.len();
            between(moved);
        }
        let rest = (0..3).filter(|other| ![from, to].contains(other));
        for node in [to, from].into_iter().chain(rest) {
            self.set_slot(node, slot, "NODE", to);
        }
    }

    /// Tells both nodes that a slot is going to move.
    pub fn begin_to_move(&self, slot: &str, from: usize, to: usize) {
        self.set_slot(to, slot, "IMPORTING", from);
        self.set_slot(from, slot, "MIGRATING", to);
    }

    fn set_slot(&self, node: usize, slot: &str, state: &str, other: usize) {
        let words = ["CLUSTER", "SETSLOT", slot, state, &self.id(other)];
        assert_eq!(self.nodes[node].cli(&words), "OK");
    }

    /// Moves some of the keys of a slot that is moving.
    #[track_caller]
    pub fn move_keys(&self, keys: &[&str], from: usize, to: usize) {
        let port = self.nodes[to].port.to_string();
        let migrate = ["MIGRATE", "127.0.0.1", &port, "", "0", "5000", "KEYS"];
        let answer = self.nodes[from].cli(&[&migrate[..], keys].concat());
        // The keys may have expired meanwhile.
        assert!(matches!(&*answer, "OK" | "NOKEY"), "{answer}");
    }
}

impl Redis {
    /// Returns a field of `CLUSTER INFO`; empty while the node doesn't answer.
    fn cluster_info(&self, field: &str) -> String {
        field_of(self.ask(&["CLUSTER", "INFO"]), field)
    }

    /// Returns true if this node, and no other, owns a slot.
    fn has_slot(&self, slot: &str) -> bool {
        let is_primary = self.info("replication", "role") == "master";
        let own = self.cli(&["CLUSTER", "NODES"]);
        let own = own
            .lines()
            .find(|line| line.contains("myself"))
            .unwrap_or_default();
        let slots = own.split(' ').skip(8).filter(|word| !word.starts_with('['));
        let slot: u16 = slot.parse().unwrap();
        let mut ranges = slots.map(|range| {
            let (first, last) = range.split_once('-').unwrap_or((range, range));
            (first.parse::<u16>().unwrap(), last.parse::<u16>().unwrap())
        });
        is_primary && ranges.any(|(first, last)| (first..=last).contains(&slot))
    }
}
