//! Nodes that are objects only: Kubernetes Pods that are bound to them are said to run, and nothing does. For what is about
//! objects and their number, on a cluster of [`ClusterProfile::Controllers`](crate::ClusterProfile::Controllers).

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

/// How often each node says that it is there: well within the 40 s after which it is taken for dead.
const HEARTBEAT: Duration = Duration::from_secs(10);
/// How many calls are made at a time.
const MAX_CONCURRENT_UPDATES: usize = 16;
/// How many Kubernetes Pods a node takes.
const PODS: &str = "5000";

/// How the containers of a Kubernetes Pod end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ContainerEnd {
    /// Not before it is deleted.
    Never,
    /// By themselves.
    After {
        /// So long after they started.
        time: Duration,
        /// With this exit code, all of them.
        exit_code: u8,
    },
}

/// What the nodes are and what they do.
#[derive(Clone)]
#[non_exhaustive]
pub struct FakeOptions {
    /// How many there are.
    pub nodes: u32,
    /// Their labels besides their names.
    pub labels: BTreeMap<String, String>,
    /// How long a Kubernetes Pod takes from being bound to being ready.
    pub start: Duration,
    /// How a Kubernetes Pod ends.
    pub life: Arc<dyn Fn(&Value) -> ContainerEnd + Send + Sync>,
}

impl Default for FakeOptions {
    fn default() -> Self {
        Self {
            nodes: 3,
            labels: BTreeMap::new(),
            start: Duration::ZERO,
            life: Arc::new(|_| ContainerEnd::Never),
        }
    }
}

/// Nodes that are there as long as this is.
#[derive(Debug)]
pub struct FakeNodes {
    tasks: Vec<JoinHandle<()>>,
    silent: SilentNodes,
}

/// The names of the nodes that nothing is heard of any more.
type SilentNodes = Arc<Mutex<HashSet<String>>>;

impl Drop for FakeNodes {
    fn drop(&mut self) {
        self.tasks.iter().for_each(JoinHandle::abort);
    }
}

impl FakeNodes {
    /// Registers the nodes and begins to play their kubelets.
    ///
    /// # Errors
    ///
    /// What the API server answers.
    pub async fn start(client: Client, options: FakeOptions) -> Result<Self, kube::Error> {
        let names: Vec<String> = (0..options.nodes)
            .map(|number| format!("fake-{number}"))
            .collect();
        for name in &names {
            register(&client, name, &options.labels).await?;
            renew(&client, name).await?;
        }
        let silent = SilentNodes::default();
        let heartbeats = tokio::spawn(beat(client.clone(), names, Arc::clone(&silent)));
        let kubelets = tokio::spawn(play(client, options, Arc::clone(&silent)));
        Ok(Self {
            tasks: vec![heartbeats, kubelets],
            silent,
        })
    }

    /// From now on nothing is heard of the node `name`: it sends no heartbeats, starts nothing, and hears of no deletion.
    pub fn fall_silent(&self, name: &str) {
        names_in(&self.silent).insert(name.to_owned());
    }
}

fn names_in(silent: &SilentNodes) -> MutexGuard<'_, HashSet<String>> {
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

/// What a node in good health says of itself.
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
    let room = json!({"cpu": "10000", "memory": "10000Gi", "pods": PODS});
    let node = object(json!({
        "apiVersion": "v1", "kind": "Node",
        "metadata": {"name": name, "labels": labels},
        "status": {
            "capacity": room, "allocatable": room,
            "conditions": conditions(),
        },
    }))?;
    match nodes(client).create(&PostParams::default(), &node).await {
        Ok(_) => Ok(()),
        Err(kube::Error::Api(status)) if status.code == 409 => Ok(()),
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

/// A node that was taken for dead, because nobody could hear it, is dead until it says of itself that it is not.
async fn recover(client: &Client, name: &str) -> Result<(), kube::Error> {
    let nodes = nodes(client);
    let node = nodes.get(name).await?;
    let known = node.data["status"]["conditions"].as_array();
    let is_ready = |known: &Value| known["type"] == "Ready" && known["status"] == "True";
    if known.into_iter().flatten().any(is_ready) {
        return Ok(());
    }
    let status = json!({"status": {"conditions": conditions()}});
    let how = PatchParams::default();
    nodes
        .patch_status(name, &how, &Patch::Strategic(&status))
        .await
        .map(drop)
}

async fn beat(client: Client, names: Vec<String>, silent: SilentNodes) {
    loop {
        tokio::time::sleep(HEARTBEAT).await;
        for name in &names {
            if names_in(&silent).contains(name) {
                continue;
            }
            // It is renewed again long before anybody misses it.
            let _ = renew(&client, name).await;
            let _ = recover(&client, name).await;
        }
    }
}

/// Watches what is bound to a node, and lets each Kubernetes Pod live.
async fn play(client: Client, options: FakeOptions, silent: SilentNodes) {
    let all: Api<DynamicObject> = Api::all_with(client.clone(), &pods());
    let bound = watcher::Config::default().fields("spec.nodeName!=");
    let mut told = std::pin::pin!(watcher::watcher(all, bound).default_backoff());
    let calls = Arc::new(Semaphore::new(MAX_CONCURRENT_UPDATES));
    let mut started: HashSet<String> = HashSet::new();
    while let Some(event) = told.next().await {
        let pod = match event {
            Ok(Event::Apply(pod) | Event::InitApply(pod)) => pod,
            Ok(Event::Delete(pod)) => {
                started.remove(pod.metadata.uid.as_deref().unwrap_or_default());
                continue;
            }
            Ok(Event::Init | Event::InitDone) | Err(_) => continue,
        };
        let node = pod.data["spec"]["nodeName"].as_str().unwrap_or_default();
        if names_in(&silent).contains(node) {
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
        if pod.metadata.deletion_timestamp.is_some() {
            tokio::spawn(kubelet.remove());
            continue;
        }
        let data = json!({
            "metadata": {"labels": pod.metadata.labels, "annotations": pod.metadata.annotations},
            "spec": pod.data["spec"],
        });
        if pod.data["status"]["phase"] == "Pending" && started.insert(kubelet.uid.clone()) {
            let ends = (options.life)(&data);
            tokio::spawn(kubelet.run(data, options.start, ends));
        }
    }
}

/// What a kubelet tells the API server.
enum KubeletCall {
    /// This status.
    Say(Value),
    /// That nothing is left of it.
    Remove,
}

/// What plays the kubelet for one Kubernetes Pod.
struct Kubelet {
    pods: Api<DynamicObject>,
    calls: Arc<Semaphore>,
    name: String,
    uid: String,
}

impl Kubelet {
    async fn run(self, pod: Value, start: Duration, ends: ContainerEnd) {
        if !start.is_zero() {
            tokio::time::sleep(start).await;
        }
        let began = now();
        self.insist(&KubeletCall::Say(running(&pod, &began))).await;
        if let ContainerEnd::After { time, exit_code } = ends {
            tokio::time::sleep(time).await;
            self.insist(&KubeletCall::Say(ended(&pod, &began, exit_code)))
                .await;
        }
    }

    async fn remove(self) {
        self.insist(&KubeletCall::Remove).await;
    }

    /// Calls until it is answered; what is gone, or another one of the name, is not this one's.
    async fn insist(&self, call: &KubeletCall) {
        for _ in 0..1000 {
            let Ok(permit) = self.calls.acquire().await else {
                return;
            };
            match self.call(call).await {
                Ok(()) => return,
                Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409 | 422) => return,
                Err(_) => {}
            }
            drop(permit);
            // The API server is not there, or has too much to do.
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    }

    async fn call(&self, call: &KubeletCall) -> Result<(), kube::Error> {
        match call {
            KubeletCall::Say(status) => {
                let patch = Patch::Strategic(json!({"metadata": {"uid": self.uid}, "status": status}));
                let how = PatchParams::default();
                self.pods.patch_status(&self.name, &how, &patch).await.map(drop)
            }
            KubeletCall::Remove => {
                let mut at_once = DeleteParams::default().grace_period(0);
                at_once.preconditions = Some(Preconditions {
                    uid: Some(self.uid.clone()),
                    resource_version: None,
                });
                self.pods.delete(&self.name, &at_once).await.map(drop)
            }
        }
    }
}

fn names<'a>(pod: &'a Value, which: &str) -> Vec<&'a Value> {
    pod["spec"][which]
        .as_array()
        .map(|all| all.iter().collect())
        .unwrap_or_default()
}

fn container(of: &Value, state: &Value, ready: bool) -> Value {
    json!({
        "name": of["name"], "image": of["image"], "imageID": "", "containerID": "fake://0",
        "ready": ready, "started": ready, "restartCount": 0, "state": state,
    })
}

fn done(of: &Value, began: &str, exit_code: u8) -> Value {
    let reason = if exit_code == 0 { "Completed" } else { "Error" };
    let state = json!({"terminated": {
        "exitCode": exit_code, "reason": reason, "startedAt": began, "finishedAt": now(), "containerID": "fake://0",
    }});
    container(of, &state, false)
}

fn status(pod: &Value, phase: &str, began: &str, containers: &[Value], ready: bool) -> Value {
    let truth = if ready { "True" } else { "False" };
    let condition =
        |kind: &str, status: &str| json!({"type": kind, "status": status, "lastTransitionTime": now()});
    let first: Vec<Value> = names(pod, "initContainers")
        .into_iter()
        .map(|of| done(of, began, 0))
        .collect();
    json!({
        "phase": phase,
        "startTime": began,
        "conditions": [
            condition("Initialized", "True"),
            condition("PodReadyToStartContainers", "True"),
            condition("ContainersReady", truth),
            condition("Ready", truth),
        ],
        "initContainerStatuses": first,
        "containerStatuses": containers,
    })
}

fn running(pod: &Value, began: &str) -> Value {
    let state = json!({"running": {"startedAt": began}});
    let containers: Vec<Value> = names(pod, "containers")
        .into_iter()
        .map(|of| container(of, &state, true))
        .collect();
    status(pod, "Running", began, &containers, true)
}

fn ended(pod: &Value, began: &str, exit_code: u8) -> Value {
    let containers: Vec<Value> = names(pod, "containers")
        .into_iter()
        .map(|of| done(of, began, exit_code))
        .collect();
    let phase = if exit_code == 0 { "Succeeded" } else { "Failed" };
    status(pod, phase, began, &containers, false)
}
