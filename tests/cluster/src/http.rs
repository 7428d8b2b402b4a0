//! A readiness probe of a local server: one GET, with or without TLS.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};

/// Timeout of one request: a starting server may respond late or not at all, and is polled again.
const TIMEOUT: Duration = Duration::from_secs(2);

/// Returns a TLS client configuration that trusts this authority alone.
pub(crate) fn client_config(
    ca_pem: &str,
) -> Result<Arc<ClientConfig>, Box<dyn std::error::Error + Send + Sync>> {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(ca_pem.as_bytes())?)?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(Arc::new(config))
}

/// Returns the status and body of `GET path`.
pub(crate) fn get(
    address: SocketAddr,
    path: &str,
    tls: Option<&Arc<ClientConfig>>,
) -> io::Result<(u16, String)> {
    let stream = TcpStream::connect_timeout(&address, TIMEOUT)?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    stream.set_write_timeout(Some(TIMEOUT))?;
    match tls {
        None => send_get(stream, path),
        Some(config) => {
            let name = ServerName::from(address.ip());
            let connection = ClientConnection::new(Arc::clone(config), name).map_err(io::Error::other)?;
            send_get(StreamOwned::new(connection, stream), path)
        }
    }
}

fn send_get(mut stream: impl Read + Write, path: &str) -> io::Result<(u16, String)> {
    write!(
        stream,
        "GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    )?;
    let mut response = Vec::new();
    match stream.read_to_end(&mut response) {
        Ok(_) => {}
        // Some servers close a TLS connection without close_notify.
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof && !response.is_empty() => {}
        Err(error) => return Err(error),
    }
    let response = String::from_utf8_lossy(&response);
    let (head, body) = response.split_once("\r\n\r\n").unwrap_or((&response, ""));
    let status = head
        .split_whitespace()
        .nth(1)
        .and_then(|status| status.parse().ok())
        .ok_or_else(|| io::Error::other("the response is not HTTP"))?;
    Ok((status, body.to_owned()))
}
