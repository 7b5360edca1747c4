//! Settings that stand in for options that weren't typed: each option of the commands in `WITH_SETTINGS` has its
//! variable, by its name, except those in `WITHOUT_VARIABLE`.
//!
//! They are added to the words of the command line, before clap reads them, so that a value means the
//! same wherever it stands. What was typed wins, and with it what it excludes: `--no-wait` over
//! `REDLOCK_WAIT`. What means something only beside another option waits for that one.

use std::ffi::OsString;

use clap::{Arg, CommandFactory};

use super::{BadConfig, NAMES, Setting, Sources, is_in_job};
use crate::cli::{Cli, ONLY_WITH, WITH_SETTINGS, variable};
use crate::typed::{Typed, Word, nearest};

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
    /// Before which word they go.
    pub at: usize,
    /// Variables of the environment that look like ours, and aren't, in a sentence.
    pub unknown: Option<String>,
}

impl FromSettings {
    /// Looks for what stands in for options of this command line; `words` are all after `redlock`.
    ///
    /// # Errors
    /// [`BadConfig`] for a file that sets what isn't a setting, and for a switch that isn't 1 or 0.
    pub fn new(sources: &Sources, words: &[OsString]) -> Result<Self, BadConfig> {
        let others = || {
            let settings = sources.settings.iter();
            settings.filter(|setting| !NAMES.contains(&setting.name.as_str()))
        };
        if others().next().is_none() {
            return Ok(Self::default());
        }
        let typed = Typed::new(words.to_vec());
        let command = typed
            .command
            .as_ref()
            .filter(|command| WITH_SETTINGS.contains(&command.get_name()));
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
        let unknown = unknown(&elsewhere)?;
        let mut stand_ins = Vec::new();
        if let Some(command) = command {
            for (option, setting) in chosen(command, &typed, candidates)? {
                let long = option.get_long().unwrap_or_default().to_owned();
                let word = if option.get_action().takes_values() {
                    format!("--{long}={}", setting.value)
                } else {
                    format!("--{long}")
                };
                stand_ins.push(StandIn {
                    option: long,
                    word: word.into(),
                    said: setting.said(),
                });
            }
        }
        Ok(Self {
            stand_ins,
            at: typed.command_at.map_or(0, |at| at + 1),
            unknown,
        })
    }

    /// The command line with what the settings add to it.
    pub fn apply(&self, words: &[OsString]) -> Vec<OsString> {
        let mut words = words.to_vec();
        let added = self.stand_ins.iter().map(|added| added.word.clone());
        words.splice(self.at..self.at, added);
        words
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
    typed: &Typed,
    candidates: Vec<(&'a Arg, &'a Setting)>,
) -> Result<Vec<(&'a Arg, &'a Setting)>, BadConfig> {
    let excludes = |one: &Arg, other: &Arg| {
        let of = |argument| command.get_arg_conflicts_with(argument);
        of(one).contains(&other) || of(other).contains(&one)
    };
    let given: Vec<&Arg> = typed
        .arguments()
        .into_iter()
        .filter_map(|(_, kind)| match kind {
            Word::Option(option) => command
                .get_arguments()
                .find(|other| other.get_id() == option.get_id()),
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

/// What is set, and isn't a setting of any command. In a file it is a mistake; in the environment it may be
/// another program's.
fn unknown(settings: &[&Setting]) -> Result<Option<String>, BadConfig> {
    if settings.is_empty() {
        return Ok(None);
    }
    let mut known: Vec<String> = NAMES.map(str::to_owned).into();
    let mut all = Cli::command();
    for name in WITH_SETTINGS {
        if let Some(command) = all.find_subcommand_mut(name) {
            command.build();
            known.extend(
                command
                    .get_arguments()
                    .filter_map(|argument| variable(argument.get_long()?)),
            );
        }
    }
    let hint = |name: &str| match nearest(name, known.iter().map(String::as_str)) {
        Some(near) => format!("; did you mean {near}?"),
        None => String::new(),
    };
    let mut strange = Vec::new();
    for setting in settings {
        if known.contains(&setting.name) {
            continue;
        }
        match &setting.place {
            Some((file, line)) => {
                let (file, name) = (file.display(), &setting.name);
                let hint = hint(name);
                return Err(BadConfig(format!(
                    "{file}:{line}: unknown setting {name}{hint}"
                )));
            }
            None => strange.push(setting.name.as_str()),
        }
    }
    Ok(match strange.as_slice() {
        [] => None,
        _ if is_in_job() => None,
        [name] => Some(format!("unknown variable {name}{}", hint(name))),
        several => Some(format!("unknown variables {}", several.join(", "))),
    })
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::variables::VARIABLES;

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
        let from_settings = FromSettings::new(&sources, &words).unwrap();
        let words = from_settings.apply(&words);
        let all = std::iter::once("redlock".into()).chain(words.clone());
        let cli = Cli::try_parse_from(all).unwrap_or_else(|error| panic!("{words:?}: {error}"));
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
                    Some("DURATION") => Some("7.5"),
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
                match beside {
                    Some((_, "while-pid")) => line.push("--while-pid=7"),
                    Some((_, "supersede")) => line.push("--supersede"),
                    _ => {}
                }
                let mut with_option = line.clone();
                with_option.push(&typed);
                for line in [&mut line, &mut with_option] {
                    line.push("a");
                    if name == "run" {
                        line.extend(["--", "true"]);
                    }
                }
                let by_variable = read(&line, &[(&variable, value.unwrap_or("1"))]);
                assert_eq!(by_variable, read(&with_option, &[]), "{line:?} {typed}");
                assert_ne!(by_variable, read(&line, &[]), "{line:?} {typed}");
                seen += 1;
            }
        }
        assert!(seen > 40, "{seen}");
    }

    #[test]
    fn the_variables_of_a_job_set_no_option() {
        for name in WITH_SETTINGS {
            let mut all = Cli::command();
            let command = all.find_subcommand_mut(name).unwrap();
            command.build();
            for variable in VARIABLES {
                assert!(option_of(command, variable).is_none(), "{variable}");
            }
        }
    }
}
