//! What was typed wrong, and the status of an error; help, where it was asked for.

use std::error::Error as _;
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::fmt::Write as _;
use std::os::unix::ffi::OsStrExt;

use anyhow::Result;
use clap::Parser;
use clap::error::{ContextKind, ContextValue as Context, ErrorKind};

use super::corrections::{corrected, with_negative_values};
use crate::cli::{self, ONLY_WITH};
use crate::config::{BadConfig, StandIn};
use crate::exit::Exit;
use crate::lock::{self, Name};
use crate::report;
use crate::typed::{Typed, Word, nearest};

/// Something that was typed wrong, but that clap can't see; status 64.
#[derive(Debug)]
pub(super) struct BadUsage(pub String);

impl fmt::Display for BadUsage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for BadUsage {}

/// The status for an error that ended a command.
pub fn exit_for(error: &anyhow::Error) -> Exit {
    if error.is::<BadUsage>() {
        Exit::Usage
    } else if error.downcast_ref::<BadConfig>().is_some() {
        Exit::Config
    } else if let Some(error) = error.downcast_ref::<lock::Error>() {
        match error.kind {
            lock::ErrorKind::Unreachable
            | lock::ErrorKind::Loading
            | lock::ErrorKind::Busy
            | lock::ErrorKind::NoPrimary
            | lock::ErrorKind::NotNow
            | lock::ErrorKind::Moving
            | lock::ErrorKind::NotReplicated => Exit::Unreachable,
            lock::ErrorKind::Refused => Exit::Refused,
            lock::ErrorKind::Config | lock::ErrorKind::Replica => Exit::Config,
            lock::ErrorKind::Internal => Exit::Internal,
        }
    } else {
        Exit::Internal
    }
}

/// Where to read on, behind a message.
const DOCTOR: &str = " (`redlock doctor` shows more)";

/// Variables that redlock doesn't read, each with the words of an error that it would have prevented, and what to do.
const UNREAD: [(&str, &str, &str); 2] = [
    (
        "REDIS_URL",
        "no --url or REDLOCK_URL was given",
        "redlock reads REDLOCK_URL",
    ),
    (
        "REDLOCK_PASSWORD",
        "requires a password",
        "redlock reads REDLOCK_PASSWORD_FILE, the name of a file with the password",
    ),
];

/// Which variable is set in vain, as the end of the message of an error. Its value isn't repeated.
fn unread_variable(message: &str) -> String {
    let mut all = UNREAD.iter();
    let found = all.find(|(name, error, _)| {
        message.contains(error) && std::env::var_os(name).is_some_and(|value| !value.is_empty())
    });
    found.map_or(String::new(), |(name, _, instead)| {
        format!("; {name} is set, but {instead}")
    })
}

/// Reports an error that ended a command, of these words.
pub fn fail(error: &anyhow::Error, words: &[OsString]) -> Exit {
    let exit = exit_for(error);
    if exit == Exit::Usage {
        let typed = Typed::new(words.to_vec());
        report::error(with_help(&format!("{error:#}"), typed.name()));
    } else {
        let lock_error = error.downcast_ref::<lock::Error>();
        let more = lock_error.is_some_and(lock::Error::doctor_knows_more);
        let mut line = format!("{error:#}");
        line += &unread_variable(&line);
        let hint = if more && !line.contains("`redlock doctor`") {
            DOCTOR
        } else {
            ""
        };
        report::error(line + hint);
    }
    exit
}

/// Answers what clap didn't take for a command: help on stdout, a mistake in a line on stderr.
pub fn usage(error: &clap::Error, words: &[OsString], stand_ins: &[StandIn]) -> Exit {
    let typed = Typed::new(words.to_vec());
    // A wrong setting keeps nobody from reading.
    let asks_for_help = || read(words).is_err_and(|error| error.kind() == ErrorKind::DisplayHelp);
    if error.kind() == ErrorKind::DisplayHelp || !stand_ins.is_empty() && asks_for_help() {
        let before_dashes = words.iter().take_while(|word| *word != "--");
        let at_length = before_dashes.clone().any(|word| word == "--help");
        return print_help(typed.name(), at_length);
    }
    let at = typed.command_at.filter(|_| typed.command.is_none());
    match at.map(|at| (words[at].to_str(), &words[at + 1..])) {
        Some((Some("help"), [])) => print_help(None, true),
        Some((Some("help"), [command])) => {
            let asked = Typed::new(vec![command.clone()]);
            match (asked.name(), command.to_str()) {
                (None, Some("help" | "version")) => print_help(None, true),
                (None, _) => {
                    report::error(no_such_command(&asked));
                    Exit::Usage
                }
                (name, _) => print_help(name, true),
            }
        }
        Some((Some("version"), rest)) if rest.iter().all(is_verbose) => {
            let at_length = words.iter().any(is_verbose);
            super::version(at_length).unwrap_or(Exit::Internal)
        }
        _ => {
            let (line, exit) = mistake(error, &typed, stand_ins);
            report::error(line);
            exit
        }
    }
}

fn is_verbose(word: &OsString) -> bool {
    word == "-v" || word == "--verbose"
}

/// Prints the help of a command, or of redlock.
fn print_help(command: Option<&str>, at_length: bool) -> Exit {
    let mut all = cli::documented();
    let shown = match command {
        Some(name) => all.find_subcommand_mut(name).expect("it was found before"),
        None => &mut all,
    };
    let text = if at_length {
        shown.render_long_help()
    } else {
        // A line each: the names of the values say it.
        let brief = |argument: clap::Arg| {
            if argument.get_action().takes_values() {
                argument.hide_possible_values(true)
            } else {
                argument
            }
        };
        shown.clone().mut_args(brief).render_help()
    };
    let _ = report::print(&text.to_string());
    Exit::Success
}

/// What clap makes of all words after `redlock`.
pub(super) fn read(words: &[OsString]) -> Result<cli::Cli, clap::Error> {
    cli::Cli::try_parse_from([&["redlock".into()], words].concat())
}

/// What was typed wrong, and the status: that of a wrong configuration if a setting is wrong.
pub(super) fn mistake(error: &clap::Error, typed: &Typed, stand_ins: &[StandIn]) -> (String, Exit) {
    if let Some(line) = mistake_in_settings(error, stand_ins) {
        return (line, Exit::Config);
    }
    // What begins with a - is read as an option, and not as the value that it stands for.
    if let Some(words) = with_negative_values(typed)
        && let Err(error) = read(&words)
    {
        return mistake(&error, &Typed::new(words), stand_ins);
    }
    let text = |kind| context(error, kind).into_iter().next();
    let argument = text(ContextKind::InvalidArg).unwrap_or_default();
    let name = typed.name();
    let what = match error.kind() {
        ErrorKind::InvalidSubcommand => return (no_such_command(typed), Exit::Usage),
        ErrorKind::UnknownArgument => {
            let line = corrected(&typed.words);
            let line = line.unwrap_or_else(|| no_such_argument(&argument, typed));
            return (line, Exit::Usage);
        }
        ErrorKind::InvalidValue | ErrorKind::ValueValidation => {
            let (option, value) = (plain(&argument), text(ContextKind::InvalidValue));
            match value.filter(|value| !value.is_empty() || error.source().is_some()) {
                Some(value) => {
                    let value = shown_word(OsStr::new(&value));
                    format!("{option} {value}: {}", allowed(error))
                }
                None => format!("{option} needs a value: {}", shown(&argument)),
            }
        }
        ErrorKind::TooManyValues if argument.starts_with('-') => {
            format!("{} takes no value", plain(&argument))
        }
        ErrorKind::TooManyValues => match corrected(&typed.words) {
            Some(line) => return (line, Exit::Usage),
            None => "too many arguments".into(),
        },
        ErrorKind::ArgumentConflict => {
            let others = context(error, ContextKind::PriorArg);
            let others: Vec<String> = others.iter().map(|other| plain(other)).collect();
            let option = plain(&argument);
            if others.is_empty() || others.contains(&option) {
                format!("{option} is given twice")
            } else {
                format!("{option} can't be combined with {}", others.join(" or "))
            }
        }
        ErrorKind::MissingRequiredArgument => {
            let missing = context(error, ContextKind::InvalidArg);
            match corrected(&typed.words).or_else(|| missing_in_run(typed)) {
                Some(line) if missing.iter().any(|what| what.starts_with('<')) => {
                    return (line, Exit::Usage);
                }
                _ => missing_words(&missing, typed),
            }
        }
        ErrorKind::MissingSubcommand => return (NO_COMMAND.into(), Exit::Usage),
        ErrorKind::InvalidUtf8 => not_text(typed),
        _ => {
            let text = error.to_string();
            let what = text
                .split_once("\n\n")
                .map_or(text.as_str(), |(what, _)| what);
            let what = what.trim_start_matches("error: ").trim();
            what.split_whitespace().collect::<Vec<_>>().join(" ")
        }
    };
    // What is wrong in front of the command's name isn't explained by the command's help.
    let in_front =
        error.kind() != ErrorKind::MissingRequiredArgument && is_in_front(&argument, typed);
    let name = name.filter(|_| !in_front);
    (with_help(&what, name), Exit::Usage)
}

/// A mistake, with where to read on.
fn with_help(what: &str, command: Option<&str>) -> String {
    let command = command.map_or(String::new(), |name| format!(" {name}"));
    let end = if what.ends_with('?') { "" } else { ";" };
    format!("{what}{end} see redlock{command} -h")
}

/// What clap says of an error, as texts.
fn context(error: &clap::Error, kind: ContextKind) -> Vec<String> {
    match error.get(kind) {
        Some(Context::String(text)) => vec![text.clone()],
        Some(Context::Strings(texts)) => texts.clone(),
        _ => Vec::new(),
    }
}

/// `--wait` of clap's `--wait <DURATION>`, `COMMAND` of `<COMMAND>...`.
fn plain(argument: &str) -> String {
    let first = argument.split_whitespace().next().unwrap_or(argument);
    let name = first.trim_end_matches("...");
    name.trim_matches(['<', '>', '[', ']']).to_owned()
}

/// `--wait DURATION` of clap's `--wait <DURATION>`.
fn shown(argument: &str) -> String {
    argument.replace(['<', '>'], "")
}

/// What a value has to be.
fn allowed(error: &clap::Error) -> String {
    if let Some(why) = error.source() {
        return why.to_string();
    }
    let values = context(error, ContextKind::ValidValue);
    match values.split_last() {
        Some((last, [])) => format!("must be {last}"),
        Some((last, others)) => format!("must be {} or {last}", others.join(", ")),
        None => "is not a value that it takes".into(),
    }
}

/// A mistake in what stands in for options.
fn mistake_in_settings(error: &clap::Error, stand_ins: &[StandIn]) -> Option<String> {
    let standing = |argument: &String| {
        let option = plain(argument);
        let mut all = stand_ins.iter();
        all.find(|stand_in| option.strip_prefix("--") == Some(&stand_in.option))
    };
    let one = context(error, ContextKind::InvalidArg)
        .iter()
        .find_map(standing)?;
    match error.kind() {
        ErrorKind::ArgumentConflict => {
            let others = context(error, ContextKind::PriorArg);
            let other = others.iter().find_map(standing)?;
            Some(format!(
                "{} can't be combined with {}",
                one.said, other.said
            ))
        }
        ErrorKind::InvalidValue | ErrorKind::ValueValidation => {
            let why = allowed(error);
            let colon = if why.starts_with("must ") { "" } else { ":" };
            Some(format!("{}{colon} {why}", one.said))
        }
        _ => None,
    }
}

/// Whether what is wrong stands before the command's name.
fn is_in_front(argument: &str, typed: &Typed) -> bool {
    let option = plain(argument);
    let until = typed.command_at.unwrap_or(typed.words.len());
    let short = typed
        .root
        .get_arguments()
        .find(|known| known.get_long() == option.strip_prefix("--"))
        .and_then(clap::Arg::get_short);
    typed.words[..until].iter().any(|word| {
        let word = word.to_string_lossy();
        let is_short = short.is_some_and(|short| word.starts_with(&format!("-{short}")));
        word == option || word.starts_with(&format!("{option}=")) || is_short
    })
}

/// What people type for a command of another name.
const OTHER_NAMES: [(&[&str], &str); 9] = [
    (&["list", "show", "who", "info"], "redlock status"),
    (&["force-unlock", "break", "free"], "redlock release"),
    (&["lock"], "redlock run or redlock acquire"),
    (&["exec"], "redlock run"),
    (&["log", "logs"], "redlock history"),
    (&["renew", "refresh"], "redlock extend"),
    (&["kill", "cancel", "abort"], "redlock stop"),
    (&["pause", "block"], "redlock freeze"),
    (
        &["resume", "unfreeze", "unpause", "unblock"],
        "redlock thaw",
    ),
];

/// Options of other programs, such as flock(1) and redis-cli(1), and what to do without them.
const NOT_OURS: [(&[&str], &str); 8] = [
    (
        &["-o", "--close"],
        "leave it out, as COMMAND inherits no lock",
    ),
    (
        &["-F", "--no-fork"],
        "leave it out, as redlock has to stay to renew the lock",
    ),
    (
        &["--unlock"],
        "a lock is given back by redlock release NAME",
    ),
    (&["--command"], "put -c SCRIPT"),
    (&["--fcntl"], "leave it out, as redlock locks no file"),
    (
        &["--password", "--pass"],
        "put --password-file FILE, as anyone on this host can read a command line",
    ),
    (&["--host", "--port"], "put -u redis://HOST:PORT"),
    (&["--name", "--lock"], "put the lock's name without it"),
];

fn no_such_command(typed: &Typed) -> String {
    let at = typed.command_at.unwrap_or_default();
    let Some(word) = typed.words.get(at) else {
        return NO_COMMAND.into();
    };
    let text = word.to_string_lossy();
    let other = OTHER_NAMES
        .iter()
        .find(|(names, _)| names.contains(&text.as_ref()));
    let what = format!("no command {}", shown_word(word));
    if text == "version" {
        return with_help("redlock version takes no argument", None);
    }
    if text == "help" {
        return with_help("redlock help takes one command", None);
    }
    if let Some((_, meant)) = other {
        return with_help(&format!("{what}; did you mean {meant}?"), None);
    }
    let names = typed.root.get_subcommands().flat_map(|command| {
        let aliases = command.get_all_aliases();
        aliases.chain([command.get_name()])
    });
    if let Some(near) = nearest(&text, names)
        && let Some(command) = typed.root.find_subcommand(near)
    {
        let name = command.get_name();
        return with_help(&format!("{what}; did you mean redlock {name}?"), None);
    }
    corrected(&typed.words).unwrap_or_else(|| with_help(&what, None))
}

fn no_such_argument(argument: &str, typed: &Typed) -> String {
    let (mut options, command) = (Vec::new(), typed.command.as_ref());
    // A word that isn't known to the command may stand in front of it.
    let command = command.filter(|_| !is_in_front(argument, typed));
    for option in command.unwrap_or(&typed.root).get_arguments() {
        options.extend(option.get_long().map(|long| format!("--{long}")));
    }
    let name = command.map(clap::Command::get_name);
    if !argument.starts_with('-') {
        let what = format!("unexpected argument {}", shown_word(OsStr::new(argument)));
        let has_dashes = typed.words.iter().any(|word| word == "--");
        return match name {
            Some("acquire") if has_dashes => with_help(
                "acquire runs no command: put redlock run NAME -- COMMAND",
                name,
            ),
            Some("freeze" | "stop") => with_help(
                &format!("{what}: one NAME is taken, and a reason after --reason"),
                name,
            ),
            _ => with_help(&what, name),
        };
    }
    let theirs = NOT_OURS.iter().find(|(names, _)| names.contains(&argument));
    if let Some((_, instead)) = theirs {
        return with_help(&format!("no option {argument}: {instead}"), name);
    }
    let mut options = options.iter().map(String::as_str);
    let meant = match argument.strip_prefix('-') {
        Some(letter) if letter.chars().count() == 1 => {
            let mut all = options.filter(|option| option[2..].starts_with(letter));
            all.next().filter(|_| all.next().is_none())
        }
        _ => nearest(argument, &mut options).filter(|_| argument.starts_with("--")),
    };
    let meant = meant.map_or(String::new(), |option| format!("; did you mean {option}?"));
    with_help(
        &format!("no option {}{meant}", shell_word(OsStr::new(argument))),
        name,
    )
}

/// A word as a shell takes it in, unless it is a URL, which may contain a password.
pub(super) fn shown_word(word: &OsStr) -> String {
    if word.to_string_lossy().contains("://") {
        return "URL".into();
    }
    shell_word(word)
}

/// Whether a word is the URL of a Redis, or one with a user or a password.
pub(super) fn is_private_url(word: &str) -> bool {
    word.split_once("://").is_some_and(|(scheme, rest)| {
        let scheme = scheme.to_ascii_lowercase();
        scheme.starts_with("redis") || scheme == "unix" || rest.contains('@')
    })
}

/// What a `run` lacks: its name or its command.
fn missing_in_run(typed: &Typed) -> Option<String> {
    if typed.name() != Some("run") {
        return None;
    }
    let arguments = typed.arguments();
    let has = |wanted: Word| arguments.iter().any(|(_, kind)| *kind == wanted);
    let (named, runs) = (has(Word::Plain), has(Word::AfterDashes));
    let what = match (named, runs) {
        (false, true) => "no lock NAME given",
        (true, _) => "no COMMAND given: put it after the lock's name and --",
        (false, false) => "no lock NAME and no COMMAND given: redlock run NAME -- COMMAND",
    };
    Some(with_help(what, Some("run")))
}

/// What is missing, of another command, or beside an option.
fn missing_words(missing: &[String], typed: &Typed) -> String {
    let arguments = typed.arguments();
    let typed_options: Vec<&str> = arguments
        .iter()
        .filter_map(|(_, kind)| match kind {
            Word::Option(option) => option.get_long(),
            _ => None,
        })
        .collect();
    if typed.name() == Some("extend") {
        return "no DURATION given".into();
    }
    for what in missing {
        let needed = plain(what);
        let with = ONLY_WITH.iter().find(|(with, beside)| {
            needed.strip_prefix("--") == Some(*beside) && typed_options.contains(with)
        });
        if let Some((with, _)) = with {
            return format!("--{with} is only for use with {needed}");
        }
    }
    let names = missing.iter().map(|what| {
        if what.starts_with("--") {
            shown(what)
        } else {
            plain(what)
        }
    });
    let names: Vec<String> = names.collect();
    format!("no {} given", names.join(" and no "))
}

/// What isn't UTF-8, and has to be.
fn not_text(typed: &Typed) -> String {
    let before_dashes = typed.words.iter().take_while(|word| *word != "--");
    let wrong = before_dashes
        .map(OsString::as_os_str)
        .find(|word| word.to_str().is_none());
    let wrong = wrong.map_or("an argument".into(), shown_word);
    format!("{wrong} isn't UTF-8")
}

/// A word as a shell takes it in.
pub(super) fn shell_word(word: &OsStr) -> String {
    match word.to_str() {
        Some(text) if text.chars().any(char::is_control) => ansi_quoted(word.as_bytes()),
        None => ansi_quoted(word.as_bytes()),
        Some(text) if text.contains('\'') && !text.contains(['"', '$', '`', '\\', '!']) => {
            format!("\"{text}\"")
        }
        Some(text) => report::quote(text).into_owned(),
    }
}

/// A word with bytes that only `$'…'` can name.
fn ansi_quoted(word: &[u8]) -> String {
    let mut text = String::from("$'");
    for chunk in word.utf8_chunks() {
        for c in chunk.valid().chars() {
            match c {
                '\n' => text.push_str("\\n"),
                '\t' => text.push_str("\\t"),
                '\'' | '\\' => text.extend(['\\', c]),
                c if c.is_ascii_control() => drop(write!(text, "\\{:03o}", u32::from(c))),
                c => text.push(c),
            }
        }
        for byte in chunk.invalid() {
            let _ = write!(text, "\\{byte:03o}");
        }
    }
    text + "'"
}

const NO_COMMAND: &str = "no command given; try `redlock run NAME -- COMMAND` or see redlock -h";

/// The mistake of giving no command at all.
pub fn no_command() -> Exit {
    report::error(NO_COMMAND);
    Exit::Usage
}

/// Refuses the URL of a server in the place of a name. It isn't repeated, as it may have a password.
pub(super) fn refuse_url(text: &str) -> Result<()> {
    if !is_private_url(text) {
        return Ok(());
    }
    Err(BadUsage("the NAME of a lock is a URL; give the URL of a Redis with --url".into()).into())
}

/// A name as it was typed.
pub(super) fn name(text: &str) -> Result<Name> {
    refuse_url(text)?;
    Ok(text
        .parse()
        .map_err(|why| BadUsage(format!("{why}: {text:?}")))?)
}

/// Names as they were typed, each once.
pub(super) fn parse_names(texts: &[String]) -> Result<Vec<Name>> {
    let mut names = Vec::new();
    for text in texts {
        let name = name(text)?;
        if !names.contains(&name) {
            names.push(name);
        }
    }
    Ok(names)
}

/// Refuses a pattern where one lock is meant, and it matters which.
pub(super) fn refuse_pattern(text: &str, command: &str) -> Result<()> {
    refuse_url(text)?;
    if !text.contains(['*', '?']) {
        return Ok(());
    }
    let status = report::command_line(&["redlock", "status", text].map(str::to_owned));
    Err(BadUsage(format!(
        "{command} takes one name and not a pattern like \"{text}\"; `{status}` lists what matches"
    ))
    .into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::Cli;

    fn said(line: &[&str]) -> String {
        let error = Cli::try_parse_from([&["redlock"], line].concat()).unwrap_err();
        let typed = Typed::new(line.iter().map(Into::into).collect());
        mistake(&error, &typed, &[]).0
    }

    #[track_caller]
    fn assert_said(cases: &[(&str, &str)]) {
        for (line, expected) in cases {
            let words: Vec<&str> = line.split(' ').collect();
            assert_eq!(said(&words), *expected, "{line}");
        }
    }

    #[test]
    fn a_mistake_in_a_run_is_one_line_that_says_where_to_read_on() {
        assert_said(&[
            (
                "run a",
                "no COMMAND given: put it after the lock's name and --; see redlock run -h",
            ),
            (
                "run",
                "no lock NAME and no COMMAND given: redlock run NAME -- COMMAND; see redlock run -h",
            ),
            (
                "run -- true",
                "no lock NAME given; with one named after the command: redlock run true -- true",
            ),
            (
                "run --ttl",
                "--ttl needs a value: --ttl DURATION; see redlock run -h",
            ),
            (
                "run --ttl 1M a -- b",
                "--ttl 1M: M would be a month: write 1m for a minute or 30d; see redlock run -h",
            ),
            (
                "run --slots 0 a -- b",
                "--slots 0: must be a number from 1 to 9999; see redlock run -h",
            ),
            (
                "run --on-lost x a -- b",
                "--on-lost x: must be stop or warn; see redlock run -h",
            ),
            (
                "run -w 1 -n a -- b",
                "--wait can't be combined with --no-wait; see redlock run -h",
            ),
            (
                "run -n -n a -- b",
                "--no-wait is given twice; see redlock run -h",
            ),
            (
                "run --shared=yes a -- b",
                "--shared takes no value; see redlock run -h",
            ),
            (
                "run --order 1 a -- b",
                "--order is only for use with --supersede; see redlock run -h",
            ),
            (
                "run --no-wiat a -- b",
                "no option --no-wiat; did you mean --no-wait? see redlock run -h",
            ),
            ("run -z a -- b", "no option -z; see redlock run -h"),
            (
                "release -f a",
                "no option -f; did you mean --force? see redlock release -h",
            ),
            ("run -r a -- b", "no option -r; see redlock run -h"),
            (
                "run --name a -- b",
                "no option --name: put the lock's name without it; see redlock run -h",
            ),
            (
                "freeze a looking",
                "unexpected argument looking: one NAME is taken, and a reason after --reason; see redlock freeze -h",
            ),
        ]);
    }

    #[test]
    fn a_mistake_before_a_command_or_in_another_one_is_one_line_that_says_where_to_read_on() {
        assert_said(&[
            ("--bogus run a -- b", "no option --bogus; see redlock -h"),
            (
                "--connect-timeout x run a -- b",
                "--connect-timeout x: must be a duration such as 500ms, 30s, 1h30m, or a number of seconds; see redlock -h",
            ),
            (
                "rum",
                "no command rum; did you mean redlock run? see redlock -h",
            ),
            (
                "list",
                "no command list; did you mean redlock status? see redlock -h",
            ),
            (
                "unlok a",
                "no command unlok; did you mean redlock release? see redlock -h",
            ),
            (
                "kill a",
                "no command kill; did you mean redlock stop? see redlock -h",
            ),
            ("frobnicate", "no command frobnicate; see redlock -h"),
            (
                "--password hunter2 status",
                "no option --password: put --password-file FILE, as anyone on this host can read a command line; see redlock -h",
            ),
            (
                "--host db --port 6380 status",
                "no option --host: put -u redis://HOST:PORT; see redlock -h",
            ),
            (
                "version x",
                "redlock version takes no argument; see redlock -h",
            ),
            (
                "-q deploy -- ./x",
                "put run before the lock's name and its options: redlock -q run deploy -- ./x",
            ),
            ("extend", "no DURATION given; see redlock extend -h"),
            ("extend a b c", "too many arguments; see redlock extend -h"),
            ("thaw a b", "unexpected argument b; see redlock thaw -h"),
            ("freeze a", "no --reason TEXT given; see redlock freeze -h"),
            ("acquire", "no NAME given; see redlock acquire -h"),
            (
                "acquire a -- b",
                "acquire runs no command: put redlock run NAME -- COMMAND; see redlock acquire -h",
            ),
        ]);
    }

    #[test]
    fn a_line_that_shows_its_mistake_is_shown_as_it_was_probably_meant() {
        for (line, expected) in [
            (
                "-w 10 deploy -- ./x",
                "put run before the lock's name and its options: redlock run -w 10 deploy -- ./x",
            ),
            (
                "-n deploy -- ./x",
                "put run before the lock's name and its options: redlock run -n deploy -- ./x",
            ),
            (
                "/tmp/x.lock echo hi",
                "put run before the lock's name and its options: redlock run /tmp/x.lock -- echo hi",
            ),
            (
                "-n /tmp/x.lock echo hi",
                "put run before the lock's name and its options: redlock run -n /tmp/x.lock -- echo hi",
            ),
            (
                "-w 10 deploy sh -x",
                "put run before the lock's name and its options: redlock run -w 10 deploy -- sh -x",
            ),
            (
                "deploy no-such-program",
                "no command deploy; see redlock -h",
            ),
            (
                "-w 1h 30m deploy -- ./x",
                "put run before the lock's name and its options: redlock run -w 1h30m deploy -- ./x",
            ),
            (
                "run echo hi",
                "no lock NAME given; with one named after the command: redlock run echo -- echo hi",
            ),
            (
                "acquire -w 1h 30m a",
                "a duration is one word: redlock acquire -w 1h30m a",
            ),
            (
                "extend a 1 h 30m",
                "a duration is one word: redlock extend a 1h30m",
            ),
            (
                "run -w -1 a -- b",
                "--wait -1: a duration can't be negative; -n doesn't wait; see redlock run -h",
            ),
            (
                "run --ttl=-1 a -- b",
                "--ttl -1: a duration can't be negative; see redlock run -h",
            ),
            (
                "run -o a -- b",
                "no option -o: leave it out, as COMMAND inherits no lock; see redlock run -h",
            ),
            (
                "run -F a -- b",
                "no option -F: leave it out, as redlock has to stay to renew the lock; see redlock run -h",
            ),
        ] {
            let words: Vec<&str> = line.split(' ').collect();
            assert_eq!(said(&words), expected, "{line}");
        }
    }

    #[test]
    fn a_command_without_dashes_is_shown_with_them_as_it_was_typed() {
        for (line, put) in [
            (
                &["run", "deploy", "./deploy.sh", "arg"][..],
                "run deploy -- ./deploy.sh arg",
            ),
            (
                &["run", "-w", "5", "a", "./x", "--flag"],
                "run -w 5 a -- ./x --flag",
            ),
            (
                &["-q", "run", "a", "-n", "sh", "-x", "a && b"],
                "-q run a -n -- sh -x 'a && b'",
            ),
            (&["run", "a", "b", "sh", "it's"], "run a b -- sh \"it's\""),
            (
                &["run", "a", "./x", "", "$HOME", "l\nm"],
                "run a -- ./x '' '$HOME' $'l\\nm'",
            ),
            (
                &["-u", "redis://u:hunter2@h", "run", "a", "./x"],
                "-u URL run a -- ./x",
            ),
        ] {
            let expected = format!("put -- before the command: redlock {put}");
            assert_eq!(said(line), expected, "{line:?}");
        }
    }
}
