//! A controller, the ledger of a proxy, and the owners that use it.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::process::Stdio;
use std::time::{Duration, Instant};

use reqwest::{Method, StatusCode};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::process::Command;
use vipu_sim::Simulator;

use super::{Case, Traced, Tracing};
use crate::binary::{RunningProxy, http, spawn};
use crate::support::request_body;

/// Duration of create, reset and remove at the controller.
const OPERATION_TIME: Duration = Duration::from_millis(20);
/// Timeout of each request.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(60);
/// Timeout of each step after a kill: several settle times of unanswered calls. Only a failure takes that
/// long.
const SETTLE_TIMEOUT: Duration = Duration::from_secs(240);
/// Interval between two requests that wait for a state.
const RETRY_INTERVAL: Duration = Duration::from_millis(100);
/// IPUs of each partition. All owners together need fewer than the controller has.
const SIZE: u32 = 4;

/// Request of the owner of a partition.
#[derive(Clone, Copy)]
pub(super) enum SceneStep {
    /// Requests the partition and waits for it.
    Put(&'static str),
    /// Requests the partition and does not wait.
    Send(&'static str),
    /// Resets the partition for attempt 1.
    Reset(&'static str),
    Delete(&'static str),
}

/// The knowledge of an owner about its partition.
#[derive(Default)]
struct Owner {
    /// Newest attempt that it has requested.
    attempt: u32,
    /// Newest attempt that was granted, with the IPUs.
    granted: Option<(u32, BTreeSet<String>)>,
    release: Release,
}

#[derive(Default, PartialEq)]
enum Release {
    #[default]
    None,
    Requested,
    Confirmed,
}

pub(super) struct Scene {
    program: &'static str,
    scratch: TempDir,
    simulator: Simulator,
    owners: BTreeMap<&'static str, Owner>,
}

impl Scene {
    pub(super) async fn new(program: &'static str) -> Self {
        let simulator = Simulator::builder(ipu_core::hardware::Topology::pod16()).delay(OPERATION_TIME);
        Self {
            program,
            scratch: tempfile::tempdir().unwrap(),
            simulator: simulator.start().await.unwrap(),
            owners: BTreeMap::new(),
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.scratch.path().join(name)
    }

    /// Keeps the files for a person, and returns their directory.
    pub(super) fn keep(self) -> PathBuf {
        self.scratch.keep()
    }

    /// Removes the files of the ledger.
    pub(super) fn lose_ledger(&self) {
        for file in ["ledger.db", "ledger.db-wal", "ledger.db-shm"] {
            std::fs::remove_file(self.path(file)).ok();
        }
    }

    /// Does the work of `case` up to the kill, and kills the process if the tracer did not. Returns whether
    /// it did.
    pub(super) async fn work(&mut self, case: &Case, tracing: &Tracing) -> bool {
        if !case.before.is_empty() {
            let mut proxy = self.start(Command::new(self.program)).await.unwrap();
            assert!(
                self.request(&proxy, case.before).await,
                "no request fails without a kill"
            );
            proxy.kill().await;
        }
        match case.traced {
            Traced::Start => match self.start(tracing.start(self.program)).await {
                Some(mut proxy) => {
                    proxy.kill().await;
                    false
                }
                None => true,
            },
            Traced::Requests(steps) => {
                let mut proxy = self.start(Command::new(self.program)).await.unwrap();
                until_ready(&proxy).await.unwrap();
                tracing.attach(proxy.pid()).await;
                let is_complete = self.request(&proxy, steps).await;
                proxy.kill().await;
                !is_complete
            }
        }
    }

    /// Lets a new process repair, and the owners finish; compares ledger, controller and owners. An error is
    /// the first contradiction.
    pub(super) async fn finish(&mut self) -> Result<(), String> {
        let proxy = self
            .start(Command::new(self.program))
            .await
            .ok_or("the program does not start again")?;
        until_ready(&proxy).await?;
        for (id, owner) in &self.owners {
            self.check_promises(&proxy, id, owner).await?;
        }
        for (id, owner) in &self.owners {
            match owner.release {
                Release::None => finish_attempt(&proxy, id, owner).await?,
                Release::Requested => release(&proxy, id).await?,
                Release::Confirmed => {}
            }
        }
        self.compare(&proxy).await?;
        for id in self.owners.keys() {
            release(&proxy, id).await?;
        }
        let is_empty = |(_, listed): &(StatusCode, Value)| listed["partitions"] == json!([]);
        until(&proxy, Method::GET, "/v1/partitions", None, is_empty).await?;
        let is_unused =
            |(_, stats): &(StatusCode, Value)| stats["total"] == json!({"used": 0, "available": 16});
        until(&proxy, Method::GET, "/stats", None, is_unused).await?;
        let leaked = self.at_controller();
        if leaked.is_empty() {
            Ok(())
        } else {
            Err(format!(
                "all owners have released, and the controller has {leaked:?}"
            ))
        }
    }

    /// Starts the program of `command`; none if it ends before it is ready.
    async fn start(&self, mut command: Command) -> Option<RunningProxy> {
        let log = std::fs::File::options()
            .create(true)
            .append(true)
            .open(self.path("log"))
            .unwrap();
        command
            .arg("--store")
            .arg(format!("file:{}", self.path("ledger.db").display()))
            .args(["--controllers", &self.simulator.addr().to_string()])
            .args(["--listen", "127.0.0.1:0", "--controller-deadline", "1"])
            .env("TOKIO_WORKER_THREADS", "1")
            .stdin(Stdio::null())
            .stderr(log);
        spawn(command).await
    }

    /// Sends the requests of `steps`; returns whether all were answered.
    async fn request(&mut self, proxy: &RunningProxy, steps: &[SceneStep]) -> bool {
        for step in steps {
            let (SceneStep::Put(id) | SceneStep::Send(id) | SceneStep::Reset(id) | SceneStep::Delete(id)) =
                *step;
            let owner = self.owners.entry(id).or_default();
            let path = format!("/v1/partitions/{id}");
            let (method, path, body) = match step {
                SceneStep::Put(_) => (
                    Method::PUT,
                    format!("{path}?wait=50s"),
                    Some(request_body(id, SIZE)),
                ),
                SceneStep::Send(_) => (Method::PUT, path, Some(request_body(id, SIZE))),
                SceneStep::Reset(_) => {
                    owner.attempt = 1;
                    (Method::POST, format!("{path}/reset"), Some(json!({"attempt": 1})))
                }
                SceneStep::Delete(_) => {
                    owner.release = Release::Requested;
                    (Method::DELETE, format!("{path}?wait=50s&uid=uid-{id}"), None)
                }
            };
            let Some((status, document)) = send(proxy, method, &path, body.as_ref()).await else {
                return false;
            };
            assert!(status.is_success(), "{status}: {document}");
            match document["state"].as_str() {
                Some("active") => owner.granted = Some((owner.attempt, ipus(&document))),
                Some("gone") => owner.release = Release::Confirmed,
                _ => {}
            }
        }
        true
    }

    /// Checks that what an answer promised before the kill holds after it.
    async fn check_promises(&self, proxy: &RunningProxy, id: &str, owner: &Owner) -> Result<(), String> {
        let path = format!("/v1/partitions/{id}");
        let is_answer = |(status, _): &(StatusCode, Value)| !status.is_server_error();
        let (_, shown) = until(proxy, Method::GET, &path, None, is_answer).await?;
        match (&owner.release, &owner.granted) {
            (Release::Confirmed, _) if shown["code"] != "NotFound" => {
                Err(format!("{id} was deleted, and the ledger has {shown}"))
            }
            (Release::None, Some((attempt, granted))) => {
                let is_kept = shown["attempt"].as_u64() >= Some(u64::from(*attempt))
                    && (owner.attempt > *attempt || shown["state"] == "active")
                    && matches!(shown["state"].as_str(), Some("active" | "creating" | "resetting"));
                if !is_kept || (shown["state"] == "active" && ipus(&shown) != *granted) {
                    return Err(format!(
                        "{id} was granted on {granted:?}, and the ledger has {shown}"
                    ));
                }
                match self.at_controller().get(id) {
                    Some(listed) if listed == granted => Ok(()),
                    other => Err(format!(
                        "{id} was granted on {granted:?}, and the controller has {other:?}"
                    )),
                }
            }
            _ => Ok(()),
        }
    }

    /// Compares the IPUs of the active partitions in the ledger with those at the controller.
    async fn compare(&self, proxy: &RunningProxy) -> Result<(), String> {
        let is_answer = |(status, _): &(StatusCode, Value)| *status == 200;
        let (_, document) = until(proxy, Method::GET, "/v1/partitions", None, is_answer).await?;
        let at_controller = self.at_controller();
        let mut recorded = BTreeMap::new();
        for partition in document["partitions"].as_array().into_iter().flatten() {
            if partition["state"] != "active" {
                return Err(format!(
                    "every owner has its partition or has released it: {partition}"
                ));
            }
            let id = partition["id"].as_str().unwrap_or_default().to_owned();
            // Only the answer for one partition always has its IPUs.
            let is_active = |(_, document): &(StatusCode, Value)| document["state"] == "active";
            let path = format!("/v1/partitions/{id}");
            let (_, document) = until(proxy, Method::GET, &path, None, is_active).await?;
            recorded.insert(id, ipus(&document));
        }
        let expected: BTreeSet<&str> = self
            .owners
            .iter()
            .filter(|(_, owner)| owner.release == Release::None)
            .map(|(id, _)| *id)
            .collect();
        if recorded != at_controller
            || recorded.keys().map(String::as_str).collect::<BTreeSet<_>>() != expected
        {
            return Err(format!(
                "the owners of {expected:?} have partitions, the ledger has {recorded:?}, the controller {at_controller:?}"
            ));
        }
        let all: Vec<&String> = recorded.values().flatten().collect();
        if all.iter().collect::<BTreeSet<_>>().len() < all.len() {
            return Err(format!("an IPU is in two partitions: {recorded:?}"));
        }
        Ok(())
    }

    /// Returns the IPUs of the partitions at the controller, by id.
    fn at_controller(&self) -> BTreeMap<String, BTreeSet<String>> {
        let name = |(domain, ipu): &(u32, u8)| format!("{domain}/{ipu}");
        let partitions = self.simulator.state().unwrap().partitions.into_iter();
        partitions
            .map(|partition| (partition.id, partition.ipus.iter().map(name).collect()))
            .collect()
    }
}

/// Requests the partition until it is active, as an owner does that does not know the result of its request.
async fn finish_attempt(proxy: &RunningProxy, id: &str, owner: &Owner) -> Result<(), String> {
    let mut body = request_body(id, SIZE);
    body["attempt"] = json!(owner.attempt);
    let path = format!("/v1/partitions/{id}?wait=1s");
    let is_active = |(status, _): &(StatusCode, Value)| *status == 200;
    let (_, document) = until(proxy, Method::PUT, &path, Some(&body), is_active).await?;
    match &owner.granted {
        Some((_, granted)) if ipus(&document) != *granted => Err(format!(
            "{id} was granted on {granted:?}, and has moved: {document}"
        )),
        _ => Ok(()),
    }
}

/// Releases the partition until it is deleted.
async fn release(proxy: &RunningProxy, id: &str) -> Result<(), String> {
    let is_gone = |(status, document): &(StatusCode, Value)| *status == 200 && document["state"] == "gone";
    let path = format!("/v1/partitions/{id}?wait=1s&uid=uid-{id}");
    until(proxy, Method::DELETE, &path, None, is_gone)
        .await
        .map(|_| ())
}

async fn until_ready(proxy: &RunningProxy) -> Result<(), String> {
    until(proxy, Method::GET, "/readyz", None, |(status, _)| *status == 200)
        .await
        .map(|_| ())
}

/// Repeats a request until its answer is `expected`. An answer that no repetition changes is an error.
async fn until(
    proxy: &RunningProxy,
    method: Method,
    path: &str,
    body: Option<&Value>,
    expected: impl Fn(&(StatusCode, Value)) -> bool,
) -> Result<(StatusCode, Value), String> {
    let timeout = Instant::now() + SETTLE_TIMEOUT;
    loop {
        let answer = send(proxy, method.clone(), path, body).await;
        match answer {
            Some(answer) if expected(&answer) => return Ok(answer),
            _ if Instant::now() > timeout => return Err(format!("{method} {path} still answers {answer:?}")),
            _ => tokio::time::sleep(RETRY_INTERVAL).await,
        }
    }
}

/// Sends one request; returns none without an answer.
async fn send(
    proxy: &RunningProxy,
    method: Method,
    path: &str,
    body: Option<&Value>,
) -> Option<(StatusCode, Value)> {
    let request = http()
        .request(method, format!("{}{path}", proxy.url))
        .timeout(REQUEST_TIMEOUT);
    let request = match body {
        Some(body) => request.json(body),
        None => request,
    };
    let response = request.send().await.ok()?;
    Some((response.status(), response.json().await.ok()?))
}

fn ipus(document: &Value) -> BTreeSet<String> {
    let ipus = document["ipus"].as_array().into_iter().flatten();
    ipus.map(|ipu| format!("{}/{}", ipu["linkDomain"], ipu["ipu"]))
        .collect()
}
