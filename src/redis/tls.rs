//! TLS: the files of certificates, and the handshake.

use std::fmt;
use std::io::{self, Write as _};
use std::net::{IpAddr, TcpStream};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{ResolvesClientCert, WebPkiServerVerifier, verify_server_name};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::sign::CertifiedKey;
use rustls::{
    AlertDescription, CertificateError, ClientConfig, ClientConnection, DigitallySignedStruct,
    RootCertStore, SignatureScheme,
};

use super::stream::left;
use super::{Error, ErrorKind, ready};
use crate::file;
use crate::reason::reason;
use crate::shell::quote;

/// Files for `rediss://`; without a CA file the system's roots are trusted.
#[derive(Clone, Debug, Default)]
pub struct TlsFiles {
    pub ca: Option<PathBuf>,
    pub cert: Option<PathBuf>,
    pub key: Option<PathBuf>,
}

impl TlsFiles {
    /// What a handshake goes by; `asked` is set when the server asks for a certificate of ours.
    pub(super) fn client_config(&self, asked: &Arc<AtomicBool>) -> Result<ClientConfig, Error> {
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
                "no trusted certificates found; name the server's CA in REDLOCK_TLS_CA".into(),
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
        let mut config = match (&self.cert, &self.key) {
            (None, None) => config.with_no_client_auth(),
            (Some(cert), Some(key)) => {
                let chain = certificates(cert)?;
                let pem = read(key)?;
                let secret =
                    PrivateKeyDer::from_pem_slice(&pem).map_err(|_| unusable_key(key, &pem))?;
                config
                    .with_client_auth_cert(chain, secret)
                    .map_err(|error| match error {
                        rustls::Error::InconsistentKeys(_) => {
                            unusable(key, &format!("it is not the key of {}", cert.display()))
                        }
                        error => unusable(cert, &error),
                    })?
            }
            _ => {
                return Err(Error::new(
                    ErrorKind::Config,
                    "REDLOCK_TLS_CERT and REDLOCK_TLS_KEY belong together; set both or none".into(),
                ));
            }
        };
        config.client_auth_cert_resolver = Arc::new(Noted {
            resolver: config.client_auth_cert_resolver,
            asked: Arc::clone(asked),
        });
        Ok(config)
    }
}

/// Finds our certificate, and notes that the server asked for one.
#[derive(Debug)]
struct Noted {
    resolver: Arc<dyn ResolvesClientCert>,
    asked: Arc<AtomicBool>,
}

impl ResolvesClientCert for Noted {
    fn resolve(
        &self,
        root_hint_subjects: &[&[u8]],
        sigschemes: &[SignatureScheme],
    ) -> Option<Arc<CertifiedKey>> {
        self.asked.store(true, Ordering::Relaxed);
        self.resolver.resolve(root_hint_subjects, sigschemes)
    }

    fn has_certs(&self) -> bool {
        self.resolver.has_certs()
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
pub fn may_sign(certificate: &[u8]) -> bool {
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
pub fn certificates_in(pem: &[u8]) -> Option<Vec<CertificateDer<'static>>> {
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    found.ok().filter(|found| !found.is_empty())
}

/// Returns the error for a file that should hold a private key.
fn unusable_key(path: &Path, pem: &[u8]) -> Error {
    let pem = String::from_utf8_lossy(pem);
    // PKCS #8, and the older form of OpenSSL.
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
    /// The certificates of `REDLOCK_TLS_CA`.
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
        CertificateError::Other(other) => is(other, &webpki::Error::CaUsedAsEndEntity),
        _ => false,
    }
}

/// Returns true for this error of the verifier that rustls uses.
fn is(error: &rustls::OtherError, cause: &webpki::Error) -> bool {
    error.0.downcast_ref() == Some(cause)
}

/// What is known of a handshake when it fails.
#[derive(Clone, Copy, Debug)]
pub(super) struct Handshake<'a> {
    /// The host in the URL.
    pub(super) host: &'a str,
    /// The server has asked for a certificate of ours.
    pub(super) was_asked: bool,
    /// There is one (`REDLOCK_TLS_CERT`).
    pub(super) has_own: bool,
}

impl Handshake<'_> {
    /// Why TLS failed, and what to do.
    pub(super) fn why(self, error: &io::Error) -> (String, String) {
        let inner = error.get_ref().and_then(|inner| inner.downcast_ref());
        let (why, next): (&str, &str) = match inner {
            Some(rustls::Error::InvalidCertificate(error)) => return self.refused(error),
            Some(rustls::Error::AlertReceived(alert)) => return self.was_refused(*alert),
            Some(rustls::Error::PeerIncompatible(_)) => NOTHING_IN_COMMON,
            Some(rustls::Error::NoCertificatesPresented) => {
                ("the server shows no certificate", "set tls-cert-file there")
            }
            _ => (
                "the server didn't send valid TLS",
                "see the server's log, and check that this is the port of Redis",
            ),
        };
        (why.into(), next.into())
    }

    /// Why the server's certificate isn't accepted.
    fn refused(self, error: &CertificateError) -> (String, String) {
        use CertificateError as Bad;
        const CA: &str = "name the CA that signed it, or the certificate itself, in REDLOCK_TLS_CA";
        let subject = match self.host.parse::<IpAddr>() {
            Ok(ip) => format!("subjectAltName=IP:{ip}"),
            Err(_) => format!("subjectAltName=DNS:{}", self.host),
        };
        let anew = format!(
            "issue it anew with {subject} (openssl req -addext {subject}, openssl x509 -req -copy_extensions copy)"
        );
        let (why, next): (&str, &str) = match error {
            Bad::UnknownIssuer => ("its certificate isn't signed by a trusted CA", CA),
            Bad::Other(other) if is(other, &webpki::Error::CaUsedAsEndEntity) => {
                ("its certificate is that of a CA", CA)
            }
            Bad::Expired | Bad::ExpiredContext { .. } => (
                "its certificate has expired",
                "renew it, or check this machine's clock",
            ),
            Bad::NotValidYet | Bad::NotValidYetContext { .. } => (
                "its certificate is not valid yet",
                "check this machine's clock",
            ),
            Bad::NotValidForNameContext { presented, .. } if presented.is_empty() => {
                ("its certificate has no subjectAltName", &*anew)
            }
            Bad::Other(other) if is(other, &webpki::Error::UnsupportedCertVersion) => (
                "its certificate is of X.509 version 1, which has no subjectAltName",
                &anew,
            ),
            Bad::NotValidForNameContext { presented, .. } => {
                let (host, names) = (self.host, names(presented));
                let why = format!("its certificate is not for {host}, but for {names}");
                return (why, format!("use one of its names in the URL, or {anew}"));
            }
            Bad::NotValidForName => ("its certificate is for another name", &anew),
            Bad::InvalidPurpose | Bad::InvalidPurposeContext { .. } => (
                "its certificate isn't one for servers (extendedKeyUsage)",
                "issue it anew with extendedKeyUsage=serverAuth",
            ),
            Bad::BadSignature => ("the signature of its certificate is wrong", CA),
            Bad::Other(other) => {
                let why = in_words(&other.to_string());
                let why = format!("its certificate can't be used ({why})");
                return (why, "issue it anew without that".into());
            }
            _ => ("its certificate can't be used", "issue it anew"),
        };
        (why.into(), next.into())
    }

    /// Why the server refuses us, by its alert.
    fn was_refused(self, alert: AlertDescription) -> (String, String) {
        use AlertDescription as Alert;
        const REQUIRED: (&str, &str) = (
            "the server requires a client certificate",
            "set REDLOCK_TLS_CERT and REDLOCK_TLS_KEY",
        );
        let lacks_own = self.was_asked && !self.has_own;
        let (why, next) = match alert {
            Alert::CertificateRequired => REQUIRED,
            // TLS 1.2 has no alert for that.
            Alert::HandshakeFailure | Alert::AccessDenied | Alert::BadCertificate if lacks_own => {
                REQUIRED
            }
            Alert::HandshakeFailure | Alert::InsufficientSecurity | Alert::ProtocolVersion => {
                NOTHING_IN_COMMON
            }
            Alert::UnknownCA if self.has_own => (
                "the server doesn't trust the CA of redlock's certificate (REDLOCK_TLS_CERT)",
                "use a certificate signed by a CA in the server's tls-ca-cert-file",
            ),
            Alert::CertificateExpired if self.has_own => (
                "redlock's certificate has expired (REDLOCK_TLS_CERT)",
                "renew it, or check the server's clock",
            ),
            Alert::BadCertificate
            | Alert::UnsupportedCertificate
            | Alert::CertificateUnknown
            | Alert::CertificateRevoked
            | Alert::DecryptError
            | Alert::AccessDenied
                if self.has_own =>
            {
                (
                    "the server doesn't accept redlock's certificate (REDLOCK_TLS_CERT)",
                    "the server's log says why",
                )
            }
            other => {
                let alert = in_words(&format!("{other:?}"));
                let why = format!("the server ended the handshake (alert: {alert})");
                return (why, "the server's log says why".into());
            }
        };
        (why.into(), next.into())
    }
}

const NOTHING_IN_COMMON: (&str, &str) = (
    "the server and redlock have no TLS version, cipher or kind of server key in common",
    "permit TLS 1.3 on the server, or 1.2 with ECDHE and AES-GCM (tls-protocols, tls-ciphers), and use a key (tls-key-file) of RSA with 2048 bits or more, P-256, P-384 or Ed25519",
);

/// The name of an error of a library in words: `NameConstraintViolation` is `name constraint violation`.
fn in_words(name: &str) -> String {
    let mut words = String::new();
    for c in name.chars().filter(char::is_ascii_alphanumeric).take(80) {
        if c.is_ascii_uppercase() && !words.is_empty() {
            words.push(' ');
        }
        words.push(c.to_ascii_lowercase());
    }
    words
}

/// The names of a certificate, as many as a message has room for.
pub fn names(presented: &[String]) -> String {
    // `DnsName("localhost")`, `IpAddress(127.0.0.1)`
    let bare = |name: &String| {
        let inner = name.split_once('(').map_or(name.as_str(), |(_, rest)| rest);
        inner.trim_matches(['(', ')', '"']).to_owned()
    };
    let shown: Vec<String> = presented.iter().take(3).map(bare).collect();
    match presented.len() {
        0..=3 => shown.join(", "),
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
