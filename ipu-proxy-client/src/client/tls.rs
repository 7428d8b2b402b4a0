//! TLS configuration. The files are read for every connection, so that renewed files are used.

use std::error::Error;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ipu_core::ErrorChain;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::error::SetupError;

/// PEM files of a TLS client.
///
/// ```
/// use ipu_proxy_client::{ClientCertificate, ClientOptions, ProxyClient, TlsFiles};
///
/// // A file without a certificate.
/// let mut files = TlsFiles::new("Cargo.toml");
/// files.own = Some(ClientCertificate::new("/etc/proxy/tls.crt", "/etc/proxy/tls.key"));
/// let mut options = ClientOptions::default();
/// options.tls = Some(files);
/// let error = ProxyClient::new("https://vipu-proxy:8443", options.clone()).unwrap_err();
/// assert_eq!(error.to_string(), "use Cargo.toml: the file has no certificate");
///
/// let error = ProxyClient::new("http://vipu-proxy:8080", options).unwrap_err();
/// assert_eq!(
///     error.to_string(),
///     r#"certificates cannot be used with "http://vipu-proxy:8080": use https"#,
/// );
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TlsFiles {
    /// CA certificates for the certificate of the proxy.
    pub ca: PathBuf,
    /// Client certificate, if any.
    pub own: Option<ClientCertificate>,
}

impl TlsFiles {
    /// Creates a configuration with these CA certificates and without a client certificate.
    #[must_use]
    pub fn new(ca: impl Into<PathBuf>) -> Self {
        Self {
            ca: ca.into(),
            own: None,
        }
    }
}

/// Certificate of a client.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ClientCertificate {
    /// File with the certificate, followed by its chain.
    pub certificate: PathBuf,
    /// File with the private key.
    pub key: PathBuf,
}

impl ClientCertificate {
    /// Creates a client certificate from files.
    #[must_use]
    pub fn new(certificate: impl Into<PathBuf>, key: impl Into<PathBuf>) -> Self {
        Self {
            certificate: certificate.into(),
            key: key.into(),
        }
    }
}

/// Returns the configuration of the files. The crypto provider is passed explicitly and not installed for the
/// process.
pub(crate) fn config(files: &TlsFiles) -> Result<ClientConfig, SetupError> {
    let mut roots = RootCertStore::empty();
    // Bundles of a system may contain certificates that cannot be parsed.
    let (trusted, _) = roots.add_parsable_certificates(certificates(&files.ca)?);
    if trusted == 0 {
        return Err(invalid(&files.ca, "the file has no certificate"));
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| invalid(&files.ca, error))?
        .with_root_certificates(roots);
    let mut config = match &files.own {
        Some(own) => {
            let key = PrivateKeyDer::from_pem_file(&own.key).map_err(|error| invalid(&own.key, error))?;
            builder
                .with_client_auth_cert(certificates(&own.certificate)?, key)
                .map_err(|error| invalid(&own.certificate, error))?
        }
        None => builder.with_no_client_auth(),
    };
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(config)
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, SetupError> {
    let certificates: Vec<_> = CertificateDer::pem_file_iter(path)
        .and_then(Iterator::collect)
        .map_err(|error| invalid(path, error))?;
    if certificates.is_empty() {
        return Err(invalid(path, "the file has no certificate"));
    }
    Ok(certificates)
}

fn invalid(path: &Path, detail: impl ToString) -> SetupError {
    SetupError::File {
        path: path.to_owned(),
        detail: detail.to_string(),
    }
}

/// Performs the TLS handshake with `host`.
pub(crate) async fn connect(
    stream: TcpStream,
    host: &str,
    files: Arc<TlsFiles>,
) -> io::Result<TlsStream<TcpStream>> {
    let name = ServerName::try_from(host.to_owned()).map_err(io::Error::other)?;
    let read = tokio::task::spawn_blocking(move || config(&files)).await;
    let config = read
        .map_err(io::Error::other)?
        .map_err(|error| io::Error::other(ErrorChain(&error).to_string()))?;
    TlsConnector::from(Arc::new(config)).connect(name, stream).await
}

/// Returns whether a certificate was rejected, by the proxy or by the client, so that a retry is useless. The
/// client of V-IPU controllers also matches the text of an alert, which is all that HTTP/2 keeps; this client
/// speaks HTTP/1.1.
pub(crate) fn is_rejected(error: &(dyn Error + 'static)) -> bool {
    if let Some(tls) = error.downcast_ref::<rustls::Error>() {
        return matches!(
            tls,
            rustls::Error::InvalidCertificate(_)
                | rustls::Error::AlertReceived(_)
                | rustls::Error::NoCertificatesPresented
        );
    }
    // The inner error of an `io::Error` is not its source.
    let wrapped = error
        .downcast_ref::<io::Error>()
        .and_then(io::Error::get_ref)
        .is_some_and(|inner| is_rejected(inner));
    wrapped || error.source().is_some_and(is_rejected)
}
