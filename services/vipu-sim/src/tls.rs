//! TLS on both sides: the server shows its certificate and asks clients for one.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, pem};
use rustls::server::{VerifierBuilderError, WebPkiClientVerifier};
use rustls::{RootCertStore, ServerConfig};
use tokio_rustls::TlsAcceptor;

/// The PEM files of a server that clients and server prove themselves to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsFiles {
    /// The server's certificate, with its chain behind it.
    pub certificate: PathBuf,
    /// The private key of that certificate.
    pub key: PathBuf,
    /// The certificates of those who may issue clients' certificates.
    pub client_ca: PathBuf,
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

/// A TLS server of these files that speaks HTTP/2 and HTTP/1.1 and refuses clients without a certificate.
pub(crate) fn acceptor(files: &TlsFiles) -> Result<TlsAcceptor, TlsError> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let key = PrivateKeyDer::from_pem_file(&files.key).map_err(|source| unreadable(&files.key, source))?;
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(certificates(&files.client_ca)?);
    let client_ca = |source| TlsError::ClientCa {
        path: files.client_ca.clone(),
        source,
    };
    let clients = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&provider))
        .build()
        .map_err(client_ca)?;
    let certificate = |source| TlsError::Certificate {
        path: files.certificate.clone(),
        source,
    };
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(certificate)?
        .with_client_cert_verifier(clients)
        .with_single_cert(certificates(&files.certificate)?, key)
        .map_err(certificate)?;
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(TlsAcceptor::from(Arc::new(config)))
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
