//! Man pages and completions agree with what the command line takes.
//!
//! The pages are made from the definition of the command line, with the hand-written sections of
//! man/parts at their end; `make generate` writes them anew. The completions are written by hand,
//! so here it is checked that they know all commands and options, and that they work.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use clap::CommandFactory;
use clap_mangen::Man;

use crate::support::{Outcome, Redis, Running, path};

#[path = "../../src/cli.rs"]
#[allow(dead_code)]
mod cli;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The command line, with the options of every command in each of them.
fn command_line() -> clap::Command {
    let mut command = cli::Cli::command();
    command.build();
    command
}

/// All pages: their file names and texts.
fn pages() -> Vec<(String, String)> {
    let all = command_line();
    let page = |command: &clap::Command, name: String| {
        // clap keeps names as static text.
        let known: &'static str = name.clone().leak();
        let shown = command.clone().display_name(known).name(known);
        let man = Man::new(shown)
            .title(name.to_uppercase())
            .section("1")
            .date("")
            .source(format!("redlock {}", env!("CARGO_PKG_VERSION")))
            .manual("redlock manual");
        let mut text = Vec::new();
        man.render_title(&mut text).unwrap();
        man.render_name_section(&mut text).unwrap();
        man.render_synopsis_section(&mut text).unwrap();
        man.render_description_section(&mut text).unwrap();
        man.render_options_section(&mut text).unwrap();
        let parts = fs::read_to_string(root().join(format!("man/parts/{name}.roff")));
        let text = String::from_utf8(text).unwrap() + &parts.unwrap_or_default();
        (format!("{name}.1"), text)
    };
    let subcommands = all
        .get_subcommands()
        .map(|command| page(command, format!("redlock-{}", command.get_name())));
    subcommands.chain([page(&all, "redlock".into())]).collect()
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
            "man/{name} is out of date; `make generate` writes it anew"
        );
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
    }
}

#[test]
fn the_completions_know_every_command_and_option() {
    for file in ["redlock.bash", "_redlock", "redlock.fish"] {
        let text = fs::read_to_string(root().join("completions").join(file)).unwrap();
        let knows = |word: &str| {
            text.split(|c: char| !c.is_alphanumeric() && c != '-' && c != '_')
                .any(|other| other == word)
        };
        let all = command_line();
        for command in [&all].into_iter().chain(all.get_subcommands()) {
            assert!(
                knows(command.get_name()),
                "{file} doesn't know the command {}",
                command.get_name()
            );
            for option in command.get_arguments().filter_map(clap::Arg::get_long) {
                let word = if file == "redlock.fish" {
                    option.to_owned()
                } else {
                    format!("--{option}")
                };
                assert!(
                    knows(&word),
                    "{file} doesn't know --{option} of {}",
                    command.get_name()
                );
            }
        }
    }
}

/// A lock that is held for as long as the value lives.
fn held(redis: &Redis, name: &str) -> Running {
    let mut running = Running::start(&mut redis.redlock(&[
        "run",
        name,
        "--",
        "sh",
        "-c",
        "echo ready; sleep 60",
    ]));
    running.expect_line("ready");
    running
}

fn shell(redis: &Redis, program: &str, arguments: &[&str], script: &str) -> Vec<String> {
    let output: Outcome = Command::new(program)
        .args(arguments)
        .arg(script)
        .current_dir(root())
        .env_clear()
        .env("PATH", path())
        .env("HOME", redis.dir.path())
        .env("TERM", "dumb")
        .env("REDLOCK_URL", redis.url())
        .output()
        .unwrap_or_else(|error| panic!("{program} is needed: {error}"))
        .into();
    output.assert_code(0);
    output
        .stdout
        .split_whitespace()
        .map(str::to_owned)
        .collect()
}

#[test]
fn bash_completes_commands_options_and_names_of_live_locks() {
    let redis = Redis::start();
    let _held = held(&redis, "deploy:prod");
    let complete = |words: &str| {
        let script = format!(
            "source completions/redlock.bash; COMP_WORDS=({words}); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1)); \
             COMP_LINE='{words}'; COMP_POINT=${{#COMP_LINE}}; _redlock; printf '%s\\n' \"${{COMPREPLY[@]}}\""
        );
        shell(&redis, "bash", &["--norc", "-c"], &script)
    };
    assert_eq!(complete("redlock st"), ["status"]);
    assert_eq!(complete("redlock run --on-l"), ["--on-lost"]);
    assert_eq!(complete("redlock run --on-lost w"), ["warn"]);
    assert_eq!(complete("redlock release dep"), ["deploy:prod"]);
    assert_eq!(complete("redlock status dep"), ["deploy:prod"]);
    assert_eq!(complete("redlock release --force dep"), ["deploy:prod"]);
}

#[test]
fn fish_completes_commands_options_and_names_of_live_locks() {
    let redis = Redis::start();
    let _held = held(&redis, "deploy:prod");
    let complete = |line: &str| {
        let script =
            format!("source completions/redlock.fish; complete -C '{line}' | string split -f1 \\t");
        shell(&redis, "fish", &["--no-config", "-c"], &script)
    };
    assert_eq!(complete("redlock st"), ["status"]);
    assert_eq!(complete("redlock run --on-l"), ["--on-lost"]);
    assert_eq!(complete("redlock run --on-lost w"), ["warn"]);
    assert_eq!(complete("redlock release dep"), ["deploy:prod"]);
}

#[test]
fn zsh_completes_commands_and_names_of_live_locks() {
    let redis = Redis::start();
    let _held = held(&redis, "deploy:prod");
    let script: PathBuf = crate::support::script(
        redis.dir.path(),
        "complete.zsh",
        r#"
zmodload zsh/zpty
zpty shell zsh -f -i
zpty -w shell "PS1=; unsetopt beep; fpath=(completions \$fpath); autoload -Uz compinit; compinit -u -d $HOME/dump; zstyle ':completion:*' list-colors; echo rea''dy"
zpty -r -m shell line '*ready*'
zpty -n -w shell "$1"$'\t'
line=
for try in {1..400}; do
    zpty -r -t shell part && line+=$part
    [[ $line == *$2* ]] && break
    sleep 0.05
done
print -r -- "$line"
"#,
    );
    let completes = |line: &str, expected: &str| {
        let arguments = ["-f", script.to_str().unwrap(), line];
        let seen = shell(&redis, "zsh", &arguments, expected).join(" ");
        assert!(seen.contains(expected), "{line} became {seen}");
    };
    completes("redlock st", "status");
    completes("redlock release dep", "deploy:prod");
}
