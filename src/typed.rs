//! The command line as it was typed: what each of its words is. Pure.
//!
//! clap tells what a command line means, and of a wrong one only what it stumbled over. What a user
//! wanted to type, and which options a setting may stand in for, takes a look at the words.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;

use clap::{Arg, CommandFactory};

use crate::cli::Cli;

/// What a word of a command line is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Word<'a> {
    /// An option, or several short ones; the last of them.
    Option(&'a Arg),
    UnknownOption,
    /// The value of the option before it.
    Value(&'a Arg),
    /// A command, a name, a file.
    Plain,
    /// The `--`.
    Dashes,
    /// What stands after it.
    AfterDashes,
}

/// A command line, split at the name of the command.
#[derive(Debug)]
pub struct Typed {
    /// All words after `redlock`.
    pub words: Vec<OsString>,
    /// Where the name of the command stands.
    pub command_at: Option<usize>,
    /// The command with that name.
    pub command: Option<clap::Command>,
    pub root: clap::Command,
}

impl Typed {
    /// Looks at all words after `redlock`.
    pub fn new(words: Vec<OsString>) -> Self {
        let mut root = Cli::command();
        let command_at = kinds(&root, &words)
            .iter()
            .position(|word| *word == Word::Plain);
        let name = command_at.and_then(|at| words[at].to_str());
        let command = name.and_then(|name| {
            let command = root.find_subcommand_mut(name)?;
            command.build();
            Some(command.clone())
        });
        Self {
            words,
            command_at,
            command,
            root,
        }
    }

    /// The name of the command, where there is one of that name.
    pub fn name(&self) -> Option<&str> {
        self.command.as_ref().map(clap::Command::get_name)
    }

    /// What all the words are; what follows an unknown command, as arguments of redlock itself.
    pub fn kinds(&self) -> Vec<Word<'_>> {
        let known = self.command_at.filter(|_| self.command.is_some());
        let end = known.map_or(self.words.len(), |at| at + 1);
        let mut all = kinds(&self.root, &self.words[..end]);
        all.extend(self.arguments().into_iter().map(|(_, kind)| kind));
        all
    }

    /// The words after the command's name, and what they are.
    pub fn arguments(&self) -> Vec<(&OsStr, Word<'_>)> {
        let (Some(at), Some(command)) = (self.command_at, &self.command) else {
            return Vec::new();
        };
        let words = &self.words[at + 1..];
        let kinds = kinds(command, words);
        words.iter().map(OsString::as_os_str).zip(kinds).collect()
    }
}

/// What each word is, as the arguments of this command.
fn kinds<'a>(command: &'a clap::Command, words: &[OsString]) -> Vec<Word<'a>> {
    let mut kinds = Vec::new();
    let mut wants_value: Option<&Arg> = None;
    let mut after_dashes = false;
    for word in words {
        let bytes = word.as_bytes();
        let is_option = bytes.len() > 1 && bytes[0] == b'-';
        kinds.push(if after_dashes {
            Word::AfterDashes
        } else if let Some(option) = wants_value.take()
            && !(is_option && is_value_optional(option))
        {
            Word::Value(option)
        } else if bytes == b"--" {
            after_dashes = true;
            Word::Dashes
        } else if is_option {
            let (kind, wants) = option(command, bytes);
            wants_value = wants;
            kind
        } else {
            Word::Plain
        });
    }
    kinds
}

fn is_value_optional(option: &Arg) -> bool {
    option
        .get_num_args()
        .is_some_and(|values| values.min_values() == 0)
}

/// What an option is, and which one takes the next word as its value.
fn option<'a>(command: &'a clap::Command, word: &[u8]) -> (Word<'a>, Option<&'a Arg>) {
    let takes_value = |option: &Arg| option.get_action().takes_values();
    if let Some(long) = word.strip_prefix(b"--") {
        let end = long.iter().position(|&byte| byte == b'=');
        let name = &long[..end.unwrap_or(long.len())];
        let known = command.get_arguments().find(|option| {
            let all = option.get_long_and_visible_aliases().unwrap_or_default();
            let hidden = option.get_all_aliases().unwrap_or_default();
            all.into_iter()
                .chain(hidden)
                .any(|long| long.as_bytes() == name)
        });
        let wants = known.filter(|option| end.is_none() && takes_value(option));
        return (known.map_or(Word::UnknownOption, Word::Option), wants);
    }
    let mut last = None;
    let letters = String::from_utf8_lossy(&word[1..]).into_owned();
    for (at, letter) in letters.char_indices() {
        let known = command.get_arguments().find(|option| {
            let all = option.get_short_and_visible_aliases().unwrap_or_default();
            let hidden = option.get_all_short_aliases().unwrap_or_default();
            all.into_iter().chain(hidden).any(|short| short == letter)
        });
        let Some(option) = known else {
            return (Word::UnknownOption, None);
        };
        last = Some(option);
        if takes_value(option) {
            let is_last = at + letter.len_utf8() == letters.len();
            return (Word::Option(option), is_last.then_some(option));
        }
    }
    (last.map_or(Word::UnknownOption, Word::Option), None)
}

/// What a word was probably meant to be, where it is nearly that.
pub fn nearest<'a>(word: &str, known: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let length = word.chars().count();
    let allowed = (length / 3).clamp(1, 3);
    known
        // The others aren't looked at: a word may be as long as a command line.
        .filter(|known| known.chars().count().abs_diff(length) <= allowed)
        .map(|known| (distance(word, known), known))
        .filter(|(distance, known)| *distance <= allowed && *distance < known.chars().count())
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, known)| known)
}

/// How many letters have to be changed, added, left out or swapped with their neighbour.
fn distance(one: &str, other: &str) -> usize {
    let (one, other): (Vec<char>, Vec<char>) = (one.chars().collect(), other.chars().collect());
    let mut rows: Vec<Vec<usize>> = vec![(0..=other.len()).collect()];
    for i in 1..=one.len() {
        let mut row = vec![i];
        for j in 1..=other.len() {
            let is_other = usize::from(one[i - 1] != other[j - 1]);
            let mut least = (rows[i - 1][j] + 1)
                .min(row[j - 1] + 1)
                .min(rows[i - 1][j - 1] + is_other);
            if i > 1 && j > 1 && one[i - 1] == other[j - 2] && one[i - 2] == other[j - 1] {
                least = least.min(rows[i - 2][j - 2] + 1);
            }
            row.push(least);
        }
        rows.push(row);
    }
    rows[one.len()][other.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_word_that_is_nearly_right_is_taken_for_another() {
        let known = ["run", "release", "status", "--no-wait", "--on-lost"];
        for (word, meant) in [
            ("rum", Some("run")),
            ("relaese", Some("release")),
            ("--no-wiat", Some("--no-wait")),
            ("frobnicate", None),
            ("list", None),
            ("x", None),
        ] {
            assert_eq!(nearest(word, known.into_iter()), meant, "{word}");
        }
        // A word as long as a command line can be is no more work.
        assert_eq!(nearest(&"r".repeat(1 << 20), known.into_iter()), None);
    }

    fn plain(line: &[&str]) -> Vec<String> {
        let typed = Typed::new(line.iter().map(Into::into).collect());
        let arguments = typed.arguments().into_iter();
        arguments
            .filter(|(_, kind)| *kind == Word::Plain)
            .map(|(word, _)| word.to_str().unwrap().to_owned())
            .collect()
    }

    #[test]
    fn a_value_is_not_a_name_and_a_name_is_not_a_value() {
        let cases: [(&[&str], &[&str]); 7] = [
            (&["-u", "run", "run", "-w", "5", "a", "b"], &["a", "b"]),
            (&["--url=x", "run", "--wait=5", "a"], &["a"]),
            (&["run", "-nw5", "a", "-qw", "5", "b"], &["a", "b"]),
            (&["run", "a", "--", "b"], &["a"]),
            (&["run", "--nb", "a", "--bogus", "b"], &["a", "b"]),
            (&["ls", "--watch", "-q", "a"], &["a"]),
            (&["status", "--watch", "1s", "a"], &["a"]),
        ];
        for (line, names) in cases {
            assert_eq!(plain(line), names, "{line:?}");
        }
    }
}
