//! Liveness of the IPUJobs that own partitions, and the partitions that they were granted.

use std::collections::BTreeSet;
use std::time::Duration;

use async_trait::async_trait;
use ipu_allocator::Liveness;
use ipu_core::allocator::{Claim, Entry, OwnerLiveness, Request};
use ipu_core::job::Limits;
use ipu_core::{ControllerName, JobKey, Owner};
use kube::api::{Api, DynamicObject, ListParams};
use kube::core::{ApiResource, GroupVersionKind};
use kube::{Client, Config};
use serde_json::Value;
use tokio::sync::Mutex;
use tokio::time::Instant;

use crate::api_call::{Failure, bounded, connect};
use crate::crd::{IpuJob, MAX_LABEL_LEN};

/// Timeout of one request.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);

/// Maximum age of the list of all IPUJobs that shows an owner alive. It saves a request for each of the
/// owners that a repair checks; an owner missing from it is read by name.
const MAX_LIST_AGE: Duration = Duration::from_secs(5);

/// Maximum number of IPUJobs in the list; further ones are read one by one.
const MAX_LISTED_JOBS: u32 = 10_000;

/// Checks with the API server whether the IPUJobs that own entries exist, by name and uid. The service
/// account needs `get` and `list` on `ipujobs` of group `graphcore.ai`, and `list` on `pods`.
///
/// [`OwnerLiveness::Dead`] requires that the API server reports no IPUJob of that name, or another uid, and
/// no unfinished Pod of the job. The finalizer of an IPUJob keeps it until its workers have ended; but users
/// remove finalizers by hand, and a finalizer that is added during the deletion comes too late. Every other
/// case is [`OwnerLiveness::Unknown`]: an API server that does not respond or refuses access, a cluster
/// without IPUJobs, owners of other kinds.
///
/// The granted partitions follow from the status: where `iPUPartitionCreated` is true, every instance has its
/// partition, for the attempt in `instances`, or for `restartCount` without one. A status writer therefore
/// sets `iPUPartitionCreated` to false in the same write that raises either, and to true when the partitions
/// were granted for that attempt. A lost ledger is rebuilt from this.
pub struct IpuJobLiveness {
    client: Client,
    resource: ApiResource,
    listed: Mutex<Option<JobListing>>,
}

/// Uids of IPUJobs that existed recently; none if the API server did not respond.
struct JobListing {
    uids: Option<BTreeSet<String>>,
    at: Instant,
}

impl std::fmt::Debug for IpuJobLiveness {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("IpuJobLiveness").finish_non_exhaustive()
    }
}

impl IpuJobLiveness {
    /// Creates a client for the API server of `config`. Sends no request yet.
    ///
    /// # Errors
    ///
    /// If `config` is not valid for a client.
    pub fn new(config: Config) -> Result<Self, kube::Error> {
        let client = connect(config)?;
        let kind = GroupVersionKind::gvk("graphcore.ai", "v1alpha1", IpuJob::KIND);
        Ok(Self {
            client,
            resource: ApiResource::from_gvk_with_plural(&kind, "ipujobs"),
            listed: Mutex::new(None),
        })
    }

    /// Returns whether this checks the owner: it is an IPUJob.
    #[must_use]
    pub fn supports(owner: &Owner) -> bool {
        owner.kind == IpuJob::KIND
    }

    /// Returns whether an IPUJob with this uid existed some seconds ago; none if that is unknown.
    async fn was_listed(&self, uid: &str) -> Option<bool> {
        let mut listed = self.listed.lock().await;
        match &*listed {
            Some(listed) if listed.at.elapsed() < MAX_LIST_AGE => {}
            _ => {
                let api: Api<DynamicObject> = Api::all_with(self.client.clone(), &self.resource);
                // From the API server's watch cache: a slightly outdated list suffices.
                let params = ListParams::default().limit(MAX_LISTED_JOBS).match_any();
                let found = bounded(REQUEST_TIMEOUT, api.list_metadata(&params)).await;
                let uids = match found {
                    Ok(found) => Some(
                        found
                            .items
                            .into_iter()
                            .filter_map(|job| job.metadata.uid)
                            .collect(),
                    ),
                    // A refusal, for example without the CRD: each job is asked for.
                    Err(failure) if failure.code().is_some() => Some(BTreeSet::new()),
                    Err(_) => None,
                };
                // The time of the reply: a list that times out is not requested again for each owner.
                let at = Instant::now();
                *listed = Some(JobListing { uids, at });
            }
        }
        let uids = listed.as_ref()?.uids.as_ref()?;
        Some(uids.contains(uid))
    }

    /// Returns all IPUJobs with their status; none if the API server does not respond.
    async fn jobs(&self) -> Vec<DynamicObject> {
        let api: Api<DynamicObject> = Api::all_with(self.client.clone(), &self.resource);
        // Not from the watch cache: a partition would be adopted for a finished attempt.
        let params = ListParams::default().limit(MAX_LISTED_JOBS);
        match bounded(REQUEST_TIMEOUT, api.list(&params)).await {
            Ok(found) => found.items,
            Err(failure) => {
                tracing::debug!(%failure, "the claims of IPUJobs are unknown");
                Vec::new()
            }
        }
    }

    async fn liveness(&self, job: &JobKey) -> OwnerLiveness {
        let (namespace, name) = (job.namespace.as_str(), job.name.as_str());
        if !is_object_name(namespace) || !is_object_name(name) {
            // No IPUJob can have this name: the entry has another origin, and its liveness cannot be checked
            // here.
            return OwnerLiveness::Unknown;
        }
        match self.was_listed(job.uid.as_str()).await {
            Some(true) => return OwnerLiveness::Live,
            Some(false) => {}
            None => return OwnerLiveness::Unknown,
        }
        let api: Api<DynamicObject> = Api::namespaced_with(self.client.clone(), namespace, &self.resource);
        match bounded(REQUEST_TIMEOUT, api.get_metadata(name)).await {
            Ok(found) => match found.metadata.uid {
                Some(uid) if uid == job.uid.as_str() => OwnerLiveness::Live,
                Some(_) => self.remaining_pods(job).await,
                None => OwnerLiveness::Unknown,
            },
            Err(failure) if is_absent(&failure, name) => self.remaining_pods(job).await,
            Err(failure) => {
                tracing::debug!(%job, %failure, "the liveness of an IPUJob is unknown");
                OwnerLiveness::Unknown
            }
        }
    }
}

impl IpuJobLiveness {
    /// Checks for remains of a deleted IPUJob: its Pods may still terminate and use the partition.
    async fn remaining_pods(&self, job: &JobKey) -> OwnerLiveness {
        let uid = job.uid.as_str();
        if !is_label_value(uid) {
            // No Pod can have this label.
            return OwnerLiveness::Dead;
        }
        let pods = ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk("", "v1", "Pod"), "pods");
        let api: Api<DynamicObject> =
            Api::namespaced_with(self.client.clone(), job.namespace.as_str(), &pods);
        let params = ListParams::default()
            .labels(&format!("{}={uid}", IpuJob::UID_LABEL))
            .fields("status.phase!=Succeeded,status.phase!=Failed")
            .limit(1);
        match bounded(REQUEST_TIMEOUT, api.list_metadata(&params)).await {
            Ok(found) if found.items.is_empty() => OwnerLiveness::Dead,
            Ok(_) => {
                tracing::info!(%job, "an IPUJob was deleted, and its pods still exist");
                OwnerLiveness::Unknown
            }
            Err(failure) => {
                tracing::warn!(%job, %failure, "an IPUJob was deleted, and the state of its pods is unknown");
                OwnerLiveness::Unknown
            }
        }
    }
}

#[async_trait]
impl Liveness for IpuJobLiveness {
    async fn liveness_of(&self, entry: &Entry) -> OwnerLiveness {
        match &entry.owner {
            Some(owner) if Self::supports(owner) => self.liveness(&owner.job).await,
            _ => OwnerLiveness::Unknown,
        }
    }

    async fn claims(&self) -> Vec<Claim> {
        self.jobs().await.into_iter().flat_map(granted).collect()
    }
}

/// Returns the partitions that the status of an IPUJob claims.
fn granted(job: DynamicObject) -> Vec<Claim> {
    let status = &job.data["status"];
    if status["iPUPartitionCreated"] != true {
        return Vec::new();
    }
    let attempt = status["restartCount"].as_u64().unwrap_or(0);
    let Ok(attempt) = u32::try_from(attempt) else {
        return Vec::new();
    };
    // Objects of a list have no `apiVersion` and `kind`.
    let mut object = serde_json::to_value(&job).unwrap_or_default();
    object["apiVersion"] = IpuJob::API_VERSION.into();
    object["kind"] = IpuJob::KIND.into();
    let spec = match IpuJob::from_value(object)
        .0
        .parse(&Limits::default().for_stored())
    {
        Ok(parsed) => parsed.spec,
        Err(violations) => {
            let name = job.metadata.name.unwrap_or_default();
            tracing::debug!(name, ?violations, "the claims of an invalid IPUJob are unknown");
            return Vec::new();
        }
    };
    let owner = Owner {
        kind: IpuJob::KIND.into(),
        job: spec.key().clone(),
    };
    let report_of = |instance: u32| {
        let mut reports = status["instances"].as_array().into_iter().flatten();
        reports
            .find(|report| report["index"] == instance)
            .unwrap_or(&Value::Null)
    };
    let claim = |instance| {
        let report = report_of(instance);
        let job_attempt = report["attempt"].as_u64();
        let mut request = Request::of_instance(owner.clone(), instance, spec.partition().clone());
        request.attempt = job_attempt
            .and_then(|job_attempt| u32::try_from(job_attempt).ok())
            .unwrap_or(attempt);
        request.priority = spec.priority();
        request.preemptible = spec.preemptible();
        request.account = spec.account().map(str::to_owned);
        request.max_runtime = spec.max_runtime();
        let mut claim = Claim::from(request);
        claim.controller = report["controller"]
            .as_str()
            .and_then(|name| ControllerName::new(name).ok());
        claim
    };
    (0..spec.instances()).map(claim).collect()
}

/// Returns whether the API server serves IPUJobs and has none of this name. Without the CRD, its response has
/// no such details.
fn is_absent(failure: &Failure, name: &str) -> bool {
    let Failure::Call(error) = failure else {
        return false;
    };
    let kube::Error::Api(status) = &**error else {
        return false;
    };
    let named = status.details.as_ref().is_some_and(|details| {
        details.name == name && details.kind == "ipujobs" && details.group == "graphcore.ai"
    });
    status.code == 404 && status.reason == "NotFound" && named
}

/// Returns whether the text is a valid label value. Another one would change the selector.
fn is_label_value(text: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric();
    text.len() <= MAX_LABEL_LEN
        && text.starts_with(plain)
        && text.ends_with(plain)
        && text.chars().all(|c| plain(c) || matches!(c, '-' | '_' | '.'))
}

/// Returns whether the text is a valid object name. Another one would change the request path.
fn is_object_name(text: &str) -> bool {
    let alphanumeric = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    text.len() <= 253
        && text.starts_with(alphanumeric)
        && text.ends_with(alphanumeric)
        && text.chars().all(|c| alphanumeric(c) || matches!(c, '-' | '.'))
}
