//! A lock on one screen: who has it, who waits, recent events, and commands to type. Pure.

use std::time::Duration;

use super::super::history::{RecentEvents, calendar::Calendar};
use super::super::never_used::{is_unused, similar};
use super::table::{GRANTED, NOT_CONFIRMED, overdue};
use crate::protocol::{Hold, Holder, Inspected, Kept, Key, Name, Who};
use crate::report::{
    Style, and_more, client_in_words, command_line, describe_job, escaped, expectation,
    format_duration, left_of_freeze, line_columns, quote, reason_of, stopping, truncate, typed,
    wrapped,
};

/// Lines of a terminal, without the prompt.
const SCREEN: usize = 23;

/// Largest number of holders, and of waiters, to show.
const SHOWN: usize = 5;

/// Width of the names of fields, in columns.
const KEYS: usize = 15;

/// Width of a value on the narrowest terminal, in columns.
const NARROWEST: usize = 16;

/// Returns a screen for each lock. `known` are all names, for finding similar
/// ones, and `at` is the server. `width` is that of the terminal, if there is one.
pub fn lines(
    locks: &[Inspected],
    pasts: &[RecentEvents],
    (known, at): (&[Name], &str),
    calendar: Calendar,
    width: Option<usize>,
) -> Vec<String> {
    let mut lines = Vec::new();
    for lock in locks {
        if !lines.is_empty() {
            lines.push(String::new());
        }
        if is_unused(lock) {
            lines.extend(unused(&lock.name, known, at));
            continue;
        }
        let past = pasts.iter().find(|past| past.name == lock.name);
        let events = past.map_or(Vec::new(), |past| past.lines(lock, calendar));
        let screen = Screen::of(lock, &events, calendar);
        let mut shown = screen.lines(width, false);
        // A screen is shown in full if it fits, and always in a file.
        if width.is_some() && shown.len() > SCREEN {
            shown = screen.lines(width, true);
        }
        lines.append(&mut shown);
    }
    lines
}

/// Returns the lines about a name that was never used.
fn unused(name: &Name, known: &[Name], at: &str) -> Vec<String> {
    let mut lines = vec![title(name) + &format!("never used{at}, or not for 60 days")];
    let similar = similar(name.as_str(), known).into_iter();
    let similar: Vec<_> = similar.map(quote).collect();
    if !similar.is_empty() {
        lines.push(format!("did you mean {}?", escaped(&similar.join(" or "))));
    }
    lines
}

fn title(name: &Name) -> String {
    Style::Bold.paint(&format!("{}: ", escaped(name.as_str())))
}

/// Returns the name of a field.
fn key_of(key: &str) -> String {
    Style::Dim.paint(&format!("{:KEYS$}", format!("{key}:")))
}

/// Format of an entry on a screen that is too narrow or too low.
#[derive(Clone, Copy, PartialEq)]
enum EntryFormat {
    /// The value is wrapped between words, with this indent, or cut to one line.
    Wrapped(usize),
    /// The terminal wraps the line, so that users can copy it.
    Whole,
    /// Like [`EntryFormat::Whole`], and omitted from a screen that is too low.
    Optional,
}

/// The screen of a lock: the beginnings of its lines, and their values, which are safe for a terminal.
struct Screen<'a> {
    lock: &'a Inspected,
    entries: Vec<(String, Style, String, EntryFormat)>,
}

impl<'a> Screen<'a> {
    fn of(lock: &'a Inspected, events: &[String], calendar: Calendar) -> Self {
        let mut screen = Self {
            lock,
            entries: Vec::new(),
        };
        let title = title(&lock.name);
        screen.add(title, Style::Plain, &state(lock), EntryFormat::Wrapped(2));
        if let Some(frozen) = &lock.frozen {
            let since = calendar.minute(frozen.since_ms, lock.now_ms);
            let (by, reason) = (client_in_words(&frozen.who), reason_of(&frozen.who));
            let left = left_of_freeze(frozen, lock.now_ms);
            let line = format!("since {since} by {by}, {left}{reason}");
            screen.field("frozen", Style::Yellow, &line);
            screen.link(&frozen.who, EntryFormat::Optional);
        }
        let holds = lock.holds();
        for hold in holds.iter().take(SHOWN) {
            screen.hold(hold, holds.len() == 1);
        }
        screen.end_list(holds.len());
        for (position, waiting) in (1..).zip(&lock.waiters).take(SHOWN) {
            let waiter = &waiting.waiter;
            let wants = match (waiter.limit.as_slots(), waiter.limit.mode()) {
                (Some(slots), _) => format!(", wants one of {slots} slots"),
                (None, "exclusive") => String::new(),
                (None, mode) => format!(", wants it {mode}"),
            };
            let key = format!("waiting #{position}");
            screen.client(&key, Style::Yellow, &waiter.who, waiter.since_ms, &wants);
        }
        screen.end_list(lock.waiters.len());
        if !events.is_empty() {
            let heading = format!("recently ({}):", calendar.zone(lock.now_ms));
            screen.whole(&Style::Dim.paint(&heading), EntryFormat::Whole);
        }
        for event in events {
            screen.add("  ".into(), Style::Plain, event, EntryFormat::Wrapped(4));
        }
        if let Some(success) = lock.record.succeeded_ms {
            let ago = format_duration(lock.since(success));
            screen.field("last success", Style::Plain, &format!("{ago} ago"));
        }
        screen.end_list(0);
        screen.commands();
        screen
    }

    fn add(&mut self, start: String, style: Style, value: &str, fit: EntryFormat) {
        self.entries.push((start, style, value.to_owned(), fit));
    }

    fn field(&mut self, key: &str, style: Style, value: &str) {
        let fit = EntryFormat::Wrapped(KEYS);
        self.add(key_of(key), style, &escaped(value), fit);
    }

    /// Adds a line that is neither wrapped nor cut.
    fn whole(&mut self, line: &str, fit: EntryFormat) {
        self.add(String::new(), Style::Plain, line, fit);
    }

    /// Adds the link to a job.
    fn link(&mut self, who: &Who, fit: EntryFormat) {
        if let Some(url) = &who.url {
            self.whole(&format!("  {}", escaped(url)), fit);
        }
    }

    /// Ends a list of this many clients, with an empty line if there is space.
    fn end_list(&mut self, count: usize) {
        if count > SHOWN {
            let line = format!("  … {} more (status --json)", count - SHOWN);
            self.whole(&line, EntryFormat::Whole);
        }
        self.whole("", EntryFormat::Optional);
    }

    /// Returns the lines to print. `is_cut`: each value has one line, and there are no empty lines.
    fn lines(&self, width: Option<usize>, is_cut: bool) -> Vec<String> {
        let width = width.unwrap_or(usize::MAX);
        let mut lines: Vec<String> = Vec::new();
        for (start, style, value, fit) in &self.entries {
            let taken = line_columns(start);
            match *fit {
                EntryFormat::Optional if is_cut => {}
                EntryFormat::Wrapped(_) if is_cut => {
                    let room = width.saturating_sub(taken).max(NARROWEST);
                    lines.push(start.clone() + &style.paint(&truncate(value, room)));
                }
                EntryFormat::Wrapped(indent) => {
                    let room = width.saturating_sub(taken.max(indent)).max(NARROWEST);
                    let mut start = start.clone();
                    for part in wrapped(value, Some(room)) {
                        lines.push(start + &style.paint(part.trim_start()));
                        start = " ".repeat(indent);
                    }
                }
                EntryFormat::Whole | EntryFormat::Optional => lines.push(start.clone() + value),
            }
        }
        lines.dedup_by(|line, before| line.is_empty() && before.is_empty());
        lines.pop_if(|line| line.is_empty());
        lines
    }

    /// Adds a line about a client that isn't the only holder.
    fn client(&mut self, key: &str, style: Style, who: &Who, since_ms: u64, note: &str) {
        let by = client_in_words(who);
        let lasting = format_duration(self.lock.since(since_ms));
        let job = describe_job(who, "", false);
        let colon = if job.is_empty() { "" } else { ": " };
        self.field(key, style, &format!("{by} for {lasting}{note}{colon}{job}"));
    }

    fn hold(&mut self, hold: &Hold, is_only_one: bool) {
        let Some(holder) = &hold.holder else {
            let line = format!("another client; {}", lease(hold));
            return self.field("holder", Style::Plain, &line);
        };
        if is_only_one && !holder.granted {
            return self.only_holder(hold, holder);
        }
        let id = format!(", id {}", hold.id);
        if holder.granted {
            let id = if is_only_one { "" } else { &id };
            let note = format!(", {NOT_CONFIRMED}{id}");
            let since_ms = holder.waiting_since_ms();
            self.client("granted to", Style::Yellow, &holder.who, since_ms, &note);
        } else {
            let late = hold.overdue().map(|by| format!(", {}", overdue(by)));
            let note = id + &late.unwrap_or_default() + &note(self.lock, holder);
            self.client("holder", Style::Plain, &holder.who, holder.since_ms, &note);
        }
    }

    fn only_holder(&mut self, hold: &Hold, holder: &Holder) {
        let (lock, who) = (self.lock, &holder.who);
        let mut by = client_in_words(who);
        // A person on call also wants the host and the process of a CI job.
        if who.known_as.is_some() {
            by = format!("{by}, {}@{} (pid {})", who.user, who.host, who.pid);
        }
        let lasting = format_duration(lock.since(holder.since_ms));
        let line = format!("{by} for {lasting}{}", note(lock, holder));
        self.field("holder", Style::Plain, &line);
        let style = hold.overdue().map_or(Style::Plain, |_| Style::Red);
        self.field("lease", style, &lease(hold));
        let reason = who.reason.as_ref();
        let reason = reason.map_or(String::new(), |reason| format!("  ({reason})"));
        let job = command_line(&who.command) + &reason;
        if !job.is_empty() {
            self.field("command", Style::Plain, job.trim_start());
        }
        self.link(who, EntryFormat::Whole);
        if let Some(by) = &hold.stopping {
            self.field("stop", Style::Yellow, &stopping(by, who, lock.now_ms));
        }
        if let Some((guard, others)) = hold.guards.split_first() {
            let more = and_more(others.len());
            self.client("guard", Style::Plain, &guard.who, guard.since_ms, &more);
        }
    }

    /// Adds the commands that change the lock, ready for a shell.
    fn commands(&mut self) {
        let lock = self.lock;
        let mut running = lock.holds().iter().filter(|it| it.running().is_some());
        if let [first, others @ ..] = lock.holds() {
            let id = if others.is_empty() { &first.id } else { "ID" };
            if running.any(|it| it.stopping.is_none() && !it.is_of_script()) {
                self.command("to stop it", &["stop", "--id", id]);
            }
            self.command("to free it", &["release", "--force", "--id", id]);
        }
        if lock.frozen.is_some() {
            self.command("to thaw it", &["thaw"]);
        } else if !lock.is_idle() && !matches!(lock.key, Key::NotALock(_)) {
            self.command("to freeze it", &["freeze", "--reason", "TEXT"]);
        }
    }

    fn command(&mut self, key: &str, words: &[&str]) {
        let line = typed(words, &self.lock.name);
        self.whole(&(key_of(key) + &escaped(&line)), EntryFormat::Whole);
    }
}

/// Returns a hold's slot, and the reason why it lasts or the time it usually takes.
fn note(lock: &Inspected, holder: &Holder) -> String {
    let slot = holder.limit.as_slots();
    let slot = slot.map(|slots| format!(", slot {} of {slots}", holder.slot));
    let held = lock.since(holder.since_ms);
    let rest = match (holder.kept, lock.usual) {
        (Some(Kept::ForGuards), _) => "; its run is over, but its guards are still running".into(),
        (Some(Kept::AtLeast), _) => "; its run is over (--hold-at-least)".into(),
        (None, Some(usual)) => format!("; {}", expectation(usual, held)),
        (None, None) => String::new(),
    };
    slot.unwrap_or_default() + &rest
}

/// Returns the rest of a lease, and the time since its renewal.
fn lease(hold: &Hold) -> String {
    let Some(left) = hold.left.map(format_duration) else {
        return "no expiry; REDLOCK_REPAIR_TTL=1 gives it one".into();
    };
    let ttl = hold.holder.as_ref().and_then(|holder| holder.who.ttl);
    let of = ttl.map(|ttl| format!(" of {}", format_duration(Duration::from_millis(ttl))));
    let of = of.unwrap_or_default();
    match (hold.overdue().map(overdue), hold.renewed_ago()) {
        (Some(overdue), _) => {
            format!("{overdue}: its host may be down or cut off; {left} left{of}")
        }
        (None, Some(ago)) => format!("{left} left{of}, renewed {} ago", format_duration(ago)),
        (None, None) if hold.is_of_script() => format!("not renewed, expires in {left}"),
        (None, None) if hold.holder.is_none() => format!("expires in {left}"),
        (None, None) => format!("{left} left"),
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
    let frozen = lock.frozen.as_ref().map_or("", |_| "frozen, ");
    let waiting = match lock.waiters.len() {
        0 => String::new(),
        count => format!("; {count} waiting"),
    };
    let fence = lock.fence.map(|fence| format!("; last fence {fence}"));
    format!("{frozen}{held}{waiting}{}", fence.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use std::sync::LazyLock;

    use super::*;
    use crate::fuzz::assert_safe_line;
    use crate::protocol::golden::{histories, locks};
    use crate::report::{columns, painted};

    static LOCKS: LazyLock<Vec<Inspected>> = LazyLock::new(locks);
    static PASTS: LazyLock<Vec<RecentEvents>> =
        LazyLock::new(|| histories().iter().map(RecentEvents::of).collect());

    /// Returns the lines of a lock with this many waiters.
    fn screen(lock: &Inspected, waiters: usize, width: usize) -> Vec<String> {
        let mut lock = lock.clone();
        lock.waiters = vec![LOCKS[0].waiters[0].clone(); waiters];
        let lines = lines(&[lock], &PASTS, (&[], ""), Calendar::UTC, Some(width));
        painted(&lines, false).lines().map(str::to_owned).collect()
    }

    #[test]
    fn a_lock_is_one_screen_with_any_number_of_waiters() {
        for waiters in [0, 1, 5, 6, 30, 1000] {
            for lock in &*LOCKS {
                let lines = screen(lock, waiters, 80);
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
            for lock in &*LOCKS {
                for line in screen(lock, 7, width) {
                    assert_safe_line(&line);
                    // Users copy links and commands, so those are whole.
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
        assert!(painted(&in_file, false).contains(&"x".repeat(299)));
        let lines = screen(&lock, 3, 80);
        assert!(lines.len() <= SCREEN, "{lines:#?}");
        assert!(lines.iter().any(|line| line.ends_with("x…")), "{lines:#?}");
    }
}
