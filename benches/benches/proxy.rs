//! Create + delete pairs at a proxy: a real process, a simulated controller without latency in it, connections that stay
//! open. With 1 and 64 clients that ask as fast as they are answered (closed loop), and with 500 pairs a second that are
//! sent when they are due, however late the answers to others are (open loop).
//!
//! The ledger is a file whose commits are synced, and a ConfigMap of a kube-apiserver whose etcd syncs, if their programs
//! are there (`cargo xtask cluster build`). The proxy is the one that the variable VIPU_PROXY names, or else one that is
//! built in release mode now. `IPU_BENCH_SECONDS` (10) is how long each of the measurements takes, `IPU_BENCH_PAIRS` (500)
//! the rate of the open loop.

#![expect(clippy::print_stdout, reason = "a benchmark prints its table")]

use std::io::{BufRead as _, BufReader};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use ipu_bench::{Connection, Took, percentile};
use ipu_test_cluster::{Cluster, ClusterLifetime, Durability, Tools};
use tokio::sync::Mutex;
use tokio::task::JoinSet;

/// A partition for each client and for many more.
const TOPOLOGY: &str = "pod256";

/// What is not measured at first.
const WARM: u64 = 300;

/// A proxy that ends with this.
struct Proxy {
    child: Child,
    address: SocketAddr,
}

impl Drop for Proxy {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn variable(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |text| text.parse().expect("a number"))
}

/// The program that is measured.
fn program() -> PathBuf {
    if let Some(path) = std::env::var_os("VIPU_PROXY") {
        return path.into();
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let built = Command::new(env!("CARGO"))
        .args(["build", "--quiet", "--release", "--package", "vipu-proxy"])
        .current_dir(&root)
        .status();
    assert!(built.is_ok_and(|status| status.success()), "vipu-proxy is built");
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), PathBuf::from);
    target.join("release/vipu-proxy")
}

/// Starts it on the store, and waits until it serves.
fn start(program: &Path, store: &str, cluster: Option<&Cluster>) -> Proxy {
    let mut command = Command::new(program);
    command
        .args([
            "--sim",
            TOPOLOGY,
            "--sim-delay-ms",
            "0",
            "--listen",
            "127.0.0.1:0",
        ])
        .args(["--auth", "none", "--store", store, "-v=1"])
        .stdin(Stdio::null())
        .stdout(Stdio::piped());
    if let Some(cluster) = cluster {
        command
            .env("KUBECONFIG", cluster.kubeconfig())
            .args(["--namespace", "default"]);
    }
    let mut child = command.spawn().expect("the proxy starts");
    let lines = BufReader::new(child.stdout.take().expect("its output")).lines();
    let address = lines
        .map_while(Result::ok)
        .find_map(|line| line.rsplit_once(" on ").map(|(_, address)| address.to_owned()))
        .expect("the proxy says where it serves");
    let address = address.trim().parse().expect("an address");
    Proxy { child, address }
}

/// Clients that ask again as soon as they are answered, for so long.
async fn closed(
    proxy: SocketAddr,
    clients: u64,
    time: Duration,
    numbers: &Arc<AtomicU64>,
) -> (Vec<Took>, Duration) {
    let begun = Instant::now();
    let mut tasks = JoinSet::new();
    for _ in 0..clients {
        let numbers = Arc::clone(numbers);
        tasks.spawn(async move {
            let mut connection = Connection::open(proxy).await;
            let mut took = Vec::new();
            while begun.elapsed() < time {
                let number = numbers.fetch_add(1, Ordering::Relaxed);
                took.push(connection.pair(number, Instant::now()).await);
            }
            took
        });
    }
    let took = tasks.join_all().await.concat();
    (took, begun.elapsed())
}

/// So many pairs a second, each when it is due.
async fn open(
    proxy: SocketAddr,
    rate: u64,
    time: Duration,
    numbers: &Arc<AtomicU64>,
) -> (Vec<Took>, Duration) {
    let idle: Arc<Mutex<Vec<Connection>>> = Arc::default();
    for _ in 0..64 {
        idle.lock().await.push(Connection::open(proxy).await);
    }
    let begun = Instant::now();
    let total = rate * time.as_secs();
    let mut tasks = JoinSet::new();
    for nth in 0..total {
        let due = begun + Duration::from_nanos(1_000_000_000 / rate * nth);
        tokio::time::sleep_until(due.into()).await;
        let (idle, numbers) = (Arc::clone(&idle), Arc::clone(numbers));
        tasks.spawn(async move {
            let kept = idle.lock().await.pop();
            let mut connection = match kept {
                Some(connection) => connection,
                None => Connection::open(proxy).await,
            };
            let took = connection
                .pair(numbers.fetch_add(1, Ordering::Relaxed), due)
                .await;
            idle.lock().await.push(connection);
            took
        });
    }
    let took = tasks.join_all().await;
    (took, begun.elapsed())
}

fn milliseconds(time: Duration) -> String {
    format!("{:.2}", time.as_secs_f64() * 1e3)
}

fn print(store: &str, load: &str, took: &[Took], time: Duration) {
    let sorted = |of: fn(&Took) -> Duration| {
        let mut times: Vec<Duration> = took.iter().map(of).collect();
        times.sort_unstable();
        times
    };
    let (create, delete) = (sorted(|took| took.create), sorted(|took| took.delete));
    #[expect(clippy::cast_precision_loss, reason = "for people")]
    let rate = took.len() as f64 / time.as_secs_f64();
    let mut cells = vec![store.to_owned(), load.to_owned(), format!("{rate:.0}")];
    for times in [&create, &delete] {
        let of = |share| milliseconds(percentile(times, share));
        cells.push(format!("{} / {} / {}", of(0.5), of(0.99), of(1.0)));
    }
    println!("| {} |", cells.join(" | "));
}

async fn measure(store: &str, proxy: SocketAddr) {
    let time = Duration::from_secs(variable("IPU_BENCH_SECONDS", 10));
    let rate = variable("IPU_BENCH_PAIRS", 500);
    let numbers = Arc::new(AtomicU64::new(0));
    let mut warm = Connection::open(proxy).await;
    for _ in 0..WARM {
        let number = numbers.fetch_add(1, Ordering::Relaxed);
        warm.pair(number, Instant::now()).await;
    }
    let mut most = 0;
    for clients in [1, 64] {
        let (took, time) = closed(proxy, clients, time, &numbers).await;
        print(store, &format!("closed, {clients} clients"), &took, time);
        most = took.len() as u64 / time.as_secs().max(1);
    }
    if most < rate + rate / 4 {
        println!("not measured: open loop on {store}: it cannot do {rate} pairs a second");
        return;
    }
    let (took, time) = open(proxy, rate, time, &numbers).await;
    print(store, &format!("open, {rate} a second"), &took, time);
}

fn main() {
    // `cargo test --benches` only wants to know that it starts.
    if std::env::args().any(|argument| argument == "--test") {
        return;
    }
    let program = program();
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let directory = tempfile::tempdir().expect("a directory");
    println!(
        "| store | load | pairs a second | create, ms: median / p99 / most | delete, ms: median / p99 / most |"
    );
    println!("|---|---|---|---|---|");
    {
        let store = format!("file:{}", directory.path().join("ledger.db").display());
        let proxy = start(&program, &store, None);
        runtime.block_on(measure("file", proxy.address));
    }
    let tools = match Tools::find() {
        Ok(tools) => tools,
        Err(error) => {
            println!("not measured: ConfigMap: {error}");
            return;
        }
    };
    let cluster = Cluster::start(
        &tools,
        &directory.path().join("cluster"),
        ClusterLifetime::WithThisProcess,
        Durability::Synced,
    );
    let cluster = cluster.unwrap_or_else(|error| panic!("{error}"));
    let proxy = start(&program, "kubernetes", Some(&cluster));
    runtime.block_on(measure("ConfigMap", proxy.address));
}
