//! TLS: whom we trust and what we show, read anew for every connection, so that files that are renewed are used.

use std::error::Error;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::error::{SetupError, chain};

/// PEM files of a client.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TlsFiles {
    /// The certificates of those who may sign the proxy's.
    pub ca: PathBuf,
    /// What this client shows, if it does.
    pub own: Option<ClientCertificate>,
}

impl TlsFiles {
    /// Trusts whom the certificates of this file have signed, and shows nothing.
    #[must_use]
    pub fn new(ca: impl Into<PathBuf>) -> Self {
        Self {
            ca: ca.into(),
            own: None,
        }
    }
}

/// The certificate that a client shows.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ClientCertificate {
    /// With its chain behind it.
    pub certificate: PathBuf,
    /// Its private key.
    pub key: PathBuf,
}

impl ClientCertificate {
    /// These files.
    #[must_use]
    pub fn new(certificate: impl Into<PathBuf>, key: impl Into<PathBuf>) -> Self {
        Self {
            certificate: certificate.into(),
            key: key.into(),
        }
    }
}

/// What the files say, with a provider of cryptography that is passed by hand and not installed for the process.
pub(crate) fn config(files: &TlsFiles) -> Result<ClientConfig, SetupError> {
    let mut roots = RootCertStore::empty();
    // Bundles of a system may hold some that nobody can read.
    let (trusted, _) = roots.add_parsable_certificates(certificates(&files.ca)?);
    if trusted == 0 {
        return Err(unusable(&files.ca, "there is no certificate in it"));
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| unusable(&files.ca, error))?
        .with_root_certificates(roots);
    let mut config = match &files.own {
        Some(own) => {
            let key = PrivateKeyDer::from_pem_file(&own.key).map_err(|error| unusable(&own.key, error))?;
            builder
                .with_client_auth_cert(certificates(&own.certificate)?, key)
                .map_err(|error| unusable(&own.certificate, error))?
        }
        None => builder.with_no_client_auth(),
    };
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(config)
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, SetupError> {
    let found: Vec<_> = CertificateDer::pem_file_iter(path)
        .and_then(Iterator::collect)
        .map_err(|error| unusable(path, error))?;
    if found.is_empty() {
        return Err(unusable(path, "there is no certificate in it"));
    }
    Ok(found)
}

fn unusable(path: &Path, detail: impl ToString) -> SetupError {
    SetupError::File {
        path: path.to_owned(),
        detail: detail.to_string(),
    }
}

/// Speaks TLS on a connection to `host`.
pub(crate) async fn connect(
    stream: TcpStream,
    host: &str,
    files: Arc<TlsFiles>,
) -> io::Result<TlsStream<TcpStream>> {
    let name = ServerName::try_from(host.to_owned()).map_err(io::Error::other)?;
    let read = tokio::task::spawn_blocking(move || config(&files)).await;
    let config = read
        .map_err(io::Error::other)?
        .map_err(|error| io::Error::other(chain(&error)))?;
    TlsConnector::from(Arc::new(config)).connect(name, stream).await
}

/// Whether a certificate was refused, ours by the proxy or the proxy's by us: trying again cannot help.
pub(crate) fn refused(error: &(dyn Error + 'static)) -> bool {
    if let Some(tls) = error.downcast_ref::<rustls::Error>() {
        return matches!(
            tls,
            rustls::Error::InvalidCertificate(_)
                | rustls::Error::AlertReceived(_)
                | rustls::Error::NoCertificatesPresented
        );
    }
    // What an `io::Error` wraps is not its source: it has to be asked for.
    let wrapped = error
        .downcast_ref::<io::Error>()
        .and_then(io::Error::get_ref)
        .is_some_and(|inner| refused(inner));
    wrapped || error.source().is_some_and(refused)
}
