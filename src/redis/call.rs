//! A call of a Lua script. Only its callers know what the script does.

use std::borrow::Cow;

use redis::{Cmd, cmd};

/// A Lua script, joined with what it includes, and its SHA-1, by which it is called.
pub struct Script {
    pub text: Text,
    pub hash: &'static str,
    /// Where replicas have to have what is written, an answer that begins with 1, or is a number that isn't 0, counts only
    /// once they have.
    pub counts_when_replicated: bool,
    /// It is wanted also when it comes late, and when nobody waits for its answer any more.
    pub may_arrive_late: bool,
}

/// The text of a script.
pub enum Text {
    /// As it is.
    #[cfg_attr(not(any(test, fuzzing)), allow(dead_code))]
    Plain(&'static str),
    /// Compressed: this unpacks it, which takes a millisecond.
    Packed(fn() -> String),
}

impl Script {
    pub fn source(&self) -> Cow<'static, str> {
        match self.text {
            Text::Plain(text) => text.into(),
            Text::Packed(unpack) => unpack().into(),
        }
    }

    /// The same, for tests, which call the scripts many thousand times: it is kept for good.
    #[cfg(any(test, fuzzing))]
    pub fn kept_source(&self) -> &'static str {
        use std::collections::BTreeMap;
        use std::sync::{Mutex, PoisonError};
        static KEPT: Mutex<BTreeMap<&str, &str>> = Mutex::new(BTreeMap::new());
        match self.text {
            Text::Plain(text) => text,
            Text::Packed(unpack) => {
                let mut kept = KEPT.lock().unwrap_or_else(PoisonError::into_inner);
                kept.entry(self.hash).or_insert_with(|| unpack().leak())
            }
        }
    }
}

/// One call of a script.
pub struct Call {
    pub script: &'static Script,
    pub keys: Vec<Vec<u8>>,
    pub args: Vec<Vec<u8>>,
}

impl Call {
    /// The command: by hash, or (once, on `NOSCRIPT`) with the whole text.
    pub fn command(&self, by_hash: bool) -> Cmd {
        let mut command = if by_hash {
            let mut command = cmd("EVALSHA");
            command.arg(self.script.hash);
            command
        } else {
            let mut command = cmd("EVAL");
            command.arg(&*self.script.source());
            command
        };
        command.arg(self.keys.len()).arg(&self.keys).arg(&self.args);
        command
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    static SCRIPT: Script = Script {
        text: Text::Plain("return 1"),
        hash: "e0e1f9fabfc9d4800c877a703b823ac0578ff8db",
        counts_when_replicated: false,
        may_arrive_late: false,
    };

    #[test]
    fn a_script_is_called_by_its_hash_or_with_its_text_and_its_keys_come_first() {
        let call = Call {
            script: &SCRIPT,
            keys: vec![b"key".to_vec(), b"other".to_vec()],
            args: vec![b"argument".to_vec()],
        };
        for (by_hash, name, script) in [
            (true, "EVALSHA", SCRIPT.hash),
            (false, "EVAL", SCRIPT.kept_source()),
        ] {
            let mut expected = cmd(name);
            expected.arg(script).arg(2).arg("key").arg("other");
            expected.arg("argument");
            let packed = call.command(by_hash).get_packed_command();
            assert_eq!(packed, expected.get_packed_command());
        }
    }
}
