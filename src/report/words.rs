//! Sentences about a lock, its holders and its waiters.

use std::borrow::Cow;
use std::time::Duration;

use super::text::{columns, ordinal, shorten, whole_seconds};
use super::{PREFIX, command_line, escaped, format_duration, line_width, truncate};
use crate::duration::milliseconds;
pub use crate::protocol::THIS_HOST_ONLY;
use crate::protocol::{
    Busy, ErrorKind, Frozen, Hold, Holder, Kept, Locks, Loss, Name, Renewal, Who,
};

/// Returns the command, a note and the reason in parentheses, and the link to the job.
pub fn describe_job(who: &Who, note: &str, has_link: bool) -> String {
    let command = Some(escaped(&quoted(&job(who))).into_owned());
    let notes = [Some(note), who.reason.as_deref()].into_iter().flatten();
    let notes = notes.filter(|note| !note.is_empty());
    let notes = notes.map(|note| format!("({})", escaped(&quoted(note))));
    let link = who.url.as_ref().filter(|_| has_link);
    let link = link.map(|link| escaped(&quoted(link)).into_owned());
    let parts = command.into_iter().chain(notes).chain(link);
    let parts = parts.filter(|part| !part.is_empty());
    parts.collect::<Vec<_>>().join("  ")
}

/// A holder in a sentence: `ci@ci-7 (pid 4121)`, or the name that it goes by.
pub fn client_in_words(who: &Who) -> String {
    if let Some(name) = &who.known_as {
        return quoted(name).into_owned();
    }
    match (who.user.as_str(), who.host.as_str()) {
        ("", host) => format!("{} (pid {})", quoted(host), who.pid),
        (user, host) => format!("{}@{} (pid {})", quoted(user), quoted(host), who.pid),
    }
}

/// A client in a table: `ci@ci-7`, or the name that it goes by.
pub fn client_name(who: &Who) -> String {
    let known_as = who.known_as.clone();
    known_as.unwrap_or_else(|| format!("{}@{}", who.user, who.host))
}

/// A holder in a sentence; one that isn't known is another client.
pub fn holder(holder: Option<&Holder>) -> String {
    holder.map_or("another client".into(), |holder| {
        client_in_words(&holder.who)
    })
}

/// That a holder gives no sign of life, if its lease should have been renewed by now.
pub fn not_renewed(hold: &Hold) -> Option<String> {
    match hold.renewal() {
        Renewal::Overdue(ago) => {
            let ago = whole_seconds(ago);
            Some(format!("its lease has not been renewed for {ago}"))
        }
        Renewal::Unknown | Renewal::None | Renewal::Ago(_) => None,
    }
}

/// That a token doesn't hold a lock, and what is known of why. The token may never have held it.
pub fn not_held(name: &Name, loss: &Loss) -> String {
    let now = match (&loss.forced_by, &loss.holder) {
        (Some(by), _) => format!("it was forced free by {}", client_and_reason(by)),
        (None, Some(holder)) => format!("{} holds it now", client_in_words(&holder.who)),
        (None, None) => "it is free, or another client holds it".into(),
    };
    format!("lock \"{name}\" is not held with this token; {now}")
}

/// A user and the reason: `ann@desk (pid 7): release night`.
pub fn client_and_reason(who: &Who) -> String {
    client_in_words(who) + &reason_of(who)
}

/// The reason after what was done for it: `: release night`.
pub fn reason_of(who: &Who) -> String {
    let reason = who.reason.as_ref();
    reason.map_or(String::new(), |reason| format!(": {}", quoted(reason)))
}

/// Returns the command line.
pub fn job(who: &Who) -> String {
    command_line(&who.command)
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

/// What was asked of a run, where it has been: `stopping, SIGKILL in 4s (asked by root@ops-1 (pid 9) 1s ago: hung)`. `now_ms`
/// is the server's clock.
pub fn stopping(by: &Who, whom: &Who, now_ms: u64) -> String {
    format!(
        "stopping{} ({})",
        killed_in(by, whom, now_ms),
        asked(by, now_ms)
    )
}

/// When its command gets SIGKILL: `, SIGKILL in 4s`; empty where that isn't known.
pub fn killed_in(by: &Who, whom: &Who, now_ms: u64) -> String {
    let ago = by
        .asked
        .map(|asked| Duration::from_millis(now_ms.saturating_sub(asked)));
    let left = ago.map(|ago| whom.grace().saturating_sub(ago));
    match left {
        None => String::new(),
        Some(Duration::ZERO) => ", SIGKILL is due".into(),
        Some(left) => format!(", SIGKILL in {}", rounded_up(left)),
    }
}

/// `asked by root@ops-1 (pid 9) 1s ago: hung`.
fn asked(by: &Who, now_ms: u64) -> String {
    let ago = by.asked.map_or(String::new(), |asked| {
        let ago = Duration::from_millis(now_ms.saturating_sub(asked));
        format!(" {} ago", whole_seconds(ago))
    });
    format!("asked by {}{ago}{}", client_in_words(by), reason_of(by))
}

/// `lock "deploy": superseded by ci@ci-7 (pid 4121) (release-1.3, https://ci/8)`. With a build number of this run
/// (`--seq`) that is lower than the other's, it says so, and how an older build runs all the same.
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

/// A command of ours for a lock, for people to type: a shell takes it as it stands, whatever the name is.
pub fn typed(words: &[&str], name: &Name) -> String {
    typed_for(words, std::slice::from_ref(name))
}

/// The same for several locks.
pub fn typed_for(words: &[&str], names: &[Name]) -> String {
    let words = ["redlock"].iter().chain(words).copied();
    let words = words.chain(names.iter().map(Name::as_str));
    let words: Vec<String> = words.map(str::to_owned).collect();
    command_line(&words)
}

/// `lock "deploy" is held by ci@ci-7 (pid 4121), running for 1m12s: ./deploy.sh (release-1.2)`; of a
/// holder that no process renews for, when its lease ends.
pub fn busy_line(name: &Name, busy: &Busy) -> String {
    if let Some(Frozen { until_ms, who, .. }) = &busy.frozen {
        let left = Duration::from_millis(until_ms.saturating_sub(busy.now_ms));
        let (by, left) = (client_and_reason(who), format_duration(left));
        return format!(
            "lock \"{name}\" is frozen for {left} more by {by}; `{}` ends that",
            typed(&["thaw"], name)
        );
    }
    let whom = holders(busy);
    match &busy.holder {
        _ if busy.holders == 0 => format!("lock \"{name}\" is being handed over{}", ahead(busy)),
        Some(Holder {
            kept: Some(Kept::ForGuards),
            ..
        }) => {
            let left = format_duration(busy.left.unwrap_or_default());
            format!(
                "lock \"{name}\" is kept until the guards of {whom} have ended, for at most {left}; the run itself has ended"
            )
        }
        Some(Holder { kept: Some(_), .. }) => {
            let left = format_duration(busy.left.unwrap_or_default());
            format!(
                "lock \"{name}\" is kept for {left} more after {whom} has ended (--hold-at-least)"
            )
        }
        Some(Holder { since_ms, who, .. }) if who.instance.is_some() => {
            let running = Duration::from_millis(busy.now_ms.saturating_sub(*since_ms));
            let command = escaped(&quoted(&job(who))).into_owned();
            let (running, why) = (format_duration(running), escaped(&why(who)).into_owned());
            let stopping = busy.stopping.as_ref().map_or(String::new(), |by| {
                format!("; {}", escaped(&stopping(by, who, busy.now_ms)))
            });
            format!(
                "lock \"{name}\" is held by {whom}, running for {running}: {command}{why}{stopping}"
            )
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

/// Warning that no URL is set: another host's runs without one use another server.
pub const NO_URL: &str = "on this host only: no REDLOCK_URL is set";

/// Returns the warning for locks that exclude nobody on another host, if they are such locks.
pub fn this_host_only(locks: &Locks) -> Option<&'static str> {
    if locks.are_local() {
        return Some(THIS_HOST_ONLY);
    }
    locks.have_no_url().then_some(NO_URL)
}

/// Returns the end of the message that a lock is busy: a user who didn't expect a holder learns which server has it.
pub fn after_refusal(locks: &Locks) -> String {
    if locks.have_no_url() {
        format!("; {NO_URL}")
    } else {
        String::new()
    }
}

/// What a waiter may expect.
#[derive(Clone, Copy, Debug, Default)]
pub struct Outlook {
    /// Warning that the lock excludes nobody on another host, if it doesn't.
    pub this_host_only: Option<&'static str>,
    /// How long a hold of the lock usually lasts.
    pub usual: Option<Duration>,
    /// It has a place in the queue, and doesn't only look on.
    pub queues: bool,
}

/// `usually done in 2m40s, about 1m20s left`; `over its usual 2m40s` where nothing is to be expected any more.
pub fn expectation(usual: Duration, running: Duration) -> String {
    let left = about_left(usual, running).map(|left| format!(", {left}"));
    let is_over = is_overdue(usual, running);
    let usual = format_duration(usual);
    if is_over {
        return format!("over its usual {usual}");
    }
    format!("usually done in {usual}{}", left.unwrap_or_default())
}

/// Whether a hold has lasted for so much longer than usual that the usual says nothing about its end. Every second hold
/// lasts a little longer, as the usual is a median.
pub fn is_overdue(usual: Duration, running: Duration) -> bool {
    running > usual.saturating_add(usual / 4)
}

/// `about 1m20s left`; `None` when it takes longer than usual.
fn about_left(usual: Duration, running: Duration) -> Option<String> {
    let left = usual.checked_sub(running).filter(|left| !left.is_zero())?;
    Some(format!("about {} left", rounded_up(left)))
}

/// To the second, also of a time that has milliseconds.
fn rounded_up(left: Duration) -> String {
    format_duration(Duration::from_secs(
        left.as_secs() + u64::from(left.subsec_millis() > 0),
    ))
}

/// `waiting for "deploy", held by ci@ci-7 (pid 4121) for 3m20s: ./deploy.sh (release-1.2); usually done
/// in 4m, about 40s left; 2nd in line`. What is known is `old`. On a terminal what doesn't fit is taken off
/// the command, then off the holder; of a freeze, off who froze it and who still holds the lock.
pub fn waiting_line(name: &Name, busy: &Busy, old: Duration, outlook: Outlook) -> String {
    waiting_line_within(line_width(), name, busy, old, outlook)
}

/// For how long a lock is kept whose run has ended.
fn kept_line(kept: Kept, busy: &Busy, old: Duration) -> String {
    let left = format_duration(busy.left.unwrap_or_default().saturating_sub(old));
    let whom = holders(busy);
    match kept {
        Kept::ForGuards => {
            format!(", kept until the guards of {whom} have ended, for at most {left}")
        }
        Kept::AtLeast => format!(", kept for {left} more after {whom} has ended"),
    }
}

/// Who has frozen a lock, and why; the reason alone, where there is no room for both.
fn frozen_by(frozen: &Frozen, busy: &Busy, room: usize) -> (String, String) {
    let still = match busy.holders {
        0 => String::new(),
        _ => format!(", still held by {}", holders(busy)),
    };
    let whom = format!("{still}, frozen by ");
    let by = escaped(&client_and_reason(&frozen.who)).into_owned();
    match &frozen.who.reason {
        Some(reason) if columns(&whom) + columns(&by) > room => {
            (", frozen: ".into(), escaped(&quoted(reason)).into_owned())
        }
        _ => (whom, by),
    }
}

/// The place of a waiter.
fn turn(busy: &Busy, outlook: Outlook) -> String {
    match busy.ahead {
        0 => String::new(),
        ahead if outlook.queues => format!("; {} in line", ordinal(ahead.saturating_add(1))),
        ahead => format!("; {ahead} ahead"),
    }
}

/// Width from which a waiting line has the whole of [`NO_URL`].
const WIDE: usize = 120;

/// The same in a line of this many columns.
fn waiting_line_within(
    width: usize,
    name: &Name,
    busy: &Busy,
    old: Duration,
    outlook: Outlook,
) -> String {
    let place = match outlook.this_host_only {
        // A narrow terminal has room for the holder instead.
        Some(NO_URL) if width >= WIDE => format!("{NO_URL}; "),
        Some(_) => format!("{THIS_HOST_ONLY}: "),
        None => String::new(),
    };
    let start = format!("{place}waiting for \"{name}\"");
    let turn = turn(busy, outlook);
    // What to expect, in full and shortened; the holder, shortened, and without a name.
    let (mut full, mut brief, mut short) = (String::new(), String::new(), None);
    let mut nameless = String::new();
    let (whom, what) = match (&busy.frozen, &busy.holder) {
        (Some(frozen), _) => {
            let taken = [PREFIX, &start, &turn].map(columns).iter().sum();
            frozen_by(frozen, busy, width.saturating_sub(taken))
        }
        _ if busy.holders == 0 => (", which is being handed over".into(), String::new()),
        (None, None) => {
            let left = busy.left.map_or(
                " without an expiry (--repair-ttl gives it one)".into(),
                |left| format!(", {} left", format_duration(left.saturating_sub(old))),
            );
            (format!(", held by {}{left}", holders(busy)), String::new())
        }
        (
            None,
            Some(Holder {
                kept: Some(kept), ..
            }),
        ) => (kept_line(*kept, busy, old), String::new()),
        (None, Some(Holder { since_ms, who, .. })) if let Some(by) = &busy.stopping => {
            let held = Duration::from_millis(busy.now_ms.saturating_sub(*since_ms)) + old;
            let held = whole_seconds(held);
            let now_ms = busy.now_ms.saturating_add(milliseconds(old));
            let killed = killed_in(by, who, now_ms);
            short = Some(format!(", held for {held}, stopping{killed}"));
            (
                format!(", held by {} for {held}, stopping{killed}: ", holders(busy)),
                escaped(&asked(by, now_ms)).into_owned(),
            )
        }
        (None, Some(Holder { since_ms, who, .. })) => {
            let held = Duration::from_millis(busy.now_ms.saturating_sub(*since_ms)) + old;
            if let Some(usual) = outlook.usual {
                // Of several holders any may be the next to end.
                let running = if busy.holders == 1 { held } else { usual };
                full = format!("; {}", expectation(usual, running));
                brief = match about_left(usual, running) {
                    Some(left) => format!("; {left}"),
                    None => String::new(),
                };
            }
            let held = whole_seconds(held);
            let by = escaped(&client_name(who)).into_owned();
            short = Some(format!(", held by {} for {held}", shorten(&by, 20)));
            nameless = format!(", held for {held}");
            (
                format!(", held by {} for {held}: ", holders(busy)),
                escaped(&(quoted(&job(who)).into_owned() + &why(who))).into_owned(),
            )
        }
    };
    let (full, brief) = (full + &turn, brief + &turn);
    let room = |whom: &str, end: &str| {
        let rest = [PREFIX, &start, whom, end].map(columns);
        width.checked_sub(rest.iter().sum())
    };
    let left = room(&whom, &full);
    let fits = left.is_some_and(|left| left >= columns(&what).min(LEAST));
    let short = match short {
        Some(short) if !fits => short,
        _ => return start + &whom + &truncate(&what, left.unwrap_or(0)) + &full,
    };
    let shorter = [
        (whom.trim_end_matches(": "), &full),
        (&short, &full),
        (&short, &brief),
        (&nameless, &full),
        (&nameless, &brief),
        ("", &full),
        ("", &brief),
    ];
    let fitting = shorter
        .into_iter()
        .find(|(whom, end)| room(whom, end).is_some());
    let (whom, end) = fitting.unwrap_or(("", &turn));
    start + whom + end
}

/// `Redis doesn't answer; still trying (24s)`; on a narrow terminal less, but the time.
pub fn outage_line(kind: ErrorKind, why: &str, lasting: Duration) -> String {
    let (what, short) = match kind {
        ErrorKind::Loading => ("is loading its data", "is loading"),
        ErrorKind::Busy => ("is busy with a script", "is busy"),
        ErrorKind::NoPrimary => ("has no primary that answers", "has no primary"),
        ErrorKind::NotReplicated => ("has too few replicas in sync", "lacks replicas"),
        ErrorKind::NotNow => ("is not ready", "is not ready"),
        ErrorKind::Crowded => ("has too many clients", "is crowded"),
        ErrorKind::Moving => ("is moving the keys to another node", "moves the keys"),
        ErrorKind::Replica => ("is a read-only replica", "is a replica"),
        ErrorKind::Unreachable | ErrorKind::Refused | ErrorKind::Config | ErrorKind::Internal => {
            ("doesn't answer", "doesn't answer")
        }
    };
    let lasting = whole_seconds(lasting);
    // Which of them the user has to look at, nothing else says.
    let line = match kind {
        ErrorKind::NotReplicated
        | ErrorKind::NotNow
        | ErrorKind::Crowded
        | ErrorKind::Unreachable
            if !why.is_empty() =>
        {
            format!("{why}; still trying ({lasting})")
        }
        _ => format!("Redis {what}; still trying ({lasting})"),
    };
    if PREFIX.len() + line.len() > line_width() {
        return format!("Redis {short} ({lasting})");
    }
    line
}

/// The least of a command that says anything, in columns.
const LEAST: usize = 10;

/// The most that is said of another client's COMMAND, reason or name at once, in characters.
const QUOTED: usize = 300;

/// As much of another client's text as a message has room for.
pub fn quoted(text: &str) -> Cow<'_, str> {
    truncate(text, QUOTED)
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

/// Who keeps a lock from others: who has frozen it, or holds it.
pub fn busy_with(busy: &Busy) -> String {
    match &busy.frozen {
        Some(frozen) => client_in_words(&frozen.who),
        None => holders(busy),
    }
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

/// How a lock was lost, in words.
pub fn lost(name: &Name, loss: &Loss) -> String {
    match loss {
        Loss {
            forced_by: Some(by),
            ..
        } => format!(
            "lock \"{name}\" was forced free by {}",
            client_and_reason(by)
        ),
        Loss {
            holder: Some(holder),
            ..
        } => format!(
            "lock \"{name}\" was lost, {} holds it now",
            client_in_words(&holder.who)
        ),
        Loss { .. } => format!("lock \"{name}\" was lost: its key is gone or was overwritten"),
    }
}

/// That a person, or another run, wants this one to end, in words.
pub fn cancelled(name: &Name, by: &Who) -> String {
    let (who, reason) = (client_in_words(by), reason_of(by));
    if by.instance.is_none() {
        return format!("{who} asked this run to stop{reason}");
    }
    format!("stopped by {who}, who waits for lock \"{name}\"{reason}")
}

#[cfg(test)]
mod tests {
    use super::*;

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
                limit: crate::protocol::Limit::EXCLUSIVE,
                slot: 1,
                waited: Duration::ZERO,
                kept: None,
                granted: false,
                guards: 0,
                who: who.clone(),
            }),
            frozen,
            repaired: false,
            granted: false,
            stopping: None,
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
                waiting_line(&name, &busy, Duration::ZERO, Outlook::default()),
            ] {
                assert!(said.contains("x…") && said.len() < 2000, "{said}");
            }
        }
    }

    #[test]
    fn a_narrow_terminal_shows_what_to_expect_rather_than_the_command() {
        let who = Who {
            host: "fv-az1234-567.internal.cloudapp.net".into(),
            user: "runner".into(),
            pid: 4121,
            command: vec!["./deploy.sh".into(), "--region".into(), "eu-west-1".into()],
            ..Who::default()
        };
        let busy = Busy {
            now_ms: 80_000,
            ahead: 1,
            ticket: None,
            polls: false,
            left: None,
            holders: 1,
            id: String::new(),
            holder: Some(Holder {
                fence: 1,
                since_ms: 0,
                limit: crate::protocol::Limit::EXCLUSIVE,
                slot: 1,
                waited: Duration::ZERO,
                kept: None,
                guards: 0,
                granted: false,
                who,
            }),
            frozen: None,
            repaired: false,
            granted: false,
            stopping: None,
        };
        let line = |width: usize, usual: Option<u64>| {
            let outlook = Outlook {
                this_host_only: None,
                usual: usual.map(Duration::from_secs),
                queues: true,
            };
            let name = "deploy".parse().unwrap();
            let line = waiting_line_within(width, &name, &busy, Duration::ZERO, outlook);
            assert!(columns(PREFIX) + columns(&line) <= width.max(44), "{line}");
            line
        };
        let all = "waiting for \"deploy\", held by runner@fv-az1234-567.internal.cloudapp.net (pid 4121) for \
                   1m20s: ./deploy.sh --region eu-west-1; usually done in 2m40s, about 1m20s left; 2nd in line";
        assert_eq!(line(usize::MAX, Some(160)), all);
        assert_eq!(
            line(119, Some(160)),
            "waiting for \"deploy\", held by runner@fv-az123….net for 1m20s; about 1m20s left; 2nd in line"
        );
        assert_eq!(
            line(79, Some(160)),
            "waiting for \"deploy\", held for 1m20s; about 1m20s left; 2nd in line"
        );
        assert_eq!(line(39, Some(160)), "waiting for \"deploy\"; 2nd in line");
        // It takes a little longer than usual.
        assert!(line(usize::MAX, Some(70)).ends_with("; usually done in 1m10s; 2nd in line"));
        // It takes much longer.
        assert!(line(usize::MAX, Some(60)).ends_with("; over its usual 1m; 2nd in line"));
        assert_eq!(
            line(60, Some(60)),
            "waiting for \"deploy\", held for 1m20s; 2nd in line"
        );
        assert_eq!(line(50, Some(60)), "waiting for \"deploy\"; 2nd in line");
        assert!(line(usize::MAX, None).ends_with("eu-west-1; 2nd in line"));
    }

    #[test]
    fn what_is_left_of_a_hold_is_never_estimated_once_it_is_well_over_its_usual_length() {
        let minutes = |minutes: u64| Duration::from_secs(60 * minutes);
        let said = |running| expectation(minutes(4), running);
        let second = Duration::from_secs(1);
        assert_eq!(said(minutes(1)), "usually done in 4m, about 3m left");
        assert_eq!(
            said(minutes(4).saturating_sub(second)),
            "usually done in 4m, about 1s left"
        );
        assert_eq!(said(minutes(4)), "usually done in 4m");
        assert_eq!(said(minutes(5)), "usually done in 4m");
        assert_eq!(said(minutes(5) + second), "over its usual 4m");
        assert_eq!(said(minutes(5000)), "over its usual 4m");
        assert!(is_overdue(Duration::ZERO, second) && !is_overdue(Duration::MAX, second));
    }

    /// A lock without a holder that is known.
    fn blocked() -> Busy {
        Busy {
            now_ms: 1_003_500,
            ahead: 1,
            ticket: None,
            polls: false,
            left: Some(Duration::from_secs(28)),
            holders: 0,
            id: String::new(),
            holder: None,
            frozen: None,
            repaired: false,
            granted: false,
            stopping: None,
        }
    }

    #[test]
    fn a_narrow_terminal_shows_why_a_lock_is_frozen_rather_than_by_whom() {
        let busy = Busy {
            frozen: Some(Frozen {
                until_ms: 2_000_000,
                since_ms: 1_000_000,
                who: Who {
                    host: "ops-1".into(),
                    user: "root".into(),
                    pid: 4121,
                    reason: Some("switching to green".into()),
                    ..Who::default()
                },
            }),
            ..blocked()
        };
        let name = "deploy".parse().unwrap();
        let outlook = Outlook {
            this_host_only: None,
            usual: None,
            queues: true,
        };
        let line =
            |width| waiting_line_within(width, &name, &busy, Duration::from_secs(1), outlook);
        let all = "waiting for \"deploy\", frozen by root@ops-1 (pid 4121): switching to green; 2nd in line";
        assert_eq!(line(columns(PREFIX) + columns(all)), all);
        assert_eq!(
            line(79),
            "waiting for \"deploy\", frozen: switching to green; 2nd in line"
        );
    }
}
