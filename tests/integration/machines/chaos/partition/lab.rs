//! Servers, sentinels and clients, each on a host of its own, and jobs that want locks there again and again.

use std::fmt::Write as _;
use std::fs::{self, File};
use std::ops::Range;
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::report::{Finding, Report};
use crate::machines::chaos::driver::{ClockWatch, install};
use crate::machines::chaos::history::{Nanos, Process, beats_of, boottime};
use crate::machines::chaos::workers::surround;
use crate::support::{
    Dice, MASTER, Network, Redis, Sentinel, WallClock, outcome, seen_by_a_shell, send,
};

const SERVER_PORT: u16 = 6379;
const SENTINEL_PORT: u16 = 26379;

/// The hosts: first those of up to six servers, then those of three sentinels, then those of clients.
pub const SENTINELS: usize = 6;
pub const CLIENTS: usize = 9;

/// How long a server is missing before a sentinel, or the cluster, takes it for dead.
pub const DOWN_AFTER_MS: u32 = 2000;

/// How far the servers' clocks are ahead, in milliseconds: by less than the clock skew that redlock expects.
const AHEAD: [i64; 4] = [0, 300, 150, 400];

/// One run, that has ended or not.
#[derive(Clone)]
pub struct Run {
    pub number: u32,
    pub client: usize,
    pub lock: String,
    pid: i32,
    /// The status as a shell sees it; `None` while it runs, and where the lab has ended it.
    pub status: Option<i32>,
}

/// Servers, sentinels and what runs on clients; gone when dropped.
pub struct Lab {
    pub servers: Vec<Redis>,
    pub sentinels: Vec<Sentinel>,
    /// What the jobs that are started from now on ask for the servers.
    pub url: String,
    runs: Arc<Mutex<Vec<Run>>>,
    count: Arc<AtomicU32>,
    is_over: Arc<AtomicBool>,
    crew: Vec<JoinHandle<()>>,
    dir: tempfile::TempDir,
    clocks: Vec<WallClock>,
    watch: ClockWatch,
    // Gone after what runs on its hosts.
    pub network: Network,
}

impl Lab {
    /// A primary, replicas and three sentinels with the timers that sentinels usually have; all is well when this
    /// returns. The options are those of all servers, of which number 0 is the primary.
    pub fn sentinel(servers: usize, clients: usize, options: &str) -> Self {
        let mut lab = Self::empty(clients);
        lab.clocks = AHEAD.map(WallClock::ahead_by).into();
        for number in 0..servers {
            let clock = lab.clocks[number].before();
            let replica = match number {
                0 => String::new(),
                _ => format!("--replicaof {} {SERVER_PORT}", Network::address(0)),
            };
            let server = lab.server(number, &clock, &format!("{replica} {options}"));
            lab.servers.push(server);
        }
        lab.url = sentinel_url(&[0, 1, 2].map(|number| Network::address(SENTINELS + number)));
        for replica in &lab.servers[1..] {
            until(20, "the replicas are in sync", || {
                replica.info("replication", "master_link_status") == "up"
            });
        }
        for number in 0..3 {
            let sentinel = lab.start_sentinel(number, 0, true);
            lab.sentinels.push(sentinel);
        }
        until(30, "the sentinels see all", || lab.is_whole());
        lab
    }

    /// Six nodes: three primaries, the next three are their replicas.
    pub fn cluster(clients: usize, options: &str) -> Self {
        let mut lab = Self::empty(clients);
        let cluster = format!("--cluster-enabled yes --cluster-node-timeout {DOWN_AFTER_MS}");
        for number in 0..6 {
            let server = lab.server(number, &[], &format!("{cluster} {options}"));
            lab.servers.push(server);
        }
        let address = |node| format!("{}:{SERVER_PORT}", Network::address(node));
        let nodes = [0, 1, 2, 3, 4, 5].map(address);
        let all = nodes.join(" ");
        let create = format!("redis-cli --cluster create {all} --cluster-replicas 1 --cluster-yes");
        outcome(&mut on(&lab.network, CLIENTS, &create)).assert_code(0);
        for node in &lab.servers {
            until(30, "the cluster is complete", || {
                let replica = node.info("replication", "master_link_status");
                node.cli(&["CLUSTER", "INFO"]).contains("cluster_state:ok")
                    && matches!(&*replica, "up" | "")
            });
        }
        lab.url = format!("redis-cluster://{}", nodes.join(","));
        lab
    }

    fn empty(clients: usize) -> Self {
        let dir = tempfile::tempdir().unwrap();
        install(dir.path());
        let network =
            Network::of(CLIENTS + clients).expect("namespaces and TAP devices are permitted");
        Self {
            servers: Vec::new(),
            sentinels: Vec::new(),
            url: String::new(),
            runs: Arc::default(),
            count: Arc::default(),
            is_over: Arc::default(),
            crew: Vec::new(),
            dir,
            clocks: Vec::new(),
            watch: ClockWatch::start(),
            network,
        }
    }

    fn server(&self, number: usize, clock: &[String], more: &str) -> Redis {
        let before = [self.network.on(number), clock.to_vec()].concat();
        let before: Vec<&str> = before.iter().map(String::as_str).collect();
        let options = format!(
            "--bind {} --protected-mode no --repl-diskless-sync-delay 0 --enable-debug-command local {more}",
            Network::address(number)
        );
        let options: Vec<&str> = options.split_whitespace().collect();
        Redis::at(|| SERVER_PORT, &before, &options)
    }

    /// Starts a sentinel that is told of this primary alone, or of all that there is.
    fn start_sentinel(&self, number: usize, primary: usize, knows_all: bool) -> Sentinel {
        let id = |number: usize| format!("{:040x}", 0xabc + number);
        let address = Network::address(SENTINELS + number);
        let mut text = format!(
            "port {SENTINEL_PORT}\nbind {address}\nprotected-mode no\nsentinel myid {}\n\
             sentinel monitor {MASTER} {} {SERVER_PORT} 2\n\
             sentinel down-after-milliseconds {MASTER} {DOWN_AFTER_MS}\n\
             sentinel failover-timeout {MASTER} 10000\n",
            id(number),
            Network::address(primary),
        );
        for replica in (1..self.servers.len()).filter(|_| knows_all) {
            let host = Network::address(replica);
            let _ = writeln!(text, "sentinel known-replica {MASTER} {host} {SERVER_PORT}");
        }
        for other in (0..3).filter(|&other| knows_all && other != number) {
            let host = Network::address(SENTINELS + other);
            let id = id(other);
            let _ = writeln!(
                text,
                "sentinel known-sentinel {MASTER} {host} {SENTINEL_PORT} {id}"
            );
        }
        let before = self.network.on(SENTINELS + number);
        Sentinel::start(address, SENTINEL_PORT, &text, before, Vec::new())
    }

    /// Kills a sentinel and starts it without its file: all it knows is the address of the present primary.
    pub fn make_anew(&mut self, number: usize, primary: usize) {
        self.sentinels[number].kill();
        self.sentinels[number] = self.start_sentinel(number, primary, false);
    }

    /// The server that a sentinel calls the primary.
    pub fn named(&self, sentinel: usize) -> Option<usize> {
        let words = ["SENTINEL", "GET-MASTER-ADDR-BY-NAME", MASTER];
        let answer = self.sentinels[sentinel].ask(&words)?;
        let (host, _): (String, String) = redis::from_redis_value(answer).ok()?;
        (0..self.servers.len()).find(|&number| Network::address(number) == host)
    }

    /// The server that two of the sentinels call the primary, if it says so itself.
    pub fn primary(&self) -> Option<usize> {
        let named = [0, 1, 2].map(|sentinel| self.named(sentinel));
        let is_primary = |number: &usize| {
            let votes = named.iter().filter(|&&one| one == Some(*number));
            votes.count() >= 2 && self.servers[*number].info("replication", "role") == "master"
        };
        (0..self.servers.len()).find(is_primary)
    }

    /// Whether all servers and sentinels are well.
    pub fn is_whole(&self) -> bool {
        let Some(primary) = self.primary() else {
            return false;
        };
        let follows = |number: usize| {
            let server = &self.servers[number];
            server.info("replication", "master_host") == Network::address(primary)
                && server.info("replication", "master_link_status") == "up"
        };
        let servers = self.servers.len();
        self.sentinels
            .iter()
            .all(|sentinel| sentinel.sees(servers - 1))
            && (0..servers).all(|number| number == primary || follows(number))
    }

    /// Has a job run again and again on a client's host, for this many milliseconds each time.
    pub fn repeat(&mut self, client: usize, lock: &str, options: &str, lasts: Range<i64>) {
        self.start(client, lock, options, lasts, false);
    }

    /// Has one run on a client's host.
    pub fn once(&mut self, client: usize, lock: &str, options: &str, lasts: i64) {
        self.start(client, lock, options, lasts..lasts + 1, true);
    }

    fn start(&mut self, client: usize, lock: &str, options: &str, lasts: Range<i64>, once: bool) {
        let is_setting = |word: &&str| word.starts_with("REDLOCK_");
        let (settings, options): (Vec<&str>, Vec<&str>) = options.split(' ').partition(is_setting);
        let (settings, options) = (settings.join(" "), options.join(" "));
        let words =
            format!("env {settings} redlock run {options} {lock} -- beater --ignore-term --for");
        let mut post = Post {
            client,
            lock: lock.to_owned(),
            words: self.network.on(client),
            lasts,
            url: self.url.clone(),
            dir: self.dir.path().to_owned(),
            runs: Arc::clone(&self.runs),
            count: Arc::clone(&self.count),
            is_over: Arc::clone(&self.is_over),
            dice: Dice::new(self.crew.len() as u64, 28),
        };
        let words = words.split_whitespace().map(str::to_owned);
        post.words.extend(words);
        self.crew
            .push(std::thread::spawn(move || while post.work() && !once {}));
    }

    /// When each hold of a lock began, and by which client.
    pub fn starts(&self, lock: &str) -> Vec<(Nanos, usize)> {
        let runs = self.runs.lock().unwrap().clone();
        let mut starts: Vec<(Nanos, usize)> = Vec::new();
        for run in runs.iter().filter(|run| run.lock == lock) {
            let beats = beats_of(self.dir.path(), run.number);
            let start = |process: &Process| (process.periods[0].from, run.client);
            starts.extend(beats.iter().map(start));
        }
        starts.sort_unstable();
        starts
    }

    /// Waits until so many holds of a lock have begun.
    pub fn until_started(&self, lock: &str, count: usize) {
        until(60, "jobs start", || self.starts(lock).len() >= count);
    }

    /// Waits until a hold of each of these locks began after this moment, for at most so many seconds.
    pub fn started_after(&self, locks: &[&str], moment: Nanos, seconds: u64) {
        let end = Instant::now() + Duration::from_secs(seconds);
        let has = |lock: &&str| self.starts(lock).iter().any(|(start, _)| *start > moment);
        while !locks.iter().all(has) && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    /// Waits until another server than this is the primary; how long that has taken.
    pub fn until_failover(&self, old: usize) -> Duration {
        until(60, "another server is the primary", || {
            self.primary().is_some_and(|primary| primary != old)
        })
    }

    /// The statuses of the runs for a lock that have ended.
    pub fn statuses(&self, lock: &str) -> Vec<i32> {
        let runs = self.runs.lock().unwrap();
        let runs = runs.iter().filter(|run| run.lock == lock);
        runs.filter_map(|run| run.status).collect()
    }

    /// How many system calls the run that was started last makes in so many seconds.
    pub fn calls_of_the_last_run(&self, seconds: u64) -> u64 {
        let pid = self.runs.lock().unwrap().last().unwrap().pid;
        let counts = self.dir.path().join("calls");
        let mut trace = Command::new("timeout");
        trace.args([&seconds.to_string(), "strace", "-f", "-c", "-o"]);
        outcome(trace.arg(&counts).args(["-p", &pid.to_string()]));
        let counts = fs::read_to_string(counts).unwrap();
        let total = counts.lines().find(|line| line.ends_with(" total"));
        let total = total.unwrap_or_else(|| panic!("no counts: {counts}"));
        total.split_whitespace().nth(3).unwrap().parse().unwrap()
    }

    /// The node of a cluster that has the locks, all of which are in one slot, and its replica.
    pub fn owner_and_replica(&self) -> (usize, usize) {
        let slot = self.servers[0].cli(&["CLUSTER", "KEYSLOT", "redlock"]);
        let owner = slot.parse::<usize>().unwrap() / 5461;
        let address = Network::address(owner);
        let follows =
            |node: &usize| self.servers[*node].info("replication", "master_host") == address;
        (owner, (3..6).find(follows).unwrap())
    }

    /// Waits until a replica is a primary; how long that has taken.
    pub fn until_promoted(&self, replica: usize) -> Duration {
        until(60, "the replica is the primary", || {
            self.servers[replica].info("replication", "role") == "master"
        })
    }

    /// Ends all jobs; what was seen of these locks since `from`.
    pub fn end<const N: usize>(&mut self, from: Nanos, locks: [&str; N]) -> (Finding, [Report; N]) {
        let until = boottime();
        self.stop();
        let runs = self.runs.lock().unwrap().clone();
        let reports = locks.map(|lock| Report::of(self.dir.path(), &runs, lock, from, until));
        (Finding::of(&reports, &self.watch.end()), reports)
    }

    fn stop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        let _ = File::create(self.dir.path().join("over"));
        for one in self.crew.drain(..) {
            let _ = one.join();
        }
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Waits for a condition for at most so many seconds; how long that has taken.
#[track_caller]
pub fn until(seconds: u64, what: &str, condition: impl Fn() -> bool) -> Duration {
    let began = Instant::now();
    while !condition() {
        let is_over = began.elapsed() >= Duration::from_secs(seconds);
        assert!(!is_over, "never happened: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
    began.elapsed()
}

/// Lets the jobs go on for so many seconds.
pub fn pass(seconds: u64) {
    std::thread::sleep(Duration::from_secs(seconds));
}

/// The URL of the sentinels at these hosts.
pub fn sentinel_url(hosts: &[String]) -> String {
    let hosts = hosts.iter().map(|host| format!("{host}:{SENTINEL_PORT}"));
    let hosts: Vec<String> = hosts.collect();
    format!("redis-sentinel://{}/{MASTER}", hosts.join(","))
}

/// A command on a host.
fn on(network: &Network, host: usize, words: &str) -> Command {
    let before = network.on(host);
    let mut command = Command::new(&before[0]);
    command.args(&before[1..]).args(words.split_whitespace());
    command
}

/// Where a job is run again and again.
struct Post {
    client: usize,
    lock: String,
    words: Vec<String>,
    lasts: Range<i64>,
    url: String,
    dir: PathBuf,
    runs: Arc<Mutex<Vec<Run>>>,
    count: Arc<AtomicU32>,
    is_over: Arc<AtomicBool>,
    dice: Dice,
}

impl Post {
    /// One run, to its end; whether there is to be another.
    fn work(&mut self) -> bool {
        let number = self.count.fetch_add(1, Ordering::Relaxed);
        fs::create_dir(self.dir.join("beats").join(number.to_string())).unwrap();
        let lasts = self.dice.between(self.lasts.start, self.lasts.end);
        let mut command = Command::new(&self.words[0]);
        command.args(&self.words[1..]).arg(lasts.to_string());
        let said = File::create(self.dir.join("said").join(number.to_string())).unwrap();
        surround(&mut command, &self.dir)
            .env("REDLOCK_URL", &self.url)
            .env("CHAOS_RUN", number.to_string())
            .stderr(said);
        let mut process = command.spawn().unwrap();
        let at = {
            let mut runs = self.runs.lock().unwrap();
            runs.push(Run {
                number,
                client: self.client,
                lock: self.lock.clone(),
                pid: process.id().cast_signed(),
                status: None,
            });
            runs.len() - 1
        };
        let mut asked: Option<Instant> = None;
        let status = loop {
            if let Some(status) = process.try_wait().unwrap() {
                break status;
            }
            match asked {
                None if self.is_over.load(Ordering::Relaxed) => {
                    asked = Some(Instant::now());
                    send(process.id().cast_signed(), libc::SIGTERM);
                }
                Some(asked) if asked.elapsed() > Duration::from_secs(10) => {
                    let _ = process.kill();
                }
                _ => std::thread::sleep(Duration::from_millis(10)),
            }
        };
        if asked.is_some() || self.is_over.load(Ordering::Relaxed) {
            return false;
        }
        let status = seen_by_a_shell(status);
        self.runs.lock().unwrap()[at].status = status;
        if status != Some(0) {
            // As a scheduler tries a failed job again.
            std::thread::sleep(Duration::from_millis(200));
        }
        true
    }
}
