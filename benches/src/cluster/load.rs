//! Concurrent creation of many objects, with start latencies.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use futures::StreamExt as _;
use kube::Client;
use kube::api::{Api, DeleteParams, DynamicObject, ListParams, PostParams};
use kube::core::{ApiResource, GroupVersionKind};
use kube::runtime::WatchStreamExt as _;
use kube::runtime::watcher::{self, Event};
use serde_json::{Value, json};
use tokio::task::JoinSet;

use super::{Installed, phase};

/// `managedBy` value of these jobs, which the operator ignores.
const MANAGER: &str = "bench.example.com/least";

/// Number of connections that create objects.
const CONNECTIONS: u32 = 8;
/// Maximum duration of any wait.
const TIMEOUT: Duration = Duration::from_secs(900);

/// Kind of created objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LoadKind {
    /// A Pod without a controller: the cost of the cluster itself.
    Pod,
    /// An IPUJob of one worker on one IPU.
    Worker,
    /// An IPUJob of a launcher and one worker.
    Launcher,
    /// An IPUJob of one worker, managed by the minimal controller of this benchmark instead of the
    /// operator.
    Minimal,
}

impl LoadKind {
    pub(super) fn resource(self) -> ApiResource {
        match self {
            Self::Pod => ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk("", "v1", "Pod"), "pods"),
            Self::Worker | Self::Launcher | Self::Minimal => ApiResource::from_gvk_with_plural(
                &GroupVersionKind::gvk("graphcore.ai", "v1alpha1", "IPUJob"),
                "ipujobs",
            ),
        }
    }
}

/// Start times of a run.
#[derive(Clone, Debug)]
pub struct RunTimings {
    /// Time from the first creation until all objects run.
    pub all: Duration,
    /// Time from the creation of each object until it runs, in ascending order.
    pub each: Vec<Duration>,
}

/// A load of objects of one kind in the namespace `default`.
pub struct LoadFixture {
    kind: LoadKind,
    clients: Vec<Client>,
}

impl LoadFixture {
    /// Connects the clients; creates no object yet.
    pub async fn of(installed: &Installed, kind: LoadKind) -> Self {
        let mut clients = Vec::new();
        for _ in 0..CONNECTIONS {
            clients.push(installed.client().await);
        }
        Self { kind, clients }
    }

    fn api(&self, client: usize) -> Api<DynamicObject> {
        Api::namespaced_with(self.clients[client].clone(), "default", &self.kind.resource())
    }

    /// Returns whether a dry-run creation is admitted.
    pub(super) async fn is_admitted(&self) -> bool {
        let params = PostParams {
            dry_run: true,
            ..PostParams::default()
        };
        self.api(0).create(&params, &self.object("try")).await.is_ok()
    }

    /// Creates `count` objects over all connections, and waits until all run.
    ///
    /// # Panics
    ///
    /// If an object cannot be created, or the objects do not run in time.
    pub async fn run(&self, count: u32) -> RunTimings {
        let watcher = tokio::spawn(watch_running(self.api(0), count));
        let started = Instant::now();
        let next = Arc::new(AtomicU32::new(0));
        let mut tasks = JoinSet::new();
        for client in 0..self.clients.len() {
            let api = self.api(client);
            let next = Arc::clone(&next);
            let kind = self.kind;
            tasks.spawn(async move {
                let mut created = Vec::new();
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    if number >= count {
                        return created;
                    }
                    let name = format!("load-{number}");
                    let at = Instant::now();
                    api.create(&PostParams::default(), &object(kind, &name))
                        .await
                        .expect("the object is created");
                    created.push((name, at));
                }
            });
        }
        let created = tasks.join_all().await.concat();
        let running_since = tokio::time::timeout(TIMEOUT, watcher)
            .await
            .expect("all run in time")
            .expect("the watch task");
        let mut each: Vec<Duration> = created
            .iter()
            .map(|(name, at)| running_since[name].saturating_duration_since(*at))
            .collect();
        each.sort_unstable();
        let last = running_since.values().max().copied().unwrap_or(started);
        RunTimings {
            all: last.duration_since(started),
            each,
        }
    }

    /// Deletes all objects and waits until none is left. Returns the elapsed time.
    ///
    /// # Panics
    ///
    /// If the objects are not deleted in time.
    pub async fn delete(&self) -> Duration {
        let started = Instant::now();
        let api = self.api(0);
        let (params, all) = (DeleteParams::default(), ListParams::default());
        api.delete_collection(&params, &all)
            .await
            .expect("the deletion is accepted");
        let pods: Api<DynamicObject> =
            Api::namespaced_with(self.clients[0].clone(), "default", &LoadKind::Pod.resource());
        while started.elapsed() < TIMEOUT {
            let first = ListParams::default().limit(1);
            let remaining = api.list_metadata(&first).await.expect("a list").items.len()
                + pods.list_metadata(&first).await.expect("a list").items.len();
            if remaining == 0 {
                return started.elapsed();
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        panic!("the objects were not deleted in time");
    }

    fn object(&self, name: &str) -> DynamicObject {
        object(self.kind, name)
    }
}

/// Returns the time at which each object was first observed running, once `count` are running.
async fn watch_running(api: Api<DynamicObject>, count: u32) -> HashMap<String, Instant> {
    let mut events = std::pin::pin!(watcher::watcher(api, watcher::Config::default()).default_backoff());
    let mut running_since = HashMap::new();
    while let Some(event) = events.next().await {
        let Ok(Event::Apply(object) | Event::InitApply(object)) = event else {
            continue;
        };
        if phase(&object.data) == "Running" {
            let name = object.metadata.name.unwrap_or_default();
            running_since.entry(name).or_insert_with(Instant::now);
            if running_since.len() >= usize::try_from(count).unwrap_or(usize::MAX) {
                break;
            }
        }
    }
    running_since
}

fn object(kind: LoadKind, name: &str) -> DynamicObject {
    let containers = json!([{"name": "main", "image": "local/none:1", "command": ["sleep", "1d"]}]);
    let mut value = match kind {
        LoadKind::Pod => json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": name},
            "spec": {"containers": containers, "nodeSelector": {"vipu-ctrl": "vctl1"}},
        }),
        LoadKind::Worker | LoadKind::Launcher | LoadKind::Minimal => json!({
            "apiVersion": "graphcore.ai/v1alpha1", "kind": "IPUJob",
            "metadata": {"name": name},
            "spec": {
                "jobInstances": 1, "ipusPerJobInstance": "1",
                "workers": {"replicas": 1, "template": {"spec": {"containers": containers}}},
            },
        }),
    };
    if kind == LoadKind::Launcher {
        value["spec"]["launcher"] = json!({"command": ["mpirun", "true"]});
        value["spec"]["workers"]["template"]["spec"]["containers"][0]["command"] = Value::Null;
    }
    if kind == LoadKind::Minimal {
        value["spec"]["managedBy"] = MANAGER.into();
    }
    serde_json::from_value(value).expect("an object")
}
