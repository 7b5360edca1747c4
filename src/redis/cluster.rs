//! The node of a Redis Cluster that has the locks: all their keys are in one hash slot.
//!
//! Which node that is, the nodes say themselves: one that doesn't serve the slot answers any question about a
//! key of it with the address of the one that does (`MOVED`). So a connection counts once such a question was
//! answered over it. The node that was used last is asked first; where that fails, all that are known are asked
//! at once: those of the URL, and those that a node has named since. While that fails, too, one after the other is
//! asked: each that answers knows as much as all of them.

use std::collections::VecDeque;
use std::net::IpAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use redis::{Cmd, cmd};

use super::connection::Connection;
use super::error::{Cause, Error, ErrorKind};
use super::nodes::{MAX_NODES, Nodes, Redirect, cluster_nodes, is_host};
use super::replication::{Replicas, Role};
use super::reply::lossy_text;
use super::server::Server;
use super::slot::key_of_prefix;
use super::url::Address;
use super::{in_thread, left, lock};

/// How often the first answers may name yet another node, before all are asked.
const HOPS: usize = 3;

/// When all are asked at once again, after they were in vain.
const ALL_AGAIN: Duration = Duration::from_secs(30);

/// The nodes of a URL, and what to ask them.
pub(super) struct Cluster {
    seeds: Vec<Address>,
    /// About a key of the slot.
    question: Cmd,
    /// When all were asked in vain.
    all_failed: Mutex<Option<Instant>>,
    /// The one to ask next, after that.
    turn: AtomicUsize,
}

/// A connection, and the replicas of its node that count, if that matters.
pub(super) type Opened = (Connection, Arc<Replicas>);

/// A node to ask.
#[derive(Clone)]
struct Candidate {
    server: Arc<Server>,
    /// The node that has named it as the one that serves the slot.
    by: Option<Address>,
}

impl Cluster {
    /// The cluster of these nodes, for the keys below a prefix.
    pub(super) fn new(seeds: Vec<Address>, prefix: &str) -> Self {
        let mut question = cmd("EXISTS");
        question.arg(key_of_prefix(prefix, "index"));
        Self {
            seeds,
            question,
            all_failed: Mutex::default(),
            turn: AtomicUsize::new(0),
        }
    }

    /// Connects to the node that serves the slot; `last` is the one that was used last, with the credentials
    /// for all. `names_each` if it matters which replicas the node has.
    pub(super) fn open(
        &self,
        last: &Arc<Server>,
        timeout: Duration,
        within: Duration,
        names_each: bool,
    ) -> Result<Opened, Error> {
        let mut questions = vec![self.question.clone()];
        if names_each {
            questions.extend([cmd("ROLE"), cluster_nodes()]);
        }
        let search = SlotSearch {
            last,
            questions,
            timeout,
            until: Instant::now() + within,
            usable: self.seeds.iter().chain([last.address()]).cloned().collect(),
            was_reached: last.was_reached(),
            answered: Vec::new(),
            named: Vec::new(),
            failures: Vec::new(),
        };
        let all_failed = *lock(&self.all_failed);
        if all_failed.is_some_and(|at| at.elapsed() < ALL_AGAIN) {
            let until = search.until;
            let opened = self.ask_in_turn(search, within / 2);
            // Where time ran out, one of those that are asked at once may have more of it.
            if opened.is_ok() || left(until).is_zero() {
                *lock(&self.all_failed) = None;
            }
            return opened;
        }
        let opened = self.ask_last_or_all(search);
        *lock(&self.all_failed) = opened.is_err().then(Instant::now);
        opened
    }

    /// Asks the node that was used last, and those that it leads to, and after that all.
    fn ask_last_or_all(&self, mut search: SlotSearch<'_>) -> Result<Opened, Error> {
        let last = search.last;
        let others = |search: &SlotSearch<'_>| {
            let mut others = self.candidates(last);
            others.retain(|address| address != last.address());
            (others.is_empty() && search.named.is_empty(), others)
        };
        // A node that is silent leaves time for the others.
        let share = match others(&search) {
            (true, _) => left(search.until),
            (false, _) => left(search.until) / 4,
        };
        if let Some(opened) = search.follow(last, share) {
            return Ok(opened);
        }
        // It may have listed some.
        let (are_none, mut others) = others(&search);
        if are_none {
            return Err(search.into_error());
        }
        others.push(last.address().clone());
        let known = others.into_iter().map(|address| Candidate {
            server: Arc::new(last.at(address)),
            by: None,
        });
        // Those that were named first, as they may only need more time.
        let all = search.named.clone().into_iter().chain(known);
        search.ask_all(all)
    }

    /// Asks one node, another one each time, and those that it leads to; the next one where it is silent.
    fn ask_in_turn(&self, mut search: SlotSearch<'_>, share: Duration) -> Result<Opened, Error> {
        let all = self.candidates(search.last);
        for _ in 0..all.len() {
            let turn = self.turn.fetch_add(1, Ordering::Relaxed) % all.len();
            let server = Arc::new(search.last.at(all[turn].clone()));
            if let Some(opened) = search.follow(&server, share) {
                return Ok(opened);
            }
            if search.has_answer() || left(search.until).is_zero() {
                break;
            }
        }
        Err(search.into_error())
    }

    /// All nodes that are known.
    fn candidates(&self, by: &Server) -> Vec<Address> {
        let mut known = self.seeds.clone();
        for address in by.nodes() {
            if !known.contains(&address) {
                known.push(address);
            }
        }
        known
    }
}

/// Connects to a node, if it serves the slot.
fn connect(
    candidate: &Candidate,
    questions: &[Cmd],
    timeout: Duration,
    within: Duration,
) -> Result<Opened, Error> {
    let (server, until) = (&candidate.server, Instant::now() + within);
    let opened = Connection::open(server, timeout, within, questions);
    let (mut connection, answers) =
        opened.map_err(|error| with_host(error, server, timeout, until))?;
    // Several servers that know nothing of each other would each grant the lock.
    let is_node = match connection.is_node() {
        Some(is_node) => is_node,
        // It is too old to say, or this user may not ask. Without a cluster it has no slots.
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
    let replicas = Arc::<Replicas>::default();
    if let [_, role, nodes] = answers.as_slice() {
        let nodes = Nodes::parse(&lossy_text(nodes), server.address());
        // Just after a failover the nodes don't know yet which of them follow it.
        let mut counted = nodes.replicas();
        if counted.is_empty() {
            counted = Role::parse(role).unwrap_or_default().addresses();
        }
        replicas.replace(counted);
        server.note_nodes(nodes.others);
    }
    Ok((connection, replicas))
}

/// Returns the same error, which leads to a better address if the list of the nodes has one:
///
/// - A node that names itself for keys that it doesn't have means another host with the same port, of which it says no
///   more (`cluster-preferred-endpoint-type unknown-endpoint`).
/// - Over TLS, the certificate of a node that is named by a number usually has only its name.
fn with_host(error: Error, server: &Arc<Server>, timeout: Duration, until: Instant) -> Error {
    let Some(redirect) = error.redirect().cloned() else {
        return error;
    };
    let is_itself = redirect.address(server.address()) == *server.address();
    let lacks_name = server.scheme() == "rediss" && redirect.host.parse::<IpAddr>().is_ok();
    if !is_itself && !lacks_name {
        return error;
    }
    let slot = redirect.slot;
    let listed = Connection::open(server, timeout, left(until), &[cluster_nodes()]);
    let list = listed.map(|(_, answers)| answers.first().map(lossy_text).unwrap_or_default());
    let list = list.unwrap_or_default();
    server.note_nodes(Nodes::parse(&list, server.address()).others);
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
    /// The node that was used last, with the credentials for all.
    last: &'a Arc<Server>,
    /// The first questions to each node: whether it serves the slot; and which replicas it has, if that matters.
    questions: Vec<Cmd>,
    timeout: Duration,
    until: Instant,
    /// Addresses that are known to be right: those of the URL, and that of the last connection.
    usable: Vec<Address>,
    /// A run has reached the cluster before, so that a wrong address isn't final.
    was_reached: bool,
    /// Those that have named another one.
    answered: Vec<Address>,
    /// Those that were named.
    named: Vec<Candidate>,
    failures: Vec<Failure>,
}

struct Failure {
    error: Error,
    /// It was named as the one to ask.
    is_named: bool,
}

impl SlotSearch<'_> {
    /// Asks a node, and then the one that it names, and so on.
    fn follow(&mut self, from: &Arc<Server>, share: Duration) -> Option<Opened> {
        let mut candidate = Candidate {
            server: Arc::clone(from),
            by: None,
        };
        for _ in 0..=HOPS {
            let within = share.min(left(self.until));
            match connect(&candidate, &self.questions, self.timeout, within) {
                Ok(opened) => return Some(opened),
                Err(error) => candidate = self.after(&candidate, error)?,
            }
        }
        None
    }

    /// Asks all of these at once, and those that they name.
    fn ask_all(mut self, all: impl Iterator<Item = Candidate>) -> Result<Opened, Error> {
        let (answers, receiver) = channel();
        // One that has said that it isn't the one need not be asked again.
        let mut to_ask: VecDeque<Candidate> = all
            .filter(|candidate| !self.answered.contains(candidate.server.address()))
            .collect();
        let (mut asked, mut pending) = (0, 0);
        loop {
            while asked < MAX_NODES
                && let Some(candidate) = to_ask.pop_front()
            {
                let questions = self.questions.clone();
                let (timeout, within) = (self.timeout, left(self.until));
                // A thread that can't be started is a node that doesn't answer.
                let _ = in_thread(&answers, move || {
                    let answer = connect(&candidate, &questions, timeout, within);
                    (candidate, answer)
                });
                (asked, pending) = (asked + 1, pending + 1);
            }
            if pending == 0 {
                return Err(self.into_error());
            }
            let Ok((candidate, answer)) = receiver.recv_timeout(left(self.until)) else {
                return Err(self.into_error());
            };
            pending -= 1;
            match answer {
                Ok(opened) => return Ok(opened),
                Err(error) => to_ask.extend(self.after(&candidate, error)),
            }
        }
    }

    /// Whether a node has answered.
    fn has_answer(&self) -> bool {
        let is_answer = |failure: &Failure| failure.error.kind != ErrorKind::Unreachable;
        self.failures.iter().any(is_answer)
    }

    /// What to ask after a node that wasn't the one, if it has named one.
    fn after(&mut self, candidate: &Candidate, error: Error) -> Option<Candidate> {
        let server = &candidate.server;
        let named = error.redirect().map(|it| it.address(server.address()));
        let is_new = !self.usable.contains(server.address());
        let is_silent = error.kind == ErrorKind::Unreachable;
        let is_tls = error.has_cause(Cause::Tls);
        // What it means that a node that another one has named can't be reached.
        let meaning = match &candidate.by {
            Some(by) if is_silent && is_new => Some((
                ErrorKind::NoPrimary,
                format!(
                    "; according to Redis at {by}, that node has the keys: if it is up, have it announce an address that this host can reach (cluster-announce-ip or cluster-announce-hostname, cluster-announce-port)"
                ),
            )),
            Some(_) if is_silent => Some((ErrorKind::NoPrimary, String::new())),
            Some(by) if is_tls && is_new => Some((
                if self.was_reached {
                    ErrorKind::NoPrimary
                } else {
                    error.kind
                },
                format!(
                    "; or, as Redis at {by} names that node by this address, have it announce its name (cluster-announce-hostname, and cluster-preferred-endpoint-type hostname)"
                ),
            )),
            // Other nodes have listed it, by its number beside its name perhaps.
            None if is_tls && is_new => Some((ErrorKind::Unreachable, String::new())),
            _ => None,
        };
        let error = match meaning {
            Some((kind, hint)) => Error::new(kind, format!("{error}{hint}")),
            None => error,
        };
        let is_named = candidate.by.is_some();
        self.failures.push(Failure { error, is_named });
        let named = named?;
        self.answered.push(server.address().clone());
        let is_it = |other: &Candidate| *other.server.address() == named;
        if self.named.iter().any(is_it) {
            return None;
        }
        let candidate = Candidate {
            server: Arc::new(server.at(named)),
            by: Some(server.address().clone()),
        };
        self.named.push(candidate.clone());
        Some(candidate)
    }

    /// The failure that says most: what no other node can put right, then what became of the node that should
    /// have the keys, then what the others have said.
    fn into_error(self) -> Error {
        let rank = |failure: &Failure| match failure.error.kind {
            ErrorKind::Refused
            | ErrorKind::Config
            | ErrorKind::Internal
            | ErrorKind::NotReplicated => 0,
            _ if failure.is_named && !failure.error.goes_elsewhere() => 1,
            ErrorKind::NoPrimary
            | ErrorKind::NotNow
            | ErrorKind::Crowded
            | ErrorKind::Loading
            | ErrorKind::Busy
            | ErrorKind::Replica => 2,
            ErrorKind::Moving => 3,
            ErrorKind::Unreachable => 4,
        };
        let is_all = |kind| self.failures.iter().all(|of| of.error.kind == kind);
        let is_silent = self.failures.len() > 1 && is_all(ErrorKind::Unreachable);
        let best = self.failures.into_iter().min_by_key(rank);
        match best {
            Some(Failure { error, is_named }) if is_silent && !is_named => Error::new(
                error.kind,
                format!("{error}; no other node of the cluster answers"),
            ),
            Some(Failure { error, .. }) => error,
            None => Error::new(
                ErrorKind::Unreachable,
                "no node of the cluster answers in time".into(),
            ),
        }
    }
}

/// Returns the host and port of the node that has a slot, by a list of the nodes: the host's name, if it must have one.
fn owner(nodes: &str, slot: u16, by_name: bool) -> Option<(String, u16)> {
    let has_it = |words: &Vec<&str>| {
        words.iter().skip(8).any(|range| {
            let (first, last) = range.split_once('-').unwrap_or((range, range));
            let [first, last] = [first, last].map(|number| number.parse().ok());
            first.is_some_and(|first: u16| first <= slot) && last.is_some_and(|last| slot <= last)
        })
    };
    let mut lines = nodes
        .lines()
        .map(|line| line.split(' ').collect::<Vec<_>>());
    let line = lines.find(has_it)?;
    if line[2].split(',').any(|flag| flag == "myself") {
        return None;
    }
    let (place, rest) = line[1].split_once('@')?;
    let (host, port) = place.rsplit_once(':')?;
    let name = || rest.split(',').nth(1);
    let host = if by_name { name()? } else { host };
    let is_usable = !host.is_empty() && is_host(host);
    Some((is_usable.then(|| host.to_owned())?, port.parse().ok()?))
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
            let found = host.map(|host| (host.to_owned(), 7001));
            assert_eq!(owner(list, slot, false), found, "{slot}");
        }
        let name = Some(("redis-2".to_owned(), 7001));
        assert_eq!(owner(list, 100, true), name);
        assert_eq!(owner(list, 50, true), None);
    }
}
