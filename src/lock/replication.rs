//! Replicas that have to have a grant or a renewal before it counts. A primary that fails takes with it
//! what it hasn't passed on, and the replica that follows it knows nothing of that.
//!
//! `WAIT` tells how many replicas have what was written, not which; where some could not follow the
//! primary anyway (their priority is 0), `ROLE` tells how far each has come.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use redis::Value;

use super::scripts::lossy_text;

/// The replicas that have to have it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Quorum {
    /// All that could follow the primary, and at least one.
    All,
    /// This many, whichever.
    AtLeast(u32),
}

/// What has to be replicated before it counts, and how long that may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Replication {
    pub quorum: Quorum,
    pub timeout: Duration,
}

/// A replica, as a list has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Replica {
    /// `host:port`.
    pub(super) address: String,
    /// It could follow the primary.
    pub(super) can_follow: bool,
}

/// The replicas of the primary, as they were listed last.
#[derive(Debug, Default)]
pub(super) struct Replicas(Mutex<Vec<Replica>>);

impl Replicas {
    fn list(&self) -> MutexGuard<'_, Vec<Replica>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn replace(&self, replicas: Vec<Replica>) {
        *self.list() = replicas;
    }

    /// What to wait for.
    pub(super) fn goal(&self, quorum: Quorum) -> Goal {
        match quorum {
            Quorum::AtLeast(number) => Goal {
                number,
                each: Vec::new(),
                others: false,
            },
            Quorum::All => {
                let list = self.list();
                let can_follow = |replica: &&Replica| replica.can_follow;
                let each = list.iter().filter(can_follow);
                let each: Vec<String> = each.map(|replica| replica.address.clone()).collect();
                Goal {
                    number: u32::try_from(each.len()).unwrap_or(u32::MAX).max(1),
                    others: each.len() < list.len(),
                    each,
                }
            }
        }
    }
}

/// What to wait for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Goal {
    /// How many replicas.
    pub(super) number: u32,
    /// Which; empty where any will do.
    each: Vec<String>,
    /// There are others, so that their number alone says nothing.
    pub(super) others: bool,
}

impl Goal {
    /// Those of the replicas that don't have all up to `offset`, and how far they are behind; the last one
    /// first.
    pub(super) fn missing(&self, offset: u64, role: &Role) -> Vec<String> {
        let of_role = role.replicas.iter().map(|(address, _)| address);
        let addresses: Vec<&String> = if self.each.is_empty() {
            of_role.collect()
        } else {
            self.each.iter().collect()
        };
        let position = |address: &String| {
            let found = role.replicas.iter().find(|(of, _)| of == address);
            found.map(|(_, position)| *position)
        };
        let mut behind: Vec<(Option<u64>, &String)> = addresses
            .into_iter()
            .map(|address| (position(address), address))
            .filter(|(position, _)| position.is_none_or(|at| at < offset))
            .collect();
        behind.sort();
        let in_words = |(position, address): (Option<u64>, &String)| match position {
            None => format!("{address} isn't connected to it"),
            Some(at) => format!("{address} is {} bytes behind", offset - at),
        };
        behind.into_iter().map(in_words).collect()
    }

    /// Why too few replicas have it, as the end of a sentence about the server; `offset` is how far it was
    /// after what they are to have, where that is known.
    pub(super) fn in_words(
        &self,
        acknowledged: u32,
        within: Duration,
        role: Option<&Role>,
        offset: Option<u64>,
    ) -> String {
        let connected = role.map(|role| role.replicas.len());
        if connected == Some(0) {
            return "it has no replica that is connected".into();
        }
        if let Some(connected) = connected
            && self.each.is_empty()
            && u32::try_from(connected).is_ok_and(|connected| connected < self.number)
        {
            return format!(
                "{} replicas have to confirm it, and only {connected} {} connected",
                self.number,
                if connected == 1 { "is" } else { "are" },
            );
        }
        let within = humantime::format_duration(Duration::from_millis(
            u64::try_from(within.as_millis()).unwrap_or(u64::MAX),
        ));
        // More may have been written since, which those that have it don't have yet.
        let lacking = self.number.saturating_sub(acknowledged).max(1);
        let mut missing = role
            .map(|role| self.missing(offset.unwrap_or(role.offset), role))
            .unwrap_or_default();
        let acknowledged = match offset {
            None => acknowledged,
            Some(_) => self
                .number
                .saturating_sub(u32::try_from(missing.len()).unwrap_or(u32::MAX)),
        };
        missing.truncate(usize::try_from(lacking).unwrap_or(usize::MAX));
        let which = if missing.is_empty() {
            String::new()
        } else {
            format!(": {}", missing.join(", "))
        };
        let some = match acknowledged {
            0 => "none".into(),
            some => some.to_string(),
        };
        format!(
            "{} {} to confirm it, and {some} did within {within}{which}",
            self.number,
            if self.number == 1 {
                "replica has"
            } else {
                "replicas have"
            },
        )
    }
}

/// The answer of a primary to `ROLE`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Role {
    pub(super) offset: u64,
    /// Each replica that is connected, and up to where it has confirmed.
    pub(super) replicas: Vec<(String, u64)>,
}

impl Role {
    /// Reads the answer; `None` for a server that isn't a primary.
    pub(super) fn parse(answer: &Value) -> Option<Self> {
        let Value::Array(fields) = answer else {
            return None;
        };
        let [role, offset, Value::Array(replicas), ..] = fields.as_slice() else {
            return None;
        };
        if lossy_text(role) != "master" {
            return None;
        }
        let offset = match offset {
            Value::Int(offset) => u64::try_from(*offset).ok()?,
            _ => return None,
        };
        let replica = |value: &Value| {
            let Value::Array(fields) = value else {
                return None;
            };
            let [host, port, offset] = fields.as_slice() else {
                return None;
            };
            let address = address(&lossy_text(host), &lossy_text(port));
            Some((address, lossy_text(offset).parse().ok()?))
        };
        Some(Self {
            offset,
            replicas: replicas.iter().filter_map(replica).collect(),
        })
    }
}

/// An address as lists have it.
pub(super) fn address(host: &str, port: &str) -> String {
    if host.contains(':') {
        format!("[{host}]:{port}")
    } else {
        format!("{host}:{port}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn replica(address: &str, can_follow: bool) -> Replica {
        Replica {
            address: address.into(),
            can_follow,
        }
    }

    fn role(offset: u64, replicas: &[(&str, u64)]) -> Role {
        let of = |(address, at): &(&str, u64)| ((*address).to_owned(), *at);
        Role {
            offset,
            replicas: replicas.iter().map(of).collect(),
        }
    }

    #[test]
    fn all_are_those_that_could_follow_and_at_least_one() {
        let replicas = Replicas::default();
        assert_eq!(replicas.goal(Quorum::All).number, 1);
        replicas.replace(vec![replica("a:1", true), replica("b:1", true)]);
        let goal = replicas.goal(Quorum::All);
        assert_eq!((goal.number, goal.others), (2, false));
        replicas.replace(vec![replica("a:1", true), replica("b:1", false)]);
        let goal = replicas.goal(Quorum::All);
        assert_eq!((goal.number, goal.others), (1, true));
        assert_eq!(replicas.goal(Quorum::AtLeast(3)).number, 3);
    }

    #[test]
    fn another_replicas_confirmation_does_not_count_for_one_that_could_follow() {
        let replicas = Replicas::default();
        replicas.replace(vec![replica("a:1", true), replica("b:1", false)]);
        let goal = replicas.goal(Quorum::All);
        let behind = goal.missing(10, &role(10, &[("a:1", 7), ("b:1", 10)]));
        assert_eq!(behind, ["a:1 is 3 bytes behind"]);
        let gone = goal.missing(10, &role(10, &[("b:1", 10)]));
        assert_eq!(gone, ["a:1 isn't connected to it"]);
        let have_it = goal.missing(10, &role(12, &[("a:1", 10), ("b:1", 7)]));
        assert_eq!(have_it, Vec::<String>::new());
    }

    #[test]
    fn the_replica_that_lags_is_named() {
        let replicas = Replicas::default();
        replicas.replace(vec![replica("a:1", true), replica("b:1", true)]);
        let goal = replicas.goal(Quorum::All);
        let second = Duration::from_secs(1);
        assert_eq!(
            goal.in_words(1, second, Some(&role(10, &[("a:1", 9), ("b:1", 7)])), None),
            "2 replicas have to confirm it, and 1 did within 1s: b:1 is 3 bytes behind"
        );
        assert_eq!(
            goal.in_words(0, second, None, None),
            "2 replicas have to confirm it, and none did within 1s"
        );
        assert_eq!(
            goal.in_words(0, second, Some(&role(10, &[])), None),
            "it has no replica that is connected"
        );
        let any = replicas.goal(Quorum::AtLeast(3));
        assert_eq!(
            any.in_words(
                2,
                second,
                Some(&role(10, &[("a:1", 10), ("b:1", 10)])),
                None
            ),
            "3 replicas have to confirm it, and only 2 are connected"
        );
    }

    #[test]
    fn only_a_primary_has_a_role_for_us() {
        let text = |text: &str| Value::BulkString(text.as_bytes().to_vec());
        let of = |fields: &[&str]| Value::Array(fields.iter().map(|field| text(field)).collect());
        let answer = Value::Array(vec![
            text("master"),
            Value::Int(10),
            Value::Array(vec![of(&["::1", "7", "8"]), of(&["h", "7", "10"])]),
        ]);
        let parsed = Role::parse(&answer).unwrap();
        assert_eq!(parsed, role(10, &[("[::1]:7", 8), ("h:7", 10)]));
        let replica = Value::Array(vec![
            text("slave"),
            text("h"),
            Value::Int(7),
            text("connected"),
        ]);
        assert_eq!(Role::parse(&replica), None);
    }
}
