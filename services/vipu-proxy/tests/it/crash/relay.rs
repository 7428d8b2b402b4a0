//! Relay between a client and a server that drops replies and delays requests beyond the client timeout.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use ipu_testkit::Random;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

/// Maximum delay of a request in milliseconds.
const MAX_DELAY_MS: u32 = 5_000;

/// Fault probabilities of each chunk of bytes, in percent.
#[derive(Clone, Copy, Default)]
pub(super) struct Faults {
    /// Probability of a lost reply, which closes the connection.
    pub(super) lost: u32,
    /// Probability of a delayed request, which arrives even if its client has closed the connection.
    pub(super) late: u32,
}

#[derive(Default)]
struct Counts {
    lost: AtomicU64,
    late: AtomicU64,
    delayed: AtomicU64,
}

struct FaultInjector {
    faults: Faults,
    random: Mutex<Random>,
}

impl FaultInjector {
    fn is_lost(&self) -> bool {
        self.random().chance(self.faults.lost)
    }

    fn delay(&self) -> Option<Duration> {
        let mut random = self.random();
        let late = random.chance(self.faults.late);
        late.then(|| Duration::from_millis(u64::from(random.below(MAX_DELAY_MS))))
    }

    fn random(&self) -> std::sync::MutexGuard<'_, Random> {
        self.random.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

pub(super) struct Relay {
    pub(super) address: SocketAddr,
    counts: Arc<Counts>,
}

impl Relay {
    /// Starts a relay to `target` with these faults.
    pub(super) async fn start(target: SocketAddr, faults: Faults, seed: u64) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let counts = Arc::new(Counts::default());
        let random = Mutex::new(Random::new(seed));
        let injector = Arc::new(FaultInjector { faults, random });
        let counter = Arc::clone(&counts);
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                tokio::spawn(relay(client, target, Arc::clone(&injector), Arc::clone(&counter)));
            }
        });
        Self { address, counts }
    }

    /// Returns the number of lost replies.
    pub(super) fn lost(&self) -> u64 {
        self.counts.lost.load(Ordering::SeqCst)
    }

    /// Returns the number of requests that were delivered late.
    pub(super) fn late(&self) -> u64 {
        self.counts.late.load(Ordering::SeqCst)
    }

    /// Returns whether a delayed request is still pending.
    pub(super) fn has_delayed_requests(&self) -> bool {
        self.counts.delayed.load(Ordering::SeqCst) > 0
    }
}

/// Copies bytes in both directions until one side closes or a reply is dropped.
async fn relay(client: TcpStream, target: SocketAddr, injector: Arc<FaultInjector>, counts: Arc<Counts>) {
    let Ok(server) = TcpStream::connect(target).await else {
        return;
    };
    let (mut from_client, mut to_client) = client.into_split();
    let (mut from_server, mut to_server) = server.into_split();
    let (requests, counter) = (Arc::clone(&injector), Arc::clone(&counts));
    // The task ends with either connection.
    tokio::spawn(async move {
        let mut buffer = vec![0; 64 * 1024];
        while let Ok(length @ 1..) = from_client.read(&mut buffer).await {
            let delay = requests.delay();
            if let Some(delay) = delay {
                counter.delayed.fetch_add(1, Ordering::SeqCst);
                tokio::time::sleep(delay).await;
            }
            let written = to_server.write_all(&buffer[..length]).await;
            if delay.is_some() {
                counter.late.fetch_add(1, Ordering::SeqCst);
                counter.delayed.fetch_sub(1, Ordering::SeqCst);
            }
            if written.is_err() {
                break;
            }
        }
        let _ = to_server.shutdown().await;
    });
    let mut buffer = vec![0; 64 * 1024];
    while let Ok(length @ 1..) = from_server.read(&mut buffer).await {
        if injector.is_lost() {
            counts.lost.fetch_add(1, Ordering::SeqCst);
            break;
        }
        if to_client.write_all(&buffer[..length]).await.is_err() {
            break;
        }
    }
}
