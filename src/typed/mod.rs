//! Parses the command line as the user typed it. clap does it, except for the most common form, which `usual` parses
//! without clap. Pure. This module prints nothing and corrects nothing.

mod usual;

use std::ffi::OsString;
use std::mem::ManuallyDrop;

use clap::error::{ContextKind, ContextValue as Context};

use crate::cli::{self, Cli, Command, Format};

pub use self::usual::read as read_usual;

/// Parses the words after `redlock` with clap.
pub fn read(words: &[OsString]) -> Result<Cli, clap::Error> {
    // Never freed, because the process ends soon, and freeing would take a twentieth of a short run's instructions.
    let mut root = ManuallyDrop::new(cli::command());
    let line = std::iter::once(OsString::from("redlock")).chain(words.iter().cloned());
    let matches = root.try_get_matches_from_mut(line)?;
    cli::read(matches).map_err(|error| error.format(&mut root))
}

/// Returns the name of the command, even in a line that clap refuses: the first word that is a command or an alias.
pub fn command(words: &[OsString]) -> Option<String> {
    let all = cli::command();
    let mut words = words.iter().take_while(|word| *word != "--");
    let command = words.find_map(|word| all.find_subcommand(word))?;
    Some(command.get_name().to_owned())
}

/// Returns one part of clap's error, as texts.
pub fn context(error: &clap::Error, kind: ContextKind) -> Vec<String> {
    match error.get(kind) {
        Some(Context::String(text)) => vec![text.clone()],
        Some(Context::Strings(texts)) => texts.clone(),
        _ => Vec::new(),
    }
}

/// Returns true if this is an acquire whose output is made for `eval`. In a line that clap refuses, any word may be the
/// command.
pub fn is_evaluated(read: Option<&Cli>, words: &[OsString]) -> bool {
    match read.map(|cli| &cli.command) {
        Some(Some(Command::Acquire(options))) => options.format == Format::Env,
        Some(_) => false,
        None => {
            let mut before_dashes = words.iter().take_while(|word| *word != "--");
            before_dashes.any(|word| word == "acquire")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shell_is_told_of_a_failure_where_it_evaluates_the_output() {
        for (line, evaluated) in [
            ("acquire a", true),
            ("-q acquire a --while-pdi 1", true),
            ("acquire a --format env", true),
            ("acquire a --format", true),
            ("acquire a --format json", false),
            ("acquire --format=token a", false),
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
            let cli = read(&words).ok();
            assert_eq!(is_evaluated(cli.as_ref(), &words), evaluated, "{line}");
        }
    }
}
