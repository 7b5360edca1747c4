//! The lines of one refresh; lines that belong together stay together. Pure.

use std::collections::HashSet;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};

use crate::report::{Line, Style};

/// What is shown at a time.
#[derive(Clone, Debug, Default)]
pub struct Picture {
    pub entries: Vec<Entry>,
}

/// Lines that belong together.
#[derive(Clone, Debug)]
pub struct Entry {
    pub lines: Vec<Line>,
    pub kind: Kind,
}

/// What lines are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A heading, which is always shown.
    Heading,
    /// What changes with time alone.
    Text,
    /// A row, with what of it doesn't change with time alone: a hash of that, as it may be long.
    Row(u64),
}

impl Kind {
    /// A row of which this doesn't change with time alone.
    pub fn row(what: &[&str]) -> Self {
        let mut hasher = DefaultHasher::new();
        what.hash(&mut hasher);
        Self::Row(hasher.finish())
    }
}

impl Picture {
    /// A picture that is one sentence.
    pub fn of(text: &str) -> Self {
        let mut picture = Self::default();
        picture.add(Kind::Text, vec![Line::of(Style::Plain, text)]);
        picture
    }

    pub fn add(&mut self, kind: Kind, lines: Vec<Line>) {
        self.entries.push(Entry { lines, kind });
    }

    /// All of it as text, in parts: together they may be long.
    pub fn texts(&self, colors: bool) -> impl Iterator<Item = String> {
        self.entries.chunks(100).map(move |entries| {
            let lines = entries.iter().flat_map(|entry| &entry.lines);
            lines.fold(String::new(), |text, line| {
                text + &line.painted(colors, false) + "\n"
            })
        })
    }

    /// What its rows are.
    pub fn rows(&self) -> HashSet<u64> {
        let rows = self.entries.iter().filter_map(|entry| match &entry.kind {
            Kind::Row(what) => Some(*what),
            Kind::Heading | Kind::Text => None,
        });
        rows.collect()
    }

    /// As much of it as fits on a screen of this size, as lines that a terminal may break; what changed
    /// since the last one stands out. The last line says how many rows more there are.
    pub fn fitted(
        &self,
        (width, height): (usize, usize),
        colors: bool,
        before: Option<&Self>,
    ) -> Vec<String> {
        let width = width.max(1);
        let rows = |entry: &Entry| -> usize {
            let of_line = |line: &Line| line.columns().div_ceil(width).max(1);
            entry.lines.iter().map(of_line).sum()
        };
        let before = before.map(Self::rows);
        let total: usize = self.entries.iter().map(rows).sum();
        // The last line says what is missing.
        let room = if total > height {
            height.saturating_sub(1)
        } else {
            height
        };
        let (mut used, mut shown, mut missing, mut is_full) = (0, Vec::new(), 0, false);
        for entry in &self.entries {
            is_full |= used + rows(entry) > room;
            if is_full {
                missing += u32::from(entry.kind != Kind::Heading);
                continue;
            }
            used += rows(entry);
            let is_new = match (&before, &entry.kind) {
                (Some(before), Kind::Row(what)) => !before.contains(what),
                _ => false,
            };
            let lines = entry.lines.iter();
            shown.extend(lines.map(|line| line.painted(colors, is_new)));
        }
        if is_full {
            let line = Line::of(Style::Dim, format!("… {missing} more"));
            shown.push(line.painted(colors, false));
        }
        shown
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(texts: &[&str]) -> Picture {
        let mut picture = Picture::default();
        picture.add(Kind::Heading, vec![Line::of(Style::Dim, "HEADING")]);
        for text in texts {
            let lines = vec![
                Line::of(Style::Plain, *text),
                Line::of(Style::Plain, "  link"),
            ];
            picture.add(Kind::row(&[text]), lines);
        }
        picture
    }

    #[test]
    fn what_does_not_fit_is_counted() {
        let picture = rows(&["a", "b", "c"]);
        let fitted = |height| picture.fitted((20, height), false, None);
        assert_eq!(fitted(7).len(), 7);
        assert_eq!(
            fitted(6),
            ["HEADING", "a", "  link", "b", "  link", "… 1 more"]
        );
        assert_eq!(fitted(5), ["HEADING", "a", "  link", "… 2 more"]);
        assert_eq!(fitted(1), ["… 3 more"]);
        // A line that the terminal breaks takes several of its rows.
        assert_eq!(
            picture.fitted((2, 9), false, None),
            ["HEADING", "a", "  link", "… 2 more"]
        );
    }

    #[test]
    fn what_has_changed_stands_out_once() {
        let (before, after) = (rows(&["a"]), rows(&["a", "b"]));
        let marked = |before| after.fitted((20, 9), false, before).join("\n");
        assert!(!marked(None).contains('\x1b'));
        assert_eq!(
            marked(Some(&before)),
            "HEADING\na\n  link\n\x1b[0;7mb\x1b[0m\n\x1b[0;7m  link\x1b[0m"
        );
        assert!(!marked(Some(&after)).contains('\x1b'));
    }
}
