//! The servers behind one URL, and how the one is found that has the locks.
//!
//! Each connection begins here: candidates, a connection to one of them, and its confirmation that it is
//! the one. What was found is remembered for messages only, and asked anew with the next connection.

use std::fmt;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::connection::Connection;
use super::password::PasswordSource;
use super::replication::Replication;
use super::sentinel::Sentinels;
use super::server::{Part, Server, UrlOrigin};
use super::tls::TlsFiles;
use super::url::{Place, Url};
use super::{Error, ErrorKind};
use crate::reason::reason;

/// The servers behind one URL.
pub(super) struct Deployment {
    kind: Kind,
    /// The one that was used last, or is tried first.
    current: Mutex<Arc<Server>>,
}

enum Kind {
    Single,
    Sentinels(Sentinels),
}

impl Deployment {
    /// Reads a URL; `password` is used in place of its own.
    ///
    /// # Errors
    /// [`ErrorKind::Config`] for a URL that can't be used; the message never repeats it, as it may hold a
    /// password.
    pub(super) fn parse(
        url: &str,
        origin: &UrlOrigin,
        tls: &TlsFiles,
        timeout: Duration,
        prefix: &str,
    ) -> Result<Self, Error> {
        let bad = |why: &str| {
            let message = format!("bad Redis URL in {origin}: {why}");
            Error::new(ErrorKind::Config, message)
        };
        let Url {
            place,
            database,
            login,
        } = Url::parse(url).map_err(|why| bad(&why))?;
        let server = |place, login, database| {
            let (origin, tls) = (origin.clone(), tls.clone());
            Server::new(place, (login, database), origin, tls, timeout, prefix)
        };
        let (kind, current) = match place {
            Place::Server(address) => {
                (Kind::Single, server((address, Part::Only), login, database))
            }
            Place::Sentinels {
                nodes,
                primary,
                login: mut theirs,
                password_file,
            } => {
                if let Some(path) = password_file {
                    theirs.password = Some(first_line(&path).map_err(|why| bad(&why))?);
                }
                let sentinel = |address| server((address, Part::Sentinel), theirs.clone(), 0);
                let first = nodes.first().cloned().ok_or_else(|| bad("no host"))?;
                let known_by = nodes.into_iter().map(sentinel).map(Arc::new).collect();
                (
                    Kind::Sentinels(Sentinels::new(known_by, primary)),
                    server((first, Part::Primary), login, database),
                )
            }
            Place::Cluster { .. } => {
                return Err(bad(
                    "redlock uses one node of a Redis Cluster; use its own URL, redis://, and a prefix with a hash tag, such as --prefix '{redlock}:'",
                ));
            }
        };
        Ok(Self {
            kind,
            current: Mutex::new(Arc::new(current)),
        })
    }

    /// Uses this password, in place of the URL's.
    pub(super) fn set_password(&mut self, password: PasswordSource) {
        if let Some(server) = Arc::get_mut(&mut self.lock()) {
            server.set_password(password);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Arc<Server>> {
        self.current.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The server that was used last, or is tried first.
    pub(super) fn server(&self) -> Arc<Server> {
        Arc::clone(&self.lock())
    }

    /// Whether another server may take over from the one that has the locks.
    pub(super) fn may_fail_over(&self) -> bool {
        match &self.kind {
            Kind::Single => false,
            Kind::Sentinels(_) => true,
        }
    }

    /// Whether a command prints the password for each new connection.
    pub(super) fn has_password_command(&self) -> bool {
        self.lock().password_command.is_some()
    }

    /// Connects to the server that has the locks, and authenticates, all `within` a time.
    ///
    /// # Errors
    /// [`ErrorKind::Unreachable`], [`ErrorKind::NotNow`], [`ErrorKind::Refused`] or [`ErrorKind::Config`].
    pub(super) fn open(
        &self,
        timeout: Duration,
        within: Duration,
        replication: Option<Replication>,
    ) -> Result<Connection, Error> {
        let server = self.server();
        let mut within = within;
        if let Some(command) = &server.password_command {
            // Before all else, so that no server has to wait for it.
            let began = Instant::now();
            command.run(began + within)?;
            within = within.saturating_sub(began.elapsed());
        }
        let (mut connection, replicas) = match &self.kind {
            Kind::Single => (Connection::open(&server, timeout, within)?, Arc::default()),
            Kind::Sentinels(sentinels) => {
                let connection = sentinels.open(&server, timeout, within, replication)?;
                *self.lock() = Arc::clone(connection.server());
                (connection, sentinels.replicas())
            }
        };
        if let Some(replication) = replication {
            connection.replicate(replication, replicas);
        }
        Ok(connection)
    }

    /// The sentinels that are asked for the primary, if any are.
    pub(super) fn sentinels(&self) -> Option<&Sentinels> {
        match &self.kind {
            Kind::Single => None,
            Kind::Sentinels(sentinels) => Some(sentinels),
        }
    }

    /// Whether the locks may have moved away from a server, as far as can be found out `within` a time;
    /// then the next connection goes to where they are.
    pub(super) fn have_moved(
        &self,
        from: &Server,
        within: Duration,
        replication: Option<Replication>,
    ) -> bool {
        match &self.kind {
            Kind::Single => false,
            Kind::Sentinels(sentinels) => sentinels.have_another(from, within, replication),
        }
    }
}

impl fmt::Debug for Deployment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Deployment({})", self.server())
    }
}

/// The password that a file holds; why there is none otherwise.
fn first_line(path: &Path) -> Result<String, String> {
    let text = std::fs::read_to_string(path)
        .map_err(|error| format!("can't read {}: {}", path.display(), reason(&error)))?;
    match text.lines().next() {
        Some(line) if !line.is_empty() => Ok(line.to_owned()),
        _ => Err(format!("{} is empty", path.display())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(url: &str) -> Result<Deployment, Error> {
        let (tls, timeout) = (TlsFiles::default(), Duration::from_secs(2));
        Deployment::parse(url, &UrlOrigin::Option, &tls, timeout, "p:")
    }

    #[test]
    fn no_error_repeats_a_password() {
        let error = parse("redis://u:hunter2").map(drop).unwrap_err();
        assert_eq!(error.kind, ErrorKind::Config);
        assert!(!error.to_string().contains("hunter2"), "{error}");
        let server = parse("redis://u:hunter2@h").unwrap().server();
        assert!(!format!("{server} {server:?}").contains("hunter2"));
        let said = [server.wrong_password(), server.password_origin()];
        assert!(!said.concat().contains("hunter2"), "{said:?}");
    }
}
