//! One pass over one job: observe, parse, plan, check, apply, record. No rule is in here.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use ipu_core::{JobKey, JobPhase, Limits, Plan, Timestamp, Violation, check_plan, plan};
use serde::Deserialize as _;
use serde_json::{Value, json};

use super::apply::Applied;
use super::blocker::{Blocker, RETRY};
use super::event_queue::EventQueue;
use super::informer::Cache;
use super::pod_state::version;
use super::ports::{ApiServer, JobEvent, Partitions, PortError, Severity};
use super::status::{StatusWrite, UpToDate};
use crate::crd::{IpuJob, IpuJobStatus};
use crate::resources::{InstallationDefaults, ResourceBuilder};

/// How often one pass may look again after something moved, before others have their turn.
const MAX_OBSERVATIONS: u32 = 8;

/// How many effects that change something one look may have, before what was decided is recorded: the next pass goes on. Each may take a
/// quarter of a second, and a job may have a thousand instances.
const MAX_EFFECTS: u32 = 64;

/// How far ahead of others jobs are worked on that are on their way to running, so that few are at the same time.
const AHEAD: Duration = Duration::from_secs(60);

/// Who goes before whom.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Priority {
    Starting,
    Other,
}

/// After this time what was written has been heard of, unless its watch is broken: then whoever hears of it tells.
const HEARD: Duration = Duration::from_secs(1);

/// When to look at a job again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Requeue {
    /// Only if something is heard of it.
    AwaitChange,
    /// After this time at the latest.
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

/// Works on jobs. It remembers nothing that a job does not say itself, but for what it heard and did of late.
pub struct Reconciler {
    pub(super) api: Arc<dyn ApiServer>,
    pub(super) partitions: Arc<dyn Partitions>,
    pub(super) cache: Arc<Cache>,
    /// What users are to be told.
    pub(super) news: EventQueue,
    installation: InstallationDefaults,
    limits: Limits,
    now: Arc<dyn Fn() -> Timestamp + Send + Sync>,
}

impl fmt::Debug for Reconciler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Operator")
            .field("installation", &self.installation)
            .finish_non_exhaustive()
    }
}

impl Reconciler {
    /// An operator of these; `now` is its clock.
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
            news: EventQueue::default(),
            limits: limits.with_max_requested(installation.max_requested),
            installation,
            now,
        }
    }

    /// What its clock says.
    pub(super) fn now(&self) -> Timestamp {
        (self.now)()
    }

    /// Whose turn the job is: the least first. Those that are on their way to running go before the others for as
    /// long as [`AHEAD`], in the order in which they began, and everybody else in the order in which they are told of.
    pub(super) fn priority(&self, job: Option<&JobKey>) -> (Priority, Timestamp) {
        let now = self.now();
        match job.and_then(|job| self.cache.starting_since(job)) {
            Some(since) if now.since(since) < AHEAD => (Priority::Starting, since),
            _ => (Priority::Other, now),
        }
    }

    /// One pass over `object`, an IPUJob as it was heard of. An object that is older than what was written here is left
    /// alone: the newer one is on its way, and is looked at, because of whatever was told of the job since that was written.
    ///
    /// # Errors
    ///
    /// [`PortError`] if it could not be worked on, which its status says, as far as it can be written.
    pub async fn reconcile(&self, object: &Value) -> Result<Requeue, PortError> {
        let metadata = &object["metadata"];
        let Some(key) = key_of(object) else {
            return Ok(Requeue::AwaitChange);
        };
        if self.cache.is_stale(&key, version(object)) {
            return Ok(if self.cache.clear_up_to_date(&key) {
                Requeue::After(HEARD)
            } else {
                Requeue::AwaitChange
            });
        }
        if IpuJob::other_manager_in(object["spec"]["managedBy"].as_str()).is_some() {
            return Ok(Requeue::AwaitChange);
        }
        let finalizers = metadata["finalizers"].as_array();
        let kept = finalizers
            .is_some_and(|finalizers| finalizers.iter().any(|finalizer| finalizer == IpuJob::FINALIZER));
        match (kept, metadata["deletionTimestamp"].is_null()) {
            (false, false) => return Ok(Requeue::AwaitChange),
            (false, true) => {
                let object = self.add_finalizer(&key, object).await?;
                return self.work(&key, object).await;
            }
            (true, _) => {}
        }
        self.work(&key, object.clone()).await
    }

    /// Puts our finalizer on, if the webhook has not: nothing is held for a job that could vanish.
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

    async fn work(&self, key: &JobKey, mut object: Value) -> Result<Requeue, PortError> {
        let mut status = match read_status(&object) {
            Ok(status) => status,
            Err(why) => return self.skip_unreadable(&object, &why).await,
        };
        let generation = object["metadata"]["generation"].clone();
        let (job, mut faults) = IpuJob::from_value(object.clone());
        faults.extend(job.launcher_accounts());
        let spec = match job.to_raw().parse(&self.limits) {
            Ok(parsed) if faults.is_empty() => parsed.spec,
            Ok(_) => return self.reject_invalid(key, &object, status, &faults).await,
            Err(mut violations) => {
                violations.extend(faults);
                return self.reject_invalid(key, &object, status, &violations).await;
            }
        };
        let blueprint = ResourceBuilder {
            job: &job,
            spec: &spec,
            installation: &self.installation,
        };
        let mut looks = 0;
        let mut partitions = BTreeMap::new();
        loop {
            looks += 1;
            let mut seen = match self.observe(&blueprint, &object, &status, partitions).await {
                Ok(seen) => seen,
                Err(error) => return self.report_blocked(key, &object, status, error).await,
            };
            let observation = seen.observation(&spec, status.remembered());
            let plan = plan(&spec, &observation);
            if let Some(first) = check_plan(&spec, &observation, &plan).first() {
                let error = PortError::Refused {
                    code: "BrokenPlan".to_owned(),
                    message: format!("the plan breaks a rule of its own, a defect of the operator: {first}"),
                };
                return self.report_blocked(key, &object, status, error).await;
            }
            let mut moves = 0;
            let rights = self
                .check_rights(&blueprint, &observation.status, &seen, &plan)
                .await;
            let mut trouble = match rights {
                Ok(()) => None,
                Err(error) => Some(Blocker::of(&object, error)?),
            };
            for effect in &plan.effects {
                // No worker is deleted, and its name free, before the right to it was revoked.
                if moves == MAX_EFFECTS || trouble.is_some() {
                    break;
                }
                tracing::debug!(job = %spec.key(), ?effect, "does");
                match self.apply(effect, &blueprint, &object, &mut seen).await {
                    Ok(Applied::Changed) => moves += 1,
                    Ok(Applied::Unchanged) => {}
                    Ok(Applied::Finalized) => return Ok(Requeue::AwaitChange),
                    // What was decided is recorded all the same: it follows from what was seen, not from what was done.
                    Err(error) => {
                        trouble = Some(Blocker::of(&object, error)?);
                        break;
                    }
                }
            }
            let moved = moves > 0;
            // What moved is looked at again before it is told of, unless a verdict is to be recorded first: a record that
            // is left out is as one that was lost, which plans allow for.
            let verdict = plan.requeue_after == Some(Duration::ZERO);
            if moved && moves < MAX_EFFECTS && !verdict && looks < MAX_OBSERVATIONS && trouble.is_none() {
                partitions = seen.partitions;
                continue;
            }
            // A failure of a moment ago is judged when the moment is over.
            let mut latest = seen.ends.is_complete.map_or(Requeue::AwaitChange, Requeue::After);
            // Nobody tells that nothing has happened.
            let says = seen.pods.iter().filter_map(|pod| pod.next_report_in(seen.now));
            latest = says.fold(latest, |latest, pause| latest.or_earlier(Requeue::After(pause)));
            let recorded = self
                .record(&blueprint, &object, &status, &plan, &seen, trouble.as_ref())
                .await;
            match recorded {
                Ok(StatusWrite::Written(written)) => object = written,
                Ok(StatusWrite::Unchanged) => {}
                Ok(StatusWrite::Deferred(pause)) => latest = latest.or_earlier(Requeue::After(pause)),
                // Somebody wrote meanwhile, or it is gone: the watch tells.
                Err(PortError::Conflict(_) | PortError::NotFound(_)) => return Ok(Requeue::AwaitChange),
                Err(error) => return Err(error),
            }
            if plan.expired {
                return self.expire(&object).await;
            }
            if let Some(trouble) = trouble.filter(|_| !verdict) {
                return Ok(Requeue::After(trouble.retry()).or_earlier(latest));
            }
            // A specification that changed meanwhile is for the next pass.
            let same = object["metadata"]["generation"] == generation;
            if !(verdict || moved) || looks >= MAX_OBSERVATIONS || moves == MAX_EFFECTS || !same {
                return Ok(wake(&plan, moved || verdict).or_earlier(latest));
            }
            partitions = seen.partitions;
            status = match read_status(&object) {
                Ok(status) => status,
                Err(why) => return self.skip_unreadable(&object, &why).await,
            };
        }
    }

    /// Deletes a job that has been finished for as long as its owner wanted, if it is still as it was looked at.
    async fn expire(&self, object: &Value) -> Result<Requeue, PortError> {
        match self.api.delete_job(object).await {
            // The watch tells, also of what somebody else wrote meanwhile.
            Ok(()) | Err(PortError::Conflict(_) | PortError::NotFound(_)) => Ok(Requeue::AwaitChange),
            Err(error) => Err(error),
        }
    }

    /// Tells in the status why a job could not be looked at, if something is to be done for it.
    async fn report_blocked(
        &self,
        key: &JobKey,
        object: &Value,
        before: IpuJobStatus,
        error: PortError,
    ) -> Result<Requeue, PortError> {
        let trouble = Blocker::of(object, error)?;
        let changed = object["metadata"]["generation"].as_i64() != before.observed_generation;
        let waits_for = if !object["metadata"]["deletionTimestamp"].is_null() {
            Some("the job is being deleted;")
        } else {
            match before.phase {
                None | Some(JobPhase::Pending | JobPhase::Restarting) => Some("partition not ready yet!"),
                Some(phase) if changed && !phase.is_finished() => {
                    Some("the job was changed, which is not done yet;")
                }
                // It goes on, but what happens to it is not seen until somebody does something.
                Some(phase) if trouble.is_worth_a_word(phase) => Some("the job is not worked on;"),
                // It goes on, or is over: it waits for nothing.
                Some(_) => None,
            }
        };
        let mut latest = Requeue::After(trouble.retry());
        if let Some(waits_for) = waits_for {
            let mut after = before.clone();
            after.last_message = format!("{waits_for} {trouble}");
            after.launcher_status.get_or_insert_with(|| "Pending".to_owned());
            let now = self.now();
            let written = self.write_status(key, object, &before, after, now, UpToDate::Something);
            match written.await? {
                StatusWrite::Written(_) => {
                    if let Some(event) = trouble.event(&before, now) {
                        self.put(object, event).await;
                    }
                }
                StatusWrite::Unchanged => {}
                StatusWrite::Deferred(pause) => latest = latest.or_earlier(Requeue::After(pause)),
            }
        }
        Ok(latest)
    }

    /// A job with a status that a newer version wrote, or a person: it is left as it is, and its users are told.
    async fn skip_unreadable(&self, object: &Value, why: &str) -> Result<Requeue, PortError> {
        let event = JobEvent {
            severity: Severity::Warning,
            reason: "UnreadableStatus".to_owned(),
            note: format!("the job is left alone, because this version cannot read its status: {why}"),
            at: self.now(),
        };
        self.put(object, event).await;
        Ok(Requeue::AwaitChange)
    }

    /// An object that is no job: it is told what is wrong, and holds nothing that it did not hold before.
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
        // No operator supervises the rights of its launchers any more.
        self.revoke_all(key, &before, &self.cache.pods(key)).await?;
        let told: Vec<String> = violations.iter().map(ToString::to_string).collect();
        let mut after = before.clone();
        after.last_message = format!("the job cannot be run: {}", told.join("; "));
        after.observed_generation = object["metadata"]["generation"].as_i64();
        after.launcher_status.get_or_insert_with(|| "Pending".to_owned());
        let event = JobEvent {
            severity: Severity::Warning,
            reason: "InvalidJob".to_owned(),
            note: after.last_message.clone(),
            at: self.now(),
        };
        match self
            .write_status(key, object, &before, after, event.at, UpToDate::Something)
            .await?
        {
            StatusWrite::Written(_) => {
                self.put(object, event).await;
                Ok(Requeue::AwaitChange)
            }
            StatusWrite::Unchanged => Ok(Requeue::AwaitChange),
            StatusWrite::Deferred(pause) => Ok(Requeue::After(pause)),
        }
    }

    /// Lets go of a deleted object that cannot be read any more: by what its status says that it held.
    async fn release_unparsable(
        &self,
        key: &JobKey,
        object: &Value,
        status: &IpuJobStatus,
    ) -> Result<Requeue, PortError> {
        // Of some that are gone it is remembered how they ended.
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
            return Ok(Requeue::After(RETRY));
        }
        for id in status
            .instances
            .iter()
            .filter_map(|instance| instance.partition.as_deref())
        {
            let Ok(id) = ipu_core::PartitionId::new(id) else {
                continue;
            };
            let mut how = ipu_proxy_client::DeletePartition::default();
            how.uid = Some(key.uid.to_string());
            self.partitions.release(&id, &how).await?;
        }
        self.remove_finalizer(key, object).await?;
        Ok(Requeue::AwaitChange)
    }
}

/// Which job an object is; none if the API server did not make it.
pub(super) fn key_of(object: &Value) -> Option<JobKey> {
    let text = |name: &str| object["metadata"][name].as_str();
    JobKey::new(text("namespace")?, text("name")?, text("uid")?).ok()
}

/// The status of an object; an empty one if it has none. Whoever knows nothing of what a job has done must not begin it anew: so it is
/// an error if it cannot be read, unless the job is being deleted.
fn read_status(object: &Value) -> Result<IpuJobStatus, String> {
    let stored = object.get("status").filter(|status| !status.is_null());
    let mut status = match stored.map_or_else(|| Ok(IpuJobStatus::default()), IpuJobStatus::deserialize) {
        Ok(status) => status,
        Err(_) if !object["metadata"]["deletionTimestamp"].is_null() => IpuJobStatus::default(),
        Err(error) => return Err(error.to_string()),
    };
    if status.phase.is_none() {
        // As the operator of version 1.2.0 left it: what has ended is not run again.
        status.phase = match status.launcher_status.as_deref() {
            Some("Completed") => Some(JobPhase::Completed),
            Some("Failed") => Some(JobPhase::Failed),
            _ => None,
        };
    }
    Ok(status)
}

fn wake(plan: &Plan, at_once: bool) -> Requeue {
    match plan.requeue_after {
        _ if at_once => Requeue::After(Duration::from_millis(1)),
        Some(after) => Requeue::After(after),
        None => Requeue::AwaitChange,
    }
}
