//! Names that nobody has used.

use crate::support::{Outcome, Redis, outcome};

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
        &["status", "deploi"],
        &["release", "deploi"],
        &["release", "--force", "deploi"],
    ] {
        redlock(&redis, words).assert_code(1).assert_says(meant);
    }
    // Nothing was frozen, and a new name is one's right.
    assert_eq!(redis.cli(&["KEYS", "*deploi*"]), "");
    redlock(&redis, &["status", "--new", "deploi"])
        .assert_code(0)
        .assert_silent();
    redlock(&redis, &["freeze", "--new", "deploi", "--reason", "x"]).assert_code(0);
    // It is known from now on.
    redlock(&redis, &["status", "deploi"]).assert_code(0);
}
