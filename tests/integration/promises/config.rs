//! Settings and connections. What /etc/redlock.env holds can't be tested without changing the
//! machine; it is read by the same code as the user's file.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::support::{
    Gate, OtherUser, Outcome, Redis, Running, free_port, outcome, redlock, setting, wait_until,
};

/// Where a lock "a" with these settings goes: the key that its run sees.
fn key(command: &mut Command) -> String {
    let end = outcome(command);
    end.assert_code(0).assert_silent();
    end.stdout.trim().to_owned()
}

const KEYS: &str = r#"redis-cli -s "$SOCKET" KEYS '*:a' | grep -v '{'"#;

#[test]
fn the_environment_counts_before_the_users_file() {
    let redis = Redis::start();
    let run = || {
        let mut command = redlock(&["run", "a", "-c", KEYS]);
        command
            .env("SOCKET", redis.socket())
            .env("HOME", redis.dir.path());
        command
    };
    let directory = redis.dir.path().join(".config");
    fs::create_dir(&directory).unwrap();
    let settings = format!(
        "# ours\nREDLOCK_URL='{}'\nexport REDLOCK_PREFIX=\"file:\"\n",
        redis.url()
    );
    fs::write(directory.join("redlock.env"), settings).unwrap();
    assert_eq!(key(&mut run()), "file:a");
    assert_eq!(
        key(run().env("REDLOCK_PREFIX", "environment:")),
        "environment:a"
    );

    let other = redis.dir.path().join("xdg");
    fs::create_dir(&other).unwrap();
    fs::write(
        other.join("redlock.env"),
        format!("REDLOCK_URL={}\nREDLOCK_PREFIX=xdg:\n", redis.url()),
    )
    .unwrap();
    assert_eq!(key(run().env("XDG_CONFIG_HOME", &other)), "xdg:a");
}

#[test]
fn a_mistake_in_the_file_is_78_and_named_with_its_line() {
    let directory = tempfile::tempdir().unwrap();
    for (text, says) in [
        (
            "REDLOCK_URI=redis://u:hunter2@h",
            "/redlock.env:1: unknown setting REDLOCK_URI; did you mean REDLOCK_URL?",
        ),
        ("\nhunter2", "/redlock.env:2: expected NAME=value"),
        (
            "REDLOCK_QUIET=hunter2",
            "/redlock.env:1: REDLOCK_QUIET must be 1 or 0",
        ),
        (
            "REDLOCK_REDIS_TIMEOUT=hunter2",
            "/redlock.env:1: REDLOCK_REDIS_TIMEOUT must be a duration such as 500ms",
        ),
        (
            "REDLOCK_NAME=hunter2",
            "/redlock.env:1: unknown setting REDLOCK_NAME",
        ),
    ] {
        fs::write(directory.path().join("redlock.env"), text).unwrap();
        let end = outcome(redlock(&["status"]).env("XDG_CONFIG_HOME", directory.path()));
        end.assert_code(78).assert_says(says);
        assert!(!end.stderr.contains("hunter2"), "{end:?}");
    }
}

#[test]
fn quiet_and_verbose_can_be_set_anywhere() {
    let redis = Redis::start();
    outcome(
        redis
            .redlock(&["run", "a", "--", "true"])
            .env("REDLOCK_VERBOSE", "1"),
    )
    .assert_code(0)
    .assert_says("acquired");
    outcome(
        redis
            .redlock(&["run", "-q", "a", "--", "true"])
            .env("REDLOCK_VERBOSE", "1"),
    )
    .assert_code(0)
    .assert_silent();
}

#[test]
fn a_lease_is_at_least_a_second() {
    outcome(&mut redlock(&["run", "--ttl", "500ms", "a", "--", "true"]))
        .assert_code(64)
        .assert_says("at least 1s");
}

#[test]
fn databases_users_and_passwords_are_used_and_never_shown() {
    let redis = Redis::start();
    redis.cli(words!("ACL SETUSER jobs on >hunter2 ~* &* +@all"));
    redis.cli(&["CONFIG", "SET", "requirepass", "hunter2"]);
    let file = redis.dir.path().join("password");
    fs::write(&file, "hunter2\n").unwrap();
    let file = file.to_str().unwrap();
    let port = redis.port;
    let with_file = [
        format!("redis://jobs@127.0.0.1:{port}/3"),
        format!("{}?db=3", redis.url()),
    ];
    let script =
        r#"echo ready; redis-cli -p "$1" -a hunter2 --no-auth-warning -n 3 EXISTS redlock:a"#;
    for url in &with_file {
        let mut run = Running::start(&mut redlock(words!(
            "-v -u {} REDLOCK_PASSWORD_FILE={} run a -- sh -c {} sh",
            url,
            file,
            script,
            &port.to_string()
        )));
        run.expect_line("ready");
        run.expect_line("1");
        let end = run.finish();
        end.assert_code(0);
        assert!(!format!("{end:?}").contains("hunter2"), "{end:?}");
    }
    let url = format!("redis://jobs:hunter2@127.0.0.1:{port}");
    for arguments in [
        &["status", "a"][..],
        &["status", "--json", "a"],
        &["-v", "release", "--force", "a"],
    ] {
        let end = outcome(&mut redlock(&[&["-v", "-u", &url], arguments].concat()));
        assert!(!format!("{end:?}").contains("hunter2"), "{end:?}");
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

/// A CA, a certificate for localhost and one for us, signed by it, as PEM files.
fn certificates() -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    let dir = directory.path();
    fs::write(
        dir.join("names"),
        "subjectAltName=DNS:localhost,IP:127.0.0.1\nbasicConstraints=CA:FALSE\n",
    )
    .unwrap();
    for ca in ["ca", "other-ca"] {
        openssl(
            dir,
            &format!(
                "req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN={ca} -keyout {ca}.key -out {ca}.crt"
            ),
        );
    }
    for name in ["server", "client"] {
        openssl(
            dir,
            &format!(
                "req -newkey rsa:2048 -nodes -subj /CN={name} -keyout {name}.key -out {name}.csr"
            ),
        );
        openssl(
            dir,
            &format!(
                "x509 -req -in {name}.csr -CA ca.crt -CAkey ca.key -CAcreateserial -days 2 -extfile names -out {name}.crt"
            ),
        );
    }
    directory
}

#[test]
fn tls_trusts_the_given_ca_and_shows_our_certificate() {
    let directory = certificates();
    let file = |name: &str| directory.path().join(name).to_str().unwrap().to_owned();
    let port = free_port().to_string();
    let (ca, cert, key) = (file("ca.crt"), file("server.crt"), file("server.key"));
    let redis = Redis::with(words!(
        "--tls-port {} --tls-cert-file {} --tls-key-file {} --tls-ca-cert-file",
        &port,
        &cert,
        &key,
        &ca
    ));
    let url = format!("rediss://localhost:{port}");
    let mut gate = Gate::new(&redis);
    let start = |tls: &[&str]| {
        let work = words!("run a -c", r#"read go <"$HOME/gate""#);
        let mut command = redlock(&[&["-u", &url], tls, work].concat());
        Running::start(command.env("HOME", redis.dir.path()))
    };
    let run = |tls: &[&str]| start(tls).finish();
    let (our_cert, our_key, other_ca) =
        (file("client.crt"), file("client.key"), file("other-ca.crt"));
    let renewed = start(words!(
        "REDLOCK_TLS_CA={} REDLOCK_TLS_CERT={} REDLOCK_TLS_KEY={}",
        &ca,
        &our_cert,
        &our_key
    ));
    wait_until("it is renewed over the same connection", || {
        redis.calls("evalsha") >= 2
    });
    gate.open();
    renewed.finish().assert_code(0).assert_silent();
    run(words!(
        "REDLOCK_TLS_CA={} REDLOCK_TLS_CERT={} REDLOCK_TLS_KEY={}",
        &other_ca,
        &our_cert,
        &our_key
    ))
    .assert_code(78)
    .assert_says("REDLOCK_TLS_CA");
    run(&[
        setting("REDLOCK_TLS_CA", &ca),
        setting("REDLOCK_TLS_CERT", &our_cert),
    ])
    .assert_code(78)
    .assert_says("belong together");
    run(&["REDLOCK_TLS_CA=/nonexistent"])
        .assert_code(78)
        .assert_says("can't use /nonexistent");
    // Redis closes the connection of a client without a certificate.
    let end = run(&[setting("REDLOCK_TLS_CA", &ca)]);
    assert!(matches!(end.code(), Some(69 | 78)), "{end:?}");
    // A server that doesn't speak TLS.
    let plain = format!("rediss://localhost:{}", redis.port);
    outcome(&mut redlock(&[
        "-u",
        &plain,
        setting("REDLOCK_TLS_CA", &ca),
        "status",
    ]))
    .assert_code(78)
    .assert_says("doesn't use TLS on this port");
}

#[test]
fn a_private_ca_vouches_for_no_other_name_and_time_and_the_server_takes_no_strangers_certificate() {
    let directory = certificates();
    let dir = directory.path();
    let file = |name: &str| dir.join(name).to_str().unwrap().to_owned();
    let sign = |name: &str, ca: &str, options: &str| {
        openssl(
            dir,
            &format!(
                "x509 -req -in server.csr -CA {ca}.crt -CAkey {ca}.key -CAcreateserial {options} -out {name}.crt"
            ),
        );
    };
    fs::write(
        dir.join("elsewhere"),
        "subjectAltName=DNS:elsewhere.example\n",
    )
    .unwrap();
    sign("elsewhere", "ca", "-days 2 -extfile elsewhere");
    sign("over", "ca", "-days -1 -extfile names");
    sign("stranger", "other-ca", "-days 2 -extfile names");
    let server = |certificate: &str| {
        let port = free_port().to_string();
        let (cert, key, ca) = (file(certificate), file("server.key"), file("ca.crt"));
        let redis = Redis::with(words!(
            "--tls-port {} --tls-cert-file {} --tls-key-file {} --tls-ca-cert-file",
            &port,
            &cert,
            &key,
            &ca
        ));
        (redis, format!("rediss://localhost:{port}"))
    };
    let run = |url: &str, certificate: &str, key: &str| {
        let (ca, cert, key) = (file("ca.crt"), file(certificate), file(key));
        let options = words!(
            "-u {} REDLOCK_TLS_CA={} REDLOCK_TLS_CERT={} REDLOCK_TLS_KEY={}",
            url,
            &ca,
            &cert,
            &key
        );
        let command = ["run", "a", "--", "echo", "ran"];
        outcome(&mut redlock(&[options, &command].concat()))
    };
    for (certificate, says) in [
        (
            "elsewhere.crt",
            "its certificate is not for localhost, but for elsewhere.example",
        ),
        ("over.crt", "its certificate has expired"),
    ] {
        let (_redis, url) = server(certificate);
        let end = run(&url, "client.crt", "client.key");
        end.assert_code(78).assert_says(says);
        assert_eq!(end.stdout, "");
    }
    let (redis, url) = server("server.crt");
    run(&url, "client.crt", "client.key")
        .assert_code(0)
        .assert_silent();
    // What isn't signed by its CA, or was at a time that is over, isn't let in.
    for certificate in ["stranger.crt", "over.crt"] {
        let end = run(&url, certificate, "server.key");
        assert!(
            matches!(end.code(), Some(69 | 78)),
            "{certificate}: {end:?}"
        );
        assert_eq!(end.stdout, "");
    }
    assert_eq!(redis.holder("a"), None);
}

#[test]
fn below_a_prefix_with_a_hash_tag_all_works_on_a_redis_cluster() {
    let bus = free_port().to_string();
    let redis = Redis::with(&["--cluster-enabled", "yes", "--cluster-port", &bus]);
    redis.add_slots(0..16384);
    wait_until("the cluster is up", || {
        redis.cli(&["CLUSTER", "INFO"]).contains("cluster_state:ok")
    });
    let tagged = |words: &[&str]| {
        let mut command = redis.redlock(words);
        command
            .env("REDLOCK_PREFIX", "{redlock}:")
            .env("GO", redis.dir.path().join("go"));
        command
    };
    let run = |words: &[&str]| outcome(&mut tagged(words)).assert_code(0).stdout.clone();
    let script = r#"echo ready; until [ -e "$GO" ]; do sleep 0.01; done"#;
    let mut holder = Running::start(&mut tagged(&["run", "a", "-c", script]));
    holder.expect_line("ready");
    let mut waiter = Running::start(&mut tagged(&["run", "a", "b", "--", "echo", "in"]));
    wait_until("it waits", || run(&["status"]).contains("waiting"));
    assert!(run(&["status"]).contains('a'));
    fs::write(redis.dir.path().join("go"), "").unwrap();
    waiter.expect_line("in");
    waiter.finish().assert_code(0);
    holder.finish().assert_code(0);
    assert!(run(&["history", "a"]).contains("echo in"));
    run(&["run", "--shared", "a", "--", "true"]);
    run(&["freeze", "-q", "a", "--reason", "x"]);
    run(&["thaw", "-q", "a"]);
    let slots: BTreeSet<String> = redis
        .cli(&["KEYS", "*"])
        .lines()
        .map(|key| redis.cli(&["CLUSTER", "KEYSLOT", key]))
        .collect();
    assert_eq!(slots.len(), 1, "{slots:?}");
}

/// A directory for `XDG_CONFIG_HOME` with this configuration file.
fn configured(text: &str) -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    fs::write(directory.path().join("redlock.env"), text).unwrap();
    directory
}

#[test]
fn the_password_of_a_configuration_file_goes_to_no_server_that_was_named_elsewhere() {
    let redis = Redis::with(&["--requirepass", "mine"]);
    let file = configured("REDLOCK_URL=redis://127.0.0.1:1\nREDLOCK_PASSWORD_FILE=/nowhere\n");
    let run = |url: &str| {
        let mut command = redlock(&["-u", url, "run", "a", "--", "true"]);
        command.env("XDG_CONFIG_HOME", file.path());
        command
    };
    let url = format!("redis://:mine@127.0.0.1:{}", redis.port);
    outcome(&mut run(&url)).assert_code(0).assert_silent();
    // Nor is it asked for there.
    let without = format!("redis://127.0.0.1:{}", redis.port);
    outcome(&mut run(&without))
        .assert_code(77)
        .assert_says("requires a password");
    let other = file.path().join("password");
    fs::write(&other, "another\n").unwrap();
    // What is typed counts before what is in the environment.
    outcome(run(&url).env("REDLOCK_PASSWORD_FILE", &other)).assert_code(0);
    fs::write(&other, "mine\n").unwrap();
    outcome(run(&without).env("REDLOCK_PASSWORD_FILE", &other)).assert_code(0);
}

#[test]
fn a_user_who_may_not_read_the_configuration_takes_no_lock_on_the_default_server() {
    let Some(user) = OtherUser::new() else {
        return;
    };
    let file = configured("REDLOCK_URL=redis://10.0.0.5\n");
    let mode = |mode| std::os::unix::fs::PermissionsExt::from_mode(mode);
    fs::set_permissions(file.path(), mode(0o755)).unwrap();
    fs::set_permissions(file.path().join("redlock.env"), mode(0o600)).unwrap();
    let mut run = user.command(&["./redlock", "run", "a", "--", "true"]);
    outcome(run.env("XDG_CONFIG_HOME", file.path()))
        .assert_code(78)
        .assert_says("can't read ");
    let redis = Redis::start();
    let mut run = user.redlock(&redis, &["run", "a", "--", "true"]);
    outcome(run.env("XDG_CONFIG_HOME", file.path()))
        .assert_code(0)
        .assert_silent();
}

#[test]
fn of_quiet_and_verbose_the_one_that_is_set_where_it_counts_more_does() {
    let redis = Redis::start();
    let file = configured("REDLOCK_QUIET=1\n");
    let mut run = redis.redlock(&["run", "a", "--", "true"]);
    run.env("XDG_CONFIG_HOME", file.path());
    outcome(&mut run).assert_code(0).assert_silent();
    outcome(run.env("REDLOCK_VERBOSE", "1")).assert_says("released");
    outcome(run.env("REDLOCK_QUIET", "1")).assert_silent();
}

#[test]
fn an_empty_line_of_a_file_sets_nothing() {
    let redis = Redis::start();
    let file = configured("REDLOCK_TTL=\nREDLOCK_REASON=''\nREDLOCK_URL=\n");
    let mut run = redis.redlock(&["run", "a", "--", "true"]);
    outcome(run.env("XDG_CONFIG_HOME", file.path()))
        .assert_code(0)
        .assert_silent();
}

pub fn set_mode(path: &Path, mode: u32) {
    let mode = std::os::unix::fs::PermissionsExt::from_mode(mode);
    fs::set_permissions(path, mode).unwrap();
}

/// A configuration file that names this server.
fn with_a_url(redis: &Redis) -> (tempfile::TempDir, PathBuf) {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("redlock.env");
    fs::write(&file, format!("REDLOCK_URL={}\n", redis.tcp_url())).unwrap();
    (directory, file)
}

#[test]
fn a_configuration_file_that_others_may_write_is_refused() {
    let redis = Redis::start();
    let (directory, file) = with_a_url(&redis);
    let run = || {
        let mut run = redlock(&["run", "a", "--", "echo", "ran"]);
        outcome(run.env("XDG_CONFIG_HOME", directory.path()))
    };
    let refused = |says: &str, fix: &str| {
        let end = run();
        end.assert_code(78).assert_says(says).assert_says(fix);
        assert_eq!(end.stdout, "");
    };
    let accepted = || {
        let end = run();
        end.assert_code(0).assert_silent();
        assert_eq!(end.stdout, "ran\n");
    };
    let fix = format!("chmod go-w {}", file.display());
    for mode in [0o666, 0o664, 0o602, 0o620] {
        set_mode(&file, mode);
        refused(&format!("has mode {mode:o}"), &fix);
    }
    for mode in [0o644, 0o640, 0o600, 0o400, 0o755] {
        set_mode(&file, mode);
        accepted();
    }
    // Nor is one that others could put another in the place of.
    let fix = format!("chmod go-w {}", directory.path().display());
    for mode in [0o777, 0o770, 0o1777] {
        set_mode(directory.path(), mode);
        refused(&format!("has mode {mode:o}"), &fix);
    }
    set_mode(directory.path(), 0o755);
    accepted();
    // What counts is the file at the end of a link.
    let target = tempfile::tempdir().unwrap();
    let target = target.path().join("settings");
    fs::rename(&file, &target).unwrap();
    std::os::unix::fs::symlink(&target, &file).unwrap();
    accepted();
    set_mode(&target, 0o606);
    refused("has mode 606", "chmod go-w ");
    // What sets nothing may be anyone's.
    fs::remove_file(&file).unwrap();
    std::os::unix::fs::symlink("/dev/null", &file).unwrap();
    let mut status = redis.redlock(&["status"]);
    outcome(status.env("XDG_CONFIG_HOME", directory.path())).assert_code(0);
}

#[test]
fn root_refuses_the_configuration_file_of_another_user_and_users_their_neighbours() {
    let Some(user) = OtherUser::new() else {
        return;
    };
    let redis = Redis::start();
    let (directory, file) = with_a_url(&redis);
    let home = directory.path();
    set_mode(home, 0o755);
    let own = |path: &Path, owner: u32| std::os::unix::fs::chown(path, Some(owner), None).unwrap();
    let as_root = || {
        let mut run = redlock(&["run", "a", "--", "true"]);
        outcome(run.env("XDG_CONFIG_HOME", home))
    };
    let as_user = || {
        let mut run = user.command(&["./redlock", "run", "a", "--", "true"]);
        outcome(run.env("XDG_CONFIG_HOME", home))
    };
    // Root's own serves all.
    as_root().assert_code(0);
    for (owner, says) in [(54321, "belongs to user 54321"), (65534, "65534")] {
        own(&file, owner);
        as_root()
            .assert_code(78)
            .assert_says(says)
            .assert_says("mode 644")
            .assert_says(&format!("chown 0 {}", file.display()));
        own(&file, 0);
        // With a link in its place the owner of a directory chooses among the files of root.
        own(home, owner);
        as_root().assert_code(78).assert_says(says);
        own(home, 0);
    }
    // A user believes root, too, and nobody else.
    as_user().assert_code(0);
    own(&file, 54321);
    own(home, 54321);
    as_user().assert_code(0);
    own(&file, 54322);
    as_user()
        .assert_code(78)
        .assert_says("belongs to user 54322")
        .assert_says(&format!("chown 54321 {}", file.display()));
}

/// A redlock of root's whose home is another user's.
fn of_root_at_home_of(home: &Path, redis: &Redis) -> Outcome {
    let mut run = redlock(&["run", "a", "--", "true"]);
    run.env("HOME", home).env("REDLOCK_URL", redis.tcp_url());
    outcome(&mut run)
}

#[test]
fn root_runs_no_command_that_another_user_has_put_on_the_way_to_its_configuration_file() {
    use std::os::unix::fs::{chown, symlink};
    let Some(user) = OtherUser::new() else {
        return;
    };
    let directory = tempfile::tempdir().unwrap();
    let redis = Redis::start();
    let (home, mark) = (directory.path().join("home"), directory.path().join("ran"));
    let config = home.join(".config");
    fs::create_dir_all(&config).unwrap();
    set_mode(directory.path(), 0o755);
    let command = format!("REDLOCK_HOOK=touch {}", mark.display());
    // The environment of a program of root's that this user has started: its text is theirs, the file root's.
    let settings = format!("\n{command}\n");
    let mut setuid = user.command(&["./become", "sh", "-c", "echo $$; exec head -n 1 gate"]);
    let mut setuid = Running::start(setuid.env("A", &settings));
    let environ = format!("/proc/{}/environ", setuid.line());
    let file = config.join("redlock.env");
    let refused = |says: &str| {
        let end = of_root_at_home_of(&home, &redis);
        end.assert_code(78).assert_says(says);
        assert!(!mark.exists(), "{end:?}");
    };
    // The user's file, the user's link to one of root's, and root's own link to one whose text is the user's.
    chown(&config, Some(54321), None).unwrap();
    fs::write(&file, format!("{command}\n")).unwrap();
    refused(&format!("its directory {}", config.display()));
    fs::remove_file(&file).unwrap();
    symlink(&environ, &file).unwrap();
    refused(&format!("its directory {}", config.display()));
    chown(&config, Some(0), None).unwrap();
    of_root_at_home_of(&home, &redis).assert_code(0);
    assert!(!mark.exists());
    // In root's place another user has put a link to a directory of root's, which holds what root trusts.
    let theirs = directory.path().join("theirs");
    fs::create_dir(&theirs).unwrap();
    symlink(&config, theirs.join(".config")).unwrap();
    chown(&theirs, Some(54321), None).unwrap();
    of_root_at_home_of(&theirs, &redis).assert_code(0);
    assert!(!mark.exists());
    drop(setuid);
}

#[test]
fn what_is_no_settings_file_is_78_and_named_and_makes_nothing_wait() {
    let redis = Redis::start();
    let (directory, file) = with_a_url(&redis);
    let is_refused = |says: &str| {
        let mut run = redlock(&["run", "a", "--", "echo", "ran"]);
        let end = outcome(run.env("XDG_CONFIG_HOME", directory.path()));
        end.assert_code(78).assert_says(says);
        end.assert_says(file.to_str().unwrap());
        assert_eq!(
            (end.stdout.as_str(), end.stderr.lines().count()),
            ("", 1),
            "{end:?}"
        );
    };
    let url = redis.tcp_url();
    fs::write(&file, format!("# ours\r\nREDLOCK_URL={url}\r\n")).unwrap();
    is_refused(&format!(
        "redlock.env:1: DOS line endings; run: sed -i 's/\\r$//' {}",
        file.display()
    ));
    fs::write(&file, b"REDLOCK_REASON=\xff\n").unwrap();
    is_refused("isn't UTF-8");
    fs::write(&file, "#".repeat(10 << 20)).unwrap();
    is_refused("it is larger than");
    fs::remove_file(&file).unwrap();
    fs::create_dir(&file).unwrap();
    is_refused("it isn't a file");
    fs::remove_dir(&file).unwrap();
    nix::unistd::mkfifo(&file, nix::sys::stat::Mode::S_IRWXU).unwrap();
    is_refused("it isn't a file");
    fs::remove_file(&file).unwrap();
    let _socket = std::os::unix::net::UnixListener::bind(&file).unwrap();
    is_refused("can't read");
    fs::remove_file(&file).unwrap();
    std::os::unix::fs::symlink("/dev/ptmx", &file).unwrap();
    is_refused("it isn't a file");
    fs::remove_file(&file).unwrap();
    std::os::unix::fs::symlink(&file, &file).unwrap();
    is_refused("can't read");
}

#[test]
fn where_a_password_is_missing_a_removed_password_command_is_named_with_its_place() {
    let redis = Redis::with(&["--requirepass", "mine"]);
    let url = redis.tcp_url();
    let file = configured(&format!(
        "REDLOCK_URL={url}\nREDLOCK_PASSWORD_COMMAND=hunter2\n"
    ));
    let path = file.path().join("redlock.env");
    let instead = "have a timer write the password to a file, and set REDLOCK_PASSWORD_FILE=FILE";
    let end = |url: &str, variable: &str| {
        let mut run = redlock(&["run", "a", "-u", url, "--", "true"]);
        let end = outcome(
            run.env("XDG_CONFIG_HOME", file.path())
                .env("REDLOCK_PASSWORD_COMMAND", variable),
        );
        assert!(!end.stderr.contains("hunter2"), "{end:?}");
        end
    };
    let place = format!(
        "{}:2: REDLOCK_PASSWORD_COMMAND isn't read: {instead}",
        path.display()
    );
    end(&url, "").assert_code(77).assert_says(&place);
    end(&url, "hunter2")
        .assert_code(77)
        .assert_says(&format!("; REDLOCK_PASSWORD_COMMAND isn't read: {instead}"));
    let with_password = format!("redis://:mine@127.0.0.1:{}", redis.port);
    end(&with_password, "hunter2")
        .assert_code(0)
        .assert_silent();
}

#[test]
fn a_configuration_file_on_a_read_only_mount_is_used_whatever_its_mode() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("redlock.env");
    let script = r#"mount -t tmpfs tmpfs "$0" && echo REDLOCK_URL=unix:///there >"$0/redlock.env" &&
        chmod 777 "$0" "$0/redlock.env" && mount -o remount,ro "$0" && exec redlock status"#;
    let words = ["unshare", "-m", "sh", "-c", script];
    if !crate::support::is_permitted(&["unshare", "-m", "true"]) {
        return;
    }
    let mut command = Command::new(words[0]);
    command.args(&words[1..]).arg(directory.path()).env_clear();
    command.env("PATH", crate::support::path());
    command.env("XDG_CONFIG_HOME", directory.path());
    // As a Kubernetes ConfigMap is mounted.
    outcome(&mut command).assert_code(69).assert_says("/there");
    assert!(!file.exists());
}

#[test]
fn what_reads_no_settings_and_doctor_work_beside_a_configuration_file_that_is_refused() {
    let redis = Redis::with(&["--appendonly", "yes"]);
    let file = configured("REDLOCK_URL=redis://127.0.0.1:1\n");
    let path = file.path().join("redlock.env");
    set_mode(&path, 0o666);
    let run = |words: &[&str]| {
        let mut command = redlock(words);
        outcome(command.env("XDG_CONFIG_HOME", file.path()))
    };
    let fence = file.path().join("fence");
    let fence = fence.to_str().unwrap();
    for words in [&["--version"][..], &["--help"], &["fence", fence, "7"]] {
        run(words).assert_code(0).assert_silent();
    }
    // Nor does one that is typed wrong say anything else.
    run(&["status", "--wrong"]).assert_code(64);
    let found = run(&["-u", &redis.url(), "doctor"]);
    found.assert_code(1).assert_silent();
    let says = format!("chmod go-w {}", path.display());
    assert!(found.stdout.contains(&says), "{found:?}");
    assert!(
        found.stdout.contains("not fit to hold locks: 1 failure"),
        "{found:?}"
    );
    // Without another URL it is the default server that is examined, and that gets no password.
    let password = file.path().join("password");
    fs::write(&password, "mine\n").unwrap();
    let found = run(&[
        "doctor",
        setting("REDLOCK_PASSWORD_FILE", password.to_str().unwrap()),
    ]);
    assert!(matches!(found.code(), Some(0 | 1)), "{found:?}");
    assert!(found.stdout.contains("127.0.0.1:6379"), "{found:?}");
    assert!(found.stdout.contains(&says), "{found:?}");
}

#[test]
fn a_password_that_every_user_can_read_causes_one_warning() {
    let redis = Redis::with(&["--requirepass", "mine"]);
    let directory = tempfile::tempdir().unwrap();
    let dir = directory.path();
    let password = dir.join("password");
    let settings = dir.join("redlock.env");
    fs::write(&password, "mine\n").unwrap();
    let url = format!("redis://:mine@127.0.0.1:{}", redis.port);
    let plain = redis.tcp_url();
    // The inner one is part of the job, and leaves it to the outer one.
    let run = |variables: &[(&str, &str)]| {
        let mut run = redlock(&["run", "a", "--", "redlock", "extend", "a"]);
        run.envs(variables.iter().copied());
        outcome(run.env("XDG_CONFIG_HOME", dir))
    };
    let file = password.to_str().unwrap();
    let by_file = [("REDLOCK_URL", &*plain), ("REDLOCK_PASSWORD_FILE", file)];
    let warns = |end: &Outcome, path: &Path| {
        end.assert_code(0)
            .assert_says(&format!("chmod o-r {}", path.display()));
        assert_eq!(end.stderr.lines().count(), 1, "{end:?}");
        assert!(!end.stderr.contains("mine"), "{end:?}");
    };
    // Nobody else comes into the directory.
    set_mode(dir, 0o700);
    run(&by_file).assert_code(0).assert_silent();
    set_mode(dir, 0o755);
    warns(&run(&by_file), &password);
    run(&[&[("REDLOCK_QUIET", "1")], &by_file[..]].concat())
        .assert_code(0)
        .assert_silent();
    set_mode(&password, 0o640);
    run(&by_file).assert_code(0).assert_silent();
    // The same for a password in the URL of a configuration file.
    fs::write(&settings, format!("REDLOCK_URL={url}\n")).unwrap();
    warns(&run(&[]), &settings);
    set_mode(&settings, 0o640);
    run(&[]).assert_code(0).assert_silent();
    fs::write(
        &settings,
        format!("REDLOCK_URL={plain}\nREDLOCK_PASSWORD_FILE={file}\n"),
    )
    .unwrap();
    set_mode(&settings, 0o644);
    run(&[]).assert_code(0).assert_silent();
    set_mode(&password, 0o644);
    let found = outcome(redlock(&["doctor"]).env("XDG_CONFIG_HOME", dir));
    assert!(
        found.stdout.contains(&format!("chmod o-r {file}")),
        "{found:?}"
    );
}

#[test]
fn white_space_around_a_url_is_left_out_wherever_it_was_set() {
    let redis = Redis::start();
    let url = format!(" {}\r\n", redis.url());
    let run = |words: &[&str]| {
        let mut command = redlock(&[words, &["run", "a", "--", "true"]].concat());
        command.env("HOME", redis.dir.path());
        command
    };
    outcome(run(&[]).env("REDLOCK_URL", &url))
        .assert_code(0)
        .assert_silent();
    outcome(&mut run(&["-u", &url]))
        .assert_code(0)
        .assert_silent();
    let directory = redis.dir.path().join(".config");
    fs::create_dir(&directory).unwrap();
    let quoted = format!("REDLOCK_URL=' {} '\n", redis.url());
    fs::write(directory.join("redlock.env"), quoted).unwrap();
    outcome(&mut run(&[])).assert_code(0).assert_silent();
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
        let variables = links.map(|(name, value)| (format!("{service}_{name}"), value));
        for words in [words!("run -n a -- true"), &["status"]] {
            let mut command = redis.redlock(words);
            command.envs(variables.iter().map(|(name, value)| (name, value)));
            outcome(&mut command).assert_code(0).assert_silent();
        }
    }
    outcome(
        redis
            .redlock(words!("run a -- true"))
            .env("REDLOCK_PORTS", "7"),
    )
    .assert_code(0)
    .assert_says("REDLOCK_PORTS");
}
