//! Command lines, right and wrong: messages for mistakes, durations, help, and a variable for each option.
//!
//! `src/command/mistakes.rs` tests the message for each mistake. Here are some of them from outside, and those that need a
//! terminal, an environment or a server.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

use crate::generated::cli;
use crate::promises::config::configured;
use crate::support::prelude::*;
use crate::support::pty::Terminal;

/// Runs a command line with a mistake. Returns the message, which must be one line.
fn mistake(words: &[&str]) -> String {
    let end = outcome(&mut redlock(words));
    end.assert_code(64);
    assert_eq!(end.stderr.lines().count(), 1, "{end:?}");
    let line = end.stderr.trim_end();
    line.strip_prefix("redlock: ").expect("the prefix").into()
}

#[test]
fn a_line_that_would_take_the_wrong_lock_is_corrected() {
    let redis = Redis::start();
    let dir = tempfile::tempdir().unwrap();
    script(dir.path(), "deploy.sh", "#!/bin/sh\necho \"$@\"\n");
    for (typed, meant) in [
        ("run a CMD", "run a -- CMD"),
        ("-w 10 a -- CMD", "run -w 10 a -- CMD"),
        ("run a sh -c 'exit 7'", "run a -- CMD"),
        ("run -- CMD", "run job -- CMD"),
        ("run -- ./deploy.sh", "run deploy -- ./deploy.sh"),
    ] {
        let whole = |line: &str| format!("redlock {line}").replace("CMD", "sh -c 'exit 7'");
        let (typed, meant) = (whole(typed), whole(meant));
        let shell = |line: &str| outcome(sh(&redis, line).current_dir(dir.path()));
        let end = shell(&typed);
        end.assert_code(64);
        assert_eq!(end.stderr.lines().count(), 1, "{end:?}");
        let line = end.stderr.trim_end().rsplit_once(": ").expect("a line").1;
        assert_eq!(line, meant, "{typed}");
        assert_eq!(redis.cli(&["KEYS", "*"]), "", "{typed}");
        // The suggested line works when pasted.
        let status = if meant.contains("exit 7") { 7 } else { 0 };
        shell(line).assert_code(status);
        redis.cli(&["FLUSHALL"]);
    }
}

#[test]
fn a_command_that_is_no_program_is_explained() {
    let redis = Redis::start();
    for builtin in ["source", "export", "[[", "ulimit"] {
        let says = format!("{builtin} is a builtin of the shell; use -c SCRIPT");
        outcome(&mut redis.redlock(words!("run x --", builtin, "a"))).assert_said(127, &says);
    }
    let end = outcome(&mut redis.redlock(words!("run x --", "a && b")));
    end.assert_said(127, "\"a && b\" is one word; to run a shell line use -c");
    let end = ends(&redis, "run x -- no-such-program");
    end.assert_code(127);
    assert!(!end.stderr.contains("one word"), "{end:?}");
}

#[test]
fn a_mistaken_variable_is_named_if_it_would_have_helped() {
    let port = crate::support::free_port();
    let listens = std::net::TcpStream::connect("127.0.0.1:6379").is_ok();
    if !listens {
        let mut command = redlock(&["status"]);
        command.env("REDIS_URL", format!("redis://:hunter2@127.0.0.1:{port}"));
        let end = outcome(&mut command);
        end.assert_said(69, "REDIS_URL is set, but redlock reads REDLOCK_URL");
        assert!(!end.stderr.contains("hunter2"), "{end:?}");
    }
    let redis = Redis::with(&["--requirepass", "hunter2"]);
    let end = ends(&redis, "REDLOCK_PASSWORD=hunter2 status");
    end.assert_said(77, "redlock: unknown variable REDLOCK_PASSWORD\n");
    end.assert_says("use REDLOCK_PASSWORD_FILE");
    assert!(!end.stderr.contains("hunter2"), "{end:?}");
}

#[test]
fn a_word_after_the_script_of_c_is_no_lock_name() {
    let redis = Redis::start();
    let shown = mistake(words!("run deploy -c", "echo \"$1\"", "sh", "prod"));
    assert_has(&shown, &["redlock run NAME -- sh -c SCRIPT"]);
    for script in ["", " "] {
        let shown = mistake(&["run", "a", "-c", script]);
        assert_has(&shown, &["must not be empty"]);
    }
    // Several names before or after `-c` are names.
    for line in ["run a b -c true", "run -c true a b"] {
        ends(&redis, line).assert_code(0).assert_silent();
    }
}

#[test]
fn a_mistake_never_repeats_a_password_and_a_name_is_utf8() {
    for line in [
        "-u redis://u:hunter2@h run a ./x",
        "run --url=redis://u:hunter2@h a ./x",
        "-uredis://u:hunter2@h deploy -- ./x",
        "-qu redis://u:hunter2@h run a ./x",
        "-quhunter2 run a ./x",
        "redis://u:hunter2@h -- ./x",
    ] {
        let shown = mistake(&words(line, &[]));
        assert!(shown.contains("-- ./x"), "{shown}");
        assert!(!shown.contains("hunter2"), "{shown}");
    }
    let mut strange = redlock(&["-u"]);
    strange.arg(OsStr::from_bytes(b"redis://u:hunter2\xff@h"));
    let end = outcome(strange.arg("status"));
    end.assert_said(64, "invalid UTF-8");
    assert!(!end.stderr.contains("hunter2"), "{end:?}");
    let mut run = redlock(&["run"]);
    run.arg(OsStr::from_bytes(b"caf\xe9")).args(["--", "true"]);
    outcome(&mut run).assert_said(64, "invalid UTF-8 was detected");
}

/// Lines that name one lock, which aren't for patterns; and lines that name locks.
const ONE_LOCK: &str = "run {} -- true;run a {} -- true;acquire {} --format token;guard {} -- true;extend {};\
    stop {};release {};release --force {};freeze --reason x {};thaw {}";
const LOCKS: &str = "status {};history {};doctor {}";

#[test]
fn a_url_in_the_place_of_a_name_is_refused_and_not_repeated_and_so_is_a_pattern_for_one_lock() {
    let redis = Redis::start();
    for url in [
        "redis://:hunter2@h",
        "redis://hunter2@h?x=*",
        "rediss-sentinel://u:hunter2@h/m",
        "unix:///run/r.sock?pass=hunter2",
        "https://hunter2@h/x",
    ] {
        for line in ONE_LOCK.split(';').chain(LOCKS.split(';')) {
            let end = outcome(&mut redis.redlock(&words(line, &[url])));
            end.assert_said(64, "--url");
            assert!(!format!("{end:?}").contains("hunter2"), "{line}: {end:?}");
        }
        let shown = mistake(&["run", "a", url]);
        assert!(!shown.contains("hunter2"), "{shown}");
    }
    for name in ["deploy-*", "deploy-?"] {
        let says = format!("`redlock status '{name}'` lists the locks that match");
        for line in ONE_LOCK.split(';') {
            let end = outcome(&mut redis.redlock(&words(line, &[name])));
            end.assert_said(64, "can't contain * or ?")
                .assert_says(&says);
        }
    }
    assert!(redis.keys().is_empty());
    outcome(&mut redis.run("s3://bucket/x", "true")).assert_code(0);
}

/// Lines that print something.
const PRINTS: &str = "-h;--help;help;run --help;--version;help run;completions bash;status;status --json a;\
    status --prometheus -;history;history --json;doctor;acquire a";

#[test]
fn output_that_cannot_be_written_is_an_error() {
    let redis = Redis::start();
    for line in PRINTS.split(';') {
        let full = fs::OpenOptions::new().write(true).open("/dev/full");
        let mut command = redis.redlock(&words(line, &[]));
        let end: Outcome = command.stdout(full.unwrap()).output().unwrap().into();
        end.assert_exited(125);
        let says = "redlock: can't write to standard output: no space left on device\n";
        assert_eq!(end.stderr, says, "{line}");
    }
}

#[test]
fn names_of_other_tools_work() {
    let redis = Redis::start();
    let _held = Gated::start(&redis, &["a"]).ready();
    for line in ["ls --names-only", "ps --names-only"] {
        assert_eq!(ends(&redis, line).assert_code(0).stdout, "a\n");
    }
    for option in ["--nonblock", "--nb", "-n"] {
        ends(&redis, &format!("run {option} a -- true")).assert_code(75);
    }
    ends(&redis, "unlock --force a").assert_code(0);
    for (line, same) in [
        ("version", "--version"),
        ("version -v", "-V -v"),
        ("help", "--help"),
        ("help ps", "help status"),
    ] {
        let shown = ends(&redis, line);
        shown.assert_code(0);
        let as_shown = ends(&redis, same);
        assert_eq!(shown.stdout, as_shown.assert_code(0).stdout);
    }
}

#[test]
fn a_number_alone_counts_seconds_and_0_is_no_wait_and_no_time_out() {
    let redis = Redis::start();
    let _held = Gated::start(&redis, &["a"]).ready();
    let wait = |duration: &str| -> Duration {
        let start = Instant::now();
        ends(&redis, &format!("run -w {duration} a -- true")).assert_code(75);
        start.elapsed()
    };
    assert!(wait("1") >= Duration::from_secs(1));
    for duration in ["0.3", ".3", ".3s", "0.3s"] {
        assert!(wait(duration) >= Duration::from_millis(300), "{duration}");
    }
    let before = redis.calls("subscribe");
    wait("0");
    assert_eq!(redis.calls("subscribe"), before, "it doesn't queue");
    ends(&redis, "run -t 0 b -- true").assert_code(0);
}

#[test]
fn months_and_years_are_refused_with_what_to_write() {
    let (such, most) = ("must be a duration such as", "must be at most 365d");
    let month = "M has no fixed length: write days as 30d, or minutes as 1m";
    for (duration, says) in [
        ("1M", month),
        ("1h 2M", month),
        ("2 months", "months has no fixed length"),
        ("1y", "y has no fixed length"),
        ("1e3", such),
        ("inf", such),
        (".s", such),
        ("9999999999999999999999", most),
        ("366d", most),
        ("", such),
    ] {
        let shown = mistake(words!("run -t {} a -- true", duration));
        assert_has(&shown, &["'--max-runtime <TIME>'", says]);
        // An empty variable is like an unset one.
        if !duration.is_empty() {
            let line = "REDLOCK_MAX_RUNTIME={} run a -- true";
            let end = outcome(&mut redlock(&words(line, &[duration])));
            end.assert_said(78, says)
                .assert_says("redlock: REDLOCK_MAX_RUNTIME");
        }
    }
}

/// Returns the output on a terminal of 80 columns.
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
    let groups = crate::generated::GROUPS.iter();
    for part in groups.filter(|part| **part != "Script") {
        let heading = format!("\n{part}:\n");
        let after = rest.split_once(&heading).map(|(_, after)| after);
        rest = after.unwrap_or_else(|| panic!("{part}: {long}"));
    }
    assert_has(rest, &["--url", "NAME has 1 to 200 bytes", "TIME is 500ms"]);
    let (_, examples) = rest.split_once("Examples:").expect("examples");
    let runs = examples
        .lines()
        .filter(|line| line.starts_with("  redlock run"));
    assert_eq!(runs.count(), 3);
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

/// Settings without an option.
const SETTINGS_ONLY: &str = "PREFIX PASSWORD_FILE TLS_CA TLS_CERT TLS_KEY REDIS_TIMEOUT SYNC SYNC_TIMEOUT \
                             REPAIR_TTL HISTORY_SIZE ON_LOST JITTER WHO SHOW HOOK";

#[test]
fn settings_that_are_no_options_are_in_their_section_of_the_manual_and_are_answered_when_typed() {
    let root = crate::generated::root();
    let manual = fs::read_to_string(root.join("man/parts/redlock.roff")).unwrap();
    let (_, section) = manual.split_once(".SH SETTINGS\n").expect("the section");
    let (section, _) = section.split_once("\n.SH ").expect("its end");
    let redis = Redis::start();
    for setting in SETTINGS_ONLY.split(' ') {
        let entry = format!("\\fBREDLOCK_{setting}=\\fR");
        assert!(section.contains(&entry), "{setting}");
        // These settings have never been options.
        if ["REDIS_TIMEOUT", "WHO", "SHOW", "HOOK"].contains(&setting) {
            continue;
        }
        let option = format!("--{}", setting.to_lowercase().replace('_', "-"));
        let says = format!("put REDLOCK_{setting}=VALUE in the environment or redlock.env");
        for line in [
            "{} x run a -- echo ran",
            "run {} x a -- echo ran",
            "acquire a {} x",
        ] {
            let end = outcome(&mut redis.redlock(&words(line, &[&option])));
            end.assert_said(64, &format!("no option {option}: {says}"));
            assert_eq!(end.stderr.lines().count(), 1, "{end:?}");
            assert!(!end.stdout.contains("ran"), "{end:?}");
        }
    }
    for command in ["run", "guard", "acquire", "extend"] {
        let help = outcome(&mut redlock(&[command, "--help"])).stdout;
        let words: Vec<&str> = help.split_whitespace().collect();
        assert_has(&words.join(" "), &["SETTINGS in redlock(1)"]);
    }
}

/// Settings that are options too.
const BOTH: &str = "URL QUIET VERBOSE TTL KILL_AFTER MAX_RUNTIME ON_UNREACHABLE REASON";

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
    assert_eq!(named, BOTH.split(' ').map(str::to_owned).collect());
}

#[test]
fn a_wrong_value_of_a_setting_is_refused_by_each_command_and_says_where_it_is_set() {
    let texts = words("PREFIX PASSWORD_FILE TLS_CA TLS_CERT TLS_KEY WHO HOOK", &[]);
    let settings = SETTINGS_ONLY.split(' ').chain(BOTH.split(' '));
    for setting in settings.filter(|setting| !texts.contains(setting)) {
        let variable = format!("REDLOCK_{setting}");
        let wrong = if setting == "REASON" { " " } else { "wrong" };
        let directory = configured(&format!("\n{variable}='{wrong}'\n"));
        let file = directory.path().join("redlock.env");
        for line in ["run a -- echo ran", "status"] {
            let mut by_variable = redlock(&words(line, &[]));
            let mut by_file = redlock(&words(line, &[]));
            by_variable.env(&variable, wrong);
            by_file.env("XDG_CONFIG_HOME", directory.path());
            let in_file = format!("{}:2", file.display());
            for (command, place) in [(&mut by_variable, &variable), (&mut by_file, &in_file)] {
                let end = outcome(command);
                end.assert_said(78, place);
                assert_eq!(end.stdout, "", "{end:?}");
                assert_eq!(end.stderr.lines().count(), 1, "{end:?}");
            }
        }
    }
}

#[test]
fn a_house_setting_does_what_its_option_does_unless_that_is_typed() {
    let redis = Redis::start();
    let ttl = |settings: &str| -> u64 {
        let line = format!("{settings}run a -c");
        let script = "redis-cli -s \"${REDLOCK_URL#unix://}\" PTTL redlock:a";
        let end = outcome(&mut redis.redlock(&words(&line, &[script])));
        end.assert_code(0).assert_silent();
        end.stdout.trim().parse().unwrap()
    };
    assert!(ttl("") <= 30_000);
    let long = ttl("REDLOCK_TTL=100 ");
    assert!((90_000..=100_000).contains(&long), "{long}");

    let stubborn = "trap '' TERM; while :; do sleep 0.01; done";
    let line = "REDLOCK_MAX_RUNTIME=0.2 REDLOCK_KILL_AFTER=0.1 run b -c";
    outcome(&mut redis.redlock(&words(line, &[stubborn]))).assert_said(124, "--max-runtime 200ms");
    let line = "REDLOCK_REASON={} run b -- redlock status --json b";
    let end = outcome(&mut redis.redlock(&words(line, &["release 1.2"])));
    assert_has(&end.stdout, &["release 1.2"]);
    let line = "REDLOCK_REASON=setting run -m option b -- redlock status --json b";
    assert_has(&ends(&redis, line).stdout, &["\"reason\":\"option\""]);
    // Only a keeper kills anything, and help doesn't read settings.
    ends(&redis, "REDLOCK_KILL_AFTER=1 acquire c").assert_code(0);
    ends(&redis, "REDLOCK_TTL=x run -h").assert_code(0);
    let mut no_setting = redis.redlock(&["run", "d"]);
    outcome(no_setting.env("REDLOCK_SHELL", "echo from the setting")).assert_printed(64, "");
    let line = "REDLOCK_ON_UNREACHABLE=run REDLOCK_URL=redis://127.0.0.1:1 run a -- true";
    outcome(&mut redlock(&words(line, &[]))).assert_code(0);
}

#[test]
fn a_removed_setting_is_ignored_and_named_by_doctor_and_with_verbose() {
    let redis = Redis::start();
    let file = configured("REDLOCK_TTL=9s\nREDLOCK_NO_WAIT=1\n");
    let named = "redlock.env:2: REDLOCK_NO_WAIT; `redlock help redlock` lists all settings";
    let with_file = |line: &str| {
        let mut command = redis.redlock(&words(line, &[]));
        outcome(command.env("XDG_CONFIG_HOME", file.path()))
    };
    with_file("run a -- true").assert_code(0).assert_silent();
    with_file("run -v a -- true").assert_said(0, named);
    let doctor = with_file("doctor");
    assert_eq!(doctor.stdout.matches(named).count(), 1, "{doctor:?}");
    assert_has(&doctor.stdout, &[", TTL 9s\n"]);
    // A job's options have no variable, so that they don't reach the runs that the job starts.
    ends(&redis, "REDLOCK_SLOTS=3 run a -- redlock run b -- true")
        .assert_code(0)
        .assert_silent();
    let end = ends(&redis, "REDLOCK_SLOTS=3 run a -- redlock status --json a");
    let shown = &end.assert_code(0).stdout;
    assert!(!shown.contains("\"slots\":3"), "{shown}");
}

#[test]
fn an_unknown_variable_is_a_warning_in_one_line_that_quiet_silences() {
    let redis = Redis::start();
    let end = ends(&redis, "REDLOCK_TLT=5 run a -- redlock run b -- true");
    let says = "redlock: unknown variable REDLOCK_TLT; did you mean REDLOCK_TTL?\n";
    assert_eq!(end.assert_code(0).stderr, says);
    for line in [
        "REDLOCK_TLT=5 run -q a -- redlock run b -- true",
        // Variables of a job, of another command, and of ci/install.sh.
        "REDLOCK_SLOT=1 run a -- true",
        "REDLOCK_FORMAT=json run a -- true",
        "REDLOCK_VERSION=0.1.0 run a -- true",
    ] {
        ends(&redis, line).assert_code(0).assert_silent();
    }
}

#[test]
fn a_kill_after_that_the_ttl_does_not_allow_is_announced_at_the_start() {
    let redis = Redis::start();
    let says = "redlock: --kill-after 1m is more than half of the TTL: SIGKILL comes 15s after SIGTERM; --ttl 2m allows 1m\n";
    for (line, stderr) in [
        ("run -k 60 a -- true", says),
        ("run -k 60 a b -- true", says),
        ("run --ttl 6s a -- true", ""),
        ("run -k 15 a -- true", ""),
        ("run -k 60 --ttl 2m a -- true", ""),
        ("run -q -k 60 a -- true", ""),
    ] {
        assert_eq!(ends(&redis, line).assert_code(0).stderr, stderr, "{line}");
    }
    ends(&redis, "run -k 5 --ttl 6s a -- true")
        .assert_says("SIGKILL comes 3s after SIGTERM; --ttl 10s allows 5s");
    let script = r#"eval "$(redlock acquire -k 60 --while-pid $$ a)""#;
    outcome(&mut redis.run("-q b", script)).assert_said(0, says);
}
