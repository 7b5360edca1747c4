//! Lines with colours, for a terminal that has them.

use std::io::{self, IsTerminal};

/// How a part of a line looks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Style {
    #[default]
    Plain,
    /// Of little interest: headings, names of fields.
    Dim,
    Bold,
    /// Something waits.
    Yellow,
    /// Something is wrong.
    Red,
}

impl Style {
    /// As the parameters of a terminal's sequence.
    fn code(self) -> &'static str {
        match self {
            Self::Plain => "",
            Self::Dim => ";2",
            Self::Bold => ";1",
            Self::Yellow => ";33",
            Self::Red => ";31",
        }
    }
}

/// A line, in parts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Line(Vec<(Style, String)>);

impl Line {
    /// A line that looks the same from end to end.
    pub fn of(style: Style, text: impl Into<String>) -> Self {
        Self(vec![(style, text.into())])
    }

    /// How many columns it takes.
    pub fn columns(&self) -> usize {
        self.0.iter().map(|(_, text)| super::columns(text)).sum()
    }

    /// The same line with more at its end.
    pub fn and(mut self, style: Style, text: &str) -> Self {
        match self.0.last_mut() {
            _ if text.is_empty() => {}
            Some((last, so_far)) if *last == style => *so_far += text,
            _ => {
                let mut part = String::with_capacity(text.len().max(80));
                part.push_str(text);
                self.0.push((style, part));
            }
        }
        self
    }

    /// The same line with spaces at its end.
    pub fn and_spaces(self, count: usize) -> Self {
        const SPACES: &str = "                                ";
        let some = count.min(SPACES.len());
        let line = self.and(Style::Plain, &SPACES[..some]);
        if some < count {
            line.and_spaces(count - some)
        } else {
            line
        }
    }

    /// As it is printed; without spaces at its end.
    pub fn painted(&self, colors: bool) -> String {
        let last = self
            .0
            .iter()
            .rposition(|(_, text)| !text.trim_end().is_empty());
        let mut painted = String::with_capacity(160);
        for (at, (style, text)) in self.0.iter().enumerate() {
            let text = match last {
                Some(last) if at < last => text.as_str(),
                Some(last) if at == last => text.trim_end(),
                _ => break,
            };
            let color = if colors { style.code() } else { "" };
            if color.is_empty() {
                painted += text;
            } else {
                painted.extend(["\x1b[0", color, "m", text, "\x1b[0m"]);
            }
        }
        painted
    }
}

/// Whether standard output shows colours, and its user wants them.
pub fn has_colors() -> bool {
    let is_set = |name| std::env::var_os(name).is_some_and(|value| !value.is_empty());
    io::stdout().is_terminal() && !is_set("NO_COLOR") && !is_dumb()
}

/// Whether the terminal knows none of a terminal's sequences.
pub fn is_dumb() -> bool {
    std::env::var_os("TERM").is_none_or(|term| term.is_empty() || term == "dumb")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_painted_where_there_are_colours() {
        let line = Line::of(Style::Dim, "a ")
            .and(Style::Plain, "b  ")
            .and(Style::Red, "  ");
        assert_eq!(line.painted(false), "a b");
        assert_eq!(line.painted(true), "\x1b[0;2ma \x1b[0mb");
    }
}
