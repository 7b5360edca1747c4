//! The script in `REDLOCK_HOOK`. redlock calls it on events of a
//! run, beside COMMAND: the script isn't part of COMMAND's tree.
//!
//! A helper process with a session of its own starts the script, adopts its orphans, and kills its whole tree after a
//! time limit. The helper inherits no descriptors of redlock. So nobody waits for the script; it outlives redlock and
//! gets no signals from the terminal. The helper's name distinguishes its tree from COMMAND's (see [`sys::HOOK`]).
//!
//! A run calls the hook at most once per event, so few helpers exist at a time.

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

use super::environment::list_of;
use super::tree::Tree;
use crate::clock::now;
use crate::decide::exit::Exit;
use crate::protocol::{Name, Who, cut};
use crate::report::{self, Verbosity, client_in_words, escaped};
use crate::signal::SIGCHLD;
use crate::sys;
use crate::sys::poll::{self, readable};
use crate::variables::{BY, COMMAND, EVENT, FENCE, JSON, NAME, RAN_MS, REASON, STATUS, WAITED_MS};

/// Longest run of the script and all that it starts: enough for a few tries of a request.
const LONGEST: Duration = Duration::from_secs(10);

/// Pause before the rest is killed again after that limit.
const KILL_AGAIN: Duration = Duration::from_millis(200);

/// Longest text of an event, in bytes, and the largest number of fencing tokens. JSON may be
/// six times as long, and even then all variables stay below the kernel's limit of 128 KiB.
const LONGEST_TEXT: usize = 3000;
const MOST_FENCES: usize = 1000;

/// Prefix of redlock's own variables.
const OURS: &[u8] = b"REDLOCK_";

/// The script, and the facts about a run that each event includes.
pub struct Hook<'a> {
    pub script: &'a str,
    pub names: &'a [Name],
    pub who: &'a Who,
    /// Fencing tokens of the held locks, in the order of `names`.
    pub fences: Vec<u64>,
    /// Time spent waiting for the locks, in milliseconds.
    pub waited_ms: u64,
}

/// An event, and its details.
#[derive(Default)]
pub struct News {
    pub event: &'static str,
    /// Time that COMMAND has run, if it was started.
    pub ran: Option<Duration>,
    /// Exit status of the run, if it has ended.
    pub exit: Option<Exit>,
    /// Client that holds or has taken the lock, or has stopped the run, if known.
    pub by: Option<String>,
}

impl Hook<'_> {
    /// Calls the script. A failure doesn't affect the run.
    pub fn tell(&self, news: &News, verbosity: Verbosity) {
        let started = open_null().and_then(|null| self.call(news, null));
        if let Err(error) = started {
            let event = news.event;
            verbosity.verbose(format_args!("can't tell REDLOCK_HOOK \"{event}\": {error}"));
        }
    }

    /// Starts the script, and waits only for a fork. The helper writes the script's exit status to `result`.
    fn call(&self, news: &News, result: File) -> io::Result<()> {
        let script = CString::new(self.script)?;
        let words = [c"sh".into(), c"-c".into(), c"--".into(), script];
        let variables = self.environment(news)?;
        // A forking thread briefly has the name of its child, and
        // redlock's main thread must not be mistaken for a helper.
        let forking = sys::start_thread("hook", sys::USUAL_STACK, move || {
            let work = |result: File| drop(attend(result, &words, &variables));
            let _ = sys::fork_apart(sys::HOOK, result, work);
        })?;
        let _ = forking.join();
        Ok(())
    }

    /// Returns the script's environment: all variables of others, but of
    /// redlock's own only those of the event, because the rest may be secret.
    fn environment(&self, news: &News) -> io::Result<Vec<CString>> {
        let is_others = |text: &&std::ffi::CStr| !text.to_bytes().starts_with(OURS);
        let others = sys::all_variables().into_iter().filter(is_others);
        let own = self.variables(news);
        let own = own.into_iter().map(|text| Ok(CString::new(text)?));
        others.map(|text| Ok(text.to_owned())).chain(own).collect()
    }

    /// Returns the event's variables, as `NAME=value` texts; unknown values are empty.
    fn variables(&self, news: &News) -> [String; 10] {
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
        // Other clients choose their own names, so this one is escaped. The JSON has the original.
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

/// Shortens a text that is too long, and appends an ellipsis.
fn truncated(mut text: String) -> String {
    cut(&mut text, LONGEST_TEXT);
    text
}

fn open_null() -> io::Result<File> {
    OpenOptions::new().read(true).write(true).open("/dev/null")
}

/// A running test of the script.
pub struct HookTest(PipeReader);

impl HookTest {
    /// Calls the script with the event `test`, and doesn't wait for its end.
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

    /// Waits for the script's exit status: 128 + N if signal N
    /// ended it. Returns `None` if it hasn't ended by `until`.
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

/// Runs the helper process: starts the script, reports its status, and reaps or kills its tree. Ends with an
/// error, at the latest when no process is left to reap.
fn attend(mut result: File, words: &[CString], variables: &[CString]) -> io::Result<()> {
    let null = open_null()?;
    sys::set_default(SIGCHLD);
    let ends = sys::signal_descriptor(&[SIGCHLD])?;
    // Otherwise the script's orphans would become children of redlock.
    sys::adopt_orphans()?;
    let until = now() + LONGEST;
    let tree = Tree::below(Pid::this());
    let own = Pid::this();
    let script = sys::fork_apart(sys::HOOK, &null, |null| {
        let _ = set_pdeathsig(Signal::SIGKILL);
        if Pid::parent() == own {
            sys::become_program(c"/bin/sh", words, variables, null, null);
        }
    })?;
    loop {
        while let Ok(Some(_)) = sys::next_signal(&ends) {}
        // Continues until nothing is left, because any rest would become a child of redlock.
        if let Some((pid, status)) = sys::reap()? {
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
        let variables = hook.variables(&news);
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
        // Nothing else of redlock's.
        let variables = hook.environment(&news).unwrap();
        let texts = variables.iter().map(|text| text.to_bytes());
        assert_eq!(texts.filter(|text| text.starts_with(OURS)).count(), 10);
    }
}
