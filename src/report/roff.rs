//! The manual as plain text, for hosts without man(1). It knows the requests that the pages of redlock use. Pure.

use std::fmt::Write as _;

use super::text::{columns, padded, wrapped};

/// Width of the text, and of an indent.
const WIDTH: usize = 78;
const INDENT: usize = 7;

/// Text that stands for a sequence of roff.
const SEQUENCES: [(&str, &str); 11] = [
    ("\\(bu", "•"),
    ("\\(aq", "'"),
    ("\\*(Aq", "'"),
    ("\\(lq", "“"),
    ("\\(rq", "”"),
    ("\\(dq", "\""),
    ("\\-", "-"),
    ("\\~", "\u{a0}"),
    ("\\&", ""),
    ("\\e", "\\"),
    ("\\ ", "\u{a0}"),
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
    /// The tag of the next paragraph.
    tag: Option<String>,
    is_tag_next: bool,
    is_verbatim: bool,
}

/// Returns a page of the manual as plain text.
pub fn plain(page: &str) -> String {
    let mut plain = Page::default();
    for line in page.lines() {
        match line.strip_prefix('.') {
            Some(request) => plain.request(request),
            None => plain.add(unescaped(line)),
        }
    }
    plain.end_paragraph();
    plain.text
}

impl Page {
    fn request(&mut self, request: &str) {
        let (name, rest) = request.split_once(' ').unwrap_or((request, ""));
        match name {
            "SH" | "SS" => {
                self.begin_paragraph(0);
                self.nested = 0;
                let indent = if name == "SS" { "   " } else { "" };
                let _ = writeln!(self.text, "{indent}{}", arguments(rest).join(" "));
            }
            "PP" | "sp" => self.begin_paragraph(0),
            "TP" => {
                self.begin_paragraph(INDENT);
                self.is_tag_next = true;
            }
            "IP" => {
                let arguments = arguments(rest);
                let width = arguments.get(1).and_then(|width| width.parse().ok());
                self.begin_paragraph(width.unwrap_or(INDENT));
                self.tag = arguments.into_iter().next();
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
            "B" | "I" => self.add(arguments(rest).join(" ")),
            "BR" | "BI" => self.add(arguments(rest).concat()),
            // The title, and how man is to break lines.
            _ => {}
        }
    }

    /// Adds a line of text.
    fn add(&mut self, line: String) {
        if std::mem::take(&mut self.is_tag_next) {
            self.tag = Some(line);
        } else if self.is_verbatim {
            let indent = INDENT + self.nested + self.hang;
            self.text += format!("{:indent$}{line}", "").trim_end();
            self.text.push('\n');
        } else if line.is_empty() {
            let hang = self.hang;
            self.begin_paragraph(hang);
        } else {
            self.words += if self.words.is_empty() { "" } else { " " };
            self.words += &line;
        }
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
        let mut start = " ".repeat(indent);
        if let Some(tag) = self.tag.take() {
            if columns(&tag) < self.hang && !words.is_empty() {
                start = format!("{:base$}{}", "", padded(&tag, self.hang));
            } else {
                let _ = writeln!(self.text, "{:base$}{tag}", "");
            }
        }
        if words.is_empty() {
            return;
        }
        for line in wrapped(&words, Some(WIDTH.saturating_sub(indent))) {
            let _ = writeln!(self.text, "{start}{line}");
            start = " ".repeat(indent);
        }
    }
}

/// Returns the arguments of a request; those with spaces stand in quotes.
fn arguments(mut rest: &str) -> Vec<String> {
    let mut all = Vec::new();
    while !rest.is_empty() {
        let (argument, after) = match rest.strip_prefix('"') {
            Some(quoted) => quoted.split_once('"').unwrap_or((quoted, "")),
            None => rest.split_once(' ').unwrap_or((rest, "")),
        };
        all.push(unescaped(argument));
        rest = after.trim_start();
    }
    all
}

/// Returns a text without fonts and sequences.
fn unescaped(mut rest: &str) -> String {
    let mut text = String::new();
    while let Some(at) = rest.find('\\') {
        text += &rest[..at];
        rest = &rest[at..];
        let known = SEQUENCES
            .iter()
            .find(|(sequence, _)| rest.starts_with(sequence));
        let (length, meaning) = known.map_or((3, ""), |(sequence, text)| (sequence.len(), *text));
        text += meaning;
        rest = rest.get(length..).unwrap_or_default();
    }
    text + rest
}
