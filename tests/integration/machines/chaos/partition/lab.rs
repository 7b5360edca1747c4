//! Servers, sentinels and clients, each on a host of its own, and jobs that compete for locks there.

use std::fs::{self, File};
use std::ops::Range;
use std::path::PathBuf;
use std::process::Child;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::report::{Finding, Report};
use crate::machines::chaos::driver::install;
use crate::machines::chaos::history::{Job, MS, Nanos, beats_of, boottime};
use crate::machines::chaos::workers::Stage;
use crate::support::{
    Cluster, Dice, Network, Redis, Replicated, Scratch, Sentinel, WallClock, seen_by_a_shell, send,
    wait_until,
};

/// Port of the first server; the others have the next ones.
const SERVER_PORT: u16 = 6379;
const SENTINEL_PORT: u16 = 26379;

/// First hosts of the sentinels and of the clients. Up to six servers come before them. A cluster's nodes use the sentinels'
/// hosts too.
pub const SENTINELS: usize = 6;
pub const CLIENTS: usize = 9;

/// Lead of each server's clock, in milliseconds: less than the clock skew that redlock expects.
const AHEAD: [i64; 4] = [0, 300, 150, 400];

/// Run of a job, and its client.
#[derive(Clone)]
pub struct Run {
    pub client: usize,
    /// Has no status while it runs, or if the lab ended it.
    pub job: Job,
}

/// A site (servers with sentinels, or a cluster) with jobs on clients; gone when dropped.
pub struct Lab<Site = Replicated> {
    pub all: Site,
    url: String,
    runs: Arc<Mutex<Vec<Run>>>,
    crew: Vec<JoinHandle<()>>,
    dir: tempfile::TempDir,
    _clocks: Vec<WallClock>,
    // Must be dropped last, because everything above runs on its hosts.
    pub network: Network,
}

impl Lab {
    /// Starts a primary, replicas and three sentinels with their usual timers, and waits until all are well. All servers get
    /// the options; number 0 is the primary.
    pub fn start(servers: usize, clients: usize, options: &str) -> Self {
        Self::with(clients, |network, start| {
            let places: Vec<(String, u16)> = (0..servers)
                .map(Network::address)
                .zip(SERVER_PORT..)
                .collect();
            let (first, port) = &places[0];
            let replica = format!("{options} --replicaof {first} {port}");
            let options = |number| if number == 0 { options } else { &replica };
            let servers: Vec<Redis> = (0..servers)
                .map(|number| start(number, options(number)))
                .collect();
            for replica in &servers[1..] {
                wait_until("the replicas are in sync", || {
                    replica.info("replication", "master_link_status") == "up"
                });
            }
            let addresses = (0..3).map(|number| Network::address(SENTINELS + number));
            let watchers: Vec<(String, u16)> =
                addresses.map(|host| (host, SENTINEL_PORT)).collect();
            let timers = "down-after-milliseconds 2000, failover-timeout 10000";
            let sentinels = (0..3).map(|number| {
                let text = Sentinel::configuration(number, &watchers, &places, 2, timers);
                let (host, port) = watchers[number].clone();
                let before = network.on(SENTINELS + number);
                Sentinel::start(host, port, &text, before)
            });
            let all = Replicated {
                servers,
                sentinels: sentinels.collect(),
                home: Scratch::new(),
            };
            all.wait_until_whole();
            let url = all.url();
            (all, url)
        })
    }

    /// Returns the server that a sentinel calls the primary.
    pub fn named(&self, sentinel: usize) -> Option<usize> {
        let port = self.all.sentinels[sentinel].primary_port()?;
        self.all
            .servers
            .iter()
            .position(|server| server.port == port)
    }

    /// Waits until another server than the first is the primary, according to itself and two sentinels. Returns the time in
    /// seconds.
    pub fn until_failover(&self) -> f64 {
        let began = Instant::now();
        wait_until("another server is the primary", || {
            let named = [0, 1, 2].map(|sentinel| self.named(sentinel));
            let is_primary = |number: usize| {
                let votes = named.iter().filter(|&&one| one == Some(number));
                let role = || self.all.servers[number].info("replication", "role");
                votes.count() >= 2 && role() == "master"
            };
            (1..self.all.servers.len()).any(is_primary)
        });
        began.elapsed().as_secs_f64()
    }

    /// Starts a killed server again, as a replica of the new primary.
    pub fn start_again(&mut self, number: usize) {
        let primary = self.all.primary_after(number);
        let port = self.all.servers[primary].port;
        let server = &mut self.all.servers[number];
        server.remember_role(Some((&Network::address(primary), port)));
        server.start_again();
    }
}

impl Lab<Cluster> {
    /// Starts a cluster of three primaries, and a replica of each given primary; number 0 owns the locks.
    pub fn cluster(replicas_of: &[usize], clients: usize) -> Self {
        Self::with(clients, |_, start| {
            let mut number = 0..;
            let all = Cluster::of(replicas_of, |common| {
                let options = format!("{} --cluster-node-timeout 2000", common.join(" "));
                start(number.next().unwrap(), &options)
            });
            let nodes: Vec<usize> = (0..all.nodes.len()).collect();
            let url = all.url_of(&nodes);
            (all, url)
        })
    }

    /// Returns the node that owns the locks.
    pub fn owner(&self) -> usize {
        self.all.owner(&self.all.slot("{redlock}:"))
    }
}

impl<Site> Lab<Site> {
    /// Creates a site on its own hosts. `site` starts the servers, each by its number and options.
    fn with(
        clients: usize,
        site: impl FnOnce(&Network, &dyn Fn(usize, &str) -> Redis) -> (Site, String),
    ) -> Self {
        let dir = tempfile::tempdir().unwrap();
        install(dir.path());
        let network =
            Network::of(CLIENTS + clients).expect("namespaces and TAP devices are permitted");
        let ahead = AHEAD.into_iter().cycle().take(CLIENTS);
        let clocks: Vec<WallClock> = ahead.map(WallClock::ahead_by).collect();
        let start = |number: usize, options: &str| {
            let before = [network.on(number), clocks[number].before()].concat();
            let own = Network::address(number);
            let options =
                format!("--bind {own} --protected-mode no --repl-diskless-sync-delay 0 {options}");
            let options: Vec<&str> = options.split_whitespace().collect();
            let port = SERVER_PORT + u16::try_from(number).unwrap();
            Redis::at(|| port, &before, &options)
        };
        let (all, url) = site(&network, &start);
        Self {
            all,
            url,
            runs: Arc::default(),
            crew: Vec::new(),
            dir,
            _clocks: clocks,
            network,
        }
    }

    /// Repeats a job on a client's host; each run takes a random time from the range, in milliseconds.
    pub fn repeat(&mut self, client: usize, lock: &str, options: &str, lasts: Range<i64>) {
        self.begin(client, lock, options, lasts, false);
    }

    /// Runs a job once on a client's host.
    pub fn once(&mut self, client: usize, lock: &str, options: &str, lasts: i64) {
        self.begin(client, lock, options, lasts..lasts + 1, true);
    }

    fn begin(&mut self, client: usize, lock: &str, options: &str, lasts: Range<i64>, once: bool) {
        let is_setting = |word: &&str| word.starts_with("REDLOCK_");
        let (settings, options): (Vec<&str>, Vec<&str>) = options.split(' ').partition(is_setting);
        let (settings, options) = (settings.join(" "), options.join(" "));
        let words =
            format!("env {settings} redlock run {options} {lock} -- beater --ignore-term --for");
        let words = words.split_whitespace().map(str::to_owned);
        let post = Post {
            client,
            lock: lock.to_owned(),
            words: self.network.on(client).into_iter().chain(words).collect(),
            stage: Stage {
                dir: self.dir.path().to_owned(),
                environment: vec![("REDLOCK_URL", self.url.clone())],
                ttls: (0, 0),
            },
            runs: Arc::clone(&self.runs),
        };
        let mut dice = Dice::new(self.crew.len() as u64, 28);
        let work = move || while post.work(dice.between(lasts.start, lasts.end)) && !once {};
        self.crew.push(std::thread::spawn(work));
    }

    /// Returns the starts of the holds of a lock.
    pub fn starts(&self, lock: &str) -> Vec<Nanos> {
        let runs = self.runs.lock().unwrap().clone();
        let own = runs.iter().filter(|run| run.job.wants(lock));
        let beats = own.flat_map(|run| beats_of(self.dir.path(), run.job.id));
        beats.map(|process| process.periods[0].from).collect()
    }

    /// Waits until this many holds of a lock have begun.
    pub fn until_started(&self, lock: &str, count: usize) {
        wait_until("jobs start", || self.starts(lock).len() >= count);
    }

    /// Waits until the first hold of this lock is this many milliseconds old.
    pub fn until_due(&self, lock: &str, age: i64) {
        let due = self.starts(lock)[0] + age * MS;
        let left = u64::try_from(due - boottime()).unwrap_or(0);
        std::thread::sleep(Duration::from_nanos(left));
    }

    /// Waits until a hold of each of these locks has begun after `moment`, at most this many seconds.
    pub fn started_after(&self, locks: &[&str], moment: Nanos, seconds: u64) {
        let end = Instant::now() + Duration::from_secs(seconds);
        let has = |lock: &&str| self.starts(lock).iter().any(|start| *start > moment);
        while !locks.iter().all(has) && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    /// Ends all jobs. Returns the reports of these locks since `from`.
    pub fn end<const N: usize>(&mut self, from: Nanos, locks: [&str; N]) -> (Finding, [Report; N]) {
        let until = boottime();
        self.stop();
        let mut runs = self.runs.lock().unwrap().clone();
        for Run { job, .. } in &mut runs {
            job.processes = beats_of(self.dir.path(), job.id);
            let stderr = fs::read_to_string(self.dir.path().join(format!("said/{}", job.id)));
            job.said = stderr.unwrap_or_default();
        }
        let reports = locks.map(|lock| Report::of(&runs, lock, from, until));
        (Finding::of(&reports), reports)
    }

    fn stop(&mut self) {
        let _ = File::create(self.dir.path().join("over"));
        for one in self.crew.drain(..) {
            let _ = one.join();
        }
    }
}

impl<Site> Drop for Lab<Site> {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Lets the jobs go on for this many seconds.
pub fn pass(seconds: u64) {
    std::thread::sleep(Duration::from_secs(seconds));
}

/// A client's loop of runs.
struct Post {
    client: usize,
    lock: String,
    words: Vec<String>,
    stage: Stage,
    runs: Arc<Mutex<Vec<Run>>>,
}

impl Post {
    /// Runs the job once. Returns true if there should be another run.
    fn work(&self, lasts: i64) -> bool {
        let lasts = lasts.to_string();
        let words: Vec<&str> = self
            .words
            .iter()
            .map(String::as_str)
            .chain([&*lasts])
            .collect();
        let (at, mut process) = {
            let mut runs = self.runs.lock().unwrap();
            let id = u32::try_from(runs.len()).unwrap();
            let job = Job {
                id,
                names: vec![self.lock.clone()],
                limit: 1,
                started: boottime(),
                ..Job::default()
            };
            let client = self.client;
            runs.push(Run { client, job });
            let process = self.stage.job(id, &words).spawn().unwrap();
            (runs.len() - 1, process)
        };
        let Some(status) = self.end_of(&mut process) else {
            return false;
        };
        self.runs.lock().unwrap()[at].job.status = Some(status);
        if status != 0 {
            // Like a scheduler that retries a failed job.
            std::thread::sleep(Duration::from_millis(200));
        }
        true
    }

    /// Waits for the end of a run. Returns its status, unless the lab has ended it.
    fn end_of(&self, process: &mut Child) -> Option<i32> {
        let over: PathBuf = self.stage.dir.join("over");
        let mut requested_at: Option<Instant> = None;
        let status = loop {
            if let Some(status) = process.try_wait().unwrap() {
                break status;
            }
            match requested_at {
                None if over.exists() => {
                    requested_at = Some(Instant::now());
                    send(process.id().cast_signed(), libc::SIGTERM);
                }
                Some(requested_at) if requested_at.elapsed() > Duration::from_secs(10) => {
                    let _ = process.kill();
                }
                _ => std::thread::sleep(Duration::from_millis(10)),
            }
        };
        seen_by_a_shell(status).filter(|_| requested_at.is_none() && !over.exists())
    }
}
