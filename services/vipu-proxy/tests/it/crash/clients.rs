//! Clients that create, reset and release partitions, and repeat requests that were not answered.

use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

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
pub(super) struct Wanted {
    pub(super) id: String,
    owner: Value,
    size: u32,
    /// Raised for each reset, and when the partition was lost.
    attempt: u32,
}

impl Wanted {
    fn owner_text(&self) -> String {
        self.owner.to_string()
    }

    fn uid(&self) -> &str {
        self.owner["uid"].as_str().unwrap()
    }
}

/// Ids for which the owners of several clients ask.
const SHARED_IDS: u32 = 3;

/// Time that most requests take at most, and some.
const DEADLINES: [Duration; 2] = [Duration::from_secs(20), Duration::from_secs(2)];

impl Client {
    pub(super) fn new(number: u64, seed: u64, scene: &Arc<Scene>) -> Self {
        Self {
            number,
            random: Random::new(seed),
            scene: Arc::clone(scene),
        }
    }

    /// Lives until all operations are done. Answers what it still holds: some clients keep their last partition.
    pub(super) async fn live(mut self) -> Option<Wanted> {
        let mut jobs = 0;
        loop {
            let mut wanted = self.next_job(jobs);
            jobs += 1;
            self.until_active(&mut wanted).await;
            while self.random.chance(30) && self.has_work() {
                wanted.attempt += 1;
                self.scene.watch.drops(&wanted.id);
                self.until_active(&mut wanted).await;
            }
            if !self.has_work() && self.keeps() {
                return Some(wanted);
            }
            self.scene.watch.drops(&wanted.id);
            give_back(&self.scene, &wanted).await;
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
        let shared = !self.keeps() && self.random.chance(20);
        Wanted {
            id: if shared {
                format!("shared{}", self.random.below(SHARED_IDS))
            } else {
                key.partition_id(0).to_string()
            },
            attempt: 0,
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

    /// Asks for the partition until it is there, fresh for the attempt.
    async fn until_active(&mut self, wanted: &mut Wanted) {
        loop {
            let deadline = DEADLINES[usize::from(self.random.chance(30))];
            match put(&self.scene, wanted, deadline).await {
                Some((StatusCode::OK, document)) => {
                    assert_eq!(document["state"], "active", "{document}");
                    assert_eq!(document["attempt"], wanted.attempt, "{document}");
                    assert_eq!(document["owner"], wanted.owner, "{document}");
                    self.scene.watch.has(&wanted.id, &wanted.owner_text(), &document);
                    break;
                }
                // Its controller has lost it.
                Some((_, document)) if document["code"] == "PartitionFailed" => wanted.attempt += 1,
                Some((status, document)) if !may_be_repeated(status) => panic!("{status}: {document}"),
                _ => self.pause().await,
            }
        }
        self.count();
    }

    async fn pause(&mut self) {
        tokio::time::sleep(Duration::from_millis(u64::from(20 + self.random.below(100)))).await;
    }
}

/// Asks once for a partition.
pub(super) async fn put(scene: &Scene, wanted: &Wanted, deadline: Duration) -> Option<(StatusCode, Value)> {
    let path = format!("/v1/partitions/{}?wait=1s", wanted.id);
    let body = json!({"owner": wanted.owner, "attempt": wanted.attempt, "size": wanted.size});
    call(scene, Method::PUT, &path, deadline, Some(&body)).await
}

/// Makes a partition again that its controller has lost.
pub(super) async fn renew(scene: &Scene, wanted: &mut Wanted) {
    wanted.attempt += 1;
    scene.watch.drops(&wanted.id);
    put(scene, wanted, DEADLINES[0]).await;
}

/// Releases a partition until it is gone. Another owner may have its id then.
pub(super) async fn give_back(scene: &Scene, wanted: &Wanted) {
    let path = format!("/v1/partitions/{}?wait=1s&uid={}", wanted.id, wanted.uid());
    loop {
        match call(scene, Method::DELETE, &path, DEADLINES[0], None).await {
            Some((StatusCode::OK, _)) => return,
            Some((_, document)) if document["code"] == "NotTheOwner" => return,
            Some((status, document)) if !may_be_repeated(status) => panic!("{status}: {document}"),
            _ => tokio::time::sleep(Duration::from_millis(50)).await,
        }
    }
}

/// Not done yet, or not now; a partition in error does not occur here, and everything else is a bug.
fn may_be_repeated(status: StatusCode) -> bool {
    status == StatusCode::ACCEPTED || status == StatusCode::CONFLICT || status.is_server_error()
}

/// One call, which expires when the client gives up; none if there is no answer.
async fn call(
    scene: &Scene,
    method: Method,
    path: &str,
    deadline: Duration,
    body: Option<&Value>,
) -> Option<(StatusCode, Value)> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    let not_after = (now + deadline).as_millis();
    let url = format!("http://{}{path}&notAfter={not_after}", scene.front.address);
    let mut request = http().request(method, url).timeout(deadline);
    if let Some(body) = body {
        request = request.json(body);
    }
    let answer = request.send().await.ok()?;
    let status = answer.status();
    Some((status, answer.json().await.ok()?))
}
