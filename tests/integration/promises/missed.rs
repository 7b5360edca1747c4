//! Names that nobody has used.

use crate::support::{Outcome, Redis, directly, outcome};

fn redlock(redis: &Redis, arguments: &[&str]) -> Outcome {
    outcome(&mut redis.redlock(arguments))
}

#[test]
fn a_name_that_nobody_has_used_is_answered_with_the_one_that_was_meant() {
    let redis = Redis::start();
    redlock(&redis, words!("run -q deploy -- true")).assert_code(0);
    let meant = "lock \"deploi\" was never used; did you mean deploy?";
    for words in [
        &["freeze", "deploi", "--reason", "x"][..],
        &["stop", "deploi"],
        &["release", "deploi"],
        &["release", "--force", "deploi"],
    ] {
        redlock(&redis, words).assert_code(1).assert_says(meant);
    }
    let in_capitals = "lock \"DEPLOY\" was never used; did you mean deploy?";
    redlock(&redis, &["stop", "DEPLOY"]).assert_says(in_capitals);
    for words in [&["stop"][..], &["release"], &["release", "--force"]] {
        let other = redlock(&redis, &[words, &["other"]].concat());
        other.assert_says("lock \"other\" was never used");
    }
    // Nothing was frozen, and a new name is one's right.
    assert_eq!(redis.cli(&["KEYS", "*deploi*"]), "");
    redlock(&redis, &["freeze", "--new", "deploi", "--reason", "x"]).assert_code(0);
    // It is known from now on.
    redlock(&redis, &["status", "deploi"]).assert_code(0);
}

#[test]
fn status_offers_names_that_contain_a_name_that_was_never_used_or_differ_by_a_typo() {
    let redis = Redis::start();
    for name in ["nightly-report", "reprot", "deploy"] {
        redlock(&redis, &["run", "-q", name, "--", "true"]).assert_code(0);
    }
    let shown = redlock(&redis, &["status", "report", "deploy", "unheard-of"]);
    shown.assert_code(0).assert_silent();
    let lines: Vec<&str> = shown.stdout.lines().collect();
    assert_eq!(
        lines[..2],
        [
            "report: never used, or not for 60 days",
            "did you mean nightly-report or reprot?"
        ]
    );
    assert!(
        lines
            .iter()
            .any(|line| line.starts_with("deploy: free; last fence "))
    );
    assert_eq!(
        lines.last(),
        Some(&"unheard-of: never used, or not for 60 days")
    );
    // Programs get the hint about a typo apart, and the same status.
    let json = redlock(&redis, &["status", "--json", "deploi"]);
    json.assert_code(0).assert_says("did you mean deploy?");
    assert!(
        json.stdout.starts_with("[{\"name\":\"deploi\","),
        "{json:?}"
    );
    let history = redlock(&redis, &["history", "report"]);
    history.assert_code(0);
    assert!(
        history.stdout.contains("; did you mean nightly-report?"),
        "{history:?}"
    );
}

#[test]
fn a_line_to_type_goes_to_the_server_of_the_command_and_has_no_password() {
    let (redis, default) = (Redis::start(), Redis::start());
    let url = redis.url();
    let freeze = words!("freeze --new a --reason x -u {}", &url);
    let frozen = outcome(&mut default.redlock(freeze));
    let thaw = frozen.assert_code(0).stderr.split('`').nth(1).unwrap();
    let thawed = outcome(&mut directly(&default, &["sh", "-c", thaw]));
    thawed.assert_code(0).assert_says("lock \"a\" is thawed");
    let url = redis.tcp_url().replace("//", "//default:s3cret@");
    let freeze = words!("freeze --new a --reason x -u {}", &url);
    let frozen = outcome(&mut default.redlock(freeze));
    frozen.assert_code(0).assert_says(":***@127.0.0.1");
    assert!(!frozen.stderr.contains("s3cret"), "{frozen:?}");
}
