//! Help and man pages: all options in each command, in their groups, with their variables and defaults.

use std::fmt::Write as _;

use clap::Arg;
use clap::builder::StyledStr;

/// The group of the options that name the server, in each command.
pub const CONNECTION: &str = "Connection";

/// The groups of options, in the order in which help and man pages show them.
pub const GROUPS: [&str; 9] = [
    "Waiting",
    "Sharing",
    "Only the newest",
    "Run once across hosts",
    "The command",
    "Script",
    "Lease and failures",
    "Description",
    CONNECTION,
];

/// The commands that have options with a variable.
pub const WITH_SETTINGS: [&str; 5] = ["run", "guard", "acquire", "extend", "doctor"];

/// Options that a host sets, too, by a variable. All others describe a job, and have none: a variable also reaches the runs
/// that the job starts.
const WITH_VARIABLE: [&str; 20] = [
    "connect-timeout",
    "history-size",
    "jitter",
    "kill-after",
    "max-runtime",
    "on-lost",
    "on-unreachable",
    "password-file",
    "prefix",
    "quiet",
    "reason",
    "repair-ttl",
    "sync",
    "sync-timeout",
    "tls-ca",
    "tls-cert",
    "tls-key",
    "ttl",
    "url",
    "verbose",
];

/// Returns the variable that sets an option, if any: `REDLOCK_KILL_AFTER` for `kill-after`.
pub fn variable(option: &str) -> Option<String> {
    let has_one = WITH_VARIABLE.contains(&option);
    has_one.then(|| format!("REDLOCK_{}", option.to_uppercase().replace('-', "_")))
}

/// A command line as help and man pages show it: with all options in each command, in their groups,
/// with their variables.
pub(super) fn documented(mut all: clap::Command) -> clap::Command {
    all.build();
    let names: Vec<String> = all
        .get_subcommands()
        .map(|command| command.get_name().to_owned())
        .collect();
    let of_connection = |argument: Arg| match argument.get_help_heading() {
        Some(CONNECTION) => explained(argument, None),
        _ => argument,
    };
    let all = all.mut_args(of_connection);
    names.into_iter().enumerate().fold(all, |all, (at, name)| {
        all.mut_subcommand(name, |command| in_groups(&command).display_order(at))
    })
}

/// Returns what `-h` prints: the usage, and a line for each option.
pub fn short_help(command: &mut clap::Command) -> String {
    let about = command.get_about().map(ToString::to_string);
    let usage = command.render_usage();
    let rows: Vec<(String, String)> = command
        .get_arguments()
        .filter(|argument| !argument.is_hide_set() && !argument.is_hide_short_help_set())
        .filter_map(|argument| {
            let long = argument.get_long()?;
            let short = argument.get_short();
            let short = short.map_or("    ".into(), |short| format!("-{short}, "));
            let value = argument.get_value_names().unwrap_or_default();
            let value = match value
                .first()
                .filter(|_| argument.get_action().takes_values())
            {
                None => String::new(),
                Some(name) if argument.get_num_args().is_some_and(|n| n.min_values() == 0) => {
                    format!("[={name}]")
                }
                Some(name) => format!(" {name}"),
            };
            let help = argument.get_help().map(ToString::to_string);
            Some((
                format!("  {short}--{long}{value}"),
                help.unwrap_or_default(),
            ))
        })
        .collect();
    let width = rows.iter().map(|(option, _)| option.len()).max();
    let width = width.unwrap_or_default() + 2;
    let mut text = format!("{}\n\n{usage}\n\n", about.unwrap_or_default());
    for (option, help) in rows {
        let mut line = format!("{option:width$}");
        for word in help.split_whitespace() {
            if line.chars().count() + word.chars().count() > COLUMNS {
                let _ = writeln!(text, "{}", line.trim_end());
                line = " ".repeat(width);
            }
            line = line + word + " ";
        }
        let _ = writeln!(text, "{}", line.trim_end());
    }
    let end = command.get_after_help().map(ToString::to_string);
    match end.filter(|end| !end.is_empty()) {
        Some(end) => format!("{text}\n{end}\n"),
        None => text,
    }
}

/// Width of a terminal that help is written for, in columns.
const COLUMNS: usize = 80;

/// An option with its whole help, also where `-h` leaves it out: manuals would do the same. The variable and the default
/// stand at its end.
fn explained(argument: Arg, variable: Option<String>) -> Arg {
    let help = argument.get_long_help().or_else(|| argument.get_help());
    let mut text = help.map(ToString::to_string).unwrap_or_default();
    let mut end = String::new();
    if let Some(variable) = variable {
        let _ = write!(end, " [env: {variable}]");
    }
    for mark in ["[env: ", "[default: "] {
        if let Some(from) = text.find(mark)
            && let Some(length) = text[from..].find(']')
        {
            let to = from + length + 1;
            let _ = write!(end, " {}", &text[from..to]);
            let before = text[..from].trim_end_matches(' ');
            text = format!("{before}{}", &text[to..]);
        }
    }
    // clap's own place for a default would be another one.
    let mut argument = argument;
    let shows_default =
        argument.get_action().takes_values() && !argument.is_hide_default_value_set();
    if shows_default && let [default] = argument.get_default_values() {
        let mark = format!(" [default: {}]", default.to_string_lossy());
        let help = argument.get_help().map(ToString::to_string);
        end += &mark;
        argument = argument
            .hide_default_value(true)
            .help(help.unwrap_or_default() + &mark);
    }
    argument.long_help(text.trim_end().to_owned() + &end)
}

/// A command with its options in groups.
fn in_groups(command: &clap::Command) -> clap::Command {
    // clap keeps names as static text, and help is shown once.
    let name: &'static str = command.get_name().to_owned().leak();
    let has_settings = WITH_SETTINGS.contains(&name);
    let has_groups = has_settings && !["guard", "extend", "doctor"].contains(&name);
    let mut arguments: Vec<Arg> = command.get_arguments().cloned().collect();
    for argument in &mut arguments {
        let option = argument.get_long().map(str::to_owned);
        let heading = argument.get_help_heading().map(str::to_owned);
        *argument = match (option.as_deref(), heading.as_deref()) {
            (Some("help" | "quiet" | "verbose"), _) if has_groups => argument
                .clone()
                .help_heading("Description")
                .display_order(999),
            (Some("help" | "quiet" | "verbose") | None, _) => continue,
            (_, Some(CONNECTION)) => explained(argument.clone(), None),
            (Some(option), _) => {
                let variable = variable(option).filter(|_| has_settings);
                explained(argument.clone(), variable)
            }
        };
    }
    arguments.sort_by_key(|argument| {
        let heading = argument.get_help_heading();
        GROUPS.iter().position(|group| Some(*group) == heading)
    });
    // The groups stand in the order of their first options, which only a new command can change.
    let usage = command.clone().render_usage().to_string();
    let about = |text: Option<&StyledStr>| text.cloned().unwrap_or_default();
    clap::Command::new(name)
        .hide(command.is_hide_set())
        .bin_name(format!("redlock {name}"))
        .about(about(command.get_about()))
        .long_about(about(command.get_long_about().or(command.get_about())))
        .override_usage(usage.trim_start_matches("Usage: ").to_owned())
        .after_help(about(command.get_after_help()))
        .after_long_help(about(command.get_after_long_help()))
        .max_term_width(80)
        .disable_help_flag(true)
        .disable_version_flag(true)
        .args(arguments)
}
