//! The IPUJob watch: it keeps a store of all jobs, enqueues changed ones, and clears the state of deleted
//! ones, including those that a relist misses.

use std::collections::HashSet;
use std::future::Future;
use std::pin::pin;
use std::sync::{Arc, PoisonError};

use futures::channel::mpsc::UnboundedSender;
use futures::{Stream, StreamExt as _};
use ipu_core::JobKey;
use kube::api::{Api, DynamicObject};
use kube::runtime::WatchStreamExt as _;
use kube::runtime::reflector::{self, ObjectRef, Store};
use kube::runtime::watcher::{self, Event};
use serde_json::{Value, json};

use super::informer::Cache;
use super::kube_api::jobs;
use super::runtime::Shared;
use crate::crd::IpuJob;

/// Reference to a job by namespace and name.
pub(super) type JobRef = ObjectRef<DynamicObject>;

/// Jobs that exist, by key.
#[derive(Debug, Default)]
pub(super) struct KnownJobs {
    all: HashSet<JobKey>,
    /// Jobs of the LIST in progress.
    listed: Option<HashSet<JobKey>>,
}

impl KnownJobs {
    pub(super) fn contains(&self, job: &JobKey) -> bool {
        self.all.contains(job)
    }

    /// Starts a LIST.
    fn on_init(&mut self) {
        self.listed = Some(HashSet::new());
    }

    fn insert(&mut self, job: JobKey) {
        if let Some(listed) = &mut self.listed {
            listed.insert(job.clone());
        }
        self.all.insert(job);
    }

    /// Ends the LIST. Returns the jobs that it does not contain: they were deleted.
    fn on_init_done(&mut self) -> Vec<JobKey> {
        let Some(listed) = self.listed.take() else {
            return Vec::new();
        };
        self.all.extract_if(|job| !listed.contains(job)).collect()
    }

    fn remove(&mut self, job: &JobKey) {
        self.all.remove(job);
    }
}

/// Keeps all jobs in a store, and enqueues those that changed.
pub(super) fn watch_jobs(
    api: Api<DynamicObject>,
    shared: Arc<Shared>,
    queue: UnboundedSender<JobRef>,
) -> (Store<DynamicObject>, impl Future<Output = ()>) {
    let writer = reflector::store::Writer::<DynamicObject>::new(jobs());
    let store = writer.as_reader();
    let stream = watcher::watcher(api, watcher::Config::default())
        .default_backoff()
        .modify(compact);
    let stream = reflector::reflector(writer, stream);
    (store, async move { handle_events(stream, &shared, &queue).await })
}

async fn handle_events(
    stream: impl Stream<Item = watcher::Result<Event<DynamicObject>>>,
    shared: &Shared,
    queue: &UnboundedSender<JobRef>,
) {
    let mut stream = pin!(stream);
    let names = || shared.names.lock().unwrap_or_else(PoisonError::into_inner);
    while let Some(event) = stream.next().await {
        shared.observe("IPUJobs", &event);
        shared.job_access.record(&event);
        match event {
            Ok(Event::Apply(job) | Event::InitApply(job)) => {
                let object = expand(&job);
                if let Some(key) = key(&job) {
                    let phase = object["status"]["phase"].as_str();
                    let is_finished = matches!(phase, Some("Completed" | "Failed"));
                    shared.cache.record_finished(&key, is_finished);
                    names().insert(key);
                }
                shared.observer.job_applied(&object);
                if !is_settled(&shared.cache, &job) {
                    let _ = queue.unbounded_send(reference(&job));
                }
            }
            Ok(Event::Delete(job)) => {
                if let Some(key) = key(&job) {
                    names().remove(&key);
                    forget(shared, &key);
                }
            }
            Ok(Event::Init) => names().on_init(),
            // Objects deleted while the watch was broken have no delete event.
            Ok(Event::InitDone) => {
                let deleted = names().on_init_done();
                deleted.iter().for_each(|job| forget(shared, job));
            }
            Err(_) => {}
        }
    }
}

/// Returns whether this version of the job is one that the operator wrote and marked up to date.
fn is_settled(cache: &Cache, job: &DynamicObject) -> bool {
    let metadata = &job.metadata;
    let version = metadata.resource_version.as_deref().unwrap_or_default();
    key(job)
        .zip(version.parse().ok())
        .is_some_and(|(key, version)| cache.is_up_to_date(&key, version))
}

/// Clears all cached state of a deleted job.
fn forget(shared: &Shared, job: &JobKey) {
    shared.cache.forget(job);
    shared
        .failures
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .remove(&job.to_string());
    let metadata = json!(job);
    shared.observer.job_deleted(&json!({"metadata": metadata}));
}

/// `<namespace>/<name>`.
pub(super) fn name_of(job: &JobRef) -> String {
    format!("{}/{}", job.namespace.as_deref().unwrap_or_default(), job.name)
}

/// Returns the key of a job.
pub(super) fn key(job: &DynamicObject) -> Option<JobKey> {
    let metadata = &job.metadata;
    let (namespace, name) = (metadata.namespace.as_deref()?, metadata.name.as_deref()?);
    JobKey::new(namespace, name, metadata.uid.as_deref()?).ok()
}

/// Returns the reference to a job by namespace and name, without its uid.
pub(super) fn job_ref(job: &JobKey) -> JobRef {
    ObjectRef::new_with(job.name.as_str(), jobs()).within(job.namespace.as_str())
}

pub(super) fn reference(job: &DynamicObject) -> JobRef {
    ObjectRef::from_obj_with(job, jobs())
}

/// Compacts a stored job: drops unused fields, and stores the rest as JSON text, which takes a fraction of
/// the memory of its tree.
fn compact(job: &mut DynamicObject) {
    job.metadata.managed_fields = None;
    if let Some(annotations) = &mut job.metadata.annotations {
        annotations.remove("kubectl.kubernetes.io/last-applied-configuration");
    }
    job.data = Value::String(job.data.to_string());
}

/// Restores the object that [`compact`] stored.
pub(super) fn expand(job: &DynamicObject) -> Value {
    let text = job.data.as_str().unwrap_or_default();
    let mut object: Value = serde_json::from_str(text).unwrap_or_default();
    object["metadata"] = serde_json::to_value(&job.metadata).unwrap_or_default();
    // Objects of a list have no `apiVersion` and `kind`.
    object["apiVersion"] = IpuJob::API_VERSION.into();
    object["kind"] = IpuJob::KIND.into();
    object
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use futures::channel::mpsc::unbounded;
    use futures::stream;
    use ipu_core::Timestamp;
    use ipu_proxy_client::{ClientOptions, ProxyClient};

    use super::*;
    use crate::controller::{KubeApi, Observer, Reconciler};
    use crate::resources::InstallationDefaults;

    #[test]
    fn expand_restores_the_compacted_job() {
        let mut object = json!({
            "apiVersion": IpuJob::API_VERSION, "kind": IpuJob::KIND,
            "metadata": {"name": "a", "namespace": "n", "uid": "u", "resourceVersion": "7", "finalizers": ["x"]},
            "spec": {"jobInstances": 2, "workers": {"template": {"spec": {"containers": [{"args": ["\"\u{e9}\n"]}]}}}},
            "status": {"phase": "Running", "phaseSeconds": {"queue": 0.25}},
        });
        let mut job: DynamicObject = serde_json::from_value(object.clone()).expect("an object");
        compact(&mut job);
        assert_eq!(expand(&job), object);
        // As a list contains it.
        object["metadata"]["managedFields"] = json!([{"manager": "kubectl"}]);
        let parts = ["metadata", "spec", "status"].map(|part| (part.to_owned(), object[part].clone()));
        let mut job: DynamicObject =
            serde_json::from_value(Value::Object(parts.into_iter().collect())).expect("an object");
        compact(&mut job);
        object["metadata"]
            .as_object_mut()
            .expect("a mapping")
            .remove("managedFields");
        assert_eq!(expand(&job), object);
    }

    /// Records uids of deleted jobs, and callbacks of watches.
    #[derive(Default)]
    struct RecordingObserver(Mutex<Vec<String>>, Mutex<Vec<&'static str>>);

    impl Observer for RecordingObserver {
        fn job_deleted(&self, job: &Value) {
            let uid = job["metadata"]["uid"].as_str().expect("a uid").to_owned();
            self.0.lock().expect("the lock is not poisoned").push(uid);
        }

        fn watch_connected(&self, _: &'static str) {
            self.1.lock().expect("the lock is not poisoned").push("connected");
        }

        fn watch_failed(&self, objects: &'static str) {
            self.1.lock().expect("the lock is not poisoned").push(objects);
        }

        fn watch_forbidden(&self, _: &'static str) {
            self.1.lock().expect("the lock is not poisoned").push("forbidden");
        }
    }

    /// Returns shared state whose servers are unreachable.
    fn unreachable_shared(observer: Arc<dyn Observer>) -> Shared {
        let unreachable = "http://127.0.0.1:1";
        let api = KubeApi::new(
            kube::Config::new(unreachable.parse().expect("an address")),
            "test",
        );
        let proxy = ProxyClient::new(unreachable, ClientOptions::default()).expect("a client");
        let cache = Arc::new(Cache::new());
        let reconciler = Reconciler::new(
            Arc::new(api.expect("a client")),
            Arc::new(proxy),
            Arc::clone(&cache),
            InstallationDefaults::default(),
            Arc::new(Timestamp::default),
        );
        Shared::new(reconciler, cache, observer)
    }

    fn job(uid: &str) -> DynamicObject {
        let metadata =
            json!({"name": format!("job-{uid}"), "namespace": "n", "uid": uid, "resourceVersion": "3"});
        serde_json::from_value(json!({"metadata": metadata})).expect("an object")
    }

    #[tokio::test]
    async fn an_init_event_does_not_report_a_connected_watch_and_a_failed_watch_does() {
        let observer = Arc::new(RecordingObserver::default());
        let shared = unreachable_shared(Arc::clone(&observer) as Arc<dyn Observer>);
        let (queue, _receiver) = unbounded();
        let failed = || kube::Error::Service("unreachable".into());
        let events = [
            Ok(Event::Init),
            Err(watcher::Error::InitialListFailed(failed())),
            Ok(Event::Init),
            Ok(Event::InitDone),
            Err(watcher::Error::WatchFailed(failed())),
            Err(watcher::Error::WatchStartFailed(failed())),
        ];
        handle_events(stream::iter(events), &shared, &queue).await;
        let calls = observer.1.lock().expect("the lock is not poisoned");
        assert_eq!(
            calls[..],
            ["IPUJobs", "connected", "connected", "IPUJobs", "IPUJobs"]
        );
    }

    #[tokio::test]
    async fn a_watch_that_the_api_server_forbids_is_reported_as_such() {
        let observer = Arc::new(RecordingObserver::default());
        let shared = unreachable_shared(Arc::clone(&observer) as Arc<dyn Observer>);
        let (queue, _receiver) = unbounded();
        let answer = |code| kube::Error::Api(kube::core::Status::failure("no", "x").with_code(code).boxed());
        let events = [
            Err(watcher::Error::InitialListFailed(answer(403))),
            Err(watcher::Error::WatchStartFailed(answer(403))),
            Err(watcher::Error::WatchStartFailed(answer(401))),
        ];
        handle_events(stream::iter(events), &shared, &queue).await;
        let calls = observer.1.lock().expect("the lock is not poisoned");
        assert_eq!(calls[..], ["forbidden", "forbidden", "IPUJobs"]);
        assert!(shared.job_access.postpone(&job("1")).is_some());
    }

    #[tokio::test]
    async fn a_job_deleted_while_the_watch_was_broken_is_forgotten() {
        let observer = Arc::new(RecordingObserver::default());
        let shared = unreachable_shared(Arc::clone(&observer) as Arc<dyn Observer>);
        let (queue, _receiver) = unbounded();
        let listed = |uids: &[&str]| {
            let all = uids.iter().map(|uid| Event::InitApply(job(uid)));
            let all: Vec<_> = all.collect();
            std::iter::once(Event::Init).chain(all).chain([Event::InitDone])
        };
        let began = listed(&["a", "b", "c"]).chain([Event::Apply(job("d")), Event::Delete(job("a"))]);
        handle_events(stream::iter(began.map(Ok)), &shared, &queue).await;
        for uid in ["b", "c", "d"] {
            shared.cache.record_write(&key(&job(uid)).expect("a job key"), 7);
        }
        assert_eq!(*observer.0.lock().expect("the lock is not poisoned"), ["a"]);
        // The first list of the next watch is incomplete.
        let half = [Event::Init, Event::InitApply(job("b"))];
        let again = half.into_iter().chain(listed(&["c", "d"]));
        handle_events(stream::iter(again.map(Ok)), &shared, &queue).await;
        assert_eq!(*observer.0.lock().expect("the lock is not poisoned"), ["a", "b"]);
        let is_remembered = |uid: &&str| shared.cache.is_stale(&key(&job(uid)).expect("a job key"), 3);
        let remembered: Vec<&str> = ["b", "c", "d"].into_iter().filter(is_remembered).collect();
        assert_eq!(remembered, ["c", "d"]);
    }
}
