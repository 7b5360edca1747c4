//! The servers behind one URL.
//!
//! Each connection begins here. With sentinels or a cluster, redlock lists candidates, connects to one of them, and has
//! it confirm that it has the locks. redlock remembers that server for messages and as the next candidate, and checks
//! it again with each connection.

use std::fmt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use super::cluster::Cluster;
use super::connection::Connection;
use super::endpoint::{Access, Part, Search, Server};
use super::local::Local;
use super::password::FreshPassword;
use super::replication::{Quorum, Replication};
use super::sentinel::Sentinels;
use super::slot::hash_tag;
use super::url::{Address, Place, Url};
use super::{Error, ErrorKind, left, lock};

/// The kind of servers behind a URL.
enum Kind {
    Single,
    Local(Local),
    Sentinels(Arc<Sentinels>),
    Cluster(Cluster),
}

/// The servers behind one URL.
pub struct Deployment {
    kind: Kind,
    /// The server that was used last, or is tried first.
    current: Mutex<Arc<Server>>,
    /// The replicas that must confirm a grant or a renewal, if any must.
    replication: OnceLock<Replication>,
}

/// Default prefix of all keys.
const PREFIX: &str = "redlock:";

/// Default hash tag in a cluster, which keeps all keys in one hash slot.
const TAG: &str = "redlock";

impl Deployment {
    /// Reads a URL. Uses `prefix` instead of the default prefix, if it is given.
    ///
    /// # Errors
    /// [`ErrorKind::Config`] for a URL that can't be used; the message never repeats it, as it may hold a
    /// password.
    pub fn parse(access: &Access, prefix: Option<&str>) -> Result<Self, Error> {
        let url = Url::parse(access.url);
        let url = url.map_err(|why| format!("bad Redis URL in {}: {why}", access.origin));
        let Url {
            place,
            database,
            login,
        } = url.map_err(|message| Error::new(ErrorKind::Config, message))?;
        let prefix = prefix_for(&place, prefix)?;
        let server =
            |place, login, password| Arc::new(Server::new(place, login, password, access, &prefix));
        let fresh = |path: Option<PathBuf>| path.map(|path| Arc::new(FreshPassword::new(path)));
        let (kind, first, part) = match place {
            Place::Server(address) => (Kind::Single, address, Part::Only),
            Place::Local => {
                let local = Local::new()?;
                let socket = Address::Unix(local.socket());
                (Kind::Local(local), socket, Part::Only)
            }
            Place::Sentinels {
                nodes,
                primary,
                login: theirs,
                password_file,
            } => {
                let password = fresh(password_file);
                let sentinel = |address: &Address| {
                    let place = (address.clone(), Part::Sentinel);
                    server(place, (theirs.clone(), 0), password.clone())
                };
                let (first, nodes) = (nodes[0].clone(), nodes.iter().map(sentinel).collect());
                let sentinels = Sentinels::new(nodes, primary);
                (Kind::Sentinels(sentinels), first, Part::Primary)
            }
            Place::Cluster { nodes, .. } => {
                let first = nodes[0].clone();
                let cluster = Cluster::new(nodes, &prefix);
                (Kind::Cluster(cluster), first, Part::Node)
            }
        };
        // The server of `local:` has no password: the file is meant for another server.
        let takes_none =
            access.url_first && login.password.is_some() || matches!(kind, Kind::Local(_));
        let password = access.password_file.clone().filter(|_| !takes_none);
        let current = server((first, part), (login, database), fresh(password));
        Ok(Self {
            kind,
            current: Mutex::new(current),
            replication: OnceLock::new(),
        })
    }

    /// Requires replicas to confirm each grant and each renewal from now on, for every clone of these locks.
    ///
    /// # Errors
    /// [`ErrorKind::Config`] for `all`, if nothing can list the replicas.
    pub fn replicate(&self, replication: Replication) -> Result<(), Error> {
        if replication.quorum == Quorum::All && !self.may_fail_over() {
            let message = "all needs the list of promotable replicas from Sentinel or Redis Cluster (redis-sentinel://, redis-cluster://); with the URL of one server, set a number, such as 1";
            return Err(Error::new(ErrorKind::Config, message.into()));
        }
        self.replication.get_or_init(|| replication);
        Ok(())
    }

    /// Returns the replicas that must confirm a grant or a renewal, if any must.
    pub fn replication(&self) -> Option<Replication> {
        self.replication.get().copied()
    }

    /// Returns true if all replicas that could be promoted must confirm.
    pub fn needs_all_replicas(&self) -> bool {
        let replication = self.replication();
        replication.is_some_and(|replication| replication.quorum == Quorum::All)
    }

    /// Returns true if another server may take over from the one that has the locks.
    pub fn may_fail_over(&self) -> bool {
        self.server().part != Part::Only
    }

    /// Returns the server that was used last, or is tried first.
    pub fn server(&self) -> Arc<Server> {
        Arc::clone(&lock(&self.current))
    }

    /// Connects to the server that has the locks, and authenticates, all `within` a time.
    ///
    /// # Errors
    /// [`ErrorKind::Unreachable`], [`ErrorKind::NotNow`], [`ErrorKind::Refused`] or [`ErrorKind::Config`].
    pub fn open(&self, within: Duration) -> Result<Connection, Error> {
        let search = self.search(within);
        let opened = match &self.kind {
            Kind::Single => Connection::open(&search.last, left(search.until), &[])?.0,
            Kind::Local(local) => local.open(&search)?,
            Kind::Sentinels(sentinels) => sentinels.open(&search)?,
            Kind::Cluster(cluster) => cluster.open(&search)?,
        };
        Ok(self.note(opened))
    }

    /// Like [`Self::open`], for a release. Needs no majority of the sentinels, because a release on a demoted primary can't
    /// free another client's lock.
    pub fn open_to_release(&self, within: Duration) -> Result<Connection, Error> {
        let Kind::Sentinels(sentinels) = &self.kind else {
            return self.open(within);
        };
        let opened = sentinels.open_to_release(&self.search(within))?;
        Ok(self.note(opened))
    }

    fn search(&self, within: Duration) -> Search {
        Search {
            last: self.server(),
            until: Instant::now() + within,
            needs_all: self.needs_all_replicas(),
        }
    }

    fn note(&self, mut connection: Connection) -> Connection {
        *lock(&self.current) = Arc::clone(connection.server());
        connection.confirming.replication = self.replication();
        connection
    }

    /// Returns true if the locks have moved away from the server of a connection, as far as can be found out `within` a
    /// time. Otherwise the connection learns which replicas must confirm the next calls.
    ///
    /// In a cluster a node that has lost the slot redirects any request, and a connection that has failed fails again. So
    /// redlock only requests the list of nodes there, for the next connection.
    pub fn has_moved(&self, connection: &mut Connection, within: Duration) -> bool {
        match &self.kind {
            Kind::Single | Kind::Local(_) => false,
            Kind::Sentinels(sentinels) => sentinels.has_moved(connection, within),
            Kind::Cluster(_) => {
                let _ = connection.ask_nodes(within);
                false
            }
        }
    }

    /// Returns the sentinels that name the primary.
    pub fn sentinels(&self) -> Option<&Arc<Sentinels>> {
        match &self.kind {
            Kind::Sentinels(sentinels) => Some(sentinels),
            Kind::Single | Kind::Local(_) | Kind::Cluster(_) => None,
        }
    }

    /// Returns the socket of a server of this host that redlock starts.
    pub fn local_socket(&self) -> Option<PathBuf> {
        match &self.kind {
            Kind::Local(local) => Some(local.socket()),
            Kind::Single | Kind::Sentinels(_) | Kind::Cluster(_) => None,
        }
    }

    /// Returns true if a password for any of the servers crosses a network unencrypted.
    pub fn sends_open_password(&self) -> bool {
        let primary = self.server();
        let sentinels = self.sentinels().into_iter().flat_map(|all| &all.nodes);
        let mut servers = sentinels.chain([&primary]);
        servers.any(|server| server.sends_open_password())
    }
}

impl fmt::Debug for Deployment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Deployment({})", self.server())
    }
}

/// Returns the prefix of all keys.
fn prefix_for(place: &Place, given: Option<&str>) -> Result<String, Error> {
    Ok(match (place, given) {
        (Place::Cluster { .. }, Some(prefix)) if hash_tag(prefix).is_none() => {
            let message = format!(
                "the prefix \"{prefix}\" has no hash tag, without which the keys of a lock are on several nodes of the cluster; put it in braces, as in REDLOCK_PREFIX='{{redlock}}:'"
            );
            return Err(Error::new(ErrorKind::Config, message));
        }
        (_, Some(prefix)) => prefix.to_owned(),
        (Place::Cluster { tag, .. }, None) => format!("{{{}}}:", tag.as_deref().unwrap_or(TAG)),
        (Place::Server(_) | Place::Local | Place::Sentinels { .. }, None) => PREFIX.to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;
    use crate::server::sentinel::tests::serve;

    fn parse(url: &str, prefix: Option<&str>) -> Result<Deployment, Error> {
        let access = Access {
            url,
            timeout: Duration::from_secs(20),
            ..Access::default()
        };
        Deployment::parse(&access, prefix)
    }

    #[test]
    fn all_keys_in_a_cluster_are_in_one_slot_whatever_the_prefix() {
        let prefix = |url: &str, given: Option<&str>| {
            let deployment = parse(url, given).map_err(|error| error.to_string());
            deployment.map(|deployment| deployment.server().prefix.clone())
        };
        for (url, given, is) in [
            ("redis://h", None, "redlock:"),
            ("redis-sentinel://h/m", None, "redlock:"),
            ("redis://h", Some("ci:"), "ci:"),
            ("redis-cluster://h", None, "{redlock}:"),
            ("redis-cluster://h/ci", None, "{ci}:"),
            ("rediss-cluster://h1,h2/ci", Some("{x}y"), "{x}y"),
        ] {
            assert_eq!(prefix(url, given).as_deref(), Ok(is), "{url} {given:?}");
        }
        for given in ["ci:", "{}:", "it's}"] {
            let refusal = prefix("redis-cluster://h/tag", Some(given)).unwrap_err();
            assert!(
                refusal.ends_with("REDLOCK_PREFIX='{redlock}:'"),
                "{refusal}"
            );
        }
    }

    #[test]
    fn no_error_repeats_a_password() {
        let error = parse("redis://u:hunter2", None).map(drop).unwrap_err();
        assert_eq!(error.kind, ErrorKind::Config);
        assert!(!error.to_string().contains("hunter2"), "{error}");
        let server = parse("redis://u:hunter2@h", None).unwrap().server();
        assert!(!server.to_string().contains("hunter2"));
        let messages = [server.wrong_password(), server.password_origin()];
        assert!(!messages.concat().contains("hunter2"), "{messages:?}");
    }

    #[test]
    fn a_node_that_answers_only_its_first_question_fails_within_the_time_of_the_call() {
        // An old server, which doesn't know HELLO, and doesn't answer what follows the first question.
        let port = serve(|words| match &*words[0] {
            "HELLO" => "-ERR unknown\r\n".into(),
            "EXISTS" => ":0\r\n".into(),
            _ => String::new(),
        });
        let deployment = parse(&format!("redis-cluster://127.0.0.1:{port}"), None).unwrap();
        let began = Instant::now();
        let opened = deployment.open(Duration::from_secs(2));
        assert_eq!(opened.map(drop).unwrap_err().kind, ErrorKind::Unreachable);
        assert!(began.elapsed() < Duration::from_secs(15));
    }
}
