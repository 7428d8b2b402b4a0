//! A proxy and its standby are killed at random under many clients: nothing is lost, held twice or leaked.
//!
//! `VIPU_PROXY_COMPETING_JOBS=2000 cargo test --release -p vipu-proxy --test it failover -- --nocapture` is
//! the soak.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::{Duration, Instant};

use ipu_core::hardware::Topology;
use ipu_test_cluster::shared;
use ipu_testkit::Random;
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};
use vipu_sim::Simulator;

use super::installation::{Installation, Proxy, send, until};

/// Default number of jobs, and jobs per kill: a takeover waits for the Lease, so that a few kills take most
/// of the time.
const JOBS: u64 = 32;
const JOBS_PER_KILL: u64 = 8;
const CLIENTS: u64 = 12;
/// The operations of a killed proxy go on after three times this deadline.
const OPTIONS: [&str; 2] = ["--controller-deadline", "1"];

/// State that clients, killer and monitor share.
struct Harness {
    simulators: Vec<Simulator>,
    /// Current addresses of the two proxies.
    urls: RwLock<[String; 2]>,
    token: String,
    remaining: AtomicU64,
    /// Partitions that clients hold, with the number of their grant.
    held: Mutex<BTreeMap<String, u64>>,
    grants: AtomicU64,
}

impl Harness {
    fn url(&self, index: u32) -> String {
        let urls = self.urls.read().unwrap_or_else(PoisonError::into_inner);
        urls[index as usize].clone()
    }

    fn held(&self) -> MutexGuard<'_, BTreeMap<String, u64>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn has_jobs(&self) -> bool {
        self.remaining.load(Ordering::SeqCst) > 0
    }
}

struct Client {
    number: u64,
    random: Random,
    harness: Arc<Harness>,
}

impl Client {
    /// Runs one job after the other until there are none; returns their ids.
    async fn run(mut self) -> Vec<String> {
        let mut ids = Vec::new();
        let decrement = |remaining: u64| remaining.checked_sub(1);
        let next = |harness: &Harness| {
            harness
                .remaining
                .fetch_update(Ordering::SeqCst, Ordering::SeqCst, decrement)
                .is_ok()
        };
        while next(&self.harness) {
            let id = format!("client{}-job{}", self.number, ids.len());
            let size = 1 << self.random.below(4);
            for attempt in 0..=self.random.below(3) {
                self.harness.held().remove(&id);
                self.until_active(&id, size, attempt).await;
            }
            self.harness.held().remove(&id);
            self.until_gone(&id).await;
            ids.push(id);
        }
        ids
    }

    async fn until_active(&mut self, id: &str, size: u32, attempt: u32) {
        let owner = json!({"kind": "Client", "namespace": "default", "name": id, "uid": id});
        let body = json!({"owner": owner, "attempt": attempt, "size": size});
        let path = format!("/v1/partitions/{id}?wait=2s");
        let document = self.until_ok(Method::PUT, &path, Some(&body)).await;
        assert_eq!(document["state"], "active", "{document}");
        assert_eq!(document["attempt"], attempt, "{document}");
        let grant = self.harness.grants.fetch_add(1, Ordering::SeqCst);
        self.harness.held().insert(id.to_owned(), grant);
    }

    async fn until_gone(&mut self, id: &str) {
        self.until_ok(Method::DELETE, &format!("/v1/partitions/{id}?wait=2s"), None)
            .await;
    }

    /// Sends the request to a random proxy until it succeeds.
    async fn until_ok(&mut self, method: Method, path: &str, body: Option<&Value>) -> Value {
        loop {
            let url = self.harness.url(self.random.below(2));
            let response = send(&url, method.clone(), path, Some(&self.harness.token), body).await;
            match response {
                Some((StatusCode::OK, document)) => return document,
                // Pending, a temporary refusal, or no response; every other status is a bug.
                Some((status, document)) => assert!(
                    status == StatusCode::ACCEPTED
                        || status == StatusCode::CONFLICT
                        || status.is_server_error(),
                    "{method} {path}: {status}: {document}"
                ),
                None => {}
            }
            let pause = 20 + self.random.below(100);
            tokio::time::sleep(Duration::from_millis(u64::from(pause))).await;
        }
    }
}

/// Kills and restarts a random proxy up to `max_kills` times while there are jobs; returns both proxies and
/// the number of kills.
async fn kill(
    harness: Arc<Harness>,
    installation: &Installation<'_>,
    mut proxies: [Proxy; 2],
    mut random: Random,
    max_kills: u64,
) -> ([Proxy; 2], u64) {
    let mut kills = 0;
    while harness.has_jobs() && kills < max_kills {
        let pause = 200 + random.below(1_500);
        tokio::time::sleep(Duration::from_millis(u64::from(pause))).await;
        let index = random.below(2) as usize;
        proxies[index].crash().await;
        proxies[index] = installation.proxy(&OPTIONS).await;
        let mut urls = harness.urls.write().unwrap_or_else(PoisonError::into_inner);
        urls[index].clone_from(&proxies[index].url);
        kills += 1;
    }
    (proxies, kills)
}

/// Checks the controllers while there are jobs: every granted partition is active at exactly one controller.
/// Returns the number of checks.
async fn monitor(harness: Arc<Harness>) -> u32 {
    let mut checks = 0;
    while harness.has_jobs() {
        let before = harness.held().clone();
        let mut existing = BTreeMap::new();
        for simulator in &harness.simulators {
            let mut taken = BTreeSet::new();
            for partition in simulator.state().unwrap().partitions {
                for ipu in &partition.ipus {
                    assert!(
                        taken.insert(*ipu),
                        "{ipu:?} is in two partitions, one is {}",
                        partition.id
                    );
                }
                let previous = existing.insert(partition.id.clone(), partition.state);
                assert_eq!(previous, None, "{} is at two controllers", partition.id);
            }
        }
        let after = harness.held().clone();
        for (id, grant) in before {
            if after.get(&id) == Some(&grant) {
                let state = existing.get(&id).map(String::as_str);
                assert_eq!(state, Some("ACTIVE"), "a client has {id}");
            }
        }
        checks += 1;
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    checks
}

/// Returns the proxy that has the ledger.
async fn leader(proxies: &[Proxy; 2]) -> &Proxy {
    until(async || {
        for proxy in proxies {
            // The standby answers 503.
            let answer = send(
                &proxy.url,
                Method::GET,
                "/v1/partitions",
                Some(&proxy.token),
                None,
            )
            .await;
            if answer.is_some_and(|(status, _)| status == StatusCode::OK) {
                return Ok(proxy);
            }
        }
        Err("no proxy has the ledger".to_owned())
    })
    .await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_proxies_that_are_killed_at_random_lose_nothing_and_hold_nothing_twice() {
    let name = "two_proxies_that_are_killed_at_random_lose_nothing_and_hold_nothing_twice";
    let Some(cluster) = shared(name) else { return };
    let jobs = std::env::var("VIPU_PROXY_COMPETING_JOBS").map_or(JOBS, |text| text.parse().unwrap());
    let started = Instant::now();
    let mut random = Random::new(5);
    let mut simulators = Vec::new();
    for _ in 0..2 {
        let simulator = Simulator::builder(Topology::pod16()).delay(Duration::from_millis(20));
        simulators.push(simulator.start().await.unwrap());
    }
    let installation = Installation::new(cluster, "competing", &[&simulators[0], &simulators[1]]);
    let proxies = [
        installation.proxy(&OPTIONS).await,
        installation.proxy(&OPTIONS).await,
    ];
    let harness = Arc::new(Harness {
        simulators,
        urls: RwLock::new([proxies[0].url.clone(), proxies[1].url.clone()]),
        token: installation.token.clone(),
        remaining: AtomicU64::new(jobs),
        held: Mutex::default(),
        grants: AtomicU64::new(0),
    });
    let clients: Vec<_> = (0..CLIENTS)
        .map(|number| {
            let (random, harness) = (Random::new(random.next()), Arc::clone(&harness));
            tokio::spawn(
                Client {
                    number,
                    random,
                    harness,
                }
                .run(),
            )
        })
        .collect();
    let monitoring = tokio::spawn(monitor(Arc::clone(&harness)));
    let (proxies, kills) = kill(
        Arc::clone(&harness),
        &installation,
        proxies,
        random,
        jobs / JOBS_PER_KILL,
    )
    .await;
    let mut done = Vec::new();
    for client in clients {
        done.extend(client.await.unwrap());
    }
    let checks = monitoring.await.unwrap();
    done.sort();
    assert_eq!(done.len() as u64, jobs);

    let proxy = leader(&proxies).await;
    assert_eq!(proxy.get("/v1/partitions").await["partitions"], json!([]));
    assert_eq!(installation.held(), Vec::<String>::new());
    for simulator in &harness.simulators {
        assert!(simulator.state().unwrap().partitions.is_empty());
    }
    // Every job held its partition once, in spite of the kills.
    let used = until(async || {
        let records = proxy.get("/v1/usage?since=0").await["records"].clone();
        let ids = |record: &Value| record["id"].as_str().unwrap().to_owned();
        let mut ids: Vec<String> = records.as_array().unwrap().iter().map(ids).collect();
        ids.sort();
        (ids.len() >= done.len())
            .then_some(ids)
            .ok_or(records.to_string())
    })
    .await;
    assert_eq!(used, done);
    println!(
        "{jobs} jobs with {} grants of {CLIENTS} clients at two proxies, {kills} kills, {checks} checks, {} s",
        harness.grants.load(Ordering::SeqCst),
        started.elapsed().as_secs()
    );
    assert!(kills > 0 && checks > 0);
}
