//! Two operators, the proxy, the simulated controller, the API server and etcd are killed at random while
//! jobs are submitted and deleted. No two jobs ever run on one partition. In the end every job has ended or
//! reports why it waits, and nothing is leaked.
//!
//! `IPU_OPERATOR_CRASH_JOBS=200 cargo test -p ipu-operator --test cluster crash -- --nocapture` is the soak.

mod invariant_monitor;
pub(crate) mod processes;
mod workload;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use ipu_test_cluster::{Cluster, ClusterProfile, FakeNodes, FakeOptions, private_with};
use ipu_testkit::Random;
use kube::Client;
use serde_json::{Value, json};
use tokio::sync::Mutex;

use crate::cluster_fixture::install_crd;
use crate::support::{config, container_end};
use invariant_monitor::InvariantMonitor;
use processes::{ANY_PORT, ChildProcess, Operator, Role};
use workload::JobClients;

/// Default number of jobs: half a minute, in which every process is killed a few times.
const JOBS: u32 = 24;
/// Maximum time until another operator leads after the leader was killed.
const MAX_FAILOVER_TIME: Duration = Duration::from_secs(5);
/// Number of kinds of processes that are killed.
const KINDS: u32 = 6;
/// Timeout for settling after the last kill. Only a failure takes that long.
const SETTLE_TIMEOUT: Duration = Duration::from_secs(300);

/// State shared by all tasks.
struct CrashFixture {
    cluster: Mutex<Cluster>,
    operators: [Operator; 2],
    proxy: ChildProcess,
    simulator: ChildProcess,
    client: Client,
    over: AtomicBool,
    /// Number of Kubernetes processes that ended by themselves and were restarted.
    revived: AtomicU32,
    /// Folder of the logs.
    logs: PathBuf,
}

fn variable(name: &str, default: u32) -> u32 {
    std::env::var(name).map_or(default, |text| text.parse().unwrap())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn jobs_end_or_report_why_they_wait_while_all_processes_are_killed_at_random() {
    let test = "jobs_end_or_report_why_they_wait_while_all_processes_are_killed_at_random";
    let Some(cluster) = private_with(test, ClusterProfile::Controllers) else {
        return;
    };
    let seed = variable("IPU_OPERATOR_CRASH_SEED", 6);
    println!(
        "seed {seed}: IPU_OPERATOR_CRASH_SEED repeats the random choices, not the scheduling of the system"
    );
    let began = Instant::now();
    let mut random = Random::new(u64::from(seed));
    let jobs = variable("IPU_OPERATOR_CRASH_JOBS", JOBS);
    install_crd(&cluster).await;
    let client = Client::try_from(config(&cluster).await).unwrap();
    let mut fake = FakeOptions::default();
    fake.labels.insert("pod".into(), "a".into());
    // A scheduler whose binding got no response may choose another node, and exits when it learns that the
    // first binding succeeded.
    fake.nodes = 1;
    fake.container_end = Arc::new(container_end);
    let _nodes = FakeNodes::start(client.clone(), fake).await.unwrap();
    let scratch = tempfile::tempdir().unwrap();
    let state = scratch.path().join("pod.json");
    let log = |of: &str| scratch.path().join(format!("{of}.log"));
    let simulator = ChildProcess::start(
        Role::Simulator,
        ANY_PORT,
        &state.display().to_string(),
        None,
        log("controller"),
    )
    .await;
    let kubeconfig = cluster.kubeconfig();
    let controllers = format!("{}:pod=a", simulator.address);
    let settings = json!({"controllers": controllers, "store": "kubernetes", "namespace": "default"});
    let proxy = ChildProcess::start(
        Role::Proxy,
        ANY_PORT,
        &settings.to_string(),
        Some(&kubeconfig),
        log("proxy"),
    )
    .await;
    let operators = [0, 1].map(|number| {
        let log = log(&format!("operator-{number}"));
        Operator::start(number, proxy.address, &kubeconfig, log)
    });
    let fixture = Arc::new(CrashFixture {
        cluster: Mutex::new(cluster),
        operators,
        proxy,
        simulator,
        client,
        over: AtomicBool::new(false),
        revived: AtomicU32::new(0),
        logs: scratch.path().to_owned(),
    });
    let reviver = tokio::spawn(revive(Arc::clone(&fixture)));
    let killer = tokio::spawn(kill(Arc::clone(&fixture), random.split()));
    let monitor = tokio::spawn(InvariantMonitor::new(Arc::clone(&fixture)).run());
    let clients = JobClients::new(fixture.client.clone());
    clients.submit_and_delete(jobs, &mut random).await;
    fixture.over.store(true, Ordering::SeqCst);
    let kills = killer.await.unwrap();
    let checks = monitor.await.unwrap();
    let ended = clients.settle(SETTLE_TIMEOUT).await;
    clients.delete_all(SETTLE_TIMEOUT).await;
    wait_until_empty(&fixture).await;
    reviver.abort();
    println!(
        "{jobs} jobs, {kills:?} killed, {} ended by themselves, {checks} checks, final phases {ended:?}, {} s",
        fixture.revived.load(Ordering::SeqCst),
        began.elapsed().as_secs()
    );
    assert!(kills.all() > 0 && checks > 0);
    assert!(kills.longest_hand_over < MAX_FAILOVER_TIME, "{kills:?}");
    // Kinds are killed in rotation. If the API server takes long to start, not every kind has its turn.
    assert!(
        kills.all() < KINDS || kills.each().iter().all(|many| *many > 0),
        "{kills:?}"
    );
}

/// Numbers of kills, and the longest failover.
#[derive(Debug, Default)]
struct Kills {
    leaders: u32,
    longest_hand_over: Duration,
    others: u32,
    proxies: u32,
    simulators: u32,
    api_servers: u32,
    etcds: u32,
}

impl Kills {
    fn each(&self) -> [u32; KINDS as usize] {
        [
            self.leaders,
            self.others,
            self.proxies,
            self.simulators,
            self.api_servers,
            self.etcds,
        ]
    }

    fn all(&self) -> u32 {
        self.each().iter().sum()
    }
}

/// Kills one process after another and restarts it, until `over` is set.
async fn kill(fixture: Arc<CrashFixture>, mut random: Random) -> Kills {
    let mut kills = Kills::default();
    while !fixture.over.load(Ordering::SeqCst) {
        tokio::time::sleep(Duration::from_millis(u64::from(500 + random.below(2_500)))).await;
        let downtime = Duration::from_millis(u64::from(random.below(1_500)));
        match kills.all() % KINDS {
            0 => {
                if let Some(leader) = workload::leader(&fixture.client).await {
                    let killed_at = Instant::now();
                    let number = usize::from(leader.starts_with("operator-1"));
                    fixture.operators[number].kill().await;
                    let (next, unserved) = workload::next_leader(&fixture.client, &leader).await;
                    assert_ne!(next, leader);
                    let took = killed_at.elapsed().saturating_sub(unserved);
                    kills.longest_hand_over = kills.longest_hand_over.max(took);
                    kills.leaders += 1;
                    fixture.operators[number].restart(fixture.proxy.address).await;
                }
            }
            1 => {
                let operator = &fixture.operators[random.below(2) as usize];
                operator.kill().await;
                tokio::time::sleep(downtime).await;
                operator.restart(fixture.proxy.address).await;
                kills.others += 1;
            }
            2 => {
                fixture.proxy.crash(downtime).await;
                kills.proxies += 1;
            }
            3 => {
                fixture.simulator.crash(downtime).await;
                kills.simulators += 1;
            }
            4 => {
                let mut cluster = fixture.cluster.lock().await;
                tokio::task::block_in_place(|| {
                    cluster.kill_apiserver();
                    cluster.start_apiserver().unwrap();
                });
                kills.api_servers += 1;
            }
            _ => {
                let mut cluster = fixture.cluster.lock().await;
                tokio::task::block_in_place(|| {
                    cluster.kill_etcd();
                    cluster.start_etcd().unwrap();
                });
                kills.etcds += 1;
            }
        }
    }
    kills
}

/// Restarts Kubernetes processes that end by themselves, as every cluster does: without a scheduler no job
/// continues.
async fn revive(fixture: Arc<CrashFixture>) {
    loop {
        let mut cluster = fixture.cluster.lock().await;
        let revived = tokio::task::block_in_place(|| cluster.revive()).unwrap();
        drop(cluster);
        let many = u32::try_from(revived.len()).unwrap();
        fixture.revived.fetch_add(many, Ordering::SeqCst);
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
}

/// Waits until ledger, controller and Kubernetes are empty.
async fn wait_until_empty(fixture: &CrashFixture) {
    let deadline = Instant::now() + SETTLE_TIMEOUT;
    loop {
        let ledger = fixture.proxy.partitions().await;
        let controller = fixture.simulator.partitions().await;
        let pods = workload::pods(&fixture.client).await;
        let none = |list: &Option<Vec<Value>>| list.as_ref().is_some_and(Vec::is_empty);
        if none(&ledger) && none(&controller) && none(&pods) {
            return;
        }
        assert!(
            Instant::now() < deadline,
            "the ledger has {ledger:?}, the controller {controller:?}, Kubernetes {pods:?}"
        );
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}
