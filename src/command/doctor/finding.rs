//! The result of a check: a level, the evidence, and the fix of a problem. Pure.

use serde::Serialize;
use serde_json::Map;

use super::evidence::Unknown;
use super::fix::Fix;

/// How well it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    Ok,
    /// It couldn't be found out.
    Unknown,
    /// Locks are safe, but something is slower than it could be, or will fail one day.
    Warn,
    /// Locks can't be acquired, or two may hold the same one.
    Fail,
}

/// What a check is about, in the order in which they are shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Group {
    Network,
    Server,
    Locks,
    Host,
}

impl Group {
    pub const ALL: [Self; 4] = [Self::Network, Self::Server, Self::Locks, Self::Host];

    /// Its heading.
    pub fn heading(self) -> &'static str {
        match self {
            Self::Network => "The network",
            Self::Server => "The server",
            Self::Locks => "Locks on it",
            Self::Host => "This host",
        }
    }
}

/// What a check says; the shape is part of the contract.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Finding {
    pub check: &'static str,
    pub group: Group,
    pub level: Level,
    pub message: String,
    /// What to type, or to do.
    pub fix: Option<Fix>,
    /// What else helps to understand it, as a sentence.
    #[serde(skip)]
    pub note: Option<String>,
    /// Numbers for programs.
    #[serde(skip_serializing_if = "Map::is_empty")]
    pub facts: Map<String, serde_json::Value>,
    /// There is nothing to say about it here.
    #[serde(skip)]
    pub is_moot: bool,
    /// Why it isn't known.
    #[serde(skip)]
    pub unknown: Option<Unknown>,
}

/// The name of a check and its group, from which its findings are made.
#[derive(Clone, Copy, Debug)]
pub struct Check(pub &'static str, pub Group);

impl Check {
    fn finding(self, level: Level, message: impl Into<String>) -> Finding {
        Finding {
            check: self.0,
            group: self.1,
            level,
            message: message.into(),
            fix: None,
            note: None,
            facts: Map::new(),
            is_moot: false,
            unknown: None,
        }
    }

    pub fn ok(self, message: impl Into<String>) -> Finding {
        self.finding(Level::Ok, message)
    }

    pub fn warn(self, message: impl Into<String>, fix: impl Into<Fix>) -> Finding {
        self.bad(Level::Warn, message, fix.into())
    }

    pub fn fail(self, message: impl Into<String>, fix: impl Into<Fix>) -> Finding {
        self.bad(Level::Fail, message, fix.into())
    }

    fn bad(self, level: Level, message: impl Into<String>, fix: Fix) -> Finding {
        if let Fix::Command(repair, _) = &fix {
            debug_assert_eq!(repair.mark().0, self.0);
        }
        Finding {
            fix: Some(fix),
            ..self.finding(level, message)
        }
    }

    /// It doesn't matter here, so a person isn't shown it.
    pub fn moot(self, message: impl Into<String>) -> Finding {
        Finding {
            is_moot: true,
            ..self.ok(message)
        }
    }

    pub fn unknown(self, why: &Unknown) -> Finding {
        Finding {
            unknown: Some(why.clone()),
            ..self.finding(Level::Unknown, format!("not checked: {why}"))
        }
    }
}

impl Finding {
    /// The same, of a server whose URL is from there.
    pub fn with_origin(mut self, origin: Option<&str>) -> Self {
        if let Some(origin) = origin {
            self = self.with("origin", origin);
            self.note = Some(origin.to_owned());
        }
        self
    }

    /// The same with a number for programs.
    pub fn with(mut self, name: &str, fact: impl Into<serde_json::Value>) -> Self {
        self.facts.insert(name.to_owned(), fact.into());
        self
    }
}
