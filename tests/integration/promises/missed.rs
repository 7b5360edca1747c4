//! Names that nobody has used.

use crate::support::prelude::*;

#[test]
fn a_name_that_nobody_has_used_is_answered_with_the_one_that_was_meant() {
    let redis = Redis::start();
    ends(&redis, "run -q deploy -- true").assert_code(0);
    let meant = "lock \"deploi\" was never used; did you mean deploy?";
    for words in ["freeze --reason x", "stop", "release", "release --force"] {
        ends(&redis, &format!("{words} deploi")).assert_said(1, meant);
    }
    let in_capitals = "lock \"DEPLOY\" was never used; did you mean deploy?";
    ends(&redis, "stop DEPLOY").assert_says(in_capitals);
    for words in ["stop", "release", "release --force"] {
        ends(&redis, &format!("{words} other")).assert_says("lock \"other\" was never used");
    }
    // Nothing was frozen, and users may choose new names.
    assert_eq!(redis.cli(&["KEYS", "*deploi*"]), "");
    ends(&redis, "freeze --new deploi --reason x").assert_code(0);
    // The name is in use from now on.
    ends(&redis, "status deploi").assert_code(0);
}

#[test]
fn status_offers_names_that_contain_a_name_that_was_never_used_or_differ_by_a_typo() {
    let redis = Redis::start();
    for name in ["nightly-report", "reprot", "deploy"] {
        ends(&redis, &format!("run -q {name} -- true")).assert_code(0);
    }
    let shown = ends(&redis, "status report deploy unheard-of")
        .assert_silent()
        .stdout
        .clone();
    let start = "report: never used, or not for 60 days\ndid you mean nightly-report or reprot?\n";
    assert!(shown.starts_with(start), "{shown}");
    let end = "\nunheard-of: never used, or not for 60 days\n";
    assert_has(&shown, &["\ndeploy: free; last fence ", end]);
    // Programs get the hint about a typo on stderr, and the same output.
    let json = ends(&redis, "status --json deploi");
    json.assert_said(0, "did you mean deploy?");
    assert_has(&json.stdout, &["[{\"name\":\"deploi\","]);
    let history = ends(&redis, "history report").stdout;
    assert_has(&history, &["; did you mean nightly-report?"]);
}

#[test]
fn a_line_to_type_goes_to_the_server_of_the_command_and_has_no_password() {
    let (redis, default) = (Redis::start(), Redis::start());
    let url = redis.url();
    let freeze = words!("freeze --new a --reason x -u {}", &url);
    let frozen = outcome(&mut default.redlock(freeze));
    let thaw = frozen.assert_code(0).stderr.split('`').nth(1).unwrap();
    outcome(&mut sh(&default, thaw)).assert_said(0, "lock \"a\" is thawed");
    let url = redis.tcp_url().replace("//", "//default:s3cret@");
    let freeze = words!("freeze --new a --reason x -u {}", &url);
    let frozen = outcome(&mut default.redlock(freeze));
    frozen.assert_said(0, ":***@127.0.0.1");
    assert!(!frozen.stderr.contains("s3cret"), "{frozen:?}");
}
