//! The locks of one user: their servers and the names of their keys, by the settings.

use std::sync::Arc;
use std::time::Duration;

use super::client::Client;
use super::lock::Lock;
use super::name::{Keys, Name};
use super::scripts::COMMANDS;
use crate::server::cluster;
use crate::server::deployment::Deployment;
use crate::server::endpoint::{Access, Part, Server};
use crate::server::error::Error;
use crate::server::nodes::Nodes;
use crate::server::redis_cli::RedisCli;
use crate::server::slot::{hash_slot, hash_tag};

/// Largest difference between the clocks of servers that take over from each other; NTP keeps them much closer.
const CLOCK_SKEW: Duration = Duration::from_millis(500);

/// The locks of one user.
#[derive(Clone, Debug)]
pub struct Locks {
    /// The servers behind the URL.
    pub deployment: Arc<Deployment>,
    /// Beginning of each key.
    pub prefix: String,
    /// Number of holds that the history keeps of each lock.
    pub(super) history: u32,
}

impl Locks {
    /// Returns the locks whose keys begin with `prefix` (`None`: the prefix that suits the URL). `history` is
    /// the number of holds to remember of each.
    ///
    /// # Errors
    /// [`super::ErrorKind::Config`] if the URL can't be used. The message never repeats the URL, which may
    /// contain a password.
    pub fn new(access: &Access, prefix: Option<&str>, history: u32) -> Result<Self, Error> {
        let deployment = Deployment::parse(access, prefix)?;
        let prefix = deployment.server().prefix.clone();
        Ok(Self {
            deployment: Arc::new(deployment),
            prefix,
            history,
        })
    }

    /// Returns the lock of this name.
    pub fn lock(&self, name: Name) -> Lock {
        Lock {
            keys: Keys::new(&self.prefix, &name),
            name,
            history: self.history,
        }
    }

    /// Returns true if the locks exclude only runs on this host.
    pub fn are_local(&self) -> bool {
        self.deployment.local_socket().is_some()
    }

    /// Returns the server that was used last, or is tried first.
    pub fn server(&self) -> Arc<Server> {
        self.deployment.server()
    }

    /// Returns true if no URL is set, so that the locks are on this host's own server.
    pub fn have_no_url(&self) -> bool {
        self.server().is_default()
    }

    /// Returns the server's address, unless it is a socket or a loopback address.
    pub fn remote_address(&self) -> Option<String> {
        let server = self.server();
        (!server.address.is_within_host()).then(|| server.to_string())
    }

    /// Returns the user of the URL; the text is `***` if the user may be the password.
    pub fn user(&self) -> Option<String> {
        self.server().shown_user().map(str::to_owned)
    }

    /// Returns the ACL rules for all commands that a job runs on this kind of server.
    pub fn acl_commands(&self) -> Vec<&'static str> {
        let is_cluster = self.server().part == Part::Node;
        let more = is_cluster.then_some(cluster::RULES).into_iter();
        [COMMANDS]
            .into_iter()
            .chain(more)
            .flat_map(|rules| rules.split(' '))
            .collect()
    }

    /// Returns the hash slot of the prefix, if the prefix has a hash tag.
    pub fn hash_slot(&self) -> Option<u16> {
        hash_tag(&self.prefix).map(|tag| hash_slot(tag.as_bytes()))
    }

    /// Returns the command lines of redis-cli for each witness.
    pub fn witness_clis(&self) -> Vec<RedisCli> {
        let sentinels = self.deployment.sentinels().into_iter();
        let nodes = sentinels.flat_map(|sentinels| &sentinels.nodes);
        nodes.map(|it| it.redis_cli()).collect()
    }

    /// Returns the replicas of a node that are up, by its reply to `CLUSTER NODES`.
    pub fn listed_replicas(&self, nodes: &str) -> Vec<String> {
        Nodes::parse(nodes, &self.server().address).replicas
    }

    /// Returns the largest difference between the clocks that may decide when a lock expires: 0 if it is
    /// always the same clock.
    pub fn clock_skew(&self) -> Duration {
        if self.deployment.may_fail_over() {
            CLOCK_SKEW
        } else {
            Duration::ZERO
        }
    }

    /// Returns the longest time until an answer, including the wait for replicas if they must confirm.
    pub fn answer_may_take(&self) -> Duration {
        let replication = self.deployment.replication();
        let replicas = replication.map(|replication| replication.timeout);
        self.server().timeout + replicas.unwrap_or_default()
    }

    /// Returns a client that connects with its first request.
    pub fn client(&self) -> Client {
        Client::new(&self.deployment)
    }

    /// Returns a connected client.
    pub fn open(&self) -> Result<Client, Error> {
        let mut client = self.client();
        client.open()?;
        Ok(client)
    }
}
