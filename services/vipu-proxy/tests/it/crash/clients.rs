//! Clients that make, reset and give back partitions, and repeat what they have no answer to.

use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use ipu_testkit::Random;
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};

use super::{NAMESPACES, Scene};

/// One pool of connections for everybody.
pub(super) fn http() -> &'static reqwest::Client {
    static HTTP: OnceLock<reqwest::Client> = OnceLock::new();
    HTTP.get_or_init(|| {
        // Fails if another test has installed the same one.
        rustls::crypto::ring::default_provider().install_default().ok();
        reqwest::Client::new()
    })
}

pub(super) struct Client {
    number: u64,
    random: Random,
    scene: Arc<Scene>,
}

/// The same for every try.
struct Wanted {
    id: String,
    owner: Value,
    size: u32,
}

impl Client {
    pub(super) fn new(number: u64, seed: u64, scene: &Arc<Scene>) -> Self {
        Self {
            number,
            random: Random::new(seed),
            scene: Arc::clone(scene),
        }
    }

    /// Lives until all operations are done. Answers what it still holds: some clients keep their last partition.
    pub(super) async fn live(mut self) -> Option<String> {
        let mut jobs = 0;
        loop {
            let wanted = self.next_job(jobs);
            jobs += 1;
            let mut attempt = 0;
            self.until_active(&wanted, attempt).await;
            while self.random.chance(30) && self.has_work() {
                attempt += 1;
                self.scene.watch.drops(&wanted.id);
                self.until_active(&wanted, attempt).await;
            }
            if !self.has_work() && self.keeps() {
                return Some(wanted.id);
            }
            self.scene.watch.drops(&wanted.id);
            give_back(&self.scene, &wanted.id).await;
            if !self.count() {
                return None;
            }
        }
    }

    fn next_job(&mut self, number: u32) -> Wanted {
        // Those that keep what they have must not take the room of the others for ever.
        let size = if self.keeps() {
            1
        } else {
            1 << self.random.below(4)
        };
        let (namespace, name) = (
            format!("ns{}", self.number % NAMESPACES),
            format!("client{}", self.number),
        );
        let uid = format!("job{number}");
        let key = ipu_core::JobKey::new(&namespace, &name, &uid).unwrap();
        Wanted {
            id: key.partition_id(0).to_string(),
            owner: json!({"kind": "Client", "namespace": namespace, "name": name, "uid": uid}),
            size,
        }
    }

    /// Few enough that the room and the quota of the others stay large enough for each.
    fn keeps(&self) -> bool {
        self.number.is_multiple_of(16)
    }

    fn has_work(&self) -> bool {
        self.scene.left.load(Ordering::SeqCst) > 0
    }

    /// Counts an operation. Answers whether there are more.
    fn count(&self) -> bool {
        let less = |left: u64| left.checked_sub(1);
        let left = self
            .scene
            .left
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, less);
        left.is_ok_and(|left| left > 1)
    }

    /// Asks for the partition, fresh for `attempt`, until it is there.
    async fn until_active(&mut self, wanted: &Wanted, attempt: u32) {
        let path = format!("/v1/partitions/{}?wait=2s", wanted.id);
        let body = json!({"owner": wanted.owner, "attempt": attempt, "size": wanted.size});
        loop {
            match call(&self.scene, Method::PUT, &path, Some(&body)).await {
                Some((StatusCode::OK, document)) => {
                    assert_eq!(document["state"], "active", "{document}");
                    assert_eq!(document["attempt"], attempt, "{document}");
                    break;
                }
                Some((status, document)) if !may_be_repeated(status) => panic!("{status}: {document}"),
                _ => self.pause().await,
            }
        }
        self.scene.watch.has(&wanted.id);
        self.count();
    }

    async fn pause(&mut self) {
        tokio::time::sleep(Duration::from_millis(u64::from(20 + self.random.below(100)))).await;
    }
}

/// Gives a partition back until it is gone.
pub(super) async fn give_back(scene: &Scene, id: &str) {
    let path = format!("/v1/partitions/{id}?wait=2s");
    loop {
        match call(scene, Method::DELETE, &path, None).await {
            Some((StatusCode::OK, _)) => return,
            Some((status, document)) if !may_be_repeated(status) => panic!("{status}: {document}"),
            _ => tokio::time::sleep(Duration::from_millis(50)).await,
        }
    }
}

/// Not done yet, or not now; a partition in error does not occur here, and everything else is a bug.
fn may_be_repeated(status: StatusCode) -> bool {
    status == StatusCode::ACCEPTED || status == StatusCode::CONFLICT || status.is_server_error()
}

/// One call; none if there is no answer.
async fn call(
    scene: &Scene,
    method: Method,
    path: &str,
    body: Option<&Value>,
) -> Option<(StatusCode, Value)> {
    let url = format!("http://{}{path}", scene.front.address);
    let mut request = http().request(method, url).timeout(Duration::from_secs(20));
    if let Some(body) = body {
        request = request.json(body);
    }
    let answer = request.send().await.ok()?;
    let status = answer.status();
    Some((status, answer.json().await.ok()?))
}
