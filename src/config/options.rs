//! Settings that stand in for options that weren't typed: an option that describes the host has a variable with its name.
//!
//! They are added to the words of the command line, before clap reads them, so that a value means the
//! same wherever it stands. What was typed wins, and with it what it excludes. What means something only beside another
//! option waits for that one.

use std::ffi::OsString;

use clap::{Arg, CommandFactory};

use super::{BadConfig, NAMES, Setting, Sources, is_in_job};
use crate::cli::{Cli, ONLY_WITH, WITH_SETTINGS, variable};
use crate::pattern::nearest;
use crate::typed::{Typed, Word};

/// A setting in place of an option.
#[derive(Debug)]
pub struct StandIn {
    /// The long name of the option.
    pub option: String,
    /// What is to be read as if it had been typed.
    pub word: OsString,
    /// Where it is set: a variable, with file and line.
    pub said: String,
}

/// What the settings add to a command line.
#[derive(Debug, Default)]
pub struct FromSettings {
    pub stand_ins: Vec<StandIn>,
    /// Variables of the environment that look like ours, and aren't, in a sentence.
    pub unknown: Option<String>,
    /// Settings of an earlier version, and variables of options that describe a job, in a sentence.
    pub removed: Option<String>,
}

impl FromSettings {
    /// Looks for what stands in for options of this command line.
    ///
    /// # Errors
    /// [`BadConfig`] for a file that sets what isn't a setting, and for a switch that isn't 1 or 0.
    pub fn new(sources: &Sources, typed: &Typed) -> Result<Self, BadConfig> {
        let others = || {
            let settings = sources.settings.iter();
            settings.filter(|setting| !NAMES.contains(&setting.name.as_str()))
        };
        if !sources.have_stand_ins() {
            return Ok(Self::default());
        }
        let known = |command: &&clap::Command| WITH_SETTINGS.contains(&command.get_name());
        let command = typed.command().filter(known);
        let mut candidates: Vec<(&Arg, &Setting)> = Vec::new();
        let mut elsewhere: Vec<&Setting> = Vec::new();
        for setting in others() {
            let option = command.and_then(|command| option_of(command, &setting.name));
            match option {
                None => elsewhere.push(setting),
                Some(option) if candidates.iter().any(|(known, _)| *known == option) => {}
                Some(option) => candidates.push((option, setting)),
            }
        }
        let (removed, elsewhere): (Vec<&Setting>, _) = elsewhere
            .into_iter()
            .partition(|setting| is_removed(setting));
        let places: Vec<String> = removed.iter().map(|setting| setting.location()).collect();
        let removed = (!places.is_empty()).then(|| {
            format!(
                "ignored, as no setting any more: {}; `redlock help redlock` lists all settings",
                places.join(", ")
            )
        });
        let unknown = unknown(elsewhere)?;
        let mut stand_ins = Vec::new();
        if let Some(command) = command {
            for (option, setting) in chosen(command, typed, candidates)? {
                let long = option.get_long().unwrap_or_default().to_owned();
                let word = if option.get_action().takes_values() {
                    format!("--{long}={}", setting.value)
                } else {
                    format!("--{long}")
                };
                stand_ins.push(StandIn {
                    option: long,
                    word: word.into(),
                    said: setting.location(),
                });
            }
        }
        Ok(Self {
            stand_ins,
            unknown,
            removed,
        })
    }

    /// What the settings add to the command line, behind the command's name.
    pub fn words(&self) -> impl Iterator<Item = OsString> {
        self.stand_ins.iter().map(|added| added.word.clone())
    }
}

/// The option that a variable sets.
fn option_of<'a>(command: &'a clap::Command, name: &str) -> Option<&'a Arg> {
    command.get_arguments().find(|argument| {
        let variable = argument.get_long().and_then(variable);
        variable.is_some_and(|variable| variable == name)
    })
}

/// Those of the settings that go with what was typed, and with each other.
fn chosen<'a>(
    command: &'a clap::Command,
    typed: &'a Typed,
    candidates: Vec<(&'a Arg, &'a Setting)>,
) -> Result<Vec<(&'a Arg, &'a Setting)>, BadConfig> {
    let excludes = |one: &Arg, other: &Arg| {
        let of = |argument| command.get_arg_conflicts_with(argument);
        of(one).contains(&other) || of(other).contains(&one)
    };
    let given: Vec<&Arg> = typed
        .kinds()
        .into_iter()
        .filter_map(|kind| match kind {
            Word::Option(option) => Some(option),
            // COMMAND excludes some options, too.
            Word::AfterDashes => command
                .get_positionals()
                .find(|argument| argument.is_last_set()),
            _ => None,
        })
        .collect();
    let mut chosen: Vec<(&Arg, &Setting)> = Vec::new();
    for (option, setting) in candidates {
        let is_on = option.get_action().takes_values() || setting.is_on()?;
        let is_typed = given
            .iter()
            .any(|given| *given == option || excludes(given, option));
        // Of two that exclude each other in one place, clap complains.
        let is_overridden = chosen
            .iter()
            .any(|(other, at)| file(at) != file(setting) && excludes(other, option));
        if is_on && !is_typed && !is_overridden {
            chosen.push((option, setting));
        }
    }
    let beside: Vec<String> = given
        .iter()
        .chain(chosen.iter().map(|(option, _)| option))
        .filter_map(|option| option.get_long().map(str::to_owned))
        .collect();
    chosen.retain(|(option, _)| {
        let needed = ONLY_WITH.iter().find(|(with, needed)| {
            let is_here = || {
                let mut all = command.get_arguments();
                all.any(|other| other.get_long() == Some(*needed))
            };
            option.get_long() == Some(*with) && is_here()
        });
        needed.is_none_or(|(_, needed)| beside.iter().any(|given| given == needed))
    });
    Ok(chosen)
}

fn file(setting: &Setting) -> Option<&std::path::Path> {
    setting.place.as_ref().map(|(file, _)| file.as_path())
}

/// Settings of earlier versions, and variables that options which describe a job would have.
const REMOVED: [&str; 31] = [
    "REDLOCK_CANCEL_IN_PROGRESS",
    "REDLOCK_CANCEL_RUNNING",
    "REDLOCK_CLOCK_SKEW",
    "REDLOCK_CONFLICT_EXIT_CODE",
    "REDLOCK_EXCLUSIVE",
    "REDLOCK_FORMAT",
    "REDLOCK_HOLD_AT_LEAST",
    "REDLOCK_IGNORE_FREEZE",
    "REDLOCK_JOIN",
    "REDLOCK_LABEL",
    "REDLOCK_LATE",
    "REDLOCK_LIFO",
    "REDLOCK_MAX_QUEUE",
    "REDLOCK_MAX_WAITING",
    "REDLOCK_NO_WAIT",
    "REDLOCK_ONCE",
    "REDLOCK_ONCE_PER",
    "REDLOCK_ORDER",
    "REDLOCK_PASS",
    "REDLOCK_PASSWORD_COMMAND",
    "REDLOCK_PRIORITY",
    "REDLOCK_RESTART_GRACE",
    "REDLOCK_SEQ",
    "REDLOCK_SHARED",
    "REDLOCK_SLOTS",
    "REDLOCK_SUPERSEDE",
    "REDLOCK_TIMEOUT",
    "REDLOCK_UNLESS",
    "REDLOCK_WAIT",
    "REDLOCK_WAIT_TREE",
    "REDLOCK_WITH_CHILDREN",
];

fn is_removed(setting: &Setting) -> bool {
    REMOVED.contains(&setting.name.as_str())
}

/// What is set, and isn't a setting of any command. In a file it is a mistake; in the environment it may be
/// another program's.
fn unknown(mut settings: Vec<&Setting>) -> Result<Option<String>, BadConfig> {
    // Nothing is defined in vain: that would take longer than reading the command line.
    if settings.is_empty() {
        return Ok(None);
    }
    let mut known: Vec<String> = NAMES.map(str::to_owned).into();
    let mut all = Cli::command();
    for name in WITH_SETTINGS {
        if settings.is_empty() {
            return Ok(None);
        }
        let command = all.find_subcommand_mut(name).expect("it is a command");
        command.build();
        let options = command.get_arguments();
        known.extend(options.filter_map(|option| variable(option.get_long()?)));
        settings.retain(|setting| !known.contains(&setting.name));
    }
    let hint = |name: &str| {
        let near = nearest(name, known.iter().map(String::as_str));
        near.map_or(String::new(), |near| format!("; did you mean {near}?"))
    };
    let mut in_files = settings.iter().filter_map(|setting| {
        let (file, line) = setting.place.as_ref()?;
        Some((file.display(), line, &setting.name))
    });
    if let Some((file, line, name)) = in_files.next() {
        let hint = hint(name);
        let line = format!("{file}:{line}: unknown setting {name}{hint}");
        return Err(BadConfig(line));
    }
    let names: Vec<&str> = settings.iter().map(|setting| &*setting.name).collect();
    Ok(match names.as_slice() {
        [] => None,
        _ if is_in_job() => None,
        [name] => Some(format!("unknown variable {name}{}", hint(name))),
        several => Some(format!("unknown variables {}", several.join(", "))),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::variables::{OF_HOOK, VARIABLES};

    /// What clap makes of a command line, with these settings of the environment.
    fn read(words: &[&str], settings: &[(&str, &str)]) -> String {
        let settings = settings.iter().map(|(name, value)| Setting {
            name: (*name).into(),
            value: (*value).into(),
            place: None,
        });
        let settings = settings.collect();
        let words: Vec<OsString> = words.iter().map(Into::into).collect();
        let sources = Sources {
            settings,
            ..Sources::default()
        };
        let mut typed = Typed::new(words);
        let words = typed.with(FromSettings::new(&sources, &typed).unwrap().words());
        let cli = typed
            .read(&words)
            .unwrap_or_else(|error| panic!("{words:?}: {error}"));
        format!("{cli:?}")
    }

    #[test]
    fn a_variable_means_what_its_option_means() {
        let mut seen = 0;
        for name in WITH_SETTINGS {
            let mut all = Cli::command();
            let command = all.find_subcommand_mut(name).unwrap();
            command.build();
            for option in command.get_arguments() {
                let Some(long) = option.get_long() else {
                    continue;
                };
                let Some(variable) = variable(long).filter(|it| !NAMES.contains(&it.as_str()))
                else {
                    continue;
                };
                let possible = option.get_possible_values();
                let value = match option.get_value_names().map(|names| names[0].as_str()) {
                    _ if !option.get_action().takes_values() => None,
                    _ if !possible.is_empty() => Some(possible.last().unwrap().get_name()),
                    Some("TIME") => Some("7.5"),
                    Some("N" | "PID" | "all|N") => Some("7"),
                    _ => Some("some text"),
                };
                let typed = match value {
                    Some(value) => format!("--{long}={value}"),
                    None => format!("--{long}"),
                };
                let mut line = vec![name];
                let has = |long: &str| {
                    let mut all = command.get_arguments();
                    all.any(|option| option.get_long() == Some(long))
                };
                let beside = ONLY_WITH
                    .iter()
                    .find(|(with, needed)| *with == long && has(needed));
                if let Some((_, "while-pid")) = beside {
                    line.push("--while-pid=7");
                }
                let mut with_option = line.clone();
                with_option.push(&typed);
                for line in [&mut line, &mut with_option] {
                    line.push("a");
                    if ["run", "guard"].contains(&name) {
                        line.extend(["--", "true"]);
                    }
                }
                let by_variable = read(&line, &[(&variable, value.unwrap_or("1"))]);
                assert_eq!(by_variable, read(&with_option, &[]), "{line:?} {typed}");
                assert_ne!(by_variable, read(&line, &[]), "{line:?} {typed}");
                seen += 1;
            }
        }
        assert!(seen > 15, "{seen}");
    }

    #[test]
    fn only_a_name_that_is_nearly_right_is_taken_for_another() {
        let known = [
            "REDLOCK_TTL",
            "REDLOCK_URL",
            "REDLOCK_WAIT",
            "REDLOCK_NO_WAIT",
        ];
        let known = known.map(str::to_owned);
        for (name, meant) in [
            ("REDLOCK_TLT", Some("REDLOCK_TTL")),
            ("REDLOCK_URI", Some("REDLOCK_URL")),
            ("REDLOCK_WIAT", Some("REDLOCK_WAIT")),
            ("REDLOCK_NOWAIT", Some("REDLOCK_NO_WAIT")),
            ("REDLOCK_FROBNICATE", None),
            ("REDLOCK_X1Y2", None),
        ] {
            assert_eq!(
                nearest(name, known.iter().map(String::as_str)),
                meant,
                "{name}"
            );
        }
        // A name as long as an environment can be is no more work.
        assert_eq!(
            nearest(&"R".repeat(1 << 20), known.iter().map(String::as_str)),
            None
        );
    }

    #[test]
    fn the_variables_of_a_job_set_no_option() {
        for name in WITH_SETTINGS {
            let mut all = Cli::command();
            let command = all.find_subcommand_mut(name).unwrap();
            command.build();
            for variable in VARIABLES.iter().chain(&OF_HOOK) {
                assert!(option_of(command, variable).is_none(), "{variable}");
            }
        }
    }
}
