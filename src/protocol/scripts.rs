//! The scripts, one Lua file an operation, and how their answers are read.
//!
//! Each answer has one shape: a fixed number of fields, each with its type and its bounds. A reply of any
//! other shape doesn't count as an answer, and it is unknown what was done: another operation's reply that
//! was doubled or shifted on its way must not pass for this one's. That is an [`Error`] of the kind
//! [`ErrorKind::Unreachable`]; the caller gives the connection up, and asks again over a fresh one.

use std::time::Duration;

use redis::Value;

use super::{Error, ErrorKind, Frozen, Holder, Restarted, Waiter, Who};
use crate::redis::error::quoted;

/// The largest number of ours: above it, Lua's numbers have gaps. Fences are below it until the year
/// 2255, moments in milliseconds for longer than that.
pub const MOST: u64 = 1 << 53;

/// The most holders of a lock that count as slots, and so the largest slot.
pub const SLOTS: u32 = 9999;

/// The values of the key of a lock that several clients hold (`lib/lock.lua` has the same).
pub const SHARED_VALUES: [&[u8]; 2] = [b"redlock:shared", b"redlock:slots"];

/// The longest that a lease of ours, or what is left of it, can be: no client can ask for more than a
/// year, and a clock that is set can't give more.
const LONGEST_LEASE: Duration = Duration::from_secs(365 * 24 * 3600);

/// A Lua script, joined with what it includes, and its SHA-1, by which it is called.
pub struct Script {
    pub source: &'static str,
    pub hash: &'static str,
}

include!(concat!(env!("OUT_DIR"), "/scripts.rs"));

/// In how many parts a script does its work at most: a server that never comes to an end lies.
pub(super) const MOST_PARTS: u32 = 10_000;

/// The error where that is not enough.
pub(super) fn endless() -> Error {
    let text = format!("Redis hasn't come to an end after {MOST_PARTS} parts of an answer");
    Error::new(ErrorKind::Unreachable, text)
}

pub(super) fn array(value: Value) -> Result<Vec<Value>, Error> {
    match value {
        Value::Array(fields) => Ok(fields),
        other => Err(unexpected_reply(&[other])),
    }
}

/// The error for an answer of an unexpected form.
pub(super) fn unexpected_reply(fields: &[Value]) -> Error {
    let shape = quoted(&fields.iter().map(shape).collect::<Vec<_>>().join(", ")).into_owned();
    Error::new(
        ErrorKind::Unreachable,
        format!("Redis gave an answer that doesn't fit the question: [{shape}]"),
    )
}

/// A field as a message shows it: enough to see what was answered, and nothing that a client has stored.
fn shape(field: &Value) -> String {
    match field {
        Value::Nil => "nil".into(),
        Value::Int(number) => number.to_string(),
        Value::BulkString(bytes) => format!("{} bytes", bytes.len()),
        Value::Array(fields) => format!("{} fields", fields.len()),
        Value::Okay | Value::SimpleString(_) | Value::VerbatimString { .. } => "a word".into(),
        Value::Map(_) | Value::Attribute { .. } | Value::Set(_) | Value::Push { .. } => {
            "a collection".into()
        }
        Value::ServerError(_) => "an error".into(),
        // The type is the crate's, and may grow.
        _ => "another value".into(),
    }
}

/// A field's text; empty where there is none. Never fails: other clients' bytes may be anything.
pub fn lossy_text(value: &Value) -> String {
    match value {
        Value::BulkString(bytes) => String::from_utf8_lossy(bytes).into_owned(),
        Value::SimpleString(text) => text.clone(),
        _ => String::new(),
    }
}

/// What others call a token: the digits of [`super::Token::id`], or nothing.
pub(super) fn id(value: &Value) -> Result<String, Error> {
    let id = lossy_text(value);
    if !is_id(&id) || !matches!(value, Value::BulkString(_)) {
        return Err(unexpected_reply(std::slice::from_ref(value)));
    }
    Ok(id)
}

/// Whether a text can be what others call a token.
pub(super) fn is_id(text: &str) -> bool {
    text.len() <= 40 && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// Where a list goes on: a number in digits, with a parenthesis before a score that isn't part of it; empty: nowhere.
pub(super) fn cursor(value: &Value) -> Result<Vec<u8>, Error> {
    let is_part = |byte: &u8| byte.is_ascii_digit() || b"(-+.e".contains(byte);
    match value {
        Value::BulkString(bytes) if bytes.len() <= 40 && bytes.iter().all(is_part) => {
            Ok(bytes.clone())
        }
        other => Err(unexpected_reply(std::slice::from_ref(other))),
    }
}

/// A whole number from 0 to `most`, whether it comes as one or as digits.
pub(super) fn number_to(most: u64, value: &Value) -> Result<u64, Error> {
    let number = match value {
        Value::Int(number) => u64::try_from(*number).ok(),
        Value::BulkString(digits) if digits.iter().all(u8::is_ascii_digit) => {
            std::str::from_utf8(digits)
                .ok()
                .and_then(|digits| digits.parse().ok())
        }
        _ => None,
    };
    number
        .filter(|number| *number <= most)
        .ok_or_else(|| unexpected_reply(std::slice::from_ref(value)))
}

/// A fence, a ticket or a moment.
pub(super) fn number(value: &Value) -> Result<u64, Error> {
    number_to(MOST, value)
}

/// A count of holders, waiters and the like.
pub fn count(value: &Value) -> Result<u32, Error> {
    let most = 1_000_000_000_u32;
    Ok(u32::try_from(number_to(most.into(), value)?).unwrap_or(most))
}

/// The number of a holder among several; 0 for those that have none.
pub(super) fn slot(value: &Value) -> Result<u32, Error> {
    Ok(u32::try_from(number_to(SLOTS.into(), value)?).unwrap_or(SLOTS))
}

/// Whether something is so: 1 or 0.
pub(super) fn flag(value: &Value) -> Result<bool, Error> {
    Ok(number_to(1, value)? == 1)
}

/// A remaining time as PTTL gives it; `None` for a key without expiry. It may be another client's key.
pub(super) fn milliseconds(value: &Value) -> Result<Option<Duration>, Error> {
    match value {
        Value::Int(-1) => Ok(None),
        other => {
            let most = i64::MAX.unsigned_abs();
            Ok(Some(Duration::from_millis(number_to(most, other)?)))
        }
    }
}

/// What is left of a lease of ours; none where another client has removed the key's expiry.
pub(super) fn left(value: &Value) -> Result<Duration, Error> {
    let left = milliseconds(value)?.unwrap_or_default();
    if left > LONGEST_LEASE {
        return Err(unexpected_reply(std::slice::from_ref(value)));
    }
    Ok(left)
}

/// How long ago something was; `None`: never. Neither does a clock that was set back know.
pub(super) fn ago(value: &Value) -> Result<Option<Duration>, Error> {
    match value {
        Value::Int(..0) => Ok(None),
        other => Ok(Some(Duration::from_millis(number(other)?))),
    }
}

/// Text that may be absent.
pub(super) fn some_text(value: &Value) -> Result<Option<&[u8]>, Error> {
    match value {
        Value::Nil => Ok(None),
        Value::BulkString(bytes) => Ok(Some(bytes)),
        other => Err(unexpected_reply(std::slice::from_ref(other))),
    }
}

/// The client that did something, if its entry can be read.
pub(super) fn who(value: &Value) -> Result<Option<Who>, Error> {
    Ok(some_text(value)?.and_then(Who::parse))
}

/// The entry of a holder; `None` where there is none, and for one that isn't ours.
pub(super) fn holder(value: &Value) -> Result<Option<Holder>, Error> {
    Ok(some_text(value)?.and_then(Holder::parse))
}

pub(super) fn frozen(value: &Value) -> Result<Option<Frozen>, Error> {
    Ok(some_text(value)?.and_then(Frozen::parse))
}

pub(super) fn restarted(value: &Value) -> Result<Option<Restarted>, Error> {
    Ok(some_text(value)?.and_then(Restarted::parse))
}

pub(super) fn waiter(value: &Value) -> Result<Option<Waiter>, Error> {
    Ok(some_text(value)?.and_then(Waiter::parse))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::fs;
    use std::path::Path;

    use super::*;

    fn text(text: &str) -> Value {
        Value::BulkString(text.as_bytes().to_vec())
    }

    #[test]
    fn a_number_is_digits_within_its_bounds_and_nothing_else() {
        let most = 9_007_199_254_740_992;
        for (value, expected) in [
            (Value::Int(0), Some(0)),
            (Value::Int(most), Some(most.unsigned_abs())),
            (Value::Int(most + 1), None),
            (Value::Int(-1), None),
            (text("12"), Some(12)),
            (text("9007199254740992"), Some(most.unsigned_abs())),
            (text("9007199254740993"), None),
            (text(""), None),
            (text("-1"), None),
            (text("+1"), None),
            (text("1.0"), None),
            (text("99999999999999999999"), None),
            (Value::Nil, None),
            (Value::SimpleString("1".into()), None),
        ] {
            assert_eq!(number(&value).ok(), expected, "{value:?}");
        }
        assert_eq!(count(&Value::Int(1_000_000_000)).ok(), Some(1_000_000_000));
        assert_eq!(count(&Value::Int(1_000_000_001)).ok(), None);
        assert_eq!(slot(&Value::Int(9_999)).ok(), Some(9_999));
        assert_eq!(slot(&Value::Int(10_000)).ok(), None);
        let flags = [0, 1, 2].map(|number| flag(&Value::Int(number)).ok());
        assert_eq!(flags, [Some(false), Some(true), None]);
    }

    #[test]
    fn a_time_is_in_milliseconds_and_what_is_left_of_a_lease_is_at_most_a_year() {
        let ms = Duration::from_millis;
        let year = 365 * 24 * 3600 * 1000;
        assert_eq!(milliseconds(&Value::Int(-1)).ok(), Some(None));
        assert_eq!(milliseconds(&Value::Int(-2)).ok(), None);
        assert_eq!(milliseconds(&Value::Int(5)).ok(), Some(Some(ms(5))));
        // Another client's key may last for longer than ours.
        let long = milliseconds(&Value::Int(i64::MAX)).ok();
        assert_eq!(long, Some(Some(ms(i64::MAX.unsigned_abs()))));
        assert_eq!(left(&Value::Int(-1)).ok(), Some(Duration::ZERO));
        assert_eq!(left(&Value::Int(5)).ok(), Some(ms(5)));
        let longest = left(&Value::Int(year));
        assert_eq!(longest.ok(), Some(ms(year.unsigned_abs())));
        assert_eq!(left(&Value::Int(year + 1)).ok(), None);
        assert_eq!(ago(&Value::Int(-5)).ok(), Some(None));
        assert_eq!(ago(&Value::Int(0)).ok(), Some(Some(Duration::ZERO)));
        assert_eq!(ago(&Value::Int(7)).ok(), Some(Some(ms(7))));
        assert_eq!(ago(&Value::Nil).ok(), None);
    }

    #[test]
    fn text_may_be_absent_and_what_is_none_is_no_text() {
        assert_eq!(some_text(&Value::Nil).ok(), Some(None));
        assert_eq!(some_text(&text("a")).ok(), Some(Some(&b"a"[..])));
        assert_eq!(some_text(&Value::Int(1)).ok(), None);
        assert_eq!(lossy_text(&text("a")), "a");
        assert_eq!(lossy_text(&Value::SimpleString("b".into())), "b");
        assert_eq!(lossy_text(&Value::Int(1)), "");
    }

    #[test]
    fn entries_are_read_where_they_are_and_are_ours() {
        let run = r#"{"host":"h","user":"u","pid":1,"command":["c"]}"#;
        for (entry, is_one) in [(text(run), true), (Value::Nil, false), (text("x"), false)] {
            assert_eq!(who(&entry).unwrap().is_some(), is_one);
        }
        let held = text(&format!("12 1000 1 1 0 held {run}"));
        assert_eq!(holder(&held).unwrap().unwrap().fence, 12);
        let freeze = text(&format!("9000 500 {run}"));
        assert_eq!(frozen(&freeze).unwrap().unwrap().until_ms, 9_000);
        let restart = text("8000 400");
        assert_eq!(restarted(&restart).unwrap().unwrap().since_ms, 400);
        let queued = text(&format!("9000:500:1 1 1000 0 1 {run}"));
        assert_eq!(waiter(&queued).unwrap().unwrap().who.host, "h");
        assert!(holder(&Value::Nil).unwrap().is_none());
        assert!(frozen(&Value::Nil).unwrap().is_none());
        assert!(restarted(&Value::Nil).unwrap().is_none());
        assert!(waiter(&Value::Nil).unwrap().is_none());
        for wrong in [Value::Int(1), Value::Okay] {
            assert!(who(&wrong).is_err() && holder(&wrong).is_err() && waiter(&wrong).is_err());
            assert!(frozen(&wrong).is_err() && restarted(&wrong).is_err());
        }
    }

    #[test]
    fn an_answer_that_does_not_fit_is_described_without_what_a_client_has_stored() {
        let answer = [
            Value::Nil,
            Value::Int(5),
            text("secret"),
            Value::Array(vec![Value::Nil; 2]),
            Value::Okay,
            Value::SimpleString("secret".into()),
            Value::Set(Vec::new()),
            Value::Boolean(true),
            redis::parse_redis_value(b"-ERR secret\r\n").unwrap(),
        ];
        let error = unexpected_reply(&answer);
        assert_eq!(error.kind, ErrorKind::Unreachable);
        let said = error.to_string();
        let expected =
            "[nil, 5, 6 bytes, 2 fields, a word, a word, a collection, another value, an error]";
        assert!(said.contains(expected), "{said}");
        assert!(!said.contains("secret"), "{said}");
        assert!(array(Value::Int(1)).is_err());
        assert_eq!(array(Value::Array(Vec::new())).unwrap(), []);
    }

    #[test]
    fn what_others_call_a_token_drives_no_terminal() {
        let read = |text: &[u8]| id(&Value::BulkString(text.to_vec()));
        assert_eq!(read(b"c0ffee000001").unwrap(), "c0ffee000001");
        assert_eq!(read(b"").unwrap(), "");
        for text in [&b"c0\x1b[2Jee"[..], b"\xff", b"\0", &[b'a'; 41]] {
            assert!(read(text).is_err(), "{text:?}");
        }
        assert!(id(&Value::Int(7)).is_err());
    }

    /// The numbers n of all KIND[n] in a text.
    fn numbers(kind: &str, text: &str) -> BTreeSet<u32> {
        let start = format!("{kind}[");
        let parts = text.split(&start).skip(1);
        parts
            .filter_map(|part| part.split_once(']')?.0.parse().ok())
            .collect()
    }

    #[test]
    fn every_script_says_what_it_takes_and_the_body_agrees() {
        let directory = Path::new("src/protocol");
        for folder in [directory, &directory.join("lib")] {
            for entry in fs::read_dir(folder).unwrap() {
                let path = entry.unwrap().path();
                if path.extension().is_none_or(|extension| extension != "lua") {
                    continue;
                }
                let name = path.file_stem().unwrap().to_str().unwrap();
                let text = fs::read_to_string(&path).unwrap();
                let is_comment = |line: &&str| line.starts_with("--");
                let header: Vec<&str> = text.lines().take_while(is_comment).collect();
                let body = text
                    .lines()
                    .skip(header.len())
                    .collect::<Vec<_>>()
                    .join("\n");
                if folder == directory {
                    assert!(header[0].starts_with(&format!("-- {name}: ")), "{name}");
                    let returns = |line: &&str| line.starts_with("-- Returns ");
                    assert_eq!(
                        header.iter().filter(|line| returns(line)).count(),
                        1,
                        "{name}"
                    );
                }
                for kind in ["KEYS", "ARGV"] {
                    let said = |line: &&&str| line.starts_with(&format!("-- {kind}["));
                    let lines: Vec<&str> = header.iter().filter(said).copied().collect();
                    assert_eq!(
                        numbers(kind, &lines.join("\n")),
                        numbers(kind, &body),
                        "{name}: {kind} in the header, a line each, and in the body"
                    );
                }
            }
        }
    }
}
