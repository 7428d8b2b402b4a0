//! Connections with a timeout, with or without TLS.

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use http::Uri;
use hyper_util::client::legacy::connect::{Connected, Connection};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};
use tower::Service;

#[cfg(feature = "tls")]
use super::tls::{self, TlsFiles};

/// Opens connections to the proxy.
#[derive(Clone, Debug)]
pub(crate) struct Connector {
    pub(crate) deadline: Duration,
    /// Unix socket of the proxy, instead of the address of the URL.
    pub(crate) socket: Option<PathBuf>,
    /// Address to connect to instead of that of the URL.
    pub(crate) connect_to: Option<SocketAddr>,
    /// Whether the requests have a token.
    pub(crate) has_token: bool,
    #[cfg(feature = "tls")]
    pub(crate) tls: Option<std::sync::Arc<TlsFiles>>,
}

/// A bidirectional byte stream.
pub(crate) trait Bytes: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Bytes for T {}

impl Connection for Box<dyn Bytes> {
    fn connected(&self) -> Connected {
        Connected::new()
    }
}

/// A connection.
type Stream = TokioIo<Box<dyn Bytes>>;

fn boxed(stream: impl Bytes + 'static) -> Stream {
    TokioIo::new(Box::new(stream))
}

impl Connector {
    async fn connect(self, uri: Uri) -> io::Result<Stream> {
        if let Some(path) = self.socket {
            return UnixStream::connect(path).await.map(boxed);
        }
        let host = uri.host().unwrap_or_default();
        let host = host
            .strip_prefix('[')
            .and_then(|host| host.strip_suffix(']'))
            .unwrap_or(host);
        let is_secure = uri.scheme_str() == Some("https");
        let port = uri.port_u16().unwrap_or(if is_secure { 443 } else { 80 });
        let stream = match self.connect_to {
            // The caller has this port.
            Some(address) => TcpStream::connect(address).await?,
            None => {
                let stream = TcpStream::connect((host, port)).await?;
                if self.has_token && !is_secure {
                    ensure_no_user_has(stream.peer_addr()?, stream.local_addr()?)?;
                }
                stream
            }
        };
        stream.set_nodelay(true)?;
        #[cfg(feature = "tls")]
        if let Some(files) = self.tls.filter(|_| is_secure) {
            return tls::connect(stream, host, files).await.map(boxed);
        }
        Ok(boxed(stream))
    }
}

/// First port that every user of a host may listen on.
const FIRST_USER_PORT: u16 = 1024;

/// Checks that the server of a connection without TLS is not a program of any user of this host, which would
/// get the token: while the proxy restarts, every user may take its port.
fn ensure_no_user_has(server: SocketAddr, client: SocketAddr) -> io::Result<()> {
    // An address of IPv4 may be written as one of IPv6.
    let ip = server.ip().to_canonical();
    let is_this_host = ip.is_loopback() || ip == client.ip().to_canonical();
    if !is_this_host || server.port() < FIRST_USER_PORT {
        return Ok(());
    }
    let text = format!(
        "every user of this host may listen on {server} and get the token: use unix:PATH, which needs no token, or https"
    );
    Err(io::Error::new(io::ErrorKind::PermissionDenied, text))
}

impl Service<Uri> for Connector {
    type Response = Stream;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<Stream>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        let (connector, deadline) = (self.clone(), self.deadline);
        Box::pin(async move {
            let timed_out = |_| {
                let text = format!("no connection within {} s", deadline.as_secs_f32());
                io::Error::new(io::ErrorKind::TimedOut, text)
            };
            tokio::time::timeout(deadline, connector.connect(uri))
                .await
                .map_err(timed_out)?
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_port_of_this_host_that_every_user_may_have_is_refused() {
        for (server, client, is_refused) in [
            ("127.0.0.1:8080", "127.0.0.1:40000", true),
            ("127.0.1.1:1024", "127.0.0.1:40000", true),
            ("[::1]:8080", "[::1]:40000", true),
            // 127.0.1.1 as an address of IPv6.
            ("[::ffff:127.0.1.1]:8080", "[::ffff:127.0.0.1]:40000", true),
            // The address of this host on a network.
            ("192.0.2.7:8080", "192.0.2.7:40000", true),
            ("127.0.0.1:1023", "127.0.0.1:40000", false),
            ("192.0.2.8:8080", "192.0.2.7:40000", false),
        ] {
            let checked = ensure_no_user_has(server.parse().unwrap(), client.parse().unwrap());
            assert_eq!(checked.is_err(), is_refused, "{server}");
        }
    }
}
