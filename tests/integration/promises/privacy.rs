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

/// Returns the first holder or waiter of "a".
fn first(redis: &Redis, whose: &str) -> serde_json::Value {
    let locks = json(redis, "status --json a");
    locks[0][whose][0].clone()
}

#[test]
fn no_secret_of_a_command_a_reason_or_a_link_is_stored() {
    let redis = Redis::start();
    let script = "echo ready; TOKEN=hunter2 true --password 'hunter2 x'; exec sleep 60";
    let mut command = redis.redlock(words!(
        "run --reason {} a -- env API_KEY=hunter2 sh -c {} --secret=hunter2",
        "for https://u:hunter2@h/x",
        script
    ));
    command.env("BUILDKITE_BUILD_URL", "https://ci:hunter2@host/7");
    let holder = Running::ready(&mut command);
    let waiter = queued(&redis, words!("run -q a -- true --auth-token hunter2"));
    ends(&redis, "freeze -q --reason pwd=hunter2 a").assert_code(0);
    let acquire = "eval \"$(redlock acquire b)\"; : --password=hunter2";
    outcome(&mut redis.run("-q c", acquire)).assert_code(0);

    let mut all = stored(&redis);
    let command = first(&redis, "holders")["command"].to_string();
    outcome(redis.redlock(&["thaw", "-q", "a"]).env("X", "")).assert_code(0);
    let stop = words!("stop -q --reason {} a", "token: x TOKEN=hunter2");
    outcome(&mut redis.redlock(stop)).assert_code(0);
    holder.finish().assert_code(79);
    waiter.finish().assert_code(0);
    let holder = Gated::start(&redis, &["a"]).ready();
    let force = words!("release -q --force --reason TOKEN=hunter2 a");
    outcome(&mut redis.redlock(force)).assert_code(0);
    holder.run.finish().assert_code(79);
    all += &stored(&redis);
    assert!(!all.contains("hunter2"), "{all}");
    assert_has(
        &all,
        &[
            "API_KEY=***",
            "--secret=***",
            "https://ci:***@host/7",
            "for https://u:***@h/x",
        ],
    );
    assert_has(&command, &["TOKEN=*** true --password ***; exec"]);
}

#[test]
fn a_secret_that_is_known_by_its_form_is_not_stored() {
    let redis = Redis::start();
    let random = "s3cr3tHUNTER2s3cr3tHUNTER2s3cr3t";
    let forms = "ghp_* gho_* ghu_* ghs_* ghr_* github_pat_11A_* glpat-* xoxb-17-* AKIAS3CR3THUNTER2XYZ \
                 eyJhbGciOiJIUzI1NiJ9.eyJ*.* https://*@h/r https://*:@h/r \
                 https://ghp_*:x-oauth-basic@h/r redis://*@h";
    for form in forms.split(' ') {
        let token = &form.replace('*', random);
        let mut command = redis.redlock(words!("run --reason {} a -- sh -c", token));
        command.args([": $1 $2", "sh", token, &format!("x='{token}' y")]);
        command.env("BUILDKITE_BUILD_URL", format!("https://b/?x={token}"));
        outcome(&mut command).assert_code(0);
        outcome(&mut redis.redlock(words!("acquire --reason {} b", token))).assert_code(0);
        ends(&redis, "release --force b").assert_code(0);
        let all = stored(&redis);
        assert!(!all.to_lowercase().contains("hunter2"), "{token}: {all}");
        assert!(all.contains("***"), "{token}: {all}");
        redis.cli(&["FLUSHALL"]);
    }
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
        let shown = first(&redis, "holders")["command"].to_string();
        assert_eq!(shown, expected, "{setting}{file}");
        run.signal(Signal::SIGTERM);
        run.finish().assert_code(143);
    }
    ends(&redis, "REDLOCK_SHOW=all status").assert_said(78, "REDLOCK_SHOW must be full or name");
}
