//! A single server, at the address in the URL.

use super::Error;
use super::connection::Connection;
use super::kind::{Kind, Search};

pub(super) struct Single;

impl Kind for Single {
    fn open(&self, search: &Search) -> Result<Connection, Error> {
        let (connection, _) = search.connect(&search.last, &[])?;
        Ok(connection)
    }
}
