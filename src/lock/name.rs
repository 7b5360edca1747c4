//! The name of a lock, and the keys it uses. Pure.

use std::fmt;

/// A lock's name: 1–200 bytes of UTF-8 without white space, control characters or unbalanced
/// braces (Redis Cluster reads braces as a hash tag).
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Name(String);

/// The longest name in bytes.
const LONGEST: usize = 200;

impl Name {
    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl std::str::FromStr for Name {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        if name.is_empty() {
            return Err("a lock's name can't be empty".into());
        }
        if name.len() > LONGEST {
            return Err(format!(
                "a lock's name has at most {LONGEST} bytes, this one has {}",
                name.len()
            ));
        }
        if name.chars().any(|c| c.is_control() || c.is_whitespace()) {
            return Err("a lock's name can't contain white space or control characters".into());
        }
        let mut open = 0_i32;
        for c in name.chars() {
            open += i32::from(c == '{') - i32::from(c == '}');
            if open < 0 {
                break;
            }
        }
        if open != 0 {
            return Err("the braces in a lock's name must be balanced".into());
        }
        Ok(Self(name.to_owned()))
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The keys of one lock, all in one hash slot.
#[derive(Clone, Debug)]
pub(super) struct Keys {
    /// The lock itself: prefix and name, a string that holds the token.
    pub(super) lock: Vec<u8>,
    pub(super) state: Vec<u8>,
    pub(super) meta: Vec<u8>,
    pub(super) holders: Vec<u8>,
    pub(super) queue: Vec<u8>,
    pub(super) waiters: Vec<u8>,
    pub(super) history: Vec<u8>,
    /// What the channel of each waiter begins with.
    pub(super) channels: Vec<u8>,
    /// The names of the locks in use below this prefix.
    pub(super) index: Vec<u8>,
}

impl Keys {
    pub(super) fn new(prefix: &str, name: &Name) -> Self {
        let lock = format!("{prefix}{name}");
        let tag = match hash_tag(&lock) {
            Some(tag) => format!("{{{tag}}}:{lock}"),
            None => format!("{{{lock}}}"),
        };
        Self {
            state: format!("{tag}:state").into(),
            meta: format!("{tag}:meta").into(),
            holders: format!("{tag}:holders").into(),
            queue: format!("{tag}:queue").into(),
            waiters: format!("{tag}:waiters").into(),
            history: format!("{tag}:history").into(),
            channels: format!("{tag}:").into(),
            index: index_key(prefix),
            lock: lock.into(),
        }
    }
}

/// The key of the index of all names below a prefix.
pub(super) fn index_key(prefix: &str) -> Vec<u8> {
    format!("{{{prefix}}}:index").into()
}

/// The key of the note that the job with this hold waits for something.
pub(super) fn blocked_key(prefix: &str, hold: &str) -> Vec<u8> {
    format!("{{{prefix}}}:blocked:{hold}").into()
}

/// What Redis Cluster hashes of a key: the text between the first `{` and the next `}`.
fn hash_tag(key: &str) -> Option<&str> {
    let inner = &key[key.find('{')? + 1..];
    let tag = &inner[..inner.find('}')?];
    (!tag.is_empty()).then_some(tag)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(name: &str) -> bool {
        name.parse::<Name>().is_err()
    }

    #[test]
    fn names_of_the_contract() {
        for name in [
            "a",
            "deploy:prod",
            "é",
            "a/b",
            "x{tag}y",
            "{a}{b}",
            &"n".repeat(200),
        ] {
            assert!(!refused(name), "{name}");
        }
        for name in [
            "",
            "a b",
            "a\tb",
            "a\u{1b}[2J",
            "a{",
            "}a{",
            "a\u{a0}b",
            &"n".repeat(201),
        ] {
            assert!(refused(name), "{name}");
        }
    }

    #[test]
    fn all_keys_of_a_lock_share_its_hash_slot() {
        let keys = Keys::new("redlock:", &"deploy".parse().unwrap());
        assert_eq!(keys.lock, b"redlock:deploy");
        assert_eq!(keys.state, b"{redlock:deploy}:state");
        let keys = Keys::new("redlock:", &"a{b}c".parse().unwrap());
        assert_eq!(keys.meta, b"{b}:redlock:a{b}c:meta");
        assert_eq!(
            hash_tag("{b}:redlock:a{b}c:meta"),
            hash_tag("redlock:a{b}c")
        );
    }
}
