//! Each recipe of the README, run as it stands there.
//!
//! Only paths of the machine are put elsewhere: `/opt`, `/srv`, `/backups` and the installed binary. What
//! GitHub, GitLab, Jenkins and Kubernetes do with a document is not tested, only the commands in it
//! with the shell and the variables that they have there. Where the machine has no cron daemon, or
//! doesn't let us hide its own crontabs from it, the crontab is run line by line.

use std::fs;
use std::path::Path;
use std::process::Command;

use nix::sys::signal::Signal;
use serde_json::Value;

use crate::generated::recipes;
use crate::support::{
    Gated, Outcome, REDLOCK, Redis, Running, assert_nothing_left, outcome, path, script,
    wait_until, without_terminal,
};

/// The code blocks of a recipe: the language and the text.
fn blocks(heading: &str) -> Vec<(String, String)> {
    let all = recipes();
    let (_, rest) = all
        .split_once(&format!("### {heading}\n"))
        .unwrap_or_else(|| panic!("no recipe {heading}"));
    let recipe = rest.split("\n### ").next().unwrap();
    let parts: Vec<&str> = recipe.split("```").collect();
    let code = parts.chunks(2).filter_map(|two| two.get(1));
    code.map(|code| {
        let (language, text) = code.split_once('\n').unwrap();
        (language.to_owned(), text.to_owned())
    })
    .collect()
}

/// The only block of a recipe.
fn block(heading: &str) -> String {
    let mut all = blocks(heading);
    assert_eq!(all.len(), 1, "{heading}");
    all.remove(0).1
}

/// A directory with all that recipes call.
struct Sandbox {
    redis: Redis,
}

impl Sandbox {
    fn new() -> Self {
        let sandbox = Self {
            redis: Redis::start(),
        };
        for directory in ["opt/jobs", "srv/site", "backups", "home"] {
            fs::create_dir_all(sandbox.dir().join(directory)).unwrap();
        }
        sandbox
    }

    fn dir(&self) -> &Path {
        self.redis.dir.path()
    }

    /// Makes a script; its name is logged when it is called, with its arguments.
    fn with(self, name: &str, body: &str) -> Self {
        let dir = self.dir().display();
        let base = name.rsplit('/').next().unwrap();
        let text = format!("#!/bin/sh\necho \"{base}${{*:+ $*}}\" >>{dir}/log\n{body}\n");
        script(self.dir(), name, &text);
        self
    }

    /// The calls so far.
    fn log(&self) -> Vec<String> {
        let log = fs::read_to_string(self.dir().join("log")).unwrap_or_default();
        log.lines().map(str::to_owned).collect()
    }

    /// A text with the machine's paths put into the sandbox.
    fn here(&self, text: &str) -> String {
        let dir = self.dir().display().to_string();
        let binaries = Path::new(REDLOCK).parent().unwrap().display().to_string();
        ["/opt/", "/srv/", "/backups/", " /home"].iter().fold(
            text.replace("/usr/local/bin", &binaries),
            |text, path| {
                let there = path.trim_start();
                let space = &path[..path.len() - there.len()];
                text.replace(path, &format!("{space}{dir}{there}"))
            },
        )
    }

    /// A command in the sandbox.
    fn command(&self, words: &[&str], variables: &[(&str, &str)]) -> Command {
        let words: Vec<String> = words.iter().map(|word| self.here(word)).collect();
        let mut command = Command::new(&words[0]);
        command
            .args(&words[1..])
            .env_clear()
            .envs(variables.iter().copied())
            .env("PATH", path())
            .env("HOME", self.dir())
            .env("REDLOCK_URL", self.redis.url())
            .current_dir(self.dir());
        without_terminal(&mut command);
        command
    }

    fn sh(&self, text: &str) -> Command {
        self.command(&["sh", "-c", text], &[])
    }

    fn status(&self) -> Value {
        let json = outcome(&mut self.redis.redlock(&["status", "--json"])).stdout;
        serde_json::from_str(&json).unwrap()
    }
}

/// A YAML document.
fn yaml(text: &str) -> Value {
    let script = "import json, sys, yaml; print(json.dumps(yaml.safe_load(sys.argv[1])))";
    let parsed: Outcome = Command::new("python3")
        .args(["-c", script, text])
        .output()
        .expect("python3 is installed")
        .into();
    parsed.assert_code(0);
    serde_json::from_str(&parsed.stdout).unwrap()
}

/// A script that says `ready` and goes on until it is told to end.
const GATE: &str = "echo ready; until test -e go; do sleep 0.02; done";

#[test]
fn crontab_as_two_hosts_run_it() {
    let sandbox = Sandbox::new()
        .with("opt/jobs/backup.sh", "exit 0")
        .with("opt/jobs/report.sh", "echo the report failed; exit 1");
    let dir = sandbox.dir();
    let crontab = sandbox.here(&block("crontab"));
    let lines: Vec<&str> = crontab.lines().collect();
    let [variables, jobs @ ..] = lines.as_slice() else {
        panic!("no jobs in {crontab}");
    };
    fs::create_dir_all(dir.join("root/.config")).unwrap();
    let setting = format!("REDLOCK_URL={}\n", sandbox.redis.url());
    fs::write(dir.join("root/.config/redlock.env"), setting).unwrap();
    let commands: Vec<String> = jobs
        .iter()
        .map(|job| job.splitn(6, ' ').last().unwrap().to_owned())
        .collect();

    if can_hide_the_machine() {
        let every_minute = commands
            .iter()
            .map(|command| format!("* * * * * {command}\n"));
        let crontab = format!("{variables}\n{}", every_minute.collect::<String>());
        fs::write(dir.join("crontab"), crontab).unwrap();
        let hosts: Vec<Running> = (0..2).map(|host| cron(dir, host)).collect();
        wait_until_the_minute("the failed report is mailed", || {
            mail(dir).contains("the report failed\n") && sandbox.log().contains(&"backup.sh".into())
        });
        drop(hosts);
    } else {
        for command in commands.iter().chain(&commands) {
            let path = variables.split_once('=').unwrap().1;
            let mut job = Command::new("/bin/sh");
            job.args(["-c", command])
                .env_clear()
                .env("PATH", path)
                .env("HOME", dir.join("root"));
            let end = outcome(&mut job);
            end.assert_silent();
            fs::write(dir.join("mail-0"), mail(dir) + &end.stdout).unwrap();
        }
    }
    let backups = sandbox
        .log()
        .iter()
        .filter(|call| *call == "backup.sh")
        .count();
    assert_eq!(backups, 1, "{:?}", sandbox.log());
    let mail = mail(dir);
    assert!(mail.contains("the report failed\n"), "{mail}");
    assert!(!mail.contains("redlock: "), "{mail}");
}

/// All that cron has sent.
fn mail(dir: &Path) -> String {
    let read = |host: usize| fs::read_to_string(dir.join(format!("mail-{host}")));
    (0..2).map(|host| read(host).unwrap_or_default()).collect()
}

/// Whether there is a cron daemon, and a way to give it directories of its own.
fn can_hide_the_machine() -> bool {
    let mut command = Command::new("unshare");
    let here = command.args([
        "-m",
        "sh",
        "-c",
        "test -x /usr/sbin/cron && mount -t tmpfs none /mnt",
    ]);
    here.output().is_ok_and(|output| output.status.success())
}

/// A cron daemon that sees nothing of the machine's crontabs and mail.
fn cron(dir: &Path, host: usize) -> Running {
    let dir = dir.display();
    let text = format!(
        "cp /usr/sbin/cron {dir}/cron-{host} && mount --make-rprivate / &&
         for hidden in /var/spool/cron /etc/cron.d /run /usr/sbin; do
             mount -t tmpfs none $hidden || exit
         done &&
         mount --bind /dev/null /etc/crontab 2>&- ; mount --bind {dir}/root /root &&
         mkdir -p /var/spool/cron/crontabs /run/lock &&
         install -m 600 {dir}/crontab /var/spool/cron/crontabs/root &&
         printf '#!/bin/sh\\nsed 1,/^$/d >>{dir}/mail-{host}\\n' >/usr/sbin/sendmail &&
         chmod +x /usr/sbin/sendmail && exec {dir}/cron-{host} -f"
    );
    let mut command = Command::new("unshare");
    command.args(["-m", "sh", "-c", &text]);
    without_terminal(&mut command);
    Running::start(&mut command)
}

/// Waits for what cron does with the next minute.
fn wait_until_the_minute(what: &str, mut condition: impl FnMut() -> bool) {
    let end = std::time::Instant::now() + std::time::Duration::from_secs(100);
    while !condition() {
        assert!(std::time::Instant::now() < end, "never happened: {what}");
        std::thread::sleep(std::time::Duration::from_millis(100));
    }
}

#[test]
fn systemd_timer() {
    let sandbox = Sandbox::new().with("opt/backup.sh", GATE);
    let mut exec = String::new();
    let mut files = Vec::new();
    for (_, text) in blocks("systemd timer") {
        let (first, unit) = text.split_once('\n').unwrap();
        let name = first.rsplit('/').next().unwrap();
        if let Some(line) = unit
            .lines()
            .find_map(|line| line.strip_prefix("ExecStart="))
        {
            line.clone_into(&mut exec);
        }
        let file = sandbox.dir().join(name);
        fs::write(&file, sandbox.here(unit)).unwrap();
        files.push(file);
    }
    if let Ok(output) = Command::new("systemd-analyze")
        .arg("verify")
        .args(&files)
        .output()
    {
        let verified = Outcome::from(output);
        let ours = |line: &&str| {
            files
                .iter()
                .any(|file| line.contains(file.to_str().unwrap()))
        };
        let complaint = verified.stderr.lines().find(ours);
        assert_eq!(complaint, None, "{verified:?}");
    }
    let words: Vec<&str> = exec.split(' ').collect();
    let mut first = Running::start(&mut sandbox.command(&words, &[]));
    first.expect_line("ready");
    let second = outcome(&mut sandbox.command(&words, &[]));
    second.assert_code(0);
    assert_eq!(second.stdout, "");
    // systemctl stop
    first.signal(Signal::SIGTERM);
    first.finish().assert_code(128 + 15);
    assert_nothing_left(&sandbox.redis);
}

/// The variables of a GitHub job.
fn github<'a>(run_number: &'a str, file: &'a str) -> Vec<(&'a str, &'a str)> {
    vec![
        ("GITHUB_ACTIONS", "true"),
        ("GITHUB_SERVER_URL", "https://github.com"),
        ("GITHUB_REPOSITORY", "o/r"),
        ("GITHUB_RUN_ID", "77"),
        ("GITHUB_RUN_NUMBER", run_number),
        ("GITHUB_REF_NAME", "main"),
        ("GITHUB_ENV", file),
    ]
}

#[test]
fn github_actions() {
    let sandbox = Sandbox::new().with("deploy.sh", GATE);
    let documents = blocks("GitHub Actions");
    let workflow = yaml(&documents[0].1);
    let run = workflow["jobs"]["deploy"]["steps"][1]["run"]
        .as_str()
        .unwrap();
    let step = |number: &str| sandbox.command(&["bash", "-e", "-c", run], &github(number, ""));
    let mut deploy = Running::start(&mut step("7"));
    deploy.expect_line("ready");
    let holder = &sandbox.status()[0]["holders"][0];
    assert_eq!(holder["url"], "https://github.com/o/r/actions/runs/77");
    assert_eq!(holder["reason"], "main");
    // By exec it is redlock that a cancelled job signals.
    assert_eq!(holder["pid"], deploy.pid());
    outcome(&mut step("6"))
        .assert_code(75)
        .assert_says("superseded");
    deploy.signal(Signal::SIGINT);
    deploy.finish();
    assert_nothing_left(&sandbox.redis);

    // The steps of another job share what the first has written.
    fs::write(sandbox.dir().join("go"), "").unwrap();
    let file = sandbox.dir().join("github-env");
    fs::write(&file, "").unwrap();
    let steps = yaml(&documents[1].1);
    for (number, step) in (0..).zip(steps["steps"].as_array().unwrap()) {
        let kept = fs::read_to_string(&file).unwrap();
        let mut variables = github("8", file.to_str().unwrap());
        variables.extend(kept.lines().filter_map(|line| line.split_once('=')));
        let run = step["run"].as_str().unwrap();
        outcome(&mut sandbox.command(&["bash", "-e", "-c", run], &variables)).assert_code(0);
        let held = sandbox.redis.cli(&["EXISTS", "redlock:deploy"]) == "1";
        assert_eq!(held, number < 2, "after step {number}");
    }
    assert_nothing_left(&sandbox.redis);
}

#[test]
fn gitlab_ci() {
    let sandbox = Sandbox::new().with("deploy.sh", GATE);
    let document = yaml(&block("GitLab CI"));
    let run = document["deploy"]["script"][0].as_str().unwrap();
    let job = |number: &str| {
        let variables = [
            ("CI_JOB_URL", "https://gitlab/j/1"),
            ("CI_PIPELINE_IID", number),
            ("CI_COMMIT_REF_NAME", "main"),
        ];
        sandbox.command(&["sh", "-e", "-c", run], &variables)
    };
    let mut deploy = Running::start(&mut job("7"));
    deploy.expect_line("ready");
    let holder = &sandbox.status()[0]["holders"][0];
    assert_eq!(holder["url"], "https://gitlab/j/1");
    assert_eq!(holder["pid"], deploy.pid());
    outcome(&mut job("6")).assert_code(75);
    deploy.signal(Signal::SIGTERM);
    deploy.finish().assert_code(128 + 15);
    assert_nothing_left(&sandbox.redis);
}

#[test]
fn jenkins() {
    let sandbox = Sandbox::new().with("deploy.sh", GATE);
    let text = block("Jenkins");
    let step = text
        .lines()
        .find_map(|line| line.trim().strip_prefix("sh '")?.strip_suffix('\''));
    let variables = [
        ("JENKINS_URL", "https://jenkins/"),
        ("BUILD_URL", "https://jenkins/job/1/"),
        ("BRANCH_NAME", "main"),
    ];
    let mut run = sandbox.command(&["sh", "-xe", "-c", step.expect("a step")], &variables);
    let mut deploy = Running::start(&mut run);
    deploy.expect_line("ready");
    let holder = &sandbox.status()[0]["holders"][0];
    assert_eq!(holder["url"], "https://jenkins/job/1/");
    assert_eq!(
        (&holder["pid"], &holder["reason"]),
        (&deploy.pid().into(), &"main".into())
    );
    fs::write(sandbox.dir().join("go"), "").unwrap();
    deploy.finish().assert_code(0);
}

#[test]
fn kubernetes_cronjob() {
    let sandbox = Sandbox::new().with("opt/backup.sh", GATE);
    let document = yaml(&block("Kubernetes CronJob"));
    let spec = &document["spec"]["jobTemplate"]["spec"]["template"]["spec"];
    let container = &spec["containers"][0];
    let words = |part: &str| container[part].as_array().unwrap().clone();
    let words: Vec<Value> = [words("command"), words("args")].concat();
    let words: Vec<&str> = words
        .iter()
        .map(|word| word.as_str().expect("a text"))
        .collect();
    let mut pod = Running::start(&mut sandbox.command(&words, &[]));
    pod.expect_line("ready");
    outcome(&mut sandbox.command(&words, &[])).assert_code(0);
    pod.signal(Signal::SIGTERM);
    pod.finish().assert_code(128 + 15);
    assert_eq!(sandbox.log().len(), 1);
    assert_nothing_left(&sandbox.redis);
}

#[test]
fn a_script_that_locks_itself() {
    let sandbox = Sandbox::new();
    let text = sandbox.here(&block("A script that locks itself"));
    let path = script(sandbox.dir(), "backup", &text);
    let path = path.to_str().unwrap();
    outcome(&mut sandbox.command(&[path], &[])).assert_code(0);
    let fence = sandbox
        .redis
        .cli(&["HGET", "{redlock:backup}:state", "fence"]);
    assert!(
        sandbox
            .dir()
            .join(format!("backups/home-{fence}.tar"))
            .exists()
    );
    let _holder = Gated::start(&sandbox.redis, &["backup"]).ready();
    outcome(&mut sandbox.command(&[path], &[])).assert_code(75);
}

#[test]
fn the_rest_of_a_script() {
    let sandbox = Sandbox::new().with("build.sh", GATE).with("switch.sh", "");
    let text = block("The rest of a script");
    let path = script(sandbox.dir(), "deploy", &text);
    let mut run = Running::start(&mut sandbox.command(&[path.to_str().unwrap()], &[]));
    run.expect_line("ready");
    assert_eq!(sandbox.status()[0]["holders"][0]["pid"], run.pid());
    fs::write(sandbox.dir().join("go"), "").unwrap();
    run.finish().assert_code(0);
    assert_eq!(sandbox.log(), ["build.sh", "switch.sh"]);
    // Without Redis it ends at its first line.
    let mut nowhere = sandbox.command(&[path.to_str().unwrap()], &[]);
    outcome(nowhere.env("REDLOCK_URL", "redis://127.0.0.1:1")).assert_code(69);
    assert_eq!(sandbox.log().len(), 2);
}

#[test]
fn cache_stampede() {
    let sandbox = Sandbox::new().with("prices.sh", "sleep 0.2; echo '{}'");
    let text = block("Cache stampede");
    let all: Vec<Running> = (0..6)
        .map(|_| Running::start(&mut sandbox.sh(&text)))
        .collect();
    for run in all {
        run.finish().assert_code(0);
    }
    assert_eq!(sandbox.log(), ["prices.sh"]);
    assert_eq!(
        fs::read_to_string(sandbox.dir().join("prices.json")).unwrap(),
        "{}\n"
    );
}

#[test]
fn migrations() {
    let sandbox = Sandbox::new().with("migrate.sh", GATE);
    let text = block("Migrations");
    let mut first = Running::start(&mut sandbox.sh(&text));
    first.expect_line("ready");
    let others: Vec<Running> = (0..4)
        .map(|_| Running::start(&mut sandbox.sh(&text)))
        .collect();
    wait_until("they have joined", || sandbox.redis.calls("lrange") >= 4);
    fs::write(sandbox.dir().join("go"), "").unwrap();
    for run in others.into_iter().chain([first]) {
        run.finish().assert_code(0);
    }
    outcome(&mut sandbox.sh(&text)).assert_code(0);
    assert_eq!(sandbox.log(), ["migrate.sh"]);
}

#[test]
fn blue_green_deploy_with_freeze() {
    let sandbox = Sandbox::new().with("switch.sh", "redlock run -n deploy -- true; echo $?");
    let text = block("Blue/green deploy with freeze");
    let path = script(sandbox.dir(), "switch-over", &text);
    let holder = Gated::start(&sandbox.redis, &["deploy"]).ready();
    let run = Running::start(&mut sandbox.command(&[path.to_str().unwrap()], &[]));
    wait_until("it is frozen", || !sandbox.status()[0]["frozen"].is_null());
    assert_eq!(sandbox.log(), [""; 0]);
    holder.end();
    let end = run.finish();
    end.assert_code(0).assert_says("switching to green");
    assert_eq!(
        (sandbox.log(), end.stdout.as_str()),
        (vec!["switch.sh green".to_owned()], "75\n")
    );
    assert_nothing_left(&sandbox.redis);
}

#[test]
fn readers_around_a_writer() {
    let sandbox = Sandbox::new().with("verify.sh", GATE).with("prune.sh", "");
    let [(_, readers), (_, writer)] =
        <[_; 2]>::try_from(blocks("Readers around a writer")).unwrap();
    let mut checks = Running::start(&mut sandbox.sh(&readers));
    checks.expect_line("ready");
    checks.expect_line("ready");
    let prune = Running::start(&mut sandbox.sh(&writer));
    wait_until("the writer waits", || {
        sandbox.redis.queue("prune").len() == 1
    });
    fs::write(sandbox.dir().join("go"), "").unwrap();
    checks.finish().assert_code(0);
    prune.finish().assert_code(0);
    assert_eq!(sandbox.log()[2], "prune.sh");
    assert_nothing_left(&sandbox.redis);
}

#[test]
fn a_late_write_is_refused() {
    let sandbox = Sandbox::new();
    let text = block("A late write is refused");
    let write = |fence: &str| {
        fs::write(sandbox.dir().join("srv/site/new"), fence).unwrap();
        outcome(sandbox.sh(&text).env("REDLOCK_FENCE", fence)).code()
    };
    assert_eq!(
        (write("7"), write("9"), write("8")),
        (Some(0), Some(0), Some(1))
    );
    let current = fs::read_to_string(sandbox.dir().join("srv/site/current"));
    assert_eq!(current.unwrap(), "9");
}

#[test]
fn and_more() {
    let sandbox = Sandbox::new()
        .with("fetch.sh", "echo $REDLOCK_SLOT")
        .with("migrate.sh", "echo $REDLOCK_NAME")
        .with("reindex.sh", "echo $REDLOCK_NAME")
        .with("deploy.sh", GATE)
        .with("report.sh", "echo report");
    let all = blocks("And more");
    let [slots, several, timed, newest, free] = all.as_slice() else {
        panic!("{} recipes", all.len());
    };
    let run =
        |(_, text): &(String, String)| outcome(&mut sandbox.sh(text)).assert_code(0).stdout.clone();
    assert_eq!(run(slots), "1\n");
    assert_eq!(run(several), "database search-index\n");
    assert_eq!(run(timed), "reindex\n");
    assert_eq!(run(free), "report\n");
    let mut old = Running::start(&mut sandbox.sh(&newest.1));
    old.expect_line("ready");
    let mut new = Running::start(&mut sandbox.sh(&newest.1));
    new.expect_line("ready");
    old.finish().assert_code(79).assert_says("cancelled by");
    fs::write(sandbox.dir().join("go"), "").unwrap();
    new.finish().assert_code(0);
    assert_nothing_left(&sandbox.redis);
}

#[test]
fn all_shell_snippets_pass_shellcheck() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let readme = fs::read_to_string(root.join("README.md")).unwrap();
    let mut snippets: Vec<(String, String)> = Vec::new();
    for code in readme.split("```sh\n").skip(1) {
        snippets.push(("README.md".into(), code.split("```").next().unwrap().into()));
    }
    for (heading, field) in [("GitHub Actions", "run"), ("GitLab CI", "script")] {
        for (_, text) in blocks(heading) {
            texts_of(&yaml(&text), field, &mut |run| {
                snippets.push((heading.into(), run.to_owned()));
            });
        }
    }
    for entry in fs::read_dir(root.join("man/parts")).unwrap().flatten() {
        let text = fs::read_to_string(entry.path()).unwrap();
        for code in text.split(".nf\n").skip(1) {
            let code = code.split(".fi").next().unwrap();
            let code = code
                .replace("\\-", "-")
                .replace("\\e", "\\")
                .replace("\\&", "");
            if !code.starts_with("PATH=") {
                snippets.push((entry.path().display().to_string(), code));
            }
        }
    }
    assert!(snippets.len() > 35, "{} snippets", snippets.len());
    let dir = tempfile::tempdir().unwrap();
    let mut files = Vec::new();
    for (number, (from, text)) in (0..).zip(&snippets) {
        let file = dir
            .path()
            .join(format!("{number}-{}", from.replace(['/', ' '], "_")));
        let shebang = if text.starts_with("#!") {
            ""
        } else {
            "#!/bin/sh\n"
        };
        fs::write(&file, format!("{shebang}{text}")).unwrap();
        files.push(file);
    }
    let scripts = [
        "scripts/setup",
        "scripts/demo",
        ".ci/run",
        "completions/redlock.bash",
    ];
    files.extend(scripts.map(|script| root.join(script)));
    let checked: Outcome = Command::new("shellcheck")
        .args(&files)
        .output()
        .expect("shellcheck is installed")
        .into();
    assert_eq!(checked.stdout, "", "{checked:?}");
    checked.assert_code(0);
}

/// All texts below a field of this name.
fn texts_of(value: &Value, field: &str, take: &mut dyn FnMut(&str)) {
    let inner: Vec<(Option<&String>, &Value)> = match value {
        Value::Object(fields) => fields
            .iter()
            .map(|(name, value)| (Some(name), value))
            .collect(),
        Value::Array(items) => items.iter().map(|item| (None, item)).collect(),
        _ => return,
    };
    for (name, inner) in inner {
        if name.is_some_and(|name| name == field) {
            match inner {
                Value::Array(items) => items.iter().filter_map(Value::as_str).for_each(&mut *take),
                other => other.as_str().into_iter().for_each(&mut *take),
            }
        }
        texts_of(inner, field, take);
    }
}
