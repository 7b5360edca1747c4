//! TLS: the files of certificates, and the handshake.

use std::fmt;
use std::io::{self, Write as _};
use std::net::TcpStream;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{WebPkiServerVerifier, verify_server_name};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::{
    AlertDescription, CertificateError, ClientConfig, ClientConnection, DigitallySignedStruct,
    RootCertStore, SignatureScheme,
};

use super::stream::left;
use super::{Error, ErrorKind, ready};
use crate::file;
use crate::reason::reason;

/// Files for `rediss://`; without a CA file the system's roots are trusted.
#[derive(Clone, Debug, Default)]
pub struct TlsFiles {
    pub ca: Option<PathBuf>,
    pub cert: Option<PathBuf>,
    pub key: Option<PathBuf>,
}

impl TlsFiles {
    /// Our certificate, in DER, if there is one.
    pub(super) fn own_certificate(&self) -> Option<Vec<u8>> {
        let chain = certificates(self.cert.as_ref()?).ok()?;
        Some(chain.first()?.to_vec())
    }

    pub(super) fn client_config(&self) -> Result<ClientConfig, Error> {
        let mut roots = RootCertStore::empty();
        let mut given = Vec::new();
        if let Some(path) = &self.ca {
            given = certificates(path)?;
            for certificate in given.iter().filter(|certificate| may_sign(certificate)) {
                roots
                    .add(certificate.clone())
                    .map_err(|error| unusable(path, &error))?;
            }
        } else {
            let found = rustls_native_certs::load_native_certs();
            roots.add_parsable_certificates(found.certs);
        }
        let mut own = RootCertStore::empty();
        own.add_parsable_certificates(given.iter().cloned());
        if roots.is_empty() && own.is_empty() {
            return Err(Error::new(
                ErrorKind::Config,
                "no trusted certificates found; name the server's CA with --tls-ca".into(),
            ));
        }
        let verifier = Verifier {
            chains: chains_to(roots)?,
            own: chains_to(own)?,
            given,
        };
        let config = ClientConfig::builder()
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(verifier));
        match (&self.cert, &self.key) {
            (None, None) => Ok(config.with_no_client_auth()),
            (Some(cert), Some(key)) => {
                let chain = certificates(cert)?;
                let secret = PrivateKeyDer::from_pem_slice(&read(key)?)
                    .map_err(|_| unusable(key, &"it holds no PEM private key"))?;
                config
                    .with_client_auth_cert(chain, secret)
                    .map_err(|error| match error {
                        rustls::Error::InconsistentKeys(_) => {
                            unusable(key, &format!("it is not the key of {}", cert.display()))
                        }
                        error => unusable(cert, &error),
                    })
            }
            _ => Err(Error::new(
                ErrorKind::Config,
                "--tls-cert and --tls-key belong together; give both or none".into(),
            )),
        }
    }
}

/// What verifies chains that end in one of these; `None` without any.
fn chains_to(roots: RootCertStore) -> Result<Option<Arc<WebPkiServerVerifier>>, Error> {
    if roots.is_empty() {
        return Ok(None);
    }
    let verifier = WebPkiServerVerifier::builder(Arc::new(roots)).build();
    verifier.map(Some).map_err(|error| {
        Error::new(
            ErrorKind::Config,
            format!("can't check certificates: {error}"),
        )
    })
}

/// Whether a certificate may sign others: its basic constraints (RFC 5280, 4.2.1.9) say that it is a CA, or
/// it has none, as those of old CAs. The library takes any trusted certificate for a CA.
pub(super) fn may_sign(certificate: &[u8]) -> bool {
    const BASIC_CONSTRAINTS: [u8; 5] = [0x06, 0x03, 0x55, 0x1d, 0x13];
    const TRUE: [u8; 3] = [0x01, 0x01, 0xff];
    let at = certificate
        .windows(BASIC_CONSTRAINTS.len())
        .position(|bytes| bytes == BASIC_CONSTRAINTS);
    let Some(at) = at else {
        return true;
    };
    let rest = &certificate[at + BASIC_CONSTRAINTS.len()..];
    // Whether it is critical; an octet string; a sequence in it, which begins with whether it is a CA.
    let rest = rest.strip_prefix(&TRUE).unwrap_or(rest);
    matches!(rest, [0x04, _, 0x30, _, value @ ..] if value.starts_with(&TRUE))
}

fn read(path: &Path) -> Result<Vec<u8>, Error> {
    file::read(path).map_err(|error| unusable(path, &reason(&error)))
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, Error> {
    certificates_in(&read(path)?).ok_or_else(|| unusable(path, &"it holds no PEM certificate"))
}

/// The certificates of a file, of which there has to be one.
pub(super) fn certificates_in(pem: &[u8]) -> Option<Vec<CertificateDer<'static>>> {
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    found.ok().filter(|found| !found.is_empty())
}

fn unusable(path: &Path, why: &dyn fmt::Display) -> Error {
    Error::new(
        ErrorKind::Config,
        format!("can't use {}: {why}", path.display()),
    )
}

/// Trusts what a trusted CA has signed, and the certificate of the server itself where that was given:
/// a self-signed one that says that it is a CA, or isn't one, or one without its CA. Its name and its
/// time are checked as those of any other.
#[derive(Debug)]
struct Verifier {
    /// For certificates that a CA has signed.
    chains: Option<Arc<WebPkiServerVerifier>>,
    /// For a server whose own certificate was given.
    own: Option<Arc<WebPkiServerVerifier>>,
    /// The certificates of --tls-ca.
    given: Vec<CertificateDer<'static>>,
}

impl Verifier {
    /// For signatures: the roots don't matter.
    fn any(&self) -> Result<&WebPkiServerVerifier, rustls::Error> {
        let any = self.chains.as_deref().or(self.own.as_deref());
        any.ok_or(rustls::Error::InvalidCertificate(
            CertificateError::UnknownIssuer,
        ))
    }
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let is_given = self.given.iter().any(|own| own == end_entity);
        let verifier = if is_given { &self.own } else { &self.chains };
        let verifier = verifier.as_ref().ok_or(rustls::Error::InvalidCertificate(
            CertificateError::UnknownIssuer,
        ))?;
        let checked =
            verifier.verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now);
        match checked {
            // Both are found after the certificate's time was checked.
            Err(rustls::Error::InvalidCertificate(error))
                if is_given && is_about_its_issuer(&error) =>
            {
                verify_server_name(&ParsedCertificate::try_from(end_entity)?, server_name)?;
                Ok(ServerCertVerified::assertion())
            }
            other => other,
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.any()?.verify_tls12_signature(message, cert, dss)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.any()?.verify_tls13_signature(message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.any()
            .map(ServerCertVerifier::supported_verify_schemes)
            .unwrap_or_default()
    }
}

/// Whether a certificate is refused for what issued it, and for nothing else.
fn is_about_its_issuer(error: &CertificateError) -> bool {
    match error {
        CertificateError::UnknownIssuer => true,
        CertificateError::Other(other) => is_ca(other),
        _ => false,
    }
}

/// Whether a certificate is refused as it may sign others.
fn is_ca(error: &rustls::OtherError) -> bool {
    error.to_string() == "CaUsedAsEndEntity"
}

/// Why TLS failed, and what to do.
pub(super) fn why(error: &io::Error) -> (String, &'static str) {
    const CA: &str = "name the CA that signed it, or the certificate itself, with --tls-ca";
    const CLIENT: &str = "check --tls-cert and --tls-key";
    let inner = error.get_ref().and_then(|inner| inner.downcast_ref());
    let Some(error) = inner else {
        return (
            error.to_string(),
            "check --tls-ca, --tls-cert and --tls-key",
        );
    };
    match error {
        rustls::Error::InvalidCertificate(error) => match error {
            CertificateError::UnknownIssuer => {
                ("its certificate isn't signed by a trusted CA".into(), CA)
            }
            CertificateError::Other(other) if is_ca(other) => {
                ("its certificate is that of a CA".into(), CA)
            }
            CertificateError::Expired | CertificateError::ExpiredContext { .. } => (
                "its certificate has expired".into(),
                "renew it, or check this machine's clock",
            ),
            CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => (
                "its certificate is not valid yet".into(),
                "check this machine's clock",
            ),
            CertificateError::NotValidForName => (
                "its certificate is for another name".into(),
                "use the name that it is for in the URL",
            ),
            CertificateError::NotValidForNameContext {
                expected,
                presented,
            } => (
                format!(
                    "its certificate is not for {}, but for {}",
                    expected.to_str(),
                    names(presented)
                ),
                "use a name that it is for in the URL",
            ),
            other => (format!("its certificate can't be used ({other})"), CA),
        },
        rustls::Error::AlertReceived(
            AlertDescription::CertificateRequired
            | AlertDescription::HandshakeFailure
            | AlertDescription::AccessDenied,
        ) => (
            "the server wants a certificate of ours".into(),
            "use --tls-cert and --tls-key",
        ),
        rustls::Error::AlertReceived(alert) => {
            (format!("the server refused it ({alert:?})"), CLIENT)
        }
        other => (
            other.to_string(),
            "check --tls-ca, --tls-cert and --tls-key",
        ),
    }
}

/// The names of a certificate, as many as a message has room for.
pub(super) fn names(presented: &[String]) -> String {
    // `DnsName("localhost")`, `IpAddress(127.0.0.1)`
    let bare = |name: &String| {
        let inner = name.split_once('(').map_or(name.as_str(), |(_, rest)| rest);
        inner.trim_matches(['(', ')', '"']).to_owned()
    };
    let shown: Vec<String> = presented.iter().take(3).map(bare).collect();
    match presented.len() {
        0 => "no name at all (it has no subjectAltName)".into(),
        1..=3 => shown.join(", "),
        many => format!("{} and {} more", shown.join(", "), many - 3),
    }
}

/// Sends the first message of a handshake.
pub(super) fn send_hello(
    tls: &mut ClientConnection,
    tcp: &mut TcpStream,
    until: Instant,
) -> io::Result<()> {
    while tls.wants_write() {
        shake_hands(tls, tcp, until)?;
    }
    Ok(())
}

/// The first bytes of the other side, which stay to be read; none when it has closed the connection.
pub(super) fn first_bytes(tcp: &TcpStream, until: Instant) -> io::Result<Vec<u8>> {
    let mut bytes = [0; 3];
    loop {
        match tcp.peek(&mut bytes) {
            Ok(read) => return Ok(bytes[..read].to_vec()),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                if !ready::to_read(tcp.as_fd(), left(until)?)? {
                    return Err(io::ErrorKind::TimedOut.into());
                }
            }
            Err(error) => return Err(error),
        }
    }
}

/// Whether a TLS record begins with this byte: an alert, or a handshake.
pub(super) fn is_tls(first: u8) -> bool {
    matches!(first, 0x15 | 0x16)
}

/// Whether the other side answers to the first message of a handshake as TLS does.
pub(super) fn answers(tcp: &mut TcpStream, until: Instant) -> bool {
    let config = ClientConfig::builder()
        .with_root_certificates(RootCertStore::empty())
        .with_no_client_auth();
    let Ok(name) = ServerName::try_from("redis") else {
        return false;
    };
    let asked = ClientConnection::new(Arc::new(config), name)
        .map_err(io::Error::other)
        .and_then(|mut tls| {
            let mut hello = Vec::new();
            tls.write_tls(&mut hello)?;
            tcp.write_all(&hello)?;
            tcp.set_nonblocking(true)
        });
    let first = asked.and_then(|()| first_bytes(tcp, until));
    first.is_ok_and(|first| first.len() == 3 && is_tls(first[0]) && first[1] == 3)
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
