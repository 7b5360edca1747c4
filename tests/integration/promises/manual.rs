//! The manual and the completions in the binary itself: what packages install as files.

use std::fs;

use crate::generated::root;
use crate::support::{outcome, redlock};

#[test]
fn man_prints_each_page_of_the_manual_by_its_name_or_its_commands() {
    let mut count = 0;
    for entry in fs::read_dir(root().join("man")).unwrap().flatten() {
        let file = entry.file_name().into_string().unwrap();
        let Some((stem, _)) = file.rsplit_once('.') else {
            continue;
        };
        let page = fs::read_to_string(entry.path()).unwrap();
        let short = stem.trim_start_matches("redlock-");
        for name in [&file, stem, short] {
            let printed = outcome(&mut redlock(&["man", name]));
            printed.assert_code(0).assert_silent();
            assert!(printed.stdout == page, "{name}");
        }
        count += 1;
    }
    assert!(count > 15, "{count}");
    let first = outcome(&mut redlock(&["man"]));
    assert!(first.stdout.contains(".TH REDLOCK 1 "), "{first:?}");
    let unknown = outcome(&mut redlock(&["man", "lock"]));
    unknown
        .assert_code(64)
        .assert_says("no page \"lock\"; the pages are acquire, ");
}

#[test]
fn man_shows_a_page_by_man_on_a_terminal() {
    let mut script = std::process::Command::new("script");
    let line = format!(
        "MANPAGER=cat MANWIDTH=80 '{}' man completions",
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
    let line = format!("'{}' man completions", crate::support::REDLOCK);
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
