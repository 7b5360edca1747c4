//! Names that no run has ever used, where one that was is nearly the same: probably that one was meant.

use anyhow::Result;

use crate::pattern::nearest;
use crate::protocol::{Client, Inspected, Locks, Name, Record, Which};
use crate::report;

/// Of locks that were looked at, the first that was never used and whose name is nearly that of one that was; the message.
///
/// # Errors
/// That of a server that can't be reached. Where it doesn't let us list the names, none is near.
pub(super) fn mistaken<'a>(
    found: impl IntoIterator<Item = &'a Inspected>,
    client: &mut Client,
    locks: &Locks,
) -> Result<Option<String>> {
    let mut unused = found.into_iter().filter(|lock| is_unused(lock)).peekable();
    if unused.peek().is_none() {
        return Ok(None);
    }
    let known = match locks.names(client, Which::All) {
        Ok(known) => known,
        Err(error) if error.kind.is_unreachable() => return Err(error.into()),
        Err(_) => return Ok(None),
    };
    Ok(unused.find_map(|lock| {
        let name = lock.name.as_str();
        let others = known
            .iter()
            .map(Name::as_str)
            .filter(|other| *other != name);
        let meant = nearest(name, others)?;
        Some(format!(
            "lock \"{name}\" was never used; did you mean {}?",
            report::quote(meant)
        ))
    }))
}

/// Whether nothing is known of it: it is no lock that anybody has used within 60 days.
fn is_unused(lock: &Inspected) -> bool {
    lock.fence.is_none() && lock.is_idle() && lock.record == Record::default()
}
