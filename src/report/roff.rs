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
    /// Indents of the section, of the next line of the paragraph, and of those after it.
    base: usize,
    first: usize,
    indent: usize,
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
                self.base = INDENT;
                self.begin_paragraph(0);
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
                self.first = self.base;
                tag.clone_into(&mut self.words);
            }
            "RS" | "RE" => {
                self.end_paragraph();
                // No page nests a part in another.
                self.base = if name == "RS" { 2 * INDENT } else { INDENT };
                (self.first, self.indent) = (self.base, self.base);
            }
            "nf" | "EX" | "fi" | "EE" | "br" => {
                self.end_paragraph();
                self.is_verbatim = matches!(name, "nf" | "EX");
            }
            "B" | "I" => self.add(&text),
            // The parts stand together. Spaces within quotes stay.
            "BR" | "BI" => {
                let quoted = text.split('"').enumerate();
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
            self.line(self.base, line);
        } else if self.is_verbatim {
            self.line(self.indent, line);
        } else if line.is_empty() {
            self.begin_paragraph(self.indent - self.base);
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

    /// Begins a paragraph that hangs this far into its section.
    fn begin_paragraph(&mut self, hang: usize) {
        self.end_paragraph();
        self.text.push('\n');
        self.indent = self.base + hang;
        self.first = self.indent;
    }

    fn end_paragraph(&mut self) {
        let words = std::mem::take(&mut self.words);
        if words.is_empty() {
            return;
        }
        for line in wrapped(&words, Some(WIDTH - self.indent)) {
            self.line(self.first, line);
            self.first = self.indent;
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
