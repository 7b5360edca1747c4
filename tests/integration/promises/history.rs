//! The history: the holders of a lock, how long each held it, and how each hold ended.

use std::collections::HashSet;

use crate::pages::parsed_picture;
use crate::support::prelude::*;
use crate::support::proxy::{Action, Proxy, load_scripts};

/// Returns the history of "a" as JSON.
fn history(redis: &Redis, options: &str) -> Vec<Value> {
    let all = json(redis, &format!("history --json a {options}"));
    all.as_array().unwrap().clone()
}

/// Returns the ends of the holds of "a".
fn endings(redis: &Redis) -> String {
    let end = |hold: &Value| {
        let number = hold["status"].as_u64().or(hold["signal"].as_u64());
        let number = number.map_or(String::new(), |number| format!(" {number}"));
        hold["end"].as_str().unwrap().to_owned() + &number
    };
    let ends = history(redis, "");
    ends.iter().map(end).collect::<Vec<_>>().join(", ")
}

#[test]
fn each_way_in_which_a_run_can_end_is_remembered() {
    let redis = Redis::left_empty();
    let force = "redlock release --force -q a; exec sleep 60";
    let lose = "redis-cli -s ~/redis.sock DEL redlock:a; exec sleep 60";
    for (options, script) in [
        ("a", "true"),
        ("a", "exit 3"),
        ("a", "kill -TERM $$"),
        ("-q -t 50ms a", "exec sleep 60"),
        ("a", force),
        ("a", lose),
        ("a", "redlock release"),
    ] {
        outcome(&mut redis.run(options, script));
    }
    ends(&redis, "run a -- /no/such/program");
    let all = "status 0, status 3, signal 15, timeout, forced, lost, released, status 127";
    assert_eq!(endings(&redis), all);
    let by = &history(&redis, "")[4]["by"];
    assert!(by["host"] == host() && by["user"].is_string(), "{by}");
    let table = ends(&redis, "history a").stdout;
    let others = words!("ok SIGTERM lost released", "status 3", "forced by");
    assert_has(&table, &[others, &["timed out"]].concat());
}

#[test]
fn holds_and_skipped_runs_are_bounded_each_and_with_a_size_of_none_nothing_is_kept() {
    let redis = Redis::start();
    let run = |size: &str, options: &str| {
        let line = format!("run REDLOCK_HISTORY_SIZE={size} {options} a -- true");
        ends(&redis, &line)
    };
    let kept = |list: &str| redis.cli(&["LLEN", &format!("{{redlock:a}}:{list}")]);
    for (options, list) in [("", "history"), ("--once-per 1h", "skips")] {
        for (size, count) in [("3", "1"), ("3", "2"), ("3", "3"), ("3", "3"), ("2", "2")] {
            run(size, options).assert_code(0);
            assert_eq!(kept(list), count, "{list}");
        }
        let key = format!("{{redlock:a}}:{list}");
        let left: u64 = redis.cli(&["TTL", &key]).parse().unwrap();
        assert!((29 * 86_400..=30 * 86_400).contains(&left), "{list}");
    }
    assert_eq!(history(&redis, "REDLOCK_HISTORY_SIZE=1").len(), 1);
    for (options, list) in [("", "history"), ("--once-per 1h", "skips")] {
        run("0", options).assert_code(0);
        assert_eq!(kept(list), "0", "{list}");
    }
    ends(&redis, "history a").assert_code(0);
    run("10001", "").assert_code(78);
    // Even without a history, redlock repeats a release without a reply.
    load_scripts(&redis);
    let proxy = Proxy::once(&redis, "release", 0, Action::ResetReply);
    run("0", &format!("--url {}", proxy.url()))
        .assert_code(0)
        .assert_silent();
    assert_eq!(proxy.count("release"), 2);
}

#[test]
fn history_selects_the_last_holds_or_those_since_a_time() {
    let redis = Redis::start();
    for (name, status) in [("a", "1"), ("a", "2"), ("a", "3"), ("b", "0")] {
        outcome(&mut redis.run(name, &format!("exit {status}")));
    }
    let last = history(&redis, "-n 2");
    assert!(last.len() == 2 && last[0]["status"] == 2 && last[1]["status"] == 3);
    assert_eq!(history(&redis, "--since 1h").len(), 3);
    assert_eq!(history(&redis, "--since 0s").len(), 0);
    // All rows may be of one lock.
    for (words, names) in [
        ("-n 1", "NAME b"),
        ("-n 2", "NAME a b"),
        ("-n 2 a*", "NAME a a"),
        ("-n 2 a", "STARTED"),
    ] {
        let table = ends(&redis, &format!("history {words}")).stdout;
        let lines = table.lines().take(names.split(' ').count());
        let shown: Vec<&str> = lines.map(|line| line.split(' ').next().unwrap()).collect();
        assert_eq!(shown.join(" "), names, "{words}: {table}");
    }
    let two = ends(&redis, "history -n 2").stdout;
    let rest = "\n\n2 earlier lines; -n all shows all\n";
    assert_has(&two, &["status 3", rest]);
    let all = ends(&redis, "history -n all").stdout;
    assert_eq!(all.lines().count(), 5, "{all}");
    let none = ends(&redis, "history --since 0s").stdout;
    assert_has(&none, &["no hold within 0s; the last one ended at 20"]);
    ends(&redis, "history -n few").assert_code(64);
}

#[test]
fn the_picture_parses_and_names_the_holders() {
    let redis = Redis::start();
    let reason = "<b>&\"quoted\"";
    let mut run = redis.redlock(&words(&format!("run --reason {reason} a -- true"), &[]));
    outcome(run.env("BUILDKITE_BUILD_URL", "https://ci/1?a&b"));
    ends(&redis, "run a -- false");
    let _running = Gated::start(&redis, &["b"]).ready();
    let file = redis.dir.path().join("a.svg");
    ends(&redis, &format!("history --svg {}", file.display())).assert_code(0);
    let svg = "{http://www.w3.org/2000/svg}svg ";
    assert_has(&parsed_picture(&file), &[svg, &host(), reason]);
    let printed = ends(&redis, "history --svg -").stdout;
    assert!(printed.starts_with("<svg ") && printed.ends_with("</svg>\n"));
    // The last argument may be a lock's name, or a script's.
    redis.play(
        "125 redlock history --svg /no/such/dir/a.svg → can't write
        64 redlock history --svg a → has to end in .svg, as in --svg a.svg",
    );
}

#[test]
fn hundreds_of_waits_that_time_out_leave_at_most_64_kb() {
    let redis = Redis::start();
    let holder = Gated::start(&redis, &["a"]).ready();
    for _ in 0..250 {
        ends(&redis, "run -q -w 1ms a -- pg_dump --format=custom").assert_code(75);
    }
    let usage = |key: &str| -> u64 {
        let bytes = redis.cli(words!("MEMORY USAGE {} SAMPLES 0", key));
        bytes.parse().unwrap()
    };
    let keys = redis.cli(words!("KEYS *"));
    let total: u64 = keys.lines().map(usage).sum();
    assert!(total <= 64 * 1024, "{total} bytes: {keys}");
    holder.end();
}

#[test]
fn each_run_that_ends_without_the_lock_leaves_a_trace_and_is_no_hold() {
    let redis = Redis::start();
    ends(&redis, "run a -- true").assert_code(0);
    ends(&redis, "run --once-per 1h a -- true").assert_code(0);
    let other = Gated::start(&redis, &["b"]).ready();
    // The hold of "a" isn't recorded, because the other name stays busy.
    ends(&redis, "run -qn a b -- true").assert_code(75);
    other.end();
    let holder = Gated::start(&redis, &["a"]).ready();
    ends(&redis, "run -qn a -- true").assert_code(75);
    ends(&redis, "acquire -q -w 10ms a").assert_code(75);
    let interrupted = queued(&redis, words!("run a -- true"));
    interrupted.signal(Signal::SIGTERM);
    interrupted.finish().assert_code(143);
    let old = queued(&redis, words!("run -q --supersede a -- true"));
    let new = queued(&redis, words!("run -q --supersede --seq 7 a -- true"));
    old.finish().assert_code(75);
    ends(&redis, "run -q --supersede --seq 6 a -- true").assert_code(75);
    let pid = holder.run.pid();
    holder.end();
    new.finish().assert_code(0);
    ends(&redis, "freeze -q --reason x a").assert_code(0);
    ends(&redis, "run -qn a -- true").assert_code(75);
    let mut all = history(&redis, "--skipped");
    all.retain(|item| item["end"] == "skipped");
    let why = all.iter().map(|item| item["why"].as_str().unwrap());
    let reasons = words!("recent busy timeout superseded superseded frozen");
    assert_eq!(why.collect::<Vec<_>>(), reasons);
    assert_eq!(all[0]["by"]["host"], host());
    assert!(all[1]["by"]["pid"] == pid && all[1]["command"][0] == "true");
    assert!(all[2]["waited_ms"].as_u64() >= Some(10), "{all:?}");
    // Without the option, history only prints their number.
    assert_eq!(endings(&redis), ["status 0"; 3].join(", "));
    let sum = "\n6 runs ended without the lock; --skipped shows them\n";
    assert_has(&ends(&redis, "history a").stdout, &[sum]);
    let table = ends(&redis, "history --skipped a").stdout;
    let parts = [
        "skipped: succeeded ",
        &format!(" ago on {}", host()),
        "gave up: held by ",
        "gave up waiting: held by ",
        "superseded by ",
        "gave up: frozen by ",
    ];
    assert_has(&table, &parts);
}

#[test]
fn times_are_local_with_their_zone_and_utc_in_json() {
    let redis = Redis::start();
    ends(&redis, "run a -- true").assert_code(0);
    let holds = history(&redis, "");
    let since = holds[0]["since"].as_str().unwrap();
    let date = format!("TZ=XYZ-5:30 date -d {since} '+%F %T XYZ'");
    let local = outcome(Command::new("sh").args(["-c", &date])).stdout;
    let utc = since[..19].replace('T', " ") + " UTC  ";
    for (zone, words, shown) in [
        ("UTC", words!("history a"), utc.as_str()),
        ("XYZ-5:30", words!("history a"), local.trim()),
        ("XYZ-5:30", words!("history a --json"), since),
        ("XYZ-5:30", words!("history a --svg -"), "times in XYZ"),
    ] {
        let end = outcome(redis.redlock(words).env("TZ", zone));
        let has_it = end.assert_code(0).stdout.contains(shown);
        assert!(has_it, "{shown}: {end:?}");
    }
}

#[test]
fn a_name_without_a_history_is_said_so_and_isnt_drawn() {
    let redis = Redis::start();
    let shown = |words: &str| {
        let end = ends(&redis, &format!("history {words}"));
        end.assert_code(0).stdout.clone()
    };
    assert_eq!(shown(""), "no lock has a history (kept for 30 days)\n");
    for name in ["f", "e-10", "e-9", "c", "b", "a"] {
        ends(&redis, &format!("run {name} -- true")).assert_code(0);
    }
    for name in ["x", "x*"] {
        let none = format!("no history of \"{name}\" (kept for 30 days)");
        assert_eq!(shown(name), format!("{none}\n"));
        let both = shown(&format!("{name} a"));
        assert!(both.starts_with("NAME ") && both.ends_with(&format!("\n\n{none}\n")));
        assert_eq!(shown(&format!("{name} --json")), "[]\n");
        redis.play(&format!(
            "64 redlock history '{name}' --svg - → nothing to draw: {none}"
        ));
    }
}

/// Fills a server with names, each with this many holds of long commands, one a second.
fn fill(redis: &Redis, names: &str, holds: &str) {
    let script = r#"
        local entry = '{"host":"h","user":"u","pid":1,"command":["' .. string.rep('x', 3900) .. '"]}'
        for name = 1, ARGV[1] do
            redis.call('ZADD', '{redlock:}:index', 9000 + name % 3, 'job-' .. name)
            for hold = 1, ARGV[2] do
                local since = (hold * ARGV[1] + name) * 1000
                local record = {string.format('%012x', since), since + 500, 'status:0 0', since, since, '1 1 0 held', entry}
                redis.call('LPUSH', '{redlock:job-' .. name .. '}:history', table.concat(record, ' '))
            end
        end"#;
    assert_eq!(redis.cli(&["EVAL", script, "0", names, holds]), "");
}

#[test]
fn the_history_of_any_number_of_busy_locks_is_shown() {
    let redis = Redis::start();
    // Larger than one listing may be, and longer than redlock keeps of an array.
    fill(&redis, "100", "45");
    let shown = |options: &str| {
        let shown = ends(&redis, &format!("history {options}"));
        shown.assert_code(0).assert_silent().stdout.clone()
    };
    let table = shown("");
    let rest = "\n\n4480 earlier lines; -n all shows all\n";
    assert!(table.ends_with(rest), "{table}");
    for (row, name) in table.lines().skip(1).take(20).zip(81..) {
        assert!(row.starts_with(&format!("job-{name} ")), "{table}");
    }
    // Parsing all of it would take longer than all else.
    let json = shown("--json");
    let ids = json.split("\"id\":\"").skip(1).map(|rest| &rest[..12]);
    assert_eq!(
        (ids.clone().count(), ids.collect::<HashSet<_>>().len()),
        (4500, 4500)
    );
    let picture = shown("--svg - -n 20");
    assert!(picture.contains("job-81") && !picture.contains("job-80"));
}
