//! What we say, in words: one line on stderr, prefixed `redlock: `, safe for a terminal.

use std::borrow::Cow;
use std::fmt::{self, Write as _};
use std::io::{self, IsTerminal, Write as _};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, UNIX_EPOCH};

use crate::lock::{Busy, Frozen, Holder, Name, Who};
use crate::stderr;

/// What each of our lines on stderr begins with.
const PREFIX: &str = "redlock: ";

/// How much is said.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Verbosity {
    /// Errors only.
    Quiet,
    /// What a user has to know.
    Normal,
    /// Each change of state.
    Verbose,
}

impl Verbosity {
    /// Says what a user should know, unless told to be quiet.
    pub fn info(self, line: impl fmt::Display) {
        if self >= Self::Normal {
            error(line);
        }
    }

    /// Says how things stand, unless told to be quiet: on a terminal in a line that the next one
    /// takes the place of.
    pub fn progress(self, line: &str) {
        if has_terminal() && self >= Self::Normal {
            status_line(Some(line));
        } else {
            self.info(line);
        }
    }

    /// Says a change of state, where all are wanted.
    pub fn verbose(self, line: impl fmt::Display) {
        if self >= Self::Verbose {
            error(line);
        }
    }
}

/// Says what went wrong. In one write, so that lines of parallel runs don't mix; a closed stderr
/// changes nothing.
pub fn error(line: impl fmt::Display) {
    status_line(None);
    let line = format!("{PREFIX}{}\n", escaped(&line.to_string()));
    stderr::write(line.into_bytes());
}

/// Whether what we say is seen on a terminal.
pub fn has_terminal() -> bool {
    io::stderr().is_terminal()
}

/// Shows a line on the terminal that the next one takes the place of; `None` takes it away.
pub fn status_line(line: Option<&str>) {
    static SHOWN: AtomicBool = AtomicBool::new(false);
    let was_shown = SHOWN.swap(line.is_some(), Ordering::Relaxed);
    if line.is_none() && !was_shown {
        return;
    }
    let line = line.map_or(String::new(), |line| format!("{PREFIX}{}", escaped(line)));
    let line = truncate(&line, line_width());
    stderr::write(format!("\r{line}\x1b[K").into_bytes());
}

/// The text, cut to a width in characters.
pub fn truncate(text: &str, width: usize) -> Cow<'_, str> {
    if text.chars().count() <= width {
        return text.into();
    }
    text.chars()
        .take(width.saturating_sub(1))
        .chain(['…'])
        .collect()
}

/// Writes a product to stdout; false when its reader has gone away (`| head`), which is no error.
pub fn print(text: &str) -> io::Result<bool> {
    let mut stdout = io::stdout().lock();
    match stdout
        .write_all(text.as_bytes())
        .and_then(|()| stdout.flush())
    {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(false),
        Err(error) => Err(error),
    }
}

/// The text with control characters, direction marks and line separators written out: what comes from
/// Redis can't drive the terminal, nor what else shows it.
pub fn escaped(text: &str) -> Cow<'_, str> {
    escape_with(text, |safe, c| write!(safe, "{}", c.escape_default()))
}

/// The same for text that is JSON already, in which such characters stand within strings only.
pub fn escaped_json(json: &str) -> Cow<'_, str> {
    escape_with(json, |safe, c| write!(safe, "\\u{:04x}", u32::from(c)))
}

fn escape_with(text: &str, escape: impl Fn(&mut String, char) -> fmt::Result) -> Cow<'_, str> {
    let drives = |c: char| {
        c.is_control()
            || matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
    };
    if !text.contains(drives) {
        return Cow::Borrowed(text);
    }
    let mut safe = String::with_capacity(text.len());
    for c in text.chars() {
        if drives(c) {
            let _ = escape(&mut safe, c);
        } else {
            safe.push(c);
        }
    }
    Cow::Owned(safe)
}

/// A duration for people, with one or two units: `350ms`, `24s`, `3m 20s`, `2h 5m`.
pub fn format_duration(duration: Duration) -> String {
    let seconds = duration.as_secs();
    let rounded = match seconds {
        0 if duration.subsec_millis() > 0 => Duration::from_millis(duration.subsec_millis().into()),
        0..3600 => Duration::from_secs(seconds),
        3600..86400 => Duration::from_secs(seconds / 60 * 60),
        _ => Duration::from_secs(seconds / 3600 * 3600),
    };
    let text = humantime::format_duration(rounded).to_string();
    text.replace("days", "d").replace("day", "d")
}

/// RFC 3339 with milliseconds; `None` for a time that no calendar has.
pub fn timestamp(ms: u64) -> Option<String> {
    let last = 253_402_300_799_000; // the end of the year 9999
    (ms <= last).then(|| {
        humantime::format_rfc3339_millis(UNIX_EPOCH + Duration::from_millis(ms)).to_string()
    })
}

/// The command, its reason in parentheses, and the link to the job.
pub fn describe_job(who: &Who) -> String {
    let mut what = escaped(&quoted(&command_line(&who.command))).into_owned();
    if let Some(reason) = &who.reason {
        let _ = write!(what, "  ({})", escaped(&quoted(reason)));
    }
    if let Some(url) = &who.url {
        let _ = write!(what, "  {}", escaped(&quoted(url)));
    }
    what.trim_start().to_owned()
}

/// How many columns a terminal at standard output has; `None` without one.
pub fn width() -> Option<usize> {
    terminal_size::terminal_size_of(io::stdout()).map(|(width, _)| width.0.into())
}

/// A table: columns as wide as they need to be, but for the last; what doesn't fit is cut off. What
/// could drive the terminal is written out.
pub fn table<R: AsRef<[String]>>(rows: &[R], width: Option<usize>) -> String {
    let mut widths = Vec::new();
    for row in rows {
        for (column, cell) in row.as_ref().iter().enumerate() {
            if column == widths.len() {
                widths.push(0);
            }
            widths[column] = escaped(cell).chars().count().max(widths[column]);
        }
    }
    let mut text = String::new();
    for row in rows {
        let mut line = String::new();
        for (cell, width) in row.as_ref().iter().zip(&widths) {
            let _ = write!(line, "{:<width$}  ", escaped(cell));
        }
        text += &truncate(line.trim_end(), width.unwrap_or(usize::MAX));
        text.push('\n');
    }
    text
}

/// A holder in a sentence: `ci-7 (deploy, pid 4121)`.
pub fn user_at_host(who: &Who) -> String {
    match (who.user.as_str(), who.host.as_str()) {
        ("", host) => format!("{} (pid {})", quoted(host), who.pid),
        (user, host) => format!("{}@{} (pid {})", quoted(user), quoted(host), who.pid),
    }
}

/// A holder in a sentence; one that isn't known is another client.
pub fn holder(holder: Option<&Holder>) -> String {
    holder.map_or("another client".into(), |holder| user_at_host(&holder.who))
}

/// The rest of a lease: `for 24s more`.
pub fn lease_left(left: Option<Duration>) -> String {
    left.map_or(
        "without an expiry (`redlock run --repair-ttl` gives it one)".into(),
        |left| format!("for {} more", format_duration(left)),
    )
}

/// Somebody and the reason: `ann@desk (pid 7): release night`.
pub fn user_at_host_with_reason(who: &Who) -> String {
    match &who.reason {
        Some(reason) => format!("{}: {}", user_at_host(who), quoted(reason)),
        None => user_at_host(who),
    }
}

/// Why, and where to read on: ` (release-1.2, https://ci/7)`.
fn why(who: &Who) -> String {
    let parts: Vec<_> = [&who.reason, &who.url]
        .into_iter()
        .flatten()
        .map(|text| quoted(text))
        .collect();
    match parts.as_slice() {
        [] => String::new(),
        parts => format!(" ({})", parts.join(", ")),
    }
}

/// `lock "deploy" is held by ci@ci-7 (pid 4121), running for 1m 12s: ./deploy.sh (release-1.2)`; of a
/// holder that no process renews for, when its lease ends.
pub fn busy_line(name: &Name, busy: &Busy) -> String {
    if let Some(Frozen { until_ms, who, .. }) = &busy.frozen {
        let left = Duration::from_millis(until_ms.saturating_sub(busy.now_ms));
        let (by, left) = (user_at_host_with_reason(who), format_duration(left));
        return format!("lock \"{name}\" is frozen for {left} more by {by}");
    }
    let whom = holders(busy);
    match &busy.holder {
        _ if busy.holders == 0 => format!("lock \"{name}\" is being handed on{}", ahead(busy)),
        Some(Holder { kept: true, .. }) => {
            let left = format_duration(busy.left.unwrap_or_default());
            format!(
                "lock \"{name}\" is kept for {left} more after {whom} has ended (--hold-at-least)"
            )
        }
        Some(Holder { since_ms, who, .. }) if who.instance.is_some() => {
            let running = Duration::from_millis(busy.now_ms.saturating_sub(*since_ms));
            let command = escaped(&quoted(&command_line(&who.command))).into_owned();
            let (running, why) = (format_duration(running), escaped(&why(who)).into_owned());
            format!("lock \"{name}\" is held by {whom}, running for {running}: {command}{why}")
        }
        Some(Holder { who, .. }) => {
            let (why, ends) = (escaped(&why(who)).into_owned(), expiry(busy.left));
            format!("lock \"{name}\" is held by {whom}{why}; not renewed, {ends}")
        }
        None => format!("lock \"{name}\" is held by {whom}; {}", expiry(busy.left)),
    }
}

/// When a lease ends that is not known to be renewed: `expires in 28s`.
fn expiry(left: Option<Duration>) -> String {
    left.map_or(
        "it has no expiry (`redlock run --repair-ttl` gives it one)".into(),
        |left| format!("expires in {}", format_duration(left)),
    )
}

/// `waiting for "deploy", held by ci@ci-7 (pid 4121) for 3m 20s: ./deploy.sh (release-1.2); 2 ahead`.
/// What is known is `old`. On a terminal what doesn't fit is taken off the command.
pub fn waiting_line(name: &Name, busy: &Busy, old: Duration) -> String {
    let start = format!("waiting for \"{name}\"");
    let end = ahead(busy);
    let (whom, what) = match (&busy.frozen, &busy.holder) {
        (Some(frozen), _) => {
            let still = match busy.holders {
                0 => String::new(),
                _ => format!(", still held by {}", holders(busy)),
            };
            let reason = escaped(&user_at_host_with_reason(&frozen.who)).into_owned();
            (format!("{still}, frozen by "), reason)
        }
        _ if busy.holders == 0 => (", which is being handed on".into(), String::new()),
        (None, None) => {
            let left = busy.left.map_or(
                " without an expiry (--repair-ttl gives it one)".into(),
                |left| format!(", {} left", format_duration(left.saturating_sub(old))),
            );
            (format!(", held by {}{left}", holders(busy)), String::new())
        }
        (None, Some(Holder { kept: true, .. })) => {
            let left = busy.left.unwrap_or_default().saturating_sub(old);
            let whom = holders(busy);
            (
                format!(
                    ", kept for {} more after {whom} has ended",
                    format_duration(left)
                ),
                String::new(),
            )
        }
        (None, Some(Holder { since_ms, who, .. })) => {
            let held = Duration::from_millis(busy.now_ms.saturating_sub(*since_ms)) + old;
            let held = format_duration(Duration::from_secs(held.as_secs()));
            (
                format!(", held by {} for {held}: ", holders(busy)),
                escaped(&(quoted(&command_line(&who.command)).into_owned() + &why(who)))
                    .into_owned(),
            )
        }
    };
    let rest = [PREFIX, &start, &whom, &end].map(|part| part.chars().count());
    let room = line_width().saturating_sub(rest.iter().sum());
    start + &whom + &truncate(&what, room) + &end
}

/// The most that is said of somebody's COMMAND, reason or name at once, in characters.
const QUOTED: usize = 300;

/// As much of somebody's text as a message has room for.
fn quoted(text: &str) -> Cow<'_, str> {
    truncate(text, QUOTED)
}

/// How much fits in a line of the terminal; without one, anything.
fn line_width() -> usize {
    if !has_terminal() {
        return usize::MAX;
    }
    let width = terminal_size::terminal_size_of(io::stderr()).map(|(width, _)| width.0.into());
    // One less, so that no terminal breaks the line.
    width.unwrap_or(80_usize).saturating_sub(1)
}

fn ahead(busy: &Busy) -> String {
    match busy.ahead {
        0 => String::new(),
        ahead => format!("; {ahead} ahead"),
    }
}

/// The holder that is known, and how many there are beside it.
fn holders(busy: &Busy) -> String {
    holder_and_others(busy.holder.as_ref(), busy.holders)
}

/// A holder, and how many there are beside it.
pub fn holder_and_others(known: Option<&Holder>, holders: u32) -> String {
    let one = holder(known);
    match holders {
        0 | 1 => one,
        2 => format!("{one} and another"),
        many => format!("{one} and {} others", many - 1),
    }
}

/// A command line for people: quoted where a shell would need it.
pub fn command_line(command: &[String]) -> String {
    let plain = |c: char| c.is_alphanumeric() || "-_./:=,+@%^".contains(c);
    let words = command.iter().map(|word| {
        if !word.is_empty() && word.chars().all(plain) {
            word.clone()
        } else {
            format!("'{}'", word.replace('\'', r"'\''"))
        }
    });
    words.collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_from_redis_cannot_drive_the_terminal() {
        assert_eq!(
            escaped("a\u{1b}[2Jb\nc\u{202e}"),
            "a\\u{1b}[2Jb\\nc\\u{202e}"
        );
        assert_eq!(escaped("\u{9b}31m"), "\\u{9b}31m");
        assert_eq!(escaped("\u{61c}a\u{2028}"), "\\u{61c}a\\u{2028}");
        assert_eq!(
            table(&[["\u{202e}a".into(), "b".into()]], None),
            "\\u{202e}a  b\n"
        );
        assert!(matches!(escaped("plain é"), Cow::Borrowed(_)));
    }

    #[test]
    fn what_is_quoted_has_an_end() {
        let long = || "x".repeat(2000);
        let who = Who {
            host: long(),
            user: long(),
            command: vec![long()],
            reason: Some(long()),
            url: Some(long()),
            ..Who::default()
        };
        let busy = |frozen| Busy {
            now_ms: 0,
            ahead: 0,
            ticket: None,
            polls: false,
            left: None,
            holders: 1,
            id: String::new(),
            holder: Some(Holder {
                fence: 1,
                since_ms: 0,
                limit: crate::lock::Limit::EXCLUSIVE,
                slot: 1,
                waited: Duration::ZERO,
                kept: false,
                who: who.clone(),
            }),
            frozen,
            repaired: false,
            granted: false,
        };
        let frozen = Frozen {
            until_ms: 0,
            since_ms: 0,
            who: who.clone(),
        };
        let name = "a".parse().unwrap();
        for busy in [busy(None), busy(Some(frozen))] {
            for said in [
                busy_line(&name, &busy),
                waiting_line(&name, &busy, Duration::ZERO),
            ] {
                assert!(said.contains("x…") && said.len() < 2000, "{said}");
            }
        }
    }

    #[test]
    fn durations_are_short() {
        let ms = Duration::from_millis;
        assert_eq!(format_duration(ms(350)), "350ms");
        assert_eq!(format_duration(ms(24_400)), "24s");
        assert_eq!(format_duration(ms(200_900)), "3m 20s");
        assert_eq!(format_duration(ms(7_509_000)), "2h 5m");
        assert_eq!(format_duration(ms(0)), "0s");
    }

    #[test]
    fn a_command_line_is_quoted_where_a_shell_needs_it() {
        let words = ["sh", "-c", "echo it's", ""].map(str::to_owned);
        assert_eq!(command_line(&words), r"sh -c 'echo it'\''s' ''");
    }
}
