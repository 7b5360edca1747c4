//! Selects holders of a lock, or a waiter, by an id or its beginning, for commands that change the lock.

use anyhow::Result;

use super::never_used::{is_unused, mistaken};
use crate::config::Settings;
use crate::decide::exit::Exit;
use crate::protocol::{Client, Hold, Inspected, Kept, Key, Name, Waiting};
use crate::report;
use crate::usage::refuse;

/// Result of a selection.
#[derive(Debug)]
pub(super) enum Selection<'a> {
    /// Selected holders; at least one.
    Holders(Vec<&'a Hold>),
    /// Selected waiter.
    Waiter(&'a Waiting),
    /// No holder or waiter has this id; or no id was given, and there is no holder.
    Nobody,
    /// Several holders or waiters match: a line about each.
    Unclear(Vec<String>),
}

/// Selects the holder or waiter whose id begins with `id`. Without an id, selects the only holder, or all of them.
pub(super) fn select<'a>(lock: &'a Inspected, id: Option<&str>, all: bool) -> Selection<'a> {
    let is_meant = |other: &str| other.starts_with(id.unwrap_or_default());
    let holds = lock.holds().iter().filter(|hold| is_meant(&hold.id));
    let holds: Vec<&Hold> = holds.collect();
    let waiters = lock.waiters.iter().filter(|it| is_meant(&it.id));
    let waiters: Vec<&Waiting> = waiters.filter(|_| id.is_some()).collect();
    match (holds.as_slice(), waiters.as_slice()) {
        ([], []) => Selection::Nobody,
        ([_, others @ ..], []) if all || others.is_empty() => Selection::Holders(holds),
        ([], [waiting]) => Selection::Waiter(waiting),
        _ => {
            let waits = |waiting: &&Waiting| {
                let (id, who) = (&waiting.id, report::client_in_words(&waiting.waiter.who));
                format!("{id}  {who}, waiting")
            };
            let holds = holds.iter().map(|hold| line(lock, hold));
            Selection::Unclear(holds.chain(waiters.iter().map(waits)).collect())
        }
    }
}

/// Returns a line about a holder: `299fb62cd560  ci@ci-7 (pid 4121), for 1m12s: ./deploy.sh`.
fn line(lock: &Inspected, hold: &Hold) -> String {
    let who = report::holder_and_others(hold.holder.as_ref(), 1);
    let id = &hold.id;
    let Some(holder) = &hold.holder else {
        return format!("{id}  {who}");
    };
    let lasting = report::format_duration(lock.since(holder.since_ms));
    let job = report::describe_job(&holder.who, "", true);
    format!("{id}  {who}, for {lasting}: {job}")
}

/// Inspects a lock before it is changed. Fails on a replica.
pub(super) fn look(name: &Name, settings: &Settings) -> Result<(Client, Inspected)> {
    let mut client = settings.locks.open()?;
    client.ask_role()?;
    let lock = settings.locks.inspect_one(&mut client, name)?;
    client.refuse_replica()?;
    Ok((client, lock))
}

impl Selection<'_> {
    /// Refuses a selection of nobody, or of several.
    pub(super) fn refuse(
        &self,
        lock: &Inspected,
        id: Option<&str>,
        client: &mut Client,
        settings: &Settings,
    ) -> Result<Exit> {
        let name = &lock.name;
        if let Self::Unclear(lines) = self {
            let count = lines.len();
            report::error(match id {
                Some(id) => format!(
                    "{count} ids of lock \"{name}\" begin with {id}; nothing was changed. Give more characters of one of these ids:"
                ),
                None => format!(
                    "lock \"{name}\" has {count} holders; nothing was changed. Give --all, or --id with one of these ids:"
                ),
            });
            lines.iter().for_each(report::error);
            return Ok(Exit::Usage);
        }
        if let Some(line) = mistaken([lock], client, &settings.locks)? {
            return refuse(Exit::NeverUsed, line);
        }
        let at = report::at_server(&settings.locks);
        let line = match &lock.key {
            Key::NotALock(kind) => {
                format!("\"{name}\"{at} is not a lock: its key is a {kind}; left unchanged")
            }
            Key::Held(_) => not_the_holder(name, &at),
            Key::Free if is_unused(lock) => format!("lock \"{name}\"{at} was never used"),
            Key::Free => format!("lock \"{name}\"{at} is not held"),
        };
        refuse(Exit::Lost, line + &report::after_refusal(&settings.locks))
    }
}

/// Returns the message that no holder of a lock has this id. `at` is the server.
pub(super) fn not_the_holder(name: &Name, at: &str) -> String {
    let status = report::typed(&["status"], name);
    format!(
        "lock \"{name}\"{at} has no holder with this id; nothing was changed; `{status}` shows its holders"
    )
}

/// Returns the reason why a lock is kept after its run has ended, if it is.
pub(super) fn kept(hold: &Hold) -> Option<Kept> {
    hold.holder.as_ref()?.kept
}

/// Returns true if a process supervises the hold, and will notice the loss of the lock.
pub(super) fn is_watched(hold: &Hold) -> bool {
    let holder = hold.holder.as_ref();
    holder.is_some_and(|holder| holder.kept.is_none() && holder.who.instance.is_some())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::golden::locks;

    #[test]
    fn the_only_holder_is_meant_and_one_of_several_has_to_be_named() {
        let locks = locks();
        for (name, id, all, expected) in [
            ("free", None, false, "nobody"),
            ("free", None, true, "nobody"),
            ("deploy", None, false, "holders 1"),
            ("readers", None, false, "unclear 2"),
            ("readers", None, true, "holders 2"),
            ("readers", Some("c0ffee000003"), false, "holders 1"),
            ("readers", Some("c0ffee"), false, "unclear 2"),
            // A holder and three waiters.
            ("deploy", Some(""), false, "unclear 4"),
            ("deploy", Some("beef00000001"), false, "waiter beef00000001"),
            ("deploy", Some("beef00000003"), false, "nobody"),
        ] {
            let lock = locks.iter().find(|lock| lock.name.as_str() == name);
            let selected = match select(lock.unwrap(), id, all) {
                Selection::Holders(holds) => format!("holders {}", holds.len()),
                Selection::Waiter(waiting) => format!("waiter {}", waiting.id),
                Selection::Nobody => "nobody".into(),
                Selection::Unclear(lines) => format!("unclear {}", lines.len()),
            };
            assert_eq!(selected, expected, "{name} {id:?}");
        }
    }
}
