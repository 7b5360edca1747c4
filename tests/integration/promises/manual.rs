//! The manual and the completions in the binary itself: what packages install as files.

use std::fs;

use crate::generated::root;
use crate::support::{outcome, redlock};

/// The words of a page, without the lines at its top and bottom, which have the title.
fn words_between(text: &str) -> Vec<&str> {
    let lines: Vec<&str> = text.trim_end().lines().collect();
    let lines = lines[1..lines.len() - 1].iter();
    lines.flat_map(|line| line.split_whitespace()).collect()
}

#[test]
fn help_prints_each_page_as_the_text_that_man_makes_of_it() {
    let mut count = 0;
    for entry in fs::read_dir(root().join("man")).unwrap().flatten() {
        let file = entry.file_name().into_string().unwrap();
        let Some((stem, _)) = file.rsplit_once('.') else {
            continue;
        };
        let mut man = std::process::Command::new("man");
        let man = man.args(["-E", "UTF-8", "-l"]).arg(entry.path());
        let page = outcome(man.env("MANWIDTH", "1000")).stdout;
        let short = stem.trim_start_matches("redlock-");
        let mut texts = Vec::new();
        for name in [&file, stem, short] {
            let printed = outcome(&mut redlock(&["help", name]));
            texts.push(printed.assert_code(0).assert_silent().stdout.clone());
        }
        assert!(texts.iter().all(|text| *text == texts[0]), "{file}");
        let words: Vec<&str> = texts[0].split_whitespace().collect();
        assert_eq!(words, words_between(&page), "{file}");
        count += 1;
    }
    assert!(count > 15, "{count}");
    let list = outcome(&mut redlock(&["help"]));
    assert!(list.stdout.contains("\nSubcommands:\n"), "{list:?}");
    let unknown = outcome(&mut redlock(&["help", "lock"]));
    unknown
        .assert_code(64)
        .assert_says("no page \"lock\"; the pages are acquire, ");
}

#[test]
fn help_without_man_shows_plain_text_through_the_pager() {
    let bin = tempfile::tempdir().unwrap();
    for program in ["sh", "cat", "sed"] {
        let path = outcome(
            std::process::Command::new("sh").args(["-c", &format!("command -v {program}")]),
        );
        std::os::unix::fs::symlink(path.stdout.trim(), bin.path().join(program)).unwrap();
    }
    for (pager, mark) in [("sed s/^/>/", ">"), ("no-such-pager", "")] {
        let line = format!(
            "PATH='{}' PAGER='{pager}' '{}' help completions",
            bin.path().display(),
            crate::support::REDLOCK
        );
        let mut script = std::process::Command::new("script");
        let shown = outcome(
            script
                .args(["-qec", &line, "/dev/null"])
                .env("TERM", "xterm"),
        );
        let heading = format!("\n{mark}NAME\r\n");
        assert!(shown.assert_code(0).stdout.contains(&heading), "{shown:?}");
        assert!(!shown.stdout.contains("\\f"), "{shown:?}");
    }
}

#[test]
fn help_shows_a_page_through_man_on_a_terminal() {
    let mut script = std::process::Command::new("script");
    let line = format!(
        "MANPAGER=cat MANWIDTH=80 '{}' help completions",
        crate::support::REDLOCK
    );
    let shown = outcome(script.args(["-qec", &line, "/dev/null"]));
    shown.assert_code(0);
    assert!(
        shown.stdout.contains("print the completions for a shell"),
        "{shown:?}"
    );
    assert!(!shown.stdout.contains(".TH"), "{shown:?}");
}

#[test]
fn a_dumb_terminal_gets_plain_lines() {
    let mut script = std::process::Command::new("script");
    let line = format!("'{}' help completions", crate::support::REDLOCK);
    let page = outcome(
        script
            .args(["-qec", &line, "/dev/null"])
            .env("TERM", "dumb"),
    );
    page.assert_code(0).assert_silent();
    assert!(page.stdout.contains("print the completions for a shell"));
    let is_plain = |c: char| !c.is_control() || "\r\n".contains(c);
    assert!(page.stdout.chars().all(is_plain), "{page:?}");
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
    let unknown = outcome(&mut redlock(&["completions", "tcsh"]));
    unknown.assert_code(64).assert_says("tcsh");
}
