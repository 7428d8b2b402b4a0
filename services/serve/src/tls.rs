//! TLS of a server, with optional client certificates.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use ipu_core::ErrorChain;
use parking_lot::RwLock;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, pem};
use rustls::server::danger::ClientCertVerifier;
use rustls::server::{VerifierBuilderError, WebPkiClientVerifier};
use rustls::{RootCertStore, ServerConfig};
use tokio_rustls::TlsAcceptor;
use tracing::{error, info};

/// Client authentication by certificate. The server refuses a certificate of any other issuer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClientCertificates {
    /// The server requests no client certificate.
    Disabled,
    /// A client can send a certificate; the PEM file has the trusted issuers.
    Optional(PathBuf),
    /// The server refuses clients without a certificate; the PEM file has the trusted issuers.
    Required(PathBuf),
}

impl ClientCertificates {
    /// Returns the file of the trusted issuers.
    fn issuers(&self) -> Option<&Path> {
        match self {
            Self::Disabled => None,
            Self::Optional(path) | Self::Required(path) => Some(path),
        }
    }
}

/// PEM files of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsFiles {
    /// Server certificate, followed by its chain.
    pub certificate: PathBuf,
    /// Private key of that certificate.
    pub key: PathBuf,
    /// Client authentication.
    pub clients: ClientCertificates,
}

/// Certificate and key of a server, as PEM in memory. `Debug` omits the key.
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct TlsPem {
    /// Server certificate, followed by its chain.
    pub certificate: String,
    /// Private key of that certificate.
    pub key: String,
}

impl TlsPem {
    /// Creates a pair of certificate and key.
    #[must_use]
    pub fn new(certificate: impl Into<String>, key: impl Into<String>) -> Self {
        Self {
            certificate: certificate.into(),
            key: key.into(),
        }
    }

    fn content(&self) -> Content {
        Content {
            certificate: self.certificate.clone().into_bytes(),
            key: self.key.clone().into_bytes(),
            clients: None,
        }
    }
}

impl fmt::Debug for TlsPem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TlsPem")
            .field("certificate", &self.certificate)
            .finish_non_exhaustive()
    }
}

/// Error of the TLS configuration.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TlsError {
    /// A PEM file cannot be read.
    #[error("read {}", path.display())]
    Read {
        /// Path of the file.
        path: PathBuf,
        /// Cause.
        source: pem::Error,
    },
    /// The certificates of the issuers are unusable.
    #[error("use {} to check clients", path.display())]
    ClientCa {
        /// Path of the file.
        path: PathBuf,
        /// Cause.
        source: VerifierBuilderError,
    },
    /// Certificate and key are unusable, or do not match.
    #[error("use {} with its key", path.display())]
    Certificate {
        /// Path of the certificate.
        path: PathBuf,
        /// Cause.
        source: rustls::Error,
    },
}

/// Interval between two reads of the files. Changes apply within a minute, of which a volume mount may need
/// the most.
const RELOAD_INTERVAL: Duration = Duration::from_secs(2);

/// TLS configuration of a server for HTTP/2 and HTTP/1.1, from PEM files or from PEM in memory. Clones share
/// it.
///
/// While [`serve`](crate::serve) runs, it reloads changed files every two seconds. [`Tls::replace`] exchanges
/// PEM in memory. New connections use the new certificate; open ones continue.
#[derive(Clone)]
pub struct Tls(Arc<Inner>);

struct Inner {
    files: TlsFiles,
    source: PemSource,
    current: RwLock<LoadedPem>,
}

/// Source of certificate and key.
#[derive(Clone, Copy, PartialEq, Eq)]
enum PemSource {
    Files,
    Memory,
}

struct LoadedPem {
    acceptor: TlsAcceptor,
    content: Content,
}

/// PEM content of the files.
#[derive(PartialEq, Eq)]
struct Content {
    certificate: Vec<u8>,
    key: Vec<u8>,
    clients: Option<Vec<u8>>,
}

impl Content {
    fn read(files: &TlsFiles) -> Result<Self, TlsError> {
        let read = |path: &Path| std::fs::read(path).map_err(|error| unreadable(path, pem::Error::Io(error)));
        Ok(Self {
            certificate: read(&files.certificate)?,
            key: read(&files.key)?,
            clients: files.clients.issuers().map(read).transpose()?,
        })
    }
}

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Tls").field(&self.0.files).finish()
    }
}

impl Tls {
    /// Loads the TLS configuration from `files`.
    ///
    /// # Errors
    ///
    /// [`TlsError`] names the unusable file.
    pub fn from_files(files: TlsFiles) -> Result<Self, TlsError> {
        let content = Content::read(&files)?;
        let current = LoadedPem {
            acceptor: acceptor(&files, &content)?,
            content,
        };
        Ok(Self(Arc::new(Inner {
            files,
            source: PemSource::Files,
            current: RwLock::new(current),
        })))
    }

    /// Loads the TLS configuration from memory, without client certificates.
    ///
    /// # Errors
    ///
    /// [`TlsError`] if certificate and key are unusable.
    pub fn from_pem(pem: &TlsPem) -> Result<Self, TlsError> {
        // Errors name these instead of a file.
        let files = TlsFiles {
            certificate: "the certificate in memory".into(),
            key: "the key in memory".into(),
            clients: ClientCertificates::Disabled,
        };
        let content = pem.content();
        let current = LoadedPem {
            acceptor: acceptor(&files, &content)?,
            content,
        };
        Ok(Self(Arc::new(Inner {
            files,
            source: PemSource::Memory,
            current: RwLock::new(current),
        })))
    }

    /// Replaces the certificate of new connections; open ones continue. A configuration from files reloads
    /// them later.
    ///
    /// # Errors
    ///
    /// [`TlsError`] if certificate and key are unusable; the previous ones stay in use.
    pub fn replace(&self, pem: &TlsPem) -> Result<(), TlsError> {
        self.install(pem.content())
    }

    fn install(&self, content: Content) -> Result<(), TlsError> {
        let acceptor = acceptor(&self.0.files, &content)?;
        *self.0.current.write() = LoadedPem { acceptor, content };
        Ok(())
    }

    /// Reloads the files now, without waiting for the interval; returns whether their content has changed.
    ///
    /// # Errors
    ///
    /// [`TlsError`] names the unusable file; the previous content stays in use.
    pub fn reload(&self) -> Result<bool, TlsError> {
        if self.0.source == PemSource::Memory {
            return Ok(false);
        }
        let content = Content::read(&self.0.files)?;
        let unchanged = |current: &LoadedPem| current.content == content;
        if unchanged(&self.0.current.read()) {
            return Ok(false);
        }
        self.install(content)?;
        Ok(true)
    }

    pub(crate) fn acceptor(&self) -> TlsAcceptor {
        let current = self.0.current.read();
        current.acceptor.clone()
    }

    /// Reloads the files at every [`RELOAD_INTERVAL`].
    pub(crate) async fn watch_files(self) {
        if self.0.source == PemSource::Memory {
            return;
        }
        let mut logged = String::new();
        loop {
            tokio::time::sleep(RELOAD_INTERVAL).await;
            let tls = self.clone();
            let error = match tokio::task::spawn_blocking(move || tls.reload()).await {
                Ok(Ok(false)) => continue,
                Ok(Ok(true)) => {
                    info!(certificate = %self.0.files.certificate.display(), "reloaded changed certificates");
                    logged.clear();
                    continue;
                }
                Ok(Err(error)) => ErrorChain(&error).to_string(),
                Err(error) => error.to_string(),
            };
            // A read between the writes of certificate and key fails; the next one finds both.
            if error != logged {
                error!(
                    error,
                    "cannot use changed certificates; keeping the previous ones"
                );
                logged = error;
            }
        }
    }
}

fn acceptor(files: &TlsFiles, content: &Content) -> Result<TlsAcceptor, TlsError> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let key = PrivateKeyDer::from_pem_slice(&content.key).map_err(|source| unreadable(&files.key, source))?;
    let certificate = |source| TlsError::Certificate {
        path: files.certificate.clone(),
        source,
    };
    let builder = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(certificate)?;
    let builder = match (&files.clients, &content.clients) {
        (ClientCertificates::Disabled, _) | (_, None) => builder.with_no_client_auth(),
        (clients, Some(issuers)) => builder.with_client_cert_verifier(verifier(clients, issuers)?),
    };
    let mut config = builder
        .with_single_cert(certificates(&files.certificate, &content.certificate)?, key)
        .map_err(certificate)?;
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(TlsAcceptor::from(Arc::new(config)))
}

/// Builds a verifier for client certificates of these issuers.
fn verifier(clients: &ClientCertificates, issuers: &[u8]) -> Result<Arc<dyn ClientCertVerifier>, TlsError> {
    let path = clients.issuers().unwrap_or(Path::new(""));
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(certificates(path, issuers)?);
    let mut builder = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
    if matches!(clients, ClientCertificates::Optional(_)) {
        builder = builder.allow_unauthenticated();
    }
    builder.build().map_err(|source| TlsError::ClientCa {
        path: path.to_owned(),
        source,
    })
}

fn certificates(path: &Path, content: &[u8]) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    CertificateDer::pem_slice_iter(content)
        .collect::<Result<_, _>>()
        .map_err(|source| unreadable(path, source))
}

fn unreadable(path: &Path, source: pem::Error) -> TlsError {
    TlsError::Read {
        path: path.to_owned(),
        source,
    }
}
