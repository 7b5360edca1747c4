//! Sentences about a lock, its holders and its waiters.

use std::borrow::Cow;
use std::sync::OnceLock;
use std::time::Duration;

use super::text::{columns, ordinal, whole_seconds};
use super::{PREFIX, command_line, escaped, format_duration, line_width, truncate};
use crate::duration::milliseconds;
pub use crate::protocol::THIS_HOST_ONLY;
use crate::protocol::{Busy, ErrorKind, Frozen, Hold, Holder, Kept, Locks, Loss, Name, Who};

/// Returns the command, its reason and a note in parentheses, and the link to the job if `has_link`.
pub fn describe_job(who: &Who, note: &str, has_link: bool) -> String {
    let reason = who.reason.as_deref().unwrap_or_default();
    let [note, reason] = [note, reason].map(|note| enclosed("(", &safe(note), ")"));
    let link = who.url.as_deref().filter(|_| has_link).unwrap_or_default();
    let mut parts = vec![safe(&command_line(&who.command)), reason, note, safe(link)];
    parts.retain(|part| !part.is_empty());
    parts.join("  ")
}

/// Returns a client's name for a table: `ci@ci-7`, or the name that it chose.
pub fn client_name(who: &Who) -> String {
    match (&who.known_as, who.user.as_str()) {
        (Some(name), _) => name.clone(),
        (None, "") => who.host.clone(),
        (None, user) => format!("{user}@{}", who.host),
    }
}

/// Returns a client's name for a sentence: `ci@ci-7 (pid 4121)`, or the name that it chose.
pub fn client_in_words(who: &Who) -> String {
    let name = quoted(&client_name(who)).into_owned();
    match who.known_as {
        Some(_) => name,
        None => format!("{name} (pid {})", who.pid),
    }
}

/// Returns a user and the reason: `ann@desk (pid 7): release night`.
pub fn client_and_reason(who: &Who) -> String {
    client_in_words(who) + &reason_of(who)
}

/// Returns the reason for an action, to append to its message: `: release night`.
pub fn reason_of(who: &Who) -> String {
    let reason = who.reason.as_ref();
    reason.map_or(String::new(), |reason| format!(": {}", quoted(reason)))
}

/// Returns a holder for a sentence, and the number of other holders. An unknown holder is "another client".
pub fn holder_and_others(holder: Option<&Holder>, holders: u32) -> String {
    let one = holder.map_or("another client".into(), |it| client_in_words(&it.who));
    match holders {
        0 | 1 => one,
        2 => format!("{one} and another"),
        many => format!("{one} and {} others", many - 1),
    }
}

/// Longest quotation of another client's COMMAND, reason or name, in columns.
const QUOTED: usize = 300;

/// Cuts another client's text to the length of a quotation.
pub fn quoted(text: &str) -> Cow<'_, str> {
    truncate(text, QUOTED)
}

/// Like [`quoted`], also safe for a terminal.
fn safe(text: &str) -> String {
    escaped(&quoted(text)).into_owned()
}

/// Returns a text between two others, or nothing if it is empty.
fn enclosed(before: &str, text: &str, after: &str) -> String {
    if text.is_empty() {
        return String::new();
    }
    format!("{before}{text}{after}")
}

/// Returns a client's reason and link: ` (release-1.2, https://ci/7)`.
fn why(who: &Who) -> String {
    let parts = [&who.reason, &who.url].into_iter().flatten();
    let parts: Vec<_> = parts.map(|text| quoted(text)).collect();
    enclosed(" (", &parts.join(", "), ")")
}

/// Returns a note that a holder shows no sign of life, if its lease should have been renewed by now.
pub fn not_renewed(hold: &Hold) -> Option<String> {
    hold.overdue()?;
    let ago = whole_seconds(hold.renewed_ago()?);
    Some(format!("its lease has not been renewed for {ago}"))
}

/// Returns the message for a token that doesn't hold a lock, with the reason if that is known. The token may never have held
/// the lock.
pub fn not_held(name: &Name, locks: &Locks, loss: &Loss) -> String {
    let now = match (&loss.forced_by, &loss.holder) {
        (Some(by), _) => format!("it was forced free by {}", client_and_reason(by)),
        (None, Some(holder)) => format!("{} holds it now", client_in_words(&holder.who)),
        (None, None) => "it is free, or another client holds it".into(),
    };
    let (at, server) = (at_server(locks), after_refusal(locks));
    format!("lock \"{name}\"{at} is not held with this token; {now}{server}")
}

/// Returns the message for a lost lock.
pub fn lost(name: &Name, loss: &Loss) -> String {
    let how = match (&loss.forced_by, &loss.holder) {
        (Some(by), _) => format!("forced free by {}", client_and_reason(by)),
        (None, Some(holder)) => format!("lost, {} holds it now", client_in_words(&holder.who)),
        (None, None) => "lost: its key is gone or was overwritten".into(),
    };
    format!("lock \"{name}\" was {how}")
}

/// Returns the message for a run that a person, or another run, stops.
pub fn cancelled(name: &Name, by: &Who) -> String {
    let (who, reason) = (client_in_words(by), reason_of(by));
    if by.instance.is_none() {
        return format!("{who} asked this run to stop{reason}");
    }
    format!("stopped by {who}, who waits for lock \"{name}\"{reason}")
}

/// Returns the state of a run that someone stops: `stopping, SIGKILL in 4s (asked by root@ops-1 (pid 9) 1s ago: hung)`.
/// `now_ms` is the server's clock.
pub fn stopping(by: &Who, whom: &Who, now_ms: u64) -> String {
    let (killed, client) = (killed_in(by, whom, now_ms), client_in_words(by));
    let ago = asked_ago(by, now_ms).map_or(String::new(), whole_seconds);
    let ago = enclosed(" ", &ago, " ago");
    format!("stopping{killed} (asked by {client}{ago}{})", reason_of(by))
}

/// Returns the time until a run's command gets SIGKILL: `, SIGKILL in 4s`, or nothing if that isn't known.
pub fn killed_in(by: &Who, whom: &Who, now_ms: u64) -> String {
    match asked_ago(by, now_ms).map(|ago| whom.grace().saturating_sub(ago)) {
        None => String::new(),
        Some(Duration::ZERO) => ", SIGKILL is due".into(),
        Some(left) => format!(", SIGKILL in {}", rounded_up(left)),
    }
}

fn asked_ago(by: &Who, now_ms: u64) -> Option<Duration> {
    let ms = now_ms.saturating_sub(by.asked_at?);
    Some(Duration::from_millis(ms))
}

/// Returns `lock "deploy": superseded by ci@ci-7 (pid 4121) (release-1.3, https://ci/8)`. If this run has a lower build
/// number (`--seq`) than the other, names both, and the way to run an older build.
pub fn superseded(name: &Name, by: &Who, order: Option<u64>) -> String {
    let why = escaped(&why(by)).into_owned();
    let other = client_in_words(by);
    match (order, by.order) {
        (Some(own), Some(theirs)) if own < theirs => format!(
            "lock \"{name}\": build {own} is older than build {theirs} of {other}{why}; to run an older build (a rollback), leave out --seq, or give a number above {theirs}"
        ),
        _ => format!("lock \"{name}\": superseded by {other}{why}"),
    }
}

/// The `--url` of this process, without its password.
static TYPED_URL: OnceLock<String> = OnceLock::new();

/// Adds this `--url` to each line of [`typed`], so that the line reaches the same server.
pub fn remember_url(url: String) {
    let _ = TYPED_URL.set(url);
}

/// Returns a redlock command for a lock, for people to type. The name is quoted for a shell.
pub fn typed(words: &[&str], name: &Name) -> String {
    typed_for(words, std::slice::from_ref(name))
}

/// Like [`typed`], for several locks.
pub fn typed_for(words: &[&str], names: &[Name]) -> String {
    let url = TYPED_URL.get().into_iter().flat_map(|url| ["-u", url]);
    let words = ["redlock"].iter().chain(words).copied().chain(url);
    let words = words.chain(names.iter().map(Name::as_str));
    let words: Vec<String> = words.map(str::to_owned).collect();
    command_line(&words)
}

/// Returns `lock "deploy" at 10.0.0.5:6379 is held by ci@ci-7 (pid 4121), running for 1m12s: ./deploy.sh (release-1.2)`.
/// `at`: the server, as [`at_server`] names it.
pub fn busy_line(name: &Name, at: &str, busy: &Busy) -> String {
    let whom = keeping(busy, Duration::ZERO, ", running");
    let note = match (&busy.frozen, busy.ahead) {
        (Some(_), _) => format!("; `{}` undoes it", typed(&["thaw"], name)),
        (None, ahead @ 1..) if busy.holders == 0 => format!("; {ahead} ahead"),
        _ => String::new(),
    };
    format!("lock \"{name}\"{at} is {whom}{note}")
}

/// Returns the remaining time of a freeze: `29d left`.
pub fn left_of_freeze(frozen: &Frozen, now_ms: u64) -> String {
    let left = Duration::from_millis(frozen.until_ms.saturating_sub(now_ms));
    format!("{} left", format_duration(left))
}

/// Returns the holder of a lock and its purpose, safe for a terminal. `old` is the age of the server's answer, and `running`
/// stands before the age of a hold.
fn keeping(busy: &Busy, old: Duration, running: &str) -> String {
    let now_ms = busy.now_ms.saturating_add(milliseconds(old));
    let whom = holder_and_others(busy.holder.as_ref(), busy.holders);
    if let Some(frozen) = &busy.frozen {
        let (left, by) = (left_of_freeze(frozen, now_ms), client_name(&frozen.who));
        let by = quoted(&by);
        let holder = if busy.holders == 0 { "" } else { &whom };
        let holder = enclosed(", still held by ", holder, "");
        let reason = reason_of(&frozen.who);
        return escaped(&format!("frozen by {by}{reason} ({left}){holder}")).into_owned();
    }
    let left = busy.left.map(|left| left.saturating_sub(old));
    let left = left.map(format_duration);
    let expiry = match &left {
        Some(left) => format!("expires in {left}"),
        None => "it has no expiry (REDLOCK_REPAIR_TTL=1 gives it one)".into(),
    };
    let left = left.unwrap_or_default();
    let kept = busy.holder.as_ref().and_then(|holder| holder.kept);
    let words = match (&busy.holder, kept) {
        _ if busy.holders == 0 => "being handed over".into(),
        (None, _) => format!("held by {whom}; {expiry}"),
        (_, Some(Kept::ForGuards)) => {
            format!("kept until the guards of {whom} have ended, for at most {left}")
        }
        (_, Some(Kept::AtLeast)) => {
            format!("kept for {left} more after {whom} has ended (--hold-at-least)")
        }
        (Some(holder), None) if holder.who.instance.is_none() => {
            let purpose = purpose(&holder.who);
            format!("held by {whom}; not renewed, {expiry}{purpose}")
        }
        (Some(Holder { who, since_ms, .. }), None) => {
            let held = Duration::from_millis(now_ms.saturating_sub(*since_ms));
            let (held, purpose) = (format_duration(held), purpose(who));
            let stop = busy.stopping.as_ref();
            let stop = stop.map(|by| format!(", {}", stopping(by, who, now_ms)));
            let stop = stop.unwrap_or_default();
            format!("held by {whom}{running} for {held}{stop}{purpose}")
        }
    };
    escaped(&words).into_owned()
}

/// Returns a client's purpose for holding a lock: `: ./deploy.sh (release-1.2, https://ci/7)`.
fn purpose(who: &Who) -> String {
    let command = command_line(&who.command);
    let purpose = quoted(&command).into_owned() + &why(who);
    enclosed(": ", purpose.trim_start(), "")
}

/// Warning that no URL is set: without one, another host's runs use another server.
pub const NO_URL: &str = "on this host only: no REDLOCK_URL is set";

/// Returns the warning for locks that exclude only clients on this host, if they are such locks.
pub fn this_host_only(locks: &Locks) -> Option<&'static str> {
    if locks.are_local() {
        return Some(THIS_HOST_ONLY);
    }
    locks.have_no_url().then_some(NO_URL)
}

/// Returns the server for a sentence: ` at 10.0.0.5:6379`, or nothing for the server of this host.
pub fn at_server(locks: &Locks) -> String {
    let address = locks.remote_address().unwrap_or_default();
    enclosed(" at ", &escaped(&address), "")
}

/// Returns the end of the message that a lock is busy or free: a surprised user learns which server was asked.
pub fn after_refusal(locks: &Locks) -> String {
    enclosed("; ", this_host_only(locks).unwrap_or_default(), "")
}

/// Prospects of a waiter.
#[derive(Clone, Debug, Default)]
pub struct Outlook {
    /// Limit of the line, in columns.
    pub width: usize,
    /// The server, as [`at_server`] names it.
    pub at: String,
    /// Warning that the lock excludes only clients on this host, if that is so.
    pub this_host_only: Option<&'static str>,
    /// Usual length of a hold of the lock.
    pub usual: Option<Duration>,
    /// True if the waiter has a place in the queue, false if it only watches.
    pub queues: bool,
}

/// Returns `usually done in 2m40s, about 1m20s left`, or `over its usual 2m40s` long after the usual end.
pub fn expectation(usual: Duration, running: Duration) -> String {
    let length = format_duration(usual);
    // A quarter of tolerance: the usual length is a median, so every second hold lasts longer.
    if running > usual.saturating_add(usual / 4) {
        return format!("over its usual {length}");
    }
    let left = enclosed(", ", &about_left(usual, running), "");
    format!("usually done in {length}{left}")
}

/// Returns `about 1m20s left`, or nothing if a hold takes longer than usual.
fn about_left(usual: Duration, running: Duration) -> String {
    match usual.saturating_sub(running) {
        Duration::ZERO => String::new(),
        left => format!("about {} left", rounded_up(left)),
    }
}

/// Returns a duration, rounded up to whole seconds.
fn rounded_up(left: Duration) -> String {
    let seconds = left.as_secs() + u64::from(left.subsec_millis() > 0);
    format_duration(Duration::from_secs(seconds))
}

/// Returns `waiting for "deploy", held by ci@ci-7 (pid 4121) for 3m20s: ./deploy.sh (release-1.2); usually done in 4m, about
/// 40s left; 2nd in line`. `old` is the age of the server's answer. The holder's description is cut to the width.
pub fn waiting_line(name: &Name, busy: &Busy, old: Duration, outlook: &Outlook) -> String {
    let width = outlook.width;
    let place = match outlook.this_host_only {
        // On a narrow terminal the holder is more important.
        Some(NO_URL) if width >= WIDE => format!("{NO_URL}; "),
        Some(_) => format!("{THIS_HOST_ONLY}: "),
        None => String::new(),
    };
    let start = format!("{place}waiting for \"{name}\"");
    let turn = match busy.ahead {
        0 => String::new(),
        ahead if outlook.queues => format!("; {} in line", ordinal(ahead.saturating_add(1))),
        ahead => format!("; {ahead} ahead"),
    };
    let is_running = busy.holders > 0 && busy.frozen.is_none() && busy.stopping.is_none();
    let holder = busy.holder.as_ref();
    let holder = holder.filter(|it| is_running && it.kept.is_none());
    let (mut full, mut brief) = (turn.clone(), turn.clone());
    if let (Some(holder), Some(usual)) = (holder, outlook.usual) {
        let held = Duration::from_millis(busy.now_ms.saturating_sub(holder.since_ms)) + old;
        // Any of several holders may be the next to end.
        let running = if busy.holders == 1 { held } else { usual };
        full = format!("; {}{turn}", expectation(usual, running));
        brief = enclosed("; ", &about_left(usual, running), "") + &turn;
    }
    let width = width.saturating_sub(columns(PREFIX));
    let whom = keeping(busy, old, "");
    let line = format!("{start}{}, {whom}{full}", outlook.at);
    if columns(&line) <= width {
        return line;
    }
    for (end, least) in [(full, ROOMY), (brief, LEAST)] {
        let room = width.saturating_sub(columns(&start) + ", ".len() + columns(&end));
        if room >= least {
            return format!("{start}, {}{end}", truncate(&whom, room));
        }
    }
    start + &turn
}

/// Returns `Redis doesn't answer; still trying (24s)`. On a narrow terminal cuts everything except the time.
pub fn outage_line(kind: ErrorKind, why: &str, lasting: Duration) -> String {
    use ErrorKind::{Config, Crowded, NoPrimary, NotNow, NotReplicated, Refused, Unreachable};
    let what = match kind {
        ErrorKind::Loading => "is loading its data",
        ErrorKind::Busy => "is busy with a script",
        NoPrimary => "has no primary that answers",
        NotReplicated => "has too few replicas in sync",
        NotNow => "is not ready",
        Crowded => "has too many clients",
        ErrorKind::Moving => "is moving the keys to another node",
        ErrorKind::Replica => "is a read-only replica",
        Unreachable | Refused | Config | ErrorKind::Internal => "doesn't answer",
    };
    let lasting = whole_seconds(lasting);
    let line = match kind {
        // No other message names the replica, sentinel or address that the user must look at.
        NoPrimary | NotReplicated | NotNow | Crowded | Unreachable if !why.is_empty() => {
            why.to_owned()
        }
        _ => format!("Redis {what}"),
    };
    let line = format!("{line}; still trying ({lasting})");
    let width = line_width();
    if columns(PREFIX) + columns(&line) <= width {
        return line;
    }
    let room = width.saturating_sub(PREFIX.len() + "Redis  ()".len() + lasting.len());
    format!("Redis {} ({lasting})", truncate(what, room))
}

/// Smallest width for the whole [`NO_URL`] in a waiting line, in columns.
const WIDE: usize = 120;

/// Narrowest useful description of a holder, and narrowest one beside full prospects, in columns.
const LEAST: usize = 15;
const ROOMY: usize = 40;

#[cfg(test)]
mod tests;
