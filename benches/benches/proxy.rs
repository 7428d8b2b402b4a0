//! Create + delete pairs on a proxy: a real process with a zero-latency simulated controller, over
//! persistent connections. The closed loop has 1 and 64 clients that send as fast as they receive replies.
//! The open loop sends 500 pairs per second on schedule, however late other replies are.
//!
//! The ledger is a file with synced commits, and a ConfigMap of a kube-apiserver with a syncing etcd, if
//! the tools are available (`cargo xtask cluster build`). `VIPU_PROXY` names the proxy; the default is a
//! release build. `IPU_BENCH_SECONDS` (10) is the duration of each measurement, `IPU_BENCH_PAIRS` (500) the
//! rate of the open loop.

#![expect(clippy::print_stdout, reason = "a benchmark prints its table")]

use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use ipu_bench::cluster::Process;
use ipu_bench::{Connection, PairTimings, percentile, program};
use ipu_test_cluster::{Cluster, ClusterLifetime, Durability, Tools};
use tokio::sync::Mutex;
use tokio::task::JoinSet;

/// Topology with more IPUs than clients.
const TOPOLOGY: &str = "pod256";

/// Number of warm-up pairs.
const WARM_UP_PAIRS: u64 = 300;

fn variable(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |text| text.parse().expect("a number"))
}

/// Starts the proxy on a store, and waits until it serves.
fn start(program: &Path, store: &str, cluster: Option<&Cluster>) -> (Process, SocketAddr) {
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
        .args(["--auth", "none", "--store", store, "-v=1"]);
    if let Some(cluster) = cluster {
        command
            .env("KUBECONFIG", cluster.kubeconfig())
            .args(["--namespace", "default"]);
    }
    let (process, line) = Process::start(command, " on ");
    let address = line.rsplit(' ').next().and_then(|address| address.parse().ok());
    (process, address.expect("the proxy prints its address"))
}

/// Runs the closed loop: each client sends its next request after the last reply.
async fn closed_loop(
    proxy: SocketAddr,
    clients: u64,
    time: Duration,
    numbers: &Arc<AtomicU64>,
) -> (Vec<PairTimings>, Duration) {
    let started = Instant::now();
    let mut tasks = JoinSet::new();
    for _ in 0..clients {
        let numbers = Arc::clone(numbers);
        tasks.spawn(async move {
            let mut connection = Connection::open(proxy).await;
            let mut timings = Vec::new();
            while started.elapsed() < time {
                let number = numbers.fetch_add(1, Ordering::Relaxed);
                timings.push(connection.pair(number, Instant::now()).await);
            }
            timings
        });
    }
    let timings = tasks.join_all().await.concat();
    (timings, started.elapsed())
}

/// Runs the open loop: `rate` pairs per second, each at its scheduled time.
async fn open_loop(
    proxy: SocketAddr,
    rate: u64,
    time: Duration,
    numbers: &Arc<AtomicU64>,
) -> (Vec<PairTimings>, Duration) {
    let idle: Arc<Mutex<Vec<Connection>>> = Arc::default();
    for _ in 0..64 {
        idle.lock().await.push(Connection::open(proxy).await);
    }
    let started = Instant::now();
    let total = rate * time.as_secs();
    let mut tasks = JoinSet::new();
    for nth in 0..total {
        let due = started + Duration::from_nanos(1_000_000_000 / rate * nth);
        tokio::time::sleep_until(due.into()).await;
        let (idle, numbers) = (Arc::clone(&idle), Arc::clone(numbers));
        tasks.spawn(async move {
            let reused = idle.lock().await.pop();
            let mut connection = match reused {
                Some(connection) => connection,
                None => Connection::open(proxy).await,
            };
            let timings = connection
                .pair(numbers.fetch_add(1, Ordering::Relaxed), due)
                .await;
            idle.lock().await.push(connection);
            timings
        });
    }
    let timings = tasks.join_all().await;
    (timings, started.elapsed())
}

fn milliseconds(time: Duration) -> String {
    format!("{:.2}", time.as_secs_f64() * 1e3)
}

fn print(store: &str, load: &str, timings: &[PairTimings], time: Duration) {
    let sorted = |quantile_text: fn(&PairTimings) -> Duration| {
        let mut times: Vec<Duration> = timings.iter().map(quantile_text).collect();
        times.sort_unstable();
        times
    };
    let (create, delete) = (sorted(|timings| timings.create), sorted(|timings| timings.delete));
    #[expect(clippy::cast_precision_loss, reason = "for people")]
    let rate = timings.len() as f64 / time.as_secs_f64();
    let mut cells = vec![store.to_owned(), load.to_owned(), format!("{rate:.0}")];
    for times in [&create, &delete] {
        let quantile_text = |quantile| milliseconds(percentile(times, quantile));
        cells.push(format!(
            "{} / {} / {}",
            quantile_text(0.5),
            quantile_text(0.99),
            quantile_text(1.0)
        ));
    }
    println!("| {} |", cells.join(" | "));
}

async fn measure(store: &str, proxy: SocketAddr) {
    let time = Duration::from_secs(variable("IPU_BENCH_SECONDS", 10));
    let rate = variable("IPU_BENCH_PAIRS", 500);
    let numbers = Arc::new(AtomicU64::new(0));
    let mut connection = Connection::open(proxy).await;
    for _ in 0..WARM_UP_PAIRS {
        let number = numbers.fetch_add(1, Ordering::Relaxed);
        connection.pair(number, Instant::now()).await;
    }
    let mut closed_rate = 0;
    for clients in [1, 64] {
        let (timings, time) = closed_loop(proxy, clients, time, &numbers).await;
        print(store, &format!("closed, {clients} clients"), &timings, time);
        closed_rate = timings.len() as u64 / time.as_secs().max(1);
    }
    if closed_rate < rate + rate / 4 {
        println!("not measured: open loop on {store}: closed loop is below {rate} pairs/s");
        return;
    }
    let (timings, time) = open_loop(proxy, rate, time, &numbers).await;
    print(store, &format!("open, {rate} a second"), &timings, time);
}

fn main() {
    // `cargo test --benches` only checks that the benchmark starts.
    if std::env::args().any(|argument| argument == "--test") {
        return;
    }
    let program = program("vipu-proxy", "VIPU_PROXY");
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let directory = tempfile::tempdir().expect("a directory");
    println!("| store | load | pairs/s | create, ms: median / p99 / max | delete, ms: median / p99 / max |");
    println!("|---|---|---|---|---|");
    {
        let store = format!("file:{}", directory.path().join("ledger.db").display());
        let (_process, proxy) = start(&program, &store, None);
        runtime.block_on(measure("file", proxy));
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
    let (_process, proxy) = start(&program, "kubernetes", Some(&cluster));
    runtime.block_on(measure("ConfigMap", proxy));
}
