//! Each recipe of docs/recipes.md, run as it stands there.
//!
//! Only paths of the machine are put elsewhere: `/opt`, `/srv`, `/backups`, `/var/lib` and `/usr/local/bin`. What
//! GitHub, GitLab, Jenkins and Kubernetes do with a document is not tested, only the commands in it
//! with the shell, the variables and the signals that they have there. Machines of GitHub, GitLab and
//! Jenkins have no redlock but the one that the recipe installs, from releases that were made here. Where the machine has no cron
//! daemon, or doesn't let us hide its own crontabs from it, the crontab is run line by line: cron
//! changes to the crontab's user, which only root may do, also in a namespace of its own. Where it
//! has no systemd, the units aren't checked; where it has no namespaces, the pod isn't process 1; where it has no
//! ksh93, nothing is run in it. `ssh`, `docker`, `kubectl` and `ansible-playbook` are small programs in Python that have another
//! process do the work, as the real ones do, with no more of the environment than those hand on.

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpListener;
use std::path::Path;
use std::process::Command;
use std::sync::mpsc::{Receiver, channel};

use nix::sys::signal::{Signal, kill, killpg};
use nix::unistd::Pid;
use serde_json::Value;

use crate::generated::recipes;
use crate::generated::root;
use crate::pages::markdown;
use crate::promises::keeper::keeper;
use crate::promises::packages::{GithubJob, Releases, gitlab_job, gitlab_shell};
use crate::support::{
    Gated, Outcome, REDLOCK, Redis, Running, TIMEOUT, assert_nothing_left, children, is_alive,
    moment, outcome, path, script, wait_until, without_terminal,
};

/// The code blocks of a recipe: the language and the text.
pub fn blocks(heading: &str) -> Vec<(String, String)> {
    let all = recipes();
    let (_, rest) = all
        .split_once(&format!("\n## {heading}\n"))
        .unwrap_or_else(|| panic!("no recipe {heading}"));
    let recipe = rest.split("\n## ").next().unwrap();
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
pub struct Sandbox {
    pub redis: Redis,
}

impl Sandbox {
    pub fn new() -> Self {
        let sandbox = Self {
            redis: Redis::start(),
        };
        for directory in ["usr/local/bin", "opt/jobs", "srv/site", "backups", "home"] {
            fs::create_dir_all(sandbox.dir().join(directory)).unwrap();
        }
        let installed = sandbox.dir().join("usr/local/bin/redlock");
        std::os::unix::fs::symlink(REDLOCK, installed).unwrap();
        sandbox
    }

    pub fn dir(&self) -> &Path {
        self.redis.dir.path()
    }

    /// Makes a script; its name is logged when it is called, with its arguments.
    pub fn with(self, name: &str, body: &str) -> Self {
        let dir = self.dir().display();
        let base = name.rsplit('/').next().unwrap();
        let text = format!("#!/bin/sh\necho \"{base}${{*:+ $*}}\" >>{dir}/log\n{body}\n");
        script(self.dir(), name, &text);
        self
    }

    /// The calls so far.
    pub fn log(&self) -> Vec<String> {
        let log = fs::read_to_string(self.dir().join("log")).unwrap_or_default();
        log.lines().map(str::to_owned).collect()
    }

    /// A text with the machine's paths put into the sandbox.
    fn here(&self, text: &str) -> String {
        let dir = self.dir().display().to_string();
        let paths = [
            "/usr/local/bin",
            "/opt/",
            "/srv/",
            "/backups/",
            " /home",
            "/var/lib/",
        ];
        paths.iter().fold(text.to_owned(), |text, path| {
            let there = path.trim_start();
            let space = &path[..path.len() - there.len()];
            text.replace(path, &format!("{space}{dir}{there}"))
        })
    }

    /// A command in the sandbox.
    pub fn command(&self, words: &[&str], variables: &[(&str, &str)]) -> Command {
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

    /// A text as a script that is called by its path.
    fn script(&self, name: &str, text: &str) -> Command {
        let path = script(self.dir(), name, &self.here(text));
        self.command(&[path.to_str().unwrap()], &[])
    }

    /// Lets all go on that stand at the `GATE`.
    pub fn open_the_gate(&self) {
        fs::write(self.dir().join("go"), "").unwrap();
    }

    fn status(&self) -> Value {
        let json = outcome(&mut self.redis.redlock(&["status", "--json"])).stdout;
        serde_json::from_str(&json).unwrap()
    }
}

/// A YAML document.
pub fn yaml(text: &str) -> Value {
    let script = "import json, sys, yaml; print(json.dumps(yaml.safe_load(sys.argv[1])))";
    let parsed: Outcome = Command::new("python3")
        .args(["-c", script, text])
        .output()
        .expect("python3 is installed")
        .into();
    parsed.assert_code(0);
    serde_json::from_str(&parsed.stdout).unwrap()
}

/// A script that says `ready` and goes on until it is asked to end.
pub const GATE: &str = "echo ready; until test -e go; do sleep 0.02; done";

/// Waits until a script has come to this command of redlock.
fn wait_until_it_is_at(script: &Running, command: &str) {
    wait_until(command, || {
        children(script.pid()).iter().any(|child| {
            let line = fs::read_to_string(format!("/proc/{child}/cmdline")).unwrap_or_default();
            line.replace('\0', " ").contains(command)
        })
    });
}

#[test]
fn crontab_as_hosts_run_it() {
    let sandbox = Sandbox::new().with("opt/jobs/backup.sh", "exit 0").with(
        "opt/jobs/report.sh",
        r#"test -e "${0%/*}/repaired" || { echo the report failed; exit 1; }"#,
    );
    let dir = sandbox.dir();
    let calls = |job: &str| sandbox.log().iter().filter(|call| *call == job).count();
    let crontab = sandbox.here(&block("crontab"));
    let commands = jobs(&crontab);
    let is_variable = |line: &&str| line.starts_with(char::is_uppercase);
    let variables: Vec<&str> = crontab.lines().filter(is_variable).collect();
    let path = variables[0].strip_prefix("PATH=").unwrap();
    fs::create_dir_all(dir.join("root/.config")).unwrap();
    let setting = format!("REDLOCK_URL={}\n", sandbox.redis.url());
    fs::write(dir.join("root/.config/redlock.env"), setting).unwrap();
    // As cron does it, but at once; what it says cron would send by mail.
    let by_hand = |command: &str| {
        let mut job = Command::new("/bin/sh");
        let job = job.args(["-c", command]).env_clear().env("PATH", path);
        let end = outcome(job.env("HOME", dir.join("root")).current_dir(dir));
        end.assert_silent();
        end
    };
    let backup_and_report = || {
        let [backup, report] = [0, 1].map(|job| by_hand(commands[job]));
        backup.assert_code(0);
        backup.stdout + &report.stdout
    };

    let mut mail = if can_hide_the_machine() {
        let hosts = [0, 1].map(|host| cron(dir, host, &variables.join("\n"), &commands));
        wait_until("both hosts have run both, and sent their mail", || {
            [0, 1].iter().all(|host| ended(dir, *host) >= 2)
                && mail(dir).lines().count() >= calls("report.sh")
        });
        drop(hosts);
        mail(dir)
    } else {
        backup_and_report()
    };
    // A host whose clock is late.
    mail += &backup_and_report();
    assert_eq!(calls("backup.sh"), 1, "{:?}", sandbox.log());
    let failures = calls("report.sh");
    assert!(failures >= 2, "{:?}", sandbox.log());
    assert_eq!(mail, "the report failed\n".repeat(failures));

    fs::write(dir.join("opt/jobs/repaired"), "").unwrap();
    for _ in 0..3 {
        assert_eq!(by_hand(commands[1]).assert_code(0).stdout, "");
        assert_eq!(calls("report.sh"), failures + 1);
    }
}

/// How many jobs of a host have ended.
fn ended(dir: &Path, host: usize) -> usize {
    let ended = fs::read_to_string(dir.join(format!("ended-{host}")));
    ended.unwrap_or_default().lines().count()
}

/// All that cron has sent.
fn mail(dir: &Path) -> String {
    let read = |host: usize| fs::read_to_string(dir.join(format!("mail-{host}")));
    (0..2).map(|host| read(host).unwrap_or_default()).collect()
}

/// Whether there is a cron daemon, and a way to give it directories of its own.
fn can_hide_the_machine() -> bool {
    let mut command = Command::new("unshare");
    let here = command.args(words!(
        "-m sh -c",
        "test -x /usr/sbin/cron && mount -t tmpfs none /mnt"
    ));
    here.output().is_ok_and(|output| output.status.success())
}

/// A cron daemon that runs commands as soon as it starts, and sees nothing of the machine's crontabs and mail.
fn cron(dir: &Path, host: usize, variables: &str, commands: &[&str]) -> Running {
    // What runs the lines, as they are, and says when one has ended.
    let shell = format!(
        "#!/bin/sh\n/bin/sh \"$@\"; status=$?; echo >>{}/ended-{host}; exit $status\n",
        dir.display()
    );
    let shell = script(dir, &format!("shell-{host}"), &shell);
    let jobs = commands.join("\n@reboot ");
    let crontab = format!("SHELL={}\n{variables}\n@reboot {jobs}\n", shell.display());
    fs::write(dir.join(format!("crontab-{host}")), crontab).unwrap();
    let dir = dir.display();
    let binaries = Path::new(REDLOCK).parent().unwrap().display();
    // The checkout may be below a directory that is hidden, or in the home directory of root.
    let text = format!(
        "cp /usr/sbin/cron {dir}/cron-{host} && mount --make-rprivate / &&
         mount --bind '{binaries}' {dir}/usr/local/bin &&
         for hidden in /var/spool/cron /etc/cron.d /run /usr/sbin; do
             mount -t tmpfs none $hidden || exit
         done &&
         mount --bind /dev/null /etc/crontab 2>&- ;
         sed 's#^\\(root:.*:\\).*:#\\1{dir}/root:#' /etc/passwd >{dir}/passwd-{host} &&
         mount --bind {dir}/passwd-{host} /etc/passwd &&
         mkdir -p /var/spool/cron/crontabs /run/lock &&
         install -m 600 {dir}/crontab-{host} /var/spool/cron/crontabs/root &&
         printf '#!/bin/sh\\nsed 1,/^$/d >>{dir}/mail-{host}\\n' >/usr/sbin/sendmail &&
         chmod +x /usr/sbin/sendmail && exec {dir}/cron-{host} -f"
    );
    let mut command = Command::new("unshare");
    command.args(["-m", "sh", "-c", &text]);
    without_terminal(&mut command);
    Running::start(&mut command)
}

#[test]
fn systemd_timer() {
    let sandbox = Sandbox::new().with("opt/backup.sh", GATE);
    let mut exec = String::new();
    let mut files = Vec::new();
    for (_, text) in blocks("systemd timer") {
        let (first, unit) = text.split_once('\n').unwrap();
        let name = first.rsplit('/').next().unwrap();
        let one_line = unit.replace("\\\n", " ");
        let mut lines = one_line.lines();
        if let Some(line) = lines.find_map(|line| line.strip_prefix("ExecStart=")) {
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
    let words: Vec<&str> = exec.split_whitespace().collect();
    let mut first = Running::start(&mut sandbox.command(&words, &[]));
    first.expect_line("ready");
    let skips = |calls: usize| {
        let other = outcome(&mut sandbox.command(&words, &[]));
        other.assert_code(0);
        assert_eq!((other.stdout.as_str(), sandbox.log().len()), ("", calls));
    };
    skips(1);
    // systemctl stop
    first.signal(Signal::SIGTERM);
    first.finish().assert_code(128 + 15);
    assert_nothing_left(&sandbox.redis);
    sandbox.open_the_gate();
    outcome(&mut sandbox.command(&words, &[])).assert_code(0);
    // A host whose timer comes later, or which has just been started.
    skips(2);
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

/// Where the recipes keep releases, while redlock has no home (`ci/home`).
const RELEASES: &str = "https://releases.example.com/redlock";

/// The setting in `ci/home`.
fn home(name: &str) -> String {
    let home = fs::read_to_string(root().join("ci/home")).unwrap();
    let value = home
        .lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix('='));
    value.expect("it is set, if to nothing").to_owned()
}

fn has_home() -> bool {
    !home("repository").is_empty()
}

/// The action of this version.
fn action() -> String {
    let repository = if has_home() {
        home("repository")
    } else {
        "example/redlock".into()
    };
    format!("{repository}@v{}", env!("CARGO_PKG_VERSION"))
}

/// What GitHub puts in for the expressions of a text.
fn expanded(text: &str, values: &[(&str, &str)]) -> String {
    let mut text = text.to_owned();
    for (name, value) in values {
        text = text.replace(&format!("${{{{ {name} }}}}"), value);
    }
    assert!(!text.contains("${{"), "{text}");
    text
}

#[test]
fn github_actions() {
    let sandbox = Sandbox::new().with("deploy.sh", GATE);
    let releases = Releases::new();
    let workflow = yaml(&blocks("GitHub Actions")[0].1);
    let job = &workflow["jobs"]["deploy"];
    assert_eq!(job["env"]["REDLOCK_URL"], "${{ secrets.REDLOCK_URL }}");
    assert!(job["env"]["REDLOCK_RELEASES"] == RELEASES || has_home());
    let (url, here) = (sandbox.redis.url(), releases.url());
    let secrets = [("REDLOCK_URL", &*url), ("REDLOCK_RELEASES", &here)];
    let step = |number: &str| {
        let job_of_this_run = [&github(number, "")[..], &secrets].concat();
        let machine = GithubJob::new(sandbox.dir(), &job_of_this_run);
        let step = &job["steps"][1];
        assert_eq!(step["uses"], *action());
        let values = [("github.run_number", number), ("github.ref_name", "-x")];
        let with: Vec<(&String, String)> = step["with"]
            .as_object()
            .unwrap()
            .iter()
            .map(|(name, value)| (name, expanded(value.as_str().unwrap(), &values)))
            .collect();
        let with: Vec<(&str, &str)> = with
            .iter()
            .map(|(name, value)| (name.as_str(), value.as_str()))
            .collect();
        machine.uses(&with)
    };
    let mut deploy = Running::start(&mut step("7"));
    deploy.expect_line("ready");
    let holder = &sandbox.status()[0]["holders"][0];
    assert_eq!(holder["url"], "https://github.com/o/r/actions/runs/77");
    // A branch may be called like an option.
    assert_eq!(holder["reason"], "-x");
    outcome(&mut step("6"))
        .assert_code(75)
        .assert_says("build 6 is older than build 7 of ");
    // A cancelled job's signals go to the step's own process: by exec that is redlock.
    assert_eq!(holder["pid"], deploy.pid());
    deploy.signal(Signal::SIGINT);
    deploy.finish();
    assert_nothing_left(&sandbox.redis);
}

/// Runs the steps of a job that share a lock; the statuses of those that were not left out.
fn github_job(sandbox: &Sandbox, url: &str, mut after: impl FnMut(usize)) -> Vec<Option<i32>> {
    let steps = yaml(&blocks("GitHub Actions")[1].1);
    let file = sandbox.dir().join("github-env");
    fs::write(&file, "").unwrap();
    let releases = Releases::new();
    let here = releases.url();
    let secrets = [("REDLOCK_URL", url), ("REDLOCK_RELEASES", &here)];
    let variables = [github("8", file.to_str().unwrap()), secrets.to_vec()].concat();
    let machine = GithubJob::new(sandbox.dir(), &variables);
    let mut statuses = Vec::new();
    for (number, step) in (0..).zip(steps["steps"].as_array().unwrap()) {
        let kept = fs::read_to_string(&file).unwrap();
        let kept: Vec<(&str, &str)> = kept
            .lines()
            .filter_map(|line| line.split_once('='))
            .collect();
        let condition = step["if"].as_str().unwrap_or_default();
        // Without a word about it a condition asks for success, too.
        let mut holds = condition.contains("always()") || statuses.iter().all(|&s| s == Some(0));
        for part in condition.split(" && ").filter(|part| !part.is_empty()) {
            let (function, variable) = (part == "always()", part.strip_prefix("env."));
            assert!(function || variable.is_some(), "{condition}");
            holds &= function || kept.iter().any(|(name, _)| Some(*name) == variable);
        }
        if holds {
            let mut run = match step["run"].as_str() {
                Some(run) => machine.step("bash", run, &kept),
                None => machine.uses(&[]),
            };
            statuses.push(outcome(&mut run).code());
            after(number);
        }
    }
    statuses
}

#[test]
fn github_actions_with_a_lock_for_several_steps() {
    let sandbox = Sandbox::new().with("deploy.sh", "! test -e broken");
    let url = sandbox.redis.url();
    let left = || -> i64 {
        let left = sandbox.redis.cli(&["PTTL", "redlock:deploy"]);
        left.parse().unwrap()
    };
    let statuses = github_job(&sandbox, &url, |step| match step {
        // Longer than a lease lasts by default without a renewal.
        1 | 2 => assert!(left() > 25 * 60_000, "after step {step}: {}", left()),
        _ => assert_eq!(left(), -2),
    });
    assert_eq!(statuses, [Some(0); 4]);

    fs::write(sandbox.dir().join("broken"), "").unwrap();
    let statuses = github_job(&sandbox, &url, |_| ());
    assert_eq!(statuses, [Some(0), Some(0), Some(1), Some(0)]);
    assert_nothing_left(&sandbox.redis);

    // Without a lock nothing is deployed, and nothing has to be released.
    let statuses = github_job(&sandbox, "redis://127.0.0.1:1", |_| ());
    let expected = (vec![Some(0), Some(69)], 2);
    assert_eq!((statuses, sandbox.log().len()), expected);
}

#[test]
fn gitlab_ci() {
    let releases = Releases::new();
    for shell in ["bash", "sh"] {
        let sandbox = Sandbox::new().with("deploy.sh", GATE);
        let document = yaml(&block("GitLab CI"));
        let script = document["deploy"]["script"].as_array().unwrap();
        assert_eq!(script.len(), 1, "nothing is run after exec");
        assert_eq!(document["include"]["file"], "/ci/gitlab.yml");
        assert!(document["variables"]["REDLOCK_RELEASES"] == RELEASES || has_home());
        let (script, after) = gitlab_job(&document["deploy"]);
        let start = |number: &str, text: &str| {
            let mut job = gitlab_shell(shell, text, sandbox.dir());
            job.env("REDLOCK_URL", sandbox.redis.url())
                .env("REDLOCK_RELEASES", releases.url())
                .env("CI_JOB_ID", number)
                .env("CI_JOB_URL", "https://gitlab/j/1")
                .env("CI_PIPELINE_ID", number)
                .env("CI_COMMIT_REF_NAME", "-x");
            job
        };
        let job = |number: &str| start(number, &script);
        let mut deploy = Running::start(&mut job("7"));
        deploy.expect_line("ready");
        let holder = &sandbox.status()[0]["holders"][0];
        assert_eq!(holder["url"], "https://gitlab/j/1");
        // A branch may be called like an option.
        assert_eq!(holder["reason"], "-x");
        let late = outcome(&mut job("6"));
        let harmless = &document["deploy"]["allow_failure"]["exit_codes"];
        late.assert_says("build 6 is older than build 7 of ");
        assert_eq!(Some(i64::from(late.code().unwrap())), harmless.as_i64());
        // A cancelled job is signalled as a group, or each of its processes is.
        killpg(Pid::from_raw(deploy.pid()), Signal::SIGTERM).unwrap();
        deploy.finish();
        assert_nothing_left(&sandbox.redis);
        sandbox.open_the_gate();
        outcome(&mut job("8")).assert_code(0);
        for number in ["6", "7", "8"] {
            let installed = sandbox.dir().join(format!("redlock-{number}"));
            assert!(installed.exists());
            outcome(&mut start(number, &after)).assert_code(0);
            assert!(!installed.exists());
        }
    }
}

#[test]
fn jenkins() {
    let sandbox = Sandbox::new().with("deploy.sh", GATE);
    let text = block("Jenkins");
    assert!(text.starts_with("pipeline {\n"), "{text}");
    assert_eq!(text.matches('{').count(), text.matches('}').count());
    let steps: Vec<&str> = text
        .lines()
        .filter_map(|line| line.trim().strip_prefix("sh '")?.strip_suffix('\''))
        .collect();
    let [download, install, locked] = steps[..] else {
        panic!("three steps: {steps:?}");
    };
    let releases = if has_home() {
        let tag = format!("v{}", env!("CARGO_PKG_VERSION"));
        let release = home("release").replace("TAG", &tag);
        release.replace("REPOSITORY", &home("repository"))
    } else {
        RELEASES.into()
    };
    assert!(text.contains(&format!("REDLOCK_RELEASES = '{releases}'\n")));
    let path = text
        .lines()
        .find_map(|line| line.trim().strip_prefix("PATH = \"")?.strip_suffix('"'));
    let workspace = sandbox.dir().display().to_string();
    let path = path
        .expect("where the binary is")
        .replace("${WORKSPACE}", &workspace)
        .replace("${PATH}", &std::env::var("PATH").unwrap());
    let releases = Releases::new();
    let here = releases.url();
    let variables = [
        ("JENKINS_URL", "https://jenkins/"),
        ("BUILD_URL", "https://jenkins/job/1/"),
        ("JOB_NAME", "-x/main"),
        ("WORKSPACE", &workspace),
        ("REDLOCK_RELEASES", &here),
    ];
    let start = |step: &str, name: &str| {
        let file = script(sandbox.dir(), name, step);
        let mut step = sandbox.command(&["sh", "-xe", file.to_str().unwrap()], &variables);
        step.env("PATH", &path).env("TMPDIR", sandbox.dir());
        step
    };
    // Jenkins goes on only where a step has succeeded.
    let mut without = start(download, "download");
    without.env("REDLOCK_RELEASES", format!("{here}/missing"));
    let failed = outcome(&mut without);
    assert_ne!(failed.code(), Some(0), "{failed:?}");
    outcome(&mut start(download, "download")).assert_code(0);
    outcome(&mut start(install, "install")).assert_code(0);
    assert!(path.starts_with(&format!("{workspace}/.redlock/bin:")));
    assert!(sandbox.dir().join(".redlock/bin/redlock").exists());
    let mut deploy = Running::start(&mut start(locked, "deploy"));
    deploy.expect_line("ready");
    let holder = &sandbox.status()[0]["holders"][0];
    assert_eq!(holder["url"], "https://jenkins/job/1/");
    assert_eq!(holder["reason"], "-x/main");
    assert_eq!(holder["pid"], deploy.pid());
    let next = Running::start(&mut start(locked, "deploy"));
    wait_until("the next waits", || {
        sandbox.redis.queue("deploy") == [next.pid()]
    });
    assert_eq!(sandbox.log().len(), 1);
    sandbox.open_the_gate();
    deploy.finish().assert_code(0);
    next.finish().assert_code(0);
    assert_eq!(sandbox.log().len(), 2);
}

#[test]
fn kubernetes_cronjob() {
    let document = yaml(&block("Kubernetes CronJob"));
    let spec = &document["spec"]["jobTemplate"]["spec"]["template"]["spec"];
    assert!(["Never", "OnFailure"].contains(&spec["restartPolicy"].as_str().unwrap()));
    let container = &spec["containers"][0];
    assert_eq!(container["env"][0]["name"], "REDLOCK_URL");
    let words = |part: &str| container[part].as_array().unwrap().clone();
    let words: Vec<Value> = [words("command"), words("args")].concat();
    let words: Vec<&str> = words
        .iter()
        .map(|word| word.as_str().expect("a text"))
        .collect();
    // As process 1 of its own, as in a container.
    let mut unshare = vec!["unshare", "-pf", "--mount-proc", "--kill-child=KILL"];
    let mut probe = Command::new("unshare");
    let probe = probe.args(&unshare[1..]).arg("true").output();
    let alone = probe.is_ok_and(|output| output.status.success());
    if !alone {
        unshare.clear();
    }
    let words = [unshare, words].concat();
    let redlock = |pod: &Running| {
        let pid = if alone {
            children(pod.pid())[0]
        } else {
            pod.pid()
        };
        Pid::from_raw(pid)
    };

    let sandbox = Sandbox::new().with("opt/backup.sh", GATE);
    let mut pod = Running::start(&mut sandbox.command(&words, &[]));
    pod.expect_line("ready");
    outcome(&mut sandbox.command(&words, &[])).assert_code(0);
    kill(redlock(&pod), Signal::SIGTERM).unwrap();
    pod.finish().assert_code(128 + 15);
    // That of a cluster whose clock is late.
    outcome(&mut sandbox.command(&words, &[])).assert_code(0);
    assert_eq!(sandbox.log().len(), 1);

    // A job that won't end is over before the pod is killed, and its lock in order.
    let deaf = "trap '' TERM; echo ready; while sleep 0.1; do :; done";
    let sandbox = Sandbox::new().with("opt/backup.sh", deaf);
    let mut pod = Running::start(&mut sandbox.command(&words, &[]));
    pod.expect_line("ready");
    let grace = spec["terminationGracePeriodSeconds"].as_u64().unwrap();
    let end = std::time::Instant::now() + std::time::Duration::from_secs(grace);
    kill(redlock(&pod), Signal::SIGTERM).unwrap();
    pod.finish().assert_code(128 + 9);
    assert!(std::time::Instant::now() < end);
    assert_eq!(sandbox.status()[0]["holders"][0]["kept"], true);
}

/// Does what others ask for, like sshd or dockerd: its processes are no descendants of theirs, and live on without them.
const DAEMON: &str = r#"
import json, os, socket, subprocess, threading
server = socket.socket(socket.AF_UNIX)
server.bind("daemon.sock")
server.listen(9)
print("listening", flush=True)

def serve(client):
    stream = client.makefile("rw")
    job = json.loads(stream.readline())
    done = subprocess.run(job["words"], input=job["input"], text=True, env={**os.environ, **job["env"]})
    status = done.returncode
    try:
        print(status if status >= 0 else 128 - status, file=stream, flush=True)
    except BrokenPipeError:
        pass

while True:
    client, _ = server.accept()
    threading.Thread(target=serve, args=[client], daemon=True).start()
"#;

/// What the clients of the daemon have in common: has it run these words, and returns their status.
const CLIENT: &str = r#"#!/usr/bin/env python3
import json, os, re, signal, socket, subprocess, sys
signal.signal(signal.SIGINT, signal.SIG_DFL)

def begin(words, input=None, **env):
    client = socket.socket(socket.AF_UNIX)
    client.connect(os.path.join(os.path.dirname(__file__), "..", "daemon.sock"))
    stream = client.makefile("rw")
    print(json.dumps({"words": words, "input": input, "env": env}), file=stream, flush=True)
    return stream

def have(words, input=None, **env):
    return int(begin(words, input, **env).readline())

def there(arguments):
    end = arguments.index("--")
    return arguments[end + 1:]
"#;

/// The programs that a recipe calls to have work done elsewhere, and how each does it.
const CLIENTS: [(&str, &str); 4] = [
    (
        // The shell of the other side reads the words again; no variable gets there.
        "ssh",
        r#"
host, *words = sys.argv[1:]
sys.exit(have(["sh", "-c", " ".join(words)], sys.stdin.read(), SSH_HOST=host))
"#,
    ),
    (
        // Has the variables that it names, and a Redis where this one is.
        "docker",
        r#"
assert sys.argv[1:3] == ["run", "--rm"], sys.argv
rest, env = sys.argv[3:], {}
while rest[0] == "-e":
    env[rest[1]] = os.environ[rest[1]]
    rest = rest[2:]
image, *words = rest
sys.exit(have(words, **env))
"#,
    ),
    (
        "kubectl",
        r#"
assert sys.argv[1:4] == ["exec", "-i", "deploy/web"], sys.argv
sys.exit(have(there(sys.argv), sys.stdin.read()))
"#,
    ),
    (
        // Each host gets the same input.
        "ansible-playbook",
        r#"
import yaml
def variable(match):
    return os.environ[match[1]]
[play] = yaml.safe_load(open(sys.argv[1]))
begun = []
for host in ["web-1", "web-2", "web-3"]:
    for task in play["tasks"]:
        command = task["ansible.builtin.command"]
        input = re.sub(r"\{\{ lookup\('env', '(.*)'\) \}\}", variable, command["stdin"])
        begun.append(begin(command["argv"], input + "\n", SSH_HOST=host))
sys.exit(max(int(stream.readline()) for stream in begun) and 2)
"#,
    ),
];

/// A sandbox with a daemon that does what `ssh` and others ask for, and says what that prints.
struct Elsewhere {
    sandbox: Sandbox,
    daemon: Running,
}

impl Elsewhere {
    fn new(sandbox: Sandbox) -> Self {
        fs::create_dir(sandbox.dir().join("bin")).unwrap();
        for (name, body) in CLIENTS {
            script(
                &sandbox.dir().join("bin"),
                name,
                &format!("{CLIENT}\n{body}"),
            );
        }
        let mut daemon = Running::start(&mut sandbox.command(&["python3", "-c", DAEMON], &[]));
        daemon.expect_line("listening");
        Self { sandbox, daemon }
    }

    fn path(&self) -> String {
        format!("{}:{}", self.sandbox.dir().join("bin").display(), path())
    }

    /// A text as a script that is called by its path.
    fn script(&self, name: &str, text: &str) -> Command {
        let mut command = self.sandbox.script(name, text);
        command.env("PATH", self.path());
        command
    }

    fn sh(&self, text: &str) -> Command {
        let mut command = self.sandbox.sh(text);
        command.env("PATH", self.path());
        command
    }

    /// Waits until so much work is done elsewhere, and has said where and under which lock; in any order.
    fn expect(&mut self, lines: &[&str]) {
        let mut seen: Vec<String> = lines.iter().map(|_| self.daemon.line()).collect();
        seen.sort();
        assert_eq!(seen, lines);
    }

    fn guards(&self) -> usize {
        let status = self.sandbox.status();
        status[0]["holders"][0]["guards"].as_array().unwrap().len()
    }

    /// All went well, and the lock is free.
    fn is_over(&self, run: Running, status: i32) {
        let end = run.finish();
        end.assert_code(status);
        assert_eq!(self.sandbox.status(), Value::Array(Vec::new()), "{end:?}");
    }
}

/// Says where it is and what it is under, and goes on until the gate is open.
const UNDER_THE_LOCK: &str = r#"redlock extend && echo "$SSH_HOST under $REDLOCK_NAME"
    until test -e go; do sleep 0.02; done; ! test -e broken"#;

#[test]
fn several_hosts_over_ssh() {
    let sandbox = Sandbox::new().with("switch.sh", UNDER_THE_LOCK);
    let mut elsewhere = Elsewhere::new(sandbox);
    let text = block("Several hosts over ssh");
    let hosts = ["web-1", "web-2", "web-3"].map(|host| format!("{host} under deploy"));
    let hosts = hosts.each_ref().map(String::as_str);
    for (is_broken, status) in [(false, 0), (true, 123)] {
        if is_broken {
            fs::write(elsewhere.sandbox.dir().join("broken"), "").unwrap();
        }
        let _ = fs::remove_file(elsewhere.sandbox.dir().join("go"));
        let run = Running::start(&mut elsewhere.script("deploy", &text));
        elsewhere.expect(&hosts);
        assert_eq!(elsewhere.guards(), 3);
        elsewhere.sandbox.open_the_gate();
        elsewhere.is_over(run, status);
    }
    // Without its lock it goes nowhere.
    let mut nowhere = elsewhere.script("deploy", &text);
    outcome(nowhere.env("REDLOCK_URL", "redis://127.0.0.1:1")).assert_code(69);
    assert_eq!(elsewhere.sandbox.log().len(), 6);
}

#[test]
fn a_container() {
    let sandbox = Sandbox::new()
        .with("import.sh", UNDER_THE_LOCK)
        .with("migrate.sh", UNDER_THE_LOCK);
    let mut elsewhere = Elsewhere::new(sandbox);
    let [(_, docker), (_, kubectl)] = <[_; 2]>::try_from(blocks("A container")).unwrap();
    let import = Running::start(&mut elsewhere.sh(&docker));
    elsewhere.expect(&[" under import"]);
    let migrate = Running::start(&mut elsewhere.script("migrate", &kubectl));
    elsewhere.expect(&[" under migrate"]);
    assert_eq!(elsewhere.guards(), 1);
    elsewhere.sandbox.open_the_gate();
    import.finish().assert_code(0);
    elsewhere.is_over(migrate, 0);
}

#[test]
fn ansible() {
    let sandbox = Sandbox::new().with("switch.sh", UNDER_THE_LOCK);
    let mut elsewhere = Elsewhere::new(sandbox);
    let [(_, playbook), (_, text)] = <[_; 2]>::try_from(blocks("Ansible")).unwrap();
    let file = playbook.lines().next().unwrap().trim_start_matches("# ");
    fs::write(elsewhere.sandbox.dir().join(file), &playbook).unwrap();
    let run = Running::start(&mut elsewhere.sh(&text));
    elsewhere.expect(&[
        "web-1 under deploy",
        "web-2 under deploy",
        "web-3 under deploy",
    ]);
    assert_eq!(elsewhere.guards(), 3);
    elsewhere.sandbox.open_the_gate();
    elsewhere.is_over(run, 0);
}

#[test]
fn a_ci_job_that_is_cancelled() {
    let work = "trap 'echo stopping; until test -e over; do sleep 0.02; done; exit' TERM
        echo ready; while :; do sleep 0.02; done";
    let mut elsewhere = Elsewhere::new(Sandbox::new().with("switch.sh", work));
    let workflow = yaml(&block("A CI job that is cancelled"));
    let job = &workflow["jobs"]["deploy"];
    let step = &job["steps"][0];
    assert_eq!(step["uses"], *action());
    let releases = Releases::new();
    let (url, here) = (elsewhere.sandbox.redis.url(), releases.url());
    let secrets = [("REDLOCK_URL", &*url), ("REDLOCK_RELEASES", &here)];
    let machine = GithubJob::new(elsewhere.sandbox.dir(), &secrets);
    let bin = elsewhere.sandbox.dir().join("bin");
    let added = format!("{}\n", bin.display());
    fs::write(machine.temporary().join("path"), added).unwrap();
    let with = |name: &str| step["with"][name].as_str().unwrap();
    let inputs = ["name", "run"].map(|name| (name, with(name)));
    let mut run = Running::start(&mut machine.uses(&inputs));
    elsewhere.expect(&["ready"]);
    let words = ["run", "deploy", "--", "echo", "next"];
    let mut next = Running::start(&mut elsewhere.sandbox.redis.redlock(&words));
    wait_until("it stands in the queue", || {
        !elsewhere.sandbox.redis.queue("deploy").is_empty()
    });
    run.signal(Signal::SIGINT);
    elsewhere.expect(&["stopping"]);
    wait_until("the run is over for the server", || {
        elsewhere.sandbox.status()[0]["holders"][0]["kept"] == true
    });
    // The runner loses patience.
    run.kill();
    assert!(!next.has_ended());
    fs::write(elsewhere.sandbox.dir().join("over"), "").unwrap();
    next.expect_line("next");
    elsewhere.is_over(next, 0);
}

/// A web server that takes whatever is posted: its address, and each request as it came.
fn web_server() -> (String, Receiver<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let (request, requests) = channel();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut reader = BufReader::new(stream.unwrap());
            let (mut head, mut length) = (String::new(), 0);
            while reader.read_line(&mut head).is_ok_and(|read| read > 2) {
                let last = head.lines().last().unwrap_or_default().to_lowercase();
                if let Some(number) = last.strip_prefix("content-length: ") {
                    length = number.parse().unwrap();
                }
            }
            let mut body = vec![0; length];
            reader.read_exact(&mut body).unwrap();
            let answer = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";
            reader.get_mut().write_all(answer).unwrap();
            let body = String::from_utf8(body).unwrap();
            if request.send(head + &body).is_err() {
                return;
            }
        }
    });
    (url, requests)
}

/// A job of this name under a hook of this recipe.
fn told_of(sandbox: &Sandbox, hook: &str, words: &[&str]) -> Outcome {
    let hook = [("REDLOCK_HOOK", hook)];
    outcome(&mut sandbox.command(words, &hook))
}

#[test]
fn a_log_of_all_runs() {
    let sandbox = Sandbox::new();
    fs::create_dir_all(sandbox.dir().join("srv/log")).unwrap();
    let line = sandbox.here(&blocks("Pings, messages and a log")[0].1);
    let config = sandbox.dir().join("config");
    fs::create_dir_all(&config).unwrap();
    fs::write(config.join("redlock.env"), line).unwrap();
    let home = config.to_str().unwrap();
    let words = ["redlock", "run", "backup", "--", "sh", "-c", "exit 3"];
    let mut run = sandbox.command(&words, &[("XDG_CONFIG_HOME", home)]);
    outcome(&mut run).assert_code(3).assert_silent();
    let read = || fs::read_to_string(sandbox.dir().join("srv/log/runs.jsonl")).unwrap_or_default();
    wait_until("both events are in the log", || read().lines().count() == 2);
    let log = read();
    let lines = log.lines().map(|line| serde_json::from_str(line).unwrap());
    let mut lines: Vec<Value> = lines.collect();
    lines.sort_by_key(|line| line["event"].to_string());
    assert_eq!(lines[0]["event"], "acquired");
    assert_eq!(lines[1]["event"], "ended");
    assert_eq!(lines[1]["status"], 3);
    assert_eq!(lines[1]["command"], "sh -c 'exit 3'");
}

#[test]
fn pings_of_a_job() {
    let sandbox = Sandbox::new();
    let (url, requests) = web_server();
    let text = blocks("Pings, messages and a log")[1].1.clone();
    let text = text.replace("https://hc-ping.com", &url);
    let hook = script(sandbox.dir(), "ping.sh", &text);
    let words = ["redlock", "run", "backup", "--", "sh", "-c", "exit 3"];
    told_of(&sandbox, hook.to_str().unwrap(), &words).assert_code(3);
    let mut pings = [(); 2].map(|()| requests.recv_timeout(TIMEOUT).unwrap());
    pings.sort();
    assert!(pings[0].starts_with("GET /PING_KEY/backup/start "));
    assert!(
        pings[1].starts_with("POST /PING_KEY/backup/3 "),
        "{pings:?}"
    );
    let body: Value = serde_json::from_str(pings[1].lines().last().unwrap()).unwrap();
    assert_eq!(body["event"], "ended");
}

#[test]
fn messages_to_a_chat() {
    let sandbox = Sandbox::new();
    let (url, requests) = web_server();
    let text = blocks("Pings, messages and a log")[2].1.clone();
    let text = text.replace("https://slack.com", &url);
    let hook = script(sandbox.dir(), "slack.sh", &sandbox.here(&text));
    let hook = hook.to_str().unwrap();
    fs::create_dir_all(sandbox.dir().join("opt/hooks")).unwrap();
    let header = sandbox.dir().join("opt/hooks/slack");
    fs::write(header, "Authorization: Bearer xoxb-7\n").unwrap();
    let run = |job: &str| told_of(&sandbox, hook, words!("redlock run backup -c", job));
    let message = || {
        let request = requests.recv_timeout(TIMEOUT).unwrap();
        assert!(
            request.starts_with("POST /api/chat.postMessage "),
            "{request}"
        );
        assert!(
            request.contains("Authorization: Bearer xoxb-7\r\n"),
            "{request}"
        );
        let body = request.lines().last().unwrap().to_owned();
        // Versions of curl encode a space in different ways, and some a colon.
        let body = body
            .replace("%20", " ")
            .replace('+', " ")
            .replace("%3A", ":");
        assert!(body.starts_with("channel=ops&text=backup on "), "{body}");
        body
    };
    // A job that ends well says nothing.
    run("exit 0").assert_code(0);
    run("exit 3").assert_code(3);
    let said = message();
    assert!(said.contains(" failed with status 3: sh -c "), "{said}");
    let lost = "redlock release --force --yes backup; sleep 60";
    run(lost).assert_code(79);
    let said = message();
    assert!(said.contains(" lost its lock to "), "{said}");
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
    // A daemon that starts the script may have inherited this from a run that is over.
    let inherited = [("REDLOCK_NAME", "backup")];
    outcome(&mut sandbox.command(&[path], &inherited)).assert_code(75);
}

#[test]
fn the_rest_of_a_script() {
    let left = "redis-cli -s redis.sock pttl redlock:deploy";
    let sandbox = Sandbox::new()
        .with("build.sh", GATE)
        .with("switch.sh", "")
        .with("reindex.sh", left);
    let text = block("The rest of a script");
    let mut run = Running::start(&mut sandbox.script("deploy", &text));
    run.expect_line("ready");
    assert_eq!(sandbox.status()[0]["holders"][0]["pid"], run.pid());
    let keeper = keeper(&run);
    sandbox.open_the_gate();
    let left: u32 = run.line().parse().unwrap();
    assert!(left > 9 * 60_000, "{left}");
    run.finish().assert_code(0);
    let whole = ["build.sh", "switch.sh", "reindex.sh"];
    assert_eq!(sandbox.log(), whole);
    wait_until("the lock is released", || !is_alive(keeper));
    assert_nothing_left(&sandbox.redis);
    // Without Redis it ends at its first line.
    let mut nowhere = sandbox.script("deploy", &text);
    outcome(nowhere.env("REDLOCK_URL", "redis://127.0.0.1:1")).assert_code(69);
    assert_eq!(sandbox.log(), whole);
}

#[test]
fn the_rest_of_a_script_that_has_lost_its_lock() {
    let text = block("The rest of a script");
    for (stop, done) in [("build.sh", 1), ("switch.sh", 2)] {
        let mut sandbox = Sandbox::new();
        let all = ["build.sh", "switch.sh", "reindex.sh"];
        for name in all {
            sandbox = sandbox.with(name, if name == stop { GATE } else { "" });
        }
        let mut run = Running::start(&mut sandbox.script("deploy", &text));
        run.expect_line("ready");
        // No process is left that could stop the script.
        kill(Pid::from_raw(keeper(&run)), Signal::SIGKILL).unwrap();
        sandbox.redis.cli(&["DEL", "redlock:deploy"]);
        sandbox.open_the_gate();
        run.finish().assert_code(79);
        assert_eq!(sandbox.log(), all[..done]);
    }
}

#[test]
fn the_rest_of_a_script_that_is_killed() {
    let sandbox = Sandbox::new().with("build.sh", GATE);
    let text = block("The rest of a script");
    let mut run = Running::start(&mut sandbox.script("deploy", &text));
    run.expect_line("ready");
    run.kill();
    wait_until("the lock is released", || {
        sandbox.redis.holder("deploy").is_none()
    });
    // What it had started, and may work on, ends before its directory goes.
    sandbox.open_the_gate();
    let end = run.finish();
    assert!(!end.stderr.contains("never ended"), "{end:?}");
}

#[test]
fn cache_stampede() {
    let sandbox = Sandbox::new().with("prices.sh", "sleep 0.2; echo '{}'");
    let text = block("Cache stampede");
    let all: Vec<Running> = (0..6)
        .map(|_| Running::start(&mut sandbox.sh(&text)))
        .collect();
    for run in all {
        let end = run.finish();
        end.assert_code(0);
        assert!(!end.stderr.contains("find"), "{end:?}");
    }
    assert_eq!(sandbox.log(), ["prices.sh"]);
    assert_eq!(
        fs::read_to_string(sandbox.dir().join("prices.json")).unwrap(),
        "{}\n"
    );
}

#[test]
fn migrations() {
    let text = block("Migrations");
    for status in [0, 3] {
        let sandbox = Sandbox::new().with("migrate.sh", &format!("{GATE}; exit {status}"));
        let replica = |version: &str| {
            let mut command = sandbox.sh(&text);
            Running::start(command.env("VERSION", version))
        };
        let mut first = replica("1");
        first.expect_line("ready");
        let others = [(); 4].map(|()| replica("1"));
        let newer = replica("2");
        wait_until("the others wait", || {
            sandbox.redis.queue("migrate").len() == 5
        });
        assert_eq!(sandbox.log().len(), 1);
        sandbox.open_the_gate();
        for run in others.into_iter().chain([first, newer]) {
            run.finish().assert_code(status);
        }
        // A version that is there has nothing to do; one that failed has another try.
        replica("1").finish().assert_code(status);
        assert_eq!(sandbox.log().len(), if status == 0 { 2 } else { 7 });
    }
}

#[test]
fn blue_green_deploy_with_freeze() {
    let sandbox = Sandbox::new().with("switch.sh", "date +%s%N");
    let text = block("Blue/green deploy with freeze");
    let holder = Gated::start(&sandbox.redis, &["deploy"]).ready();
    let run = Running::start(&mut sandbox.script("switch-over", &text));
    wait_until_it_is_at(&run, "redlock run --ignore-freeze deploy");
    assert!(!sandbox.status()[0]["frozen"].is_null());
    outcome(
        &mut sandbox
            .redis
            .redlock(&["run", "-n", "deploy", "--", "true"]),
    )
    .assert_code(75);
    let free = holder.end();
    let end = run.finish();
    end.assert_code(0).assert_says("switching to green");
    assert_eq!(sandbox.log(), ["switch.sh green"]);
    assert!(moment(&end.stdout) > free);
    assert_nothing_left(&sandbox.redis);
    // Without Redis nothing is switched.
    let mut nowhere = sandbox.script("switch-over", &text);
    outcome(nowhere.env("REDLOCK_URL", "redis://127.0.0.1:1")).assert_code(69);
    assert_eq!(sandbox.log().len(), 1);
}

#[test]
fn blue_green_deploy_that_is_interrupted() {
    let sandbox = Sandbox::new().with("switch.sh", "");
    let text = block("Blue/green deploy with freeze");
    let _holder = Gated::start(&sandbox.redis, &["deploy"]).ready();
    let run = Running::start(&mut sandbox.script("switch-over", &text));
    wait_until_it_is_at(&run, "redlock run --ignore-freeze deploy");
    // Ctrl-C
    killpg(Pid::from_raw(run.pid()), Signal::SIGINT).unwrap();
    assert_ne!(run.finish().code(), Some(0));
    assert!(sandbox.status()[0]["frozen"].is_null());
    assert_eq!(sandbox.log(), [""; 0]);
}

#[test]
fn readers_around_a_writer() {
    let sandbox = Sandbox::new().with("verify.sh", GATE).with("prune.sh", "");
    let [(_, readers), (_, writer)] =
        <[_; 2]>::try_from(blocks("Readers around a writer")).unwrap();
    let mut first = Running::start(&mut sandbox.sh(&readers));
    first.expect_line("ready");
    first.expect_line("ready");
    // Each kind once.
    let second = Running::start(&mut sandbox.sh(&readers));
    wait_until("the same kinds wait", || {
        ["links", "sums"].map(|kind| sandbox.redis.queue(kind).len()) == [1, 1]
    });
    let prune = Running::start(&mut sandbox.sh(&writer));
    wait_until("the writer waits", || {
        sandbox.redis.queue("prune").len() == 1
    });
    let third = Running::start(&mut sandbox.sh(&readers));
    wait_until("those after the writer wait", || {
        sandbox.redis.queue("prune").len() == 3
    });
    assert_eq!(sandbox.log().len(), 2);
    sandbox.open_the_gate();
    for run in [first, second, prune, third] {
        run.finish().assert_code(0);
    }
    let log = sandbox.log();
    assert_eq!((log.len(), log[4].as_str()), (7, "prune.sh"), "{log:?}");
    assert_nothing_left(&sandbox.redis);
}

#[test]
fn a_late_write_is_refused() {
    let sandbox = Sandbox::new();
    let text = block("A stale write is rejected");
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
fn at_most_three_at_a_time() {
    let sandbox = Sandbox::new().with("fetch.sh", &format!("echo $REDLOCK_SLOT; {GATE}"));
    let text = and_more(0);
    let mut runs = [(); 3].map(|()| Running::start(&mut sandbox.sh(&text)));
    let mut slots = runs.each_mut().map(Running::line);
    slots.sort();
    assert_eq!(slots, ["1", "2", "3"]);
    let fourth = Running::start(&mut sandbox.sh(&text));
    wait_until("the fourth waits", || {
        sandbox.redis.queue("downloads").len() == 1
    });
    sandbox.open_the_gate();
    for run in runs.into_iter().chain([fourth]) {
        run.finish().assert_code(0);
    }
    assert_nothing_left(&sandbox.redis);
}

/// The commands in a crontab, whose variables come first.
fn jobs(crontab: &str) -> Vec<&str> {
    let jobs = crontab
        .lines()
        .filter(|line| !line.starts_with(char::is_uppercase));
    jobs.map(|job| job.splitn(6, ' ').last().unwrap()).collect()
}

#[test]
fn monitoring_with_prometheus() {
    let sandbox = Sandbox::new();
    let there = sandbox.dir().join("var/lib/prometheus/node-exporter");
    fs::create_dir_all(&there).unwrap();
    let backup = words!("run backup -- true");
    outcome(&mut sandbox.redis.redlock(backup)).assert_code(0);
    let holder = Gated::start(&sandbox.redis, &["deploy"]).ready();
    for (_, crontab) in blocks("Monitoring with Prometheus") {
        let crontab = sandbox.here(&crontab);
        let variables = crontab.lines().filter_map(|line| line.split_once('='));
        let variables: Vec<_> = variables.filter(|(name, _)| *name == "FILE").collect();
        for job in jobs(&crontab) {
            let end = outcome(&mut sandbox.command(&["sh", "-c", job], &variables));
            end.assert_code(0).assert_silent();
            assert_eq!(end.stdout, "", "cron would mail it");
        }
    }
    let metrics = fs::read_to_string(there.join("redlock.prom")).unwrap();
    assert!(
        metrics.contains("\nredlock_held{lock=\"deploy\"} 1\n"),
        "{metrics}"
    );
    holder.end();
    let page = recipes();
    for file in fs::read_dir(root().join("docs/monitoring")).unwrap() {
        let name = file.unwrap().file_name().into_string().unwrap();
        assert!(page.contains(&format!("`{name}`")), "{name}");
    }
}

#[test]
fn runs_of_each_host_counted() {
    let sandbox = Sandbox::new();
    for (words, status) in [
        (words!("run nightly -c", "sleep 0.01"), 0),
        (words!("run nightly -c", "sleep 0.01; exit 3"), 3),
        (words!("run --once-per 1h nightly -- false"), 0),
    ] {
        outcome(&mut sandbox.redis.redlock(words)).assert_code(status);
    }
    let other = r#"1000 recent 5 0 {"host":"other","user":"u","pid":1,"command":["true"]}"#;
    let skips = words!("RPUSH {redlock:nightly}:skips", other);
    sandbox.redis.cli(skips);
    let counted = outcome(&mut sandbox.sh(&block("Runs of each host, counted")));
    let mut lines: Vec<Vec<&str>> = counted
        .assert_code(0)
        .assert_silent()
        .stdout
        .lines()
        .map(|line| line.split('\t').collect())
        .collect();
    lines.sort_by_key(|line| line[0] == "other");
    assert_eq!(lines[0][1..4], ["1 ok", "1 failed", "1 skipped"]);
    assert!(lines[0][4].starts_with("median ") && lines[0][4] != "median null ms");
    assert_eq!(
        lines[1],
        ["other", "0 ok", "0 failed", "1 skipped", "median null ms"]
    );
}

/// One of the recipes that need no heading.
fn and_more(number: usize) -> String {
    let all = blocks("And more");
    assert_eq!(all.len(), 6);
    all[number].1.clone()
}

#[test]
fn several_locks_are_all_held() {
    let sandbox = Sandbox::new().with("migrate.sh", "echo $REDLOCK_NAME; redlock extend");
    let end = outcome(&mut sandbox.sh(&and_more(1)));
    assert_eq!(end.assert_code(0).stdout, "database search-index\n");
    for (calls, name) in [(1, "database"), (2, "search-index")] {
        let holder = Gated::start(&sandbox.redis, &[name]).ready();
        let run = Running::start(&mut sandbox.sh(&and_more(1)));
        wait_until("it waits", || sandbox.redis.queue(name).len() == 1);
        assert_eq!(sandbox.log().len(), calls);
        holder.end();
        run.finish().assert_code(0);
    }
    assert_nothing_left(&sandbox.redis);
}

#[test]
fn a_job_that_leaves_something_running_is_over_when_that_has_ended() {
    let worker = "until test -e go; do sleep 0.02; done; echo worked";
    let sandbox = Sandbox::new().with("start-workers.sh", &format!("setsid sh -c '{worker}' &"));
    let text = and_more(2);
    let first = Running::start(&mut sandbox.sh(&text));
    wait_until("it has ended but for its worker", || {
        !sandbox.log().is_empty()
    });
    let next = Running::start(&mut sandbox.sh(&text));
    wait_until("the next waits", || {
        sandbox.redis.queue("import").len() == 1
    });
    sandbox.open_the_gate();
    for run in [first, next] {
        assert_eq!(run.finish().assert_code(0).stdout, "worked\n");
    }
    assert_nothing_left(&sandbox.redis);
}

#[test]
fn a_job_that_takes_too_long_is_stopped_with_time_to_clean_up() {
    let sandbox = Sandbox::new().with(
        "reindex.sh",
        // It needs longer than the five seconds that there are by default.
        "trap 'sleep 5.5; echo cleaned up; exit' TERM; test -e go || while :; do sleep 0.02; done",
    );
    let text = and_more(3);
    // Seconds in place of the hour.
    assert!(text.contains(" -t 1h "), "{text}");
    let stopped = outcome(&mut sandbox.sh(&text.replace(" -t 1h ", " -t 4s ")));
    assert_eq!(stopped.assert_code(124).stdout, "cleaned up\n");
    sandbox.open_the_gate();
    outcome(&mut sandbox.sh(&text))
        .assert_code(0)
        .assert_silent();
    assert_nothing_left(&sandbox.redis);
}

#[test]
fn only_the_newest_deploy_at_once() {
    let sandbox = Sandbox::new().with("deploy.sh", GATE);
    let mut old = Running::start(&mut sandbox.sh(&and_more(4)));
    old.expect_line("ready");
    let mut new = Running::start(&mut sandbox.sh(&and_more(4)));
    new.expect_line("ready");
    old.finish().assert_code(79).assert_says("stopped by");
    sandbox.open_the_gate();
    new.finish().assert_code(0);
    assert_nothing_left(&sandbox.redis);
}

#[test]
fn something_to_do_when_nobody_deploys() {
    let sandbox = Sandbox::new().with("report.sh", "date +%s%N");
    let text = and_more(5);
    let holder = Gated::start(&sandbox.redis, &["deploy"]).ready();
    let run = Running::start(&mut sandbox.sh(&text));
    wait_until("it waits", || !sandbox.redis.queue("deploy").is_empty());
    let free = holder.end();
    let end = run.finish();
    assert!(moment(&end.assert_code(0).stdout) > free);
    // Who can't know doesn't do it.
    outcome(sandbox.sh(&text).env("REDLOCK_URL", "redis://127.0.0.1:1")).assert_code(69);
    assert_eq!(sandbox.log(), ["report.sh"]);
}

/// How a script begins that isn't the shell's.
const PYTHON: &[u8] = b"#!/usr/bin/env python3";

#[test]
fn the_rest_of_a_subshell() {
    let sandbox = Sandbox::new()
        .with("build.sh", "redlock status --names-only")
        .with("switch.sh", GATE);
    let text = block("The rest of a subshell");
    let mut job = Running::start(&mut sandbox.sh(&(text.clone() + "echo free\nread -r _")));
    job.expect_line("deploy");
    job.expect_line("ready");
    let holder = &sandbox.status()[0]["holders"][0];
    assert_eq!(holder["host"], crate::support::host());
    // As impatient as it can be, another one exits without having run anything.
    let other = text.replace("10m", "0s") + "echo \"status $?\"";
    assert_eq!(outcome(&mut sandbox.sh(&other)).stdout, "status 75\n");
    assert_eq!(sandbox.log(), ["build.sh", "switch.sh"]);
    sandbox.open_the_gate();
    // The lock ends with the subshell, not with the script around it.
    job.expect_line("free");
    wait_until("the lock is free", || {
        sandbox.status().as_array().unwrap().is_empty()
    });
    job.kill();
}

#[test]
fn the_rest_of_a_subshell_in_ksh93_is_a_process_after_the_line_for_it() {
    if !Path::new("/usr/bin/ksh93").exists() && !Path::new("/bin/ksh93").exists() {
        return;
    }
    let line = r#"ulimit -c "$(ulimit -c)""#;
    assert!(recipes().contains(&format!("begin the subshell with `{line}`")));
    let text = block("The rest of a subshell");
    for (first, is_free) in [(format!("{line}\n    "), true), (String::new(), false)] {
        let sandbox = Sandbox::new()
            .with("build.sh", "redlock status --names-only")
            .with("switch.sh", "exit 0");
        let text = text.replace("(\n    ", &format!("(\n    {first}"));
        assert_eq!(text.contains(line), is_free, "{text}");
        // The script goes on until the gate is open.
        let mut job = sandbox.command(&["ksh93", "-c", &(text + GATE)], &[]);
        let mut job = Running::start(&mut job);
        job.expect_line("deploy");
        job.expect_line("ready");
        let is_held = || sandbox.status() != Value::Array(Vec::new());
        if is_free {
            wait_until("the lock is free", || !is_held());
        } else {
            // By the script: its keeper watches nothing that could have ended.
            assert!(is_alive(keeper(&job)) && is_held());
        }
        assert!(!job.has_ended());
        sandbox.open_the_gate();
        job.finish().assert_code(0);
        wait_until("the lock is free", || !is_held());
    }
}

#[test]
fn all_shell_snippets_pass_shellcheck() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut snippets: Vec<(String, String)> = Vec::new();
    for (page, text) in markdown() {
        for code in text.split("```sh\n").skip(1) {
            snippets.push((page.clone(), code.split("```").next().unwrap().into()));
        }
    }
    for (heading, field) in [("GitHub Actions", "run"), ("GitLab CI", "script")] {
        for (_, text) in blocks(heading) {
            texts_of(&yaml(&text), field, &mut |run| {
                snippets.push((heading.into(), run.to_owned()));
            });
        }
    }
    let crontab = block("crontab");
    for job in crontab
        .lines()
        .filter(|line| !line.starts_with(char::is_uppercase))
    {
        let command = job.splitn(6, ' ').last().unwrap();
        snippets.push(("crontab".into(), command.into()));
    }
    let jenkins = block("Jenkins");
    let step = jenkins.split('\'').nth(3).expect("a step");
    snippets.push(("Jenkins".into(), step.into()));
    let parts = fs::read_dir(root.join("man/parts")).unwrap().flatten();
    let pages = parts.map(|entry| entry.path());
    for page in pages.chain([root.join("man/redlock-protocol.7")]) {
        let text = fs::read_to_string(&page).unwrap();
        for code in text.split(".nf\n").skip(1) {
            let code = code.split(".fi").next().unwrap();
            let code = code
                .replace("\\-", "-")
                .replace("\\e", "\\")
                .replace("\\(aq", "'")
                .replace("\\&", "");
            // Not the crontab.
            if !code.starts_with("PATH=") {
                snippets.push((page.display().to_string(), code));
            }
        }
    }
    assert!(snippets.len() > 40, "{} snippets", snippets.len());
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
    for directory in ["scripts", ".ci"] {
        let scripts = fs::read_dir(root.join(directory)).unwrap().flatten();
        let is_shell = |path: &std::path::PathBuf| !fs::read(path).unwrap().starts_with(PYTHON);
        files.extend(scripts.map(|entry| entry.path()).filter(is_shell));
    }
    files.push(root.join("completions/redlock.bash"));
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
