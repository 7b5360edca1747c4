//! Finds the primary through its sentinels.
//!
//! A sentinel that is cut off, reset, recreated or malicious answers as if nothing had happened, and so does a demoted primary.
//! So redlock asks all sentinels of the URL each time ([`Poll`]). redlock then connects to the server that more than half of
//! them name, if that server reports itself primary (`ROLE`). Any two such majorities share a sentinel. There are two
//! exceptions: while the last primary is away, redlock asks one sentinel, and a release goes to the last primary if too few
//! sentinels answer.
//!
//! `REDLOCK_SYNC=all` also counts sentinels that the URL doesn't name. Their majority lists the replicas, too, and redlock
//! needs it for each grant and each renewal.

mod answer;
mod poll;
pub mod replicas;
mod sentinels;

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use redis::{Value, cmd};

pub use self::answer::SentinelAnswer;
use self::answer::Subject;
use self::poll::{Majority, Poll};
pub use self::sentinels::{Answers, Sentinels};
use super::connection::Connection;
use super::endpoint::{Search, Server};
use super::error::{Cause, Error, ErrorKind};
use super::replication::{Goal, ReplicaList, Role};
use super::resolve::resolve;
use super::url::{Address, Login};
use super::{left, lock};

impl Sentinels {
    /// Returns the error for a primary that is still away, without asking all sentinels: many clients may wait for a primary,
    /// and its sentinels need their time to replace it.
    fn check_still_away(&self, search: &Search) -> Option<Error> {
        let failed = lock(&self.failed).clone()?;
        let turn = self.turn.fetch_add(1, Ordering::Relaxed);
        let node = &self.nodes[turn % self.nodes.len()];
        let within = left(search.until).min(self.patience());
        let answer = match self.ask(node, Subject::Primary, within) {
            Ok(answer) => answer,
            Err(error) => return left(search.until).is_zero().then_some(error),
        };
        if answer.address != failed {
            return None;
        }
        // Any answer is enough. Only one sentinel has named the server, so redlock sends no password.
        let mut server = search.last.at(failed);
        (server.login, server.database) = (Login::default(), 0);
        server.fresh_password = None;
        let server = Arc::new(server);
        let error = Connection::open(&server, left(search.until), &[cmd("PING")]).err()?;
        let is_away = error.kind == ErrorKind::Unreachable;
        is_away.then(|| self.unreachable(&answer.by, &error, &server))
    }

    /// Asks all sentinels at once for the primary, and for its replicas if `names_each`. Returns the answer of the majority.
    fn agreed(self: &Arc<Self>, names_each: bool, within: Duration) -> Result<Majority, Error> {
        let about = if names_each {
            Subject::Replicas
        } else {
            Subject::Primary
        };
        let mut poll = Poll {
            names_each,
            coming: self.ask_all(about, within),
            until: Instant::now() + within,
            expected: self.sentinels(),
            nodes: self.nodes.len(),
            answers: Vec::new(),
            errors: Vec::new(),
        };
        poll.wait().ok_or_else(|| poll.error(&self.primary))
    }

    /// Connects to the server that sentinels name, if it reports itself primary.
    fn connect(&self, agreed: Majority, search: &Search) -> Result<Connection, Error> {
        let server = Arc::new(search.last.at(agreed.address.clone()));
        *lock(&self.failed) = Some(agreed.address.clone());
        let open =
            |server: &Arc<Server>| Connection::open(server, left(search.until), &[cmd("ROLE")]);
        let opened = open(&server).or_else(|error| {
            let is_tls = error.has_cause(Cause::Tls);
            let named = is_tls.then(|| self.named(&agreed.address, search.until));
            let named = named.flatten().ok_or(error)?;
            open(&Arc::new(search.last.at(named)))
        });
        let (mut connection, answers) =
            opened.map_err(|error| self.unreachable(&agreed.by, &error, &server))?;
        let role = answers.first().unwrap_or(&Value::Nil);
        connection.server().note_role(role);
        if Role::parse(role).is_none() {
            let message = format!(
                "the sentinel at {} names {server} as the primary \"{}\", but that server reports itself a replica; try again when the failover is over",
                agreed.by, self.primary
            );
            return Err(Error::new(ErrorKind::NoPrimary, message));
        }
        *lock(&self.failed) = None;
        connection.confirming.listed = ReplicaList::for_a_round(Goal::Each(agreed.replicas));
        Ok(connection)
    }

    /// Replaces the IP address that sentinels name by the host name of the URL that resolves to it, because a certificate
    /// usually has only names.
    fn named(&self, address: &Address, until: Instant) -> Option<Address> {
        let Address::Tcp { host, port, tls } = address else {
            return None;
        };
        let number: IpAddr = host.parse().ok()?;
        let hosts = self.nodes.iter().map(|node| node.address.host());
        let mut hosts = hosts.filter(|host| host.parse::<IpAddr>().is_err());
        let is_it = |host: &&str| {
            let share = Instant::now() + left(until) / 4;
            let addresses = resolve(host, *port, share).unwrap_or_default();
            addresses.iter().any(|address| address.ip() == number)
        };
        let host = hosts.find(is_it)?.to_owned();
        let (port, tls) = (*port, *tls);
        Some(Address::Tcp { host, port, tls })
    }

    /// Returns the error for a primary that can't be reached. Sentinels may correct an address that they announce, so a wrong
    /// one isn't final for a run that has reached Redis before.
    fn unreachable(&self, by: &str, error: &Error, server: &Server) -> Error {
        let is_tls = error.has_cause(Cause::Tls);
        let kind = match error.kind {
            ErrorKind::Unreachable => ErrorKind::NoPrimary,
            ErrorKind::Config if is_tls && server.was_reached() => ErrorKind::NoPrimary,
            other => other,
        };
        let has_number = server.address.host().parse::<IpAddr>().is_ok();
        // If not, the address may be one that only the servers' own network has.
        let hint = if is_tls && has_number {
            "; or have the sentinels name hosts: `sentinel resolve-hostnames yes`, `sentinel announce-hostnames yes`, and replica-announce-ip NAME on each server"
        } else if kind == ErrorKind::NoPrimary {
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

    /// Connects to the primary that most sentinels name.
    pub(super) fn open(self: &Arc<Self>, search: &Search) -> Result<Connection, Error> {
        if let Some(error) = self.check_still_away(search) {
            return Err(error);
        }
        self.connect(self.agreed(search.needs_all, left(search.until))?, search)
    }

    /// Like [`Self::open`], for a release. If too few sentinels answer, connects to the last primary.
    pub(super) fn open_to_release(self: &Arc<Self>, search: &Search) -> Result<Connection, Error> {
        match self.agreed(search.needs_all, left(search.until) / 2) {
            Err(_) if search.last.was_reached() => {
                let opened = Connection::open(&search.last, left(search.until), &[cmd("ROLE")]);
                opened.map(|(connection, _)| connection)
            }
            agreed => self.connect(agreed?, search),
        }
    }

    /// Returns true if most sentinels name another server than that of the connection. Under `REDLOCK_SYNC=all` the
    /// next grant and renewal over this connection are valid only if most of them name its server.
    pub(super) fn has_moved(
        self: &Arc<Self>,
        connection: &mut Connection,
        within: Duration,
    ) -> bool {
        let within = self.patience().min(within / 2);
        let (is_moved, goal) = match self.agreed(connection.confirming.needs_all(), within) {
            Err(error) => (false, Goal::Unreachable(error.to_string())),
            Ok(Majority { address, .. }) if address != connection.server().address => {
                let why = format!("most sentinels name {address} as the primary");
                (true, Goal::Unreachable(why))
            }
            Ok(agreed) => (false, Goal::Each(agreed.replicas)),
        };
        connection.confirming.listed = ReplicaList::for_a_round(goal);
        is_moved
    }

    /// Asks all sentinels for a report. Returns the name of the primary and their answers.
    pub fn roll_call(self: &Arc<Self>, within: Duration) -> (String, Answers) {
        let coming = self.ask_all(Subject::Report, within);
        (self.primary.clone(), coming)
    }
}

#[cfg(test)]
pub mod tests;
