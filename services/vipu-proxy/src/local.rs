//! Clients on the host of a proxy that has neither tokens nor certificates: the kernel knows their users.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use async_trait::async_trait;
use procfs::ProcResult;
use procfs::net::{TcpNetEntry, TcpState};
use tokio::sync::Mutex;

use crate::auth::{AuthError, Authenticator, Credentials, Identity};

/// The superuser, who may do everything on the host anyway.
const ROOT: u32 = 0;

/// The users of established connections, by the addresses of client and server.
type Users = HashMap<(SocketAddr, SocketAddr), u32>;

/// Lets the user of the proxy and root in, and no other user of the host.
#[derive(Debug)]
pub(crate) struct LocalUsers {
    user: u32,
    ipv4: Sockets,
    ipv6: Sockets,
}

/// The newest list of the kernel's sockets. One read serves all requests that arrived before it: the list has a line for every
/// connection of the host, so that a read for each request would cost the square of their number.
#[derive(Debug, Default)]
struct Sockets(Mutex<Option<(Instant, Arc<Users>)>>);

impl Sockets {
    /// Returns a list that is not older than this call. `read` reads it from the kernel.
    async fn newest(
        &self,
        read: impl FnOnce() -> ProcResult<Users> + Send + 'static,
    ) -> Result<Arc<Users>, String> {
        let asked = Instant::now();
        let mut newest = self.0.lock().await;
        if let Some((began, users)) = &*newest
            && *began >= asked
        {
            return Ok(Arc::clone(users));
        }
        let began = Instant::now();
        let users = match tokio::task::spawn_blocking(read).await {
            Ok(users) => users.map_err(|error| format!("read /proc/net/tcp: {error}"))?,
            Err(error) => return Err(error.to_string()),
        };
        let users = Arc::new(users);
        *newest = Some((began, Arc::clone(&users)));
        Ok(users)
    }
}

impl LocalUsers {
    /// The user that this process runs as.
    pub(crate) fn of_this_process() -> Self {
        Self {
            user: rustix::process::geteuid().as_raw(),
            ipv4: Sockets::default(),
            ipv6: Sockets::default(),
        }
    }

    fn judge(&self, client: Option<u32>) -> Result<Identity, AuthError> {
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
        let users = if connection.0.is_ipv4() {
            self.ipv4.newest(|| Ok(users(&procfs::net::tcp()?))).await
        } else {
            self.ipv6.newest(|| Ok(users(&procfs::net::tcp6()?))).await
        };
        let users = users.map_err(|detail| AuthError::Unavailable { detail })?;
        self.judge(users.get(&connection).copied())
    }
}

/// The users of the sockets that have a process: a closed one is listed with user 0.
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
    fn the_kernel_names_the_user_of_a_connection_while_it_is_open() {
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
    fn only_the_user_of_the_proxy_and_root_are_let_in() {
        let mut proxy = LocalUsers::of_this_process();
        proxy.user = 1000;
        for (client, is_let_in) in [
            (Some(1000), true),
            (Some(0), true),
            (Some(1001), false),
            (None, false),
        ] {
            assert_eq!(proxy.judge(client).is_ok(), is_let_in, "{client:?}");
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
        // The others arrived while the first one read.
        assert_eq!(reads.load(Ordering::SeqCst), 2);
    }
}
