//! The operator's work on IPUJobs and IPUPartitions, on `kube::runtime::Controller`: observe → parse → plan →
//! apply → one status write.
//!
//! `reconcile` reconciles one IPUJob. It reads jobs and Pods from reflector stores and partitions from the
//! event stream of the proxy. [`ipu_core::job::plan`] makes every decision.
//!
//! *Safety*: every partition belongs, by its id, to one job and its uid. The ledger gives it to no other
//! owner before it is released. A status write succeeds only on top of the `resourceVersion` that was read. A
//! Pod has a deterministic name, so it is created once, and it is deleted by uid. A finalizer keeps each Pod
//! until its outcome is recorded. Before a partition is reset or released, the Pods of its instance are
//! listed from the API server itself. Leader election makes two active operators rare; two of them are
//! harmless.

mod admission_check;
mod apply;
mod context;
mod error;
mod events;
mod failure_order;
mod ipupartition;
mod kueue;
mod launcher_rights;
mod mpirun_output;
mod namespaces;
mod objects;
mod observe;
mod orphans;
mod partitions;
mod pod;
mod queue_reason;
mod queued_job;
mod reconcile;
mod status;

use std::any::Any;
use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures::channel::mpsc::{UnboundedReceiver, unbounded};
use futures::future::BoxFuture;
use futures::{FutureExt as _, Stream, StreamExt as _};
use ipu_core::job::Limits;
use ipu_proxy_client::ProxyClient;
use k8s_openapi::api::core::v1::Pod;
use kube::core::DeserializeGuard;
use kube::runtime::WatchStreamExt as _;
use kube::runtime::controller::{self, Action, Controller};
use kube::runtime::events::{Recorder, Reporter};
use kube::runtime::reflector::{self, ObjectRef, Store};
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Api, Client, ResourceExt as _};

use self::context::Context;
pub use self::error::ReconcileError;
use self::kueue::{AdmissionCheck, Kueue, Workload};
use self::partitions::Partitions;
use crate::crd::{IpuJob, IpuPartition};
use crate::resources::{FIELD_MANAGER, InstallationDefaults, JOB_NAME, ROLE};

/// Maximum number of concurrent reconciliations: enough to hide the latency of API server and proxy, few
/// enough for both.
const MAX_CONCURRENT_RECONCILES: u16 = 48;
/// Time for which a reconciliation waits for further events of its job: several Pods usually change together.
const DEBOUNCE: Duration = Duration::from_millis(5);
/// Timeout of one read of a response of the API server.
const READ_TIMEOUT: Duration = Duration::from_secs(30);

/// An IPUJob of the store. An unreadable job, which another version wrote, stops no other job.
type StoredJob = DeserializeGuard<IpuJob>;
/// An IPUPartition of the store.
type StoredPartition = DeserializeGuard<IpuPartition>;

/// Callbacks of the controller, for probes and metrics.
pub trait Observer: Send + Sync {
    /// Called when the first lists of jobs and Pods are complete and reconciling starts.
    fn ready(&self);
    /// Called when a reconciliation of a job starts.
    fn reconcile_started(&self, job: &str);
    /// Called when a reconciliation of a job ends.
    fn reconcile_finished(&self, job: &str, outcome: Result<(), &ReconcileError>);
    /// Called for every job that a list or a watch delivers.
    fn job_applied(&self, job: &IpuJob);
    /// Called when the job of this uid was deleted.
    fn job_deleted(&self, uid: &str);
    /// Called when the watch of these objects in a namespace, or in all, delivers an event.
    fn watch_connected(&self, objects: &'static str, namespace: Option<&str>);
    /// Called when a watch breaks or cannot be established. It is retried within a minute.
    fn watch_failed(&self, objects: &'static str, namespace: Option<&str>);
    /// Called instead of [`watch_failed`](Self::watch_failed) when the API server forbids a list or watch of
    /// these objects, as it does after the deletion of a watched namespace with its RoleBinding.
    fn watch_forbidden(&self, objects: &'static str, namespace: Option<&str>);
}

/// Options of [`run`].
#[derive(Clone)]
#[non_exhaustive]
pub struct RunOptions {
    /// Namespaces to watch; all if empty.
    pub namespaces: Vec<String>,
    /// Settings of the installation for all jobs.
    pub installation: InstallationDefaults,
    /// Reporter that Events name: the Pod of this operator.
    pub reporter: String,
    /// Observer of reconciliations and watches.
    pub observer: Arc<dyn Observer>,
    /// Whether Kueue is in the cluster: then IPUJobs may wait in its queues, and the operator answers its
    /// AdmissionChecks.
    pub kueue: bool,
}

impl RunOptions {
    /// Creates options for all namespaces.
    #[must_use]
    pub fn new(reporter: &str, observer: Arc<dyn Observer>) -> Self {
        Self {
            namespaces: Vec::new(),
            installation: InstallationDefaults::default(),
            reporter: reporter.to_owned(),
            observer,
            kueue: false,
        }
    }
}

impl std::fmt::Debug for RunOptions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RunOptions")
            .field("namespaces", &self.namespaces)
            .finish_non_exhaustive()
    }
}

/// Reconciles jobs until `stop` resolves, then waits for the running reconciliations and returns.
///
/// Watches IPUJobs, their Pods, and the events of the proxy. The caller uses leader election to keep
/// concurrent operators rare.
///
/// # Errors
///
/// If `config` is not valid for a client.
pub async fn run(
    mut config: kube::Config,
    proxy: ProxyClient,
    options: RunOptions,
    stop: impl Future<Output = ()> + Send + Sync + 'static,
) -> Result<(), kube::Error> {
    // The next reconciliation repeats a failed request.
    config.default_retry = false;
    let watch_client = Client::try_from(config.clone())?;
    config.read_timeout = Some(READ_TIMEOUT);
    let client = Client::try_from(config)?;
    let RunOptions {
        namespaces,
        installation,
        reporter,
        observer,
        kueue: has_kueue,
    } = options;

    let (jobs, jobs_writer) = reflector::store::<StoredJob>();
    let (holders, holders_writer) = reflector::store::<StoredPartition>();
    let (pods, pods_writer) = reflector::store::<Pod>();
    let (workloads, workloads_writer) = reflector::store::<Workload>();
    let (checks, checks_writer) = reflector::store::<AdmissionCheck>();
    let (workloads_listed, has_workloads) = tokio::sync::watch::channel(false);
    let (kueue_listed, is_kueue_listed) = tokio::sync::watch::channel(false);
    let partitions = Arc::new(Partitions::new(proxy));
    let (listed, is_listed) = tokio::sync::watch::channel(false);
    let reporter = Reporter {
        controller: FIELD_MANAGER.to_owned(),
        instance: Some(reporter.chars().take(128).collect()),
    };
    let context = Arc::new(Context {
        recorder: Recorder::new(client.clone(), reporter),
        client,
        jobs: jobs.clone(),
        pods: pods.clone(),
        holders: holders.clone(),
        is_listed,
        kueue: has_kueue.then(|| Kueue {
            workloads: workloads.clone(),
            checks: checks.clone(),
            has_workloads,
            is_listed: is_kueue_listed,
        }),
        partitions: Arc::clone(&partitions),
        limits: Limits::default()
            .for_stored()
            .with_max_requested(installation.max_requested),
        installation,
        now: ipu_proxy_client::now,
    });

    let all = watcher::Config::default();
    let observe_jobs = observed("IPUJobs", &observer);
    let job_events = namespaces::watch(&watch_client, &namespaces, &all, jobs.clone(), observe_jobs);
    let job_observer = Arc::clone(&observer);
    let changed_jobs = job_events
        .modify(compact)
        .inspect(move |event| match event {
            Ok(Event::Apply(DeserializeGuard(Ok(job))) | Event::InitApply(DeserializeGuard(Ok(job)))) => {
                job_observer.job_applied(job);
            }
            Ok(Event::Delete(job)) => job_observer.job_deleted(&job.uid().unwrap_or_default()),
            _ => {}
        })
        .reflect(jobs_writer)
        .applied_objects()
        // The watches are retried on their own.
        .filter(|event| std::future::ready(event.is_ok()));
    let of_jobs = watcher::Config::default().labels(ROLE);
    let observe_pods = observed("Kubernetes Pods", &observer);
    let changed_pods = namespaces::watch(&watch_client, &namespaces, &of_jobs, pods.clone(), observe_pods)
        .modify(pod::compact)
        .reflect(pods_writer)
        .touched_objects()
        .filter(|event| std::future::ready(event.is_ok()));
    let (of_jobs, jobs_due) = unbounded();
    let (of_holders, holders_due) = unbounded();
    let (of_workloads, workloads_due) = unbounded();
    let observe_holders = observed("IPUPartitions", &observer);
    let changed_holders =
        namespaces::watch(&watch_client, &namespaces, &all, holders.clone(), observe_holders)
            .modify(compact)
            .inspect(move |event| {
                if let Ok(Event::Apply(holder) | Event::InitApply(holder) | Event::Delete(holder)) = event {
                    let workload = kueue::workload_of(holder);
                    // Fails when the operator stops.
                    workload.and_then(|workload| of_workloads.unbounded_send(workload).ok());
                }
            })
            .reflect(holders_writer)
            .applied_objects()
            .filter(|event| std::future::ready(event.is_ok()));
    let (queued_jobs, due_jobs, all_jobs) = (of_jobs.clone(), of_jobs.clone(), jobs.clone());
    let changed_workloads = namespaces::watch(
        &watch_client,
        &namespaces,
        &all,
        workloads.clone(),
        kueue::log_failure,
    )
    .modify(compact)
    .inspect(move |event| {
        if let Ok(Event::Apply(workload) | Event::InitApply(workload) | Event::Delete(workload)) = event {
            let job = workload.ipujob();
            job.and_then(|job| queued_jobs.unbounded_send(job).ok());
        }
    })
    .reflect(workloads_writer)
    .applied_objects()
    .filter(|event| std::future::ready(event.is_ok()));
    let changed_checks = watcher(Api::all(watch_client.clone()), all.clone())
        .default_backoff()
        .inspect(|event| kueue::log_failure(None, event))
        .reflect(checks_writer)
        .applied_objects()
        .filter(|event| std::future::ready(event.is_ok()));
    let stop = stop.shared();
    let config = controller::Config::default()
        .concurrency(MAX_CONCURRENT_RECONCILES)
        .debounce(DEBOUNCE);
    // Failures are logged where they occur. A Pod or a partition may outlive its owner.
    let job_work = Controller::for_stream(changed_jobs, jobs.clone())
        .watches_stream(changed_pods, |pod| job_of(&pod))
        .reconcile_on(known(jobs_due, jobs.clone()))
        .with_config(config.clone())
        .graceful_shutdown_on(stop.clone())
        .run(
            observed_reconcile("", Arc::clone(&observer), reconcile::reconcile),
            reconcile::retry,
            Arc::clone(&context),
        )
        .for_each(|_| std::future::ready(()));
    let holder_work = Controller::for_stream(changed_holders, holders.clone())
        .reconcile_on(known(holders_due, holders.clone()))
        .with_config(config.clone())
        .graceful_shutdown_on(stop.clone())
        .run(
            observed_reconcile("IPUPartition ", Arc::clone(&observer), ipupartition::reconcile),
            ipupartition::retry,
            Arc::clone(&context),
        )
        .for_each(|_| std::future::ready(()));
    let workload_work = Controller::for_stream(changed_workloads, workloads.clone())
        .reconcile_on(known(workloads_due, workloads.clone()))
        .with_config(config.clone())
        .graceful_shutdown_on(stop.clone())
        .run(
            observed_reconcile("Workload ", Arc::clone(&observer), admission_check::reconcile),
            |_, error, _| Action::requeue(error.retry_after()),
            Arc::clone(&context),
        )
        .for_each(|_| std::future::ready(()));
    let check_work = Controller::for_stream(changed_checks, checks.clone())
        .with_config(config)
        .graceful_shutdown_on(stop)
        .run(
            admission_check::activate,
            |_, error, _| Action::requeue(error.retry_after()),
            Arc::clone(&context),
        )
        .for_each(|_| std::future::ready(()));
    let kueue_work = async move {
        if has_kueue {
            let listed = async {
                if workloads.wait_until_ready().await.is_ok() {
                    workloads_listed.send_replace(true);
                    for job in all_jobs.state() {
                        // Fails when the operator stops.
                        let _ = due_jobs.unbounded_send(ObjectRef::from_obj(&job));
                    }
                }
                if checks.wait_until_ready().await.is_ok() && holders.wait_until_ready().await.is_ok() {
                    kueue_listed.send_replace(true);
                }
            };
            futures::join!(workload_work, check_work, listed);
        }
    };
    let work = futures::future::join3(job_work, holder_work, kueue_work);
    let ready = async {
        if jobs.wait_until_ready().await.is_ok() && pods.wait_until_ready().await.is_ok() {
            listed.send_replace(true);
            observer.ready();
        }
        std::future::pending::<()>().await;
    };
    tokio::select! {
        _ = work => {}
        () = partitions.watch(of_jobs, of_holders) => {}
        () = orphans::release(&context) => {}
        () = ready => {}
    }
    Ok(())
}

/// Returns the events of objects that exist.
fn known<K>(due: UnboundedReceiver<ObjectRef<K>>, store: Store<K>) -> impl Stream<Item = ObjectRef<K>> + Send
where
    K: kube::Resource<DynamicType = ()> + Clone + Send + Sync + 'static,
{
    due.filter(move |object| std::future::ready(store.get(object).is_some()))
}

/// Returns the reconciler with its callbacks, in which names begin with `prefix`. A panic fails one
/// reconciliation, like a crash that the next one handles.
fn observed_reconcile<K, F>(
    prefix: &'static str,
    observer: Arc<dyn Observer>,
    reconcile: impl Fn(Arc<K>, Arc<Context>) -> F + Clone + Send + 'static,
) -> impl FnMut(Arc<K>, Arc<Context>) -> BoxFuture<'static, Result<Action, ReconcileError>>
where
    K: kube::Resource + Send + Sync + 'static,
    F: Future<Output = Result<Action, ReconcileError>> + Send + 'static,
{
    move |object, context| {
        let observer = Arc::clone(&observer);
        let reconcile = reconcile.clone();
        let name = format!(
            "{prefix}{}/{}",
            object.namespace().unwrap_or_default(),
            object.name_any()
        );
        async move {
            observer.reconcile_started(&name);
            let work = AssertUnwindSafe(reconcile(object, context)).catch_unwind();
            let outcome = work.await.unwrap_or_else(|panic| {
                let message = panic_message(&*panic);
                tracing::error!(
                    job = name,
                    panic = message,
                    "a reconciliation panicked: this is a bug in the operator"
                );
                Err(ReconcileError::Unavailable(format!(
                    "the operator panicked: {message}"
                )))
            });
            match &outcome {
                Ok(_) => {}
                Err(error @ ReconcileError::Changed(_)) => {
                    tracing::debug!(job = name, %error, "reconciling again")
                }
                Err(error) => tracing::warn!(job = name, %error, "the reconciliation failed"),
            }
            observer.reconcile_finished(&name, outcome.as_ref().map(|_| ()));
            outcome
        }
        .boxed()
    }
}

/// Returns the message of a panic.
fn panic_message(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("no message")
}

/// Returns a callback that reports the progress of a watch.
fn observed<K>(
    objects: &'static str,
    observer: &Arc<dyn Observer>,
) -> impl Fn(Option<&str>, &watcher::Result<Event<K>>) + Clone + Send + 'static {
    let observer = Arc::clone(observer);
    move |namespace, event| match event {
        // The watcher emits `Init` before it sends its first request.
        Ok(Event::Init) => {}
        Ok(_) => observer.watch_connected(objects, namespace),
        Err(error) => {
            tracing::warn!(%error, namespace, "the watch of {objects} failed");
            if matches!(error, watcher::Error::WatchFailed(_)) {
                // The watch was established, and an idle watch has no other sign of that.
                observer.watch_connected(objects, namespace);
            }
            if namespaces::is_forbidden(error) {
                observer.watch_forbidden(objects, namespace);
            } else {
                observer.watch_failed(objects, namespace);
            }
        }
    }
}

/// Drops the parts of an object that no decision needs, to save memory.
fn compact<K: kube::Resource>(object: &mut K) {
    object.meta_mut().managed_fields = None;
    object.meta_mut().annotations = None;
}

/// Returns the job that a Pod belongs to by its labels.
fn job_of(pod: &Pod) -> Option<ObjectRef<StoredJob>> {
    Some(ObjectRef::new(pod.labels().get(JOB_NAME)?).within(pod.metadata.namespace.as_deref()?))
}
