//! All that is known of a lock, a line for each field: nothing is cut. Pure.

use std::time::Duration;

use super::super::history::{Past, calendar::Calendar};
use super::table::{GRANTED, NOT_CONFIRMED};
use crate::protocol::{
    Frozen, GuardEntry, Hold, Holder, Inspected, Kept, Key, Limit, Renewal, Waiting, Who,
};
use crate::report::{
    Line, Style, client_in_words, columns, command_line, escaped, expectation, format_duration,
    is_overdue, padded, stopping, typed, wrapped,
};

/// What is said of a lease that should have been renewed.
const NOT_RENEWED: &str = "not renewed";

/// How many columns the names of the fields take.
const KEYS: usize = 15;

/// Spaces before an event, and before the rest of one that is broken.
const INDENT: &str = "  ";
const DEEPER: &str = "    ";

/// The shortest line that is broken between its words.
const NARROWEST: usize = 24;

/// A block for each lock, with its last events. `width`: that of the terminal, if there is one.
pub fn lines(
    locks: &[Inspected],
    pasts: &[Past],
    calendar: Calendar,
    width: Option<usize>,
) -> Vec<Line> {
    let mut block = Block {
        lines: Vec::new(),
        width: width.map(|width| width.max(NARROWEST)),
    };
    for (number, lock) in locks.iter().enumerate() {
        if number > 0 {
            block.space();
        }
        block.lock(lock);
        let past = pasts.iter().find(|past| past.name == lock.name);
        let events = past.map_or(Vec::new(), |past| past.lines(lock, calendar));
        block.recently(&events, &calendar.zone(lock.now_ms));
        block.last_success(lock);
    }
    block.lines
}

/// The lines so far.
struct Block {
    lines: Vec<Line>,
    width: Option<usize>,
}

impl Block {
    fn space(&mut self) {
        self.lines.push(Line::default());
    }

    fn field(&mut self, key: &str, value: &str) {
        self.add(key, Style::Plain, value);
    }

    fn add(&mut self, key: &str, style: Style, value: &str) {
        let value = escaped(value);
        let room = self.width.map(|width| width - KEYS);
        for (number, part) in wrapped(&value, room).into_iter().enumerate() {
            let key = if number == 0 {
                format!("{key}:")
            } else {
                String::new()
            };
            // A link is copied whole only where it is broken by the terminal itself.
            if room.is_some_and(|room| columns(part) > room) {
                if number == 0 {
                    self.lines.push(Line::of(Style::Dim, key));
                }
                self.lines.push(Line::of(style, part));
            } else {
                self.lines
                    .push(Line::of(Style::Dim, padded(&key, KEYS)).and(style, part));
            }
        }
    }

    fn lock(&mut self, lock: &Inspected) {
        let name = lock.name.as_str();
        self.add("lock", Style::Bold, name);
        self.field("state", &state(lock));
        if let Some(fence) = lock.fence {
            self.field("last fence", &fence.to_string());
        }
        if let Some(usual) = lock.usual {
            self.field("usually takes", &format_duration(usual));
        }
        if let Some(frozen) = &lock.frozen {
            self.frozen(lock, frozen);
        }
        for hold in lock.holders() {
            self.space();
            self.hold(lock, hold);
        }
        for (hold, holder) in lock.grants() {
            self.space();
            self.grant(lock, hold, holder);
        }
        if let Key::NotALock(_) = lock.key {
            return;
        }
        let used = !matches!(lock.key, Key::Free) || !lock.waiters.is_empty();
        if used {
            self.space();
            self.waiters(lock);
        }
        if lock.frozen.is_some() {
            self.field("to thaw it", &typed(&["thaw"], &lock.name));
        } else if used {
            let freeze = typed(&["freeze", "--reason", "TEXT"], &lock.name);
            self.field("to freeze it", &freeze);
        }
    }

    /// The last events, a line for each.
    fn recently(&mut self, events: &[String], zone: &str) {
        if events.is_empty() {
            return;
        }
        self.space();
        let heading = format!("recently ({zone}):");
        self.lines.push(Line::of(Style::Dim, heading));
        let room = self.width.map(|width| width - DEEPER.len());
        for event in events {
            for (number, part) in wrapped(event, room).into_iter().enumerate() {
                let indent = if number == 0 { INDENT } else { DEEPER };
                self.lines
                    .push(Line::of(Style::Plain, indent).and(Style::Plain, part));
            }
        }
    }

    fn last_success(&mut self, lock: &Inspected) {
        if let Some(success) = lock.record.succeeded_ms {
            let ago = format_duration(Duration::from_secs(age(lock, success).as_secs()));
            self.field("last success", &format!("{ago} ago"));
        }
    }

    fn frozen(&mut self, lock: &Inspected, frozen: &Frozen) {
        let who = &frozen.who;
        let left = Duration::from_millis(frozen.until_ms.saturating_sub(lock.now_ms));
        self.add("frozen by", Style::Yellow, &client_in_words(who));
        self.field("frozen for", &format!("{} more", format_duration(left)));
        self.reason_and_link(who);
    }

    fn hold(&mut self, lock: &Inspected, hold: &Hold) {
        let id = hold.id.as_str();
        if let Some(holder) = &hold.holder {
            self.holder(lock, holder);
        } else {
            self.field("holder", "another client");
        }
        let ttl = hold.holder.as_ref().and_then(|holder| holder.who.ttl);
        let ttl = ttl.map(|ttl| format_duration(Duration::from_millis(ttl)));
        let of = ttl
            .as_ref()
            .map_or(String::new(), |ttl| format!(" of {ttl}"));
        match hold.renewal() {
            Renewal::Ago(ago) => {
                self.field("last renewed", &format!("{} ago", format_duration(ago)));
            }
            Renewal::Overdue(ago) => {
                let ago = format_duration(ago);
                let value =
                    format!("{ago} ago; {NOT_RENEWED} in time: its host may be down or cut off");
                self.add("last renewed", Style::Red, &value);
            }
            Renewal::None | Renewal::Unknown => {}
        }
        let lease = match (hold.renewal(), hold.left.map(format_duration)) {
            (_, None) => "no expiry; `redlock run --repair-ttl` gives it one".into(),
            (Renewal::None, Some(left)) => format!("{NOT_RENEWED}, expires in {left}"),
            (Renewal::Ago(_) | Renewal::Overdue(_), Some(left)) => format!("{left} left{of}"),
            (Renewal::Unknown, Some(left)) => format!("{left} left"),
        };
        self.field("lease", &lease);
        self.field("id", id);
        if let Some(holder) = &hold.holder {
            self.job(&holder.who);
            if let Some(by) = &hold.stopping {
                self.add(
                    "stop",
                    Style::Yellow,
                    &stopping(by, &holder.who, lock.now_ms),
                );
            }
        }
        for guard in &hold.guards {
            self.guard(lock, guard);
        }
        let is_watched = hold
            .holder
            .as_ref()
            .is_some_and(|holder| holder.kept.is_none() && holder.who.instance.is_some());
        if is_watched {
            let stop = typed(&["stop", "--id", id], &lock.name);
            self.field("to stop it", &stop);
        }
        let free = typed(&["release", "--force", "--id", id], &lock.name);
        self.field("to free it", &free);
    }

    /// Work elsewhere under a hold.
    fn guard(&mut self, lock: &Inspected, guard: &GuardEntry) {
        let who = &guard.who;
        let since = format_duration(age(lock, guard.since_ms));
        let text = format!(
            "{}, for {since}: {}",
            client_in_words(who),
            command_line(&who.command)
        );
        self.field("guard", &text);
    }

    /// One that isn't a holder before its grant is confirmed.
    fn grant(&mut self, lock: &Inspected, hold: &Hold, holder: &Holder) {
        let id = hold.id.as_str();
        let text = format!("{}, {NOT_CONFIRMED}", client_in_words(&holder.who));
        self.add("granted to", Style::Yellow, &text);
        let waited = format_duration(age(lock, holder.waiting_since_ms()));
        self.field("waiting for", &waited);
        if let Some(left) = hold.left.map(format_duration) {
            self.field("lease", &format!("{left} left"));
        }
        self.field("id", id);
        self.job(&holder.who);
        let free = typed(&["release", "--force", "--id", id], &lock.name);
        self.field("to free it", &free);
    }

    fn holder(&mut self, lock: &Inspected, holder: &Holder) {
        let who = &holder.who;
        if let Some(name) = &who.known_as {
            self.field("holder", name);
        }
        let user = who.known_as.as_ref().map_or("holder", |_| "user");
        self.field(user, &who.user);
        self.field("host", &who.host);
        self.field("pid", &who.pid.to_string());
        if let Some(slots) = holder.limit.as_slots() {
            let slot = format!("{} of {slots}", holder.slot);
            self.field("slot", &slot);
        }
        let running = age(lock, holder.since_ms);
        let text = format_duration(running);
        match lock.usual {
            _ if holder.kept == Some(Kept::ForGuards) => {
                self.field(
                    "acquired",
                    &format!("{text} ago; its run is over, but its guards are still running"),
                );
            }
            _ if holder.kept.is_some() => {
                self.field(
                    "acquired",
                    &format!("{text} ago; its run is over (--hold-at-least)"),
                );
            }
            Some(usual) => {
                self.field(
                    "running for",
                    &format!("{text}; {}", expectation(usual, running)),
                );
            }
            None if who.instance.is_none() => self.field("held for", &text),
            None => self.field("running for", &text),
        }
    }

    fn job(&mut self, who: &Who) {
        if !who.command.is_empty() {
            self.field("command", &command_line(&who.command));
        }
        self.reason_and_link(who);
    }

    fn reason_and_link(&mut self, who: &Who) {
        for (key, value) in [("reason", &who.reason), ("link", &who.url)] {
            if let Some(value) = value {
                self.field(key, value);
            }
        }
    }

    fn waiters(&mut self, lock: &Inspected) {
        let count = lock.waiters.len();
        let text = if count == 0 {
            "none".into()
        } else {
            count.to_string()
        };
        self.field("waiters", &text);
        for (position, waiting) in (1..).zip(&lock.waiters) {
            let Waiting { id, waiter } = waiting;
            self.space();
            let text = format!("#{position} {}", client_in_words(&waiter.who));
            self.add("waiter", Style::Yellow, &text);
            let waited = format_duration(age(lock, waiter.since_ms));
            let turn = turn(lock, position);
            self.field("waiting for", &(waited + &turn));
            let mode = match waiter.limit.as_slots() {
                Some(slots) => format!("one of {slots} slots"),
                None => waiter.limit.mode().into(),
            };
            self.field("wants", &mode);
            self.field("id", id);
            self.job(&waiter.who);
        }
        if count > 0 {
            self.space();
        }
    }
}

/// When the turn of a waiter is to be expected: where one holder follows the other, and the history
/// knows how long each takes.
fn turn(lock: &Inspected, position: u32) -> String {
    let [hold] = lock.holds() else {
        return String::new();
    };
    let until = usize::try_from(position).unwrap_or(usize::MAX);
    let mut until_then = lock.waiters.iter().take(until);
    let (Some(usual), Some(holder)) = (lock.usual, &hold.holder) else {
        return String::new();
    };
    if holder.kept.is_some()
        || lock.frozen.is_some()
        || !until_then.all(|it| it.waiter.limit == Limit::EXCLUSIVE)
    {
        return String::new();
    }
    turn_in(usual, age(lock, holder.since_ms), position)
}

/// The same of the first, second … waiter behind a holder that has been running for so long.
fn turn_in(usual: Duration, running: Duration, position: u32) -> String {
    // When that ends nobody knows.
    if is_overdue(usual, running) {
        return String::new();
    }
    let left = usual.saturating_sub(running);
    let left = left + usual.saturating_mul(position - 1);
    match left.as_secs() {
        0 => "; its turn may come any moment".into(),
        seconds => {
            let left = format_duration(Duration::from_secs(seconds));
            format!("; its turn comes in about {left}")
        }
    }
}

/// What the lock is.
fn state(lock: &Inspected) -> String {
    let held = match (&lock.key, lock.limit()) {
        (Key::NotALock(kind), _) => return format!("not a lock: a {kind}"),
        (Key::Free | Key::Held(_), None) => "free".into(),
        (_, Some(limit)) => match (limit.as_slots(), lock.holders().count()) {
            (_, 0) => format!("{GRANTED}, {NOT_CONFIRMED}"),
            (Some(slots), count) => format!("held, {count} of {slots} slots"),
            (None, 1) => format!("held, {}", limit.mode()),
            (None, count) => format!("held, {} by {count}", limit.mode()),
        },
    };
    if lock.frozen.is_some() {
        format!("frozen, {held}")
    } else {
        held
    }
}

/// How long it is since a moment of the server's clock.
fn age(lock: &Inspected, since_ms: u64) -> Duration {
    Duration::from_millis(lock.now_ms.saturating_sub(since_ms))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_broken_between_its_words_and_nothing_is_lost() {
        let text = "./deploy.sh --target production 東京 https://ci.example.com/jobs/4711 end";
        for room in 1..80 {
            let parts = wrapped(text, Some(room));
            for part in &parts {
                assert!(
                    columns(part) <= room || !part.contains(' '),
                    "{room}: {parts:?}"
                );
            }
            let joined: Vec<&str> = parts
                .iter()
                .flat_map(|part| part.split_whitespace())
                .collect();
            assert_eq!(
                joined,
                text.split_whitespace().collect::<Vec<_>>(),
                "{room}"
            );
        }
        assert_eq!(wrapped(text, None), [text]);
        assert_eq!(wrapped("", Some(9)), [""]);
    }

    #[test]
    fn no_turn_is_estimated_behind_a_holder_that_is_well_over_its_usual_length() {
        let said = |running, position| {
            let seconds = Duration::from_secs(running);
            turn_in(Duration::from_secs(240), seconds, position)
        };
        assert_eq!(said(60, 1), "; its turn comes in about 3m");
        assert_eq!(said(60, 2), "; its turn comes in about 7m");
        assert_eq!(said(250, 1), "; its turn may come any moment");
        assert_eq!(said(250, 3), "; its turn comes in about 8m");
        for position in [1, 2, 3] {
            assert_eq!(said(301, position), "");
        }
    }

    #[test]
    fn what_to_type_can_be_typed() {
        let typed = |name: &str| typed(&["thaw"], &name.parse().unwrap());
        assert_eq!(typed("deploy"), "redlock thaw deploy");
        assert_eq!(typed("a;b"), "redlock thaw 'a;b'");
    }
}
