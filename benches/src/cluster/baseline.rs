//! A minimal baseline controller for IPUJobs: it creates the Pod and writes one running status. It has no
//! partition, event or rule, and does not prove a lower bound.

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

/// Maximum number of concurrent API calls.
const MAX_CONCURRENT_REQUESTS: usize = 32;
/// Label and annotation key of the job.
const JOB: &str = "bench.example.com/job";

/// The baseline controller; it stops on drop.
pub struct MinimalController(Vec<JoinHandle<()>>);

impl Drop for MinimalController {
    fn drop(&mut self) {
        self.0.iter().for_each(JoinHandle::abort);
    }
}

impl MinimalController {
    /// Starts managing the jobs of [`LoadKind::Minimal`] in the namespace `default`.
    pub async fn start(installed: &Installed) -> Self {
        let calls = Arc::new(Semaphore::new(MAX_CONCURRENT_REQUESTS));
        let client = installed.client().await;
        let jobs = tokio::spawn(for_each_object(
            client.clone(),
            LoadKind::Minimal,
            Arc::clone(&calls),
            create_pod,
        ));
        let pods = tokio::spawn(for_each_object(client, LoadKind::Pod, calls, update_status));
        Self(vec![jobs, pods])
    }
}

fn api(client: &Client, kind: LoadKind) -> Api<DynamicObject> {
    Api::namespaced_with(client.clone(), "default", &kind.resource())
}

/// Runs `work` for every object of a kind that appears or changes.
async fn for_each_object<W, F>(client: Client, kind: LoadKind, calls: Arc<Semaphore>, work: W)
where
    W: Fn(Client, DynamicObject) -> F,
    F: Future<Output = ()> + Send + 'static,
{
    let events = watcher::watcher(api(&client, kind), watcher::Config::default()).default_backoff();
    let mut events = std::pin::pin!(events);
    while let Some(event) = events.next().await {
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

/// Creates the Pod of a new job.
async fn create_pod(client: Client, job: DynamicObject) {
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
    // The Pod may exist already.
    let _ = api(&client, LoadKind::Pod)
        .create(&PostParams::default(), &pod)
        .await;
}

/// Sets a job running if its Pod is running.
async fn update_status(client: Client, pod: DynamicObject) {
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
    // The status may be up to date already.
    let _ = api(&client, LoadKind::Minimal)
        .replace_status(&name, &PostParams::default(), &job)
        .await;
}

fn object(value: Value) -> DynamicObject {
    serde_json::from_value(value).expect("an object")
}
