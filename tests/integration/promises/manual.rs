//! The manual and the completions inside the binary, the same as in packages.

use std::path::PathBuf;

use crate::generated::{man_files, root};
use crate::support::prelude::*;

/// Returns the words of a page, without the lines at its top and bottom, which have the title.
fn words_between(text: &str) -> Vec<&str> {
    let lines: Vec<&str> = text.trim_end().lines().collect();
    let lines = lines[1..lines.len() - 1].iter();
    lines.flat_map(|line| line.split_whitespace()).collect()
}

#[test]
fn help_prints_each_page_as_the_text_that_man_makes_of_it() {
    let files: Vec<PathBuf> = man_files().collect();
    assert!(files.len() > 15, "{files:?}");
    for path in files {
        let file = path.file_name().unwrap().to_str().unwrap();
        let (stem, _) = file.rsplit_once('.').unwrap();
        let mut man = Command::new("man");
        man.args(["-E", "UTF-8", "-l"]).arg(&path);
        let page = outcome(man.env("MANWIDTH", "1000")).stdout;
        let names = [file, stem, stem.trim_start_matches("redlock-")];
        let texts = names.map(|name| {
            let printed = outcome(&mut redlock(&["help", name]));
            printed.assert_code(0).assert_silent().stdout.clone()
        });
        assert!(texts.iter().all(|text| *text == texts[0]), "{file}");
        let words: Vec<&str> = texts[0].split_whitespace().collect();
        assert_eq!(words, words_between(&page), "{file}");
    }
    let run = outcome(&mut redlock(&["help", "run"])).stdout;
    assert!(run.contains("\nOPTIONS\n") && run.contains("\n   Waiting\n"));
    let list = outcome(&mut redlock(&["help"]));
    assert!(list.stdout.contains("\nSubcommands:\n"), "{list:?}");
    let unknown = outcome(&mut redlock(&["help", "lock"]));
    unknown.assert_said(64, "no page \"lock\"; the pages are acquire, ");
}

#[test]
fn help_shows_a_page_on_a_terminal_through_man_or_a_pager_or_else_as_plain_text() {
    let bin = tempfile::tempdir().unwrap();
    for program in ["sh", "cat", "sed"] {
        let path = outcome(Command::new("sh").args(["-c", &format!("command -v {program}")]));
        std::os::unix::fs::symlink(path.stdout.trim(), bin.path().join(program)).unwrap();
    }
    let without_man = format!("TERM=xterm PATH='{}'", bin.path().display());
    let is_plain = |c: char| !c.is_control() || "\r\n".contains(c);
    let summary = "print the completions for a shell";
    for (variables, text) in [
        ("TERM=xterm MANPAGER=cat MANWIDTH=80".to_owned(), summary),
        ("TERM=dumb".to_owned(), summary),
        (format!("{without_man} PAGER='sed s/^/>/'"), "\n>NAME\r\n"),
        (format!("{without_man} PAGER=no-such-pager"), "\nNAME\r\n"),
    ] {
        let line = format!("{variables} '{REDLOCK}' help completions");
        let shown = outcome(Command::new("script").args(["-qec", &line, "/dev/null"]));
        shown.assert_code(0).assert_silent();
        let has = |part: &str| shown.stdout.contains(part);
        let is_page = has(text) && !has(".TH") && !has("\\f");
        assert!(is_page, "{variables}: {shown:?}");
        let is_plain = shown.stdout.chars().all(is_plain);
        assert!(is_plain || variables != "TERM=dumb", "{shown:?}");
    }
}

#[test]
fn completions_prints_the_file_that_packages_install_for_a_shell() {
    for (shell, file) in [
        ("bash", "redlock.bash"),
        ("zsh", "_redlock"),
        ("fish", "redlock.fish"),
    ] {
        let installed = fs::read_to_string(root().join("completions").join(file)).unwrap();
        let printed = outcome(&mut redlock(&["completions", shell]));
        printed.assert_code(0).assert_silent();
        assert!(printed.stdout == installed, "{shell}");
    }
    outcome(&mut redlock(&["completions", "tcsh"])).assert_said(64, "tcsh");
}
