//! What is heard of IPUJobs: which there are, and which are gone, also those that went while nobody listened.

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

use super::controller::Shared;
use super::informer::Cache;
use super::kube_api::jobs;
use crate::crd::IpuJob;

/// A job by its name.
pub(super) type JobRef = ObjectRef<DynamicObject>;

/// The jobs that are there.
#[derive(Debug, Default)]
pub(super) struct KnownJobs {
    all: HashSet<JobKey>,
    /// While a list of all is read: which were in it.
    listed: Option<HashSet<JobKey>>,
}

impl KnownJobs {
    pub(super) fn has(&self, job: &JobKey) -> bool {
        self.all.contains(job)
    }

    /// A list of all begins.
    fn on_init(&mut self) {
        self.listed = Some(HashSet::new());
    }

    fn put(&mut self, job: JobKey) {
        if let Some(listed) = &mut self.listed {
            listed.insert(job.clone());
        }
        self.all.insert(job);
    }

    /// The list is whole: these are not there any more.
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

/// Keeps all jobs in a store, and tells of those that have changed.
pub(super) fn hear_jobs(
    api: Api<DynamicObject>,
    shared: Arc<Shared>,
    told: UnboundedSender<JobRef>,
) -> (Store<DynamicObject>, impl Future<Output = ()>) {
    let writer = reflector::store::Writer::<DynamicObject>::new(jobs());
    let store = writer.as_reader();
    let stream = watcher::watcher(api, watcher::Config::default())
        .default_backoff()
        .modify(compact);
    let stream = reflector::reflector(writer, stream);
    (store, async move { hear(stream, &shared, &told).await })
}

async fn hear(
    stream: impl Stream<Item = watcher::Result<Event<DynamicObject>>>,
    shared: &Shared,
    told: &UnboundedSender<JobRef>,
) {
    let mut stream = pin!(stream);
    let names = || shared.names.lock().unwrap_or_else(PoisonError::into_inner);
    while let Some(event) = stream.next().await {
        shared.observe("IPUJobs", &event);
        match event {
            Ok(Event::Apply(job) | Event::InitApply(job)) => {
                if let Some(key) = key(&job) {
                    names().put(key);
                }
                shared.observer.watch_connected(&expand(&job));
                if !is_settled(&shared.cache, &job) {
                    let _ = told.unbounded_send(reference(&job));
                }
            }
            Ok(Event::Delete(job)) => {
                if let Some(key) = key(&job) {
                    names().remove(&key);
                    forget(shared, &key);
                }
            }
            Ok(Event::Init) => names().on_init(),
            // Nothing was told of what was deleted while the watch was broken.
            Ok(Event::InitDone) => {
                let gone = names().on_init_done();
                gone.iter().for_each(|job| forget(shared, job));
            }
            Err(_) => {}
        }
    }
}

/// Whether the job is as it was written here, and was looked at then.
fn is_settled(cache: &Cache, job: &DynamicObject) -> bool {
    let metadata = &job.metadata;
    let version = metadata.resource_version.as_deref().unwrap_or_default();
    key(job)
        .zip(version.parse().ok())
        .is_some_and(|(key, version)| cache.is_settled(&key, version))
}

/// Forgets all that was remembered of a job that is gone.
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

/// Which job it is.
pub(super) fn key(job: &DynamicObject) -> Option<JobKey> {
    let metadata = &job.metadata;
    let (namespace, name) = (metadata.namespace.as_deref()?, metadata.name.as_deref()?);
    JobKey::new(namespace, name, metadata.uid.as_deref()?).ok()
}

/// The same by its name alone.
pub(super) fn job_ref(job: &JobKey) -> JobRef {
    ObjectRef::new_with(job.name.as_str(), jobs()).within(job.namespace.as_str())
}

pub(super) fn reference(job: &DynamicObject) -> JobRef {
    ObjectRef::from_obj_with(job, jobs())
}

/// Makes little of a job that is kept: without what nobody reads, and as text, which takes a fraction of the room of its tree.
fn compact(job: &mut DynamicObject) {
    job.metadata.managed_fields = None;
    if let Some(annotations) = &mut job.metadata.annotations {
        annotations.remove("kubectl.kubernetes.io/last-applied-configuration");
    }
    job.data = Value::String(job.data.to_string());
}

/// The object that was folded.
pub(super) fn expand(job: &DynamicObject) -> Value {
    let text = job.data.as_str().unwrap_or_default();
    let mut object: Value = serde_json::from_str(text).unwrap_or_default();
    object["metadata"] = serde_json::to_value(&job.metadata).unwrap_or_default();
    // Objects of a list do not say what they are.
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
    fn a_job_that_is_kept_is_the_job_that_was_heard_of() {
        let mut object = json!({
            "apiVersion": IpuJob::API_VERSION, "kind": IpuJob::KIND,
            "metadata": {"name": "a", "namespace": "n", "uid": "u", "resourceVersion": "7", "finalizers": ["x"]},
            "spec": {"jobInstances": 2, "workers": {"template": {"spec": {"containers": [{"args": ["\"\u{e9}\n"]}]}}}},
            "status": {"phase": "Running", "phaseSeconds": {"queue": 0.25}},
        });
        let mut job: DynamicObject = serde_json::from_value(object.clone()).expect("an object");
        compact(&mut job);
        assert_eq!(expand(&job), object);
        // As a list has it.
        object["metadata"]["managedFields"] = json!([{"manager": "kubectl"}]);
        let parts = ["metadata", "spec", "status"].map(|part| (part.to_owned(), object[part].clone()));
        let mut job: DynamicObject =
            serde_json::from_value(Value::Object(parts.into_iter().collect())).expect("an object");
        compact(&mut job);
        object["metadata"]
            .as_object_mut()
            .expect("it is")
            .remove("managedFields");
        assert_eq!(expand(&job), object);
    }

    /// Who is gone, by uid.
    #[derive(Default)]
    struct Gone(Mutex<Vec<String>>, Mutex<Vec<&'static str>>);

    impl Observer for Gone {
        fn job_deleted(&self, job: &Value) {
            let uid = job["metadata"]["uid"].as_str().expect("a uid").to_owned();
            self.0.lock().expect("nobody panics").push(uid);
        }

        fn hears(&self, _: &'static str) {
            self.1.lock().expect("nobody panics").push("hears");
        }

        fn interrupted(&self, objects: &'static str) {
            self.1.lock().expect("nobody panics").push(objects);
        }
    }

    /// Nobody is called by what hears.
    fn deaf(observer: Arc<dyn Observer>) -> Shared {
        let nobody = "http://127.0.0.1:1";
        let api = KubeApi::new(kube::Config::new(nobody.parse().expect("an address")), "test");
        let proxy = ProxyClient::new(nobody, ClientOptions::default()).expect("a client");
        let cache = Arc::new(Cache::new());
        let operator = Reconciler::new(
            Arc::new(api.expect("a client")),
            Arc::new(proxy),
            Arc::clone(&cache),
            InstallationDefaults::default(),
            Arc::new(Timestamp::default),
        );
        Shared::new(operator, cache, observer)
    }

    fn job(uid: &str) -> DynamicObject {
        let metadata =
            json!({"name": format!("job-{uid}"), "namespace": "n", "uid": uid, "resourceVersion": "3"});
        serde_json::from_value(json!({"metadata": metadata})).expect("an object")
    }

    #[tokio::test]
    async fn a_list_that_only_begins_is_no_sign_that_a_watch_hears_and_a_watch_that_broke_is() {
        let observer = Arc::new(Gone::default());
        let shared = deaf(Arc::clone(&observer) as Arc<dyn Observer>);
        let (told, _queue) = unbounded();
        let failed = || kube::Error::Service("gone".into());
        let events = [
            Ok(Event::Init),
            Err(watcher::Error::InitialListFailed(failed())),
            Ok(Event::Init),
            Ok(Event::InitDone),
            Err(watcher::Error::WatchFailed(failed())),
            Err(watcher::Error::WatchStartFailed(failed())),
        ];
        hear(stream::iter(events), &shared, &told).await;
        let told = observer.1.lock().expect("nobody panics");
        assert_eq!(told[..], ["IPUJobs", "hears", "hears", "IPUJobs", "IPUJobs"]);
    }

    #[tokio::test]
    async fn a_job_that_was_deleted_while_the_watch_was_broken_is_forgotten_like_any_other() {
        let observer = Arc::new(Gone::default());
        let shared = deaf(Arc::clone(&observer) as Arc<dyn Observer>);
        let (told, _queue) = unbounded();
        let listed = |uids: &[&str]| {
            let all = uids.iter().map(|uid| Event::InitApply(job(uid)));
            let all: Vec<_> = all.collect();
            std::iter::once(Event::Init).chain(all).chain([Event::InitDone])
        };
        let began = listed(&["a", "b", "c"]).chain([Event::Apply(job("d")), Event::Delete(job("a"))]);
        hear(stream::iter(began.map(Ok)), &shared, &told).await;
        for uid in ["b", "c", "d"] {
            shared.cache.record_write(&key(&job(uid)).expect("it is one"), 7);
        }
        assert_eq!(*observer.0.lock().expect("nobody panics"), ["a"]);
        // The first list of the next watch is not whole.
        let half = [Event::Init, Event::InitApply(job("b"))];
        let again = half.into_iter().chain(listed(&["c", "d"]));
        hear(stream::iter(again.map(Ok)), &shared, &told).await;
        assert_eq!(*observer.0.lock().expect("nobody panics"), ["a", "b"]);
        let is_remembered = |uid: &&str| shared.cache.is_stale(&key(&job(uid)).expect("it is one"), 3);
        let remembered: Vec<&str> = ["b", "c", "d"].into_iter().filter(is_remembered).collect();
        assert_eq!(remembered, ["c", "d"]);
    }
}
