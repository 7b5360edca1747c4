//! TLS: the files of certificates, and the handshake.

use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv4Addr, TcpStream};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{
    ResolvesClientCert, verify_server_cert_signed_by_trust_anchor, verify_server_name,
};
use rustls::crypto::{WebPkiSupportedAlgorithms, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::{
    AlertDescription, CertificateError, ClientConfig, ClientConnection, DigitallySignedStruct,
    RootCertStore, SignatureScheme,
};

use super::error::{Cause, Error, ErrorKind};
use super::stream::wait_for;
use crate::file;
use crate::reason::reason;
use crate::shell::quote;
use crate::sys::poll;

/// Files for `rediss://`; without a CA file the system's roots are trusted.
#[derive(Clone, Debug, Default)]
pub struct TlsFiles {
    pub ca: Option<PathBuf>,
    pub cert: Option<PathBuf>,
    pub key: Option<PathBuf>,
}

impl TlsFiles {
    /// Returns the settings of a handshake, which asks `without_own` for a certificate if these files have none.
    pub(super) fn client_config(
        &self,
        without_own: Arc<dyn ResolvesClientCert>,
    ) -> Result<ClientConfig, Error> {
        let bad = |why: &str| Error::new(ErrorKind::Config, why.to_owned());
        let config = ClientConfig::builder();
        let given = self.ca.as_deref().map_or(Ok(Vec::new()), certificates)?;
        let mut own = RootCertStore::empty();
        own.add_parsable_certificates(given.iter().cloned());
        let verifier = Verifier {
            roots: self.roots(&given)?,
            own,
            given,
            algorithms: config.crypto_provider().signature_verification_algorithms,
        };
        if verifier.roots.is_empty() && verifier.given.is_empty() {
            let why = "no trusted certificates found; name the server's CA in REDLOCK_TLS_CA";
            return Err(bad(why));
        }
        let config = config.dangerous();
        let config = config.with_custom_certificate_verifier(Arc::new(verifier));
        match (&self.cert, &self.key) {
            (None, None) => Ok(config.with_client_cert_resolver(without_own)),
            (Some(cert), Some(key)) => {
                let pem = read(key)?;
                let secret = PrivateKeyDer::from_pem_slice(&pem);
                let secret = secret.map_err(|_| unusable_key(key, &pem))?;
                let with_own = config.with_client_auth_cert(certificates(cert)?, secret);
                with_own.map_err(|error| match error {
                    rustls::Error::InconsistentKeys(_) => {
                        unusable(key, &format!("it is not the key of {}", cert.display()))
                    }
                    error => unusable(cert, &error),
                })
            }
            _ => Err(bad(
                "REDLOCK_TLS_CERT and REDLOCK_TLS_KEY belong together; set both or none",
            )),
        }
    }

    /// Returns the certificates that vouch for others.
    fn roots(&self, given: &[CertificateDer<'static>]) -> Result<RootCertStore, Error> {
        let mut roots = RootCertStore::empty();
        let Some(path) = &self.ca else {
            roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
            return Ok(roots);
        };
        for certificate in given.iter().filter(|it| may_sign(it)) {
            let added = roots.add(certificate.clone());
            added.map_err(|error| unusable(path, &error))?;
        }
        Ok(roots)
    }
}

/// Returns true if a certificate may sign others: its basic constraints (RFC 5280, 4.2.1.9) say that it is a CA, or it has
/// none, as those of old CAs. The library takes any trusted certificate for a CA.
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
    // A flag if it is critical; an octet string with a sequence, which begins with the flag of a CA.
    let rest = rest.strip_prefix(&TRUE).unwrap_or(rest);
    matches!(rest, [0x04, _, 0x30, _, value @ ..] if value.starts_with(&TRUE))
}

fn read(path: &Path) -> Result<Vec<u8>, Error> {
    file::read(path).map_err(|error| unusable(path, &reason(&error)))
}

/// Returns the certificates of a file, of which there must be one.
fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, Error> {
    let certificates = CertificateDer::pem_slice_iter(&read(path)?).collect::<Result<Vec<_>, _>>();
    let certificates = certificates.ok().filter(|all| !all.is_empty());
    certificates.ok_or_else(|| unusable(path, &"it holds no PEM certificate"))
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
    let why = format!("can't use {}: {why}", path.display());
    Error::new(ErrorKind::Config, why).because(Cause::File)
}

/// Trusts certificates that a trusted CA has signed, and the certificate of the server itself if that was given: a self-signed
/// one, whether or not it is a CA, or one without its CA. Its name and its time are checked like those of any other.
#[derive(Debug)]
struct Verifier {
    /// Trusted CAs.
    roots: RootCertStore,
    /// Roots for a server whose own certificate was given: all of `given`.
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
            // These errors are found after the certificate's time was checked.
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
        CertificateError::Other(other) => is(other, &webpki::Error::CaUsedAsEndEntity),
        _ => false,
    }
}

/// Returns true for this error of the verifier that rustls uses.
fn is(error: &rustls::OtherError, cause: &webpki::Error) -> bool {
    error.0.downcast_ref() == Some(cause)
}

const NOTHING_IN_COMMON: &str = "the server and redlock have no TLS version, cipher or kind of server key in common; permit TLS 1.3 on the server, or 1.2 with ECDHE and AES-GCM (tls-protocols, tls-ciphers), and use a key (tls-key-file) of RSA with 2048 bits or more, P-256, P-384 or Ed25519";

/// Returns why TLS with a host failed, and what to do. `own` as in [`was_refused`].
pub(super) fn why(error: &io::Error, host: &str, own: (bool, bool)) -> String {
    let inner = error.get_ref().and_then(|inner| inner.downcast_ref());
    let why = match inner {
        Some(rustls::Error::InvalidCertificate(error)) => return refused(error, host),
        Some(rustls::Error::AlertReceived(alert)) => return was_refused(*alert, own),
        Some(rustls::Error::PeerIncompatible(_)) => NOTHING_IN_COMMON,
        Some(rustls::Error::NoCertificatesPresented) => {
            "the server shows no certificate; set tls-cert-file there"
        }
        _ => {
            "the server didn't send valid TLS; see the server's log, and check that this is the port of Redis"
        }
    };
    why.into()
}

/// Returns why the server's certificate isn't accepted.
fn refused(error: &CertificateError, host: &str) -> String {
    use CertificateError as Bad;
    const CA: &str = "name the CA that signed it, or the certificate itself, in REDLOCK_TLS_CA";
    let kind = host.parse::<IpAddr>().map_or("DNS", |_| "IP");
    let subject = format!("subjectAltName={kind}:{host}");
    let anew = format!(
        "issue it anew with {subject} (openssl req -addext {subject}, openssl x509 -req -copy_extensions copy)"
    );
    match error {
        Bad::UnknownIssuer => format!("its certificate isn't signed by a trusted CA; {CA}"),
        Bad::BadSignature => format!("the signature of its certificate is wrong; {CA}"),
        Bad::Expired | Bad::ExpiredContext { .. } => {
            "its certificate has expired; renew it, or check this machine's clock".into()
        }
        Bad::NotValidYetContext { .. } => {
            "its certificate is not valid yet; check this machine's clock".into()
        }
        Bad::NotValidForNameContext { presented, .. } if presented.is_empty() => {
            format!("its certificate has no subjectAltName; {anew}")
        }
        Bad::NotValidForNameContext { presented, .. } => {
            let names = names(presented);
            format!(
                "its certificate is not for {host}, but for {names}; use one of its names in the URL, or {anew}"
            )
        }
        Bad::InvalidPurposeContext { .. } => {
            "its certificate isn't one for servers (extendedKeyUsage); issue it anew with extendedKeyUsage=serverAuth".into()
        }
        Bad::Other(other) if is(other, &webpki::Error::CaUsedAsEndEntity) => {
            format!("its certificate is that of a CA; {CA}")
        }
        Bad::Other(other) if is(other, &webpki::Error::UnsupportedCertVersion) => format!(
            "its certificate is of X.509 version 1, which has no subjectAltName; {anew}"
        ),
        Bad::Other(other) => {
            let why = in_words(&other.to_string());
            format!("its certificate can't be used ({why}); issue it anew without that")
        }
        _ => "its certificate can't be used; issue it anew".into(),
    }
}

/// Returns why the server refuses redlock, by its alert. The server may have asked in vain for a certificate (`lacks_own`), or
/// there is one (`REDLOCK_TLS_CERT`).
fn was_refused(alert: AlertDescription, (lacks_own, has_own): (bool, bool)) -> String {
    use AlertDescription as Alert;
    const REQUIRED: &str =
        "the server requires a client certificate; set REDLOCK_TLS_CERT and REDLOCK_TLS_KEY";
    let why = match alert {
        Alert::CertificateRequired => REQUIRED,
        // TLS 1.2 has no alert for that.
        Alert::HandshakeFailure | Alert::AccessDenied | Alert::BadCertificate if lacks_own => {
            REQUIRED
        }
        Alert::HandshakeFailure | Alert::InsufficientSecurity | Alert::ProtocolVersion => {
            NOTHING_IN_COMMON
        }
        Alert::UnknownCA if has_own => {
            "the server doesn't trust the CA of redlock's certificate (REDLOCK_TLS_CERT); use a certificate signed by a CA in the server's tls-ca-cert-file"
        }
        Alert::CertificateExpired if has_own => {
            "redlock's certificate has expired (REDLOCK_TLS_CERT); renew it, or check the server's clock"
        }
        Alert::BadCertificate
        | Alert::UnsupportedCertificate
        | Alert::CertificateUnknown
        | Alert::CertificateRevoked
        | Alert::DecryptError
        | Alert::AccessDenied
            if has_own =>
        {
            "the server doesn't accept redlock's certificate (REDLOCK_TLS_CERT); the server's log says why"
        }
        other => {
            let alert = in_words(&format!("{other:?}"));
            return format!(
                "the server ended the handshake (alert: {alert}); the server's log says why"
            );
        }
    };
    why.into()
}

/// Returns the name of an error of a library in words: `NameConstraintViolation` is `name constraint violation`.
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

/// Returns the first names of a certificate: `DnsName("localhost")` and `IpAddress(127.0.0.1)` are `localhost, 127.0.0.1`.
fn names(presented: &[String]) -> String {
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

/// Returns the first bytes of the other side, which stay to be read; none if it has closed the connection.
pub(super) fn first_bytes(tcp: &TcpStream, until: Instant) -> io::Result<Vec<u8>> {
    let mut bytes = [0; 80];
    loop {
        match tcp.peek(&mut bytes) {
            Ok(read) => return Ok(bytes[..read].to_vec()),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                wait_for(poll::readable(tcp.as_fd()), until)?;
            }
            Err(error) => return Err(error),
        }
    }
}

/// Returns true if a TLS record begins with this byte: an alert, or a handshake.
pub(super) fn is_tls(first: u8) -> bool {
    matches!(first, 0x15 | 0x16)
}

/// Returns true if the other side answers to the first message of a handshake as TLS does.
pub(super) fn answers(tcp: &mut TcpStream, until: Instant) -> bool {
    let config = ClientConfig::builder()
        .with_root_certificates(RootCertStore::empty())
        .with_no_client_auth();
    let name = ServerName::from(IpAddr::from(Ipv4Addr::LOCALHOST));
    let first = ClientConnection::new(Arc::new(config), name)
        .map_err(io::Error::other)
        .and_then(|mut tls| send_hello(&mut tls, tcp, until))
        .and_then(|()| first_bytes(tcp, until));
    first.is_ok_and(|first| matches!(first[..], [kind, 3, _, ..] if is_tls(kind)))
}

/// Takes one step of a handshake. The messages of the other side are limited in size, but not in time, so each step has
/// its limit.
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
        // Sends the other side the reason.
        let _ = tls.write_tls(tcp);
        io::Error::new(io::ErrorKind::InvalidData, error)
    })
}
