//! Listeners of a server: TCP, or a Unix socket.

use std::fs;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::Path;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};

use crate::peer::{LocalProcess, Peer};

/// Listener of [`serve`](crate::serve).
#[derive(Debug)]
pub enum Listener {
    /// TCP.
    Tcp(TcpListener),
    /// Unix socket. Its clients are identified by the kernel ([`Peer::process`]).
    Unix(UnixListener),
}

impl From<TcpListener> for Listener {
    fn from(listener: TcpListener) -> Self {
        Self::Tcp(listener)
    }
}

impl From<UnixListener> for Listener {
    fn from(listener: UnixListener) -> Self {
        Self::Unix(listener)
    }
}

impl Listener {
    /// Listens on a Unix socket at `path` that only its user can connect to (mode 0600). Creates missing
    /// directories with mode 0700, and the file `PATH.lock`. Replaces the socket of a process that has
    /// ended.
    ///
    /// # Errors
    ///
    /// [`io::ErrorKind::AddrInUse`] if a process answers on the socket, [`io::ErrorKind::AlreadyExists`] if
    /// the file is not a socket, and errors of the operating system, such as for a path of more than 107
    /// bytes.
    pub fn bind_unix(path: &Path) -> io::Result<Self> {
        use std::os::unix::fs::FileTypeExt as _;

        let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty());
        let directory = directory.unwrap_or(Path::new("."));
        fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(directory)?;
        // Two processes that replace a stale socket at once would remove the socket of each other. Only the
        // user of the socket can lock this file; any user who can read the directory could lock that.
        let mut turn = path.as_os_str().to_owned();
        turn.push(".lock");
        let turn = fs::OpenOptions::new()
            .create(true)
            .truncate(false)
            .write(true)
            .mode(0o600)
            .open(turn)?;
        turn.lock()?;
        match fs::symlink_metadata(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
            Ok(metadata) if !metadata.file_type().is_socket() => {
                let text = format!(
                    "{} is not a socket: remove it, or use another path",
                    path.display()
                );
                return Err(io::Error::new(io::ErrorKind::AlreadyExists, text));
            }
            Ok(_) => match std::os::unix::net::UnixStream::connect(path) {
                Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => fs::remove_file(path)?,
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(error),
                Ok(_) => {
                    let text = format!("another process listens on {}", path.display());
                    return Err(io::Error::new(io::ErrorKind::AddrInUse, text));
                }
            },
        }
        let listener = UnixListener::bind(path)?;
        fs::set_permissions(path, fs::Permissions::from_mode(0o600))?;
        Ok(Self::Unix(listener))
    }

    pub(crate) async fn accept(&self) -> io::Result<(Stream, Peer)> {
        match self {
            Self::Tcp(listener) => {
                let (stream, address) = listener.accept().await?;
                let peer = Peer::new(address).with_local_address(stream.local_addr().ok());
                Ok((Stream::Tcp(stream), peer))
            }
            Self::Unix(listener) => {
                let (stream, _) = listener.accept().await?;
                let credentials = stream.peer_cred()?;
                let process = LocalProcess {
                    user: credentials.uid(),
                    // The kernel reports 0 for a process of a pid namespace that is not visible here.
                    pid: credentials
                        .pid()
                        .and_then(|pid| u32::try_from(pid).ok())
                        .filter(|pid| *pid != 0),
                };
                let address = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
                Ok((Stream::Unix(stream), Peer::new(address).with_process(process)))
            }
        }
    }
}

/// Accepted connection.
#[derive(Debug)]
pub(crate) enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Stream {
    /// Sends small responses at once.
    pub(crate) fn set_nodelay(&self) -> io::Result<()> {
        match self {
            Self::Tcp(stream) => stream.set_nodelay(true),
            Self::Unix(_) => Ok(()),
        }
    }
}

macro_rules! poll_stream {
    ($stream:expr, $method:ident($($argument:expr),*)) => {
        match $stream.get_mut() {
            Self::Tcp(stream) => Pin::new(stream).$method($($argument),*),
            Self::Unix(stream) => Pin::new(stream).$method($($argument),*),
        }
    };
}

impl AsyncRead for Stream {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        poll_stream!(self, poll_read(context, buffer))
    }
}

impl AsyncWrite for Stream {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        poll_stream!(self, poll_write(context, bytes))
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        poll_stream!(self, poll_write_vectored(context, bytes))
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        poll_stream!(self, poll_flush(context))
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        poll_stream!(self, poll_shutdown(context))
    }
}
