//! Collects all messages of redlock in one file to read through: messages.txt, sorted by the parts of the program. A new or
//! changed message changes it; `UPDATE=1 cargo test --locked --test integration -- messages::` writes it.
//!
//! The messages are the string literals of the code, with an example instead of each value, so none can be forgotten. Words of
//! tables, help, and texts of fewer than four words are left out.

use std::collections::HashSet;
use std::fmt::Write as _;
use std::fs;

use crate::generated::root;
use crate::tidy::sources;

/// Files whose literals aren't messages: help and metrics have their own tests, and the others contain another language, or
/// lists of words.
const NO_SENTENCES: [&str; 4] = [
    "cli/mod.rs",
    "command/history/chart.rs",
    "command/status/prometheus.rs",
    "job/privacy.rs",
];

/// Example for each value in a message.
const EXAMPLES: [(&[&str], &str); 12] = [
    (&["name", "ours", "lock"], "deploy"),
    (&["server", "self", "place"], "redis:6379"),
    (&["address", "primary", "other"], "10.0.0.2:6379"),
    (&["whom", "whose", "who", "holder"], "ci@ci-7 (pid 4121)"),
    (&["left", "ttl", "lasting", "late", "ago", "running"], "30s"),
    (&["host"], "redis"),
    (&["path"], "/var/lib/deploy.fence"),
    (&["program"], "ssh"),
    (&["pid", "number"], "4121"),
    (&["id"], "299fb62cd560"),
    (&["error"], "connection refused"),
    (&["user"], "user \"jobs\""),
];

/// Returns the literals of a source file, without its comments.
fn literals(source: &str) -> Vec<String> {
    let quoted = ["'\"'", "'/'", "'\\"];
    let mut rest = source;
    let mut literals = Vec::new();
    while let Some(at) = rest.find(['"', '/', '\'']) {
        let is_for_people = !rest[..at].ends_with("expect(");
        rest = &rest[at..];
        if rest.starts_with("//") {
            rest = &rest[rest.find('\n').unwrap_or(rest.len())..];
        } else if quoted.iter().any(|start| rest.starts_with(start)) {
            rest = &rest[3..];
        } else if let Some(text) = rest.strip_prefix('"') {
            let mut is_escaped = false;
            let end = text.find(|c| {
                let ends = c == '"' && !is_escaped;
                is_escaped = c == '\\' && !is_escaped;
                ends
            });
            let end = end.expect("the end of a literal");
            if is_for_people {
                literals.push(text[..end].to_owned());
            }
            rest = &text[end + 1..];
        } else {
            rest = &rest[1..];
        }
    }
    literals
}

/// Returns a literal as it is printed, with examples for its values; `None` if it is no sentence.
fn sentence(literal: &str) -> Option<String> {
    let lines = literal.split("\\\n").map(str::trim_start);
    let text: String = lines.collect();
    let text = text
        .replace("\\\"", "\"")
        .replace("\\n", "")
        .replace("{{", "")
        .replace("}}", "");
    let mut sentence = String::new();
    let mut own = String::new();
    let mut parts = text.split('{');
    let first = parts.next().unwrap_or_default();
    sentence += first;
    own += first;
    for part in parts {
        let (value, after) = part.split_once('}')?;
        let value = value.split(':').next().unwrap_or_default();
        let mut examples = EXAMPLES.iter();
        let example = examples.find(|(values, _)| values.contains(&value));
        sentence += example.map_or("…", |(_, example)| example);
        sentence += after;
        own += " ";
        own += after;
    }
    let is_word = |word: &&str| word.len() > 1 && word.bytes().all(|b| b.is_ascii_alphabetic());
    let letters = |c: char| !c.is_ascii_alphanumeric() && c != '_' && c != '-';
    let words = own.split(' ').flat_map(|word| word.split(letters));
    let is_sentence = own.contains(' ') && words.filter(is_word).count() >= 4;
    is_sentence.then_some(sentence)
}

#[test]
fn every_sentence_that_redlock_prints_is_in_the_list_of_messages() {
    let mut list = "\
All sentences that redlock prints, by the parts of the program. Values are examples; … is any other value.
Written by: UPDATE=1 cargo test --locked --test integration -- messages::
"
    .to_owned();
    let mut files = sources();
    files.retain(|(name, _)| !NO_SENTENCES.contains(&&**name));
    files.sort();
    let mut seen = HashSet::new();
    let part = |name: &str| name.split(['/', '.']).next().unwrap().to_owned();
    for files in files.chunk_by(|(one, _), (other, _)| part(one) == part(other)) {
        let literals = files.iter().flat_map(|(_, source)| literals(source));
        let mut sentences: Vec<String> = literals.filter_map(|text| sentence(&text)).collect();
        sentences.retain(|sentence| seen.insert(sentence.clone()));
        if !sentences.is_empty() {
            let part = part(&files[0].0);
            let _ = write!(list, "\n[{part}]\n{}\n", sentences.join("\n"));
        }
    }
    let file = root().join("tests/integration/messages.txt");
    if std::env::var_os("UPDATE").is_some() {
        fs::write(&file, &list).unwrap();
    }
    let committed = fs::read_to_string(&file).unwrap_or_default();
    assert!(list.lines().count() > 300, "the sentences were not found");
    let mut lines = list.lines();
    let differs = lines.find(|line| !committed.lines().any(|other| other == *line));
    assert!(
        committed == list,
        "messages.txt is out of date (UPDATE=1 writes it): {differs:?}"
    );
}
