//! TLS: the server shows its certificate and, if told to, asks clients for one.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, pem};
use rustls::server::danger::ClientCertVerifier;
use rustls::server::{VerifierBuilderError, WebPkiClientVerifier};
use rustls::{RootCertStore, ServerConfig};
use tokio_rustls::TlsAcceptor;

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

/// A TLS server of these files that speaks HTTP/2 and HTTP/1.1.
///
/// # Errors
///
/// [`TlsError`] names the file that cannot be used.
pub fn acceptor(files: &TlsFiles) -> Result<TlsAcceptor, TlsError> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let key = PrivateKeyDer::from_pem_file(&files.key).map_err(|source| unreadable(&files.key, source))?;
    let certificate = |source| TlsError::Certificate {
        path: files.certificate.clone(),
        source,
    };
    let builder = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(certificate)?;
    let builder = match verifier(&files.clients)? {
        Some(verifier) => builder.with_client_cert_verifier(verifier),
        None => builder.with_no_client_auth(),
    };
    let mut config = builder
        .with_single_cert(certificates(&files.certificate)?, key)
        .map_err(certificate)?;
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(TlsAcceptor::from(Arc::new(config)))
}

fn verifier(clients: &ClientCertificates) -> Result<Option<Arc<dyn ClientCertVerifier>>, TlsError> {
    let (ClientCertificates::Welcome(path) | ClientCertificates::Required(path)) = clients else {
        return Ok(None);
    };
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(certificates(path)?);
    let mut builder = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
    if matches!(clients, ClientCertificates::Welcome(_)) {
        builder = builder.allow_unauthenticated();
    }
    let unusable = |source| TlsError::ClientCa {
        path: path.clone(),
        source,
    };
    builder.build().map(Some).map_err(unusable)
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    CertificateDer::pem_file_iter(path)
        .and_then(Iterator::collect)
        .map_err(|source| unreadable(path, source))
}

fn unreadable(path: &Path, source: pem::Error) -> TlsError {
    TlsError::Read {
        path: path.to_owned(),
        source,
    }
}
