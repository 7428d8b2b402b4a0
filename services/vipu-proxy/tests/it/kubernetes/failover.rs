//! Two proxies on one ledger, of which one after the other is killed under many clients: nothing is lost, held twice or left.
//!
//! `VIPU_PROXY_COMPETING_JOBS=2000 cargo test --release -p vipu-proxy --test it competing -- --nocapture` is the soak.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::{Duration, Instant};

use ipu_core::Topology;
use ipu_test_cluster::shared;
use ipu_testkit::Random;
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};
use vipu_sim::Simulator;

use super::installation::{Installation, Proxy, ask, until};

/// How many jobs there are by default, and how many for each kill. What a killed proxy had begun is left alone for half a
/// minute, so that most of the time is spent on a few kills.
const JOBS: u64 = 32;
const JOBS_FOR_A_KILL: u64 = 8;
const CLIENTS: u64 = 12;

/// What clients, killer and watch share.
struct Scene {
    simulators: Vec<Simulator>,
    /// Where the two proxies are just now.
    urls: RwLock<[String; 2]>,
    token: String,
    left: AtomicU64,
    /// What clients hold by their own word; the number changes whenever they are given it anew.
    held: Mutex<BTreeMap<String, u64>>,
    grants: AtomicU64,
}

impl Scene {
    fn url(&self, which: u32) -> String {
        let urls = self.urls.read().unwrap_or_else(PoisonError::into_inner);
        urls[which as usize].clone()
    }

    fn held(&self) -> MutexGuard<'_, BTreeMap<String, u64>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn has_jobs(&self) -> bool {
        self.left.load(Ordering::SeqCst) > 0
    }
}

struct Client {
    number: u64,
    random: Random,
    scene: Arc<Scene>,
}

impl Client {
    /// Runs one job after the other until there are none. Answers their ids.
    async fn live(mut self) -> Vec<String> {
        let mut ids = Vec::new();
        let less = |left: u64| left.checked_sub(1);
        let next = |scene: &Scene| {
            scene
                .left
                .fetch_update(Ordering::SeqCst, Ordering::SeqCst, less)
                .is_ok()
        };
        while next(&self.scene) {
            let id = format!("client{}-job{}", self.number, ids.len());
            let size = 1 << self.random.below(4);
            for attempt in 0..=self.random.below(3) {
                self.scene.held().remove(&id);
                self.until_active(&id, size, attempt).await;
            }
            self.scene.held().remove(&id);
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
        let grant = self.scene.grants.fetch_add(1, Ordering::SeqCst);
        self.scene.held().insert(id.to_owned(), grant);
    }

    async fn until_gone(&mut self, id: &str) {
        self.until_ok(Method::DELETE, &format!("/v1/partitions/{id}?wait=2s"), None)
            .await;
    }

    /// Asks one of the proxies, and another time perhaps the other one, until it is done.
    async fn until_ok(&mut self, method: Method, path: &str, body: Option<&Value>) -> Value {
        loop {
            let url = self.scene.url(self.random.below(2));
            let answer = ask(&url, method.clone(), path, Some(&self.scene.token), body).await;
            match answer {
                Some((StatusCode::OK, document)) => return document,
                // Not done yet, not now, or no answer; everything else is a bug.
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

/// Kills one proxy or the other up to `most` times as long as there are jobs, and starts it again. Answers both, and how often.
async fn kill(
    scene: Arc<Scene>,
    installation: &Installation<'_>,
    mut proxies: [Proxy; 2],
    mut random: Random,
    most: u64,
) -> ([Proxy; 2], u64) {
    let mut kills = 0;
    while scene.has_jobs() && kills < most {
        let pause = 200 + random.below(1_500);
        tokio::time::sleep(Duration::from_millis(u64::from(pause))).await;
        let which = random.below(2) as usize;
        proxies[which].crash().await;
        proxies[which] = installation.proxy(&[]).await;
        let mut urls = scene.urls.write().unwrap_or_else(PoisonError::into_inner);
        urls[which].clone_from(&proxies[which].url);
        kills += 1;
    }
    (proxies, kills)
}

/// Looks at the controllers as long as there are jobs: whoever has a partition by his own word has it there, ready, and at
/// one controller only. Answers how often.
async fn watch(scene: Arc<Scene>) -> u32 {
    let mut looks = 0;
    while scene.has_jobs() {
        let before = scene.held().clone();
        let mut there = BTreeMap::new();
        for simulator in &scene.simulators {
            let mut taken = BTreeSet::new();
            for partition in simulator.state().unwrap().partitions {
                for ipu in &partition.ipus {
                    assert!(
                        taken.insert(*ipu),
                        "{ipu:?} is in two partitions, one is {}",
                        partition.id
                    );
                }
                let twice = there.insert(partition.id.clone(), partition.state);
                assert_eq!(twice, None, "{} is at two controllers", partition.id);
            }
        }
        let after = scene.held().clone();
        for (id, grant) in before {
            if after.get(&id) == Some(&grant) {
                let state = there.get(&id).map(String::as_str);
                assert_eq!(state, Some("ACTIVE"), "a client has {id}");
            }
        }
        looks += 1;
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    looks
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_proxies_of_which_one_or_the_other_is_killed_lose_nothing_and_hold_nothing_twice() {
    let name = "two_proxies_of_which_one_or_the_other_is_killed_lose_nothing_and_hold_nothing_twice";
    let Some(cluster) = shared(name) else { return };
    let jobs = std::env::var("VIPU_PROXY_COMPETING_JOBS").map_or(JOBS, |text| text.parse().unwrap());
    let began = Instant::now();
    let mut random = Random::new(5);
    let mut simulators = Vec::new();
    for _ in 0..2 {
        let simulator = Simulator::builder(Topology::pod16()).delay(Duration::from_millis(20));
        simulators.push(simulator.start().await.unwrap());
    }
    let installation = Installation::new(cluster, "competing", &[&simulators[0], &simulators[1]]);
    let proxies = [installation.proxy(&[]).await, installation.proxy(&[]).await];
    let scene = Arc::new(Scene {
        simulators,
        urls: RwLock::new([proxies[0].url.clone(), proxies[1].url.clone()]),
        token: installation.token.clone(),
        left: AtomicU64::new(jobs),
        held: Mutex::default(),
        grants: AtomicU64::new(0),
    });
    let clients: Vec<_> = (0..CLIENTS)
        .map(|number| {
            let (random, scene) = (Random::new(random.next()), Arc::clone(&scene));
            tokio::spawn(
                Client {
                    number,
                    random,
                    scene,
                }
                .live(),
            )
        })
        .collect();
    let watching = tokio::spawn(watch(Arc::clone(&scene)));
    let (proxies, kills) = kill(
        Arc::clone(&scene),
        &installation,
        proxies,
        random,
        jobs / JOBS_FOR_A_KILL,
    )
    .await;
    let mut done = Vec::new();
    for client in clients {
        done.extend(client.await.unwrap());
    }
    let looks = watching.await.unwrap();
    done.sort();
    assert_eq!(done.len() as u64, jobs);

    // Nothing is left, in the eyes of either.
    for proxy in &proxies {
        assert_eq!(proxy.get("/v1/partitions").await["partitions"], json!([]));
    }
    assert_eq!(installation.tracker()["data"], Value::Null);
    for simulator in &scene.simulators {
        assert!(simulator.state().unwrap().partitions.is_empty());
    }
    // Every job held its partition once, however often anybody died.
    let used = until(async || {
        let records = proxies[1].get("/v1/usage?since=0").await["records"].clone();
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
        "{jobs} jobs with {} grants of {CLIENTS} clients at two proxies, {kills} kills, {looks} looks, {} s",
        scene.grants.load(Ordering::SeqCst),
        began.elapsed().as_secs()
    );
    assert!(kills > 0 && looks > 0);
}
