//! TLS: the files of certificates, and the handshake.

use std::fmt;
use std::io;
use std::net::{IpAddr, TcpStream};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{verify_server_cert_signed_by_trust_anchor, verify_server_name};
use rustls::crypto::{WebPkiSupportedAlgorithms, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::{
    AlertDescription, CertificateError, ClientConfig, ClientConnection, DigitallySignedStruct,
    RootCertStore, SignatureScheme,
};

use super::error::{Cause, Error, ErrorKind, quoted};
use super::stream::wait_for;
use crate::file;
use crate::reason::reason;
use crate::shell::quote;
use crate::sys::poll;

/// Certificate files for `rediss://`. Without a CA file, redlock trusts the system's roots.
#[derive(Clone, Debug, Default)]
pub struct TlsFiles {
    pub ca: Option<PathBuf>,
    pub cert: Option<PathBuf>,
    pub key: Option<PathBuf>,
}

impl TlsFiles {
    /// Returns the settings of a handshake.
    pub(super) fn client_config(&self) -> Result<ClientConfig, Error> {
        let config = ClientConfig::builder();
        let given = self.ca.as_deref().map_or(Ok(Vec::new()), certificates)?;
        let (mut roots, mut own) = (RootCertStore::empty(), RootCertStore::empty());
        own.add_parsable_certificates(given.iter().cloned());
        roots.add_parsable_certificates(match &self.ca {
            Some(_) => given.iter().filter(|it| may_sign(it)).cloned().collect(),
            None => rustls_native_certs::load_native_certs().certs,
        });
        let verifier = Verifier {
            roots,
            own,
            given,
            algorithms: config.crypto_provider().signature_verification_algorithms,
        };
        let config = config.dangerous();
        let config = config.with_custom_certificate_verifier(Arc::new(verifier));
        match (&self.cert, &self.key) {
            (None, None) => Ok(config.with_no_client_auth()),
            (Some(cert), Some(key)) => {
                let pem = read(key)?;
                let secret = PrivateKeyDer::from_pem_slice(&pem);
                let secret = secret.map_err(|_| unusable_key(key, &pem))?;
                let with_own = config.with_client_auth_cert(certificates(cert)?, secret);
                with_own.map_err(|error| unusable(cert, &error))
            }
            _ => Err(Error::new(
                ErrorKind::Config,
                "REDLOCK_TLS_CERT and REDLOCK_TLS_KEY belong together; set both or none".into(),
            )),
        }
    }
}

/// Returns true if a certificate may sign others: its basic constraints (RFC 5280, 4.2.1.9) mark it as a CA, or it has
/// none, like old CAs' certificates. Needed because the library accepts any trusted certificate as a CA.
fn may_sign(certificate: &[u8]) -> bool {
    const BASIC_CONSTRAINTS: [u8; 5] = [0x06, 0x03, 0x55, 0x1d, 0x13];
    const TRUE: [u8; 3] = [0x01, 0x01, 0xff];
    let at = certificate
        .windows(BASIC_CONSTRAINTS.len())
        .position(|bytes| bytes == BASIC_CONSTRAINTS);
    let Some(at) = at else {
        return true;
    };
    let rest = &certificate[at + BASIC_CONSTRAINTS.len()..];
    // First an optional flag "critical", then an octet string with a sequence, which begins with the CA flag.
    let rest = rest.strip_prefix(&TRUE).unwrap_or(rest);
    matches!(rest, [0x04, _, 0x30, _, value @ ..] if value.starts_with(&TRUE))
}

fn read(path: &Path) -> Result<Vec<u8>, Error> {
    file::read(path).map_err(|error| unusable(path, &reason(&error)))
}

/// Returns the certificates in a file, at least one.
fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, Error> {
    let certificates = CertificateDer::pem_slice_iter(&read(path)?).collect::<Result<Vec<_>, _>>();
    let certificates = certificates.ok().filter(|all| !all.is_empty());
    certificates.ok_or_else(|| unusable(path, &"it holds no PEM certificate"))
}

/// Returns the error for a file that should hold a private key.
fn unusable_key(path: &Path, pem: &[u8]) -> Error {
    let pem = String::from_utf8_lossy(pem);
    // PKCS #8, and the older format of OpenSSL.
    let has_passphrase = ["BEGIN ENCRYPTED PRIVATE KEY", "Proc-Type: 4,ENCRYPTED"];
    if has_passphrase.iter().any(|mark| pem.contains(mark)) {
        let why = format!(
            "the key has a passphrase, which nobody could type for a job; write one without it: openssl pkey -in {} -out NEW",
            quote(path)
        );
        return unusable(path, &why);
    }
    unusable(path, &"it holds no PEM private key")
}

fn unusable(path: &Path, why: &dyn fmt::Display) -> Error {
    let why = format!("can't use {}: {why}", path.display());
    Error::new(ErrorKind::Config, why).because(Cause::File)
}

/// Trusts certificates that a trusted CA has signed, and the server's own certificate if that was given: a self-signed one,
/// whether or not it is a CA, or one without its CA. Its name and its period of validity are checked as usual.
#[derive(Debug)]
struct Verifier {
    /// Trusted CAs.
    roots: RootCertStore,
    /// Roots for a server whose own certificate was given: all certificates in `given`.
    own: RootCertStore,
    /// The certificates of `REDLOCK_TLS_CA`.
    given: Vec<CertificateDer<'static>>,
    algorithms: WebPkiSupportedAlgorithms,
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let certificate = ParsedCertificate::try_from(end_entity)?;
        let is_given = self.given.contains(end_entity);
        match verify_server_cert_signed_by_trust_anchor(
            &certificate,
            if is_given { &self.own } else { &self.roots },
            intermediates,
            now,
            self.algorithms.all,
        ) {
            // The library reports these errors only after it has checked the period of validity.
            Err(rustls::Error::InvalidCertificate(error))
                if is_given && is_about_its_issuer(&error) => {}
            verified => verified?,
        }
        verify_server_name(&certificate, server_name)?;
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(message, cert, dss, &self.algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, cert, dss, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}

/// Returns true if a certificate is refused only because of its issuer.
fn is_about_its_issuer(error: &CertificateError) -> bool {
    match error {
        CertificateError::UnknownIssuer => true,
        CertificateError::Other(other) => {
            other.0.downcast_ref() == Some(&webpki::Error::CaUsedAsEndEntity)
        }
        _ => false,
    }
}

const NOTHING_IN_COMMON: &str = "the server and redlock have no TLS version, cipher or kind of server key in common; permit TLS 1.3 on the server, or 1.2 with ECDHE and AES-GCM (tls-protocols, tls-ciphers), and use a key (tls-key-file) of RSA with 2048 bits or more, P-256, P-384 or Ed25519";

const REQUIRED: &str =
    "the server requires a client certificate; set REDLOCK_TLS_CERT and REDLOCK_TLS_KEY";

const INVALID: &str = "the server didn't send valid TLS; see the server's log, and check that this is the port of Redis";

/// Returns the reason why TLS with a host failed, and the next step.
pub(super) fn why(error: &io::Error, host: &str) -> String {
    use AlertDescription as Alert;
    use rustls::Error::{AlertReceived, InvalidCertificate, PeerIncompatible};
    let inner = error.get_ref().and_then(|inner| inner.downcast_ref());
    match inner {
        Some(InvalidCertificate(error)) => refused(error, host),
        Some(AlertReceived(Alert::CertificateRequired)) => REQUIRED.into(),
        // TLS 1.2 has no specific alert for a missing client certificate.
        Some(AlertReceived(Alert::HandshakeFailure)) => {
            format!("{NOTHING_IN_COMMON}; or {REQUIRED}")
        }
        Some(
            PeerIncompatible(_)
            | AlertReceived(Alert::InsufficientSecurity | Alert::ProtocolVersion),
        ) => NOTHING_IN_COMMON.into(),
        Some(AlertReceived(alert)) => format!(
            "the server ended the handshake ({alert:?}), perhaps because of redlock's certificate (REDLOCK_TLS_CERT); the server's log says why"
        ),
        _ => INVALID.into(),
    }
}

const EXPIRED: &str =
    "its certificate has expired, or is not valid yet; renew it, or check this machine's clock";

const UNTRUSTED: &str = "its certificate isn't signed by a trusted CA; name the CA that signed it, or the certificate itself, in REDLOCK_TLS_CA";

/// Returns the reason why redlock refuses the server's certificate.
fn refused(error: &CertificateError, host: &str) -> String {
    use CertificateError as Bad;
    let text = error.to_string();
    match error {
        Bad::Expired | Bad::ExpiredContext { .. } | Bad::NotValidYetContext { .. } => {
            EXPIRED.into()
        }
        error if is_about_its_issuer(error) || *error == Bad::BadSignature => UNTRUSTED.into(),
        Bad::NotValidForNameContext { .. } => {
            let kind = host.parse::<IpAddr>().map_or("DNS", |_| "IP");
            let subject = format!("subjectAltName={kind}:{host}");
            format!(
                "{}; use one of its names in the URL, or issue it again with {subject} (openssl req -addext {subject}, openssl x509 -req -copy_extensions copy)",
                quoted(&text)
            )
        }
        Bad::Other(other) => {
            format!("its certificate can't be used ({other}); issue it again without that")
        }
        _ => format!("its certificate can't be used ({text}); issue it again"),
    }
}

/// Takes one step of a handshake. The library limits the size of the other side's messages, but not their time, so each step
/// has a deadline.
pub(super) fn shake_hands(
    tls: &mut ClientConnection,
    tcp: &mut TcpStream,
    until: Instant,
) -> io::Result<()> {
    if tls.wants_write() {
        wait_for(poll::writable(tcp.as_fd()), until)?;
        return tls.write_tls(tcp).map(drop);
    }
    wait_for(poll::readable(tcp.as_fd()), until)?;
    if tls.read_tls(tcp)? == 0 {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    tls.process_new_packets().map(drop).map_err(|error| {
        // Sends the reason to the other side.
        let _ = tls.write_tls(tcp);
        io::Error::new(io::ErrorKind::InvalidData, error)
    })
}
