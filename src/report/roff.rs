//! The manual as plain text, for hosts without man(1). Supports the requests that redlock's pages use. Pure.

use super::text::wrapped;

/// Width of the text, and of an indentation, in columns.
const WIDTH: usize = 78;
const INDENT: usize = 7;

/// Replacements for sequences of roff. The backslash comes last, because it would begin another sequence.
const SEQUENCES: [(&str, &str); 10] = [
    ("\\(bu", "•"),
    ("\\(aq", "'"),
    ("\\*(Aq", "'"),
    ("\\-", "-"),
    ("\\&", ""),
    ("\\fB", ""),
    ("\\fI", ""),
    ("\\fR", ""),
    ("\\fP", ""),
    ("\\e", "\\"),
];

/// The part of a page that is converted so far.
#[derive(Default)]
struct RoffPage {
    text: String,
    /// The tag of the current paragraph, the columns of its hanging indentation, and its words.
    tag: String,
    hang: usize,
    words: String,
    is_verbatim: bool,
}

/// Returns a page of the manual as plain text.
pub fn plain(page: &str) -> String {
    let mut plain = RoffPage::default();
    let mut lines = page.lines();
    while let Some(line) = lines.next() {
        let request = line.strip_prefix('.');
        let request = request.map(|request| request.split_once(' ').unwrap_or((request, "")));
        match request {
            Some((request @ ("SH" | "SS"), title)) => {
                plain.begin(0, "");
                let indent = if request == "SS" { "   " } else { "" };
                plain.text.extend([indent, &unescaped(title), "\n"]);
            }
            Some(("PP" | "sp", _)) => plain.begin(0, ""),
            Some(("TP", _)) => {
                let tag = lines.next().unwrap_or_default();
                let words = tag.strip_prefix(".B ").or(tag.strip_prefix(".I "));
                plain.begin(INDENT, words.unwrap_or(tag));
            }
            // The tag's width comes after it.
            Some(("IP", tag)) => plain.begin(INDENT, tag.split(' ').next().unwrap_or_default()),
            Some((request @ ("nf" | "fi" | "br" | "RS" | "RE"), _)) => {
                plain.end();
                plain.is_verbatim = request == "nf";
            }
            Some(("B" | "I", words)) => plain.add(words),
            None if line.is_empty() => plain.begin(plain.hang, ""),
            None => plain.add(line),
            // The title, and settings of man's line breaking.
            Some(_) => {}
        }
    }
    plain.end();
    plain.text
}

impl RoffPage {
    /// Begins a paragraph. A tag that is too long for the indentation gets a line of its own.
    fn begin(&mut self, hang: usize, tag: &str) {
        self.end();
        self.text.push('\n');
        (self.tag, self.hang) = (unescaped(tag), hang);
        if !tag.is_empty() && self.tag.len() >= hang {
            self.line("");
        }
    }

    fn add(&mut self, text: &str) {
        self.words += &unescaped(text);
        if self.is_verbatim {
            self.end();
        } else {
            self.words.push(' ');
        }
    }

    /// Writes the current paragraph.
    fn end(&mut self) {
        let words = std::mem::take(&mut self.words);
        let room = WIDTH - INDENT - self.hang;
        let room = (!self.is_verbatim).then_some(room);
        if !words.is_empty() || !self.tag.is_empty() {
            for part in wrapped(&words, room) {
                self.line(part);
            }
        }
    }

    fn line(&mut self, part: &str) {
        let (tag, hang) = (std::mem::take(&mut self.tag), self.hang);
        let line = format!("{:INDENT$}{tag:hang$}{part}", "");
        self.text.extend([line.trim_end(), "\n"]);
    }
}

/// Returns a text with sequences replaced and without font changes.
fn unescaped(text: &str) -> String {
    let sequences = SEQUENCES.iter();
    sequences.fold(text.to_owned(), |text, (sequence, meaning)| {
        text.replace(sequence, meaning)
    })
}
