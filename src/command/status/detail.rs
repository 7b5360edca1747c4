//! A lock on one screen: who has it, who waits, what happened recently, and the lines to type. Pure.

use std::time::Duration;

use super::super::history::{Past, calendar::Calendar};
use super::super::never_used::{is_unused, similar};
use super::table::{GRANTED, NOT_CONFIRMED, overdue};
use crate::protocol::{Hold, Holder, Inspected, Kept, Key, Name, Who};
use crate::report::{
    Line, Style, client_in_words, columns, command_line, describe_job_with, escaped, expectation,
    format_duration, left_of_freeze, padded, quote, reason_of, stopping, truncate, typed, wrapped,
};

/// Lines of a terminal, without the one of the prompt.
const SCREEN: usize = 23;

/// Most holders, and most waiters, that have a line.
const SHOWN: usize = 5;

/// Columns of the names of fields.
const KEYS: usize = 15;

/// Spaces before a line without such a name, and before the rest of a line that is broken.
const INDENT: &str = "  ";
const DEEPER: &str = "    ";

/// Room for a value on the narrowest terminal.
const NARROWEST: usize = 16;

/// Returns a screen for each lock. `known`: all names, to find similar ones; `at`: the server; `width`: that of the
/// terminal, if there is one.
pub fn lines(
    locks: &[Inspected],
    pasts: &[Past],
    (known, at): (&[Name], &str),
    calendar: Calendar,
    width: Option<usize>,
) -> Vec<Line> {
    let mut lines = Vec::new();
    for (number, lock) in locks.iter().enumerate() {
        if number > 0 {
            lines.push(Line::default());
        }
        let past = pasts.iter().find(|past| past.name == lock.name);
        let events = past.map_or(Vec::new(), |past| past.lines(lock, calendar));
        let draw = |is_cut| {
            let lines = Vec::new();
            let screen = Screen {
                lock,
                calendar,
                width,
                is_cut,
                lines,
            };
            screen.draw(&events)
        };
        if is_unused(lock) {
            lines.extend(unused(&lock.name, known, at));
            continue;
        }
        // Everything is shown in full if it fits, and always in a file.
        let full = draw(false);
        let fits = width.is_none() || full.len() <= SCREEN;
        lines.extend(if fits { full } else { draw(true) });
    }
    lines
}

/// Returns the lines about a name that was never used.
fn unused(name: &Name, known: &[Name], at: &str) -> Vec<Line> {
    let title = Line::of(Style::Bold, format!("{}: ", escaped(name.as_str())));
    let similar = similar(name.as_str(), known);
    let similar = similar
        .into_iter()
        .map(|name| escaped(&quote(name)).into_owned());
    let similar: Vec<String> = similar.collect();
    let state = format!("never used{at}, or not for 60 days");
    let mut lines = vec![title.and(Style::Plain, &state)];
    if !similar.is_empty() {
        let line = format!("did you mean {}?", similar.join(" or "));
        lines.push(Line::of(Style::Plain, line));
    }
    lines
}

/// The screen of a lock.
struct Screen<'a> {
    lock: &'a Inspected,
    calendar: Calendar,
    width: Option<usize>,
    /// Each value has one line, and no line is empty.
    is_cut: bool,
    lines: Vec<Line>,
}

impl Screen<'_> {
    fn draw(mut self, events: &[String]) -> Vec<Line> {
        let lock = self.lock;
        let name = format!("{}: ", escaped(lock.name.as_str()));
        let taken = columns(&name);
        let title = Line::of(Style::Bold, name);
        self.wrap(title, taken, INDENT, Style::Plain, &state(lock));
        if let Some(frozen) = &lock.frozen {
            let since = self.calendar.minute(frozen.since_ms, lock.now_ms);
            let (by, left) = (
                client_in_words(&frozen.who),
                left_of_freeze(frozen, lock.now_ms),
            );
            let line = format!("since {since} by {by}, {left}{}", reason_of(&frozen.who));
            self.field("frozen", Style::Yellow, &line);
            if !self.is_cut {
                self.link(&frozen.who);
            }
        }
        let holds = lock.holds();
        for hold in holds.iter().take(SHOWN) {
            self.hold(hold, holds.len() == 1);
        }
        self.more(holds.len());
        self.space();
        for (position, waiting) in (1..).zip(&lock.waiters).take(SHOWN) {
            let waiter = &waiting.waiter;
            let wants = match (waiter.limit.as_slots(), waiter.limit.mode()) {
                (Some(slots), _) => format!(", wants one of {slots} slots"),
                (None, "exclusive") => String::new(),
                (None, mode) => format!(", wants it {mode}"),
            };
            let key = format!("waiting #{position}");
            self.client(&key, Style::Yellow, &waiter.who, waiter.since_ms, &wants);
        }
        self.more(lock.waiters.len());
        self.space();
        if !events.is_empty() {
            let heading = format!("recently ({}):", self.calendar.zone(lock.now_ms));
            self.lines.push(Line::of(Style::Dim, heading));
        }
        for event in events {
            self.wrap(
                Line::of(Style::Plain, INDENT),
                INDENT.len(),
                DEEPER,
                Style::Plain,
                event,
            );
        }
        if let Some(success) = lock.record.succeeded_ms {
            let ago = format_duration(lock.since(success));
            self.field("last success", Style::Plain, &format!("{ago} ago"));
        }
        self.space();
        self.commands();
        if self.lines.last().is_some_and(|line| line.columns() == 0) {
            self.lines.pop();
        }
        self.lines
    }

    /// Separates parts by an empty line, if there is room.
    fn space(&mut self) {
        if !self.is_cut && self.lines.last().is_some_and(|line| line.columns() > 0) {
            self.lines.push(Line::default());
        }
    }

    fn field(&mut self, key: &str, style: Style, value: &str) {
        let key = Line::of(Style::Dim, padded(&format!("{key}:"), KEYS));
        self.wrap(key, KEYS, &" ".repeat(KEYS), style, &escaped(value));
    }

    /// Adds a value behind a key that takes `taken` columns: broken between its words, or cut.
    fn wrap(&mut self, key: Line, taken: usize, indent: &str, style: Style, value: &str) {
        let room = |taken: usize| {
            self.width
                .map(|width| width.saturating_sub(taken).max(NARROWEST))
        };
        if self.is_cut {
            let room = room(taken).unwrap_or(usize::MAX);
            self.lines.push(key.and(style, &truncate(value, room)));
            return;
        }
        let parts = wrapped(value, room(taken.max(columns(indent))));
        let mut key = Some(key);
        for part in parts {
            let start = key.take().unwrap_or_else(|| Line::of(Style::Plain, indent));
            self.lines.push(start.and(style, part.trim_start()));
        }
    }

    /// Adds the link to a job, whole: the terminal breaks it.
    fn link(&mut self, who: &Who) {
        let link = who
            .url
            .as_ref()
            .map(|url| format!("{INDENT}{}", escaped(url)));
        self.lines
            .extend(link.map(|link| Line::of(Style::Plain, link)));
    }

    fn more(&mut self, count: usize) {
        if count > SHOWN {
            let line = format!("{INDENT}… {} more (status --json)", count - SHOWN);
            self.lines.push(Line::of(Style::Plain, line));
        }
    }

    /// Adds a line about a client that isn't the only holder.
    fn client(&mut self, key: &str, style: Style, who: &Who, since_ms: u64, note: &str) {
        let (by, lasting) = (
            client_in_words(who),
            format_duration(self.lock.since(since_ms)),
        );
        let job = describe_job_with(who, "", false);
        let job = if job.is_empty() {
            job
        } else {
            format!(": {job}")
        };
        self.field(key, style, &format!("{by} for {lasting}{note}{job}"));
    }

    fn hold(&mut self, hold: &Hold, is_only_one: bool) {
        let lock = self.lock;
        let Some(holder) = &hold.holder else {
            self.field(
                "holder",
                Style::Plain,
                &format!("another client; {}", lease(hold)),
            );
            return;
        };
        let who = &holder.who;
        let overdue = hold.overdue().map(overdue);
        let id = if is_only_one {
            String::new()
        } else {
            format!(", id {}", hold.id)
        };
        if holder.granted {
            let note = format!(", {NOT_CONFIRMED}{id}");
            self.client(
                "granted to",
                Style::Yellow,
                who,
                holder.waiting_since_ms(),
                &note,
            );
            return;
        }
        let note = note(lock, holder);
        if !is_only_one {
            let overdue = overdue.map_or(String::new(), |overdue| format!(", {overdue}"));
            let note = format!("{id}{overdue}{note}");
            self.client("holder", Style::Plain, who, holder.since_ms, &note);
            return;
        }
        let lasting = format_duration(lock.since(holder.since_ms));
        // A person on call wants the host and the process of a CI job, too.
        let place = match &who.known_as {
            Some(_) => format!(
                ", {}@{} (pid {})",
                escaped(&who.user),
                escaped(&who.host),
                who.pid
            ),
            None => String::new(),
        };
        let line = format!("{}{place} for {lasting}{note}", client_in_words(who));
        self.field("holder", Style::Plain, &line);
        match overdue {
            Some(overdue) => {
                let line = format!(
                    "{overdue}: its host may be down or cut off; {}",
                    lease(hold)
                );
                self.field("lease", Style::Red, &line);
            }
            None => self.field("lease", Style::Plain, &lease(hold)),
        }
        let reason = who.reason.as_ref();
        let reason = reason.map_or(String::new(), |reason| format!("  ({reason})"));
        let job = command_line(&who.command) + &reason;
        if !job.is_empty() {
            self.field("command", Style::Plain, job.trim_start());
        }
        self.link(who);
        if let Some(by) = &hold.stopping {
            self.field("stop", Style::Yellow, &stopping(by, who, lock.now_ms));
        }
        if let Some((guard, others)) = hold.guards.split_first() {
            let more = match others.len() {
                0 => String::new(),
                more => format!(" (and {more} more)"),
            };
            self.client("guard", Style::Plain, &guard.who, guard.since_ms, &more);
        }
    }

    /// Adds the commands that change the lock, which a shell takes as they stand.
    fn commands(&mut self) {
        let lock = self.lock;
        let id = match lock.holds() {
            [] => None,
            [hold] => Some(hold.id.as_str()),
            _ => Some("ID"),
        };
        let is_supervised = |hold: &Hold| {
            let holder = hold.holder.as_ref();
            hold.stopping.is_none()
                && holder
                    .is_some_and(|it| it.kept.is_none() && !it.granted && it.who.instance.is_some())
        };
        let mut all = Vec::new();
        if let Some(id) = id {
            if lock.holds().iter().any(is_supervised) {
                all.push(("to stop it", vec!["stop", "--id", id]));
            }
            all.push(("to free it", vec!["release", "--force", "--id", id]));
        }
        if lock.frozen.is_some() {
            all.push(("to thaw it", vec!["thaw"]));
        } else if !lock.is_idle() && !matches!(lock.key, Key::NotALock(_)) {
            all.push(("to freeze it", vec!["freeze", "--reason", "TEXT"]));
        }
        for (key, words) in all {
            let key = padded(&format!("{key}:"), KEYS);
            let line = typed(&words, &lock.name);
            self.lines
                .push(Line::of(Style::Dim, key).and(Style::Plain, &escaped(&line)));
        }
    }
}

/// Returns what is special about a hold, or what to expect.
fn note(lock: &Inspected, holder: &Holder) -> String {
    let slot = holder.limit.as_slots();
    let slot = slot.map_or(String::new(), |slots| {
        format!(", slot {} of {slots}", holder.slot)
    });
    let rest = match (holder.kept, lock.usual) {
        (Some(Kept::ForGuards), _) => "; its run is over, but its guards are still running".into(),
        (Some(Kept::AtLeast), _) => "; its run is over (--hold-at-least)".into(),
        (None, Some(usual)) => {
            format!("; {}", expectation(usual, lock.since(holder.since_ms)))
        }
        (None, None) => String::new(),
    };
    slot + &rest
}

/// Returns how much is left of a lease, and when it was renewed.
fn lease(hold: &Hold) -> String {
    let Some(left) = hold.left.map(format_duration) else {
        return "no expiry; REDLOCK_REPAIR_TTL=1 gives it one".into();
    };
    let ttl = hold.holder.as_ref().and_then(|holder| holder.who.ttl);
    let of = ttl.map(|ttl| format!(" of {}", format_duration(Duration::from_millis(ttl))));
    let of = of.unwrap_or_default();
    match hold.renewed_ago() {
        Some(_) if hold.overdue().is_some() => format!("{left} left{of}"),
        Some(ago) => format!("{left} left{of}, renewed {} ago", format_duration(ago)),
        None if hold.is_of_script() => format!("not renewed, expires in {left}"),
        None if hold.holder.is_none() => format!("expires in {left}"),
        None => format!("{left} left"),
    }
}

/// Returns the state of the lock: `held, 2 of 3 slots; 30 waiting; last fence 7`.
fn state(lock: &Inspected) -> String {
    let held = match (&lock.key, lock.limit()) {
        (Key::NotALock(kind), _) => return format!("not a lock: a {}", escaped(kind)),
        (Key::Free | Key::Held(_), None) => "free".into(),
        (_, Some(limit)) => match (limit.as_slots(), lock.holders().count()) {
            (_, 0) => format!("{GRANTED}, {NOT_CONFIRMED}"),
            (Some(slots), count) => format!("held, {count} of {slots} slots"),
            (None, 1) => format!("held, {}", limit.mode()),
            (None, count) => format!("held, {} by {count}", limit.mode()),
        },
    };
    let frozen = if lock.frozen.is_some() {
        "frozen, "
    } else {
        ""
    };
    let waiting = match lock.waiters.len() {
        0 => String::new(),
        count => format!("; {count} waiting"),
    };
    let fence = lock
        .fence
        .map_or(String::new(), |fence| format!("; last fence {fence}"));
    format!("{frozen}{held}{waiting}{fence}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fuzz::assert_safe_line;
    use crate::protocol::golden::{histories, locks};

    /// Returns the lines of a lock with this many waiters.
    fn screen(lock: &Inspected, waiters: usize, width: usize) -> Vec<String> {
        let mut lock = lock.clone();
        let first = locks().swap_remove(0).waiters.swap_remove(0);
        lock.waiters = vec![first; waiters];
        let pasts: Vec<Past> = histories().iter().map(Past::of).collect();
        let lines = lines(&[lock], &pasts, (&[], ""), Calendar::UTC, Some(width));
        lines.iter().map(|line| line.painted(false)).collect()
    }

    #[test]
    fn a_lock_is_one_screen_with_any_number_of_waiters() {
        for waiters in [0, 1, 5, 6, 30, 1000] {
            for lock in locks() {
                let lines = screen(&lock, waiters, 80);
                assert!(lines.len() <= SCREEN, "{lines:#?}");
                let more = format!("  … {} more (status --json)", waiters.saturating_sub(SHOWN));
                assert_eq!(lines.contains(&more), waiters > SHOWN, "{lines:#?}");
                for position in 1..=6 {
                    let start = format!("waiting #{position}:");
                    let is_shown = lines.iter().any(|line| line.starts_with(&start));
                    assert_eq!(is_shown, position <= SHOWN.min(waiters), "{lines:#?}");
                }
            }
        }
    }

    #[test]
    fn a_screen_fits_its_terminal_and_drives_nothing() {
        for width in 40..=200 {
            for lock in locks() {
                for line in screen(&lock, 7, width) {
                    assert_safe_line(&line);
                    // A link and a line to type are copied.
                    let is_whole = line.starts_with("to ") || line.starts_with("  https://");
                    assert!(is_whole || columns(&line) <= width, "{width}: {line}");
                }
            }
        }
    }

    #[test]
    fn where_there_is_no_room_values_are_cut_and_in_a_file_they_are_not() {
        let mut lock = locks().swap_remove(0);
        let Key::Held(holds) = &mut lock.key else {
            panic!("it is held");
        };
        let long = "x".repeat(3000);
        holds[0].holder.as_mut().unwrap().who.reason = Some(long.clone());
        let in_file = lines(&[lock.clone()], &[], (&[], ""), Calendar::UTC, None);
        let in_file = in_file.iter().map(|line| line.painted(false));
        assert!(in_file.collect::<String>().contains(&"x".repeat(299)));
        let lines = screen(&lock, 3, 80);
        assert!(lines.len() <= SCREEN, "{lines:#?}");
        assert!(lines.iter().any(|line| line.ends_with("x…")), "{lines:#?}");
    }
}
