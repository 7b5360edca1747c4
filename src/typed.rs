//! Reads the words of the command line: with clap, except for the line that most jobs have, which `usual` reads without
//! clap. Pure; it says nothing and corrects nothing.

mod usual;

use std::ffi::OsString;
use std::mem::ManuallyDrop;

use crate::cli::{Cli, Command, Format};

pub use self::usual::read as read_usual;

/// Reads all words after `redlock`.
pub fn read(words: &[OsString]) -> Result<Cli, clap::Error> {
    // The process ends soon, and freeing all that clap has defined would take a twentieth of a short run's instructions.
    let mut definition = ManuallyDrop::new(Cli::definition());
    Cli::read(&mut definition, line(words))
}

/// Returns true if clap takes these words for a command, or for options in front of one.
pub fn is_read(words: &[OsString]) -> bool {
    Cli::read(&mut Cli::definition(), line(words)).is_ok()
}

fn line(words: &[OsString]) -> impl Iterator<Item = OsString> {
    std::iter::once(OsString::from("redlock")).chain(words.iter().cloned())
}

/// Returns the place of the command's name: of the first word that is neither an option nor its URL.
pub fn command_at(words: &[OsString]) -> Option<usize> {
    let mut is_url = false;
    let before_dashes = words.iter().take_while(|word| *word != "--");
    before_dashes
        .map(|word| word.to_string_lossy())
        .position(|word| {
            let is_name = !is_url && (word.len() < 2 || !word.starts_with('-'));
            is_url = !is_url && url_option(&word).is_some_and(|option| option == word);
            is_name
        })
}

/// Returns the name of the command that the words name, in full if it was typed by another name.
pub fn command(words: &[OsString]) -> Option<String> {
    let all = Cli::definition();
    let command = all.find_subcommand(&words[command_at(words)?])?;
    Some(command.get_name().to_owned())
}

/// Returns the name of the command, if clap reads the words in front of it. An unknown option may have the next word as its
/// value.
pub fn known_command(words: &[OsString]) -> Option<String> {
    command(words).filter(|_| command_at(words).is_some_and(|at| is_read(&words[..at])))
}

/// Returns the start of a word that names the URL option: all of `--url` and `-qu`, or what comes before the URL in
/// `--url=URL` and `-quURL`.
pub fn url_option(word: &str) -> Option<&str> {
    if word == "--url" || word.starts_with("--url=") {
        return Some(&word[..word.len().min("--url=".len())]);
    }
    let letters = word.strip_prefix('-')?;
    let value = letters
        .trim_start_matches(['n', 'q', 's', 'v'])
        .strip_prefix('u')?;
    Some(&word[..word.len() - value.len()])
}

/// Returns true for an acquire whose output is made for `eval`.
pub fn is_evaluated(cli: &Cli) -> bool {
    let command = cli.chosen.as_ref().map(|chosen| &chosen.command);
    matches!(command, Some(Command::Acquire(options)) if options.format == Format::Env)
}

/// Returns true if words that clap refuses may be an acquire whose output is made for `eval`.
pub fn may_be_evaluated(words: &[OsString]) -> bool {
    let mut before_dashes = words.iter().take_while(|word| *word != "--");
    let is_acquire = match known_command(words) {
        Some(name) => name == "acquire",
        None => before_dashes.any(|word| word == "acquire"),
    };
    let others = ["json", "token", "github"];
    let has_other =
        |two: &[OsString]| two[0] == "--format" && others.iter().any(|it| two[1] == *it);
    let is_other = |word: &OsString| others.iter().any(|it| *word == *format!("--format={it}"));
    is_acquire && !words.windows(2).any(has_other) && !words.iter().any(is_other)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_commands_name_is_no_option_and_no_url() {
        for (line, name) in [
            ("-q run a", Some("run")),
            ("-u run ls -u x", Some("status")),
            ("--url run -qu run -vurun ps", Some("status")),
            ("--url=x - run", None),
            ("-q -- run", None),
        ] {
            let words: Vec<OsString> = line.split(' ').map(Into::into).collect();
            assert_eq!(command(&words).as_deref(), name, "{line}");
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
            let words: Vec<OsString> = line.split(' ').map(Into::into).collect();
            assert_eq!(may_be_evaluated(&words), evaluated, "{line}");
            if let Ok(cli) = read(&words) {
                assert_eq!(is_evaluated(&cli), evaluated, "{line}");
            }
        }
    }
}
