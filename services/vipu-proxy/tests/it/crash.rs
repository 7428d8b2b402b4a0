//! Crash test: proxy and simulators are real processes that are killed at random, while relays drop replies
//! and delay requests. Some simulators restart without their state, and several owners request the same id.
//! In the end ledger, controllers and clients agree. A history records every request, its answer, and what
//! the controllers have; a checker that reads only the history decides whether the promises were kept.
//!
//! `VIPU_PROXY_CRASH_OPERATIONS=10000 cargo test --release -p vipu-proxy --test it crash -- --nocapture` is
//! the soak.

mod checker;
mod clients;
mod history;
mod observer;
mod processes;
mod relay;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use ipu_testkit::Random;
use serde_json::Value;

use clients::{Client, Job};
use history::{History, Record, StateLoss};
use processes::{Proxy, Simulator};
use relay::{Faults, Relay};

/// Default number of operations: takes some seconds, with a few kills of each kind of process.
const OPERATIONS: u64 = 200;
/// Number of clients by default, and in a soak.
const CLIENTS: [u64; 2] = [16, 64];
/// Minimum and maximum interval between two kills in milliseconds, by default and in a soak. In a soak most
/// operations run without a kill.
const KILL_INTERVALS: [(u32, u32); 2] = [(500, 2_500), (1_500, 6_000)];
/// Timeout until ledger, controllers and clients agree after the last kill: several settle times of
/// unanswered calls in sequence. Only a failure takes that long.
const SETTLE_TIMEOUT: Duration = Duration::from_secs(240);

/// Maximum IPUs of a namespace, of three IPU-PODs with 16 each.
const QUOTA: u32 = 12;
const NAMESPACES: u64 = 4;

/// Processes and state that clients, killer and observer share.
struct Harness {
    proxy: Proxy,
    simulators: Vec<Simulator>,
    /// Relay between the clients and the proxy.
    client_relay: Relay,
    /// Names of the controllers, which the proxy reaches through relays.
    controller_names: Vec<String>,
    remaining: AtomicU64,
    history: History,
}

fn operations() -> u64 {
    std::env::var("VIPU_PROXY_CRASH_OPERATIONS").map_or(OPERATIONS, |text| text.parse().unwrap())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_random_kills_and_lost_replies_ledger_controllers_and_clients_agree() {
    let seed = std::env::var("VIPU_PROXY_CRASH_SEED").map_or(4, |text| text.parse().unwrap());
    println!("seed {seed}: VIPU_PROXY_CRASH_SEED repeats what is drawn, not how the system schedules it");
    let started = Instant::now();
    let mut random = Random::new(seed);
    let scratch = tempfile::tempdir().unwrap();
    let mut simulators = Vec::new();
    let mut controller_relays = Vec::new();
    for number in 0..3 {
        let simulator = Simulator::start(&scratch.path().join(format!("pod{number}.json"))).await;
        controller_relays
            .push(Relay::start(simulator.address, Faults { lost: 1, late: 0 }, random.next()).await);
        simulators.push(simulator);
    }
    let list: Vec<String> = controller_relays
        .iter()
        .map(|relay| format!("{}:pod=a", relay.address))
        .collect();
    let proxy = Proxy::start(scratch.path(), &list.join(","), NAMESPACES, QUOTA).await;
    let client_relay = Relay::start(proxy.address, Faults { lost: 2, late: 4 }, random.next()).await;
    let total = operations();
    let soak = usize::from(total > OPERATIONS);
    let clients = CLIENTS[soak];
    let harness = Arc::new(Harness {
        proxy,
        simulators,
        client_relay,
        controller_names: controller_relays
            .iter()
            .map(|relay| relay.address.to_string())
            .collect(),
        remaining: AtomicU64::new(total),
        history: History::create(&scratch.path().join("history.jsonl")),
    });
    let tasks: Vec<_> = (0..clients)
        .map(|number| tokio::spawn(Client::new(number, random.next(), &harness).run()))
        .collect();
    let killer = tokio::spawn(kill(Arc::clone(&harness), KILL_INTERVALS[soak], random.next()));
    let observer = tokio::spawn(observer::run(Arc::clone(&harness)));
    let mut held = Vec::new();
    for client in tasks {
        held.extend(client.await.unwrap());
    }
    let Kills {
        count: kills,
        state_losses,
    } = killer.await.unwrap();
    observer.await.unwrap();
    until_settled(&harness, &mut held).await;
    for job in &held {
        clients::release(&harness, job).await;
    }
    until_settled(&harness, &mut []).await;
    while harness.client_relay.has_delayed_requests() {
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    until_settled(&harness, &mut []).await;
    let path = harness.history.flush();
    let report = checker::check_file(path);
    println!(
        "{total} operations of {clients} clients, {kills} kills, {state_losses} of them with the loss of the controller \
         state, {} replies lost, {} requests late, {} s; {report}",
        harness.client_relay.lost() + controller_relays.iter().map(Relay::lost).sum::<u64>(),
        harness.client_relay.late(),
        started.elapsed().as_secs()
    );
    if !report.violations.is_empty() {
        let path = scratch.keep().join("history.jsonl");
        panic!(
            "the history {} has violations: {:#?}",
            path.display(),
            report.violations
        );
    }
    assert!(kills > 0 && report.holds > 0 && report.listings > 0, "{report}");
}

/// Number of kills, and of those with the loss of a controller's state.
struct Kills {
    count: u64,
    state_losses: u64,
}

/// Kills and restarts processes at random until all operations are done.
async fn kill(harness: Arc<Harness>, (min, max): (u32, u32), seed: u64) -> Kills {
    let mut random = Random::new(seed);
    let mut kills = Kills {
        count: 0,
        state_losses: 0,
    };
    while harness.remaining.load(Ordering::SeqCst) > 0 {
        tokio::time::sleep(Duration::from_millis(u64::from(min + random.below(max - min)))).await;
        match random.below(5) {
            number @ 0..=2 => {
                let number = number as usize;
                if random.chance(25) {
                    let began = harness.history.now();
                    harness.simulators[number].crash_without_state().await;
                    harness.history.append(&Record::StateLoss(StateLoss {
                        controller: harness.controller_names[number].clone(),
                        began,
                        ended: harness.history.now(),
                    }));
                    kills.state_losses += 1;
                } else {
                    harness.simulators[number].crash().await;
                }
            }
            _ => harness.proxy.crash().await,
        }
        kills.count += 1;
    }
    kills
}

/// Waits until ledger and controllers have exactly the partitions of the clients.
async fn until_settled(harness: &Harness, held: &mut [Job]) {
    let mut expected: Vec<String> = held.iter().map(|job| job.id.clone()).collect();
    expected.sort();
    let until = Instant::now() + SETTLE_TIMEOUT;
    loop {
        let ledger = harness.proxy.partitions().await;
        let mut listed = Vec::new();
        for simulator in &harness.simulators {
            listed.extend(
                simulator
                    .partitions()
                    .await
                    .unwrap_or_default()
                    .into_iter()
                    .map(|p| p.id),
            );
        }
        listed.sort();
        let mut active: Vec<String> = Vec::new();
        for partition in ledger.iter().flatten() {
            let state = partition["state"].as_str().unwrap();
            active.push(if state == "active" {
                text(&partition["id"])
            } else {
                format!("{} is {state}", partition["id"])
            });
        }
        for job in held.iter_mut() {
            if active.contains(&format!("{:?} is failed", job.id)) {
                clients::renew(harness, job).await;
            }
        }
        active.sort();
        if ledger.is_some() && active == expected && listed == expected {
            return;
        }
        assert!(
            Instant::now() < until,
            "clients hold {expected:?}, the ledger has {active:?}, the controllers have {listed:?}"
        );
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}

fn text(value: &Value) -> String {
    value.as_str().unwrap().to_owned()
}
