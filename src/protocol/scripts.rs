//! The scripts, one Lua file per operation, and the readers of their answers.
//!
//! Each answer has one shape: a fixed number of fields, each with its type and its bounds. A reply of any
//! other shape isn't accepted as an answer, because another operation's reply may have been doubled or
//! shifted on its way. Such a reply is an [`Error`] of the kind [`ErrorKind::Unreachable`]. The effect is
//! unknown, so the caller closes the connection and asks again over a fresh one.

use std::time::Duration;

use redis::Value;

use super::who::SLOTS;
pub use crate::server::call::Script;
use crate::server::error::{Error, ErrorKind};
pub(super) use crate::server::reply::{
    array, count, flag, lossy_text, milliseconds, number, number_to, some_text, unexpected_reply,
};

/// Values of the lock's key if several clients hold it (as in `lib/lock.lua`).
pub const SHARED_VALUES: [&[u8]; 2] = [b"redlock:shared", b"redlock:slots"];

/// Longest lease, and longest rest of one: no client can ask for more than a year, even if a clock is set.
const LONGEST_LEASE: Duration = Duration::from_secs(365 * 24 * 3600);

include!(concat!(env!("OUT_DIR"), "/scripts.rs"));

/// All commands that an ACL user for jobs needs.
pub const COMMANDS: &str = "+evalsha +eval +get +set +getrange +unlink +exists +type +pttl +pexpire \
    +time +hget +hmget +hset +hdel +hscan +zadd +zrem +zrange +zrank +zscan +zscore +zcard \
    +zrangebyscore +zremrangebyscore +lpush +ltrim +lrange +publish +subscribe +hello \
    +client|tracking +client|caching +role +info +wait +select";

/// Most parts in which a script does its work: a server that goes on after these is broken or hostile.
const MOST_PARTS: u32 = 10_000;

/// Calls a script, part by part, until a call returns the result.
pub(super) fn in_parts<T>(mut call: impl FnMut() -> Result<Option<T>, Error>) -> Result<T, Error> {
    let result = (0..MOST_PARTS).find_map(|_| call().transpose());
    result.unwrap_or_else(|| {
        let text = format!("the answer from Redis had not ended after {MOST_PARTS} parts");
        Err(Error::new(ErrorKind::Unreachable, text))
    })
}

/// Reads the public id of a token: the digits of [`super::Token::id`], or nothing.
pub(super) fn id(value: &Value) -> Result<String, Error> {
    let id = lossy_text(value);
    if !is_id(&id) || !matches!(value, Value::BulkString(_)) {
        return Err(unexpected_reply(std::slice::from_ref(value)));
    }
    Ok(id)
}

/// Returns true if a text can be the public id of a token.
pub(super) fn is_id(text: &str) -> bool {
    text.len() <= 40 && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// Reads the cursor of a list: a number, after a parenthesis if it is an exclusive score. Empty at the end of
/// the list.
pub(super) fn cursor(value: &Value) -> Result<Vec<u8>, Error> {
    let is_part = |byte: &u8| byte.is_ascii_digit() || b"(-+.e".contains(byte);
    match value {
        Value::BulkString(bytes) if bytes.len() <= 40 && bytes.iter().all(is_part) => {
            Ok(bytes.clone())
        }
        other => Err(unexpected_reply(std::slice::from_ref(other))),
    }
}

/// Reads the slot of a holder; 0 for holders without one.
pub(super) fn slot(value: &Value) -> Result<u32, Error> {
    Ok(u32::try_from(number_to(SLOTS.into(), value)?).unwrap_or(SLOTS))
}

/// Reads the rest of a lease; zero if another client has removed the key's expiry.
pub(super) fn left(value: &Value) -> Result<Duration, Error> {
    let left = milliseconds(value)?.unwrap_or_default();
    if left > LONGEST_LEASE {
        return Err(unexpected_reply(std::slice::from_ref(value)));
    }
    Ok(left)
}

/// Returns the result of `parse` for an entry; `None` without an entry, or if `parse` rejects it.
pub(super) fn entry<T>(
    value: &Value,
    parse: impl Fn(&[u8]) -> Option<T>,
) -> Result<Option<T>, Error> {
    Ok(some_text(value)?.and_then(parse))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::fs;
    use std::path::PathBuf;

    use super::super::who::{Frozen, Holder, Waiter, Who};
    use super::*;

    fn text(text: &str) -> Value {
        Value::BulkString(text.as_bytes().to_vec())
    }

    /// Returns the paths of all Lua files, with their texts.
    fn lua_files() -> impl Iterator<Item = (PathBuf, String)> {
        let folders = ["src/protocol", "src/protocol/lib"].map(|path| fs::read_dir(path).unwrap());
        let paths = folders.into_iter().flatten();
        let paths = paths.map(|entry| entry.unwrap().path());
        let paths = paths.filter(|path| path.extension().is_some_and(|it| it == "lua"));
        paths.map(|path| (path.clone(), fs::read_to_string(path).unwrap()))
    }

    #[test]
    fn the_rules_are_those_of_the_manual_and_include_each_command_of_a_script() {
        let manual = fs::read_to_string("man/redlock-servers.7").unwrap();
        let (_, rules) = manual.split_once("SETUSER jobs").unwrap();
        let (rules, rest) = rules.split_once(".fi").unwrap();
        let words = |text: &str| -> BTreeSet<String> {
            let words = text.split(|c: char| c.is_whitespace() || c == '\\');
            let words = words.map(|word| word.trim_start_matches("(aq").to_lowercase());
            words.filter(|word| word.starts_with('+')).collect()
        };
        let permitted = words(COMMANDS);
        assert_eq!(permitted, words(rules));
        for rule in crate::server::cluster::RULES.split(' ') {
            assert!(rest.contains(rule), "{rule}");
        }
        let mut called = 0;
        for (path, text) in lua_files() {
            for call in text.split("call('").skip(1) {
                let rule = format!("+{}", call.split('\'').next().unwrap().to_lowercase());
                assert!(permitted.contains(&rule), "{}: {rule}", path.display());
                called += 1;
            }
        }
        assert!(called > 100);
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
    fn a_list_goes_on_at_a_score_of_at_most_40_characters() {
        let long = "1".repeat(40);
        for place in ["", "7", "(1.5e+10", "-3", &long] {
            assert_eq!(cursor(&text(place)).unwrap(), place.as_bytes());
        }
        for other in ["7 8", "x", &format!("{long}1")] {
            assert!(cursor(&text(other)).is_err(), "{other}");
        }
        assert!(cursor(&Value::Int(7)).is_err());
    }

    #[test]
    fn a_time_is_in_milliseconds_and_what_is_left_of_a_lease_is_at_most_a_year() {
        let ms = Duration::from_millis;
        let year = 365 * 24 * 3600 * 1000;
        assert_eq!(milliseconds(&Value::Int(-1)).ok(), Some(None));
        assert_eq!(milliseconds(&Value::Int(-2)).ok(), None);
        assert_eq!(milliseconds(&Value::Int(5)).ok(), Some(Some(ms(5))));
        // Another client's key may last for longer than a lease.
        let long = milliseconds(&Value::Int(i64::MAX)).ok();
        assert_eq!(long, Some(Some(ms(i64::MAX.unsigned_abs()))));
        assert_eq!(left(&Value::Int(-1)).ok(), Some(Duration::ZERO));
        assert_eq!(left(&Value::Int(5)).ok(), Some(ms(5)));
        let longest = left(&Value::Int(year));
        assert_eq!(longest.ok(), Some(ms(year.unsigned_abs())));
        assert_eq!(left(&Value::Int(year + 1)).ok(), None);
    }

    #[test]
    fn entries_are_read_where_they_are_and_are_ours() {
        let run = r#"{"host":"h","user":"u","pid":1,"command":["c"]}"#;
        let who = |value: &Value| entry(value, Who::parse);
        let holder = |value: &Value| entry(value, Holder::parse);
        let frozen = |value: &Value| entry(value, Frozen::parse);
        let waiter = |value: &Value| entry(value, Waiter::parse);
        for (value, is_one) in [(text(run), true), (Value::Nil, false), (text("x"), false)] {
            assert_eq!(who(&value).unwrap().is_some(), is_one);
        }
        let held = text(&format!("12 1000 1 1 0 held {run}"));
        assert_eq!(holder(&held).unwrap().unwrap().fence, 12);
        let freeze = text(&format!("9000 500 {run}"));
        assert_eq!(frozen(&freeze).unwrap().unwrap().until_ms, 9_000);
        let queued = text(&format!("9000:2000 1 1000 1 {run}"));
        assert_eq!(waiter(&queued).unwrap().unwrap().who.host, "h");
        assert!(holder(&Value::Nil).unwrap().is_none());
        assert!(frozen(&Value::Nil).unwrap().is_none());
        assert!(waiter(&Value::Nil).unwrap().is_none());
        for wrong in [Value::Int(1), Value::Okay] {
            assert!(who(&wrong).is_err() && holder(&wrong).is_err() && waiter(&wrong).is_err());
            assert!(frozen(&wrong).is_err());
        }
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

    /// Returns the numbers n of all KIND[n] in a text.
    fn numbers(kind: &str, text: &str) -> BTreeSet<u32> {
        let start = format!("{kind}[");
        let parts = text.split(&start).skip(1);
        parts
            .filter_map(|part| part.split_once(']')?.0.parse().ok())
            .collect()
    }

    #[test]
    fn every_script_says_what_it_takes_and_the_body_agrees() {
        for (path, text) in lua_files() {
            let name = path.file_stem().unwrap().to_str().unwrap();
            let is_comment = |line: &&str| line.starts_with("--");
            let header: Vec<&str> = text.lines().take_while(is_comment).collect();
            let body = text
                .lines()
                .skip(header.len())
                .collect::<Vec<_>>()
                .join("\n");
            if !path.starts_with("src/protocol/lib") {
                assert!(header[0].starts_with(&format!("-- {name}: ")), "{name}");
                let returns = |line: &&str| line.starts_with("-- Returns ");
                assert_eq!(
                    header.iter().filter(|line| returns(line)).count(),
                    1,
                    "{name}"
                );
            }
            for kind in ["KEYS", "ARGV"] {
                let is_key_line = |line: &&&str| line.starts_with(&format!("-- {kind}["));
                let lines: Vec<&str> = header.iter().filter(is_key_line).copied().collect();
                assert_eq!(
                    numbers(kind, &lines.join("\n")),
                    numbers(kind, &body),
                    "{name}: {kind} in the header, a line each, and in the body"
                );
            }
        }
    }
}
