//! Names that no run has ever used, where one that was is nearly the same: probably that one was meant.

use anyhow::Result;

use crate::decide::exit::Exit;
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
        let meant = meant(name, known.iter().map(Name::as_str))?;
        Some(format!(
            "lock \"{name}\" was never used; did you mean {}?",
            report::quote(meant)
        ))
    }))
}

/// The same, and says so; the exit status.
///
/// # Errors
/// As [`mistaken`].
pub(super) fn refuse_mistaken<'a>(
    found: impl IntoIterator<Item = &'a Inspected>,
    client: &mut Client,
    locks: &Locks,
) -> Result<Option<Exit>> {
    let line = mistaken(found, client, locks)?;
    Ok(line.map(|line| {
        report::error(line);
        Exit::NeverUsed
    }))
}

/// Whether nothing is known of it: it is no lock that anybody has used within 60 days.
fn is_unused(lock: &Inspected) -> bool {
    lock.fence.is_none() && lock.is_idle() && lock.record == Record::default()
}

/// Of these names the one that was probably meant. One that differs in its numbers alone is another lock's, and of a short
/// name any other may be.
pub(super) fn meant<'a>(name: &str, known: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let without_numbers = |name: &str| name.replace(|c: char| c.is_ascii_digit(), "");
    let letters = without_numbers(name);
    let others = known.filter(|other| without_numbers(other) != letters);
    (letters.len() >= SHORT).then(|| nearest(name, others))?
}

/// Names with fewer letters are short.
const SHORT: usize = 4;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_with_another_letter_is_a_mistake_and_one_with_another_number_is_not() {
        let known = ["deploy", "web-1", "job", "backup:nightly"];
        for (name, expected) in [
            ("deploi", Some("deploy")),
            ("depoly", Some("deploy")),
            ("backup:nigthly", Some("backup:nightly")),
            ("deploy", None),
            ("deploy2", None),
            ("web-2", None),
            ("web-12", None),
            ("jab", None),
            ("release", None),
        ] {
            assert_eq!(meant(name, known.into_iter()), expected, "{name}");
        }
    }
}
