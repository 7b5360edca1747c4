//! The manual as plain text, for hosts without man(1). It knows the requests that the pages of redlock use. Pure.

use super::text::{columns, wrapped};

/// Width of the text, and of an indent.
const WIDTH: usize = 78;
const INDENT: usize = 7;

/// Texts that stand for sequences of roff. The backslash is the last, as it would begin another sequence.
const SEQUENCES: [(&str, &str); 14] = [
    ("\\(bu", "•"),
    ("\\(aq", "'"),
    ("\\(lq", "“"),
    ("\\(rq", "”"),
    ("\\(dq", "\""),
    ("\\*(Aq", "'"),
    ("\\-", "-"),
    ("\\~", "\u{a0}"),
    ("\\&", ""),
    ("\\fB", ""),
    ("\\fI", ""),
    ("\\fR", ""),
    ("\\fP", ""),
    ("\\e", "\\"),
];

/// A page so far.
#[derive(Default)]
struct Page {
    text: String,
    /// The paragraph that isn't written yet.
    words: String,
    /// Indents of a part within its section, and of the paragraph below its tag.
    nested: usize,
    hang: usize,
    /// The paragraph begins with its tag.
    is_tagged: bool,
    is_tag_next: bool,
    is_verbatim: bool,
}

/// Returns a page of the manual as plain text.
pub fn plain(page: &str) -> String {
    let mut plain = Page::default();
    for line in page.lines() {
        match line.strip_prefix('.') {
            Some(request) => plain.request(request),
            None => plain.add(&unescaped(line)),
        }
    }
    plain.end_paragraph();
    plain.text
}

impl Page {
    fn request(&mut self, request: &str) {
        let (name, rest) = request.split_once(' ').unwrap_or((request, ""));
        let text = unescaped(rest);
        match name {
            "SH" | "SS" => {
                self.begin_paragraph(0);
                self.nested = 0;
                self.line(if name == "SS" { 3 } else { 0 }, &text);
            }
            "PP" | "sp" => self.begin_paragraph(0),
            "TP" => {
                self.begin_paragraph(INDENT);
                self.is_tag_next = true;
            }
            "IP" if text.is_empty() => self.begin_paragraph(INDENT),
            "IP" => {
                // The width of the tag follows it.
                let tag = text.split(' ').next().unwrap_or_default();
                self.begin_paragraph(columns(tag) + 1);
                self.is_tagged = true;
                tag.clone_into(&mut self.words);
            }
            "RS" | "RE" => {
                self.end_paragraph();
                self.hang = 0;
                // No page nests a part in another.
                self.nested = if name == "RS" { INDENT } else { 0 };
            }
            "nf" | "EX" | "fi" | "EE" => {
                self.end_paragraph();
                self.is_verbatim = matches!(name, "nf" | "EX");
            }
            "br" => self.end_paragraph(),
            "B" | "I" => self.add(&text),
            "BR" | "BI" => {
                // The parts stand together. Spaces within quotes stay.
                let quoted = (0..).zip(text.split('"'));
                let parts = quoted.map(|(at, part)| match at % 2 {
                    0 => part.replace(' ', ""),
                    _ => part.to_owned(),
                });
                self.add(&parts.collect::<String>());
            }
            // The title, and how man is to break lines.
            _ => {}
        }
    }

    /// Adds a line of text.
    fn add(&mut self, line: &str) {
        if std::mem::take(&mut self.is_tag_next) {
            self.line(INDENT + self.nested, line);
        } else if self.is_verbatim {
            self.line(INDENT + self.nested + self.hang, line);
        } else if line.is_empty() {
            self.begin_paragraph(self.hang);
        } else {
            self.words += if self.words.is_empty() { "" } else { " " };
            self.words += line;
        }
    }

    /// Writes a line.
    fn line(&mut self, indent: usize, line: &str) {
        self.text += format!("{:indent$}{line}", "").trim_end();
        self.text.push('\n');
    }

    fn begin_paragraph(&mut self, hang: usize) {
        self.end_paragraph();
        self.text.push('\n');
        self.hang = hang;
    }

    fn end_paragraph(&mut self) {
        let words = std::mem::take(&mut self.words);
        let base = INDENT + self.nested;
        let indent = base + self.hang;
        let mut start = if std::mem::take(&mut self.is_tagged) {
            base
        } else {
            indent
        };
        if words.is_empty() {
            return;
        }
        for line in wrapped(&words, Some(WIDTH - indent)) {
            self.line(start, line);
            start = indent;
        }
    }
}

/// Returns a text without fonts and sequences.
fn unescaped(text: &str) -> String {
    let sequences = SEQUENCES.iter();
    sequences.fold(text.to_owned(), |text, (sequence, meaning)| {
        text.replace(sequence, meaning)
    })
}
