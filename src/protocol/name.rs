//! The name of a lock, and the keys it uses. Pure.

use std::fmt;

use crate::pattern::is_pattern;
use crate::server::slot::{hash_slot, hash_tag, key_of_prefix, number_in};

/// A lock's name: 1–200 bytes of UTF-8 without white space, control characters, `*`, `?` or unbalanced braces
/// (Redis Cluster reads braces as a hash tag). A name doesn't begin with a dash, because whoever may write to
/// Redis chooses names, and a program would take such a name for an option.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Name(String);

/// Longest name, in bytes.
const LONGEST: usize = 200;

impl Name {
    /// Returns the name as text.
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
        if is_pattern(name) {
            return Err("a lock's name can't contain * or ?".into());
        }
        // xargs removes these characters.
        if name.trim_start_matches(['"', '\'', '\\']).starts_with('-') {
            return Err("a lock's name can't begin with -, nor with quotes or backslashes before a -: other programs would take it for an option; put another character first".into());
        }
        let open = name.chars().try_fold(0_u32, |open, c| match c {
            '{' => Some(open + 1),
            '}' => open.checked_sub(1),
            _ => Some(open),
        });
        if open != Some(0) {
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

/// The keys of one lock, all in one hash slot. The index is in that slot only if the prefix has a hash tag.
#[derive(Clone, Debug)]
pub(super) struct Keys {
    /// Key of the lock itself, prefix and name: a string that contains the token.
    pub(super) lock: Vec<u8>,
    /// Beginning of all other keys, and of each waiter's channel.
    start: String,
    /// Key of the index: the names of the locks in use below this prefix.
    pub(super) index: Vec<u8>,
}

impl Keys {
    pub(super) fn new(prefix: &str, name: &Name) -> Self {
        let lock = format!("{prefix}{name}");
        let tag = match hash_tag(&lock) {
            Some(tag) => format!("{{{tag}}}:{lock}"),
            None if !lock.contains('}') => format!("{{{lock}}}"),
            // Redis hashes the whole lock's key here, but as a tag it would read only the beginning. So the
            // tag is a number with the same hash slot.
            None => format!("{{{}}}:{lock}", number_in(hash_slot(lock.as_bytes()))),
        };
        Self {
            start: format!("{tag}:"),
            index: index_key(prefix),
            lock: lock.into(),
        }
    }

    /// Returns the key of this kind of data, or the channel of the waiter with this id.
    pub(super) fn of(&self, kind: &str) -> Vec<u8> {
        format!("{}{kind}", self.start).into()
    }
}

/// Returns the key of the index of all names below a prefix.
pub fn index_key(prefix: &str) -> Vec<u8> {
    key_of_prefix(prefix, "index").into()
}

/// Returns the key of the note that the job with this hold waits for another lock.
pub(super) fn blocked_key(prefix: &str, hold: &str) -> Vec<u8> {
    key_of_prefix(prefix, &format!("blocked:{hold}")).into()
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
            "a-b-",
            "+-a",
            "'a'-",
            "[x]",
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
            "-",
            "-a",
            "--url=redis://h",
            "\"-a\"",
            "''-a",
            "\\-a",
            "queue=*",
            "what?",
            &"n".repeat(201),
        ] {
            assert!(refused(name), "{name}");
        }
    }

    #[test]
    fn all_keys_of_a_lock_share_its_hash_slot() {
        let keys = Keys::new("redlock:", &"deploy".parse().unwrap());
        assert_eq!(keys.lock, b"redlock:deploy");
        assert_eq!(keys.of("state"), b"{redlock:deploy}:state");
        let keys = Keys::new("redlock:", &"a{b}c".parse().unwrap());
        assert_eq!(keys.of("meta"), b"{b}:redlock:a{b}c:meta");
    }

    /// Returns the hash slot of a key.
    fn hash_slot_of(key: &[u8]) -> u16 {
        let key = std::str::from_utf8(key).unwrap();
        hash_slot(hash_tag(key).unwrap_or(key).as_bytes())
    }

    #[test]
    fn all_keys_of_a_lock_share_its_hash_slot_whatever_braces_its_name_and_prefix_have() {
        // From the specification of Redis Cluster.
        assert_eq!(hash_slot(b"123456789"), 0x31C3);
        for prefix in ["redlock:", "", "{app}:", "x}:", "{}:", "a}{b"] {
            for name in ["deploy", "a{b}c", "a{}b", "{}", "a{}{b}", "{{a}}", "é{}"] {
                let keys = Keys::new(prefix, &name.parse().unwrap());
                for kind in ["", "state", "c0ffee", "forced:c0ffee"] {
                    let key = keys.of(kind);
                    let text = String::from_utf8_lossy(&key);
                    assert_eq!(
                        hash_slot_of(&key),
                        hash_slot_of(&keys.lock),
                        "{prefix}{name}: {text}"
                    );
                }
            }
        }
    }

    #[test]
    fn with_a_hash_tag_in_the_prefix_every_key_is_in_its_slot() {
        for (prefix, tag) in [("{redlock}:", "redlock"), ("ci{a}:", "a"), ("{b}{c}", "b")] {
            for name in ["deploy", "a{b}c", "a{}b", "{}", "é"] {
                let keys = Keys::new(prefix, &name.parse().unwrap());
                let blocked = blocked_key(prefix, "0123456789ab");
                for key in [keys.of("state"), keys.lock, keys.index, blocked] {
                    let text = String::from_utf8_lossy(&key);
                    assert_eq!(
                        hash_slot_of(&key),
                        hash_slot(tag.as_bytes()),
                        "{prefix}{name}: {text}"
                    );
                }
            }
        }
        // Without a hash tag they can't share a slot, but then there is only one server.
        assert_eq!(index_key("redlock:"), b"{redlock:}:index");
        assert_eq!(index_key("{redlock}:"), b"{redlock}:{redlock}::index");
    }

    #[test]
    fn every_hash_slot_has_a_number() {
        let mut reached = vec![false; 16384];
        for number in 0..1_000_000_u32 {
            reached[usize::from(hash_slot(number.to_string().as_bytes()))] = true;
        }
        assert!(reached.iter().all(|&reached| reached));
    }
}
