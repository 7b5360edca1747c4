//! The English of comments: some ten habits that make a reader read a sentence twice, and names that say nothing.

use std::fs;

use crate::generated::root;

/// Words with which no sentence begins: its subject is named instead.
const OPENINGS: &str = "What How Why Who That Those One It Of";

/// Phrases for which there is a plainer one.
const PHRASES: &str = "have to have|has to have|but for|in place of|anew|look whether|looks whether|is said|is told|is asked|\
    as good as|still runs|lately|mend|mended|where that|where there|where it|where this|where they|where none|where nobody|\
    The same|by means of";

/// Names that say that something was done, and not what the variable is.
const NAMES: &str = "found asked known said told";

/// Returns the files with comments, below `folder`: their names and texts.
fn files(folder: &str, files: &mut Vec<(String, String)>) {
    for entry in fs::read_dir(root().join(folder)).unwrap().flatten() {
        let name = format!("{folder}/{}", entry.file_name().into_string().unwrap());
        let is_code = [".rs", ".lua"].iter().any(|end| name.ends_with(end));
        if entry.path().is_dir() {
            self::files(&name, files);
        } else if is_code || folder == "scripts" {
            files.push((name, fs::read_to_string(entry.path()).unwrap()));
        }
    }
}

/// Returns the comments of a file: lines that follow each other are one text.
fn comments(name: &str, text: &str) -> Vec<String> {
    let marks: &[&str] = match name.rsplit('.').next() {
        Some("rs") => &["///", "//!", "//"],
        Some("lua") => &["--"],
        _ => &["# "],
    };
    let mut comments = vec![String::new()];
    for line in text.lines().map(str::trim) {
        let mut prose = marks.iter().filter_map(|mark| line.strip_prefix(mark));
        match prose.next().map(str::trim) {
            Some(prose) if !prose.is_empty() => {
                let last = comments.last_mut().unwrap();
                last.push(' ');
                last.push_str(prose);
            }
            _ => comments.push(String::new()),
        }
    }
    comments.retain(|comment| !comment.is_empty());
    comments
}

/// Returns true if a text contains a phrase as whole words.
fn has(text: &str, phrase: &str) -> bool {
    text.match_indices(phrase).any(|(at, _)| {
        let is_letter = |c: char| c.is_ascii_alphanumeric() || c == '_';
        let (before, after) = (&text[..at], &text[at + phrase.len()..]);
        !before.ends_with(is_letter) && !after.starts_with(is_letter)
    })
}

#[test]
fn comments_are_sentences_that_one_reads_once() {
    let mut all = Vec::new();
    for folder in ["src", "build", "tests", "benches", "scripts"] {
        files(folder, &mut all);
    }
    assert!(all.len() > 200, "{} files", all.len());
    let mut broken = Vec::new();
    for (name, text) in &all {
        for comment in comments(name, text) {
            let phrase = PHRASES.split('|').find(|phrase| has(&comment, phrase));
            broken.extend(phrase.map(|phrase| format!("{name}: \"{phrase}\" in:{comment}")));
            let ended = ["! ", "? ", ": "]
                .iter()
                .fold(comment, |text, end| text.replace(end, ". "));
            let mut sentences = ended.trim().split(". ");
            let opens = |sentence: &str| {
                let first = sentence.split(' ').next().unwrap_or_default();
                OPENINGS.split(' ').any(|opening| opening == first)
            };
            let opening = sentences.find(|sentence| opens(sentence));
            broken.extend(opening.map(|sentence| format!("{name}: {sentence}")));
        }
        for line in text.lines().map(str::trim) {
            let rest = line.strip_prefix("let ").unwrap_or_default();
            let rest = rest.strip_prefix("mut ").unwrap_or(rest);
            let variable = rest
                .split(|c: char| !c.is_ascii_alphanumeric() && c != '_')
                .next();
            if variable.is_some_and(|variable| NAMES.split(' ').any(|name| name == variable)) {
                broken.push(format!("{name}: {line}"));
            }
        }
    }
    let count = broken.len();
    assert_eq!(count, 0, "{}", broken.join("\n"));
}
