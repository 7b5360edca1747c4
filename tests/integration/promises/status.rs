//! `redlock status`: the holders and waiters of each lock, for people and for programs.

use std::ffi::OsStr;
use std::fmt::Write as _;
use std::io::Write as _;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt;

use nix::sys::signal::Signal;
use serde_json::{Value, json};

use crate::support::{Gated, Redis, Running, assert_nothing_left, outcome, queued, wait_until};

fn held(redis: &Redis, options: &[&str], name: &str) -> Running {
    let arguments = [
        &["run"],
        options,
        &[name, "--", "sh", "-c", "echo ready; exec sleep 60"],
    ]
    .concat();
    let mut run = Running::start(redis.redlock(&arguments).env("USER", "ci"));
    run.expect_line("ready");
    run
}

fn status(redis: &Redis, arguments: &[&str]) -> String {
    let end = outcome(&mut redis.redlock(&[&["status"], arguments].concat()));
    end.assert_code(0).assert_silent();
    end.stdout
}

fn as_json(redis: &Redis, arguments: &[&str]) -> Value {
    serde_json::from_str(&status(redis, &[&["--json"], arguments].concat())).unwrap()
}

fn host() -> String {
    nix::unistd::gethostname().unwrap().into_string().unwrap()
}

#[test]
fn the_table_shows_holders_for_how_long_and_why() {
    let redis = Redis::start();
    let run = held(&redis, &["--reason", "release 7"], "deploy");
    let table = status(&redis, &[]);
    let (heading, row) = table.trim_end().split_once('\n').unwrap();
    let words: Vec<&str> = heading
        .split("  ")
        .filter(|word| !word.is_empty())
        .map(str::trim)
        .collect();
    assert_eq!(
        words,
        ["NAME", "MODE", "WHO", "PID", "AGE", "ID", "COMMAND"]
    );
    for part in [
        "deploy",
        &format!("ci@{}", host()),
        &run.pid().to_string(),
        "sh -c 'echo ready; exec sleep 60'",
        "(release 7)",
    ] {
        assert!(row.contains(part), "no {part:?} in {table}");
    }
}

#[test]
fn the_json_is_that_of_the_manual() {
    let redis = Redis::start();
    let run = held(&redis, &["--reason", "release 7", "--ttl", "1m"], "deploy");
    let mut locks = as_json(&redis, &[]);
    let lock = &mut locks[0];
    for ttl in [lock["ttl_ms"].take(), lock["holders"][0]["ttl_ms"].take()] {
        assert!((50_000..=60_000).contains(&ttl.as_u64().unwrap()), "{ttl}");
    }
    let fence = lock["fence"].take().as_u64().unwrap();
    assert!(fence > 1_700_000_000_000_000);
    let holder = &mut lock["holders"][0];
    assert_eq!(holder["id"].take().as_str().unwrap().len(), 12);
    let (since, renewed) = (holder["since"].take(), holder["renewed_at"].take());
    assert!(
        renewed.as_str() >= since.as_str()
            && renewed
                .as_str()
                .is_some_and(|at| at.len() == "2026-11-20T14:02:11.000Z".len()),
        "{renewed}"
    );
    assert!(
        since
            .as_str()
            .is_some_and(|since| since.starts_with("20") && since.ends_with('Z')),
        "{since}"
    );
    assert_eq!(
        locks,
        json!([{
            "name": "deploy", "frozen": null, "mode": "exclusive", "held": true, "ttl_ms": null,
            "fence": null, "slots": null, "usual_ms": null, "last_success": null,
            "ended": {
                "success": 0, "failure": 0, "lost": 0, "forced": 0, "stopped": 0, "released": 0,
                "skipped": 0,
            },
            "holders": [{
                "id": null, "host": host(), "user": "ci", "pid": run.pid(),
                "command": ["sh", "-c", "echo ready; exec sleep 60"], "since": null,
                "renewed_at": null, "ttl_ms": null,
                "reason": "release 7", "url": null, "kept": false, "guards": [],
                "foreign": false,
            }],
            "waiters": [],
        }])
    );
}

#[test]
fn in_json_no_lease_was_renewed_before_its_lock_was_held() {
    let redis = Redis::start();
    let now = redis.cli(&["TIME"]);
    let since = format!("{}999", now.lines().next().unwrap());
    // The time that is left says that the lease began more than a second before.
    redis.cli(&["SET", "redlock:a", "token", "PX", "58000"]);
    let who = r#"{"host":"h","ttl":60000,"instance":"i"}"#;
    let entry = format!("1 {since} 1 1 0 held {who}");
    redis.cli(&["HSET", "{redlock:a}:meta", "token", &entry]);
    wait_until("the clock has passed that moment", || {
        redis.cli(&["TIME"]).lines().next() != now.lines().next()
    });
    let holder = &as_json(&redis, &["a"])[0]["holders"][0];
    assert!(holder["since"].is_string(), "{holder}");
    assert_eq!(holder["renewed_at"], holder["since"]);
}

#[test]
fn a_free_lock_is_shown_when_asked_for_by_name() {
    let redis = Redis::start();
    assert_eq!(status(&redis, &[]), "no lock is held\n");
    let never = "never used, or not for 60 days\n";
    assert_eq!(status(&redis, &["deploy"]), format!("deploy: {never}"));
    let lock = &as_json(&redis, &["deploy"])[0];
    assert_eq!(
        (&lock["held"], &lock["mode"], &lock["holders"]),
        (&json!(false), &Value::Null, &json!([]))
    );
    assert_eq!(as_json(&redis, &[]), json!([]));
}

#[test]
fn other_clients_locks_and_keys_are_shown_for_what_they_are() {
    let redis = Redis::start();
    redis.cli(&["SET", "redlock:foreign", "secret-token", "PX", "60000"]);
    redis.cli(&["SET", "redlock:endless", "secret-token"]);
    redis.cli(&["RPUSH", "redlock:queue", "job"]);
    let names = ["foreign", "endless", "queue"];
    let table = status(&redis, &names);
    for part in ["another client", "no expiry", "not a lock: a list"] {
        assert!(table.contains(part), "no {part:?} in {table}");
    }
    let locks = as_json(&redis, &names);
    assert_eq!(locks[0]["holders"][0]["foreign"], json!(true));
    assert_eq!(locks[1]["ttl_ms"], Value::Null);
    assert_eq!(
        (&locks[2]["held"], &locks[2]["not_a_lock"]),
        (&json!(false), &json!("list"))
    );
    assert!(!format!("{table}{locks}").contains("secret-token"));
}

#[test]
fn no_token_is_ever_shown() {
    let redis = Redis::start();
    let _run = held(&redis, &[], "deploy");
    let token = redis.cli(&["GET", "redlock:deploy"]);
    let random = token.split(':').next().unwrap();
    for arguments in [&["-v"][..], &["--json"], &["deploy"], &["--names-only"]] {
        assert!(!status(&redis, arguments).contains(random));
    }
    let refused = outcome(&mut redis.redlock(&["release", "deploy"]));
    assert!(!format!("{refused:?}").contains(random));
}

#[test]
fn text_of_other_clients_cannot_drive_the_terminal() {
    let redis = Redis::start();
    let evil = "x\u{1b}[2J\u{7}\r\n\u{9b}31m\u{202e}";
    let mut command = redis.redlock(words!(
        "run --reason {} a -- sh -c",
        evil,
        "echo ready; exec sleep 60",
        evil
    ));
    command
        .arg(OsStr::from_bytes(b"not \xff UTF-8"))
        .env("USER", evil);
    let mut run = Running::start(&mut command);
    run.expect_line("ready");
    let busy = outcome(&mut redis.redlock(&["run", "-n", "a", "--", "true"]));
    let json = status(&redis, &["--json"]);
    assert_eq!(
        serde_json::from_str::<Value>(&json).unwrap()[0]["holders"][0]["reason"],
        evil
    );
    for text in [status(&redis, &[]), busy.stderr, json] {
        let drives = |c: char| c.is_control() && c != '\n' || c == '\u{202e}';
        assert!(!text.contains(drives), "{text:?}");
    }
    assert_eq!(status(&redis, &[]).lines().count(), 2);
}

#[test]
fn arguments_that_are_not_utf_8_reach_the_command_unchanged() {
    let redis = Redis::start();
    let mut command = redis.redlock(words!(
        "run a -- sh -c {} sh",
        r#"printf %s "$1" | od -An -tx1"#
    ));
    let end = outcome(command.arg(OsStr::from_bytes(b"\xff\xfe")));
    assert_eq!(end.stdout.trim(), "ff fe", "{end:?}");
}

#[test]
fn a_crashed_holder_leaves_the_list_with_its_lease() {
    let redis = Redis::start();
    let run = held(&redis, &["--ttl", "6s"], "crashed");
    run.signal(Signal::SIGKILL);
    assert!(status(&redis, &["--names-only"]).contains("crashed"));
    wait_until("the lease is over", || {
        redis.cli(&["EXISTS", "redlock:crashed"]) == "0"
    });
    assert_eq!(status(&redis, &[]), "no lock is held\n");
    // What the history knows about it expires, at the latest after 60 days; or with the next
    // run, which writes it down.
    for key in redis.cli(&["KEYS", "*"]).lines() {
        let left: i64 = redis.cli(&["PTTL", key]).parse().unwrap();
        let twice = key.ends_with(":index") || key.ends_with(":state");
        let longest = if twice { 60 } else { 31 } * 24 * 3600 * 1000;
        assert!((1..=longest).contains(&left), "{key}: {left}");
    }
    outcome(&mut redis.redlock(&["run", "crashed", "--", "true"])).assert_code(0);
    assert_nothing_left(&redis);
}

#[test]
fn a_thousand_locks_are_listed_by_name_without_walking_the_keyspace() {
    let redis = Redis::start();
    let script = crate::support::lua::source("acquire");
    let mut request = String::new();
    for number in 0..1000 {
        let name = format!("lock-{number:04}");
        let lock = format!("redlock:{name}");
        let siblings = ["state", "meta", "holders", "queue", "waiters", "history"];
        let keys = siblings.map(|sibling| format!("{{{lock}}}:{sibling}"));
        let channels = format!("{{{lock}}}:");
        let slots = format!("{{{lock}}}:slots");
        let notices = format!("{{{lock}}}:notices");
        let exempt = format!("{{{lock}}}:exempt");
        let mut words = vec!["EVAL", script, "11", &lock];
        words.extend(keys.iter().map(String::as_str));
        words.extend([
            "{redlock:}:index",
            &slots,
            &notices,
            &exempt,
            &name,
            &channels,
            "200",
        ]);
        words.extend(["token", "600000", "1", "{}", "", "", "0", "", "0", "0"]);
        write!(request, "*{}\r\n", words.len()).unwrap();
        for word in words {
            write!(request, "${}\r\n{word}\r\n", word.len()).unwrap();
        }
    }
    let mut stream = UnixStream::connect(redis.socket()).unwrap();
    stream.write_all(request.as_bytes()).unwrap();
    wait_until("all are held", || {
        redis.cli(&["ZCARD", "{redlock:}:index"]) == "1000"
    });
    let names = status(&redis, &["--names-only"]);
    let names: Vec<&str> = names.lines().collect();
    assert!(
        names.len() == 1000 && names.is_sorted(),
        "{} names",
        names.len()
    );
    assert_eq!(status(&redis, &[]).lines().count(), 1001);
    assert_eq!(redis.calls("scan"), 0);
}

#[test]
fn ten_thousand_locks_are_listed() {
    let redis = Redis::start();
    let who = r#"{"host":"ci-7.example.com","user":"deploy","pid":27523,"command":["./deploy.sh","--to","production"],"ttl":600000,"instance":"5b0c2a3e-8d4f-4a6b-9c1d-2e3f4a5b6c7d:4026531836:27523:123456789:27000:0:4026531837:4026531834"}"#;
    let script = "
        local now = redis.call('TIME')[1] * 1000
        for n = 1, 10000 do
            local token = string.format('%032d:ci-7:27523', n)
            redis.call('SET', 'redlock:lock-' .. n, token, 'PX', 600000)
            redis.call('HSET', '{redlock:lock-' .. n .. '}:meta', token, n .. ' ' .. now .. ' 1 1 0 held ' .. ARGV[1])
            redis.call('ZADD', '{redlock:}:index', now + 600000, 'lock-' .. n)
        end";
    redis.cli(&["EVAL", script, "0", who]);
    let table = status(&redis, &[]);
    assert_eq!(table.lines().count(), 10_001);
    let list = as_json(&redis, &[]);
    let locks = list.as_array().unwrap();
    assert_eq!(locks.len(), 10_000);
    assert!(locks.iter().all(|lock| lock["holders"][0]["pid"] == 27_523));
}

#[test]
fn watching_shows_it_again_until_a_signal_ends_it() {
    let redis = Redis::start();
    let mut watch = Running::start(&mut redis.redlock(words!("status --watch=20ms")));
    watch.expect_line("no lock is held");
    watch.expect_line("no lock is held");
    let _run = held(&redis, &[], "deploy");
    wait_until("it shows the lock", || watch.line().starts_with("deploy"));
    watch.signal(Signal::SIGINT);
    let end = watch.finish();
    assert_eq!(end.status.signal(), Some(Signal::SIGINT as i32), "{end:?}");
    end.assert_silent();
    for (arguments, line) in [
        (
            "--watch=1M",
            "M would be a month: write 1m for a minute or 30d",
        ),
        ("--watch 500ms", "put --watch=500ms"),
    ] {
        let words: Vec<&str> = ["status"].into_iter().chain(arguments.split(' ')).collect();
        outcome(&mut redis.redlock(&words))
            .assert_code(64)
            .assert_says(line);
    }
}

/// The last events that `status nightly` shows, without their times, and the line after them.
fn events(redis: &Redis) -> (Vec<String>, String) {
    let text = status(redis, &["nightly"]);
    let lines = text
        .lines()
        .skip_while(|line| !line.starts_with("recently ("));
    let mut lines = lines.skip(1).peekable();
    let mut events = Vec::new();
    while let Some(line) = lines.next_if(|line| line.starts_with("  ")) {
        let (at, what) = line.trim_start().split_once("  ").unwrap();
        assert_eq!(at.as_bytes()[at.len() - 3], b':', "{text}");
        events.push(what.to_owned());
    }
    (events, lines.next().unwrap_or_default().to_owned())
}

#[test]
fn a_lock_by_its_name_ends_with_its_last_five_events_and_the_last_success() {
    let redis = Redis::start();
    let redlock = |words: &[&str]| outcome(redis.redlock(words).env("USER", "ann"));
    for (script, code) in [("true", 0), ("true", 0), ("exit 3", 3)] {
        redlock(words!("run nightly -c", script)).assert_code(code);
    }
    let holder = held(&redis, &[], "nightly");
    for _ in 0..2 {
        redlock(words!("run -n nightly -- true")).assert_code(75);
    }
    wait_until("it tracks its lock", || redis.trackers() > 0);
    redlock(words!("stop nightly --reason hung")).assert_code(0);
    drop(holder);
    redlock(words!("freeze nightly --reason audit")).assert_code(0);
    let host = host();
    let (shown, last) = events(&redis);
    let parts = [
        format!("ann@{host} froze it: audit"),
        format!("ann@{host} stopped ci@{host} after "),
        format!("ann@{host} gave up: held by ci@{host} (pid "),
        format!("ann@{host} ended after "),
        format!("ann@{host} ended after "),
    ];
    assert_eq!(shown.len(), parts.len(), "{shown:?}");
    for (event, part) in shown.iter().zip(&parts) {
        assert!(event.starts_with(part), "{event} isn't {part}");
    }
    for (event, end) in shown[1..]
        .iter()
        .zip([": hung", ") (and 1 more)", ": status 3", ": ok"])
    {
        assert!(event.ends_with(end), "{event} doesn't end with {end}");
    }
    assert!(last.starts_with("last success: "), "{last}");
    redlock(words!("thaw nightly")).assert_code(0);
    let (shown, _) = events(&redis);
    assert!(shown[0].starts_with("it was frozen for "), "{shown:?}");
}

#[test]
fn a_reader_that_goes_away_is_no_error() {
    let redis = Redis::start();
    let end = outcome(&mut redis.run("a", "redlock status --watch=1ms | head -n 2"));
    end.assert_code(0).assert_silent();
}

/// Holds of this lock that succeed, one after the other.
fn history_of(redis: &Redis, name: &str, count: usize) {
    for _ in 0..count {
        outcome(&mut redis.redlock(&["run", name, "--", "sleep", "0.2"])).assert_code(0);
    }
}

#[test]
fn names_are_sorted_as_people_count() {
    let redis = Redis::start();
    let runs = ["lock-10", "lock-2", "a"].map(|name| held(&redis, &[], name));
    assert_eq!(status(&redis, &["--names-only"]), "a\nlock-2\nlock-10\n");
    let table = status(&redis, &[]);
    let names: Vec<&str> = table
        .lines()
        .filter_map(|line| line.split(' ').next())
        .collect();
    assert_eq!(names, ["NAME", "a", "lock-2", "lock-10"]);
    drop(runs);
}

#[test]
fn a_pattern_shows_the_locks_in_use_that_match() {
    let redis = Redis::start();
    let runs = ["deploy-a", "deploy-b", "nightly"].map(|name| held(&redis, &[], name));
    outcome(&mut redis.redlock(&["run", "deploy-over", "--", "true"])).assert_code(0);
    let names = |arguments: &[&str]| status(&redis, &[&["--names-only"], arguments].concat());
    assert_eq!(names(&["deploy-*"]), "deploy-a\ndeploy-b\n");
    assert_eq!(names(&["*-?"]), "deploy-a\ndeploy-b\n");
    assert_eq!(names(&["*-a", "free"]), "deploy-a\nfree\n");
    assert!(status(&redis, &["deploy-*"]).starts_with("NAME"));
    assert_eq!(as_json(&redis, &["n*y"])[0]["name"], "nightly");
    assert_eq!(
        status(&redis, &["x*", "y?"]),
        "no lock in use matches \"x*\" or \"y?\"\n"
    );
    assert_eq!(as_json(&redis, &["x*"]), json!([]));
    drop(runs);
}

#[test]
fn a_command_for_one_lock_takes_no_pattern() {
    let redis = Redis::start();
    for name in ["deploy-*", "deploy-?"] {
        for arguments in [
            &["run", name, "--", "true"][..],
            &["run", "a", name, "--", "true"],
            &["acquire", name, "--format", "token"],
            &["guard", name, "--", "true"],
            &["freeze", "--reason", "x", name],
            &["thaw", name],
            &["release", name],
            &["release", "--force", name],
            &["stop", name],
        ] {
            let end = outcome(&mut redis.redlock(arguments));
            let status = format!("`redlock status '{name}'` lists the locks that match");
            end.assert_code(64)
                .assert_says("can't contain * or ?")
                .assert_says(&status);
        }
    }
    assert!(redis.keys().is_empty());
}

#[test]
fn a_lock_by_its_name_is_shown_on_one_screen_and_in_a_pipe_nothing_is_cut() {
    let redis = Redis::start();
    let long = "x".repeat(300);
    let mut command = redis.redlock(&["run", "--reason", &long, "--ttl", "1m", "a", "--"]);
    command.args(["sh", "-c", "echo ready; exec sleep 60", &long]);
    let link = "https://ci.example.com/jobs/4711";
    let mut run = Running::start(
        command
            .env("USER", "ci")
            .env("BUILD_URL", link)
            .env("JENKINS_URL", "x"),
    );
    run.expect_line("ready");
    let waiter = queued(&redis, &["run", "a", "--", "true"]);
    let text = status(&redis, &["a", "free"]);
    let id = as_json(&redis, &["a"])[0]["holders"][0]["id"]
        .as_str()
        .unwrap()
        .to_owned();
    for line in [
        &format!("command:       sh -c 'echo ready; exec sleep 60' {long}  ({long})"),
        &format!("  {link}"),
        &format!("to stop it:    redlock stop --id {id} a"),
        &format!("to free it:    redlock release --force --id {id} a"),
        "to freeze it:  redlock freeze --reason TEXT a",
        "free: never used, or not for 60 days",
    ] {
        assert!(
            text.lines().any(|shown| shown == line),
            "no {line:?} in {text}"
        );
    }
    for part in [
        "a: held, exclusive; 1 waiting; last fence ",
        &format!("holder:        ci@{} (pid {}) for ", host(), run.pid()),
        "lease:         ",
        " left of 1m, renewed ",
        "waiting #1:    ",
    ] {
        assert!(text.contains(part), "no {part:?} in {text}");
    }
    // What it says can be typed.
    let free = text
        .lines()
        .find_map(|line| line.strip_prefix("to free it:    redlock "));
    let words: Vec<&str> = free.unwrap().split(' ').collect();
    outcome(&mut redis.redlock(&words)).assert_code(0);
    drop((run, waiter));
}

#[test]
fn a_holder_that_does_not_renew_is_seen_and_a_lock_that_no_process_renews_is_no_alarm() {
    let redis = Redis::start();
    let run = held(&redis, &["--ttl", "12s"], "stuck");
    outcome(&mut redis.redlock(&["acquire", "script"])).assert_code(0);
    assert!(!status(&redis, &[]).contains("overdue"));
    run.suspend();
    wait_until("it is seen", || {
        status(&redis, &["s*"]).contains("s overdue  ")
    });
    let detail = status(&redis, &["stuck", "script"]);
    let lines: Vec<&str> = detail.lines().collect();
    let seen = |start: &str, end: &str| {
        let is_it = |line: &&str| line.starts_with(start) && line.contains(end);
        assert!(lines.iter().any(is_it), "no {start:?} {end:?} in {detail}");
    };
    seen("lease:         renewal ", "s overdue: its host may be down");
    seen("lease:         not renewed, expires in ", "s");
    let row = status(&redis, &["scr*"]);
    assert!(
        row.contains("(expires in ") && !row.contains("overdue"),
        "{row}"
    );
    let json = as_json(&redis, &["stuck", "script"]);
    assert!(json[0]["holders"][0]["renewed_at"].is_string(), "{json}");
    assert_eq!(json[1]["holders"][0]["renewed_at"], Value::Null);
    run.resume();
}

#[test]
fn a_grant_that_is_not_confirmed_and_a_lock_that_is_kept_raise_no_alarm() {
    let redis = Redis::start();
    outcome(&mut redis.redlock(words!("run --hold-at-least 1m kept -- true"))).assert_code(0);
    let holder = Gated::start(&redis, &["a"]).ready();
    let waiter = queued(&redis, &["run", "--ttl", "1m", "a", "--", "sleep", "60"]);
    waiter.suspend();
    holder.end();
    // The grant is over in a moment, and a busy machine takes longer.
    redis.cli(&["PEXPIRE", "redlock:a", "30000"]);
    let rows = status(&redis, &["*"]);
    assert!(
        rows.lines().count() == 3 && !rows.contains("overdue"),
        "{rows}"
    );
    let json = as_json(&redis, &["kept"]);
    assert_eq!(json[0]["holders"][0]["renewed_at"], Value::Null, "{json}");
    waiter.resume();
}

#[test]
fn a_waiter_that_was_handed_the_lock_is_no_holder_before_it_confirms_that() {
    let redis = Redis::start();
    let holder = Gated::start(&redis, &["a"]).ready();
    let waiter = queued(&redis, &["run", "a", "--", "sleep", "60"]);
    let _next = queued(&redis, &["run", "a", "--", "true"]);
    waiter.suspend();
    holder.end();
    // The grant is over in a moment, and a busy machine takes longer.
    redis.cli(&["PEXPIRE", "redlock:a", "30000"]);
    let json = as_json(&redis, &["a"]);
    let lock = &json[0];
    assert_eq!(lock["holders"], json!([]), "{json}");
    // Nor is it free.
    assert_eq!(lock["held"], true, "{json}");
    let granted = |waiter: &Value| {
        let field = |name: &str| waiter[name].clone();
        [field("granted"), field("position")]
    };
    let first = &lock["waiters"][0];
    assert_eq!(first["pid"], waiter.pid());
    assert_eq!(granted(first), [json!(true), json!(0)]);
    assert_eq!(granted(&lock["waiters"][1]), [json!(false), json!(1)]);
    let rows = status(&redis, &[]);
    let row = rows.lines().nth(1).unwrap();
    assert!(
        row.contains("granted") && row.contains("not confirmed yet"),
        "{rows}"
    );
    let detail = status(&redis, &["a"]);
    assert!(
        detail.contains("granted, not confirmed yet") && !detail.contains("holder:"),
        "{detail}"
    );
    waiter.resume();
    wait_until("it is a holder", || {
        as_json(&redis, &["a"])[0]["holders"][0]["pid"] == waiter.pid()
    });
}

#[test]
fn how_long_a_hold_usually_lasts_is_shown_from_three_successes_on() {
    let redis = Redis::start();
    history_of(&redis, "a", 2);
    outcome(&mut redis.redlock(&["run", "a", "--", "false"])).assert_code(1);
    let usual = |name: &str| as_json(&redis, &[name])[0]["usual_ms"].clone();
    {
        let run = held(&redis, &[], "a");
        assert_eq!(usual("a"), Value::Null);
        assert!(!status(&redis, &[]).contains("usually"));
        run.signal(Signal::SIGTERM);
        run.finish().assert_code(143);
    }
    history_of(&redis, "a", 1);
    let _run = held(&redis, &[], "a");
    let usually = usual("a").as_u64().unwrap();
    assert!((200..60_000).contains(&usually), "{usually}");
    assert!(status(&redis, &[]).contains(" (usually "));
    let detail = status(&redis, &["a"]);
    let expected = ["; usually done in ", "; over its usual "];
    assert!(expected.iter().any(|it| detail.contains(it)), "{detail}");
    // A history of another type is no reason for an error.
    redis.cli(&["DEL", "{redlock:a}:history"]);
    redis.cli(&["SET", "{redlock:a}:history", "x"]);
    assert_eq!(usual("a"), Value::Null);
}

#[test]
fn wide_and_combining_characters_stand_in_columns() {
    let redis = Redis::start();
    let runs = ["東京", "e\u{301}e\u{301}", "🚀", "plain"].map(|name| held(&redis, &[], name));
    let table = status(&redis, &[]);
    for (name, spaces) in [
        ("東京", 3),
        ("e\u{301}e\u{301}", 5),
        ("🚀", 5),
        ("plain", 2),
    ] {
        let row = format!("{name}{:spaces$}exclusive", "");
        assert!(
            table.lines().any(|line| line.starts_with(&row)),
            "no {row:?} in {table}"
        );
    }
    drop(runs);
}
