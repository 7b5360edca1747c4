//! Checks that generated files match the program: man pages, completions, and the commands that the manual prints.
//!
//! The pages come from the definition of the command line, followed by the hand-written sections in man/parts; `make generate`
//! rewrites them. A hand-written DESCRIPTION replaces that of the help. clap writes the completions. The tests ask bash, zsh
//! and fish only for the parts that redlock and the three scripts add.

use std::path::{Path, PathBuf};

use clap_mangen::Man;

use crate::promises::doctor::{Examined, by_url, good};
use crate::promises::untrusted::plant;
use crate::roff;
use crate::support::prelude::*;

#[path = "../../src/cli/mod.rs"]
#[allow(dead_code, unused_imports)]
pub mod cli;

pub fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Returns the pages of the manual, including the hand-written ones.
pub fn man_files() -> impl Iterator<Item = PathBuf> {
    let entries = fs::read_dir(root().join("man")).unwrap().flatten();
    let paths = entries.map(|entry| entry.path());
    paths.filter(|path| path.is_file())
}

/// Groups of options, in the order of help and man pages.
pub const GROUPS: [&str; 8] = [
    "Waiting",
    "Sharing",
    "Only the newest",
    "Lease and failures",
    "Run once across hosts",
    "The command",
    "Script",
    cli::COMMON,
];

/// Returns the file names and texts of all generated pages.
fn pages() -> Vec<(String, String)> {
    let all = cli::documented();
    let subcommands = all
        .get_subcommands()
        .map(|command| page(command, &format!("redlock-{}", command.get_name())));
    subcommands
        .chain([page(&all, "redlock")])
        .chain(FROM_DOCS.map(|(name, about, see_also)| roff::page(name, about, see_also)))
        .collect()
}

/// Pages of docs/ that are also pages of the manual: name, subject and SEE ALSO of each.
const FROM_DOCS: [(&str, &str, &str); 2] = [
    (
        "recipes",
        "locks in scripts, in cron and in CI",
        "redlock(1) redlock-run(1) redlock-acquire(1)",
    ),
    (
        "servers",
        "set up Redis for locks: TLS, passwords, access lists, failover",
        "redlock(1) redlock-doctor(1) redlock-protocol(7)",
    ),
];

/// Returns the printed form of a text in roff.
pub fn plain(text: &str) -> String {
    let escapes = [("\\-", "-"), ("\\e", "\\"), ("\\(aq", "'"), ("\\&", "")];
    let mut text = text.to_owned();
    for (escape, printed) in escapes {
        text = text.replace(escape, printed);
    }
    text
}

/// Text that `clap_mangen` puts before each part of a page.
const PREAMBLE: &str = ".ie \\n(.g .ds Aq \\(aq\n.el .ds Aq '\n";

/// Pointer, in the page of each command, to the options of every command.
const COMMON_OPTIONS: &str = ".PP\nOptions of every command, such as \\fB\\-\\-url\\fR and \\fB\\-\\-quiet\\fR: see \\fBredlock\\fR(1).\n";

/// Returns true if every command has this option: redlock(1) describes these.
fn is_common(option: &clap::Arg) -> bool {
    option.get_help_heading() == Some(cli::COMMON)
}

/// Returns the text with its first letter in lower case, like all NAME sections.
fn uncapitalized(name_section: &str) -> String {
    let (start, about) = name_section.rsplit_once("\\- ").expect("a description");
    let (first, rest) = about.split_at(1);
    format!("{start}\\- {}{rest}", first.to_lowercase())
}

fn page(command: &clap::Command, name: &str) -> (String, String) {
    let is_of_subcommand = command.get_name() != "redlock";
    // clap requires `'static` names.
    let static_name: &'static str = name.to_owned().leak();
    let usage = command.clone().render_usage().to_string();
    let mut shown = command
        .clone()
        .display_name(static_name)
        .name(static_name)
        .override_usage(usage.trim_start_matches("Usage: ").to_owned());
    // The NAME section already has the first paragraph.
    if let Some(about) = command.get_long_about().map(ToString::to_string)
        && let Some((_, description)) = about.split_once("\n\n")
    {
        shown = shown.long_about(description.to_owned());
    }
    if is_of_subcommand {
        shown = shown.mut_args(|option| {
            let is_hidden = is_common(&option) || option.is_hide_set();
            option.hide(is_hidden)
        });
    }
    let by_hand = fs::read_to_string(root().join(format!("man/parts/{name}.roff"))).unwrap();
    let (description, by_hand) = match by_hand.split_once("\n.SH ") {
        Some((description, rest)) if description.starts_with(".SH DESCRIPTION\n") => {
            (Some(format!("{description}\n")), format!(".SH {rest}"))
        }
        _ => (None, by_hand),
    };
    let man = Man::new(shown);
    let section = |render: &dyn Fn(&mut dyn std::io::Write) -> std::io::Result<()>| {
        let mut section = Vec::new();
        render(&mut section).unwrap();
        String::from_utf8(section).unwrap()
    };
    let mut parts = uncapitalized(&section(&|out| man.render_name_section(out)));
    parts += &section(&|out| man.render_synopsis_section(out));
    parts += &description.unwrap_or_else(|| section(&|out| man.render_description_section(out)));
    let mut options = section(&|out| man.render_options_section(out));
    // All groups of options belong in one section.
    for group in GROUPS {
        let heading = format!(".SH \"{}\"\n", group.to_uppercase());
        options = options.replace(&heading, &format!(".SS {group}\n"));
        let heading = format!(".SH {}\n", group.to_uppercase());
        options = options.replace(&heading, &format!(".SS {group}\n"));
    }
    parts += &options;
    if is_of_subcommand {
        parts += COMMON_OPTIONS;
    }
    let parts = parts.replace(PREAMBLE, "");
    // The title has no date, because somebody would need to update it by hand. clap_mangen would leave the empty argument out.
    let title = name.to_uppercase();
    let version = env!("CARGO_PKG_VERSION");
    let text = format!(
        "{PREAMBLE}.TH {title} 1 \"\" \"redlock {version}\" \"redlock manual\"\n.nh\n{}",
        parts.replace(".br\n\n.br\n", ".sp\n")
    );
    (format!("{name}.1"), text + &by_hand)
}

#[test]
fn the_man_pages_are_those_of_the_command_line() {
    for (name, text) in pages() {
        let file = root().join("man").join(&name);
        if std::env::var_os("UPDATE").is_some() {
            fs::write(&file, &text).unwrap();
        }
        let committed = fs::read_to_string(&file).unwrap_or_default();
        assert!(
            committed == text,
            "man/{name} is out of date; `make generate` rewrites it"
        );
    }
}

#[test]
fn the_man_pages_are_good_roff() {
    for file in man_files() {
        let mut man = Command::new("man");
        man.args(["--warnings", "-E", "UTF-8", "-l"]).arg(&file);
        let shown = outcome(man.env("MANWIDTH", "80"));
        shown.assert_code(0).assert_silent();
        assert!(shown.stdout.lines().count() > 20, "{shown:?}");
        let wide = |line: &&str| line.chars().count() > 80;
        assert_eq!(shown.stdout.lines().find(wide), None, "{file:?}");
        let source = fs::read_to_string(&file).unwrap();
        let items = source.split("\n.TP\n").skip(1);
        let mut unexplained = items.filter(|item| item.lines().nth(1).is_none_or(str::is_empty));
        assert_eq!(unexplained.next(), None, "{file:?}");
    }
}

/// Returns the words that a shell prints for a script.
fn shell(redis: &Redis, words: &[&str]) -> Vec<String> {
    let mut shell = directly(redis, words);
    shell
        .env("TERM", "dumb")
        .env("REDLOCK_REDIS_TIMEOUT", "60s");
    let end = outcome(shell.current_dir(root()));
    end.assert_code(0).assert_silent();
    end.stdout.split_whitespace().map(str::to_owned).collect()
}

/// Returns bash's completions at the end of a line, after splitting it into words like bash.
fn bash(redis: &Redis, line: &str) -> Vec<String> {
    let script = r#"
source completions/redlock.bash
COMP_LINE=$1 COMP_POINT=${#1}
cut=${1//:/ : }
read -ra COMP_WORDS <<<"${cut//=/ = }"
[[ $1 == *' ' ]] && COMP_WORDS+=('')
COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
_redlock
printf '%s\n' "${COMPREPLY[@]}"
"#;
    shell(redis, &["bash", "--norc", "-c", script, "bash", line])
}

fn fish(redis: &Redis, line: &str) -> Vec<String> {
    let script =
        "source completions/redlock.fish; complete -C $argv[1] | string split -f1 \\t; true";
    shell(redis, &["fish", "--no-config", "-c", script, line])
}

/// Returns zsh's completion of a line, waiting until it is the expected one.
fn zsh_completes(redis: &Redis, line: &str, expected: &str) {
    let script = r#"
zmodload zsh/zpty
zpty shell zsh -f -i
zpty -w shell "PS1=; unsetopt beep; fpath=(completions \$fpath); autoload -Uz compinit; compinit -u -d $HOME/dump; zstyle ':completion:*' list-colors; echo rea''dy"
zpty -r -m shell line '*ready*'
zpty -n -w shell "$1"$'\t'
line=
for try in {1..1000}; do
    zpty -r -t shell part && line+=$part
    [[ $line == *$2* ]] && break
    sleep 0.05
done
print -r -- "$line"
"#;
    let seen = shell(redis, &["zsh", "-f", "-c", script, "zsh", line, expected]).join(" ");
    assert!(seen.contains(expected), "{line} became {seen}");
}

/// Lines, and the only completion that each shell offers for them. The lock "deploy:prod" is held, "older" has a history, and
/// two names look like options.
const COMPLETED: [(&str, &str); 18] = [
    ("sta", "status"),
    ("run --no-w", "--no-wait"),
    ("thaw --ur", "--url"),
    ("run --on-unreachable f", "fail"),
    ("acquire --format g", "github"),
    ("stop ", "deploy:prod"),
    ("run -n --ttl 5s a dep", "deploy:prod"),
    ("guard --with-children a dep", "deploy:prod"),
    ("acquire --format json dep", "deploy:prod"),
    ("extend --for 5s dep", "deploy:prod"),
    ("freeze --reason x dep", "deploy:prod"),
    ("history -n 5 dep", "deploy:prod"),
    ("run old", "older"),
    ("thaw dep", "deploy:prod"),
    ("history --svg Cargo.t", "Cargo.toml"),
    ("extend a --token-file Cargo.t", "Cargo.toml"),
    ("release --token-file Cargo.t", "Cargo.toml"),
    ("fence Cargo.t", "Cargo.toml"),
];

#[test]
fn each_shell_completes_commands_options_and_names_of_live_locks() {
    let redis = Redis::start();
    let _held = Gated::start(&redis, &["deploy:prod"]).ready();
    let other = Redis::start();
    let _elsewhere = Gated::start(&other, &["elsewhere"]).ready();
    outcome(&mut redis.redlock(words!("run older -- true"))).assert_code(0);
    for name in ["--shell=true", "-q"] {
        plant(&redis, name);
    }
    for (line, expected) in COMPLETED {
        let line = format!("redlock {line}");
        for complete in [bash, fish] {
            assert_eq!(complete(&redis, &line), [expected], "{line}");
        }
        zsh_completes(&redis, &line, expected);
    }
    let url = other.url();
    for complete in [bash, fish] {
        let complete = |line: &str| complete(&redis, &format!("redlock {line}"));
        // Nothing to offer: the line is complete, only the user knows the next word, or nobody holds the lock.
        for line in [
            "acquire a ",
            "extend a ",
            "release a ",
            "freeze a --reason ",
            "history -n ",
            "run --seq ",
            "stop old",
        ] {
            assert_eq!(complete(line), [""; 0], "{line}");
        }
        assert_eq!(complete("run a --on-unreachable "), ["fail", "run"]);
        assert_eq!(complete("fence Cargo."), ["Cargo.lock", "Cargo.toml"]);
        for line in [format!("-u {url} status "), format!("status --url={url} ")] {
            assert_eq!(complete(&line), ["elsewhere"], "{line}");
        }
        assert!(complete("run a -- redlo").contains(&"redlock".to_owned()));
        assert_eq!(complete("run a -- cat ./Makef"), ["./Makefile"]);
    }
    // bash replaces the text after the last colon or equals sign.
    assert_eq!(bash(&redis, "redlock release deploy:p"), ["prod"]);
    assert_eq!(bash(&redis, "redlock run --on-unreachable=f"), ["fail"]);
    assert_eq!(fish(&redis, "redlock release deploy:p"), ["deploy:prod"]);
    let joined = fish(&redis, "redlock run --on-unreachable=f");
    assert_eq!(joined, ["--on-unreachable=fail"]);
    let inner = "redlock guard a -- redlock st";
    assert!(fish(&redis, inner).contains(&"status".to_owned()));
    zsh_completes(&redis, inner, "status");
    for command in cli::documented().get_subcommands() {
        let name = command.get_name();
        let mut offered = bash(&redis, &format!("redlock {name} --"));
        offered.retain(|option| option != "--");
        let shown = command
            .get_arguments()
            .filter(|option| !option.is_hide_set());
        let long = shown.filter_map(clap::Arg::get_long);
        let mut expected: Vec<String> = long.map(|option| format!("--{option}")).collect();
        offered.sort();
        expected.sort();
        assert_eq!(offered, expected, "{name}");
    }
}

#[test]
fn a_name_that_looks_like_a_command_is_completed_and_never_run() {
    let redis = Redis::start();
    let ran = redis.dir.path().join("ran");
    let name = format!("x$(touch${{IFS}}{})", ran.display());
    let _held = Gated::start(&redis, &[&name]).ready();
    let quoted = bash(&redis, "redlock release x").concat();
    assert!(quoted.starts_with(r"x\$\(touch"), "{quoted}");
    assert_eq!(fish(&redis, "redlock release x"), [name]);
    zsh_completes(&redis, "redlock release x", r"x\$\(touch");
    assert!(!ran.exists());
}

#[test]
fn a_server_that_stalls_is_not_waited_for_at_a_tab() {
    let redis = Redis::start();
    redis.stall();
    let started = Instant::now();
    let mut tab = redis.redlock(&["--", "redlock", "release", ""]);
    let end = outcome(tab.env("_REDLOCK_COMPLETES", "1"));
    end.assert_code(0).assert_silent();
    assert_eq!(end.stdout, "");
    assert!(started.elapsed() < Duration::from_secs(30));
}

/// Returns the commands of docs/servers.md that make ACL users.
fn acl_commands() -> [String; 2] {
    let text = roff::docs("servers").replace("\\\n", "");
    let commands = text.split("printf '>%s'").skip(1).map(|rest| {
        let (words, _) = rest.split_once("```").expect("the end of the command");
        let words = ["printf", "'>%s'"]
            .into_iter()
            .chain(words.split_whitespace());
        words.collect::<Vec<_>>().join(" ")
    });
    let commands: Vec<String> = commands.collect();
    commands.try_into().expect("two commands")
}

/// Creates the ACL users of docs/servers.md, with the password "secret".
pub fn make_acl_users(redis: &Redis) {
    make_acl_users_after(redis, "");
}

/// Like `make_acl_users`, after `line` in the same shell.
fn make_acl_users_after(redis: &Redis, line: &str) {
    let commands = acl_commands();
    let cli = format!("redis-cli -s {}", redis.socket().display());
    let password = redis.dir.path().join("password");
    fs::write(&password, "secret\n").unwrap();
    crate::promises::config::set_mode(&password, 0o600);
    for command in commands {
        let command = command
            .replace("redis-cli", &cli)
            .replace("/etc/redlock.password", "password")
            .replace("viewer.password", "password");
        // Before, there were no rules for channels, as docs/servers.md says.
        let is_old = SERVER.is_before(6, 2);
        let is_known = |word: &&str| !is_old || !word.starts_with("'&") && *word != "resetchannels";
        let words: Vec<&str> = command.split(' ').filter(is_known).collect();
        let script = format!("{line}\n{}", words.join(" "));
        let mut shell = Command::new("sh");
        shell.args(["-c", &script]).current_dir(redis.dir.path());
        assert_eq!(outcome(&mut shell).stdout, "OK\n");
    }
}

/// Runs redlock with this URL and this line, in the directory of the server.
fn with_url(redis: &Redis, url: &str, line: &str) -> Outcome {
    let words: Vec<&str> = ["-u", url].into_iter().chain(line.split(' ')).collect();
    outcome(redis.redlock(&words).current_dir(redis.dir.path()))
}

#[test]
fn the_printed_acl_users_can_be_made_on_a_server_with_a_password() {
    let redis = Redis::start();
    redis.cli(&["CONFIG", "SET", "requirepass", "hunter2"]);
    let page = fs::read_to_string(root().join("docs/servers.md")).unwrap();
    let export = "export REDISCLI_AUTH=PASSWORD";
    assert!(page.contains(&format!("`{export}`")));
    make_acl_users_after(&redis, &export.replace("PASSWORD", "hunter2"));
    let url = format!("{}?user=jobs&pass=secret", redis.url());
    let end = with_url(&redis, &url, "run a -- true");
    end.assert_code(0).assert_silent();
}

#[test]
fn the_printed_acl_rule_for_people_who_may_only_look_permits_that_and_no_more() {
    let redis = Redis::start();
    make_acl_users(&redis);
    let mut holder = Gated::start(&redis, &["a"]).ready();
    let _waiter = Gated::queued(&redis, &["a"]);
    outcome(&mut redis.redlock(words!("run b -- true"))).assert_code(0);
    let url = format!("{}?user=viewer&pass=secret", redis.url());
    for line in ["status", "status --json a b", "history", "history --json b"] {
        with_url(&redis, &url, line).assert_code(0).assert_silent();
    }
    let refused = redis.cli(&["ACL", "LOG"]);
    assert!(!refused.contains("reason"), "{refused}");
    for line in [
        "run b -- true",
        "acquire b",
        "release --force a",
        "freeze a --reason x",
    ] {
        with_url(&redis, &url, line).assert_code(77);
    }
    assert!(!holder.run.has_ended());
    // Doctor must not advise a read-only user to become another user.
    let url = format!("redis://viewer:secret@127.0.0.1:{}/1", redis.port);
    let examined = Examined::new(&mut by_url(&url, &[]));
    examined.says("scripts fail: isn't permitted → if it is to acquire locks");
}

#[test]
fn the_printed_acl_rule_permits_all_that_redlock_does() {
    let redis = good();
    make_acl_users(&redis);
    let url = format!("redis://jobs:secret@127.0.0.1:{}", redis.port);
    let examined = Examined::new(&mut by_url(&url, &[]));
    for level in ["fail", "warn", "unknown"] {
        examined.only(level, "");
    }
    // Doctor also tries commands that redlock can do without.
    redis.cli(&["ACL", "LOG", "RESET"]);
    let password = redis.dir.path().join("password");
    let password = password.to_str().unwrap();
    for url in [
        format!("redis://jobs@127.0.0.1:{}/2", redis.port),
        format!("{}?user=jobs", redis.url()),
    ] {
        let redlock = |arguments: &[&str]| {
            let server = ["-v", "-u", &url, setting("REDLOCK_PASSWORD_FILE", password)];
            redis.redlock(&[&server, arguments].concat())
        };
        let script = "echo ready; exec sleep 60";
        let hold = words!("run --ttl 9s -k 100ms a -c", script);
        let mut holder = Running::start(&mut redlock(hold));
        holder.expect_line("ready");
        let waiter = Running::start(&mut redlock(words!("run a -- true")));
        wait_until("the waiter listens", || {
            let channels = redis.cli(&["PUBSUB", "CHANNELS", "*"]);
            channels.starts_with("{redlock:a}:")
        });
        let renewals = redis.calls("pexpire");
        wait_until("it is renewed", || redis.calls("pexpire") > renewals);
        outcome(&mut redlock(words!("release --force a"))).assert_code(0);
        let end = waiter.finish();
        end.assert_code(0).assert_says("lock \"a\" released");
        holder.finish().assert_code(79).assert_says("forced free");

        // With a history of one, the second hold trims it.
        let token = redis.dir.path().join("token");
        let steps = format!(
            "set -e; t={}
             redlock freeze -q c --reason x; redlock status -q c; redlock thaw c
             for n in 1 2 3; do REDLOCK_HISTORY_SIZE=1 redlock run c -- true; done
             redlock run --hold-at-least 1ms --once-per 1h e -- true
             redlock run c -c 'redlock extend --for 1m; redlock extend; redlock release'
             redlock acquire c --format token >$t
             redlock extend --token-file $t c --for 1m; redlock extend --token-file $t c
             redlock release --token-file $t c
             redlock acquire c --ttl 1s --format token >$t
             redlock run -q c -- true
             redlock run --slots 2 d -- redlock run --slots 2 d -- true
             redlock run -s d -- redlock run -s d -- true
             REDLOCK_REPAIR_TTL=1 redlock run --supersede --seq 1 --cancel-in-progress d -- true
             redlock run --ttl 2s b -c 'kill -9 $PPID' || redlock run -q b -- true
             redlock freeze c d --drain --reason x; redlock thaw c d; redlock history; redlock history --json c",
            token.display()
        );
        let mut job = sh(&redis, &steps);
        job.env("REDLOCK_URL", &url)
            .env("REDLOCK_PASSWORD_FILE", password);
        outcome(&mut job).assert_code(0);
    }
    // redlock works without the commands that scripts may not call.
    let refused = redis.cli(&["ACL", "LOG"]);
    assert!(!refused.contains("reason"), "{refused}");
    let url = format!("{}?user=jobs&pass=secret", redis.url());
    with_url(&redis, &url, "REDLOCK_PREFIX=other: run a -- true").assert_code(77);
}

/// Printed rules that redlock can do without. Without them it loses the history, or the messages about changes, so waiters and
/// holders poll.
const DISPENSABLE: &str = "&{redlock:* +getrange +hscan +lpush +ltrim +publish +subscribe +hello +client|tracking \
    +client|caching +role +info";

/// Rules without which waiters poll.
const OF_MESSAGES: [&str; 3] = ["&{redlock:*", "+publish", "+subscribe"];

/// Lines, with their exit statuses if no rule is missing. # becomes the number of the missing rule, because a lock may stay
/// behind.
const WITHOUT: [(&str, i32); 15] = [
    ("status held", 0),
    ("history held", 0),
    ("run -n held -- true", 75),
    ("run -w 100ms held -- true", 75),
    ("run free-# -- true", 0),
    ("run --supersede newest-# -- true", 0),
    (
        "run REDLOCK_SYNC=1 REDLOCK_SYNC_TIMEOUT=50ms other-# -- true",
        69,
    ),
    ("extend alone --token-file alone", 0),
    ("extend alone --for 1m --token-file alone", 0),
    ("release alone --token-file alone", 0),
    ("status slot", 0),
    ("extend slot --token-file slot", 0),
    ("release slot --token-file slot", 0),
    ("freeze -q free-# --reason x", 0),
    ("thaw -q free-#", 0),
];

/// Asserts that doctor names a missing rule if a run can't do without the rule, or if its waiters poll. The run may leave its
/// lock behind.
#[track_caller]
fn assert_doctor_names(redis: &Redis, url: &str, missing: &str, lock: &str) {
    let examined = Examined::new(&mut by_url(url, &[]));
    let is_of_messages = OF_MESSAGES.contains(&missing);
    if is_of_messages {
        examined.says(&format!("messages warn: waiters poll → {missing}"));
    }
    if missing == "+info" {
        examined.says("eviction unknown: isn't permitted to run INFO");
    }
    let end = with_url(redis, url, &format!("run {lock} -- true"));
    if end.code() == Some(0) {
        examined.only("warn", if is_of_messages { "messages" } else { "" });
    } else {
        end.assert_said(77, "`redlock doctor`");
        examined.says("scripts fail: \"jobs\" isn't permitted to → ACL SETUSER jobs ");
        let rule = missing.trim_end_matches('*');
        examined.says(&format!("scripts fail:  → {rule}"));
    }
}

#[test]
fn each_missing_acl_rule_is_reported_or_dispensable() {
    let redis = good();
    let [rule, _] = acl_commands();
    let (_, rule) = rule.split_once("reset on ").unwrap();
    let rules = rule.split(' ').map(|rule| rule.trim_matches('\''));
    let rules: Vec<&str> = rules.collect();
    let holder = Gated::start(&redis, &["held"]).ready();
    let url = format!("redis://jobs:secret@127.0.0.1:{}/0", redis.port);
    let with_select = format!("redis://jobs:secret@127.0.0.1:{}/1", redis.port);
    let needed = rules.iter().filter(|rule| **rule != "resetchannels");
    for (number, missing) in needed.enumerate() {
        let others = rules.iter().copied().filter(|rule| rule != missing);
        let left: Vec<&str> = others.collect();
        let user = words!("ACL SETUSER jobs reset on >secret");
        assert_eq!(redis.cli(&[user, &left[..]].concat()), "OK");
        // Another user acquires these locks: the user under test extends and releases them.
        for (lock, slots) in [("alone", "1"), ("slot", "2")] {
            let acquire = words!("acquire {} --slots {} --format token", lock, slots);
            let acquired = outcome(&mut redis.redlock(acquire));
            let token = &acquired.assert_code(0).stdout;
            fs::write(redis.dir.path().join(lock), token).unwrap();
        }
        let is_select = *missing == "+select";
        let url = if is_select { &with_select } else { &url };
        let mut named = false;
        for (line, status) in WITHOUT {
            let end = with_url(&redis, url, &line.replace('#', &number.to_string()));
            let refusal = "user \"jobs\" isn't permitted to ";
            let mut refusals = end.stderr.lines().filter(|line| line.contains(refusal));
            let names_it = refusals.all(|line| line.contains(&format!("{missing} ")));
            assert!(names_it, "{missing} {line}: {end:?}");
            named |= end.code() == Some(77);
            // Another database has other locks, so these statuses don't apply there.
            let is_as_ever = end.code() == Some(status) || is_select;
            assert!(named || is_as_ever, "{missing} {line}: {end:?}");
            if named {
                break;
            }
        }
        let is_dispensable = DISPENSABLE.split(' ').any(|rule| rule == *missing);
        assert_eq!(named, !is_dispensable, "{missing}");
        if !is_select {
            assert_doctor_names(&redis, url, missing, &format!("doctor-{number}"));
        }
        for lock in ["alone", "slot"] {
            outcome(&mut redis.redlock(&["release", "-q", "--force", lock]));
        }
    }
    holder.end();
}
