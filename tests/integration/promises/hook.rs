//! `REDLOCK_HOOK`: a script that is called at events of a run, beside its COMMAND and outside COMMAND's process tree.
//!
//! redlock kills a hanging hook after 10 s, so two tests last that long.

use std::collections::BTreeMap;
use std::path::PathBuf;

use crate::support::prelude::*;
use crate::support::pty::Terminal;

/// A server, and a hook that writes its environment into a file for each event: `acquired` and so on.
struct Case {
    redis: Redis,
    hook: String,
}

impl Case {
    fn new() -> Self {
        let redis = Redis::start();
        let file = format!("{}/$REDLOCK_EVENT", redis.dir.path().display());
        let hook = format!("env -0 >\"{file}.new\"; mv \"{file}.new\" \"{file}\"");
        Self { redis, hook }
    }

    fn file(&self, name: &str) -> PathBuf {
        self.redis.dir.path().join(name)
    }

    fn redlock(&self, words: &[&str]) -> Command {
        let mut command = self.redis.redlock(words);
        command.env("REDLOCK_HOOK", &self.hook);
        command
    }

    fn run(&self, words: &str, script: &str) -> Command {
        let mut command = self.redis.run(words, script);
        command.env("REDLOCK_HOOK", &self.hook);
        command
    }

    /// Waits for this event. Returns the environment of the hook.
    #[track_caller]
    fn env(&self, event: &str) -> Facts {
        let file = self.file(event);
        wait_until(&format!("the hook is told \"{event}\""), || file.exists());
        let text = fs::read_to_string(&file).unwrap();
        fs::remove_file(file).unwrap();
        let variables = text.split('\0').filter_map(|line| line.split_once('='));
        let owned = variables.map(|(name, value)| (name.to_owned(), value.to_owned()));
        Facts(owned.collect())
    }

    fn was_called(&self, event: &str) -> bool {
        self.file(event).exists()
    }
}

/// Environment of a hook.
#[derive(Debug)]
struct Facts(BTreeMap<String, String>);

impl Facts {
    #[track_caller]
    fn get(&self, name: &str) -> &str {
        let value = self.0.get(name);
        value.unwrap_or_else(|| panic!("no {name} in {self:?}"))
    }

    /// Asserts the values of variables, named without `REDLOCK_`: `NAME=a|FENCE=`.
    #[track_caller]
    fn assert(&self, expected: &str) -> &Self {
        for variable in expected.split('|') {
            let (name, value) = variable.split_once('=').unwrap();
            let actual = self.get(&format!("REDLOCK_{name}"));
            assert_eq!(actual, value, "{name} in {self:?}");
        }
        self
    }

    fn number(&self, name: &str) -> u64 {
        self.get(name).parse().expect(name)
    }

    fn json(&self) -> Value {
        serde_json::from_str(self.get("REDLOCK_JSON")).unwrap()
    }
}

#[test]
fn an_event_that_is_too_long_for_a_variable_is_told_truncated() {
    let case = Case::new();
    let redis = &case.redis;
    redis.cli(&["SET", "redlock:a", "theirs", "PX", "100000"]);
    // In JSON each of these letters is an escape of six bytes.
    let names = (0..1000).map(|n| format!("b{n}{}", "é".repeat(90)));
    let names = names.collect::<Vec<_>>().join(" ");
    outcome(&mut case.run(&format!("-n a {names}"), "true")).assert_code(75);
    let facts = case.env("busy");
    let shown = facts.get("REDLOCK_NAME");
    assert!(shown.starts_with("a b0é") && shown.ends_with("é…"));
    assert_eq!(facts.json()["name"], shown);
    assert_eq!(facts.json()["event"], "busy");
}

#[test]
fn a_hook_is_told_when_command_starts_and_has_ended_without_redlocks_secrets() {
    let case = Case::new();
    let mut run = case.run("--reason why a", "sleep 0.05; echo $REDLOCK_TOKEN; exit 3");
    run.envs([("REDLOCK_SOMETHING", "s3cret"), ("WEBHOOK", "https://h/1")]);
    let run = outcome(&mut run);
    let acquired = case.env("acquired");
    let fence = acquired.get("REDLOCK_FENCE");
    let command = "sh -c 'sleep 0.05; echo $REDLOCK_TOKEN; exit 3'";
    let same = format!("NAME=a|FENCE={fence}|WAITED_MS=0|REASON=why|COMMAND={command}|BY=");
    acquired.assert(&same);
    acquired.assert("EVENT=acquired|RAN_MS=|STATUS=");
    let ended = case.env("ended");
    ended.assert(&same).assert("STATUS=3");
    assert!(ended.number("REDLOCK_RAN_MS") >= 50, "{ended:?}");
    assert_eq!(ended.get("WEBHOOK"), "https://h/1");
    // A unit test checks the other fields, and that there are no others.
    assert_eq!(ended.json()["event"], "ended");
    let token = run.assert_code(3).stdout.trim();
    for secret in [token, "s3cret", &case.redis.url()] {
        assert!(!format!("{ended:?}").contains(secret), "{secret}");
    }
    // The command line as other users see it, and several locks.
    let script = "echo $REDLOCK_FENCE; : --password s3";
    let end = outcome(&mut case.redlock(words!("run b a -- sh -c {} --password s3", script)));
    let shown = "sh -c 'echo $REDLOCK_FENCE; : --password ***' --password '***'";
    let fence = end.assert_code(0).stdout.trim();
    let facts = format!("NAME=b a|FENCE={fence}|COMMAND={shown}|REASON=|STATUS=0");
    case.env("ended").assert(&facts);
}

#[test]
fn a_hook_is_told_who_keeps_a_run_from_the_lock() {
    let case = Case::new();
    let holder = Gated::start(&case.redis, &["a"]).ready();
    let by = format!("@{} (pid {})", host(), holder.run.pid());
    outcome(&mut case.redlock(words!("run -n -E 9 a -- true"))).assert_code(9);
    let busy = case.env("busy");
    busy.assert("NAME=a|STATUS=9|COMMAND=true|FENCE=|RAN_MS=");
    assert!(busy.get("REDLOCK_BY").ends_with(&by), "{busy:?}");
    assert_eq!(busy.json()["by"], busy.get("REDLOCK_BY"));
    outcome(&mut case.redlock(words!("run -w 100ms a -- true"))).assert_code(75);
    let busy = case.env("busy");
    busy.assert("STATUS=75");
    assert!(busy.number("REDLOCK_WAITED_MS") >= 100, "{busy:?}");
    holder.end();
    // Names from other clients must not become extra lines of a log.
    let mut freeze = case.redlock(words!("freeze --reason release a"));
    outcome(freeze.env("REDLOCK_WHO", "night\nshift\u{1b}[2J")).assert_code(0);
    outcome(&mut case.redlock(words!("run -n a -- true"))).assert_code(75);
    let busy = case.env("busy");
    let (by, json) = (busy.get("REDLOCK_BY"), busy.json());
    let is_line = !by.contains(char::is_control);
    assert!(by.starts_with("night") && is_line, "{busy:?}");
    assert!(json["by"].as_str().unwrap().starts_with("night\nshift"));
    assert!(!case.was_called("acquired") && !case.was_called("ended"));
}

#[test]
fn a_hook_is_told_that_the_lock_is_lost_and_who_has_taken_it() {
    let case = Case::new();
    for options in ["a", "REDLOCK_ON_LOST=warn a"] {
        let wait = format!("until test -e {}", case.file("lost").display());
        let script = format!("echo ready; {wait}; do sleep 0.02; done");
        let run = Running::ready(&mut case.run(options, &script));
        let mut force = case.redlock(words!("release --force --yes a"));
        outcome(force.env("REDLOCK_WHO", "ann")).assert_code(0);
        run.finish().assert_code(79);
        let lost = case.env("lost");
        lost.assert("NAME=a|BY=ann|STATUS=");
        assert_ne!(lost.get("REDLOCK_FENCE"), "");
        lost.number("REDLOCK_RAN_MS");
        let ended = case.env("ended");
        ended.assert("STATUS=79|BY=ann");
        case.env("acquired");
    }
}

#[test]
fn the_hook_learns_the_end_of_a_run_without_command_or_lock() {
    let case = Case::new();
    outcome(&mut case.redlock(words!("run a -- /no/such/command"))).assert_code(127);
    let ended = case.env("ended");
    ended.assert("STATUS=127|RAN_MS=0");
    let mut run = case.run("--on-unreachable run a", "exit 4");
    outcome(run.env("REDLOCK_URL", "unix:///no/such/socket")).assert_code(4);
    case.env("ended").assert("STATUS=4|FENCE=");
    // A skipped run calls no hook.
    outcome(&mut case.redlock(words!("run a -- true"))).assert_code(0);
    case.env("ended").assert("STATUS=0");
    case.env("acquired");
    outcome(&mut case.redlock(words!("run --once-per 1h a -- true"))).assert_code(0);
    assert!(!case.was_called("busy"));
}

#[test]
fn a_hook_inherits_no_descriptor_no_signal_mask_and_no_session() {
    let redis = Redis::start();
    let file = redis.dir.path().join("found");
    let report = file.display();
    let hook = format!(
        "test $REDLOCK_EVENT = ended || exit; ls -l /proc/$$/fd >{report}.new; while read -r line; do case $line in Sig[BI]*) echo \"$line\"; esac; done </proc/$$/status >>{report}.new; \
         cut -d' ' -f5,6 /proc/$$/stat >>{report}.new; echo $$ $$ in $(pwd) >>{report}.new; mv {report}.new {report}"
    );
    let mut run = with_signals(redis.run("a", "true"), |signal| signal == 1, 1 << 9);
    outcome(run.env("REDLOCK_HOOK", &hook)).assert_code(0);
    wait_until("the hook has looked", || file.exists());
    let text = fs::read_to_string(&file).unwrap();
    let open = text.lines().filter_map(|line| {
        let (before, target) = line.rsplit_once(" -> ")?;
        let number = before.rsplit_once(' ')?.1.parse().ok()?;
        Some((number, target))
    });
    let open: Vec<(i32, &str)> = open.collect();
    assert!(open.len() >= 3, "{text}");
    for (number, target) in open {
        // The shell opens its output itself, and moves the old descriptor above 9.
        let is_null = target == "/dev/null" && !(3..10).contains(&number);
        let is_own = number == 1 && target.ends_with("found.new");
        assert!(is_null || is_own, "{text}");
    }
    assert_has(
        &text,
        &["SigBlk:\t0000000000000000", "SigIgn:\t0000000000000000"],
    );
    let lines: Vec<&str> = text.lines().collect();
    let [ids, own] = [lines[lines.len() - 2], lines[lines.len() - 1]];
    // The hook leads its process group and its session.
    assert_eq!(format!("{ids} in /"), own, "{text}");
}

/// Creates a named pipe for hooks. Returns its path, its reader, and a gate that keeps the reader from reaching the end.
fn pipe(redis: &Redis, name: &str) -> (String, Running, Gate) {
    let path = redis.dir.path().join(name);
    let gate = Gate::at(&path);
    let reader = Running::start(&mut sh(redis, &format!("exec cat <~/{name}")));
    (path.display().to_string(), reader, gate)
}

#[test]
fn a_hook_that_hangs_delays_nothing_and_is_killed_with_all_that_it_has_started() {
    let redis = Redis::start();
    let hangs = [
        // A tree of processes, partly in another session.
        "sleep 600 & setsid sleep 600 & sleep 600",
        // A script that ignores all other signals, and keeps starting processes.
        "trap '' TERM INT HUP; while :; do sleep 0.05 & wait; done",
        // A flood of output.
        "(yes & yes >&2 & wait)",
        // A daemon, left by a script that succeeds.
        "(setsid sh -c 'cd /; sleep 600' </dev/null &) ; exit 0",
        // A suspended script.
        "kill -STOP $$",
    ];
    let hook =
        |path: &str, hang: &str| format!("exec 9>{path}; echo $$ $PPID $REDLOCK_EVENT >&9; {hang}");
    let pipes = (0..).zip(hangs).map(|(number, hang)| {
        let (path, reader, open) = pipe(&redis, &format!("pipe-{number}"));
        let hook = hook(&path, hang);
        let run = outcome(redis.run("a", "true").env("REDLOCK_HOOK", hook));
        run.assert_code(0).assert_silent();
        (reader, open, 2)
    });
    let pipes: Vec<(Running, Gate, usize)> = pipes.collect();
    // The hook of a redlock that was killed.
    let (path, mut killed, open) = pipe(&redis, "pipe-killed");
    let hook = hook(&path, "sleep 600");
    let mut run = redis.run("b", "exec sleep 600");
    let mut run = Running::start(run.env("REDLOCK_HOOK", &hook));
    killed.line();
    run.kill();
    for (pipe, open, expected) in pipes.into_iter().chain([(killed, open, 1)]) {
        drop(open);
        let text = pipe.finish().stdout;
        assert_eq!(text.lines().count(), expected, "{text}");
        let pids = text.lines().flat_map(|line| line.split(' ').take(2));
        let pids: Vec<i32> = pids.map(|pid| pid.parse().unwrap()).collect();
        wait_until("nothing is left", || !pids.iter().any(|&pid| is_alive(pid)));
    }
}

#[test]
fn a_hook_that_fails_or_floods_changes_nothing() {
    let redis = Redis::start();
    let done = redis.dir.path().join("done");
    let zeros = "head -c 3000000 /dev/zero";
    let flood = format!("{zeros}; {zeros} >&2; cat; touch {}", done.display());
    let long = "x".repeat(100_000);
    for hook in ["exit 3", "kill -9 $$", "(", "\u{1}", &flood, &long] {
        let run = outcome(redis.run("a", "exit 4").env("REDLOCK_HOOK", hook));
        run.assert_code(4).assert_silent();
    }
    wait_until("it has flooded", || done.exists());
}

#[test]
fn a_hook_is_no_part_of_commands_tree() {
    let redis = Redis::start();
    let (path, mut pipe, _open) = pipe(&redis, "pipe");
    let hook = format!("exec 9>{path}; echo $$ >&9; setsid sleep 600 & sleep 600");
    let hooked = |words: &str, script: &str| {
        let mut run = redis.run(words, script);
        run.env("REDLOCK_HOOK", &hook);
        run
    };
    // A hook may work for 10 s.
    let mut assert_work = |hooks: usize| {
        let pids: Vec<i32> = (0..hooks).map(|_| pipe.pid_after("")).collect();
        assert!(pids.into_iter().all(is_alive), "they have their time");
    };
    // None of these runs waits for the hook, reports it as a survivor, or kills it.
    outcome(&mut hooked("--with-children a", "sleep 0.2 & exit 3"))
        .assert_code(3)
        .assert_silent();
    assert_work(2);
    let ready = |script: &str| Running::ready(&mut hooked("a", script));
    let stopped = ready("echo ready; exec sleep 600");
    stopped.signal(Signal::SIGTERM);
    stopped.finish().assert_code(143).assert_silent();
    assert_work(2);
    let killed = ready("trap '' TERM; echo ready; sleep 600");
    ends(&redis, "release --force --yes a").assert_code(0);
    killed.finish().assert_code(79);
    assert_work(3);
    // An outer run doesn't count the hook of an inner run, either.
    let inner = "redlock run b -- true";
    outcome(&mut hooked("--with-children a", inner))
        .assert_code(0)
        .assert_silent();
    assert_work(4);
}

#[test]
fn a_typed_ctrl_c_leaves_the_hook_at_work() {
    let mut case = Case::new();
    let go = case.file("go");
    let wait = format!("until test -e {}; do sleep 0.02; done", go.display());
    case.hook = format!("test $REDLOCK_EVENT != ended || {wait}; {}", case.hook);
    let mut terminal = Terminal::start(case.run("a", "echo ready; exec sleep 600"));
    terminal.line("ready");
    terminal.type_in("\x03");
    terminal.finish();
    assert!(!case.was_called("ended"));
    fs::write(go, "").unwrap();
    case.env("ended").assert("STATUS=130");
}

#[test]
fn each_nested_run_calls_its_hook_and_a_run_in_a_hook_calls_none() {
    let redis = Redis::start();
    let (home, url) = (redis.dir.path().display(), redis.url());
    let hook = format!(
        "echo $REDLOCK_EVENT $REDLOCK_NAME >>{home}/log; REDLOCK_URL={url} redlock run c-$REDLOCK_EVENT-$REDLOCK_NAME -- redlock run d -- true; \
         echo done $? $REDLOCK_EVENT $REDLOCK_NAME >>{home}/log"
    );
    let config = redis.dir.path().join("config");
    fs::create_dir(&config).unwrap();
    fs::write(config.join("redlock.env"), format!("REDLOCK_HOOK={hook}\n")).unwrap();
    let mut run = redis.redlock(words!("run a -- redlock run b -- true"));
    outcome(run.env("XDG_CONFIG_HOME", &config)).assert_code(0);
    let text = || home_file(&redis, "log");
    wait_until("all has been told", || text().lines().count() >= 8);
    let text = text();
    assert_eq!(text.lines().count(), 8, "{text}");
    for event in ["acquired a", "acquired b", "ended a", "ended b"] {
        for line in [event, &format!("done 0 {event}")] {
            assert!(text.lines().any(|other| other == line), "{line}: {text}");
        }
    }
}

#[test]
fn a_hook_that_cannot_be_run_is_one_line_and_changes_nothing() {
    let redis = Redis::start();
    fs::write(redis.dir.path().join("plain"), "#!/bin/sh\n").unwrap();
    let can_not = "can't run REDLOCK_HOOK";
    for (hook, says) in [
        ("'/no/such/hook -v'", ": /no/such/hook: no such file"),
        ("no-such-hook", ": no-such-hook: not found in $PATH"),
        ("$HOME/plain", " … it isn't executable; run: chmod +x "),
    ] {
        redis.play(&format!(
            "4 REDLOCK_HOOK={hook} redlock run a -c 'exit 4' → {can_not}{says}
            4 REDLOCK_HOOK={hook} redlock run -q a -c 'exit 4'"
        ));
    }
    redis.play(
        "4 REDLOCK_HOOK=true redlock run a -c 'exit 4'
        4 REDLOCK_HOOK='test -e x || true' redlock run a -c 'exit 4'
        4 REDLOCK_HOOK='[ \"$REDLOCK_EVENT\" = ended ]' redlock run a -c 'exit 4'",
    );
}
