//! Clients on the host of a proxy that has neither tokens nor certificates: the kernel knows their users.

use std::net::SocketAddr;

use async_trait::async_trait;
use procfs::net::{TcpNetEntry, TcpState};

use crate::auth::{AuthError, Authenticator, Credentials, Identity};

/// The superuser, who may do everything on the host anyway.
const ROOT: u32 = 0;

/// Lets the user of the proxy and root in, and no other user of the host.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LocalUsers {
    user: u32,
}

impl LocalUsers {
    /// The user that this process runs as.
    pub(crate) fn of_this_process() -> Self {
        Self {
            user: rustix::process::geteuid().as_raw(),
        }
    }

    fn judge(self, client: Option<u32>) -> Result<Identity, AuthError> {
        match client {
            Some(user) if user == self.user || user == ROOT => Ok(Identity::new("anonymous")),
            Some(user) => Err(AuthError::Unknown {
                detail: format!(
                    "user {user} of this host is not user {} of the proxy; start the proxy with --token-file to let other \
                     users in, or with --auth none to let all in",
                    self.user
                ),
            }),
            None => Err(AuthError::Unavailable {
                detail: "the kernel does not list the connection".to_owned(),
            }),
        }
    }
}

#[async_trait]
impl Authenticator for LocalUsers {
    async fn authenticate(&self, credentials: Credentials<'_>) -> Result<Identity, AuthError> {
        let Some(connection) = credentials.connection else {
            return Err(AuthError::Missing);
        };
        let lookup = tokio::task::spawn_blocking(move || user_of(connection));
        let unavailable = |detail: String| AuthError::Unavailable { detail };
        match lookup.await {
            Ok(Ok(user)) => self.judge(user),
            Ok(Err(error)) => Err(unavailable(format!("read /proc/net/tcp: {error}"))),
            Err(error) => Err(unavailable(error.to_string())),
        }
    }
}

/// The user of the socket at the client's end of a connection within this host.
fn user_of((client, server): (SocketAddr, SocketAddr)) -> procfs::ProcResult<Option<u32>> {
    let sockets = if client.is_ipv4() {
        procfs::net::tcp()?
    } else {
        procfs::net::tcp6()?
    };
    Ok(sockets
        .iter()
        .find(|socket| is_client(socket, client, server))
        .map(|socket| socket.uid))
}

/// Whether `socket` is an end with a process: a closed one is listed with user 0.
fn is_client(socket: &TcpNetEntry, client: SocketAddr, server: SocketAddr) -> bool {
    socket.local_address == client && socket.remote_address == server && socket.state == TcpState::Established
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use super::*;

    #[test]
    fn the_kernel_names_the_user_of_a_connection_while_it_is_open() {
        for address in ["127.0.0.1:0", "[::1]:0"] {
            let Ok(listener) = TcpListener::bind(address) else {
                assert!(address.starts_with('['), "a host without IPv6 has IPv4");
                continue;
            };
            let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let ends = (client.local_addr().unwrap(), listener.local_addr().unwrap());
            let (_server, _) = listener.accept().unwrap();
            assert_eq!(user_of(ends).unwrap(), Some(LocalUsers::of_this_process().user));
            drop(client);
            assert_eq!(user_of(ends).unwrap(), None);
        }
    }

    #[test]
    fn only_the_user_of_the_proxy_and_root_are_let_in() {
        let proxy = LocalUsers { user: 1000 };
        for (client, is_let_in) in [
            (Some(1000), true),
            (Some(0), true),
            (Some(1001), false),
            (None, false),
        ] {
            assert_eq!(proxy.judge(client).is_ok(), is_let_in, "{client:?}");
        }
    }
}
