//! Command lines that show a mistake, as they were probably meant: each is shown whole, to be pasted, without URLs. clap
//! reads all that is tried here, and a line is shown only if clap takes it.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use super::usage::is_private_url;
use crate::cli;
use crate::decide::exit::Exit;
use crate::protocol::Name;
use crate::report::{self, quote};
use crate::typed::{self, is_read, url_option};

/// Returns the words as they were probably meant, if they show a mistake.
type Correct = fn(&[OsString]) -> Option<Vec<OsString>>;

/// All mistakes that show in the words. If a line shows several, the first one is named.
const CORRECTIONS: [(&str, Correct); 5] = [
    (
        "put run before the lock's name and its options",
        run_missing,
    ),
    ("a duration is one word", duration_in_parts),
    (
        "redlock's own options go before the --",
        options_after_dashes,
    ),
    (
        "no lock NAME given; to use the command's name as the lock's name",
        name_missing,
    ),
    ("put -- before the command", dashes_missing),
];

/// Returns what is wrong with words that show a mistake, and the line to type.
pub(super) fn corrected(words: &[OsString]) -> Option<String> {
    let mut meant = words.to_vec();
    let mut mistake = None;
    for (name, correct) in CORRECTIONS {
        if let Some(words) = correct(&meant) {
            mistake.get_or_insert(name);
            meant = words;
        }
    }
    let mistake = mistake.filter(|_| is_read(&meant))?;
    Some(format!("{mistake}: redlock {}", shown_line(&meant)))
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
        || before
            .windows(2)
            .any(|two| is_option(&two[1]) && is_shell(&two[0]) || is_split_duration(two))
}

/// Adds `run` to a lock's name, or to options of `run`.
fn run_missing(words: &[OsString]) -> Option<Vec<OsString>> {
    let at = typed::command_at(words)?;
    if typed::command(words).is_some() {
        return None;
    }
    let mut candidates = (0..=at).rev().map(|at| with(words, at, "run"));
    // Without a --, a program after the name says so, as in `flock FILE cmd`.
    candidates.find_map(|words| {
        if is_read(&words) {
            Some(words)
        } else {
            with_dashes(&words, 0, is_program)
        }
    })
}

/// Returns true for a word that may end with a duration, and one that may be the rest of it: with a unit, or the unit alone.
fn is_split_duration(two: &[OsString]) -> bool {
    let is_read = |text: &str| cli::duration(text).is_ok();
    let rest = two[1].to_str().unwrap_or_default();
    let is_rest = match rest.chars().next() {
        Some('0'..='9') => !rest.ends_with(|c: char| c.is_ascii_digit()) && is_read(rest),
        Some('a'..='z') => is_read(&format!("1{rest}")),
        _ => false,
    };
    is_rest && two[0].as_bytes().iter().any(u8::is_ascii_digit)
}

/// Joins a duration that the shell has split: its rest would be the name of a lock.
fn duration_in_parts(words: &[OsString]) -> Option<Vec<OsString>> {
    let end = dashes(words).unwrap_or(words.len());
    (0..end.saturating_sub(1)).find_map(|at| {
        // Anything else than a duration could also have a question mark.
        let mut strange = words.to_vec();
        strange[at].push("?");
        if !is_split_duration(&words[at..at + 2]) || is_read(&strange) {
            return None;
        }
        let join = |to: usize| {
            let whole = words[at..to].join(OsStr::new(""));
            [&words[..at], &[whole], &words[to..]].concat()
        };
        let mut joined = (at + 2..=end.min(at + 8)).rev().map(join);
        joined.find(|words| is_read(words))
    })
}

/// Moves the `--` behind options of `run` that would be COMMAND.
fn options_after_dashes(words: &[OsString]) -> Option<Vec<OsString>> {
    let at = dashes(words)?;
    if !is_run(words) || !is_option(words.get(at + 1)?) {
        return None;
    }
    let without = [&words[..at], &words[at + 1..]].concat();
    // The script of a -c needs no --.
    with_dashes(&without, at, |_| true).or_else(|| Some(without).filter(|words| is_read(words)))
}

/// Adds a name to a COMMAND without a lock.
fn name_missing(words: &[OsString]) -> Option<Vec<OsString>> {
    if !is_run(words) || is_read(words) {
        return None;
    }
    let (at, words) = if let Some(at) = dashes(words) {
        (at, words.to_vec())
    } else {
        let first = typed::command_at(words)? + 1;
        let at = (first..words.len()).find(|&at| is_program(&words[at]))?;
        let others = &words[at + 1..];
        let is_alone = others.is_empty() || others.iter().any(is_program);
        if is_alone && !words[at].as_bytes().contains(&b'/') {
            return None;
        }
        (at, with(words, at, "--"))
    };
    if is_read(&words) {
        return None;
    }
    let name = lock_for(words.get(at + 1..)?);
    Some(with(&words, at, &name)).filter(|words| is_read(words))
}

/// Returns a name for the lock of a command: that of its program, or of the script that a shell runs.
fn lock_for(command: &[OsString]) -> String {
    let mut words = command.iter().filter(|word| !is_shell(word));
    let name = words.find_map(|word| {
        let name = Path::new(word).file_stem()?.to_str()?;
        name.parse::<Name>().is_ok().then(|| name.to_owned())
    });
    name.unwrap_or("job".into())
}

/// Adds the `--` to a run.
fn dashes_missing(words: &[OsString]) -> Option<Vec<OsString>> {
    if !is_run(words) {
        return None;
    }
    if is_read(words) {
        // The -c of a shell isn't redlock's.
        return with_dashes(words, 0, is_shell);
    }
    // The first word is a name, whatever it is. So may those be that follow it, up to one that can be executed.
    with_dashes(words, 0, is_program).or_else(|| with_dashes(words, 0, |_| true))
}

/// Adds a `--` before the first of these words of a COMMAND with which clap reads the line. Words in front of `from` stay there.
fn with_dashes(
    words: &[OsString],
    from: usize,
    is_command: impl Fn(&OsString) -> bool,
) -> Option<Vec<OsString>> {
    if dashes(words).is_some() {
        return None;
    }
    let places = from..words.len();
    let places = places.filter(|&at| !is_option(&words[at]) && is_command(&words[at]));
    let mut candidates = places.take(TRIED).map(|at| with(words, at, "--"));
    candidates.find(|words| is_read(words))
}

/// Number of places that are tried for a missing `--`: a line may be as long as a list of files.
const TRIED: usize = 16;

/// Returns the words with another one at a place.
fn with(words: &[OsString], at: usize, added: &str) -> Vec<OsString> {
    [&words[..at], &[added.into()], &words[at..]].concat()
}

fn dashes(words: &[OsString]) -> Option<usize> {
    words.iter().position(|word| word == "--")
}

fn is_run(words: &[OsString]) -> bool {
    typed::command(words).as_deref() == Some("run")
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

/// Returns a word as a shell takes it in, unless it is a URL, which may contain a password.
pub(super) fn shown_word(word: &OsStr) -> String {
    if is_private_url(&word.to_string_lossy()) {
        return "URL".into();
    }
    quote(word).into_owned()
}

/// Returns a line as it may be typed, after `redlock`. A URL may contain a password, and isn't repeated.
fn shown_line(words: &[OsString]) -> String {
    let end = dashes(words).unwrap_or(words.len());
    let mut is_url = false;
    let shown = words.iter().enumerate().map(|(at, word)| {
        let text = word.to_string_lossy();
        let option = url_option(&text).filter(|_| !is_url && at < end);
        let is_value = is_url;
        is_url = option.is_some_and(|option| option == text);
        match option {
            _ if is_value => "URL".into(),
            Some(option) if !is_url => format!("{option}URL"),
            _ => shown_word(word),
        }
    });
    shown.collect::<Vec<String>>().join(" ")
}

/// Returns the path of a program that can be executed: the word itself if it has a slash, otherwise by $PATH.
pub(super) fn program_path(word: &OsStr) -> Option<PathBuf> {
    let is_executable = |path: &PathBuf| {
        let metadata = path.metadata();
        metadata.is_ok_and(|it| it.is_file() && it.permissions().mode() & 0o111 != 0)
    };
    if word.as_bytes().contains(&b'/') {
        return Some(PathBuf::from(word)).filter(is_executable);
    }
    let directories = std::env::var_os("PATH").unwrap_or_default();
    let mut paths = std::env::split_paths(&directories).map(|directory| directory.join(word));
    paths.find(is_executable)
}

fn is_program(word: &OsString) -> bool {
    program_path(word).is_some()
}
