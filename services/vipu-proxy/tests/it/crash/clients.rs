//! Clients that create, reset and release partitions, and retry requests without a response.

use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use ipu_testkit::Random;
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};

use super::history::{Call, CallAnswer, Death, Operation, Record};
use super::{Harness, NAMESPACES, text};

/// Returns the HTTP client that all clients share.
pub(super) fn http() -> &'static reqwest::Client {
    static HTTP: OnceLock<reqwest::Client> = OnceLock::new();
    HTTP.get_or_init(|| {
        // Fails if another test has already installed the same provider.
        rustls::crypto::ring::default_provider().install_default().ok();
        reqwest::Client::new()
    })
}

pub(super) struct Client {
    number: u64,
    random: Random,
    harness: Arc<Harness>,
}

/// Job with its partition request, which is the same for every retry.
pub(super) struct Job {
    pub(super) id: String,
    owner: Value,
    size: u32,
    /// Attempt, which increases with each reset and after the loss of the partition.
    attempt: u32,
}

impl Job {
    fn uid(&self) -> &str {
        self.owner["uid"].as_str().unwrap()
    }
}

/// Number of ids that the owners of several clients request.
const SHARED_IDS: u32 = 3;

/// Request timeouts: of most requests, and of some.
const REQUEST_TIMEOUTS: [Duration; 2] = [Duration::from_secs(20), Duration::from_secs(2)];

impl Client {
    pub(super) fn new(number: u64, seed: u64, harness: &Arc<Harness>) -> Self {
        Self {
            number,
            random: Random::new(seed),
            harness: Arc::clone(harness),
        }
    }

    /// Runs until all operations are done. Returns the partition that it still holds, because some clients
    /// keep their last one.
    pub(super) async fn run(mut self) -> Option<Job> {
        let mut count = 0;
        loop {
            let mut job = self.next_job(count);
            count += 1;
            self.until_active(&mut job).await;
            while self.random.chance(30) && self.has_work() {
                job.attempt += 1;
                self.until_active(&mut job).await;
                if self.random.chance(30) {
                    get(&self.harness, &job).await;
                }
            }
            if !self.has_work() && self.keeps_partition() {
                return Some(job);
            }
            if self.random.chance(10) {
                self.harness.history.append(&Record::Death(Death {
                    id: job.id.clone(),
                    owner: owner_text(&job.owner),
                    at: self.harness.history.now(),
                }));
            }
            release(&self.harness, &job).await;
            if !self.count_operation() {
                return None;
            }
        }
    }

    fn next_job(&mut self, number: u32) -> Job {
        // Clients that keep their partition must not occupy the capacity of the others permanently.
        let size = if self.keeps_partition() {
            1
        } else {
            1 << self.random.below(4)
        };
        let (namespace, name) = (
            format!("ns{}", self.number % NAMESPACES),
            format!("client{}", self.number),
        );
        // A release names its owner by the uid alone.
        let uid = format!("job{}-{number}", self.number);
        let key = ipu_core::JobKey::new(&namespace, &name, &uid).unwrap();
        let shared = !self.keeps_partition() && self.random.chance(20);
        Job {
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

    /// Returns whether the client keeps its last partition. Few do, so that capacity and quota suffice for
    /// the others.
    fn keeps_partition(&self) -> bool {
        self.number.is_multiple_of(16)
    }

    fn has_work(&self) -> bool {
        self.harness.remaining.load(Ordering::SeqCst) > 0
    }

    /// Counts an operation; returns whether there are more.
    fn count_operation(&self) -> bool {
        let decrement = |remaining: u64| remaining.checked_sub(1);
        let remaining = self
            .harness
            .remaining
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, decrement);
        remaining.is_ok_and(|remaining| remaining > 1)
    }

    /// Requests the partition until it is active for the attempt.
    async fn until_active(&mut self, job: &mut Job) {
        loop {
            let deadline = REQUEST_TIMEOUTS[usize::from(self.random.chance(30))];
            match put(&self.harness, job, deadline).await {
                Some((StatusCode::OK, _)) => break,
                // The controller has lost the partition.
                Some((_, document)) if document["code"] == "PartitionFailed" => job.attempt += 1,
                Some((status, document)) if !is_retryable(status) => panic!("{status}: {document}"),
                _ => self.back_off().await,
            }
        }
        self.count_operation();
    }

    async fn back_off(&mut self) {
        tokio::time::sleep(Duration::from_millis(u64::from(20 + self.random.below(100)))).await;
    }
}

/// Sends one request for the partition of `job`.
pub(super) async fn put(harness: &Harness, job: &Job, deadline: Duration) -> Option<(StatusCode, Value)> {
    let body = json!({"owner": job.owner, "attempt": job.attempt, "size": job.size});
    call(harness, job, Operation::Put, "wait=1s", deadline, Some(&body)).await
}

/// Reads the partition of `job`.
async fn get(harness: &Harness, job: &Job) {
    if let Some((status, document)) = call(harness, job, Operation::Get, "", REQUEST_TIMEOUTS[1], None).await
    {
        let is_expected = status.is_success() || status == StatusCode::NOT_FOUND || status.is_server_error();
        assert!(is_expected, "{status}: {document}");
    }
}

/// Recreates a partition that its controller has lost.
pub(super) async fn renew(harness: &Harness, job: &mut Job) {
    job.attempt += 1;
    put(harness, job, REQUEST_TIMEOUTS[0]).await;
}

/// Releases the partition of `job` until it is deleted. Another owner may have its id by then.
pub(super) async fn release(harness: &Harness, job: &Job) {
    let query = format!("wait=1s&uid={}", job.uid());
    loop {
        match call(harness, job, Operation::Delete, &query, REQUEST_TIMEOUTS[0], None).await {
            Some((StatusCode::OK, _)) => return,
            Some((_, document)) if document["code"] == "NotTheOwner" => return,
            Some((status, document)) if !is_retryable(status) => panic!("{status}: {document}"),
            _ => tokio::time::sleep(Duration::from_millis(50)).await,
        }
    }
}

/// Returns whether the client retries after `status`. Every other error status is a bug.
fn is_retryable(status: StatusCode) -> bool {
    status == StatusCode::ACCEPTED || status == StatusCode::CONFLICT || status.is_server_error()
}

/// Sends one request, which expires at the client timeout, and records it; returns none without a response.
async fn call(
    harness: &Harness,
    job: &Job,
    operation: Operation,
    query: &str,
    deadline: Duration,
    body: Option<&Value>,
) -> Option<(StatusCode, Value)> {
    let invoked = harness.history.now();
    let response = send(harness, &job.id, operation, query, deadline, body).await;
    harness.history.append(&Record::Call(Call {
        operation,
        id: job.id.clone(),
        owner: owner_text(&job.owner),
        attempt: job.attempt,
        invoked,
        not_after: invoked + u64::try_from(deadline.as_micros()).unwrap(),
        returned: harness.history.now(),
        answer: response
            .as_ref()
            .map(|(status, document)| answer(*status, document)),
    }));
    response
}

async fn send(
    harness: &Harness,
    id: &str,
    operation: Operation,
    query: &str,
    deadline: Duration,
    body: Option<&Value>,
) -> Option<(StatusCode, Value)> {
    let url = format!("http://{}/v1/partitions/{id}", harness.client_relay.address);
    let request = if operation == Operation::Get {
        http().get(url)
    } else {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
        let not_after = (now + deadline).as_millis();
        let method = if operation == Operation::Put {
            Method::PUT
        } else {
            Method::DELETE
        };
        http().request(method, format!("{url}?{query}&notAfter={not_after}"))
    };
    let mut request = request.timeout(deadline);
    if let Some(body) = body {
        request = request.json(body);
    }
    let response = request.send().await.ok()?;
    let status = response.status();
    Some((status, response.json().await.ok()?))
}

fn answer(status: StatusCode, document: &Value) -> CallAnswer {
    let as_text = |value: &Value| value.as_str().map(str::to_owned);
    let ipus = document["ipus"].as_array().into_iter().flatten();
    // The owner of a problem is the other owner.
    let is_partition = status.is_success() && document["owner"].is_object();
    CallAnswer {
        status: status.as_u16(),
        code: as_text(&document["code"]),
        state: as_text(&document["state"]),
        owner: is_partition.then(|| owner_text(&document["owner"])),
        attempt: document["attempt"]
            .as_u64()
            .map(|attempt| attempt.try_into().unwrap()),
        controller: as_text(&document["controller"]["name"]),
        ipus: ipus
            .map(|ipu| format!("{}/{}", ipu["linkDomain"], ipu["ipu"]))
            .collect(),
    }
}

fn owner_text(owner: &Value) -> String {
    ["namespace", "name", "uid"]
        .map(|field| text(&owner[field]))
        .join("/")
}
