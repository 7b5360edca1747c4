//! Settings and connections. Tests can't change /etc/redlock.env without changing the machine; redlock reads it with the same
//! code as the user's file.

use std::path::{Path, PathBuf};

use crate::support::prelude::*;

/// Creates a directory for `XDG_CONFIG_HOME` with this configuration file.
pub fn configured(text: &str) -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    fs::write(directory.path().join("redlock.env"), text).unwrap();
    directory
}

/// Runs redlock with the configuration file of this directory.
fn with_file(directory: &Path, words: &[&str]) -> Outcome {
    outcome(redlock(words).env("XDG_CONFIG_HOME", directory))
}

/// Runs a COMMAND that prints "ran", with this configuration file.
fn run_with_file(directory: &Path) -> Outcome {
    with_file(directory, words!("run a -- echo ran"))
}

/// Asserts that COMMAND ran, without any message.
#[track_caller]
fn assert_ran(end: &Outcome) {
    end.assert_silent().assert_printed(0, "ran\n");
}

/// Asserts that COMMAND didn't run because of the configuration.
#[track_caller]
fn assert_refused(end: &Outcome, says: &str) {
    end.assert_printed(78, "").assert_says(says);
}

#[test]
fn the_environment_counts_before_the_users_file() {
    let redis = Redis::start();
    let home = redis.dir.path();
    for (directory, prefix) in [(".config", "file:"), ("xdg", "xdg:")] {
        let url = redis.url();
        let settings = format!("# ours\nREDLOCK_URL='{url}'\nexport REDLOCK_PREFIX=\"{prefix}\"\n");
        fs::create_dir(home.join(directory)).unwrap();
        fs::write(home.join(directory).join("redlock.env"), settings).unwrap();
    }
    let xdg = home.join("xdg");
    let key = r#"redis-cli -s "$SOCKET" KEYS '*:a' | grep -v '{'"#;
    for (variable, value, prefix) in [
        ("HOME", home, "file"),
        ("REDLOCK_PREFIX", Path::new("environment:"), "environment"),
        ("XDG_CONFIG_HOME", xdg.as_path(), "xdg"),
    ] {
        let mut run = redlock(words!("run a -c", key));
        run.env("SOCKET", redis.socket()).env("HOME", home);
        let end = outcome(run.env(variable, value));
        end.assert_code(0).assert_silent();
        assert_eq!(end.stdout, format!("{prefix}:a\n"), "{variable}");
    }
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
        let end = with_file(configured(text).path(), &["status"]);
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
    let file = configured("REDLOCK_URL=redis://127.0.0.1:1\nREDLOCK_PASSWORD_FILE=/nowhere\n");
    let [wrong, right] = ["another", "mine"].map(|password| {
        let path = file.path().join(password);
        fs::write(&path, password).unwrap();
        path.display().to_string()
    });
    let url = format!("redis://:mine@127.0.0.1:{}", redis.port);
    let without = redis.tcp_url();
    for (url, password_file, code, says) in [
        (&url, "", 0, ""),
        (&without, "", 77, "requires a password"),
        // A typed URL takes precedence over the environment.
        (&url, &wrong, 0, ""),
        (&without, &right, 0, ""),
    ] {
        let line = "REDLOCK_PASSWORD_FILE={} -u {} run a -- true";
        let end = with_file(file.path(), &words(line, &[password_file, url]));
        end.assert_said(code, says);
    }
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

/// Creates a configuration file that names this server.
fn with_a_url(redis: &Redis) -> (tempfile::TempDir, PathBuf) {
    let directory = configured(&format!("REDLOCK_URL={}\n", redis.tcp_url()));
    let file = directory.path().join("redlock.env");
    (directory, file)
}

#[test]
fn a_configuration_file_that_others_may_write_is_refused() {
    let redis = Redis::start();
    let (directory, file) = with_a_url(&redis);
    let dir = directory.path();
    let is_refused = |mode: u32, path: &Path| {
        let end = run_with_file(dir);
        assert_refused(&end, &format!("has mode {mode:o}"));
        end.assert_says(&format!("chmod go-w {}", path.display()));
    };
    for mode in [0o666, 0o664, 0o602, 0o620] {
        set_mode(&file, mode);
        is_refused(mode, &file);
    }
    for mode in [0o644, 0o640, 0o600, 0o400, 0o755] {
        set_mode(&file, mode);
        assert_ran(&run_with_file(dir));
    }
    // redlock also refuses a file that other users could replace.
    for mode in [0o777, 0o770, 0o1777] {
        set_mode(dir, mode);
        is_refused(mode, dir);
    }
    set_mode(dir, 0o755);
    assert_ran(&run_with_file(dir));
    // redlock checks the file at the end of a link.
    let target = tempfile::tempdir().unwrap();
    let target = target.path().join("settings");
    fs::rename(&file, &target).unwrap();
    std::os::unix::fs::symlink(&target, &file).unwrap();
    assert_ran(&run_with_file(dir));
    set_mode(&target, 0o606);
    is_refused(0o606, Path::new(""));
    // A file that sets nothing may belong to anyone.
    fs::remove_file(&file).unwrap();
    std::os::unix::fs::symlink("/dev/null", &file).unwrap();
    let mut status = redis.redlock(&["status"]);
    outcome(status.env("XDG_CONFIG_HOME", dir)).assert_code(0);
}

#[test]
fn root_refuses_the_configuration_file_of_another_user_and_users_their_neighbours() {
    let user = some_or_return!(OtherUser::new());
    let redis = Redis::start();
    let (directory, file) = with_a_url(&redis);
    let home = directory.path();
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
    let (directory, file) = with_a_url(&redis);
    let is_refused = |says: &str| {
        let end = run_with_file(directory.path());
        assert_refused(&end, says);
        end.assert_says(file.to_str().unwrap());
        assert_eq!(end.stderr.lines().count(), 1, "{end:?}");
        let _ = fs::remove_file(&file);
    };
    let dos = format!("# ours\r\nREDLOCK_URL={}\r\n", redis.tcp_url());
    fs::write(&file, dos).unwrap();
    is_refused(&format!(
        "redlock.env:1: DOS line endings; run: sed -i 's/\\r$//' {}",
        file.display()
    ));
    fs::write(&file, b"REDLOCK_REASON=\xff\n").unwrap();
    is_refused("isn't UTF-8");
    fs::write(&file, "#".repeat(10 << 20)).unwrap();
    is_refused("it is larger than");
    nix::unistd::mkfifo(&file, nix::sys::stat::Mode::S_IRWXU).unwrap();
    is_refused("it isn't a file");
    std::os::unix::fs::symlink("/dev/ptmx", &file).unwrap();
    is_refused("it isn't a file");
    for target in [file.as_path(), Path::new("/run/secrets/not-mounted")] {
        std::os::unix::fs::symlink(target, &file).unwrap();
        is_refused("can't read");
    }
    let socket = std::os::unix::net::UnixListener::bind(&file).unwrap();
    is_refused("can't read");
    drop(socket);
    fs::create_dir(&file).unwrap();
    is_refused("it isn't a file");
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
    let file = configured("REDLOCK_URL=redis://127.0.0.1:1\n");
    let path = file.path().join("redlock.env");
    set_mode(&path, 0o666);
    let run = |words: &[&str]| with_file(file.path(), words);
    let fence = file.path().join("fence");
    for words in [
        &["--version"][..],
        &["--help"],
        &["fence", fence.to_str().unwrap(), "7"],
    ] {
        run(words).assert_code(0).assert_silent();
    }
    // A mistyped line has its usual status too.
    run(&["status", "--wrong"]).assert_code(64);
    let examined = run(&["-u", &redis.url(), "doctor"]);
    examined.assert_code(1).assert_silent();
    let says = format!("chmod go-w {}", path.display());
    assert_has(
        &examined.stdout,
        &[says.as_str(), "not fit to hold locks: 1 failure"],
    );
    // Without another URL, doctor examines the default server, but gives it no password.
    let password = file.path().join("password");
    fs::write(&password, "mine\n").unwrap();
    let password = password.to_str().unwrap();
    let examined = run(words!("REDLOCK_PASSWORD_FILE={} doctor", password));
    assert!(matches!(examined.code(), Some(0 | 1)), "{examined:?}");
    assert_has(&examined.stdout, &[says.as_str(), "127.0.0.1:6379"]);
    // Doctor gives no advice about any server except the one that the file may name.
    assert!(!examined.stdout.contains("REDLOCK_URL="), "{examined:?}");
}

#[test]
fn a_password_that_every_user_can_read_causes_one_warning() {
    let redis = Redis::with(&["--requirepass", "mine"]);
    let directory = tempfile::tempdir().unwrap();
    let dir = directory.path();
    let (password, settings) = (dir.join("password"), dir.join("redlock.env"));
    fs::write(&password, "mine\n").unwrap();
    let plain = redis.tcp_url();
    let file = password.to_str().unwrap();
    // The inner command is part of the job, and leaves the warning to the outer one.
    let run = |words: &[&str]| {
        let inner = words!("run a -- redlock extend a");
        with_file(dir, &[words, inner].concat())
    };
    let by_file = words!("REDLOCK_URL={} REDLOCK_PASSWORD_FILE={}", &plain, file);
    let warns = |end: &Outcome, path: &Path| {
        end.assert_said(0, &format!("chmod o-r {}", path.display()));
        assert_eq!(end.stderr.lines().count(), 1, "{end:?}");
        assert!(!end.stderr.contains("mine"), "{end:?}");
    };
    // No other user can enter the directory.
    set_mode(dir, 0o700);
    run(by_file).assert_code(0).assert_silent();
    set_mode(dir, 0o755);
    warns(&run(by_file), &password);
    run(&[by_file, &["REDLOCK_QUIET=1"]].concat())
        .assert_code(0)
        .assert_silent();
    set_mode(&password, 0o640);
    run(by_file).assert_code(0).assert_silent();
    // A password in the URL of a configuration file causes the warning too.
    let url = format!("redis://:mine@127.0.0.1:{}", redis.port);
    fs::write(&settings, format!("REDLOCK_URL={url}\n")).unwrap();
    warns(&run(&[]), &settings);
    set_mode(&settings, 0o640);
    run(&[]).assert_code(0).assert_silent();
    let text = format!("REDLOCK_URL={plain}\nREDLOCK_PASSWORD_FILE={file}\n");
    fs::write(&settings, text).unwrap();
    set_mode(&settings, 0o644);
    run(&[]).assert_code(0).assert_silent();
    set_mode(&password, 0o644);
    let examined = with_file(dir, &["doctor"]).stdout;
    let fix = format!("chmod o-r {file}");
    assert!(examined.contains(&fix), "{examined}");
}

#[test]
fn white_space_around_a_url_is_left_out_wherever_it_was_set() {
    let redis = Redis::start();
    let url = format!(" {}\r\n", redis.url());
    for line in ["REDLOCK_URL={} run a -- true", "-u {} run a -- true"] {
        outcome(&mut redlock(&words(line, &[&url])))
            .assert_code(0)
            .assert_silent();
    }
    let text = format!("REDLOCK_URL=' {} '\n", redis.url());
    assert_ran(&run_with_file(configured(&text).path()));
}

#[test]
fn variables_of_kubernetes_services_are_ignored_silently() {
    let redis = Redis::start();
    let links = [
        ("SERVICE_HOST", "10.0.0.1"),
        ("SERVICE_PORT", "6379"),
        ("SERVICE_PORT_REDIS", "6379"),
        ("PORT", "tcp://10.0.0.1:6379"),
        ("PORT_6379_TCP", "tcp://10.0.0.1:6379"),
        ("PORT_6379_TCP_PROTO", "tcp"),
        ("PORT_6379_UDP_ADDR", "10.0.0.1"),
    ];
    for service in ["REDLOCK", "REDLOCK_REDIS", "REDLOCK_TTL"] {
        for words in [words!("run -n a -- true"), &["status"]] {
            let mut command = redis.redlock(words);
            command.envs(links.map(|(name, value)| (format!("{service}_{name}"), value)));
            outcome(&mut command).assert_code(0).assert_silent();
        }
    }
    ends(&redis, "REDLOCK_PORTS=7 run a -- true").assert_said(0, "REDLOCK_PORTS");
}
