//! Turns pages of docs/ into pages of the manual.
//!
//! Knows the Markdown that these pages use: headings, lists, tables, code, links, bold and italic words.

use std::fmt::Write;
use std::fs;

use crate::generated::root;

/// Returns docs/NAME.md without its title.
pub fn docs(name: &str) -> String {
    let page = fs::read_to_string(root().join(format!("docs/{name}.md"))).unwrap();
    let (_, rest) = page.split_once('\n').expect("the title");
    rest.to_owned()
}

/// Returns docs/NAME.md as redlock-NAME(7): the file name and the text.
pub fn page(name: &str, about: &str, see_also: &str) -> (String, String) {
    let version = env!("CARGO_PKG_VERSION");
    let title = name.to_uppercase();
    let mut page = Page {
        text: format!(
            ".TH REDLOCK-{title} 7 \"\" \"redlock {version}\" \"redlock manual\"\n.nh\n\
             .SH NAME\nredlock\\-{name} \\- {about}\n.SH DESCRIPTION\n"
        ),
        ..Page::default()
    };
    for line in docs(name).lines() {
        page.add(line);
    }
    page.end_block();
    page.text += ".SH SEE ALSO\n";
    let pages: Vec<String> = see_also.split(' ').map(reference).collect();
    page.text += &(pages.join(",\n") + "\n");
    (
        format!("redlock-{name}.7"),
        without_empty_paragraphs(&page.text),
    )
}

/// A page so far.
#[derive(Default)]
struct Page {
    text: String,
    /// Lines of a paragraph or list item that aren't written yet: a link may span two.
    words: Vec<String>,
    /// Rows of a table that isn't written yet.
    rows: Vec<Vec<String>>,
    is_code: bool,
}

impl Page {
    fn add(&mut self, line: &str) {
        let is_fence = line.starts_with("```");
        let row = line.strip_prefix('|').filter(|_| !self.is_code);
        if row.is_none() {
            self.end_table();
        }
        if is_fence {
            self.end_block();
            self.is_code = !self.is_code;
            self.text += if self.is_code { ".PP\n.nf\n" } else { ".fi\n" };
        } else if self.is_code {
            let line = escaped(line).replace('\'', "\\(aq");
            self.text += &(no_request(&line) + "\n");
        } else if line.starts_with("![") {
            // A page of the manual has no pictures.
        } else if let Some(row) = row {
            self.end_words();
            self.rows.push(cells(row));
        } else if let Some(heading) = line.strip_prefix("### ") {
            self.end_block();
            let heading = formatted(heading, false);
            writeln!(self.text, ".SS {heading}").unwrap();
        } else if let Some(heading) = line.strip_prefix("## ") {
            self.end_block();
            let heading = formatted(&heading.to_uppercase(), false);
            writeln!(self.text, ".SH {heading}").unwrap();
        } else if line.is_empty() {
            self.end_block();
            self.text += ".PP\n";
        } else if let Some(item) = line.strip_prefix("- ") {
            self.end_block();
            self.text += ".IP \\(bu 2\n";
            self.words.push(item.to_owned());
        } else if let Some((number, item)) = numbered(line) {
            self.end_block();
            writeln!(self.text, ".IP {number}. 4").unwrap();
            self.words.push(item.to_owned());
        } else {
            self.words.push(line.trim_start().to_owned());
        }
    }

    fn end_block(&mut self) {
        self.end_words();
        self.end_table();
    }

    fn end_words(&mut self) {
        let words = std::mem::take(&mut self.words);
        if !words.is_empty() {
            self.text += &(formatted(&words.join("\n"), true) + "\n");
        }
    }

    /// Writes a table as a list: the first cell of a row is the tag, the others follow it with the titles of their columns.
    fn end_table(&mut self) {
        let rows = std::mem::take(&mut self.rows);
        // The second line is a rule.
        let [titles, _, rows @ ..] = &rows[..] else {
            return;
        };
        // The column beside titled tags explains them, and needs no title in each row.
        let untitled = if titles[0].is_empty() { 1 } else { 2 };
        if titles.len() == 2 && untitled == 2 {
            let [tag, title] = [0, 1].map(|at| formatted(&titles[at], false));
            writeln!(self.text, ".TP\n\\fI{tag}\\fR\n\\fI{title}\\fR").unwrap();
        }
        for row in rows {
            let tag = formatted(&row[0], false);
            writeln!(self.text, ".TP\n\\fB{tag}\\fR").unwrap();
            let cells = row.iter().enumerate().skip(1).map(|(at, cell)| {
                let title = format!("{}: ", titles[at]);
                let title = if at < untitled { "" } else { &title };
                formatted(&format!("{title}{cell}"), true)
            });
            self.text += &(cells.collect::<Vec<_>>().join("\n.br\n") + "\n");
        }
    }
}

/// Returns the cells of a row of a table.
fn cells(row: &str) -> Vec<String> {
    const BAR: &str = "\u{0}";
    let row = row.trim_end().trim_end_matches('|').replace("\\|", BAR);
    let cells = row.split('|').map(|cell| cell.trim().replace(BAR, "|"));
    cells.collect()
}

/// Returns the number and the text of an item of a numbered list.
fn numbered(line: &str) -> Option<(&str, &str)> {
    let (number, item) = line.split_once(". ")?;
    let is_number = !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit());
    is_number.then_some((number, item))
}

/// Returns a text of Markdown in roff. In a heading, and in a tag that has a font of its own, no word `has_font`.
fn formatted(text: &str, has_font: bool) -> String {
    let in_font = |font: &str, text: &str| {
        if has_font {
            format!("\\f{font}{text}\\fR")
        } else {
            text.to_owned()
        }
    };
    let text = escaped(&without_links(text));
    let mut roff = String::new();
    // Every second part is code, which has no other marks.
    for (at, part) in text.split('`').enumerate() {
        if at % 2 == 1 {
            roff += &in_font("B", &part.replace('\'', "\\(aq"));
            continue;
        }
        for (at, part) in part.split("**").enumerate() {
            if at % 2 == 1 {
                roff += &in_font("B", part);
                continue;
            }
            for (at, part) in part.split('*').enumerate() {
                roff += &if at % 2 == 1 {
                    in_font("I", part)
                } else {
                    part.to_owned()
                };
            }
        }
    }
    let lines = roff.lines().map(no_request);
    lines.collect::<Vec<_>>().join("\n")
}

/// Returns a text whose links are their words. A link to another site is followed by its address.
fn without_links(text: &str) -> String {
    let mut plain = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once("](") {
        let (before, words) = before.rsplit_once('[').expect("the words of a link");
        let (address, after) = after.split_once(')').expect("the address of a link");
        write!(plain, "{before}{words}").unwrap();
        if address.contains("://") {
            write!(plain, " ({address})").unwrap();
        }
        rest = after;
    }
    plain + rest
}

/// Returns a text in which no character has a meaning in roff.
fn escaped(text: &str) -> String {
    text.replace('\\', "\\e").replace('-', "\\-")
}

/// Returns a line of text that doesn't begin a request.
fn no_request(line: &str) -> String {
    let is_request = line.starts_with(['.', '\'']);
    format!("{}{line}", if is_request { "\\&" } else { "" })
}

/// Returns a page of the manual as another one names it: `redlock-run(1)`.
fn reference(page: &str) -> String {
    let (name, section) = page.split_once('(').expect("its section");
    format!("\\fB{}\\fR({section}", escaped(name))
}

/// Returns a page without paragraphs that something else begins.
fn without_empty_paragraphs(page: &str) -> String {
    let begins = |line: &str| {
        let name = line.split(' ').next().unwrap();
        [".PP", ".SH", ".SS", ".IP", ".TP"].contains(&name)
    };
    let lines: Vec<&str> = page.lines().collect();
    let mut kept = String::new();
    for (at, &line) in lines.iter().enumerate() {
        let follows_heading = at > 0 && lines[at - 1].starts_with(".S");
        let is_empty = follows_heading || lines.get(at + 1).is_some_and(|next| begins(next));
        if line != ".PP" || !is_empty {
            writeln!(kept, "{line}").unwrap();
        }
    }
    kept
}
