//! Answers a command line that clap didn't take for a command: help on stdout, and a mistake as one line on stderr.
//! That is clap's own line, except where the words show more: the line to type, or the habits of another tool. It
//! never repeats a URL.

use std::ffi::OsString;

use anyhow::Result;
use clap::error::{ContextKind, ContextValue as Context, ErrorKind};

use super::corrections::{corrected, reads, shown_word};
use super::usage::with_help;
use crate::cli;
use crate::decide::exit::Exit;
use crate::report;
use crate::typed;

/// Answers words that clap didn't take for a command: help on stdout, a mistake in a line on stderr.
pub fn usage(error: &clap::Error, words: &[OsString]) -> Result<Exit> {
    if error.kind() == ErrorKind::DisplayHelp {
        let mut before_dashes = words.iter().take_while(|word| *word != "--");
        let name = typed::command(words);
        return print_help(name.as_deref(), before_dashes.any(|word| word == "--help"));
    }
    if typed::context(error, ContextKind::InvalidSubcommand) == ["version"] {
        let is_verbose = |word: &OsString| word == "-v" || word == "--verbose";
        return super::version(words.iter().any(is_verbose));
    }
    report::error(mistake(error, words));
    Ok(Exit::Usage)
}

/// Prints the help of a command, or of redlock.
pub(super) fn print_help(command: Option<&str>, at_length: bool) -> Result<Exit> {
    let mut all = cli::documented();
    let shown = match command {
        Some(name) => all.find_subcommand_mut(name).expect("it was found before"),
        None => &mut all,
    };
    report::print(&match command {
        _ if at_length => shown.render_long_help().to_string(),
        Some(_) => cli::short_help(shown),
        None => cli::SHORT_HELP.to_owned(),
    })?;
    Ok(Exit::Success)
}

/// The mistake of giving no command at all.
pub fn no_command() -> Exit {
    report::error("no command given; try `redlock run NAME -- COMMAND` or see redlock -h");
    Exit::Usage
}

/// Returns the sentence for what was typed wrong.
fn mistake(error: &clap::Error, words: &[OsString]) -> String {
    let lacks_words = || {
        let missing = typed::context(error, ContextKind::InvalidArg);
        missing.iter().any(|what| what.starts_with('<'))
    };
    let line = match error.kind() {
        ErrorKind::InvalidSubcommand => wrong_command(error, words),
        ErrorKind::UnknownArgument | ErrorKind::TooManyValues => corrected(words),
        ErrorKind::MissingRequiredArgument if lacks_words() => corrected(words),
        _ => None,
    };
    line.unwrap_or_else(|| {
        let name = typed::command(words);
        let what = own_sentence(error, words, name.as_deref());
        let what = what.unwrap_or_else(|| first_line(error));
        // The command's help doesn't explain a mistake in front of its name.
        let is_command = |word: &OsString| typed::command(std::slice::from_ref(word)).is_some();
        let at = words.iter().position(is_command).unwrap_or_default();
        with_help(&what, name.as_deref().filter(|_| reads(&words[..at])))
    })
}

/// clap's line, with the nearest of the names that it suggests. A URL may contain a password: of a line with one, only
/// the kind is said.
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

/// Commands and options of other programs, such as flock(1) and redis-cli(1), and earlier ones, with the replacement: with
/// `?` an option that the command may have, and with `REDLOCK_` a setting.
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
--unlock|use redlock release NAME
--command|put -c SCRIPT
--fcntl|leave it out, as redlock locks no file
--pass|give a guard --held -, a run in a freeze --ignore-freeze, and a password REDLOCK_PASSWORD_FILE
--password-command|have a timer write the password to a file, and set REDLOCK_PASSWORD_FILE=FILE
--password|set REDLOCK_PASSWORD_FILE=FILE, as anyone on this host can read a command line
--host --port|put -u redis://HOST:PORT
--priority --lifo|leave it out; waiters are served in order, so use --slots N or two locks
--name --lock|put the lock's name without an option
-x -e --exclusive|leave it out, as a lock has one holder at a time unless -s or --slots says otherwise
--label|put --reason TEXT, or set REDLOCK_SHOW=name so that others see only the program's name
--clock-skew|leave it out, as redlock expects 500ms wherever a replica may be promoted
--restart-grace|set appendfsync always in Redis, so that a restart forgets no lock
--join|put --once KEY, with the commit or the version as KEY
--unless|test it under the lock: -c 'test -e done || make'
--late|use redlock status --older-than, or stop COMMAND with -t
--timeout|put -t TIME (--max-runtime) to limit COMMAND, or -w TIME to limit the wait of a run
--max-waiting|put --max-queue N
--wait-tree|put --with-children
--order|put --seq N
--cancel-running|put --cancel-in-progress
--timeline|use redlock history --svg FILE
--summary --by-host|use redlock history --json, and count with jq
--follow|use watch -n1 redlock history
--utc|put TZ=UTC before redlock
-w --wait|?drain
-f|?force
--connect-timeout|REDLOCK_REDIS_TIMEOUT=VALUE
--repair-ttl|REDLOCK_REPAIR_TTL=1
--prefix --password-file --tls-ca --tls-cert --tls-key --sync --sync-timeout --history-size|REDLOCK_
--on-lost --jitter --redis-timeout --who --show --hook|REDLOCK_";

/// Replacement of an option by the setting of its name.
const SETTING: &str = "REDLOCK_";

/// Returns the replacement of a word that redlock doesn't have, if it is another program's.
fn instead(word: &str) -> Option<&'static str> {
    let mut rows = OTHER_WORDS.lines().filter_map(|row| row.split_once('|'));
    let (_, instead) = rows.find(|(words, _)| words.split(' ').any(|other| other == word))?;
    Some(instead)
}

/// A word that is no command: another tool's name for one, a mistyped one, or the name of a lock.
fn wrong_command(error: &clap::Error, words: &[OsString]) -> Option<String> {
    let word = typed::context(error, ContextKind::InvalidSubcommand).pop()?;
    if let Some(meant) = instead(&word) {
        return Some(format!(
            "no command {word}; did you mean {meant}? see redlock -h"
        ));
    }
    // Of all commands only run has a --, and a lock has any name.
    let has_dashes = words.iter().any(|word| word == "--");
    let is_meant = match typed::context(error, ContextKind::SuggestedSubcommand).pop() {
        Some(suggested) => suggested == "run" || !has_dashes,
        None => false,
    };
    corrected(words).filter(|_| !is_meant)
}

/// Returns the sentence for an option that redlock doesn't have, if it is another program's.
fn other_option(option: &str, command: Option<&str>) -> Option<String> {
    let instead = instead(option)?;
    if let Some(meant) = instead.strip_prefix('?') {
        let all = cli::documented();
        let mut options = all.find_subcommand(command?)?.get_arguments();
        let has_meant = options.any(|option| option.get_long() == Some(meant));
        return has_meant.then(|| format!("no option {option}; did you mean --{meant}?"));
    }
    if !instead.starts_with(SETTING) {
        return Some(format!("no option {option}: {instead}"));
    }
    let setting = match instead {
        SETTING => {
            option
                .replace("--", SETTING)
                .replace('-', "_")
                .to_uppercase()
                + "=VALUE"
        }
        other => other.to_owned(),
    };
    Some(format!(
        "no option {option}: put {setting} in the environment or redlock.env"
    ))
}

/// Returns a sentence if clap's line doesn't explain the mistake, or does so in terms of another tool.
fn own_sentence(error: &clap::Error, words: &[OsString], command: Option<&str>) -> Option<String> {
    let argument = typed::context(error, ContextKind::InvalidArg).pop();
    let argument = argument.unwrap_or_default();
    match (error.kind(), command) {
        (ErrorKind::UnknownArgument, _) => {
            let other = other_option(&argument, command);
            if other.is_some() {
                return other;
            }
            if command == Some("extend") && cli::positive_duration(&argument).is_ok() {
                let line =
                    format!("put --for {argument}: a time without it is no argument of extend");
                return Some(line);
            }
            let runs = command == Some("acquire") && words.iter().any(|word| word == "--");
            let instead = "acquire runs no command: put redlock run NAME -- COMMAND";
            runs.then(|| instead.into())
        }
        (ErrorKind::MissingRequiredArgument, Some("run")) if argument.starts_with('<') => {
            Some("put a lock's name, --, and a command: redlock run NAME -- COMMAND".into())
        }
        (ErrorKind::InvalidUtf8, _) => {
            let mut before_dashes = words.iter().take_while(|word| *word != "--");
            let wrong = before_dashes.find(|word| word.to_str().is_none())?;
            Some(format!("{} isn't UTF-8", shown_word(wrong)))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(line: &[&str]) -> String {
        let words: Vec<OsString> = line.iter().map(Into::into).collect();
        let error = typed::read(&words).unwrap_err();
        mistake(&error, &words)
    }

    /// Checks a transcript: each command line is followed by what is said to it, of which `…` stands for the rest. Words that
    /// contain spaces are separated by `|`.
    #[track_caller]
    fn assert_said(transcript: &str) {
        let lines: Vec<&str> = transcript.trim().lines().map(str::trim).collect();
        for pair in lines.chunks(2) {
            let (line, expected) = (pair[0].strip_prefix("$ ").unwrap(), pair[1]);
            let separator = if line.contains('|') { '|' } else { ' ' };
            let said = said(&line.split(separator).collect::<Vec<_>>());
            match expected.strip_suffix('…') {
                Some(begin) => assert!(said.starts_with(begin), "{line}: {said}"),
                None => assert_eq!(said, expected, "{line}"),
            }
        }
    }

    #[test]
    fn a_mistake_in_a_run_is_one_line_that_says_where_to_read_on() {
        assert_said(
            "
            $ run a
            put a lock's name, --, and a command: redlock run NAME -- COMMAND; see redlock run -h
            $ run
            put a lock's name, --, and a command: redlock run NAME -- COMMAND; see redlock run -h
            $ run -- true
            no lock NAME given; to use the command's name as the lock's name: redlock run true -- true
            $ run --ttl
            a value is required for '--ttl <TIME>' but none was supplied; see redlock run -h
            $ run --ttl 1M a -- b
            invalid value '1M' for '--ttl <TIME>': M has no fixed length: write days as 30d, or minutes as 1m; see redlock run -h
            $ run --slots 0 a -- b
            invalid value '0' for '--slots <N>': must be a number from 1 to 9999; see redlock run -h
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
            $ release -f a
            no option -f; did you mean --force? see redlock release -h
            $ run -r a -- b
            unexpected argument '-r' found; see redlock run -h
            $ run --name a -- b
            no option --name: put the lock's name without an option; see redlock run -h
            $ stop a looking
            unexpected argument 'looking' found; see redlock stop -h
            ",
        );
    }

    #[test]
    fn a_mistake_before_a_command_or_in_another_one_is_one_line_that_says_where_to_read_on() {
        assert_said(
            "
            $ --bogus run a -- b
            unexpected argument '--bogus' found; see redlock -h
            $ --connect-timeout 5s run a -- b
            no option --connect-timeout: put REDLOCK_REDIS_TIMEOUT=VALUE in the environment or redlock.env; see redlock -h
            $ rum
            unrecognized subcommand 'rum'; did you mean run? see redlock -h
            $ list
            no command list; did you mean redlock status? see redlock -h
            $ unlok a
            unrecognized subcommand 'unlok'; did you mean unlock? see redlock -h
            $ local stop
            no command local; did you mean redlock -u local: doctor? see redlock -h
            $ kill a
            no command kill; did you mean redlock stop? see redlock -h
            $ cancel a
            no command cancel; did you mean redlock stop? see redlock -h
            $ top
            no command top; did you mean redlock status --watch? see redlock -h
            $ watch a
            no command watch; did you mean redlock status --watch? see redlock -h
            $ pause a
            no command pause; did you mean redlock freeze? see redlock -h
            $ cordon a
            no command cordon; did you mean redlock freeze? see redlock -h
            $ frobnicate
            unrecognized subcommand 'frobnicate'; see redlock -h
            $ --password hunter2 status
            no option --password: set REDLOCK_PASSWORD_FILE=FILE, as anyone on this host can read a command line; see redlock -h
            $ --password-command x status
            no option --password-command: have a timer write the password to a file, and set REDLOCK_PASSWORD_FILE=FILE; see redlock -h
            $ --host db --port 6380 status
            no option --host: put -u redis://HOST:PORT; see redlock -h
            $ -q deploy -- ./x
            put run before the lock's name and its options: redlock -q run deploy -- ./x
            $ extend a 10m
            put --for 10m: a time without it is no argument of extend; see redlock extend -h
            $ extend a --for 1h 30m
            a duration is one word: redlock extend a --for 1h30m
            $ stop a b
            unexpected argument 'b' found; see redlock stop -h
            $ freeze a
            the following required arguments were not provided: --reason <TEXT>; see redlock freeze -h
            $ acquire
            the following required arguments were not provided: <NAME>; see redlock acquire -h
            $ acquire a -- b
            acquire runs no command: put redlock run NAME -- COMMAND; see redlock acquire -h
            ",
        );
    }

    #[test]
    fn a_word_or_an_option_that_is_gone_is_answered_with_the_one_to_type() {
        assert_said(
            "
            $ expect a
            no command expect; did you mean redlock status --no-success-for 26h NAME? see redlock -h
            $ why a
            no command why; did you mean redlock status NAME? see redlock -h
            $ man run
            no command man; did you mean redlock help? see redlock -h
            $ history --timeline a
            no option --timeline: use redlock history --svg FILE; see redlock history -h
            $ run --late 1h a -- b
            no option --late: use redlock status --older-than…
            $ run --unless x a -- b
            no option --unless: test it under the lock: -c…
            $ run --join a -- b
            no option --join: put --once KEY…
            $ run --sync all a -- b
            no option --sync: put REDLOCK_SYNC=VALUE in the environment or redlock.env; see…
            $ run --prefix=x a -- b
            no option --prefix: put REDLOCK_PREFIX=VALUE in the…
            $ run a --repair-ttl -- b
            no option --repair-ttl: put REDLOCK_REPAIR_TTL=1 in the…
            $ run a --jitter -- b
            no option --jitter: put REDLOCK_JITTER=VALUE in the…
            $ run --restart-grace 1m a -- b
            no option --restart-grace: set appendfsync always…
            $ acquire --clock-skew 1s a
            no option --clock-skew: leave it out, as redlock expects…
            $ run --label x a -- b
            no option --label: put --reason TEXT…
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
            $ -n deploy -- ./x
            put run before the lock's name and its options: redlock run -n deploy -- ./x
            $ /tmp/x.lock echo hi
            put run before the lock's name and its options: redlock run /tmp/x.lock -- echo hi
            $ -n /tmp/x.lock echo hi
            put run before the lock's name and its options: redlock run -n /tmp/x.lock -- echo hi
            $ -w 10 deploy sh -x
            put run before the lock's name and its options: redlock run -w 10 deploy -- sh -x
            $ start -- ./x
            put run before the lock's name and its options: redlock run start -- ./x
            $ deploy no-such-program
            unrecognized subcommand 'deploy'; see redlock -h
            $ -w 1h 30m deploy -- ./x
            put run before the lock's name and its options: redlock run -w 1h30m deploy -- ./x
            $ run echo hi
            no lock NAME given; to use the command's name as the lock's name: redlock run echo -- echo hi
            $ acquire -w 1h 30m a
            a duration is one word: redlock acquire -w 1h30m a
            $ run -w -1 a -- b
            invalid value '-1' for '--wait <TIME>': a duration can't be negative; -n doesn't wait; see redlock run -h
            $ run --ttl=-1 a -- b
            invalid value '-1' for '--ttl <TIME>': a duration can't be negative; see redlock run -h
            $ run -o a -- b
            no option -o: leave it out, as COMMAND inherits no lock; see redlock run -h
            $ run -F a -- b
            no option -F: leave it out, as redlock has to stay to renew the lock; see redlock run -h
            ",
        );
        // A lock may be called like a unit.
        let line = ["run", "-t", "0", "d", "--", "true"];
        assert_eq!(corrected(&line.map(OsString::from)), None);
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
