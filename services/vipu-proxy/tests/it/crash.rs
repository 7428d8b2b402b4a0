//! Proxy and simulators as real processes that are killed at random, between clients whose replies are dropped: in the end
//! ledger, controllers and clients agree, and on the way nothing was held twice or beyond a quota.
//!
//! `VIPU_PROXY_CRASH_OPERATIONS=10000 cargo test --release -p vipu-proxy --test it crash -- --nocapture` is the soak.

mod clients;
mod processes;
mod relay;
mod watch;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use ipu_testkit::Random;
use serde_json::Value;

use clients::Client;
use processes::{Proxy, Simulator};
use relay::Relay;
use watch::Watch;

/// How many operations by default: some seconds, and each kind of process is killed a few times.
const OPERATIONS: u64 = 200;
/// How many clients by default, and in a soak.
const CLIENTS: [u64; 2] = [16, 64];
/// How long everybody has to settle once nothing is killed any more: some fences of calls that nobody answered, one after
/// the other. Only a failure takes that long.
const SETTLE: Duration = Duration::from_secs(240);

/// Most IPUs of a namespace, of three Pods with 16 each.
const QUOTA: u32 = 12;
const NAMESPACES: u64 = 4;

/// What clients, killer and watch share.
struct Scene {
    proxy: Proxy,
    simulators: Vec<Simulator>,
    /// Where clients reach the proxy: replies get lost there.
    front: Relay,
    left: AtomicU64,
    watch: Watch,
}

fn operations() -> u64 {
    std::env::var("VIPU_PROXY_CRASH_OPERATIONS").map_or(OPERATIONS, |text| text.parse().unwrap())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_random_kills_and_lost_replies_ledger_controllers_and_clients_agree() {
    let seed = std::env::var("VIPU_PROXY_CRASH_SEED").map_or(4, |text| text.parse().unwrap());
    println!("seed {seed}: VIPU_PROXY_CRASH_SEED repeats what is drawn, not how the system schedules it");
    let began = Instant::now();
    let mut random = Random::new(seed);
    let scratch = tempfile::tempdir().unwrap();
    let mut simulators = Vec::new();
    let mut behind = Vec::new();
    for number in 0..3 {
        let simulator = Simulator::start(&scratch.path().join(format!("pod{number}.json"))).await;
        behind.push(Relay::start(simulator.address, 1, random.next()).await);
        simulators.push(simulator);
    }
    let list: Vec<String> = behind
        .iter()
        .map(|relay| format!("{}:pod=a", relay.address))
        .collect();
    let proxy = Proxy::start(scratch.path(), &list.join(","), NAMESPACES, QUOTA).await;
    let front = Relay::start(proxy.address, 2, random.next()).await;
    let total = operations();
    let count = CLIENTS[usize::from(total > OPERATIONS)];
    let scene = Arc::new(Scene {
        proxy,
        simulators,
        front,
        left: AtomicU64::new(total),
        watch: Watch::default(),
    });
    let clients: Vec<_> = (0..count)
        .map(|number| tokio::spawn(Client::new(number, random.next(), &scene).live()))
        .collect();
    let killer = tokio::spawn(kill(Arc::clone(&scene), random.next()));
    let watcher = tokio::spawn(watch::look(Arc::clone(&scene)));
    let mut held = Vec::new();
    for client in clients {
        held.extend(client.await.unwrap());
    }
    let kills = killer.await.unwrap();
    let looks = watcher.await.unwrap();
    settled(&scene, &held).await;
    for id in &held {
        clients::give_back(&scene, id).await;
    }
    settled(&scene, &[]).await;
    println!(
        "{total} operations of {count} clients, {kills} kills, {} replies dropped, {looks} looks, {} s",
        scene.front.dropped() + behind.iter().map(Relay::dropped).sum::<u64>(),
        began.elapsed().as_secs()
    );
    assert!(kills > 0 && looks > 0);
}

/// Kills one of the processes after the other, and starts it again, until all operations are done.
async fn kill(scene: Arc<Scene>, seed: u64) -> u64 {
    let mut random = Random::new(seed);
    let mut kills = 0;
    while scene.left.load(Ordering::SeqCst) > 0 {
        tokio::time::sleep(Duration::from_millis(u64::from(500 + random.below(2_000)))).await;
        match random.below(5) {
            number @ 0..=2 => scene.simulators[number as usize].crash().await,
            _ => scene.proxy.crash().await,
        }
        kills += 1;
    }
    kills
}

/// Waits until ledger and controllers have what the clients hold, and nothing else.
async fn settled(scene: &Scene, held: &[String]) {
    let mut expected: Vec<String> = held.to_vec();
    expected.sort();
    let until = Instant::now() + SETTLE;
    loop {
        let ledger = scene.proxy.partitions().await;
        let mut there = Vec::new();
        for simulator in &scene.simulators {
            there.extend(
                simulator
                    .partitions()
                    .await
                    .unwrap_or_default()
                    .into_iter()
                    .map(|p| p.id),
            );
        }
        there.sort();
        let mut active: Vec<String> = Vec::new();
        for partition in ledger.iter().flatten() {
            let state = partition["state"].as_str().unwrap();
            active.push(if state == "active" {
                text(&partition["id"])
            } else {
                format!("{} is {state}", partition["id"])
            });
        }
        active.sort();
        if ledger.is_some() && active == expected && there == expected {
            return;
        }
        assert!(
            Instant::now() < until,
            "clients hold {expected:?}, the ledger has {active:?}, the controllers have {there:?}"
        );
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}

fn text(value: &Value) -> String {
    value.as_str().unwrap().to_owned()
}
