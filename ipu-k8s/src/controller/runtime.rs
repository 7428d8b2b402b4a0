//! The controller loop: the watches of IPUJobs, pods and partitions, and the workers that reconcile the jobs.

use std::any::Any;
use std::collections::HashMap;
use std::fmt::Debug;
use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures::channel::mpsc::{UnboundedSender, unbounded};
use futures::future::join_all;
use futures::{FutureExt as _, StreamExt as _, TryStreamExt as _, stream};
use ipu_core::{JobKey, PartitionId};
use ipu_proxy_client::{EventKind, PartitionDocument, ProxyClient};
use kube::Client;
use kube::api::{Api, DynamicObject};
use kube::core::ApiResource;
use kube::runtime::WatchStreamExt as _;
use kube::runtime::watcher::{self, Event};
use serde_json::Value;
use tokio::runtime::Handle;

use super::informer::Cache;
use super::job_access::{JobAccess, is_forbidden};
use super::job_informer::{JobRef, KnownJobs, expand, job_ref, key, name_of, reference, watch_jobs};
use super::kube_api::{jobs, pods};
use super::ports::PortError;
use super::reconcile::{Reconciler, Requeue};
use super::work_queue::run_work_queue;
use crate::crd::IpuJob;
use crate::resources::ROLE;

/// Maximum number of concurrent reconciles: enough to hide the latency of API server and proxy, few enough
/// for both.
const MAX_CONCURRENT_RECONCILES: usize = 48;
/// Backoff after the first failure of a job; it doubles up to [`MAX_BACKOFF`].
const MIN_BACKOFF: Duration = Duration::from_millis(200);
/// Maximum backoff after repeated failures.
const MAX_BACKOFF: Duration = Duration::from_secs(30);
/// Number of tasks that publish Events concurrently.
const MAX_CONCURRENT_EVENT_WRITES: usize = 4;
/// Delay before the proxy's event stream is reopened after an error that its client could not recover from.
const PROXY_RETRY_INTERVAL: Duration = Duration::from_secs(1);

/// Options of [`run`].
#[derive(Clone)]
#[non_exhaustive]
pub struct RunOptions {
    /// Namespace to watch; all namespaces if `None`.
    pub namespace: Option<String>,
    /// Observer of reconciles and watches, for probes and metrics.
    pub observer: Arc<dyn Observer>,
}

impl Default for RunOptions {
    fn default() -> Self {
        Self {
            namespace: None,
            observer: Arc::new(NoObserver),
        }
    }
}

impl Debug for RunOptions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RunOptions")
            .field("namespace", &self.namespace)
            .finish_non_exhaustive()
    }
}

/// Callbacks of the controller loop.
pub trait Observer: Send + Sync {
    /// Called when the initial lists of jobs and pods are complete and reconciling starts.
    fn ready(&self) {}
    /// Called when a reconcile of a job starts.
    fn reconcile_started(&self, job: &str) {
        let _ = job;
    }
    /// Called when a reconcile of a job ends.
    fn reconcile_finished(&self, job: &str, outcome: Result<(), &PortError>) {
        let _ = (job, outcome);
    }
    /// Called for every job that a list or a watch delivers, with the object.
    fn job_applied(&self, job: &Value) {
        let _ = job;
    }
    /// Called when a job was deleted. `job` has at least its namespace, name and uid.
    fn job_deleted(&self, job: &Value) {
        let _ = job;
    }
    /// Called when the watch of these objects delivers an event.
    fn watch_connected(&self, objects: &'static str) {
        let _ = objects;
    }
    /// Called when the watch of these objects breaks or cannot be established. It is retried within a minute.
    fn watch_failed(&self, objects: &'static str) {
        let _ = objects;
    }
    /// Called instead of [`watch_failed`](Self::watch_failed) when the API server forbids a list or watch of
    /// these objects, as it does after the deletion of a watched namespace with its RoleBinding.
    fn watch_forbidden(&self, objects: &'static str) {
        self.watch_failed(objects);
    }
    /// Called when the number of jobs that wait for a free reconcile slot changes.
    fn queue_depth_changed(&self, jobs: usize) {
        let _ = jobs;
    }
}

struct NoObserver;

impl Observer for NoObserver {}

/// State shared by all tasks of the loop.
pub(super) struct Shared {
    reconciler: Reconciler,
    pub(super) cache: Arc<Cache>,
    pub(super) observer: Arc<dyn Observer>,
    pub(super) names: Mutex<KnownJobs>,
    /// Consecutive failures by job.
    pub(super) failures: Mutex<HashMap<String, u32>>,
    pub(super) job_access: JobAccess,
}

impl Shared {
    pub(super) fn new(reconciler: Reconciler, cache: Arc<Cache>, observer: Arc<dyn Observer>) -> Self {
        Self {
            reconciler,
            cache,
            observer,
            names: Mutex::default(),
            failures: Mutex::default(),
            job_access: JobAccess::default(),
        }
    }

    /// Reports the outcome of a watch event to the observer.
    pub(super) fn observe<K>(&self, objects: &'static str, event: &watcher::Result<Event<K>>) {
        match event {
            // The watcher emits `Init` before it sends its first request.
            Ok(Event::Init) => {}
            Ok(_) => self.observer.watch_connected(objects),
            Err(error) => {
                tracing::warn!(%error, "the watch of {objects} failed");
                if matches!(error, watcher::Error::WatchFailed(_)) {
                    // The watch was established, and an idle watch has no other sign of that.
                    self.observer.watch_connected(objects);
                }
                if is_forbidden(error) {
                    self.observer.watch_forbidden(objects);
                } else {
                    self.observer.watch_failed(objects);
                }
            }
        }
    }
}

/// Reconciles jobs until `stop` resolves, then waits for the reconciles in progress and returns.
///
/// Watches IPUJobs, their pods, and the proxy's events. A job without events is requeued after the interval
/// that its plan requests. The caller uses leader election to keep concurrent operators rare.
pub async fn run(
    client: Client,
    reconciler: Reconciler,
    cache: Arc<Cache>,
    proxy: ProxyClient,
    options: RunOptions,
    stop: impl Future<Output = ()> + Send + 'static,
) {
    reconciler.event_queue.open();
    let shared = Arc::new(Shared::new(reconciler, cache, Arc::clone(&options.observer)));
    let _flush = FlushOnDrop(Arc::clone(&shared));
    let (sender, queue) = unbounded::<JobRef>();
    let api = |resource: &ApiResource| -> Api<DynamicObject> {
        match &options.namespace {
            Some(namespace) => Api::namespaced_with(client.clone(), namespace, resource),
            None => Api::all_with(client.clone(), resource),
        }
    };
    // Pods are listed first: no job is reconciled before the pod cache is complete.
    let (synced, pods_synced) = tokio::sync::oneshot::channel();
    let pod_watch = watch_pods(api(&pods()), Arc::clone(&shared), sender.clone(), synced);
    let partition_watch = watch_partitions(proxy, Arc::clone(&shared.cache), sender.clone());
    let (store, job_watch) = watch_jobs(api(&jobs()), Arc::clone(&shared), sender);
    let work = async {
        if pods_synced.await.is_err() || store.wait_until_ready().await.is_err() {
            return;
        }
        options.observer.ready();
        // Jobs that are starting precede new ones: few are in progress, and no job starves.
        let priority = |job: &JobRef| {
            let stored = store.get(job);
            let key = stored.as_deref().and_then(key);
            shared.reconciler.priority(key.as_ref())
        };
        let work = |job: JobRef| {
            let (store, shared) = (store.clone(), Arc::clone(&shared));
            async move {
                // The job was deleted.
                let stored = store.get(&job)?;
                if let Some(delay) = shared.job_access.postpone(&stored) {
                    return Some(delay);
                }
                let requeue = reconcile_one(&stored, &shared).await;
                let uid = &stored.metadata.uid;
                if store.get(&job).is_none_or(|now| now.metadata.uid != *uid)
                    && let Some(key) = key(&stored)
                {
                    // The reconcile may have cached state after the deletion cleared it.
                    shared.cache.forget(&key);
                }
                requeue
            }
        };
        let waiting = |jobs| options.observer.queue_depth_changed(jobs);
        run_work_queue(
            queue.take_until(stop),
            MAX_CONCURRENT_RECONCILES,
            priority,
            work,
            waiting,
        )
        .await;
    };
    let publish = join_all((0..MAX_CONCURRENT_EVENT_WRITES).map(|_| async {
        loop {
            let event = shared.reconciler.event_queue.next().await;
            shared.reconciler.publish(&event).await;
        }
    }));
    tokio::select! {
        () = work => {}
        () = pod_watch => {}
        () = partition_watch => {}
        () = job_watch => {}
        _ = publish => {}
    }
}

/// Publishes the remaining Events when the loop ends, as far as possible.
struct FlushOnDrop(Arc<Shared>);

impl Drop for FlushOnDrop {
    fn drop(&mut self) {
        let shared = Arc::clone(&self.0);
        let remaining = shared.reconciler.event_queue.close();
        // A terminating process has no runtime.
        let Ok(runtime) = Handle::try_current() else {
            return;
        };
        if !remaining.is_empty() {
            runtime.spawn(async move {
                let remaining = stream::iter(&remaining);
                remaining
                    .for_each_concurrent(MAX_CONCURRENT_EVENT_WRITES, |event| {
                        shared.reconciler.publish(event)
                    })
                    .await;
            });
        }
    }
}

/// Reconciles a job once. Returns the longest delay until the next reconcile, if one is due.
async fn reconcile_one(job: &DynamicObject, shared: &Shared) -> Option<Duration> {
    let name = name_of(&reference(job));
    shared.observer.reconcile_started(&name);
    let _guard = shared.reconciler.event_queue.reconcile_guard();
    let work = async { shared.reconciler.reconcile(&expand(job)).await };
    // An aborted reconcile leaves the same state as a crash, which the next reconcile handles. Shared state
    // is changed under locks, and no code panics while it holds one.
    let outcome = AssertUnwindSafe(work).catch_unwind().await;
    let outcome = outcome.unwrap_or_else(|panic| {
        let message = panic_message(&*panic);
        tracing::error!(
            job = name,
            panic = message,
            "a reconcile panicked: this is a bug in the operator"
        );
        Err(PortError::Unavailable(format!(
            "the operator panicked: {message}"
        )))
    });
    shared
        .observer
        .reconcile_finished(&name, outcome.as_ref().map(|_| ()));
    let requeue = match outcome {
        Ok(requeue) => requeue,
        Err(error) => return Some(backoff(job, &error, shared)),
    };
    shared
        .failures
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .remove(&name);
    match requeue {
        Requeue::AwaitChange => None,
        Requeue::After(pause) => Some(pause),
    }
}

/// Returns the message of a panic.
fn panic_message(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("no message")
}

/// Returns the delay before a failed job is reconciled again.
fn backoff(job: &DynamicObject, error: &PortError, shared: &Shared) -> Duration {
    let name = name_of(&reference(job));
    if matches!(error, PortError::Conflict(_) | PortError::NotFound(_)) {
        tracing::debug!(job = name, %error, "the job changed during the reconcile");
        return MIN_BACKOFF;
    }
    let mut failures = shared.failures.lock().unwrap_or_else(PoisonError::into_inner);
    let failures = failures.entry(name.clone()).or_default();
    *failures = failures.saturating_add(1);
    let doubled = MIN_BACKOFF.saturating_mul(1_u32.checked_shl((*failures - 1).min(16)).unwrap_or(u32::MAX));
    tracing::warn!(job = name, %error, failures, "the reconcile failed");
    doubled.min(MAX_BACKOFF)
}

async fn watch_pods(
    api: Api<DynamicObject>,
    shared: Arc<Shared>,
    queue: UnboundedSender<JobRef>,
    synced: tokio::sync::oneshot::Sender<()>,
) {
    let mut synced = Some(synced);
    let config = watcher::Config::default().labels(ROLE);
    let stream = watcher::watcher(api, config).default_backoff();
    let mut stream = std::pin::pin!(stream);
    while let Some(event) = stream.next().await {
        shared.observe("Kubernetes Pods", &event);
        let value = |pod: &DynamicObject| serde_json::to_value(pod).unwrap_or_default();
        let changed: Vec<JobKey> = match event {
            Ok(Event::Init) => {
                shared.cache.on_init();
                Vec::new()
            }
            Ok(Event::InitApply(pod)) => {
                shared.cache.on_init_apply(&value(&pod));
                Vec::new()
            }
            Ok(Event::InitDone) => {
                let changed = shared.cache.on_init_done();
                if let Some(synced) = synced.take() {
                    let _ = synced.send(());
                }
                changed
            }
            Ok(Event::Apply(pod)) => shared.cache.on_applied(&value(&pod)).into_iter().collect(),
            Ok(Event::Delete(pod)) => shared.cache.on_deleted(&value(&pod)).into_iter().collect(),
            Err(_) => Vec::new(),
        };
        let names = shared.names.lock().unwrap_or_else(PoisonError::into_inner);
        for job in changed.iter().filter(|job| names.contains(job)) {
            let _ = queue.unbounded_send(job_ref(job));
        }
    }
}

/// Watches partitions forever: the client reopens the event stream when it breaks.
async fn watch_partitions(proxy: ProxyClient, cache: Arc<Cache>, queue: UnboundedSender<JobRef>) {
    let mut events = proxy.events(None);
    let enqueue = |job: &JobKey| {
        let _ = queue.unbounded_send(job_ref(job));
    };
    // Owners by partition id: a delete event carries only the id.
    let mut owners: HashMap<PartitionId, (JobKey, u32)> = HashMap::new();
    loop {
        match events.try_next().await {
            Ok(Some(event)) => match event.kind {
                EventKind::Snapshot(list) => {
                    let all = list.partitions.iter().filter_map(ipujob_owner).collect();
                    let before = std::mem::replace(&mut owners, all);
                    cache.replace_holds(owners.values().cloned());
                    // The snapshot does not list partitions that were deleted while the stream was down.
                    before
                        .values()
                        .chain(owners.values())
                        .for_each(|(job, _)| enqueue(job));
                }
                EventKind::Change(change) => match change.partition.as_ref().and_then(ipujob_owner) {
                    Some((id, (job, instance))) => {
                        cache.add_hold(&job, instance);
                        if change
                            .partition
                            .is_none_or(|partition| cache.is_change(&job, &partition))
                        {
                            enqueue(&job);
                        }
                        owners.insert(id, (job, instance));
                    }
                    None => {
                        if let Some((job, instance)) = owners.remove(&change.id) {
                            cache.remove_hold(&job, instance);
                            enqueue(&job);
                        }
                    }
                },
            },
            Ok(None) => return,
            Err(error) => {
                tracing::warn!(%error, "the event stream of the proxy failed");
                cache.mark_disconnected();
                tokio::time::sleep(PROXY_RETRY_INTERVAL).await;
                // Without a last event id, the proxy sends a snapshot. A resumed stream has changes only, and
                // the holds would be unknown.
                events = proxy.events(None);
            }
        }
    }
}

/// Returns the id, job and instance of a partition, or `None` if no IPUJob owns it.
fn ipujob_owner(partition: &PartitionDocument) -> Option<(PartitionId, (JobKey, u32))> {
    let owner = partition
        .owner
        .as_ref()
        .filter(|owner| owner.kind == IpuJob::KIND)?;
    let job = JobKey::new(&*owner.namespace, &*owner.name, &*owner.uid).ok()?;
    Some((partition.id.clone(), (job, partition.instance)))
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead as _, BufReader, Write as _};
    use std::net::{TcpListener, TcpStream};
    use std::sync::atomic::{AtomicUsize, Ordering};

    use ipu_core::Timestamp;
    use ipu_proxy_client::ClientOptions;
    use serde_json::json;

    use super::*;
    use crate::controller::KubeApi;
    use crate::resources::InstallationDefaults;

    /// Counts started reconciles and records their errors.
    #[derive(Default)]
    struct ReconcileCounts {
        began: AtomicUsize,
        failed: Mutex<Vec<String>>,
    }

    impl Observer for ReconcileCounts {
        fn reconcile_started(&self, _: &str) {
            self.began.fetch_add(1, Ordering::SeqCst);
        }

        fn reconcile_finished(&self, _: &str, outcome: Result<(), &PortError>) {
            let error = outcome.expect_err("the clock panics").to_string();
            self.failed.lock().expect("the lock is not poisoned").push(error);
        }
    }

    #[tokio::test]
    async fn a_reconcile_that_panics_fails_and_backs_off_exponentially() {
        let unreachable = "http://127.0.0.1:1";
        let api = KubeApi::new(
            kube::Config::new(unreachable.parse().expect("an address")),
            "test",
        );
        let proxy = ProxyClient::new(unreachable, ClientOptions::default()).expect("a client");
        let (cache, counts) = (Arc::new(Cache::new()), Arc::new(ReconcileCounts::default()));
        let reconciler = Reconciler::new(
            Arc::new(api.expect("a client")),
            Arc::new(proxy),
            Arc::clone(&cache),
            InstallationDefaults::default(),
            Arc::new(|| -> Timestamp { panic!("what time is it") }),
        );
        let shared = Shared::new(reconciler, cache, Arc::clone(&counts) as Arc<dyn Observer>);
        let job = json!({
            "metadata": {"name": "a", "namespace": "n", "uid": "u", "finalizers": [IpuJob::FINALIZER]},
            "spec": {"ipusPerJobInstance": "1", "workers": {"template": {"spec": {"containers": [
                {"name": "main", "image": "local/none:1", "command": ["work"]},
            ]}}}},
        });
        let mut job: DynamicObject = serde_json::from_value(job).expect("an object");
        job.data = job.data.to_string().into();
        for pause in [MIN_BACKOFF, MIN_BACKOFF * 2, MIN_BACKOFF * 4] {
            assert_eq!(reconcile_one(&job, &shared).await, Some(pause));
        }
        assert_eq!(counts.began.load(Ordering::SeqCst), 3);
        let failed = counts.failed.lock().expect("the lock is not poisoned");
        assert_eq!(failed[..], ["the operator panicked: what time is it"; 3]);
    }

    /// Serves the proxy's event stream: with a snapshot, unless the client sends a last event id.
    fn serve(listener: &TcpListener, partitions: &Value) -> TcpStream {
        let (mut stream, _) = listener.accept().expect("a connection");
        let lines = BufReader::new(&stream).lines().map_while(Result::ok);
        let resumes = lines
            .take_while(|line| !line.is_empty())
            .any(|line| line.to_ascii_lowercase().starts_with("last-event-id:"));
        let mut response =
            "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n".to_owned();
        if !resumes {
            response += &format!(
                "event: snapshot\nid: 1\ndata: {}\n\n",
                json!({"partitions": partitions})
            );
        }
        stream.write_all(response.as_bytes()).expect("the client reads");
        stream
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn an_error_of_the_event_stream_relists_the_holds_and_enqueues_jobs_whose_partitions_were_deleted()
    {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let url = format!("http://{}", listener.local_addr().expect("its address"));
        let mut options = ClientOptions::default();
        options.retry.attempts = 1;
        let proxy = ProxyClient::new(&url, options).expect("a client");
        let cache = Arc::new(Cache::new());
        let (sender, mut queue) = unbounded();
        let watch = tokio::spawn(watch_partitions(proxy, Arc::clone(&cache), sender));
        let wait_until_connected = async |connected: bool| {
            while cache.is_connected() != connected {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        let partition = json!({
            "id": "p-a-0", "state": "releasing", "instance": 0, "attempt": 0, "since": 1,
            "owner": {"kind": "IPUJob", "namespace": "n", "name": "a", "uid": "u"},
            "size": 1, "gcds": 1, "replicas": 1, "reconfigurable": false, "controller": null, "ipus": [], "heldSince": null,
            "priority": 0, "account": null, "preemptible": false, "maxRuntimeSeconds": null, "leaseUntil": null,
            "errors": [], "env": {},
        });
        let scenario = async {
            for holds in [Some(json!([partition])), None, Some(json!([]))] {
                // Dropping a connection ends the stream.
                let serve = |all: &Value| tokio::task::block_in_place(|| serve(&listener, all));
                let open = holds.as_ref().map(serve);
                wait_until_connected(open.is_some()).await;
                if open.is_some() {
                    assert_eq!(
                        queue.next().await.map(|job| name_of(&job)).as_deref(),
                        Some("n/a")
                    );
                }
                drop(open);
            }
        };
        let timeout = Duration::from_secs(30);
        tokio::time::timeout(timeout, scenario)
            .await
            .expect("the holds are relisted in time");
        watch.abort();
    }
}
