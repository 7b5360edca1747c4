//! TLS: the files of certificates, and the handshake.

use std::fmt;
use std::io;
use std::net::TcpStream;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::time::Instant;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, ClientConnection, RootCertStore};

use super::stream::left;
use super::{Error, ErrorKind, ready};

/// Files for `rediss://`; without a CA file the system's roots are trusted.
#[derive(Clone, Debug, Default)]
pub struct TlsFiles {
    pub ca: Option<PathBuf>,
    pub cert: Option<PathBuf>,
    pub key: Option<PathBuf>,
}

impl TlsFiles {
    pub(super) fn client_config(&self) -> Result<ClientConfig, Error> {
        let mut roots = RootCertStore::empty();
        if let Some(path) = &self.ca {
            for certificate in certificates(path)? {
                roots
                    .add(certificate)
                    .map_err(|error| unusable(path, &error))?;
            }
        } else {
            let found = rustls_native_certs::load_native_certs();
            roots.add_parsable_certificates(found.certs);
        }
        if roots.is_empty() {
            return Err(Error::new(
                ErrorKind::Config,
                "no trusted certificates found; name the server's CA with --tls-ca".into(),
            ));
        }
        let config = ClientConfig::builder().with_root_certificates(roots);
        match (&self.cert, &self.key) {
            (None, None) => Ok(config.with_no_client_auth()),
            (Some(cert), Some(key)) => {
                let chain = certificates(cert)?;
                let secret = PrivateKeyDer::from_pem_slice(&read(key)?)
                    .map_err(|error| unusable(key, &error))?;
                config
                    .with_client_auth_cert(chain, secret)
                    .map_err(|error| unusable(cert, &error))
            }
            _ => Err(Error::new(
                ErrorKind::Config,
                "--tls-cert and --tls-key belong together; give both or none".into(),
            )),
        }
    }
}

fn read(path: &Path) -> Result<Vec<u8>, Error> {
    std::fs::read(path).map_err(|error| unusable(path, &error))
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, Error> {
    let found = CertificateDer::pem_slice_iter(&read(path)?)
        .collect::<Result<Vec<_>, _>>()
        .map_err(|error| unusable(path, &error))?;
    if found.is_empty() {
        return Err(unusable(path, &"it holds no PEM certificate"));
    }
    Ok(found)
}

fn unusable(path: &Path, why: &dyn fmt::Display) -> Error {
    Error::new(
        ErrorKind::Config,
        format!("can't use {}: {why}", path.display()),
    )
}

/// One step of a handshake. What the other side has to say is limited, but not how slowly it says it.
pub(super) fn shake_hands(
    tls: &mut ClientConnection,
    tcp: &mut TcpStream,
    until: Instant,
) -> io::Result<()> {
    let left = left(until)?;
    let (done, writes) = if tls.wants_write() {
        (tls.write_tls(tcp), true)
    } else {
        (tls.read_tls(tcp), false)
    };
    let in_time = match done {
        Ok(0) if !writes => return Err(io::ErrorKind::UnexpectedEof.into()),
        Ok(_) if writes => true,
        Ok(_) => {
            if let Err(error) = tls.process_new_packets() {
                // Sends the other side the reason.
                let _ = tls.write_tls(tcp);
                return Err(io::Error::new(io::ErrorKind::InvalidData, error));
            }
            true
        }
        Err(error) if error.kind() == io::ErrorKind::Interrupted => true,
        Err(error) if error.kind() == io::ErrorKind::WouldBlock && writes => {
            ready::to_write(tcp.as_fd(), left)?
        }
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
            ready::to_read(tcp.as_fd(), left)?
        }
        Err(error) => return Err(error),
    };
    if in_time {
        Ok(())
    } else {
        Err(io::ErrorKind::TimedOut.into())
    }
}
