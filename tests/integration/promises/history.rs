//! The history: the holders of a lock, how long each held it, and how that ended.

use std::collections::HashSet;
use std::process::Command;
use std::time::Instant;

use nix::sys::signal::Signal;
use serde_json::Value;

use crate::support::proxy::{Action, Proxy, load_scripts};
use crate::support::{
    Gated, Outcome, Redis, WallClock, assert_nothing_left, host, outcome, queued, wait_until,
};

fn redlock(redis: &Redis, arguments: &[&str]) -> Outcome {
    outcome(&mut redis.redlock(arguments))
}

/// The history of "a" as JSON.
fn history(redis: &Redis, options: &[&str]) -> Vec<Value> {
    let text = redlock(redis, &[&["history", "--json", "a"], options].concat());
    serde_json::from_str(&text.assert_code(0).stdout).unwrap()
}

/// How each hold of "a" ended.
fn ends(redis: &Redis) -> Vec<String> {
    let end = |hold: &Value| {
        let number = hold["status"].as_u64().or(hold["signal"].as_u64());
        let number = number.map_or(String::new(), |number| format!(" {number}"));
        hold["end"].as_str().unwrap().to_owned() + &number
    };
    history(redis, &[]).iter().map(end).collect()
}

#[test]
fn each_way_in_which_a_run_can_end_is_remembered() {
    let redis = Redis::start();
    redlock(&redis, &["run", "a", "--", "true"]);
    redlock(&redis, &["run", "a", "--", "sh", "-c", "exit 3"]);
    redlock(&redis, &["run", "a", "--", "sh", "-c", "kill -TERM $$"]);
    redlock(&redis, words!("run -q -t 50ms a -- sleep 60"));
    let forced = Gated::start(&redis, &["a"]).ready();
    redlock(&redis, &["release", "--force", "-q", "a"]);
    forced.run.finish().assert_code(79);
    let lost = Gated::start(&redis, &["a"]).ready();
    redis.cli(&["DEL", "redlock:a"]);
    lost.run.finish().assert_code(79);
    redlock(&redis, &["run", "a", "--", "redlock", "release"]);
    redlock(&redis, &["run", "a", "--", "/no/such/program"]);
    assert_eq!(
        ends(&redis),
        [
            "status 0",
            "status 3",
            "signal 15",
            "timeout",
            "forced",
            "lost",
            "released",
            "status 127"
        ]
    );
    let by = &history(&redis, &[])[4]["by"];
    assert_eq!(
        (by["host"].as_str(), by["user"].is_string()),
        (Some(host().as_str()), true)
    );
    let table = redlock(&redis, &["history", "a"]).stdout;
    for part in [
        "ok",
        "status 3",
        "SIGTERM",
        "timed out",
        "forced by",
        "lost",
        "released",
    ] {
        assert!(table.contains(part), "{part}: {table}");
    }
    assert_nothing_left(&redis);
}

#[test]
fn a_hold_shows_its_holder_when_it_began_and_ended_and_how_long_it_waited() {
    let redis = Redis::start();
    let holder = Gated::start(&redis, &["a"]).ready();
    let waiter = Gated::queued(&redis, &["--reason", "release 7", "--slots", "2", "a"]);
    std::thread::sleep(std::time::Duration::from_millis(30));
    let running = &history(&redis, &[])[0];
    assert_eq!(
        (&running["end"], &running["ended"]),
        (&"running".into(), &Value::Null)
    );
    holder.end();
    let waiter = waiter.ready();
    let pid = waiter.run.pid();
    waiter.end();
    let all = history(&redis, &[]);
    let hold = &all[1];
    assert_eq!(
        (&hold["pid"], &hold["reason"]),
        (&pid.into(), &"release 7".into())
    );
    assert_eq!((&hold["mode"], &hold["slot"]), (&"slots".into(), &1.into()));
    assert!(hold["waited_ms"].as_u64().unwrap() >= 30, "{hold}");
    assert!(all[0]["waited_ms"] == 0 && all[0]["fence"].as_u64() < hold["fence"].as_u64());
    assert!(all[0]["ended"].as_str() <= hold["since"].as_str());
    assert!(hold["since"].as_str() <= hold["ended"].as_str());
    assert_eq!(hold["command"][0], "sh");
}

#[test]
fn a_holder_that_died_is_remembered_before_and_after_another_client_comes() {
    for mode in [&[][..], &["--shared"]] {
        let redis = Redis::start();
        let began = Instant::now();
        let mut holder = Gated::start(&redis, &[mode, &["--ttl", "3s", "a"]].concat()).ready();
        holder.run.kill();
        wait_until("its lease is over", || ends(&redis) == ["expired"]);
        let longest = began.elapsed().as_millis();
        redlock(&redis, &["run", "a", "--", "true"]).assert_code(0);
        assert_eq!(ends(&redis), ["expired", "status 0"]);
        let ran = history(&redis, &[])[0]["ran_ms"].as_u64().unwrap();
        assert!((2500..=longest).contains(&ran.into()), "{ran} {longest}");
        assert_nothing_left(&redis);
    }
}

#[test]
fn a_command_that_never_started_is_no_run_in_the_history() {
    let redis = Redis::start();
    let holder = Gated::start(&redis, &["a"]).ready();
    redlock(&redis, &["run", "-qn", "a", "--", "true"]).assert_code(75);
    let waiter = queued(&redis, &["run", "a", "--", "true"]);
    waiter.signal(Signal::SIGTERM);
    waiter.finish();
    // One that is granted the lock and never confirms it.
    let frozen = queued(&redis, &["run", "-q", "a", "--", "true"]);
    frozen.suspend();
    let next = queued(&redis, &["run", "-q", "a", "--", "true"]);
    holder.end();
    next.finish().assert_code(0);
    assert_eq!(ends(&redis), ["status 0", "status 0"]);
    frozen.resume();
    frozen.finish().assert_code(0);
    assert_eq!(ends(&redis).len(), 3);
    // Of several names, what was held while another one stayed busy.
    let holder = Gated::start(&redis, &["b"]).ready();
    redlock(&redis, &["run", "-qn", "a", "b", "--", "true"]).assert_code(75);
    holder.end();
    assert_eq!(ends(&redis).len(), 3);
}

#[test]
fn the_history_is_bounded_and_costs_no_round_trip() {
    let redis = Redis::start();
    let scripts = || redis.calls("evalsha") + redis.calls("eval");
    let options = ["run", "REDLOCK_HISTORY_SIZE=3", "a", "--", "true"];
    for _ in 0..3 {
        redlock(&redis, &options);
    }
    let scripts_of_a_run = || {
        let before = scripts();
        redlock(&redis, &options);
        scripts() - before
    };
    // One that takes longer than 50 ms asks once more.
    wait_until("a run is as quick as that", || match scripts_of_a_run() {
        0 | 1 => panic!("a run needs two"),
        scripts => scripts == 2,
    });
    assert_eq!(redis.cli(&["LLEN", "{redlock:a}:history"]), "3");
    let mut more = redis.redlock(&["run", "a", "--", "true"]);
    outcome(more.env("REDLOCK_HISTORY_SIZE", "2"));
    assert_eq!(redis.cli(&["LLEN", "{redlock:a}:history"]), "2");
    assert_eq!(history(&redis, &["REDLOCK_HISTORY_SIZE=1"]).len(), 1);
    let left: u64 = redis.cli(&["TTL", "{redlock:a}:history"]).parse().unwrap();
    assert!((29 * 86_400..=30 * 86_400).contains(&left));
    let mut bad = redis.redlock(&["run", "a", "--", "true"]);
    outcome(bad.env("REDLOCK_HISTORY_SIZE", "10001")).assert_code(78);
}

#[test]
fn the_last_ones_and_those_since_may_be_asked_for() {
    let redis = Redis::start();
    for status in ["1", "2", "3"] {
        redlock(&redis, words!("run a -- sh -c", &format!("exit {status}")));
    }
    redlock(&redis, &["run", "b", "--", "true"]);
    let last = history(&redis, &["-n", "2"]);
    assert_eq!(
        last.iter().map(|hold| &hold["status"]).collect::<Vec<_>>(),
        [2, 3]
    );
    assert_eq!(history(&redis, &["--since", "1h"]).len(), 3);
    assert_eq!(history(&redis, &["--since", "0s"]).len(), 0);
    let all = redlock(&redis, &["history", "-n", "2"]).stdout;
    let rows: Vec<&str> = all.lines().skip(1).take(2).collect();
    assert!(
        rows[0].contains("status 3") && rows[1].starts_with('b'),
        "{all}"
    );
    assert!(
        all.ends_with("\n\n2 earlier lines; -n all shows all\n"),
        "{all}"
    );
    let none = redlock(&redis, &["history", "--since", "0s"]).stdout;
    assert!(
        none.starts_with("no hold within 0s; the last one ended at 20"),
        "{none}"
    );
    redlock(&redis, &["history", "-n", "few"]).assert_code(64);
}

#[test]
fn a_table_of_all_locks_names_them_also_where_its_rows_are_of_one() {
    let redis = Redis::start();
    for name in ["other", "a", "a"] {
        redlock(&redis, &["run", name, "--", "true"]);
    }
    for asked in [&["history", "-n", "2"][..], &["history", "-n", "2", "a*"]] {
        let table = redlock(&redis, asked).stdout;
        let lines: Vec<&str> = table.lines().collect();
        assert!(lines[0].starts_with("NAME "), "{asked:?}: {table}");
        for row in &lines[1..3] {
            assert!(row.starts_with("a "), "{asked:?}: {table}");
        }
    }
    let table = redlock(&redis, &["history", "-n", "2", "a"]).stdout;
    assert!(table.starts_with("STARTED "), "{table}");
}

#[test]
fn a_hold_that_ended_before_it_began_by_the_servers_clock_is_drawn() {
    let clock = WallClock::ahead_by(0);
    let before = clock.before();
    let before: Vec<&str> = before.iter().map(String::as_str).collect();
    let redis = Redis::under(&before, &[]);
    let holder = Gated::start(&redis, &["a"]).ready();
    clock.set(-3_600_000);
    holder.end();
    redlock(&redis, &["run", "a", "--", "true"]).assert_code(0);
    for form in [&["--svg", "-"][..], &[]] {
        redlock(&redis, &[&["history", "a"], form].concat()).assert_code(0);
    }
}

#[test]
fn the_picture_parses_and_names_the_holders() {
    let redis = Redis::start();
    let reason = "<b>&\"quoted\"";
    redlock(&redis, &["run", "--reason", reason, "a", "--", "true"]);
    let file = redis.dir.path().join("a.svg");
    redlock(&redis, &["history", "--svg", file.to_str().unwrap()]).assert_code(0);
    let script = "
import sys, xml.etree.ElementTree as tree
root = tree.parse(sys.argv[1]).getroot()
print(root.tag)
print(' '.join(root.itertext()))";
    let parsed: Outcome = Command::new("python3")
        .args(["-c", script, file.to_str().unwrap()])
        .output()
        .unwrap()
        .into();
    parsed.assert_code(0);
    assert!(
        parsed
            .stdout
            .starts_with("{http://www.w3.org/2000/svg}svg\n")
    );
    assert!(
        parsed.stdout.contains(&host()) && parsed.stdout.contains(reason),
        "{parsed:?}"
    );
    let printed = redlock(&redis, &["history", "--svg", "-"]).stdout;
    assert!(printed.starts_with("<svg ") && printed.ends_with("</svg>\n"));
    let nowhere = redlock(&redis, &["history", "--svg", "/no/such/dir/a.svg"]);
    nowhere.assert_code(125).assert_says("can't write");
}

#[test]
fn a_hold_whose_lock_was_deleted_is_lost_and_has_an_end() {
    let redis = Redis::start();
    redlock(&redis, &["acquire", "a", "--ttl", "1h"]).assert_code(0);
    redis.cli(&["DEL", "redlock:a"]);
    assert_eq!(ends(&redis), ["lost"]);
    let ended = |hold: &Value| hold["ended"].as_str().unwrap().to_owned();
    let now = redlock(&redis, &["history", "a", "--json", "--since", "1m"]);
    let holds: Vec<Value> = serde_json::from_str(&now.assert_code(0).stdout).unwrap();
    assert_eq!(holds.len(), 1, "{now:?}");
    let day = outcome(std::process::Command::new("date").args(["-u", "+%FT%H:%M"]));
    assert!(
        ended(&holds[0]).as_str() < format!("{}:99", day.stdout.trim()).as_str(),
        "{now:?}"
    );
    // The next run writes it down so.
    redlock(&redis, &["run", "a", "--", "true"]).assert_code(0);
    assert_eq!(ends(&redis), ["lost", "status 0"]);
}

#[test]
fn with_a_history_of_none_nothing_is_kept_and_a_release_may_be_repeated() {
    let redis = Redis::start();
    redlock(&redis, &["run", "a", "--", "true"]).assert_code(0);
    let run = ["run", "REDLOCK_HISTORY_SIZE=0", "a", "--", "true"];
    redlock(&redis, &run).assert_code(0).assert_silent();
    assert_eq!(redis.cli(&["EXISTS", "{redlock:a}:history"]), "0");
    redlock(&redis, &["history", "a"]).assert_code(0);
    // The answer to the release is lost, and it is asked for once more.
    load_scripts(&redis);
    let proxy = Proxy::with(&redis, |request| {
        match (request.operation.as_str(), request.before) {
            ("release", 0) => Action::ResetReply,
            _ => Action::Pass,
        }
    });
    let url = proxy.url();
    let run = words!(
        "run --url",
        &url,
        "REDLOCK_HISTORY_SIZE=0",
        "a",
        "--",
        "true"
    );
    redlock(&redis, run).assert_code(0).assert_silent();
    let sent = proxy.seen().into_iter().filter(|name| name == "release");
    assert_eq!(sent.count(), 2);
}

#[test]
fn patterns_pick_locks_and_numbers_in_names_are_ordered_by_value() {
    let redis = Redis::start();
    for name in ["deploy-10", "deploy-2", "deploy-2b", "nightly"] {
        redlock(&redis, &["run", name, "--", "true"]).assert_code(0);
    }
    let picked = |names: &[&str]| -> Vec<String> {
        let text = redlock(&redis, &[&["history", "--names-only"], names].concat()).stdout;
        text.lines().map(str::to_owned).collect()
    };
    assert_eq!(
        picked(&[]),
        ["deploy-2", "deploy-2b", "deploy-10", "nightly"]
    );
    assert_eq!(picked(&["deploy-?"]), ["deploy-2"]);
    assert_eq!(
        picked(&["*-10", "deploy-2*"]),
        ["deploy-2", "deploy-2b", "deploy-10"]
    );
    assert_eq!(
        picked(&["night*", "deploy-10", "*1?"]),
        ["deploy-10", "nightly"]
    );
}

#[test]
fn the_table_has_the_last_20() {
    let redis = Redis::start();
    for status in 1..=25 {
        let script = format!("exit {status}");
        redlock(&redis, &["run", "a", "-c", &script]).assert_code(status);
    }
    let table = redlock(&redis, &["history", "a"]).stdout;
    assert_eq!(table.matches(" status ").count(), 20, "{table}");
    assert!(
        !table.contains(" status 5 ") && table.contains(" status 6 "),
        "{table}"
    );
    assert!(
        table.ends_with("\n\n5 earlier lines; -n all shows all\n"),
        "{table}"
    );
    let table = redlock(&redis, &["history", "-n", "all"]).stdout;
    assert_eq!(table.lines().count(), 26, "{table}");
    assert_eq!(history(&redis, &[]).len(), 25);
}

/// Why runs ended without "a", the first one first.
fn reasons(redis: &Redis) -> Vec<String> {
    let all = history(redis, &["--skipped"]);
    let skipped = all.iter().filter(|item| item["end"] == "skipped");
    let why = |item: &Value| item["why"].as_str().unwrap().to_owned();
    skipped.map(why).collect()
}

#[test]
fn hundreds_of_waits_that_time_out_leave_at_most_64_kb() {
    let redis = Redis::start();
    let holder = Gated::start(&redis, &["a"]).ready();
    for _ in 0..600 {
        redlock(&redis, words!("run -q -w 1ms a -- pg_dump --format=custom")).assert_code(75);
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
    redlock(&redis, &["run", "a", "--", "true"]).assert_code(0);
    redlock(&redis, &["run", "--once-per", "1h", "a", "--", "true"]).assert_code(0);
    let holder = Gated::start(&redis, &["a"]).ready();
    redlock(&redis, &["run", "-qn", "a", "--", "true"]).assert_code(75);
    redlock(&redis, &["acquire", "-q", "-w", "10ms", "a"]).assert_code(75);
    let old = queued(&redis, &["run", "-q", "--supersede", "a", "--", "true"]);
    let new = queued(&redis, words!("run -q --supersede --seq 7 a -- true"));
    old.finish().assert_code(75);
    redlock(&redis, words!("run -q --supersede --seq 6 a -- true")).assert_code(75);
    let pid = holder.run.pid();
    holder.end();
    new.finish().assert_code(0);
    redlock(&redis, &["freeze", "-q", "--reason", "x", "a"]).assert_code(0);
    redlock(&redis, &["run", "-qn", "a", "--", "true"]).assert_code(75);
    let mut all = reasons(&redis);
    assert_eq!(all.pop().as_deref(), Some("frozen"));
    assert_eq!(
        all,
        ["recent", "busy", "timeout", "superseded", "superseded"]
    );
    let skipped = history(&redis, &["--skipped"]);
    let busy = skipped.iter().find(|item| item["why"] == "busy").unwrap();
    assert_eq!(
        (&busy["by"]["pid"], &busy["host"]),
        (&pid.into(), &host().into())
    );
    assert_eq!(busy["command"][0], "true");
    let recent = skipped.iter().find(|item| item["why"] == "recent").unwrap();
    assert_eq!(recent["by"]["host"], host());
    assert!(recent["success_ago_ms"].is_u64(), "{recent}");
    let timeout = skipped
        .iter()
        .find(|item| item["why"] == "timeout")
        .unwrap();
    assert!(timeout["waited_ms"].as_u64().unwrap() >= 10, "{timeout}");
    // Without the option they are counted.
    assert!(
        history(&redis, &[])
            .iter()
            .all(|item| item["end"] != "skipped")
    );
    let table = redlock(&redis, &["history", "a"]).stdout;
    assert!(
        table.ends_with("\n6 runs ended without the lock; --skipped shows them\n"),
        "{table}"
    );
    let table = redlock(&redis, &["history", "--skipped", "a"]).stdout;
    let from = format!(" ago on {} ", host());
    for part in [
        "  skipped: succeeded ",
        &from,
        "  gave up: held by ",
        "  gave up waiting: held by ",
        "  superseded by ",
        "  gave up: frozen by ",
    ] {
        assert!(table.contains(part), "{part}: {table}");
    }
}

#[test]
fn skipped_runs_never_push_out_the_holds_and_are_as_many_at_most() {
    let redis = Redis::start();
    redlock(
        &redis,
        &["run", "REDLOCK_HISTORY_SIZE=3", "a", "--", "true"],
    );
    for _ in 0..6 {
        let skip = words!("run REDLOCK_HISTORY_SIZE=3 --once-per 1h a -- true");
        redlock(&redis, skip).assert_code(0);
    }
    assert_eq!(redis.cli(&["LLEN", "{redlock:a}:skips"]), "3");
    assert_eq!(ends(&redis), ["status 0"]);
    let left: u64 = redis.cli(&["TTL", "{redlock:a}:skips"]).parse().unwrap();
    assert!((29 * 86_400..=30 * 86_400).contains(&left));
    let none = words!("run REDLOCK_HISTORY_SIZE=0 --once-per 1h a -- true");
    redlock(&redis, none).assert_code(0);
    assert_eq!(redis.cli(&["EXISTS", "{redlock:a}:skips"]), "0");
}

#[test]
fn times_are_local_with_their_zone_and_utc_in_json() {
    let redis = Redis::start();
    redlock(&redis, &["run", "a", "--", "true"]).assert_code(0);
    let since = history(&redis, &[])[0]["since"]
        .as_str()
        .unwrap()
        .to_owned();
    let expected = since[..19].replace('T', " ") + " UTC  ";
    let shown_in = |zone: &str, options: &[&str]| {
        let mut command = redis.redlock(&[&["history", "a"], options].concat());
        let shown = outcome(command.env("TZ", zone));
        shown.assert_code(0).stdout.clone()
    };
    let shown = |options: &[&str]| shown_in("XYZ-5:30", options);
    assert!(shown_in("UTC", &[]).contains(&expected), "{expected}");
    let date = format!("TZ=XYZ-5:30 date -d {since} '+%F %T XYZ'");
    let local = outcome(Command::new("sh").args(["-c", &date])).stdout;
    assert!(shown(&[]).contains(local.trim()), "{local}");
    assert!(shown(&["--json"]).contains(&since));
    assert!(shown(&["--svg", "-"]).contains("times in XYZ"));
}

#[test]
fn a_name_without_a_history_is_said_so_and_isnt_drawn() {
    let redis = Redis::start();
    assert_eq!(
        redlock(&redis, &["history"]).assert_code(0).stdout,
        "no lock has a history (kept for 30 days)\n"
    );
    assert_eq!(
        redlock(&redis, &["history", "x"]).assert_code(0).stdout,
        "no history of \"x\" (kept for 30 days)\n"
    );
    for name in ["f", "e-10", "e-9", "c", "b", "a"] {
        redlock(&redis, &["run", name, "--", "true"]).assert_code(0);
    }
    for name in ["x", "x*"] {
        let said = format!("no history of \"{name}\" (kept for 30 days)");
        let shown = redlock(&redis, &["history", name]);
        assert_eq!(shown.assert_code(0).stdout, format!("{said}\n"));
        let both = redlock(&redis, &["history", name, "a"]).stdout;
        assert!(both.starts_with("NAME ") && both.ends_with(&format!("\n\n{said}\n")));
        let drawn = redlock(&redis, &["history", name, "--svg", "-"]);
        drawn
            .assert_code(64)
            .assert_says(&format!("nothing to draw: {said}"));
        assert_eq!(drawn.stdout, "");
        assert_eq!(redlock(&redis, &["history", name, "--json"]).stdout, "[]\n");
    }
    assert_eq!(
        redlock(&redis, &["history", "--names-only", "e*"]).stdout,
        "e-9\ne-10\n"
    );
}

#[test]
fn charts_show_who_waits_now() {
    let redis = Redis::start();
    let holder = Gated::start(&redis, &["a"]).ready();
    let waiter = queued(&redis, &["run", "--reason", "second", "a", "--", "true"]);
    let picture = redlock(&redis, &["history", "--svg", "-", "a"]).stdout;
    assert!(picture.contains("second)\nwaiting since "), "{picture}");
    holder.end();
    waiter.finish().assert_code(0);
}

/// Fills a server with names, each with so many holds of long commands, one a second.
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
    // More than one listing may weigh, and more than is kept of an array.
    fill(&redis, "100", "62");
    let shown = |options: &[&str]| {
        let shown = redlock(&redis, &[&["history"], options].concat());
        shown.assert_code(0).assert_silent().stdout.clone()
    };
    let table = shown(&[]);
    assert!(
        table.ends_with("\n\n6180 earlier lines; -n all shows all\n"),
        "{table}"
    );
    let last: Vec<&str> = table.lines().skip(1).take(20).collect();
    for (row, name) in last.iter().zip(81..) {
        assert!(row.starts_with(&format!("job-{name} ")), "{table}");
    }
    let all: Vec<Value> = serde_json::from_str(&shown(&["--json"])).unwrap();
    let ids: HashSet<&str> = all.iter().filter_map(|hold| hold["id"].as_str()).collect();
    assert_eq!((all.len(), ids.len()), (6200, 6200));
    let last: Vec<Value> = serde_json::from_str(&shown(&["--json", "-n", "20"])).unwrap();
    assert_eq!(last.len(), 20);
    assert_eq!(
        (&last[0]["name"], &last[19]["name"]),
        (&"job-81".into(), &"job-100".into())
    );
    let picture = shown(&["--svg", "-", "-n", "20"]);
    assert!(picture.contains("job-81") && !picture.contains("job-80"));
}

#[test]
fn any_number_of_names_is_listed() {
    let redis = Redis::start();
    // More than one listing may weigh, with many of a score.
    let script = "for name = 1, 50000 do
        local text = 'job-' .. name .. string.rep('x', 150)
        redis.call('ZADD', '{redlock:}:index', math.floor(name / 3000), text)
    end";
    redis.cli(&["EVAL", script, "0"]);
    let listed = redlock(&redis, &["history", "--names-only", "*77*"]);
    let names: Vec<&str> = listed.assert_code(0).stdout.lines().collect();
    let expected = (1..=50_000).filter(|name| name.to_string().contains("77"));
    let expected: Vec<String> = expected
        .map(|name| format!("job-{name}{}", "x".repeat(150)))
        .collect();
    assert_eq!(names, expected);
}
