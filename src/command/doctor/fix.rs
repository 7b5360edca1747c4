//! What there is to do about a finding: in words, or as a command that a shell takes as it stands. Pure.
//!
//! Every command is one of [`Repair`]. `tests/integration/promises/doctor_fixes.rs` reads the list here and pastes each of
//! them into a shell.

use serde::{Serialize, Serializer};

/// What to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fix {
    Words(String),
    /// A line for a shell; what follows a `#` there is for the reader.
    Command(Repair, String),
}

impl Fix {
    pub fn text(&self) -> &str {
        match self {
            Self::Words(text) | Self::Command(_, text) => text,
        }
    }
}

impl From<&str> for Fix {
    fn from(text: &str) -> Self {
        Self::Words(text.into())
    }
}

impl From<String> for Fix {
    fn from(text: String) -> Self {
        Self::Words(text)
    }
}

impl Serialize for Fix {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.text())
    }
}

macro_rules! repairs {
    ($($(#[$doc:meta])* $name:ident: $check:literal, $mark:literal;)*) => {
        /// A command that mends something.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        pub enum Repair { $($(#[$doc])* $name,)* }

        impl Repair {
            /// The check that it belongs to, and what its line says in any case.
            pub fn mark(self) -> (&'static str, &'static str) {
                match self { $(Self::$name => ($check, $mark),)* }
            }
        }
    };
}

repairs! {
    /// A script of another client runs on and on.
    EndScript: "connection", "SCRIPT KILL";
    /// Connections are closed between renewals.
    KeepIdle: "timeouts", "CONFIG SET timeout 0";
    /// No replica may be promoted.
    Promotable: "replicas", "CONFIG SET replica-priority 100";
    /// Locks are evicted.
    NoEviction: "eviction", "CONFIG SET maxmemory-policy noeviction";
    /// Locks are forgotten at a restart.
    AppendOnly: "persistence", "CONFIG SET appendonly yes";
    /// Rules of the access list are missing.
    Permit: "permissions", "ACL SETUSER";
    /// More sentinels have to agree than there are.
    Quorum: "sentinels", "SENTINEL SET";
    /// The lock is frozen.
    Thaw: "name", "redlock thaw";
    /// /proc hides processes.
    ShowProc: "proc", "hidepid=0";
    /// /proc is that of other processes.
    OwnProc: "proc", "mount -t proc";
    /// Others may write our settings.
    OwnSettings: "settings", "ch";
    /// All may read our secrets.
    HideSecrets: "secrets", "chmod o-r";
}

impl Repair {
    /// The fix that is this line.
    pub fn by(self, line: impl Into<String>) -> Fix {
        let line = line.into();
        debug_assert!(line.contains(self.mark().1), "{self:?}: {line}");
        Fix::Command(self, line)
    }
}
