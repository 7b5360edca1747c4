//! The history: the holders of a lock, how long each held it, and how each hold ended.

use std::collections::HashSet;

use crate::pages::parsed_picture;
use crate::support::prelude::*;
use crate::support::proxy::{Action, Proxy, load_scripts};

/// Returns the history of "a" as JSON.
fn history(redis: &Redis, options: &str) -> Vec<Value> {
    let text = ends(redis, &format!("history --json a {options}"));
    serde_json::from_str(&text.assert_code(0).stdout).unwrap()
}

/// Returns the ends of the holds of "a".
fn endings(redis: &Redis) -> String {
    let end = |hold: &Value| {
        let number = hold["status"].as_u64().or(hold["signal"].as_u64());
        let number = number.map_or(String::new(), |number| format!(" {number}"));
        hold["end"].as_str().unwrap().to_owned() + &number
    };
    let ends: Vec<String> = history(redis, "").iter().map(end).collect();
    ends.join(", ")
}

#[test]
fn each_way_in_which_a_run_can_end_is_remembered() {
    let redis = Redis::left_empty();
    for script in ["true", "exit 3", "kill -TERM $$"] {
        outcome(&mut redis.run("a", script));
    }
    ends(&redis, "run -q -t 50ms a -- sleep 60");
    let forced = Gated::start(&redis, &["a"]).ready();
    ends(&redis, "release --force -q a");
    forced.run.finish().assert_code(79);
    let lost = Gated::start(&redis, &["a"]).ready();
    redis.cli(&["DEL", "redlock:a"]);
    lost.run.finish().assert_code(79);
    ends(&redis, "run a -- redlock release");
    ends(&redis, "run a -- /no/such/program");
    let all = "status 0, status 3, signal 15, timeout, forced, lost, released, status 127";
    assert_eq!(endings(&redis), all);
    let by = &history(&redis, "")[4]["by"];
    assert_eq!(by["host"], host());
    assert!(by["user"].is_string(), "{by}");
    let table = ends(&redis, "history a").stdout;
    for part in "ok, status 3, SIGTERM, timed out, forced by, lost, released".split(", ") {
        assert!(table.contains(part), "{part}: {table}");
    }
}

#[test]
fn a_command_that_never_started_is_no_run_in_the_history() {
    let redis = Redis::start();
    let [holder, other] = ["a", "b"].map(|name| Gated::start(&redis, &[name]).ready());
    ends(&redis, "run -qn a -- true").assert_code(75);
    let waiter = queued(&redis, &["run", "a", "--", "true"]);
    waiter.signal(Signal::SIGTERM);
    waiter.finish();
    holder.end();
    // With several names, holds are not recorded if another name stayed busy.
    ends(&redis, "run -qn a b -- true").assert_code(75);
    other.end();
    assert_eq!(endings(&redis), "status 0");
}

#[test]
fn holds_and_skipped_runs_are_bounded_each_and_with_a_size_of_none_nothing_is_kept() {
    let redis = Redis::start();
    let run = |size: &str, options: &str| {
        let line = format!("run REDLOCK_HISTORY_SIZE={size} {options} a -- true");
        ends(&redis, &line)
    };
    let kept = |list: &str| redis.cli(&["LLEN", &format!("{{redlock:a}}:{list}")]);
    for options in ["", "--once-per 1h"] {
        for _ in 0..4 {
            run("3", options).assert_code(0);
        }
    }
    for list in ["history", "skips"] {
        assert_eq!(kept(list), "3", "{list}");
        let key = format!("{{redlock:a}}:{list}");
        let left: u64 = redis.cli(&["TTL", &key]).parse().unwrap();
        assert!((29 * 86_400..=30 * 86_400).contains(&left), "{list}");
    }
    run("2", "");
    assert_eq!(kept("history"), "2");
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
    let url = format!("--url {}", proxy.url());
    run("0", &url).assert_code(0).assert_silent();
    assert_eq!(proxy.count("release"), 2);
}

#[test]
fn history_selects_the_last_holds_or_those_since_a_time() {
    let redis = Redis::start();
    for line in [
        "a -c 'exit 1'",
        "a -c 'exit 2'",
        "a -c 'exit 3'",
        "b -- true",
    ] {
        outcome(&mut sh(&redis, &format!("redlock run {line}")));
    }
    let last = history(&redis, "-n 2");
    let last: Vec<&Value> = last.iter().map(|hold| &hold["status"]).collect();
    assert_eq!(last, [2, 3]);
    assert_eq!(history(&redis, "--since 1h").len(), 3);
    assert_eq!(history(&redis, "--since 0s").len(), 0);
    let table = |words: &str| ends(&redis, &format!("history {words}")).stdout;
    // All rows may be of one lock.
    for (words, names) in [
        ("-n 1", "NAME b"),
        ("-n 2", "NAME a b"),
        ("-n 2 a*", "NAME a a"),
        ("-n 2 a", "STARTED"),
    ] {
        let table = table(words);
        let lines = table.lines().take(names.split(' ').count());
        let shown: Vec<&str> = lines.map(|line| line.split(' ').next().unwrap()).collect();
        assert_eq!(shown.join(" "), names, "{words}: {table}");
    }
    let two = table("-n 2");
    let rest = "\n\n2 earlier lines; -n all shows all\n";
    assert!(two.contains("status 3") && two.ends_with(rest), "{two}");
    let none = table("--since 0s");
    let start = "no hold within 0s; the last one ended at 20";
    assert!(none.starts_with(start), "{none}");
    ends(&redis, "history -n few").assert_code(64);
}

#[test]
fn the_picture_parses_and_names_the_holders() {
    let redis = Redis::start();
    let reason = "<b>&\"quoted\"";
    ends(&redis, &format!("run --reason {reason} a -- true"));
    let file = redis.dir.path().join("a.svg");
    ends(&redis, &format!("history --svg {}", file.display())).assert_code(0);
    let text = parsed_picture(&file);
    assert_has(
        &text,
        &["{http://www.w3.org/2000/svg}svg ", &host(), reason],
    );
    let printed = ends(&redis, "history --svg -").stdout;
    assert!(printed.starts_with("<svg ") && printed.ends_with("</svg>\n"));
    ends(&redis, "history --svg /no/such/dir/a.svg").assert_said(125, "can't write");
    // The argument may be a lock's name, or a script's.
    let replaced = ends(&redis, "history --svg a");
    replaced.assert_said(64, "has to end in .svg, as in --svg a.svg");
}

/// Returns the reasons why runs ended without "a", the first run first.
fn reasons(skipped: &[Value]) -> Vec<&str> {
    let skipped = skipped.iter().filter(|item| item["end"] == "skipped");
    skipped.map(|item| item["why"].as_str().unwrap()).collect()
}

#[test]
fn hundreds_of_waits_that_time_out_leave_at_most_64_kb() {
    let redis = Redis::start();
    let holder = Gated::start(&redis, &["a"]).ready();
    for _ in 0..600 {
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
fn each_run_that_ends_without_the_lock_leaves_a_trace() {
    let redis = Redis::start();
    ends(&redis, "run a -- true").assert_code(0);
    ends(&redis, "run --once-per 1h a -- true").assert_code(0);
    let holder = Gated::start(&redis, &["a"]).ready();
    ends(&redis, "run -qn a -- true").assert_code(75);
    ends(&redis, "acquire -q -w 10ms a").assert_code(75);
    let old = queued(&redis, words!("run -q --supersede a -- true"));
    let new = queued(&redis, words!("run -q --supersede --seq 7 a -- true"));
    old.finish().assert_code(75);
    ends(&redis, "run -q --supersede --seq 6 a -- true").assert_code(75);
    let pid = holder.run.pid();
    holder.end();
    new.finish().assert_code(0);
    ends(&redis, "freeze -q --reason x a").assert_code(0);
    ends(&redis, "run -qn a -- true").assert_code(75);
    let all = history(&redis, "--skipped");
    let expected = "recent busy timeout superseded superseded frozen";
    assert_eq!(reasons(&all).join(" "), expected);
    let of = |why: &str| all.iter().find(|item| item["why"] == why).unwrap();
    assert_eq!(of("busy")["by"]["pid"], pid);
    assert_eq!(of("busy")["command"][0], "true");
    assert_eq!(of("recent")["by"]["host"], host());
    assert!(of("timeout")["waited_ms"].as_u64() >= Some(10), "{all:?}");
    // Without the option, history only prints their number.
    assert!(reasons(&history(&redis, "")).is_empty());
    let table = ends(&redis, "history a").stdout;
    let sum = "\n6 runs ended without the lock; --skipped shows them\n";
    assert!(table.ends_with(sum), "{table}");
    let table = ends(&redis, "history --skipped a").stdout;
    assert_has(&table, &["  gave up: frozen by "]);
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
        let drawn = ends(&redis, &format!("history {name} --svg -"));
        let says = format!("nothing to draw: {none}");
        drawn.assert_printed(64, "").assert_says(&says);
        assert_eq!(shown(&format!("{name} --json")), "[]\n");
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
    let last: Vec<&str> = table.lines().skip(1).take(20).collect();
    for (row, name) in last.iter().zip(81..) {
        assert!(row.starts_with(&format!("job-{name} ")), "{table}");
    }
    assert_eq!(shown("-n all").lines().count(), 4501);
    let all: Vec<Value> = serde_json::from_str(&shown("--json")).unwrap();
    let ids: HashSet<&str> = all.iter().filter_map(|hold| hold["id"].as_str()).collect();
    assert_eq!((all.len(), ids.len()), (4500, 4500));
    let picture = shown("--svg - -n 20");
    assert!(picture.contains("job-81") && !picture.contains("job-80"));
}

#[test]
fn any_number_of_names_is_listed() {
    let redis = Redis::start();
    // Larger than one listing may be, with many names of the same score.
    let script = "for name = 1, 50000 do
        local text = 'job-' .. name .. string.rep('x', 150)
        redis.call('ZADD', '{redlock:}:index', math.floor(name / 3000), text)
    end";
    redis.cli(&["EVAL", script, "0"]);
    let listed = ends(&redis, "history --names-only *77*");
    let names: Vec<&str> = listed.assert_code(0).stdout.lines().collect();
    let expected = (1..=50_000).filter(|name| name.to_string().contains("77"));
    let expected = expected.map(|name| format!("job-{name}{}", "x".repeat(150)));
    assert_eq!(names, expected.collect::<Vec<_>>());
}
