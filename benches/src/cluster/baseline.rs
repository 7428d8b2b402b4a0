//! As little as this benchmark can do for an IPUJob: its Kubernetes Pod, and one status that tells that it runs. No partition, no
//! event, no rule. Not a proof that less is impossible.

use std::sync::Arc;

use futures::StreamExt as _;
use kube::Client;
use kube::api::{Api, DynamicObject, PostParams};
use kube::runtime::WatchStreamExt as _;
use kube::runtime::watcher::{self, Event};
use serde_json::{Value, json};
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;

use super::load::LoadKind;
use super::{Installed, phase};

/// Who looks after these jobs, as they say themselves: the operator leaves them alone.
pub(super) const MANAGER: &str = "bench.example.com/least";
/// How many calls are made at a time.
const MAX_CONCURRENT_REQUESTS: usize = 32;
/// What is written next to the name of the job.
const JOB: &str = "bench.example.com/job";

/// It works as long as this is there.
pub struct Least(Vec<JoinHandle<()>>);

impl Drop for Least {
    fn drop(&mut self) {
        self.0.iter().for_each(JoinHandle::abort);
    }
}

impl Least {
    /// Looks after the jobs of [`Kind::Least`] in the namespace `default`.
    pub async fn start(installed: &Installed) -> Self {
        let calls = Arc::new(Semaphore::new(MAX_CONCURRENT_REQUESTS));
        let client = installed.client().await;
        let jobs = tokio::spawn(each(client.clone(), LoadKind::Least, Arc::clone(&calls), create));
        let pods = tokio::spawn(each(client, LoadKind::Pod, calls, tell));
        Self(vec![jobs, pods])
    }
}

fn api(client: &Client, kind: LoadKind) -> Api<DynamicObject> {
    Api::namespaced_with(client.clone(), "default", &kind.resource())
}

/// Does `work` for everything of a kind that appears or changes.
async fn each<W, F>(client: Client, kind: LoadKind, calls: Arc<Semaphore>, work: W)
where
    W: Fn(Client, DynamicObject) -> F,
    F: Future<Output = ()> + Send + 'static,
{
    let told = watcher::watcher(api(&client, kind), watcher::Config::default()).default_backoff();
    let mut told = std::pin::pin!(told);
    while let Some(event) = told.next().await {
        let (Ok(Event::Apply(object) | Event::InitApply(object)), Ok(permit)) =
            (event, Arc::clone(&calls).acquire_owned().await)
        else {
            continue;
        };
        let work = work(client.clone(), object);
        tokio::spawn(async move {
            work.await;
            drop(permit);
        });
    }
}

/// The Kubernetes Pod of a job that has none.
async fn create(client: Client, job: DynamicObject) {
    let metadata = &job.metadata;
    if !job.data["status"].is_null() || metadata.deletion_timestamp.is_some() {
        return;
    }
    let mut spec = job.data["spec"]["workers"]["template"]["spec"].clone();
    spec["nodeSelector"] = json!({"vipu-ctrl": "vctl1"});
    let owner = json!({
        "apiVersion": "graphcore.ai/v1alpha1", "kind": "IPUJob", "name": metadata.name, "uid": metadata.uid,
        "controller": true, "blockOwnerDeletion": true,
    });
    let pod = object(json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {
            "name": metadata.name,
            "labels": {JOB: metadata.name},
            "annotations": {JOB: metadata.resource_version},
            "ownerReferences": [owner],
        },
        "spec": spec,
    }));
    // There may be one already.
    let _ = api(&client, LoadKind::Pod)
        .create(&PostParams::default(), &pod)
        .await;
}

/// That a job runs, whose Kubernetes Pod does.
async fn tell(client: Client, pod: DynamicObject) {
    let annotations = pod.metadata.annotations.unwrap_or_default();
    let (Some(version), "Running") = (annotations.get(JOB), phase(&pod.data)) else {
        return;
    };
    let name = pod.metadata.name.unwrap_or_default();
    let job = object(json!({
        "apiVersion": "graphcore.ai/v1alpha1", "kind": "IPUJob",
        "metadata": {"name": name, "resourceVersion": version},
        "status": {"phase": "Running"},
    }));
    // It may be told already.
    let _ = api(&client, LoadKind::Least)
        .replace_status(&name, &PostParams::default(), &job)
        .await;
}

fn object(value: Value) -> DynamicObject {
    serde_json::from_value(value).expect("an object")
}
