//! The kind of connection to a server: a socket, plain text or TLS. Pure.

use std::net::IpAddr;

use super::url::Address;

/// How a server is reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Transport {
    Socket,
    Plain { is_loopback: bool },
    Tls { host: String },
}

impl Transport {
    pub(super) fn of(address: &Address) -> Self {
        match address {
            Address::Unix(_) => Self::Socket,
            Address::Tcp {
                host, tls: true, ..
            } => Self::Tls { host: host.clone() },
            Address::Tcp { host, .. } => Self::Plain {
                is_loopback: is_loopback(host),
            },
        }
    }

    /// Returns true for a server that only this host reaches by that address.
    pub fn is_within_host(&self) -> bool {
        match self {
            Self::Socket => true,
            Self::Plain { is_loopback } => *is_loopback,
            Self::Tls { host } => is_loopback(host),
        }
    }
}

fn is_loopback(host: &str) -> bool {
    host == "localhost" || host.parse().is_ok_and(|ip: IpAddr| ip.is_loopback())
}
