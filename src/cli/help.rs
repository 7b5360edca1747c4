//! Help and man pages: all options in each command, in their groups.

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

/// A command line as help and man pages show it: with all options in each command, in their groups.
pub(super) fn documented(mut all: clap::Command) -> clap::Command {
    all.build();
    let mut places = 0..;
    all.mut_subcommands(|command| {
        in_groups(&command).display_order(places.next().unwrap_or_default())
    })
}

/// Returns what `-h` prints: the usage, and a line for each option.
pub fn short_help(command: &mut clap::Command) -> String {
    let about = command.get_about().map(ToString::to_string);
    let usage = command.render_usage();
    let shown = command.get_arguments().filter(|argument| {
        let is_hidden = argument.is_hide_set() || argument.is_hide_short_help_set();
        argument.get_long().is_some() && !is_hidden
    });
    let rows: Vec<(String, String)> = shown
        .map(|argument| {
            let short = argument.get_short();
            let short = short.map_or("    ".into(), |short| format!("-{short}, "));
            let option = argument.to_string().replace(['<', '>'], "");
            let help = argument.get_help().map(ToString::to_string);
            (format!("  {short}{option}"), help.unwrap_or_default())
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

/// A command with its options in groups.
fn in_groups(command: &clap::Command) -> clap::Command {
    // clap keeps names as static text, and help is shown once.
    let name: &'static str = command.get_name().to_owned().leak();
    let has_groups = ["run", "acquire"].contains(&name);
    let mut arguments: Vec<Arg> = command.get_arguments().cloned().collect();
    for argument in &mut arguments {
        let help = argument.get_long_help().or(argument.get_help());
        let help = help.cloned().unwrap_or_default();
        // Manuals would leave the help out, as `-h` leaves the option out.
        let mut option = argument.clone().long_help(help);
        if has_groups && matches!(option.get_long(), Some("help" | "quiet" | "verbose")) {
            option = option.help_heading("Description").display_order(999);
        }
        *argument = option;
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
