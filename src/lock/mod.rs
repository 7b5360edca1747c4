//! The lock protocol on one Redis server, and the only code that knows Redis.
//!
//! The lock is the string key PREFIX+NAME that holds the holder's *token*: a random text, fresh
//! for every acquisition, set with `NX` semantics and a TTL. Every client that does
//! `SET key token NX PX ttl` on the same key excludes us and is excluded by us. Beside it, in the
//! same hash slot: `state` (the last fence, and who was forced out by whom), `meta` (who the holder
//! is) and a channel on which releases are announced; and for each prefix one `index` of the names
//! in use, so that nobody has to walk the keyspace.
//!
//! Each operation is one Lua script, in a file of its own, that checks the token before it changes
//! anything:
//!
//! - `acquire.lua` takes a free lock or says who has it; a repetition after a lost reply is safe.
//! - `renew.lua` lengthens our lease; it never shortens one and never re-creates a lost lock.
//! - `release.lua` gives our lock back and notifies those who wait.
//! - `force.lua` frees somebody else's lock, and leaves word of who did it.
//! - `inspect.lua` looks, and changes nothing.
//! - `forget.lua` takes the name of a lock that died out of the index.
//!
//! The *fence* that each grant carries is `max(last + 1, server time in µs)`: it grows with every
//! grant also when the state was flushed or the server restarted empty.
//!
//! Types: a [`Server`] is where to go, a [`Link`] a connection to it, a [`Lock`] a name on it, and
//! a [`Claim`] one attempt to hold that lock, by its own token. Calls and the reading of their
//! answers are separate, so that a caller may watch signals in between.

mod link;
mod name;
mod ready;
mod resp;
mod server;

use std::fmt;
use std::time::Duration;

use redis::{FromRedisValue, ServerError, ServerErrorKind, Value};
use serde::{Deserialize, Serialize};

use self::link::Script;
pub use self::link::{Call, Incoming, Link};
pub use self::name::Name;
use self::name::{Keys, index_key};
pub use self::server::{Server, TlsFiles};

static ACQUIRE: Script = Script {
    source: include_str!("acquire.lua"),
    hash: "f2327eb005f44f559b0aaf9ba9c6d544679a4009",
};
static RENEW: Script = Script {
    source: include_str!("renew.lua"),
    hash: "7db2c89e3b9e8f857ef0b86f3d6a9586a5eea253",
};
static RELEASE: Script = Script {
    source: include_str!("release.lua"),
    hash: "bc56ffdc3cc89fc7c566c34bb98fb94a7aa66e2c",
};
static FORCE: Script = Script {
    source: include_str!("force.lua"),
    hash: "98b5bdcd941059cc27e185916363fc3503ce7fac",
};
static INSPECT: Script = Script {
    source: include_str!("inspect.lua"),
    hash: "ffaae972ade9b3635b2ef8cb4e6ee0bb8656dbd3",
};
static FORGET: Script = Script {
    source: include_str!("forget.lua"),
    hash: "4577fda1e6016df1ab3e6640e7213e9da18fb482",
};

/// What went wrong with Redis, as far as the exit status needs to know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// No answer, or not yet (loading, failing over).
    Unreachable,
    /// Authentication or permissions.
    Refused,
    /// Our configuration: URL, certificates, or a key that belongs to another program.
    Config,
    /// What should not happen.
    Internal,
}

/// A failed conversation with Redis. The message is for people: what happened, and what to do.
#[derive(Clone, Debug)]
pub struct Error {
    pub kind: Kind,
    message: String,
}

impl Error {
    pub(crate) fn new(kind: Kind, message: String) -> Self {
        Self { kind, message }
    }

    fn from_server(error: &ServerError, server: &Server) -> Self {
        let details = error.details().unwrap_or_default();
        let said = format!("{} {details}", error.code());
        let (kind, message) = match (error.kind(), error.code()) {
            _ if said.contains("WRONGTYPE") => (
                Kind::Config,
                "the key isn't a string, so it belongs to another program; choose another name or --prefix".to_owned(),
            ),
            _ if error.kind() == Some(ServerErrorKind::NoPerm)
                || details.contains("user executing the script can't") =>
            (
                Kind::Refused,
                format!("Redis at {server} doesn't permit it: {details}; see \"permissions\" in redlock-protocol(7)"),
            ),
            // It answers so to a request with more than ten parts.
            _ if details.contains("unauthenticated") || error.code() == "NOAUTH" => (
                Kind::Refused,
                format!("Redis at {server} wants a password; give it in --password-file or in the URL"),
            ),
            (_, "WRONGPASS") => (
                Kind::Refused,
                format!("Redis at {server} refused the user name or password"),
            ),
            _ if details.contains("AUTH") && details.contains("without any password") => (
                Kind::Refused,
                format!("Redis at {server} has no password set, but one was given"),
            ),
            (Some(ServerErrorKind::BusyLoading | ServerErrorKind::MasterDown | ServerErrorKind::ReadOnly | ServerErrorKind::TryAgain | ServerErrorKind::ClusterDown), _)
            | (_, "BUSY" | "OOM" | "MISCONF" | "NOREPLICAS") => (
                Kind::Unreachable,
                format!("Redis at {server} can't do it now: {said}"),
            ),
            _ if details.contains("max number of clients") => (
                Kind::Unreachable,
                format!("Redis at {server} has too many clients"),
            ),
            _ if details.contains("DB index") => (
                Kind::Config,
                format!("Redis at {server} has no such database: {details}"),
            ),
            _ => (Kind::Internal, format!("Redis at {server} answered: {said}")),
        };
        Self { kind, message }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Error {}

impl From<redis::ParsingError> for Error {
    fn from(error: redis::ParsingError) -> Self {
        Self::new(
            Kind::Internal,
            format!("unexpected answer from a script: {error}"),
        )
    }
}

/// Who holds a lock or acts on it, as others see it. Everything in it may come from another
/// client, so whoever shows it escapes it first.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Who {
    pub host: String,
    pub user: String,
    pub pid: u32,
    /// COMMAND and its arguments; shortened when it is very long.
    pub command: Vec<String>,
    pub reason: Option<String>,
    /// A link to the job.
    pub url: Option<String>,
}

/// The entry of a holder in `meta`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    pub fence: u64,
    /// When it got the lock, in milliseconds since 1970 by the server's clock.
    pub since_ms: u64,
    pub who: Who,
}

impl Holder {
    /// Reads `"<fence> <since> <who as JSON>"`; `None` for anything else.
    fn parse(entry: &[u8]) -> Option<Self> {
        let entry = std::str::from_utf8(entry).ok()?;
        let mut parts = entry.splitn(3, ' ');
        Some(Self {
            fence: parts.next()?.parse().ok()?,
            since_ms: parts.next()?.parse().ok()?,
            who: serde_json::from_str(parts.next()?).ok()?,
        })
    }
}

/// A lock on a server: its name and keys.
#[derive(Clone, Debug)]
pub struct Lock {
    name: Name,
    keys: Keys,
}

impl Lock {
    /// The lock `name` below `prefix`.
    pub fn new(prefix: &str, name: Name) -> Self {
        let keys = Keys::new(prefix, &name);
        Self { name, keys }
    }

    /// Its name without the prefix.
    pub fn name(&self) -> &Name {
        &self.name
    }

    /// The channel on which its releases are announced.
    pub fn channel(&self) -> &[u8] {
        &self.keys.channel
    }

    /// Frees the lock whoever holds it, or (with `id`) only that holder.
    pub fn force(
        &self,
        link: &mut Link,
        id: Option<&str>,
        by: &Who,
        within: Duration,
    ) -> Result<Forced, Error> {
        let by = serde_json::to_vec(by).unwrap_or_default();
        let args = vec![
            id.unwrap_or_default().into(),
            by,
            self.name.as_str().into(),
            self.keys.channel.clone(),
        ];
        let fields = array(link.ask(self.call(&FORCE, args), within)?)?;
        Ok(match fields.as_slice() {
            [Value::Int(1), meta] => Forced::Freed(holder(meta)),
            [Value::Int(0)] => Forced::WasFree,
            [Value::Int(2), id, meta] => Forced::Another(text(id), holder(meta)),
            _ => return Err(odd(&fields)),
        })
    }

    fn call(&self, script: &'static Script, args: Vec<Vec<u8>>) -> Call {
        let keys = &self.keys;
        Call {
            script,
            keys: vec![
                keys.lock.clone(),
                keys.state.clone(),
                keys.meta.clone(),
                keys.index.clone(),
            ],
            args,
        }
    }
}

/// What `force` found.
#[derive(Clone, Debug)]
pub enum Forced {
    /// The lock is free now; this holder had it (none known: another client's lock).
    Freed(Option<Holder>),
    /// Nobody held it.
    WasFree,
    /// Somebody else than the given id holds it: its id, and who.
    Another(String, Option<Holder>),
}

/// One attempt to hold a lock, known to the server by its own token.
#[derive(Clone)]
pub struct Claim {
    lock: Lock,
    token: Vec<u8>,
    ttl: Duration,
    who: Vec<u8>,
}

/// The answer to [`Claim::acquire`].
#[derive(Clone, Debug)]
pub enum Acquired {
    /// Ours.
    Held { fence: u64 },
    /// Somebody else's: who, and when that lease ends (`None`: never, the key has no expiry).
    Busy {
        holder: Option<Holder>,
        left: Option<Duration>,
    },
}

/// The answer to [`Claim::renew`]; that there was no answer is an [`Error`], a third thing.
#[derive(Clone, Debug)]
pub enum Renewal {
    /// The lease is lengthened by the TTL.
    Renewed,
    /// Definitely not ours any more.
    Lost(Loss),
}

/// How a lock was lost, as far as Redis knows.
#[derive(Clone, Debug, Default)]
pub struct Loss {
    /// Who freed it with `release --force`.
    pub forced_by: Option<Who>,
    /// Who holds it now.
    pub holder: Option<Holder>,
}

/// The answer to [`Claim::release`].
#[derive(Clone, Debug)]
pub enum Release {
    Released,
    /// It wasn't ours (any more).
    NotOurs(Loss),
}

impl Claim {
    /// A claim with a fresh token: 128 random bits, then the host and process, so that
    /// `redis-cli GET` names the owner.
    pub fn new(lock: Lock, ttl: Duration, who: &Who) -> Result<Self, Error> {
        let mut random = [0; 16];
        getrandom::fill(&mut random)
            .map_err(|error| Error::new(Kind::Internal, format!("no random numbers: {error}")))?;
        let token = format!(
            "{:032x}:{}:{}",
            u128::from_be_bytes(random),
            who.host,
            who.pid
        );
        Ok(Self {
            lock,
            token: token.into(),
            ttl,
            who: serde_json::to_vec(who).unwrap_or_default(),
        })
    }

    /// A claim that was made before, by its token; it can be renewed and released.
    pub fn resume(lock: Lock, token: Vec<u8>, ttl: Duration) -> Self {
        Self {
            lock,
            token,
            ttl,
            who: Vec::new(),
        }
    }

    pub fn lock(&self) -> &Lock {
        &self.lock
    }

    /// The token; for the child's environment alone.
    pub fn token(&self) -> &[u8] {
        &self.token
    }

    pub fn ttl(&self) -> Duration {
        self.ttl
    }

    /// The call that takes the lock. Its answer goes to [`Self::acquired`].
    pub fn acquire(&self) -> Call {
        let args = vec![
            self.token.clone(),
            self.ttl.as_millis().to_string().into(),
            self.who.clone(),
            self.lock.name.as_str().into(),
        ];
        self.lock.call(&ACQUIRE, args)
    }

    /// Reads the answer to [`Self::acquire`].
    pub fn acquired(answer: Value) -> Result<Acquired, Error> {
        let fields = array(answer)?;
        Ok(match fields.as_slice() {
            [Value::Int(1), fence] => Acquired::Held {
                fence: u64::from_redis_value_ref(fence)?,
            },
            [Value::Int(0), left, meta] => Acquired::Busy {
                holder: holder(meta),
                left: milliseconds(left)?,
            },
            _ => return Err(odd(&fields)),
        })
    }

    /// Lengthens the lease; waits at most `within` for the answer.
    pub fn renew(&self, link: &mut Link, within: Duration) -> Result<Renewal, Error> {
        let args = vec![self.token.clone(), self.ttl.as_millis().to_string().into()];
        let fields = array(link.ask(self.lock.call(&RENEW, args), within)?)?;
        Ok(match fields.as_slice() {
            [Value::Int(1)] => Renewal::Renewed,
            [Value::Int(0), by, meta] => Renewal::Lost(loss(by, meta)),
            _ => return Err(odd(&fields)),
        })
    }

    /// Gives the lock back; waits at most `within` for the answer. Safe to repeat.
    pub fn release(&self, link: &mut Link, within: Duration) -> Result<Release, Error> {
        let args = vec![
            self.token.clone(),
            self.lock.name.as_str().into(),
            self.lock.keys.channel.clone(),
        ];
        let fields = array(link.ask(self.lock.call(&RELEASE, args), within)?)?;
        Ok(match fields.as_slice() {
            [Value::Int(1)] => Release::Released,
            [Value::Int(0), by, meta] => Release::NotOurs(loss(by, meta)),
            _ => return Err(odd(&fields)),
        })
    }
}

/// A lock as [`inspect`] found it.
#[derive(Clone, Debug)]
pub struct Inspected {
    pub name: Name,
    /// The last fence that was granted.
    pub fence: Option<u64>,
    /// The server's clock, in milliseconds since 1970.
    pub now_ms: u64,
    pub key: Key,
}

/// What stands at a lock's key.
#[derive(Clone, Debug)]
pub enum Key {
    /// Nothing: the lock is free.
    Free,
    /// A token. `id` is the start of its SHA-1, which names this hold without giving it away.
    Held {
        id: String,
        /// `None`: the key has no expiry.
        left: Option<Duration>,
        /// `None`: another client's lock.
        holder: Option<Holder>,
    },
    /// Another type of key, so not a lock; its type.
    NotALock(String),
}

/// Looks at locks without changing them. One round trip for a hundred names.
pub fn inspect(link: &mut Link, prefix: &str, names: &[Name]) -> Result<Vec<Inspected>, Error> {
    let calls: Vec<Call> = names
        .iter()
        .map(|name| {
            let mut call = Lock::new(prefix, name.clone()).call(&INSPECT, Vec::new());
            call.keys.truncate(3);
            call
        })
        .collect();
    names
        .iter()
        .zip(link.ask_all(&calls)?)
        .map(|(name, answer)| inspected(name.clone(), answer))
        .collect()
}

fn inspected(name: Name, answer: Value) -> Result<Inspected, Error> {
    let fields = array(answer)?;
    let [kind, left, fence, now_ms, id, meta] = fields.as_slice() else {
        return Err(odd(&fields));
    };
    let key = match text(kind).as_str() {
        "none" => Key::Free,
        "string" => Key::Held {
            id: text(id),
            left: milliseconds(left)?,
            holder: holder(meta),
        },
        other => Key::NotALock(other.to_owned()),
    };
    Ok(Inspected {
        name,
        fence: Option::from_redis_value_ref(fence)?,
        now_ms: u64::from_redis_value_ref(now_ms)?,
        key,
    })
}

/// The names of all locks in use below a prefix, sorted; some may have died without releasing.
pub fn names(link: &mut Link, prefix: &str) -> Result<Vec<Name>, Error> {
    let mut command = redis::cmd("ZRANGE");
    command.arg(index_key(prefix)).arg(0).arg(-1);
    let mut names: Vec<Name> = array(link.query(&command)?)?
        .iter()
        .filter_map(|value| text(value).parse().ok())
        .collect();
    names.sort();
    Ok(names)
}

/// Takes names whose locks are free out of the index.
pub fn forget(link: &mut Link, prefix: &str, names: &[Name]) -> Result<(), Error> {
    let calls: Vec<Call> = names
        .iter()
        .map(|name| {
            let keys = Keys::new(prefix, name);
            Call {
                script: &FORGET,
                keys: vec![keys.lock, keys.index],
                args: vec![name.as_str().into()],
            }
        })
        .collect();
    link.ask_all(&calls).map(drop)
}

fn array(value: Value) -> Result<Vec<Value>, Error> {
    match value {
        Value::Array(fields) => Ok(fields),
        other => Err(odd(&[other])),
    }
}

fn odd(fields: &[Value]) -> Error {
    Error::new(
        Kind::Internal,
        format!("unexpected answer from a script: {fields:?}"),
    )
}

/// A field's text; empty where there is none. Never fails: other clients' bytes may be anything.
fn text(value: &Value) -> String {
    match value {
        Value::BulkString(bytes) => String::from_utf8_lossy(bytes).into_owned(),
        Value::SimpleString(text) => text.clone(),
        _ => String::new(),
    }
}

/// A remaining time as PTTL gives it; `None` for a key without expiry.
fn milliseconds(value: &Value) -> Result<Option<Duration>, Error> {
    Ok(u64::try_from(i64::from_redis_value_ref(value)?)
        .ok()
        .map(Duration::from_millis))
}

fn holder(value: &Value) -> Option<Holder> {
    match value {
        Value::BulkString(entry) => Holder::parse(entry),
        _ => None,
    }
}

fn loss(by: &Value, meta: &Value) -> Loss {
    Loss {
        forced_by: match by {
            Value::BulkString(json) => serde_json::from_slice(json).ok(),
            _ => None,
        },
        holder: holder(meta),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_script_says_what_it_takes_and_the_body_agrees() {
        for (name, script) in [
            ("acquire", &ACQUIRE),
            ("renew", &RENEW),
            ("release", &RELEASE),
            ("force", &FORCE),
            ("inspect", &INSPECT),
            ("forget", &FORGET),
        ] {
            let source = script.source;
            assert!(source.starts_with(&format!("-- {name}: ")), "{name}");
            for kind in ["KEYS", "ARGV"] {
                let header = source
                    .lines()
                    .find_map(|line| line.strip_prefix(&format!("-- {kind}: ")))
                    .unwrap_or_else(|| panic!("{name}: no {kind} in the header"));
                let said = header
                    .split(|c: char| !c.is_ascii_digit())
                    .filter_map(|n| n.parse::<usize>().ok())
                    .max()
                    .unwrap_or(0);
                let used = (1..20)
                    .filter(|n| source.contains(&format!("{kind}[{n}]")))
                    .max()
                    .unwrap_or(0);
                assert_eq!(said, used, "{name}: {kind} in the header and in the body");
            }
            assert!(source.contains("-- Returns: "), "{name}");
            assert_eq!(
                script.hash,
                redis::Script::new(source).get_hash(),
                "{name}: write this hash down"
            );
        }
    }

    #[test]
    fn a_foreign_entry_is_not_a_holder() {
        assert_eq!(Holder::parse(b"\xff\xfe"), None);
        assert_eq!(Holder::parse(b"1 2"), None);
        let holder = Holder::parse(br#"7 8 {"host":"h","pid":3,"later":true}"#).unwrap();
        assert_eq!((holder.fence, holder.since_ms, holder.who.pid), (7, 8, 3));
    }
}
