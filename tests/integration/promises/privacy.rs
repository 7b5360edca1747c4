//! What of a command others can see: its secrets are masked before they are stored, and the program's
//! name may stand in its place.

use std::fs;

use crate::support::{Gated, Redis, Running, outcome, queued};

/// All that is stored in Redis, as text.
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

/// The first holder, or waiter, of "a".
fn first(redis: &Redis, whose: &str) -> serde_json::Value {
    let end = outcome(&mut redis.redlock(&["status", "--json", "a"]));
    let locks: serde_json::Value = serde_json::from_str(&end.stdout).unwrap();
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
    let mut holder = Running::start(&mut command);
    holder.expect_line("ready");
    let waiter = queued(&redis, words!("run -q a -- true --auth-token hunter2"));
    outcome(&mut redis.redlock(words!("freeze -q --reason pwd=hunter2 a"))).assert_code(0);
    let acquire = "eval \"$(redlock acquire b)\"; : --password=hunter2";
    outcome(&mut redis.run("-q c", acquire)).assert_code(0);

    let mut all = stored(&redis);
    let command = first(&redis, "holders")["command"].to_string();
    outcome(redis.redlock(&["thaw", "-q", "a"]).env("X", "")).assert_code(0);
    let stop = ["stop", "-q", "--reason", "token: x TOKEN=hunter2", "a"];
    outcome(&mut redis.redlock(&stop)).assert_code(0);
    holder.finish().assert_code(79);
    waiter.finish().assert_code(0);
    let holder = Gated::start(&redis, &["a"]).ready();
    let force = ["release", "-q", "--force", "--reason", "TOKEN=hunter2", "a"];
    outcome(&mut redis.redlock(&force)).assert_code(0);
    holder.run.finish().assert_code(79);
    all += &stored(&redis);
    assert!(!all.contains("hunter2"), "{all}");
    for shown in [
        "API_KEY=***",
        "--secret=***",
        "https://ci:***@host/7",
        "for https://u:***@h/x",
    ] {
        assert!(all.contains(shown), "{shown}: {all}");
    }
    assert!(
        command.contains("TOKEN=*** true --password ***; exec"),
        "{command}"
    );
}

#[test]
fn a_secret_that_is_known_by_its_form_is_not_stored() {
    let redis = Redis::start();
    let random = "s3cr3tHUNTER2s3cr3tHUNTER2s3cr3t";
    for token in [
        &format!("ghp_{random}"),
        &format!("gho_{random}"),
        &format!("ghu_{random}"),
        &format!("ghs_{random}"),
        &format!("ghr_{random}"),
        &format!("github_pat_11A_{random}"),
        &format!("glpat-{random}"),
        &format!("xoxb-17-{random}"),
        "AKIAS3CR3THUNTER2XYZ",
        &format!("eyJhbGciOiJIUzI1NiJ9.eyJ{random}.{random}"),
        &format!("https://{random}@h/r"),
        &format!("https://{random}:@h/r"),
        &format!("https://ghp_{random}:x-oauth-basic@h/r"),
        &format!("redis://{random}@h"),
    ] {
        let mut command = redis.redlock(&["run", "--reason", token, "a", "--", "sh", "-c"]);
        command.args([": $1 $2", "sh", token, &format!("x='{token}' y")]);
        command.env("BUILDKITE_BUILD_URL", format!("https://b/?x={token}"));
        outcome(&mut command).assert_code(0);
        outcome(&mut redis.redlock(words!("acquire --reason", token, "b"))).assert_code(0);
        outcome(&mut redis.redlock(&["release", "--force", "b"])).assert_code(0);
        let all = stored(&redis);
        assert!(!all.to_lowercase().contains("hunter2"), "{token}: {all}");
        assert!(all.contains("***"), "{token}: {all}");
        redis.cli(&["FLUSHALL"]);
    }
}

#[test]
fn with_redlock_show_name_only_the_programs_name_is_stored() {
    let redis = Redis::start();
    let command = |show: &str| {
        let mut command = redis.redlock(&["run", "-q", "a", "--", "/bin/sh", "-c", "read go"]);
        if !show.is_empty() {
            command.env("REDLOCK_SHOW", show);
        }
        let (gate, other_end) = std::io::pipe().unwrap();
        let mut run = command.stdin(gate).spawn().unwrap();
        crate::support::wait_until("it holds the lock", || {
            redis.cli(&["EXISTS", "redlock:a"]) == "1"
        });
        let shown = first(&redis, "holders")["command"].to_string();
        drop(other_end);
        run.wait().unwrap();
        shown
    };
    let full = r#"["/bin/sh","-c","read go"]"#;
    assert_eq!(command("name"), r#"["sh"]"#);
    assert_eq!(
        (command("full").as_str(), command("").as_str()),
        (full, full)
    );
    // As a rule of the house, in a file.
    fs::create_dir_all(redis.dir.path().join(".config")).unwrap();
    fs::write(
        redis.dir.path().join(".config/redlock.env"),
        "REDLOCK_SHOW=name\n",
    )
    .unwrap();
    assert_eq!(command(""), r#"["sh"]"#);
    outcome(redis.redlock(&["status"]).env("REDLOCK_SHOW", "all"))
        .assert_code(78)
        .assert_says("REDLOCK_SHOW must be full or name");
}
