//! Two operators, the proxy, the simulated controller, the API server and etcd are killed at random while jobs come and go: no
//! two jobs ever run on one partition, and in the end every job has ended or says why it waits, and nothing is leaked.
//!
//! `IPU_OPERATOR_CRASH_JOBS=200 cargo test -p ipu-operator --test it crash -- --nocapture` is the soak.

mod invariant_monitor;
mod processes;
mod workload;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use ipu_test_cluster::{Cluster, ClusterProfile, ContainerEnd, FakeNodes, FakeOptions, private_with};
use ipu_testkit::Random;
use kube::Client;
use serde_json::Value;
use tokio::sync::Mutex;

use crate::cluster_fixture::define;
use crate::support::{config, until};
use invariant_monitor::Watch;
use processes::{Copy, Operator, Role};
use workload::Users;

/// How many jobs by default: half a minute, and everything is killed a few times.
const JOBS: u32 = 24;
/// Within this another operator leads after the leader was killed.
const HAND_OVER: Duration = Duration::from_secs(5);
/// How many kinds of processes are killed.
const KINDS: u32 = 6;
/// How long everybody has to settle once nothing is killed any more. Only a failure takes that long.
const SETTLE: Duration = Duration::from_secs(300);

/// What everybody shares.
struct Scene {
    cluster: Mutex<Cluster>,
    operators: [Operator; 2],
    proxy: Copy,
    simulator: Copy,
    client: Client,
    over: AtomicBool,
    /// How often something of Kubernetes ended by itself and was started again.
    revived: AtomicU32,
    /// Where everybody's log is.
    logs: PathBuf,
}

fn variable(name: &str, default: u32) -> u32 {
    std::env::var(name).map_or(default, |text| text.parse().unwrap())
}

/// Otherwise whoever measures or crashes a cluster that is overloaded for a while has no node any more.
#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_is_an_object_only_recovers_when_it_was_taken_for_dead() {
    let test = "a_node_that_is_an_object_only_recovers_when_it_was_taken_for_dead";
    let Some(cluster) = private_with(test, ClusterProfile::ApiServer) else {
        return;
    };
    let client = Client::try_from(config(&cluster).await).unwrap();
    let mut fake = FakeOptions::default();
    fake.nodes = 1;
    let _nodes = FakeNodes::start(client, fake).await.unwrap();
    let dead = r#"{"status": {"conditions": [{"type": "Ready", "status": "Unknown"}]}}"#;
    let kill = ["patch", "node", "fake-0", "--subresource=status", "--patch", dead];
    cluster.kubectl(&kill).unwrap();
    let ready = "--output=jsonpath={.status.conditions[?(@.type=='Ready')].status}";
    let says = || cluster.kubectl(&["get", "node", "fake-0", ready]).unwrap();
    assert_eq!(says(), "Unknown");
    until("it says that it is there", async || says() == "True").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn jobs_end_or_say_why_they_wait_although_everything_is_killed_at_random() {
    let test = "jobs_end_or_say_why_they_wait_although_everything_is_killed_at_random";
    let Some(cluster) = private_with(test, ClusterProfile::Controllers) else {
        return;
    };
    let seed = variable("IPU_OPERATOR_CRASH_SEED", 6);
    println!("seed {seed}: IPU_OPERATOR_CRASH_SEED repeats what is drawn, not how the system schedules it");
    let began = Instant::now();
    let mut random = Random::new(u64::from(seed));
    let jobs = variable("IPU_OPERATOR_CRASH_JOBS", JOBS);
    define(&cluster).await;
    let client = Client::try_from(config(&cluster).await).unwrap();
    let mut fake = FakeOptions::default();
    fake.labels.insert("pod".into(), "a".into());
    // A scheduler whose binding was not answered may choose another one, and ends when it learns that the first was done.
    fake.nodes = 1;
    fake.life = Arc::new(life);
    let _nodes = FakeNodes::start(client.clone(), fake).await.unwrap();
    let scratch = tempfile::tempdir().unwrap();
    let state = scratch.path().join("pod.json");
    let log = |of: &str| scratch.path().join(format!("{of}.log"));
    let simulator = Copy::start(
        Role::Simulator,
        &state.display().to_string(),
        None,
        log("controller"),
    )
    .await;
    let kubeconfig = cluster.kubeconfig();
    let proxy = Copy::start(
        Role::Proxy,
        &format!("{}:pod=a", simulator.address),
        Some(&kubeconfig),
        log("proxy"),
    )
    .await;
    let operators = [0, 1].map(|number| {
        let log = log(&format!("operator-{number}"));
        Operator::start(number, proxy.address, &kubeconfig, log)
    });
    let scene = Arc::new(Scene {
        cluster: Mutex::new(cluster),
        operators,
        proxy,
        simulator,
        client,
        over: AtomicBool::new(false),
        revived: AtomicU32::new(0),
        logs: scratch.path().to_owned(),
    });
    let keeper = tokio::spawn(revive(Arc::clone(&scene)));
    let killer = tokio::spawn(kill(Arc::clone(&scene), random.split()));
    let watcher = tokio::spawn(Watch::new(Arc::clone(&scene)).look());
    let users = Users::new(scene.client.clone());
    users.come_and_go(jobs, &mut random).await;
    scene.over.store(true, Ordering::SeqCst);
    let kills = killer.await.unwrap();
    let looks = watcher.await.unwrap();
    let ended = users.settle(SETTLE).await;
    users.delete_all(SETTLE).await;
    nothing_is_left(&scene).await;
    keeper.abort();
    println!(
        "{jobs} jobs, {kills:?} killed, {} ended by themselves, {looks} looks, in the end {ended:?}, {} s",
        scene.revived.load(Ordering::SeqCst),
        began.elapsed().as_secs()
    );
    assert!(kills.all() > 0 && looks > 0);
    assert!(kills.longest_hand_over < HAND_OVER, "{kills:?}");
    // One kind after the other, also when the API server takes so long to come up that it is not everybody's turn.
    assert!(
        kills.all() < KINDS || kills.each().iter().all(|many| *many > 0),
        "{kills:?}"
    );
}

/// Workers that serve a launcher never end by themselves; everything else does as the job's annotation says.
fn life(pod: &Value) -> ContainerEnd {
    let serves = pod["spec"]["containers"][0]["command"]
        .as_array()
        .is_some_and(|command| {
            command
                .iter()
                .any(|word| word.as_str().is_some_and(|word| word.contains("365d")))
        });
    let told = pod["metadata"]["annotations"]["test/life"].as_str();
    let told = told.and_then(|told| told.split_once(':'));
    match told.filter(|_| !serves) {
        Some((millis, code)) => ContainerEnd::After {
            time: Duration::from_millis(millis.parse().unwrap()),
            exit_code: code.parse().unwrap(),
        },
        None => ContainerEnd::Never,
    }
}

/// What was killed, and how long it took until another operator led after the leader was.
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

/// Kills one thing after the other and starts it again, until it is over.
async fn kill(scene: Arc<Scene>, mut random: Random) -> Kills {
    let mut kills = Kills::default();
    while !scene.over.load(Ordering::SeqCst) {
        tokio::time::sleep(Duration::from_millis(u64::from(500 + random.below(2_500)))).await;
        let down = Duration::from_millis(u64::from(random.below(1_500)));
        match kills.all() % KINDS {
            0 => {
                if let Some(leader) = workload::leader(&scene.client).await {
                    let begun = Instant::now();
                    let number = usize::from(leader.starts_with("operator-1"));
                    scene.operators[number].kill().await;
                    let (next, unserved) = workload::next_leader(&scene.client, &leader).await;
                    assert_ne!(next, leader);
                    let took = begun.elapsed().saturating_sub(unserved);
                    kills.longest_hand_over = kills.longest_hand_over.max(took);
                    kills.leaders += 1;
                    scene.operators[number].restart(scene.proxy.address).await;
                }
            }
            1 => {
                let operator = &scene.operators[random.below(2) as usize];
                operator.kill().await;
                tokio::time::sleep(down).await;
                operator.restart(scene.proxy.address).await;
                kills.others += 1;
            }
            2 => {
                scene.proxy.crash(down).await;
                kills.proxies += 1;
            }
            3 => {
                scene.simulator.crash(down).await;
                kills.simulators += 1;
            }
            4 => {
                let mut cluster = scene.cluster.lock().await;
                tokio::task::block_in_place(|| {
                    cluster.kill_apiserver();
                    cluster.start_apiserver().unwrap();
                });
                kills.api_servers += 1;
            }
            _ => {
                let mut cluster = scene.cluster.lock().await;
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

/// Starts what of Kubernetes ends by itself under all this, as every cluster does: without a scheduler nothing would go on.
async fn revive(scene: Arc<Scene>) {
    loop {
        let mut cluster = scene.cluster.lock().await;
        let revived = tokio::task::block_in_place(|| cluster.revive()).unwrap();
        drop(cluster);
        let many = u32::try_from(revived.len()).unwrap();
        scene.revived.fetch_add(many, Ordering::SeqCst);
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
}

/// Waits until ledger and controller have nothing, and Kubernetes no Kubernetes Pod.
async fn nothing_is_left(scene: &Scene) {
    let until = Instant::now() + SETTLE;
    loop {
        let ledger = scene.proxy.partitions().await;
        let controller = scene.simulator.partitions().await;
        let pods = workload::pods(&scene.client).await;
        let none = |list: &Option<Vec<Value>>| list.as_ref().is_some_and(Vec::is_empty);
        if none(&ledger) && none(&controller) && none(&pods) {
            return;
        }
        assert!(
            Instant::now() < until,
            "the ledger has {ledger:?}, the controller {controller:?}, Kubernetes {pods:?}"
        );
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}
