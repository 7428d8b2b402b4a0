//! A relay between two parties that drops replies: the request has arrived, and nobody hears what came of it.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use ipu_testkit::Random;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

pub(super) struct Relay {
    pub(super) address: SocketAddr,
    dropped: Arc<AtomicU64>,
}

impl Relay {
    /// A relay to `target` that cuts the connection instead of delivering `percent` of the pieces of replies.
    pub(super) async fn start(target: SocketAddr, percent: u32, seed: u64) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let dropped = Arc::new(AtomicU64::new(0));
        let random = Arc::new(Mutex::new(Random::new(seed)));
        let counter = Arc::clone(&dropped);
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let (random, dropped) = (Arc::clone(&random), Arc::clone(&counter));
                let lost = move || {
                    let lost = random
                        .lock()
                        .unwrap_or_else(PoisonError::into_inner)
                        .chance(percent);
                    dropped.fetch_add(u64::from(lost), Ordering::SeqCst);
                    lost
                };
                tokio::spawn(relay(client, target, lost));
            }
        });
        Self { address, dropped }
    }

    pub(super) fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::SeqCst)
    }
}

/// Carries bytes both ways until one side ends, or a reply is lost.
async fn relay(client: TcpStream, target: SocketAddr, mut lost: impl FnMut() -> bool) {
    let Ok(server) = TcpStream::connect(target).await else {
        return;
    };
    let (mut from_client, mut to_client) = client.into_split();
    let (mut from_server, mut to_server) = server.into_split();
    let requests = tokio::spawn(async move {
        let _ = tokio::io::copy(&mut from_client, &mut to_server).await;
        let _ = to_server.shutdown().await;
    });
    let mut buffer = vec![0; 64 * 1024];
    while let Ok(length @ 1..) = from_server.read(&mut buffer).await {
        if lost() || to_client.write_all(&buffer[..length]).await.is_err() {
            break;
        }
    }
    requests.abort();
}
