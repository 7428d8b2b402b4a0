//! The loop: watches that tell of jobs, Kubernetes Pods and partitions, and who works on what is told.

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
use super::job_informer::{JobRef, KnownJobs, expand, hear_jobs, job_ref, key, name_of, reference};
use super::kube_api::{jobs, pods};
use super::ports::PortError;
use super::reconcile::{Reconciler, Requeue};
use super::work_queue::run_work_queue;
use crate::crd::IpuJob;
use crate::resources::ROLE;

/// How many jobs are worked on at the same time: enough to hide the latency of API server and proxy, few enough for both.
const MAX_CONCURRENT_RECONCILES: usize = 48;
/// The pause after the first failure of a job; it doubles up to [`PAUSE_MAX`].
const PAUSE_FIRST: Duration = Duration::from_millis(200);
/// The longest pause after failures.
const PAUSE_MAX: Duration = Duration::from_secs(30);
/// How many Events are written at the same time.
const TELLERS: usize = 4;
/// The pause before the proxy's events are asked for again after an error that its client could not mend.
const PROXY_PAUSE: Duration = Duration::from_secs(1);

/// What the loop is told besides the operator.
#[derive(Clone)]
#[non_exhaustive]
pub struct RunOptions {
    /// Only jobs of this namespace; all if none.
    pub namespace: Option<String>,
    /// Hears when a pass over a job begins and ends: for probes and metrics.
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

/// Hears what the loop does.
pub trait Observer: Send + Sync {
    /// All jobs and their Kubernetes Pods are known: work begins.
    fn ready(&self) {}
    /// A pass over a job begins.
    fn began(&self, job: &str) {
        let _ = job;
    }
    /// It ended.
    fn ended(&self, job: &str, outcome: Result<(), &PortError>) {
        let _ = (job, outcome);
    }
    /// A job is as this object says.
    fn watch_connected(&self, job: &Value) {
        let _ = job;
    }
    /// A job is gone, of which this is known: its namespace, name and uid at least.
    fn job_deleted(&self, job: &Value) {
        let _ = job;
    }
    /// Something was heard by the watch of these objects.
    fn hears(&self, objects: &'static str) {
        let _ = objects;
    }
    /// The watch of these objects broke, or could not be had. It is tried again after a minute at most.
    fn interrupted(&self, objects: &'static str) {
        let _ = objects;
    }
    /// So many jobs wait for a pass now, because as many as may be are worked on.
    fn waiting(&self, jobs: usize) {
        let _ = jobs;
    }
}

struct NoObserver;

impl Observer for NoObserver {}

/// What everybody in the loop shares.
pub(super) struct Shared {
    operator: Reconciler,
    pub(super) cache: Arc<Cache>,
    pub(super) observer: Arc<dyn Observer>,
    pub(super) names: Mutex<KnownJobs>,
    /// Failures in a row, by job.
    pub(super) failures: Mutex<HashMap<String, u32>>,
}

impl Shared {
    pub(super) fn new(operator: Reconciler, cache: Arc<Cache>, observer: Arc<dyn Observer>) -> Self {
        Self {
            operator,
            cache,
            observer,
            names: Mutex::default(),
            failures: Mutex::default(),
        }
    }

    /// Tells the observer how the watch of these objects does.
    pub(super) fn observe<K>(&self, objects: &'static str, event: &watcher::Result<Event<K>>) {
        match event {
            // That is said before anything was asked.
            Ok(Event::Init) => {}
            Ok(_) => self.observer.hears(objects),
            Err(error) => {
                tracing::warn!(%error, "the watch of {objects} is interrupted");
                if matches!(error, watcher::Error::WatchFailed(_)) {
                    // It had begun, and something idle is told of by nothing else.
                    self.observer.hears(objects);
                }
                self.observer.interrupted(objects);
            }
        }
    }
}

/// Works on jobs until `stop`; then ends what is under way and returns.
///
/// Watches IPUJobs, their Kubernetes Pods, and the proxy's events. A job that nothing is told of is looked at again when its
/// plan says so. The caller sees to it that few do this at the same time.
pub async fn run(
    client: Client,
    operator: Reconciler,
    cache: Arc<Cache>,
    proxy: ProxyClient,
    options: RunOptions,
    stop: impl Future<Output = ()> + Send + 'static,
) {
    operator.news.open();
    let shared = Arc::new(Shared::new(operator, cache, Arc::clone(&options.observer)));
    let _rest = FlushOnDrop(Arc::clone(&shared));
    let (told, queue) = unbounded::<JobRef>();
    let api = |resource: &ApiResource| -> Api<DynamicObject> {
        match &options.namespace {
            Some(namespace) => Api::namespaced_with(client.clone(), namespace, resource),
            None => Api::all_with(client.clone(), resource),
        }
    };
    // Kubernetes Pods first: a job is not worked on before they are known.
    let (known, until_known) = tokio::sync::oneshot::channel();
    let of_pods = watch_pods(api(&pods()), Arc::clone(&shared), told.clone(), known);
    let of_partitions = watch_partitions(proxy, Arc::clone(&shared.cache), told.clone());
    let (store, of_jobs) = hear_jobs(api(&jobs()), Arc::clone(&shared), told);
    let work = async {
        if until_known.await.is_err() || store.wait_until_ready().await.is_err() {
            return;
        }
        options.observer.ready();
        // A job that work has begun on goes before those that are new: few are under way, and none waits for good.
        let place = |job: &JobRef| {
            let known = store.get(job);
            let key = known.as_deref().and_then(key);
            shared.operator.priority(key.as_ref())
        };
        let work = |job: JobRef| {
            let (store, shared) = (store.clone(), Arc::clone(&shared));
            async move {
                // It is not there any more.
                let known = store.get(&job)?;
                let pause = reconcile_one(&known, &shared).await;
                let uid = &known.metadata.uid;
                if store.get(&job).is_none_or(|now| now.metadata.uid != *uid)
                    && let Some(key) = key(&known)
                {
                    // What the pass remembered came after all was forgotten.
                    shared.cache.forget(&key);
                }
                pause
            }
        };
        let waiting = |jobs| options.observer.waiting(jobs);
        run_work_queue(
            queue.take_until(stop),
            MAX_CONCURRENT_RECONCILES,
            place,
            work,
            waiting,
        )
        .await;
    };
    let tell = join_all((0..TELLERS).map(|_| async {
        loop {
            let telling = shared.operator.news.next().await;
            shared.operator.publish(&telling).await;
        }
    }));
    tokio::select! {
        () = work => {}
        () = of_pods => {}
        () = of_partitions => {}
        () = of_jobs => {}
        _ = tell => {}
    }
}

/// Tells what has not been told when the loop ends, as far as it can.
struct FlushOnDrop(Arc<Shared>);

impl Drop for FlushOnDrop {
    fn drop(&mut self) {
        let shared = Arc::clone(&self.0);
        let rest = shared.operator.news.close();
        // A process that ends has no runtime any more.
        let Ok(runtime) = Handle::try_current() else {
            return;
        };
        if !rest.is_empty() {
            runtime.spawn(async move {
                let rest = stream::iter(&rest);
                rest.for_each_concurrent(TELLERS, |telling| shared.operator.publish(telling))
                    .await;
            });
        }
    }
}

/// One pass; when the job is to be looked at again at the latest.
async fn reconcile_one(job: &DynamicObject, shared: &Shared) -> Option<Duration> {
    let name = name_of(&reference(job));
    shared.observer.began(&name);
    let _urgent = shared.operator.news.reconcile_guard();
    let work = async { shared.operator.reconcile(&expand(job)).await };
    // What a pass leaves when it breaks off is what a crash leaves, which the next one has to cope with anyhow; and what all
    // passes share is changed under locks that nothing panics under.
    let outcome = AssertUnwindSafe(work).catch_unwind().await;
    let outcome = outcome.unwrap_or_else(|panic| {
        let words = panic_message(&*panic);
        tracing::error!(
            job = name,
            panic = words,
            "a pass over a job panicked: a defect of the operator"
        );
        Err(PortError::Unavailable(format!("the operator panicked: {words}")))
    });
    shared.observer.ended(&name, outcome.as_ref().map(|_| ()));
    let wake = match outcome {
        Ok(wake) => wake,
        Err(error) => return Some(backoff(job, &error, shared)),
    };
    shared
        .failures
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .remove(&name);
    match wake {
        Requeue::AwaitChange => None,
        Requeue::After(pause) => Some(pause),
    }
}

/// What a panic said.
fn panic_message(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("nothing")
}

/// When a job is tried again that could not be worked on.
fn backoff(job: &DynamicObject, error: &PortError, shared: &Shared) -> Duration {
    let name = name_of(&reference(job));
    if matches!(error, PortError::Conflict(_) | PortError::NotFound(_)) {
        tracing::debug!(job = name, %error, "a job has changed meanwhile");
        return PAUSE_FIRST;
    }
    let mut failures = shared.failures.lock().unwrap_or_else(PoisonError::into_inner);
    let failures = failures.entry(name.clone()).or_default();
    *failures = failures.saturating_add(1);
    let doubled = PAUSE_FIRST.saturating_mul(1_u32.checked_shl((*failures - 1).min(16)).unwrap_or(u32::MAX));
    tracing::warn!(job = name, %error, failures, "a job could not be worked on");
    doubled.min(PAUSE_MAX)
}

async fn watch_pods(
    api: Api<DynamicObject>,
    shared: Arc<Shared>,
    told: UnboundedSender<JobRef>,
    known: tokio::sync::oneshot::Sender<()>,
) {
    let mut known = Some(known);
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
                if let Some(known) = known.take() {
                    let _ = known.send(());
                }
                changed
            }
            Ok(Event::Apply(pod)) => shared.cache.on_applied(&value(&pod)).into_iter().collect(),
            Ok(Event::Delete(pod)) => shared.cache.on_deleted(&value(&pod)).into_iter().collect(),
            Err(_) => Vec::new(),
        };
        let names = shared.names.lock().unwrap_or_else(PoisonError::into_inner);
        for job in changed.iter().filter(|job| names.has(job)) {
            let _ = told.unbounded_send(job_ref(job));
        }
    }
}

/// Hears of partitions for ever: the client opens the stream again when it breaks.
async fn watch_partitions(proxy: ProxyClient, cache: Arc<Cache>, told: UnboundedSender<JobRef>) {
    let mut events = proxy.events(None);
    let tell = |job: &JobKey| {
        let _ = told.unbounded_send(job_ref(job));
    };
    // Whose what was, because of what is gone only the id is told.
    let mut known: HashMap<PartitionId, (JobKey, u32)> = HashMap::new();
    loop {
        match events.try_next().await {
            Ok(Some(event)) => match event.told {
                EventKind::Snapshot(list) => {
                    let all = list.partitions.iter().filter_map(of_a_job).collect();
                    let before = std::mem::replace(&mut known, all);
                    cache.replace_holds(known.values().cloned());
                    // Nothing was told of what went while nothing was heard.
                    before
                        .values()
                        .chain(known.values())
                        .for_each(|(job, _)| tell(job));
                }
                EventKind::Change(change) => match change.partition.as_ref().and_then(of_a_job) {
                    Some((id, (job, instance))) => {
                        cache.add_hold(&job, instance);
                        if change
                            .partition
                            .is_none_or(|partition| cache.is_change(&job, &partition))
                        {
                            tell(&job);
                        }
                        known.insert(id, (job, instance));
                    }
                    None => {
                        if let Some((job, instance)) = known.remove(&change.id) {
                            cache.remove_hold(&job, instance);
                            tell(&job);
                        }
                    }
                },
                _ => {}
            },
            Ok(None) => return,
            Err(error) => {
                tracing::warn!(%error, "the proxy's events cannot be heard");
                cache.disconnected();
                tokio::time::sleep(PROXY_PAUSE).await;
                // From the beginning: a proxy that knows where this stream was tells of changes only, and what is held would not
                // be known.
                events = proxy.events(None);
            }
        }
    }
}

/// The job and the instance that a partition is of; none if it is of no IPUJob.
fn of_a_job(partition: &PartitionDocument) -> Option<(PartitionId, (JobKey, u32))> {
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

    /// What began, and how it ended.
    #[derive(Default)]
    struct ReconcileCounts {
        began: AtomicUsize,
        failed: Mutex<Vec<String>>,
    }

    impl Observer for ReconcileCounts {
        fn began(&self, _: &str) {
            self.began.fetch_add(1, Ordering::SeqCst);
        }

        fn ended(&self, _: &str, outcome: Result<(), &PortError>) {
            let error = outcome.expect_err("the clock panics").to_string();
            self.failed.lock().expect("nobody panics").push(error);
        }
    }

    #[tokio::test]
    async fn a_pass_that_panics_has_failed_and_is_tried_again_after_longer_and_longer_pauses() {
        let nobody = "http://127.0.0.1:1";
        let api = KubeApi::new(kube::Config::new(nobody.parse().expect("an address")), "test");
        let proxy = ProxyClient::new(nobody, ClientOptions::default()).expect("a client");
        let (cache, passes) = (Arc::new(Cache::new()), Arc::new(ReconcileCounts::default()));
        let operator = Reconciler::new(
            Arc::new(api.expect("a client")),
            Arc::new(proxy),
            Arc::clone(&cache),
            InstallationDefaults::default(),
            Arc::new(|| -> Timestamp { panic!("what time is it") }),
        );
        let shared = Shared::new(operator, cache, Arc::clone(&passes) as Arc<dyn Observer>);
        let job = json!({
            "metadata": {"name": "a", "namespace": "n", "uid": "u", "finalizers": [IpuJob::FINALIZER]},
            "spec": {"ipusPerJobInstance": "1", "workers": {"template": {"spec": {"containers": [
                {"name": "main", "image": "local/none:1", "command": ["work"]},
            ]}}}},
        });
        let mut job: DynamicObject = serde_json::from_value(job).expect("an object");
        job.data = job.data.to_string().into();
        for pause in [PAUSE_FIRST, PAUSE_FIRST * 2, PAUSE_FIRST * 4] {
            assert_eq!(reconcile_one(&job, &shared).await, Some(pause));
        }
        assert_eq!(passes.began.load(Ordering::SeqCst), 3);
        let failed = passes.failed.lock().expect("nobody panics");
        assert_eq!(failed[..], ["the operator panicked: what time is it"; 3]);
    }

    /// Answers a request for the proxy's events as a proxy that has been there all the time: with everything, unless the client
    /// says where it was.
    fn answer(listener: &TcpListener, partitions: &Value) -> TcpStream {
        let (mut stream, _) = listener.accept().expect("it asks");
        let lines = BufReader::new(&stream).lines().map_while(Result::ok);
        let resumes = lines
            .take_while(|line| !line.is_empty())
            .any(|line| line.to_ascii_lowercase().starts_with("last-event-id:"));
        let mut answer =
            "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n".to_owned();
        if !resumes {
            answer += &format!(
                "event: snapshot\nid: 1\ndata: {}\n\n",
                json!({"partitions": partitions})
            );
        }
        stream.write_all(answer.as_bytes()).expect("it is read");
        stream
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn what_the_proxy_holds_is_known_again_after_an_error_and_jobs_are_told_of_what_went_meanwhile() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let url = format!("http://{}", listener.local_addr().expect("its address"));
        let mut options = ClientOptions::default();
        options.retry.attempts = 1;
        let proxy = ProxyClient::new(&url, options).expect("a client");
        let cache = Arc::new(Cache::new());
        let (told, mut queue) = unbounded();
        let hearing = tokio::spawn(watch_partitions(proxy, Arc::clone(&cache), told));
        let is_told = async |told: bool| {
            while cache.is_connected() != told {
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
        let scenes = async {
            for holds in [Some(json!([partition])), None, Some(json!([]))] {
                // When a connection is dropped, the stream has ended.
                let answer = |all: &Value| tokio::task::block_in_place(|| answer(&listener, all));
                let open = holds.as_ref().map(answer);
                is_told(open.is_some()).await;
                if open.is_some() {
                    assert_eq!(
                        queue.next().await.map(|job| name_of(&job)).as_deref(),
                        Some("n/a")
                    );
                }
                drop(open);
            }
        };
        let patience = Duration::from_secs(30);
        tokio::time::timeout(patience, scenes)
            .await
            .expect("it is told again");
        hearing.abort();
    }
}
