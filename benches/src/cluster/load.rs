//! Many objects at once, and how long each took to run.

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

use super::baseline::MANAGER;
use super::{Installed, phase};

/// How many connections objects are created over.
const CONNECTIONS: u32 = 8;
/// How long anything may take that is waited for.
const TIMEOUT: Duration = Duration::from_secs(900);

/// What is created.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LoadKind {
    /// A Kubernetes Pod that nobody but Kubernetes works on: what the cluster itself takes.
    Pod,
    /// An IPUJob of one worker on one IPU.
    Worker,
    /// An IPUJob of a launcher and one worker.
    Launcher,
    /// An IPUJob of one worker for which this benchmark does as little as it can, and the operator nothing.
    Least,
}

impl LoadKind {
    pub(super) fn resource(self) -> ApiResource {
        match self {
            Self::Pod => ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk("", "v1", "Pod"), "pods"),
            Self::Worker | Self::Launcher | Self::Least => ApiResource::from_gvk_with_plural(
                &GroupVersionKind::gvk("graphcore.ai", "v1alpha1", "IPUJob"),
                "ipujobs",
            ),
        }
    }
}

/// How long things took.
#[derive(Clone, Debug)]
pub struct Took {
    /// From the first creation until all ran.
    pub all: Duration,
    /// From the creation of each until it ran, shortest first.
    pub each: Vec<Duration>,
}

/// Objects of a kind in the namespace `default`.
pub struct Crowd {
    kind: LoadKind,
    clients: Vec<Client>,
}

impl Crowd {
    /// None yet.
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

    /// Whether one would be created, without creating it.
    pub(super) async fn is_admitted(&self) -> bool {
        let dry = PostParams {
            dry_run: true,
            ..PostParams::default()
        };
        self.api(0).create(&dry, &self.object("try")).await.is_ok()
    }

    /// Creates so many over all connections, and waits until all run.
    ///
    /// # Panics
    ///
    /// If one cannot be created, or they do not run in time.
    pub async fn run(&self, many: u32) -> Took {
        let watcher = tokio::spawn(running(self.api(0), many));
        let begun = Instant::now();
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
                    if number >= many {
                        return created;
                    }
                    let name = format!("load-{number}");
                    let at = Instant::now();
                    api.create(&PostParams::default(), &object(kind, &name))
                        .await
                        .expect("it is created");
                    created.push((name, at));
                }
            });
        }
        let created = tasks.join_all().await.concat();
        let ran = tokio::time::timeout(TIMEOUT, watcher)
            .await
            .expect("all run in time")
            .expect("the watch");
        let mut each: Vec<Duration> = created
            .iter()
            .map(|(name, at)| ran[name].saturating_duration_since(*at))
            .collect();
        each.sort_unstable();
        let last = ran.values().max().copied().unwrap_or(begun);
        Took {
            all: last.duration_since(begun),
            each,
        }
    }

    /// Deletes all, and waits until nothing is left; how long that took.
    ///
    /// # Panics
    ///
    /// If they do not go in time.
    pub async fn delete(&self) -> Duration {
        let begun = Instant::now();
        let api = self.api(0);
        let (how, all) = (DeleteParams::default(), ListParams::default());
        api.delete_collection(&how, &all).await.expect("they are deleted");
        let pods: Api<DynamicObject> =
            Api::namespaced_with(self.clients[0].clone(), "default", &LoadKind::Pod.resource());
        while begun.elapsed() < TIMEOUT {
            let one = ListParams::default().limit(1);
            let left = api.list_metadata(&one).await.expect("a list").items.len()
                + pods.list_metadata(&one).await.expect("a list").items.len();
            if left == 0 {
                return begun.elapsed();
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        panic!("they do not go");
    }

    fn object(&self, name: &str) -> DynamicObject {
        object(self.kind, name)
    }
}

/// When each was first seen running, once `many` were.
async fn running(api: Api<DynamicObject>, many: u32) -> HashMap<String, Instant> {
    let mut told = std::pin::pin!(watcher::watcher(api, watcher::Config::default()).default_backoff());
    let mut ran = HashMap::new();
    while let Some(event) = told.next().await {
        let Ok(Event::Apply(object) | Event::InitApply(object)) = event else {
            continue;
        };
        if phase(&object.data) == "Running" {
            let name = object.metadata.name.unwrap_or_default();
            ran.entry(name).or_insert_with(Instant::now);
            if ran.len() >= usize::try_from(many).unwrap_or(usize::MAX) {
                break;
            }
        }
    }
    ran
}

fn object(kind: LoadKind, name: &str) -> DynamicObject {
    let containers = json!([{"name": "main", "image": "local/none:1", "command": ["sleep", "1d"]}]);
    let mut value = match kind {
        LoadKind::Pod => json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": name},
            "spec": {"containers": containers, "nodeSelector": {"vipu-ctrl": "vctl1"}},
        }),
        LoadKind::Worker | LoadKind::Launcher | LoadKind::Least => json!({
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
    if kind == LoadKind::Least {
        value["spec"]["managedBy"] = MANAGER.into();
    }
    serde_json::from_value(value).expect("an object")
}
