//! The commands that `redlock doctor` prints, pasted into a shell against a server in the state that they are for:
//! the finding is gone when doctor is asked again, whichever way the server is reached.

use std::collections::BTreeSet;
use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::thread;

use crate::generated::make_acl_users;
use crate::promises::config::{openssl, set_mode};
use crate::promises::doctor::{Examined, Sentinel};
use crate::support::pty::Terminal;
use crate::support::{
    self, Cluster, MASTER, OtherUser, Plan, REDLOCK, Redis, Replicated, SERVER, free_port,
    is_permitted, outcome, path, redlock, wait_until,
};

/// The names of the commands that have been pasted.
type Pasted = Mutex<BTreeSet<String>>;

/// The name of a state, and what brings a server into it and pastes.
type State = (&'static str, fn(&Pasted));

/// One command that doctor prints.
struct Repair {
    name: String,
    check: String,
    /// What its line says.
    mark: String,
}

/// All commands that doctor can print, as its source lists them.
fn repairs() -> Vec<Repair> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/command/doctor/fix.rs");
    let source = fs::read_to_string(source).unwrap();
    let (_, list) = source.split_once("\nrepairs! {\n").expect("the list");
    let (list, _) = list.split_once("\n}\n").expect("its end");
    let lines = list.lines().map(str::trim);
    let lines = lines.filter(|line| !line.starts_with("///"));
    let repair = |line: &str| {
        let (name, rest) = line.split_once(": ")?;
        let mut texts = rest.split('"').skip(1).step_by(2).map(str::to_owned);
        Some(Repair {
            name: name.to_owned(),
            check: texts.next()?,
            mark: texts.next()?,
        })
    };
    lines.map(|line| repair(line).expect(line)).collect()
}

/// Where a shell runs: its settings, and the password to type.
struct Place<'a> {
    settings: &'a [(&'a str, &'a str)],
    password: &'a str,
    pasted: &'a Pasted,
}

impl Place<'_> {
    #[track_caller]
    fn doctor(&self, arguments: &[&str]) -> Examined {
        let mut command = redlock(&[&["doctor"], arguments].concat());
        command.env("HOME", "/nonexistent");
        command.envs(self.settings.iter().copied());
        Examined::new(&mut command)
    }

    /// The command that doctor prints for a check; it is noted as pasted.
    #[track_caller]
    fn line(&self, found: &Examined, check: &str) -> String {
        let fix = found.checks[check]["fix"].as_str();
        let fix = fix.unwrap_or_else(|| panic!("{check} is well: {:?}", found.end));
        let known = repairs().into_iter();
        let mut known = known.filter(|it| it.check == check && fix.contains(&it.mark));
        let repair = known.next().unwrap_or_else(|| panic!("no command: {fix}"));
        self.pasted.lock().unwrap().insert(repair.name);
        fix.to_owned()
    }

    /// Pastes a line into a shell on a terminal, and types the password whenever it is asked for.
    #[track_caller]
    fn paste(&self, line: &str) {
        assert!(
            !line.contains(self.password) || self.password.is_empty(),
            "{line}"
        );
        let mut shell = Command::new("sh");
        // A terminal without a size would be asked for it.
        let script = format!("stty rows 24 columns 400; {line}");
        shell
            .args(["-c", &script])
            .env_clear()
            .env("PATH", path())
            .env("HOME", "/nonexistent")
            .envs(self.settings.iter().copied());
        let mut terminal = Terminal::start(shell);
        for asked in 0..line.matches("--askpass").count() {
            terminal.wait_until("the password is asked for", |shown| {
                shown.ends_with("input password: ") && shown.matches("OK").count() >= asked
            });
            terminal.type_in(&format!("{}\r", self.password));
        }
        if line.contains("release --force") {
            terminal.wait_until("it asks whether that is meant", |shown| {
                shown.ends_with("[y/N] ")
            });
            terminal.type_in("y\n");
        }
        let status = terminal.finish();
        let shown = &terminal.shown;
        assert!(status.success(), "{line}: {shown}");
        for refusal in ["(error)", "NOAUTH", "NOPERM", "ERR", "Could not connect"] {
            // What the default user without a password is told, before it goes on.
            let shown = shown.replace("AUTH failed: ERR AUTH <password> called without", "");
            assert!(!shown.contains(refusal), "{line}: {shown}");
        }
    }

    /// What doctor finds wrong with a check is gone after its command was pasted.
    #[track_caller]
    fn mend(&self, check: &str, arguments: &[&str]) {
        let line = self.line(&self.doctor(arguments), check);
        self.paste(&line);
        let found = self.doctor(arguments);
        assert_eq!(
            found.checks[check]["level"], "ok",
            "{line}: {:?}",
            found.end
        );
    }
}

/// Each setting that doctor has a command for is wrong, and is mended as the server is reached.
#[track_caller]
fn mend_settings(redis: &Redis, place: &Place) {
    for (name, value) in [
        ("maxmemory-policy", "allkeys-lru"),
        ("timeout", "5"),
        ("appendonly", "no"),
    ] {
        let mut set = Command::new("redis-cli");
        set.arg("-s").arg(redis.socket());
        set.args(["CONFIG", "SET", name, value]);
        set.env("REDISCLI_AUTH", place.password);
        let output = set.stderr(Stdio::null()).output().unwrap().stdout;
        assert_eq!(String::from_utf8_lossy(&output).trim_end(), "OK");
    }
    place.mend("eviction", &[]);
    // What else is set isn't shown to everyone.
    for check in ["persistence", "timeouts"] {
        if place.doctor(&[]).checks[check]["fix"].is_string() {
            place.mend(check, &[]);
        }
    }
}

fn without_a_password(pasted: &Pasted) {
    let redis = Redis::start();
    for url in [
        redis.url(),
        redis.tcp_url(),
        format!("{}/3", redis.tcp_url()),
    ] {
        let settings = [("REDLOCK_URL", &*url)];
        let place = Place {
            settings: &settings,
            password: "",
            pasted,
        };
        mend_settings(&redis, &place);
        assert_eq!(redis.cli(&["CONFIG", "GET", "timeout"]), "timeout\n0");
    }
}

/// The README's second host: a password for all, in a configuration file on both sides.
fn with_a_password(pasted: &Pasted) {
    let dir = tempfile::tempdir().unwrap();
    let config = dir.path().join("redis.conf");
    let config = config.to_str().unwrap();
    fs::write(config, "requirepass correct-horse-battery-staple\n").unwrap();
    let redis = Redis::with(words!(
        "--include {} --requirepass correct-horse-battery-staple",
        config
    ));
    let file = dir.path().join("redlock.env");
    let url = format!(
        "redis://:correct-horse-battery-staple@127.0.0.1:{}",
        redis.port
    );
    fs::write(&file, format!("REDLOCK_URL={url}\n")).unwrap();
    set_mode(&file, 0o600);
    let settings = [("XDG_CONFIG_HOME", dir.path().to_str().unwrap())];
    let place = Place {
        settings: &settings,
        password: "correct-horse-battery-staple",
        pasted,
    };
    mend_settings(&redis, &place);

    set_mode(&file, 0o644);
    set_mode(dir.path(), 0o755);
    let found = place.doctor(&[]);
    if found.checks["secrets"]["level"] != "ok" {
        place.mend("secrets", &[]);
    }
    set_mode(&file, 0o666);
    place.mend("settings", &[]);
}

/// A server that was started with a configuration file writes down what it is told.
fn with_a_configuration_file(pasted: &Pasted) {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("redis.conf");
    let port = free_port();
    let socket = dir.path().join("redis.sock");
    let text = format!(
        "port {port}\nbind 127.0.0.1\nunixsocket {}\ndir {}\nsave \"\"\nrequirepass secret\nmaxmemory-policy allkeys-lru\n",
        socket.display(),
        dir.path().display()
    );
    fs::write(&file, text).unwrap();
    let mut server = SERVER.command();
    server.arg(&file).stdin(Stdio::null()).stdout(Stdio::null());
    let mut server = server.spawn().unwrap();
    wait_until("it listens", || {
        std::os::unix::net::UnixStream::connect(&socket).is_ok()
    });
    let url = format!("redis://:secret@127.0.0.1:{port}");
    let settings = [("REDLOCK_URL", &*url)];
    let place = Place {
        settings: &settings,
        password: "secret",
        pasted,
    };
    for check in ["eviction", "persistence"] {
        place.mend(check, &[]);
    }
    let _ = (server.kill(), server.wait());
    let text = fs::read_to_string(&file).unwrap();
    for line in ["appendonly yes", "requirepass"] {
        assert!(text.contains(line), "{text}");
    }
    assert!(!text.contains("allkeys-lru"), "{text}");
}

/// Users of the access list: an administrator, and the user for jobs of docs/servers.md, where the default user has a
/// password and where it has none.
fn as_users(pasted: &Pasted) {
    let redis = Redis::start();
    make_acl_users(&redis);
    redis.cli(words!("ACL SETUSER boss on >secret ~* &* +@all"));
    let url = |user: &str| format!("redis://{user}:secret@127.0.0.1:{}", redis.port);
    let (boss, jobs) = (url("boss"), url("jobs"));
    for password in ["", "secret"] {
        for url in [&boss, &jobs] {
            let settings = [("REDLOCK_URL", &**url)];
            let place = Place {
                settings: &settings,
                password: "secret",
                pasted,
            };
            mend_settings(&redis, &place);
        }
        if password.is_empty() {
            redis.cli(&["CONFIG", "SET", "requirepass", "secret"]);
        }
    }
}

/// Rules of the access list, which are added by one line whatever is missing.
fn with_rules_missing(pasted: &Pasted) {
    let redis = Redis::with(&["--appendonly", "yes"]);
    let url = format!("redis://jobs:secret@127.0.0.1:{}", redis.port);
    let with_database = format!("{url}/3");
    let keys = ["~redlock:*", "~{redlock:*"];
    for (rules, url) in [
        (&[][..], &url),
        (&["+get", "+set"], &url),
        (&["+@all"], &url),
        (&["+@all", "~*"], &url),
        (&["+@all", "-set", keys[0], keys[1]], &url),
        (&["+@all", "-info", "-wait", "-acl", "~*", "&*"], &url),
        (&["+@all", "-select", "~*", "&*"], &with_database),
        (&[], &with_database),
    ] {
        let user = words!("ACL SETUSER jobs reset resetchannels on >secret");
        assert_eq!(redis.cli(&[user, rules].concat()), "OK");
        let settings = [("REDLOCK_URL", &**url)];
        let place = Place {
            settings: &settings,
            password: "secret",
            pasted,
        };
        let found = place.doctor(&[]);
        let line = place.line(&found, "permissions");
        place.paste(&line);
        let found = place.doctor(&[]);
        assert_eq!(
            found.of("fail"),
            [""; 0],
            "{rules:?} {line}: {:?}",
            found.end
        );
        assert_eq!(
            found.of("warn"),
            [""; 0],
            "{rules:?} {line}: {:?}",
            found.end
        );
        assert_eq!(found.document["fit"], true, "{rules:?}: {:?}", found.end);
    }
}

/// A CA, and the certificates of a server and of a client that it has signed.
fn certificates(dir: &Path) {
    openssl(
        dir,
        "req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=ca -keyout ca.key -out ca.crt",
    );
    for name in ["server", "client"] {
        let request = format!("req -newkey rsa:2048 -nodes -subj /CN={name} -keyout {name}.key");
        let names = "-addext subjectAltName=DNS:localhost";
        openssl(dir, &format!("{request} {names} -out {name}.csr"));
        let sign = format!("x509 -req -in {name}.csr -CA ca.crt -CAkey ca.key -CAcreateserial");
        openssl(
            dir,
            &format!("{sign} -copy_extensions copy -days 2 -out {name}.crt"),
        );
    }
}

/// The configuration of docs/servers.md with TLS, a user and a password file; and a server that wants to see our certificate.
fn over_tls(pasted: &Pasted) {
    let directory = tempfile::tempdir().unwrap();
    let dir = directory.path();
    certificates(dir);
    let file = |name: &str| dir.join(name).to_str().unwrap().to_owned();
    let password = file("redlock.password");
    fs::write(&password, "secret\n").unwrap();
    set_mode(Path::new(&password), 0o600);
    for asks in ["no", "yes"] {
        let port = free_port().to_string();
        let (cert, key, ca) = (file("server.crt"), file("server.key"), file("ca.crt"));
        let options = [
            ["--tls-port", &port],
            ["--tls-cert-file", &cert],
            ["--tls-key-file", &key],
            ["--tls-ca-cert-file", &ca],
            ["--tls-auth-clients", asks],
        ];
        let redis = Redis::with(&options.concat());
        make_acl_users(&redis);
        redis.cli(words!("ACL SETUSER boss on >secret ~* &* +@all"));
        redis.cli(&["CONFIG", "SET", "requirepass", "secret"]);
        let (our_cert, our_key) = (file("client.crt"), file("client.key"));
        for user in ["jobs", "boss"] {
            let url = format!("rediss://{user}@localhost:{port}");
            let mut settings = vec![
                ("REDLOCK_URL", &*url),
                ("REDLOCK_PASSWORD_FILE", &*password),
                ("REDLOCK_TLS_CA", &*ca),
            ];
            if asks == "yes" {
                settings.push(("REDLOCK_TLS_CERT", &our_cert));
                settings.push(("REDLOCK_TLS_KEY", &our_key));
            }
            let place = Place {
                settings: &settings,
                password: "secret",
                pasted,
            };
            mend_settings(&redis, &place);
        }
    }
}

fn with_a_replica(pasted: &Pasted) {
    let primary = Redis::with(&["--appendonly", "yes", "--requirepass", "secret"]);
    let port = primary.port.to_string();
    let replica = Redis::with(words!(
        "--replicaof 127.0.0.1 {} --masterauth secret --requirepass secret --replica-priority 0",
        &port
    ));
    let url = format!("redis://:secret@127.0.0.1:{port}");
    let settings = [("REDLOCK_URL", &*url)];
    let place = Place {
        settings: &settings,
        password: "secret",
        pasted,
    };
    wait_until("it is in sync", || {
        let found = place.doctor(&[]);
        let message = found.checks["replicas"]["message"].as_str();
        message.unwrap().contains("none can be promoted")
    });
    place.mend("replicas", &[]);
    drop(replica);
}

/// Sentinels that let everyone in, that want a password, and that know users.
fn with_sentinels(pasted: &Pasted) {
    let all = Replicated::with(&Plan {
        sentinel_lines: "sentinel sentinel-pass secret\n",
        ..Plan::default()
    });
    let ask = |sentinel: &support::Sentinel, words: &[&str]| {
        let mut cli = Command::new("redis-cli");
        cli.args(["-p", &sentinel.port.to_string()]).args(words);
        let output = cli.env("REDISCLI_AUTH", "secret").output().unwrap().stdout;
        String::from_utf8_lossy(&output).trim_end().to_owned()
    };
    let password = ["ACL", "SETUSER", "default", "resetpass", ">secret"];
    let boss = words!("ACL SETUSER boss on >secret ~* &* +@all");
    let asker = ["ACL", "SETUSER", "asker", "on", ">secret", "+sentinel"];
    for (user, options) in [
        (&["PING"][..], ""),
        (boss, "?sentinel_user=boss&sentinel_password=secret"),
        (&password, "?sentinel_password=secret"),
        (&asker, "?sentinel_user=asker&sentinel_password=secret"),
    ] {
        for sentinel in &all.sentinels {
            ask(sentinel, user);
        }
        for sentinel in &all.sentinels[1..] {
            let quorum = ["SENTINEL", "SET", MASTER, "quorum", "9"];
            assert_eq!(ask(sentinel, &quorum), "OK");
        }
        let url = format!("{}{options}", all.url());
        let settings = [("REDLOCK_URL", &*url)];
        let place = Place {
            settings: &settings,
            password: "secret",
            pasted,
        };
        place.mend("sentinels", &[]);
        let majority = place.doctor(&[]);
        majority.assert("sentinels", "ok", "quorum 2 of 3", "");
    }
}

/// Sentinels that have not found each other yet are no reason to lower their quorum.
fn with_sentinels_that_do_not_know_each_other(pasted: &Pasted) {
    let primary = Redis::with(&["--appendonly", "yes"]);
    let alone = Sentinel::of(&primary, 3, 5000);
    let url = format!("redis-sentinel://127.0.0.1:{}/mymaster", alone.port);
    let of_three = format!(
        "redis-sentinel://127.0.0.1:{},127.0.0.1:{},127.0.0.1:{}/mymaster",
        alone.port,
        free_port(),
        free_port()
    );
    let settings = [("REDLOCK_URL", &*of_three)];
    let place = Place {
        settings: &settings,
        password: "",
        pasted,
    };
    let found = place.doctor(&[]);
    found.assert("sentinels", "warn", "give no answer", "start them");
    found.assert(
        "failover",
        "fail",
        "a failover needs 3",
        "start the sentinels",
    );
    // Of one alone the majority is one.
    let settings = [("REDLOCK_URL", &*url)];
    let place = Place {
        settings: &settings,
        ..place
    };
    let line = place.line(&place.doctor(&[]), "sentinels");
    assert!(line.ends_with("quorum 1"), "{line}");
    place.paste(&line);
    place
        .doctor(&[])
        .assert("sentinels", "warn", "1 sentinel in all", "three or more");
}

/// A node of a cluster: the one that has the locks.
fn on_a_cluster(pasted: &Pasted) {
    let cluster = Cluster::with(&[], &["--appendonly", "yes"]);
    let user = words!("ACL SETUSER jobs reset resetchannels on >secret");
    for node in &cluster.nodes {
        assert_eq!(node.cli(&[user, &["+hello"]].concat()), "OK");
    }
    let url = cluster.url().replace("://", "://jobs:secret@");
    let settings = [("REDLOCK_URL", &*url)];
    let place = Place {
        settings: &settings,
        password: "secret",
        pasted,
    };
    let line = place.line(&place.doctor(&[]), "permissions");
    // The default user has no password there, and each node has its users.
    for node in &cluster.nodes {
        let (start, rest) = line.split_once("-p ").unwrap();
        let (_, rest) = rest.split_once(' ').unwrap();
        place.paste(&format!("{start}-p {} {rest}", node.port));
    }
    let found = place.doctor(&[]);
    assert_eq!(found.of("fail"), [""; 0], "{line}: {:?}", found.end);
    found.assert("permissions", "ok", "has every permission", "");
}

fn of_locks_and_scripts(pasted: &Pasted) {
    let redis = Redis::with(words!(
        "--appendonly yes --requirepass secret --lua-time-limit 50"
    ));
    let url = format!("redis://:secret@127.0.0.1:{}", redis.port);
    let settings = [("REDLOCK_URL", &*url)];
    let place = Place {
        settings: &settings,
        password: "secret",
        pasted,
    };
    let mut freeze = redlock(&["freeze", "cold", "--reason", "x"]);
    let freeze = freeze.env("HOME", "/nonexistent").envs(settings);
    outcome(freeze).assert_code(0);
    place
        .doctor(&["cold"])
        .assert("name", "warn", "is frozen", "");
    let line = place.line(&place.doctor(&["cold"]), "name");
    place.paste(&line);
    place.doctor(&["cold"]).assert("name", "ok", "is free", "");
    // One that is only for those who are sure.
    let words = ["SET", "redlock:forever", "x"];
    let mut set = Command::new("redis-cli");
    set.arg("-s")
        .arg(redis.socket())
        .args(words)
        .env("REDISCLI_AUTH", "secret");
    assert!(set.stdout(Stdio::null()).status().unwrap().success());
    let found = place.doctor(&["forever"]);
    found.assert(
        "name",
        "fail",
        "no expiry",
        "is dead; then redlock release --force forever",
    );
    let fix = found.checks["name"]["fix"].as_str().unwrap();
    place.paste(fix.split_once("then ").unwrap().1);
    place
        .doctor(&["forever"])
        .assert("name", "ok", "is free", "");
    // A script that doesn't end.
    let mut endless = Command::new("redis-cli");
    endless
        .arg("-s")
        .arg(redis.socket())
        .args(["EVAL", "while true do end", "0"]);
    endless
        .env("REDISCLI_AUTH", "secret")
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    let mut endless = endless.spawn().unwrap();
    wait_until("it is busy", || {
        let found = place.doctor(&[]);
        let message = found.checks["connection"]["message"].as_str();
        message.unwrap().contains("script")
    });
    place.mend("connection", &[]);
    endless.wait().unwrap();
}

/// What this host hides, where namespaces are permitted.
fn of_this_host(pasted: &Pasted) {
    let redis = Redis::with(&["--appendonly", "yes"]);
    let script = |prepare: &str, ask: &str| {
        format!(
            r#"{prepare} || exit 9
            fix() {{ {ask} doctor --json | python3 -c 'import json, sys
print([c["fix"] or "" for c in json.load(sys.stdin)["checks"] if c["check"] == "proc"][0])'; }}
            line=$(fix); printf '%s\n' "$line"; sh -c "$line" && fix"#
        )
    };
    let run = |namespaces: &[&str], text: &str| {
        let mut command = Command::new("unshare");
        command
            .args(namespaces)
            .args(["sh", "-c", text])
            .env_clear();
        command
            .env("PATH", path())
            .env("REDLOCK_URL", redis.tcp_url());
        let output = command.env("HOME", "/nonexistent").output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success(), "{text} {output:?}");
        text
    };
    let note = |text: &str, mark: &str| {
        let lines: Vec<&str> = text.lines().collect();
        assert!(
            lines.len() == 2 && lines[0].contains(mark) && lines[1].is_empty(),
            "{text:?}"
        );
        let repair = repairs().into_iter().find(|it| it.mark == mark).unwrap();
        pasted.lock().unwrap().insert(repair.name);
    };
    if is_permitted(&["unshare", "-mpf", "mount", "-t", "proc", "proc", "/proc"]) {
        let text = run(&["-mpf"], &script("true", "redlock"));
        note(&text, "mount -t proc");
    } else {
        pasted.lock().unwrap().insert("OwnProc".into());
    }
    let hide = "mount -o remount,hidepid=2 /proc";
    let way = ["unshare", "-mpf", "--mount-proc", "sh", "-c", hide];
    match OtherUser::new().filter(|_| is_permitted(&way)) {
        Some(_) => {
            let dir = tempfile::tempdir().unwrap();
            set_mode(dir.path(), 0o755);
            let own = dir.path().join("redlock");
            fs::copy(REDLOCK, &own).unwrap();
            let ask = format!(
                "setpriv --reuid 54321 --regid 54321 --clear-groups {}",
                own.display()
            );
            let text = run(&["-mpf", "--mount-proc"], &script(hide, &ask));
            note(&text, "hidepid=0");
        }
        None => {
            pasted.lock().unwrap().insert("ShowProc".into());
        }
    }
}

/// All users may read the password file of a user, in a directory that is open to them.
fn of_a_secret(pasted: &Pasted) {
    let redis = Redis::with(&["--appendonly", "yes", "--requirepass", "secret"]);
    let dir = tempfile::tempdir().unwrap();
    set_mode(dir.path(), 0o755);
    let file = dir.path().join("redlock password");
    fs::write(&file, "secret\n").unwrap();
    set_mode(&file, 0o644);
    let url = redis.tcp_url();
    let settings = [
        ("REDLOCK_URL", &*url),
        ("REDLOCK_PASSWORD_FILE", file.to_str().unwrap()),
    ];
    let place = Place {
        settings: &settings,
        password: "",
        pasted,
    };
    place.mend("secrets", &[]);
}

#[test]
fn each_command_that_doctor_prints_mends_what_it_is_for_when_it_is_pasted() {
    let pasted = Pasted::default();
    let states: [State; 13] = [
        ("without a password", without_a_password),
        ("with a password", with_a_password),
        ("with a configuration file", with_a_configuration_file),
        ("as users", as_users),
        ("with rules missing", with_rules_missing),
        ("over TLS", over_tls),
        ("with a replica", with_a_replica),
        ("with sentinels", with_sentinels),
        (
            "with sentinels that don't know each other",
            with_sentinels_that_do_not_know_each_other,
        ),
        ("on a cluster", on_a_cluster),
        ("of locks and scripts", of_locks_and_scripts),
        ("of this host", of_this_host),
        ("of a secret", of_a_secret),
    ];
    let only = std::env::var("STATE").ok();
    let states = states.into_iter();
    let states = states.filter(|(name, _)| only.as_deref().is_none_or(|only| only == *name));
    let (states, failed) = (Mutex::new(states), Mutex::new(Vec::new()));
    // Two at a time: doctor has two seconds, and each state has servers of its own.
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                let next = || states.lock().unwrap().next();
                while let Some((name, state)) = next() {
                    if catch_unwind(AssertUnwindSafe(|| state(&pasted))).is_err() {
                        failed.lock().unwrap().push(name);
                    }
                }
            });
        }
    });
    assert_eq!(*failed.lock().unwrap(), [""; 0]);
    let all: BTreeSet<String> = repairs().into_iter().map(|repair| repair.name).collect();
    if only.is_none() {
        assert_eq!(*pasted.lock().unwrap(), all);
    }
}
