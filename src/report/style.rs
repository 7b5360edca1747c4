//! Coloured lines for a terminal: a line is text that contains escape sequences for its styles.

use std::io::{self, IsTerminal};

/// Style of a part of a line.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Style {
    #[default]
    Plain,
    /// Unimportant text: headings, names of fields.
    Dim,
    Bold,
    /// Waiting.
    Yellow,
    /// An error.
    Red,
}

impl Style {
    /// Returns a text, which must be safe for a terminal, in this style.
    pub fn paint(self, text: &str) -> String {
        let code = match self {
            Self::Plain => return text.to_owned(),
            Self::Dim => 2,
            Self::Bold => 1,
            Self::Yellow => 33,
            Self::Red => 31,
        };
        format!("\x1b[0;{code}m{text}\x1b[0m")
    }
}

/// Returns a line without its styles.
fn plain(line: &str) -> String {
    let mut parts = line.split("\x1b[");
    let first = parts.next().unwrap_or_default().to_owned();
    let texts = parts.filter_map(|part| Some(part.split_once('m')?.1));
    first + &texts.collect::<String>()
}

/// Returns the number of columns of a line, without its escape sequences.
pub fn line_columns(line: &str) -> usize {
    super::columns(&plain(line))
}

/// Returns lines as they are printed, without trailing spaces.
pub fn painted(lines: &[String], colors: bool) -> String {
    let shown = |line: &String| {
        let line = if colors { line.clone() } else { plain(line) };
        line.trim_end().to_owned() + "\n"
    };
    lines.iter().map(shown).collect()
}

/// Returns true if standard output is a terminal with colours, and the user hasn't disabled them.
pub fn has_colors() -> bool {
    let is_set = |name| std::env::var_os(name).is_some_and(|value| !value.is_empty());
    io::stdout().is_terminal() && !is_set("NO_COLOR") && !is_dumb()
}

/// Returns true if the terminal supports no escape sequences.
pub fn is_dumb() -> bool {
    std::env::var_os("TERM").is_none_or(|term| term.is_empty() || term == "dumb")
}
