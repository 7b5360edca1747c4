//! Finds the node of a Redis Cluster that has the locks: all their keys are in one hash slot.
//!
//! A node that doesn't serve the slot answers any question about one of its keys with the address of the node that does
//! (`MOVED`). So redlock uses a connection only after such a question was answered over it. redlock asks one node after
//! the other, and follows each redirection: first the last used node, then those of the URL, and those that a node has
//! named since. After each failed search the order begins one node later.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use redis::{Cmd, Value, cmd};

use super::call::Call;
use super::connection::Connection;
use super::endpoint::{Search, Server};
use super::error::{Cause, Error, ErrorKind};
use super::nodes::{NodeLine, Nodes, Redirect, cluster_nodes};
use super::replication::{ReplicaList, Role};
use super::reply::lossy_text;
use super::slot::key_of_prefix;
use super::url::{Address, is_host};
use super::wire::Expected;
use super::{left, lock};

/// The ACL rules that a job needs on a cluster node beside the usual ones.
pub const RULES: &str = "+ssubscribe +spublish +cluster|nodes +asking";

/// Limit of redirections that redlock follows in a row.
const HOPS: usize = 3;

/// Largest number of parts into which the remaining time is divided: a silent node takes only one, so the others get some.
const SHARE: usize = 4;

/// Lifetime of a list of the cluster's nodes.
const NODES_LAST: Duration = Duration::from_secs(60);

/// The nodes of a URL, and the question to ask them.
pub(super) struct Cluster {
    seeds: Vec<Address>,
    /// A question about a key of the slot.
    question: Cmd,
    /// Number of searches that have failed since one succeeded.
    failures: AtomicUsize,
}

impl Cluster {
    /// The cluster of these nodes, for the keys below a prefix.
    pub(super) fn new(seeds: Vec<Address>, prefix: &str) -> Self {
        let mut question = cmd("EXISTS");
        question.arg(key_of_prefix(prefix, "index"));
        Self {
            seeds,
            question,
            failures: AtomicUsize::new(0),
        }
    }

    /// Returns the nodes to ask: the last used node and all others. After each failure the list begins one node later.
    fn nodes(&self, last: &Arc<Server>, failures: usize) -> Vec<Arc<Server>> {
        let mut nodes = vec![Arc::clone(last)];
        let listed = lock(&last.nodes).clone();
        for address in self.seeds.iter().cloned().chain(listed) {
            if !nodes.iter().any(|node| node.address == address) {
                nodes.push(Arc::new(last.at(address)));
            }
        }
        let turn = failures % nodes.len();
        nodes.rotate_left(turn);
        nodes
    }

    /// Connects to the node that serves the slot.
    pub(super) fn open(&self, search: &Search) -> Result<Connection, Error> {
        let mut questions = vec![self.question.clone()];
        if search.needs_all {
            questions.extend([cmd("ROLE"), cluster_nodes()]);
        }
        let last = &search.last;
        let slot = SlotSearch {
            questions,
            search,
            usable: self.seeds.iter().chain([&last.address]).cloned().collect(),
            was_reached: last.was_reached(),
        };
        let failed_before = self.failures.fetch_add(1, Ordering::Relaxed);
        let nodes = self.nodes(last, failed_before);
        let mut errors = Vec::new();
        for (number, node) in nodes.iter().enumerate() {
            let share = SHARE.min(nodes.len() - number);
            let share = left(search.until) / u32::try_from(share).unwrap_or(1);
            match slot.follow(node, share) {
                Ok(connection) => {
                    self.failures.store(0, Ordering::Relaxed);
                    return Ok(connection);
                }
                Err(error) => errors.push(error),
            }
            // While a node is being replaced, each node that answers knows as much as all of them.
            let is_answer = |error: &Error| error.kind != ErrorKind::Unreachable;
            if left(search.until).is_zero()
                || failed_before > 0 && errors.last().is_some_and(is_answer)
            {
                break;
            }
        }
        Err(most_telling(errors, last))
    }
}

/// Requests that a connection makes only in a cluster.
impl Connection {
    /// Requests the list of the cluster's nodes, unless that was done a short time ago. Nothing waits for the answer, which
    /// comes in before the answer to the next question.
    pub(super) fn ask_nodes(&mut self, within: Duration) -> Result<(), Error> {
        let is_fresh = |at: Instant| at.elapsed() < NODES_LAST;
        // A new replica changes the set of all that can be promoted, so an old list isn't enough.
        let needs_all = self.confirming.needs_all();
        if !needs_all && self.asked_nodes.is_some_and(is_fresh) {
            return Ok(());
        }
        let until = Instant::now() + within.min(self.wire.timeout);
        self.drain_stale()?;
        self.asked_nodes = Some(Instant::now());
        self.wire.add(&cluster_nodes(), Expected::Nodes);
        self.wire.send(until)
    }

    /// Stores the list of the cluster's nodes. Uses the replicas in `connected` if the list has none.
    pub(super) fn note_nodes(&mut self, list: &Value, connected: Vec<String>) {
        let nodes = Nodes::parse(&lossy_text(list), &self.wire.server.address);
        let mut replicas = nodes.replicas;
        if replicas.is_empty() {
            replicas = connected;
        }
        if !replicas.is_empty() {
            self.confirming.listed = ReplicaList::in_shard(replicas, nodes.shard);
        }
        *lock(&self.wire.server.nodes) = nodes.others;
    }

    /// Extends the lease of a lock with a script that names only its key: while a cluster moves the keys to another node, it
    /// refuses a script that names several. Returns true if the lease was extended.
    pub fn keep(&mut self, call: Call, within: Duration) -> Result<bool, Error> {
        let until = Instant::now() + within;
        // Each node knows the script only after it was sent once, and the script is short.
        let command = call.command(false);
        let number = self.request(call, until, None, false)?;
        let answer = self.answer(number, until).or_else(|error| {
            let redirect = error.redirect().filter(|_| error.is_migration());
            let Some(redirect) = redirect else {
                return Err(error);
            };
            let here = &self.wire.server;
            let there = Arc::new(here.at(redirect.address(&here.address)));
            let questions = [cmd("ASKING"), command];
            let (_, mut answers) = Self::open(&there, left(until), &questions)?;
            Ok(answers.pop().unwrap_or(Value::Nil))
        })?;
        Ok(answer == Value::Int(1))
    }
}

/// Replaces the address in a redirection by a better one from the list of the nodes, in two cases:
///
/// - A node redirects to its own address, because it hides the host of the other node, whose port is the same
///   (`cluster-preferred-endpoint-type unknown-endpoint`).
/// - Over TLS, the certificate of a node that is named by its IP address usually has only its host name.
fn with_host(error: Error, server: &Arc<Server>, until: Instant) -> Error {
    let Some(redirect) = error.redirect().cloned() else {
        return error;
    };
    let is_itself = redirect.address(&server.address) == server.address;
    let lacks_name = server.scheme() == "rediss" && redirect.host.parse::<IpAddr>().is_ok();
    if !is_itself && !lacks_name {
        return error;
    }
    let slot = redirect.slot;
    let listed = Connection::open(server, left(until), &[cluster_nodes()]);
    let list = listed.map(|(_, answers)| answers.first().map(lossy_text).unwrap_or_default());
    let list = list.unwrap_or_default();
    *lock(&server.nodes) = Nodes::parse(&list, &server.address).others;
    match owner(&list, slot, lacks_name) {
        Some((host, port)) => error.because(Cause::Moved(Redirect { slot, host, port })),
        None if lacks_name => error,
        None => Error::new(
            ErrorKind::Unreachable,
            format!(
                "another node of the cluster has these keys, but {server} doesn't name its host; set cluster-preferred-endpoint-type to ip or hostname on {server}"
            ),
        ),
    }
}

/// A search for the node that serves the slot.
struct SlotSearch<'a> {
    search: &'a Search,
    /// The first questions to each node: does it serve the slot, and which replicas does it have (if that matters)?
    questions: Vec<Cmd>,
    /// Addresses that are known to be right: those of the URL, and that of the last connection.
    usable: Vec<Address>,
    /// This process has reached the cluster before, so a wrong address may be temporary.
    was_reached: bool,
}

impl SlotSearch<'_> {
    /// Connects to a node, if it serves the slot.
    fn connect(&self, server: &Arc<Server>, within: Duration) -> Result<Connection, Error> {
        let until = Instant::now() + within;
        let opened = Connection::open(server, within, &self.questions);
        let (mut connection, answers) = opened.map_err(|error| with_host(error, server, until))?;
        // Servers that know nothing of each other would each grant the lock.
        let is_node = match connection.pushes.is_node {
            Some(is_node) => is_node,
            // The server is too old for that, or this user may not ask. A server without a cluster has no slots.
            None => match connection.query_until(cmd("CLUSTER").arg("KEYSLOT").arg("x"), until) {
                Err(error) if error.kind == ErrorKind::Internal => false,
                answer => answer.map(|_| true)?,
            },
        };
        if !is_node {
            let message =
                format!("Redis at {server} isn't a node of a Redis Cluster; use redis://{server}");
            return Err(Error::new(ErrorKind::Config, message));
        }
        if let [_, role, nodes] = answers.as_slice() {
            // Just after a failover the nodes don't know yet which replicas the new primary has.
            let connected = Role::parse(role).unwrap_or_default().addresses();
            connection.note_nodes(nodes, connected);
        }
        Ok(connection)
    }

    /// Connects to a node, or follows its redirections to the node that serves the slot.
    fn follow(&self, from: &Arc<Server>, share: Duration) -> Result<Connection, Error> {
        let (mut server, mut by) = (Arc::clone(from), None);
        let mut hops = 0..HOPS;
        loop {
            let error = match self.connect(&server, share.min(left(self.search.until))) {
                Ok(connection) => return Ok(connection),
                Err(error) => error,
            };
            let named = error.redirect().filter(|_| hops.next().is_some());
            let Some(named) = named.map(|it| it.address(&server.address)) else {
                return Err(self.explained(error, &server, by.as_ref()));
            };
            by = Some(server.address.clone());
            server = Arc::new(server.at(named));
        }
    }

    /// Returns the error of a node, as one that may pass if only the address may be wrong that other nodes gave. Explains the
    /// address if a redirection (`by`) gave a new one.
    fn explained(&self, error: Error, server: &Server, by: Option<&Address>) -> Error {
        let is_new = !self.usable.contains(&server.address);
        let is_silent = error.kind == ErrorKind::Unreachable;
        let lacks_name = is_new && error.has_cause(Cause::Tls);
        let kind = match by {
            Some(_) if is_silent || lacks_name && self.was_reached => ErrorKind::NoPrimary,
            Some(_) if lacks_name => error.kind,
            // Other nodes have listed this node, perhaps by its IP address beside its name.
            None if lacks_name => ErrorKind::Unreachable,
            _ => return error,
        };
        let hint = match by.filter(|_| is_new) {
            Some(by) => format!(
                "; Redis at {by} names that node by this address: have it announce one that this host can reach (cluster-announce-ip), or its name (cluster-announce-hostname, and cluster-preferred-endpoint-type hostname)"
            ),
            None => String::new(),
        };
        Error::new(kind, format!("{error}{hint}"))
    }
}

/// Returns the error that no other node can remedy, if there is one; otherwise the first one from a node that answered.
fn most_telling(errors: Vec<Error>, last: &Server) -> Error {
    let is_one_of_several = errors.len() > 1;
    let rank = |error: &Error| (error.kind.may_pass(), error.kind == ErrorKind::Unreachable);
    let error = errors.into_iter().min_by_key(rank);
    let error = error.unwrap_or_else(|| last.silent_error());
    if error.kind == ErrorKind::Unreachable && is_one_of_several {
        let message = format!("{error}; no other node of the cluster answers");
        return Error::new(error.kind, message);
    }
    error
}

/// Returns the host and port of the node that has a slot, from a list of the nodes. `by_name`: the host must be a name.
fn owner(nodes: &str, slot: u16, by_name: bool) -> Option<(String, u16)> {
    let has_it = |range: &str| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let [first, last] = [first, last].map(|number| number.parse().ok());
        first.is_some_and(|first: u16| first <= slot) && last.is_some_and(|last| slot <= last)
    };
    let node = NodeLine::all(nodes).find(|line| line.slots.iter().any(|range| has_it(range)))?;
    let host = if by_name { node.name } else { node.ip };
    let is_usable = !host.is_empty() && is_host(host) && !node.has("myself");
    Some((is_usable.then(|| host.to_owned())?, node.port.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_host_of_a_slot_is_known_by_the_list_of_the_nodes() {
        let list = "\
aa 10.0.0.1:7001@17001 myself,master - 0 0 1 connected 0-99 [150->-bb]
bb 10.0.0.2:7001@17001,redis-2 master - 0 0 2 connected 100 102-5461 9999
cc 10.0.0.3:7001@17001 slave bb 0 0 2 connected
dd :7001@17001 master - 0 0 3 connected 101
ee
";
        for (slot, host) in [
            (100, Some("10.0.0.2")),
            (150, Some("10.0.0.2")),
            (5461, Some("10.0.0.2")),
            (9999, Some("10.0.0.2")),
            (50, None),
            (101, None),
            (16_000, None),
        ] {
            let expected = host.map(|host| (host.to_owned(), 7001));
            assert_eq!(owner(list, slot, false), expected, "{slot}");
        }
        let name = Some(("redis-2".to_owned(), 7001));
        assert_eq!(owner(list, 100, true), name);
        assert_eq!(owner(list, 50, true), None);
    }
}
