//! The selection of locks for `status` and `history`. Reads only names, never the locks.

use anyhow::Result;

use crate::pattern::{is_pattern, matches, natural_cmp};
use crate::protocol::{Client, Error, Locks, Name, Names};
use crate::usage::{name, refuse_url};

/// Names and patterns of locks. If both are empty, all locks are selected.
#[derive(Debug)]
pub(super) struct RequestedNames {
    pub names: Vec<Name>,
    pub patterns: Vec<String>,
}

impl RequestedNames {
    pub fn parse<'a>(texts: impl Iterator<Item = &'a str>) -> Result<Self> {
        let (mut names, mut patterns) = (Vec::new(), Vec::new());
        for text in texts {
            if is_pattern(text) {
                refuse_url(text)?;
                patterns.push(text.to_owned());
            } else {
                names.push(name(text)?);
            }
        }
        Ok(Self { names, patterns })
    }

    pub fn is_all(&self) -> bool {
        self.names.is_empty() && self.patterns.is_empty()
    }

    /// Returns the given names and patterns.
    pub fn texts(&self) -> impl Iterator<Item = &str> {
        let names = self.names.iter().map(Name::as_str);
        names.chain(self.patterns.iter().map(String::as_str))
    }

    /// Returns the given names and patterns that match a lock's name.
    pub fn that_mean(&self, name: &str) -> impl Iterator<Item = &str> {
        let means = move |text: &&str| *text == name || is_pattern(text) && matches(text, name);
        self.texts().filter(means)
    }

    /// Returns the selected names in natural order. Asks the server only for patterns, or if all are selected.
    pub fn look_up(
        &self,
        client: &mut Client,
        locks: &Locks,
        which: Names,
    ) -> Result<Vec<Name>, Error> {
        let mut names = self.names.clone();
        if self.is_all() || !self.patterns.is_empty() {
            let mut existing = locks.names(client, which)?;
            existing.retain(|it| self.is_all() || self.that_mean(it.as_str()).next().is_some());
            names.append(&mut existing);
        }
        names.sort_by(|a, b| natural_cmp(a.as_str(), b.as_str()));
        names.dedup();
        Ok(names)
    }
}
