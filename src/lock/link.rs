//! A connection to one server: calls go out, answers and notifications come in.
//!
//! Nothing here blocks unless asked to: a caller that also has signals and timers to watch sends,
//! waits for the descriptor, and takes what came; one that has nothing else to do uses [`Link::ask`].

use std::collections::VecDeque;
use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use redis::{Cmd, PushKind, ServerErrorKind, Value, cmd};

use super::scripts::{Script, text};
use super::server::{Server, Stream};
use super::{Error, Kind, ready, resp};

/// One call of a script.
pub struct Call {
    pub(super) script: &'static Script,
    pub(super) keys: Vec<Vec<u8>>,
    pub(super) args: Vec<Vec<u8>>,
}

impl Call {
    /// The command: by hash, or (once, on `NOSCRIPT`) with the whole text.
    fn command(&self, by_hash: bool) -> Cmd {
        let mut command = if by_hash {
            let mut command = cmd("EVALSHA");
            command.arg(self.script.hash);
            command
        } else {
            let mut command = cmd("EVAL");
            command.arg(self.script.source);
            command
        };
        command.arg(self.keys.len()).arg(&self.keys).arg(&self.args);
        command
    }
}

/// The number of a request on its connection, by which its answer is known.
type Number = u64;

/// What an answer that is still to come belongs to.
enum Expected {
    /// A call by hash, kept in case the server doesn't know the script.
    Call(Number, Call),
    /// A command whose answer is wanted as it is.
    Plain(Number),
    /// What we can do without: the change to RESP3, tracking.
    Optional,
    /// A subscription.
    Subscribed,
}

/// A lease that the server gave us by itself.
#[derive(Clone, Copy, Debug)]
pub struct Grant {
    pub fence: u64,
    pub slot: u32,
    /// When, by the server's clock, in milliseconds since 1970.
    pub at_ms: u64,
    /// How long it lasts.
    pub lasting: Duration,
}

impl Grant {
    /// Reads `granted <fence> <slot> <at> <lasting>`; `None` for anything else.
    fn parse(message: &str) -> Option<Self> {
        let mut words = message.strip_prefix("granted ")?.split(' ');
        Some(Self {
            fence: words.next()?.parse().ok()?,
            slot: words.next()?.parse().ok()?,
            at_ms: words.next()?.parse().ok()?,
            lasting: Duration::from_millis(words.next()?.parse().ok()?),
        })
    }
}

/// What came in.
#[derive(Debug)]
pub enum Incoming {
    /// The answer to a call.
    Answer(Value),
    /// The subscription is confirmed: no release can be missed any more.
    Listening,
    /// The server doesn't let us subscribe; somebody who waits has to poll.
    Deaf,
    /// The message that the lock is ours, for a short time in which to claim it.
    Granted(Grant),
    /// Another message on the channel we listen to.
    Notified,
    /// A key that was read over this connection may have changed.
    Invalidated,
}

/// A connection to one server.
pub struct Link {
    stream: Stream,
    /// What was read of replies that aren't complete, or that nobody has asked for yet.
    unread: Vec<u8>,
    expected: VecDeque<Expected>,
    sent: Number,
    /// An invalidation came while somebody waited for an answer.
    invalidated: bool,
    /// The server was asked to tell of keys that change.
    tracks: bool,
    server: Arc<Server>,
}

impl Link {
    /// Connects and proves who we are, all within the server's timeout.
    ///
    /// # Errors
    /// [`Kind::Unreachable`], [`Kind::Refused`] or [`Kind::Config`].
    pub fn open(server: &Arc<Server>) -> Result<Self, Error> {
        let mut link = Self {
            stream: server.open()?,
            unread: Vec::new(),
            expected: VecDeque::new(),
            sent: 0,
            invalidated: false,
            tracks: false,
            server: Arc::clone(server),
        };
        link.introduce()?;
        Ok(link)
    }

    /// Logs in and chooses the database, in one round trip, and in none where neither is needed.
    fn introduce(&mut self) -> Result<(), Error> {
        let mut bytes = Vec::new();
        let mut answers = 0;
        if let Some(password) = &self.server.password {
            let mut auth = cmd("AUTH");
            if let Some(username) = &self.server.username {
                auth.arg(username);
            }
            auth.arg(password).write_packed_command(&mut bytes);
            answers += 1;
        }
        if self.server.database != 0 {
            cmd("SELECT")
                .arg(self.server.database)
                .write_packed_command(&mut bytes);
            answers += 1;
        }
        if answers == 0 {
            return Ok(());
        }
        let numbers: Vec<Number> = (0..answers).map(|_| self.expect_plain()).collect();
        self.write(&bytes)?;
        let until = Instant::now() + self.server.timeout;
        for number in numbers {
            self.answer(number, until)?;
        }
        Ok(())
    }

    /// Sends a call; its answer comes in later.
    pub fn send(&mut self, call: Call) -> Result<(), Error> {
        self.request(call).map(drop)
    }

    fn request(&mut self, call: Call) -> Result<Number, Error> {
        let bytes = call.command(true).get_packed_command();
        self.sent += 1;
        self.expected.push_back(Expected::Call(self.sent, call));
        self.write(&bytes)?;
        Ok(self.sent)
    }

    /// Notes down that an answer will come that is wanted as it is.
    fn expect_plain(&mut self) -> Number {
        self.sent += 1;
        self.expected.push_back(Expected::Plain(self.sent));
        self.sent
    }

    /// Listens to a channel, on this same connection (RESP3, Redis 6 or later).
    pub fn listen(&mut self, channel: &[u8]) -> Result<(), Error> {
        let mut bytes = Vec::new();
        cmd("HELLO").arg(3).write_packed_command(&mut bytes);
        cmd("SUBSCRIBE")
            .arg(channel)
            .write_packed_command(&mut bytes);
        self.expected.push_back(Expected::Optional);
        self.expected.push_back(Expected::Subscribed);
        self.write(&bytes)
    }

    /// Has the server tell us when somebody else changes one of these keys for the next time (client
    /// tracking, RESP3). Where that doesn't exist, nobody tells. Only what is read here counts: of a
    /// script's keys most are written all the time.
    pub(super) fn watch<'a>(&mut self, keys: impl Iterator<Item = &'a [u8]>) -> Result<(), Error> {
        let mut bytes = Vec::new();
        let mut optional = |command: &Cmd| {
            command.write_packed_command(&mut bytes);
            self.expected.push_back(Expected::Optional);
        };
        if !std::mem::replace(&mut self.tracks, true) {
            optional(cmd("HELLO").arg(3));
            optional(
                cmd("CLIENT")
                    .arg("TRACKING")
                    .arg("ON")
                    .arg("OPTIN")
                    .arg("NOLOOP"),
            );
        }
        for key in keys {
            optional(cmd("CLIENT").arg("CACHING").arg("YES"));
            optional(cmd("GET").arg(key));
        }
        self.write(&bytes)
    }

    /// The longest that each answer may take.
    pub fn timeout(&self) -> Duration {
        self.server.timeout
    }

    /// What came in, if anything has. Never blocks. Call until `None` before waiting for the
    /// descriptor: bytes may have been read ahead.
    pub fn receive(&mut self) -> Result<Option<Incoming>, Error> {
        if std::mem::take(&mut self.invalidated) {
            return Ok(Some(Incoming::Invalidated));
        }
        Ok(self.take_in()?.map(|(_, incoming)| incoming))
    }

    /// What came in; with an answer the number of its request.
    fn take_in(&mut self) -> Result<Option<(Number, Incoming)>, Error> {
        let unasked = |incoming| Ok(Some((0, incoming)));
        loop {
            let Some(value) = self.next_reply()? else {
                return Ok(None);
            };
            if let Value::Push { kind, data } = value {
                match kind {
                    PushKind::Message => match data.last().map(text).as_deref() {
                        // Somebody only wants to know whether we are there.
                        Some("hello") => continue,
                        Some(message) => {
                            let grant = Grant::parse(message);
                            return unasked(grant.map_or(Incoming::Notified, Incoming::Granted));
                        }
                        None => return unasked(Incoming::Notified),
                    },
                    PushKind::Invalidate => return unasked(Incoming::Invalidated),
                    PushKind::Subscribe => {
                        self.expected.pop_front();
                        return unasked(Incoming::Listening);
                    }
                    _ => continue,
                }
            }
            match (self.expected.pop_front(), value) {
                (Some(Expected::Call(number, call)), Value::ServerError(error))
                    if error.kind() == Some(ServerErrorKind::NoScript) =>
                {
                    // Nothing was done. Where something else was sent meanwhile, it must stay so:
                    // now it would be done after that, a lock taken that was just given back.
                    if self.expected.is_empty() {
                        let bytes = call.command(false).get_packed_command();
                        self.expected.push_back(Expected::Plain(number));
                        self.write(&bytes)?;
                    }
                }
                (Some(Expected::Optional), _) => {}
                (Some(Expected::Subscribed), _) => return unasked(Incoming::Deaf),
                // Also unasked, such as "max number of clients reached".
                (_, Value::ServerError(error)) => {
                    return Err(Error::from_server(&error, &self.server));
                }
                (Some(Expected::Call(number, _) | Expected::Plain(number)), value) => {
                    return Ok(Some((number, Incoming::Answer(value))));
                }
                (None, _) => {
                    return Err(Error::new(
                        Kind::Internal,
                        format!("Redis at {} answered what nobody asked", self.server),
                    ));
                }
            }
        }
    }

    /// The next reply of whatever kind, if it is complete.
    fn next_reply(&mut self) -> Result<Option<Value>, Error> {
        loop {
            let reply = resp::next(&mut self.unread).map_err(|error| {
                let what = format!(
                    "what answers at {} doesn't speak Redis' protocol: {error}",
                    self.server
                );
                Error::new(Kind::Internal, what)
            })?;
            if reply.is_some() {
                return Ok(reply);
            }
            let mut bytes = [0; 4096];
            match self.stream.read(&mut bytes) {
                Ok(0) => {
                    return Err(self
                        .server
                        .unreachable(&io::ErrorKind::UnexpectedEof.into()));
                }
                Ok(read) => self.unread.extend_from_slice(&bytes[..read]),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(self.server.unreachable(&error)),
            }
        }
    }

    /// Sends a call and waits for its answer, at most `within`. Answers to earlier calls that
    /// nobody has read are passed over.
    pub fn ask(&mut self, call: Call, within: Duration) -> Result<Value, Error> {
        let until = Instant::now() + within;
        let number = self.request(call)?;
        self.answer(number, until)
    }

    /// The same; `is_slow` is called when the answer takes longer than `soon`.
    pub fn ask_with_patience(
        &mut self,
        call: Call,
        soon: Duration,
        is_slow: impl FnOnce(),
        within: Duration,
    ) -> Result<Value, Error> {
        let start = Instant::now();
        let number = self.request(call)?;
        match self.answer(number, start + soon.min(within)) {
            Err(error) if error.kind == Kind::Unreachable && soon < within => {
                is_slow();
                self.answer(number, start + within)
            }
            other => other,
        }
    }

    /// Sends many calls of one script at once and waits for all answers, each at most `within`.
    pub(super) fn ask_all(
        &mut self,
        calls: Vec<Call>,
        within: Duration,
    ) -> Result<Vec<Value>, Error> {
        let mut calls = calls.into_iter();
        let Some(first) = calls.next() else {
            return Ok(Vec::new());
        };
        // The first by itself makes sure that the server knows the script.
        let mut values = vec![self.ask(first, within)?];
        let rest: Vec<Call> = calls.collect();
        // In parts, so that neither side's buffers fill while both write.
        for part in rest.chunks(100) {
            let mut bytes = Vec::new();
            let mut numbers = Vec::new();
            for call in part {
                call.command(true).write_packed_command(&mut bytes);
                numbers.push(self.expect_plain());
            }
            self.write(&bytes)?;
            for number in numbers {
                values.push(self.answer(number, Instant::now() + within)?);
            }
        }
        Ok(values)
    }

    /// Sends a plain command and waits for its answer.
    pub(super) fn query(&mut self, command: &Cmd) -> Result<Value, Error> {
        let number = self.expect_plain();
        self.write(&command.get_packed_command())?;
        self.answer(number, Instant::now() + self.server.timeout)
    }

    /// Waits for the answer to a request, passing over all else.
    fn answer(&mut self, number: Number, until: Instant) -> Result<Value, Error> {
        loop {
            match self.take_in()? {
                Some((answered, Incoming::Answer(value))) if answered == number => {
                    return Ok(value);
                }
                Some((_, Incoming::Invalidated)) => self.invalidated = true,
                Some(_) => {}
                None => {
                    let left = until.saturating_duration_since(Instant::now());
                    let readable = ready::to_read(self.as_fd(), left)
                        .map_err(|error| self.server.unreachable(&error))?;
                    if !readable {
                        return Err(self.server.unreachable(&io::ErrorKind::TimedOut.into()));
                    }
                }
            }
        }
    }

    fn write(&mut self, bytes: &[u8]) -> Result<(), Error> {
        self.stream
            .send(bytes, self.server.timeout)
            .map_err(|error| self.server.unreachable(&error))
    }
}

impl AsFd for Link {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}
