//! Visibility of a command to others: redlock masks its secrets before storing them, and can store only the program's name.

use crate::support::prelude::*;

/// Returns everything that is stored in Redis, as text.
fn stored(redis: &Redis) -> String {
    let mut all = String::new();
    for key in redis.cli(&["KEYS", "*"]).lines() {
        all += &match redis.cli(&["TYPE", key]).as_str() {
            "string" => redis.cli(&["GET", key]),
            "hash" => redis.cli(&["HGETALL", key]),
            "list" => redis.cli(&["LRANGE", key, "0", "-1"]),
            _ => redis.cli(&["ZRANGE", key, "0", "-1"]),
        };
        all.push('\n');
    }
    all
}

/// Returns the command of the first holder of "a".
fn command(redis: &Redis) -> String {
    json(redis, "status --json a")[0]["holders"][0]["command"].to_string()
}

#[test]
fn no_secret_of_a_command_a_reason_or_a_link_is_stored() {
    let redis = Redis::start();
    let script = "echo ready; TOKEN=hunter2 true --password 'hunter2 x'; exec sleep 60";
    let mut command = redis.redlock(words!(
        "run --reason https://u:hunter2@h/x a -- env API_KEY=hunter2 sh -c {} --secret=hunter2",
        script
    ));
    command.env("BUILDKITE_BUILD_URL", "https://ci:hunter2@host/7");
    let holder = Running::ready(&mut command);
    let waiter = queued(&redis, words!("run -q a -- true --auth-token hunter2"));
    ends(&redis, "freeze -q --reason pwd=hunter2 a").assert_code(0);
    let acquire = "eval \"$(redlock acquire b)\"; : --password=hunter2";
    outcome(&mut redis.run("-q c", acquire)).assert_code(0);

    let mut all = stored(&redis);
    let command = self::command(&redis);
    redis.play(
        "0 redlock thaw -q a
        0 redlock stop -q --reason 'token: x TOKEN=hunter2' a",
    );
    holder.finish().assert_code(79);
    waiter.finish().assert_code(0);
    let holder = Gated::start(&redis, &["a"]).ready();
    ends(&redis, "release -q --force --reason TOKEN=hunter2 a").assert_code(0);
    holder.run.finish().assert_code(79);
    all += &stored(&redis);
    assert!(!all.contains("hunter2"), "{all}");
    let parts = "API_KEY=*** --secret=*** https://ci:***@host/7 https://u:***@h/x";
    assert_has(&all, &words(parts, &[]));
    assert_has(&command, &["TOKEN=*** true --password ***; exec"]);
}

#[test]
fn a_secret_that_is_known_by_its_form_is_not_stored() {
    let redis = Redis::start();
    let forms = "ghp_* gho_* ghu_* ghs_* ghr_* github_pat_11A_* glpat-* xoxb-17-* AKIAS3CR3THUNTER2XYZ \
                 eyJhbGciOiJIUzI1NiJ9.eyJ*.* https://*@h/r https://*:@h/r \
                 https://ghp_*:x-oauth-basic@h/r redis://*@h";
    let tokens = &forms.replace('*', "s3cr3tHUNTER2");
    let mut run = redis.redlock(words!("run --reason {} a -- true", tokens));
    for token in tokens.split(' ') {
        run.args([token, &format!("x='{token}' y")]);
    }
    let link = format!("https://b/?x={}", tokens.replace(' ', "&"));
    outcome(run.env("BUILDKITE_BUILD_URL", link)).assert_code(0);
    outcome(&mut redis.redlock(words!("acquire --reason {} b", tokens))).assert_code(0);
    let all = stored(&redis);
    assert!(!all.to_lowercase().contains("hunter2"), "{all}");
    let masked = all.matches("***").count();
    assert!(masked >= 5 * forms.split(' ').count(), "{masked}: {all}");
}

#[test]
fn with_redlock_show_name_only_the_programs_name_is_stored() {
    let redis = Redis::start();
    let config = redis.dir.path().join(".config");
    fs::create_dir(&config).unwrap();
    let full = format!(r#"["/bin/sh","-c","{IDLE}"]"#);
    for (setting, file, expected) in [
        ("REDLOCK_SHOW=name ", "", r#"["sh"]"#),
        ("REDLOCK_SHOW=full ", "REDLOCK_SHOW=name\n", &full),
        ("", "", &full),
        ("", "REDLOCK_SHOW=name\n", r#"["sh"]"#),
    ] {
        fs::write(config.join("redlock.env"), file).unwrap();
        let line = format!("{setting}run a -- /bin/sh -c");
        let run = Running::ready(&mut redis.redlock(&words(&line, &[IDLE])));
        assert_eq!(command(&redis), expected, "{setting}{file}");
        run.signal(Signal::SIGTERM);
        run.finish().assert_code(143);
    }
    ends(&redis, "REDLOCK_SHOW=all status").assert_said(78, "REDLOCK_SHOW must be full or name");
}
