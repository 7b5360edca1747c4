//! A client of Redis, which connects when a connection is needed, limits the time of each answer, and closes
//! a connection after a failure.
//!
//! [`Client::with_connection`] sends requests that wait for their answers, and is the only place that
//! connects again. [`Client::send`] sends requests that don't wait; [`Client::receive`] returns their
//! answers. There the caller decides when to close a failed connection, because it may have to withdraw its
//! request over the same one.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use redis::{Cmd, ServerError, Value};

use super::answer::{Acquired, acquired};
use super::grant::Grant;
use super::scripts::{ACQUIRE, Script, TAKE, array, lossy_text};
use super::token::Token;
use crate::server::call::Call;
use crate::server::connection::Connection;
use crate::server::deployment::Deployment;
use crate::server::endpoint::Server;
use crate::server::error::Error;
pub use crate::server::left;
use crate::server::refusal::from_server;
pub use crate::server::wire::Push;
use crate::server::wire::Received;

/// A connection to Redis, open or to be opened by the next request.
pub struct Client {
    /// The servers behind the URL.
    pub deployment: Arc<Deployment>,
    connection: Option<Connection>,
    /// Longest time for a request, if that is less than the server's timeout.
    limit: Duration,
    /// Result of the last renewal over the connection.
    pub(super) looked: Option<LastRenewal>,
    /// Call that [`Self::receive`] makes if the short script changed nothing.
    pub(super) whole: Option<Call>,
}

/// Result of the last renewal of a lock over a connection.
pub(super) struct LastRenewal {
    pub token: Token,
    pub at: Instant,
    /// The lease needed nothing but an extension, so the short script may suffice for the next ones.
    pub is_plain: bool,
}

/// An answer or message that came in while nobody waited for it.
#[derive(Debug)]
pub enum Incoming {
    /// The answer to [`super::Claim::acquire`], or an error if it can't be read.
    Acquired(Result<Acquired, Error>),
    /// The short script changed nothing, so the whole one was called; its answer may take this long.
    AskedAgain(Duration),
    /// The message that the waiter has the lock, for a short time in which it must confirm that.
    Granted(Grant),
    /// Any other message that the server has pushed.
    Push(Push),
}

impl Client {
    pub(super) fn new(deployment: &Arc<Deployment>) -> Self {
        Self {
            deployment: Arc::clone(deployment),
            connection: None,
            limit: Duration::MAX,
            looked: None,
            whole: None,
        }
    }

    /// Connects and authenticates, unless that is done.
    ///
    /// # Errors
    /// [`super::ErrorKind::Unreachable`], [`super::ErrorKind::Refused`] or
    /// [`super::ErrorKind::Config`].
    pub fn open(&mut self) -> Result<(), Error> {
        self.connection().map(drop)
    }

    /// Like [`Self::open`], for a release. Needs no majority of the sentinels: releasing on a demoted primary
    /// can't free another client's lock.
    pub(super) fn open_to_release(&mut self) -> Result<(), Error> {
        if !self.is_open() {
            let timeout = self.timeout();
            let opened = self.deployment.open_to_release(timeout)?;
            self.connection = Some(opened);
        }
        Ok(())
    }

    /// Returns the connection; opens one if there is none. Not inlined, because a short run pays for each
    /// page of code.
    #[inline(never)]
    fn connection(&mut self) -> Result<&mut Connection, Error> {
        let timeout = self.timeout();
        let connection = match self.connection.take() {
            Some(connection) => connection,
            None => self.deployment.open(timeout)?,
        };
        let connection = self.connection.insert(connection);
        // The connection may have been opened under another limit.
        connection.limit_to(timeout);
        Ok(connection)
    }

    /// Returns true if there is a connection; only the next answer shows whether it works.
    pub fn is_open(&self) -> bool {
        self.connection.is_some()
    }

    /// Returns true if redlock knows whether the server pushes messages over this connection.
    pub fn knows_protocol(&self) -> bool {
        let connection = self.connection.as_ref();
        connection.is_some_and(Connection::knows_protocol)
    }

    /// Opens a connection if there is none, and waits until redlock knows that.
    pub fn learn_protocol(&mut self) -> Result<(), Error> {
        self.with_connection(|connection, _| connection.learn_protocol())
    }

    /// Returns the server that was used last, or is tried first.
    pub fn server(&self) -> Arc<Server> {
        self.deployment.server()
    }

    /// Asks the server whether it is a replica, together with the next request. After its answer
    /// [`Server::is_replica`] is right, if the server permits the question.
    pub fn ask_role(&mut self) -> Result<(), Error> {
        self.with_connection(|connection, _| connection.ask_role())
    }

    /// Returns an error if the server is a replica, which takes no writes.
    pub fn refuse_replica(&self) -> Result<(), Error> {
        let server = self.server();
        let error = server.is_replica().then(|| server.replica_error());
        error.map_or(Ok(()), Err)
    }

    /// Returns true if waiters get their messages over the channels of a hash slot.
    pub(super) fn is_sharded(&mut self) -> bool {
        let connection = self.connection.as_ref();
        connection.is_some_and(Connection::is_sharded)
    }

    /// Closes the connection; the next request opens a fresh one.
    pub fn disconnect(&mut self) {
        self.connection = None;
        self.looked = None;
    }

    /// Closes the connection if another server has the locks by now, so that the next request connects there.
    /// Does nothing if that can't be found out.
    pub fn follow_locks(&mut self) {
        let timeout = self.timeout();
        let moved = |connection: &mut Connection| self.deployment.has_moved(connection, timeout);
        if self.connection.as_mut().is_some_and(moved) {
            self.disconnect();
        }
    }

    /// Returns another client of the same servers, without a connection.
    pub fn another(&self) -> Self {
        Self::new(&self.deployment)
    }

    /// Moves the connection into a client for another thread; this client keeps none.
    pub fn hand_over(&mut self) -> Self {
        let other = self.another();
        std::mem::replace(self, other)
    }

    /// Limits the time of each request from now on, in addition to the settings.
    pub fn limit_to(&mut self, limit: Duration) {
        self.limit = limit;
    }

    /// Lifts that limit.
    pub fn lift_limit(&mut self) {
        self.limit = Duration::MAX;
    }

    /// Returns the longest time to connect, and to wait for each answer.
    pub fn timeout(&self) -> Duration {
        self.server().timeout.min(self.limit)
    }

    /// Returns the descriptors that become readable when a message may have come in.
    pub fn fds(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.connection.iter().map(AsFd::as_fd)
    }

    /// Returns the next message, if any. Never blocks or connects. Callers must call it until `None` before
    /// they wait for the descriptors, because bytes may have been read ahead. Returns `None` after a bounded
    /// number of bytes; then the descriptor stays readable.
    pub fn receive(&mut self) -> Result<Option<Incoming>, Error> {
        let Some(connection) = &mut self.connection else {
            return Ok(None);
        };
        while let Some(received) = connection.receive()? {
            let (script, value) = match received {
                Received::Push(push) => {
                    let grant = match &push {
                        Push::Message(message) => Grant::parse(message),
                        _ => None,
                    };
                    return Ok(Some(grant.map_or(Incoming::Push(push), Incoming::Granted)));
                }
                Received::Answer { script, value, .. } => (script, value),
            };
            let is_of = |other: &Script| script.is_some_and(|script| script.hash == other.hash);
            if is_of(&TAKE)
                && value == Value::Int(0)
                && let Some(whole) = self.whole.take()
            {
                return Ok(Some(Incoming::AskedAgain(self.send(whole)?)));
            }
            // Only late answers are left, for which no caller waits any more.
            if is_of(&ACQUIRE) || is_of(&TAKE) {
                return Ok(Some(Incoming::Acquired(acquired(value))));
            }
        }
        Ok(None)
    }

    /// Sends a call without waiting for its answer (see [`Self::receive`]). Returns how long the answer may
    /// take.
    pub(super) fn send(&mut self, call: Call) -> Result<Duration, Error> {
        self.connection()?.send(call)
    }

    /// Sends a request over the present connection, or a fresh one, and waits for the answer. `request` gets
    /// the connection, and how long each answer may take. Closes the connection after a failure, because the
    /// answer may still come.
    pub(super) fn with_connection<T>(
        &mut self,
        request: impl FnOnce(&mut Connection, Duration) -> Result<T, Error>,
    ) -> Result<T, Error> {
        let timeout = self.timeout();
        let result = self
            .connection()
            .and_then(|connection| request(connection, timeout));
        if result.is_err() {
            self.disconnect();
        }
        result
    }

    /// Sends a plain command and waits for its answer.
    pub(super) fn query(&mut self, command: &Cmd) -> Result<Value, Error> {
        self.with_connection(|connection, _| connection.query(command))
    }

    /// Calls a script and waits for its answer. Returns the result of `read` for the answer's fields.
    pub(super) fn call<T>(
        &mut self,
        call: Call,
        read: impl FnOnce(&[Value]) -> Result<T, Error>,
    ) -> Result<T, Error> {
        self.with_connection(|connection, within| read(&array(connection.call(call, within)?)?))
    }

    /// Sends plain commands at once and waits for the answers. A reply is the list of its texts; a refusal is
    /// an error.
    ///
    /// # Errors
    /// If the server doesn't answer before `until`.
    pub fn ask(&mut self, questions: &[&[&str]], until: Instant) -> Result<Vec<Reply>, Error> {
        let command = |words: &&[&str]| Cmd::new().arg(*words).clone();
        let commands: Vec<Cmd> = questions.iter().map(command).collect();
        let replies = self.query_each(&commands, until)?.into_iter();
        let replies = replies.map(|reply| match reply {
            Value::ServerError(error) => Err(self.refusal(&error, None)),
            Value::Array(parts) => Ok(parts.iter().map(text).collect()),
            Value::Map(pairs) => {
                let parts = pairs.iter().flat_map(|(name, value)| [name, value]);
                Ok(parts.map(text).collect())
            }
            other => Ok(vec![text(&other)]),
        });
        Ok(replies.collect())
    }

    /// Sends commands at once and waits for all answers, including refusals.
    pub(super) fn query_each(
        &mut self,
        commands: &[Cmd],
        until: Instant,
    ) -> Result<Vec<Value>, Error> {
        self.limit_to(left(until));
        self.with_connection(|connection, within| {
            connection.query_each(commands, within.min(left(until)))
        })
    }

    /// Returns the error for a refusal, of a script's call or a plain command.
    pub(super) fn refusal(&self, error: &ServerError, call: Option<&Call>) -> Error {
        from_server(error, &self.server(), call)
    }
}

/// Texts of a reply, or the error for a refusal.
pub type Reply = Result<Vec<String>, Error>;

fn text(value: &Value) -> String {
    match value {
        Value::Int(number) => number.to_string(),
        other => lossy_text(other),
    }
}

#[cfg(test)]
pub mod tests {
    use std::io::{Read, Write};
    use std::os::unix::net::UnixListener;
    use std::path::Path;
    use std::thread::{JoinHandle, spawn};

    use super::super::claim::tests::request;
    use super::super::scripts::RELEASE;
    use super::super::{Access, Claim, Locks, Names, ReleaseMode, Released, Token};
    use super::*;

    /// Returns the locks on the server that listens at this socket.
    pub fn locks_behind(socket: &Path) -> Locks {
        let access = Access {
            url: &format!("unix://{}", socket.display()),
            timeout: Duration::from_secs(20),
            ..Access::default()
        };
        Locks::new(&access, Some("p:"), 0).unwrap()
    }

    /// Returns the locks on a server that runs `serve`, and its thread.
    pub fn locks_of<T: Send + 'static>(
        serve: impl FnOnce(&UnixListener) -> T + Send + 'static,
    ) -> (Locks, JoinHandle<T>) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("socket");
        let listener = UnixListener::bind(&path).unwrap();
        let serve = move || {
            let served = serve(&listener);
            drop(dir);
            served
        };
        (locks_behind(&path), spawn(serve))
    }

    #[test]
    fn after_a_request_that_failed_the_next_one_opens_a_fresh_connection() {
        let (locks, server) = locks_of(|listener| {
            // The first connection is closed without an answer.
            drop(listener.accept().unwrap());
            let (mut stream, _) = listener.accept().unwrap();
            let mut bytes = [0; 1024];
            assert!(stream.read(&mut bytes).unwrap() > 0);
            stream.write_all(b"*0\r\n").unwrap();
            stream.read(&mut bytes).unwrap()
        });
        let mut client = locks.open().unwrap();
        assert!(locks.names(&mut client, Names::All).is_err());
        assert!(!client.is_open());
        assert_eq!(locks.names(&mut client, Names::All).unwrap(), []);
        let other = client.hand_over();
        assert!(other.is_open() && !client.is_open());
        drop(other);
        // No further request was sent, and the connection is closed.
        assert_eq!(server.join().unwrap(), 0);
    }

    #[test]
    fn a_request_that_the_server_does_not_know_is_never_repeated_behind_the_release_that_takes_it_back()
     {
        const UNKNOWN: &str = "-NOSCRIPT No matching script.\r\n";
        const RELEASED: &str = "*1\r\n:1\r\n";
        let (locks, server) = locks_of(|listener| {
            let (mut stream, _) = listener.accept().unwrap();
            let mut bytes = [0; 4096];
            let mut read_until = |text: &str| {
                let mut all = Vec::new();
                let ends = |all: &[u8]| all.windows(text.len()).any(|it| it == text.as_bytes());
                while !ends(&all) {
                    match stream.read(&mut bytes) {
                        Ok(read @ 1..) => all.extend_from_slice(&bytes[..read]),
                        _ => break,
                    }
                }
                all
            };
            // The withdrawal contains the text of its script, because nobody may wait for its answer.
            let request = read_until(RELEASE.source);
            let is_by_hash = String::from_utf8_lossy(&request).contains("EVALSHA");
            stream.write_all(UNKNOWN.as_bytes()).unwrap();
            stream.write_all(RELEASED.as_bytes()).unwrap();
            let mut rest = Vec::new();
            let _ = stream.read_to_end(&mut rest);
            (is_by_hash, String::from_utf8_lossy(&rest).contains("EVAL"))
        });
        let mut client = locks.open().unwrap();
        let lock = locks.lock("a".parse().expect("a name"));
        let claim = Claim::resume(lock, Token::read("t:h:1".into()).expect("a token"));
        claim.acquire(&mut client, &request(), None).unwrap();
        let released = claim.release(&mut client, &ReleaseMode::UNUSED, || {});
        assert!(matches!(released, Ok(Released::Now)), "{released:?}");
        drop(client);
        assert_eq!(server.join().unwrap(), (true, false));
    }

    #[test]
    fn what_the_server_pushes_while_an_answer_is_waited_for_comes_in_after_it() {
        const CHANGED: &str = ">2\r\n$10\r\ninvalidate\r\n*1\r\n$1\r\na\r\n";
        const MESSAGE: &str = ">3\r\n$7\r\nmessage\r\n$1\r\nc\r\n$4\r\nnext\r\n";
        const GRANT: &str = ">3\r\n$7\r\nmessage\r\n$1\r\nc\r\n$18\r\ngranted 1 1 1 5000\r\n";
        for push in [CHANGED, MESSAGE, GRANT] {
            let (locks, server) = locks_of(move |listener| {
                let (mut stream, _) = listener.accept().unwrap();
                let mut bytes = [0; 1024];
                assert!(stream.read(&mut bytes).unwrap() > 0);
                stream.write_all(push.as_bytes()).unwrap();
                stream.write_all(b"*0\r\n").unwrap();
                stream.read(&mut bytes).unwrap()
            });
            let mut client = locks.open().unwrap();
            assert_eq!(locks.names(&mut client, Names::All).unwrap(), []);
            let incoming = client.receive().unwrap();
            // A missed grant is found by the next request.
            let is_it = match incoming {
                Some(Incoming::Push(Push::KeyChanged)) => push == CHANGED,
                Some(Incoming::Push(Push::MessageMissed)) => push != CHANGED,
                _ => false,
            };
            assert!(is_it, "{push:?}: {incoming:?}");
            assert!(client.receive().unwrap().is_none(), "{push:?}");
            drop(client);
            assert_eq!(server.join().unwrap(), 0);
        }
    }
}
