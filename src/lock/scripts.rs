//! The scripts, one Lua file an operation, and how their answers are read.

use std::time::Duration;

use redis::{FromRedisValue, Value};

use super::{Error, Frozen, Holder, Kind, Waiter};

/// A Lua script and its SHA-1, by which it is called. The hash is written down, and checked by a
/// test, because computing it takes a fiftieth of a short run.
pub(super) struct Script {
    pub(super) source: &'static str,
    pub(super) hash: &'static str,
}

/// A script that begins with what `promote.lua` defines, in the function that it opens.
macro_rules! with_promote {
    ($file:literal) => {
        concat!(include_str!("promote.lua"), include_str!($file), "end)()\n")
    };
}

pub(super) static ACQUIRE: Script = Script {
    source: with_promote!("acquire.lua"),
    hash: "c1987ce23b0d36d5e8f0d923a4a3a8bb9c42b433",
};
pub(super) static RENEW: Script = Script {
    source: with_promote!("renew.lua"),
    hash: "c15b46622057cadfd81e0f8433104f1948cca6b2",
};
pub(super) static CHECK: Script = Script {
    source: with_promote!("check.lua"),
    hash: "13d314f357abf3bfc92658db389b75d031405021",
};
pub(super) static RELEASE: Script = Script {
    source: with_promote!("release.lua"),
    hash: "11c09ccd8e227c4a2331ab79d52861f9e8a7958c",
};
pub(super) static FORCE: Script = Script {
    source: with_promote!("force.lua"),
    hash: "9c7d02e0e4cadec40c2a2912abf2420ed0d010c0",
};
pub(super) static FREEZE: Script = Script {
    source: with_promote!("freeze.lua"),
    hash: "6675bccc670f27b34cc7872dfcaf510da34c4fce",
};
pub(super) static THAW: Script = Script {
    source: with_promote!("thaw.lua"),
    hash: "c31869059f0e9cdd5ba243ac20edb9267511cfa8",
};
pub(super) static HISTORY: Script = Script {
    source: with_promote!("history.lua"),
    hash: "dcf05d4768933f07b8a43d2dd1a557238bc81ba1",
};
pub(super) static INSPECT: Script = Script {
    source: include_str!("inspect.lua"),
    hash: "57917dcd7b33b7c92a1bc30b084a79c2d553d3b7",
};

pub(super) fn array(value: Value) -> Result<Vec<Value>, Error> {
    match value {
        Value::Array(fields) => Ok(fields),
        other => Err(odd(&[other])),
    }
}

/// The error for an answer of an unexpected form.
pub(super) fn odd(fields: &[Value]) -> Error {
    Error::new(
        Kind::Internal,
        format!("unexpected answer from a script: {fields:?}"),
    )
}

/// A field's text; empty where there is none. Never fails: other clients' bytes may be anything.
pub(super) fn text(value: &Value) -> String {
    match value {
        Value::BulkString(bytes) => String::from_utf8_lossy(bytes).into_owned(),
        Value::SimpleString(text) => text.clone(),
        _ => String::new(),
    }
}

/// A whole number, whether it comes as one or as text.
pub(super) fn number<T: FromRedisValue>(value: &Value) -> Result<T, Error> {
    Ok(T::from_redis_value_ref(value)?)
}

/// A remaining time as PTTL gives it; `None` for a key without expiry.
pub(super) fn milliseconds(value: &Value) -> Result<Option<Duration>, Error> {
    Ok(u64::try_from(number::<i64>(value)?)
        .ok()
        .map(Duration::from_millis))
}

pub(super) fn holder(value: &Value) -> Option<Holder> {
    match value {
        Value::BulkString(entry) => Holder::parse(entry),
        _ => None,
    }
}

pub(super) fn frozen(value: &Value) -> Option<Frozen> {
    match value {
        Value::BulkString(entry) => Frozen::parse(entry),
        _ => None,
    }
}

pub(super) fn waiter(value: &Value) -> Option<Waiter> {
    match value {
        Value::BulkString(entry) => Waiter::parse(entry),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The largest n for which KIND[n] (or in a header, n) is spoken of.
    fn last_of(kind: &str, text: &str, header: bool) -> usize {
        if header {
            let list = text
                .lines()
                .find_map(|line| line.strip_prefix(&format!("-- {kind}: ")))
                .unwrap_or_else(|| panic!("no {kind} in the header of {text}"));
            // Numbers in parentheses are values.
            let outside = list.split('(').map(|part| part.rsplit(')').next().unwrap());
            return outside
                .flat_map(|part| part.split(|c: char| !c.is_ascii_digit()))
                .filter_map(|n| n.parse().ok())
                .max()
                .unwrap_or(0);
        }
        (1..20)
            .filter(|n| text.contains(&format!("{kind}[{n}]")))
            .max()
            .unwrap_or(0)
    }

    #[test]
    fn every_script_says_what_it_takes_and_the_body_agrees() {
        for (name, source) in [
            ("promote", include_str!("promote.lua")),
            ("acquire", include_str!("acquire.lua")),
            ("renew", include_str!("renew.lua")),
            ("check", include_str!("check.lua")),
            ("release", include_str!("release.lua")),
            ("force", include_str!("force.lua")),
            ("freeze", include_str!("freeze.lua")),
            ("thaw", include_str!("thaw.lua")),
            ("history", include_str!("history.lua")),
            ("inspect", include_str!("inspect.lua")),
        ] {
            assert!(source.starts_with(&format!("-- {name}: ")), "{name}");
            assert!(source.contains("-- Returns: "), "{name}");
            for kind in ["KEYS", "ARGV"] {
                assert_eq!(
                    last_of(kind, source, true),
                    last_of(kind, source, false),
                    "{name}: {kind} in the header and in the body"
                );
            }
        }
    }

    #[test]
    fn every_hash_is_that_of_its_script() {
        let scripts = [
            &ACQUIRE, &RENEW, &CHECK, &RELEASE, &FORCE, &FREEZE, &THAW, &HISTORY, &INSPECT,
        ];
        let right: Vec<String> = scripts
            .iter()
            .map(|script| redis::Script::new(script.source).get_hash().to_owned())
            .collect();
        let written: Vec<&str> = scripts.iter().map(|script| script.hash).collect();
        assert_eq!(written, right, "write these hashes down");
    }
}
