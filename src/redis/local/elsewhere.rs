//! Where this isn't Linux, `local:` has no server: the process that keeps it, and the search for those that hold its lock,
//! need what Linux alone has.

// The functions stand in for those of a server that there is.
#![allow(clippy::unused_self)]

mod state;

use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Instant;

pub(super) use self::state::NotOpen;
pub use self::state::{NOT_INSTALLED, State};
use crate::redis::error::{Error, ErrorKind};
use crate::redis::url::Scope;

/// The server that isn't there.
#[derive(Debug)]
pub struct Local {
    scope: Scope,
}

impl Local {
    pub fn new(scope: Scope) -> Self {
        Self { scope }
    }

    /// The same for a command about the server itself.
    pub fn settled(scope: Scope) -> Self {
        Self::new(scope)
    }

    pub fn scope(&self) -> Scope {
        self.scope
    }

    /// Nothing ever listens there.
    pub fn socket(&self) -> PathBuf {
        PathBuf::new()
    }

    pub fn data(&self) -> &Path {
        Path::new("")
    }

    pub fn command(&self) -> String {
        "redlock".into()
    }

    pub(super) fn open(&self, _until: Instant) -> Result<UnixStream, NotOpen> {
        Err(self.refused().into())
    }

    pub fn state(&self, _until: Instant) -> Result<State, Error> {
        Err(self.refused())
    }

    pub fn stop(&self) -> Result<bool, Error> {
        Err(self.refused())
    }

    fn refused(&self) -> Error {
        let line = format!(
            "{} works on Linux only; give the URL of a server",
            self.scope
        );
        Error::new(ErrorKind::Config, line)
    }
}

/// Whose server a command uses that isn't told.
pub fn usual_scope() -> Option<Scope> {
    None
}
