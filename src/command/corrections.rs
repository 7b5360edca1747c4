//! Command lines that show a mistake, as they were probably meant: each is shown whole, to be pasted, without URLs.
//! clap reads each line that could have been meant, so no second parser is needed.

use std::ffi::{OsStr, OsString};
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use clap::error::ContextKind;

use super::usage::{is_private_url, program_path, with_help};
use crate::cli;
use crate::decide::exit::Exit;
use crate::protocol::Name;
use crate::report::{self, quote};
use crate::typed;

/// A mistake that shows in the words: the fault, and the words as they were probably meant.
type Correction = (&'static str, Vec<OsString>);

/// Looks for one kind of mistake.
type Correct = fn(&[OsString]) -> Option<Correction>;

/// All corrections; of several mistakes in a line, the first in this order is the one that is named.
const CORRECTIONS: [Correct; 5] = [
    run_missing,
    duration_in_parts,
    options_after_dashes,
    name_missing,
    dashes_missing,
];

/// Returns the fault of words that show a mistake, and the line to type: with all mistakes corrected.
pub(super) fn corrected(words: &[OsString]) -> Option<String> {
    let mut words = words.to_vec();
    let mut fault = None;
    for _ in CORRECTIONS {
        let mut all = CORRECTIONS.iter();
        let Some((what, meant)) = all.find_map(|correct| correct(&words)) else {
            break;
        };
        fault.get_or_insert(what);
        words = meant;
    }
    let fault = fault?;
    // Only clap can tell which word is the URL, which may contain a password.
    let Ok(cli) = typed::read(&words) else {
        return Some(with_help(fault, typed::command(&words).as_deref()));
    };
    let shown = words.iter().map(|word| {
        let text = word.to_string_lossy();
        let option = cli
            .common
            .url
            .as_ref()
            .and_then(|url| text.strip_suffix(url));
        match option.filter(|option| option.is_empty() || option.starts_with('-')) {
            Some(option) => format!("{option}URL"),
            None => shown_word(word),
        }
    });
    let line = shown.collect::<Vec<_>>().join(" ");
    Some(format!("{fault}: redlock {line}"))
}

/// Refuses a line that clap takes, and that would take other locks than were meant.
pub fn mistyped(words: &[OsString]) -> Option<Exit> {
    // A closer look at each line would take as long as clap does.
    if !may_be_mistyped(words) {
        return None;
    }
    report::error(corrected(words)?);
    Some(Exit::Usage)
}

/// Returns true if a line is worth a closer look.
fn may_be_mistyped(words: &[OsString]) -> bool {
    let (before, after) = words.split_at(dashes(words).unwrap_or(words.len()));
    after.get(1).is_some_and(is_option)
        || before.windows(2).any(|two| {
            is_option(&two[1]) && is_shell(&two[0])
                || two[0].as_bytes().iter().any(u8::is_ascii_digit)
                    && two[1].to_str().is_some_and(is_part_of_duration)
        })
}

/// A lock's name, or options of `run`, without the `run`.
fn run_missing(words: &[OsString]) -> Option<Correction> {
    if typed::command(words).is_some() {
        return None;
    }
    let is_meant = |words: &Vec<OsString>| {
        // A program after the name shows as much as a -- does: `flock FILE cmd`.
        let has_program = || {
            let (_, words) = dashes_missing(words)?;
            Some(is_program(words.get(dashes(&words)? + 1)?))
        };
        reads(words) || has_program() == Some(true)
    };
    let mut lines = places(words, 0).rev().map(|at| with(words, at, "run"));
    let meant = lines.find(is_meant)?;
    Some(("put run before the lock's name and its options", meant))
}

/// Returns true for a duration with a unit, or for the unit alone.
fn is_part_of_duration(word: &str) -> bool {
    let is_read = |text: &str| cli::duration(text).is_ok();
    match word.chars().next() {
        Some('0'..='9') => !word.ends_with(|c: char| c.is_ascii_digit()) && is_read(word),
        Some('a'..='z') => is_read(&format!("1{word}")),
        _ => false,
    }
}

/// A duration that the shell has split: its rest would be the name of a lock.
fn duration_in_parts(words: &[OsString]) -> Option<Correction> {
    let before = words.iter().take_while(|word| *word != "--");
    let texts: Vec<&str> = before.map(|word| word.to_str()).collect::<Option<_>>()?;
    (1..texts.len()).find_map(|at| {
        let (text, next) = (texts[at - 1], texts[at]);
        let (option, begun) = text.split_at(text.find(|c: char| c.is_ascii_digit())?);
        let whole = begun.to_owned() + next;
        if !is_part_of_duration(next) || cli::duration(&whole).is_err() {
            return None;
        }
        // clap names the option of a value that is no duration.
        let line = |value: &str| {
            let word = OsString::from(format!("{option}{value}"));
            [&words[..at - 1], &[word]].concat()
        };
        let error = typed::read(&line("x")).err()?;
        let is_value = typed::context(&error, ContextKind::InvalidValue) == ["x"]
            && typed::context(&error, ContextKind::InvalidArg)
                .concat()
                .ends_with("<TIME>");
        let meant = [&line(&whole), &words[at + 1..]].concat();
        // Without its rest, the line may lack a NAME, which that was then.
        (is_value && reads(&meant)).then_some(("a duration is one word", meant))
    })
}

/// Options of `run` that would be COMMAND.
fn options_after_dashes(words: &[OsString]) -> Option<Correction> {
    let at = dashes(words).filter(|_| is_run(words))?;
    if !is_option(words.get(at + 1)?) {
        return None;
    }
    let meant = [&words[..at], &words[at + 1..]].concat();
    let meant = if reads(&meant) {
        meant
    } else {
        let program = places(&meant, at).find(|at| may_be_command(&meant, *at))?;
        with(&meant, program, "--")
    };
    Some(("redlock's own options go before the --", meant))
}

/// A COMMAND without a lock.
fn name_missing(words: &[OsString]) -> Option<Correction> {
    if !is_run(words) || reads(words) {
        return None;
    }
    let (at, words) = if let Some(at) = dashes(words) {
        (at, words.to_vec())
    } else {
        let with_name = |at: usize| with(&with(words, at, "--"), at, "x");
        let is_first = |at: &usize| !is_option(&words[*at]) && reads(&with_name(*at));
        let first = places(words, 0).find(is_first)?;
        let (program, others) = words[first..].split_first()?;
        let mut others = others.iter().filter(|word| !is_option(word)).peekable();
        let is_only = others.peek().is_some() && !others.any(|word| is_program(word));
        if !is_program(program) || !(is_only || program.as_bytes().contains(&b'/')) {
            return None;
        }
        (first, with(words, first, "--"))
    };
    let command = words.get(at + 1..).filter(|command| !command.is_empty())?;
    let words = with(&words, at, lock_for(command));
    let fault = "no lock NAME given; to use the command's name as the lock's name";
    reads(&words).then_some((fault, words))
}

/// A name for the lock of a command: that of its program, or of the script that a shell is to run.
fn lock_for(command: &[OsString]) -> String {
    let mut words = command.iter().filter(|word| !is_shell(word));
    let name = words.find_map(|word| {
        let name = Path::new(word).file_stem()?.to_str()?;
        name.parse::<Name>().is_ok().then(|| name.to_owned())
    });
    name.unwrap_or("job".into())
}

/// The `--` is missing.
fn dashes_missing(words: &[OsString]) -> Option<Correction> {
    if !is_run(words) || dashes(words).is_some() {
        return None;
    }
    // A line that clap takes has a script, unless that script is a shell's own.
    let is_whole = reads(words);
    let is_command = |at: &usize| {
        let has_option = || words.get(at + 1).is_some_and(is_option);
        let is_command = if is_whole {
            is_shell(&words[*at]) && has_option()
        } else {
            is_program(&words[*at])
        };
        is_command && may_be_command(words, *at)
    };
    // Several names may stand before COMMAND. If no word is a program, only one does.
    let first = || places(words, 0).find(|at| !is_whole && may_be_command(words, *at));
    let at = places(words, 0).find(is_command).or_else(first)?;
    Some(("put -- before the command", with(words, at, "--")))
}

/// Returns true if COMMAND may begin at this word.
fn may_be_command(words: &[OsString], at: usize) -> bool {
    !is_option(&words[at]) && reads(&with(words, at, "--"))
}

/// Most words that are tried, each by clap.
const MOST_WORDS: usize = 20;

/// Returns the places of words, from the first place on and before the `--`, that may be the wrong ones.
fn places(words: &[OsString], first: usize) -> Range<usize> {
    let end = dashes(words).map_or(words.len(), |at| at + 1);
    first..end.min(first + MOST_WORDS)
}

fn dashes(words: &[OsString]) -> Option<usize> {
    words.iter().position(|word| word == "--")
}

/// The words with another among them, at that place.
fn with(words: &[OsString], at: usize, added: impl Into<OsString>) -> Vec<OsString> {
    [&words[..at], &[added.into()], &words[at..]].concat()
}

/// Returns true if clap takes these words for a command, or for options in front of one.
pub(super) fn reads(words: &[OsString]) -> bool {
    typed::read(words).is_ok()
}

fn is_run(words: &[OsString]) -> bool {
    typed::command(words).is_some_and(|name| name == "run")
}

fn is_option(word: &OsString) -> bool {
    word.len() > 1 && word.as_bytes()[0] == b'-'
}

/// The shells that `-c` is an option of, too.
const SHELLS: [&str; 8] = ["sh", "bash", "dash", "ash", "zsh", "ksh", "mksh", "fish"];

fn is_shell(word: &OsString) -> bool {
    let program = Path::new(word).file_name().and_then(OsStr::to_str);
    program.is_some_and(|program| SHELLS.contains(&program))
}

/// A word as a shell takes it in, unless it is a URL, which may contain a password.
pub(super) fn shown_word(word: &OsStr) -> String {
    if is_private_url(&word.to_string_lossy()) {
        return "URL".into();
    }
    quote(word).into_owned()
}

/// Returns true if this can be executed.
fn is_program(word: &OsStr) -> bool {
    program_path(word).is_some()
}
