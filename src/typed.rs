//! The command line as it was typed: the only reader of argv. It defines clap's command line once, reads with it, and
//! tells what each word of a wrong line is. The line that most jobs have is read without clap, in `usual`. Pure; it says
//! nothing and corrects nothing.
//!
//! clap tells what a command line means, and of a wrong one only where it stopped. What a user wanted to type takes a look
//! at the words.

mod usual;

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;

use clap::Arg;

use crate::cli::{self, Cli};

pub use self::usual::read as read_usual;

/// What a word of a command line is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Word<'a> {
    /// The name of a command.
    Command,
    /// An option, or several short ones; the last of them.
    Option(&'a Arg),
    UnknownOption,
    /// The value of the option before it.
    Value(&'a Arg),
    /// A name, a file; an unknown command.
    Plain,
    /// The `--`.
    Dashes,
    /// What stands after it.
    AfterDashes,
}

/// A command line, and what clap knows of it.
#[derive(Debug)]
pub struct Typed {
    /// All words after `redlock`.
    pub words: Vec<OsString>,
    /// Where the name of the command stands, or what is none.
    pub command_at: Option<usize>,
    root: clap::Command,
}

impl Typed {
    /// Looks for the command in all words after `redlock`, and defines its arguments. Each run does this: clap reads
    /// with the same definitions.
    pub fn new(words: Vec<OsString>) -> Self {
        let mut root = cli::command();
        let mut reader = Reader::of(&root);
        let command_at = words
            .iter()
            .position(|word| reader.kind(word) == Word::Plain);
        let name = command_at.and_then(|at| words[at].to_str());
        if let Some(command) = name.and_then(|name| root.find_subcommand_mut(name)) {
            command.build();
        }
        Self {
            words,
            command_at,
            root,
        }
    }

    /// What clap makes of the words.
    pub fn read(&mut self) -> Result<Cli, clap::Error> {
        let line = std::iter::once(OsString::from("redlock")).chain(self.words.iter().cloned());
        let matches = self.root.try_get_matches_from_mut(line)?;
        cli::read(matches).map_err(|error| error.format(&mut self.root))
    }

    /// The command, where there is one of that name.
    pub fn command(&self) -> Option<&clap::Command> {
        self.root.find_subcommand(self.words.get(self.command_at?)?)
    }

    /// Its name.
    pub fn name(&self) -> Option<&str> {
        self.command().map(clap::Command::get_name)
    }

    /// Whether the command, or redlock where there is none, has an option of this long name.
    pub fn has_option(&self, long: &str) -> bool {
        let mut all = self.command().unwrap_or(&self.root).get_arguments();
        all.any(|option| option.get_long() == Some(long))
    }

    /// What all the words are; what follows an unknown command, as arguments of redlock itself.
    pub fn kinds(&self) -> Vec<Word<'_>> {
        let mut reader = Reader::of(&self.root);
        let mut kinds = Vec::with_capacity(self.words.len());
        for (at, word) in self.words.iter().enumerate() {
            let command = self.command().filter(|_| self.command_at == Some(at));
            kinds.push(match command {
                Some(command) => {
                    reader = Reader::of(command);
                    Word::Command
                }
                None => reader.kind(word),
            });
        }
        kinds
    }

    /// Whether this is an acquire whose output is made for `eval`, as far as a line that may be wrong says.
    pub fn is_evaluated(&self) -> bool {
        let is_other = |(word, kind): (&OsString, Word)| {
            let (Word::Value(option) | Word::Option(option)) = kind else {
                return false;
            };
            let word = word.to_str().unwrap_or_default();
            let format = word.strip_prefix("--format=").unwrap_or(word);
            option.get_long() == Some("format") && ["json", "token", "github"].contains(&format)
        };
        let kinds = self.kinds();
        // It isn't known whether an unknown option has a value, so that the command may be another word.
        let before = &kinds[..self.command_at.unwrap_or_default()];
        let is_acquire = if before.contains(&Word::UnknownOption) {
            let mut words = self.words.iter().take_while(|word| *word != "--");
            words.any(|word| word == "acquire")
        } else {
            self.name() == Some("acquire")
        };
        is_acquire && !self.words.iter().zip(kinds).any(is_other)
    }
}

/// The value of an option that stands in its word: `5` of `--wait=5`, `-w5` and `-nw5`.
pub fn attached<'a>(option: &Arg, word: &'a str) -> Option<&'a str> {
    if word.starts_with("--") {
        return word.split_once('=').map(|(_, value)| value);
    }
    let (_, value) = word.split_once(option.get_short()?)?;
    let value = value.strip_prefix('=').unwrap_or(value);
    (!value.is_empty()).then_some(value)
}

/// Takes one word after the other, as arguments of a command.
struct Reader<'a> {
    command: &'a clap::Command,
    wants_value: Option<&'a Arg>,
    after_dashes: bool,
}

impl<'a> Reader<'a> {
    fn of(command: &'a clap::Command) -> Self {
        Self {
            command,
            wants_value: None,
            after_dashes: false,
        }
    }

    /// What the next word is.
    fn kind(&mut self, word: &OsString) -> Word<'a> {
        let bytes = word.as_bytes();
        let is_option = bytes.len() > 1 && bytes[0] == b'-';
        if self.after_dashes {
            Word::AfterDashes
        } else if let Some(option) = self.wants_value.take() {
            Word::Value(option)
        } else if bytes == b"--" {
            self.after_dashes = true;
            Word::Dashes
        } else if is_option {
            let option = self.option(&String::from_utf8_lossy(bytes));
            option.map_or(Word::UnknownOption, Word::Option)
        } else {
            Word::Plain
        }
    }

    /// The option of a word, or the last of several; it may take the next word as its value.
    fn option(&mut self, word: &str) -> Option<&'a Arg> {
        let find = |is_it: &dyn Fn(&Arg) -> bool| self.command.get_arguments().find(|it| is_it(it));
        let takes_value = |option: &Arg| option.get_action().takes_values();
        if let Some(long) = word.strip_prefix("--") {
            let (name, value) = long
                .split_once('=')
                .map_or((long, None), |(name, value)| (name, Some(value)));
            let option = find(&|option| {
                let aliases = option.get_all_aliases().unwrap_or_default();
                option.get_long() == Some(name) || aliases.contains(&name)
            })?;
            let takes_next = takes_value(option) && !option.is_require_equals_set();
            self.wants_value = Some(option).filter(|_| value.is_none() && takes_next);
            return Some(option);
        }
        let mut letters = word[1..].chars();
        let mut last = None;
        while let Some(letter) = letters.next() {
            let option = find(&|option| {
                let aliases = option.get_all_short_aliases().unwrap_or_default();
                option.get_short() == Some(letter) || aliases.contains(&letter)
            })?;
            last = Some(option);
            if takes_value(option) {
                self.wants_value = last.filter(|_| letters.as_str().is_empty());
                break;
            }
        }
        last
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::{Command, Format};

    fn typed(words: &[&str]) -> Typed {
        Typed::new(words.iter().map(Into::into).collect())
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
            (&["status", "--watch", "a"], &["a"]),
        ];
        for (line, names) in cases {
            let typed = typed(line);
            let words = typed.words.iter().zip(typed.kinds());
            let plain = words.filter(|(_, kind)| *kind == Word::Plain);
            let plain: Vec<&str> = plain.map(|(word, _)| word.to_str().unwrap()).collect();
            assert_eq!(plain, names, "{line:?}");
        }
    }

    #[test]
    fn a_shell_is_told_of_a_failure_where_it_evaluates_the_output() {
        for (line, evaluated) in [
            ("acquire a", true),
            ("-q acquire a --while-pdi 1", true),
            ("acquire a --format env", true),
            ("acquire a --format", true),
            ("acquire a --format json", false),
            ("acquire --format=token a", false),
            ("acquire --format=token --bogus", false),
            ("-u run -u acquire acquire a", true),
            ("--url=run acquire run", true),
            ("--prefix run acquire a", true),
            ("--prefix=x acquire a", true),
            ("--prefix x run a -- acquire", false),
            ("-u acquire status", false),
            ("-u", false),
            ("run acquire -- true", false),
            ("status", false),
        ] {
            let words: Vec<&str> = line.split(' ').collect();
            let mut typed = typed(&words);
            assert_eq!(typed.is_evaluated(), evaluated, "{line}");
            if let Ok(cli) = typed.read() {
                let by_clap = matches!(cli.command, Some(Command::Acquire(options)) if options.format == Format::Env);
                assert_eq!(by_clap, evaluated, "{line}");
            }
        }
    }
}
