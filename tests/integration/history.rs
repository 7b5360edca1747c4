//! The history: the holders of a lock, how long each held it, and how that ended.

use std::process::Command;

use nix::sys::signal::Signal;
use serde_json::Value;

use crate::proxy::{Action, Proxy, load_scripts};
use crate::support::{
    Gated, Outcome, Redis, Running, assert_nothing_left, host, outcome, queued, wait_until,
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
    redlock(
        &redis,
        &["run", "-q", "-t", "50ms", "a", "--", "sleep", "60"],
    );
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
    assert!(
        table.contains("a: 8 runs, 6 failed; waited p50 0s"),
        "{table}"
    );
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
        let mut holder = Gated::start(&redis, &[mode, &["--ttl", "1s", "a"]].concat()).ready();
        holder.run.kill();
        wait_until("its lease is over", || ends(&redis) == ["expired"]);
        redlock(&redis, &["run", "a", "--", "true"]).assert_code(0);
        assert_eq!(ends(&redis), ["expired", "status 0"]);
        let ran = history(&redis, &[])[0]["ran_ms"].as_u64().unwrap();
        assert!((500..2500).contains(&ran), "{ran}");
        assert_nothing_left(&redis);
    }
}

#[test]
fn what_never_ran_is_no_run() {
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
    let options = ["run", "--history-size", "3", "a", "--", "true"];
    redlock(&redis, &options);
    let before = scripts();
    for _ in 0..5 {
        redlock(&redis, &options);
    }
    assert_eq!(scripts() - before, 10);
    assert_eq!(redis.cli(&["LLEN", "{redlock:a}:history"]), "3");
    let mut more = redis.redlock(&["run", "a", "--", "true"]);
    outcome(more.env("REDLOCK_HISTORY", "2"));
    assert_eq!(redis.cli(&["LLEN", "{redlock:a}:history"]), "2");
    assert_eq!(history(&redis, &["--history-size", "1"]).len(), 1);
    let left: u64 = redis.cli(&["TTL", "{redlock:a}:history"]).parse().unwrap();
    assert!((29 * 86_400..=30 * 86_400).contains(&left));
    let mut bad = redis.redlock(&["run", "a", "--", "true"]);
    outcome(bad.env("REDLOCK_HISTORY", "10001")).assert_code(78);
}

#[test]
fn the_last_ones_and_those_since_may_be_asked_for() {
    let redis = Redis::start();
    for status in ["1", "2", "3"] {
        redlock(
            &redis,
            &["run", "a", "--", "sh", "-c", &format!("exit {status}")],
        );
    }
    redlock(&redis, &["run", "b", "--", "true"]);
    let last = history(&redis, &["-n", "2"]);
    assert_eq!(
        last.iter().map(|hold| &hold["status"]).collect::<Vec<_>>(),
        [2, 3]
    );
    assert_eq!(history(&redis, &["--since", "1h"]).len(), 3);
    assert_eq!(history(&redis, &["--since", "0s"]).len(), 0);
    let all = redlock(&redis, &["history"]).stdout;
    assert!(
        all.contains("\na: 3 runs, 3 failed") && all.contains("\nb: 1 run, 0 failed"),
        "{all}"
    );
    assert_eq!(
        redlock(&redis, &["history", "none"]).stdout,
        "nothing is remembered\n"
    );
    assert_eq!(
        redlock(&redis, &["history", "none", "--json"]).stdout,
        "[]\n"
    );
}

#[test]
fn following_shows_each_hold_when_it_ends() {
    let redis = Redis::start();
    redlock(&redis, &["run", "a", "--", "true"]);
    let mut follow = Running::start(&mut redis.redlock(&["history", "--follow", "a"]));
    assert!(follow.line().starts_with("STARTED"));
    assert!(follow.line().contains(" ok "));
    redlock(&redis, &["run", "a", "--", "false"]);
    assert!(follow.line().contains(" status 1 "));
    let mut json = Running::start(&mut redis.redlock(&["history", "--follow", "--json"]));
    for end in [0, 1] {
        let hold: Value = serde_json::from_str(&json.line()).unwrap();
        assert_eq!(hold["status"], end);
    }
    json.signal(Signal::SIGINT);
    json.finish().assert_code(0);
    follow.signal(Signal::SIGINT);
    follow.finish().assert_code(0).assert_silent();
}

#[test]
fn the_timeline_has_a_row_a_host_and_fits_the_terminal() {
    let redis = Redis::start();
    redlock(&redis, &["run", "a", "--", "false"]);
    let chart = redlock(&redis, &["history", "--timeline", "a"]).stdout;
    assert!(chart.starts_with(&host()), "{chart}");
    assert!(
        chart.contains('✗') && chart.contains("ended badly"),
        "{chart}"
    );
    assert!(
        chart.lines().take(3).all(|line| line.chars().count() <= 80),
        "{chart}"
    );
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
    let run = ["run", "--history-size", "0", "a", "--", "true"];
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
    let run = [
        "run",
        "--url",
        &url,
        "--history-size",
        "0",
        "a",
        "--",
        "true",
    ];
    redlock(&redis, &run).assert_code(0).assert_silent();
    let sent = proxy.seen().into_iter().filter(|name| name == "release");
    assert_eq!(sent.count(), 2);
}

#[test]
fn patterns_pick_locks_and_numbers_in_names_are_ordered_by_value() {
    let redis = Redis::start();
    for name in ["deploy-10", "deploy-2", "deploy-2b", "nightly"] {
        redlock(&redis, &["run", name, "--", "true"]).assert_code(0);
    }
    let summed = |names: &[&str]| {
        let text = redlock(&redis, &[&["history"], names].concat()).stdout;
        let known = ["deploy-10", "deploy-2", "deploy-2b", "nightly"];
        let lines = text.lines().rev().take_while(|line| !line.is_empty());
        let first = lines.map(|line| line.split([' ', ':']).next().unwrap().to_owned());
        let mut names: Vec<String> = first
            .filter(|name| known.contains(&name.as_str()))
            .collect();
        names.reverse();
        names
    };
    assert_eq!(
        summed(&[]),
        ["deploy-2", "deploy-2b", "deploy-10", "nightly"]
    );
    assert_eq!(summed(&["deploy-?"]), ["deploy-2"]);
    assert_eq!(
        summed(&["*-10", "deploy-2*"]),
        ["deploy-2", "deploy-2b", "deploy-10"]
    );
    assert_eq!(
        summed(&["night*", "deploy-10", "*1?"]),
        ["deploy-10", "nightly"]
    );
}
