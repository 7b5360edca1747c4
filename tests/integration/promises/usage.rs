//! What is typed, right and wrong: sentences for mistakes, durations, help, and a variable for each option.
//!
//! What each mistake is called is tested beside the code, in `src/command/mistakes.rs`; here are some seen from
//! outside, and what needs a terminal, an environment or a server.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::generated::cli;
use crate::support::pty::Terminal;
use crate::support::{Outcome, Redis, Running, outcome, redlock, script};

/// A command line with a mistake; what is said of it is a line.
fn mistake(words: &[&str]) -> String {
    let end = outcome(&mut redlock(words));
    end.assert_code(64);
    assert_eq!(end.stderr.lines().count(), 1, "{end:?}");
    let said = end.stderr.trim_end();
    said.strip_prefix("redlock: ").expect("the prefix").into()
}

#[test]
fn each_line_that_would_take_another_lock_than_was_meant_is_shown_as_it_was_meant() {
    let redis = Redis::start();
    let dir = tempfile::tempdir().unwrap();
    script(dir.path(), "deploy.sh", "#!/bin/sh\necho \"$@\"\n");
    let long = "redlock run deploy -- sh -c 'exit 7'";
    for (typed, meant) in [
        (
            "redlock run -w 1h 30m deploy -- sh -c 'exit 7'",
            "redlock run -w 1h30m deploy -- sh -c 'exit 7'",
        ),
        (
            "redlock run --ttl=1m 30s deploy -- sh -c 'exit 7'",
            "redlock run --ttl=1m30s deploy -- sh -c 'exit 7'",
        ),
        (
            "redlock run -t 5 min deploy -- sh -c 'exit 7'",
            "redlock run -t 5min deploy -- sh -c 'exit 7'",
        ),
        (
            "redlock run deploy \u{2013}n -- sh -c 'exit 7'",
            "redlock run deploy -n -- sh -c 'exit 7'",
        ),
        ("redlock run deploy \u{2014} sh -c 'exit 7'", long),
        (
            "redlock run deploy --reason \u{201c}release 1.2\u{201d} -- sh -c 'exit 7'",
            "redlock run deploy --reason 'release 1.2' -- sh -c 'exit 7'",
        ),
        (
            "redlock run deploy -- -n sh -c 'exit 7'",
            "redlock run deploy -n -- sh -c 'exit 7'",
        ),
        ("redlock run deploy sh -c 'exit 7'", long),
        (
            "redlock -w 10 deploy -- sh -c 'exit 7'",
            "redlock run -w 10 deploy -- sh -c 'exit 7'",
        ),
        (
            "redlock run -- sh -c 'exit 7'",
            "redlock run job -- sh -c 'exit 7'",
        ),
        (
            "redlock run ./deploy.sh; exit 7",
            "redlock run deploy -- ./deploy.sh",
        ),
    ] {
        let shell = |line: &str| {
            let mut shell = Command::new("sh");
            shell
                .args(["-c", line])
                .current_dir(dir.path())
                .env_clear()
                .env("PATH", crate::support::path())
                .env("REDLOCK_URL", redis.url());
            outcome(&mut shell)
        };
        let end = shell(typed.trim_end_matches("; exit 7"));
        end.assert_code(64);
        assert_eq!(end.stderr.lines().count(), 1, "{end:?}");
        let line = end.stderr.trim_end().rsplit_once(": ").expect("a line").1;
        assert_eq!(line, meant, "{typed}");
        assert_eq!(redis.cli(&["KEYS", "*"]), "", "{typed}");
        // Pasted, it does what was meant.
        let status = if typed.contains("./deploy.sh") { 0 } else { 7 };
        shell(line).assert_code(status);
        redis.cli(&["FLUSHALL"]);
    }
    // Elsewhere such a name is one.
    for words in [
        &["run", "5m", "-w", "1h", "--", "true"][..],
        &["run", "-w1h", "a", "5m", "--", "true"],
        &["run", "-w", "5", "30", "--", "true"],
        &["run", "m", "--", "true"],
        &["run", "a", "--reason", "\u{2013}", "--", "echo", "\u{201c}"],
    ] {
        outcome(&mut redis.redlock(words))
            .assert_code(0)
            .assert_silent();
    }
}

#[test]
fn a_builtin_of_the_shell_as_command_is_named_as_such() {
    let redis = Redis::start();
    for builtin in ["source", "export", "[[", "ulimit"] {
        let end = outcome(&mut redis.redlock(&["run", "x", "--", builtin, "a"]));
        end.assert_code(127).assert_says(&format!(
            "{builtin} is a builtin of the shell; use -c SCRIPT"
        ));
    }
}

#[test]
fn a_variable_that_others_read_is_named_where_it_would_have_helped() {
    let port = crate::support::free_port();
    let mut command = redlock(&["status"]);
    let listens = std::net::TcpStream::connect("127.0.0.1:6379").is_ok();
    if !listens {
        command.env("REDIS_URL", format!("redis://:hunter2@127.0.0.1:{port}"));
        let end = outcome(&mut command);
        end.assert_code(69)
            .assert_says("REDIS_URL is set, but redlock reads REDLOCK_URL");
        assert!(!end.stderr.contains("hunter2"), "{end:?}");
    }
    let redis = Redis::start();
    redis.cli(&["CONFIG", "SET", "requirepass", "hunter2"]);
    let mut command = redis.redlock(&["status"]);
    let end = outcome(command.env("REDLOCK_PASSWORD", "hunter2"));
    end.assert_code(77)
        .assert_says("REDLOCK_PASSWORD is set, but redlock reads REDLOCK_PASSWORD_FILE");
    assert!(!end.stderr.contains("hunter2"), "{end:?}");
    let end = outcome(&mut redis.redlock(&["status"]));
    end.assert_code(77);
    assert!(!end.stderr.contains("is set"), "{end:?}");
}

#[test]
fn the_dashes_that_are_missing_are_put_into_what_was_typed() {
    for (typed, put) in [
        (
            &["run", "deploy", "./deploy.sh", "arg"][..],
            "run deploy -- ./deploy.sh arg",
        ),
        (
            &["run", "deploy", "sh", "-ec", "a && b"],
            "run deploy -- sh -ec 'a && b'",
        ),
        (
            &["run", "-n", "deploy", "./x", "--flag"],
            "run -n deploy -- ./x --flag",
        ),
        (
            &["run", "deploy", "echo", "a b", "it's", "$HOME"],
            "run deploy -- echo 'a b' \"it's\" '$HOME'",
        ),
    ] {
        let said = mistake(typed);
        let line = said
            .strip_prefix("put -- before the command: redlock ")
            .expect(&said);
        assert_eq!(line, put);
    }
    // A shell takes the line in as it was meant.
    let redis = Redis::start();
    let words = words!("run a printf <%s>", "a b", "it's", "l\nm", "$x", "\u{e9}");
    let said = mistake(words);
    let line = said.split_once(": ").expect("the line").1;
    let mut shell = Command::new("bash");
    shell
        .args(["-c", line])
        .env_clear()
        .env("PATH", crate::support::path())
        .env("REDLOCK_URL", redis.url());
    let end = outcome(&mut shell);
    end.assert_code(0).assert_silent();
    assert_eq!(end.stdout, "<a b><it's><l\nm><$x><\u{e9}>");
}

#[test]
fn a_word_after_the_script_of_c_is_no_lock_name() {
    let redis = Redis::start();
    let words = ["run", "deploy", "-c", "echo \"$1\"", "sh", "prod"];
    let said = mistake(&words);
    assert!(said.contains("redlock run NAME -- sh -c SCRIPT"), "{said}");
    // Names that stand together are names.
    for words in [
        &["run", "a", "b", "-c", "true"][..],
        &["run", "-c", "true", "a", "b"],
    ] {
        outcome(&mut redis.redlock(words))
            .assert_code(0)
            .assert_silent();
    }
}

#[test]
fn a_mistake_never_repeats_a_password() {
    for words in [
        &["-u", "redis://u:hunter2@h", "run", "a", "./x"][..],
        &["run", "--url=redis://u:hunter2@h", "a", "./x"],
        &["-uredis://u:hunter2@h", "deploy", "--", "./x"],
        &["-qu", "redis://u:hunter2@h", "run", "a", "./x"],
        &["-quhunter2", "run", "a", "./x"],
        &["redis://u:hunter2@h", "--", "./x"],
    ] {
        let said = mistake(words);
        assert!(said.contains("-- ./x"), "{said}");
        assert!(!said.contains("hunter2"), "{said}");
    }
    let mut strange = redlock(&["-u"]);
    strange
        .arg(OsStr::from_bytes(b"redis://u:hunter2\xff@h"))
        .arg("status");
    let end = outcome(&mut strange);
    end.assert_code(64).assert_says("isn't UTF-8");
    assert!(!end.stderr.contains("hunter2"), "{end:?}");
}

#[test]
fn a_url_in_the_place_of_a_name_is_refused_and_not_repeated() {
    let redis = Redis::start();
    for url in [
        "redis://:hunter2@h",
        "redis://hunter2@h?x=*",
        "rediss-sentinel://u:hunter2@h/m",
        "unix:///run/r.sock?pass=hunter2",
        "https://hunter2@h/x",
    ] {
        for words in [
            &["run", url, "--", "true"][..],
            &["run", "a", url, "--", "true"],
            &["acquire", url, "--format", "token"],
            &["status", url],
            &["history", url],
            &["stop", url],
            &["release", url],
            &["release", "--force", url],
            &["freeze", "--reason", "x", url],
            &["thaw", url],
            &["doctor", url],
            &["extend", url],
        ] {
            let end = outcome(&mut redis.redlock(words));
            end.assert_code(64).assert_says("--url");
            assert!(
                !format!("{end:?}").contains("hunter2"),
                "{words:?}: {end:?}"
            );
        }
        let said = mistake(&["run", "a", url]);
        assert!(!said.contains("hunter2"), "{said}");
    }
    outcome(&mut redis.run("s3://bucket/x", "true")).assert_code(0);
}

#[test]
fn an_argument_that_isnt_utf8_is_named_in_a_sentence() {
    let mut run = redlock(&["run"]);
    run.arg(OsStr::from_bytes(b"caf\xe9")).args(["--", "true"]);
    outcome(&mut run)
        .assert_code(64)
        .assert_says("redlock: $'caf\\351' isn't UTF-8; see redlock run -h");
}

#[test]
fn output_that_cannot_be_written_is_an_error() {
    let redis = Redis::start();
    for line in [
        "-h",
        "--help",
        "help",
        "run --help",
        "--version",
        "help run",
        "completions bash",
        "status",
        "status --json a",
        "status --prometheus -",
        "history",
        "history --json",
        "doctor",
        "acquire a",
    ] {
        let words: Vec<&str> = line.split(' ').collect();
        let full = fs::OpenOptions::new().write(true).open("/dev/full");
        let output = redis
            .redlock(&words)
            .stdout(full.unwrap())
            .output()
            .unwrap();
        assert_eq!(output.status.code(), Some(125), "{line}");
        let stderr = String::from_utf8(output.stderr).unwrap();
        let says = "redlock: can't write to standard output: no space left on device\n";
        assert_eq!(stderr, says, "{line}");
    }
}

#[test]
fn a_duration_may_begin_with_its_point_also_before_a_unit() {
    let redis = Redis::start();
    for wait in [".5", ".2s", "0.2s", ".5h"] {
        outcome(&mut redis.redlock(&["run", "-w", wait, "a", "--", "true"])).assert_code(0);
    }
    outcome(&mut redis.redlock(&["run", "-w", ".s", "a", "--", "true"])).assert_code(64);
}

#[test]
fn a_mistake_names_the_help_of_its_command() {
    for (typed, says) in [
        (
            "run --no-wiat a -- b",
            "unexpected argument '--no-wiat' found; did you mean --no-wait? see redlock run -h",
        ),
        (
            "run -s5 a -- b",
            "unexpected argument '-5' found; see redlock run -h",
        ),
        (
            "ls --jsno",
            "unexpected argument '--jsno' found; did you mean --json? see redlock status -h",
        ),
        (
            "force-unlock a",
            "no command force-unlock; did you mean redlock release --force NAME? see redlock -h",
        ),
        (
            "run -s --slots 2 a -- b",
            "the argument '--shared' cannot be used with '--slots <N>'; see redlock run -h",
        ),
    ] {
        let words: Vec<&str> = typed.split(' ').collect();
        assert_eq!(mistake(&words), says, "{typed}");
    }
    let said = mistake(&["run", "", "--", "true"]);
    assert_eq!(
        said,
        "a lock's name can't be empty: \"\"; see redlock run -h"
    );
}

#[test]
fn a_shell_line_in_one_word_is_explained() {
    let redis = Redis::start();
    let end = outcome(&mut redis.redlock(&["run", "x", "--", "a && b"]));
    end.assert_code(127)
        .assert_says("\"a && b\" is one word; to run a shell line use -c");
    let end = outcome(&mut redis.redlock(&["run", "x", "--", "no-such-program"]));
    end.assert_code(127);
    assert!(!end.stderr.contains("one word"), "{end:?}");
}

#[test]
fn names_of_other_tools_work() {
    let redis = Redis::start();
    let _held = held(&redis);
    for name in ["ls", "ps"] {
        let end = outcome(&mut redis.redlock(&[name, "--names-only"]));
        assert_eq!(end.assert_code(0).stdout, "a\n");
    }
    for options in [&["--nonblock"][..], &["--nb"], &["-n"]] {
        let words = [&["run"], options, &["a", "--", "true"]].concat();
        outcome(&mut redis.redlock(&words)).assert_code(75);
    }
    outcome(&mut redis.redlock(&["unlock", "--force", "a"])).assert_code(0);
    let shown = |words: &[&str]| outcome(&mut redlock(words)).assert_code(0).stdout.clone();
    assert_eq!(shown(&["version"]), shown(&["--version"]));
    assert_eq!(shown(&["version", "-v"]), shown(&["-V", "-v"]));
    assert_eq!(shown(&["help"]), shown(&["--help"]));
    assert_eq!(shown(&["help", "ps"]), shown(&["help", "status"]));
}

/// A run that holds the lock "a".
fn held(redis: &Redis) -> Running {
    let mut run = Running::start(&mut redis.run("a", "echo ready; exec sleep 60"));
    run.expect_line("ready");
    run
}

#[test]
fn a_number_alone_counts_seconds_and_0_is_no_wait() {
    let redis = Redis::start();
    let _held = held(&redis);
    let wait = |duration: &str| -> Duration {
        let start = Instant::now();
        let end = outcome(&mut redis.redlock(&["run", "-w", duration, "a", "--", "true"]));
        end.assert_code(75);
        start.elapsed()
    };
    assert!(wait("1") >= Duration::from_secs(1));
    assert!(wait("0.3") >= Duration::from_millis(300));
    let before = redis.calls("subscribe");
    wait("0");
    assert_eq!(redis.calls("subscribe"), before, "it doesn't queue");
}

#[test]
fn months_and_years_are_refused_with_what_to_write() {
    for (duration, says) in [
        ("1M", "M would be a month: write 1m for a minute or 30d"),
        ("5M", "M would be a month: write 5m for 5 minutes or 150d"),
        ("1h 2M", "M would be a month: write 2m for 2 minutes or 60d"),
        ("2 months", "months differ in length: write 60d"),
        ("1y", "years differ in length: write 365d"),
        ("1e3", "must be a duration such as"),
        ("inf", "must be a duration such as"),
        ("9999999999999999999999", "must be at most 365d"),
        ("366d", "must be at most 365d"),
        ("", "must be a duration such as"),
    ] {
        let said = mistake(words!("run -t", duration, "a", "--", "true"));
        assert!(said.contains("'--max-runtime <TIME>'"), "{said}");
        assert!(said.contains(says), "{said}");
        let end =
            outcome(redlock(&["run", "a", "--", "true"]).env("REDLOCK_MAX_RUNTIME", duration));
        // An empty variable is none.
        if !duration.is_empty() {
            end.assert_code(78)
                .assert_says("redlock: REDLOCK_MAX_RUNTIME");
            end.assert_says(says);
        }
    }
}

#[test]
fn time_out_0_is_none_and_the_message_tells_it_from_the_wait() {
    let redis = Redis::start();
    outcome(&mut redis.redlock(&["run", "-t", "0", "a", "--", "true"])).assert_code(0);
    let end = outcome(&mut redis.redlock(&["run", "-t", "0.2", "a", "--", "sleep", "60"]));
    end.assert_code(124)
        .assert_says("ran longer than --max-runtime 200ms (--wait limits the wait for the lock); ");
    let end = outcome(&mut redis.redlock(&["run", "-n", "-t", "0.2", "a", "--", "sleep", "60"]));
    end.assert_code(124)
        .assert_says("ran longer than --max-runtime 200ms; ");
}

#[test]
fn a_wrong_token_holds_nothing_and_lost_nothing() {
    let redis = Redis::start();
    let file = redis.dir.path().join("token");
    fs::write(&file, "never:held:1").unwrap();
    let file = file.to_str().unwrap();
    for words in [
        &["extend", "a", "--for", "10"][..],
        &["extend", "a"],
        &["release", "a"],
    ] {
        let end = outcome(&mut redis.redlock(&[words, &["--token-file", file]].concat()));
        end.assert_code(79)
            .assert_says("lock \"a\" is not held with this token; ");
        assert!(!end.stderr.contains("lost"), "{end:?}");
    }
}

/// What is shown on a terminal of 80 columns.
fn on_terminal(words: &[&str]) -> String {
    let script = "stty cols 80 rows 50; redlock \"$@\"; echo; echo the end; read -r line";
    let mut command = Command::new("sh");
    command
        .args(["-c", script, "sh"])
        .args(words)
        .env_clear()
        .env("PATH", crate::support::path());
    let mut terminal = Terminal::start(command);
    terminal.wait_until("all is shown", |shown| shown.contains("\nthe end"));
    let shown = terminal.shown.replace('\r', "");
    shown.split_once("\nthe end").expect("the end").0.to_owned()
}

#[test]
fn short_help_fits_a_screen_and_long_help_has_all_options_in_groups() {
    for (words, most) in [
        (&["-h"][..], 28),
        (&["run", "-h"], 32),
        (&["acquire", "-h"], 32),
        (&["thaw", "-h"], 12),
    ] {
        let piped = outcome(&mut redlock(words)).assert_code(0).stdout.clone();
        for shown in [piped, on_terminal(words)] {
            assert!(shown.lines().count() <= most, "{shown}");
            let wide = shown.lines().find(|line| line.chars().count() > 80);
            assert_eq!(wide, None, "{shown}");
            assert!(shown.contains(" -u"), "{shown}");
        }
    }
    let long = outcome(&mut redlock(&["run", "--help"])).stdout;
    let mut rest = long.as_str();
    for part in cli::help::GROUPS.iter().filter(|part| **part != "Script") {
        let heading = format!("\n{part}:\n");
        let (_, after) = rest
            .split_once(&heading)
            .unwrap_or_else(|| panic!("{part}: {long}"));
        rest = after;
    }
    assert!(rest.contains("--url"), "{rest}");
    assert!(rest.contains("NAME has 1 to 200 bytes"), "{rest}");
    assert!(rest.contains("TIME is 500ms"), "{rest}");
    let examples = rest.split_once("Examples:").expect("examples").1;
    let shown = examples
        .lines()
        .filter(|line| line.starts_with("  redlock run"));
    assert_eq!(shown.count(), 3);
}

#[test]
fn the_help_of_run_lists_the_exit_statuses_of_its_manual() {
    let help = outcome(&mut redlock(&["run", "--help"])).stdout;
    let (_, listed) = help.split_once("\nExit status:").expect("the list");
    let (listed, _) = listed.split_once("\n\n").expect("its end");
    let root = crate::generated::root();
    let manual = fs::read_to_string(root.join("man/parts/redlock-run.roff")).unwrap();
    let (_, section) = manual.split_once(".SH EXIT STATUS\n").expect("the section");
    let (section, _) = section.split_once(".SH ").expect("its end");
    let statuses = section.lines().filter_map(|line| line.strip_prefix(".B "));
    let statuses: Vec<&str> = statuses
        .filter(|status| status.parse::<u8>().is_ok())
        .collect();
    let first = |line: &str| line.split_whitespace().next().map(str::to_owned);
    let shown: Vec<String> = listed.lines().skip(1).filter_map(first).collect();
    assert_eq!(shown, statuses);
}

/// Settings that are no options.
const SETTINGS_ONLY: [&str; 15] = [
    "PREFIX",
    "PASSWORD_FILE",
    "TLS_CA",
    "TLS_CERT",
    "TLS_KEY",
    "REDIS_TIMEOUT",
    "SYNC",
    "SYNC_TIMEOUT",
    "REPAIR_TTL",
    "HISTORY_SIZE",
    "ON_LOST",
    "JITTER",
    "WHO",
    "SHOW",
    "HOOK",
];

#[test]
fn settings_that_are_no_options_are_in_their_section_of_the_manual_and_are_answered_when_typed() {
    let root = crate::generated::root();
    let manual = fs::read_to_string(root.join("man/parts/redlock.roff")).unwrap();
    let (_, section) = manual.split_once(".SH SETTINGS\n").expect("the section");
    let (section, _) = section.split_once("\n.SH ").expect("its end");
    let redis = Redis::start();
    for setting in SETTINGS_ONLY {
        assert!(
            section.contains(&format!(".BI REDLOCK_{setting}= ")),
            "{setting}"
        );
        let option = format!("--{}", setting.to_lowercase().replace('_', "-"));
        // These have never been options.
        if ["REDIS_TIMEOUT", "WHO", "SHOW", "HOOK"].contains(&setting) {
            continue;
        }
        let value = if setting == "REPAIR_TTL" { "1" } else { "x" };
        let says = format!("put REDLOCK_{setting}={value} in the environment or redlock.env");
        for words in [
            words!("{} x run a -- echo ran", &option),
            words!("run {} x a -- echo ran", &option),
            words!("acquire a {} x", &option),
        ] {
            let end = outcome(&mut redis.redlock(words));
            end.assert_code(64)
                .assert_says(&format!("no option {option}: {says}"));
            assert_eq!(end.stderr.lines().count(), 1, "{end:?}");
            assert!(!end.stdout.contains("ran"), "{end:?}");
        }
    }
    for command in ["run", "guard", "acquire", "extend"] {
        let help = outcome(&mut redlock(&[command, "--help"])).stdout;
        let help = help.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(help.contains("SETTINGS in redlock(1)"), "{help}");
    }
}

/// Settings that are options, too, each with the command that has the option.
const BOTH: [(&str, &str); 8] = [
    ("URL", "run"),
    ("QUIET", "run"),
    ("VERBOSE", "run"),
    ("TTL", "acquire"),
    ("KILL_AFTER", "guard"),
    ("MAX_RUNTIME", "run"),
    ("ON_UNREACHABLE", "run"),
    ("REASON", "acquire"),
];

#[test]
fn the_help_names_the_variables_of_eight_options_and_no_others() {
    let all = cli::documented();
    let mut named = BTreeSet::new();
    for command in all.get_subcommands() {
        for option in command.get_arguments() {
            let help = option.get_long_help().or_else(|| option.get_help());
            let help = help.map(ToString::to_string).unwrap_or_default();
            if let Some((_, rest)) = help.split_once("[env: REDLOCK_") {
                let (name, _) = rest.split_once(']').expect("its end");
                let long = option.get_long().unwrap();
                assert_eq!(long.to_uppercase().replace('-', "_"), name);
                named.insert(name.to_owned());
            }
        }
    }
    assert_eq!(named, BOTH.map(|(name, _)| name.to_owned()).into());
    for (name, command) in BOTH {
        let help = outcome(&mut redlock(&[command, "--help"])).stdout;
        let help = help.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(help.contains(&format!("[env: REDLOCK_{name}]")), "{name}");
    }
}

#[test]
fn a_wrong_value_of_a_setting_is_refused_by_each_command_and_says_where_it_is_set() {
    let texts = [
        "PREFIX",
        "PASSWORD_FILE",
        "TLS_CA",
        "TLS_CERT",
        "TLS_KEY",
        "WHO",
        "HOOK",
    ];
    let settings = SETTINGS_ONLY
        .iter()
        .chain(BOTH.iter().map(|(name, _)| name));
    for setting in settings.filter(|setting| !texts.contains(setting)) {
        let variable = format!("REDLOCK_{setting}");
        let wrong = if *setting == "REASON" { " " } else { "wrong" };
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("redlock.env");
        fs::write(&file, format!("\n{variable}='{wrong}'\n")).unwrap();
        for words in [words!("run a -- echo ran"), words!("status")] {
            let mut by_variable = redlock(words);
            let mut by_file = redlock(words);
            by_variable.env(&variable, wrong);
            by_file.env("XDG_CONFIG_HOME", directory.path());
            let in_file = format!("{}:2", file.display());
            for (command, place) in [(&mut by_variable, &variable), (&mut by_file, &in_file)] {
                let end = outcome(command);
                end.assert_code(78).assert_says(place);
                assert_eq!(
                    (end.stdout.as_str(), end.stderr.lines().count()),
                    ("", 1),
                    "{end:?}"
                );
            }
        }
    }
}

/// How redlock ends with these variables.
fn with(redis: &Redis, settings: &[(&str, &str)], words: &[&str]) -> Outcome {
    let mut command = redis.redlock(words);
    for (name, value) in settings {
        command.env(name, value);
    }
    outcome(&mut command)
}

#[test]
fn a_house_setting_does_what_its_option_does() {
    let redis = Redis::start();
    let free = ["run", "a", "-c", "redis-cli -s \"$S\" PTTL redlock:a"];
    let socket = redis.socket();
    let ttl = |settings: &[(&str, &str)]| -> u64 {
        let settings = [settings, &[("S", socket.to_str().unwrap())]].concat();
        let end = with(&redis, &settings, &free);
        end.assert_code(0)
            .assert_silent()
            .stdout
            .trim()
            .parse()
            .unwrap()
    };
    assert!(ttl(&[]) <= 30_000);
    let long = ttl(&[("REDLOCK_TTL", "100")]);
    assert!((90_000..=100_000).contains(&long), "{long}");

    let script = |settings: &[(&str, &str)], script: &str| {
        with(&redis, settings, &["run", "b", "-c", script])
    };
    script(
        &[
            ("REDLOCK_MAX_RUNTIME", "0.2"),
            ("REDLOCK_KILL_AFTER", "0.1"),
        ],
        "trap '' TERM; while :; do sleep 0.01; done",
    )
    .assert_code(124)
    .assert_says("--max-runtime 200ms");
    let reason = "redlock status --json \"$REDLOCK_NAME\"";
    let end = script(&[("REDLOCK_REASON", "release 1.2")], reason);
    assert!(end.stdout.contains("release 1.2"), "{end:?}");
    let end = with(
        &redis,
        &[("REDLOCK_SHELL", "echo from the setting")],
        &["run", "c"],
    );
    assert_eq!(end.assert_code(64).stdout, "");
    let unreachable = with(
        &redis,
        &[
            ("REDLOCK_ON_UNREACHABLE", "run"),
            ("REDLOCK_URL", "redis://127.0.0.1:1"),
        ],
        &["run", "a", "--", "true"],
    );
    unreachable.assert_code(0);
}

#[test]
fn a_typed_option_overrides_the_environment_and_that_a_file() {
    let redis = Redis::start();
    let reason = |settings: &[(&str, &str)], options: &[&str]| {
        let script = "redlock status --json \"$REDLOCK_NAME\"";
        let end = with(
            &redis,
            settings,
            &[&["run"], options, &["a", "-c", script]].concat(),
        );
        let status: Value = serde_json::from_str(&end.assert_code(0).stdout).unwrap();
        status[0]["holders"][0]["reason"]
            .as_str()
            .unwrap()
            .to_owned()
    };
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("redlock.env");
    fs::write(&file, "REDLOCK_REASON=file\n").unwrap();
    let home = ("XDG_CONFIG_HOME", directory.path().to_str().unwrap());
    let environment = ("REDLOCK_REASON", "environment");
    assert_eq!(reason(&[home], &[]), "file");
    assert_eq!(reason(&[home, environment], &[]), "environment");
    assert_eq!(reason(&[home, environment], &["-m", "option"]), "option");
    // Only a keeper kills.
    with(&redis, &[("REDLOCK_KILL_AFTER", "1")], &["acquire", "b"]).assert_code(0);
    fs::write(&file, "REDLOCK_REASON=file\nREDLOCK_E=1\n").unwrap();
    with(&redis, &[home], &["run", "a", "--", "true"])
        .assert_code(78)
        .assert_says("redlock.env:2: unknown setting REDLOCK_E");
    // Help doesn't need them.
    outcome(redlock(&["run", "-h"]).env("REDLOCK_TTL", "x")).assert_code(0);
}

#[test]
fn a_removed_setting_is_ignored_and_named_by_doctor_and_with_verbose() {
    let redis = Redis::start();
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("redlock.env");
    fs::write(&file, "REDLOCK_TTL=30s\nREDLOCK_NO_WAIT=1\n").unwrap();
    let home = ("XDG_CONFIG_HOME", directory.path().to_str().unwrap());
    let named = "redlock.env:2: REDLOCK_NO_WAIT; `redlock help redlock` lists all settings";
    let run = |options: &[&str]| {
        let words = [&["run"], options, &["a", "--", "true"]].concat();
        with(&redis, &[home], &words)
    };
    run(&[]).assert_code(0).assert_silent();
    run(&["-v"]).assert_code(0).assert_says(named);
    let doctor = with(&redis, &[home], &["doctor"]);
    assert_eq!(doctor.stdout.matches(named).count(), 1, "{doctor:?}");
    // A job's options have no variable, so that none reaches the runs that the job starts.
    let nested = words!("run a -- redlock run b -- true");
    with(&redis, &[("REDLOCK_SLOTS", "3")], nested)
        .assert_code(0)
        .assert_silent();
    let mode = words!("run a -- redlock status --json a");
    let end = with(&redis, &[("REDLOCK_SLOTS", "3")], mode);
    assert!(
        !end.assert_code(0).stdout.contains("\"slots\":3"),
        "{end:?}"
    );
}

#[test]
fn an_unknown_variable_is_a_warning_in_one_line_that_quiet_silences() {
    let redis = Redis::start();
    let run = |options: &[&str]| {
        let words = [
            &["run"],
            options,
            &["a", "--", "redlock", "run", "b", "--", "true"],
        ]
        .concat();
        with(&redis, &[("REDLOCK_TLT", "5")], &words)
    };
    let end = run(&[]);
    end.assert_code(0);
    assert_eq!(
        end.stderr,
        "redlock: unknown variable REDLOCK_TLT; did you mean REDLOCK_TTL?\n"
    );
    run(&["-q"]).assert_code(0).assert_silent();
    // Those of a job, of another command, and of ci/install.sh.
    for known in [
        ("REDLOCK_SLOT", "1"),
        ("REDLOCK_FORMAT", "json"),
        ("REDLOCK_VERSION", "0.1.0"),
    ] {
        with(&redis, &[known], &["run", "a", "--", "true"])
            .assert_code(0)
            .assert_silent();
    }
}

#[test]
fn an_empty_script_is_refused() {
    for (words, says) in [
        (&["run", "a", "-c", ""][..], "must not be empty"),
        (&["run", "a", "-c", " "], "must not be empty"),
    ] {
        outcome(&mut redlock(words))
            .assert_code(64)
            .assert_says(says);
    }
}

#[test]
fn a_kill_after_that_the_ttl_does_not_allow_is_announced_at_the_start() {
    let redis = Redis::start();
    let run = |line: &str| {
        let words = format!("{line} -- true");
        outcome(&mut redis.redlock(&words.split(' ').collect::<Vec<_>>()))
    };
    let says = "redlock: --kill-after 1m is more than half of the TTL: SIGKILL comes 15s after SIGTERM; --ttl 2m allows 1m\n";
    for line in ["run -k 60 a", "run -k 60 a b"] {
        assert_eq!(run(line).assert_code(0).stderr, says);
    }
    run("run -k 5 --ttl 6s a").assert_says("SIGKILL comes 3s after SIGTERM; --ttl 10s allows 5s");
    for line in [
        "run --ttl 6s a",
        "run -k 15 a",
        "run -k 60 --ttl 2m a",
        "run -q -k 60 a",
    ] {
        run(line).assert_code(0).assert_silent();
    }
    let guarded = outcome(&mut redis.redlock(words!("run a -- redlock guard -k 60 -- true")));
    let says_guard = says.replace("--ttl 2m", "the run's --ttl 2m");
    assert_eq!(guarded.assert_code(0).stderr, says_guard);
    let script = r#"eval "$(redlock acquire -k 60 --while-pid $$ a)""#;
    outcome(&mut redis.run("-q b", script))
        .assert_code(0)
        .assert_says(says);
}
