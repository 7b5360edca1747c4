//! Command lines that show a mistake, as they were probably meant: each is shown whole, to be pasted.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use super::usage::{is_private_url, read, shell_word, shown_word};
use crate::cli;
use crate::exit::Exit;
use crate::lock::Name;
use crate::report;
use crate::typed::{Typed, Word};

/// A mistake that shows in the words: what to say of it, and the words as they were probably meant.
struct Correction {
    said: String,
    words: Vec<OsString>,
}

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
        let Some(found) = CORRECTIONS.iter().find_map(|correct| correct(&typed)) else {
            break;
        };
        said.get_or_insert(found.said);
        typed = Typed::new(found.words);
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
    let is_option = |word: &OsString| word.len() > 1 && word.as_bytes()[0] == b'-';
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

/// Their quotes, which no shell removes. (The apostrophe is one of them.)
const QUOTES: &[char] = &['\u{2018}', '\u{201c}', '\u{201d}', '\u{201e}'];

/// Dashes and quotes that a text processor has put in the place of those that were typed.
fn typographic(typed: &Typed) -> Option<Correction> {
    let kinds = typed.kinds();
    let is_option = |name: &str| {
        let mut all = typed
            .command
            .as_ref()
            .unwrap_or(&typed.root)
            .get_arguments();
        all.any(|option| option.get_long() == Some(name))
    };
    for (at, word) in typed.words.iter().enumerate() {
        let Some(text) = word.to_str().filter(|_| kinds[at] == Word::Plain) else {
            continue;
        };
        let mut words = typed.words.clone();
        let said = format!("{} has a typographic", shown_word(word));
        if let Some(name) = text.strip_prefix(DASHES) {
            let name = name.trim_start_matches(DASHES);
            let is_long = name.is_empty() || is_option(name.split('=').next().unwrap_or(name));
            words[at] = format!("{}{name}", if is_long { "--" } else { "-" }).into();
            let said = format!("{said} dash, and not a -");
            return Some(Correction { said, words });
        }
        if text.contains(QUOTES) {
            // The shell has split what stands between them.
            let opens = |at: &usize| {
                words[*at]
                    .to_string_lossy()
                    .contains(['\u{2018}', '\u{201c}', '\u{201e}'])
            };
            let first = (0..=at).rev().find(opens).unwrap_or(at);
            let whole = words[first..=at].join(OsStr::new(" "));
            let whole = whole
                .to_string_lossy()
                .replace([QUOTES, &['\u{2019}']].concat().as_slice(), "");
            words.splice(first..=at, [whole.into()]);
            let said = format!("{said} quote, which the shell doesn't know");
            return Some(Correction { said, words });
        }
    }
    None
}

/// A lock's name, or options of `run`, without the `run`.
fn run_missing(typed: &Typed) -> Option<Correction> {
    if typed.command.is_some() {
        return None;
    }
    let kinds = typed.kinds();
    let mut begins = kinds.iter();
    let begins = begins.position(|kind| matches!(kind, Word::Plain | Word::UnknownOption))?;
    let words = with(&typed.words, begins, &["run".into()]);
    // Where no -- says so, a program after the name does: `flock FILE cmd`.
    let has_program = || {
        let found = dashes_missing(&Typed::new(words.clone()))?;
        let dashes = found.words.iter().position(|word| word == "--")?;
        (read(&found.words).is_ok() && is_program(found.words.get(dashes + 1)?)).then_some(())
    };
    (read(&words).is_ok() || has_program().is_some()).then(|| Correction {
        said: "put run before the lock's name and its options".into(),
        words,
    })
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
    let begins = typed.command_at? + 1;
    let arguments = typed.arguments();
    let plain = |at: usize| match arguments.get(at) {
        Some((word, Word::Plain)) => word.to_str(),
        _ => None,
    };
    let takes_duration = |option: &clap::Arg| {
        let names = option.get_value_names().unwrap_or_default();
        names.iter().any(|name| name == "DURATION")
    };
    for (at, (word, kind)) in arguments.iter().enumerate() {
        let Some(text) = word.to_str() else { continue };
        let value = match kind {
            Word::Value(option) if takes_duration(option) => text,
            Word::Option(option) if takes_duration(option) => {
                let short = option.get_short().unwrap_or('=');
                let parts = text.split_once('=').or_else(|| text.split_once(short));
                parts.map_or("", |(_, value)| value)
            }
            // With two arguments the first may be a name.
            Word::Plain if typed.name() == Some("extend") && plain(2).is_some() => text,
            _ => continue,
        };
        if !plain(at + 1).is_some_and(is_part_of_duration) {
            continue;
        }
        let rest: Vec<&str> = (at + 1..).map_while(plain).take(8).collect();
        let is_whole = |parts: &usize| {
            let whole = format!("{value}{}", rest[..*parts].concat());
            cli::duration(&whole).is_ok() && !value.is_empty()
        };
        let Some(parts) = (1..=rest.len()).rev().find(is_whole) else {
            continue;
        };
        let mut words = typed.words.clone();
        let whole = format!("{text}{}", rest[..parts].concat());
        words.splice(begins + at..=begins + at + parts, [whole.into()]);
        let said = "a duration is one word".into();
        return Some(Correction { said, words });
    }
    None
}

/// Options of `run` that would be COMMAND.
fn options_after_dashes(typed: &Typed) -> Option<Correction> {
    let at = typed.words.iter().position(|word| word == "--")?;
    let first = typed.words.get(at + 1)?.as_bytes();
    if typed.name() != Some("run") || first.len() < 2 || first[0] != b'-' {
        return None;
    }
    let words = [&typed.words[..at], &typed.words[at + 1..]].concat();
    let meant = Typed::new(words);
    let kinds = meant.kinds();
    if !matches!(kinds[at], Word::Option(_)) {
        return None;
    }
    let program = (at..kinds.len()).find(|&at| kinds[at] == Word::Plain);
    let has_script = (at..kinds.len()).any(|at| is_script(kinds[at]));
    let words = match program {
        _ if has_script => meant.words,
        Some(program) => with(&meant.words, program, &["--".into()]),
        None => return None,
    };
    let said = "options of redlock stand before the --".into();
    Some(Correction { said, words })
}

/// A COMMAND without a lock.
fn name_missing(typed: &Typed) -> Option<Correction> {
    if typed.name() != Some("run") {
        return None;
    }
    let arguments = typed.arguments();
    let find = |wanted| arguments.iter().position(|(_, kind)| *kind == wanted);
    let (dashes, command) = match (find(Word::Plain), find(Word::Dashes)) {
        (None, Some(dashes)) => (None, dashes + 1),
        (Some(first), None) => {
            let is_path = arguments[first].0.as_bytes().contains(&b'/');
            let is_other = |(_, kind): &&(&OsStr, Word)| *kind == Word::Plain;
            let mut others = arguments[first + 1..].iter().filter(is_other).peekable();
            let is_only = others.peek().is_some() && !others.any(|(word, _)| is_program(word));
            let is_command = is_program(arguments[first].0) && (is_path || is_only);
            let has_others = arguments[..first]
                .iter()
                .any(|(_, kind)| *kind == Word::UnknownOption);
            if !is_command || has_others || arguments.iter().any(|(_, kind)| is_script(*kind)) {
                return None;
            }
            (Some("--"), first)
        }
        _ => return None,
    };
    let begins = typed.command_at? + 1 + command;
    let name = lock_for(
        typed
            .words
            .get(begins..)
            .filter(|words| !words.is_empty())?,
    );
    let (at, added) = match dashes {
        Some(dashes) => (begins, vec![name.into(), dashes.into()]),
        None => (begins - 1, vec![name.into()]),
    };
    Some(Correction {
        said: "no lock NAME given; with one named after the command".into(),
        words: with(&typed.words, at, &added),
    })
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
    if typed.name() != Some("run") {
        return None;
    }
    let arguments = typed.arguments();
    if arguments.iter().any(|(_, kind)| *kind == Word::Dashes) {
        return None;
    }
    let plain: Vec<usize> = (0..arguments.len())
        .filter(|&at| arguments[at].1 == Word::Plain)
        .collect();
    // The first word is a name, whatever it is. So may those be that follow it, up to one that can be executed.
    let others = plain.get(1..)?;
    let is_shell_with_script = |&at: &usize| {
        is_shell(arguments[at].0) && arguments.get(at + 1).is_some_and(|it| is_script(it.1))
    };
    // Else the script of a -c is what is to be run.
    let has_script = arguments.iter().any(|(_, kind)| is_script(*kind));
    if has_script && !others.iter().any(is_shell_with_script) {
        return None;
    }
    let mut programs = others.iter().filter(|&&at| is_program(arguments[at].0));
    let program = *programs.next().or(others.first())?;
    let unknown = |(_, kind): &(&OsStr, Word)| *kind == Word::UnknownOption;
    if arguments[..program].iter().any(unknown) {
        return None;
    }
    let begins = typed.command_at? + 1 + program;
    Some(Correction {
        said: "put -- before the command".into(),
        words: with(&typed.words, begins, &["--".into()]),
    })
}

/// The words with others among them, from there on.
fn with(words: &[OsString], at: usize, added: &[OsString]) -> Vec<OsString> {
    [&words[..at], added, &words[at..]].concat()
}

/// Whether this is the option of `run` for a script.
fn is_script(kind: Word) -> bool {
    matches!(kind, Word::Option(option) if option.get_long() == Some("shell"))
}

/// The shells that `-c` is an option of, too.
const SHELLS: [&str; 8] = ["sh", "bash", "dash", "ash", "zsh", "ksh", "mksh", "fish"];

fn is_shell(word: &OsStr) -> bool {
    let program = Path::new(word).file_name().and_then(OsStr::to_str);
    program.is_some_and(|program| SHELLS.contains(&program))
}

/// The words with each value that is a negative number tied to its option, if there is one.
pub(super) fn with_negative_values(typed: &Typed) -> Option<Vec<OsString>> {
    let is_number = |word: &OsString| matches!(word.as_bytes(), [b'-', b'0'..=b'9', ..]);
    let mut words = Vec::new();
    for (word, kind) in typed.words.iter().zip(typed.kinds()) {
        match (kind, words.last_mut()) {
            (Word::Value(_), Some(option)) if is_number(word) => {
                let option: &mut OsString = option;
                option.push("=");
                option.push(word);
            }
            _ => words.push(word.clone()),
        }
    }
    (words.len() < typed.words.len()).then_some(words)
}

/// A line as it may be typed, after `redlock`. A URL may contain a password, and isn't repeated.
fn shown_line(typed: &Typed) -> String {
    let words = typed.words.iter().zip(typed.kinds());
    let shown = words.map(|(word, kind)| match kind {
        Word::Value(option) if option.get_long() == Some("url") => "URL".into(),
        Word::Option(option) if option.get_long() == Some("url") => {
            let text = word.to_string_lossy();
            let name = if text.starts_with("--") {
                text.find('=').map(|at| &text[..=at])
            } else {
                text.find('u').map(|at| &text[..=at])
            };
            match name {
                Some(name) if name.len() < text.len() => format!("{name}URL"),
                _ => text.into_owned(),
            }
        }
        Word::AfterDashes if is_private_url(&word.to_string_lossy()) => "URL".into(),
        Word::AfterDashes => shell_word(word),
        _ => shown_word(word),
    });
    shown.collect::<Vec<String>>().join(" ")
}

/// Whether this can be executed.
pub(super) fn is_program(word: &OsStr) -> bool {
    let is_executable = |path: &Path| {
        let found = path.metadata();
        found.is_ok_and(|found| found.is_file() && found.permissions().mode() & 0o111 != 0)
    };
    if word.as_bytes().contains(&b'/') {
        return is_executable(Path::new(word));
    }
    let directories = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&directories).any(|directory| is_executable(&directory.join(word)))
}
