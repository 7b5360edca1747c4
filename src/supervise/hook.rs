//! The script of `REDLOCK_HOOK`, which is called when something happens to a run: beside its COMMAND, and no part of it.
//!
//! A process of ours in a session of its own, in which nothing of redlock is open, starts the script, adopts what that leaves
//! behind, and kills all of it when its time is over. So the script is waited for by nobody, outlives redlock, and gets
//! no signal of its terminal; and by the name of that process its tree differs from COMMAND's. (See [`sys::HOOK`].)
//!
//! A run calls it at most once for each event, so that few of them are there at a time.

use std::ffi::CString;
use std::fs::{File, OpenOptions};
use std::io::{self, PipeReader, Read as _, Write as _};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::ExitStatusExt as _;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use nix::sys::prctl::set_pdeathsig;
use nix::sys::signal::Signal;
use nix::unistd::Pid;
use serde_json::{Value as Json, json};

use super::HeldLocks;
use super::environment::list_of;
use super::tree::Tree;
use crate::clock::now;
use crate::decide::exit::Exit;
use crate::protocol::{Name, Who};
use crate::report::{self, Verbosity, client_in_words, escaped};
use crate::signal::SIGCHLD;
use crate::sys;
use crate::sys::poll::{self, readable};
use crate::variables::{BY, COMMAND, EVENT, FENCE, JSON, NAME, RAN_MS, REASON, STATUS, WAITED_MS};

/// How long the script may take, with all that it starts: time for a few tries of a request.
const LONGEST: Duration = Duration::from_secs(10);

/// Longest pause before what is left after that is killed again.
const KILL_AGAIN: Duration = Duration::from_millis(200);

/// Longest text of an event, in bytes, and most fencing tokens. As JSON, which may be six times as long, all of them are shorter
/// than the 128 KiB that the kernel passes in a variable.
const LONGEST_TEXT: usize = 3000;
const MOST_FENCES: usize = 1000;

/// What our variables begin with.
const OURS: &[u8] = b"REDLOCK_";

/// The script, and what it is told each time.
pub struct Hook<'a> {
    pub script: &'a str,
    pub names: &'a [Name],
    pub who: &'a Who,
    /// Of what is held, in the order of the names.
    pub fences: Vec<u64>,
    /// How long the locks were waited for, in milliseconds.
    pub waited_ms: u64,
}

/// What has happened.
#[derive(Default)]
pub struct News {
    pub event: &'static str,
    /// How long COMMAND has run, where it has.
    pub ran: Option<Duration>,
    /// How the run ends, where it does.
    pub exit: Option<Exit>,
    /// Who holds or has taken the lock, or has stopped the run, where that is known.
    pub by: Option<String>,
}

impl Hook<'_> {
    /// The fences of these locks.
    pub fn fences(names: &[Name], holds: &HeldLocks) -> Vec<u64> {
        let fence = |name: &Name| {
            let mut all = holds.all.iter();
            let hold = all.find(|hold| hold.claim.lock().name() == name)?;
            Some(hold.fence)
        };
        names.iter().filter_map(fence).collect()
    }

    /// Tells the script. Where that isn't possible, nothing changes for the run.
    pub fn tell(&self, news: &News, verbosity: Verbosity) {
        let started = open_null().and_then(|null| self.call(news, null));
        if let Err(error) = started {
            let event = news.event;
            verbosity.verbose(format_args!("can't tell REDLOCK_HOOK \"{event}\": {error}"));
        }
    }

    /// Calls the script, and waits for nothing but a fork. Its exit status is written to `result`.
    fn call(&self, news: &News, result: File) -> io::Result<()> {
        let script = CString::new(self.script)?;
        let words = [c"sh".into(), c"-c".into(), c"--".into(), script];
        let variables = self.environment(news)?;
        // For a moment whoever forks has the name of its child, and redlock's main thread must not be taken for that.
        let forking = sys::start_thread("hook", sys::USUAL_STACK, move || {
            let work = |result: File| attend(result, &words, &variables);
            let _ = sys::fork_apart(sys::HOOK, result, work);
        })?;
        let _ = forking.join();
        Ok(())
    }

    /// Our environment, in which of our variables only those are that tell the news: others may be secrets.
    fn environment(&self, news: &News) -> io::Result<Vec<CString>> {
        let is_others = |text: &&std::ffi::CStr| !text.to_bytes().starts_with(OURS);
        let others = sys::all_variables().into_iter().filter(is_others);
        let own = self.told(news);
        let own = own.into_iter().map(|text| Ok(CString::new(text)?));
        others.map(|text| Ok(text.to_owned())).chain(own).collect()
    }

    /// Returns the variables that tell the news, as `NAME=value` texts: unknown values are empty.
    fn told(&self, news: &News) -> [String; 10] {
        let names = truncated(list_of(self.names).to_string_lossy().into_owned());
        let fences = &self.fences[..self.fences.len().min(MOST_FENCES)];
        let ms = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH);
        let json = json!({
            "at": report::timestamp(ms(since_1970.unwrap_or_default())),
            "event": news.event,
            "name": names,
            "fences": fences,
            "waited_ms": self.waited_ms,
            "ran_ms": news.ran.map(ms),
            "status": news.exit.map(Exit::code),
            "reason": self.who.reason.clone().map(truncated),
            "by": news.by.clone().map(truncated),
            "command": truncated(report::command_line(&self.who.command)),
            "who": truncated(client_in_words(self.who)),
        });
        let text = |key: &str| match &json[key] {
            Json::Null => String::new(),
            Json::String(text) => text.clone(),
            Json::Array(all) => {
                let all: Vec<String> = all.iter().map(Json::to_string).collect();
                all.join(" ")
            }
            number => number.to_string(),
        };
        // What others are called is theirs to choose: in JSON it is as they have chosen.
        let by = truncated(escaped(&text("by")).into_owned());
        [
            (EVENT, text("event")),
            (NAME, text("name")),
            (FENCE, text("fences")),
            (WAITED_MS, text("waited_ms")),
            (RAN_MS, text("ran_ms")),
            (STATUS, text("status")),
            (REASON, text("reason")),
            (BY, by),
            (COMMAND, text("command")),
            (JSON, report::escaped_json(&json.to_string()).into_owned()),
        ]
        .map(|(name, value)| format!("{name}={value}"))
    }
}

/// Cuts a text that is too long, and ends it with an ellipsis.
fn truncated(mut text: String) -> String {
    if text.len() > LONGEST_TEXT {
        let is_boundary = |end: &usize| text.is_char_boundary(*end);
        let end = (0..=LONGEST_TEXT).rev().find(is_boundary);
        text.truncate(end.unwrap_or(0));
        text.push('…');
    }
    text
}

fn open_null() -> io::Result<File> {
    OpenOptions::new().read(true).write(true).open("/dev/null")
}

/// A test of the script that is under way.
pub struct HookTest(PipeReader);

impl HookTest {
    /// Calls the script with the event `test`, without waiting for its end.
    ///
    /// # Errors
    /// If the script can't be started.
    pub fn start(script: &str, names: &[Name], who: &Who) -> io::Result<Self> {
        let hook = Hook {
            script,
            names,
            who,
            fences: Vec::new(),
            waited_ms: 0,
        };
        let news = News {
            event: "test",
            ..News::default()
        };
        let (status, writer) = io::pipe()?;
        hook.call(&news, File::from(OwnedFd::from(writer)))?;
        Ok(Self(status))
    }

    /// Waits for the script's exit status, which is 128 + N if a signal N ended it. `None` if it hasn't ended by then.
    ///
    /// # Errors
    /// If the script can't be started.
    pub fn status(mut self, until: Instant) -> io::Result<Option<u8>> {
        let within = until.saturating_duration_since(Instant::now());
        if !poll::wait_for(readable(self.0.as_fd()), within)? {
            return Ok(None);
        }
        let mut byte = [0];
        self.0.read_exact(&mut byte)?;
        Ok(Some(byte[0]))
    }
}

/// All the life of the process that starts the script.
fn attend(mut result: File, words: &[CString], variables: &[CString]) {
    let Ok(null) = open_null() else {
        return;
    };
    sys::set_default(SIGCHLD);
    let Ok(ends) = sys::signal_descriptor(&[SIGCHLD]) else {
        return;
    };
    // What it leaves behind would become a child of the redlock that it tells of.
    if sys::adopt_orphans().is_err() {
        return;
    }
    let until = now() + LONGEST;
    let tree = Tree::below(Pid::this());
    let own = Pid::this();
    let started = sys::fork_apart(sys::HOOK, &null, |null| {
        let _ = set_pdeathsig(Signal::SIGKILL);
        if Pid::parent() == own {
            sys::become_program(c"/bin/sh", words, variables, null, null);
        }
    });
    let Ok(script) = started else {
        return;
    };
    loop {
        while let Ok(Some(_)) = sys::next_signal(&ends) {}
        // Until nothing is left: it would become a child of redlock.
        let Ok(ended) = sys::reap() else { return };
        if let Some((pid, status)) = ended {
            if pid == script.as_raw() {
                let by_signal = || status.signal().map_or(0, |signal| 128 + signal);
                let code = status.code().unwrap_or_else(by_signal);
                let _ = result.write_all(&[u8::try_from(code).unwrap_or(u8::MAX)]);
            }
            continue;
        }
        let mut left = until.since(now());
        if left.is_zero() {
            tree.stop_all();
            tree.visit(None, |pid| {
                let _ = sys::kill(pid.as_raw(), sys::SIGKILL);
            });
            left = KILL_AGAIN;
        }
        let _ = poll::wait(&mut [readable(ends.as_fd())], Some(left));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_news_are_told_in_variables_and_once_more_as_a_line_of_json() {
        let names = ["a", "b=c"].map(|name| name.parse().unwrap());
        let who = Who {
            user: "ci".into(),
            host: "h".into(),
            pid: 7,
            command: ["sh", "-c", "echo \"1\n2\""].map(str::to_owned).into(),
            reason: Some("release \u{202e}".into()),
            ..Who::default()
        };
        let hook = Hook {
            script: "true",
            names: &names,
            who: &who,
            fences: vec![7, 9],
            waited_ms: 1,
        };
        let news = News {
            event: "ended",
            ran: Some(Duration::from_secs(2)),
            exit: Some(Exit::Command(3)),
            by: None,
        };
        let variables = hook.told(&news);
        let value = |name: &str| {
            let mut pairs = variables.iter().filter_map(|text| text.split_once('='));
            pairs.find(|(other, _)| *other == name).unwrap().1
        };
        for (name, expected) in [
            (EVENT, "ended"),
            (NAME, "a b=c"),
            (FENCE, "7 9"),
            (WAITED_MS, "1"),
            (RAN_MS, "2000"),
            (STATUS, "3"),
            (REASON, "release \u{202e}"),
            (BY, ""),
        ] {
            assert_eq!(value(name), expected, "{name}");
        }
        let line = value(JSON);
        assert!(!line.contains('\n') && line.is_ascii(), "{line}");
        let json: Json = serde_json::from_str(line).unwrap();
        assert_eq!(json["name"], "a b=c");
        assert_eq!(json["fences"], json!([7, 9]));
        assert_eq!(json["ran_ms"], 2000);
        assert_eq!(json["by"], Json::Null);
        assert_eq!(json["reason"], "release \u{202e}");
        assert_eq!(json["command"], value(COMMAND));
        assert_eq!(json["who"], "ci@h (pid 7)");
        assert!(json["at"].as_str().unwrap().ends_with('Z'));
    }

    #[test]
    fn nothing_of_ours_is_told_but_the_news() {
        let names = ["a".parse().unwrap()];
        let who = Who::default();
        let hook = Hook {
            script: "true",
            names: &names,
            who: &who,
            fences: Vec::new(),
            waited_ms: 0,
        };
        let variables = hook.environment(&News::default()).unwrap();
        let texts = variables.iter().map(|text| text.to_bytes());
        assert_eq!(texts.filter(|text| text.starts_with(OURS)).count(), 10);
    }
}
