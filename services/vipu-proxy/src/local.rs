//! Authentication of local clients by their user, from the kernel: on a Unix socket, and for a proxy without
//! tokens and certificates.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use async_trait::async_trait;
use procfs::ProcResult;
use procfs::net::{TcpNetEntry, TcpState};
use tokio::sync::Mutex;

use crate::auth::{AuthError, Authenticator, Credentials, Identity};

/// User id of root, which has access to everything on the host.
const ROOT_UID: u32 = 0;

/// User ids of established connections, by the addresses of client and server.
type Users = HashMap<(SocketAddr, SocketAddr), u32>;

/// Authenticates the user of the proxy and root, and refuses other users of the host.
#[derive(Debug)]
pub(crate) struct LocalUsers {
    user: u32,
    ipv4: Sockets,
    ipv6: Sockets,
}

/// Latest list of the kernel's sockets. One read serves all requests that arrived before it. The list has a
/// line for every connection of the host, so that one read for each request would have a quadratic cost.
#[derive(Debug, Default)]
struct Sockets(Mutex<Option<(Instant, Arc<Users>)>>);

impl Sockets {
    /// Returns a list that is not older than this call. `read` reads it from the kernel.
    async fn newest(
        &self,
        read: impl FnOnce() -> ProcResult<Users> + Send + 'static,
    ) -> Result<Arc<Users>, String> {
        let requested = Instant::now();
        let mut newest = self.0.lock().await;
        if let Some((started, users)) = &*newest
            && *started >= requested
        {
            return Ok(Arc::clone(users));
        }
        let started = Instant::now();
        let users = match tokio::task::spawn_blocking(read).await {
            Ok(users) => users.map_err(|error| format!("read /proc/net/tcp: {error}"))?,
            Err(error) => return Err(error.to_string()),
        };
        let users = Arc::new(users);
        *newest = Some((started, Arc::clone(&users)));
        Ok(users)
    }
}

impl LocalUsers {
    /// Creates an authenticator for the user of this process.
    pub(crate) fn of_this_process() -> Self {
        Self {
            user: rustix::process::geteuid().as_raw(),
            ipv4: Sockets::default(),
            ipv6: Sockets::default(),
        }
    }

    fn identity_of(&self, client: Option<u32>) -> Result<Identity, AuthError> {
        match client {
            Some(user) if user == self.user || user == ROOT_UID => Ok(Identity::new("anonymous")),
            Some(user) => Err(AuthError::Unknown {
                detail: format!(
                    "user {user} of this host is not user {} of the proxy; start the proxy with --token-file to admit other \
                     users, or with --auth none to admit all",
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
        if let Some(process) = credentials.process {
            return self.identity_of(Some(process.user));
        }
        let Some(connection) = credentials.connection else {
            return Err(AuthError::Missing);
        };
        let users = if connection.0.is_ipv4() {
            self.ipv4.newest(|| Ok(users(&procfs::net::tcp()?))).await
        } else {
            self.ipv6.newest(|| Ok(users(&procfs::net::tcp6()?))).await
        };
        let users = users.map_err(|detail| AuthError::Unavailable { detail })?;
        self.identity_of(users.get(&connection).copied())
    }
}

/// Returns the users of established sockets; the kernel lists closed sockets with user 0.
fn users(sockets: &[TcpNetEntry]) -> Users {
    let open = sockets
        .iter()
        .filter(|socket| socket.state == TcpState::Established);
    open.map(|socket| ((socket.local_address, socket.remote_address), socket.uid))
        .collect()
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};
    use std::sync::atomic::{AtomicU32, Ordering};

    use tokio::task::JoinSet;

    use super::*;

    #[test]
    fn the_kernel_lists_the_user_of_a_connection_while_it_is_open() {
        for address in ["127.0.0.1:0", "[::1]:0"] {
            let Ok(listener) = TcpListener::bind(address) else {
                assert!(address.starts_with('['), "a host without IPv6 has IPv4");
                continue;
            };
            let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let ends = (client.local_addr().unwrap(), listener.local_addr().unwrap());
            let (_server, _) = listener.accept().unwrap();
            let user_of = |ends| {
                let sockets = [procfs::net::tcp(), procfs::net::tcp6()].map(Result::unwrap_or_default);
                users(&sockets.concat()).get(&ends).copied()
            };
            assert_eq!(user_of(ends), Some(LocalUsers::of_this_process().user));
            drop(client);
            assert_eq!(user_of(ends), None);
        }
    }

    #[test]
    fn only_the_user_of_the_proxy_and_root_are_admitted() {
        let mut proxy = LocalUsers::of_this_process();
        proxy.user = 1000;
        for (client, is_admitted) in [
            (Some(1000), true),
            (Some(0), true),
            (Some(1001), false),
            (None, false),
        ] {
            assert_eq!(proxy.identity_of(client).is_ok(), is_admitted, "{client:?}");
        }
    }

    #[tokio::test(flavor = "current_thread")]
    async fn one_read_serves_all_requests_that_arrived_before_it() {
        let (sockets, reads) = (Arc::new(Sockets::default()), Arc::new(AtomicU32::new(0)));
        let mut lookups = JoinSet::new();
        for _ in 0..100 {
            let (sockets, reads) = (Arc::clone(&sockets), Arc::clone(&reads));
            lookups.spawn(async move {
                let read = move || {
                    reads.fetch_add(1, Ordering::SeqCst);
                    Ok(Users::new())
                };
                sockets.newest(read).await.is_ok()
            });
        }
        assert!(lookups.join_all().await.into_iter().all(|is_ok| is_ok));
        // The other requests arrived during the first read.
        assert_eq!(reads.load(Ordering::SeqCst), 2);
    }
}
