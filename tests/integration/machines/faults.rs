//! Single faults: one request or reply of a run is lost, late or cut, in one of four operations. Afterwards the server is
//! reachable or not.
//!
//! `make test` cuts each reply at a few places, `make search WHAT=faults` at every byte. `FAULTS=renew/Cut` plays only the
//! cases whose names contain that text. COMMAND never runs without its token in the lock or beside another one. The lock is
//! free soon after the run. The manual documents the exit status and the messages.

use std::fmt;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use crate::support::proxy::{Action, Proxy, load_scripts};
use crate::support::{Gate, Redis, on_threads, outcome};

const MS: Duration = Duration::from_millis(1);
/// Delay longer than the timeout of a reply.
const LATE: Duration = Duration::from_millis(1500);
/// Time longer than a lease.
const FREE_WITHIN: Duration = Duration::from_secs(12);
/// Time until a killed process has vanished on a busy machine.
const DYING: Duration = Duration::from_millis(300);

/// Operations in which a fault happens.
const PLACES: [&str; 4] = ["take", "acquire", "renew", "release"];

#[derive(Clone, Copy, Debug)]
struct Case {
    place: &'static str,
    fault: Action,
    /// True if no client reaches the server from the fault on.
    is_gone: bool,
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let after = if self.is_gone { "gone" } else { "alive" };
        write!(f, "{}/{:?}/{after}", self.place, self.fault)
    }
}

fn cases(are_whole: bool) -> Vec<Case> {
    let mut cases = Vec::new();
    for place in PLACES {
        let few = vec![0, 1, 20];
        let cuts = if are_whole {
            (0..=reply_length(place)).collect()
        } else {
            few
        };
        let late = [Action::Stall(LATE), Action::StallReply(LATE)];
        let lost = [Action::LoseRequest, Action::LoseReply, Action::ResetReply];
        let cuts = cuts.into_iter().map(Action::Cut);
        for fault in lost.into_iter().chain(late).chain(cuts) {
            // After the answer to `take`, which says that `acquire` must follow, a run waits for a server that is gone.
            let has_answered = match (place, fault) {
                ("take", Action::Cut(after)) => after >= ":0\r\n".len(),
                _ => place == "acquire",
            };
            let both = [false, true].into_iter();
            let both = both.filter(|is_gone| !(*is_gone && has_answered));
            cases.extend(both.map(|is_gone| Case {
                place,
                fault,
                is_gone,
            }));
        }
    }
    cases
}

/// Returns the length of the longest undisturbed reply.
fn reply_length(place: &str) -> usize {
    let redis = Redis::start();
    load_scripts(&redis);
    let proxy = Proxy::new(&redis);
    let mut run = redis.run("a", "sleep 0.2");
    outcome(run.env("REDLOCK_URL", proxy.url())).assert_code(0);
    proxy.longest_answer(place)
}

/// Script of COMMAND: takes an exclusive file lock, records that it ran, and ends when the test lets it.
const COMMAND: &str = r#"exec 9>>"$BASE.witness"; flock -n 9 || exit 9
    echo ran >>"$BASE.ran"; read go <"$BASE.go"; exit 5"#;

/// Returns true if a process has locked this file.
fn is_locked(file: &Path) -> bool {
    let Ok(file) = fs::metadata(file) else {
        return false;
    };
    let inode = format!(":{} ", file.ino());
    let locks = fs::read_to_string("/proc/locks").unwrap_or_default();
    let mut lines = locks.lines().filter(|line| !line.contains("->"));
    lines.any(|line| line.contains("FLOCK") && line.contains(&inode))
}

/// Added to the number of a case that is played again.
const REPEATED: usize = 10_000;

/// Plays a case. Returns the broken promise, if there is one.
fn play(redis: &Redis, case: Case, number: usize) -> Result<(), String> {
    let name = format!("case-{number}");
    let base = redis.dir.path().join(&name);
    let proxy = Proxy::new(redis);
    let (refuse, mut has_fired) = (proxy.refusing(), false);
    let (firing, fired) = std::sync::mpsc::channel();
    proxy.set_hook(move |request| {
        if has_fired {
            return [Action::Pass, Action::Reset][usize::from(case.is_gone)];
        }
        has_fired = request.operation == case.place;
        if !has_fired {
            return Action::Pass;
        }
        if case.is_gone {
            refuse();
        }
        let _ = firing.send(Instant::now());
        case.fault
    });
    let mut gate = Gate::at(&base.with_extension("go"));
    let stderr = base.with_extension("err");
    let mut run = redis
        .run(&format!("-k 200ms --ttl 9s {name}"), COMMAND)
        .env("REDLOCK_URL", proxy.url())
        .env("REDLOCK_REDIS_TIMEOUT", "1s")
        .env("BASE", &base)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(fs::File::create(&stderr).unwrap())
        .spawn()
        .unwrap();
    let pid = i32::try_from(run.id()).ok();
    let witness = base.with_extension("witness");
    let began = Instant::now();
    let mut is_open = false;
    let mut fired_at = None;
    let mut unheld_since = None;
    let status = loop {
        let before = redis.holder(&name);
        let is_running = is_locked(&witness);
        let after = redis.holder(&name);
        // A killed process vanishes a moment later, but must never run beside another holder.
        let is_free = before.is_none() && after.is_none();
        unheld_since = (is_running && is_free).then(|| unheld_since.unwrap_or_else(Instant::now));
        let is_late = unheld_since.is_none_or(|since: Instant| since.elapsed() > DYING);
        if is_running && before != pid && after != pid && is_late {
            let _ = run.kill();
            let _ = run.wait();
            let holders = format!("{before:?}, then {after:?} has the lock");
            return Err(format!("COMMAND runs, and {holders}"));
        }
        if let Some(status) = run.try_wait().unwrap() {
            break status.code();
        }
        fired_at = fired_at.or_else(|| fired.try_recv().ok());
        // Long enough for every late reply, or for the end of the lease.
        let enough = if case.is_gone { FREE_WITHIN } else { LATE * 2 };
        let is_enough = fired_at.is_some_and(|at: Instant| at.elapsed() > enough);
        if !is_open && (is_enough || case.place == "release") {
            is_open = true;
            gate.open();
        }
        if began.elapsed() > FREE_WITHIN * 3 {
            let _ = run.kill();
            let _ = run.wait();
            return Err("it never ends".into());
        }
        std::thread::sleep(MS * 20);
    };
    let messages = fs::read_to_string(&stderr).unwrap_or_default();
    let has_run = base.with_extension("ran").exists();
    if fired_at.is_none() && fired.try_recv().is_err() {
        // On a busy machine the server may seem silent before the fault.
        if status == Some(69) && number < REPEATED * 3 {
            return play(redis, case, number + REPEATED);
        }
        return Err(format!("no {}", case.place));
    }
    judge(case, status, has_run, &messages).map_err(|why| {
        format!("it {why}: status {status:?}, COMMAND ran: {has_run}, said {messages:?}")
    })?;
    let is_excused = case.is_gone || messages.contains("can't release");
    if redis.holder(&name) == pid && !is_excused {
        return Err("the run has ended, and its lock is left".into());
    }
    let next = format!("-q -w {}s {name}", FREE_WITHIN.as_secs());
    let mut next = redis.run(&next, r#"flock -n "$BASE.witness" true"#);
    let next = outcome(next.env("BASE", &base));
    match next.code() {
        Some(0) => Ok(()),
        _ => Err(format!("the next one can't run: {next:?}")),
    }
}

/// Returns an error if a run must not end like this.
fn judge(case: Case, status: Option<i32>, has_run: bool, said: &str) -> Result<(), &'static str> {
    let Case { place, is_gone, .. } = case;
    // Runs report progress after a second.
    let progress = ["; still trying (", "Redis answers again"];
    let is_progress = |line: &&str| progress.iter().any(|text| line.contains(text));
    let lines: Vec<&str> = said.lines().filter(|line| !is_progress(line)).collect();
    let says = |text: &str| lines.iter().any(|line| line.contains(text));
    let is_its_own = lines.iter().all(|line| line.starts_with("redlock: "));
    match status {
        _ if !is_its_own || says("panicked") || says("unexpected") => Err("is surprised"),
        _ if says("holds it now") || says("was lost") || says("forced free") => {
            Err("reports a loss that nobody caused")
        }
        Some(5) if !has_run => Err("has COMMAND's status without COMMAND"),
        Some(5) if is_gone && place == "release" && says("can't release") => Ok(()),
        Some(5) if is_gone && place != "release" => Err("doesn't notice that the server is gone"),
        Some(5) if !lines.is_empty() && !is_gone => Err("complains though all is well"),
        Some(5) => Ok(()),
        Some(69) if has_run => Err("says that it started nothing"),
        Some(69) if !says("Redis at") => Err("doesn't say why"),
        Some(69) if ["take", "acquire"].contains(&place) || is_gone => Ok(()),
        Some(79) if !has_run || lines.is_empty() => Err("loses what it never had, or in silence"),
        Some(79) if is_gone && place != "release" => Ok(()),
        _ => Err("has another status than the manual says"),
    }
}

#[test]
fn a_lost_late_or_cut_reply_breaks_no_promise() {
    let wanted = std::env::var("FAULTS").unwrap_or_default();
    let mut cases = cases(std::env::var("FAULTS_WHOLE").is_ok());
    cases.retain(|case| case.to_string().contains(&wanted));
    let redis = Redis::start();
    load_scripts(&redis);
    let broken = on_threads(32, cases.len(), |number| {
        let case = cases[number];
        let played = play(&redis, case, number);
        played.err().map(|why| format!("FAULTS={case}: {why}"))
    });
    let broken: Vec<String> = broken.into_iter().flatten().collect();
    let (count, broken) = (cases.len(), broken.join("\n"));
    assert!(broken.is_empty(), "of {count} cases:\n{broken}");
}
