//! Lines with colours, for a terminal that has them.

use std::io::{self, IsTerminal};

/// Look of a part of a line.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Style {
    #[default]
    Plain,
    /// Little interest: headings, names of fields.
    Dim,
    Bold,
    /// Something waits.
    Yellow,
    /// Something is wrong.
    Red,
}

impl Style {
    /// Returns the parameters of a terminal's sequence.
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
    /// Returns a line that looks the same from end to end.
    pub fn of(style: Style, text: impl Into<String>) -> Self {
        Self(vec![(style, text.into())])
    }

    /// Returns the number of columns that the line takes.
    pub fn columns(&self) -> usize {
        self.0.iter().map(|(_, text)| super::columns(text)).sum()
    }

    /// Returns the line with more at its end.
    pub fn and(mut self, style: Style, text: &str) -> Self {
        match self.0.last_mut() {
            _ if text.is_empty() => {}
            Some((last, so_far)) if *last == style => *so_far += text,
            _ => self.0.push((style, text.to_owned())),
        }
        self
    }

    /// Returns the line with spaces at its end.
    pub fn and_spaces(self, count: usize) -> Self {
        self.and(Style::Plain, &" ".repeat(count))
    }

    /// Returns the line as it is printed, without spaces at its end.
    pub fn painted(&self, colors: bool) -> String {
        let texts = self.0.iter().map(|(_, text)| text.as_str());
        let mut left = texts.collect::<String>().trim_end().len();
        let mut painted = String::new();
        for (style, text) in &self.0 {
            let text = &text[..text.len().min(left)];
            left -= text.len();
            let color = if colors { style.code() } else { "" };
            if color.is_empty() || text.is_empty() {
                painted += text;
            } else {
                painted.extend(["\x1b[0", color, "m", text, "\x1b[0m"]);
            }
        }
        painted
    }
}

/// Returns lines as they are printed.
pub fn painted(lines: &[Line], colors: bool) -> String {
    let lines = lines.iter();
    lines.map(|line| line.painted(colors) + "\n").collect()
}

/// Returns true if standard output shows colours, and its user wants them.
pub fn has_colors() -> bool {
    let is_set = |name| std::env::var_os(name).is_some_and(|value| !value.is_empty());
    io::stdout().is_terminal() && !is_set("NO_COLOR") && !is_dumb()
}

/// Returns true if the terminal knows none of a terminal's sequences.
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
