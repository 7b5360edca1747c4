//! The README's recipes, run unchanged, and the shell code on all pages.
//!
//! Only paths of the machine are moved: `/opt`, `/backups`, `/home`, `/usr/local/bin`. GitHub's own work isn't tested,
//! only the commands in a document, with the shell, the variables and the signals of a job. The machine of such a job
//! has no redlock except the one that the recipe installs, from releases that the tests made. Without systemd nothing
//! checks the units.

use std::path::Path;

use crate::generated::{plain, root};
use crate::pages::{self, markdown};
use crate::promises::packages::{GithubJob, Releases};
use crate::roff::docs;
use crate::support::prelude::*;

/// Returns the code blocks of a recipe.
pub fn blocks(heading: &str) -> Vec<(String, String)> {
    pages::blocks(&docs("recipes"), heading)
}

/// A directory with all programs that recipes call.
pub struct Sandbox {
    pub redis: Redis,
}

impl Sandbox {
    pub fn new() -> Self {
        let sandbox = Self {
            redis: Redis::start(),
        };
        for directory in ["usr/local/bin", "opt/jobs", "backups", "home"] {
            fs::create_dir_all(sandbox.dir().join(directory)).unwrap();
        }
        let installed = sandbox.dir().join("usr/local/bin/redlock");
        std::os::unix::fs::symlink(REDLOCK, installed).unwrap();
        sandbox
    }

    pub fn dir(&self) -> &Path {
        self.redis.dir.path()
    }

    /// Adds a script, which logs its name and arguments at each call.
    pub fn with(self, name: &str, body: &str) -> Self {
        let dir = self.dir().display();
        let base = name.rsplit('/').next().unwrap();
        let text = format!("#!/bin/sh\necho \"{base}${{*:+ $*}}\" >>{dir}/log\n{body}\n");
        script(self.dir(), name, &text);
        self
    }

    /// Returns the calls so far.
    pub fn log(&self) -> Vec<String> {
        let log = fs::read_to_string(self.dir().join("log")).unwrap_or_default();
        log.lines().map(str::to_owned).collect()
    }

    /// Moves the machine's paths in a text into the sandbox.
    fn here(&self, text: &str) -> String {
        let dir = self.dir().display().to_string();
        let paths = ["/usr/local/bin", "/opt/", "/backups/", " /home"];
        paths.iter().fold(text.to_owned(), |text, path| {
            let there = path.trim_start();
            let space = &path[..path.len() - there.len()];
            text.replace(path, &format!("{space}{dir}{there}"))
        })
    }

    /// Returns a command in the sandbox.
    pub fn command(&self, words: &[&str], variables: &[(&str, &str)]) -> Command {
        let words: Vec<String> = words.iter().map(|word| self.here(word)).collect();
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let mut command = directly(&self.redis, &words);
        command.envs(variables.iter().copied());
        command.current_dir(self.dir());
        command
    }

    /// Lets all scripts go on that wait at the `GATE`.
    pub fn open_the_gate(&self) {
        fs::write(self.dir().join("go"), "").unwrap();
    }
}

/// Parses a YAML document.
pub fn yaml(text: &str) -> Value {
    let script = "import json, sys, yaml; print(json.dumps(yaml.safe_load(sys.argv[1])))";
    let parsed = outcome(Command::new("python3").args(["-c", script, text]));
    parsed.assert_code(0);
    serde_json::from_str(&parsed.stdout).unwrap()
}

/// Script that prints "ready" and waits until the file "go" exists.
pub const GATE: &str = "echo ready; until test -e go; do sleep 0.02; done";

#[test]
fn crontab_as_hosts_run_it() {
    let report = r#"test -e "${0%/*}/repaired" || { echo the report failed; exit 1; }"#;
    let sandbox = Sandbox::new().with("opt/jobs/backup.sh", "exit 0");
    let sandbox = sandbox.with("opt/jobs/report.sh", report);
    let dir = sandbox.dir();
    let calls = |job: &str| sandbox.log().iter().filter(|call| *call == job).count();
    let crontab = sandbox.here(&blocks("crontab")[0].1);
    let (variables, jobs): (Vec<&str>, Vec<&str>) = crontab
        .lines()
        .partition(|line| line.starts_with(char::is_uppercase));
    let path = variables[0].strip_prefix("PATH=").unwrap();
    fs::create_dir_all(dir.join("root/.config")).unwrap();
    let setting = format!("REDLOCK_URL={}\n", sandbox.redis.url());
    fs::write(dir.join("root/.config/redlock.env"), setting).unwrap();
    // Runs a job like cron, but at once. Returns the text that cron would mail.
    let mail = |job: usize, status: i32| {
        let command = jobs[job].splitn(6, ' ').last().unwrap();
        let mut shell = Command::new("/bin/sh");
        let shell = shell.args(["-c", command]).env_clear().env("PATH", path);
        let end = outcome(shell.env("HOME", dir.join("root")).current_dir(dir));
        end.assert_code(status).assert_silent();
        end.stdout
    };
    // Three hosts, one after the other. The lock of the backup is kept; each host tries the failed report.
    for host in 1..=3 {
        assert_eq!(mail(0, 0), "");
        assert_eq!(mail(1, 1), "the report failed\n");
        assert_eq!(calls("report.sh"), host);
    }
    assert_eq!(calls("backup.sh"), 1, "{:?}", sandbox.log());
    fs::write(dir.join("opt/jobs/repaired"), "").unwrap();
    for _ in 0..3 {
        assert_eq!((mail(1, 0).as_str(), calls("report.sh")), ("", 4));
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
        let one_line = unit.replace("\\\n", " ");
        let mut lines = one_line.lines();
        if let Some(line) = lines.find_map(|line| line.strip_prefix("ExecStart=")) {
            line.clone_into(&mut exec);
        }
        let file = sandbox.dir().join(name);
        fs::write(&file, sandbox.here(unit)).unwrap();
        files.push(file.display().to_string());
    }
    let mut verify = Command::new("systemd-analyze");
    if let Ok(output) = verify.arg("verify").args(&files).output() {
        let verified = Outcome::from(output);
        let is_ours = |line: &&str| files.iter().any(|file| line.contains(file));
        let complaint = verified.stderr.lines().find(is_ours);
        assert_eq!(complaint, None, "{verified:?}");
    }
    let words: Vec<&str> = exec.split_whitespace().collect();
    let first = Running::ready(&mut sandbox.command(&words, &[]));
    let skips = |calls: usize| {
        let other = outcome(&mut sandbox.command(&words, &[]));
        other.assert_code(0);
        assert_eq!((other.stdout.as_str(), sandbox.log().len()), ("", calls));
    };
    skips(1);
    // Like systemctl stop.
    first.signal(Signal::SIGTERM);
    first.finish().assert_code(128 + 15);
    assert_nothing_left(&sandbox.redis);
    sandbox.open_the_gate();
    outcome(&mut sandbox.command(&words, &[])).assert_code(0);
    // A host whose timer is late, or that has just booted.
    skips(2);
}

#[test]
fn github_actions() {
    let sandbox = Sandbox::new().with("deploy.sh", GATE);
    let releases = Releases::new();
    let workflow = &blocks("GitHub Actions")[0].1;
    let (url, here) = (sandbox.redis.url(), releases.url());
    let step = |number: &str| {
        let variables = [
            ("GITHUB_ACTIONS", "true"),
            ("GITHUB_SERVER_URL", "https://github.com"),
            ("GITHUB_REPOSITORY", "o/r"),
            ("GITHUB_RUN_ID", "77"),
            ("GITHUB_RUN_NUMBER", number),
            ("REDLOCK_URL", &url),
            ("REDLOCK_RELEASES", &here),
        ];
        let workflow = workflow
            .replace("${{ github.run_number }}", number)
            .replace("${{ github.ref_name }}", "-x");
        let job = &yaml(&workflow)["jobs"]["deploy"];
        assert_eq!(job["env"]["REDLOCK_URL"], "${{ secrets.REDLOCK_URL }}");
        let step = &job["steps"][1];
        assert!(step["uses"].as_str().unwrap().contains("/redlock@v"));
        let with = step["with"].as_object().unwrap().iter();
        let with = with.map(|(name, value)| (name.as_str(), value.as_str().unwrap()));
        let with: Vec<(&str, &str)> = with.collect();
        assert!(with.iter().all(|(_, value)| !value.contains("${{")));
        GithubJob::new(sandbox.dir(), &variables).uses(&with)
    };
    let deploy = Running::ready(&mut step("7"));
    let holder = &json(&sandbox.redis, "status --json")[0]["holders"][0];
    assert_eq!(holder["url"], "https://github.com/o/r/actions/runs/77");
    // A branch may have a name like an option.
    assert_eq!(holder["reason"], "-x");
    outcome(&mut step("6")).assert_said(75, "build 6 is older than build 7 of ");
    // GitHub signals the step's own process, which is redlock because of exec.
    assert_eq!(holder["pid"], deploy.pid());
    deploy.signal(Signal::SIGINT);
    deploy.finish();
    assert_nothing_left(&sandbox.redis);
}

/// Returns the shell code on all pages: fenced blocks of Markdown, steps of CI, and displays of the manual.
fn shell_snippets() -> Vec<(String, String)> {
    let mut snippets = Vec::new();
    for (page, text) in markdown() {
        let blocks = text.split("\n```").skip(1).step_by(2);
        for (language, code) in blocks.filter_map(|block| block.split_once('\n')) {
            let mut take = |code: &str| snippets.push((page.clone(), code.to_owned()));
            match language {
                "sh" | "bash" => take(code),
                "yaml" => texts_of(&yaml(code), false, &mut take),
                _ => {}
            }
        }
    }
    for file in ["action.yml", "ci/gitlab.yml"] {
        let text = fs::read_to_string(root().join(file)).unwrap();
        let mut take = |code: &str| snippets.push((file.to_owned(), code.to_owned()));
        texts_of(&yaml(&text), false, &mut take);
    }
    let parts = fs::read_dir(root().join("man/parts")).unwrap().flatten();
    let parts = parts.map(|entry| entry.path());
    for page in parts.chain([root().join("man/redlock-protocol.7")]) {
        let text = fs::read_to_string(&page).unwrap();
        for code in text.split(".nf\n").skip(1) {
            let code = plain(code.split(".fi").next().unwrap());
            // Except the crontab and an output.
            if !["PATH=", "recently "]
                .iter()
                .any(|start| code.starts_with(start))
            {
                snippets.push((page.display().to_string(), code));
            }
        }
    }
    snippets
}

/// Calls `take` with all texts of fields that have shell code: `run`, `script` and the like.
fn texts_of(value: &Value, is_run: bool, take: &mut dyn FnMut(&str)) {
    match value {
        Value::String(text) if is_run => take(text),
        Value::Array(items) => items.iter().for_each(|item| texts_of(item, is_run, take)),
        Value::Object(fields) => {
            for (name, inner) in fields {
                let is_run =
                    ["run", "script", "before_script", "after_script"].contains(&name.as_str());
                texts_of(inner, is_run, take);
            }
        }
        _ => {}
    }
}

#[test]
fn all_shell_on_the_pages_is_well_formed() {
    let snippets = shell_snippets();
    assert!(snippets.len() > 60, "{} snippets", snippets.len());
    for (page, text) in snippets {
        let is_bash = text.starts_with("#!/bin/bash") || text.starts_with("#!/usr/bin/env bash");
        let shell = if is_bash { "bash" } else { "sh" };
        let parsed = outcome(Command::new(shell).args(["-n", "-c", &text]));
        assert_eq!(parsed.code(), Some(0), "{page}: {parsed:?}\n{text}");
    }
}
