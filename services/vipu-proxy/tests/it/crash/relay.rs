//! A relay between two parties that drops replies and delivers requests late: after the client has given up.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use ipu_testkit::Random;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

/// Longest time for which a request is kept back, in milliseconds.
const LATE_MAX_MS: u32 = 5_000;

/// Percentages of the pieces of bytes that are not delivered as they come.
#[derive(Clone, Copy, Default)]
pub(super) struct Faults {
    /// Replies that are lost with their connection.
    pub(super) lost: u32,
    /// Requests that arrive late, also if their client has closed its connection.
    pub(super) late: u32,
}

#[derive(Default)]
struct Counts {
    lost: AtomicU64,
    late: AtomicU64,
    kept_back: AtomicU64,
}

struct Dice {
    faults: Faults,
    random: Mutex<Random>,
}

impl Dice {
    fn is_lost(&self) -> bool {
        self.random().chance(self.faults.lost)
    }

    fn delay(&self) -> Option<Duration> {
        let mut random = self.random();
        let late = random.chance(self.faults.late);
        late.then(|| Duration::from_millis(u64::from(random.below(LATE_MAX_MS))))
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
    /// A relay to `target` with these faults.
    pub(super) async fn start(target: SocketAddr, faults: Faults, seed: u64) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let counts = Arc::new(Counts::default());
        let random = Mutex::new(Random::new(seed));
        let dice = Arc::new(Dice { faults, random });
        let counter = Arc::clone(&counts);
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                tokio::spawn(relay(client, target, Arc::clone(&dice), Arc::clone(&counter)));
            }
        });
        Self { address, counts }
    }

    /// The number of replies that were lost.
    pub(super) fn lost(&self) -> u64 {
        self.counts.lost.load(Ordering::SeqCst)
    }

    /// The number of requests that were delivered late.
    pub(super) fn late(&self) -> u64 {
        self.counts.late.load(Ordering::SeqCst)
    }

    /// Whether a request is still to be delivered.
    pub(super) fn keeps_back(&self) -> bool {
        self.counts.kept_back.load(Ordering::SeqCst) > 0
    }
}

/// Carries bytes both ways until one side ends, or a reply is lost.
async fn relay(client: TcpStream, target: SocketAddr, dice: Arc<Dice>, counts: Arc<Counts>) {
    let Ok(server) = TcpStream::connect(target).await else {
        return;
    };
    let (mut from_client, mut to_client) = client.into_split();
    let (mut from_server, mut to_server) = server.into_split();
    let (draws, late) = (Arc::clone(&dice), Arc::clone(&counts));
    // It ends with the connection of the client, or when the server is gone.
    tokio::spawn(async move {
        let mut buffer = vec![0; 64 * 1024];
        while let Ok(length @ 1..) = from_client.read(&mut buffer).await {
            let delay = draws.delay();
            if let Some(delay) = delay {
                late.kept_back.fetch_add(1, Ordering::SeqCst);
                tokio::time::sleep(delay).await;
            }
            let written = to_server.write_all(&buffer[..length]).await;
            if delay.is_some() {
                late.late.fetch_add(1, Ordering::SeqCst);
                late.kept_back.fetch_sub(1, Ordering::SeqCst);
            }
            if written.is_err() {
                break;
            }
        }
        let _ = to_server.shutdown().await;
    });
    let mut buffer = vec![0; 64 * 1024];
    while let Ok(length @ 1..) = from_server.read(&mut buffer).await {
        if dice.is_lost() {
            counts.lost.fetch_add(1, Ordering::SeqCst);
            break;
        }
        if to_client.write_all(&buffer[..length]).await.is_err() {
            break;
        }
    }
}
