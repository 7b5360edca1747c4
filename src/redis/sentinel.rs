//! The primary as sentinels know it.
//!
//! A sentinel that is cut off, or was reset, or made anew, or lies, answers as if nothing had happened, and so does a server
//! that was demoted. So redlock asks all sentinels of the URL each time ([`Poll`]), and connects to the server that more than
//! half of them name, if that server reports itself primary (`ROLE`). Any two such majorities share a sentinel.
//!
//! `REDLOCK_SYNC=all` counts the sentinels, too, that the URL doesn't name: their majority also says which replicas there
//! are, and is needed for each grant and each renewal.

pub mod answer;
mod heard;
mod poll;

use std::net::IpAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use redis::cmd;

use self::answer::{Question, ask};
pub use self::heard::Answer;
use self::heard::Heard;
use self::poll::{Agreed, Poll};
use super::connection::Connection;
use super::error::{Cause, Error, ErrorKind};
use super::replication::{Replicas, Role};
use super::server::{Server, resolve};
use super::url::Address;
use super::{in_thread, left, lock};

/// The sentinels of a URL, and the name under which they know the primary.
#[derive(Default)]
pub struct Sentinels {
    nodes: Vec<Arc<Server>>,
    primary: String,
    /// The one to ask next.
    turn: AtomicUsize,
    /// Where the primary should have been, when it couldn't be reached last.
    failed: Mutex<Option<Address>>,
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
        like: &Arc<Server>,
        timeout: Duration,
        within: Duration,
        names_each: bool,
    ) -> Result<Connection, Error> {
        let until = Instant::now() + within;
        if let Some(error) = self.is_still_away(like, until) {
            return Err(error);
        }
        let mut poll = self.poll(names_each, left(until));
        match poll.wait() {
            Some(agreed) => self.connect(&agreed, like, timeout, until),
            None => Err(poll.error(&self.primary)),
        }
    }

    /// Connects to the primary for a release, and to the last one if too few sentinels answer: a server that was replaced
    /// can't free another client's lock.
    pub(super) fn open_to_release(
        &self,
        last: &Arc<Server>,
        timeout: Duration,
        within: Duration,
        names_each: bool,
    ) -> Result<Connection, Error> {
        let until = Instant::now() + within;
        let mut poll = self.poll(names_each, within / 2);
        match poll.wait() {
            Some(agreed) => self.connect(&agreed, last, timeout, until),
            None if last.was_reached() => {
                let role = [cmd("ROLE")];
                let (connection, _) = Connection::open(last, timeout, left(until), &role)?;
                Ok(connection)
            }
            None => Err(poll.error(&self.primary)),
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
        Some(self.unreachable(&answer.by, server.address(), &error, server.was_reached()))
    }

    /// Asks all sentinels at once for the primary, with `names_each` also for its replicas.
    fn poll(&self, names_each: bool, within: Duration) -> Poll {
        Poll {
            names_each,
            coming: self.ask_all(&self.question(names_each), within),
            until: Instant::now() + within,
            known: self.heard.sentinels(),
            asked: self.nodes.len(),
            answers: Vec::new(),
            silent: Vec::new(),
        }
    }

    fn question(&self, with_replicas: bool) -> Question {
        Question {
            primary: self.primary.clone(),
            with_replicas,
            for_report: false,
            heard: Arc::clone(&self.heard),
        }
    }

    /// Asks one sentinel where the primary is, another one each time.
    fn ask_next(&self, within: Duration) -> Result<Answer, Error> {
        let turn = self.turn.fetch_add(1, Ordering::Relaxed) % self.nodes.len();
        ask(&self.nodes[turn], &self.question(false), within)
    }

    /// Asks all sentinels at once. The answers come as they are given, until the last one has failed.
    fn ask_all(&self, question: &Question, within: Duration) -> Receiver<Result<Answer, Error>> {
        let (answers, receiver) = channel();
        for node in &self.nodes {
            let (node, question) = (Arc::clone(node), question.clone());
            // A thread that can't be started is a sentinel that doesn't answer.
            let _ = in_thread(&answers, move || ask(&node, &question, within));
        }
        receiver
    }

    /// Asks all sentinels for the primary, for a report on each.
    pub fn call(&self, within: Duration) -> RollCall {
        let question = Question {
            for_report: true,
            ..self.question(true)
        };
        RollCall {
            primary: self.primary.clone(),
            sentinels: self.nodes.len(),
            coming: self.ask_all(&question, within),
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
            opened.map_err(|error| self.unreachable(by, address, &error, was_reached))?;
        if role.first().and_then(Role::parse).is_none() {
            return Err(Error::new(
                ErrorKind::NoPrimary,
                format!(
                    "the sentinel at {by} names {address} as the primary \"{name}\", but that server reports itself a replica; try again when the failover is over"
                ),
            ));
        }
        *lock(&self.failed) = None;
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
    fn unreachable(&self, by: &str, address: &Address, error: &Error, was_reached: bool) -> Error {
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

    /// Asks all sentinels. Returns true if most of them name another primary than this server. Under `REDLOCK_SYNC=all` the
    /// next grant and renewal there are valid only if most of them name this one.
    pub(super) fn name_another_primary(
        &self,
        than: &Server,
        within: Duration,
        names_each: bool,
    ) -> bool {
        let within = self.heard.patience().min(within / 2);
        let mut poll = self.poll(names_each, within);
        let Some(agreed) = poll.wait() else {
            self.replicas.forget(poll.error(&self.primary).to_string());
            return false;
        };
        let address = &agreed.address;
        if address == than.address() {
            self.replicas.replace_for_a_round(agreed.replicas, address);
            return false;
        }
        let why = format!("most sentinels name {address} as the primary");
        self.replicas.forget(why);
        true
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

/// How the addresses on a host begin.
fn host_of(address: &Address) -> String {
    let address = address.to_string();
    let end = address.rfind(':').map_or(address.len(), |colon| colon + 1);
    address[..end].to_owned()
}

#[cfg(test)]
mod tests;
