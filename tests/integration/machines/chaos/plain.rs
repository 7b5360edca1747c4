//! Clients that aren't redlock and share its locks: redis-py and node-redlock, where `scripts/setup chaos` has
//! installed them.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Child;

use super::history::{Job, JobKind, Nanos, Process, Span, boottime};
use super::site::Site;
use super::workers::Stage;
use crate::support::Dice;

pub struct PlainClients {
    processes: Vec<Child>,
    address: Option<(String, u16)>,
}

/// What `scripts/setup chaos` installs.
fn tools() -> PathBuf {
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().unwrap();
    let named = std::env::var_os("CHAOS_TOOLS").map(PathBuf::from);
    named.unwrap_or_else(|| target.join("tools/chaos"))
}

impl PlainClients {
    pub fn start(stage: &Stage, site: &Site, dice: &mut Dice) -> Self {
        let mut clients = Self {
            processes: Vec::new(),
            address: None,
        };
        clients.follow(&stage.dir, site);
        let key = format!("{}a", site.prefix());
        let (python, node) = (
            tools().join("venv/bin/python"),
            tools().join("node_modules"),
        );
        if python.exists() {
            fs::write(stage.dir.join("plain.py"), include_str!("plain.py")).unwrap();
            let script = stage.dir.join("plain.py");
            let words = [
                python.to_str().unwrap(),
                script.to_str().unwrap(),
                &key,
                "a",
            ];
            let mut command = stage.command(&site.place(dice), &words, "redis-py");
            clients.processes.push(command.spawn().unwrap());
        }
        if node.join("redlock").exists() {
            fs::write(stage.dir.join("plain.js"), include_str!("plain.js")).unwrap();
            let script = stage.dir.join("plain.js");
            let words = ["node", script.to_str().unwrap(), &key, "a"];
            let mut command = stage.command(&site.place(dice), &words, "node-redlock");
            command
                .env("NODE_PATH", &node)
                .env("CHAOS_BEHIND", (boottime() - monotonic()).to_string());
            clients.processes.push(command.spawn().unwrap());
        }
        clients
    }

    /// Tells them where the server is now.
    pub fn follow(&mut self, dir: &Path, site: &Site) {
        let address = site.plain_address();
        let Some((host, port)) = address.as_ref().filter(|_| address != self.address) else {
            return;
        };
        fs::write(dir.join("plain.new"), format!("{host} {port}\n")).unwrap();
        fs::rename(dir.join("plain.new"), dir.join("plain")).unwrap();
        self.address = address;
    }

    pub fn count(&self) -> usize {
        self.processes.len()
    }

    /// Whether all have ended.
    pub fn have_ended(&mut self) -> bool {
        let mut processes = self.processes.iter_mut();
        processes.all(|process| process.try_wait().unwrap().is_some())
    }
}

impl Drop for PlainClients {
    fn drop(&mut self) {
        for process in &mut self.processes {
            let _ = process.kill();
            let _ = process.wait();
        }
    }
}

fn monotonic() -> Nanos {
    let time = nix::time::clock_gettime(nix::time::ClockId::CLOCK_MONOTONIC).unwrap();
    time.tv_sec() * super::history::SECOND + time.tv_nsec()
}

/// Each time that one of them had a lock, or may have had it, as a job of its own; their numbers begin at `first`.
pub fn jobs(dir: &Path, first: u32) -> Vec<Job> {
    let text = fs::read_to_string(dir.join("plain.log")).unwrap_or_default();
    let lines = text.lines().filter(|line| line.split(' ').count() == 8);
    (first..)
        .zip(lines)
        .map(|(id, line)| job(id, line))
        .collect()
}

fn job(id: u32, line: &str) -> Job {
    let words: Vec<&str> = line.split(' ').collect();
    let number = |n: usize| -> Nanos { words[n].parse().unwrap() };
    let (ttl, started, ended) = (number(3), number(4), number(5));
    let periods = words[6].split(',').filter_map(|period| {
        let (first, last) = period.split_once(':')?;
        Some(Span::new(first.parse().ok()?, last.parse().ok()?))
    });
    let process = Process {
        pid: words[1].parse().unwrap(),
        is_descendant: false,
        names: vec![words[2].to_owned()],
        fences: Vec::new(),
        limit: 1,
        ends: ended,
        periods: periods.collect(),
    };
    Job {
        id,
        kind: JobKind::Plain,
        words: words[0].to_owned(),
        names: vec![words[2].to_owned()],
        limit: 1,
        ttl,
        kill_after: 0,
        extends: 0,
        patience: 0,
        once_per: None,
        supersedes: false,
        started,
        ended: Some(ended),
        status: Some(0),
        said: words[7].to_owned(),
        processes: vec![process],
        hits: Vec::new(),
        tasks: Vec::new(),
    }
}
