//! Settings and connections. Tests can't change /etc/redlock.env without changing the machine; redlock reads it with the same
//! code as the user's file.

use std::path::Path;

use crate::support::prelude::*;

/// Creates a directory for `XDG_CONFIG_HOME` with this configuration file.
pub fn configured(text: &str) -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    fs::write(directory.path().join("redlock.env"), text).unwrap();
    directory
}

/// Runs a COMMAND that prints "ran", with the configuration file of this directory.
fn run_with_file(directory: &Path) -> Outcome {
    outcome(redlock(words!("run a -- echo ran")).env("XDG_CONFIG_HOME", directory))
}

/// Asserts that COMMAND didn't run because of the configuration.
#[track_caller]
fn assert_refused(end: &Outcome, says: &str) {
    end.assert_printed(78, "").assert_says(says);
}

/// Words before a command that reads the configuration file in the directory "c" of its home.
const BY_FILE: &str = "env -u REDLOCK_URL XDG_CONFIG_HOME=$HOME/c";

#[test]
fn the_environment_counts_before_the_users_file() {
    let redis = Redis::start();
    let (url, run) = (redis.url(), "env -u REDLOCK_URL redlock run a -- sh ~/key");
    redis.play(&format!(
        r#"0 mkdir ~/.config ~/xdg; echo "redis-cli -s ~/redis.sock KEYS '*:a' | grep -v '{{'" >~/key
        0 printf '# ours\nREDLOCK_URL={url}\nexport REDLOCK_PREFIX="file:"\n' >~/.config/redlock.env
        0 sed s/file:/xdg:/ ~/.config/redlock.env >~/xdg/redlock.env
        0 [ "$({run})" = file:a ]
        0 [ "$(REDLOCK_PREFIX=environment: {run})" = environment:a ]
        0 [ "$(XDG_CONFIG_HOME=$HOME/xdg {run})" = xdg:a ]"#
    ));
}

#[test]
fn a_mistake_in_the_file_is_78_and_named_with_its_line() {
    let meant = "1: unknown setting REDLOCK_URI; did you mean REDLOCK_URL?";
    for (text, says) in [
        ("REDLOCK_URI=redis://u:hunter2@h", meant),
        ("\nhunter2", "2: expected NAME=value"),
        ("REDLOCK_QUIET=hunter2", "1: REDLOCK_QUIET must be 1 or 0"),
        ("REDLOCK_NAME=hunter2", "1: unknown setting REDLOCK_NAME"),
        ("REDLOCK_E=hunter2", "1: unknown setting REDLOCK_E"),
    ] {
        let end = run_with_file(configured(text).path());
        assert_refused(&end, &format!("/redlock.env:{says}"));
        assert!(!end.stderr.contains("hunter2"), "{end:?}");
    }
}

#[test]
fn quiet_or_verbose_wins_by_the_precedence_of_its_source() {
    let redis = Redis::start();
    // An empty value in a file sets nothing.
    let empty = configured("REDLOCK_TTL=\nREDLOCK_REASON=''\nREDLOCK_URL=\n");
    let quiet = configured("REDLOCK_QUIET=1\n");
    for (file, line, says) in [
        (&empty, "run a", ""),
        (&empty, "REDLOCK_VERBOSE=1 run a", "acquired"),
        (&empty, "REDLOCK_VERBOSE=1 run -q a", ""),
        (&quiet, "run a", ""),
        (&quiet, "REDLOCK_VERBOSE=1 run a", "released"),
        (&quiet, "REDLOCK_VERBOSE=1 REDLOCK_QUIET=1 run a", ""),
    ] {
        let mut run = redis.redlock(&words(line, &["--", "true"]));
        let end = outcome(run.env("XDG_CONFIG_HOME", file.path()));
        end.assert_said(0, says);
        assert_eq!(end.stderr.is_empty(), says.is_empty(), "{line}: {end:?}");
    }
}

#[test]
fn databases_users_and_passwords_are_used_and_never_shown() {
    let redis = Redis::start();
    redis.cli(words!("ACL SETUSER jobs on >hunter2 ~* &* +@all"));
    redis.cli(words!("CONFIG SET requirepass hunter2"));
    let file = redis.dir.path().join("password");
    fs::write(&file, "hunter2\n").unwrap();
    let (port, path) = (redis.port, redis.url());
    let script = format!("redis-cli -p {port} -a hunter2 --no-auth-warning -n 3 EXISTS redlock:a");
    for url in [
        format!("redis://jobs@127.0.0.1:{port}/3"),
        format!("{path}?db=3"),
        format!("redis://jobs:hunter2@127.0.0.1:{port}/3"),
    ] {
        let by = |line: &str, values: &[&str]| {
            let mut command = redlock(&words(line, &[&[&*url], values].concat()));
            let end = outcome(command.env("REDLOCK_PASSWORD_FILE", &file));
            assert!(!format!("{end:?}").contains("hunter2"), "{end:?}");
            end
        };
        by("-v -u {} run a -c", &[&script]).assert_printed(0, "1\n");
        for line in ["status a", "status --json a", "release --force a"] {
            by(&format!("-v -u {{}} {line}"), &[]);
        }
    }
}

pub fn openssl(directory: &Path, arguments: &str) {
    let end: Outcome = Command::new("openssl")
        .args(arguments.split(' '))
        .current_dir(directory)
        .output()
        .expect("openssl is installed")
        .into();
    end.assert_code(0);
}

#[test]
fn the_password_of_a_configuration_file_goes_to_no_server_that_was_named_elsewhere() {
    let redis = Redis::with(&["--requirepass", "mine"]);
    let (url, without) = (
        format!("redis://:mine@127.0.0.1:{}", redis.port),
        redis.tcp_url(),
    );
    // A typed URL takes precedence over the environment.
    redis.play(&format!(
        r"0 mkdir ~/c; printf 'REDLOCK_URL=redis://h\nREDLOCK_PASSWORD_FILE=/nowhere\n' >~/c/redlock.env
        0 umask 077; echo another >~/another; echo mine >~/right
        0 {BY_FILE} redlock -u {url} run a -- true
        77 {BY_FILE} redlock -u {without} run a -- true → requires a password
        0 REDLOCK_PASSWORD_FILE=~/another {BY_FILE} redlock -u {url} run a -- true
        0 REDLOCK_PASSWORD_FILE=~/right {BY_FILE} redlock -u {without} run a -- true"
    ));
}

#[test]
fn a_user_who_may_not_read_the_configuration_takes_no_lock_on_the_default_server() {
    let user = some_or_return!(OtherUser::new());
    let file = configured("REDLOCK_URL=redis://10.0.0.5\n");
    set_mode(file.path(), 0o755);
    set_mode(&file.path().join("redlock.env"), 0o600);
    let mut run = user.command(&["./redlock", "run", "a", "--", "true"]);
    outcome(run.env("XDG_CONFIG_HOME", file.path())).assert_said(78, "can't read ");
    let redis = Redis::start();
    let mut run = user.redlock(&redis, &["run", "a", "--", "true"]);
    outcome(run.env("XDG_CONFIG_HOME", file.path()))
        .assert_code(0)
        .assert_silent();
}

pub fn set_mode(path: &Path, mode: u32) {
    let mode = std::os::unix::fs::PermissionsExt::from_mode(mode);
    fs::set_permissions(path, mode).unwrap();
}

#[test]
fn a_configuration_file_that_others_may_write_is_refused() {
    let redis = Redis::start();
    let run = format!("{BY_FILE} redlock run a -- true");
    let (home, url) = (redis.dir.path().display(), redis.url());
    let file = format!("{home}/c/redlock.env");
    redis.play(&format!("0 mkdir ~/c; echo REDLOCK_URL={url} >{file}"));
    let refused = "666 {file}|664 {file}|602 {file}|620 {file}";
    // redlock also refuses a file that other users could replace.
    let replaced = "777 {dir}|770 {dir}|1777 {dir}";
    for row in refused.split('|').chain(replaced.split('|')) {
        let (mode, path) = row.split_once(' ').unwrap();
        let path = path
            .replace("{file}", &file)
            .replace("{dir}", &format!("{home}/c"));
        redis.play(&format!(
            "0 chmod 644 {file}; chmod 755 ~/c; {run}
            0 chmod {mode} {path}
            78 {run} → has mode {mode} … chmod go-w {path}"
        ));
    }
    // redlock checks the file at the end of a link. A file that sets nothing may belong to anyone.
    redis.play(&format!(
        "0 chmod 755 ~/c; for mode in 644 640 600 400 755; do chmod $mode {file}; {run} || exit; done
        0 mv {file} ~/settings; ln -s ~/settings {file}; {run}
        0 chmod 606 ~/settings
        78 {run} → has mode 606
        0 ln -sf /dev/null {file}; XDG_CONFIG_HOME=~/c redlock status"
    ));
}

#[test]
fn root_refuses_the_configuration_file_of_another_user_and_users_their_neighbours() {
    let user = some_or_return!(OtherUser::new());
    let redis = Redis::start();
    let directory = configured(&format!("REDLOCK_URL={}\n", redis.tcp_url()));
    let home = directory.path();
    let file = home.join("redlock.env");
    set_mode(home, 0o755);
    let own = |path: &Path, owner: u32| std::os::unix::fs::chown(path, Some(owner), None).unwrap();
    let as_user = || {
        let mut run = user.command(&["./redlock", "run", "a", "--", "true"]);
        outcome(run.env("XDG_CONFIG_HOME", home))
    };
    // All users may use root's file.
    run_with_file(home).assert_code(0);
    for (owner, says) in [(54321, "belongs to user 54321"), (65534, "65534")] {
        own(&file, owner);
        run_with_file(home)
            .assert_said(78, says)
            .assert_says("mode 644")
            .assert_says(&format!("chown 0 {}", file.display()));
        own(&file, 0);
        // The owner of a directory could choose among root's files with a link.
        own(home, owner);
        run_with_file(home).assert_said(78, says);
        own(home, 0);
    }
    // A user trusts root's files and their own, and no others.
    as_user().assert_code(0);
    own(&file, 54321);
    own(home, 54321);
    as_user().assert_code(0);
    own(&file, 54322);
    as_user()
        .assert_said(78, "belongs to user 54322")
        .assert_says(&format!("chown 54321 {}", file.display()));
}

#[test]
fn root_runs_no_command_that_another_user_has_put_on_the_way_to_its_configuration_file() {
    use std::os::unix::fs::{chown, symlink};
    let user = some_or_return!(OtherUser::new());
    let directory = tempfile::tempdir().unwrap();
    let redis = Redis::start();
    let (home, mark) = (directory.path().join("home"), directory.path().join("ran"));
    let config = home.join(".config");
    fs::create_dir_all(&config).unwrap();
    set_mode(directory.path(), 0o755);
    let command = format!("REDLOCK_HOOK=touch {}", mark.display());
    // Environment of a root program that another user started: the user chose the text, but root owns the file.
    let settings = format!("\n{command}\n");
    let mut setuid = user.command(&["./become", "sh", "-c", "echo $$; exec head -n 1 gate"]);
    let mut setuid = Running::start(setuid.env("A", &settings));
    let environ = format!("/proc/{}/environ", setuid.line());
    let file = config.join("redlock.env");
    // Runs redlock as root with another user's home.
    let run_at = |home: &Path| {
        let mut run = redlock(words!("run a -- true"));
        run.env("HOME", home).env("REDLOCK_URL", redis.tcp_url());
        let end = outcome(&mut run);
        assert!(!mark.exists(), "{end:?}");
        end
    };
    let its_directory = format!("its directory {}", config.display());
    // The user's file, the user's link to a file of root, and root's own link to a file with the user's text.
    chown(&config, Some(54321), None).unwrap();
    fs::write(&file, format!("{command}\n")).unwrap();
    assert_refused(&run_at(&home), &its_directory);
    fs::remove_file(&file).unwrap();
    symlink(&environ, &file).unwrap();
    assert_refused(&run_at(&home), &its_directory);
    chown(&config, Some(0), None).unwrap();
    run_at(&home).assert_code(0);
    // Another user replaced root's directory with a link to a directory of root, which has only trusted files.
    let theirs = directory.path().join("theirs");
    fs::create_dir(&theirs).unwrap();
    symlink(&config, theirs.join(".config")).unwrap();
    chown(&theirs, Some(54321), None).unwrap();
    run_at(&theirs).assert_code(0);
    drop(setuid);
}

#[test]
fn an_invalid_settings_file_is_78_at_once_and_named() {
    let redis = Redis::start();
    let file = format!("{}/c/redlock.env", redis.dir.path().display());
    let socket = format!("import socket; socket.socket(socket.AF_UNIX).bind(\"{file}\")");
    let dos = format!("{file}:1: DOS line endings; run: sed -i 's/\\r$//' {file}");
    redis.play("0 mkdir ~/c");
    for (make, says) in [
        ("printf '# ours\\r\\nREDLOCK_URL=redis://h\\r\\n' >", &*dos),
        ("printf 'REDLOCK_REASON=\\377\\n' >", "isn't UTF-8"),
        (
            "head -c 10485760 /dev/zero | tr '\\0' '#' >",
            "it is larger than",
        ),
        ("mkfifo ", "it isn't a file"),
        ("ln -s /dev/ptmx ", "it isn't a file"),
        ("ln -s redlock.env ", "can't read"),
        ("ln -s /run/secrets/not-mounted ", "can't read"),
        (&format!("python3 -c '{socket}' "), "can't read"),
        ("mkdir ", "it isn't a file"),
    ] {
        let status = format!("{BY_FILE} redlock status");
        redis.play(&format!(
            "78 rm -f {file}; {make}{file}; {status} → {file} … {says}"
        ));
    }
}

#[test]
fn a_configuration_file_on_a_read_only_mount_is_used_whatever_its_mode() {
    return_unless!(crate::support::is_permitted(&["unshare", "-m", "true"]));
    let directory = tempfile::tempdir().unwrap();
    let script = r#"mount -t tmpfs tmpfs "$0" && echo REDLOCK_URL=unix:///there >"$0/redlock.env" &&
        chmod 777 "$0" "$0/redlock.env" && mount -o remount,ro "$0" && exec redlock status"#;
    let mut command = Command::new("unshare");
    command.args(["-m", "sh", "-c", script]);
    command.arg(directory.path()).env_clear();
    command.env("PATH", crate::support::path());
    command.env("XDG_CONFIG_HOME", directory.path());
    // Like the mount of a Kubernetes ConfigMap.
    outcome(&mut command).assert_said(69, "/there");
    assert!(!directory.path().join("redlock.env").exists());
}

#[test]
fn doctor_and_commands_without_settings_work_with_a_refused_configuration_file() {
    let redis = Redis::with(&["--appendonly", "yes"]);
    let file = format!("{}/c/redlock.env", redis.dir.path().display());
    let (url, says) = (redis.url(), format!("chmod go-w {file}"));
    // A mistyped line has its usual status too. Without another URL, doctor examines the default server, but gives it no
    // password, and no advice about any server except the one that the file may name.
    redis.play(&format!(
        "0 mkdir ~/c; echo REDLOCK_URL=redis://127.0.0.1:1 >{file}; chmod 666 {file}; echo mine >~/password
        0 {BY_FILE} redlock --version; {BY_FILE} redlock --help && {BY_FILE} redlock fence ~/fence 7
        64 {BY_FILE} redlock status --wrong → --wrong
        1 {BY_FILE} redlock -u {url} doctor >~/out
        0 grep -F '{says}' ~/out && grep 'not fit to hold locks: 1 failure' ~/out
        0 REDLOCK_PASSWORD_FILE=~/password {BY_FILE} redlock doctor >~/out 2>&1; [ $? -le 1 ]
        0 grep -F '{says}' ~/out && grep 127.0.0.1:6379 ~/out && ! grep REDLOCK_URL= ~/out"
    ));
}

#[test]
fn a_password_that_every_user_can_read_causes_one_warning() {
    let redis = Redis::with(&["--requirepass", "mine"]);
    set_mode(redis.dir.path(), 0o755);
    let dir = format!("{}/c", redis.dir.path().display());
    let (file, plain, port) = (format!("{dir}/redlock.env"), redis.tcp_url(), redis.port);
    // The inner command is part of the job, and leaves the warning to the outer one.
    let job = "redlock run a -- redlock extend a";
    let by_file = format!("REDLOCK_URL={plain} REDLOCK_PASSWORD_FILE={dir}/password {job}");
    // No other user can enter the directory at first. A password in the URL of a configuration file causes the warning too.
    redis.play(&format!(
        r"0 mkdir -m 700 ~/c; echo mine >~/c/password; chmod 644 ~/c/password; {by_file}
        0 chmod 755 ~/c
        0 {by_file} → chmod o-r {dir}/password … without mine
        0 REDLOCK_QUIET=1 {by_file}
        0 chmod 640 ~/c/password; {by_file}
        0 echo REDLOCK_URL=redis://:mine@127.0.0.1:{port} >{file}; chmod 644 {file}
        0 {BY_FILE} {job} → chmod o-r {file} … without mine
        0 chmod 640 {file}; {BY_FILE} {job}
        0 printf 'REDLOCK_URL={plain}\nREDLOCK_PASSWORD_FILE={dir}/password\n' >{file}
        0 chmod 644 {file}; {BY_FILE} {job}
        0 chmod 644 ~/c/password; {BY_FILE} redlock doctor | grep -q 'chmod o-r {dir}/password'"
    ));
}

#[test]
fn white_space_around_a_url_is_left_out_wherever_it_was_set() {
    let redis = Redis::start();
    let url = redis.url();
    redis.play(&format!(
        "0 REDLOCK_URL=\"$(printf ' {url}\\r\\nx')\"; REDLOCK_URL=${{REDLOCK_URL%x}} redlock run a -- true
        0 env -u REDLOCK_URL redlock -u ' {url} ' run a -- true
        0 mkdir ~/c; echo \"REDLOCK_URL=' {url} '\" >~/c/redlock.env; {BY_FILE} redlock run a -- true"
    ));
}

#[test]
fn variables_of_kubernetes_services_are_ignored_silently() {
    let redis = Redis::start();
    let links = "SERVICE_HOST=10.0.0.1 SERVICE_PORT=6379 SERVICE_PORT_REDIS=6379 PORT=tcp://10.0.0.1:6379 \
        PORT_6379_TCP=tcp://10.0.0.1:6379 PORT_6379_TCP_PROTO=tcp PORT_6379_UDP_ADDR=10.0.0.1";
    for service in ["REDLOCK", "REDLOCK_REDIS", "REDLOCK_TTL"] {
        let links = links.split(' ').map(|link| format!("{service}_{link}"));
        let env = links.collect::<Vec<_>>().join(" ");
        redis.play(&format!(
            "0 env {env} redlock run -n a -- true
            0 env {env} redlock status"
        ));
    }
    redis.play("0 REDLOCK_PORTS=7 redlock run a -- true → REDLOCK_PORTS");
}
