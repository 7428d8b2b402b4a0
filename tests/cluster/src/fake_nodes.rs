//! Fake nodes (KWOK-style): Pods that are bound to them report the status of running Pods, but no container
//! runs. They serve tests of objects and their number, on a cluster of
//! [`ClusterProfile::Controllers`](crate::ClusterProfile::Controllers).

use std::collections::{BTreeMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures::StreamExt as _;
use k8s_openapi::jiff::Timestamp;
use kube::Client;
use kube::api::{Api, DeleteParams, DynamicObject, Patch, PatchParams, PostParams, Preconditions};
use kube::core::{ApiResource, GroupVersionKind};
use kube::runtime::WatchStreamExt as _;
use kube::runtime::watcher::{self, Event};
use serde_json::{Value, json};
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;

/// Interval of node heartbeats: well below the 40 s after which a node counts as dead.
const HEARTBEAT_INTERVAL: Duration = Duration::from_secs(10);
/// Maximum number of concurrent API calls.
const MAX_CONCURRENT_UPDATES: usize = 16;
/// Pod capacity of a node.
const POD_CAPACITY: &str = "5000";

/// End of a Pod's containers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ContainerEnd {
    /// Containers run until the Pod is deleted.
    Never,
    /// Containers exit by themselves.
    After {
        /// Time from start to exit.
        time: Duration,
        /// Exit code of all containers.
        exit_code: u8,
    },
}

/// Configuration of the fake nodes.
#[derive(Clone)]
#[non_exhaustive]
pub struct FakeOptions {
    /// Number of nodes.
    pub nodes: u32,
    /// Node labels besides the hostname.
    pub labels: BTreeMap<String, String>,
    /// Time from binding to readiness of a Pod.
    pub start: Duration,
    /// Returns the end of a Pod's containers.
    pub container_end: Arc<dyn Fn(&Value) -> ContainerEnd + Send + Sync>,
}

impl Default for FakeOptions {
    fn default() -> Self {
        Self {
            nodes: 3,
            labels: BTreeMap::new(),
            start: Duration::ZERO,
            container_end: Arc::new(|_| ContainerEnd::Never),
        }
    }
}

/// Fake nodes, which exist until this value is dropped.
#[derive(Debug)]
pub struct FakeNodes {
    tasks: Vec<JoinHandle<()>>,
    silent: SilentNodes,
}

/// Names of the nodes that have fallen silent.
type SilentNodes = Arc<Mutex<HashSet<String>>>;

impl Drop for FakeNodes {
    fn drop(&mut self) {
        self.tasks.iter().for_each(JoinHandle::abort);
    }
}

impl FakeNodes {
    /// Registers the nodes and starts simulating their kubelets.
    ///
    /// # Errors
    ///
    /// The API server's error.
    pub async fn start(client: Client, options: FakeOptions) -> Result<Self, kube::Error> {
        let names: Vec<String> = (0..options.nodes)
            .map(|number| format!("fake-{number}"))
            .collect();
        for name in &names {
            register(&client, name, &options.labels).await?;
            renew(&client, name).await?;
        }
        let silent = SilentNodes::default();
        let heartbeats = tokio::spawn(send_heartbeats(client.clone(), names, Arc::clone(&silent)));
        let kubelets = tokio::spawn(run_kubelets(client, options, Arc::clone(&silent)));
        Ok(Self {
            tasks: vec![heartbeats, kubelets],
            silent,
        })
    }

    /// Makes the node `name` silent: it sends no heartbeats, starts nothing, and ignores deletions.
    pub fn fall_silent(&self, name: &str) {
        lock_names(&self.silent).insert(name.to_owned());
    }
}

fn lock_names(silent: &SilentNodes) -> MutexGuard<'_, HashSet<String>> {
    silent.lock().unwrap_or_else(PoisonError::into_inner)
}

fn resource(group: &str, kind: &str, plural: &str) -> ApiResource {
    ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk(group, "v1", kind), plural)
}

fn pods() -> ApiResource {
    resource("", "Pod", "pods")
}

fn now() -> String {
    format!("{:.0}", Timestamp::now())
}

fn object(value: Value) -> Result<DynamicObject, kube::Error> {
    serde_json::from_value(value).map_err(kube::Error::SerdeError)
}

fn nodes(client: &Client) -> Api<DynamicObject> {
    Api::all_with(client.clone(), &resource("", "Node", "nodes"))
}

/// Returns the conditions of a healthy node.
fn conditions() -> Value {
    let condition = |(kind, status)| {
        json!({
            "type": kind, "status": status, "reason": "Fake", "message": "",
            "lastHeartbeatTime": now(), "lastTransitionTime": now(),
        })
    };
    let healthy = [
        ("Ready", "True"),
        ("MemoryPressure", "False"),
        ("DiskPressure", "False"),
        ("PIDPressure", "False"),
    ];
    healthy.into_iter().map(condition).collect()
}

async fn register(client: &Client, name: &str, labels: &BTreeMap<String, String>) -> Result<(), kube::Error> {
    let mut labels = labels.clone();
    labels.insert("kubernetes.io/hostname".to_owned(), name.to_owned());
    let capacity = json!({"cpu": "10000", "memory": "10000Gi", "pods": POD_CAPACITY});
    let node = object(json!({
        "apiVersion": "v1", "kind": "Node",
        "metadata": {"name": name, "labels": labels},
        "status": {
            "capacity": capacity, "allocatable": capacity,
            "conditions": conditions(),
        },
    }))?;
    match nodes(client).create(&PostParams::default(), &node).await {
        Ok(_) => Ok(()),
        Err(kube::Error::Api(response)) if response.code == 409 => Ok(()),
        Err(error) => Err(error),
    }
}

async fn renew(client: &Client, name: &str) -> Result<(), kube::Error> {
    let leases: Api<DynamicObject> = Api::namespaced_with(
        client.clone(),
        "kube-node-lease",
        &resource("coordination.k8s.io", "Lease", "leases"),
    );
    let lease = json!({
        "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
        "metadata": {"name": name},
        "spec": {"holderIdentity": name, "leaseDurationSeconds": 40, "renewTime": format!("{:.6}", Timestamp::now())},
    });
    leases
        .patch(
            name,
            &PatchParams::apply("fake-nodes").force(),
            &Patch::Apply(&lease),
        )
        .await
        .map(drop)
}

/// Restores the conditions of a node that was marked dead; only the node itself can report that it is
/// alive.
async fn recover(client: &Client, name: &str) -> Result<(), kube::Error> {
    let nodes = nodes(client);
    let node = nodes.get(name).await?;
    let reported = node.data["status"]["conditions"].as_array();
    let is_ready = |condition: &Value| condition["type"] == "Ready" && condition["status"] == "True";
    if reported.into_iter().flatten().any(is_ready) {
        return Ok(());
    }
    let patch = json!({"status": {"conditions": conditions()}});
    let params = PatchParams::default();
    nodes
        .patch_status(name, &params, &Patch::Strategic(&patch))
        .await
        .map(drop)
}

async fn send_heartbeats(client: Client, names: Vec<String>, silent: SilentNodes) {
    loop {
        tokio::time::sleep(HEARTBEAT_INTERVAL).await;
        for name in &names {
            if lock_names(&silent).contains(name) {
                continue;
            }
            // A failed call is harmless: the next renewal comes well before the lease expires.
            let _ = renew(&client, name).await;
            let _ = recover(&client, name).await;
        }
    }
}

/// Watches Pods bound to a node, and simulates the kubelet for each.
async fn run_kubelets(client: Client, options: FakeOptions, silent: SilentNodes) {
    let all: Api<DynamicObject> = Api::all_with(client.clone(), &pods());
    let bound = watcher::Config::default().fields("spec.nodeName!=");
    let mut events = std::pin::pin!(watcher::watcher(all, bound).default_backoff());
    let calls = Arc::new(Semaphore::new(MAX_CONCURRENT_UPDATES));
    let mut started: HashSet<String> = HashSet::new();
    while let Some(event) = events.next().await {
        let pod = match event {
            Ok(Event::Apply(pod) | Event::InitApply(pod)) => pod,
            Ok(Event::Delete(pod)) => {
                started.remove(pod.metadata.uid.as_deref().unwrap_or_default());
                continue;
            }
            Ok(Event::Init | Event::InitDone) | Err(_) => continue,
        };
        let node = pod.data["spec"]["nodeName"].as_str().unwrap_or_default();
        if lock_names(&silent).contains(node) {
            continue;
        }
        let (Some(name), Some(namespace), Some(uid)) =
            (pod.metadata.name, pod.metadata.namespace, pod.metadata.uid)
        else {
            continue;
        };
        let kubelet = Kubelet {
            pods: Api::namespaced_with(client.clone(), &namespace, &pods()),
            calls: Arc::clone(&calls),
            name,
            uid,
        };
        let is_terminal = matches!(pod.data["status"]["phase"].as_str(), Some("Succeeded" | "Failed"));
        let is_kept = pod
            .metadata
            .finalizers
            .as_ref()
            .is_some_and(|finalizers| !finalizers.is_empty());
        let is_deleted = pod.metadata.deletion_timestamp.is_some();
        let data = json!({
            "metadata": {"labels": pod.metadata.labels, "annotations": pod.metadata.annotations},
            "spec": pod.data["spec"],
        });
        if is_deleted {
            // A kubelet reports the end before it deletes the Pod. Nothing reads it unless a finalizer keeps
            // it.
            let end = (is_kept && !is_terminal).then(|| stopped_status(&data));
            if is_kept && is_terminal {
                continue;
            }
            tokio::spawn(kubelet.remove(end));
            continue;
        }
        if pod.data["status"]["phase"] == "Pending" && started.insert(kubelet.uid.clone()) {
            let container_end = (options.container_end)(&data);
            tokio::spawn(kubelet.run(data, options.start, container_end));
        }
    }
}

/// A call of the kubelet to the API server.
enum KubeletCall {
    /// Update the status.
    UpdateStatus(Value),
    /// Delete the Pod.
    DeletePod,
}

/// The simulated kubelet of one Pod.
struct Kubelet {
    pods: Api<DynamicObject>,
    calls: Arc<Semaphore>,
    name: String,
    uid: String,
}

impl Kubelet {
    async fn run(self, pod: Value, start: Duration, container_end: ContainerEnd) {
        if !start.is_zero() {
            tokio::time::sleep(start).await;
        }
        let started_at = now();
        self.call_with_retries(&KubeletCall::UpdateStatus(running_status(&pod, &started_at)))
            .await;
        if let ContainerEnd::After { time, exit_code } = container_end {
            tokio::time::sleep(time).await;
            self.call_with_retries(&KubeletCall::UpdateStatus(ended_status(
                &pod,
                &started_at,
                exit_code,
            )))
            .await;
        }
    }

    async fn remove(self, end: Option<Value>) {
        if let Some(end) = end {
            self.call_with_retries(&KubeletCall::UpdateStatus(end)).await;
        }
        self.call_with_retries(&KubeletCall::DeletePod).await;
    }

    /// Retries until the call succeeds. A missing Pod, or another Pod of the same name, ends the retries.
    async fn call_with_retries(&self, call: &KubeletCall) {
        for _ in 0..1000 {
            let Ok(permit) = self.calls.acquire().await else {
                return;
            };
            match self.call(call).await {
                Ok(()) => return,
                Err(kube::Error::Api(response)) if matches!(response.code, 404 | 409 | 422) => return,
                Err(_) => {}
            }
            drop(permit);
            // The API server is unavailable or overloaded.
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    }

    async fn call(&self, call: &KubeletCall) -> Result<(), kube::Error> {
        match call {
            KubeletCall::UpdateStatus(pod_status) => {
                let patch = Patch::Strategic(json!({"metadata": {"uid": self.uid}, "status": pod_status}));
                let params = PatchParams::default();
                self.pods
                    .patch_status(&self.name, &params, &patch)
                    .await
                    .map(drop)
            }
            KubeletCall::DeletePod => {
                let mut params = DeleteParams::default().grace_period(0);
                params.preconditions = Some(Preconditions {
                    uid: Some(self.uid.clone()),
                    resource_version: None,
                });
                self.pods.delete(&self.name, &params).await.map(drop)
            }
        }
    }
}

fn containers_in<'a>(pod: &'a Value, field: &str) -> Vec<&'a Value> {
    pod["spec"][field]
        .as_array()
        .map(|all| all.iter().collect())
        .unwrap_or_default()
}

fn container_status(spec: &Value, state: &Value, ready: bool) -> Value {
    json!({
        "name": spec["name"], "image": spec["image"], "imageID": "", "containerID": "fake://0",
        "ready": ready, "started": ready, "restartCount": 0, "state": state,
    })
}

fn terminated_container(spec: &Value, started_at: &str, exit_code: u8) -> Value {
    let reason = if exit_code == 0 { "Completed" } else { "Error" };
    let state = json!({"terminated": {
        "exitCode": exit_code, "reason": reason, "startedAt": started_at, "finishedAt": now(), "containerID": "fake://0",
    }});
    container_status(spec, &state, false)
}

fn pod_status(pod: &Value, phase: &str, started_at: &str, containers: &[Value], ready: bool) -> Value {
    let ready_text = if ready { "True" } else { "False" };
    let condition =
        |kind: &str, status: &str| json!({"type": kind, "status": status, "lastTransitionTime": now()});
    let init_containers: Vec<Value> = containers_in(pod, "initContainers")
        .into_iter()
        .map(|spec| terminated_container(spec, started_at, 0))
        .collect();
    json!({
        "phase": phase,
        "startTime": started_at,
        "conditions": [
            condition("Initialized", "True"),
            condition("PodReadyToStartContainers", "True"),
            condition("ContainersReady", ready_text),
            condition("Ready", ready_text),
        ],
        "initContainerStatuses": init_containers,
        "containerStatuses": containers,
    })
}

fn running_status(pod: &Value, started_at: &str) -> Value {
    let state = json!({"running": {"startedAt": started_at}});
    let containers: Vec<Value> = containers_in(pod, "containers")
        .into_iter()
        .map(|spec| container_status(spec, &state, true))
        .collect();
    pod_status(pod, "Running", started_at, &containers, true)
}

/// Returns the status of a Pod whose containers the kubelet has stopped by SIGTERM.
fn stopped_status(pod: &Value) -> Value {
    ended_status(pod, &now(), 143)
}

fn ended_status(pod: &Value, started_at: &str, exit_code: u8) -> Value {
    let containers: Vec<Value> = containers_in(pod, "containers")
        .into_iter()
        .map(|spec| terminated_container(spec, started_at, exit_code))
        .collect();
    let phase = if exit_code == 0 { "Succeeded" } else { "Failed" };
    pod_status(pod, phase, started_at, &containers, false)
}
