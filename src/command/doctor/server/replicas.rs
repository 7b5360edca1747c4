//! Checks of a server's successors: its replicas, and the sentinels that choose among them.

use serde_json::json;

use super::super::finding::{Finding, fail, moot, ok, unknown, warn};
use super::{ExaminedServer, NO_CONNECTION};
use crate::protocol::{Error, ErrorKind, Quorum, RedisCli, Vote};

/// Longest `repl-timeout` with which a replica follows again soon after a network failure, in seconds.
const REPL_TIMEOUT: u64 = 10;

/// Fix for too few replicas.
const START: &str = "start a replica (replicaof; on a cluster, redis-cli --cluster add-node)";

impl ExaminedServer<'_> {
    /// Judges whether the sentinels agree on the primary and can replace it.
    pub(super) fn sentinels(&mut self, name: &str, votes: Vec<Result<Vote, Error>>) -> Finding {
        let all = votes.len();
        let (answers, errors): (Vec<_>, Vec<_>) = votes.into_iter().partition(Result::is_ok);
        self.votes = answers.into_iter().flatten().collect();
        // A wrong name or password explains more than silence.
        let errors = errors.iter().filter_map(|vote| vote.as_ref().err());
        let error = errors.min_by_key(|error| error.kind == ErrorKind::Unreachable);
        let Some(first) = self.votes.first() else {
            return error.map_or(unknown(NO_CONNECTION), |error| self.failure(error));
        };
        let up = first.replicas.iter();
        let up = up.filter(|it| !it.is_down && it.priority > 0);
        self.listed = up.map(|it| it.address.clone()).collect();
        let primary = &first.address;
        let message = format!("{} of {all} agree on {primary}", self.votes.len());
        let total = self.votes.iter().map(|it| it.sentinels).max();
        let most = total.unwrap_or(all) / 2 + 1;
        let is_low = |it: &&Vote| it.quorum.is_some_and(|quorum| quorum < most);
        if let Some(other) = self.votes.iter().find(|it| it.address != *primary) {
            let (one, other, another) = (&first.by, &other.by, &other.address);
            let dispute = format!("{one} says {name} is {primary}, but {other} says {another}");
            let fix = "if this lasts longer than a failover, see the sentinels' logs";
            fail(dispute, fix)
        } else if let Some(error) = error {
            let message = format!("{message}: {}", error.message);
            warn(message, error.next_step(false))
        } else if let Some(Vote { by, .. }) = self.votes.iter().find(is_low) {
            let loss = format!("{by} has a quorum below {most}: a minority may start a failover");
            let set = ["SENTINEL", "SET", name, "quorum", &most.to_string()];
            let fix = RedisCli::admin_line(&self.locks.witness_clis(), &[&set], None);
            warn(loss, fix)
        } else if let Some(Vote { by, .. }) = self.votes.iter().find(|it| it.is_tilted) {
            let loss = format!("{by} is in TILT mode, as its clock jumped: no failover begins");
            let fix = "slew that host's clock (chrony, ntpd): TILT ends 30s after the last jump";
            warn(loss, fix)
        } else {
            ok(message)
        }
    }

    pub(super) fn replicas(&self) -> Finding {
        let replicas = self.info.replicas();
        let online = replicas.iter().filter(|(_, is_online)| *is_online);
        let (online, all) = (online.count(), replicas.len());
        let needed = match self.quorum {
            Some(Quorum::All) => 1,
            Some(Quorum::AtLeast(number)) => usize::try_from(number).unwrap_or(usize::MAX),
            None => 0,
        };
        let fails_over = self.locks.deployment.may_fail_over();
        let named = self.votes.first().map_or(&[][..], |vote| &vote.replicas);
        let priorities = || named.iter().map(|it| it.priority).filter(|it| *it > 0);
        let timeout = self.info.number("repl-timeout");
        let finding = if self.quorum == Some(Quorum::All) && !fails_over {
            let need = "REDLOCK_SYNC=all needs Sentinel or Redis Cluster, which list the replicas";
            fail(need, "use their URL, or a number: REDLOCK_SYNC=1")
        } else if online < needed {
            let need = format!("{online} in sync; REDLOCK_SYNC needs {needed}: no run starts");
            fail(need, format!("{START}, or lower REDLOCK_SYNC"))
        } else if all == 0 && fails_over {
            warn("none: nothing takes over if this server dies", START)
        } else if all == 0 {
            moot("none")
        } else if online < all {
            let fix = "see that replica's log, and the network between it and the primary";
            let loss = "a failover to another one loses locks";
            warn(format!("{online} of {all} in sync: {loss}"), fix)
        } else if let Some(finding) = self.misnamed(&replicas) {
            finding
        } else if priorities().min() != priorities().max() {
            let loss = "the replica-priorities differ: a failover may prefer a replica that lags";
            warn(loss, self.config_set("replica-priority", "100"))
        } else if self.quorum == Some(Quorum::All) && timeout > REPL_TIMEOUT {
            let loss = "repl-timeout is over 10s: a replica that was cut off confirms that late";
            let fix = self.config_set("repl-timeout", &REPL_TIMEOUT.to_string());
            warn(loss, fix)
        } else {
            ok(format!("{online} in sync"))
        };
        finding.with(json!({"replicas": all}))
    }

    /// Finds a replica whose address is different for the primary than for the sentinels or the cluster.
    fn misnamed(&self, connected: &[(String, bool)]) -> Option<Finding> {
        let mut connected = connected.iter().map(|(address, _)| address);
        let is_needed = self.quorum == Some(Quorum::All);
        let is_missing = |it: &&String| is_needed && !connected.clone().any(|other| other == *it);
        let missing = self.listed.iter().find(is_missing)?;
        let named = self.votes.iter().flat_map(|vote| &vote.replicas);
        let is_named = |it: &String| named.clone().any(|other| other.address == *it);
        let other = connected.find(|it| !self.listed.contains(it) && !is_named(it))?;
        let (host, port) = missing.rsplit_once(':')?;
        let has_number = other.starts_with(|first: char| first.is_ascii_digit() || first == '[');
        let fix = if has_number || self.votes.is_empty() {
            let host = ["CONFIG", "SET", "replica-announce-ip", host];
            let port = ["CONFIG", "SET", "replica-announce-port", port];
            // The replica announces its address when it connects again.
            let again = ["CLIENT", "KILL", "TYPE", "master"];
            let at = [self.redis_cli.at(missing)];
            let note = Some("and in its redis.conf");
            RedisCli::admin_line(&at, &[&host, &port, &again], note)
        } else {
            let set = ["SENTINEL", "CONFIG", "SET", "announce-hostnames", "yes"];
            RedisCli::admin_line(&self.locks.witness_clis(), &[&set], None)
        };
        let message = format!("{other} is connected, but {missing} is listed: no run starts");
        Some(fail(message, fix))
    }
}
