//! Command lines that show a mistake, as they were probably meant: each is shown whole, to be pasted, without URLs.
//! It corrects only what shows in the words; a line that clap takes and that shows no mistake stays as it is.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use super::usage::{is_private_url, program_path};
use crate::cli;
use crate::decide::exit::Exit;
use crate::protocol::Name;
use crate::report::{self, quote};
use crate::typed::{Typed, Word, attached};

/// A mistake that shows in the words: what is wrong, and the words as they were probably meant.
type Correction = (String, Vec<OsString>);

/// All that is known of such mistakes; where several show, those in front are mended first.
const CORRECTIONS: [fn(&Typed) -> Option<Correction>; 6] = [
    typographic,
    run_missing,
    duration_in_parts,
    options_after_dashes,
    name_missing,
    dashes_missing,
];

/// What is wrong with words that show a mistake, and the line to type: with all mistakes mended.
pub(super) fn corrected(words: &[OsString]) -> Option<String> {
    let mut typed = Typed::new(words.to_vec());
    let mut said = None;
    for _ in CORRECTIONS {
        let mut all = CORRECTIONS.iter();
        let Some((what, words)) = all.find_map(|correct| correct(&typed)) else {
            break;
        };
        said.get_or_insert(what);
        typed = Typed::new(words);
    }
    said.map(|said| format!("{said}: redlock {}", shown_line(&typed)))
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

/// Whether a line is worth a closer look.
fn may_be_mistyped(words: &[OsString]) -> bool {
    let dashes = words.iter().position(|word| word == "--");
    let (before, after) = words.split_at(dashes.unwrap_or(words.len()));
    after.get(1).is_some_and(is_option)
        || before.iter().any(|word| !word.as_bytes().is_ascii())
        || before.windows(2).any(|two| {
            is_option(&two[1]) && is_shell(&two[0])
                || two[0].as_bytes().iter().any(u8::is_ascii_digit)
                    && two[1].to_str().is_some_and(is_part_of_duration)
        })
}

/// The hyphens and dashes of text processors, of which none begins an option.
const DASHES: &[char] = &[
    '\u{2010}', '\u{2011}', '\u{2012}', '\u{2013}', '\u{2014}', '\u{2015}', '\u{2212}',
];

/// Their quotes, which no shell removes. (The apostrophe is one that closes.)
const OPENING: &[char] = &['\u{2018}', '\u{201c}', '\u{201e}'];
const CLOSING: char = '\u{201d}';

/// Dashes and quotes that a text processor has put in the place of those that were typed.
fn typographic(typed: &Typed) -> Option<Correction> {
    let kinds = typed.kinds();
    let is_typographic =
        |text: &str| text.starts_with(DASHES) || text.contains(OPENING) || text.contains(CLOSING);
    let (at, text) = typed.words.iter().enumerate().find_map(|(at, word)| {
        let text = word.to_str().filter(|text| is_typographic(text))?;
        (kinds[at] == Word::Plain).then_some((at, text))
    })?;
    let mut words = typed.words.clone();
    let wrong = format!("{} has a typographic", shown_word(&words[at]));
    if text.starts_with(DASHES) {
        let name = text.trim_start_matches(DASHES);
        let long = name.split('=').next().unwrap_or(name);
        let is_long = name.is_empty() || typed.has_option(long);
        words[at] = format!("{}{name}", if is_long { "--" } else { "-" }).into();
        let wrong = format!("{wrong} dash instead of a -");
        return Some((wrong, words));
    }
    // The shell has split what stands between them.
    let opens = |at: &usize| words[*at].to_string_lossy().contains(OPENING);
    let first = (0..=at).rev().find(opens).unwrap_or(at);
    let whole = words[first..=at].join(OsStr::new(" "));
    let is_quote = |c: char| OPENING.contains(&c) || c == CLOSING || c == '\u{2019}';
    let whole = whole.to_string_lossy().replace(is_quote, "");
    words.splice(first..=at, [whole.into()]);
    let wrong = format!("{wrong} quote, which a shell treats as an ordinary character");
    Some((wrong, words))
}

/// A lock's name, or options of `run`, without the `run`.
fn run_missing(typed: &Typed) -> Option<Correction> {
    if typed.command().is_some() {
        return None;
    }
    let mut kinds = typed.kinds().into_iter();
    let begins = kinds.position(|kind| matches!(kind, Word::Plain | Word::UnknownOption))?;
    let words = with(&typed.words, begins, "run".into());
    // Where no -- says so, a program after the name does: `flock FILE cmd`.
    let has_program = || {
        let (_, words) = dashes_missing(&Typed::new(words.clone()))?;
        let dashes = words.iter().position(|word| word == "--")?;
        Some(reads(&words) && is_program(words.get(dashes + 1)?))
    };
    let wrong = "put run before the lock's name and its options";
    (reads(&words) || has_program() == Some(true)).then(|| (wrong.into(), words))
}

/// Whether a word is a duration with a unit, or the unit alone.
fn is_part_of_duration(word: &str) -> bool {
    let is_read = |text: &str| cli::duration(text).is_ok();
    match word.chars().next() {
        Some('0'..='9') => !word.ends_with(|c: char| c.is_ascii_digit()) && is_read(word),
        Some('a'..='z') => is_read(&format!("1{word}")),
        _ => false,
    }
}

/// A duration that the shell has split: its rest would be the name of a lock.
fn duration_in_parts(typed: &Typed) -> Option<Correction> {
    let kinds = typed.kinds();
    let plain = |at: usize| {
        let is_plain = kinds.get(at) == Some(&Word::Plain);
        typed.words.get(at).filter(|_| is_plain)?.to_str()
    };
    let takes_duration = |option: &clap::Arg| {
        let names = option.get_value_names().unwrap_or_default();
        names.iter().any(|name| name == "TIME")
    };
    (0..kinds.len()).find_map(|at| {
        let text = typed.words[at].to_str()?;
        let begun = match kinds[at] {
            Word::Value(option) if takes_duration(option) => text,
            Word::Option(option) if takes_duration(option) => attached(option, text)?,
            _ => return None,
        };
        plain(at + 1).filter(|next| !begun.is_empty() && is_part_of_duration(next))?;
        let rest: Vec<&str> = (at + 1..).map_while(plain).take(8).collect();
        let is_whole =
            |parts: &usize| cli::duration(&(begun.to_owned() + &rest[..*parts].concat())).is_ok();
        let parts = (1..=rest.len()).rev().find(is_whole)?;
        let mut words = typed.words.clone();
        let whole = text.to_owned() + &rest[..parts].concat();
        words.splice(at..=at + parts, [whole.into()]);
        let wrong = "a duration is one word".into();
        Some((wrong, words))
    })
}

/// Options of `run` that would be COMMAND.
fn options_after_dashes(typed: &Typed) -> Option<Correction> {
    let at = typed.words.iter().position(|word| word == "--")?;
    if typed.name() != Some("run") || !is_option(typed.words.get(at + 1)?) {
        return None;
    }
    let meant = Typed::new([&typed.words[..at], &typed.words[at + 1..]].concat());
    let kinds = meant.kinds();
    if !matches!(kinds[at], Word::Option(_)) {
        return None;
    }
    let words = if kinds[at..].iter().any(is_script) {
        meant.words
    } else {
        let program = kinds[at..].iter().position(|kind| *kind == Word::Plain)?;
        with(&meant.words, at + program, "--".into())
    };
    let wrong = "redlock's own options go before the --".into();
    Some((wrong, words))
}

/// A COMMAND without a lock.
fn name_missing(typed: &Typed) -> Option<Correction> {
    if typed.name() != Some("run") {
        return None;
    }
    let kinds = typed.kinds();
    let find = |wanted| kinds.iter().position(|kind| *kind == wanted);
    let (at, words) = match (find(Word::Plain), find(Word::Dashes)) {
        (None, Some(dashes)) => (dashes, typed.words.clone()),
        (Some(first), None) => {
            let program = &typed.words[first];
            let mut others = typed.words[first + 1..].iter().zip(&kinds[first + 1..]);
            let is_only = others.clone().any(|(_, kind)| *kind == Word::Plain)
                && !others.any(|(word, kind)| *kind == Word::Plain && is_program(word));
            let is_command = is_program(program) && (is_only || program.as_bytes().contains(&b'/'));
            let is_strange = kinds[..first].contains(&Word::UnknownOption);
            if !is_command || is_strange || kinds.iter().any(is_script) {
                return None;
            }
            (first, with(&typed.words, first, "--".into()))
        }
        _ => return None,
    };
    let command = words.get(at + 1..).filter(|command| !command.is_empty())?;
    let name = lock_for(command).into();
    let wrong = "no lock NAME given; to use the command's name as the lock's name";
    Some((wrong.into(), with(&words, at, name)))
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
fn dashes_missing(typed: &Typed) -> Option<Correction> {
    let kinds = typed.kinds();
    if typed.name() != Some("run") || kinds.contains(&Word::Dashes) {
        return None;
    }
    let plain = (0..kinds.len()).filter(|&at| kinds[at] == Word::Plain);
    // The first word is a name, whatever it is. So may those be that follow it, up to one that can be executed.
    let others: Vec<usize> = plain.skip(1).collect();
    let has_script =
        |&at: &usize| is_shell(&typed.words[at]) && kinds.get(at + 1).is_some_and(is_script);
    // Else the script of a -c is what is to be run.
    if kinds.iter().any(is_script) && !others.iter().any(has_script) {
        return None;
    }
    let mut programs = others.iter().filter(|&&at| is_program(&typed.words[at]));
    let program = *programs.next().or(others.first())?;
    let is_strange = kinds[..program].contains(&Word::UnknownOption);
    let words = || with(&typed.words, program, "--".into());
    (!is_strange).then(|| ("put -- before the command".into(), words()))
}

/// The words with another among them, at that place.
fn with(words: &[OsString], at: usize, added: OsString) -> Vec<OsString> {
    [&words[..at], &[added], &words[at..]].concat()
}

/// Whether clap takes these words for a command, or for options in front of one.
pub(super) fn reads(words: &[OsString]) -> bool {
    Typed::new(words.to_vec()).read().is_ok()
}

fn is_option(word: &OsString) -> bool {
    word.len() > 1 && word.as_bytes()[0] == b'-'
}

/// Whether this is the option of `run` for a script.
fn is_script(kind: &Word) -> bool {
    matches!(kind, Word::Option(option) if option.get_long() == Some("shell"))
}

/// The shells that `-c` is an option of, too.
const SHELLS: [&str; 8] = ["sh", "bash", "dash", "ash", "zsh", "ksh", "mksh", "fish"];

fn is_shell(word: &OsString) -> bool {
    let program = Path::new(word).file_name().and_then(OsStr::to_str);
    program.is_some_and(|program| SHELLS.contains(&program))
}

/// A word as a shell takes it in, unless it is a URL, which may contain a password.
pub(super) fn shown_word(word: &OsStr) -> String {
    if word.to_string_lossy().contains("://") {
        return "URL".into();
    }
    quote(word).into_owned()
}

/// A line as it may be typed, after `redlock`. A URL may contain a password, and isn't repeated.
fn shown_line(typed: &Typed) -> String {
    let is_url = |option: &clap::Arg| option.get_long() == Some("url");
    let words = typed.words.iter().zip(typed.kinds());
    let shown = words.map(|(word, kind)| {
        let text = word.to_string_lossy();
        match kind {
            Word::Value(option) if is_url(option) => "URL".into(),
            Word::Option(option) if is_url(option) => {
                let value = attached(option, &text);
                let name = value.map_or(&*text, |value| &text[..text.len() - value.len()]);
                format!("{name}{}", value.map_or("", |_| "URL"))
            }
            Word::AfterDashes if is_private_url(&text) => "URL".into(),
            Word::AfterDashes => quote(word).into_owned(),
            _ => shown_word(word),
        }
    });
    shown.collect::<Vec<String>>().join(" ")
}

/// Returns true if this can be executed.
fn is_program(word: &OsStr) -> bool {
    program_path(word).is_some()
}
