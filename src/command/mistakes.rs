//! Answers to command lines that clap rejects: help goes to stdout, and a mistake
//! is a line on stderr. The line is clap's own, unless the words suggest more:
//! the line to type, or another tool's usage. An answer never repeats a URL.

use std::ffi::OsString;

use anyhow::Result;
use clap::builder::StyledStr;
use clap::error::{ContextKind, ContextValue as Context, ErrorKind};

use super::corrections::{corrected, reads};
use crate::cli;
use crate::decide::exit::Exit;
use crate::report;
use crate::typed;
use crate::usage::with_help;

/// Answers a command line that clap rejects: prints help to stdout, or the mistake to stderr.
pub fn usage(error: &clap::Error, words: &[OsString]) -> Result<Exit> {
    if error.kind() == ErrorKind::DisplayHelp {
        let mut before_dashes = words.iter().take_while(|word| *word != "--");
        let name = typed::command(words);
        return print_help(name.as_deref(), before_dashes.any(|word| word == "--help"));
    }
    if typed::context(error, ContextKind::InvalidSubcommand) == ["version"] {
        let is_verbose = |word: &OsString| word == "-v" || word == "--verbose";
        return super::version::version(words.iter().any(is_verbose));
    }
    report::error(mistake(error, words));
    Ok(Exit::Usage)
}

/// Prints the help of a command, or of redlock itself.
pub(super) fn print_help(command: Option<&str>, at_length: bool) -> Result<Exit> {
    let mut all = cli::documented();
    let shown = match command {
        Some(name) => all.find_subcommand_mut(name).expect("it was found before"),
        None => &mut all,
    };
    report::print(&match command {
        _ if at_length => shown.render_long_help().to_string(),
        Some(_) => short_help(shown),
        None => cli::SHORT_HELP.to_owned(),
    })?;
    Ok(Exit::Success)
}

/// Returns the output of `-h`: the usage, and each option with the first line of its
/// help. (clap would put all help below the options if one option needs two lines.)
fn short_help(command: &mut clap::Command) -> String {
    let text = |styled: Option<&StyledStr>| styled.map(ToString::to_string).unwrap_or_default();
    let shown = command.get_arguments().filter(|argument| {
        let is_hidden = argument.is_hide_set() || argument.is_hide_short_help_set();
        argument.get_long().is_some() && !is_hidden
    });
    let option = |argument: &clap::Arg| {
        let short = argument.get_short();
        let short = short.map_or("    ".into(), |short| format!("-{short}, "));
        let option = argument.to_string().replace(['<', '>'], "");
        (format!("  {short}{option}"), text(argument.get_help()))
    };
    let rows: Vec<(String, String)> = shown.map(option).collect();
    let width = rows.iter().map(|(option, _)| option.len()).max();
    let width = width.unwrap_or_default() + 2;
    let (about, usage) = (text(command.get_about()), command.render_usage());
    let mut page = format!("{about}\n\n{usage}\n\n");
    for (mut option, help) in rows {
        for part in report::wrapped(&help, Some(COLUMNS - width)) {
            page.extend([format!("{option:width$}{part}").trim_end(), "\n"]);
            option.clear();
        }
    }
    page
}

/// Width of the terminal that help is written for, in columns.
const COLUMNS: usize = 80;

/// Reports that no command was given.
pub fn no_command() -> Exit {
    report::error("no command given; try `redlock run NAME -- COMMAND` or see redlock -h");
    Exit::Usage
}

/// Returns the error message for a mistake.
fn mistake(error: &clap::Error, words: &[OsString]) -> String {
    let name = typed::command(words);
    let what = match error.kind() {
        ErrorKind::InvalidSubcommand => {
            let word = typed::context(error, ContextKind::InvalidSubcommand).concat();
            if let Some(meant) = instead(&word) {
                return format!("no command {word}; did you mean {meant}? see redlock -h");
            }
            None
        }
        ErrorKind::UnknownArgument => {
            other_option(&typed::context(error, ContextKind::InvalidArg).concat())
        }
        ErrorKind::MissingRequiredArgument if name.as_deref() == Some("run") => {
            Some("put a lock's name, --, and a command: redlock run NAME -- COMMAND".to_owned())
        }
        _ => None,
    };
    if !is_typo(error, words)
        && let Some(line) = corrected(words)
    {
        return line;
    }
    // A mistake in front of the command's name isn't explained in the command's help.
    let is_command = |word: &OsString| typed::command(std::slice::from_ref(word)).is_some();
    let at = words.iter().position(is_command).unwrap_or_default();
    let what = what.unwrap_or_else(|| first_line(error));
    with_help(&what, name.as_deref().filter(|_| reads(&words[..at])))
}

/// Returns true if a word is probably a mistyped command. On a line
/// with a `--`, only `run` is: any other word may be a lock's name.
fn is_typo(error: &clap::Error, words: &[OsString]) -> bool {
    let meant = typed::context(error, ContextKind::SuggestedSubcommand).pop();
    meant.is_some_and(|name| name == "run" || !words.iter().any(|word| word == "--"))
}

/// Returns clap's first line, with the most similar of the names that clap suggests. A
/// URL may contain a password, so a line with one is reduced to the kind of the error.
fn first_line(error: &clap::Error) -> String {
    let has_url = |(_, value): (_, &Context)| value.to_string().contains("://");
    let text = error.to_string();
    let what = match error.kind().as_str() {
        Some(kind) if error.context().any(has_url) => kind,
        _ => text.split("\n\n").next().unwrap_or(&text),
    };
    let what = what.trim_start_matches("error: ").split_whitespace();
    let what = what.collect::<Vec<_>>().join(" ");
    let suggested = [ContextKind::SuggestedArg, ContextKind::SuggestedSubcommand];
    match suggested
        .iter()
        .find_map(|kind| typed::context(error, *kind).pop())
    {
        Some(name) => format!("{what}; did you mean {name}?"),
        None => what,
    }
}

/// Words of other programs, such as flock(1) and redis-cli(1), and of earlier versions, with their replacements.
const OTHER_WORDS: &str = "\
list show who info|redlock status
why|redlock status NAME
man manual|redlock help
top watch|redlock status --watch
expect|redlock status --no-success-for 26h NAME
force-unlock break free|redlock release --force NAME
lock|redlock run or redlock acquire
exec|redlock run
log logs|redlock history
check renew refresh|redlock extend
kill cancel abort|redlock stop
pass|redlock guard --held -
wait|redlock run -s NAME -- true
local|redlock -u local: doctor
pause cordon block|redlock freeze
resume unfreeze unpause uncordon unblock|redlock thaw
-o --close|leave it out, as COMMAND inherits no lock
-F --no-fork|leave it out, as redlock has to stay to renew the lock
-x -e --exclusive|leave it out, as a lock has one holder at a time unless -s or --slots says otherwise
--unlock|use redlock release NAME
--command|put -c SCRIPT
--fcntl|leave it out, as redlock locks no file
--password|set REDLOCK_PASSWORD_FILE=FILE, as anyone on this host can read a command line
--host --port|put -u redis://HOST:PORT
--name --lock|put the lock's name without an option
--pass|give a guard --held -, a run in a freeze --ignore-freeze, and a password REDLOCK_PASSWORD_FILE
--password-command|have a timer write the password to a file, and set REDLOCK_PASSWORD_FILE=FILE
--priority --lifo|leave it out; waiters are served in order, so use --slots N or two locks
--label|put --reason TEXT, or set REDLOCK_SHOW=name so that others see only the program's name
--clock-skew|leave it out, as redlock expects 500ms wherever a replica may be promoted
--restart-grace|set appendfsync always in Redis, so that a restart forgets no lock
--join|put --once KEY, with the commit or the version as KEY
--unless|test it under the lock: -c 'test -e done || make'
--late|use redlock status --older-than, or stop COMMAND with -t
--timeline|use redlock history --svg FILE
--summary --by-host|use redlock history --json, and count with jq
--follow|use watch -n1 redlock history
--utc|put TZ=UTC before redlock
--connect-timeout|put REDLOCK_REDIS_TIMEOUT=VALUE in the environment or redlock.env
--timeout|put -t TIME (--max-runtime) to limit COMMAND, or -w TIME to limit the wait of a run
--max-waiting|put --max-queue N
--wait-tree|put --with-children
--order|put --seq N
--cancel-running|put --cancel-in-progress
--prefix --password-file --tls-ca --tls-cert --tls-key --sync --sync-timeout|put SETTING=VALUE in the environment or redlock.env
--repair-ttl --history-size --on-lost --jitter --redis-timeout --who --show --hook|put SETTING=VALUE in the environment or redlock.env";

/// Returns the replacement of a word of another program, if redlock doesn't have that word.
fn instead(word: &str) -> Option<&'static str> {
    let mut rows = OTHER_WORDS.lines().filter_map(|row| row.split_once('|'));
    let (_, instead) = rows.find(|(words, _)| words.split(' ').any(|other| other == word))?;
    Some(instead)
}

/// Returns the message about an option that redlock doesn't have, if it belongs to another program or is a setting.
fn other_option(option: &str) -> Option<String> {
    let setting = option.replace("--", "REDLOCK_").replace('-', "_");
    let instead = instead(option)?.replace("SETTING", &setting.to_uppercase());
    Some(format!("no option {option}: {instead}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(line: &[&str]) -> String {
        let words: Vec<OsString> = line.iter().map(Into::into).collect();
        let error = typed::read(&words).unwrap_err();
        mistake(&error, &words)
    }

    /// Checks a transcript: each command line is followed by its answer; a
    /// final `…` stands for any text. `|` separates words that contain spaces.
    #[track_caller]
    fn assert_said(transcript: &str) {
        let lines: Vec<&str> = transcript.trim().lines().map(str::trim).collect();
        for pair in lines.chunks(2) {
            let (line, expected) = (pair[0].strip_prefix("$ ").unwrap(), pair[1]);
            let separator = if line.contains('|') { '|' } else { ' ' };
            let answer = said(&line.split(separator).collect::<Vec<_>>());
            match expected.strip_suffix('…') {
                Some(begin) => assert!(answer.starts_with(begin), "{line}: {answer}"),
                None => assert_eq!(answer, expected, "{line}"),
            }
        }
    }

    #[test]
    fn a_mistake_is_one_line_that_says_where_to_read_on_or_what_to_type() {
        assert_said(
            "
            $ run a
            put a lock's name, --, and a command: redlock run NAME -- COMMAND; see redlock run -h
            $ run -- true
            no lock NAME given; to use the command's name as the lock's name: redlock run true -- true
            $ run --ttl
            a value is required for '--ttl <TIME>' but none was supplied; see redlock run -h
            $ run --ttl 1M a -- b
            invalid value '1M' for '--ttl <TIME>': M has no fixed length: write days as 30d, or minutes as 1m; see redlock run -h
            $ run --on-unreachable x a -- b
            invalid value 'x' for '--on-unreachable <fail|run>' [possible values: fail, run]; see redlock run -h
            $ run -w 1 -n a -- b
            the argument '--wait <TIME>' cannot be used with '--no-wait'; see redlock run -h
            $ run -n -n a -- b
            the argument '--no-wait' cannot be used multiple times; see redlock run -h
            $ run --shared=yes a -- b
            unexpected value 'yes' for '--shared' found; no more were expected; see redlock run -h
            $ run --no-wiat a -- b
            unexpected argument '--no-wiat' found; did you mean --no-wait? see redlock run -h
            $ run -z a -- b
            unexpected argument '-z' found; see redlock run -h
            $ run --name a -- b
            no option --name: put the lock's name without an option; see redlock run -h
            $ --bogus run a -- b
            unexpected argument '--bogus' found; see redlock -h
            $ rum
            unrecognized subcommand 'rum'; did you mean run? see redlock -h
            $ list
            no command list; did you mean redlock status? see redlock -h
            $ unlok a
            unrecognized subcommand 'unlok'; did you mean unlock? see redlock -h
            $ kill a
            no command kill; did you mean redlock stop? see redlock -h
            $ frobnicate
            unrecognized subcommand 'frobnicate'; see redlock -h
            $ --password hunter2 status
            no option --password: set REDLOCK_PASSWORD_FILE=FILE, as anyone on this host can read a command line; see redlock -h
            $ --host db --port 6380 status
            no option --host: put -u redis://HOST:PORT; see redlock -h
            $ -q deploy -- ./x
            put run before the lock's name and its options: redlock -q run deploy -- ./x
            $ stop a b
            unexpected argument 'b' found; see redlock stop -h
            $ freeze a
            the following required arguments were not provided: --reason <TEXT>; see redlock freeze -h
            $ expect a
            no command expect; did you mean redlock status --no-success-for 26h NAME? see redlock -h
            $ man run
            no command man; did you mean redlock help? see redlock -h
            $ history --timeline a
            no option --timeline: use redlock history --svg FILE; see redlock history -h
            $ run --prefix=x a -- b
            no option --prefix: put REDLOCK_PREFIX=VALUE in the…
            $ run -x a -- b
            no option -x: leave it out, as a lock has one holder…
            ",
        );
    }

    #[test]
    fn a_line_that_shows_its_mistake_is_shown_as_it_was_probably_meant() {
        assert_said(
            "
            $ -w 10 deploy -- ./x
            put run before the lock's name and its options: redlock run -w 10 deploy -- ./x
            $ /tmp/x.lock echo hi
            put run before the lock's name and its options: redlock run /tmp/x.lock -- echo hi
            $ -n /tmp/x.lock echo hi
            put run before the lock's name and its options: redlock run -n /tmp/x.lock -- echo hi
            $ -w 10 deploy sh -x
            put run before the lock's name and its options: redlock run -w 10 deploy -- sh -x
            $ start -- ./x
            put run before the lock's name and its options: redlock run start -- ./x
            $ run -w 1h 30m deploy -- ./x
            a TIME is one word, such as 1h30m; the word after it can't be a NAME, because it looks like the rest of the TIME; see redlock run -h
            $ run --ttl=1m 30s a -- ./x
            a TIME is one word, such as 1h30m; the word after it can't be a NAME, because it looks like the rest of the TIME; see redlock run -h
            $ run a -t 5 min -- ./x
            a TIME is one word, such as 1h30m; the word after it can't be a NAME, because it looks like the rest of the TIME; see redlock run -h
            $ deploy no-such-program
            unrecognized subcommand 'deploy'; see redlock -h
            $ run echo hi
            put a lock's name, --, and a command: redlock run NAME -- COMMAND; see redlock run -h
            $ run sh -c true
            a shell is no lock NAME before its -c; put -- before the command; see redlock run -h
            $ guard a sh -c true
            a shell is no lock NAME before its -c; put -- before the command; see redlock guard -h
            $ run -w -1 a -- b
            invalid value '-1' for '--wait <TIME>': a duration can't be negative; see redlock run -h
            ",
        );
        // A word before the `--` is a name. Even a shell may be one, unless its -c follows.
        for line in [
            "run -t 0 d -- true",
            "run sh -- true",
            "run 5m -w 1h -- true",
            "run -w1h a 5m -- true",
            "run -w 5 30 -- true",
            "run m -- true",
        ] {
            let words: Vec<OsString> = line.split(' ').map(Into::into).collect();
            assert_eq!(corrected(&words), None, "{line}");
            assert!(reads(&words), "{line}");
        }
    }

    #[test]
    fn a_command_without_dashes_is_shown_with_them_as_it_was_typed() {
        assert_said(
            r#"
            $ run deploy ./deploy.sh arg
            put -- before the command: redlock run deploy -- ./deploy.sh arg
            $ run -w 5 a ./x --flag
            put -- before the command: redlock run -w 5 a -- ./x --flag
            $ -q|run|a|-n|sh|-x|a && b
            put -- before the command: redlock -q run a -n -- sh -x 'a && b'
            $ run a b sh it's
            put -- before the command: redlock run a b -- sh "it's"
            $ -u redis://u:hunter2@h run a ./x
            put -- before the command: redlock -u URL run a -- ./x
            "#,
        );
        assert_eq!(
            said(&["run", "a", "./x", "", "$HOME", "l\nm"]),
            r"put -- before the command: redlock run a -- ./x '' '$HOME' $'l\nm'"
        );
    }
}
