//! The scripts as they are shipped, and all that the fuzz knows of their arguments, answers and keys.

use redis::Value;

use super::server::text;
use crate::protocol::model::fake::deeds::prolonging;
use crate::protocol::model::support::lua::KEYS;
pub use crate::protocol::model::support::lua::id;

/// The keys of a lock, in the order of KEYS.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Key {
    Lock,
    State,
    Meta,
    Holders,
    Queue,
    Waiters,
    History,
    Index,
    Slots,
    Notices,
}

impl Key {
    pub const ALL: [Self; 10] = [
        Self::Lock,
        Self::State,
        Self::Meta,
        Self::Holders,
        Self::Queue,
        Self::Waiters,
        Self::History,
        Self::Index,
        Self::Slots,
        Self::Notices,
    ];

    pub fn name(self) -> &'static str {
        KEYS[self as usize]
    }
}

const CHANNELS: &str = "{redlock:a}:";
/// How many holds the history keeps.
const REMEMBERED: &str = "50";
/// The limit of a shared request: none.
pub const SHARED: i64 = 1_000_000_000;

pub fn is_group(mark: &str) -> bool {
    mark == "redlock:shared" || mark == "redlock:slots"
}

pub fn is_frozen_mark(mark: &str) -> bool {
    mark == "redlock:frozen"
}

pub fn channel(token: &str) -> String {
    format!("{CHANNELS}{}", id(token))
}

/// A whole number as Redis writes a score, where large ones have an exponent.
#[allow(clippy::cast_possible_truncation)] // Scores are whole, and below 2^53.
pub fn whole(score: &str) -> i64 {
    score.parse::<f64>().unwrap() as i64
}

/// The number of a waiter by its score in the queue.
pub fn ticket(score: i64, priority: i64) -> i64 {
    (score + priority * (1 << 42)).abs()
}

/// What a hold's entry in `meta` says.
pub struct Hold {
    pub fence: i64,
    pub phase: String,
}

/// `<fence> <since> <limit> <slot> <waited> <phase> <who>`, none of the numbers negative.
pub fn hold(entry: &str) -> Option<Hold> {
    let mut words = entry.splitn(7, ' ');
    let fence = words.next()?.parse::<u64>().ok()?;
    for _ in 0..4 {
        words.next()?.parse::<u64>().ok()?;
    }
    let (phase, _ticket) = words
        .next()
        .map(|phase| phase.split_once(':').unwrap_or((phase, "")))?;
    let phase = phase.to_owned();
    let known = ["granted", "held", "kept"].contains(&phase.as_str());
    let fence = i64::try_from(fence).ok()?;
    (known && words.next()?.starts_with('{')).then_some(Hold { fence, phase })
}

/// `<id> <ended> <how> <length of by> <by><entry>`: whose hold it was, its fence, and when it ended.
pub fn record(record: &str) -> Option<(String, i64, i64)> {
    let mut words = record.splitn(5, ' ');
    let id = words.next()?.to_owned();
    let ended = words.next()?.parse().ok()?;
    let _how = words.next()?;
    let length: usize = words.next()?.parse().ok()?;
    let fence = hold(words.next()?.get(length..)?)?.fence;
    Some((id, fence, ended))
}

/// `granted <fence> <slot> <at> <lasting>`: when and for how long, in milliseconds.
pub fn grant(message: &str) -> Option<(i64, i64, i64)> {
    let words: Vec<&str> = message.strip_prefix("granted ")?.split(' ').collect();
    let number = |n: usize| words.get(n)?.parse().ok();
    Some((number(1)?, number(2)?, number(3)?))
}

/// A script with its arguments, or (without one) a plain command.
#[derive(Clone, Debug)]
pub struct Call {
    pub script: Option<&'static str>,
    pub args: Vec<String>,
}

fn script(name: &'static str, args: &[&str]) -> Call {
    let common = ["a", CHANNELS, REMEMBERED];
    let args = common.iter().chain(args).map(|&word| word.to_owned());
    Call {
        script: Some(name),
        args: args.collect(),
    }
}

pub fn command(words: &[&str]) -> Call {
    Call {
        script: None,
        args: words.iter().map(|&word| word.to_owned()).collect(),
    }
}

/// What one client asks for, always the same.
#[derive(Clone, Debug)]
pub struct Wish {
    pub token: String,
    pub who: String,
    pub ttl: i64,
    pub limit: i64,
    pub priority: i64,
    pub lifo: bool,
    /// 0: no run gives up for it, 1: waiters, 2: and holders.
    pub supersede: u8,
    pub number: Option<i64>,
    pub once: i64,
}

/// `place` is as in the script: nothing, "listen" or "poll".
pub fn acquire(wish: &Wish, place: &str, ticket: Option<i64>) -> Call {
    let or_empty = |number: Option<i64>| number.map_or(String::new(), |n| n.to_string());
    script(
        "acquire",
        &[
            &wish.token,
            &wish.ttl.to_string(),
            &wish.limit.to_string(),
            &wish.who,
            place,
            &or_empty(ticket),
            &wish.priority.to_string(),
            if wish.lifo { "lifo" } else { "fifo" },
            &wish.supersede.to_string(),
            &or_empty(wish.number),
            &wish.once.to_string(),
            "0",
        ],
    )
}

/// Whether this is a request of a waiter that knows its ticket.
pub fn tells_ticket(call: &Call) -> bool {
    call.script == Some("acquire") && !call.args[8].is_empty()
}

/// `notify`: the run that tracks the lock is notified, as by `redlock extend`.
pub fn renew(token: &str, ttl: i64, notify: bool) -> Call {
    let notify = if notify { "1" } else { "0" };
    script("renew", &[token, &ttl.to_string(), "", notify])
}

pub fn prolong(token: &str, ttl: i64) -> Call {
    Call {
        script: Some("prolong"),
        args: prolonging(token, &id(token), &ttl.to_string()),
    }
}

pub fn check(token: &str, ttl: i64) -> Call {
    script("check", &[token, &ttl.to_string()])
}

pub fn release(token: &str, early: bool, how: &str, keep: i64) -> Call {
    let early = if early { "1" } else { "0" };
    script("release", &[token, early, how, &keep.to_string()])
}

/// Whether this is the release of a claim under which nothing was done.
pub fn withdraws(call: &Call) -> bool {
    call.script == Some("release") && call.args[5].is_empty()
}

/// Whether this is the release of a run that has succeeded.
pub fn succeeds(call: &Call) -> bool {
    call.script == Some("release") && call.args[5] == "status:0"
}

pub fn force(id: &str, by: &str) -> Call {
    script("force", &[id, by, "0", "0"])
}

pub fn freeze(long: i64, who: &str) -> Call {
    script("freeze", &[&long.to_string(), who])
}

pub fn thaw() -> Call {
    script("thaw", &[])
}

pub fn history() -> Call {
    script("history", &[])
}

pub fn inspect() -> Call {
    Call {
        script: Some("inspect"),
        args: vec!["10".into(), "0".into(), "-inf".into()],
    }
}

pub const PLAIN_RELEASE: &str =
    "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end";

/// A plain client that takes the lock, and one that releases it as such clients do.
pub fn plain_acquire(token: &str, ttl: i64) -> Call {
    command(&["SET", Key::Lock.name(), token, "NX", "PX", &ttl.to_string()])
}

pub fn plain_release(token: &str) -> Call {
    command(&["EVAL", PLAIN_RELEASE, "1", Key::Lock.name(), token])
}

/// What was answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    Held {
        fence: i64,
        slot: i64,
        /// How long ago a run last succeeded, in milliseconds; -1: never.
        success: i64,
    },
    Busy {
        now: i64,
        ahead: i64,
        ticket: Option<i64>,
        polls: bool,
        left: i64,
        /// All in the queue are to look when that time is over.
        all: bool,
    },
    Superseded,
    /// Somebody doesn't want it to run any more.
    Removed,
    /// A run has succeeded this long ago, in milliseconds.
    Enough {
        success: i64,
    },
    /// To a renewal or a check: held for this many more milliseconds.
    Ours {
        left: i64,
    },
    /// To a renewal by the short script: nothing was done.
    Unsure,
    Returned,
    Lost,
    Released,
    Kept {
        left: i64,
    },
    /// To anything that isn't distinguished here.
    Other,
}

/// Reads an answer; an error names what has no exact meaning.
pub fn read(script: Option<&'static str>, value: &Value) -> Result<Answer, String> {
    let odd = || {
        Err(format!(
            "an answer of {script:?} has another form: {value:?}"
        ))
    };
    let Some(script) = script else {
        // A plain client has got the lock.
        let held = Answer::Held {
            fence: 0,
            slot: 0,
            success: -1,
        };
        return Ok(if *value == Value::Okay {
            held
        } else {
            Answer::Other
        });
    };
    if let ("prolong", Value::Int(left)) = (script, value) {
        return Ok(match *left {
            0 => Answer::Unsure,
            left => Answer::Ours { left },
        });
    }
    let Value::Array(fields) = value else {
        return odd();
    };
    let number = |n: usize| text(&fields[n]).parse::<i64>().ok();
    Ok(match (script, fields.as_slice()) {
        ("acquire", [Value::Int(1), _, Value::Int(slot), Value::Int(success)]) => Answer::Held {
            fence: number(1).unwrap_or(-1),
            slot: *slot,
            success: *success,
        },
        (
            "acquire",
            [
                Value::Int(0),
                _,
                Value::Int(ahead),
                _,
                Value::Int(polls),
                Value::Int(left),
                ..,
            ],
        ) => Answer::Busy {
            now: number(1).unwrap_or(-1),
            ahead: *ahead,
            ticket: number(3),
            polls: *polls == 1,
            left: *left,
            all: matches!(fields.get(11), Some(Value::Int(1))),
        },
        ("acquire", [Value::Int(2), _]) => Answer::Superseded,
        ("acquire", [Value::Int(4), _]) => Answer::Removed,
        ("acquire", [Value::Int(3), Value::Int(success)]) => Answer::Enough { success: *success },
        ("renew", [Value::Int(1), Value::Int(left), _, _, _, _])
        | ("check", [Value::Int(1), Value::Int(left), ..]) => Answer::Ours { left: *left },
        ("renew" | "check" | "release", [Value::Int(2)]) => Answer::Returned,
        ("renew" | "check" | "release", [Value::Int(0), ..]) => Answer::Lost,
        ("release", [Value::Int(1 | 5)]) => Answer::Released,
        ("release", [Value::Int(3), Value::Int(left), Value::Int(_)]) => {
            Answer::Kept { left: *left }
        }
        ("force" | "freeze" | "thaw" | "history" | "inspect", [_, ..]) => Answer::Other,
        _ => return odd(),
    })
}
