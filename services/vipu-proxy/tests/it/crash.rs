//! Proxy and simulators as real processes that are killed at random, between clients whose replies are dropped and whose
//! requests arrive late. Simulators come back empty, and several owners ask for one id. In the end ledger, controllers and
//! clients agree, and on the way nothing was held twice or beyond a quota.
//!
//! `VIPU_PROXY_CRASH_OPERATIONS=10000 cargo test --release -p vipu-proxy --test it crash -- --nocapture` is the soak.

mod clients;
mod invariant_monitor;
mod processes;
mod relay;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use ipu_testkit::Random;
use serde_json::Value;

use clients::{Client, Wanted};
use invariant_monitor::Watch;
use processes::{Proxy, Simulator};
use relay::{Faults, Relay};

/// How many operations by default: some seconds, and each kind of process is killed a few times.
const OPERATIONS: u64 = 200;
/// How many clients by default, and in a soak.
const CLIENTS: [u64; 2] = [16, 64];
/// Pauses between two kills by default, and in a soak, where most operations are to be served without one: shortest and
/// longest, in milliseconds.
const PAUSES: [(u32, u32); 2] = [(500, 2_500), (1_500, 6_000)];
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
    /// The names of the controllers, which the proxy reaches through relays.
    behind: Vec<String>,
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
        behind.push(Relay::start(simulator.address, Faults { lost: 1, late: 0 }, random.next()).await);
        simulators.push(simulator);
    }
    let list: Vec<String> = behind
        .iter()
        .map(|relay| format!("{}:pod=a", relay.address))
        .collect();
    let proxy = Proxy::start(scratch.path(), &list.join(","), NAMESPACES, QUOTA).await;
    let front = Relay::start(proxy.address, Faults { lost: 2, late: 4 }, random.next()).await;
    let total = operations();
    let soak = usize::from(total > OPERATIONS);
    let count = CLIENTS[soak];
    let scene = Arc::new(Scene {
        proxy,
        simulators,
        front,
        behind: behind.iter().map(|relay| relay.address.to_string()).collect(),
        left: AtomicU64::new(total),
        watch: Watch::default(),
    });
    let clients: Vec<_> = (0..count)
        .map(|number| tokio::spawn(Client::new(number, random.next(), &scene).live()))
        .collect();
    let killer = tokio::spawn(kill(Arc::clone(&scene), PAUSES[soak], random.next()));
    let watcher = tokio::spawn(invariant_monitor::look(Arc::clone(&scene)));
    let mut held = Vec::new();
    for client in clients {
        held.extend(client.await.unwrap());
    }
    let kills = killer.await.unwrap();
    let looks = watcher.await.unwrap();
    settled(&scene, &mut held).await;
    for wanted in &held {
        clients::give_back(&scene, wanted).await;
    }
    settled(&scene, &mut []).await;
    while scene.front.keeps_back() {
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    settled(&scene, &mut []).await;
    println!(
        "{total} operations of {count} clients, {kills} kills, {} of them without the state of a controller, {} replies \
         lost, {} requests late, {looks} checks, {} s",
        scene.watch.times_emptied(),
        scene.front.lost() + behind.iter().map(Relay::lost).sum::<u64>(),
        scene.front.late(),
        began.elapsed().as_secs()
    );
    assert!(kills > 0 && looks > 0);
}

/// Kills one of the processes after the other, and starts it again, until all operations are done.
async fn kill(scene: Arc<Scene>, (shortest, longest): (u32, u32), seed: u64) -> u64 {
    let mut random = Random::new(seed);
    let mut kills = 0;
    while scene.left.load(Ordering::SeqCst) > 0 {
        tokio::time::sleep(Duration::from_millis(u64::from(
            shortest + random.below(longest - shortest),
        )))
        .await;
        match random.below(5) {
            number @ 0..=2 => {
                let number = number as usize;
                if random.chance(25) {
                    scene.simulators[number].empty().await;
                    scene.watch.emptied(scene.behind[number].clone());
                } else {
                    scene.simulators[number].crash().await;
                }
            }
            _ => scene.proxy.crash().await,
        }
        kills += 1;
    }
    kills
}

/// Waits until ledger and controllers have what the clients hold, and nothing else.
async fn settled(scene: &Scene, held: &mut [Wanted]) {
    let mut expected: Vec<String> = held.iter().map(|wanted| wanted.id.clone()).collect();
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
        for wanted in held.iter_mut() {
            if active.contains(&format!("{:?} is failed", wanted.id)) {
                clients::renew(scene, wanted).await;
            }
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
