//! Which locks `status` and `history` show. It looks up names and never reads the locks.

use anyhow::Result;

use super::usage::{name, refuse_url};
use crate::pattern::{is_pattern, matches, natural_cmp};
use crate::protocol::{Client, Error, Locks, Name, Which};

/// Names and patterns; none of either: all.
#[derive(Debug)]
pub(super) struct Asked {
    pub names: Vec<Name>,
    pub patterns: Vec<String>,
}

impl Asked {
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

    /// The names and patterns that a name is asked for by.
    pub fn that_mean(&self, name: &str) -> impl Iterator<Item = &str> {
        let names = self.names.iter().map(Name::as_str);
        let names = names.filter(move |asked| *asked == name);
        let patterns = self.patterns.iter().map(String::as_str);
        names.chain(patterns.filter(move |pattern| matches(pattern, name)))
    }

    /// The names in the order of people, those of patterns and of all looked up.
    pub fn look_up(
        &self,
        client: &mut Client,
        locks: &Locks,
        which: Which,
    ) -> Result<Vec<Name>, Error> {
        let mut names = self.names.clone();
        if self.is_all() || !self.patterns.is_empty() {
            let known = locks.names(client, which)?.into_iter();
            names
                .extend(known.filter(|name| {
                    self.is_all() || self.that_mean(name.as_str()).next().is_some()
                }));
        }
        names.sort_by(|a, b| natural_cmp(a.as_str(), b.as_str()));
        names.dedup();
        Ok(names)
    }
}
