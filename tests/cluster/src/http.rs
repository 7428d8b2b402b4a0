//! Asks a server on this machine whether it is ready: one GET, with or without TLS.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};

/// How long one question may take: a server that is starting answers late or not at all, and is asked again.
const TIMEOUT: Duration = Duration::from_secs(2);

/// A client that trusts this authority alone.
pub(crate) fn trusting(ca_pem: &str) -> Result<Arc<ClientConfig>, Box<dyn std::error::Error + Send + Sync>> {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(ca_pem.as_bytes())?)?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(Arc::new(config))
}

/// The status and body that `GET path` is answered with.
pub(crate) fn get(
    address: SocketAddr,
    path: &str,
    tls: Option<&Arc<ClientConfig>>,
) -> io::Result<(u16, String)> {
    let stream = TcpStream::connect_timeout(&address, TIMEOUT)?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    stream.set_write_timeout(Some(TIMEOUT))?;
    match tls {
        None => ask(stream, path),
        Some(config) => {
            let name = ServerName::from(address.ip());
            let connection = ClientConnection::new(Arc::clone(config), name).map_err(io::Error::other)?;
            ask(StreamOwned::new(connection, stream), path)
        }
    }
}

fn ask(mut stream: impl Read + Write, path: &str) -> io::Result<(u16, String)> {
    write!(
        stream,
        "GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    )?;
    let mut answer = Vec::new();
    match stream.read_to_end(&mut answer) {
        Ok(_) => {}
        // Some servers close without a farewell in TLS.
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof && !answer.is_empty() => {}
        Err(error) => return Err(error),
    }
    let answer = String::from_utf8_lossy(&answer);
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or((&answer, ""));
    let status = head
        .split_whitespace()
        .nth(1)
        .and_then(|status| status.parse().ok())
        .ok_or_else(|| io::Error::other("the answer is not HTTP"))?;
    Ok((status, body.to_owned()))
}
