//! Monitoring without a person: `status --older-than` for cron, and `status --prometheus`, whose file is whole whatever fails.
//! The alerts and the dashboard of docs/monitoring use only metrics of that file.
//!
//! Without promtool (`scripts/setup test` installs it), nothing parses the metrics and the alerts. Grafana never reads the
//! dashboard here.

use std::collections::BTreeSet;

use std::io::{Seek, Write};

use std::path::{Path, PathBuf};

use serde_json::json;

use crate::generated::root;
use crate::support::prelude::*;
use crate::support::pty::Terminal;

/// Runs `redlock status` with these words. Asserts that it prints no message.
fn status(redis: &Redis, words: &str) -> Outcome {
    let end = ends(redis, &format!("status {words}"));
    end.assert_silent();
    end
}

/// Returns the metrics of a server; promtool must be able to read them.
#[track_caller]
fn metrics(redis: &Redis) -> String {
    let end = status(redis, "--prometheus -");
    assert_reads(&end.assert_code(0).stdout);
    end.stdout
}

/// Returns the lines of the metrics with this start.
fn lines<'a>(metrics: &'a str, start: &str) -> Vec<&'a str> {
    let lines = metrics.lines().filter(|line| !line.starts_with('#'));
    lines.filter(|line| line.starts_with(start)).collect()
}

/// Returns the single value of a lock's metric.
#[track_caller]
fn value<'a>(metrics: &'a str, metric: &str, lock: &str) -> &'a str {
    let start = format!("{metric}{{lock=\"{lock}\"}} ");
    let [line] = lines(metrics, &start)[..] else {
        panic!("{start} {metrics}");
    };
    &line[start.len()..]
}

/// Like `value`, in seconds.
#[track_caller]
fn seconds(metrics: &str, metric: &str, lock: &str) -> f64 {
    value(metrics, metric, lock).parse().unwrap()
}

/// Returns Prometheus's promtool, which reads metrics and alerts, if it is installed.
fn promtool() -> Option<Command> {
    let own = Path::new(env!("CARGO_TARGET_TMPDIR")).with_file_name("tools/bin/promtool");
    let program = if own.exists() { own } else { "promtool".into() };
    let version = Command::new(&program).arg("--version").output();
    let is_here = version.is_ok_and(|output| output.status.success());
    is_here.then(|| Command::new(program))
}

/// Asserts that promtool can read these metrics, if it is installed.
#[track_caller]
fn assert_reads(metrics: &str) {
    let mut promtool = some_or_return!(promtool());
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(metrics.as_bytes()).unwrap();
    file.rewind().unwrap();
    promtool.args(["check", "metrics"]).stdin(file);
    let end = Outcome::from(promtool.output().unwrap());
    end.assert_code(0).assert_silent();
    assert_eq!(end.stdout, "", "{metrics}");
}

/// Adds a hold or a wait of an absent client, which began this many minutes ago by the server's clock.
fn plant(redis: &Redis, key: &str, minutes: u64) {
    let time = redis.cli(&["TIME"]);
    let now: u64 = time.lines().next().unwrap().parse().unwrap();
    let since = (now - 60 * minutes) * 1000;
    let later = (now + 3600) * 1000;
    let who = r#"{"host":"h","user":"u","pid":1,"command":["secret-command"],"ttl":3600000,"instance":"i"}"#;
    let (how, name) = key.split_once(' ').unwrap();
    let lock = format!("redlock:{name}");
    if how == "held" {
        redis.cli(&["SET", &lock, "secret-token", "PX", "3600000"]);
        let entry = format!("1 {since} 1 1 0 held {who}");
        redis.cli(&["HSET", &format!("{{{lock}}}:meta"), "secret-token", &entry]);
    } else {
        redis.cli(&["ZADD", &format!("{{{lock}}}:queue"), "1", "secret-waiter"]);
        let waiters = format!("{{{lock}}}:waiters");
        let entry = format!("{later} 1 {since} 1 {who}");
        redis.cli(&["HSET", &waiters, "secret-waiter", &entry]);
    }
    redis.cli(&["ZADD", "{redlock:}:index", &later.to_string(), name]);
}

#[test]
fn a_lock_that_was_held_or_waited_for_for_too_long_is_shown_with_status_1() {
    let redis = Redis::start();
    let _young = Gated::start(&redis, &["young"]).ready();
    redis.cli(&["SET", "redlock:foreign", "token", "PX", "60000"]);
    for words in ["", "young unused foreign", "*", "--names-only"] {
        // Prints nothing, so cron mails nothing.
        let end = status(&redis, &format!("--older-than 1h {words}"));
        assert_eq!(end.assert_code(0).stdout, "", "{words}");
    }
    let json = status(&redis, "--older-than 1h --json young");
    json.assert_printed(0, "[]\n");
    // On a terminal a person gets a line.
    let mut terminal = Terminal::start(redis.redlock(words!("status --older-than 90m")));
    terminal.line("no holder or waiter is older than 1h30m");

    plant(&redis, "held a-held", 61);
    plant(&redis, "wanted b-wanted", 62);
    for (words, shown) in [
        ("--older-than 1h", &["a-held", "b-wanted"][..]),
        ("--older-than 61m30s", &["b-wanted"]),
        ("--older-than 1h young a-held", &["a-held"]),
        ("--older-than 1h y* b-*", &["b-wanted"]),
        ("--older-than 0 young", &["young"]),
    ] {
        let end = status(&redis, words);
        end.assert_code(1);
        for name in ["young", "unused", "foreign", "a-held", "b-wanted"] {
            assert_eq!(end.stdout.contains(name), shown.contains(&name), "{end:?}");
        }
        let json = status(&redis, &format!("--json {words}"));
        let locks: Vec<Value> = serde_json::from_str(&json.assert_code(1).stdout).unwrap();
        let names: Vec<&Value> = locks.iter().map(|lock| &lock["name"]).collect();
        assert_eq!(json!(names), json!(shown), "{words}");
    }
}

#[test]
fn names_without_a_success_for_too_long_are_printed_with_status_1() {
    let redis = Redis::start();
    for name in ["daily", "hourly"] {
        ends(&redis, &format!("run {name} -- true")).assert_code(0);
        let state = format!("{{redlock:{name}}}:state");
        let since: u64 = redis.cli(&["HGET", &state, "succeeded"]).parse().unwrap();
        let since = (since - 27 * 3_600_000).to_string();
        redis.cli(&["HSET", &state, "succeeded", &since]);
    }
    ends(&redis, "run failing -- false").assert_code(1);
    let late = "no success for 1d3h, since 20";
    let never = "no success is known";
    for (line, code, expected) in [
        ("28h daily hourly", 0, ["", ""]),
        ("26h daily hourly", 1, [late, late]),
        ("26h daily failing", 1, [late, never]),
        ("28h daily never", 1, ["", never]),
        ("28h daily dailyy", 1, ["", never]),
        ("26h", 64, ["", ""]),
        ("26h *", 64, ["", ""]),
        ("26h daily --json", 64, ["", ""]),
    ] {
        let line_words = format!("status --no-success-for {line}");
        let end = outcome(redis.redlock(&words(&line_words, &[])).env("TZ", "UTC"));
        let mut lines = end.assert_code(code).stdout.lines();
        for (name, says) in line.split(' ').skip(1).zip(expected) {
            if !says.is_empty() {
                let line = lines.next().unwrap_or_default();
                let is_whole = says != late || line.ends_with(" UTC");
                assert!(
                    line.starts_with(&format!("{name}: {says}")) && is_whole,
                    "{end:?}"
                );
            }
        }
        assert_eq!(lines.next(), None, "{end:?}");
    }
    let end = ends(&redis, "status --no-success-for 28h dailyy");
    end.assert_says("did you mean daily?");
}

#[test]
fn the_metrics_are_those_of_locks_in_use_and_of_free_ones_that_have_a_history() {
    let redis = Redis::start();
    ends(&redis, "run free -- true").assert_code(0);
    let _holder = Gated::start(&redis, words!("--ttl 20s a")).ready();
    let _waiter = Gated::queued(&redis, words!("-q a"));
    ends(&redis, "freeze a -q --reason x").assert_code(0);
    let _shared = [(); 2].map(|()| Gated::start(&redis, words!("--shared many")).ready());
    // Another client holds the first one, and redlock has never used the second one.
    redis.play(
        "SET redlock:foreign secret-token PX 60000
        SET redlock:unheard secret-token PX 60000
        ZADD {redlock:}:index 9999999999999 foreign",
    );
    // tests/golden has the values of the metrics.
    let metrics = metrics(&redis);
    let held = [("a", "1"), ("foreign", "1"), ("free", "0"), ("many", "2")];
    assert_eq!(lines(&metrics, "redlock_held{").len(), held.len());
    for (name, count) in held {
        assert_eq!(value(&metrics, "redlock_held", name), count);
    }
    assert_has(
        &metrics,
        &["\nredlock_up 1\n", "\nredlock_frozen{lock=\"a\"} 1\n"],
    );
    assert_eq!(value(&metrics, "redlock_waiting", "a"), "1");
    assert!(seconds(&metrics, "redlock_last_renewal_seconds", "a") < 20.0);
    let token = redis.cli(&["GET", "redlock:a"]);
    for absent in ["secret", "sh -c", &token, "unheard"] {
        assert!(!metrics.contains(absent), "{absent}: {metrics}");
    }
    let few = status(&redis, "--prometheus - m* unheard").stdout;
    assert_eq!(lines(&few, "redlock_held{").len(), 2, "{few}");
    let held = ["many", "unheard"].map(|name| value(&few, "redlock_held", name));
    assert_eq!(held, ["2", "1"], "{few}");
}

#[test]
fn each_end_of_a_run_is_counted_and_the_last_success_has_its_time() {
    let redis = Redis::start();
    ends(&redis, "run a -- false").assert_code(1);
    assert_eq!(lines(&metrics(&redis), "redlock_last_success"), [""; 0]);
    let holder = Gated::start(&redis, &["a"]).ready();
    ends(&redis, "run -qn a -- true").assert_code(75);
    holder.end();
    for (options, script, code) in [
        ("a", "true", 0),
        ("a", "exit 4", 4),
        ("-q -t 50ms a", "exec sleep 60", 124),
        ("-q a", "redlock release --force -q a; exec sleep 60", 79),
        ("-q a", "redlock stop -qn a; exec sleep 60", 79),
    ] {
        outcome(&mut redis.run(options, script)).assert_code(code);
    }
    let metrics = metrics(&redis);
    for row in "success 2|failure 3|lost 0|forced 1|stopped 1|released 0|skipped 1".split('|') {
        let (result, count) = row.split_once(' ').unwrap();
        let labels = format!("a\",result=\"{result}");
        assert_eq!(
            value(&metrics, "redlock_runs_total", &labels),
            count,
            "{row}"
        );
    }
    let last = seconds(&metrics, "redlock_last_success_timestamp_seconds", "a");
    assert!((last - now().as_secs_f64()).abs() < 60.0, "{last}");
}

#[test]
fn a_name_that_would_drive_a_terminal_or_a_ci_agent_is_in_a_file_only_and_quotes_are_escaped() {
    let redis = Redis::start();
    let names = [r#"a"b\c\n'{}é,d="x""#, "##vso[task.complete]", "a\u{202e}b"];
    let _holders = names.map(|name| Gated::start(&redis, &[name]).ready());
    // An entry that isn't a valid name belongs to no lock.
    redis.cli(&["ZADD", "{redlock:}:index", "9999999999999", "two\nlines"]);
    let printed = ends(&redis, "status --prometheus -");
    printed.assert_said(0, "is left out");
    let line = r#"redlock_held{lock="a\"b\\c\\n'{}é,d=\"x\""} 1"#;
    assert_eq!(lines(&printed.stdout, "redlock_held{"), [line]);
    // The exporter, another user, may read the file.
    redis.play(
        "0 umask 077; redlock status --prometheus ~/r.prom; [ $(stat -c %a ~/r.prom) = 644 ]",
    );
    let metrics = fs::read_to_string(redis.dir.path().join("r.prom")).unwrap();
    assert_reads(&metrics);
    assert_eq!(lines(&metrics, "redlock_held{").len(), 3);
    for name in &names[1..] {
        assert_eq!(value(&metrics, "redlock_held", name), "1");
    }
}

#[test]
fn no_file_is_written_through_a_link_that_another_user_has_put_there() {
    // The owner of a directory can put anything into it. Tests in src/file.rs cover links and files that are replaced.
    return_unless!(nix::unistd::getuid().is_root());
    let redis = Redis::start();
    redis.play(
        "0 mkdir ~/theirs ~/ours && ln -s ~/ours ~/theirs/above
        0 chown -h 54321:54321 ~/theirs ~/theirs/above
        0 redlock run a -- true
        125 redlock status --prometheus ~/theirs/above/f → above is a link that another user has put there
        125 redlock history a --svg ~/theirs/above/f.svg → above is a link that another user has put there
        0 [ -z \"$(ls ~/ours)\" ]",
    );
}

#[test]
fn on_a_full_disk_the_old_file_stays_whole_and_the_message_says_why() {
    const OLD: &str = "redlock_up 1\n# as it was\n";
    let redis = Redis::start();
    // More than a page of metrics, so that only a part fits.
    for number in 0..100 {
        let name = format!("lock-{number}");
        redis.cli(&["ZADD", "{redlock:}:index", "9999999999999", &name]);
    }
    let dir = redis.dir.path().join("metrics");
    fs::create_dir(&dir).unwrap();
    let as_it_was = |before: &[&str], setting: &str, why: &str| {
        let script = format!(
            r#"cd "$1" && {setting} && printf '{OLD}' >a.prom && head -c 4096 /dev/zero >other || exit 9
            ! [ "$2" ] || ulimit -f "$2"
            "$0" status --prometheus a.prom; end=$?; ls -A; cat a.prom; exit $end"#
        );
        let limit = if before.is_empty() { "16" } else { "" };
        let dir = dir.to_str().unwrap();
        let words = [before, &["sh", "-c", &script, REDLOCK, dir, limit]].concat();
        let end = outcome(&mut directly(&redis, &words));
        end.assert_code(125);
        assert_eq!(end.stderr, format!("redlock: can't write a.prom: {why}\n"));
        assert_eq!(end.stdout, format!("a.prom\nother\n{OLD}"), "{end:?}");
    };
    // By default SIGXFSZ would end redlock before it could clean up.
    as_it_was(&[], "true", "file too large");
    let unshare = ["unshare", "--mount", "--propagation", "private"];
    if is_permitted(&[&unshare[..], &["mount", "-t", "tmpfs", "none", "/mnt"]].concat()) {
        let small = "mount -t tmpfs -o size=12k none . && cd \"$PWD\"";
        as_it_was(&unshare, small, "no space left on device");
    }
}

#[test]
fn a_directory_that_is_missing_or_closed_is_named_and_nothing_is_left() {
    let redis = Redis::start();
    redis.play(
        "0 mkdir ~/dir
        125 redlock status --prometheus ~/dir/no/r.prom → can't write … there is no such directory
        125 redlock status --prometheus /proc/r.prom → can't write /proc/r.prom
        125 redlock status --prometheus ~/dir → can't write … it is a directory
        0 [ -z \"$(ls -A ~/dir)\" ]",
    );
}

#[test]
fn without_redis_the_file_says_so_and_nothing_else() {
    let mut redis = Redis::start();
    redis.play(
        "0 mkdir ~/dir; redlock status --prometheus ~/dir/r.prom
        CONFIG SET requirepass x
        77 redlock status --prometheus ~/dir/r.prom → requires a password
        0 mv ~/dir/r.prom ~/refused",
    );
    redis.kill();
    redis.play(
        "69 redlock status --prometheus ~/dir/r.prom → no server listens there
        0 [ $(ls -A ~/dir) = r.prom ] && cmp ~/refused ~/dir/r.prom",
    );
    let end = ends(&redis, "status --prometheus -");
    end.assert_code(69);
    let written = fs::read_to_string(redis.dir.path().join("dir/r.prom")).unwrap();
    assert_eq!(end.stdout, written);
    assert_eq!(lines(&written, ""), ["redlock_up 0"]);
    assert_reads(&written);
}

/// Returns the path of a file of docs/monitoring.
fn page(name: &str) -> PathBuf {
    root().join("docs/monitoring").join(name)
}

/// Returns the metrics that a text names.
fn named(text: &str) -> BTreeSet<String> {
    let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    let metrics = words.filter(|word| word.starts_with("redlock_"));
    metrics.map(str::to_owned).collect()
}

/// Returns the names of all metrics; redlock writes only those with a value.
fn all() -> BTreeSet<String> {
    let redis = Redis::start();
    ends(&redis, "run a -- true").assert_code(0);
    let _holder = Gated::start(&redis, &["a"]).ready();
    let metrics = metrics(&redis);
    let lines = metrics.lines();
    let types = lines.filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').next());
    types.map(str::to_owned).collect()
}

/// Returns the panels of the dashboard.
fn panels() -> Vec<Value> {
    let text = fs::read_to_string(page("redlock-dashboard.json")).unwrap();
    let dashboard: Value = serde_json::from_str(&text).unwrap();
    dashboard["panels"].as_array().unwrap().clone()
}

/// Returns the expressions of the dashboard, with values instead of Grafana's variables.
fn expressions() -> Vec<String> {
    let panels = panels();
    let each = panels.iter();
    let targets = each.flat_map(|panel| panel["targets"].as_array().unwrap());
    let texts = targets.map(|target| target["expr"].as_str().unwrap().replace("$lock", "a|b"));
    let texts = texts.map(|text| text.replace("$__rate_interval", "315s"));
    texts.collect()
}

#[test]
fn the_dashboard_shows_each_metric_that_there_is_and_no_other() {
    let text = fs::read_to_string(page("redlock-dashboard.json")).unwrap();
    let expressions = expressions();
    let all = all();
    assert_eq!(named(&expressions.join(" ")), all);
    assert!(named(&text).is_subset(&all));
    let panels = panels();
    let ids = panels.iter().map(|panel| panel["id"].as_u64().unwrap());
    assert_eq!(ids.collect::<BTreeSet<_>>().len(), panels.len());

    let mut promtool = some_or_return!(promtool());
    let rule = |(number, expr): (usize, &String)| json!({"record": format!("panel_{number}"), "expr": expr});
    let rules: Vec<Value> = expressions.iter().enumerate().map(rule).collect();
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("rules.json");
    // promtool reads JSON, because JSON is YAML.
    let groups = json!({"groups": [{"name": "dashboard", "rules": rules}]});
    fs::write(&file, groups.to_string()).unwrap();
    let end = outcome(promtool.args(["check", "rules"]).arg(&file));
    let sum = format!("{} rules found", rules.len());
    assert!(end.assert_code(0).stdout.contains(&sum), "{end:?}");
}

#[test]
fn the_dashboard_counts_each_run_in_one_interval() {
    let mut promtool = some_or_return!(promtool());
    let expressions = expressions();
    let mut of_runs = expressions.iter().filter(|it| it.contains("_runs_total"));
    let of_runs = of_runs.next().unwrap();
    // Each lock has one run, which ends between a different pair of scrapes. 20 scrapes are within 5 minutes.
    let (mut series, mut expected) = (Vec::new(), Vec::new());
    for end in 1..=60_u32 {
        let lock = format!("lock-{end}");
        series.push(json!({
            "series": format!("redlock_runs_total{{lock=\"{lock}\",result=\"lost\"}}"),
            "values": format!("0+0x{} 1+0x60", end - 1),
        }));
        for interval in 1..=3 {
            let count = u8::from(end.div_ceil(20) == interval);
            expected.push(json!({
                "expr": format!("round({})", of_runs.replace("a|b", &lock)),
                "eval_time": format!("{}s", 300 * interval + 7),
                "exp_samples": [{"labels": "{result=\"lost\"}", "value": count}],
            }));
        }
    }
    let tests = json!([{"interval": "15s", "input_series": series, "promql_expr_test": expected}]);
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("test.json");
    fs::write(&file, json!({ "tests": tests }).to_string()).unwrap();
    outcome(promtool.args(["test", "rules"]).arg(&file)).assert_code(0);
}

#[test]
fn the_picture_of_the_dashboard_shows_each_panel() {
    let panels = panels();
    let titles = panels.iter().map(|panel| panel["title"].as_str().unwrap());
    let picture = fs::read_to_string(root().join("docs/dashboard.svg")).unwrap();
    let rest = picture.split("<text class=\"panel\"").skip(1);
    let shown = rest.map(|rest| rest.split(['>', '<']).nth(1).unwrap());
    assert_eq!(shown.collect::<Vec<_>>(), titles.collect::<Vec<_>>());
}

#[test]
fn the_alerts_are_about_metrics_that_there_are_and_pass_their_own_test() {
    let all = all();
    for name in ["redlock-alerts.yml", "redlock-alerts.test.yml"] {
        let named = named(&fs::read_to_string(page(name)).unwrap());
        assert!(named.len() > 4 && named.is_subset(&all), "{named:?}");
    }
    for command in [
        "check rules redlock-alerts.yml",
        "test rules redlock-alerts.test.yml",
    ] {
        let mut promtool = some_or_return!(promtool());
        let end = outcome(promtool.args(command.split(' ')).current_dir(page("")));
        assert!(end.assert_code(0).stdout.contains("SUCCESS"), "{end:?}");
    }
}
