//! Corrections of command lines that lack a word. Each suggestion is a whole line to
//! paste, without URLs. clap judges each candidate line, so this module needs no parser.

use std::ffi::{OsStr, OsString};
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use crate::cli::is_shell;
use crate::protocol::Name;
use crate::report::quote;
use crate::typed;
use crate::usage::{is_private_url, program_path};

/// Completes a line that lacks one kind of word.
type Completion = fn(&[OsString]) -> Option<Vec<OsString>>;

/// Words that may be missing, with the error messages. Only the first missing one is reported.
const MISSING: [(&str, Completion); 3] = [
    ("put run before the lock's name and its options", with_run),
    ("put -- before the command", with_dashes),
    (
        "no lock NAME given; to use the command's name as the lock's name",
        with_name,
    ),
];

/// Returns an error message with the corrected line, if words of a run are missing.
pub(super) fn corrected(words: &[OsString]) -> Option<String> {
    let mut words = words.to_vec();
    let mut fault = None;
    for (what, complete) in MISSING {
        if let Some(meant) = complete(&words) {
            fault.get_or_insert(what);
            words = meant;
        }
    }
    let fault = fault?;
    // Only clap can tell which word is the URL, and the URL may contain a password.
    let url = typed::read(&words).ok()?.common.url;
    let shown = words.iter().map(|word| {
        let text = word.to_string_lossy();
        let option = url.as_ref().and_then(|url| text.strip_suffix(url));
        match option.filter(|option| option.is_empty() || option.starts_with('-')) {
            Some(option) => format!("{option}URL"),
            None if is_private_url(&text) => "URL".into(),
            None => quote(word).into_owned(),
        }
    });
    let line = shown.collect::<Vec<_>>().join(" ");
    Some(format!("{fault}: redlock {line}"))
}

/// Inserts a missing `run` before a lock's name and options. A program
/// after the name is as clear a sign as a `--`: `flock FILE cmd`.
fn with_run(words: &[OsString]) -> Option<Vec<OsString>> {
    if typed::command(words).is_some() {
        return None;
    }
    let names_program =
        |it: &Vec<OsString>| command_place(it).is_some_and(|at| is_program(&it[at]));
    let mut lines = places(words).rev().map(|at| with(words, at, "run"));
    lines.find(|line| reads(line) || names_program(line))
}

/// Inserts a missing `--` before COMMAND.
fn with_dashes(words: &[OsString]) -> Option<Vec<OsString>> {
    Some(with(words, command_place(words)?, "--"))
}

/// Returns the index of COMMAND in a run without a `--`.
fn command_place(words: &[OsString]) -> Option<usize> {
    if !is_run(words) || dashes(words).is_some() {
        return None;
    }
    let is_option = |word: &OsString| word.len() > 1 && word.as_bytes()[0] == b'-';
    let may_begin = |at: &usize| !is_option(&words[*at]) && reads(&with(words, *at, "--"));
    let mut places = places(words).filter(may_begin);
    let first = places.next()?;
    // Several names may precede COMMAND. If no word is a program, there is only one name.
    let mut all = std::iter::once(first).chain(places);
    let program = all.find(|at| is_program(&words[*at]));
    program.or_else(|| (!is_program(&words[first - 1])).then_some(first))
}

/// Inserts a NAME before the `--`, taken from COMMAND's program, or from the script that a shell runs.
fn with_name(words: &[OsString]) -> Option<Vec<OsString>> {
    let at = dashes(words).filter(|_| is_run(words) && !reads(words))?;
    let mut command = words[at + 1..].iter().filter(|word| !is_shell(word));
    let name = command.find_map(|word| {
        let name = Path::new(word).file_stem()?.to_str()?;
        name.parse::<Name>().is_ok().then_some(name)
    });
    Some(with(words, at, name.unwrap_or("job"))).filter(|meant| reads(meant))
}

/// Largest number of words to try, because clap reads a whole line for each.
const MOST_WORDS: usize = 20;

/// Returns the indices at which a word may be missing: those up to the `--`.
fn places(words: &[OsString]) -> Range<usize> {
    let end = dashes(words).map_or(words.len(), |at| at + 1);
    0..end.min(MOST_WORDS)
}

fn dashes(words: &[OsString]) -> Option<usize> {
    words.iter().position(|word| word == "--")
}

/// Returns the words with another one inserted at an index.
fn with(words: &[OsString], at: usize, added: &str) -> Vec<OsString> {
    [&words[..at], &[added.into()], &words[at..]].concat()
}

/// Returns true if clap accepts these words as a command line.
pub(super) fn reads(words: &[OsString]) -> bool {
    typed::read(words).is_ok()
}

fn is_run(words: &[OsString]) -> bool {
    typed::command(words).is_some_and(|name| name == "run")
}

/// Returns true if this word names an executable file.
fn is_program(word: &OsStr) -> bool {
    program_path(word).is_some()
}
