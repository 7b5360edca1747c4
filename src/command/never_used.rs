//! Names that no run has ever used, and the names that the user probably meant.

use anyhow::Result;

use crate::pattern::{natural_cmp, nearest};
use crate::protocol::{Client, Error, Inspected, Locks, Name, Names, Record};
use crate::report;

/// Returns a message about the first lock that was never used but whose name is similar to a used one.
///
/// # Errors
/// Fails if the server can't be reached. If it forbids listing names, no name counts as similar.
pub(super) fn mistaken<'a>(
    states: impl IntoIterator<Item = &'a Inspected>,
    client: &mut Client,
    locks: &Locks,
) -> Result<Option<String>> {
    let mut unused = states.into_iter().filter(|lock| is_unused(lock)).peekable();
    if unused.peek().is_none() {
        return Ok(None);
    }
    let names = known_names(client, locks)?;
    let at = report::at_server(locks);
    Ok(unused.find_map(|lock| {
        let name = lock.name.as_str();
        let meant = report::quote(meant(name, names.iter().map(Name::as_str))?);
        let line = format!("lock \"{name}\"{at} was never used; did you mean {meant}?");
        Some(line)
    }))
}

/// Returns all names that were used.
///
/// # Errors
/// Fails if the server can't be reached. If it forbids listing names, there are none.
pub(super) fn known_names(client: &mut Client, locks: &Locks) -> Result<Vec<Name>, Error> {
    match locks.names(client, Names::All) {
        Err(error) if !error.kind.is_unreachable() => Ok(Vec::new()),
        known => known,
    }
}

/// Returns true if the server knows nothing about the lock, because nobody has used it within 60 days.
pub(super) fn is_unused(lock: &Inspected) -> bool {
    lock.fence.is_none() && lock.is_idle() && lock.record == Record::default()
}

/// Returns the names that contain this name or differ from it by a typo, in natural order.
pub(super) fn similar<'a>(name: &str, known: &'a [Name]) -> Vec<&'a str> {
    let names = known.iter().map(Name::as_str);
    let others = names.filter(|other| *other != name);
    let folded = name.to_lowercase();
    let contains = |other: &&str| name.len() > 1 && other.to_lowercase().contains(&folded);
    let containing = others.clone().filter(contains);
    let mut similar: Vec<&str> = containing.chain(meant(name, others)).collect();
    similar.sort_by(|a, b| natural_cmp(a, b));
    similar.dedup();
    similar.truncate(MOST);
    similar
}

/// Largest number of names to suggest.
const MOST: usize = 5;

/// Returns the name that the user probably meant. A name with other
/// numbers is another lock's, and a short name is similar to too many.
pub(super) fn meant<'a>(
    name: &str,
    known: impl Iterator<Item = &'a str> + Clone,
) -> Option<&'a str> {
    let without_numbers = |name: &str| name.replace(|c: char| c.is_ascii_digit(), "");
    let letters = without_numbers(name);
    let others = known.filter(|other| without_numbers(other) != letters);
    if letters.len() < SHORT {
        return None;
    }
    let folded = name.to_lowercase();
    let in_other_case = others.clone().find(|other| other.to_lowercase() == folded);
    in_other_case.or_else(|| nearest(name, others))
}

/// Number of letters below which a name is short.
const SHORT: usize = 4;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_contain_a_name_or_are_nearly_the_same_are_similar() {
        let names = "nightly-report report-10 report-2 resport deploy report".split(' ');
        let names: Vec<Name> = names.map(|name| name.parse().unwrap()).collect();
        for (name, expected) in [
            ("report", "nightly-report report-2 report-10 resport"),
            ("deploi", "deploy"),
            ("x", ""),
            ("backup", ""),
        ] {
            assert_eq!(similar(name, &names).join(" "), expected, "{name}");
        }
    }

    #[test]
    fn a_name_with_another_letter_is_a_mistake_and_one_with_another_number_is_not() {
        let names = ["deploy", "web-1", "job", "backup:nightly"];
        for (name, expected) in [
            ("deploi", Some("deploy")),
            ("depoly", Some("deploy")),
            ("DEPLOY", Some("deploy")),
            ("backup:nigthly", Some("backup:nightly")),
            ("deploy", None),
            ("deploy2", None),
            ("web-2", None),
            ("web-12", None),
            ("jab", None),
            ("release", None),
        ] {
            assert_eq!(meant(name, names.into_iter()), expected, "{name}");
        }
    }
}
