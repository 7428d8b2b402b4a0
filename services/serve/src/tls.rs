//! TLS: the server shows its certificate and, if told to, asks clients for one.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, pem};
use rustls::server::danger::ClientCertVerifier;
use rustls::server::{VerifierBuilderError, WebPkiClientVerifier};
use rustls::{RootCertStore, ServerConfig};
use tokio_rustls::TlsAcceptor;
use tracing::{error, info};

use crate::server::Chain;

/// Whether clients show certificates. Those that do have to show one of the named issuers.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ClientCertificates {
    /// They are not asked for any.
    NotAsked,
    /// They may show one; the file has the certificates of those who may issue them.
    Welcome(PathBuf),
    /// Who shows none is not connected; the file has the certificates of those who may issue them.
    Required(PathBuf),
}

impl ClientCertificates {
    /// The file of the issuers.
    fn issuers(&self) -> Option<&Path> {
        match self {
            Self::NotAsked => None,
            Self::Welcome(path) | Self::Required(path) => Some(path),
        }
    }
}

/// The PEM files of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsFiles {
    /// The server's certificate, with its chain behind it.
    pub certificate: PathBuf,
    /// The private key of that certificate.
    pub key: PathBuf,
    /// Whether clients prove themselves too.
    pub clients: ClientCertificates,
}

/// Certificate and key of a server, in PEM, for one that has them in memory alone. The key is never shown.
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct TlsPem {
    /// The server's certificate, with its chain behind it.
    pub certificate: String,
    /// The private key of that certificate.
    pub key: String,
}

impl TlsPem {
    /// This certificate with its key.
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

/// Why TLS cannot be offered.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TlsError {
    /// A PEM file cannot be read.
    #[error("read {}", path.display())]
    Read {
        /// Which file.
        path: PathBuf,
        /// What is wrong with it.
        source: pem::Error,
    },
    /// The certificates of issuers cannot be used.
    #[error("use {} to check clients", path.display())]
    ClientCa {
        /// Which file.
        path: PathBuf,
        /// What is wrong with it.
        source: VerifierBuilderError,
    },
    /// Certificate and key cannot be used, or do not belong together.
    #[error("use {} with its key", path.display())]
    Certificate {
        /// The file of the certificate.
        path: PathBuf,
        /// What is wrong with it.
        source: rustls::Error,
    },
}

/// How often the files are looked at. What mounts them may need most of the minute within which changes are promised.
const RELOAD_INTERVAL: Duration = Duration::from_secs(2);

/// A TLS server of PEM files or of PEM in memory, which speaks HTTP/2 and HTTP/1.1. Clones share it. As long as it
/// [serves](crate::serve), it looks for other content of its files every two seconds, and what is in memory is
/// [replaced](Tls::replace): new connections are made with that, open ones go on.
#[derive(Clone)]
pub struct Tls(Arc<Inner>);

struct Inner {
    files: TlsFiles,
    kept: PemSource,
    current: RwLock<LoadedPem>,
}

/// Where the content comes from.
#[derive(Clone, Copy, PartialEq, Eq)]
enum PemSource {
    InFiles,
    InMemory,
}

struct LoadedPem {
    acceptor: TlsAcceptor,
    content: Content,
}

/// What was in the files.
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
    /// A server of these files.
    ///
    /// # Errors
    ///
    /// [`TlsError`] names the file that cannot be used.
    pub fn of(files: TlsFiles) -> Result<Self, TlsError> {
        let content = Content::read(&files)?;
        let current = LoadedPem {
            acceptor: acceptor(&files, &content)?,
            content,
        };
        Ok(Self(Arc::new(Inner {
            files,
            kept: PemSource::InFiles,
            current: RwLock::new(current),
        })))
    }

    /// A server of a certificate in memory, which asks clients for none.
    ///
    /// # Errors
    ///
    /// [`TlsError`] if certificate and key cannot be used.
    pub fn of_pem(pem: &TlsPem) -> Result<Self, TlsError> {
        // What errors name instead of a file.
        let files = TlsFiles {
            certificate: "the certificate in memory".into(),
            key: "the key in memory".into(),
            clients: ClientCertificates::NotAsked,
        };
        let content = pem.content();
        let current = LoadedPem {
            acceptor: acceptor(&files, &content)?,
            content,
        };
        Ok(Self(Arc::new(Inner {
            files,
            kept: PemSource::InMemory,
            current: RwLock::new(current),
        })))
    }

    /// Makes new connections with another certificate from now on; open ones go on. One of files looks at them again.
    ///
    /// # Errors
    ///
    /// [`TlsError`] if certificate and key cannot be used; what was there before stays.
    pub fn replace(&self, pem: &TlsPem) -> Result<(), TlsError> {
        self.install(pem.content())
    }

    fn install(&self, content: Content) -> Result<(), TlsError> {
        let acceptor = acceptor(&self.0.files, &content)?;
        // Nothing panics while it is locked, so that what a poisoned lock holds is whole.
        *self.0.current.write().unwrap_or_else(PoisonError::into_inner) = LoadedPem { acceptor, content };
        Ok(())
    }

    /// Looks at the files now, and answers whether they have other content, which is then used. That need not be waited for.
    ///
    /// # Errors
    ///
    /// [`TlsError`] names the file that cannot be used; what was there before stays.
    pub fn reload(&self) -> Result<bool, TlsError> {
        if self.0.kept == PemSource::InMemory {
            return Ok(false);
        }
        let content = Content::read(&self.0.files)?;
        let unchanged = |current: &LoadedPem| current.content == content;
        if unchanged(&self.0.current.read().unwrap_or_else(PoisonError::into_inner)) {
            return Ok(false);
        }
        self.install(content)?;
        Ok(true)
    }

    pub(crate) fn acceptor(&self) -> TlsAcceptor {
        let current = self.0.current.read().unwrap_or_else(PoisonError::into_inner);
        current.acceptor.clone()
    }

    /// Looks at the files again and again.
    pub(crate) async fn follow(self) {
        if self.0.kept == PemSource::InMemory {
            return;
        }
        let mut told = String::new();
        loop {
            tokio::time::sleep(RELOAD_INTERVAL).await;
            let tls = self.clone();
            let error = match tokio::task::spawn_blocking(move || tls.reload()).await {
                Ok(Ok(false)) => continue,
                Ok(Ok(true)) => {
                    info!(certificate = %self.0.files.certificate.display(), "certificates were changed and are used");
                    told.clear();
                    continue;
                }
                Ok(Err(error)) => Chain(&error).to_string(),
                Err(error) => error.to_string(),
            };
            // Certificate and key may be seen in the middle of their exchange: then the next look finds both.
            if error != told {
                error!(error, "changed certificates are not used; those before stay");
                told = error;
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
        (ClientCertificates::NotAsked, _) | (_, None) => builder.with_no_client_auth(),
        (clients, Some(issuers)) => builder.with_client_cert_verifier(verifier(clients, issuers)?),
    };
    let mut config = builder
        .with_single_cert(certificates(&files.certificate, &content.certificate)?, key)
        .map_err(certificate)?;
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(TlsAcceptor::from(Arc::new(config)))
}

/// Asks for certificates of these issuers.
fn verifier(clients: &ClientCertificates, issuers: &[u8]) -> Result<Arc<dyn ClientCertVerifier>, TlsError> {
    let path = clients.issuers().unwrap_or(Path::new(""));
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(certificates(path, issuers)?);
    let mut builder = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
    if matches!(clients, ClientCertificates::Welcome(_)) {
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
