//! The reconciliation of one job: observe, parse, plan, check, apply, record. This module contains no rule.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use ipu_core::{JobKey, JobPhase, Limits, Plan, Timestamp, Violation, check_plan, plan};
use serde::Deserialize as _;
use serde_json::{Value, json};

use super::apply::Applied;
use super::blocker::{Blocker, RETRY_INTERVAL};
use super::event_queue::EventQueue;
use super::informer::Cache;
use super::pod_state::version;
use super::ports::{ApiServer, JobEvent, Partitions, PortError, Severity};
use super::status::{StatusWrite, UpToDate};
use crate::crd::{IpuJob, IpuJobStatus};
use crate::resources::{InstallationDefaults, ResourceBuilder};

/// Maximum number of observations of one reconcile after changes, before other jobs get their turn.
const MAX_OBSERVATIONS: u32 = 8;

/// Maximum number of effects that change something between two status writes: the next reconcile continues.
/// Each effect may take a quarter of a second, and a job may have a thousand instances.
const MAX_EFFECTS: u32 = 64;

/// Longest time for which a starting job precedes other jobs, so that few jobs start concurrently.
const STARTING_PRECEDENCE: Duration = Duration::from_secs(60);

/// Priority class in the work queue; the lesser is served first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Priority {
    Starting,
    Other,
}

/// Longest delay of a watch event for an object that the operator wrote, unless the watch is broken: then its
/// relist enqueues the job.
const MAX_WATCH_DELAY: Duration = Duration::from_secs(1);

/// Delay until the next reconcile of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Requeue {
    /// Wait for a watch event.
    AwaitChange,
    /// Reconcile after this duration, or earlier on a watch event.
    After(Duration),
}

impl Requeue {
    fn or_earlier(self, other: Self) -> Self {
        match (self, other) {
            (Self::After(one), Self::After(another)) => Self::After(one.min(another)),
            (Self::After(pause), Self::AwaitChange) | (Self::AwaitChange, Self::After(pause)) => {
                Self::After(pause)
            }
            (Self::AwaitChange, Self::AwaitChange) => Self::AwaitChange,
        }
    }
}

/// Reconciles IPUJobs. All durable state is in the jobs themselves; the cache holds only recent observations
/// and writes.
pub struct Reconciler {
    pub(super) api: Arc<dyn ApiServer>,
    pub(super) partitions: Arc<dyn Partitions>,
    pub(super) cache: Arc<Cache>,
    /// Events to be published for users.
    pub(super) event_queue: EventQueue,
    installation: InstallationDefaults,
    limits: Limits,
    now: Arc<dyn Fn() -> Timestamp + Send + Sync>,
}

impl fmt::Debug for Reconciler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reconciler")
            .field("installation", &self.installation)
            .finish_non_exhaustive()
    }
}

impl Reconciler {
    /// Creates a reconciler; `now` is its clock.
    pub fn new(
        api: Arc<dyn ApiServer>,
        partitions: Arc<dyn Partitions>,
        cache: Arc<Cache>,
        installation: InstallationDefaults,
        now: Arc<dyn Fn() -> Timestamp + Send + Sync>,
    ) -> Self {
        let limits = Limits::default().for_stored();
        Self {
            api,
            partitions,
            cache,
            event_queue: EventQueue::default(),
            limits: limits.with_max_requested(installation.max_requested),
            installation,
            now,
        }
    }

    /// Returns the current time of the reconciler's clock.
    pub(super) fn now(&self) -> Timestamp {
        (self.now)()
    }

    /// Returns the key that orders jobs in the work queue: the least first. Starting jobs precede the others
    /// for as long as [`STARTING_PRECEDENCE`], in the order in which they started. Other jobs follow in the
    /// order in which they are enqueued.
    pub(super) fn priority(&self, job: Option<&JobKey>) -> (Priority, Timestamp) {
        let now = self.now();
        match job.and_then(|job| self.cache.starting_since(job)) {
            Some(since) if now.since(since) < STARTING_PRECEDENCE => (Priority::Starting, since),
            _ => (Priority::Other, now),
        }
    }

    /// Reconciles `object`, an IPUJob as a watch delivered it. An object older than the operator's own last
    /// write is skipped: the newer version is on its way, and its watch event triggers the reconcile.
    ///
    /// # Errors
    ///
    /// [`PortError`] if the reconcile failed. The status reports the error if it can be written.
    pub async fn reconcile(&self, object: &Value) -> Result<Requeue, PortError> {
        let metadata = &object["metadata"];
        let Some(key) = key_of(object) else {
            return Ok(Requeue::AwaitChange);
        };
        if self.cache.is_stale(&key, version(object)) {
            return Ok(if self.cache.clear_up_to_date(&key) {
                Requeue::After(MAX_WATCH_DELAY)
            } else {
                Requeue::AwaitChange
            });
        }
        if IpuJob::other_manager_in(object["spec"]["managedBy"].as_str()).is_some() {
            return Ok(Requeue::AwaitChange);
        }
        let finalizers = metadata["finalizers"].as_array();
        let has_finalizer = finalizers
            .is_some_and(|finalizers| finalizers.iter().any(|finalizer| finalizer == IpuJob::FINALIZER));
        match (has_finalizer, metadata["deletionTimestamp"].is_null()) {
            (false, false) => return Ok(Requeue::AwaitChange),
            (false, true) => {
                let object = self.add_finalizer(&key, object).await?;
                return self.reconcile_owned(&key, object).await;
            }
            (true, _) => {}
        }
        self.reconcile_owned(&key, object.clone()).await
    }

    /// Adds the operator's finalizer if the webhook has not: no partition is requested for a job that could
    /// vanish.
    async fn add_finalizer(&self, key: &JobKey, object: &Value) -> Result<Value, PortError> {
        let metadata = &object["metadata"];
        let mut finalizers = metadata["finalizers"].as_array().cloned().unwrap_or_default();
        finalizers.push(IpuJob::FINALIZER.into());
        let patch = json!({"metadata": {
            "resourceVersion": metadata["resourceVersion"],
            "finalizers": finalizers,
        }});
        let (namespace, name) = (key.namespace.as_str(), key.name.as_str());
        let written = self.api.patch_job(namespace, name, &patch).await?;
        self.cache.record_write(key, version(&written));
        Ok(written)
    }

    async fn reconcile_owned(&self, key: &JobKey, mut object: Value) -> Result<Requeue, PortError> {
        let mut status = match read_status(&object) {
            Ok(status) => status,
            Err(error) => return self.skip_unreadable(&object, &error).await,
        };
        let generation = object["metadata"]["generation"].clone();
        let (job, faults) = IpuJob::from_value(object.clone());
        let spec = match job.parse(&self.limits) {
            Ok(parsed) if faults.is_empty() => parsed.spec,
            parsed => {
                let violations = [parsed.err().unwrap_or_default(), faults].concat();
                return self.reject_invalid(key, &object, status, &violations).await;
            }
        };
        let builder = ResourceBuilder {
            job: &job,
            spec: &spec,
            installation: &self.installation,
        };
        let mut observations = 0;
        let mut partitions = BTreeMap::new();
        loop {
            observations += 1;
            let mut observed = match self.observe(&builder, &object, &status, partitions).await {
                Ok(observed) => observed,
                Err(error) => return self.report_blocked(key, &object, status, error).await,
            };
            let observation = observed.observation(&spec, status.to_job_status());
            let plan = plan(&spec, &observation);
            if let Some(first) = check_plan(&spec, &observation, &plan).first() {
                let error = PortError::Refused {
                    code: "BrokenPlan".to_owned(),
                    message: format!(
                        "the plan violates an invariant, which is a bug in the operator: {first}"
                    ),
                };
                return self.report_blocked(key, &object, status, error).await;
            }
            let mut changes = 0;
            let rights = self
                .check_rights(&builder, &observation.status, &observed, &plan)
                .await;
            let mut blocker = match rights {
                Ok(()) => None,
                Err(error) => Some(Blocker::from_error(&object, error)?),
            };
            for effect in &plan.effects {
                // A worker's name becomes free only after the launcher's right to exec into it is revoked.
                if changes == MAX_EFFECTS || blocker.is_some() {
                    break;
                }
                tracing::debug!(job = %spec.key(), ?effect, "applying effect");
                match self.apply(effect, &builder, &object, &mut observed).await {
                    Ok(Applied::Changed) => changes += 1,
                    Ok(Applied::Unchanged) => {}
                    Ok(Applied::Finalized) => return Ok(Requeue::AwaitChange),
                    // The status is recorded all the same: it follows from the observation, not from the
                    // effects.
                    Err(error) => {
                        blocker = Some(Blocker::from_error(&object, error)?);
                        break;
                    }
                }
            }
            let changed = changes > 0;
            // Changes are observed again before the status is written, unless the outcome of an attempt must
            // be recorded first. A skipped write is equivalent to a lost one, which plans tolerate.
            let verdict = plan.requeue_after == Some(Duration::ZERO);
            if changed
                && changes < MAX_EFFECTS
                && !verdict
                && observations < MAX_OBSERVATIONS
                && blocker.is_none()
            {
                partitions = observed.partitions;
                continue;
            }
            // A recent failure is judged once the logs of later failures are complete.
            let mut latest = observed
                .failure_evidence
                .judged_in
                .map_or(Requeue::AwaitChange, Requeue::After);
            // No watch event reports that a deadline passes without a change.
            let reports = observed
                .pods
                .iter()
                .filter_map(|pod| pod.next_report_in(observed.now));
            latest = reports.fold(latest, |latest, pause| latest.or_earlier(Requeue::After(pause)));
            let recorded = self
                .record(&builder, &object, &status, &plan, &observed, blocker.as_ref())
                .await;
            match recorded {
                Ok(StatusWrite::Written(written)) => object = written,
                Ok(StatusWrite::Unchanged) => {}
                Ok(StatusWrite::Deferred(pause)) => latest = latest.or_earlier(Requeue::After(pause)),
                // The job was written concurrently or deleted: the watch reports it.
                Err(PortError::Conflict(_) | PortError::NotFound(_)) => return Ok(Requeue::AwaitChange),
                Err(error) => return Err(error),
            }
            if plan.expired {
                return self.expire(&object).await;
            }
            if let Some(blocker) = blocker.filter(|_| !verdict) {
                return Ok(Requeue::After(blocker.retry_after()).or_earlier(latest));
            }
            // The next reconcile handles a specification that changed meanwhile.
            let is_unchanged = object["metadata"]["generation"] == generation;
            if !(verdict || changed)
                || observations >= MAX_OBSERVATIONS
                || changes == MAX_EFFECTS
                || !is_unchanged
            {
                return Ok(requeue(&plan, changed || verdict).or_earlier(latest));
            }
            partitions = observed.partitions;
            status = match read_status(&object) {
                Ok(status) => status,
                Err(error) => return self.skip_unreadable(&object, &error).await,
            };
        }
    }

    /// Deletes a finished job whose time to live has expired, if its version is still the observed one.
    async fn expire(&self, object: &Value) -> Result<Requeue, PortError> {
        match self.api.delete_job(object).await {
            // The watch reports the deletion, or the concurrent write.
            Ok(()) | Err(PortError::Conflict(_) | PortError::NotFound(_)) => Ok(Requeue::AwaitChange),
            Err(error) => Err(error),
        }
    }

    /// Records in the status why the job could not be observed, if it still needs work.
    async fn report_blocked(
        &self,
        key: &JobKey,
        object: &Value,
        before: IpuJobStatus,
        error: PortError,
    ) -> Result<Requeue, PortError> {
        let blocker = Blocker::from_error(object, error)?;
        let changed = object["metadata"]["generation"].as_i64() != before.observed_generation;
        let waits_for = if !object["metadata"]["deletionTimestamp"].is_null() {
            Some("the job is being deleted;")
        } else {
            match before.phase {
                None | Some(JobPhase::Pending | JobPhase::Restarting) => Some("partition not ready yet!"),
                Some(phase) if changed && !phase.is_finished() => {
                    Some("the change of the job is not applied yet;")
                }
                // The job continues, but the operator cannot observe it until the cause of the refusal is
                // removed.
                Some(phase) if blocker.is_reported_in(phase) => Some("the job is not reconciled;"),
                // The job continues or has finished: it waits for nothing.
                Some(_) => None,
            }
        };
        let mut latest = Requeue::After(blocker.retry_after());
        if let Some(waits_for) = waits_for {
            let mut after = before.clone();
            after.last_message = format!("{waits_for} {blocker}");
            after.launcher_status.get_or_insert_with(|| "Pending".to_owned());
            let now = self.now();
            let written = self.write_status(key, object, &before, after, now, UpToDate::No);
            match written.await? {
                StatusWrite::Written(_) => {
                    if let Some(event) = blocker.event(&before, now) {
                        self.enqueue_event(object, event).await;
                    }
                }
                StatusWrite::Unchanged => {}
                StatusWrite::Deferred(pause) => latest = latest.or_earlier(Requeue::After(pause)),
            }
        }
        Ok(latest)
    }

    /// Skips a job whose status a newer version or a person wrote: the job is left unchanged, and an Event
    /// reports it.
    async fn skip_unreadable(&self, object: &Value, error: &str) -> Result<Requeue, PortError> {
        let event = JobEvent {
            severity: Severity::Warning,
            reason: "UnreadableStatus".to_owned(),
            note: format!("the job is not reconciled, because this version cannot read its status: {error}"),
            at: self.now(),
        };
        self.enqueue_event(object, event).await;
        Ok(Requeue::AwaitChange)
    }

    /// Reports the violations of an invalid job. It gets no resources beyond those that it already has.
    async fn reject_invalid(
        &self,
        key: &JobKey,
        object: &Value,
        before: IpuJobStatus,
        violations: &[Violation],
    ) -> Result<Requeue, PortError> {
        if !object["metadata"]["deletionTimestamp"].is_null() {
            return self.release_unparsable(key, object, &before).await;
        }
        // No operator manages the rights of its launchers any longer.
        self.revoke_all(key, &before, &self.cache.pods(key)).await?;
        let messages: Vec<String> = violations.iter().map(ToString::to_string).collect();
        let mut after = before.clone();
        after.last_message = format!("the job cannot be run: {}", messages.join("; "));
        after.observed_generation = object["metadata"]["generation"].as_i64();
        after.launcher_status.get_or_insert_with(|| "Pending".to_owned());
        let event = JobEvent {
            severity: Severity::Warning,
            reason: "InvalidJob".to_owned(),
            note: after.last_message.clone(),
            at: self.now(),
        };
        match self
            .write_status(key, object, &before, after, event.at, UpToDate::No)
            .await?
        {
            StatusWrite::Written(_) => {
                self.enqueue_event(object, event).await;
                Ok(Requeue::AwaitChange)
            }
            StatusWrite::Unchanged => Ok(Requeue::AwaitChange),
            StatusWrite::Deferred(pause) => Ok(Requeue::After(pause)),
        }
    }

    /// Releases the resources of a deleted job that cannot be parsed, as its status lists them, and removes
    /// the finalizer.
    async fn release_unparsable(
        &self,
        key: &JobKey,
        object: &Value,
        status: &IpuJobStatus,
    ) -> Result<Requeue, PortError> {
        // The cache also keeps deleted pods whose outcome is known.
        let mut pods = self.cache.pods(key);
        pods.retain(|pod| !pod.deleted);
        self.revoke_all(key, status, &pods).await?;
        if !pods.is_empty() {
            for pod in &pods {
                match self.delete(pod).await {
                    Ok(()) | Err(PortError::NotFound(_) | PortError::Conflict(_)) => {}
                    Err(error) => return Err(error),
                }
            }
            return Ok(Requeue::After(RETRY_INTERVAL));
        }
        for id in status
            .instances
            .iter()
            .filter_map(|instance| instance.partition.as_deref())
        {
            let Ok(id) = ipu_core::PartitionId::new(id) else {
                continue;
            };
            let mut request = ipu_proxy_client::DeletePartition::default();
            request.uid = Some(key.uid.to_string());
            self.partitions.release(&id, &request).await?;
        }
        self.remove_finalizer(key, object).await?;
        Ok(Requeue::AwaitChange)
    }
}

/// Returns the key of a job, or `None` if the API server has not assigned a uid.
pub(super) fn key_of(object: &Value) -> Option<JobKey> {
    let text = |name: &str| object["metadata"][name].as_str();
    JobKey::new(text("namespace")?, text("name")?, text("uid")?).ok()
}

/// Returns the status of an object; the default if it has none. An unreadable status is an error unless the
/// job is being deleted: without its status, a job must not be started again.
fn read_status(object: &Value) -> Result<IpuJobStatus, String> {
    let stored = object.get("status").filter(|status| !status.is_null());
    let mut status = match stored.map_or_else(|| Ok(IpuJobStatus::default()), IpuJobStatus::deserialize) {
        Ok(status) => status,
        Err(_) if !object["metadata"]["deletionTimestamp"].is_null() => IpuJobStatus::default(),
        Err(error) => return Err(error.to_string()),
    };
    if status.phase.is_none() {
        // Version 1.2.0 of the operator wrote no phase: a job that has finished is not run again.
        status.phase = match status.launcher_status.as_deref() {
            Some("Completed") => Some(JobPhase::Completed),
            Some("Failed") => Some(JobPhase::Failed),
            _ => None,
        };
    }
    Ok(status)
}

fn requeue(plan: &Plan, immediately: bool) -> Requeue {
    match plan.requeue_after {
        _ if immediately => Requeue::After(Duration::from_millis(1)),
        Some(after) => Requeue::After(after),
        None => Requeue::AwaitChange,
    }
}
