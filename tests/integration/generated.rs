//! What is printed agrees with what is there: man pages, completions, and what the manual tells to do.
//!
//! The pages are made from the definition of the command line, with the hand-written sections of
//! man/parts at their end; `make generate` rewrites them. A hand-written DESCRIPTION replaces the one of the help.
//! Completions come from clap; these tests ask bash, zsh and fish for them.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use clap::CommandFactory;
use clap_mangen::Man;
use nix::sys::signal::Signal;

use crate::promises::untrusted::plant;
use crate::support::{Gated, Outcome, Redis, Running, SERVER, outcome, path, setting, wait_until};

#[path = "../../src/cli/mod.rs"]
#[allow(dead_code, unused_imports)]
pub mod cli;

pub fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The command line, with the options of every command in each of them.
fn command_line() -> clap::Command {
    cli::documented()
}

/// All pages: their file names and texts.
fn pages() -> Vec<(String, String)> {
    let all = command_line();
    let subcommands = all
        .get_subcommands()
        .map(|command| page(command, &format!("redlock-{}", command.get_name())));
    subcommands
        .chain([page(&all, "redlock"), recipes_page()])
        .collect()
}

/// docs/recipes.md as a page of the manual.
fn recipes_page() -> (String, String) {
    let version = env!("CARGO_PKG_VERSION");
    let mut text = format!(
        ".TH REDLOCK-RECIPES 7 \"\" \"redlock {version}\" \"redlock manual\"\n.nh\n\
         .SH NAME\nredlock\\-recipes \\- locks in scripts, in cron and in CI\n.SH DESCRIPTION\n"
    );
    let mut in_code = false;
    for line in recipes().lines() {
        let fence = line.starts_with("```");
        in_code ^= fence;
        if fence {
            text += if in_code { ".PP\n.nf\n" } else { ".fi\n" };
        } else if in_code {
            writeln!(text, "{}", roff(line)).unwrap();
        } else if line.starts_with("![") {
            // A page of the manual has no pictures.
        } else if let Some(heading) = line.strip_prefix("## ") {
            writeln!(text, ".SH {}", roff(heading).to_uppercase()).unwrap();
        } else if line.is_empty() {
            text += ".PP\n";
        } else {
            let line = line.strip_prefix("- ").map_or(line.trim_start(), |item| {
                text += ".IP \\(bu 2\n";
                item
            });
            // What stands between backquotes is bold.
            let parts = roff(line);
            let parts = parts.split('`').enumerate();
            let bold = parts.map(|(n, part)| match n % 2 {
                0 => part.to_owned(),
                _ => format!("\\fB{part}\\fR"),
            });
            text += &(bold.collect::<String>() + "\n");
        }
    }
    text += ".SH SEE ALSO\n.BR redlock (1),\n.BR redlock\\-run (1),\n.BR redlock\\-acquire (1)\n";
    // An empty paragraph before a heading or another paragraph is none.
    while text.contains(".PP\n.PP\n") || text.contains(".PP\n.SH") {
        text = text
            .replace(".PP\n.PP\n", ".PP\n")
            .replace(".PP\n.SH", ".SH");
    }
    let text = text
        .replace(".PP\n.IP", ".IP")
        .replace("DESCRIPTION\n.PP\n", "DESCRIPTION\n");
    ("redlock-recipes.7".into(), text)
}

/// A line of text in roff.
fn roff(line: &str) -> String {
    let line = line.replace('\\', "\\e").replace('-', "\\-");
    if line.starts_with(['.', '\'']) {
        format!("\\&{line}")
    } else {
        line
    }
}

/// docs/recipes.md without its title.
pub fn recipes() -> String {
    let page = fs::read_to_string(root().join("docs/recipes.md")).unwrap();
    let (_, rest) = page.split_once("# Recipes\n").expect("the title");
    rest.to_owned()
}

/// What `clap_mangen` begins each part of a page with.
const PREAMBLE: &str = ".ie \\n(.g .ds Aq \\(aq\n.el .ds Aq '\n";

/// Stands in the page of each command for the options of every command.
const COMMON_OPTIONS: &str = ".PP\nOptions of every command, such as \\fB\\-\\-url\\fR and \\fB\\-\\-quiet\\fR: see \\fBredlock\\fR(1).\n";

/// Whether an option is one of every command: redlock(1) describes these.
fn is_common(option: &clap::Arg) -> bool {
    option.get_help_heading() == Some(cli::CONNECTION)
        || matches!(option.get_long(), Some("help" | "quiet" | "verbose"))
}

/// The text with its first letter in lower case, as all NAME sections have it.
fn uncapitalized(name_section: &str) -> String {
    let (start, about) = name_section.rsplit_once("\\- ").expect("a description");
    let (first, rest) = about.split_at(1);
    format!("{start}\\- {}{rest}", first.to_lowercase())
}

fn page(command: &clap::Command, name: &str) -> (String, String) {
    let is_of_subcommand = command.get_name() != "redlock";
    // clap keeps names as static text.
    let known: &'static str = name.to_owned().leak();
    let usage = command.clone().render_usage().to_string();
    let mut shown = command
        .clone()
        .display_name(known)
        .name(known)
        .override_usage(usage.trim_start_matches("Usage: ").to_owned());
    // The name section has said the first paragraph.
    if let Some(about) = command.get_long_about().map(ToString::to_string)
        && let Some((_, description)) = about.split_once("\n\n")
    {
        shown = shown.long_about(description.to_owned());
    }
    if is_of_subcommand {
        shown = shown.mut_args(|option| {
            if is_common(&option) {
                option.hide(true)
            } else {
                option
            }
        });
    }
    let by_hand = fs::read_to_string(root().join(format!("man/parts/{name}.roff"))).unwrap();
    let (description, by_hand) = match by_hand.split_once("\n.SH ") {
        Some((description, rest)) if description.starts_with(".SH DESCRIPTION\n") => {
            (Some(format!("{description}\n")), format!(".SH {rest}"))
        }
        _ => (None, by_hand),
    };
    let man = Man::new(shown);
    let section = |render: &dyn Fn(&mut dyn std::io::Write) -> std::io::Result<()>| {
        let mut section = Vec::new();
        render(&mut section).unwrap();
        String::from_utf8(section).unwrap()
    };
    let mut parts = uncapitalized(&section(&|out| man.render_name_section(out)));
    parts += &section(&|out| man.render_synopsis_section(out));
    parts += &description.unwrap_or_else(|| section(&|out| man.render_description_section(out)));
    let mut options = section(&|out| man.render_options_section(out));
    // The groups of options are parts of one section.
    for group in cli::help::GROUPS {
        let heading = format!(".SH \"{}\"\n", group.to_uppercase());
        options = options.replace(&heading, &format!(".SS {group}\n"));
        let heading = format!(".SH {}\n", group.to_uppercase());
        options = options.replace(&heading, &format!(".SS {group}\n"));
    }
    parts += &options;
    if is_of_subcommand {
        parts += COMMON_OPTIONS;
    }
    let parts = parts.replace(PREAMBLE, "");
    // The title has no date: it would have to be kept up to date by hand. clap_mangen would leave
    // the empty argument out.
    let title = name.to_uppercase();
    let version = env!("CARGO_PKG_VERSION");
    let text = format!(
        "{PREAMBLE}.TH {title} 1 \"\" \"redlock {version}\" \"redlock manual\"\n.nh\n{}",
        parts.replace(".br\n\n.br\n", ".sp\n")
    );
    (format!("{name}.1"), text + &by_hand)
}

#[test]
fn the_man_pages_are_those_of_the_command_line() {
    for (name, text) in pages() {
        let file = root().join("man").join(&name);
        if std::env::var_os("UPDATE").is_some() {
            fs::write(&file, &text).unwrap();
        }
        let committed = fs::read_to_string(&file).unwrap_or_default();
        assert!(
            committed == text,
            "man/{name} is out of date; `make generate` rewrites it"
        );
    }
}

/// What is flattened into a command may bring a description along.
#[test]
fn each_command_is_described_as_in_the_list_of_commands() {
    let listed = cli::Cli::command();
    let built = command_line();
    for command in listed.get_subcommands() {
        let name = command.get_name();
        let shown = built.find_subcommand(name).expect("it is built");
        let about = |command: &clap::Command| command.get_about().map(ToString::to_string);
        assert_eq!(about(shown), about(command), "{name}");
    }
}

#[test]
fn the_man_pages_are_good_roff() {
    for entry in fs::read_dir(root().join("man")).unwrap().flatten() {
        if !entry.file_type().unwrap().is_file() {
            continue;
        }
        let mut man = Command::new("man");
        let shown: Outcome = man
            .args(["--warnings", "-E", "UTF-8", "-l"])
            .arg(entry.path())
            .env("MANWIDTH", "80")
            .output()
            .expect("man is installed")
            .into();
        shown.assert_code(0).assert_silent();
        assert!(shown.stdout.lines().count() > 20, "{shown:?}");
        let wide = |line: &&str| line.chars().count() > 80;
        assert_eq!(shown.stdout.lines().find(wide), None, "{:?}", entry.path());
        let source = fs::read_to_string(entry.path()).unwrap();
        let items = source.split("\n.TP\n").skip(1);
        let mut unexplained = items.filter(|item| item.lines().nth(1).is_none_or(str::is_empty));
        assert_eq!(unexplained.next(), None, "{:?}", entry.path());
    }
}

/// The long options that the help of a command shows, each with its dashes.
fn long_options(command: &clap::Command) -> BTreeSet<String> {
    command
        .get_arguments()
        .filter(|option| !option.is_hide_set())
        .filter_map(clap::Arg::get_long)
        .map(|option| format!("--{option}"))
        .collect()
}

/// Asks a shell for everything it offers, and compares with what the command line takes.
fn assert_knows_everything(complete: &dyn Fn(&str) -> Vec<String>) {
    let all = command_line();
    let offered = |line: &str| -> BTreeSet<String> { complete(line).into_iter().collect() };
    assert_eq!(
        offered("redlock --"),
        long_options(&all),
        "before the command"
    );
    for command in all.get_subcommands() {
        let name = command.get_name();
        assert!(
            command.is_hide_set() || offered("redlock ").contains(name),
            "{name}"
        );
        let mut options = offered(&format!("redlock {name} --"));
        // What separates COMMAND may be offered as well.
        options.remove("--");
        assert_eq!(options, long_options(command), "{name}");
    }
}

/// A lock that is held for as long as the value lives.
fn held(redis: &Redis, name: &str) -> Running {
    let script = "echo ready; exec sleep 60";
    let mut running = Running::start(&mut redis.redlock(&["run", name, "-c", script]));
    running.expect_line("ready");
    running
}

/// What a shell prints for a script, as words.
fn shell(redis: &Redis, program: &str, arguments: &[&str]) -> Vec<String> {
    let output: Outcome = Command::new(program)
        .args(arguments)
        .current_dir(root())
        .env_clear()
        .env("PATH", path())
        .env("HOME", redis.dir.path())
        .env("TERM", "dumb")
        .env("REDLOCK_REDIS_TIMEOUT", "60s")
        .env("REDLOCK_URL", redis.url())
        .output()
        .unwrap_or_else(|error| panic!("{program} is needed: {error}"))
        .into();
    output.assert_code(0).assert_silent();
    output
        .stdout
        .split_whitespace()
        .map(str::to_owned)
        .collect()
}

/// What bash offers at the end of a line; its words are cut as bash cuts them.
fn bash(redis: &Redis, line: &str) -> Vec<String> {
    let script = r#"
source completions/redlock.bash
COMP_LINE=$1 COMP_POINT=${#1}
shift
COMP_WORDS=("$@") COMP_CWORD=$(($# - 1))
_redlock
printf '%s\n' "${COMPREPLY[@]}"
"#;
    let mut arguments = vec!["--norc", "-c", script, "bash", line];
    for word in line.split(' ') {
        let mut rest = word;
        while let Some(at) = rest.find([':', '=']) {
            arguments.extend(
                [&rest[..at], &rest[at..=at]]
                    .iter()
                    .filter(|w| !w.is_empty()),
            );
            rest = &rest[at + 1..];
        }
        if !rest.is_empty() || word.is_empty() {
            arguments.push(rest);
        }
    }
    shell(redis, "bash", &arguments)
}

fn fish(redis: &Redis, line: &str) -> Vec<String> {
    let script =
        "source completions/redlock.fish; complete -C $argv[1] | string split -f1 \\t; true";
    shell(redis, "fish", &["--no-config", "-c", script, line])
}

/// What an interactive zsh makes of a line and a tab, once it is what was expected.
fn zsh_completes(redis: &Redis, line: &str, expected: &str) {
    zsh_completes_from(Path::new("completions"), redis, line, expected);
}

/// The same with the completions of a directory.
pub fn zsh_completes_from(directory: &Path, redis: &Redis, line: &str, expected: &str) {
    let script: PathBuf = crate::support::script(
        redis.dir.path(),
        "complete.zsh",
        r#"
zmodload zsh/zpty
zpty shell zsh -f -i
zpty -w shell "PS1=; unsetopt beep; fpath=($3 \$fpath); autoload -Uz compinit; compinit -u -d $HOME/dump; zstyle ':completion:*' list-colors; echo rea''dy"
zpty -r -m shell line '*ready*'
zpty -n -w shell "$1"$'\t'
line=
for try in {1..1000}; do
    zpty -r -t shell part && line+=$part
    [[ $line == *$2* ]] && break
    sleep 0.05
done
print -r -- "$line"
"#,
    );
    let directory = directory.to_str().unwrap();
    let arguments = ["-f", script.to_str().unwrap(), line, expected, directory];
    let seen = shell(redis, "zsh", &arguments).join(" ");
    assert!(seen.contains(expected), "{line} became {seen}");
}

/// Where the name of the lock "deploy:prod" is what comes next.
const TAKES_A_NAME: &[&str] = &[
    "run ",
    "run a dep",
    "run --once-per 1h dep",
    "guard dep",
    "guard --with-children a dep",
    "acquire dep",
    "acquire --format json dep",
    "extend dep",
    "extend --for 5s dep",
    "release dep",
    "release --force dep",
    "status dep",
    "history dep",
    "history a -n 5 dep",
    "freeze --reason x dep",
    "thaw dep",
];

/// Where one of a few words comes next.
const TAKES_A_WORD: &[(&str, &[&str])] = &[
    ("acquire a --format ", &["env", "json", "token", "github"]),
    ("run a --on-unreachable ", &["fail", "run"]),
];

/// Where all has been said, or only the user knows what comes next.
const TAKES_NO_MORE: &[&str] = &[
    "acquire a ",
    "extend a ",
    "release a ",
    "fence Cargo.toml ",
    "freeze a --reason ",
    "history -n ",
    "run --seq ",
];

/// Where a file comes next: Cargo.lock or Cargo.toml.
const TAKES_A_FILE: &[&str] = &[
    "release --token-file Cargo.",
    "extend --token-file Cargo.",
    "extend a --token-file Cargo.",
    "history --svg Cargo.",
    "fence Cargo.",
];

#[test]
fn no_shell_offers_a_name_that_would_be_an_option() {
    let redis = Redis::start();
    for name in ["--shell=true", "-q", "deploy"] {
        plant(&redis, name);
    }
    for line in ["redlock status ", "redlock history ", "redlock freeze "] {
        for complete in [bash, fish] {
            assert_eq!(complete(&redis, line), ["deploy"], "{line}");
        }
        zsh_completes(&redis, line, "deploy");
    }
}

#[test]
fn bash_completes_commands_options_and_names_of_live_locks() {
    let redis = Redis::start();
    let _held = held(&redis, "deploy:prod");
    let other = Redis::start();
    let _elsewhere = held(&other, "elsewhere");
    let complete = |line: &str| bash(&redis, line);
    assert_knows_everything(&complete);
    assert_eq!(complete("redlock sta"), ["status"]);
    assert_eq!(complete("redlock run --on-unreachable f"), ["fail"]);
    assert_eq!(complete("redlock run --on-unreachable=f"), ["fail"]);
    outcome(&mut redis.redlock(&["run", "older", "--", "true"])).assert_code(0);
    assert_eq!(complete("redlock history old"), ["older"]);
    assert_eq!(complete("redlock freeze old"), [""; 0]);
    for line in TAKES_A_NAME {
        assert_eq!(complete(&format!("redlock {line}")), ["deploy:prod"]);
    }
    for (line, offered) in TAKES_A_WORD {
        assert_eq!(&complete(&format!("redlock {line}")), offered, "{line}");
    }
    for line in TAKES_NO_MORE {
        assert_eq!(complete(&format!("redlock {line}")), [""; 0], "{line}");
    }
    for line in TAKES_A_FILE {
        let offered = complete(&format!("redlock {line}"));
        assert_eq!(offered, ["Cargo.lock", "Cargo.toml"], "{line}");
    }
    // bash replaces what follows the last colon.
    assert_eq!(complete("redlock release deploy:p"), ["prod"]);
    for line in [
        format!("-u {} status ", other.url()),
        format!("status --url={} ", other.url()),
    ] {
        assert_eq!(complete(&format!("redlock {line}")), ["elsewhere"]);
    }
    assert!(complete("redlock run a -- redlo").contains(&"redlock".to_owned()));
    assert_eq!(complete("redlock run a -- cat ./Makef"), ["./Makefile"]);
}

#[test]
fn fish_completes_commands_options_and_names_of_live_locks() {
    let redis = Redis::start();
    let _held = held(&redis, "deploy:prod");
    let other = Redis::start();
    let _elsewhere = held(&other, "elsewhere");
    let complete = |line: &str| fish(&redis, line);
    assert_knows_everything(&complete);
    assert_eq!(complete("redlock sta"), ["status"]);
    assert_eq!(complete("redlock run --on-unreachable f"), ["fail"]);
    assert_eq!(
        complete("redlock run --on-unreachable=f"),
        ["--on-unreachable=fail"]
    );
    assert_eq!(complete("redlock run --on-unreachable "), ["fail", "run"],);
    outcome(&mut redis.redlock(&["run", "older", "--", "true"])).assert_code(0);
    assert_eq!(complete("redlock history old"), ["older"]);
    assert_eq!(complete("redlock freeze old"), [""; 0]);
    for line in TAKES_A_NAME.iter().chain(&["status deploy:p"]) {
        assert_eq!(complete(&format!("redlock {line}")), ["deploy:prod"]);
    }
    for (line, words) in TAKES_A_WORD {
        let offered: BTreeSet<String> = complete(&format!("redlock {line}")).into_iter().collect();
        let words = words.iter().map(|&word| word.to_owned());
        assert_eq!(offered, words.collect(), "{line}");
    }
    for line in TAKES_NO_MORE {
        assert_eq!(complete(&format!("redlock {line}")), [""; 0], "{line}");
    }
    for line in TAKES_A_FILE {
        let offered = complete(&format!("redlock {line}"));
        assert_eq!(offered, ["Cargo.lock", "Cargo.toml"], "{line}");
    }
    // A lock may be called like a command, whose options are then not offered.
    let options = complete("redlock run extend --");
    assert!(!options.contains(&"--for".to_owned()), "{options:?}");
    for line in [
        format!("-u {} status ", other.url()),
        format!("status --url={} ", other.url()),
    ] {
        assert_eq!(complete(&format!("redlock {line}")), ["elsewhere"]);
    }
    assert!(complete("redlock run a -- redlo").contains(&"redlock".to_owned()));
    assert_eq!(complete("redlock run a -- redlock sta"), ["status"]);
    assert_eq!(complete("redlock run a -- cat ./Makef"), ["./Makefile"]);
}

#[test]
fn zsh_completes_commands_options_and_names_of_live_locks() {
    let redis = Redis::start();
    let _held = held(&redis, "deploy:prod");
    let other = Redis::start();
    let _elsewhere = held(&other, "elsewhere");
    outcome(&mut redis.redlock(&["run", "older", "--", "true"])).assert_code(0);
    for (line, expected) in [
        ("redlock st", "status"),
        ("redlock run --on-unreachable f", "fail"),
        ("redlock release --token-file ./Makef", "Makefile"),
        ("redlock release dep", "deploy:prod"),
        ("redlock acquire --format g", "github"),
        ("redlock fence ./Makef", "Makefile"),
        ("redlock history --svg ./Makef", "Makefile"),
        ("redlock acquire dep", "deploy:prod"),
        ("redlock extend dep", "deploy:prod"),
        ("redlock extend --for 5s dep", "deploy:prod"),
        ("redlock guard a dep", "deploy:prod"),
        ("redlock guard --held ./Makef", "Makefile"),
        ("redlock guard -c x --with-c", "--with-children"),
        ("redlock guard a -- redlock st", "status"),
        ("redlock history -n 5 dep", "deploy:prod"),
        ("redlock history old", "older"),
        ("redlock freeze --reason x dep", "deploy:prod"),
        ("redlock thaw dep", "deploy:prod"),
        ("redlock run -n --ttl 5s dep", "deploy:prod"),
        ("redlock run a -- redlock st", "status"),
    ] {
        zsh_completes(&redis, line, expected);
    }
}

#[test]
fn a_name_that_looks_like_a_command_is_completed_and_never_run() {
    let redis = Redis::start();
    let ran = redis.dir.path().join("ran");
    let name = format!("x$(touch${{IFS}}{})", ran.display());
    let _held = held(&redis, &name);
    let quoted = bash(&redis, "redlock release x").concat();
    assert!(quoted.starts_with(r"x\$\(touch"), "{quoted}");
    assert_eq!(fish(&redis, "redlock release x"), [name]);
    zsh_completes(&redis, "redlock release x", r"x\$\(touch");
    assert!(!ran.exists());
}

#[test]
fn a_server_that_stalls_is_not_waited_for_at_a_tab() {
    let redis = Redis::start();
    redis.stall();
    let started = Instant::now();
    let mut tab = redis.redlock(&["--", "redlock", "release", ""]);
    let end = outcome(tab.env("_REDLOCK_COMPLETES", "1"));
    end.assert_code(0).assert_silent();
    assert_eq!(end.stdout, "");
    assert!(started.elapsed() < Duration::from_secs(30));
}

/// The commands that make ACL users, as docs/servers.md or the manual prints them.
fn acl_commands(file: &str) -> [String; 2] {
    let text = fs::read_to_string(root().join(file)).unwrap();
    let starts = text
        .match_indices("printf '>%s'")
        .chain(text.match_indices("printf \\(aq>%s"));
    let commands = starts.map(|(start, _)| {
        let end = text[start..].find("```").or(text[start..].find(".fi"));
        text[start..start + end.expect("the end of the command")]
            .replace("\\-", "-")
            .replace("\\(aq", "'")
            .replace("\\e", "\\")
            .replace("\\\n", "")
            .split_whitespace()
            .collect::<Vec<_>>()
            .join(" ")
    });
    commands
        .collect::<Vec<_>>()
        .try_into()
        .expect("two commands")
}

/// Makes the ACL users that docs/servers.md prints, with the password "secret".
pub fn make_acl_users(redis: &Redis) {
    make_acl_users_after(redis, "");
}

/// The same, after this line in the same shell.
fn make_acl_users_after(redis: &Redis, line: &str) {
    let commands = acl_commands("docs/servers.md");
    assert_eq!(commands, acl_commands("man/redlock-protocol.7"));
    let cli = format!(
        "#!/bin/sh\nexec redis-cli -s {} \"$@\"\n",
        redis.socket().display()
    );
    let cli = crate::support::script(redis.dir.path(), "cli", &cli);
    let password = redis.dir.path().join("password");
    fs::write(&password, "secret\n").unwrap();
    crate::promises::config::set_mode(&password, 0o600);
    for command in commands {
        let command = command
            .replace("redis-cli", cli.to_str().unwrap())
            .replace("/etc/redlock.password", "password")
            .replace("viewer.password", "password");
        let is_rule = |word: &&str| !word.starts_with("'&") && *word != "resetchannels";
        let command = if SERVER.is_before(6, 2) {
            // Without rules for channels, as redlock-protocol(7) says.
            let words: Vec<&str> = command.split(' ').filter(is_rule).collect();
            words.join(" ")
        } else {
            command
        };
        let mut shell = Command::new("sh");
        shell
            .args(["-c", &format!("{line}\n{command}")])
            .current_dir(redis.dir.path());
        assert_eq!(outcome(&mut shell).stdout, "OK\n");
    }
}

#[test]
fn the_printed_acl_users_can_be_made_on_a_server_with_a_password() {
    let redis = Redis::start();
    redis.cli(&["CONFIG", "SET", "requirepass", "hunter2"]);
    let page = fs::read_to_string(root().join("docs/servers.md")).unwrap();
    let export = "export REDISCLI_AUTH=PASSWORD";
    assert!(page.contains(&format!("`{export}`")));
    make_acl_users_after(&redis, &export.replace("PASSWORD", "hunter2"));
    let url = format!("{}?user=jobs&pass=secret", redis.url());
    outcome(&mut redis.redlock(&["-u", &url, "run", "a", "--", "true"]))
        .assert_code(0)
        .assert_silent();
}

#[test]
fn the_printed_acl_rule_for_people_who_may_only_look_permits_that_and_no_more() {
    let redis = Redis::start();
    make_acl_users(&redis);
    let mut holder = Running::start(&mut redis.run("a", "echo ready; exec sleep 60"));
    holder.expect_line("ready");
    let _waiter = Gated::queued(&redis, &["a"]);
    outcome(&mut redis.redlock(&["run", "b", "--", "true"])).assert_code(0);
    let url = format!("{}?user=viewer&pass=secret", redis.url());
    let look =
        |arguments: &[&str]| outcome(&mut redis.redlock(&[&["-u", &url], arguments].concat()));
    for command in [
        &["status"][..],
        &["status", "--json", "a", "b"],
        &["history"],
        &["history", "--json", "b"],
    ] {
        look(command).assert_code(0).assert_silent();
    }
    let refused = redis.cli(&["ACL", "LOG"]);
    assert!(!refused.contains("reason"), "{refused}");
    for command in [
        &["run", "b", "--", "true"][..],
        &["acquire", "b"],
        &["release", "--force", "a"],
        &["freeze", "a", "--reason", "x"],
    ] {
        look(command).assert_code(77);
    }
    assert!(!holder.has_ended());
}

#[test]
fn the_printed_acl_rule_permits_all_that_redlock_does() {
    let redis = Redis::start();
    make_acl_users(&redis);
    let password = redis.dir.path().join("password");
    let password = password.to_str().unwrap();
    for url in [
        format!("redis://jobs@127.0.0.1:{}/2", redis.port),
        format!("{}?user=jobs", redis.url()),
    ] {
        let redlock = |arguments: &[&str]| {
            let server = ["-v", "-u", &url, setting("REDLOCK_PASSWORD_FILE", password)];
            redis.redlock(&[&server, arguments].concat())
        };
        let script = "echo ready; exec sleep 60";
        let hold = ["run", "--ttl", "9s", "-k", "100ms", "a", "-c", script];
        let mut holder = Running::start(&mut redlock(&hold));
        holder.expect_line("ready");
        let waiter = Running::start(&mut redlock(&["run", "a", "--", "true"]));
        wait_until("the waiter listens", || {
            redis
                .cli(&["PUBSUB", "CHANNELS", "*"])
                .starts_with("{redlock:a}:")
        });
        let renewals = redis.calls("pexpire");
        wait_until("it is renewed", || redis.calls("pexpire") > renewals);
        outcome(&mut redlock(&["release", "--force", "a"])).assert_code(0);
        waiter
            .finish()
            .assert_code(0)
            .assert_says("lock \"a\" released");
        holder.finish().assert_code(79).assert_says("forced free");

        // With a history of one, the second hold has it cut.
        let token = redis.dir.path().join("token");
        let steps = format!(
            "set -e; t={}
             redlock freeze -q c --reason x; redlock status -q c; redlock thaw c
             for n in 1 2 3; do REDLOCK_HISTORY_SIZE=1 redlock run c -- true; done
             redlock run --hold-at-least 1ms --once-per 1h e -- true
             redlock run c -c 'redlock extend --for 1m; redlock extend; redlock release'
             redlock acquire c --format token >$t
             redlock extend --token-file $t c --for 1m; redlock extend --token-file $t c
             redlock release --token-file $t c
             redlock acquire c --ttl 1s --format token >$t
             redlock run -q c -- true
             redlock run --slots 2 d -- redlock run --slots 2 d -- true
             redlock run -s d -- redlock run -s d -- true
             REDLOCK_REPAIR_TTL=1 redlock run --supersede --seq 1 --cancel-in-progress d -- true
             redlock freeze c d --drain --reason x; redlock thaw c d; redlock history; redlock history --json c",
            token.display()
        );
        let mut job = Command::new("sh");
        job.args(["-c", &steps])
            .env_clear()
            .env("PATH", path())
            .env("REDLOCK_URL", &url)
            .env("REDLOCK_PASSWORD_FILE", password);
        outcome(&mut job).assert_code(0);

        let mut killed = Running::start(&mut redlock(&["run", "--ttl", "1s", "b", "-c", script]));
        killed.expect_line("ready");
        killed.signal(Signal::SIGKILL);
        killed.finish();
        wait_until("the dead holder's lock is free", || {
            let status = outcome(&mut redlock(&["status"]));
            status.assert_code(0).assert_silent();
            status.stdout == "no lock is held\n"
        });
    }
    // What a script may not do, it may do without.
    let refused = redis.cli(&["ACL", "LOG"]);
    assert!(!refused.contains("reason"), "{refused}");
    let url = format!("{}?user=jobs&pass=secret", redis.url());
    let elsewhere = [
        "-u",
        &url,
        "REDLOCK_PREFIX=other:",
        "run",
        "a",
        "--",
        "true",
    ];
    outcome(&mut redis.redlock(&elsewhere)).assert_code(77);
}

/// The commands of the printed rule that redlock can do without: what is lost is the history, or that
/// waiters and holders are told of changes instead of looking.
const DISPENSABLE: [&str; 11] = [
    "getrange",
    "hscan",
    "lpush",
    "ltrim",
    "publish",
    "subscribe",
    "hello",
    "client|tracking",
    "client|caching",
    "role",
    "info",
];

#[test]
fn each_command_of_the_printed_acl_rule_that_is_missing_is_named_or_not_missed() {
    let redis = Redis::start();
    let [rule, _] = acl_commands("docs/servers.md");
    let (_, rule) = rule.split_once("reset on ").unwrap();
    let rules: Vec<&str> = rule
        .split(' ')
        .map(|rule| rule.trim_matches('\''))
        .collect();
    let holder = Gated::start(&redis, &["held"]).ready();
    // Another's token: its release is what the user is to do.
    let token = |name: &str, options: &[&str]| {
        let file = redis.dir.path().join(format!("token-{name}"));
        let acquire = ["acquire", name, "--format", "token"];
        let acquired = outcome(&mut redis.redlock(&[&acquire, options].concat()));
        acquired.assert_code(0);
        fs::write(&file, acquired.stdout).unwrap();
        file.to_str().unwrap().to_owned()
    };
    let url = format!("redis://jobs:secret@127.0.0.1:{}/0", redis.port);
    let with_select = format!("redis://jobs:secret@127.0.0.1:{}/1", redis.port);
    let commands = rules.iter().filter(|rule| rule.starts_with('+'));
    for (number, missing) in commands.enumerate() {
        let name = &missing[1..];
        // A lock may stay behind.
        let (free, other) = (format!("free-{number}"), format!("other-{number}"));
        let newest = format!("newest-{number}");
        let left: Vec<&str> = rules
            .iter()
            .filter(|rule| *rule != missing)
            .copied()
            .collect();
        let user = ["ACL", "SETUSER", "jobs", "reset", "on", ">secret"];
        assert_eq!(redis.cli(&[&user, &left[..]].concat()), "OK");
        let alone = token("alone", &[]);
        let slot = token("slot", &["--slots", "2"]);
        let url = if name == "select" { &with_select } else { &url };
        let mut named = false;
        for (words, status) in [
            (&["status", "held"][..], 0),
            (&["history", "held"], 0),
            (&["run", "-n", "held", "--", "true"], 75),
            (&["run", "-w", "100ms", "held", "--", "true"], 75),
            (&["run", &free, "--", "true"], 0),
            (&["run", "--supersede", &newest, "--", "true"], 0),
            (
                &[
                    "run",
                    "REDLOCK_SYNC=1",
                    "REDLOCK_SYNC_TIMEOUT=50ms",
                    &other,
                    "--",
                    "true",
                ],
                69,
            ),
            (&["extend", "alone", "--token-file", &alone], 0),
            (
                &["extend", "alone", "--for", "1m", "--token-file", &alone],
                0,
            ),
            (&["release", "alone", "--token-file", &alone], 0),
            (&["status", "slot"], 0),
            (&["extend", "slot", "--token-file", &slot], 0),
            (&["release", "slot", "--token-file", &slot], 0),
            (&["freeze", "-q", &free, "--reason", "x"], 0),
            (&["thaw", "-q", &free], 0),
        ] {
            let end = outcome(&mut redis.redlock(&[&["-u", url], words].concat()));
            let names_it = end
                .stderr
                .lines()
                .filter(|line| line.contains("user \"jobs\" isn't permitted to "))
                .all(|line| line.contains(&format!("{missing} ")));
            assert!(names_it, "{missing} {words:?}: {end:?}");
            named |= end.code() == Some(77);
            // What another database holds is not what was prepared.
            let is_as_ever = end.code() == Some(status) || name == "select";
            assert!(named || is_as_ever, "{missing} {words:?}: {end:?}");
            if named {
                break;
            }
        }
        assert_eq!(named, !DISPENSABLE.contains(&name), "{missing}");
        for name in ["alone", "slot"] {
            outcome(&mut redis.redlock(&["release", "-q", "--force", name]));
        }
    }
    holder.end();
}

#[test]
fn the_lines_that_make_a_script_lock_itself_do() {
    let readme = fs::read_to_string(root().join("README.md")).unwrap();
    let lines: Vec<&str> = readme.lines().collect();
    let is_first = |line: &&str| line.contains("exec redlock run -n backup");
    let first = lines.iter().position(is_first).expect("the recipe");
    let recipe = lines[first..=first + 1].join("\n");
    let manual = fs::read_to_string(root().join("man/parts/redlock-run.roff")).unwrap();
    assert!(manual.replace("\\-", "-").contains(&recipe), "{recipe}");
    let redis = Redis::start();
    let text = format!("#!/bin/sh\n{recipe}\necho \"$REDLOCK_FENCE $*\"; read go\n");
    let script = crate::support::script(redis.dir.path(), "backup.sh", &text);
    let run = |arguments: &[&str]| {
        let mut command = Command::new(&script);
        command
            .args(arguments)
            .env_clear()
            .env("PATH", path())
            .env("REDLOCK_URL", redis.url());
        crate::support::without_terminal(&mut command);
        command
    };
    let first = outcome(&mut run(&["one", "a b"]));
    let (fence, arguments) = first.stdout.trim().split_once(' ').expect("two words");
    assert_eq!(arguments, "one a b");
    let fence: u64 = fence.parse().unwrap();
    let _holder = held(&redis, "backup");
    outcome(&mut run(&[])).assert_code(75);
    assert!(
        redis
            .cli(&["HGET", "{redlock:backup}:state", "fence"])
            .parse::<u64>()
            .unwrap()
            > fence
    );
}
