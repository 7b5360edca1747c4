//! The primary as sentinels know it.
//!
//! A sentinel that is cut off, or was reset, or made anew, or lies, answers as if nothing had happened, and so does a server
//! that was demoted. So a server counts only if it says itself that it is a primary (`ROLE`), and the word of one sentinel
//! suffices for the first connection of a process alone, and only where nothing more is at stake. All else takes most of
//! them ([`Poll`]):
//!
//! - where to connect later on, and wherever a password is shown to whoever is there;
//! - that another server is the primary now: that takes a later failover (a larger configuration epoch), too, as most of
//!   them may be behind one that replaces it;
//! - that a lock is lost, by a server that didn't grant it;
//! - under `REDLOCK_SYNC=all`, that the primary still is one, and which replicas it has: most of all the sentinels there are.

pub mod answer;
mod heard;
mod poll;

use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use redis::cmd;

use self::answer::{Question, ask};
pub use self::heard::Answer;
use self::heard::{Heard, LEAST};
use self::poll::{Agreed, Need, Poll};
use super::connection::Connection;
use super::error::{Cause, Error, ErrorKind};
use super::replication::{Replicas, Role};
use super::server::{Server, resolve};
use super::url::Address;
use super::{in_thread, left, lock};

/// When sentinels that disagree are asked again.
const AGAIN: Duration = Duration::from_millis(200);

/// The sentinels of a URL, and the name under which they know the primary.
#[derive(Default)]
pub struct Sentinels {
    nodes: Vec<Arc<Server>>,
    primary: String,
    /// The one to ask next.
    turn: AtomicUsize,
    /// A connection was opened, or couldn't be.
    was_opened: AtomicBool,
    /// Where the primary should have been, when it couldn't be reached last.
    failed: Mutex<Option<Address>>,
    /// Where the primary is now, by a look while we were connected elsewhere.
    announced_primary: Mutex<Option<Agreed>>,
    /// The server that said last that a lock is ours, and the last failover by then.
    granter: Mutex<Option<(Address, u64)>>,
    heard: Arc<Heard>,
    replicas: Arc<Replicas>,
}

impl Sentinels {
    pub(super) fn new(nodes: Vec<Arc<Server>>, primary: String) -> Self {
        Self {
            nodes,
            primary,
            ..Self::default()
        }
    }

    pub fn nodes(&self) -> &[Arc<Server>] {
        &self.nodes
    }

    /// How long a primary is silent until the slowest of the sentinels that were asked takes it for dead.
    pub(super) fn down_after(&self) -> Option<Duration> {
        self.heard.down_after()
    }

    /// The replicas that count, as they were listed last.
    pub(super) fn replicas(&self) -> Arc<Replicas> {
        Arc::clone(&self.replicas)
    }

    /// Connects to the primary; `like` has the credentials for it. `names_each` if it matters which replicas it has.
    pub(super) fn open(
        &self,
        like: &Server,
        timeout: Duration,
        within: Duration,
        names_each: bool,
    ) -> Result<Connection, Error> {
        let until = Instant::now() + within;
        let announced = lock(&self.announced_primary).take();
        if let Some(agreed) = announced {
            return self.connect(&agreed, like, timeout, until);
        }
        let need = self.need(like, names_each);
        let is_first = !self.was_opened.swap(true, Ordering::Relaxed);
        if is_first && need == Need::Newest {
            // What has been well until now gets away with one question.
            let half = Instant::now() + within / 2;
            if let Ok(answer) = self.ask_next(LEAST.min(within / 4))
                && let Ok(connection) = self.connect(&answer.into(), like, timeout, half)
            {
                return Ok(connection);
            }
        } else if let Some(error) = self.is_still_away(like, until) {
            return Err(error);
        }
        loop {
            let mut poll = self.poll(like, need, left(until));
            let error = match poll.wait() {
                Some(agreed) => match self.connect(&agreed, like, timeout, until) {
                    Ok(connection) => return Ok(connection),
                    Err(error) => error,
                },
                None => poll.error(&self.primary),
            };
            // In a failover they hear of the new primary one after the other. Later tries are made by whoever waits.
            let may_change = is_first && error.kind == ErrorKind::NoPrimary && poll.is_disputed();
            if !may_change || left(until) < AGAIN {
                return Err(error);
            }
            std::thread::sleep(AGAIN);
        }
    }

    /// How many sentinels have to name the primary for a connection; `like` has the credentials for it.
    fn need(&self, like: &Server, names_each: bool) -> Need {
        if names_each {
            Need::MostOfAll
        } else if self.nodes.len() > 1 && like.shows_password() {
            Need::MostThatAnswer(least(self.nodes.len()))
        } else {
            Need::Newest
        }
    }

    /// Why there is no primary yet, where that is known without asking all: many may wait for a primary, and its sentinels
    /// have to replace it meanwhile.
    fn is_still_away(&self, like: &Server, until: Instant) -> Option<Error> {
        let failed = lock(&self.failed).clone()?;
        let answer = match self.ask_next(left(until).min(self.heard.patience())) {
            Ok(answer) => answer,
            Err(error) => return left(until).is_zero().then_some(error),
        };
        if answer.address != failed {
            return None;
        }
        // Anything that it answers will do: one alone has named it, so it is shown no password.
        let server = Arc::new(like.at(failed).without_login());
        let asked = Connection::open(&server, left(until), left(until), &[cmd("PING")]);
        let error = asked
            .err()
            .filter(|error| error.kind == ErrorKind::Unreachable)?;
        Some(self.unreachable(&answer.into(), &error, server.was_reached()))
    }

    /// Asks all sentinels at once where the primary is; `like` has the credentials for it.
    fn poll(&self, like: &Server, need: Need, within: Duration) -> Poll {
        let late = match need {
            // Half of the time is for the primary.
            Need::MostThatAnswer(_) => like.timeout / 2,
            Need::Newest => self.heard.patience().min(within / 2),
            Need::MostOfAll | Need::MostOfUrl => within,
        };
        let since = self.heard.epoch(self.nodes.len());
        let now = Instant::now();
        Poll {
            need,
            // One that is asked for a shorter time would seem to be down when it is late.
            coming: self.ask_all(need == Need::MostOfAll, within.max(late)),
            until: now + within,
            late: now + late,
            since,
            known: self.heard.sentinels(),
            outdated: now + within / 2,
            asked: self.nodes.len(),
            answers: Vec::new(),
            silent: Vec::new(),
        }
    }

    fn question(&self, with_replicas: bool) -> Question {
        Question {
            primary: self.primary.clone(),
            with_replicas,
            heard: Arc::clone(&self.heard),
        }
    }

    /// Asks one sentinel where the primary is, another one each time.
    fn ask_next(&self, within: Duration) -> Result<Answer, Error> {
        let turn = self.turn.fetch_add(1, Ordering::Relaxed) % self.nodes.len();
        ask(&self.nodes[turn], &self.question(false), within)
    }

    /// Asks all sentinels at once. The answers come as they are given, until the last one has failed.
    fn ask_all(&self, with_replicas: bool, within: Duration) -> Receiver<Result<Answer, Error>> {
        let (answers, receiver) = channel();
        for node in &self.nodes {
            let (node, question) = (Arc::clone(node), self.question(with_replicas));
            // A thread that can't be started is a sentinel that doesn't answer.
            let _ = in_thread(&answers, move || ask(&node, &question, within));
        }
        receiver
    }

    /// Asks all sentinels for the primary, for a report on each.
    pub fn call(&self, within: Duration) -> RollCall {
        RollCall {
            primary: self.primary.clone(),
            sentinels: self.nodes.len(),
            coming: self.ask_all(false, within),
            until: Instant::now() + within,
        }
    }

    /// Connects to what sentinels take for the primary, if it agrees.
    fn connect(
        &self,
        agreed: &Agreed,
        like: &Server,
        timeout: Duration,
        until: Instant,
    ) -> Result<Connection, Error> {
        let Agreed { by, address, .. } = agreed;
        let name = &self.primary;
        let server = Arc::new(like.at(address.clone()));
        *lock(&self.failed) = Some(address.clone());
        let open =
            |server: &Arc<Server>| Connection::open(server, timeout, left(until), &[cmd("ROLE")]);
        let opened = match open(&server) {
            Err(error) if error.has_cause(Cause::Tls) => match self.named(address, until) {
                Some(named) => open(&Arc::new(like.at(named))),
                None => Err(error),
            },
            opened => opened,
        };
        let was_reached = like.was_reached();
        let (connection, role) =
            opened.map_err(|error| self.unreachable(agreed, &error, was_reached))?;
        if role.first().and_then(Role::parse).is_none() {
            return Err(Error::new(
                ErrorKind::NoPrimary,
                format!(
                    "the sentinel at {by} names {address} as the primary \"{name}\", but that server reports itself a replica; try again when the failover is over"
                ),
            ));
        }
        *lock(&self.failed) = None;
        self.heard.use_primary(address);
        let listed = agreed.replicas.clone();
        self.replicas.replace_for_a_round(listed, address);
        Ok(connection)
    }

    /// Returns an address that sentinels name by its number with the name that a host of the URL has: a certificate usually
    /// has names alone.
    fn named(&self, address: &Address, until: Instant) -> Option<Address> {
        let Address::Tcp { host, port, tls } = address else {
            return None;
        };
        let number: IpAddr = host.parse().ok()?;
        let mut hosts = self.nodes.iter().filter_map(|node| match node.address() {
            Address::Tcp { host, .. } if host.parse::<IpAddr>().is_err() => Some(host),
            _ => None,
        });
        let is_it = |host: &&String| {
            let share = Instant::now() + left(until) / 4;
            let addresses = resolve(host, *port, share).unwrap_or_default();
            addresses.iter().any(|address| address.ip() == number)
        };
        let host = hosts.find(is_it)?.clone();
        let (port, tls) = (*port, *tls);
        Some(Address::Tcp { host, port, tls })
    }

    /// Returns the error for a primary that can't be reached. An address that sentinels announce may be replaced by a better one,
    /// so it is never final for a run that had reached Redis before.
    fn unreachable(&self, agreed: &Agreed, error: &Error, was_reached: bool) -> Error {
        let Agreed { by, address, .. } = agreed;
        let kind = match error.kind {
            ErrorKind::Unreachable => ErrorKind::NoPrimary,
            ErrorKind::Config if was_reached && error.has_cause(Cause::Tls) => ErrorKind::NoPrimary,
            other => other,
        };
        let has_number =
            matches!(address, Address::Tcp { host, .. } if host.parse::<IpAddr>().is_ok());
        // Elsewhere it may be an address that only its own network has.
        let hint = if error.has_cause(Cause::Tls) && has_number {
            "; or have the sentinels name hosts: `sentinel resolve-hostnames yes`, `sentinel announce-hostnames yes`, and replica-announce-ip NAME on each server"
        } else if kind == ErrorKind::NoPrimary && !by.starts_with(&host_of(address)) {
            "; if this host can't reach that address, set replica-announce-ip on that server"
        } else {
            ""
        };
        let name = &self.primary;
        Error::new(
            kind,
            format!("the primary \"{name}\" that the sentinel at {by} names: {error}{hint}"),
        )
        .because(error.cause.clone())
    }

    /// Whether most sentinels know a newer primary than this server, found out `within` a time: the next connection goes
    /// there. One of them, another one each time, is asked first, and all if it names another. Under `REDLOCK_SYNC=all` all are
    /// asked each time: by what most of them say, the next grant and renewal count here, or don't.
    pub(super) fn know_newer_primary(
        &self,
        than: &Server,
        within: Duration,
        names_each: bool,
    ) -> bool {
        let within = self.heard.patience().min(within / 2);
        if !names_each && self.nodes.len() > 1 {
            match self.ask_next(within) {
                Ok(answer) if answer.address != *than.address() => {}
                _ => return false,
            }
        }
        let need = if names_each {
            Need::MostOfAll
        } else {
            Need::MostOfUrl
        };
        let mut poll = self.poll(than, need, within);
        let Some(agreed) = poll.wait() else {
            self.replicas.forget(poll.error(&self.primary).to_string());
            return false;
        };
        if agreed.address == *than.address() {
            let listed = agreed.replicas;
            self.replicas.replace_for_a_round(listed, than.address());
            return false;
        }
        let address = &agreed.address;
        let why = format!("most sentinels name {address} as the primary");
        self.replicas.forget(why);
        // While a primary is being replaced, most of them are behind the one that does it.
        let is_newer = agreed.epoch > self.heard.epoch_in_use();
        if is_newer {
            *lock(&self.announced_primary) = Some(agreed);
        }
        is_newer
    }

    /// Whether another server may be the primary: most of the URL's sentinels don't name this one, or not in time.
    pub(super) fn is_alone(&self, primary: &Server, within: Duration) -> bool {
        let within = self.heard.patience().min(within);
        let agreed = self.poll(primary, Need::MostOfUrl, within).wait();
        agreed.is_none_or(|agreed| agreed.address != *primary.address())
    }

    /// This server has said that a lock is ours.
    pub(super) fn note_granter(&self, server: &Server) {
        let by = (server.address().clone(), self.heard.epoch_in_use());
        *lock(&self.granter) = Some(by);
    }

    /// Whether it counts that this server says that a lock is lost: it has said before that the lock is ours, or it
    /// follows the server that did, by most sentinels. One that was demoted, or is about to be, may never have heard of it.
    pub(super) fn believe_loss(&self, by: &Server, within: Duration) -> bool {
        let granter = lock(&self.granter).clone();
        let Some((_, epoch)) = granter.filter(|(address, _)| address != by.address()) else {
            return true;
        };
        let within = self.heard.patience().min(within / 2);
        let agreed = self.poll(by, Need::MostOfUrl, within).wait();
        agreed.is_some_and(|agreed| agreed.address == *by.address() && agreed.epoch > epoch)
    }
}

/// A question to all sentinels, with answers that are still coming in.
pub struct RollCall {
    /// Name of the primary.
    pub primary: String,
    sentinels: usize,
    coming: Receiver<Result<Answer, Error>>,
    until: Instant,
}

impl RollCall {
    /// Waits until all have answered, or the time is over.
    pub fn votes(&self) -> Vec<Result<Answer, Error>> {
        let answers = (0..self.sentinels).map(|_| {
            let answer = self.coming.recv_timeout(left(self.until));
            answer.unwrap_or_else(|_| {
                let message = "a sentinel gives no answer in time".to_owned();
                Err(Error::new(ErrorKind::Unreachable, message).because(Cause::Silent))
            })
        });
        answers.collect()
    }
}

/// How many answers have to name an address before a password is sent there: one of two may be down.
fn least(asked: usize) -> usize {
    asked.saturating_sub(1).clamp(1, 2)
}

/// How the addresses on a host begin.
fn host_of(address: &Address) -> String {
    let address = address.to_string();
    let end = address.rfind(':').map_or(address.len(), |colon| colon + 1);
    address[..end].to_owned()
}

#[cfg(test)]
mod tests;
