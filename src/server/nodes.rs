//! The nodes of a cluster, as one node reports them. Pure.

use std::collections::BTreeSet;

use redis::{Cmd, cmd};

use super::url::{Address, is_host, with_port};

/// Limit of other nodes that redlock remembers.
const MAX_NODES: usize = 16;

/// Limit of replicas of a node that redlock remembers: more than any node has.
const MOST_REPLICAS: usize = 1000;

/// Returns the command that lists the nodes.
pub(super) fn cluster_nodes() -> Cmd {
    cmd("CLUSTER").arg("NODES").clone()
}

/// Location of keys, as a node names it: `<slot> <host>:<port>`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Redirect {
    pub(super) slot: u16,
    /// Host of the keys. Empty for the host of the node that answered.
    pub(super) host: String,
    pub(super) port: u16,
}

impl Redirect {
    /// Parses the details of an error. Returns `None` for anything else, such as a node that doesn't know the other's address.
    pub fn parse(details: &str) -> Option<Self> {
        let mut words = details.split(' ');
        let slot = words.next()?.parse().ok()?;
        let (host, port) = words.next()?.rsplit_once(':')?;
        Some(Self {
            slot,
            host: is_host(host).then(|| host.to_owned())?,
            port: port.parse().ok().filter(|port| *port > 0)?,
        })
    }

    /// Returns the address, if the node at `by` answered with this redirection.
    pub fn address(&self, by: &Address) -> Address {
        sibling(by, &self.host, self.port)
    }
}

/// Returns the address that a node names. An empty host stands for the node's own.
fn sibling(of: &Address, host: &str, port: u16) -> Address {
    let host = if host.is_empty() { of.host() } else { host };
    Address::Tcp {
        host: host.to_owned(),
        port,
        tls: of.has_tls(),
    }
}

/// A line of the answer to `CLUSTER NODES`:
/// `<id> <ip>:<port>@<bus>[,<host name>…] <flags> <primary> <ping> <pong> <epoch> <state> <slots>…`.
pub(super) struct NodeLine<'a> {
    id: &'a str,
    pub(super) ip: &'a str,
    pub(super) port: &'a str,
    /// Name of the host; empty if it has none.
    pub(super) name: &'a str,
    flags: &'a str,
    primary: &'a str,
    pub(super) slots: Vec<&'a str>,
}

impl<'a> NodeLine<'a> {
    /// Parses the lines of an answer, and ignores anything else.
    pub(super) fn all(list: &'a str) -> impl Iterator<Item = Self> {
        list.lines().filter_map(Self::parse)
    }

    fn parse(line: &'a str) -> Option<Self> {
        let mut words = line.split(' ');
        let (id, place) = (words.next()?, words.next()?);
        let (place, rest) = place.split_once('@')?;
        let (ip, port) = place.rsplit_once(':')?;
        Some(Self {
            id,
            ip,
            port,
            name: rest.split(',').nth(1).unwrap_or_default(),
            flags: words.next()?,
            primary: words.next()?,
            slots: words.skip(4).collect(),
        })
    }

    pub(super) fn has(&self, flag: &str) -> bool {
        self.flags.split(',').any(|other| other == flag)
    }

    /// Returns the addresses of the node: by its name and by its IP address.
    fn addresses(&self, at: &Address) -> Vec<Address> {
        let Some(port) = self.port.parse().ok().filter(|port| *port > 0) else {
            return Vec::new();
        };
        let hosts = [self.name, self.ip].into_iter();
        let hosts = hosts.filter(|host| !host.is_empty() && is_host(host));
        hosts.map(|host| sibling(at, host, port)).collect()
    }
}

/// The other nodes, as one node knows them.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Nodes {
    /// Their addresses. The node's own replicas come first, because they could take its slots over.
    pub others: Vec<Address>,
    /// The node's replicas that may be promoted, except those that most primaries report as failed: `host:port`.
    pub replicas: Vec<String>,
    /// Number of nodes that could have the node's slots, up or down: the node, its replicas, and a primary that it may have
    /// replaced, with the replicas that still follow that primary.
    pub shard: usize,
}

impl Nodes {
    /// Reads the answer of the node at this address to `CLUSTER NODES`.
    pub fn parse(list: &str, at: &Address) -> Self {
        let lines: Vec<NodeLine> = NodeLine::all(list).collect();
        let own = lines.iter().find(|line| line.has("myself"));
        let own = own.map(|line| line.id);
        let (mut nodes, mut rest) = (Self::default(), Vec::new());
        // Failed primaries whose slots another node has taken over.
        let is_away = |line: &&NodeLine| line.has("fail") || line.has("fail?");
        let replaced = lines.iter().filter(is_away);
        let replaced = replaced.filter(|line| line.has("master") && line.slots.is_empty());
        let replaced: BTreeSet<&str> = replaced.map(|line| line.id).collect();
        let mut shard: BTreeSet<&str> = own.into_iter().collect();
        for line in &lines {
            let may_follow = !line.has("nofailover");
            if replaced.contains(line.primary) && may_follow {
                shard.extend([line.id, line.primary]);
            }
            if line.has("myself") || line.has("noaddr") || line.has("handshake") {
                continue;
            }
            let is_down = line.has("fail");
            let is_replica = Some(line.primary) == own;
            if is_replica && may_follow {
                shard.insert(line.id);
                // A client that only reads the stream has no port.
                if !is_down && line.port != "0" {
                    nodes.replicas.push(with_port(line.ip, line.port));
                }
            }
            match is_replica {
                _ if is_down => {}
                true => nodes.others.extend(line.addresses(at)),
                false => rest.extend(line.addresses(at)),
            }
        }
        nodes.shard = shard.len();
        nodes.others.append(&mut rest);
        nodes.others.truncate(MAX_NODES);
        // An answer may list a hundred thousand.
        nodes.replicas.truncate(MOST_REPLICAS);
        nodes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tcp(host: &str, port: u16) -> Address {
        Address::Tcp {
            host: host.into(),
            port,
            tls: false,
        }
    }

    #[test]
    fn a_redirection_without_a_host_means_the_host_that_was_asked() {
        let at = tcp("asked", 1);
        for (details, address) in [
            ("3999 10.0.0.1:6381", Some(tcp("10.0.0.1", 6381))),
            ("3999 ::1:6381", Some(tcp("::1", 6381))),
            (
                "3999 redis-1.example:6381",
                Some(tcp("redis-1.example", 6381)),
            ),
            ("3999 :6381", Some(tcp("asked", 6381))),
            ("3999 ?:6381", None),
            ("3999 a\u{1b}b:6381", None),
            ("3999 h:0", None),
            ("3999 h", None),
            ("3999", None),
        ] {
            let redirect = Redirect::parse(details);
            assert_eq!(redirect.map(|it| it.address(&at)), address, "{details}");
        }
    }

    #[test]
    fn the_nodes_that_would_take_the_slots_over_come_first() {
        let list = "\
aa :7001@17001 myself,master - 0 0 1 connected 0-5460
bb 10.0.0.2:7002@17002 master - 0 0 2 connected 5461-10922
cc 10.0.0.3:7003@17003,redis-3,shard-id=1 slave aa 0 0 1 connected
dd 10.0.0.4:7004@17004 slave,fail aa 0 0 1 connected
ee 10.0.0.5:7005@17005 slave,fail? bb 0 0 1 connected
ff :0@0 slave,noaddr bb 0 0 1 disconnected
ii ::1:7009@17009 slave aa 0 0 1 connected
hh 10.0.0.8:0@0 slave bb 0 0 1 connected
gg
";
        let nodes = Nodes::parse(list, &tcp("h", 7001));
        assert_eq!(
            nodes.others,
            [
                tcp("redis-3", 7003),
                tcp("10.0.0.3", 7003),
                tcp("::1", 7009),
                tcp("10.0.0.2", 7002),
                tcp("10.0.0.5", 7005),
            ]
        );
        // In the format of ROLE.
        assert_eq!(nodes.replicas, ["10.0.0.3:7003", "[::1]:7009"]);
    }

    #[test]
    fn a_shard_has_its_replicas_that_are_down_and_a_primary_that_was_replaced_with_those_that_follow_it()
     {
        let own = "aa :1@2 myself,master - 0 0 9 connected 0-5460";
        let other = "bb h:2@2 master - 0 0 2 connected 5461-10922";
        let replica = "cc h:3@2 slave aa";
        for (others, shard) in [
            (&[][..], 1),
            (&["cc h:3@2 slave aa"], 2),
            (&["cc h:3@2 slave aa", "dd h:4@2 slave,fail aa"], 3),
            // A replica that is never promoted, a replica of another shard, and a replica without an address.
            (&["cc h:3@2 slave,nofailover aa"], 1),
            (&["cc h:3@2 slave bb"], 1),
            (&["cc :0@0 slave,noaddr aa"], 1),
            // The other side of a split: to this side, their primary is down and has lost its slots.
            (
                &[replica, "pp h:5@2 master,fail -", "qq h:6@2 slave,fail pp"],
                4,
            ),
            // All of its replicas follow the next primary.
            (&["pp h:5@2 master,fail -", replica], 2),
            // A primary that isn't down has not been replaced.
            (&["pp h:5@2 master,noaddr -", "qq h:6@2 slave pp"], 1),
            // A new primary, and its replica, wait for slots.
            (&["pp h:5@2 master -", "qq h:6@2 slave pp"], 1),
        ] {
            let lines = others.iter().map(|line| format!("{line} 0 0 1 connected"));
            let lines: Vec<String> = lines.collect();
            let list = [own, other, &lines.join("\n")].join("\n");
            let nodes = Nodes::parse(&list, &tcp("h", 1));
            assert_eq!(nodes.shard, shard, "{others:?}");
        }
    }

    #[test]
    fn of_a_list_of_nodes_without_an_end_the_beginning_counts() {
        let own = "aa :1@2 myself,master - 0 0 1 connected 0-5460\n".to_owned();
        let replica = |n: u32| format!("b {n}:7@8 s aa\n");
        let list: String = std::iter::once(own)
            .chain((0..60_000).map(replica))
            .collect();
        let nodes = Nodes::parse(&list, &tcp("h", 7001));
        assert_eq!(nodes.replicas.len(), MOST_REPLICAS);
    }
}
