//! Calls of Lua scripts. Only the callers know what a script does.

use redis::{Cmd, cmd};

/// A Lua script, joined with what it includes, and its SHA-1, by which it is called.
pub struct Script {
    pub source: &'static str,
    pub hash: &'static str,
    /// Number of its keys.
    pub keys: usize,
    /// Holds back a successful answer until the replicas have the write, if replicas must confirm writes. Successful: the
    /// answer begins with 1, or is a positive number.
    pub counts_when_replicated: bool,
    /// The caller also uses an answer that comes late, when nothing waits for it any more.
    pub may_arrive_late: bool,
}

/// A call of a script.
pub struct Call {
    pub script: &'static Script,
    pub keys: Vec<Vec<u8>>,
    pub args: Vec<Vec<u8>>,
}

impl Call {
    /// Returns a call of another script with the same keys and arguments.
    pub fn of(&self, script: &'static Script) -> Self {
        Self {
            script,
            keys: self.keys.clone(),
            args: self.args.clone(),
        }
    }

    /// Returns the command: with the script's hash, or (once, on `NOSCRIPT`) with its whole text.
    pub fn command(&self, by_hash: bool) -> Cmd {
        let (name, script) = if by_hash {
            ("EVALSHA", self.script.hash)
        } else {
            ("EVAL", self.script.source)
        };
        let mut command = cmd(name);
        command.arg(script).arg(self.keys.len());
        command.arg(&self.keys).arg(&self.args);
        command
    }
}
