//! Pastes the commands that `redlock doctor` prints into a shell, with a server in the matching state. Afterwards doctor no
//! longer finds the problem, however redlock reaches the server.

use std::os::unix::fs::chown;
use std::os::unix::net::UnixStream;

use crate::generated::make_acl_users;
use crate::promises::config::set_mode;
use crate::promises::doctor::{Examined, set};
use crate::promises::trouble::{encrypted, self_signed};
use crate::support::prelude::*;
use crate::support::pty::Terminal;

/// Settings of a shell, and the password to type.
struct Place {
    settings: Vec<(&'static str, String)>,
    password: &'static str,
}

impl Place {
    fn new(url: String, password: &'static str) -> Self {
        let settings = vec![("REDLOCK_URL", url)];
        Self { settings, password }
    }

    #[track_caller]
    fn doctor(&self, arguments: &[&str]) -> Examined {
        let mut command = redlock(&[&["doctor"], arguments].concat());
        command.env("HOME", "/nonexistent");
        Examined::new(command.envs(self.settings.iter().cloned()))
    }

    /// Returns the command that doctor prints for a check, unless the check is ok.
    #[track_caller]
    fn line(&self, check: &str, arguments: &[&str]) -> Option<String> {
        let examined = self.doctor(arguments);
        let fix = examined.checks[check]["fix"].as_str()?;
        // All commands begin with one of these.
        let programs = ["redis-cli", "redlock", "mount", "chmod", "chown"];
        assert!(programs.contains(&fix.split(' ').next().unwrap()), "{fix}");
        Some(fix.to_owned())
    }

    /// Pastes a line into a shell on a terminal, and types the password at each prompt.
    #[track_caller]
    fn paste(&self, line: &str) {
        let is_secret = !self.password.is_empty();
        assert!(!(is_secret && line.contains(self.password)), "{line}");
        let mut shell = Command::new("sh");
        // redis-cli would query a terminal without a size.
        let script = format!("stty rows 24 columns 400; {line}");
        shell.args(["-c", &script]).env_clear();
        shell.env("PATH", path()).env("HOME", "/nonexistent");
        shell.envs(self.settings.iter().cloned());
        let mut terminal = Terminal::start(shell);
        for times in 0..line.matches("--askpass").count() {
            terminal.wait_until("the password is asked for", |shown| {
                shown.ends_with("input password: ") && shown.matches("OK").count() >= times
            });
            terminal.type_in(&format!("{}\r", self.password));
        }
        if line.contains("release --force") {
            terminal.wait_until("it asks again", |shown| shown.ends_with("[y/N] "));
            terminal.type_in("y\n");
        }
        let status = terminal.finish();
        // A harmless message for the default user without a password, who continues.
        let harmless = "AUTH failed: ERR AUTH <password> called without";
        let shown = terminal.shown.replace(harmless, "");
        assert!(status.success(), "{line}: {shown}");
        for refusal in ["(error)", "NOAUTH", "NOPERM", "ERR", "Could not connect"] {
            assert!(!shown.contains(refusal), "{line}: {shown}");
        }
    }

    /// Pastes the command for a check, and asserts that the check is ok afterwards.
    #[track_caller]
    fn repair(&self, check: &str, arguments: &[&str]) {
        let line = self.line(check, arguments).expect(check);
        self.paste(&line);
        let examined = self.doctor(arguments);
        let level = &examined.checks[check]["level"];
        assert_eq!(level, "ok", "{line}: {:?}", examined.end);
    }

    /// Waits until doctor has this finding, pastes its command, and waits until the check is ok.
    #[track_caller]
    fn repair_soon(&self, check: &str, finding: &str) {
        let (level, says) = finding.split_once(": ").unwrap();
        let is = |level: &str, says: &str| {
            let check = &self.doctor(&[]).checks[check];
            check["level"] == level && check["message"].as_str().unwrap().contains(says)
        };
        wait_until(finding, || is(level, says));
        self.paste(&self.line(check, &[]).expect(check));
        wait_until("it is repaired", || is("ok", ""));
    }

    /// Returns an administrator's command for the server.
    fn cli(&self, redis: &Redis, words: &[&str]) -> Command {
        let mut cli = Command::new("redis-cli");
        cli.arg("-s").arg(redis.socket()).args(words);
        cli.env("REDISCLI_AUTH", self.password);
        cli
    }

    /// Breaks two settings of a server and repairs them.
    #[track_caller]
    fn repair_settings(&self, redis: &Redis) {
        for set in [
            words!("CONFIG SET maxmemory-policy allkeys-lru"),
            words!("CONFIG SET appendonly no"),
        ] {
            let end = outcome(&mut self.cli(redis, set));
            assert_eq!(end.stdout, "OK\n", "{set:?}: {end:?}");
        }
        self.repair("eviction", &[]);
        self.repair("persistence", &[]);
    }
}

#[test]
fn pasted_commands_repair_what_a_configuration_file_with_a_password_lets_others_do() {
    let redis = Redis::with(words!("--requirepass correct-horse"));
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("redlock.env");
    let url = format!("redis://:correct-horse@127.0.0.1:{}", redis.port);
    fs::write(&file, format!("REDLOCK_URL={url}\n")).unwrap();
    set_mode(&file, 0o600);
    let place = Place {
        settings: vec![("XDG_CONFIG_HOME", dir.path().display().to_string())],
        password: "correct-horse",
    };
    place.repair_settings(&redis);
    set_mode(&file, 0o644);
    set_mode(dir.path(), 0o755);
    // There is no finding if this user owns the directory for temporary files.
    if place.line("secrets", &[]).is_some() {
        place.repair("secrets", &[]);
    }
    set_mode(&file, 0o666);
    place.repair("settings", &[]);
    if OtherUser::new().is_some() {
        chown(&file, Some(54321), None).unwrap();
        place.repair("settings", &[]);
    }
}

#[test]
fn pasted_commands_rewrite_the_configuration_file_of_a_server() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("redis.conf");
    let (port, socket) = (free_port(), dir.path().join("redis.sock"));
    let (listens, here) = (socket.display(), dir.path().display());
    let text = format!(
        "port {port}\nbind 127.0.0.1\nunixsocket {listens}\ndir {here}\nsave \"\"\nrequirepass secret\n\
         maxmemory-policy allkeys-lru\n"
    );
    fs::write(&file, text).unwrap();
    let mut server = Running::start(SERVER.command().arg(&file));
    wait_until("it listens", || UnixStream::connect(&socket).is_ok());
    let place = Place::new(format!("redis://:secret@127.0.0.1:{port}"), "secret");
    place.repair("eviction", &[]);
    place.repair("persistence", &[]);
    server.kill();
    let text = fs::read_to_string(&file).unwrap();
    let has = |line: &str| text.contains(line);
    assert!(has("appendonly yes") && has("requirepass"), "{text}");
    assert!(!has("lru"), "{text}");
}

#[test]
fn pasted_commands_repair_the_settings_of_a_server_and_log_in_as_an_administrator() {
    let redis = Redis::start();
    for url in [redis.url(), format!("{}/3", redis.tcp_url())] {
        Place::new(url, "").repair_settings(&redis);
    }
    make_acl_users(&redis);
    redis.cli(words!("ACL SETUSER boss on >secret ~* &* +@all"));
    for password in ["", "secret"] {
        redis.cli(&["CONFIG", "SET", "requirepass", password]);
        for user in ["boss", "jobs"] {
            let url = format!("redis://{user}:secret@127.0.0.1:{}", redis.port);
            Place::new(url, "secret").repair_settings(&redis);
        }
    }
}

#[test]
fn pasted_commands_work_over_tls_with_a_client_certificate() {
    let directory = tempfile::tempdir().unwrap();
    let dir = directory.path();
    self_signed(dir, "ours", "2", "TRUE");
    let file = |name: &str| dir.join(name).display().to_string();
    fs::write(dir.join("password"), "secret\n").unwrap();
    set_mode(&dir.join("password"), 0o600);
    let (redis, port) = encrypted(dir, "ours");
    let ca = file("ours.crt");
    set(&redis, "tls-ca-cert-file", &ca);
    set(&redis, "tls-auth-clients", "yes");
    make_acl_users(&redis);
    set(&redis, "requirepass", "secret");
    let mut place = Place::new(format!("rediss://jobs@localhost:{port}"), "secret");
    place.settings.extend([
        ("REDLOCK_PASSWORD_FILE", file("password")),
        ("REDLOCK_TLS_CA", ca.clone()),
        ("REDLOCK_TLS_CERT", ca),
        ("REDLOCK_TLS_KEY", file("ours.key")),
    ]);
    place.repair_settings(&redis);
}

/// Checks whose commands add ACL rules, in the order in which doctor can report them: commands, keys, channels.
const OF_RULES: &str = "connection connection scripts scripts messages";

#[test]
fn pasted_commands_add_the_acl_rules_that_are_missing() {
    let redis = Redis::with(&["--appendonly", "yes"]);
    for (rules, database) in [
        ("-@all", "/3"),
        ("+@all", ""),
        ("+@all ~*", ""),
        ("+@all -set ~redlock:* ~{redlock:*", ""),
        ("+@all -select ~* &*", "/3"),
    ] {
        let user = words!("ACL SETUSER jobs reset resetchannels on >secret");
        let rules: Vec<&str> = rules.split(' ').collect();
        assert_eq!(redis.cli(&[user, &rules].concat()), "OK");
        let url = format!("redis://jobs:secret@127.0.0.1:{}{database}", redis.port);
        let place = Place::new(url, "secret");
        for check in OF_RULES.split(' ') {
            if let Some(line) = place.line(check, &[]) {
                place.paste(&line);
            }
        }
        let examined = place.doctor(&[]);
        examined.only("fail", "");
        examined.only("warn", "");
        assert_eq!(examined.document["fit"], true, "{:?}", examined.end);
    }
}

#[test]
fn pasted_commands_add_acl_rules_to_each_node_of_a_cluster_and_announce_a_replicas_address() {
    let cluster = Cluster::with(&[0], &["--appendonly", "yes", "--repl-timeout", "10"]);
    for node in &cluster.nodes {
        let user = words!("ACL SETUSER jobs reset resetchannels on >secret +hello");
        assert_eq!(node.cli(user), "OK");
    }
    let mut place = Place::new(cluster.url().replace("://", "://jobs:secret@"), "secret");
    for check in OF_RULES.split(' ') {
        let Some(line) = place.line(check, &[]) else {
            continue;
        };
        assert!(line.contains("on each server"), "{line}");
        for node in &cluster.nodes {
            let (start, rest) = line.split_once("-p ").unwrap();
            let (_, rest) = rest.split_once(' ').unwrap();
            place.paste(&format!("{start}-p {} {rest}", node.port));
        }
    }
    let examined = place.doctor(&[]);
    examined.only("fail", "");
    examined.says("messages ok: notifies");

    place.settings.push(("REDLOCK_SYNC", "all".into()));
    place.doctor(&[]).says("replicas ok: 1 in sync");
    set(&cluster.nodes[3], "replica-announce-ip", "127.0.0.9");
    cluster.nodes[3].cli(words!("CLIENT KILL TYPE master"));
    place.repair_soon("replicas", "fail: 127.0.0.9:");
    outcome(&mut cluster.redlock(words!("run REDLOCK_SYNC=all a -- true"))).assert_code(0);
}

#[test]
fn pasted_commands_prepare_sentinels_and_replicas_for_a_failover() {
    let plan = Plan {
        options: words!("--appendonly yes --replica-announce-ip localhost"),
        sentinel_lines: "sentinel resolve-hostnames yes\n",
        ..Plan::default()
    };
    let all = Replicated::with(&plan);
    let mut place = Place::new(all.url(), "");
    place.repair("sentinels", &[]);
    all.prefer(1);
    place.repair_soon("replicas", "warn: replica-priorities differ");
    // The replicas have names, but the sentinels list their IP addresses.
    place.settings.push(("REDLOCK_SYNC", "all".into()));
    for sentinel in &all.sentinels {
        sentinel.cli(words!("SENTINEL RESET {}", MASTER));
    }
    all.wait_until_whole();
    place.repair_soon("replicas", "fail: localhost:");
    set(&all.servers[all.primary()], "repl-timeout", "60");
    place.repair_soon("replicas", "warn: repl-timeout");
}

#[test]
fn pasted_commands_free_a_lock_and_end_a_script() {
    let redis = Redis::with(words!(
        "--appendonly yes --requirepass secret --lua-time-limit 50"
    ));
    let url = format!("redis://:secret@127.0.0.1:{}", redis.port);
    let place = Place::new(url, "secret");
    place.paste("redlock freeze cold --reason x");
    place.repair("name", &["cold"]);
    // A command with a condition, only for users who are sure.
    let set = words!("SET redlock:forever x");
    outcome(&mut place.cli(&redis, set)).assert_code(0);
    let examined = place.doctor(&["forever"]);
    examined.says("name fail: no expiry → is dead; then redlock release --force forever");
    let fix = examined.checks["name"]["fix"].as_str().unwrap();
    place.paste(fix.split_once("then ").unwrap().1);
    place.doctor(&["forever"]).says("name ok: is free");
    // A script that never ends.
    let endless = ["EVAL", "while true do end", "0"];
    let endless = Running::start(&mut place.cli(&redis, &endless));
    wait_until("it is busy", || {
        let line = place.line("connection", &[]);
        line.is_some_and(|line| line.contains("SCRIPT KILL"))
    });
    place.repair("connection", &[]);
    endless.finish();
}

#[test]
fn pasted_commands_mount_proc_as_redlock_needs_it() {
    let redis = Redis::with(&["--appendonly", "yes"]);
    let repair = |namespaces: &str, prepare: &str, ask: &str, expected: &str| {
        let text = format!(
            r#"{prepare} || exit 9
            fix() {{ {ask} doctor --json | python3 -c 'import json, sys
print([c["fix"] or "" for c in json.load(sys.stdin)["checks"] if c["check"] == "proc"][0])'; }}
            line=$(fix); printf '%s\n' "$line"; sh -c "$line" && fix"#
        );
        let mut command = Command::new("unshare");
        command
            .args(namespaces.split(' '))
            .args(["sh", "-c", &text]);
        command.env_clear().env("PATH", path());
        command.env("REDLOCK_URL", redis.tcp_url());
        let end = outcome(command.env("HOME", "/nonexistent"));
        end.assert_code(0);
        let lines: Vec<&str> = end.stdout.lines().collect();
        assert!(lines[0].starts_with(expected), "{end:?}");
        assert_eq!(lines[1..], [""], "{end:?}");
    };
    if is_permitted(&["unshare", "-mpf", "mount", "-t", "proc", "proc", "/proc"]) {
        repair("-mpf", "true", "redlock", "mount -t proc");
    }
    let hide = "mount -o remount,hidepid=2 /proc";
    let hides = ["unshare", "-mpf", "--mount-proc", "sh", "-c", hide];
    if OtherUser::new().is_some() && is_permitted(&hides) {
        let dir = tempfile::tempdir().unwrap();
        set_mode(dir.path(), 0o755);
        let own = dir.path().join("redlock");
        fs::copy(REDLOCK, &own).unwrap();
        let other = "setpriv --reuid 54321 --regid 54321 --clear-groups";
        let ask = format!("{other} {}", own.display());
        let expected = "mount -o remount,hidepid=0";
        repair("-mpf --mount-proc", hide, &ask, expected);
    }
}
