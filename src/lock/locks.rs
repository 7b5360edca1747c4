//! The locks of one user: where they are and how their keys are named, by the settings.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::deployment::Deployment;
use super::name::Keys;
use super::server::UrlOrigin;
use super::{Client, Error, Lock, Name, TlsFiles};

/// Where Redis is, our credentials there, and how long we wait for it.
#[derive(Default)]
pub struct Access<'a> {
    pub url: &'a str,
    pub origin: UrlOrigin,
    /// In place of the URL's.
    pub password: Option<String>,
    /// A password in the URL counts before that one.
    pub url_first: bool,
    pub tls: TlsFiles,
    /// The longest that connecting, and each answer, may take.
    pub timeout: Duration,
}

/// The locks of one user. Its `Display` is where they are, and never shows a password.
#[derive(Clone, Debug)]
pub struct Locks {
    deployment: Arc<Deployment>,
    /// What each key begins with.
    pub(super) prefix: String,
    /// How many holds of each lock are remembered.
    pub(super) history: u32,
}

impl Locks {
    /// The locks whose keys begin with `prefix`; of each, as many holds are remembered as `history`
    /// says.
    ///
    /// # Errors
    /// [`super::ErrorKind::Config`] when the URL can't be used; the message never repeats it, as it
    /// may hold a password.
    pub fn new(access: Access, prefix: &str, history: u32) -> Result<Self, Error> {
        let Access {
            url,
            origin,
            password,
            url_first,
            tls,
            timeout,
        } = access;
        let mut deployment = Deployment::parse(url, &origin, &tls, timeout, prefix)?;
        let stays = url_first && deployment.server().password.is_some();
        if let Some(password) = password.filter(|_| !stays) {
            deployment.set_password(password);
        }
        Ok(Self {
            deployment: Arc::new(deployment),
            prefix: prefix.to_owned(),
            history,
        })
    }

    /// The lock of this name.
    pub fn lock(&self, name: Name) -> Lock {
        Lock {
            keys: Keys::new(&self.prefix, &name),
            name,
            history: self.history,
        }
    }

    /// A client that connects with the first request.
    pub fn client(&self) -> Client {
        Client::new(&self.deployment)
    }

    /// A client that is connected.
    pub fn open(&self) -> Result<Client, Error> {
        let mut client = self.client();
        client.open()?;
        Ok(client)
    }
}

impl fmt::Display for Locks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.deployment.server().fmt(f)
    }
}
